//! list, find, show and results: reading submissions without changing them.
//!
//! Each page costs at most a fixed number of rows looked at; its cursor says where the next one goes on.

use super::chunks::{Acceptance, Block, BlockName, OutputKind};
use super::settle::FailureRow;
use super::state::{BatchState, about_of};
use super::submissions::{Finished, MetaValue, Metadata, Submission, SubmissionState, Submit, Traits};
use crate::ids::{Attempt, ChunkIndex, ChunkName, SubmissionId};
use crate::limits::{CHUNKS_PER_BLOCK, PAGE_LOOKED_AT_MAX, PAGE_ROWS_MAX};
use crate::machine::Machine;
use crate::rows;
use crate::tables::{Table, Tables, Walk};
use crate::time::At;
use std::ops::Bound;

/// The key of the row that finds a submission by a field's value; without an id, the prefix of all of them.
pub(crate) fn found_key(field: &str, value: &MetaValue, id: Option<SubmissionId>) -> Vec<u8> {
    let value = rows::encode(value);
    let length = u16::try_from(value.len()).expect("a value is at most 256 bytes and a few of encoding");
    let mut key = Vec::with_capacity(field.len() + value.len() + 11);
    key.extend_from_slice(field.as_bytes());
    key.push(0);
    key.extend_from_slice(&length.to_be_bytes());
    key.extend_from_slice(&value);
    if let Some(id) = id {
        key.extend_from_slice(&id.key());
    }
    key
}

/// A submission as a reader sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmissionView {
    /// Its id.
    pub id: SubmissionId,
    /// Where it stands.
    pub state: SubmissionState,
    /// Its row.
    pub submission: Submission,
    /// What is said of it.
    pub about: Submit,
    /// Whether it runs and is held back.
    pub paused: bool,
    /// When it ended.
    pub finished_at: Option<At>,
}

/// Which submissions a list shows.
#[derive(Debug, Clone, Default)]
pub struct SubmissionFilter {
    /// Only those in this state.
    pub state: Option<SubmissionState>,
    /// Only those with all of these values.
    pub metadata: Metadata,
}

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next page begins: below this id.
    pub next: Option<SubmissionId>,
}

/// What is known of one chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkResult {
    /// Which chunk.
    pub chunk: ChunkIndex,
    /// How it is.
    pub state: ChunkState,
}

/// How a chunk is.
#[derive(Debug, Clone, PartialEq)]
pub enum ChunkState {
    /// Waiting or being worked on, perhaps after failures.
    Unsettled(Option<FailureRow>),
    /// Out of attempts.
    Failed(FailureRow),
    /// Done.
    Done {
        /// The attempt that counts.
        attempt: Attempt,
        /// Where its output is.
        output: OutputKind,
        /// The output, if it is inline.
        inline: Option<Vec<u8>>,
    },
}

impl<T: Tables> Machine<T> {
    /// What is known of a submission, running or finished.
    pub fn show(&self, id: SubmissionId) -> Option<SubmissionView> {
        let (submission, state, finished_at) = match self.batch().submission(id) {
            Some(submission) => (submission.clone(), SubmissionState::Running, None),
            None => {
                let row = self.tables().get(Table::History, &id.key())?;
                let finished: Finished = rows::decode(Table::History, &id.key(), &row);
                (finished.submission, finished.state, Some(finished.finished_at))
            }
        };
        let paused = state == SubmissionState::Running && self.is_paused(id);
        Some(SubmissionView { id, state, submission, about: self.about(id), paused, finished_at })
    }

    /// Whether a running submission is held back; one whose traits row an earlier build never wrote is not.
    fn is_paused(&self, id: SubmissionId) -> bool {
        let row = self.tables().get(Table::Traits, &id.key());
        row.is_some_and(|row| Traits::from_row(id, &row).paused)
    }

    /// What is said of a submission: what its producer said, and where somebody changed that, what is said now.
    ///
    /// # Panics
    /// If there is no such submission.
    pub fn about(&self, id: SubmissionId) -> Submit {
        about_of(self.tables(), id)
    }

    /// Submissions below an id, newest first. O(rows looked at), which is bounded.
    pub fn list(
        &self,
        filter: &SubmissionFilter,
        below: Option<SubmissionId>,
        limit: usize,
    ) -> Page<SubmissionView> {
        let limit = limit.clamp(1, PAGE_ROWS_MAX);
        let mut page = Page { items: Vec::new(), next: None };
        for (looked_at, id) in self.candidates(filter, below).enumerate() {
            if page.items.len() == limit || looked_at == PAGE_LOOKED_AT_MAX {
                return page;
            }
            page.items.extend(self.show(id).filter(|view| filter.matches(view)));
            page.next = Some(id);
        }
        page.next = None;
        page
    }

