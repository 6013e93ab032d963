//! Strategies in which lanes and submissions meet, while both have something to give.

use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;
use windlass_tests::here::{Here, answered, attempt_of};
use windlass_tests::lanes::{add, complete, create, reserve};

const TASKS_FIRST: &str = "OrElse(Lane(urgent), Random)";
const CHUNKS_FIRST: &str = "OrElse(Random, Lane(urgent))";
/// Chunks of one kind, then a lane, then the other chunks, then another lane.
const BETWEEN: &str =
    "OrElse(SelectOnly(kind = \"a\", Random), OrElse(Lane(urgent), OrElse(OldestFirst, Lane(slow))))";
/// The same on the other side of each `OrElse`.
const NESTED_FIRST: &str =
    "OrElse(OrElse(OrElse(SelectOnly(kind = \"a\", Random), Lane(urgent)), OldestFirst), Lane(slow))";

async fn tasks(server: &Here, lane: &str, count: usize) {
    add(
        server,
        lane,
        (0..count).map(|nth| json!({"key": format!("k{}", nth % 3), "payload": lane})).collect(),
    )
    .await;
}

async fn chunks(server: &Here, kind: &str, count: usize) {
    server.submit(json!({"chunks": count, "metadata": {"kind": kind}})).await;
}

/// What came, in order: the lane of a task, the kind of a chunk.
fn kinds(reservations: &[Value]) -> Vec<&str> {
    let kinds = reservations.iter().map(|it| it["lane"].as_str().or(it["metadata"]["kind"].as_str()));
    kinds.map(|kind| kind.expect("it is a task or a chunk")).collect()
}

/// So many of each, one after the other.
fn runs<'a>(of: &[(&'a str, usize)]) -> Vec<&'a str> {
    of.iter().flat_map(|(kind, count)| vec![*kind; *count]).collect()
}

async fn with_lanes() -> Here {
    let server = Here::start(|_| {}).await;
    create(&server, "urgent").await;
    create(&server, "slow").await;
    server
}

async fn give_back(server: &Here, reservations: &[Value]) {
    if reservations.is_empty() {
        return;
    }
    let attempts: Vec<Value> = reservations.iter().map(attempt_of).collect();
    let released = server.post("/v1/release", json!({"chunks": attempts})).await;
    assert_eq!(released.status, 200, "{}", released.text);
}

