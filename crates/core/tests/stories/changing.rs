//! Stories of change: what is said anew of a submission that runs, and what stays as it was decided.

use crate::leader::{Leader, chunk};
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::select::{SelectedStanding, Selection};
use windlass_core::batch::submissions::{MetaValue, Metadata, OnFailure, SubmissionState, Submit, Traits};
use windlass_core::entry::{Applied, Command, Effect, Outcome, Refusal, Settled};
use windlass_core::ids::{Attempt, Epoch, SubmissionId};
use windlass_core::tables::Table;

const FIRST: Attempt = Attempt { epoch: Epoch(1), nth: 0 };

fn change(submission: SubmissionId, changes: Changes) -> Command {
    Command::Change(Change { submission, changes })
}

fn shade(shade: &str) -> Metadata {
    Metadata::from([("shade".into(), MetaValue::Text(shade.into()))])
}

fn attempt(nth: u64) -> Attempt {
    Attempt { nth, ..FIRST }
}

#[test]
fn a_change_is_shown_and_told_and_kept_by_the_next_leader() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { metadata: shade("red"), priority: 1, ..Submit::new(3) });
    let changes = Changes {
        priority: Some(7),
        metadata_set: shade("blue"),
        attempts_max: Some(9),
        on_failure: Some(OnFailure::Continue),
        ..Changes::pausing(true)
    };
    let traits = Traits { priority: 7, metadata: shade("blue"), paused: true, is_plain: true };
    let expected = Applied {
        outcome: Outcome::Changed,
        effects: vec![Effect::Changed { submission, traits: traits.clone() }],
    };
    assert_eq!(leader.apply(change(submission, changes)), expected);

    for _ in ["before the change of leaders", "after it"] {
        let view = leader.machine.show(submission).unwrap();
        assert_eq!((view.about.priority, view.about.metadata, view.paused), (7, shade("blue"), true));
        assert_eq!((view.submission.attempts_max, view.submission.on_failure), (9, OnFailure::Continue));
        let unsettled: Vec<Traits> = leader.machine.unsettled().map(|it| it.traits).collect();
        assert_eq!(unsettled, std::slice::from_ref(&traits));
        leader.change();
    }
}

#[test]
fn asking_for_what_is_so_already_changes_no_row_and_tells_nobody() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { metadata: shade("red"), priority: 1, ..Submit::new(1) });
    leader.apply(change(submission, Changes::pausing(true)));
    let rows = leader.machine.tables().clone();
    for changes in [
        Changes::pausing(true),
        Changes { priority: Some(1), metadata_set: shade("red"), ..Changes::default() },
        Changes { metadata_remove: vec!["never-there".into()], ..Changes::default() },
        Changes { attempts_max: Some(5), on_failure: Some(OnFailure::Stop), ..Changes::default() },
    ] {
        let applied = leader.apply(change(submission, changes));
        assert_eq!(applied, Applied { outcome: Outcome::Changed, effects: Vec::new() });
    }
    assert_eq!(leader.machine.tables(), &rows);
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let mut leader = Leader::new();
    let fields = |numbers: std::ops::Range<i64>| -> Metadata {
        numbers.map(|n| (format!("f{n}"), MetaValue::Integer(n))).collect()
    };
    let submission = leader.submit(Submit { metadata: fields(0..32), ..Submit::new(1) });
    let over = leader.submit(Submit::new(1));
    leader.cancel(over);
    let unknown = SubmissionId::from_u64(7).unwrap();
    let rows = leader.machine.tables().clone();

    let state = SubmissionState::Cancelled;
    for (submission, refusal) in [
        (unknown, Refusal::SubmissionUnknown { submission: unknown }),
        (over, Refusal::SubmissionOver { submission: over, state }),
    ] {
        assert_eq!(leader.apply(change(submission, Changes::pausing(true))), Applied::refused(refusal));
    }
    for changes in [
        Changes::default(),
        Changes { metadata_set: fields(32..33), ..Changes::pausing(true) },
        Changes { attempts_max: Some(0), ..Changes::pausing(true) },
    ] {
        let refused = leader.apply(change(submission, changes)).outcome;
        assert!(matches!(refused, Outcome::Refused(Refusal::Malformed { .. })), "{refused:?}");
    }
    assert_eq!(leader.machine.tables(), &rows);

    let makes_room =
        Changes { metadata_set: fields(32..33), metadata_remove: vec!["f0".into()], ..Changes::default() };
    assert_eq!(leader.apply(change(submission, makes_room)).outcome, Outcome::Changed);
    assert_eq!(leader.machine.show(submission).unwrap().about.metadata, fields(1..33));
}

