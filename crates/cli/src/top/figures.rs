//! Figures: rates and shares, made from what the server counted at different times.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use windlass_client::MetaValue;
use windlass_client::overview::{ConsumerInfo, FieldOverview, OverviewInfo, TotalsInfo, ValueInfo};

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
    /// None for submissions without the field.
    pub(super) value: Option<MetaValue>,
    pub(super) weight: u32,
    pub(super) ready: u64,
    pub(super) reserved: u64,
    /// Chunks handed out in a second.
    pub(super) rate: Option<f64>,
    /// Its part of all that was handed out, as `fair_share` is its part of all it could be.
    pub(super) share: Option<f64>,
    pub(super) fair_share: Option<f64>,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConsumerFigure<'a> {
    pub(super) info: &'a ConsumerInfo,
    pub(super) rate: Option<f64>,
}

impl ValueFigure {
    /// The value as a person reads it.
    pub(super) fn name(&self) -> String {
        self.value.as_ref().map_or_else(|| "(none)".to_owned(), ToString::to_string)
    }
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
        let before = self.window.iter().filter(|then| then.at_ms < now.at_ms);
        let got = |it: &ValueInfo| before.clone().find_map(|then| got_since(then, now, field, it));
        let mut values: Vec<ValueFigure> = field
            .values
            .iter()
            .map(|it| (it, got(it)))
            .map(|(it, got)| ValueFigure {
                value: it.value.clone(),
                weight: it.weight,
                ready: it.ready,
                reserved: it.reserved,
                rate: got.map(|got| ratio(got.chunks, got.seconds)),
                share: got.filter(|got| got.of > 0).map(|got| part(got.chunks, got.of)),
                fair_share: it.fair_share,
            })
            .collect();
        values.sort_by(|one, other| {
            let key = |it: &ValueFigure| (it.value.is_none(), it.value.clone());
            key(one).cmp(&key(other))
        });
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

/// What a value has got since an earlier look.
#[derive(Debug, Clone, Copy)]
struct Got {
    chunks: u64,
    /// Of what was handed out in all meanwhile.
    of: u64,
    seconds: f64,
}

/// What a value has got since then, if it was seen then. Who counts less now than then has begun anew meanwhile.
fn got_since(then: &OverviewInfo, now: &OverviewInfo, field: &FieldOverview, it: &ValueInfo) -> Option<Got> {
    let of_then = then.field.as_ref().filter(|it| it.name == field.name)?;
    let before = of_then.values.iter().find(|before| before.value == it.value)?;
    Some(Got {
        chunks: it.handed_out.checked_sub(before.handed_out)?,
        of: field.handed_out.checked_sub(of_then.handed_out)?,
        seconds: seconds_between(then, now),
    })
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
