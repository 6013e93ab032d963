//! The report: one table of ratios with their bars, the page around it, and the plots.

pub(crate) mod tasks;

use crate::figures::{Backlog, Figures, Fill, Load};
use crate::plot::{Plot, Series};
use crate::system::{Kind, Mode, Work, median};
use crate::windlass::{
    BY_DEFAULT, BY_SETTINGS, MANY_SUBMISSIONS, ONE_SUBMISSION, OVER_HTTP, OWN_ROWS, WINDLASS,
};
use std::fmt::Write as _;

const OPSQUEUE: &str = "Opsqueue";
const BEST_PEER: &str = "the best peer";
/// Everything on the page that is not measured.
const SYSTEMS: &str = include_str!("systems.md");

/// The table of ratios.
pub(crate) struct Table {
    pub(crate) text: String,
    /// Rows that miss a bar, in words.
    pub(crate) missed: Vec<String>,
}

/// One row: what each system did, and what Windlass must be beside it.
struct Row {
    what: String,
    /// Chunks a second, in the order of the systems.
    rates: Vec<Option<f64>>,
    bar: Option<f64>,
    opsqueue_bar: Option<f64>,
}

impl Row {
    fn ours(&self) -> Option<f64> {
        self.rates.first().copied().flatten()
    }

    /// Windlass : the best of the others.
    fn ratio(&self) -> Option<f64> {
        let best = self.rates.iter().skip(1).copied().flatten().reduce(f64::max)?;
        Some(self.ours()? / best)
    }

    fn opsqueue_ratio(&self, figures: &Figures) -> Option<f64> {
        let column = figures.systems.iter().position(|it| it.name == OPSQUEUE)?;
        Some(self.ours()? / self.rates[column]?)
    }
}

/// A ratio this near to its bar may be on its other side by chance.
const CLOSE: std::ops::Range<f64> = 0.75..1.35;

/// The numbers of clients at which chance may decide whether Windlass reaches its bar beside the best peer.
pub(crate) fn close_calls(figures: &Figures, kind: Kind) -> Vec<usize> {
    let rate = |name: &str, clients| figures.best_load(name, kind, clients, &OWN_ROWS).map(Load::rate);
    let is_close = |clients: &usize| {
        let peers = figures.systems.iter().map(|it| it.name.as_str()).filter(|it| *it != WINDLASS);
        let best = peers.filter_map(|name| rate(name, *clients)).reduce(f64::max);
        let ratio = rate(WINDLASS, *clients).zip(best).map(|(ours, best)| ours / best);
        bar_of(kind, *clients).zip(ratio).is_some_and(|(bar, ratio)| CLOSE.contains(&(ratio / bar)))
    };
    figures.consumers().into_iter().filter(is_close).collect()
}

/// What Windlass must be beside the best peer.
fn bar_of(kind: Kind, clients: usize) -> Option<f64> {
    match (kind.work, kind.mode, clients) {
        (Work::Tasks, _, 16) | (Work::References, Mode::OneByOne, 16) => Some(1.0),
        (Work::References, Mode::OneByOne, 1_000) => Some(1.5),
        (Work::References, Mode::Recommended, 16 | 1_000) => Some(2.0),
        _ => None,
    }
}

