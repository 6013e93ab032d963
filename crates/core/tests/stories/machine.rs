//! Stories of the machine: what a producer, a consumer and an operator are told, and what it costs.

use crate::leader::{BEGIN, Leader, chunk};
use std::ops::Range;
use windlass_core::batch::submissions::{ChunkCounts, OnFailure, SubmissionState, Submit};
use windlass_core::entry::{
    Applied, Command, Complete, Done, Effect, Entry, Fail, FailedAttempt, Lead, Outcome, Output, Refusal,
    Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::limits::{CHUNKS_PER_BLOCK, DEDUP_EXPIRED_PER_APPLY_MAX, DEDUP_WINDOW_MS};
use windlass_core::tables::{Table, Tables};

const FIRST: Attempt = Attempt { epoch: Epoch(1), nth: 0 };
const SECOND: Attempt = Attempt { epoch: Epoch(1), nth: 1 };

fn counts(total: u64, done: u64, failed: u64) -> ChunkCounts {
    ChunkCounts { total, done, failed }
}

fn keyed(chunks: u64, key: &str) -> Submit {
    Submit { idempotency_key: Some(key.into()), ..Submit::new(chunks) }
}

fn failures(submission: SubmissionId, chunks: &[u64], attempt: Attempt) -> Command {
    let reason = "it broke";
    let failed = |index: &u64| FailedAttempt { chunk: ChunkIndex(*index), attempt, reason: reason.into() };
    Command::Fail(Fail { submission, failed: chunks.iter().map(failed).collect() })
}

fn completions(submission: SubmissionId, chunks: Range<u64>) -> Command {
    let done =
        |index| Done { chunk: ChunkIndex(index), attempt: FIRST, output: Output::Stored, entries: None };
    Command::Complete(Complete { submission, done: chunks.map(done).collect() })
}

#[test]
fn a_submission_that_stops_on_failure_skips_the_rest() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Stop, ..Submit::new(4) });
    leader.complete(chunk(submission, 0), FIRST);

    let applied = leader.apply(failures(submission, &[1, 2], FIRST));
    let expected = Applied {
        outcome: Outcome::Settled(vec![Settled::Accepted, Settled::SubmissionOver]),
        effects: vec![
            Effect::Failed {
                submission,
                chunk: ChunkIndex(1),
                attempt: FIRST,
                retry_at: None,
                counts: counts(4, 1, 1),
            },
            Effect::Over { submission, state: SubmissionState::Failed, counts: counts(4, 1, 1) },
        ],
    };
    assert_eq!(applied, expected);
    assert_eq!((leader.reserver.ready_len(), leader.machine.batch().unsettled()), (0, 0));
    assert_eq!(leader.complete(chunk(submission, 3), FIRST), Settled::SubmissionOver);
}

#[test]
fn a_submission_that_continues_on_failure_goes_on_and_fails_when_the_rest_is_done() {
    let mut leader = Leader::new();
    let submission =
        leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Continue, ..Submit::new(3) });
    assert_eq!(leader.fail(chunk(submission, 1), FIRST), Settled::Accepted);
    assert_eq!(leader.reserver.ready_len(), 2);
    assert_eq!(leader.complete(chunk(submission, 0), FIRST), Settled::Accepted);

    let last = leader.apply(completions(submission, 2..3));
    let expected = [
        Effect::Done { submission, chunks: vec![ChunkIndex(2)], counts: counts(3, 2, 1) },
        Effect::Over { submission, state: SubmissionState::Failed, counts: counts(3, 2, 1) },
    ];
    assert_eq!(last.effects, expected);
}

#[test]
fn a_chunk_that_failed_for_good_may_still_be_completed_by_an_attempt_that_was_out() {
    let mut leader = Leader::new();
    let submission =
        leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Continue, ..Submit::new(2) });
    leader.fail(chunk(submission, 0), FIRST);
    assert_eq!(leader.complete(chunk(submission, 0), SECOND), Settled::Accepted);
    assert_eq!(leader.rows(Table::Failures), 0);
    let last = leader.apply(completions(submission, 1..2));
    assert_eq!(
        last.effects.last(),
        Some(&Effect::Over { submission, state: SubmissionState::Completed, counts: counts(2, 2, 0) })
    );
}

