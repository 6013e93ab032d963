//! Keys: the names of objects.
//!
//! Invariants
//! - A key cannot lead out of the store's folder, nor to where uploads are staged.

use object_store::path;

/// The longest key. S3 takes 1,024 bytes with the prefix, and a folder's path 4,096.
pub const KEY_BYTES_MAX: usize = 512;

/// An object's key: segments of letters, digits and `._=-`, joined by `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(String);

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Nothing was given.
    #[error("an object's key is empty; give at least one character")]
    Empty,
    /// It is too long.
    #[error("an object's key has {length} bytes, and at most {KEY_BYTES_MAX} are taken; shorten it")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It begins or ends with a slash, or has two in a row.
    #[error(
        "the object's key {key:?} has an empty segment; remove the slash at its begin or end, or the doubled one"
    )]
    EmptySegment {
        /// The key as given.
        key: String,
    },
    /// A segment is `.` or `..`.
    #[error("the object's key {key:?} has a segment of dots only; name the object without . and ..")]
    Dots {
        /// The key as given.
        key: String,
    },
    /// A character is not taken.
    #[error(
        "the object's key {key:?} has the character {character:?}; use letters, digits and . _ = - in segments joined by /"
    )]
    Character {
        /// The key as given.
        key: String,
        /// The character.
        character: char,
    },
}

impl ObjectKey {
    /// Reads a key.
    ///
    /// # Errors
    /// If the text is no key; the sentence says what to change.
    pub fn parse(key: &str) -> Result<ObjectKey, BadKey> {
        if key.is_empty() {
            return Err(BadKey::Empty);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(BadKey::TooLong { length: key.len() });
        }
        let is_taken = |character: char| character.is_ascii_alphanumeric() || "._=-".contains(character);
        for segment in key.split('/') {
            if segment.is_empty() {
                return Err(BadKey::EmptySegment { key: key.to_owned() });
            }
            if segment == "." || segment == ".." {
                return Err(BadKey::Dots { key: key.to_owned() });
            }
            if let Some(character) = segment.chars().find(|character| !is_taken(*character)) {
                return Err(BadKey::Character { key: key.to_owned(), character });
            }
        }
        Ok(ObjectKey(key.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn location(&self) -> path::Path {
        path::Path::from(self.0.as_str())
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_could_lead_astray_is_refused() {
        for good in ["a", "a/b.c/d_e=f-g", "...", &"k".repeat(512)] {
            assert_eq!(ObjectKey::parse(good).unwrap().as_str(), good);
        }
        let dots = |key: &str| BadKey::Dots { key: key.to_owned() };
        let empty = |key: &str| BadKey::EmptySegment { key: key.to_owned() };
        let character = |key: &str, character| BadKey::Character { key: key.to_owned(), character };
        for (key, bad) in [
            ("", BadKey::Empty),
            ("..", dots("..")),
            ("a/../b", dots("a/../b")),
            ("./a", dots("./a")),
            ("/a", empty("/a")),
            ("a/", empty("a/")),
            ("a//b", empty("a//b")),
            ("a b", character("a b", ' ')),
            ("a\\b", character("a\\b", '\\')),
            ("a%2e", character("a%2e", '%')),
            ("ä", character("ä", 'ä')),
            ("a\0", character("a\0", '\0')),
            (&"k".repeat(513), BadKey::TooLong { length: 513 }),
        ] {
            assert_eq!(ObjectKey::parse(key), Err(bad));
        }
    }
}
