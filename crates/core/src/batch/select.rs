//! select: which submissions a bulk verb is for, in steps of bounded work.
//!
//! A walk goes from the newest submission down, each step below the last id that the one before looked at. What comes in
//! after the first step has a larger id and is not met. A submission that is selected all the while is met once, also if
//! it ends or gets another round meanwhile: it has one place in the walk, wherever its row is.

use super::end::finished;
use super::listing::{Page, found_key};
use super::submissions::{Finished, MetaValue, Metadata, SubmissionState};
use crate::ids::SubmissionId;
use crate::limits::PAGE_LOOKED_AT_MAX;
use crate::machine::Machine;
use crate::rows;
use crate::tables::{Table, Tables, Walk};
use std::iter::Peekable;
use std::ops::Bound;

/// Which submissions a bulk verb is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Only those that stand so.
    pub standing: SelectedStanding,
    /// Only those with all of these values.
    pub metadata: Metadata,
}

/// How selected submissions stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectedStanding {
    /// Anyhow.
    Any,
    /// In this state.
    In(SubmissionState),
    /// With failed chunks that can get another round: failed ones, and running ones that go on although chunks failed.
    Retryable,
}

impl SelectedStanding {
    fn takes(self, standing: Standing) -> bool {
        match self {
            SelectedStanding::Any => true,
            SelectedStanding::In(state) => standing.state == state,
            SelectedStanding::Retryable => match standing.state {
                SubmissionState::Failed => true,
                SubmissionState::Running => standing.has_failed_chunks,
                SubmissionState::Completed | SubmissionState::Cancelled => false,
            },
        }
    }
}

/// How a submission stands, as far as a selection goes by it.
#[derive(Debug, Clone, Copy)]
struct Standing {
    state: SubmissionState,
    has_failed_chunks: bool,
}

impl Standing {
    fn of_finished(finished: &Finished) -> Standing {
        Standing { state: finished.state, has_failed_chunks: finished.submission.counts.failed > 0 }
    }
}

impl<T: Tables> Machine<T> {
    /// The next step of a walk: selected submissions below an id, newest first. `next` is where to go on.
    pub fn select(
        &self,
        selection: &Selection,
        below: Option<SubmissionId>,
        looked_at_max: usize,
    ) -> Page<SubmissionId> {
        let looked_at_max = looked_at_max.clamp(1, PAGE_LOOKED_AT_MAX);
        let mut page = Page { items: Vec::new(), next: None };
        for (looked_at, (id, standing)) in self.standings_below(selection, below).enumerate() {
            if looked_at == looked_at_max {
                return page;
            }
            // The walk itself goes by the first value.
            if selection.standing.takes(standing) && self.has_all(id, selection.metadata.iter().skip(1)) {
                page.items.push(id);
            }
            page.next = Some(id);
        }
        page.next = None;
        page
    }

    /// Whether a submission is there and selected.
    pub fn is_selected(&self, selection: &Selection, id: SubmissionId) -> bool {
        self.standing(id).is_some_and(|standing| selection.standing.takes(standing))
            && self.has_all(id, selection.metadata.iter())
    }

    fn has_all<'v>(
        &self,
        id: SubmissionId,
        mut values: impl Iterator<Item = (&'v String, &'v MetaValue)>,
    ) -> bool {
        values.all(|(field, value)| {
            self.tables().get(Table::Found, &found_key(field, value, Some(id))).is_some()
        })
    }

    fn standing(&self, id: SubmissionId) -> Option<Standing> {
        match self.batch().submission(id) {
            Some(submission) => Some(Standing {
                state: SubmissionState::Running,
                has_failed_chunks: submission.counts.failed > 0,
            }),
            None => finished(self.tables(), id).map(|finished| Standing::of_finished(&finished)),
        }
    }

    /// Every submission that the selection's indexes cannot rule out, newest first.
    fn standings_below<'a>(
        &'a self,
        selection: &Selection,
        below: Option<SubmissionId>,
    ) -> Box<dyn Iterator<Item = (SubmissionId, Standing)> + 'a> {
        if let Some((field, value)) = selection.metadata.first_key_value() {
            let found = self.found_below(field, value, below);
            return Box::new(found.filter_map(|id| Some((id, self.standing(id)?))));
        }
        let running = self.batch().running_below(below).map(|(id, submission)| {
            let has_failed_chunks = submission.counts.failed > 0;
            (id, Standing { state: SubmissionState::Running, has_failed_chunks })
        });
        match selection.standing {
            SelectedStanding::In(SubmissionState::Running) => Box::new(running),
            SelectedStanding::In(
                SubmissionState::Completed | SubmissionState::Failed | SubmissionState::Cancelled,
            ) => Box::new(self.finished_below(below)),
            SelectedStanding::Any | SelectedStanding::Retryable => {
                Box::new(newest_first(running.peekable(), self.finished_below(below).peekable()))
            }
        }
    }

    fn finished_below(&self, below: Option<SubmissionId>) -> impl Iterator<Item = (SubmissionId, Standing)> {
        let below = below.map(SubmissionId::key);
        let end = below.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let rows = self.tables().scan(Table::History, (Bound::Unbounded, end), Walk::Down);
        rows.map(|(key, row)| {
            let id = SubmissionId::from_key(&key).expect("a submission's row has its id as key");
            (id, Standing::of_finished(&rows::decode(Table::History, &key, &row)))
        })
    }
}

/// Two walks that share no submission, as one.
fn newest_first(
    mut running: Peekable<impl Iterator<Item = (SubmissionId, Standing)>>,
    mut finished: Peekable<impl Iterator<Item = (SubmissionId, Standing)>>,
) -> impl Iterator<Item = (SubmissionId, Standing)> {
    std::iter::from_fn(move || {
        let running_is_newer = match (running.peek(), finished.peek()) {
            (Some((running, _)), Some((finished, _))) => running > finished,
            (running, _) => running.is_some(),
        };
        if running_is_newer { running.next() } else { finished.next() }
    })
}
