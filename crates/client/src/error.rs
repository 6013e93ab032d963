//! What can go wrong for a client, as a closed list.

use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// Why a call did not give what it was for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refused the request, or has a fault of its own.
    #[error("{0}")]
    Problem(Problem),
    /// The server could not be reached, or the connection broke, until the time for retries was over.
    #[error("cannot reach the server at {server}: {cause}")]
    Unreachable {
        /// The server's address.
        server: String,
        /// What the connection said.
        cause: String,
    },
    /// Something answered, but not in Windlass's protocol.
    #[error("{server} does not answer as a Windlass server: {what}")]
    Protocol {
        /// The server's address.
        server: String,
        /// What was wrong with the answer.
        what: String,
    },
    /// A chunk is out of attempts.
    #[error("submission {submission} failed at chunk {chunk}: {reason}")]
    ChunkFailed {
        /// The submission.
        submission: SubmissionId,
        /// The chunk.
        chunk: ChunkIndex,
        /// Its last failure.
        reason: String,
    },
    /// The submission ended before this chunk was worked on.
    #[error("submission {submission} was cancelled before chunk {chunk} was done")]
    Cancelled {
        /// The submission.
        submission: SubmissionId,
        /// The first chunk that was not done.
        chunk: ChunkIndex,
    },
    /// The operations could not be read.
    #[error("cannot read the operations: {0}")]
    Operations(std::io::Error),
    /// A setting of the client itself is wrong.
    #[error("{0}")]
    Setting(String),
}

impl ClientError {
    /// Whether the server did a part of what was asked, and goes on with the next request.
    pub(crate) fn did_some(&self) -> bool {
        matches!(self, ClientError::Problem(problem) if problem.code == ProblemCode::LaneKeysUnordered)
    }

    /// Whether the server may have done what was asked, though it did not say so. A refusal for good says that it did not: so do those of a
    /// lane that is full. Others may be the answer to a later try, where an earlier one got through.
    pub const fn is_outcome_unknown(&self) -> bool {
        match self {
            ClientError::Problem(problem) => {
                problem.retry_helps && !matches!(problem.code, ProblemCode::LaneFull)
            }
            ClientError::Unreachable { .. } | ClientError::Protocol { .. } => true,
            ClientError::ChunkFailed { .. }
            | ClientError::Cancelled { .. }
            | ClientError::Operations(_)
            | ClientError::Setting(_) => false,
        }
    }

    /// Whether the same call may succeed later.
    pub const fn retry_helps(&self) -> bool {
        match self {
            ClientError::Problem(problem) => problem.retry_helps,
            ClientError::Unreachable { .. } => true,
            ClientError::Protocol { .. }
            | ClientError::ChunkFailed { .. }
            | ClientError::Cancelled { .. }
            | ClientError::Operations(_)
            | ClientError::Setting(_) => false,
        }
    }
}

/// A verb that takes several requests was stopped by one of them; what those before it did stays done.
#[derive(Debug, thiserror::Error)]
#[error("{error} (this came after {tasks} tasks)")]
pub struct StoppedAfter {
    /// The tasks of the requests before.
    pub tasks: u64,
    /// Where to go on: the `cursor` of a request. None if there was nothing before.
    pub next: Option<String>,
    /// What stopped it.
    #[source]
    pub error: ClientError,
}

/// A library's error with the causes below it, which is where connections say what happened.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let sentence = cause.to_string();
        if !text.contains(&sentence) {
            text.push_str(": ");
            text.push_str(&sentence);
        }
        below = cause.source();
    }
    text
}
