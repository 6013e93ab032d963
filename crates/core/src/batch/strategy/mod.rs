//! Strategies: the rule a consumer sends with `reserve`, saying which chunk it wants next.
//!
//! A strategy is a small tree of building blocks. In JSON a block without settings is its name (`"Random"`), one with
//! settings is an object of its name and them (`{"SelectOnly": {"field": "mode", "value": "preview", "inner": "Random"}}`).

use super::submissions::MetaValue;
use crate::limits::{STRATEGY_DEPTH_MAX, STRATEGY_PARTS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which chunk next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Strategy {
    /// A submission in proportion to its ready chunks, by chance.
    #[default]
    Random,
    /// The oldest submission first.
    OldestFirst,
    /// The newest submission first; old ones starve while new ones keep coming.
    NewestFirst,
    /// The submission with the highest priority first.
    CustomPriority,
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
        #[serde(default)]
        weights: BTreeMap<String, u32>,
        /// How to choose among the submissions of one value.
        #[serde(default = "oldest_first")]
        inner: Box<Strategy>,
    },
    /// The tasks of a lane.
    Lane {
        /// The lane's name.
        name: String,
    },
}

fn oldest_first() -> Box<Strategy> {
    Box::new(Strategy::OldestFirst)
}

/// A number of chunks, or a share of the connected consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Max {
    /// So many chunks.
    Count(u32),
    /// So many percent of the connected consumers, rounded up, at least 1.
    Percent(u8),
}

impl fmt::Display for Max {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Max::Count(count) => count.fmt(f),
            Max::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Max {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Max::Count(count) => serializer.serialize_u32(*count),
            Max::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Max {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Count(u32),
            Text(String),
        }
        let parsed = match Form::deserialize(deserializer) {
            Ok(Form::Count(count)) if count > 0 => Some(Max::Count(count)),
            Ok(Form::Text(text)) => text
                .strip_suffix('%')
                .and_then(|digits| digits.parse().ok())
                .filter(|percent| (1..=100).contains(percent))
                .map(Max::Percent),
            Ok(Form::Count(_)) | Err(_) => None,
        };
        parsed.ok_or_else(|| {
            serde::de::Error::custom("`max` is a positive number, or a percentage such as \"25%\"")
        })
    }
}

impl Strategy {
    /// The block's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Strategy::Random => "Random",
            Strategy::OldestFirst => "OldestFirst",
            Strategy::NewestFirst => "NewestFirst",
            Strategy::CustomPriority => "CustomPriority",
            Strategy::SelectOnly { .. } => "SelectOnly",
            Strategy::PreferDistinct { .. } => "PreferDistinct",
            Strategy::MaxSimultaneous { .. } => "MaxSimultaneous",
            Strategy::OrElse { .. } => "OrElse",
            Strategy::Fair { .. } => "Fair",
            Strategy::Lane { .. } => "Lane",
        }
    }

    fn parts(&self) -> Vec<&Strategy> {
        match self {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority
            | Strategy::Lane { .. } => Vec::new(),
            Strategy::SelectOnly { inner, .. }
            | Strategy::PreferDistinct { inner, .. }
            | Strategy::MaxSimultaneous { inner, .. }
            | Strategy::Fair { inner, .. } => vec![inner],
            Strategy::OrElse { first, fallback } => vec![first, fallback],
        }
    }

    /// Why this strategy cannot be served, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let (mut depth, mut count, mut level) = (0, 0, vec![self]);
        while !level.is_empty() {
            depth += 1;
            count += level.len();
            if depth > STRATEGY_DEPTH_MAX || count > STRATEGY_PARTS_MAX {
                return Some(format!(
                    "a strategy nests at most {STRATEGY_DEPTH_MAX} deep and has at most {STRATEGY_PARTS_MAX} parts; \
                     make it simpler"
                ));
            }
            level = level.into_iter().flat_map(Strategy::parts).collect();
        }
        match self {
            Strategy::Random | Strategy::OldestFirst | Strategy::NewestFirst => None,
            Strategy::CustomPriority
            | Strategy::SelectOnly { .. }
            | Strategy::PreferDistinct { .. }
            | Strategy::MaxSimultaneous { .. }
            | Strategy::OrElse { .. }
            | Strategy::Fair { .. }
            | Strategy::Lane { .. } => Some(format!(
                "this build does not serve the strategy {} yet; use Random, OldestFirst or NewestFirst",
                self.name()
            )),
        }
    }
}
