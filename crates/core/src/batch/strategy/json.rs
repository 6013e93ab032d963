//! The JSON form: a name, or an object of a name and the block's settings; read, not written: a text as in `text`.
//!
//! The depth is bounded by the reader: `serde_json` stops at 128 levels, which are 64 blocks. No other format carries
//! strategies: the consume socket's frames hold JSON too.

use super::words::unknown_name;
use super::{Max, Strategy};
use crate::batch::submissions::MetaValue;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeStructVariant;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

const FORM: &str = "a strategy: a text such as \"Fair(company_id)\", or an object of a name and its settings";

impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.name();
        let settings = match self {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { aging_ms: None } => return serializer.serialize_str(name),
            Strategy::CustomPriority { aging_ms: Some(_) } | Strategy::Lane { .. } => 1,
            Strategy::OrElse { .. } => 2,
            Strategy::SelectOnly { .. }
            | Strategy::PreferDistinct { .. }
            | Strategy::MaxSimultaneous { .. }
            | Strategy::Fair { .. } => 3,
        };
        // The number of a variant is for formats without names; JSON does not look at it.
        let mut block = serializer.serialize_struct_variant("Strategy", 0, name, settings)?;
        match self {
            Strategy::Random | Strategy::OldestFirst | Strategy::NewestFirst => {}
            Strategy::CustomPriority { aging_ms } => block.serialize_field("aging_ms", aging_ms)?,
            Strategy::SelectOnly { field, value, inner } => {
                block.serialize_field("field", field)?;
                block.serialize_field("value", value)?;
                block.serialize_field("inner", inner)?;
            }
            Strategy::PreferDistinct { field, max, inner }
            | Strategy::MaxSimultaneous { field, max, inner } => {
                block.serialize_field("field", field)?;
                block.serialize_field("max", max)?;
                block.serialize_field("inner", inner)?;
            }
            Strategy::OrElse { first, fallback } => {
                block.serialize_field("first", first)?;
                block.serialize_field("fallback", fallback)?;
            }
            Strategy::Fair { field, weights, inner } => {
                block.serialize_field("field", field)?;
                block.serialize_field("weights", weights)?;
                block.serialize_field("inner", inner)?;
            }
            Strategy::Lane { name } => block.serialize_field("name", name)?,
        }
        block.end()
    }
}

impl<'de> Deserialize<'de> for Strategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strategy, D::Error> {
        deserializer.deserialize_any(Form)
    }
}

struct Form;

impl<'de> Visitor<'de> for Form {
    type Value = Strategy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Strategy, E> {
        text.parse().map_err(|error: super::StrategyTextError| E::custom(error.on_one_line()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strategy, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::custom(format!("an empty object is no strategy; expected {FORM}")));
        };
        let strategy = block(&name, &mut map)?;
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom("a strategy is an object of one name; combine several with OrElse"));
        }
        Ok(strategy)
    }
}

/// The block of this name, with its settings.
fn block<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Strategy, A::Error> {
    Ok(match name {
        "Random" => without_settings(Strategy::Random, map)?,
        "OldestFirst" => without_settings(Strategy::OldestFirst, map)?,
        "NewestFirst" => without_settings(Strategy::NewestFirst, map)?,
        "CustomPriority" => {
            let aging_ms = map.next_value::<Option<CustomPriority>>()?.and_then(|it| it.aging_ms);
            Strategy::CustomPriority { aging_ms }
        }
        "SelectOnly" => {
            let SelectOnly { field, value, inner } = map.next_value()?;
            Strategy::SelectOnly { field, value, inner }
        }
        "PreferDistinct" => {
            let Limited { field, max, inner } = map.next_value()?;
            Strategy::PreferDistinct { field, max, inner }
        }
        "MaxSimultaneous" => {
            let Limited { field, max, inner } = map.next_value()?;
            Strategy::MaxSimultaneous { field, max, inner }
        }
        "OrElse" => {
            let OrElse { first, fallback } = map.next_value()?;
            Strategy::OrElse { first, fallback }
        }
        "Fair" => {
            let Fair { field, weights, inner } = map.next_value()?;
            Strategy::Fair { field, weights, inner }
        }
        "Lane" => {
            let Lane { name } = map.next_value()?;
            Strategy::Lane { name }
        }
        unknown => return Err(A::Error::custom(unknown_name(unknown))),
    })
}

fn without_settings<'de, A: MapAccess<'de>>(strategy: Strategy, map: &mut A) -> Result<Strategy, A::Error> {
    match map.next_value::<Option<IgnoredAny>>()? {
        None => Ok(strategy),
        Some(_) => {
            let name = strategy.name();
            Err(A::Error::custom(format!("{name} has no settings; write it as the text \"{name}\"")))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of CustomPriority: {\"aging_ms\": 60000}")]
struct CustomPriority {
    #[serde(default)]
    aging_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of SelectOnly: an object of field, value and inner")]
struct SelectOnly {
    field: String,
    value: MetaValue,
    inner: Box<Strategy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of a limit: an object of field, max and inner")]
struct Limited {
    field: String,
    max: Max,
    inner: Box<Strategy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of OrElse: an object of first and fallback")]
struct OrElse {
    first: Box<Strategy>,
    fallback: Box<Strategy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of Fair: an object of field, weights and inner")]
struct Fair {
    field: String,
    #[serde(default)]
    weights: BTreeMap<String, u32>,
    #[serde(default = "oldest_first")]
    inner: Box<Strategy>,
}

fn oldest_first() -> Box<Strategy> {
    Box::new(Strategy::OldestFirst)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of Lane: an object of name")]
struct Lane {
    name: String,
}
