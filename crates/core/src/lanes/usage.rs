//! Usage: which keys and tenants a lane handed out lately, as averages over one, five and fifteen minutes.
//!
//! Each hand-out counts for less as time passes, as in a machine's load averages; so an average costs one number, and nothing has
//! to be moved while nobody asks.
//!
//! Invariants
//! - At most so many keys are remembered; of more, those with the smallest shares are added up under no name.

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

/// See the file's head.
#[derive(Debug, Default)]
pub struct Usage {
    all: Averages,
    keys: BTreeMap<Arc<str>, Averages>,
}

/// A key's part of what was handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyShare {
    /// The key.
    pub key: Arc<str>,
    /// Its share over one, five and fifteen minutes, of 1.
    pub shares: [f64; 3],
}

impl Usage {
    /// A task of a key is handed out, and counts for its tenant too.
    pub fn count(&mut self, key: &Arc<str>, now: At) {
        self.all.count(now);
        self.count_one(key, now);
        if let Some(tenant) = tenant_of(key) {
            self.count_one(&tenant.into(), now);
        }
    }

    fn count_one(&mut self, key: &Arc<str>, now: At) {
        if let Some(averages) = self.keys.get_mut(key) {
            return averages.count(now);
        }
        if self.keys.len() >= LANE_USAGE_KEYS_MAX {
            self.forget_half(now);
        }
        self.keys.entry(key.clone()).or_default().count(now);
    }

    /// Makes room: half of the keys are forgotten, those with the smallest shares.
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

    /// What a key got of all that was handed out; nothing if it is not remembered.
    pub fn share_of(&self, key: &str, now: At) -> [f64; 3] {
        let (all, own) = (self.all.at(now), self.keys.get(key).map_or([0.0; 3], |averages| averages.at(now)));
        std::array::from_fn(|nth| if all[nth] > 0.0 { own[nth] / all[nth] } else { 0.0 })
    }

    /// Of the keys that are meant, those with the largest shares over five minutes.
    pub fn largest(&self, count: usize, now: At, is_meant: impl Fn(&str) -> bool) -> Vec<KeyShare> {
        if count == 0 {
            return Vec::new();
        }
        let keys = self.keys.keys().filter(|key| is_meant(key));
        let shares = keys.map(|key| KeyShare { key: key.clone(), shares: self.share_of(key, now) });
        let mut shares: Vec<KeyShare> = shares.collect();
        shares.sort_by(|a, b| b.shares[1].total_cmp(&a.shares[1]).then_with(|| a.key.cmp(&b.key)));
        shares.truncate(count);
        shares
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
        (0..300).for_each(|_| usage.count(&bob, minute(0)));
        (0..100).for_each(|_| usage.count(&eve, minute(0)));
        assert_eq!(usage.share_of("bob", minute(0)), [0.75; 3]);
        (0..300).for_each(|_| usage.count(&eve, minute(5)));
        let [one, five, fifteen] = usage.share_of("eve", minute(5));
        assert!(
            0.99 < one && one < 1.0 && five < one && fifteen < five && fifteen > 0.5,
            "{one} {five} {fifteen}"
        );
        assert_eq!(usage.largest(1, minute(5), |_| true)[0].key, eve);
        assert_eq!(usage.largest(1, minute(5), |key| key != "eve")[0].key, bob);
        assert_eq!(usage.share_of("zoe", minute(5)), [0.0; 3]);
    }

    #[test]
    fn however_many_keys_there_are_memory_is_bounded_and_the_large_ones_stay() {
        let mut usage = Usage::default();
        let large: Arc<str> = "large".into();
        for nth in 0..10 * LANE_USAGE_KEYS_MAX as u64 {
            usage.count(&nth.to_string().into(), At::from_ms(nth));
            usage.count(&large, At::from_ms(nth));
            assert!(usage.keys.len() <= LANE_USAGE_KEYS_MAX);
        }
        let now = At::from_ms(10 * LANE_USAGE_KEYS_MAX as u64);
        assert!((usage.share_of("large", now)[2] - 0.5).abs() < 0.01);
    }
}
