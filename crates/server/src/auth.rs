//! Auth: who may come in. On loopback without a token, everybody; with one, whoever shows it.

use crate::http_refused;
use crate::service::Service;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use windlass_api::problem::{Problem, ProblemCode};

/// Lets a request through if it shows the token that the server asks for.
pub(crate) async fn check(State(service): State<Service>, request: Request, next: Next) -> Response {
    let Some(expected) = &service.config().token else { return next.run(request).await };
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
    if is_same(shown.as_bytes(), expected.as_bytes()) {
        next.run(request).await
    } else {
        let detail = "this server asks for a token; send `authorization: Bearer …`";
        http_refused(Problem::new(ProblemCode::Unauthorized, detail))
    }
}

/// Compares in a time that does not tell how much of the token was right.
fn is_same(shown: &[u8], expected: &[u8]) -> bool {
    let differences = shown.iter().zip(expected).fold(0, |all, (one, other)| all | (one ^ other));
    shown.len() == expected.len() && differences == 0
}
