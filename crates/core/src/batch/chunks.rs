//! Chunks: what is known of them, 4,096 to a block.
//!
//! Invariants
//! - A block's done chunks are exactly the bits of its bitmap.
//! - Every done chunk has an accepted attempt and kind of output, and they never change.
//! - A chunk that is done has no trouble.
//!
//! Nearly all chunks of a block are done by attempts that look alike (first hand-out of the same leadership, same kind
//! of output), so acceptances are kept as runs: a run holds for the done chunks from its start to the next run's start.
//! A block whose chunks are all done needs no bitmap, and its row is about 20 bytes.

use crate::ids::{Attempt, ChunkIndex, SubmissionId};
use crate::limits::CHUNKS_PER_BLOCK;
use crate::rows;
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::ops::Range;

/// The number of a block within its submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockNumber(pub u32);

/// A block's full name, and its place among the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockName {
    /// The submission.
    pub submission: SubmissionId,
    /// The block in it.
    pub number: BlockNumber,
}

impl BlockName {
    /// The block that holds a chunk, and the chunk's place in it.
    pub fn of(submission: SubmissionId, chunk: ChunkIndex) -> (BlockName, Place) {
        let number = u32::try_from(chunk.0 / CHUNKS_PER_BLOCK).expect("chunk indexes are below 2^40");
        let place = u16::try_from(chunk.0 % CHUNKS_PER_BLOCK).expect("a block has 4,096 places");
        (BlockName { submission, number: BlockNumber(number) }, Place(place))
    }

    /// The row's key.
    pub fn key(self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&self.submission.key());
        key[8..].copy_from_slice(&self.number.0.to_be_bytes());
        key
    }

    /// The name in a row's key.
    pub fn from_key(key: &[u8]) -> Option<BlockName> {
        let number = u32::from_be_bytes(key.get(8..12)?.try_into().ok()?);
        Some(BlockName { submission: SubmissionId::from_key(key)?, number: BlockNumber(number) })
    }

    /// The index of the block's first chunk.
    pub const fn first_chunk(self) -> u64 {
        self.number.0 as u64 * CHUNKS_PER_BLOCK
    }

    /// How many of a submission's `total` chunks are in this block.
    pub fn places(self, total: u64) -> u16 {
        let places = total.saturating_sub(self.first_chunk()).min(CHUNKS_PER_BLOCK);
        u16::try_from(places).expect("a block has at most 4,096 places")
    }
}

/// A chunk's place in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct Place(#[n(0)] pub u16);

/// How a chunk was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Acceptance {
    /// The attempt whose completion came first.
    #[n(0)]
    pub attempt: Attempt,
    /// What it left.
    #[n(1)]
    pub output: OutputKind,
}

/// Where a done chunk's output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum OutputKind {
    /// There is none.
    #[n(0)]
    Nothing,
    /// In the object store, at the attempt's own address.
    #[n(1)]
    Stored,
    /// In the tables.
    #[n(2)]
    Inline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct Run {
    #[n(0)]
    start: u16,
    #[n(1)]
    acceptance: Acceptance,
}

/// A chunk that failed and is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Trouble {
    /// Which chunk.
    #[n(0)]
    pub place: Place,
    /// The last attempt that failed.
    #[n(1)]
    pub attempt: Attempt,
    /// How often it failed in the round.
    #[n(2)]
    pub failures: u32,
    /// The round; trouble of an earlier round than the submission's is forgiven.
    #[n(3)]
    pub round: u32,
    /// From when on it may be tried again; never, if there is no such time.
    #[n(4)]
    pub retry_at: Option<At>,
}

/// The stored form: no bitmap means that every chunk is done.
#[derive(Encode, Decode)]
struct BlockRow {
    #[n(0)]
    done: Option<ByteVec>,
    #[n(1)]
    runs: Vec<Run>,
    #[n(2)]
    troubles: Vec<Trouble>,
}

/// What is known of the chunks of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    places: u16,
    done_count: u16,
    /// A bit for each chunk, up to the last one that is done.
    done: Vec<u64>,
    runs: Vec<Run>,
    troubles: Vec<Trouble>,
}

impl Block {
    /// A block of this many chunks of which nothing is known yet.
    pub fn new(places: u16) -> Block {
        Block { places, done_count: 0, done: Vec::new(), runs: Vec::new(), troubles: Vec::new() }
    }

