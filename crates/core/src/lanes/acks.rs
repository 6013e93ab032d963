//! Acks: how far everything of a rank is done.
//!
//! The leader knows what is out and what it has read; it notes in the log, now and then, up to which level nothing is left.
//! A new leader's first read begins there, and does not step over the remains of what is done. A single task that takes long holds A
//! back, however much behind it is done: so the widest gap behind A, in which nothing is left either, is noted too, and left out.
//!
//! Invariants
//! - No task has a level at or below A, or in the gap.
//! - A never moves back.
//! - A's pass lies below the virtual time, and so does the gap's end, so that no task added later can get a level there: neither one
//!   that is on its way to the log meanwhile, nor one that comes after a restart.

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
    /// Behind that, this is done too.
    #[n(4)]
    pub gap: Option<Gap>,
}

/// A stretch of levels behind A in which nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Gap {
    /// Above this level.
    #[n(0)]
    pub above: Level,
    /// Up to this one.
    #[n(1)]
    pub to: Level,
}

impl Gap {
    /// How wide it is.
    pub(super) const fn passes(self) -> u64 {
        self.to.pass.saturating_sub(self.above.pass)
    }
}

/// What is known to be done of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acked {
    /// Everything up to here: A.
    pub level: Option<Level>,
    /// And this behind it.
    pub gap: Option<Gap>,
}

impl Acked {
    /// Whether it says that nothing is left at a level.
    pub(super) fn is_done(&self, level: Level) -> bool {
        self.level >= Some(level) || self.gap.is_some_and(|gap| gap.above < level && level <= gap.to)
    }

    /// The levels that have to lie below the virtual time.
    pub(super) fn ends(&self) -> impl Iterator<Item = Level> {
        self.level.into_iter().chain(self.gap.map(|gap| gap.to))
    }

    /// Takes in what was noted, of which only counts what lies below the virtual time.
    pub(super) fn note(&mut self, it: &Ack, virtual_time: u64) {
        let is_below = |level: &Level| level.pass < virtual_time;
        self.level = self.level.max(Some(it.level).filter(is_below));
        let gap = it.gap.filter(|gap| is_below(&gap.to)).or(self.gap);
        self.gap = gap.filter(|gap| Some(gap.to) > self.level);
    }
}

/// Applies it.
pub(crate) fn ack(state: &mut LanesState, it: &Ack) -> Applied {
    let name = RankName { lane: it.lane, priority: it.priority };
    if state.rank(name).is_some() {
        state.set_acked(name, it);
    }
    Applied { outcome: Outcome::Noted, effects: Vec::new() }
}

/// The rows of a queue's levels above one, in order; `scan` gives the rows of a range, from wherever they are.
pub fn levels_above<R: Iterator<Item = Row>, S: FnOnce(Table, KeyRange<'_>) -> R>(
    queue: &QueueName,
    above: Option<Level>,
    scan: S,
) -> impl Iterator<Item = Placed> + use<R, S> {
    levels_between(queue, above, None, scan)
}

/// Those that are not known to be done.
pub fn levels_undone<R: Iterator<Item = Row>, S: Fn(Table, KeyRange<'_>) -> R + Copy>(
    queue: &QueueName,
    acked: Acked,
    scan: S,
) -> impl Iterator<Item = Placed> + use<R, S> {
    let until_gap = acked.gap.map(|gap| gap.above).filter(|above| acked.level < Some(*above));
    let before = until_gap.map(|above| levels_between(queue, acked.level, Some(above), scan));
    let behind = levels_above(queue, acked.gap.map(|gap| gap.to).max(acked.level), scan);
    before.into_iter().flatten().chain(behind)
}

/// The rows of a queue's levels above one and up to another.
pub fn levels_between<R: Iterator<Item = Row>, S: FnOnce(Table, KeyRange<'_>) -> R>(
    queue: &QueueName,
    above: Option<Level>,
    up_to: Option<Level>,
    scan: S,
) -> impl Iterator<Item = Placed> + use<R, S> {
    let (table, prefix) = match &queue.of {
        Some(of) => (Table::KeyLevels, queue.rank.key_of_key(of)),
        None => (Table::Levels, queue.rank.key().to_vec()),
    };
    let end = match up_to {
        Some(level) => [&prefix[..], &level.key()].concat(),
        None => key_after_prefix(&prefix).expect("the key of a rank does not end all keys"),
    };
    let end = if up_to.is_some() { Bound::Included(&end[..]) } else { Bound::Excluded(&end[..]) };
    let from = above.map_or_else(|| prefix.clone(), |level| [&prefix[..], &level.key()].concat());
    let from = if above.is_some() { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
    let of_key = queue.of.clone().filter(|of| !is_tenant(of));
    scan(table, (from, end)).map(move |(row_key, row)| {
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
