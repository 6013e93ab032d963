//! Format: the bytes of a segment file. All numbers are little-endian.
//!
//! ```text
//! segment = header, group, group, …, then zeros or the stale bytes of the segment's former life
//! header  = magic 8, version u32, flags u32, segment number u64, salt u64, first group number u64,
//!           end of the previous segment u64, last entry index so far u64, chain of the previous segment u32, crc u32
//! group   = magic 16, salt u64, group number u64, length of its records u32, crc u32, then its records
//! record  = length of kind and payload u32, crc u32, kind u8, payload
//! ```
//!
//! Invariants
//! - The header's and the group marker's crc stand alone; a record's crc goes on from the crc before it (the chain):
//!   the segment's header begins the chain, and every marker and record carries it on.
//! - The salt is drawn anew for each segment, so that neither a stale marker nor a payload made by a client can pass
//!   for a marker of this segment.

use super::Record;
use bytes::Bytes;

/// The format that this build reads and writes.
pub(super) const VERSION: u32 = 1;
/// Bytes of a segment's header.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes of a group's marker.
pub(super) const MARKER_BYTES: usize = 40;
/// Bytes of a record before its payload: length, crc, kind.
pub(super) const RECORD_HEAD_BYTES: usize = 9;
/// A record's largest payload. A segment's offsets are u32, and a segment must hold the record and its head.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

const HEADER_MAGIC: &[u8; 8] = b"WNDLSLOG";
const MARKER_MAGIC: &[u8; 16] = b"\xf3windlass-group\x9c";
const FLAG_RECYCLED: u32 = 1;

const KIND_ENTRY: u8 = 1;
const KIND_STATE: u8 = 2;
const KIND_TRUNCATE: u8 = 3;
const KIND_PURGE: u8 = 4;

/// The head of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The file held another segment before; its bytes are still there behind the last group.
    pub(super) recycled: bool,
    /// The segment's place in the sequence, from 1.
    pub(super) segment: u64,
    /// Tells this segment's markers from all others.
    pub(super) salt: u64,
    /// The number of the segment's first group.
    pub(super) first_group: u64,
    /// Where the previous segment's last group ends.
    pub(super) previous_end: u64,
    /// The last entry's index when the segment was begun; 0 if there was none.
    pub(super) last_index: u64,
    /// The chain at the previous segment's end.
    pub(super) previous_chain: u32,
}

/// Why a header was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// No header is there, or it fails its checksum.
    Damaged,
    /// A whole header of a format that this build does not know.
    Version(u32),
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(HEADER_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&if self.recycled { FLAG_RECYCLED } else { 0 }.to_le_bytes());
        for number in [self.segment, self.salt, self.first_group, self.previous_end, self.last_index] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.previous_chain.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes.try_into().expect("the fields above make 64 bytes")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Header, BadHeader> {
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(HEADER_MAGIC) {
            return Err(BadHeader::Damaged);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        if u32_at(bytes, 60) != crc32c::crc32c(&bytes[..60]) {
            return Err(BadHeader::Damaged);
        }
        Ok(Header {
            recycled: u32_at(bytes, 12) & FLAG_RECYCLED != 0,
            segment: u64_at(bytes, 16),
            salt: u64_at(bytes, 24),
            first_group: u64_at(bytes, 32),
            previous_end: u64_at(bytes, 40),
            last_index: u64_at(bytes, 48),
            previous_chain: u32_at(bytes, 56),
        })
    }

    /// The chain before the segment's first marker.
    pub(super) fn chain(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }
}

/// The head of a group: what one sync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) salt: u64,
    pub(super) group: u64,
    /// Bytes of the records that follow.
    pub(super) length: u32,
}

