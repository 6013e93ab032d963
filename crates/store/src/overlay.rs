//! Overlay: rows that are not yet committed, over those that are.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::iter::{Peekable, Rev};
use windlass_core::tables::{KeyRange, Row, Walk};

/// Rows put or, where the value is none, deleted since the last commit.
pub(crate) type Overlay = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Rows of an overlay, upwards.
type OverlayRange<'a> = btree_map::Range<'a, Vec<u8>, Option<Vec<u8>>>;

/// An overlay's rows in the order of the walk.
enum Uncommitted<'a> {
    Up(Peekable<OverlayRange<'a>>),
    Down(Peekable<Rev<OverlayRange<'a>>>),
}

impl<'a> Uncommitted<'a> {
    fn new(range: OverlayRange<'a>, walk: Walk) -> Uncommitted<'a> {
        match walk {
            Walk::Up => Uncommitted::Up(range.peekable()),
            Walk::Down => Uncommitted::Down(range.rev().peekable()),
        }
    }

    fn peek(&mut self) -> Option<&'a Vec<u8>> {
        match self {
            Uncommitted::Up(rows) => rows.peek().map(|(key, _)| *key),
            Uncommitted::Down(rows) => rows.peek().map(|(key, _)| *key),
        }
    }

    fn next(&mut self) -> Option<(&'a Vec<u8>, &'a Option<Vec<u8>>)> {
        match self {
            Uncommitted::Up(rows) => rows.next(),
            Uncommitted::Down(rows) => rows.next(),
        }
    }
}

/// Committed and uncommitted rows as one sequence; the uncommitted row wins, and a deleted one hides the committed.
pub(crate) struct Merged<'a> {
    committed: Peekable<Box<dyn Iterator<Item = Row> + 'a>>,
    uncommitted: Uncommitted<'a>,
    walk: Walk,
}

impl<'a> Merged<'a> {
    /// The rows of a range, of which `committed` are in the order of the walk.
    pub(crate) fn new(
        committed: Box<dyn Iterator<Item = Row> + 'a>,
        overlay: &'a Overlay,
        range: KeyRange<'_>,
        walk: Walk,
    ) -> Merged<'a> {
        let uncommitted = Uncommitted::new(overlay.range::<[u8], _>(range), walk);
        Merged { committed: committed.peekable(), uncommitted, walk }
    }
}

impl Iterator for Merged<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        loop {
            let Some(key) = self.uncommitted.peek() else { return self.committed.next() };
            let order = self.committed.peek().map(|(committed, _)| match self.walk {
                Walk::Up => committed.cmp(key),
                Walk::Down => key.cmp(committed),
            });
            match order {
                Some(Ordering::Less) => return self.committed.next(),
                Some(Ordering::Equal) => drop(self.committed.next()),
                Some(Ordering::Greater) | None => {}
            }
            if let Some((key, Some(value))) = self.uncommitted.next() {
                return Some((key.clone(), value.clone()));
            }
        }
    }
}
