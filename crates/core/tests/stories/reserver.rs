//! Stories of reservations: lost, late, released, re-asserted, poisoned.

use crate::leader::{BEGIN, Leader, chunk};
use windlass_core::batch::chunks::OutputKind;
use windlass_core::batch::listing::ChunkState;
use windlass_core::batch::reserver::{Holder, LostTooOften, SessionId, Standing};
use windlass_core::batch::submissions::{OnFailure, Submit};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::{Effect, Settled};
use windlass_core::ids::{Attempt, ChunkIndex, Epoch, SubmissionId};
use windlass_core::limits::LOSS_DELAY_MS;

const ANNA: SessionId = SessionId(1);
const BERT: SessionId = SessionId(2);

fn lenient(chunks: u64, attempts_max: u32) -> Submit {
    Submit { attempts_max, on_failure: OnFailure::Continue, ..Submit::new(chunks) }
}

fn accepted_attempt(leader: &Leader, submission: SubmissionId, index: u64) -> Option<Attempt> {
    let results = leader.machine.results(submission, ChunkIndex(index), 1).expect("the submission exists");
    match &results[0].state {
        ChunkState::Done { attempt, output: OutputKind::Stored, inline: None } => Some(*attempt),
        _ => None,
    }
}

#[test]
fn the_failure_of_a_lost_reservation_is_not_counted_and_does_not_release_the_others() {
    let mut leader = Leader::new();
    let submission = leader.submit(lenient(1, 3));
    let (name, annas) = leader.reserve_one(ANNA);
    assert_eq!(leader.reserver.lose_session(ANNA, leader.now), []);
    let (_, berts) = leader.reserve_one(BERT);

    // The shell asks before it proposes, and proposes only what holds.
    assert_eq!(leader.reserver.standing(name, annas), Standing::Lost);
    assert_eq!(leader.reserver.release(name, annas), Standing::Lost);
    assert_eq!(leader.reserver.extend(name, annas, leader.now), Standing::Lost);
    assert_eq!(leader.reserver.reassert(ANNA, name, annas), Standing::Lost);
    assert_eq!(leader.reserver.standing(name, berts), Standing::Holds);
    assert_eq!(leader.machine.show(submission).map(|it| it.submission.failures), Some(0));
}

#[test]
fn a_failure_that_was_on_its_way_when_the_reservation_was_lost_leaves_the_new_one_in_peace() {
    let mut leader = Leader::new();
    leader.submit(lenient(1, 3));
    let (name, annas) = leader.reserve_one(ANNA);
    leader.reserver.lose_session(ANNA, leader.now);
    let (_, berts) = leader.reserve_one(BERT);
    assert_eq!(leader.fail(name, annas.attempt), Settled::Accepted);
    assert_eq!(leader.reserver.standing(name, berts), Standing::Holds);
    assert_eq!(leader.complete(name, berts.attempt), Settled::Accepted);
}

/// A chunk that failed for good stayed out with its second holder, and went round again when that one vanished.
#[test]
fn a_chunk_that_fails_for_good_is_taken_from_whoever_got_it_while_the_failure_was_on_its_way() {
    let mut leader = Leader::new();
    let submission = leader.submit(lenient(2, 1));
    let (name, annas) = leader.reserve_one(ANNA);
    leader.reserver.lose_session(ANNA, leader.now);
    assert_eq!(leader.reserve(BERT, 2).len(), 2);
    assert_eq!(leader.fail(name, annas.attempt), Settled::Accepted);
    assert_eq!(leader.reserver.out_len(), 1);
    leader.reserver.lose_session(BERT, leader.now);
    let again: Vec<_> = leader.reserve(ANNA, 2).into_iter().map(|(name, _)| name).collect();
    assert_eq!(again, [chunk(submission, 1)]);
}

#[test]
fn the_late_completion_of_a_lost_reservation_counts_if_it_is_first() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit::new(2));
    let (name, annas) = leader.reserve_one(ANNA);
    leader.reserver.lose_session(ANNA, leader.now);
    leader.reserve_one(BERT);
    let (again, berts) = leader.reserve_one(BERT);
    assert_eq!(again, name);
    assert_eq!(leader.complete(name, annas.attempt), Settled::Accepted);
    assert_eq!(leader.reserver.standing(name, berts), Standing::Settled);
    assert_eq!(leader.complete(name, berts.attempt), Settled::AlreadyDone);
    assert_eq!(accepted_attempt(&leader, submission, 0), Some(annas.attempt));
}

#[test]
fn a_late_completion_changes_nothing_if_it_is_second_and_the_first_output_stays() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit::new(2));
    let (name, annas) = leader.reserve_one(ANNA);
    leader.reserver.lose_session(ANNA, leader.now);
    leader.reserve_one(BERT);
    let (_, berts) = leader.reserve_one(BERT);
    assert_eq!(leader.complete(name, berts.attempt), Settled::Accepted);
    let rows = leader.machine.tables().clone();
    assert_eq!(leader.complete(name, annas.attempt), Settled::AlreadyDone);
    assert_eq!(leader.fail(name, annas.attempt), Settled::AlreadyDone);
    assert_eq!(leader.machine.tables(), &rows);
    assert_eq!(accepted_attempt(&leader, submission, 0), Some(berts.attempt));
}

