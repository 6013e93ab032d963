//! The naive model of the batch room: every chunk has its own state, every answer is found by looking at all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::roster::Enlist;
use windlass_core::batch::settle::FailureRow;
use windlass_core::batch::state::Unsettled;
use windlass_core::batch::submissions::{
    ChunkCounts, OnFailure, Submission, SubmissionState, Submit, Traits,
};
use windlass_core::batch::weights::{Weigh, Weights};
use windlass_core::entry::{
    Applied, Command, Complete, Effect, Entry, Fail, FailedAttempt, Outcome, Output, Refusal, Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, SubmissionId};
use windlass_core::limits::{DEDUP_EXPIRED_PER_APPLY_MAX, DEDUP_WINDOW_MS, RETRY_DELAY_MS_MAX};
use windlass_core::time::At;

/// All that the batch room should know.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) epoch: Epoch,
    pub(crate) at: At,
    pub(crate) submissions: BTreeMap<SubmissionId, Handed>,
    /// Oldest first.
    pub(crate) replies: Vec<Reply>,
    /// The newest token of each sender of a submit without a key.
    sent: BTreeMap<SenderId, ContinuationToken>,
    pub(crate) enlisted: BTreeSet<u64>,
    pub(crate) leases_until: At,
    pub(crate) weights: BTreeMap<String, Weights>,
}

/// A submission that was handed in.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    /// What is said of it now.
    pub(crate) submit: Submit,
    pub(crate) paused: bool,
    pub(crate) submitted_at: At,
    pub(crate) state: SubmissionState,
    pub(crate) finished_at: Option<At>,
    pub(crate) round: u32,
    pub(crate) failures: u64,
    pub(crate) chunks: Vec<Chunk>,
}

/// One chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chunk {
    pub(crate) done: Option<(Attempt, Output)>,
    /// The last failure; gone once the chunk is done.
    pub(crate) failure: Option<Failure>,
}

/// A failure that was counted.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) attempt: Attempt,
    pub(crate) round: u32,
    pub(crate) retry_at: Option<At>,
    pub(crate) row: FailureRow,
}

/// A reply that is remembered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) key: String,
    pub(crate) submit: Submit,
    pub(crate) submission: SubmissionId,
    pub(crate) at: At,
}

impl Chunk {
    pub(crate) fn is_failed(&self, round: u32) -> bool {
        self.failure.as_ref().is_some_and(|it| it.round == round && it.retry_at.is_none())
    }

    pub(crate) fn is_unsettled(&self, round: u32) -> bool {
        self.done.is_none() && !self.is_failed(round)
    }
}

impl Handed {
    pub(crate) fn counts(&self) -> ChunkCounts {
        let count = |is: &dyn Fn(&Chunk) -> bool| self.chunks.iter().filter(|chunk| is(chunk)).count() as u64;
        ChunkCounts {
            total: self.chunks.len() as u64,
            done: count(&|chunk| chunk.done.is_some()),
            failed: count(&|chunk| chunk.is_failed(self.round)),
        }
    }

    /// The row that the submission should have.
    pub(crate) fn row(&self) -> Submission {
        Submission {
            submitted_at: self.submitted_at,
            counts: self.counts(),
            attempts_max: self.submit.attempts_max,
            retry_delay_ms: self.submit.retry_delay_ms,
            on_failure: self.submit.on_failure,
            round: self.round,
            failures: self.failures,
            output: None,
            commit: None,
        }
    }

    pub(crate) fn traits(&self) -> Traits {
        Traits { paused: self.paused, ..Traits::of(&self.submit) }
    }

    /// What of it can be handed out.
    pub(crate) fn unsettled(&self, submission: SubmissionId) -> Unsettled {
        let mut unsettled = Unsettled {
            submission,
            round: self.round,
            ranges: Vec::new(),
            delayed: Vec::new(),
            traits: self.traits(),
        };
        for (index, chunk) in (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.is_unsettled(self.round)) {
            push(&mut unsettled.ranges, index);
            let delay = chunk.failure.as_ref().filter(|it| it.round == self.round).and_then(|it| it.retry_at);
            unsettled.delayed.extend(delay.map(|retry_at| (ChunkIndex(index), retry_at)));
        }
        unsettled
    }

