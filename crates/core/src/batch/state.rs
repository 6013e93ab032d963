//! The batch room's rows in memory, and how they reach the tables.
//!
//! Running submissions are all in memory (about 100 bytes each); blocks are loaded when first touched and leave again
//! when every chunk of them is done or their submission is over. Changed rows are marked and written once by `flush`,
//! so that a thousand completions in one applied batch rewrite a block's row once.
//!
//! Invariants
//! - After a flush the tables hold exactly what memory holds.
//! - `unsettled` is the sum of the running submissions' unsettled chunks.

use super::chunks::{Block, BlockName, BlockNumber, Place};
use super::submissions::{Finished, Submission, SubmissionState, Submit, Traits};
use crate::ascending::AscendingMap;
use crate::entry::Effect;
use crate::ids::{ChunkIndex, SubmissionId};
use crate::limits::CHUNKS_PER_BLOCK;
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Running submissions and the blocks in work.
#[derive(Debug, Default)]
pub struct BatchState {
    pub(super) submissions: AscendingMap<SubmissionId, Submission>,
    pub(super) blocks: BTreeMap<BlockName, Block>,
    changed_submissions: BTreeSet<SubmissionId>,
    changed_blocks: BTreeSet<BlockName>,
    unsettled: u64,
}

/// The chunks of a running submission that are neither done nor failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsettled {
    /// The submission.
    pub submission: SubmissionId,
    /// The round of attempts that they get.
    pub round: u32,
    /// The unsettled ones, as ranges in order.
    pub ranges: Vec<Range<u64>>,
    /// Those among them that wait for a retry, with the time it may begin.
    pub delayed: Vec<(ChunkIndex, At)>,
    /// What strategies go by.
    pub traits: Traits,
}

/// What strategies go by of a submission, as its row says; of one whose row an earlier build wrote, as its producer said.
pub(crate) fn traits_of(tables: &dyn Tables, id: SubmissionId) -> Traits {
    let key = id.key();
    if let Some(row) = tables.get(Table::Traits, &key) {
        return Traits::from_row(id, &row);
    }
    Traits::of(&about_of(tables, id))
}

/// What is said of a submission.
pub(crate) fn about_of(tables: &dyn Tables, id: SubmissionId) -> Submit {
    let row = tables.get(Table::Abouts, &id.key()).expect("every submission has its about row");
    Submit::from_row(id, &row)
}

impl BatchState {
    /// Reads the running submissions.
    pub(crate) fn open(tables: &dyn Tables) -> BatchState {
        let mut state = BatchState::default();
        for (key, value) in tables.scan_prefix(Table::Submissions, &[]) {
            let id = SubmissionId::from_key(&key).expect("a submission's row has its id as key");
            let submission: Submission = rows::decode(Table::Submissions, &key, &value);
            state.unsettled += submission.counts.unsettled();
            state.submissions.insert(id, submission);
        }
        state
    }

    /// How many submissions run.
    pub fn running(&self) -> usize {
        self.submissions.len()
    }

    /// How many chunks of running submissions are neither done nor failed.
    pub const fn unsettled(&self) -> u64 {
        self.unsettled
    }

    /// A running submission.
    pub fn submission(&self, id: SubmissionId) -> Option<&Submission> {
        self.submissions.get(&id)
    }

    /// Running submissions in order of age.
    pub fn submissions(&self) -> impl DoubleEndedIterator<Item = (SubmissionId, &Submission)> {
        self.submissions.iter()
    }

