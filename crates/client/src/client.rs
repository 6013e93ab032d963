//! The connection to a server: one request at a time, repeated where that is safe.
//!
//! Promises
//! - A request is sent again only if that cannot do anything twice: it reads, it carries an idempotency key or an
//!   attempt's token, or the server never got it.
//! - The time for all tries of one call is bounded.

use crate::backoff::Backoff;
use crate::chance;
use crate::error::{ClientError, with_causes};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_api::problem::{Problem, ProblemCode};

/// A server that does not take a connection for so long is taken for gone.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// An answer that the server need not wait for is there by then, or the connection is taken for broken.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

const RETRY_FOR_DEFAULT: Duration = Duration::from_secs(60);

/// A server, as seen by a producer, a consumer or a person. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    /// For consumers' sockets, each on a new connection: the server goes by the first request of a connection to keep it on one
    /// thread.
    sockets: reqwest::Client,
    base: Arc<Url>,
    token: Option<HeaderValue>,
    retry_for: Duration,
}

impl Client {
    /// A client of the server at this URL, such as `http://127.0.0.1:7420`.
    pub fn new(server: &str) -> Result<Client, ClientError> {
        let wrong = |what: &str| {
            ClientError::Setting(format!(
                "`{server}` is not a server's address ({what}); it looks like http://127.0.0.1:7420"
            ))
        };
        let base = Url::parse(server).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(wrong("it must begin with http:// or https://"));
        }
        let builder = || {
            let builder = reqwest::Client::builder().connect_timeout(CONNECT_PATIENCE).tcp_nodelay(true);
            // A proxy's loopback is not this machine's.
            if is_loopback(&base) { builder.no_proxy() } else { builder }
        };
        let setting = |error| ClientError::Setting(with_causes(&error));
        let http = builder().build().map_err(setting)?;
        let sockets = builder().pool_max_idle_per_host(0);
        // The system's certificates take milliseconds to read.
        let sockets = if base.scheme() == "http" { sockets.tls_certs_only([]) } else { sockets };
        let sockets = sockets.build().map_err(setting)?;
        Ok(Client { http, sockets, base: Arc::new(base), token: None, retry_for: RETRY_FOR_DEFAULT })
    }

    /// The same client, with a bearer token.
    pub fn with_token(mut self, token: &str) -> Result<Client, ClientError> {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| ClientError::Setting("a token is one line of printable ASCII characters".into()))?;
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    /// The same client, giving up on a call after so long (60 s if not set). Zero means one try.
    #[must_use]
    pub const fn retrying_for(mut self, retry_for: Duration) -> Client {
        self.retry_for = retry_for;
        self
    }

    /// The server's address, as it was given.
    pub fn server(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub(crate) const fn retry_for(&self) -> Duration {
        self.retry_for
    }

    /// A call of this path under `/v1`.
    pub(crate) fn call(&self, method: Method, path: &[&str]) -> Call {
        let mut url = Url::clone(&self.base);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        let repeat = if method == Method::GET { Repeat::Always } else { Repeat::IfNotDone };
        Call { method, url, headers: HeaderMap::new(), body: Bytes::new(), repeat, patience: ANSWER_PATIENCE }
    }

    /// Sends a call, again if that is safe and helps, and reads its answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let body = self.bytes(call).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.protocol(format!("its answer is not the expected JSON: {error}")))
    }

    /// Sends a call, again if that is safe and helps.
    pub(crate) fn bytes(&self, call: Call) -> impl Future<Output = Result<Bytes, ClientError>> + Send {
        self.counted(call).map(|(_, answer)| answer)
    }

    /// The same, and how many tries it took. A request under way takes kilobytes: they have a place of their own, so that
    /// whoever may send one, such as every chunk that is worked on, is small until it does.
    pub(crate) fn counted(&self, call: Call) -> BoxFuture<'_, (u32, Result<Bytes, ClientError>)> {
        Box::pin(async move {
            let (begin, mut backoff) = (Instant::now(), Backoff::new());
            let mut tries = 0;
            loop {
                tries += 1;
                let Miss { error, done } = match self.try_bytes(&call).await {
                    Ok(body) => return (tries, Ok(body)),
                    Err(miss) => miss,
                };
                let wait = backoff.next_wait(chance::random());
                let is_safe = done == Done::No || call.repeat == Repeat::Always;
                // Who asked goes on at once where the server did some of it.
                if error.did_some()
                    || !is_safe
                    || !error.retry_helps()
                    || begin.elapsed() + wait > self.retry_for
                {
                    return (tries, Err(error));
                }
                tracing::debug!(%error, wait_ms = wait.as_millis(), "trying again");
                tokio::time::sleep(wait).await;
            }
        })
    }

    async fn try_bytes(&self, call: &Call) -> Result<Bytes, Miss> {
        let request = self.request(&self.http, call).timeout(call.patience);
        let response = self.open(request).await?;
        response.bytes().await.map_err(|error| self.broken(&error))
    }

    fn request(&self, http: &reqwest::Client, call: &Call) -> reqwest::RequestBuilder {
        let mut request = http.request(call.method.clone(), call.url.clone()).headers(call.headers.clone());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if !call.headers.contains_key(ACCEPT) {
            request = request.header(ACCEPT, "application/json, application/problem+json, */*;q=0.5");
        }
        if call.method == Method::GET { request } else { request.body(call.body.clone()) }
    }

    /// Sends a request; anything but success becomes an error.
    async fn open(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, Miss> {
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| self.broken(&error))?;
        Err(self.refused(status, &body))
    }

    /// Sends a call once, for an answer that goes on: an event stream.
    pub(crate) async fn open_once(&self, call: &Call) -> Result<reqwest::Response, ClientError> {
        let opened = self.in_time(self.open(self.request(&self.http, call))).await?;
        opened.map_err(|miss| miss.error)
    }

    /// Sends a call once, on a connection of its own, which becomes a socket.
    pub(crate) async fn open_socket(&self, call: &Call) -> Result<reqwest::Response, ClientError> {
        let opened = self.in_time(self.open(self.request(&self.sockets, call))).await?;
        opened.map_err(|miss| miss.error)
    }

    /// Sends a call once, with a body that cannot be sent a second time.
    pub(crate) async fn send_stream(&self, call: &Call, body: reqwest::Body) -> Result<Bytes, ClientError> {
        let request = self.request(&self.http, call).body(body).timeout(call.patience);
        let response = self.open(request).await.map_err(|miss| miss.error)?;
        response.bytes().await.map_err(|error| self.broken(&error).error)
    }

    /// What a body gives; a connection that breaks is an error of ours.
    pub(crate) fn pieces(
        &self,
        response: reqwest::Response,
    ) -> impl Stream<Item = Result<Bytes, ClientError>> + Send + use<> {
        let client = self.clone();
        response.bytes_stream().map(move |piece| piece.map_err(|error| client.broken(&error).error))
    }

    /// What something gives that the server need not wait for.
    pub(crate) async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, ClientError> {
        let late = |_| self.unreachable("no answer in time".into());
        tokio::time::timeout(ANSWER_PATIENCE, answer).await.map_err(late)
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Miss {
        if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
            let done = match problem.code {
                // These say that the request was not carried out.
                ProblemCode::Busy | ProblemCode::Unavailable => Done::No,
                _ => Done::Perhaps,
            };
            return Miss { error: ClientError::Problem(problem), done };
        }
        let gateway = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        let error = if gateway.contains(&status) {
            self.unreachable(format!("something in between answered {status}"))
        } else {
            self.protocol(format!("it answered {status} without a problem description"))
        };
        Miss { error, done: Done::Perhaps }
    }

    fn broken(&self, error: &reqwest::Error) -> Miss {
        let done = if error.is_connect() { Done::No } else { Done::Perhaps };
        let cause = if error.is_timeout() {
            "no answer in time".into()
        } else {
            // The address is in our own sentence already.
            innermost(error)
        };
        Miss { error: self.unreachable(cause), done }
    }

    pub(crate) fn unreachable(&self, cause: String) -> ClientError {
        ClientError::Unreachable { server: self.server().into(), cause }
    }

    pub(crate) fn protocol(&self, what: String) -> ClientError {
        ClientError::Protocol { server: self.server().into(), what }
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// One request, ready to be sent as often as needed.
#[derive(Debug)]
pub(crate) struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    repeat: Repeat,
    patience: Duration,
}

