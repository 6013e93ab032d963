//! Ordinary days: append, read, truncate, purge, close, open again.

use super::*;
use std::collections::BTreeMap;
use std::io;

#[test]
fn what_was_appended_over_many_segments_is_there_after_opening_again() {
    let disk = HurtDisk::new();
    let (log, found) = open(&disk);
    let nothing = Recovered {
        first_index: None,
        last_index: None,
        purged_upto: 0,
        states: BTreeMap::new(),
        cut_bytes: 0,
    };
    assert_eq!(found, nothing);
    for index in 1..=200 {
        append(&log, vec![entry(index, 0), state(1, &format!("committed {index}"))]).unwrap();
    }
    assert_eq!(log.read(0..u64::MAX).unwrap(), first_drafts(1..=200));
    log.close();
    assert!(disk.names().len() > 5, "the story crosses segments: {:?}", disk.names());

    let (log, found) = open(&disk);
    assert_eq!(
        found,
        Recovered {
            first_index: Some(1),
            last_index: Some(200),
            purged_upto: 0,
            states: BTreeMap::from([(1, Bytes::from("committed 200"))]),
            cut_bytes: 0,
        }
    );
    assert_eq!(log.read(1..201).unwrap(), first_drafts(1..=200));
    assert_eq!(log.read(150..153).unwrap(), first_drafts(150..=152));
    assert_eq!(log.read(300..400).unwrap(), []);
    append(&log, vec![entry(201, 0)]).unwrap();
    assert_eq!(log.read(199..202).unwrap(), first_drafts(199..=201));
}

#[test]
fn the_log_works_on_the_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), SMALL).unwrap();
    for index in 1..=100 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    append(&log, vec![Record::Purge { upto: 90 }]).unwrap();
    append(&log, vec![entry(101, 0)]).unwrap();
    drop(log);
    let (log, found) = Log::open(folder.path(), SMALL).unwrap();
    assert_eq!((found.first_index, found.last_index, found.cut_bytes), (Some(91), Some(101), 0));
    assert_eq!(log.read(0..200).unwrap(), first_drafts(91..=101));
}

#[test]
fn an_append_larger_than_a_segment_gets_a_segment_that_is_large_enough() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    let large = Bytes::from(vec![7; 10_000]);
    append(&log, vec![entry(1, 0)]).unwrap();
    append(&log, vec![Record::Entry { index: 2, payload: large.clone() }]).unwrap();
    append(&log, vec![entry(3, 0)]).unwrap();
    log.close();
    let (log, _) = open(&disk);
    assert_eq!(log.read(2..3).unwrap(), [(2, large)]);
    assert_eq!(log.read(3..4).unwrap(), first_drafts(3..=3));
}

#[test]
fn an_entry_can_be_read_before_it_is_durable() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    disk.close_gate();
    log.append(vec![entry(1, 0), entry(2, 0), state(1, "vote")], Box::new(|_| {}));
    assert_eq!(log.read(1..3).unwrap(), first_drafts(1..=2));
    assert_eq!((log.first_index(), log.last_index(), log.state(1)), (Some(1), Some(2), Some("vote".into())));
    assert_eq!(log.counters().syncs, 0);
    disk.open_gate();
}

#[test]
fn entries_stay_in_memory_until_they_are_written_however_many_they_are() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    let (sender, answer) = mpsc::channel();
    disk.close_gate();
    log.append(vec![entry(1, 0)], Box::new(move |done| sender.send(done).unwrap()));
    disk.wait_for_sync_at_gate();
    for index in 2..=100 {
        log.append(vec![entry(index, 0)], Box::new(|_| {}));
    }
    disk.let_one_sync_pass();
    assert_eq!(answer.recv().unwrap(), Ok(()));
    // The gate must open whatever is found, or the log could not be closed.
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| log.read(1..101)));
    disk.open_gate();
    assert_eq!(found.unwrap().unwrap(), first_drafts(1..=100));
}

