//! The accept loop: our own, since the stock one has no timer for a request's head and would let slow senders stay for
//! ever.
//!
//! Invariants
//! - A connection whose request's head is not complete in time is closed.
//! - There are never more connections than the limit.
//! - At a stop, requests under way are answered before their connections end.

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
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
    /// A request's head must arrive within this time; an idle connection is closed after it.
    pub header_timeout: Duration,
    /// Connections at the same time.
    pub connections_max: usize,
}

/// A connection's place among those that may be open; it is free again when the last holder is gone, also if the connection
/// has become a WebSocket.
#[derive(Debug, Clone)]
pub struct ConnectionPlace {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Serves connections until `stop`, then lets requests under way end.
pub async fn serve(listener: TcpListener, router: Router, options: AcceptOptions, stop: CancellationToken) {
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
                connections.spawn(connection(stream, router.clone(), options, stop.clone(), permit));
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

async fn connection(
    stream: TcpStream,
    router: Router,
    options: AcceptOptions,
    stop: CancellationToken,
    permit: OwnedSemaphorePermit,
) {
    // Small answers must not wait for the peer's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it began");
        return;
    }
    let place = ConnectionPlace { _permit: Arc::new(permit) };
    let router = TowerToHyperService::new(router);
    let with_place = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(place.clone());
        router.call(request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
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
