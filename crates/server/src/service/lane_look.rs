//! What is seen of lanes: their depth, their keys and what those get, how far they are read and done.

use super::Service;
use super::batch::page_limit;
use super::lane_keys::add_usage;
use super::lanes::{invalid, unknown_lane};
use std::collections::BTreeMap;
use windlass_api::json::time_text;
use windlass_api::lanes::{
    KeyOrderInfo, LaneBlockInfo, LaneDetails, LaneInfo, LaneLimitsInfo, LaneListQuery, LanePage,
    LanePriorityInfo, LaneQuery, LimitInfo,
};
use windlass_api::problem::Problem;
use windlass_core::lanes::desk::{Desk, RankSeen};
use windlass_core::lanes::key_order::KeyOrder;
use windlass_core::lanes::levels::{LaneNumber, Level, RankName};
use windlass_core::lanes::limiting::{LaneLimits, Limit};
use windlass_core::lanes::listing;
use windlass_core::lanes::meters::Block;
use windlass_core::lanes::ranks::Rank;
use windlass_core::lanes::state::Lane;
use windlass_core::limits::{LANE_KEY_BYTES_MAX, PAGE_ROWS_MAX};
use windlass_core::time::At;

/// What the machine knows of a lane.
struct LaneSeen {
    number: LaneNumber,
    info: LaneInfo,
    ranks: Vec<LanePriorityInfo>,
    weights: BTreeMap<String, f64>,
    limits: LaneLimitsInfo,
    key_order: KeyOrderInfo,
}

impl Service {
    /// A lane as this node knows it.
    pub fn lane(&self, name: &str, query: &LaneQuery) -> Result<LaneDetails, Problem> {
        check(query)?;
        let lane = self.order().read(|machine| machine.lanes().by_name(name).map(lane_seen));
        let LaneSeen { number, mut info, ranks, weights, limits, key_order } =
            lane.ok_or_else(|| unknown_lane(name))?;
        let mut details = LaneDetails {
            lane: info.clone(),
            priorities: ranks,
            busiest: self.keys_of_lane(name, query),
            weights,
            limits,
            oldest_added_at: None,
            key_order,
            worst_lag: 0.0,
        };
        let held_until = self.dispatcher().held_until();
        let mut oldest = None;
        for rank in &mut details.priorities {
            let name = RankName { lane: number, priority: rank.priority };
            let seen = self.dispatcher().look_at_lanes(|desk, _| (desk.look(name), desk.oldest_next(name)));
            let Some((Some(seen), oldest_of_rank)) = seen else { continue };
            add_seen(rank, seen);
            info.reserved += rank.reserved;
            oldest = oldest.into_iter().chain(oldest_of_rank).min();
        }
        self.dispatcher().look_at_lanes(|desk, now| {
            add_usage(&mut details, (desk, number), query, now, held_until);
        });
        details.lane = info;
        details.oldest_added_at = oldest.and_then(|id| {
            let task = self.order().read(|machine| listing::task(machine.tables(), id));
            task.map(|task| time_text(task.added_at))
        });
        Ok(details)
    }

    /// A page of lanes as this node knows them.
    pub fn lanes(&self, query: &LaneListQuery) -> Result<LanePage, Problem> {
        let limit = page_limit(query.limit)?;
        let after = query.cursor.as_deref().unwrap_or("");
        let mut items: Vec<(LaneNumber, LaneInfo)> = self.order().read(|machine| {
            let behind = machine.lanes().all().filter(|lane| lane.name() > after);
            behind.take(limit + 1).map(|lane| (lane.row().number, info_of(lane))).collect()
        });
        let next = (items.len() > limit).then(|| items[limit - 1].1.lane.clone());
        items.truncate(limit);
        let items = items.into_iter().map(|(number, mut info)| {
            let reserved = self.dispatcher().look_at_lanes(|desk, _| desk.out_len_of(number));
            info.reserved = reserved.unwrap_or(0) as u64;
            info
        });
        Ok(LanePage { items: items.collect(), next })
    }

    /// How late a task of each lane was handed out at worst, in strides; nothing is known while this node does not lead.
    pub fn worst_lags(&self) -> Vec<(String, f64)> {
        self.dispatcher().look_at_lanes(|desk, _| desk.worst_lags()).unwrap_or_default()
    }
}

fn check(query: &LaneQuery) -> Result<(), Problem> {
    let problem = match query {
        LaneQuery { key: Some(_), keys: Some(_) } => {
            "`key` names one key, and `keys` says how many are shown; send one of the two".into()
        }
        LaneQuery { key: Some(key), .. } if key.len() > LANE_KEY_BYTES_MAX => {
            format!("`key` has {} bytes; a key has at most {LANE_KEY_BYTES_MAX}", key.len())
        }
        LaneQuery { keys: Some(keys), .. } if *keys > PAGE_ROWS_MAX => {
            format!("`keys` is at most {PAGE_ROWS_MAX}; `key` shows a single one")
        }
        LaneQuery { .. } => return Ok(()),
    };
    Err(invalid(problem))
}

