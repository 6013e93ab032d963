use super::engine::{LARGE_MEMTABLE_BYTES, MEMTABLE_BYTES};
use super::*;
use fjall::AbstractTree;
use std::ops::Bound::Unbounded;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use windlass_core::seeded::Seeded;
use windlass_core::tables::{MemoryTables, conformance};

const ALL: KeyRange<'static> = (Unbounded, Unbounded);

#[test]
fn what_is_read_ahead_is_found_as_it_is_then_also_when_it_changes_meanwhile() {
    const ROWS: u32 = 600;
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let rows = tables.committed();
    let commit = |tables: &mut DiskTables, value: u8, keys: std::ops::Range<u32>| {
        keys.for_each(|key| tables.put(Table::Levels, &key.to_be_bytes(), vec![value; 30]));
        tables.commit();
    };
    let read = |limit| rows.read_ahead(Table::Levels, ALL, limit).take(limit).collect::<Vec<_>>();
    let of = |value: u8, keys: std::ops::Range<u32>| {
        keys.map(|key| (key.to_be_bytes().to_vec(), vec![value; 30])).collect::<Vec<_>>()
    };
    commit(&mut tables, 1, 0..ROWS / 2);
    rows.persist().unwrap();
    commit(&mut tables, 1, ROWS / 2..ROWS);
    assert_eq!(read(ROWS as usize), of(1, 0..ROWS), "some are with the engine, and some wait");
    assert_eq!(read(ROWS as usize + 9), of(1, 0..ROWS), "there are no more");
    assert_eq!(read(300), of(1, 0..300));
    assert_eq!(read(0), []);

    // Between two pieces of a walk some rows change, and some go.
    let mut walk = rows.read_ahead(Table::Levels, ALL, ROWS as usize);
    assert_eq!(walk.by_ref().take(256).collect::<Vec<_>>(), of(1, 0..256));
    commit(&mut tables, 2, 200..300);
    tables.delete(Table::Levels, &7_u32.to_be_bytes());
    tables.delete(Table::Levels, &400_u32.to_be_bytes());
    tables.commit();
    let rest: Vec<_> = walk.collect();
    let expected = [of(2, 256..300), of(1, 300..400), of(1, 401..ROWS)].concat();
    assert_eq!(rest, expected);
    let look = |key: u32| rows.get(Table::Levels, &key.to_be_bytes());
    for is_written in [false, true] {
        if is_written {
            rows.persist().unwrap();
        }
        let found = [6, 7, 200, 299, 300, 400].map(|key| look(key).map(|value| value[0]));
        assert_eq!(found, [Some(1), None, Some(2), Some(2), Some(1), None], "written: {is_written}");
    }
}

