//! Problems: every error that a door can answer with, as RFC 9457 problem details.
//!
//! A code is forever: clients decide by it. The table below is exhaustive.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What went wrong, in a form that programs can decide by and people can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of problem: `urn:windlass:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here, and what to do.
    pub detail: String,
    /// The stable code.
    pub code: ProblemCode,
    /// Whether the same request may succeed if it is sent again later.
    pub retry_helps: bool,
    /// With `token_stale`: the staging token to put with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_token: Option<String>,
}

impl Problem {
    /// A problem of this kind, with a sentence that says what to do.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Problem {
        let (status, title, retry_helps) = code.describe();
        Problem {
            kind: format!("urn:windlass:problem:{code}"),
            title: title.into(),
            status,
            detail: detail.into(),
            code,
            retry_helps,
            newest_token: None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.title, self.detail, self.code)
    }
}

impl std::error::Error for Problem {}

/// The kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The request does not parse, or has a field that does not exist or has the wrong type.
    MalformedRequest,
    /// The request parses, but breaks a limit or a rule.
    InvalidRequest,
    /// No such path.
    PathUnknown,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// No submission has this id.
    SubmissionUnknown,
    /// The submission is over, and the request needs a running one.
    SubmissionOver,
    /// Nothing of the submission has failed.
    NothingFailed,
    /// No lane has this name.
    LaneUnknown,
    /// The lane takes no more tasks.
    LaneDraining,
    /// The lane holds as many tasks as a lane may.
    LaneFull,
    /// The tasks that wait in the lane are being put in order key by key, which limits of keys and `relevel` need; each request
    /// does some of it.
    LaneKeysUnordered,
    /// The lane has no such task, or has it no more.
    TaskUnknown,
    /// No branch has this name.
    BranchUnknown,
    /// A branch with this name exists.
    BranchExists,
    /// No commit, or no request for one, has this id.
    CommitUnknown,
    /// The path leads nowhere.
    EntryUnknown,
    /// The staging token is not the newest of its branch; `newest_token` is.
    TokenStale,
    /// The address was not granted, or is linked already.
    AddressNotGranted,
    /// The commit was given up; the branch stays as it was, and what is staged stays staged.
    CommitAborted,
    /// Too many commits of the branch wait.
    TooManyCommits,
    /// The idempotency key was used for another request.
    IdempotencyKeyReused,
    /// The chunk was never handed out with this token.
    TokenInvalid,
    /// The strategy cannot be served.
    StrategyInvalid,
    /// No object has this key.
    ObjectUnknown,
    /// An object with this key exists; objects never change.
    ObjectExists,
    /// The bytes that arrived are not those that were announced.
    DigestMismatch,
    /// The object is not the one that the request is for.
    PreconditionFailed,
    /// The object has no byte of the range.
    RangeUnsatisfiable,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The content type is not the one the path takes.
    ContentTypeWrong,
    /// The request did not arrive in time.
    RequestTimeout,
    /// The caller gave no valid token.
    Unauthorized,
    /// Too much is under way; try again soon.
    Busy,
    /// This node does not lead, or is about to stop.
    Unavailable,
    /// The command may or may not take effect; repeat it with the same idempotency key.
    OutcomeUnknown,
    /// The disk is full.
    DiskFull,
    /// Something is broken in the server.
    Internal,
}

