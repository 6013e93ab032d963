//! Edges of lanes: leases that are extended, payloads in objects, the largest payload, and how late tasks are.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use windlass_client::frames::{ClientFrame, ServerFrame};
use windlass_client::{Client, ConsumeSocket};
use windlass_tests::binary::windlass;
use windlass_tests::here::{Answered, Here, attempt_of};
use windlass_tests::lanes::{add, complete, create, fail, payloads, reserve, restarted, until};

async fn lease(server: &Here, lease_ms: u64, wait_ms: u64) -> Vec<Value> {
    let body = json!({"max": 1, "strategy": "Lane(jobs)", "lease_ms": lease_ms, "wait_ms": wait_ms});
    let answer = server.post("/v1/reserve", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["reservations"].as_array().unwrap().clone()
}

async fn extend(server: &Here, reservation: &Value, lease_ms: u64) -> Answered {
    let chunks = json!([attempt_of(reservation)]);
    server.post("/v1/extend", json!({"chunks": chunks, "lease_ms": lease_ms})).await
}

#[tokio::test]
async fn a_task_is_with_its_consumer_for_as_long_as_the_lease_is_extended_and_with_the_next_one_after_it() {
    const LEASE_MS: u64 = 2_000;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!([{"payload": "x"}])).await;
    let held = lease(&server, LEASE_MS, 0).await.remove(0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(LEASE_MS * 3 / 2) {
        let extended = extend(&server, &held, 60_000).await;
        assert_eq!(extended.json["chunks"], json!(["accepted"]), "{}", extended.text);
        assert!(lease(&server, LEASE_MS, 100).await.is_empty(), "it is with its consumer");
    }
    // The lease is as long as was said last: from now on a short one.
    let extended = extend(&server, &held, LEASE_MS).await;
    assert_eq!(extended.json["chunks"], json!(["accepted"]), "{}", extended.text);
    let again = lease(&server, 60_000, 20_000).await.remove(0);
    assert_eq!(again["submission"], held["submission"]);
    let late = extend(&server, &held, 60_000).await;
    assert_eq!(late.json["chunks"], json!(["reservation_lost"]), "{}", late.text);
    assert_eq!(complete(&server, &[again]).await["chunks"], json!(["accepted"]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_may_name_an_object_which_comes_at_both_doors_and_on_the_standard_input_of_a_command() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let client = Client::new(&server.url("")).unwrap();
    // More than a payload may be.
    let bytes = "0123456789abcdef".repeat(20_000);
    client.put_object("mails/8", bytes.clone().into()).await.unwrap();
    add(&server, "jobs", json!([{"key": "a", "object": "mails/8"}])).await;

    let by_http = reserve(&server, "Lane(jobs)", 1).await.remove(0);
    assert_eq!((&by_http["input_key"], &by_http["payload"]), (&json!("mails/8"), &Value::Null), "{by_http}");
    assert_eq!(client.get_object("mails/8").await.unwrap(), bytes.as_bytes());
    server.post("/v1/release", json!({"chunks": [attempt_of(&by_http)]})).await;

    let (mut socket, _) = ConsumeSocket::connect(&client, "one", None).await.unwrap();
    let strategy = "\"Lane(jobs)\"".to_owned();
    let reserve = ClientFrame::Reserve { request: 1, max: 1, strategy, after_reports: false };
    socket.send(&reserve).await.unwrap();
    let Some(ServerFrame::Work { work, .. }) = socket.receive().await.unwrap() else { panic!() };
    let of = work[0].task.clone().unwrap();
    assert_eq!((of.key.as_str(), of.object.as_deref(), &work[0].payload), ("a", Some("mails/8"), &None));
    let (submission, chunks) = (work[0].submission, work[0].chunks.clone());
    socket.send(&ClientFrame::Release { request: 2, submission, chunks }).await.unwrap();
    assert!(matches!(socket.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));

    let folder = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(windlass());
    command.args(["--server", &server.url(""), "work", "--strategy", "Lane(jobs)", "--until-idle"]);
    command.args(["--exec", "cat > out.txt"]).current_dir(folder.path()).env_remove("WINDLASS_TOKEN");
    let worked = command.output().await.unwrap();
    assert!(worked.status.success(), "{worked:?}");
    assert_eq!(std::fs::read_to_string(folder.path().join("out.txt")).unwrap(), bytes);
    until(&server, "jobs", |lane| lane["done"] == 1 && lane["waiting"] == 0).await;
    server.stop().await;
}

#[tokio::test]
async fn the_largest_payload_comes_whole_and_one_byte_more_is_refused() {
    const BYTES_MAX: usize = 262_144;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let payload: String = ('a'..='z').cycle().take(BYTES_MAX).collect();
    let more =
        server.post("/v1/lanes/jobs/tasks", json!({"tasks": [{"payload": format!("{payload}x")}]})).await;
    assert_eq!((more.status, &more.json["code"]), (422, &json!("invalid_request")), "{}", more.text);
    assert!(more.json["detail"].as_str().unwrap().contains("at most 262144 bytes"), "{}", more.text);
    // Four of them are what one request takes.
    add(&server, "jobs", json!(vec![json!({"payload": payload}); 4])).await;
    let five =
        server.post("/v1/lanes/jobs/tasks", json!({"tasks": vec![json!({"payload": payload}); 5]})).await;
    assert_eq!((five.status, &five.json["code"]), (422, &json!("invalid_request")), "{}", five.text);
    let mut seen = 0;
    while seen < 4 {
        let some = reserve(&server, "Lane(jobs)", 4).await;
        assert!(!some.is_empty() && payloads(&some).iter().all(|it| *it == payload));
        seen += some.len();
        complete(&server, &some).await;
    }
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], 4);
    server.stop().await;
}

#[tokio::test]
async fn how_late_tasks_of_a_lane_were_at_worst_is_a_metric_once_some_are_handed_out() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let tasks: Vec<Value> = (0..20).map(|nth| json!({"key": format!("k{}", nth % 2)})).collect();
    add(&server, "jobs", json!(tasks)).await;
    let lag = async || {
        let metrics = server.get("/metrics").await.text;
        let line = "windlass_lane_worst_lag_strides{lane=\"jobs\"} ";
        metrics.lines().find_map(|it| it.strip_prefix(line)).map(|it| it.parse::<f64>().unwrap())
    };
    complete(&server, &reserve(&server, "Lane(jobs)", 20).await).await;
    let lag = lag().await.expect("the lane has handed something out");
    assert!((0.0..=1.0).contains(&lag), "all were added before the first went out, so none is late: {lag}");
    let shown = server.get("/v1/lanes/jobs").await.json;
    assert_eq!(shown["worst_lag"].as_f64(), Some(lag), "{shown}");
    server.stop().await;
}

