//! What went wrong when Opsqueue was run, one test for each: none of it happens here.
//!
//! Three stand elsewhere, where the part that could go wrong can be hurt: that a write error is told to the caller and
//! counts as nothing (`a_failed_sync_stops_the_node_and_the_caller_hears_why`, in the order's stories), that nothing is
//! acknowledged before its fsync (`nothing_is_acknowledged_or_applied_before_its_sync`, there too), and that crashes are
//! tested at all (`killed.rs`).

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkOf};
use windlass_client::{Client, ConsumeSocket, Output};
use windlass_tests::here::{Here, answered, attempt_of, attempt_with};

async fn socket(server: &Here, name: &str) -> ConsumeSocket {
    let client = Client::new(&server.url("")).unwrap();
    ConsumeSocket::connect(&client, name, None).await.unwrap().0
}

fn reserve(request: u64, max: u32) -> ClientFrame {
    ClientFrame::Reserve { request, max, strategy: "\"OldestFirst\"".into(), after_reports: false }
}

async fn work(socket: &mut ConsumeSocket) -> WorkOf {
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Work { mut work, .. }) => work.remove(0),
        other => panic!("work was expected, not {other:?}"),
    }
}

async fn complete(socket: &mut ConsumeSocket, request: u64, work: WorkOf) -> Vec<Verdict> {
    let done = work
        .chunks
        .into_iter()
        .map(|chunk| DoneChunk { chunk, output: Output::Nothing, entries: None })
        .collect();
    socket.send(&ClientFrame::Complete { request, submission: work.submission, done }).await.unwrap();
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Settled { verdicts, .. }) => verdicts,
        other => panic!("verdicts were expected, not {other:?}"),
    }
}

async fn status(server: &Here) -> Value {
    server.get("/v1/status").await.json
}

