//! Ready: which chunks can be handed out now, and the orders in which strategies walk them.
//!
//! Untouched chunks are a range, not a set: a submission of 10^9 chunks costs what one of a single chunk costs. Only what
//! came back is kept one by one, as ranges too.
//!
//! Invariants
//! - A submission is here exactly if it has a ready chunk.
//! - A submission's weight is its number of ready chunks; `len` is the sum of the weights.
//!
//! Every operation costs O(log submissions + log returned ranges), whatever the backlog.

use super::strategy::Strategy;
use crate::ids::{ChunkIndex, SubmissionId};
use crate::seeded::Seeded;
use std::collections::BTreeMap;
use std::ops::Range;

/// The ready chunks of all running submissions.
#[derive(Debug, Default)]
pub struct Ready {
    submissions: BTreeMap<SubmissionId, ReadySubmission>,
    weights: Weights,
}

#[derive(Debug)]
struct ReadySubmission {
    chunks: ReadyChunks,
    slot: usize,
}

/// Ready chunks of one submission. They go out in this order: holes, untouched, returned.
#[derive(Debug, Default)]
struct ReadyChunks {
    /// Not handed out by this leadership, below the untouched ones: left over from an earlier leadership.
    holes: Ranges,
    /// Never handed out.
    untouched: Range<u64>,
    /// Handed out before, and back: never on top of the deck.
    returned: Ranges,
}

/// Where a chunk that becomes ready is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deck {
    /// With those that were never tried.
    Top,
    /// Behind all that were never tried.
    Bottom,
}

impl Ready {
    /// How many chunks are ready.
    pub fn len(&self) -> u64 {
        self.weights.total()
    }

    /// Whether no chunk is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many chunks of a submission are ready.
    pub fn len_of(&self, submission: SubmissionId) -> u64 {
        self.submissions.get(&submission).map_or(0, |it| it.chunks.len())
    }

    /// Puts the chunks of a submission, replacing what was known of it. The last range is taken as untouched.
    pub fn put(&mut self, submission: SubmissionId, ranges: &[Range<u64>]) {
        self.remove_submission(submission);
        let Some((untouched, holes)) = ranges.split_last() else { return };
        let mut chunks = ReadyChunks { untouched: untouched.clone(), ..ReadyChunks::default() };
        holes.iter().for_each(|hole| chunks.holes.insert(hole.clone()));
        self.insert(submission, chunks);
    }

    /// Puts one chunk that is not ready.
    pub fn put_back(&mut self, submission: SubmissionId, chunk: ChunkIndex, deck: Deck) {
        let range = chunk.0..chunk.0 + 1;
        self.change(submission, |chunks| match deck {
            Deck::Top => chunks.holes.insert(range),
            Deck::Bottom => chunks.returned.insert(range),
        });
    }

    /// Takes one chunk out, if it is ready.
    pub fn take_out(&mut self, submission: SubmissionId, chunk: ChunkIndex) -> bool {
        self.submissions.contains_key(&submission)
            && self.change(submission, |chunks| chunks.take_out(chunk.0))
    }

    /// Whether the chunk is ready.
    pub fn contains(&self, submission: SubmissionId, chunk: ChunkIndex) -> bool {
        self.submissions.get(&submission).is_some_and(|it| it.chunks.contains(chunk.0))
    }

    /// Takes out the submission with all its chunks.
    pub fn remove_submission(&mut self, submission: SubmissionId) {
        if let Some(gone) = self.submissions.remove(&submission) {
            self.weights.free(gone.slot);
        }
    }

    /// Takes out up to `max` chunks that the strategy wants next, all of one submission.
    pub fn take(
        &mut self,
        strategy: &Strategy,
        max: usize,
        chance: &mut Seeded,
    ) -> Option<(SubmissionId, Vec<ChunkIndex>)> {
        let (submission, max) = match strategy {
            Strategy::OldestFirst => (*self.submissions.first_key_value()?.0, max),
            Strategy::NewestFirst => (*self.submissions.last_key_value()?.0, max),
            Strategy::Random if self.is_empty() => return None,
            // Each chunk is drawn by itself, so that no submission gets a whole hand-out for one lucky draw.
            Strategy::Random => (self.weights.pick(chance.below(self.len())), 1),
            Strategy::CustomPriority
            | Strategy::SelectOnly { .. }
            | Strategy::PreferDistinct { .. }
            | Strategy::MaxSimultaneous { .. }
            | Strategy::OrElse { .. }
            | Strategy::Fair { .. }
            | Strategy::Lane { .. } => return None,
        };
        Some((submission, self.change(submission, |chunks| chunks.take(max))))
    }

