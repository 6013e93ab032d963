//! A disk in memory that tests can hurt: calls fail on demand, and a crash loses or tears what was not synced.
//!
//! Invariants
//! - Synced bytes and synced names survive every crash.
//! - After the call at which it crashes, every call fails, until the disk is taken up again by `after_crash`.

use super::disk::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Chance from a seed (splitmix64), so that a failing story can be told again.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// What a crash takes of the bytes and names that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of it: the power failed.
    All,
    /// None of it: only the process was killed. It is still not synced, and a later crash may take it.
    Nothing,
    /// Each write is lost, kept or torn, by chance.
    Some,
}

#[derive(Clone, Default)]
struct FileImage {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
}

type Names = BTreeMap<PathBuf, usize>;

#[derive(Clone, Default)]
struct Image {
    files: Vec<FileImage>,
    names: Names,
    /// The names as of the last sync of the folder, and after each change since.
    names_since_sync: Vec<Names>,
    calls: u64,
    syncs: u64,
    crash_at_call: Option<u64>,
    fail_at_sync: Option<u64>,
    fail_writes: Option<io::ErrorKind>,
}

/// The disk; clones share it.
#[derive(Clone, Default)]
pub(super) struct HurtDisk {
    image: Arc<Mutex<Image>>,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Default)]
struct Gate {
    is_closed: bool,
    /// Syncs that may go through though it is closed.
    passes: usize,
    waiting: usize,
}

impl HurtDisk {
    pub(super) fn new() -> HurtDisk {
        let disk = HurtDisk::default();
        disk.image().names_since_sync.push(Names::new());
        disk
    }

    fn image(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap()
    }

    /// Another disk with the same contents.
    pub(super) fn copy(&self) -> HurtDisk {
        let image = self.image().clone();
        HurtDisk { image: Arc::new(Mutex::new(image)), gate: Arc::default() }
    }

    pub(super) fn calls(&self) -> u64 {
        self.image().calls
    }

    /// Crashes at the n-th changing call from now, counted from 0.
    pub(super) fn crash_after(&self, calls: u64) {
        let mut image = self.image();
        image.crash_at_call = Some(image.calls + calls);
    }

    /// Fails the n-th sync of a file from now, counted from 0.
    pub(super) fn fail_sync_after(&self, syncs: u64) {
        let mut image = self.image();
        image.fail_at_sync = Some(image.syncs + syncs);
    }

    /// Fails every write from now on with this kind of error, or mends the disk.
    pub(super) fn fail_writes(&self, kind: Option<io::ErrorKind>) {
        self.image().fail_writes = kind;
    }

    /// The disk as the next process finds it.
    pub(super) fn after_crash(&self, loss: Loss, dice: &mut Dice) -> HurtDisk {
        let mut image = self.image().clone();
        if loss != Loss::Nothing {
            for file in &mut image.files {
                for (offset, bytes) in std::mem::take(&mut file.unsynced) {
                    for (from, to) in surviving(bytes.len(), loss, dice) {
                        write_into(&mut file.durable, offset + from as u64, &bytes[from..to]);
                    }
                }
                file.current = file.durable.clone();
            }
            let since = image.names_since_sync.len() as u64;
            let survivor = if loss == Loss::All { 0 } else { dice.roll(since) };
            image.names = image.names_since_sync[survivor as usize].clone();
            image.names_since_sync = vec![image.names.clone()];
        }
        image.crash_at_call = None;
        HurtDisk { image: Arc::new(Mutex::new(image)), gate: Arc::default() }
    }

    /// Holds every sync until the gate is opened.
    pub(super) fn close_gate(&self) {
        self.gate.0.lock().unwrap().is_closed = true;
    }

    pub(super) fn open_gate(&self) {
        self.gate.0.lock().unwrap().is_closed = false;
        self.gate.1.notify_all();
    }

    /// Lets one sync through.
    pub(super) fn let_one_sync_pass(&self) {
        self.gate.0.lock().unwrap().passes += 1;
        self.gate.1.notify_all();
    }

