//! The path of the overview.

use super::answer::Answer;
use super::extract::QueryOf;
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use windlass_api::overview::{OverviewInfo, OverviewQuery};

/// Shows the queue in numbers, at a cost that does not grow with the backlog.
#[utoipa::path(
    get, path = "/v1/overview", tag = "server", params(OverviewQuery),
    responses((status = 200, body = OverviewInfo))
)]
pub(super) async fn overview(
    State(service): State<Service>,
    QueryOf(query): QueryOf<OverviewQuery>,
) -> Answer<Json<OverviewInfo>> {
    Ok(Json(service.overview(query).await?))
}
