//! The keys of a lane as people see them: those with the most tasks, or one that is asked for.

use super::Service;
use super::lane_look::blocks_of;
use crate::limits::{LANE_KEYS_LOOKED_AT_ONCE, LANE_KEYS_SHOWN};
use std::collections::BTreeSet;
use windlass_api::lanes::{LaneDetails, LaneKeyDetails, LaneQuery, LaneShares};
use windlass_core::batch::reserver::Reserver;
use windlass_core::lanes::levels::{LaneNumber, is_tenant, tenant_of};
use windlass_core::lanes::ranks::Rank;
use windlass_core::lanes::shares::{KeyRow, Shares};
use windlass_core::lanes::state::Lane;
use windlass_core::time::At;

/// Where to go on among the keys of a lane: a priority, and the last key of it that was looked at.
type Cursor = (u8, Option<Box<str>>);

impl Service {
    /// The keys that are to be shown of a lane.
    pub(super) fn keys_of_lane(&self, lane: &str, query: &LaneQuery) -> Vec<LaneKeyDetails> {
        if let Some(key) = &query.key {
            let keys = self.order().read(|machine| Some(keys_named(machine.lanes().by_name(lane)?, key)));
            let mut keys = keys.unwrap_or_default();
            if is_tenant(key) {
                self.add_users(&mut keys, lane, key);
            }
            return keys;
        }
        self.busiest_of(lane, None, query.keys.unwrap_or(LANE_KEYS_SHOWN))
    }

    /// Those with the most tasks of all keys and tenants, or of the users of a tenant.
    fn busiest_of(&self, lane: &str, tenant: Option<&str>, shown: usize) -> Vec<LaneKeyDetails> {
        let mut busiest = Vec::new();
        let mut cursor = (shown > 0).then_some((0, None));
        // Some at a time: nobody else is to wait until all are looked at.
        while let Some(from) = cursor {
            cursor = self.order().read(|machine| {
                look_at_some(machine.lanes().by_name(lane)?, tenant, from, shown, &mut busiest)
            });
            keep_busiest(&mut busiest, shown);
        }
        busiest
    }

    /// Behind what is said of a tenant in each priority, its busiest users there.
    fn add_users(&self, keys: &mut Vec<LaneKeyDetails>, lane: &str, tenant: &str) {
        let mut users = self.busiest_of(lane, Some(tenant), LANE_KEYS_SHOWN);
        for nth in (0..keys.len()).rev() {
            let priority = keys[nth].priority;
            let of_priority = users.extract_if(.., |user| user.priority == priority);
            let of_priority: Vec<LaneKeyDetails> = of_priority.collect();
            keys.splice(nth + 1..nth + 1, of_priority);
        }
    }
}

/// Looks at some keys of a priority, or users of a tenant there; gives where to go on.
fn look_at_some(
    lane: &Lane,
    tenant: Option<&str>,
    (priority, after): Cursor,
    shown: usize,
    busiest: &mut Vec<LaneKeyDetails>,
) -> Option<Cursor> {
    let (found, rank) = lane.ranks().find(|(it, _)| *it >= priority)?;
    let after = after.filter(|_| found == priority);
    let Some((shares, entitled)) = shares_of(rank, tenant) else {
        return Some((found.checked_add(1)?, None));
    };
    let mut keys: Vec<(&str, &KeyRow)> =
        shares.iter_after(after.as_deref()).take(LANE_KEYS_LOOKED_AT_ONCE).collect();
    let last = (keys.len() == LANE_KEYS_LOOKED_AT_ONCE).then(|| keys.last().map(|(key, _)| (*key).into()));
    keys.retain(|(_, row)| row.waiting > 0);
    let most = keys.len().min(shown);
    if most > 0 {
        keys.select_nth_unstable_by(most - 1, |a, b| b.1.waiting.cmp(&a.1.waiting));
    }
    let all = shares.weight_milli();
    busiest.extend(keys[..most].iter().map(|(key, row)| key_of(key, found, row, entitled * part(row, all))));
    match last.flatten() {
        Some(last) => Some((found, Some(last))),
        None => Some((found.checked_add(1)?, None)),
    }
}

