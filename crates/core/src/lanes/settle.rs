//! Settle: tasks that are done, and attempts that failed.
//!
//! A task's rows go with its completion, in the same atomic commit; those that it shares with its group go with the last of them. So
//! nothing that is done is ever found again, whatever level a restart reads from, and nothing has to be collected later.

use super::delayed;
use super::levels::{LaneNumber, Level, QueueName, RankName};
use super::places::{self, Place, PlaceRow, row_in_queue};
use super::records;
use super::state::LanesState;
use super::tasks::{Standing, TaskId};
use crate::entry::{Applied, Done, Effect, FailedAttempt, Outcome, Settled};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// Why a task is dead.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct DeadRow {
    /// What its last attempt said.
    #[n(0)]
    pub(crate) reason: String,
    /// When.
    #[n(1)]
    pub(crate) at: At,
}

/// The key of a dead task's row.
pub(super) fn key_of_dead(lane: LaneNumber, id: TaskId) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&lane.0.to_be_bytes());
    key[4..].copy_from_slice(&id.key());
    key
}

/// See [`Command::CompleteTasks`](crate::entry::Command::CompleteTasks).
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct CompleteTasks {
    /// Tasks that the leader knew the places of when it took the report, by queue. A place is where a task is looked for first, and no more:
    /// it may have got another one since.
    #[n(0)]
    pub placed: Vec<PlacedTasks>,
    /// The others.
    #[n(1)]
    pub others: Vec<TaskId>,
}

/// Tasks of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct PlacedTasks {
    /// The lane.
    #[n(0)]
    pub lane: LaneNumber,
    /// The priority.
    #[n(1)]
    pub priority: u8,
    /// The tenant whose queue it is.
    #[n(2)]
    pub tenant: Option<String>,
    /// Where the tasks stand.
    #[n(3)]
    pub levels: Vec<Level>,
}

impl CompleteTasks {
    /// The report of some tasks, each with its place if that is known, and for each answer which task it is about.
    pub fn of<'p>(
        tasks: impl IntoIterator<Item = (TaskId, Option<&'p Place>)>,
    ) -> (CompleteTasks, Vec<usize>) {
        let mut command = CompleteTasks::default();
        let (mut queues, mut of_placed, mut of_others) =
            (BTreeMap::new(), Vec::<Vec<usize>>::new(), Vec::new());
        let mut last: Option<(QueueName, usize)> = None;
        for (nth, (id, place)) in tasks.into_iter().enumerate() {
            let Some(place) = place else {
                command.others.push(id);
                of_others.push(nth);
                continue;
            };
            // Mostly all are of one queue.
            let at = match &last {
                Some((queue, at)) if place.is_in(queue) => *at,
                Some(_) | None => {
                    let queue = place.queue();
                    let at = *queues.entry(queue.clone()).or_insert(command.placed.len());
                    if at == command.placed.len() {
                        let RankName { lane, priority } = queue.rank;
                        let tenant = queue.of.as_deref().map(str::to_owned);
                        command.placed.push(PlacedTasks { lane, priority, tenant, levels: Vec::new() });
                        of_placed.push(Vec::new());
                    }
                    last = Some((queue, at));
                    at
                }
            };
            command.placed[at].levels.push(place.level);
            of_placed[at].push(nth);
        }
        (command, of_placed.into_iter().flatten().chain(of_others).collect())
    }

    /// How many tasks it is about.
    pub fn len(&self) -> usize {
        self.placed.iter().map(|of_queue| of_queue.levels.len()).sum::<usize>() + self.others.len()
    }

