//! Whatever callers ask of a branch at the same time, one order of what they asked explains every answer; also if the server
//! is killed in the middle. `WINDLASS_HISTORIES` sets how many are looked at, `WINDLASS_SEED` which.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::{StreamExt, stream};
use std::time::Duration;
use tempfile::TempDir;
use windlass_client::Client;
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port};
use windlass_tests::branches::client_of;
use windlass_tests::here::Here;
use windlass_tests::histories::Answered::{Done, Log, Refused, Unknown, Value, Whole};
use windlass_tests::histories::Asked::{Commit, CommitInVain, Get, List, Put, PutIf, Remove, Reset};
use windlass_tests::histories::Place::{Head, Staged};
use windlass_tests::histories::running::{Size, run};
use windlass_tests::histories::{Answered, Asked, History, Operation, Place, Verdict, explain};
use windlass_tests::setting;

/// Histories that come about at the same time.
const AT_ONCE: usize = 8;

/// When something was asked and answered, what, and with what.
type Told = (u64, u64, Asked, Answered);

/// A history of one path, or two, in which operations are asked and answered at these times.
fn history(operations: &[Told]) -> History {
    let operations = operations.iter().enumerate().map(|(caller, (began, ended, asked, answered))| {
        Operation { caller, began: *began, ended: *ended, asked: asked.clone(), answered: answered.clone() }
    });
    History { paths: 2, operations: operations.collect() }
}

fn is_explained(operations: &[Told]) -> bool {
    matches!(explain(&history(operations)), Verdict::Explained(_))
}

#[test]
fn one_after_the_other_is_explained_and_so_is_what_overlaps() {
    let put = |began, ended, value| put(began, ended, 0, value);
    assert!(is_explained(&[]));
    assert!(is_explained(&[
        put(1, 2, 1),
        (3, 4, Get(Head, 0), Value(0)),
        (5, 6, Get(Staged, 0), Value(1)),
        commit(7, 8, 1),
        (9, 10, List(Head), Whole(vec![1, 0])),
        (11, 12, Remove(0), Done(0)),
        (13, 14, List(Head), Whole(vec![1, 0])),
        commit(15, 16, 0),
        (17, 18, Get(Head, 0), Value(0)),
        (19, 20, Asked::Log, Log(vec![3, 7])),
    ]));
    // A commit holds what was put before it was announced; a put at the same time may be in it or not.
    for seen in [0, 1] {
        assert!(is_explained(&[
            put(1, 10, 1),
            commit(2, 9, seen),
            (11, 12, Get(Head, 0), Value(seen as u16))
        ]));
    }
    // Of two commits at the same time, the first makes its part visible before the second.
    assert!(is_explained(&[
        put(1, 2, 1),
        commit(3, 20, 1),
        put(4, 5, 2),
        commit(6, 21, 1),
        (7, 8, Get(Head, 0), Value(0)),
        (9, 10, Get(Head, 0), Value(1)),
        (11, 12, Get(Head, 0), Value(2)),
    ]));
    // A commit that is aborted changes nothing, except that what it took is not thrown away.
    for seen in [0, 1] {
        let in_vain = (3, 20, CommitInVain, Refused);
        let reset = (4, 5, Reset, Done(0));
        assert!(is_explained(&[put(1, 2, 1), in_vain, reset, (21, 22, Get(Staged, 0), Value(seen))]));
    }
    // Conditions are decided at one moment.
    assert!(is_explained(&[(1, 10, PutIf(0, 1, 0), Done(0)), (1, 10, PutIf(0, 2, 0), Refused)]));
}

#[test]
fn what_was_cut_off_may_have_happened_later_or_never() {
    let cut_put = (1, u64::MAX, Put(0, 1), Unknown);
    let cut_commit = (2, u64::MAX, Commit, Unknown);
    for seen in [0, 1] {
        assert!(is_explained(&[cut_put.clone(), (5, 6, Get(Staged, 0), Value(seen))]));
        assert!(is_explained(&[cut_put.clone(), cut_commit.clone(), (5, 6, Get(Head, 0), Value(seen))]));
    }
    assert!(is_explained(&[
        cut_put.clone(),
        (5, 6, Get(Staged, 0), Value(0)),
        (7, 8, Get(Staged, 0), Value(1))
    ]));
    assert!(!is_explained(&[
        cut_put.clone(),
        (5, 6, Get(Staged, 0), Value(1)),
        (7, 8, Get(Staged, 0), Value(0))
    ]));
    assert!(!is_explained(&[cut_put, (5, 6, Get(Head, 0), Value(1))]), "nobody committed it");
}

fn put(began: u64, ended: u64, path: usize, value: u16) -> Told {
    (began, ended, Put(path, value), Done(0))
}

fn get(began: u64, ended: u64, place: Place, value: u16) -> Told {
    (began, ended, Get(place, 0), Value(value))
}

fn commit(began: u64, ended: u64, entries: usize) -> Told {
    (began, ended, Commit, Done(entries))
}

fn assert_all_are_found(anomalies: &[(&str, Vec<Told>)]) {
    for (name, operations) in anomalies {
        assert!(!is_explained(operations), "{name}");
    }
}

