//! A server in a process of its own: started, read, stopped, also when the harness fails.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that has not answered by then will not; reading a large file of its own may take a while.
const START_MAX: Duration = Duration::from_secs(120);
/// A server that does not end when it is asked to is killed after this.
const STOP_MAX: Duration = Duration::from_secs(60);

/// A running server's process.
pub(crate) struct Process {
    child: Child,
    /// What asks it to end in an orderly way.
    stop: Signal,
    log: PathBuf,
}

impl Process {
    /// Starts it, with what it prints in a file beside its data.
    pub(crate) fn start(mut command: Command, data: &Path, stop: Signal) -> anyhow::Result<Process> {
        let log = data.with_extension("log");
        let file = fs::File::create(&log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("could not start {name}; {INSTALL}"))?;
        Ok(Process { child, stop, log })
    }

    /// Waits until the server answers.
    pub(crate) async fn ready<T, F>(&mut self, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        let began = Instant::now();
        loop {
            let error = match ask().await {
                Ok(it) => return Ok(it),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}: {}", fs::read_to_string(&self.log)?);
            }
            if began.elapsed() > START_MAX {
                return Err(error.context("the server does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it ends by itself, and gives what it printed.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<String> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let printed = fs::read_to_string(&self.log)?;
        anyhow::ensure!(
            status.success(),
            "{}",
            printed.trim().lines().last().unwrap_or("it printed nothing")
        );
        Ok(printed)
    }

    /// User and system time since the start, of all its processes.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let pid = self.child.id();
        let own = Stat::read(pid).context("the server has ended")?;
        // One may end between the listing and the reading; then its parent counts it next time.
        let children: f64 = children(pid)?.into_iter().filter_map(Stat::read).map(|it| it.ticks).sum();
        Ok((own.ticks + own.ticks_of_ended_children + children) / ticks_per_second())
    }

    /// Resident memory of all its processes, with what they share counted once.
    pub(crate) fn memory_bytes(&self) -> anyhow::Result<f64> {
        let pid = self.child.id();
        Ok(memory_bytes(pid) + children(pid)?.into_iter().map(memory_bytes).sum::<f64>())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended and was waited for has given its number away: somebody else may have it now.
        if matches!(self.child.try_wait(), Ok(None)) {
            _ = kill_process(Pid::from_child(&self.child), self.stop);
        }
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if began.elapsed() > STOP_MAX {
                _ = self.child.kill();
                _ = self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        _ = fs::remove_file(&self.log);
    }
}

const INSTALL: &str = "`sh bench/peers/install` installs the peers";

/// What `/proc/PID/stat` says.
struct Stat {
    parent: u32,
    ticks: f64,
    ticks_of_ended_children: f64,
}

impl Stat {
    fn read(pid: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may hold spaces: fields are counted from behind it, where the third of proc(5) comes first.
        let fields = text.rsplit_once(')')?.1.split_whitespace();
        let fields: Vec<f64> = fields.map(|it| it.parse().unwrap_or(0.0)).collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            parent: field(4)? as u32,
            ticks: field(14)? + field(15)?,
            ticks_of_ended_children: field(16)? + field(17)?,
        })
    }
}

fn children(parent: u32) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|it| it.parse().ok()) else { continue };
        if Stat::read(pid).is_some_and(|it| it.parent == parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn memory_bytes(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: Option<f64> = line.and_then(|it| it.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or_default() * 1_024.0
}

/// User and system time of the harness: the client side of every load.
pub(crate) fn own_cpu_seconds() -> f64 {
    Stat::read(std::process::id()).map_or(0.0, |it| it.ticks / ticks_per_second())
}

/// User and system time of what the harness started and waited for.
pub(crate) fn ended_children_cpu_seconds() -> f64 {
    Stat::read(std::process::id()).map_or(0.0, |it| it.ticks_of_ended_children / ticks_per_second())
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// What the whole machine has worked so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    busy_seconds: f64,
    /// Of all cores together.
    seconds: f64,
}

impl Machine {
    pub(crate) fn read() -> anyhow::Result<Machine> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text
            .lines()
            .next()
            .and_then(|it| it.strip_prefix("cpu "))
            .context("/proc/stat begins with cpu")?;
        let ticks: Vec<f64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        // user, nice, system; then idle and others, of which those of guests (from the ninth on) are counted as user already.
        let (busy, all): (f64, f64) = (ticks.iter().take(3).sum(), ticks.iter().take(8).sum());
        Ok(Machine { busy_seconds: busy / ticks_per_second(), seconds: all / ticks_per_second() })
    }

    /// Which part of the machine was busy with anything but `ours` since an earlier reading.
    pub(crate) fn busy_with_others_since(self, before: Machine, ours: f64) -> f64 {
        let seconds = (self.seconds - before.seconds).max(1e-9);
        ((self.busy_seconds - before.busy_seconds - ours) / seconds).clamp(0.0, 1.0)
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Blocks on disk of a folder, in bytes.
pub(crate) fn disk_bytes(folder: &Path) -> anyhow::Result<f64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0.0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A file may go while we look.
        let Ok(meta) = entry.metadata() else { continue };
        bytes += if meta.is_dir() { disk_bytes(&entry.path())? } else { meta.blocks() as f64 * 512.0 };
    }
    Ok(bytes)
}

/// The first line that a program prints when asked for its version.
pub(crate) fn version(program: &Path, flag: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(flag).output();
    let output = output.with_context(|| format!("could not run {}; {INSTALL}", program.display()))?;
    let printed = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    Ok(printed.lines().next().unwrap_or_default().to_owned())
}
