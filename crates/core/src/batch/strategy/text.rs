//! The text form: `OrElse(SelectOnly(mode=preview, Random), MaxSimultaneous(company_id, 10, Fair(company_id)))`.
//!
//! Promises
//! - What is printed is read back as the same strategy, if it has no problem and is not too long.
//! - Reading neither panics nor recurses deeper than a strategy may nest, whatever the text.
//! - What cannot be read is refused with the place.
//!
//! A text in double quotes may hold anything, with `\"` and `\\` for these two. Without quotes, a value is a number or
//! a flag if it reads as one, just as in `windlass submit --metadata`.

use super::problem::{
    problem_of_aging, problem_of_text, problem_of_value, problem_of_weight, too_large, too_many_weights,
};
use super::words::{is_bare, is_bare_word, shortened, unknown_name, whole_number};
use super::{Max, Strategy, StrategyTextError};
use crate::batch::submissions::{MetaValue, problem_of_field};
use crate::limits::{FAIR_WEIGHTS_MAX, STRATEGY_DEPTH_MAX, STRATEGY_PARTS_MAX, STRATEGY_TEXT_BYTES_MAX};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Units of time with their milliseconds, the largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { aging_ms: None } => f.write_str(name),
            Strategy::CustomPriority { aging_ms: Some(ms) } => write!(f, "{name}(aging={})", Span(*ms)),
            Strategy::SelectOnly { field, value, inner } => {
                write!(f, "{name}({}, {inner})", pair(field, value))
            }
            Strategy::PreferDistinct { field, max, inner }
            | Strategy::MaxSimultaneous { field, max, inner } => {
                write!(f, "{name}({}, {max}, {inner})", Word(field))
            }
            Strategy::OrElse { first, fallback } => {
                write!(f, "{name}({first}")?;
                let mut rest = fallback;
                while let Strategy::OrElse { first, fallback } = &**rest {
                    write!(f, ", {first}")?;
                    rest = fallback;
                }
                write!(f, ", {rest})")
            }
            Strategy::Fair { field, weights, inner } => {
                write!(f, "{name}({}", Word(field))?;
                for (number, (value, weight)) in weights.iter().enumerate() {
                    let before = if number == 0 { ", weights(" } else { ", " };
                    write!(f, "{before}{}={weight}", Word(value))?;
                }
                f.write_str(if weights.is_empty() { "" } else { ")" })?;
                if **inner != Strategy::OldestFirst {
                    write!(f, ", {inner}")?;
                }
                f.write_str(")")
            }
            Strategy::Lane { name: lane } => write!(f, "{name}({})", Word(lane)),
        }
    }
}

/// A field and its value, as `SelectOnly` has them.
pub(super) fn pair(field: &str, value: &MetaValue) -> String {
    match value {
        // Quotes keep a text from being read as something else.
        MetaValue::Text(text) if value_of(text) != *value => format!("{}={}", Word(field), Quoted(text)),
        MetaValue::Text(text) => format!("{}={}", Word(field), Word(text)),
        MetaValue::Integer(_) | MetaValue::Bool(_) => format!("{}={value}", Word(field)),
    }
}

/// What a word without quotes stands for.
fn value_of(word: &str) -> MetaValue {
    match (word.parse(), word.parse()) {
        (Ok(number), _) => MetaValue::Integer(number),
        (Err(_), Ok(flag)) => MetaValue::Bool(flag),
        (Err(_), Err(_)) => MetaValue::Text(word.into()),
    }
}

/// A text in quotes if it needs them.
pub(super) struct Word<'a>(pub(super) &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_bare_word(self.0) { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Milliseconds in the largest unit that has no remainder.
pub(super) struct Span(pub(super) u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit_ms): &(&str, u64)| self.0 >= *unit_ms && self.0.is_multiple_of(*unit_ms);
        let (unit, unit_ms) = UNITS.into_iter().find(fits).unwrap_or(("ms", 1));
        write!(f, "{}{unit}", self.0 / unit_ms)
    }
}

impl FromStr for Strategy {
    type Err = StrategyTextError;

