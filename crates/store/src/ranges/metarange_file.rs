//! Metarange files: the list of ranges that a commit points at, to the bytes of a Parquet file, and back.
//!
//! Invariants
//! - The same list gives the same bytes.
//! - What is read is in order: each range begins after the end of the one before, and only the last may be open.

use super::columns::{Layout, What, digests_of_values, texts_of_values, values_of_digests, values_of_texts};
use super::entries::Texts;
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::data_type::{BoolType, ByteArrayType, FixedLenByteArrayType, Int64Type};
use std::sync::LazyLock;
use windlass_core::branches::entries::Digest;

static LAYOUT: LazyLock<Layout> = LazyLock::new(|| {
    Layout::new(
        "message windlass_metarange {
            REQUIRED FIXED_LEN_BYTE_ARRAY (32) range;
            REQUIRED BYTE_ARRAY first_path (STRING);
            REQUIRED BYTE_ARRAY last_path (STRING);
            REQUIRED INT64 entries;
            REQUIRED INT64 bytes;
            REQUIRED INT64 file_bytes;
            REQUIRED BOOLEAN is_closed;
        }",
        &[("first_path", Encoding::DELTA_BYTE_ARRAY), ("last_path", Encoding::DELTA_BYTE_ARRAY)],
        &[],
    )
});

/// The ranges of a commit, in the order of their paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Metarange {
    /// The ranges.
    pub ranges: Vec<RangeInfo>,
}

/// What a metarange says of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeInfo {
    /// The digest of its file, which is the file's name.
    pub range: Digest,
    /// Its smallest path.
    pub first_path: String,
    /// Its largest path.
    pub last_path: String,
    /// How many entries it has; at least one.
    pub entries: u64,
    /// Bytes of all objects that its entries lead to.
    pub bytes: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Whether it ends because of what is in it, and not because nothing follows.
    pub is_closed: bool,
}

impl Metarange {
    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let paths: usize = self.ranges.iter().map(|it| it.first_path.len() + it.last_path.len()).sum();
        size_of::<Metarange>() + self.ranges.len() * size_of::<RangeInfo>() + paths
    }

    /// The first range that has a path that is not smaller: the only one that may have this path.
    pub(super) fn position_at_least(&self, path: &str) -> usize {
        self.ranges.partition_point(|it| it.last_path.as_str() < path)
    }

    /// Whether it names this range's file.
    pub(super) fn names(&self, range: &RangeInfo) -> bool {
        self.ranges.get(self.position_at_least(&range.last_path)).is_some_and(|it| it.range == range.range)
    }
}

/// The bytes of a metarange file.
pub(super) fn encode(metarange: &Metarange) -> Bytes {
    let rows = &metarange.ranges;
    LAYOUT.write(rows.len(), |columns| {
        let texts = |text: fn(&RangeInfo) -> &str| {
            let mut texts = Texts::default();
            rows.iter().for_each(|row| texts.push(text(row)));
            values_of_texts(texts)
        };
        let numbers = |number: fn(&RangeInfo) -> u64| {
            rows.iter().map(|row| number(row).cast_signed()).collect::<Vec<i64>>()
        };
        let digests: Vec<[u8; 32]> = rows.iter().map(|row| *row.range.as_bytes()).collect();
        columns.write::<FixedLenByteArrayType>(&values_of_digests(&digests));
        columns.write::<ByteArrayType>(&texts(|row| &row.first_path));
        columns.write::<ByteArrayType>(&texts(|row| &row.last_path));
        columns.write::<Int64Type>(&numbers(|row| row.entries));
        columns.write::<Int64Type>(&numbers(|row| row.bytes));
        columns.write::<Int64Type>(&numbers(|row| row.file_bytes));
        columns.write::<BoolType>(&rows.iter().map(|row| row.is_closed).collect::<Vec<bool>>());
    })
}

/// The list of a metarange file.
pub(super) fn decode(bytes: Bytes) -> Result<Metarange, What> {
    let Some(mut columns) = LAYOUT.read(bytes)? else { return Ok(Metarange::default()) };
    let digests = digests_of_values(&columns.read::<FixedLenByteArrayType>()?)?;
    let first_paths = texts_of_values(&columns.read::<ByteArrayType>()?)?;
    let last_paths = texts_of_values(&columns.read::<ByteArrayType>()?)?;
    let entries = columns.read::<Int64Type>()?;
    let bytes = columns.read::<Int64Type>()?;
    let file_bytes = columns.read::<Int64Type>()?;
    let is_closed = columns.read::<BoolType>()?;
    let range = |row: usize| RangeInfo {
        range: Digest::new(digests[row]),
        first_path: first_paths.get(row).to_owned(),
        last_path: last_paths.get(row).to_owned(),
        entries: entries[row].cast_unsigned(),
        bytes: bytes[row].cast_unsigned(),
        file_bytes: file_bytes[row].cast_unsigned(),
        is_closed: is_closed[row],
    };
    let ranges: Vec<RangeInfo> = (0..columns.rows).map(range).collect();
    if ranges.iter().any(|it| it.entries == 0 || it.first_path > it.last_path) {
        return Err("a range of it is empty".to_owned());
    }
    if ranges.windows(2).any(|two| two[0].last_path >= two[1].first_path || !two[0].is_closed) {
        return Err("its ranges are not in order".to_owned());
    }
    Ok(Metarange { ranges })
}
