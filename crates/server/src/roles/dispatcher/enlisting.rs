//! Enlisting: who has to be on the roster of those who may hold work under a hard limit, before they hold any.
//!
//! The Registrar puts sessions on the roster and takes them off, in the order in which it is told here. Leases are covered by whoever
//! asks for them.
//!
//! Invariants
//! - Work by a strategy with a hard limit, its own or that of a lane, goes to sessions that the log has on the roster, and to leases
//!   that it covers, and to nobody else. All hand-outs go through one place, under the Dispatcher's lock, which looks at that.
//! - Wherever the log ends, if it limits the tasks in flight of a lane, whoever may still work on tasks of that lane is on its roster,
//!   or covered. For before such a limit is proposed, the lane is *expected* to be limited: in the same step that begins this, everybody
//!   who holds or waits for tasks of it is told to the Registrar, and from then on it counts as limited. The limit is proposed only
//!   when the Registrar has come as far and the leases are covered; so the log has all of them before the limit, and whoever gets
//!   tasks later before they do. An expectation is never taken back: that costs an entry for a session, and forgets none.
//! - A session that takes over work of another by re-asserting it is told to the Registrar before the other one is taken off.

use super::event::{Ask, Asker};
use super::lines::is_asked;
use super::{Dispatcher, is_limited};
use std::collections::BTreeSet;
use tokio::sync::{mpsc, oneshot};
use windlass_core::batch::reserver::{Holder, Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::ids::Epoch;
use windlass_core::time::At;

/// What the Registrar is told.
#[derive(Debug)]
pub enum RosterNote {
    /// A session is about to hold work under a hard limit, that it gets under this leadership.
    Joined(Epoch, SessionId),
    /// A session holds none any more.
    Left(SessionId),
    /// Somebody waits until the log has all that came before.
    Reached(oneshot::Sender<()>),
}

/// Why a lease gets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotLeased {
    /// The strategy cannot be served; a sentence says what to do.
    Refused(String),
    /// Its work is under a hard limit: the log has to cover it first.
    Uncovered,
}

/// A lane whose tasks in flight are about to be limited.
#[derive(Debug)]
pub struct Expected {
    /// Until when callers without a session may work on tasks of it, if there are any.
    pub leases_until: Option<At>,
    /// Ends when all sessions that may work on tasks of it are on the roster; with an error if this node does not lead any more.
    pub reached: oneshot::Receiver<()>,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Enlisting {
    /// Reserves that wait until their sessions are on the roster.
    asks: Vec<Ask>,
    /// Lanes whose tasks in flight are limited, or about to be.
    expected: BTreeSet<String>,
    notes: mpsc::UnboundedSender<RosterNote>,
}

impl Enlisting {
    pub(super) const fn new(notes: mpsc::UnboundedSender<RosterNote>) -> Enlisting {
        Enlisting { asks: Vec::new(), expected: BTreeSet::new(), notes }
    }

    /// Whether any lane is expected to be limited.
    pub(super) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Whether this lane is expected to be limited.
    pub(super) fn expects(&self, lane: &str) -> bool {
        self.expected.contains(lane)
    }

    /// How many reserves wait.
    pub(super) fn len(&self) -> usize {
        self.asks.len()
    }

    /// Takes the reserves that wait.
    pub(super) fn take_all(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    pub(super) fn note(&self, note: RosterNote) {
        // During a stop nobody keeps the roster any more.
        _ = self.notes.send(note);
    }
}

impl Dispatcher {
    /// Whether work by a strategy is under a hard limit that is to hold across a change of leader.
    pub(super) fn is_under_hard_limit(&self, strategy: &Strategy) -> bool {
        strategy.has_hard_limit()
            || self.limits_lanes && strategy.lanes().into_iter().any(|lane| self.limits_lane(lane))
    }

    /// Something else is said of a lane: limits of all lanes are walked through now, and not with each ask.
    pub(super) fn note_lane_limits(&mut self) {
        self.limits_lanes = self.enlisting.expects_any()
            || self.reserver.as_ref().is_some_and(|reserver| reserver.desk().has_limits_in_flight());
        self.lanes_changed = Some(self.limits_lanes);
    }

    pub(super) fn limits_lane(&self, lane: &str) -> bool {
        self.enlisting.expects(lane)
            || self.reserver.as_ref().is_some_and(|reserver| is_limited(reserver.desk(), lane))
    }

    /// Has a session put on the roster, unless it is there or on its way.
    pub(super) fn enlist(&mut self, session: SessionId) {
        let Some(epoch) = self.reserver.as_ref().map(Reserver::epoch) else { return };
        if self.sessions.begin_to_enlist(session) {
            self.enlisting.note(RosterNote::Joined(epoch, session));
        }
    }

    /// Gives an ask back if it may have work now. If it needs to be on the roster or covered first, a session's waits for that, and a
    /// lease's is told.
    pub(super) fn let_in(&mut self, ask: Ask) -> Option<Ask> {
        let is_known = match &ask.asker {
            Asker::Session { session, .. } => self.sessions.is_enlisted(*session),
            Asker::Lease { is_covered, .. } => *is_covered,
        };
        if is_known || !self.is_under_hard_limit(&ask.strategy) {
            return Some(ask);
        }
        match ask.asker {
            Asker::Session { session, .. } => {
                self.enlist(session);
                self.enlisting.asks.push(ask);
            }
            Asker::Lease { reply, .. } => drop(reply.send(Err(NotLeased::Uncovered))),
        }
        None
    }