impl Marker {
    fn encode(&self) -> [u8; MARKER_BYTES] {
        let mut bytes = Vec::with_capacity(MARKER_BYTES);
        bytes.extend_from_slice(MARKER_MAGIC);
        bytes.extend_from_slice(&self.salt.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes.try_into().expect("the fields above make 40 bytes")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Marker> {
        let bytes = bytes.get(..MARKER_BYTES)?;
        if !bytes.starts_with(MARKER_MAGIC) || u32_at(bytes, 36) != crc32c::crc32c(&bytes[..36]) {
            return None;
        }
        Some(Marker { salt: u64_at(bytes, 16), group: u64_at(bytes, 24), length: u32_at(bytes, 32) })
    }

    /// The highest group number among this salt's markers in `bytes`, at any offset.
    pub(super) fn highest_group(bytes: &[u8], salt: u64) -> Option<u64> {
        let mut highest = None;
        let mut rest = bytes;
        while let Some(at) = rest.windows(MARKER_MAGIC.len()).position(|window| window == MARKER_MAGIC) {
            if let Some(marker) = Marker::decode(&rest[at..]).filter(|marker| marker.salt == salt) {
                highest = highest.max(Some(marker.group));
            }
            rest = &rest[at + 1..];
        }
        highest
    }
}

/// Where a record lies, with what its checksum goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u32,
    pub(super) chain: u32,
}

/// A group being put together for one write.
pub(super) struct GroupBuffer {
    bytes: Vec<u8>,
    /// Offset of the group in its segment.
    offset: u64,
    chain: u32,
}

impl GroupBuffer {
    /// A group whose records will take `length` bytes, at `offset` of the segment, going on from `chain`.
    pub(super) fn begin(marker: Marker, offset: u64, chain: u32) -> GroupBuffer {
        let mut bytes = Vec::with_capacity(MARKER_BYTES + marker.length as usize);
        let head = marker.encode();
        bytes.extend_from_slice(&head);
        GroupBuffer { bytes, offset, chain: crc32c::crc32c_append(chain, &head) }
    }

    /// Adds a record and says where it will lie.
    pub(super) fn push(&mut self, record: &Record) -> Place {
        let at = self.bytes.len();
        let place = Place {
            offset: u32::try_from(self.offset + at as u64).expect("a segment is smaller than 4 GiB"),
            chain: self.chain,
        };
        let length = u32::try_from(record_bytes(record) - 8).expect("a payload is at most 1 GiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        match record {
            Record::Entry { index, payload } => {
                self.bytes.push(KIND_ENTRY);
                self.bytes.extend_from_slice(&index.to_le_bytes());
                self.bytes.extend_from_slice(payload);
            }
            Record::State { key, value } => {
                self.bytes.extend_from_slice(&[KIND_STATE, *key]);
                self.bytes.extend_from_slice(value);
            }
            Record::Truncate { after } => {
                self.bytes.push(KIND_TRUNCATE);
                self.bytes.extend_from_slice(&after.to_le_bytes());
            }
            Record::Purge { upto } => {
                self.bytes.push(KIND_PURGE);
                self.bytes.extend_from_slice(&upto.to_le_bytes());
            }
        }
        self.chain = record_crc(self.chain, &self.bytes[at..]);
        self.bytes[at + 4..at + 8].copy_from_slice(&self.chain.to_le_bytes());
        place
    }