/// The row of a kind of load, and those of Windlass' ways that are not in it.
fn rows_of(figures: &Figures, kind: Kind, clients: usize) -> Vec<Row> {
    let names = figures.systems.iter().map(|it| it.name.as_str());
    let rate = |name: &str| figures.best_load(name, kind, clients, &OWN_ROWS).map(Load::rate);
    let rates: Vec<Option<f64>> = names.map(rate).collect();
    let is_judged = kind.work == Work::References && (clients == 16 || clients == 1_000);
    let (opsqueue_bar, bar) = (is_judged.then_some(100.0), bar_of(kind, clients));
    let what = format!("{}, {}", kind.name(), plural(kind.mode, clients));
    let first = Row { what, rates: rates.clone(), bar, opsqueue_bar };
    let ways = [
        (BY_SETTINGS, "by its `Consumer` with 64 at once and 960 at hand"),
        (BY_DEFAULT, "by its `Consumer` with its defaults"),
        (OVER_HTTP, "over HTTP"),
    ];
    let others = ways.into_iter().filter_map(|(way, how)| {
        let mut loads = figures.loads.iter();
        let ours = loads.find(|it| it.kind == kind && it.consumers == clients && it.way == way)?.rate();
        let what = format!("the same, Windlass {how}, {}", plural(kind.mode, clients));
        let rates = std::iter::once(Some(ours)).chain(rates.iter().skip(1).copied()).collect();
        Some(Row { what, rates, bar: None, opsqueue_bar: None })
    });
    std::iter::once(first).chain(others).collect()
}

fn rows(figures: &Figures) -> Vec<Row> {
    let names = || figures.systems.iter().map(|it| it.name.as_str());
    let mut rows = Vec::new();
    for mode in [Mode::OneByOne, Mode::Recommended] {
        for consumers in figures.consumers() {
            rows.extend(rows_of(figures, Kind { work: Work::References, mode }, consumers));
        }
    }
    for (way, what, bar) in [
        (ONE_SUBMISSION, "as one submission", Some(100.0)),
        (MANY_SUBMISSIONS, "as submissions of 1,000", None),
    ] {
        let ours = figures.fills.iter().find(|it| it.system == WINDLASS && it.way == way).map(Fill::rate);
        if ours.is_none() {
            continue;
        }
        let peers = names().skip(1).map(|name| figures.best_fill(name).map(Fill::rate));
        let rates = std::iter::once(ours).chain(peers).collect();
        let what = format!("bulk submit of {} chunks, Windlass {what}", grouped(figures.bulk as f64));
        rows.push(Row { what, rates, bar, opsqueue_bar: bar });
    }
    rows.retain(|it| it.rates.iter().any(Option::is_some));
    rows
}

pub(crate) fn plural(mode: Mode, clients: usize) -> String {
    let each = if mode == Mode::Add { "producer" } else { "consumer" };
    match clients {
        1 => format!("1 {each}"),
        many => format!("{} {each}s", grouped(many as f64)),
    }
}

/// A ratio and its bar in words; what is missed is noted.
fn judge(
    row: &Row,
    (ratio, bar, of): (Option<f64>, Option<f64>, &str),
    missed: &mut Vec<String>,
) -> (String, String) {
    let Some(ratio) = ratio else {
        return ("–".into(), bar.map_or(String::new(), |bar| format!("≥ {} not measurable", times(bar))));
    };
    let verdict = match bar {
        Some(bar) if ratio < bar => {
            missed.push(format!("{} ({} of {of}, bar {})", row.what, times(ratio), times(bar)));
            format!("≥ {} **missed**", times(bar))
        }
        Some(bar) => format!("≥ {} holds", times(bar)),
        None => String::new(),
    };
    (times(ratio), verdict)
}

/// The rows as Markdown; empty if nothing of them was measured.
pub(crate) fn table(figures: &Figures) -> Table {
    let rows = rows(figures);
    if rows.is_empty() {
        return Table { text: String::new(), missed: Vec::new() };
    }
    let names: Vec<&str> = figures.systems.iter().map(|it| it.name.as_str()).collect();
    let mut text = format!(
        "| chunks/s | {} | Windlass : best peer | bar | Windlass : Opsqueue | bar |\n|---|{}---:|---|---:|---|\n",
        names.join(" | "),
        "---:|".repeat(names.len())
    );
    let mut missed = Vec::new();
    for row in rows {
        let rates: Vec<String> = row.rates.iter().map(|it| it.map_or("–".into(), grouped)).collect();
        let (best, best_bar) = judge(&row, (row.ratio(), row.bar, BEST_PEER), &mut missed);
        let beside_opsqueue = (row.opsqueue_ratio(figures), row.opsqueue_bar, OPSQUEUE);
        let (opsqueue, opsqueue_bar) = judge(&row, beside_opsqueue, &mut missed);
        put(
            &mut text,
            &format!(
                "| {} | {} | {best} | {best_bar} | {opsqueue} | {opsqueue_bar} |",
                row.what,
                rates.join(" | ")
            ),
        );
    }
    Table { text, missed }
}

