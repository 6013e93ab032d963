//! State: the lanes and their ranks, in memory, and how they reach the tables.
//!
//! Invariants
//! - Memory holds what the rows hold once everything is flushed.
//! - The counts of a rank are sums over its keys and tasks.

use super::acks::Ack;
use super::groups;
use super::key_order::KeyOrder;
use super::levels::{LaneNumber, Level, RankName, Weight, tenant_of};
use super::limiting::LaneLimits;
use super::listing::{DeadTask, dead_after};
use super::places::{PlaceRow, delete_key_level, delete_place, put_key_level, put_place};
use super::ranks::{Changed, Rank, RankRow, Tenant};
use super::shares::{KeyRow, Shares};
use super::tasks::{HandedOut, TaskId};
use crate::effect::{Effect, Times};
use crate::entry::{Applied, Outcome};
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
    /// How much may be handed out at a time.
    #[n(5)]
    #[cbor(default)]
    pub limits: LaneLimits,
    /// Whether each key's own tasks are kept in order.
    #[n(6)]
    #[cbor(default)]
    pub key_order: KeyOrder,
}

impl LaneRow {
    /// The weight that a key or tenant has by its name.
    pub fn weight_of(&self, name: &str) -> Option<Weight> {
        self.weights.get(name).copied()
    }

    /// How far apart the turns of a tenant are.
    pub fn tenant_stride(&self, tenant: &str) -> u32 {
        self.weight_of(tenant).unwrap_or_default().stride()
    }
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
    /// How many tasks are left in the groups that have changed.
    groups_left: BTreeMap<TaskId, u32>,
    /// No delayed task stands before this key: what was released leaves remains, over which a walk would have to step.
    delayed_from: [u8; 16],
    /// The same for the dead tasks of lanes of which that is known, by id.
    dead_from: BTreeMap<LaneNumber, TaskId>,
}

