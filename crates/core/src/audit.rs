//! The audit: every invariant of the rooms, checked by recounting everything. For tests; it walks all rows.
//!
//! The checks stand in the order in which the files' heads list them.

use crate::batch::chunks::{Block, BlockName};
use crate::batch::listing::found_key;
use crate::batch::reserver::Reserver;
use crate::batch::state::about_of;
use crate::batch::submissions::{ChunkCounts, Finished, Submission, SubmissionState, Traits};
use crate::branches;
use crate::ids::{ChunkIndex, ChunkName, SubmissionId};
use crate::lanes;
use crate::machine::Machine;
use crate::rows;
use crate::tables::{Table, Tables};
use std::collections::BTreeMap;

/// Checks the machine. Everything must be flushed.
///
/// # Panics
/// If an invariant does not hold; the message says which.
pub fn check<T: Tables>(machine: &Machine<T>) {
    let tables = machine.tables();
    let running = running_rows(tables);
    let history = history_rows(tables);

    // submissions
    for (id, submission) in &running {
        assert!(!history.contains_key(id), "submission {id} runs and is in history");
        assert_eq!(machine.batch().submission(*id), Some(submission), "memory holds what the row holds");
        assert!(
            submission.counts.unsettled() > 0 || submission.commit.is_some(),
            "a running submission has unsettled chunks, or its commit waits"
        );
        assert_eq!(
            recount(tables, *id, submission),
            submission.counts,
            "counts of {id} are sums over its blocks"
        );
    }
    assert_eq!(machine.batch().running(), running.len(), "memory holds no more than the rows");
    for (id, finished) in &history {
        let counts = finished.submission.counts;
        assert_eq!(
            recount(tables, *id, &finished.submission),
            counts,
            "counts of {id} are sums over its blocks"
        );
        match finished.state {
            SubmissionState::Running => panic!("submission {id} is in history and running"),
            SubmissionState::Completed => assert_eq!(counts.done, counts.total, "completed means all done"),
            SubmissionState::Failed => assert!(
                counts.failed > 0 || finished.submission.commit.is_some(),
                "failed means that a chunk has failed, or the commit"
            ),
            SubmissionState::Cancelled => {}
        }
    }
    let mut found = 0;
    let over = history.iter().map(|(id, finished)| (id, &finished.submission));
    for (id, submission) in running.iter().chain(over) {
        let about = about_of(tables, *id);
        assert_eq!(
            (about.attempts_max, about.retry_delay_ms, about.on_failure),
            (submission.attempts_max, submission.retry_delay_ms, submission.on_failure),
            "the row of {id} has the limits that its about row says"
        );
        for (field, value) in &about.metadata {
            let row = tables.get(Table::Found, &found_key(field, value, Some(*id)));
            assert!(row.is_some(), "submission {id} is found by {field}");
            found += 1;
        }
    }
    for (key, row) in tables.scan_prefix(Table::Traits, &[]) {
        let id = id_of(&key);
        assert!(running.contains_key(&id), "only a running submission has traits, and {id} does not run");
        let (traits, about): (Traits, _) = (Traits::from_row(id, &row), about_of(tables, id));
        assert_eq!(
            (traits.priority, &traits.metadata),
            (about.priority, &about.metadata),
            "the traits of {id} are what its about row says"
        );
        assert!(!traits.is_plain || about.is_plain(), "of {id}, consumers are told what its about row says");
    }
    let found_rows = tables.scan_prefix(Table::Found, &[]).count();
    assert_eq!(found_rows, found, "submissions are found by what is said of them now, and by nothing else");

    // state
    let unsettled: u64 = running.values().map(|it| it.counts.unsettled()).sum();
    assert_eq!(machine.batch().unsettled(), unsettled, "the total of unsettled chunks is their sum");

    // lanes
    lanes::audit::check(machine.lanes(), tables);

    // branches
    branches::audit::check(machine);

    // dedup
    let by_request = tables.scan_prefix(Table::Replies, &[]).count() as u64;
    let by_time = tables.scan_prefix(Table::RepliesByTime, &[]).count() as u64;
    assert_eq!((by_request, by_time), (machine.replies(), machine.replies()), "each reply has its two rows");
}

/// Checks that a reserver which absorbed every effect knows exactly the machine's unsettled chunks, each in one place.
///
/// # Panics
/// If it does not.
pub fn check_reserver<T: Tables>(machine: &Machine<T>, reserver: &Reserver) {
    let mut expected = 0;
    for unsettled in machine.unsettled() {
        for chunk in unsettled.ranges.iter().cloned().flatten() {
            let name = ChunkName { submission: unsettled.submission, chunk: ChunkIndex(chunk) };
            let places = reserver.places_of(name).into_iter().filter(|is_here| *is_here).count();
            assert_eq!(places, 1, "{name:?} is in exactly one of ready, out and delayed");
            expected += 1;
        }
    }
    assert_eq!(reserver.total_len(), expected, "the reserver knows no chunk but the unsettled ones");
    for task in reserver.desk().tasks_out() {
        let [_, is_out, is_delayed] =
            reserver.places_of(ChunkName { submission: task, chunk: ChunkIndex(0) });
        assert!(is_out != is_delayed, "task {task} is with somebody, or its loss is being counted");
    }
    lanes::audit::check_desk(reserver.desk(), machine.lanes(), machine.tables());
    assert!(reserver.indexes_agree(), "the reserver's side indexes say what its reservations say");
    check_views(reserver);
}

/// Checks that everything which strategies go by, and every view, is what a recount of the reserver's submissions and
/// reservations gives.
///
/// # Panics
/// If it is not.
pub fn check_views(reserver: &Reserver) {
    reserver.check_views();
}

fn running_rows(tables: &dyn Tables) -> BTreeMap<SubmissionId, Submission> {
    let rows = tables.scan_prefix(Table::Submissions, &[]);
    rows.map(|(key, row)| (id_of(&key), rows::decode(Table::Submissions, &key, &row))).collect()
}

fn history_rows(tables: &dyn Tables) -> BTreeMap<SubmissionId, Finished> {
    let rows = tables.scan_prefix(Table::History, &[]);
    rows.map(|(key, row)| (id_of(&key), rows::decode(Table::History, &key, &row))).collect()
}

fn id_of(key: &[u8]) -> SubmissionId {
    SubmissionId::from_key(key).expect("a submission's row has its id as key")
}

fn recount(tables: &dyn Tables, id: SubmissionId, submission: &Submission) -> ChunkCounts {
    let mut counts = ChunkCounts { total: submission.counts.total, done: 0, failed: 0 };
    for (key, row) in tables.scan_prefix(Table::Blocks, &id.key()) {
        let name = BlockName::from_key(&key).expect("a block's row has its name as key");
        let block = rows::decoded(Table::Blocks, &key, Block::from_bytes(&row, name.places(counts.total)));
        assert_eq!(block.to_bytes(), row, "a block is stored in one way only");
        counts.done += block.done_count();
        for trouble in block.troubles() {
            assert!(!block.is_done(trouble.place), "a chunk that is done has no trouble");
            counts.failed += u64::from(block.is_failed(trouble.place, submission.round));
            let chunk = ChunkIndex(name.first_chunk() + u64::from(trouble.place.0));
            let failure = tables.get(Table::Failures, &ChunkName { submission: id, chunk }.key());
            assert!(failure.is_some(), "a chunk in trouble has its failure row");
        }
    }
    counts
}
