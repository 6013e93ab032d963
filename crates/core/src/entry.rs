//! Entries: what the log holds, and what applying one gives.
//!
//! Invariants
//! - Stored numbers (`#[n(..)]`) are forever: a field or variant is added with a new number and a default, never
//!   renumbered. An unknown command number does not decode.

use crate::batch::change::Change;
use crate::batch::roster::Enlist;
use crate::batch::submissions::Submit;
use crate::batch::weights::Weigh;
use crate::branches::commits::{Abort, Announce, NoteFiles, Perform};
use crate::branches::open::{CreateBranch, NameBranch};
use crate::branches::outputs::OutputEntry;
use crate::branches::staging::{Grant, Stage};
pub use crate::effect::Effect;
use crate::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use crate::lanes::acks::Ack;
use crate::lanes::key_order::OrderKeys;
use crate::lanes::limiting::LimitLane;
use crate::lanes::open::SetLane;
use crate::lanes::redrive::Redrive;
use crate::lanes::relevel::Relevel;
use crate::lanes::settle::CompleteTasks;
use crate::lanes::tasks::AddTasks;
use crate::lanes::weigh::WeighKeys;
use crate::limits::{
    TASKS_DUE_PER_COMMAND_MAX, TASKS_ORDERED_PER_COMMAND_MAX, TASKS_RELEVELED_PER_COMMAND_MAX,
};
pub use crate::outcome::{IdRuns, Outcome, Refusal, Settled};
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// One record of the log: commands that arrived together, with the one stamp they share.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct EntryGroup {
    /// The leadership that wrote it.
    #[n(0)]
    pub epoch: Epoch,
    /// The leader's time.
    #[n(1)]
    pub at: At,
    /// The leader's chance; command number i of the group gets `seed + i`.
    #[n(2)]
    pub seed: u64,
    /// The member that sent it.
    #[n(3)]
    pub sender: SenderId,
    /// The commands, in order.
    #[n(4)]
    pub commands: Vec<Sent>,
}

/// A command with the token of the caller that waits for it.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Sent {
    /// Answered by the member with the group's sender id.
    #[n(0)]
    pub token: ContinuationToken,
    /// What to do.
    #[n(1)]
    pub command: Command,
}

impl EntryGroup {
    /// The stored bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("encoding into memory does not fail")
    }

    /// The group in these bytes; refused if any command in it is unknown to this build.
    pub fn from_bytes(bytes: &[u8]) -> Result<EntryGroup, minicbor::decode::Error> {
        minicbor::decode(bytes)
    }

    /// The entries of the group, one for each command, in order.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        let EntryGroup { epoch, at, seed, sender, commands } = self;
        commands.into_iter().zip(0..).map(move |(sent, nth)| Entry {
            epoch,
            at,
            seed: seed.wrapping_add(nth),
            sender,
            token: sent.token,
            command: sent.command,
        })
    }
}

/// A command as the machine gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The leadership that wrote it.
    pub epoch: Epoch,
    /// The leader's time.
    pub at: At,
    /// The leader's chance.
    pub seed: u64,
    /// The member that sent it.
    pub sender: SenderId,
    /// The caller that waits for it.
    pub token: ContinuationToken,
    /// What to do.
    pub command: Command,
}

