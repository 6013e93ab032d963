//! Max: how many chunks of one value may be worked on at once.

use super::words::whole_number;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of chunks, or a share of the connected consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Max {
    /// So many chunks.
    Count(u32),
    /// So many percent of the connected consumers, rounded up, at least 1.
    Percent(u8),
}

impl Max {
    /// So many percent of the connected consumers; a strategy with less than 1 or more than 100 is refused when used.
    pub const fn percent(percent: u8) -> Max {
        Max::Percent(percent)
    }

    /// What is wrong with it, as a sentence that says what to do.
    pub(super) fn problem(self) -> Option<String> {
        let is_sound = match self {
            Max::Count(count) => count > 0,
            Max::Percent(percent) => (1..=100).contains(&percent),
        };
        (!is_sound).then(|| format!("a limit is a number from 1 to {}, or 1% to 100%", u32::MAX))
    }
}

impl From<u32> for Max {
    fn from(count: u32) -> Max {
        Max::Count(count)
    }
}

impl fmt::Display for Max {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Max::Count(count) => count.fmt(f),
            Max::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Max {
    type Err = String;

    fn from_str(text: &str) -> Result<Max, String> {
        // What does not fit becomes 0, which is refused with the same sentence.
        let max = match text.strip_suffix('%') {
            Some(digits) => Max::Percent(small(digits).unwrap_or(0)),
            None => Max::Count(small(text).unwrap_or(0)),
        };
        max.problem().map_or(Ok(max), Err)
    }
}

fn small<T: TryFrom<u64>>(digits: &str) -> Option<T> {
    whole_number(digits).and_then(|number| T::try_from(number).ok())
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
            // A count is a number in JSON, never a text.
            Ok(Form::Text(text)) if text.ends_with('%') => text.parse().ok(),
            Ok(Form::Count(_) | Form::Text(_)) | Err(_) => None,
        };
        parsed.ok_or_else(|| {
            serde::de::Error::custom("`max` is a positive number, or a percentage such as \"25%\"")
        })
    }
}
