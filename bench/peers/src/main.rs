//! Windlass beside what a user would pick instead: the same work through each, durability on, one table of ratios.
//!
//! `make bench-peers` installs the peers, builds, runs every section and writes docs/benchmarks-peers.md with its plots. A row
//! that misses its bar makes the run fail, after everything is written.
//!
//! Reading order: `system` (what a server and its consumers can do, and the load), one file for each system, `contender`
//! (a fresh server for each measurement), `gate` (a quiet
//! machine for each), `sections` (what is measured), `figures`, `report`, `plot`.
//!
//! Exit codes: 0 every bar holds; 1 one is missed, or something failed, said on stderr; 2 wrong flags.

mod beanstalkd;
mod contender;
mod figures;
mod gate;
mod nats;
mod opsqueue;
mod plot;
mod postgres;
mod process;
mod redis;
mod report;
mod sections;
mod system;
mod windlass;

use anyhow::{Context, bail};
use clap::Parser;
use contender::{Contender, Fresh};
use figures::{Figures, Named};
use gate::Gate;
use rustix::process::{Resource, Rlimit};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use system::{Kind, Mode, Work};
use tokio::signal::unix::{SignalKind, signal};

/// The clients of all systems share two cores with the servers: the less they cost, the more of the systems is seen.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The section of single tasks.
const LANES: &str = "lanes";
const ADD: Kind = Kind { work: Work::Tasks, mode: Mode::Add };

/// What to run, and where to write. Run it in the project's folder.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The release binary to measure.
    #[arg(long, default_value = "target/release/windlass")]
    windlass: PathBuf,
    /// Opsqueue's driver.
    #[arg(long, default_value = "bench/opsqueue/target/release/opsqueue-bench")]
    opsqueue: PathBuf,
    /// The NATS server, which Debian has only without `sync_interval: always`.
    #[arg(long, default_value = "bench/peers/.bin/bin/nats-server")]
    nats: PathBuf,
    /// Servers keep their data in folders made here.
    #[arg(long, default_value = "target/peers")]
    data: PathBuf,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// How often each is repeated; medians count.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Chunks that wait before consumers start; several times as many where they would not last.
    #[arg(long, default_value_t = 100_000)]
    backlog: u64,
    /// How many consumers.
    #[arg(long, value_delimiter = ',', default_value = "1,16,100,1000")]
    consumers: Vec<usize>,
    /// Chunks of a bulk submit.
    #[arg(long, default_value_t = 1_000_000)]
    bulk: u64,
    /// A bulk submit is broken off after so many seconds; what is in by then counts.
    #[arg(long, default_value_t = 20.0)]
    fill_seconds: f64,
    /// The backlogs at which memory, disk and the cost of a reserve are looked at.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
    backlogs: Vec<u64>,
    /// Wait up to so many seconds for a quiet machine, before each measurement.
    #[arg(long, default_value_t = 20)]
    patience: u64,
    /// Only sections whose name contains this: one by one, recommended, bulk, backlog, lanes.
    /// With `lanes` and all systems, that part of the page is written anew.
    #[arg(long, default_value = "")]
    only: String,
    /// Only loads whose description contains this, such as `add one by one, socket, 16`.
    #[arg(long, default_value = "")]
    load: String,
    /// Only systems whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Measure nothing; write the page and the plots from the figures of the last run.
    #[arg(long)]
    render: bool,
    /// Where the figures are kept.
    #[arg(long, default_value = "target/peers/figures.json")]
    figures: PathBuf,
    /// Where the page goes.
    #[arg(long, default_value = "docs/benchmarks-peers.md")]
    page: PathBuf,
    /// Where the plots go.
    #[arg(long, default_value = "docs/benchmarks")]
    plots: PathBuf,
}

