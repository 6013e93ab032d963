//! The data folder: where a server's bytes lie, and the lock that keeps a second server out.
//!
//! Invariants
//! - While a [`DataFolder`] lives, no other one for the same folder does, in this process or another.
//! - A folder of an unknown format is refused before anything in it is touched but the lock.

use crate::fault::StoreFault;
use rustix::fs::FlockOperation;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the format file of this build says.
const FORMAT: &str = "windlass data, format 2\n";

/// What that of a build said which did not know that tasks share rows, and would have passed over those: everything else of it is the
/// same, so this build goes on with its folders.
const FORMAT_BEFORE_SHARED_ROWS: &str = "windlass data, format 1\n";

/// A data folder, locked.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// The lock is on this open file, and goes with it.
    _lock: File,
}

impl DataFolder {
    /// Makes the folder if it is not there, locks it and checks its format.
    ///
    /// # Errors
    /// If it is no folder, cannot be written, is in use, or has an unknown format.
    pub fn open(path: &Path) -> Result<DataFolder, StoreFault> {
        let is_new = !path.exists();
        create(path)?;
        let lock = lock(path)?;
        check_format(path)?;
        let folder = DataFolder { path: path.to_owned(), _lock: lock };
        for below in [folder.objects(), folder.snapshots()] {
            create(&below)?;
        }
        // The names made above, and a new folder's own, must outlive a power failure as what is put below them will.
        // The folder above an old one may be closed to this process, and need not be synced.
        let parent = path.parent().filter(|parent| is_new && !parent.as_os_str().is_empty());
        for named in [Some(path), parent].into_iter().flatten() {
            let synced = File::open(named).and_then(|folder| folder.sync_all());
            synced.map_err(|error| StoreFault::from_io("sync", named, error))?;
        }
        Ok(folder)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log lies.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the tables lie.
    pub fn tables(&self) -> PathBuf {
        self.path.join("tables")
    }

    /// Where objects lie, unless an object store is configured.
    pub fn objects(&self) -> PathBuf {
        self.path.join("objects")
    }

    /// Where snapshots lie.
    pub fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }
}

fn create(path: &Path) -> Result<(), StoreFault> {
    // Only its owner may look into it: chunks and payloads are other people's data.
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) => {
            Err(StoreFault::NotAFolder { path: path.to_owned() })
        }
        Err(error) => Err(refused(path, "create", error)),
    }
}

/// The fault for a folder that cannot be written.
fn refused(path: &Path, action: &'static str, error: io::Error) -> StoreFault {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => StoreFault::ReadOnly { path },
        io::ErrorKind::PermissionDenied if std::fs::read_dir(&path).is_ok() => StoreFault::ReadOnly { path },
        io::ErrorKind::PermissionDenied => StoreFault::PermissionDenied { path },
        _ => StoreFault::from_io(action, &path, error),
    }
}

fn lock(path: &Path) -> Result<File, StoreFault> {
    let lock_path = path.join("lock");
    let opened =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
    let mut file = opened.map_err(|error| refused(path, "lock", error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = std::fs::read_to_string(&lock_path).ok().and_then(|text| text.trim().parse().ok());
            return Err(StoreFault::InUse { path: path.to_owned(), pid });
        }
        Err(error) => return Err(StoreFault::from_io("lock", &lock_path, error.into())),
    }
    let told = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    told.map_err(|error| StoreFault::from_io("write", &lock_path, error))?;
    Ok(file)
}

fn check_format(path: &Path) -> Result<(), StoreFault> {
    let format_path = path.join("format");
    match std::fs::read(&format_path) {
        Ok(found) if found == FORMAT.as_bytes() => Ok(()),
        // Before anything else is written: from now on an earlier build must not open it.
        Ok(found) if found == FORMAT_BEFORE_SHARED_ROWS.as_bytes() => write_format(path, &format_path),
        Ok(found) => {
            let text = String::from_utf8_lossy(&found);
            let found = text.lines().next().unwrap_or_default().chars().take(80).collect();
            Err(StoreFault::UnknownFormat { path: path.to_owned(), found, known: FORMAT.trim_end() })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_format(path, &format_path),
        Err(error) => Err(StoreFault::from_io("read", &format_path, error)),
    }
}

/// Writes the format file so that it is there as a whole or not at all.
fn write_format(path: &Path, format_path: &Path) -> Result<(), StoreFault> {
    let unfinished = path.join("format.tmp");
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(FORMAT.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&unfinished, format_path)?;
        File::open(path)?.sync_all()
    };
    write().map_err(|error| refused(path, "write the format file in", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_folder_is_made_for_its_owner_alone_and_opens_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new/data");
        let folder = DataFolder::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_to_string(path.join("format")).unwrap(), "windlass data, format 2\n");
        assert!(folder.snapshots().is_dir());
        let below = [folder.log(), folder.tables(), folder.objects(), folder.snapshots()];
        assert_eq!(below, ["log", "tables", "objects", "snapshots"].map(|name| path.join(name)));
        drop(folder);
        DataFolder::open(&path).unwrap();
    }

    #[test]
    fn a_second_server_is_told_which_process_has_the_folder() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path();
        let _first = DataFolder::open(path).unwrap();
        assert_eq!(
            DataFolder::open(path).err().unwrap().to_string(),
            format!(
                "the data folder {} is in use by another server (process {}); \
                 stop that one first, or give this one another folder",
                path.display(),
                std::process::id()
            )
        );
    }

    #[test]
    fn a_folder_of_the_format_before_is_taken_over_and_says_so() {
        let parent = tempfile::tempdir().unwrap();
        let format = parent.path().join("format");
        std::fs::write(&format, "windlass data, format 1\n").unwrap();
        DataFolder::open(parent.path()).unwrap();
        assert_eq!(std::fs::read_to_string(format).unwrap(), "windlass data, format 2\n");
    }

    #[test]
    fn a_folder_of_a_newer_format_is_refused_and_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path();
        std::fs::write(path.join("format"), "windlass data, format 3\n").unwrap();
        assert_eq!(
            DataFolder::open(path).err().unwrap().to_string(),
            format!(
                "the data folder {} says \"windlass data, format 3\", and this build reads \"windlass data, format 2\"; \
                 start the build that wrote it, or a newer one, or give another folder",
                path.display()
            )
        );
        assert!(!path.join("snapshots").exists());
    }

    #[test]
    fn a_file_in_the_folders_place_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("file");
        std::fs::write(&path, "").unwrap();
        assert!(matches!(DataFolder::open(&path), Err(StoreFault::NotAFolder { .. })));
        assert!(matches!(DataFolder::open(&path.join("below")), Err(StoreFault::NotAFolder { .. })));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told_from_one_that_cannot_be_read() {
        let parent = tempfile::tempdir().unwrap();
        let readable = parent.path();
        let unreadable = parent.path().join("not there");
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(matches!(refused(readable, "lock", denied()), StoreFault::ReadOnly { .. }));
        assert!(matches!(refused(&unreadable, "lock", denied()), StoreFault::PermissionDenied { .. }));
        let read_only = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        assert!(matches!(refused(readable, "lock", read_only), StoreFault::ReadOnly { .. }));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(refused(readable, "lock", full), StoreFault::DiskFull { .. }));
    }
}
