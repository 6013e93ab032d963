//! A queue as its leader has it: a reserver fed with effects, and beside it the plain truth of where each chunk is.

use crate::lanes::Lanes;
use crate::naive::{Seen, Submission};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use windlass_core::audit;
use windlass_core::batch::reserver::{Holder, LostTooOften, Reserver, SessionId, Standing};
use windlass_core::batch::state::Unsettled;
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{ChunkCounts, MetaValue, SubmissionState, Traits};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::batch::views::PlanId;
use windlass_core::entry::Effect;
use windlass_core::ids::{Attempt, ChunkIndex, ChunkName, Epoch, Shard, SubmissionId};
use windlass_core::limits::LOSS_DELAY_MS;
use windlass_core::time::At;

const BEGIN: At = At::from_ms(1_750_000_000_000);
const NO_COUNTS: ChunkCounts = ChunkCounts { total: 0, done: 0, failed: 0 };

/// Where an unsettled chunk is, or a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Whereabouts {
    Ready,
    Out(Holder, AttemptToken),
    Delayed(At),
}

struct Known {
    traits: Rc<Traits>,
    round: u32,
    chunks: BTreeMap<ChunkIndex, Whereabouts>,
}

pub(crate) struct Queue {
    pub(crate) reserver: Reserver,
    pub(crate) now: At,
    epoch: Epoch,
    newest: Option<SubmissionId>,
    submissions: BTreeMap<SubmissionId, Known>,
    lanes: Lanes,
    consumers: u64,
    is_holding: bool,
}

/// Traits with these fields.
pub(crate) fn traits<const N: usize>(fields: [(&str, MetaValue); N]) -> Traits {
    let metadata = fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
    Traits { metadata, ..Traits::default() }
}

pub(crate) fn company(name: &str) -> Traits {
    traits([("company", name.into())])
}

impl Queue {
    pub(crate) fn new(seed: u64) -> Queue {
        Queue {
            reserver: Reserver::new(Epoch(1), [7; 16], seed, std::iter::empty()),
            now: BEGIN,
            epoch: Epoch(1),
            newest: None,
            submissions: BTreeMap::new(),
            lanes: Lanes::default(),
            consumers: 0,
            is_holding: false,
        }
    }

    /// What the naive evaluator goes by.
    pub(crate) fn seen(&self) -> Seen {
        let count = |known: &Known, is: fn(&Whereabouts) -> bool| {
            known.chunks.values().filter(|whereabouts| is(whereabouts)).count() as u64
        };
        let submissions = self.submissions.iter().map(|(id, known)| Submission {
            id: *id,
            traits: Rc::clone(&known.traits),
            ready: count(known, |it| matches!(it, Whereabouts::Ready)),
            out: count(known, |it| matches!(it, Whereabouts::Out(..))),
        });
        let (consumers, is_holding) = (self.consumers, self.is_holding);
        Seen { submissions: submissions.collect(), lanes: self.lanes.seen(), consumers, is_holding }
    }

    pub(crate) fn audit(&self) {
        audit::check_views(&self.reserver);
        let known = self.submissions.values();
        let count = |of: &Known, is: fn(&Whereabouts) -> bool| of.chunks.values().filter(|it| is(it)).count();
        let ready: usize = known
            .clone()
            .filter(|it| !it.traits.paused)
            .map(|it| count(it, |it| *it == Whereabouts::Ready))
            .sum();
        let out: usize = known.map(|it| count(it, |it| matches!(it, Whereabouts::Out(..)))).sum();
        assert_eq!((self.reserver.ready_len(), self.reserver.out_len()), (ready as u64, out));
        let tasks_out = self.lanes.whereabouts().filter(|(_, it)| matches!(it, Whereabouts::Out(..))).count();
        assert_eq!(self.reserver.tasks_out_len(), tasks_out);
    }

    pub(crate) fn ids(&self) -> Vec<SubmissionId> {
        self.submissions.keys().copied().collect()
    }

    pub(crate) fn traits_of(&self, submission: SubmissionId) -> &Traits {
        &self.submissions[&submission].traits
    }

