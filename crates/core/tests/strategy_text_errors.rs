//! What is wrong with a strategy's text: each mistake as a person sees it, with the caret under the place.

use windlass_core::batch::strategy::Strategy;
use windlass_core::limits::{STRATEGY_DEPTH_MAX, STRATEGY_TEXT_BYTES_MAX};

/// The message of a text that is refused.
fn refused(text: &str) -> String {
    text.parse::<Strategy>().expect_err(text).to_string()
}

/// Each row is a message as it is printed: the sentence, the text, the caret.
fn all_are_refused(messages: &[(&str, &str, &str)]) {
    for (sentence, text, caret) in messages {
        let error = text.parse::<Strategy>().expect_err(text);
        assert_eq!(error.to_string(), format!("{sentence}\n  {text}\n  {caret}"));
        let place = caret.chars().count() - 1;
        let byte = text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
        assert_eq!((error.sentence(), error.position()), (*sentence, byte), "{text}");
    }
}

const SERVED: &str = "Random, OldestFirst, NewestFirst, CustomPriority, SelectOnly, PreferDistinct, MaxSimultaneous, \
                      OrElse, Fair and Lane";

#[test]
fn a_misspelt_name_is_answered_with_the_nearest_or_with_those_that_are_served() {
    for (name, meant) in [
        ("Randm", "Random"),
        ("random", "Random"),
        ("Rnadom", "Random"),
        ("oldest-first", "OldestFirst"),
        ("oldest_first", "OldestFirst"),
        ("Oldest", "OldestFirst"),
        ("NewestFrist", "NewestFirst"),
        ("Priority", "CustomPriority"),
        ("SelectOny", "SelectOnly"),
        ("Select", "SelectOnly"),
        ("PreferDistict", "PreferDistinct"),
        ("MaxSimultanous", "MaxSimultaneous"),
        ("Orelse", "OrElse"),
        ("OrEls", "OrElse"),
        ("Far", "Fair"),
        ("Fairr", "Fair"),
        ("Lan", "Lane"),
    ] {
        assert_eq!(refused(name), format!("`{name}` is no strategy; did you mean {meant}?\n  {name}\n  ^"));
    }
    for name in ["Nope", "First", "Weights", "x"] {
        let within = format!("Fair(company_id, {name}(acme=3))");
        let sentence = format!("`{name}` is no strategy; there are {SERVED}");
        assert_eq!(refused(name), format!("{sentence}\n  {name}\n  ^"));
        assert_eq!(refused(&within), format!("{sentence}\n  {within}\n                   ^"));
    }
    let long = "Long".repeat(1_000);
    let begin = format!("`{}…` is no strategy; there are {SERVED}\n  Long", "Long".repeat(10));
    assert!(refused(&long).starts_with(&begin), "{}", refused(&long));
}

