//! The reserver: the leader's memory of what is out, with whom, and what may go out next.
//!
//! Nothing here is logged. A new leader starts from the unsettled chunks of the rows; consumers that still work on
//! something re-assert it.
//!
//! Invariants
//! - An unsettled chunk of a running submission is in exactly one place: ready, out, or delayed.
//! - No two hand-outs of a chunk have the same attempt.
//! - Nobody but the holder of the current attempt can release, extend or fail a reservation.
//!
//! Every operation costs O(log) of what is out and ready, and none depends on the number of chunks.

mod effects;
mod tasks;

use super::deck::Side;
use super::ready::Ready;
use super::state::Unsettled;
use super::strategy::Strategy;
use super::submissions::MetadataBytes;
use super::tokens::AttemptToken;
use super::views::explain::{Elsewhere, Explanation, SubmissionSeen};
use super::views::{PlanId, Stage};
use crate::ids::{Attempt, ChunkIndex, ChunkName, Epoch, SubmissionId};
use crate::lanes::desk::Desk;
use crate::lanes::places::Place;
use crate::limits::{
    CHUNKS_PER_RESERVE_MAX, CONSUMER_LOSSES_PER_FAILURE, LOSS_DELAY_MS, OVERVIEW_RESERVATIONS_MAX,
    PLAIN_METADATA_BYTES_PER_RESERVE_MAX,
};
use crate::seeded::Seeded;
use crate::time::At;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A consumer's session: it outlives a dropped connection by the grace time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Who holds a reservation, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A session, as long as it lives.
    Session(SessionId),
    /// A caller without a session, until a deadline.
    Lease {
        /// The deadline.
        until: At,
    },
}

#[derive(Debug, Clone, Copy)]
struct Reservation {
    attempt: Attempt,
    holder: Holder,
}

/// What a chunk went through under this leadership before it became ready again.
#[derive(Debug, Clone, Copy, Default)]
struct CameBack {
    hand_outs: u32,
    losses: u32,
}

/// Chunks of one submission that were handed out together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOut {
    /// The submission.
    pub submission: SubmissionId,
    /// The chunks, each with the token of this attempt at it.
    pub chunks: Vec<(ChunkIndex, AttemptToken)>,
    /// The submission's metadata, if consumers are told nothing else of it. Where there is none, it is looked up what they are told.
    pub plain: Option<MetadataBytes>,
    /// Where the task stands, if it is one.
    pub task: Option<Place>,
}

/// What a token is good for right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its attempt holds the reservation.
    Holds,
    /// The chunk is out under another attempt, or ready for one.
    Lost,
    /// The chunk is settled, or its submission is over.
    Settled,
    /// The chunk was never handed out with this token.
    Forged,
}

/// A chunk that was lost with its consumer so often that the loss counts as a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostTooOften {
    /// The chunk.
    pub chunk: ChunkName,
    /// The attempt that was lost last.
    pub attempt: Attempt,
    /// How many of its consumers vanished.
    pub losses: u32,
}

/// See the file's head.
#[derive(Debug)]
pub struct Reserver {
    epoch: Epoch,
    token_key: [u8; 16],
    chance: Seeded,
    ready: Ready,
    desk: Desk,
    out: BTreeMap<ChunkName, Reservation>,
    tasks_out: usize,
    by_session: BTreeSet<(SessionId, ChunkName)>,
    by_deadline: BTreeSet<(At, ChunkName)>,
    delayed: BTreeMap<ChunkName, At>,
    by_delay: BTreeSet<(At, ChunkName)>,
    came_back: BTreeMap<ChunkName, CameBack>,
    /// How often a task came back: the next attempt at one that did has a larger number than those before.
    tasks_came_back: u64,
    rounds: BTreeMap<SubmissionId, u32>,
}

