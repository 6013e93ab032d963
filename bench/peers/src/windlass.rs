//! Windlass: its own client, over the consumers' socket.

mod lane;

use crate::process::{self, Process};
use crate::system::{Kind, Mode, ONE_EXCHANGE, PREFIX, Runner, Server, System, Tally, Work};
use anyhow::{Context, bail};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkOf, WorkTask};
use windlass_client::{
    Client, ClientError, ConsumeReceiver, ConsumeSender, ConsumeSocket, Failure, Output, Strategy,
    SubmitRequest,
};

pub(crate) const WINDLASS: &str = "Windlass";
/// Frames over the consumers' socket.
const SOCKET: &str = "socket";
/// The client library's `Consumer` with nothing set: one chunk at a time, and at hand what it ends in 100 ms.
pub(crate) const BY_DEFAULT: &str = "Consumer, its defaults";
/// The client library's `Consumer` as the documentation says for work that takes microseconds.
pub(crate) const BY_SETTINGS: &str = "Consumer, 64 at once, 960 at hand";
/// Requests over HTTP.
pub(crate) const OVER_HTTP: &str = "HTTP";
/// The client library's loop.
const BY_CONSUMER: [&str; 2] = [BY_DEFAULT, BY_SETTINGS];
/// The ways that have rows of their own.
pub(crate) const OWN_ROWS: [&str; 3] = [BY_DEFAULT, BY_SETTINGS, OVER_HTTP];
/// One submission with everything in it.
pub(crate) const ONE_SUBMISSION: &str = "one submission";
/// Submissions of a thousand chunks.
pub(crate) const MANY_SUBMISSIONS: &str = "submissions of 1,000";
const SUBMISSION_CHUNKS: u64 = 1_000;
/// Tasks of a lane in requests of as many as one takes.
const MANY_TASKS: &str = "requests of 1,000 tasks";
const TASKS_AT_ONCE: u64 = 1_000;
/// Submits on the way at once.
const SUBMITS_AT_ONCE: usize = 128;
/// Chunks of one reserve where consumers pipeline; two reserves are on the way.
const PIPELINE_CHUNKS: u32 = 512;

pub(crate) struct Windlass {
    pub(crate) binary: PathBuf,
}

#[async_trait]
impl System for Windlass {
    fn name(&self) -> &'static str {
        WINDLASS
    }

    fn version(&self) -> anyhow::Result<String> {
        process::version(&self.binary, "--version")
    }

    fn ways(&self, kind: Kind, _clients: usize) -> Vec<&'static str> {
        match kind.mode {
            Mode::Add => vec![SOCKET, OVER_HTTP],
            Mode::OneByOne => vec![SOCKET, ONE_EXCHANGE],
            Mode::Recommended => vec![SOCKET, BY_DEFAULT, BY_SETTINGS],
        }
    }

    fn lasting(&self, kind: Kind) -> u64 {
        match (kind.mode, kind.work) {
            (Mode::Add | Mode::OneByOne, _) => 1,
            (Mode::Recommended, Work::References) => 100,
            (Mode::Recommended, Work::Tasks) => 4,
        }
    }

    fn ways_in(&self, work: Work) -> Vec<&'static str> {
        match work {
            Work::References => vec![ONE_SUBMISSION, MANY_SUBMISSIONS],
            Work::Tasks => vec![MANY_TASKS],
        }
    }

    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>> {
        let port = process::free_port()?;
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(data);
        command.env("WINDLASS_LOG", "warn");
        let mut process = Process::start(command, data, Signal::TERM)?;
        let client = Client::new(&format!("http://127.0.0.1:{port}"))?;
        let once = client.clone().retrying_for(Duration::ZERO);
        let status = process.ready(|| async { Ok(once.status().await?) }).await?;
        let left = Arc::new(AtomicI64::new(status.chunks_ready as i64));
        Ok(Box::new(Running { process, client, left }))
    }
}

