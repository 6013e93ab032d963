//! The load: consumers that only reserve and complete, one by one or pipelined, and a producer of many submissions.

use anyhow::{Context, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkOf};
use windlass_client::{
    Activity, Client, ClientError, ConsumeReceiver, ConsumeSender, ConsumeSocket, Consumer, ConsumerBuilder,
    Output, Strategy, SubmissionId, SubmitRequest, Tally,
};

/// How consumers go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Complete a chunk, wait for its acknowledgement, with which the next one comes, and again.
    OneByOne,
    /// As a consumer of the client library does that always has so many chunks at hand.
    Library { prefetch: usize },
    /// Keep reserves of so many chunks on the way, and report without waiting.
    Pipelined(u32),
}

/// What a load did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) chunks: u64,
    /// What the consumer with the fewest chunks did.
    pub(crate) fewest: u64,
    pub(crate) seconds: f64,
}

impl Done {
    pub(crate) fn rate(self) -> f64 {
        self.chunks as f64 / self.seconds
    }
}

/// Runs `consumers` consumers for a while.
pub(crate) async fn consume(
    client: &Client,
    consumers: usize,
    mode: Mode,
    strategy: &str,
    duration: Duration,
) -> anyhow::Result<Done> {
    if let Mode::Library { prefetch } = mode {
        return library(client, consumers, prefetch, strategy, duration).await;
    }
    let sockets = connect(client, consumers).await?;
    let began = Instant::now();
    let end = began + duration;
    let strategy = as_json(strategy)?;
    let running: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let strategy = strategy.clone();
            tokio::spawn(async move {
                match mode {
                    Mode::OneByOne => one_by_one(socket, &strategy, end).await,
                    Mode::Library { .. } => unreachable!("it has its own connections"),
                    Mode::Pipelined(depth) => pipelined(socket, &strategy, depth, end).await,
                }
            })
        })
        .collect();
    let (mut chunks, mut fewest) = (0, u64::MAX);
    for consumer in running {
        let completed = consumer.await??;
        chunks += completed;
        fewest = fewest.min(completed);
    }
    Ok(Done { chunks, fewest, seconds: began.elapsed().as_secs_f64() })
}

/// So many consumers' sockets, a few being connected at a time.
pub(crate) async fn connect(client: &Client, consumers: usize) -> anyhow::Result<Vec<ConsumeSocket>> {
    const AT_ONCE: usize = 64;
    let connects = stream::iter(0..consumers)
        .map(|nth| async move { Ok(ConsumeSocket::connect(client, &format!("bench {nth}"), None).await?.0) });
    connects.buffer_unordered(AT_ONCE).try_collect().await
}

/// A strategy's text as a reserve carries it.
pub(crate) fn as_json(strategy: &str) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&parsed(strategy)?)?)
}

fn parsed(strategy: &str) -> anyhow::Result<Strategy> {
    strategy.parse().with_context(|| format!("`{strategy}` is no strategy"))
}

