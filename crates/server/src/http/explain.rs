//! The path of explain.

use super::answer::Answer;
use super::extract::JsonBody;
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use windlass_api::explain::{ExplainRequest, ExplainResponse};

/// Says what a strategy would give next and why, and why a submission is or is not handed out. Nothing is changed by it.
#[utoipa::path(
    post, path = "/v1/explain", tag = "work", request_body = ExplainRequest,
    responses((status = 200, body = ExplainResponse))
)]
pub(super) async fn explain(
    State(service): State<Service>,
    JsonBody(request): JsonBody<ExplainRequest>,
) -> Answer<Json<ExplainResponse>> {
    Ok(Json(service.explain(request).await?))
}
