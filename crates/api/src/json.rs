//! The HTTP interface's bodies. Unknown fields are refused, so that a misspelt setting is never ignored.

use crate::blob::Blob;
use crate::branches::{CommitOutcome, OutputInfo, OutputOfChunk};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use utoipa::openapi::schema::{Object, OneOfBuilder, Type};
use utoipa::{IntoParams, ToSchema};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{MetaValue, OnFailure, SubmissionState};
use windlass_core::ids::{ChunkIndex, SubmissionId};
use windlass_core::limits::STRATEGY_DEPTH_MAX;
use windlass_core::time::At;

/// What is wrong with a JSON text, as a sentence.
pub fn detail_of(error: &serde_json::Error) -> String {
    let detail = error.to_string();
    if detail.starts_with("recursion limit exceeded") {
        return format!("this nests too deeply; a strategy nests at most {STRATEGY_DEPTH_MAX} deep");
    }
    detail
}

/// A point in time as RFC 3339 text in UTC.
pub fn time_text(at: At) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at.as_ms());
    humantime::format_rfc3339_millis(time).to_string()
}

/// `POST /v1/submissions`: hands in work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The number of chunks; 1 if there is a payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u64>,
    /// Chunk i's bytes are the object `prefix/i`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The bytes of the only chunk, instead of a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Blob>,
    /// What strategies and searches go by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// For `CustomPriority`: higher goes first.
    #[serde(default)]
    pub priority: i64,
    /// Handed to every consumer as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Blob>,
    /// How often a chunk may be tried; 5 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// How long the first retry waits; each further one waits twice as long. 1000 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
    /// When a chunk is out of attempts: `stop` (the rest is skipped) or `continue`. `stop` if not given, unless the output is
    /// committed without failed chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub on_failure: Option<OnFailure>,
    /// Where its outputs go, all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputInfo>,
}

/// The answer to a submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmitResponse {
    /// The new submission's id, or that of the first request with this idempotency key.
    #[schema(value_type = String)]
    pub id: SubmissionId,
}

/// How far a submission's chunks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkProgress {
    /// All of them.
    pub total: u64,
    /// Done.
    pub done: u64,
    /// Out of attempts.
    pub failed: u64,
    /// Left when the submission ended without them.
    pub skipped: u64,
}

/// A submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionInfo {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SubmissionId,
    /// `running`, `completed`, `failed` or `cancelled`.
    #[schema(value_type = String)]
    pub state: SubmissionState,
    /// Whether it runs and nothing more of it is handed out.
    #[serde(default)]
    pub paused: bool,
    /// How far it is.
    pub chunks: ChunkProgress,
    /// Attempts that failed, in all.
    pub failures: u64,
    /// How often its failed chunks were given another round.
    pub rounds: u32,
    /// Its metadata.
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// Its priority.
    pub priority: i64,
    /// Where its chunks' bytes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// How often a chunk may be tried.
    pub attempts_max: u32,
    /// How long the first retry waits.
    pub retry_delay_ms: u64,
    /// What becomes of the rest when a chunk is out of attempts.
    #[schema(value_type = String)]
    pub on_failure: OnFailure,
    /// When it came in (RFC 3339, UTC).
    pub submitted_at: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The last failures of its first chunks in trouble.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<TroubleInfo>,
    /// Where its outputs go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputInfo>,
    /// What became of the commit of its outputs, once every chunk is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitOutcome>,
}

/// A chunk that failed and is not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TroubleInfo {
    /// Which chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// How often it failed in this round.
    pub failures: u32,
    /// Why it failed last.
    pub reason: String,
    /// When it failed last.
    pub at: String,
}

/// `GET /v1/submissions`: which submissions to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only those in this state: `running`, `completed`, `failed` or `cancelled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub state: Option<SubmissionState>,
    /// Only those with this metadata: `field:value`, several separated by commas. A value that reads as a whole number or as
    /// `true` or `false` is one; put it in double quotes to mean the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Where to go on: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub cursor: Option<SubmissionId>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `stale` reads what this node knows, without asking the others; the header `windlass-index` says how far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// As of now: everything acknowledged before the request is seen.
    #[default]
    Linearizable,
    /// As of the index in the answer's header.
    Stale,
}

/// Queries that take only the consistency.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadQuery {
    /// `stale` reads what this node knows, without asking the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// A page of submissions, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionPage {
    /// The submissions.
    pub items: Vec<SubmissionInfo>,
    /// The cursor of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next: Option<SubmissionId>,
}

/// `GET /v1/submissions/{id}/wait`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// How long to wait for the end at most; 30000 if not given, 300000 at most. The answer is the submission as it is then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// `GET /v1/submissions/{id}/results`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ResultsQuery {
    /// The first chunk to show; 0 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `stale` reads what this node knows, without asking the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// A page of results, in the order of the chunks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResultPage {
    /// The chunks.
    pub items: Vec<ResultInfo>,
    /// The `from` of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// What became of a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResultInfo {
    /// Which chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// `unsettled`, `done` or `failed`.
    pub state: ResultState,
    /// The output, if it is inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Blob>,
    /// The object that holds the output, if it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_key: Option<String>,
    /// Its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultState {
    /// Waiting or being worked on.
    Unsettled,
    /// Done.
    Done,
    /// Out of attempts.
    Failed,
}

/// The answer to a retry-failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryResponse {
    /// How many chunks are ready again.
    pub chunks: u64,
}

/// `POST /v1/reserve`: asks for chunks to work on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// How many chunks at most; 1 if not given.
    #[serde(default = "one")]
    pub max: usize,
    /// Which ones; `Random` if not given.
    #[serde(default)]
    #[schema(schema_with = strategy_schema)]
    pub strategy: Strategy,
    /// How long to wait for work if there is none; 0 if not given, 60000 at most.
    #[serde(default)]
    pub wait_ms: u64,
    /// How long the reservation holds unless it is extended; 60000 if not given.
    #[serde(default = "minute")]
    pub lease_ms: u64,
}

