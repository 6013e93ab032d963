//! Tables on disk: fjall, one keyspace a table, with what is not yet committed in memory.
//!
//! Invariants
//! - Reads see the uncommitted rows over the committed ones.
//! - A commit is one atomic batch over all tables: after any crash it is there as a whole or not at all, and if it is
//!   there, so are all before it.
//! - A commit survives the death of the process, but not that of the machine, until [`DiskTables::persist`].
//!
//! What fjall 3.1.13 does, read from its source:
//! - `WriteBatch::commit` writes the batch to the journal and flushes it to the operating system
//!   (`PersistMode::Buffer`), so after SIGKILL every committed batch is there.
//! - After a power failure the journal ends at its last whole batch, and what was synced is a part of that. A memtable
//!   is flushed to its file only after the journal was synced (its issue 329), so no table runs ahead of the others.
//! - If the power failure left a hole inside an unsynced batch whose end did reach the disk, fjall refuses to open
//!   (checksum mismatch). That is [`StoreFault::TablesTorn`]: build the tables anew from a snapshot and the log.
//! - An unreadable entry kind in the journal ends it there silently, even in synced bytes. So whoever opens tables must
//!   compare their applied position with the log's first entry, and refuse a gap.
//! - If a flush or a compaction fails, its worker ends and the engine takes no more commits; one that waits for a flush waits
//!   for ever. Hence [`TablesHealth`].
//! - A keyspace keeps the settings it was created with. A key must not be empty, nor longer than 65,535 bytes.
//! - A full memtable is reported to the workers at every commit until one of them has time for it. A worker that seals it
//!   puts a message into the queue that those reports fill; a lone worker then waits for itself for ever, and memory
//!   grows (its pull request 323). With two, one spins while the other compacts. So memtables are sealed here, once each,
//!   and one worker is enough.
//! - While one of its snapshots is open, every memtable that is flushed stays in memory. So a [`TablesView`], which is read
//!   for minutes, holds what the trees consist of at its beginning, and no snapshot.

use crate::fault::StoreFault;
use crate::leftovers::Leftovers;
use crate::overlay::{Merged, Overlay};
use crate::table_options::options_of;
use fjall::{AbstractTree, AnyTree, Database, Keyspace, PersistMode};
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::tables::{KeyRange, Row, Table, Tables, Walk, is_empty_range};

/// Blocks read from disk are cached up to here.
const CACHE_BYTES: u64 = 32 << 20;
/// A table's memtable is sealed and flushed beyond this.
const MEMTABLE_BYTES: u64 = 4 << 20;
/// The same for a table whose keys come in no order, since a flush is merged with all that is there; and for the one that a whole
/// commit is staged in, since nobody reads or writes a table while a flush of it is being noted, which is five fsyncs.
const LARGE_MEMTABLE_BYTES: u64 = 16 << 20;
/// All journals together; they are read into memory at start, so this bounds that peak too.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// So much of a table may stay in memory at a start.
const REPLAYED_BYTES_MAX: u64 = 1 << 20;
/// Flushes and compacts.
const WORKER_THREADS: usize = 1;
/// Files held open.
const OPEN_FILES_MAX: usize = 256;

/// The machine's tables on disk.
pub struct DiskTables {
    path: PathBuf,
    database: Database,
    keyspaces: Keyspaces,
    overlays: [Overlay; Table::ALL.len()],
    leftovers: Leftovers,
}

/// One keyspace for each table, in the order of [`Table::ALL`].
type Keyspaces = [Keyspace; Table::ALL.len()];

/// The committed rows as they are whenever one is read, for readers on any thread.
#[derive(Clone)]
pub struct CommittedRows {
    path: PathBuf,
    keyspaces: Keyspaces,
}

/// Whether tables can still be written, for whoever watches them.
#[derive(Clone)]
pub struct TablesHealth {
    path: PathBuf,
    database: Database,
}

/// The committed rows as they were at one moment; they stay so while the machine goes on. What a table's rows hold in
/// memory and on disk is let go when they are dropped.
pub struct TablesView {
    tables: Vec<(Table, ViewRows)>,
}

/// All rows of one table, upwards.
pub(crate) type ViewRows = Box<dyn Iterator<Item = Row> + Send>;

