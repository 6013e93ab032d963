//! submit: a submission comes in, as one row and what its producer said of it.

use super::listing::found_key;
use super::state::BatchState;
use super::submissions::{Submission, Submit, Traits};
use crate::entry::{Applied, Effect, Outcome};
use crate::ids::SubmissionId;
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;

/// Takes in a submission that was found to be well formed and new.
pub(crate) fn submit(
    state: &mut BatchState,
    tables: &mut dyn Tables,
    at: At,
    id: SubmissionId,
    submit: &Submit,
) -> Applied {
    let submission = Submission::new(submit, at);
    let counts = submission.counts;
    state.begin(id, submission);
    tables.put(Table::Abouts, &id.key(), rows::encode(submit));
    let traits = Traits::of(submit);
    tables.put(Table::Traits, &id.key(), rows::encode(&traits));
    for (field, value) in &submit.metadata {
        tables.put(Table::Found, &found_key(field, value, Some(id)), Vec::new());
    }
    Applied {
        outcome: Outcome::Submitted { submission: id },
        effects: vec![Effect::Ready {
            submission: id,
            round: 0,
            ranges: vec![std::ops::Range { start: 0, end: submit.chunks }],
            counts,
            traits,
        }],
    }
}
