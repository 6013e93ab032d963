//! Heads of requests: a connection that has begun one must end it in time, one that is idle may stay for longer.
//!
//! HTTP's server has one time for both. Idle connections must live longer than in the pools of clients (90 s in most), since
//! a client that sends a request into a connection that is just being closed cannot tell whether it was done.
//!
//! Invariants
//! - A head whose first bytes come while the connection is idle is whole within the time for heads, or the connection ends.
//! - Nothing else is timed here: neither bodies, read or not, nor answers, nor what a connection becomes by an upgrade. A head
//!   that begins before the answer to the last request has ended, or behind a body that nobody read, has the time for idle
//!   connections.

use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Tells a connection's bytes whether a request is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    /// Odd while one is under way; another number for each.
    count: AtomicU64,
    /// Whether the body of the last one was read to its end.
    is_body_read: AtomicBool,
}

impl Requests {
    /// A request's head is whole; `has_body` says whether more of it follows.
    pub(super) fn begin(&self, has_body: bool) {
        self.0.is_body_read.store(!has_body, Ordering::Relaxed);
        let before = self.count();
        self.0.count.store(before + if is_under_way(before) { 2 } else { 1 }, Ordering::Relaxed);
    }

    /// A request is answered: what comes next is another one, unless a body is left that nobody has read. Not said of one that
    /// made something else of its connection.
    pub(super) fn end(&self) {
        if self.0.is_body_read.load(Ordering::Relaxed) {
            self.0.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }
}

const fn is_under_way(count: u64) -> bool {
    count % 2 == 1
}

/// A request's body, which says when it was read to its end.
#[derive(Debug)]
pub(super) struct BodyToItsEnd<B> {
    pub(super) body: B,
    pub(super) requests: Requests,
}

impl<B: Body + Unpin> Body for BodyToItsEnd<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.requests.0.is_body_read.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails if a request's head has begun and is not whole in time.
#[derive(Debug)]
pub(super) struct HeadsInTime<S> {
    stream: S,
    head_timeout: Duration,
    requests: Requests,
    /// The count for which `begun` was noted.
    counted: u64,
    /// When the first bytes of the head came that is being read.
    begun: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> HeadsInTime<S> {
    pub(super) fn new(stream: S, head_timeout: Duration, requests: Requests) -> HeadsInTime<S> {
        HeadsInTime { stream, head_timeout, requests, counted: 0, begun: None, timer: None }
    }

    /// Whether the head that has begun should have ended by now; if not, the task is woken when it should.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(begun) = self.begun else { return false };
        let deadline = begun + self.head_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context).is_ready()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadsInTime<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = self.requests.count();
        if count != self.counted {
            self.counted = count;
            self.begun = None;
        }
        if is_under_way(count) {
            return read;
        }
        match read {
            Poll::Pending if self.is_late(context) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Ready(Ok(())) if self.begun.is_none() && buffer.filled().len() > filled_before => {
                self.begun = Some(Instant::now());
                read
            }
            read => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadsInTime<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const TIMEOUT: Duration = Duration::from_secs(15);

    fn pair() -> (DuplexStream, HeadsInTime<DuplexStream>, Requests) {
        let (near, far) = duplex(64);
        let requests = Requests::default();
        (near, HeadsInTime::new(far, TIMEOUT, requests.clone()), requests)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_must_end_in_time() {
        let (mut client, mut server, _) = pair();
        client.write_all(b"GET").await.unwrap();
        let began = Instant::now();
        let mut read = Vec::new();
        let error = server.read_to_end(&mut read).await.unwrap_err();
        assert_eq!((error.kind(), read.as_slice()), (io::ErrorKind::TimedOut, b"GET".as_slice()));
        assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_idle_or_has_a_request_under_way_may_take_longer() {
        let (mut client, mut server, requests) = pair();
        let mut byte = [0];
        let idle = tokio::time::timeout(TIMEOUT * 10, server.read_exact(&mut byte)).await;
        assert!(idle.is_err(), "nothing came");
        for _ in 0..3 {
            client.write_all(b"1").await.unwrap();
            server.read_exact(&mut byte).await.unwrap();
            requests.begin(false);
            client.write_all(b"2").await.unwrap();
            server.read_exact(&mut byte).await.unwrap();
            let body = tokio::time::timeout(TIMEOUT * 10, server.read_exact(&mut byte)).await;
            assert!(body.is_err(), "the rest of the body did not come");
            requests.end();
            let idle = tokio::time::timeout(TIMEOUT * 10, server.read_exact(&mut byte)).await;
            assert!(idle.is_err(), "nothing came");
        }
        client.write_all(b"1").await.unwrap();
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_answered_before_anybody_read_again_leaves_no_clock_behind() {
        let (mut client, mut server, requests) = pair();
        let mut byte = [0];
        client.write_all(b"1").await.unwrap();
        server.read_exact(&mut byte).await.unwrap();
        requests.begin(false);
        requests.end();
        let idle = tokio::time::timeout(TIMEOUT * 10, server.read_exact(&mut byte)).await;
        assert!(idle.is_err(), "nothing came");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_body_that_nobody_read_is_no_head() {
        let (mut client, mut server, requests) = pair();
        let mut byte = [0];
        requests.begin(true);
        requests.end();
        client.write_all(b"rest").await.unwrap();
        server.read_exact(&mut byte).await.unwrap();
        let rest = tokio::time::timeout(TIMEOUT * 10, server.read_to_end(&mut Vec::new())).await;
        assert!(rest.is_err(), "no clock runs");
        requests.begin(false);
        requests.end();
        client.write_all(b"1").await.unwrap();
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "the next one is a head again");
    }
}
