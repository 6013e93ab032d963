//! The log: records in segment files, written in groups with one fdatasync each.
//!
//! Read `format.rs` for the bytes, `recover.rs` for what opening refuses and what it cuts, `writer.rs` for how it is
//! written, `segments.rs` for the files.
//!
//! Invariants
//! - `done` is called with `Ok` only after the fdatasync that covers the records, in the order of the appends.
//! - The records of one append survive a crash all together or not at all.
//! - What was acknowledged is read back as it was written, or opening and reading refuse; it is never cut silently.
//! - Entries are consecutive, numbered from 1.
//! - Live states and the purged index are in every segment's head, so they outlive the segments they were written to.
//! - After one failed write or sync no later append succeeds, until the log is opened again.
//!
//! The folder must have one opener at a time; [`crate::folder::DataFolder`] holds the lock.

mod cache;
mod disk;
mod fault;
mod format;
#[cfg(test)]
mod hurt;
mod ledger;
mod recover;
mod segments;
#[cfg(test)]
mod stories;
mod writer;

pub use disk::{Disk, DiskFile, RealDisk};
pub use fault::LogFault;

use bytes::Bytes;
use cache::Cache;
use format::Bad;
use ledger::Ledger;
use segments::{Folder, Run, SegmentList};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use writer::Writer;

/// The smallest segment that is taken: a header, a head and a few small groups must fit.
const SEGMENT_BYTES_MIN: u64 = 1024;
/// The largest segment that is taken: offsets are u32, with room left for one record that is as large as can be.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// What can be set about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of a segment file; an append that is larger gets a segment of its own size.
    pub segment_bytes: u64,
    /// Bytes of recent entries kept in memory. Entries that are not yet written are kept beyond it.
    pub cache_bytes: usize,
}

impl Default for LogOptions {
    /// 64 MiB a segment: zero-filling one takes a fraction of a second, and a purge gives space back in small steps.
    /// 4 MiB of cache: a thousand busy consumers write three in a second, so whoever is a second behind reads from memory.
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, cache_bytes: 4 << 20 }
    }
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// An entry; its index is the last one's plus one, or anything above the purged index if the log is empty.
    Entry {
        /// Its number, from 1.
        index: u64,
        /// Its bytes, which the log does not look at.
        payload: Bytes,
    },
    /// A small value of which only the latest counts, such as a vote.
    State {
        /// Which value.
        key: u8,
        /// The value; it is written again at the head of each segment, so it should be small.
        value: Bytes,
    },
    /// Removes the entries with a larger index.
    Truncate {
        /// The last index that stays; 0 removes all.
        after: u64,
    },
    /// The entries up to this index are no longer needed.
    Purge {
        /// The last index that goes.
        upto: u64,
    },
}

/// What was found when the log was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The first entry's index.
    pub first_index: Option<u64>,
    /// The last entry's index.
    pub last_index: Option<u64>,
    /// Entries up to here were purged; 0 if none was.
    pub purged_upto: u64,
    /// The latest value of each state.
    pub states: BTreeMap<u8, Bytes>,
    /// Bytes of an unfinished write that were cut. They had not been acknowledged.
    pub cut_bytes: u64,
}

/// What the log has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Groups written, each with one fdatasync.
    pub syncs: u64,
    /// Records written.
    pub records: u64,
    /// Bytes written, with the records' heads and the groups' markers.
    pub bytes_written: u64,
}

/// Called once, with the fate of an append.
pub type Done = Box<dyn FnOnce(Result<(), LogFault>) + Send>;

/// A handle to an open log; cheap to clone. The writer thread ends when the last one is dropped.
#[derive(Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

impl Log {
    /// Opens the log in `folder`, or begins one there.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or if what it holds is damaged or of an unknown format.
    pub fn open(folder: &Path, options: LogOptions) -> Result<(Log, Recovered), LogFault> {
        Log::open_on(Arc::new(RealDisk), folder, options)
    }