/// Where a task is to stand, and how far behind it the next one of its key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) pass: u64,
    pub(super) stride: u32,
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

    /// How many tasks it has that are not done.
    pub fn undone(&self) -> u64 {
        self.ranks.values().map(|rank| rank.row.waiting + rank.row.delayed + rank.row.dead).sum()
    }

    /// One of its priorities, if it ever had tasks.
    pub(super) fn rank(&self, priority: u8) -> Option<&Rank> {
        self.ranks.get(&priority)
    }

    /// How many of its tasks have a level.
    pub fn waiting(&self) -> u64 {
        self.ranks.values().map(|rank| rank.row.waiting).sum()
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
        for (row_key, bytes) in tables.scan_prefix(Table::Tenants, &[]) {
            let (name, tenant) = key_of_row(&row_key);
            let row = rows::decode(Table::Tenants, &row_key, &bytes);
            state.rank_mut(name).tenants.insert(tenant, Tenant { row, users: Shares::default() });
        }
        for (row_key, bytes) in tables.scan_prefix(Table::LaneKeys, &[]) {
            let (name, key) = key_of_row(&row_key);
            let row: KeyRow = rows::decode(Table::LaneKeys, &row_key, &bytes);
            let rank = state.rank_mut(name);
            match tenant_of(&key).filter(|tenant| **tenant != *key) {
                Some(tenant) => {
                    let tenant = rank.tenants.get_mut(tenant).expect("a user's tenant has its row");
                    tenant.users.open(key, row);
                }
                None => rank.shares.open(key, row),
            }
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

    /// Writes what is said of a lane, new or old, and says so.
    pub(super) fn set_lane(&mut self, tables: &mut dyn Tables, name: &str, row: LaneRow) -> Applied {
        tables.put(Table::Lanes, name.as_bytes(), rows::encode(&row));
        let effect = Effect::LaneSet { lane: row.number, name: name.to_owned(), row: Box::new(row.clone()) };
        self.numbers.insert(name.to_owned(), row.number);
        match self.lanes.get_mut(&row.number) {
            Some(lane) => lane.row = row,
            None => {
                drop(self.lanes.insert(row.number, Lane { name: name.into(), row, ranks: BTreeMap::new() }))
            }
        }
        Applied { outcome: Outcome::LaneSet, effects: vec![effect] }
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

    /// Moves a rank's virtual time on, or that of a tenant of it.
    pub(super) fn advance(&mut self, name: RankName, handed_out: &HandedOut) {
        let tenant = handed_out.tenant.as_deref();
        let is_news = match (self.rank(name), tenant) {
            (Some(rank), Some(name)) => rank.time_of_tenant(name) < handed_out.pass,
            (Some(rank), None) => rank.row.virtual_time < handed_out.pass,
            (None, tenant) => tenant.is_none() && handed_out.pass > 0,
        };
        if is_news {
            match tenant {
                Some(tenant) => self.rank_mut(name).advance_tenant(tenant, handed_out.pass),
                None => self.rank_mut(name).advance(handed_out.pass),
            }
        }
    }

    /// Notes how far everything of a rank or tenant is done.
    pub(super) fn set_acked(&mut self, name: RankName, it: &Ack) {
        self.rank_mut(name).set_acked(it);
    }

    /// One priority of a lane, if it ever had tasks.
    pub fn rank(&self, name: RankName) -> Option<&Rank> {
        self.lanes.get(&name.lane)?.ranks.get(&name.priority)
    }

    /// The virtual times that count for a key.
    pub(super) fn times(&self, name: RankName, key: &str) -> Times {
        self.rank(name).map_or(Times { rank: 0, tenant: 0 }, |rank| rank.times(key))
    }

    /// The place of a new task of a key, which is charged for it.
    pub(super) fn charge(&mut self, name: RankName, key: &str, weight: Weight) -> Charge {
        let of_key = self.lanes.get(&name.lane).and_then(|lane| lane.row.weight_of(key));
        let stride = of_key.unwrap_or(weight).stride();
        Charge { pass: self.rank_mut(name).charge(key, stride), stride }
    }

    /// The place of a task that was charged to its key before: right where the others are.
    pub(super) fn charge_nothing(&self, name: RankName, key: &str) -> Charge {
        let times = self.times(name, key);
        let pass = if tenant_of(key).is_some() { times.tenant } else { times.rank };
        Charge { pass, stride: 0 }
    }

    /// The weight that a tenant has by its name may be another one now.
    pub(super) fn reweigh_tenant(&mut self, number: LaneNumber, tenant: &str) {
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        let stride = lane.row.tenant_stride(tenant);
        for (priority, rank) in &mut lane.ranks {
            rank.set_tenant_stride(tenant, stride);
            self.changed_ranks.insert(RankName { lane: number, priority: *priority });
        }
    }

    fn tenant_stride(&self, name: RankName, key: &str) -> u32 {
        let lane = self.lanes.get(&name.lane).expect("a rank belongs to a lane");
        tenant_of(key).map_or(0, |tenant| lane.row.tenant_stride(tenant))
    }

    fn writes_key_order(&self, lane: LaneNumber) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.row.key_order.is_written())
    }

    /// Puts a task into its place.
    pub(super) fn place(
        &mut self,
        tables: &mut dyn Tables,
        name: RankName,
        level: Level,
        row: &PlaceRow<'_>,
    ) {
        let key = row.key;
        put_place(tables, name, level, row);
        if self.writes_key_order(name.lane) {
            put_key_level(tables, name, key, level, row.stride);
        }
        let tenant_stride = self.tenant_stride(name, key);
        self.rank_mut(name).enter(key, level, tenant_stride);
    }

    /// Takes a task out of its place; `is_charged` says whether this was its tenant's turn.
    pub(super) fn take_out(
        &mut self,
        tables: &mut dyn Tables,
        name: RankName,
        key: &str,
        level: Level,
        is_charged: bool,
    ) {
        delete_place(tables, name, key, level);
        if self.writes_key_order(name.lane) {
            delete_key_level(tables, name, key, level);
        }
        let tenant_cost = if is_charged { self.tenant_stride(name, key) } else { 0 };
        self.rank_mut(name).leave(key, level, tenant_cost);
    }

    /// Where a walk along delayed tasks begins.
    pub(super) const fn delayed_from(&self) -> &[u8; 16] {
        &self.delayed_from
    }

    /// The first delayed task, if there is one, stands here.
    pub(super) fn set_delayed_from(&mut self, first: Option<[u8; 16]>) {
        self.delayed_from = first.unwrap_or([u8::MAX; 16]);
    }

    /// A task is delayed.
    pub(super) fn note_delayed(&mut self, key: [u8; 16]) {
        self.delayed_from = self.delayed_from.min(key);
    }

    /// The dead tasks of a lane after one, in the order of their ids.
    pub fn dead_after<'t>(
        &self,
        tables: &'t dyn Tables,
        lane: LaneNumber,
        after: Option<TaskId>,
    ) -> impl Iterator<Item = DeadTask> + use<'t> {
        let first = self.dead_from.get(&lane);
        let known = first.and_then(|first| TaskId::from_u64(first.as_u64() - 1));
        dead_after(tables, lane, after.max(known))
    }

    /// The first dead task of a lane, if there is one, is this.
    pub(super) fn set_dead_from(&mut self, lane: LaneNumber, first: Option<TaskId>) {
        self.dead_from.insert(lane, first.unwrap_or(TaskId::last()));
    }

    /// A task of a lane is dead.
    pub(super) fn note_dead(&mut self, lane: LaneNumber, id: TaskId) {
        if let Some(first) = self.dead_from.get_mut(&lane) {
            *first = id.min(*first);
        }
    }

    /// A group has so many tasks.
    pub(super) fn open_group(&mut self, first: TaskId, tasks: u32) {
        self.groups_left.insert(first, tasks);
    }

    /// A task is in its group no more.
    pub(super) fn leave_group(&mut self, tables: &dyn Tables, id: TaskId, position: u8) {
        let first = groups::first_of(id, position);
        let left = self.groups_left.entry(first).or_insert_with(|| {
            let row = tables.get(Table::GroupsLeft, &first.key()).expect("a group that has tasks is counted");
            rows::decode(Table::GroupsLeft, &first.key(), &row)
        });
        *left -= 1;
    }

    /// A task of a key has got another level.
    pub(super) fn raise_highest(&mut self, name: RankName, key: &str, level: Level) {
        if tenant_of(key).is_none() {
            self.count(name, |row| row.highest = row.highest.max(Some(level)));
        }
    }

    /// Says where the next task of a key starts at the earliest.
    pub(super) fn set_finish(&mut self, name: RankName, key: &str, finish: u64, stride: u32) {
        self.rank_mut(name).set_finish(key, finish, stride);
    }

    /// Writes every changed row.
    pub(crate) fn flush(&mut self, tables: &mut dyn Tables) {
        for (first, left) in std::mem::take(&mut self.groups_left) {
            let left = (left > 0).then_some(left);
            put_or_delete(tables, Table::GroupsLeft, &first.key(), left.as_ref());
            if left.is_none() {
                tables.delete(Table::TaskGroups, &first.key());
            }
        }
        for name in std::mem::take(&mut self.changed_ranks) {
            let lane = self.lanes.get_mut(&name.lane).expect("a rank belongs to a lane");
            let rank = lane.ranks.get_mut(&name.priority).expect("what was changed is there");
            tables.put(Table::Ranks, &name.key(), rows::encode(&rank.row));
            let Changed { keys, tenants } = rank.take_changed();
            for (key, row) in keys {
                put_or_delete(tables, Table::LaneKeys, &name.key_of_key(&key), row.as_ref());
            }
            for (tenant, row) in tenants {
                put_or_delete(tables, Table::Tenants, &name.key_of_key(&tenant), row.as_ref());
            }
        }
    }
}

fn put_or_delete<T: Encode<()>>(tables: &mut dyn Tables, table: Table, key: &[u8], row: Option<&T>) {
    match row {
        Some(row) => tables.put(table, key, rows::encode(row)),
        None => tables.delete(table, key),
    }
}

/// The rank and the key in a row's key.
pub(super) fn key_of_row(row_key: &[u8]) -> (RankName, Box<str>) {
    let name = RankName::from_key(row_key).expect("a key's row begins with its rank");
    (name, std::str::from_utf8(&row_key[6..]).expect("a key is text").into())
}
