//! The reserver driven together with a real machine, as the leader's shell does it: reports are proposed, applied some
//! time later, and their effects absorbed; leaders change; consumers come back with old tokens.
//!
//! The model knows of every unsettled chunk where it is, and of every hand-out that it happened.

use crate::sequences;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use windlass_core::audit;
use windlass_core::batch::reserver::{Holder, LostTooOften, Reserver, SessionId, Standing};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{OnFailure, Submit};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::{
    Cancel, Command, Complete, Done, Effect, Entry, Fail, FailedAttempt, Lead, Output, RetryFailed,
};
use windlass_core::ids::{
    Attempt, ChunkIndex, ChunkName, ContinuationToken, Epoch, SenderId, Shard, SubmissionId,
};
use windlass_core::limits::{CONSUMER_LOSSES_PER_FAILURE, LOSS_DELAY_MS};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;
use windlass_core::time::At;

#[test]
fn the_reserver_hands_out_every_attempt_once_and_knows_where_each_chunk_is() {
    sequences::run(
        "the_reserver_hands_out_every_attempt_once_and_knows_where_each_chunk_is",
        5_000,
        |seed| {
            let mut leader = Leader::new(seed);
            for _ in 0..80 {
                leader.step();
                audit::check_reserver(&leader.machine, &leader.reserver);
                leader.agrees_with_its_model();
            }
        },
    );
}

/// Where an unsettled chunk is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whereabouts {
    Ready,
    Out(Attempt, Holder),
    Delayed(At),
}

struct Leader {
    chance: Seeded,
    machine: Machine<MemoryTables>,
    reserver: Reserver,
    now: At,
    entries: u64,
    /// Proposed under an epoch, not applied yet.
    in_flight: VecDeque<(Epoch, Command)>,
    submissions: Vec<SubmissionId>,
    /// Every token ever handed out; consumers may come back with any of them.
    tokens: Vec<(ChunkName, AttemptToken)>,
    handed_out: BTreeSet<(ChunkName, Attempt)>,
    known: BTreeMap<ChunkName, Whereabouts>,
    losses: BTreeMap<ChunkName, u32>,
}

