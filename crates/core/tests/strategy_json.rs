//! Strategies as programs write them: in JSON.

use serde_json::json;
use std::collections::BTreeMap;
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::MetaValue;

fn boxed(strategy: Strategy) -> Box<Strategy> {
    Box::new(strategy)
}

#[test]
fn every_strategy_has_one_form_in_json_and_comes_back_from_it() {
    let select = |value, json: serde_json::Value| {
        let strategy = Strategy::SelectOnly { field: "mode".into(), value, inner: boxed(Strategy::Random) };
        (strategy, json!({"SelectOnly": {"field": "mode", "value": json, "inner": "Random"}}))
    };
    let field = || "tenant".to_string();
    let forms = [
        (Strategy::Random, json!("Random")),
        (Strategy::OldestFirst, json!("OldestFirst")),
        (Strategy::NewestFirst, json!("NewestFirst")),
        (Strategy::custom_priority(), json!("CustomPriority")),
        (Strategy::custom_priority().aging_ms(60_000), json!({"CustomPriority": {"aging_ms": 60_000}})),
        select(MetaValue::Text("preview".into()), json!("preview")),
        select(MetaValue::Integer(-7), json!(-7)),
        select(MetaValue::Bool(true), json!(true)),
        (
            Strategy::PreferDistinct {
                field: field(),
                max: Max::Count(10),
                inner: boxed(Strategy::NewestFirst),
            },
            json!({"PreferDistinct": {"field": "tenant", "max": 10, "inner": "NewestFirst"}}),
        ),
        (
            Strategy::MaxSimultaneous {
                field: field(),
                max: Max::Percent(25),
                inner: boxed(Strategy::Random),
            },
            json!({"MaxSimultaneous": {"field": "tenant", "max": "25%", "inner": "Random"}}),
        ),
        (
            Strategy::OrElse { first: boxed(Strategy::custom_priority()), fallback: boxed(Strategy::Random) },
            json!({"OrElse": {"first": "CustomPriority", "fallback": "Random"}}),
        ),
        (
            Strategy::Fair {
                field: field(),
                weights: BTreeMap::from([("acme".into(), 3)]),
                inner: boxed(Strategy::Random),
            },
            json!({"Fair": {"field": "tenant", "weights": {"acme": 3}, "inner": "Random"}}),
        ),
        (Strategy::Lane { name: "mail".into() }, json!({"Lane": {"name": "mail"}})),
    ];
    for (strategy, form) in forms {
        assert_eq!(serde_json::to_value(&strategy).unwrap(), form);
        assert_eq!(serde_json::from_value::<Strategy>(form.clone()).unwrap(), strategy);
        assert_eq!(serde_json::from_str::<Strategy>(&form.to_string()).unwrap(), strategy);
        let name = form.as_str().or_else(|| form.as_object()?.keys().next().map(String::as_str));
        assert_eq!(Some(strategy.name()), name);
    }
}

#[test]
fn fair_weighs_all_alike_and_takes_the_oldest_first_if_nothing_else_is_said() {
    let fair: Strategy = serde_json::from_value(json!({"Fair": {"field": "tenant"}})).unwrap();
    let inner = boxed(Strategy::OldestFirst);
    assert_eq!(fair, Strategy::Fair { field: "tenant".into(), weights: BTreeMap::new(), inner });
}

#[test]
fn what_is_no_strategy_is_refused() {
    for form in [
        json!("random"),
        json!("Fastest"),
        json!(null),
        json!(7),
        json!([]),
        json!({}),
        json!({"Random": {}}),
        json!({"Lane": {}}),
        json!({"Lane": {"name": "mail", "nmae": "mail"}}),
        json!({"Lane": {"name": "a"}, "Random": null}),
        json!({"SelectOnly": {"field": "mode", "value": "x"}}),
        json!({"SelectOnly": {"field": "mode", "inner": "Random"}}),
        json!({"SelectOnly": {"field": "mode", "value": "x", "inner": "Random", "also": 1}}),
        json!({"SelectOnly": {"field": "mode", "value": 1.5, "inner": "Random"}}),
        json!({"SelectOnly": {"field": "mode", "value": null, "inner": "Random"}}),
        json!({"SelectOnly": {"field": "mode", "value": ["x"], "inner": "Random"}}),
        json!({"SelectOnly": {"field": "mode", "value": 9_223_372_036_854_775_808_u64, "inner": "Random"}}),
        json!({"PreferDistinct": {"field": "f", "max": 1, "inner": "Random", "hard": true}}),
        json!({"MaxSimultaneous": {"field": "f", "max": 1, "inner": {"Random": 1}}}),
        json!({"OrElse": {"first": "Random"}}),
        json!({"OrElse": {"first": "Random", "fallback": "Random", "else": "Random"}}),
        json!({"Fair": {"field": "tenant", "wieghts": {}}}),
        json!({"Fair": {"field": "tenant", "weights": {"acme": -1}}}),
        json!({"CustomPriority": {"aging_ms": -1}}),
        json!({"CustomPriority": {"aging": 1}}),
        json!("Fair"),
        json!(""),
        json!("{\"Fair\": {\"field\": \"tenant\"}}"),
    ] {
        assert!(serde_json::from_value::<Strategy>(form.clone()).is_err(), "{form}");
    }
}

