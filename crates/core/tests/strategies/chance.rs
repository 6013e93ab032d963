//! Chance: submissions go out in proportion to their ready chunks, whatever stands around `Random`.
//!
//! Each test counts draws with a fixed seed; of fair draws, one in a thousand would be refused.

use crate::queue::{Queue, traits};
use std::collections::BTreeMap;
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::ids::SubmissionId;

const ANNA: Holder = Holder::Session(SessionId(1));
const DRAWS: u64 = 20_000;

/// Draws one at a time and gives it back, and says how often each submission came.
fn draw(queue: &mut Queue, strategy: &Strategy) -> BTreeMap<SubmissionId, u64> {
    let plan = queue.plan(strategy);
    let mut seen = BTreeMap::new();
    for _ in 0..DRAWS {
        let given = queue.reserve(ANNA, 1, plan);
        let (name, token) = given[0];
        *seen.entry(name.submission).or_default() += 1;
        queue.release(name, token);
    }
    seen
}

/// Whether these came in proportion to their weights, and no others did.
fn assert_in_proportion(seen: &BTreeMap<SubmissionId, u64>, weights: &BTreeMap<SubmissionId, u64>) {
    assert!(seen.keys().eq(weights.keys()), "{seen:?} are of {weights:?}");
    let (draws, total) = (seen.values().sum::<u64>() as f64, weights.values().sum::<u64>() as f64);
    let parts = weights.iter().map(|(submission, weight)| {
        let expected = draws * *weight as f64 / total;
        (seen[submission] as f64 - expected).powi(2) / expected
    });
    let (chi_squared, max) = (parts.sum::<f64>(), chi_squared_max(weights.len() - 1));
    assert!(chi_squared < max, "{chi_squared} is above {max}: {seen:?} of {weights:?}");
}

/// Above this are 0.1 % of all sums with so many degrees of freedom (by the approximation of Wilson and Hilferty).
fn chi_squared_max(freedom: usize) -> f64 {
    let part = 2.0 / (9.0 * freedom as f64);
    freedom as f64 * (1.0 - part + 3.09 * part.sqrt()).powi(3)
}

#[test]
fn random_picks_submissions_in_proportion_to_their_ready_chunks() {
    let mut queue = Queue::new(42);
    let weights =
        (1..=60).map(|size| (queue.submit(size, traits([("company", "a".into())])), size)).collect();
    assert_in_proportion(&draw(&mut queue, &Strategy::Random), &weights);
}

#[test]
fn random_is_in_proportion_among_those_that_a_select_leaves() {
    let mut queue = Queue::new(42);
    let mut weights = BTreeMap::new();
    for size in 1..=20 {
        weights.insert(queue.submit(size, traits([("mode", "preview".into())])), size);
        queue.submit(100, traits([("mode", "normal".into())]));
    }
    let preview = Strategy::select_only("mode", "preview", Strategy::Random);
    assert_in_proportion(&draw(&mut queue, &preview), &weights);
}

#[test]
fn random_is_in_proportion_over_the_values_that_limits_leave() {
    let mut queue = Queue::new(42);
    let mut weights = BTreeMap::new();
    for (host, size) in [("busy", 400), ("big", 300), ("small", 30), ("tiny", 3)] {
        for user in 1..=3 {
            let size = size * user;
            let submission =
                queue.submit(size, traits([("host", host.into()), ("user", (user as i64).into())]));
            weights.insert(submission, if host == "busy" { 0 } else { size });
        }
    }
    weights.insert(queue.submit(50, traits([("user", 2.into())])), 50);
    weights.retain(|_, size| *size > 0);
    queue.take(2, &Strategy::select_only("host", "busy", Strategy::OldestFirst));
    let strategy = Strategy::Random.max_simultaneous("host", 2).max_simultaneous("user", 1_000);
    assert_in_proportion(&draw(&mut queue, &strategy), &weights);
}

/// The limit's field has fewer values than the turn's, so that each tenant stands in several places of the view.
#[test]
fn random_within_a_turn_is_in_proportion_over_the_hosts_of_the_tenant() {
    let mut queue = Queue::new(42);
    let mut of_tenant: BTreeMap<i64, BTreeMap<SubmissionId, u64>> = BTreeMap::new();
    for tenant in 0..5 {
        for (host, size) in ["one", "two", "three"].into_iter().zip([10, 40, 150]) {
            for part in 1..=2 {
                let both = traits([("host", host.into()), ("tenant", tenant.into())]);
                let submission = queue.submit(size * part, both);
                of_tenant.entry(tenant).or_default().insert(submission, size * part);
            }
        }
    }
    let strategy = Strategy::fair_then("tenant", Strategy::Random).max_simultaneous("host", 1_000);
    let seen = draw(&mut queue, &strategy);
    for weights in of_tenant.values() {
        let of_one: BTreeMap<_, _> =
            seen.iter().filter(|it| weights.contains_key(it.0)).map(|(id, count)| (*id, *count)).collect();
        assert_eq!(of_one.values().sum::<u64>(), DRAWS / 5, "tenants take turns");
        assert_in_proportion(&of_one, weights);
    }
}

#[test]
fn random_within_a_preference_within_a_turn_is_in_proportion_too() {
    let mut queue = Queue::new(42);
    let mut weights = BTreeMap::new();
    for (host, size) in [("busy", 500), ("calm", 30), ("idle", 90)] {
        for part in 1..=2 {
            let both = traits([("host", host.into()), ("tenant", "a".into())]);
            let submission = queue.submit(size * part, both);
            weights.insert(submission, if host == "busy" { 0 } else { size * part });
        }
    }
    weights.retain(|_, size| *size > 0);
    queue.take(1, &Strategy::select_only("host", "busy", Strategy::OldestFirst));
    let strategy = Strategy::fair_then("tenant", Strategy::Random.prefer_distinct("host", 1));
    assert_in_proportion(&draw(&mut queue, &strategy), &weights);
}

#[test]
fn a_chunk_that_is_tried_again_is_the_last_of_its_submission_by_chance_too() {
    for seed in 0..20 {
        let mut queue = Queue::new(seed);
        queue.submit(30, traits([("company", "a".into())]));
        let retried = queue.submit(30, traits([("company", "b".into())]));
        let plan = queue.plan(&Strategy::select_only("company", "b", Strategy::Random));
        let (name, token) = queue.reserve(ANNA, 1, plan)[0];
        queue.fail(name, token.attempt, 100);
        queue.wait_ms(100);
        let plan = queue.plan(&Strategy::Random);
        let given = queue.reserve(ANNA, 60, plan);
        let last = given.iter().rfind(|it| it.0.submission == retried);
        assert_eq!((given.len(), last.map(|it| it.0)), (60, Some(name)));
    }
}