impl DiskTables {
    /// Opens the tables in a folder, or makes empty ones there.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or what it holds is damaged.
    pub fn open(path: &Path) -> Result<DiskTables, StoreFault> {
        let fault = |error| open_fault(path, error);
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .worker_threads(WORKER_THREADS)
            .max_cached_files(Some(OPEN_FILES_MAX))
            .open()
            .map_err(fault)?;
        let mut keyspaces = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            keyspaces.push(database.keyspace(table.name(), || options_of(table)).map_err(fault)?);
        }
        let Ok(keyspaces) = keyspaces.try_into() else {
            unreachable!("one keyspace was pushed for each table")
        };
        let leftovers =
            Leftovers::start().map_err(|error| StoreFault::from_io("start a thread for", path, error))?;
        let path = path.to_owned();
        let tables = DiskTables { path, database, keyspaces, overlays: Default::default(), leftovers };
        tables.flush_replayed().map_err(fault)?;
        Ok(tables)
    }

    /// Flushes what the journals have brought back into memory, all that was flushed before among it.
    fn flush_replayed(&self) -> Result<(), fjall::Error> {
        let is_large = |it: &&Keyspace| it.tree.active_memtable().size() > REPLAYED_BYTES_MAX;
        let mut large = self.keyspaces.iter().filter(is_large).peekable();
        if large.peek().is_none() {
            return Ok(());
        }
        large.try_for_each(|keyspace| self.flush(keyspace))?;
        // What was flushed is let go when the next memtable is sealed. Every commit writes to Meta.
        self.flush(&self.keyspaces[position(Table::Meta)])
    }

    /// Flushes a table's memtable, and waits for that.
    fn flush(&self, keyspace: &Keyspace) -> Result<(), fjall::Error> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        keyspace.rotate_memtable()?;
        while keyspace.tree.sealed_memtable_count() > 0 {
            // A worker that has failed flushes nothing any more.
            self.database.persist(PersistMode::Buffer)?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// A way to see, from elsewhere, whether they can be written.
    pub fn health(&self) -> TablesHealth {
        TablesHealth { path: self.path.clone(), database: self.database.clone() }
    }

    /// Seals a table's memtable if it is full, so that it is flushed.
    fn seal_if_full(&self, table: Table) -> Result<(), fjall::Error> {
        let keyspace = &self.keyspaces[position(table)];
        let memtable = keyspace.tree.active_memtable();
        if memtable.size() > memtable_bytes(table) {
            keyspace.rotate_memtable()?;
            self.leftovers.hold(memtable);
        }
        Ok(())
    }

    /// Makes everything committed durable. Log entries may be dropped only up to an applied index that went through
    /// here.
    ///
    /// # Errors
    /// If the sync fails. The tables then take no more commits.
    pub fn persist(&self) -> Result<(), StoreFault> {
        self.database.persist(PersistMode::SyncAll).map_err(|error| tables_fault(&self.path, &error))
    }

    /// The committed rows as they are now, for a reader on another thread.
    pub fn view(&self) -> TablesView {
        // Open until every tree's parts are held, so that all are of the same moment.
        let moment = self.database.snapshot();
        let rows = |table: &Table| {
            let AnyTree::Standard(tree) = &self.keyspaces[position(*table)].tree else {
                unreachable!("no table is made with its values apart from its keys")
            };
            let path = self.path.clone();
            let rows = tree.create_iter(moment.seqno(), None).map(move |row| {
                let (key, value) = or_stop(&path, "read", row.map_err(fjall::Error::from));
                (key.to_vec(), value.to_vec())
            });
            (*table, Box::new(rows) as ViewRows)
        };
        TablesView { tables: Table::ALL.iter().map(rows).collect() }
    }

    /// The committed rows, which can be read while the machine writes.
    pub fn committed(&self) -> CommittedRows {
        CommittedRows { path: self.path.clone(), keyspaces: self.keyspaces.clone() }
    }

    /// Bytes that the tables take on disk, journals included.
    ///
    /// # Errors
    /// If a journal's size cannot be read.
    pub fn disk_bytes(&self) -> Result<u64, StoreFault> {
        self.database.disk_space().map_err(|error| tables_fault(&self.path, &error))
    }
}

