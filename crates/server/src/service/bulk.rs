//! The bulk verbs: one verb for all submissions that a filter names.
//!
//! First the ids are collected, in steps that hold the machine's lock for a moment each. Then every submission gets a command
//! of its own, many of them on their way at once, so that they share log writes. When whoever asked goes away, no further
//! ones are sent. Nothing is undone; asking again does the rest.

use super::Service;
use super::batch::{changes_of, unexpected};
use crate::limits::{BULK_IN_FLIGHT_MAX, BULK_REFUSALS_SHOWN, BULK_STEP_ROWS};
use futures_util::stream::{self, StreamExt};
use std::collections::BTreeSet;
use windlass_api::changes::{BulkAction, BulkFilter, BulkRefusal, BulkRequest, BulkResponse};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::change::Changes;
use windlass_core::batch::select::{SelectedStanding, Selection};
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::entry::{Cancel, Command, Outcome, RetryFailed};
use windlass_core::ids::SubmissionId;

/// What to do with each submission, checked as far as that can be done beforehand.
#[derive(Debug, Clone)]
enum Action {
    Cancel,
    RetryFailed,
    Change(Changes),
}

impl Action {
    fn of(action: BulkAction) -> Result<Action, Problem> {
        Ok(match action {
            BulkAction::Cancel => Action::Cancel,
            BulkAction::RetryFailed => Action::RetryFailed,
            BulkAction::Pause => Action::Change(Changes::pausing(true)),
            BulkAction::Resume => Action::Change(Changes::pausing(false)),
            BulkAction::Change(request) => Action::Change(changes_of(request)?),
        })
    }

    /// The submissions that it can be for.
    fn standing(&self) -> SelectedStanding {
        match self {
            Action::Cancel | Action::Change(_) => SelectedStanding::In(SubmissionState::Running),
            Action::RetryFailed => SelectedStanding::Retryable,
        }
    }
}

impl Service {
    /// Does one thing with all submissions that a filter names.
    pub async fn bulk(&self, request: BulkRequest) -> Result<BulkResponse, Problem> {
        let BulkRequest { filter, action, dry_run } = request;
        let action = Action::of(action)?;
        check_filter(&filter)?;
        tokio::select! {
            answer = self.bulk_until_done(filter, action, dry_run) => answer,
            () = self.stop().cancelled() => {
                let detail = "the server stops, and has not done all of it; ask again for the rest when it is back";
                Err(Problem::new(ProblemCode::Unavailable, detail))
            }
        }
    }

    async fn bulk_until_done(
        &self,
        filter: BulkFilter,
        action: Action,
        dry_run: bool,
    ) -> Result<BulkResponse, Problem> {
        self.freshen(None).await?;
        let BulkFilter { state, metadata, ids, all: _ } = filter;
        let standing = match state {
            Some(state) => SelectedStanding::In(state),
            // What is named one by one is refused one by one.
            None if ids.is_some() => SelectedStanding::Any,
            None => action.standing(),
        };
        let selection = Selection { standing, metadata };
        let ids = match ids {
            Some(ids) => self.select_among(&selection, ids).await,
            None => self.select_all(&selection).await,
        };
        let mut response =
            BulkResponse { matched: ids.len() as u64, changed: 0, refused: Vec::new(), dry_run };
        if !dry_run {
            self.carry_out(ids, &action, &mut response).await?;
        }
        Ok(response)
    }

    async fn select_all(&self, selection: &Selection) -> Vec<SubmissionId> {
        let (mut ids, mut below) = (Vec::new(), None);
        loop {
            let step = self.order().read(|machine| machine.select(selection, below, BULK_STEP_ROWS));
            ids.extend(step.items);
            below = step.next;
            if below.is_none() {
                return ids;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Those of the named ones that are selected, each once. One that does not exist is for its command to refuse.
    async fn select_among(&self, selection: &Selection, named: Vec<SubmissionId>) -> Vec<SubmissionId> {
        let named: BTreeSet<SubmissionId> = named.into_iter().collect();
        if selection.standing == SelectedStanding::Any && selection.metadata.is_empty() {
            return named.into_iter().collect();
        }
        let (named, mut ids) = (Vec::from_iter(named), Vec::new());
        for some in named.chunks(BULK_STEP_ROWS) {
            ids.extend(self.order().read(|machine| {
                some.iter().copied().filter(|id| machine.is_selected(selection, *id)).collect::<Vec<_>>()
            }));
            tokio::task::yield_now().await;
        }
        ids
    }

    async fn carry_out(
        &self,
        ids: Vec<SubmissionId>,
        action: &Action,
        response: &mut BulkResponse,
    ) -> Result<(), Problem> {
        let one = |id| async move { (id, self.carry_out_one(id, action).await) };
        let mut answers = stream::iter(ids).map(one).buffered(BULK_IN_FLIGHT_MAX);
        while let Some((id, answer)) = answers.next().await {
            match answer {
                Ok(()) => response.changed += 1,
                // Not this submission's business: the next ones would fare no better.
                Err(problem) if problem.retry_helps => {
                    let BulkResponse { matched, changed, .. } = response;
                    let detail = format!(
                        "{}; {changed} of {matched} submissions were done before that, ask again for the rest",
                        problem.detail
                    );
                    return Err(Problem::new(problem.code, detail));
                }
                Err(Problem { code, detail, .. }) if response.refused.len() < BULK_REFUSALS_SHOWN => {
                    response.refused.push(BulkRefusal { id, code, detail });
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    async fn carry_out_one(&self, id: SubmissionId, action: &Action) -> Result<(), Problem> {
        let command = match action {
            Action::Cancel => Command::Cancel(Cancel { submission: id }),
            Action::RetryFailed => Command::RetryFailed(RetryFailed { submission: id }),
            Action::Change(changes) => return self.propose_changes(id, changes.clone()).await,
        };
        match self.propose(command).await? {
            Outcome::Cancelled | Outcome::Retried { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// Whether the filter names something: nobody should cancel everything by leaving out a line.
fn check_filter(filter: &BulkFilter) -> Result<(), Problem> {
    let BulkFilter { state, metadata, ids, all } = filter;
    let names_something = state.is_some() || !metadata.is_empty() || ids.is_some();
    let detail = match (names_something, all) {
        (true, false) | (false, true) => return Ok(()),
        (false, false) => {
            "the filter names nothing: give `state`, `metadata` or `ids`, or say `all` if you mean all submissions"
        }
        (true, true) => "`all` stands alone: leave it out, or the rest of the filter",
    };
    Err(Problem::new(ProblemCode::InvalidRequest, detail))
}
