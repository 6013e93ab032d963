//! Pending: rows that are committed and not yet with the engine.
//!
//! A commit adds its rows to those that wait, and the Scribe, a thread that does nothing else, writes them as one batch when
//! they are many, or have waited for a while. So what is written again and again in between reaches the engine once, and what
//! reaches it comes in order: a row that stands beside the one before it is found a place in a fraction of the time. What a crash
//! takes is applied again from the log: the position that is written along says from where.
//!
//! Invariants
//! - A row is in `filling`, or in `writing`, or with the engine; where it is in several, the first of them is the newest.
//! - What is written is everything up to some commit, and nothing of a later one.
//! - After a write that failed nothing more is written, and whoever commits or settles hears of it.

use super::engine::Engine;
use super::generation::Generation;
use crate::fault::StoreFault;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// So many rows are written as one batch, or a few more: some milliseconds of work, in which the Scribe cannot give way.
const WRITE_ROWS: usize = 16_384;
/// A commit of so many rows is in order by itself: to put the rows of others among them would cost more than it saves.
const LARGE_COMMIT_ROWS: usize = WRITE_ROWS / 2;
/// The same in bytes.
const WRITE_BYTES: usize = 4 << 20;
/// No row waits longer; a start after a crash applies what was written in the log since then once more.
const WRITE_AFTER: Duration = Duration::from_millis(250);
/// Three batches. Beyond this whoever commits waits for whoever writes, and writes the rest.
const FILLING_BYTES_MAX: usize = 12 << 20;

/// See the file's head.
#[derive(Default)]
pub(super) struct Pending {
    layers: RwLock<Layers>,
    /// Held by whoever writes.
    turn: Mutex<()>,
    signal: Mutex<Signal>,
    wake: Condvar,
}

/// The rows over those of the engine.
#[derive(Default)]
pub(super) struct Layers {
    /// The newest.
    pub(super) filling: Generation,
    /// Those that are being brought to the engine.
    pub(super) writing: Option<Arc<Generation>>,
    failed: Option<Failed>,
}

/// Why nothing more can be written.
#[derive(Clone)]
enum Failed {
    DiskFull,
    Engine(String),
}

/// What the Scribe waits for.
#[derive(Default)]
struct Signal {
    /// When the first of the rows that wait was committed, or a little before.
    filled_at: Option<Instant>,
    /// They are so many that nobody waits for more.
    is_due: bool,
    is_closing: bool,
}

impl Pending {
    /// The rows that wait, for whoever looks.
    pub(super) fn layers(&self) -> RwLockReadGuard<'_, Layers> {
        self.layers.read().expect("nothing panics while it moves rows")
    }

    fn layers_mut(&self) -> RwLockWriteGuard<'_, Layers> {
        self.layers.write().expect("nothing panics while it moves rows")
    }

    fn signal(&self) -> MutexGuard<'_, Signal> {
        self.signal.lock().expect("nothing panics while it gives a sign")
    }

    /// Adds rows to those that wait.
    pub(super) fn commit(&self, rows: Generation, engine: &Engine) -> Result<(), StoreFault> {
        let (is_first, is_due, is_too_much) = {
            let mut layers = self.layers_mut();
            layers.check(&engine.path)?;
            let filling = &mut layers.filling;
            let (is_first, is_large) = (filling.is_empty(), rows.rows() >= LARGE_COMMIT_ROWS);
            // Whoever looks there from now on, and finds nothing, looks here, and waits until this is done.
            for (table, of_table) in rows.tables() {
                if let Some(recent) = engine.recent(table) {
                    recent.forget(of_table);
                }
            }
            filling.take_in(rows);
            let is_due = is_large || filling.rows() >= WRITE_ROWS || filling.bytes() >= WRITE_BYTES;
            (is_first, is_due, filling.bytes() > FILLING_BYTES_MAX)
        };
        if is_too_much {
            return self.settle(engine);
        }
        if is_first || is_due {
            self.tell_scribe(is_due);
        }
        Ok(())
    }

    fn tell_scribe(&self, is_due: bool) {
        let mut signal = self.signal();
        // One that sleeps until rows are due looks when it wakes.
        if signal.filled_at.is_none() || (is_due && !signal.is_due) {
            signal.filled_at.get_or_insert_with(Instant::now);
            signal.is_due |= is_due;
            self.wake.notify_one();
        }
    }

    /// Brings everything that was committed before to the engine, and from there to the operating system.
    pub(super) fn settle(&self, engine: &Engine) -> Result<(), StoreFault> {
        let Ok(turn) = self.turn.lock() else { return Err(Failed::of_panic().fault(&engine.path)) };
        self.write(engine, &turn)?;
        engine.hand_over().inspect_err(|fault| self.layers_mut().failed = Some(Failed::of(fault)))
    }

    /// Brings what waits to the engine.
    fn write(&self, engine: &Engine, _turn: &MutexGuard<'_, ()>) -> Result<(), StoreFault> {
        let rows = {
            let mut layers = self.layers_mut();
            layers.check(&engine.path)?;
            if layers.filling.is_empty() {
                return Ok(());
            }
            let rows = Arc::new(std::mem::take(&mut layers.filling));
            layers.writing = Some(Arc::clone(&rows));
            rows
        };
        let written = engine.write(&rows).map_err(|error| engine.fault("write", &error));
        let mut layers = self.layers_mut();
        match &written {
            Ok(()) => layers.writing = None,
            Err(fault) => layers.failed = Some(Failed::of(fault)),
        }
        written
    }

    /// Whether rows can still be written, as far as is known here.
    pub(super) fn check(&self, path: &Path) -> Result<(), StoreFault> {
        self.layers().check(path)
    }

    /// The Scribe's work: writes what has waited for long enough, until everything is closed or something has failed.
    pub(super) fn run(&self, engine: &Engine) {
        while self.wait_until_due() {
            let failed = match catch_unwind(AssertUnwindSafe(|| self.settle(engine))) {
                Ok(Ok(())) => continue,
                Ok(Err(fault)) => Failed::of(&fault),
                Err(_) => Failed::of_panic(),
            };
            tracing::error!(fault = %failed.fault(&engine.path), "the tables take no more rows");
            self.layers_mut().failed = Some(failed);
            return;
        }
    }

    /// Has the Scribe end.
    pub(super) fn close(&self) {
        self.signal().is_closing = true;
        self.wake.notify_one();
    }

    /// Waits until something has waited for long enough; false at the end.
    fn wait_until_due(&self) -> bool {
        let poisoned = "nothing panics while it gives a sign";
        let mut signal = self.signal();
        while !signal.is_closing {
            signal = match signal.filled_at {
                None => self.wake.wait(signal).expect(poisoned),
                Some(filled_at) => match WRITE_AFTER.checked_sub(filled_at.elapsed()) {
                    Some(left) if !signal.is_due => self.wake.wait_timeout(signal, left).expect(poisoned).0,
                    Some(_) | None => {
                        (signal.filled_at, signal.is_due) = (None, false);
                        return true;
                    }
                },
            };
        }
        false
    }
}

