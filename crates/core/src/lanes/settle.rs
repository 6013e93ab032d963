//! Settle: tasks that are done, and attempts that failed.
//!
//! A task's rows go with its completion, in the same atomic commit. So nothing that is done is ever found again, whatever
//! level a restart reads from, and nothing has to be collected later.

use super::delayed;
use super::levels::{LaneNumber, Level, RankName};
use super::state::{self, LanesState, delete_task, put_task};
use super::tasks::{Standing, Task, TaskId};
use crate::entry::{Applied, Done, Effect, FailedAttempt, Outcome, Settled};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};

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

/// Applies a completion. The doors let only genuine tokens through, so a task that is not there was done before.
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
    let Some(task) = state::task(tables, id) else {
        // A leader that let a late consumer have it once more forgets it.
        effects.push(Effect::TaskGone { task: id });
        return Settled::AlreadyDone;
    };
    let rank = RankName { lane: task.lane, priority: task.priority };
    match task.standing {
        Standing::Waiting { pass } => {
            let level = Level { pass, id };
            effects.push(unplace(state, tables, rank, &task, level, true));
        }
        Standing::Delayed { .. } => {
            state.count(rank, |row| row.delayed -= 1);
            effects.push(Effect::TaskGone { task: id });
        }
        Standing::Dead => {
            state.count(rank, |row| row.dead -= 1);
            effects.push(Effect::TaskGone { task: id });
        }
    }
    delete_task(tables, id, &task);
    state.count(rank, |row| row.done += 1);
    Settled::Accepted
}

/// Takes a task out of its place, and says so. The first attempt at a task is the one that its tenant is charged for.
fn unplace(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    rank: RankName,
    task: &Task,
    level: Level,
    is_done: bool,
) -> Effect {
    state.take_out(tables, rank, &task.key, level, task.failures == 0);
    let (key, times) = (task.key.as_str().into(), state.times(rank, &task.key));
    Effect::TaskUnplaced { rank, level, key, is_done, times }
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
    let Some(mut task) = state::task(tables, id) else {
        effects.push(Effect::TaskGone { task: id });
        return Settled::AlreadyDone;
    };
    let Standing::Waiting { pass } = task.standing else { return Settled::AlreadyFailed };
    if task.failed.is_some_and(|before| before >= it.attempt) {
        return Settled::AlreadyFailed;
    }

    // Nothing below can be refused.
    let name = RankName { lane: task.lane, priority: task.priority };
    effects.push(unplace(state, tables, name, &task, Level { pass, id }, false));
    task.failures += 1;
    task.failed = Some(it.attempt);
    if task.failures >= task.attempts_max {
        task.standing = Standing::Dead;
        let dead = DeadRow { reason: it.reason, at };
        tables.put(Table::DeadTasks, &key_of_dead(task.lane, id), rows::encode(&dead));
        put_task(tables, id, task);
        state.count(name, |row| row.dead += 1);
    } else {
        let until = task.retry_at(at);
        task.standing = Standing::Delayed { until };
        effects.push(delayed::delay(state, tables, id, task, until));
    }
    Settled::Accepted
}
