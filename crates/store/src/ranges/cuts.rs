//! Cuts: where one range ends and the next begins.
//!
//! Invariants
//! - Whether a range ends after an entry depends on the entries since the last cut alone: the same entries are always
//!   cut in the same places, and a change moves only the cuts that are near to it.

use sha2::{Digest as _, Sha256};

/// Where ranges are cut. Two servers that share a store must agree on it, so only tests have others than the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuts {
    /// No range ends by its path's hash with fewer entries than this.
    pub entries_min: usize,
    /// From there on it ends after one path in this many.
    pub modulus: u32,
    /// It ends in any case when it has this many entries.
    pub entries_max: usize,
    /// It ends in any case when its paths, addresses, content types and metadata have this many bytes.
    pub text_bytes_max: usize,
}

impl Default for Cuts {
    /// A range has some 20,000 entries, which are one to two MiB as a file: few enough bytes for one path to be read or
    /// changed, and a billion entries are a list of 50,000 ranges.
    fn default() -> Cuts {
        Cuts {
            entries_min: 4_096,
            modulus: 16_384,
            entries_max: 65_536,
            // 65,536 entries with all the metadata that they may have would be 240 MiB, and a reader holds a whole one.
            text_bytes_max: 32 << 20,
        }
    }
}

impl Cuts {
    /// Whether a range that has so many entries and bytes of text ends after its last path.
    pub(super) fn end_after(&self, entries: usize, text_bytes: usize, last_path: &str) -> bool {
        entries >= self.entries_max
            || text_bytes >= self.text_bytes_max
            || entries >= self.entries_min && hash(last_path).is_multiple_of(self.modulus)
    }
}

/// The first four bytes of the path's SHA-256, the most significant one first. A checksum would be quicker, but those of
/// paths that only count up are as regular as the paths, and might not meet the modulus for millions of them.
fn hash(path: &str) -> u32 {
    let [first, second, third, fourth, ..] = <[u8; 32]>::from(Sha256::digest(path));
    u32::from_be_bytes([first, second, third, fourth])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_by_its_paths_hash_by_its_entries_or_by_its_bytes() {
        let cuts = Cuts { entries_min: 3, modulus: 16, entries_max: 100, text_bytes_max: 1_000 };
        let met = (0..).map(|at: u32| at.to_string()).find(|path| hash(path).is_multiple_of(16)).unwrap();
        assert!(!cuts.end_after(2, 10, &met), "too few for the hash to count");
        assert!(cuts.end_after(3, 10, &met));
        let missed = (0..).map(|at: u32| at.to_string()).find(|path| !hash(path).is_multiple_of(16)).unwrap();
        assert!(!cuts.end_after(99, 999, &missed));
        assert!(cuts.end_after(100, 999, &missed));
        assert!(cuts.end_after(1, 1_000, &missed));
    }

    #[test]
    fn the_hash_of_a_path_is_forever() {
        assert_eq!(hash("abc"), 0xba78_16bf);
        assert_eq!(
            hash("ä/🦀"),
            u32::from_be_bytes(Sha256::digest("ä/🦀".as_bytes())[..4].try_into().unwrap())
        );
    }
}
