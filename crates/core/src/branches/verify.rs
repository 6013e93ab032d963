//! Verify: what must hold before a commit becomes visible.
//!
//! Rules compare what a commit holds with a number or with the version before it: `entries >= 0.9 * previous`,
//! `removed <= 100`. Checks are commands and addresses that the server's settings name.

use super::commits::Counts;
use crate::limits::{CHECK_NAME_BYTES_MAX, CHECKS_PER_COMMIT_MAX, RULES_PER_COMMIT_MAX};
use minicbor::{Decode, Encode};
use std::fmt;
use std::str::FromStr;

/// What must hold before a commit becomes visible.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Verify {
    /// Rules on counts.
    #[n(0)]
    pub rules: Vec<Rule>,
    /// Checks by the names that the server's settings give them.
    #[n(1)]
    pub checks: Vec<String>,
}

impl Verify {
    /// The first limit that is broken, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let is_name = |name: &String| (1..=CHECK_NAME_BYTES_MAX).contains(&name.len());
        if self.rules.len() > RULES_PER_COMMIT_MAX || self.checks.len() > CHECKS_PER_COMMIT_MAX {
            Some(format!(
                "a commit has at most {RULES_PER_COMMIT_MAX} rules and {CHECKS_PER_COMMIT_MAX} checks"
            ))
        } else if !self.checks.iter().all(is_name) {
            Some(format!("a check's name has 1 to {CHECK_NAME_BYTES_MAX} bytes"))
        } else {
            None
        }
    }
}

/// A rule on the counts of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Rule {
    /// What is counted.
    #[n(0)]
    pub measure: Measure,
    /// Whether it must be at least the bound, or at most.
    #[n(1)]
    pub is_at_least: bool,
    /// The bound.
    #[n(2)]
    pub bound: Bound,
}

/// What a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Measure {
    /// Entries of the new version.
    #[n(0)]
    Entries,
    /// Bytes of their objects.
    #[n(1)]
    Bytes,
    /// Paths that the version before did not have.
    #[n(2)]
    Added,
    /// Paths that lead to something else.
    #[n(3)]
    Changed,
    /// Paths that are no more.
    #[n(4)]
    Removed,
}

impl Measure {
    const ALL: [Measure; 5] =
        [Measure::Entries, Measure::Bytes, Measure::Added, Measure::Changed, Measure::Removed];

    const fn name(self) -> &'static str {
        match self {
            Measure::Entries => "entries",
            Measure::Bytes => "bytes",
            Measure::Added => "added",
            Measure::Changed => "changed",
            Measure::Removed => "removed",
        }
    }

    const fn of(self, counts: &Counts) -> u64 {
        match self {
            Measure::Entries => counts.entries,
            Measure::Bytes => counts.bytes,
            Measure::Added => counts.added,
            Measure::Changed => counts.changed,
            Measure::Removed => counts.removed,
        }
    }

    /// What `previous` means beside it: the bytes of the version before, or its entries.
    const fn of_previous(self, previous: &Counts) -> u64 {
        match self {
            Measure::Bytes => previous.bytes,
            Measure::Entries | Measure::Added | Measure::Changed | Measure::Removed => previous.entries,
        }
    }
}

