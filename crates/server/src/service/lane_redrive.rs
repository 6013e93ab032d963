//! Redrive: dead tasks are tried again, in steps of bounded work that a cursor joins.
//!
//! Invariants
//! - What dies after the first step of a redrive is not driven again by it, so that a request with a cursor may be sent twice.

use super::Service;
use super::batch::unexpected;
use super::lanes::invalid;
use crate::limits::REDRIVE_STEPS_PER_REQUEST;
use std::fmt;
use windlass_api::lanes::{RedriveRequest, RedriveResponse};
use windlass_api::problem::Problem;
use windlass_core::entry::{Command, Outcome};
use windlass_core::lanes::levels::LaneNumber;
use windlass_core::lanes::listing::{DeadTask, dead};
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::tasks::TaskId;
use windlass_core::limits::TASKS_PER_ADD_MAX;
use windlass_core::time::At;

/// Where a redrive goes on: behind a task, among those that were dead at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    after: TaskId,
    dead_by: At,
}

/// What one step does.
struct Step {
    tasks: Vec<TaskId>,
    /// The last task that was looked at, unless there are no more.
    next: Option<TaskId>,
}

impl Service {
    /// Tries dead tasks again: those that are named, or all that died for a reason, or all; as far as one request goes.
    pub async fn redrive(&self, lane: String, request: RedriveRequest) -> Result<RedriveResponse, Problem> {
        let number = self.lane_number(&lane)?;
        let RedriveRequest { reason, tasks: named, cursor } = request;
        if reason.as_deref() == Some("") {
            return Err(invalid("`reason` is how the reason begins; leave it out for all dead tasks".into()));
        }
        if !named.is_empty() && reason.is_some() {
            return Err(invalid("name tasks, or a reason, and not both".into()));
        }
        let problem = || invalid("`cursor` is the `next` of an answer before".to_owned());
        let cursor = cursor.map(|text| Cursor::from_text(&text).ok_or_else(problem)).transpose()?;
        let dead_by = cursor.map_or_else(|| self.order().read(|machine| machine.at()), |it| it.dead_by);
        let named = in_order(named);
        let step = |after| match (&named[..], &reason) {
            ([], reason) => {
                let is_meant = |dead: &DeadTask| {
                    dead.at <= dead_by && reason.as_deref().is_none_or(|it| dead.reason.starts_with(it))
                };
                self.dead_of(number, after, is_meant)
            }
            (named, _) => self.dead_named(number, named, after, dead_by),
        };
        let redrive = |tasks| self.redrive_step(&lane, tasks);
        let (tasks, after) = in_steps(cursor.map(|it| it.after), step, redrive).await?;
        Ok(RedriveResponse { tasks, next: after.map(|after| Cursor { after, dead_by }.to_string()) })
    }

    /// Of the next dead tasks of a lane those that are meant.
    fn dead_of(&self, lane: LaneNumber, after: Option<TaskId>, is_meant: impl Fn(&DeadTask) -> bool) -> Step {
        self.order().read(|machine| {
            let some: Vec<DeadTask> =
                machine.lanes().dead_after(machine.tables(), lane, after).take(TASKS_PER_ADD_MAX).collect();
            let is_full = some.len() == TASKS_PER_ADD_MAX;
            let next = some.last().filter(|_| is_full).map(|dead| dead.id);
            Step { tasks: some.into_iter().filter(is_meant).map(|dead| dead.id).collect(), next }
        })
    }

    /// Of the next tasks that are named those that are dead.
    fn dead_named(&self, lane: LaneNumber, named: &[TaskId], after: Option<TaskId>, dead_by: At) -> Step {
        let left = &named[named.partition_point(|id| after.is_some_and(|after| *id <= after))..];
        let some = &left[..left.len().min(TASKS_PER_ADD_MAX)];
        let next = some.last().filter(|_| some.len() < left.len()).copied();
        let tasks = self.order().read(|machine| {
            let was_dead = |id: &TaskId| dead(machine.tables(), lane, *id).is_some_and(|it| it.at <= dead_by);
            some.iter().copied().filter(was_dead).collect()
        });
        Step { tasks, next }
    }

    async fn redrive_step(&self, lane: &str, tasks: Vec<TaskId>) -> Result<u64, Problem> {
        match self.propose(Command::Redrive(Redrive { lane: lane.to_owned(), tasks })).await? {
            Outcome::Redriven { tasks } => Ok(tasks),
            other => Err(unexpected(&other)),
        }
    }
}

/// Takes so many steps as one request does; gives how many tasks are tried again, and where to go on.
async fn in_steps<Redriven: Future<Output = Result<u64, Problem>>>(
    mut after: Option<TaskId>,
    step: impl Fn(Option<TaskId>) -> Step,
    redrive: impl Fn(Vec<TaskId>) -> Redriven,
) -> Result<(u64, Option<TaskId>), Problem> {
    let mut tasks = 0;
    for _ in 0..REDRIVE_STEPS_PER_REQUEST {
        let Step { tasks: some, next } = step(after);
        if !some.is_empty() {
            match redrive(some).await {
                Ok(redriven) => tasks += redriven,
                // What was done stays done, and is told; this step is still to be done.
                Err(_) if tasks > 0 => break,
                Err(problem) => return Err(problem),
            }
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    Ok((tasks, after))
}

/// Each task once, in the order of ids, which a cursor goes by.
fn in_order(mut tasks: Vec<TaskId>) -> Vec<TaskId> {
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.after, self.dead_by.as_ms())
    }
}

impl Cursor {
    fn from_text(text: &str) -> Option<Cursor> {
        let (after, dead_by) = text.split_once('-')?;
        Some(Cursor { after: after.parse().ok()?, dead_by: At::from_ms(dead_by.parse().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_api::problem::ProblemCode;

    #[tokio::test]
    async fn when_a_later_step_fails_what_was_done_is_told_with_where_to_go_on() {
        let id = |nth| TaskId::from_u64(nth).expect("it is an id");
        let step = |after: Option<TaskId>| {
            let next = id(after.map_or(0, TaskId::as_u64) + 1);
            Step { tasks: vec![next], next: Some(next) }
        };
        let fails_from = |first| {
            move |tasks: Vec<TaskId>| async move {
                match tasks[0] < id(first) {
                    true => Ok(1),
                    false => Err(Problem::new(ProblemCode::Unavailable, "it does not lead")),
                }
            }
        };
        let told = in_steps(None, step, fails_from(4)).await;
        assert_eq!(told.map_err(|problem| problem.code), Ok((3, Some(id(3)))));
        let failed = in_steps(None, step, fails_from(1)).await;
        assert_eq!(failed.map_err(|problem| problem.code), Err(ProblemCode::Unavailable));
    }

    #[test]
    fn a_cursor_is_read_back_and_nonsense_is_none() {
        let cursor = Cursor { after: TaskId::from_u64(77).expect("it is an id"), dead_by: At::from_ms(5) };
        assert_eq!(Cursor::from_text(&cursor.to_string()), Some(cursor));
        for text in ["", "-", "77", "77-", "-5", "0-5", "77-x", "77-5-5", "é"] {
            assert_eq!(Cursor::from_text(text), None, "{text}");
        }
    }
}
