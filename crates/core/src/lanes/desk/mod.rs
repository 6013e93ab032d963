//! The desk: the leader's memory of all lanes, from which tasks are handed out.
//!
//! Invariants
//! - Within a lane, no task goes out while one of a higher priority is ready, or may be ready on disk.
//! - The virtual time of a rank is the highest pass that was handed out, by this leader or before.
//! - A lane that has something to give, and somebody may wait for it, is woken.
//! - What a limit counts is what is out.

mod looks;

use crate::entry::Effect;
use crate::lanes::acks::{Ack, Acked};
use crate::lanes::levels::{LaneNumber, Level, QueueName, RankName};
use crate::lanes::meters::{Metered, Meters};
use crate::lanes::places::Place;
use crate::lanes::queue::{Picking, Queue};
use crate::lanes::reader::{Placed, Read};
use crate::lanes::state::{LaneRow, LanesState};
use crate::lanes::tasks::TaskId;
use crate::lanes::usage::Usage;
use crate::limits::{LANE_ACK_EVERY_TASKS, LANE_BUFFER_TASKS, LANE_RELOAD_AT};
use crate::time::At;
pub use looks::RankSeen;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// How many ready tasks of a rank are kept in memory, and at how few more are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// So many are kept.
    pub tasks: usize,
    /// At so few, more are read.
    pub reload_at: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer { tasks: LANE_BUFFER_TASKS, reload_at: LANE_RELOAD_AT }
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct Desk {
    buffer: Buffer,
    lanes: BTreeMap<LaneNumber, DeskLane>,
    numbers: BTreeMap<String, LaneNumber>,
    /// Where each task stands that is out.
    out: BTreeMap<TaskId, Place>,
    /// Tasks that came back from whoever had them, and are not charged again.
    came_back: BTreeSet<TaskId>,
    /// Keys whose tasks are just being given other levels, and how often: none of those goes out meanwhile.
    moving: BTreeMap<(RankName, Arc<str>), u32>,
    woken: BTreeSet<LaneNumber>,
    /// Queues of which more may have to be read.
    stirred: BTreeSet<QueueName>,
    /// Queues whose ack level may be noted now.
    advanced: BTreeSet<QueueName>,
    /// Queues that have come on since theirs was noted.
    came_on: BTreeSet<QueueName>,
    /// The last one that was looked at for that.
    noted_to: Option<QueueName>,
    /// When the next delayed task is due.
    next_due: Option<At>,
    /// The largest id that was heard of.
    last_id: TaskId,
    /// Tasks of an earlier leader may still be out.
    is_held: bool,
    /// When a limit has room again by time alone, at the earliest.
    room_at: Option<At>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk {
            buffer: Buffer::default(),
            lanes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            out: BTreeMap::new(),
            came_back: BTreeSet::new(),
            moving: BTreeMap::new(),
            woken: BTreeSet::new(),
            stirred: BTreeSet::new(),
            advanced: BTreeSet::new(),
            came_on: BTreeSet::new(),
            noted_to: None,
            next_due: None,
            last_id: TaskId::first(),
            is_held: false,
            room_at: None,
        }
    }
}

#[derive(Debug)]
struct DeskLane {
    name: String,
    row: LaneRow,
    meters: Meters,
    ranks: BTreeMap<u8, Queue>,
    /// What it gives next was not known when it was asked last.
    is_being_read: bool,
    worst_lag: f64,
    usage: Usage,
}

