//! The objects that a branch's paths lead to: put, get, head, remove.

use super::answer::{Answer, Refused};
use super::extract::{PathOf, QueryOf};
use super::ranges::{Shown, answer_object, open_range};
use super::submissions::idempotency_key;
use super::upload::upload;
use crate::service::Service;
use crate::service::branches::condition_of;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use windlass_api::branches::{AtQuery, METADATA_HEADER_PREFIX, StagedResponse};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::entries::{ObjectEntry, problem_of_path};
use windlass_core::branches::staging::{Condition, StageChange};
use windlass_store::objects::ObjectKey;

/// Uploads an object and stages it under a path.
#[utoipa::path(
    put, path = "/v1/branches/{branch}/objects/{*path}", tag = "branches",
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("path" = String, Path, description = "The path."),
        ("If-Match" = Option<String>, Header, description = "Only if the path leads to an object with this ETag; `*` for any."),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if the path leads nowhere."),
        ("x-windlass-sha256" = Option<String>, Header, description = "The SHA-256 of the body in hexadecimal digits. Other bytes are refused."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day is answered the same.")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "It is staged.", body = StagedResponse))
)]
pub(super) async fn put(
    State(service): State<Service>,
    PathOf((branch, path)): PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer<impl IntoResponse> {
    check_path(&path)?;
    let (condition, key) = (condition_in(&headers)?, idempotency_key(&headers)?);
    let (content_type, metadata) = (content_type_in(&headers)?, metadata_in(&headers)?);
    // Before the bytes are taken in for a branch that is not there.
    service.branch(&branch)?;
    let address = service.address_for_upload().await?;
    let object = ObjectKey::parse(&address).expect("a granted address is a key");
    let uploaded = upload(&service, &object, &headers, body).await?;
    let (size, sha256) = (uploaded.size, uploaded.sha256);
    let entry = ObjectEntry { address, size, sha256, content_type, metadata, made_by: None };
    if let Some(problem) = entry.problem() {
        return Err(Refused(Problem::new(ProblemCode::InvalidRequest, problem)));
    }
    let change = StageChange { path, entry: Some(entry), condition, in_head: None };
    let token = service.stage(branch, None, vec![change], key).await?;
    let answer = StagedResponse { token: token.to_string(), sha256: Some(sha256), size: Some(size) };
    Ok((StatusCode::CREATED, [(ETAG, format!("\"{sha256}\""))], Json(answer)))
}

/// Gets the object that a path leads to, or a part of it.
#[utoipa::path(
    get, path = "/v1/branches/{branch}/objects/{*path}", tag = "branches",
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("path" = String, Path, description = "The path."),
        ("Range" = Option<String>, Header, description = "One range: `bytes=a-b`, `bytes=a-` or `bytes=-n`. Others are ignored."),
        ("If-None-Match" = Option<String>, Header, description = "ETags that the caller has."),
        AtQuery
    ),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The range.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "The caller has it.")
    )
)]
pub(super) async fn get(
    State(service): State<Service>,
    PathOf((branch, path)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<AtQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    answer(&service, &Method::GET, &branch, &path, &query, &headers).await
}

/// Tells what is said of the object that a path leads to.
#[utoipa::path(
    head, path = "/v1/branches/{branch}/objects/{*path}", tag = "branches",
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("path" = String, Path, description = "The path."), AtQuery
    ),
    responses((status = 200, description = "It is there."), (status = 404, description = "The path leads nowhere."))
)]
pub(super) async fn head(
    State(service): State<Service>,
    PathOf((branch, path)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<AtQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    answer(&service, &Method::HEAD, &branch, &path, &query, &headers).await
}

/// Stages the removal of a path.
#[utoipa::path(
    delete, path = "/v1/branches/{branch}/objects/{*path}", tag = "branches",
    params(
        ("branch" = String, Path, description = "The branch's name, its slashes written as %2F."),
        ("path" = String, Path, description = "The path."),
        ("If-Match" = Option<String>, Header, description = "Only if the path leads to an object with this ETag; `*` for any."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key within a day is answered the same.")
    ),
    responses((status = 200, description = "The removal is staged.", body = StagedResponse))
)]
pub(super) async fn remove(
    State(service): State<Service>,
    PathOf((branch, path)): PathOf<(String, String)>,
    headers: HeaderMap,
) -> Answer<Json<StagedResponse>> {
    check_path(&path)?;
    let (condition, key) = (condition_in(&headers)?, idempotency_key(&headers)?);
    let change = StageChange { path, entry: None, condition, in_head: None };
    let token = service.stage(branch, None, vec![change], key).await?;
    Ok(Json(StagedResponse { token: token.to_string(), sha256: None, size: None }))
}

async fn answer(
    service: &Service,
    method: &Method,
    branch: &str,
    path: &str,
    query: &AtQuery,
    headers: &HeaderMap,
) -> Answer<Response> {
    check_path(path)?;
    let entry = service.entry(branch, path, query).await?;
    let invalid = |detail: String| Refused(Problem::new(ProblemCode::Internal, detail));
    let key = ObjectKey::parse(&entry.address).map_err(|error| invalid(error.to_string()))?;
    let etag = format!("\"{}\"", entry.sha256);
    let content_type = match entry.content_type.as_str() {
        "" => "application/octet-stream",
        content_type => content_type,
    };
    let shown = Shown { size: entry.size, etag: Some(&etag), content_type };
    let open = |range| open_range(service.objects(), &key, entry.size, range);
    let mut response = answer_object(method, headers, shown, open).await?;
    for (name, value) in &entry.metadata {
        let name = HeaderName::from_bytes(format!("{METADATA_HEADER_PREFIX}{name}").as_bytes());
        // What was said over another door may not be a header; the listing has it.
        if let (Ok(name), Ok(value)) = (name, value.parse()) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn check_path(path: &str) -> Answer<()> {
    match problem_of_path(path) {
        Some(problem) => Err(Refused(Problem::new(ProblemCode::InvalidRequest, problem))),
        None => Ok(()),
    }
}

fn condition_in(headers: &HeaderMap) -> Answer<Condition> {
    let text = |name| text_in(headers, name);
    Ok(condition_of(text(IF_MATCH)?, text(IF_NONE_MATCH)?)?)
}

fn content_type_in(headers: &HeaderMap) -> Answer<String> {
    Ok(text_in(headers, CONTENT_TYPE)?.unwrap_or_default().to_owned())
}

fn text_in(headers: &HeaderMap, name: HeaderName) -> Answer<Option<&str>> {
    let text = headers.get(&name).map(|value| value.to_str()).transpose();
    text.map_err(|_| {
        let detail = format!("the header {name} is no plain text");
        Refused(Problem::new(ProblemCode::MalformedRequest, detail))
    })
}

/// What headers say of an object: `x-windlass-meta-NAME`.
fn metadata_in(headers: &HeaderMap) -> Answer<BTreeMap<String, String>> {
    let mut metadata = BTreeMap::new();
    for name in headers.keys() {
        if let Some(short) = name.as_str().strip_prefix(METADATA_HEADER_PREFIX) {
            let value = text_in(headers, name.clone())?.unwrap_or_default();
            metadata.insert(short.to_owned(), value.to_owned());
        }
    }
    Ok(metadata)
}