/// The page for the documentation.
pub(crate) fn page(figures: &Figures) -> String {
    let versions: Vec<String> =
        figures.systems.iter().map(|it| format!("- {}: `{}`", it.name, it.version)).collect();
    let Table { text: table, missed } = table(figures);
    let missed: Vec<String> = missed.iter().map(|it| format!("- {it}")).collect();
    let missed = if missed.is_empty() { "Every bar holds.".into() } else { missed.join("\n") };
    format!(
        "# Windlass beside its peers\n\n\
         Written by `make bench-peers`: {} × {} s for each load, medians; {}; clients and servers on the same machine\n\
         and disk. Systems take turns within a repetition; where a row is near its bar, Windlass and the best peer are measured five times\n\
         more, by turns. Ratios count: absolute figures differ from machine to machine and from\n\
         hour to hour. Every system has durability on, as far as it can; a chunk counts when its completion is acknowledged,\n\
         except in Opsqueue, which acknowledges none.\n\n\
         {table}\n\
         One by one: a consumer reports each chunk and waits for the acknowledgement before it takes the next. Recommended: as each\n\
         system's documentation says for throughput ([below](#how-each-system-is-driven)). Where a system has several ways, the\n\
         best counts. Bulk submit: all chunks in and acknowledged; broken off after {} s, counting what is in by then.\n\
         [Single tasks with payloads](#single-tasks-with-payloads) have a table of their own.\n\n\
         ## Where we lose\n\n{}\n\nBars missed:\n\n{missed}\n\n{}\n{}\n{}\n{}\n## Versions\n\n{}\n\nWindlass is built from commit {}.\n\n{}{}",
        figures.repetitions,
        figures.seconds,
        figures.machine,
        figures.fill_seconds,
        losses(figures),
        pictures(),
        costs(figures),
        backlogs(figures),
        tasks::section(figures),
        versions.join("\n"),
        figures.commit,
        SYSTEMS,
        remarks(figures),
    )
}

/// What some peer does more of, from the rows.
fn rows_behind(figures: &Figures, rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        let Some(ours) = row.ours() else { continue };
        let others = figures.systems.iter().zip(&row.rates).skip(1);
        let ahead: Vec<String> = others
            .filter_map(|(system, rate)| {
                let ratio = (*rate)? / ours;
                (ratio > 1.0).then(|| format!("{} does {} as much", system.name, times(ratio)))
            })
            .collect();
        if !ahead.is_empty() {
            lines.push(format!("- {}: {}.", row.what, ahead.join("; ")));
        }
    }
    lines
}

/// What some peer does better, from the figures.
fn losses(figures: &Figures) -> String {
    let mut lines = rows_behind(figures, &rows(figures));
    lines.extend(backlog_losses(figures));
    if lines.is_empty() {
        return "In no figure of chunks is a peer ahead. What peers do and we do not is in [the table](#what-each-system-does).".into();
    }
    lines.push("\nWhat peers do and we do not is in [the table](#what-each-system-does).".into());
    lines.join("\n")
}

/// Some figure of a backlog.
type OfBacklog = fn(&Backlog) -> Option<f64>;

