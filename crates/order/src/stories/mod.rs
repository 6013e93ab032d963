//! Stories of the whole order: commands in, outcomes out, and what is left after a restart.

mod durable;
mod leading;
mod restarting;
mod speed;

use crate::raft::{Types, index_of};
use crate::{Order, OrderFault, OrderOptions, RoleEvent, RoleSink};
use openraft::type_config::alias::SnapshotMetaOf;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Command, Outcome};
use windlass_core::ids::{Epoch, SubmissionId};
use windlass_core::tables::{Table, Tables};
use windlass_store::log::{Disk, DiskFile, RealDisk};
use windlass_store::tables::DiskTables;

/// A data folder that lives as long as its test.
struct Home {
    folder: TempDir,
    options: OrderOptions,
}

/// An open order and what it tells.
struct Opened {
    order: Order,
    events: UnboundedReceiver<RoleEvent>,
}

impl Home {
    fn new() -> Home {
        let folder = tempfile::tempdir().unwrap();
        let under = |name| folder.path().join(name);
        let mut options = OrderOptions::new(1, under("log"), under("snapshots"));
        // Zero-filling 64 MiB for each test would be most of its time.
        options.log.segment_bytes = 1 << 20;
        Home { folder, options }
    }

    fn tables(&self) -> PathBuf {
        self.folder.path().join("tables")
    }

    async fn open(&self) -> Opened {
        self.try_open().await.unwrap()
    }

    async fn try_open(&self) -> Result<Opened, OrderFault> {
        let (sender, events) = unbounded_channel();
        let tables = DiskTables::open(&self.tables())?;
        Ok(Opened { order: Order::open(self.options.clone(), tables, telling(sender)).await?, events })
    }

    async fn open_on(&self, disk: Arc<dyn Disk>) -> Opened {
        let (sender, events) = unbounded_channel();
        let tables = DiskTables::open(&self.tables()).unwrap();
        let order = Order::open_on(disk, self.options.clone(), tables, telling(sender)).await.unwrap();
        Opened { order, events }
    }

    /// The newest segment file of the log.
    fn newest_segment(&self) -> PathBuf {
        let files = std::fs::read_dir(&self.options.log_folder).unwrap();
        let mut named: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        named.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
        named.pop().unwrap()
    }

    fn log_bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.options.log_folder).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }
}

impl Opened {
    async fn submit(&self, chunks: u64) -> SubmissionId {
        submitted(self.order.propose(Command::Submit(Submit::new(chunks))).await.unwrap())
    }

    /// The events so far.
    fn told(&mut self) -> Vec<RoleEvent> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    fn epoch(&self) -> Epoch {
        self.order.read(|machine| machine.epoch())
    }
}

fn telling(sender: UnboundedSender<RoleEvent>) -> RoleSink {
    Box::new(move |event| drop(sender.send(event)))
}

fn submitted(outcome: Outcome) -> SubmissionId {
    match outcome {
        Outcome::Submitted { submission } => submission,
        other => panic!("not a submission: {other:?}"),
    }
}

fn keyed(chunks: u64, key: &str) -> Command {
    Command::Submit(Submit { idempotency_key: Some(key.into()), ..Submit::new(chunks) })
}

/// Makes a checkpoint and says what it is of and where its file lies.
async fn contents_of(home: &Home, opened: &Opened) -> (SnapshotMetaOf<Types>, PathBuf) {
    let applied = opened.order.applied_index();
    opened.order.snapshot_now().await.unwrap();
    let node = &opened.order.writer().node;
    node.wait(None).metrics(|now| now.snapshot.is_some(), "a checkpoint is made").await.unwrap();
    let snapshot = node.get_snapshot().await.unwrap().unwrap();
    assert_eq!(snapshot.meta.last_log_id.map(|log_id| index_of(log_id.index)), Some(applied));
    (snapshot.meta, home.options.snapshot_folder.join(format!("{applied:020}.snapshot")))
}

/// Every row but the log's own position.
fn rows(tables: &dyn Tables) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
    Table::ALL
        .into_iter()
        .flat_map(|table| tables.scan_prefix(table, &[]).map(move |(key, value)| (table, key, value)))
        .filter(|(table, key, _)| *table != Table::Meta || key != crate::apply::POSITION_KEY)
        .collect()
}

/// A disk whose syncs can be held back, and made to fail.
#[derive(Clone, Default)]
struct SlowDisk {
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Default)]
struct GateState {
    is_held: bool,
    is_broken: bool,
    at_gate: u64,
}

impl SlowDisk {
    fn hold(&self) {
        self.gate.state.lock().unwrap().is_held = true;
    }

    fn let_go(&self, is_broken: bool) {
        *self.gate.state.lock().unwrap() = GateState { is_held: false, is_broken, at_gate: 0 };
        self.gate.moved.notify_all();
    }

    /// Waits until a sync is held back.
    fn wait_at_gate(&self) {
        let state = self.gate.state.lock().unwrap();
        drop(self.gate.moved.wait_while(state, |state| state.at_gate == 0).unwrap());
    }
}

impl Gate {
    fn pass(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.at_gate += 1;
        self.moved.notify_all();
        let state = self.moved.wait_while(state, |state| state.is_held).unwrap();
        if state.is_broken { Err(io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl Disk for SlowDisk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        RealDisk.create_folder(folder)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(folder)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile { file: RealDisk.open(path)?, gate: Arc::clone(&self.gate) }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile { file: RealDisk.create(path)?, gate: Arc::clone(&self.gate) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        RealDisk.sync_folder(folder)
    }
}

impl DiskFile for SlowFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass()?;
        self.file.sync()
    }
}