#[tokio::test]
async fn the_tasks_of_each_lane_are_metrics_and_what_is_done_is_counted_over_restarts() {
    let mut server = Here::start(|_| {}).await;
    for lane in ["counted", "other"] {
        create(&server, lane).await;
    }
    add(&server, "other", json!([{}, {}])).await;
    add(&server, "counted", json!([{}, {}, {}, {"delay_ms": 600_000}, {"attempts_max": 1, "priority": 1}]))
        .await;
    let dead = reserve(&server, "Lane(counted)", 1).await;
    fail(&server, &dead[0], "boom").await;
    complete(&server, &reserve(&server, "Lane(counted)", 1).await).await;
    reserve(&server, "Lane(counted)", 1).await;
    for reserved in [1, 0] {
        let metrics = server.get("/metrics").await.text;
        let of = |name: &str, lane: &str| {
            let line = format!("windlass_lane_tasks_{name}{{lane=\"{lane}\"}} ");
            metrics
                .lines()
                .find_map(|it| it.strip_prefix(&line))
                .unwrap_or_else(|| panic!("{name}: {metrics}"))
                .to_owned()
        };
        let counted =
            ["waiting", "delayed", "dead", "added_total", "done_total"].map(|name| of(name, "counted"));
        assert_eq!(counted, ["2", "1", "1", "5", "1"]);
        assert_eq!(of("reserved", "counted"), reserved.to_string());
        assert_eq!([of("waiting", "other"), of("done_total", "other")], ["2", "0"]);
        server = restarted(server).await;
    }
    server.stop().await;
}

/// A delayed task gets the place that the log knows of; hand-outs are not in the log.
#[tokio::test]
async fn a_delayed_task_is_as_late_as_what_went_out_meanwhile_and_the_metric_says_so() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!([{"key": "b", "payload": "later", "delay_ms": 300}])).await;
    add(&server, "jobs", json!(vec![json!({"key": "a", "payload": "x"}); 20])).await;
    let held = reserve(&server, "Lane(jobs)", 10).await;
    assert_eq!(payloads(&held), ["x"; 10], "the tenth stands nine strides behind the first");
    until(&server, "jobs", |lane| lane["delayed"] == 0).await;
    assert_eq!(payloads(&reserve(&server, "Lane(jobs)", 1).await), ["later"]);
    let metrics = server.get("/metrics").await.text;
    assert!(
        metrics.lines().any(|line| line == "windlass_lane_worst_lag_strides{lane=\"jobs\"} 9"),
        "{metrics}"
    );
    assert_eq!(server.get("/v1/lanes/jobs").await.json["worst_lag"], json!(9.0));
    server.stop().await;
}
