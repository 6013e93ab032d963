//! The hold: until work of an earlier leadership under hard limits must be over, such limits let nothing out.
//!
//! Invariants
//! - The hold ends when every awaited session has come back or the grace time is over, and the leases are over.

use super::on_this_clock;
use std::collections::BTreeSet;
use windlass_core::batch::reserver::SessionId;
use windlass_core::batch::roster::Roster;
use windlass_core::time::At;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Sessions of an earlier leadership that have not come back.
    awaited: BTreeSet<SessionId>,
    sessions_until: At,
    leases_until: At,
}

impl Hold {
    /// The hold of a leadership that begins at `at` of the machine's time, `now` on ours.
    pub(super) fn new(roster: &Roster, at: At, now: At, grace_ms: u64) -> Hold {
        let leases_until = match roster.leases_until() {
            until if until > at => on_this_clock(until, at, now),
            _ => At::default(),
        };
        Hold { awaited: roster.sessions().clone(), sessions_until: now.after_ms(grace_ms), leases_until }
    }

    /// Whether hard limits let nothing out.
    pub(super) fn holds(&self, now: At) -> bool {
        self.until(now).is_some()
    }

    /// Until when hard limits let nothing out, at the latest.
    pub(super) fn until(&self, now: At) -> Option<At> {
        let sessions = (!self.awaited.is_empty()).then_some(self.sessions_until);
        sessions.into_iter().chain([self.leases_until]).max().filter(|until| now < *until)
    }

    /// When that may be different.
    pub(super) fn next_tick(&self) -> Option<At> {
        let sessions = (!self.awaited.is_empty()).then_some(self.sessions_until);
        let leases = (self.leases_until > At::default()).then_some(self.leases_until);
        sessions.into_iter().chain(leases).min()
    }

    /// An awaited session has come back, with all that it still works on.
    pub(super) fn came_back(&mut self, session: SessionId) -> bool {
        self.awaited.remove(&session)
    }

    /// Whether this session is awaited.
    pub(super) fn awaits(&self, session: SessionId) -> bool {
        self.awaited.contains(&session)
    }

    /// Forgets what is over; gives the sessions that did not come back in time.
    pub(super) fn let_go(&mut self, now: At) -> BTreeSet<SessionId> {
        if self.leases_until <= now {
            self.leases_until = At::default();
        }
        if self.sessions_until <= now { std::mem::take(&mut self.awaited) } else { BTreeSet::new() }
    }
}
