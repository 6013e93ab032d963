//! A conversation: everything between one consumer's hello and its goodbye, in one task.
//!
//! Each time the task is woken it takes in whatever is there (frames, work, outcomes of reports) and then writes all that
//! it has to say with one flush, so that a chunk's acknowledgement and the next chunk leave in one packet. Reports go to the
//! log side by side, completions that came together as one proposal; a session with too much under way, by number or by bytes, is not read until some
//! is answered.
//!
//! Invariants
//! - Reserves, re-asserts and releases reach the Dispatcher in the order in which they were read.
//! - A reserve that comes after its reports reaches it when every report that was read before is answered.
//! - A consumer that does not read what it is told is cut off.

mod reports;
mod unanswered;

use super::work::{self, Frames};
use crate::limits::RESERVES_PER_SESSION_MAX;
use crate::metrics;
use crate::roles::dispatcher::{Ask, Asker, Connected, Event, ToSession};
use crate::service::Service;
use crate::service::complete::Completion;
use crate::service::reserve::{Gave, Report, check_reserve};
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Sink, Stream};
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use unanswered::Unanswered;
use windlass_api::frames::{self, CLOSE_NO_HEARTBEAT, ClientFrame, PROTOCOL_VERSION, ServerFrame, WorkChunk};
use windlass_api::json::detail_of;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::SessionId;
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::ids::{ChunkName, SubmissionId};

/// Frames that may wait to be written before no more are read.
const UNWRITTEN_MAX: usize = 256;

/// How long a conversation that has ended waits for the outcomes of its reports.
const REPORTS_PATIENCE: Duration = Duration::from_secs(1);

/// Why a conversation ends: what the consumer is told.
#[derive(Debug)]
pub(super) struct Goodbye {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl Goodbye {
    pub(super) fn protocol(reason: impl Into<String>) -> Goodbye {
        Goodbye { code: close_code::PROTOCOL, reason: reason.into() }
    }

    pub(super) fn away() -> Goodbye {
        Goodbye { code: close_code::AWAY, reason: "the server stops".into() }
    }

    pub(super) fn message(self) -> Message {
        tracing::debug!(reason = self.reason, "a consumer's conversation ends");
        // A close frame holds at most 123 bytes of reason.
        let mut reason = self.reason;
        reason.truncate((0..=120).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0));
        Message::Close(Some(CloseFrame { code: self.code, reason: Utf8Bytes::from(reason) }))
    }
}

/// What a conversation waits for beside its socket.
enum Happened {
    /// Reports have their outcomes, and frames that answer them; or what the server had to note before it goes on is noted.
    Answered { numbers: Range<u64>, outcome: Result<Vec<ServerFrame>, Goodbye> },
    /// The Dispatcher has something for the consumer, and maybe more behind it; none if it has let go of the session.
    Heard { word: Option<ToSession>, work: mpsc::UnboundedReceiver<ToSession> },
    /// The server stops.
    Stopping,
}

/// Something that is looked at only when it has happened.
type Awaited = BoxFuture<'static, Happened>;

/// A reserve that waits for reports.
#[derive(Debug)]
struct Held {
    /// Reports below this number come first.
    below: u64,
    ask: Ask,
}

/// A reserve as it was asked, for the case that it has to be asked again.
#[derive(Debug, Clone)]
struct Reserve {
    request: u64,
    max: usize,
    strategy: Arc<Strategy>,
}

/// See the file's head.
pub(super) struct Conversation {
    service: Service,
    session: SessionId,
    socket: WebSocket,
    /// The reports under way, the next word of the Dispatcher, and the server's stop. The latter two are there so that they are not
    /// looked at for every frame, and because a set whose every member was polled once wakes its task again, to no avail.
    awaited: FuturesUnordered<Awaited>,
    next_report: u64,
    unanswered: Unanswered,
    /// The size of the frame that is taken in.
    frame_bytes: usize,
    /// Completions that are not yet on their way.
    gathered: Vec<reports::Gathered>,
    held: VecDeque<Held>,
    /// Those that are not answered, held ones among them.
    reserves: Vec<Reserve>,
    unwritten: VecDeque<Message>,
    is_flushing: bool,
    /// When a consumer that reads nothing is cut off.
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
    seen: Instant,
    /// The strategy of the last reserve, as it was written and as it was read: a consumer keeps to its own.
    strategy: Option<(String, Arc<Strategy>)>,
    coming_back: ComingBack,
}

