//! Limiting: how much of a lane, of a tenant and of a key may be handed out at a time.
//!
//! Limits are part of what is said of a lane; the leader's `meters` hold them.

use super::key_order::KeyOrder;
use super::levels::is_tenant;
use super::state::{Lane, LanesState};
use crate::entry::{Applied, Refusal};
use crate::limits::{
    LANE_BURST_MAX, LANE_IN_FLIGHT_MAX, LANE_KEY_BYTES_MAX, LANE_LIMITS_MAX, LANE_RATE_MILLI_MAX,
};
use crate::tables::Tables;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// How often something may happen: so often in the long run, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Rate {
    /// In thousandths a second.
    #[n(0)]
    pub milli_per_second: u64,
    /// So many at once after a pause.
    #[n(1)]
    pub burst: u32,
}

impl Rate {
    /// The rate of so many a second; a refusal is a sentence that says what to do.
    pub fn of(per_second: f64, burst: Option<u32>) -> Result<Rate, String> {
        let milli = (per_second * 1_000.0).round();
        let problem = || {
            let most = LANE_RATE_MILLI_MAX / 1_000;
            format!("a rate is from 0.001 to {most} a second, with a burst of 1 to {LANE_BURST_MAX}")
        };
        #[expect(clippy::cast_precision_loss, reason = "the largest rate is exact")]
        if !(1.0..=LANE_RATE_MILLI_MAX as f64).contains(&milli) {
            return Err(problem());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the range")]
        let rate = Rate { milli_per_second: milli as u64, burst: burst.unwrap_or(1) };
        if rate.is_one() { Ok(rate) } else { Err(problem()) }
    }

    fn is_one(self) -> bool {
        (1..=LANE_RATE_MILLI_MAX).contains(&self.milli_per_second)
            && (1..=LANE_BURST_MAX).contains(&self.burst)
    }
}

/// How much may be handed out at a time. Nothing said is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Limit {
    /// Tasks that are out at the same time; 0 hands out nothing.
    #[n(0)]
    pub in_flight: Option<u32>,
    /// Hand-outs over time.
    #[n(1)]
    pub rate: Option<Rate>,
}

impl Limit {
    /// Whether it limits nothing.
    pub const fn is_none(&self) -> bool {
        self.in_flight.is_none() && self.rate.is_none()
    }

    fn problem(&self) -> Option<String> {
        if self.in_flight.is_some_and(|most| most > LANE_IN_FLIGHT_MAX) {
            return Some(format!(
                "a limit of tasks in flight is at most {LANE_IN_FLIGHT_MAX}; say none for no limit"
            ));
        }
        let is_bad = self.rate.is_some_and(|rate| !rate.is_one());
        is_bad.then(|| format!("a rate is positive, and its burst from 1 to {LANE_BURST_MAX}"))
    }
}

/// The limits of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct LaneLimits {
    /// Of all its tasks together.
    #[n(0)]
    pub lane: Limit,
    /// Of each key that has no limit by its name.
    #[n(1)]
    pub each_key: Limit,
    /// Of each tenant that has no limit by its name: all its users together.
    #[n(2)]
    pub each_tenant: Limit,
    /// Of keys and tenants, by name; a tenant's ends with a slash.
    #[n(3)]
    pub named: BTreeMap<String, Limit>,
}

impl LaneLimits {
    /// The limit of a key or tenant.
    pub fn of(&self, name: &str) -> Limit {
        let each = if is_tenant(name) { self.each_tenant } else { self.each_key };
        self.named.get(name).copied().unwrap_or(each)
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && [self.lane, self.each_key, self.each_tenant].iter().all(Limit::is_none)
    }

    /// Whether anything limits tasks in flight.
    pub fn has_in_flight(&self) -> bool {
        let all = [self.lane, self.each_key, self.each_tenant];
        all.iter().chain(self.named.values()).any(|limit| limit.in_flight.is_some())
    }
}

/// What a limit is for.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Scope {
    /// All tasks of the lane together.
    #[n(0)]
    Lane,
    /// Each key that has no limit by its name.
    #[n(1)]
    EachKey,
    /// Each tenant that has no limit by its name.
    #[n(2)]
    EachTenant,
    /// A key, or a tenant, whose name ends with a slash.
    #[n(3)]
    Named(#[n(0)] String),
}

