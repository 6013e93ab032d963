//! State: the lanes, their ranks and the keys that have tasks, in memory, and how they reach the tables.
//!
//! Invariants
//! - Memory holds what the rows hold once everything is flushed.
//! - A rank's virtual time never goes back, and no task is given a pass below it.
//! - A key is remembered exactly while it has tasks with a level, or its finish tag lies above the virtual time: below it,
//!   the tag says nothing. When nothing waits, the virtual time moves behind all tags. (Of very many keys without tasks, those
//!   nearest to their turn are forgotten.)
//! - The counts of a rank are sums over its keys and tasks.

use super::levels::{LaneNumber, Level, RankName, Weight};
use super::tasks::{Standing, Task, TaskId};
use crate::limits::{LANE_IDLE_KEYS_MAX, TASK_PAYLOAD_IN_ROW_BYTES_MAX};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// What is said of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LaneRow {
    /// Its number.
    #[n(0)]
    pub number: LaneNumber,
    /// When it was created.
    #[n(1)]
    pub created_at: At,
    /// Nothing of it is handed out.
    #[n(2)]
    pub is_paused: bool,
    /// It takes no more tasks.
    #[n(3)]
    pub is_draining: bool,
    /// Weights of keys, which go before those that tasks come with.
    #[n(4)]
    #[cbor(default)]
    pub weights: BTreeMap<String, Weight>,
}

/// The tasks of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct RankRow {
    /// The virtual time V: the highest pass that is known to be handed out.
    #[n(0)]
    pub virtual_time: u64,
    /// The ack level A: everything up to it is done.
    #[n(1)]
    pub acked: Option<Level>,
    /// The highest level M that was ever given.
    #[n(2)]
    pub highest: Option<Level>,
    /// Tasks that have a level.
    #[n(3)]
    pub waiting: u64,
    /// Tasks that are not due yet.
    #[n(4)]
    pub delayed: u64,
    /// Tasks that have failed for good.
    #[n(5)]
    pub dead: u64,
    /// Tasks ever added.
    #[n(6)]
    pub added: u64,
    /// Tasks ever done.
    #[n(7)]
    pub done: u64,
}

/// How many tasks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskCounts {
    /// Tasks that have a level.
    pub waiting: u64,
    /// Tasks that are not due yet.
    pub delayed: u64,
    /// Tasks that have failed for good.
    pub dead: u64,
}

/// A key of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct KeyRow {
    /// Where its next task starts at the earliest: the pass of the last one and that one's stride.
    #[n(0)]
    pub finish: u64,
    /// Its tasks that have a level.
    #[n(1)]
    pub waiting: u64,
}

/// One priority of a lane, in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rank {
    row: RankRow,
    keys: BTreeMap<Box<str>, KeyRow>,
    /// Keys without tasks, by finish tag: they go as the virtual time passes it.
    idle: BTreeSet<(u64, Box<str>)>,
}

/// A lane, in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    name: String,
    row: LaneRow,
    ranks: BTreeMap<u8, Rank>,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct LanesState {
    lanes: BTreeMap<LaneNumber, Lane>,
    numbers: BTreeMap<String, LaneNumber>,
    changed_ranks: BTreeSet<RankName>,
    changed_keys: BTreeSet<(RankName, Box<str>)>,
}

impl Rank {
    /// What the rank's row says.
    pub const fn row(&self) -> &RankRow {
        &self.row
    }

    /// Its keys that are remembered, in order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &KeyRow)> {
        self.keys.iter().map(|(key, row)| (&**key, row))
    }

    /// How many keys have tasks with a level.
    pub fn keys_waiting(&self) -> usize {
        self.keys.len() - self.idle.len()
    }

    /// What is known of a key.
    pub fn key(&self, key: &str) -> Option<&KeyRow> {
        self.keys.get(key)
    }
}

impl Lane {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is said of it.
    pub const fn row(&self) -> &LaneRow {
        &self.row
    }

    /// Its priorities that ever had tasks, the lowest first.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = (u8, &Rank)> {
        self.ranks.iter().map(|(priority, rank)| (*priority, rank))
    }
}