    /// The bytes to write, and the chain after them.
    pub(super) fn finish(self) -> (Vec<u8>, u32) {
        (self.bytes, self.chain)
    }
}

/// The bytes that a record takes in a segment.
pub(super) fn record_bytes(record: &Record) -> usize {
    RECORD_HEAD_BYTES
        + match record {
            Record::Entry { payload, .. } => 8 + payload.len(),
            Record::State { value, .. } => 1 + value.len(),
            Record::Truncate { .. } | Record::Purge { .. } => 8,
        }
}

/// Why bytes were not read as a record or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// They are not what was written.
    Damaged { offset: usize, what: &'static str },
    /// They are what was written, by a build that knows more kinds.
    Kind { offset: usize, kind: u8 },
}

/// A whole group, read back.
pub(super) struct Group {
    pub(super) records: Vec<(Place, Record)>,
    pub(super) end: usize,
    pub(super) chain: u32,
}

/// Reads the group at `offset`, which must be number `group` of the segment with this salt.
pub(super) fn read_group(
    bytes: &Bytes,
    offset: usize,
    salt: u64,
    group: u64,
    chain: u32,
) -> Result<Group, Bad> {
    let damaged = |what| Err(Bad::Damaged { offset, what });
    let Some(marker) = bytes.get(offset..).and_then(Marker::decode) else {
        return damaged("no group begins here");
    };
    if marker.salt != salt || marker.group != group {
        return damaged("the group that begins here is not the next one");
    }
    let mut at = offset + MARKER_BYTES;
    let end = at + marker.length as usize;
    if end > bytes.len() {
        return damaged("the group that begins here ends outside the file");
    }
    let mut chain = crc32c::crc32c_append(chain, &bytes[offset..at]);
    let mut records = Vec::new();
    while at < end {
        let place = Place { offset: u32::try_from(at).expect("a segment is smaller than 4 GiB"), chain };
        let (record, next) = read_record(&bytes.slice(at..end), place)?;
        chain = next;
        at += record_bytes(&record);
        records.push((place, record));
    }
    Ok(Group { records, end, chain })
}

/// Reads the record that `bytes` begin with, and the chain after it.
pub(super) fn read_record(bytes: &Bytes, place: Place) -> Result<(Record, u32), Bad> {
    let offset = place.offset as usize;
    let damaged = |what| Err(Bad::Damaged { offset, what });
    if bytes.len() < RECORD_HEAD_BYTES {
        return damaged("the record is cut short");
    }
    let end = 8 + u32_at(bytes, 0) as usize;
    if end < RECORD_HEAD_BYTES || end > bytes.len() {
        return damaged("the record's length is wrong");
    }
    let crc = u32_at(bytes, 4);
    if crc != record_crc(place.chain, &bytes[..end]) {
        return damaged("the record fails its checksum");
    }
    let kind = bytes[8];
    let payload = bytes.slice(RECORD_HEAD_BYTES..end);
    let record = match (kind, payload.len()) {
        (KIND_ENTRY, 8..) => Record::Entry { index: u64_at(&payload, 0), payload: payload.slice(8..) },
        (KIND_STATE, 1..) => Record::State { key: payload[0], value: payload.slice(1..) },
        (KIND_TRUNCATE, 8) => Record::Truncate { after: u64_at(&payload, 0) },
        (KIND_PURGE, 8) => Record::Purge { upto: u64_at(&payload, 0) },
        _ => return Err(Bad::Kind { offset, kind }),
    };
    Ok((record, crc))
}

/// The checksum of a whole record, leaving out the place where the checksum itself stands.
fn record_crc(chain: u32, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(chain, &record[..4]), &record[8..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn header() -> Header {
        Header {
            recycled: true,
            segment: 7,
            salt: 0x1122_3344_5566_7788,
            first_group: 9,
            previous_end: 4096,
            last_index: 55,
            previous_chain: 0xdead_beef,
        }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Entry { index: 56, payload: Bytes::from_static(b"turn") },
            Record::State { key: 2, value: Bytes::from_static(b"vote") },
            Record::Truncate { after: 50 },
            Record::Purge { upto: 40 },
        ]
    }

    fn group() -> (Vec<u8>, u32) {
        let length = records().iter().map(record_bytes).sum::<usize>() as u32;
        let mut buffer = GroupBuffer::begin(Marker { salt: 5, group: 9, length }, 0, 77);
        for record in records() {
            buffer.push(&record);
        }
        buffer.finish()
    }

    #[test]
    fn the_stored_bytes_are_forever() {
        assert_eq!(
            hex(&header().encode()),
            concat!(
                "574e444c534c4f47010000000100000007000000000000008877665544332211",
                "090000000000000000100000000000003700000000000000efbeadde794bc3a9",
            )
        );
        assert_eq!(
            hex(&group().0),
            concat!(
                "f377696e646c6173732d67726f75709c0500000000000000090000000000000045000000f152769f",
                "0d0000008a3903240138000000000000007475726e",
                "0600000081d0b3590202766f7465",
                "090000002e445b11033200000000000000",
                "090000005e3d4260042800000000000000",
            )
        );
    }

    #[test]
    fn a_header_reads_back_and_a_damaged_one_does_not() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes), Ok(header()));
        for at in 0..HEADER_BYTES {
            let mut hurt = bytes;
            hurt[at] ^= 0x10;
            assert!(Header::decode(&hurt).is_err(), "byte {at}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(Header::decode(&newer), Err(BadHeader::Version(2)));
    }

    #[test]
    fn a_group_reads_back_only_with_its_own_number_salt_and_chain() {
        let (bytes, chain) = group();
        let bytes = Bytes::from(bytes);
        let read = read_group(&bytes, 0, 5, 9, 77).ok().unwrap();
        assert_eq!(read.records.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), records());
        assert_eq!((read.end, read.chain), (bytes.len(), chain));
        assert!(read_group(&bytes, 0, 6, 9, 77).is_err());
        assert!(read_group(&bytes, 0, 5, 8, 77).is_err());
        assert!(read_group(&bytes, 0, 5, 9, 78).is_err());
    }

    #[test]
    fn a_kind_of_a_later_build_is_told_apart_from_damage() {
        let mut bytes = group().0;
        let at = MARKER_BYTES;
        let end = at + record_bytes(&records()[0]);
        bytes[at + 8] = 99;
        let chain = crc32c::crc32c_append(77, &bytes[..at]);
        let crc = record_crc(chain, &bytes[at..end]);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        let read = read_group(&Bytes::from(bytes), 0, 5, 9, 77);
        assert_eq!(read.err(), Some(Bad::Kind { offset: at, kind: 99 }));
    }
}
