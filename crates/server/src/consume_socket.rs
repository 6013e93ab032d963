//! The consumers' WebSocket: sessions that reserve, report and re-assert by binary frames.
//!
//! One task reads, one writes. Reports go to the log side by side, so that a consumer need not wait for one before it
//! sends the next; a session with too many under way is not read until some are answered.

use crate::http::accept::ConnectionPlace;
use crate::http_refused;
use crate::limits::{REPORTS_PER_SESSION_MAX, RESERVES_PER_SESSION_MAX, WORK_FRAME_BYTES};
use crate::roles::dispatcher::{Ask, Asker, Event, ToSession};
use crate::service::Service;
use crate::service::abouts::about_bytes;
use crate::service::reserve::{Report, check_reserve};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use minicbor::bytes::ByteVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use windlass_api::frames::{
    self, CLOSE_NO_HEARTBEAT, ClientFrame, FRAME_BYTES_MAX, PROTOCOL_VERSION, ServerFrame, Verdict,
    WorkChunk, WorkOf,
};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::{HandOut, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::Input;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::ids::{ChunkName, SubmissionId};

/// Opens the WebSocket of consumers: binary frames, which `docs/protocol.md` describes.
#[utoipa::path(get, path = "/v1/consume", tag = "work", responses((status = 101, description = "The WebSocket is open.")))]
pub(crate) async fn consume(
    State(service): State<Service>,
    place: Option<Extension<ConnectionPlace>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            let detail = format!(
                "{}; this path is a WebSocket, and /v1/reserve is for plain HTTP",
                rejection.body_text()
            );
            return http_refused(Problem::new(ProblemCode::MalformedRequest, detail));
        }
    };
    upgrade.max_message_size(FRAME_BYTES_MAX).max_frame_size(FRAME_BYTES_MAX).on_upgrade(move |socket| {
        let conversations = service.conversations().clone();
        conversations.track_future(async move {
            converse(service, socket).await;
            // The conversation takes its connection's place until its end.
            drop(place);
        })
    })
}

/// How long the last words of a conversation may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Why a conversation ends: what the consumer is told.
#[derive(Debug)]
struct Goodbye {
    code: u16,
    reason: String,
}

impl Goodbye {
    fn protocol(reason: impl Into<String>) -> Goodbye {
        Goodbye { code: close_code::PROTOCOL, reason: reason.into() }
    }
}

/// What the writer sends.
enum Out {
    Frame(ServerFrame),
    Goodbye(Goodbye),
}

async fn converse(service: Service, socket: WebSocket) {
    let (sink, mut stream) = socket.split();
    let (out, to_write) = mpsc::channel(REPORTS_PER_SESSION_MAX);
    let (work_out, work) = mpsc::unbounded_channel();
    let reserves = Arc::new(AtomicUsize::new(0));
    let writer = Writer { service: service.clone(), sink, reserves: Arc::clone(&reserves) };
    let mut writing = tokio::spawn(writer.run(to_write, work));

    let goodbye = match hello(&service, &mut stream, work_out).await {
        Ok(session) => {
            let reports = Arc::new(Semaphore::new(REPORTS_PER_SESSION_MAX));
            let reader = Reader {
                service: service.clone(),
                session,
                out: out.clone(),
                reserves,
                reports: Arc::clone(&reports),
                seen: Instant::now(),
                strategy: None,
            };
            let goodbye = tokio::select! {
                goodbye = reader.run(&mut stream) => goodbye,
                _ = &mut writing => None,
                () = service.stop().cancelled() => {
                    Some(Goodbye { code: close_code::AWAY, reason: "the server stops".into() })
                }
            };
            drop(service.dispatcher().send(Event::Disconnect(session)));
            // What was reported is answered before the goodbye.
            let all =
                reports.acquire_many(u32::try_from(REPORTS_PER_SESSION_MAX).expect("it is a few hundred"));
            drop(tokio::time::timeout(CLOSE_PATIENCE, all).await);
            goodbye
        }
        Err(goodbye) => Some(goodbye),
    };
    if let Some(goodbye) = goodbye {
        drop(out.send(Out::Goodbye(goodbye)).await);
    }
    drop(out);
    // A peer that reads nothing must not keep the task for ever.
    if !writing.is_finished() {
        let last_words = Duration::from_millis(service.config().header_timeout_ms);
        if tokio::time::timeout(last_words, &mut writing).await.is_err() {
            writing.abort();
        }
    }
}

