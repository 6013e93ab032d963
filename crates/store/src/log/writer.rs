//! Writer: writes the log, on its own thread or on that of whoever appends. Everything queued while it writes becomes its
//! next group.
//!
//! Invariants
//! - A group is written, then synced, then answered; the next is begun only after that.
//! - Answers are given in the order of the appends.
//! - After a failed call nothing more is written: what the disk then holds is unknown until the log is opened again.

use super::fault::LogFault;
use super::format::{self, GroupBuffer, MARKER_BYTES, Marker};
use super::ledger::Ledger;
use super::recover;
use super::segments::{Before, Folder, Tail};
use super::{Append, Record, Shared};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Bytes of records in one write, unless a single append is larger: it bounds the buffer that they are encoded into.
const GROUP_BYTES_MAX: u64 = 16 << 20;

/// What only whoever writes has to know.
pub(super) struct Writer {
    shared: Arc<Shared>,
    folder: Folder,
    /// What has been written, as opposed to what has been queued.
    ledger: Ledger,
    tail: Tail,
    /// Why nothing more is written.
    fault: Option<LogFault>,
}

/// The writer thread: writes what is queued and not written by whoever queued it, until the log is closed.
pub(super) fn run(shared: &Shared, writer: &Mutex<Writer>) {
    let lock = || writer.lock().expect("no thread has found a contradiction in the log");
    while shared.wait_for_appends() {
        lock().write_queued();
    }
    lock().finish();
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, folder: Folder, ledger: Ledger, tail: Tail) -> Writer {
        Writer { shared, folder, ledger, tail, fault: None }
    }

    /// Writes and answers until nothing is queued.
    pub(super) fn write_queued(&mut self) {
        loop {
            let mut queued = std::mem::take(&mut self.shared.lock().queue);
            if queued.is_empty() {
                return;
            }
            while self.fault.is_none() && !queued.is_empty() {
                self.fault = self.write_some(&mut queued).err();
            }
            if let Some(fault) = &self.fault {
                for append in queued {
                    (append.done)(Err(fault.clone()));
                }
            }
        }
    }

    /// The log is closed, and everything is written.
    fn finish(&mut self) {
        if self.fault.is_none() && !self.tail.sealed {
            // The log is whole without the seal too; it only makes later damage easier to tell.
            if let Err(fault) = self.seal() {
                tracing::warn!("the log was closed without its seal: {fault}");
            }
        }
    }

    /// Writes and answers one group from the front of the queue, or answers with the fault.
    fn write_some(&mut self, queued: &mut VecDeque<Append>) -> Result<(), LogFault> {
        let mut group = Vec::new();
        let written = self.make_room(queued).and_then(|()| {
            group = self.take_group(queued);
            self.write_group(&group)
        });
        if let Err(fault) = &written {
            tracing::error!("the log takes no more records: {fault}");
            self.shared.lock().fault = Some(fault.clone());
        }
        let is_purged = group.iter().any(|append| append.has_purge());
        for append in group {
            (append.done)(written.clone());
        }
        written?;
        if is_purged {
            let recycled = self.recycle();
            if let Err(fault) = &recycled {
                tracing::error!("the log takes no more records: {fault}");
                self.shared.lock().fault = Some(fault.clone());
            }
            return recycled;
        }
        Ok(())
    }

    /// Begins a new segment if the first append does not fit into the last one.
    fn make_room(&mut self, queued: &VecDeque<Append>) -> Result<(), LogFault> {
        let Some(first) = queued.front() else { return Ok(()) };
        let room = MARKER_BYTES as u64 + first.bytes();
        if room <= self.space() {
            return Ok(());
        }
        let (number, end) = {
            let state = self.shared.lock();
            let last = state.segments.segments.back().expect("a log has a segment");
            (last.number, last.end)
        };
        let before = Before { segment: number, group: self.tail.group, end, chain: self.tail.chain };
        let (segment, tail) = self.folder.begin_segment(&before, &self.ledger, room)?;
        self.tail = tail;
        self.shared.lock().segments.segments.push_back(segment);
        Ok(())
    }

    /// Bytes left for groups in the last segment; the seal's are not counted.
    fn space(&self) -> u64 {
        let state = self.shared.lock();
        let last = state.segments.segments.back().expect("a log has a segment");
        last.capacity.saturating_sub(last.end + MARKER_BYTES as u64)
    }

    /// The appends that go into one group: at least the first, and as many more as fit.
    fn take_group(&self, queued: &mut VecDeque<Append>) -> Vec<Append> {
        let room = self.space().saturating_sub(MARKER_BYTES as u64).min(GROUP_BYTES_MAX);
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(append) = queued.front() {
            bytes += append.bytes();
            if bytes > room && !group.is_empty() {
                break;
            }
            group.extend(queued.pop_front());
        }
        group
    }

    fn write_group(&mut self, group: &[Append]) -> Result<(), LogFault> {
        let Some(last) = group.last() else { return Ok(()) };
        let bytes: u64 = group.iter().map(Append::bytes).sum();
        let (file, path) = {
            let state = self.shared.lock();
            let segment = state.segments.segments.back().expect("a log has a segment");
            (Arc::clone(&segment.file), segment.path.clone())
        };
        let records = || group.iter().flat_map(|append| &append.records);
        let mut places = Vec::new();
        // An append without records waits for those before it, and they are durable already.
        if bytes > 0 {
            let length = u32::try_from(bytes).expect("a segment is smaller than 4 GiB");
            let marker = Marker { salt: self.tail.salt, group: self.tail.group, length };
            let mut buffer = GroupBuffer::begin(marker, self.tail.end, self.tail.chain);
            places.extend(records().map(|record| buffer.push(record)));
            let (buffer, chain) = buffer.finish();
            file.write_at(&buffer, self.tail.end).map_err(|e| LogFault::from_io("write", &path, &e))?;
            file.sync().map_err(|e| LogFault::from_io("sync", &path, &e))?;
            self.tail.end += buffer.len() as u64;
            self.tail.chain = chain;
            self.tail.group += 1;
            self.tail.sealed = false;
        }

        let mut state = self.shared.lock();
        for (record, place) in records().zip(&places) {
            self.ledger.apply(record);
            state.segments.apply(record, *place);
        }
        state.segments.segments.back_mut().expect("a log has a segment").end = self.tail.end;
        state.cache.evict(last.number);
        if bytes > 0 {
            state.counters.syncs += 1;
            state.counters.records += places.len() as u64;
            state.counters.bytes_written += MARKER_BYTES as u64 + bytes;
        }
        Ok(())
    }

    /// Gives back the segments that a durable purge has emptied.
    fn recycle(&mut self) -> Result<(), LogFault> {
        let unneeded = self.shared.lock().segments.take_unneeded();
        self.folder.recycle(unneeded)
    }

    fn seal(&mut self) -> Result<(), LogFault> {
        let (file, path) = {
            let state = self.shared.lock();
            let segment = state.segments.segments.back().expect("a log has a segment");
            (Arc::clone(&segment.file), segment.path.clone())
        };
        recover::write_seal(&*file, &path, &mut self.tail)
    }
}

impl Append {
    /// The bytes that its records take.
    fn bytes(&self) -> u64 {
        self.records.iter().map(|record| format::record_bytes(record) as u64).sum()
    }

    fn has_purge(&self) -> bool {
        self.records.iter().any(|record| matches!(record, Record::Purge { .. }))
    }
}
