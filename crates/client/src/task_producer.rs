//! The producer of single tasks: many additions at once by one connection, each of them in exactly once.
//!
//! Promises
//! - Every addition has an idempotency key. Those that are not answered when the connection breaks are sent again by the next one, and
//!   none is in twice.
//! - Additions are carried out in the order in which they were handed over, unless one is refused for now, or the connection breaks.
//! - What is handed over and not answered is bounded, by number and by bytes; beyond that `add` and `begin` wait.
//! - An addition gives up when it could not be carried out for as long as its client tries, whether there is no connection or each
//!   one breaks.

use crate::backoff::Backoff;
use crate::chance;
use crate::client::Client;
use crate::error::ClientError;
use crate::link::{Connecting, Link, PAUSE, at, connect_after, ready, receive};
use crate::socket::{ConsumeSocket, Welcome, refusal};
use crate::verbs::check_idempotency_key;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use windlass_api::frames::{self, ClientFrame, FRAME_BYTES_MAX, ServerFrame, TaskToAdd};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::ids::SubmissionId;

/// Additions that are handed over and not answered: as many as the server reads of one connection before it answers some.
const UNANSWERED_MAX: usize = 256;

/// Bytes of their frames, for the same reason. The largest frame has room alone.
const UNANSWERED_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// What the smallest addition takes of that room, so that it holds no more of them than may be: 4 MiB / 256 = 16 KiB.
const ROOM_MIN: usize = UNANSWERED_BYTES_MAX / UNANSWERED_MAX;

/// Adds tasks to lanes by one connection. Cheap to clone; clones share the connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct TaskProducer {
    /// What is sent has its room, so this holds no more than there is room for.
    inbox: mpsc::UnboundedSender<(u64, Unanswered)>,
    next_request: Arc<AtomicU64>,
    room: Arc<Semaphore>,
}

impl TaskProducer {
    /// A producer for this server. It connects when there is something to add.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(client: Client) -> TaskProducer {
        let (inbox, additions) = mpsc::unbounded_channel();
        tokio::spawn(Sending::new(client, additions).run());
        let room = Arc::new(Semaphore::new(UNANSWERED_BYTES_MAX));
        TaskProducer { inbox, next_request: Arc::default(), room }
    }

    /// Adds tasks to a lane, all or none, and gives their ids in order. Many at once make it quick; which of those goes first is not
    /// said. Whoever drops the future does not know whether the tasks are in.
    pub async fn add(&self, lane: &str, tasks: Vec<TaskToAdd>) -> Result<Vec<SubmissionId>, ClientError> {
        self.begin(lane, tasks).await?.await
    }

    /// The same under the caller's idempotency key: the same key later gives the same tasks.
    pub async fn add_as(
        &self,
        lane: &str,
        tasks: Vec<TaskToAdd>,
        key: &str,
    ) -> Result<Vec<SubmissionId>, ClientError> {
        check_idempotency_key(key)?;
        self.hand_over(lane, tasks, key.to_owned()).await?.await
    }

    /// Hands tasks over, and gives what waits for their ids: additions that are begun one after the other are carried out in that order,
    /// and none waits for another, as long as there is room.
    pub async fn begin(
        &self,
        lane: &str,
        tasks: Vec<TaskToAdd>,
    ) -> Result<impl Future<Output = Result<Vec<SubmissionId>, ClientError>> + Send + use<>, ClientError>
    {
        self.hand_over(lane, tasks, chance::random_name()).await
    }

    async fn hand_over(
        &self,
        lane: &str,
        tasks: Vec<TaskToAdd>,
        key: String,
    ) -> Result<impl Future<Output = Result<Vec<SubmissionId>, ClientError>> + Send + use<>, ClientError>
    {
        let ended = || ClientError::Setting("the runtime of the task producer has ended".into());
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let add = ClientFrame::Add { request, lane: lane.to_owned(), tasks, idempotency_key: Some(key) };
        let frame = frames::encode(&add);
        drop(add);
        if frame.len() > FRAME_BYTES_MAX {
            let problem = format!(
                "tasks of one addition have at most {FRAME_BYTES_MAX} bytes as a frame; send several"
            );
            return Err(ClientError::Problem(Problem::new(ProblemCode::BodyTooLarge, problem)));
        }
        let bytes = u32::try_from(frame.len().max(ROOM_MIN)).expect("it is at most the largest frame");
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| ended())?;
        let (reply, answer) = oneshot::channel();
        let unanswered = Unanswered { frame, begun: Instant::now(), reply, _room: room };
        self.inbox.send((request, unanswered)).map_err(|_| ended())?;
        Ok(async move { answer.await.map_err(|_| ended())? })
    }
}

/// An addition that was handed over: sent, or to be sent as soon as there is a connection.
#[derive(Debug)]
struct Unanswered {
    frame: Vec<u8>,
    begun: Instant,
    reply: oneshot::Sender<Result<Vec<SubmissionId>, ClientError>>,
    /// Free for others when it is answered.
    _room: OwnedSemaphorePermit,
}

/// The loop that owns the connection.
struct Sending {
    client: Client,
    inbox: mpsc::UnboundedReceiver<(u64, Unanswered)>,
    /// By their requests' numbers, in the order in which they were handed over.
    unanswered: BTreeMap<u64, Unanswered>,
    link: Option<Link>,
    connecting: Option<Connecting>,
    /// How long the next connection waits, the first one not at all.
    wait: Duration,
    backoff: Backoff,
    /// Those that the server has refused for now, and when they are sent again.
    refused: BTreeSet<u64>,
    again_at: Option<Instant>,
}