async fn hello(
    service: &Service,
    stream: &mut SplitStream<WebSocket>,
    work_out: mpsc::UnboundedSender<ToSession>,
) -> Result<SessionId, Goodbye> {
    let first =
        tokio::time::timeout(Duration::from_millis(service.config().header_timeout_ms), stream.next()).await;
    let Ok(Some(Ok(Message::Binary(bytes)))) = first else {
        return Err(Goodbye::protocol("the first frame is a binary Hello, sent without delay"));
    };
    let Ok(ClientFrame::Hello { version, session, name }) = frames::decode(&bytes) else {
        return Err(Goodbye::protocol("the first frame is a Hello"));
    };
    if version != PROTOCOL_VERSION {
        let reason = format!("this server speaks version {PROTOCOL_VERSION} of the protocol, not {version}");
        return Err(Goodbye::protocol(reason));
    }
    let before = session.map(SessionId);
    let name = name.chars().take(100).collect();
    let connect = |reply| Event::Connect { before, name, out: work_out, reply };
    service
        .ask(connect)
        .await
        .map_err(|_| Goodbye { code: close_code::AWAY, reason: "the server stops".into() })
}

struct Reader {
    service: Service,
    session: SessionId,
    out: mpsc::Sender<Out>,
    reserves: Arc<AtomicUsize>,
    reports: Arc<Semaphore>,
    seen: Instant,
    /// The strategy of the last reserve, as it was written and as it was read: a consumer keeps to its own.
    strategy: Option<(String, Arc<Strategy>)>,
}

impl Reader {
    /// Reads frames until the connection ends, or the consumer breaks the protocol.
    async fn run(mut self, stream: &mut SplitStream<WebSocket>) -> Option<Goodbye> {
        let times = self.service.config().session_times();
        let welcome = ServerFrame::Welcome {
            version: PROTOCOL_VERSION,
            session: self.session.0,
            heartbeat_ms: times.heartbeat_ms,
            grace_ms: times.grace_ms,
        };
        self.send(welcome).await;
        while let Some(message) = stream.next().await {
            let bytes = match message {
                Ok(Message::Binary(bytes)) => bytes,
                Ok(Message::Ping(_) | Message::Pong(_)) => continue,
                Ok(Message::Close(close)) => {
                    // A consumer that says goodbye does not come back: nobody waits the grace time for it.
                    if close.is_none_or(|close| close.code == close_code::NORMAL) {
                        drop(self.service.dispatcher().send(Event::Leave(self.session)));
                    }
                    return None;
                }
                Ok(Message::Text(_)) => {
                    return Some(Goodbye::protocol("frames are binary; docs/protocol.md shows them"));
                }
                Err(error) => return Some(Goodbye::protocol(error.to_string())),
            };
            self.note_seen(times.heartbeat_ms);
            match frames::decode::<ClientFrame>(&bytes) {
                Ok(frame) => {
                    if let Err(goodbye) = self.take(frame).await {
                        return Some(goodbye);
                    }
                }
                Err(error) => return Some(Goodbye::protocol(format!("a frame does not decode: {error}"))),
            }
        }
        None
    }

    /// Tells the Dispatcher that the consumer lives, a few times for each heartbeat and not for each frame.
    fn note_seen(&mut self, heartbeat_ms: u64) {
        if self.seen.elapsed() > Duration::from_millis(heartbeat_ms / 4) {
            self.seen = Instant::now();
            drop(self.service.dispatcher().send(Event::Seen(self.session)));
        }
    }

