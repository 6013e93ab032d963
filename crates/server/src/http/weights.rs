//! Paths of weights.

use super::answer::Answer;
use super::extract::{JsonBody, PathOf};
use crate::service::Service;
use axum::Json;
use axum::extract::State;
use windlass_api::weights::{WeighRequest, WeightsInfo, WeightsList};

/// Lists the weights of every field that has some.
#[utoipa::path(get, path = "/v1/weights", tag = "weights", responses((status = 200, body = WeightsList)))]
pub(super) async fn list(State(service): State<Service>) -> Answer<Json<WeightsList>> {
    Ok(Json(service.weights().await?))
}

/// Shows the weights of a field's values.
#[utoipa::path(
    get, path = "/v1/weights/{field}", tag = "weights", params(("field" = String, Path, description = "The metadata field.")),
    responses((status = 200, body = WeightsInfo))
)]
pub(super) async fn show(
    State(service): State<Service>,
    PathOf(field): PathOf<String>,
) -> Answer<Json<WeightsInfo>> {
    Ok(Json(service.weights_of(field).await?))
}

/// Sets weights of a field's values for every `Fair` that does not name them itself. They count from the next chunk on.
#[utoipa::path(
    patch, path = "/v1/weights/{field}", tag = "weights", params(("field" = String, Path, description = "The metadata field.")),
    request_body = WeighRequest, responses((status = 200, body = WeightsInfo))
)]
pub(super) async fn weigh(
    State(service): State<Service>,
    PathOf(field): PathOf<String>,
    JsonBody(request): JsonBody<WeighRequest>,
) -> Answer<Json<WeightsInfo>> {
    Ok(Json(service.weigh(field, request).await?))
}
