//! Entries: what a path of a branch leads to, and which paths there are.
//!
//! Invariants
//! - A path is compared byte by byte, and ordered so: no two spellings of a letter are one.
//! - A path never leads out of a folder that a branch is copied into.

use crate::ids::{ChunkIndex, SubmissionId};
use crate::limits::{
    BRANCH_NAME_BYTES_MAX, CONTENT_TYPE_BYTES_MAX, ENTRY_METADATA_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
    OBJECT_ADDRESS_BYTES_MAX, PATH_BYTES_MAX,
};
use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The SHA-256 of some bytes: it names commits, metaranges and ranges, and tells whether an object is what it should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Digest(#[n(0)] pub ByteArray<32>);

impl Digest {
    /// The digest of these bytes' 32 bytes.
    pub fn new(bytes: [u8; 32]) -> Digest {
        Digest(ByteArray::from(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Why a text is no digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotADigest;

impl fmt::Display for NotADigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a SHA-256 is written as 64 digits of 0 to 9 and a to f")
    }
}

impl std::error::Error for NotADigest {}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Digest, NotADigest> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return Err(NotADigest);
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| NotADigest)?;
        }
        Ok(Digest::new(bytes))
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a path leads to: an object, and what is said of it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ObjectEntry {
    /// The object's key in the object store.
    #[n(0)]
    pub address: String,
    /// Its size in bytes.
    #[n(1)]
    pub size: u64,
    /// The digest of its bytes, which is its ETag too.
    #[n(2)]
    pub sha256: Digest,
    /// What kind of bytes they are, as whoever put them said; may be empty.
    #[n(3)]
    pub content_type: String,
    /// What else was said of them.
    #[n(4)]
    pub metadata: BTreeMap<String, String>,
    /// The chunk whose work gave it, if one did.
    #[n(5)]
    pub made_by: Option<MadeBy>,
}

/// The chunk whose work gave an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct MadeBy {
    /// Its submission.
    #[n(0)]
    pub submission: SubmissionId,
    /// Its place there.
    #[n(1)]
    pub chunk: ChunkIndex,
}

impl ObjectEntry {
    /// The first limit that the entry breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let metadata_bytes: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
        if self.content_type.len() > CONTENT_TYPE_BYTES_MAX || !self.content_type.bytes().all(is_plain) {
            Some(format!("a content type has at most {CONTENT_TYPE_BYTES_MAX} printable ASCII characters"))
        } else if metadata_bytes > ENTRY_METADATA_BYTES_MAX {
            Some(format!(
                "metadata of an entry has at most {ENTRY_METADATA_BYTES_MAX} bytes in all; put the rest into the object"
            ))
        } else if self.address.is_empty() || self.address.len() > OBJECT_ADDRESS_BYTES_MAX {
            Some(format!(
                "an object's address has 1 to {OBJECT_ADDRESS_BYTES_MAX} bytes; ask for one with `token`"
            ))
        } else {
            None
        }
    }
}

/// What is wrong with a path, as a sentence that says what to do.
pub fn problem_of_path(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some("a path is empty; give at least one character".into());
    }
    if path.len() > PATH_BYTES_MAX {
        let length = path.len();
        return Some(format!(
            "a path has {length} bytes, and at most {PATH_BYTES_MAX} are taken; shorten it"
        ));
    }
    if let Some(character) = path.chars().find(|character| character.is_control()) {
        return Some(format!(
            "the path {path:?} has the control character {character:?}; paths are text that can be printed"
        ));
    }
    path.split('/').find_map(|segment| match segment {
        "" => Some(format!(
            "the path {path:?} has an empty segment; remove the slash at its begin or end, or the doubled one"
        )),
        "." | ".." => Some(format!("the path {path:?} has a segment of dots only; name it without . and ..")),
        _ => None,
    })
}

/// What is wrong with a prefix of paths, as a sentence that says what to do.
pub fn problem_of_prefix(prefix: &str) -> Option<String> {
    let is_wrong = prefix.len() > PATH_BYTES_MAX || prefix.chars().any(char::is_control);
    is_wrong.then(|| format!("a prefix has at most {PATH_BYTES_MAX} bytes of text that can be printed"))
}

/// What is wrong with an idempotency key, as a sentence that says what to do.
pub(super) fn problem_of_key(key: Option<&str>) -> Option<String> {
    let is_wrong = key.is_some_and(|key| key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX);
    is_wrong.then(|| format!("an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes; a UUID will do"))
}

/// What is wrong with a branch's name, as a sentence that says what to do.
pub fn problem_of_branch_name(name: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_segment = |segment: &str| {
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(is_plain)
    };
    let is_name = name.len() <= BRANCH_NAME_BYTES_MAX && name.split('/').all(is_segment);
    (!is_name).then(|| {
        format!(
            "a branch's name has 1 to {BRANCH_NAME_BYTES_MAX} letters of a to z, A to Z, digits, `.`, `_` and `-`, in \
             segments joined by `/`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_any_text_that_can_be_printed_and_leads_nowhere_else() {
        let long = "p".repeat(PATH_BYTES_MAX);
        for good in
            ["a", "a/b", "...", "a b", "ä/ö", "a\u{308}", "\u{202e}txt", "🦀", "a\\b", "%2e%2e", &long]
        {
            assert_eq!(problem_of_path(good), None, "{good:?}");
        }
        let longer = "p".repeat(4_096);
        for bad in
            ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "./a", "a\0b", "a\nb", "\u{85}", &longer]
        {
            assert!(problem_of_path(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn a_digest_is_written_as_64_small_digits_and_read_back() {
        let digest = Digest::new(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "00", &"G".repeat(64), &"A".repeat(64), &"0".repeat(65)] {
            assert_eq!(bad.parse::<Digest>(), Err(NotADigest), "{bad:?}");
        }
    }

    #[test]
    fn a_branch_name_is_plain_segments() {
        for good in ["main", "feeds/nl", "a.b/c_d-e"] {
            assert_eq!(problem_of_branch_name(good), None, "{good:?}");
        }
        for bad in
            ["", "/", "a/", "/a", "a//b", "..", "a/..", "ä", "a b", &"b".repeat(BRANCH_NAME_BYTES_MAX + 1)]
        {
            assert!(problem_of_branch_name(bad).is_some(), "{bad:?}");
        }
    }
}