/// How far a consumer has come back: it re-asserts all that it still works on, and then says something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComingBack {
    /// It may still re-assert.
    UnderWay,
    /// It has said something else; the Dispatcher hears of it when reports below this number are answered.
    Said { below: u64 },
    /// The Dispatcher knows.
    Over,
}

/// How a conversation comes to its end.
enum End {
    /// The consumer is told why.
    Told(Goodbye),
    /// The connection is gone; the consumer may come back.
    Gone,
    /// The consumer has said goodbye: nobody waits the grace time for it.
    Left,
}

impl Conversation {
    pub(super) fn new(
        service: Service,
        Connected { session, may_hold_limited }: Connected,
        socket: WebSocket,
        work: mpsc::UnboundedReceiver<ToSession>,
    ) -> Conversation {
        // One of its own: a look at it takes its lock.
        let stopped = service.stop().child_token().cancelled_owned();
        let awaited = FuturesUnordered::new();
        awaited.push(stopped.map(|()| Happened::Stopping).boxed());
        awaited.push(next_word(work));
        Conversation {
            service,
            session,
            socket,
            awaited,
            next_report: 0,
            unanswered: Unanswered::default(),
            frame_bytes: 0,
            gathered: Vec::new(),
            held: VecDeque::new(),
            reserves: Vec::new(),
            unwritten: VecDeque::new(),
            is_flushing: false,
            patience: None,
            seen: Instant::now(),
            strategy: None,
            coming_back: if may_hold_limited { ComingBack::UnderWay } else { ComingBack::Over },
        }
    }

    /// Talks until the connection ends, the consumer breaks the protocol, or the server stops.
    pub(super) async fn run(mut self, last_words: Duration) {
        let times = self.service.config().session_times();
        self.say(&ServerFrame::Welcome {
            version: PROTOCOL_VERSION,
            session: self.session.0,
            heartbeat_ms: times.heartbeat_ms,
            grace_ms: times.grace_ms,
        });
        let end = std::future::poll_fn(|context| self.poll(context)).await;
        if !matches!(end, End::Left) {
            self.service.dispatcher().send(Event::Disconnect(self.session));
        }
        // What was reported counts, and is answered before the goodbye.
        drop(tokio::time::timeout(REPORTS_PATIENCE, self.await_outcomes()).await);
        match end {
            End::Told(goodbye) => drop(tokio::time::timeout(last_words, self.say_goodbye(goodbye)).await),
            End::Left => self.service.dispatcher().send(Event::Leave(self.session)),
            End::Gone => {}
        }
    }

    async fn await_outcomes(&mut self) {
        use futures_util::StreamExt;
        while !self.unanswered.is_empty()
            && let Some(happened) = self.awaited.next().await
        {
            if let Happened::Answered { numbers, outcome } = happened {
                self.unanswered.note_answered(numbers);
                outcome.unwrap_or_default().iter().for_each(|frame| self.say(frame));
            }
        }
    }

    async fn say_goodbye(&mut self, goodbye: Goodbye) {
        use futures_util::SinkExt;
        self.unwritten.push_back(goodbye.message());
        while let Some(message) = self.unwritten.pop_front() {
            if self.socket.feed(message).await.is_err() {
                return;
            }
        }
        drop(self.socket.close().await);
    }

