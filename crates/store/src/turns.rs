//! Turns: whoever computes for long lets others have the processor now and then.
//!
//! The system looks a few hundred times a second whether a busy thread has had its share. Somebody who wakes up meanwhile, such
//! as the order whose entry is on disk, waits until then, whatever the priority of the busy one: four milliseconds with Linux's
//! usual clock, for work of a few microseconds. A thread that gives way by itself is asked for nothing.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread goes on before it gives way.
const TURN: Duration = Duration::from_micros(200);

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets whoever waits for the processor have it, if this thread has gone on for a while. Costs a look at the clock, so it can be
/// called for every few microseconds of work.
pub fn give_way() {
    let now = Instant::now();
    if BEGAN.get().is_none_or(|began| now.duration_since(began) >= TURN) {
        std::thread::yield_now();
        BEGAN.set(Some(Instant::now()));
    }
}
