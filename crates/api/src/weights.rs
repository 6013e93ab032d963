//! The HTTP interface's bodies of weights: how much of the work each value of a field gets by `Fair`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The weights of a field's values; those that are not named have 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WeightsInfo {
    /// The metadata field.
    pub field: String,
    /// Value, as text, and weight.
    pub weights: BTreeMap<String, u32>,
}

/// The weights of every field that has some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WeightsList {
    /// In the order of the fields' names.
    pub fields: Vec<WeightsInfo>,
}

/// `PATCH /v1/weights/{field}`: new weights of values. Values that are not named keep theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WeighRequest {
    /// Value, as text, and weight from 1 to 1,000,000; `null` puts a value back to 1.
    pub weights: BTreeMap<String, Option<u32>>,
}
