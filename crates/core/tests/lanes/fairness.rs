//! Shares: long runs with small buffers, in which every pair of keys gets what its weights say.

mod run;

use crate::counted;
use crate::leader::Leader;
use crate::oracles::Watch;
use run::Run;
use std::cell::Cell;
use windlass_core::lanes::tasks::NewTask;

/// Random arrivals, weights, buffers, numbers of tasks out, adds on their way through the log, and restarts, each hand-out
/// watched; counted are those that the bound speaks of.
#[test]
fn any_two_keys_that_wait_differ_by_at_most_one_stride_of_each() {
    let name = "any_two_keys_that_wait_differ_by_at_most_one_stride_of_each";
    let widest_late = Cell::new(0);
    counted::run(name, 80, 1_600_000, |seed| {
        let watch = play(seed, false, 20_000);
        widest_late.set(widest_late.get().max(watch.widest_late));
        watch.counted
    });
    eprintln!("{name}: up to {} millionths of what late adds allow", widest_late.get());
}

/// The same with two priorities, delays, failures, tasks that are given back, late reports, new weights and levels, and crashes.
#[test]
fn any_two_keys_that_wait_get_their_shares_whatever_becomes_of_their_tasks() {
    let name = "any_two_keys_that_wait_get_their_shares_whatever_becomes_of_their_tasks";
    counted::run(name, 80, 1_000_000, |seed| play(seed, true, 12_500).counted);
}

/// A run until so many hand-outs were counted.
fn play(seed: u64, is_troubled: bool, count: u64) -> Watch {
    let mut run = Run::new(seed, is_troubled);
    while run.watch.counted < count {
        run.step();
    }
    assert!(run.watch.widest > 500_000, "the bound is put to the test: {}", run.watch.widest);
    run.drain();
    run.watch
}

#[test]
fn a_million_tasks_of_one_key_let_a_single_one_of_another_go_at_once() {
    let mut leader = Leader::new(4_096, 1_024);
    leader.is_audited = false;
    for _ in 0..1_000 {
        leader.add_of("heavy", 1_000);
    }
    assert!(leader.next().is_some());
    let light = leader.add_of("light", 1)[0];
    let next = [leader.next().unwrap(), leader.next().unwrap()];
    assert!(next.iter().any(|held| held.id == light), "after at most one other");
    assert!(leader.look().ready <= 4_096, "and memory holds a buffer of them");
    assert_eq!(leader.rank_row(0).waiting, 1_000_001);

    leader.change();
    let lighter = leader.add_of("lighter", 1)[0];
    let next = [leader.next().unwrap(), leader.next().unwrap(), leader.next().unwrap()];
    assert!(next.iter().any(|held| held.id == lighter), "also after a restart, beside two other keys");
}

/// A key that fails every task once gets as many turns for new tasks as one that never fails.
#[test]
fn a_key_whose_tasks_fail_does_not_lose_its_share_by_their_retries() {
    let mut leader = Leader::new(8, 2);
    leader.is_audited = false;
    let task = |key: &str| NewTask { retry_delay_ms: 0, ..NewTask::new(key) };
    for key in ["failing", "fine"] {
        leader.add(vec![task(key); 1_000]);
    }
    let mut first_attempts = [0_i64; 2];
    while let Some(held) = leader.next() {
        let row = leader.task(held.id).unwrap();
        let is_failing = row.key == "failing";
        if row.failures == 0 {
            first_attempts[usize::from(is_failing)] += 1;
            assert!((first_attempts[0] - first_attempts[1]).abs() <= 2, "{first_attempts:?}");
        }
        if is_failing && row.failures == 0 {
            leader.fail(held);
            leader.wait_ms(0);
        } else {
            leader.complete(held);
        }
    }
    assert_eq!(first_attempts, [1_000, 1_000]);
    assert_eq!((leader.rank_row(0).done, leader.rank_row(0).waiting), (2_000, 0));
}