    async fn take(&mut self, frame: ClientFrame) -> Result<(), Goodbye> {
        match frame {
            ClientFrame::Hello { .. } => return Err(Goodbye::protocol("Hello is said once")),
            ClientFrame::Heartbeat {} => self.send(ServerFrame::Heartbeat {}).await,
            ClientFrame::Reserve { request, max, strategy } => {
                self.reserve(request, max as usize, strategy).await
            }
            ClientFrame::Complete { request, submission, done } => {
                let reports = done
                    .into_iter()
                    .map(|it| Report { chunk: it.chunk.chunk, token: it.chunk.token(), said: it.output })
                    .collect();
                let service = self.service.clone();
                self.report(request, async move { service.complete(submission, reports).await }).await;
            }
            ClientFrame::Fail { request, submission, failed } => {
                let reports = failed
                    .into_iter()
                    .map(|it| Report { chunk: it.chunk.chunk, token: it.chunk.token(), said: it.reason })
                    .collect();
                let service = self.service.clone();
                self.report(request, async move { service.fail(submission, reports).await }).await;
            }
            ClientFrame::Reassert { request, submission, chunks } => {
                let chunks = names_of(submission, &chunks);
                self.report(request, self.service.reassert(self.session, chunks)).await;
            }
            ClientFrame::Release { request, submission, chunks } => {
                let chunks = names_of(submission, &chunks);
                self.report(request, self.service.release(chunks)).await;
            }
        }
        Ok(())
    }

    /// The strategy that a text says.
    fn read_strategy(&mut self, text: String) -> Result<Arc<Strategy>, Problem> {
        if let Some((last, strategy)) = &self.strategy
            && *last == text
        {
            return Ok(Arc::clone(strategy));
        }
        let strategy = serde_json::from_str::<Strategy>(&text)
            .map_err(|error| Problem::new(ProblemCode::StrategyInvalid, error.to_string()))?;
        let strategy = Arc::new(strategy);
        self.strategy = Some((text, Arc::clone(&strategy)));
        Ok(strategy)
    }

    async fn reserve(&mut self, request: u64, max: usize, strategy: String) {
        let read = self.read_strategy(strategy);
        let checked = read.and_then(|strategy| check_reserve(max, &strategy).map(|()| strategy));
        match checked {
            Err(problem) => self.send(refused(request, &problem)).await,
            Ok(_) if self.reserves.fetch_add(1, Ordering::Relaxed) >= RESERVES_PER_SESSION_MAX => {
                self.reserves.fetch_sub(1, Ordering::Relaxed);
                let detail = format!("a session has at most {RESERVES_PER_SESSION_MAX} reserves waiting");
                let problem = Problem::new(ProblemCode::Busy, detail);
                self.send(refused(request, &problem)).await;
            }
            Ok(strategy) => {
                let asker = Asker::Session { session: self.session, request };
                drop(self.service.dispatcher().send(Event::Reserve(Ask { max, strategy, asker })));
            }
        }
    }

    /// Answers a report when its outcome is known, without keeping the next frame waiting.
    async fn report(
        &self,
        request: u64,
        outcome: impl Future<Output = Result<Vec<Verdict>, Problem>> + Send + 'static,
    ) {
        let permit = Arc::clone(&self.reports).acquire_owned().await.expect("the semaphore is never closed");
        let out = self.out.clone();
        tokio::spawn(async move {
            let frame = match outcome.await {
                Ok(verdicts) => ServerFrame::Settled { request, verdicts },
                Err(problem) => refused(request, &problem),
            };
            drop(out.send(Out::Frame(frame)).await);
            drop(permit);
        });
    }

    async fn send(&self, frame: ServerFrame) {
        // A writer that is gone has ended the conversation; the reader is told by the select around it.
        drop(self.out.send(Out::Frame(frame)).await);
    }
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

struct Writer {
    service: Service,
    sink: SplitSink<WebSocket, Message>,
    reserves: Arc<AtomicUsize>,
}

impl Writer {
    /// Writes what comes, as much as waits with one flush, until the conversation ends.
    async fn run(mut self, mut frames: mpsc::Receiver<Out>, mut work: mpsc::UnboundedReceiver<ToSession>) {
        const AT_ONCE: usize = 64;
        let (mut some_frames, mut some_work) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        let mut has_work = true;
        loop {
            let received = tokio::select! {
                received = frames.recv_many(&mut some_frames, AT_ONCE) => received,
                received = work.recv_many(&mut some_work, AT_ONCE), if has_work => {
                    has_work = received > 0;
                    if !has_work {
                        continue;
                    }
                    received
                }
            };
            if received == 0 {
                break;
            }
            // A consumer that does not read would keep its buffers and its place for ever.
            let patience = Duration::from_millis(self.service.config().header_timeout_ms);
            let written = tokio::time::timeout(patience, self.write(&mut some_frames, &mut some_work)).await;
            if !matches!(written, Ok(Ok(true))) {
                break;
            }
        }
        drop(tokio::time::timeout(CLOSE_PATIENCE, self.sink.close()).await);
    }

