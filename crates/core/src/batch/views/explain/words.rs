//! Words: numbers and things as sentences have them.

use super::Counted;
use crate::batch::strategy::Strategy;
use crate::batch::submissions::MetaValue;

/// A number with its thousands set apart.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let first = (digits.len() + 2) % 3 + 1;
    let mut text = digits[..first.min(digits.len())].to_owned();
    for group in digits.as_bytes()[text.len()..].chunks(3) {
        text.push(',');
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

/// So many of a thing.
pub(super) fn counted(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", number(count))
}

impl Counted {
    /// So many of a thing, or more than that.
    pub(super) fn of(self, thing: &str) -> String {
        if self.is_cut {
            format!("more than {}", counted(self.count, thing))
        } else {
            counted(self.count, thing)
        }
    }
}

/// `is` or `are`, as one or several need it.
pub(super) const fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// `has` or `have`, as one or several need it.
pub(super) const fn have(count: u64) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

/// `waits` or `wait`, as one or several need it.
pub(super) const fn wait(count: u64) -> &'static str {
    if count == 1 { "waits" } else { "wait" }
}

/// A field's value, or its absence.
pub(super) fn value_of(field: &str, value: Option<&MetaValue>) -> String {
    value.map_or_else(|| format!("no {field}"), |value| Strategy::pair_text(field, value))
}

/// Why a limit lets nothing out after a change of the leader.
pub(super) fn held(field: &str) -> String {
    format!(
        "work of an earlier leadership may still be under way, so nothing with {field} goes out until its consumers had time \
         to come back"
    )
}

/// Whose turn it is.
pub(super) fn turn_of(field: &str, value: Option<&MetaValue>) -> String {
    value.map_or_else(|| format!("those without {field}"), |value| Strategy::pair_text(field, value))
}

/// Several values of different fields.
pub(super) fn all_of(selects: &[(&str, &MetaValue)]) -> String {
    let pairs: Vec<String> = selects.iter().map(|(field, value)| Strategy::pair_text(field, value)).collect();
    match pairs.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_set_apart_and_things_their_endings() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, 2].map(|count| counted(count, "chunk")), ["1 chunk", "2 chunks"]);
        let more = Counted { count: 100_000, is_cut: true };
        assert_eq!(more.of("submission"), "more than 100,000 submissions");
    }
}