// The same for every system: as many workers as the machine that the figures are from has cores.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut terminate = signal(SignalKind::terminate())?;
    // Servers are stopped when the dropped future drops them, whichever arm wins.
    tokio::select! {
        outcome = run(&options) => outcome,
        _ = terminate.recv() => bail!("terminated"),
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn run(options: &Options) -> anyhow::Result<()> {
    let is_whole = options.only.is_empty() && options.load.is_empty() && options.systems.is_empty();
    let figures = if options.render {
        let kept = fs::read(&options.figures).context("there are no figures of an earlier run")?;
        serde_json::from_slice(&kept)?
    } else {
        fs::create_dir_all(&options.data)?;
        allow_many_connections()?;
        let figures = measure(options).await?;
        fs::write(&options.figures, serde_json::to_vec_pretty(&figures)?)?;
        figures
    };
    let (chunks, tasks) = (report::table(&figures), report::tasks::table(&figures));
    let tables: Vec<&str> =
        [&chunks, &tasks].map(|it| it.text.as_str()).into_iter().filter(|it| !it.is_empty()).collect();
    print!("{}", tables.join("\n"));
    if is_whole {
        fs::create_dir_all(&options.plots)?;
        for (name, svg) in report::plots(&figures) {
            fs::write(options.plots.join(name), svg)?;
        }
        fs::write(&options.page, report::page(&figures))?;
        eprintln!("written to {} and {}", options.page.display(), options.plots.display());
    } else if options.only == LANES && options.load.is_empty() && options.systems.is_empty() {
        let page = fs::read_to_string(&options.page).context("there is no page to write a part of")?;
        fs::write(&options.page, report::tasks::written_into(&page, &figures))?;
        eprintln!("a part of {} is written anew", options.page.display());
    }
    let missed = [chunks.missed, tasks.missed].concat();
    anyhow::ensure!(missed.is_empty(), "these miss their bar: {}", missed.join("; "));
    Ok(())
}

async fn measure(options: &Options) -> anyhow::Result<Figures> {
    let is_wanted = |name: &str| name.contains(&options.only);
    let mut contenders = contenders(options);
    if options.only == LANES {
        // Nobody need build what has no part in it.
        contenders.retain(|it| !it.ways(ADD, sections::LANE_CLIENTS).is_empty());
    }
    let mut figures = Figures {
        machine: machine(),
        commit: commit(),
        seconds: options.seconds,
        repetitions: options.repetitions,
        backlog: options.backlog,
        bulk: options.bulk,
        fill_seconds: options.fill_seconds,
        ..Figures::default()
    };
    for it in &contenders {
        figures.systems.push(Named { name: it.name().into(), version: it.version()? });
    }
    let mut gate = Gate::new(Duration::from_secs(options.patience), &options.data);
    for mode in [Mode::OneByOne, Mode::Recommended] {
        if is_wanted(mode.name()) {
            let load = (Kind { work: Work::References, mode }, options.consumers.as_slice());
            sections::loads(options, &contenders, &mut gate, load, &mut figures).await?;
        }
    }
    if is_wanted("bulk") {
        sections::bulk(options, &contenders, &mut gate, &mut figures).await?;
    }
    if is_wanted("backlog") {
        sections::backlogs(options, &contenders, &mut gate, &mut figures).await?;
    }
    if is_wanted(LANES) {
        sections::lanes(options, &contenders, &mut gate, &mut figures).await?;
    }
    Ok(figures)
}

fn contenders(options: &Options) -> Vec<Box<dyn Contender>> {
    let root = options.data.clone();
    let all: Vec<Box<dyn Contender>> = vec![
        Box::new(Fresh {
            system: windlass::Windlass { binary: options.windlass.clone() },
            root: root.clone(),
        }),
        Box::new(opsqueue::Opsqueue { driver: options.opsqueue.clone(), root: root.clone() }),
        Box::new(Fresh { system: beanstalkd::Beanstalkd, root: root.clone() }),
        Box::new(Fresh { system: nats::Nats { binary: options.nats.clone() }, root: root.clone() }),
        Box::new(Fresh { system: redis::Redis, root: root.clone() }),
        Box::new(Fresh { system: postgres::Postgres, root }),
    ];
    let is_wanted = |name: &str| {
        options.systems.is_empty()
            || options.systems.iter().any(|it| name.to_lowercase().contains(&it.to_lowercase()))
    };
    all.into_iter().filter(|it| is_wanted(it.name())).collect()
}

fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, Linux {}", kernel.trim())
}

/// What the working tree is at; the page must say what was measured.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let said = described.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned()).unwrap_or_default();
    if said.is_empty() { "unknown".into() } else { format!("`{said}`") }
}

/// A thousand consumers have a connection each, and servers inherit the limit.
fn allow_many_connections() -> anyhow::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}
