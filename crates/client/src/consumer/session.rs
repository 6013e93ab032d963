//! The session: one loop that owns the book, the socket and the running closures.

use super::book::{Book, Held, Key, Refused, Tally};
use super::idle::check_idle;
use super::prefetch::{AtHand, Prefetch};
use super::work::{Chunk, Failure, Gave};
use super::{Activity, ConsumerBuilder};
use crate::backoff::Backoff;
use crate::chance;
use crate::client::Client;
use crate::error::ClientError;
use crate::link::{CLOSE_PATIENCE, Connecting, Link, PAUSE, at, connect_after, ready, receive};
use crate::socket::{ConsumeSocket, Welcome, refusal};
use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use windlass_api::frames::{ClientFrame, ServerFrame, WorkChunk, WorkOf};
use windlass_api::json::{AttemptRef, ReleaseRequest};
use windlass_core::entry::Output;

/// Chunks that take no longer share a report: the first of them waits so long for the others at the most.
const REPORT_PATIENCE: Duration = Duration::from_millis(1);

/// One consumer at work.
pub(super) struct Session<F> {
    settings: ConsumerBuilder,
    /// For the chunks: one of its own, so that sessions do not contend for one reference count.
    client: Arc<Client>,
    book: Book,
    /// None if it is set how much is held.
    prefetch: Option<Prefetch>,
    work: Arc<F>,
    tasks: JoinSet<Ended>,
    keys: HashMap<Id, Key>,
    link: Option<Link>,
    connecting: Option<Connecting>,
    backoff: Backoff,
    welcome: Option<Welcome>,
    first_connection_by: Instant,
    resume_at: Option<Instant>,
    /// Chunks have ended whose report waits for others.
    report_by: Option<Instant>,
    stop_by: Option<Instant>,
    busy_at: Instant,
}

/// How a chunk's work has ended.
struct Ended {
    result: Result<Gave, Failure>,
    /// It took longer than a report may wait.
    was_slow: bool,
}

/// What happened next.
enum Event {
    Frame(Result<Option<ServerFrame>, ClientError>),
    Connected(Result<(ConsumeSocket, Welcome), ClientError>),
    Ended(Result<(Id, Ended), JoinError>),
    /// Everything that was ready to run has had its turn, and nothing more has ended.
    Quiet,
    Heartbeat,
    /// More may be at hand than the pace of the work allows.
    Surplus,
    Resume,
    Shutdown,
    StopNow,
    Idle(bool),
}

