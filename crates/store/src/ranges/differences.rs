//! Differences: what one metarange has otherwise than another.
//!
//! Invariants
//! - Differences come in the order of their paths, each once; a path with equal entries on both sides is none.
//! - A range that both metaranges name is not read.

use super::walk::Walk;
use super::{Keep, Ranges};
use crate::fault::StoreFault;
use std::cmp::Ordering;
use windlass_core::branches::entries::{Digest, ObjectEntry};

/// A path whose entries differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: String,
    /// Its entry in the metarange that is compared; none if the path is new.
    pub before: Option<ObjectEntry>,
    /// Its entry in the metarange that it is compared with; none if the path is gone.
    pub after: Option<ObjectEntry>,
}

/// What differs between two metaranges.
pub struct Differences {
    ranges: Ranges,
    from: Option<Digest>,
    to: Option<Digest>,
    /// None until the first difference is asked for.
    walks: Option<Walks>,
    /// Where to go before the next difference is looked for.
    sought: Option<String>,
}

struct Walks {
    from: Walk,
    to: Walk,
}

impl Differences {
    pub(super) fn new(ranges: Ranges, from: Option<Digest>, to: Option<Digest>) -> Differences {
        Differences { ranges, from, to, walks: None, sought: None }
    }

    /// Goes to the first path, forward or back, that is not smaller. What that needs is read with the next difference.
    pub fn seek(&mut self, at_least: &str) {
        self.sought = Some(at_least.to_owned());
    }

    /// The next difference; none at the end.
    ///
    /// # Errors
    /// If the store fails, or a file is missing or damaged. No difference is passed over then.
    pub async fn next(&mut self) -> Result<Option<Difference>, StoreFault> {
        if self.from == self.to {
            return Ok(None);
        }
        let walks = match &mut self.walks {
            Some(walks) => walks,
            unread @ None => {
                let walk = async |metarange| {
                    let metarange = self.ranges.metarange_or_empty(metarange).await?;
                    Ok::<_, StoreFault>(Walk::new(self.ranges.clone(), metarange, Keep::No))
                };
                unread.insert(Walks { from: walk(self.from).await?, to: walk(self.to).await? })
            }
        };
        if let Some(at_least) = &self.sought {
            walks.seek(at_least).await?;
            self.sought = None;
        }
        walks.next().await
    }
}

impl Walks {
    async fn seek(&mut self, at_least: &str) -> Result<(), StoreFault> {
        self.from.seek_range(at_least);
        self.to.seek_range(at_least);
        if self.are_in_one_range() {
            // Where in it does not matter: it will be skipped to its end.
            return Ok(());
        }
        self.from.seek(at_least).await?;
        self.to.seek(at_least).await
    }

    fn are_in_one_range(&self) -> bool {
        match (self.from.range(), self.to.range()) {
            (Some(from), Some(to)) => from.range == to.range,
            (None, _) | (_, None) => false,
        }
    }

    async fn next(&mut self) -> Result<Option<Difference>, StoreFault> {
        loop {
            // Both came to it at its first path or by a seek, so neither is ahead in it.
            if self.are_in_one_range() {
                self.from.go_to_next_range();
                self.to.go_to_next_range();
                continue;
            }
            let order = match (self.from.path(), self.to.path()) {
                (Some(from), Some(to)) => from.cmp(to),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Ok(None),
            };
            // Both are read before one goes on, so that a fault passes over nothing.
            if order.is_le() {
                self.from.load().await?;
            }
            if order.is_ge() {
                self.to.load().await?;
            }
            if let Some(difference) = self.step(order).await? {
                return Ok(Some(difference));
            }
        }
    }

    /// The entries of the smaller path, if they differ; those walks that are at it go on.
    async fn step(&mut self, order: Ordering) -> Result<Option<Difference>, StoreFault> {
        let (from_row, to_row) = (self.from.row(), self.to.row());
        let before = if order.is_le() { self.from.load().await? } else { None };
        let after = if order.is_ge() { self.to.load().await? } else { None };
        let before = before.map(|entries| entries.view(from_row));
        let after = after.map(|entries| entries.view(to_row));
        let difference = (before != after).then(|| Difference {
            path: before.or(after).map(|entry| entry.path.to_owned()).unwrap_or_default(),
            before: before.map(|entry| entry.to_entry()),
            after: after.map(|entry| entry.to_entry()),
        });
        if order.is_le() {
            self.from.go_to_row(from_row + 1);
        }
        if order.is_ge() {
            self.to.go_to_row(to_row + 1);
        }
        Ok(difference)
    }
}
