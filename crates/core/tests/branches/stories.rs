//! What branches do, and what others got wrong: each story is a promise of the room, or a defect that was reported elsewhere.

use crate::generator::{digest_of, pages};
use crate::leader::{Leader, announce, putting, stage};
use std::collections::BTreeMap;
use windlass_core::branches::commits::{Abort, Announce, CommitState};
use windlass_core::branches::listing::{From, log_of, staged_page};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::staging::{Condition, Grant, Granted, Stage, StageChange};
use windlass_core::entry::{Applied, Command, Effect, Entry, Outcome, Refusal};
use windlass_core::ids::{SenderId, SubmissionId};
use windlass_core::limits::{COMMITS_WAITING_MAX, STAGED_ROWS_PER_SWEEP_MAX, STAGING_AREAS_MAX};
use windlass_core::tables::{Table, Tables, Walk};

fn refused(refusal: Refusal) -> Outcome {
    Outcome::Refused(refusal)
}

fn aborting(request: SubmissionId) -> Command {
    Command::Abort(Abort { request, reason: "a check said no".into() })
}

fn removing(path: &str) -> StageChange {
    StageChange { entry: None, ..putting(path, "x") }
}

#[test]
fn what_is_put_is_seen_when_it_is_committed_and_not_before() {
    let mut leader = Leader::new();
    let a = leader.put("main", "a");
    let b = leader.put("main", "b");
    let request = leader.announce("main");
    let later = leader.put("main", "a");
    assert_eq!(leader.seen("main"), BTreeMap::new());
    let Ok(Command::Perform(perform)) = leader.generated(request, 1) else { panic!("it is generated") };
    let commit = perform.id;
    let applied = leader.perform_so(Command::Perform(perform));
    let effects = vec![Effect::CommitEnded { request }, Effect::AreasDropped];
    assert_eq!(applied, Applied { outcome: Outcome::Committed { commit }, effects });
    assert_eq!(leader.seen("main"), BTreeMap::from([("a".into(), a), ("b".into(), b.clone())]));
    leader.commit("main");
    assert_eq!(leader.seen("main"), BTreeMap::from([("a".into(), later), ("b".into(), b)]));
}

/// lakeFS #10466: areas that were sealed for a commit which died were never reclaimed, and every read went through them.
#[test]
fn what_a_dead_committer_sealed_is_committed_by_its_successor_or_taken_along_by_the_next_commit() {
    let mut leader = Leader::new();
    let old = leader.put("main", "a");
    let b = leader.put("main", "b");
    let dead = leader.announce("main");
    leader.note(dead, "ranges/1");
    leader.lead();
    assert_eq!(leader.branch("main").queue[0].request, dead, "the successor finds what is due");
    leader.apply(aborting(dead));
    assert!(leader.garbage().contains("ranges/1"));

    let new = leader.put("main", "a");
    let commit = leader.commit("main");
    assert_eq!(leader.seen("main"), BTreeMap::from([("a".into(), new), ("b".into(), b)]));
    assert!(leader.branch("main").sealed.is_empty());
    assert_eq!(leader.branch("main").head, Some(commit));
    leader.sweep();
    assert_eq!(leader.staged(), []);
    assert!(leader.garbage().contains(&old), "what a newer area of the same commit outdid is garbage");
}