/// One writes and looks at what it wrote; others read ahead and look rows up all the while, so that they are kept at hand.
#[test]
fn whoever_commits_sees_it_at_once_whatever_others_read_meanwhile() {
    const KEYS: u32 = 400;
    const COMMITS: u64 = 1_500;
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let rows = tables.committed();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (rows, is_over) = (rows.clone(), &is_over);
            scope.spawn(move || {
                let mut chance = Seeded::new(reader);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let from = chance.below(KEYS.into()) as u32;
                    drop(rows.get(Table::Levels, &from.to_be_bytes()));
                    let range = (Bound::Included(&from.to_be_bytes()[..]), Unbounded);
                    let ahead = rows.read_ahead(Table::Levels, range, 50).take(50);
                    let keys: Vec<Vec<u8>> = ahead.map(|(key, _)| key).collect();
                    assert!(keys.is_sorted());
                }
            });
        }
        let mut chance = Seeded::new(7);
        let mut model: std::collections::BTreeMap<u32, Vec<u8>> = std::collections::BTreeMap::new();
        for nth in 0..COMMITS {
            let first = chance.below(KEYS.into()) as u32;
            let keys: Vec<u32> = (first..KEYS.min(first + 1 + chance.below(20) as u32)).collect();
            for key in &keys {
                match chance.below(3) {
                    0 => {
                        tables.delete(Table::Levels, &key.to_be_bytes());
                        model.remove(key);
                    }
                    _ => {
                        tables.put(Table::Levels, &key.to_be_bytes(), nth.to_be_bytes().into());
                        model.insert(*key, nth.to_be_bytes().into());
                    }
                }
            }
            tables.commit();
            if nth % 50 == 0 {
                rows.persist().unwrap();
            }
            let others = (0..20).map(|_| chance.below(KEYS.into()) as u32);
            for key in keys.into_iter().chain(others.collect::<Vec<_>>()) {
                let expected = model.get(&key);
                assert_eq!(
                    tables.get(Table::Levels, &key.to_be_bytes()).as_ref(),
                    expected,
                    "commit {nth}, key {key}"
                );
                assert_eq!(
                    rows.get(Table::Levels, &key.to_be_bytes()).as_ref(),
                    expected,
                    "commit {nth}, key {key}"
                );
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Rows that are done go one by one, so what is below an ack level is full of their remains. A scan begins above it.
#[test]
fn a_scan_from_where_everything_is_done_costs_no_more_however_much_that_is() {
    const LEFT: u32 = 6_000;
    const DONE: u32 = 400_000;
    const ROUNDS: usize = 15;
    let filled = |done: u32| {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = DiskTables::open(folder.path()).unwrap();
        for from in (0..done + LEFT).step_by(2_000) {
            let keys = from..(from + 2_000).min(done + LEFT);
            keys.for_each(|key| tables.put(Table::Levels, &key.to_be_bytes(), vec![7; 30]));
            tables.commit();
        }
        tables.committed().persist().unwrap();
        for from in (0..done).step_by(2_000) {
            (from..from + 2_000).for_each(|key| tables.delete(Table::Levels, &key.to_be_bytes()));
            tables.commit();
        }
        tables.committed().persist().unwrap();
        (tables, folder)
    };
    let time = |tables: &DiskTables, from: u32| {
        let began = Instant::now();
        let range = (Bound::Included(&from.to_be_bytes()[..]), Unbounded);
        assert_eq!(tables.committed().scan(Table::Levels, range).take(4_096).count(), 4_096);
        began.elapsed().as_secs_f64()
    };
    let ((few, _few), (many, _many)) = (filled(0), filled(DONE));
    let (mut from_acked, mut from_nothing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let of_few = time(&few, 0);
        from_acked.push(time(&many, DONE) / of_few);
        from_nothing.push(time(&many, 0) / of_few);
    }
    let [from_acked, from_nothing] = [from_acked, from_nothing].map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    });
    println!(
        "of {DONE} done: {from_acked:.2} times as long from there, {from_nothing:.1} from the beginning"
    );
    assert!(from_acked < 2.0, "{from_acked:.2} times as long as where nothing was ever done");
}

#[test]
fn disk_tables_pass_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    conformance::suite(&mut DiskTables::open(folder.path()).unwrap());
}

#[test]
fn what_was_committed_is_there_after_opening_again_and_the_rest_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    for table in Table::ALL {
        tables.put(table, b"key", table.name().into());
    }
    tables.commit();
    tables.persist().unwrap();
    tables.put(Table::Meta, b"key", b"not committed".to_vec());
    drop(tables);
    let tables = DiskTables::open(folder.path()).unwrap();
    for table in Table::ALL {
        assert_eq!(tables.get(table, b"key"), Some(table.name().into()));
    }
}

#[test]
fn what_is_not_on_disk_stays_bounded_while_commits_outrun_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let mut chance = Seeded::new(7);
    for _ in 0..6_000 {
        for table in [Table::Found, Table::Abouts, Table::Traits] {
            tables.put(table, &chance.draw().to_be_bytes(), vec![1; 8 << 10]);
        }
        tables.commit();
        // Four sealed ones and the open one are the most that the engine lets a table have.
        let most = 5 * (LARGE_MEMTABLE_BYTES + 2 * MEMTABLE_BYTES) + (1 << 20);
        let buffered = tables.committed.shared.engine.database.write_buffer_size();
        assert!(buffered < most, "{buffered}");
    }
}

