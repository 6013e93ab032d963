//! The desk: the leader's memory of all lanes, from which tasks are handed out.
//!
//! Invariants
//! - Within a lane, no task goes out while one of a higher priority is ready, or may be ready on disk.
//! - The virtual time of a rank is the highest pass that was handed out, by this leader or before.
//! - A lane that has something to give, and somebody may wait for it, is woken.

use super::acks::Ack;
use super::levels::{LaneNumber, Level, RankName};
use super::reader::{Placed, Read, Reader};
use super::state::LanesState;
use super::tasks::{HandedOut, TaskId};
use crate::entry::Effect;
use crate::limits::{LANE_ACK_EVERY_TASKS, LANE_BUFFER_TASKS, LANE_RELOAD_AT};
use crate::time::At;
use std::collections::{BTreeMap, BTreeSet};

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
#[derive(Debug, Default)]
pub struct Desk {
    buffer: Buffer,
    lanes: BTreeMap<LaneNumber, DeskLane>,
    numbers: BTreeMap<String, LaneNumber>,
    /// Where each task is that is out.
    out: BTreeMap<TaskId, RankName>,
    woken: BTreeSet<LaneNumber>,
    /// Ranks of which more may have to be read.
    stirred: BTreeSet<RankName>,
    /// Ranks whose ack level may be noted.
    advanced: BTreeSet<RankName>,
    /// When the next delayed task is due.
    next_due: Option<At>,
}

#[derive(Debug, Default)]
struct DeskLane {
    name: String,
    is_paused: bool,
    ranks: BTreeMap<u8, DeskRank>,
}

#[derive(Debug)]
struct DeskRank {
    reader: Reader,
    /// The highest pass that was handed out.
    virtual_time: u64,
    /// What the machine knows of it: no later task gets a pass below that.
    known_time: u64,
    acked: Option<Level>,
    /// Tasks done since the ack level was noted.
    done: u64,
}

impl DeskRank {
    /// A rank that never had a task before.
    fn first(buffer: Buffer) -> DeskRank {
        DeskRank { reader: Reader::of_empty(buffer), virtual_time: 0, known_time: 0, acked: None, done: 0 }
    }

    fn new(buffer: Buffer, acked: Option<Level>, virtual_time: u64) -> DeskRank {
        DeskRank {
            reader: Reader::new(acked, buffer),
            virtual_time,
            known_time: virtual_time,
            acked,
            done: 0,
        }
    }

    /// How far everything is done, if that is further than was noted. It stays below the virtual time that the machine
    /// knows, where tasks that are on their way through the log may still come to lie.
    fn ack(&self) -> Option<Level> {
        let known = below(Level { pass: self.known_time, id: first_id() })?;
        // Nothing at all is said of what lies above R, where tasks may be out before others are read.
        let read_to = self.reader.read_to()?;
        let undone = match self.reader.lowest_undone() {
            Some(level) => below(level)?.min(read_to),
            None => read_to,
        };
        let level = known.min(undone);
        (self.acked < Some(level)).then_some(level)
    }
}

/// The level just before another, if there is one.
fn below(level: Level) -> Option<Level> {
    match level.id.as_u64() {
        1 => Some(Level { pass: level.pass.checked_sub(1)?, id: last_id() }),
        number => Some(Level { pass: level.pass, id: TaskId::from_u64(number - 1)? }),
    }
}

fn first_id() -> TaskId {
    TaskId::from_u64(1).expect("1 is an id")
}

fn last_id() -> TaskId {
    TaskId::from_u64(u64::MAX >> 1).expect("the largest number of 63 bits is an id")
}

