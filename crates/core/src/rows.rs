//! Rows: how values become stored bytes and back.

use crate::tables::Table;
use minicbor::{Decode, Encode};

/// The stored bytes of a row.
pub(crate) fn encode<T: Encode<()>>(value: &T) -> Vec<u8> {
    /// Room for a level, the counts of a key, a block of chunks that are done in their order.
    const USUAL_BYTES: usize = 64;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    minicbor::encode(value, &mut bytes).expect("encoding into memory does not fail");
    bytes
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