    fn insert(&mut self, submission: SubmissionId, chunks: ReadyChunks) {
        if chunks.len() > 0 {
            let slot = self.weights.allocate(submission, chunks.len());
            self.submissions.insert(submission, ReadySubmission { chunks, slot });
        }
    }

    fn change<R>(&mut self, submission: SubmissionId, change: impl FnOnce(&mut ReadyChunks) -> R) -> R {
        let Some(it) = self.submissions.get_mut(&submission) else {
            let mut chunks = ReadyChunks::default();
            let result = change(&mut chunks);
            self.insert(submission, chunks);
            return result;
        };
        let result = change(&mut it.chunks);
        match it.chunks.len() {
            0 => self.remove_submission(submission),
            weight => self.weights.set(it.slot, weight),
        }
        result
    }
}

impl ReadyChunks {
    fn len(&self) -> u64 {
        self.holes.len + (self.untouched.end - self.untouched.start) + self.returned.len
    }

    fn contains(&self, chunk: u64) -> bool {
        self.untouched.contains(&chunk) || self.holes.contains(chunk) || self.returned.contains(chunk)
    }

    fn take(&mut self, max: usize) -> Vec<ChunkIndex> {
        let mut taken = Vec::with_capacity(max.min(usize::try_from(self.len()).unwrap_or(max)));
        self.holes.take(max, &mut taken);
        let wanted = (max - taken.len()) as u64;
        let from_untouched = wanted.min(self.untouched.end - self.untouched.start);
        let frontier = self.untouched.start + from_untouched;
        taken.extend((self.untouched.start..frontier).map(ChunkIndex));
        self.untouched.start = frontier;
        self.returned.take(max, &mut taken);
        taken
    }