impl Desk {
    /// The desk of a leadership that begins: nothing is read, nothing is out.
    pub fn new(lanes: &LanesState, next_due: Option<At>, buffer: Buffer) -> Desk {
        let mut desk = Desk { buffer, next_due, ..Desk::default() };
        for lane in lanes.all() {
            desk.set_lane(lane.row().number, lane.name(), lane.row().is_paused);
            for (priority, rank) in lane.ranks() {
                let name = RankName { lane: lane.row().number, priority };
                let it = DeskRank::new(buffer, rank.row().acked, rank.row().virtual_time);
                desk.lanes.entry(name.lane).or_default().ranks.insert(priority, it);
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
        ranks.map(|rank| rank.reader.out_len()).sum()
    }

    /// Whether what a lane gives next is being read.
    pub fn is_reading(&self, lane: LaneNumber) -> bool {
        let Some(lane) = self.lanes.get(&lane).filter(|lane| !lane.is_paused) else { return false };
        let mut known = lane.ranks.values().rev().map(|rank| &rank.reader);
        known
            .find(|reader| reader.ready_len() > 0 || !reader.is_at_end())
            .is_some_and(Reader::is_waiting_for_rows)
    }

    /// How far the tasks of some priorities of a lane have been handed out, for tasks that are about to be added.
    pub fn handed_out(&self, lane: &str, priorities: impl IntoIterator<Item = u8>) -> Vec<HandedOut> {
        let lane = self.lane(lane).and_then(|number| self.lanes.get(&number));
        let of = |priority| {
            let pass = lane.and_then(|lane| lane.ranks.get(&priority)).map_or(0, |rank| rank.virtual_time);
            HandedOut { priority, pass }
        };
        priorities.into_iter().map(of).collect()
    }

    /// How far a rank's reader has read, whether that is the end, how many tasks are ready and how many out, and how far it
    /// has handed out.
    pub fn look(&self, name: RankName) -> Option<RankSeen> {
        let rank = self.lanes.get(&name.lane)?.ranks.get(&name.priority)?;
        Some(RankSeen {
            read_to: rank.reader.read_to(),
            is_at_end: rank.reader.is_at_end(),
            ready: rank.reader.ready_len(),
            out: rank.reader.out_len(),
            virtual_time: rank.virtual_time,
        })
    }

    /// The tasks that are out, for the audit.
    pub(crate) fn tasks_out(&self) -> impl Iterator<Item = TaskId> {
        self.out.keys().copied()
    }

    /// Whether nothing of a lane is handed out, for the audit.
    pub(super) fn is_paused(&self, lane: LaneNumber) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.is_paused)
    }

    /// The reader of a rank, for the audit.
    pub(super) fn reader(&self, name: RankName) -> Option<&Reader> {
        Some(&self.lanes.get(&name.lane)?.ranks.get(&name.priority)?.reader)
    }

    /// Whether it is going to be seen what is to be read of a rank, for the audit.
    pub(super) fn is_asking(&self, name: RankName) -> bool {
        self.stirred.contains(&name)
    }

    /// What could be noted of a rank now, for the audit.
    pub(super) fn may_ack(&self, name: RankName) -> Option<Level> {
        self.lanes.get(&name.lane)?.ranks.get(&name.priority)?.ack()
    }

    /// Where each task is that is out, for the audit.
    pub(super) const fn out(&self) -> &BTreeMap<TaskId, RankName> {
        &self.out
    }

    /// Hands out the next task of a lane.
    pub fn hand_out(&mut self, lane: LaneNumber) -> Next {
        let Some(desk_lane) = self.lanes.get_mut(&lane).filter(|lane| !lane.is_paused) else {
            return Next::Nothing;
        };
        for (priority, rank) in desk_lane.ranks.iter_mut().rev() {
            let name = RankName { lane, priority: *priority };
            let placed = rank.reader.hand_out();
            if rank.reader.needs_rows() {
                self.stirred.insert(name);
            }
            if let Some(placed) = placed {
                rank.virtual_time = rank.virtual_time.max(placed.level.pass);
                self.out.insert(placed.level.id, name);
                return Next::Task(placed);
            }
            if rank.reader.is_waiting_for_rows() {
                return Next::BeingRead;
            }
        }
        Next::Nothing
    }

    /// The tasks of a rank that are out.
    pub fn out_of(&self, name: RankName) -> BTreeSet<TaskId> {
        let rank = self.lanes.get(&name.lane).and_then(|lane| lane.ranks.get(&name.priority));
        rank.map(|rank| rank.reader.out_ids().collect()).unwrap_or_default()
    }

    /// Whether a task is out.
    pub fn is_out(&self, id: TaskId) -> bool {
        self.out.contains_key(&id)
    }

    /// Takes a task back that nobody works on any more.
    pub fn put_back(&mut self, id: TaskId) {
        let Some(name) = self.out.remove(&id) else { return };
        let Some(rank) = self.rank_mut(name) else { return };
        rank.reader.put_back(id);
        self.stir(name);
    }

