//! Paths of branches: create, list, show, reset, delete; staging; commits.

use super::answer::{Answer, Refused};
use super::extract::{JsonBody, PathOf, QueryOf};
use super::submissions::idempotency_key;
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use windlass_api::branches::{
    BranchInfo, BranchListQuery, BranchPage, CommitBody, CommitInfo, CommitOutcome, CommitPage,
    CommitProgress, CreateBranchRequest, DiffPage, DiffQuery, EntriesQuery, EntryPage, LogQuery,
    RollbackBody, StageRequest, StagedResponse, TokenRequest, TokenResponse,
};
use windlass_api::json::WaitQuery;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::ids::SubmissionId;

/// Lists branches by name.
#[utoipa::path(
    get, path = "/v1/branches", tag = "branches", params(BranchListQuery), responses((status = 200, body = BranchPage))
)]
pub(super) async fn list(
    State(service): State<Service>,
    QueryOf(query): QueryOf<BranchListQuery>,
) -> Answer<Json<BranchPage>> {
    service.freshen(None).await?;
    Ok(Json(service.branch_page(&query)?))
}

/// Creates a branch: empty, or with what a commit or another branch holds.
#[utoipa::path(
    post, path = "/v1/branches", tag = "branches", request_body = CreateBranchRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key within a day is answered the same.")),
    responses((status = 201, body = BranchInfo))
)]
pub(super) async fn create(
    State(service): State<Service>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateBranchRequest>,
) -> Answer<impl IntoResponse> {
    let created = service.create_branch(request, idempotency_key(&headers)?).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Shows a branch.
#[utoipa::path(
    get, path = "/v1/branches/{branch}", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F.")),
    responses((status = 200, body = BranchInfo))
)]
pub(super) async fn show(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
) -> Answer<Json<BranchInfo>> {
    service.freshen(None).await?;
    Ok(Json(service.branch(&branch)?))
}

/// Deletes a branch with what is staged on it; commits that wait are aborted. Commits can still be read by their ids.
#[utoipa::path(
    delete, path = "/v1/branches/{branch}", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F.")),
    responses((status = 204, description = "The branch is gone."))
)]
pub(super) async fn delete(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
) -> Answer<StatusCode> {
    service.delete_branch(branch).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Throws away what is staged on a branch and no commit has taken.
#[utoipa::path(
    post, path = "/v1/branches/{branch}/reset", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F.")),
    responses((status = 200, body = BranchInfo))
)]
pub(super) async fn reset(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
) -> Answer<Json<BranchInfo>> {
    Ok(Json(service.reset_branch(branch).await?))
}

/// Gives the newest staging token, and addresses to upload objects to.
#[utoipa::path(
    post, path = "/v1/branches/{branch}/token", tag = "branches", request_body = TokenRequest,
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F.")),
    responses((status = 200, body = TokenResponse))
)]
pub(super) async fn token(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Answer<Json<TokenResponse>> {
    Ok(Json(service.staging_token(&branch, &request).await?))
}

/// Stages entries whose objects were uploaded, and tombstones: all of them, or none.
#[utoipa::path(
    post, path = "/v1/branches/{branch}/entries", tag = "branches", request_body = StageRequest,
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day is answered the same.")
    ),
    responses((status = 200, body = StagedResponse))
)]
pub(super) async fn stage(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<StageRequest>,
) -> Answer<Json<StagedResponse>> {
    Ok(Json(service.stage_entries(branch, request, idempotency_key(&headers)?).await?))
}

/// Lists a branch's entries in the order of their paths' bytes.
#[utoipa::path(
    get, path = "/v1/branches/{branch}/entries", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F."), EntriesQuery),
    responses((status = 200, body = EntryPage))
)]
pub(super) async fn entries(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    QueryOf(query): QueryOf<EntriesQuery>,
) -> Answer<Json<EntryPage>> {
    Ok(Json(service.entry_page(&branch, &query).await?))
}

/// Commits what is staged, and waits for the outcome: 201 if it is committed, 202 if it is still in progress.
#[utoipa::path(
    post, path = "/v1/branches/{branch}/commits", tag = "branches", request_body = CommitBody,
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day gives the same commit.")
    ),
    responses((status = 201, body = CommitOutcome), (status = 202, body = CommitOutcome))
)]
pub(super) async fn commit(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<CommitBody>,
) -> Answer<impl IntoResponse> {
    answered(service.commit(branch, body, idempotency_key(&headers)?).await?)
}

