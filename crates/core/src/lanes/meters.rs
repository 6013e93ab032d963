//! Meters: the leader's memory of what a lane's limits have let out.
//!
//! Invariants
//! - What is out of a key, of a tenant and of the lane is counted if a limit asks for it.
//! - A limit of tasks in flight is never exceeded by what this leader hands out; while tasks of an earlier leader may still
//!   be out, it lets nothing out at all.
//! - Over any time t, a rate lets out at most `burst + rate · t` (`rate / 1000` at least for the burst: time counts in
//!   milliseconds).
//! - Whoever was turned away is named again when it may be let out: by a task that comes back, or by time.
//!
//! Every operation costs O(log) of the keys that are limited and in use.

use super::levels::tenant_of;
use super::limiting::{LaneLimits, Limit, Rate};
use crate::time::At;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NS_PER_MS: u64 = 1_000_000;

/// So many meters are kept before those that say nothing are looked for.
const SWEEP_AT_LEAST: usize = 1_024;

/// A key, a tenant, or the lane.
pub type Metered = Option<Arc<str>>;

/// What keeps something from being handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// As many are out as may be, or more, if the limit was set or lowered when they were.
    InFlight {
        /// The limit.
        most: u32,
        /// So many are out.
        out: u32,
    },
    /// The rate is used up.
    Rate {
        /// Until then.
        until: At,
    },
    /// Work of an earlier leader may still be under way.
    Held,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Meters {
    limits: LaneLimits,
    is_held: bool,
    lane: Meter,
    named: BTreeMap<Arc<str>, Meter>,
    /// Who may go on, and when.
    due: BTreeSet<(At, Metered)>,
    /// When something was handed out last.
    last: At,
    sweep_at: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Meter {
    out: u32,
    /// When the next one would be on time, by the rate.
    next_ns: u64,
    /// Somebody was turned away because of what is out.
    is_waited_for: bool,
}

fn interval_ns(rate: Rate) -> u64 {
    1_000_000_000_000_u64.div_ceil(rate.milli_per_second.max(1))
}

/// How much too early one may come.
fn slack_ns(rate: Rate) -> u64 {
    let interval = interval_ns(rate);
    let burst = interval.saturating_mul(u64::from(rate.burst.saturating_sub(1)));
    burst.max(NS_PER_MS.saturating_sub(interval))
}

impl Meter {
    /// What is left of it under another rate: nobody waits longer than if the new rate had been used up.
    fn under(self, rate: Option<Rate>, last: At) -> Meter {
        let next_ns = rate.map_or(0, |rate| {
            let last_ns = last.as_ms().saturating_mul(NS_PER_MS);
            let used_up = last_ns.saturating_add(slack_ns(rate)).saturating_add(interval_ns(rate));
            self.next_ns.min(used_up)
        });
        Meter { next_ns, ..Meter::default() }
    }

    fn block(&self, limit: Limit, is_held: bool, now: At) -> Option<Block> {
        if let Some(most) = limit.in_flight {
            if is_held {
                return Some(Block::Held);
            }
            if self.out >= most {
                return Some(Block::InFlight { most, out: self.out });
            }
        }
        let free_ns = self.next_ns.saturating_sub(slack_ns(limit.rate?));
        let until = At::from_ms(free_ns.div_ceil(NS_PER_MS));
        (until > now).then_some(Block::Rate { until })
    }

    fn take(&mut self, limit: Limit, now: At) {
        self.out += 1;
        if let Some(rate) = limit.rate {
            let now_ns = now.as_ms().saturating_mul(NS_PER_MS);
            self.next_ns = self.next_ns.max(now_ns).saturating_add(interval_ns(rate));
        }
    }

    fn is_idle(&self, now: At) -> bool {
        self.out == 0 && !self.is_waited_for && self.next_ns <= now.as_ms().saturating_mul(NS_PER_MS)
    }
}

impl Meters {
    /// Other limits hold from here on; `out` are the keys of the tasks that are out. Everybody may ask again.
    pub fn set(&mut self, limits: &LaneLimits, out: impl Iterator<Item = Arc<str>>) {
        self.limits = limits.clone();
        self.due.clear();
        self.lane = self.lane.under(limits.lane.rate, self.last);
        self.named.retain(|name, meter| {
            let rate = limits.of(name).rate;
            *meter = meter.under(rate, self.last);
            rate.is_some()
        });
        if self.limits.is_empty() {
            return;
        }
        for key in out {
            self.each(&key, |meter, _| meter.out += 1);
        }
    }

    /// Whether tasks of an earlier leader may still be out.
    pub const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether nothing is limited.
    pub fn is_off(&self) -> bool {
        self.limits.is_empty()
    }

    /// What keeps tasks of a key or tenant, or of the whole lane, from being handed out.
    pub fn block(&self, name: Option<&str>, now: At) -> Option<Block> {
        if self.limits.is_empty() {
            return None;
        }
        let (limit, meter) = match name {
            Some(name) => (self.limits.of(name), self.named.get(name).copied().unwrap_or_default()),
            None => (self.limits.lane, self.lane),
        };
        meter.block(limit, self.is_held, now)
    }

    /// Somebody was turned away, and is to be named when that is over.
    pub fn wait_for(&mut self, name: Metered, block: Block) {
        match (block, &name) {
            (Block::Rate { until }, _) => drop(self.due.insert((until, name))),
            (Block::InFlight { .. }, Some(named)) => {
                self.named.entry(named.clone()).or_default().is_waited_for = true;
            }
            (Block::InFlight { .. }, None) => self.lane.is_waited_for = true,
            // Everybody is named when the hold is over.
            (Block::Held, _) => {}
        }
    }

    /// A task of a key is handed out.
    pub fn take(&mut self, key: &Arc<str>, now: At) {
        if self.limits.is_empty() {
            return;
        }
        self.last = self.last.max(now);
        self.each(key, |meter, limit| meter.take(limit, now));
        if self.named.len() > self.sweep_at.max(SWEEP_AT_LEAST) {
            self.named.retain(|_, meter| !meter.is_idle(now));
            self.sweep_at = self.named.len() * 2;
        }
    }

    /// A task of an earlier leader is out after all: it counts, but came at its time.
    pub fn count(&mut self, key: &Arc<str>) {
        if !self.limits.is_empty() {
            self.each(key, |meter, _| meter.out += 1);
        }
    }

    /// A task of a key is not out any more. Gives those that were turned away for it.
    pub fn give_back(&mut self, key: &Arc<str>) -> Vec<Metered> {
        let mut free = Vec::new();
        if self.limits.is_empty() {
            return free;
        }
        self.lane.out = self.lane.out.saturating_sub(1);
        if std::mem::take(&mut self.lane.is_waited_for) {
            free.push(None);
        }
        let tenant = tenant_of(key).map(Arc::from);
        for name in tenant.into_iter().chain([key.clone()]) {
            let Some(meter) = self.named.get_mut(&name) else { continue };
            meter.out = meter.out.saturating_sub(1);
            if std::mem::take(&mut meter.is_waited_for) {
                free.push(Some(name));
            } else if meter.out == 0 && self.limits.of(&name).rate.is_none() {
                self.named.remove(&name);
            }
        }
        free
    }

    fn each(&mut self, key: &Arc<str>, mut act: impl FnMut(&mut Meter, Limit)) {
        act(&mut self.lane, self.limits.lane);
        let tenant = tenant_of(key).map(Arc::from);
        for name in tenant.into_iter().chain([key.clone()]) {
            let limit = self.limits.of(&name);
            if !limit.is_none() {
                act(self.named.entry(name).or_default(), limit);
            }
        }
    }

    /// When somebody who was turned away may be let out.
    pub fn next_due(&self) -> Option<At> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Those who may be let out by now.
    pub fn take_due(&mut self, now: At) -> Vec<Metered> {
        let mut due = Vec::new();
        while self.next_due().is_some_and(|at| at <= now)
            && let Some((_, name)) = self.due.pop_first()
        {
            due.push(name);
        }
        due
    }

    /// How many tasks are out of what a limit counts, for the audit.
    pub(super) fn out_of(&self, name: Option<&str>) -> u32 {
        match name {
            Some(name) => self.named.get(name).map_or(0, |meter| meter.out),
            None => self.lane.out,
        }
    }

    /// The limits that hold, for the audit.
    pub(super) const fn limits(&self) -> &LaneLimits {
        &self.limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meters(limit: Limit) -> Meters {
        let mut meters = Meters::default();
        meters.set(&LaneLimits { each_key: limit, ..LaneLimits::default() }, std::iter::empty());
        meters
    }

    #[test]
    fn a_rate_lets_a_burst_out_at_once_and_then_one_at_a_time() {
        let mut meters =
            meters(Limit { in_flight: None, rate: Some(Rate { milli_per_second: 10_000, burst: 3 }) });
        let key: Arc<str> = "bob".into();
        let mut given = Vec::new();
        for ms in 1_000_000..1_001_000 {
            while meters.block(Some("bob"), At::from_ms(ms)).is_none() {
                meters.take(&key, At::from_ms(ms));
                given.push(ms - 1_000_000);
            }
        }
        assert_eq!(given, [0, 0, 0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }

    #[test]
    fn a_rate_of_more_than_one_a_millisecond_is_kept_too() {
        let mut meters =
            meters(Limit { in_flight: None, rate: Some(Rate { milli_per_second: 5_000_000, burst: 1 }) });
        let key: Arc<str> = "bob".into();
        let mut given = 0;
        for ms in 1_000_000..1_000_100 {
            while meters.block(Some("bob"), At::from_ms(ms)).is_none() {
                meters.take(&key, At::from_ms(ms));
                given += 1;
            }
        }
        assert_eq!(given, 500);
    }

    #[test]
    fn over_a_long_time_a_rate_lets_out_no_more_than_it_says() {
        for milli_per_second in [700_000_000, 999_999_999, 333_333, 3_000, 7] {
            let mut meters =
                meters(Limit { in_flight: None, rate: Some(Rate { milli_per_second, burst: 1 }) });
            let key: Arc<str> = "bob".into();
            let mut given = 0_u64;
            for ms in (1_000_000..1_000_101).chain([2_000_000]) {
                while given < 80_000 && meters.block(Some("bob"), At::from_ms(ms)).is_none() {
                    meters.take(&key, At::from_ms(ms));
                    given += 1;
                }
                let allowed = (ms - 1_000_000) * milli_per_second + milli_per_second.max(1_000_000);
                assert!(given * 1_000_000 <= allowed, "{given} at {milli_per_second} after {ms}");
            }
        }
    }

    /// A long burst was used up under the old rate; the new one has nothing to do with it.
    #[test]
    fn another_rate_is_waited_for_as_if_it_had_been_used_up_and_no_longer() {
        let limits = |milli_per_second, burst| {
            let limit = Limit { in_flight: None, rate: Some(Rate { milli_per_second, burst }) };
            LaneLimits { lane: limit, each_key: limit, ..LaneLimits::default() }
        };
        let mut meters = Meters::default();
        meters.set(&limits(10, 100), std::iter::empty());
        let (key, now) = (Arc::from("bob"), At::from_ms(1_000_000));
        while meters.block(Some("bob"), now).is_none() {
            meters.take(&key, now);
        }
        meters.set(&limits(1_000, 5), std::iter::empty());
        for name in [Some("bob"), None] {
            assert_eq!(meters.block(name, now), Some(Block::Rate { until: At::from_ms(1_001_000) }));
            assert_eq!(meters.block(name, At::from_ms(1_001_000)), None);
        }
        meters.set(&LaneLimits::default(), std::iter::empty());
        meters.set(&limits(10, 1), std::iter::empty());
        assert_eq!(meters.block(None, now), None, "what was lifted is forgotten");
    }

    #[test]
    fn whoever_was_turned_away_is_named_once_there_is_room() {
        let mut meters = meters(Limit { in_flight: Some(1), rate: None });
        let (key, now) = (Arc::from("bob"), At::from_ms(5));
        meters.take(&key, now);
        let block = meters.block(Some("bob"), now).expect("one is out");
        assert_eq!((block, meters.block(Some("eve"), now)), (Block::InFlight { most: 1, out: 1 }, None));
        meters.wait_for(Some(key.clone()), block);
        assert_eq!(meters.give_back(&key), [Some(key.clone())]);
        assert_eq!(meters.block(Some("bob"), now), None);
        meters.hold(true);
        assert_eq!(meters.block(Some("eve"), now), Some(Block::Held));
    }
}