impl Call {
    pub(crate) fn query<Q: Serialize>(mut self, query: &Q) -> Call {
        // A query is a flat struct of ours: it has a text form.
        if let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(query) {
            let mut pairs = self.url.query_pairs_mut();
            for (name, value) in fields {
                match value {
                    serde_json::Value::String(text) => pairs.append_pair(&name, &text),
                    other => pairs.append_pair(&name, &other.to_string()),
                };
            }
        }
        if self.url.query() == Some("") {
            self.url.set_query(None);
        }
        self
    }

    pub(crate) fn json<B: Serialize>(mut self, body: &B) -> Call {
        self.body = serde_json::to_vec(body).expect("the bodies of the interface have a JSON form").into();
        self.header(CONTENT_TYPE.as_str(), "application/json")
    }

    pub(crate) fn bytes(mut self, body: Bytes) -> Call {
        self.body = body;
        self.header(CONTENT_TYPE.as_str(), "application/octet-stream")
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Call {
        let value = HeaderValue::try_from(value).expect("header values of ours are printable ASCII");
        self.headers.insert(name, value);
        self
    }

    /// A header of the caller's own words.
    pub(crate) fn header_checked(mut self, name: &str, value: &str) -> Result<Call, ClientError> {
        let wrong = || {
            ClientError::Setting(format!("{name}: {value:?} cannot be sent; use printable ASCII characters"))
        };
        let name = http::HeaderName::try_from(name).map_err(|_| wrong())?;
        self.headers.insert(name, HeaderValue::try_from(value).map_err(|_| wrong())?);
        Ok(self)
    }

    /// Sending it twice does what sending it once does.
    pub(crate) const fn repeatable(mut self) -> Call {
        self.repeat = Repeat::Always;
        self
    }

    /// The server may take so long before it answers.
    pub(crate) fn waiting(mut self, wait: Duration) -> Call {
        self.patience = ANSWER_PATIENCE + wait;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Always,
    IfNotDone,
}

/// A try that gave an error, and whether the server may have done what it was asked to.
#[derive(Debug)]
struct Miss {
    error: ClientError,
    done: Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    No,
    Perhaps,
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_api::json::{ListQuery, ReadQuery};
    use windlass_core::batch::submissions::SubmissionState;

    #[test]
    fn paths_and_queries_are_put_together_below_any_base() {
        for base in ["http://localhost:7420", "http://localhost:7420/"] {
            let client = Client::new(base).unwrap();
            let query =
                ListQuery { state: Some(SubmissionState::Running), limit: Some(3), ..ListQuery::default() };
            let call = client.call(Method::GET, &["submissions"]).query(&query);
            assert_eq!(call.url.as_str(), "http://localhost:7420/v1/submissions?limit=3&state=running");
            assert_eq!(client.server(), "http://localhost:7420");
        }
        let client = Client::new("https://example.org/windlass/").unwrap();
        let call = client.call(Method::GET, &["objects", "a b", "1"]).query(&ReadQuery::default());
        assert_eq!(call.url.as_str(), "https://example.org/windlass/v1/objects/a%20b/1");
    }

    #[test]
    fn an_address_that_is_none_is_refused_with_an_example() {
        for wrong in ["", "127.0.0.1:7420", "ftp://example.org", "nonsense"] {
            let sentence = Client::new(wrong).unwrap_err().to_string();
            assert!(sentence.contains("http://127.0.0.1:7420"), "{sentence}");
        }
        assert!(Client::new("http://localhost").unwrap().with_token("two\nlines").is_err());
    }

    #[test]
    fn only_refusals_that_did_nothing_are_marked_so() {
        let client = Client::new("http://localhost").unwrap();
        let miss = |code| {
            let problem = Problem::new(code, "");
            client.refused(StatusCode::OK, &serde_json::to_vec(&problem).unwrap()).done
        };
        assert_eq!(miss(ProblemCode::Busy), Done::No);
        assert_eq!(miss(ProblemCode::OutcomeUnknown), Done::Perhaps);
        let plain = client.refused(StatusCode::BAD_GATEWAY, b"<html>");
        assert!(plain.error.retry_helps());
        assert!(!client.refused(StatusCode::NOT_FOUND, b"<html>").error.retry_helps());
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_unreachable_in_a_sentence_with_its_address() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", taken.local_addr().unwrap());
        drop(taken);
        let client = Client::new(&address).unwrap().retrying_for(Duration::from_millis(200));
        let error = client.status().await.unwrap_err();
        let sentence = error.to_string();
        assert!(error.retry_helps());
        assert!(sentence.starts_with(&format!("cannot reach the server at {address}: ")), "{sentence}");
    }
}
