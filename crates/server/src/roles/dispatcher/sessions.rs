//! Sessions: the consumers that are connected, or may come back.
//!
//! Invariants
//! - A session is one connection, and outlives it by the grace time; one without a heartbeat loses its connection first.
//! - A session that has asked for work, or has said what it still works on, is a consumer; one that only adds tasks is none.
//! - `consumers` is the number of consumers with a connection.

use super::event::ToSession;
use super::unguessable;
use crate::config::SessionTimes;
use crate::limits::HEARTBEATS_MISSED_MAX;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::mpsc;
use windlass_core::batch::reserver::SessionId;
use windlass_core::batch::strategy::Strategy;
use windlass_core::time::At;

/// Where a session's work goes.
pub(super) type Connection = mpsc::UnboundedSender<ToSession>;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Sessions {
    times: SessionTimes,
    all: HashMap<SessionId, Session>,
    /// When to look at a session again: its deadline when it was last looked at, or earlier.
    looks: BTreeSet<(At, SessionId)>,
    consumers: usize,
    next_number: u64,
}

#[derive(Debug)]
struct Session {
    /// Tells it apart for people, who must not learn its id.
    number: u64,
    name: String,
    /// What it reserved with last.
    strategy: Option<Arc<Strategy>>,
    /// Chunks handed to it.
    handed_out: u64,
    connection: Option<Connection>,
    is_consumer: bool,
    seen: At,
    /// How far it is on the roster of those who may hold work under a hard limit.
    enlisted: Enlisted,
    /// The session of an earlier leadership that this one goes on with, until it has said all that it still works on.
    returning: Option<SessionId>,
    /// Whether what it re-asserts may be work under a hard limit.
    may_hold_limited: bool,
}

/// How far a session is on the roster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enlisted {
    No,
    /// The Registrar has been told.
    UnderWay,
    /// The log has it.
    Yes,
}

/// A connected consumer, as people see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Profile<'a> {
    pub(super) number: u64,
    pub(super) name: &'a str,
    pub(super) strategy: Option<&'a Strategy>,
    pub(super) handed_out: u64,
}

impl Sessions {
    pub(super) fn new(times: SessionTimes) -> Sessions {
        Sessions { times, all: HashMap::new(), looks: BTreeSet::new(), consumers: 0, next_number: 1 }
    }

    /// How many consumers are connected.
    pub(super) const fn consumers(&self) -> usize {
        self.consumers
    }

    /// A session asks for work, or says what it still works on; whether there is a consumer more by that.
    pub(super) fn note_consumer(&mut self, id: SessionId) -> bool {
        let news = self.all.get_mut(&id).filter(|it| !it.is_consumer && it.connection.is_some());
        let is_news = news.map(|session| session.is_consumer = true).is_some();
        self.consumers += usize::from(is_news);
        is_news
    }

    /// Where the work of a session goes, if it is connected.
    pub(super) fn connection(&self, id: SessionId) -> Option<&Connection> {
        self.all.get(&id)?.connection.as_ref()
    }

    /// Everybody who is connected: session, name, connection.
    pub(super) fn connections(&self) -> impl Iterator<Item = (SessionId, &str, &Connection)> {
        self.all.iter().filter_map(|(id, session)| {
            session.connection.as_ref().map(|connection| (*id, session.name.as_str(), connection))
        })
    }

    /// The consumers that are connected, as people see them.
    pub(super) fn profiles(&self) -> impl Iterator<Item = (SessionId, Profile<'_>)> {
        let consumers = self.all.iter().filter(|(_, it)| it.is_consumer && it.connection.is_some());
        consumers.map(|(id, session)| {
            let Session { number, name, strategy, handed_out, .. } = session;
            let strategy = strategy.as_deref();
            (*id, Profile { number: *number, name, strategy, handed_out: *handed_out })
        })
    }

    /// A session reserves by this strategy.
    pub(super) fn note_strategy(&mut self, id: SessionId, strategy: &Arc<Strategy>) {
        if let Some(session) = self.all.get_mut(&id)
            && session.strategy.as_ref().is_none_or(|it| !Arc::ptr_eq(it, strategy))
        {
            session.strategy = Some(Arc::clone(strategy));
        }
    }

    /// A session got chunks.
    pub(super) fn count_handed_out(&mut self, id: SessionId, chunks: u64) {
        if let Some(session) = self.all.get_mut(&id) {
            session.handed_out += chunks;
        }
    }

