//! Cost: what a hand-out costs grows no faster than the logarithm of how many keys or tenants there are, or keys at their
//! limits, and so does an add; a look at a rank costs no more however many there are.
//!
//! Times are compared within one run, the best of several rounds each, and with much room: a hundred or a thousand times as
//! many cost less than ten times as much, where a walk over all of them would cost a hundred or a thousand times.

use crate::leader::{Held, Leader};
use crate::limits::{in_flight, limit, named};
use std::time::Duration;
use windlass_core::lanes::limiting::{Limit, Scope};
use windlass_core::lanes::tasks::NewTask;

const FEW: usize = 1_000;
const MANY: usize = 100_000;
const MOST: usize = 1_000_000;
const ROUNDS: usize = 8;
const PER_ROUND: usize = 100;

#[test]
fn a_hand_out_beside_a_thousand_times_as_many_keys_costs_about_the_same() {
    let [few, many] = [FEW, MOST].map(|count| {
        let mut leader = leader_with(count, 1, |nth| format!("k{nth}"));
        best_round(|| {
            let held = leader.next().expect("every key has a task");
            leader.complete(held);
        })
    });
    assert!(many < few * 10, "{many:?} beside {MOST}, {few:?} beside {FEW}");
}

#[test]
fn an_add_beside_a_hundred_times_as_many_keys_costs_about_the_same() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut leader = leader_with(count, 2, |nth| format!("k{nth}"));
        let mut number = 0;
        best_round(|| {
            number += 1;
            leader.add_of(&format!("k{}", number % count), 1);
        })
    });
    assert!(many < few * 10, "{many:?} beside {MANY}, {few:?} beside {FEW}");
}

#[test]
fn a_hand_out_beside_a_hundred_times_as_many_tenants_costs_about_the_same() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut leader = leader_with(count, 2, |nth| format!("t{nth}/x"));
        best_round(|| {
            let held = leader.next().expect("every tenant has two tasks");
            leader.complete(held);
        })
    });
    assert!(many < few * 10, "{many:?} beside {MANY}, {few:?} beside {FEW}");
}

#[test]
fn a_hand_out_beside_a_hundred_times_as_many_keys_at_their_limits_costs_about_the_same() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut leader = leader_with(count, 2, |nth| format!("k{nth}"));
        limit(&mut leader, Scope::EachKey, in_flight(1));
        let mut held: Vec<Held> = leader.all();
        assert_eq!((held.len(), leader.look().parked), (count, count));
        best_round(|| {
            leader.complete(held.pop().expect("one of each key is out"));
            assert!(leader.next().is_some(), "its key goes on");
        })
    });
    assert!(many < few * 10, "{many:?} beside {MANY}, {few:?} beside {FEW}");
}

#[test]
fn a_look_at_a_rank_with_a_hundred_times_as_many_tenants_costs_about_the_same() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut leader = leader_with(count, 2, |nth| format!("t{nth}/x"));
        let held: Vec<Held> = (0..FEW).filter_map(|_| leader.next()).collect();
        assert_eq!((held.len(), leader.look().out), (FEW, FEW));
        let rank = leader.rank(0);
        best_round(|| {
            let desk = leader.reserver.desk();
            assert!(desk.look(rank).is_some() && desk.out_len_of(rank.lane) == FEW);
            assert!(desk.oldest_next(rank).is_some());
        })
    });
    assert!(many < few * 10, "{many:?} beside {MANY}, {few:?} beside {FEW}");
}

#[test]
fn a_note_of_how_far_all_is_done_costs_about_the_same_beside_a_hundred_times_as_many_keys_at_their_limits() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut leader = leader_with(count, 2, |nth| format!("k{nth}"));
        leader.add_of("free", 1_000);
        limit(&mut leader, Scope::EachKey, in_flight(0));
        limit(&mut leader, named("free"), Some(Limit::default()));
        best_round(|| {
            let held = leader.next().expect("one key has no limit");
            assert_eq!(leader.look().parked, count, "and all others are at theirs");
            leader.complete(held);
            leader.note_all();
            leader.look_for_rows();
        })
    });
    assert!(many < few * 10, "{many:?} beside {MANY}, {few:?} beside {FEW}");
}

/// A leader with so many keys, which have so many tasks each.
fn leader_with(count: usize, each: usize, key: impl Fn(usize) -> String) -> Leader {
    let mut leader = Leader::new(4_096, 1_024);
    leader.is_audited = false;
    for _ in 0..each {
        let tasks: Vec<NewTask> = (0..count).map(|nth| NewTask::new(key(nth))).collect();
        tasks.chunks(1_000).for_each(|tasks| drop(leader.add(tasks.to_vec())));
    }
    leader
}

#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the machine has no clock; the test that times it has one"
)]
fn best_round(mut act: impl FnMut()) -> Duration {
    let round = |_| {
        let begin = std::time::Instant::now();
        (0..PER_ROUND).for_each(|_| act());
        begin.elapsed()
    };
    (0..ROUNDS).map(round).min().expect("there are rounds")
}
