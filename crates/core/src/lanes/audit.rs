//! The lanes' part of the audit: everything that the heads of the files promise, recounted from the rows. For tests.
//!
//! The checks stand in the order in which the files' heads list them: `state`, `acks`, `delayed`, then `reader`, `desk`.

use super::acks::levels_above;
use super::desk::Desk;
use super::levels::{Level, RankName};
use super::reader::Reader;
use super::state::{KeyRow, LanesState, Rank, key_of_key_level};
use super::tasks::{Standing, Task, TaskId};
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
    let tasks: Tasks = tables
        .scan_prefix(Table::Tasks, &[])
        .map(|(key, row)| {
            let id = TaskId::from_key(&key).expect("a task's row has its id as key");
            (id, Task::from_row(id, &row))
        })
        .collect();
    check_memory(lanes, tables);
    check_places(tables, &tasks);
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

/// A task has exactly the rows that its standing asks for.
fn check_places(tables: &dyn Tables, tasks: &Tasks) {
    let (mut levels, mut key_levels) = (BTreeSet::new(), BTreeSet::new());
    let (mut delayed_tasks, mut dead_tasks) = (BTreeSet::new(), BTreeSet::new());
    for (id, task) in tasks {
        let name = RankName { lane: task.lane, priority: task.priority };
        match task.standing {
            Standing::Waiting { pass } => {
                let level = Level { pass, id: *id };
                levels.insert((name.key_of_level(level).to_vec(), task.key.clone().into_bytes()));
                key_levels.insert(key_of_key_level(name, &task.key, level));
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
    assert!(
        tables.scan_prefix(Table::Levels, &[]).eq(levels),
        "each waiting task has its level, and nothing else"
    );
    assert!(keys(Table::KeyLevels).eq(key_levels), "each waiting task has its level among those of its key");
    assert!(keys(Table::DelayedTasks).eq(delayed_tasks), "each delayed task has one row, under its time");
    assert!(keys(Table::DeadTasks).eq(dead_tasks), "each dead task has one row");
}

fn check_rank(name: RankName, rank: &Rank, tasks: &[(&TaskId, &Task)]) {
    let row = rank.row();
    let mut keys: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut delayed, mut dead) = (0, 0);
    for (id, task) in tasks {
        match task.standing {
            Standing::Waiting { pass } => {
                let level = Level { pass, id: **id };
                *keys.entry(&task.key).or_default() += 1;
                assert!(
                    row.acked < Some(level),
                    "{level} of {name:?} is not done, so it lies above A {:?}",
                    row.acked
                );
                assert!(
                    Some(level) <= row.highest,
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
    for (key, KeyRow { finish, waiting }) in rank.keys() {
        assert_eq!(
            keys.get(key).copied().unwrap_or(0),
            *waiting,
            "the count of key {key:?} is a sum over its tasks"
        );
        assert!(
            *waiting > 0 || *finish > row.virtual_time,
            "nothing is said by what is remembered of key {key:?}"
        );
    }
    assert!(keys.keys().all(|key| rank.key(key).is_some()), "every key that has tasks is remembered");
    let waiting = keys.values().sum();
    assert_eq!([row.waiting, row.delayed, row.dead], [waiting, delayed, dead], "counts of {name:?} are sums");
    assert_eq!(
        row.added - row.done,
        waiting + delayed + dead,
        "what was added to {name:?} and is not done is there"
    );
    assert!(
        row.acked.is_none_or(|acked| acked.pass < row.virtual_time),
        "A of {name:?} lies below the virtual time"
    );
}

fn check_payloads(tables: &dyn Tables, tasks: &Tasks) {
    let apart = tasks.iter().filter(|(_, task)| task.payload.is_none()).map(|(id, _)| id.key().to_vec());
    let rows = tables.scan_prefix(Table::Payloads, &[]).map(|(key, _)| key);
    assert!(rows.eq(apart), "each payload that is not in its task's row has one of its own");
    let in_row = tasks.values().filter_map(|task| task.payload.as_ref());
    assert!(
        in_row.clone().all(|it| it.bytes() <= TASK_PAYLOAD_IN_ROW_BYTES_MAX),
        "a large payload is kept apart"
    );
}

/// Checks the memory of a leader that has absorbed every effect.
///
/// # Panics
/// If an invariant does not hold; the message says which.
pub(crate) fn check_desk(desk: &Desk, lanes: &LanesState, tables: &dyn Tables) {
    let mut out = BTreeMap::new();
    for lane in lanes.all() {
        let number = lane.row().number;
        assert_eq!(desk.lane(lane.name()), Some(number), "the desk knows lane {}", lane.name());
        assert_eq!(
            desk.is_paused(number),
            lane.row().is_paused,
            "the desk knows whether {} is paused",
            lane.name()
        );
        for (priority, rank) in lane.ranks() {
            let name = RankName { lane: number, priority };
            let Some(reader) = desk.reader(name) else {
                assert_eq!(rank.row().waiting, 0, "the desk knows every rank that has tasks with a level");
                continue;
            };
            let rows = levels_above(name, None, |table, range| tables.scan(table, range, Walk::Up));
            let levels: Levels = rows.map(|placed| (placed.level, placed.key)).collect();
            check_reader(name, reader, &levels, desk.is_asking(name));
            check_desk_rank(name, desk, rank, &levels);
            out.extend(reader.out().keys().map(|id| (*id, name)));
        }
    }
    assert_eq!(desk.out(), &out, "the desk knows where each task is that is out");
}

fn check_desk_rank(name: RankName, desk: &Desk, rank: &Rank, levels: &Levels) {
    let seen = desk.look(name).expect("the desk knows the rank");
    let row = rank.row();
    assert!(seen.virtual_time >= row.virtual_time, "the virtual time of {name:?} is what was handed out");
    let Some(acked) = desk.may_ack(name) else { return };
    let first = levels.keys().next();
    assert!(first.is_none_or(|it| *it > acked), "{first:?} of {name:?} is not done: A is not {acked}");
    assert!(acked.pass < row.virtual_time, "A of {name:?} lies below the virtual time");
    assert!(Some(acked) <= seen.read_to, "A of {name:?} lies no higher than R");
}

fn check_reader(name: RankName, reader: &Reader, levels: &Levels, desk_asks: bool) {
    let (read_to, is_at_end) = (reader.read_to(), reader.is_at_end());
    for level in levels.keys() {
        let is_out = reader.out().get(&level.id).is_some_and(|placed| placed.level == *level);
        let is_ready = reader.ready().contains_key(level);
        assert!(!(is_out && is_ready), "{level} of {name:?} is ready or out, not both");
        let is_known = Some(*level) <= read_to || is_at_end;
        assert!(
            is_out || is_ready || !is_known,
            "{level} of {name:?} lies below R {read_to:?}, so it is in memory"
        );
        assert!(
            !is_ready || Some(*level) <= read_to,
            "{level} of {name:?} is ready, so it lies below R {read_to:?}"
        );
    }
    for (level, key) in reader.ready() {
        assert_eq!(levels.get(level), Some(key), "{level} of {name:?} is ready, so it has a place");
    }
    for placed in reader.out().values() {
        let level = placed.level;
        assert_eq!(levels.get(&level), Some(&placed.key), "{level} of {name:?} is out, so it has a place");
    }
    assert!(
        reader.ready_len() <= reader.buffer().tasks,
        "no more of {name:?} is ready than its buffer holds"
    );
    assert!(
        desk_asks || reader.is_read_under_way() || !reader.needs_rows(),
        "{name:?} is stuck: it needs rows, and nobody is asked for them"
    );
    let out: BTreeSet<Level> = reader.out().values().map(|placed| placed.level).collect();
    assert_eq!(reader.out_levels(), &out, "the levels that are out of {name:?} are those of its tasks");
}