impl Tables for DiskTables {
    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        let overlay = &self.overlays[position(table)];
        if !overlay.is_empty()
            && let Some(row) = overlay.get(key)
        {
            return row.clone();
        }
        let found = self.keyspaces[position(table)].get(key);
        or_stop(&self.path, "read", found).map(|value| value.to_vec())
    }

    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.overlays[position(table)].insert(key.to_vec(), Some(value));
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.overlays[position(table)].insert(key.to_vec(), None);
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
    ) -> Box<dyn Iterator<Item = Row> + 'a> {
        if is_empty_range(range) {
            return Box::new(std::iter::empty());
        }
        let committed = rows(&self.path, self.keyspaces[position(table)].range::<&[u8], _>(range), walk);
        let overlay = &self.overlays[position(table)];
        if overlay.is_empty() {
            return committed;
        }
        Box::new(Merged::new(committed, overlay, range, walk))
    }

    fn commit(&mut self) {
        let rows = self.overlays.iter().map(Overlay::len).sum();
        if rows == 0 {
            return;
        }
        // Flushed to the operating system, not synced: the log is what is synced.
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), rows)
            .durability(Some(PersistMode::Buffer));
        let mut written = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            let keyspace = &self.keyspaces[position(table)];
            let overlay = std::mem::take(&mut self.overlays[position(table)]);
            if !overlay.is_empty() {
                written.push(table);
            }
            for (key, value) in overlay {
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        or_stop(&self.path, "write", batch.commit());
        for table in written {
            or_stop(&self.path, "write", self.seal_if_full(table));
        }
    }
}

impl CommittedRows {
    /// The value of a row.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        let found = self.keyspaces[position(table)].get(key);
        or_unwind(&self.path, found).map(|value| value.to_vec())
    }

    /// The rows of a range as they are now, upwards.
    pub fn scan<'a>(&'a self, table: Table, range: KeyRange<'_>) -> Box<dyn Iterator<Item = Row> + 'a> {
        if is_empty_range(range) {
            return Box::new(std::iter::empty());
        }
        let found = self.keyspaces[position(table)].range::<&[u8], _>(range);
        Box::new(found.map(|guard| {
            let (key, value) = or_unwind(&self.path, guard.into_inner());
            (key.to_vec(), value.to_vec())
        }))
    }
}

impl TablesHealth {
    /// Whether the tables can still be written.
    ///
    /// # Errors
    /// If something failed that the engine did by itself, such as a flush: whoever commits would then wait for ever.
    pub fn check(&self) -> Result<(), StoreFault> {
        self.database.persist(PersistMode::Buffer).map_err(|error| tables_fault(&self.path, &error))
    }
}

impl TablesView {
    /// The tables in the order of [`Table::ALL`], each with its rows.
    pub(crate) fn into_tables(self) -> impl Iterator<Item = (Table, ViewRows)> {
        self.tables.into_iter()
    }
}

fn position(table: Table) -> usize {
    Table::ALL.binary_search(&table).expect("all tables are listed in the order of their numbers")
}

fn memtable_bytes(table: Table) -> u64 {
    match table {
        Table::Found | Table::Staged => LARGE_MEMTABLE_BYTES,
        _ => MEMTABLE_BYTES,
    }
}

fn rows(path: &Path, found: fjall::Iter, walk: Walk) -> Box<dyn Iterator<Item = Row> + '_> {
    let row = |guard: fjall::Guard| {
        let (key, value) = or_stop(path, "read", guard.into_inner());
        (key.to_vec(), value.to_vec())
    };
    match walk {
        Walk::Up => Box::new(found.map(row)),
        Walk::Down => Box::new(found.rev().map(row)),
    }
}

/// Stops the process's work if the tables fail: a machine that goes on without its rows would answer wrongly.
fn or_stop<T>(path: &Path, action: &'static str, result: fjall::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        // After its first failed write the engine only says that it is poisoned; the disk says why.
        let fault = if is_full(path) {
            StoreFault::DiskFull { action, path: path.to_owned() }
        } else {
            tables_fault(path, &error)
        };
        tracing::error!(%fault, "the server stops here");
        // Said above: the hook that prints panics has nothing to add.
        std::panic::resume_unwind(Box::new(fault));
    })
}

/// Ends what somebody does beside the machine, if it cannot read; whoever it is tries again, or says so.
fn or_unwind<T>(path: &Path, result: fjall::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        let fault = tables_fault(path, &error);
        tracing::error!(%fault, "a read of the tables has failed");
        std::panic::resume_unwind(Box::new(fault));
    })
}

/// Whether the disk has less than a journal's next write of space.
fn is_full(path: &Path) -> bool {
    const SPACE_MIN_BYTES: u64 = 1 << 20;
    rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < SPACE_MIN_BYTES)
}

fn tables_fault(path: &Path, error: &fjall::Error) -> StoreFault {
    StoreFault::Tables { path: path.to_owned(), detail: error.to_string() }
}

