//! A block by itself: what it is set to, without the blocks inside it.

use super::Strategy;
use super::text::{Word, pair};
use crate::batch::submissions::MetaValue;

/// Weights that are shown; a strategy may name a thousand.
const WEIGHTS_SHOWN: usize = 5;

impl Strategy {
    /// The block with its own settings, and without what is inside it: `MaxSimultaneous(company_id, 10)`.
    pub fn own_text(&self) -> String {
        let name = self.name();
        match self {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { .. }
            | Strategy::Lane { .. } => self.to_string(),
            Strategy::SelectOnly { field, value, .. } => format!("{name}({})", pair(field, value)),
            Strategy::PreferDistinct { field, max, .. } | Strategy::MaxSimultaneous { field, max, .. } => {
                format!("{name}({}, {max})", Word(field))
            }
            Strategy::OrElse { .. } => name.into(),
            Strategy::Fair { field, weights, .. } if weights.is_empty() => format!("{name}({})", Word(field)),
            Strategy::Fair { field, weights, .. } => {
                let shown = weights.iter().take(WEIGHTS_SHOWN);
                let mut shown: Vec<String> = shown.map(|(of, it)| format!("{}={it}", Word(of))).collect();
                if weights.len() > WEIGHTS_SHOWN {
                    shown.push(format!("… {} more", weights.len() - WEIGHTS_SHOWN));
                }
                format!("{name}({}, weights({}))", Word(field), shown.join(", "))
            }
        }
    }

    /// A field and its value, as a strategy's text has them: `mode=preview`.
    pub fn pair_text(field: &str, value: &MetaValue) -> String {
        pair(field, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_by_itself_is_shown_with_its_settings_and_without_what_is_inside() {
        let shown = |text: &str| text.parse::<Strategy>().unwrap().own_text();
        assert_eq!(shown("SelectOnly(mode=\"7\", Fair(a))"), "SelectOnly(mode=\"7\")");
        assert_eq!(shown("MaxSimultaneous(a, 25%, Fair(a))"), "MaxSimultaneous(a, 25%)");
        assert_eq!(shown("OrElse(Random, OldestFirst)"), "OrElse");
        assert_eq!(shown("CustomPriority(aging=10m)"), "CustomPriority(aging=10m)");
        assert_eq!(shown("Fair(a, Random)"), "Fair(a)");
        let weights = "b=2, c=2, d=2, e=2, f=2";
        assert_eq!(
            shown(&format!("Fair(a, weights({weights}, g=2, h=2), Random)")),
            format!("Fair(a, weights({weights}, … 2 more))")
        );
    }
}