/// Runs `consumers` consumers of the client library until a submission is done.
pub(crate) async fn consume_by_default(
    client: &Client,
    consumers: usize,
    submission: SubmissionId,
) -> anyhow::Result<Done> {
    let began = Instant::now();
    let crew = Crew::start(client, consumers, |consumer| consumer);
    let info = loop {
        let info = client.wait(submission, Some(Duration::from_secs(60))).await?;
        if info.chunks.done == info.chunks.total {
            break info;
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let fewest = crew.stop().await?;
    Ok(Done { chunks: info.chunks.done, fewest, seconds })
}

/// Consumers of the client library.
pub(crate) struct Crew {
    running: Vec<JoinHandle<Result<Tally, ClientError>>>,
    activities: Vec<watch::Receiver<Activity>>,
    stop: watch::Sender<bool>,
}

impl Crew {
    pub(crate) fn start(
        client: &Client,
        consumers: usize,
        set: impl Fn(ConsumerBuilder) -> ConsumerBuilder,
    ) -> Crew {
        /// As many as a server greets without anybody waiting for long.
        const CONNECTS_PER_MS: u32 = 3;
        let mut crew = Crew { running: Vec::new(), activities: Vec::new(), stop: watch::Sender::new(false) };
        for nth in 0..u32::try_from(consumers).expect("consumers are few") {
            let consumer = set(Consumer::builder(client.clone()));
            crew.activities.push(consumer.activity());
            let mut stopped = crew.stop.subscribe();
            crew.running.push(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1) * nth / CONNECTS_PER_MS).await;
                let until_stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
                consumer.run(async |_chunk| Ok(Output::Nothing), until_stopped).await
            }));
        }
        crew
    }

    async fn all_connected(&mut self) -> anyhow::Result<()> {
        for activity in &mut self.activities {
            activity.wait_for(|it| it.connected).await.context("a consumer ended before it was connected")?;
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.activities.iter().map(|it| it.borrow().tally.completed).sum()
    }

    /// Lets them end what they have begun; gives the chunks of the one with the fewest.
    pub(crate) async fn stop(self) -> anyhow::Result<u64> {
        self.stop.send_replace(true);
        let mut fewest = u64::MAX;
        for consumer in self.running {
            fewest = fewest.min(consumer.await??.completed);
        }
        Ok(fewest)
    }
}

/// Runs `consumers` consumers of the client library for a while, from when all of them are connected.
async fn library(
    client: &Client,
    consumers: usize,
    prefetch: usize,
    strategy: &str,
    duration: Duration,
) -> anyhow::Result<Done> {
    let strategy = parsed(strategy)?;
    let set = |consumer: ConsumerBuilder| consumer.strategy(strategy.clone()).prefetch(prefetch);
    let mut crew = Crew::start(client, consumers, set);
    crew.all_connected().await?;
    let (began, before) = (Instant::now(), crew.completed());
    tokio::time::sleep(duration).await;
    let (seconds, chunks) = (began.elapsed().as_secs_f64(), crew.completed() - before);
    Ok(Done { chunks, fewest: crew.stop().await?, seconds })
}

async fn one_by_one(socket: ConsumeSocket, strategy: &str, end: Instant) -> anyhow::Result<u64> {
    let mut consumer = OneByOne::begin(socket, strategy).await?;
    while Instant::now() < end {
        consumer.exchange().await?;
    }
    consumer.end().await
}

/// A consumer that completes its chunk and gets the next one in one exchange.
pub(crate) struct OneByOne {
    sender: ConsumeSender,
    receiver: ConsumeReceiver,
    strategy: String,
    work: WorkOf,
    completed: u64,
}

impl OneByOne {
    /// Gets the first chunk.
    pub(crate) async fn begin(socket: ConsumeSocket, strategy: &str) -> anyhow::Result<OneByOne> {
        let (mut sender, mut receiver) = socket.split();
        sender.feed(&next(0, strategy)).await?;
        sender.flush().await?;
        let work = next_work(&mut receiver).await?;
        Ok(OneByOne { sender, receiver, strategy: strategy.into(), work, completed: 0 })
    }

    /// Completes the chunk, and waits for its acknowledgement and the next one.
    pub(crate) async fn exchange(&mut self) -> anyhow::Result<()> {
        self.sender.feed(&completion(self.completed, self.work.clone())).await?;
        self.sender.feed(&next(self.completed, &self.strategy)).await?;
        self.sender.flush().await?;
        match self.receiver.receive().await? {
            Some(ServerFrame::Settled { verdicts, .. }) if verdicts == [Verdict::Accepted] => {
                self.completed += 1;
            }
            other => bail!("a completion was answered with {other:?}"),
        }
        self.work = next_work(&mut self.receiver).await?;
        Ok(())
    }

    /// Completes the last chunk, so that nothing stays out; gives how many it did.
    pub(crate) async fn end(mut self) -> anyhow::Result<u64> {
        self.sender.feed(&completion(self.completed, self.work)).await?;
        self.sender.flush().await?;
        while !matches!(self.receiver.receive().await?, Some(ServerFrame::Settled { .. }) | None) {}
        Ok(self.completed + 1)
    }
}

