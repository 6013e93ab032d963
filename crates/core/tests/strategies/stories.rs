//! Stories of strategies: what each block does for whoever asks, told once from beginning to end.

use crate::queue::{Queue, company, traits};
use std::collections::BTreeSet;
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::Traits;
use windlass_core::batch::views::PlanId;
use windlass_core::ids::SubmissionId;
use windlass_core::limits::{STRATEGIES_IN_USE_MAX, STRATEGY_IDLE_MS_MAX, WIDE_VIEWS_MAX};

const ANNA: SessionId = SessionId(1);
const BERT: Holder = Holder::Session(SessionId(2));

fn mode(name: &str) -> Traits {
    traits([("mode", name.into())])
}

fn at_most(max: u32) -> Strategy {
    Strategy::OldestFirst.max_simultaneous("company", max)
}

fn woken(queue: &mut Queue) -> BTreeSet<PlanId> {
    queue.reserver.ready_mut().take_woken()
}

#[test]
fn a_soft_limit_prefers_others_and_a_hard_limit_gives_nothing_instead() {
    for (strategy, last) in [
        (Strategy::OldestFirst.prefer_distinct("company", 1), 3),
        (Strategy::OldestFirst.max_simultaneous("company", 1), 0),
    ] {
        let mut queue = Queue::new(1);
        let [big, small] = [("a", 4), ("b", 1)].map(|(name, chunks)| queue.submit(chunks, company(name)));
        assert_eq!(queue.take(1, &strategy), [big], "{strategy}");
        assert_eq!(queue.take(1, &strategy), [small], "{strategy}: the other company comes first now");
        assert_eq!(queue.take(9, &strategy), vec![big; last], "{strategy}: both are at their limit");
        queue.audit();
    }
}

#[test]
fn a_hard_limit_holds_within_one_reserve_however_much_it_asks_for() {
    for inner in
        [Strategy::Random, Strategy::OldestFirst, Strategy::fair("company"), Strategy::custom_priority()]
    {
        let mut queue = Queue::new(1);
        queue.submit(40, company("a"));
        queue.submit(40, company("a"));
        let strategy = inner.max_simultaneous("company", 10);
        assert_eq!(queue.take(100, &strategy).len(), 10, "{strategy}");
        assert_eq!(queue.take(100, &strategy).len(), 0, "{strategy}");
        let without = queue.submit(40, Traits::default());
        assert_eq!(queue.take(100, &strategy), [without; 40], "those without the field are not limited");
        queue.audit();
    }
}

#[test]
fn whatever_ends_a_reservation_makes_room_under_its_limit() {
    type Ending = fn(&mut Queue);
    let endings: [(&str, Ending); 6] = [
        ("completed", |queue| {
            let (name, _) = queue.out()[0];
            queue.complete(name);
        }),
        ("failed", |queue| {
            let (name, token) = queue.out()[0];
            queue.fail(name, token.attempt, 60_000);
        }),
        ("released", |queue| {
            let (name, token) = queue.out()[0];
            queue.release(name, token);
        }),
        ("lost with its session", |queue| queue.lose_session(ANNA)),
        ("past its deadline", |queue| {
            let (name, token) = queue.out()[0];
            queue.extend(name, token, 500);
            queue.wait_ms(500);
        }),
        ("cancelled with its submission", |queue| queue.cancel(queue.out()[0].0.submission)),
    ];
    for (ending, end) in endings {
        let mut queue = Queue::new(1);
        queue.submit(2, company("a"));
        queue.submit(2, company("a"));
        assert_eq!(queue.take(9, &at_most(1)).len(), 1, "{ending}");
        assert_eq!(queue.take(9, &at_most(1)).len(), 0, "{ending}");
        end(&mut queue);
        queue.audit();
        assert_eq!(queue.take(9, &at_most(1)).len(), 1, "{ending}");
        assert_eq!(queue.take(9, &at_most(1)).len(), 0, "{ending}");
    }
}

