//! What submissions whose outputs go to a branch should do.

use super::commits::leave;
use super::{Model, answered, malformed};
use std::collections::BTreeMap;
use std::ops::Range;
use windlass_core::batch::submissions::{ChunkCounts, OnFailure, SubmissionState, Submit, Traits};
use windlass_core::branches::commits::{CommitRequest, CommitState, Source};
use windlass_core::branches::entries::{MadeBy, ObjectEntry};
use windlass_core::branches::outputs::{OnChunkFailure, OutputEntry, OutputRule, output_address};
use windlass_core::branches::state::AreaId;
use windlass_core::entry::{
    Applied, Complete, Done, Effect, Entry, Fail, FailedAttempt, Outcome, Refusal, Settled,
};
use windlass_core::ids::{Attempt, SubmissionId};
use windlass_core::time::At;

/// A submission that was handed in.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) submit: Submit,
    pub(crate) state: SubmissionState,
    pub(crate) round: u32,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) commit: Option<SubmissionId>,
    /// Its outputs were committed, or thrown away.
    pub(crate) is_dropped: bool,
}

/// One chunk: what it gave, or its last failure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chunk {
    pub(crate) done: Option<Vec<(String, ObjectEntry)>>,
    failure: Option<Failure>,
}

#[derive(Debug, Clone)]
struct Failure {
    attempt: Attempt,
    round: u32,
    failures: u32,
    retry_at: Option<At>,
}

impl Handed {
    pub(crate) fn rule(&self) -> OutputRule {
        self.submit.output.clone().expect("it has an output")
    }

    /// All outputs, those of later chunks behind those of earlier ones.
    pub(crate) fn outputs(&self) -> Vec<(String, ObjectEntry)> {
        self.chunks.iter().flat_map(|chunk| chunk.done.iter().flatten().cloned()).collect()
    }

    fn is_failed(&self, chunk: &Chunk) -> bool {
        chunk.failure.as_ref().is_some_and(|it| it.round == self.round && it.retry_at.is_none())
    }

    fn is_unsettled(&self, chunk: &Chunk) -> bool {
        chunk.done.is_none() && !self.is_failed(chunk)
    }

    pub(crate) fn counts(&self) -> ChunkCounts {
        ChunkCounts {
            total: self.chunks.len() as u64,
            done: self.chunks.iter().filter(|chunk| chunk.done.is_some()).count() as u64,
            failed: self.chunks.iter().filter(|chunk| self.is_failed(chunk)).count() as u64,
        }
    }

    fn ready(&self, id: SubmissionId) -> Effect {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (index, _) in (0..).zip(&self.chunks).filter(|(_, chunk)| self.is_unsettled(chunk)) {
            match ranges.last_mut() {
                Some(last) if last.end == index => last.end += 1,
                Some(_) | None => ranges.push(index..index + 1),
            }
        }
        let (counts, traits) = (self.counts(), Traits::of(&self.submit));
        Effect::Ready { submission: id, round: self.round, ranges, counts, traits }
    }

    fn end(&mut self, id: SubmissionId, state: SubmissionState) -> Effect {
        self.state = state;
        Effect::Over { submission: id, state, counts: self.counts() }
    }

    /// One whose outputs are not to be committed is over when its last chunk is settled.
    fn end_if_settled(&mut self, id: SubmissionId) -> Option<Effect> {
        let counts = self.counts();
        let is_to_be_committed =
            self.submit.output.as_ref().is_some_and(|rule| {
                counts.failed == 0 || rule.on_chunk_failure == OnChunkFailure::CommitWithout
            });
        if counts.unsettled() > 0 || is_to_be_committed {
            return None;
        }
        let state = if counts.failed > 0 { SubmissionState::Failed } else { SubmissionState::Completed };
        Some(self.end(id, state))
    }

    fn after_the_end(&self) -> Settled {
        match self.state {
            SubmissionState::Completed => Settled::AlreadyDone,
            SubmissionState::Running | SubmissionState::Failed | SubmissionState::Cancelled => {
                Settled::SubmissionOver
            }
        }
    }
}

fn staged(id: SubmissionId, done: &Done, it: &OutputEntry) -> (String, ObjectEntry) {
    let entry = ObjectEntry {
        address: output_address(id, done.chunk, done.attempt, Some(it.object)),
        size: it.size,
        sha256: it.sha256,
        content_type: it.content_type.clone(),
        metadata: it.metadata.clone(),
        made_by: Some(MadeBy { submission: id, chunk: done.chunk }),
    };
    (it.path.clone(), entry)
}

