//! Open: creating lanes, and changing what is said of them.

use super::key_order::KeyOrder;
use super::limiting::LaneLimits;
use super::state::{LaneRow, LanesState};
use crate::entry::{Applied, Refusal};
use crate::limits::{LANE_NAME_BYTES_MAX, LANES_MAX};
use crate::tables::Tables;
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// See [`Command::SetLane`](crate::entry::Command::SetLane).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SetLane {
    /// The lane's name.
    #[n(0)]
    pub name: String,
    /// Whether it is created if there is none.
    #[n(1)]
    pub may_create: bool,
    /// Whether anything of it is handed out; none leaves it as it is.
    #[n(2)]
    pub is_paused: Option<bool>,
    /// Whether it takes no more tasks; none leaves it as it is.
    #[n(3)]
    pub is_draining: Option<bool>,
    /// A lane that is created is without the order of each key's own tasks until something needs it. Entries of earlier builds do not
    /// say so: their lanes keep it from the beginning.
    #[n(4)]
    #[cbor(default)]
    pub without_key_order: bool,
}

/// Why a name is no lane's, as a sentence that says what to do.
pub fn problem_of_name(name: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=LANE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    (!is_name).then(|| {
        format!(
            "a lane's name has 1 to {LANE_NAME_BYTES_MAX} letters of a to z, A to Z, digits, `.`, `_` and `-`"
        )
    })
}

impl SetLane {
    /// Why it is not to be written into the log, as a sentence that says what to do. Logs of earlier builds may hold it, and then it applies:
    /// what was added to such a lane is not to be lost.
    pub fn problem(&self) -> Option<String> {
        if self.may_create { problem_of_step(&self.name) } else { None }
    }
}

/// Why a lane of this name cannot be reached by a path, as a sentence that says what to do.
pub fn problem_of_step(name: &str) -> Option<String> {
    let is_step = matches!(name, "." | "..");
    is_step.then(|| {
        "a lane is not called `.` or `..`, which are steps in a path: clients leave them out of it, and would not reach the lane; use \
         another name"
            .into()
    })
}

/// Applies it.
pub(crate) fn set_lane(state: &mut LanesState, tables: &mut dyn Tables, at: At, it: &SetLane) -> Applied {
    if let Some(problem) = problem_of_name(&it.name) {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let row = match state.by_name(&it.name) {
        Some(lane) => lane.row().clone(),
        None if !it.may_create => return Applied::refused(Refusal::LaneUnknown { lane: it.name.clone() }),
        None if state.len() >= LANES_MAX => {
            let problem =
                format!("there are {LANES_MAX} lanes; use keys within a lane to tell tenants apart");
            return Applied::refused(Refusal::Malformed { problem });
        }
        None => LaneRow {
            number: state.next_number(),
            created_at: at,
            is_paused: false,
            is_draining: false,
            weights: BTreeMap::new(),
            limits: LaneLimits::default(),
            key_order: if it.without_key_order { KeyOrder::Absent } else { KeyOrder::Kept },
        },
    };

    // Nothing below can be refused.
    let row = LaneRow {
        is_paused: it.is_paused.unwrap_or(row.is_paused),
        is_draining: it.is_draining.unwrap_or(row.is_draining),
        ..row
    };
    state.set_lane(tables, &it.name, row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn creates(name: &str) -> SetLane {
        SetLane {
            name: name.into(),
            may_create: true,
            is_paused: None,
            is_draining: None,
            without_key_order: true,
        }
    }

    #[test]
    fn a_step_of_a_path_is_no_new_lanes_name_but_one_that_is_there_is_changed_all_the_same() {
        for name in [".", ".."] {
            assert!(creates(name).problem().is_some_and(|problem| problem.contains("steps in a path")));
            assert_eq!(SetLane { may_create: false, ..creates(name) }.problem(), None);
            assert_eq!(problem_of_name(name), None, "logs of earlier builds apply as they did");
        }
        assert_eq!(["...", ".a", "a."].map(|name| creates(name).problem()), [const { None }; 3]);
    }
}