    fn end(&mut self, id: SubmissionId, state: SubmissionState, at: At) -> Effect {
        self.state = state;
        self.paused = false;
        self.finished_at = Some(at);
        Effect::Over { submission: id, state, counts: self.counts() }
    }

    fn end_if_settled(&mut self, id: SubmissionId, at: At) -> Option<Effect> {
        let counts = self.counts();
        (counts.unsettled() == 0).then(|| {
            let state = if counts.failed > 0 { SubmissionState::Failed } else { SubmissionState::Completed };
            self.end(id, state, at)
        })
    }
}

fn push(ranges: &mut Vec<Range<u64>>, index: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == index => last.end += 1,
        _ => ranges.push(index..index + 1),
    }
}

fn answered(outcome: Outcome) -> Applied {
    Applied { outcome, effects: Vec::new() }
}

impl Room {
    /// What applying the entry should give. Only a new submission's id is taken from what it `gave`: of ids the model
    /// knows that they grow, not how they are made.
    pub(crate) fn apply(&mut self, entry: &Entry, gave: &Applied) -> Applied {
        let is_lead = matches!(entry.command, Command::Lead(_));
        if entry.epoch < self.epoch || (entry.epoch == self.epoch && is_lead) {
            return Applied::refused(Refusal::Fenced { current: self.epoch });
        }
        self.at = self.at.max(entry.at);
        match &entry.command {
            Command::Lead(_) => {
                self.epoch = entry.epoch;
                answered(Outcome::Led { epoch: entry.epoch })
            }
            Command::Submit(it) => self.submit(entry, it, gave),
            Command::Complete(it) => self.complete(it),
            Command::Fail(it) => self.fail(it),
            Command::Cancel(it) => self.cancel(it.submission),
            Command::RetryFailed(it) => self.retry_failed(it.submission),
            Command::Change(it) => self.change(it),
            Command::Enlist(it) => self.enlist(it),
            Command::Weigh(it) => self.weigh(it),
            Command::SetLane(_)
            | Command::AddTasks(_)
            | Command::Ack(_)
            | Command::ReleaseTasks
            | Command::Redrive(_)
            | Command::WeighKeys(_)
            | Command::LimitLane(_)
            | Command::Relevel(_)
            | Command::CompleteTasks(_)
            | Command::OrderKeys(_) => panic!("lanes have tests of their own"),
            Command::CreateBranch(_)
            | Command::DeleteBranch(_)
            | Command::ResetBranch(_)
            | Command::Grant(_)
            | Command::Stage(_)
            | Command::Announce(_)
            | Command::NoteFiles(_)
            | Command::Perform(_)
            | Command::Abort(_)
            | Command::Sweep => panic!("branches have tests of their own"),
        }
    }

    fn submit(&mut self, entry: &Entry, submit: &Submit, gave: &Applied) -> Applied {
        if let Some(problem) = submit.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let key = &submit.idempotency_key;
        if key.is_none() && self.sent.get(&entry.sender) >= Some(&entry.token) {
            return Applied::refused(Refusal::Repeated);
        }
        if let Some(reply) = self.replies.iter().find(|reply| Some(&reply.key) == key.as_ref()) {
            return if reply.submit == *submit {
                answered(Outcome::Submitted { submission: reply.submission })
            } else {
                Applied::refused(Refusal::IdempotencyKeyReused)
            };
        }
        let Outcome::Submitted { submission: id } = gave.outcome else {
            panic!("a well-formed new submission is taken in, not answered with {gave:?}");
        };
        assert!(self.submissions.last_key_value().is_none_or(|(last, _)| *last < id), "ids grow");

        let chunks =
            vec![Chunk::default(); usize::try_from(submit.chunks).expect("the model submits little")];
        let handed = Handed {
            submit: submit.clone(),
            paused: false,
            submitted_at: self.at,
            state: SubmissionState::Running,
            finished_at: None,
            round: 0,
            failures: 0,
            chunks,
        };
        let counts = handed.counts();
        self.submissions.insert(id, handed);
        match key.clone() {
            Some(key) => {
                self.replies.push(Reply { key, submit: submit.clone(), submission: id, at: self.at })
            }
            None => drop(self.sent.insert(entry.sender, entry.token)),
        }
        for _ in 0..DEDUP_EXPIRED_PER_APPLY_MAX {
            if self.replies.first().is_some_and(|oldest| oldest.at.after_ms(DEDUP_WINDOW_MS) < self.at) {
                self.replies.remove(0);
            }
        }
        Applied {
            outcome: Outcome::Submitted { submission: id },
            effects: vec![Effect::Ready {
                submission: id,
                round: 0,
                ranges: vec![Range { start: 0, end: submit.chunks }],
                counts,
                traits: Traits::of(submit),
            }],
        }
    }

