//! Columns: Parquet files of one row group, written and read column by column.
//!
//! Invariants
//! - The same values give the same bytes: every setting of the writer that shows in a file is fixed here.
//! - A file whose schema is not exactly the one that is asked for is not read.

use super::entries::Texts;
use crate::turns::give_way;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion,
};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use std::sync::Arc;

/// Why bytes are not what they should be: a part of a sentence.
pub(super) type What = String;

/// So many rows are written or read before others get their turn. Not to be changed: the writer looks at its pages after as many,
/// so it shows in the bytes of files.
const ROWS_AT_ONCE: usize = 1_024;

/// What a file is made of: its schema, and how its columns are encoded.
pub(super) struct Layout {
    schema: TypePtr,
    properties: WriterProperties,
}

impl Layout {
    /// The layout of a schema. Columns are plain but for those that are named with an encoding, and those that have a
    /// dictionary.
    pub(super) fn new(schema: &str, encodings: &[(&str, Encoding)], dictionaries: &[&str]) -> Layout {
        let schema = parse_message_type(schema).expect("schemas are constants that a test has read");
        let column = |name: &str| ColumnPath::new(vec![name.to_owned()]);
        let mut properties = fixed_properties();
        for (name, encoding) in encodings {
            properties = properties.set_column_encoding(column(name), *encoding);
        }
        for name in dictionaries {
            properties = properties.set_column_dictionary_enabled(column(name), true);
        }
        Layout { schema: Arc::new(schema), properties: properties.build() }
    }

    /// A file of one row group, or of none if there are no rows.
    pub(super) fn write(&self, rows: usize, columns: impl FnOnce(&mut ColumnsWriter<'_>)) -> Bytes {
        let properties = Arc::new(self.properties.clone());
        let mut writer = SerializedFileWriter::new(Vec::new(), Arc::clone(&self.schema), properties)
            .expect("memory takes the begin of a file");
        if rows > 0 {
            let group = writer.next_row_group().expect("memory takes a row group");
            let mut group = ColumnsWriter(group);
            columns(&mut group);
            group.0.close().expect("every column of the schema was written, with as many rows");
        }
        Bytes::from(writer.into_inner().expect("memory takes the end of a file"))
    }

    /// The columns of a file; none if it has no rows.
    pub(super) fn read(&self, bytes: Bytes) -> Result<Option<ColumnsReader>, What> {
        let file = SerializedFileReader::new(bytes).map_err(unreadable)?;
        let metadata = file.metadata();
        if metadata.file_metadata().schema() != &*self.schema {
            return Err("its columns are not those that this build knows".to_owned());
        }
        match metadata.num_row_groups() {
            0 => Ok(None),
            1 => {
                let rows = usize::try_from(metadata.row_group(0).num_rows()).unwrap_or_default();
                Ok(Some(ColumnsReader { file, rows, column: 0 }))
            }
            more => Err(format!("it has {more} row groups, not one")),
        }
    }
}

/// All that shows in the bytes of a file is named here, so that a change of the library's defaults changes no file.
fn fixed_properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_created_by("windlass".to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_dictionary_page_size_limit(1 << 20)
        .set_data_page_size_limit(1 << 20)
        .set_data_page_row_count_limit(20_000)
        .set_write_batch_size(ROWS_AT_ONCE)
        .set_max_row_group_row_count(None)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_statistics_truncate_length(Some(64))
        .set_column_index_truncate_length(Some(64))
        .set_write_page_header_statistics(false)
        .set_offset_index_disabled(true)
}

/// Writes the columns of a file, in the order of its schema.
pub(super) struct ColumnsWriter<'a>(SerializedRowGroupWriter<'a, Vec<u8>>);

