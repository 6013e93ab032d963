//! Key order: the tasks of each key by themselves, in the order of their levels, for lanes that need it.
//!
//! Whoever walks along the tasks of a single key needs it: a key that has met its limit goes by a cursor of its own, and levels are
//! given anew key by key. It costs a row for each task, so a lane is without it until a key is to be limited or given other levels.
//! Then it is made for the tasks that wait, some at a time, while everything goes on.
//!
//! Invariants
//! - While it is kept, each task with a level has a row among those of its key. While it is made, each one has that stands before the
//!   place where the next step goes on, or has got its level since the first step; no task without a level has one.
//! - Keys are limited and given other levels only in a lane that keeps it.
//! - A step looks at a bounded number of tasks and tenants, and comes on. It comes to an end however many are added meanwhile.

use super::acks::{Acked, levels_above, levels_undone};
use super::levels::{Level, QueueName, RankName};
use super::places::put_key_level;
use super::reader::Placed;
use super::state::{Lane, LaneRow, LanesState};
use crate::entry::{Applied, Outcome, Refusal};
use crate::limits::TASKS_ORDERED_PER_COMMAND_MAX;
use crate::tables::{KeyRange, Tables, Walk};
use minicbor::{Decode, Encode};

/// To begin to read a queue is as much work as to put so many tasks in order.
const TASKS_LIKE_A_QUEUE: usize = 16;

/// Whether a lane keeps the order of each key's own tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub enum KeyOrder {
    /// It does, as every lane of earlier builds.
    #[default]
    #[n(0)]
    Kept,
    /// It does not: nothing has needed it yet.
    #[n(1)]
    Absent,
    /// It is being made.
    #[n(2)]
    Making(#[n(0)] Making),
}

/// How far the order is made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Making {
    /// The priority whose tasks are next.
    #[n(0)]
    pub priority: u8,
    /// The tenant of it whose tasks are next; none while those without one are.
    #[n(1)]
    pub tenant: Option<String>,
    /// The last task of these that has its row.
    #[n(2)]
    pub above: Option<Level>,
    /// How many tasks were given theirs.
    #[n(3)]
    pub tasks: u64,
    /// The last task of these when they were begun, if they take more than a step; those behind it have got their levels since, and
    /// rows with them.
    #[n(4)]
    pub up_to: Option<Level>,
}

impl KeyOrder {
    /// Whether every task with a level has its row.
    pub fn is_kept(&self) -> bool {
        *self == KeyOrder::Kept
    }

    /// Whether a task that gets a level gets a row.
    pub(super) fn is_written(&self) -> bool {
        *self != KeyOrder::Absent
    }
}

/// See [`Command::OrderKeys`](crate::entry::Command::OrderKeys).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct OrderKeys {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// So many tasks at most; what one command does is bounded in any case.
    #[n(1)]
    pub tasks_max: u32,
}

/// Applies a step.
pub(crate) fn order_keys(state: &mut LanesState, tables: &mut dyn Tables, it: &OrderKeys) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
    };
    let row = lane.row().clone();
    let making = match row.key_order {
        KeyOrder::Kept => {
            return Applied { outcome: Outcome::KeysOrdered { is_done: true }, effects: Vec::new() };
        }
        KeyOrder::Absent => Making::default(),
        KeyOrder::Making(making) => making,
    };
    let key_order =
        make_some(lane, tables, making, it.tasks_max as usize).map_or(KeyOrder::Kept, KeyOrder::Making);
    let outcome = Outcome::KeysOrdered { is_done: key_order.is_kept() };
    let row = LaneRow { key_order, ..row };
    Applied { outcome, ..state.set_lane(tables, &it.lane, row) }
}

/// Makes some of it; gives how far it is made then, or nothing if all is.
fn make_some(lane: &Lane, tables: &mut dyn Tables, mut making: Making, most: usize) -> Option<Making> {
    let mut left = most.clamp(1, TASKS_ORDERED_PER_COMMAND_MAX);
    while left > 0 {
        let rank = RankName { lane: lane.row().number, priority: making.priority };
        let queue = QueueName { rank, of: making.tenant.as_deref().map(Into::into) };
        // What is done leaves remains, over which a walk would have to step.
        let acked = lane.rank(making.priority).map(|rank| rank.acked_of(making.tenant.as_deref()));
        let acked = acked.unwrap_or_default();
        let acked = Acked { level: making.above.max(acked.level), ..acked };
        let rows = levels_undone(&queue, acked, |table, range| tables.scan(table, range, Walk::Up));
        let rows = rows.take_while(|it| making.up_to.is_none_or(|last| it.level <= last));
        let some: Vec<Placed> = rows.take(left).collect();
        for Placed { level, key, stride } in &some {
            put_key_level(tables, rank, key, *level, *stride);
        }
        making.tasks += some.len() as u64;
        if some.len() == left {
            making.above = some.last().map(|it| it.level);
            if making.up_to.is_none() {
                let scan = |table, range: KeyRange<'_>| tables.scan(table, range, Walk::Down);
                let rows = levels_above(&queue, acked.level, scan);
                making.up_to = rows.map(|it| it.level).next();
            }
            break;
        }
        left = left.saturating_sub(some.len() + TASKS_LIKE_A_QUEUE);
        (making.priority, making.tenant) = next_queue(lane, &making)?;
        (making.above, making.up_to) = (None, None);
    }
    Some(making)
}

/// The queue behind the one whose order is made: by priority, in each the tasks without a tenant first, then those of each tenant.
fn next_queue(lane: &Lane, making: &Making) -> Option<(u8, Option<String>)> {
    let ranks = lane.ranks().skip_while(|(priority, _)| *priority < making.priority);
    for (priority, rank) in ranks {
        if priority > making.priority {
            return Some((priority, None));
        }
        if let Some(tenant) = rank.waiting_tenant_after(making.tenant.as_deref()) {
            return Some((priority, Some(tenant.to_owned())));
        }
    }
    None
}
