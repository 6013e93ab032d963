//! The lanes' part of the audit: everything that the heads of the files promise, recounted from the rows. For tests.
//!
//! The checks stand in the order in which the files' heads list them: `places`, `groups`, `key_order`, `state`, `acks`, `delayed`, then
//! `reader`, `desk`.

use super::acks::levels_above;
use super::desk::Desk;
use super::groups;
use super::key_order::{KeyOrder, Making};
use super::levels::{Level, QueueName, RankName, is_tenant, tenant_of};
use super::places::{PlaceRow, key_of_key_level, row_in_queue};
use super::queue::Queue;
use super::ranks::Rank;
use super::shares::{KeyRow, Shares};
use super::state::LanesState;
use super::tasks::{PayloadRef, Standing, Task, TaskId};
use super::{delayed, settle};
use crate::limits::TASK_PAYLOAD_IN_ROW_BYTES_MAX;
use crate::tables::{Table, Tables, Walk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Every task that is not done, as its row says.
type Tasks = BTreeMap<TaskId, Task>;

/// The levels of a rank, with the keys of their tasks.
type Levels = BTreeMap<Level, Arc<str>>;

/// Checks the rows of lanes, and that memory says the same. Everything must be flushed.
///
/// # Panics
/// If an invariant does not hold; the message says which.
pub(crate) fn check(lanes: &LanesState, tables: &dyn Tables) {
    let mut tasks: Tasks = tables
        .scan_prefix(Table::Tasks, &[])
        .map(|(key, row)| {
            let id = TaskId::from_key(&key).expect("a task's row has its id as key");
            (id, Task::from_row(id, &row))
        })
        .collect();
    check_groups(tables, &mut tasks);
    check_memory(lanes, tables);
    check_places(lanes, tables, &tasks);
    for lane in lanes.all() {
        for (priority, rank) in lane.ranks() {
            let name = RankName { lane: lane.row().number, priority };
            let of_rank =
                tasks.iter().filter(|(_, task)| task.lane == name.lane && task.priority == priority);
            check_rank(name, rank, &of_rank.collect::<Vec<_>>());
        }
    }
    check_payloads(tables, &tasks);
}

fn check_memory(lanes: &LanesState, tables: &dyn Tables) {
    let reopened = LanesState::open(tables);
    assert!(lanes.all().eq(reopened.all()), "memory holds what the rows of lanes, ranks and keys hold");
    assert_eq!(lanes.len(), reopened.len(), "memory holds no more lanes than the rows");
    assert_eq!(lanes.all().count(), lanes.len(), "each lane has one name");
    for lane in lanes.all() {
        let number = lane.row().number;
        assert_eq!(lanes.by_number(number), Some(lane), "a lane is found by its number");
        assert_eq!(lanes.by_name(lane.name()), Some(lane), "a lane is found by its name");
    }
}

/// Adds the tasks that are in groups to those that have rows of their own.
fn check_groups(tables: &dyn Tables, tasks: &mut Tasks) {
    let mut counts = Vec::new();
    for (row_key, row) in tables.scan_prefix(Table::TaskGroups, &[]) {
        let first = TaskId::from_key(&row_key).expect("a group's row has its first id as key");
        let mut count = 0_u32;
        for (id, task, position) in groups::tasks_of(first, &row) {
            let Standing::Waiting { pass } = task.standing else { panic!("task {id} was placed") };
            let name = RankName { lane: task.lane, priority: task.priority };
            let (table, place_key) = row_in_queue(name, tenant_of(&task.key), Level { pass, id });
            let Some(place) = tables.get(table, &place_key) else { continue };
            match PlaceRow::from_row(table, &place_key, &place).position {
                Some(found) => {
                    assert_eq!(found, position, "task {id} knows its position in its group");
                    assert!(
                        tasks.insert(id, task).is_none(),
                        "task {id} is in a group, or has a row of its own"
                    );
                    count += 1;
                }
                None => assert!(
                    tasks.contains_key(&id),
                    "task {id} has left its group, so it has a row of its own"
                ),
            }
        }
        assert!(count > 0, "a group without tasks is gone");
        counts.push((row_key, crate::rows::encode(&count)));
    }
    let counted = tables.scan_prefix(Table::GroupsLeft, &[]);
    assert!(counted.eq(counts), "each group counts those of its tasks that have not left it");
}

/// Whether a task must have its row among those of its key, and whether it may.
fn key_order_of(order: &KeyOrder, task: &Task, level: Level) -> (bool, bool) {
    match order {
        KeyOrder::Kept => (true, true),
        KeyOrder::Absent => (false, false),
        KeyOrder::Making(Making { priority, tenant, above, .. }) => {
            let place = (task.priority, tenant_of(&task.key), Some(level));
            (place <= (*priority, tenant.as_deref(), *above), true)
        }
    }
}

/// A task has exactly the rows that its standing asks for.
fn check_places(lanes: &LanesState, tables: &dyn Tables, tasks: &Tasks) {
    let (mut levels, mut of_tenants) = (BTreeSet::new(), BTreeSet::new());
    let (mut of_keys, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
    let (mut delayed_tasks, mut dead_tasks) = (BTreeSet::new(), BTreeSet::new());
    for (id, task) in tasks {
        let name = RankName { lane: task.lane, priority: task.priority };
        match task.standing {
            Standing::Waiting { pass } => {
                let level = Level { pass, id: *id };
                let lane = lanes.by_number(task.lane).expect("a task's lane is there");
                let (must, may) = key_order_of(&lane.row().key_order, task, level);
                let in_key_order = [(must, &mut of_keys), (may, &mut perhaps)];
                for (_, rows) in in_key_order.into_iter().filter(|(is_so, _)| *is_so) {
                    rows.insert(key_of_key_level(name, &task.key, level));
                }
                match tenant_of(&task.key) {
                    Some(tenant) => of_tenants.insert(key_of_key_level(name, tenant, level)),
                    None => levels.insert((name.key_of_level(level).to_vec(), task.key.clone())),
                };
            }
            Standing::Delayed { until } => {
                delayed_tasks.insert(delayed::key(until, *id).to_vec());
            }
            Standing::Dead => {
                dead_tasks.insert(settle::key_of_dead(task.lane, *id).to_vec());
            }
        }
        let is_dead = task.standing == Standing::Dead;
        assert_eq!(is_dead, task.failures >= task.attempts_max, "task {id} is dead after its last attempt");
        assert!(task.failures == 0 || task.failed.is_some(), "task {id} has failed, so an attempt at it has");
    }
    let keys = |table| tables.scan_prefix(table, &[]).map(|(key, _)| key);
    let placed = tables.scan_prefix(Table::Levels, &[]).map(|(row_key, row)| {
        let key = PlaceRow::from_row(Table::Levels, &row_key, &row).key.to_owned();
        (row_key, key)
    });
    assert!(placed.eq(levels), "each waiting task without a tenant has its level, and nothing else");
    let key_levels: BTreeSet<Vec<u8>> = keys(Table::KeyLevels).collect();
    assert!(of_tenants.is_subset(&key_levels), "each waiting task has its level among those of its tenant");
    assert!(
        of_keys.is_subset(&key_levels),
        "where keys are in order, each waiting task is among those of its key"
    );
    let others = key_levels.difference(&of_tenants).filter(|key| !perhaps.contains(*key));
    assert_eq!(others.count(), 0, "nothing else is in the order of a key or tenant");
    assert!(keys(Table::DelayedTasks).eq(delayed_tasks), "each delayed task has one row, under its time");
    assert!(keys(Table::DeadTasks).eq(dead_tasks), "each dead task has one row");
}

fn check_rank(name: RankName, rank: &Rank, tasks: &[(&TaskId, &Task)]) {
    let row = rank.row();
    let mut keys: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut delayed, mut dead, mut waiting) = (0, 0, 0);
    for (id, task) in tasks {
        match task.standing {
            Standing::Waiting { pass } => {
                let level = Level { pass, id: **id };
                waiting += 1;
                *keys.entry(&task.key).or_default() += 1;
                if let Some(tenant) = tenant_of(&task.key) {
                    *keys.entry(tenant).or_default() += 1;
                }
                let acked = rank.acked_around(&task.key);
                assert!(
                    !acked.is_done(level),
                    "{level} of {name:?} is not done, so it lies above A {acked:?}"
                );
                assert!(
                    tenant_of(&task.key).is_some() || Some(level) <= row.highest,
                    "{level} of {name:?} lies no higher than M {:?}",
                    row.highest
                );
                if task.failed.is_none() {
                    let finish = rank.key(&task.key).map(|key| key.finish);
                    assert!(Some(pass) < finish, "{level} of {name:?} is charged to its key: {finish:?}");
                }
            }
            Standing::Delayed { .. } => delayed += 1,
            Standing::Dead => dead += 1,
        }
    }
    check_shares(rank.shares(), row.virtual_time, &keys);
    let tenants = rank.shares().iter().map(|(key, _)| key).filter(|key| is_tenant(key));
    assert!(tenants.eq(rank.tenants().map(|(name, _)| name)), "a tenant is there while its tag is");
    for (_, tenant) in rank.tenants() {
        let virtual_time = tenant.row().virtual_time;
        check_shares(tenant.users(), virtual_time, &keys);
        let acked = tenant.row().acked();
        assert!(acked.ends().all(|it| it.pass < virtual_time), "A of a tenant is below V");
    }
    assert!(keys.keys().all(|key| rank.key(key).is_some()), "every key that has tasks is remembered");
    assert_eq!([row.waiting, row.delayed, row.dead], [waiting, delayed, dead], "counts of {name:?} are sums");
    assert_eq!(
        row.added - row.done,
        waiting + delayed + dead,
        "what was added to {name:?} and is not done is there"
    );
    assert!(
        row.acked().ends().all(|it| it.pass < row.virtual_time),
        "A of {name:?} lies below the virtual time"
    );
}

fn check_shares(shares: &Shares, virtual_time: u64, tasks: &BTreeMap<&str, u32>) {
    let mut weight = 0;
    for (key, row) in shares.iter() {
        let KeyRow { finish, waiting, .. } = *row;
        let counted = tasks.get(key).copied().unwrap_or(0);
        assert_eq!(counted, waiting, "the count of key {key:?} is a sum over its tasks");
        assert!(waiting > 0 || finish > virtual_time, "nothing is said by what is remembered of key {key:?}");
        weight += if waiting > 0 { u64::from(row.weight().as_milli()) } else { 0 };
    }
    assert_eq!(shares.weight_milli(), weight, "the weight is a sum over the keys that have tasks");
}

fn check_payloads(tables: &dyn Tables, tasks: &Tasks) {
    let mut apart = Vec::new();
    for (id, task) in tasks {
        let name = RankName { lane: task.lane, priority: task.priority };
        let beside = match task.standing {
            Standing::Waiting { pass } => {
                let (table, row_key) = row_in_queue(name, tenant_of(&task.key), Level { pass, id: *id });
                let row = tables.get(table, &row_key).expect("a task with a level has its row in a queue");
                let row = PlaceRow::from_row(table, &row_key, &row);
                assert_eq!(row.key, task.key, "the row of task {id} in its queue names its key");
                assert_eq!(
                    row.stride > 0,
                    task.failures == 0,
                    "task {id} is charged for its first attempt only"
                );
                row.payload.map(PayloadRef::to_owned)
            }
            Standing::Delayed { .. } | Standing::Dead => None,
        };
        assert!(beside.is_none() || task.payload.is_none(), "the payload of task {id} is kept once");
        match beside.as_ref().or(task.payload.as_ref()) {
            Some(small) => {
                assert!(small.bytes() <= TASK_PAYLOAD_IN_ROW_BYTES_MAX, "a large payload is kept apart")
            }
            None => apart.push(id.key().to_vec()),
        }
    }
    let rows = tables.scan_prefix(Table::Payloads, &[]).map(|(key, _)| key);
    assert!(rows.eq(apart), "each payload that is in no other row has one of its own");
}

/// Checks the memory of a leader that has absorbed every effect.
///
/// # Panics
/// If an invariant does not hold; the message says which.
pub(crate) fn check_desk(desk: &Desk, lanes: &LanesState, tables: &dyn Tables) {
    let mut out = BTreeSet::new();
    for lane in lanes.all() {
        let number = lane.row().number;
        assert_eq!(desk.lane(lane.name()), Some(number), "the desk knows lane {}", lane.name());
        assert_eq!(desk.row(number), Some(lane.row()), "the desk knows what is said of {}", lane.name());
        check_meters(desk, number);
        for (priority, rank) in lane.ranks() {
            let name = RankName { lane: number, priority };
            let Some(queue) = desk.queue_of(name) else {
                assert_eq!(rank.row().waiting, 0, "the desk knows every rank that has tasks with a level");
                continue;
            };
            assert!(queue.virtual_time() >= rank.row().virtual_time, "V of {name:?} is what was handed out");
            assert_eq!(
                queue.counts(),
                queue.recount(),
                "what is ready, out and parked in {name:?} is counted"
            );
            assert!(
                queue.is_undone_in_order(),
                "how far keys of {name:?} with a cursor are done is in order"
            );
            let check = Check { desk, rank, tables };
            check.queue(&QueueName::of_rank(name), queue, rank.row().virtual_time);
            gather_out(queue, &mut out);
        }
    }
    let known: BTreeSet<TaskId> = desk.out().keys().copied().collect();
    assert_eq!(known, out, "the desk knows where each task belongs that is out");
}

fn gather_out(queue: &Queue, out: &mut BTreeSet<TaskId>) {
    for id in queue.reader.out().keys() {
        assert!(out.insert(*id), "task {id} is out once");
    }
    queue.flows().for_each(|(_, flow)| gather_out(&flow.queue, out));
}

/// What limits count is what is out.
fn check_meters(desk: &Desk, lane: super::levels::LaneNumber) {
    let meters = desk.meters(lane).expect("the desk knows the lane");
    let limits = meters.limits();
    let keys: Vec<&str> = desk.out().values().filter(|it| it.rank.lane == lane).map(|it| &*it.key).collect();
    let names: BTreeSet<&str> =
        keys.iter().flat_map(|key| tenant_of(key).into_iter().chain([*key])).collect();
    let is_of = |name: &str, key: &str| key == name || tenant_of(key) == Some(name);
    for (name, limit) in names.into_iter().map(|name| (name, limits.of(name))) {
        let out = keys.iter().filter(|key| is_of(name, key)).count();
        let is_counted = !limit.is_none();
        let counted = meters.out_of(Some(name)) as usize;
        assert_eq!(counted, if is_counted { out } else { 0 }, "what is out of {name:?} is counted");
    }
    if !limits.is_empty() {
        assert_eq!(meters.out_of(None) as usize, keys.len(), "what is out of the lane is counted");
    }
}

/// Checks the queues of a rank.
struct Check<'a> {
    desk: &'a Desk,
    rank: &'a Rank,
    tables: &'a dyn Tables,
}

