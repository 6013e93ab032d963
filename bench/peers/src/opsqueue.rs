//! Opsqueue: its own client library, in a driver of its own workspace, which starts the server and prints what it saw.

use crate::contender::{Contender, Filled, Folder, Standing, Task};
use crate::gate::Gate;
use crate::process::{self, Machine, Process};
use crate::system::{Done, Kind, Mode, Work};
use anyhow::{Context, bail};
use async_trait::async_trait;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Its strategies for any work.
const RANDOM: &str = "random";
const OLDEST: &str = "oldest";
/// It completes a few chunks a second when many consumers ask at once, and a window must see some of them.
const WINDOW_SECONDS_MIN: u64 = 10;
const WINDOW_SECONDS_MIN_OF_MANY: u64 = 30;
const ONE_SUBMISSION: &str = "one submission";
const MANY_SUBMISSIONS: &str = "submissions of 1,000";

pub(crate) struct Opsqueue {
    pub(crate) driver: PathBuf,
    pub(crate) root: PathBuf,
}

impl Opsqueue {
    async fn run(&self, flags: &[(&str, String)]) -> anyhow::Result<Printed> {
        let folder = Folder::new(&self.root)?;
        let mut command = Command::new(&self.driver);
        command.arg("--data").arg(folder.path().join("opsqueue")).args(["--timeout-seconds", "1800"]);
        command.env("RUST_BACKTRACE", "0");
        for (name, value) in flags {
            command.args([name, value.as_str()]);
        }
        let mut driver = Process::start(command, folder.path(), Signal::TERM)?;
        let printed = driver.ended().await?;
        let line =
            printed.lines().find(|it| it.starts_with('{')).context("the driver prints one line of JSON")?;
        Ok(Printed(serde_json::from_str(line)?))
    }
}

struct Printed(serde_json::Value);

impl Printed {
    fn figure(&self, name: &str) -> anyhow::Result<f64> {
        self.0[name].as_f64().with_context(|| format!("the driver prints {name}"))
    }
}

#[async_trait]
impl Contender for Opsqueue {
    fn name(&self) -> &'static str {
        "Opsqueue"
    }

    fn version(&self) -> anyhow::Result<String> {
        anyhow::ensure!(self.driver.exists(), "{} is not built: make bench-opsqueue", self.driver.display());
        Ok("Opsqueue 0.30.3".into())
    }

    /// It has submissions of chunks only.
    fn ways(&self, kind: Kind, _clients: usize) -> Vec<&'static str> {
        match kind.work {
            Work::References => vec![RANDOM, OLDEST],
            Work::Tasks => Vec::new(),
        }
    }

    fn ways_in(&self) -> Vec<&'static str> {
        vec![ONE_SUBMISSION, MANY_SUBMISSIONS]
    }

    fn lasting(&self, _kind: Kind) -> u64 {
        1
    }

    async fn load(&self, task: &Task, gate: &mut Gate) -> anyhow::Result<(Done, f64)> {
        let sync_us = gate.wait().await?;
        let (machine, ours) = (Machine::read()?, process::ended_children_cpu_seconds());
        let least = if task.clients < 100 { WINDOW_SECONDS_MIN } else { WINDOW_SECONDS_MIN_OF_MANY };
        let seconds = task.duration.as_secs().max(least);
        let mode = match task.kind.mode {
            Mode::Add => bail!("it has no single tasks"),
            Mode::OneByOne => "one_by_one",
            Mode::Recommended => "batched",
        };
        let printed = self
            .run(&[
                ("--mode", mode.into()),
                ("--strategy", task.way.into()),
                ("--consumers", task.clients.to_string()),
                ("--backlog", task.backlog.to_string()),
                ("--seconds", seconds.to_string()),
            ])
            .await?;
        let chunks = (printed.figure("chunks_per_second")? * seconds as f64).round();
        // The driver is not told apart from its server here: both have ended and are counted together.
        let ours = process::ended_children_cpu_seconds() - ours;
        let done = Done {
            chunks: chunks as u64,
            seconds: seconds as f64,
            cpu_seconds: printed.figure("server_cpu_seconds_per_chunk")? * chunks,
            client_cpu_seconds: None,
            others: Machine::read()?.busy_with_others_since(machine, ours),
            reserve_us: printed.figure("reserve_us").ok(),
            cycle_us: printed.figure("cycle_us").ok(),
        };
        Ok((done, sync_us))
    }

    async fn fill(&self, way: &str, chunks: u64, time: Duration) -> anyhow::Result<Filled> {
        let each = if way == ONE_SUBMISSION { chunks } else { 1_000 };
        let printed = self
            .run(&[
                ("--mode", "fill".into()),
                ("--backlog", chunks.to_string()),
                ("--chunks-per-submission", each.to_string()),
                ("--fill-seconds", time.as_secs().max(1).to_string()),
            ])
            .await?;
        Ok(Filled {
            chunks: printed.figure("filled")? as u64,
            seconds: printed.figure("fill_seconds")?,
            cpu_seconds: printed.figure("fill_cpu_seconds")?,
        })
    }

    async fn stand(&self, chunks: u64, lone: Duration, gate: &mut Gate) -> anyhow::Result<Standing> {
        gate.wait().await?;
        let printed = self
            .run(&[
                ("--mode", "one_by_one".into()),
                ("--consumers", "1".into()),
                ("--backlog", chunks.to_string()),
                ("--seconds", lone.as_secs().max(1).to_string()),
            ])
            .await?;
        Ok(Standing {
            memory_bytes: printed.figure("memory_bytes")?,
            disk_bytes: printed.figure("disk_bytes")?,
            reserve_us: printed.figure("reserve_us").ok(),
            cycle_us: printed.figure("cycle_us").ok(),
        })
    }
}