/// lakeFS #4067, #8288: of fifty committers some were refused, others came last again and again.
#[test]
fn fifty_committers_are_served_in_the_order_in_which_they_came_and_each_is_generated_once() {
    let mut leader = Leader::new();
    let requests: Vec<SubmissionId> = (0..50)
        .map(|nth| {
            leader.put("main", &format!("by {nth:02}"));
            leader.announce("main")
        })
        .collect();
    let early = leader.generated(requests[7], 3).unwrap();
    assert_eq!(leader.answer(early), refused(Refusal::NotItsTurn { request: requests[7] }));
    for (nth, request) in requests.iter().enumerate() {
        let applied = leader.perform(*request);
        let due =
            requests.get(nth + 1).map(|next| Effect::CommitDue { branch: "main".into(), request: *next });
        assert_eq!(applied.effects.last(), due.as_ref().or(Some(&Effect::AreasDropped)));
        assert_eq!(
            leader.seen("main").len(),
            nth + 1,
            "each commits what it found, and nothing of later ones"
        );
    }
    let log = log_of(leader.machine.tables(), leader.branch("main").head, 100);
    let order: Vec<SubmissionId> = log.iter().rev().map(|(_, commit)| commit.request).collect();
    assert_eq!(order, requests);
    assert!(
        log.windows(2).all(|pair| pair[0].1.parent == Some(pair[1].0)),
        "each one's parent is the one before"
    );
}

/// lakeFS #9365: whether an empty commit was taken depended on who came first.
#[test]
fn an_empty_commit_is_a_decision_and_not_the_outcome_of_a_race() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let (first, empty) = (leader.announce("main"), leader.announce("main"));
    let if_changed = Announce { if_changed: true, ..announce("main") };
    let problem = "nothing is staged on branch `main` that no commit has taken".to_owned();
    let answer = leader.answer(Command::Announce(if_changed.clone()));
    assert_eq!(answer, refused(Refusal::Malformed { problem }));
    leader.committed(first);
    let before = leader.seen("main");
    leader.committed(empty);
    assert_eq!(leader.seen("main"), before);
    let head = leader.branch("main").head;
    let counts = log_of(leader.machine.tables(), head, 1)[0].1.counts;
    assert_eq!((counts.entries, counts.added, counts.changed, counts.removed), (1, 0, 0, 0));

    // What an aborted commit leaves behind has changed since the head, so it counts.
    leader.put("main", "b");
    let aborted = leader.announce("main");
    leader.apply(aborting(aborted));
    leader.announce_so(if_changed);
}

/// lakeFS: the second try of a conditional write saw its own first one, and said that the condition does not hold.
#[test]
fn a_conditional_put_that_is_repeated_after_the_token_changed_is_answered_as_before() {
    let mut leader = Leader::new();
    let token = leader.branch("main").open;
    let address = leader.grant();
    let absent = StageChange { condition: Condition::Absent, ..putting("a", &address) };
    let put = Stage {
        token: Some(token),
        idempotency_key: Some("put a".into()),
        ..stage("main", vec![absent.clone()])
    };
    assert_eq!(leader.answer(Command::Stage(put.clone())), Outcome::Staged { token });
    let request = leader.announce("main");
    assert_eq!(leader.answer(Command::Stage(put.clone())), Outcome::Staged { token });
    leader.committed(request);
    leader.restart();
    assert_eq!(leader.answer(Command::Stage(put.clone())), Outcome::Staged { token });

    // Another request is another matter: the leader looks into the head, and the head says no.
    let (head, sha256) = (leader.branch("main").head, digest_of(address.as_bytes()));
    let other = leader.grant();
    let change = StageChange { in_head: Some(sha256), ..StageChange { path: "a".into(), ..absent } };
    let change = StageChange { entry: putting("a", &other).entry, ..change };
    let put = Stage { head, ..stage("main", vec![change.clone()]) };
    let failed = Refusal::ConditionFailed { path: "a".into(), found: Some(sha256) };
    assert_eq!(leader.answer(Command::Stage(put)), refused(failed));
    let looked_too_early = stage("main", vec![change]);
    let moved = Refusal::HeadMoved { branch: "main".into() };
    assert_eq!(leader.answer(Command::Stage(looked_too_early)), refused(moved));
}

