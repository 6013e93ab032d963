//! Outcomes: the answers to commands, and why one was not carried out.
//!
//! Invariants
//! - Outcomes are kept in the dedup window, so stored numbers (`#[n(..)]`) are forever here too.

use crate::batch::submissions::SubmissionState;
use crate::branches::entries::Digest;
use crate::branches::state::AreaId;
use crate::ids::{Epoch, SubmissionId};
use crate::lanes::relevel::Releveled;
use crate::lanes::tasks::TaskId;
use crate::limits::LANE_TASKS_MAX;
use minicbor::{Decode, Encode};
use std::fmt;

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
    /// The branch is as it was asked for.
    #[n(14)]
    BranchSet {
        /// The token of its newest staging area.
        #[n(0)]
        token: AreaId,
    },
    /// The branch is gone.
    #[n(15)]
    BranchDeleted,
    /// Addresses for uploads are granted.
    #[n(16)]
    Granted {
        /// The grant.
        #[n(0)]
        grant: SubmissionId,
        /// How many.
        #[n(1)]
        addresses: u32,
    },
    /// The entries are staged.
    #[n(17)]
    Staged {
        /// The token of the area that they are in.
        #[n(0)]
        token: AreaId,
    },
    /// The commit waits for its turn.
    #[n(18)]
    Announced {
        /// The request, by which its outcome is known.
        #[n(0)]
        request: SubmissionId,
        /// The token of the newest staging area.
        #[n(1)]
        token: AreaId,
    },
    /// The commit is visible.
    #[n(19)]
    Committed {
        /// Its id.
        #[n(0)]
        commit: Digest,
    },
    /// The request was given up.
    #[n(20)]
    Aborted {
        /// Why.
        #[n(0)]
        reason: String,
    },
    /// Rows of dropped areas are removed.
    #[n(21)]
    Swept {
        /// How many areas still have some, perhaps.
        #[n(0)]
        areas: u64,
    },
    /// Keys of the lane have got an order of their own tasks, some of them.
    #[n(22)]
    KeysOrdered {
        /// All have.
        #[n(0)]
        is_done: bool,
    },
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
    /// No branch has this name.
    #[n(9)]
    BranchUnknown {
        /// The name.
        #[n(0)]
        branch: String,
    },
    /// There is a branch with this name.
    #[n(10)]
    BranchExists {
        /// The name.
        #[n(0)]
        branch: String,
    },
    /// No commit has this id.
    #[n(11)]
    CommitUnknown {
        /// The id.
        #[n(0)]
        commit: Digest,
    },
    /// No request for a commit has this id.
    #[n(12)]
    RequestUnknown {
        /// The id.
        #[n(0)]
        request: SubmissionId,
    },
    /// The staging token is not the newest of its branch.
    #[n(13)]
    TokenStale {
        /// The branch.
        #[n(0)]
        branch: String,
        /// The newest token.
        #[n(1)]
        newest: AreaId,
    },
    /// A path is not as the request demands.
    #[n(14)]
    ConditionFailed {
        /// The path.
        #[n(0)]
        path: String,
        /// The digest of what it leads to, if it leads anywhere.
        #[n(1)]
        found: Option<Digest>,
    },
    /// The head has moved since the leader looked into it.
    #[n(15)]
    HeadMoved {
        /// The branch.
        #[n(0)]
        branch: String,
    },
    /// The address was not granted, or is linked.
    #[n(16)]
    AddressNotGranted {
        /// The address.
        #[n(0)]
        address: String,
    },
    /// Others are ahead of this commit, or its parent is not the head.
    #[n(17)]
    NotItsTurn {
        /// The request.
        #[n(0)]
        request: SubmissionId,
    },
    /// Too many commits of this branch wait.
    #[n(18)]
    TooManyCommits {
        /// The branch.
        #[n(0)]
        branch: String,
    },
    /// The log has brought the request before. Whoever waited for it was answered then.
    #[n(19)]
    Repeated,
    /// The lane does not keep the order of each key's own tasks yet, which is needed.
    #[n(20)]
    KeysUnordered {
        /// Its name.
        #[n(0)]
        lane: String,
    },
    /// The lane holds as many tasks as a lane may.
    #[n(21)]
    LaneFull {
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
            Refusal::BranchUnknown { branch } => {
                write!(
                    f,
                    "there is no branch `{branch}`; create it with `branches create`, or check its name"
                )
            }
            Refusal::BranchExists { branch } => {
                write!(f, "there is a branch `{branch}`; use another name, or delete it first")
            }
            Refusal::CommitUnknown { commit } => {
                write!(f, "no commit has the id {commit}; `branches log` lists those of a branch")
            }
            Refusal::RequestUnknown { request } => {
                write!(f, "no request for a commit has the id {request}; check the id")
            }
            Refusal::TokenStale { branch, newest } => write!(
                f,
                "the staging token is no longer the newest of branch `{branch}`; put again with token {newest}"
            ),
            Refusal::ConditionFailed { path, found: Some(found) } => write!(
                f,
                "the path {path:?} leads to {found}, which is not what the request demands; read it again and decide anew"
            ),
            Refusal::ConditionFailed { path, found: None } => write!(
                f,
                "the path {path:?} leads nowhere, which is not what the request demands; read it again and decide anew"
            ),
            Refusal::HeadMoved { branch } => {
                write!(f, "branch `{branch}` was committed to in the meantime; send the request again")
            }
            Refusal::AddressNotGranted { address } => write!(
                f,
                "the address {address:?} was not granted, or is linked; ask for one with `token`, and link it once"
            ),
            Refusal::NotItsTurn { request } => {
                write!(
                    f,
                    "commit request {request} is not the next of its branch, or its parent is not the head"
                )
            }
            Refusal::TooManyCommits { branch } => write!(
                f,
                "too many commits of branch `{branch}` wait or were aborted; wait for them, or throw away what is staged with \
                 `branches reset`"
            ),
            Refusal::KeysUnordered { lane } => write!(
                f,
                "the tasks that wait in lane `{lane}` are not in order key by key yet, which limits of keys and `relevel` need; send the \
                 request again until they are"
            ),
            Refusal::LaneFull { lane } => write!(
                f,
                "lane `{lane}` would hold more than {LANE_TASKS_MAX} tasks that are not done; add them when some are"
            ),
            Refusal::Repeated => f.write_str(
                "the log has brought this request before; give requests that may be repeated an idempotency key",
            ),
        }
    }
}
