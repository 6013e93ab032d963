//! Segments: the files of the log's folder, and where in them each entry lies.
//!
//! Invariants
//! - A file has a segment's name only after its header and first group are durable: a segment with a bad header or a
//!   bad first group is damaged, never half made.
//! - Segments leave oldest first, each rename made durable before the next.
//! - Only segments without live entries leave, and never the last one.

use super::disk::{Disk, DiskFile};
use super::fault::LogFault;
use super::format::{self, GroupBuffer, HEADER_BYTES, Header, MARKER_BYTES, Marker, Place};
use super::ledger::Ledger;
use super::{LogOptions, Record};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Spare files kept for the next segments; at 64 MiB each they cost at most 192 MiB of disk.
const SPARES_MAX: usize = 3;
/// Bytes read from a file at once, unless a single entry is larger.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Zeros are written in pieces of this size.
const ZEROS: &[u8] = &[0; 1 << 20];
/// A segment's file while it is being made.
pub(super) const UNFINISHED_NAME: &str = "new.tmp";

/// One segment's file, and the places of its live entries.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) capacity: u64,
    /// Where its last group ends.
    pub(super) end: u64,
    first_index: u64,
    places: Vec<Place>,
}

impl Segment {
    pub(super) fn new(
        number: u64,
        path: PathBuf,
        file: Arc<dyn DiskFile>,
        capacity: u64,
        end: u64,
    ) -> Segment {
        Segment { number, path, file, capacity, end, first_index: 0, places: Vec::new() }
    }

    /// One past its last live entry; none if it has no live entry.
    fn next_index(&self) -> Option<u64> {
        (!self.places.is_empty()).then(|| self.first_index + self.places.len() as u64)
    }
}

/// The place in the last segment where the next group goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    pub(super) salt: u64,
    pub(super) group: u64,
    pub(super) chain: u32,
    pub(super) end: u64,
    /// The last group is empty: it only says that all before it is durable.
    pub(super) sealed: bool,
}

/// A stretch of one file that holds consecutive entries.
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) places: Vec<Place>,
    pub(super) end: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
}

/// All segments, oldest first.
#[derive(Default)]
pub(super) struct SegmentList {
    pub(super) segments: VecDeque<Segment>,
}

impl SegmentList {
    /// Takes a record that was written to the last segment.
    pub(super) fn apply(&mut self, record: &Record, place: Place) {
        match record {
            Record::Entry { index, .. } => {
                let segment = self.segments.back_mut().expect("a log has a segment");
                if segment.places.is_empty() {
                    segment.first_index = *index;
                }
                segment.places.push(place);
            }
            Record::State { .. } => {}
            Record::Truncate { after } => {
                for segment in &mut self.segments {
                    let kept = (after + 1).saturating_sub(segment.first_index);
                    segment.places.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
                }
            }
            Record::Purge { upto } => {
                for segment in &mut self.segments {
                    if segment.next_index().is_some_and(|next| next <= upto + 1) {
                        segment.places = Vec::new();
                    }
                }
            }
        }
    }

    /// The stretches that hold the entries from `from` up to, not including, `to`.
    pub(super) fn runs(&self, from: u64, to: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut at = from;
        for segment in &self.segments {
            let Some(next) = segment.next_index() else { continue };
            while at < to && at >= segment.first_index && at < next {
                let run = segment.run(at, to.min(next));
                at += run.places.len() as u64;
                runs.push(run);
            }
        }
        assert!(at == to || from >= to, "an entry that is not cached has been written");
        runs
    }

    /// Takes out the segments that hold no live entry, oldest first; the last one stays.
    pub(super) fn take_unneeded(&mut self) -> Vec<Segment> {
        let mut unneeded = Vec::new();
        while self.segments.len() > 1
            && self.segments.front().is_some_and(|segment| segment.places.is_empty())
        {
            unneeded.extend(self.segments.pop_front());
        }
        unneeded
    }
}

impl Segment {
    /// As many entries from `from` on as one read takes, before `to`.
    fn run(&self, from: u64, to: u64) -> Run {
        let at = (from - self.first_index) as usize;
        let bound = (to - self.first_index) as usize;
        let start = u64::from(self.places[at].offset);
        let ends =
            |index: usize| self.places.get(index + 1).map_or(self.end, |place| u64::from(place.offset));
        let mut last = at;
        while last + 1 < bound && ends(last + 1) - start <= RUN_BYTES_MAX {
            last += 1;
        }
        Run {
            first: from,
            places: self.places[at..=last].to_vec(),
            end: ends(last),
            path: self.path.clone(),
            file: Arc::clone(&self.file),
        }
    }
}

