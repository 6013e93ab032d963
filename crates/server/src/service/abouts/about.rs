//! What is said of one submission, as consumers get it.

use minicbor::bytes::ByteVec;
use minicbor::{Decoder, Encoder};
use std::convert::Infallible;
use windlass_core::batch::submissions::{Input, Metadata, MetadataBytes, Submit};

/// How CBOR says that there is nothing.
const CBOR_NULL: u8 = 0xf6;

/// What is said of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The fields that stand before the chunks in a frame of work, one after the other.
    fields: Box<[u8]>,
    /// The branch that outputs go to.
    branch: Option<Box<str>>,
}

/// The fields of an about.
#[derive(Debug, Clone, PartialEq)]
pub struct AboutFields {
    /// Chunk i's bytes are the object `prefix/i`.
    pub prefix: Option<String>,
    /// The bytes of the only chunk.
    pub payload: Option<ByteVec>,
    /// What the producer sent along.
    pub opaque: Option<ByteVec>,
    /// The submission's metadata.
    pub metadata: Metadata,
}

impl About {
    /// Takes from what its producer said what consumers get.
    pub fn of(said: &Submit) -> About {
        let (prefix, payload) = match &said.input {
            Input::Nowhere => (None, None),
            Input::Prefix(prefix) => (Some(prefix), None),
            Input::Inline(payload) => (None, Some(payload)),
        };
        let opaque = (!said.opaque.is_empty()).then_some(&said.opaque);
        let branch = said.output.as_ref().map(|rule| rule.branch.as_str().into());
        About { fields: encoded(prefix, payload, opaque, &said.metadata), branch }
    }

    /// Of a submission of which nothing but this is said.
    pub(super) fn of_plain(metadata: &MetadataBytes) -> About {
        /// No prefix, no payload, no opaque bytes.
        const NOTHING_BEFORE: [u8; 3] = [CBOR_NULL; 3];
        About { fields: [&NOTHING_BEFORE, metadata.as_bytes()].concat().into(), branch: None }
    }

    /// The same with other metadata, which is all that can change of it.
    pub(super) fn with_metadata(&self, metadata: &Metadata) -> About {
        let AboutFields { prefix, payload, opaque, .. } = self.fields();
        let fields = encoded(prefix.as_ref(), payload.as_ref(), opaque.as_ref(), metadata);
        About { fields, branch: self.branch.clone() }
    }

    /// Fields 1 to 4 of a frame's [`WorkOf`](windlass_api::frames::WorkOf), as they stand there.
    pub fn encoded_fields(&self) -> &[u8] {
        &self.fields
    }

    /// The branch that outputs go to.
    pub fn branch(&self) -> Option<&str> {
        self.branch.as_deref()
    }

    /// What the fields say.
    pub fn fields(&self) -> AboutFields {
        let mut fields = Decoder::new(&self.fields);
        let mut decode = || -> Result<AboutFields, minicbor::decode::Error> {
            Ok(AboutFields {
                prefix: fields.decode()?,
                payload: fields.decode()?,
                opaque: fields.decode()?,
                metadata: fields.decode()?,
            })
        };
        decode().expect("the fields were encoded here")
    }

    /// About how many bytes it takes in a frame of work or an answer.
    pub fn bytes(&self) -> usize {
        self.fields.len() + self.branch.as_ref().map_or(0, |branch| branch.len()) + 64
    }
}

fn encoded(
    prefix: Option<&String>,
    payload: Option<&ByteVec>,
    opaque: Option<&ByteVec>,
    metadata: &Metadata,
) -> Box<[u8]> {
    let mut fields = Encoder::new(Vec::with_capacity(128));
    let mut encode = || -> Result<(), minicbor::encode::Error<Infallible>> {
        fields.encode(prefix)?.encode(payload)?.encode(opaque)?.encode(metadata)?;
        Ok(())
    };
    encode().expect("encoding into memory does not fail");
    fields.into_writer().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_about_says_what_the_producer_said() {
        let metadata: Metadata = [("company".to_owned(), 7_i64.into())].into();
        let submit =
            Submit { input: Input::Prefix("in/7".into()), metadata: metadata.clone(), ..Submit::new(3) };
        let about = About::of(&submit);
        let fields = AboutFields { prefix: Some("in/7".into()), payload: None, opaque: None, metadata };
        assert_eq!((about.fields(), about.branch()), (fields, None));
        let opaque = Submit { opaque: vec![9].into(), ..Submit::new(1) };
        let inline = About::of(&Submit { input: Input::Inline(vec![1, 2].into()), ..opaque });
        let changed = inline.with_metadata(&submit.metadata).fields();
        assert_eq!((changed.payload, changed.opaque), (Some(vec![1, 2].into()), Some(vec![9].into())));
        assert_eq!(changed.metadata, submit.metadata);
    }
}
