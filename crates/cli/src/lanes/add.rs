//! `windlass lanes add`: one task, or as many as a file has lines.

use super::args::Add;
use crate::args::Global;
use crate::bars;
use crate::exit::{Exit, print_json, print_json_line, print_line};
use crate::table::counted;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use windlass_client::lanes::{AddTasksResponse, TaskRequest};
use windlass_client::{Blob, Client, ClientError, SubmissionId};

/// Tasks in one request; the server takes no more.
const TASKS_PER_REQUEST: usize = 1_000;

/// Bytes of lines in one request: their payloads stay below what the server takes.
const BYTES_PER_REQUEST: usize = 512 * 1_024;

pub(super) async fn run(global: &Global, client: &Client, add: Add) -> Result<(), Exit> {
    if let Some(path) = &add.from {
        let batches = Batches { global, client, lane: &add.lane, key: add.idempotency_key.as_deref() };
        return batches.add_all(path).await;
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

/// Adds what a file says, many tasks at a time and in their order.
struct Batches<'a> {
    global: &'a Global,
    client: &'a Client,
    lane: &'a str,
    /// What the caller wants each batch's own key to be made of.
    key: Option<&'a str>,
}

/// How far a file is in.
#[derive(Debug, Clone, Copy)]
struct Progress {
    added: u64,
    /// The first line that is not in.
    next_line: usize,
}

impl Batches<'_> {
    async fn add_all(&self, path: &Path) -> Result<(), Exit> {
        let cannot_read =
            |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", path.display()));
        let (source, bar): (Box<dyn Read>, ProgressBar) = match path.as_os_str() == "-" {
            true => (Box::new(io::stdin()), bars::file(None)),
            false => {
                let file = File::open(path).map_err(cannot_read)?;
                // A pipe has no size that would say anything.
                let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
                (Box::new(file), bars::file(size))
            }
        };
        let (mut tasks, mut bytes, mut read) = (Vec::new(), 0, 0);
        let mut progress = Progress { added: 0, next_line: 1 };
        let mut lines = BufReader::new(source).split(b'\n').enumerate().peekable();
        while let Some((nth, line)) = lines.next() {
            let line =
                line.map_err(|error| progress.stopped_at(nth + 1, "cannot be read", &error.to_string()))?;
            read += line.len() as u64 + 1;
            if !line.trim_ascii().is_empty() {
                bytes += line.len();
                let task = task_of(&line);
                tasks.push(task.map_err(|problem| progress.stopped_at(nth + 1, "is no task", &problem))?);
            }
            let is_full = tasks.len() == TASKS_PER_REQUEST || bytes >= BYTES_PER_REQUEST;
            if !tasks.is_empty() && (is_full || lines.peek().is_none()) {
                let ids = self.add_batch(std::mem::take(&mut tasks), progress.next_line).await;
                let ids = ids.inspect_err(|error| {
                    bar.finish_and_clear();
                    eprintln!("{}", progress.after_error(error, nth + 1, self.key.is_some()));
                })?;
                progress = Progress { added: progress.added + ids.len() as u64, next_line: nth + 2 };
                bytes = 0;
                bar.set_position(read);
                let comma = if bar.length().is_some() { ", " } else { "" };
                bar.set_message(format!("{comma}added {}", counted(progress.added, "task")));
                bar.suspend(|| match self.global.json {
                    true => print_json_line(&AddTasksResponse { tasks: ids }),
                    false => ids.iter().try_for_each(|task| print_line(&task.to_string())),
                })?;
            }
        }
        bar.finish_and_clear();
        eprintln!("added {}", counted(progress.added, "task"));
        Ok(())
    }

    /// Adds the tasks of lines from this one on. Batches of the same file begin at the same lines, so a key that says the line is the same
    /// when the command is run again.
    async fn add_batch(
        &self,
        tasks: Vec<TaskRequest>,
        line: usize,
    ) -> Result<Vec<SubmissionId>, ClientError> {
        match self.key {
            Some(key) => self.client.add_tasks_as(self.lane, tasks, &format!("{key}:{line}")).await,
            None => self.client.add_tasks(self.lane, tasks).await,
        }
    }
}

impl Progress {
    /// A line that cannot be used: what stands before it is in as far as it was sent.
    fn stopped_at(self, line: usize, what: &str, problem: &str) -> Exit {
        let added = counted(self.added, "task");
        let next_line = self.next_line;
        Exit::Refused(format!(
            "line {line} {what}: {problem}; {added} of earlier lines are in: mend it, and go on from line {next_line}"
        ))
    }

    /// What is in after a batch up to this line has failed, and how to go on.
    fn after_error(self, error: &ClientError, last_line: usize, has_key: bool) -> String {
        let Progress { added, next_line } = self;
        let before = format!("{} added before this", counted(added, "task"));
        match (error.is_outcome_unknown(), has_key) {
            (false, false) => format!("{before}; go on from line {next_line}"),
            (false, true) => format!("{before}; run the same command again, which adds nothing twice"),
            (true, true) => format!(
                "{before}; whether lines {next_line} to {last_line} are in is not known: run the same command again, which adds nothing \
                 twice"
            ),
            (true, false) => format!(
                "{before}; whether lines {next_line} to {last_line} are in is not known: look at the lane, and go on from line {next_line} \
                 or {}. With --idempotency-key the same command can be run again",
                last_line + 1
            ),
        }
    }
}

fn task_of(line: &[u8]) -> Result<TaskRequest, String> {
    // A list of values without names would be read as the fields in their order, whatever the writer meant.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err("a task is a JSON object: fields and their values between braces".into());
    }
    serde_json::from_slice(line).map_err(|error| {
        let problem = error.to_string();
        // The line that is meant is that of the file.
        let place = format!(" at line {} column {}", error.line(), error.column());
        match problem.strip_suffix(&place) {
            Some(problem) => format!("{problem} at column {}", error.column()),
            None => problem,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_client::{Problem, ProblemCode};

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_its_column_alone() {
        for (line, problem) in [
            (&b"{\"key\": 7}"[..], "invalid type: integer `7`, expected a string at column 9"),
            (b"{\"key\": \"a\", \"kye\": 1}", "at column 18"),
            (b"{\"key\": \"\xff\"}", "invalid unicode code point at column 10"),
            (b"{\"key\": ", "EOF while parsing a value at column 8"),
            (b"[\"a\"]", "between braces"),
            (b"\xff", "between braces"),
        ] {
            let said = task_of(line).unwrap_err();
            assert!(said.ends_with(problem) && !said.contains("line 1"), "{said}");
        }
    }

    #[test]
    fn an_unclear_end_is_told_apart_from_a_refusal_and_a_key_makes_it_harmless() {
        let progress = Progress { added: 1_000, next_line: 1_001 };
        let problem = |code| ClientError::Problem(Problem::new(code, ""));
        let refused = problem(ProblemCode::LaneDraining);
        let said = progress.after_error(&refused, 2_000, false);
        assert_eq!(said, "1,000 tasks added before this; go on from line 1001");
        let lost = ClientError::Unreachable { server: "x".into(), cause: "y".into() };
        for unclear in [lost, problem(ProblemCode::OutcomeUnknown), problem(ProblemCode::Busy)] {
            let said = progress.after_error(&unclear, 2_000, false);
            assert!(said.contains("whether lines 1001 to 2000 are in is not known"), "{said}");
            assert!(said.contains("go on from line 1001 or 2001. With --idempotency-key"), "{said}");
            let said = progress.after_error(&unclear, 2_000, true);
            assert!(said.ends_with("run the same command again, which adds nothing twice"), "{said}");
        }
    }
}
