//! Hard limits hold over all consumers, reconnects and restarts; waiting consumers are woken by what they may take.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, TaskToAdd, Verdict, WorkOf};
use windlass_client::{Client, ConsumeSocket, Output};
use windlass_tests::here::{Here, attempt_with};
use windlass_tests::lanes::create;

const LIMITED: &str = "\"MaxSimultaneous(company, 2, OldestFirst)\"";

async fn connect(server: &Here, session: Option<u64>) -> (ConsumeSocket, u64) {
    let client = Client::new(&server.url("")).unwrap();
    let (socket, welcome) = ConsumeSocket::connect(&client, "test", session).await.unwrap();
    (socket, welcome.session)
}

async fn ask(socket: &mut ConsumeSocket, max: u32, strategy: &str) {
    let reserve = ClientFrame::Reserve { request: 1, max, strategy: strategy.into(), after_reports: false };
    socket.send(&reserve).await.unwrap();
}

async fn work(socket: &mut ConsumeSocket) -> Vec<WorkOf> {
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Work { work, .. }) => work,
        other => panic!("work was expected, not {other:?}"),
    }
}

/// Asks for what nobody gets, which is what a consumer does that has nothing to do.
async fn wait_for_nothing(socket: &mut ConsumeSocket) {
    ask(socket, 1, "\"SelectOnly(mode=nothing, Random)\"").await;
    gets_nothing(socket).await;
}

/// Nothing comes as long as a heartbeat takes to go there and back.
async fn gets_nothing(socket: &mut ConsumeSocket) {
    socket.send(&ClientFrame::Heartbeat {}).await.unwrap();
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Heartbeat {}) => {}
        other => panic!("nothing was expected, not {other:?}"),
    }
}

async fn settle(socket: &mut ConsumeSocket, frame: ClientFrame) -> Vec<Verdict> {
    socket.send(&frame).await.unwrap();
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Settled { verdicts, .. }) => verdicts,
        other => panic!("verdicts were expected, not {other:?}"),
    }
}

fn completion(work: &WorkOf, nth: usize) -> ClientFrame {
    let done = vec![DoneChunk { chunk: work.chunks[nth], output: Output::Nothing, entries: None }];
    ClientFrame::Complete { request: 9, submission: work.submission, done }
}

async fn reserve(server: &Here, strategy: &str, max: u32, lease_ms: u64) -> Vec<Value> {
    let body = json!({"max": max, "strategy": strategy, "lease_ms": lease_ms});
    let answer = server.post("/v1/reserve", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["reservations"].as_array().unwrap().clone()
}

async fn start_again(server: Here) -> Here {
    let folder = server.stop().await.unwrap();
    let mut server = Here::start_in(folder.path(), |config| config.grace_ms = 3_000).await;
    server.folder = Some(folder);
    server
}

#[tokio::test]
async fn a_hard_limit_counts_over_all_consumers_and_strategies_that_name_the_field() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 10, "metadata": {"company": 7}})).await;
    server.submit(json!({"chunks": 10})).await;
    let first = reserve(&server, "MaxSimultaneous(company, 3, OldestFirst)", 2, 60_000).await;
    assert_eq!(first.len(), 2);
    // Another strategy with a limit on the field finds one place left, and goes on with what has no company.
    let second = reserve(&server, "MaxSimultaneous(company, 3, Random)", 20, 60_000).await;
    assert_eq!(second.iter().filter(|it| it["metadata"]["company"] == 7).count(), 1);
    assert_eq!(second.len(), 11);
    assert!(reserve(&server, "MaxSimultaneous(company, 3, OldestFirst)", 5, 60_000).await.is_empty());

    let done = attempt_with(&first[0], "output", json!(null));
    assert_eq!(server.post("/v1/complete", json!({"chunks": [done]})).await.status, 200);
    assert_eq!(reserve(&server, "MaxSimultaneous(company, 3, OldestFirst)", 5, 60_000).await.len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserves_at_the_same_time_together_get_what_a_hard_limit_allows() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1_000, "metadata": {"company": 7}})).await;
    let strategies = ["MaxSimultaneous(company, 10, Random)", "Fair(company, MaxSimultaneous(company, 10))"];
    let reserves = (0..64).map(|nth| reserve(&server, strategies[nth % 2], 3, 60_000));
    let reserved: usize = join_all(reserves).await.iter().map(Vec::len).sum();
    assert_eq!(reserved, 10);
    server.stop().await;
}

