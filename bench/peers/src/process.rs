//! A server in a process of its own: started, read, stopped, also when the harness fails.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that has not answered by then will not.
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

/// What a server uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// User and system time since its start, of all its processes.
    pub(crate) cpu_seconds: f64,
    /// Resident memory of all its processes, with what they share counted once.
    pub(crate) memory_bytes: f64,
}

impl Process {
    /// Starts it with its output in `server.log` beside its data.
    pub(crate) fn start(mut command: Command, data: &Path, stop: Signal) -> anyhow::Result<Process> {
        let log = data.with_extension("log");
        let file = fs::File::create(&log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("could not start {name}; `sh bench/peers/install` installs the peers"))?;
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

    /// What it has used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let pid = self.child.id();
        let own = Stat::read(pid).context("the server has ended")?;
        let mut ticks = own.ticks + own.ticks_of_ended_children;
        let mut memory_bytes = memory_bytes(pid);
        for child in children(pid)? {
            // One may end between the listing and the reading; then its parent counts it next time.
            ticks += Stat::read(child).map_or(0.0, |it| it.ticks);
            memory_bytes += self::memory_bytes(child);
        }
        Ok(Usage { cpu_seconds: ticks / rustix::param::clock_ticks_per_second() as f64, memory_bytes })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to stop.
        _ = kill_process(Pid::from_child(&self.child), self.stop);
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
        let fields: Vec<f64> =
            text.rsplit_once(')')?.1.split_whitespace().map(|it| it.parse().unwrap_or(0.0)).collect();
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
    let kib: f64 =
        line.and_then(|it| it.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default();
    kib * 1_024.0
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
    let output = Command::new(program)
        .arg(flag)
        .output()
        .with_context(|| format!("could not run {}; `sh bench/peers/install` installs the peers", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
