//! Figures: rates and shares, made from what the server counted at different times.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use windlass_client::MetaValue;
use windlass_client::overview::{ConsumerInfo, FieldOverview, OverviewInfo, TotalsInfo};

/// Rates of values and consumers are taken over this long: long enough to be steady, short enough to follow.
const WINDOW: Duration = Duration::from_secs(10);

/// Points of the sparklines.
const HISTORY: usize = 120;

/// What was seen lately, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples {
    window: VecDeque<OverviewInfo>,
    points: VecDeque<Point>,
}

/// A point of the sparklines.
#[derive(Debug, Clone, Copy)]
struct Point {
    ready: f64,
    rates: Rates,
}

/// What happens in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) submitted: f64,
    pub(super) handed_out: f64,
    pub(super) completed: f64,
    pub(super) failed: f64,
}

/// What is shown of the numbers over time.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) ready: Vec<f64>,
    pub(super) handed_out: Vec<f64>,
    pub(super) completed: Vec<f64>,
    pub(super) failed: Vec<f64>,
}

/// A value of the field.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ValueFigure {
    pub(super) value: MetaValue,
    pub(super) weight: u32,
    pub(super) ready: u64,
    pub(super) reserved: u64,
    /// Chunks handed out in a second.
    pub(super) rate: Option<f64>,
    /// Its part of what was handed out to the values that are shown.
    pub(super) share: Option<f64>,
    pub(super) fair_share: Option<f64>,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConsumerFigure<'a> {
    pub(super) info: &'a ConsumerInfo,
    pub(super) rate: Option<f64>,
}

impl Samples {
    /// Takes in what was seen. A server that was started anew counts anew.
    pub(super) fn push(&mut self, seen: OverviewInfo) {
        if self.window.back().is_some_and(|before| before.since_ms != seen.since_ms) {
            *self = Samples::default();
        }
        if let Some(before) = self.window.back() {
            let rates = rates_between(before, &seen);
            #[expect(clippy::cast_precision_loss, reason = "a bar has eight heights")]
            self.points
                .push_back(Point { ready: seen.chunks.ready as f64, rates: rates.unwrap_or_default() });
        }
        self.window.push_back(seen);
        let newest_ms = self.window.back().map_or(0, |seen| seen.at_ms);
        let is_old = |seen: &OverviewInfo| newest_ms - seen.at_ms > WINDOW.as_millis() as u64;
        while self.window.len() > 2 && self.window.front().is_some_and(is_old) {
            self.window.pop_front();
        }
        while self.points.len() > HISTORY {
            self.points.pop_front();
        }
    }

    /// What was seen last.
    pub(super) fn last(&self) -> Option<&OverviewInfo> {
        self.window.back()
    }

    /// What happened since the sample before.
    pub(super) fn rates(&self) -> Option<Rates> {
        let before = self.window.len().checked_sub(2)?;
        rates_between(&self.window[before], self.window.back()?)
    }

    pub(super) fn history(&self) -> History {
        let all = |of: fn(&Point) -> f64| self.points.iter().map(of).collect();
        History {
            ready: all(|it| it.ready),
            handed_out: all(|it| it.rates.handed_out),
            completed: all(|it| it.rates.completed),
            failed: all(|it| it.rates.failed),
        }
    }

    /// The values of the field that was asked for last, in their order.
    pub(super) fn values(&self) -> Vec<ValueFigure> {
        let Some((now, field)) = self.last().and_then(|now| Some((now, now.field.as_ref()?))) else {
            return Vec::new();
        };
        let then = self.window.iter().find(|then| {
            then.at_ms < now.at_ms && then.field.as_ref().is_some_and(|it| it.name == field.name)
        });
        let handed_out: Vec<Option<u64>> =
            field.values.iter().map(|it| since(then?.field.as_ref()?, &it.value, it.handed_out)).collect();
        let of_all: u64 = handed_out.iter().flatten().sum();
        let seconds = then.map(|then| seconds_between(then, now));
        let mut values: Vec<ValueFigure> = field
            .values
            .iter()
            .zip(handed_out)
            .map(|(it, handed_out)| ValueFigure {
                value: it.value.clone(),
                weight: it.weight,
                ready: it.ready,
                reserved: it.reserved,
                rate: handed_out.zip(seconds).map(|(chunks, seconds)| ratio(chunks, seconds)),
                share: handed_out.filter(|_| of_all > 0).map(|chunks| part(chunks, of_all)),
                fair_share: it.fair_share,
            })
            .collect();
        values.sort_by(|one, other| one.value.cmp(&other.value));
        values
    }

    /// The busiest consumers, by name.
    pub(super) fn consumers(&self) -> Vec<ConsumerFigure<'_>> {
        let Some(now) = self.last() else { return Vec::new() };
        let then = self.window.front().filter(|then| then.at_ms < now.at_ms);
        let before: BTreeMap<&str, u64> = then
            .iter()
            .flat_map(|then| &then.consumers.busiest)
            .map(|it| (it.id.as_str(), it.handed_out))
            .collect();
        let seconds = then.map(|then| seconds_between(then, now));
        let rate = |it: &ConsumerInfo| {
            let chunks = it.handed_out.saturating_sub(*before.get(it.id.as_str())?);
            Some(ratio(chunks, seconds?))
        };
        let busiest = now.consumers.busiest.iter();
        let mut consumers: Vec<ConsumerFigure<'_>> =
            busiest.map(|info| ConsumerFigure { info, rate: rate(info) }).collect();
        consumers.sort_by(|one, other| {
            let key = |it: &ConsumerFigure<'_>| (it.info.name.clone(), it.info.id.len(), it.info.id.clone());
            key(one).cmp(&key(other))
        });
        consumers
    }
}

/// What a value has got since then. One that was not there then has begun from nothing, if all that were there were told.
fn since(then: &FieldOverview, value: &MetaValue, now: u64) -> Option<u64> {
    match then.values.iter().find(|it| it.value == *value) {
        Some(before) if before.handed_out <= now => Some(now - before.handed_out),
        Some(_) => Some(now),
        None => (then.more == 0 && !then.cut).then_some(now),
    }
}

fn rates_between(before: &OverviewInfo, now: &OverviewInfo) -> Option<Rates> {
    let seconds = seconds_between(before, now);
    let rate =
        |of: fn(&TotalsInfo) -> u64| ratio(of(&now.totals).saturating_sub(of(&before.totals)), seconds);
    (seconds > 0.0).then(|| Rates {
        submitted: rate(|it| it.submitted),
        handed_out: rate(|it| it.handed_out),
        completed: rate(|it| it.completed),
        failed: rate(|it| it.failed),
    })
}

fn seconds_between(before: &OverviewInfo, now: &OverviewInfo) -> f64 {
    Duration::from_millis(now.at_ms.saturating_sub(before.at_ms)).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn ratio(chunks: u64, seconds: f64) -> f64 {
    chunks as f64 / seconds
}

#[expect(clippy::cast_precision_loss, reason = "a share is shown with three digits")]
fn part(chunks: u64, of: u64) -> f64 {
    chunks as f64 / of as f64
}
