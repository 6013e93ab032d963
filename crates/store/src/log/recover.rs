//! Recover: opens the log's folder, and tells a torn tail from damage.
//!
//! One group is written and synced before the next is begun. So a crash can tear only the last group, which was not
//! acknowledged, and the marker of a group proves that everything before it was durable. From that:
//!
//! - a bad group in a segment that is not the last: damage (the next segment's header says where this one ends);
//! - a bad group in the last segment, with a marker of a later group somewhere behind it: damage;
//! - a bad first group of a segment: damage, since a file gets its name only after that group is durable;
//! - any other bad group: the torn tail. It is cut as a whole, and zeroed so that it can never come back.
//!
//! What was found whole is synced, names too (after a kill it may be in the page cache only), and then sealed with an empty group,
//! whose marker puts all that was recovered under the rules above. A log that is closed is sealed too. What remains
//! without proof is the last acknowledged group of a process that was killed, until the log is opened again.
//!
//! Invariants
//! - Nothing acknowledged is cut.
//! - Nothing is changed in the folder before every segment was found sound.

use super::Record;
use super::disk::DiskFile;
use super::fault::LogFault;
use super::format::{self, Bad, BadHeader, GroupBuffer, HEADER_BYTES, Header, MARKER_BYTES, Marker};
use super::ledger::Ledger;
use super::segments::{self, Before, Folder, Segment, SegmentList, Tail, UNFINISHED_NAME};
use bytes::Bytes;
use std::path::Path;

/// An opened log, before its writer runs.
pub(super) struct Opened {
    pub(super) ledger: Ledger,
    pub(super) segments: SegmentList,
    pub(super) tail: Tail,
    pub(super) cut_bytes: u64,
}

/// Opens what is in the folder, or begins a log there.
pub(super) fn open(folder: &mut Folder) -> Result<Opened, LogFault> {
    let listed = list(folder)?;
    let mut opened = Opened {
        ledger: Ledger::default(),
        segments: SegmentList::default(),
        tail: Tail { salt: 0, group: 1, chain: 0, end: 0, sealed: true },
        cut_bytes: 0,
    };
    if listed.segments.is_empty() {
        clear_unfinished(folder, &listed)?;
        let before = Before { segment: 0, group: 1, end: 0, chain: 0 };
        let (segment, tail) = folder.begin_segment(&before, &opened.ledger, 0)?;
        opened.segments.segments.push_back(segment);
        opened.tail = tail;
        return Ok(opened);
    }

    let torn = opened.replay(folder, &listed.segments)?;
    // Nothing above changed the folder, and nothing below refuses what it holds.
    clear_unfinished(folder, &listed)?;
    // A process that was killed may have renamed a segment without having made the name durable.
    folder.sync()?;
    opened.mend(torn)?;
    let unneeded = opened.segments.take_unneeded();
    folder.recycle(unneeded)?;
    Ok(opened)
}

#[derive(Default)]
struct Listed {
    /// Numbers, ascending.
    segments: Vec<u64>,
    unfinished: bool,
    /// Spares whose size is not that of a segment today.
    misfits: Vec<std::path::PathBuf>,
}

fn list(folder: &mut Folder) -> Result<Listed, LogFault> {
    let created = folder.disk.create_folder(&folder.path);
    created.map_err(|e| LogFault::from_io("create", &folder.path, &e))?;
    let names = folder.disk.list(&folder.path).map_err(|e| LogFault::from_io("list", &folder.path, &e))?;
    let mut listed = Listed::default();
    for name in names {
        if name == UNFINISHED_NAME {
            listed.unfinished = true;
        } else if let Some(number) = name.strip_suffix(".log").and_then(|number| number.parse().ok()) {
            listed.segments.push(number);
        } else if name.ends_with(".spare") {
            let path = folder.path.join(name);
            let (_, length) = open_file(folder, &path)?;
            if length == folder.options.segment_bytes {
                folder.spares.push(path);
            } else {
                listed.misfits.push(path);
            }
        } else {
            tracing::warn!(
                "the log folder {} holds {name}, which the log did not put there; it is left alone",
                folder.path.display()
            );
        }
    }
    listed.segments.sort_unstable();
    for pair in listed.segments.windows(2) {
        if pair[1] != pair[0] + 1 {
            return Err(LogFault::MissingSegment { path: segments::segment_path(&folder.path, pair[0] + 1) });
        }
    }
    Ok(listed)
}

