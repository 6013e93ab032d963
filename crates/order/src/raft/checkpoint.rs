//! Checkpoints: what lets the log be cut.
//!
//! A checkpoint is a position of the log whose rows have been fsynced in the tables, and are in a snapshot file besides:
//! tables that a power failure has torn do not open, and are then built anew from the file and the log's rest.
//!
//! Invariants
//! - A position is a checkpoint only after its file and the tables are durable; the log is cut no further.
//! - A file carries the position of its own rows, and is kept until a newer one is durable.
//! - Tables that end before the log begins are never opened as they are.

use super::Types;
use super::format::{Position, decode_position};
use crate::apply::{Applier, POSITION_KEY};
use crate::fault::{Alarm, OrderFault};
use crate::raft::index_of;
use openraft::RaftSnapshotBuilder;
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use windlass_core::tables::{Table, Tables};
use windlass_store::fault::StoreFault;
use windlass_store::snapshot;
use windlass_store::tables::{DiskTables, TablesView};

/// How a snapshot file's name ends; before that comes the index of its last entry.
const SNAPSHOT_ENDING: &str = ".snapshot";

/// The latest checkpoint, and what has been applied since.
pub(crate) struct Checkpoint {
    applier: Arc<Applier>,
    alarm: Alarm,
    folder: PathBuf,
    latest: Mutex<Option<Position>>,
    /// Bytes of groups applied since the latest one.
    bytes: AtomicU64,
    /// The next one is due at so many; at least as many as the latest one's file has, so that what checkpoints write is
    /// no more than what the log writes, however large the state.
    bytes_max: AtomicU64,
    bytes_max_least: u64,
    due: Notify,
    /// Dropped with the last user of the tables, which is how a shutdown knows that they are free.
    in_use: mpsc::Sender<()>,
}

/// What a snapshot is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The state of this node.
    Own,
    /// A file that another member sent.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a node with peers receives one; the transport is not written yet")
    )]
    Received(PathBuf),
}

/// Makes a checkpoint of the rows as they were at one moment.
pub(crate) struct Checkpointer {
    checkpoint: Arc<Checkpoint>,
    position: Position,
    /// None once it is being written. Behind a lock only because raft shares builders, and rows are read by one alone.
    view: Mutex<Option<Result<TablesView, StoreFault>>>,
    _in_use: mpsc::Sender<()>,
}

impl Checkpoint {
    /// The checkpoint of tables that have just been opened and fsynced.
    pub(crate) fn new(
        applier: Arc<Applier>,
        alarm: Alarm,
        folder: PathBuf,
        opened: &Position,
        bytes_max_least: u64,
        in_use: mpsc::Sender<()>,
    ) -> Checkpoint {
        let latest = Mutex::new(opened.applied.is_some().then(|| opened.clone()));
        let (bytes, due) = (AtomicU64::new(0), Notify::new());
        let bytes_max = AtomicU64::new(bytes_max_least);
        Checkpoint { applier, alarm, folder, latest, bytes, bytes_max, bytes_max_least, due, in_use }
    }