#[test]
fn every_condition_is_decided_on_what_is_staged_before_what_is_committed() {
    let mut leader = Leader::new();
    let a = leader.put("main", "a");
    let is = |address: &str| Condition::Is(digest_of(address.as_bytes()));
    let mut check = |condition, is_held: bool| {
        let change = StageChange { condition, ..removing("a") };
        let held = leader.answer(Command::Stage(stage("main", vec![change])));
        assert_eq!(matches!(held, Outcome::Staged { .. }), is_held, "{condition:?}: {held:?}");
    };
    check(Condition::Absent, false);
    check(is("something else"), false);
    check(is(&a), true);
    check(is(&a), false);
    check(Condition::Present, false);
    check(Condition::Absent, true);
}

#[test]
fn a_writer_with_an_old_token_is_told_the_newest_and_goes_on_with_it() {
    let mut leader = Leader::new();
    let old = leader.branch("main").open;
    leader.put("main", "a");
    leader.announce("main");
    let newest = leader.branch("main").open;
    let address = leader.grant();
    let put = Stage { token: Some(old), ..stage("main", vec![putting("b", &address)]) };
    let stale = Refusal::TokenStale { branch: "main".into(), newest };
    assert_eq!(leader.answer(Command::Stage(put.clone())), refused(stale));
    let again = Stage { token: Some(newest), ..put };
    assert_eq!(leader.answer(Command::Stage(again)), Outcome::Staged { token: newest });
}

#[test]
fn announcing_again_and_again_adds_no_areas_and_ends_at_a_limit() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let keyed = Announce { idempotency_key: Some("nightly".into()), ..announce("main") };
    let first = leader.announce_so(keyed.clone());
    assert_eq!(leader.announce_so(keyed), first);
    leader.is_audited = false;
    for _ in 1..COMMITS_WAITING_MAX {
        leader.announce("main");
    }
    assert_eq!(leader.branch("main").sealed.len(), 1);
    let full = refused(Refusal::TooManyCommits { branch: "main".into() });
    assert_eq!(leader.answer(Command::Announce(announce("main"))), full);
    leader.committed(first);
    leader.announce("main");
}

#[test]
fn a_branch_full_of_aborted_areas_takes_no_more_of_them_and_can_still_be_committed() {
    let mut leader = full_of_aborted_areas();
    leader.commit("main");
    assert_eq!(leader.seen("main").len(), 10);
    leader.sweep();
    assert_eq!(leader.staged(), []);
    assert_eq!(leader.garbage().len(), STAGING_AREAS_MAX - 10, "all that was outdone");

    let mut leader = full_of_aborted_areas();
    leader.put("main", "one more");
    let full = refused(Refusal::TooManyCommits { branch: "main".into() });
    assert_eq!(leader.answer(Command::Announce(announce("main"))), full);
    leader.reset("main");
    leader.put("main", "anew");
    leader.commit("main");
    assert_eq!(leader.seen("main").into_keys().collect::<Vec<_>>(), ["anew"]);
}

fn full_of_aborted_areas() -> Leader {
    let mut leader = Leader::new();
    leader.is_audited = false;
    for nth in 0..STAGING_AREAS_MAX {
        leader.put("main", &format!("{}", nth % 10));
        let request = leader.announce("main");
        leader.apply(aborting(request));
    }
    leader
}

/// The log may deliver twice, and clients repeat.
#[test]
fn a_command_that_is_delivered_twice_changes_nothing_the_second_time() {
    let mut leader = Leader::new();
    let address = leader.grant();
    let twice = |leader: &mut Leader, command: Command| {
        let entry = leader.entry(command);
        let first = leader.apply_entry(&entry);
        // Others come in between, so that the machine cannot know by the token alone.
        let other = Entry { sender: SenderId(2), ..leader.entry(Command::Grant(Grant { addresses: 1 })) };
        leader.apply_entry(&other);
        let address = leader.grant();
        let put = stage("main", vec![putting("between", &address)]);
        let between = Entry { sender: SenderId(2), ..leader.entry(Command::Stage(put)) };
        leader.apply_entry(&between);
        let before = leader.machine.tables().clone();
        let again = leader.apply_entry(&entry).outcome;
        assert!(again == first.outcome || again == Outcome::Refused(Refusal::Repeated), "{again:?}");
        assert_eq!(*leader.machine.tables(), before, "{:?}", entry.command);
        first.outcome
    };
    let absent = StageChange { condition: Condition::Absent, ..putting("a", &address) };
    twice(&mut leader, Command::Stage(stage("main", vec![absent])));
    let Outcome::Announced { request, .. } = twice(&mut leader, Command::Announce(announce("main"))) else {
        panic!("the commit waits")
    };
    let perform = leader.generated(request, 3).unwrap();
    leader.perform_so(perform.clone());
    twice(&mut leader, perform);
    let request = leader.announce("main");
    twice(&mut leader, aborting(request));
    twice(&mut leader, Command::Sweep);
    twice(&mut leader, Command::ResetBranch(NameBranch { name: "main".into() }));
}