impl ColumnsWriter<'_> {
    /// Writes the next column.
    pub(super) fn write<T: DataType>(&mut self, values: &[T::T]) {
        self.write_levels::<T>(values, None);
    }

    /// Writes the next column, which has no value in some rows.
    pub(super) fn write_optional<T: DataType>(&mut self, rows: impl Iterator<Item = Option<T::T>>) {
        let mut values = Vec::new();
        let levels: Vec<i16> = rows
            .map(|row| {
                let level = i16::from(row.is_some());
                values.extend(row);
                level
            })
            .collect();
        self.write_levels::<T>(&values, Some(&levels));
    }

    fn write_levels<T: DataType>(&mut self, values: &[T::T], levels: Option<&[i16]>) {
        let column = self.0.next_column().expect("memory takes a column");
        let mut column = column.expect("no more columns are written than the schema has");
        let rows = levels.map_or(values.len(), <[i16]>::len);
        let mut left = values;
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let end = rows.min(first + ROWS_AT_ONCE);
            let levels = levels.map(|levels| &levels[first..end]);
            let count =
                levels.map_or(end - first, |levels| levels.iter().filter(|level| **level > 0).count());
            let (values, rest) = left.split_at(count);
            column.typed::<T>().write_batch(values, levels, None).expect("values are of the column's type");
            left = rest;
            give_way();
        }
        column.close().expect("memory takes the end of a column");
    }
}

/// Reads the columns of a file, in the order of its schema.
pub(super) struct ColumnsReader {
    file: SerializedFileReader<Bytes>,
    pub(super) rows: usize,
    column: usize,
}

impl ColumnsReader {
    /// Reads the next column.
    pub(super) fn read<T: DataType>(&mut self) -> Result<Vec<T::T>, What> {
        let (values, _) = self.read_levels::<T>()?;
        if values.len() != self.rows {
            return Err("a column has too few values".to_owned());
        }
        Ok(values)
    }

    /// Reads the next column, which may have no value in some rows.
    pub(super) fn read_optional<T: DataType>(&mut self) -> Result<Vec<Option<T::T>>, What> {
        let (values, levels) = self.read_levels::<T>()?;
        let mut values = values.into_iter();
        Ok(levels.into_iter().map(|level| if level == 0 { None } else { values.next() }).collect())
    }

    fn read_levels<T: DataType>(&mut self) -> Result<(Vec<T::T>, Vec<i16>), What> {
        let group = self.file.get_row_group(0).map_err(unreadable)?;
        let column = group.get_column_reader(self.column).map_err(unreadable)?;
        self.column += 1;
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut column = get_typed_column_reader::<T>(column);
        let mut left = self.rows;
        while left > 0 {
            let some = left.min(ROWS_AT_ONCE);
            let read = column.read_records(some, Some(&mut levels), None, &mut values);
            let (records, _, _) = read.map_err(unreadable)?;
            if records == 0 {
                return Err("a column has too few rows".to_owned());
            }
            left -= records;
            give_way();
        }
        Ok((values, levels))
    }
}

fn unreadable(error: ParquetError) -> What {
    format!("it is no Parquet file that can be read ({error})")
}

/// Texts as the values of a column, without a copy of each.
pub(super) fn values_of_texts(texts: Texts) -> Vec<ByteArray> {
    let text = Bytes::from(texts.text);
    let begins = std::iter::once(&0).chain(&texts.ends);
    begins
        .zip(&texts.ends)
        .map(|(begin, end)| ByteArray::from(text.slice(*begin as usize..*end as usize)))
        .collect()
}

/// The texts that a column's values are.
pub(super) fn texts_of_values(values: &[ByteArray]) -> Result<Texts, What> {
    let mut texts = Texts::default();
    for value in values {
        texts.push(std::str::from_utf8(value.data()).map_err(|_| "a text is not UTF-8".to_owned())?);
    }
    Ok(texts)
}

/// Digests as the values of a column, without a copy of each.
pub(super) fn values_of_digests(digests: &[[u8; 32]]) -> Vec<FixedLenByteArray> {
    let bytes = Bytes::copy_from_slice(digests.as_flattened());
    let value = |row: usize| FixedLenByteArray::from(ByteArray::from(bytes.slice(32 * row..32 * (row + 1))));
    (0..digests.len()).map(value).collect()
}

/// The digests that a column's values are.
pub(super) fn digests_of_values(values: &[FixedLenByteArray]) -> Result<Vec<[u8; 32]>, What> {
    let digest = |value: &FixedLenByteArray| {
        value.data().try_into().map_err(|_| "a digest has not 32 bytes".to_owned())
    };
    values.iter().map(digest).collect()
}
