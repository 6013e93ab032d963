//! cancel and retry-failed: ending a submission by hand, and giving a failed one another round.

use super::state::{BatchState, traits_of};
use super::submissions::{Finished, SubmissionState};
use crate::branches::outputs::refusal_of_retry;
use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::ids::SubmissionId;
use crate::limits::ROUNDS_MAX;
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;

/// Ends a running submission. Cancelling a cancelled one again is answered the same and changes nothing.
pub(crate) fn cancel(state: &mut BatchState, tables: &mut dyn Tables, at: At, id: SubmissionId) -> Applied {
    if state.submission(id).is_none() {
        return match finished(tables, id) {
            None => Applied::refused(Refusal::SubmissionUnknown { submission: id }),
            Some(finished) if finished.state == SubmissionState::Cancelled => {
                Applied { outcome: Outcome::Cancelled, effects: Vec::new() }
            }
            Some(finished) => {
                Applied::refused(Refusal::SubmissionOver { submission: id, state: finished.state })
            }
        };
    }

    // Nothing below can be refused.
    let over = state.end(tables, id, SubmissionState::Cancelled, at);
    Applied { outcome: Outcome::Cancelled, effects: vec![over] }
}

/// Brings a failed submission back: what failed or was skipped gets a fresh round of attempts, what is done stays done.
///
/// Costs a walk over the submission's own blocks, which its own failures and completions made.
pub(crate) fn retry_failed(state: &mut BatchState, tables: &mut dyn Tables, id: SubmissionId) -> Applied {
    if let Some(submission) = state.submission(id) {
        if submission.counts.failed == 0 {
            return Applied::refused(Refusal::NothingFailed { submission: id });
        }
        if submission.round >= ROUNDS_MAX {
            return Applied::refused(too_many_rounds(id));
        }
        if submission.commit.is_some() {
            let problem =
                format!("submission {id} is being committed without what failed; wait until it is over");
            return Applied::refused(Refusal::Malformed { problem });
        }
    }
    if state.submission(id).is_none() {
        let Some(finished) = finished(tables, id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        match finished.state {
            SubmissionState::Failed if finished.submission.round >= ROUNDS_MAX => {
                return Applied::refused(too_many_rounds(id));
            }
            SubmissionState::Failed => {
                if let Some(refusal) = refusal_of_retry(tables, id, finished.submission.commit) {
                    return Applied::refused(refusal);
                }
            }
            SubmissionState::Completed => {
                return Applied::refused(Refusal::NothingFailed { submission: id });
            }
            SubmissionState::Running | SubmissionState::Cancelled => {
                return Applied::refused(Refusal::SubmissionOver { submission: id, state: finished.state });
            }
        }

        // Nothing below can be refused.
        tables.delete(Table::History, &id.key());
        let traits = traits_of(tables, id);
        tables.put(Table::Traits, &id.key(), rows::encode(&traits));
        state.begin(id, finished.submission);
    }
    let counts = state.change(id, |submission| {
        submission.round += 1;
        submission.counts.failed = 0;
        submission.commit = None;
        submission.counts
    });
    state.flush(tables);
    let unsettled = state.unsettled_of(tables, id).expect("the submission runs again");
    Applied {
        outcome: Outcome::Retried {
            chunks: unsettled.ranges.iter().map(|range| range.end - range.start).sum(),
        },
        effects: vec![Effect::Ready {
            submission: id,
            round: unsettled.round,
            ranges: unsettled.ranges,
            counts,
            traits: unsettled.traits,
        }],
    }
}

fn too_many_rounds(id: SubmissionId) -> Refusal {
    let problem = format!("submission {id} was retried {ROUNDS_MAX} times; submit its failed work anew");
    Refusal::Malformed { problem }
}

/// The row of a submission that is over.
pub(crate) fn finished(tables: &dyn Tables, id: SubmissionId) -> Option<Finished> {
    let row = tables.get(Table::History, &id.key())?;
    Some(rows::decode(Table::History, &id.key(), &row))
}