    /// Everything that is out.
    pub(crate) fn out(&self) -> Vec<(ChunkName, AttemptToken)> {
        let of = |(id, known): (&SubmissionId, &Known)| {
            let out = known.chunks.iter().filter_map(|(chunk, whereabouts)| match whereabouts {
                Whereabouts::Out(_, token) => Some((ChunkName { submission: *id, chunk: *chunk }, *token)),
                Whereabouts::Ready | Whereabouts::Delayed(_) => None,
            });
            out.collect::<Vec<_>>()
        };
        let tasks = self.lanes.whereabouts().filter_map(|(name, whereabouts)| match whereabouts {
            Whereabouts::Out(_, token) => Some((name, token)),
            Whereabouts::Ready | Whereabouts::Delayed(_) => None,
        });
        self.submissions.iter().flat_map(of).chain(tasks).collect()
    }

    /// There are lanes from here on.
    pub(crate) fn create_lanes(&mut self) {
        self.lanes.create(&mut self.reserver);
    }

    /// A task is added to a lane, at or behind the pass that the tasks before had, or before it.
    pub(crate) fn add_task(&mut self, lane: &str, priority: u8, pass: u64) {
        let id = self.next_id();
        self.lanes.add(&mut self.reserver, id, lane, priority, pass);
    }

    /// A lane is paused or goes on, and so many of its tasks may be out.
    pub(crate) fn set_lane(&mut self, lane: &str, is_paused: bool, in_flight: Option<u32>) {
        self.lanes.set(&mut self.reserver, lane, is_paused, in_flight);
    }

    /// Every task is done, wherever it is.
    pub(crate) fn complete_all_tasks(&mut self) {
        for id in self.lanes.ids() {
            self.lanes.complete(&mut self.reserver, id);
        }
    }

    /// Submissions and tasks have ids of one sequence.
    fn next_id(&mut self) -> SubmissionId {
        let id = SubmissionId::next(self.newest, self.now, Shard::default());
        self.newest = Some(id);
        id
    }

    pub(crate) fn submit(&mut self, chunks: u64, traits: Traits) -> SubmissionId {
        let submission = self.next_id();
        let ranges = std::iter::once(0..chunks).collect();
        let effect =
            Effect::Ready { submission, round: 0, ranges, counts: NO_COUNTS, traits: traits.clone() };
        self.reserver.absorb(&effect);
        let chunks = (0..chunks).map(|chunk| (ChunkIndex(chunk), Whereabouts::Ready)).collect();
        self.submissions.insert(submission, Known { traits: Rc::new(traits), round: 0, chunks });
        submission
    }

    /// The strategy's plan, with its views built.
    pub(crate) fn plan(&mut self, strategy: &Strategy) -> PlanId {
        let plan = self.reserver.plan(strategy, self.now).expect("the strategy is served");
        while self.reserver.ready_mut().build() {}
        plan
    }

    pub(crate) fn reserve(
        &mut self,
        holder: Holder,
        max: usize,
        plan: PlanId,
    ) -> Vec<(ChunkName, AttemptToken)> {
        let mut given = Vec::new();
        for hand_out in self.reserver.reserve(holder, max, plan, self.now) {
            if hand_out.task.is_some() {
                let (chunk, token) = hand_out.chunks[0];
                let before = self.lanes.put(hand_out.submission, Whereabouts::Out(holder, token));
                assert_eq!(before, Whereabouts::Ready, "only a ready task is handed out");
                given.push((ChunkName { submission: hand_out.submission, chunk }, token));
                continue;
            }
            let known = self.submissions.get_mut(&hand_out.submission).expect("it runs");
            let metadata =
                minicbor::to_vec(&known.traits.metadata).expect("encoding into memory does not fail");
            let said = hand_out.plain.as_ref().map(|metadata| metadata.as_bytes());
            let expected = known.traits.is_plain.then_some(&metadata[..]);
            assert_eq!(said, expected, "a plain submission's metadata is told as it is now, and no other's");
            for (chunk, token) in hand_out.chunks {
                let before = known.chunks.insert(chunk, Whereabouts::Out(holder, token));
                assert_eq!(before, Some(Whereabouts::Ready), "only a ready chunk is handed out");
                given.push((ChunkName { submission: hand_out.submission, chunk }, token));
            }
        }
        given
    }

