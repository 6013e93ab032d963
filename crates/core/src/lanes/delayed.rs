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
    state.note_delayed(key(until, id));
    records::put(tables, id, &task);
    state.count(name, |row| row.delayed += 1);
    Effect::TaskDelayed { until }
}

/// When the first delayed task is due.
pub fn next_due(tables: &dyn Tables) -> Option<At> {
    first_from(tables, &[0; 16]).map(due_at)
}

/// The key of the first delayed task from one on.
fn first_from(tables: &dyn Tables, from: &[u8; 16]) -> Option<[u8; 16]> {
    let range = (Bound::Included(&from[..]), Bound::Unbounded);
    let (key, _) = tables.scan(Table::DelayedTasks, range, Walk::Up).next()?;
    Some(key.try_into().expect("a delayed task's row has its time and its id as key"))
}

fn due_at(key: [u8; 16]) -> At {
    At::from_ms(u64::from_be_bytes(key[..8].try_into().expect("a time has 8 bytes")))
}

/// Gives the tasks that are due their levels, a bounded number at a time.
pub(crate) fn release(state: &mut LanesState, tables: &mut dyn Tables, at: At) -> Applied {
    let end = at.after_ms(1).as_ms().to_be_bytes();
    let from = state.delayed_from();
    let is_any = from[..8] < end[..];
    let range = (Bound::Included(&from[..]), Bound::Excluded(&end[..]));
    let rows = is_any.then(|| tables.scan(Table::DelayedTasks, range, Walk::Up)).into_iter().flatten();
    let due: Vec<TaskId> = rows
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
    let first = first_from(tables, state.delayed_from());
    state.set_delayed_from(first);
    effects.extend(first.map(|key| Effect::TaskDelayed { until: due_at(key) }));
    Applied { outcome: Outcome::TasksReleased { tasks: due.len() as u64 }, effects }
}
