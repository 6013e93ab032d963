//! Entries: those of one range in memory, column by column.
//!
//! Invariants
//! - Every column has as many rows as there are entries.
//! - Texts of a column lie in one piece of memory, so that a range costs some twenty allocations, not five for each entry.
//! - Metadata is kept as the JSON text that the file has, which is the same text whenever the metadata is the same; it is
//!   empty if there is none.

use std::collections::BTreeMap;
use windlass_core::branches::entries::{Digest, MadeBy, ObjectEntry};

/// Entries in the order of their paths.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) paths: Texts,
    pub(super) addresses: Texts,
    pub(super) sizes: Vec<u64>,
    pub(super) digests: Vec<[u8; 32]>,
    pub(super) content_types: Texts,
    pub(super) metadata: Texts,
    pub(super) made_by: Vec<Option<MadeBy>>,
}

/// One entry, where it lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EntryView<'a> {
    pub(super) path: &'a str,
    pub(super) address: &'a str,
    pub(super) size: u64,
    pub(super) sha256: &'a [u8; 32],
    pub(super) content_type: &'a str,
    pub(super) metadata: &'a str,
    pub(super) made_by: Option<MadeBy>,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    pub(super) fn path(&self, row: usize) -> &str {
        self.paths.get(row)
    }

    pub(super) fn view(&self, row: usize) -> EntryView<'_> {
        EntryView {
            path: self.paths.get(row),
            address: self.addresses.get(row),
            size: self.sizes[row],
            sha256: &self.digests[row],
            content_type: self.content_types.get(row),
            metadata: self.metadata.get(row),
            made_by: self.made_by[row],
        }
    }

    /// The first row whose path is not smaller.
    pub(super) fn row_at_least(&self, path: &str) -> usize {
        self.paths.partition_point(|it| it < path)
    }

    pub(super) fn find(&self, path: &str) -> Option<EntryView<'_>> {
        let row = self.row_at_least(path);
        (row < self.len() && self.path(row) == path).then(|| self.view(row))
    }

    pub(super) fn push(&mut self, entry: EntryView<'_>) {
        self.paths.push(entry.path);
        self.addresses.push(entry.address);
        self.sizes.push(entry.size);
        self.digests.push(*entry.sha256);
        self.content_types.push(entry.content_type);
        self.metadata.push(entry.metadata);
        self.made_by.push(entry.made_by);
    }

    pub(super) fn push_entry(&mut self, path: &str, entry: &ObjectEntry) {
        self.push(EntryView {
            path,
            address: &entry.address,
            size: entry.size,
            sha256: entry.sha256.as_bytes(),
            content_type: &entry.content_type,
            metadata: &text_of_metadata(&entry.metadata),
            made_by: entry.made_by,
        });
    }

    /// Bytes of all paths, addresses, content types and metadata.
    pub(super) fn text_bytes(&self) -> usize {
        [&self.paths, &self.addresses, &self.content_types, &self.metadata].map(Texts::bytes).iter().sum()
    }

    /// Bytes of all objects.
    pub(super) fn object_bytes(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        const ROW_BYTES: usize = size_of::<u64>() + 32 + size_of::<Option<MadeBy>>() + 4 * size_of::<u32>();
        size_of::<Entries>() + self.text_bytes() + self.len() * ROW_BYTES
    }
}

impl EntryView<'_> {
    pub(super) fn to_entry(self) -> ObjectEntry {
        ObjectEntry {
            address: self.address.to_owned(),
            size: self.size,
            sha256: Digest::new(*self.sha256),
            content_type: self.content_type.to_owned(),
            metadata: metadata_of_text(self.metadata)
                .expect("metadata was made from a map, or read as one when its file was"),
            made_by: self.made_by,
        }
    }

    /// Whether it says the same, whatever its path.
    pub(super) fn says(&self, entry: &ObjectEntry) -> bool {
        self.address == entry.address
            && self.size == entry.size
            && self.sha256 == entry.sha256.as_bytes()
            && self.content_type == entry.content_type
            && self.made_by == entry.made_by
            && self.metadata == text_of_metadata(&entry.metadata)
    }
}

fn text_of_metadata(metadata: &BTreeMap<String, String>) -> String {
    if metadata.is_empty() {
        return String::new();
    }
    serde_json::to_string(metadata).expect("a map of texts has a JSON form")
}

/// The metadata of a text, or none if it is not the text of any.
pub(super) fn metadata_of_text(text: &str) -> Option<BTreeMap<String, String>> {
    if text.is_empty() { Some(BTreeMap::new()) } else { serde_json::from_str(text).ok() }
}

/// Texts one after the other in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) text: String,
    /// Where each of them ends.
    pub(super) ends: Vec<u32>,
}

impl Texts {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        let end = u32::try_from(self.text.len()).expect("cuts keep the texts of a range far below 4 GiB");
        self.ends.push(end);
    }

    pub(super) fn get(&self, row: usize) -> &str {
        let begin = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin as usize..self.ends[row] as usize]
    }

    fn bytes(&self) -> usize {
        self.text.len()
    }

    /// How many of them, which are sorted, come before the first that is not below.
    fn partition_point(&self, is_below: impl Fn(&str) -> bool) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            if is_below(self.get(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
