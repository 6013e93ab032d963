//! complete and fail: what became of chunks that were handed out.
//!
//! Invariants
//! - The first completion of a chunk wins; later ones change nothing.
//! - A failure counts once for each attempt, however often it is reported.
//! - Both are idempotent by nature, so they need no row in the dedup window.

use super::chunks::{Acceptance, BlockName, OutputKind, Trouble};
use super::state::BatchState;
use super::submissions::{Finished, OnFailure, SubmissionState};
use crate::branches::outputs::{self, problem_of_outputs};
use crate::entry::{Applied, Complete, Done, Effect, Fail, FailedAttempt, Outcome, Output, Refusal, Settled};
use crate::ids::{ChunkIndex, ChunkName, SubmissionId};
use crate::limits::{
    CHUNKS_PER_SETTLE_MAX, FAILURE_REASON_BYTES_MAX, INLINE_OUTPUT_BYTES_MAX, OUTPUTS_PER_REPORT_MAX,
};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};

/// The row of a chunk's last failure.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct FailureRow {
    /// Why, as the consumer said.
    #[n(0)]
    pub reason: String,
    /// When.
    #[n(1)]
    pub at: At,
    /// How often the chunk had failed in its round.
    #[n(2)]
    pub failures: u32,
}

impl Complete {
    /// The first limit that the report breaks.
    pub fn problem(&self) -> Option<String> {
        let is_too_large = |done: &Done| matches!(&done.output, Output::Inline(bytes) if bytes.len() > INLINE_OUTPUT_BYTES_MAX);
        if self.done.len() > CHUNKS_PER_SETTLE_MAX {
            Some(format!("one report settles at most {CHUNKS_PER_SETTLE_MAX} chunks; send several"))
        } else if self.done.iter().any(is_too_large) {
            Some(format!(
                "an inline output is at most {INLINE_OUTPUT_BYTES_MAX} bytes; put larger ones into the object store \
                 at the attempt's output address"
            ))
        } else if self.done.iter().filter_map(|done| done.entries.as_ref()).map(Vec::len).sum::<usize>()
            > OUTPUTS_PER_REPORT_MAX
        {
            Some(format!(
                "one report has at most {OUTPUTS_PER_REPORT_MAX} outputs for a branch; send several"
            ))
        } else {
            self.done.iter().find_map(|done| problem_of_outputs(self.submission, done))
        }
    }
}

impl Fail {
    /// The first limit that the report breaks.
    pub fn problem(&self) -> Option<String> {
        if self.failed.len() > CHUNKS_PER_SETTLE_MAX {
            Some(format!("one report settles at most {CHUNKS_PER_SETTLE_MAX} chunks; send several"))
        } else if self.failed.iter().any(|it| it.reason.len() > FAILURE_REASON_BYTES_MAX) {
            Some(format!(
                "a reason is at most {FAILURE_REASON_BYTES_MAX} bytes; keep the rest in your own logs"
            ))
        } else {
            None
        }
    }
}

