//! `windlass lanes add`: one task, or as many as a file has lines.
//!
//! Promises
//! - A line that is no task, or breaks a rule of tasks, is named by its number in the file, and no task of its batch is added.
//! - What can be said of going on is said: with a key the same command, without one from which line.
//! - A file is added to its end also if nobody reads the ids any more.

use super::args::Add;
use crate::args::Global;
use crate::bars;
use crate::exit::{Exit, print, print_json, print_json_line, print_line};
use crate::table::counted;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use windlass_client::lanes::{AddTasksResponse, TaskRequest};
use windlass_client::{
    Blob, Client, ClientError, IDEMPOTENCY_KEY_BYTES_MAX, Problem, ProblemCode, SubmissionId,
};

/// Tasks in one request; the server takes no more.
const TASKS_PER_REQUEST: usize = 1_000;

/// Bytes of lines in one request: their payloads stay below what the server takes.
const BYTES_PER_REQUEST: usize = 512 * 1_024;

/// A key of a whole file has room for a colon and the number of a line behind it, which has up to 20 digits.
const FILE_KEY_BYTES_MAX: usize = IDEMPOTENCY_KEY_BYTES_MAX - 21;

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
    /// The same command may be run again.
    has_key: bool,
}

/// Where the ids of added tasks go.
struct Ids {
    json: bool,
    /// Nobody reads them any more.
    is_unread: bool,
}

impl Ids {
    /// Prints some, as long as somebody reads them.
    fn print(&mut self, tasks: Vec<SubmissionId>) -> Result<(), Exit> {
        if self.is_unread {
            return Ok(());
        }
        let printed = match self.json {
            true => print_json_line(&AddTasksResponse { tasks }),
            false => print(tasks.iter().map(|task| format!("{task}\n")).collect::<String>().as_bytes()),
        };
        match printed {
            Err(Exit::ReaderGone) => {
                self.is_unread = true;
                Ok(())
            }
            printed => printed,
        }
    }
}

impl Batches<'_> {
    async fn add_all(&self, path: &Path) -> Result<(), Exit> {
        self.check_key()?;
        let (source, bar) = open(path)?;
        let (mut tasks, mut bytes, mut read) = (Vec::new(), 0, 0);
        let mut progress = Progress { added: 0, next_line: 1, has_key: self.key.is_some() };
        let mut ids = Ids { json: self.global.json, is_unread: false };
        let mut lines = BufReader::new(source).split(b'\n').enumerate().peekable();
        while let Some((nth, line)) = lines.next() {
            let line =
                line.map_err(|error| progress.stopped_at(nth + 1, "cannot be read", &error.to_string()))?;
            read += line.len() as u64 + 1;
            if !line.trim_ascii().is_empty() {
                bytes += line.len();
                let task = task_of(&line);
                let task = task.map_err(|problem| progress.stopped_at(nth + 1, "is no task", &problem))?;
                if let Some(problem) = problem_of(&task) {
                    return Err(progress.stopped_at(nth + 1, "cannot be added", &problem));
                }
                tasks.push(task);
            }
            let is_full = tasks.len() == TASKS_PER_REQUEST || bytes >= BYTES_PER_REQUEST;
            if !tasks.is_empty() && (is_full || lines.peek().is_none()) {
                let added = self.add_batch(std::mem::take(&mut tasks), progress.next_line).await;
                let added = added.inspect_err(|error| {
                    bar.finish_and_clear();
                    // What is refused from the first on is to be mended as the refusal says.
                    if progress.added > 0 || error.is_outcome_unknown() || is_key_reused(error) {
                        eprintln!("{}", progress.after_error(error, nth + 1));
                    }
                })?;
                progress.added += added.len() as u64;
                progress.next_line = nth + 2;
                bytes = 0;
                bar.set_position(read);
                let comma = if bar.length().is_some() { ", " } else { "" };
                bar.set_message(format!("{comma}added {}", counted(progress.added, "task")));
                bar.suspend(|| ids.print(added)).inspect_err(|_| {
                    bar.finish_and_clear();
                    eprintln!("{}", progress.before_error());
                })?;
            }
        }
        bar.finish_and_clear();
        match self.key {
            None => eprintln!("added {}", counted(progress.added, "task")),
            // Some may have been before.
            Some(_) => {
                let tasks = counted(progress.added, "task");
                eprintln!("{tasks} {} in", if progress.added == 1 { "is" } else { "are" });
            }
        }
        Ok(())
    }

    /// A key that is too long is so from the first line on, and not from the first line with a long number.
    fn check_key(&self) -> Result<(), Exit> {
        match self.key {
            Some(key) if key.len() > FILE_KEY_BYTES_MAX => Err(Exit::Usage(format!(
                "the idempotency key of a file has at most {FILE_KEY_BYTES_MAX} bytes, as numbers of lines are put behind it; this one \
                 has {}",
                key.len()
            ))),
            Some(_) | None => Ok(()),
        }
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

/// A file, or stdin, with a bar for what is read of it.
fn open(path: &Path) -> Result<(Box<dyn Read>, ProgressBar), Exit> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), bars::file(None)));
    }
    let cannot_read = |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(cannot_read)?;
    if file.metadata().map_err(cannot_read)?.is_dir() {
        return Err(Exit::Refused(format!("{} is a folder, and not a file of tasks", path.display())));
    }
    // A pipe has no size that would say anything.
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
    Ok((Box::new(file), bars::file(size)))
}