    /// Hands out up to `max` chunks to somebody, and says of which submissions.
    pub(crate) fn take(&mut self, max: usize, strategy: &Strategy) -> Vec<SubmissionId> {
        let plan = self.plan(strategy);
        let given = self.reserve(Holder::Session(SessionId(1)), max, plan);
        given.into_iter().map(|(name, _)| name.submission).collect()
    }

    pub(crate) fn complete(&mut self, name: ChunkName) {
        let ChunkName { submission, chunk } = name;
        if self.lanes.has(submission) {
            return self.lanes.complete(&mut self.reserver, submission);
        }
        self.reserver.absorb(&Effect::Done { submission, chunks: vec![chunk], counts: NO_COUNTS });
        let known = self.submissions.get_mut(&submission).expect("it runs");
        known.chunks.remove(&chunk);
        if known.chunks.is_empty() {
            self.end(submission, SubmissionState::Completed);
        }
    }

    pub(crate) fn cancel(&mut self, submission: SubmissionId) {
        self.end(submission, SubmissionState::Cancelled);
    }

    fn end(&mut self, submission: SubmissionId, state: SubmissionState) {
        self.reserver.absorb(&Effect::Over { submission, state, counts: NO_COUNTS });
        self.submissions.remove(&submission);
    }

    /// The attempt fails, and the chunk may be tried again some time later.
    pub(crate) fn fail(&mut self, name: ChunkName, attempt: Attempt, delay_ms: u64) {
        let ChunkName { submission, chunk } = name;
        if self.lanes.has(submission) {
            return self.lanes.fail(&mut self.reserver, submission, attempt, delay_ms);
        }
        let retry_at = self.now.after_ms(delay_ms);
        let failed =
            Effect::Failed { submission, chunk, attempt, retry_at: Some(retry_at), counts: NO_COUNTS };
        self.reserver.absorb(&failed);
        self.put(name, Whereabouts::Delayed(retry_at));
    }

    /// Every unsettled chunk gets another round of attempts: what waits need not wait, and what is out stays out.
    pub(crate) fn retry_failed(&mut self, submission: SubmissionId) {
        let known = self.submissions.get_mut(&submission).expect("it runs");
        known.round += 1;
        let ranges = ranges_of(known.chunks.keys().copied());
        let (round, traits) = (known.round, Traits::clone(&known.traits));
        for whereabouts in known.chunks.values_mut() {
            if matches!(whereabouts, Whereabouts::Delayed(_)) {
                *whereabouts = Whereabouts::Ready;
            }
        }
        self.reserver.absorb(&Effect::Ready { submission, round, ranges, counts: NO_COUNTS, traits });
    }

    pub(crate) fn release(&mut self, name: ChunkName, token: AttemptToken) {
        assert_eq!(self.reserver.release(name, token), Standing::Holds);
        self.put(name, Whereabouts::Ready);
    }

    pub(crate) fn extend(&mut self, name: ChunkName, token: AttemptToken, ms: u64) {
        let until = self.now.after_ms(ms);
        assert_eq!(self.reserver.extend(name, token, until), Standing::Holds);
        self.put(name, Whereabouts::Out(Holder::Lease { until }, token));
    }

    /// Somebody comes back with an old token, and gets the chunk if nobody else has it.
    pub(crate) fn reassert(&mut self, session: SessionId, name: ChunkName, token: AttemptToken) {
        if self.lanes.has(name.submission) {
            let Some((rank, placed)) = self.lanes.to_reassert(name.submission, token.attempt) else { return };
            if self.reserver.reassert_task(session, rank, placed, token) == Standing::Holds {
                self.put(name, Whereabouts::Out(Holder::Session(session), token));
            }
        } else if self.submissions.contains_key(&name.submission)
            && self.reserver.reassert(session, name, token) == Standing::Holds
        {
            self.put(name, Whereabouts::Out(Holder::Session(session), token));
        }
    }