    fn complete(&mut self, it: &Complete) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let (id, at) = (it.submission, self.at);
        let Some(handed) = self.submissions.get_mut(&id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        let (mut settled, mut accepted) = (Vec::new(), Vec::new());
        let state = handed.state;
        for done in &it.done {
            settled.push(match usize::try_from(done.chunk.0).ok().and_then(|at| handed.chunks.get_mut(at)) {
                None => Settled::NoSuchChunk,
                Some(_) if state != SubmissionState::Running => after_the_end(state),
                Some(chunk) if chunk.done.is_some() => Settled::AlreadyDone,
                Some(chunk) => {
                    *chunk = Chunk { done: Some((done.attempt, done.output.clone())), failure: None };
                    accepted.push(done.chunk);
                    Settled::Accepted
                }
            });
        }
        let mut effects = Vec::new();
        if !accepted.is_empty() {
            effects.push(Effect::Done { submission: id, chunks: accepted, counts: handed.counts() });
            effects.extend(handed.end_if_settled(id, at));
        }
        Applied { outcome: Outcome::Settled(settled), effects }
    }

    fn fail(&mut self, it: &Fail) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let (id, at) = (it.submission, self.at);
        let Some(handed) = self.submissions.get_mut(&id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        let was_over = handed.state != SubmissionState::Running;
        let (mut settled, mut effects) = (Vec::new(), Vec::new());
        for failed in &it.failed {
            let exists = failed.chunk.0 < handed.chunks.len() as u64;
            settled.push(match handed.state {
                SubmissionState::Running if exists => fail_one(handed, id, failed, at, &mut effects),
                // An earlier failure of this report ended the submission: the rest of it is not looked at.
                state if !was_over && state != SubmissionState::Running => Settled::SubmissionOver,
                state if exists => after_the_end(state),
                _ => Settled::NoSuchChunk,
            });
        }
        Applied { outcome: Outcome::Settled(settled), effects }
    }