    /// Takes in what is there and writes what there is to say, again if there was too much of it for one go.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Err(end) = self.take_in(context) {
                return Poll::Ready(end);
            }
            let had_much_to_say = self.has_much_to_say();
            if let Err(end) = self.write(context) {
                return Poll::Ready(end);
            }
            if !had_much_to_say || self.has_much_to_say() {
                return Poll::Pending;
            }
        }
    }

    fn has_much_to_say(&self) -> bool {
        self.unwritten.len() >= UNWRITTEN_MAX
    }

    /// Takes in all that is there, in the order in which one thing brings the next: a frame a report, its outcome a reserve,
    /// and that one work. Whatever comes later wakes the task.
    fn take_in(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        loop {
            let taken = self.take_frames(context);
            // What was reported counts, also if the connection ends with it.
            self.report_gathered();
            let has_all_frames = taken?;
            self.take_what_happened(context)?;
            if has_all_frames || !self.has_room() {
                return Ok(());
            }
        }
    }

    /// Writes as much as the connection takes.
    fn write(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        while !self.unwritten.is_empty() {
            match Pin::new(&mut self.socket).poll_ready(context) {
                Poll::Ready(Ok(())) => {
                    let message = self.unwritten.pop_front().expect("it is not empty");
                    Pin::new(&mut self.socket).start_send(message).map_err(|_| End::Gone)?;
                    self.is_flushing = true;
                }
                Poll::Ready(Err(_)) => return Err(End::Gone),
                Poll::Pending => break,
            }
        }
        if self.is_flushing {
            match Pin::new(&mut self.socket).poll_flush(context) {
                Poll::Ready(Ok(())) => (self.is_flushing, self.patience) = (false, None),
                Poll::Ready(Err(_)) => return Err(End::Gone),
                Poll::Pending => self.be_patient(context)?,
            }
        }
        Ok(())
    }

    /// A consumer that does not read would keep its buffers and its place for ever.
    fn be_patient(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        let limit = Duration::from_millis(self.service.config().header_timeout_ms);
        let sleep = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match sleep.poll_unpin(context) {
            Poll::Ready(()) => Err(End::Gone),
            Poll::Pending => Ok(()),
        }
    }

    /// Asks for work; what there is at once needs no other wake.
    fn reserve(&mut self, ask: Ask) -> Result<(), Goodbye> {
        let mut ask = Some(ask);
        while let Some(answer) = ask.take().and_then(|ask| self.service.dispatcher().reserve(ask)) {
            ask = self.hear(answer)?;
        }
        Ok(())
    }

    /// Says to the consumer what the Dispatcher has for it; gives what is to be asked again, since a reserve is never answered with nothing.
    fn hear(&mut self, to_session: ToSession) -> Result<Option<Ask>, Goodbye> {
        match to_session {
            ToSession::Work { request, hand_outs } => {
                let reserve = self.note_served(request);
                let Frames { frames, chunks } = work::frames_of(&self.service, request, &hand_outs);
                // All of it was done meanwhile by those who had it before, and the Dispatcher knows.
                if frames.is_empty() {
                    return Ok(reserve.map(|reserve| self.ask(reserve)));
                }
                metrics::RESERVED_CHUNKS.increment(chunks);
                self.unwritten.extend(frames.into_iter().map(|frame| Message::Binary(frame.into())));
            }
            ToSession::Refused { request, problem } => {
                self.note_served(request);
                self.say(&refused(request, &Problem::new(ProblemCode::StrategyInvalid, problem)));
            }
            ToSession::Draining => self.say(&ServerFrame::Draining {}),
            ToSession::Replaced => {
                return Err(Goodbye::protocol("the consumer has opened another connection"));
            }
            ToSession::Silent => {
                let reason = "no frame came for three heartbeats".into();
                return Err(Goodbye { code: CLOSE_NO_HEARTBEAT, reason });
            }
        }
        Ok(None)
    }

    /// What the Dispatcher is asked for a reserve that waits from now on.
    fn ask(&mut self, reserve: Reserve) -> Ask {
        self.reserves.push(reserve.clone());
        let Reserve { request, max, strategy } = reserve;
        Ask { max, strategy, asker: Asker::Session { session: self.session, request } }
    }

    /// A reserve is answered; a client that gives several the same number has them answered in any order.
    fn note_served(&mut self, request: u64) -> Option<Reserve> {
        let place = self.reserves.iter().position(|reserve| reserve.request == request)?;
        Some(self.reserves.remove(place))
    }

    fn take_what_happened(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        while let Poll::Ready(Some(happened)) = Pin::new(&mut self.awaited).poll_next(context) {
            match happened {
                Happened::Answered { numbers, outcome } => {
                    self.unanswered.note_answered(numbers);
                    outcome.map_err(End::Told)?.iter().for_each(|frame| self.say(frame));
                }
                Happened::Heard { word: Some(word), work } => {
                    // Before it is said: a word may be the last, and then the next is none.
                    self.awaited.push(next_word(work));
                    if let Some(ask) = self.hear(word).map_err(End::Told)? {
                        self.reserve(ask).map_err(End::Told)?;
                    }
                }
                Happened::Heard { word: None, .. } => {}
                Happened::Stopping => return Err(End::Told(Goodbye::away())),
            }
        }
        if let ComingBack::Said { below } = self.coming_back
            && self.unanswered.is_answered(below)
        {
            self.coming_back = ComingBack::Over;
            self.service.dispatcher().send(Event::Returned(self.session));
        }
        while let Some(first) = self.held.front()
            && self.unanswered.is_answered(first.below)
            && let Some(held) = self.held.pop_front()
        {
            self.reserve(held.ask).map_err(End::Told)?;
        }
        Ok(())
    }

    /// Whether there are no more frames; there may be if there is no room for them.
    fn take_frames(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        while self.has_room() {
            let message = match Pin::new(&mut self.socket).poll_next(context) {
                Poll::Ready(Some(message)) => message,
                Poll::Ready(None) => return Err(End::Gone),
                Poll::Pending => return Ok(true),
            };
            match message {
                Ok(Message::Binary(bytes)) => {
                    self.note_seen();
                    self.frame_bytes = bytes.len();
                    let frame = frames::decode::<ClientFrame>(&bytes).map_err(|error| {
                        End::Told(Goodbye::protocol(format!("a frame does not decode: {error}")))
                    })?;
                    self.take(frame).map_err(End::Told)?;
                }
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(close)) => {
                    let is_goodbye = close.is_none_or(|close| close.code == close_code::NORMAL);
                    return Err(if is_goodbye { End::Left } else { End::Gone });
                }
                Ok(Message::Text(_)) => {
                    let goodbye = Goodbye::protocol("frames are binary; docs/protocol.md shows them");
                    return Err(End::Told(goodbye));
                }
                Err(error) => return Err(End::Told(Goodbye::protocol(error.to_string()))),
            }
        }
        Ok(false)
    }

    /// Whether another frame may be read. A session with a report under way is woken when that one is answered.
    fn has_room(&self) -> bool {
        let has_share = self.unanswered.is_empty() || !self.service.has_much_reported();
        has_share && self.unanswered.has_room() && !self.has_much_to_say()
    }

    /// Tells the Dispatcher that the consumer lives, a few times for each heartbeat and not for each frame.
    fn note_seen(&mut self) {
        let heartbeat_ms = self.service.config().session_times().heartbeat_ms;
        if self.seen.elapsed() > Duration::from_millis(heartbeat_ms / 4) {
            self.seen = Instant::now();
            self.service.dispatcher().send(Event::Seen(self.session));
        }
    }

    fn take(&mut self, frame: ClientFrame) -> Result<(), Goodbye> {
        if self.coming_back == ComingBack::UnderWay && !matches!(frame, ClientFrame::Reassert { .. }) {
            self.coming_back = ComingBack::Said { below: self.next_report };
        }
        match frame {
            ClientFrame::Hello { .. } => return Err(Goodbye::protocol("Hello is said once")),
            ClientFrame::Heartbeat {} => self.say(&ServerFrame::Heartbeat {}),
            ClientFrame::Reserve { request, max, strategy, after_reports } => {
                match self.ask_for(request, max as usize, strategy) {
                    Ok(ask) if after_reports && !self.unanswered.is_empty() => {
                        self.held.push_back(Held { below: self.next_report, ask });
                    }
                    // Reserves are carried out in their order.
                    Ok(ask) if !self.held.is_empty() => {
                        let below = self.held.back().map_or(0, |held| held.below);
                        self.held.push_back(Held { below, ask });
                    }
                    Ok(ask) => self.reserve(ask)?,
                    Err(problem) => self.say(&refused(request, &problem)),
                }
            }
            ClientFrame::Complete { request, submission, done } => {
                let reports = done
                    .into_iter()
                    .map(|it| {
                        let said = Gave { output: it.output, entries: it.entries.unwrap_or_default() };
                        Report { chunk: it.chunk.chunk, token: it.chunk.token(), said }
                    })
                    .collect();
                self.gather(request, Completion { submission, reports });
            }
            ClientFrame::Fail { request, submission, failed } => {
                let reports = failed
                    .into_iter()
                    .map(|it| Report { chunk: it.chunk.chunk, token: it.chunk.token(), said: it.reason })
                    .collect();
                let service = self.service.clone();
                self.report(request, async move { service.fail(submission, reports).await });
            }
            ClientFrame::Reassert { request, submission, chunks } => {
                let chunks = names_of(submission, &chunks);
                self.report(request, self.service.reassert(self.session, chunks));
            }
            ClientFrame::Release { request, submission, chunks } => {
                let chunks = names_of(submission, &chunks);
                self.report(request, self.service.release(chunks));
            }
            ClientFrame::CompleteTasks { request, tasks } => {
                let tasks = tasks.iter().map(|it| (it.task, it.chunk().token())).collect();
                self.report(request, self.service.complete_tasks(tasks));
            }
            ClientFrame::Add { request, lane, tasks, idempotency_key } => {
                self.add(request, lane, tasks, idempotency_key);
            }
        }
        Ok(())
    }

    /// What a reserve asks of the Dispatcher.
    fn ask_for(&mut self, request: u64, max: usize, strategy: String) -> Result<Ask, Problem> {
        let strategy = self.read_strategy(strategy)?;
        check_reserve(max, &strategy)?;
        if self.reserves.len() >= RESERVES_PER_SESSION_MAX {
            let detail = format!("a session has at most {RESERVES_PER_SESSION_MAX} reserves waiting");
            return Err(Problem::new(ProblemCode::Busy, detail));
        }
        Ok(self.ask(Reserve { request, max, strategy }))
    }

    /// The strategy that a text says.
    fn read_strategy(&mut self, text: String) -> Result<Arc<Strategy>, Problem> {
        if let Some((last, strategy)) = &self.strategy
            && *last == text
        {
            return Ok(Arc::clone(strategy));
        }
        let strategy = serde_json::from_str::<Strategy>(&text)
            .map_err(|error| Problem::new(ProblemCode::StrategyInvalid, detail_of(&error)))?;
        let strategy = Arc::new(strategy);
        self.strategy = Some((text, Arc::clone(&strategy)));
        Ok(strategy)
    }

    fn say(&mut self, frame: &ServerFrame) {
        self.unwritten.push_back(Message::Binary(frames::encode(frame).into()));
    }
}

/// The next thing that the Dispatcher has for a consumer.
fn next_word(mut work: mpsc::UnboundedReceiver<ToSession>) -> Awaited {
    Box::pin(async move {
        let word = work.recv().await;
        Happened::Heard { word, work }
    })
}

fn names_of(submission: SubmissionId, chunks: &[WorkChunk]) -> Vec<(ChunkName, AttemptToken)> {
    chunks.iter().map(|it| (ChunkName { submission, chunk: it.chunk }, it.token())).collect()
}

fn refused(request: u64, problem: &Problem) -> ServerFrame {
    ServerFrame::Refused {
        request,
        code: problem.code.name().into(),
        detail: problem.detail.clone(),
        retry_helps: problem.retry_helps,
    }
}
