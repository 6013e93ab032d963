//! Writing: the files of a new metarange, noted before they are written.
//!
//! Invariants
//! - A file is written only after a note with its name has succeeded.
//! - The metarange is written after all its ranges.
//! - What the parent has already is neither noted nor written.

use super::entries::Entries;
use super::generate::GenerateFault;
use super::metarange_file::{self, Metarange, RangeInfo};
use super::{ENCODE_ENTRIES_INLINE_MAX, FileName, Ranges, digest_of, finished, range_file};
use crate::fault::StoreFault;
use crate::steps;
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::sync::Arc;
use tokio::task::JoinHandle;
use windlass_core::branches::entries::Digest;

/// So many ranges are noted at once. A note is one entry of the log; one for each range would make the log the slow part.
const BATCH_FILES_MAX: usize = 8;
/// So many bytes wait in memory until they are noted.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// The files of a metarange that is being made.
pub(super) struct Writing<N> {
    ranges: Ranges,
    parent: Arc<Metarange>,
    note: N,
    /// The ranges so far, without the one that is being encoded.
    list: Vec<RangeInfo>,
    /// One is encoded while the next is gathered.
    encoding: Option<JoinHandle<RangeFile>>,
    batch: Vec<(FileName, Bytes)>,
    written: Written,
}

/// What was written.
pub(super) struct Written {
    pub(super) files: Vec<FileName>,
    pub(super) ranges_written: u64,
}

struct RangeFile {
    info: RangeInfo,
    bytes: Bytes,
}

impl<N> Writing<N> {
    pub(super) fn new(ranges: Ranges, parent: Arc<Metarange>, note: N) -> Writing<N> {
        let written = Written { files: Vec::new(), ranges_written: 0 };
        Writing { ranges, parent, note, list: Vec::new(), encoding: None, batch: Vec::new(), written }
    }

    /// Adds a range that the parent has.
    pub(super) async fn share<E>(&mut self, range: RangeInfo) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        self.settle().await?;
        self.list.push(range);
        Ok(())
    }

    /// Adds a range of these entries.
    pub(super) async fn add<E>(&mut self, entries: Entries, is_closed: bool) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        self.settle().await?;
        if entries.len() <= ENCODE_ENTRIES_INLINE_MAX {
            return self.place(encode(entries, is_closed)).await;
        }
        self.encoding = Some(tokio::task::spawn_blocking(move || encode(entries, is_closed)));
        Ok(())
    }

    /// Writes what is left, and the metarange last unless it is the parent's own.
    pub(super) async fn finish<E>(
        mut self,
        parent: Option<Digest>,
    ) -> Result<(Digest, Metarange, Written), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        self.settle().await?;
        let metarange = Metarange { ranges: std::mem::take(&mut self.list) };
        let bytes = metarange_file::encode(&metarange);
        let digest = digest_of(&bytes);
        if parent == Some(digest) {
            assert!(self.batch.is_empty(), "a metarange that is its parent's names no new range");
        } else {
            self.batch.push((FileName::Metarange(digest), bytes));
            self.write_batch().await?;
        }
        Ok((digest, metarange, self.written))
    }

    /// Waits for the range that is being encoded, and puts it in its place.
    async fn settle<E>(&mut self) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        match self.encoding.take() {
            Some(encoding) => {
                let file = finished(encoding).await;
                self.place(file).await
            }
            None => Ok(()),
        }
    }

    async fn place<E>(&mut self, file: RangeFile) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        if !self.parent.names(&file.info) {
            let waiting: usize = self.batch.iter().map(|(_, bytes)| bytes.len()).sum();
            let is_full = self.batch.len() >= BATCH_FILES_MAX || waiting + file.bytes.len() > BATCH_BYTES_MAX;
            if is_full && !self.batch.is_empty() {
                self.write_batch().await?;
            }
            self.batch.push((FileName::Range(file.info.range), file.bytes));
            self.written.ranges_written += 1;
        }
        self.list.push(file.info);
        Ok(())
    }

    /// Notes and writes the batch: the ranges at once, then the metarange if it is there.
    async fn write_batch<E>(&mut self) -> Result<(), GenerateFault<E>>
    where
        N: AsyncFnMut(&[FileName]) -> Result<(), E>,
    {
        let batch = std::mem::take(&mut self.batch);
        let names: Vec<FileName> = batch.iter().map(|(name, _)| *name).collect();
        (self.note)(&names).await.map_err(GenerateFault::Note)?;
        self.written.files.extend(names);
        let (metaranges, ranges): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|(name, _)| matches!(name, FileName::Metarange(_)));
        for files in [ranges, metaranges] {
            try_join_all(files.into_iter().map(|(name, bytes)| put(&self.ranges, name, bytes))).await?;
        }
        Ok(())
    }
}

/// A file that is there already has the same bytes, since they are its name.
async fn put(ranges: &Ranges, name: FileName, bytes: Bytes) -> Result<(), StoreFault> {
    steps::pass("writing");
    let written = ranges.0.objects.put_new(&name.key(), bytes).await.map(drop);
    steps::pass("written");
    written
}

fn encode(entries: Entries, is_closed: bool) -> RangeFile {
    let path = |row: usize| entries.path(row).to_owned();
    let (first_path, last_path) = (path(0), path(entries.len() - 1));
    let (count, object_bytes) = (entries.len() as u64, entries.object_bytes());
    let bytes = range_file::encode(entries);
    let info = RangeInfo {
        range: digest_of(&bytes),
        first_path,
        last_path,
        entries: count,
        bytes: object_bytes,
        file_bytes: bytes.len() as u64,
        is_closed,
    };
    RangeFile { info, bytes }
}