    /// Whether the chunk is done.
    pub fn is_done(&self, place: Place) -> bool {
        self.done.get(usize::from(place.0 / 64)).is_some_and(|word| word >> (place.0 % 64) & 1 == 1)
    }

    /// How many chunks are done.
    pub fn done_count(&self) -> u64 {
        u64::from(self.done_count)
    }

    /// Whether every chunk is done.
    pub fn is_full(&self) -> bool {
        self.done_count == self.places
    }

    /// How a done chunk was done.
    pub fn acceptance(&self, place: Place) -> Option<Acceptance> {
        if !self.is_done(place) {
            return None;
        }
        let after = self.runs.partition_point(|run| run.start <= place.0);
        Some(self.runs[after.checked_sub(1).expect("a done chunk lies in a run")].acceptance)
    }

    /// The trouble a chunk is in.
    pub fn trouble(&self, place: Place) -> Option<&Trouble> {
        self.troubles.binary_search_by_key(&place, |trouble| trouble.place).ok().map(|at| &self.troubles[at])
    }

    /// Every trouble, in the order of the chunks.
    pub fn troubles(&self) -> &[Trouble] {
        &self.troubles
    }

    /// Marks a chunk that is not done as done, and takes it out of trouble.
    pub(crate) fn accept(&mut self, place: Place, acceptance: Acceptance) {
        assert!(place.0 < self.places && !self.is_done(place), "only a chunk that is not done is accepted");
        self.place_in_runs(place.0, acceptance);
        let word = usize::from(place.0 / 64);
        if self.done.len() <= word {
            self.done.resize(word + 1, 0);
        }
        self.done[word] |= 1 << (place.0 % 64);
        self.done_count += 1;
        if let Ok(at) = self.troubles.binary_search_by_key(&place, |trouble| trouble.place) {
            self.troubles.remove(at);
        }
    }

    /// Notes the trouble of a chunk that is not done.
    pub(crate) fn note(&mut self, trouble: Trouble) {
        assert!(!self.is_done(trouble.place), "a chunk that is done has no trouble");
        match self.troubles.binary_search_by_key(&trouble.place, |it| it.place) {
            Ok(at) => self.troubles[at] = trouble,
            Err(at) => self.troubles.insert(at, trouble),
        }
    }

    /// Whether the chunk has used up its attempts of this round.
    pub fn is_failed(&self, place: Place, round: u32) -> bool {
        self.trouble(place).is_some_and(|trouble| trouble.round == round && trouble.retry_at.is_none())
    }

    /// Makes the runs say `acceptance` for `place`, which is not done yet. What a run says of places that are not done
    /// does not matter, so a run is moved or taken over where it can be, and split only where done chunks lie on both
    /// sides.
    fn place_in_runs(&mut self, place: u16, acceptance: Acceptance) {
        let Some(at) = self.runs.partition_point(|run| run.start <= place).checked_sub(1) else {
            assert!(self.runs.is_empty(), "the first run starts at 0");
            self.runs.push(Run { start: 0, acceptance });
            return;
        };
        let current = self.runs[at];
        if current.acceptance == acceptance {
            return;
        }
        let end = self.runs.get(at + 1).map_or(self.places, |next| next.start);
        let done_before = self.any_done(current.start..place);
        let done_after = self.any_done(place + 1..end);
        let new_runs = match (done_before, done_after) {
            (false, false) => vec![Run { start: current.start, acceptance }],
            (true, false) => vec![current, Run { start: place, acceptance }],
            (false, true) => {
                vec![Run { start: current.start, acceptance }, Run { start: place + 1, ..current }]
            }
            (true, true) => {
                vec![current, Run { start: place, acceptance }, Run { start: place + 1, ..current }]
            }
        };
        self.runs.splice(at..=at, new_runs);
        self.runs.dedup_by(|later, earlier| later.acceptance == earlier.acceptance);
    }

    fn any_done(&self, places: Range<u16>) -> bool {
        places.into_iter().any(|place| self.is_done(Place(place)))
    }

