//! The engine: fjall, one keyspace a table, and how its failures are told.

use super::generation::{Generation, position};
use super::leftovers::Leftovers;
use super::options::options_of;
use super::recent::Recent;
use crate::fault::StoreFault;
use fjall::{AbstractTree, AnyTree, Database, Keyspace, PersistMode, Slice};
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::tables::{KeyRange, Row, Table, Walk};

/// Blocks read from disk are cached up to here.
const CACHE_BYTES: u64 = 32 << 20;
/// A table's memtable is sealed and flushed beyond this.
pub(super) const MEMTABLE_BYTES: u64 = 4 << 20;
/// The same for a table whose keys come in no order, since a flush is merged with all that is there; and for the one that a whole
/// commit is staged in, since nobody reads or writes a table while a flush of it is being noted, which is five fsyncs.
pub(super) const LARGE_MEMTABLE_BYTES: u64 = 16 << 20;
/// All journals together; they are read into memory at start, so this bounds that peak too.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// So much of a table may stay in memory at a start.
const REPLAYED_BYTES_MAX: u64 = 1 << 20;
/// Flushes and compacts.
const WORKER_THREADS: usize = 1;
/// Files held open.
const OPEN_FILES_MAX: usize = 256;

/// See the file's head.
pub(super) struct Engine {
    pub(super) path: PathBuf,
    pub(super) database: Database,
    keyspaces: Keyspaces,
    recent_levels: Recent,
    recent_key_levels: Recent,
    leftovers: Leftovers,
}

/// One keyspace for each table, in the order of [`Table::ALL`].
type Keyspaces = [Keyspace; Table::ALL.len()];

/// What becomes of a row that cannot be read.
pub(super) type OnFault = fn(&Engine, fjall::Result<(Slice, Slice)>) -> (Slice, Slice);

/// The engine's rows as they were at one moment; they stay so while others are written. What a table's rows hold in
/// memory and on disk is let go when they are dropped.
pub struct TablesView {
    tables: Vec<(Table, ViewRows)>,
}

/// All rows of one table, upwards.
pub(crate) type ViewRows = Box<dyn Iterator<Item = Row> + Send>;

impl Engine {
    pub(super) fn open(path: &Path) -> Result<Engine, StoreFault> {
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
        let engine = Engine {
            path: path.to_owned(),
            database,
            keyspaces,
            recent_levels: Recent::new(),
            recent_key_levels: Recent::new(),
            leftovers,
        };
        engine.flush_replayed().map_err(fault)?;
        Ok(engine)
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
        self.flush(self.keyspace(Table::Meta))
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

    pub(super) fn keyspace(&self, table: Table) -> &Keyspace {
        &self.keyspaces[position(table)]
    }

    /// The rows of a table that were read a moment ago, if such are kept.
    pub(super) const fn recent(&self, table: Table) -> Option<&Recent> {
        match table {
            Table::Levels => Some(&self.recent_levels),
            Table::KeyLevels => Some(&self.recent_key_levels),
            _ => None,
        }
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> fjall::Result<Option<Slice>> {
        self.keyspace(table).get(key)
    }

    /// The rows of a range that is not empty.
    pub(super) fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
        or: OnFault,
    ) -> Box<dyn Iterator<Item = Row> + 'a> {
        let found = self.keyspace(table).range::<&[u8], _>(range);
        let row = move |guard: fjall::Guard| {
            let (key, value) = or(self, guard.into_inner());
            (key.to_vec(), value.to_vec())
        };
        match walk {
            Walk::Up => Box::new(found.map(row)),
            Walk::Down => Box::new(found.rev().map(row)),
        }
    }

    /// Writes rows as one batch. Part of it may stay in this process until [`Engine::hand_over`]; the log is what is synced.
    pub(super) fn write(&self, rows: &Generation) -> Result<(), fjall::Error> {
        let mut batch =
            fjall::OwnedWriteBatch::with_capacity(self.database.clone(), rows.rows()).durability(None);
        for (table, key, value) in rows.all() {
            match value {
                Some(value) => batch.insert(self.keyspace(table), key.clone(), value.clone()),
                None => batch.remove(self.keyspace(table), key.clone()),
            }
        }
        batch.commit()?;
        rows.tables().try_for_each(|(table, _)| self.seal_if_full(table))
    }

