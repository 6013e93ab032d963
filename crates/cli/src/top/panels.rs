//! The panels: values of a field, limits that hold something back, consumers, strategies in use.

use super::canvas::{Line, Side, Style, bar};
use super::figures::{ConsumerFigure, Samples, ValueFigure};
use super::screen::Block;
use super::words::{self, numbered, per_second, percent};
use crate::table::counted;
use unicode_width::UnicodeWidthStr;
use windlass_client::overview::{ConsumerInfo, FieldOverview, LimitReachedInfo, LimitsInfo, StrategiesInfo};

/// A panel that can be scrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Values,
    Limits,
    Consumers,
}

impl Panel {
    /// The next one.
    pub(super) const fn next(self) -> Panel {
        match self {
            Panel::Values => Panel::Limits,
            Panel::Limits => Panel::Consumers,
            Panel::Consumers => Panel::Values,
        }
    }
}

/// A value that gets this much less or more than its fair share, relatively, is worth a look.
const SHARE_TOLERANCE: f64 = 0.15;

/// The values of the chosen field, each with its share of the work against its fair one.
pub(super) fn values(samples: &Samples, field: Option<&str>, width: usize) -> Block {
    let empty = |title: String, sentence: String| Block {
        title,
        head: None,
        rows: vec![Line::new().with(format!(" {sentence}"), Style::Faint)],
        more: 0,
    };
    let Some(name) = field else {
        let sentence = "no submission in the queue has metadata, and no strategy goes by any";
        return empty("values".into(), sentence.into());
    };
    let seen = samples.last().and_then(|seen| seen.field.as_ref()).filter(|it| it.name == name);
    let Some(seen) = seen.filter(|it| !it.values.is_empty()) else {
        return empty(name.into(), format!("nothing with {name} is ready or in work"));
    };
    let figures = samples.values();
    let columns = Columns::new(&figures, width);
    Block {
        title: title_of(seen),
        head: Some(columns.head(seen.fair)),
        rows: figures.iter().map(|it| columns.row(it, seen.fair)).collect(),
        more: seen.more,
    }
}

fn title_of(seen: &FieldOverview) -> String {
    let shown = seen.values.iter().filter(|it| it.value.is_some()).count() as u64;
    let values = counted(shown + seen.more, "value");
    let least = if seen.cut { "more than " } else { "" };
    let turns = if seen.fair { "turns by weight" } else { "no strategy in use has turns between them" };
    format!("{}: {least}{values} with work, {turns}", seen.name)
}

/// A longer bar shows no more, and the numbers behind it would be far from their value.
const BAR_MAX: usize = 48;

/// How wide the columns of values are.
struct Columns {
    value: usize,
    bar: usize,
    /// What a full bar stands for.
    scale: f64,
}

impl Columns {
    fn new(figures: &[ValueFigure], width: usize) -> Columns {
        const OTHERS: usize = 1 + 1 + 6 + 1 + 11 + 1 + 8 + 1 + 9 + 2 + 7 + 7;
        let longest = figures.iter().map(|it| it.name().width()).max().unwrap_or(0);
        let value = longest.clamp(5, (width / 4).clamp(8, 32));
        let largest = figures.iter().flat_map(|it| it.share.into_iter().chain(it.fair_share));
        let scale = largest.fold(0.0, f64::max);
        let bar = width.saturating_sub(OTHERS + value).min(BAR_MAX);
        Columns { value, bar, scale: if scale > 0.0 { scale } else { 1.0 } }
    }

    fn head(&self, is_fair: bool) -> Line {
        let share = if is_fair { "SHARE, │ FAIR" } else { "SHARE, │ EVEN" };
        let last = if is_fair { "FAIR" } else { "EVEN" };
        let mut line = Line::new();
        line.cell(" VALUE", 1 + self.value, Side::Left, Style::Faint);
        line.cell("WEIGHT", 7, Side::Right, Style::Faint);
        line.cell("READY", 12, Side::Right, Style::Faint);
        line.cell("RESERVED", 9, Side::Right, Style::Faint);
        line.cell("OUT/S", 10, Side::Right, Style::Faint);
        line.push("  ", Style::Plain);
        line.cell(share, self.bar, Side::Left, Style::Faint);
        line.cell("SHARE", 7, Side::Right, Style::Faint);
        line.cell(last, 7, Side::Right, Style::Faint);
        line
    }

    fn row(&self, it: &ValueFigure, is_fair: bool) -> Line {
        let mut line = Line::new();
        line.cell(&format!(" {}", it.name()), 1 + self.value, Side::Left, Style::Strong);
        line.cell(&it.weight.to_string(), 7, Side::Right, Style::Plain);
        line.cell(&numbered(it.ready), 12, Side::Right, Style::Plain);
        line.cell(&numbered(it.reserved), 9, Side::Right, Style::Plain);
        line.cell(&per_second(it.rate), 10, Side::Right, Style::Plain);
        line.push("  ", Style::Plain);
        let style = match (it.share, it.fair_share) {
            (Some(share), Some(fair))
                if is_fair && it.ready > 0 && (share - fair).abs() > SHARE_TOLERANCE * fair =>
            {
                Style::Warning
            }
            (Some(_), Some(_)) if is_fair => Style::Good,
            (_, _) => Style::Accent,
        };
        let mark = it.fair_share.map(|fair| fair / self.scale);
        line.push(bar(it.share.unwrap_or(0.0) / self.scale, mark, self.bar), style);
        line.cell(&percent(it.share), 7, Side::Right, style);
        line.cell(&percent(it.fair_share), 7, Side::Right, Style::Faint);
        line
    }
}

