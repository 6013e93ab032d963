//! The batch room's verbs on submissions: submit, show, list, results, wait, change, pause, resume, cancel, retry-failed.

use super::Service;
use super::outputs::{output_info_of, output_rule_of};
use crate::limits::{PAGE_ROWS_DEFAULT, TROUBLES_SHOWN, WAIT_MS_DEFAULT, WAIT_MS_MAX};
use minicbor::bytes::ByteVec;
use std::time::Duration;
use windlass_api::blob::Blob;
use windlass_api::changes::ChangeRequest;
use windlass_api::json::{
    ChunkProgress, ListQuery, ResultInfo, ResultPage, ResultState, ResultsQuery, RetryResponse,
    SubmissionInfo, SubmissionPage, SubmitRequest, SubmitResponse, TroubleInfo, time_text,
};
use windlass_api::objects::output_key;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::chunks::OutputKind;
use windlass_core::batch::listing::{ChunkResult, ChunkState, SubmissionFilter, SubmissionView};
use windlass_core::batch::submissions::{
    ChunkCounts, Input, MetaValue, Metadata, OnFailure, SubmissionState, Submit,
};
use windlass_core::branches::outputs::OnChunkFailure;
use windlass_core::entry::{Cancel, Command, Outcome, RetryFailed};
use windlass_core::ids::{ChunkIndex, SubmissionId};
use windlass_core::limits::{ATTEMPTS_MAX_DEFAULT, PAGE_ROWS_MAX, RETRY_DELAY_MS_DEFAULT};