#[test]
fn retrying_the_failed_forgives_and_what_is_done_stays_done() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { attempts_max: 2, retry_delay_ms: 0, ..Submit::new(4) });
    leader.complete(chunk(submission, 1), FIRST);
    leader.fail(chunk(submission, 2), FIRST);
    leader.fail(chunk(submission, 0), FIRST);
    leader.fail(chunk(submission, 2), SECOND);
    assert_eq!(leader.machine.show(submission).map(|it| it.state), Some(SubmissionState::Failed));

    assert_eq!(leader.retry_failed(submission), Outcome::Retried { chunks: 3 });
    let view = leader.machine.show(submission).unwrap();
    assert_eq!((view.state, view.submission.round), (SubmissionState::Running, 1));
    assert_eq!((view.submission.counts, view.submission.failures), (counts(4, 1, 0), 3));
    let refused = Outcome::Refused(Refusal::NothingFailed { submission });
    assert_eq!(leader.retry_failed(submission), refused);

    // Both have their two attempts again: one failure more does not end it.
    let of_round_one = |nth: u64| Attempt { epoch: Epoch(1), nth: 1 << 32 | nth };
    assert_eq!(leader.fail(chunk(submission, 2), of_round_one(0)), Settled::Accepted);
    assert_eq!(
        leader.fail(chunk(submission, 2), SECOND),
        Settled::AlreadyFailed,
        "a late one of the old round"
    );
    assert_eq!(leader.machine.show(submission).map(|it| it.state), Some(SubmissionState::Running));
    for index in [0, 2, 3] {
        assert_eq!(leader.complete(chunk(submission, index), of_round_one(1)), Settled::Accepted);
    }
    assert_eq!(leader.machine.show(submission).map(|it| it.state), Some(SubmissionState::Completed));
    assert_eq!(leader.rows(Table::Failures), 0);
}

#[test]
fn what_is_cancelled_stays_cancelled() {
    let mut leader = Leader::new();
    let submission =
        leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Continue, ..Submit::new(2) });
    leader.fail(chunk(submission, 0), FIRST);
    assert_eq!(leader.cancel(submission), Outcome::Cancelled);
    let rows = leader.machine.tables().clone();
    assert_eq!(leader.cancel(submission), Outcome::Cancelled);
    let over = Outcome::Refused(Refusal::SubmissionOver { submission, state: SubmissionState::Cancelled });
    assert_eq!(leader.retry_failed(submission), over);
    assert_eq!(leader.complete(chunk(submission, 1), FIRST), Settled::SubmissionOver);
    assert_eq!(leader.machine.tables(), &rows);
}

#[test]
fn the_same_idempotency_key_gives_the_same_submission_and_refuses_another_payload() {
    let mut leader = Leader::new();
    let submission = leader.submit(keyed(3, "order 17"));
    let rows = leader.machine.tables().clone();
    let again = leader.apply(Command::Submit(keyed(3, "order 17")));
    assert_eq!(again, Applied { outcome: Outcome::Submitted { submission }, effects: Vec::new() });
    let other = leader.apply(Command::Submit(keyed(4, "order 17")));
    assert_eq!(other, Applied::refused(Refusal::IdempotencyKeyReused));
    assert_eq!(leader.machine.tables(), &rows, "neither changed a row");
    assert_ne!(leader.submit(keyed(3, "order 18")), submission);
}

#[test]
fn a_submit_that_the_log_delivers_twice_is_taken_in_once() {
    let mut leader = Leader::new();
    let entry = |sender, chunks| Entry {
        epoch: Epoch(1),
        at: BEGIN,
        seed: 0,
        sender: SenderId(sender),
        token: ContinuationToken(1_000),
        command: Command::Submit(Submit::new(chunks)),
    };
    let first = leader.machine.apply(entry(1, 5));
    // Whoever waited was answered the first time.
    assert_eq!(leader.machine.apply(entry(1, 5)), Applied::refused(Refusal::Repeated));
    assert_ne!(
        leader.machine.apply(entry(2, 5)).outcome,
        first.outcome,
        "another member counts its own tokens"
    );
    assert_eq!(leader.machine.batch().running(), 2);
}

#[test]
fn a_key_may_be_used_anew_once_its_window_is_closed() {
    let mut leader = Leader::new();
    let first = leader.submit(keyed(1, "daily"));
    leader.now = BEGIN.after_ms(DEDUP_WINDOW_MS);
    leader.submit(Submit::new(1));
    assert_eq!(
        leader.submit(keyed(1, "daily")),
        first,
        "a window is closed after its last millisecond, not in it"
    );
    leader.now = leader.now.after_ms(1);
    leader.submit(Submit::new(1));
    assert_ne!(leader.submit(keyed(1, "daily")), first);
}