    /// Returns when a sync is held at the gate.
    pub(super) fn wait_for_sync_at_gate(&self) {
        let gate = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(gate, |gate| gate.waiting == 0).unwrap());
    }

    pub(super) fn names(&self) -> Vec<String> {
        let image = self.image();
        image.names.keys().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    pub(super) fn contents(&self, path: &Path) -> Vec<u8> {
        let image = self.image();
        image.files[image.names[path]].current.clone()
    }

    /// Changes a file's bytes as a failing disk would, behind everyone's back.
    pub(super) fn change(&self, path: &Path, change: impl Fn(&mut Vec<u8>)) {
        let mut image = self.image();
        let id = image.names[path];
        change(&mut image.files[id].current);
        image.files[id].durable = image.files[id].current.clone();
    }
}

/// The stretches of an unsynced write that a crash leaves on the disk.
fn surviving(length: usize, loss: Loss, dice: &mut Dice) -> Vec<(usize, usize)> {
    let mut cut = || dice.roll(length as u64 + 1) as usize;
    let (one, other) = (cut(), cut());
    let (from, to) = (one.min(other), one.max(other));
    match loss {
        Loss::All | Loss::Nothing => vec![],
        Loss::Some => match dice.roll(5) {
            0 => vec![],
            1 => vec![(0, length)],
            2 => vec![(0, to)],
            3 => vec![(from, to)],
            _ => vec![(0, from), (to, length)],
        },
    }
}

fn write_into(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(bytes);
}

impl Image {
    /// Counts a changing call, and fails it if the disk has crashed.
    fn count_call(&mut self) -> io::Result<()> {
        let call = self.calls;
        self.calls += 1;
        match self.crash_at_call {
            Some(at) if call >= at => Err(io::Error::other("the disk has crashed")),
            _ => Ok(()),
        }
    }

    fn names_changed(&mut self) {
        let names = self.names.clone();
        self.names_since_sync.push(names);
    }
}

impl Disk for HurtDisk {
    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        assert!(self.image().names.keys().all(|path| path.parent() == Some(folder)));
        Ok(self.names())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let id = self.image().names.get(path).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(HurtFile { disk: self.clone(), id }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut image = self.image();
        image.count_call()?;
        let id = image.files.len();
        image.files.push(FileImage::default());
        image.names.insert(path.to_owned(), id);
        image.names_changed();
        Ok(Arc::new(HurtFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut image = self.image();
        image.count_call()?;
        let id = image.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        image.names.insert(to.to_owned(), id);
        image.names_changed();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut image = self.image();
        image.count_call()?;
        image.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        image.names_changed();
        Ok(())
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        let mut image = self.image();
        image.count_call()?;
        image.names_since_sync = vec![image.names.clone()];
        Ok(())
    }
}

struct HurtFile {
    disk: HurtDisk,
    id: usize,
}

impl DiskFile for HurtFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.image().files[self.id].current.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let image = self.disk.image();
        let file = &image.files[self.id].current;
        let from =
            file.get(offset as usize..offset as usize + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut image = self.disk.image();
        if let Some(kind) = image.fail_writes {
            return Err(kind.into());
        }
        let counted = image.count_call();
        let is_first_after_crash = image.crash_at_call.is_none_or(|at| image.calls <= at + 1);
        if is_first_after_crash {
            // The write at which the disk crashes may have reached it in part.
            let file = &mut image.files[self.id];
            write_into(&mut file.current, offset, bytes);
            file.unsynced.push((offset, bytes.to_vec()));
        }
        counted
    }

    fn sync(&self) -> io::Result<()> {
        let (gate, passed) = &*self.disk.gate;
        let mut held = gate.lock().unwrap();
        held.waiting += 1;
        passed.notify_all();
        held = passed.wait_while(held, |held| held.is_closed && held.passes == 0).unwrap();
        held.passes = held.passes.saturating_sub(1);
        held.waiting -= 1;
        drop(held);

        let mut image = self.disk.image();
        image.count_call()?;
        let sync = image.syncs;
        image.syncs += 1;
        if image.fail_at_sync == Some(sync) {
            return Err(io::Error::other("the disk did not answer"));
        }
        let file = &mut image.files[self.id];
        file.unsynced.clear();
        file.durable = file.current.clone();
        Ok(())
    }
}