impl ProblemCode {
    /// The HTTP status, the title, and whether a retry helps.
    pub const fn describe(self) -> (u16, &'static str, bool) {
        match self {
            ProblemCode::MalformedRequest => (400, "the request is malformed", false),
            ProblemCode::InvalidRequest => (422, "the request breaks a rule", false),
            ProblemCode::PathUnknown => (404, "no such path", false),
            ProblemCode::MethodNotAllowed => (405, "the path has no such method", false),
            ProblemCode::SubmissionUnknown => (404, "no such submission", false),
            ProblemCode::SubmissionOver => (409, "the submission is over", false),
            ProblemCode::NothingFailed => (409, "nothing has failed", false),
            ProblemCode::LaneUnknown => (404, "no such lane", false),
            ProblemCode::TaskUnknown => (404, "no such task", false),
            ProblemCode::LaneDraining => (409, "the lane takes no more tasks", false),
            ProblemCode::LaneFull => (429, "the lane is full", true),
            ProblemCode::LaneKeysUnordered => (503, "the lane's tasks are being put in order", true),
            ProblemCode::BranchUnknown => (404, "no such branch", false),
            ProblemCode::BranchExists => (409, "the branch exists", false),
            ProblemCode::CommitUnknown => (404, "no such commit", false),
            ProblemCode::EntryUnknown => (404, "the path leads nowhere", false),
            ProblemCode::TokenStale => (409, "the staging token is not the newest", false),
            ProblemCode::AddressNotGranted => (409, "the address is not granted", false),
            ProblemCode::CommitAborted => (409, "the commit was aborted", false),
            ProblemCode::TooManyCommits => (429, "too many commits wait", true),
            ProblemCode::IdempotencyKeyReused => (422, "the idempotency key was used before", false),
            ProblemCode::TokenInvalid => (409, "the chunk was not reserved with this token", false),
            ProblemCode::StrategyInvalid => (422, "the strategy cannot be served", false),
            ProblemCode::ObjectUnknown => (404, "no such object", false),
            ProblemCode::ObjectExists => (409, "the object exists", false),
            ProblemCode::DigestMismatch => (400, "the bytes are not those that were announced", false),
            ProblemCode::PreconditionFailed => (412, "the condition does not hold", false),
            ProblemCode::RangeUnsatisfiable => (416, "the range is beyond the end", false),
            ProblemCode::BodyTooLarge => (413, "the body is too large", false),
            ProblemCode::ContentTypeWrong => (415, "the content type is wrong", false),
            ProblemCode::RequestTimeout => (408, "the request came too slowly", true),
            ProblemCode::Unauthorized => (401, "a token is needed", false),
            ProblemCode::Busy => (429, "too much is under way", true),
            ProblemCode::Unavailable => (503, "not available now", true),
            ProblemCode::OutcomeUnknown => (504, "the outcome is not known", true),
            ProblemCode::DiskFull => (507, "the disk is full", true),
            ProblemCode::Internal => (500, "the server has a fault", true),
        }
    }

    /// The code's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            ProblemCode::MalformedRequest => "malformed_request",
            ProblemCode::InvalidRequest => "invalid_request",
            ProblemCode::PathUnknown => "path_unknown",
            ProblemCode::MethodNotAllowed => "method_not_allowed",
            ProblemCode::SubmissionUnknown => "submission_unknown",
            ProblemCode::SubmissionOver => "submission_over",
            ProblemCode::NothingFailed => "nothing_failed",
            ProblemCode::LaneUnknown => "lane_unknown",
            ProblemCode::LaneDraining => "lane_draining",
            ProblemCode::LaneFull => "lane_full",
            ProblemCode::LaneKeysUnordered => "lane_keys_unordered",
            ProblemCode::TaskUnknown => "task_unknown",
            ProblemCode::BranchUnknown => "branch_unknown",
            ProblemCode::BranchExists => "branch_exists",
            ProblemCode::CommitUnknown => "commit_unknown",
            ProblemCode::EntryUnknown => "entry_unknown",
            ProblemCode::TokenStale => "token_stale",
            ProblemCode::AddressNotGranted => "address_not_granted",
            ProblemCode::CommitAborted => "commit_aborted",
            ProblemCode::TooManyCommits => "too_many_commits",
            ProblemCode::IdempotencyKeyReused => "idempotency_key_reused",
            ProblemCode::TokenInvalid => "token_invalid",
            ProblemCode::StrategyInvalid => "strategy_invalid",
            ProblemCode::ObjectUnknown => "object_unknown",
            ProblemCode::ObjectExists => "object_exists",
            ProblemCode::DigestMismatch => "digest_mismatch",
            ProblemCode::PreconditionFailed => "precondition_failed",
            ProblemCode::RangeUnsatisfiable => "range_unsatisfiable",
            ProblemCode::BodyTooLarge => "body_too_large",
            ProblemCode::ContentTypeWrong => "content_type_wrong",
            ProblemCode::RequestTimeout => "request_timeout",
            ProblemCode::Unauthorized => "unauthorized",
            ProblemCode::Busy => "busy",
            ProblemCode::Unavailable => "unavailable",
            ProblemCode::OutcomeUnknown => "outcome_unknown",
            ProblemCode::DiskFull => "disk_full",
            ProblemCode::Internal => "internal",
        }
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
