//! Strategies in Rust: constructors say what is chosen, methods go on from there.
//!
//! None of them refuses a value; [`Strategy::problem`] says what is wrong, and so does the server.

use super::{Max, Strategy};
use crate::batch::submissions::MetaValue;
use std::collections::BTreeMap;

/// ```
/// use windlass_core::batch::strategy::{Max, Strategy};
///
/// let strategy = Strategy::select_only("mode", "preview", Strategy::Random)
///     .max_simultaneous("company_id", Max::percent(25))
///     .or_else(Strategy::fair("company_id").weight("acme", 3));
///
/// assert_eq!(
///     strategy.to_string(),
///     "OrElse(MaxSimultaneous(company_id, 25%, SelectOnly(mode=preview, Random)), \
///      Fair(company_id, weights(acme=3)))"
/// );
/// assert_eq!(strategy.to_string().parse(), Ok(strategy.clone()));
/// assert_eq!(strategy.problem(), None);
/// ```
impl Strategy {
    /// The submission with the highest priority first; priorities do not rise.
    pub const fn custom_priority() -> Strategy {
        Strategy::CustomPriority { aging_ms: None }
    }

    /// Only submissions whose field has this value, and `inner` to choose among them.
    pub fn select_only(
        field: impl Into<String>,
        value: impl Into<MetaValue>,
        inner: impl Into<Box<Strategy>>,
    ) -> Strategy {
        Strategy::SelectOnly { field: field.into(), value: value.into(), inner: inner.into() }
    }

    /// Turns between the values of a field, the oldest submission of each first; all weigh 1.
    pub fn fair(field: impl Into<String>) -> Strategy {
        Strategy::fair_then(field, Strategy::OldestFirst)
    }

    /// Turns between the values of a field, then `inner` to choose among the submissions of one value; all weigh 1.
    pub fn fair_then(field: impl Into<String>, inner: impl Into<Box<Strategy>>) -> Strategy {
        Strategy::Fair { field: field.into(), weights: BTreeMap::new(), inner: inner.into() }
    }

    /// The tasks of a lane.
    pub fn lane(name: impl Into<String>) -> Strategy {
        Strategy::Lane { name: name.into() }
    }

    /// On a [`Strategy::custom_priority`]: lets a submission's priority rise by 1 each time it has waited this long.
    ///
    /// # Panics
    /// On any other block.
    pub fn aging_ms(mut self, each_ms: u64) -> Strategy {
        let Strategy::CustomPriority { aging_ms } = &mut self else {
            panic!("`aging_ms` belongs right behind `custom_priority`, not behind {}", self.name());
        };
        *aging_ms = Some(each_ms);
        self
    }

    /// On a [`Strategy::fair`]: gives one value a weight.
    ///
    /// # Panics
    /// On any other block.
    pub fn weight(mut self, value: impl Into<MetaValue>, weight: u32) -> Strategy {
        let Strategy::Fair { weights, .. } = &mut self else {
            panic!("`weight` belongs right behind `fair`, not behind {}", self.name());
        };
        weights.insert(value.into().to_string(), weight);
        self
    }

    /// This strategy, with other values of the field first once `max` chunks of one value are being worked on (soft).
    pub fn prefer_distinct(self, field: impl Into<String>, max: impl Into<Max>) -> Strategy {
        Strategy::PreferDistinct { field: field.into(), max: max.into(), inner: Box::new(self) }
    }

    /// This strategy, with never more than `max` chunks of one value of the field being worked on at once (hard).
    pub fn max_simultaneous(self, field: impl Into<String>, max: impl Into<Max>) -> Strategy {
        Strategy::MaxSimultaneous { field: field.into(), max: max.into(), inner: Box::new(self) }
    }

    /// This strategy, or the fallback if it gives nothing.
    pub fn or_else(self, fallback: impl Into<Box<Strategy>>) -> Strategy {
        Strategy::OrElse { first: Box::new(self), fallback: fallback.into() }
    }
}

impl From<&str> for MetaValue {
    fn from(text: &str) -> MetaValue {
        MetaValue::Text(text.into())
    }
}

impl From<String> for MetaValue {
    fn from(text: String) -> MetaValue {
        MetaValue::Text(text)
    }
}

impl From<i64> for MetaValue {
    fn from(number: i64) -> MetaValue {
        MetaValue::Integer(number)
    }
}

impl From<bool> for MetaValue {
    fn from(flag: bool) -> MetaValue {
        MetaValue::Bool(flag)
    }
}