    /// Hands what was written to the operating system: it then survives the death of the process.
    pub(super) fn hand_over(&self) -> Result<(), StoreFault> {
        self.database.persist(PersistMode::Buffer).map_err(|error| self.fault("write", &error))
    }

    /// Seals a table's memtable if it is full, so that it is flushed.
    fn seal_if_full(&self, table: Table) -> Result<(), fjall::Error> {
        let keyspace = self.keyspace(table);
        let memtable = keyspace.tree.active_memtable();
        if memtable.size() > memtable_bytes(table) {
            // The worker may have synced the journal just before this, and would flush rows that it does not hold.
            self.database.persist(PersistMode::Buffer)?;
            keyspace.rotate_memtable()?;
            self.leftovers.hold(memtable);
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(super) fn persist(&self) -> Result<(), StoreFault> {
        self.database.persist(PersistMode::SyncAll).map_err(|error| self.fault("write", &error))
    }

    /// Whether it can still be written: what it did by itself, such as a flush, may have failed.
    pub(super) fn check(&self) -> Result<(), StoreFault> {
        self.hand_over()
    }

    /// All rows as they are now.
    pub(super) fn view(&self) -> TablesView {
        // Open until every tree's parts are held, so that all are of the same moment.
        let moment = self.database.snapshot();
        let rows = |table: &Table| {
            let AnyTree::Standard(tree) = &self.keyspace(*table).tree else {
                unreachable!("no table is made with its values apart from its keys")
            };
            let path = self.path.clone();
            let rows = tree.create_iter(moment.seqno(), None).map(move |row| {
                let row = row.map_err(|error| fault(&path, "read", &fjall::Error::from(error)));
                let (key, value) = row.unwrap_or_else(|fault| unwind(fault, "the server stops here"));
                (key.to_vec(), value.to_vec())
            });
            (*table, Box::new(rows) as ViewRows)
        };
        TablesView { tables: Table::ALL.iter().map(rows).collect() }
    }

    /// What it says of a failure.
    pub(super) fn fault(&self, action: &'static str, error: &fjall::Error) -> StoreFault {
        fault(&self.path, action, error)
    }
}

impl TablesView {
    /// The tables in the order of [`Table::ALL`], each with its rows.
    pub(crate) fn into_tables(self) -> impl Iterator<Item = (Table, ViewRows)> {
        self.tables.into_iter()
    }
}

fn memtable_bytes(table: Table) -> u64 {
    match table {
        Table::Found | Table::Staged => LARGE_MEMTABLE_BYTES,
        _ => MEMTABLE_BYTES,
    }
}

/// Stops the process's work if the tables fail: a machine that goes on without its rows would answer wrongly.
pub(super) fn or_stop<T>(engine: &Engine, result: fjall::Result<T>) -> T {
    result.unwrap_or_else(|error| unwind(engine.fault("read", &error), "the server stops here"))
}

/// Ends what somebody does beside the machine, if it cannot read; whoever it is tries again, or says so.
pub(super) fn or_unwind<T>(engine: &Engine, result: fjall::Result<T>) -> T {
    result.unwrap_or_else(|error| unwind(engine.fault("read", &error), "a read of the tables has failed"))
}

/// Ends what this thread does with a fault.
pub(super) fn unwind(fault: StoreFault, what_follows: &str) -> ! {
    tracing::error!(%fault, "{what_follows}");
    // Said above: the hook that prints panics has nothing to add.
    std::panic::resume_unwind(Box::new(fault));
}

fn fault(path: &Path, action: &'static str, error: &fjall::Error) -> StoreFault {
    // After its first failed write the engine only says that it is poisoned; the disk says why.
    if is_full(path) {
        return StoreFault::DiskFull { action, path: path.to_owned() };
    }
    StoreFault::Tables { path: path.to_owned(), detail: error.to_string() }
}

/// Whether the disk has less than a journal's next write of space.
fn is_full(path: &Path) -> bool {
    const SPACE_MIN_BYTES: u64 = 1 << 20;
    rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < SPACE_MIN_BYTES)
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
        other => StoreFault::Tables { path: path.to_owned(), detail: other.to_string() },
    }
}
