//! Problems: what no strategy may be, each as a sentence that says what to do.
//!
//! The text form asks the same questions while it reads, so that it can point at the place.

use super::Strategy;
use super::text::{Span, pair};
use crate::batch::submissions::{MetaValue, problem_of_field};
use crate::lanes::open::problem_of_name;
use crate::limits::{
    AGING_MS_MAX, FAIR_WEIGHT_MAX, FAIR_WEIGHTS_MAX, METADATA_VALUE_BYTES_MAX, STRATEGY_DEPTH_MAX,
    STRATEGY_PARTS_MAX,
};

impl Strategy {
    /// Why this strategy cannot be served, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        // Everything after the first check may recurse: the depth is known to be small.
        self.problem_of_size()
            .or_else(|| self.problem_of_settings())
            .or_else(|| self.problem_of_lanes())
            .or_else(|| contradiction(self, &mut Vec::new(), &mut Vec::new()))
    }

    fn problem_of_size(&self) -> Option<String> {
        let (mut depth, mut count, mut level) = (0, 0, vec![self]);
        while !level.is_empty() {
            depth += 1;
            count += level.len();
            if depth > STRATEGY_DEPTH_MAX || count > STRATEGY_PARTS_MAX {
                return Some(too_large());
            }
            level = level.into_iter().flat_map(Strategy::parts).collect();
        }
        None
    }

    /// How deep it nests; 1 without anything inside.
    pub(super) fn levels(&self) -> usize {
        1 + self.parts().into_iter().map(Strategy::levels).max().unwrap_or(0)
    }

    /// Tasks of a lane have keys, not the metadata of submissions, and are in their lane's order already.
    fn problem_of_lanes(&self) -> Option<String> {
        match self {
            Strategy::OrElse { first, fallback } => {
                first.problem_of_lanes().or_else(|| fallback.problem_of_lanes())
            }
            Strategy::Lane { .. } => None,
            other => (!other.lanes().is_empty()).then(|| {
                format!(
                    "{}: a lane has its own order and limits, so Lane stands alone or as a side of OrElse; take it out of \
                     {}",
                    other.name(),
                    other.name()
                )
            }),
        }
    }

    fn problem_of_settings(&self) -> Option<String> {
        let own = match self {
            Strategy::Random | Strategy::OldestFirst | Strategy::NewestFirst => None,
            Strategy::CustomPriority { aging_ms } => aging_ms.and_then(problem_of_aging),
            Strategy::SelectOnly { field, value, .. } => {
                problem_of_field(field).or_else(|| problem_of_value(value))
            }
            Strategy::PreferDistinct { field, max, .. } | Strategy::MaxSimultaneous { field, max, .. } => {
                problem_of_field(field).or_else(|| max.problem())
            }
            Strategy::OrElse { .. } => None,
            Strategy::Fair { field, weights, .. } => {
                let problem_of_one = |(of, weight): (&String, &u32)| {
                    problem_of_text(of).or_else(|| problem_of_weight(*weight))
                };
                problem_of_field(field)
                    .or_else(|| (weights.len() > FAIR_WEIGHTS_MAX).then(too_many_weights))
                    .or_else(|| weights.iter().find_map(problem_of_one))
            }
            Strategy::Lane { name } => problem_of_name(name),
        };
        own.map(|sentence| format!("{}: {sentence}", self.name()))
            .or_else(|| self.parts().into_iter().find_map(Strategy::problem_of_settings))
    }
}

/// The first path from the root on which two `SelectOnly` want different values of one field: no submission has both.
///
/// `wanted` is what the blocks above want, `branches` the branches of `OrElse` that lead here.
fn contradiction<'a>(
    strategy: &'a Strategy,
    wanted: &mut Vec<(&'a str, &'a MetaValue)>,
    branches: &mut Vec<&'static str>,
) -> Option<String> {
    match strategy {
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => None,
        Strategy::PreferDistinct { inner, .. }
        | Strategy::MaxSimultaneous { inner, .. }
        | Strategy::Fair { inner, .. } => contradiction(inner, wanted, branches),
        Strategy::OrElse { first, fallback } => {
            [("first", first), ("fallback", fallback)].into_iter().find_map(|(branch, part)| {
                branches.push(branch);
                let found = contradiction(part, wanted, branches);
                branches.pop();
                found
            })
        }
        Strategy::SelectOnly { field, value, inner } => {
            if let Some((_, other)) = wanted.iter().find(|(of, other)| of == field && *other != value) {
                return Some(never_matches(field, other, value, branches));
            }
            wanted.push((field, value));
            let found = contradiction(inner, wanted, branches);
            wanted.pop();
            found
        }
    }
}

fn never_matches(field: &str, above: &MetaValue, below: &MetaValue, branches: &[&str]) -> String {
    let path: Vec<String> = branches.iter().rev().map(|branch| format!("`{branch}`")).collect();
    let (what, cure) = match path.as_slice() {
        [] => ("the strategy".to_owned(), "remove one of them"),
        path => (format!("the branch {} of OrElse", path.join(" of ")), "remove one of them, or the branch"),
    };
    let (above, below) = (pair(field, above), pair(field, below));
    format!("{what} can never match, since SelectOnly wants {above} and within it {below}; {cure}")
}

pub(super) fn too_large() -> String {
    format!(
        "a strategy nests at most {STRATEGY_DEPTH_MAX} deep and has at most {STRATEGY_PARTS_MAX} parts; \
         make it simpler"
    )
}

pub(super) fn too_many_weights() -> String {
    format!("at most {FAIR_WEIGHTS_MAX} values have a weight; leave out those whose weight is 1")
}

/// A value that no submission can have.
pub(super) fn problem_of_value(value: &MetaValue) -> Option<String> {
    match value {
        MetaValue::Text(text) => problem_of_text(text),
        MetaValue::Integer(_) | MetaValue::Bool(_) => None,
    }
}

pub(super) fn problem_of_text(text: &str) -> Option<String> {
    (text.len() > METADATA_VALUE_BYTES_MAX).then(|| {
        format!("no metadata value is longer than {METADATA_VALUE_BYTES_MAX} bytes; choose by a shorter one")
    })
}

pub(super) fn problem_of_weight(weight: u32) -> Option<String> {
    (!(1..=FAIR_WEIGHT_MAX).contains(&weight)).then(|| {
        format!("a weight is a number from 1 to {FAIR_WEIGHT_MAX}; values that are not named weigh 1")
    })
}

pub(super) fn problem_of_aging(aging_ms: u64) -> Option<String> {
    (!(1..=AGING_MS_MAX).contains(&aging_ms)).then(|| {
        let max = Span(AGING_MS_MAX);
        format!("aging is from 1ms to {max}; leave it out for priorities that never rise")
    })
}
