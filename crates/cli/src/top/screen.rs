//! The screen: what was seen, as lines that fit a terminal of any size.

use super::canvas::{Line, Side, Style, cut, sparkline};
use super::figures::{Rates, Samples};
use super::panels::{Panel, consumers, limits, strategies, values};
use super::words::{self, numbered, per_second};
use crate::table::short;
use std::time::Duration;
use windlass_client::overview::OverviewInfo;

/// On anything smaller there is nothing to see.
const SMALLEST: (usize, usize) = (40, 12);

/// Lines above and below the panels: the title, four lines of numbers, the keys.
const FRAME: usize = 6;

/// Everything that decides what the screen shows.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) server: &'a str,
    pub(super) interval: Duration,
    pub(super) samples: &'a Samples,
    /// The field whose values are shown; none if there is none.
    pub(super) field: Option<&'a str>,
    pub(super) focus: Panel,
    /// How far each panel is scrolled.
    pub(super) offsets: [usize; 3],
    pub(super) is_paused: bool,
    pub(super) is_help: bool,
    /// Why there is nothing new.
    pub(super) trouble: Option<&'a str>,
}

/// A panel's lines: its title, and what may be scrolled below a head that stays.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) title: String,
    pub(super) head: Option<Line>,
    pub(super) rows: Vec<Line>,
    /// What the server left out.
    pub(super) more: u64,
}

impl Block {
    fn needs(&self) -> usize {
        1 + usize::from(self.head.is_some()) + self.rows.len()
    }
}

/// The lines of the screen, at most as many as it is high, and no wider than it is.
pub(super) fn draw(scene: &Scene<'_>, width: usize, height: usize) -> Vec<Line> {
    if width < SMALLEST.0 || height < SMALLEST.1 {
        let (columns, rows) = SMALLEST;
        let sentence = format!("make this window at least {columns}x{rows}; q quits");
        return vec![Line::new().with(cut(&sentence, width), Style::Plain)];
    }
    let mut lines = vec![title(scene, width)];
    match scene.samples.last() {
        None => {
            let sentence = scene.trouble.unwrap_or("waiting for the server's first answer");
            lines.push(Line::new());
            lines.push(Line::new().with(format!(" {sentence}"), Style::Bad));
        }
        Some(seen) => {
            lines.extend(numbers(scene.samples, seen, width));
            let body = height - FRAME;
            lines.extend(if scene.is_help { help(width) } else { panels(scene, seen, width, body) });
        }
    }
    lines.resize(height - 1, Line::new());
    lines.push(keys(scene, width));
    lines.iter().map(|line| line.cut_to(width)).collect()
}

fn title(scene: &Scene<'_>, width: usize) -> Line {
    let mut line = Line::new().with(" windlass", Style::Strong);
    if let Some(seen) = scene.samples.last() {
        line.push(format!(" {}", seen.version), Style::Plain);
    }
    line.push(format!("  {}", scene.server), Style::Accent);
    if let Some(seen) = scene.samples.last() {
        let up = Duration::from_millis(seen.at_ms.saturating_sub(seen.since_ms));
        line.push(format!("  up {}", short(up)), Style::Plain);
    }
    let (text, style) = match (scene.trouble, scene.is_paused) {
        (Some(_), _) => ("no answer ".to_owned(), Style::Bad),
        (None, true) => ("paused ".to_owned(), Style::Reversed),
        (None, false) => (format!("every {} ", humantime::format_duration(scene.interval)), Style::Faint),
    };
    let room = width.saturating_sub(text.chars().count());
    let tasks = scene.samples.last().and_then(|seen| words::tasks(&seen.tasks));
    if let Some(tasks) = tasks.map(|tasks| format!("  lanes: {tasks}"))
        && line.width() + tasks.chars().count() < room
    {
        line.push(tasks, Style::Plain);
    }
    line.fill(room, ' ', Style::Plain);
    line.push(text, style);
    line
}

/// How much there is on the left, what happens on the right.
fn numbers(samples: &Samples, seen: &OverviewInfo, width: usize) -> Vec<Line> {
    let (history, rates) = (samples.history(), samples.rates());
    let rate = |of: fn(&Rates) -> f64| rates.as_ref().map(of);
    let depths = [
        ("ready", seen.chunks.ready, history.ready.as_slice()),
        ("reserved", seen.chunks.reserved, &[]),
        ("delayed", seen.chunks.delayed, &[]),
        ("paused", seen.chunks.paused, &[]),
    ];
    let events = [
        ("handed out", rate(|it| it.handed_out), history.handed_out.as_slice()),
        ("completed", rate(|it| it.completed), &history.completed),
        ("failed", rate(|it| it.failed), &history.failed),
        ("submitted", rate(|it| it.submitted), &[]),
    ];
    let half = width / 2;
    let mut lines = Vec::new();
    for ((name, count, over_time), event) in depths.into_iter().zip(events) {
        let mut line = Line::new();
        line.cell(&format!(" {name}"), 10, Side::Left, Style::Plain);
        line.cell(&numbered(count), 13, Side::Right, Style::Strong);
        if !over_time.is_empty() {
            line.push("  ", Style::Plain);
            line.push(sparkline(over_time, half.saturating_sub(27)), Style::Accent);
        }
        line.fill(half, ' ', Style::Plain);
        push_event(&mut line, event, width - half);
        lines.push(line);
    }
    if let Some(last) = lines.last_mut() {
        last.push(format!("{} running", numbered(seen.submissions_running)), Style::Plain);
    }
    lines
}

