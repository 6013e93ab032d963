//! The roster: who may hold work under a hard limit, so that the limit holds across a change of leader too.
//!
//! Reservations are in the leader's memory only. Before a consumer gets its first work by a strategy with a hard limit
//! (`MaxSimultaneous`), its session is put on the roster, through the log; a lease under such a strategy is covered by
//! `leases_until`. A new leader lets nothing out under hard limits until every session on the roster has come back, or its
//! grace time has passed, and the leases are over. Where nobody uses hard limits the roster is empty, and nothing waits.
//!
//! Invariants
//! - Memory holds what the rows hold.
//! - `leases_until` never goes back.

use super::reserver::SessionId;
use crate::entry::{Applied, Outcome, Refusal};
use crate::limits::ROSTER_SESSIONS_PER_COMMAND_MAX;
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::BTreeSet;

/// See [`Command::Enlist`](crate::entry::Command::Enlist).
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct Enlist {
    /// Sessions that may hold such work from now on.
    #[n(0)]
    pub joined: Vec<u64>,
    /// Sessions that hold none any more.
    #[n(1)]
    pub left: Vec<u64>,
    /// Leases may run for this long from the entry's time on.
    #[n(2)]
    pub leases_ms: u64,
}

/// Who may hold work under a hard limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    sessions: BTreeSet<SessionId>,
    leases_until: At,
}

const LEASES_KEY: &[u8] = b"leases";

impl Roster {
    pub(crate) fn open(tables: &dyn Tables) -> Roster {
        let mut roster = Roster::default();
        for (key, row) in tables.scan_prefix(Table::Roster, &[]) {
            if key == LEASES_KEY {
                roster.leases_until = rows::decode(Table::Roster, &key, &row);
            } else {
                let session = key.try_into().expect("a session's row has its number as key");
                roster.sessions.insert(SessionId(u64::from_be_bytes(session)));
            }
        }
        roster
    }

    /// Sessions that may hold such work.
    pub fn sessions(&self) -> &BTreeSet<SessionId> {
        &self.sessions
    }

    /// Until when leases may run.
    pub const fn leases_until(&self) -> At {
        self.leases_until
    }

    pub(crate) fn enlist(&mut self, tables: &mut dyn Tables, at: At, it: &Enlist) -> Applied {
        if it.joined.len().max(it.left.len()) > ROSTER_SESSIONS_PER_COMMAND_MAX {
            let problem = format!("name at most {ROSTER_SESSIONS_PER_COMMAND_MAX} sessions at a time");
            return Applied::refused(Refusal::Malformed { problem });
        }

        // Nothing below can be refused.
        for session in &it.joined {
            if self.sessions.insert(SessionId(*session)) {
                tables.put(Table::Roster, &session.to_be_bytes(), Vec::new());
            }
        }
        for session in &it.left {
            if self.sessions.remove(&SessionId(*session)) {
                tables.delete(Table::Roster, &session.to_be_bytes());
            }
        }
        let leases_until = at.after_ms(it.leases_ms);
        if it.leases_ms > 0 && leases_until > self.leases_until {
            self.leases_until = leases_until;
            tables.put(Table::Roster, LEASES_KEY, rows::encode(&leases_until));
        }
        Applied { outcome: Outcome::Noted, effects: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::MemoryTables;

    #[test]
    fn the_roster_is_the_same_after_a_restart_and_leases_never_end_earlier() {
        let mut tables = MemoryTables::default();
        let mut roster = Roster::open(&tables);
        let at = At::from_ms;
        roster.enlist(&mut tables, at(10), &Enlist { joined: vec![1, 2], left: vec![], leases_ms: 100 });
        roster.enlist(&mut tables, at(20), &Enlist { joined: vec![2, 3], left: vec![1, 9], leases_ms: 50 });
        assert_eq!(roster.sessions().iter().map(|it| it.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(roster.leases_until(), at(110));
        assert_eq!(Roster::open(&tables), roster);
    }
}
