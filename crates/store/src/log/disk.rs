//! Disk: the few file calls that the log makes, so that tests can hurt them.
//!
//! Invariants
//! - Bytes are durable only after `sync` of their file, names only after `sync_folder`.
//! - A failed call is reported, never retried here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A folder's worth of files. Implemented by the real disk, and in tests by one that fails and crashes on demand.
pub trait Disk: Send + Sync {
    /// Makes the folder, and those above it, if it is not there; its name is then durable.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// The names in the folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Opens a file that is there, for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file within its folder, over any that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the folder's names durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// An open file, read and written by offset.
pub trait DiskFile: Send + Sync {
    /// The file's length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset`, or fails.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written so far durable (fdatasync).
    fn sync(&self) -> io::Result<()>;
}

/// The disk of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(folder)?;
        folder
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .map_or(Ok(()), |parent| self.sync_folder(parent))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            // A name that is no UTF-8 is none of the log's.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
