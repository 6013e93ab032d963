//! Paths that look after the server: status, health, ready, metrics.

use super::answer::Answer;
use crate::metrics as measured;
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use windlass_api::json::StatusInfo;

/// Shows how the server is, at a cost that does not grow with the backlog.
#[utoipa::path(
    get, path = "/v1/status", tag = "server",
    responses((status = 200, body = StatusInfo))
)]
pub(super) async fn status(State(service): State<Service>) -> Answer<Json<StatusInfo>> {
    Ok(Json(service.status().await?))
}

/// Whether the process lives.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Whether work can be taken in and handed out.
pub(super) async fn ready(State(service): State<Service>) -> (StatusCode, &'static str) {
    if service.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

/// The metrics in Prometheus' text format.
pub(super) async fn metrics(State(service): State<Service>) -> Answer<impl IntoResponse> {
    let status = service.status().await?;
    let text = measured::render(
        &status,
        &service.order().counters(),
        service.announcer().watchers(),
        service.abouts().len(),
        service.lane_figures(),
        service.branch_figures(),
    );
    Ok(([("content-type", "text/plain; version=0.0.4")], text))
}
