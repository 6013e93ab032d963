//! Faults of the store: each message says what happened, where, and what to do.
//!
//! Invariants
//! - What an operator can mend has its own variant; everything else is `Io`, with the operating system's words.

use crate::log::LogFault;
use crate::objects::BadKey;
use std::io;
use std::path::{Path, PathBuf};

/// Why bytes could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// A file call failed.
    #[error("could not {action} {}: {source}; check the disk and its permissions, then start again", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No space is left.
    #[error("the disk is full: could not {action} {}; free space or enlarge the disk, then start again", path.display())]
    DiskFull {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
    },
    /// The data folder's path leads to a file.
    #[error("{} is not a folder; give the path of a folder, which may be new", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The data folder can be neither read nor written.
    #[error("no permission for the data folder {}; run as its owner, or change its owner with chown", path.display())]
    PermissionDenied {
        /// The folder.
        path: PathBuf,
    },
    /// The data folder can be read, but not written.
    #[error(
        "the data folder {} is read-only; mount it writable or give its owner write permission, then start again",
        path.display()
    )]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// Another server has the data folder.
    #[error(
        "the data folder {} is in use by another server{}; stop that one first, or give this one another folder",
        path.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The other server's process, if its lock file tells.
        pid: Option<u32>,
    },
    /// The data folder was written in a format that this build does not know.
    #[error(
        "the data folder {} says {found:?}, and this build reads {known:?}; \
         start the build that wrote it, or a newer one, or give another folder",
        path.display()
    )]
    UnknownFormat {
        /// The folder.
        path: PathBuf,
        /// The first line of its format file.
        found: String,
        /// The line that this build writes.
        known: &'static str,
    },
    /// The tables could not be opened or made durable.
    #[error("the tables in {} failed: {detail}; check the disk, then start again", path.display())]
    Tables {
        /// The tables' folder.
        path: PathBuf,
        /// What the engine said.
        detail: String,
    },
    /// The tables' journal was torn by a power failure in a way that the engine does not mend.
    #[error(
        "the tables in {} were torn by a power failure: {detail}; remove that folder and start again: \
         the tables are built anew from the newest snapshot and the log",
        path.display()
    )]
    TablesTorn {
        /// The tables' folder.
        path: PathBuf,
        /// What the engine said.
        detail: String,
    },
    /// A snapshot is not what was written.
    #[error(
        "the snapshot {} is damaged at byte {offset}: {what}; nothing was read from it: \
         use another snapshot or a backup",
        path.display()
    )]
    SnapshotDamaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What was found there.
        what: &'static str,
    },
    /// A snapshot has a format or a table that this build does not know.
    #[error(
        "the snapshot {} holds {what}, which this build does not know; nothing was read from it: \
         use the build that wrote it, or a newer one",
        path.display()
    )]
    SnapshotUnknown {
        /// The file.
        path: PathBuf,
        /// What is unknown, with its number.
        what: String,
    },
    /// The address of the object store is not one.
    #[error("{address:?} is no place for objects: {what}; give a path, file:///path, or s3://bucket/prefix")]
    ObjectsAddress {
        /// The address as given.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// The object store did not do what it was asked.
    #[error(
        "could not {action} the object {key} in {address}: {detail}; check that the store can be reached, then retry"
    )]
    Objects {
        /// What was tried, as a verb.
        action: &'static str,
        /// The object's key.
        key: String,
        /// The object store's address.
        address: String,
        /// What the store said.
        detail: String,
    },
    /// A file of a commit is not what was written.
    #[error(
        "the file {file} in {address} is damaged: {what}; nothing was read from it: restore it from a backup of the \
         object store, or roll branches back to a commit without it"
    )]
    RangeDamaged {
        /// The file's key.
        file: String,
        /// The object store's address.
        address: String,
        /// What was found.
        what: String,
    },
    /// A file of a commit is not there.
    #[error(
        "the file {file} is missing in {address}, and a commit names it: restore it from a backup of the object store, \
         or roll branches back to a commit without it"
    )]
    RangeMissing {
        /// The file's key.
        file: String,
        /// The object store's address.
        address: String,
    },
    /// An object's key is not one.
    #[error(transparent)]
    Key(#[from] BadKey),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogFault),
}

impl StoreFault {
    /// The fault for a failed file call.
    pub(crate) fn from_io(action: &'static str, path: &Path, source: io::Error) -> StoreFault {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StoreFault::DiskFull { action, path: path.to_owned() }
            }
            _ => StoreFault::Io { action, path: path.to_owned(), source },
        }
    }
}