#[test]
fn a_branch_that_was_created_anew_is_not_deleted_by_the_old_deletion_delivered_again() {
    let mut leader = Leader::new();
    let delete = leader.entry(Command::DeleteBranch(NameBranch { name: "main".into() }));
    assert_eq!(leader.apply_entry(&delete).outcome, Outcome::BranchDeleted);
    leader.create("main");
    assert_eq!(leader.apply_entry(&delete), Applied::refused(Refusal::Repeated));
    leader.put("main", "a");
}

/// A log that delivers a stretch again delivers several requests of one sender, after others of another.
#[test]
fn several_requests_that_are_delivered_again_in_a_row_are_all_known() {
    let mut leader = Leader::new();
    let announces: Vec<Entry> = (0..3).map(|_| leader.entry(Command::Announce(announce("main")))).collect();
    for entry in &announces {
        leader.apply_entry(entry);
    }
    let other = Entry { sender: SenderId(2), ..leader.entry(Command::Announce(announce("main"))) };
    leader.apply_entry(&other);
    for _ in ["in the same process", "in the next one"] {
        for entry in &announces {
            assert_eq!(leader.apply_entry(entry), Applied::refused(Refusal::Repeated));
        }
        leader.restart();
    }
    assert_eq!(leader.branch("main").queue.len(), 4);
}

#[test]
fn a_reset_throws_away_what_no_commit_took_and_leaves_what_waits() {
    let mut leader = Leader::new();
    let taken = leader.put("main", "a");
    let request = leader.announce("main");
    let thrown = leader.put("main", "a");
    leader.reset("main");
    leader.committed(request);
    leader.sweep();
    assert_eq!(leader.seen("main"), BTreeMap::from([("a".into(), taken)]));
    assert_eq!(leader.garbage().into_iter().collect::<Vec<_>>(), [thrown]);
}

#[test]
fn a_deleted_branch_aborts_what_waits_says_so_and_keeps_its_commits() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let commit = leader.commit("main");
    let thrown = leader.put("main", "b");
    let requests = [leader.announce("main"), leader.announce("main")];
    let late = leader.generated(requests[0], 3).unwrap();
    let applied = leader.delete("main");
    let mut effects: Vec<Effect> =
        requests.iter().map(|request| Effect::CommitEnded { request: *request }).collect();
    effects.push(Effect::AreasDropped);
    assert_eq!(applied, Applied { outcome: Outcome::BranchDeleted, effects });
    let reason = "branch `main` was deleted".to_owned();
    assert_eq!(
        requests.map(|request| leader.state_of(request)),
        [0; 2].map(|_| CommitState::Aborted(reason.clone()))
    );
    assert_eq!(leader.answer(late.clone()), Outcome::Aborted { reason: reason.clone() });

    let again = CreateBranch { name: "main".into(), from: Some(commit), idempotency_key: None };
    leader.apply(Command::CreateBranch(again));
    assert_eq!(leader.answer(late), Outcome::Aborted { reason }, "the branch of that name is another one");
    assert_eq!(leader.seen("main").len(), 1);
    leader.sweep();
    assert!(leader.garbage().contains(&thrown));
}

