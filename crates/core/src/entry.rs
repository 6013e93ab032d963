//! Entries: what the log holds, and what applying one gives.
//!
//! Invariants
//! - Stored numbers (`#[n(..)]`) are forever: a field or variant is added with a new number and a default, never
//!   renumbered. An unknown command number does not decode.

use crate::batch::change::Change;
use crate::batch::roster::Enlist;
use crate::batch::submissions::{SubmissionState, Submit};
use crate::batch::weights::Weigh;
pub use crate::effect::Effect;
use crate::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use crate::lanes::acks::Ack;
use crate::lanes::limiting::LimitLane;
use crate::lanes::open::SetLane;
use crate::lanes::redrive::Redrive;
use crate::lanes::relevel::{Relevel, Releveled};
use crate::lanes::tasks::{AddTasks, TaskId};
use crate::lanes::weigh::WeighKeys;
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::fmt;

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
}

impl Command {
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

/// The answer to a command. Stored in the dedup window, so numbered.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Outcome {
    /// The leadership has begun.
    #[n(1)]
    Led {
        /// Its epoch.
        #[n(0)]
        epoch: Epoch,
    },
    /// The submission is in.
    #[n(2)]
    Submitted {
        /// Its id.
        #[n(0)]
        submission: SubmissionId,
    },
    /// What became of each chunk of a complete or fail, in the order they were named.
    #[n(3)]
    Settled(#[n(0)] Vec<Settled>),
    /// The submission is cancelled.
    #[n(4)]
    Cancelled,
    /// The failed and skipped chunks are ready again.
    #[n(5)]
    Retried {
        /// How many.
        #[n(0)]
        chunks: u64,
    },
    /// Nothing was changed, and why.
    #[n(6)]
    Refused(#[n(0)] Refusal),
    /// The submission is as the change asked for; it may have been so before.
    #[n(7)]
    Changed,
    /// It is noted.
    #[n(8)]
    Noted,
    /// The lane is as it was asked for; it may have been so before.
    #[n(9)]
    LaneSet,
    /// The tasks are in.
    #[n(10)]
    TasksAdded {
        /// Their ids, in order.
        #[n(0)]
        tasks: IdRuns,
    },
    /// Delayed tasks have got their places.
    #[n(11)]
    TasksReleased {
        /// How many; there may be more.
        #[n(0)]
        tasks: u64,
    },
    /// Dead tasks are tried again.
    #[n(12)]
    Redriven {
        /// How many.
        #[n(0)]
        tasks: u64,
    },
    /// Tasks of a key stand by its weight.
    #[n(13)]
    Releveled(#[n(0)] Releveled),
}

/// Ids in order, kept as runs: those that are made together mostly follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct IdRuns(#[n(0)] Vec<(u64, u64)>);

impl IdRuns {
    /// The ids.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> {
        let numbers = self.0.iter().flat_map(|(first, count)| *first..*first + *count);
        numbers.map(|number| TaskId::from_u64(number).expect("a run is made of ids"))
    }
}

impl FromIterator<TaskId> for IdRuns {
    fn from_iter<I: IntoIterator<Item = TaskId>>(ids: I) -> IdRuns {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for id in ids {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == id.as_u64() => *count += 1,
                Some(_) | None => runs.push((id.as_u64(), 1)),
            }
        }
        IdRuns(runs)
    }
}

/// What became of one chunk of a complete or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Settled {
    /// This report counts: the chunk is done by this attempt, or this attempt's failure is counted.
    #[n(0)]
    Accepted,
    /// The chunk was done before; nothing changed.
    #[n(1)]
    AlreadyDone,
    /// This failure, or one of a later attempt, was counted before; nothing changed.
    #[n(2)]
    AlreadyFailed,
    /// The submission is over (cancelled, failed, or completed); nothing changed.
    #[n(3)]
    SubmissionOver,
    /// The submission has no chunk with this index.
    #[n(4)]
    NoSuchChunk,
}

/// Why a command was not carried out: an answer, part of history, the caller's business.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Refusal {
    /// The entry was written under a leadership that has ended.
    #[n(1)]
    Fenced {
        /// The epoch that holds now.
        #[n(0)]
        current: Epoch,
    },
    /// No submission has this id.
    #[n(2)]
    SubmissionUnknown {
        /// The id.
        #[n(0)]
        submission: SubmissionId,
    },
    /// The submission is over, and what was asked needs one that runs.
    #[n(3)]
    SubmissionOver {
        /// The id.
        #[n(0)]
        submission: SubmissionId,
        /// How it ended.
        #[n(1)]
        state: SubmissionState,
    },
    /// Nothing of the submission has failed, so there is nothing to retry.
    #[n(4)]
    NothingFailed {
        /// The id.
        #[n(0)]
        submission: SubmissionId,
    },
    /// The idempotency key was used before, for something else.
    #[n(5)]
    IdempotencyKeyReused,
    /// The submission or report breaks a limit.
    #[n(6)]
    Malformed {
        /// A sentence that says what to do.
        #[n(0)]
        problem: String,
    },
    /// No lane has this name.
    #[n(7)]
    LaneUnknown {
        /// The name.
        #[n(0)]
        lane: String,
    },
    /// The lane takes no more tasks.
    #[n(8)]
    LaneDraining {
        /// Its name.
        #[n(0)]
        lane: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Fenced { current } => {
                write!(f, "this leadership has ended (epoch {current} holds now); send the command again")
            }
            Refusal::SubmissionUnknown { submission } => {
                write!(f, "no submission has the id {submission}; check the id, or list the submissions")
            }
            Refusal::SubmissionOver { submission, state } => {
                write!(
                    f,
                    "submission {submission} is over ({state}); submit the work again if it is still wanted"
                )
            }
            Refusal::NothingFailed { submission } => {
                write!(f, "no chunk of submission {submission} has failed, so there is nothing to retry")
            }
            Refusal::IdempotencyKeyReused => f.write_str(
                "this idempotency key was used before with another request; use a new key for a new request",
            ),
            Refusal::Malformed { problem } => f.write_str(problem),
            Refusal::LaneUnknown { lane } => {
                write!(f, "there is no lane `{lane}`; create it, or check its name")
            }
            Refusal::LaneDraining { lane } => {
                write!(f, "lane `{lane}` is being drained and takes no more tasks; resume it, or use another")
            }
        }
    }
}