    fn take_out(&mut self, chunk: u64) -> bool {
        if self.untouched.contains(&chunk) {
            let below = self.untouched.start..chunk;
            if !below.is_empty() {
                self.holes.insert(below);
            }
            self.untouched.start = chunk + 1;
            return true;
        }
        self.holes.remove(chunk) || self.returned.remove(chunk)
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

/// Submissions with weights, picked in proportion to them: a Fenwick tree over slots, O(log slots) for all it does.
#[derive(Debug, Default)]
struct Weights {
    tree: Vec<u64>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    total: u64,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    submission: SubmissionId,
    weight: u64,
}

impl Weights {
    fn total(&self) -> u64 {
        self.total
    }

    fn allocate(&mut self, submission: SubmissionId, weight: u64) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { submission, weight: 0 });
            self.grow_tree();
            self.slots.len() - 1
        });
        self.slots[slot].submission = submission;
        self.set(slot, weight);
        slot
    }

    fn free(&mut self, slot: usize) {
        self.set(slot, 0);
        self.free.push(slot);
    }

    fn set(&mut self, slot: usize, weight: u64) {
        let before = std::mem::replace(&mut self.slots[slot].weight, weight);
        self.total = self.total - before + weight;
        let mut node = slot + 1;
        while node <= self.tree.len() {
            let sum = &mut self.tree[node - 1];
            *sum = sum.wrapping_add(weight).wrapping_sub(before);
            node += node & node.wrapping_neg();
        }
    }

    /// Adds the tree's node for the newest slot, whose weight is 0: the sum of the slots that the node covers.
    fn grow_tree(&mut self) {
        let node = self.slots.len();
        let first = node - (node & node.wrapping_neg());
        let sum = (first..node).map(|slot| self.slots[slot].weight).sum();
        self.tree.push(sum);
    }

    /// The submission whose weights cover `point`, which is below the total.
    fn pick(&self, mut point: u64) -> SubmissionId {
        assert!(point < self.total, "the point lies within the weights");
        let mut node = 0;
        let mut step = self.tree.len().next_power_of_two();
        while step > 0 {
            if let Some(sum) = self.tree.get(node + step - 1)
                && *sum <= point
            {
                point -= sum;
                node += step;
            }
            step /= 2;
        }
        self.slots[node].submission
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn id(number: u64) -> SubmissionId {
        SubmissionId::from_u64(number).unwrap()
    }

    fn take_all(ready: &mut Ready, strategy: &Strategy, max: usize) -> Vec<(u64, u64)> {
        let mut chance = Seeded::new(1);
        std::iter::from_fn(|| ready.take(strategy, max, &mut chance))
            .flat_map(|(submission, chunks)| chunks.into_iter().map(move |it| (submission.as_u64(), it.0)))
            .collect()
    }

    #[test]
    fn oldest_and_newest_first_walk_submissions_by_age_and_chunks_in_order() {
        for (strategy, expected) in [
            (Strategy::OldestFirst, [(1, 0), (1, 1), (2, 0), (2, 1)]),
            (Strategy::NewestFirst, [(2, 0), (2, 1), (1, 0), (1, 1)]),
        ] {
            let mut ready = Ready::default();
            ready.put(id(1), std::slice::from_ref(&(0..2)));
            ready.put(id(2), std::slice::from_ref(&(0..2)));
            assert_eq!(take_all(&mut ready, &strategy, 3), expected);
            assert!(ready.is_empty());
        }
    }

    #[test]
    fn holes_of_an_earlier_leadership_go_first_and_what_came_back_goes_last() {
        let mut ready = Ready::default();
        ready.put(id(1), &[2..3, 5..7]);
        ready.put_back(id(1), ChunkIndex(0), Deck::Bottom);
        ready.put_back(id(1), ChunkIndex(4), Deck::Top);
        let order: Vec<u64> =
            take_all(&mut ready, &Strategy::OldestFirst, 2).into_iter().map(|it| it.1).collect();
        assert_eq!(order, [2, 4, 5, 6, 0]);
    }

    #[test]
    fn random_picks_submissions_in_proportion_to_their_ready_chunks() {
        let sizes = [1_000_u64, 2_000, 3_000, 4_000];
        let mut chance = Seeded::new(42);
        let mut seen = [0_u64; 4];
        let draws = 20_000;
        for _ in 0..draws {
            let mut ready = Ready::default();
            for (number, size) in (1..).zip(sizes) {
                ready.put(id(number), std::slice::from_ref(&(0..size)));
            }
            let (submission, _) = ready.take(&Strategy::Random, 1, &mut chance).unwrap();
            seen[usize::try_from(submission.as_u64()).unwrap() - 1] += 1;
        }
        let expected = sizes.map(|size| (draws * size / 10_000) as f64);
        let chi_squared: f64 =
            seen.iter().zip(expected).map(|(seen, e)| (*seen as f64 - e).powi(2) / e).sum();
        assert!(
            chi_squared < 16.27,
            "0.1 % of fair draws with 3 degrees of freedom are above 16.27: {chi_squared}"
        );
    }

    #[test]
    fn random_changes_agree_with_a_plain_set() {
        for seed in 0..300 {
            let mut chance = Seeded::new(seed);
            let mut ready = Ready::default();
            let mut model: BTreeSet<(u64, u64)> = BTreeSet::new();
            for _ in 0..200 {
                let (submission, chunk) = (1 + chance.below(6), chance.below(40));
                match chance.below(6) {
                    0 => {
                        ready.put(id(submission), &[0..5, 8..40]);
                        model.retain(|it| it.0 != submission);
                        model.extend((0..5).chain(8..40).map(|chunk| (submission, chunk)));
                    }
                    1 if !model.contains(&(submission, chunk)) => {
                        let deck = if chance.below(2) == 0 { Deck::Top } else { Deck::Bottom };
                        ready.put_back(id(submission), ChunkIndex(chunk), deck);
                        model.insert((submission, chunk));
                    }
                    2 => {
                        let was_there = model.remove(&(submission, chunk));
                        assert_eq!(
                            ready.take_out(id(submission), ChunkIndex(chunk)),
                            was_there,
                            "seed {seed}"
                        );
                    }
                    3 if chance.below(5) == 0 => {
                        ready.remove_submission(id(submission));
                        model.retain(|it| it.0 != submission);
                    }
                    _ => {
                        let strategy = [Strategy::Random, Strategy::OldestFirst, Strategy::NewestFirst]
                            [chunk as usize % 3]
                            .clone();
                        let taken = ready.take(&strategy, 1 + chunk as usize, &mut chance);
                        assert_eq!(taken.is_none(), model.is_empty(), "seed {seed}");
                        if let Some((submission, chunks)) = taken {
                            for chunk in chunks {
                                assert!(model.remove(&(submission.as_u64(), chunk.0)), "seed {seed}");
                            }
                        }
                    }
                }
                assert_eq!(ready.len(), model.len() as u64, "seed {seed}");
                assert_eq!(
                    ready.contains(id(submission), ChunkIndex(chunk)),
                    model.contains(&(submission, chunk))
                );
            }
        }
    }
}