fn push_event(line: &mut Line, (name, rate, over_time): (&str, Option<f64>, &[f64]), width: usize) {
    let is_bad = name == "failed" && rate.is_some_and(|rate| rate > 0.0);
    line.cell(name, 11, Side::Left, Style::Plain);
    line.cell(&per_second(rate), 11, Side::Right, if is_bad { Style::Bad } else { Style::Strong });
    line.push("  ", Style::Plain);
    if !over_time.is_empty() {
        line.push(sparkline(over_time, width.saturating_sub(25)), Style::Accent);
    }
}

/// The panels, with as many rows of each as fit.
fn panels(scene: &Scene<'_>, seen: &OverviewInfo, width: usize, height: usize) -> Vec<Line> {
    let by_value = values(scene.samples, scene.field, width);
    let held = limits(&seen.limits);
    let workers = consumers(scene.samples, width);
    let for_limits = held.needs().min((height / 4).max(2));
    let rest = height - for_limits;
    let for_values = by_value.needs().min(rest.saturating_sub(workers.needs()).max(rest / 2));
    let for_consumers = workers.needs().min(rest - for_values);
    let left = rest - for_values - for_consumers;
    let mut lines = shown(scene, &by_value, Panel::Values, for_values, width);
    lines.extend(shown(scene, &held, Panel::Limits, for_limits, width));
    lines.extend(shown(scene, &workers, Panel::Consumers, for_consumers, width));
    // Strategies are worth room that nobody else needs.
    let used = strategies(&seen.strategies);
    if left >= 2 && !used.rows.is_empty() {
        lines.push(rule(&used.title, String::new(), false, width));
        lines.extend(used.rows.into_iter().take(left - 1));
    }
    lines
}

/// A panel in so many lines, scrolled as far as there is something.
fn shown(scene: &Scene<'_>, block: &Block, panel: Panel, height: usize, width: usize) -> Vec<Line> {
    let room = height.saturating_sub(1 + usize::from(block.head.is_some()));
    let hidden = block.rows.len().saturating_sub(room);
    let offset = scene.offsets[panel as usize].min(hidden);
    let which = match (hidden, block.more) {
        (0, 0) => String::new(),
        (0, more) => format!("{} more not shown", numbered(more)),
        (_, more) => {
            let all = block.rows.len() as u64 + more;
            format!("{} to {} of {}", offset + 1, offset + room, numbered(all))
        }
    };
    let mut lines = vec![rule(&block.title, which, scene.focus == panel, width)];
    lines.extend(block.head.clone());
    lines.extend(block.rows.iter().skip(offset).take(room).cloned());
    lines.truncate(height);
    lines
}

/// A title on a rule; the one with the focus stands out.
fn rule(title: &str, note: String, has_focus: bool, width: usize) -> Line {
    let (sign, style) = if has_focus { ("▸ ", Style::Strong) } else { ("─ ", Style::Plain) };
    let note = if note.is_empty() { note } else { format!(" {note} ─") };
    let mut line = Line::new().with(sign, style);
    let room = width.saturating_sub(note.chars().count() + 4);
    line.push(cut(title, room), style);
    line.push(" ", Style::Plain);
    line.fill(width.saturating_sub(note.chars().count()), '─', Style::Faint);
    line.push(note, Style::Faint);
    line
}

fn keys(scene: &Scene<'_>, width: usize) -> Line {
    if let (Some(trouble), Some(_)) = (scene.trouble, scene.samples.last()) {
        return Line::new().with(cut(&format!(" {trouble}"), width), Style::Bad);
    }
    let mut line = Line::new();
    for (key, what) in
        [("q", "quit"), ("f", "field"), ("tab", "panel"), ("↑↓", "scroll"), ("p", "pause"), ("?", "help")]
    {
        line.push(format!(" {key}"), Style::Strong);
        line.push(format!(" {what} "), Style::Faint);
    }
    line
}