    /// How many blocks are in memory.
    pub fn blocks_in_memory(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn begin(&mut self, id: SubmissionId, submission: Submission) {
        self.unsettled += submission.counts.unsettled();
        let before = self.submissions.insert(id, submission);
        assert!(before.is_none(), "an id names one submission");
        self.changed_submissions.insert(id);
    }

    /// Changes a running submission's row.
    pub(crate) fn change<R>(&mut self, id: SubmissionId, change: impl FnOnce(&mut Submission) -> R) -> R {
        let submission = self.submissions.get_mut(&id).expect("only a running submission is changed");
        self.unsettled -= submission.counts.unsettled();
        let result = change(submission);
        self.unsettled += submission.counts.unsettled();
        self.changed_submissions.insert(id);
        result
    }

    /// The block of a chunk, loaded if it has a row, fresh if nothing happened to its chunks yet.
    pub(super) fn block(&mut self, tables: &dyn Tables, name: BlockName, total: u64) -> &mut Block {
        let has_rows = self.submissions.get(&name.submission).is_none_or(Submission::is_touched);
        self.blocks.entry(name).or_insert_with(|| {
            let key = name.key();
            match has_rows.then(|| tables.get(Table::Blocks, &key)).flatten() {
                Some(row) => rows::decoded(Table::Blocks, &key, Block::from_bytes(&row, name.places(total))),
                None => Block::new(name.places(total)),
            }
        })
    }

    pub(super) fn mark_changed(&mut self, name: BlockName) {
        self.changed_blocks.insert(name);
    }

    /// Lets a block go that was loaded only to find that every chunk of it is done.
    pub(super) fn let_go_if_full(&mut self, name: BlockName) {
        if self.blocks.get(&name).is_some_and(Block::is_full) && !self.changed_blocks.contains(&name) {
            self.blocks.remove(&name);
        }
    }

    /// Moves a running submission to history. Its blocks leave memory now, or with the flush if they changed.
    pub(crate) fn end(
        &mut self,
        tables: &mut dyn Tables,
        id: SubmissionId,
        state: SubmissionState,
        at: At,
    ) -> Effect {
        let submission = self.submissions.remove(&id).expect("only a running submission ends");
        self.unsettled -= submission.counts.unsettled();
        self.changed_submissions.remove(&id);
        let unchanged: Vec<BlockName> = self
            .blocks
            .range(BlockName { submission: id, number: BlockNumber(0) }..)
            .map(|(name, _)| *name)
            .take_while(|name| name.submission == id)
            .filter(|name| !self.changed_blocks.contains(name))
            .collect();
        for name in unchanged {
            self.blocks.remove(&name);
        }
        let counts = submission.counts;
        tables.delete(Table::Submissions, &id.key());
        tables.delete(Table::Traits, &id.key());
        tables.put(Table::History, &id.key(), rows::encode(&Finished { submission, state, finished_at: at }));
        Effect::Over { submission: id, state, counts }
    }

    /// Writes every changed row.
    pub(crate) fn flush(&mut self, tables: &mut dyn Tables) {
        for id in std::mem::take(&mut self.changed_submissions) {
            let submission = self.submissions.get(&id).expect("a changed submission runs");
            tables.put(Table::Submissions, &id.key(), rows::encode(submission));
        }
        for name in std::mem::take(&mut self.changed_blocks) {
            let block = &self.blocks[&name];
            tables.put(Table::Blocks, &name.key(), block.to_bytes());
            if block.is_full() || !self.submissions.contains_key(&name.submission) {
                self.blocks.remove(&name);
            }
        }
    }

    /// What can be handed out of a running submission. Everything must be flushed.
    pub(crate) fn unsettled_of(&self, tables: &dyn Tables, id: SubmissionId) -> Option<Unsettled> {
        let submission = self.submissions.get(&id)?;
        Some(Unsettled::new(tables, id, submission, traits_of(tables, id)))
    }

    /// The same of all running submissions, in order of age: one walk over the rows instead of a lookup for each.
    pub(crate) fn all_unsettled(&self, tables: &dyn Tables) -> impl Iterator<Item = Unsettled> {
        let mut rows = tables.scan_prefix(Table::Traits, &[]).peekable();
        self.submissions.iter().map(move |(id, submission)| {
            let key = id.key();
            while rows.next_if(|(row_key, _)| row_key[..] < key[..]).is_some() {}
            let traits = match rows.next_if(|(row_key, _)| row_key[..] == key[..]) {
                Some((_, row)) => Traits::from_row(id, &row),
                None => traits_of(tables, id),
            };
            Unsettled::new(tables, id, submission, traits)
        })
    }
}

impl Unsettled {
    fn new(tables: &dyn Tables, id: SubmissionId, submission: &Submission, traits: Traits) -> Unsettled {
        let total = submission.counts.total;
        let (round, ranges, delayed) = (submission.round, Vec::new(), Vec::new());
        let mut unsettled = Unsettled { submission: id, round, ranges, delayed, traits };
        let mut known_to = 0;
        if submission.is_touched() {
            for (key, value) in tables.scan_prefix(Table::Blocks, &id.key()) {
                let name = BlockName::from_key(&key).expect("a block's row has its name as key");
                let block = rows::decoded(Table::Blocks, &key, Block::from_bytes(&value, name.places(total)));
                unsettled.push(known_to..name.first_chunk());
                unsettled.push_block(name, &block, submission.round);
                known_to = name.first_chunk() + CHUNKS_PER_BLOCK;
            }
        }
        unsettled.push(known_to..total);
        unsettled
    }

    fn push_block(&mut self, name: BlockName, block: &Block, round: u32) {
        let first = name.first_chunk();
        for range in block.unsettled(round) {
            self.push(first + u64::from(range.start)..first + u64::from(range.end));
        }
        for trouble in block.troubles().iter().filter(|trouble| trouble.round == round) {
            if let Some(retry_at) = trouble.retry_at {
                let Place(place) = trouble.place;
                self.delayed.push((ChunkIndex(first + u64::from(place)), retry_at));
            }
        }
    }

    fn push(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            Some(_) | None => self.ranges.push(range),
        }
    }
}
