//! Strategies as people write them: the text form, there and back.

use std::collections::BTreeMap;
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::MetaValue;
use windlass_core::limits::{
    AGING_MS_MAX, FAIR_WEIGHT_MAX, STRATEGY_DEPTH_MAX, STRATEGY_PARTS_MAX, STRATEGY_TEXT_BYTES_MAX,
};
use windlass_core::seeded::Seeded;

fn read(text: &str) -> Strategy {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_is_printed_is_what_was_read_if_it_was_written_as_it_is_printed() {
    for text in [
        "Random",
        "OldestFirst",
        "NewestFirst",
        "CustomPriority",
        "CustomPriority(aging=10m)",
        "SelectOnly(mode=preview, Random)",
        "PreferDistinct(company_id, 10, Random)",
        "MaxSimultaneous(company_id, 25%, Random)",
        "Fair(company_id)",
        "Fair(company_id, Random)",
        "Fair(company_id, weights(7=2, acme=3))",
        "Fair(company_id, weights(7=2, acme=3), Random)",
        "OrElse(Random, OldestFirst)",
        "OrElse(Random, OldestFirst, NewestFirst)",
        "OrElse(OrElse(Random, OldestFirst), NewestFirst)",
        "Lane(mail)",
        "Lane(\"incoming mail\")",
        "OrElse(SelectOnly(mode=preview, Random), MaxSimultaneous(company_id, 10, Fair(company_id)))",
    ] {
        assert_eq!(read(text).to_string(), text);
    }
}

#[test]
fn space_is_free_and_what_goes_without_saying_may_be_left_out() {
    for (text, printed) in [
        (" Random\n", "Random"),
        ("SelectOnly(mode=preview)", "SelectOnly(mode=preview, Random)"),
        ("PreferDistinct(a,2)", "PreferDistinct(a, 2, Random)"),
        ("MaxSimultaneous ( a\t, 100% )", "MaxSimultaneous(a, 100%, Random)"),
        ("Fair(a,OldestFirst)", "Fair(a)"),
        ("Fair( \"a\" , weights ( \"7\" = 2 ) , OldestFirst )", "Fair(a, weights(7=2))"),
        ("OrElse(Random, OrElse(OldestFirst, NewestFirst))", "OrElse(Random, OldestFirst, NewestFirst)"),
        ("CustomPriority ( aging = 60000ms )", "CustomPriority(aging=1m)"),
        ("OrElse(\n  SelectOnly(a = 1),\n  Fair(b)\n)", "OrElse(SelectOnly(a=1, Random), Fair(b))"),
    ] {
        assert_eq!(read(text).to_string(), printed);
    }
}

#[test]
fn several_alternatives_nest_to_the_right() {
    assert_eq!(
        read("OrElse(Random, OldestFirst, NewestFirst, CustomPriority)"),
        Strategy::Random.or_else(
            Strategy::OldestFirst.or_else(Strategy::NewestFirst.or_else(Strategy::custom_priority()))
        )
    );
}

#[test]
fn a_value_is_a_number_or_a_flag_if_it_reads_as_one_and_quotes_make_it_a_text() {
    for (spelling, value, printed) in [
        ("preview", MetaValue::from("preview"), "preview"),
        ("\"preview\"", MetaValue::from("preview"), "preview"),
        ("7", MetaValue::from(7), "7"),
        ("-7", MetaValue::from(-7), "-7"),
        ("007", MetaValue::from(7), "7"),
        ("\"7\"", MetaValue::from("7"), "\"7\""),
        ("\"007\"", MetaValue::from("007"), "\"007\""),
        ("true", MetaValue::from(true), "true"),
        ("\"true\"", MetaValue::from("true"), "\"true\""),
        ("True", MetaValue::from("True"), "True"),
        ("1.5", MetaValue::from("1.5"), "1.5"),
        ("-", MetaValue::from("-"), "-"),
        ("9223372036854775807", MetaValue::from(i64::MAX), "9223372036854775807"),
        ("9223372036854775808", MetaValue::from("9223372036854775808"), "9223372036854775808"),
        ("\"\"", MetaValue::from(""), "\"\""),
        ("\"+7\"", MetaValue::from("+7"), "\"+7\""),
        ("\"a \\\"b\\\" \\\\ c\"", MetaValue::from("a \"b\" \\ c"), "\"a \\\"b\\\" \\\\ c\""),
        ("\"Zürich, (CH)\n\"", MetaValue::from("Zürich, (CH)\n"), "\"Zürich, (CH)\n\""),
    ] {
        let strategy = read(&format!("SelectOnly(field={spelling})"));
        assert_eq!(strategy, Strategy::select_only("field", value, Strategy::Random));
        assert_eq!(strategy.to_string(), format!("SelectOnly(field={printed}, Random)"));
    }
}

#[test]
fn a_time_is_printed_in_the_largest_unit_that_has_no_remainder() {
    for (aging_ms, printed) in [
        (1, "1ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_001, "1001ms"),
        (90_000, "90s"),
        (600_000, "10m"),
        (3_600_000, "1h"),
        (86_400_000, "1d"),
        (90_000_000, "25h"),
        (AGING_MS_MAX, "365d"),
    ] {
        let strategy = Strategy::custom_priority().aging_ms(aging_ms);
        assert_eq!(strategy.to_string(), format!("CustomPriority(aging={printed})"));
        assert_eq!(read(&strategy.to_string()), strategy);
    }
}

#[test]
fn random_strategies_come_back_from_their_text_and_from_their_json() {
    for seed in 0..5_000 {
        let strategy = random_strategy(seed);
        let text = strategy.to_string();
        assert!(text.len() <= STRATEGY_TEXT_BYTES_MAX, "seed {seed}");
        assert_eq!(text.parse().as_ref(), Ok(&strategy), "seed {seed}: {text}");
        let json = serde_json::to_string(&strategy).unwrap();
        assert_eq!(serde_json::from_str::<Strategy>(&json).unwrap(), strategy, "seed {seed}: {json}");
        let text_in_json = serde_json::to_string(&text).unwrap();
        assert_eq!(serde_json::from_str::<Strategy>(&text_in_json).unwrap(), strategy, "seed {seed}: {text}");
    }
}

#[test]
fn whatever_the_text_reading_it_gives_a_strategy_or_a_place_in_it() {
    for seed in 0..30_000 {
        let mut chance = Seeded::new(seed);
        let text = match chance.below(3) {
            0 => random_bytes(&mut chance),
            1 => random_words(&mut chance),
            _ => mutated(&mut chance, random_strategy(seed % 500).to_string()),
        };
        match text.parse::<Strategy>() {
            Ok(strategy) => assert_eq!(strategy.to_string().parse(), Ok(strategy), "seed {seed}: {text}"),
            Err(error) => {
                assert!(text.is_char_boundary(error.position()), "seed {seed}: {text}");
                let shown = error.to_string();
                let lines: Vec<&str> = shown.split('\n').collect();
                assert!(matches!(lines.len(), 1 | 3), "seed {seed}: {shown}");
                assert!(lines[1..].iter().all(|it| it.chars().count() <= 103), "seed {seed}: {shown}");
            }
        }
    }
}

/// Up to 60 bytes, made a text.
fn random_bytes(chance: &mut Seeded) -> String {
    let length = chance.below(60);
    let bytes: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Words of the form in any order.
fn random_words(chance: &mut Seeded) -> String {
    const WORDS: [&str; 24] = [
        "Random",
        "OldestFirst",
        "CustomPriority",
        "SelectOnly",
        "PreferDistinct",
        "MaxSimultaneous",
        "OrElse",
        "Fair",
        "Lane",
        "weights",
        "aging",
        "(",
        "(",
        ")",
        ")",
        ",",
        ",",
        "=",
        "\"",
        "\\",
        "10",
        "25%",
        "10m",
        " é\n",
    ];
    let length = chance.below(30);
    (0..length).map(|_| WORDS[chance.below(WORDS.len() as u64) as usize]).collect()
}

/// The text with a few characters dropped, doubled, swapped or replaced.
fn mutated(chance: &mut Seeded, text: String) -> String {
    const SIGNS: [char; 12] = ['(', ')', ',', '=', '"', '\\', '%', ' ', '0', 'x', 'é', '\u{202e}'];
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..=chance.below(3) {
        let place = chance.below(characters.len().max(1) as u64) as usize;
        let sign = SIGNS[chance.below(SIGNS.len() as u64) as usize];
        match chance.below(4) {
            0 => characters.truncate(place),
            1 => characters.insert(place, sign),
            2 if !characters.is_empty() => characters[place] = sign,
            _ if !characters.is_empty() => drop(characters.remove(place)),
            _ => characters.push(sign),
        }
    }
    characters.into_iter().collect()
}

/// A strategy within all limits, the same for the same seed.
fn random_strategy(seed: u64) -> Strategy {
    let mut chance = Seeded::new(seed);
    let mut parts = 1 + chance.below(STRATEGY_PARTS_MAX as u64 - 1);
    grow(&mut chance, 1, &mut parts)
}

/// `parts` is how many more blocks there may be; every block may need two more below it.
fn grow(chance: &mut Seeded, depth: usize, parts: &mut u64) -> Strategy {
    *parts = parts.saturating_sub(1);
    let is_leaf = depth == STRATEGY_DEPTH_MAX || *parts < 2 || chance.below(6) == 0;
    match if is_leaf { chance.below(5) } else { 5 + chance.below(6) } {
        0 => Strategy::Random,
        1 => Strategy::OldestFirst,
        2 => Strategy::NewestFirst,
        3 if chance.below(2) == 0 => Strategy::custom_priority(),
        3 => {
            let unit = [1, 1_000, 60_000, 3_600_000, 86_400_000][chance.below(5) as usize];
            Strategy::custom_priority().aging_ms(unit * (1 + chance.below(AGING_MS_MAX / unit)))
        }
        4 => Strategy::lane(random_text(chance)),
        5 => {
            let value = random_value(chance);
            Strategy::select_only(random_field(chance), value, grow(chance, depth + 1, parts))
        }
        6 => {
            let max = random_max(chance);
            grow(chance, depth + 1, parts).prefer_distinct(random_field(chance), max)
        }
        7 => {
            let max = random_max(chance);
            grow(chance, depth + 1, parts).max_simultaneous(random_field(chance), max)
        }
        8 => {
            let weights: BTreeMap<String, u32> = (0..chance.below(4))
                .map(|_| (random_text(chance), 1 + chance.below(u64::from(FAIR_WEIGHT_MAX)) as u32))
                .collect();
            let (field, inner) = (random_field(chance), Box::new(grow(chance, depth + 1, parts)));
            Strategy::Fair { field, weights, inner }
        }
        _ => {
            *parts -= 1;
            let first = grow(chance, depth + 1, parts);
            *parts += 1;
            first.or_else(grow(chance, depth + 1, parts))
        }
    }
}

fn random_max(chance: &mut Seeded) -> Max {
    match chance.below(2) {
        0 => Max::from(1 + chance.below(u64::from(u32::MAX)) as u32),
        _ => Max::percent(1 + chance.below(100) as u8),
    }
}

fn random_field(chance: &mut Seeded) -> String {
    const LETTERS: &[u8] = b"abcXYZ019._-";
    let length = 1 + chance.below(12);
    (0..length).map(|_| char::from(LETTERS[chance.below(LETTERS.len() as u64) as usize])).collect()
}

fn random_value(chance: &mut Seeded) -> MetaValue {
    match chance.below(4) {
        0 => MetaValue::from(chance.below(2) == 0),
        1 => MetaValue::from(chance.draw().cast_signed() >> chance.below(64)),
        _ => MetaValue::from(random_text(chance)),
    }
}

/// A text that is easily taken for something else.
fn random_text(chance: &mut Seeded) -> String {
    const PIECES: [&str; 20] = [
        "a", "Z", "7", "0", "-", "+", ".", "_", " ", "\"", "\\", "(", ")", ",", "=", "%", "true", "é", "\n",
        "💧",
    ];
    let length = chance.below(7);
    (0..length).map(|_| PIECES[chance.below(PIECES.len() as u64) as usize]).collect()
}
