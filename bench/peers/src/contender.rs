//! A system in the race: every measurement starts on an empty folder with a fresh server, and leaves nothing behind.

use crate::gate::Gate;
use crate::process;
use crate::system::{self, Done, Kind, Mode, Server, System, Work};
use anyhow::Context;
use async_trait::async_trait;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A load to put on a system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    pub(crate) way: &'static str,
    pub(crate) clients: usize,
    /// What waits before the clients start.
    pub(crate) backlog: u64,
    pub(crate) duration: Duration,
}

/// How getting chunks in went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// Fewer than asked for if the time ran out.
    pub(crate) chunks: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// What a system is like with chunks in it that nobody has worked on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) memory_bytes: f64,
    pub(crate) disk_bytes: f64,
    /// Medians of a lone consumer.
    pub(crate) reserve_us: Option<f64>,
    pub(crate) cycle_us: Option<f64>,
}

#[async_trait]
pub(crate) trait Contender: Send + Sync {
    fn name(&self) -> &'static str;

    fn version(&self) -> anyhow::Result<String>;

    /// The ways of going about a load, none if the system knows no such work; the best of them counts.
    fn ways(&self, kind: Kind, clients: usize) -> Vec<&'static str>;

    /// The ways of getting many chunks in; the best of them counts.
    fn ways_in(&self) -> Vec<&'static str>;

    /// What to multiply a backlog by so that it lasts a measurement of this kind.
    fn lasting(&self, kind: Kind) -> u64;

    /// Fills a fresh server and, when the machine is quiet, lets clients work on it. Gives also what a bare fsync took
    /// just before, in microseconds.
    async fn load(&self, task: &Task, gate: &mut Gate) -> anyhow::Result<(Done, f64)>;

    /// Gets chunks into a fresh server, as far as there is time.
    async fn fill(&self, way: &str, chunks: u64, time: Duration) -> anyhow::Result<Filled>;

    /// Fills a fresh server, looks at it, then lets a lone consumer work for a while.
    async fn stand(&self, chunks: u64, lone: Duration, gate: &mut Gate) -> anyhow::Result<Standing>;
}

/// A system whose server the harness starts and drives itself.
pub(crate) struct Fresh<S> {
    pub(crate) system: S,
    /// Folders for data are made in here.
    pub(crate) root: PathBuf,
}

impl<S: System> Fresh<S> {
    /// The way used where filling is not what is measured: the last one is the fastest that fills as users would.
    fn way_in(&self, work: Work) -> &'static str {
        self.system.ways_in(work).last().copied().expect("there is a way in")
    }

    /// A durable server with chunks in it, however they got there.
    async fn filled(&self, folder: &Folder, work: Work, chunks: u64) -> anyhow::Result<Box<dyn Server>> {
        let unsynced = self.system.start_unsynced(folder.path()).await?;
        let is_unsynced = unsynced.is_some();
        let mut server = match unsynced {
            Some(server) => server,
            None => self.system.start(folder.path()).await?,
        };
        let filled = server.fill(work, self.way_in(work), chunks, Instant::now() + FILL_MAX).await?;
        anyhow::ensure!(filled == chunks, "only {filled} of {chunks} chunks were in after {FILL_MAX:?}");
        // What filling left to be written should not fall into what is measured.
        rustix::fs::sync();
        if is_unsynced {
            drop(server);
            server = self.system.start(folder.path()).await?;
        }
        Ok(server)
    }
}

#[async_trait]
impl<S: System> Contender for Fresh<S> {
    fn name(&self) -> &'static str {
        self.system.name()
    }

    fn version(&self) -> anyhow::Result<String> {
        self.system.version()
    }

    fn ways(&self, kind: Kind, clients: usize) -> Vec<&'static str> {
        self.system.ways(kind, clients)
    }

    fn ways_in(&self) -> Vec<&'static str> {
        self.system.ways_in(Work::References)
    }

    fn lasting(&self, kind: Kind) -> u64 {
        self.system.lasting(kind)
    }

    async fn load(&self, task: &Task, gate: &mut Gate) -> anyhow::Result<(Done, f64)> {
        let folder = Folder::new(&self.root)?;
        let server = self.filled(&folder, task.kind.work, task.backlog).await?;
        let sync_us = gate.wait().await?;
        let clients = server.clients(task.kind, task.way, task.clients).await?;
        Ok((system::run(server.process(), clients, task.duration).await?, sync_us))
    }

    async fn fill(&self, way: &str, chunks: u64, time: Duration) -> anyhow::Result<Filled> {
        let folder = Folder::new(&self.root)?;
        let server = self.system.start(folder.path()).await?;
        let cpu_before = server.process().cpu_seconds()?;
        let began = Instant::now();
        let chunks = server.fill(Work::References, way, chunks, began + time).await?;
        let seconds = began.elapsed().as_secs_f64();
        Ok(Filled { chunks, seconds, cpu_seconds: server.process().cpu_seconds()? - cpu_before })
    }

    async fn stand(&self, chunks: u64, lone: Duration, gate: &mut Gate) -> anyhow::Result<Standing> {
        let folder = Folder::new(&self.root)?;
        let server = self.filled(&folder, Work::References, chunks).await?;
        let memory_bytes = server.process().memory_bytes()?;
        let disk_bytes = process::disk_bytes(folder.path())?;
        gate.wait().await?;
        let kind = Kind { work: Work::References, mode: Mode::OneByOne };
        let way = self.system.ways(kind, 1)[0];
        let consumers = server.clients(kind, way, 1).await?;
        let Done { reserve_us, cycle_us, .. } = system::run(server.process(), consumers, lone).await?;
        Ok(Standing { memory_bytes, disk_bytes, reserve_us, cycle_us })
    }
}

/// Filling what is then worked on may take so long.
const FILL_MAX: Duration = Duration::from_secs(900);

/// A folder for one server's data, gone when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(root: &Path) -> anyhow::Result<Folder> {
        static NTH: AtomicU64 = AtomicU64::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("data-{}-{nth}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        // Some servers change their own folder when they start.
        Ok(Folder(path.canonicalize()?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
        _ = fs::remove_file(self.0.with_extension("conf"));
    }
}