impl Leader {
    fn new(seed: u64) -> Leader {
        let mut leader = Leader {
            chance: Seeded::new(seed),
            machine: Machine::open(MemoryTables::default()),
            reserver: Reserver::new(Epoch(0), [0; 16], 0, std::iter::empty()),
            now: At::from_ms(1_750_000_000_000),
            entries: 0,
            in_flight: VecDeque::new(),
            submissions: Vec::new(),
            tokens: Vec::new(),
            handed_out: BTreeSet::new(),
            known: BTreeMap::new(),
            losses: BTreeMap::new(),
        };
        leader.change_leader();
        leader
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..8 => self.submit(),
            8..34 => self.reserve(),
            34..42 => self.reassert(),
            42..47 => self.release(),
            47..51 => self.extend(),
            51..56 => self.lose_session(),
            56..61 => self.tick(),
            61..67 => self.propose_complete(),
            67..75 => self.propose_fail(),
            75..92 => self.apply_oldest_in_flight(),
            92..94 => self.end_by_hand(),
            94..98 => self.retry_failed(),
            _ => self.change_leader(),
        }
    }

    fn agrees_with_its_model(&self) {
        let count = |is: fn(&Whereabouts) -> bool| self.known.values().filter(|it| is(it)).count();
        assert_eq!(self.reserver.ready_len(), count(|it| matches!(it, Whereabouts::Ready)) as u64);
        assert_eq!(self.reserver.out_len(), count(|it| matches!(it, Whereabouts::Out(..))));
        assert_eq!(self.reserver.delayed_len(), count(|it| matches!(it, Whereabouts::Delayed(_))));
        let due = self.known.values().filter_map(|it| match it {
            Whereabouts::Ready | Whereabouts::Out(_, Holder::Session(_)) => None,
            Whereabouts::Out(_, Holder::Lease { until }) => Some(*until),
            Whereabouts::Delayed(until) => Some(*until),
        });
        assert_eq!(self.reserver.next_tick(), due.min());
    }

    fn submit(&mut self) {
        let mut submit = Submit::new(1 + self.chance.below(6));
        submit.attempts_max = u32::try_from(1 + self.chance.below(3)).expect("it is at most 3");
        submit.retry_delay_ms = self.chance.below(2) * 500;
        submit.on_failure = if self.chance.below(3) == 0 { OnFailure::Stop } else { OnFailure::Continue };
        self.apply(self.machine.epoch(), Command::Submit(submit));
    }

    fn reserve(&mut self) {
        let max = 1 + self.chance.below(4);
        let ready = self.reserver.ready_len();
        let holder = match self.chance.below(3) {
            0 => Holder::Lease { until: self.now.after_ms(self.chance.below(1_000)) },
            _ => Holder::Session(self.session()),
        };
        let strategy = match self.chance.below(3) {
            0 => Strategy::Random,
            1 => Strategy::OldestFirst,
            _ => Strategy::NewestFirst,
        };
        let max_chunks = usize::try_from(max).expect("it is at most 4");
        let plan = self.reserver.plan(&strategy, At::from_ms(0)).expect("the strategy is served");
        while self.reserver.ready_mut().build() {}
        let hand_outs = self.reserver.reserve(holder, max_chunks, plan, self.now);
        let all = hand_outs.into_iter().flat_map(|it| {
            let submission = it.submission;
            it.chunks.into_iter().map(move |(chunk, token)| (ChunkName { submission, chunk }, token))
        });
        let all: Vec<_> = all.collect();
        assert_eq!(all.len() as u64, max.min(ready), "a consumer gets what it asks for while there is work");
        for (name, token) in all {
            let before = self.known.insert(name, Whereabouts::Out(token.attempt, holder));
            assert_eq!(before, Some(Whereabouts::Ready), "only a ready chunk is handed out");
            assert!(self.handed_out.insert((name, token.attempt)), "{name:?} is handed out twice as {token}");
            assert_eq!(token.attempt.epoch, self.machine.epoch());
            self.tokens.push((name, token));
        }
    }

    fn reassert(&mut self) {
        let Some((name, token)) = self.any_token() else { return };
        let session = self.session();
        let standing = self.standing(name, token);
        let is_ready = self.known.get(&name) == Some(&Whereabouts::Ready);
        let gets_it = standing == Standing::Holds || (standing == Standing::Lost && is_ready);
        let expected = if gets_it { Standing::Holds } else { standing };
        assert_eq!(self.reserver.reassert(session, name, token), expected);
        if gets_it {
            self.known.insert(name, Whereabouts::Out(token.attempt, Holder::Session(session)));
        }
    }

    fn release(&mut self) {
        let Some((name, token)) = self.any_token() else { return };
        let standing = self.standing(name, token);
        assert_eq!(self.reserver.release(name, token), standing);
        if standing == Standing::Holds {
            self.known.insert(name, Whereabouts::Ready);
        }
    }

    fn extend(&mut self) {
        let Some((name, token)) = self.any_token() else { return };
        let until = self.now.after_ms(self.chance.below(2_000));
        let standing = self.standing(name, token);
        assert_eq!(self.reserver.extend(name, token, until), standing);
        if standing == Standing::Holds {
            self.known.insert(name, Whereabouts::Out(token.attempt, Holder::Lease { until }));
        }
    }

    fn lose_session(&mut self) {
        let session = self.session();
        let too_often = self.reserver.lose_session(session, self.now);
        let is_lost = |holder: Holder| holder == Holder::Session(session);
        let expected = self.lose_what(is_lost);
        self.report_losses(too_often, expected);
    }

    fn tick(&mut self) {
        self.now = self.now.after_ms(self.chance.below(1_500));
        let now = self.now;
        let too_often = self.reserver.tick(now);
        let expected = self.lose_what(|holder| matches!(holder, Holder::Lease { until } if until <= now));
        for whereabouts in self.known.values_mut() {
            if matches!(whereabouts, Whereabouts::Delayed(until) if *until <= now) {
                *whereabouts = Whereabouts::Ready;
            }
        }
        self.report_losses(too_often, expected);
    }

    fn lose_what(&mut self, is_lost: impl Fn(Holder) -> bool) -> Vec<LostTooOften> {
        let mut too_often = Vec::new();
        for (name, whereabouts) in &mut self.known {
            let Whereabouts::Out(attempt, holder) = *whereabouts else { continue };
            if !is_lost(holder) {
                continue;
            }
            let losses = self.losses.entry(*name).or_default();
            *losses += 1;
            *whereabouts = Whereabouts::Ready;
            if losses.is_multiple_of(CONSUMER_LOSSES_PER_FAILURE) {
                *whereabouts = Whereabouts::Delayed(self.now.after_ms(LOSS_DELAY_MS));
                too_often.push(LostTooOften { chunk: *name, attempt, losses: *losses });
            }
        }
        too_often
    }

    /// What is lost too often becomes a failure on its way through the log.
    fn report_losses(&mut self, mut too_often: Vec<LostTooOften>, expected: Vec<LostTooOften>) {
        too_often.sort_by_key(|it| it.chunk);
        assert_eq!(too_often, expected);
        for LostTooOften { chunk, attempt, .. } in too_often {
            self.in_flight.push_back((self.machine.epoch(), failure(chunk, attempt)));
        }
    }

    fn propose_complete(&mut self) {
        let Some((name, token)) = self.any_token() else { return };
        if self.standing(name, token) != Standing::Forged {
            let done = vec![Done {
                chunk: name.chunk,
                attempt: token.attempt,
                output: Output::Stored,
                entries: None,
            }];
            let command = Command::Complete(Complete { submission: name.submission, done });
            self.in_flight.push_back((self.machine.epoch(), command));
        }
    }

    /// Only the holder's failure is proposed. When it is applied, the holder may be another one.
    fn propose_fail(&mut self) {
        let held = self.tokens.iter().filter(|(name, token)| self.standing(*name, *token) == Standing::Holds);
        let held: Vec<_> = held.copied().collect();
        if !held.is_empty() {
            let (name, token) = held[self.pick(held.len())];
            self.in_flight.push_back((self.machine.epoch(), failure(name, token.attempt)));
        }
    }

    fn apply_oldest_in_flight(&mut self) {
        if let Some((epoch, command)) = self.in_flight.pop_front() {
            self.apply(epoch, command);
        }
    }

    fn end_by_hand(&mut self) {
        if !self.submissions.is_empty() {
            let at = self.pick(self.submissions.len());
            let submission = self.submissions[at];
            self.apply(self.machine.epoch(), Command::Cancel(Cancel { submission }));
        }
    }

    fn retry_failed(&mut self) {
        for submission in self.submissions.clone() {
            self.apply(self.machine.epoch(), Command::RetryFailed(RetryFailed { submission }));
        }
    }

    /// A new leader begins with what the rows say; what was out is ready again.
    fn change_leader(&mut self) {
        let epoch = Epoch(self.machine.epoch().0 + 1);
        self.apply(epoch, Command::Lead(Lead { shard: Shard::default() }));
        let unsettled: Vec<_> = self.machine.unsettled().collect();
        let seed = self.chance.draw();
        self.reserver = Reserver::new(epoch, self.machine.token_key(), seed, unsettled.iter().cloned());
        self.losses.clear();
        self.known.clear();
        for it in unsettled {
            let name = |chunk| ChunkName { submission: it.submission, chunk };
            let chunks = it.ranges.iter().cloned().flatten().map(ChunkIndex);
            self.known.extend(chunks.map(|chunk| (name(chunk), Whereabouts::Ready)));
            let delayed =
                it.delayed.iter().map(|(chunk, until)| (name(*chunk), Whereabouts::Delayed(*until)));
            self.known.extend(delayed);
        }
    }

    fn apply(&mut self, epoch: Epoch, command: Command) {
        self.entries += 1;
        let applied = self.machine.apply(Entry {
            epoch,
            at: self.now,
            seed: self.entries,
            sender: SenderId(1),
            token: ContinuationToken(self.entries),
            command,
        });
        self.machine.flush();
        for effect in &applied.effects {
            // Effects may be repeated safely.
            for _ in 0..1 + self.chance.below(10) / 9 {
                self.reserver.absorb(effect);
            }
            self.follow(effect);
        }
    }

    fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::Ready { submission, ranges, .. } => {
                if !self.submissions.contains(submission) {
                    self.submissions.push(*submission);
                }
                for chunk in ranges.iter().cloned().flatten() {
                    let name = ChunkName { submission: *submission, chunk: ChunkIndex(chunk) };
                    let whereabouts = self.known.entry(name).or_insert(Whereabouts::Ready);
                    if matches!(whereabouts, Whereabouts::Delayed(_)) {
                        *whereabouts = Whereabouts::Ready;
                    }
                }
            }
            Effect::Done { submission, chunks, .. } => {
                chunks
                    .iter()
                    .for_each(|chunk| self.forget(ChunkName { submission: *submission, chunk: *chunk }));
            }
            Effect::Failed { submission, chunk, attempt, retry_at, .. } => {
                let name = ChunkName { submission: *submission, chunk: *chunk };
                let is_with_another =
                    matches!(self.known.get(&name), Some(Whereabouts::Out(other, _)) if other != attempt);
                match retry_at {
                    None => self.forget(name),
                    Some(_) if is_with_another => {}
                    Some(retry_at) => drop(self.known.insert(name, Whereabouts::Delayed(*retry_at))),
                }
            }
            Effect::Changed { .. }
            | Effect::Weighed { .. }
            | Effect::LaneSet { .. }
            | Effect::TaskPlaced { .. }
            | Effect::TaskMoved { .. }
            | Effect::TaskDelayed { .. }
            | Effect::TaskUnplaced { .. }
            | Effect::CommitDue { .. }
            | Effect::CommitEnded { .. }
            | Effect::AreasDropped
            | Effect::TaskGone { .. } => {}
            Effect::Over { submission, .. } => {
                self.known.retain(|name, _| name.submission != *submission);
                self.losses.retain(|name, _| name.submission != *submission);
            }
        }
    }

    fn forget(&mut self, name: ChunkName) {
        self.known.remove(&name);
        self.losses.remove(&name);
    }

    fn standing(&self, name: ChunkName, token: AttemptToken) -> Standing {
        let expected = match self.known.get(&name) {
            _ if !self.handed_out.contains(&(name, token.attempt)) => Standing::Forged,
            Some(Whereabouts::Out(attempt, _)) if *attempt == token.attempt => Standing::Holds,
            Some(_) => Standing::Lost,
            None => Standing::Settled,
        };
        assert_eq!(self.reserver.standing(name, token), expected, "{name:?} {token}");
        expected
    }

    /// A token that was handed out once; most likely a late one, now and then a forged one.
    fn any_token(&mut self) -> Option<(ChunkName, AttemptToken)> {
        if self.tokens.is_empty() {
            return None;
        }
        let newest = self.tokens.len().min(8);
        let from = if self.chance.below(3) == 0 { 0 } else { self.tokens.len() - newest };
        let at = from + self.pick(self.tokens.len() - from);
        let (name, mut token) = self.tokens[at];
        if self.chance.below(20) == 0 {
            token.attempt.nth += 1_000;
        }
        Some((name, token))
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.chance.below(3))
    }

    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.chance.below(len as u64)).expect("it is below a length")
    }
}

fn failure(name: ChunkName, attempt: Attempt) -> Command {
    let reason = "it broke".into();
    let failed = vec![FailedAttempt { chunk: name.chunk, attempt, reason }];
    Command::Fail(Fail { submission: name.submission, failed })
}