impl Reserver {
    /// The reserver of a leadership that begins.
    pub fn new(
        epoch: Epoch,
        token_key: [u8; 16],
        seed: u64,
        unsettled: impl Iterator<Item = Unsettled>,
    ) -> Reserver {
        let mut reserver = Reserver {
            epoch,
            token_key,
            chance: Seeded::new(seed),
            ready: Ready::default(),
            desk: Desk::default(),
            out: BTreeMap::new(),
            tasks_out: 0,
            by_session: BTreeSet::new(),
            by_deadline: BTreeSet::new(),
            delayed: BTreeMap::new(),
            by_delay: BTreeSet::new(),
            came_back: BTreeMap::new(),
            tasks_came_back: 0,
            rounds: BTreeMap::new(),
        };
        for it in unsettled {
            reserver.put_ready(it.submission, it.round, &it.ranges, &it.traits);
            for (chunk, retry_at) in &it.delayed {
                reserver.ready.take_out(it.submission, *chunk);
                reserver.delay(ChunkName { submission: it.submission, chunk: *chunk }, *retry_at);
            }
        }
        reserver
    }

    /// Moves the times of waiting retries from the machine's clock to the one that ticks.
    pub fn move_retries(&mut self, mut moved: impl FnMut(At) -> At) {
        self.delayed.values_mut().for_each(|retry_at| *retry_at = moved(*retry_at));
        self.by_delay = self.delayed.iter().map(|(name, retry_at)| (*retry_at, *name)).collect();
    }

    /// The leadership that it belongs to.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many chunks could be handed out now.
    pub fn ready_len(&self) -> u64 {
        self.ready.len()
    }

    /// How many chunks of a submission could be handed out now.
    pub fn ready_len_of(&self, submission: SubmissionId) -> u64 {
        self.ready.len_of(submission)
    }

    /// How many chunks are out.
    pub fn out_len(&self) -> usize {
        self.out.len() - self.tasks_out
    }

    /// How many tasks of lanes are out.
    pub const fn tasks_out_len(&self) -> usize {
        self.tasks_out
    }

    /// How many chunks wait for a retry.
    pub fn delayed_len(&self) -> usize {
        self.delayed.len()
    }

    /// The plan of a strategy, which is what [`Reserver::reserve`] goes by; a refusal is a sentence that says what to do.
    pub fn plan(&mut self, strategy: &Strategy, now: At) -> Result<PlanId, String> {
        self.check_lanes(strategy)?;
        self.ready.plan(strategy, now)
    }

    /// The same for somebody who only looks: it does not count as in use, and makes room for those who work.
    pub fn plan_for_a_look(&mut self, strategy: &Strategy, now: At) -> Result<PlanId, String> {
        self.ready.plan_for_a_look(strategy, now)
    }

