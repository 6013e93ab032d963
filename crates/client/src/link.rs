//! A link: one connection to the consumers' door with what keeps it alive, for those who come back when it breaks.
//!
//! Frames are written by a task of their own, so that a slow server that waits for us to read is never waited for
//! while we write.

use crate::client::Client;
use crate::error::ClientError;
use crate::socket::{ConsumeReceiver, ConsumeSender, ConsumeSocket, Welcome};
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use windlass_api::frames::{self, ClientFrame, ServerFrame, WorkOf};

/// What a closing server still has to say is not waited for longer than this.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How long a refused frame waits before it is sent again.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// A connection that is on its way.
pub(crate) type Connecting =
    Pin<Box<dyn Future<Output = Result<(ConsumeSocket, Welcome), ClientError>> + Send>>;

/// Connects a bit later, going on with an earlier session if one is named.
pub(crate) fn connect_after(wait: Duration, client: &Client, name: &str, session: Option<u64>) -> Connecting {
    let (client, name) = (client.clone(), name.to_owned());
    Box::pin(async move {
        sleep(wait).await;
        ConsumeSocket::connect(&client, &name, session).await
    })
}

/// The end of a connection's way; without one this takes forever, as do the next two.
pub(crate) async fn ready(
    connecting: &mut Option<Connecting>,
) -> Result<(ConsumeSocket, Welcome), ClientError> {
    match connecting {
        Some(connecting) => connecting.await,
        None => pending().await,
    }
}

/// The next frame of a link that may not be there.
pub(crate) async fn receive(link: &mut Option<Link>) -> Result<Option<ServerFrame>, ClientError> {
    match link {
        Some(link) => link.receiver.receive().await,
        None => pending().await,
    }
}

/// A time that may not be set.
pub(crate) async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}

/// A connection with its writer.
#[derive(Debug)]
pub(crate) struct Link {
    outbox: mpsc::UnboundedSender<Vec<u8>>,
    writer: JoinHandle<()>,
    receiver: ConsumeReceiver,
    beat_every: Duration,
    beat_at: Instant,
    heard_at: Instant,
}

impl Link {
    pub(crate) fn new(socket: ConsumeSocket, welcome: Welcome) -> Link {
        let (sender, receiver) = socket.split();
        let (outbox, frames) = mpsc::unbounded_channel();
        let beat_every = Duration::from_millis((welcome.heartbeat_ms / 3).max(10));
        let now = Instant::now();
        let writer = tokio::spawn(write(sender, frames));
        Link { outbox, writer, receiver, beat_every, beat_at: now + beat_every, heard_at: now }
    }

    pub(crate) fn send(&self, frame: &ClientFrame) {
        self.send_bytes(frames::encode(frame));
    }

    /// Sends a frame that is encoded already.
    pub(crate) fn send_bytes(&self, frame: Vec<u8>) {
        // A writer that is gone has a broken connection, which the receiver finds out by itself.
        let _ = self.outbox.send(frame);
    }

    /// When the next heartbeat is due.
    pub(crate) fn beat_at(&self) -> Instant {
        self.beat_at
    }

    /// Sends a heartbeat, unless the server has been silent for too long.
    #[must_use]
    pub(crate) fn beat(&mut self) -> bool {
        let is_alive = self.heard_at.elapsed() <= self.beat_every * 6;
        if is_alive {
            self.send(&ClientFrame::Heartbeat {});
            self.beat_at = Instant::now() + self.beat_every;
        }
        is_alive
    }

    /// The server has said something.
    pub(crate) fn note_heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Says goodbye; gives back the work that crossed it on the way.
    pub(crate) async fn close(mut self) -> Vec<WorkOf> {
        let mut crossed = Vec::new();
        drop(self.outbox);
        let goodbye = async {
            let _ = self.writer.await;
            while let Ok(Some(frame)) = self.receiver.receive().await {
                if let ServerFrame::Work { work, .. } = frame {
                    crossed.extend(work);
                }
            }
        };
        let _ = timeout(CLOSE_PATIENCE, goodbye).await;
        crossed
    }
}

async fn write(mut sender: ConsumeSender, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    const FRAMES_PER_FLUSH_MAX: usize = 64;
    let mut batch = Vec::new();
    while frames.recv_many(&mut batch, FRAMES_PER_FLUSH_MAX).await > 0 {
        for frame in batch.drain(..) {
            if sender.feed_bytes(frame).await.is_err() {
                return;
            }
        }
        if sender.flush().await.is_err() {
            return;
        }
    }
    let _ = sender.close().await;
}