#[test]
fn chunks_that_are_out_count_for_what_is_said_of_their_submission_now() {
    let mut queue = Queue::new(1);
    let [first, second] = [(); 2].map(|()| queue.submit(2, company("a")));
    let other = queue.submit(3, company("b"));
    assert_eq!(queue.take(1, &at_most(1)), [first]);
    queue.change(first, company("b"));
    queue.audit();
    assert_eq!(queue.take(9, &at_most(1)), [second], "company a has nothing out any more, and b has one");
    assert_eq!(queue.take(9, &at_most(2)), [first, second], "one more of each");
    queue.change(first, Traits::default());
    assert_eq!(queue.take(9, &at_most(2)), [other, other], "what has no company counts for none");
    queue.audit();
}

#[test]
fn work_that_comes_back_after_a_change_of_leaders_counts_under_its_limit() {
    let mut queue = Queue::new(1);
    queue.submit(5, company("a"));
    queue.take(2, &at_most(2));
    let out = queue.out();
    queue.change_leader(2);
    for (name, token) in out {
        queue.reassert(ANNA, name, token);
    }
    assert_eq!(queue.take(9, &at_most(2)), []);
    assert_eq!(queue.take(9, &at_most(3)).len(), 1);
    queue.audit();
}

#[test]
fn while_work_of_an_earlier_leader_may_be_under_way_hard_limits_let_out_only_what_they_do_not_limit() {
    let mut queue = Queue::new(1);
    let limited = queue.submit(2, company("a"));
    let free = queue.submit(2, mode("preview"));
    queue.set_room(1, true);
    assert_eq!(queue.take(9, &at_most(5)), [free, free]);
    let soft = Strategy::OldestFirst.prefer_distinct("company", 5);
    assert_eq!(queue.take(1, &soft), [limited], "a soft limit holds nothing back");
    queue.audit();
    let plan = queue.plan(&at_most(5));
    woken(&mut queue);
    queue.set_room(1, false);
    assert_eq!(woken(&mut queue), BTreeSet::from([plan]));
    assert_eq!(queue.take(9, &at_most(5)), [limited]);
}

#[test]
fn previews_go_first_and_normal_work_goes_on_when_there_are_none() {
    let mut queue = Queue::new(1);
    let strategy = Strategy::select_only("mode", "preview", Strategy::Random).or_else(Strategy::select_only(
        "mode",
        "normal",
        Strategy::Random,
    ));
    let normal = queue.submit(3, mode("normal"));
    queue.submit(3, mode("dream"));
    assert_eq!(queue.take(1, &strategy), [normal]);
    let preview = queue.submit(2, mode("preview"));
    assert_eq!(queue.take(9, &strategy), [normal, normal, preview, preview], "as one answer, by submission");
    assert_eq!(queue.take(9, &strategy), [], "nobody asked for dreams");
}

#[test]
fn a_percentage_follows_the_pool_as_it_grows_and_shrinks() {
    let mut queue = Queue::new(1);
    queue.submit(100, company("a"));
    let strategy = Strategy::Random.max_simultaneous("company", Max::percent(25));
    assert_eq!(queue.take(99, &strategy).len(), 1, "one goes out even before anybody is connected");
    for (consumers, more) in [(4, 0), (5, 1), (40, 8), (8, 0), (41, 1)] {
        queue.set_room(consumers, false);
        assert_eq!(queue.take(99, &strategy).len(), more, "with {consumers} consumers");
        queue.audit();
    }
}

