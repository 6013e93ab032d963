//! Branches: what staging adds to a run, what a commit takes, and what reading costs however large a branch is.

use super::{data_folder, median};
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::{Options, Set};
use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use windlass_client::branches::{AtQuery, CommitBody, EntriesQuery, OutputInfo};
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkOf};
use windlass_client::{
    Chunk, Client, ConsumeSocket, Consumer, Digest, Failure, Output, PutEntry, SubmissionId, SubmissionInfo,
    SubmitRequest,
};
use windlass_core::branches::outputs::OutputEntry;

const BRANCH: &str = "bench";
/// Outputs of a chunk where real objects are written.
const OUTPUTS: u32 = 10;
/// Outputs of a chunk where only entries are.
const ENTRIES_PER_CHUNK: u64 = 1_000;
const CONCURRENCY: usize = 16;
const PUTTERS: usize = 4;
const COMMITTERS: usize = 50;
const COMMITS_PUT_DURING: usize = 10;

struct Scale {
    chunks: u64,
    rounds: usize,
    entries: u64,
    changed: u64,
}

const fn scale(set: Set) -> Scale {
    match set {
        Set::Branches => Scale { chunks: 4_000, rounds: 3, entries: 10_000_000, changed: 1_000_000 },
        Set::Usual | Set::Strategies | Set::TenMillion | Set::Lanes => {
            Scale { chunks: 400, rounds: 3, entries: 1_000_000, changed: 100_000 }
        }
    }
}

pub(crate) async fn branches(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let scale = scale(options.set);
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    server.client.create_branch(BRANCH, None).await?;
    let mut figures = staging(&server, &scale).await?;
    figures.push(puts(&server, &scale).await?.told());
    figures.extend(committers(&server, options.seconds).await?);
    server.stop()?;

    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    server.client.create_branch(BRANCH, None).await?;
    figures.extend(large(&server, data.path(), &scale).await?);
    server.stop()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    figures.extend(reading(&server, &scale).await?);
    server.stop()?;
    Ok(figures)
}

fn output(mode: &str) -> OutputInfo {
    OutputInfo { branch: BRANCH.into(), mode: mode.into(), ..OutputInfo::default() }
}

/// The same work with and without a branch for its outputs, alternately.
async fn staging(server: &Server, scale: &Scale) -> anyhow::Result<Vec<Figure>> {
    let mut seconds = [Vec::new(), Vec::new()];
    let mut commits_s = Vec::new();
    for _ in 0..scale.rounds {
        for (is_staged, seconds) in [false, true].into_iter().zip(&mut seconds) {
            let request = SubmitRequest {
                chunks: Some(scale.chunks),
                output: is_staged.then(|| output("append")),
                ..SubmitRequest::default()
            };
            let began = Instant::now();
            let id = server.client.submit(&request).await?;
            let info = work_off(&server.client, id).await?;
            seconds.push(began.elapsed().as_secs_f64());
            if is_staged {
                commits_s.push(commit_seconds(&info)?);
            }
        }
    }
    let [without, with] = seconds.map(median);
    let outputs = scale.chunks * u64::from(OUTPUTS);
    let commit_s = median(commits_s);
    Ok(vec![
        Figure {
            what: format!(
                "branches: {} chunks with {OUTPUTS} outputs each, staged : only stored",
                scale.chunks
            ),
            value: with / without,
            unit: "×",
            bar: Bar::AtMost(1.1),
            behind: format!("{with:.2} s : {without:.2} s (medians of {} rounds, alternately)", scale.rounds),
        }
        .told(),
        Figure {
            what: format!("branches: commit of {outputs} outputs, from the last chunk to visible"),
            value: commit_s,
            unit: "s",
            bar: Bar::AtMost(2.0),
            behind: format!("median of {} commits", scale.rounds),
        }
        .told(),
    ])
}

/// Consumers of the library that write ten objects for each chunk, and publish them if there is a branch for them.
async fn work_off(client: &Client, id: SubmissionId) -> anyhow::Result<SubmissionInfo> {
    let consumer = Consumer::builder(client.clone()).concurrency(CONCURRENCY);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let storing = client.clone();
    let working = tokio::spawn(
        consumer.run(move |chunk| write_outputs(storing.clone(), chunk), async move { drop(stopped.await) }),
    );
    let info = over(client, id).await?;
    drop(stop);
    working.await??;
    Ok(info)
}