/// A strategy in the description of the interface: its text, or an object.
pub(crate) fn strategy_schema() -> OneOfBuilder {
    let text = "The text form, as on the command line.";
    let object = "The block's name, and its settings as an object; blocks inside it are strategies too, in either form.";
    OneOfBuilder::new()
        .description(Some("A strategy; docs/strategies.md lists the blocks. Not given, it is `Random`."))
        .item(
            Object::builder()
                .schema_type(Type::String)
                .description(Some(text))
                .examples(["Random", "MaxSimultaneous(company_id, 25%, Fair(company_id, weights(acme=3)))"]),
        )
        .item(
            Object::builder()
                .schema_type(Type::Object)
                .description(Some(object))
                .min_properties(Some(1))
                .max_properties(Some(1))
                .examples([
                    json!({"Fair": {"field": "company_id", "weights": {"acme": 3}, "inner": "OldestFirst"}}),
                ]),
        )
}

fn one() -> usize {
    1
}

fn minute() -> u64 {
    60_000
}

/// The chunks that were handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReserveResponse {
    /// One for each chunk.
    pub reservations: Vec<ReservationInfo>,
}

/// The right to work on a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReservationInfo {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// The chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// Goes back with complete, fail, extend and release.
    pub token: String,
    /// The lane, if it is a task of one: then `submission` is the task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// The task's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The object with the chunk's bytes, if the submission has a prefix, or with the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_key: Option<String>,
    /// The chunk's bytes, if they came inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Blob>,
    /// What the producer sent along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Blob>,
    /// The submission's metadata.
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// Where this attempt puts its output, if it is too large to send along: nobody else writes there.
    pub output_key: String,
    /// The branch that outputs go to, if the submission names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_branch: Option<String>,
    /// When the reservation ends unless it is extended (RFC 3339, UTC).
    pub until: String,
}

/// A chunk with the token of the attempt at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptRef {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// The chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// The reservation's token.
    pub token: String,
}

/// `POST /v1/complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// The chunks that are done.
    pub chunks: Vec<CompletedChunk>,
}

/// One chunk that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletedChunk {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// The chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// The reservation's token.
    pub token: String,
    /// A small output, to be kept with the queue's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Blob>,
    /// Whether the output is in the object store, under the reservation's `output_key`.
    #[serde(default)]
    pub stored: bool,
    /// What goes to the branch that the submission names; the objects are under `output_key/0`, `output_key/1` and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputOfChunk>,
}

/// `POST /v1/fail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    /// The attempts that failed.
    pub chunks: Vec<FailedChunk>,
}

/// One attempt that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailedChunk {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// The chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
    /// The reservation's token.
    pub token: String,
    /// Why, for a person to read.
    pub reason: String,
}

/// `POST /v1/extend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The reservations.
    pub chunks: Vec<AttemptRef>,
    /// How long they hold from now on; 60000 if not given.
    #[serde(default = "minute")]
    pub lease_ms: u64,
}

/// `POST /v1/release`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The reservations to give back unharmed.
    pub chunks: Vec<AttemptRef>,
}

/// What became of each chunk of a request, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettleResponse {
    /// One for each chunk.
    pub chunks: Vec<ChunkVerdict>,
}

/// What became of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChunkVerdict {
    /// The report counts.
    Accepted,
    /// The chunk was done before; nothing changed.
    AlreadyDone,
    /// This failure was counted before; nothing changed.
    AlreadyFailed,
    /// The submission is over; nothing changed.
    SubmissionOver,
    /// The submission has no such chunk.
    NoSuchChunk,
    /// The reservation was lost: the chunk is with another consumer, or ready for one. Nothing changed.
    ReservationLost,
    /// The chunk was never handed out with this token.
    TokenInvalid,
    /// The output is too large to be sent along; the attempt is counted as failed.
    OutputTooLarge,
    /// The outputs for a branch break a rule; the attempt is counted as failed, and its reason says which.
    OutputRefused,
}

/// `GET /v1/events`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only these submissions, separated by commas; all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submissions: Option<String>,
}

/// A change of a submission, as the event stream sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionEvent {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// Where it stands.
    #[schema(value_type = String)]
    pub state: SubmissionState,
    /// How far it is.
    pub chunks: ChunkProgress,
}

/// `GET /v1/status`: how the server is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusInfo {
    /// The server's version.
    pub version: String,
    /// The leadership that holds.
    pub epoch: u32,
    /// The last applied index of the log.
    pub applied_index: u64,
    /// Submissions that run.
    pub submissions_running: usize,
    /// Their chunks that are neither done nor failed.
    pub chunks_unsettled: u64,
    /// Chunks that could be handed out now.
    pub chunks_ready: u64,
    /// Chunks that consumers work on.
    pub chunks_reserved: usize,
    /// Chunks that wait for a retry.
    pub chunks_delayed: usize,
    /// Tasks of lanes that wait for a consumer or are with one.
    #[serde(default)]
    pub tasks_waiting: u64,
    /// Tasks of those that consumers work on.
    #[serde(default)]
    pub tasks_reserved: usize,
    /// Tasks that are not due yet, new ones and retries.
    #[serde(default)]
    pub tasks_delayed: u64,
    /// Tasks that have failed for good.
    #[serde(default)]
    pub tasks_dead: u64,
    /// Consumers that are connected: sessions that have asked for work, or said what they still work on.
    pub consumers: usize,
    /// Reserve requests that wait for work.
    pub waiting: usize,
}