    fn from_str(text: &str) -> Result<Strategy, StrategyTextError> {
        if text.len() > STRATEGY_TEXT_BYTES_MAX {
            let is_boundary = |at: &usize| text.is_char_boundary(*at);
            let at = (0..=STRATEGY_TEXT_BYTES_MAX).rev().find(is_boundary).unwrap_or(0);
            let sentence =
                format!("a strategy's text has at most {STRATEGY_TEXT_BYTES_MAX} bytes; make it simpler");
            return Err(StrategyTextError::new(text, at, sentence));
        }
        // Without the space behind it, what is missing at the end is missed right behind the last word.
        let mut reader = Reader { text: text.trim_end(), at: 0, parts: 0 };
        let strategy = reader.strategy(1)?;
        match reader.next() {
            None => Ok(strategy),
            Some(')') => Err(reader.wrong("this `)` closes nothing; remove it")),
            Some(_) => {
                Err(reader.wrong("expected nothing more after the strategy; combine several with OrElse"))
            }
        }
    }
}

type Read<T> = Result<T, StrategyTextError>;

struct Reader<'a> {
    text: &'a str,
    /// The byte where the unread rest begins.
    at: usize,
    /// Blocks so far.
    parts: usize,
}

impl<'a> Reader<'a> {
    fn strategy(&mut self, depth: usize) -> Read<Strategy> {
        self.skip_space();
        let start = self.at;
        let name = self.name();
        if name.is_empty() {
            return Err(self.wrong("expected a strategy, such as Random or Fair(company_id)"));
        }
        self.parts += 1;
        if depth > STRATEGY_DEPTH_MAX || self.parts > STRATEGY_PARTS_MAX {
            return Err(self.wrong_at(start, too_large()));
        }
        match name {
            "Random" => self.without_settings(name, Strategy::Random),
            "OldestFirst" => self.without_settings(name, Strategy::OldestFirst),
            "NewestFirst" => self.without_settings(name, Strategy::NewestFirst),
            "CustomPriority" => self.custom_priority(),
            "SelectOnly" => self.select_only(depth),
            "PreferDistinct" => {
                let (field, max, inner) = self.limited(name, depth)?;
                Ok(Strategy::PreferDistinct { field, max, inner })
            }
            "MaxSimultaneous" => {
                let (field, max, inner) = self.limited(name, depth)?;
                Ok(Strategy::MaxSimultaneous { field, max, inner })
            }
            "OrElse" => self.or_else(depth),
            "Fair" => self.fair(depth),
            "Lane" => {
                self.open("expected `(` and the lane's name after Lane")?;
                let name = self.text_of("expected the lane's name")?;
                self.close("expected `)` after the lane's name")?;
                Ok(Strategy::Lane { name })
            }
            unknown => Err(self.wrong_at(start, unknown_name(unknown))),
        }
    }

    fn without_settings(&mut self, name: &str, strategy: Strategy) -> Read<Strategy> {
        match self.next() {
            Some('(') => Err(self.wrong(format!("{name} has no settings; leave out the parentheses"))),
            Some(_) | None => Ok(strategy),
        }
    }

    fn custom_priority(&mut self) -> Read<Strategy> {
        const AGING: &str = "expected `aging=` and a time such as 10m";
        if !self.eat('(') {
            return Ok(Strategy::CustomPriority { aging_ms: None });
        }
        self.skip_space();
        let start = self.at;
        if self.word() != "aging" {
            return Err(self.wrong_at(start, AGING));
        }
        self.expect('=', AGING)?;
        self.skip_space();
        let start = self.at;
        let Some(aging_ms) = milliseconds(self.word()) else {
            return Err(self.wrong_at(start, "expected a time such as 10m, in ms, s, m, h or d"));
        };
        self.checked(start, problem_of_aging(aging_ms))?;
        self.close("expected `)` after the time")?;
        Ok(Strategy::CustomPriority { aging_ms: Some(aging_ms) })
    }

    fn select_only(&mut self, depth: usize) -> Read<Strategy> {
        self.open("expected `(` and what to select after SelectOnly, such as (mode=preview)")?;
        let field = self.field()?;
        self.expect('=', "expected `=` and a value after the field")?;
        let value = self.value()?;
        let inner =
            self.inner(depth, Strategy::Random, "expected `,` and a strategy, or `)`, after the value")?;
        Ok(Strategy::SelectOnly { field, value, inner })
    }