/// Waits until the server's status is as wanted; the server wakes nobody for its status, so this looks again and again.
async fn until(server: &Here, wanted: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let status = status(server).await;
        if wanted(&status) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the status stays {status}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn many_reserves_at_once_block_nobody_and_nothing_stays_reserved_by_nobody() {
    const CONSUMERS: u32 = 600;
    let server = Here::start(|config| config.grace_ms = 50).await;
    server.submit(json!({"chunks": CONSUMERS})).await;
    let (client, mut sockets) = (Client::new(&server.url("")).unwrap(), Vec::new());
    for nth in 0..CONSUMERS {
        sockets.push(ConsumeSocket::connect(&client, &nth.to_string(), None).await.unwrap().0);
    }
    for socket in &mut sockets {
        socket.send(&reserve(1, 1)).await.unwrap();
    }
    let mut chunks = std::collections::BTreeSet::new();
    for socket in &mut sockets {
        chunks.insert(work(socket).await.chunks[0].chunk);
    }
    assert_eq!(chunks.len(), CONSUMERS as usize, "every consumer got a chunk of its own");
    drop(sockets);
    until(&server, |status| status["chunks_reserved"] == 0 && status["chunks_ready"] == CONSUMERS).await;
    server.stop().await;
}

#[tokio::test]
async fn a_lone_consumer_is_not_slowed_down_by_delayed_acknowledgements() {
    const ROUNDS: u32 = 50;
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": ROUNDS})).await;
    let mut socket = socket(&server, "lone").await;
    let began = Instant::now();
    for round in 0..u64::from(ROUNDS) {
        socket.send(&reserve(round, 1)).await.unwrap();
        let work = work(&mut socket).await;
        complete(&mut socket, round, work).await;
    }
    // Nagle's algorithm against delayed acknowledgements costs 40 ms for each round.
    assert!(began.elapsed() < ROUNDS * Duration::from_millis(40), "{:?}", began.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_consumer_is_woken_when_a_chunk_comes_back_whatever_the_reason() {
    let server = Here::start(|config| config.grace_ms = 20).await;
    let reserve_it = json!({"max": 1, "lease_ms": 1_000, "wait_ms": 20_000});
    server.submit(json!({"chunks": 1, "retry_delay_ms": 1, "attempts_max": 100})).await;
    let mut waiting = socket(&server, "waiting").await;

    // A connection that drops.
    let mut dropped = socket(&server, "dropped").await;
    dropped.send(&reserve(1, 1)).await.unwrap();
    work(&mut dropped).await;
    waiting.send(&reserve(1, 1)).await.unwrap();
    until(&server, |status| status["waiting"] == 1).await;
    drop(dropped);
    let held = work(&mut waiting).await;

    // A release.
    let by_lease = tokio::spawn(answered(server.http.post(server.url("/v1/reserve")).json(&reserve_it)));
    until(&server, |status| status["waiting"] == 1).await;
    let release = ClientFrame::Release { request: 2, submission: held.submission, chunks: held.chunks };
    waiting.send(&release).await.unwrap();
    let leased = by_lease.await.unwrap().json["reservations"][0].clone();
    assert!(matches!(waiting.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));

    // A failure, after its delay.
    waiting.send(&reserve(3, 1)).await.unwrap();
    until(&server, |status| status["waiting"] == 1).await;
    let failed = attempt_with(&leased, "reason", json!("for the test"));
    assert_eq!(
        server.post("/v1/fail", json!({"chunks": [failed]})).await.json,
        json!({"chunks": ["accepted"]})
    );
    let held = work(&mut waiting).await;
    let release = ClientFrame::Release { request: 4, submission: held.submission, chunks: held.chunks };
    waiting.send(&release).await.unwrap();
    assert!(matches!(waiting.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));

    // A lease that ends.
    let leased = server.post("/v1/reserve", reserve_it).await.json["reservations"][0].clone();
    assert_eq!(leased["chunk"], 0);
    waiting.send(&reserve(5, 1)).await.unwrap();
    let held = work(&mut waiting).await;
    assert_eq!(complete(&mut waiting, 6, held).await, [Verdict::Accepted]);
    server.stop().await;
}

#[tokio::test]
async fn only_the_holder_of_a_token_can_report_and_a_late_holder_releases_nobody() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 2})).await;
    let lease = json!({"lease_ms": 1_000, "strategy": "OldestFirst"});
    let first = server.post("/v1/reserve", lease).await.json["reservations"][0].clone();

    let mut forged = attempt_of(&first);
    forged["chunk"] = json!(1);
    for path in ["/v1/complete", "/v1/extend", "/v1/release"] {
        let answer = server.post(path, json!({"chunks": [forged]})).await;
        assert_eq!(
            (answer.status, &answer.json["code"]),
            (409, &json!("token_invalid")),
            "{path}: {}",
            answer.text
        );
    }

    // The first lease ends, and another consumer gets the chunk (the other one is taken out of the way).
    let others = server.reserve(1).await;
    assert_eq!(others[0]["chunk"], 1);
    let request = json!({"wait_ms": 20_000, "lease_ms": 60_000});
    let second = server.post("/v1/reserve", request).await.json["reservations"][0].clone();
    assert_eq!(second["chunk"], 0);
    let late = attempt_with(&first, "reason", json!("late"));
    for (path, attempt) in
        [("/v1/fail", late), ("/v1/release", attempt_of(&first)), ("/v1/extend", attempt_of(&first))]
    {
        let answer = server.post(path, json!({"chunks": [attempt]})).await;
        assert_eq!(answer.json, json!({"chunks": ["reservation_lost"]}), "{path}");
    }
    assert!(server.reserve(1).await.is_empty(), "the second holder still has it");
    let done = server.post("/v1/complete", json!({"chunks": [attempt_of(&second)]})).await;
    assert_eq!(done.json, json!({"chunks": ["accepted"]}));
    server.stop().await;
}

#[tokio::test]
async fn the_counts_of_what_is_out_go_down_when_a_consumer_vanishes() {
    let server = Here::start(|config| config.grace_ms = 20).await;
    server.submit(json!({"chunks": 5})).await;
    let mut vanishing = socket(&server, "vanishing").await;
    vanishing.send(&reserve(1, 5)).await.unwrap();
    assert_eq!(work(&mut vanishing).await.chunks.len(), 5);
    assert_eq!(status(&server).await["chunks_reserved"], 5);
    drop(vanishing);
    until(&server, |status| status["chunks_reserved"] == 0 && status["consumers"] == 0).await;
    assert_eq!(status(&server).await["chunks_ready"], 5);
    server.stop().await;
}

#[tokio::test]
async fn a_chunk_whose_consumers_keep_vanishing_fails_at_last() {
    let server = Here::start(|config| config.grace_ms = 1).await;
    let id = server.submit(json!({"chunks": 1, "attempts_max": 1})).await;
    for nth in 0..3 {
        let mut vanishing = socket(&server, &nth.to_string()).await;
        vanishing.send(&reserve(1, 1)).await.unwrap();
        work(&mut vanishing).await;
    }
    let shown = server.get(&format!("/v1/submissions/{id}/wait")).await.json;
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["troubles"][0]["reason"], "3 consumers vanished while they worked on this chunk");
    server.stop().await;
}