impl Model {
    pub(super) fn submit(&mut self, entry: &Entry, it: &Submit) -> Result<Applied, Refusal> {
        if let Some(problem) = it.problem() {
            return Err(malformed(problem));
        }
        self.once(entry, it.idempotency_key.as_ref(), format!("{it:?}"), |model| {
            if let Some(rule) = &it.output {
                model.branch(&rule.branch)?;
            }
            let submission = model.next_id();
            let count = usize::try_from(it.chunks).expect("the model submits little");
            let handed = Handed {
                submit: it.clone(),
                state: SubmissionState::Running,
                round: 0,
                chunks: vec![Chunk::default(); count],
                commit: None,
                is_dropped: false,
            };
            let effects = vec![handed.ready(submission)];
            model.submissions.insert(submission, handed);
            Ok(Applied { outcome: Outcome::Submitted { submission }, effects })
        })
    }

    fn handed(&mut self, id: SubmissionId) -> Result<&mut Handed, Refusal> {
        self.submissions.get_mut(&id).ok_or(Refusal::SubmissionUnknown { submission: id })
    }

    pub(super) fn complete(&mut self, it: &Complete) -> Result<Applied, Refusal> {
        if let Some(problem) = it.problem() {
            return Err(malformed(problem));
        }
        let id = it.submission;
        let handed = self.handed(id)?;
        let is_over = handed.state != SubmissionState::Running;
        let has_entries = it.done.iter().any(|done| done.entries.iter().flatten().next().is_some());
        if !is_over && has_entries && handed.submit.output.is_none() {
            return Err(malformed(format!(
                "submission {id} names no output branch, so its chunks have no entries for one"
            )));
        }
        let (mut settled, mut accepted) = (Vec::new(), Vec::new());
        for done in &it.done {
            let answer = handed.after_the_end();
            let is_sealed = handed.commit.is_some();
            settled.push(match usize::try_from(done.chunk.0).ok().and_then(|at| handed.chunks.get_mut(at)) {
                None => Settled::NoSuchChunk,
                Some(_) if is_over => answer,
                Some(chunk) if chunk.done.is_some() => Settled::AlreadyDone,
                // What is sealed does not change any more.
                Some(_) if is_sealed => Settled::SubmissionOver,
                Some(chunk) => {
                    let entries = done.entries.iter().flatten().map(|entry| staged(id, done, entry));
                    *chunk = Chunk { done: Some(entries.collect()), failure: None };
                    accepted.push(done.chunk);
                    Settled::Accepted
                }
            });
        }
        let mut effects = Vec::new();
        if !accepted.is_empty() {
            effects.push(Effect::Done { submission: id, chunks: accepted, counts: handed.counts() });
            effects.extend(handed.end_if_settled(id));
            effects.extend(self.seal_if_settled(id));
        }
        Ok(Applied { outcome: Outcome::Settled(settled), effects })
    }

    /// After chunks were settled: the commit of the submission may be announced.
    fn seal_if_settled(&mut self, id: SubmissionId) -> Option<Effect> {
        let at = self.at;
        let handed = &self.submissions[&id];
        let is_running = handed.state == SubmissionState::Running;
        if !is_running || handed.counts().unsettled() > 0 || handed.commit.is_some() {
            return None;
        }
        let rule = handed.rule();
        let request = self.next_id();
        self.submissions.get_mut(&id).expect("it was found").commit = Some(request);
        let mut row = CommitRequest {
            branch: rule.branch.clone(),
            source: Source::Submission(id),
            announced_at: at,
            message: format!("submission {id}"),
            metadata: BTreeMap::new(),
            verify: rule.verify,
            if_parent: None,
            state: CommitState::InProgress,
        };
        if self.branches.contains_key(&rule.branch) {
            return self.wait(request, row);
        }
        row.state = CommitState::Aborted(format!("branch `{}` was deleted", rule.branch));
        self.requests.insert(request, super::Request { row, files: Default::default() });
        Some(self.end_with_commit(id))
    }

    /// The commit of a submission is performed or aborted.
    pub(super) fn end_with_commit(&mut self, id: SubmissionId) -> Effect {
        let handed = self.submissions.get_mut(&id).expect("a commit has its submission");
        let request = &self.requests[&handed.commit.expect("its commit was announced")];
        let is_whole = matches!(request.row.state, CommitState::Committed(_)) && handed.counts().failed == 0;
        handed.end(id, if is_whole { SubmissionState::Completed } else { SubmissionState::Failed })
    }