    /// Counts bytes of applied groups; enough of them make a checkpoint due.
    pub(crate) fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell_if_due();
    }

    fn is_due(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max.load(Ordering::Relaxed)
    }

    fn tell_if_due(&self) {
        if self.is_due() {
            self.due.notify_one();
        }
    }

    /// Waits until a checkpoint is due by its bytes.
    pub(crate) async fn due(&self) {
        loop {
            self.due.notified().await;
            // Since it was told, one may have begun.
            if self.is_due() {
                return;
            }
        }
    }

    /// Begins a checkpoint of the position that is applied now.
    pub(crate) fn begin(self: &Arc<Checkpoint>, position: Position) -> Checkpointer {
        self.bytes.store(0, Ordering::Relaxed);
        // None is due while this one is made: how much it writes is not known yet.
        self.bytes_max.store(u64::MAX, Ordering::Relaxed);
        let view = Mutex::new(Some(self.applier.machine().tables().view()));
        Checkpointer { checkpoint: Arc::clone(self), position, view, _in_use: self.in_use.clone() }
    }

    pub(crate) fn latest(&self) -> Option<SnapshotOf<Types, Contents>> {
        self.lock().as_ref().map(snapshot_of)
    }

    /// Puts a received state in the place of the tables'.
    pub(crate) fn install(&self, contents: &Contents) -> Result<(), OrderFault> {
        let Contents::Received(path) = contents else { return Ok(()) };
        self.applier.replace(|tables| {
            snapshot::read_into(path, tables)?;
            tables.persist()?;
            Ok(())
        })
    }

    fn make(&self, position: Position, view: Result<TablesView, StoreFault>) -> Result<(), OrderFault> {
        let index = index_after(&position);
        let path = self.folder.join(format!("{index:020}{SNAPSHOT_ENDING}"));
        let summary = snapshot::write_view(view?, &path)?;
        self.bytes_max.store(summary.bytes.max(self.bytes_max_least), Ordering::Relaxed);
        self.tell_if_due();
        self.applier.persist()?;
        *self.lock() = Some(position);
        for (_, older) in snapshots(&self.folder)?.into_iter().filter(|(of, _)| *of < index) {
            if let Err(error) = std::fs::remove_file(&older) {
                tracing::warn!(%error, file = %older.display(), "could not remove a snapshot that is no longer needed");
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Position>> {
        self.latest.lock().expect("nothing panics while it notes a position")
    }
}

impl RaftSnapshotBuilder<Types> for Checkpointer {
    type SnapshotData = Contents;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, Contents>, io::Error> {
        let (checkpoint, position) = (Arc::clone(&self.checkpoint), self.position.clone());
        let view = self.view.get_mut().ok().and_then(Option::take);
        let view = view.expect("raft builds one snapshot with each builder");
        let made = tokio::task::spawn_blocking(move || checkpoint.make(position, view)).await;
        let result = made.unwrap_or_else(|panic| {
            Err(OrderFault::Contradiction { what: format!("a checkpoint could not be made: {panic}") })
        });
        match result {
            Ok(()) => {
                tracing::info!(index = index_after(&self.position), "made a checkpoint");
                Ok(snapshot_of(&self.position))
            }
            Err(fault) => {
                self.checkpoint.alarm.raise(fault.clone());
                Err(io::Error::other(fault))
            }
        }
    }
}

/// Brings tables to a position that the log goes on from, and says which it is.
pub(crate) fn recover(
    tables: &mut DiskTables,
    folder: &Path,
    purged_upto: u64,
) -> Result<Position, OrderFault> {
    let found = position_of(tables)?;
    create_folder(folder)?;
    if index_after(&found) >= purged_upto {
        tables.persist()?;
        return Ok(found);
    }
    let newest = snapshots(folder)?.pop().filter(|(index, _)| *index >= purged_upto);
    let Some((index, path)) = newest else {
        return Err(OrderFault::TablesBroken {
            what: format!(
                "they end at entry {}, the log begins after entry {purged_upto}, and no snapshot in {} covers what is \
                 between; restore the data folder from a backup",
                index_after(&found),
                folder.display()
            ),
        });
    };
    tracing::warn!(index, snapshot = %path.display(), "the tables end before the log begins: building them from a snapshot");
    snapshot::read_into(&path, tables)?;
    tables.persist()?;
    position_of(tables)
}

fn position_of(tables: &DiskTables) -> Result<Position, OrderFault> {
    match tables.get(Table::Meta, POSITION_KEY) {
        Some(row) => decode_position(&row).map_err(|what| OrderFault::TablesBroken { what }),
        None => Ok(Position::default()),
    }
}

fn create_folder(folder: &Path) -> Result<(), OrderFault> {
    std::fs::create_dir_all(folder).map_err(|error| OrderFault::TablesBroken {
        what: format!(
            "could not make the folder {}: {error}; check the disk and its permissions",
            folder.display()
        ),
    })
}

/// The snapshot files, in the order of their last entries.
fn snapshots(folder: &Path) -> Result<Vec<(u64, PathBuf)>, OrderFault> {
    let fault = |error: io::Error| OrderFault::TablesBroken {
        what: format!(
            "could not list the snapshots in {}: {error}; check the disk and its permissions",
            folder.display()
        ),
    };
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).map_err(fault)? {
        let name = file.map_err(fault)?.file_name();
        // Names that are not ours are not ours to judge.
        let index = name.to_str().and_then(|name| name.strip_suffix(SNAPSHOT_ENDING)?.parse().ok());
        found.extend(index.map(|index| (index, folder.join(name))));
    }
    found.sort();
    Ok(found)
}

/// The index of the last entry that is in; 0 if none is.
pub(crate) fn index_after(position: &Position) -> u64 {
    position.applied.map_or(0, |log_id| index_of(log_id.index))
}

fn snapshot_of(position: &Position) -> SnapshotOf<Types, Contents> {
    let meta = SnapshotMetaOf::<Types> {
        last_log_id: position.applied,
        last_membership: position.membership.clone(),
    };
    SnapshotOf::<Types, Contents> { meta, snapshot: Contents::Own }
}
