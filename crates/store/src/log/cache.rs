//! Cache: the newest entries, in memory.
//!
//! Invariants
//! - The cache is a suffix of the log: it holds every entry from its first to the log's last.
//! - An entry leaves it for want of space only when the writer has written it.

use bytes::Bytes;
use std::collections::VecDeque;

/// What an entry costs beside its payload: its place in the queue and the shared buffer's counter.
const ENTRY_OVERHEAD_BYTES: usize = 64;

struct Cached {
    payload: Bytes,
    /// Which append brought it.
    append: u64,
}

/// The newest entries of the log.
pub(super) struct Cache {
    first: u64,
    entries: VecDeque<Cached>,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Cache {
        Cache { first: 0, entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(super) fn push(&mut self, index: u64, payload: Bytes, append: u64) {
        if self.entries.is_empty() {
            self.first = index;
        }
        self.bytes += payload.len() + ENTRY_OVERHEAD_BYTES;
        self.entries.push_back(Cached { payload, append });
    }

    pub(super) fn truncate(&mut self, after: u64) {
        while self.first + self.entries.len() as u64 > after + 1 {
            let Some(entry) = self.entries.pop_back() else { return };
            self.bytes -= entry.payload.len() + ENTRY_OVERHEAD_BYTES;
        }
    }

    pub(super) fn purge(&mut self, upto: u64) {
        while self.first <= upto && !self.entries.is_empty() {
            self.pop_first();
        }
    }

    /// Makes room, among the entries of appends up to `written`.
    pub(super) fn evict(&mut self, written: u64) {
        while self.bytes > self.bytes_max && self.entries.front().is_some_and(|entry| entry.append <= written)
        {
            self.pop_first();
        }
    }

    /// The first index from `from` on that the cache holds; `to` if it holds none before.
    pub(super) fn begins(&self, from: u64, to: u64) -> u64 {
        if self.entries.is_empty() { to } else { self.first.clamp(from, to) }
    }

    pub(super) fn get(&self, index: u64) -> Option<Bytes> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.entries.get(at).map(|entry| entry.payload.clone())
    }

    fn pop_first(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.payload.len() + ENTRY_OVERHEAD_BYTES;
            self.first += 1;
        }
    }
}
