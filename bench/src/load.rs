//! The load: consumers that only reserve and complete, one by one or pipelined, and a producer of many submissions.

use anyhow::{Context, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::time::{Duration, Instant};
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkOf};
use windlass_client::{
    Client, ConsumeReceiver, ConsumeSocket, Consumer, Output, SubmissionId, SubmitRequest,
};

/// How consumers go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Complete a chunk, wait for its acknowledgement, with which the next one comes, and again.
    OneByOne,
    /// The same in two exchanges: reserve one, wait for it; complete it, wait for the acknowledgement.
    TwoExchanges,
    /// Keep reserves of so many chunks on the way, and report without waiting.
    Pipelined(u32),
}

/// What a load did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) chunks: f64,
    pub(crate) seconds: f64,
}

impl Done {
    pub(crate) fn rate(self) -> f64 {
        self.chunks / self.seconds
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
    let mut sockets = Vec::new();
    for nth in 0..consumers {
        sockets.push(ConsumeSocket::connect(client, &format!("bench {nth}"), None).await?.0);
    }
    let began = Instant::now();
    let end = began + duration;
    let strategy = format!("\"{strategy}\"");
    let running: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let strategy = strategy.clone();
            tokio::spawn(async move {
                match mode {
                    Mode::OneByOne => one_by_one(socket, &strategy, end).await,
                    Mode::TwoExchanges => two_exchanges(socket, &strategy, end).await,
                    Mode::Pipelined(depth) => pipelined(socket, &strategy, depth, end).await,
                }
            })
        })
        .collect();
    let mut chunks = 0;
    for consumer in running {
        chunks += consumer.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds are far below 2^53")]
    Ok(Done { chunks: chunks as f64, seconds: began.elapsed().as_secs_f64() })
}

/// Runs `consumers` consumers of the client library, as it is given out and with its defaults, until a submission is done.
pub(crate) async fn consume_by_default(
    client: &Client,
    consumers: usize,
    submission: SubmissionId,
) -> anyhow::Result<Done> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let began = Instant::now();
    let running: Vec<_> = (0..consumers)
        .map(|_| {
            let (consumer, mut stopped) = (Consumer::builder(client.clone()), stopped.clone());
            tokio::spawn(async move {
                let until_stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
                consumer.run(async |_chunk| Ok(Output::Nothing), until_stopped).await
            })
        })
        .collect();
    let info = loop {
        let info = client.wait(submission, Some(Duration::from_secs(60))).await?;
        if info.chunks.done == info.chunks.total {
            break info;
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    stop.send_replace(true);
    for consumer in running {
        consumer.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a million is far below 2^53")]
    Ok(Done { chunks: info.chunks.done as f64, seconds })
}

async fn one_by_one(socket: ConsumeSocket, strategy: &str, end: Instant) -> anyhow::Result<u64> {
    let (mut sender, mut receiver) = socket.split();
    let reserve =
        |request| ClientFrame::Reserve { request, max: 1, strategy: strategy.into(), after_reports: true };
    sender.feed(&reserve(0)).await?;
    sender.flush().await?;
    let mut completed = 0;
    let mut work = next_work(&mut receiver).await?;
    while Instant::now() < end {
        sender.feed(&completion(completed, work)).await?;
        sender.feed(&reserve(completed)).await?;
        sender.flush().await?;
        match receiver.receive().await? {
            Some(ServerFrame::Settled { verdicts, .. }) if verdicts == [Verdict::Accepted] => completed += 1,
            other => bail!("a completion was answered with {other:?}"),
        }
        work = next_work(&mut receiver).await?;
    }
    Ok(completed)
}

async fn next_work(receiver: &mut ConsumeReceiver) -> anyhow::Result<WorkOf> {
    match receiver.receive().await? {
        Some(ServerFrame::Work { mut work, .. }) if work.len() == 1 => Ok(work.remove(0)),
        other => bail!("a reserve was answered with {other:?}"),
    }
}

async fn two_exchanges(mut socket: ConsumeSocket, strategy: &str, end: Instant) -> anyhow::Result<u64> {
    let mut completed = 0;
    while Instant::now() < end {
        let work = reserve_one(&mut socket, completed, strategy).await?;
        complete(&mut socket, completed, work).await?;
        completed += 1;
    }
    Ok(completed)
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

fn completion(request: u64, work: WorkOf) -> ClientFrame {
    let done = work.chunks.into_iter().map(|chunk| DoneChunk { chunk, output: Output::Nothing }).collect();
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
    submit_each(client, 0..submissions, |_| SubmitRequest {
        chunks: Some(chunks),
        ..SubmitRequest::default()
    })
    .await
    .map(drop)
}

/// Submits what `request` makes of each number, many at a time; gives the ids in the order of the answers.
pub(crate) async fn submit_each(
    client: &Client,
    numbers: Range<u64>,
    request: impl Fn(u64) -> SubmitRequest,
) -> anyhow::Result<Vec<SubmissionId>> {
    const AT_ONCE: usize = 128;
    let submits = stream::iter(numbers).map(|number| {
        let request = request(number);
        async move { client.submit(&request).await }
    });
    Ok(submits.buffer_unordered(AT_ONCE).try_collect().await?)
}

/// Submits one submission of `chunks` chunks.
pub(crate) async fn submit(client: &Client, chunks: u64) -> anyhow::Result<SubmissionId> {
    let request = SubmitRequest { chunks: Some(chunks), ..SubmitRequest::default() };
    Ok(client.submit(&request).await?)
}
