//! Weigh: weights of keys that go before those that tasks come with.
//!
//! Invariants
//! - A weight counts for every task that gets its level from then on; levels that are given stay until they are asked to
//!   be given anew (`relevel`). The weight of a tenant counts at once.

use super::levels::{Weight, is_tenant};
use super::state::{Lane, LanesState};
use crate::entry::{Applied, Refusal};
use crate::limits::{LANE_KEY_BYTES_MAX, LANE_WEIGHTS_MAX};
use crate::tables::Tables;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// See [`Command::WeighKeys`](crate::entry::Command::WeighKeys).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct WeighKeys {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// Keys and their weights; none for those that go by their tasks' weights again. Keys that are not named keep theirs.
    #[n(1)]
    pub weights: BTreeMap<String, Option<Weight>>,
}

impl WeighKeys {
    /// Why the lane does not take them as it is now, as a sentence that says what to do.
    pub fn problem(&self, lane: &Lane) -> Option<String> {
        let has_weight = |key: &str| lane.row().weights.contains_key(key);
        let mut count = lane.row().weights.len();
        for (key, weight) in &self.weights {
            if key.len() > LANE_KEY_BYTES_MAX {
                return Some(format!("a key has at most {LANE_KEY_BYTES_MAX} bytes"));
            }
            if let Some(problem) = weight.and_then(Weight::problem) {
                return Some(problem);
            }
            match weight {
                Some(_) => count += usize::from(!has_weight(key)),
                None => count -= usize::from(has_weight(key)),
            }
        }
        (count > LANE_WEIGHTS_MAX).then(|| {
            format!(
                "at most {LANE_WEIGHTS_MAX} keys of a lane have a weight of their own; let tasks carry their weights instead"
            )
        })
    }
}

/// Applies it.
pub(crate) fn weigh_keys(state: &mut LanesState, tables: &mut dyn Tables, it: WeighKeys) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane });
    };
    if let Some(problem) = it.problem(lane) {
        return Applied::refused(Refusal::Malformed { problem });
    }

    // Nothing below can be refused.
    let mut row = lane.row().clone();
    let tenants: Vec<String> = it.weights.keys().filter(|key| is_tenant(key)).cloned().collect();
    for (key, weight) in it.weights {
        match weight {
            Some(weight) => drop(row.weights.insert(key, weight)),
            None => drop(row.weights.remove(&key)),
        }
    }
    let number = row.number;
    let applied = state.set_lane(tables, &it.lane, row);
    for tenant in &tenants {
        state.reweigh_tenant(number, tenant);
    }
    applied
}
