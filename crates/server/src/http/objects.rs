//! The object door: chunks' bytes, for clients that do not reach the object store themselves.

use super::answer::{Answer, Refused};
use super::extract::read_body;
use crate::limits::OBJECT_BYTES_MAX;
use crate::service::Service;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_store::fault::StoreFault;
use windlass_store::objects::{ObjectKey, PutOutcome};

/// Puts a new object; objects never change.
#[utoipa::path(
    put, path = "/v1/objects/{*key}", tag = "objects",
    params(("key" = String, Path, description = "The object's key: names separated by `/`.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "The object is stored."))
)]
pub(super) async fn put(
    State(service): State<Service>,
    Path(key): Path<String>,
    request: Request,
) -> Answer<StatusCode> {
    let key = key_of(&key)?;
    let bytes = read_body(request.into_body(), OBJECT_BYTES_MAX, service.config().body_timeout()).await?;
    match service.objects().put_new(&key, bytes).await.map_err(fault)? {
        PutOutcome::Created => Ok(StatusCode::CREATED),
        PutOutcome::Exists => {
            let detail =
                format!("an object has the key {}; objects never change, so use another key", key.as_str());
            Err(Refused(Problem::new(ProblemCode::ObjectExists, detail)))
        }
    }
}

/// Gets an object.
#[utoipa::path(
    get, path = "/v1/objects/{*key}", tag = "objects",
    params(("key" = String, Path, description = "The object's key.")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"))
)]
pub(super) async fn get(State(service): State<Service>, Path(key): Path<String>) -> Answer<Response> {
    let key = key_of(&key)?;
    let Some(object) = service.objects().get(&key).await.map_err(fault)? else {
        let detail = format!("no object has the key {}", key.as_str());
        return Err(Refused(Problem::new(ProblemCode::ObjectUnknown, detail)));
    };
    let headers =
        [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_LENGTH, object.size.to_string())];
    Ok((headers, Body::from_stream(object.stream)).into_response())
}

fn key_of(text: &str) -> Answer<ObjectKey> {
    ObjectKey::parse(text)
        .map_err(|error| Refused(Problem::new(ProblemCode::InvalidRequest, error.to_string())))
}

fn fault(fault: StoreFault) -> Refused {
    tracing::error!(%fault, "the object store has a fault");
    let code = match fault {
        StoreFault::DiskFull { .. } => ProblemCode::DiskFull,
        _ => ProblemCode::Internal,
    };
    Refused(Problem::new(code, fault.to_string()))
}