/// What a rule compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Bound {
    /// A number.
    #[n(0)]
    Number(#[n(0)] u64),
    /// So many thousandths of the version before.
    #[n(1)]
    OfPrevious(#[n(0)] u64),
}

impl Rule {
    /// What is wrong with a commit of these counts after a version of those, if something is.
    pub fn broken_by(&self, counts: &Counts, previous: &Counts) -> Option<String> {
        let (value, before) = (self.measure.of(counts), self.measure.of_previous(previous));
        let holds = |order: std::cmp::Ordering| if self.is_at_least { order.is_ge() } else { order.is_le() };
        let (is_kept, against) = match self.bound {
            Bound::Number(bound) => (holds(value.cmp(&bound)), String::new()),
            Bound::OfPrevious(milli) => {
                let order = (u128::from(value) * 1_000).cmp(&(u128::from(before) * u128::from(milli)));
                (holds(order), format!(", and the version before has {before}"))
            }
        };
        let name = self.measure.name();
        (!is_kept).then(|| format!("the rule `{self}` does not hold: {name} is {value}{against}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comparison = if self.is_at_least { ">=" } else { "<=" };
        write!(f, "{} {comparison} ", self.measure.name())?;
        match self.bound {
            Bound::Number(number) => number.fmt(f),
            Bound::OfPrevious(1_000) => f.write_str("previous"),
            Bound::OfPrevious(milli) => {
                let thousandths = format!("{:03}", milli % 1_000);
                let thousandths = thousandths.trim_end_matches('0');
                let dot = if thousandths.is_empty() { "" } else { "." };
                write!(f, "{}{dot}{thousandths} * previous", milli / 1_000)
            }
        }
    }
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotARule(String);

impl fmt::Display for NotARule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no rule; write `entries >= 0.9 * previous` or `removed <= 100`, with entries, bytes, added, changed or \
             removed, and >= or <=",
            self.0
        )
    }
}

impl std::error::Error for NotARule {}

impl FromStr for Rule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Rule, NotARule> {
        let parse = || {
            let (is_at_least, (measure, bound)) = match text.split_once(">=") {
                Some(parts) => (true, parts),
                None => (false, text.split_once("<=")?),
            };
            let measure = Measure::ALL.into_iter().find(|it| it.name() == measure.trim())?;
            let bound = match bound.trim() {
                "previous" => Bound::OfPrevious(1_000),
                bound => match bound.split_once('*') {
                    Some((factor, of)) if of.trim() == "previous" => {
                        Bound::OfPrevious(milli_of(factor.trim())?)
                    }
                    Some(_) => return None,
                    None => Bound::Number(digits(bound)?),
                },
            };
            Some(Rule { measure, is_at_least, bound })
        };
        parse().ok_or_else(|| NotARule(text.chars().take(80).collect()))
    }
}

fn digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Thousandths in a decimal number with at most three digits after its point.
fn milli_of(text: &str) -> Option<u64> {
    let (whole, thousandths) = text.split_once('.').unwrap_or((text, "0"));
    if thousandths.is_empty() || thousandths.len() > 3 {
        return None;
    }
    let thousandths = digits(&format!("{thousandths:0<3}"))?;
    digits(whole)?.checked_mul(1_000)?.checked_add(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Counts =
        Counts { entries: 1_000, bytes: 5_000, added: 0, changed: 0, removed: 0, conflicts: 0 };

    #[test]
    fn a_rule_is_read_printed_and_kept() {
        let now = Counts { entries: 900, bytes: 10_000, added: 10, changed: 3, removed: 110, conflicts: 0 };
        for (text, is_kept) in [
            ("entries >= 0.9 * previous", true),
            ("entries >= 0.901 * previous", false),
            ("entries >= previous", false),
            ("bytes <= 2 * previous", true),
            ("bytes <= 1.999 * previous", false),
            ("removed <= 110", true),
            ("removed <= 0.1 * previous", false),
            ("added >= 11", false),
            ("changed >= 3", true),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.broken_by(&now, &BEFORE).is_none(), is_kept, "{text}");
        }
        let rule: Rule =
            "entries>=.95*previous".parse().unwrap_or("entries >= 0.95 * previous".parse().unwrap());
        assert_eq!(
            rule.broken_by(&now, &BEFORE).unwrap(),
            "the rule `entries >= 0.95 * previous` does not hold: entries is 900, and the version before has 1000"
        );
    }

    #[test]
    fn what_is_no_rule_is_refused_with_an_example() {
        for bad in [
            "",
            "entries",
            "entries > 3",
            "rows >= 3",
            "entries >= ",
            "entries >= -1",
            "entries >= 1.5",
            "entries >= 0.1234 * previous",
            "entries >= 2 * next",
            "entries >= 99999999999999999999",
            "entries >= 99999999999999999999 * previous",
            "entries >= NaN * previous",
        ] {
            assert!(bad.parse::<Rule>().is_err(), "{bad:?}");
        }
    }
}