#[test]
fn everything_queued_during_a_write_is_one_write_and_one_sync() {
    let disk = HurtDisk::new();
    let (log, _) = Log::open_on(Arc::new(disk.clone()), folder(), LogOptions::default()).unwrap();
    let (sender, answers) = mpsc::channel();
    let queue = |index| {
        let sender = sender.clone();
        let done = move |done: Result<(), LogFault>| sender.send((index, done)).unwrap();
        log.append(vec![entry(index, 0)], Box::new(done));
    };
    disk.close_gate();
    queue(1);
    disk.wait_for_sync_at_gate();
    (2..=1000).for_each(queue);
    disk.open_gate();
    for index in 1..=1000 {
        assert_eq!(answers.recv().unwrap(), (index, Ok(())), "answers come in order");
    }
    let counters = log.counters();
    assert_eq!((counters.syncs, counters.records), (2, 1000));
}

#[test]
fn entries_after_a_truncation_take_the_place_of_those_before_it() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    for index in 1..=100 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    append(&log, vec![Record::Truncate { after: 40 }, entry(41, 1)]).unwrap();
    append(&log, vec![entry(42, 1)]).unwrap();
    let expected = || {
        let mut expected = first_drafts(1..=40);
        expected.extend([(41, payload(41, 1)), (42, payload(42, 1))]);
        expected
    };
    assert_eq!(log.read(0..1000).unwrap(), expected());
    log.close();
    let (log, found) = open(&disk);
    assert_eq!((found.first_index, found.last_index), (Some(1), Some(42)));
    assert_eq!(log.read(0..1000).unwrap(), expected());

    append(&log, vec![Record::Truncate { after: 0 }]).unwrap();
    assert_eq!((log.first_index(), log.read(0..1000).unwrap()), (None, vec![]));
    append(&log, vec![entry(1, 2)]).unwrap();
    log.close();
    let (log, _) = open(&disk);
    assert_eq!(log.read(0..1000).unwrap(), [(1, payload(1, 2))]);
}

#[test]
fn a_purge_gives_segments_back_and_they_are_used_again() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    append(&log, vec![state(1, "vote for 7"), state(2, "old"), state(2, "new")]).unwrap();
    for index in 1..=1000 {
        append(&log, vec![entry(index, 0)]).unwrap();
        if index % 10 == 0 && index > 20 {
            append(&log, vec![Record::Purge { upto: index - 20 }]).unwrap();
        }
    }
    assert_eq!((log.first_index(), log.purged_upto()), (Some(981), 980));
    assert_eq!(log.read(0..2000).unwrap(), first_drafts(981..=1000));
    log.close();
    let names = disk.names();
    assert!(names.len() <= 6, "{names:?}");
    let last = names.iter().rfind(|name| name.ends_with(".log")).unwrap();
    assert_eq!(
        disk.contents(&folder().join(last))[12],
        1,
        "the last segment says that its file is a recycled one"
    );

    let (log, found) = open(&disk);
    assert_eq!(
        found,
        Recovered {
            first_index: Some(981),
            last_index: Some(1000),
            purged_upto: 980,
            states: BTreeMap::from([(1, "vote for 7".into()), (2, "new".into())]),
            cut_bytes: 0,
        }
    );
    assert_eq!(log.read(0..2000).unwrap(), first_drafts(981..=1000));
}

#[test]
fn a_purge_beyond_the_last_entry_empties_the_log_and_a_later_index_may_follow() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    for index in 1..=60 {
        append(&log, vec![entry(index, 0)]).unwrap();
    }
    append(&log, vec![Record::Purge { upto: 500 }]).unwrap();
    assert_eq!((log.first_index(), log.last_index(), log.purged_upto()), (None, None, 500));
    append(&log, vec![entry(501, 0), entry(502, 0)]).unwrap();
    log.close();
    let (log, found) = open(&disk);
    assert_eq!((found.first_index, found.last_index, found.purged_upto), (Some(501), Some(502), 500));
    assert_eq!(log.read(0..1000).unwrap(), first_drafts(501..=502));
}