impl LanesState {
    /// The lanes whose rows are in these tables.
    pub(crate) fn open(tables: &dyn Tables) -> LanesState {
        let mut state = LanesState::default();
        for (key, bytes) in tables.scan_prefix(Table::Lanes, &[]) {
            let row: LaneRow = rows::decode(Table::Lanes, &key, &bytes);
            let name = String::from_utf8(key).expect("a lane's name is text");
            state.numbers.insert(name.clone(), row.number);
            state.lanes.insert(row.number, Lane { name, row, ranks: BTreeMap::new() });
        }
        for (key, bytes) in tables.scan_prefix(Table::Ranks, &[]) {
            let name = RankName::from_key(&key).expect("a rank's row has its name as key");
            state.rank_mut(name).row = rows::decode(Table::Ranks, &key, &bytes);
        }
        for (row_key, bytes) in tables.scan_prefix(Table::LaneKeys, &[]) {
            let name = RankName::from_key(&row_key).expect("a key's row begins with its rank");
            let key: Box<str> = std::str::from_utf8(&row_key[6..]).expect("a key is text").into();
            let row: KeyRow = rows::decode(Table::LaneKeys, &row_key, &bytes);
            let rank = state.rank_mut(name);
            if row.waiting == 0 {
                rank.idle.insert((row.finish, key.clone()));
            }
            rank.keys.insert(key, row);
        }
        state.changed_ranks.clear();
        state
    }

    /// The lane of this name.
    pub fn by_name(&self, name: &str) -> Option<&Lane> {
        self.numbers.get(name).and_then(|number| self.lanes.get(number))
    }

    /// The lane of this number.
    pub fn by_number(&self, number: LaneNumber) -> Option<&Lane> {
        self.lanes.get(&number)
    }

    /// All lanes, by name.
    pub fn all(&self) -> impl Iterator<Item = &Lane> {
        self.numbers.values().filter_map(|number| self.lanes.get(number))
    }

