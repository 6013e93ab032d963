//! The Dispatcher: owns the reserver, knows the consumers' sessions, and gives waiting consumers their work.
//!
//! Invariants
//! - While a chunk is ready, no reserve that could take it waits, but for a moment while a new strategy's view is built, or its session
//!   is put on the roster.
//! - Work that its asker never received goes back unharmed.
//! - A consumer that comes back gets a new session, and moves what it re-asserts into it. What it does not re-assert, since
//!   it never received it, goes back with the old session.

mod enlisting;
mod event;
mod handle;
mod hold;
mod lanes;
mod lines;
mod looks;
mod serving;
mod sessions;
mod totals;

use crate::clock::Clock;
use crate::config::SessionTimes;
use enlisting::Enlisting;
pub use enlisting::{Expected, NotLeased, RosterNote};
pub use event::{Ask, Asker, Connected, DispatcherStatus, Event, Reasserted, ToSession};
pub use handle::DispatcherHandle;
use hold::Hold;
pub use lanes::{HeldBack, LaneErrand};
use lines::Lines;
pub use looks::{ConsumerSeen, Explain, Explained, Overview};
use serving::give_nothing;
use sessions::Sessions;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
pub use totals::Totals;
use windlass_core::batch::reserver::{LostTooOften, Reserver, SessionId, Standing};
use windlass_core::batch::roster::Roster;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::batch::views::PlanId;
use windlass_core::entry::Effect;
use windlass_core::ids::ChunkName;
use windlass_core::lanes::desk::Desk;
use windlass_core::limits::STRATEGY_IDLE_MS_MAX;
use windlass_core::time::At;

/// See the file's head.
#[derive(Debug)]
pub struct Dispatcher {
    clock: Clock,
    reserver: Option<Reserver>,
    sessions: Sessions,
    lines: Lines,
    /// Reserves that came while nobody led.
    unplanned: Vec<Ask>,
    /// Plans with an ask that does not wish to wait, whose views are being built.
    impatient: Vec<PlanId>,
    /// Questions about strategies whose views are being built.
    explaining: Vec<Explain>,
    is_building: bool,
    /// When the Ticker looks again.
    planned: Option<At>,
    sweep_at: At,
    draining: bool,
    /// Since when the totals count.
    began: At,
    totals: Totals,
    hold: Hold,
    times: SessionTimes,
    notes: mpsc::UnboundedSender<LostTooOften>,
    enlisting: Enlisting,
    errands: mpsc::UnboundedSender<LaneErrand>,
    /// When the lanes' ack levels are noted next.
    note_lanes_at: At,
    /// Whether more of them are to be noted than could be last time.
    notes_more_lanes: bool,
    /// Whether any lane limits tasks in flight, or is about to.
    limits_lanes: bool,
    /// The same, if it is news.
    lanes_changed: Option<bool>,
}