#[test]
#[should_panic(expected = "entry 3 cannot follow entry 1")]
fn an_entry_that_leaves_a_gap_is_a_contradiction() {
    let (log, _) = open(&HurtDisk::new());
    append(&log, vec![entry(1, 0)]).unwrap();
    log.append(vec![entry(3, 0)], Box::new(|_| {}));
}

#[test]
fn a_failed_sync_is_told_to_all_and_never_tried_again() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    append(&log, vec![entry(1, 0)]).unwrap();
    disk.fail_sync_after(0);
    let fault = append(&log, vec![entry(2, 0)]).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "could not sync /log/00000000000000000001.log: the disk did not answer; \
         check the disk and its permissions, then start again"
    );
    let calls = disk.calls();
    assert_eq!(append(&log, vec![entry(3, 0)]), Err(fault.clone()));
    assert_eq!(append(&log, vec![]), Err(fault));
    assert_eq!(disk.calls(), calls, "nothing more is written");
}

#[test]
fn a_full_disk_is_told_apart() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    disk.fail_writes(Some(io::ErrorKind::StorageFull));
    let fault = append(&log, vec![entry(1, 0)]).unwrap_err();
    assert_eq!(fault, LogFault::DiskFull { action: "write", path: segment(1) });
    disk.fail_writes(None);
    assert_eq!(append(&log, vec![entry(2, 0)]), Err(fault));
}

#[test]
fn a_closed_log_takes_no_more_but_can_be_read() {
    let (log, _) = open(&HurtDisk::new());
    append(&log, vec![entry(1, 0)]).unwrap();
    log.clone().close();
    assert_eq!(append(&log, vec![entry(2, 0)]), Err(LogFault::Closed));
    assert_eq!(log.read(0..10).unwrap(), first_drafts(1..=1));
}

#[test]
fn the_last_handle_may_be_dropped_by_its_own_answer() {
    let (log, _) = open(&HurtDisk::new());
    let (sender, answer) = mpsc::channel();
    let last = log.clone();
    let done = move |done| {
        drop(last);
        sender.send(done).unwrap();
    };
    log.append(vec![entry(1, 0)], Box::new(done));
    drop(log);
    assert_eq!(answer.recv().unwrap(), Ok(()));
}

#[test]
fn readers_go_on_while_segments_are_recycled_under_them() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    append(&log, vec![entry(1, 0)]).unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let reader = std::thread::spawn({
        let log = log.clone();
        move || {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                for (index, found) in log.read(0..u64::MAX).unwrap() {
                    assert_eq!(found, payload(index, 0));
                }
            }
        }
    });
    for index in 2..=2000 {
        append(&log, vec![entry(index, 0), Record::Purge { upto: index.saturating_sub(50) }]).unwrap();
    }
    drop(stop);
    reader.join().unwrap();
}

#[test]
fn appends_of_many_threads_are_answered_in_order_whoever_writes_them() {
    let disk = HurtDisk::new();
    let (log, _) = open(&disk);
    let (sender, answers) = mpsc::channel();
    let next = std::sync::Mutex::new(1);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (log, next, sender) = (&log, &next, &sender);
            scope.spawn(move || {
                for _ in 0..100 {
                    let sender = sender.clone();
                    let mut next = next.lock().unwrap();
                    let index = *next;
                    *next += 1;
                    let done = Box::new(move |done: Result<(), LogFault>| {
                        done.unwrap();
                        sender.send(index).unwrap();
                    });
                    match thread % 2 {
                        0 => log.append_here(vec![entry(index, 0)], done),
                        _ => log.append(vec![entry(index, 0)], done),
                    }
                }
            });
        }
    });
    let answered: Vec<u64> = answers.iter().take(400).collect();
    assert_eq!(answered, (1..=400).collect::<Vec<_>>());
    log.close();
    let (log, _) = open(&disk);
    assert_eq!(log.read(0..u64::MAX).unwrap(), first_drafts(1..=400));
}
