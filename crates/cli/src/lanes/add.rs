//! `windlass lanes add`: one task, or as many as a file has lines.

use super::args::Add;
use crate::args::Global;
use crate::bars;
use crate::exit::{Exit, print_json, print_line};
use crate::table::counted;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use windlass_client::lanes::{AddTasksResponse, TaskRequest};
use windlass_client::{Blob, Client};

/// Tasks in one request; the server takes no more.
const TASKS_PER_REQUEST: usize = 1_000;

/// Bytes of lines in one request: their payloads stay below what the server takes.
const BYTES_PER_REQUEST: usize = 512 * 1_024;

pub(super) async fn run(global: &Global, client: &Client, add: Add) -> Result<(), Exit> {
    if let Some(path) = &add.from {
        return add_all(global, client, &add.lane, path).await;
    }
    let task = TaskRequest {
        key: add.key,
        weight: add.weight,
        priority: add.priority,
        payload: add.payload.map(|text| Blob(text.into_bytes())),
        object: add.object,
        not_before: add.not_before,
        delay_ms: add.delay,
        attempts_max: add.attempts_max,
        retry_delay_ms: add.retry_delay,
    };
    let tasks = match &add.idempotency_key {
        Some(key) => client.add_tasks_as(&add.lane, vec![task], key).await?,
        None => client.add_tasks(&add.lane, vec![task]).await?,
    };
    if global.json {
        return print_json(&AddTasksResponse { tasks });
    }
    tasks.iter().try_for_each(|task| print_line(&task.to_string()))
}

/// Adds the tasks of a file, many at a time and in their order.
async fn add_all(global: &Global, client: &Client, lane: &str, path: &Path) -> Result<(), Exit> {
    let cannot_read = |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", path.display()));
    let (source, bar): (Box<dyn Read>, ProgressBar) = match path.as_os_str() == "-" {
        true => (Box::new(io::stdin()), bars::file(None)),
        false => {
            let file = File::open(path).map_err(cannot_read)?;
            // A pipe has no size that would say anything.
            let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
            (Box::new(file), bars::file(size))
        }
    };
    let (mut tasks, mut bytes, mut added, mut next_line) = (Vec::new(), 0, 0_u64, 1);
    let mut read = 0;
    let mut lines = BufReader::new(source).lines().enumerate().peekable();
    while let Some((nth, line)) = lines.next() {
        let line = line.map_err(cannot_read)?;
        read += line.len() as u64 + 1;
        if !line.trim().is_empty() {
            bytes += line.len();
            tasks.push(task_of(&line).map_err(|problem| stopped(added, next_line, nth + 1, &problem))?);
        }
        let is_full = tasks.len() == TASKS_PER_REQUEST || bytes >= BYTES_PER_REQUEST;
        if !tasks.is_empty() && (is_full || lines.peek().is_none()) {
            let ids = client.add_tasks(lane, std::mem::take(&mut tasks)).await;
            let ids = ids.inspect_err(|_| {
                eprintln!("{} added before this; go on from line {next_line}", counted(added, "task"));
            })?;
            (bytes, added, next_line) = (0, added + ids.len() as u64, nth + 2);
            bar.set_position(read);
            let comma = if bar.length().is_some() { ", " } else { "" };
            bar.set_message(format!("{comma}added {}", counted(added, "task")));
            bar.suspend(|| match global.json {
                true => print_json(&AddTasksResponse { tasks: ids }),
                false => ids.iter().try_for_each(|task| print_line(&task.to_string())),
            })?;
        }
    }
    bar.finish_and_clear();
    eprintln!("added {}", counted(added, "task"));
    Ok(())
}

fn task_of(line: &str) -> Result<TaskRequest, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// A line that is no task: what stands before it is in.
fn stopped(added: u64, next_line: usize, line: usize, problem: &str) -> Exit {
    Exit::Refused(format!(
        "line {line} is no task: {problem}; {} of earlier lines are in: mend it, and go on from line {next_line}",
        counted(added, "task")
    ))
}
