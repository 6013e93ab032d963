//! Numbers, and what is said in several places, as the screen shows them.

use crate::table::{grouped, short};
use std::time::Duration;
use windlass_client::overview::QueueTasks;

/// A number with its thousands set apart.
pub(super) fn numbered(number: u64) -> String {
    grouped(number)
}

/// So many in a second; a dash if it is not known yet.
pub(super) fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => "–".into(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}/s"),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is not negative")]
        Some(rate) => format!("{}/s", grouped(rate.round() as u64)),
    }
}

/// A part of a whole in percent; a dash if it is not known.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "–".into(), |part| format!("{:.1}%", 100.0 * part))
}

/// Where the tasks of lanes are, if there are any.
pub(super) fn tasks(tasks: &QueueTasks) -> Option<String> {
    let QueueTasks { waiting, reserved, delayed, dead } = *tasks;
    let parts = [
        (waiting - reserved.min(waiting), "waiting"),
        (reserved, "out"),
        (delayed, "delayed"),
        (dead, "dead"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{} {what}", numbered(*count))).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Why nothing with a hard limit goes out after a restart, and for how long that may be.
pub(super) fn held(ms: u64) -> String {
    let left = short(Duration::from_millis(ms));
    format!(
        "hard limits let nothing out for {left} at most: consumers from before the restart may still be at work"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_have_a_decimal_and_large_ones_their_thousands() {
        let shown = [None, Some(0.0), Some(9.94), Some(9.96), Some(12_345.6)].map(per_second);
        assert_eq!(shown, ["–", "0.0/s", "9.9/s", "10/s", "12,346/s"]);
        assert_eq!([percent(None), percent(Some(0.6))], ["–", "60.0%"]);
    }
}