    /// The log has these sessions on the roster, as was asked for under a leadership: what they have asked for meanwhile is looked at.
    pub(super) fn note_enlisted(&mut self, epoch: Epoch, sessions: &[SessionId], now: At) {
        let is_of_this = self.leads_under(epoch);
        for session in sessions {
            let is_meant = match is_of_this {
                true => self.sessions.enlist(*session),
                // It may be on its way there anew, and off the roster in between.
                false => self.sessions.may_be_enlisted(*session) || self.hold.awaits(*session),
            };
            if !is_meant {
                // It is gone meanwhile, or was there for a leadership that is over.
                self.enlisting.note(RosterNote::Left(*session));
            }
        }
        for ask in self.enlisting.take_all() {
            if !is_asked(&self.sessions, &ask) {
                continue;
            }
            let answer = self.reserve(ask, now);
            self.deliver(answer);
        }
    }

    /// Tasks in flight of a lane are about to be limited.
    pub(super) fn expect_limit(&mut self, lane: String, reply: oneshot::Sender<Expected>) {
        // Without a leadership there is no answer: dropping the reply tells the asker.
        let Some(reserver) = &self.reserver else { return };
        let mut leases_until = None;
        let mut sessions: BTreeSet<SessionId> = BTreeSet::new();
        if let Some(number) = reserver.desk().lane(&lane) {
            for holder in reserver.holders_of_tasks(number) {
                match holder {
                    Holder::Session(session) => drop(sessions.insert(session)),
                    Holder::Lease { until } => leases_until = leases_until.max(Some(until)),
                }
            }
            for (_, ask) in self.lines.asked(&self.sessions) {
                if let Asker::Session { session, .. } = ask.asker
                    && ask.strategy.lanes().contains(&&*lane)
                {
                    sessions.insert(session);
                }
            }
            self.enlisting.expected.insert(lane);
            self.note_lane_limits();
        }
        sessions.into_iter().for_each(|session| self.enlist(session));
        let (reaching, reached) = oneshot::channel();
        self.enlisting.note(RosterNote::Reached(reaching));
        drop(reply.send(Expected { leases_until, reached }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, SessionTimes, ToSession};
    use super::*;
    use crate::clock::Clock;
    use windlass_core::batch::roster::Roster;
    use windlass_core::batch::state::Unsettled;
    use windlass_core::batch::submissions::Traits;
    use windlass_core::ids::SubmissionId;

    const NOW: At = At::from_ms(1 << 40);

    fn lead(dispatcher: &mut Dispatcher, epoch: u32) {
        let unsettled = Unsettled {
            submission: SubmissionId::from_u64(1).expect("it is an id"),
            round: 0,
            ranges: vec![std::ops::Range { start: 0, end: 9 }],
            delayed: Vec::new(),
            traits: Traits::default(),
        };
        let reserver = Box::new(Reserver::new(Epoch(epoch), [0; 16], 0, [unsettled].into_iter()));
        dispatcher.handle(Event::Led { at: NOW, reserver, roster: Roster::default() }, NOW);
    }

    #[test]
    fn a_session_that_was_put_on_the_roster_for_a_leadership_that_is_over_gets_nothing_by_that() {
        let times = SessionTimes { heartbeat_ms: 1_000, grace_ms: 1_000 };
        let (lost, _lost) = mpsc::unbounded_channel();
        let (errands, _errands) = mpsc::unbounded_channel();
        let (roster, mut notes) = mpsc::unbounded_channel();
        let mut noted = || {
            std::iter::from_fn(|| notes.try_recv().ok()).map(|note| format!("{note:?}")).collect::<Vec<_>>()
        };
        let mut dispatcher = Dispatcher::new(Clock::start(), times, lost, roster, errands);
        lead(&mut dispatcher, 1);
        let (out, mut words) = mpsc::unbounded_channel();
        let (reply, mut connected) = oneshot::channel();
        dispatcher.handle(Event::Connect { before: None, name: "anna".into(), out, reply }, NOW);
        let session = connected.try_recv().expect("it is connected").session;
        let strategy = "MaxSimultaneous(company, 2, OldestFirst)".parse::<Strategy>().expect("it is one");
        let ask = Ask { max: 1, strategy: strategy.into(), asker: Asker::Session { session, request: 7 } };
        assert!(dispatcher.reserve(ask, NOW).is_none(), "it has to be on the roster first");
        assert_eq!(noted(), [format!("Joined(Epoch(1), {session:?})")]);

        // Word of that comes when another leadership has begun.
        lead(&mut dispatcher, 2);
        dispatcher.handle(Event::Enlisted(Epoch(1), vec![session]), NOW);
        assert_eq!(noted(), [format!("Left({session:?})"), format!("Joined(Epoch(2), {session:?})")]);
        dispatcher.handle(Event::Enlisted(Epoch(1), vec![session]), NOW);
        assert!(noted().is_empty() && words.try_recv().is_err(), "it may be off the roster just now");
        dispatcher.handle(Event::Enlisted(Epoch(2), vec![session]), NOW);
        dispatcher.run_once();
        assert!(matches!(words.try_recv(), Ok(ToSession::Work { request: 7, .. })), "it is there");
    }
}
