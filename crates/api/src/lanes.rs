//! The HTTP interface's bodies of lanes: fair queues of single tasks.

use crate::blob::Blob;
use crate::bounded;
use crate::numbers;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::openapi::schema::{Object, ObjectBuilder, OneOfBuilder, Ref, Schema, SchemaType, Type};
use utoipa::{IntoParams, ToSchema};
use windlass_core::ids::SubmissionId;
use windlass_core::limits::{LANE_WEIGHTS_MAX, TASKS_PER_ADD_MAX};

/// A lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaneInfo {
    /// Its name.
    pub lane: String,
    /// When it was created (RFC 3339, UTC).
    pub created_at: String,
    /// Nothing of it is handed out.
    pub is_paused: bool,
    /// It takes no more tasks.
    pub is_draining: bool,
    /// Tasks that wait for a consumer or are with one.
    pub waiting: u64,
    /// Tasks of those that are with a consumer.
    pub reserved: u64,
    /// Tasks that are not due yet, new ones and retries.
    pub delayed: u64,
    /// Tasks that have failed for good.
    pub dead: u64,
    /// Tasks ever added.
    pub added: u64,
    /// Tasks ever done.
    pub done: u64,
    /// Keys with tasks that wait.
    pub keys: u64,
}

/// A lane with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaneDetails {
    /// The lane.
    #[serde(flatten)]
    pub lane: LaneInfo,
    /// Its priorities that ever had tasks, the highest first.
    pub priorities: Vec<LanePriorityInfo>,
    /// The keys and tenants with the most tasks that wait, those with the most first, and then those that got the most lately; or the one
    /// that was asked for.
    pub busiest: Vec<LaneKeyDetails>,
    /// Weights of keys and tenants, which go before those that tasks come with.
    #[serde(default)]
    pub weights: BTreeMap<String, f64>,
    /// How much may be handed out at a time.
    #[serde(default)]
    pub limits: LaneLimitsInfo,
    /// Whether each key's own tasks are kept in order, which limits of keys and `relevel` need.
    #[serde(default)]
    pub key_order: KeyOrderInfo,
    /// When the task was added that has waited the longest, of those that are next: of each priority the ready tasks in memory that have
    /// no tenant, and the first ready task of each of the 1,000 tenants that are next (RFC 3339, UTC). Tasks of keys at their limits, and
    /// those further back, may have waited longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_added_at: Option<String>,
    /// How late a task was handed out at worst since this leader began, in strides of its key: 0 is ideal, and what is above 1
    /// was added while that many turns of its key were handed out.
    pub worst_lag: f64,
}

/// Whether a lane keeps each key's own tasks in order. It begins when a key is to be limited, or is given other levels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum KeyOrderInfo {
    /// It does not: nothing has needed it.
    Absent,
    /// The tasks that wait are being put in order.
    Making {
        /// So many are.
        tasks: u64,
    },
    /// It does, as every lane of earlier builds.
    #[default]
    Kept,
}

/// A key or tenant of a lane, and what it gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaneKeyDetails {
    /// The key; a tenant's name ends with a slash.
    pub key: String,
    /// The priority of its tasks, which may be different in another one.
    pub priority: u8,
    /// Its tasks that wait for a consumer or are with one.
    pub waiting: u64,
    /// Its weight, as its last task was charged; that of its name if it has one and nothing waits.
    pub weight: f64,
    /// What it is entitled to, of 1, of what its priority gets: its weight among those of all keys that have tasks there. Those at their
    /// limits count, too; what they leave, the others get.
    pub entitled: f64,
    /// What it got of all that its priority handed out, of 1.
    pub shares: LaneShares,
    /// What keeps its tasks from being handed out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<LaneBlockInfo>,
}

/// A part of what was handed out, of 1: averages in which the past counts for less and less, as in a machine's load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaneShares {
    /// Over one minute.
    pub minutes_1: f64,
    /// Over five minutes.
    pub minutes_5: f64,
    /// Over fifteen minutes.
    pub minutes_15: f64,
}

/// A limit that is in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaneBlockInfo {
    /// The key or tenant whose limit it is; none for that of the lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What kind of limit it is.
    #[serde(default)]
    pub kind: LaneBlockKind,
    /// What it is, as a sentence.
    pub why: String,
    /// When it is over, if that is a question of time (RFC 3339, UTC). If as many tasks are with consumers as may be, or more, when as many
    /// leases on them have ended as make room, if there are so many and none is extended: that is the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_at: Option<String>,
}

/// What has to happen for a limit to let something out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneBlockKind {
    /// As many tasks are with consumers as may be: some have to come back.
    #[default]
    InFlight,
    /// A rate is used up: time has to pass.
    Rate,
    /// Consumers of an earlier leader have to come back, or their time has to pass.
    Held,
}

