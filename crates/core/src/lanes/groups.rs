//! Groups: what is said of tasks that were added together, in one row.
//!
//! Tasks that a producer adds by the hundred have little that is their own beside a key and a payload, which stand at their levels.
//! So they share a row, in which each is found by its id, and one that counts how many of them are left: what is done then takes its
//! row in the queue away, and no other. A task that fails or gets another level leaves its group, and has a row of its own from then on.
//! When all have left, both rows go.
//!
//! Invariants
//! - A task with a level is in its group, or has a row of its own; one without a level has a row of its own.
//! - Where a task in a group stands, the row says which position in the group is its. The group counts those rows.
//! - The ids of a group follow each other; some of them may belong to tasks that never were in it.

use super::levels::{LaneNumber, Level, RankName, Weight, tenant_of};
use super::places::{PlaceRow, row_in_queue};
use super::state::LanesState;
use super::tasks::{NewTask, Standing, Task, TaskId};
use crate::limits::TASKS_PER_GROUP_MAX;
use crate::rows;
use crate::tables::{ReadRows, Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The row of a group.
#[derive(Debug, Encode, Decode)]
struct GroupRow<'a> {
    #[n(0)]
    lane: LaneNumber,
    #[n(1)]
    added_at: At,
    /// The keys of its tasks, each once.
    #[b(2)]
    keys: Vec<&'a str>,
    /// What else is said of its tasks, each once.
    #[n(3)]
    kinds: Vec<Kind>,
    /// By position.
    #[n(4)]
    members: Vec<Option<Member>>,
}

/// What is mostly the same for all tasks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct Kind {
    #[n(0)]
    priority: u8,
    #[n(1)]
    weight: Weight,
    #[n(2)]
    attempts_max: u32,
    #[n(3)]
    retry_delay_ms: u64,
}

/// What is said of one task: its key and its kind by their numbers, and where it was placed.
#[derive(Debug, Clone, Copy, Encode, Decode)]
struct Member {
    #[n(0)]
    key: u8,
    #[n(1)]
    kind: u8,
    #[n(2)]
    pass: u64,
}

impl GroupRow<'_> {
    /// The task at a position as it was added, if there is one.
    fn task(&self, position: u8) -> Option<Task> {
        let Member { key, kind, pass } = (*self.members.get(usize::from(position))?)?;
        let (key, kind) = (*self.keys.get(usize::from(key))?, self.kinds.get(usize::from(kind))?);
        Some(Task {
            lane: self.lane,
            priority: kind.priority,
            key: key.to_owned(),
            weight: kind.weight,
            standing: Standing::Waiting { pass },
            added_at: self.added_at,
            attempts_max: kind.attempts_max,
            retry_delay_ms: kind.retry_delay_ms,
            failures: 0,
            failed: None,
            payload: None,
        })
    }
}

/// Puts tasks that are added together into groups, in the order of their ids.
pub(super) struct Grouping<'n> {
    row: GroupRow<'n>,
    numbers: BTreeMap<&'n str, u8>,
    first: Option<TaskId>,
}

impl<'n> Grouping<'n> {
    pub(super) const fn new(lane: LaneNumber, added_at: At) -> Grouping<'n> {
        let row = GroupRow { lane, added_at, keys: Vec::new(), kinds: Vec::new(), members: Vec::new() };
        Grouping { row, numbers: BTreeMap::new(), first: None }
    }

    /// Takes in a task that gets this pass; gives its position.
    pub(super) fn add(
        &mut self,
        state: &mut LanesState,
        tables: &mut dyn Tables,
        id: TaskId,
        new: &'n NewTask,
        pass: u64,
    ) -> u8 {
        let position = self.first.map(|first| id.as_u64() - first.as_u64());
        let position = match position.filter(|position| *position < TASKS_PER_GROUP_MAX as u64) {
            Some(position) => u8::try_from(position).expect("a group spans no more ids than a byte counts"),
            None => {
                self.close(state, tables);
                self.first = Some(id);
                0
            }
        };
        let member = Member { key: self.number_of_key(&new.key), kind: self.number_of_kind(new), pass };
        self.row.members.resize(usize::from(position), None);
        self.row.members.push(Some(member));
        position
    }

    fn number_of_key(&mut self, key: &'n str) -> u8 {
        let next = self.row.keys.len();
        *self.numbers.entry(key).or_insert_with(|| {
            self.row.keys.push(key);
            u8::try_from(next).expect("a group has no more keys than tasks")
        })
    }

    fn number_of_kind(&mut self, new: &NewTask) -> u8 {
        let NewTask { priority, weight, attempts_max, retry_delay_ms, .. } = *new;
        let kind = Kind { priority, weight, attempts_max, retry_delay_ms };
        let known = self.row.kinds.iter().rposition(|it| *it == kind);
        let number = known.unwrap_or_else(|| {
            self.row.kinds.push(kind);
            self.row.kinds.len() - 1
        });
        u8::try_from(number).expect("a group has no more kinds than tasks")
    }

    /// Writes the group that was begun.
    pub(super) fn close(&mut self, state: &mut LanesState, tables: &mut dyn Tables) {
        let Some(first) = self.first.take() else { return };
        tables.put(Table::TaskGroups, &first.key(), rows::encode(&self.row));
        let count = self.row.members.iter().flatten().count();
        state.open_group(first, u32::try_from(count).expect("a group is small"));
        self.row.keys.clear();
        self.row.kinds.clear();
        self.row.members.clear();
        self.numbers.clear();
    }
}

/// The first id of the group in which a task has a position.
pub(super) fn first_of(id: TaskId, position: u8) -> TaskId {
    let first = id.as_u64().checked_sub(position.into()).and_then(TaskId::from_u64);
    first.expect("a group begins with an id")
}

/// A task that is in a group, with its position.
pub(super) fn find<R: ReadRows + ?Sized>(rows: &R, id: TaskId) -> Option<(Task, u8)> {
    let span = TASKS_PER_GROUP_MAX as u64 - 1;
    let least = TaskId::from_u64(id.as_u64().saturating_sub(span).max(1))?;
    let range = (Bound::Included(&least.key()[..]), Bound::Included(&id.key()[..]));
    let (row_key, row) = rows.rows(Table::TaskGroups, range).last()?;
    let first = TaskId::from_key(&row_key).expect("a group's row has its first id as key");
    let position = u8::try_from(id.as_u64() - first.as_u64()).expect("no more than a group spans");
    let row: GroupRow<'_> = rows::decode(Table::TaskGroups, &row_key, &row);
    let task = row.task(position)?;

    // It may have left: then nothing stands there, or a task that has a row of its own.
    let Standing::Waiting { pass } = task.standing else { return None };
    let rank = RankName { lane: task.lane, priority: task.priority };
    let (table, place_key) = row_in_queue(rank, tenant_of(&task.key), Level { pass, id });
    let place = rows.row(table, &place_key)?;
    let is_in_it = PlaceRow::from_row(table, &place_key, &place).position == Some(position);
    is_in_it.then_some((task, position))
}

/// The tasks of a group as they were added, with their positions; for the audit.
pub(super) fn tasks_of(first: TaskId, row: &[u8]) -> Vec<(TaskId, Task, u8)> {
    let row: GroupRow<'_> = rows::decode(Table::TaskGroups, &first.key(), row);
    let ids = (0..=u8::MAX).zip(first.as_u64()..).take(row.members.len());
    ids.filter_map(|(position, id)| Some((TaskId::from_u64(id)?, row.task(position)?, position))).collect()
}