/// Lists the commits that lead to a branch's head, newest first.
#[utoipa::path(
    get, path = "/v1/branches/{branch}/commits", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F."), LogQuery),
    responses((status = 200, body = CommitPage))
)]
pub(super) async fn log(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    QueryOf(query): QueryOf<LogQuery>,
) -> Answer<Json<CommitPage>> {
    service.freshen(None).await?;
    Ok(Json(service.commit_page(&branch, &query)?))
}

/// Makes a commit with what an earlier one held, and waits for the outcome.
#[utoipa::path(
    post, path = "/v1/branches/{branch}/rollback", tag = "branches", request_body = RollbackBody,
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day gives the same commit.")
    ),
    responses((status = 201, body = CommitOutcome), (status = 202, body = CommitOutcome))
)]
pub(super) async fn rollback(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RollbackBody>,
) -> Answer<impl IntoResponse> {
    answered(service.roll_back(branch, body, idempotency_key(&headers)?).await?)
}

/// Says what differs between two versions, or what is staged.
#[utoipa::path(
    get, path = "/v1/branches/{branch}/diff", tag = "branches",
    params(("branch" = String, Path, description = "The branch's name, its slashes written as %2F."), DiffQuery),
    responses((status = 200, body = DiffPage))
)]
pub(super) async fn diff(
    State(service): State<Service>,
    PathOf(branch): PathOf<String>,
    QueryOf(query): QueryOf<DiffQuery>,
) -> Answer<Json<DiffPage>> {
    Ok(Json(service.diff_page(&branch, &query).await?))
}

/// Shows a commit.
#[utoipa::path(
    get, path = "/v1/commits/{commit}", tag = "branches",
    params(("commit" = String, Path, description = "The commit's id, or at least its first 8 digits.")),
    responses((status = 200, body = CommitInfo))
)]
pub(super) async fn show_commit(
    State(service): State<Service>,
    PathOf(commit): PathOf<String>,
) -> Answer<Json<CommitInfo>> {
    service.freshen(None).await?;
    Ok(Json(service.commit_shown(&commit).await?))
}

/// Says what became of a request for a commit; waits for its end if told to.
#[utoipa::path(
    get, path = "/v1/commit-requests/{request}", tag = "branches",
    params(("request" = String, Path, description = "The request's id."), WaitQuery),
    responses((status = 200, body = CommitOutcome))
)]
pub(super) async fn outcome(
    State(service): State<Service>,
    PathOf(request): PathOf<String>,
    QueryOf(query): QueryOf<WaitQuery>,
) -> Answer<Json<CommitOutcome>> {
    let request = request_of(&request)?;
    service.freshen(None).await?;
    Ok(Json(service.wait_for_commit(request, Some(query.timeout_ms.unwrap_or(0))).await?))
}

/// Gives a request for a commit up, if it is not over. What is staged stays staged.
#[utoipa::path(
    delete, path = "/v1/commit-requests/{request}", tag = "branches",
    params(("request" = String, Path, description = "The request's id.")),
    responses((status = 200, body = CommitOutcome))
)]
pub(super) async fn abort(
    State(service): State<Service>,
    PathOf(request): PathOf<String>,
) -> Answer<Json<CommitOutcome>> {
    Ok(Json(service.abort_commit(request_of(&request)?).await?))
}

fn request_of(text: &str) -> Answer<SubmissionId> {
    text.parse().map_err(|_| {
        let detail = format!("{text:?} is no request for a commit, which is a number");
        Refused(Problem::new(ProblemCode::MalformedRequest, detail))
    })
}

/// A commit that was aborted is a problem: whoever asked for it wanted another outcome.
fn answered(outcome: CommitOutcome) -> Answer<(StatusCode, Json<CommitOutcome>)> {
    let status = match outcome.state {
        CommitProgress::Committed => StatusCode::CREATED,
        CommitProgress::InProgress => StatusCode::ACCEPTED,
        CommitProgress::Aborted => {
            let reason = outcome.reason.unwrap_or_default();
            let detail = format!("request {}: {reason}", outcome.request);
            return Err(Refused(Problem::new(ProblemCode::CommitAborted, detail)));
        }
    };
    Ok((status, Json(outcome)))
}