#[test]
fn every_known_anomaly_of_what_is_staged_is_found() {
    assert_all_are_found(&[
        (
            "1-3-2",
            vec![
                put(1, 2, 0, 1),
                put(3, 4, 0, 2),
                put(5, 6, 0, 3),
                get(7, 8, Staged, 3),
                get(9, 10, Staged, 2),
            ],
        ),
        (
            "1-3-2 of writes at the same time",
            vec![
                put(1, 30, 0, 2),
                put(1, 30, 0, 3),
                get(2, 3, Staged, 3),
                get(4, 5, Staged, 2),
                get(6, 7, Staged, 3),
            ],
        ),
        (
            "B-A-N-A-N-A",
            vec![
                put(1, 2, 0, 1),
                put(3, 40, 0, 2),
                put(3, 40, 0, 3),
                get(5, 6, Staged, 2),
                get(7, 8, Staged, 3),
                get(9, 10, Staged, 2),
                get(11, 12, Staged, 3),
            ],
        ),
        ("a lost write", vec![put(1, 2, 0, 1), get(3, 4, Staged, 0)]),
        ("a reset that was not", vec![put(1, 2, 0, 1), (3, 4, Reset, Done(0)), get(5, 6, Staged, 1)]),
        ("two who were first", vec![(1, 9, PutIf(0, 1, 0), Done(0)), (1, 9, PutIf(0, 2, 0), Done(0))]),
        ("a condition that held", vec![put(1, 2, 0, 1), (3, 4, PutIf(0, 2, 1), Refused)]),
    ]);
}

#[test]
fn every_known_anomaly_of_commits_is_found() {
    assert_all_are_found(&[
        ("a write that its commit lost", vec![put(1, 2, 0, 1), commit(3, 4, 0), get(5, 6, Head, 0)]),
        (
            "part of a commit",
            vec![put(1, 2, 0, 1), put(3, 4, 1, 2), commit(5, 6, 2), (7, 8, List(Head), Whole(vec![1, 0]))],
        ),
        ("what is not committed", vec![put(1, 2, 0, 1), get(3, 4, Head, 1)]),
        ("a read that is too old", vec![put(1, 2, 0, 1), commit(3, 4, 1), get(5, 6, Head, 0)]),
        (
            "commits out of order",
            vec![put(1, 2, 0, 1), commit(3, 4, 1), put(5, 6, 0, 2), commit(7, 8, 1), get(9, 10, Head, 1)],
        ),
        (
            "a log out of order",
            vec![put(1, 2, 0, 1), commit(3, 4, 1), commit(5, 6, 1), (7, 8, Asked::Log, Log(vec![2, 1]))],
        ),
        ("a commit that went away", vec![commit(1, 2, 0), (3, 4, Asked::Log, Log(vec![]))]),
        (
            "a commit in vain that was not",
            vec![put(1, 2, 0, 1), (3, 4, CommitInVain, Refused), get(5, 6, Head, 1)],
        ),
        (
            "a removal that came back",
            vec![
                put(1, 2, 0, 1),
                commit(3, 4, 1),
                (5, 6, Remove(0), Done(0)),
                commit(7, 8, 0),
                get(9, 10, Head, 0),
                get(11, 12, Staged, 1),
            ],
        ),
    ]);
}

/// Sizes of histories, from few callers with many operations to many with few.
fn size(chance: &mut Seeded) -> Size {
    let callers = 2 + chance.below(3) as usize;
    Size { callers, operations: 5 + chance.below(5), paths: 1 + chance.below(3) as usize }
}

/// Lets histories come about on branches of their own, and looks for an explanation of each.
async fn look_at(client: &Client, runs: std::ops::Range<u64>, seed: u64) {
    let looked_at = stream::iter(runs).map(|nth| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut chance = Seeded::new(seed.wrapping_add(nth));
            let size = size(&mut chance);
            let history = run(&client, &format!("run-{nth}"), size, chance.draw()).await;
            if let Verdict::Unexplained(longest) = explain(&history) {
                panic!(
                    "WINDLASS_SEED={seed}: no order explains run {nth}:\n{history}the longest is {longest:?}"
                );
            }
        })
    });
    looked_at.buffer_unordered(AT_ONCE).for_each(|looked_at| async { looked_at.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_explains_every_answer_of_a_server() {
    let runs = setting("WINDLASS_HISTORIES", 400);
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let server = Here::start(|_| {}).await;
    look_at(&client_of(&server), 0..runs, seed).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_explains_every_answer_of_a_server_that_is_killed_now_and_then() {
    let runs = setting("WINDLASS_HISTORIES", 400) / 2;
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let mut server = Served::start(data.path(), port).await;
    let looking = tokio::spawn(async move { look_at(&client, 0..runs, seed).await });
    let (mut chance, mut kills) = (Seeded::new(seed), 0);
    while !looking.is_finished() {
        tokio::time::sleep(Duration::from_millis(500 + chance.below(1_500))).await;
        server.kill();
        kills += 1;
        server = Served::start(data.path(), port).await;
    }
    looking.await.unwrap();
    println!("{runs} histories, {kills} kills");
    assert!(server.stop().success());
}