/// The limits that hold something back now.
pub(super) fn limits(seen: &LimitsInfo) -> Block {
    let held = seen.holding_ms.map(|ms| Line::new().with(format!(" {}", words::held(ms)), Style::Warning));
    if seen.items.is_empty() {
        let what = if held.is_some() { "hard ones hold everything back" } else { "none holds anything back" };
        let rows = held.into_iter().collect();
        return Block { title: format!("limits: {what}"), head: None, rows, more: 0 };
    }
    let pairs: Vec<String> = seen.items.iter().map(|it| format!("{}={}", it.field, it.value)).collect();
    let widest = pairs.iter().map(|pair| pair.width()).max().unwrap_or(0).min(32);
    let row = |(pair, it): (&String, &LimitReachedInfo)| {
        let LimitReachedInfo { reserved, max, hard, submissions, .. } = it;
        let mut line = Line::new();
        line.cell(&format!(" {pair}"), 1 + widest, Side::Left, Style::Strong);
        let of = format!("{} of {} reserved", numbered(*reserved), numbered(*max));
        line.cell(&of, 20, Side::Right, Style::Warning);
        let verb = if *submissions == 1 { "waits" } else { "wait" };
        line.push(format!("  {} {verb} behind it", counted(*submissions, "submission")), Style::Plain);
        line.push(if *hard { "" } else { ", for the others to go first" }, Style::Faint);
        line
    };
    let count = counted(seen.items.len() as u64 + seen.more, "value");
    let least = if seen.cut { "at least " } else { "" };
    Block {
        title: format!("limits: {least}{count} held back"),
        head: None,
        rows: held.into_iter().chain(pairs.iter().zip(&seen.items).map(row)).collect(),
        more: seen.more,
    }
}

/// The consumers with the most in work.
pub(super) fn consumers(samples: &Samples, width: usize) -> Block {
    let figures = samples.consumers();
    let Some(seen) = samples.last().map(|seen| &seen.consumers) else {
        return Block { title: "consumers".into(), head: None, rows: Vec::new(), more: 0 };
    };
    let waiting = match seen.waiting {
        0 => String::new(),
        waiting => format!(", {} waiting", counted(waiting, "reserve")),
    };
    let over_http = match seen.reserved_over_http {
        0 => String::new(),
        reserved => format!(", {} reserved over HTTP", counted(reserved, "chunk")),
    };
    let title = format!("consumers: {} connected{waiting}{over_http}", numbered(seen.connected));
    if figures.is_empty() {
        return Block { title, head: None, rows: Vec::new(), more: 0 };
    }
    let longest = figures.iter().map(|it| name_of(it).width()).max().unwrap_or(0).clamp(4, 24);
    let mut head = Line::new();
    head.cell(" NAME", 1 + longest, Side::Left, Style::Faint);
    head.cell("RESERVED", 10, Side::Right, Style::Faint);
    head.cell("OUT/S", 10, Side::Right, Style::Faint);
    head.cell("HANDED OUT", 13, Side::Right, Style::Faint);
    head.push("  STATE    STRATEGY", Style::Faint);
    let rows = figures.iter().map(|it| consumer(it, longest, width)).collect();
    Block { title, head: Some(head), rows, more: seen.more }
}

fn name_of(ConsumerFigure { info, .. }: &ConsumerFigure<'_>) -> String {
    format!("{} #{}", info.name, info.id)
}

fn consumer(figure: &ConsumerFigure<'_>, longest: usize, width: usize) -> Line {
    let ConsumerInfo { reserved, handed_out, waiting, strategy, .. } = figure.info;
    let (state, style) = match (waiting, reserved) {
        (_, 1..) => ("working", Style::Good),
        (true, 0) => ("waiting", Style::Warning),
        (false, 0) => ("idle", Style::Faint),
    };
    let mut line = Line::new();
    line.cell(&format!(" {}", name_of(figure)), 1 + longest, Side::Left, Style::Strong);
    line.cell(&numbered(*reserved), 10, Side::Right, Style::Plain);
    line.cell(&per_second(figure.rate), 10, Side::Right, Style::Plain);
    line.cell(&numbered(*handed_out), 13, Side::Right, Style::Plain);
    line.push("  ", Style::Plain);
    line.cell(state, 9, Side::Left, style);
    let room = width.saturating_sub(line.width());
    line.cell(strategy.as_deref().unwrap_or("–"), room, Side::Left, Style::Faint);
    line
}

/// The strategies in use.
pub(super) fn strategies(seen: &StrategiesInfo) -> Block {
    let row = |it: &windlass_client::overview::StrategyInfo| {
        let mut line = Line::new();
        let waiting =
            if it.waiting == 0 { "–".into() } else { format!("{} waiting", numbered(it.waiting)) };
        line.cell(&format!(" {waiting}"), 14, Side::Left, Style::Plain);
        let state = if it.building { "(being built) " } else { "" };
        line.push(state, Style::Warning);
        line.push(&it.strategy, Style::Plain);
        line
    };
    let count = seen.items.len() as u64 + seen.more;
    Block {
        title: format!(
            "strategies: {} in use, kept in order by {}",
            numbered(count),
            counted(seen.views, "view")
        ),
        head: None,
        rows: seen.items.iter().map(row).collect(),
        more: seen.more,
    }
}
