//! Tables on disk: rows in memory over those of the engine, fjall.
//!
//! Reading order: `generation` is rows in memory, `pending` is what is committed and not yet with the `engine`,
//! `recent` is what was read a moment ago and will be asked for.
//!
//! Invariants
//! - Reads see what was put since the last commit, over what was committed before.
//! - The engine has all rows up to some commit, and none of a later one: whatever a crash leaves, it is the tables as they were at
//!   one moment, and the log goes on from the position that they hold.
//! - What was committed is with the operating system within a moment, and survives the death of the process from then on. It
//!   survives that of the machine after [`CommittedRows::persist`].
//!
//! What fjall 3.1.13 does, read from its source:
//! - `WriteBatch::commit` writes the batch to the journal's buffer. `PersistMode::Buffer` flushes that to the operating system: after
//!   SIGKILL every batch that was committed before it is there, and of the others those that the buffer had no room for.
//! - After a power failure the journal ends at its last whole batch, and what was synced is a part of that. A memtable
//!   is flushed to its file only after the journal was synced (its issue 329), so no table runs ahead of the others.
//! - If the power failure left a hole inside an unsynced batch whose end did reach the disk, fjall refuses to open
//!   (checksum mismatch). That is [`StoreFault::TablesTorn`]: build the tables anew from a snapshot and the log.
//! - An unreadable entry kind in the journal ends it there silently, even in synced bytes. So whoever opens tables must
//!   compare their applied position with the log's first entry, and refuse a gap.
//! - If a flush or a compaction fails, its worker ends and the engine takes no more commits; one that waits for a flush waits
//!   for ever. Hence [`CommittedRows::check`].
//! - A keyspace keeps the settings it was created with. A key must not be empty, nor longer than 65,535 bytes.
//! - A full memtable is reported to the workers at every commit until one of them has time for it. A worker that seals it
//!   puts a message into the queue that those reports fill; a lone worker then waits for itself for ever, and memory
//!   grows (its pull request 323). With two, one spins while the other compacts. So memtables are sealed here, once each,
//!   and one worker is enough.
//! - While one of its snapshots is open, every memtable that is flushed stays in memory. So a [`TablesView`], which is read
//!   for minutes, holds what the trees consist of at its beginning, and no snapshot.

mod engine;
mod generation;
mod leftovers;
mod options;
mod pending;
mod recent;

pub use engine::TablesView;

use crate::fault::StoreFault;
use engine::{Engine, OnFault, or_stop, or_unwind, unwind};
use fjall::Slice;
use generation::{Generation, over};
use pending::Pending;
use recent::Recent;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use windlass_core::tables::{KeyRange, ReadRows, Row, Table, Tables, Walk, is_empty_range};

/// The machine's tables on disk.
pub struct DiskTables {
    /// What was put since the last commit.
    fresh: Generation,
    committed: CommittedRows,
    /// None at the end.
    scribe: Option<JoinHandle<()>>,
}

/// The committed rows as they are whenever one is read, for readers on any thread.
#[derive(Clone)]
pub struct CommittedRows {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    pending: Pending,
}

impl DiskTables {
    /// Opens the tables in a folder, or makes empty ones there.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or what it holds is damaged.
    pub fn open(path: &Path) -> Result<DiskTables, StoreFault> {
        let shared = Arc::new(Shared { engine: Engine::open(path)?, pending: Pending::default() });
        let of_scribe = Arc::clone(&shared);
        let scribe = std::thread::Builder::new()
            .name("scribe".into())
            .spawn(move || of_scribe.pending.run(&of_scribe.engine))
            .map_err(|error| StoreFault::from_io("start a thread for", path, error))?;
        Ok(DiskTables {
            fresh: Generation::default(),
            committed: CommittedRows { shared },
            scribe: Some(scribe),
        })
    }

    /// The committed rows as they are now, for a reader on another thread.
    ///
    /// # Errors
    /// If they cannot be brought to the engine.
    pub fn view(&self) -> Result<TablesView, StoreFault> {
        self.committed.shared.settle()?;
        Ok(self.committed.shared.engine.view())
    }

    /// The committed rows, which can be read while the machine writes.
    pub fn committed(&self) -> CommittedRows {
        self.committed.clone()
    }

    /// As [`CommittedRows::persist`].
    ///
    /// # Errors
    /// As there.
    pub fn persist(&self) -> Result<(), StoreFault> {
        self.committed.persist()
    }

    /// Bytes that the tables take on disk, journals included.
    ///
    /// # Errors
    /// If a journal's size cannot be read.
    pub fn disk_bytes(&self) -> Result<u64, StoreFault> {
        let engine = &self.committed.shared.engine;
        engine.database.disk_space().map_err(|error| engine.fault("read", &error))
    }
}

impl Drop for DiskTables {
    fn drop(&mut self) {
        let Shared { engine, pending } = &*self.committed.shared;
        pending.close();
        // Whoever writes to an engine that cannot write any more may wait for ever, and is left to itself.
        if engine.check().is_err() {
            return;
        }
        if let Err(fault) = pending.settle(engine) {
            tracing::error!(%fault, "the last rows are not in the tables; the next start takes them from the log");
        }
        if let Some(scribe) = self.scribe.take() {
            // What it had to tell, it has told.
            drop(scribe.join());
        }
    }
}