    /// The ready chunks and the views that keep them in order.
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The same, for building views and telling them how many consumers there are.
    pub const fn ready_mut(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// How many chunks each session works on, and whether there are more than were counted.
    pub fn out_by_session(&self) -> (BTreeMap<SessionId, u64>, bool) {
        let mut held = BTreeMap::new();
        for (session, _) in self.by_session.iter().take(OVERVIEW_RESERVATIONS_MAX) {
            *held.entry(*session).or_default() += 1;
        }
        (held, self.by_session.len() > OVERVIEW_RESERVATIONS_MAX)
    }

    /// How many chunks callers without a session work on.
    pub fn leased_len(&self) -> usize {
        self.by_deadline.len()
    }

    /// What a plan whose views are built would give next, and why. What is handed out does not change by it.
    pub fn explain(&mut self, plan: PlanId) -> Option<Explanation> {
        let (out, delayed) = (self.out_len() as u64, self.delayed.len() as u64);
        self.ready.explain(plan, self.chance.clone(), Elsewhere { paused: 0, out, delayed })
    }

    /// Why a submission is or is not handed out by a plan whose views are built; none if it does not run.
    pub fn explain_submission(&mut self, plan: PlanId, submission: SubmissionId) -> Option<SubmissionSeen> {
        let delayed = names_of(&self.delayed, submission);
        let retry_at = delayed.iter().filter_map(|name| self.delayed.get(name).copied()).min();
        let out = names_of(&self.out, submission).len() as u64;
        self.ready.explain_submission(plan, submission, out, (delayed.len() as u64, retry_at))
    }

    /// Hands out up to `max` chunks or tasks by the plan; nothing only if nothing that it may give is ready, or if its views
    /// are still being built or its lanes being read.
    pub fn reserve(&mut self, holder: Holder, max: usize, plan: PlanId, now: At) -> Vec<HandOut> {
        let mut left = max.min(CHUNKS_PER_RESERVE_MAX);
        let mut hand_outs = Vec::new();
        for stage in self.ready.stages(plan).iter() {
            let is_settled = match stage {
                Stage::Chunks(among) => {
                    self.reserve_chunks(holder, &mut left, plan, among, &mut hand_outs);
                    !self.ready.is_building(plan)
                }
                Stage::Lane(lane) => self.reserve_tasks(holder, &mut left, lane, now, &mut hand_outs),
            };
            // What comes behind something that is not known yet might be second choice.
            if left == 0 || !is_settled {
                break;
            }
        }
        hand_outs
    }

    fn reserve_chunks(
        &mut self,
        holder: Holder,
        left: &mut usize,
        plan: PlanId,
        among: &Range<usize>,
        hand_outs: &mut Vec<HandOut>,
    ) {
        let mut by_submission: BTreeMap<SubmissionId, Vec<(ChunkIndex, AttemptToken)>> = BTreeMap::new();
        while *left > 0
            && let Some((submission, chunks)) = self.ready.take(plan, among.clone(), *left, &mut self.chance)
        {
            *left -= chunks.len();
            let handed = by_submission.entry(submission).or_default();
            for chunk in chunks {
                let name = ChunkName { submission, chunk };
                let attempt = self.next_attempt(name);
                self.hold(name, Reservation { attempt, holder });
                handed.push((chunk, AttemptToken::new(&self.token_key, name, attempt)));
            }
        }
        let mut bytes_left = PLAIN_METADATA_BYTES_PER_RESERVE_MAX;
        hand_outs.extend(by_submission.into_iter().map(|(submission, chunks)| {
            let plain = if bytes_left > 0 { self.ready.plain_metadata(submission) } else { None };
            bytes_left = bytes_left.saturating_sub(plain.as_ref().map_or(0, |it| it.as_bytes().len()));
            HandOut { submission, chunks, plain, task: None }
        }));
    }

    fn next_attempt(&self, name: ChunkName) -> Attempt {
        let hand_outs = self.came_back.get(&name).map_or(0, |it| it.hand_outs);
        let round = self.rounds.get(&name.submission).copied().unwrap_or(0);
        Attempt { epoch: self.epoch, nth: (u64::from(round) << 32) | u64::from(hand_outs) }
    }

    /// What the token is good for.
    pub fn standing(&self, name: ChunkName, token: AttemptToken) -> Standing {
        if !token.is_of(&self.token_key, name) {
            return Standing::Forged;
        }
        match self.out.get(&name) {
            Some(reservation) if reservation.attempt == token.attempt => Standing::Holds,
            Some(_) => Standing::Lost,
            None if self.is_waiting(name, token) => Standing::Lost,
            None => Standing::Settled,
        }
    }

    fn is_waiting(&self, name: ChunkName, token: AttemptToken) -> bool {
        // What became of a task that is not out is known to its row only.
        token.attempt.is_of_task()
            || self.delayed.contains_key(&name)
            || self.ready.contains(name.submission, name.chunk)
    }

    /// Gives a session back what it still works on after a reconnect or a change of leader, if nobody else has it.
    pub fn reassert(&mut self, session: SessionId, name: ChunkName, token: AttemptToken) -> Standing {
        let standing = self.standing(name, token);
        let reservation = Reservation { attempt: token.attempt, holder: Holder::Session(session) };
        match standing {
            Standing::Holds => self.pass_on(name, reservation),
            // A chunk that waits for its retry has failed under a later attempt: that one is not taken back.
            Standing::Lost
                if !token.attempt.is_of_task() && self.ready.take_out(name.submission, name.chunk) =>
            {
                self.hold(name, reservation);
                self.ready.count(name.submission, true);
            }
            Standing::Lost | Standing::Settled | Standing::Forged => return standing,
        }
        Standing::Holds
    }

    /// Moves the deadline of a lease.
    pub fn extend(&mut self, name: ChunkName, token: AttemptToken, until: At) -> Standing {
        let standing = self.standing(name, token);
        if standing == Standing::Holds {
            self.pass_on(name, Reservation { attempt: token.attempt, holder: Holder::Lease { until } });
        }
        standing
    }

    /// Takes a chunk back unharmed: a consumer that stops gives back what it has not begun.
    pub fn release(&mut self, name: ChunkName, token: AttemptToken) -> Standing {
        let standing = self.standing(name, token);
        if standing == Standing::Holds {
            self.take_back(name);
            self.give_back(name, Side::Top);
        }
        standing
    }

    /// Takes back unharmed everything of a session that says goodbye.
    pub fn release_session(&mut self, session: SessionId) {
        for name in self.names_of_session(session) {
            self.take_back(name);
            self.give_back(name, Side::Top);
        }
    }

    /// Takes back everything of a session that is gone.
    pub fn lose_session(&mut self, session: SessionId, now: At) -> Vec<LostTooOften> {
        self.names_of_session(session).into_iter().filter_map(|name| self.lose(name, now)).collect()
    }

    fn names_of_session(&self, session: SessionId) -> Vec<ChunkName> {
        let smallest =
            ChunkName { submission: SubmissionId::from_u64(1).expect("1 is an id"), chunk: ChunkIndex(0) };
        let of_session =
            self.by_session.range((session, smallest)..).take_while(|(holder, _)| *holder == session);
        of_session.map(|(_, name)| *name).collect()
    }

    /// Takes back what is past its deadline, and lets go what has waited for its retry long enough.
    pub fn tick(&mut self, now: At) -> Vec<LostTooOften> {
        let mut too_often = Vec::new();
        while let Some((until, name)) = self.by_deadline.first().copied()
            && until <= now
        {
            too_often.extend(self.lose(name, now));
        }
        while let Some((retry_at, name)) = self.by_delay.first().copied()
            && retry_at <= now
        {
            self.undelay(name);
            self.give_back(name, Side::Bottom);
        }
        too_often
    }

    /// When the next tick has something to do.
    pub fn next_tick(&self) -> Option<At> {
        let deadline = self.by_deadline.first().map(|it| it.0);
        let delay = self.by_delay.first().map(|it| it.0);
        deadline.into_iter().chain(delay).min()
    }

    fn lose(&mut self, name: ChunkName, now: At) -> Option<LostTooOften> {
        let attempt = self.out[&name].attempt;
        self.take_back(name);
        let came_back = self.came_back.entry(name).or_default();
        came_back.losses += 1;
        let losses = came_back.losses;
        if losses.is_multiple_of(CONSUMER_LOSSES_PER_FAILURE) {
            // Its failure is on the way through the log; until it is counted, nobody gets the chunk.
            self.delay(name, now.after_ms(LOSS_DELAY_MS));
            return Some(LostTooOften { chunk: name, attempt, losses });
        }
        self.give_back(name, Side::Bottom);
        None
    }

    /// Makes a chunk or a task ready again.
    fn give_back(&mut self, name: ChunkName, side: Side) {
        if self.desk.is_out(name.submission) {
            self.desk.put_back(name.submission);
            self.wake_lanes();
        } else {
            self.ready.put_back(name.submission, name.chunk, side);
        }
    }

    /// Ends a reservation whose chunk will be handed out again.
    fn take_back(&mut self, name: ChunkName) {
        let is_task = self.out.get(&name).is_some_and(|it| it.attempt.is_of_task());
        self.unhold(name);
        // Of tasks there are too many, and some wait for long, to count for each.
        match is_task {
            true => self.tasks_came_back += 1,
            false => self.came_back.entry(name).or_default().hand_outs += 1,
        }
    }

    /// Notes who holds a chunk that is counted as out.
    fn hold(&mut self, name: ChunkName, reservation: Reservation) {
        self.index(name, reservation.holder);
        self.tasks_out += usize::from(reservation.attempt.is_of_task());
        let before = self.out.insert(name, reservation);
        assert!(before.is_none(), "a chunk is out once");
    }

    /// Ends a reservation; false if there is none.
    fn unhold(&mut self, name: ChunkName) -> bool {
        let Some(reservation) = self.out.remove(&name) else { return false };
        if reservation.attempt.is_of_task() {
            self.tasks_out -= 1;
        } else {
            self.ready.count(name.submission, false);
        }
        self.unindex(name, reservation.holder);
        true
    }

    /// Replaces a reservation; the chunk is out all the while.
    fn pass_on(&mut self, name: ChunkName, reservation: Reservation) {
        self.index(name, reservation.holder);
        let before = self.out.insert(name, reservation).expect("only a reservation is passed on");
        if before.holder != reservation.holder {
            self.unindex(name, before.holder);
        }
    }

    fn index(&mut self, name: ChunkName, holder: Holder) {
        match holder {
            Holder::Session(session) => self.by_session.insert((session, name)),
            Holder::Lease { until } => self.by_deadline.insert((until, name)),
        };
    }

    fn unindex(&mut self, name: ChunkName, holder: Holder) {
        match holder {
            Holder::Session(session) => self.by_session.remove(&(session, name)),
            Holder::Lease { until } => self.by_deadline.remove(&(until, name)),
        };
    }

    fn delay(&mut self, name: ChunkName, until: At) {
        self.delayed.insert(name, until);
        self.by_delay.insert((until, name));
    }

    fn undelay(&mut self, name: ChunkName) {
        if let Some(until) = self.delayed.remove(&name) {
            self.by_delay.remove(&(until, name));
        }
    }

    fn forget(&mut self, name: ChunkName) {
        if !self.unhold(name) {
            self.undelay(name);
            self.ready.take_out(name.submission, name.chunk);
        }
        self.came_back.remove(&name);
    }

    fn forget_submission(&mut self, submission: SubmissionId) {
        for name in names_of(&self.out, submission) {
            self.unhold(name);
        }
        for name in names_of(&self.delayed, submission) {
            self.undelay(name);
        }
        for name in names_of(&self.came_back, submission) {
            self.came_back.remove(&name);
        }
        self.ready.remove_submission(submission);
        self.rounds.remove(&submission);
    }

    /// Where each of these chunks is, for the audit: exactly one of ready, out and delayed.
    pub(crate) fn places_of(&self, name: ChunkName) -> [bool; 3] {
        [
            self.ready.contains(name.submission, name.chunk),
            self.out.contains_key(&name),
            self.delayed.contains_key(&name),
        ]
    }

    /// The totals that the audit compares with a recount.
    pub(crate) fn total_len(&self) -> u64 {
        let is_chunk = |name: &&ChunkName| !self.desk.is_out(name.submission);
        let (out, delayed) =
            (self.out.keys().filter(is_chunk).count(), self.delayed.keys().filter(is_chunk).count());
        self.ready.len() + self.ready.paused_len() + out as u64 + delayed as u64
    }

    /// Checks the views by recounting everything.
    pub(crate) fn check_views(&self) {
        let mut out = BTreeMap::new();
        for name in self.out.keys().filter(|name| !self.desk.is_out(name.submission)) {
            *out.entry(name.submission).or_default() += 1;
        }
        self.ready.check_views(&out);
    }

    /// Whether the side indexes say the same as the reservations.
    pub(crate) fn indexes_agree(&self) -> bool {
        let by_session = self.out.iter().filter_map(|(name, it)| match it.holder {
            Holder::Session(session) => Some((session, *name)),
            Holder::Lease { .. } => None,
        });
        let by_deadline = self.out.iter().filter_map(|(name, it)| match it.holder {
            Holder::Session(_) => None,
            Holder::Lease { until } => Some((until, *name)),
        });
        by_session.collect::<BTreeSet<_>>() == self.by_session
            && by_deadline.collect::<BTreeSet<_>>() == self.by_deadline
            && self.delayed.iter().map(|(name, at)| (*at, *name)).collect::<BTreeSet<_>>() == self.by_delay
    }
}

fn names_of<V>(map: &BTreeMap<ChunkName, V>, submission: SubmissionId) -> Vec<ChunkName> {
    let first = ChunkName { submission, chunk: ChunkIndex(0) };
    let last = ChunkName { submission, chunk: ChunkIndex(u64::MAX) };
    map.range(first..=last).map(|(name, _)| *name).collect()
}