#[tokio::test]
async fn looking_at_the_metrics_costs_the_same_with_a_large_backlog() {
    let server = Here::start(|_| {}).await;
    let cost = async || {
        let mut times = Vec::new();
        for _ in 0..40 {
            let began = Instant::now();
            assert_eq!(server.get("/metrics").await.status, 200);
            times.push(began.elapsed());
        }
        times.sort();
        times[times.len() / 4]
    };
    server.submit(json!({"chunks": 10})).await;
    let small = cost().await;
    for _ in 0..1_000 {
        server.submit(json!({"chunks": 1_000_000_000_u64})).await;
    }
    let large = cost().await;
    assert!(large < 3 * small, "with 10 chunks {small:?}, with 10^12 chunks {large:?}");
    assert_eq!(status(&server).await["chunks_ready"], 1_000_000_000_010_u64);
    server.stop().await;
}

#[tokio::test]
async fn a_finished_submission_says_all_that_it_said_when_it_came_in() {
    let server = Here::start(|_| {}).await;
    let said = json!({
        "chunks": 1, "priority": -3, "metadata": {"a": "b", "c": 4, "d": true}, "prefix": "in/x", "attempts_max": 7,
        "retry_delay_ms": 9, "on_failure": "continue"
    });
    let id = server.submit(said.clone()).await;
    let fields =
        ["priority", "metadata", "prefix", "attempts_max", "retry_delay_ms", "on_failure", "submitted_at"];
    let before = server.get(&format!("/v1/submissions/{id}")).await.json;
    let reservation = server.reserve(1).await.remove(0);
    server.post("/v1/complete", json!({"chunks": [attempt_of(&reservation)]})).await;
    let after = server.get(&format!("/v1/submissions/{id}")).await.json;
    assert_eq!(after["state"], "completed");
    for field in fields {
        assert_eq!(before[field], after[field], "{field}");
    }
    assert_eq!(after["metadata"], said["metadata"]);
    assert_eq!(after["chunks"]["total"], 1);
    server.stop().await;
}

#[tokio::test]
async fn results_of_a_running_submission_stay_until_it_is_over_and_after() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 2})).await;
    let reservations = server.reserve(2).await;
    let first = attempt_with(&reservations[0], "output", json!("early"));
    server.post("/v1/complete", json!({"chunks": [first]})).await;
    let results = server.get(&format!("/v1/submissions/{id}/results")).await.json;
    assert_eq!(results["items"][0], json!({"chunk": 0, "state": "done", "output": "early"}));
    assert_eq!(results["items"][1], json!({"chunk": 1, "state": "unsettled"}));
    server.post("/v1/complete", json!({"chunks": [attempt_of(&reservations[1])]})).await;
    let results = server.get(&format!("/v1/submissions/{id}/results")).await.json;
    assert_eq!(results["items"][0], json!({"chunk": 0, "state": "done", "output": "early"}));
    server.stop().await;
}

