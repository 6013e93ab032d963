//! Snapshot: all rows of all tables in one file, and back.
//!
//! ```text
//! file   = magic 8, version u32, block, block, …, trailer          (numbers are little-endian)
//! block  = table number u8, rows u32, length of the rows u32, crc u32, then its rows
//! row    = key length u32, value length u32, key, value
//! trailer = a block of table 0 with no rows and the count of all rows u64 as its bytes; the file ends with it
//! ```
//!
//! Invariants
//! - A file has its name only when it is whole and durable.
//! - Each block's crc goes on from the one before, from the header's at first: blocks cannot be left out or exchanged.
//! - Reading checks the whole file before it changes a row.
//! - While rows are being replaced the Meta table is empty: its rows are removed first and put back last. Tables whose
//!   Meta is empty after a crash must be read again.

use crate::fault::StoreFault;
use crate::tables::TablesView;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use windlass_core::tables::{Row, Table, Tables, Walk};

const MAGIC: &[u8; 8] = b"WNDLSNAP";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 12;
/// Bytes of a block before its rows: table, count, length, crc.
const BLOCK_HEAD_BYTES: usize = 13;
/// A block is written when it has reached this size; one row more may make it larger.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows replaced in one commit hold about this many bytes, which bounds the memory that reading takes.
const COMMIT_BYTES: usize = 8 << 20;
/// The trailer's table number; no table has it.
const TRAILER: u8 = 0;

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes all rows to a file, which gets its name when it is whole and durable.
///
/// # Errors
/// If the file cannot be written.
pub fn write(tables: &dyn Tables, path: &Path) -> Result<SnapshotSummary, StoreFault> {
    let rows = |table| tables.scan(table, (Bound::Unbounded, Bound::Unbounded), Walk::Up);
    write_rows(path, Table::ALL.into_iter().map(|table| (table, rows(table))))
}

/// Writes the rows of a view, while the machine goes on.
///
/// # Errors
/// If the file cannot be written.
pub fn write_view(view: TablesView, path: &Path) -> Result<SnapshotSummary, StoreFault> {
    write_rows(path, view.into_tables())
}

/// Checks a whole snapshot without reading its rows into anything.
///
/// # Errors
/// If it cannot be read, is damaged or cut short, or holds what this build does not know.
pub fn verify(path: &Path) -> Result<SnapshotSummary, StoreFault> {
    let mut reader = SnapshotReader::open(path)?;
    while reader.next_block()?.is_some() {}
    Ok(SnapshotSummary { rows: reader.rows, bytes: reader.bytes })
}

/// Replaces all rows of the tables by those of a snapshot, in several commits.
///
/// # Errors
/// As [`verify`]; the tables are then as they were. If the file changes while it is read, Meta stays empty.
pub fn read_into(path: &Path, tables: &mut dyn Tables) -> Result<SnapshotSummary, StoreFault> {
    let summary = verify(path)?;

    // Meta is first in Table::ALL, so it is gone before any other row changes.
    for table in Table::ALL {
        delete_all(tables, table);
    }
    let mut reader = SnapshotReader::open(path)?;
    let mut meta = Vec::new();
    let mut uncommitted = 0;
    while let Some((table, rows)) = reader.next_block()? {
        for (key, value) in rows {
            uncommitted += key.len() + value.len();
            match table {
                Table::Meta => meta.push((key, value)),
                _ => tables.put(table, &key, value),
            }
        }
        if uncommitted >= COMMIT_BYTES {
            tables.commit();
            uncommitted = 0;
        }
    }
    tables.commit();
    for (key, value) in meta {
        tables.put(Table::Meta, &key, value);
    }
    tables.commit();
    Ok(summary)
}

fn delete_all(tables: &mut dyn Tables, table: Table) {
    const KEYS_PER_COMMIT: usize = 10_000;
    let mut from = None;
    loop {
        let start = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = tables.scan(table, (start, Bound::Unbounded), Walk::Up);
        let keys: Vec<Vec<u8>> = rows.map(|(key, _)| key).take(KEYS_PER_COMMIT).collect();
        for key in &keys {
            tables.delete(table, key);
        }
        tables.commit();
        let Some(last) = keys.into_iter().next_back() else { return };
        from = Some(last);
    }
}

fn write_rows(
    path: &Path,
    tables: impl Iterator<Item = (Table, impl Iterator<Item = Row>)>,
) -> Result<SnapshotSummary, StoreFault> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    let written = write_file(&unfinished, path, tables);
    written.map_err(|error| {
        // The half-written file takes space that may be what is missing.
        let _ = std::fs::remove_file(&unfinished);
        StoreFault::from_io("write the snapshot", path, error)
    })
}

