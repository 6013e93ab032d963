//! Stories of the log, on a disk that can be hurt.

mod crashes;
mod damage;
mod days;

use super::hurt::HurtDisk;
use super::{Log, LogFault, LogOptions, Record, Recovered};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

/// Small segments, so that a story crosses many of them; a small cache, so that reads go to the files too.
const SMALL: LogOptions = LogOptions { segment_bytes: 2048, cache_bytes: 512 };

fn folder() -> &'static Path {
    Path::new("/log")
}

fn segment(number: u64) -> PathBuf {
    super::segments::segment_path(folder(), number)
}

fn try_open(disk: &HurtDisk) -> Result<(Log, Recovered), LogFault> {
    Log::open_on(Arc::new(disk.clone()), folder(), SMALL)
}

fn open(disk: &HurtDisk) -> (Log, Recovered) {
    try_open(disk).unwrap()
}

/// Appends and waits for the answer. Every other write is made here, the rest by the log's thread.
fn append(log: &Log, records: Vec<Record>) -> Result<(), LogFault> {
    let (sender, answer) = mpsc::channel();
    let done = Box::new(move |done| sender.send(done).unwrap());
    match log.counters().syncs % 2 {
        0 => log.append_here(records, done),
        _ => log.append(records, done),
    }
    answer.recv().unwrap()
}

/// A payload that tells its index, and which draft of the entry it is.
fn payload(index: u64, draft: u64) -> Bytes {
    let length = 10 + (index * 7 + draft) % 90;
    Bytes::from(
        format!("{index}/{draft}/")
            .into_bytes()
            .into_iter()
            .cycle()
            .take(length as usize)
            .collect::<Vec<_>>(),
    )
}

fn entry(index: u64, draft: u64) -> Record {
    Record::Entry { index, payload: payload(index, draft) }
}

fn state(key: u8, value: &str) -> Record {
    Record::State { key, value: Bytes::copy_from_slice(value.as_bytes()) }
}

/// What `read` must answer for entries of the first draft.
fn first_drafts(indexes: std::ops::RangeInclusive<u64>) -> Vec<(u64, Bytes)> {
    indexes.map(|index| (index, payload(index, 0))).collect()
}
