//! Listing: tasks as people see them.

use super::levels::{LaneNumber, Level, RankName, tenant_of};
use super::places::{PlaceRow, row_in_queue};
use super::records;
use super::settle::{DeadRow, key_of_dead};
use super::tasks::{Payload, Standing, Task, TaskId, payload_from_row};
use crate::rows;
use crate::tables::{ReadRows, Table, Tables, Walk, key_after_prefix};
use crate::time::At;
use std::ops::Bound;

/// A task that has failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadTask {
    /// Its id.
    pub id: TaskId,
    /// What its last attempt said.
    pub reason: String,
    /// When that was.
    pub at: At,
}

/// The dead tasks of a lane after one, in the order of their ids.
pub fn dead_after<'a>(
    tables: &'a dyn Tables,
    lane: LaneNumber,
    after: Option<TaskId>,
) -> impl Iterator<Item = DeadTask> + 'a {
    let prefix = lane.0.to_be_bytes();
    let end = key_after_prefix(&prefix);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let rows = match after {
        Some(after) => {
            tables.scan(Table::DeadTasks, (Bound::Excluded(&key_of_dead(lane, after)[..]), end), Walk::Up)
        }
        None => tables.scan(Table::DeadTasks, (Bound::Included(&prefix[..]), end), Walk::Up),
    };
    rows.map(|(key, bytes)| dead_of_row(&key, &bytes))
}

/// A dead task of a lane.
pub fn dead<R: ReadRows + ?Sized>(rows: &R, lane: LaneNumber, id: TaskId) -> Option<DeadTask> {
    let key = key_of_dead(lane, id);
    Some(dead_of_row(&key, &rows.row(Table::DeadTasks, &key)?))
}

fn dead_of_row(key: &[u8], bytes: &[u8]) -> DeadTask {
    let DeadRow { reason, at } = rows::decode(Table::DeadTasks, key, bytes);
    let id = TaskId::from_key(&key[4..]).expect("a dead task's row ends with its id");
    DeadTask { id, reason, at }
}

/// A task that is not done.
pub fn task<R: ReadRows + ?Sized>(rows: &R, id: TaskId) -> Option<Task> {
    records::find(rows, id).map(|(task, _)| task)
}

/// A task that is not done, with what its consumer gets.
pub fn task_and_payload<R: ReadRows + ?Sized>(rows: &R, id: TaskId) -> Option<(Task, Payload)> {
    let mut task = task(rows, id)?;
    if let Standing::Waiting { pass } = task.standing {
        let name = RankName { lane: task.lane, priority: task.priority };
        let (table, key) = row_in_queue(name, tenant_of(&task.key), Level { pass, id });
        if let Some(payload) = PlaceRow::from_row(table, &key, &rows.row(table, &key)?).payload {
            return Some((task, payload.to_owned()));
        }
    }
    let payload = match task.payload.take() {
        Some(payload) => payload,
        None => payload_apart(rows, id)?,
    };
    Some((task, payload))
}

/// What the consumer of a task gets, if that has a row of its own.
pub fn payload_apart<R: ReadRows + ?Sized>(rows: &R, id: TaskId) -> Option<Payload> {
    Some(payload_from_row(id, &rows.row(Table::Payloads, &id.key())?))
}