struct Running {
    process: Process,
    client: Client,
    /// Chunks that nobody has asked for: consumers of an empty queue wait, and here they should end.
    left: Arc<AtomicI64>,
}

#[async_trait]
impl Server for Running {
    fn process(&self) -> &Process {
        &self.process
    }

    async fn fill(&self, work: Work, way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64> {
        if work == Work::Tasks {
            self.client.create_lane(lane::LANE).await?;
            let added = lane::fill(&self.client, chunks, until).await?;
            self.left.fetch_add(added as i64, Ordering::Relaxed);
            return Ok(added);
        }
        let each = if way == ONE_SUBMISSION { chunks } else { SUBMISSION_CHUNKS.min(chunks) };
        stream::iter(0..chunks / each)
            .map(|nth| async move {
                let prefix = format!("{PREFIX}/{nth:020}");
                let request =
                    SubmitRequest { chunks: Some(each), prefix: Some(prefix), ..SubmitRequest::default() };
                self.client.submit(&request).await
            })
            .buffer_unordered(SUBMITS_AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        self.left.fetch_add(chunks as i64, Ordering::Relaxed);
        Ok(chunks)
    }

    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let Kind { work, mode } = kind;
        if BY_CONSUMER.contains(&way) {
            let consumer = || -> Box<dyn Runner> {
                Box::new(Library {
                    client: self.client.clone(),
                    work,
                    left: self.left.clone(),
                    is_set: way == BY_SETTINGS,
                    running: None,
                })
            };
            return Ok(std::iter::repeat_with(consumer).take(count).collect());
        }
        if mode == Mode::Add {
            return lane::adders(&self.client, way, count).await;
        }
        let mut consumers: Vec<Box<dyn Runner>> = Vec::new();
        for nth in 0..count {
            let socket = ConsumeSocket::connect(&self.client, &format!("bench {nth}"), None).await?.0;
            let left = self.left.clone();
            consumers.push(match (mode, way) {
                (Mode::Recommended, _) => Box::new(Pipelined::new(socket, work, left)),
                (_, ONE_EXCHANGE) => Box::new(OneExchange::new(socket, work, left)),
                _ => Box::new(OneByOne { socket, work, left, request: 0 }),
            });
        }
        Ok(consumers)
    }
}

/// How consumers choose.
fn strategy(work: Work) -> String {
    match work {
        Work::References => "OldestFirst".into(),
        Work::Tasks => format!("Lane({})", lane::LANE),
    }
}

fn reserve(work: Work, request: u64, max: u32) -> ClientFrame {
    // A strategy travels as JSON.
    let strategy = format!("\"{}\"", strategy(work));
    ClientFrame::Reserve { request, max, strategy, after_reports: false }
}

/// Asks for a chunk that is handed out when what was reported before is acknowledged.
fn reserve_after_reports(work: Work, request: u64) -> ClientFrame {
    let strategy = format!("\"{}\"", strategy(work));
    ClientFrame::Reserve { request, max: 1, strategy, after_reports: true }
}

/// A task comes with its bytes, a reference with its submission's prefix.
fn check(kind: Work, work: &WorkOf) -> anyhow::Result<()> {
    match kind {
        Work::References => Ok(()),
        Work::Tasks => kind.check(work.payload.as_ref().map_or(0, |it| it.len())),
    }
}

fn completion(request: u64, work: WorkOf) -> ClientFrame {
    let done = work.chunks.into_iter().map(|chunk| DoneChunk { chunk, output: Output::Nothing, entries: None }).collect();
    ClientFrame::Complete { request, submission: work.submission, done }
}

/// One report for each submission, or for all tasks that came together; each gets its request's number.
fn completions(kind: Work, work: Vec<WorkOf>) -> Vec<Box<dyn FnOnce(u64) -> ClientFrame + Send>> {
    match kind {
        Work::References => {
            let report = |work| Box::new(move |request| completion(request, work)) as Box<dyn FnOnce(u64) -> _ + Send>;
            work.into_iter().map(report).collect()
        }
        Work::Tasks if work.is_empty() => Vec::new(),
        Work::Tasks => {
            let chunks = work.iter().flat_map(|it| it.chunks.iter().map(|chunk| WorkTask::new(it.submission, *chunk)));
            let tasks = chunks.collect();
            vec![Box::new(move |request| ClientFrame::CompleteTasks { request, tasks })]
        }
    }
}

fn accepted(verdicts: &[Verdict]) -> anyhow::Result<u64> {
    anyhow::ensure!(verdicts.iter().all(|it| *it == Verdict::Accepted), "not accepted: {verdicts:?}");
    Ok(verdicts.len() as u64)
}

struct OneByOne {
    socket: ConsumeSocket,
    work: Work,
    left: Arc<AtomicI64>,
    request: u64,
}

impl OneByOne {
    async fn answer(&mut self, frame: &ClientFrame) -> anyhow::Result<ServerFrame> {
        self.socket.send(frame).await?;
        loop {
            match self.socket.receive().await?.context("the server closed")? {
                ServerFrame::Heartbeat {} => {}
                answer => return Ok(answer),
            }
        }
    }
}

#[async_trait]
impl Runner for OneByOne {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Ok(false);
        }
        let began = Instant::now();
        self.request += 1;
        let work = match self.answer(&reserve(self.work, self.request, 1)).await? {
            ServerFrame::Work { mut work, .. } if work.len() == 1 => work.remove(0),
            other => bail!("a reserve was answered with {other:?}"),
        };
        tally.reserved(began);
        check(self.work, &work)?;
        match self.answer(&completion(self.request, work)).await? {
            ServerFrame::Settled { verdicts, .. } => accepted(&verdicts)?,
            other => bail!("a completion was answered with {other:?}"),
        };
        tally.completed(began);
        Ok(true)
    }
}