/// A number that nobody can guess, for sessions.
pub(crate) fn unguessable() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Dispatcher {
    /// A Dispatcher that leads nothing yet. Chunks that have failed an attempt because their consumers keep vanishing go to `notes`, who
    /// holds work under hard limits to `roster`, and what lanes need to `errands`.
    pub fn new(
        clock: Clock,
        times: SessionTimes,
        notes: mpsc::UnboundedSender<LostTooOften>,
        roster: mpsc::UnboundedSender<RosterNote>,
        errands: mpsc::UnboundedSender<LaneErrand>,
    ) -> Dispatcher {
        Dispatcher {
            clock,
            reserver: None,
            sessions: Sessions::new(times),
            lines: Lines::new(),
            unplanned: Vec::new(),
            impatient: Vec::new(),
            explaining: Vec::new(),
            is_building: false,
            planned: None,
            sweep_at: At::from_ms(0),
            draining: false,
            began: clock.now(),
            totals: Totals::default(),
            hold: Hold::default(),
            times,
            notes,
            enlisting: Enlisting::new(roster),
            errands,
            note_lanes_at: At::from_ms(0),
            notes_more_lanes: false,
            limits_lanes: false,
            lanes_changed: None,
        }
    }

    /// Does what is due, and says how long nothing more is.
    pub fn run_once(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        self.tick(now);
        self.build(now);
        self.send_errands();
        self.planned = self.next_tick();
        match self.is_building {
            true => Some(Duration::ZERO),
            false => self.planned.map(|at| self.clock.until(at)),
        }
    }

    /// Whether something is due before the time that [`Dispatcher::run_once`] gave.
    pub(super) fn is_due_earlier(&self) -> bool {
        self.is_building
            || match (self.next_tick(), self.planned) {
                (Some(next), Some(planned)) => next < planned,
                (next, planned) => next.is_some() && planned.is_none(),
            }
    }

    /// When the next tick has something to do.
    pub fn next_tick(&self) -> Option<At> {
        let look = self.sessions.next_look();
        let reserver = self.reserver.as_ref().and_then(Reserver::next_tick);
        look.into_iter().chain(reserver).chain(self.hold.next_tick()).chain(self.next_lane_tick()).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, now: At) {
        if self.sessions.next_look().is_some_and(|at| at <= now) {
            while let Some(session) = self.sessions.next_gone(now) {
                self.remove(session);
                if let Some(reserver) = &mut self.reserver {
                    let lost = reserver.lose_session(session, now);
                    self.report(lost);
                }
            }
            self.follow_consumers(now);
        }
        if self.hold.next_tick().is_some_and(|at| at <= now) {
            for session in self.hold.let_go(now) {
                // One that was connected to this node all the while may be on the roster anew.
                if !self.sessions.may_be_enlisted(session) {
                    self.enlisting.note(RosterNote::Left(session));
                }
            }
            self.follow_consumers(now);
        }
        let Some(reserver) = &mut self.reserver else { return };
        let lost = reserver.tick(now);
        if self.sweep_at <= now {
            self.sweep_at = now.after_ms(STRATEGY_IDLE_MS_MAX / 4);
            reserver.ready_mut().sweep(now, |plan| self.lines.has(plan));
        }
        self.report(lost);
        self.tick_lanes(now);
        self.serve_waiting(now);
    }

    /// Goes on building the views of strategies that are new; each step takes a few milliseconds.
    fn build(&mut self, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        self.is_building = reserver.ready_mut().build();
        self.serve_waiting(now);
        self.explain_what_is_built(now);
        self.answer_impatient(now);
    }

    /// Handles one event; call [`Dispatcher::serve_waiting`] after it.
    pub fn handle(&mut self, event: Event, now: At) {
        match event {
            Event::Led { at, reserver, roster } => self.lead(at, reserver, &roster, now),
            Event::Effects { at, effects } => self.absorb(at, effects, now),
            Event::Lost => {
                self.reserver = None;
                self.unplanned.append(&mut self.lines.take_all());
                self.unplanned.append(&mut self.enlisting.take_all());
            }
            Event::Connect { before, name, out, reply } => {
                self.connect(before, name, out, reply, now);
                // The connection before may have ended.
                self.follow_consumers(now);
            }
            Event::Seen(session) => self.sessions.see(session, now),
            Event::Disconnect(session) => {
                drop(self.sessions.disconnect(session, now));
                self.follow_consumers(now);
            }
            Event::Leave(session) => {
                self.remove(session);
                if let Some(reserver) = &mut self.reserver {
                    reserver.release_session(session);
                }
                self.follow_consumers(now);
            }
            Event::Reassert(session, claimed, reply) => self.reassert(session, claimed, reply, now),
            Event::Returned(session) => self.note_return(session, now),
            Event::Enlisted(epoch, sessions) => self.note_enlisted(epoch, &sessions, now),
            Event::ExpectLimit(lane, reply) => self.expect_limit(lane, reply),
            Event::Release(chunks, reply) => self.answer(&chunks, reply, Reserver::release),
            Event::Extend(chunks, until, reply) => {
                self.answer(&chunks, reply, |reserver, name, token| reserver.extend(name, token, until));
            }
            Event::Standing(chunks, reply) => {
                self.answer(&chunks, reply, |reserver, name, token| reserver.standing(name, token));
            }
            Event::Status(reply) => drop(reply.send(self.status())),
            Event::Explain(ask) => self.explain(ask, now),
            Event::Overview(field, limit, reply) => self.overview(field.as_deref(), limit, reply, now),
            Event::TasksRead { epoch, queue, rows, is_end } if self.leads_under(epoch) => {
                self.take_in_tasks(&queue, rows, is_end, now);
            }
            Event::TasksNotRead(epoch, queue) if self.leads_under(epoch) => self.give_up_read(&queue),
            // Another leadership asks for itself.
            Event::TasksRead { .. } | Event::TasksNotRead(..) => {}
            Event::TaskMissing(task) => {
                if let Some(reserver) = &mut self.reserver {
                    reserver.absorb(&Effect::TaskGone { task });
                }
            }
            Event::TasksStillDue(at) => self.note_due(at),
            Event::Drain => self.drain(now),
        }
    }

    fn lead(&mut self, at: At, mut reserver: Box<Reserver>, roster: &Roster, now: At) {
        self.hold = Hold::new(roster, at, now, self.times.grace_ms);
        reserver.move_retries(|retry_at| on_this_clock(retry_at, at, now));
        reserver.at_desk(|desk| desk.move_due(|due| on_this_clock(due, at, now)));
        self.reserver = Some(*reserver);
        // Those of an earlier leadership are awaited as if they were others.
        self.sessions.strike_all();
        self.note_lane_limits();
        self.follow_consumers(now);
        for ask in std::mem::take(&mut self.unplanned) {
            let answer = self.reserve(ask, now);
            self.deliver(answer);
        }
    }

    /// Limits in percent follow the number of connected consumers, and hard ones the hold.
    fn follow_consumers(&mut self, now: At) {
        if let Some(reserver) = &mut self.reserver {
            let is_held = self.hold.holds(now);
            reserver.ready_mut().set_room(self.sessions.consumers() as u64, is_held);
            reserver.at_desk(|desk| desk.set_held(is_held));
        }
    }

    /// A session asks for work, or says what it still works on: from then on it counts as a consumer.
    pub(super) fn note_consumer(&mut self, session: SessionId, now: At) {
        if self.sessions.note_consumer(session) {
            self.follow_consumers(now);
        }
    }

    /// Forgets a session.
    fn remove(&mut self, session: SessionId) {
        if self.sessions.remove(session) {
            self.enlisting.note(RosterNote::Left(session));
        }
    }

    /// A session that goes on with one of an earlier leadership has said all that it still works on, or has nothing.
    fn note_return(&mut self, session: SessionId, now: At) {
        if let Some(before) = self.sessions.take_returning(session)
            && self.hold.came_back(before)
        {
            self.enlisting.note(RosterNote::Left(before));
            self.follow_consumers(now);
        }
    }

    fn absorb(&mut self, at: At, effects: Vec<Effect>, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        let mut has_set_lane = false;
        for mut effect in effects {
            if let Effect::Failed { retry_at: Some(time), .. } | Effect::TaskDelayed { until: time } =
                &mut effect
            {
                *time = on_this_clock(*time, at, now);
            }
            self.totals.count(&effect);
            reserver.absorb(&effect);
            has_set_lane |= matches!(effect, Effect::LaneSet { .. });
        }
        if has_set_lane {
            self.note_lane_limits();
        }
    }

    fn connect(
        &mut self,
        before: Option<SessionId>,
        name: String,
        out: mpsc::UnboundedSender<ToSession>,
        reply: oneshot::Sender<Connected>,
        now: At,
    ) {
        if let Some(connection) = before.and_then(|before| self.sessions.disconnect(before, now)) {
            // A connection that has ended by itself needs no such word.
            drop(connection.send(ToSession::Replaced));
        }
        if self.draining {
            drop(out.send(ToSession::Draining));
        }
        let returning = before.filter(|before| self.hold.awaits(*before));
        let may_hold_limited =
            returning.is_some() || before.is_some_and(|before| self.sessions.may_hold_limited(before));
        let session = self.sessions.connect(name, out, returning, may_hold_limited, now);
        if reply.send(Connected { session, may_hold_limited }).is_err() {
            self.sessions.remove(session);
        }
    }

    fn drain(&mut self, now: At) {
        self.draining = true;
        let waiting = self.lines.take_all().into_iter().chain(std::mem::take(&mut self.unplanned));
        let waiting = waiting.chain(self.enlisting.take_all());
        waiting.for_each(|ask| give_nothing(ask, now));
        for (_, _, connection) in self.sessions.connections() {
            drop(connection.send(ToSession::Draining));
        }
    }

    fn answer(
        &mut self,
        chunks: &[(ChunkName, AttemptToken)],
        reply: oneshot::Sender<Vec<Standing>>,
        mut ask: impl FnMut(&mut Reserver, ChunkName, AttemptToken) -> Standing,
    ) {
        // Without a leadership there is no answer: dropping the reply tells the asker.
        if let Some(reserver) = &mut self.reserver {
            drop(reply.send(chunks.iter().map(|(name, token)| ask(reserver, *name, *token)).collect()));
        }
    }

    fn report(&self, lost: Vec<LostTooOften>) {
        // During a stop nobody takes notes any more.
        lost.into_iter().for_each(|it| _ = self.notes.send(it));
    }

    fn status(&self) -> DispatcherStatus {
        let reserver = self.reserver.as_ref();
        DispatcherStatus {
            ready: reserver.map_or(0, Reserver::ready_len),
            paused: reserver.map_or(0, |it| it.ready().paused_len()),
            out: reserver.map_or(0, Reserver::out_len),
            tasks_out: reserver.map_or(0, Reserver::tasks_out_len),
            delayed: reserver.map_or(0, Reserver::delayed_len),
            consumers: self.sessions.consumers(),
            waiting: self.lines.count(&self.sessions) + self.unplanned.len() + self.enlisting.len(),
            views: reserver.map_or(0, |it| it.ready().views_len().0),
        }
    }
}