/// Those who share a rank, or what a tenant gets, and what they are entitled to together, of 1.
fn shares_of<'r>(rank: &'r Rank, tenant: Option<&str>) -> Option<(&'r Shares, f64)> {
    let Some(tenant) = tenant else { return Some((rank.shares(), 1.0)) };
    let entitled = part(rank.shares().get(tenant)?, rank.shares().weight_milli());
    Some((rank.tenant(tenant)?.users(), entitled))
}

fn keep_busiest(keys: &mut Vec<LaneKeyDetails>, most: usize) {
    keys.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.key.cmp(&b.key)));
    keys.truncate(most);
}

/// A key, user or tenant in each priority where it is known. If it has nothing anywhere, that is said.
fn keys_named(lane: &Lane, key: &str) -> Vec<LaneKeyDetails> {
    let mut keys: Vec<LaneKeyDetails> =
        lane.ranks().rev().filter_map(|(priority, rank)| key_of_rank(rank, priority, key)).collect();
    if keys.is_empty() {
        keys.push(key_of(key, 0, &KeyRow::default(), 0.0));
    }
    // One that has nothing goes by the weight of its name when it gets something.
    if let Some(weight) = lane.row().weight_of(key) {
        keys.iter_mut().filter(|it| it.waiting == 0).for_each(|it| it.weight = weight.as_f64());
    }
    keys
}

fn key_of_rank(rank: &Rank, priority: u8, key: &str) -> Option<LaneKeyDetails> {
    let (shares, entitled) = shares_of(rank, tenant_of(key).filter(|tenant| *tenant != key))?;
    let row = shares.get(key)?;
    Some(key_of(key, priority, row, entitled * part(row, shares.weight_milli())))
}

/// What a key is entitled to, of 1, among those who share with it.
#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn part(row: &KeyRow, all_milli: u64) -> f64 {
    if all_milli == 0 || row.waiting == 0 {
        return 0.0;
    }
    f64::from(row.weight().as_milli()) / all_milli as f64
}

fn key_of(key: &str, priority: u8, row: &KeyRow, entitled: f64) -> LaneKeyDetails {
    LaneKeyDetails {
        key: key.into(),
        priority,
        waiting: row.waiting.into(),
        weight: row.weight().as_f64(),
        entitled,
        shares: LaneShares::default(),
        blocked_by: Vec::new(),
    }
}

/// What keys got lately, and what is in their way.
pub(super) fn add_usage(
    details: &mut LaneDetails,
    (reserver, lane): (&Reserver, LaneNumber),
    query: &LaneQuery,
    now: At,
    held_until: Option<At>,
) {
    let Some((usage, worst_lag)) = reserver.desk().usage(lane) else { return };
    details.worst_lag = worst_lag;
    let mut known: BTreeSet<(u8, String)> = BTreeSet::new();
    known.extend(details.busiest.iter().filter(|it| it.waiting > 0).map(|it| (it.priority, it.key.clone())));
    let named = query.key.as_deref();
    // Users of a tenant are seen by its name.
    let is_named = |key: &str| named.map_or(tenant_of(key).is_none() || is_tenant(key), |named| named == key);
    let is_meant = |priority, key: &str| is_named(key) && !known.contains(&(priority, key.to_owned()));
    let shown = query.keys.unwrap_or(LANE_KEYS_SHOWN);
    let others = usage.largest(shown.saturating_sub(known.len()), now, is_meant);
    // What is named is said to have nothing, if it has, where it got something.
    if !others.is_empty() {
        details.busiest.retain(|it| it.waiting > 0);
    }
    let weights = &details.weights;
    details.busiest.extend(others.iter().map(|(priority, key)| {
        let it = key_of(key, *priority, &KeyRow::default(), 0.0);
        LaneKeyDetails { weight: weights.get(&**key).copied().unwrap_or(it.weight), ..it }
    }));
    let keys: Vec<&str> = details.busiest.iter().map(|it| it.key.as_str()).collect();
    let blocks = blocks_of(reserver, lane, &keys, now, held_until);
    for (key, blocked_by) in details.busiest.iter_mut().zip(blocks) {
        let [minutes_1, minutes_5, minutes_15] = usage.share_of(key.priority, &key.key, now);
        key.shares = LaneShares { minutes_1, minutes_5, minutes_15 };
        key.blocked_by = blocked_by;
    }
}
