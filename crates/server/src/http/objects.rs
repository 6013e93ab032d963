//! The object door: chunks' bytes, for clients that do not reach the object store themselves.

use super::answer::{Answer, Refused};
use super::extract::PathOf;
use super::ranges::{Shown, answer_object, is_conditional, open_range, unknown, whole};
use super::upload::{store_fault, upload};
use crate::service::Service;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use windlass_api::objects::ObjectInfo;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_store::objects::ObjectKey;

/// What the door says of bytes that nobody has described.
const CONTENT_TYPE: &str = "application/octet-stream";

/// Puts a new object; objects never change.
#[utoipa::path(
    put, path = "/v1/objects/{*key}", tag = "objects",
    params(
        ("key" = String, Path, description = "The object's key: names separated by `/`."),
        ("x-windlass-sha256" = Option<String>, Header, description = "The SHA-256 of the body in hexadecimal digits. Other bytes are refused."),
        ("Repr-Digest" = Option<String>, Header, description = "The same as RFC 9530 has it: `sha-256=:…:`."),
        ("Content-Digest" = Option<String>, Header, description = "The same as `Repr-Digest`.")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "The object is stored.", body = ObjectInfo))
)]
pub(super) async fn put(
    State(service): State<Service>,
    PathOf(key): PathOf<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<impl IntoResponse> {
    let uploaded = upload(&service, &key_of(&key)?, &headers, body).await?;
    let info = ObjectInfo { size: uploaded.size, sha256: uploaded.sha256 };
    Ok((StatusCode::CREATED, Json(info)))
}

/// Gets an object, or a part of it.
#[utoipa::path(
    get, path = "/v1/objects/{*key}", tag = "objects",
    params(
        ("key" = String, Path, description = "The object's key."),
        ("Range" = Option<String>, Header, description = "One range: `bytes=a-b`, `bytes=a-` or `bytes=-n`. Others are ignored."),
        ("If-None-Match" = Option<String>, Header, description = "ETags that the caller has.")
    ),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The range.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "The caller has it.")
    )
)]
pub(super) async fn get(
    State(service): State<Service>,
    PathOf(key): PathOf<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let key = key_of(&key)?;
    if is_conditional(&headers) {
        return look_and_answer(&service, &key, &Method::GET, &headers).await;
    }
    // Without conditions there is nothing to look at first, which on S3 would be one more request.
    let object = service.objects().get(&key).await.map_err(|fault| store_fault(&fault))?;
    let object = object.ok_or_else(|| unknown(&key))?;
    let etag = object.etag.clone().filter(|etag| is_strong(etag));
    Ok(whole(Shown { size: object.size, etag: etag.as_deref(), content_type: CONTENT_TYPE }, object))
}

/// Tells an object's size and ETag.
#[utoipa::path(
    head, path = "/v1/objects/{*key}", tag = "objects",
    params(("key" = String, Path, description = "The object's key.")),
    responses(
        (status = 200, description = "It is there; `Content-Length` is its size."),
        (status = 404, description = "No object has this key.")
    )
)]
pub(super) async fn head(
    State(service): State<Service>,
    PathOf(key): PathOf<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    look_and_answer(&service, &key_of(&key)?, &Method::HEAD, &headers).await
}

async fn look_and_answer(
    service: &Service,
    key: &ObjectKey,
    method: &Method,
    headers: &HeaderMap,
) -> Answer<Response> {
    let look = service.objects().look_up(key).await.map_err(|fault| store_fault(&fault))?;
    let look = look.ok_or_else(|| unknown(key))?;
    let etag = look.etag.filter(|etag| is_strong(etag));
    let shown = Shown { size: look.size, etag: etag.as_deref(), content_type: CONTENT_TYPE };
    let open = |range| open_range(service.objects(), key, look.size, range);
    answer_object(method, headers, shown, open).await
}

/// The store's own tags are passed on if they say that every byte is the same.
fn is_strong(etag: &str) -> bool {
    etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"') && etag.is_ascii()
}

fn key_of(text: &str) -> Answer<ObjectKey> {
    ObjectKey::parse(text)
        .map_err(|error| Refused(Problem::new(ProblemCode::InvalidRequest, error.to_string())))
}
