//! `windlass weights`: how much of the work each value of a field gets by `Fair`.

use crate::args::{Global, Weights, WeightsCommand};
use crate::exit::{Exit, print, print_json};
use crate::table::aligned;
use std::collections::BTreeMap;
use windlass_client::weights::{WeighRequest, WeightsInfo};

pub(crate) async fn run(global: &Global, weights: Weights) -> Result<(), Exit> {
    let client = global.client()?;
    let (field, weights) = match weights.command {
        WeightsCommand::List => {
            let list = client.weights().await?;
            return if global.json { print_json(&list) } else { print(text_of(&list.fields).as_bytes()) };
        }
        WeightsCommand::Set { field, weights } => {
            (field, weights.into_iter().map(|(value, weight)| (value, Some(weight))).collect())
        }
        WeightsCommand::Unset { field, values } => {
            (field, values.into_iter().map(|value| (value, None)).collect::<BTreeMap<_, _>>())
        }
    };
    let info = client.weigh(&field, &WeighRequest { weights }).await?;
    if global.json { print_json(&info) } else { print(text_of(&[info]).as_bytes()) }
}

fn text_of(fields: &[WeightsInfo]) -> String {
    let rows: Vec<Vec<String>> = fields
        .iter()
        .flat_map(|it| {
            it.weights.iter().map(|(value, weight)| vec![it.field.clone(), value.clone(), weight.to_string()])
        })
        .collect();
    if rows.is_empty() {
        return "every value has the weight 1\n".into();
    }
    aligned(&["FIELD", "VALUE", "WEIGHT"], &rows)
}

/// Reads `value=weight`; the value may hold `=` itself.
pub(crate) fn value_and_weight(text: &str) -> Result<(String, u32), String> {
    let parsed =
        text.rsplit_once('=').and_then(|(value, weight)| Some((value.to_owned(), weight.parse().ok()?)));
    parsed.ok_or_else(|| "write a value and its weight, a whole number, as in acme=3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_and_its_weight_are_read_from_behind() {
        assert_eq!(value_and_weight("acme=3"), Ok(("acme".into(), 3)));
        assert_eq!(value_and_weight("a=b=10"), Ok(("a=b".into(), 10)));
        for wrong in ["acme", "acme=", "acme=x", "acme=-1", "acme=1.5"] {
            assert!(value_and_weight(wrong).is_err(), "{wrong}");
        }
    }
}
