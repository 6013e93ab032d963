//! Paths of lanes.

use super::answer::{Answer, Refused};
use super::extract::{JsonBody, PathOf, QueryOf};
use super::submissions::idempotency_key;
use crate::service::Service;
use crate::service::lanes::LaneChange;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use windlass_api::lanes::{
    AddTasksRequest, AddTasksResponse, DeadTasks, LaneChangeRequest, LaneDetails, LaneListQuery, LanePage,
    LaneQuery, RedriveRequest, RedriveResponse, RelevelRequest, RelevelResponse, TaskExplained,
};
use windlass_api::problem::{Problem, ProblemCode};

/// Lists lanes by name.
#[utoipa::path(get, path = "/v1/lanes", tag = "lanes", params(LaneListQuery), responses((status = 200, body = LanePage)))]
pub(super) async fn list(
    State(service): State<Service>,
    QueryOf(query): QueryOf<LaneListQuery>,
) -> Answer<Json<LanePage>> {
    service.freshen(None).await?;
    Ok(Json(service.lanes(&query)?))
}

/// Shows a lane.
#[utoipa::path(
    get, path = "/v1/lanes/{lane}", tag = "lanes",
    params(("lane" = String, Path, description = "The lane's name."), LaneQuery),
    responses((status = 200, body = LaneDetails))
)]
pub(super) async fn show(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
    QueryOf(query): QueryOf<LaneQuery>,
) -> Answer<Json<LaneDetails>> {
    service.freshen(None).await?;
    Ok(Json(service.look_at_lane(lane, query).await?))
}

/// Creates a lane; one that is there already stays as it is.
#[utoipa::path(
    put, path = "/v1/lanes/{lane}", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = LaneDetails))
)]
pub(super) async fn create(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
) -> Answer<Json<LaneDetails>> {
    Ok(Json(service.set_lane(lane, LaneChange::Create).await?))
}

/// Sets weights of a lane's keys, for tasks that are added from then on, and limits.
///
/// The first limit of a key needs the tasks that wait in order key by key. If they are very many, each request puts some in order and is
/// answered `lane_keys_unordered` until all are: send it again.
#[utoipa::path(
    patch, path = "/v1/lanes/{lane}", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    request_body = LaneChangeRequest, responses((status = 200, body = LaneDetails))
)]
pub(super) async fn change(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
    JsonBody(request): JsonBody<LaneChangeRequest>,
) -> Answer<Json<LaneDetails>> {
    Ok(Json(service.change_lane(lane, request).await?))
}

/// Hands out nothing more of a lane, over restarts too; what is out goes on.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/pause", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = LaneDetails))
)]
pub(super) async fn pause(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
) -> Answer<Json<LaneDetails>> {
    Ok(Json(service.set_lane(lane, LaneChange::Pause).await?))
}

/// Ends a pause, and lets a lane that was drained take tasks again.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/resume", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = LaneDetails))
)]
pub(super) async fn resume(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
) -> Answer<Json<LaneDetails>> {
    Ok(Json(service.set_lane(lane, LaneChange::Resume).await?))
}

/// Takes no more tasks into a lane; those that it has are handed out.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/drain", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = LaneDetails))
)]
pub(super) async fn drain(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
) -> Answer<Json<LaneDetails>> {
    Ok(Json(service.set_lane(lane, LaneChange::Drain).await?))
}

/// Adds tasks to a lane: all of them, or none.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/tasks", tag = "lanes", request_body = AddTasksRequest,
    params(
        ("lane" = String, Path, description = "The lane's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day adds the same tasks.")
    ),
    responses((status = 201, body = AddTasksResponse))
)]
pub(super) async fn add(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<AddTasksRequest>,
) -> Answer<impl IntoResponse> {
    let added = service.add_tasks(lane, request, idempotency_key(&headers)?).await?;
    Ok((StatusCode::CREATED, Json(added)))
}

/// Says where a task stands, and what is ahead of it.
#[utoipa::path(
    get, path = "/v1/lanes/{lane}/tasks/{task}", tag = "lanes",
    params(
        ("lane" = String, Path, description = "The lane's name."),
        ("task" = String, Path, description = "The task's id.")
    ),
    responses((status = 200, body = TaskExplained))
)]
pub(super) async fn explain(
    State(service): State<Service>,
    PathOf((lane, task)): PathOf<(String, String)>,
) -> Answer<Json<TaskExplained>> {
    let Ok(id) = task.parse() else {
        let detail = format!("{task:?} is no task's id, which is a decimal number between 1 and 2^63 - 1");
        return Err(Refused(Problem::new(ProblemCode::MalformedRequest, detail)));
    };
    service.freshen(None).await?;
    Ok(Json(service.explain_task(lane, id).await?))
}

/// Gives waiting tasks of keys new levels, by the weights that the keys have by name; some at a time.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/relevel", tag = "lanes", request_body = RelevelRequest,
    params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = RelevelResponse))
)]
pub(super) async fn relevel(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
    JsonBody(request): JsonBody<RelevelRequest>,
) -> Answer<Json<RelevelResponse>> {
    service.freshen(None).await?;
    Ok(Json(service.relevel(&lane, request).await?))
}

/// Shows the tasks of a lane that have failed for good, grouped by reason.
#[utoipa::path(
    get, path = "/v1/lanes/{lane}/dead", tag = "lanes", params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = DeadTasks))
)]
pub(super) async fn dead(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
) -> Answer<Json<DeadTasks>> {
    service.freshen(None).await?;
    Ok(Json(service.dead_tasks(lane).await?))
}

/// Tries dead tasks again, some at a time.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/redrive", tag = "lanes", request_body = RedriveRequest,
    params(("lane" = String, Path, description = "The lane's name.")),
    responses((status = 200, body = RedriveResponse))
)]
pub(super) async fn redrive(
    State(service): State<Service>,
    PathOf(lane): PathOf<String>,
    JsonBody(request): JsonBody<RedriveRequest>,
) -> Answer<Json<RedriveResponse>> {
    service.freshen(None).await?;
    Ok(Json(service.redrive(lane, request).await?))
}