    fn limited(&mut self, name: &str, depth: usize) -> Read<(String, Max, Box<Strategy>)> {
        self.open(format!("expected `(`, a field and a limit after {name}, such as (company_id, 10)"))?;
        let field = self.field()?;
        self.expect(',', "expected `,` and a limit such as 10 or 25% after the field")?;
        self.skip_space();
        let start = self.at;
        let max = self.word();
        if !max.starts_with(|it: char| it.is_ascii_digit()) {
            return Err(self.wrong_at(start, "expected a limit such as 10 or 25%"));
        }
        let max = max.parse().map_err(|sentence: String| self.wrong_at(start, sentence))?;
        let inner =
            self.inner(depth, Strategy::Random, "expected `,` and a strategy, or `)`, after the limit")?;
        Ok((field, max, inner))
    }

    fn or_else(&mut self, depth: usize) -> Read<Strategy> {
        self.open("expected `(` and two strategies after OrElse")?;
        let mut before = Vec::new();
        let mut last = self.strategy(depth + 1)?;
        self.expect(',', "expected `,` and a strategy to fall back on")?;
        loop {
            before.push(last);
            self.skip_space();
            let start = self.at;
            last = self.strategy(depth + before.len())?;
            // One more behind it, and it is the first of a fallback: a level deeper than it was read.
            if !self.eat(',') {
                break;
            }
            if depth + before.len() + last.levels() > STRATEGY_DEPTH_MAX {
                return Err(self.wrong_at(start, too_large()));
            }
            self.parts += 1;
        }
        self.close("expected `,` and a strategy, or `)`, after the strategy")?;
        let nest =
            |fallback, first| Strategy::OrElse { first: Box::new(first), fallback: Box::new(fallback) };
        Ok(before.into_iter().rfold(last, nest))
    }

    fn fair(&mut self, depth: usize) -> Read<Strategy> {
        const AFTER_FIELD: &str = "expected `,` and weights or a strategy, or `)`, after the field";
        const AFTER_WEIGHTS: &str = "expected `,` and a strategy, or `)`, after the weights";
        self.open("expected `(` and a field after Fair, such as (company_id)")?;
        let field = self.field()?;
        let before_comma = self.at;
        let is_weighted = self.eat(',') && self.next_word() == "weights";
        if !is_weighted {
            self.at = before_comma;
            let inner = self.inner(depth, Strategy::OldestFirst, AFTER_FIELD)?;
            return Ok(Strategy::Fair { field, weights: BTreeMap::new(), inner });
        }
        let weights = self.weights()?;
        let inner = self.inner(depth, Strategy::OldestFirst, AFTER_WEIGHTS)?;
        Ok(Strategy::Fair { field, weights, inner })
    }

    fn weights(&mut self) -> Read<BTreeMap<String, u32>> {
        self.word();
        self.open("expected `(` and the weights, such as (acme=3)")?;
        let mut weights = BTreeMap::new();
        loop {
            self.skip_space();
            let start = self.at;
            let value = self.text_of("expected a value and its weight, such as acme=3")?;
            self.checked(start, problem_of_text(&value))?;
            self.expect('=', "expected `=` and a weight after the value")?;
            self.skip_space();
            let start_of_weight = self.at;
            let weight = whole_number(self.word()).and_then(|it| u32::try_from(it).ok()).unwrap_or(0);
            self.checked(start_of_weight, problem_of_weight(weight))?;
            if weights.insert(value, weight).is_some() {
                return Err(self.wrong_at(start, "this value already has a weight; remove one of them"));
            }
            self.checked(start, (weights.len() > FAIR_WEIGHTS_MAX).then(too_many_weights))?;
            if !self.eat(',') {
                self.close("expected `,` and another weight, or `)`")?;
                return Ok(weights);
            }
        }
    }

    /// The last setting of a block, which may be left out, and the block's end.
    fn inner(&mut self, depth: usize, if_left_out: Strategy, expected: &str) -> Read<Box<Strategy>> {
        if !self.eat(',') {
            self.close(expected)?;
            return Ok(Box::new(if_left_out));
        }
        let inner = self.strategy(depth + 1)?;
        let after = self.at;
        if self.eat(',') && self.next_word() == "weights" {
            return Err(self.wrong(
                "weights stand before the strategy, as in Fair(company_id, weights(acme=3), Random)",
            ));
        }
        self.at = after;
        self.close("expected `)` after the strategy")?;
        Ok(Box::new(inner))
    }

