//! `windlass explain`: what a strategy would give next and why, and why a submission waits.

use crate::args::{Explain, Global};
use crate::exit::{Exit, print, print_json};
use crate::table::{aligned, counted, grouped};
use windlass_client::explain::{
    ExplainRequest, ExplainResponse, LimitInfo, PartInfo, PartStandingInfo, SubmissionExplained, TurnsInfo,
    VerdictInfo,
};
use windlass_client::{MetaValue, SubmissionState};

pub(crate) async fn run(global: &Global, explain: Explain) -> Result<(), Exit> {
    let request = ExplainRequest { strategy: explain.strategy, submission: explain.submission };
    let response = global.client()?.explain(&request).await?;
    if global.json { print_json(&response) } else { print(text_of(&response).as_bytes()) }
}

fn text_of(response: &ExplainResponse) -> String {
    let mut text = String::new();
    if let Some(submission) = &response.submission {
        text.push_str(&about(submission));
        text.push('\n');
    }
    let next = match (&response.next, response.by_chance) {
        (None, _) => "nothing".into(),
        (Some(next), false) => format!("chunk {} of submission {}", next.chunk, next.submission),
        (Some(next), true) => format!("for example chunk {} of submission {}", next.chunk, next.submission),
    };
    text.push_str(&format!("next  {next}\nwhy   {}\n\n", response.why));
    tree(&response.part, "", "", &mut text);
    text
}

/// A block, what it has to say, and the blocks inside it, further in.
fn tree(part: &PartInfo, lead: &str, below: &str, text: &mut String) {
    let mark = match part.standing {
        PartStandingInfo::Gives => "▶ ",
        PartStandingInfo::Empty | PartStandingInfo::NotAsked | PartStandingInfo::Repeats => "",
    };
    text.push_str(&format!("{lead}{mark}{}: {}\n", part.text, part.says));
    let bar = if part.inner.is_empty() { "     " } else { "│    " };
    let is_told = matches!(part.standing, PartStandingInfo::Gives | PartStandingInfo::Empty);
    let mut details = part.limit.iter().filter(|_| is_told).flat_map(limit_lines).collect::<Vec<_>>();
    details.extend(part.turns.iter().filter(|_| is_told).flat_map(turn_lines));
    details.iter().for_each(|line| text.push_str(&format!("{below}{bar}{line}\n")));
    for (place, inner) in part.inner.iter().enumerate() {
        let is_last = place + 1 == part.inner.len();
        let (branch, trunk) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        tree(inner, &format!("{below}{branch}"), &format!("{below}{trunk}"), text);
    }
}

fn limit_lines(limit: &LimitInfo) -> Vec<String> {
    let rows: Vec<Vec<String>> = limit
        .saturated
        .iter()
        .map(|it| {
            let reserved = format!("{} of {} in work", grouped(it.reserved), grouped(it.max));
            let verb = if it.submissions == 1 { "waits" } else { "wait" };
            let behind = format!("{} {verb}", counted(it.submissions, "submission"));
            vec![pair(&limit.field, Some(&it.value)), reserved, behind]
        })
        .collect();
    let mut lines = table(&rows);
    if limit.more > 0 || limit.cut {
        let least = if limit.cut { "at least " } else { "" };
        lines.push(format!("and {least}{} more", counted(limit.more, "value")));
    }
    lines
}

fn turn_lines(turns: &TurnsInfo) -> Vec<String> {
    let rows: Vec<Vec<String>> = turns
        .next
        .iter()
        .map(|it| {
            vec![
                pair(&turns.field, it.value.as_ref()),
                format!("weight {}", grouped(u64::from(it.weight))),
                format!("{:.3} ahead", it.ahead),
                it.submissions.map_or_else(String::new, |count| counted(count, "submission")),
            ]
        })
        .collect();
    let mut lines = table(&rows);
    if turns.values > turns.next.len() as u64 && !lines.is_empty() {
        lines.push(format!("of {} of {}", counted(turns.values, "value"), turns.field));
    }
    lines
}

/// Rows without a head, as lines.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let blank = [""; 4];
    let width = rows.first().map_or(0, Vec::len);
    aligned(&blank[..width], rows).lines().skip(1).map(str::to_owned).collect()
}

fn pair(field: &str, value: Option<&MetaValue>) -> String {
    value.map_or_else(|| format!("without {field}"), |value| format!("{field}={value}"))
}

fn about(it: &SubmissionExplained) -> String {
    let state = match (it.state, it.verdict) {
        (SubmissionState::Running, VerdictInfo::Paused) => "running, paused".to_owned(),
        (state, _) => state.to_string(),
    };
    let chunks = it.chunks;
    let mut text = format!("submission  {}, {state}\n", it.id);
    text.push_str(&format!("{:<10}  {}\n", word(it.verdict), it.says));
    text.push_str(&format!(
        "chunks      {} in all: {} done, {} failed, {} ready, {} in work, {} wait for a retry\n",
        grouped(chunks.total),
        grouped(chunks.done),
        grouped(chunks.failed),
        grouped(chunks.ready),
        grouped(chunks.reserved),
        grouped(chunks.delayed),
    ));
    if let Some(retry_at) = &it.retry_at {
        text.push_str(&format!("next retry  {retry_at}\n"));
    }
    if it.ways.len() > 1 {
        let rows: Vec<Vec<String>> = it
            .ways
            .iter()
            .map(|way| vec![word(way.verdict).to_owned(), way.strategy.clone(), way.says.clone()])
            .collect();
        text.push('\n');
        text.push_str(&aligned(&["", "WAY", ""], &rows));
    }
    text
}

const fn word(verdict: VerdictInfo) -> &'static str {
    match verdict {
        VerdictInfo::Next => "next",
        VerdictInfo::Waits => "waits",
        VerdictInfo::NotAsked => "not asked",
        VerdictInfo::Limited => "limited",
        VerdictInfo::NotMatched => "not taken",
        VerdictInfo::Paused => "paused",
        VerdictInfo::NothingReady => "not ready",
        VerdictInfo::Over => "over",
    }
}
