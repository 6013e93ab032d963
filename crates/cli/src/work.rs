//! `windlass work`: runs a command for each chunk.

use crate::args::{Global, Work};
use crate::branches::files_below;
use crate::exit::Exit;
use crate::signals::StopSignals;
use crate::table::counted;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use windlass_client::{Activity, Chunk, Consumer, Failure, Output, Tally};

/// Where nobody looks at a live line, one is written this often, if something changed.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// What is kept of a command's stderr, to find its last lines in.
const STDERR_BYTES_MAX: usize = 16 * 1_024;

/// The last lines of stderr that make a failure's reason.
const REASON_LINES: usize = 3;

pub(crate) async fn run(global: &Global, work: Work) -> Result<(), Exit> {
    let mut signals = StopSignals::listen()?;
    let mut consumer = Consumer::builder(global.client()?)
        .name(work.name.unwrap_or_else(host_name))
        .strategy(work.strategy)
        .concurrency(work.concurrency)
        .shutdown_for(Duration::from_secs(work.shutdown_for));
    if let Some(prefetch) = work.prefetch {
        consumer = consumer.prefetch(prefetch);
    }
    if let Some(seconds) = work.until_idle {
        consumer = consumer.until_idle(Duration::from_secs(seconds));
    }
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let shown = tokio::spawn(show(line.clone(), consumer.activity()));
    let command: Arc<str> = work.exec.into();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running =
        consumer.run(move |chunk| execute(Arc::clone(&command), chunk), async move { drop(stopped.await) });
    let mut running = std::pin::pin!(running);
    let tally = tokio::select! {
        tally = &mut running => tally?,
        () = signals.next() => {
            drop(stop);
            eprintln!("stopping: running chunks are finished, the rest is given back; a second Ctrl-C stops at once");
            tokio::select! {
                tally = &mut running => tally?,
                () = signals.next() => {
                    return Err(Exit::Refused("stopped at once; the server hands its chunks to others soon".into()));
                }
            }
        }
    };
    shown.abort();
    line.finish_and_clear();
    eprintln!(
        "{} completed, {} failed, {} given back, {} late",
        counted(tally.completed, "chunk"),
        counted(tally.failed, "attempt"),
        tally.released,
        tally.late
    );
    Ok(())
}

/// Runs the command for a chunk.
async fn execute(command: Arc<str>, chunk: Chunk) -> Result<Output, Failure> {
    let input = chunk.input().await?;
    let metadata = serde_json::to_string(chunk.metadata())?;
    let of_task = chunk.lane().map(|lane| ("WINDLASS_LANE", lane)).into_iter();
    let of_task = of_task.chain(chunk.key().map(|key| ("WINDLASS_KEY", key)));
    if let Some(key) = chunk.key().filter(|key| key.contains('\0')) {
        return Err(Failure::new(format!(
            "the key {key:?} has a NUL character, which WINDLASS_KEY cannot hold: the command was not run"
        )));
    }
    let outputs = chunk.output_branch().map(|_| tempfile::tempdir()).transpose()?;
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(&*command)
        .envs(of_task)
        .env("WINDLASS_SUBMISSION", chunk.submission().to_string())
        .env("WINDLASS_CHUNK", chunk.index().to_string())
        .env("WINDLASS_ATTEMPT", chunk.token().attempt.to_string())
        .env("WINDLASS_METADATA", metadata)
        .envs(outputs.as_ref().map(|folder| ("WINDLASS_OUTPUTS", folder.path())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A terminal sends Ctrl-C to the whole foreground group; a running chunk is to be finished.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group::of(&child);
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(stdin) = &mut stdin {
            // A command need not read all of its input.
            let _ = stdin.write_all(&input).await;
        }
        stdin = None;
    };
    let (_, stdout, stderr) = tokio::join!(feed, all_of(stdout), last_of(stderr));
    let (stdout, stderr, status) = (stdout?, stderr?, child.wait().await?);
    group.0 = None;
    if status.success() && chunk.lane().is_some() {
        return Ok(Output::Nothing);
    }
    if status.success() {
        if let Some(folder) = &outputs {
            publish(&chunk, folder.path()).await?;
        }
        return chunk.output(stdout).await;
    }
    let (ending, reason) = (ending_of(status), last_lines(&String::from_utf8_lossy(&stderr)));
    Err(Failure::new(if reason.is_empty() { ending } else { format!("{ending}: {reason}") }))
}

/// Publishes every file below a folder under its path there.
async fn publish(chunk: &Chunk, folder: &Path) -> Result<(), Failure> {
    for (file, path) in files_below(folder).map_err(|exit| Failure::new(exit.to_string()))? {
        chunk.publish(path, tokio::fs::read(&file).await?).await?;
    }
    Ok(())
}

/// Kills what a command has started, when it is given up.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended by itself just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn all_of(from: Option<tokio::process::ChildStdout>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        from.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Reads everything, so that the command never waits for us, and keeps the end.
async fn last_of(from: Option<tokio::process::ChildStderr>) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        while from.read_buf(&mut kept).await? > 0 {
            let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
            kept.drain(..excess);
        }
    }
    Ok(kept)
}

fn ending_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(REASON_LINES)..].join("\n")
}

/// Shows what the consumer does: a live line on a terminal, else a line now and then.
async fn show(line: ProgressBar, mut activity: watch::Receiver<Activity>) {
    line.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("our templates are sound"));
    let is_live = !line.is_hidden();
    let mut told = None;
    while activity.changed().await.is_ok() {
        if is_live {
            let now = *activity.borrow_and_update();
            line.set_message(sentence(&now));
            line.tick();
            continue;
        }
        let now = *activity.borrow_and_update();
        if told.replace(now) != Some(now) {
            eprintln!("{}", sentence(&now));
        }
        tokio::time::sleep(REPORT_EVERY).await;
    }
}

fn sentence(it: &Activity) -> String {
    let Activity { connected, running, queued, tally } = it;
    if *running == 0 && *tally == Tally::default() {
        return if *connected { "connected; waiting for work".into() } else { "connecting".into() };
    }
    let link = if *connected { "" } else { " (connection lost; connecting again)" };
    format!(
        "{running} running, {queued} waiting, {} completed, {} failed{link}",
        tally.completed, tally.failed
    )
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_last_lines_that_say_something() {
        assert_eq!(last_lines("a\nb\n\nc\nd\n\n"), "b\nc\nd");
        assert_eq!(last_lines("\n"), "");
    }
}
