//! Cursor: the entries of a metarange one after the other.
//!
//! Invariants
//! - Entries come in the order of their paths, each once.
//! - One range is in memory at a time, besides those whose entries the caller still holds.

use super::entries::{Entries, EntryView};
use super::walk::Walk;
use super::{Keep, Ranges};
use crate::fault::StoreFault;
use std::sync::Arc;
use windlass_core::branches::entries::{Digest, ObjectEntry};

/// A cursor over committed entries.
pub struct Cursor {
    ranges: Ranges,
    metarange: Option<Digest>,
    /// None until the first entry is asked for.
    walk: Option<Walk>,
    /// Where to go before the next entry is read.
    sought: Option<String>,
}

/// A committed entry, where it lies in memory: it keeps its whole range there, so hold on to few.
#[derive(Clone)]
pub struct CommittedEntry {
    entries: Arc<Entries>,
    row: usize,
}

impl Cursor {
    pub(super) fn new(ranges: Ranges, metarange: Option<Digest>) -> Cursor {
        Cursor { ranges, metarange, walk: None, sought: None }
    }

    /// Goes to the first path, forward or back, that is not smaller. What that needs is read with the next entry.
    pub fn seek(&mut self, at_least: &str) {
        self.sought = Some(at_least.to_owned());
    }

    /// The entry at the cursor; none at the end.
    ///
    /// # Errors
    /// If the store fails, or a file is missing or damaged. The cursor is then where it was.
    pub async fn peek(&mut self) -> Result<Option<CommittedEntry>, StoreFault> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            unread @ None => {
                let metarange = self.ranges.metarange_or_empty(self.metarange).await?;
                unread.insert(Walk::new(self.ranges.clone(), metarange, Keep::Yes))
            }
        };
        if let Some(at_least) = &self.sought {
            walk.seek(at_least).await?;
            self.sought = None;
        }
        let row = walk.row();
        Ok(walk.load().await?.map(|entries| CommittedEntry { entries: Arc::clone(entries), row }))
    }

    /// The entry at the cursor, which goes on to the next; none at the end.
    ///
    /// # Errors
    /// As [`Cursor::peek`].
    pub async fn next(&mut self) -> Result<Option<CommittedEntry>, StoreFault> {
        let found = self.peek().await?;
        if let (Some(found), Some(walk)) = (&found, &mut self.walk) {
            walk.go_to_row(found.row + 1);
        }
        Ok(found)
    }
}

impl CommittedEntry {
    fn view(&self) -> EntryView<'_> {
        self.entries.view(self.row)
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.view().path
    }

    /// The key of the object that it leads to.
    pub fn address(&self) -> &str {
        self.view().address
    }

    /// The object's size in bytes.
    pub fn size(&self) -> u64 {
        self.view().size
    }

    /// All that is said of it.
    pub fn to_entry(&self) -> ObjectEntry {
        self.view().to_entry()
    }
}
