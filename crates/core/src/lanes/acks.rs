//! Acks: how far everything of a rank is done.
//!
//! The leader knows what is out and what it has read; it notes in the log, now and then, up to which level nothing is left.
//! A new leader's first read begins there, and does not step over the remains of what is done.
//!
//! Invariants
//! - No task has a level at or below A.
//! - A never moves back.
//! - A's pass lies below the virtual time, so that no task added later can get a level below A: neither one that is on its
//!   way to the log while A moves, nor one that comes after a restart.

use super::levels::{LaneNumber, Level, QueueName, RankName, is_tenant};
use super::places::PlaceRow;
use super::reader::Placed;
use super::state::LanesState;
use crate::entry::{Applied, Outcome};
use crate::rows;
use crate::tables::{KeyRange, Row, Table, key_after_prefix};
use minicbor::{Decode, Encode};
use std::ops::Bound;

/// See [`Command::Ack`](crate::entry::Command::Ack).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Ack {
    /// The lane.
    #[n(0)]
    pub lane: LaneNumber,
    /// The priority.
    #[n(1)]
    pub priority: u8,
    /// Everything up to here is done.
    #[n(2)]
    pub level: Level,
    /// It is about a tenant of the priority.
    #[n(3)]
    pub tenant: Option<String>,
}

/// Applies it.
pub(crate) fn ack(state: &mut LanesState, it: &Ack) -> Applied {
    let name = RankName { lane: it.lane, priority: it.priority };
    if state.rank(name).is_some() {
        state.set_acked(name, it.tenant.as_deref(), it.level);
    }
    Applied { outcome: Outcome::Noted, effects: Vec::new() }
}

/// The rows of a queue's levels above one, in order; `scan` gives the rows of a range, from wherever they are.
pub fn levels_above<R: Iterator<Item = Row>, S: FnOnce(Table, KeyRange<'_>) -> R>(
    queue: &QueueName,
    above: Option<Level>,
    scan: S,
) -> impl Iterator<Item = Placed> + use<R, S> {
    let (table, prefix) = match &queue.of {
        Some(of) => (Table::KeyLevels, queue.rank.key_of_key(of)),
        None => (Table::Levels, queue.rank.key().to_vec()),
    };
    let end = key_after_prefix(&prefix).expect("the key of a rank does not end all keys");
    let from = above.map_or_else(|| prefix.clone(), |level| [&prefix[..], &level.key()].concat());
    let from = if above.is_some() { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
    let of_key = queue.of.clone().filter(|of| !is_tenant(of));
    scan(table, (from, Bound::Excluded(&end[..]))).map(move |(row_key, row)| {
        let level = Level::from_key(&row_key).expect("a level's row has it as the end of its key");
        match &of_key {
            Some(key) => Placed { level, key: key.clone(), stride: rows::decode(table, &row_key, &row) },
            None => {
                let PlaceRow { key, stride, .. } = PlaceRow::from_row(table, &row_key, &row);
                Placed { level, key: key.into(), stride }
            }
        }
    })
}