async fn write_outputs(client: Client, chunk: Chunk) -> Result<Output, Failure> {
    for object in 0..OUTPUTS {
        let bytes = format!("output {object} of chunk {} of {}", chunk.index(), chunk.submission());
        match chunk.output_branch() {
            Some(_) => chunk.publish(format!("outputs/{}/{object}", chunk.index()), bytes).await?,
            None => client.put_object(&format!("{}/{object}", chunk.output_key()), bytes.into()).await?,
        }
    }
    Ok(Output::Nothing)
}

async fn over(client: &Client, id: SubmissionId) -> anyhow::Result<SubmissionInfo> {
    loop {
        let info = client.wait(id, Some(Duration::from_secs(60))).await?;
        if info.finished_at.is_some() {
            return Ok(info);
        }
    }
}

/// From the moment when the commit was announced, with the last chunk, to the one when it was performed.
fn commit_seconds(info: &SubmissionInfo) -> anyhow::Result<f64> {
    let commit =
        info.commit.as_ref().and_then(|it| it.commit.as_ref()).context("the outputs are committed")?;
    let ended = info.finished_at.as_deref().context("the submission is over")?;
    let parse = |text: &str| humantime::parse_rfc3339(text);
    Ok(parse(ended)?.duration_since(parse(&commit.at)?)?.as_secs_f64())
}

/// One who puts and commits again and again, and fifty who do.
async fn committers(server: &Server, seconds: u64) -> anyhow::Result<Vec<Figure>> {
    let mut rates = Vec::new();
    for committers in [1, COMMITTERS] {
        let began = Instant::now();
        let end = began + Duration::from_secs(seconds);
        let all = (0..committers).map(|nth| commit_until(server.client.clone(), nth, end));
        let commits: u64 = try_join_all(all).await?.into_iter().sum();
        rates.push(commits as f64 / began.elapsed().as_secs_f64());
    }
    Ok(vec![
        Figure {
            what: format!("branches: commits of {COMMITTERS} committers of one branch : of one"),
            value: rates[1] / rates[0],
            unit: "×",
            bar: Bar::AtLeast(0.5),
            behind: format!(
                "{:.0} : {:.0} commits/s, each after a put of its own; none is refused",
                rates[1], rates[0]
            ),
        }
        .told(),
    ])
}

async fn commit_until(client: Client, nth: usize, end: Instant) -> anyhow::Result<u64> {
    let mut commits = 0;
    while Instant::now() < end {
        let path = format!("committers/{nth}");
        client.put_entry(BRANCH, &path, format!("{nth} {commits}").into(), &PutEntry::default()).await?;
        let outcome =
            client.commit(BRANCH, &CommitBody { wait_ms: Some(60_000), ..CommitBody::default() }).await?;
        outcome.commit.context("the commit is there")?;
        commits += 1;
    }
    Ok(commits)
}

/// A large branch, and a commit on top of it while others put.
async fn large(server: &Server, data: &Path, scale: &Scale) -> anyhow::Result<Vec<Figure>> {
    let began = Instant::now();
    let (filling, memory) = fill(server, 0..scale.entries, true).await?;
    let info = over(&server.client, filling).await?;
    let filled_s = began.elapsed().as_secs_f64();
    let commit_s = commit_seconds(&info)?;
    let ranges = files_in(&data.join("objects/ranges"))?;
    let mut figures = memory;
    figures.push(
        Figure {
            what: format!("branches: {} entries staged and committed", scale.entries),
            value: scale.entries as f64 / filled_s,
            unit: "entries/s",
            bar: Bar::None,
            behind: format!("in {filled_s:.1} s, of which the commit {commit_s:.1} s; {ranges} ranges"),
        }
        .told(),
    );

    // A tenth of the paths, side by side, lead to something else.
    let begin = scale.entries / 2;
    let (id, _) = fill(server, begin..begin + scale.changed, false).await?;
    let info = over(&server.client, id).await?;
    let written = files_in(&data.join("objects/ranges"))? - ranges;
    let commit_s = commit_seconds(&info)?;
    figures.push(
        Figure {
            what: format!(
                "branches: ranges written by a commit of {} on {} entries",
                scale.changed, scale.entries
            ),
            value: written as f64 / ranges as f64,
            unit: "of all",
            bar: Bar::AtMost(1.5 * scale.changed as f64 / scale.entries as f64),
            behind: format!("{written} of {ranges} ranges, in {commit_s:.2} s"),
        }
        .told(),
    );
    Ok(figures)
}

