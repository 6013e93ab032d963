//! Paths of submissions.

use super::answer::{Answer, Refused};
use super::extract::{IdInPath, JsonBody, QueryOf};
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use windlass_api::changes::{BulkRequest, BulkResponse, ChangeRequest};
use windlass_api::json::{
    ListQuery, ReadQuery, ResultPage, ResultsQuery, RetryResponse, SubmissionInfo, SubmissionPage,
    SubmitRequest, SubmitResponse, WaitQuery,
};
use windlass_api::problem::{Problem, ProblemCode};

/// Says which index of the log a read was made at.
const INDEX_HEADER: &str = "windlass-index";

/// Hands in a submission.
#[utoipa::path(
    post, path = "/v1/submissions", tag = "submissions", request_body = SubmitRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key within a day gives the same submission.")),
    responses((status = 201, body = SubmitResponse))
)]
pub(super) async fn submit(
    State(service): State<Service>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<SubmitRequest>,
) -> Answer<impl IntoResponse> {
    let response = service.submit(request, idempotency_key(&headers)?).await?;
    let location = format!("/v1/submissions/{}", response.id);
    Ok((StatusCode::CREATED, [("location", location)], Json(response)))
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) => Ok(Some(key.to_owned())),
        Err(_) => {
            let detail = "an idempotency key is plain ASCII text; a UUID will do";
            Err(Refused(Problem::new(ProblemCode::MalformedRequest, detail)))
        }
    }
}

/// Lists submissions, newest first.
#[utoipa::path(
    get, path = "/v1/submissions", tag = "submissions", params(ListQuery),
    responses((status = 200, body = SubmissionPage))
)]
pub(super) async fn list(
    State(service): State<Service>,
    QueryOf(query): QueryOf<ListQuery>,
) -> Answer<impl IntoResponse> {
    let index = service.freshen(query.consistency).await?;
    Ok(([(INDEX_HEADER, index.to_string())], Json(service.list(&query)?)))
}

/// Shows a submission.
#[utoipa::path(
    get, path = "/v1/submissions/{id}", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id."), ReadQuery),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn show(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
    QueryOf(query): QueryOf<ReadQuery>,
) -> Answer<impl IntoResponse> {
    let index = service.freshen(query.consistency).await?;
    Ok(([(INDEX_HEADER, index.to_string())], Json(service.show(id)?)))
}

/// Waits until a submission is over, or the time is up; shows it then.
#[utoipa::path(
    get, path = "/v1/submissions/{id}/wait", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id."), WaitQuery),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn wait(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
    QueryOf(query): QueryOf<WaitQuery>,
) -> Answer<Json<SubmissionInfo>> {
    Ok(Json(service.wait(id, query.timeout_ms).await?))
}

/// Shows what became of a submission's chunks, in their order; also while it runs.
#[utoipa::path(
    get, path = "/v1/submissions/{id}/results", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id."), ResultsQuery),
    responses((status = 200, body = ResultPage))
)]
pub(super) async fn results(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
    QueryOf(query): QueryOf<ResultsQuery>,
) -> Answer<impl IntoResponse> {
    let index = service.freshen(query.consistency).await?;
    Ok(([(INDEX_HEADER, index.to_string())], Json(service.results(id, &query)?)))
}

/// Says anew what is said of a running submission. What is not named stays as it is.
#[utoipa::path(
    patch, path = "/v1/submissions/{id}", tag = "submissions", request_body = ChangeRequest,
    params(("id" = String, Path, description = "The submission's id.")),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn change(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
    JsonBody(request): JsonBody<ChangeRequest>,
) -> Answer<Json<SubmissionInfo>> {
    Ok(Json(service.change(id, request).await?))
}

/// Pauses a running submission: nothing more of it is handed out, and what is out goes on.
#[utoipa::path(
    post, path = "/v1/submissions/{id}/pause", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id.")),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn pause(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
) -> Answer<Json<SubmissionInfo>> {
    Ok(Json(service.set_paused(id, true).await?))
}

/// Resumes a paused submission.
#[utoipa::path(
    post, path = "/v1/submissions/{id}/resume", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id.")),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn resume(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
) -> Answer<Json<SubmissionInfo>> {
    Ok(Json(service.set_paused(id, false).await?))
}

/// Cancels a submission; its remaining chunks are skipped.
#[utoipa::path(
    post, path = "/v1/submissions/{id}/cancel", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id.")),
    responses((status = 200, body = SubmissionInfo))
)]
pub(super) async fn cancel(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
) -> Answer<Json<SubmissionInfo>> {
    Ok(Json(service.cancel(id).await?))
}

/// Gives what failed or was skipped another round of attempts.
#[utoipa::path(
    post, path = "/v1/submissions/{id}/retry-failed", tag = "submissions",
    params(("id" = String, Path, description = "The submission's id.")),
    responses((status = 200, body = RetryResponse))
)]
pub(super) async fn retry_failed(
    State(service): State<Service>,
    IdInPath(id): IdInPath,
) -> Answer<Json<RetryResponse>> {
    Ok(Json(service.retry_failed(id).await?))
}

/// Does one thing with all submissions that a filter names; takes as long as they need. If the caller goes away, the rest is
/// left as it is.
#[utoipa::path(
    post, path = "/v1/submissions/bulk", tag = "submissions", request_body = BulkRequest,
    responses((status = 200, body = BulkResponse))
)]
pub(super) async fn bulk(
    State(service): State<Service>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Answer<Json<BulkResponse>> {
    Ok(Json(service.bulk(request).await?))
}
