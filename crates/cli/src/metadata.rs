//! Metadata on the command line: `field=value`.

use std::str::FromStr;
use windlass_client::MetaValue;

/// A field and its value. A value that reads as a whole number or as `true` or `false` is one; in double quotes it is
/// the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) field: String,
    pub(crate) value: MetaValue,
}

impl Pair {
    /// As the list's filter spells it.
    pub(crate) fn as_filter(&self) -> String {
        match &self.value {
            // In quotes, a text may hold a comma, and does not turn into a number.
            MetaValue::Text(text) => format!("{}:\"{text}\"", self.field),
            MetaValue::Integer(_) | MetaValue::Bool(_) => format!("{}:{}", self.field, self.value),
        }
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        let Some((field, spelling)) = text.split_once('=').filter(|(field, _)| !field.is_empty()) else {
            return Err("metadata is FIELD=VALUE, such as tenant=acme".into());
        };
        let quoted = spelling.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let value = match (quoted, spelling.parse::<i64>(), spelling.parse::<bool>()) {
            (Some(quoted), _, _) => MetaValue::Text(quoted.into()),
            (None, Ok(number), _) => MetaValue::Integer(number),
            (None, _, Ok(flag)) => MetaValue::Bool(flag),
            (None, Err(_), Err(_)) => MetaValue::Text(spelling.into()),
        };
        Ok(Pair { field: field.into(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_flags_or_texts_and_quotes_make_a_text() {
        let value = |text: &str| text.parse::<Pair>().map(|pair| pair.value);
        assert_eq!(value("n=7"), Ok(MetaValue::Integer(7)));
        assert_eq!(value("n=\"7\""), Ok(MetaValue::Text("7".into())));
        assert_eq!(value("n=true"), Ok(MetaValue::Bool(true)));
        assert_eq!(value("n=a=b"), Ok(MetaValue::Text("a=b".into())));
        assert_eq!("n=\"7\"".parse::<Pair>().unwrap().as_filter(), "n:\"7\"");
        for wrong in ["n", "=7", ""] {
            assert!(wrong.parse::<Pair>().is_err(), "{wrong}");
        }
    }
}