    /// A consumer still works on a task of an earlier leader; `name` and `placed` are what its row says.
    pub fn hold(&mut self, name: RankName, placed: Placed) {
        let Some(rank) = self.rank_mut(name) else { return };
        rank.virtual_time = rank.virtual_time.max(placed.level.pass);
        let id = placed.level.id;
        rank.reader.hold(placed);
        self.out.insert(id, name);
    }

    /// Follows what was applied.
    pub fn absorb(&mut self, effect: &Effect) {
        match effect {
            Effect::LaneSet { lane, name, is_paused } => self.set_lane(*lane, name, *is_paused),
            Effect::TaskPlaced { rank: name, level, key, virtual_time } => {
                let lane = self.lanes.entry(name.lane).or_default();
                let rank = lane.ranks.entry(name.priority).or_insert_with(|| DeskRank::first(self.buffer));
                rank.known_time = rank.known_time.max(*virtual_time);
                rank.virtual_time = rank.virtual_time.max(*virtual_time);
                rank.reader.place(Placed { level: *level, key: (&**key).into() });
                self.stir(*name);
            }
            Effect::TaskUnplaced { rank: name, level, virtual_time, .. } => {
                self.out.remove(&level.id);
                let Some(rank) = self.rank_mut(*name) else { return };
                rank.reader.remove(*level);
                rank.known_time = rank.known_time.max(*virtual_time);
                rank.virtual_time = rank.virtual_time.max(*virtual_time);
                rank.done += 1;
                if rank.done % LANE_ACK_EVERY_TASKS == 0 {
                    self.advanced.insert(*name);
                }
                self.stirred.insert(*name);
            }
            Effect::TaskDelayed { until } => self.note_due(*until),
            Effect::TaskGone { task } => {
                let Some(name) = self.out.remove(task) else { return };
                let Some(rank) = self.rank_mut(name) else { return };
                rank.reader.forget(*task);
            }
            Effect::Ready { .. }
            | Effect::Changed { .. }
            | Effect::Weighed { .. }
            | Effect::Done { .. }
            | Effect::Failed { .. }
            | Effect::Over { .. } => {}
        }
    }

    fn set_lane(&mut self, number: LaneNumber, name: &str, is_paused: bool) {
        self.numbers.insert(name.to_owned(), number);
        let lane = self.lanes.entry(number).or_default();
        name.clone_into(&mut lane.name);
        lane.is_paused = is_paused;
        if !is_paused {
            self.woken.insert(number);
        }
    }

    fn rank_mut(&mut self, name: RankName) -> Option<&mut DeskRank> {
        self.lanes.get_mut(&name.lane)?.ranks.get_mut(&name.priority)
    }

    fn stir(&mut self, name: RankName) {
        self.stirred.insert(name);
        self.woken.insert(name.lane);
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
            let Some(rank) = self.rank_mut(name) else { continue };
            errands.extend(rank.reader.next_read().map(|read| Errand::Read { rank: name, read }));
        }
        for name in std::mem::take(&mut self.advanced) {
            let Some(rank) = self.rank_mut(name) else { continue };
            if let Some(level) = rank.ack() {
                (rank.acked, rank.done) = (Some(level), 0);
                let RankName { lane, priority } = name;
                errands.push(Errand::Note(Ack { lane, priority, level }));
            }
        }
        errands
    }

    /// Some time has passed: how far everything is done is noted for every rank that has come on.
    pub fn note_all(&mut self) {
        let ranks = self.lanes.iter().flat_map(|(lane, it)| {
            let advanced = it.ranks.iter().filter(|(_, rank)| rank.done > 0);
            advanced.map(|(priority, _)| RankName { lane: *lane, priority: *priority })
        });
        self.advanced.extend(ranks);
    }

    /// Takes in what was read for an errand.
    pub fn take_in(&mut self, name: RankName, rows: Vec<Placed>, is_end: bool) {
        let Some(rank) = self.rank_mut(name) else { return };
        rank.reader.take_in(rows, is_end);
        self.stir(name);
    }

    /// A read could not be carried out: it is asked for again.
    pub fn give_up_read(&mut self, name: RankName) {
        let Some(rank) = self.rank_mut(name) else { return };
        rank.reader.give_up_read();
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

/// What a lane gives next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// This task, which is out from here on.
    Task(Placed),
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
        /// Of which rank.
        rank: RankName,
        /// Which ones.
        read: Read,
    },
    /// How far everything of a rank is done, for the log.
    Note(Ack),
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
}
