//! Weights: how much of the work each value of a field gets by `Fair`, for every strategy that does not say otherwise.
//!
//! Changed at run time, through the log; they count from the next hand-out on.

use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::limits::{FAIR_WEIGHT_MAX, METADATA_VALUE_BYTES_MAX, WEIGHTS_PER_FIELD_MAX};
use crate::rows;
use crate::tables::{Table, Tables};
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// The weights of a field's values, each value as its text.
pub type Weights = BTreeMap<String, u32>;

/// See [`Command::Weigh`](crate::entry::Command::Weigh).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Weigh {
    /// The metadata field.
    #[n(0)]
    pub field: String,
    /// New weights of values; none puts a value back to 1. Values that are not named keep theirs.
    #[n(1)]
    pub weights: BTreeMap<String, Option<u32>>,
}

impl Weigh {
    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let is_bad = |weight: &Option<u32>| weight.is_some_and(|it| it == 0 || it > FAIR_WEIGHT_MAX);
        let bad_weight = self.weights.iter().find(|(_, weight)| is_bad(weight));
        let long_value = self.weights.keys().any(|value| value.len() > METADATA_VALUE_BYTES_MAX);
        let field = super::submissions::problem_of_field(&self.field);
        field.or_else(|| match bad_weight {
            _ if self.weights.is_empty() => Some("name at least one value and its weight".into()),
            Some((value, _)) => Some(format!(
                "the weight of `{value}` is a whole number from 1 to {FAIR_WEIGHT_MAX}; null (`windlass weights unset`) puts it back to 1"
            )),
            None if long_value => {
                Some(format!("a value has at most {METADATA_VALUE_BYTES_MAX} bytes"))
            }
            None => None,
        })
    }
}

/// The weights of a field.
pub(crate) fn weights_of(tables: &dyn Tables, field: &str) -> Weights {
    let row = tables.get(Table::Weights, field.as_bytes());
    row.map(|row| rows::decode(Table::Weights, field.as_bytes(), &row)).unwrap_or_default()
}

/// The weights of every field that has some.
pub(crate) fn all_weights(tables: &dyn Tables) -> impl Iterator<Item = (String, Weights)> {
    tables.scan_prefix(Table::Weights, &[]).map(|(key, row)| {
        let weights = rows::decode(Table::Weights, &key, &row);
        (String::from_utf8(key).expect("a field's name is text"), weights)
    })
}

pub(crate) fn weigh(tables: &mut dyn Tables, it: Weigh) -> Applied {
    if let Some(problem) = it.problem() {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let mut weights = weights_of(tables, &it.field);
    for (value, weight) in it.weights {
        match weight {
            Some(weight) => drop(weights.insert(value, weight)),
            None => drop(weights.remove(&value)),
        }
    }
    if weights.len() > WEIGHTS_PER_FIELD_MAX {
        let problem =
            format!("a field has at most {WEIGHTS_PER_FIELD_MAX} values with a weight of their own");
        return Applied::refused(Refusal::Malformed { problem });
    }

    // Nothing below can be refused.
    if weights.is_empty() {
        tables.delete(Table::Weights, it.field.as_bytes());
    } else {
        tables.put(Table::Weights, it.field.as_bytes(), rows::encode(&weights));
    }
    let effect = Effect::Weighed { field: it.field, weights };
    Applied { outcome: Outcome::Noted, effects: vec![effect] }
}
