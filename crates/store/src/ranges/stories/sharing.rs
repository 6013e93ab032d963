//! What is read, noted and written, and what is not.

use super::*;
use crate::fault::StoreFault;
use std::sync::{Arc, Mutex};

#[tokio::test]
async fn a_get_costs_two_reads_and_none_the_second_time() {
    let objects = memory();
    let made = generate(&small(&objects), None, None, counted(0..1_000)).await;
    let ranges = small(&objects);
    for (path, reads) in [("path/000500", 2), ("path/000500", 2), ("path/000500x", 2), ("path/000000", 3)] {
        let found = ranges.get(made.metarange, path).await.unwrap();
        assert_eq!(found.is_some(), !path.ends_with('x'), "{path}");
        assert_eq!(ranges.reads(), reads, "{path}");
    }
    for beside in ["", "a", "path/999999"] {
        assert_eq!(ranges.get(made.metarange, beside).await.unwrap(), None);
    }
    ranges.summary(made.metarange).await.unwrap();
    assert_eq!(ranges.reads(), 3, "what lies beside all ranges, and a summary, are in the metarange");
}

#[tokio::test]
async fn many_who_ask_for_the_same_file_at_once_read_it_once() {
    let objects = memory();
    let made = generate(&small(&objects), None, None, counted(0..1_000)).await;
    let ranges = small(&objects);
    let gets = (0..50).map(|_| ranges.get(made.metarange, "path/000500"));
    let found = futures_util::future::join_all(gets).await;
    assert!(found.into_iter().all(|found| found.unwrap() == Some(entry(500))));
    assert_eq!(ranges.reads(), 2);
}

#[tokio::test]
async fn what_is_kept_has_a_limit() {
    let objects = memory();
    let made = generate(&small(&objects), None, None, counted(0..1_000)).await;
    let kept = Kept { range_bytes: 20_000, metarange_bytes: 1 << 20 };
    let ranges = Ranges::with(objects, SMALL, kept);
    assert_eq!(all(&ranges, Some(made.metarange)).await.len(), 1_000);
    assert_eq!(ranges.reads(), 1 + made.ranges, "each range once");
    let weight = ranges.0.ranges.weight();
    assert!((1..=20_000).contains(&weight), "{weight} bytes are kept");
}

#[tokio::test]
async fn only_ranges_near_a_change_are_read_and_written() {
    let objects = memory();
    let first = generate(&small(&objects), None, None, counted(0..10_000)).await;
    assert!(first.ranges > 1_000, "{} ranges", first.ranges);
    for changes in [vec![put("path/005000", 1)], vec![remove("path/005000")], vec![put("path/005000x", 1)]] {
        let ranges = small(&objects);
        let second = generate(&ranges, Some(first.metarange), None, changes).await;
        let written = second.ranges_written;
        assert!((1..=4).contains(&written), "{written} of {} ranges were written", second.ranges);
        assert!(ranges.reads() <= 2 + written, "{} files were read", ranges.reads());

        let ranges = small(&objects);
        let mut differences = ranges.differences(Some(first.metarange), Some(second.metarange));
        assert!(differences.next().await.unwrap().unwrap().path.starts_with("path/005000"));
        assert_eq!(differences.next().await.unwrap(), None);
        assert!(ranges.reads() <= 4 + 2 * written, "{} files were read", ranges.reads());
        let mut differences = ranges.differences(Some(first.metarange), Some(second.metarange));
        let reads = ranges.reads();
        differences.seek("path/006000");
        assert_eq!(differences.next().await.unwrap(), None);
        assert_eq!(ranges.reads(), reads, "what both share is not read, even in its middle");
    }
}

#[tokio::test]
async fn entries_at_the_end_leave_all_ranges_but_the_last_as_they_are() {
    let objects = memory();
    let first = generate(&small(&objects), None, None, counted(0..10_000)).await;
    let ranges = small(&objects);
    let second = generate(&ranges, Some(first.metarange), None, counted(10_000..10_010)).await;
    assert_eq!((second.entries, second.added), (10_010, 10));
    assert!(ranges.reads() <= 2, "the metarange and the open range, if there is one");
    assert!(second.ranges_written <= 6, "{} ranges were written", second.ranges_written);
}

#[tokio::test]
async fn a_prefix_is_replaced_without_reading_what_lies_within() {
    let objects = memory();
    let first = generate(&small(&objects), None, None, counted(0..10_000)).await;
    let ranges = small(&objects);
    let second = generate(&ranges, Some(first.metarange), Some("path/00"), vec![put("path/001", 7)]).await;
    assert_eq!((second.entries, second.added, second.removed), (1, 1, 10_000));
    assert!(ranges.reads() <= 2, "{} files were read", ranges.reads());
    let third = generate(&ranges, Some(second.metarange), Some(""), vec![]).await;
    assert_eq!((third.entries, third.ranges, third.removed), (0, 0, 1));
    assert_eq!(third.files, [FileName::Metarange(third.metarange)]);
    assert_eq!(generate(&ranges, None, None, vec![]).await.metarange, third.metarange);
}