impl Desk {
    /// The desk of a leadership that begins: nothing is read, nothing is out.
    pub fn new(lanes: &LanesState, next_due: Option<At>, buffer: Buffer) -> Desk {
        let mut desk = Desk { buffer, next_due, ..Desk::default() };
        for lane in lanes.all() {
            let number = lane.row().number;
            desk.set_lane(number, lane.name(), lane.row());
            for (priority, rank) in lane.ranks() {
                let name = QueueName::of_rank(RankName { lane: number, priority });
                let row = rank.row();
                desk.last_id = desk.last_id.max(row.highest.map_or(TaskId::first(), |level| level.id));
                let mut queue = Queue::new(name.clone(), buffer, row.acked(), row.virtual_time);
                for (tenant, it) in rank.tenants() {
                    let Some(account) = rank.shares().get(tenant) else { continue };
                    let turn = Level { pass: account.finish, id: desk.last_id };
                    queue.add_tenant(tenant, *it.row(), turn, account.waiting > 0);
                }
                if let Some(lane) = desk.lanes.get_mut(&number) {
                    lane.ranks.insert(priority, queue);
                }
                desk.stirred.insert(name);
            }
        }
        desk
    }

    /// The number of a lane.
    pub fn lane(&self, name: &str) -> Option<LaneNumber> {
        self.numbers.get(name).copied()
    }

    /// The name of a lane.
    pub fn name_of(&self, lane: LaneNumber) -> Option<&str> {
        self.lanes.get(&lane).map(|lane| lane.name.as_str())
    }

    /// How many tasks of a lane are out.
    pub fn out_len_of(&self, lane: LaneNumber) -> usize {
        let ranks = self.lanes.get(&lane).into_iter().flat_map(|lane| lane.ranks.values());
        ranks.map(|queue| queue.counts().out).sum()
    }

