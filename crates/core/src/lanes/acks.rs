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

use super::levels::{LaneNumber, Level, RankName};
use super::reader::Placed;
use super::state::LanesState;
use crate::entry::{Applied, Outcome};
use crate::tables::{KeyRange, Row, Table};
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
}

/// Applies it.
pub(crate) fn ack(state: &mut LanesState, it: &Ack) -> Applied {
    let noted = Applied { outcome: Outcome::Noted, effects: Vec::new() };
    let name = RankName { lane: it.lane, priority: it.priority };
    let Some(lane) = state.by_number(it.lane) else { return noted };
    let Some((_, rank)) = lane.ranks().find(|(priority, _)| *priority == it.priority) else { return noted };
    if it.level.pass < rank.row().virtual_time && rank.row().acked < Some(it.level) {
        state.count(name, |row| row.acked = Some(it.level));
    }
    noted
}

/// The rows of a rank's levels above one, in order; `scan` gives the rows of a range, from wherever they are.
pub fn levels_above<R: Iterator<Item = Row>, S: FnOnce(Table, KeyRange<'_>) -> R>(
    name: RankName,
    above: Option<Level>,
    scan: S,
) -> impl Iterator<Item = Placed> + use<R, S> {
    let from = above.map_or_else(|| name.key().to_vec(), |level| name.key_of_level(level).to_vec());
    let end = RankName { priority: name.priority + 1, ..name }.key();
    let from = if above.is_some() { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
    scan(Table::Levels, (from, Bound::Excluded(&end[..]))).map(|(key, row)| Placed {
        level: Level::from_key(&key).expect("a level's row has it as the end of its key"),
        key: std::str::from_utf8(&row).expect("a key is text").into(),
    })
}
