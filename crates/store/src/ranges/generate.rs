//! Generate: a metarange from its parent and what has changed since.
//!
//! Invariants
//! - The result is the one that the same entries would give without a parent.
//! - A range of the parent that nothing touches is taken over unread, if it begins where a range of the result begins.
//! - In memory are one range of the parent, the range that is gathered, and what waits to be written.

use super::entries::Entries;
use super::metarange_file::RangeInfo;
use super::walk::Walk;
use super::writing::Writing;
use super::{Cuts, FileName, Keep, Ranges};
use crate::fault::StoreFault;
use crate::turns::give_way;
use futures_util::{Stream, StreamExt};
use std::pin::pin;
use std::sync::Arc;
use windlass_core::branches::entries::{Digest, ObjectEntry};

/// So many entries are copied before others get their turn on this thread: about a millisecond.
const COPIED_AT_ONCE: usize = 4_096;

/// What becomes of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path.
    pub path: String,
    /// What it leads to from now on; none if it is removed.
    pub entry: Option<ObjectEntry>,
}

/// A metarange that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The digest that it is named by.
    pub metarange: Digest,
    /// Entries in all.
    pub entries: u64,
    /// Bytes of all objects that they lead to.
    pub bytes: u64,
    /// Paths that the parent does not have.
    pub added: u64,
    /// Paths that lead to something else than in the parent.
    pub changed: u64,
    /// Paths that only the parent has.
    pub removed: u64,
    /// Ranges in all.
    pub ranges: u64,
    /// Ranges that the parent does not have.
    pub ranges_written: u64,
    /// The files that were noted and written, in the order of their notes.
    pub files: Vec<FileName>,
}

/// Why a metarange could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GenerateFault<E> {
    /// The store, or whoever gives the changes, failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The names of files could not be noted; they were not written.
    #[error("the names of new files could not be noted: {0}")]
    Note(E),
}

impl Ranges {
    /// Makes the metarange of a parent's entries with these changes, which come in strictly ascending order of paths.
    /// Entries of the parent that begin with the replaced prefix stay only if a change names them.
    ///
    /// Names of files are given to `note` a few at a time before any of them is written. After a fault the files that
    /// were noted may be there or not, and nothing names them.
    ///
    /// # Errors
    /// If the store or a note fails, or a file of the parent is missing or damaged.
    ///
    /// # Panics
    /// If the changes are not in order.
    pub async fn generate<E>(
        &self,
        parent: Option<Digest>,
        replaced_prefix: Option<&str>,
        changes: impl Stream<Item = Result<Change, StoreFault>>,
        note: impl AsyncFnMut(&[FileName]) -> Result<(), E>,
    ) -> Result<Generated, GenerateFault<E>> {
        let metarange = self.metarange_or_empty(parent).await?;
        let mut merge = Merge {
            parent: Walk::new(self.clone(), Arc::clone(&metarange), Keep::No),
            replaced_prefix,
            cuts: self.0.cuts,
            open: Entries::default(),
            writing: Writing::new(self.clone(), metarange, note),
            counts: Counts::default(),
        };
        let mut changes = pin!(changes);
        let mut last: Option<String> = None;
        while let Some(change) = changes.next().await {
            let change = change?;
            assert!(
                last.as_ref().is_none_or(|last| *last < change.path),
                "changes come in the order of their paths, each path once"
            );
            merge.copy_parent(Some(&change.path)).await?;
            merge.take(&change).await?;
            give_way();
            last = Some(change.path);
        }
        merge.copy_parent(None).await?;
        merge.finish(parent).await
    }
}

#[derive(Default)]
struct Counts {
    added: u64,
    changed: u64,
    removed: u64,
}

/// The parent's entries and the changes on their way into new ranges.
struct Merge<'a, N> {
    parent: Walk,
    replaced_prefix: Option<&'a str>,
    cuts: Cuts,
    /// The range that is being gathered. It is empty exactly where the last one was cut, and at the very beginning.
    open: Entries,
    writing: Writing<N>,
    counts: Counts,
}

/// What can be done with a whole range of the parent.
enum Whole {
    /// It is a range of the result.
    Shared,
    /// None of its entries stays.
    Removed,
    /// Its entries must be looked at.
    Opened,
}

