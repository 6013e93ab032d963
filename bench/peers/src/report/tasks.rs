//! The part of the page about single tasks. It can be written anew by itself, so it says by itself what was measured.

use super::{BEST_PEER, Row, Table, grouped, judge, load_lines, put, rows_behind, rows_of};
use crate::figures::Figures;
use crate::sections::LANE_CLIENTS;
use crate::system::{Kind, Mode, TASKS, Work};

/// Its heading; the next one like it ends the part.
const HEADING: &str = "## Single tasks with payloads\n";
/// Where the part goes in a page that has none yet.
const BEFORE: &str = "\n## Versions\n";
/// Everything in the part that is not measured.
const DRIVEN: &str = include_str!("tasks.md");

fn rows(figures: &Figures) -> Vec<Row> {
    let kinds = [Mode::Add, Mode::OneByOne, Mode::Recommended].map(|mode| Kind { work: Work::Tasks, mode });
    let rows = kinds.into_iter().flat_map(|kind| rows_of(figures, kind, LANE_CLIENTS));
    rows.filter(|it| it.rates.iter().any(Option::is_some)).collect()
}

/// The rows as Markdown, with the systems that have such tasks; empty if none were measured.
pub(crate) fn table(figures: &Figures) -> Table {
    let (rows, mut text, mut missed) = (rows(figures), String::new(), Vec::new());
    if rows.is_empty() {
        return Table { text, missed };
    }
    let has_some = |column: &usize| rows.iter().any(|row| row.rates[*column].is_some());
    let columns: Vec<usize> = (0..figures.systems.len()).filter(has_some).collect();
    let names: Vec<&str> = columns.iter().map(|it| figures.systems[*it].name.as_str()).collect();
    put(&mut text, &format!("| tasks/s | {} | Windlass : best peer | bar |", names.join(" | ")));
    put(&mut text, &format!("|---|{}---:|---|", "---:|".repeat(names.len())));
    for row in &rows {
        let rates = columns.iter().map(|it| row.rates[*it].map_or("–".into(), grouped));
        let rates: Vec<String> = rates.collect();
        let (ratio, bar) = judge(row, (row.ratio(), row.bar, BEST_PEER), &mut missed);
        put(&mut text, &format!("| {} | {} | {ratio} | {bar} |", row.what, rates.join(" | ")));
    }
    Table { text, missed }
}

/// Whether a remark on the run is one for this part.
pub(super) fn is_about(remark: &str) -> bool {
    remark.contains(TASKS)
}

/// The part, from its heading on; empty if nothing was measured.
pub(super) fn section(figures: &Figures) -> String {
    let Table { text: table, missed } = table(figures);
    if table.is_empty() {
        return String::new();
    }
    let behind = match rows_behind(figures, &rows(figures)) {
        lines if lines.is_empty() => "In none of these rows is a peer ahead.".into(),
        lines => format!("Where we lose:\n\n{}", lines.join("\n")),
    };
    let missed = match missed {
        missed if missed.is_empty() => "Every bar holds.".into(),
        missed => format!("Bars missed:\n\n- {}", missed.join("\n- ")),
    };
    let about = figures.remarks.iter().filter(|it| is_about(it));
    let remarks: Vec<String> = about.map(|it| format!("\nNot as planned: {it}\n")).collect();
    format!(
        "{HEADING}\n\
         Written by `make bench-peers`, or alone by `bench/peers/target/release/peers-bench --only lanes`: {} × {} s for each load,\n\
         medians; {}; Windlass is built from commit {}.\n\n\
         {table}\n{behind}\n\n{missed}\n\n{DRIVEN}\n\
         ### What 10^5 tasks cost\n\n\
         | load | system | way | tasks/s | server | clients | others | fsync | each repetition |\n|---|---|---|---:|---:|---:|---:|---:|---|\n\
         {}{}",
        figures.repetitions,
        figures.seconds,
        figures.machine,
        figures.commit,
        load_lines(figures, Work::Tasks),
        remarks.concat(),
    )
}

/// A page with the part in it as these figures have it, everything else as it was.
pub(crate) fn written_into(page: &str, figures: &Figures) -> String {
    let (before, after) = match page.split_once(HEADING) {
        Some((before, old)) => (before, old.find("\n## ").map_or("", |end| &old[end + 1..])),
        None => match page.find(BEFORE) {
            Some(end) => page.split_at(end + 1),
            None => (page, ""),
        },
    };
    format!("{before}{}\n{after}", section(figures))
}
