//! Ledger: what the log holds, without its bytes: first and last index, how far it is purged, the live states.
//!
//! Invariants
//! - Entries are consecutive: first, first + 1, …, last.
//! - No entry at or below the purged index is held; the purged index never moves back.

use super::Record;
use super::format::PAYLOAD_BYTES_MAX;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The log's contents as of some record. The queueing side has one (everything appended), the writer another
/// (everything written).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// First and last index.
    pub(super) bounds: Option<(u64, u64)>,
    /// Entries up to here are no longer needed; 0 if none was purged.
    pub(super) purged: u64,
    pub(super) states: BTreeMap<u8, Bytes>,
}

impl Ledger {
    /// Why the record cannot be the next one, if it cannot.
    pub(super) fn contradiction(&self, record: &Record) -> Option<String> {
        match record {
            Record::Entry { payload, .. } if payload.len() > PAYLOAD_BYTES_MAX => {
                Some(format!("an entry holds at most {PAYLOAD_BYTES_MAX} bytes, not {}", payload.len()))
            }
            Record::Entry { index: 0, .. } => Some("entries are numbered from 1".to_owned()),
            Record::Entry { index, .. } => match self.bounds {
                Some((_, last)) if *index != last + 1 => {
                    Some(format!("entry {index} cannot follow entry {last}"))
                }
                None if *index <= self.purged => {
                    Some(format!("entry {index} cannot follow a purge of everything up to {}", self.purged))
                }
                _ => None,
            },
            Record::Truncate { after } if *after < self.purged => {
                Some(format!("cannot remove all after {after}: everything up to {} is purged", self.purged))
            }
            Record::State { .. } | Record::Truncate { .. } | Record::Purge { .. } => None,
        }
    }

    /// Takes a record that contradicts nothing.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Entry { index, .. } => {
                let first = self.bounds.map_or(*index, |(first, _)| first);
                self.bounds = Some((first, *index));
            }
            Record::State { key, value } => {
                // A copy, so that a small value does not keep the large buffer alive that it was cut from.
                self.states.insert(*key, Bytes::copy_from_slice(value));
            }
            Record::Truncate { after } => {
                self.bounds = self
                    .bounds
                    .map(|(first, last)| (first, last.min(*after)))
                    .filter(|(first, last)| first <= last);
            }
            Record::Purge { upto } => {
                self.purged = self.purged.max(*upto);
                self.bounds = self
                    .bounds
                    .map(|(first, last)| (first.max(self.purged + 1), last))
                    .filter(|(first, last)| first <= last);
            }
        }
    }

    pub(super) fn last_index(&self) -> u64 {
        self.bounds.map_or(0, |(_, last)| last)
    }

    /// The records that a new segment begins with, so that older segments are not needed for them.
    pub(super) fn head(&self) -> Vec<Record> {
        let states = self.states.iter();
        let mut head: Vec<_> =
            states.map(|(key, value)| Record::State { key: *key, value: value.clone() }).collect();
        if self.purged > 0 {
            head.push(Record::Purge { upto: self.purged });
        }
        head
    }
}