impl<N> Merge<'_, N> {
    /// Takes over the parent's entries before a path, or all that are left.
    async fn copy_parent<E>(&mut self, before: Option<&str>) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        while let (Some(range), Some(path)) = (self.parent.range(), self.parent.path()) {
            if before.is_some_and(|before| path >= before) {
                break;
            }
            match self.whole(range, before) {
                Whole::Shared => {
                    self.writing.share(range.clone()).await?;
                    self.parent.go_to_next_range();
                }
                Whole::Removed => {
                    self.counts.removed += range.entries;
                    self.parent.go_to_next_range();
                }
                Whole::Opened => self.copy_rows(before).await?,
            }
        }
        Ok(())
    }

    /// What can be done with the range that the parent is in, if no change before this path is left.
    fn whole(&self, range: &RangeInfo, before: Option<&str>) -> Whole {
        let is_untouched = before.is_none_or(|before| range.last_path.as_str() < before);
        if self.parent.row() > 0 || !is_untouched {
            return Whole::Opened;
        }
        if let Some(prefix) = self.replaced_prefix {
            // Paths with a prefix lie together, so with both ends all between them have it.
            let (first, last) = (range.first_path.as_str(), range.last_path.as_str());
            match (first.starts_with(prefix), last.starts_with(prefix)) {
                (true, true) => return Whole::Removed,
                (true, false) | (false, true) => return Whole::Opened,
                (false, false) if first < prefix && prefix < last => return Whole::Opened,
                (false, false) => {}
            }
        }
        let ends_well = range.is_closed || before.is_none() && self.parent.is_in_last_range();
        if self.open.is_empty() && ends_well { Whole::Shared } else { Whole::Opened }
    }

    /// Takes over some entries of the parent's range, those before a path.
    async fn copy_rows<E>(&mut self, before: Option<&str>) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        let first = self.parent.row();
        let Some(entries) = self.parent.load().await?.map(Arc::clone) else { return Ok(()) };
        let last = before.map_or(entries.len(), |before| entries.row_at_least(before));
        let end = last.min(first + COPIED_AT_ONCE);
        for row in first..end {
            let entry = entries.view(row);
            if self.replaced_prefix.is_some_and(|prefix| entry.path.starts_with(prefix)) {
                self.counts.removed += 1;
            } else {
                self.open.push(entry);
                self.cut().await?;
                give_way();
            }
        }
        self.parent.go_to_row(end);
        if end < last {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Takes a change, whose path the parent has come to.
    async fn take<E>(&mut self, change: &Change) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        if self.parent.path() == Some(change.path.as_str()) {
            let row = self.parent.row();
            let before = self.parent.load().await?.map(|entries| entries.view(row));
            match &change.entry {
                Some(entry) => {
                    self.counts.changed += u64::from(before.is_some_and(|before| !before.says(entry)));
                }
                None => self.counts.removed += 1,
            }
            self.parent.go_to_row(row + 1);
        } else {
            self.counts.added += u64::from(change.entry.is_some());
        }
        if let Some(entry) = &change.entry {
            self.open.push_entry(&change.path, entry);
            self.cut().await?;
        }
        Ok(())
    }

    /// Ends the range that is being gathered, if it ends with its last entry.
    async fn cut<E>(&mut self) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        let entries = self.open.len();
        if self.cuts.end_after(entries, self.open.text_bytes(), self.open.path(entries - 1)) {
            self.writing.add(std::mem::take(&mut self.open), true).await?;
        }
        Ok(())
    }

    async fn finish<E>(mut self, parent: Option<Digest>) -> Result<Generated, GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        if !self.open.is_empty() {
            self.writing.add(self.open, false).await?;
        }
        let (digest, metarange, written) = self.writing.finish(parent).await?;
        Ok(Generated {
            metarange: digest,
            entries: metarange.ranges.iter().map(|range| range.entries).sum(),
            bytes: metarange.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.bytes)),
            added: self.counts.added,
            changed: self.counts.changed,
            removed: self.counts.removed,
            ranges: metarange.ranges.len() as u64,
            ranges_written: written.ranges_written,
            files: written.files,
        })
    }
}
