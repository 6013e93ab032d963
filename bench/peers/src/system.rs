//! What every system under measurement can do, and the load that is the same for all.

use crate::process::{self, Machine, Process};
use anyhow::Context;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// A consumer that has said nothing for so long after the end of its time is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// How consumers go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Take one, report it, wait until that is acknowledged, and again.
    OneByOne,
    /// As the system's documentation recommends for throughput.
    Recommended,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::OneByOne => "one by one",
            Mode::Recommended => "recommended",
        }
    }
}

/// A system: how to start it. Its server is a process of its own.
#[async_trait]
pub(crate) trait System: Send + Sync {
    fn name(&self) -> &'static str;

    /// What the binary says of its own version.
    fn version(&self) -> anyhow::Result<String>;

    /// The ways of consuming in a mode, where there is more than one; the best of them counts.
    fn ways(&self, mode: Mode, consumers: usize) -> Vec<&'static str>;

    /// The ways of getting many chunks in; the best of them counts.
    fn ways_in(&self) -> Vec<&'static str>;

    /// What to multiply a backlog by so that it lasts a measurement in this mode.
    fn lasting(&self, _mode: Mode) -> u64 {
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
    async fn fill(&self, way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64>;

    /// Connects consumers, ready to go.
    async fn consumers(&self, mode: Mode, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Consumer>>>;
}

/// One consumer.
#[async_trait]
pub(crate) trait Consumer: Send {
    /// Takes some work and reports it. False when there is none left.
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool>;

    /// Waits for the acknowledgements that are still on their way.
    async fn finish(&mut self, _tally: &mut Tally) -> anyhow::Result<()> {
        Ok(())
    }
}

/// What a consumer did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Chunks whose completion is acknowledged.
    pub(crate) chunks: u64,
    /// How long each reserve took, where it was waited for.
    pub(crate) reserve_us: Vec<f64>,
    /// How long each reserve with its acknowledged completion took, where it was waited for.
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

/// Runs consumers for so long, or until there is no work left.
pub(crate) async fn consume(
    process: &Process,
    consumers: Vec<Box<dyn Consumer>>,
    duration: Duration,
) -> anyhow::Result<Done> {
    let cpu_before = process.cpu_seconds()?;
    let (machine, own_before) = (Machine::read()?, process::own_cpu_seconds());
    let began = Instant::now();
    let end = began + duration;
    let running: Vec<_> = consumers
        .into_iter()
        .map(|mut consumer| {
            tokio::spawn(tokio::time::timeout(duration + STUCK_AFTER, async move {
                let mut tally = Tally::default();
                while Instant::now() < end && consumer.round(&mut tally).await? {}
                consumer.finish(&mut tally).await?;
                anyhow::Ok((tally, Instant::now(), consumer))
            }))
        })
        .collect();
    let (mut chunks, mut last) = (0, began);
    let (mut reserves, mut cycles) = (Vec::new(), Vec::new());
    // Connections stay open until the server's processes are read: some systems have a process for each.
    let mut open = Vec::new();
    for consumer in running {
        let (tally, ended, consumer) = consumer.await?.context("a consumer is stuck")??;
        chunks += tally.chunks;
        last = last.max(ended);
        reserves.extend(tally.reserve_us);
        cycles.extend(tally.cycle_us);
        open.push(consumer);
    }
    anyhow::ensure!(chunks > 0, "no chunk was completed");
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

/// The name of the object that chunk `nth` is about: what travels instead of its bytes, 40 bytes long.
pub(crate) fn key(nth: u64) -> String {
    format!("{PREFIX}/{nth:026}")
}

/// One by one where the next chunk comes with the acknowledgement of the last: what is acknowledged and asked for goes in one
/// message, and the server does the one after the other.
pub(crate) const ONE_EXCHANGE: &str = "one exchange";
/// Where the objects would be.
pub(crate) const PREFIX: &str = "bench/objects";