#[test]
fn each_submit_closes_only_a_few_windows_and_more_than_it_opens() {
    let mut leader = Leader::new();
    for nth in 0..100 {
        leader.submit(keyed(1, &format!("early {nth}")));
    }
    assert_eq!(leader.machine.replies(), 100);
    leader.now = BEGIN.after_ms(DEDUP_WINDOW_MS + 1);
    for nth in 1..=25 {
        leader.submit(keyed(1, &format!("late {nth}")));
        assert_eq!(
            leader.machine.replies(),
            100 - 3 * nth,
            "each opens 1 and closes {DEDUP_EXPIRED_PER_APPLY_MAX}"
        );
    }
    leader.submit(keyed(1, "last"));
    assert_eq!(leader.machine.replies(), 26, "nothing is due any more");
}

#[test]
fn a_submission_is_one_row_whatever_its_number_of_chunks() {
    let rows_and_bytes = |chunks| {
        let mut leader = Leader::new();
        let submission = leader.submit(Submit::new(chunks));
        assert_eq!(leader.machine.batch().unsettled(), chunks);
        assert_eq!(leader.reserver.ready_len(), chunks);
        let row = leader.machine.tables().get(Table::Submissions, &submission.key()).unwrap();
        (leader.all_rows(), leader.rows(Table::Submissions), row.len())
    };
    let (rows_of_one, one, _) = rows_and_bytes(1);
    let (rows_of_billion, billion, bytes) = rows_and_bytes(1_000_000_000);
    assert_eq!((rows_of_one, one), (rows_of_billion, billion));
    assert_eq!(one, 1);
    assert!(bytes < 64, "{bytes} bytes");
}

#[test]
fn a_block_that_is_done_leaves_a_tiny_row_and_no_memory() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit::new(3 * CHUNKS_PER_BLOCK));
    leader.apply(completions(submission, 0..CHUNKS_PER_BLOCK / 2));
    assert_eq!(leader.machine.batch().blocks_in_memory(), 1);
    leader.apply(completions(submission, CHUNKS_PER_BLOCK / 2..CHUNKS_PER_BLOCK));
    assert_eq!(leader.machine.batch().blocks_in_memory(), 0);
    let blocks: Vec<_> = leader.machine.tables().scan_prefix(Table::Blocks, &submission.key()).collect();
    let [(_, row)] = &blocks[..] else { panic!("one block is touched, not {}", blocks.len()) };
    assert!(row.len() <= 20, "{} bytes", row.len());
}

#[test]
fn late_reports_of_a_block_that_is_done_do_not_bring_it_back_into_memory() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit::new(2 * CHUNKS_PER_BLOCK));
    leader.apply(completions(submission, 0..CHUNKS_PER_BLOCK));
    assert_eq!(leader.complete(chunk(submission, 7), SECOND), Settled::AlreadyDone);
    assert_eq!(leader.fail(chunk(submission, 8), SECOND), Settled::AlreadyDone);
    assert_eq!(leader.machine.batch().blocks_in_memory(), 0);
}

#[test]
fn an_entry_of_a_leadership_that_has_ended_changes_nothing() {
    let mut leader = Leader::new();
    leader.change();
    leader.change();
    let rows = leader.machine.tables().clone();
    let late = |epoch, command| Entry {
        epoch,
        at: BEGIN.after_ms(9),
        seed: 0,
        sender: SenderId(1),
        token: ContinuationToken(77),
        command,
    };
    let lead = || Command::Lead(Lead { shard: Shard::default() });
    for entry in [
        late(Epoch(2), Command::Submit(Submit::new(1))),
        late(Epoch(1), lead()),
        // The same leadership does not begin twice, however often the log delivers its beginning.
        late(Epoch(3), lead()),
    ] {
        assert_eq!(leader.machine.apply(entry), Applied::refused(Refusal::Fenced { current: Epoch(3) }));
    }
    leader.machine.flush();
    assert_eq!(leader.machine.tables(), &rows);
}

#[test]
fn reports_of_a_submission_that_never_was_are_refused_with_its_id() {
    let mut leader = Leader::new();
    let submission = SubmissionId::from_u64(42).unwrap();
    let refused = Applied::refused(Refusal::SubmissionUnknown { submission });
    assert_eq!(leader.apply(completions(submission, 0..1)), refused);
    assert_eq!(leader.apply(failures(submission, &[0], FIRST)), refused);
    assert_eq!(leader.cancel(submission), refused.outcome);
    assert_eq!(leader.retry_failed(submission), refused.outcome);
}
