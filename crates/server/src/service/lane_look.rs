//! What is seen of lanes: their depth, their keys and what those get, how far they are read and done.

use super::Service;
use super::batch::page_limit;
use super::lane_keys::add_usage;
use super::lanes::{invalid, unknown_lane};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_api::json::time_text;
use windlass_api::lanes::{
    KeyOrderInfo, LaneBlockInfo, LaneBlockKind, LaneDetails, LaneInfo, LaneLimitsInfo, LaneListQuery,
    LanePage, LanePriorityInfo, LaneQuery, LimitInfo,
};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::Reserver;
use windlass_core::lanes::desk::RankSeen;
use windlass_core::lanes::key_order::KeyOrder;
use windlass_core::lanes::levels::{LaneNumber, Level, RankName};
use windlass_core::lanes::limiting::{LaneLimits, Limit};
use windlass_core::lanes::listing;
use windlass_core::lanes::meters::{Block, Metered};
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

/// A lane, in the metrics.
pub struct LaneFigures {
    /// Its tasks.
    pub info: LaneInfo,
    /// How late one was handed out at worst, in strides, if this node leads.
    pub worst_lag: Option<f64>,
}

impl Service {
    /// A lane as this node knows it, looked at where nobody else has to wait: its keys may be many.
    pub async fn look_at_lane(&self, name: String, query: LaneQuery) -> Result<LaneDetails, Problem> {
        let service = self.clone();
        apart(move || service.lane(&name, &query)).await
    }

    /// The same, here and now.
    fn lane(&self, name: &str, query: &LaneQuery) -> Result<LaneDetails, Problem> {
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
        self.dispatcher().look_at_reserver(|reserver, now| {
            add_usage(&mut details, (reserver, number), query, now, held_until);
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

    /// What the metrics say of each lane.
    pub fn lane_figures(&self) -> Vec<LaneFigures> {
        let lanes: Vec<(LaneNumber, LaneInfo)> = self
            .order()
            .read(|machine| machine.lanes().all().map(|lane| (lane.row().number, info_of(lane))).collect());
        let figures = lanes.into_iter().map(|(number, mut info)| {
            // Nothing is known of it while this node does not lead.
            let seen = self.dispatcher().look_at_lanes(|desk, _| {
                (desk.out_len_of(number), desk.usage(number).map(|(_, worst_lag)| worst_lag))
            });
            let (reserved, worst_lag) = seen.unwrap_or_default();
            info.reserved = reserved as u64;
            LaneFigures { info, worst_lag }
        });
        figures.collect()
    }
}

/// Looks at something that takes a while beside those who are to answer at once.
pub(super) async fn apart<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?
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

/// The limits that are in the way of each of some keys, as people read them. `held_until` is when what an earlier leader let out is over at
/// the latest.
pub(super) fn blocks_of(
    reserver: &Reserver,
    lane: LaneNumber,
    keys: &[&str],
    now: At,
    held_until: Option<At>,
) -> Vec<Vec<LaneBlockInfo>> {
    let blocks: Vec<_> = keys.iter().map(|key| reserver.desk().blocks(lane, key, now)).collect();
    let to_come_back = |(name, block): &(Option<String>, Block)| match block {
        // With that many back there is room for one.
        Block::InFlight { most: most @ 1.., out } => Some((name.as_deref().map(Arc::from), out - most + 1)),
        Block::InFlight { most: 0, .. } | Block::Rate { .. } | Block::Held => None,
    };
    let so_many: BTreeMap<Metered, u32> = blocks.iter().flatten().filter_map(to_come_back).collect();
    let ends = reserver.lease_ends(lane, &so_many);
    let info = |(name, block): (Option<String>, Block)| {
        let room_at = ends.get(&name.as_deref().map(Arc::from)).copied();
        let of = name.as_ref().map_or_else(|| "the lane".into(), |name| format!("{name:?}"));
        let kind = match block {
            Block::InFlight { .. } => LaneBlockKind::InFlight,
            Block::Rate { .. } => LaneBlockKind::Rate,
            Block::Held => LaneBlockKind::Held,
        };
        let (why, free_at) = block_said(&of, block, room_at, held_until);
        LaneBlockInfo { name, kind, why, free_at: free_at.map(time_text) }
    };
    blocks.into_iter().map(|of_key| of_key.into_iter().map(info).collect()).collect()
}

/// Why a limit lets nothing out, and when that is over at the latest.
fn block_said(of: &str, block: Block, room_at: Option<At>, held_until: Option<At>) -> (String, Option<At>) {
    match block {
        Block::InFlight { most: 0, .. } => (format!("nothing of {of} is handed out: its limit is 0"), None),
        Block::InFlight { most, out } if out > most => {
            let too_many = out - most + 1;
            let why = format!(
                "{out} of {of} are with consumers, more than the {most} that may be: {too_many} have to come back before there is room"
            );
            (why, room_at)
        }
        Block::InFlight { most, .. } => {
            let why = format!(
                "{most} of {of} are with consumers, as many as may be; one that comes back makes room"
            );
            (why, room_at)
        }
        Block::Rate { until } => (format!("the rate of {of} is used up for now"), Some(until)),
        Block::Held => {
            let why =
                "tasks in flight are limited, and consumers of an earlier leader may still work on some";
            (why.to_owned(), held_until)
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tasks_out_than_may_be_are_said_with_how_many_have_to_come_back() {
        let room_at = Some(At::from_ms(9));
        let said = |most, out| block_said("\"bob\"", Block::InFlight { most, out }, room_at, None);
        let more = "5 of \"bob\" are with consumers, more than the 2 that may be: 4 have to come back before there is room";
        assert_eq!(said(2, 5), (more.to_owned(), room_at));
        let as_many = "2 of \"bob\" are with consumers, as many as may be; one that comes back makes room";
        assert_eq!(said(2, 2), (as_many.to_owned(), room_at));
        assert_eq!(said(0, 5), ("nothing of \"bob\" is handed out: its limit is 0".to_owned(), None));
    }
}
