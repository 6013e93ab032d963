//! Damage: what opening cuts, and what it refuses.

use super::super::format::{MARKER_BYTES, Marker};
use super::*;

/// Three segments: several groups in each, closed cleanly.
fn three_segments() -> HurtDisk {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    append(&log, vec![state(1, "vote")]).unwrap();
    let mut index = 0;
    while !disk.names().contains(&"00000000000000000003.log".to_owned()) {
        index += 1;
        append(&log, vec![entry(index, 0), state(2, "committed")]).unwrap();
    }
    for index in index + 1..=index + 3 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    log.close();
    disk
}

/// Where the last group of a segment's file ends. Its last bytes may be zeros, as all that is behind them.
fn end_of_groups(disk: &HurtDisk, number: u64) -> usize {
    let bytes = disk.contents(&segment(number));
    let marker = |at: usize| Some((at, Marker::decode(&bytes[at..])?));
    let (at, last) = (0..bytes.len()).rev().find_map(marker).unwrap();
    at + MARKER_BYTES + last.length as usize
}

fn flipped(disk: &HurtDisk, number: u64, at: usize) -> HurtDisk {
    let hurt = disk.copy();
    hurt.change(&segment(number), |bytes| bytes[at] ^= 0x04);
    hurt
}

#[test]
fn a_flipped_bit_in_an_earlier_segment_is_refused_wherever_it_is() {
    let disk = three_segments();
    for number in [1, 2] {
        for at in 0..end_of_groups(&disk, number) {
            let fault = try_open(&flipped(&disk, number, at)).err();
            assert!(
                matches!(&fault, Some(LogFault::Corrupt { path, .. } | LogFault::UnknownVersion { path, .. })
                    if *path == segment(number)),
                "segment {number}, byte {at}: {fault:?}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_in_an_acknowledged_part_of_the_last_segment_is_refused() {
    let disk = three_segments();
    let seal = end_of_groups(&disk, 3) - MARKER_BYTES;
    let (_, whole) = open(&disk.copy());
    for at in 0..seal {
        let fault = try_open(&flipped(&disk, 3, at)).err();
        assert!(
            matches!(fault, Some(LogFault::Corrupt { .. } | LogFault::UnknownVersion { .. })),
            "byte {at}: {fault:?}"
        );
    }
    for at in seal..end_of_groups(&disk, 3) {
        let (_, found) = open(&flipped(&disk, 3, at));
        assert_eq!(
            found,
            Recovered { cut_bytes: found.cut_bytes, ..whole.clone() },
            "the seal holds no records"
        );
    }
}

#[test]
fn a_flipped_bit_in_a_segment_that_was_just_begun_is_refused() {
    let disk = HurtDisk::new();
    open(&disk).0.close();
    for at in 0..end_of_groups(&disk, 1) {
        assert!(try_open(&flipped(&disk, 1, at)).is_err(), "byte {at}");
    }
}

#[test]
fn a_refusal_names_the_file_and_says_what_to_do() {
    let disk = three_segments();
    let fault = try_open(&flipped(&disk, 1, 200)).err().unwrap().to_string();
    assert!(fault.starts_with("the log file /log/00000000000000000001.log is damaged at byte "), "{fault}");
    assert!(fault.contains("restore the data folder from a backup"), "{fault}");

    disk.change(&segment(2), |bytes| bytes[8] = 9);
    assert_eq!(
        try_open(&disk).err().unwrap().to_string(),
        "the log file /log/00000000000000000002.log has format version 9, and this build reads version 1; \
         start the build that wrote it, or a newer one"
    );
}

#[test]
fn a_missing_segment_is_refused_in_the_middle_and_at_the_beginning() {
    use crate::log::Disk;
    for missing in [1, 2] {
        let disk = three_segments();
        disk.remove(&segment(missing)).unwrap();
        assert_eq!(try_open(&disk).err(), Some(LogFault::MissingSegment { path: segment(missing) }));
    }
}

#[test]
fn a_refused_folder_is_left_as_it_was() {
    let disk = flipped(&three_segments(), 2, 300);
    let calls = disk.calls();
    assert!(try_open(&disk).is_err());
    assert_eq!(disk.calls(), calls);
}

#[test]
fn damage_is_found_when_an_entry_is_read_from_its_file() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    for index in 1..=100 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    let at = end_of_groups(&disk, 1) - 1;
    disk.change(&segment(1), |bytes| bytes[at] ^= 1);
    assert!(matches!(log.read(1..101), Err(LogFault::Corrupt { .. })));
    assert_eq!(log.read(99..101).unwrap(), first_drafts(99..=100), "the rest is still read");
}

/// A log that was killed while its last group, of three records, was on its way; and where that group lies.
fn killed_in_the_last_group() -> (HurtDisk, usize, usize) {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    for index in 1..=5 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    let from = end_of_groups(&disk, 1);
    append(&log, vec![entry(6, 0), state(1, "vote"), entry(7, 0)]).unwrap();
    let killed = disk.copy();
    (killed.clone(), from, end_of_groups(&killed, 1))
}

#[test]
fn a_tail_torn_at_any_byte_loses_the_last_group_and_nothing_else() {
    let (killed, from, to) = killed_in_the_last_group();
    for torn_at in from..to {
        let disk = killed.copy();
        disk.change(&segment(1), |bytes| bytes[torn_at..].fill(0));
        let (log, found) = open(&disk);
        assert_eq!((found.last_index, found.states.len()), (Some(5), 0), "torn at {torn_at}");
        assert!(found.cut_bytes <= (torn_at - from) as u64);
        assert_eq!(found.cut_bytes == 0, torn_at == from, "torn at {torn_at}");
        append(&log, vec![entry(6, 1)]).unwrap();
        log.close();
        let (log, found) = open(&disk);
        assert_eq!((found.last_index, found.cut_bytes), (Some(6), 0));
        assert_eq!(log.read(6..7).unwrap(), [(6, payload(6, 1))]);
    }
    let (_, found) = open(&killed);
    assert_eq!((found.last_index, found.cut_bytes), (Some(7), 0));
}

#[test]
fn a_flipped_bit_in_a_last_group_that_nothing_vouches_for_cuts_it() {
    let (killed, from, to) = killed_in_the_last_group();
    for at in from..to {
        let (log, found) = open(&flipped(&killed, 1, at));
        assert_eq!((found.last_index, found.cut_bytes), (Some(5), (to - from) as u64), "byte {at}");
        assert_eq!(log.read(0..10).unwrap(), first_drafts(1..=5));
    }
}

#[test]
fn what_was_recovered_once_is_never_cut_later() {
    let (killed, from, to) = killed_in_the_last_group();
    let (_log, found) = open(&killed);
    assert_eq!(found.last_index, Some(7));
    // Killed again before anything more was appended.
    for at in from..to {
        assert!(try_open(&flipped(&killed, 1, at)).is_err(), "byte {at}");
    }
}

#[test]
fn what_was_cut_is_zeroed_and_never_comes_back() {
    let (killed, from, to) = killed_in_the_last_group();
    let disk = flipped(&killed, 1, from + 1);
    let (log, _) = open(&disk);
    log.close();
    let seal = super::super::format::MARKER_BYTES;
    assert!(disk.contents(&segment(1))[from..].iter().skip(seal).all(|byte| *byte == 0) && to - from > seal);
}

#[test]
fn a_payload_that_copies_a_marker_does_not_pass_for_one() {
    let (killed, from, _) = killed_in_the_last_group();
    // A client that knows the format, but not this segment's salt, sends a marker of a far later group.
    let marker = super::super::format::Marker { salt: 1, group: 1_000, length: 0 };
    let (forged, _) = super::super::format::GroupBuffer::begin(marker, 0, 0).finish();
    killed.change(&segment(1), |bytes| {
        bytes[from..from + 4].fill(0);
        bytes[from + 60..from + 60 + forged.len()].copy_from_slice(&forged);
    });
    assert_eq!(open(&killed).1.last_index, Some(5));
}

#[test]
fn the_stale_tail_of_a_recycled_segment_is_never_read() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    for index in 1..=300 {
        append(&log, vec![entry(index, 0)]).unwrap();
        append(&log, vec![Record::Purge { upto: index.saturating_sub(5) }]).unwrap();
        // Killed at every point of many recycled segments: the stale bytes lie right behind the last group.
        let (_, found) = open(&disk.copy());
        assert_eq!((found.last_index, found.cut_bytes), (Some(index), 0));
    }
}
