//! The server: doors (HTTP, the consumers' WebSocket) and roles (background work) around the ordered log.
//!
//! Reading order: [`node`] (how the parts are put together and stopped), [`config`], then a request's walk: `http` or
//! `consume_socket`, [`service`], the log, and back through [`roles`].

mod auth;
pub mod clock;
pub mod config;
mod consume_socket;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod node;
pub mod roles;
pub mod service;
mod threads;

use axum::response::{IntoResponse, Response};
use windlass_api::problem::Problem;

/// A problem as a response, for doors outside `http`.
pub(crate) fn http_refused(problem: Problem) -> Response {
    http::Refused(problem).into_response()
}
