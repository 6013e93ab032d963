//! Records: what is said of a task that is not done, wherever that is kept: in a row of its own, or in that of its group.

use super::groups;
use super::state::LanesState;
use super::tasks::{Task, TaskId};
use crate::rows;
use crate::tables::{ReadRows, Table, Tables};

/// A task that is not done, with its position if it is in a group.
pub(super) fn find<R: ReadRows + ?Sized>(rows: &R, id: TaskId) -> Option<(Task, Option<u8>)> {
    let own = || rows.row(Table::Tasks, &id.key()).map(|row| (Task::from_row(id, &row), None));
    let in_group = || groups::find(rows, id).map(|(task, position)| (task, Some(position)));
    // Beside the machine it may leave its group between the two looks.
    own().or_else(in_group).or_else(own)
}

/// Writes the row of a task that is in no group.
pub(super) fn put(tables: &mut dyn Tables, id: TaskId, task: &Task) {
    tables.put(Table::Tasks, &id.key(), rows::encode(task));
}

/// Removes what is said of a task; `is_apart` says whether its payload has a row.
pub(super) fn remove(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    id: TaskId,
    position: Option<u8>,
    is_apart: bool,
) {
    match position {
        Some(position) => state.leave_group(tables, id, position),
        None => tables.delete(Table::Tasks, &id.key()),
    }
    if is_apart {
        tables.delete(Table::Payloads, &id.key());
    }
}