#[tokio::test]
async fn a_limit_in_percent_follows_the_consumers_that_are_connected() {
    let server = Here::start(|config| config.grace_ms = 100).await;
    server.submit(json!({"chunks": 100, "metadata": {"company": 7}})).await;
    let half = "\"MaxSimultaneous(company, 50%, OldestFirst)\"";
    let (mut anna, _) = connect(&server, None).await;
    let (mut bert, _) = connect(&server, None).await;
    wait_for_nothing(&mut bert).await;
    ask(&mut anna, 9, half).await;
    let first = work(&mut anna).await.remove(0);
    assert_eq!(first.chunks.len(), 1, "half of two");
    ask(&mut anna, 9, half).await;
    gets_nothing(&mut anna).await;

    let (mut carl, _) = connect(&server, None).await;
    let (mut dora, _) = connect(&server, None).await;
    wait_for_nothing(&mut carl).await;
    wait_for_nothing(&mut dora).await;
    assert_eq!(work(&mut anna).await[0].chunks.len(), 1, "half of four: one more");
    drop((bert, carl, dora));
    let alone = async {
        while server.get("/v1/overview").await.json["consumers"]["connected"] != 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), alone).await.expect("the others are seen to be gone");
    ask(&mut anna, 9, half).await;
    assert_eq!(settle(&mut anna, completion(&first, 0)).await, [Verdict::Accepted]);
    gets_nothing(&mut anna).await;
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_only_adds_tasks_is_no_consumer_until_it_asks_for_work() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    server.submit(json!({"chunks": 100, "metadata": {"company": 7}})).await;
    let client = Client::new(&server.url("")).unwrap();
    let half = "\"MaxSimultaneous(company, 50%, OldestFirst)\"";
    let mut producers = Vec::new();
    for _ in 0..5 {
        let (mut producer, _) = ConsumeSocket::connect(&client, "producer", None).await.unwrap();
        let tasks = vec![TaskToAdd::default()];
        let add = ClientFrame::Add { request: 1, lane: "jobs".into(), tasks, idempotency_key: None };
        producer.send(&add).await.unwrap();
        assert!(matches!(producer.receive().await.unwrap(), Some(ServerFrame::Added { .. })));
        producers.push(producer);
    }
    let (mut anna, _) = connect(&server, None).await;
    ask(&mut anna, 9, half).await;
    assert_eq!(work(&mut anna).await[0].chunks.len(), 1, "half of one, and not of six");
    let seen = server.get("/v1/overview").await.json["consumers"].clone();
    assert_eq!((&seen["connected"], &seen["busiest"].as_array().unwrap().len()), (&json!(1), &1), "{seen}");
    assert_eq!((&seen["more"], &server.get("/v1/status").await.json["consumers"]), (&json!(0), &json!(1)));
    assert!(server.get("/metrics").await.text.contains("\nwindlass_consumers 1\n"));

    // Who asks for work counts, whatever it did before.
    ask(&mut anna, 9, half).await;
    gets_nothing(&mut anna).await;
    for producer in producers.iter_mut().take(3) {
        wait_for_nothing(producer).await;
    }
    assert_eq!(work(&mut anna).await[0].chunks.len(), 1, "half of four");
    server.stop().await;
}

#[tokio::test]
async fn after_a_restart_a_hard_limit_lets_nothing_out_until_earlier_consumers_are_back() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    server.submit(json!({"chunks": 5})).await;
    let (mut anna, session) = connect(&server, None).await;
    ask(&mut anna, 2, LIMITED).await;
    let held = work(&mut anna).await.remove(0);
    assert_eq!(held.chunks.len(), 2);

    let server = start_again(server).await;
    let (mut bert, _) = connect(&server, None).await;
    // What has no company is not limited, and does not wait.
    ask(&mut bert, 5, LIMITED).await;
    assert!(work(&mut bert).await[0].metadata.is_empty());
    ask(&mut bert, 5, LIMITED).await;
    gets_nothing(&mut bert).await;
    let holding = |overview: &Value| overview["limits"]["holding_ms"].as_u64();
    let left = holding(&server.get("/v1/overview").await.json).unwrap();
    assert!((1..=3_000).contains(&left), "{left}");
    let why = json!({"strategy": "MaxSimultaneous(company, 2, OldestFirst)", "submission": held.submission});
    let why = server.post("/v1/explain", why).await.json["submission"].clone();
    assert!(
        why["says"].as_str().unwrap().starts_with("work of an earlier leadership may still be under way")
    );
    let limit = &why["ways"][0]["limits"][0];
    assert_eq!((&limit["max"], &limit["holding"]), (&json!(2), &json!(true)));

    let (mut anna, _) = connect(&server, Some(session)).await;
    assert_eq!(settle(&mut anna, reassertion(&held)).await, [Verdict::Accepted, Verdict::Accepted]);
    // Anna is back with both: the limit is exhausted, not held.
    gets_nothing(&mut bert).await;
    assert_eq!(settle(&mut anna, completion(&held, 0)).await, [Verdict::Accepted]);
    assert_eq!(holding(&server.get("/v1/overview").await.json), None);
    assert_eq!(work(&mut bert).await[0].chunks.len(), 1);
    gets_nothing(&mut bert).await;
    server.stop().await;
}

