//! Raft's log, on the store's log.
//!
//! Invariants
//! - Raft hears that entries are flushed only after the fdatasync that covers them.
//! - The vote is durable before raft goes on with it.
//! - The purged position and the purge itself are one append: both survive a crash, or neither.
//! - A write that fails raises the alarm; raft is told as well, and stops.

use super::format::{self, Unreadable};
use super::{Entry, LogId, Types, Vote, index_of};
use crate::fault::{Alarm, OrderFault};
use crate::limits::{ENTRIES_PER_READ_MAX, REPLICATE_BYTES_MAX};
use bytes::Bytes;
use futures_util::{Stream, stream};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use tokio::sync::oneshot;
use windlass_store::log::{Log, LogFault, Record};

/// The state that holds the vote.
const VOTE_KEY: u8 = 1;
/// The state that holds the id of the last purged entry.
const PURGED_KEY: u8 = 2;

/// Raft's log; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    log: Log,
    alarm: Alarm,
}

impl LogStore {
    pub(crate) const fn new(log: Log, alarm: Alarm) -> LogStore {
        LogStore { log, alarm }
    }

    fn read(&self, range: Range<u64>) -> io::Result<Vec<Entry>> {
        let stored = self.log.read(index_of(range.start)..index_of(range.end));
        let entries = stored.map_err(|fault| self.fail(fault.into()))?;
        entries
            .iter()
            .map(|(index, bytes)| {
                format::decode_entry(index - 1, bytes).map_err(|what| self.unreadable(what))
            })
            .collect()
    }

    fn purged(&self) -> io::Result<Option<LogId>> {
        let stored = self.log.state(PURGED_KEY);
        stored.map(|bytes| format::decode_log_id(&bytes)).transpose().map_err(|what| self.unreadable(what))
    }

    /// Writes records and waits until they are durable.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let (done, durable) = oneshot::channel();
        self.log.append(records, Box::new(move |result| drop(done.send(result))));
        durable.await.unwrap_or(Err(LogFault::Closed)).map_err(|fault| self.fail(fault.into()))
    }

    fn unreadable(&self, what: Unreadable) -> io::Error {
        self.fail(OrderFault::LogBroken { what })
    }

    fn fail(&self, fault: OrderFault) -> io::Error {
        self.alarm.raise(fault.clone());
        io::Error::other(fault)
    }

    /// The part of raft's range that can be there.
    fn clip(&self, range: &impl RangeBounds<u64>) -> Range<u64> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.log.last_index().unwrap_or_default(),
        };
        start..end.max(start)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let Range { start, end } = self.clip(&range);
        // A replay may be longer than memory, so it is read piece by piece.
        let pieces = (start..end)
            .step_by(ENTRIES_PER_READ_MAX as usize)
            .map(move |from| from..end.min(from + ENTRIES_PER_READ_MAX));
        let store = self.clone();
        stream::iter(pieces.flat_map(move |piece| {
            let (found, fault) = match store.read(piece) {
                Ok(found) => (found, None),
                Err(fault) => (Vec::new(), Some(fault)),
            };
            found.into_iter().map(Ok).chain(fault.map(Err))
        }))
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(self.clip(&range))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let stored = self.log.state(VOTE_KEY);
        stored.map(|bytes| format::decode_vote(&bytes)).transpose().map_err(|what| self.unreadable(what))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let mut entries = self.read(start..end.min(start + ENTRIES_PER_READ_MAX))?;
        let mut bytes = 0;
        let fitting = entries.iter().take_while(|entry| {
            let fits = bytes < REPLICATE_BYTES_MAX;
            if let EntryPayload::Normal(group) = &entry.payload {
                bytes += group.0.len();
            }
            fits
        });
        let fitting = fitting.count();
        entries.truncate(fitting);
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let purged = self.purged()?;
        let last = match self.log.last_index() {
            Some(last) => self.read(last - 1..last)?.first().map(|entry| entry.log_id),
            None => None,
        };
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.write(vec![Record::State { key: VOTE_KEY, value: format::encode_vote(vote) }]).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let record = |entry: Entry| Record::Entry {
            index: index_of(entry.log_id.index),
            payload: format::encode_entry(&entry),
        };
        let alarm = self.alarm.clone();
        let done = move |result: Result<(), LogFault>| {
            let result = result.map_err(OrderFault::from);
            if let Err(fault) = &result {
                alarm.raise(fault.clone());
            }
            callback.io_completed(result.map_err(io::Error::other));
        };
        // A member alone has nothing to do until its entries are durable, so it writes them itself. With others, the log's
        // thread must write, so that they do so at the same time.
        self.log.append_here(entries.into_iter().map(record).collect(), Box::new(done));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let after = last_log_id.map_or(0, |log_id| index_of(log_id.index));
        self.write(vec![Record::Truncate { after }]).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let records = vec![
            Record::State { key: PURGED_KEY, value: format::encode_log_id(&log_id) },
            Record::Purge { upto: index_of(log_id.index) },
        ];
        // Raft need not wait: a purge that a crash undoes leaves entries that are applied already.
        let alarm = self.alarm.clone();
        self.log.append(
            records,
            Box::new(move |result| {
                if let Err(fault) = result {
                    alarm.raise(fault.into());
                }
            }),
        );
        Ok(())
    }
}

/// The group of a stored entry, if it has one: what a replay outside of raft needs.
pub fn group_of(index: u64, bytes: &Bytes) -> Result<Option<Bytes>, OrderFault> {
    match format::decode_entry(index - 1, bytes) {
        Ok(entry) => match entry.payload {
            EntryPayload::Normal(group) => Ok(Some(group.0)),
            EntryPayload::Blank | EntryPayload::Membership(_) => Ok(None),
        },
        Err(what) => Err(OrderFault::LogBroken { what }),
    }
}
