//! Uploads through a door: a body goes to the object store as it arrives.
//!
//! Invariants
//! - A body that is announced as too large is refused before it is read.
//! - A sender that sends nothing for the body's time is cut off; one that goes on sending may take as long as it needs.

use super::answer::{Answer, Refused};
use crate::service::{Service, problem_of_store};
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use futures_util::{Stream, StreamExt};
use std::time::Duration;
use windlass_api::objects::{SHA256_HEADER, digest_in_field};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::entries::Digest;
use windlass_store::fault::StoreFault;
use windlass_store::objects::{ObjectKey, UploadFault, UploadLimits, Uploaded};

/// Puts a body under a key, within the server's limits, and checks what the headers say of its digest.
pub(super) async fn upload(
    service: &Service,
    key: &ObjectKey,
    headers: &HeaderMap,
    body: Body,
) -> Answer<Uploaded> {
    let limits = UploadLimits { bytes_max: service.config().object_bytes_max };
    let expected = announced_digest(headers)?;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.bytes_max) {
        return Err(too_large(limits.bytes_max));
    }
    let pieces = pieces(body, service.config().body_timeout());
    let uploaded = service.objects().put_stream(key, pieces, limits, expected).await;
    uploaded.map_err(|fault| match fault {
        UploadFault::Stream(problem) => Refused(problem),
        UploadFault::TooLarge { bytes_max } => too_large(bytes_max),
        UploadFault::Digest { .. } => Refused(Problem::new(ProblemCode::DigestMismatch, fault.to_string())),
        UploadFault::Exists => {
            let detail = format!("an object has the key {key}; objects never change, so use another key");
            Refused(Problem::new(ProblemCode::ObjectExists, detail))
        }
        UploadFault::Store(fault) => store_fault(&fault),
    })
}

/// What a fault of the object store looks like from outside.
pub(super) fn store_fault(fault: &StoreFault) -> Refused {
    tracing::error!(%fault, "the object store has a fault");
    Refused(problem_of_store(fault))
}

fn too_large(bytes_max: u64) -> Refused {
    let detail = format!(
        "an object has at most {bytes_max} bytes here; split it, or raise the server's `object_bytes_max`"
    );
    Refused(Problem::new(ProblemCode::BodyTooLarge, detail))
}

/// The digest that the headers announce, which must all say the same.
fn announced_digest(headers: &HeaderMap) -> Answer<Option<Digest>> {
    let malformed = |detail: String| Refused(Problem::new(ProblemCode::MalformedRequest, detail));
    let mut announced = None;
    for name in [SHA256_HEADER, "repr-digest", "content-digest"] {
        for value in headers.get_all(name) {
            let text =
                value.to_str().map_err(|_| malformed(format!("the header {name} is no plain text")))?;
            let digest = if name == SHA256_HEADER {
                Some(text.parse().map_err(|error| malformed(format!("{name}: {error}")))?)
            } else {
                digest_in_field(text).map_err(malformed)?
            };
            match (announced, digest) {
                (Some(one), Some(other)) if one != other => {
                    return Err(malformed(format!(
                        "the headers announce two digests, {one} and {other}; send one"
                    )));
                }
                (Some(_), _) | (None, None) => {}
                (None, Some(digest)) => announced = Some(digest),
            }
        }
    }
    Ok(announced)
}

/// A body's pieces; it ends with a problem if one is too long in coming.
fn pieces(body: Body, patience: Duration) -> impl Stream<Item = Result<Bytes, Problem>> + Send {
    futures_util::stream::unfold(Some(body.into_data_stream()), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout(patience, body.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(body))),
            Ok(Some(Err(error))) => {
                let detail = format!("the body broke off: {error}; send it again");
                Some((Err(Problem::new(ProblemCode::MalformedRequest, detail)), None))
            }
            Err(_) => {
                let waited = patience.as_millis();
                let detail =
                    format!("nothing of the body came for {waited} ms; send it again, without pauses");
                Some((Err(Problem::new(ProblemCode::RequestTimeout, detail)), None))
            }
        }
    })
}