#[test]
fn a_view_stays_as_it_was_while_commits_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    tables.put(Table::Blocks, b"a", b"1".to_vec());
    tables.commit();
    tables.put(Table::Blocks, b"b", b"uncommitted".to_vec());
    let view = tables.view().unwrap();
    tables.put(Table::Blocks, b"a", b"2".to_vec());
    tables.commit();
    let (_, rows) = view.into_tables().find(|(table, _)| *table == Table::Blocks).unwrap();
    assert_eq!(rows.collect::<Vec<_>>(), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(tables.get(Table::Blocks, b"a"), Some(b"2".to_vec()));
}

#[test]
fn a_view_keeps_nothing_in_memory_of_what_is_flushed_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let mut chance = Seeded::new(7);
    let mut write = |tables: &mut DiskTables, count| {
        for _ in 0..count {
            tables.put(Table::Tasks, &chance.draw().to_be_bytes(), vec![1; 8 << 10]);
            tables.commit();
        }
    };
    write(&mut tables, 1_000);
    let before: Vec<_> = tables.scan(Table::Tasks, ALL, Walk::Up).collect();
    let view = tables.view().unwrap();
    write(&mut tables, 10_000);
    // A disk that is slow just now may be behind with all of it. What is flushed is let go when the next one is sealed.
    for _ in 0..2 {
        tables.committed.shared.settle().unwrap();
        while tables.committed.shared.engine.keyspace(Table::Tasks).tree.sealed_memtable_count() > 0 {
            std::thread::yield_now();
        }
        write(&mut tables, 1_000);
    }
    tables.committed.shared.settle().unwrap();
    // Those that may be sealed, and a few that were flushed since; all that was written would be several times as much.
    let held = tables.committed.shared.engine.keyspace(Table::Tasks).tree.version_memtable_size_sum();
    assert!(held < 12 * (MEMTABLE_BYTES + (1 << 20)), "{held} bytes are held");
    let (_, rows) = view.into_tables().find(|(table, _)| *table == Table::Tasks).unwrap();
    assert!(rows.eq(before), "the view is as it was, whatever was flushed and compacted since");
}

#[test]
fn a_backlog_that_comes_in_order_pins_next_to_nothing() {
    const TASKS: u64 = 200_000;
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let backlog = [Table::Tasks, Table::Levels, Table::KeyLevels];
    for first in (0..TASKS).step_by(1_000) {
        for task in first..first + 1_000 {
            for table in backlog {
                tables.put(table, &task.to_be_bytes(), vec![1; 50]);
            }
        }
        tables.commit();
    }
    for table in backlog {
        let keyspace = tables.committed.shared.engine.keyspace(table);
        keyspace.rotate_memtable_and_wait().unwrap();
        let pinned = keyspace.tree.pinned_filter_size() + keyspace.tree.pinned_block_index_size();
        // A bit for each task would be felt with a hundred million of them.
        assert!(pinned < TASKS as usize / 8, "{}: {pinned} bytes for {TASKS} rows", table.name());
    }
}

/// Tables closed after twenty commits over two tables, and the bytes of their journal.
fn twenty_commits(folder: &Path) -> (PathBuf, Vec<u8>) {
    let mut tables = DiskTables::open(folder).unwrap();
    for count in 1..=20_u8 {
        tables.put(Table::Meta, b"applied", vec![count]);
        tables.put(Table::Blocks, &[count], vec![count; 50]);
        tables.commit();
        // So that each is a batch of its own.
        tables.committed.shared.settle().unwrap();
    }
    drop(tables);
    let journal = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.filter(|path| path.extension().is_some_and(|kind| kind == "jnl")).max().unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    (journal, bytes[..end].to_vec())
}