/// Reports its chunk and asks for the next in one message; that one comes with the acknowledgement.
struct OneExchange {
    socket: ConsumeSocket,
    work: Work,
    left: Arc<AtomicI64>,
    request: u64,
    held: Option<WorkOf>,
}

impl OneExchange {
    fn new(socket: ConsumeSocket, work: Work, left: Arc<AtomicI64>) -> OneExchange {
        OneExchange { socket, work, left, request: 0, held: None }
    }

    async fn receive(&mut self) -> anyhow::Result<ServerFrame> {
        loop {
            match self.socket.receive().await?.context("the server closed")? {
                ServerFrame::Heartbeat {} => {}
                answer => return Ok(answer),
            }
        }
    }
}

#[async_trait]
impl Runner for OneExchange {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let has_more = self.left.fetch_sub(1, Ordering::Relaxed) > 0;
        let reported = self.held.take();
        let is_reporting = reported.is_some();
        self.request += 1;
        if let Some(work) = reported {
            self.socket.feed(&completion(self.request, work)).await?;
        }
        if has_more {
            self.socket.feed(&reserve_after_reports(self.work, self.request)).await?;
        }
        self.socket.flush().await?;
        if is_reporting {
            match self.receive().await? {
                ServerFrame::Settled { verdicts, .. } => tally.chunks += accepted(&verdicts)?,
                other => bail!("a completion was answered with {other:?}"),
            }
        }
        if has_more {
            match self.receive().await? {
                ServerFrame::Work { mut work, .. } if work.len() == 1 => {
                    check(self.work, &work[0])?;
                    self.held = Some(work.remove(0));
                }
                other => bail!("a reserve was answered with {other:?}"),
            }
        }
        Ok(has_more)
    }
}

/// Two reserves are always on the way; every chunk is reported as it comes, without waiting.
struct Pipelined {
    sender: ConsumeSender,
    receiver: ConsumeReceiver,
    work: Work,
    left: Arc<AtomicI64>,
    request: u64,
    reserves: u64,
    reported: u64,
    settled: u64,
}