#[test]
fn a_commit_whose_parent_is_not_the_one_asked_for_is_aborted_and_what_it_sealed_stays_staged() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let parent = leader.commit("main");
    leader.put("main", "b");
    let other = leader.announce("main");
    leader.put("main", "c");
    let careful = leader.announce_so(Announce { if_parent: Some(parent), ..announce("main") });
    leader.committed(other);
    let outcome = leader.perform(careful).outcome;
    let reason = "the head of branch `main` is not the parent that was asked for".to_owned();
    assert_eq!(outcome, Outcome::Aborted { reason: reason.clone() });
    assert_eq!(leader.state_of(careful), CommitState::Aborted(reason));
    assert_eq!(leader.seen("main").len(), 2);
    leader.commit("main");
    assert_eq!(leader.seen("main").len(), 3);
}

#[test]
fn a_rollback_is_a_new_commit_with_what_the_old_one_held_and_leaves_what_is_staged() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let first = leader.commit("main");
    let before = leader.seen("main");
    leader.put("main", "a");
    leader.put("main", "b");
    let second = leader.commit("main");
    leader.put("main", "c");
    let request = leader.announce_so(Announce { rollback_to: Some(first), ..announce("main") });
    let third = leader.committed(request);
    assert_eq!(leader.seen("main"), before);
    let log: Vec<_> = log_of(leader.machine.tables(), Some(third), 9).into_iter().map(|(id, _)| id).collect();
    assert_eq!(log, [third, second, first]);
    assert_eq!(leader.branch("main").staged, 1);
    assert!(leader.garbage().is_empty(), "an older commit leads to all of it");
}

#[test]
fn a_file_that_a_commit_holds_is_no_garbage_though_another_request_for_it_was_given_up() {
    let mut leader = Leader::new();
    leader.create("side");
    let (kept, given_up) = (leader.announce("main"), leader.announce("side"));
    for request in [kept, given_up] {
        leader.note(request, "ranges/same content");
    }
    leader.apply(aborting(given_up));
    leader.committed(kept);
    assert!(leader.garbage().is_empty());
}

#[test]
fn a_refusal_changes_no_row_and_takes_no_id() {
    let mut leader = Leader::new();
    leader.put("main", "a");
    let key = Some("k".repeat(1_000));
    let name = || NameBranch { name: "nowhere".into() };
    let put = |path: &str| stage("main", vec![removing(path)]);
    let create = |name: &str, key| CreateBranch { name: name.into(), from: None, idempotency_key: key };
    let stranger = putting("b", "staged/0000000000000001/0");
    for command in [
        Command::Grant(Grant { addresses: 0 }),
        Command::Grant(Grant { addresses: 1_001 }),
        Command::ResetBranch(name()),
        Command::DeleteBranch(name()),
        Command::CreateBranch(create("main", None)),
        Command::CreateBranch(create("a//b", None)),
        Command::CreateBranch(create("other", key.clone())),
        Command::CreateBranch(create("other", Some(String::new()))),
        Command::Announce(announce("nowhere")),
        Command::Announce(Announce { idempotency_key: key.clone(), ..announce("main") }),
        Command::Stage(Stage { idempotency_key: key, ..put("b") }),
        Command::Stage(Stage { branch: "nowhere".into(), ..put("b") }),
        Command::Stage(stage("main", vec![])),
        Command::Stage(stage("main", vec![removing("b"), removing("b")])),
        Command::Stage(stage("main", vec![removing("b"), stranger])),
        Command::Stage(put("")),
        Command::Stage(put("../etc")),
        Command::Stage(put("a//b")),
        Command::Stage(put("a\0b")),
        Command::Stage(put(&"p".repeat(4_096))),
        aborting(SubmissionId::first()),
    ] {
        let mut entry = leader.entry(command);
        entry.at = leader.machine.at();
        let before = leader.machine.tables().clone();
        let outcome = leader.apply_entry(&entry).outcome;
        let Outcome::Refused(refusal) = outcome else {
            panic!("{:?} is refused, not {outcome:?}", entry.command)
        };
        assert!(refusal.to_string().len() > 20, "{refusal} says what to do");
        assert_eq!(*leader.machine.tables(), before, "{:?}", entry.command);
    }
}