impl Sending {
    fn new(client: Client, inbox: mpsc::UnboundedReceiver<(u64, Unanswered)>) -> Sending {
        Sending {
            client,
            inbox,
            unanswered: BTreeMap::new(),
            link: None,
            connecting: None,
            wait: Duration::ZERO,
            backoff: Backoff::new(),
            refused: BTreeSet::new(),
            again_at: None,
        }
    }

    async fn run(mut self) {
        let mut is_open = true;
        while is_open || !self.unanswered.is_empty() {
            if self.link.is_none() && self.connecting.is_none() && !self.unanswered.is_empty() {
                self.connecting = Some(connect_after(self.wait, &self.client, "task producer", None));
            }
            let beat_at = self.link.as_ref().map(Link::beat_at);
            tokio::select! {
                addition = self.inbox.recv(), if is_open => match addition {
                    Some((request, addition)) => self.take(request, addition),
                    None => is_open = false,
                },
                frame = receive(&mut self.link) => self.hear(frame),
                connected = ready(&mut self.connecting) => self.take_connection(connected),
                () = at(beat_at) => self.beat(),
                () = at(self.again_at) => self.send_refused(),
            }
        }
        if let Some(link) = self.link.take() {
            link.close().await;
        }
    }

    fn take(&mut self, request: u64, addition: Unanswered) {
        // Whoever asked has gone, and nothing was sent.
        if addition.reply.is_closed() {
            return;
        }
        if let Some(link) = &self.link {
            link.send_bytes(addition.frame.clone());
        }
        self.unanswered.insert(request, addition);
    }

    fn hear(&mut self, frame: Result<Option<ServerFrame>, ClientError>) {
        if let Some(link) = &mut self.link {
            link.note_heard();
        }
        match frame {
            Ok(Some(ServerFrame::Added { request, tasks })) => {
                self.backoff.reset();
                self.answer(request, Ok(tasks));
            }
            Ok(Some(ServerFrame::Refused { request, code, detail, retry_helps })) => {
                if retry_helps && self.unanswered.get(&request).is_some_and(|it| self.may_try_again(it)) {
                    self.refused.insert(request);
                    self.again_at.get_or_insert_with(|| Instant::now() + PAUSE);
                } else {
                    let error = refusal(&self.client, &code, detail, retry_helps);
                    self.answer(request, Err(error));
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let error = self.client.unreachable("the server closed the connection".into());
                self.cut(&error);
            }
            Err(error @ ClientError::Protocol { .. }) => {
                self.link = None;
                self.give_up(&error, |_| true);
            }
            Err(error) => self.cut(&error),
        }
    }

    /// The connection is lost. What was sent by one after the other in vain is not sent for ever.
    fn cut(&mut self, error: &ClientError) {
        tracing::info!(why = %error, "connection lost");
        self.link = None;
        self.try_later(error);
    }

    /// The next connection waits for a while, and does not serve those whose time is over.
    fn try_later(&mut self, error: &ClientError) {
        self.wait = self.backoff.next_wait(chance::random());
        let retry_for = self.client.retry_for();
        self.give_up(error, |it| it.begun.elapsed() >= retry_for);
    }

    fn take_connection(&mut self, connected: Result<(ConsumeSocket, Welcome), ClientError>) {
        self.connecting = None;
        match connected {
            Ok((socket, welcome)) => {
                let link = Link::new(socket, welcome);
                self.unanswered.values().for_each(|it| link.send_bytes(it.frame.clone()));
                self.link = Some(link);
                self.refused.clear();
                self.again_at = None;
            }
            Err(error) => {
                self.try_later(&error);
                if !error.retry_helps() {
                    self.give_up(&error, |_| true);
                }
            }
        }
    }

    fn may_try_again(&self, it: &Unanswered) -> bool {
        it.begun.elapsed() + PAUSE < self.client.retry_for()
    }

    fn beat(&mut self) {
        if self.link.as_mut().is_some_and(|link| !link.beat()) {
            let error = self.client.unreachable("the server is silent".into());
            self.cut(&error);
        }
    }

    fn send_refused(&mut self) {
        self.again_at = None;
        for request in std::mem::take(&mut self.refused) {
            if let (Some(link), Some(it)) = (&self.link, self.unanswered.get(&request)) {
                link.send_bytes(it.frame.clone());
            }
        }
    }

    fn answer(&mut self, request: u64, answer: Result<Vec<SubmissionId>, ClientError>) {
        if let Some(it) = self.unanswered.remove(&request) {
            // Whoever asked may have gone.
            let _ = it.reply.send(answer);
        }
    }

    /// Tells some that what they asked is not known to be done, and why.
    fn give_up(&mut self, error: &ClientError, is_over: impl Fn(&Unanswered) -> bool) {
        let over: Vec<u64> =
            self.unanswered.iter().filter(|(_, it)| is_over(it)).map(|(request, _)| *request).collect();
        for request in over {
            let error = match error {
                ClientError::Problem(problem) => ClientError::Problem(problem.clone()),
                ClientError::Protocol { what, .. } => self.client.protocol(what.clone()),
                ClientError::Unreachable { cause, .. } => self.client.unreachable(cause.clone()),
                other => self.client.unreachable(other.to_string()),
            };
            self.answer(request, Err(error));
        }
    }
}