fn reassertion(held: &WorkOf) -> ClientFrame {
    ClientFrame::Reassert { request: 2, submission: held.submission, chunks: held.chunks.clone() }
}

#[tokio::test]
async fn a_consumer_is_back_when_it_has_re_asserted_the_work_of_all_its_submissions() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1, "metadata": {"company": 7}})).await;
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    let (mut anna, session) = connect(&server, None).await;
    ask(&mut anna, 2, LIMITED).await;
    let held = work(&mut anna).await;
    assert_eq!(held.iter().map(|it| it.chunks.len()).collect::<Vec<_>>(), [1, 1]);

    let server = start_again(server).await;
    let (mut bert, _) = connect(&server, None).await;
    ask(&mut bert, 5, LIMITED).await;
    gets_nothing(&mut bert).await;
    let (mut anna, _) = connect(&server, Some(session)).await;
    for held in &held {
        assert_eq!(settle(&mut anna, reassertion(held)).await, [Verdict::Accepted]);
        gets_nothing(&mut bert).await;
    }
    assert_eq!(settle(&mut anna, completion(&held[1], 0)).await, [Verdict::Accepted]);
    assert_eq!(work(&mut bert).await[0].chunks.len(), 1);
    gets_nothing(&mut bert).await;
    server.stop().await;
}

/// A consumer with two chunks under a limit of two.
async fn at_the_limit(server: &Here) -> (ConsumeSocket, u64, WorkOf) {
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    let (mut anna, session) = connect(server, None).await;
    ask(&mut anna, 2, LIMITED).await;
    let held = work(&mut anna).await.remove(0);
    assert_eq!(held.chunks.len(), 2);
    (anna, session, held)
}

/// Comes back with all that it holds, and says something else then.
async fn come_back(server: &Here, before: u64, held: &WorkOf) -> (ConsumeSocket, u64) {
    let (mut socket, session) = connect(server, Some(before)).await;
    assert_eq!(settle(&mut socket, reassertion(held)).await, [Verdict::Accepted, Verdict::Accepted]);
    gets_nothing(&mut socket).await;
    (socket, session)
}

/// Nobody else gets anything after a restart, before this consumer is back or then.
async fn is_waited_for_after_a_restart(server: Here, session: u64, held: &WorkOf) {
    let server = start_again(server).await;
    let (mut bert, _) = connect(&server, None).await;
    ask(&mut bert, 5, LIMITED).await;
    gets_nothing(&mut bert).await;
    let (_anna, _) = come_back(&server, session, held).await;
    gets_nothing(&mut bert).await;
    server.stop().await;
}

#[tokio::test]
async fn work_that_was_re_asserted_after_a_broken_connection_counts_after_a_restart() {
    let server = Here::start(|config| config.grace_ms = 300).await;
    let (_broken, session, held) = at_the_limit(&server).await;
    let (_anna, session) = come_back(&server, session, &held).await;
    // The session before is forgotten when its grace time is over, and leaves the roster.
    tokio::time::sleep(Duration::from_millis(900)).await;

    is_waited_for_after_a_restart(server, session, &held).await;
}

#[tokio::test]
async fn work_that_was_re_asserted_after_a_restart_counts_after_the_next_one() {
    let server = Here::start(|_| {}).await;
    let (_anna, session, held) = at_the_limit(&server).await;
    let server = start_again(server).await;
    let (_anna, session) = come_back(&server, session, &held).await;

    is_waited_for_after_a_restart(server, session, &held).await;
}