/// How much may be handed out at a time. Nothing said is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitInfo {
    /// Tasks with consumers at the same time; 0 hands out nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Hand-outs a second in the long run, 0.001 to 1,000,000.
    #[serde(default, serialize_with = "numbers::maybe", skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// So many at once after a pause, with a rate; 1 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// The limits of a lane.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaneLimitsInfo {
    /// Of all its tasks together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<LimitInfo>,
    /// Of each key that has none by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each_key: Option<LimitInfo>,
    /// Of each tenant that has none by its name, all its users together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each_tenant: Option<LimitInfo>,
    /// Of keys and tenants, by name; a tenant's ends with a slash.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, LimitInfo>,
}

/// `PATCH /v1/lanes/{lane}`: sets weights and limits of keys and of the lane.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneChangeRequest {
    /// Keys and their weights, 0.001 to 10,000, for tasks that are added from then on; a tenant's, with a slash at the end, counts at
    /// once. `null` lets a key's tasks go by their own weights again. Keys that are not named keep theirs.
    #[serde(default, serialize_with = "numbers::by_name", skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, Option<f64>>,
    /// Limits; those of which nothing is said stay.
    #[serde(default, skip_serializing_if = "LaneLimitsChange::is_empty")]
    pub limits: LaneLimitsChange,
}

/// Limits that are set, or lifted by `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneLimitsChange {
    /// Of all tasks of the lane together.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LimitInfo>)]
    pub lane: Option<Option<LimitInfo>>,
    /// Of each key that has none by its name.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LimitInfo>)]
    pub each_key: Option<Option<LimitInfo>>,
    /// Of each tenant that has none by its name, all its users together.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LimitInfo>)]
    pub each_tenant: Option<Option<LimitInfo>>,
    /// Of keys and tenants, by name; a tenant's ends with a slash.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(schema_with = limits_by_name_schema)]
    pub named: BTreeMap<String, Option<LimitInfo>>,
}

impl LaneLimitsChange {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == LaneLimitsChange::default()
    }
}

/// What the derived description cannot say: that a value may be `null`.
fn limits_by_name_schema() -> Object {
    let null = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null));
    let limit = Ref::from_schema_name(LimitInfo::name());
    ObjectBuilder::new()
        .description(Some("Of keys and tenants, by name; a tenant's ends with a slash."))
        .additional_properties(Some(Schema::OneOf(OneOfBuilder::new().item(null).item(limit).build())))
        .build()
}

/// Tells `null` apart from nothing.
fn said<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// `POST /v1/lanes/{lane}/relevel`: gives waiting tasks of keys new levels, by the weights that the keys have by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RelevelRequest {
    /// Only these keys, up to 1,000; all that have a weight by their name if nothing is said.
    #[serde(
        default,
        deserialize_with = "bounded::from_json::<_, _, LANE_WEIGHTS_MAX>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub keys: Vec<String>,
    /// Where to go on: the `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// How far a relevel came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RelevelResponse {
    /// Tasks that have got another level by this request.
    pub tasks: u64,
    /// Where to go on, if there is more to do: work is bounded for each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The tasks of one priority in a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LanePriorityInfo {
    /// The priority.
    pub priority: u8,
    /// Tasks that wait for a consumer or are with one.
    pub waiting: u64,
    /// Tasks of those that are with a consumer.
    pub reserved: u64,
    /// Tasks that are not due yet.
    pub delayed: u64,
    /// Tasks that have failed for good.
    pub dead: u64,
    /// Keys and tenants with tasks that wait.
    pub keys: u64,
    /// Keys and tenants of which nothing is handed out because of their limits.
    #[serde(default)]
    pub parked: u64,
    /// A, the ack level: everything up to it is done.
    pub ack_level: Option<String>,
    /// R, the read level: everything up to it is in memory.
    pub read_level: Option<String>,
    /// M, the highest level that was ever given.
    pub max_level: Option<String>,
    /// V, the virtual time: the highest pass that was handed out.
    pub virtual_time: u64,
    /// Tasks in memory that could be handed out at once.
    pub in_memory: u64,
    /// Whether everything there is is in memory.
    pub is_read_to_end: bool,
}

/// A key of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaneKeyInfo {
    /// The key.
    pub key: String,
    /// The priority.
    pub priority: u8,
    /// Its tasks that wait for a consumer or are with one.
    pub waiting: u64,
}

/// A page of lanes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LanePage {
    /// By name.
    pub items: Vec<LaneInfo>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which lanes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LaneListQuery {
    /// Begin behind this name: the `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// So many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// What to show of a lane's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LaneQuery {
    /// Only this one: a key, a user of a tenant, such as `acme/bob`, or a tenant, such as `acme/`, with its busiest users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// So many of those with the most tasks; 20 if nothing is said. With 0 no key is looked at, which costs the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<usize>,
}

