//! `windlass submissions`: looks at submissions, waits for them, and hands over to those who change them or read results.

use crate::args::{Global, List, Submissions, SubmissionsCommand};
use crate::bars;
use crate::branches::{self, outcome_text};
use crate::changing;
use crate::exit::{Exit, print, print_json};
use crate::metadata::Pair;
use crate::results;
use crate::table::{age, aligned, between, grouped, named, on_one_line, short};
use std::time::Duration;
use windlass_client::branches::{ChunkFailureRule, CommitProgress, OutputInfo};
use windlass_client::{
    BulkAction, ListQuery, OnFailure, Producer, SubmissionId, SubmissionInfo, SubmissionPage, SubmissionState,
};

pub(crate) async fn run(global: &Global, submissions: Submissions) -> Result<(), Exit> {
    let producer = Producer::new(global.client()?);
    let client = producer.client();
    match submissions.command {
        SubmissionsCommand::List(list) => {
            let page = client.list(&query_of(&list)).await?;
            show_page(global, &page)
        }
        SubmissionsCommand::Show { id } => show(global, &client.show(id).await?),
        SubmissionsCommand::Wait { id } => wait(global, &producer, id).await,
        SubmissionsCommand::Change(it) => {
            let action = BulkAction::Change(changing::request_of(&it.wanted)?);
            changing::run(global, client, &it.which, action).await
        }
        SubmissionsCommand::Pause(which) => changing::run(global, client, &which, BulkAction::Pause).await,
        SubmissionsCommand::Resume(which) => changing::run(global, client, &which, BulkAction::Resume).await,
        SubmissionsCommand::Cancel(which) => changing::run(global, client, &which, BulkAction::Cancel).await,
        SubmissionsCommand::RetryFailed(which) => {
            changing::run(global, client, &which, BulkAction::RetryFailed).await
        }
        SubmissionsCommand::Results(it) if it.staged => {
            branches::preview(global, producer.client(), it.id).await
        }
        SubmissionsCommand::Results(it) => results::run(&producer, it).await,
    }
}

/// Waits for a submission's end with a progress bar; fails if it did.
pub(crate) async fn wait(global: &Global, producer: &Producer, id: SubmissionId) -> Result<(), Exit> {
    let bar = bars::shown(bars::chunks(&id.to_string()));
    let info = producer.wait(id, |event| bars::show_event(&bar, event)).await;
    bar.finish_and_clear();
    let info = info?;
    if global.json {
        print_json(&info)?;
    } else {
        eprintln!("{id} {}; {}{}", info.state, progress(&info), took(&info));
    }
    match info.state {
        SubmissionState::Completed | SubmissionState::Running => Ok(()),
        SubmissionState::Cancelled => Err(Exit::Refused(format!("submission {id} was cancelled"))),
        SubmissionState::Failed => {
            let why = info.troubles.first().map_or_else(String::new, |trouble| {
                format!(" at chunk {}: {}", trouble.chunk, trouble.reason)
            });
            let commit = info.commit.as_ref().map(|outcome| (outcome.state, outcome.reason.as_deref()));
            let see = format!("see `windlass submissions show {id}`");
            let again = format!("{see}, and try again with `windlass submissions retry-failed {id}`");
            Err(Exit::Refused(match commit {
                // What is visible is not made again.
                Some((CommitProgress::Committed, _)) => {
                    format!("submission {id} failed{why}, and was committed without what failed; {see}")
                }
                Some((_, Some(reason))) => format!("submission {id} was not committed: {reason}; {again}"),
                Some((_, None)) | None => format!("submission {id} failed{why}; {again}"),
            }))
        }
    }
}

fn query_of(list: &List) -> ListQuery {
    let metadata: Vec<String> = list.metadata.iter().map(Pair::as_filter).collect();
    ListQuery {
        state: list.state,
        metadata: (!metadata.is_empty()).then(|| metadata.join(",")),
        cursor: list.cursor,
        limit: Some(list.limit),
        consistency: None,
    }
}