#[tokio::test]
async fn every_completion_is_acknowledged_after_an_fsync_and_many_share_one() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1_001})).await;
    let syncs = async || {
        let text = server.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with("windlass_log_syncs_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let mut socket = socket(&server, "batches").await;
    socket.send(&reserve(1, 1)).await.unwrap();
    let lone = work(&mut socket).await;
    let before = syncs().await;
    assert_eq!(complete(&mut socket, 2, lone).await, [Verdict::Accepted]);
    let after_one = syncs().await;
    assert!(after_one > before, "a lone completion is fsynced before it is acknowledged");

    socket.send(&reserve(3, 1_000)).await.unwrap();
    let many = work(&mut socket).await;
    assert_eq!(complete(&mut socket, 4, many).await.len(), 1_000);
    assert!(syncs().await - after_one < 10, "a thousand completions share a few fsyncs");
    server.stop().await;
}

#[tokio::test]
async fn a_poison_chunk_waits_longer_each_time_and_never_stands_in_the_way_of_others() {
    let server = Here::start(|_| {}).await;
    let id = server
        .submit(json!({"chunks": 3, "retry_delay_ms": 200, "attempts_max": 3, "on_failure": "continue"}))
        .await;
    let poison = server.reserve(1).await.remove(0);
    assert_eq!(poison["chunk"], 0);
    let began = Instant::now();
    server.post("/v1/fail", json!({"chunks": [attempt_with(&poison, "reason", json!("poison"))]})).await;
    let others = server.reserve(2).await;
    assert_eq!(others.iter().map(|it| it["chunk"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    let wait = json!({"max": 1, "wait_ms": 20_000});
    let again = server.post("/v1/reserve", wait.clone()).await.json["reservations"][0].clone();
    let first_wait = began.elapsed();
    assert_eq!(again["chunk"], 0);
    let began = Instant::now();
    server.post("/v1/fail", json!({"chunks": [attempt_with(&again, "reason", json!("poison"))]})).await;
    let third = server.post("/v1/reserve", wait).await.json["reservations"][0].clone();
    // The clocks of both sides count whole milliseconds.
    assert!(first_wait >= Duration::from_millis(195) && began.elapsed() >= Duration::from_millis(395));

    server.post("/v1/fail", json!({"chunks": [attempt_with(&third, "reason", json!("poison"))]})).await;
    let done: Vec<_> = others.iter().map(attempt_of).collect();
    server.post("/v1/complete", json!({"chunks": done})).await;
    let shown = server.get(&format!("/v1/submissions/{id}/wait")).await.json;
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["chunks"], json!({"total": 3, "done": 2, "failed": 1, "skipped": 0}));
    server.stop().await;
}

#[tokio::test]
async fn a_submit_that_is_sent_again_makes_no_second_submission() {
    let server = Here::start(|_| {}).await;
    let send = || {
        let request = server.http.post(server.url("/v1/submissions")).header("idempotency-key", "the-same");
        answered(request.json(&json!({"chunks": 4})))
    };
    let all = futures_util::future::join_all((0..50).map(|_| send())).await;
    assert!(all.iter().all(|answer| answer.json == all[0].json), "every repetition got the same id");
    assert_eq!(status(&server).await["chunks_unsettled"], 4);
    server.stop().await;
}

#[tokio::test]
async fn work_that_a_consumer_never_received_goes_back_although_the_consumer_comes_back() {
    let server = Here::start(|config| config.grace_ms = 50).await;
    server.submit(json!({"chunks": 2})).await;
    let client = Client::new(&server.url("")).unwrap();
    let (mut first, welcome) = ConsumeSocket::connect(&client, "flaky", None).await.unwrap();
    first.send(&reserve(1, 2)).await.unwrap();
    let received = work(&mut first).await;

    // The consumer comes back on another connection, and only knows of the first chunk.
    let (mut second, _) = ConsumeSocket::connect(&client, "flaky", Some(welcome.session)).await.unwrap();
    let known = vec![received.chunks[0]];
    let reassert =
        ClientFrame::Reassert { request: 1, submission: received.submission, chunks: known.clone() };
    second.send(&reassert).await.unwrap();
    let Some(ServerFrame::Settled { verdicts, .. }) = second.receive().await.unwrap() else {
        panic!("verdicts")
    };
    assert_eq!(verdicts, [Verdict::Accepted]);

    let mut other = socket(&server, "other").await;
    other.send(&reserve(1, 1)).await.unwrap();
    let lost = work(&mut other).await;
    assert_eq!(lost.chunks[0].chunk, received.chunks[1].chunk);
    assert_eq!(complete(&mut second, 2, WorkOf { chunks: known, ..received }).await, [Verdict::Accepted]);
    assert_eq!(complete(&mut other, 2, lost).await, [Verdict::Accepted]);
    server.stop().await;
}

#[tokio::test]
async fn an_output_that_is_too_large_fails_its_own_attempt_and_no_other() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 2, "attempts_max": 1, "on_failure": "continue"})).await;
    let reservations = server.reserve(2).await;
    let chunks = [
        attempt_with(&reservations[0], "output", json!("x".repeat(20_000))),
        attempt_with(&reservations[1], "output", json!("fits")),
    ];
    let answer = server.post("/v1/complete", json!({"chunks": chunks})).await;
    assert_eq!(answer.json, json!({"chunks": ["output_too_large", "accepted"]}), "{}", answer.text);
    let shown = server.get(&format!("/v1/submissions/{id}/wait")).await.json;
    assert_eq!(shown["chunks"], json!({"total": 2, "done": 1, "failed": 1, "skipped": 0}));
    assert!(shown["troubles"][0]["reason"].as_str().unwrap().contains("store it as an object"));
    server.stop().await;
}

#[tokio::test]
async fn a_plain_reserve_never_gives_an_answer_of_gigabytes() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1_000, "opaque": "x".repeat(60_000)})).await;
    let reservations = server.reserve(1_000).await;
    assert!((1..100).contains(&reservations.len()), "{} chunks", reservations.len());
    until(&server, |status| status["chunks_ready"] == 1_000 - reservations.len()).await;
    server.stop().await;
}

#[tokio::test]
async fn a_consumer_that_says_goodbye_leaves_nothing_behind() {
    let server = Here::start(|config| config.grace_ms = 60_000).await;
    server.submit(json!({"chunks": 3})).await;
    let mut leaving = socket(&server, "leaving").await;
    leaving.send(&reserve(1, 2)).await.unwrap();
    work(&mut leaving).await;
    let (mut sender, _receiver) = leaving.split();
    sender.close().await.unwrap();
    until(&server, |status| status["chunks_ready"] == 3 && status["consumers"] == 0).await;
    server.stop().await;
}
