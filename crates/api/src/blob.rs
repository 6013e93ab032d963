//! Bytes in JSON: a plain string where they are text, `{"base64": "…"}` where they are not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that read as text wherever they can.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form<'a> {
    Text(std::borrow::Cow<'a, str>),
    Bytes(Base64Form),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64Form {
    base64: String,
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Base64Form { base64: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong =
            || serde::de::Error::custom("bytes are a string, or {\"base64\": \"…\"} if they are not text");
        match Form::deserialize(deserializer).map_err(|_| wrong())? {
            Form::Text(text) => Ok(Blob(text.into_owned().into_bytes())),
            Form::Bytes(form) => STANDARD.decode(form.base64).map(Blob).map_err(|_| wrong()),
        }
    }
}

impl utoipa::PartialSchema for Blob {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let base64 = ObjectBuilder::new()
            .property("base64", ObjectBuilder::new().schema_type(Type::String).build())
            .required("base64")
            .build();
        let either = OneOfBuilder::new()
            .item(text)
            .item(base64)
            .description(Some("Bytes: a string, or an object with `base64` if they are not text."))
            .build();
        utoipa::openapi::RefOr::T(utoipa::openapi::Schema::OneOf(either))
    }
}

impl utoipa::ToSchema for Blob {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_other_bytes_become_base64() {
        for (bytes, json) in [(&b"plain"[..], "\"plain\""), (&[0xff, 0][..], "{\"base64\":\"/wA=\"}")] {
            let blob = Blob(bytes.to_vec());
            assert_eq!(serde_json::to_string(&blob).unwrap(), json);
            assert_eq!(serde_json::from_str::<Blob>(json).unwrap(), blob);
        }
        for wrong in ["1", "null", "{\"base64\":\"***\"}", "{\"base64\":\"\",\"x\":1}"] {
            assert!(serde_json::from_str::<Blob>(wrong).is_err(), "{wrong}");
        }
    }
}
