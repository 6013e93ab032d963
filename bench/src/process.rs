//! The server under measurement, in a process of its own, and what the system says of it.

use anyhow::{Context, bail, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use windlass_client::Client;

/// A server that is not ready by then never will be.
const READY_WITHIN: Duration = Duration::from_secs(600);

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) client: Client,
    url: String,
}

/// What a server has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) written_bytes: f64,
    pub(crate) log_syncs: f64,
    pub(crate) log_bytes: f64,
    pub(crate) completed: f64,
}

impl std::ops::Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            written_bytes: self.written_bytes - before.written_bytes,
            log_syncs: self.log_syncs - before.log_syncs,
            log_bytes: self.log_bytes - before.log_bytes,
            completed: self.completed - before.completed,
        }
    }
}

impl Server {
    /// Starts the binary on this data; returns it with the time it took to be ready.
    pub(crate) async fn start(binary: &Path, data: &Path) -> anyhow::Result<(Server, Duration)> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let url = format!("http://127.0.0.1:{port}");
        let began = Instant::now();
        let child = Command::new(binary)
            .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data"])
            .arg(data)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .env("WINDLASS_LOG", "warn")
            .spawn()
            .with_context(|| {
                format!("could not start {}; build it with `cargo build --release`", binary.display())
            })?;
        let mut server = Server { child, client: Client::new(&url)?, url };
        while !server.is_ready().await {
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended before it was ready: {status}");
            }
            if began.elapsed() > READY_WITHIN {
                bail!("the server was not ready within {} minutes", READY_WITHIN.as_secs() / 60);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok((server, began.elapsed()))
    }

    /// How long the server takes to say that it lives, on a thread of its own: the tasks of this process may be ten thousand busy
    /// clients, and a request among them would stand in their line, not in the server's.
    pub(crate) async fn health(&self) -> anyhow::Result<Duration> {
        let address = self.url.trim_start_matches("http://").to_owned();
        tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let took = began.elapsed();
            ensure!(answer.starts_with("HTTP/1.1 200"), "it is not healthy: {answer}");
            Ok(took)
        })
        .await?
    }

    /// Waits until the server has ended what it does in the background after a start or a flood.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        const LOOK_EVERY: Duration = Duration::from_millis(500);
        const LOOKS_MAX: usize = 120;
        let mut before = self.cpu_seconds()?;
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.cpu_seconds()?;
            // A tick of the system's clock is 10 ms: two of them are 4 % of a core.
            if now - before <= 0.02 {
                return Ok(());
            }
            before = now;
        }
        bail!("the server was still busy after {} s", LOOKS_MAX / 2)
    }

    async fn is_ready(&self) -> bool {
        let answer = reqwest::get(format!("{}/ready", self.url)).await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// What the server has used so far.
    pub(crate) async fn usage(&self) -> anyhow::Result<Usage> {
        let metrics = reqwest::get(format!("{}/metrics", self.url)).await?.text().await?;
        let metric = |name: &str| -> f64 {
            let line =
                metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(' '));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
        };
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.child.id()))?;
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).and_then(|it| it.parse().ok());
        Ok(Usage {
            cpu_seconds: self.cpu_seconds()?,
            written_bytes: written.unwrap_or(0.0),
            log_syncs: metric("windlass_log_syncs_total"),
            log_bytes: metric("windlass_log_bytes_total"),
            completed: metric("windlass_completed_chunks_total"),
        })
    }

    /// Files of commits that were read so far.
    pub(crate) async fn range_reads(&self) -> anyhow::Result<f64> {
        const NAME: &str = "windlass_range_reads_total ";
        let metrics = reqwest::get(format!("{}/metrics", self.url)).await?.text().await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(NAME));
        value.and_then(|value| value.parse().ok()).context("the server counts the files that it reads")
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The fields after the name in brackets; the 12th and 13th of them are user and system time in ticks.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = fields.get(11..13).context("stat has more fields")?;
        let ticks: f64 = ticks.iter().filter_map(|it| it.parse::<f64>().ok()).sum();
        Ok(ticks / ticks_per_second())
    }

    /// Resident memory in MiB.
    pub(crate) fn resident_mib(&self) -> anyhow::Result<f64> {
        self.memory_mib("VmRSS:")
    }

    /// The most that was ever resident, in MiB.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        self.memory_mib("VmHWM:")
    }

    fn memory_mib(&self, field: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let line = line.with_context(|| format!("a process has {field}"))?;
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib / 1_024.0)
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<f64> {
        Ok(self.resident_mib()? * 1_024.0 * 1_024.0)
    }

    /// Stops the server as an operator would.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the server stopped with {status}");
        Ok(())
    }
}

/// Ten thousand consumers need as many file handles at this end too.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `stop` there is nothing left to kill.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn ticks_per_second() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "there are a hundred ticks in a second")]
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    ticks
}
