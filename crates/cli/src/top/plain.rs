//! One look at the queue as plain text, for pipes and for people without a terminal.

use super::figures::{Samples, ValueFigure};
use super::words::{self, numbered, per_second, percent};
use crate::table::{aligned, counted, short};
use std::time::Duration;
use windlass_client::overview::{ConsumersInfo, FieldOverview, LimitsInfo, OverviewInfo};

/// What was seen last, with rates if there was something before it.
pub(super) fn snapshot(server: &str, samples: &Samples) -> String {
    let Some(seen) = samples.last() else { return String::new() };
    let mut text = numbers(server, samples, seen);
    if let Some(field) = &seen.field {
        text.push('\n');
        text.push_str(&values(field, &samples.values(), seen));
    } else if seen.fields.is_empty() {
        text.push_str("\nno submission in the queue has metadata\n");
    }
    if let Some(ms) = seen.limits.holding_ms {
        text.push_str(&format!("\n{}\n", words::held(ms)));
    }
    if !seen.limits.items.is_empty() {
        text.push('\n');
        text.push_str(&limits(&seen.limits));
    }
    text.push('\n');
    text.push_str(&consumers(samples, &seen.consumers));
    text
}

fn numbers(server: &str, samples: &Samples, seen: &OverviewInfo) -> String {
    let rates = samples.rates();
    let rate = |of: fn(&super::figures::Rates) -> f64| per_second(rates.as_ref().map(of));
    let (chunks, totals) = (seen.chunks, seen.totals);
    let up = short(Duration::from_millis(seen.at_ms.saturating_sub(seen.since_ms)));
    let rows = [
        ("server", format!("{server}, version {}, up {up}", seen.version)),
        ("submissions", format!("{} running", numbered(seen.submissions_running))),
        (
            "chunks",
            format!(
                "{} ready, {} reserved, {} wait for a retry, {} paused",
                numbered(chunks.ready),
                numbered(chunks.reserved),
                numbered(chunks.delayed),
                numbered(chunks.paused)
            ),
        ),
        ("handed out", format!("{}, {} in all", rate(|it| it.handed_out), numbered(totals.handed_out))),
        ("completed", format!("{}, {} in all", rate(|it| it.completed), numbered(totals.completed))),
        ("failed", format!("{}, {} in all", rate(|it| it.failed), numbered(totals.failed))),
        ("submitted", format!("{}, {} in all", rate(|it| it.submitted), numbered(totals.submitted))),
    ];
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    if let Some(tasks) = words::tasks(&seen.tasks) {
        text.push_str(&format!("{:<12} {tasks}; `windlass lanes list` and `show` say more\n", "lanes"));
    }
    text
}

fn values(field: &FieldOverview, figures: &[ValueFigure], seen: &OverviewInfo) -> String {
    if figures.is_empty() {
        let known: Vec<String> =
            seen.fields.iter().map(|it| format!("{} ({})", it.name, counted(it.values, "value"))).collect();
        let known = if known.is_empty() {
            "there are no fields".into()
        } else {
            format!("there are {}", known.join(", "))
        };
        return format!("nothing with {} is ready or in work; {known}\n", field.name);
    }
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|it| {
            vec![
                it.name(),
                it.weight.to_string(),
                numbered(it.ready),
                numbered(it.reserved),
                per_second(it.rate),
                percent(it.share),
                percent(it.fair_share),
            ]
        })
        .collect();
    let name = field.name.to_uppercase();
    let last = if field.fair { "FAIR SHARE" } else { "EVEN SHARE" };
    let table = aligned(&[&name, "WEIGHT", "READY", "RESERVED", "OUT/S", "SHARE", last], &rows);
    table + &and_more(field.more, field.cut, "value")
}

fn limits(seen: &LimitsInfo) -> String {
    let rows: Vec<Vec<String>> = seen
        .items
        .iter()
        .map(|it| {
            vec![
                format!("{}={}", it.field, it.value),
                format!("{} of {}", numbered(it.reserved), numbered(it.max)),
                numbered(it.submissions),
                if it.hard { "hard".into() } else { "soft".into() },
            ]
        })
        .collect();
    let table = aligned(&["AT ITS LIMIT", "RESERVED", "SUBMISSIONS BEHIND", "LIMIT"], &rows);
    table + &and_more(seen.more, seen.cut, "value")
}