/// Puts while commits of as many outputs as the run above has are made, and puts while nothing else goes on.
async fn puts(server: &Server, scale: &Scale) -> anyhow::Result<Figure> {
    let outputs = scale.chunks * u64::from(OUTPUTS);
    server.settle().await?;
    let calm =
        put_latencies(&server.client, async { tokio::time::sleep(Duration::from_secs(5)).await }).await?;
    let mut busy_ms = Vec::new();
    for _ in 0..COMMITS_PUT_DURING {
        let (id, _) = fill(server, 0..outputs, false).await?;
        let client = server.client.clone();
        busy_ms.extend(put_latencies(&server.client, async move { drop(over(&client, id).await) }).await?);
        server.settle().await?;
    }
    let [calm_p99_ms, busy_p99_ms] = [hundredth(&calm, 99), hundredth(&busy_ms, 99)];
    Ok(Figure {
        what: format!("branches: 99th percentile of a put during a commit of {outputs} outputs : without"),
        value: busy_p99_ms / calm_p99_ms,
        unit: "×",
        bar: Bar::AtMost(2.0),
        behind: format!(
            "{busy_p99_ms:.1} ms (median {:.1} ms) of {} puts during {COMMITS_PUT_DURING} commits : {calm_p99_ms:.1} ms ({:.1} ms) of {} puts, {PUTTERS} clients",
            hundredth(&busy_ms, 50),
            busy_ms.len(),
            hundredth(&calm, 50),
            calm.len()
        ),
    })
}

/// So many hundredths of the values are smaller.
fn hundredth(values: &[f64], hundredth: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() * hundredth / 100]
}

fn files_in(folder: &Path) -> anyhow::Result<u64> {
    Ok(std::fs::read_dir(folder)?.count() as u64)
}

/// Submits and completes chunks whose outputs are entries alone: what is measured is the branch, not the disk.
async fn fill(
    server: &Server,
    entries: std::ops::Range<u64>,
    is_measured: bool,
) -> anyhow::Result<(SubmissionId, Vec<Figure>)> {
    let chunks = (entries.end - entries.start) / ENTRIES_PER_CHUNK;
    let request =
        SubmitRequest { chunks: Some(chunks), output: Some(output("append")), ..SubmitRequest::default() };
    server.settle().await?;
    let before = server.resident_bytes()?;
    let id = server.client.submit(&request).await?;
    let mut socket = ConsumeSocket::connect(&server.client, "filler", None).await?.0;
    let mut figures = Vec::new();
    let mut next_request = 0;
    for nth in 0..chunks {
        // The last chunk waits until the memory was looked at: after it, the commit begins.
        if nth + 1 == chunks && is_measured {
            server.settle().await?;
            let each = (server.resident_bytes()? - before) / (entries.end - entries.start) as f64;
            figures.push(
                Figure {
                    what: format!(
                        "branches: memory for each of {} staged entries",
                        entries.end - entries.start
                    ),
                    value: each,
                    unit: "bytes",
                    bar: Bar::AtMost(250.0),
                    behind: format!("{:.0} MiB in all", server.resident_mib()?),
                }
                .told(),
            );
        }
        next_request += 1;
        socket.send(&reserve(next_request)).await?;
        let work = received_work(&mut socket).await?;
        next_request += 1;
        socket.send(&complete(next_request, &work, &entries)).await?;
        match socket.receive().await?.context("the server answers")? {
            ServerFrame::Settled { verdicts, .. } if verdicts == [Verdict::Accepted] => {}
            other => bail!("a completion was answered with {other:?}"),
        }
    }
    Ok((id, figures))
}

fn reserve(request: u64) -> ClientFrame {
    ClientFrame::Reserve { request, max: 1, strategy: "\"OldestFirst\"".into(), after_reports: false }
}

async fn received_work(socket: &mut ConsumeSocket) -> anyhow::Result<WorkOf> {
    match socket.receive().await?.context("the server answers")? {
        ServerFrame::Work { mut work, .. } => work.pop().context("a reserve is answered with work"),
        other => bail!("a reserve was answered with {other:?}"),
    }
}