#[test]
fn paths_in_any_script_are_told_apart_and_listed_in_the_order_of_their_bytes() {
    let mut leader = Leader::new();
    let mut paths = ["a", "a/b", "a b", "a\u{308}", "ä", "🦀/🦀", "\u{202e}txt", "...", &"p".repeat(1_024)];
    for path in paths {
        leader.put("main", path);
    }
    paths.sort_unstable();
    let open = leader.branch("main").open;
    for size in 0..5 {
        let listed: Vec<String> = pages(&leader.machine, &[open], size)
            .into_iter()
            .flat_map(|page| page.changes.into_iter().map(|(path, _)| path))
            .collect();
        assert_eq!(listed, paths, "in pages of {size}");
    }
    let scan = |table, range: windlass_core::tables::KeyRange<'_>| {
        leader.machine.tables().scan(table, range, Walk::Up)
    };
    let under_a = staged_page(&[open], "a/", From::At(""), 10, scan);
    assert_eq!(under_a.changes.len(), 1);
    let behind = staged_page(&[open], "a", From::After("a"), 10, scan);
    assert_eq!(behind.changes.len(), 3, "those that begin with `a`, behind `a` itself");
    assert_eq!(staged_page(&[open], "a", From::At("z"), 10, scan).changes, []);
    leader.commit("main");
    assert_eq!(leader.seen("main").len(), paths.len());
}

#[test]
fn a_large_area_is_swept_in_steps_and_goes_on_after_a_restart() {
    let mut leader = Leader::new();
    leader.is_audited = false;
    let count = 2 * STAGED_ROWS_PER_SWEEP_MAX + 100;
    for first in (0..count).step_by(100) {
        let changes = (first..first + 100).map(|nth| removing(&format!("{nth:06}"))).collect();
        leader.apply(Command::Stage(stage("main", changes)));
    }
    leader.reset("main");
    let mut steps = 0;
    while leader.answer(Command::Sweep) != (Outcome::Swept { areas: 0 }) {
        steps += 1;
        assert_eq!(leader.staged().len(), count - steps * STAGED_ROWS_PER_SWEEP_MAX);
        leader.restart();
    }
    assert_eq!((steps, leader.staged().len()), (2, 0));
    assert_eq!(leader.machine.tables().scan_prefix(Table::DroppedAreas, &[]).count(), 0);
}

#[test]
fn what_a_newer_area_outdid_is_garbage_though_the_areas_of_the_commit_are_swept_in_steps() {
    let mut leader = Leader::new();
    leader.is_audited = false;
    let mut areas = Vec::new();
    for _ in 0..3 {
        let Outcome::Granted { grant, .. } = leader.answer(Command::Grant(Grant { addresses: 900 })) else {
            panic!("addresses are granted")
        };
        let addresses: Vec<String> = (0..900).map(|nth| Granted { grant, nth }.address()).collect();
        let changes = (0..).zip(&addresses).map(|(nth, address)| putting(&format!("{nth:04}"), address));
        leader.apply(Command::Stage(stage("main", changes.collect())));
        let request = leader.announce("main");
        leader.apply(aborting(request));
        areas.push(addresses);
    }
    leader.commit("main");
    let mut steps = 1;
    while leader.answer(Command::Sweep) != (Outcome::Swept { areas: 0 }) {
        leader.restart();
        steps += 1;
    }
    assert!(steps > 2, "{steps} steps");
    let kept = areas.pop().expect("there are three");
    assert_eq!(leader.garbage(), areas.into_iter().flatten().collect());
    assert!(kept.iter().all(|address| leader.is_led_to(address)));
    assert_eq!(leader.staged(), []);
}
