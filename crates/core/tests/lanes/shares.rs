//! Shares: of any stretch of hand-outs, each key of a fixed backlog gets what its weight says, whoever leads meanwhile.
//!
//! Neither of two keys is ahead by more than one stride of each: `|n_i · s_i − n_j · s_j| ≤ s_i + s_j`. Divided by `s_j` and
//! summed over all j but i, with `r = 1 / s` and `R` the sum of all `r`, that says of any stretch of T hand-outs to k keys
//!
//! ```text
//!     | n_i · R − T · r_i |  ≤  R + (k − 2) · r_i
//! ```
//!
//! Where each stride is exactly `2^20 / weight`, the weights themselves stand for `r`, and nothing is rounded. Elsewhere `r` is
//! `2^64 / s`, rounded down by less than one: the left side is wrong by less than `n_i · k + T`, the right side by less than
//! `2 k`.

use crate::counted;
use crate::leader::Leader;
use windlass_core::lanes::levels::{STRIDE, Weight};
use windlass_core::lanes::tasks::NewTask;
use windlass_core::seeded::Seeded;

const HAND_OUTS: usize = 10_000;

#[test]
fn each_key_of_a_fixed_backlog_gets_its_share_of_any_stretch_to_within_the_bound() {
    let name = "each_key_of_a_fixed_backlog_gets_its_share_of_any_stretch_to_within_the_bound";
    counted::run(name, 30, 30 * HAND_OUTS as u64, |seed| {
        let mut chance = Seeded::new(seed);
        let weights = if seed.is_multiple_of(3) { rounded(&mut chance) } else { exact(&mut chance) };
        play(&weights, &mut chance)
    });
}

/// Weights that divide the stride of one without a remainder.
fn exact(chance: &mut Seeded) -> Vec<Weight> {
    let all: Vec<Weight> = (1..=32_000).filter_map(Weight::from_milli).filter(|it| is_exact(*it)).collect();
    assert!(all.len() > 40, "there are many");
    (0..2 + chance.below(8)).map(|_| all[pick(chance, all.len())]).collect()
}

fn rounded(chance: &mut Seeded) -> Vec<Weight> {
    let milli = |chance: &mut Seeded| 1 + u32::try_from(chance.below(20_000)).expect("it is small");
    (0..2 + chance.below(8)).map(|_| Weight::from_milli(milli(chance)).expect("a weight")).collect()
}

fn is_exact(weight: Weight) -> bool {
    u64::from(weight.stride()) * u64::from(weight.as_milli()) == STRIDE * 1_000
}

/// What a key gets in proportion to the others, and its stretch that was furthest from that to both sides.
struct Key {
    rate: i128,
    got: i128,
    least: i128,
    most: i128,
}

/// Hands everything out with a leader after the other, one task at a time, and says how many went out.
fn play(weights: &[Weight], chance: &mut Seeded) -> u64 {
    let is_exact = weights.iter().all(|it| is_exact(*it));
    let rate = |it: &Weight| match is_exact {
        true => i128::from(it.as_milli()),
        false => (1_i128 << 64) / i128::from(it.stride()),
    };
    let key = |it| Key { rate: rate(it), got: 0, least: 0, most: 0 };
    let mut keys: Vec<Key> = weights.iter().map(key).collect();
    let tasks = 2 + pick(chance, 30);
    let mut leader = Leader::new(tasks, pick(chance, tasks));
    leader.is_audited = false;
    add_backlog(&mut leader, weights, &keys);
    for total in 1..=HAND_OUTS {
        let mut held = leader.next().expect("nobody runs out before");
        if chance.below(100) == 0 {
            leader.change();
            // The last one is not known to have gone out, and goes out again.
            held = leader.next_is(held.id);
        }
        let number: usize = leader.key(held.id).parse().expect("it is a number");
        keys[number].got += 1;
        leader.complete(held);
        check(&mut keys, total as i128, is_exact);
    }
    HAND_OUTS as u64
}

/// So many tasks of each key that none runs out.
fn add_backlog(leader: &mut Leader, weights: &[Weight], keys: &[Key]) {
    let sum: i128 = keys.iter().map(|key| key.rate).sum();
    for (number, (weight, key)) in weights.iter().zip(keys).enumerate() {
        let count = HAND_OUTS as i128 * key.rate / sum + keys.len() as i128 + 2;
        let task = NewTask { weight: *weight, ..NewTask::new(format!("{number}")) };
        let tasks = vec![task; usize::try_from(count).expect("it is small")];
        tasks.chunks(1_000).for_each(|tasks| drop(leader.add(tasks.to_vec())));
    }
}

fn check(keys: &mut [Key], total: i128, is_exact: bool) {
    let (count, sum) = (keys.len() as i128, keys.iter().map(|key| key.rate).sum::<i128>());
    for (number, key) in keys.iter_mut().enumerate() {
        let ahead = key.got * sum - total * key.rate;
        (key.least, key.most) = (key.least.min(ahead), key.most.max(ahead));
        // Both ends of a stretch may be rounded.
        let rounding = if is_exact { 0 } else { 2 * (key.got * count + total + count) };
        let allowed = sum + (count - 2) * key.rate + rounding;
        let apart = key.most - key.least;
        assert!(apart <= allowed, "key {number} is {apart} apart where {allowed} is allowed, after {total}");
    }
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
