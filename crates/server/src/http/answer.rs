//! Answers: how problems look as HTTP.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use windlass_api::problem::{Problem, ProblemCode};

/// A problem as a response.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(problem) = self;
        metrics::counter!("windlass_problems_total", "code" => problem.code.name()).increment(1);
        let status = StatusCode::from_u16(problem.status).expect("the table holds HTTP statuses");
        let wait_first = matches!(problem.code, ProblemCode::Busy | ProblemCode::Unavailable);
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, "application/problem+json".parse().expect("a plain header value"));
        if wait_first {
            headers.insert(RETRY_AFTER, "1".parse().expect("a plain header value"));
        }
        response
    }
}

/// What a handler gives.
pub(crate) type Answer<T> = Result<T, Refused>;