impl Progress {
    /// A line that cannot be used: what stands before it is in as far as it was sent.
    fn stopped_at(self, line: usize, what: &str, problem: &str) -> Exit {
        let (added, go_on) = (counted(self.added, "task"), self.go_on());
        Exit::Refused(format!(
            "line {line} {what}: {problem}; {added} of earlier lines are in: mend it, and {go_on}"
        ))
    }

    fn go_on(self) -> String {
        match self.has_key {
            true => "run the same command again, which adds nothing twice".to_owned(),
            false => format!("go on from line {}", self.next_line),
        }
    }

    /// What is in where something else than the server stops us.
    fn before_error(self) -> String {
        format!("{} added before this; {}", counted(self.added, "task"), self.go_on())
    }

    /// What is in after a batch up to this line has failed, and how to go on.
    fn after_error(self, error: &ClientError, last_line: usize) -> String {
        let Progress { added, next_line, has_key } = self;
        let before = format!("{} added before this", counted(added, "task"));
        match (error.is_outcome_unknown(), has_key) {
            (false, false) => self.before_error(),
            (false, true) if is_key_reused(error) => format!(
                "{before}; lines {next_line} to {last_line} are not those that were added under this key: what is new from there on needs \
                 another key"
            ),
            (false, true) => format!(
                "{before}; the same command is refused again until this is mended: then run it again, which adds nothing twice"
            ),
            (true, true) => format!(
                "{before}; whether lines {next_line} to {last_line} are in is not known: {}",
                self.go_on()
            ),
            (true, false) => format!(
                "{before}; whether lines {next_line} to {last_line} are in is not known: look at the lane, and go on from line {next_line} \
                 or {}. With --idempotency-key the same command can be run again",
                last_line + 1
            ),
        }
    }
}

fn is_key_reused(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(Problem { code: ProblemCode::IdempotencyKeyReused, .. }))
}

/// The first rule that a task breaks, as the server would say it.
fn problem_of(task: &TaskRequest) -> Option<String> {
    match task.clone().into_task() {
        Ok(task) => task.problem(),
        Err(problem) => Some(problem),
    }
}

fn task_of(line: &[u8]) -> Result<TaskRequest, String> {
    // Some programs begin a file with a mark that says that it is UTF-8; files that were put together have it in their middle.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
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
    fn what_a_line_says_is_checked_as_the_server_does() {
        for (line, problem) in [
            ("{}", None),
            (r#"{"priority": 12}"#, Some("a task's priority is from 0 to 9")),
            (r#"{"weight": 0}"#, Some("a weight is a number from 0.001")),
            (r#"{"not_before": "soon"}"#, Some("`not_before` is a time")),
            (r#"{"payload": "x", "object": "y"}"#, Some("not both")),
            (r#"{"key": "acme/"}"#, Some("names no user")),
        ] {
            let said = problem_of(&task_of(line.as_bytes()).unwrap());
            assert_eq!(said.is_some(), problem.is_some(), "{line}");
            assert!(said.unwrap_or_default().contains(problem.unwrap_or_default()), "{line}");
        }
    }

    #[test]
    fn an_unclear_end_is_told_apart_from_a_refusal_and_a_key_makes_it_harmless() {
        let progress = Progress { added: 1_000, next_line: 1_001, has_key: false };
        let with_key = Progress { has_key: true, ..progress };
        let problem = |code| ClientError::Problem(Problem::new(code, ""));
        let refused = problem(ProblemCode::LaneDraining);
        let said = progress.after_error(&refused, 2_000);
        assert_eq!(said, "1,000 tasks added before this; go on from line 1001");
        let said = with_key.after_error(&refused, 2_000);
        assert!(
            said.ends_with(
                "is refused again until this is mended: then run it again, which adds nothing twice"
            )
        );
        let said = with_key.after_error(&problem(ProblemCode::IdempotencyKeyReused), 2_000);
        assert!(
            said.contains("lines 1001 to 2000 are not those") && said.ends_with("needs another key"),
            "{said}"
        );
        let lost = ClientError::Unreachable { server: "x".into(), cause: "y".into() };
        for unclear in [lost, problem(ProblemCode::OutcomeUnknown), problem(ProblemCode::Busy)] {
            let said = progress.after_error(&unclear, 2_000);
            assert!(said.contains("whether lines 1001 to 2000 are in is not known"), "{said}");
            assert!(said.contains("go on from line 1001 or 2001. With --idempotency-key"), "{said}");
            let said = with_key.after_error(&unclear, 2_000);
            assert!(said.ends_with("run the same command again, which adds nothing twice"), "{said}");
        }
    }
}
