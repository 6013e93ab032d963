//! Delayed: tasks that are not due yet, new ones and retries. They have no level until they are due.
//!
//! Invariants
//! - Each delayed task has one row here, under the time when it is due.
//! - A retry is not charged to its key a second time: it gets the level of the virtual time.

use super::levels::RankName;
use super::records;
use super::state::LanesState;
use super::tasks::{Standing, Task, TaskId};
use super::writer::place;
use crate::entry::{Applied, Effect, Outcome};
use crate::limits::TASKS_DUE_PER_COMMAND_MAX;
use crate::tables::{Table, Tables, Walk};
use crate::time::At;
use std::ops::Bound;

/// The key of a delayed task's row.
pub(super) fn key(until: At, id: TaskId) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&until.as_ms().to_be_bytes());
    key[8..].copy_from_slice(&id.key());
    key
}

/// Puts a task aside until it is due.
pub(super) fn delay(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    id: TaskId,
    mut task: Task,
    until: At,
) -> Effect {
    task.standing = Standing::Delayed { until };
    let name = RankName { lane: task.lane, priority: task.priority };
    tables.put(Table::DelayedTasks, &key(until, id), Vec::new());
    records::put(tables, id, &task);
    state.count(name, |row| row.delayed += 1);
    Effect::TaskDelayed { until }
}

/// When the first delayed task is due.
pub fn next_due(tables: &dyn Tables) -> Option<At> {
    let (key, _) = tables.scan(Table::DelayedTasks, (Bound::Unbounded, Bound::Unbounded), Walk::Up).next()?;
    Some(At::from_ms(u64::from_be_bytes(key[..8].try_into().expect("a time has 8 bytes"))))
}

/// Gives the tasks that are due their levels, a bounded number at a time.
pub(crate) fn release(state: &mut LanesState, tables: &mut dyn Tables, at: At) -> Applied {
    let end = at.after_ms(1).as_ms().to_be_bytes();
    let range = (Bound::Unbounded, Bound::Excluded(&end[..]));
    let due: Vec<TaskId> = tables
        .scan(Table::DelayedTasks, range, Walk::Up)
        .take(TASKS_DUE_PER_COMMAND_MAX)
        .map(|(key, _)| TaskId::from_key(&key[8..]).expect("a delayed task's row ends with its id"))
        .collect();
    let mut effects = Vec::with_capacity(due.len() + 1);
    for id in &due {
        let task = records::find(tables, *id).expect("a delayed task has its row").0;
        let Standing::Delayed { until } = task.standing else { panic!("task {id} is delayed") };
        let name = RankName { lane: task.lane, priority: task.priority };
        tables.delete(Table::DelayedTasks, &key(until, *id));
        state.count(name, |row| row.delayed -= 1);
        let charge = match task.failures {
            0 => state.charge(name, &task.key, task.weight),
            _ => state.charge_nothing(name, &task.key),
        };
        effects.push(place(state, tables, *id, task, charge));
    }
    effects.extend(next_due(tables).map(|until| Effect::TaskDelayed { until }));
    Applied { outcome: Outcome::TasksReleased { tasks: due.len() as u64 }, effects }
}
