//! Opsqueue under the load of our own benchmark: a backlog, then consumers that reserve and complete.
//!
//! What runs
//! - Opsqueue 0.30.3 from crates.io: its own server binary as a separate process, its own Rust clients here.
//!   The library versions are those of the Cargo.lock Opsqueue ships, except `metrics` 0.23.0 -> 0.23.1, because
//!   0.23.0 is rejected by Rust 1.95. Both sides are built with cargo's stock release profile.
//! - The server has only its port and its database file given; its environment is empty, so nothing else departs
//!   from its defaults: INFO log (to a file here), 1 % of traces, metrics scan each 5 s, 256 readers, 1 writer.
//!   It always binds 0.0.0.0; the clients talk to it over 127.0.0.1.
//! - Durability, its default: SQLite in WAL mode with `synchronous=NORMAL`. A commit is written but not fsynced; only
//!   checkpoints are. A power cut may lose submissions already answered and completions already counted.
//! - Chunks are by reference (an object-store prefix), so the queue carries no payload. No object is read or written.
//!
//! What is measured
//! - `fill_seconds`: one producer, submissions of 1,000 chunks unless told otherwise, each sent after the one before was
//!   answered. `filled` is how many chunks that were: less than the backlog if `--fill-seconds` ran out.
//! - `memory_bytes`, `disk_bytes`: the server's resident memory, and the blocks of its folder, once it is filled.
//! - `reserve_us`, `cycle_us`: medians, by the consumers' clocks, of a reserve, and of a reserve with its completion sent.
//! - `chunks_per_second`: the growth of the server's own counter of completed chunks over the window, once the
//!   consumers have run for a second. Completing is fire-and-forget in Opsqueue, so what consumers have *sent* proves
//!   nothing. The counter also counts completions whose transaction failed; hence at the end it is compared with the
//!   `chunks_done` of all submissions, and a difference of more than 1 % fails the run.
//! - `server_cpu_seconds_per_chunk`: user and system time of the server process over the same window, per chunk.
//!
//! Modes
//! - `one_by_one`: each consumer reserves one chunk, completes it, and goes round.
//! - `batched`: each consumer reserves a hundred in one request and completes them one after the other; Opsqueue has no
//!   way to complete many at once.
//! - `fill`: no consumer; there is no `chunks_per_second` then.
//!
//! Exit codes: 0 measured, one JSON line on stdout; 1 anything else, the reason on stderr; 2 wrong flags.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use opsqueue::common::StrategicMetadataMap;
use opsqueue::common::chunk::{ChunkId, ChunkIndex};
use opsqueue::common::submission::{SubmissionId, SubmissionStatus};
use opsqueue::consumer::client::OuterClient as ConsumerClient;
use opsqueue::consumer::strategy::Strategy;
use opsqueue::producer::client::Client as ProducerClient;
use opsqueue::producer::common::{ChunkContents, InsertSubmission};
use opsqueue::tracing::CarrierMap;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const CHUNKS_PER_BATCH: usize = 100;
/// Connecting and the first reservations are not the steady state.
const WARM_UP: Duration = Duration::from_secs(1);
/// A server that has not answered by then has not found its port or its file.
const START_MAX: Duration = Duration::from_secs(30);
/// Completions still queued in the server when the consumers stop: 1,024 in its channel, the rest in sockets.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// A killed process is gone within milliseconds, unless the disk holds it.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Above this difference between counter and database the counter is not the truth.
const COUNTER_ERROR_MAX: f64 = 0.01;
/// `/proc/PID/stat` counts in USER_HZ, which Linux fixes at 100 for user space on all our targets.
const TICKS_PER_SECOND: f64 = 100.0;
/// The counter's name in the server's `/metrics`.
const COMPLETED_COUNTER: &str = "chunks_completed_count";