fn write_file(
    unfinished: &Path,
    path: &Path,
    tables: impl Iterator<Item = (Table, impl Iterator<Item = Row>)>,
) -> io::Result<SnapshotSummary> {
    let mut writer = SnapshotWriter::begin(BufWriter::new(File::create(unfinished)?))?;
    for (table, rows) in tables {
        for (key, value) in rows {
            writer.push(table, &key, &value)?;
        }
        writer.finish_block(table.number())?;
    }
    let (file, summary) = writer.finish()?;
    file.into_inner()?.sync_all()?;
    std::fs::rename(unfinished, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(summary)
}

struct SnapshotWriter<W> {
    out: W,
    crc: u32,
    block: Vec<u8>,
    block_rows: u32,
    rows: u64,
    bytes: u64,
}

impl<W: Write> SnapshotWriter<W> {
    fn begin(mut out: W) -> io::Result<SnapshotWriter<W>> {
        let header = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        out.write_all(&header)?;
        let crc = crc32c::crc32c(&header);
        Ok(SnapshotWriter { out, crc, block: Vec::new(), block_rows: 0, rows: 0, bytes: header.len() as u64 })
    }

    fn push(&mut self, table: Table, key: &[u8], value: &[u8]) -> io::Result<()> {
        for part in [key, value] {
            let length =
                u32::try_from(part.len()).map_err(|_| io::Error::other("a row is larger than 4 GiB"))?;
            self.block.extend_from_slice(&length.to_le_bytes());
        }
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.block_rows += 1;
        self.rows += 1;
        if self.block.len() >= BLOCK_BYTES { self.finish_block(table.number()) } else { Ok(()) }
    }

    fn finish_block(&mut self, table: u8) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let length =
            u32::try_from(self.block.len()).map_err(|_| io::Error::other("a row is larger than 4 GiB"))?;
        let head = block_head(table, self.block_rows, length);
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, &head), &self.block);
        self.out.write_all(&head)?;
        self.out.write_all(&self.crc.to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.bytes += (BLOCK_HEAD_BYTES + self.block.len()) as u64;
        self.block.clear();
        self.block_rows = 0;
        Ok(())
    }

    fn finish(mut self) -> io::Result<(W, SnapshotSummary)> {
        self.block.extend_from_slice(&self.rows.to_le_bytes());
        self.finish_block(TRAILER)?;
        Ok((self.out, SnapshotSummary { rows: self.rows, bytes: self.bytes }))
    }
}

fn block_head(table: u8, rows: u32, length: u32) -> [u8; 9] {
    let mut head = [table; 9];
    head[1..5].copy_from_slice(&rows.to_le_bytes());
    head[5..9].copy_from_slice(&length.to_le_bytes());
    head
}

struct SnapshotReader {
    path: PathBuf,
    file: BufReader<File>,
    crc: u32,
    /// Bytes of the file.
    bytes: u64,
    /// Where the next block begins.
    offset: u64,
    /// Rows read so far.
    rows: u64,
}

impl SnapshotReader {
    fn open(path: &Path) -> Result<SnapshotReader, StoreFault> {
        let io = |error| StoreFault::from_io("read the snapshot", path, error);
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let file = BufReader::new(file);
        let mut reader = SnapshotReader { path: path.to_owned(), file, crc: 0, bytes, offset: 0, rows: 0 };
        let header = reader.read(HEADER_BYTES, "the file is too short for a header")?;
        if !header.starts_with(MAGIC) {
            return Err(reader.damaged("it does not begin as a snapshot does"));
        }
        let version = u32_at(&header, 8);
        if version != VERSION {
            return Err(reader.unknown(format!("format version {version}")));
        }
        reader.crc = crc32c::crc32c(&header);
        reader.offset = HEADER_BYTES as u64;
        Ok(reader)
    }

    /// The next block's rows, or none after a sound trailer at the end of the file.
    fn next_block(&mut self) -> Result<Option<(Table, Vec<Row>)>, StoreFault> {
        let head = self.read(BLOCK_HEAD_BYTES, "the file ends without a trailer")?;
        let (number, rows) = (head[0], u32_at(&head, 1));
        let length = u32_at(&head, 5) as usize;
        let at = self.offset + BLOCK_HEAD_BYTES as u64;
        // Checked before the buffer is made, since a damaged length may say anything.
        if at + length as u64 > self.bytes {
            return Err(self.damaged("the block is cut short"));
        }
        let block = self.read(length, "the block is cut short")?;
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, &head[..9]), &block);
        if self.crc != u32_at(&head, 9) {
            return Err(self.damaged("the block fails its checksum"));
        }
        if number == TRAILER {
            let is_sound = block == self.rows.to_le_bytes() && rows == 0 && at + length as u64 == self.bytes;
            return if is_sound {
                Ok(None)
            } else {
                Err(self.damaged("the trailer does not fit what is before it"))
            };
        }
        let Some(table) = Table::from_number(number) else {
            return Err(self.unknown(format!("rows of table {number}")));
        };
        let rows = read_rows(&block, rows).ok_or_else(|| self.damaged("the block's rows do not fill it"))?;
        self.rows += rows.len() as u64;
        self.offset = at + length as u64;
        Ok(Some((table, rows)))
    }

    fn read(&mut self, length: usize, too_short: &'static str) -> Result<Vec<u8>, StoreFault> {
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(too_short),
            _ => StoreFault::from_io("read the snapshot", &self.path, error),
        })?;
        Ok(bytes)
    }

    fn damaged(&self, what: &'static str) -> StoreFault {
        StoreFault::SnapshotDamaged { path: self.path.clone(), offset: self.offset, what }
    }

    fn unknown(&self, what: String) -> StoreFault {
        StoreFault::SnapshotUnknown { path: self.path.clone(), what }
    }
}