/// How many commits there are, having checked that both tables agree on it.
fn commits(folder: &Path) -> usize {
    let tables = DiskTables::open(folder).unwrap();
    let applied = tables.get(Table::Meta, b"applied").map_or(0, |value| value[0]);
    let blocks = tables.scan(Table::Blocks, ALL, Walk::Up).count();
    assert_eq!(usize::from(applied), blocks, "a commit is over both tables or over none");
    blocks
}

#[test]
fn a_journal_that_ends_anywhere_opens_at_a_whole_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, bytes) = twenty_commits(folder.path());
    assert_eq!(commits(folder.path()), 20);
    for end in (0..bytes.len()).rev().step_by(37) {
        std::fs::write(&journal, &bytes[..end]).unwrap();
        assert!(commits(folder.path()) < 20, "cut at {end} of {}", bytes.len());
    }
}

#[test]
fn a_journal_whose_end_never_reached_the_disk_opens_at_a_whole_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, bytes) = twenty_commits(folder.path());
    for lost in (1..=20_u8).rev() {
        let at = bytes.windows(50).position(|window| window == [lost; 50]).unwrap();
        let mut torn = bytes.clone();
        // The file is as long as before: it was allocated ahead.
        torn[at + 20..].fill(0);
        std::fs::write(&journal, &torn).unwrap();
        assert_eq!(commits(folder.path()), usize::from(lost) - 1);
    }
}

#[test]
fn a_hole_in_the_journal_is_told_from_other_faults() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, mut bytes) = twenty_commits(folder.path());
    let at = bytes.windows(50).position(|window| window == [10; 50]).unwrap();
    bytes[at..at + 50].fill(0);
    std::fs::write(&journal, &bytes).unwrap();
    let fault = DiskTables::open(folder.path()).err().unwrap();
    assert!(matches!(fault, StoreFault::TablesTorn { .. }), "{fault}");
}

#[test]
fn a_second_opener_of_the_same_tables_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _tables = DiskTables::open(folder.path()).unwrap();
    assert!(matches!(DiskTables::open(folder.path()).err(), Some(StoreFault::InUse { .. })));
}

#[test]
fn disk_tables_answer_as_memory_tables_do_under_random_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = DiskTables::open(folder.path()).unwrap();
    let mut memory = MemoryTables::default();
    let mut seed = 7_u64;
    let mut roll = |sides: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % sides
    };
    for step in 0..3000 {
        let table = Table::ALL[roll(3) as usize];
        let key = [roll(5) as u8, roll(5) as u8];
        match roll(10) {
            0..=4 => {
                let value = vec![step as u8; roll(20) as usize];
                disk.put(table, &key, value.clone());
                memory.put(table, &key, value);
            }
            5..=7 => {
                disk.delete(table, &key);
                memory.delete(table, &key);
            }
            8 => disk.commit(),
            _ if roll(50) == 0 => {
                disk.commit();
                drop(disk);
                disk = DiskTables::open(folder.path()).unwrap();
            }
            _ => {
                for walk in [Walk::Up, Walk::Down] {
                    let all: Vec<_> = disk.scan(table, ALL, walk).collect();
                    assert_eq!(all, memory.scan(table, ALL, walk).collect::<Vec<_>>(), "step {step}");
                }
                let found: Vec<_> = disk.scan_prefix(table, &key[..1]).collect();
                assert_eq!(found, memory.scan_prefix(table, &key[..1]).collect::<Vec<_>>(), "step {step}");
            }
        }
        assert_eq!(disk.get(table, &key), memory.get(table, &key), "step {step}");
    }
}

/// What the engine itself has of a row.
fn with_the_engine(tables: &DiskTables, table: Table, key: &[u8]) -> Option<Vec<u8>> {
    tables.committed.shared.engine.get(table, key).unwrap().map(|value| value.to_vec())
}