#[tokio::test]
async fn one_reserve_takes_tasks_and_then_chunks_or_the_other_way_round_until_it_has_as_many_as_it_asked_for()
{
    let server = with_lanes().await;
    tasks(&server, "urgent", 4).await;
    chunks(&server, "a", 3).await;
    for max in 1..=9 {
        for (strategy, all) in [
            (TASKS_FIRST, runs(&[("urgent", 4), ("a", 3)])),
            (CHUNKS_FIRST, runs(&[("a", 3), ("urgent", 4)])),
        ] {
            let some = reserve(&server, strategy, max).await;
            assert_eq!(kinds(&some), all[..all.len().min(max as usize)], "{strategy}, {max} at most");
            let other = reserve(&server, strategy, 9).await;
            assert_eq!(some.len() + other.len(), all.len(), "and the rest goes to the next one");
            give_back(&server, &some).await;
            give_back(&server, &other).await;
        }
    }
    // Each is there once, whichever way it is asked for.
    let first = reserve(&server, TASKS_FIRST, 5).await;
    let rest = reserve(&server, CHUNKS_FIRST, 9).await;
    assert_eq!((kinds(&first), kinds(&rest)), (runs(&[("urgent", 4), ("a", 1)]), runs(&[("a", 2)])));
    let all = [first, rest].concat();
    assert_eq!(complete(&server, &all).await["chunks"], json!(vec!["accepted"; 7]));
    assert!(reserve(&server, TASKS_FIRST, 9).await.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn lanes_stand_between_the_submissions_of_other_sides_however_the_sides_are_nested() {
    let server = with_lanes().await;
    tasks(&server, "urgent", 2).await;
    tasks(&server, "slow", 2).await;
    chunks(&server, "b", 2).await;
    chunks(&server, "a", 2).await;
    let all = runs(&[("a", 2), ("urgent", 2), ("b", 2), ("slow", 2)]);
    for strategy in [BETWEEN, NESTED_FIRST] {
        for max in 1..=9 {
            let some = reserve(&server, strategy, max).await;
            assert_eq!(kinds(&some), all[..all.len().min(max as usize)], "{strategy}, {max} at most");
            give_back(&server, &some).await;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn while_a_lane_is_paused_or_at_its_limit_its_consumers_get_chunks() {
    let server = with_lanes().await;
    tasks(&server, "urgent", 6).await;
    chunks(&server, "a", 9).await;
    server.post("/v1/lanes/urgent/pause", json!({})).await;
    assert_eq!(kinds(&reserve(&server, TASKS_FIRST, 2).await), ["a"; 2]);
    server.post("/v1/lanes/urgent/resume", json!({})).await;
    let limit = async |limit: Value| {
        let changed = server.patch("/v1/lanes/urgent", json!({"limits": {"lane": limit}})).await;
        assert_eq!(changed.status, 200, "{}", changed.text);
    };
    limit(json!({"in_flight": 2})).await;
    let at_limit = reserve(&server, TASKS_FIRST, 4).await;
    assert_eq!(kinds(&at_limit), runs(&[("urgent", 2), ("a", 2)]));
    assert_eq!(kinds(&reserve(&server, TASKS_FIRST, 1).await), ["a"]);
    complete(&server, &at_limit[..1]).await;
    assert_eq!(kinds(&reserve(&server, TASKS_FIRST, 2).await), ["urgent", "a"]);
    limit(json!(null)).await;
    let limits = json!({"limits": {"each_key": {"in_flight": 0}}});
    server.patch("/v1/lanes/urgent", limits).await;
    assert_eq!(kinds(&reserve(&server, TASKS_FIRST, 1).await), ["a"], "each of its keys is at a limit");
    server.patch("/v1/lanes/urgent", json!({"limits": {"each_key": null}})).await;
    assert_eq!(kinds(&reserve(&server, TASKS_FIRST, 9).await), runs(&[("urgent", 3), ("a", 2)]));
    server.stop().await;
}

/// Somebody waits for as long as it takes, and is known to wait before this returns.
async fn waiting(server: &Here, strategy: &str) -> JoinHandle<Vec<Value>> {
    let body = json!({"max": 4, "strategy": strategy, "wait_ms": 30_000});
    let request = server.http.post(server.url("/v1/reserve")).json(&body);
    let asked = tokio::spawn(async move {
        answered(request).await.json["reservations"].as_array().expect("a list").clone()
    });
    while server.get("/v1/status").await.json["waiting"] != json!(1) {
        assert!(!asked.is_finished(), "it waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    asked
}

#[tokio::test]
async fn whoever_waits_for_tasks_and_chunks_is_woken_by_either() {
    let server = with_lanes().await;
    for strategy in [TASKS_FIRST, CHUNKS_FIRST, BETWEEN, NESTED_FIRST] {
        let asked = waiting(&server, strategy).await;
        tasks(&server, "urgent", 1).await;
        let came = asked.await.unwrap();
        assert_eq!(kinds(&came), ["urgent"], "{strategy}");
        complete(&server, &came).await;

        let asked = waiting(&server, strategy).await;
        chunks(&server, "a", 1).await;
        let came = asked.await.unwrap();
        assert_eq!(kinds(&came), ["a"], "{strategy}");
        complete(&server, &came).await;

        // What is held up wakes nobody until it is let go.
        server.post("/v1/lanes/urgent/pause", json!({})).await;
        tasks(&server, "urgent", 1).await;
        let asked = waiting(&server, strategy).await;
        server.post("/v1/lanes/urgent/resume", json!({})).await;
        let came = asked.await.unwrap();
        assert_eq!(kinds(&came), ["urgent"], "{strategy}");
        let asked = waiting(&server, strategy).await;
        give_back(&server, &came).await;
        let again = asked.await.unwrap();
        assert_eq!(again[0]["submission"], came[0]["submission"], "{strategy}");
        complete(&server, &again).await;
    }
    server.stop().await;
}