/// Removes what a crash left half made, and spares that no longer fit.
fn clear_unfinished(folder: &Folder, listed: &Listed) -> Result<(), LogFault> {
    let unfinished = listed.unfinished.then(|| folder.path.join(UNFINISHED_NAME));
    for path in unfinished.iter().chain(&listed.misfits) {
        folder.disk.remove(path).map_err(|e| LogFault::from_io("remove", path, &e))?;
    }
    Ok(())
}

fn open_file(folder: &Folder, path: &Path) -> Result<(std::sync::Arc<dyn DiskFile>, u64), LogFault> {
    let file = folder.disk.open(path).map_err(|e| LogFault::from_io("open", path, &e))?;
    let length = file.length().map_err(|e| LogFault::from_io("measure", path, &e))?;
    Ok((file, length))
}

fn read_header(path: &Path, file: &dyn DiskFile, length: u64) -> Result<Header, LogFault> {
    let corrupt = |what: &str| LogFault::Corrupt { path: path.to_owned(), offset: 0, what: what.to_owned() };
    if length < HEADER_BYTES as u64 {
        return Err(corrupt("the file is too short for a segment's header"));
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(&mut bytes, 0).map_err(|e| LogFault::from_io("read", path, &e))?;
    Header::decode(&bytes).map_err(|bad| match bad {
        BadHeader::Damaged => corrupt("the segment's header fails its checksum"),
        BadHeader::Version(version) => {
            LogFault::UnknownVersion { path: path.to_owned(), version, known: format::VERSION }
        }
    })
}

/// What lies behind the last whole group.
struct Torn {
    /// Bytes of a group that was begun and not finished.
    cut_bytes: u64,
    /// Where the last byte that is not zero ends; the tail's end if all are zero.
    garbage_end: u64,
}

impl Opened {
    /// Reads every segment, in order, changing nothing on disk.
    fn replay(&mut self, folder: &Folder, numbers: &[u64]) -> Result<Torn, LogFault> {
        let mut files = Vec::new();
        for number in numbers {
            let path = segments::segment_path(&folder.path, *number);
            let (file, length) = open_file(folder, &path)?;
            let header = read_header(&path, &*file, length)?;
            if header.segment != *number {
                let what = format!("the header says that this is segment {}", header.segment);
                return Err(LogFault::Corrupt { path, offset: 16, what });
            }
            files.push((header, Segment::new(*number, path, file, length, HEADER_BYTES as u64)));
        }
        let headers: Vec<Header> = files.iter().map(|(header, _)| *header).collect();
        // Entries up to here were in segments that are gone; they must turn out to be purged or truncated.
        let mut gone = headers[0].last_index;
        let mut torn = None;
        for (at, (header, segment)) in files.into_iter().enumerate() {
            if at > 0 {
                self.check_joint(&header, &segment.path)?;
            }
            let bytes = read_whole(&segment)?;
            self.tail = Tail {
                salt: header.salt,
                group: header.first_group,
                chain: header.chain(),
                end: HEADER_BYTES as u64,
                sealed: true,
            };
            self.segments.segments.push_back(segment);
            let end = headers.get(at + 1).map(|next| next.previous_end);
            torn = self.replay_segment(&header, &bytes, end, &mut gone)?;
        }
        if gone > self.ledger.purged {
            return Err(LogFault::MissingSegment {
                path: segments::segment_path(&folder.path, numbers[0].saturating_sub(1)),
            });
        }
        Ok(torn.expect("the last segment has no end given"))
    }

    /// A segment must go on exactly where the one before it ended.
    fn check_joint(&self, header: &Header, path: &Path) -> Result<(), LogFault> {
        let before = (self.tail.end, self.tail.chain, self.tail.group);
        if before == (header.previous_end, header.previous_chain, header.first_group) {
            return Ok(());
        }
        let what = "it does not go on where the segment before it ends".to_owned();
        Err(LogFault::Corrupt { path: path.to_owned(), offset: 0, what })
    }

    /// Reads groups up to `end`, or in the last segment up to the first that is not whole.
    fn replay_segment(
        &mut self,
        header: &Header,
        bytes: &Bytes,
        end: Option<u64>,
        gone: &mut u64,
    ) -> Result<Option<Torn>, LogFault> {
        let path = self.path();
        loop {
            let at = self.tail.end;
            if end == Some(at) {
                return Ok(None);
            }
            let tail = self.tail;
            match format::read_group(bytes, at as usize, tail.salt, tail.group, tail.chain) {
                Ok(group) => {
                    self.tail.sealed = group.records.is_empty();
                    self.tail.end = group.end as u64;
                    self.tail.chain = group.chain;
                    self.tail.group += 1;
                    for (place, record) in &group.records {
                        if let Some(what) = self.ledger.contradiction(record) {
                            return Err(LogFault::Corrupt { path, offset: place.offset.into(), what });
                        }
                        if let Record::Truncate { after } = record {
                            *gone = (*gone).min(*after);
                        }
                        self.ledger.apply(record);
                        self.segments.apply(record, *place);
                    }
                    self.segments.segments.back_mut().expect("pushed by the caller").end = self.tail.end;
                }
                Err(Bad::Kind { offset, kind }) => {
                    return Err(LogFault::UnknownKind { path, offset: offset as u64, kind });
                }
                Err(Bad::Damaged { offset, what }) => {
                    let is_acknowledged = end.is_some()
                        || tail.group == header.first_group
                        || later_group(bytes, at as usize, &tail);
                    if is_acknowledged {
                        return Err(LogFault::Corrupt { path, offset: offset as u64, what: what.to_owned() });
                    }
                    return Ok(Some(measure_torn(bytes, header, &tail)));
                }
            }
        }
    }

    /// Zeroes what is torn, makes the rest durable, and seals it.
    fn mend(&mut self, torn: Torn) -> Result<(), LogFault> {
        let path = self.path();
        let segment = self.segments.segments.back_mut().expect("a log has a segment");
        if torn.garbage_end > self.tail.end {
            let zeroed = segments::write_zeros(&*segment.file, self.tail.end, torn.garbage_end);
            zeroed.map_err(|e| LogFault::from_io("zero the tail of", &path, &e))?;
        }
        if torn.cut_bytes > 0 {
            tracing::warn!(
                "the log file {} ended in the middle of a write: {} bytes at byte {} were cut; \
                 they had not been acknowledged",
                path.display(),
                torn.cut_bytes,
                self.tail.end
            );
        }
        self.cut_bytes = torn.cut_bytes;
        // First this sync, then the seal: the seal says that all before it is durable.
        segment.file.sync().map_err(|e| LogFault::from_io("sync", &path, &e))?;
        if !self.tail.sealed {
            write_seal(&*segment.file, &path, &mut self.tail)?;
            segment.end = self.tail.end;
        }
        Ok(())
    }

    fn path(&self) -> std::path::PathBuf {
        self.segments.segments.back().expect("a log has a segment").path.clone()
    }
}

/// Writes and syncs an empty group, whose marker says that all before it is durable.
pub(super) fn write_seal(file: &dyn DiskFile, path: &Path, tail: &mut Tail) -> Result<(), LogFault> {
    let marker = Marker { salt: tail.salt, group: tail.group, length: 0 };
    let (bytes, chain) = GroupBuffer::begin(marker, tail.end, tail.chain).finish();
    file.write_at(&bytes, tail.end).map_err(|e| LogFault::from_io("write", path, &e))?;
    file.sync().map_err(|e| LogFault::from_io("sync", path, &e))?;
    *tail = Tail {
        group: tail.group + 1,
        chain,
        end: tail.end + MARKER_BYTES as u64,
        sealed: true,
        salt: tail.salt,
    };
    Ok(())
}

fn read_whole(segment: &Segment) -> Result<Bytes, LogFault> {
    let too_large = || LogFault::Corrupt {
        path: segment.path.clone(),
        offset: 0,
        what: "the file is larger than a segment can be".to_owned(),
    };
    let length = u32::try_from(segment.capacity).map_err(|_| too_large())?;
    let mut bytes = vec![0; length as usize];
    segment.file.read_at(&mut bytes, 0).map_err(|e| LogFault::from_io("read", &segment.path, &e))?;
    Ok(Bytes::from(bytes))
}

/// Whether a group after the bad one at `at` was begun, so that the bad one had been durable.
fn later_group(bytes: &Bytes, at: usize, tail: &Tail) -> bool {
    let rest = &bytes[at..];
    !segments::is_zero(rest) && Marker::highest_group(rest, tail.salt) > Some(tail.group)
}

fn measure_torn(bytes: &Bytes, header: &Header, tail: &Tail) -> Torn {
    let at = tail.end as usize;
    let rest = &bytes[at..];
    if segments::is_zero(rest) {
        return Torn { cut_bytes: 0, garbage_end: tail.end };
    }
    let garbage = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    // In a recycled file the garbage is mostly the former segment; only a marker tells that a group was begun.
    let begun = Marker::decode(rest).filter(|marker| marker.salt == tail.salt && marker.group == tail.group);
    let cut_bytes = match begun {
        Some(marker) if header.recycled => garbage.min(MARKER_BYTES as u64 + u64::from(marker.length)),
        None if header.recycled => 0,
        _ => garbage,
    };
    Torn { cut_bytes, garbage_end: tail.end + garbage }
}
