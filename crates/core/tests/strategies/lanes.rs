//! Lanes beside the submissions of a queue: what its leader is told of them, and beside it the plain truth of where each task
//! is. Levels are made up: how they come about is what the tests of lanes are about.

use crate::invented::LANES;
use crate::naive::SeenLane;
use crate::queue::Whereabouts;
use std::collections::BTreeMap;
use windlass_core::batch::reserver::Reserver;
use windlass_core::effect::Times;
use windlass_core::entry::Effect;
use windlass_core::ids::{Attempt, ChunkIndex, ChunkName};
use windlass_core::lanes::desk::Desk;
use windlass_core::lanes::key_order::KeyOrder;
use windlass_core::lanes::levels::{LaneNumber, Level, RankName};
use windlass_core::lanes::limiting::{LaneLimits, Limit};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::state::LaneRow;
use windlass_core::lanes::tasks::TaskId;
use windlass_core::time::At;

const KEY: &str = "a";
const STRIDE: u32 = 1_000;

#[derive(Debug)]
struct KnownTask {
    rank: RankName,
    pass: u64,
    whereabouts: Whereabouts,
    failed: Option<Attempt>,
}

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    rows: BTreeMap<&'static str, LaneRow>,
    tasks: BTreeMap<TaskId, KnownTask>,
}

/// The name of a task among those of chunks.
fn name_of(task: TaskId) -> ChunkName {
    ChunkName { submission: task, chunk: ChunkIndex(0) }
}

impl Lanes {
    /// Creates both lanes; a queue without them has none.
    pub(crate) fn create(&mut self, reserver: &mut Reserver) {
        for (number, name) in (1..).zip(LANES) {
            let row = LaneRow {
                number: LaneNumber(number),
                created_at: At::from_ms(0),
                is_paused: false,
                is_draining: false,
                weights: BTreeMap::new(),
                limits: LaneLimits::default(),
                key_order: KeyOrder::Kept,
            };
            self.rows.insert(name, row);
        }
        self.tell(reserver);
    }

    /// What a new leader reads: nothing is out.
    pub(crate) fn tell(&mut self, reserver: &mut Reserver) {
        reserver.set_desk(Desk::default());
        self.rows.keys().for_each(|name| reserver.absorb(&self.set_of(name)));
        for task in self.tasks.values_mut() {
            task.whereabouts = Whereabouts::Ready;
        }
        self.tasks.keys().for_each(|id| reserver.absorb(&self.placed_of(*id)));
    }

    fn set_of(&self, name: &str) -> Effect {
        let row = &self.rows[name];
        Effect::LaneSet { lane: row.number, name: name.to_owned(), row: Box::new(row.clone()) }
    }

    fn level(&self, id: TaskId) -> Level {
        Level { pass: self.tasks[&id].pass, id }
    }

    fn placed_of(&self, id: TaskId) -> Effect {
        let (rank, level) = (self.tasks[&id].rank, self.level(id));
        let times = Times { rank: 0, tenant: 0 };
        Effect::TaskPlaced { rank, level, key: KEY.into(), stride: STRIDE, times }
    }

    fn unplaced_of(&self, id: TaskId, is_done: bool) -> Effect {
        let (rank, level) = (self.tasks[&id].rank, self.level(id));
        let times = Times { rank: 0, tenant: 0 };
        Effect::TaskUnplaced { rank, level, key: KEY.into(), is_done, times }
    }

    pub(crate) fn has(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    pub(crate) fn ids(&self) -> Vec<TaskId> {
        self.tasks.keys().copied().collect()
    }

    pub(crate) fn whereabouts(&self) -> impl Iterator<Item = (ChunkName, Whereabouts)> {
        self.tasks.iter().map(|(id, task)| (name_of(*id), task.whereabouts))
    }

    pub(crate) fn whereabouts_mut(&mut self) -> impl Iterator<Item = (ChunkName, &mut Whereabouts)> {
        self.tasks.iter_mut().map(|(id, task)| (name_of(*id), &mut task.whereabouts))
    }

    pub(crate) fn put(&mut self, id: TaskId, whereabouts: Whereabouts) -> Whereabouts {
        std::mem::replace(&mut self.tasks.get_mut(&id).expect("it is there").whereabouts, whereabouts)
    }

    /// A task of one of the lanes, at any of its priorities.
    pub(crate) fn add(&mut self, reserver: &mut Reserver, id: TaskId, lane: &str, priority: u8, pass: u64) {
        let rank = RankName { lane: self.rows[lane].number, priority };
        self.tasks.insert(id, KnownTask { rank, pass, whereabouts: Whereabouts::Ready, failed: None });
        reserver.absorb(&self.placed_of(id));
    }

    /// A lane is paused or goes on, and so many of its tasks may be out.
    pub(crate) fn set(
        &mut self,
        reserver: &mut Reserver,
        lane: &str,
        is_paused: bool,
        in_flight: Option<u32>,
    ) {
        let row = self.rows.get_mut(lane).expect("it was created");
        (row.is_paused, row.limits.lane) = (is_paused, Limit { in_flight, ..Limit::default() });
        reserver.absorb(&self.set_of(lane));
    }

    pub(crate) fn complete(&mut self, reserver: &mut Reserver, id: TaskId) {
        reserver.absorb(&self.unplaced_of(id, true));
        self.tasks.remove(&id);
    }

    /// An attempt fails, and the task gets another place at once.
    pub(crate) fn fail(&mut self, reserver: &mut Reserver, id: TaskId, attempt: Attempt, later: u64) {
        reserver.absorb(&self.unplaced_of(id, false));
        let task = self.tasks.get_mut(&id).expect("it is there");
        (task.whereabouts, task.failed) = (Whereabouts::Ready, Some(attempt));
        task.pass += later;
        reserver.absorb(&self.placed_of(id));
    }

    /// What whoever comes back with an attempt says of its task; none if that attempt has failed.
    pub(crate) fn to_reassert(&self, id: TaskId, attempt: Attempt) -> Option<(RankName, Placed)> {
        let task = self.tasks.get(&id).filter(|task| task.failed < Some(attempt))?;
        Some((task.rank, Placed { level: self.level(id), key: KEY.into(), stride: STRIDE }))
    }

    /// What the naive evaluator goes by.
    pub(crate) fn seen(&self) -> BTreeMap<String, SeenLane> {
        let of = |(name, row): (&&'static str, &LaneRow)| {
            let own = || self.tasks.iter().filter(|(_, task)| task.rank.lane == row.number);
            // A task whose failure is on its way through the log counts for limits until it is there.
            let out = own().filter(|(_, task)| task.whereabouts != Whereabouts::Ready).count();
            let most = row.limits.lane.in_flight.map_or(usize::MAX, |most| most as usize);
            let ready = own().filter(|(_, task)| task.whereabouts == Whereabouts::Ready);
            let place = |(id, task): (&TaskId, &KnownTask)| (u8::MAX - task.rank.priority, task.pass, *id);
            let room = if row.is_paused { 0 } else { most.saturating_sub(out) };
            ((*name).to_owned(), SeenLane { room, ready: ready.map(place).collect() })
        };
        self.rows.iter().map(of).collect()
    }
}
