//! Answers with an object's bytes: whole or in part, or none if the caller has them already (RFC 9110, sections 13 and 14).
//!
//! Invariants
//! - An answer says how many bytes come; a store that fails in the middle breaks the connection instead of ending the answer.
//! - Bytes that somebody stored are never run by a browser as if the server had written them.

use super::answer::{Answer, Refused};
use super::upload::store_fault;
use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use std::ops::Range;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_store::objects::{ObjectKey, ObjectRange, ObjectStream, Objects, Ranged};

/// What is known of an object before it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    /// Its size in bytes.
    pub(super) size: u64,
    /// Its ETag, in quotes, if it has one; a strong one.
    pub(super) etag: Option<&'a str>,
    /// What kind of bytes they are.
    pub(super) content_type: &'a str,
}

/// Whether an answer hangs on more than the object's key.
pub(super) fn is_conditional(headers: &HeaderMap) -> bool {
    [RANGE, IF_MATCH, IF_NONE_MATCH, IF_RANGE].iter().any(|name| headers.contains_key(name))
}

/// Answers a GET or HEAD. `open` gives the bytes of a range; it is asked only if some are to be sent.
pub(super) async fn answer_object<W: Future<Output = Answer<ObjectStream>>>(
    method: &Method,
    headers: &HeaderMap,
    shown: Shown<'_>,
    open: impl FnOnce(Range<u64>) -> W,
) -> Answer<Response> {
    if headers.contains_key(IF_MATCH) && !names_etag(headers, &IF_MATCH, shown.etag, Comparison::Strong) {
        let detail = "the object is not the one that if-match names; read it again";
        return Err(Refused(Problem::new(ProblemCode::PreconditionFailed, detail)));
    }
    if names_etag(headers, &IF_NONE_MATCH, shown.etag, Comparison::Weak) {
        return Ok(with_facts(StatusCode::NOT_MODIFIED.into_response(), shown));
    }
    // Ranges are for GET alone.
    if *method != Method::GET {
        return Ok(sized(shown.size, with_facts(StatusCode::OK.into_response(), shown)));
    }
    let Some(asked) = range_asked(headers, shown.etag) else {
        return Ok(whole(shown, open(0..shown.size).await?));
    };
    let Some(range) = asked.within(shown.size) else { return Ok(beyond_the_end(shown.size)) };
    let stream = open(range.clone()).await?.stream;
    let response = (StatusCode::PARTIAL_CONTENT, Body::from_stream(stream)).into_response();
    let mut response = sized(range.end - range.start, with_facts(response, shown));
    let place = format!("bytes {}-{}/{}", range.start, range.end - 1, shown.size);
    response.headers_mut().insert(CONTENT_RANGE, plain(&place));
    Ok(response)
}

/// An object's bytes, all of them.
pub(super) fn whole(shown: Shown<'_>, object: ObjectStream) -> Response {
    sized(shown.size, with_facts(Body::from_stream(object.stream).into_response(), shown))
}

/// Opens a range that lies within an object of the size that is known.
pub(super) async fn open_range(
    objects: &Objects,
    key: &ObjectKey,
    size: u64,
    range: Range<u64>,
) -> Answer<ObjectStream> {
    let found = if range == (0..size) {
        objects.get(key).await.map_err(|fault| store_fault(&fault))?
    } else {
        let range = ObjectRange::Between(range);
        match objects.get_range(key, &range).await.map_err(|fault| store_fault(&fault))? {
            Ranged::Found(found) => Some(found),
            Ranged::Unknown => None,
            Ranged::Unsatisfiable { size: found } => return Err(changed(key, size, found)),
        }
    };
    match found {
        Some(found) if found.size != size => Err(changed(key, size, found.size)),
        Some(found) => Ok(found),
        None => Err(unknown(key)),
    }
}

/// No object has this key.
pub(super) fn unknown(key: &ObjectKey) -> Refused {
    Refused(Problem::new(ProblemCode::ObjectUnknown, format!("no object has the key {key}")))
}

fn changed(key: &ObjectKey, expected: u64, found: u64) -> Refused {
    tracing::error!(%key, expected, found, "an object has changed in its store");
    let detail = format!(
        "the object {key} has {found} bytes instead of {expected}: somebody changed it in its store; restore it"
    );
    Refused(Problem::new(ProblemCode::Internal, detail))
}

fn beyond_the_end(size: u64) -> Response {
    let detail =
        format!("the object has {size} bytes, and none of the range; ask for one that begins before its end");
    let mut response = Refused(Problem::new(ProblemCode::RangeUnsatisfiable, detail)).into_response();
    response.headers_mut().insert(CONTENT_RANGE, plain(&format!("bytes */{size}")));
    response
}