impl Pipelined {
    fn new(socket: ConsumeSocket, work: Work, left: Arc<AtomicI64>) -> Pipelined {
        let (sender, receiver) = socket.split();
        Pipelined { sender, receiver, work, left, request: 0, reserves: 0, reported: 0, settled: 0 }
    }

    /// Feeds one reserve, unless others have asked for all there is.
    async fn reserve(&mut self) -> anyhow::Result<()> {
        let max = i64::from(PIPELINE_CHUNKS);
        let before = self.left.fetch_sub(max, Ordering::Relaxed);
        if before < max {
            self.left.fetch_add(max - before.clamp(0, max), Ordering::Relaxed);
        }
        if before > 0 {
            self.request += 1;
            self.reserves += 1;
            self.sender.feed(&reserve(self.work, self.request, before.min(max) as u32)).await?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> anyhow::Result<Option<Vec<WorkOf>>> {
        match self.receiver.receive().await?.context("the server closed")? {
            ServerFrame::Work { work, more, .. } => {
                self.reserves -= u64::from(!more);
                return Ok(Some(work));
            }
            ServerFrame::Settled { verdicts, .. } => self.settled += accepted(&verdicts)?,
            ServerFrame::Heartbeat {} => {}
            other => bail!("the server sent {other:?}"),
        }
        Ok(None)
    }
}

#[async_trait]
impl Runner for Pipelined {
    async fn round(&mut self, _tally: &mut Tally) -> anyhow::Result<bool> {
        while self.reserves < 2 {
            let before = self.reserves;
            self.reserve().await?;
            if self.reserves == before {
                break;
            }
        }
        self.sender.flush().await?;
        if self.reserves == 0 {
            return Ok(false);
        }
        let work = self.receive().await?.unwrap_or_default();
        for of_one in &work {
            check(self.work, of_one)?;
            self.reported += of_one.chunks.len() as u64;
        }
        for frame in completions(self.work, work) {
            self.request += 1;
            self.sender.feed(&frame(self.request)).await?;
        }
        Ok(true)
    }

    async fn finish(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        self.sender.flush().await?;
        // Work that comes after the end is left to the server, which takes it back when the connection closes.
        while self.settled < self.reported {
            self.receive().await?;
        }
        tally.chunks += self.settled;
        Ok(())
    }
}

/// What stops the client library's own loop, and what it ends with.
type Loop = (oneshot::Sender<()>, JoinHandle<Result<windlass_client::Tally, ClientError>>);

/// The client library's own loop, with work that does nothing.
struct Library {
    client: Client,
    work: Work,
    left: Arc<AtomicI64>,
    is_set: bool,
    running: Option<Loop>,
}

impl Library {
    fn start(&self) -> anyhow::Result<Loop> {
        let (stop, stopped) = oneshot::channel();
        let strategy: Strategy = strategy(self.work).parse()?;
        let mut consumer = windlass_client::Consumer::builder(self.client.clone()).strategy(strategy);
        if self.is_set {
            consumer = consumer.concurrency(64).prefetch(960);
        }
        let (left, work) = (self.left.clone(), self.work);
        let run = consumer.run(
            move |chunk| {
                left.fetch_sub(1, Ordering::Relaxed);
                async move {
                    // A reference's object is not fetched in any system.
                    if work == Work::Tasks {
                        let payload = chunk.input().await?;
                        work.check(payload.len()).map_err(|error| Failure::new(error.to_string()))?;
                    }
                    Ok(Output::Nothing)
                }
            },
            async { drop(stopped.await) },
        );
        Ok((stop, tokio::spawn(run)))
    }
}

#[async_trait]
impl Runner for Library {
    async fn round(&mut self, _tally: &mut Tally) -> anyhow::Result<bool> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(self.left.load(Ordering::Relaxed) > 0)
    }

    async fn finish(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        let Some((stop, running)) = self.running.take() else { return Ok(()) };
        // It may have ended by itself.
        _ = stop.send(());
        tally.chunks += running.await??.completed;
        Ok(())
    }
}
