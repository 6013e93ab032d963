//! Prefetch: how many chunks a consumer holds reserved beyond those that it works on, if nobody has set it.
//!
//! While one chunk is being worked on, the next ones are at hand and reports are on their way. Chunks that take long should be
//! few there: they would be kept from consumers with nothing to do. Of those that take microseconds a few are gone before the
//! next can come. So a consumer holds about as many as it has ended in the last moments.
//!
//! Invariants
//! - It never holds fewer than the least, nor more than [`MOST`], unless the least is more.

use std::time::Duration;
use tokio::time::Instant;

/// So much work is at hand: far longer than a round trip with its fsync takes, and too short for anybody to wait for it.
const WORK_AT_HAND: Duration = Duration::from_millis(20);

/// Beyond this a consumer gains nothing: with the frames of so many on their way, a round trip costs each of them next to nothing.
const MOST: usize = 1_024;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Prefetch {
    least: usize,
    /// Chunks that have ended since.
    ended: usize,
    since: Instant,
}

impl Prefetch {
    pub(super) const fn new(least: usize, now: Instant) -> Prefetch {
        Prefetch { least, ended: 0, since: now }
    }

    /// So many chunks have ended; how many to hold from now on, if that is to be said anew.
    pub(super) fn count(&mut self, ended: usize, now: Instant) -> Option<usize> {
        self.ended += ended;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < WORK_AT_HAND {
            return None;
        }
        let ended = self.ended as f64 * WORK_AT_HAND.as_secs_f64() / elapsed.as_secs_f64();
        (self.ended, self.since) = (0, now);
        Some((ended as usize).min(MOST).max(self.least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_work_has_much_at_hand_and_slow_work_or_none_the_least() {
        let mut now = Instant::now();
        let mut prefetch = Prefetch::new(4, now);
        let mut after = |ms: u64, ended: usize| {
            now += Duration::from_millis(ms);
            prefetch.count(ended, now)
        };
        assert_eq!(after(10, 50), None, "too soon to tell");
        assert_eq!(after(10, 150), Some(200));
        assert_eq!(after(40, 1_000), Some(500), "in the mean of the time since");
        assert_eq!(after(20, 1_000_000), Some(MOST));
        assert_eq!(after(100, 1), Some(4), "each takes long");
        assert_eq!(after(3_600_000, 100), Some(4), "there was nothing to do for an hour");
    }

    #[test]
    fn whoever_works_on_many_at_once_holds_as_many_whatever_they_take() {
        let now = Instant::now();
        let mut prefetch = Prefetch::new(5_000, now);
        assert_eq!(prefetch.count(1, now + WORK_AT_HAND), Some(5_000));
    }
}