    /// Opens the log on a given disk; tests hand in one that fails.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        folder: &Path,
        mut options: LogOptions,
    ) -> Result<(Log, Recovered), LogFault> {
        options.segment_bytes = options.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let mut folder = Folder { disk, path: folder.to_owned(), options, spares: Vec::new() };
        let opened = recover::open(&mut folder)?;
        let recovered = Recovered {
            first_index: opened.ledger.bounds.map(|(first, _)| first),
            last_index: opened.ledger.bounds.map(|(_, last)| last),
            purged_upto: opened.ledger.purged,
            states: opened.ledger.states.clone(),
            cut_bytes: opened.cut_bytes,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                appends: 0,
                ledger: opened.ledger.clone(),
                cache: Cache::new(options.cache_bytes),
                segments: opened.segments,
                counters: LogCounters::default(),
                fault: None,
                is_closing: false,
            }),
            wake: Condvar::new(),
        });
        let path = folder.path.clone();
        let writer = Writer::new(Arc::clone(&shared), folder, opened.ledger, opened.tail);
        let writer = Arc::new(Mutex::new(writer));
        let of_thread = (Arc::clone(&shared), Arc::clone(&writer));
        let thread = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || writer::run(&of_thread.0, &of_thread.1))
            .map_err(|e| LogFault::from_io("start the thread that writes", &path, &e))?;
        let handle = Handle { shared, writer, thread: Mutex::new(Some(thread)) };
        Ok((Log { handle: Arc::new(handle) }, recovered))
    }

    /// Queues records for the writer thread; `done` is called from it, or from whoever writes just then, after the fdatasync
    /// that covers them, in order. Everything queued while a write is under way becomes one write and one fdatasync.
    ///
    /// # Panics
    /// If an entry does not follow the last one, or a truncation reaches into what is purged: such a log would not
    /// open again.
    pub fn append(&self, records: Vec<Record>, done: Done) {
        if self.queue(records, done) {
            self.handle.shared.wake.notify_one();
        }
    }

    /// As [`Log::append`], but writes on the caller's own thread, before it returns, unless a write is under way: for a
    /// caller that has nothing to do until then, this saves the way to another thread and back.
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_here(&self, records: Vec<Record>, done: Done) {
        if self.queue(records, done) {
            match self.handle.writer.try_lock() {
                Ok(mut writer) => writer.write_queued(),
                // Whoever writes looks at the queue once more, or has looked already: then the thread must.
                Err(TryLockError::WouldBlock) => self.handle.shared.wake.notify_one(),
                Err(TryLockError::Poisoned(_)) => panic!("a thread has found a contradiction in the log"),
            }
        }
    }

    /// Takes an append into the queue; false if the log is closed, which is then answered.
    fn queue(&self, records: Vec<Record>, done: Done) -> bool {
        let mut state = self.handle.shared.lock();
        if state.is_closing {
            drop(state);
            done(Err(LogFault::Closed));
            return false;
        }
        state.appends += 1;
        let number = state.appends;
        // A poisoned log still queues, so that the answer comes from whoever writes, in order.
        if state.fault.is_none() {
            for record in &records {
                state.take(record, number);
            }
        }
        state.queue.push_back(Append { number, records, done });
        true
    }

    /// Reads the entries of a range, from memory or from the files. It sees what was appended before, durable or not;
    /// indexes that the log does not hold are left out.
    ///
    /// # Errors
    /// If a file cannot be read, or what it holds is not what was written.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<(u64, Bytes)>, LogFault> {
        loop {
            let (runs, cached, purged) = self.handle.shared.lock().plan_read(&range);
            match runs.iter().try_fold(Vec::new(), read_run) {
                Ok(mut found) => {
                    found.extend(cached);
                    return Ok(found);
                }
                // A purge meanwhile may have given the file to a new segment; then the entries are gone by right.
                Err(_) if self.purged_upto() > purged => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The first entry's index.
    pub fn first_index(&self) -> Option<u64> {
        self.handle.shared.lock().ledger.bounds.map(|(first, _)| first)
    }

    /// The last entry's index.
    pub fn last_index(&self) -> Option<u64> {
        self.handle.shared.lock().ledger.bounds.map(|(_, last)| last)
    }

    /// Entries up to here were purged; 0 if none was.
    pub fn purged_upto(&self) -> u64 {
        self.handle.shared.lock().ledger.purged
    }

    /// The latest value of a state.
    pub fn state(&self, key: u8) -> Option<Bytes> {
        self.handle.shared.lock().ledger.states.get(&key).cloned()
    }

    /// What was written since the log was opened.
    pub fn counters(&self) -> LogCounters {
        self.handle.shared.lock().counters
    }

    /// Writes what is queued, seals the log and ends the writer thread. Other handles can still read; what they append
    /// is answered with [`LogFault::Closed`].
    pub fn close(self) {
        self.handle.close();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

struct Handle {
    shared: Arc<Shared>,
    writer: Arc<Mutex<Writer>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    fn close(&self) {
        // After a contradiction the locks are poisoned, and the thread must end all the same.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).is_closing = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may be dropped by a `done`, on the writer thread itself, which cannot wait for its own end.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread that writes the log panicked; what it had not acknowledged may be lost"
            );
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// What handles and writer share.
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queue: VecDeque<Append>,
    /// Appends taken so far.
    appends: u64,
    /// Everything appended, written or not.
    ledger: Ledger,
    cache: Cache,
    /// Everything written.
    segments: SegmentList,
    counters: LogCounters,
    fault: Option<LogFault>,
    is_closing: bool,
}

/// Records that are written together, and who waits for them.
struct Append {
    number: u64,
    records: Vec<Record>,
    done: Done,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a contradiction, after which nobody may go on with the log.
        self.state.lock().expect("no thread has found a contradiction in the log")
    }

    /// Waits for appends; false when the log is closed and everything was taken.
    fn wait_for_appends(&self) -> bool {
        let state = self.lock();
        let state = self
            .wake
            .wait_while(state, |state| state.queue.is_empty() && !state.is_closing)
            .expect("no thread has found a contradiction in the log");
        !state.queue.is_empty()
    }
}

impl State {
    /// Takes a record into what readers see.
    fn take(&mut self, record: &Record, append: u64) {
        if let Some(contradiction) = self.ledger.contradiction(record) {
            panic!("the log cannot take this record: {contradiction}");
        }
        self.ledger.apply(record);
        match record {
            Record::Entry { index, payload } => self.cache.push(*index, payload.clone(), append),
            Record::State { .. } => {}
            Record::Truncate { after } => self.cache.truncate(*after),
            Record::Purge { upto } => self.cache.purge(*upto),
        }
    }

    /// What of a range is in files, what in memory, and how far the log was purged when that was so.
    fn plan_read(&self, range: &Range<u64>) -> (Vec<Run>, Vec<(u64, Bytes)>, u64) {
        let Some((first, last)) = self.ledger.bounds else {
            return (Vec::new(), Vec::new(), self.ledger.purged);
        };
        let from = range.start.max(first);
        let to = range.end.min(last + 1);
        if from >= to {
            return (Vec::new(), Vec::new(), self.ledger.purged);
        }
        let cached_from = self.cache.begins(from, to);
        let cached = (cached_from..to).filter_map(|index| Some((index, self.cache.get(index)?))).collect();
        (self.segments.runs(from, cached_from), cached, self.ledger.purged)
    }
}

/// Reads a run's entries from its file, checking each.
fn read_run(mut found: Vec<(u64, Bytes)>, run: &Run) -> Result<Vec<(u64, Bytes)>, LogFault> {
    let start = u64::from(run.places[0].offset);
    let mut bytes = vec![0; (run.end - start) as usize];
    run.file.read_at(&mut bytes, start).map_err(|e| LogFault::from_io("read", &run.path, &e))?;
    let bytes = Bytes::from(bytes);
    for (index, place) in (run.first..).zip(&run.places) {
        let at = (u64::from(place.offset) - start) as usize;
        let corrupt = |what: &str| LogFault::Corrupt {
            path: run.path.clone(),
            offset: place.offset.into(),
            what: what.to_owned(),
        };
        match format::read_record(&bytes.slice(at..), *place) {
            Ok((Record::Entry { index: read, payload }, _)) if read == index => found.push((index, payload)),
            Ok(_) => return Err(corrupt("another record lies where an entry was written")),
            Err(Bad::Damaged { what, .. }) => return Err(corrupt(what)),
            Err(Bad::Kind { .. }) => return Err(corrupt("the record is of an unknown kind")),
        }
    }
    Ok(found)
}