#[test]
fn what_is_committed_is_seen_at_once_by_every_reader_and_is_with_the_engine_a_moment_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let committed = tables.committed();
    tables.put(Table::Blocks, b"a", b"1".to_vec());
    tables.put(Table::Blocks, b"b", b"1".to_vec());
    tables.commit();
    tables.delete(Table::Blocks, b"b");
    tables.put(Table::Blocks, b"c", b"1".to_vec());
    assert_eq!(committed.get(Table::Blocks, b"b"), Some(b"1".to_vec()), "the deletion is not committed");
    tables.commit();
    let rows = [(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"1".to_vec())];
    assert_eq!(committed.get(Table::Blocks, b"b"), None);
    assert_eq!(committed.scan(Table::Blocks, ALL).collect::<Vec<_>>(), rows);
    assert_eq!(tables.scan(Table::Blocks, ALL, Walk::Up).collect::<Vec<_>>(), rows);
    let given_up_at = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while with_the_engine(&tables, Table::Blocks, b"c").is_none() {
        assert!(std::time::Instant::now() < given_up_at, "the Scribe writes what nobody follows");
        std::thread::yield_now();
    }
    assert_eq!(committed.scan(Table::Blocks, ALL).collect::<Vec<_>>(), rows);
}

#[test]
fn a_row_that_is_committed_again_and_again_reaches_the_engine_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tables, mut seen) = (DiskTables::open(folder.path()).unwrap(), 0);
    let mut last = None;
    for count in 0..20_000_u32 {
        tables.put(Table::Meta, b"position", count.to_be_bytes().into());
        tables.commit();
        let written = with_the_engine(&tables, Table::Meta, b"position");
        seen += usize::from(written != last);
        last = written;
    }
    assert!(seen < 2_000, "it was written {seen} times");
    tables.persist().unwrap();
    assert_eq!(with_the_engine(&tables, Table::Meta, b"position"), Some(19_999_u32.to_be_bytes().into()));
}

#[test]
fn whenever_the_process_dies_the_tables_are_as_some_commit_left_them() {
    let (folder, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let mut chance = Seeded::new(11);
    let mut applied = Vec::new();
    for count in 1..=600_u32 {
        // Few rows or many, so that some are written because they are many and others because they have waited.
        for nth in 0..chance.below(400) as u32 {
            tables.put(Table::Tasks, &[count.to_be_bytes(), nth.to_be_bytes()].concat(), vec![7; 30]);
        }
        tables.put(Table::Blocks, &count.to_be_bytes(), count.to_be_bytes().into());
        tables.put(Table::Meta, b"applied", count.to_be_bytes().into());
        tables.commit();
        if count % 20 == 0 {
            let copy = copies.path().join(count.to_string());
            copy_folder(folder.path(), &copy);
            let found = DiskTables::open(&copy).unwrap();
            let position =
                found.get(Table::Meta, b"applied").map(|row| u32::from_be_bytes(row.try_into().unwrap()));
            let rows = found.scan(Table::Blocks, ALL, Walk::Up).count() as u32;
            assert_eq!(position.unwrap_or(0), rows, "after {count} commits");
            assert!(rows <= count);
            applied.push(rows);
        }
    }
    assert!(applied.is_sorted() && applied.last() > Some(&300), "{applied:?}");
}

#[test]
fn what_was_committed_outlives_the_process_a_moment_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = DiskTables::open(folder.path()).unwrap();
    let last = 40_u32;
    for count in 1..=last {
        tables.put(Table::Blocks, &count.to_be_bytes(), b"1".to_vec());
        tables.commit();
    }
    let given_up_at = Instant::now() + Duration::from_secs(60);
    loop {
        let copies = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copies.path());
        let found = DiskTables::open(copies.path()).unwrap();
        if found.get(Table::Blocks, &last.to_be_bytes()).is_some() {
            return;
        }
        assert!(
            Instant::now() < given_up_at,
            "nobody commits any more, and the Scribe writes it and hands it over"
        );
    }
}

/// A folder as a process that dies now leaves it.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
