//! Faults of the log: what went wrong with its files, in sentences that say where and what to do.
//!
//! Invariants
//! - A fault can be cloned, since one failed sync is told to everyone whose records it covered.
//! - Every message names the file, says what was found and what the operator can do.

use std::io;
use std::path::{Path, PathBuf};

/// Why the log could not be opened, written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFault {
    /// A file call failed.
    #[error("could not {action} {}: {detail}; check the disk and its permissions, then start again", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        detail: String,
    },
    /// No space is left for the log.
    #[error("the disk is full: could not {action} {}; free space or enlarge the disk, then start again", path.display())]
    DiskFull {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
    },
    /// Bytes that had been written safely are no longer what was written.
    #[error(
        "the log file {} is damaged at byte {offset}: {what}; acknowledged records lie there, so it is not read further: \
         restore the data folder from a backup, or empty it and let this node copy the state of its peers",
        path.display()
    )]
    Corrupt {
        /// The segment file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What was found there.
        what: String,
    },
    /// A file of the sequence is not there.
    #[error(
        "the log file {} is missing, though later ones are there; put it back, \
         or restore the data folder from a backup",
        path.display()
    )]
    MissingSegment {
        /// The file that should be there.
        path: PathBuf,
    },
    /// The file was written in a format that this build does not know.
    #[error(
        "the log file {} has format version {version}, and this build reads version {known}; \
         start the build that wrote it, or a newer one",
        path.display()
    )]
    UnknownVersion {
        /// The segment file.
        path: PathBuf,
        /// The version found at byte 8.
        version: u32,
        /// The version that this build reads and writes.
        known: u32,
    },
    /// The file holds a record of a kind that this build does not know.
    #[error(
        "the log file {} holds a record of unknown kind {kind} at byte {offset}; start the build that wrote it, or a newer one",
        path.display()
    )]
    UnknownKind {
        /// The segment file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// The kind's number.
        kind: u8,
    },
    /// The log was closed before these records were taken.
    #[error("the log is closed and takes no more records; open it again")]
    Closed,
}

impl LogFault {
    /// The fault for a failed file call; a full disk is told apart, since the operator can mend it.
    pub(super) fn from_io(action: &'static str, path: &Path, error: &io::Error) -> LogFault {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LogFault::DiskFull { action, path: path.to_owned() }
            }
            _ => LogFault::Io { action, path: path.to_owned(), detail: error.to_string() },
        }
    }
}
