//! The Dispatcher: owns the reserver, knows the consumers' sessions, and gives waiting consumers their work.
//!
//! Invariants
//! - While a chunk is ready, no reserve that could take it waits.
//! - Work that its asker never received goes back unharmed.
//! - A session is one connection, and outlives it by the grace time; one without a heartbeat loses its connection first.
//! - A consumer that comes back gets a new session, and moves what it re-asserts into it. What it does not re-assert, since
//!   it never received it, goes back with the old session.

use crate::clock::Clock;
use crate::config::SessionTimes;
use crate::limits::HEARTBEATS_MISSED_MAX;
use std::collections::{BTreeSet, HashMap, VecDeque};
use tokio::sync::{mpsc, oneshot};
use windlass_core::batch::reserver::{HandOut, Holder, LostTooOften, Reserver, SessionId, Standing};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::Effect;
use windlass_core::ids::ChunkName;
use windlass_core::time::At;

/// What the Dispatcher is told and asked.
#[derive(Debug)]
pub enum Event {
    /// This node leads from here on.
    Led {
        /// The machine's time.
        at: At,
        /// What can be handed out, none of it out.
        reserver: Box<Reserver>,
    },
    /// Entries were applied.
    Effects {
        /// The machine's time.
        at: At,
        /// What they ask of the leader.
        effects: Vec<Effect>,
    },
    /// This node leads no more.
    Lost,
    /// A consumer has connected.
    Connect {
        /// The session that it had before: that one's connection ends, if it has not yet.
        before: Option<SessionId>,
        /// Its name.
        name: String,
        /// Where its work goes.
        out: mpsc::UnboundedSender<ToSession>,
        /// Gets the session.
        reply: oneshot::Sender<SessionId>,
    },
    /// A consumer has shown that it lives.
    Seen(SessionId),
    /// A connection is gone; its consumer has the grace time to come back.
    Disconnect(SessionId),
    /// A consumer has said goodbye: what it holds comes back unharmed.
    Leave(SessionId),
    /// A reserve.
    Reserve(Ask),
    /// Chunks that a session still works on.
    Reassert(SessionId, Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>),
    /// Chunks that come back unharmed.
    Release(Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>),
    /// Leases that go on until the given time.
    Extend(Vec<(ChunkName, AttemptToken)>, At, oneshot::Sender<Vec<Standing>>),
    /// What tokens are good for.
    Standing(Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>),
    /// How things are.
    Status(oneshot::Sender<DispatcherStatus>),
    /// Hand out no more.
    Drain,
}

/// What a session gets.
#[derive(Debug)]
pub enum ToSession {
    /// Work for a reserve.
    Work {
        /// The request it answers.
        request: u64,
        /// The chunks.
        hand_outs: Vec<HandOut>,
    },
    /// The server is about to stop.
    Draining,
    /// The consumer showed no heartbeat.
    Silent,
    /// The consumer has opened another connection.
    Replaced,
}

/// A reserve that is to be answered.
#[derive(Debug)]
pub struct Ask {
    /// How many chunks at most.
    pub max: usize,
    /// Which ones.
    pub strategy: Strategy,
    /// Who asks.
    pub asker: Asker,
}

/// Who asks for work.
#[derive(Debug)]
pub enum Asker {
    /// A session.
    Session {
        /// The session.
        session: SessionId,
        /// The number of its request.
        request: u64,
    },
    /// A caller without a session; dropping the receiver withdraws the ask.
    Lease {
        /// How long the reservation holds.
        lease_ms: u64,
        /// Whether to wait if nothing is ready.
        wait: bool,
        /// Gets the chunks and the deadline.
        reply: oneshot::Sender<(Vec<HandOut>, At)>,
    },
}

/// How things are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatcherStatus {
    /// Chunks ready.
    pub ready: u64,
    /// Chunks out.
    pub out: usize,
    /// Chunks that wait for a retry.
    pub delayed: usize,
    /// Consumers that are connected.
    pub sessions: usize,
    /// Reserves that wait.
    pub waiting: usize,
}