#[tokio::test]
async fn a_consumer_that_never_comes_back_is_waited_for_no_longer_than_the_grace_time() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    let (mut anna, _) = connect(&server, None).await;
    ask(&mut anna, 2, LIMITED).await;
    work(&mut anna).await;

    let server = start_again(server).await;
    let (mut bert, _) = connect(&server, None).await;
    ask(&mut bert, 5, LIMITED).await;
    gets_nothing(&mut bert).await;
    let work = tokio::time::timeout(Duration::from_secs(20), work(&mut bert)).await.unwrap();
    assert_eq!(work[0].chunks.len(), 2);

    // The roster forgot Anna, and knows Bert: he says goodbye, and the next start waits for nobody.
    drop(bert);
    server.stop().await;
}

#[tokio::test]
async fn who_never_used_a_hard_limit_is_not_waited_for() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    let (mut anna, _) = connect(&server, None).await;
    ask(&mut anna, 2, "\"OldestFirst\"").await;
    work(&mut anna).await;
    let server = start_again(server).await;
    assert_eq!(reserve(&server, "MaxSimultaneous(company, 2, Random)", 5, 1_000).await.len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn leases_under_a_hard_limit_are_waited_for_after_a_restart() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 5, "metadata": {"company": 7}})).await;
    assert_eq!(reserve(&server, "MaxSimultaneous(company, 2, OldestFirst)", 2, 60_000).await.len(), 2);
    let server = start_again(server).await;
    assert!(reserve(&server, "MaxSimultaneous(company, 2, OldestFirst)", 2, 60_000).await.is_empty());
    assert_eq!(reserve(&server, "PreferDistinct(company, 1, Random)", 2, 60_000).await.len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn work_wakes_those_whose_strategy_can_take_it_and_nobody_else() {
    let server = Here::start(|_| {}).await;
    let (mut preview, _) = connect(&server, None).await;
    let (mut normal, _) = connect(&server, None).await;
    let (mut any, _) = connect(&server, None).await;
    ask(&mut preview, 1, "\"SelectOnly(mode=preview, Random)\"").await;
    gets_nothing(&mut preview).await;
    ask(&mut normal, 1, "\"SelectOnly(mode=normal, Random)\"").await;
    gets_nothing(&mut normal).await;
    ask(&mut any, 1, "\"Random\"").await;
    gets_nothing(&mut any).await;

    server.submit(json!({"chunks": 1, "metadata": {"mode": "normal"}})).await;
    assert_eq!(
        work(&mut normal).await.len(),
        1,
        "the first who may take it came before the one who takes any"
    );
    gets_nothing(&mut preview).await;
    gets_nothing(&mut any).await;
    server.submit(json!({"chunks": 1, "metadata": {"mode": "other"}})).await;
    assert_eq!(work(&mut any).await.len(), 1);
    gets_nothing(&mut preview).await;
    server.stop().await;
}

#[tokio::test]
async fn the_next_chunk_comes_after_the_acknowledgement_if_that_is_asked_for() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 3})).await;
    let (mut socket, _) = connect(&server, None).await;
    ask(&mut socket, 1, "\"OldestFirst\"").await;
    let mut held = work(&mut socket).await.remove(0);
    for expected in 1..3 {
        socket.send(&completion(&held, 0)).await.unwrap();
        let strategy = "\"OldestFirst\"".to_owned();
        let next = ClientFrame::Reserve { request: 2, max: 1, strategy, after_reports: true };
        socket.send(&next).await.unwrap();
        let answer = socket.receive().await.unwrap();
        assert!(matches!(answer, Some(ServerFrame::Settled { .. })), "the acknowledgement first: {answer:?}");
        held = work(&mut socket).await.remove(0);
        assert_eq!(held.chunks[0].chunk.0, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn more_kinds_of_strategies_than_there_may_be_are_refused_with_what_to_do() {
    let server = Here::start(|_| {}).await;
    let mut refused = None;
    for nth in 0..100 {
        let strategy = format!("Fair(field{nth})");
        let answer = server.post("/v1/reserve", json!({"max": 1, "strategy": strategy})).await;
        if answer.status != 200 {
            refused = Some((answer.status, answer.json));
            break;
        }
    }
    let (status, problem) = refused.unwrap();
    assert_eq!((status, &problem["code"]), (422, &json!("strategy_invalid")));
    assert!(problem["detail"].as_str().unwrap().contains("let consumers share strategies"), "{problem}");
    server.stop().await;
}