    /// The ids that a filter cannot rule out by an index alone, newest first.
    fn candidates<'a>(
        &'a self,
        filter: &SubmissionFilter,
        below: Option<SubmissionId>,
    ) -> Box<dyn Iterator<Item = SubmissionId> + 'a> {
        if let Some((field, value)) = filter.metadata.first_key_value() {
            return Box::new(self.found_below(field, value, below));
        }
        let below_key = below.map(SubmissionId::key);
        let end = below_key.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let table = match filter.state {
            Some(SubmissionState::Running) => return Box::new(self.running_below(below)),
            Some(SubmissionState::Completed | SubmissionState::Failed | SubmissionState::Cancelled) => {
                Table::History
            }
            None => Table::Abouts,
        };
        let rows = self.tables().scan(table, (Bound::Unbounded, end), Walk::Down);
        Box::new(rows.filter_map(|(key, _)| SubmissionId::from_key(&key)))
    }

    fn running_below(&self, below: Option<SubmissionId>) -> impl Iterator<Item = SubmissionId> {
        self.batch().running_below(below).map(|(id, _)| id)
    }

    /// Submissions with this value, newest first.
    pub(super) fn found_below<'a>(
        &'a self,
        field: &str,
        value: &MetaValue,
        below: Option<SubmissionId>,
    ) -> impl Iterator<Item = SubmissionId> + use<'a, T> {
        let prefix = found_key(field, value, None);
        let start = prefix.len();
        let end = match below {
            Some(id) => found_key(field, value, Some(id)),
            None => [&prefix[..], &[0xff; 8]].concat(),
        };
        let range = (Bound::Included(&prefix[..]), Bound::Excluded(&end[..]));
        let found = self.tables().scan(Table::Found, range, Walk::Down);
        found.filter_map(move |(key, _)| SubmissionId::from_key(&key[start..]))
    }

    /// The chunks of a submission from `from` on, as many as a page holds; none if there is no such submission.
    pub fn results(&self, id: SubmissionId, from: ChunkIndex, limit: usize) -> Option<Vec<ChunkResult>> {
        let view = self.show(id)?;
        let (total, round) = (view.submission.counts.total, view.submission.round);
        let end = total.min(from.0.saturating_add(limit.clamp(1, PAGE_ROWS_MAX) as u64));
        let mut results = Vec::new();
        let mut chunk = from.0;
        while chunk < end {
            let (name, _) = BlockName::of(id, ChunkIndex(chunk));
            let block_end = end.min(name.first_chunk() + CHUNKS_PER_BLOCK);
            let block = self.block(name, total);
            results.extend((chunk..block_end).map(|chunk| self.result(id, ChunkIndex(chunk), &block, round)));
            chunk = block_end;
        }
        Some(results)
    }

    fn block(&self, name: BlockName, total: u64) -> Block {
        let places = name.places(total);
        match self.batch().block_in_memory(name) {
            Some(block) => block.clone(),
            None => match self.tables().get(Table::Blocks, &name.key()) {
                Some(row) => rows::decoded(Table::Blocks, &name.key(), Block::from_bytes(&row, places)),
                None => Block::new(places),
            },
        }
    }

    fn result(&self, id: SubmissionId, chunk: ChunkIndex, block: &Block, round: u32) -> ChunkResult {
        let key = ChunkName { submission: id, chunk }.key();
        let (_, place) = BlockName::of(id, chunk);
        let state = match block.acceptance(place) {
            Some(Acceptance { attempt, output }) => ChunkState::Done {
                attempt,
                output,
                inline: match output {
                    OutputKind::Inline => self.tables().get(Table::Outputs, &key),
                    OutputKind::Nothing | OutputKind::Stored => None,
                },
            },
            None => {
                let failure = block.trouble(place).and_then(|_| self.tables().get(Table::Failures, &key));
                let failure = failure.map(|row| rows::decode(Table::Failures, &key, &row));
                match failure {
                    Some(failure) if block.is_failed(place, round) => ChunkState::Failed(failure),
                    failure => ChunkState::Unsettled(failure),
                }
            }
        };
        ChunkResult { chunk, state }
    }

    /// The last failures of a submission's chunks that are not done, in the order of the chunks.
    pub fn failures(&self, id: SubmissionId, limit: usize) -> Vec<(ChunkIndex, FailureRow)> {
        let rows = self.tables().scan_prefix(Table::Failures, &id.key()).take(limit.min(PAGE_ROWS_MAX));
        rows.map(|(key, row)| {
            let chunk = key[8..].try_into().expect("a failure's key is a chunk's name");
            (ChunkIndex(u64::from_be_bytes(chunk)), rows::decode(Table::Failures, &key, &row))
        })
        .collect()
    }
}

impl SubmissionFilter {
    fn matches(&self, view: &SubmissionView) -> bool {
        self.state.is_none_or(|state| state == view.state)
            && self.metadata.iter().all(|(field, value)| view.about.metadata.get(field) == Some(value))
    }
}

impl BatchState {
    /// Running submissions below an id, newest first.
    pub(super) fn running_below(
        &self,
        below: Option<SubmissionId>,
    ) -> impl Iterator<Item = (SubmissionId, &Submission)> {
        self.submissions.below(below)
    }

    fn block_in_memory(&self, name: BlockName) -> Option<&Block> {
        self.blocks.get(&name)
    }
}