impl<F, Fut> Session<F>
where
    F: Fn(Chunk) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
{
    pub(super) fn new(settings: ConsumerBuilder, book: Book, work: F) -> Session<F> {
        let now = Instant::now();
        let first_connection_by = now + settings.client.retry_for();
        let least = settings.prefetch_min();
        let mut session = Session {
            client: Arc::new(settings.client.clone()),
            prefetch: settings.prefetch.is_none().then(|| Prefetch::new(least, now)),
            settings,
            book,
            work: Arc::new(work),
            tasks: JoinSet::new(),
            keys: HashMap::new(),
            link: None,
            connecting: None,
            backoff: Backoff::new(),
            welcome: None,
            first_connection_by,
            resume_at: None,
            report_by: None,
            stop_by: None,
            busy_at: now,
        };
        session.connect_after(Duration::ZERO);
        session
    }

    pub(super) async fn run(
        mut self,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<Tally, ClientError> {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            self.begin_chunks();
            self.say_what_is_due();
            self.show_activity();
            if self.stop_by.is_some() && self.book.is_clear() {
                break;
            }
            match self.next_event(shutdown.as_mut()).await {
                Event::Frame(Ok(Some(frame))) => self.take_frame(frame)?,
                Event::Frame(Ok(None)) => self.cut("the server closed the connection"),
                Event::Frame(Err(error @ ClientError::Protocol { .. })) => return Err(error),
                Event::Frame(Err(error)) => self.cut(&error.to_string()),
                Event::Connected(connected) => {
                    // Without a connection nothing could come, which is not to be idle.
                    self.busy_at = Instant::now();
                    self.take_connection(connected)?;
                }
                Event::Ended(ended) => self.take_ended(ended),
                Event::Quiet => self.report_by = None,
                Event::Heartbeat => self.beat(),
                Event::Surplus => self.follow_pace(0, Instant::now()),
                Event::Resume => self.resume(),
                Event::Shutdown => self.stop(),
                Event::StopNow if self.tasks.is_empty() => break,
                Event::StopNow => self.give_back_running(),
                Event::Idle(true) => self.stop(),
                Event::Idle(false) => self.busy_at = Instant::now(),
            }
        }
        if let Some(link) = self.link.take() {
            let crossed = link.close().await;
            release_crossed(&self.settings.client, crossed).await;
        }
        Ok(self.book.tally())
    }

    async fn next_event(&mut self, shutdown: Pin<&mut impl Future<Output = ()>>) -> Event {
        let beat_at = self.link.as_ref().map(Link::beat_at);
        let surplus_at = self.prefetch.as_ref().and_then(|it| it.stale_at(self.book.queued_len()));
        let is_stopping = self.stop_by.is_some();
        let idle_at = self.idle_at();
        // In this order: a stop that was asked for is seen before the end of a chunk makes room for the next one.
        tokio::select! {
            biased;
            () = shutdown, if !is_stopping => Event::Shutdown,
            () = at(self.stop_by) => Event::StopNow,
            Some(ended) = self.tasks.join_next_with_id() => Event::Ended(ended),
            () = at(beat_at) => Event::Heartbeat,
            () = at(surplus_at) => Event::Surplus,
            () = at(self.resume_at) => Event::Resume,
            connected = ready(&mut self.connecting) => Event::Connected(connected),
            frame = receive(&mut self.link) => Event::Frame(frame),
            idle = check_idle(idle_at, &self.settings.client, self.settings.strategy.lanes()) => Event::Idle(idle),
            () = quiet(self.report_by) => Event::Quiet,
        }
    }

    fn idle_at(&self) -> Option<Instant> {
        let idle_for = self.settings.until_idle?;
        let may_be_idle = self.link.is_some() && self.stop_by.is_none() && self.book.is_clear();
        may_be_idle.then(|| self.busy_at + idle_for)
    }

    fn begin_chunks(&mut self) {
        while let Some(held) = self.book.begin() {
            let key = held.key();
            let Held { about, work } = held;
            let chunk = Chunk::new(Arc::clone(&self.client), about, work);
            let work = Arc::clone(&self.work);
            let task = self.tasks.spawn(async move {
                let begun_at = Instant::now();
                let published = chunk.published();
                let output = work(chunk).await;
                let result = output.map(|output| Gave { output, entries: published.take() });
                Ended { result, was_slow: begun_at.elapsed() >= REPORT_PATIENCE }
            });
            self.keys.insert(task.id(), key);
        }
    }

    fn say_what_is_due(&mut self) {
        if self.link.is_none() {
            return;
        }
        // With nothing that runs there is nothing to wait for.
        if self.report_by.is_none_or(|by| self.tasks.is_empty() || by <= Instant::now()) {
            self.report_by = None;
            let reports = self.book.reports();
            self.say(reports);
        }
        while let Some(reserve) = self.book.reserve() {
            self.say([reserve]);
        }
        if !self.book.is_clear() {
            self.busy_at = Instant::now();
        }
    }

    fn say(&mut self, frames: impl IntoIterator<Item = ClientFrame>) {
        if let Some(link) = &mut self.link {
            for frame in frames {
                link.send(&frame);
            }
        }
    }

    fn take_frame(&mut self, frame: ServerFrame) -> Result<(), ClientError> {
        if let Some(link) = &mut self.link {
            link.note_heard();
        }
        // Not before: a server that welcomes us and closes at once must not be asked in a tight loop.
        self.backoff.reset();
        match frame {
            ServerFrame::Work { request, more, work } => {
                self.book.work(request, more, work);
                let now = Instant::now();
                // It was asked for at the pace of other work, maybe long ago.
                if self.prefetch.as_ref().is_some_and(|it| it.is_stale(now)) {
                    self.follow_pace(0, now);
                }
            }
            ServerFrame::Settled { request, verdicts } => self.book.settled(request, &verdicts),
            ServerFrame::Refused { request, code, detail, retry_helps } => {
                return self.take_refusal(request, &code, detail, retry_helps);
            }
            // The connection closes when the server has taken all reports; until then there is no more work.
            ServerFrame::Draining {} => self.book.pause(),
            // A consumer adds nothing by this connection.
            ServerFrame::Heartbeat {} | ServerFrame::Welcome { .. } | ServerFrame::Added { .. } => {}
        }
        Ok(())
    }

    fn take_refusal(
        &mut self,
        request: u64,
        code: &str,
        detail: String,
        retry_helps: bool,
    ) -> Result<(), ClientError> {
        match self.book.refused(request, retry_helps) {
            Refused::Later => self.resume_at = Some(Instant::now() + PAUSE),
            Refused::Reserve => return Err(refusal(&self.settings.client, code, detail, retry_helps)),
            Refused::Report => tracing::warn!(code, detail, "the server does not take a report"),
        }
        Ok(())
    }

    fn take_ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let now = Instant::now();
        let (mut next, mut done, mut has_slow) = (Some(ended), 0, false);
        while let Some(ended) = next {
            let (task, Ended { result, was_slow }) = match ended {
                Ok(ended) => ended,
                Err(error) => (error.id(), Ended { result: Err(failure_of(error)), was_slow: true }),
            };
            has_slow |= was_slow;
            // Whoever fails everything at once should not get more of it.
            done += usize::from(result.is_ok());
            if let Some(key) = self.keys.remove(&task) {
                self.book.end(key, result);
            }
            next = self.tasks.try_join_next_with_id();
        }
        // One that took long is reported at once: others like it may keep every thread busy by the time of another turn.
        let report_by = if has_slow { now } else { now + REPORT_PATIENCE };
        self.report_by = Some(self.report_by.map_or(report_by, |by| by.min(report_by)));
        self.follow_pace(done, now);
    }

    /// Holds as much as is right when so many chunks have ended.
    fn follow_pace(&mut self, ended: usize, now: Instant) {
        if let Some(prefetch) = &mut self.prefetch
            && let Some(AtHand { most, kept }) = prefetch.count(ended, now)
        {
            let concurrency = self.settings.concurrency;
            self.book.hold(concurrency + most, concurrency.saturating_add(kept));
        }
    }

    fn take_connection(
        &mut self,
        connected: Result<(ConsumeSocket, Welcome), ClientError>,
    ) -> Result<(), ClientError> {
        self.connecting = None;
        match connected {
            Ok((socket, welcome)) => {
                self.welcome = Some(welcome);
                self.follow_pace(0, Instant::now());
                self.link = Some(Link::new(socket, welcome));
                let frames = self.book.reconnect();
                self.say(frames);
            }
            Err(error) => {
                let wait = self.backoff.next_wait(chance::random());
                let is_too_late = self.welcome.is_none() && Instant::now() + wait > self.first_connection_by;
                if !error.retry_helps() || is_too_late {
                    return Err(error);
                }
                tracing::debug!(%error, "connecting again");
                self.connect_after(wait);
            }
        }
        Ok(())
    }

    fn cut(&mut self, why: &str) {
        tracing::info!(why, "connection lost; connecting again");
        self.link = None;
        self.resume_at = None;
        let wait = self.backoff.next_wait(chance::random());
        self.connect_after(wait);
    }

    fn connect_after(&mut self, wait: Duration) {
        let session = self.welcome.map(|welcome| welcome.session);
        self.connecting = Some(connect_after(wait, &self.settings.client, &self.settings.name, session));
    }

    fn beat(&mut self) {
        let Some(link) = &mut self.link else { return };
        if !link.beat() {
            self.cut("the server is silent");
        }
    }

    fn resume(&mut self) {
        self.resume_at = None;
        let frames = self.book.resume();
        self.say(frames);
    }

    fn stop(&mut self) {
        self.book.stop();
        self.stop_by = Some(Instant::now() + self.settings.shutdown_for);
    }

    /// The time for running chunks is over: they go back unharmed, and their reports get a last moment.
    fn give_back_running(&mut self) {
        for (_, key) in self.keys.drain() {
            self.book.end(key, Err(Failure::give_back("the consumer was stopped")));
        }
        self.tasks = JoinSet::new();
        self.stop_by = Some(Instant::now() + CLOSE_PATIENCE);
    }

    fn show_activity(&self) {
        if self.settings.activity.is_closed() {
            return;
        }
        let activity = Activity {
            connected: self.link.is_some(),
            running: self.book.running_len(),
            queued: self.book.queued_len(),
            tally: self.book.tally(),
        };
        self.settings.activity.send_if_modified(|shown| std::mem::replace(shown, activity) != activity);
    }
}

