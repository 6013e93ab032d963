//! A deck: the ready chunks of one submission, in the order in which they go out.
//!
//! Untouched chunks are a range, not a set: a submission of 10^9 chunks costs what one of a single chunk costs. Only what
//! came back is kept one by one, as ranges too.

use crate::ids::ChunkIndex;
use std::collections::BTreeMap;
use std::ops::Range;

/// The ready chunks of one submission. They go out in this order: holes, untouched, returned.
#[derive(Debug, Default)]
pub(super) struct Deck {
    /// Never handed out.
    untouched: Range<u64>,
    /// The others; most submissions have none.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    /// Not handed out by this leadership, below the untouched ones: left over from an earlier leadership.
    holes: Ranges,
    /// Handed out before, and back: never on top of the deck.
    returned: Ranges,
}

/// Where a chunk that becomes ready is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// With those that were never tried.
    Top,
    /// Behind all that were never tried.
    Bottom,
}

impl Deck {
    /// A deck of these ranges, in order; the last one is taken as untouched.
    pub(super) fn new(ranges: &[Range<u64>]) -> Deck {
        let Some((untouched, holes)) = ranges.split_last() else { return Deck::default() };
        let mut deck = Deck { untouched: untouched.clone(), rest: None };
        for hole in holes {
            deck.rest().holes.insert(hole.clone());
        }
        deck
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    pub(super) fn len(&self) -> u64 {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.holes.len + rest.returned.len);
        rest + (self.untouched.end - self.untouched.start)
    }

    pub(super) fn contains(&self, chunk: ChunkIndex) -> bool {
        let in_rest = |rest: &Rest| rest.holes.contains(chunk.0) || rest.returned.contains(chunk.0);
        self.untouched.contains(&chunk.0) || self.rest.as_deref().is_some_and(in_rest)
    }

    /// The chunk on top.
    pub(super) fn first(&self) -> Option<ChunkIndex> {
        let first_of = |ranges: &Ranges| ranges.ends.first_key_value().map(|(start, _)| *start);
        let hole = self.rest.as_ref().and_then(|rest| first_of(&rest.holes));
        let untouched = || (!self.untouched.is_empty()).then_some(self.untouched.start);
        let returned = || self.rest.as_ref().and_then(|rest| first_of(&rest.returned));
        hole.or_else(untouched).or_else(returned).map(ChunkIndex)
    }

    /// Puts a chunk that is not in it.
    pub(super) fn put_back(&mut self, chunk: ChunkIndex, side: Side) {
        let range = chunk.0..chunk.0 + 1;
        match side {
            Side::Top => self.rest().holes.insert(range),
            Side::Bottom => self.rest().returned.insert(range),
        }
    }

    /// Takes up to `max` chunks from the top.
    pub(super) fn take(&mut self, max: usize) -> Vec<ChunkIndex> {
        let mut taken = Vec::with_capacity(max.min(usize::try_from(self.len()).unwrap_or(max)));
        if let Some(rest) = &mut self.rest {
            rest.holes.take(max, &mut taken);
        }
        let wanted = (max - taken.len()) as u64;
        let from_untouched = wanted.min(self.untouched.end - self.untouched.start);
        let frontier = self.untouched.start + from_untouched;
        taken.extend((self.untouched.start..frontier).map(ChunkIndex));
        self.untouched.start = frontier;
        if let Some(rest) = &mut self.rest {
            rest.returned.take(max, &mut taken);
        }
        self.let_go_of_nothing();
        taken
    }

    /// Takes one chunk out, if it is here.
    pub(super) fn take_out(&mut self, chunk: ChunkIndex) -> bool {
        if self.untouched.contains(&chunk.0) {
            let below = self.untouched.start..chunk.0;
            if !below.is_empty() {
                self.rest().holes.insert(below);
            }
            self.untouched.start = chunk.0 + 1;
            return true;
        }
        let Some(rest) = &mut self.rest else { return false };
        let was_here = rest.holes.remove(chunk.0) || rest.returned.remove(chunk.0);
        self.let_go_of_nothing();
        was_here
    }

    fn let_go_of_nothing(&mut self) {
        if self.rest.as_ref().is_some_and(|rest| rest.holes.len + rest.returned.len == 0) {
            self.rest = None;
        }
    }
}

