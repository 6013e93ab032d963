//! Strategies: the rule a consumer sends with `reserve`, saying which chunk it wants next.
//!
//! A strategy is a small tree of building blocks, with three spellings of the same thing:
//!
//! - text, for the command line and for people ([`std::str::FromStr`], [`std::fmt::Display`]):
//!   `OrElse(SelectOnly(mode=preview, Random), Fair(company_id))`,
//! - JSON, for programs: a block without settings is its name (`"Random"`), one with settings is an object of its name
//!   and them (`{"Fair": {"field": "company_id"}}`); a JSON text that holds the spelling above is read as well,
//! - Rust: constructors such as [`Strategy::fair`] say what is chosen, methods such as [`Strategy::or_else`] go on from
//!   there.
//!
//! Reading order: this file, `max`, `problem` (what is refused), `text` (the text form) with
//! `words` and `text_error`, `own_text` (one block of it), `json`, `build`.

mod build;
mod json;
mod max;
mod own_text;
mod problem;
mod text;
mod text_error;
mod words;

pub use max::Max;
pub use text_error::StrategyTextError;

use super::submissions::MetaValue;
use std::collections::BTreeMap;

/// Which chunk next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Strategy {
    /// A submission in proportion to its ready chunks, by chance.
    #[default]
    Random,
    /// The oldest submission first.
    OldestFirst,
    /// The newest submission first; old ones starve while new ones keep coming.
    NewestFirst,
    /// The submission with the highest priority first.
    CustomPriority {
        /// A submission's priority rises by 1 each time it has waited this long, so that a low one does not starve.
        aging_ms: Option<u64>,
    },
    /// Only submissions whose field has this value.
    SelectOnly {
        /// The metadata field.
        field: String,
        /// Its value.
        value: MetaValue,
        /// How to choose among them.
        inner: Box<Strategy>,
    },
    /// Submissions with other values first, once `max` chunks of one value are being worked on (soft).
    PreferDistinct {
        /// The metadata field.
        field: String,
        /// How many chunks of one value.
        max: Max,
        /// How to choose.
        inner: Box<Strategy>,
    },
    /// Never more than `max` chunks of one value being worked on at once (hard).
    MaxSimultaneous {
        /// The metadata field.
        field: String,
        /// How many chunks of one value.
        max: Max,
        /// How to choose.
        inner: Box<Strategy>,
    },
    /// The first strategy, or the fallback if it gives nothing.
    OrElse {
        /// Tried first.
        first: Box<Strategy>,
        /// Tried if the first gives nothing.
        fallback: Box<Strategy>,
    },
    /// Turns between the values of a field, by weight.
    Fair {
        /// The metadata field.
        field: String,
        /// The weight of each value; 1 for those not named.
        weights: BTreeMap<String, u32>,
        /// How to choose among the submissions of one value.
        inner: Box<Strategy>,
    },
    /// The tasks of a lane.
    Lane {
        /// The lane's name.
        name: String,
    },
}

impl Strategy {
    /// The block's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Strategy::Random => "Random",
            Strategy::OldestFirst => "OldestFirst",
            Strategy::NewestFirst => "NewestFirst",
            Strategy::CustomPriority { .. } => "CustomPriority",
            Strategy::SelectOnly { .. } => "SelectOnly",
            Strategy::PreferDistinct { .. } => "PreferDistinct",
            Strategy::MaxSimultaneous { .. } => "MaxSimultaneous",
            Strategy::OrElse { .. } => "OrElse",
            Strategy::Fair { .. } => "Fair",
            Strategy::Lane { .. } => "Lane",
        }
    }

    /// The names of the lanes that it takes tasks from.
    pub fn lanes(&self) -> Vec<&str> {
        match self {
            Strategy::Lane { name } => vec![name],
            other => other.parts().into_iter().flat_map(Strategy::lanes).collect(),
        }
    }

    /// Whether it has a hard limit, which must hold across a change of leader too.
    pub fn has_hard_limit(&self) -> bool {
        matches!(self, Strategy::MaxSimultaneous { .. })
            || self.parts().into_iter().any(Strategy::has_hard_limit)
    }

    /// The blocks directly below this one.
    fn parts(&self) -> Vec<&Strategy> {
        match self {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { .. }
            | Strategy::Lane { .. } => Vec::new(),
            Strategy::SelectOnly { inner, .. }
            | Strategy::PreferDistinct { inner, .. }
            | Strategy::MaxSimultaneous { inner, .. }
            | Strategy::Fair { inner, .. } => vec![inner],
            Strategy::OrElse { first, fallback } => vec![first, fallback],
        }
    }
}