#[test]
fn max_is_a_positive_number_or_a_percentage() {
    for (form, max) in [
        (json!(1), Max::Count(1)),
        (json!(10), Max::Count(10)),
        (json!(u32::MAX), Max::Count(u32::MAX)),
        (json!("1%"), Max::Percent(1)),
        (json!("25%"), Max::Percent(25)),
        (json!("100%"), Max::Percent(100)),
    ] {
        assert_eq!(serde_json::from_value::<Max>(form.clone()).unwrap(), max);
        assert_eq!(serde_json::to_value(max).unwrap(), form);
    }
    for form in [
        json!(0),
        json!("0%"),
        json!("101%"),
        json!("+25%"),
        json!("025%"),
        json!("00%"),
        json!("256%"),
        json!("-1%"),
        json!(-1),
        json!(1.5),
        json!(4_294_967_296_u64),
        json!("10"),
        json!("%"),
        json!("2 5%"),
        json!("25%%"),
        json!(""),
        json!(null),
        json!([10]),
        json!({"Count": 10}),
    ] {
        let refused = serde_json::from_value::<Max>(form.clone()).expect_err(&form.to_string());
        assert_eq!(
            refused.to_string(),
            "`max` is a positive number, or a percentage such as \"25%\"",
            "{form}"
        );
    }
}

#[test]
fn a_text_in_json_is_the_text_form_also_within_an_object() {
    let fair = Strategy::fair("company_id");
    for (form, strategy) in [
        (json!("Random"), Strategy::Random),
        (json!("Fair(company_id)"), fair.clone()),
        (
            json!("SelectOnly(mode=\"7\", OldestFirst)"),
            Strategy::select_only("mode", "7", Strategy::OldestFirst),
        ),
        (
            json!({"OrElse": {"first": "SelectOnly(mode=7)", "fallback": {"Fair": {"field": "company_id"}}}}),
            Strategy::select_only("mode", 7, Strategy::Random).or_else(fair),
        ),
    ] {
        assert_eq!(serde_json::from_value::<Strategy>(form.clone()).unwrap(), strategy);
        assert_eq!(serde_json::from_str::<Strategy>(&form.to_string()).unwrap(), strategy);
    }
}

#[test]
fn settings_that_say_nothing_are_as_good_as_none() {
    for form in [
        json!({"CustomPriority": null}),
        json!({"CustomPriority": {}}),
        json!({"CustomPriority": {"aging_ms": null}}),
    ] {
        assert_eq!(serde_json::from_value::<Strategy>(form).unwrap(), Strategy::custom_priority());
    }
    assert_eq!(serde_json::from_value::<Strategy>(json!({"Random": null})).unwrap(), Strategy::Random);
}

#[test]
fn mistakes_in_json_are_sentences_on_one_line() {
    for (form, sentence) in [
        (json!("Randm"), "`Randm` is no strategy; did you mean Random? (at character 1 of `Randm`)"),
        (
            json!("MaxSimultaneous(company_id)"),
            "expected `,` and a limit such as 10 or 25% after the field \
             (at character 27 of `MaxSimultaneous(company_id)`)",
        ),
        (json!("Fair(\n)"), "expected a metadata field, such as company_id (at character 7 of `)`)"),
        (json!({"random": {}}), "`random` is no strategy; did you mean Random?"),
        (json!({"Random": {}}), "Random has no settings; write it as the text \"Random\""),
        (
            json!({}),
            "an empty object is no strategy; expected a strategy: a text such as \"Fair(company_id)\", \
             or an object of a name and its settings",
        ),
        (
            json!({"Fair": {"field": "a"}, "Lane": {"name": "a"}}),
            "a strategy is an object of one name; combine several with OrElse",
        ),
        (
            json!(7),
            "invalid type: integer `7`, expected a strategy: a text such as \"Fair(company_id)\", \
             or an object of a name and its settings",
        ),
        (
            json!({"CustomPriority": 7}),
            "invalid type: integer `7`, expected the settings of CustomPriority: {\"aging_ms\": 60000}",
        ),
        (json!({"OrElse": {"first": "Random"}}), "missing field `fallback`"),
        (
            json!({"MaxSimultaneous": {"field": "a", "max": "025%", "inner": "Random"}}),
            "`max` is a positive number, or a percentage such as \"25%\"",
        ),
    ] {
        assert_eq!(serde_json::from_value::<Strategy>(form).unwrap_err().to_string(), sentence);
    }
}

/// The reader of JSON stops at 128 levels, long before the stack does; also where a value is looked at before its kind
/// is known.
#[test]
fn hostile_nesting_is_refused_without_running_out_of_stack() {
    let deep = 100_000;
    let hostile = [
        r#"{"SelectOnly":{"field":"a","value":1,"inner":"#.repeat(deep),
        r#"{"OrElse":{"first":"#.repeat(deep),
        r#"{"Fair":{"inner":"#.repeat(deep),
        format!(r#"{{"SelectOnly":{{"field":"a","inner":"Random","value":{}"#, "[".repeat(deep)),
        format!(r#"{{"MaxSimultaneous":{{"field":"a","inner":"Random","max":{}"#, r#"{"a":"#.repeat(deep)),
        "[".repeat(deep),
    ];
    for text in hostile {
        assert!(serde_json::from_str::<Strategy>(&text).is_err(), "{}…", &text[..40]);
    }
    let text = format!("\"{}\"", "OrElse(".repeat(deep));
    assert!(serde_json::from_str::<Strategy>(&text).is_err());
    let mut whole = r#"{"SelectOnly":{"field":"a","value":1,"inner":"#.repeat(deep);
    whole.push_str("\"Random\"");
    whole.push_str(&"}}".repeat(deep));
    assert!(serde_json::from_str::<Strategy>(&whole).is_err());
}
