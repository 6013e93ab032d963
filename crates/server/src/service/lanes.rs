//! The lanes room's verbs: create, pause, resume, drain; add tasks.

use super::Service;
use super::batch::unexpected;
use crate::roles::dispatcher::Event;
use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use windlass_api::lanes::{AddTasksRequest, AddTasksResponse, LaneDetails, LaneQuery};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::ids::ChunkName;
use windlass_core::lanes::levels::{LaneNumber, Level, RankName};
use windlass_core::lanes::listing;
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::places::{Place, PlaceRow};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::{AddTasks, NewTask, PayloadRef, Standing};
use windlass_core::tables::ReadRows;

/// What is changed of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneChange {
    /// It is made, if it is not there.
    Create,
    /// Nothing of it is handed out.
    Pause,
    /// It is handed out again, and takes tasks again.
    Resume,
    /// It takes no more tasks, and hands out those that it has.
    Drain,
}

/// The names of lanes, at hand without a look at the machine: they never change.
#[derive(Debug, Default)]
pub(super) struct LaneNames(RwLock<BTreeMap<LaneNumber, Arc<str>>>);

impl LaneNames {
    fn get_or_read(&self, number: LaneNumber, read: impl FnOnce() -> Arc<str>) -> Arc<str> {
        if let Some(name) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return name.clone();
        }
        let name = read();
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(number, name.clone());
        name
    }
}

/// A task that is not done, as its consumer needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskToDo<'a> {
    pub(crate) lane: &'a str,
    pub(crate) key: &'a str,
    pub(crate) payload: PayloadRef<'a>,
}

impl Service {
    /// Creates a lane or changes what is said of it.
    pub async fn set_lane(&self, lane: String, change: LaneChange) -> Result<LaneDetails, Problem> {
        let (is_paused, is_draining) = match change {
            LaneChange::Create => (None, None),
            LaneChange::Pause => (Some(true), None),
            LaneChange::Resume => (Some(false), Some(false)),
            LaneChange::Drain => (None, Some(true)),
        };
        let may_create = change == LaneChange::Create;
        let set = SetLane { name: lane.clone(), may_create, is_paused, is_draining, without_key_order: true };
        if let Some(problem) = set.problem() {
            return Err(invalid(problem));
        }
        match self.propose(Command::SetLane(set)).await? {
            Outcome::LaneSet => self.look_at_lane(lane, LaneQuery::default()).await,
            other => Err(unexpected(&other)),
        }
    }

    /// Adds tasks to a lane.
    pub fn add_tasks(
        &self,
        lane: String,
        request: AddTasksRequest,
        idempotency_key: Option<String>,
    ) -> impl Future<Output = Result<AddTasksResponse, Problem>> + Send + use<> {
        let add = match self.tasks_to_add(lane, request, idempotency_key) {
            Ok(add) => add,
            Err(problem) => return Either::Left(ready(Err(invalid(problem)))),
        };
        Either::Right(self.propose(Command::AddTasks(add)).map(|outcome| match outcome? {
            Outcome::TasksAdded { tasks } => Ok(AddTasksResponse { tasks: tasks.iter().collect() }),
            other => Err(unexpected(&other)),
        }))
    }

    fn tasks_to_add(
        &self,
        lane: String,
        request: AddTasksRequest,
        idempotency_key: Option<String>,
    ) -> Result<AddTasks, String> {
        let several = request.tasks.len() > 1;
        let tasks = request.tasks.into_iter().enumerate().map(|(nth, task)| {
            task.into_task().map_err(|problem| match several {
                true => format!("task {nth}: {problem}"),
                false => problem,
            })
        });
        let tasks: Vec<NewTask> = tasks.collect::<Result<_, _>>()?;
        let mut add = AddTasks { lane, tasks, handed_out: Vec::new(), idempotency_key };
        if let Some(problem) = add.problem() {
            return Err(problem);
        }
        let keys = || add.tasks.iter().map(|task| (task.priority, task.key.as_str()));
        let handed_out = self.dispatcher().look_at_lanes(|desk, _| desk.handed_out(&add.lane, keys()));
        add.handed_out = handed_out.unwrap_or_default();
        Ok(add)
    }

    pub(super) fn lane_number(&self, name: &str) -> Result<LaneNumber, Problem> {
        let number = self.order().read(|machine| Some(machine.lanes().by_name(name)?.row().number));
        number.ok_or_else(|| unknown_lane(name))
    }

    /// Looks at what a consumer gets of a task that was handed out to it; none if it is done meanwhile, which the Dispatcher then hears.
    pub(crate) fn look_at_task<T>(&self, place: &Place, look: impl FnOnce(TaskToDo<'_>) -> T) -> Option<T> {
        let (lane, key) = (&*self.name_of_lane(place.rank.lane), &*place.key);
        let (table, row_key) = place.row();
        let row = self.order().committed().get(table, &row_key);
        let row = row.as_deref().map(|row| PlaceRow::from_row(table, &row_key, row));
        let id = place.level.id;
        match row.map(|row| (row.payload, row.position)) {
            Some((Some(payload), _)) => return Some(look(TaskToDo { lane, key, payload })),
            // It is large, and the task shares a row, which need not be read for it.
            Some((None, Some(_))) => {
                if let Some(payload) = listing::payload_apart(self.order().committed(), id) {
                    return Some(look(TaskToDo { lane, key, payload: payload.as_ref() }));
                }
            }
            Some((None, None)) | None => {}
        }
        // It is large, or has another place now; or it was added a moment ago: the tables have it when the machine has let go.
        let found = listing::task_and_payload(self.order().committed(), id)
            .or_else(|| self.order().read(|machine| listing::task_and_payload(machine.tables(), id)));
        let Some((_, payload)) = found else {
            self.dispatcher().send(Event::TaskMissing(id));
            return None;
        };
        Some(look(TaskToDo { lane, key, payload: payload.as_ref() }))
    }

    fn name_of_lane(&self, number: LaneNumber) -> Arc<str> {
        self.lane_names().get_or_read(number, || {
            self.order().read(|machine| {
                machine.lanes().by_number(number).map(|lane| lane.name().into()).unwrap_or_default()
            })
        })
    }
}

/// Where a task stands that a consumer says it still works on; none if it is no task, or not waiting.
pub(super) fn place_of_task<R: ReadRows + ?Sized>(rows: &R, name: ChunkName) -> Option<(RankName, Placed)> {
    let task = listing::task(rows, name.submission)?;
    let Standing::Waiting { pass } = task.standing else { return None };
    let rank = RankName { lane: task.lane, priority: task.priority };
    // A retry was charged for before.
    let stride = if task.failures == 0 { task.weight.stride() } else { 0 };
    Some((rank, Placed { level: Level { pass, id: name.submission }, key: task.key.into(), stride }))
}

pub(super) fn invalid(problem: String) -> Problem {
    Problem::new(ProblemCode::InvalidRequest, problem)
}

pub(super) fn unknown_lane(name: &str) -> Problem {
    super::problem_of_refusal(&Refusal::LaneUnknown { lane: name.to_owned() })
}
