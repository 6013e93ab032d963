//! The accept loop: our own, since the stock one has no timer for a request's head and would let slow senders stay for
//! ever.
//!
//! Invariants
//! - A connection whose request's head is not complete in time is closed (`heads.rs`), and one that is idle for long.
//! - There are never more connections than the limit.
//! - At a stop, requests under way are answered before their connections end.
//! - A connection that begins with a consumer's request stays on one of the consumers' threads. That is for speed only: a
//!   consumer that comes by another way, or with its first words in pieces, is served as well.

use super::heads::{BodyToItsEnd, HeadsInTime, Requests};
use crate::threads::{ConsumerThreads, Seat};
use axum::Router;
use futures_util::FutureExt;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A request's head with all its headers fits this many bytes.
const HEAD_BYTES_MAX: usize = 128 * 1_024;

/// When the process has no file handle left, accepting again at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the loop treats connections.
#[derive(Debug, Clone, Copy)]
pub struct AcceptOptions {
    /// A request's head must arrive within this time, and the first bytes of a new connection.
    pub header_timeout: Duration,
    /// A connection is closed when it is idle for so long.
    pub keep_alive: Duration,
    /// Connections at the same time.
    pub connections_max: usize,
}

/// A connection's place among those that may be open; it is free again when the last holder is gone, also if the connection
/// has become a WebSocket.
#[derive(Debug, Clone)]
pub struct ConnectionPlace {
    _permit: Arc<OwnedSemaphorePermit>,
    /// On the consumers' threads, if it is there.
    _seat: Option<Arc<Seat>>,
}

/// How a consumer's first request begins.
const CONSUMER_BEGINS: &[u8] = b"GET /v1/consume";

/// Serves connections until `stop`, then lets requests under way end. Conversations of consumers may go on after that, as long as
/// their threads are there.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    options: AcceptOptions,
    threads: Arc<ConsumerThreads>,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(options.connections_max));
    let connections = TaskTracker::new();
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let permit = Arc::new(permit);
                let serving =
                    Serving { router: router.clone(), options, stop: stop.clone(), permit, seat: None };
                let (threads, of_consumers) = (Arc::clone(&threads), connections.clone());
                connections.spawn(async move {
                    match begins_as_consumer(&stream, &serving).await {
                        Ok(true) => move_to(&threads, stream, serving, &of_consumers),
                        Ok(false) => serving.serve(stream).await,
                        Err(error) => tracing::debug!(%error, "a connection ended before its first request"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Waits for the first bytes of a connection and looks at them.
async fn begins_as_consumer(stream: &TcpStream, serving: &Serving) -> io::Result<bool> {
    let mut first = [0; CONSUMER_BEGINS.len()];
    let read = tokio::select! {
        read = tokio::time::timeout(serving.options.header_timeout, stream.peek(&mut first)) => read??,
        () = serving.stop.cancelled() => return Ok(false),
    };
    Ok(first[..read] == *CONSUMER_BEGINS)
}

/// Serves a connection on one of the consumers' threads.
fn move_to(threads: &ConsumerThreads, stream: TcpStream, serving: Serving, connections: &TaskTracker) {
    let stream = stream.into_std();
    let (thread, seat) = threads.seat();
    let serving = Serving { seat: Some(Arc::new(seat)), ..serving };
    thread.spawn(connections.track_future(async move {
        match stream.and_then(TcpStream::from_std) {
            Ok(stream) => serving.serve(stream).await,
            Err(error) => tracing::warn!(%error, "a consumer's connection was lost on its way to its thread"),
        }
    }));
}

/// What a connection is served with.
struct Serving {
    router: Router,
    options: AcceptOptions,
    stop: CancellationToken,
    permit: Arc<OwnedSemaphorePermit>,
    seat: Option<Arc<Seat>>,
}

impl Serving {
    async fn serve(self, stream: TcpStream) {
        let Serving { router, options, stop, permit, seat } = self;
        // Small answers must not wait for the peer's acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it began");
            return;
        }
        let place = ConnectionPlace { _permit: permit, _seat: seat };
        let router = TowerToHyperService::new(router);
        let requests = Requests::default();
        let stream = HeadsInTime::new(stream, options.header_timeout, requests.clone());
        let with_place = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(place.clone());
            requests.begin(!request.body().is_end_stream());
            let requests = requests.clone();
            let of_body = requests.clone();
            let request = request.map(|body| BodyToItsEnd { body, requests: of_body });
            router.call(request).inspect(move |answer| {
                let is_over =
                    answer.as_ref().map_or(true, |it| it.status() != StatusCode::SWITCHING_PROTOCOLS);
                if is_over {
                    requests.end();
                }
            })
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            // It runs from the end of the last answer: the head's own time is kept by the stream.
            .header_read_timeout(options.keep_alive)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), with_place)
            .with_upgrades();
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = &mut serving => ended,
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