    /// Whether what a lane gives next was being read when it was asked last.
    pub fn is_reading(&self, lane: LaneNumber) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.is_being_read)
    }

    /// Whether tasks in flight are limited in any lane.
    pub fn has_limits_in_flight(&self) -> bool {
        self.lanes.values().any(|lane| lane.row.limits.has_in_flight())
    }

    /// Whether tasks in flight are limited in a lane.
    pub fn limits_in_flight(&self, lane: LaneNumber) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.row.limits.has_in_flight())
    }

    fn queue(&self, name: RankName) -> Option<&Queue> {
        self.lanes.get(&name.lane)?.ranks.get(&name.priority)
    }

    /// Hands out the next task of a lane.
    pub fn hand_out(&mut self, number: LaneNumber, now: At) -> Next<Place> {
        let next = self.pick(number, now);
        let room_at = self.lanes.get(&number).and_then(|lane| lane.meters.next_due());
        self.room_at = self.room_at.into_iter().chain(room_at).min();
        next
    }

    fn pick(&mut self, number: LaneNumber, now: At) -> Next<Place> {
        let Some(lane) = self.lanes.get_mut(&number) else { return Next::Nothing };
        lane.is_being_read = false;
        if lane.row.is_paused {
            return Next::Nothing;
        }
        if let Some(block) = lane.meters.block(None, now) {
            lane.meters.wait_for(None, block);
            return Next::Nothing;
        }
        let is_out = |id| self.out.contains_key(&id);
        let is_charged = |id| self.came_back.contains(&id);
        let mut picking = Picking {
            now,
            lane: &lane.row,
            meters: &mut lane.meters,
            is_out: &is_out,
            is_charged: &is_charged,
            moving: &self.moving,
            last_id: self.last_id,
            stirred: &mut self.stirred,
            worst_lag: &mut lane.worst_lag,
        };
        for (priority, queue) in lane.ranks.iter_mut().rev() {
            match queue.pick(&mut picking) {
                Next::Nothing => {}
                Next::BeingRead => {
                    lane.is_being_read = true;
                    return Next::BeingRead;
                }
                Next::Task(placed) => {
                    lane.meters.take(&placed.key, now);
                    lane.usage.count(*priority, &placed.key, now);
                    let rank = RankName { lane: number, priority: *priority };
                    let place = Place { rank, key: placed.key, level: placed.level };
                    self.out.insert(place.level.id, place.clone());
                    return Next::Task(place);
                }
            }
        }
        Next::Nothing
    }

    /// The tasks of a lane that are out.
    pub fn out_of_lane(&self, lane: LaneNumber) -> impl Iterator<Item = TaskId> {
        self.out.iter().filter(move |(_, place)| place.rank.lane == lane).map(|(id, _)| *id)
    }

    /// Where a task stands that is out.
    pub fn place_of(&self, id: TaskId) -> Option<&Place> {
        self.out.get(&id)
    }

    /// Whether a task is out.
    pub fn is_out(&self, id: TaskId) -> bool {
        self.out.contains_key(&id)
    }

    /// A task is not out any more: its limits have room for another.
    fn take_out(&mut self, id: TaskId) -> Option<Place> {
        let place = self.out.remove(&id)?;
        let lane = self.lanes.get_mut(&place.rank.lane)?;
        let free = lane.meters.give_back(&place.key);
        self.let_try(place.rank.lane, &free);
        Some(place)
    }

    /// Those who were turned away may try again.
    fn let_try(&mut self, number: LaneNumber, names: &[Metered]) {
        let Some(lane) = self.lanes.get_mut(&number).filter(|_| !names.is_empty()) else { return };
        for name in names.iter().flatten() {
            lane.ranks.values_mut().for_each(|queue| queue.unpark(name, self.last_id));
        }
        self.woken.insert(number);
    }

    /// Takes a task back that nobody works on any more.
    pub fn put_back(&mut self, id: TaskId) {
        let Some(Place { rank, key, .. }) = self.take_out(id) else { return };
        self.came_back.insert(id);
        let last_id = self.last_id;
        let Some(queue) = self.queue_mut(rank) else { return };
        queue.put_back(&key, id, last_id);
        self.stir(&QueueName::of_rank(rank));
    }

    /// Tasks of a key are about to get other levels: until that is over, its next one is not known, and whoever comes to it waits. So
    /// none goes out while it may be moved.
    pub fn hold_back(&mut self, name: RankName, key: &str) {
        *self.moving.entry((name, key.into())).or_insert(0) += 1;
    }

    /// They have got them.
    pub fn go_on(&mut self, name: RankName, key: &str) {
        if let Entry::Occupied(mut times) = self.moving.entry((name, key.into())) {
            *times.get_mut() -= 1;
            if *times.get() == 0 {
                times.remove();
            }
        }
        self.woken.insert(name.lane);
    }

    /// A consumer still works on a task of an earlier leader; `name` and `placed` are what its row says.
    pub fn hold(&mut self, name: RankName, placed: &Placed) {
        let Some(lane) = self.lanes.get_mut(&name.lane) else { return };
        let Some(queue) = lane.ranks.get_mut(&name.priority) else { return };
        queue.hold(placed, &lane.row, self.last_id);
        lane.meters.count(&placed.key);
        let Placed { level, ref key, .. } = *placed;
        self.out.insert(level.id, Place { rank: name, key: key.clone(), level });
    }

    /// Until tasks of an earlier leader must be over, limits of tasks in flight let nothing out.
    pub fn set_held(&mut self, is_held: bool) {
        if self.is_held == is_held {
            return;
        }
        self.is_held = is_held;
        for (number, lane) in &mut self.lanes {
            lane.meters.hold(is_held);
            if !is_held && !lane.meters.is_off() {
                lane.ranks.values_mut().for_each(|queue| queue.unpark_all(self.last_id));
                self.woken.insert(*number);
            }
        }
    }

    /// When a limit has room again by time alone.
    pub const fn next_room(&self) -> Option<At> {
        self.room_at
    }

    /// Lets those try whose limits have room by now.
    pub fn make_room(&mut self, now: At) {
        if self.room_at.is_none_or(|at| at > now) {
            return;
        }
        let due: Vec<(LaneNumber, Vec<Metered>)> = self
            .lanes
            .iter_mut()
            .filter(|(_, lane)| lane.meters.next_due().is_some_and(|at| at <= now))
            .map(|(number, lane)| (*number, lane.meters.take_due(now)))
            .collect();
        self.room_at = self.lanes.values().filter_map(|lane| lane.meters.next_due()).min();
        due.iter().for_each(|(number, names)| self.let_try(*number, names));
    }

    /// Follows what was applied.
    pub fn absorb(&mut self, effect: &Effect) {
        match effect {
            Effect::LaneSet { lane, name, row } => self.set_lane(*lane, name, row),
            Effect::TaskPlaced { rank, level, key, stride, times } => {
                self.last_id = self.last_id.max(level.id);
                let (last_id, buffer) = (self.last_id, self.buffer);
                let name = QueueName::of_rank(*rank);
                let Some(lane) = self.lanes.get_mut(&rank.lane) else { return };
                let first = || Queue::of_empty(name.clone(), buffer);
                let queue = lane.ranks.entry(rank.priority).or_insert_with(first);
                let placed = Placed { level: *level, key: (&**key).into(), stride: *stride };
                queue.place(placed, times.rank, times.tenant, last_id);
                self.stir(&name);
            }
            Effect::TaskUnplaced { rank, level, key, times, .. } => {
                self.take_out(level.id);
                self.came_back.remove(&level.id);
                let last_id = self.last_id;
                let Some(queue) = self.queue_mut(*rank) else { return };
                queue.remove(key, *level, times.rank, times.tenant, last_id);
                match queue.done_around(key) {
                    1 => drop(self.came_on.insert(QueueName::around(*rank, key))),
                    done if done > 0 && done.is_multiple_of(LANE_ACK_EVERY_TASKS) => {
                        self.advanced.insert(QueueName::around(*rank, key));
                    }
                    _ => {}
                }
                self.stirred.insert(QueueName::of_rank(*rank));
            }
            Effect::TaskMoved { rank, from, to, key, stride } => {
                if let Some(place) = self.out.get_mut(&to.id) {
                    place.level = *to;
                }
                let last_id = self.last_id;
                let Some(queue) = self.queue_mut(*rank) else { return };
                let placed = Placed { level: *to, key: (&**key).into(), stride: *stride };
                queue.shift(*from, &placed, last_id);
                self.stir(&QueueName::of_rank(*rank));
            }
            Effect::TaskDelayed { until } => self.note_due(*until),
            Effect::TaskGone { task } => {
                self.came_back.remove(task);
                let Some(Place { rank, key, .. }) = self.take_out(*task) else { return };
                let last_id = self.last_id;
                let Some(queue) = self.queue_mut(rank) else { return };
                queue.forget(&key, *task, last_id);
            }
            Effect::Ready { .. }
            | Effect::Changed { .. }
            | Effect::Weighed { .. }
            | Effect::Done { .. }
            | Effect::Failed { .. }
            | Effect::Over { .. }
            | Effect::CommitDue { .. }
            | Effect::CommitEnded { .. }
            | Effect::AreasDropped => {}
        }
    }

    fn set_lane(&mut self, number: LaneNumber, name: &str, row: &LaneRow) {
        self.numbers.insert(name.to_owned(), number);
        let lane = self.lanes.entry(number).or_insert_with(|| DeskLane {
            name: name.to_owned(),
            row: row.clone(),
            meters: Meters::default(),
            ranks: BTreeMap::new(),
            is_being_read: false,
            worst_lag: 0.0,
            usage: Usage::default(),
        });
        lane.row.clone_from(row);
        if lane.meters.limits() != &row.limits {
            let out = self.out.values().filter(|place| place.rank.lane == number);
            lane.meters.set(&row.limits, out.map(|place| place.key.clone()));
            lane.meters.hold(self.is_held);
            lane.ranks.values_mut().for_each(|queue| queue.unpark_all(self.last_id));
        }
        if !row.is_paused {
            self.woken.insert(number);
        }
    }

    fn queue_mut(&mut self, name: RankName) -> Option<&mut Queue> {
        self.lanes.get_mut(&name.lane)?.ranks.get_mut(&name.priority)
    }

    fn stir(&mut self, name: &QueueName) {
        self.stirred.insert(name.clone());
        self.woken.insert(name.rank.lane);
    }

    /// Acts on a queue.
    fn at(&mut self, name: &QueueName, mut act: impl FnMut(&mut Queue)) {
        let last_id = self.last_id;
        if let Some(queue) = self.queue_mut(name.rank) {
            queue.at(name, last_id, &mut act);
        }
    }

    /// The lanes that may have something to give since this was asked last.
    pub fn take_woken(&mut self) -> BTreeSet<LaneNumber> {
        std::mem::take(&mut self.woken)
    }

    /// What is to be read from the tables and to be noted in the log.
    pub fn errands(&mut self) -> Vec<Errand> {
        if self.stirred.is_empty() && self.advanced.is_empty() {
            return Vec::new();
        }
        let mut errands = Vec::new();
        for name in std::mem::take(&mut self.stirred) {
            let mut read = None;
            self.at(&name, |queue| read = queue.reader.next_read());
            errands.extend(read.map(|read| Errand::Read { queue: name, read }));
        }
        for name in std::mem::take(&mut self.advanced) {
            let (mut acked, mut has_come_on) = (Acked::default(), false);
            self.at(&name, |queue| (acked, has_come_on) = (queue.take_ack(), queue.has_come_on()));
            match has_come_on {
                true => self.came_on.insert(name.clone()),
                false => self.came_on.remove(&name),
            };
            if let Acked { level: Some(level), gap } = acked {
                let RankName { lane, priority } = name.rank;
                let tenant = name.of.as_deref().map(str::to_owned);
                errands.push(Errand::Note(Ack { lane, priority, level, tenant, gap }));
            }
        }
        errands
    }

    /// Some time has passed: how far everything is done is noted for so many queues at most of those that have come on, behind the ones
    /// that it was noted for last; says whether there may be more behind these.
    pub fn note_some(&mut self, most: usize) -> bool {
        let from = self.noted_to.take().map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<QueueName> = self.came_on.range((from, Bound::Unbounded)).take(most).cloned().collect();
        let has_more = some.len() == most;
        self.noted_to = some.last().filter(|_| has_more).cloned();
        self.advanced.extend(some);
        has_more
    }

    /// Takes in what was read for an errand.
    pub fn take_in(&mut self, name: &QueueName, rows: Vec<Placed>, is_end: bool) {
        let mut rows = Some(rows);
        self.at(name, |queue| queue.take_in(rows.take().unwrap_or_default(), is_end));
        self.stir(name);
    }

    /// A read could not be carried out: it is asked for again.
    pub fn give_up_read(&mut self, name: &QueueName) {
        self.at(name, |queue| queue.reader.give_up_read());
        self.stir(name);
    }

    /// When delayed tasks are due.
    pub const fn next_due(&self) -> Option<At> {
        self.next_due
    }

    /// Whether delayed tasks are due. If they are, they are given their places by the caller: the log then tells when the
    /// next ones are due.
    pub fn take_due(&mut self, now: At) -> bool {
        let is_due = self.next_due.is_some_and(|due| due <= now);
        if is_due {
            self.next_due = None;
        }
        is_due
    }

    /// A delayed task is due at this time.
    pub fn note_due(&mut self, at: At) {
        self.next_due = Some(self.next_due.map_or(at, |due| due.min(at)));
    }

    /// Moves the time of delayed tasks from the machine's clock to the one that ticks.
    pub fn move_due(&mut self, moved: impl FnOnce(At) -> At) {
        self.next_due = self.next_due.map(moved);
    }
}

/// What a lane, or a queue of it, gives next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// This task, which is out from here on.
    Task(T),
    /// Nothing.
    Nothing,
    /// It is not known yet.
    BeingRead,
}

/// Something that the desk cannot do itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// Rows to read.
    Read {
        /// Of which queue.
        queue: QueueName,
        /// Which ones.
        read: Read,
    },
    /// How far everything of a queue is done, for the log.
    Note(Ack),
}