fn next(request: u64, strategy: &str) -> ClientFrame {
    ClientFrame::Reserve { request, max: 1, strategy: strategy.into(), after_reports: true }
}

async fn next_work(receiver: &mut ConsumeReceiver) -> anyhow::Result<WorkOf> {
    match receiver.receive().await? {
        Some(ServerFrame::Work { mut work, .. }) if work.len() == 1 => Ok(work.remove(0)),
        other => bail!("a reserve was answered with {other:?}"),
    }
}

/// Reserves one chunk and waits for it.
pub(crate) async fn reserve_one(
    socket: &mut ConsumeSocket,
    request: u64,
    strategy: &str,
) -> anyhow::Result<WorkOf> {
    socket
        .send(&ClientFrame::Reserve { request, max: 1, strategy: strategy.into(), after_reports: false })
        .await?;
    match socket.receive().await? {
        Some(ServerFrame::Work { mut work, .. }) if work.len() == 1 => Ok(work.remove(0)),
        other => bail!("a reserve was answered with {other:?}"),
    }
}

/// Completes chunks and waits for the acknowledgement.
pub(crate) async fn complete(socket: &mut ConsumeSocket, request: u64, work: WorkOf) -> anyhow::Result<()> {
    socket.send(&completion(request, work)).await?;
    match socket.receive().await? {
        Some(ServerFrame::Settled { verdicts, .. }) if verdicts.iter().all(|it| *it == Verdict::Accepted) => {
            Ok(())
        }
        other => bail!("a completion was answered with {other:?}"),
    }
}

pub(crate) fn completion(request: u64, work: WorkOf) -> ClientFrame {
    let done = work
        .chunks
        .into_iter()
        .map(|chunk| DoneChunk { chunk, output: Output::Nothing, entries: None })
        .collect();
    ClientFrame::Complete { request, submission: work.submission, done }
}

/// Two reserves are always on the way; every chunk is reported as it comes, without waiting.
async fn pipelined(socket: ConsumeSocket, strategy: &str, depth: u32, end: Instant) -> anyhow::Result<u64> {
    let (mut sender, mut receiver) = socket.split();
    let mut request = 0;
    let mut next_request = || {
        request += 1;
        request
    };
    let reserve = |request| ClientFrame::Reserve {
        request,
        max: depth,
        strategy: strategy.into(),
        after_reports: false,
    };
    sender.feed(&reserve(next_request())).await?;
    sender.feed(&reserve(next_request())).await?;
    sender.flush().await?;
    let (mut reported, mut settled, mut accepted) = (0_u64, 0_u64, 0_u64);
    while Instant::now() < end || settled < reported {
        match receiver.receive().await?.context("the server closed")? {
            ServerFrame::Work { work, .. } => {
                if Instant::now() >= end {
                    continue;
                }
                for it in work {
                    reported += it.chunks.len() as u64;
                    sender.feed(&completion(next_request(), it)).await?;
                }
                sender.feed(&reserve(next_request())).await?;
                sender.flush().await?;
            }
            ServerFrame::Settled { verdicts, .. } => {
                settled += verdicts.len() as u64;
                accepted += verdicts.iter().filter(|it| **it == Verdict::Accepted).count() as u64;
            }
            ServerFrame::Heartbeat {} => {}
            other => bail!("the server sent {other:?}"),
        }
    }
    Ok(accepted)
}

/// Submits `submissions` submissions of `chunks` chunks each, many at a time.
pub(crate) async fn submit_many(client: &Client, submissions: u64, chunks: u64) -> anyhow::Result<()> {
    const AT_ONCE: usize = 128;
    let submits = stream::iter(0..submissions).map(|_| async move { submit(client, chunks).await });
    submits.buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) }).await
}

/// Submits one submission of `chunks` chunks.
pub(crate) async fn submit(client: &Client, chunks: u64) -> anyhow::Result<SubmissionId> {
    let request = SubmitRequest { chunks: Some(chunks), ..SubmitRequest::default() };
    Ok(client.submit(&request).await?)
}
