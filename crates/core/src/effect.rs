//! Effects: what the leader has to do or tell after an entry was applied.

use crate::batch::submissions::{ChunkCounts, SubmissionState, Traits};
use crate::batch::weights::Weights;
use crate::ids::{Attempt, ChunkIndex, SubmissionId};
use crate::lanes::levels::{LaneNumber, Level, RankName};
use crate::lanes::state::LaneRow;
use crate::lanes::tasks::TaskId;
use crate::time::At;
use std::ops::Range;

/// What the leader has to do or tell after an entry. Derived from rows, so that repeating or losing one harms nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// These chunks of a running submission may be handed out; the submission is new or gets another round.
    Ready {
        /// The submission.
        submission: SubmissionId,
        /// The round of attempts that they get.
        round: u32,
        /// The chunks, as ranges in order.
        ranges: Vec<Range<u64>>,
        /// How far the submission is now.
        counts: ChunkCounts,
        /// What strategies go by.
        traits: Traits,
    },
    /// What strategies go by of a running submission is different from now on.
    Changed {
        /// The submission.
        submission: SubmissionId,
        /// What they go by now.
        traits: Traits,
    },
    /// The weights of a field's values are these from now on.
    Weighed {
        /// The field.
        field: String,
        /// The weights of all values that have one.
        weights: Weights,
    },
    /// These chunks are done and must not be handed out any more.
    Done {
        /// The submission.
        submission: SubmissionId,
        /// The chunks.
        chunks: Vec<ChunkIndex>,
        /// How far the submission is now.
        counts: ChunkCounts,
    },
    /// An attempt failed; the chunk may be handed out again from `retry_at` on, or never if there is none.
    Failed {
        /// The submission.
        submission: SubmissionId,
        /// The chunk.
        chunk: ChunkIndex,
        /// The attempt that failed.
        attempt: Attempt,
        /// From when on it may be tried again.
        retry_at: Option<At>,
        /// How far the submission is now.
        counts: ChunkCounts,
    },
    /// The submission is over: nothing of it may be handed out any more, and whoever waits for it can be told.
    Over {
        /// The submission.
        submission: SubmissionId,
        /// How it ended.
        state: SubmissionState,
        /// How far it came.
        counts: ChunkCounts,
    },
    /// A lane is new, or something else is said of it.
    LaneSet {
        /// Its number.
        lane: LaneNumber,
        /// Its name.
        name: String,
        /// What is said of it.
        row: Box<LaneRow>,
    },
    /// A task has a place in its lane.
    TaskPlaced {
        /// Its lane and priority.
        rank: RankName,
        /// Its level.
        level: Level,
        /// Its key.
        key: Box<str>,
        /// How far behind it the next task of its key stands at least; none if it was charged to its key before.
        stride: u32,
        /// Virtual times.
        times: Times,
    },
    /// A task waits until this time, when it gets a place.
    TaskDelayed {
        /// The time.
        until: At,
    },
    /// A task has no place any more: it is done, or an attempt at it failed.
    TaskUnplaced {
        /// Its lane and priority.
        rank: RankName,
        /// The level that it had.
        level: Level,
        /// Its key.
        key: Box<str>,
        /// Whether it is done.
        is_done: bool,
        /// Virtual times.
        times: Times,
    },
    /// A task has another place among those of its key and rank.
    TaskMoved {
        /// Its lane and priority.
        rank: RankName,
        /// The level that it had.
        from: Level,
        /// The level that it has.
        to: Level,
        /// Its key.
        key: Box<str>,
        /// How far behind it the next task of its key stands.
        stride: u32,
    },
    /// A task is not there, or not to be handed out: whoever holds it need not.
    TaskGone {
        /// The task.
        task: TaskId,
    },
    /// This commit is the next of its branch.
    CommitDue {
        /// The branch.
        branch: String,
        /// The request for it.
        request: SubmissionId,
    },
    /// A commit was performed or aborted.
    CommitEnded {
        /// The request for it.
        request: SubmissionId,
    },
    /// There are staging areas whose rows are to be removed.
    AreasDropped,
}

/// The virtual times of a task's rank and tenant: no later task gets a pass below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Of the rank.
    pub rank: u64,
    /// Of the tenant; 0 for a key without one.
    pub tenant: u64,
}