fn with_facts(mut response: Response, shown: Shown<'_>) -> Response {
    let headers = response.headers_mut();
    let content_type = HeaderValue::try_from(shown.content_type);
    let unsaid = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, content_type.ok().filter(|it| !it.is_empty()).unwrap_or(unsaid));
    headers.insert(ACCEPT_RANGES, plain("bytes"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, plain("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, plain("sandbox"));
    if let Some(Ok(etag)) = shown.etag.map(HeaderValue::try_from) {
        headers.insert(ETAG, etag);
    }
    response
}

fn sized(length: u64, mut response: Response) -> Response {
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

fn plain(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).expect("a plain header value")
}

/// The one range that is asked for. Several, or one that cannot be read, are as none: RFC 9110 lets a server send the whole.
fn range_asked(headers: &HeaderMap, etag: Option<&str>) -> Option<ObjectRange> {
    let mut values = headers.get_all(RANGE).iter();
    let range = values.next()?;
    if values.next().is_some() {
        return None;
    }
    // The range is meant only for the bytes that the caller has a part of already; a date says nothing of these here.
    if headers.contains_key(IF_RANGE) && !names_etag(headers, &IF_RANGE, etag, Comparison::Strong) {
        return None;
    }
    let (unit, set) = range.to_str().ok()?.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return None;
    }
    match set.trim().split_once('-')? {
        ("", length) => Some(ObjectRange::Last(position(length)?)),
        (first, "") => Some(ObjectRange::From(position(first)?)),
        (first, last) => {
            let (first, last) = (position(first)?, position(last)?);
            (first <= last).then(|| ObjectRange::Between(first..last.saturating_add(1)))
        }
    }
}

/// A number of digits; one too large for any object is as good as the largest.
fn position(digits: &str) -> Option<u64> {
    let are_digits = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    are_digits.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// A weak tag is equal to nothing.
    Strong,
    /// Only what stands in quotes counts.
    Weak,
}

/// Whether a header names this ETag, or is `*`.
fn names_etag(headers: &HeaderMap, name: &HeaderName, etag: Option<&str>, comparison: Comparison) -> bool {
    let mut texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    texts.any(|text| text.trim() == "*" || etag.is_some_and(|etag| has_tag(text, etag, comparison)))
}

fn has_tag(list: &str, etag: &str, comparison: Comparison) -> bool {
    let mut rest = list.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let (is_weak, tag) = rest.strip_prefix("W/").map_or((false, rest), |tag| (true, tag));
        // What stands in quotes may have commas.
        let Some(end) = tag.strip_prefix('"').and_then(|inner| inner.find('"')) else { return false };
        if &tag[..end + 2] == etag && (comparison == Comparison::Weak || !is_weak) {
            return true;
        }
        rest = tag[end + 2..].trim_start_matches([' ', '\t', ',']);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), plain(value))).collect()
    }

    #[test]
    fn one_range_is_read_and_anything_else_is_as_none() {
        let asked = |text: &str| range_asked(&headers(&[(RANGE, text)]), None);
        assert_eq!(asked("bytes=0-0"), Some(ObjectRange::Between(0..1)));
        assert_eq!(asked("Bytes= 5-9 "), Some(ObjectRange::Between(5..10)));
        assert_eq!(asked("bytes=5-"), Some(ObjectRange::From(5)));
        assert_eq!(asked("bytes=-5"), Some(ObjectRange::Last(5)));
        let beyond = ObjectRange::Between(0..u64::MAX);
        assert_eq!(asked("bytes=0-99999999999999999999999"), Some(beyond));
        for other in [
            "bytes=0-1,3-4",
            "bytes=9-5",
            "bytes=-",
            "bytes=a-b",
            "bytes=+1-2",
            "lines=1-2",
            "bytes",
            "bytes=--1",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn a_range_is_meant_only_for_the_bytes_that_if_range_names() {
        let asked = |tag: &str| {
            range_asked(&headers(&[(RANGE, "bytes=1-"), (IF_RANGE, tag)]), Some("\"a\"")).is_some()
        };
        assert!(asked("\"a\""));
        assert!(!asked("W/\"a\"") && !asked("\"b\"") && !asked("Tue, 17 Nov 2026 08:00:00 GMT"));
    }

    #[test]
    fn tags_are_found_in_lists_and_weak_ones_only_where_they_may_be() {
        for (list, strong, weak) in [
            ("\"a,b\"", true, true),
            ("\"x\", \"a,b\"", true, true),
            ("W/\"a,b\"", false, true),
            ("\"x\",W/\"a,b\" , \"y\"", false, true),
            ("*", true, true),
            ("\"a\"", false, false),
            ("a,b", false, false),
            ("", false, false),
            ("\"a,b", false, false),
        ] {
            let headers = headers(&[(IF_MATCH, list)]);
            let names = |comparison| names_etag(&headers, &IF_MATCH, Some("\"a,b\""), comparison);
            assert_eq!((names(Comparison::Strong), names(Comparison::Weak)), (strong, weak), "{list}");
            assert_eq!(names_etag(&headers, &IF_MATCH, None, Comparison::Weak), list == "*");
        }
    }
}