fn failure_of(error: JoinError) -> Failure {
    let Ok(panic) = error.try_into_panic() else { return Failure::give_back("the work was stopped") };
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Failure::new(format!("the work panicked: {}", text.unwrap_or_else(|| "without a message".into())))
}

/// Lets everything else that is ready run, once, while a report waits for more.
async fn quiet(report_by: Option<Instant>) {
    if report_by.is_none() {
        return pending().await;
    }
    if tokio::task::try_id().is_none() {
        // The main task has its turns apart from all others, so one of those takes part for it.
        return drop(tokio::spawn(async {}).await);
    }
    // Unlike after `yield_now`, any thread may go on: one that has begun a long chunk would keep the session until its end.
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Gives back what was handed out while we said goodbye, by the other door.
async fn release_crossed(client: &Client, crossed: Vec<WorkOf>) {
    let chunks: Vec<AttemptRef> = crossed
        .into_iter()
        .flat_map(|of_one| {
            let submission = of_one.submission;
            let attempt = move |work: WorkChunk| AttemptRef {
                submission,
                chunk: work.chunk,
                token: work.token().to_string(),
            };
            of_one.chunks.into_iter().map(attempt)
        })
        .collect();
    if chunks.is_empty() {
        return;
    }
    if let Err(error) = client.release(&ReleaseRequest { chunks }).await {
        tracing::debug!(%error, "chunks are left to the end of the session");
    }
}