    /// Whether it is about none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Applies a report of many tasks; they are answered in their order, those whose places are known first. The doors let only genuine tokens
/// through, so a task that is not there was done before.
pub(crate) fn complete_tasks(state: &mut LanesState, tables: &mut dyn Tables, it: &CompleteTasks) -> Applied {
    let (mut settled, mut effects) = (Vec::with_capacity(it.len()), Vec::with_capacity(it.len()));
    for of_queue in &it.placed {
        let rank = RankName { lane: of_queue.lane, priority: of_queue.priority };
        for level in &of_queue.levels {
            let found = complete_placed(state, tables, rank, of_queue.tenant.as_deref(), *level);
            let is_placed = found.is_some();
            effects.extend(found);
            settled.push(match is_placed {
                true => Settled::Accepted,
                false => complete_one(state, tables, level.id, &mut effects),
            });
        }
    }
    for id in &it.others {
        settled.push(complete_one(state, tables, *id, &mut effects));
    }
    Applied { outcome: Outcome::Settled(settled), effects }
}

/// Completes a task that stands where it is looked for.
fn complete_placed(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    rank: RankName,
    tenant: Option<&str>,
    level: Level,
) -> Option<Effect> {
    let (table, row_key) = row_in_queue(rank, tenant, level);
    let row = tables.get(table, &row_key)?;
    let row = PlaceRow::from_row(table, &row_key, &row);
    let (id, position) = (level.id, row.position);
    let is_apart = row.payload.is_none() && (position.is_some() || has_payload_apart(tables, id));
    // A retry was charged to its key before.
    let effect = unplace(state, tables, rank, row.key, level, row.stride > 0, true);
    records::remove(state, tables, id, position, is_apart);
    state.count(rank, |row| row.done += 1);
    Some(effect)
}

/// Whether the payload of a task in no group with nothing beside its level has a row of its own.
fn has_payload_apart(tables: &dyn Tables, id: TaskId) -> bool {
    records::find(tables, id).is_some_and(|(task, _)| task.payload.is_none())
}

/// Applies a completion of one task.
pub(crate) fn complete(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    id: TaskId,
    done: &[Done],
) -> Applied {
    let (mut settled, mut effects) = (Vec::with_capacity(done.len()), Vec::with_capacity(1));
    for _ in done {
        settled.push(complete_one(state, tables, id, &mut effects));
    }
    Applied { outcome: Outcome::Settled(settled), effects }
}

fn complete_one(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    id: TaskId,
    effects: &mut Vec<Effect>,
) -> Settled {
    let Some((task, position)) = records::find(tables, id) else {
        // A leader that let a late consumer have it once more forgets it.
        effects.push(Effect::TaskGone { task: id });
        return Settled::AlreadyDone;
    };
    let rank = RankName { lane: task.lane, priority: task.priority };
    let mut is_apart = task.payload.is_none();
    match task.standing {
        Standing::Waiting { pass } => {
            let level = Level { pass, id };
            is_apart &= places::beside(tables, rank, &task.key, level).is_none();
            effects.push(unplace(state, tables, rank, &task.key, level, task.failures == 0, true));
        }
        Standing::Delayed { until } => {
            tables.delete(Table::DelayedTasks, &delayed::key(until, id));
            state.count(rank, |row| row.delayed -= 1);
            effects.push(Effect::TaskGone { task: id });
        }
        Standing::Dead => {
            tables.delete(Table::DeadTasks, &key_of_dead(task.lane, id));
            state.count(rank, |row| row.dead -= 1);
            effects.push(Effect::TaskGone { task: id });
        }
    }
    records::remove(state, tables, id, position, is_apart);
    state.count(rank, |row| row.done += 1);
    Settled::Accepted
}

/// Takes a task out of its place, and says so. The first attempt at a task is the one that its tenant is charged for.
fn unplace(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    rank: RankName,
    key: &str,
    level: Level,
    is_charged: bool,
    is_done: bool,
) -> Effect {
    state.take_out(tables, rank, key, level, is_charged);
    Effect::TaskUnplaced { rank, level, key: key.into(), is_done, times: state.times(rank, key) }
}

/// Applies failed attempts.
pub(crate) fn fail(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    at: At,
    id: TaskId,
    failed: Vec<FailedAttempt>,
) -> Applied {
    let (mut settled, mut effects) = (Vec::with_capacity(failed.len()), Vec::new());
    for attempt in failed {
        settled.push(fail_one(state, tables, at, id, attempt, &mut effects));
    }
    Applied { outcome: Outcome::Settled(settled), effects }
}

fn fail_one(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    at: At,
    id: TaskId,
    it: FailedAttempt,
    effects: &mut Vec<Effect>,
) -> Settled {
    let Some((mut task, position)) = records::find(tables, id) else {
        effects.push(Effect::TaskGone { task: id });
        return Settled::AlreadyDone;
    };
    let Standing::Waiting { pass } = task.standing else { return Settled::AlreadyFailed };
    if task.failed.is_some_and(|before| before >= it.attempt) {
        return Settled::AlreadyFailed;
    }

    // Nothing below can be refused.
    let (name, level) = (RankName { lane: task.lane, priority: task.priority }, Level { pass, id });
    if let Some(beside) = places::beside(tables, name, &task.key, level) {
        task.payload = Some(beside);
    }
    effects.push(unplace(state, tables, name, &task.key, level, task.failures == 0, false));
    if let Some(position) = position {
        state.leave_group(tables, id, position);
    }
    task.failures += 1;
    task.failed = Some(it.attempt);
    if task.failures >= task.attempts_max {
        task.standing = Standing::Dead;
        let dead = DeadRow { reason: it.reason, at };
        tables.put(Table::DeadTasks, &key_of_dead(task.lane, id), rows::encode(&dead));
        records::put(tables, id, &task);
        state.note_dead(task.lane, id);
        state.count(name, |row| row.dead += 1);
    } else {
        let until = task.retry_at(at);
        effects.push(delayed::delay(state, tables, id, task, until));
    }
    Settled::Accepted
}