impl Service {
    /// Hands in a submission.
    pub async fn submit(
        &self,
        request: SubmitRequest,
        idempotency_key: Option<String>,
    ) -> Result<SubmitResponse, Problem> {
        let submit = submit_of(request, idempotency_key)?;
        if let Some(problem) = submit.problem() {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        if let Some(rule) = &submit.output {
            self.check_known(&rule.verify)?;
        }
        match self.propose(Command::Submit(submit)).await? {
            Outcome::Submitted { submission } => Ok(SubmitResponse { id: submission }),
            other => Err(unexpected(&other)),
        }
    }

    /// A submission as this node knows it.
    pub fn show(&self, id: SubmissionId) -> Result<SubmissionInfo, Problem> {
        let found = self
            .order()
            .read(|machine| machine.show(id).map(|view| (view, machine.failures(id, TROUBLES_SHOWN))));
        let (view, failures) = found.ok_or_else(|| unknown(id))?;
        let commit = view.submission.commit;
        let mut info = info_of(view);
        info.commit = commit.map(|request| self.commit_outcome(request)).transpose()?;
        info.troubles = failures
            .into_iter()
            .map(|(chunk, failure)| TroubleInfo {
                chunk,
                failures: failure.failures,
                reason: failure.reason,
                at: time_text(failure.at),
            })
            .collect();
        Ok(info)
    }

    /// A page of submissions as this node knows them.
    pub fn list(&self, query: &ListQuery) -> Result<SubmissionPage, Problem> {
        let metadata = query.metadata.as_deref().map(metadata_of).transpose()?.unwrap_or_default();
        let filter = SubmissionFilter { state: query.state, metadata };
        let limit = page_limit(query.limit)?;
        let page = self.order().read(|machine| machine.list(&filter, query.cursor, limit));
        Ok(SubmissionPage { items: page.items.into_iter().map(info_of).collect(), next: page.next })
    }

    /// A page of results as this node knows them.
    pub fn results(&self, id: SubmissionId, query: &ResultsQuery) -> Result<ResultPage, Problem> {
        let from = query.from.unwrap_or(0);
        let limit = page_limit(query.limit)?;
        let found = self.order().read(|machine| {
            let total = machine.show(id)?.submission.counts.total;
            Some((machine.results(id, ChunkIndex(from), limit)?, total))
        });
        let (results, total) = found.ok_or_else(|| unknown(id))?;
        let next = from.saturating_add(results.len() as u64);
        let items = results.into_iter().map(|result| result_of(id, result)).collect();
        Ok(ResultPage { items, next: (next < total).then_some(next) })
    }

    /// Waits until a submission is over or the time is up, and shows it then.
    pub async fn wait(&self, id: SubmissionId, timeout_ms: Option<u64>) -> Result<SubmissionInfo, Problem> {
        let timeout = Duration::from_millis(timeout_ms.unwrap_or(WAIT_MS_DEFAULT).min(WAIT_MS_MAX));
        // Watching begins before looking, so that an end between the two is not missed.
        let mut watcher = self.announcer().watch([id]);
        self.freshen(None).await?;
        let is_over = async {
            while self.show(id)?.state == SubmissionState::Running {
                while watcher.next().await.iter().all(|it| it.state == SubmissionState::Running) {}
            }
            Ok::<(), Problem>(())
        };
        tokio::select! {
            result = is_over => result?,
            () = tokio::time::sleep(timeout) => {}
            () = self.stop().cancelled() => {}
        }
        self.show(id)
    }

    /// Says anew what is said of a running submission.
    pub async fn change(&self, id: SubmissionId, request: ChangeRequest) -> Result<SubmissionInfo, Problem> {
        self.propose_changes(id, changes_of(request)?).await?;
        self.show(id)
    }

    /// Holds a running submission back, or lets it go on.
    pub async fn set_paused(&self, id: SubmissionId, paused: bool) -> Result<SubmissionInfo, Problem> {
        self.propose_changes(id, Changes::pausing(paused)).await?;
        self.show(id)
    }

    pub(super) async fn propose_changes(&self, id: SubmissionId, changes: Changes) -> Result<(), Problem> {
        match self.propose(Command::Change(Change { submission: id, changes })).await? {
            Outcome::Changed => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends a submission.
    pub async fn cancel(&self, id: SubmissionId) -> Result<SubmissionInfo, Problem> {
        match self.propose(Command::Cancel(Cancel { submission: id })).await? {
            Outcome::Cancelled => self.show(id),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives what failed or was skipped another round.
    pub async fn retry_failed(&self, id: SubmissionId) -> Result<RetryResponse, Problem> {
        match self.propose(Command::RetryFailed(RetryFailed { submission: id })).await? {
            Outcome::Retried { chunks } => Ok(RetryResponse { chunks }),
            other => Err(unexpected(&other)),
        }
    }
}

/// The answer when the machine answered something else than the command can give.
pub(crate) fn unexpected(outcome: &Outcome) -> Problem {
    tracing::error!(?outcome, "an outcome does not fit its command");
    Problem::new(
        ProblemCode::Internal,
        "the machine gave an answer that does not fit; report it, with the server's log",
    )
}

pub(super) fn unknown(id: SubmissionId) -> Problem {
    let detail = format!("no submission has the id {id}; check the id, or list the submissions");
    Problem::new(ProblemCode::SubmissionUnknown, detail)
}

fn submit_of(request: SubmitRequest, idempotency_key: Option<String>) -> Result<Submit, Problem> {
    let invalid = |detail: &str| Err(Problem::new(ProblemCode::InvalidRequest, detail));
    let input = match (request.prefix, request.payload) {
        (Some(_), Some(_)) => return invalid("give `prefix` or `payload`, not both"),
        (Some(prefix), None) => Input::Prefix(prefix),
        (None, Some(payload)) => Input::Inline(ByteVec::from(payload.0)),
        (None, None) => Input::Nowhere,
    };
    let chunks = match (request.chunks, &input) {
        (Some(chunks), _) => chunks,
        (None, Input::Inline(_)) => 1,
        (None, Input::Nowhere | Input::Prefix(_)) => {
            return invalid(
                "`chunks` says how many chunks the submission has; it is needed unless there is a `payload`",
            );
        }
    };
    let output = request.output.map(output_rule_of).transpose()?;
    // Who commits without what failed must go on when something fails, and need not say so.
    let goes_on = output.as_ref().is_some_and(|rule| rule.on_chunk_failure == OnChunkFailure::CommitWithout);
    let on_failure_default = if goes_on { OnFailure::Continue } else { OnFailure::Stop };
    Ok(Submit {
        chunks,
        metadata: request.metadata,
        priority: request.priority,
        opaque: ByteVec::from(request.opaque.unwrap_or_default().0),
        input,
        attempts_max: request.attempts_max.unwrap_or(ATTEMPTS_MAX_DEFAULT),
        retry_delay_ms: request.retry_delay_ms.unwrap_or(RETRY_DELAY_MS_DEFAULT),
        on_failure: request.on_failure.unwrap_or(on_failure_default),
        idempotency_key,
        output,
    })
}

/// The change that a request asks for, within the limits that hold for any submission.
pub(super) fn changes_of(request: ChangeRequest) -> Result<Changes, Problem> {
    let ChangeRequest { priority, metadata, paused, attempts_max, retry_delay_ms, on_failure } = request;
    let mut changes =
        Changes { priority, paused, attempts_max, retry_delay_ms, on_failure, ..Changes::default() };
    for (field, value) in metadata {
        match value {
            Some(value) => drop(changes.metadata_set.insert(field, value)),
            None => changes.metadata_remove.push(field),
        }
    }
    match changes.problem() {
        Some(problem) => Err(Problem::new(ProblemCode::InvalidRequest, problem)),
        None => Ok(changes),
    }
}

pub(super) fn page_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(PAGE_ROWS_DEFAULT) {
        limit @ 1..=PAGE_ROWS_MAX => Ok(limit),
        _ => {
            let detail = format!("`limit` is between 1 and {PAGE_ROWS_MAX}; use the cursor for more");
            Err(Problem::new(ProblemCode::InvalidRequest, detail))
        }
    }
}

fn metadata_of(text: &str) -> Result<Metadata, Problem> {
    let pair = |pair: &str| match pair.split_once(':') {
        Some((field, value)) if !field.is_empty() => Ok((field.to_owned(), value_of(value))),
        Some(_) | None => Err(Problem::new(
            ProblemCode::MalformedRequest,
            format!("`metadata` is `field:value`, several separated by commas; {pair:?} is not"),
        )),
    };
    split_outside_quotes(text).into_iter().map(pair).collect()
}

/// The parts between commas, save for commas within double quotes.
fn split_outside_quotes(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let is_border = |letter: char| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    };
    text.split(is_border).collect()
}

fn value_of(text: &str) -> MetaValue {
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match (quoted, text.parse(), text.parse()) {
        (Some(text), _, _) => MetaValue::Text(text.into()),
        (None, Ok(number), _) => MetaValue::Integer(number),
        (None, Err(_), Ok(truth)) => MetaValue::Bool(truth),
        (None, Err(_), Err(_)) => MetaValue::Text(text.into()),
    }
}

/// How far the chunks of a submission in this state are.
pub fn progress_of(counts: ChunkCounts, state: SubmissionState) -> ChunkProgress {
    let skipped = match state {
        SubmissionState::Running => 0,
        SubmissionState::Completed | SubmissionState::Failed | SubmissionState::Cancelled => {
            counts.unsettled()
        }
    };
    ChunkProgress { total: counts.total, done: counts.done, failed: counts.failed, skipped }
}

fn info_of(view: SubmissionView) -> SubmissionInfo {
    let SubmissionView { id, state, submission, about, paused, finished_at } = view;
    SubmissionInfo {
        id,
        state,
        paused,
        chunks: progress_of(submission.counts, state),
        failures: submission.failures,
        rounds: submission.round,
        metadata: about.metadata,
        priority: about.priority,
        prefix: match about.input {
            Input::Prefix(prefix) => Some(prefix),
            Input::Nowhere | Input::Inline(_) => None,
        },
        attempts_max: submission.attempts_max,
        retry_delay_ms: submission.retry_delay_ms,
        on_failure: submission.on_failure,
        submitted_at: time_text(submission.submitted_at),
        finished_at: finished_at.map(time_text),
        troubles: Vec::new(),
        output: about.output.map(output_info_of),
        commit: None,
    }
}

fn result_of(id: SubmissionId, result: ChunkResult) -> ResultInfo {
    let ChunkResult { chunk, state } = result;
    let empty =
        ResultInfo { chunk, state: ResultState::Unsettled, output: None, output_key: None, reason: None };
    match state {
        ChunkState::Unsettled(failure) => ResultInfo { reason: failure.map(|it| it.reason), ..empty },
        ChunkState::Failed(failure) => {
            ResultInfo { state: ResultState::Failed, reason: Some(failure.reason), ..empty }
        }
        ChunkState::Done { attempt, output, inline } => ResultInfo {
            state: ResultState::Done,
            output: inline.map(Blob),
            output_key: (output == OutputKind::Stored).then(|| output_key(id, chunk, attempt)),
            ..empty
        },
    }
}
