//! Outputs of submissions: readers see all of them or none, once each, however often a chunk ran.

use crate::leader::{Leader, append, completing, rule};
use std::collections::BTreeMap;
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::submissions::{ChunkCounts, OnFailure, SubmissionState, Submit};
use windlass_core::branches::commits::{Abort, CommitState};
use windlass_core::branches::outputs::{OnChunkFailure, OutputMode};
use windlass_core::entry::{Applied, Command, Effect, Outcome, Refusal, RetryFailed, Settled};
use windlass_core::ids::SubmissionId;
use windlass_core::limits::STAGED_ROWS_PER_SWEEP_MAX;
use windlass_core::tables::{Table, Tables};

fn retry(leader: &mut Leader, submission: SubmissionId) -> Outcome {
    leader.answer(Command::RetryFailed(RetryFailed { submission }))
}

fn without() -> windlass_core::branches::outputs::OutputRule {
    rule(OutputMode::Append, OnChunkFailure::CommitWithout)
}

fn state_of(leader: &Leader, submission: SubmissionId) -> SubmissionState {
    leader.machine.show(submission).expect("the submission is known").state
}

#[test]
fn all_outputs_of_a_submission_are_seen_at_once_and_it_completes_in_the_same_step() {
    let mut leader = Leader::new();
    let submission = leader.submit(40, append());
    for chunk in 0..40 {
        let paths: Vec<String> = (0..3).map(|nth| format!("{chunk}/{nth}")).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        assert_eq!(leader.complete(submission, chunk, &paths), Settled::Accepted);
        assert!(leader.seen("main").is_empty());
    }
    assert_eq!(state_of(&leader, submission), SubmissionState::Running);
    leader.lead();
    let request = leader.request_of(submission);
    let applied = leader.perform(request);
    let counts = ChunkCounts { total: 40, done: 40, failed: 0 };
    let state = SubmissionState::Completed;
    let effects =
        [Effect::CommitEnded { request }, Effect::AreasDropped, Effect::Over { submission, state, counts }];
    assert_eq!(applied.effects, effects);
    assert_eq!(leader.seen("main").len(), 120);
    leader.sweep();
    assert_eq!((leader.staged(), leader.garbage().len()), (vec![], 0));
}

#[test]
fn the_first_accepted_attempt_gives_the_output_and_a_late_one_changes_nothing() {
    let mut leader = Leader::new();
    let submission = leader.submit(2, append());
    assert_eq!(leader.complete(submission, 0, &["a"]), Settled::Accepted);
    let late = Command::Complete(completing(submission, 0, 1, &["a", "b"]));
    assert_eq!(leader.settled(late.clone()), Settled::AlreadyDone);
    leader.complete(submission, 1, &["c"]);
    assert_eq!(leader.settled(late.clone()), Settled::AlreadyDone, "while its commit waits");
    let request = leader.request_of(submission);
    leader.committed(request);
    assert_eq!(leader.settled(late), Settled::AlreadyDone, "after the end");
    let seen = leader.seen("main");
    let address = |chunk| format!("outputs/{submission}/{chunk}/1-0/0");
    assert_eq!(seen, BTreeMap::from([("a".into(), address(0)), ("c".into(), address(1))]));
}

