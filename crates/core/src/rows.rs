//! Rows: how values become stored bytes and back.

use crate::tables::Table;
use minicbor::{Decode, Encode};

/// The stored bytes of a row.
pub(crate) fn encode<T: Encode<()>>(value: &T) -> Vec<u8> {
    minicbor::to_vec(value).expect("encoding into memory does not fail")
}

/// The value of a row.
pub(crate) fn decode<'b, T: Decode<'b, ()>>(table: Table, key: &[u8], bytes: &'b [u8]) -> T {
    decoded(table, key, minicbor::decode(bytes))
}

/// The value of a row that was decoded. A row that does not decode contradicts the format version that the store checked
/// when it opened: stop before it spreads.
pub(crate) fn decoded<T>(table: Table, key: &[u8], result: Result<T, minicbor::decode::Error>) -> T {
    result.unwrap_or_else(|error| {
        panic!("the row {key:02x?} of table {} does not decode: {error}; restore a backup", table.name())
    })
}
