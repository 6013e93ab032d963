//! The HTTP verbs of lanes, one typed method each.

use crate::branch_verbs::refuse;
use crate::chance;
use crate::client::{Call, Client};
use crate::error::{ClientError, StoppedAfter};
use crate::verbs::check_idempotency_key;
use http::Method;
use windlass_api::lanes::{
    AddTasksRequest, AddTasksResponse, DeadTasks, LaneChangeRequest, LaneDetails, LaneListQuery, LanePage,
    LaneQuery, RedriveRequest, RedriveResponse, RelevelRequest, RelevelResponse, TaskExplained, TaskRequest,
};
use windlass_core::ids::SubmissionId;
use windlass_core::lanes::open::{problem_of_name, problem_of_step};

impl Client {
    /// Creates a lane; one that is there already stays as it is.
    pub async fn create_lane(&self, lane: &str) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::PUT, lane, &[])?.repeatable()).await
    }

    /// A page of lanes, by name.
    pub async fn lanes(&self, query: &LaneListQuery) -> Result<LanePage, ClientError> {
        self.json(self.call(Method::GET, &["lanes"]).query(query)).await
    }

    /// A lane as it is now.
    pub async fn lane(&self, lane: &str) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::GET, lane, &[])?).await
    }

    /// The same with the keys that are asked for.
    pub async fn lane_with(&self, lane: &str, query: &LaneQuery) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::GET, lane, &[])?.query(query)).await
    }

    /// Sets weights of a lane's keys, for tasks that are added from then on, and limits. The first limit of a key in a lane where very
    /// many tasks wait takes its time: they are put in order first, some with each request.
    pub async fn change_lane(
        &self,
        lane: &str,
        request: &LaneChangeRequest,
    ) -> Result<LaneDetails, ClientError> {
        loop {
            match self.json(self.lane_call(Method::PATCH, lane, &[])?.json(request).repeatable()).await {
                Err(error) if error.did_some() => {}
                answer => return answer,
            }
        }
    }

    /// Hands out nothing more of a lane; what is out goes on.
    pub async fn pause_lane(&self, lane: &str) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::POST, lane, &["pause"])?.repeatable()).await
    }

    /// Ends a pause, and lets a lane that was drained take tasks again.
    pub async fn resume_lane(&self, lane: &str) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::POST, lane, &["resume"])?.repeatable()).await
    }

    /// Takes no more tasks into a lane; those that it has are handed out.
    pub async fn drain_lane(&self, lane: &str) -> Result<LaneDetails, ClientError> {
        self.json(self.lane_call(Method::POST, lane, &["drain"])?.repeatable()).await
    }

    /// Adds tasks to a lane, all or none, under an idempotency key of its own: a repeated try never adds them twice.
    pub async fn add_tasks(
        &self,
        lane: &str,
        tasks: Vec<TaskRequest>,
    ) -> Result<Vec<SubmissionId>, ClientError> {
        self.add_tasks_as(lane, tasks, &chance::random_name()).await
    }

    /// The same under the caller's idempotency key: the same key later gives the same tasks.
    pub async fn add_tasks_as(
        &self,
        lane: &str,
        tasks: Vec<TaskRequest>,
        key: &str,
    ) -> Result<Vec<SubmissionId>, ClientError> {
        check_idempotency_key(key)?;
        let call = self.lane_call(Method::POST, lane, &["tasks"])?.json(&AddTasksRequest { tasks });
        let added: AddTasksResponse = self.json(call.header("idempotency-key", key).repeatable()).await?;
        Ok(added.tasks)
    }

    fn lane_call(&self, method: Method, lane: &str, rest: &[&str]) -> Result<Call, ClientError> {
        refuse(problem_of_name(lane).or_else(|| problem_of_step(lane)))?;
        Ok(self.call(method, &[&["lanes", lane], rest].concat()))
    }

    /// Where a task stands, and what is ahead of it.
    pub async fn explain_task(&self, lane: &str, task: SubmissionId) -> Result<TaskExplained, ClientError> {
        self.json(self.lane_call(Method::GET, lane, &["tasks", &task.to_string()])?).await
    }

    /// Gives waiting tasks of keys new levels, by the weights that the keys have by name; all that are meant, and says how many got
    /// another one.
    pub async fn relevel(
        &self,
        lane: &str,
        request: &RelevelRequest,
    ) -> Result<RelevelResponse, StoppedAfter> {
        let mut request = request.clone();
        let mut tasks = 0;
        loop {
            let some = self.relevel_some(lane, &request).await;
            let some = some.map_err(|error| StoppedAfter { tasks, next: request.cursor.clone(), error })?;
            tasks += some.tasks;
            match some.next {
                Some(next) => request.cursor = Some(next),
                None => return Ok(RelevelResponse { tasks, next: None }),
            }
        }
    }

    /// The same as far as one request goes; the answer's `next` is the `cursor` of the next one.
    pub async fn relevel_some(
        &self,
        lane: &str,
        request: &RelevelRequest,
    ) -> Result<RelevelResponse, ClientError> {
        self.json(self.lane_call(Method::POST, lane, &["relevel"])?.json(request).repeatable()).await
    }

    /// The tasks of a lane that have failed for good, grouped by reason.
    pub async fn dead_tasks(&self, lane: &str) -> Result<DeadTasks, ClientError> {
        self.json(self.lane_call(Method::GET, lane, &["dead"])?).await
    }

    /// Tries dead tasks again, all that are meant, and says how many.
    pub async fn redrive(
        &self,
        lane: &str,
        request: &RedriveRequest,
    ) -> Result<RedriveResponse, StoppedAfter> {
        let mut request = request.clone();
        let mut tasks = 0;
        loop {
            let some = self.redrive_some(lane, &request).await;
            let some = some.map_err(|error| StoppedAfter { tasks, next: request.cursor.clone(), error })?;
            tasks += some.tasks;
            match some.next {
                Some(next) => request.cursor = Some(next),
                None => return Ok(RedriveResponse { tasks, next: None }),
            }
        }
    }

    /// The same as far as one request goes; the answer's `next` is the `cursor` of the next one. Without a cursor it is not repeated once it
    /// was sent: what dies meanwhile would be tried again as well. With one only those are meant that were dead before.
    pub async fn redrive_some(
        &self,
        lane: &str,
        request: &RedriveRequest,
    ) -> Result<RedriveResponse, ClientError> {
        let call = self.lane_call(Method::POST, lane, &["redrive"])?.json(request);
        self.json(if request.cursor.is_some() { call.repeatable() } else { call }).await
    }
}