/// The log's folder: makes segment files and takes them back.
pub(super) struct Folder {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
    pub(super) options: LogOptions,
    pub(super) spares: Vec<PathBuf>,
}

/// What a new segment goes on from.
pub(super) struct Before {
    pub(super) segment: u64,
    pub(super) group: u64,
    pub(super) end: u64,
    pub(super) chain: u32,
}

impl Folder {
    /// Makes the next segment, with room for `room` bytes of groups behind its head.
    pub(super) fn begin_segment(
        &mut self,
        before: &Before,
        ledger: &Ledger,
        room: u64,
    ) -> Result<(Segment, Tail), LogFault> {
        let head = ledger.head();
        let head_bytes: usize = head.iter().map(format::record_bytes).sum();
        // The second marker's room is for the seal that a closed log ends with.
        let needed = (HEADER_BYTES + MARKER_BYTES + head_bytes + MARKER_BYTES) as u64 + room;
        assert!(
            u32::try_from(needed).is_ok(),
            "a segment is smaller than 4 GiB, and {needed} bytes are needed"
        );

        let spare = if needed <= self.options.segment_bytes { self.spares.pop() } else { None };
        let recycled = spare.is_some();
        let (unnamed, file, capacity) = match spare {
            Some(path) => {
                let file = self.disk.open(&path).map_err(|e| LogFault::from_io("open", &path, &e))?;
                (path, file, self.options.segment_bytes)
            }
            None => {
                let capacity = self.options.segment_bytes.max(needed);
                let path = self.path.join(UNFINISHED_NAME);
                let file = self.disk.create(&path).map_err(|e| LogFault::from_io("create", &path, &e))?;
                write_zeros(&*file, 0, capacity).map_err(|e| LogFault::from_io("fill", &path, &e))?;
                (path, file, capacity)
            }
        };

        let header = Header {
            recycled,
            segment: before.segment + 1,
            salt: draw_salt(),
            first_group: before.group,
            previous_end: before.end,
            last_index: ledger.last_index(),
            previous_chain: before.chain,
        };
        let marker = Marker { salt: header.salt, group: before.group, length: head_bytes as u32 };
        let mut group = GroupBuffer::begin(marker, HEADER_BYTES as u64, header.chain());
        for record in &head {
            group.push(record);
        }
        let (group, chain) = group.finish();
        let bytes = [&header.encode()[..], &group].concat();
        file.write_at(&bytes, 0).map_err(|e| LogFault::from_io("write", &unnamed, &e))?;
        file.sync().map_err(|e| LogFault::from_io("sync", &unnamed, &e))?;

        let path = segment_path(&self.path, header.segment);
        self.disk.rename(&unnamed, &path).map_err(|e| LogFault::from_io("rename", &unnamed, &e))?;
        self.sync()?;
        let end = bytes.len() as u64;
        let tail = Tail { salt: header.salt, group: before.group + 1, chain, end, sealed: head.is_empty() };
        Ok((Segment::new(header.segment, path, file, capacity, end), tail))
    }

    /// Turns segments that nobody needs into spares, or removes them.
    pub(super) fn recycle(&mut self, unneeded: Vec<Segment>) -> Result<(), LogFault> {
        for segment in unneeded {
            if self.spares.len() < SPARES_MAX && segment.capacity == self.options.segment_bytes {
                let spare = segment.path.with_extension("spare");
                let renamed = self.disk.rename(&segment.path, &spare);
                renamed.map_err(|e| LogFault::from_io("rename", &segment.path, &e))?;
                self.spares.push(spare);
            } else {
                let removed = self.disk.remove(&segment.path);
                removed.map_err(|e| LogFault::from_io("remove", &segment.path, &e))?;
            }
            // Before the next one leaves: a gap in the sequence would be refused.
            self.sync()?;
        }
        Ok(())
    }

    /// Makes the names in the folder durable.
    pub(super) fn sync(&self) -> Result<(), LogFault> {
        self.disk.sync_folder(&self.path).map_err(|e| LogFault::from_io("sync the folder", &self.path, &e))
    }
}

/// Writes zeros from `offset` up to `end`.
pub(super) fn write_zeros(file: &dyn DiskFile, mut offset: u64, end: u64) -> std::io::Result<()> {
    while offset < end {
        let piece = (end - offset).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..piece as usize], offset)?;
        offset += piece;
    }
    Ok(())
}

/// Whether all bytes are zero; compared in large pieces, since a tail may be tens of megabytes.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|piece| piece == &ZEROS[..piece.len()])
}

/// The file of a segment.
pub(super) fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}.log"))
}

/// A number that no client can guess and that no other segment has, but for chance.
fn draw_salt() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