/// A set of numbers as disjoint ranges.
#[derive(Debug, Default)]
struct Ranges {
    ends: BTreeMap<u64, u64>,
    len: u64,
}

impl Ranges {
    fn contains(&self, number: u64) -> bool {
        self.ends.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Adds a range none of whose numbers is in the set.
    fn insert(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        self.len += end - start;
        if let Some((before, before_end)) = self.ends.range(..start).next_back().map(|(s, e)| (*s, *e)) {
            assert!(before_end <= start, "a chunk is put back once");
            if before_end == start {
                start = before;
            }
        }
        if let Some(after_end) = self.ends.remove(&end) {
            end = after_end;
        }
        self.ends.insert(start, end);
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some((start, end)) = self.ends.range(..=number).next_back().map(|(s, e)| (*s, *e)) else {
            return false;
        };
        if number >= end {
            return false;
        }
        self.ends.remove(&start);
        if start < number {
            self.ends.insert(start, number);
        }
        if number + 1 < end {
            self.ends.insert(number + 1, end);
        }
        self.len -= 1;
        true
    }

    /// Moves the smallest numbers into `taken` until it holds `max`.
    fn take(&mut self, max: usize, taken: &mut Vec<ChunkIndex>) {
        while taken.len() < max
            && let Some((start, end)) = self.ends.pop_first()
        {
            let stop = end.min(start + (max - taken.len()) as u64);
            taken.extend((start..stop).map(ChunkIndex));
            self.len -= stop - start;
            if stop < end {
                self.ends.insert(stop, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;
    use std::collections::BTreeSet;

    #[test]
    fn random_changes_agree_with_a_plain_set() {
        for seed in 0..300 {
            let mut chance = Seeded::new(seed);
            let mut deck = Deck::default();
            let (mut model, mut returned) = (BTreeSet::new(), BTreeSet::new());
            for _ in 0..200 {
                let chunk = chance.below(40);
                match chance.below(6) {
                    0 if chance.below(4) == 0 => {
                        deck = Deck::new(&[0..5, 8..40]);
                        model = (0..5).chain(8..40).collect();
                        returned.clear();
                    }
                    1 | 2 if !model.contains(&chunk) => {
                        let side = if chance.below(2) == 0 { Side::Top } else { Side::Bottom };
                        deck.put_back(ChunkIndex(chunk), side);
                        model.insert(chunk);
                        returned.extend((side == Side::Bottom).then_some(chunk));
                    }
                    3 => {
                        let was_there = model.remove(&chunk);
                        returned.remove(&chunk);
                        assert_eq!(deck.take_out(ChunkIndex(chunk)), was_there, "seed {seed}");
                    }
                    _ => {
                        let max = usize::try_from(chunk % 7).unwrap();
                        let taken: Vec<u64> = deck.take(max).into_iter().map(|it| it.0).collect();
                        assert_eq!(taken.len(), max.min(model.len()), "seed {seed}");
                        assert!(taken.iter().all(|it| model.remove(it)), "seed {seed}");
                        let tried = taken.iter().filter(|it| returned.contains(*it)).count();
                        let is_in_order = taken[taken.len() - tried..].iter().all(|it| returned.remove(it));
                        let has_fresh = model.iter().any(|it| !returned.contains(it));
                        assert!(
                            is_in_order && (tried == 0 || !has_fresh),
                            "what came back goes last, seed {seed}"
                        );
                    }
                }
                assert_eq!(deck.len(), model.len() as u64, "seed {seed}");
                assert_eq!(deck.contains(ChunkIndex(chunk)), model.contains(&chunk), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_deck_of_a_billion_chunks_is_a_range_until_something_comes_back() {
        let mut deck = Deck::new(std::slice::from_ref(&(0..1_000_000_000)));
        assert!(deck.take_out(ChunkIndex(500_000_000)));
        assert_eq!(deck.take(2), [ChunkIndex(0), ChunkIndex(1)]);
        deck.put_back(ChunkIndex(0), Side::Bottom);
        assert_eq!(deck.len(), 999_999_998);
        assert_eq!(deck.take(1), [ChunkIndex(2)]);
    }
}
