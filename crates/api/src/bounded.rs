//! Lists of which a request has only so many: of longer ones one more is kept, which is enough to see that they are too long.
//!
//! A frame or body of 4 MiB could hold millions of entries, of which each takes far more memory than bytes.

use minicbor::{Decode, Decoder, data::Type};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Reads a list of JSON, and keeps at most one more than so many.
pub(crate) fn from_json<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Kept::<T, MOST>(PhantomData))
}

struct Kept<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Kept<T, MOST> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while let Some(entry) = list.next_element()? {
            if kept.len() <= MOST {
                kept.push(entry);
            }
        }
        Ok(kept)
    }
}

/// Reads a list of CBOR, and keeps at most one more than so many.
pub(crate) fn from_cbor<'b, C, T: Decode<'b, C>, const MOST: usize>(
    from: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Vec<T>, minicbor::decode::Error> {
    let (mut kept, mut left) = (Vec::new(), from.array()?);
    loop {
        match &mut left {
            Some(0) => return Ok(kept),
            Some(left) => *left -= 1,
            // Its end is marked.
            None if from.datatype()? == Type::Break => {
                from.skip()?;
                return Ok(kept);
            }
            None => {}
        }
        let entry = T::decode(from, context)?;
        if kept.len() <= MOST {
            kept.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cbor(bytes: &[u8]) -> Result<Vec<u8>, minicbor::decode::Error> {
        from_cbor::<_, _, 2>(&mut Decoder::new(bytes), &mut ())
    }

    fn json(text: &str) -> Result<Vec<u8>, serde_json::Error> {
        from_json::<_, _, 2>(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn of_a_list_that_is_too_long_one_more_is_kept_than_may_be_and_all_of_it_is_read() {
        for (bytes, text, kept) in [
            (&[0x80][..], "[]", &[][..]),
            (&[0x82, 1, 2], "[1, 2]", &[1, 2]),
            (&[0x84, 1, 2, 3, 4], "[1, 2, 3, 4]", &[1, 2, 3]),
            (&[0x9f, 1, 2, 3, 4, 0xff], "[1,2,3,4]", &[1, 2, 3]),
        ] {
            assert_eq!((cbor(bytes).unwrap(), json(text).unwrap()), (kept.to_vec(), kept.to_vec()));
        }
        assert!(cbor(&[0x84, 1, 2, 3, 0x60]).is_err() && cbor(&[0x9f, 1, 2]).is_err());
        assert!(json("[1, 2, 3, \"x\"]").is_err() && json("7").is_err());
        let frames = [0x84, 1, 2, 3, 4, 9];
        let mut decoder = Decoder::new(&frames);
        from_cbor::<_, u8, 2>(&mut decoder, &mut ()).unwrap();
        assert_eq!(decoder.u8().unwrap(), 9, "what comes behind it is read as before");
    }
}