    /// How many tasks all lanes have.
    pub fn totals(&self) -> TaskCounts {
        let ranks = self.lanes.values().flat_map(|lane| lane.ranks.values());
        ranks.fold(TaskCounts::default(), |sum, rank| TaskCounts {
            waiting: sum.waiting + rank.row.waiting,
            delayed: sum.delayed + rank.row.delayed,
            dead: sum.dead + rank.row.dead,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Writes what is said of a lane, new or old.
    pub(super) fn set_lane(&mut self, tables: &mut dyn Tables, name: &str, row: LaneRow) {
        tables.put(Table::Lanes, name.as_bytes(), rows::encode(&row));
        self.numbers.insert(name.to_owned(), row.number);
        match self.lanes.get_mut(&row.number) {
            Some(lane) => lane.row = row,
            None => {
                drop(self.lanes.insert(row.number, Lane { name: name.into(), row, ranks: BTreeMap::new() }))
            }
        }
    }

    /// The number that a new lane gets.
    pub(super) fn next_number(&self) -> LaneNumber {
        LaneNumber(self.lanes.last_key_value().map_or(1, |(number, _)| number.0 + 1))
    }

    fn rank_mut(&mut self, name: RankName) -> &mut Rank {
        let lane = self.lanes.get_mut(&name.lane).expect("a rank belongs to a lane");
        self.changed_ranks.insert(name);
        lane.ranks.entry(name.priority).or_default()
    }

    /// Changes the counts of a rank.
    pub(super) fn count(&mut self, name: RankName, change: impl FnOnce(&mut RankRow)) {
        change(&mut self.rank_mut(name).row);
    }

    /// Moves a rank's virtual time on, and forgets the keys whose finish tags say nothing any more.
    pub(super) fn advance(&mut self, name: RankName, pass: u64) {
        if pass <= self.virtual_time(name) {
            return;
        }
        let lane = self.lanes.get_mut(&name.lane).expect("a rank belongs to a lane");
        let rank = lane.ranks.entry(name.priority).or_default();
        rank.row.virtual_time = pass;
        self.changed_ranks.insert(name);
        while let Some((finish, _)) = rank.idle.first()
            && *finish <= pass
            && let Some((_, key)) = rank.idle.pop_first()
        {
            rank.keys.remove(&key);
            self.changed_keys.insert((name, key));
        }
    }

    /// A rank's virtual time.
    pub(super) fn virtual_time(&self, name: RankName) -> u64 {
        let rank = self.lanes.get(&name.lane).and_then(|lane| lane.ranks.get(&name.priority));
        rank.map_or(0, |rank| rank.row.virtual_time)
    }

    /// The pass of a new task of a key, which is charged for it: start-time fair queueing.
    pub(super) fn charge(&mut self, name: RankName, key: &str, weight: Weight) -> u64 {
        let of_key = self.lanes.get(&name.lane).and_then(|lane| lane.row.weights.get(key));
        let weight = of_key.copied().unwrap_or(weight);
        let rank = self.rank_mut(name);
        let finish = rank.keys.get(key).map_or(0, |it| it.finish);
        let pass = finish.max(rank.row.virtual_time);
        self.change_key(name, key, |it| it.finish = pass.saturating_add(weight.stride()));
        pass
    }

    /// Puts a task into its place.
    pub(super) fn place(&mut self, tables: &mut dyn Tables, name: RankName, key: &str, level: Level) {
        tables.put(Table::Levels, &name.key_of_level(level), key.as_bytes().to_vec());
        tables.put(Table::KeyLevels, &key_of_key_level(name, key, level), Vec::new());
        self.change_key(name, key, |it| it.waiting += 1);
        self.count(name, |row| {
            row.waiting += 1;
            row.highest = row.highest.max(Some(level));
        });
    }

    /// Takes a task out of its place: it was handed out, so the virtual time is at least there.
    pub(super) fn take_out(&mut self, tables: &mut dyn Tables, name: RankName, key: &str, level: Level) {
        tables.delete(Table::Levels, &name.key_of_level(level));
        tables.delete(Table::KeyLevels, &key_of_key_level(name, key, level));
        self.change_key(name, key, |it| it.waiting -= 1);
        self.count(name, |row| row.waiting -= 1);
        self.advance(name, level.pass);
        self.end_busy_period(name);
    }

    /// Nothing waits any more: nobody is owed anything, so the virtual time moves behind every turn, and all keys are
    /// forgotten.
    fn end_busy_period(&mut self, name: RankName) {
        let rank = self.rank_mut(name);
        if rank.row.waiting == 0
            && let Some(last) = rank.idle.last().map(|(finish, _)| *finish)
        {
            self.advance(name, last);
        }
    }

    fn change_key(&mut self, name: RankName, key: &str, change: impl FnOnce(&mut KeyRow)) {
        let rank = self.rank_mut(name);
        let (key, mut row) = match rank.keys.get_key_value(key) {
            Some((key, row)) => (key.clone(), *row),
            None => (key.into(), KeyRow::default()),
        };
        if row.waiting == 0 {
            rank.idle.remove(&(row.finish, key.clone()));
        }
        change(&mut row);
        if row.waiting > 0 {
            rank.keys.insert(key.clone(), row);
        } else if row.finish > rank.row.virtual_time {
            rank.idle.insert((row.finish, key.clone()));
            rank.keys.insert(key.clone(), row);
            if rank.idle.len() > LANE_IDLE_KEYS_MAX
                && let Some((_, nearest)) = rank.idle.pop_first()
            {
                rank.keys.remove(&nearest);
                self.changed_keys.insert((name, nearest));
            }
        } else {
            rank.keys.remove(&key);
        }
        self.changed_keys.insert((name, key));
    }

    /// Writes every changed row.
    pub(crate) fn flush(&mut self, tables: &mut dyn Tables) {
        for name in std::mem::take(&mut self.changed_ranks) {
            let rank = &self.lanes[&name.lane].ranks[&name.priority];
            tables.put(Table::Ranks, &name.key(), rows::encode(&rank.row));
        }
        for (name, key) in std::mem::take(&mut self.changed_keys) {
            let row_key = name.key_of_key(&key);
            match self.lanes[&name.lane].ranks[&name.priority].keys.get(&key) {
                Some(row) => tables.put(Table::LaneKeys, &row_key, rows::encode(row)),
                None => tables.delete(Table::LaneKeys, &row_key),
            }
        }
    }
}

/// The key of a level's row among those of its key.
pub(super) fn key_of_key_level(name: RankName, key: &str, level: Level) -> Vec<u8> {
    let mut row_key = name.key_of_key(key);
    row_key.extend_from_slice(&level.key());
    row_key
}

/// The row of a task that is not done.
pub(super) fn task(tables: &dyn Tables, id: TaskId) -> Option<Task> {
    tables.get(Table::Tasks, &id.key()).map(|row| Task::from_row(id, &row))
}

/// Writes the row of a task, and its payload apart if that is large and new.
pub(super) fn put_task(tables: &mut dyn Tables, id: TaskId, mut task: Task) {
    if let Some(payload) = &task.payload
        && payload.bytes() > TASK_PAYLOAD_IN_ROW_BYTES_MAX
    {
        tables.put(Table::Payloads, &id.key(), rows::encode(payload));
        task.payload = None;
    }
    tables.put(Table::Tasks, &id.key(), rows::encode(&task));
}

/// Removes a task's own rows.
pub(super) fn delete_task(tables: &mut dyn Tables, id: TaskId, task: &Task) {
    tables.delete(Table::Tasks, &id.key());
    if task.payload.is_none() {
        tables.delete(Table::Payloads, &id.key());
    }
    match task.standing {
        Standing::Waiting { .. } => {}
        Standing::Delayed { until } => tables.delete(Table::DelayedTasks, &super::delayed::key(until, id)),
        Standing::Dead => tables.delete(Table::DeadTasks, &super::settle::key_of_dead(task.lane, id)),
    }
}