#[test]
fn a_poison_chunk_waits_twice_as_long_each_time_and_never_goes_back_on_top() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { retry_delay_ms: 1_000, ..lenient(10, 4) });
    let poison = chunk(submission, 0);
    for wait_ms in [1_000, 2_000, 4_000] {
        let mut all = leader.reserve(ANNA, 10);
        let was_tried = wait_ms > 1_000;
        let at = if was_tried { all.len() - 1 } else { 0 };
        let (name, token) = all.remove(at);
        assert_eq!(name, poison, "it goes out behind all others once it has failed");
        assert_eq!(leader.fail(poison, token.attempt), Settled::Accepted);
        for (name, token) in all {
            assert_eq!(leader.reserver.release(name, token), Standing::Holds);
        }
        leader.wait_ms(wait_ms - 1);
        assert_eq!(
            (leader.reserver.ready_len(), leader.reserver.delayed_len()),
            (9, 1),
            "before {wait_ms} ms"
        );
        leader.wait_ms(1);
        assert_eq!(
            (leader.reserver.ready_len(), leader.reserver.delayed_len()),
            (10, 0),
            "after {wait_ms} ms"
        );
    }
    let (name, token) = leader.reserve(ANNA, 10).pop().unwrap();
    assert_eq!((name, leader.fail(poison, token.attempt)), (poison, Settled::Accepted));
    let counts = leader.machine.show(submission).unwrap().submission.counts;
    assert_eq!((counts.failed, counts.unsettled()), (1, 9), "its four attempts are used up");
}

#[test]
fn a_poison_chunk_stays_behind_the_others_under_a_new_leader_too() {
    let mut leader = Leader::new();
    let submission = leader.submit(lenient(3, 3));
    let (name, token) = leader.reserve_one(ANNA);
    leader.fail(name, token.attempt);
    leader.change();
    assert_eq!((leader.reserver.ready_len(), leader.reserver.delayed_len()), (2, 1));
    leader.wait_ms(1_000);
    let order: Vec<_> = leader.reserve(ANNA, 3).into_iter().map(|(name, _)| name.chunk.0).collect();
    assert_eq!(order, [1, 2, 0]);
    assert_eq!(name, chunk(submission, 0));
}

#[test]
fn a_chunk_whose_consumers_vanish_three_times_is_reported_and_waits_for_its_failure_to_count() {
    let mut leader = Leader::new();
    leader.submit(lenient(1, 3));
    for nth in 0..2 {
        let (_, token) = leader.reserve_one(ANNA);
        assert_eq!(token.attempt, Attempt { epoch: Epoch(1), nth });
        assert_eq!(leader.reserver.lose_session(ANNA, leader.now), []);
        assert_eq!(leader.reserver.ready_len(), 1, "a consumer may vanish for reasons of its own");
    }
    let until = leader.now.after_ms(500);
    let lost = leader.reserve_as(Holder::Lease { until }, 1);
    let [(name, token)] = lost[..] else { panic!("one chunk is ready") };
    leader.now = until;
    let expected = LostTooOften { chunk: name, attempt: token.attempt, losses: 3 };
    assert_eq!(leader.reserver.tick(leader.now), [expected]);
    assert_eq!((leader.reserver.ready_len(), leader.reserver.delayed_len()), (0, 1));
    assert_eq!(leader.reserver.next_tick(), Some(leader.now.after_ms(LOSS_DELAY_MS)));

    // The failure is counted before that time is over, and the chunk waits as any failed one does.
    leader.wait_ms(LOSS_DELAY_MS / 2);
    assert_eq!(leader.fail(name, token.attempt), Settled::Accepted);
    assert_eq!(leader.reserver.next_tick(), Some(leader.now.after_ms(1_000)));
    assert_eq!(leader.reserver.delayed_len(), 1);
}

#[test]
fn a_loss_whose_failure_never_came_through_the_log_does_not_keep_the_chunk_for_ever() {
    let mut leader = Leader::new();
    leader.submit(lenient(1, 3));
    for _ in 0..3 {
        leader.reserve_one(ANNA);
        leader.reserver.lose_session(ANNA, leader.now);
    }
    assert_eq!(leader.reserve(BERT, 1), []);
    leader.wait_ms(LOSS_DELAY_MS);
    assert_eq!(leader.reserve(BERT, 1).len(), 1);
}

#[test]
fn a_release_gives_the_chunk_back_unharmed() {
    let mut leader = Leader::new();
    let submission = leader.submit(lenient(3, 1));
    let rows = leader.machine.tables().clone();
    for nth in 0..10 {
        let (name, token) = leader.reserve_one(ANNA);
        assert_eq!(
            (name, token.attempt.nth),
            (chunk(submission, 0), nth),
            "it is next again, as another attempt"
        );
        assert_eq!(leader.reserver.release(name, token), Standing::Holds);
        assert_eq!(leader.reserver.release(name, token), Standing::Lost, "it can be given back once");
    }
    assert_eq!(leader.reserver.ready_len(), 3);
    assert_eq!(leader.machine.tables(), &rows, "nothing of it is logged");
}