fn show_page(global: &Global, page: &SubmissionPage) -> Result<(), Exit> {
    if global.json {
        return print_json(page);
    }
    if page.items.is_empty() {
        eprintln!("no submissions");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = page
        .items
        .iter()
        .map(|info| {
            vec![info.id.to_string(), state(info), progress(info), age(&info.submitted_at), metadata(info)]
        })
        .collect();
    print(aligned(&["ID", "STATE", "CHUNKS", "AGE", "METADATA"], &rows).as_bytes())?;
    if let Some(next) = page.next {
        eprintln!("there are more: --cursor {next}");
    }
    Ok(())
}

fn show(global: &Global, info: &SubmissionInfo) -> Result<(), Exit> {
    if global.json {
        return print_json(info);
    }
    let ended =
        info.finished_at.as_ref().map_or_else(String::new, |at| format!("{} ago{}", age(at), took(info)));
    let rows = [
        ("id", info.id.to_string()),
        ("state", state(info)),
        ("chunks", progress(info)),
        ("submitted", format!("{} ago ({})", age(&info.submitted_at), info.submitted_at)),
        ("ended", ended),
        ("metadata", metadata(info)),
        ("priority", info.priority.to_string()),
        ("input", info.prefix.clone().unwrap_or_default()),
        ("attempts", format!("at most {} for a chunk; {} failed so far", info.attempts_max, info.failures)),
        ("on failure", on_failure(info)),
        ("output", info.output.as_ref().map(output).unwrap_or_default()),
        ("commit", info.commit.as_ref().map(outcome_text).unwrap_or_default()),
        ("rounds", info.rounds.to_string()),
    ];
    let mut text = String::new();
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&named(name, &value));
    }
    if !info.troubles.is_empty() {
        let troubles: Vec<Vec<String>> = info
            .troubles
            .iter()
            .map(|it| {
                vec![it.chunk.to_string(), it.failures.to_string(), age(&it.at), on_one_line(&it.reason)]
            })
            .collect();
        text.push('\n');
        text.push_str(&aligned(&["CHUNK", "FAILURES", "AGE", "REASON"], &troubles));
    }
    print(text.as_bytes())
}

fn output(output: &OutputInfo) -> String {
    let failed = match output.on_chunk_failure {
        ChunkFailureRule::Abort => "nothing is committed",
        ChunkFailureRule::CommitWithout => "the rest is committed",
    };
    let mut text = format!("branch {}, {}; if a chunk has failed {failed}", output.branch, output.mode);
    for (name, values) in [("rules", &output.verify.rules), ("checks", &output.verify.checks)] {
        if !values.is_empty() {
            text.push_str(&format!("; {name}: {}", values.join(", ")));
        }
    }
    text
}

fn on_failure(info: &SubmissionInfo) -> String {
    let rest = match info.on_failure {
        OnFailure::Stop => "the rest is skipped",
        OnFailure::Continue => "the rest goes on",
    };
    let delay = short(Duration::from_millis(info.retry_delay_ms));
    format!("tried again after {delay}, then twice as late each time; when out of attempts {rest}")
}

/// Where a submission stands, in words.
fn state(info: &SubmissionInfo) -> String {
    if info.paused { format!("{}, paused", info.state) } else { info.state.to_string() }
}

/// How far a submission is, in words.
pub(crate) fn progress(info: &SubmissionInfo) -> String {
    let chunks = &info.chunks;
    let mut text = format!("{}/{} done", grouped(chunks.done), grouped(chunks.total));
    for (count, what) in [(chunks.failed, "failed"), (chunks.skipped, "skipped")] {
        if count > 0 {
            text.push_str(&format!(", {} {what}", grouped(count)));
        }
    }
    text
}

fn took(info: &SubmissionInfo) -> String {
    let ended = info.finished_at.as_deref();
    let took = ended.and_then(|ended| between(&info.submitted_at, ended));
    took.map_or_else(String::new, |took| format!(", took {}", short(took)))
}

fn metadata(info: &SubmissionInfo) -> String {
    info.metadata.iter().map(|(field, value)| format!("{field}={value}")).collect::<Vec<_>>().join(" ")
}
