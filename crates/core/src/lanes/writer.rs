//! The writer: gives tasks their levels and writes them down, in one step.
//!
//! Both happen inside apply, and the virtual time only grows there. So no level can be chosen against an ack level that has
//! moved on before the task is written: between choosing and writing there is nothing.
//!
//! Invariants
//! - `pass = max(V, finish tag of the key)`, and the key's finish tag becomes `pass + stride`; V is that of the rank, or of
//!   the key's tenant.
//! - A new task's level lies above the ack level.

use super::delayed;
use super::groups::Grouping;
use super::levels::{Level, RankName};
use super::places::{PlaceRow, set_apart};
use super::records;
use super::state::{Charge, LanesState};
use super::tasks::{AddTasks, NewTask, Payload, Standing, Task, TaskId};
use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::limits::{LANE_TASKS_MAX, TASKS_PER_GROUP_MIN};
use crate::tables::Tables;
use crate::time::At;

/// Why tasks cannot be added, apart from what is said of themselves.
pub(crate) fn refusal(state: &LanesState, it: &AddTasks) -> Option<Refusal> {
    match state.by_name(&it.lane) {
        None => Some(Refusal::LaneUnknown { lane: it.lane.clone() }),
        Some(lane) if lane.row().is_draining => Some(Refusal::LaneDraining { lane: it.lane.clone() }),
        Some(lane) if lane.undone() + it.tasks.len() as u64 > LANE_TASKS_MAX => {
            Some(Refusal::LaneFull { lane: it.lane.clone() })
        }
        Some(_) => None,
    }
}

/// Adds tasks to a lane that takes them; each gets the next id.
pub(crate) fn add(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    at: At,
    it: &AddTasks,
    mut next_id: impl FnMut() -> TaskId,
) -> Applied {
    let lane = state.by_name(&it.lane).expect("the caller looked").row().number;
    for handed_out in &it.handed_out {
        state.advance(RankName { lane, priority: handed_out.priority }, handed_out);
    }
    let (mut ids, mut effects) = (Vec::with_capacity(it.tasks.len()), Vec::with_capacity(it.tasks.len()));
    let mut grouping = (it.tasks.len() >= TASKS_PER_GROUP_MIN).then(|| Grouping::new(lane, at));
    for new in &it.tasks {
        let id = next_id();
        let name = RankName { lane, priority: new.priority };
        state.count(name, |row| row.added += 1);
        let payload = set_apart(tables, id, &new.payload);
        let until = new.due_at(at);
        let charge = (until <= at).then(|| state.charge(name, &new.key, new.weight));
        effects.push(match (charge, &mut grouping) {
            (None, _) => delayed::delay(state, tables, id, Task { payload, ..task_of(new, name, at) }, until),
            (Some(charge), None) => {
                place(state, tables, id, Task { payload, ..task_of(new, name, at) }, charge)
            }
            (Some(Charge { pass, stride }), Some(grouping)) => {
                let position = Some(grouping.add(state, tables, id, new, pass));
                let beside = payload.as_ref().map(Payload::as_ref);
                let row = PlaceRow { key: &new.key, stride, payload: beside, position };
                stand(state, tables, name, Level { pass, id }, &row)
            }
        });
        ids.push(id);
    }
    grouping.iter_mut().for_each(|grouping| grouping.close(state, tables));
    Applied { outcome: Outcome::TasksAdded { tasks: ids.into_iter().collect() }, effects }
}

/// Gives a task with a row of its own that has no level its place, and says so.
pub(super) fn place(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    id: TaskId,
    mut task: Task,
    Charge { pass, stride }: Charge,
) -> Effect {
    let (name, level) = (RankName { lane: task.lane, priority: task.priority }, Level { pass, id });
    task.standing = Standing::Waiting { pass };
    let beside = task.payload.take();
    records::put(tables, id, &task);
    let row =
        PlaceRow { key: &task.key, stride, payload: beside.as_ref().map(Payload::as_ref), position: None };
    stand(state, tables, name, level, &row)
}

/// A task stands there from now on.
fn stand(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    name: RankName,
    level: Level,
    row: &PlaceRow<'_>,
) -> Effect {
    let PlaceRow { key, stride, .. } = *row;
    state.place(tables, name, level, row);
    let rank = state.rank(name).expect("it has just got a task");
    assert!(!rank.acked_around(key).is_done(level), "a new task's level lies above the ack level");
    Effect::TaskPlaced { rank: name, level, key: key.into(), stride, times: rank.times(key) }
}

/// A new task, without its payload. Where it stands is said by whoever puts it there.
fn task_of(new: &NewTask, name: RankName, at: At) -> Task {
    Task {
        lane: name.lane,
        priority: name.priority,
        key: new.key.clone(),
        weight: new.weight,
        standing: Standing::Delayed { until: at },
        added_at: at,
        attempts_max: new.attempts_max,
        retry_delay_ms: new.retry_delay_ms,
        failures: 0,
        failed: None,
        payload: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::open::{SetLane, set_lane};
    use crate::tables::MemoryTables;

    #[test]
    fn a_lane_that_would_hold_more_than_a_lane_may_refuses_and_takes_tasks_when_some_are_done() {
        let (mut state, mut tables) = (LanesState::default(), MemoryTables::default());
        let lane = SetLane {
            name: "jobs".into(),
            may_create: true,
            is_paused: None,
            is_draining: None,
            without_key_order: true,
        };
        set_lane(&mut state, &mut tables, At::default(), &lane);
        let name = RankName { lane: state.by_name("jobs").unwrap().row().number, priority: 0 };
        state.count(name, |row| row.waiting = LANE_TASKS_MAX - 1);
        let add = |tasks| AddTasks {
            lane: "jobs".into(),
            tasks: vec![NewTask::new("a"); tasks],
            handed_out: Vec::new(),
            idempotency_key: None,
        };
        assert_eq!(refusal(&state, &add(1)), None);
        let full = refusal(&state, &add(2)).unwrap();
        assert_eq!(full, Refusal::LaneFull { lane: "jobs".into() });
        assert!(
            full.to_string().contains("more than 4000000000 tasks that are not done; add them when some are")
        );
        state.count(name, |row| row.waiting -= 1);
        assert_eq!(refusal(&state, &add(2)), None);
    }
}
