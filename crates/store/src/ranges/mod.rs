//! Ranges: the committed part of branches, in sorted files that are shared between commits.
//!
//! A commit points at a *metarange*, the list of its *ranges*; a range is a Parquet file of entries, sorted by path.
//! Reading order: [`Ranges`] reads one path, [`Cursor`] reads on from there, [`Differences`] compares two metaranges,
//! and `generate` makes a metarange from its parent and changes. Below them: `walk` goes over a metarange range by range,
//! `writing` notes and writes files, `cuts` says where ranges end, `range_file` and `metarange_file` are the bytes,
//! `entries` is what they are in memory.
//!
//! Invariants
//! - A file's name is the SHA-256 of its bytes, and what does not fit its name is not read.
//! - The metarange is a function of its entries alone, whatever the commits were that led to them.
//! - No file is written before its name has been noted, and no metarange before all ranges that it names.
//! - However many entries there are, one range at a time is in memory for each reader, and a few for the generator.

mod columns;
mod cursor;
mod cuts;
mod differences;
mod entries;
mod generate;
mod metarange_file;
mod range_file;
#[cfg(test)]
mod stories;
mod walk;
mod writing;

pub use cursor::{CommittedEntry, Cursor};
pub use cuts::Cuts;
pub use differences::{Difference, Differences};
pub use generate::{Change, GenerateFault, Generated};
pub use metarange_file::{Metarange, RangeInfo};

use crate::fault::StoreFault;
use crate::objects::{ObjectKey, Objects};
use crate::turns::give_way;
use bytes::Bytes;
use columns::What;
use entries::Entries;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windlass_core::branches::entries::{Digest, ObjectEntry};

/// Larger files are decoded, and longer ranges encoded, on a thread that may be busy: these take about a millisecond.
const DECODE_BYTES_INLINE_MAX: usize = 64 << 10;
const ENCODE_ENTRIES_INLINE_MAX: usize = 1_024;

/// How many bytes of memory are kept of what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Of ranges.
    pub range_bytes: u64,
    /// Of metaranges.
    pub metarange_bytes: u64,
}

impl Default for Kept {
    /// Some fifteen ranges of the usual size, and the metaranges of a billion entries.
    fn default() -> Kept {
        Kept { range_bytes: 64 << 20, metarange_bytes: 16 << 20 }
    }
}

/// The name of a file, which is made of the digest of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// A range's.
    Range(Digest),
    /// A metarange's.
    Metarange(Digest),
}

impl FileName {
    /// The file's key in the object store.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::parse(&self.to_string()).expect("a digest's digits make a key")
    }

    fn digest(&self) -> Digest {
        match self {
            FileName::Range(digest) | FileName::Metarange(digest) => *digest,
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Range(digest) => write!(f, "ranges/{digest}.parquet"),
            FileName::Metarange(digest) => write!(f, "metaranges/{digest}.parquet"),
        }
    }
}

/// What a metarange holds in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Entries.
    pub entries: u64,
    /// Bytes of the objects that they lead to.
    pub bytes: u64,
    /// Ranges that they lie in.
    pub ranges: u64,
}

/// Ranges and metaranges in an object store. Cheap to clone; clones keep what they read together.
#[derive(Clone)]
pub struct Ranges(Arc<Shared>);

struct Shared {
    objects: Objects,
    cuts: Cuts,
    ranges: FileCache<Entries>,
    metaranges: FileCache<Metarange>,
    reads: AtomicU64,
}

type FileCache<T> = Cache<Digest, Arc<T>, ByMemory>;

impl Ranges {
    /// The ranges and metaranges in these objects.
    pub fn new(objects: Objects) -> Ranges {
        Ranges::with(objects, Cuts::default(), Kept::default())
    }

    /// The same, with other cuts, which must be those that all metaranges there were made with, or another memory.
    pub fn with(objects: Objects, cuts: Cuts, kept: Kept) -> Ranges {
        // A range of the usual size has 4 MiB, a metarange of a million entries 16 KiB.
        let ranges = file_cache(kept.range_bytes, 4 << 20);
        let metaranges = file_cache(kept.metarange_bytes, 16 << 10);
        Ranges(Arc::new(Shared { objects, cuts, ranges, metaranges, reads: AtomicU64::new(0) }))
    }

    /// The entry of a path; none if there is none. It costs a read of the metarange and one of a range, or none of
    /// what was read lately.
    ///
    /// # Errors
    /// If the store fails, or a file is missing or damaged.
    pub async fn get(&self, metarange: Digest, path: &str) -> Result<Option<ObjectEntry>, StoreFault> {
        let metarange = self.metarange(metarange).await?;
        let Some(info) = metarange.ranges.get(metarange.position_at_least(path)) else { return Ok(None) };
        if path < info.first_path.as_str() {
            return Ok(None);
        }
        let entries = self.range(info, Keep::Yes).await?;
        Ok(entries.find(path).map(|entry| entry.to_entry()))
    }

    /// A cursor before the first entry; of an empty branch if there is no metarange. Nothing is read yet.
    pub fn cursor(&self, metarange: Option<Digest>) -> Cursor {
        Cursor::new(self.clone(), metarange)
    }