fn help(width: usize) -> Vec<Line> {
    let mut lines = vec![rule("help", String::new(), true, width)];
    for (key, what) in [
        ("q, Esc, Ctrl-C", "quit"),
        ("f, F", "show the next or the previous metadata field"),
        ("Tab", "choose the panel that scrolls"),
        ("↑ ↓ PgUp PgDn", "scroll; Home and End go to the ends"),
        ("p, Space", "hold still, and go on"),
        ("?", "this help, and back"),
    ] {
        let mut line = Line::new();
        line.cell(&format!("  {key}"), 18, Side::Left, Style::Strong);
        line.push(what, Style::Plain);
        lines.push(line);
    }
    lines.push(Line::new());
    for sentence in [
        "ready: could be handed out now; reserved: consumers work on it;",
        "delayed: waits for a retry; paused: its submission is held back.",
        "SHARE is a value's part of what was handed out in the last 10 seconds,",
        "FAIR and the mark │ what it is entitled to by weight among those with work.",
        "A value may get less: it ran out of work, or waits behind a limit.",
    ] {
        lines.push(Line::new().with(format!("  {sentence}"), Style::Plain));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    fn scene(samples: &Samples) -> Scene<'_> {
        Scene {
            server: "http://127.0.0.1:7420",
            interval: Duration::from_secs(1),
            samples,
            field: Some("company_id"),
            focus: Panel::Values,
            offsets: [0; 3],
            is_paused: false,
            is_help: false,
            trouble: None,
        }
    }

    fn text(scene: &Scene<'_>, width: usize, height: usize) -> String {
        let lines = draw(scene, width, height);
        assert!(lines.len() <= height, "the screen is {height} high, not {}", lines.len());
        assert!(lines.iter().all(|line| line.width() <= width), "no line is wider than the screen");
        lines.iter().map(|line| line.text() + "\n").collect()
    }

    const AT_80_BY_24: &str = r" windlass 0.1.0  http://127.0.0.1:7420  up 8.0s  lanes: 1,200 waiting  every 1s
 ready        1,234,087        ███████  handed out        60/s          ███████
 reserved             6                 completed         59/s          ███████
 delayed              3                 failed           1.0/s          ███████
 paused             500                 submitted        1.0/s  1,234 running
▸ company_id: 3 values with work, turns by weight ──────────────────────────────
 VALUE    WEIGHT       READY RESERVED     OUT/S  SHARE, │ FAIR      SHARE   FAIR
 acme          3   1,000,000        4      40/s  ███████████████│█  66.7%  60.0%
 globex        1          60        1      10/s  ████▎│             16.7%  20.0%
 umbrella      1     234,507        1      10/s  ████▎│             16.7%  20.0%
─ limits: 1 value held back ────────────────────────────────────────────────────
 company_id=acme     4 of 4 reserved  14 submissions wait behind it
─ consumers: 3 connected, 1 reserve waiting ────────────────────────────────────
 NAME         RESERVED     OUT/S   HANDED OUT  STATE    STRATEGY
 worker-a #1         2      20/s          160  working  MaxSimultaneous(company…
 worker-b #2         4      40/s          320  working  MaxSimultaneous(company…
 worker-c #3         0     0.0/s            0  waiting  MaxSimultaneous(company…
─ strategies: 1 in use, kept in order by 1 view ────────────────────────────────
 1 waiting    MaxSimultaneous(company_id, 4, Fair(company_id, weights(acme=3)))




 q quit  f field  tab panel  ↑↓ scroll  p pause  ? help
";

    #[test]
    fn a_server_at_work_fits_a_terminal_of_80_by_24() {
        let samples = example::samples(8);
        assert_eq!(text(&scene(&samples), 80, 24), AT_80_BY_24);
    }

    #[test]
    fn every_size_of_a_terminal_is_kept_to() {
        let samples = example::samples(20);
        for width in (1..160).step_by(7) {
            for height in (1..60).step_by(3) {
                for is_help in [false, true] {
                    text(&Scene { is_help, ..scene(&samples) }, width, height);
                }
            }
        }
    }

    #[test]
    fn a_panel_is_scrolled_as_far_as_there_is_something() {
        let mut samples = Samples::default();
        let mut seen = example::overview(1);
        let field = seen.field.as_mut().unwrap();
        let value = field.values[0].clone();
        field.values = (0..40)
            .map(|n| windlass_client::overview::ValueInfo {
                value: Some(windlass_client::MetaValue::Integer(n)),
                ..value.clone()
            })
            .collect();
        field.more = 60;
        samples.push(seen);
        let mut scene = Scene { offsets: [35, 0, 0], ..scene(&samples) };
        let text_at = text(&scene, 80, 24);
        assert!(text_at.contains(" of 100 ─"), "{text_at}");
        scene.offsets = [1_000, 0, 0];
        let end = text(&scene, 80, 24);
        assert!(end.contains("\n 39 ") && end.contains(" to 40 of 100 ─"), "{end}");
    }

    #[test]
    fn a_server_that_is_gone_is_said_to_be_and_what_was_seen_stays() {
        let trouble = "trying again: cannot reach the server at http://127.0.0.1:7420: connection refused";
        let nothing = Samples::default();
        let first = text(&Scene { trouble: Some(trouble), ..scene(&nothing) }, 100, 24);
        assert!(first.contains(trouble), "{first}");
        let samples = example::samples(3);
        let later = text(&Scene { trouble: Some(trouble), ..scene(&samples) }, 100, 24);
        assert!(later.contains("no answer") && later.contains(trouble) && later.contains("acme"), "{later}");
    }
}
