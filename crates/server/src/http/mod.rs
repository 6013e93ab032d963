//! HTTP: the paths under `/v1`, and those that look after the server.

pub mod accept;
mod answer;
mod branch_objects;
mod branches;
mod events;
mod explain;
mod extract;
mod heads;
mod lanes;
mod objects;
mod overview;
mod ranges;
mod status;
mod submissions;
mod upload;
mod weights;
mod work;

use crate::auth;
use crate::consume_socket;
use crate::service::Service;
pub(crate) use answer::Refused;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass_api::problem::{Problem, ProblemCode};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Windlass",
        description = "Moves work too big to run in one go, one chunk at a time. Errors are RFC 9457 problem details. \
                       Consumers that want more than a few chunks a second use the WebSocket at `/v1/consume`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem))
)]
struct Described;

/// What the handlers' own descriptions cannot say.
fn complete_document(document: &mut utoipa::openapi::OpenApi) {
    document.info.version = env!("CARGO_PKG_VERSION").into();
    // The router's sign for "the rest of the path" is not OpenAPI's.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    let problem = ResponseBuilder::new()
        .description("A problem, as RFC 9457 has it.")
        .content("application/problem+json", Content::new(Some(Ref::from_schema_name("Problem"))))
        .build();
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete]
            .into_iter()
            .flatten()
        {
            operation.responses.responses.insert("default".into(), problem.clone().into());
        }
    }
}

/// The router of all doors, and the OpenAPI document of those that speak JSON.
pub fn router(service: Service) -> Router {
    let (described, mut document) = OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(submissions::submit, submissions::list))
        .routes(routes!(submissions::show, submissions::change))
        .routes(routes!(submissions::wait))
        .routes(routes!(submissions::results))
        .routes(routes!(submissions::pause))
        .routes(routes!(submissions::resume))
        .routes(routes!(submissions::cancel))
        .routes(routes!(submissions::retry_failed))
        .routes(routes!(submissions::bulk))
        .routes(routes!(work::reserve))
        .routes(routes!(work::complete))
        .routes(routes!(work::fail))
        .routes(routes!(work::extend))
        .routes(routes!(work::release))
        .routes(routes!(explain::explain))
        .routes(routes!(overview::overview))
        .routes(routes!(lanes::list))
        .routes(routes!(lanes::show, lanes::create, lanes::change))
        .routes(routes!(lanes::pause))
        .routes(routes!(lanes::resume))
        .routes(routes!(lanes::drain))
        .routes(routes!(lanes::add))
        .routes(routes!(lanes::explain))
        .routes(routes!(lanes::dead))
        .routes(routes!(lanes::redrive))
        .routes(routes!(lanes::relevel))
        .routes(routes!(branches::list, branches::create))
        .routes(routes!(branches::show, branches::delete))
        .routes(routes!(branches::reset))
        .routes(routes!(branches::token))
        .routes(routes!(branches::entries, branches::stage))
        .routes(routes!(branches::log, branches::commit))
        .routes(routes!(branches::rollback))
        .routes(routes!(branches::diff))
        .routes(routes!(branches::show_commit))
        .routes(routes!(branches::outcome, branches::abort))
        .routes(routes!(
            branch_objects::get,
            branch_objects::head,
            branch_objects::put,
            branch_objects::remove
        ))
        .routes(routes!(weights::list))
        .routes(routes!(weights::show, weights::weigh))
        .routes(routes!(events::events))
        .routes(routes!(objects::put, objects::get, objects::head))
        .routes(routes!(status::status))
        .routes(routes!(consume_socket::consume))
        .split_for_parts();
    complete_document(&mut document);
    let document = document.to_json().expect("the document is made of plain values");

    described
        .route("/v1/openapi.json", get(async || ([("content-type", "application/json")], document)))
        .route("/metrics", get(status::metrics))
        .route_layer(axum::middleware::from_fn_with_state(service.clone(), auth::check))
        // Whoever looks after the process needs no token to see that it lives.
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .fallback(async || {
            Refused(Problem::new(
                ProblemCode::PathUnknown,
                "there is nothing here; /v1/openapi.json lists all paths",
            ))
        })
        .method_not_allowed_fallback(async || {
            let detail = "this path has other methods; /v1/openapi.json lists them";
            Refused(Problem::new(ProblemCode::MethodNotAllowed, detail))
        })
        // Every reader of a body has its own limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(service)
}