fn lane_seen(lane: &Lane) -> LaneSeen {
    let ranks = lane.ranks().rev().map(|(priority, rank)| priority_of(priority, rank)).collect();
    let weights = lane.row().weights.iter().map(|(key, weight)| (key.clone(), weight.as_f64())).collect();
    let limits = limits_of(&lane.row().limits);
    let key_order = match &lane.row().key_order {
        KeyOrder::Kept => KeyOrderInfo::Kept,
        KeyOrder::Absent => KeyOrderInfo::Absent,
        KeyOrder::Making(making) => KeyOrderInfo::Making { tasks: making.tasks },
    };
    LaneSeen { number: lane.row().number, info: info_of(lane), ranks, weights, limits, key_order }
}

fn info_of(lane: &Lane) -> LaneInfo {
    let row = lane.row();
    let mut info = LaneInfo {
        lane: lane.name().to_owned(),
        created_at: time_text(row.created_at),
        is_paused: row.is_paused,
        is_draining: row.is_draining,
        waiting: 0,
        reserved: 0,
        delayed: 0,
        dead: 0,
        added: 0,
        done: 0,
        keys: 0,
    };
    for (_, rank) in lane.ranks() {
        let row = rank.row();
        info.waiting += row.waiting;
        info.delayed += row.delayed;
        info.dead += row.dead;
        info.added += row.added;
        info.done += row.done;
        info.keys += rank.shares().waiting_len() as u64;
    }
    info
}

fn priority_of(priority: u8, rank: &Rank) -> LanePriorityInfo {
    let row = rank.row();
    let text = |level: Option<Level>| level.map(|level| level.to_string());
    LanePriorityInfo {
        priority,
        waiting: row.waiting,
        reserved: 0,
        delayed: row.delayed,
        dead: row.dead,
        keys: rank.shares().waiting_len() as u64,
        parked: 0,
        ack_level: text(row.acked),
        read_level: None,
        max_level: text(row.highest),
        virtual_time: row.virtual_time,
        in_memory: 0,
        is_read_to_end: false,
    }
}

fn add_seen(info: &mut LanePriorityInfo, seen: RankSeen) {
    info.reserved = seen.out as u64;
    info.parked = seen.parked as u64;
    info.read_level = seen.read_to.map(|level| level.to_string());
    info.virtual_time = seen.virtual_time.max(info.virtual_time);
    info.in_memory = seen.ready as u64;
    info.is_read_to_end = seen.is_at_end;
}

/// When what is out is over at the latest.
pub(super) struct Ends<'e> {
    /// What an earlier leader let out.
    pub(super) held_until: Option<At>,
    /// The first lease on a task of a key or tenant, or of the lane.
    pub(super) first_lease: &'e dyn Fn(Option<&str>) -> Option<At>,
}

/// The limits that are in the way of a key, as people read them.
pub(super) fn blocks_of(
    desk: &Desk,
    lane: LaneNumber,
    key: &str,
    now: At,
    ends: Ends<'_>,
) -> Vec<LaneBlockInfo> {
    let text = |(name, block): (Option<String>, Block)| {
        let of = name.as_ref().map_or_else(|| "the lane".into(), |name| format!("{name:?}"));
        let (why, free_at) = match block {
            Block::InFlight { most: 0 } => (format!("nothing of {of} is handed out: its limit is 0"), None),
            Block::InFlight { most } => {
                let why = format!(
                    "{most} of {of} are with consumers, as many as may be; one that comes back makes room"
                );
                (why, (ends.first_lease)(name.as_deref()).map(time_text))
            }
            Block::Rate { until } => (format!("the rate of {of} is used up for now"), Some(time_text(until))),
            Block::Held => {
                let why =
                    "tasks in flight are limited, and consumers of an earlier leader may still work on some";
                (why.to_owned(), ends.held_until.map(time_text))
            }
        };
        LaneBlockInfo { name, why, free_at }
    };
    desk.blocks(lane, key, now).into_iter().map(text).collect()
}

fn limits_of(limits: &LaneLimits) -> LaneLimitsInfo {
    let said = |limit: &Limit| (!limit.is_none()).then(|| limit_of(limit));
    LaneLimitsInfo {
        lane: said(&limits.lane),
        each_key: said(&limits.each_key),
        each_tenant: said(&limits.each_tenant),
        named: limits.named.iter().map(|(name, limit)| (name.clone(), limit_of(limit))).collect(),
    }
}

fn limit_of(limit: &Limit) -> LimitInfo {
    #[expect(clippy::cast_precision_loss, reason = "the largest rate is exact")]
    let per_second = limit.rate.map(|rate| rate.milli_per_second as f64 / 1_000.0);
    LimitInfo { in_flight: limit.in_flight, per_second, burst: limit.rate.map(|rate| rate.burst) }
}
