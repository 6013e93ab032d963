//! How numbers with a point look in JSON, which knows nothing of NaN and of what is infinite.
//!
//! Such a number would be written as `null`, and `null` means something else: that nothing is said, or that what was said is taken back.
//! So it is written as a text, which whoever reads it refuses.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// A number that is written as one, or as the text that no reader takes for one.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { to.serialize_f64(self.0) } else { to.collect_str(&self.0) }
    }
}

#[expect(clippy::ref_option, reason = "serde asks with a reference")]
pub(crate) fn maybe<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    number.map(Number).serialize(to)
}

pub(crate) fn by_name<S: Serializer>(
    numbers: &BTreeMap<String, Option<f64>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(numbers.iter().map(|(name, number)| (name, number.map(Number))))
}

#[cfg(test)]
mod tests {
    use crate::lanes::{LaneChangeRequest, LimitInfo, TaskRequest};

    #[test]
    fn what_json_has_no_number_for_is_refused_by_its_reader_and_never_taken_for_nothing() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let task = serde_json::to_string(&TaskRequest { weight: Some(odd), ..TaskRequest::default() });
            let refused = serde_json::from_str::<TaskRequest>(&task.unwrap()).unwrap_err().to_string();
            assert!(refused.contains("expected f64"), "{refused}");
            let weights = [("a".to_owned(), Some(odd))].into();
            let change =
                serde_json::to_string(&LaneChangeRequest { weights, ..LaneChangeRequest::default() });
            serde_json::from_str::<LaneChangeRequest>(&change.unwrap()).unwrap_err();
            let limit = serde_json::to_string(&LimitInfo { per_second: Some(odd), ..LimitInfo::default() });
            serde_json::from_str::<LimitInfo>(&limit.unwrap()).unwrap_err();
        }
    }

    #[test]
    fn numbers_are_written_as_numbers_and_nothing_as_null() {
        let weights = [("a".to_owned(), Some(2.5)), ("b".to_owned(), None)].into();
        let change = LaneChangeRequest { weights, ..LaneChangeRequest::default() };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"weights":{"a":2.5,"b":null}}"#);
        assert_eq!(serde_json::from_str::<LaneChangeRequest>(&text).unwrap(), change);
    }
}