/// A limit that is set, or none if it is lifted.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SetLimit {
    /// What it is for.
    #[n(0)]
    pub scope: Scope,
    /// The limit.
    #[n(1)]
    pub limit: Option<Limit>,
}

impl SetLimit {
    /// Whether it limits tasks in flight.
    pub fn is_in_flight(&self) -> bool {
        self.limit.is_some_and(|limit| limit.in_flight.is_some())
    }

    /// Whether the tasks of single keys are held up by it: then the lane has to keep them in order.
    pub fn is_of_keys(&self) -> bool {
        let is_of_keys = match &self.scope {
            Scope::EachKey => true,
            Scope::Named(name) => !is_tenant(name),
            Scope::Lane | Scope::EachTenant => false,
        };
        is_of_keys && self.limit.is_some_and(|limit| !limit.is_none())
    }
}

/// See [`Command::LimitLane`](crate::entry::Command::LimitLane).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LimitLane {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// What is set; everything else stays as it is.
    #[n(1)]
    pub set: Vec<SetLimit>,
}

impl LimitLane {
    /// Why the lane does not take them as it is now, as a sentence that says what to do.
    pub fn problem(&self, lane: &Lane) -> Option<String> {
        let named = &lane.row().limits.named;
        // Of one that is named twice the last one counts.
        let mut names: BTreeMap<&str, bool> = BTreeMap::new();
        for SetLimit { scope, limit } in &self.set {
            if let Some(problem) = limit.and_then(|limit| limit.problem()) {
                return Some(problem);
            }
            let Scope::Named(name) = scope else { continue };
            if name.len() > LANE_KEY_BYTES_MAX {
                return Some(format!("a key has at most {LANE_KEY_BYTES_MAX} bytes"));
            }
            names.insert(name, limit.is_some());
        }
        let of_others = named.keys().filter(|name| !names.contains_key(name.as_str())).count();
        let count = of_others + names.values().filter(|is_limited| **is_limited).count();
        (count > LANE_LIMITS_MAX).then(|| {
            format!(
                "at most {LANE_LIMITS_MAX} keys of a lane have a limit of their own; set one for each key instead"
            )
        })
    }
}

/// Applies it.
pub(crate) fn limit_lane(state: &mut LanesState, tables: &mut dyn Tables, it: LimitLane) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane });
    };
    if let Some(problem) = it.problem(lane) {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let mut row = lane.row().clone();
    if it.set.iter().any(SetLimit::is_of_keys) && !row.key_order.is_kept() {
        if lane.waiting() > 0 {
            return Applied::refused(Refusal::KeysUnordered { lane: it.lane });
        }
        row.key_order = KeyOrder::Kept;
    }

    // Nothing below can be refused.
    let limits = &mut row.limits;
    for SetLimit { scope, limit } in it.set {
        match scope {
            Scope::Lane => limits.lane = limit.unwrap_or_default(),
            Scope::EachKey => limits.each_key = limit.unwrap_or_default(),
            Scope::EachTenant => limits.each_tenant = limit.unwrap_or_default(),
            Scope::Named(name) => match limit {
                Some(limit) => drop(limits.named.insert(name, limit)),
                None => drop(limits.named.remove(&name)),
            },
        }
    }
    state.set_lane(tables, &it.lane, row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_by_name_goes_before_that_of_each_and_tenants_are_no_keys() {
        let of = |most| Limit { in_flight: Some(most), rate: None };
        let limits = LaneLimits {
            lane: Limit::default(),
            each_key: of(1),
            each_tenant: of(2),
            named: [("acme".to_owned(), of(3)), ("acme/".to_owned(), of(4))].into(),
        };
        let named =
            ["bob", "acme", "acme/", "zeta/", "acme/bob"].map(|name| limits.of(name).in_flight.unwrap());
        assert_eq!(named, [1, 3, 4, 2, 1]);
        assert!(limits.has_in_flight() && !limits.is_empty() && LaneLimits::default().is_empty());
    }

    #[test]
    fn a_rate_is_positive_and_finite() {
        assert_eq!(Rate::of(2.5, None), Ok(Rate { milli_per_second: 2_500, burst: 1 }));
        for (rate, burst) in
            [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (f64::INFINITY, 1), (1e-9, 1), (1e9, 1), (1.0, 0)]
        {
            let problem = Rate::of(rate, Some(burst)).unwrap_err();
            assert!(problem.contains("from 0.001 to 1000000 a second"), "{problem}");
        }
    }
}