fn consumers(samples: &Samples, seen: &ConsumersInfo) -> String {
    let figures = samples.consumers();
    if figures.is_empty() {
        return "no consumer is connected\n".into();
    }
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|it| {
            vec![
                format!("{} #{}", it.info.name, it.info.id),
                numbered(it.info.reserved),
                per_second(it.rate),
                numbered(it.info.handed_out),
                if it.info.waiting { "waiting".into() } else { String::new() },
                it.info.strategy.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let table = aligned(&["CONSUMER", "RESERVED", "OUT/S", "HANDED OUT", "STATE", "STRATEGY"], &rows);
    table + &and_more(seen.more, false, "consumer")
}

fn and_more(more: u64, is_cut: bool, thing: &str) -> String {
    match (more, is_cut) {
        (0, false) => String::new(),
        (more, false) => format!("and {} more\n", counted(more, thing)),
        (more, true) => format!("and more than {} more; not all were looked at\n", counted(more, thing)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    const EXPECTED: &str = "\
server       http://127.0.0.1:7420, version 0.1.0, up 2.0s
submissions  1,234 running
chunks       1,234,447 ready, 6 reserved, 3 wait for a retry, 500 paused
handed out   60/s, 120 in all
completed    59/s, 118 in all
failed       1.0/s, 2 in all
submitted    1.0/s, 1 in all
lanes        1,200 waiting; `windlass lanes list` and `show` say more

COMPANY_ID  WEIGHT  READY      RESERVED  OUT/S  SHARE  FAIR SHARE
acme        3       1,000,000  4         40/s   66.7%  60.0%
globex      1       60         1         10/s   16.7%  20.0%
umbrella    1       234,507    1         10/s   16.7%  20.0%

AT ITS LIMIT     RESERVED  SUBMISSIONS BEHIND  LIMIT
company_id=acme  4 of 4    14                  hard

CONSUMER     RESERVED  OUT/S  HANDED OUT  STATE    STRATEGY
worker-a #1  2         20/s   40                   MaxSimultaneous(company_id, 4, Fair(company_id, weights(acme=3)))
worker-b #2  4         40/s   80                   MaxSimultaneous(company_id, 4, Fair(company_id, weights(acme=3)))
worker-c #3  0         0.0/s  0           waiting  MaxSimultaneous(company_id, 4, Fair(company_id, weights(acme=3)))
";

    #[test]
    fn what_goes_to_values_that_are_not_shown_counts_in_the_shares_of_those_that_are() {
        let seen_at = |seconds: u64| {
            let mut seen = example::overview(seconds);
            let field = seen.field.as_mut().unwrap();
            field.values[0].value = None;
            field.values.truncate(2);
            field.more = 148;
            field.handed_out = 200 * seconds;
            seen
        };
        let mut samples = Samples::default();
        (1..=3).for_each(|seconds| samples.push(seen_at(seconds)));
        let shown: Vec<_> = samples.values().into_iter().map(|it| (it.name(), percent(it.share))).collect();
        assert_eq!(shown, [("umbrella".into(), "5.0%".into()), ("(none)".to_owned(), "20.0%".into())]);
    }

    #[test]
    fn while_hard_limits_hold_everything_back_it_says_so_and_for_how_long() {
        let mut seen = example::overview(1);
        seen.limits = LimitsInfo { items: Vec::new(), more: 0, cut: false, holding_ms: Some(41_000) };
        let mut samples = Samples::default();
        samples.push(seen);
        let says = "hard limits let nothing out for 41s at most: consumers from before the restart may still be at work";
        let text = snapshot("http://127.0.0.1:7420", &samples);
        assert!(text.lines().any(|line| line == says), "{text}");
    }

    #[test]
    fn a_snapshot_says_what_there_is_what_happens_and_who_gets_how_much() {
        let text = snapshot("http://127.0.0.1:7420", &example::samples(2));
        assert_eq!(text, EXPECTED);
    }
}
