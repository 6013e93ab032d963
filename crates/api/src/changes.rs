//! The HTTP interface's bodies of change and of the bulk verbs. Unknown fields are refused, as everywhere.

use crate::problem::ProblemCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use windlass_core::batch::submissions::{MetaValue, OnFailure, SubmissionState};
use windlass_core::ids::SubmissionId;

/// `PATCH /v1/submissions/{id}`: what should be different; what is not named stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// For `CustomPriority`: higher goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Fields to put or to replace; `null` takes a field away. Fields that are not named stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Option<Object>>)]
    pub metadata: BTreeMap<String, Option<MetaValue>>,
    /// Whether nothing more of it is handed out. What is out goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How often a chunk may be tried. A chunk that failed as often before may be tried once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// How long the first retry waits, from the next failure on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
    /// When the next chunk is out of attempts: `stop` (the rest is skipped) or `continue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub on_failure: Option<OnFailure>,
}

/// `POST /v1/submissions/bulk`: one verb for all submissions that a filter names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// Which submissions.
    pub filter: BulkFilter,
    /// What to do with each.
    pub action: BulkAction,
    /// Only count them.
    #[serde(default)]
    pub dry_run: bool,
}

/// Which submissions a bulk verb is for: those for which all that is named holds. It names something, or says `all`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFilter {
    /// Those in this state: `running`, `completed`, `failed` or `cancelled`. If not given, and no ids are: those that the action
    /// can be for, which are the running ones, and for `retry_failed` those with failed chunks that were not cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub state: Option<SubmissionState>,
    /// Those with all of these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// Those with these ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub ids: Option<Vec<SubmissionId>>,
    /// All that the action can be for. Stands alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// What a bulk verb does with each submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// Ends it; its remaining chunks are skipped.
    Cancel,
    /// Gives what failed or was skipped another round of attempts.
    RetryFailed,
    /// Hands out nothing more of it.
    Pause,
    /// Hands it out again.
    Resume,
    /// Says anew what is said of it.
    Change(ChangeRequest),
}

/// What a bulk verb did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkResponse {
    /// Submissions that the filter named.
    pub matched: u64,
    /// Those among them that are now as asked. 0 in a dry run.
    pub changed: u64,
    /// The first of the others, 20 at most, with the reason.
    pub refused: Vec<BulkRefusal>,
    /// Whether they were only counted.
    pub dry_run: bool,
}

/// A submission for which a bulk verb was refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkRefusal {
    /// The submission.
    #[schema(value_type = String)]
    pub id: SubmissionId,
    /// As the verb for one submission would have answered.
    pub code: ProblemCode,
    /// What happened, and what to do.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_action_is_a_name_and_a_change_carries_what_should_be_different() {
        for (json, action) in [
            (json!("cancel"), BulkAction::Cancel),
            (json!("retry_failed"), BulkAction::RetryFailed),
            (json!("pause"), BulkAction::Pause),
            (json!("resume"), BulkAction::Resume),
            (
                json!({"change": {"priority": 3, "metadata": {"a": null, "b": 7}}}),
                BulkAction::Change(ChangeRequest {
                    priority: Some(3),
                    metadata: BTreeMap::from([("a".into(), None), ("b".into(), Some(MetaValue::Integer(7)))]),
                    ..ChangeRequest::default()
                }),
            ),
        ] {
            assert_eq!(serde_json::from_value::<BulkAction>(json.clone()).unwrap(), action);
            assert_eq!(serde_json::to_value(&action).unwrap(), json);
        }
        for wrong in [json!("delete"), json!({"change": {"prio": 1}}), json!({"change": {"paused": "yes"}})] {
            assert!(serde_json::from_value::<BulkAction>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
