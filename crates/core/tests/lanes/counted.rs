//! Sequences that say how many hand-outs they counted, of those that the bound speaks of, and how many that makes all together.

use crate::sequences;
use std::cell::Cell;

/// Runs `sequence` for `count` seeds, which count at least so many hand-outs together.
pub(crate) fn run(test: &'static str, count: u64, at_least: u64, sequence: impl Fn(u64) -> u64) {
    let (ran, hand_outs) = (Cell::new(0), Cell::new(0));
    sequences::run(test, count, |seed| {
        hand_outs.set(hand_outs.get() + sequence(seed));
        ran.set(ran.get() + 1);
    });
    let (ran, hand_outs) = (ran.get(), hand_outs.get());
    eprintln!("{test}: {hand_outs} hand-outs were counted in {ran} sequences");
    // Whoever replays one seed sees fewer.
    assert!(ran < count || hand_outs >= at_least, "{hand_outs} hand-outs are too few to say much");
}