fn open_fault(path: &Path, error: fjall::Error) -> StoreFault {
    match error {
        fjall::Error::Io(source) => StoreFault::from_io("open the tables in", path, source),
        fjall::Error::JournalRecovery(
            torn @ (fjall::JournalRecoveryError::ChecksumMismatch
            | fjall::JournalRecoveryError::InsufficientLength
            | fjall::JournalRecoveryError::TooManyItems),
        ) => StoreFault::TablesTorn { path: path.to_owned(), detail: format!("{torn:?}") },
        fjall::Error::Locked => StoreFault::InUse { path: path.to_owned(), pid: None },
        other => tables_fault(path, &other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Bound::Unbounded;
    use windlass_core::seeded::Seeded;
    use windlass_core::tables::{MemoryTables, conformance};

    const ALL: KeyRange<'static> = (Unbounded, Unbounded);

    #[test]
    fn disk_tables_pass_the_suite() {
        let folder = tempfile::tempdir().unwrap();
        conformance::suite(&mut DiskTables::open(folder.path()).unwrap());
    }

    #[test]
    fn what_was_committed_is_there_after_opening_again_and_the_rest_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        for table in Table::ALL {
            tables.put(table, b"key", table.name().into());
        }
        tables.commit();
        tables.persist().unwrap();
        tables.put(Table::Meta, b"key", b"not committed".to_vec());
        drop(tables);
        let tables = DiskTables::open(folder.path()).unwrap();
        for table in Table::ALL {
            assert_eq!(tables.get(table, b"key"), Some(table.name().into()));
        }
    }

    #[test]
    fn what_is_not_on_disk_stays_bounded_while_commits_outrun_the_worker() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        let mut chance = Seeded::new(7);
        for _ in 0..6_000 {
            for table in [Table::Found, Table::Abouts, Table::Traits] {
                tables.put(table, &chance.draw().to_be_bytes(), vec![1; 8 << 10]);
            }
            tables.commit();
            // Four sealed ones and the open one are the most that the engine lets a table have.
            let most = 5 * (LARGE_MEMTABLE_BYTES + 2 * MEMTABLE_BYTES) + (1 << 20);
            assert!(tables.database.write_buffer_size() < most, "{}", tables.database.write_buffer_size());
        }
    }

    #[test]
    fn a_view_stays_as_it_was_while_commits_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        tables.put(Table::Blocks, b"a", b"1".to_vec());
        tables.commit();
        tables.put(Table::Blocks, b"b", b"uncommitted".to_vec());
        let view = tables.view();
        tables.put(Table::Blocks, b"a", b"2".to_vec());
        tables.commit();
        let (_, rows) = view.into_tables().find(|(table, _)| *table == Table::Blocks).unwrap();
        assert_eq!(rows.collect::<Vec<_>>(), [(b"a".to_vec(), b"1".to_vec())]);
        assert_eq!(tables.get(Table::Blocks, b"a"), Some(b"2".to_vec()));
    }

    #[test]
    fn a_view_keeps_nothing_in_memory_of_what_is_flushed_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        let mut chance = Seeded::new(7);
        let mut write = |tables: &mut DiskTables, count| {
            for _ in 0..count {
                tables.put(Table::Tasks, &chance.draw().to_be_bytes(), vec![1; 8 << 10]);
                tables.commit();
            }
        };
        write(&mut tables, 1_000);
        let before: Vec<_> = tables.scan(Table::Tasks, ALL, Walk::Up).collect();
        let view = tables.view();
        write(&mut tables, 10_000);
        // Those that may be sealed, and a few that were flushed since; all that was written would be several times as much.
        let held = tables.keyspaces[position(Table::Tasks)].tree.version_memtable_size_sum();
        assert!(held < 12 * (MEMTABLE_BYTES + (1 << 20)), "{held} bytes are held");
        let (_, rows) = view.into_tables().find(|(table, _)| *table == Table::Tasks).unwrap();
        assert!(rows.eq(before), "the view is as it was, whatever was flushed and compacted since");
    }

    #[test]
    fn a_backlog_that_comes_in_order_pins_next_to_nothing() {
        const TASKS: u64 = 200_000;
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        let backlog = [Table::Tasks, Table::Levels, Table::KeyLevels];
        for first in (0..TASKS).step_by(1_000) {
            for task in first..first + 1_000 {
                for table in backlog {
                    tables.put(table, &task.to_be_bytes(), vec![1; 50]);
                }
            }
            tables.commit();
        }
        for table in backlog {
            let keyspace = &tables.keyspaces[position(table)];
            keyspace.rotate_memtable_and_wait().unwrap();
            let pinned = keyspace.tree.pinned_filter_size() + keyspace.tree.pinned_block_index_size();
            // A bit for each task would be felt with a hundred million of them.
            assert!(pinned < TASKS as usize / 8, "{}: {pinned} bytes for {TASKS} rows", table.name());
        }
    }

    /// Tables closed after twenty commits over two tables, and the bytes of their journal.
    fn twenty_commits(folder: &Path) -> (PathBuf, Vec<u8>) {
        let mut tables = DiskTables::open(folder).unwrap();
        for count in 1..=20_u8 {
            tables.put(Table::Meta, b"applied", vec![count]);
            tables.put(Table::Blocks, &[count], vec![count; 50]);
            tables.commit();
        }
        drop(tables);
        let journal = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let journal =
            journal.filter(|path| path.extension().is_some_and(|kind| kind == "jnl")).max().unwrap();
        let bytes = std::fs::read(&journal).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        (journal, bytes[..end].to_vec())
    }

    /// How many commits there are, having checked that both tables agree on it.
    fn commits(folder: &Path) -> usize {
        let tables = DiskTables::open(folder).unwrap();
        let applied = tables.get(Table::Meta, b"applied").map_or(0, |value| value[0]);
        let blocks = tables.scan(Table::Blocks, ALL, Walk::Up).count();
        assert_eq!(usize::from(applied), blocks, "a commit is over both tables or over none");
        blocks
    }

    #[test]
    fn a_journal_that_ends_anywhere_opens_at_a_whole_commit() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, bytes) = twenty_commits(folder.path());
        assert_eq!(commits(folder.path()), 20);
        for end in (0..bytes.len()).rev().step_by(37) {
            std::fs::write(&journal, &bytes[..end]).unwrap();
            assert!(commits(folder.path()) < 20, "cut at {end} of {}", bytes.len());
        }
    }

    #[test]
    fn a_journal_whose_end_never_reached_the_disk_opens_at_a_whole_commit() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, bytes) = twenty_commits(folder.path());
        for lost in (1..=20_u8).rev() {
            let at = bytes.windows(50).position(|window| window == [lost; 50]).unwrap();
            let mut torn = bytes.clone();
            // The file is as long as before: it was allocated ahead.
            torn[at + 20..].fill(0);
            std::fs::write(&journal, &torn).unwrap();
            assert_eq!(commits(folder.path()), usize::from(lost) - 1);
        }
    }

    #[test]
    fn a_hole_in_the_journal_is_told_from_other_faults() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, mut bytes) = twenty_commits(folder.path());
        let at = bytes.windows(50).position(|window| window == [10; 50]).unwrap();
        bytes[at..at + 50].fill(0);
        std::fs::write(&journal, &bytes).unwrap();
        let fault = DiskTables::open(folder.path()).err().unwrap();
        assert!(matches!(fault, StoreFault::TablesTorn { .. }), "{fault}");
    }

    #[test]
    fn a_second_opener_of_the_same_tables_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _tables = DiskTables::open(folder.path()).unwrap();
        assert!(matches!(DiskTables::open(folder.path()).err(), Some(StoreFault::InUse { .. })));
    }

    #[test]
    fn disk_tables_answer_as_memory_tables_do_under_random_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = DiskTables::open(folder.path()).unwrap();
        let mut memory = MemoryTables::default();
        let mut seed = 7_u64;
        let mut roll = |sides: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % sides
        };
        for step in 0..3000 {
            let table = Table::ALL[roll(3) as usize];
            let key = [roll(5) as u8, roll(5) as u8];
            match roll(10) {
                0..=4 => {
                    let value = vec![step as u8; roll(20) as usize];
                    disk.put(table, &key, value.clone());
                    memory.put(table, &key, value);
                }
                5..=7 => {
                    disk.delete(table, &key);
                    memory.delete(table, &key);
                }
                8 => disk.commit(),
                _ if roll(50) == 0 => {
                    disk.commit();
                    drop(disk);
                    disk = DiskTables::open(folder.path()).unwrap();
                }
                _ => {
                    for walk in [Walk::Up, Walk::Down] {
                        let all: Vec<_> = disk.scan(table, ALL, walk).collect();
                        assert_eq!(all, memory.scan(table, ALL, walk).collect::<Vec<_>>(), "step {step}");
                    }
                    let found: Vec<_> = disk.scan_prefix(table, &key[..1]).collect();
                    assert_eq!(
                        found,
                        memory.scan_prefix(table, &key[..1]).collect::<Vec<_>>(),
                        "step {step}"
                    );
                }
            }
            assert_eq!(disk.get(table, &key), memory.get(table, &key), "step {step}");
        }
    }
}