fn backlog_losses(figures: &Figures) -> Vec<String> {
    let kinds: [(&str, OfBacklog); 3] = [
        ("a lone consumer's reserve", |it| it.reserve_us),
        ("memory", |it| Some(it.memory_bytes)),
        ("disk", |it| Some(it.disk_bytes)),
    ];
    let mut lines = Vec::new();
    for (kind, of) in kinds {
        for ours in figures.backlogs.iter().filter(|it| it.system == WINDLASS) {
            let Some(value) = of(ours) else { continue };
            let same = figures.backlogs.iter().filter(|it| it.chunks == ours.chunks && it.system != WINDLASS);
            let ahead: Vec<String> = same
                .filter_map(|it| Some((it, value / of(it)?)))
                .filter(|it| it.1 > 1.0)
                .map(|(it, ratio)| {
                    format!("{} takes 1/{} of ours", it.system, times(ratio).trim_end_matches(" ×"))
                })
                .collect();
            if !ahead.is_empty() {
                let chunks = grouped(ours.chunks as f64);
                lines.push(format!("- {kind} at a backlog of {chunks}: {}.", ahead.join("; ")));
            }
        }
    }
    lines
}

/// What a chunk costs, and which way of each system counted.
fn costs(figures: &Figures) -> String {
    let mut text = String::from(
        "## What 10^5 chunks cost\n\n\
         CPU seconds, medians, of the server with all its processes and of the consumers (the harness; Opsqueue's are not told apart\n\
         from its driver). “Others” is the part of the machine that was busy with something else, at worst; “fsync” what a bare one\n\
         took just before, the median.\n\n\
         | load | system | way | chunks/s | server | consumers | others | fsync | each repetition |\n|---|---|---|---:|---:|---:|---:|---:|---|\n",
    );
    text += &load_lines(figures, Work::References);
    for fill in &figures.fills {
        let cpu = median(fill.server_cpu.clone()).unwrap_or(0.0);
        let rates: Vec<String> = fill.rates.iter().copied().map(grouped).collect();
        let broken_off = if fill.filled < figures.bulk {
            format!(" (broken off; {} in)", grouped(fill.filled as f64))
        } else {
            String::new()
        };
        let line = format!(
            "| bulk submit | {} | {}{broken_off} | {} | {cpu:.3} s | – | – | – | {} |",
            fill.system,
            fill.way,
            grouped(fill.rate()),
            rates.join(", ")
        );
        put(&mut text, &line);
    }
    text
}

/// What each load of some work cost, a line for each.
fn load_lines(figures: &Figures, work: Work) -> String {
    let mut text = String::new();
    for load in figures.loads.iter().filter(|it| it.kind.work == work) {
        let seconds = |it: &Vec<f64>| median(it.clone()).map_or("–".into(), |it| format!("{it:.2} s"));
        let others = load.others.iter().copied().fold(0.0, f64::max) * 100.0;
        let sync = median(load.sync_us.clone()).unwrap_or(0.0);
        let rates: Vec<String> = load.rates.iter().copied().map(grouped).collect();
        let line = format!(
            "| {}, {} | {} | {} | {} | {} | {} | {others:.0} % | {sync:.0} µs | {} |",
            load.kind.name(),
            load.consumers,
            load.system,
            load.way,
            grouped(load.rate()),
            seconds(&load.server_cpu),
            seconds(&load.client_cpu),
            rates.join(", ")
        );
        put(&mut text, &line);
    }
    text
}

fn backlogs(figures: &Figures) -> String {
    let mut text = String::from(
        "## Backlogs\n\n\
         Nobody has worked on the chunks when memory and disk are read. Memory is resident, with what a system's processes share\n\
         counted once; disk is the blocks of its folder, with whatever it preallocates. Then a lone consumer works one by one:\n\
         medians of its reserve, and of its whole cycle with the acknowledgement.\n\n\
         | backlog | system | memory | disk | reserve | cycle |\n|---:|---|---:|---:|---:|---:|\n",
    );
    for it in &figures.backlogs {
        let micros = |it: Option<f64>| it.map_or("–".into(), |it| format!("{} µs", grouped(it)));
        let line = format!(
            "| {} | {} | {:.1} MiB | {:.1} MiB | {} | {} |",
            grouped(it.chunks as f64),
            it.system,
            it.memory_bytes / 1_048_576.0,
            it.disk_bytes / 1_048_576.0,
            micros(it.reserve_us),
            micros(it.cycle_us)
        );
        put(&mut text, &line);
    }
    text
}