fn complete(request: u64, work: &WorkOf, entries: &std::ops::Range<u64>) -> ClientFrame {
    let chunk = work.chunks[0];
    let first = entries.start + chunk.chunk.0 * ENTRIES_PER_CHUNK;
    let entries = (first..first + ENTRIES_PER_CHUNK).zip(0..).map(|(number, object)| OutputEntry {
        path: format!("catalogue/{:03}/{number:010}.json", number / 100_000),
        object,
        size: 100 + number % 1_000,
        sha256: digest(number, work.submission),
        content_type: "application/json".into(),
        metadata: Default::default(),
    });
    let done = vec![DoneChunk { chunk, output: Output::Nothing, entries: Some(entries.collect()) }];
    ClientFrame::Complete { request, submission: work.submission, done }
}

/// Bytes that look like a digest: they do not compress.
fn digest(number: u64, submission: SubmissionId) -> Digest {
    let mut bytes = [0; 32];
    let mut state = number ^ submission.as_u64().rotate_left(32);
    for part in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
    }
    Digest::new(bytes)
}

/// How long puts take while something goes on.
async fn put_latencies(client: &Client, meanwhile: impl Future<Output = ()>) -> anyhow::Result<Vec<f64>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let putting: Vec<_> = (0..PUTTERS)
        .map(|nth| {
            let (client, is_over) = (client.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut times_ms = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let path = format!("puts/{nth}/{}", times_ms.len());
                    client.put_entry(BRANCH, &path, "some bytes".into(), &PutEntry::default()).await?;
                    times_ms.push(began.elapsed().as_secs_f64() * 1e3);
                }
                anyhow::Ok(times_ms)
            })
        })
        .collect();
    meanwhile.await;
    is_over.store(true, Ordering::Relaxed);
    let mut times_ms = Vec::new();
    for putter in putting {
        times_ms.extend(putter.await??);
    }
    Ok(times_ms)
}

/// Reading a large branch after a restart: nothing of it is in memory.
async fn reading(server: &Server, scale: &Scale) -> anyhow::Result<Vec<Figure>> {
    let head = |number: u64| format!("catalogue/{:03}/{number:010}.json", number / 100_000);
    let look_up = async |number: u64| {
        let path = head(number);
        let query = EntriesQuery { prefix: path, limit: Some(1), ..EntriesQuery::default() };
        let page = server.client.entries(BRANCH, &query).await?;
        anyhow::ensure!(page.items.len() == 1, "the entry is there");
        anyhow::Ok(())
    };
    let mut reads = vec![server.range_reads().await?];
    for number in [scale.entries / 3, scale.entries / 3 + 1] {
        look_up(number).await?;
        reads.push(server.range_reads().await?);
    }
    let (cold, warm) = (reads[1] - reads[0], reads[2] - reads[1]);
    let (mut listed, mut query) = (0, EntriesQuery { limit: Some(1_000), ..EntriesQuery::default() });
    let (mut after_a_tenth, mut most) = (f64::MAX, 0.0_f64);
    let began = Instant::now();
    loop {
        let page = server.client.entries(BRANCH, &query).await?;
        listed += page.items.len() as u64;
        query.after = page.next;
        let now = server.resident_mib()?;
        if listed <= scale.entries / 10 {
            after_a_tenth = now;
        }
        most = most.max(now);
        if query.after.is_none() {
            break;
        }
    }
    let rate = listed as f64 / began.elapsed().as_secs_f64();
    let missing = server.client.get_entry(BRANCH, "nothing/here", &AtQuery::default()).await;
    anyhow::ensure!(missing.is_err(), "a path that leads nowhere is an error");
    Ok(vec![
        Figure {
            what: format!("branches: files read for one path of {} entries, after a restart", scale.entries),
            value: cold,
            unit: "files",
            bar: Bar::AtMost(2.0),
            behind: format!("and {warm:.0} for the one beside it"),
        }
        .told(),
        Figure {
            what: format!("branches: memory while all {listed} entries are listed : after a tenth of them"),
            value: most / after_a_tenth,
            unit: "×",
            bar: Bar::AtMost(1.25),
            behind: format!(
                "{most:.0} MiB at most : {after_a_tenth:.0} MiB; {rate:.0} entries/s in pages of 1,000"
            ),
        }
        .told(),
    ])
}