/// Measures Opsqueue 0.30.3 and prints one JSON line.
#[derive(Parser)]
struct Flags {
    /// How many consumers run at once, each with a connection of its own.
    #[arg(long, default_value_t = 16)]
    consumers: usize,
    /// How many chunks are submitted before the consumers start.
    #[arg(long, default_value_t = 1_000_000)]
    backlog: u64,
    /// How many chunks a submission has.
    #[arg(long, default_value_t = 1_000)]
    chunks_per_submission: u64,
    /// Filling ends after this, with whatever is in by then.
    #[arg(long, default_value_t = 600)]
    fill_seconds: u64,
    /// How long the measured window lasts.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How consumers reserve.
    #[arg(long, value_enum, default_value_t = Mode::OneByOne)]
    mode: Mode,
    /// In which order chunks are handed out.
    #[arg(long, value_enum, default_value_t = Order::Random)]
    strategy: Order,
    /// Folder for the database and the server's log, kept afterwards; without it a temporary one, removed at the end.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The server binary; the one built next to this program unless given.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Everything together may take this long, then the run fails.
    #[arg(long, default_value_t = 600)]
    timeout_seconds: u64,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Mode {
    OneByOne,
    Batched,
    Fill,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::OneByOne => "one_by_one",
            Mode::Batched => "batched",
            Mode::Fill => "fill",
        }
    }

    fn chunks_per_reserve(self) -> usize {
        match self {
            Mode::OneByOne | Mode::Fill => 1,
            Mode::Batched => CHUNKS_PER_BATCH,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    Random,
    Oldest,
}

impl From<Order> for Strategy {
    fn from(order: Order) -> Strategy {
        match order {
            Order::Random => Strategy::Random,
            Order::Oldest => Strategy::Oldest,
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    ensure!(
        flags.consumers > 0 && flags.backlog > 0 && flags.seconds > 0 && flags.chunks_per_submission > 0,
        "consumers, backlog, seconds and chunks per submission must be at least 1"
    );

    // The server dies with the dropped future, whichever arm wins.
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        line = timeout(Duration::from_secs(flags.timeout_seconds), measure(&flags)) => {
            println!("{}", line.context("the run took longer than --timeout-seconds")??);
            Ok(())
        }
        _ = terminate.recv() => bail!("terminated"),
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn measure(flags: &Flags) -> Result<serde_json::Value> {
    let temporary = tempfile::tempdir()?;
    let data = flags.data.as_deref().unwrap_or(temporary.path());
    let server = Server::start(flags.server.as_deref(), data).await?;

    let producer = ProducerClient::new(&server.address);
    let fill_started = Instant::now();
    let (submissions, filled) = fill(&producer, flags).await?;
    let fill_seconds = fill_started.elapsed().as_secs_f64();
    eprintln!("filled {filled} chunks in {fill_seconds:.1} s");
    let mut figures = serde_json::json!({
        "system": "opsqueue",
        "version": opsqueue::VERSION_CARGO_SEMVER,
        "mode": flags.mode.name(),
        "strategy": format!("{:?}", Strategy::from(flags.strategy)).to_lowercase(),
        "consumers": flags.consumers,
        "backlog": flags.backlog,
        "filled": filled,
        "fill_seconds": fill_seconds,
        "fill_cpu_seconds": server.cpu_seconds()?,
        "memory_bytes": server.memory_bytes()?,
        "disk_bytes": disk_bytes(data)?,
    });
    if matches!(flags.mode, Mode::Fill) {
        return Ok(figures);
    }

    let laps = Arc::new(Laps::default());
    let mut consumers = JoinSet::new();
    for _ in 0..flags.consumers {
        let client = ConsumerClient::new(&server.address);
        let (max, strategy) = (flags.mode.chunks_per_reserve(), flags.strategy.into());
        consumers.spawn(consume(client, max, strategy, laps.clone()));
    }
    let window = tokio::select! {
        window = server.watch(Duration::from_secs(flags.seconds)) => window?,
        ended = consumers.join_next() => match ended {
            Some(Ok(Err(fault))) => return Err(fault.context("a consumer ended before the window did")),
            other => bail!("a consumer ended before the window did: {other:?}"),
        },
    };
    consumers.shutdown().await;

    check_counter(&server, &producer, &submissions, filled).await?;

    ensure!(window.chunks > 0, "no chunk was completed in the window");
    eprintln!(
        "{} chunks in {:.2} s, {:.2} s of server CPU",
        window.chunks, window.seconds, window.cpu_seconds
    );
    figures["chunks_per_second"] = (window.chunks as f64 / window.seconds).into();
    figures["server_cpu_seconds_per_chunk"] = (window.cpu_seconds / window.chunks as f64).into();
    figures["reserve_us"] = median(&laps.reserve_us).into();
    figures["cycle_us"] = median(&laps.cycle_us).into();
    Ok(figures)
}

/// Submits the backlog, by reference, as far as there is time; says under which ids, and how many chunks are in.
async fn fill(producer: &ProducerClient, flags: &Flags) -> Result<(Vec<SubmissionId>, u64)> {
    let until = Instant::now() + Duration::from_secs(flags.fill_seconds);
    let mut submissions = Vec::new();
    let mut left = flags.backlog;
    while left > 0 && Instant::now() < until {
        let count = left.min(flags.chunks_per_submission);
        let submission = InsertSubmission {
            chunk_contents: ChunkContents::SeeObjectStorage {
                prefix: format!("bench/{}", submissions.len()),
                count: ChunkIndex::new(count)?,
            },
            metadata: None,
            strategic_metadata: StrategicMetadataMap::default(),
            chunk_size: None,
        };
        submissions.push(producer.insert_submission(&submission, &CarrierMap::default()).await?);
        left -= count;
    }
    Ok((submissions, flags.backlog - left))
}

/// How long consumers took, in microseconds.
#[derive(Default)]
struct Laps {
    reserve_us: Mutex<Vec<f64>>,
    cycle_us: Mutex<Vec<f64>>,
}

fn push(laps: &Mutex<Vec<f64>>, since: Instant) {
    laps.lock().expect("nobody panics with it").push(since.elapsed().as_secs_f64() * 1e6);
}

/// The middle; none of none.
fn median(laps: &Mutex<Vec<f64>>) -> Option<f64> {
    let mut laps = laps.lock().expect("nobody panics with it");
    laps.sort_by(f64::total_cmp);
    laps.get(laps.len() / 2).copied()
}

/// Blocks on disk of the files in a folder, in bytes.
fn disk_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// One consumer's life: reserve, complete each, go round. Ends only with a fault or from outside.
async fn consume(client: ConsumerClient, max: usize, strategy: Strategy, laps: Arc<Laps>) -> Result<()> {
    loop {
        let began = Instant::now();
        let reserved = client
            .reserve_chunks(max, strategy.clone())
            .await
            .map_err(|fault| anyhow::anyhow!("reserve: {fault:?}"))?;
        push(&laps.reserve_us, began);
        for (chunk, _submission) in reserved {
            client.complete_chunk(ChunkId::from((chunk.submission_id, chunk.chunk_index)), None).await?;
        }
        push(&laps.cycle_us, began);
    }
}

/// Waits until the server has worked off what it was sent, then compares its counter with its database.
async fn check_counter(
    server: &Server,
    producer: &ProducerClient,
    submissions: &[SubmissionId],
    backlog: u64,
) -> Result<()> {
    let counted = server.settled_count().await?;
    ensure!(counted < backlog, "the backlog ran dry: raise --backlog or lower --seconds");

    let mut stored = 0;
    for id in submissions {
        stored += match producer.get_submission(*id).await? {
            Some(SubmissionStatus::InProgress(it)) => u64::from(it.chunks_done),
            Some(SubmissionStatus::Completed(it)) => u64::from(it.chunks_total),
            Some(SubmissionStatus::Failed(..)) | None => bail!("submission {id} failed or vanished"),
        };
    }
    eprintln!("completed in all: {counted} by the server's counter, {stored} by its submissions");
    let error = counted.abs_diff(stored) as f64 / counted.max(1) as f64;
    ensure!(error <= COUNTER_ERROR_MAX, "the server's counter and its database differ: no figure");
    Ok(())
}

/// What the server did between two readings.
struct Window {
    seconds: f64,
    chunks: u64,
    cpu_seconds: f64,
}

/// The server process, killed when dropped: at the end, on a fault, at the timeout, on a signal.
struct Server {
    process: Child,
    pid: u32,
    address: String,
}

impl Server {
    async fn start(binary: Option<&Path>, data: &Path) -> Result<Server> {
        let beside = std::env::current_exe()?.with_file_name("opsqueue");
        let binary = binary.unwrap_or(&beside);
        ensure!(
            binary.is_file(),
            "no server at {}: cargo build --release -p opsqueue --bin opsqueue",
            binary.display()
        );
        fs::create_dir_all(data)?;
        let database = data.join("opsqueue.db");
        ensure!(!database.exists(), "{} holds an earlier run: give another folder", data.display());
        let log = File::create(data.join("server.log"))?;

        // Opsqueue cannot pick a free port itself, so we find one and leave it.
        let port = TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
        let process = Command::new(binary)
            .arg("--port")
            .arg(port.to_string())
            .arg("--database-filename")
            .arg(&database)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let pid = process.id().context("the server ended at once")?;
        let mut server = Server { process, pid, address: format!("127.0.0.1:{port}") };

        let deadline = Instant::now() + START_MAX;
        while server.get("ping").await.is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("the server ended with {status}: see {}", data.join("server.log").display());
            }
            ensure!(Instant::now() < deadline, "the server did not answer within {START_MAX:?}");
            sleep(Duration::from_millis(50)).await;
        }
        eprintln!(
            "opsqueue {} listens on {}, data in {}",
            server.get("version").await?,
            server.address,
            data.display()
        );
        Ok(server)
    }

    /// Lets the warm-up pass, then reads the server before and after the window.
    async fn watch(&self, window: Duration) -> Result<Window> {
        sleep(WARM_UP).await;
        let (started, chunks, cpu_seconds) =
            (Instant::now(), self.completed_count().await?, self.cpu_seconds()?);
        sleep(window).await;
        Ok(Window {
            seconds: started.elapsed().as_secs_f64(),
            chunks: self.completed_count().await? - chunks,
            cpu_seconds: self.cpu_seconds()? - cpu_seconds,
        })
    }

    /// The counter once it has stood still for a second.
    async fn settled_count(&self) -> Result<u64> {
        let deadline = Instant::now() + SETTLE_MAX;
        let mut before = self.completed_count().await?;
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = self.completed_count().await?;
            if now == before {
                return Ok(now);
            }
            ensure!(
                Instant::now() < deadline,
                "the server still completes {SETTLE_MAX:?} after the consumers left"
            );
            before = now;
        }
    }

    /// Chunks completed since the server's start; the counter is absent until the first.
    async fn completed_count(&self) -> Result<u64> {
        let metrics = self.get("metrics").await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(COMPLETED_COUNTER)?.strip_prefix(' '));
        Ok(line.map_or(Ok(0), |count| count.trim().parse())?)
    }

    /// User and system time of all the server's threads.
    fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        // The name, in brackets, may hold spaces: fields are counted from behind it, where the third of proc(5) comes first.
        let (_, fields) = stat.rsplit_once(')').context("unreadable /proc stat")?;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(14 - 3)
            .take(2)
            .map(str::parse::<u64>)
            .sum::<Result<u64, _>>()
            .context("unreadable /proc stat")?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    fn memory_bytes(&self) -> Result<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid))?;
        let line = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:"))
            .context("unreadable /proc smaps_rollup")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1_024)
    }

    async fn get(&self, path: &str) -> Result<String> {
        let answer = reqwest::get(format!("http://{}/{path}", self.address)).await?;
        Ok(answer.error_for_status()?.text().await?)
    }
}

impl Drop for Server {
    /// Waits as well, so that no folder is removed under a live server and no dead process is left behind.
    fn drop(&mut self) {
        let killed = self.process.start_kill();
        let deadline = Instant::now() + STOP_MAX;
        while killed.is_ok() && matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
