//! Strategies as Rust programs build them, and what is refused with a sentence.

use std::collections::BTreeMap;
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::{MetaValue, Submit};
use windlass_core::limits::{
    AGING_MS_MAX, FAIR_WEIGHT_MAX, FAIR_WEIGHTS_MAX, STRATEGY_DEPTH_MAX, STRATEGY_PARTS_MAX,
};

fn only(field: &str, value: impl Into<MetaValue>, inner: Strategy) -> Strategy {
    Strategy::select_only(field, value, inner)
}

/// `levels` strategies, one in the other.
fn nested(levels: usize) -> Strategy {
    (1..levels).fold(Strategy::Random, |inner, _| only("mode", true, inner))
}

/// A tree of choices with `2^levels - 1` parts.
fn branched(levels: usize) -> Strategy {
    (1..levels).fold(Strategy::Random, |half, _| half.clone().or_else(half))
}

#[test]
fn builders_make_the_same_trees_as_writing_them_out() {
    let boxed = |strategy| Box::new(strategy);
    let field = || "company_id".to_owned();
    let mode = || "mode".to_owned();
    for (built, written) in [
        (Strategy::custom_priority(), Strategy::CustomPriority { aging_ms: None }),
        (Strategy::custom_priority().aging_ms(5), Strategy::CustomPriority { aging_ms: Some(5) }),
        (
            Strategy::select_only("mode", "preview", Strategy::Random),
            Strategy::SelectOnly {
                field: mode(),
                value: MetaValue::Text("preview".into()),
                inner: boxed(Strategy::Random),
            },
        ),
        (
            Strategy::select_only(mode(), -7, Strategy::Random).prefer_distinct("company_id", 2),
            Strategy::PreferDistinct {
                field: field(),
                max: Max::Count(2),
                inner: boxed(Strategy::SelectOnly {
                    field: mode(),
                    value: MetaValue::Integer(-7),
                    inner: boxed(Strategy::Random),
                }),
            },
        ),
        (
            Strategy::NewestFirst.max_simultaneous("company_id", Max::percent(25)),
            Strategy::MaxSimultaneous {
                field: field(),
                max: Max::Percent(25),
                inner: boxed(Strategy::NewestFirst),
            },
        ),
        (
            Strategy::fair("company_id").weight("acme", 3).weight(7, 2).or_else(Strategy::lane("mail")),
            Strategy::OrElse {
                first: boxed(Strategy::Fair {
                    field: field(),
                    weights: BTreeMap::from([("acme".into(), 3), ("7".into(), 2)]),
                    inner: boxed(Strategy::OldestFirst),
                }),
                fallback: boxed(Strategy::Lane { name: "mail".into() }),
            },
        ),
        (
            Strategy::fair_then("company_id", Strategy::Random),
            Strategy::Fair { field: field(), weights: BTreeMap::new(), inner: boxed(Strategy::Random) },
        ),
    ] {
        assert_eq!(built, written);
    }
    assert_eq!(MetaValue::from(true), MetaValue::Bool(true));
    assert_eq!(MetaValue::from(String::from("a")), MetaValue::from("a"));
}

#[test]
#[should_panic(expected = "`weight` belongs right behind `fair`, not behind OrElse")]
fn a_weight_of_what_is_not_fair_is_a_mistake_in_the_program() {
    Strategy::fair("company_id").or_else(Strategy::Random).weight("acme", 3);
}

#[test]
#[should_panic(expected = "`aging_ms` belongs right behind `custom_priority`, not behind Random")]
fn aging_of_what_has_no_priority_is_a_mistake_in_the_program() {
    Strategy::Random.aging_ms(60_000);
}

#[test]
fn a_strategy_that_is_too_deep_or_has_too_many_parts_is_refused_with_a_sentence() {
    let too_large = Some(format!(
        "a strategy nests at most {STRATEGY_DEPTH_MAX} deep and has at most {STRATEGY_PARTS_MAX} parts; make it simpler"
    ));
    assert_eq!(nested(STRATEGY_DEPTH_MAX + 1).problem(), too_large);
    assert_eq!(nested(STRATEGY_DEPTH_MAX).problem(), None);
    assert_eq!(branched(7).problem(), too_large, "127 parts");
    assert_eq!(branched(6).problem(), None, "63 parts");
}

#[test]
fn every_block_is_served() {
    for strategy in [
        Strategy::Random,
        Strategy::OldestFirst,
        Strategy::NewestFirst,
        Strategy::custom_priority(),
        Strategy::custom_priority().aging_ms(1),
        Strategy::custom_priority().aging_ms(AGING_MS_MAX),
        only("mode", "preview", Strategy::Random),
        Strategy::Random.prefer_distinct("company_id", 1),
        Strategy::Random.max_simultaneous("company_id", Max::percent(100)),
        Strategy::Random.or_else(Strategy::OldestFirst),
        Strategy::fair("company_id").weight("acme", 1).weight("beta", FAIR_WEIGHT_MAX),
        Strategy::lane("mail"),
        Strategy::Random.or_else(Strategy::lane("mail")),
        Strategy::lane("urgent").or_else(Strategy::Random.or_else(Strategy::lane("mail"))),
    ] {
        assert_eq!(strategy.problem(), None, "{strategy}");
    }
}