    /// Somebody has connected.
    pub(super) fn connect(
        &mut self,
        name: String,
        connection: Connection,
        returning: Option<SessionId>,
        may_hold_limited: bool,
        now: At,
    ) -> SessionId {
        let id = SessionId(unguessable());
        let session = Session {
            number: self.next_number,
            name,
            strategy: None,
            handed_out: 0,
            connection: Some(connection),
            is_consumer: false,
            seen: now,
            enlisted: Enlisted::No,
            returning,
            may_hold_limited,
        };
        self.next_number += 1;
        self.all.insert(id, session);
        self.looks.insert((now.after_ms(self.times.heartbeat_ms), id));
        id
    }

    /// A consumer lives.
    pub(super) fn see(&mut self, id: SessionId, now: At) {
        if let Some(session) = self.all.get_mut(&id) {
            session.seen = now;
        }
    }

    /// Takes the connection of a session, which lives on for the grace time.
    pub(super) fn disconnect(&mut self, id: SessionId, now: At) -> Option<Connection> {
        let session = self.all.get_mut(&id)?;
        let connection = session.connection.take()?;
        self.consumers -= usize::from(session.is_consumer);
        session.seen = now;
        self.looks.insert((now.after_ms(self.times.grace_ms), id));
        Some(connection)
    }

    /// A session is about to be put on the roster; whether that is news.
    pub(super) fn begin_to_enlist(&mut self, id: SessionId) -> bool {
        let session = self.all.get_mut(&id).filter(|session| session.enlisted == Enlisted::No);
        session.map(|session| session.enlisted = Enlisted::UnderWay).is_some()
    }

    /// A session is on the roster; false if it is gone.
    pub(super) fn enlist(&mut self, id: SessionId) -> bool {
        self.all.get_mut(&id).map(|session| session.enlisted = Enlisted::Yes).is_some()
    }

    /// Whether the log has a session on the roster.
    pub(super) fn is_enlisted(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|session| session.enlisted == Enlisted::Yes)
    }

    /// Whether a session is on the roster, or on its way there.
    pub(super) fn may_be_enlisted(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|session| session.enlisted != Enlisted::No)
    }

    /// Whoever is on the roster does not count as such under a leadership that begins.
    pub(super) fn strike_all(&mut self) {
        self.all.values_mut().for_each(|session| session.enlisted = Enlisted::No);
    }

    /// Whether a session has, or may re-assert, work under a hard limit.
    pub(super) fn may_hold_limited(&self, id: SessionId) -> bool {
        self.may_be_enlisted(id) || self.all.get(&id).is_some_and(|session| session.may_hold_limited)
    }

    /// The session of an earlier leadership that this one goes on with; asked once it has said what it still works on.
    pub(super) fn take_returning(&mut self, id: SessionId) -> Option<SessionId> {
        self.all.get_mut(&id)?.returning.take()
    }

    /// Forgets a session that has said goodbye or did not come back; whether it is on the roster, or on its way there.
    pub(super) fn remove(&mut self, id: SessionId) -> bool {
        let Some(session) = self.all.remove(&id) else { return false };
        self.consumers -= usize::from(session.is_consumer && session.connection.is_some());
        session.enlisted != Enlisted::No
    }

    /// When somebody is to be looked at again.
    pub(super) fn next_look(&self) -> Option<At> {
        self.looks.first().map(|it| it.0)
    }

    /// Drops the connections of silent consumers, and gives a session that did not come back, if there is one. The caller
    /// removes it.
    pub(super) fn next_gone(&mut self, now: At) -> Option<SessionId> {
        while let Some((at, id)) = self.looks.first().copied()
            && at <= now
        {
            self.looks.remove(&(at, id));
            if self.is_gone(id, now) {
                return Some(id);
            }
        }
        None
    }

    fn is_gone(&mut self, id: SessionId, now: At) -> bool {
        let silent_after_ms = self.times.heartbeat_ms * u64::from(HEARTBEATS_MISSED_MAX);
        let Some(session) = self.all.get(&id) else { return false };
        let deadline = match &session.connection {
            Some(_) => session.seen.after_ms(silent_after_ms),
            None => session.seen.after_ms(self.times.grace_ms),
        };
        if deadline > now {
            self.looks.insert((deadline, id));
            return false;
        }
        if session.connection.is_none() {
            tracing::debug!(session = id.0, name = session.name, "a session did not come back");
            return true;
        }
        tracing::warn!(
            session = id.0,
            name = session.name,
            "a consumer shows no heartbeat; its connection is dropped"
        );
        if let Some(connection) = self.disconnect(id, now) {
            drop(connection.send(ToSession::Silent));
        }
        false
    }
}