#[test]
fn a_consumer_that_comes_back_keeps_its_work_if_nobody_else_has_it() {
    let mut leader = Leader::new();
    leader.submit(Submit::new(1));
    let (name, token) = leader.reserve_one(ANNA);
    leader.change();
    assert_eq!(leader.reserver.ready_len(), 1);
    assert_eq!(leader.reserver.reassert(ANNA, name, token), Standing::Holds);
    assert_eq!(leader.reserve(BERT, 1), []);
    assert_eq!(leader.complete(name, token.attempt), Settled::Accepted);
    assert_eq!(leader.reserver.reassert(ANNA, name, token), Standing::Settled);
}

#[test]
fn a_token_that_was_never_handed_out_is_good_for_nothing() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit::new(2));
    let (name, token) = leader.reserve_one(ANNA);
    let guessed = AttemptToken { proof: token.proof ^ 1, ..token };
    let of_another_attempt = AttemptToken { attempt: Attempt { nth: 1, ..token.attempt }, ..token };
    for (name, forged) in [(name, guessed), (name, of_another_attempt), (chunk(submission, 1), token)] {
        assert_eq!(leader.reserver.standing(name, forged), Standing::Forged);
        assert_eq!(leader.reserver.reassert(BERT, name, forged), Standing::Forged);
        assert_eq!(leader.reserver.extend(name, forged, BEGIN), Standing::Forged);
        assert_eq!(leader.reserver.release(name, forged), Standing::Forged);
    }
    assert_eq!(leader.reserver.standing(name, token), Standing::Holds);
}

/// The machine counts failures by the order of attempts. Whoever came back with an attempt older than one that has
/// failed since is told so, and the shell gives the chunk back: no effect does.
#[test]
fn the_failure_of_an_attempt_older_than_one_that_failed_is_not_counted_and_its_reservation_is_released() {
    let mut leader = Leader::new();
    let submission = leader.submit(lenient(1, 3));
    let (name, annas) = leader.reserve_one(ANNA);
    leader.reserver.lose_session(ANNA, leader.now);
    let (_, berts) = leader.reserve_one(BERT);
    leader.fail(name, berts.attempt);
    assert_eq!(leader.reserver.reassert(ANNA, name, annas), Standing::Lost, "it waits for its retry");
    leader.wait_ms(1_000);
    assert_eq!(leader.reserver.reassert(ANNA, name, annas), Standing::Holds);

    assert_eq!(leader.fail(name, annas.attempt), Settled::AlreadyFailed);
    assert_eq!(leader.machine.show(submission).map(|it| it.submission.failures), Some(1));
    assert_eq!(leader.reserver.release(name, annas), Standing::Holds);
    assert_eq!(leader.reserve(BERT, 1).len(), 1);
}

#[test]
fn a_retry_of_the_failed_makes_ready_what_waits_and_leaves_out_what_is_out() {
    let mut leader = Leader::new();
    let submission = leader.submit(Submit { retry_delay_ms: 60_000, ..lenient(4, 2) });
    let all = leader.reserve(ANNA, 3);
    let [(failing, first), (waiting, token), (out, held)] = all[..] else {
        panic!("three of four are handed out")
    };
    leader.fail(failing, first.attempt);
    leader.wait_ms(60_000);
    let (_, second) = leader.reserve(BERT, 2).pop().unwrap();
    leader.fail(failing, second.attempt);
    leader.fail(waiting, token.attempt);
    assert_eq!((leader.reserver.out_len(), leader.reserver.delayed_len()), (2, 1));

    leader.retry_failed(submission);
    assert_eq!((leader.reserver.ready_len(), leader.reserver.delayed_len()), (2, 0));
    assert_eq!(leader.reserver.standing(out, held), Standing::Holds);
    let attempts: Vec<_> =
        leader.reserve(BERT, 9).into_iter().map(|(name, it)| (name, it.attempt.nth >> 32)).collect();
    assert_eq!(attempts, [(failing, 1), (waiting, 1)], "attempts of a new round have new numbers");
}

#[test]
fn an_effect_that_is_absorbed_twice_changes_nothing_more() {
    let mut leader = Leader::new();
    leader.submit(lenient(3, 2));
    let (name, token) = leader.reserve_one(ANNA);
    leader.reserve_one(ANNA);
    leader.fail(name, token.attempt);
    let counts = leader.machine.show(name.submission).unwrap().submission.counts;
    let again = Effect::Failed {
        submission: name.submission,
        chunk: name.chunk,
        attempt: token.attempt,
        retry_at: Some(leader.now.after_ms(1_000)),
        counts,
    };
    leader.reserver.absorb(&again);
    let lens = (leader.reserver.ready_len(), leader.reserver.out_len(), leader.reserver.delayed_len());
    assert_eq!(lens, (1, 1, 1));
}
