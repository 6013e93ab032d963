//! What every system under measurement can do, and the load that is the same for all.

use crate::process::{self, Machine, Process};
use anyhow::Context;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::iter::StepBy;
use std::ops::RangeFrom;
use std::path::Path;
use std::time::{Duration, Instant};

/// A client that has said nothing for so long after the end of its time is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// What is in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Chunks that name an object each.
    #[default]
    References,
    /// Single tasks with their bytes in them.
    Tasks,
}

impl Work {
    /// What travels for the one with this number.
    pub(crate) fn payload(self, nth: u64) -> String {
        match self {
            Work::References => format!("{PREFIX}/{nth:026}"),
            Work::Tasks => task_payload(nth),
        }
    }

    /// Whether what a consumer got has the length of what was put in.
    pub(crate) fn check(self, payload_bytes: usize) -> anyhow::Result<()> {
        let whole = match self {
            Work::References => REFERENCE_BYTES,
            Work::Tasks => TASK_BYTES,
        };
        anyhow::ensure!(payload_bytes == whole, "{payload_bytes} of {whole} bytes came");
        Ok(())
    }
}

/// The name of an object, which travels instead of its bytes.
const REFERENCE_BYTES: usize = 40;
/// A small payload, such as an id with a few parameters.
pub(crate) const TASK_BYTES: usize = 100;

/// Digits without a pattern: a system that compresses has nothing from it.
fn task_payload(nth: u64) -> String {
    let mut payload = String::with_capacity(TASK_BYTES + 16);
    let mut state = nth;
    while payload.len() < TASK_BYTES {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        payload += &format!("{:016x}", mixed ^ (mixed >> 31));
    }
    payload.truncate(TASK_BYTES);
    payload
}

/// How clients go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Put one task in, wait until that is acknowledged, and again.
    Add,
    /// Take one, report it, wait until that is acknowledged, and again.
    OneByOne,
    /// As the system's documentation recommends for throughput.
    Recommended,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Add => "add one by one",
            Mode::OneByOne => "one by one",
            Mode::Recommended => "recommended",
        }
    }
}

/// A kind of load: what it is about, and how clients go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// Figures that say nothing of it are of references.
    #[serde(default)]
    pub(crate) work: Work,
    pub(crate) mode: Mode,
}

/// What the name of a load of tasks begins with.
pub(crate) const TASKS: &str = "tasks: ";

impl Kind {
    pub(crate) fn name(self) -> String {
        match (self.work, self.mode) {
            (Work::References, mode) => mode.name().into(),
            (Work::Tasks, Mode::Add) => format!("{TASKS}{}", Mode::Add.name()),
            (Work::Tasks, mode) => format!("{TASKS}reserve + complete, {}", mode.name()),
        }
    }
}

/// A system: how to start it. Its server is a process of its own.
#[async_trait]
pub(crate) trait System: Send + Sync {
    fn name(&self) -> &'static str;

    /// What the binary says of its own version.
    fn version(&self) -> anyhow::Result<String>;

    /// The ways of going about a load, where there is more than one; the best of them counts.
    fn ways(&self, kind: Kind, clients: usize) -> Vec<&'static str>;

    /// The ways of getting much work in; the best of them counts.
    fn ways_in(&self, work: Work) -> Vec<&'static str>;

    /// What to multiply a backlog by so that it lasts a measurement of this kind.
    fn lasting(&self, _kind: Kind) -> u64 {
        1
    }

    /// Starts the server, durable, on an empty folder or on what an earlier one left in it.
    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>>;

    /// Starts the server without syncs, if filling takes too long with them where filling is not what is measured.
    async fn start_unsynced(&self, _data: &Path) -> anyhow::Result<Option<Box<dyn Server>>> {
        Ok(None)
    }
}

/// A running server.
#[async_trait]
pub(crate) trait Server: Send + Sync {
    fn process(&self) -> &Process;

    /// Gets chunks in and waits until all are acknowledged; ends early at `until`. Says how many are in.
    async fn fill(&self, work: Work, way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64>;

    /// Connects clients, ready to go.
    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>>;
}

/// One client: a consumer, or a producer that adds.
#[async_trait]
pub(crate) trait Runner: Send {
    /// Takes some work and reports it, or puts a task in. False when there is no work left.
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool>;

