//! The HTTP interface's bodies of explain: what a strategy would give next and why, and why a submission waits.

use crate::json::strategy_schema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{MetaValue, SubmissionState};
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// `POST /v1/explain`: asks what a strategy would give next. Nothing is handed out or changed by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The strategy, as in a reserve; `Random` if not given.
    #[serde(default)]
    #[schema(schema_with = strategy_schema)]
    pub strategy: Strategy,
    /// A submission, to be told why it is or is not handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub submission: Option<SubmissionId>,
}

/// What a strategy would give next, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExplainResponse {
    /// The strategy as text.
    pub strategy: String,
    /// The next chunk; none if it gives nothing now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextChunk>,
    /// Whether chance decides, so that `next` is an example of what may come.
    pub by_chance: bool,
    /// Why, in a sentence.
    pub why: String,
    /// The strategy, block by block.
    pub part: PartInfo,
    /// What becomes of the submission that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionExplained>,
}

/// A chunk that would be handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextChunk {
    /// The submission.
    #[schema(value_type = String)]
    pub submission: SubmissionId,
    /// The chunk.
    #[schema(value_type = u64)]
    pub chunk: ChunkIndex,
}

/// A block of a strategy, and what it does now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PartInfo {
    /// The block's name.
    pub name: String,
    /// The block with its settings, without what is inside it.
    pub text: String,
    /// Whether the next chunk comes from here.
    pub standing: PartStandingInfo,
    /// What it does, in a sentence.
    pub says: String,
    /// Submissions that it looks at, if that is cheap to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submissions: Option<u64>,
    /// Their ready chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u64>,
    /// What its limit holds back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitInfo>,
    /// Whose turn is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsInfo>,
    /// The blocks inside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub inner: Vec<PartInfo>,
}

/// Whether the next chunk comes from a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartStandingInfo {
    /// It does.
    Gives,
    /// It was asked, and has nothing to give.
    Empty,
    /// Something before it gives, so that it is not asked.
    NotAsked,
    /// It is the same as something before it.
    Repeats,
}

/// A limit, and the values that have reached it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitInfo {
    /// The field.
    pub field: String,
    /// How many chunks of one value may be in work now.
    pub max: u64,
    /// Whether nothing at all may go out, since work of an earlier leadership may be under way.
    pub holding: bool,
    /// Ready submissions behind the values at their limit.
    pub submissions: u64,
    /// The values with the most of them.
    pub saturated: Vec<SaturatedInfo>,
    /// How many more values are at their limit.
    pub more: u64,
    /// Whether more values are in work than were looked at, so that these are the least there can be.
    pub cut: bool,
}

/// A value at its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SaturatedInfo {
    /// The field.
    pub field: String,
    /// The value.
    #[schema(value_type = Object)]
    pub value: MetaValue,
    /// Its chunks in work.
    pub reserved: u64,
    /// How many may be.
    pub max: u64,
    /// Whether none may be for now, since work of an earlier leadership may be under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holding: bool,
    /// Ready submissions that wait behind it.
    pub submissions: u64,
}

/// Turns between the values of a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnsInfo {
    /// The field.
    pub field: String,
    /// How many different values of it are known: of submissions in the queue, and named by strategies in use.
    pub values: u64,
    /// The next turns, if nothing new comes in.
    pub next: Vec<TurnInfo>,
}

/// The turn of a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnInfo {
    /// The value; none for submissions without the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<MetaValue>,
    /// Its weight.
    pub weight: u32,
    /// How far it is ahead of the clock of turns, in chunks of weight 1: whoever is less ahead is sooner.
    pub ahead: f64,
    /// Its ready submissions, if that is cheap to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submissions: Option<u64>,
}

/// Why a submission is or is not handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionExplained {
    /// The submission.
    #[schema(value_type = String)]
    pub id: SubmissionId,
    /// `running`, `completed`, `failed` or `cancelled`.
    #[schema(value_type = String)]
    pub state: SubmissionState,
    /// What holds it back, if anything does.
    pub verdict: VerdictInfo,
    /// Why, in a sentence.
    pub says: String,
    /// Where its chunks are.
    pub chunks: ChunkPlaces,
    /// When the first chunk that waits for a retry is ready again (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// What each way through the strategy makes of it, in the order in which they are tried.
    pub ways: Vec<WayInfo>,
}

/// What holds a submission back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictInfo {
    /// Nothing: it is what comes next, or may be by chance.
    Next,
    /// Nothing but those ahead of it.
    Waits,
    /// Something before the part that takes it gives.
    NotAsked,
    /// A value of it has reached its limit.
    Limited,
    /// No part of the strategy takes it.
    NotMatched,
    /// It is paused.
    Paused,
    /// It has no ready chunk.
    NothingReady,
    /// It is over.
    Over,
}

/// Where a submission's chunks are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkPlaces {
    /// All of them.
    pub total: u64,
    /// Done.
    pub done: u64,
    /// Out of attempts.
    pub failed: u64,
    /// Ready, or ready if it were not paused.
    pub ready: u64,
    /// In work.
    pub reserved: u64,
    /// Waiting for a retry.
    pub delayed: u64,
}

/// What one way through a strategy makes of a submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WayInfo {
    /// The way: the strategy with every choice made.
    pub strategy: String,
    /// What holds the submission back here.
    pub verdict: VerdictInfo,
    /// Why, in a sentence.
    pub says: String,
    /// The limits that it is behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<SaturatedInfo>,
    /// Where it stands, if nothing but others is before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<RankInfo>,
}

/// Where a submission stands on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankInfo {
    /// Its values' turns, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<TurnRankInfo>,
    /// Submissions ahead of it, within the turn of its values if there are turns.
    pub ahead: u64,
    /// Whether there are more than were counted.
    pub more_ahead: bool,
    /// If chance decides: its own ready chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance_chunks: Option<u64>,
    /// If chance decides: all the chunks that it draws from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance_of: Option<u64>,
}

/// How long until a value's turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnRankInfo {
    /// The field.
    pub field: String,
    /// The value; none for submissions without the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<MetaValue>,
    /// Values whose turn comes before.
    pub before: u64,
    /// Whether there are more than were counted.
    pub more_before: bool,
}