#[tokio::test]
async fn changes_that_change_nothing_write_nothing() {
    let objects = memory();
    let ranges = small(&objects);
    let first = generate(&ranges, None, None, counted(0..1_000)).await;
    let mut same = counted((0..1_000).step_by(7));
    same.push(remove("path/999999"));
    let again = generate(&ranges, Some(first.metarange), None, same).await;
    assert_eq!(again.metarange, first.metarange);
    assert_eq!((again.added, again.changed, again.removed, again.ranges_written), (0, 0, 0, 0));
    assert_eq!(again.files, []);
}

/// A note that tells when it was called, and that none of the files it names is there yet.
async fn noted(
    objects: &Objects,
    parent: Option<Digest>,
    changes: Vec<Change>,
) -> (Generated, Vec<Vec<FileName>>) {
    let notes = Arc::new(Mutex::new(Vec::<Vec<FileName>>::new()));
    let note = {
        let (objects, notes) = (objects.clone(), Arc::clone(&notes));
        async move |names: &[FileName]| {
            for name in names {
                assert_eq!(
                    objects.head(&name.key()).await.unwrap(),
                    None,
                    "{name} is written before its note"
                );
            }
            let before: Vec<FileName> = notes.lock().unwrap().concat();
            for name in before {
                assert!(objects.head(&name.key()).await.unwrap().is_some(), "{name} waits for another note");
            }
            notes.lock().unwrap().push(names.to_vec());
            Ok::<_, Infallible>(())
        }
    };
    let ranges = small(objects);
    // As a task of its own, as a server runs it: it may move between threads.
    let made = tokio::spawn(async move {
        let changes = futures_util::stream::iter(changes.into_iter().map(Ok));
        ranges.generate(parent, None, changes, note).await.unwrap()
    });
    let made = made.await.unwrap();
    let notes = notes.lock().unwrap().clone();
    assert_eq!(notes.concat(), made.files);
    for name in &made.files {
        assert!(objects.head(&name.key()).await.unwrap().is_some());
    }
    (made, notes)
}

#[tokio::test]
async fn files_are_written_after_their_names_are_noted_a_few_at_a_time() {
    let objects = memory();
    let (first, notes) = noted(&objects, None, counted(0..1_000)).await;
    let (last, others) = notes.split_last().unwrap();
    assert!(others.iter().all(|names| names.len() == 8));
    assert!((2..=9).contains(&last.len()));
    assert_eq!(last.last(), Some(&FileName::Metarange(first.metarange)));
    assert_eq!(first.files.len() as u64, first.ranges_written + 1);

    let (second, notes) = noted(&objects, Some(first.metarange), vec![put("path/000999", 5)]).await;
    let (range, metarange) = (second.files[0], FileName::Metarange(second.metarange));
    assert_eq!(notes, [[range, metarange]], "a small commit is one note and two files");
}

#[tokio::test]
async fn nothing_is_written_when_its_name_cannot_be_noted() {
    let objects = memory();
    let ranges = small(&objects);
    let mut names = Vec::new();
    let changes = futures_util::stream::iter(counted(0..1_000).into_iter().map(Ok));
    let made = ranges.generate(None, None, changes, async |batch: &[FileName]| {
        names.push(batch.to_vec());
        if names.len() == 3 { Err("the log is closed") } else { Ok(()) }
    });
    let fault = made.await.unwrap_err();
    assert_eq!(fault.to_string(), "the names of new files could not be noted: the log is closed");
    assert_eq!(names.len(), 3);
    for (batch, is_written) in names.iter().zip([true, true, false]) {
        for name in batch {
            assert_eq!(objects.head(&name.key()).await.unwrap().is_some(), is_written);
        }
    }
}

#[tokio::test]
async fn a_fault_of_whoever_gives_the_changes_ends_the_generating() {
    let ranges = small(&memory());
    let fault = StoreFault::RangeMissing { file: "x".to_owned(), address: "y".to_owned() };
    let changes = futures_util::stream::iter([Ok(put("a", 1)), Err(fault)]);
    let made = ranges.generate(None, None, changes, async |_: &[FileName]| Err("nothing is noted"));
    assert!(matches!(made.await, Err(GenerateFault::Store(StoreFault::RangeMissing { .. }))));
}

#[tokio::test]
#[should_panic(expected = "changes come in the order of their paths, each path once")]
async fn a_path_that_comes_twice_is_a_contradiction() {
    generate(&small(&memory()), None, None, vec![put("a", 1), put("a", 2)]).await;
}

#[tokio::test]
async fn ranges_of_the_usual_size_are_cut_and_shared() {
    let objects = memory();
    let ranges = Ranges::new(objects);
    let first = generate(&ranges, None, None, counted(0..150_000)).await;
    let list = ranges.metarange(first.metarange).await.unwrap();
    let (last, closed) = list.ranges.split_last().unwrap();
    assert!(closed.iter().all(|it| it.is_closed && (4_096..=65_536).contains(&it.entries)));
    assert!(last.entries <= 65_536);
    let second = generate(&ranges, Some(first.metarange), None, vec![put("path/000007", 1)]).await;
    assert_eq!((second.ranges_written, second.changed), (1, 1));
}