/// A chunk that had failed for good comes in while the outputs are committed without it.
#[test]
fn what_is_sealed_does_not_change_when_a_failed_chunk_is_done_after_all() {
    let mut leader = Leader::new();
    let submission = leader.submit(2, without());
    leader.complete(submission, 0, &["a"]);
    assert_eq!(leader.fail(submission, 1), Settled::Accepted);
    let request = leader.request_of(submission);
    let generated = leader.generated(request, 3).unwrap();
    let before = leader.machine.tables().clone();
    let late = Command::Complete(completing(submission, 1, 1, &["b"]));
    assert_eq!(leader.settled(late), Settled::SubmissionOver);
    let staged =
        |tables: &windlass_core::tables::MemoryTables| tables.scan_prefix(Table::Staged, &[]).count();
    assert_eq!(staged(leader.machine.tables()), staged(&before));
    assert_eq!(leader.fail(submission, 1), Settled::AlreadyFailed);
    leader.perform_so(generated);
    assert_eq!(state_of(&leader, submission), SubmissionState::Failed, "a chunk is missing");
    assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn of_two_chunks_that_give_one_path_the_later_one_counts_and_the_other_is_garbage() {
    let mut leader = Leader::new();
    let submission = leader.submit(3, append());
    for chunk in [2, 0, 1] {
        leader.complete(submission, chunk, &["same", &format!("own {chunk}")]);
    }
    let request = leader.request_of(submission);
    let Ok(Command::Perform(perform)) = leader.generated(request, 1) else { panic!("it is generated") };
    assert_eq!((perform.commit.counts.entries, perform.commit.counts.conflicts), (4, 2));
    leader.perform_so(Command::Perform(perform));
    leader.sweep();
    let address = |chunk| format!("outputs/{submission}/{chunk}/1-0/0");
    assert_eq!(leader.seen("main")["same"], address(2));
    assert_eq!(leader.garbage().into_iter().collect::<Vec<_>>(), [address(0), address(1)]);
}

#[test]
fn outdone_outputs_are_garbage_also_where_one_sweep_ends_and_the_next_begins() {
    let mut leader = Leader::new();
    leader.is_audited = false;
    let paths: Vec<String> = (0..1_000).map(|nth| format!("{nth:04}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let submission = leader.submit(3, append());
    for chunk in 0..3 {
        leader.complete(submission, chunk, &paths);
    }
    let request = leader.request_of(submission);
    leader.committed(request);
    assert_ne!(STAGED_ROWS_PER_SWEEP_MAX % 3, 0, "the first sweep ends between two rows of a path");
    assert_eq!(leader.answer(Command::Sweep), Outcome::Swept { areas: 1 });
    leader.restart();
    while leader.answer(Command::Sweep) != (Outcome::Swept { areas: 0 }) {}
    let addresses = |chunk| (0..1_000).map(move |nth| format!("outputs/{submission}/{chunk}/1-0/{nth}"));
    assert_eq!(leader.garbage(), addresses(0).chain(addresses(1)).collect());
    assert!(addresses(2).all(|address| leader.is_led_to(&address)));
}

#[test]
fn modes_append_replace_and_exact_say_what_becomes_of_what_was_there() {
    for (mode, expected) in [
        (OutputMode::Append, vec!["be/1", "nl/1", "nl/2", "nl/3"]),
        (OutputMode::Replace("nl/".into()), vec!["be/1", "nl/2", "nl/3"]),
        (OutputMode::Exact, vec!["nl/2", "nl/3"]),
    ] {
        let mut leader = Leader::new();
        for path in ["be/1", "nl/1", "nl/2"] {
            leader.put("main", path);
        }
        leader.commit("main");
        let submission = leader.submit(1, rule(mode, OnChunkFailure::Abort));
        leader.complete(submission, 0, &["nl/2", "nl/3"]);
        let request = leader.request_of(submission);
        leader.committed(request);
        assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_submission_that_failed_leaves_the_branch_as_it_was_and_its_retry_brings_everything() {
    let mut leader = Leader::new();
    let submission = leader.submit(3, append());
    leader.complete(submission, 0, &["a"]);
    leader.fail(submission, 1);
    assert_eq!(state_of(&leader, submission), SubmissionState::Failed);
    leader.sweep();
    leader.lead();
    assert_eq!(
        (leader.seen("main").len(), leader.staged().len()),
        (0, 1),
        "what is done stays for the retry"
    );
    assert_eq!(retry(&mut leader, submission), Outcome::Retried { chunks: 2 });
    leader.settled(Command::Complete(completing(submission, 1, 1, &["b"])));
    leader.complete(submission, 2, &["c"]);
    let request = leader.request_of(submission);
    leader.committed(request);
    assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(retry(&mut leader, submission), Outcome::Refused(Refusal::NothingFailed { submission }));
}

#[test]
fn a_commit_that_a_check_aborted_is_asked_for_again_without_running_a_chunk() {
    let mut leader = Leader::new();
    let submission = leader.submit(1, append());
    leader.complete(submission, 0, &["a"]);
    let first = leader.request_of(submission);
    leader.apply(Command::Abort(Abort { request: first, reason: "too few rows".into() }));
    assert_eq!(state_of(&leader, submission), SubmissionState::Failed);
    leader.restart();
    assert_eq!(retry(&mut leader, submission), Outcome::Retried { chunks: 0 });
    let second = leader.request_of(submission);
    assert_ne!(first, second);
    leader.restart();
    leader.committed(second);
    assert_eq!(leader.state_of(first), CommitState::Aborted("too few rows".into()), "the last word stays");
    assert_eq!(state_of(&leader, submission), SubmissionState::Completed);
    assert_eq!(leader.seen("main").len(), 1);
}

#[test]
fn what_was_committed_without_its_failed_chunks_is_not_retried() {
    let mut leader = Leader::new();
    let submission = leader.submit(2, without());
    leader.complete(submission, 0, &["a"]);
    leader.fail(submission, 1);
    let is_malformed = |outcome| matches!(outcome, Outcome::Refused(Refusal::Malformed { .. }));
    assert!(is_malformed(retry(&mut leader, submission)), "it is being committed");
    let request = leader.request_of(submission);
    leader.committed(request);
    assert!(is_malformed(retry(&mut leader, submission)), "it is committed");

    // One whose commit was aborted is.
    let submission = leader.submit(2, without());
    leader.complete(submission, 0, &["b"]);
    leader.fail(submission, 1);
    let request = leader.request_of(submission);
    leader.apply(Command::Abort(Abort { request, reason: "too few rows".into() }));
    assert_eq!(retry(&mut leader, submission), Outcome::Retried { chunks: 1 });
    leader.settled(Command::Complete(completing(submission, 1, 1, &["c"])));
    let request = leader.request_of(submission);
    leader.committed(request);
    assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn a_cancelled_submission_contributes_no_path_at_whatever_stage_and_all_it_gave_is_garbage() {
    for stage in 0..3 {
        let mut leader = Leader::new();
        let ahead = leader.announce("main");
        let submission = leader.submit(2, append());
        leader.complete(submission, 0, &["a"]);
        let mut request = None;
        if stage > 0 {
            leader.complete(submission, 1, &["b"]);
            request = Some(leader.request_of(submission));
        }
        let behind = leader.announce("main");
        if stage > 1 {
            leader.committed(ahead);
        }
        let late = request.map(|request| leader.generated(request, 3).unwrap());
        let Applied { outcome, effects } = leader.cancel(submission);
        assert_eq!(outcome, Outcome::Cancelled);
        let due = Effect::CommitDue { branch: "main".into(), request: behind };
        assert_eq!(effects.contains(&due), stage > 1, "the next one is due only if this one was");
        let repeated = leader.cancel(submission);
        assert_eq!(repeated, Applied { outcome: Outcome::Cancelled, effects: vec![] });
        if let Some(late) = late {
            let reason = format!("submission {submission} was cancelled");
            assert_eq!(leader.answer(late), Outcome::Aborted { reason });
        }
        assert_eq!(leader.complete(submission, 1, &["b"]), Settled::SubmissionOver);
        leader.finish();
        assert!(leader.seen("main").is_empty());
        assert_eq!((leader.staged(), leader.garbage().len()), (vec![], if stage > 0 { 2 } else { 1 }));
    }
}

#[test]
fn a_submission_whose_branch_is_gone_fails_and_commits_to_the_next_one_of_that_name_when_retried() {
    let mut leader = Leader::new();
    let waiting = leader.submit(1, append());
    let running = leader.submit(1, append());
    leader.complete(waiting, 0, &["a"]);
    let applied = leader.delete("main");
    let counts = ChunkCounts { total: 1, done: 1, failed: 0 };
    let over = Effect::Over { submission: waiting, state: SubmissionState::Failed, counts };
    assert_eq!(applied.effects.last(), Some(&over));
    leader.complete(running, 0, &["b"]);
    assert_eq!(state_of(&leader, running), SubmissionState::Failed);
    assert_eq!(retry(&mut leader, running), Outcome::Retried { chunks: 0 });
    assert_eq!(state_of(&leader, running), SubmissionState::Failed, "it is still gone");
    leader.create("main");
    for submission in [running, waiting] {
        assert_eq!(retry(&mut leader, submission), Outcome::Retried { chunks: 0 });
    }
    leader.finish();
    assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_submission_that_names_no_branch_writes_no_row_of_branches() {
    let mut leader = Leader::new();
    let branch_tables = [Table::Staged, Table::Commits, Table::CommitRequests, Table::DroppedAreas];
    let Outcome::Submitted { submission } = leader.answer(Command::Submit(Submit::new(2))) else {
        panic!("the submission is taken in")
    };
    let with_entries = Command::Complete(completing(submission, 0, 0, &["a"]));
    let problem =
        format!("submission {submission} names no output branch, so its chunks have no entries for one");
    assert_eq!(leader.answer(with_entries), Outcome::Refused(Refusal::Malformed { problem }));
    leader.complete(submission, 0, &[]);
    leader.cancel(submission);
    for table in branch_tables {
        assert_eq!(leader.machine.tables().scan_prefix(table, &[]).count(), 0, "{}", table.name());
    }
}

#[test]
fn a_submission_that_is_committed_without_its_failures_cannot_be_made_to_stop_at_one() {
    let mut leader = Leader::new();
    let submission = leader.submit(2, without());
    let changes = Changes { on_failure: Some(OnFailure::Stop), ..Changes::default() };
    let change = Command::Change(Change { submission, changes });
    assert!(matches!(leader.answer(change), Outcome::Refused(Refusal::Malformed { .. })));
    leader.fail(submission, 0);
    assert_eq!(state_of(&leader, submission), SubmissionState::Running);
}

#[test]
fn an_output_with_a_path_that_is_none_is_refused_with_its_whole_report() {
    let mut leader = Leader::new();
    let submission = leader.submit(1, append());
    for path in ["", "..", "a/../b", "/a", "a\nb", &"p".repeat(4_096)] {
        let outcome = leader.answer(Command::Complete(completing(submission, 0, 0, &["good", path])));
        assert!(matches!(outcome, Outcome::Refused(Refusal::Malformed { .. })), "{path:?}: {outcome:?}");
    }
    let twice = leader.answer(Command::Complete(completing(submission, 0, 0, &["good", "good"])));
    assert!(matches!(twice, Outcome::Refused(Refusal::Malformed { .. })));
    assert_eq!(leader.staged(), []);
}