    /// Whether the conversation goes on.
    async fn write(
        &mut self,
        some_frames: &mut Vec<Out>,
        some_work: &mut Vec<ToSession>,
    ) -> Result<bool, axum::Error> {
        let mut goes_on = true;
        for to_session in some_work.drain(..) {
            match to_session {
                ToSession::Work { request, hand_outs } => self.write_work(request, &hand_outs).await?,
                ToSession::Refused { request, problem } => {
                    self.reserves.fetch_sub(1, Ordering::Relaxed);
                    let problem = Problem::new(ProblemCode::StrategyInvalid, problem);
                    self.feed(&refused(request, &problem)).await?;
                }
                ToSession::Draining => self.feed(&ServerFrame::Draining {}).await?,
                ToSession::Replaced => {
                    goes_on = false;
                    self.say_goodbye(Goodbye::protocol("the consumer has opened another connection")).await?;
                }
                ToSession::Silent => {
                    goes_on = false;
                    self.say_goodbye(Goodbye {
                        code: CLOSE_NO_HEARTBEAT,
                        reason: "no frame came for three heartbeats".into(),
                    })
                    .await?;
                }
            }
        }
        for out in some_frames.drain(..) {
            match out {
                Out::Frame(frame) => self.feed(&frame).await?,
                Out::Goodbye(goodbye) => {
                    goes_on = false;
                    self.say_goodbye(goodbye).await?;
                }
            }
        }
        self.sink.flush().await?;
        Ok(goes_on)
    }

    /// One or several frames of work, each of bounded size.
    async fn write_work(&mut self, request: u64, hand_outs: &[HandOut]) -> Result<(), axum::Error> {
        self.reserves.fetch_sub(1, Ordering::Relaxed);
        let chunks: usize = hand_outs.iter().map(|it| it.chunks.len()).sum();
        metrics::counter!("windlass_reserved_chunks_total").increment(chunks as u64);
        let (mut work, mut bytes) = (Vec::new(), 0);
        for (nth, hand_out) in hand_outs.iter().enumerate() {
            let about = self.service.abouts().get(self.service.order(), hand_out.submission);
            bytes += about_bytes(&about) + 24 * hand_out.chunks.len();
            work.push(WorkOf {
                submission: hand_out.submission,
                prefix: match &about.input {
                    Input::Prefix(prefix) => Some(prefix.clone()),
                    Input::Nowhere | Input::Inline(_) => None,
                },
                payload: match &about.input {
                    Input::Inline(payload) => Some(payload.clone()),
                    Input::Nowhere | Input::Prefix(_) => None,
                },
                opaque: (!about.opaque.is_empty()).then(|| ByteVec::from(about.opaque.to_vec())),
                metadata: about.metadata.clone(),
                chunks: hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect(),
            });
            let more = nth + 1 < hand_outs.len();
            if bytes > WORK_FRAME_BYTES && more {
                self.feed(&ServerFrame::Work { request, more, work: std::mem::take(&mut work) }).await?;
                bytes = 0;
            }
        }
        self.feed(&ServerFrame::Work { request, more: false, work }).await
    }

    async fn feed(&mut self, frame: &ServerFrame) -> Result<(), axum::Error> {
        self.sink.feed(Message::Binary(frames::encode(frame).into())).await
    }

    async fn say_goodbye(&mut self, goodbye: Goodbye) -> Result<(), axum::Error> {
        tracing::debug!(reason = goodbye.reason, "a consumer's conversation ends");
        // A close frame holds at most 123 bytes of reason.
        let mut reason = goodbye.reason;
        reason.truncate((0..=120).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0));
        let close = CloseFrame { code: goodbye.code, reason: Utf8Bytes::from(reason) };
        self.sink.feed(Message::Close(Some(close))).await
    }
}