    pub(super) fn fail(&mut self, it: &Fail) -> Result<Applied, Refusal> {
        if let Some(problem) = it.problem() {
            return Err(malformed(problem));
        }
        let id = it.submission;
        let was_over = self.handed(id)?.state != SubmissionState::Running;
        let (mut settled, mut effects) = (Vec::new(), Vec::new());
        for failed in &it.failed {
            let handed = self.handed(id)?;
            let is_there = failed.chunk.0 < handed.chunks.len() as u64;
            let is_running = handed.state == SubmissionState::Running;
            settled.push(if is_running && is_there {
                self.fail_one(id, failed, &mut effects)
            } else if !was_over && !is_running {
                Settled::SubmissionOver
            } else if is_there {
                handed.after_the_end()
            } else {
                Settled::NoSuchChunk
            });
        }
        effects.extend(self.seal_if_settled(id));
        Ok(Applied { outcome: Outcome::Settled(settled), effects })
    }

    fn fail_one(&mut self, id: SubmissionId, it: &FailedAttempt, effects: &mut Vec<Effect>) -> Settled {
        let at = self.at;
        let handed = self.submissions.get_mut(&id).expect("it was found");
        let place = usize::try_from(it.chunk.0).expect("it is there");
        let chunk = handed.chunks[place].clone();
        if chunk.done.is_some() {
            return Settled::AlreadyDone;
        }
        let was_counted = chunk.failure.as_ref().is_some_and(|failure| failure.attempt >= it.attempt);
        if was_counted || handed.is_failed(&chunk) {
            return Settled::AlreadyFailed;
        }
        let before = chunk.failure.filter(|it| it.round == handed.round).map_or(0, |it| it.failures);
        let wait_ms = handed.submit.retry_delay_ms << before;
        let retry_at = (before + 1 < handed.submit.attempts_max).then(|| at.after_ms(wait_ms));
        let failure = Failure { attempt: it.attempt, round: handed.round, failures: before + 1, retry_at };
        handed.chunks[place].failure = Some(failure);
        effects.push(Effect::Failed {
            submission: id,
            chunk: it.chunk,
            attempt: it.attempt,
            retry_at,
            counts: handed.counts(),
        });
        if retry_at.is_none() && handed.submit.on_failure == OnFailure::Stop {
            effects.push(handed.end(id, SubmissionState::Failed));
        } else {
            effects.extend(handed.end_if_settled(id));
        }
        Settled::Accepted
    }

    pub(super) fn cancel(&mut self, id: SubmissionId) -> Result<Applied, Refusal> {
        let handed = self.handed(id)?;
        match handed.state {
            SubmissionState::Running => {}
            SubmissionState::Cancelled => return Ok(answered(Outcome::Cancelled)),
            state => return Err(Refusal::SubmissionOver { submission: id, state }),
        }
        let mut effects = vec![handed.end(id, SubmissionState::Cancelled)];
        let (handed, outcome) = (handed.clone(), Outcome::Cancelled);
        let Some(rule) = &handed.submit.output else { return Ok(Applied { outcome, effects }) };
        if let Some(request) = handed.commit {
            self.give_up(request, format!("submission {id} was cancelled"));
            effects.push(Effect::CommitEnded { request });
            let branch = self.branches.get_mut(&rule.branch).expect("a commit waits on its branch");
            effects.extend(leave(branch, &rule.branch, request));
        }
        let addresses = handed.outputs().into_iter().map(|(_, entry)| entry.address).collect();
        self.dropped.insert(AreaId(id), addresses);
        self.submissions.get_mut(&id).expect("it was found").is_dropped = true;
        effects.push(Effect::AreasDropped);
        Ok(Applied { outcome, effects })
    }

    pub(super) fn retry_failed(&mut self, id: SubmissionId) -> Result<Applied, Refusal> {
        let handed = self.handed(id)?.clone();
        let state_of = |request: SubmissionId| self.requests[&request].row.state.clone();
        match (handed.state, handed.commit.map(state_of)) {
            (SubmissionState::Completed, _) => return Err(Refusal::NothingFailed { submission: id }),
            (SubmissionState::Cancelled, _) => {
                return Err(Refusal::SubmissionOver { submission: id, state: handed.state });
            }
            (SubmissionState::Running, _) if handed.counts().failed == 0 => {
                return Err(Refusal::NothingFailed { submission: id });
            }
            (SubmissionState::Running, Some(_)) => {
                return Err(malformed(format!(
                    "submission {id} is being committed without what failed; wait until it is over"
                )));
            }
            (SubmissionState::Failed, Some(CommitState::Committed(_))) => {
                return Err(malformed(format!(
                    "submission {id} was committed without the chunks that failed; submit their work anew, with mode append"
                )));
            }
            (SubmissionState::Running, None) | (SubmissionState::Failed, _) => {}
        }
        let handed = self.handed(id)?;
        (handed.state, handed.commit) = (SubmissionState::Running, None);
        handed.round += 1;
        let chunks = handed.counts().unsettled();
        let mut effects = vec![handed.ready(id)];
        effects.extend(self.seal_if_settled(id));
        Ok(Applied { outcome: Outcome::Retried { chunks }, effects })
    }
}