#[test]
fn exactly_the_strategies_that_gave_nothing_and_give_something_now_are_woken() {
    let mut queue = Queue::new(1);
    let preview = queue.plan(&Strategy::select_only("mode", "preview", Strategy::Random));
    let limited = queue.plan(&Strategy::Random.max_simultaneous("company", 1));
    let all = queue.plan(&Strategy::OldestFirst);
    assert_eq!(woken(&mut queue), BTreeSet::new(), "there is nothing to do");

    queue.submit(3, company("a"));
    assert_eq!(woken(&mut queue), BTreeSet::from([limited, all]));
    queue.submit(3, company("a"));
    assert_eq!(woken(&mut queue), BTreeSet::new(), "they had something to do before");

    let (name, token) = queue.reserve(BERT, 1, limited)[0];
    assert_eq!(queue.reserve(BERT, 1, limited), []);
    queue.submit(1, company("a"));
    queue.extend(name, token, 1_000);
    assert_eq!(woken(&mut queue), BTreeSet::new(), "the company is still at its limit");
    queue.complete(name);
    assert_eq!(woken(&mut queue), BTreeSet::from([limited]));

    queue.reserve(BERT, 99, all);
    let paused = queue.submit(1, Traits { paused: true, ..mode("preview") });
    assert_eq!(woken(&mut queue), BTreeSet::new());
    queue.change(paused, mode("preview"));
    assert_eq!(woken(&mut queue), BTreeSet::from([preview, limited, all]));
}

#[test]
fn whoever_waits_for_a_value_that_nobody_has_is_woken_when_somebody_has_it() {
    let mut queue = Queue::new(1);
    queue.submit(1, company("a"));
    let strategy =
        Strategy::select_only("planet", "mars", Strategy::fair("crater").prefer_distinct("rover", 1));
    assert_eq!(queue.take(1, &strategy), []);
    let plan = queue.plan(&strategy);
    woken(&mut queue);
    let found = queue.submit(1, traits([("planet", "mars".into())]));
    assert_eq!(woken(&mut queue), BTreeSet::from([plan]));
    assert_eq!(queue.take(9, &strategy), [found]);
    queue.audit();
}

#[test]
fn more_strategies_than_may_be_in_use_are_refused_with_what_to_do_until_some_are_forgotten() {
    let mut queue = Queue::new(1);
    let selecting = |value: usize| Strategy::select_only("n", value as i64, Strategy::Random);
    for value in 0..STRATEGIES_IN_USE_MAX {
        queue.reserver.plan(&selecting(value), queue.now).unwrap();
    }
    let refused = queue.reserver.plan(&selecting(STRATEGIES_IN_USE_MAX), queue.now).unwrap_err();
    assert_eq!(
        refused,
        "too many different strategies are in use: at most 1024, and 64 parts of them that look at every submission; let \
         consumers share strategies, or wait a minute until unused ones are forgotten"
    );
    assert!(queue.reserver.plan(&selecting(0), queue.now).is_ok(), "one that is in use goes on");
    queue.wait_ms(STRATEGY_IDLE_MS_MAX);
    queue.reserver.plan(&selecting(1), queue.now).unwrap();
    let waited_for = queue.reserver.plan(&selecting(2), queue.now).unwrap();
    queue.wait_ms(STRATEGY_IDLE_MS_MAX - 1);
    queue.reserver.ready_mut().sweep(queue.now, |plan| plan == waited_for);
    assert_eq!(queue.reserver.ready().views_len().0, 2, "the others are forgotten with their views");
    assert!(queue.reserver.plan(&selecting(STRATEGIES_IN_USE_MAX), queue.now).is_ok());
    queue.audit();
}

#[test]
fn more_parts_that_look_at_every_submission_than_may_be_are_refused_and_others_are_served() {
    let mut queue = Queue::new(1);
    let mut wide = (1..).map(|max| Strategy::Random.max_simultaneous("company", max));
    for strategy in wide.by_ref().take(WIDE_VIEWS_MAX) {
        queue.reserver.plan(&strategy, queue.now).unwrap();
    }
    let refused = queue.reserver.plan(&wide.next().unwrap(), queue.now).unwrap_err();
    assert!(refused.starts_with("too many different strategies are in use"), "{refused}");
    let narrow = Strategy::select_only("mode", "preview", wide.next().unwrap());
    assert!(queue.reserver.plan(&narrow, queue.now).is_ok());
    let of_known_parts = Strategy::Random.max_simultaneous("company", 1).or_else(narrow);
    assert!(queue.reserver.plan(&of_known_parts, queue.now).is_ok());
    queue.audit();
}

