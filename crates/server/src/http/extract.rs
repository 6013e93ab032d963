//! Extractors: how requests become typed values, with a clear sentence where they do not.
//!
//! Invariants
//! - No body is read past its limit or its time, whoever sends it.

use super::answer::Refused;
use crate::limits::JSON_BODY_BYTES_MAX;
use crate::service::Service;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;
use windlass_api::json::detail_of;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::ids::SubmissionId;

/// A JSON body.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Service> for JsonBody<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Refused> {
        let content_type =
            request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if !content_type.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
            let detail = "this path takes JSON; send the header `content-type: application/json`";
            return Err(Refused(Problem::new(ProblemCode::ContentTypeWrong, detail)));
        }
        let bytes =
            read_body(request.into_body(), JSON_BODY_BYTES_MAX, service.config().body_timeout()).await?;
        let malformed = |detail: String| Refused(Problem::new(ProblemCode::MalformedRequest, detail));
        // A list of values without names would be read as the fields in their order, whatever the sender meant.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(malformed(
                "the body is a JSON object: fields and their values between braces".into(),
            ));
        }
        serde_json::from_slice(&bytes).map(JsonBody).map_err(|error| malformed(detail_of(&error)))
    }
}

/// Reads a body whole, within its limit and time.
pub(super) async fn read_body(body: Body, bytes_max: usize, timeout: Duration) -> Result<Bytes, Refused> {
    match tokio::time::timeout(timeout, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("a body of this path is at most {bytes_max} bytes");
            Err(Refused(Problem::new(ProblemCode::BodyTooLarge, detail)))
        }
        Ok(Err(error)) => Err(Refused(Problem::new(ProblemCode::MalformedRequest, error.to_string()))),
        Err(_) => {
            let detail = format!("the body did not arrive within {} ms; send it faster", timeout.as_millis());
            Err(Refused(Problem::new(ProblemCode::RequestTimeout, detail)))
        }
    }
}

/// A query string.
#[derive(Debug)]
pub(super) struct QueryOf<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Service> for QueryOf<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Refused> {
        match Query::from_request_parts(parts, service).await {
            Ok(Query(value)) => Ok(QueryOf(value)),
            Err(error) => Err(Refused(Problem::new(ProblemCode::MalformedRequest, error.body_text()))),
        }
    }
}

/// What a path names. An extractor of axum's own would refuse bytes that are no text with a text of its own.
#[derive(Debug)]
pub(super) struct PathOf<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Service> for PathOf<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Refused> {
        match Path::from_request_parts(parts, service).await {
            Ok(Path(value)) => Ok(PathOf(value)),
            Err(error) => Err(Refused(Problem::new(ProblemCode::MalformedRequest, error.body_text()))),
        }
    }
}

/// The submission id in a path.
#[derive(Debug)]
pub(super) struct IdInPath(pub(super) SubmissionId);

impl FromRequestParts<Service> for IdInPath {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Refused> {
        let malformed = |detail: String| Refused(Problem::new(ProblemCode::MalformedRequest, detail));
        let PathOf(text) = PathOf::<String>::from_request_parts(parts, service).await?;
        let id = text.parse().map(IdInPath);
        id.map_err(|error| malformed(format!("{text:?} is no submission id: {error}")))
    }
}