#[test]
fn what_is_missing_or_too_much_is_shown_at_its_place() {
    all_are_refused(&[
        ("expected a strategy, such as Random or Fair(company_id)", r#"{"Fair""#, r#"^"#),
        ("expected a strategy, such as Random or Fair(company_id)", "(", "^"),
        ("expected a strategy, such as Random or Fair(company_id)", r#""Random""#, r#"^"#),
        ("Random has no settings; leave out the parentheses", "Random()", "      ^"),
        (
            "expected nothing more after the strategy; combine several with OrElse",
            "Random Random",
            "       ^",
        ),
        ("this `)` closes nothing; remove it", "Random)", "      ^"),
        (
            "expected nothing more after the strategy; combine several with OrElse",
            "Random, Fair(a)",
            "      ^",
        ),
        (
            "expected `(` and what to select after SelectOnly, such as (mode=preview)",
            "SelectOnly",
            "          ^",
        ),
        ("expected a metadata field, such as company_id", "SelectOnly(", "           ^"),
        ("expected `=` and a value after the field", "SelectOnly(mode", "               ^"),
        ("expected `=` and a value after the field", "SelectOnly(mode preview)", "                ^"),
        (r#"expected a value, such as preview, 7 or "two words""#, "SelectOnly(mode=", "                ^"),
        (r#"expected a value, such as preview, 7 or "two words""#, "SelectOnly(mode=)", "                ^"),
        (
            "expected `,` and a strategy, or `)`, after the value",
            "SelectOnly(mode=preview",
            "                       ^",
        ),
        (
            "expected `,` and a strategy, or `)`, after the value",
            "SelectOnly(mode=two words)",
            "                    ^",
        ),
        ("expected a metadata field, such as company_id", "SelectOnly(=1)", "           ^"),
        (
            r#"this quote is not closed; close it with another `"`"#,
            r#"SelectOnly(mode="preview)"#,
            r#"                ^"#,
        ),
        (
            r#"expected `\"` or `\\`; nothing else goes with a backslash"#,
            r#"SelectOnly(mode="a\n")"#,
            r#"                  ^"#,
        ),
        (
            r#"expected `\"` or `\\`; nothing else goes with a backslash"#,
            r#"SelectOnly(mode="a\"#,
            r#"                  ^"#,
        ),
        (
            "expected a strategy, such as Random or Fair(company_id)",
            "SelectOnly(mode=preview,)",
            "                        ^",
        ),
        (
            "expected `)` after the strategy",
            "SelectOnly(mode=preview, Random, Random)",
            "                               ^",
        ),
        (
            "expected `)` after the strategy",
            "SelectOnly(mode=preview, Random",
            "                               ^",
        ),
        (
            "weights stand before the strategy, as in Fair(company_id, weights(acme=3), Random)",
            "Fair(company_id, Random, weights(acme=3))",
            "                         ^",
        ),
        (
            "expected `(`, a field and a limit after MaxSimultaneous, such as (company_id, 10)",
            "MaxSimultaneous",
            "               ^",
        ),
        (
            "expected `,` and a limit such as 10 or 25% after the field",
            "MaxSimultaneous(company_id)",
            "                          ^",
        ),
        (
            "expected a limit such as 10 or 25%",
            "MaxSimultaneous(company_id, Random)",
            "                            ^",
        ),
        (
            "expected a limit such as 10 or 25%",
            "PreferDistinct(company_id, +25%)",
            "                           ^",
        ),
        (
            "expected `,` and a strategy, or `)`, after the limit",
            "PreferDistinct(company_id, 25 %)",
            "                              ^",
        ),
        (
            "expected `,` and a strategy, or `)`, after the limit",
            "PreferDistinct(company_id, 10 Random)",
            "                              ^",
        ),
        ("expected `(` and two strategies after OrElse", "OrElse", "      ^"),
        ("expected `,` and a strategy to fall back on", "OrElse(Random)", "             ^"),
        (
            "expected `,` and a strategy, or `)`, after the strategy",
            "OrElse(Random, OldestFirst",
            "                          ^",
        ),
        (
            "expected `,` and a strategy, or `)`, after the strategy",
            "OrElse(Random, OldestFirst; NewestFirst)",
            "                          ^",
        ),
        ("expected a strategy, such as Random or Fair(company_id)", "OrElse(,)", "       ^"),
        ("expected `(` and a field after Fair, such as (company_id)", "Fair", "    ^"),
        ("expected a metadata field, such as company_id", "Fair()", "     ^"),
        (
            "expected `(` and the weights, such as (acme=3)",
            "Fair(company_id, weights)",
            "                        ^",
        ),
        (
            "expected a value and its weight, such as acme=3",
            "Fair(company_id, weights())",
            "                         ^",
        ),
        (
            "expected `=` and a weight after the value",
            "Fair(company_id, weights(acme))",
            "                             ^",
        ),
        (
            "expected `,` and another weight, or `)`",
            "Fair(company_id, weights(acme=3 beta=4))",
            "                                ^",
        ),
        (
            "expected `,` and a strategy, or `)`, after the weights",
            "Fair(company_id, weights(acme=3)",
            "                                ^",
        ),
        ("expected `aging=` and a time such as 10m", "CustomPriority()", "               ^"),
        ("expected `aging=` and a time such as 10m", "CustomPriority(10m)", "               ^"),
        ("expected `aging=` and a time such as 10m", "CustomPriority(aging)", "                    ^"),
        (
            "expected a time such as 10m, in ms, s, m, h or d",
            "CustomPriority(aging=10)",
            "                     ^",
        ),
        (
            "expected a time such as 10m, in ms, s, m, h or d",
            "CustomPriority(aging=10 m)",
            "                     ^",
        ),
        (
            "expected a time such as 10m, in ms, s, m, h or d",
            "CustomPriority(aging=010m)",
            "                     ^",
        ),
        ("expected `)` after the time", "CustomPriority(aging=10m, Random)", "                        ^"),
        ("expected `(` and the lane's name after Lane", "Lane", "    ^"),
        ("expected the lane's name", "Lane()", "     ^"),
        ("expected `)` after the lane's name", "Lane(a b)", "       ^"),
    ]);
}

#[test]
fn what_breaks_a_limit_is_shown_at_its_place() {
    all_are_refused(&[
        (
            r#"a text with `%` needs double quotes, such as "two words""#,
            "SelectOnly(mode=a%)",
            "                 ^",
        ),
        (
            r#"a text with `ü` needs double quotes, such as "two words""#,
            "SelectOnly(city=Zürich, Random)",
            "                 ^",
        ),
        (
            "a metadata field's name has 1 to 64 letters, digits, `.`, `_` or `-`",
            "SelectOnly(größe=1)",
            "             ^",
        ),
        (
            "a metadata field's name has 1 to 64 letters, digits, `.`, `_` or `-`",
            r#"SelectOnly("a b"=1)"#,
            r#"           ^"#,
        ),
        (
            "a limit is a number from 1 to 4294967295, or 1% to 100%",
            "PreferDistinct(company_id, 0)",
            "                           ^",
        ),
        (
            "a limit is a number from 1 to 4294967295, or 1% to 100%",
            "PreferDistinct(company_id, 101%)",
            "                           ^",
        ),
        (
            "a limit is a number from 1 to 4294967295, or 1% to 100%",
            "PreferDistinct(company_id, 025%)",
            "                           ^",
        ),
        (
            "a limit is a number from 1 to 4294967295, or 1% to 100%",
            "PreferDistinct(company_id, 4294967296)",
            "                           ^",
        ),
        (
            "a weight is a number from 1 to 1000000; values that are not named weigh 1",
            "Fair(company_id, weights(acme=0))",
            "                              ^",
        ),
        (
            "a weight is a number from 1 to 1000000; values that are not named weigh 1",
            "Fair(company_id, weights(acme=1000001))",
            "                              ^",
        ),
        (
            "a weight is a number from 1 to 1000000; values that are not named weigh 1",
            "Fair(company_id, weights(acme=three))",
            "                              ^",
        ),
        (
            "this value already has a weight; remove one of them",
            "Fair(company_id, weights(acme=3, acme=4))",
            "                                 ^",
        ),
        (
            "a metadata field's name has 1 to 64 letters, digits, `.`, `_` or `-`",
            "Fair(company_id; Random)",
            "               ^",
        ),
        (
            "aging is from 1ms to 365d; leave it out for priorities that never rise",
            "CustomPriority(aging=0s)",
            "                     ^",
        ),
        (
            "aging is from 1ms to 365d; leave it out for priorities that never rise",
            "CustomPriority(aging=366d)",
            "                     ^",
        ),
        (r#"a text with `/` needs double quotes, such as "two words""#, "Lane(a/b)", "      ^"),
    ]);
}

#[test]
fn an_empty_text_has_no_place_to_show() {
    for text in ["", "  ", "\n"] {
        assert_eq!(refused(text), "expected a strategy, such as Random or Fair(company_id)");
    }
}

#[test]
fn of_several_lines_the_one_with_the_mistake_is_shown_without_what_moves_the_cursor() {
    let expected = "expected `,` and weights or a strategy, or `)`, after the field";
    assert_eq!(
        refused("OrElse(\n  Random,\n\tFair(a b)\n)\n"),
        format!("{expected}\n   Fair(a b)\n          ^")
    );
    assert_eq!(
        refused("OrElse(SelectOnly(city=\"\u{1b}[2J\u{202e}\"),\r\n"),
        "expected a strategy, such as Random or Fair(company_id)\
         \n  OrElse(SelectOnly(city=\"\u{fffd}[2J\u{fffd}\"),\
         \n                                  ^"
    );
}

#[test]
fn of_a_long_line_a_hundred_characters_around_the_place_are_shown() {
    let select = |letters: usize| format!("SelectOnly(city=\"{}\", ", "é".repeat(letters));
    let misspelt = "`Randm` is no strategy; did you mean Random?";

    let late = format!("{}Randm)", select(120));
    let shown = format!("…{}\", Randm)", "é".repeat(90));
    assert_eq!(refused(&late), format!("{misspelt}\n  {shown}\n  {:94}^", ""));
    assert_eq!(shown.chars().count(), 100);

    let early = format!("OrElse(Randm, {}Random))", select(120));
    let shown = format!("OrElse(Randm, SelectOnly(city=\"{}…", "é".repeat(68));
    assert_eq!(refused(&early), format!("{misspelt}\n  {shown}\n  {:7}^", ""));
    assert_eq!(shown.chars().count(), 100);

    let amid = format!("OrElse({}Random), {}Randm), {}Random))", select(99), select(60), select(99));
    let shown = format!("…{}\", Randm), SelectOnly(city=\"{}…", "é".repeat(46), "é".repeat(24));
    assert_eq!(refused(&amid), format!("{misspelt}\n  {shown}\n  {:50}^", ""));
    assert_eq!(shown.chars().count(), 100);
}

#[test]
fn what_nests_too_deep_is_refused_where_it_does_whatever_follows() {
    let sentence = "a strategy nests at most 16 deep and has at most 64 parts; make it simpler";
    let place = |text: &str| {
        let error = text.parse::<Strategy>().expect_err(text);
        assert_eq!(error.sentence(), sentence);
        error.position()
    };
    let (open, blocks) = ("SelectOnly(a=1, ", 1_000);
    assert_eq!(place(&open.repeat(blocks)), STRATEGY_DEPTH_MAX * open.len());
    assert_eq!(place(&"OrElse(".repeat(blocks)), STRATEGY_DEPTH_MAX * "OrElse(".len());
    // Sixteen alternatives nest sixteen deep: the last two are the branches of the fifteenth OrElse.
    let alternatives = |count: usize| format!("OrElse({})", vec!["Random"; count].join(", "));
    assert_eq!(alternatives(16).parse::<Strategy>().unwrap().problem(), None);
    assert_eq!(place(&alternatives(17)), "OrElse(".len() + 15 * "Random, ".len());
    let deep_and_more = format!("OrElse(Random, {}Random{}, Random)", open.repeat(14), ")".repeat(14));
    assert_eq!(place(&deep_and_more), "OrElse(Random, ".len());
    // Eight pairs of pairs have 8 * 7 parts and the 7 OrElse between them; one more of these begins the ninth.
    let pairs = "OrElse(OrElse(Random, Random), OrElse(Random, Random))";
    let many = |count: usize| format!("OrElse({})", vec![pairs; count].join(", "));
    assert_eq!(many(8).parse::<Strategy>().unwrap().problem(), None);
    assert_eq!(place(&many(9)), "OrElse(".len() + 8 * (pairs.len() + ", ".len()));
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_read() {
    let sentence = "a strategy's text has at most 16384 bytes; make it simpler";
    for text in ["(".repeat(100_000), "OrElse(".repeat(100_000), "é".repeat(100_000), " ".repeat(100_000)] {
        let error = text.parse::<Strategy>().unwrap_err();
        assert_eq!((error.sentence(), error.position()), (sentence, STRATEGY_TEXT_BYTES_MAX));
    }
    let uneven = format!("a{}", "é".repeat(100_000)).parse::<Strategy>().unwrap_err();
    assert_eq!((uneven.sentence(), uneven.position()), (sentence, STRATEGY_TEXT_BYTES_MAX - 1));
    let longest = format!("{:STRATEGY_TEXT_BYTES_MAX$}", "Random");
    assert_eq!(longest.parse(), Ok(Strategy::Random));
}