fn remarks(figures: &Figures) -> String {
    let lines: Vec<String> =
        figures.remarks.iter().filter(|it| !tasks::is_about(it)).map(|it| format!("- {it}")).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\n## What did not go as planned in this run\n\n{}\n", lines.join("\n"))
}

const ONE_BY_ONE_PLOT: &str = "one-by-one.svg";
const RECOMMENDED_PLOT: &str = "recommended.svg";
const RESERVE_PLOT: &str = "reserve.svg";
const MEMORY_PLOT: &str = "memory.svg";
const DISK_PLOT: &str = "disk.svg";

fn pictures() -> String {
    let pictures = [
        ("chunks a second against consumers, one by one", ONE_BY_ONE_PLOT),
        ("chunks a second against consumers, as recommended", RECOMMENDED_PLOT),
        ("a lone consumer's reserve against the backlog", RESERVE_PLOT),
        ("memory against the backlog", MEMORY_PLOT),
        ("disk against the backlog", DISK_PLOT),
    ];
    pictures.map(|(what, file)| format!("![{what}](benchmarks/{file})\n")).join("\n")
}

/// The plots, by file name.
pub(crate) fn plots(figures: &Figures) -> Vec<(&'static str, String)> {
    let over_consumers = |mode| {
        let kind = Kind { work: Work::References, mode };
        lines(figures, |name| {
            let points = figures.consumers().into_iter().filter_map(|consumers| {
                Some((consumers as f64, figures.best_load(name, kind, consumers, &OWN_ROWS)?.rate()))
            });
            points.collect()
        })
    };
    let over_backlog = |of: OfBacklog| {
        lines(figures, |name| {
            let own = figures.backlogs.iter().filter(|it| it.system == name);
            own.filter_map(|it| Some((it.chunks as f64, of(it)?))).collect()
        })
    };
    let (consumers, chunks) = ("consumers", "chunks waiting");
    let plot = |title, x, y, series| Plot { title, x, y, series }.svg();
    vec![
        (
            ONE_BY_ONE_PLOT,
            plot(
                "One by one: each chunk acknowledged before the next",
                consumers,
                "chunks/s",
                over_consumers(Mode::OneByOne),
            ),
        ),
        (
            RECOMMENDED_PLOT,
            plot(
                "As each system recommends for throughput",
                consumers,
                "chunks/s",
                over_consumers(Mode::Recommended),
            ),
        ),
        (
            RESERVE_PLOT,
            plot("A lone consumer's reserve", chunks, "median, µs", over_backlog(|it| it.reserve_us)),
        ),
        (
            MEMORY_PLOT,
            plot(
                "Resident memory of the server",
                chunks,
                "MiB",
                over_backlog(|it| Some(it.memory_bytes / 1_048_576.0)),
            ),
        ),
        (DISK_PLOT, plot("Disk", chunks, "MiB", over_backlog(|it| Some(it.disk_bytes / 1_048_576.0)))),
    ]
}

fn lines(figures: &Figures, points: impl Fn(&str) -> Vec<(f64, f64)>) -> Vec<Series> {
    let series = figures.systems.iter().map(|it| Series { name: it.name.clone(), points: points(&it.name) });
    series.filter(|it| !it.points.is_empty()).collect()
}

fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 100.0 => format!("{} ×", grouped(ratio)),
        ratio if ratio >= 10.0 => format!("{ratio:.1} ×"),
        ratio => format!("{ratio:.2} ×"),
    }
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing into memory does not fail");
}
