//! Walk: a place in a metarange, and the one range there that is in memory.
//!
//! Invariants
//! - A place is a row that there is, or the end.
//! - At the first row of a range the range need not have been read: its first path is in the metarange.

use super::entries::Entries;
use super::metarange_file::{Metarange, RangeInfo};
use super::{Keep, Ranges};
use crate::fault::StoreFault;
use std::sync::Arc;

/// A place in a metarange.
pub(super) struct Walk {
    ranges: Ranges,
    metarange: Arc<Metarange>,
    keep: Keep,
    position: usize,
    row: usize,
    loaded: Option<Arc<Entries>>,
}

impl Walk {
    /// A walk that is at the first entry.
    pub(super) fn new(ranges: Ranges, metarange: Arc<Metarange>, keep: Keep) -> Walk {
        Walk { ranges, metarange, keep, position: 0, row: 0, loaded: None }
    }

    /// The range of this place; none at the end.
    pub(super) fn range(&self) -> Option<&RangeInfo> {
        self.metarange.ranges.get(self.position)
    }

    /// The row of this place in its range.
    pub(super) fn row(&self) -> usize {
        self.row
    }

    pub(super) fn is_in_last_range(&self) -> bool {
        self.position + 1 == self.metarange.ranges.len()
    }

    /// The path of this place; none at the end.
    pub(super) fn path(&self) -> Option<&str> {
        let range = self.range()?;
        match &self.loaded {
            Some(entries) => Some(entries.path(self.row)),
            None => Some(&range.first_path),
        }
    }

    /// The entries of this place's range; none at the end.
    pub(super) async fn load(&mut self) -> Result<Option<&Arc<Entries>>, StoreFault> {
        if self.loaded.is_none()
            && let Some(range) = self.metarange.ranges.get(self.position)
        {
            self.loaded = Some(self.ranges.range(range, self.keep).await?);
        }
        Ok(self.loaded.as_ref())
    }

    /// Goes on to a later row of this range, or to the next range if it has no such row.
    pub(super) fn go_to_row(&mut self, row: usize) {
        let entries = self.loaded.as_ref().expect("a row is left only after it has been read");
        if row < entries.len() {
            self.row = row;
        } else {
            self.go_to_next_range();
        }
    }

    /// Goes on to the next range's first row.
    pub(super) fn go_to_next_range(&mut self) {
        self.go_to_range(self.position + 1);
    }

    fn go_to_range(&mut self, position: usize) {
        self.position = position;
        self.row = 0;
        self.loaded = None;
    }

    /// Goes to the range, forward or back, that has the first path that is not smaller, and there to any row up to that
    /// path's. Reads nothing.
    pub(super) fn seek_range(&mut self, at_least: &str) {
        let position = self.metarange.position_at_least(at_least);
        if position == self.position {
            self.row = 0;
        } else {
            self.go_to_range(position);
        }
    }

    /// Goes to the first path, forward or back, that is not smaller.
    pub(super) async fn seek(&mut self, at_least: &str) -> Result<(), StoreFault> {
        self.seek_range(at_least);
        if self.range().is_some_and(|range| range.first_path.as_str() < at_least)
            && let Some(entries) = self.load().await?
        {
            self.row = entries.row_at_least(at_least);
        }
        Ok(())
    }
}