#[derive(Debug)]
struct Session {
    name: String,
    connection: Option<mpsc::UnboundedSender<ToSession>>,
    seen: At,
}

/// See the file's head.
#[derive(Debug)]
pub struct Dispatcher {
    clock: Clock,
    times: SessionTimes,
    reserver: Option<Reserver>,
    sessions: HashMap<SessionId, Session>,
    /// When to look at a session again: its deadline when it was last looked at, or earlier.
    looks: BTreeSet<(At, SessionId)>,
    waiting: VecDeque<Ask>,
    look_at_waiting_from: usize,
    draining: bool,
    lost_too_often: mpsc::UnboundedSender<LostTooOften>,
}

/// Where the Dispatcher gets its events.
pub type DispatcherHandle = mpsc::UnboundedSender<Event>;

/// Below this many, forgetting withdrawn asks is not worth a walk.
const WAITING_LOOKED_AT_MIN: usize = 1_024;

/// A number that nobody can guess, for sessions and seeds.
pub(crate) fn unguessable() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Dispatcher {
    /// A Dispatcher that leads nothing yet; chunks whose consumers keep vanishing go to `lost_too_often`.
    pub fn new(
        clock: Clock,
        times: SessionTimes,
        lost_too_often: mpsc::UnboundedSender<LostTooOften>,
    ) -> Dispatcher {
        Dispatcher {
            clock,
            times,
            reserver: None,
            sessions: HashMap::new(),
            looks: BTreeSet::new(),
            waiting: VecDeque::new(),
            look_at_waiting_from: WAITING_LOOKED_AT_MIN,
            draining: false,
            lost_too_often,
        }
    }

    /// Handles events until every handle is gone.
    pub async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        const EVENTS_AT_ONCE: usize = 256;
        let mut batch = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let pause = self.next_tick().map(|at| self.clock.until(at));
            let received = match pause {
                Some(pause) => {
                    tokio::time::timeout(pause, events.recv_many(&mut batch, EVENTS_AT_ONCE)).await
                }
                None => Ok(events.recv_many(&mut batch, EVENTS_AT_ONCE).await),
            };
            if received == Ok(0) {
                return;
            }
            let now = self.clock.now();
            self.tick(now);
            for event in batch.drain(..) {
                self.handle(event, now);
                self.serve_waiting(now);
            }
            self.serve_waiting(now);
        }
    }

    /// When the next tick has something to do.
    pub fn next_tick(&self) -> Option<At> {
        let look = self.looks.first().map(|it| it.0);
        let reserver = self.reserver.as_ref().and_then(Reserver::next_tick);
        look.into_iter().chain(reserver).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, now: At) {
        while let Some((at, session)) = self.looks.first().copied()
            && at <= now
        {
            self.looks.remove(&(at, session));
            self.look_at(session, now);
        }
        if let Some(reserver) = &mut self.reserver {
            let lost = reserver.tick(now);
            self.report(lost);
        }
    }

    /// Handles one event; call [`Dispatcher::serve_waiting`] after it.
    pub fn handle(&mut self, event: Event, now: At) {
        match event {
            Event::Led { at, mut reserver } => {
                reserver.move_retries(|retry_at| on_this_clock(retry_at, at, now));
                self.reserver = Some(*reserver);
            }
            Event::Effects { at, effects } => {
                for mut effect in effects {
                    if let Effect::Failed { retry_at: Some(retry_at), .. } = &mut effect {
                        *retry_at = on_this_clock(*retry_at, at, now);
                    }
                    if let Some(reserver) = &mut self.reserver {
                        reserver.absorb(&effect);
                    }
                }
            }
            Event::Lost => self.reserver = None,
            Event::Connect { before, name, out, reply } => self.connect(before, name, out, reply, now),
            Event::Seen(session) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.seen = now;
                }
            }
            Event::Disconnect(session) => drop(self.disconnect(session, now)),
            Event::Leave(session) => {
                self.sessions.remove(&session);
                if let Some(reserver) = &mut self.reserver {
                    reserver.release_session(session);
                }
            }
            Event::Reserve(ask) => self.reserve(ask, now),
            Event::Reassert(session, chunks, reply) => {
                self.answer(&chunks, reply, |reserver, name, token| reserver.reassert(session, name, token));
            }
            Event::Release(chunks, reply) => self.answer(&chunks, reply, Reserver::release),
            Event::Extend(chunks, until, reply) => {
                self.answer(&chunks, reply, |reserver, name, token| reserver.extend(name, token, until));
            }
            Event::Standing(chunks, reply) => {
                self.answer(&chunks, reply, |reserver, name, token| reserver.standing(name, token));
            }
            Event::Status(reply) => drop(reply.send(self.status())),
            Event::Drain => self.drain(),
        }
    }

    /// Gives those who wait their work, first come, first served, as long as there is some.
    pub fn serve_waiting(&mut self, now: At) {
        while !self.has_nothing()
            && let Some(ask) = self.waiting.pop_front()
        {
            self.serve(ask, now);
        }
    }

    fn reserve(&mut self, ask: Ask, now: At) {
        if !self.has_nothing() {
            // Whoever came before has been served, or there would be nothing left.
            self.serve(ask, now);
            return;
        }
        match ask.asker {
            Asker::Lease { wait, reply, .. } if !wait || self.draining => drop(reply.send((Vec::new(), now))),
            Asker::Lease { .. } | Asker::Session { .. } => {
                self.waiting.push_back(ask);
                self.drop_withdrawn();
            }
        }
    }

    fn has_nothing(&self) -> bool {
        self.draining || self.reserver.as_ref().is_none_or(|reserver| reserver.ready_len() == 0)
    }

    /// Answers an ask while something is ready.
    fn serve(&mut self, ask: Ask, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        match ask.asker {
            Asker::Session { session, request } => {
                let Some(out) = connection_of(&self.sessions, session) else { return };
                let hand_outs = reserver.reserve(Holder::Session(session), ask.max, &ask.strategy);
                if let Err(unsent) = out.send(ToSession::Work { request, hand_outs })
                    && let ToSession::Work { hand_outs, .. } = unsent.0
                {
                    take_back(reserver, &hand_outs);
                }
            }
            Asker::Lease { lease_ms, reply, .. } if !reply.is_closed() => {
                let until = now.after_ms(lease_ms);
                let hand_outs = reserver.reserve(Holder::Lease { until }, ask.max, &ask.strategy);
                if let Err((unsent, _)) = reply.send((hand_outs, until)) {
                    take_back(reserver, &unsent);
                }
            }
            Asker::Lease { .. } => {}
        }
    }

    /// Forgets asks that were withdrawn, each time the queue has doubled: O(1) for each ask.
    fn drop_withdrawn(&mut self) {
        if self.waiting.len() < self.look_at_waiting_from {
            return;
        }
        let sessions = &self.sessions;
        self.waiting.retain(|ask| is_asked(sessions, ask));
        self.look_at_waiting_from = WAITING_LOOKED_AT_MIN.max(2 * self.waiting.len());
    }

    fn connect(
        &mut self,
        before: Option<SessionId>,
        name: String,
        out: mpsc::UnboundedSender<ToSession>,
        reply: oneshot::Sender<SessionId>,
        now: At,
    ) {
        if let Some(connection) = before.and_then(|before| self.disconnect(before, now)) {
            // A connection that has ended by itself needs no such word.
            drop(connection.send(ToSession::Replaced));
        }
        if self.draining {
            drop(out.send(ToSession::Draining));
        }
        let id = SessionId(unguessable());
        self.sessions.insert(id, Session { name, connection: Some(out), seen: now });
        self.looks.insert((now.after_ms(self.times.heartbeat_ms), id));
        if reply.send(id).is_err() {
            self.sessions.remove(&id);
        }
    }

    /// Takes the connection of a session, which lives on for the grace time.
    fn disconnect(&mut self, id: SessionId, now: At) -> Option<mpsc::UnboundedSender<ToSession>> {
        let session = self.sessions.get_mut(&id)?;
        let connection = session.connection.take()?;
        session.seen = now;
        self.looks.insert((now.after_ms(self.times.grace_ms), id));
        Some(connection)
    }

    /// Drops the connection of a silent consumer, and the session of one that did not come back.
    fn look_at(&mut self, id: SessionId, now: At) {
        let silent_after_ms = self.times.heartbeat_ms * u64::from(HEARTBEATS_MISSED_MAX);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let deadline = match &session.connection {
            Some(_) => session.seen.after_ms(silent_after_ms),
            None => session.seen.after_ms(self.times.grace_ms),
        };
        if deadline > now {
            self.looks.insert((deadline, id));
        } else if session.connection.is_some() {
            tracing::warn!(
                session = id.0,
                name = session.name,
                "a consumer shows no heartbeat; its connection is dropped"
            );
            if let Some(connection) = self.disconnect(id, now) {
                drop(connection.send(ToSession::Silent));
            }
        } else {
            tracing::debug!(session = id.0, name = session.name, "a session did not come back");
            self.sessions.remove(&id);
            if let Some(reserver) = &mut self.reserver {
                let lost = reserver.lose_session(id, now);
                self.report(lost);
            }
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        let now = self.clock.now();
        for ask in self.waiting.drain(..) {
            if let Asker::Lease { reply, .. } = ask.asker {
                drop(reply.send((Vec::new(), now)));
            }
        }
        for session in self.sessions.values() {
            if let Some(connection) = &session.connection {
                drop(connection.send(ToSession::Draining));
            }
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
        for it in lost {
            // During a stop nobody counts losses any more.
            _ = self.lost_too_often.send(it);
        }
    }

    fn status(&self) -> DispatcherStatus {
        let reserver = self.reserver.as_ref();
        DispatcherStatus {
            ready: reserver.map_or(0, Reserver::ready_len),
            out: reserver.map_or(0, Reserver::out_len),
            delayed: reserver.map_or(0, Reserver::delayed_len),
            sessions: self.sessions.values().filter(|session| session.connection.is_some()).count(),
            waiting: self.waiting.iter().filter(|ask| is_asked(&self.sessions, ask)).count(),
        }
    }
}

/// A time of the machine's clock on ours. The two run apart when the system's clock is set or the machine sleeps, so what
/// counts is how long after the entry it lies.
fn on_this_clock(time: At, at: At, now: At) -> At {
    now.after_ms(time.as_ms().saturating_sub(at.as_ms()))
}

fn connection_of(
    sessions: &HashMap<SessionId, Session>,
    session: SessionId,
) -> Option<&mpsc::UnboundedSender<ToSession>> {
    sessions.get(&session)?.connection.as_ref()
}

/// Whether somebody still waits for the answer.
fn is_asked(sessions: &HashMap<SessionId, Session>, ask: &Ask) -> bool {
    match &ask.asker {
        Asker::Session { session, .. } => connection_of(sessions, *session).is_some(),
        Asker::Lease { reply, .. } => !reply.is_closed(),
    }
}

fn take_back(reserver: &mut Reserver, hand_outs: &[HandOut]) {
    for hand_out in hand_outs {
        for (chunk, token) in &hand_out.chunks {
            reserver.release(ChunkName { submission: hand_out.submission, chunk: *chunk }, *token);
        }
    }
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
            let (lost, _) = mpsc::unbounded_channel();
            let mut dispatcher = Dispatcher::new(Clock::start(), times, lost);
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
            dispatcher.handle(Event::Led { at: machine_at, reserver }, now);
            assert_eq!(dispatcher.next_tick(), Some(now.after_ms(70)));
            dispatcher.tick(now.after_ms(69));
            assert_eq!(dispatcher.status().ready, 0);
            dispatcher.tick(now.after_ms(70));
            assert_eq!(dispatcher.status().ready, 1);
        }
    }
}