/// Applies completions.
pub(crate) fn complete(state: &mut BatchState, tables: &mut dyn Tables, at: At, it: Complete) -> Applied {
    if let Some(problem) = it.problem() {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let id = it.submission;
    let Some(submission) = state.submission(id) else {
        return after_the_end(tables, id, it.done.iter().map(|done| done.chunk));
    };
    let (total, round) = (submission.counts.total, submission.round);
    let is_sealed = submission.commit.is_some();
    let has_entries =
        it.done.iter().any(|done| done.entries.as_ref().is_some_and(|entries| !entries.is_empty()));
    if has_entries && submission.output.is_none() {
        let problem =
            format!("submission {id} names no output branch, so its chunks have no entries for one");
        return Applied::refused(Refusal::Malformed { problem });
    }

    // Nothing below can be refused.
    let mut accepted = Vec::new();
    let (mut settled, mut were_failed) = (Vec::with_capacity(it.done.len()), 0);
    for done in it.done {
        settled.push(if done.chunk.0 >= total {
            Settled::NoSuchChunk
        } else {
            complete_one(state, tables, id, total, round, is_sealed, done, &mut accepted, &mut were_failed)
        });
    }
    let mut effects = Vec::new();
    if !accepted.is_empty() {
        let counts = state.change(id, |submission| {
            submission.counts.done += accepted.len() as u64;
            submission.counts.failed -= were_failed;
            submission.counts
        });
        effects.push(Effect::Done { submission: id, chunks: accepted, counts });
        effects.extend(end_if_settled(state, tables, id, at));
    }
    Applied { outcome: Outcome::Settled(settled), effects }
}

#[expect(clippy::too_many_arguments, reason = "one step of the loop above, apart only to keep it readable")]
fn complete_one(
    state: &mut BatchState,
    tables: &mut dyn Tables,
    id: SubmissionId,
    total: u64,
    round: u32,
    is_sealed: bool,
    done: Done,
    accepted: &mut Vec<ChunkIndex>,
    were_failed: &mut u64,
) -> Settled {
    let (name, place) = BlockName::of(id, done.chunk);
    let block = state.block(tables, name, total);
    if block.is_done(place) {
        state.let_go_if_full(name);
        return Settled::AlreadyDone;
    }
    // The outputs are being committed without this chunk, which has failed: they do not change any more.
    if is_sealed {
        return Settled::SubmissionOver;
    }

    // Nothing below can be refused.
    let had_trouble = block.trouble(place).is_some();
    *were_failed += u64::from(block.is_failed(place, round));
    let output = match &done.output {
        Output::Nothing => OutputKind::Nothing,
        Output::Stored => OutputKind::Stored,
        Output::Inline(_) => OutputKind::Inline,
    };
    block.accept(place, Acceptance { attempt: done.attempt, output });
    state.mark_changed(name);
    outputs::stage_outputs(tables, id, &done);
    let key = ChunkName { submission: id, chunk: done.chunk }.key();
    if let Output::Inline(bytes) = done.output {
        tables.put(Table::Outputs, &key, bytes.into());
    }
    if had_trouble {
        tables.delete(Table::Failures, &key);
    }
    accepted.push(done.chunk);
    Settled::Accepted
}

/// Applies failures.
pub(crate) fn fail(state: &mut BatchState, tables: &mut dyn Tables, at: At, it: Fail) -> Applied {
    if let Some(problem) = it.problem() {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let id = it.submission;
    if state.submission(id).is_none() {
        return after_the_end(tables, id, it.failed.iter().map(|failed| failed.chunk));
    }
    let (mut settled, mut effects) = (Vec::with_capacity(it.failed.len()), Vec::new());
    for failed in it.failed {
        settled.push(match state.submission(id).map(|submission| submission.counts.total) {
            // An earlier failure of this very report has ended the submission.
            None => Settled::SubmissionOver,
            Some(total) if failed.chunk.0 >= total => Settled::NoSuchChunk,
            Some(_) => fail_one(state, tables, at, id, failed, &mut effects),
        });
    }
    Applied { outcome: Outcome::Settled(settled), effects }
}

fn fail_one(
    state: &mut BatchState,
    tables: &mut dyn Tables,
    at: At,
    id: SubmissionId,
    failed: FailedAttempt,
    effects: &mut Vec<Effect>,
) -> Settled {
    let submission = state.submission(id).expect("the caller looked").clone();
    let (name, place) = BlockName::of(id, failed.chunk);
    let block = state.block(tables, name, submission.counts.total);
    if block.is_done(place) {
        state.let_go_if_full(name);
        return Settled::AlreadyDone;
    }
    let before = block.trouble(place).copied();
    if before.is_some_and(|trouble| trouble.attempt >= failed.attempt) {
        return Settled::AlreadyFailed;
    }
    if block.is_failed(place, submission.round) {
        return Settled::AlreadyFailed;
    }

    // Nothing below can be refused.
    let failures_before =
        before.filter(|trouble| trouble.round == submission.round).map_or(0, |trouble| trouble.failures);
    let failures = failures_before + 1;
    let retry_at = (failures < submission.attempts_max).then(|| submission.retry_at(failures, at));
    block.note(Trouble { place, attempt: failed.attempt, failures, round: submission.round, retry_at });
    state.mark_changed(name);
    let key = ChunkName { submission: id, chunk: failed.chunk }.key();
    tables.put(Table::Failures, &key, rows::encode(&FailureRow { reason: failed.reason, at, failures }));
    let counts = state.change(id, |submission| {
        submission.failures += 1;
        submission.counts.failed += u64::from(retry_at.is_none());
        submission.counts
    });
    effects.push(Effect::Failed {
        submission: id,
        chunk: failed.chunk,
        attempt: failed.attempt,
        retry_at,
        counts,
    });
    if retry_at.is_none() && submission.on_failure == OnFailure::Stop {
        effects.push(state.end(tables, id, SubmissionState::Failed, at));
    } else {
        effects.extend(end_if_settled(state, tables, id, at));
    }
    Settled::Accepted
}

fn end_if_settled(
    state: &mut BatchState,
    tables: &mut dyn Tables,
    id: SubmissionId,
    at: At,
) -> Option<Effect> {
    let submission = state.submission(id)?;
    let counts = submission.counts;
    // One whose outputs are to be committed ends with its commit.
    if counts.unsettled() > 0 || submission.is_to_be_committed() {
        return None;
    }
    let ended_as = if counts.failed == 0 { SubmissionState::Completed } else { SubmissionState::Failed };
    Some(state.end(tables, id, ended_as, at))
}

/// The answer for chunks of a submission that does not run: late work is told so, and changes nothing.
fn after_the_end(
    tables: &dyn Tables,
    id: SubmissionId,
    chunks: impl ExactSizeIterator<Item = ChunkIndex>,
) -> Applied {
    let Some(row) = tables.get(Table::History, &id.key()) else {
        return Applied::refused(Refusal::SubmissionUnknown { submission: id });
    };
    let finished: Finished = rows::decode(Table::History, &id.key(), &row);
    let settled = chunks.map(|chunk| {
        if chunk.0 >= finished.submission.counts.total {
            Settled::NoSuchChunk
        } else if finished.state == SubmissionState::Completed {
            Settled::AlreadyDone
        } else {
            Settled::SubmissionOver
        }
    });
    Applied { outcome: Outcome::Settled(settled.collect()), effects: Vec::new() }
}
