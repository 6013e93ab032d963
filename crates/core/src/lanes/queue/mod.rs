//! The queue: who goes next among those who share a rank, or a tenant.
//!
//! Most tasks stand in the queue by their levels, and come from its reader. A *flow* stands in it as a whole, by one level
//! that moves on by a stride with each of its tasks, and has a queue of its own, with a cursor of its own in the tables: a
//! tenant always, and a key from when it first meets its limit until it has nothing left and its turn is over. So what a limit
//! holds up neither fills the buffer nor stands in anybody's way, and does not save up turns meanwhile.
//!
//! Invariants
//! - The smallest level goes first, of tasks and of flows that may go.
//! - A flow is in line if it may have something to give and no limit is in its way. One that comes into the line starts at the
//!   virtual time at the earliest, and no task of a key that is a flow goes before its own level.
//! - A task of a key that is a flow is in that flow, or out.
//! - The virtual time is the highest pass that was handed out.
//! - What is ready, out and parked in it and its flows is counted as it changes.
//!
//! With f flows and b tasks in memory every operation costs O(log f + log b); a flow that is let go is read again.

mod counts;
mod flows;
mod routes;

use crate::lanes::acks::{Acked, Gap};
use crate::lanes::desk::{Buffer, Next};
use crate::lanes::levels::{Level, QueueName, RankName, is_tenant, tenant_of};
use crate::lanes::meters::Meters;
use crate::lanes::ranks::TenantRow;
use crate::lanes::reader::{Placed, Reader};
use crate::lanes::state::LaneRow;
use crate::lanes::tasks::TaskId;
use crate::limits::{
    LANE_FLOW_BUFFER_TASKS, LANE_FLOW_RELOAD_AT, LANE_FLOWS_LOOKED_AT, LANE_FLOWS_READ_AHEAD,
};
use crate::time::At;
pub(in crate::lanes) use counts::Counts;
use counts::Undone;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What is asked of a queue when a task is picked.
pub(super) struct Picking<'a> {
    pub(super) now: At,
    pub(super) lane: &'a LaneRow,
    pub(super) meters: &'a mut Meters,
    /// Whether a task is out.
    pub(super) is_out: &'a dyn Fn(TaskId) -> bool,
    /// Whether a task was handed out before, and charged then.
    pub(super) is_charged: &'a dyn Fn(TaskId) -> bool,
    /// Keys of which nothing may go just now.
    pub(super) moving: &'a BTreeMap<(RankName, Arc<str>), u32>,
    /// No task that comes later has an id below this one.
    pub(super) last_id: TaskId,
    /// Queues of which more may have to be read.
    pub(super) stirred: &'a mut BTreeSet<QueueName>,
    /// How far behind the virtual time a task was handed out, in its strides.
    pub(super) worst_lag: &'a mut f64,
}

