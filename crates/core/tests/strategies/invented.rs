//! Strategies and submissions made up by chance: few fields with few values, so that they meet often.

use std::collections::BTreeMap;
use windlass_core::batch::reserver::Reserver;
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::{MetaValue, Metadata, Traits};
use windlass_core::ids::Epoch;
use windlass_core::seeded::Seeded;
use windlass_core::time::At;

/// The fields that strategies go by. The last two are there so that some submissions have more than three.
pub(crate) const FIELDS: [&str; 3] = ["company", "host", "mode"];
/// The lanes that strategies name.
pub(crate) const LANES: [&str; 2] = ["urgent", "slow"];
const OTHER_FIELDS: [&str; 2] = ["colour", "size"];

pub(crate) fn field(chance: &mut Seeded) -> String {
    FIELDS[below(chance, FIELDS.len())].to_owned()
}

/// A value that a submission may have; the number 1 and the text "1" are two values with one weight.
fn value(chance: &mut Seeded) -> MetaValue {
    match chance.below(5) {
        0 => MetaValue::Text("1".into()),
        1 => MetaValue::Bool(true),
        number => MetaValue::Integer(i64::try_from(number).expect("it is small") - 1),
    }
}

/// Traits with so many values in one of the fields, or in two, that views look again at the order of their fields.
pub(crate) fn various_traits(chance: &mut Seeded) -> Traits {
    let mut traits = traits(chance);
    for (field, variety) in [("company", 200), ("host", 20)] {
        if let Some(value) = traits.metadata.get_mut(field) {
            *value = MetaValue::Integer(i64::try_from(chance.below(variety)).expect("it is small"));
        }
    }
    traits
}

pub(crate) fn weights(chance: &mut Seeded) -> BTreeMap<String, u32> {
    let mut weights = BTreeMap::new();
    for _ in 0..chance.below(3) {
        let weight = [2, 3, 7, 1_000_000][below(chance, 4)];
        weights.insert(value(chance).to_string(), weight);
    }
    weights
}

pub(crate) fn traits(chance: &mut Seeded) -> Traits {
    let mut metadata = Metadata::new();
    for field in FIELDS {
        if chance.below(4) > 0 {
            metadata.insert(field.to_owned(), value(chance));
        }
    }
    for field in OTHER_FIELDS {
        if chance.below(4) == 0 {
            metadata.insert(field.to_owned(), value(chance));
        }
    }
    let priority = match chance.below(12) {
        0 => [i64::MIN, i64::MAX, 1_750_000_000_000, -1_750_000_000_000][below(chance, 4)],
        number => i64::try_from(number).expect("it is small") % 5 - 2,
    };
    Traits { priority, metadata, paused: chance.below(10) == 0, is_plain: chance.below(2) == 0 }
}

/// A strategy that is served, up to five blocks deep.
pub(crate) fn strategy(chance: &mut Seeded) -> Strategy {
    loop {
        let depth = 1 + chance.below(5);
        let strategy = block(chance, depth);
        let mut nobodys = Reserver::new(Epoch(1), [0; 16], 0, std::iter::empty());
        if nobodys.plan(&strategy, At::from_ms(0)).is_ok() {
            return strategy;
        }
    }
}

/// The same with one or two lanes, beside it or between its parts.
pub(crate) fn strategy_with_lanes(chance: &mut Seeded) -> Strategy {
    let lane = |name: &str| Box::new(Strategy::lane(name));
    let or_else = |first, fallback| Strategy::OrElse { first, fallback };
    let some = Box::new(strategy(chance));
    match chance.below(7) {
        0 => *lane(LANES[0]),
        1 => or_else(lane(LANES[0]), some),
        2 => or_else(some, lane(LANES[0])),
        3 => or_else(lane(LANES[0]), Box::new(or_else(some, lane(LANES[1])))),
        4 => or_else(Box::new(or_else(lane(LANES[1]), some)), lane(LANES[0])),
        5 => or_else(lane(LANES[1]), lane(LANES[0])),
        _ => or_else(Box::new(or_else(some, lane(LANES[0]))), Box::new(strategy(chance))),
    }
}

fn block(chance: &mut Seeded, depth: u64) -> Strategy {
    if depth <= 1 {
        return match chance.below(6) {
            0 | 1 => Strategy::Random,
            2 => Strategy::OldestFirst,
            3 => Strategy::NewestFirst,
            4 => Strategy::CustomPriority { aging_ms: None },
            _ => Strategy::CustomPriority { aging_ms: Some([1, 100, 3_600_000][below(chance, 3)]) },
        };
    }
    let field = field(chance);
    let inner = Box::new(block(chance, depth - 1));
    match chance.below(8) {
        0 => {
            let value = if chance.below(8) == 0 { MetaValue::Text("nobody's".into()) } else { value(chance) };
            Strategy::SelectOnly { field, value, inner }
        }
        1 | 2 => Strategy::MaxSimultaneous { field, max: max(chance), inner },
        3 | 4 => Strategy::PreferDistinct { field, max: max(chance), inner },
        5 => Strategy::OrElse { first: inner, fallback: Box::new(block(chance, depth - 1)) },
        _ => Strategy::Fair { field, weights: weights(chance), inner },
    }
}

fn max(chance: &mut Seeded) -> Max {
    match chance.below(3) {
        0 => Max::Percent([1, 25, 50, 100][below(chance, 4)]),
        _ => Max::Count(u32::try_from(1 + chance.below(3)).expect("it is small")),
    }
}

pub(crate) fn below(chance: &mut Seeded, len: usize) -> usize {
    usize::try_from(chance.below(len as u64)).expect("it is below a length")
}
