//! What can be seen of the desk, by those who add tasks, by people, and by the audit.

use super::Desk;
use crate::lanes::levels::{LaneNumber, Level, QueueName, RankName, tenant_of};
use crate::lanes::meters::{Block, Meters};
use crate::lanes::places::Place;
use crate::lanes::queue::{Counts, Queue};
use crate::lanes::state::LaneRow;
use crate::lanes::tasks::{HandedOut, TaskId};
use crate::lanes::usage::Usage;
use crate::time::At;
use std::collections::BTreeMap;

impl Desk {
    /// How far the queues around some keys have been handed out, each by its priority, for tasks that are about to be added.
    pub fn handed_out<'k>(
        &self,
        lane: &str,
        keys: impl IntoIterator<Item = (u8, &'k str)>,
    ) -> Vec<HandedOut> {
        let lane = self.lane(lane).and_then(|number| self.lanes.get(&number));
        let mut stamps = BTreeMap::new();
        for (priority, key) in keys {
            let queue = lane.and_then(|lane| lane.ranks.get(&priority));
            stamps.insert((priority, None), queue.map_or(0, Queue::virtual_time));
            if let Some(tenant) = tenant_of(key)
                && let Some(flow) = queue.and_then(|queue| queue.flow(tenant))
            {
                stamps.insert((priority, Some(tenant)), flow.queue.virtual_time());
            }
        }
        let stamps = stamps.into_iter();
        let stamp = |((priority, tenant), pass): ((u8, Option<&str>), u64)| HandedOut {
            priority,
            pass,
            tenant: tenant.map(str::to_owned),
        };
        stamps.map(stamp).collect()
    }

    /// How a rank is handed out.
    pub fn look(&self, name: RankName) -> Option<RankSeen> {
        let queue = self.queue(name)?;
        let Counts { ready, out, parked } = queue.counts();
        Some(RankSeen {
            read_to: queue.reader.read_to(),
            is_at_end: queue.reader.is_at_end(),
            ready,
            out,
            virtual_time: queue.virtual_time(),
            parked,
        })
    }

    /// Of the tasks of a rank that are next, the one that was added first: of those in memory without a tenant, and of the first ones of
    /// the tenants that are next in line.
    pub fn oldest_next(&self, name: RankName) -> Option<TaskId> {
        self.queue(name)?.oldest_next()
    }

    /// What keeps a task of a key from being handed out: the lane's limit, its tenant's, or its own.
    pub fn blocks(&self, lane: LaneNumber, key: &str, now: At) -> Vec<(Option<String>, Block)> {
        let Some(lane) = self.lanes.get(&lane) else { return Vec::new() };
        let names = [None, tenant_of(key), Some(key)];
        let mut blocks: Vec<(Option<String>, Block)> = names
            .into_iter()
            .filter_map(|name| Some((name.map(str::to_owned), lane.meters.block(name, now)?)))
            .collect();
        blocks.dedup();
        blocks
    }

    /// Whether the limit of a key or tenant itself is in its way: not that of the lane, and of a user not that of its tenant, which
    /// hold up all others as well.
    pub fn is_at_limit(&self, lane: LaneNumber, name: &str, now: At) -> bool {
        let meters = self.lanes.get(&lane).map(|lane| &lane.meters);
        meters.is_some_and(|meters| !meters.is_off() && meters.block(Some(name), now).is_some())
    }

    /// The shares that keys had of what a lane handed out, and how late a task was at worst.
    pub fn usage(&self, lane: LaneNumber) -> Option<(&Usage, f64)> {
        self.lanes.get(&lane).map(|lane| (&lane.usage, lane.worst_lag))
    }

    /// The next turn of a tenant: where its next task stands in the rank.
    pub fn turn_of(&self, rank: RankName, tenant: &str) -> Option<Level> {
        let queue = self.queue(rank)?;
        Some(queue.flow(tenant)?.next_turn(queue.virtual_time()))
    }

    /// The next turn of a key in the queue around it, if it has met a limit and goes by turns since.
    pub fn turn_of_key(&self, rank: RankName, key: &str) -> Option<Level> {
        let of_rank = self.queue(rank)?;
        let around = match tenant_of(key) {
            Some(tenant) => &of_rank.flow(tenant)?.queue,
            None => of_rank,
        };
        Some(around.flow(key)?.next_turn(around.virtual_time()))
    }

    /// The tasks that are out, for the audit.
    pub(crate) fn tasks_out(&self) -> impl Iterator<Item = TaskId> {
        self.out.keys().copied()
    }

    /// What is said of a lane, for the audit.
    pub(in crate::lanes) fn row(&self, lane: LaneNumber) -> Option<&LaneRow> {
        self.lanes.get(&lane).map(|lane| &lane.row)
    }

    /// What its limits have let out, for the audit.
    pub(in crate::lanes) fn meters(&self, lane: LaneNumber) -> Option<&Meters> {
        self.lanes.get(&lane).map(|lane| &lane.meters)
    }

    /// The queue of a rank, for the audit.
    pub(in crate::lanes) fn queue_of(&self, name: RankName) -> Option<&Queue> {
        self.queue(name)
    }

    /// Whether it is going to be seen what is to be read of a queue, for the audit.
    pub(in crate::lanes) fn is_asking(&self, name: &QueueName) -> bool {
        self.stirred.contains(name)
    }

    /// Whether it is going to be noted how far everything of a queue is done, for the audit.
    pub(in crate::lanes) fn is_to_note(&self, name: &QueueName) -> bool {
        self.came_on.contains(name) || self.advanced.contains(name)
    }

    /// Where each task belongs that is out, for the audit.
    pub(in crate::lanes) const fn out(&self) -> &BTreeMap<TaskId, Place> {
        &self.out
    }
}

/// How a rank is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankSeen {
    /// R.
    pub read_to: Option<Level>,
    /// Whether that is the end.
    pub is_at_end: bool,
    /// Ready tasks in memory.
    pub ready: usize,
    /// Tasks out.
    pub out: usize,
    /// V.
    pub virtual_time: u64,
    /// Keys and tenants that a limit is in the way of.
    pub parked: usize,
}
