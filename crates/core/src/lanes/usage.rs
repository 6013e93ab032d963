//! Usage: which keys and tenants a lane handed out lately, as averages over one, five and fifteen minutes.
//!
//! A share is one of what its priority handed out, as that is what keys are entitled to a part of.
//!
//! Each hand-out counts for less as time passes, as in a machine's load averages; so an average costs one number, and nothing has
//! to be moved while nobody asks.
//!
//! Invariants
//! - At most so many keys are remembered, one in two priorities as two; of more, those that got the least are forgotten, and only count
//!   for all.

use super::levels::tenant_of;
use crate::limits::LANE_USAGE_KEYS_MAX;
use crate::time::At;
use std::collections::BTreeMap;
use std::sync::Arc;

const MINUTES: [f64; 3] = [1.0, 5.0, 15.0];

/// The weight of hand-outs over one, five and fifteen minutes, as of some time.
#[derive(Debug, Clone, Copy, Default)]
struct Averages {
    at: At,
    counts: [f64; 3],
}

impl Averages {
    fn at(&self, now: At) -> [f64; 3] {
        #[expect(clippy::cast_precision_loss, reason = "an average is not exact")]
        let minutes = now.as_ms().saturating_sub(self.at.as_ms()) as f64 / 60_000.0;
        std::array::from_fn(|nth| self.counts[nth] * (-minutes / MINUTES[nth]).exp())
    }

    fn count(&mut self, now: At) {
        if now > self.at {
            (self.counts, self.at) = (self.at(now), now);
        }
        self.counts.iter_mut().for_each(|count| *count += 1.0);
    }
}

/// A key or tenant in one priority.
type KeyOfRank = (u8, Arc<str>);

/// See the file's head.
#[derive(Debug, Default)]
pub struct Usage {
    /// By priority.
    all: BTreeMap<u8, Averages>,
    keys: BTreeMap<KeyOfRank, Averages>,
}

impl Usage {
    /// A task of a key is handed out, and counts for its tenant too.
    pub fn count(&mut self, priority: u8, key: &Arc<str>, now: At) {
        self.all.entry(priority).or_default().count(now);
        self.count_one((priority, key.clone()), now);
        if let Some(tenant) = tenant_of(key) {
            self.count_one((priority, tenant.into()), now);
        }
    }

    fn count_one(&mut self, key: KeyOfRank, now: At) {
        if let Some(averages) = self.keys.get_mut(&key) {
            return averages.count(now);
        }
        if self.keys.len() >= LANE_USAGE_KEYS_MAX {
            self.forget_half(now);
        }
        self.keys.entry(key).or_default().count(now);
    }

    /// Makes room: half of the keys are forgotten, those that got the least.
    fn forget_half(&mut self, now: At) {
        let mut counts: Vec<f64> = self.keys.values().map(|averages| averages.at(now)[2]).collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable_by(middle, f64::total_cmp);
        let (median, mut left) = (*median, middle);
        self.keys.retain(|_, averages| {
            let is_small = left > 0 && averages.at(now)[2] <= median;
            left -= usize::from(is_small);
            !is_small
        });
    }

    /// What a key got of all that a priority handed out, of 1, over one, five and fifteen minutes; nothing if it is not remembered.
    pub fn share_of(&self, priority: u8, key: &str, now: At) -> [f64; 3] {
        let all = self.all.get(&priority).map_or([0.0; 3], |averages| averages.at(now));
        let own = self.keys.get(&(priority, key.into())).map_or([0.0; 3], |averages| averages.at(now));
        std::array::from_fn(|nth| if all[nth] > 0.0 { own[nth] / all[nth] } else { 0.0 })
    }

    /// Of the keys that are meant, each in a priority, those that got the most over five minutes.
    pub fn largest(&self, count: usize, now: At, is_meant: impl Fn(u8, &str) -> bool) -> Vec<(u8, Arc<str>)> {
        if count == 0 {
            return Vec::new();
        }
        let meant = self.keys.iter().filter(|((priority, key), _)| is_meant(*priority, key));
        let mut keys: Vec<(f64, &KeyOfRank)> = meant.map(|(key, it)| (it.at(now)[1], key)).collect();
        keys.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.1.cmp(&b.1.1)));
        keys.into_iter().take(count).map(|(_, key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_what_was_handed_out_and_the_past_counts_for_less() {
        let mut usage = Usage::default();
        let (bob, eve): (Arc<str>, Arc<str>) = ("bob".into(), "eve".into());
        let minute = |nth: u64| At::from_ms(1_000_000 + nth * 60_000);
        (0..300).for_each(|_| usage.count(0, &bob, minute(0)));
        (0..100).for_each(|_| usage.count(0, &eve, minute(0)));
        assert_eq!(usage.share_of(0, "bob", minute(0)), [0.75; 3]);
        (0..300).for_each(|_| usage.count(0, &eve, minute(5)));
        let [one, five, fifteen] = usage.share_of(0, "eve", minute(5));
        assert!(
            0.99 < one && one < 1.0 && five < one && fifteen < five && fifteen > 0.5,
            "{one} {five} {fifteen}"
        );
        assert_eq!(usage.largest(1, minute(5), |_, _| true), [(0, eve)]);
        assert_eq!(usage.largest(1, minute(5), |_, key| key != "eve"), [(0, bob)]);
        assert_eq!(usage.share_of(0, "zoe", minute(5)), [0.0; 3]);
    }

    #[test]
    fn a_share_is_one_of_what_its_priority_got_and_those_that_got_the_most_of_all_come_first() {
        let mut usage = Usage::default();
        let (bob, eve): (Arc<str>, Arc<str>) = ("bob".into(), "eve".into());
        let now = At::from_ms(1_000_000);
        (0..60).for_each(|_| usage.count(0, &bob, now));
        (0..40).for_each(|_| usage.count(0, &eve, now));
        (0..5).for_each(|_| usage.count(9, &eve, now));
        assert_eq!((usage.share_of(0, "eve", now), usage.share_of(9, "eve", now)), ([0.4; 3], [1.0; 3]));
        assert_eq!(usage.largest(9, now, |_, _| true), [(0, bob), (0, eve.clone()), (9, eve)]);
    }

    #[test]
    fn however_many_keys_there_are_memory_is_bounded_and_the_large_ones_stay() {
        let mut usage = Usage::default();
        let large: Arc<str> = "large".into();
        for nth in 0..10 * LANE_USAGE_KEYS_MAX as u64 {
            usage.count(0, &nth.to_string().into(), At::from_ms(nth));
            usage.count(0, &large, At::from_ms(nth));
            assert!(usage.keys.len() <= LANE_USAGE_KEYS_MAX);
        }
        let now = At::from_ms(10 * LANE_USAGE_KEYS_MAX as u64);
        assert!((usage.share_of(0, "large", now)[2] - 0.5).abs() < 0.01);
    }
}
