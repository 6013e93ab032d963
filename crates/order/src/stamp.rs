//! Stamp: the only place with a clock and with chance. The leader stamps each group; apply never asks.
//!
//! The leader's time begins at the wall clock's reading and goes on by the monotonic clock. Where the two part, it leans
//! towards the wall clock: it runs at most at twice the pace while the wall clock is ahead, and at half the pace while
//! it is behind.
//!
//! Invariants
//! - Time never goes back, not even across leaders: it begins no earlier than the last time in the machine.
//! - However the wall clock jumps, time passes between half and twice as fast as it really does.
//! - No two seeds of a process are the same draw, and nobody who sees some of them can tell the next.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windlass_core::ids::SenderId;
use windlass_core::time::At;

/// The clocks of the machine this runs on.
pub(crate) trait Clock: Send {
    /// What the wall shows, since the Unix epoch.
    fn wall(&self) -> Duration;

    /// Time that only goes forward, from any beginning.
    fn monotonic(&self) -> Duration;
}

/// The real clocks.
pub(crate) struct SystemClock {
    begun: Instant,
}

impl SystemClock {
    pub(crate) fn new() -> SystemClock {
        SystemClock { begun: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Duration {
        // A wall clock before 1970 is as wrong as one that stands at 1970.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn monotonic(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// What a group is stamped with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) at: At,
    pub(crate) seed: u64,
}

/// Stamps groups with time and chance.
pub(crate) struct Stamper {
    clock: Box<dyn Clock>,
    chance: Chance,
    now: Duration,
    /// The monotonic clock's reading at `now`.
    read_at: Duration,
}

impl Stamper {
    pub(crate) fn new(clock: Box<dyn Clock>) -> Stamper {
        let (now, read_at) = (clock.wall(), clock.monotonic());
        Stamper { clock, chance: Chance::from_system(), now, read_at }
    }

    /// Begins a leadership after a machine's last time: what the wall shows, but not before `last`.
    pub(crate) fn begin(&mut self, last: At) {
        self.read_at = self.clock.monotonic();
        self.now = self.now.max(self.clock.wall()).max(Duration::from_millis(last.as_ms()));
    }

    pub(crate) fn stamp(&mut self) -> Stamp {
        self.advance();
        let ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        Stamp { at: At::from_ms(ms), seed: self.chance.draw() }
    }

    fn advance(&mut self) {
        let read_at = self.clock.monotonic();
        let passed = read_at.saturating_sub(self.read_at);
        self.read_at = read_at;
        let wall = self.clock.wall();
        // Whoever holds a lease renews it at a third of its length, so at twice the pace renewals still come in time.
        // Half the pace lets the wall clock catch up, where standing still would stop every expiry.
        self.now = wall.clamp(self.now + passed / 2, self.now + passed * 2);
    }
}

/// Numbers from the operating system's generator: a secret key drawn once, and a count hashed under it.
pub(crate) struct Chance {
    key: RandomState,
    drawn: u64,
}

impl Chance {
    pub(crate) fn from_system() -> Chance {
        Chance { key: RandomState::new(), drawn: 0 }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.key.hash_one(self.drawn)
    }

    /// A sender id: drawn at each start, so that the tokens of an earlier life of this node are not taken for its own.
    pub(crate) fn sender(&mut self) -> SenderId {
        SenderId(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct SetClock {
        hands: Arc<Mutex<(Duration, Duration)>>,
    }

    impl SetClock {
        fn pass(&self, ms: u64) {
            let mut hands = self.hands.lock().unwrap();
            hands.0 += Duration::from_millis(ms);
            hands.1 += Duration::from_millis(ms);
        }

        fn set_wall(&self, ms: u64) {
            self.hands.lock().unwrap().0 = Duration::from_millis(ms);
        }
    }

    impl Clock for SetClock {
        fn wall(&self) -> Duration {
            self.hands.lock().unwrap().0
        }

        fn monotonic(&self) -> Duration {
            self.hands.lock().unwrap().1
        }
    }

    fn stamper_at(ms: u64) -> (SetClock, Stamper) {
        let clock = SetClock::default();
        clock.set_wall(ms);
        let stamper = Stamper::new(Box::new(clock.clone()));
        (clock, stamper)
    }

    fn ms(stamper: &mut Stamper) -> u64 {
        stamper.stamp().at.as_ms()
    }

    #[test]
    fn time_goes_with_the_wall_clock_while_both_clocks_agree() {
        let (clock, mut stamper) = stamper_at(1_000_000);
        assert_eq!(ms(&mut stamper), 1_000_000);
        clock.pass(250);
        assert_eq!(ms(&mut stamper), 1_000_250);
    }

    #[test]
    fn after_a_jump_forward_time_runs_at_twice_the_pace_until_it_is_there() {
        let (clock, mut stamper) = stamper_at(1_000_000);
        clock.set_wall(1_010_000);
        assert_eq!(ms(&mut stamper), 1_000_000, "no time has passed");
        clock.pass(6_000);
        assert_eq!(ms(&mut stamper), 1_012_000);
        clock.pass(6_000);
        assert_eq!(ms(&mut stamper), 1_022_000, "caught up, and not past it");
    }

    #[test]
    fn after_a_jump_back_time_runs_at_half_the_pace_until_the_wall_clock_is_there() {
        let (clock, mut stamper) = stamper_at(1_000_000);
        clock.set_wall(990_000);
        assert_eq!(ms(&mut stamper), 1_000_000);
        clock.pass(10_000);
        assert_eq!(ms(&mut stamper), 1_005_000);
        clock.pass(20_000);
        assert_eq!(ms(&mut stamper), 1_020_000);
    }

    #[test]
    fn a_leader_whose_clock_is_behind_begins_at_the_machines_last_time() {
        let (clock, mut stamper) = stamper_at(1_000_000);
        stamper.begin(At::from_ms(1_500_000));
        assert_eq!(ms(&mut stamper), 1_500_000);
        clock.pass(10);
        assert_eq!(ms(&mut stamper), 1_500_005);
    }

    #[test]
    fn a_leader_that_begins_after_a_long_pause_begins_at_the_wall_clock() {
        let (clock, mut stamper) = stamper_at(1_000_000);
        clock.set_wall(9_000_000);
        stamper.begin(At::from_ms(1_000_000));
        assert_eq!(ms(&mut stamper), 9_000_000);
    }

    #[test]
    fn a_thousand_seeds_of_two_stampers_are_all_different() {
        let (_, mut one) = stamper_at(1);
        let (_, mut other) = stamper_at(1);
        let seeds: BTreeSet<u64> = (0..500).flat_map(|_| [one.stamp().seed, other.stamp().seed]).collect();
        assert_eq!(seeds.len(), 1_000);
    }
}