impl Tables for DiskTables {
    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        match self.fresh.get(table, key) {
            Some(row) => row.map(|value| value.to_vec()),
            None => self.committed.shared.get(table, key, or_stop),
        }
    }

    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.fresh.put(table, key.into(), Some(value.into()));
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.fresh.put(table, key.into(), None);
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
        let committed = self.committed.shared.scan(table, range, walk, or_stop);
        over(committed, self.fresh.of(table).map(|rows| &**rows), range, walk)
    }

    fn commit(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        let Shared { engine, pending } = &*self.committed.shared;
        if let Err(fault) = pending.commit(std::mem::take(&mut self.fresh), engine) {
            unwind(fault, "the server stops here");
        }
    }
}

impl CommittedRows {
    /// The value of a row.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.shared.get(table, key, or_unwind)
    }

    /// The rows of a range as they are now, upwards.
    pub fn scan<'a>(&'a self, table: Table, range: KeyRange<'_>) -> Box<dyn Iterator<Item = Row> + 'a> {
        if is_empty_range(range) {
            return Box::new(std::iter::empty());
        }
        self.shared.scan(table, range, Walk::Up, or_unwind)
    }

    /// The rows of a range as they are now, or when a walk comes to them, for whoever takes so many of them. They are kept at hand for a
    /// while: those who ask for them one by one soon after have them at once.
    pub fn read_ahead<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        limit: usize,
    ) -> impl Iterator<Item = Row> + use<'a> {
        /// Rows that change while they are read are not kept, nor those that are read with them: less than a millisecond's.
        const PIECE_ROWS: usize = 256;
        let recent = self.shared.engine.recent(table);
        let (mut from, to) = (range.0.map(<[u8]>::to_vec), range.1.map(<[u8]>::to_vec));
        let pieces = std::iter::from_fn(move || {
            let before = recent.map(Recent::before);
            let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let piece: Vec<Row> = self.scan(table, range).take(PIECE_ROWS.min(limit)).collect();
            if let (Some(recent), Some(before)) = (recent, before) {
                recent.keep(before, &piece);
            }
            from = Bound::Excluded(piece.last()?.0.clone());
            Some(piece)
        });
        pieces.flatten()
    }

    /// Makes everything committed durable. Log entries may be dropped only up to an applied index that went through
    /// here.
    ///
    /// # Errors
    /// If the sync fails. The tables then take no more commits.
    pub fn persist(&self) -> Result<(), StoreFault> {
        self.shared.settle()?;
        self.shared.engine.persist()
    }

    /// Whether rows can still be written.
    ///
    /// # Errors
    /// If something failed that the engine did by itself, such as a flush, or a write that nobody waited for: whoever
    /// commits would then wait for ever.
    pub fn check(&self) -> Result<(), StoreFault> {
        let Shared { engine, pending } = &*self.shared;
        pending.check(&engine.path)?;
        engine.check()
    }
}

impl ReadRows for CommittedRows {
    fn row(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.get(table, key)
    }

    fn rows<'a>(&'a self, table: Table, range: KeyRange<'_>) -> Box<dyn Iterator<Item = Row> + 'a> {
        self.scan(table, range)
    }
}

impl Shared {
    fn get(
        &self,
        table: Table,
        key: &[u8],
        or: fn(&Engine, fjall::Result<Option<Slice>>) -> Option<Slice>,
    ) -> Option<Vec<u8>> {
        let recent = self.engine.recent(table);
        let before = match recent.map(|recent| recent.get(key)) {
            Some(Ok(value)) => return Some(value.to_vec()),
            Some(Err(before)) => Some(before),
            None => None,
        };
        {
            let layers = self.pending.layers();
            let of_writing = || layers.writing.as_ref()?.get(table, key);
            if let Some(row) = layers.filling.get(table, key).or_else(of_writing) {
                return row.map(|value| value.to_vec());
            }
        }
        // What was not with the engine by then is newer, or it is there now.
        let found = or(&self.engine, self.engine.get(table, key)).map(|value| value.to_vec());
        if let (Some(recent), Some(before), Some(value)) = (recent, before, &found) {
            recent.keep(before, &[(key, value)]);
        }
        found
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
        or: OnFault,
    ) -> Box<dyn Iterator<Item = Row> + 'a> {
        // What was committed before is in one of the two, or with the engine. The engine is asked without the lock: it may be
        // noting a flush. What is committed later may be seen or not; under the machine's lock nothing is.
        let (filling, writing) = {
            let layers = self.pending.layers();
            (
                layers.filling.of(table).cloned(),
                layers.writing.as_ref().and_then(|rows| rows.of(table).cloned()),
            )
        };
        let rows = self.engine.scan(table, range, walk, or);
        over(over(rows, writing, range, walk), filling, range, walk)
    }

    fn settle(&self) -> Result<(), StoreFault> {
        self.pending.settle(&self.engine)
    }
}

#[cfg(test)]
mod tests;