impl Check<'_> {
    fn queue(&self, name: &QueueName, queue: &Queue, machine_time: u64) {
        let scan = |table, range: crate::tables::KeyRange<'_>| self.tables.scan(table, range, Walk::Up);
        let levels: Levels =
            levels_above(name, None, scan).map(|placed| (placed.level, placed.key)).collect();
        self.reader(name, queue, &levels);
        let is_of_key = name.of.as_deref().is_some_and(|of| !is_tenant(of));
        if let Some(acked) = queue.ack().filter(|_| !is_of_key) {
            let undone = levels.keys().find(|it| acked.is_done(**it));
            assert_eq!(undone, None, "of {name:?} this is not done: A is not {acked:?}");
            for end in acked.ends() {
                assert!(end.pass < machine_time, "A of {name:?} lies below the virtual time");
            }
        }
        assert!(
            is_of_key || !queue.has_come_on() || self.desk.is_to_note(name),
            "{name:?} has come on, so it is going to be noted how far"
        );
        for (of, flow) in queue.flows() {
            // A tenant whose turn is over for the machine may still be remembered here.
            let forgotten = self.rank.row().tenants_from;
            let machine_time = self.rank.tenant(of).map_or(forgotten, |tenant| tenant.row().virtual_time);
            self.queue(&QueueName::of(name.rank, of.clone()), &flow.queue, machine_time);
        }
    }

    fn reader(&self, name: &QueueName, queue: &Queue, levels: &Levels) {
        let reader = &queue.reader;
        let (read_to, is_at_end) = (reader.read_to(), reader.is_at_end());
        let acked = if name.of.is_none() { self.rank.row().acked().level } else { None };
        assert!(acked <= read_to, "A {acked:?} of {name:?} lies no higher than R {read_to:?}");
        for (level, key) in levels {
            let is_out = self.desk.is_out(level.id);
            let is_ready = reader.ready().contains_key(level);
            let is_known = Some(*level) <= read_to || is_at_end;
            let is_elsewhere = name.of.as_deref() != Some(&**key) && queue.flow(key).is_some();
            assert!(
                is_out || is_ready || is_elsewhere || !is_known,
                "{level} of {name:?} lies below R {read_to:?}, so it is in memory"
            );
            assert!(
                !is_ready || Some(*level) <= read_to,
                "{level} of {name:?} is ready, so it lies below R {read_to:?}"
            );
            let is_out_here = reader.out().get(&level.id).is_some_and(|placed| placed.level == *level);
            assert!(!(is_out_here && is_ready), "{level} of {name:?} is ready or out, not both");
        }
        for (level, ready) in reader.ready() {
            assert_eq!(
                levels.get(level),
                Some(&ready.key),
                "{level} of {name:?} is ready, so it has a place"
            );
        }
        for placed in reader.out().values() {
            let level = placed.level;
            assert_eq!(
                levels.get(&level),
                Some(&placed.key),
                "{level} of {name:?} is out, so it has a place"
            );
        }
        let most = reader.buffer().tasks;
        assert!(reader.ready_len() <= most, "no more of {name:?} is ready than its buffer holds");
        // What a flow needs is read when it is its turn.
        assert!(
            name.of.is_some()
                || self.desk.is_asking(name)
                || reader.is_read_under_way()
                || !reader.needs_rows(),
            "{name:?} is stuck: it needs rows, and nobody is asked for them"
        );
        let out: BTreeSet<Level> = reader.out().values().map(|placed| placed.level).collect();
        assert_eq!(reader.out_levels(), &out, "the levels that are out of {name:?} are those of its tasks");
    }
}