#[test]
fn a_hundred_thousand_values_of_a_field_are_served_each_once_a_round() {
    const VALUES: i64 = 100_000;
    let mut queue = Queue::new(1);
    let plan = queue.plan(&Strategy::fair("user").max_simultaneous("user", 1));
    for user in 0..VALUES {
        queue.submit(2, traits([("user", user.into())]));
    }
    let mut served: BTreeSet<SubmissionId> = BTreeSet::new();
    for _ in 0..10 {
        let given = queue.reserve(BERT, 10_000, plan);
        served.extend(given.iter().map(|(name, _)| name.submission));
        assert_eq!(given.len(), 10_000);
    }
    assert_eq!(served.len(), 100_000, "nobody twice before everybody once");
    assert_eq!(queue.reserve(BERT, 1, plan), [], "everybody is at the limit");
    let (name, _) = queue.out()[77_777];
    queue.complete(name);
    let again = queue.reserve(BERT, 9, plan);
    assert_eq!(again.iter().map(|it| it.0.submission).collect::<Vec<_>>(), [name.submission]);
    queue.audit();
}

/// A limit on the inner field made that field the outer turn.
#[test]
fn a_limit_around_turns_does_not_change_their_order() {
    let mut queue = Queue::new(1);
    let mut of_company_b = None;
    for (company, users) in [("a", 1..=9), ("b", 10..=10)] {
        for user in users {
            let both = traits([("company", company.into()), ("user", i64::from(user).into())]);
            of_company_b = Some(queue.submit(20, both));
        }
    }
    let strategy = Strategy::fair_then("company", Strategy::fair("user"))
        .max_simultaneous("user", 50)
        .prefer_distinct("user", 50);
    let taken = queue.take(20, &strategy);
    assert_eq!(
        taken.iter().filter(|it| Some(**it) == of_company_b).count(),
        10,
        "company b has every other turn"
    );
}

#[test]
fn strategies_with_the_same_turns_share_them() {
    let mut queue = Queue::new(1);
    let [first, second] =
        ["a", "b"].map(|name| queue.submit(9, traits([("company", name.into()), ("mode", "x".into())])));
    let (plain, picky) =
        (Strategy::fair("company"), Strategy::select_only("mode", "x", Strategy::fair("company")));
    assert_eq!(queue.take(1, &plain), [first]);
    assert_eq!(queue.take(1, &picky), [second]);
    assert_eq!(queue.take(2, &picky), [first, second]);
    let weighted = Strategy::fair("company").weight("a", 2);
    assert_eq!(queue.take(1, &weighted), [first], "other weights are other turns");
    // A turn between companies inside a company's turn is none, also if there is a choice in between.
    let nested = Strategy::fair_then("company", Strategy::fair("company").prefer_distinct("mode", 1));
    assert_eq!([queue.take(1, &nested), queue.take(1, &plain)].concat(), [first, second]);
    queue.audit();
}

/// Where a priority times its aging did not fit 64 bits, all were alike.
#[test]
fn a_deadline_in_milliseconds_is_as_good_a_priority_as_any_however_slowly_it_ages() {
    const DAY_MS: u64 = 24 * 60 * 60_000;
    const DEADLINE: i64 = -1_750_000_000_000;
    let mut queue = Queue::new(1);
    let submissions = [0, 2, 1, 3]
        .map(|sooner| queue.submit(1, Traits { priority: DEADLINE + sooner, ..Traits::default() }));
    queue.wait_ms(DAY_MS);
    let later = queue.submit(1, Traits { priority: DEADLINE + 2, ..Traits::default() });
    let strategy = Strategy::custom_priority().aging_ms(DAY_MS);
    let order: Vec<_> = (0..5).flat_map(|_| queue.take(1, &strategy)).collect();
    let [least, middle, low, most] = submissions;
    assert_eq!(
        order,
        [most, middle, low, later, least],
        "a day is worth one, and among equals the older is first"
    );
}