#[test]
fn a_lane_stands_alone_or_as_a_side_of_or_else_and_has_the_name_of_one() {
    let inside = |name: &str| {
        format!(
            "{name}: a lane has its own order and limits, so Lane stands alone or as a side of OrElse; take it out of {name}"
        )
    };
    let lane = || Strategy::lane("mail");
    for (strategy, name) in [
        (only("mode", "preview", lane()), "SelectOnly"),
        (lane().prefer_distinct("company_id", 1), "PreferDistinct"),
        (lane().max_simultaneous("company_id", Max::Count(1)), "MaxSimultaneous"),
        (Strategy::Random.or_else(only("mode", "preview", Strategy::Random.or_else(lane()))), "SelectOnly"),
    ] {
        assert_eq!(strategy.problem(), Some(inside(name)), "{strategy}");
    }
    let name = "Lane: a lane's name has 1 to 64 letters of a to z, A to Z, digits, `.`, `_` and `-`";
    for strategy in [Strategy::lane(""), Strategy::lane("two words"), Strategy::lane("x".repeat(65))] {
        assert_eq!(strategy.problem().as_deref(), Some(name), "{strategy}");
    }
}

#[test]
fn settings_out_of_their_limits_are_refused_with_a_sentence() {
    let field = "a metadata field's name has 1 to 64 letters, digits, `.`, `_` or `-`";
    let limit = "a limit is a number from 1 to 4294967295, or 1% to 100%";
    let weight = "a weight is a number from 1 to 1000000; values that are not named weigh 1";
    let aging = "aging is from 1ms to 365d; leave it out for priorities that never rise";
    let text = "no metadata value is longer than 256 bytes; choose by a shorter one";
    let many = "at most 1000 values have a weight; leave out those whose weight is 1";
    let weighted = |count: usize| {
        let weights = (0..count).map(|number| (number.to_string(), 1)).collect();
        Strategy::Fair { field: "a".into(), weights, inner: Box::new(Strategy::Random) }
    };
    assert_eq!(weighted(FAIR_WEIGHTS_MAX).problem(), None);
    for (strategy, block, sentence) in [
        (only("", 1, Strategy::Random), "SelectOnly", field),
        (only("a b", 1, Strategy::Random), "SelectOnly", field),
        (only(&"a".repeat(65), 1, Strategy::Random), "SelectOnly", field),
        (only("a", "x".repeat(257), Strategy::Random), "SelectOnly", text),
        (Strategy::Random.prefer_distinct("größe", 1), "PreferDistinct", field),
        (Strategy::Random.prefer_distinct("a", 0), "PreferDistinct", limit),
        (Strategy::Random.max_simultaneous("a", Max::percent(0)), "MaxSimultaneous", limit),
        (Strategy::Random.max_simultaneous("a", Max::percent(101)), "MaxSimultaneous", limit),
        (Strategy::fair("a\n"), "Fair", field),
        (Strategy::fair("a").weight("acme", 0), "Fair", weight),
        (Strategy::fair("a").weight("acme", FAIR_WEIGHT_MAX + 1), "Fair", weight),
        (Strategy::fair("a").weight("x".repeat(257), 1), "Fair", text),
        (weighted(FAIR_WEIGHTS_MAX + 1), "Fair", many),
        (Strategy::custom_priority().aging_ms(0), "CustomPriority", aging),
        (Strategy::custom_priority().aging_ms(AGING_MS_MAX + 1), "CustomPriority", aging),
    ] {
        let expected = Some(format!("{block}: {sentence}"));
        assert_eq!(strategy.problem(), expected, "{strategy}");
        let within = only("outer", 1, Strategy::Random.or_else(strategy)).prefer_distinct("outer", 1);
        assert_eq!(within.problem(), expected, "{within}");
    }
}

#[test]
fn strategies_and_submissions_agree_on_the_names_of_fields() {
    for field in (0..=255_u8).map(|byte| format!("a{}", char::from(byte))) {
        let mut submit = Submit::new(1);
        submit.metadata.insert(field.clone(), MetaValue::Bool(true));
        let (submission, strategy) = (submit.problem(), Strategy::fair(&field).problem());
        assert_eq!(submission.map(|sentence| format!("Fair: {sentence}")), strategy, "{field:?}");
    }
}

#[test]
fn a_strategy_that_can_never_match_is_refused_and_its_branch_named() {
    let impossible = || only("a", 1, only("b", true, only("a", 2, Strategy::Random)));
    let possible = || only("a", 1, only("b", true, only("a", 1, Strategy::Random)));
    let wants = "can never match, since SelectOnly wants a=1 and within it a=2; remove one of them";
    for (strategy, what, cure) in [
        (impossible(), "the strategy", ""),
        (impossible().max_simultaneous("a", 1).prefer_distinct("a", 1), "the strategy", ""),
        (Strategy::fair_then("a", impossible()), "the strategy", ""),
        (impossible().or_else(possible()), "the branch `first` of OrElse", ", or the branch"),
        (possible().or_else(impossible()), "the branch `fallback` of OrElse", ", or the branch"),
        (
            possible().or_else(impossible().or_else(possible())),
            "the branch `first` of `fallback` of OrElse",
            ", or the branch",
        ),
        (
            only("a", 1, Strategy::Random.or_else(only("a", 2, Strategy::Random))),
            "the branch `fallback` of OrElse",
            ", or the branch",
        ),
    ] {
        assert_eq!(strategy.problem(), Some(format!("{what} {wants}{cure}")), "{strategy}");
    }
    assert_eq!(
        only("a", 7, only("a", "7", Strategy::Random)).problem().as_deref(),
        Some(
            "the strategy can never match, since SelectOnly wants a=7 and within it a=\"7\"; remove one of them"
        ),
    );
    for strategy in [
        possible(),
        only("a", 1, Strategy::Random).or_else(only("a", 2, Strategy::Random)),
        only("c", 1, possible().or_else(only("a", 2, Strategy::Random))),
        only("a", 1, only("b", 2, Strategy::Random)),
    ] {
        assert_eq!(strategy.problem(), None, "{strategy}");
    }
}