#[test]
fn fewer_attempts_than_a_chunk_has_failed_count_from_its_next_failure_on() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { attempts_max: 5, ..Submit::new(2) });
    for nth in 0..3 {
        leader.fail(chunk(submission, 0), attempt(nth));
    }
    leader.apply(change(submission, Changes { attempts_max: Some(2), ..Changes::default() }));
    let state = |leader: &Leader| leader.machine.show(submission).map(|it| it.state);
    assert_eq!(state(&leader), Some(SubmissionState::Running), "it may be tried once more");
    leader.fail(chunk(submission, 1), attempt(0));
    assert_eq!(state(&leader), Some(SubmissionState::Running), "the other one has an attempt left");
    leader.fail(chunk(submission, 0), attempt(3));
    assert_eq!(state(&leader), Some(SubmissionState::Failed));
}

#[test]
fn stopping_on_failure_counts_from_the_next_chunk_that_fails_for_good() {
    let mut leader = Leader::new();
    let submission =
        leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Continue, ..Submit::new(4) });
    leader.fail(chunk(submission, 0), FIRST);
    let stop = Changes { on_failure: Some(OnFailure::Stop), ..Changes::default() };
    leader.apply(change(submission, stop));
    assert_eq!(leader.complete(chunk(submission, 1), FIRST), Settled::Accepted);
    leader.fail(chunk(submission, 2), FIRST);
    let view = leader.machine.show(submission).unwrap();
    assert_eq!((view.state, view.submission.counts.unsettled()), (SubmissionState::Failed, 1));
}

#[test]
fn what_is_out_of_a_paused_submission_may_be_completed_and_a_new_round_is_not_paused() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { attempts_max: 1, ..Submit::new(2) });
    leader.apply(change(submission, Changes::pausing(true)));
    assert_eq!(leader.complete(chunk(submission, 0), FIRST), Settled::Accepted);
    leader.fail(chunk(submission, 1), FIRST);
    let view = leader.machine.show(submission).unwrap();
    assert_eq!((view.state, view.paused), (SubmissionState::Failed, false), "what is over is not paused");
    assert_eq!(leader.rows(Table::Traits), 0);

    assert_eq!(leader.retry_failed(submission), Outcome::Retried { chunks: 1 });
    assert!(!leader.machine.show(submission).unwrap().paused);
    assert_eq!(leader.reserver.ready_len(), 1);
}

#[test]
fn a_round_that_a_paused_submission_gets_while_it_runs_leaves_it_paused() {
    let mut leader = Leader::new();
    let submission =
        leader.submit(Submit { attempts_max: 1, on_failure: OnFailure::Continue, ..Submit::new(2) });
    leader.fail(chunk(submission, 0), FIRST);
    leader.apply(change(submission, Changes::pausing(true)));
    leader.retry_failed(submission);
    assert!(leader.machine.show(submission).unwrap().paused);
    leader.apply(change(submission, Changes::pausing(false)));
    assert!(!leader.machine.show(submission).unwrap().paused);
    assert_eq!(leader.reserver.ready_len(), 2);
}

#[test]
fn a_submit_that_is_repeated_after_a_change_is_still_the_same_request() {
    let mut leader = Leader::new();
    let keyed = Submit { idempotency_key: Some("order 17".into()), metadata: shade("red"), ..Submit::new(3) };
    let submission = leader.submit(keyed.clone());
    leader.apply(change(submission, Changes { metadata_set: shade("blue"), ..Changes::default() }));
    assert_eq!(leader.submit(keyed), submission);
}

#[test]
fn a_walk_meets_what_was_there_once_and_nothing_that_comes_in_meanwhile() {
    let mut leader = Leader::new();
    let submit = || Submit { metadata: shade("red"), attempts_max: 1, ..Submit::new(1) };
    let there: Vec<SubmissionId> = (0..6).map(|_| leader.submit(submit())).collect();
    for id in &there[..3] {
        leader.fail(chunk(*id, 0), FIRST);
    }
    for metadata in [Metadata::new(), shade("red")] {
        let selection = Selection { standing: SelectedStanding::Any, metadata };
        let (mut met, mut came, mut below) = (Vec::new(), Vec::new(), None);
        for step in 0.. {
            let page = leader.machine.select(&selection, below, 1);
            met.extend(page.items);
            below = page.next;
            if below.is_none() {
                break;
            }
            // The failed go on, the running end, and new ones come in, on both sides of the walk.
            came.push(leader.submit(submit()));
            let id = there[step % there.len()];
            match leader.machine.show(id).map(|it| it.state) {
                Some(SubmissionState::Running) => drop(leader.fail(chunk(id, 0), of_round(&leader, id))),
                Some(_) => drop(leader.retry_failed(id)),
                None => panic!("it was there"),
            }
        }
        let older: Vec<SubmissionId> = met.iter().copied().filter(|id| there.contains(id)).collect();
        assert_eq!(older, there.iter().rev().copied().collect::<Vec<_>>(), "each once, newest first");
        assert!(met.windows(2).all(|pair| pair[0] > pair[1]), "none twice");
        assert!(came.iter().all(|id| !met.contains(id)), "none that came in meanwhile");
    }
}

fn of_round(leader: &Leader, id: SubmissionId) -> Attempt {
    let round = leader.machine.show(id).map_or(0, |it| it.submission.round);
    attempt(u64::from(round) << 32)
}