/// Whether the desk limits the tasks in flight of a lane.
fn is_limited(desk: &Desk, lane: &str) -> bool {
    desk.lane(lane).is_some_and(|lane| desk.limits_in_flight(lane))
}

/// A time of the machine's clock on ours. The two run apart when the system's clock is set or the machine sleeps, so what
/// counts is how long after the entry it lies.
fn on_this_clock(time: At, at: At, now: At) -> At {
    now.after_ms(time.as_ms().saturating_sub(at.as_ms()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::batch::state::Unsettled;
    use windlass_core::batch::submissions::Traits;
    use windlass_core::ids::{ChunkIndex, Epoch, SubmissionId};

    #[test]
    fn a_retry_waits_as_long_as_it_should_however_far_the_two_clocks_are_apart() {
        let times = SessionTimes { heartbeat_ms: 1_000, grace_ms: 1_000 };
        for machine_at in [At::from_ms(1), At::from_ms(1 << 50)] {
            let ((lost, _), (roster, _), (errands, _)) =
                (mpsc::unbounded_channel(), mpsc::unbounded_channel(), mpsc::unbounded_channel());
            let mut dispatcher = Dispatcher::new(Clock::start(), times, lost, roster, errands);
            let delayed = vec![(ChunkIndex(0), machine_at.after_ms(70))];
            let submission = SubmissionId::from_u64(1).unwrap();
            let unsettled = vec![Unsettled {
                submission,
                round: 0,
                ranges: vec![std::ops::Range { start: 0, end: 1 }],
                delayed,
                traits: Traits::default(),
            }];
            let now = At::from_ms(1 << 40);
            let reserver = Box::new(Reserver::new(Epoch(1), [0; 16], 0, unsettled.into_iter()));
            dispatcher.handle(Event::Led { at: machine_at, reserver, roster: Roster::default() }, now);
            assert_eq!(dispatcher.next_tick(), Some(now.after_ms(70)));
            dispatcher.tick(now.after_ms(69));
            assert_eq!(dispatcher.status().ready, 0);
            dispatcher.tick(now.after_ms(70));
            assert_eq!(dispatcher.status().ready, 1);
        }
    }
}