    /// What a metarange holds in all; no range is read for it.
    ///
    /// # Errors
    /// If the store fails, or the metarange is missing or damaged.
    pub async fn summary(&self, metarange: Digest) -> Result<Summary, StoreFault> {
        let metarange = self.metarange(metarange).await?;
        let add = |sum: Summary, range: &RangeInfo| Summary {
            entries: sum.entries + range.entries,
            bytes: sum.bytes.saturating_add(range.bytes),
            ranges: sum.ranges + 1,
        };
        Ok(metarange.ranges.iter().fold(Summary::default(), add))
    }

    /// What differs between two metaranges, in the order of paths. Nothing is read yet, and of ranges that both share
    /// nothing ever.
    pub fn differences(&self, from: Option<Digest>, to: Option<Digest>) -> Differences {
        Differences::new(self.clone(), from, to)
    }

    /// The list of ranges.
    ///
    /// # Errors
    /// If the store fails, or the metarange is missing or damaged.
    pub async fn metarange(&self, metarange: Digest) -> Result<Arc<Metarange>, StoreFault> {
        let load = async {
            let name = FileName::Metarange(metarange);
            self.read(name, metarange_file::decode).await.map(Arc::new)
        };
        self.0.metaranges.get_or_insert_async(&metarange, load).await
    }

    /// How many files have been read from the object store so far.
    pub fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    /// The list of ranges of a metarange, or none.
    async fn metarange_or_empty(&self, metarange: Option<Digest>) -> Result<Arc<Metarange>, StoreFault> {
        match metarange {
            Some(metarange) => self.metarange(metarange).await,
            None => Ok(Arc::default()),
        }
    }

    /// The entries of a range.
    async fn range(&self, info: &RangeInfo, keep: Keep) -> Result<Arc<Entries>, StoreFault> {
        let name = FileName::Range(info.range);
        let load = async { self.read(name, range_file::decode).await.map(Arc::new) };
        let entries = match keep {
            Keep::Yes => self.0.ranges.get_or_insert_async(&info.range, load).await?,
            Keep::No => match self.0.ranges.get(&info.range) {
                Some(entries) => entries,
                None => load.await?,
            },
        };
        let is_as_said = entries.len() as u64 == info.entries
            && entries.path(0) == info.first_path
            && entries.path(entries.len() - 1) == info.last_path;
        if !is_as_said {
            return Err(
                self.damaged(name, "its entries are not those that the metarange tells of".to_owned())
            );
        }
        Ok(entries)
    }

    /// Reads a whole file, and checks that it is what its name says.
    async fn read<T: Send + 'static>(
        &self,
        name: FileName,
        decode: fn(Bytes) -> Result<T, What>,
    ) -> Result<T, StoreFault> {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let Some(found) = self.0.objects.get(&name.key()).await? else {
            let (file, address) = (name.to_string(), self.0.objects.address().to_owned());
            return Err(StoreFault::RangeMissing { file, address });
        };
        let bytes = found.into_bytes().await?;
        let is_large = bytes.len() > DECODE_BYTES_INLINE_MAX;
        let check = move || {
            if digest_of(&bytes) == name.digest() {
                decode(bytes)
            } else {
                Err("its bytes do not have the SHA-256 that is its name".to_owned())
            }
        };
        let decoded = if is_large { finished(tokio::task::spawn_blocking(check)).await } else { check() };
        decoded.map_err(|what| self.damaged(name, what))
    }

    fn damaged(&self, name: FileName, what: What) -> StoreFault {
        StoreFault::RangeDamaged {
            file: name.to_string(),
            address: self.0.objects.address().to_owned(),
            what,
        }
    }
}

/// Whether what is read is kept for others. Whoever reads all of a branch once does not drive out what is read often.
#[derive(Clone, Copy)]
enum Keep {
    Yes,
    No,
}

/// Files weigh what they take of memory.
#[derive(Clone)]
struct ByMemory;

impl Weighter<Digest, Arc<Entries>> for ByMemory {
    fn weight(&self, _: &Digest, entries: &Arc<Entries>) -> u64 {
        entries.memory_bytes() as u64
    }
}

impl Weighter<Digest, Arc<Metarange>> for ByMemory {
    fn weight(&self, _: &Digest, metarange: &Arc<Metarange>) -> u64 {
        metarange.memory_bytes() as u64
    }
}

fn file_cache<T>(bytes: u64, file_bytes: u64) -> FileCache<T>
where
    ByMemory: Weighter<Digest, Arc<T>>,
{
    // In one part: each of several would only keep files that are as small as its share.
    let options = OptionsBuilder::new()
        .shards(1)
        .estimated_items_capacity((bytes / file_bytes).max(1) as usize)
        .weight_capacity(bytes)
        .build()
        .expect("the capacities are given");
    Cache::with_options(options, ByMemory, DefaultHashBuilder::default(), DefaultLifecycle::default())
}

fn digest_of(bytes: &[u8]) -> Digest {
    /// A tenth of a millisecond's work.
    const BYTES_AT_ONCE: usize = 64 << 10;
    let mut sha256 = Sha256::new();
    for piece in bytes.chunks(BYTES_AT_ONCE) {
        sha256.update(piece);
        give_way();
    }
    Digest::new(sha256.finalize().into())
}

/// What a thread that may be busy has made.
async fn finished<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(made) => made,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending, and whoever waits here with it.
            Err(_) => std::future::pending().await,
        },
    }
}