    /// Waits for the acknowledgements that are still on their way.
    async fn finish(&mut self, _tally: &mut Tally) -> anyhow::Result<()> {
        Ok(())
    }
}

/// What a client did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Chunks whose completion, or tasks whose adding, is acknowledged.
    pub(crate) chunks: u64,
    /// How long each reserve took, where it was waited for.
    pub(crate) reserve_us: Vec<f64>,
    /// How long each reserve with its acknowledged completion took, or each add, where it was waited for.
    pub(crate) cycle_us: Vec<f64>,
}

impl Tally {
    pub(crate) fn reserved(&mut self, since: Instant) {
        self.reserve_us.push(since.elapsed().as_secs_f64() * 1e6);
    }

    pub(crate) fn completed(&mut self, since: Instant) {
        self.chunks += 1;
        self.cycle_us.push(since.elapsed().as_secs_f64() * 1e6);
    }
}

/// What a load did, and what it cost the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) chunks: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// What the client side used, where it is in this process.
    pub(crate) client_cpu_seconds: Option<f64>,
    /// Which part of the machine was busy with something else meanwhile.
    pub(crate) others: f64,
    /// Medians; none where nobody waited for the single chunk.
    pub(crate) reserve_us: Option<f64>,
    pub(crate) cycle_us: Option<f64>,
}

impl Done {
    pub(crate) fn rate(&self) -> f64 {
        self.chunks as f64 / self.seconds
    }
}

/// Runs clients for so long, or until there is no work left.
pub(crate) async fn run(
    process: &Process,
    clients: Vec<Box<dyn Runner>>,
    duration: Duration,
) -> anyhow::Result<Done> {
    let cpu_before = process.cpu_seconds()?;
    let (machine, own_before) = (Machine::read()?, process::own_cpu_seconds());
    let began = Instant::now();
    let end = began + duration;
    let running: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(tokio::time::timeout(duration + STUCK_AFTER, async move {
                let mut tally = Tally::default();
                while Instant::now() < end && client.round(&mut tally).await? {}
                client.finish(&mut tally).await?;
                anyhow::Ok((tally, Instant::now(), client))
            }))
        })
        .collect();
    let (mut chunks, mut last) = (0, began);
    let (mut reserves, mut cycles) = (Vec::new(), Vec::new());
    // Connections stay open until the server's processes are read: some systems have a process for each.
    let mut open = Vec::new();
    for client in running {
        let (tally, ended, client) = client.await?.context("a client is stuck")??;
        chunks += tally.chunks;
        last = last.max(ended);
        reserves.extend(tally.reserve_us);
        cycles.extend(tally.cycle_us);
        open.push(client);
    }
    anyhow::ensure!(chunks > 0, "nothing was acknowledged");
    let cpu_seconds = process.cpu_seconds()? - cpu_before;
    let client_cpu_seconds = process::own_cpu_seconds() - own_before;
    Ok(Done {
        chunks,
        seconds: (last - began).as_secs_f64(),
        cpu_seconds,
        client_cpu_seconds: Some(client_cpu_seconds),
        others: Machine::read()?.busy_with_others_since(machine, cpu_seconds + client_cpu_seconds),
        reserve_us: median(reserves),
        cycle_us: median(cycles),
    })
}

/// The middle of the values; none of none.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (lower, upper) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[lower], values[upper]))
}

/// The numbers of the tasks that one of several producers adds; together they add each once.
pub(crate) fn numbers(nth: usize, count: usize) -> Numbers {
    (nth as u64..).step_by(count)
}

pub(crate) type Numbers = StepBy<RangeFrom<u64>>;

/// One by one where the next chunk comes with the acknowledgement of the last: what is acknowledged and asked for goes in one
/// message, and the server does the one after the other.
pub(crate) const ONE_EXCHANGE: &str = "one exchange";
/// Where the objects would be.
pub(crate) const PREFIX: &str = "bench/objects";