/// The rows of a block; none if they do not fill it exactly.
fn read_rows(mut block: &[u8], count: u32) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    for _ in 0..count {
        let (head, rest) = block.split_at_checked(8)?;
        let (key, rest) = rest.split_at_checked(u32_at(head, 0) as usize)?;
        let (value, rest) = rest.split_at_checked(u32_at(head, 4) as usize)?;
        rows.push((key.to_vec(), value.to_vec()));
        block = rest;
    }
    block.is_empty().then_some(rows)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::DiskTables;
    use windlass_core::tables::MemoryTables;

    fn some_rows() -> MemoryTables {
        let mut tables = MemoryTables::default();
        tables.put(Table::Meta, b"applied", vec![9]);
        tables.put(Table::Blocks, b"k", b"value".to_vec());
        tables.put(Table::Found, b"x", vec![]);
        tables
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_stored_bytes_are_forever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let summary = write(&some_rows(), &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(summary, SnapshotSummary { rows: 3, bytes: bytes.len() as u64 });
        assert_eq!(
            hex(&bytes),
            concat!(
                "574e444c534e415001000000",
                "010100000010000000936b2bd907000000010000006170706c69656409",
                "05010000000e000000d3dd1f2301000000050000006b76616c7565",
                "0a010000000900000010b17700010000000000000078",
                "00000000000800000076ebb4130300000000000000",
            )
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no unfinished file is left");
    }

    #[test]
    fn rows_of_many_blocks_come_back_and_take_the_place_of_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let mut from = some_rows();
        for key in 0..20_000_u32 {
            from.put(Table::Outputs, &key.to_be_bytes(), vec![key as u8; 100]);
        }
        from.put(Table::Abouts, b"large", vec![1; 3 * BLOCK_BYTES]);
        let written = write(&from, &path).unwrap();
        assert_eq!(written.rows, 20_004);
        assert_eq!(verify(&path).unwrap(), written);

        let mut into = DiskTables::open(&folder.path().join("tables")).unwrap();
        for table in Table::ALL {
            into.put(table, b"old", b"gone after".to_vec());
        }
        into.commit();
        assert_eq!(read_into(&path, &mut into).unwrap(), written);
        let again = folder.path().join("again");
        assert_eq!(write_view(into.view().unwrap(), &again).unwrap(), written);
        assert!(std::fs::read(&again).unwrap() == std::fs::read(&path).unwrap());
    }

    #[test]
    fn a_snapshot_that_is_damaged_or_cut_anywhere_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        write(&some_rows(), &path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut before = MemoryTables::default();
        before.put(Table::Meta, b"applied", vec![1]);

        let refuse = |bytes: &[u8], how: &str| {
            std::fs::write(&path, bytes).unwrap();
            let mut tables = before.clone();
            assert!(read_into(&path, &mut tables).is_err(), "{how}");
            assert_eq!(tables, before, "{how}");
        };
        for at in 0..whole.len() {
            let mut hurt = whole.clone();
            hurt[at] ^= 0x20;
            refuse(&hurt, &format!("byte {at} flipped"));
            refuse(&whole[..at], &format!("cut at byte {at}"));
        }
        refuse(&[&whole[..], b"more"].concat(), "lengthened");
    }

    #[test]
    fn what_this_build_does_not_know_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        write(&some_rows(), &path).unwrap();
        let mut newer = std::fs::read(&path).unwrap();
        newer[8] = 2;
        std::fs::write(&path, newer).unwrap();
        assert_eq!(
            verify(&path).unwrap_err().to_string(),
            format!(
                "the snapshot {} holds format version 2, which this build does not know; nothing was read from it: \
                 use the build that wrote it, or a newer one",
                path.display()
            )
        );

        let mut writer = SnapshotWriter::begin(Vec::new()).unwrap();
        writer.push(Table::Meta, b"k", b"v").unwrap();
        writer.finish_block(200).unwrap();
        std::fs::write(&path, writer.finish().unwrap().0).unwrap();
        let fault = verify(&path).unwrap_err();
        assert!(
            matches!(&fault, StoreFault::SnapshotUnknown { what, .. } if what == "rows of table 200"),
            "{fault}"
        );
    }
}