impl Picking<'_> {
    fn is_moving(&self, rank: RankName, key: &Arc<str>) -> bool {
        !self.moving.is_empty() && self.moving.contains_key(&(rank, key.clone()))
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Queue {
    name: QueueName,
    buffer: Buffer,
    pub(super) reader: Reader,
    /// The highest pass that was handed out.
    virtual_time: u64,
    /// What the machine knows of it: no later task gets a pass below that.
    known_time: u64,
    /// The virtual time when this leadership began. What stands below it was out then, or held up by a limit.
    begun_at: u64,
    /// What was noted of it.
    acked: Acked,
    /// Tasks done since the ack level was noted.
    done: u64,
    flows: BTreeMap<Arc<str>, Flow>,
    /// What they hold.
    of_flows: Counts,
    undone: Undone,
    /// Flows that may go, by level.
    line: BTreeSet<(Level, Arc<str>)>,
    /// Flows with nothing to give, by the end of their turns.
    resting: BTreeSet<(u64, Arc<str>)>,
    /// Flows that have tasks in memory, those that were read first in front.
    loaded: VecDeque<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Flow {
    level: Level,
    /// The turn of a tenant as the log knows it, and as consumers of an earlier leader say that they have had it since.
    known_turn: u64,
    stand: Stand,
    is_loaded: bool,
    pub(super) queue: Box<Queue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    /// It may go.
    InLine,
    /// A limit is in its way.
    Parked,
    /// It has nothing to give, as far as is known.
    Resting,
}

/// Who is next.
enum First {
    Task(Level, Arc<str>),
    Flow(Level, Arc<str>),
}

impl Queue {
    /// A queue of which nothing is read yet.
    pub(super) fn new(name: QueueName, buffer: Buffer, acked: Acked, virtual_time: u64) -> Queue {
        Queue {
            name,
            buffer,
            reader: Reader::new(acked, buffer),
            virtual_time,
            known_time: virtual_time,
            begun_at: virtual_time,
            acked,
            done: 0,
            flows: BTreeMap::new(),
            of_flows: Counts::default(),
            undone: Undone::new(),
            line: BTreeSet::new(),
            resting: BTreeSet::new(),
            loaded: VecDeque::new(),
        }
    }

    /// A queue that has no tasks.
    pub(super) fn of_empty(name: QueueName, buffer: Buffer) -> Queue {
        Queue { reader: Reader::of_empty(buffer), ..Queue::new(name, buffer, Acked::default(), 0) }
    }

    /// V.
    pub(super) const fn virtual_time(&self) -> u64 {
        self.virtual_time
    }

    /// Its flows.
    pub(super) fn flows(&self) -> impl Iterator<Item = (&Arc<str>, &Flow)> {
        self.flows.iter()
    }

    /// A flow.
    pub(super) fn flow(&self, name: &str) -> Option<&Flow> {
        self.flows.get(name)
    }

    /// Of the tasks that are next, the one that was added first: of its own ones in memory, and of the first ones of the flows that are
    /// next in line.
    pub(super) fn oldest_next(&self) -> Option<TaskId> {
        let own = self.reader.ready().keys().map(|level| level.id).min();
        let next = self.line.iter().take(LANE_FLOWS_LOOKED_AT).map(|(_, name)| &self.flows[name].queue);
        own.into_iter().chain(next.filter_map(|queue| queue.first_id())).min()
    }

    /// The first task of it that is known.
    fn first_id(&self) -> Option<TaskId> {
        let own = self.reader.first().map(|(level, _)| level);
        let flow = self.line.first().and_then(|(level, name)| Some((*level, self.flows.get(name)?)));
        match flow.filter(|(level, _)| own.is_none_or(|own| own > *level)) {
            Some((_, flow)) => flow.queue.first_id(),
            None => own.map(|level| level.id),
        }
    }

    /// Whether tasks of it were done since its ack level was noted.
    pub(super) const fn has_come_on(&self) -> bool {
        self.done > 0
    }

    /// The flow that a key belongs to here, if it is one.
    fn flow_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let is_rank = self.name.of.is_none();
        let name = tenant_of(key).filter(|_| is_rank).unwrap_or(key);
        (self.name.of.as_deref() != Some(key)).then_some(name)
    }

    fn rank(&self) -> RankName {
        self.name.rank
    }

    /// The queue of a new flow.
    fn queue_of_flow(&self, name: &Arc<str>, acked: Acked, virtual_time: u64) -> Queue {
        Queue::new(QueueName::of(self.rank(), name.clone()), self.flow_buffer(), acked, virtual_time)
    }

    fn flow_buffer(&self) -> Buffer {
        Buffer {
            tasks: self.buffer.tasks.min(LANE_FLOW_BUFFER_TASKS),
            reload_at: self.buffer.reload_at.min(LANE_FLOW_RELOAD_AT),
        }
    }

    /// A tenant that is there when a leadership begins: it has tasks, or its turn is not over.
    pub(super) fn add_tenant(&mut self, name: &str, row: TenantRow, turn: Level, has_tasks: bool) {
        let name: Arc<str> = name.into();
        let mut queue = Box::new(self.queue_of_flow(&name, row.acked(), row.virtual_time));
        if !has_tasks {
            queue.reader = Reader::of_empty(self.flow_buffer());
        }
        let known_turn = turn.pass;
        let level = Level { pass: turn.pass.max(self.virtual_time), ..turn };
        let flow = Flow { level, known_turn, stand: Stand::Resting, is_loaded: false, queue };
        self.add_flow(name.clone(), flow);
        self.refresh(&name, turn.id);
    }

    /// Hands out the next task.
    pub(super) fn pick(&mut self, it: &mut Picking<'_>) -> Next<Placed> {
        loop {
            match self.first(it) {
                Some(First::Task(level, key)) => match it.meters.block(Some(&key), it.now) {
                    Some(block) => {
                        self.set_apart(&key, level, it);
                        it.meters.wait_for(Some(key), block);
                    }
                    None if it.is_moving(self.rank(), &key) => return Next::BeingRead,
                    None => {
                        let mut placed = self.reader.hand_out().expect("it is the first");
                        if (it.is_charged)(level.id) {
                            placed.stride = 0;
                        }
                        self.stir(it);
                        self.pass_by(level.pass, placed.stride, it);
                        return Next::Task(placed);
                    }
                },
                // What is not read yet may come before a flow.
                Some(First::Flow(level, _)) if !self.is_read_to(level) => return Next::BeingRead,
                Some(First::Flow(level, name)) => {
                    if let Some(block) = it.meters.block(Some(&name), it.now) {
                        self.park(&name);
                        it.meters.wait_for(Some(name), block);
                        continue;
                    }
                    if it.is_moving(self.rank(), &name) {
                        return Next::BeingRead;
                    }
                    if self.catch_up(level, &name, it) {
                        continue;
                    }
                    match self.pick_of_flow(level, &name, it) {
                        Next::Nothing => {}
                        picked => return picked,
                    }
                }
                None if self.reader.is_waiting_for_rows() => return Next::BeingRead,
                None => return Next::Nothing,
            }
        }
    }

    /// Who is next, of what is known.
    fn first(&mut self, it: &mut Picking<'_>) -> Option<First> {
        // Tasks of flows are theirs; and rows may be ahead of what was told: what is out is placed anew shortly.
        while let Some((level, key)) = self.reader.first()
            && (self.is_of_flow(key) || (it.is_out)(level.id))
        {
            self.reader.skip_first();
        }
        self.stir(it);
        let task = self.reader.first().map(|(level, key)| First::Task(level, key.clone()));
        let flow = self.line.first().map(|(level, name)| First::Flow(*level, name.clone()));
        match (task, flow) {
            (Some(First::Task(task, key)), Some(First::Flow(flow, _))) if task <= flow => {
                Some(First::Task(task, key))
            }
            (task, flow) => flow.or(task),
        }
    }

    fn stir(&self, it: &mut Picking<'_>) {
        if self.reader.needs_rows() {
            it.stirred.insert(self.name.clone());
        }
    }

    fn is_of_flow(&self, key: &str) -> bool {
        !self.flows.is_empty() && self.flow_of(key).is_some_and(|name| self.flows.contains_key(name))
    }

    fn is_read_to(&self, level: Level) -> bool {
        self.reader.is_at_end() || Some(level) <= self.reader.read_to()
    }

    fn pick_of_flow(&mut self, level: Level, name: &Arc<str>, it: &mut Picking<'_>) -> Next<Placed> {
        let picked = self.change(name, |flow| flow.queue.pick(it)).expect("whoever is in line is a flow");
        match &picked {
            Next::Task(placed) => {
                let cost = match placed.stride {
                    0 => 0,
                    _ if is_tenant(name) => it.lane.tenant_stride(name),
                    stride => stride,
                };
                let next = Level { pass: level.pass.saturating_add(u64::from(cost)), id: it.last_id };
                self.move_in_line(name, level, next);
                self.refresh(name, it.last_id);
                self.pass_by(level.pass, cost, it);
            }
            Next::Nothing => self.refresh(name, it.last_id),
            Next::BeingRead => {
                let ahead =
                    self.line.iter().take(LANE_FLOWS_READ_AHEAD).map(|(_, name)| &self.flows[name].queue);
                it.stirred
                    .extend(ahead.filter(|queue| queue.reader.needs_rows()).map(|queue| queue.name.clone()));
            }
        }
        picked
    }

    /// Something of this pass was handed out.
    fn pass_by(&mut self, pass: u64, stride: u32, it: &mut Picking<'_>) {
        if stride > 0 && pass < self.virtual_time && pass >= self.begun_at {
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let lag = (self.virtual_time - pass) as f64 / f64::from(stride);
            *it.worst_lag = it.worst_lag.max(lag);
        }
        self.advance(pass, it.last_id);
    }

    fn advance(&mut self, pass: u64, last_id: TaskId) {
        self.virtual_time = self.virtual_time.max(pass);
        while let Some((until, _)) = self.resting.first()
            && *until <= self.virtual_time
            && let Some((_, name)) = self.resting.pop_first()
        {
            self.refresh(&name, last_id);
        }
    }

    /// What is done, if that is more than was noted. It stays below the virtual time that the machine knows, where tasks that are
    /// on their way through the log may still come to lie.
    pub(super) fn ack(&self) -> Option<Acked> {
        let known = Level { pass: self.known_time, id: TaskId::first() }.before()?;
        let level = self.acked.level.max(Some(self.undone_from()?.min(known)));
        let gaps = [self.acked.gap, self.gap(known)].into_iter().flatten();
        let gap = gaps.filter(|gap| Some(gap.to) > level).max_by_key(|gap| gap.passes());
        let acked = Acked { level, gap };
        (acked != self.acked).then_some(acked)
    }

    /// The widest stretch behind A in which nothing undone is known, up to a level.
    fn gap(&self, up_to: Level) -> Option<Gap> {
        let mut end = self.reader.read_to()?.min(up_to);
        if let Some((ready, _)) = self.reader.first() {
            end = end.min(ready.before()?);
        }
        self.reader.widest_gap(end.min(self.undone_of_keys_from(end)?))
    }

    /// Nothing undone has a level up to this one, as far as is known.
    fn undone_from(&self) -> Option<Level> {
        // Nothing at all is said of what lies above R, where tasks may be out before others are read.
        let mut level = self.reader.read_to()?;
        if let Some(lowest) = self.reader.lowest_undone() {
            level = level.min(lowest.before()?);
        }
        self.undone_of_keys_from(level)
    }

    /// Up to this level, or the one that is given, nothing undone is in flows of keys.
    fn undone_of_keys_from(&self, level: Level) -> Option<Level> {
        match self.undone.first() {
            Some((of_keys, _)) => of_keys.map(|of_keys| of_keys.min(level)),
            None => Some(level),
        }
    }

    fn has_undone(&self) -> bool {
        !self.reader.is_at_end() || self.reader.lowest_undone().is_some()
    }

    /// Tasks done in the queue around a key since its ack level was noted.
    pub(super) fn done_around(&self, key: &str) -> u64 {
        match tenant_of(key).filter(|_| self.name.of.is_none()) {
            Some(tenant) => self.flows.get(tenant).map_or(0, |flow| flow.queue.done),
            None => self.done,
        }
    }

    /// What is to be noted of it, which it then counts as noted.
    pub(super) fn take_ack(&mut self) -> Acked {
        let Some(acked) = self.ack() else { return Acked::default() };
        (self.acked, self.done) = (acked, 0);
        acked
    }
}

impl Flow {
    /// Its next turn, if it comes at once. It saves up none while it may not go.
    pub(super) fn next_turn(&self, virtual_time: u64) -> Level {
        match self.stand {
            Stand::Parked | Stand::Resting if self.level.pass < virtual_time => {
                Level { pass: virtual_time, id: TaskId::last() }
            }
            Stand::InLine | Stand::Parked | Stand::Resting => self.level,
        }
    }
}