    fn cancel(&mut self, id: SubmissionId) -> Applied {
        let at = self.at;
        let Some(handed) = self.submissions.get_mut(&id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        match handed.state {
            SubmissionState::Running => {
                let over = handed.end(id, SubmissionState::Cancelled, at);
                Applied { outcome: Outcome::Cancelled, effects: vec![over] }
            }
            SubmissionState::Cancelled => answered(Outcome::Cancelled),
            state => Applied::refused(Refusal::SubmissionOver { submission: id, state }),
        }
    }

    fn retry_failed(&mut self, id: SubmissionId) -> Applied {
        let Some(handed) = self.submissions.get_mut(&id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        if handed.state == SubmissionState::Cancelled {
            return Applied::refused(Refusal::SubmissionOver { submission: id, state: handed.state });
        }
        if handed.counts().failed == 0 {
            return Applied::refused(Refusal::NothingFailed { submission: id });
        }
        handed.round += 1;
        handed.state = SubmissionState::Running;
        handed.finished_at = None;
        let (Unsettled { round, ranges, traits, .. }, counts) = (handed.unsettled(id), handed.counts());
        Applied {
            outcome: Outcome::Retried { chunks: counts.unsettled() },
            effects: vec![Effect::Ready { submission: id, round, ranges, counts, traits }],
        }
    }

    fn enlist(&mut self, it: &Enlist) -> Applied {
        self.enlisted.extend(&it.joined);
        self.enlisted.retain(|session| !it.left.contains(session));
        if it.leases_ms > 0 {
            self.leases_until = self.leases_until.max(self.at.after_ms(it.leases_ms));
        }
        answered(Outcome::Noted)
    }

    fn weigh(&mut self, it: &Weigh) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let weights = self.weights.entry(it.field.clone()).or_default();
        for (value, weight) in &it.weights {
            weights.remove(value);
            weights.extend(weight.map(|weight| (value.clone(), weight)));
        }
        let weights = weights.clone();
        self.weights.retain(|_, weights| !weights.is_empty());
        let effects = vec![Effect::Weighed { field: it.field.clone(), weights }];
        Applied { outcome: Outcome::Noted, effects }
    }

    fn change(&mut self, it: &Change) -> Applied {
        let (id, changes) = (it.submission, &it.changes);
        if let Some(problem) = changes.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let Some(handed) = self.submissions.get_mut(&id) else {
            return Applied::refused(Refusal::SubmissionUnknown { submission: id });
        };
        if handed.state != SubmissionState::Running {
            return Applied::refused(Refusal::SubmissionOver { submission: id, state: handed.state });
        }
        let changed = changed(&handed.submit, changes);
        // A submission that could not come in so cannot become so.
        if let Some(problem) = changed.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let before = handed.traits();
        handed.submit = changed;
        handed.paused = changes.paused.unwrap_or(handed.paused);
        let traits = handed.traits();
        let effects =
            if traits == before { vec![] } else { vec![Effect::Changed { submission: id, traits }] };
        Applied { outcome: Outcome::Changed, effects }
    }
}

fn changed(submit: &Submit, changes: &Changes) -> Submit {
    let mut submit = submit.clone();
    for (field, value) in &changes.metadata_set {
        submit.metadata.insert(field.clone(), value.clone());
    }
    for field in &changes.metadata_remove {
        submit.metadata.remove(field);
    }
    submit.priority = changes.priority.unwrap_or(submit.priority);
    submit.attempts_max = changes.attempts_max.unwrap_or(submit.attempts_max);
    submit.retry_delay_ms = changes.retry_delay_ms.unwrap_or(submit.retry_delay_ms);
    submit.on_failure = changes.on_failure.unwrap_or(submit.on_failure);
    submit
}

fn after_the_end(state: SubmissionState) -> Settled {
    match state {
        SubmissionState::Completed => Settled::AlreadyDone,
        SubmissionState::Running | SubmissionState::Failed | SubmissionState::Cancelled => {
            Settled::SubmissionOver
        }
    }
}

fn fail_one(
    handed: &mut Handed,
    id: SubmissionId,
    failed: &FailedAttempt,
    at: At,
    effects: &mut Vec<Effect>,
) -> Settled {
    let (round, attempts_max, delay) =
        (handed.round, handed.submit.attempts_max, handed.submit.retry_delay_ms);
    let chunk = &mut handed.chunks[usize::try_from(failed.chunk.0).expect("the caller looked")];
    if chunk.done.is_some() {
        return Settled::AlreadyDone;
    }
    let was_counted = chunk.failure.as_ref().is_some_and(|it| it.attempt >= failed.attempt);
    if was_counted || chunk.is_failed(round) {
        return Settled::AlreadyFailed;
    }
    let before = chunk.failure.as_ref().filter(|it| it.round == round).map_or(0, |it| it.row.failures);
    let failures = before + 1;
    let wait_ms = (0..before).fold(delay, |wait, _| wait.saturating_mul(2)).min(RETRY_DELAY_MS_MAX);
    let retry_at = (failures < attempts_max).then(|| at.after_ms(wait_ms));
    chunk.failure = Some(Failure {
        attempt: failed.attempt,
        round,
        retry_at,
        row: FailureRow { reason: failed.reason.clone(), at, failures },
    });
    handed.failures += 1;
    effects.push(Effect::Failed {
        submission: id,
        chunk: failed.chunk,
        attempt: failed.attempt,
        retry_at,
        counts: handed.counts(),
    });
    if retry_at.is_none() && handed.submit.on_failure == OnFailure::Stop {
        effects.push(handed.end(id, SubmissionState::Failed, at));
    } else {
        effects.extend(handed.end_if_settled(id, at));
    }
    Settled::Accepted
}
