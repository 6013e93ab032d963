//! Turns: whoever computes for long lets others have the processor now and then.
//!
//! The system looks a few hundred times a second whether a busy thread has had its share. Somebody who wakes up meanwhile, such
//! as the order whose entry is on disk, waits until then, whatever the priority of the busy one: four milliseconds with Linux's
//! usual clock, for work of a few microseconds. So a thread that works in the background gives way by itself. Others do not: what
//! they compute somebody waits for.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread goes on before it gives way again.
const TURN: Duration = Duration::from_micros(200);

thread_local! {
    /// When this thread gave way last; none if it does not.
    static GAVE_WAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// From now on this thread gives way, wherever it comes by [`give_way`].
pub fn work_in_background() {
    GAVE_WAY.set(Some(Instant::now()));
}

/// Lets whoever waits for the processor have it, if this thread works in the background and has not done so for a while. Costs a
/// look at the clock, so it can be called for every few microseconds of work.
pub fn give_way() {
    let Some(last) = GAVE_WAY.get() else { return };
    if last.elapsed() >= TURN {
        std::thread::yield_now();
        GAVE_WAY.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_only_if_it_works_in_the_background_and_again_after_its_turn() {
        give_way();
        assert_eq!(GAVE_WAY.get(), None);
        work_in_background();
        let began = GAVE_WAY.get().unwrap();
        while GAVE_WAY.get() == Some(began) {
            give_way();
        }
        assert!(GAVE_WAY.get().unwrap() >= began + TURN);
    }
}