    fn field(&mut self) -> Read<String> {
        self.skip_space();
        let start = self.at;
        if self.next() == Some('"') {
            let field = self.quoted()?;
            self.checked(start, problem_of_field(&field))?;
            return Ok(field);
        }
        let field = self.word();
        if field.is_empty() {
            return Err(self.wrong("expected a metadata field, such as company_id"));
        }
        let place = start + field.find(|it| !is_bare(it)).unwrap_or(0);
        self.checked(place, problem_of_field(field))?;
        Ok(field.to_owned())
    }

    fn value(&mut self) -> Read<MetaValue> {
        self.skip_space();
        let start = self.at;
        let is_quoted = self.next() == Some('"');
        let text = self.text_of("expected a value, such as preview, 7 or \"two words\"")?;
        let value = if is_quoted { MetaValue::Text(text) } else { value_of(&text) };
        self.checked(start, problem_of_value(&value))?;
        Ok(value)
    }

    /// A text, with quotes or without.
    fn text_of(&mut self, expected: &str) -> Read<String> {
        if self.next() == Some('"') {
            return self.quoted();
        }
        let start = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(self.wrong(expected));
        }
        match word.char_indices().find(|(_, character)| !is_bare(*character)) {
            None => Ok(word.to_owned()),
            Some((offset, character)) => {
                let shown = shortened(character.encode_utf8(&mut [0; 4]));
                let sentence = format!("a text with `{shown}` needs double quotes, such as \"two words\"");
                Err(self.wrong_at(start + offset, sentence))
            }
        }
    }

    /// A text in double quotes, the first of which is next.
    fn quoted(&mut self) -> Read<String> {
        let start = self.at;
        let mut text = String::new();
        let mut characters = self.text[start..].char_indices().skip(1);
        while let Some((offset, character)) = characters.next() {
            match character {
                '"' => {
                    self.at = start + offset + 1;
                    return Ok(text);
                }
                '\\' => match characters.next() {
                    Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                    Some(_) | None => {
                        return Err(self.wrong_at(
                            start + offset,
                            "expected `\\\"` or `\\\\`; nothing else goes with a backslash",
                        ));
                    }
                },
                plain => text.push(plain),
            }
        }
        Err(self.wrong_at(start, "this quote is not closed; close it with another `\"`"))
    }

    /// A block's name, or nothing.
    fn name(&mut self) -> &'a str {
        let word = self.next_word();
        let name = &word[..word.find(|it| !is_bare(it)).unwrap_or(word.len())];
        self.at += name.len();
        name
    }

    /// Everything up to a space or a sign that the form uses; whether the word is sound is for the caller to say.
    fn word(&mut self) -> &'a str {
        let word = self.next_word();
        self.at += word.len();
        word
    }

    fn next_word(&mut self) -> &'a str {
        self.skip_space();
        let rest = &self.text[self.at..];
        let is_sign = |character: char| character.is_whitespace() || "(),=\"".contains(character);
        &rest[..rest.find(is_sign).unwrap_or(rest.len())]
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// The next character that is no space; the reader stands before it.
    fn next(&mut self) -> Option<char> {
        self.skip_space();
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, sign: char) -> bool {
        let is_next = self.next() == Some(sign);
        self.at += if is_next { sign.len_utf8() } else { 0 };
        is_next
    }

    fn expect(&mut self, sign: char, expected: impl Into<String>) -> Read<()> {
        if self.eat(sign) { Ok(()) } else { Err(self.wrong(expected)) }
    }

    fn open(&mut self, expected: impl Into<String>) -> Read<()> {
        self.expect('(', expected)
    }

    fn close(&mut self, expected: &str) -> Read<()> {
        self.expect(')', expected)
    }

    fn checked(&self, at: usize, problem: Option<String>) -> Read<()> {
        problem.map_or(Ok(()), |sentence| Err(self.wrong_at(at, sentence)))
    }

    fn wrong(&self, sentence: impl Into<String>) -> StrategyTextError {
        self.wrong_at(self.at, sentence)
    }

    fn wrong_at(&self, at: usize, sentence: impl Into<String>) -> StrategyTextError {
        StrategyTextError::new(self.text, at, sentence.into())
    }
}

fn milliseconds(time: &str) -> Option<u64> {
    let unit_at = time.find(|it: char| !it.is_ascii_digit())?;
    let (digits, unit) = time.split_at(unit_at);
    let (_, unit_ms) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    whole_number(digits)?.checked_mul(unit_ms)
}
