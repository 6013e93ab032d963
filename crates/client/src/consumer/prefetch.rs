//! Prefetch: how many chunks a consumer holds reserved beyond those that it works on, if nobody has set it.
//!
//! While one chunk is being worked on, the next ones are at hand and reports are on their way. Chunks that take long should be
//! few there: they would be kept from consumers with nothing to do. Of those that take microseconds a few are gone before the
//! next can come. So a consumer asks for about as many as it has ended in the last moments. Work changes its pace: what is at
//! hand by then and would take longer than a second goes back.
//!
//! Invariants
//! - It asks for no fewer than the least, nor for more than [`MOST`], unless the least is more.
//! - It keeps no fewer than the least, and a second after its pace has changed nothing that would take longer than another.

use std::time::Duration;
use tokio::time::Instant;

/// So much work is asked for: longer than a round trip takes, also to a server that has a thousand others to serve, and too
/// short for anybody to wait for it. Where a round trip takes longer, a consumer cannot find out how quick it would be.
const WORK_AT_HAND: Duration = Duration::from_millis(100);

/// The pace is that of so long a time at least.
const MEASURED_FOR: Duration = Duration::from_millis(20);

/// Beyond this a consumer gains nothing: with the frames of so many on their way, a round trip costs each of them next to nothing.
const MOST: usize = 1_024;

/// So much work is kept, and a pace at which nothing has ended for so long counts no more. A server, a disk or a garbage
/// collector that pauses for some tenths of a second should not make anybody send everything back.
const WORK_KEPT: Duration = Duration::from_secs(1);

/// See the file's head.
#[derive(Debug)]
pub(super) struct Prefetch {
    least: usize,
    /// Chunks that have ended since.
    ended: usize,
    since: Instant,
}

/// How many chunks to hold beyond those that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtHand {
    /// With what is asked for.
    pub(super) most: usize,
    /// What is beyond this goes back.
    pub(super) kept: usize,
}

impl Prefetch {
    pub(super) const fn new(least: usize, now: Instant) -> Prefetch {
        Prefetch { least, ended: 0, since: now }
    }

    /// So many chunks have ended; how many to hold from now on, if that is to be said anew.
    pub(super) fn count(&mut self, ended: usize, now: Instant) -> Option<AtHand> {
        self.ended += ended;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < MEASURED_FOR {
            return None;
        }
        let pace = self.ended as f64 / elapsed.as_secs_f64();
        (self.ended, self.since) = (0, now);
        let in_time = |time: Duration| (pace * time.as_secs_f64()) as usize;
        let (most, kept) = (in_time(WORK_AT_HAND).min(MOST), in_time(WORK_KEPT));
        Some(AtHand { most: most.max(self.least), kept: kept.max(self.least) })
    }

    /// When the pace counts no more, if so many are at hand that it matters.
    pub(super) fn stale_at(&self, queued: usize) -> Option<Instant> {
        (queued > self.least).then(|| self.since + WORK_KEPT)
    }

    /// Whether it counts no more.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.since + WORK_KEPT <= now
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
            prefetch.count(ended, now).map(|AtHand { most, kept }| (most, kept))
        };
        assert_eq!(after(10, 50), None, "too soon to tell");
        assert_eq!(after(10, 50), Some((500, 5_000)));
        assert_eq!(after(40, 100), Some((250, 2_500)), "in the mean of the time since");
        assert_eq!(after(20, 1_000_000), Some((MOST, 50_000_000)));
        assert_eq!(after(100, 1), Some((4, 10)), "each takes long");
        assert_eq!(after(60_000, 1), Some((4, 4)), "each takes very long");
        assert_eq!(after(3_600_000, 100), Some((4, 4)), "there was nothing to do for an hour");
        assert!(prefetch.is_stale(now + WORK_KEPT) && !prefetch.is_stale(now + MEASURED_FOR));
        assert_eq!((prefetch.stale_at(4), prefetch.stale_at(5)), (None, Some(now + WORK_KEPT)));
    }

    #[test]
    fn whoever_works_on_many_at_once_holds_as_many_whatever_they_take() {
        let now = Instant::now();
        let mut prefetch = Prefetch::new(5_000, now);
        let at_hand = AtHand { most: 5_000, kept: 5_000 };
        assert_eq!(prefetch.count(1, now + MEASURED_FOR), Some(at_hand));
    }
}
