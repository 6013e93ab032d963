//! The HTTP interface's bodies of overview: the queue in numbers, for people who look at all of it at once.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::batch::submissions::MetaValue;

/// `GET /v1/overview`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OverviewQuery {
    /// A metadata field, to be shown value by value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// How many values, and how many limits, at most; 20 if not given, 200 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The queue in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewInfo {
    /// The server's version.
    pub version: String,
    /// When this was seen, in milliseconds; only differences mean something.
    pub at_ms: u64,
    /// Since when the totals count, on the same clock. Another value means that the server was started anew.
    pub since_ms: u64,
    /// Submissions that run.
    pub submissions_running: u64,
    /// Where their chunks are.
    pub chunks: QueueChunks,
    /// Tasks of all lanes.
    #[serde(default)]
    pub tasks: QueueTasks,
    /// What has happened to submissions and their chunks since the server started. These never go back.
    pub totals: TotalsInfo,
    /// The consumers.
    pub consumers: ConsumersInfo,
    /// The strategies in use.
    pub strategies: StrategiesInfo,
    /// The metadata fields that submissions in the queue have, or that strategies in use name.
    pub fields: Vec<FieldInfo>,
    /// The field that was asked for, value by value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<FieldOverview>,
    /// The limits that hold something back now.
    pub limits: LimitsInfo,
}

/// Where the chunks of running submissions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueChunks {
    /// Could be handed out now.
    pub ready: u64,
    /// In work.
    pub reserved: u64,
    /// Wait for a retry.
    pub delayed: u64,
    /// Would be ready if their submissions were not paused.
    pub paused: u64,
}

/// Where the tasks of lanes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueTasks {
    /// Wait for a consumer or are with one.
    pub waiting: u64,
    /// Of these, in work.
    pub reserved: u64,
    /// Are not due yet.
    pub delayed: u64,
    /// Have failed for good.
    pub dead: u64,
}

/// What has happened since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TotalsInfo {
    /// Submissions that came in.
    pub submitted: u64,
    /// Their chunks.
    pub submitted_chunks: u64,
    /// Submissions that ended.
    pub ended: u64,
    /// Chunks handed out.
    pub handed_out: u64,
    /// Chunks done.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
}

/// The consumers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConsumersInfo {
    /// How many are connected. Who only adds tasks is none.
    pub connected: u64,
    /// Reserve requests that wait for work.
    pub waiting: u64,
    /// Chunks that callers without a session work on.
    pub reserved_over_http: u64,
    /// Those with the most chunks in work.
    pub busiest: Vec<ConsumerInfo>,
    /// How many more are connected.
    pub more: u64,
    /// Whether more chunks are in work than were counted, so that `reserved` may be too small.
    pub cut: bool,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConsumerInfo {
    /// Tells consumers of the same name apart, as long as they are connected.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its chunks in work.
    pub reserved: u64,
    /// Chunks handed to it since it is connected.
    pub handed_out: u64,
    /// Whether it waits for work.
    pub waiting: bool,
    /// The strategy it reserved with last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
}

/// The strategies in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StrategiesInfo {
    /// Views that keep them in order.
    pub views: u64,
    /// Those that the most reserve requests wait for.
    pub items: Vec<StrategyInfo>,
    /// How many more there are.
    pub more: u64,
}

/// A strategy in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StrategyInfo {
    /// The strategy.
    pub strategy: String,
    /// Reserve requests that wait for what it gives.
    pub waiting: u64,
    /// Views that it uses; strategies share them.
    pub views: u64,
    /// Whether some of them are still being built.
    pub building: bool,
}

/// A metadata field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldInfo {
    /// Its name.
    pub name: String,
    /// How many different values of it submissions in the queue have.
    pub values: u64,
    /// Whether a strategy in use limits its values or has turns between them.
    pub in_use: bool,
}

/// A metadata field, value by value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldOverview {
    /// Its name.
    pub name: String,
    /// Whether a strategy in use has turns between its values.
    pub fair: bool,
    /// The values with the most chunks ready and in work.
    pub values: Vec<ValueInfo>,
    /// How many more have work.
    pub more: u64,
    /// Whether there are more values than were looked at.
    pub cut: bool,
    /// Chunks handed out since the queue knows the field, of submissions with it and without it: what shares are parts of.
    pub handed_out: u64,
}

/// A value of a metadata field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueInfo {
    /// The value; none for submissions without the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<MetaValue>,
    /// Submissions with ready chunks.
    pub submissions: u64,
    /// Their ready chunks.
    pub ready: u64,
    /// Chunks in work.
    pub reserved: u64,
    /// Chunks handed out as long as the queue has known the value without a break.
    pub handed_out: u64,
    /// Its weight in turns.
    pub weight: u32,
    /// What part of the work it is entitled to by weight, among the values that have some; none if not all were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<f64>,
}

/// The limits that hold something back now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitsInfo {
    /// Those with the most submissions behind them.
    pub items: Vec<LimitReachedInfo>,
    /// How many more there are.
    pub more: u64,
    /// Whether more values are in work than were looked at.
    pub cut: bool,
    /// After a restart, for how many milliseconds at most hard limits let nothing out, since work of an earlier leadership may
    /// be under way; none when they let out what they allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holding_ms: Option<u64>,
}

/// A value that has reached a limit, with work waiting behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitReachedInfo {
    /// The field.
    pub field: String,
    /// The value.
    #[schema(value_type = Object)]
    pub value: MetaValue,
    /// Its chunks in work.
    pub reserved: u64,
    /// How many may be.
    pub max: u64,
    /// Whether the limit is hard (`MaxSimultaneous`) or lets others go first (`PreferDistinct`).
    pub hard: bool,
    /// Ready submissions that wait behind it.
    pub submissions: u64,
}