    pub(crate) fn lose_session(&mut self, session: SessionId) {
        let too_often = self.reserver.lose_session(session, self.now);
        self.lose(|holder| holder == Holder::Session(session), &too_often);
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        let now = self.now;
        let too_often = self.reserver.tick(now);
        self.lose(|holder| matches!(holder, Holder::Lease { until } if until <= now), &too_often);
        let chunks = self.submissions.values_mut().flat_map(|known| known.chunks.values_mut());
        for whereabouts in chunks.chain(self.lanes.whereabouts_mut().map(|(_, it)| it)) {
            if matches!(whereabouts, Whereabouts::Delayed(until) if *until <= now) {
                *whereabouts = Whereabouts::Ready;
            }
        }
    }

    fn lose(&mut self, is_lost: impl Fn(Holder) -> bool, too_often: &[LostTooOften]) {
        let too_often: BTreeSet<ChunkName> = too_often.iter().map(|it| it.chunk).collect();
        let chunks = self.submissions.iter_mut().flat_map(|(id, known)| {
            let name = |chunk| ChunkName { submission: *id, chunk };
            known.chunks.iter_mut().map(move |(chunk, whereabouts)| (name(*chunk), whereabouts))
        });
        for (name, whereabouts) in chunks.chain(self.lanes.whereabouts_mut()) {
            if matches!(whereabouts, Whereabouts::Out(holder, _) if is_lost(*holder)) {
                *whereabouts = match too_often.contains(&name) {
                    true => Whereabouts::Delayed(self.now.after_ms(LOSS_DELAY_MS)),
                    false => Whereabouts::Ready,
                };
            }
        }
    }

    fn put(&mut self, name: ChunkName, whereabouts: Whereabouts) {
        if self.lanes.has(name.submission) {
            self.lanes.put(name.submission, whereabouts);
            return;
        }
        let known = self.submissions.get_mut(&name.submission).expect("it runs");
        known.chunks.insert(name.chunk, whereabouts);
    }

    pub(crate) fn change(&mut self, submission: SubmissionId, traits: Traits) {
        self.reserver.absorb(&Effect::Changed { submission, traits: traits.clone() });
        self.submissions.get_mut(&submission).expect("it runs").traits = Rc::new(traits);
    }

    pub(crate) fn set_room(&mut self, consumers: u64, is_holding: bool) {
        self.reserver.ready_mut().set_room(consumers, is_holding);
        (self.consumers, self.is_holding) = (consumers, is_holding);
    }

    /// A new leader begins with what the rows say: nothing is out, nobody has had a turn, no strategy is in use.
    pub(crate) fn change_leader(&mut self, seed: u64) {
        self.epoch = Epoch(self.epoch.0 + 1);
        let unsettled = self.submissions.iter().map(|(id, known)| Unsettled {
            submission: *id,
            round: known.round,
            ranges: ranges_of(known.chunks.keys().copied()),
            delayed: known
                .chunks
                .iter()
                .filter_map(|(chunk, it)| delay_of(it).map(|at| (*chunk, at)))
                .collect(),
            traits: Traits::clone(&known.traits),
        });
        self.reserver = Reserver::new(self.epoch, [7; 16], seed, unsettled);
        self.lanes.tell(&mut self.reserver);
        self.reserver.ready_mut().set_room(self.consumers, self.is_holding);
        for whereabouts in self.submissions.values_mut().flat_map(|known| known.chunks.values_mut()) {
            if matches!(whereabouts, Whereabouts::Out(..)) {
                *whereabouts = Whereabouts::Ready;
            }
        }
    }
}

fn delay_of(whereabouts: &Whereabouts) -> Option<At> {
    match whereabouts {
        Whereabouts::Delayed(until) => Some(*until),
        Whereabouts::Ready | Whereabouts::Out(..) => None,
    }
}

fn ranges_of(chunks: impl Iterator<Item = ChunkIndex>) -> Vec<std::ops::Range<u64>> {
    let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
    for ChunkIndex(chunk) in chunks {
        match ranges.last_mut() {
            Some(last) if last.end == chunk => last.end += 1,
            Some(_) | None => ranges.push(chunk..chunk + 1),
        }
    }
    ranges
}
