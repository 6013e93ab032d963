//! Backoff: how long to wait before the next try.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits that double up to a limit, each with up to half of it taken off by chance, so that clients that were cut off
/// together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// The next wait, by 64 bits of chance.
    pub(crate) fn next_wait(&mut self, chance: u64) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        let half_us = u64::try_from(whole.as_micros() / 2).unwrap_or(u64::MAX).max(1);
        whole - Duration::from_micros(chance % half_us)
    }

    /// Begins anew after a success.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_chance_takes_at_most_half() {
        let (mut longest, mut shortest) = (Backoff::new(), Backoff::new());
        let mut whole = FIRST;
        for _ in 0..20 {
            assert_eq!(longest.next_wait(0), whole);
            let short = shortest.next_wait(u64::MAX);
            assert!(short > whole / 2 && short <= whole, "{short:?} of {whole:?}");
            whole = (whole * 2).min(LONGEST);
        }
        longest.reset();
        assert_eq!(longest.next_wait(0), FIRST);
    }
}