    /// The runs of chunks that may be handed out in this round, now or after a retry's delay.
    pub fn unsettled(&self, round: u32) -> Vec<Range<u16>> {
        let mut ranges: Vec<Range<u16>> = Vec::new();
        for place in 0..self.places {
            if self.is_done(Place(place)) || self.is_failed(Place(place), round) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == place => last.end += 1,
                Some(_) | None => ranges.push(place..place + 1),
            }
        }
        ranges
    }

    /// The stored bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bitmap = || {
            // Chunks are mostly done in order, so the zeros behind the last done one are worth leaving out.
            let mut bytes: Vec<u8> = self.done.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            ByteVec::from(bytes)
        };
        let row = BlockRow {
            done: (!self.is_full()).then(bitmap),
            runs: self.runs.clone(),
            troubles: self.troubles.clone(),
        };
        rows::encode(&row)
    }

    /// The block in these bytes.
    pub fn from_bytes(bytes: &[u8], places: u16) -> Result<Block, minicbor::decode::Error> {
        let row: BlockRow = minicbor::decode(bytes)?;
        let mut block = Block::new(places);
        match row.done {
            Some(bitmap) => {
                let words = bitmap.chunks(8).take(usize::from(places).div_ceil(64));
                block.done.extend(words.map(|bytes| {
                    let mut eight = [0; 8];
                    eight[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(eight)
                }));
            }
            None => {
                block.done.resize(usize::from(places).div_ceil(64), 0);
                (0..places).for_each(|place| block.done[usize::from(place / 64)] |= 1 << (place % 64));
            }
        }
        let ones: u32 = block.done.iter().map(|word| word.count_ones()).sum();
        block.done_count = u16::try_from(ones).expect("a bitmap of 512 bytes has at most 4,096 ones");
        block.runs = row.runs;
        block.troubles = row.troubles;
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::seeded::Seeded;
    use std::collections::BTreeMap;

    fn acceptance(epoch: u32, nth: u64) -> Acceptance {
        Acceptance { attempt: Attempt { epoch: Epoch(epoch), nth }, output: OutputKind::Stored }
    }

    #[test]
    fn a_block_done_in_any_order_by_alike_attempts_is_one_run_and_a_tiny_row() {
        let mut block = Block::new(4_096);
        for step in 0..4_096_u32 {
            let place = Place(u16::try_from(step * 1_237 % 4_096).unwrap());
            block.accept(place, acceptance(3, 0));
        }
        assert!(block.is_full());
        assert!(block.to_bytes().len() <= 20, "{} bytes", block.to_bytes().len());
    }

    #[test]
    fn a_block_finished_in_order_after_a_restart_is_two_runs() {
        let mut block = Block::new(4_096);
        for place in 0..4_096 {
            block.accept(Place(place), acceptance(if place < 1_000 { 3 } else { 4 }, 0));
        }
        assert_eq!(block.runs.len(), 2);
    }

    #[test]
    fn acceptances_are_what_a_plain_map_says_for_any_order_of_any_attempts() {
        for seed in 0..200 {
            let mut chance = Seeded::new(seed);
            let places = u16::try_from(1 + chance.below(300)).unwrap();
            let mut block = Block::new(places);
            let mut model = BTreeMap::new();
            for _ in 0..chance.below(600) {
                let place = Place(u16::try_from(chance.below(u64::from(places))).unwrap());
                if !block.is_done(place) {
                    let accepted =
                        acceptance(1 + u32::from(chance.below(10) > 7), u64::from(chance.below(10) > 8));
                    block.accept(place, accepted);
                    model.insert(place, accepted);
                }
            }
            let read_back = Block::from_bytes(&block.to_bytes(), places).unwrap();
            assert_eq!(read_back, block, "seed {seed}");
            for place in (0..places).map(Place) {
                assert_eq!(block.acceptance(place), model.get(&place).copied(), "seed {seed}, {place:?}");
            }
        }
    }

    #[test]
    fn unsettled_leaves_out_the_done_and_the_failed_of_this_round() {
        let mut block = Block::new(8);
        block.accept(Place(2), acceptance(1, 0));
        let trouble = |place, round, retry_at| Trouble {
            place: Place(place),
            attempt: acceptance(1, 0).attempt,
            failures: 1,
            round,
            retry_at,
        };
        block.note(trouble(4, 1, None));
        block.note(trouble(5, 0, None));
        block.note(trouble(6, 1, Some(At::from_ms(9))));
        assert_eq!(block.unsettled(1), [0..2, 3..4, 5..8]);
    }
}
