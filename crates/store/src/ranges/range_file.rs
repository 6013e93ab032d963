//! Range files: entries to the bytes of a Parquet file, and back.
//!
//! Invariants
//! - The same entries give the same bytes.
//! - What is read is sorted by path, without a path twice, and has at least one entry.

use super::columns::{
    ColumnsReader, Layout, What, digests_of_values, texts_of_values, values_of_digests, values_of_texts,
};
use super::entries::{Entries, Texts, metadata_of_text};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArrayType, Int64Type};
use std::sync::LazyLock;
use windlass_core::branches::entries::MadeBy;
use windlass_core::ids::{ChunkIndex, SubmissionId};

static LAYOUT: LazyLock<Layout> = LazyLock::new(|| {
    Layout::new(
        "message windlass_range {
            REQUIRED BYTE_ARRAY path (STRING);
            REQUIRED BYTE_ARRAY address (STRING);
            REQUIRED INT64 size;
            REQUIRED FIXED_LEN_BYTE_ARRAY (32) sha256;
            REQUIRED BYTE_ARRAY content_type (STRING);
            OPTIONAL BYTE_ARRAY metadata (STRING);
            OPTIONAL INT64 submission;
            OPTIONAL INT64 chunk;
        }",
        &[
            ("path", Encoding::DELTA_BYTE_ARRAY),
            ("address", Encoding::DELTA_BYTE_ARRAY),
            ("size", Encoding::DELTA_BINARY_PACKED),
            ("chunk", Encoding::DELTA_BINARY_PACKED),
        ],
        &["content_type", "metadata", "submission"],
    )
});

/// The bytes of a range file.
pub(super) fn encode(entries: Entries) -> Bytes {
    assert!(!entries.is_empty(), "a range has at least one entry");
    let Entries { paths, addresses, sizes, digests, content_types, metadata, made_by } = entries;
    LAYOUT.write(sizes.len(), |columns| {
        columns.write::<ByteArrayType>(&values_of_texts(paths));
        columns.write::<ByteArrayType>(&values_of_texts(addresses));
        // Bit by bit, so that a size that cannot be is at least the same when it is read again.
        columns.write::<Int64Type>(&sizes.into_iter().map(u64::cast_signed).collect::<Vec<i64>>());
        columns.write::<FixedLenByteArrayType>(&values_of_digests(&digests));
        columns.write::<ByteArrayType>(&values_of_texts(content_types));
        let metadata = values_of_texts(metadata).into_iter();
        columns.write_optional::<ByteArrayType>(metadata.map(|it| (!it.is_empty()).then_some(it)));
        let submission = |it: &Option<MadeBy>| it.map(|it| it.submission.as_u64().cast_signed());
        columns.write_optional::<Int64Type>(made_by.iter().map(submission));
        let chunk = |it: &Option<MadeBy>| it.map(|it| it.chunk.0.cast_signed());
        columns.write_optional::<Int64Type>(made_by.iter().map(chunk));
    })
}

/// The entries of a range file.
pub(super) fn decode(bytes: Bytes) -> Result<Entries, What> {
    let mut columns = LAYOUT.read(bytes)?.ok_or("it has no entries")?;
    let entries = Entries {
        paths: texts_of_values(&columns.read::<ByteArrayType>()?)?,
        addresses: texts_of_values(&columns.read::<ByteArrayType>()?)?,
        sizes: columns.read::<Int64Type>()?.into_iter().map(i64::cast_unsigned).collect(),
        digests: digests_of_values(&columns.read::<FixedLenByteArrayType>()?)?,
        content_types: texts_of_values(&columns.read::<ByteArrayType>()?)?,
        metadata: read_metadata(&mut columns)?,
        made_by: read_made_by(&mut columns)?,
    };
    if entries.is_empty() {
        return Err("it has no entries".to_owned());
    }
    if (1..entries.len()).any(|row| entries.path(row - 1) >= entries.path(row)) {
        return Err("its paths are not in order".to_owned());
    }
    Ok(entries)
}

fn read_metadata(columns: &mut ColumnsReader) -> Result<Texts, What> {
    let values = columns.read_optional::<ByteArrayType>()?;
    let values: Vec<ByteArray> =
        values.into_iter().map(|it| it.unwrap_or_else(|| Vec::new().into())).collect();
    let texts = texts_of_values(&values)?;
    if (0..values.len()).any(|row| metadata_of_text(texts.get(row)).is_none()) {
        return Err("an entry's metadata is no JSON object of texts".to_owned());
    }
    Ok(texts)
}

fn read_made_by(columns: &mut ColumnsReader) -> Result<Vec<Option<MadeBy>>, What> {
    let submissions = columns.read_optional::<Int64Type>()?;
    let chunks = columns.read_optional::<Int64Type>()?;
    let made_by = |(submission, chunk): (Option<i64>, Option<i64>)| match (submission, chunk) {
        (Some(submission), Some(chunk)) => SubmissionId::from_u64(submission.cast_unsigned())
            .map(|submission| Some(MadeBy { submission, chunk: ChunkIndex(chunk.cast_unsigned()) }))
            .ok_or_else(|| format!("{submission} is no submission")),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err("an entry has half of a chunk's name".to_owned()),
    };
    submissions.into_iter().zip(chunks).map(made_by).collect()
}