impl Layers {
    fn check(&self, path: &Path) -> Result<(), StoreFault> {
        self.failed.as_ref().map_or(Ok(()), |failed| Err(failed.fault(path)))
    }
}

impl Failed {
    fn of(fault: &StoreFault) -> Failed {
        match fault {
            StoreFault::DiskFull { .. } => Failed::DiskFull,
            StoreFault::Tables { detail, .. } => Failed::Engine(detail.clone()),
            other => Failed::Engine(other.to_string()),
        }
    }

    fn of_panic() -> Failed {
        Failed::Engine("whoever wrote them has met a contradiction".into())
    }

    fn fault(&self, path: &Path) -> StoreFault {
        let path = path.to_owned();
        match self {
            Failed::DiskFull => StoreFault::DiskFull { action: "write", path },
            Failed::Engine(detail) => StoreFault::Tables { path, detail: detail.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::tables::Table;

    #[test]
    fn rows_that_come_while_somebody_writes_are_written_though_nobody_follows() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path()).unwrap();
        let pending = Pending::default();
        std::thread::scope(|scope| {
            scope.spawn(|| pending.run(&engine));
            let turn = pending.turn.lock().unwrap();
            let mut rows = Generation::default();
            for key in 0..2 * WRITE_ROWS as u32 {
                rows.put(Table::Blocks, key.to_be_bytes().into(), Some(b"1".into()));
            }
            pending.commit(rows, &engine).unwrap();
            drop(turn);
            let given_up_at = Instant::now() + Duration::from_secs(60);
            while engine.get(Table::Blocks, &7_u32.to_be_bytes()).unwrap().is_none() {
                assert!(Instant::now() < given_up_at, "the Scribe writes them");
                std::thread::yield_now();
            }
            pending.close();
        });
    }

    #[test]
    fn few_rows_wait_for_more_and_many_are_due() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path()).unwrap();
        let pending = Pending::default();
        let commit = |keys: std::ops::Range<u32>| {
            let mut rows = Generation::default();
            keys.for_each(|key| rows.put(Table::Blocks, key.to_be_bytes().into(), Some(b"1".into())));
            pending.commit(rows, &engine).unwrap();
            let signal = pending.signal();
            (signal.filled_at.is_some(), signal.is_due)
        };
        let (half, all) = (LARGE_COMMIT_ROWS as u32 - 1, WRITE_ROWS as u32);
        assert_eq!(commit(0..1), (true, false));
        assert_eq!(commit(0..half), (true, false), "one is written once more, and counts once");
        assert_eq!(commit(half..2 * half), (true, false));
        assert_eq!(commit(2 * half..all - 1), (true, false));
        assert_eq!(commit(all..all + 1), (true, true));
        assert!(pending.wait_until_due());
        assert!(!pending.signal().is_due);
        pending.settle(&engine).unwrap();
        assert_eq!(commit(0..LARGE_COMMIT_ROWS as u32), (true, true), "many rows wait for no more");
    }

    #[test]
    fn after_a_failed_write_whoever_commits_settles_or_looks_hears_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path()).unwrap();
        let pending = Pending::default();
        let row = || {
            let mut rows = Generation::default();
            rows.put(Table::Blocks, b"a".into(), Some(b"1".into()));
            rows
        };
        pending.commit(row(), &engine).unwrap();
        pending.layers_mut().failed = Some(Failed::Engine("it broke".into()));
        for heard in [pending.commit(row(), &engine), pending.settle(&engine), pending.check(&engine.path)] {
            assert!(heard.is_err_and(|fault| fault.to_string().contains("it broke")));
        }
        assert!(engine.get(Table::Blocks, b"a").unwrap().is_none(), "nothing more is written");
    }
}