/// `POST /v1/lanes/{lane}/tasks`: adds tasks. All of them are in, or none is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddTasksRequest {
    /// The tasks, in order; up to 1,000.
    #[serde(deserialize_with = "bounded::from_json::<_, _, TASKS_PER_ADD_MAX>")]
    pub tasks: Vec<TaskRequest>,
}

/// A task to be added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Whose task it is, at most 64 bytes: keys share the lane by weight. Tasks without one share the empty key. Users of a tenant,
    /// as in `tenant/user`, share what the tenant gets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// From 0.001 to 10,000; a key of weight 2 gets twice as much as one of weight 1, which is the default.
    #[serde(default, serialize_with = "numbers::maybe", skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// From 0, the default, to 9; larger ones go first, whatever their keys.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u8,
    /// What the consumer gets, at most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Blob>,
    /// The object with what the consumer gets, instead of a payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// It is not handed out before this time (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    /// The same, counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// How often it is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// How long its first retry waits; each further one waits twice as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// The tasks that were added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddTasksResponse {
    /// Their ids, in order.
    #[schema(value_type = Vec<String>)]
    pub tasks: Vec<SubmissionId>,
}

/// Tasks of a lane that have failed for good, grouped by what their last attempts said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadTasks {
    /// The largest group first.
    pub groups: Vec<DeadGroup>,
    /// How many tasks were looked at: all, up to a million.
    pub looked_at: u64,
    /// Whether there are more tasks, which were not looked at.
    pub has_more: bool,
    /// Groups of those that were looked at which are not shown: the smallest ones. If there are more than 10,000, some are counted twice.
    #[serde(default)]
    pub groups_left_out: u64,
    /// Tasks that were looked at and are in none of the groups that are shown.
    #[serde(default)]
    pub tasks_left_out: u64,
}

/// Dead tasks with the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadGroup {
    /// What their last attempts said.
    pub reason: String,
    /// How many they are, at least: of more than 10,000 different reasons rare ones are forgotten now and then, and counted anew.
    pub tasks: u64,
    /// Some of them, the oldest first.
    #[schema(value_type = Vec<String>)]
    pub examples: Vec<SubmissionId>,
    /// When the last of them failed (RFC 3339, UTC).
    pub last_at: String,
}

/// `POST /v1/lanes/{lane}/redrive`: tries dead tasks again, as if they had just been added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    /// Only those of which the last attempt's reason begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub tasks: Vec<SubmissionId>,
    /// Where to go on: the `next` of the answer before. What has died since the first of these requests is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// How many tasks are tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RedriveResponse {
    /// The number, of this request.
    pub tasks: u64,
    /// Where to go on, if there is more to do: work is bounded for each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// `GET /v1/lanes/{lane}/tasks/{task}`: where a task stands, and what is ahead of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskExplained {
    /// The task.
    #[schema(value_type = String)]
    pub task: SubmissionId,
    /// Its key.
    pub key: String,
    /// Its priority.
    pub priority: u8,
    /// Where it stands.
    pub standing: TaskStanding,
    /// Why it is not with a consumer, as a sentence.
    pub why: String,
    /// Its level, if it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The virtual time of its priority.
    pub virtual_time: u64,
    /// When it is due, if it is delayed (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// When it was added (RFC 3339, UTC).
    pub added_at: String,
    /// Attempts that have failed, of those that it may have.
    pub failures: u32,
    /// How often it is tried.
    pub attempts_max: u32,
    /// Tasks that go first as things are: all of higher priorities, and those of its own that stand before it. Those with consumers are
    /// not counted, and in its own priority none of keys and tenants at their limits.
    pub ahead: u64,
    /// Whether there are more ahead than were counted: of a queue up to 10,000 tasks are, and a million tenants.
    pub has_more_ahead: bool,
    /// Of those that were counted in its own priority alone, the keys and tenants with the most, up to 20, those with the most first.
    pub ahead_by_key: Vec<LaneKeyInfo>,
    /// Limits that are in its way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<LaneBlockInfo>,
    /// So many tasks of its priority go first at most, whatever the keys that have tasks now add by the weights that they have now, as long
    /// as no limit is in its way and no other key joins; what is given back or fails meanwhile, and goes once more, is not counted. Keys are
    /// looked at some thousand at a time while everything goes on, up to a million: it holds from the time of the answer on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_bound: Option<u64>,
    /// Why nothing is said about that of a task that waits, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_wait_bound: Option<String>,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStanding {
    /// It waits for a consumer.
    Waiting,
    /// A consumer works on it.
    Reserved,
    /// It is not due yet.
    Delayed,
    /// It has failed for good.
    Dead,
}