/// What can be asked of the machine.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Command {
    /// Begins a leadership: from here on, entries of earlier epochs change nothing.
    #[n(1)]
    Lead(#[n(0)] Lead),
    /// Hands in a submission.
    #[n(2)]
    Submit(#[n(0)] Submit),
    /// Reports chunks of one submission as done.
    #[n(3)]
    Complete(#[n(0)] Complete),
    /// Reports attempts at chunks of one submission as failed.
    #[n(4)]
    Fail(#[n(0)] Fail),
    /// Ends a submission; its remaining chunks are skipped.
    #[n(5)]
    Cancel(#[n(0)] Cancel),
    /// Gives the failed and skipped chunks of a failed submission another round of attempts.
    #[n(6)]
    RetryFailed(#[n(0)] RetryFailed),
    /// Says anew what is said of a running submission, or holds it back, or lets it go on.
    #[n(7)]
    Change(#[n(0)] Change),
    /// Notes who may hold work under a hard limit.
    #[n(8)]
    Enlist(#[n(0)] Enlist),
    /// Sets the weights of a field's values.
    #[n(9)]
    Weigh(#[n(0)] Weigh),
    /// Creates a lane, or says anew what is said of one.
    #[n(10)]
    SetLane(#[n(0)] SetLane),
    /// Adds tasks to a lane.
    #[n(11)]
    AddTasks(#[n(0)] AddTasks),
    /// Notes how far everything of one priority of a lane is done.
    #[n(12)]
    Ack(#[n(0)] Ack),
    /// Gives delayed tasks that are due their places.
    #[n(13)]
    ReleaseTasks,
    /// Tries tasks again that have failed for good.
    #[n(14)]
    Redrive(#[n(0)] Redrive),
    /// Sets weights of keys in a lane.
    #[n(15)]
    WeighKeys(#[n(0)] WeighKeys),
    /// Sets limits of a lane and its keys.
    #[n(16)]
    LimitLane(#[n(0)] LimitLane),
    /// Gives waiting tasks of a key levels by the key's weight, some at a time.
    #[n(17)]
    Relevel(#[n(0)] Relevel),
    /// Creates a branch.
    #[n(18)]
    CreateBranch(#[n(0)] CreateBranch),
    /// Deletes a branch.
    #[n(19)]
    DeleteBranch(#[n(0)] NameBranch),
    /// Throws away what is staged on a branch.
    #[n(20)]
    ResetBranch(#[n(0)] NameBranch),
    /// Grants addresses for uploads.
    #[n(21)]
    Grant(#[n(0)] Grant),
    /// Puts entries and tombstones into the newest staging area of a branch.
    #[n(22)]
    Stage(#[n(0)] Stage),
    /// Asks for a commit: seals what is staged, and lets it wait for its turn.
    #[n(23)]
    Announce(#[n(0)] Announce),
    /// Notes files of a commit that are about to be written.
    #[n(24)]
    NoteFiles(#[n(0)] NoteFiles),
    /// Makes a commit visible.
    #[n(25)]
    Perform(#[n(0)] Perform),
    /// Gives a request for a commit up.
    #[n(26)]
    Abort(#[n(0)] Abort),
    /// Removes rows of staging areas that were dropped, some at a time.
    #[n(27)]
    Sweep,
    /// Reports tasks of lanes as done, many at a time.
    #[n(28)]
    CompleteTasks(#[n(0)] CompleteTasks),
    /// Puts tasks of a lane that wait in order key by key, some at a time.
    #[n(29)]
    OrderKeys(#[n(0)] OrderKeys),
}

impl Command {
    /// How many small commands it is as much work as, about.
    pub fn weight(&self) -> usize {
        match self {
            Command::CompleteTasks(it) => it.len().max(1),
            Command::AddTasks(it) => it.tasks.len().max(1),
            Command::Redrive(it) => it.tasks.len().max(1),
            Command::OrderKeys(_) => TASKS_ORDERED_PER_COMMAND_MAX,
            // Two rows of each are moved.
            Command::Relevel(_) => 2 * TASKS_RELEVELED_PER_COMMAND_MAX,
            Command::ReleaseTasks => TASKS_DUE_PER_COMMAND_MAX,
            _ => 1,
        }
    }

    /// The command's name, as in metrics and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Command::Lead(_) => "lead",
            Command::Submit(_) => "submit",
            Command::Complete(_) => "complete",
            Command::Fail(_) => "fail",
            Command::Cancel(_) => "cancel",
            Command::RetryFailed(_) => "retry_failed",
            Command::Change(_) => "change",
            Command::Enlist(_) => "enlist",
            Command::Weigh(_) => "weigh",
            Command::SetLane(_) => "set_lane",
            Command::AddTasks(_) => "add_tasks",
            Command::Ack(_) => "ack",
            Command::ReleaseTasks => "release_tasks",
            Command::Redrive(_) => "redrive",
            Command::WeighKeys(_) => "weigh_keys",
            Command::LimitLane(_) => "limit_lane",
            Command::Relevel(_) => "relevel",
            Command::CreateBranch(_) => "create_branch",
            Command::DeleteBranch(_) => "delete_branch",
            Command::ResetBranch(_) => "reset_branch",
            Command::Grant(_) => "grant",
            Command::Stage(_) => "stage",
            Command::Announce(_) => "announce",
            Command::NoteFiles(_) => "note_files",
            Command::Perform(_) => "perform",
            Command::Abort(_) => "abort",
            Command::Sweep => "sweep",
            Command::CompleteTasks(_) => "complete_tasks",
            Command::OrderKeys(_) => "order_keys",
        }
    }
}

/// See [`Command::Lead`].
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Lead {
    /// The shard that makes ids from now on.
    #[n(0)]
    pub shard: Shard,
}

/// See [`Command::Complete`].
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Complete {
    /// The submission that the chunks belong to.
    #[n(0)]
    pub submission: SubmissionId,
    /// The chunks.
    #[n(1)]
    pub done: Vec<Done>,
}

impl Complete {
    /// Whether it is about a task of a lane.
    pub fn is_of_task(&self) -> bool {
        self.done.first().is_some_and(|done| done.attempt.is_of_task())
    }
}

/// One chunk that is done.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Done {
    /// Which chunk.
    #[n(0)]
    pub chunk: ChunkIndex,
    /// The attempt that did it.
    #[n(1)]
    pub attempt: Attempt,
    /// What came out.
    #[n(2)]
    pub output: Output,
    /// What goes to the output branch of the submission.
    #[n(3)]
    pub entries: Option<Vec<OutputEntry>>,
}

/// What a chunk's work gave.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Output {
    /// Nothing to keep.
    #[n(0)]
    Nothing,
    /// An object at the attempt's own output address.
    #[n(1)]
    Stored,
    /// A few bytes, kept with the queue's own state.
    #[n(2)]
    Inline(#[n(0)] ByteVec),
}

/// See [`Command::Fail`].
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Fail {
    /// The submission that the chunks belong to.
    #[n(0)]
    pub submission: SubmissionId,
    /// The attempts.
    #[n(1)]
    pub failed: Vec<FailedAttempt>,
}

impl Fail {
    /// Whether it is about a task of a lane.
    pub fn is_of_task(&self) -> bool {
        self.failed.first().is_some_and(|failed| failed.attempt.is_of_task())
    }
}

/// One attempt that failed.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct FailedAttempt {
    /// Which chunk.
    #[n(0)]
    pub chunk: ChunkIndex,
    /// Which attempt at it.
    #[n(1)]
    pub attempt: Attempt,
    /// Why, for a person to read.
    #[n(2)]
    pub reason: String,
}

/// See [`Command::Cancel`].
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Cancel {
    /// Which submission.
    #[n(0)]
    pub submission: SubmissionId,
}

/// See [`Command::RetryFailed`].
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct RetryFailed {
    /// Which submission.
    #[n(0)]
    pub submission: SubmissionId,
}

/// What applying an entry gave: the answer for whoever waits, and what the leader has to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The answer.
    pub outcome: Outcome,
    /// Things for the leader's roles; may be repeated safely.
    pub effects: Vec<Effect>,
}

impl Applied {
    /// An answer that changed nothing.
    pub fn refused(refusal: Refusal) -> Applied {
        Applied { outcome: Outcome::Refused(refusal), effects: Vec::new() }
    }
}
