//! Lanes at the doors: what the socket refuses, and what people ask for on the command line.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use windlass_client::frames::{ClientFrame, ServerFrame, TaskToAdd};
use windlass_client::{Client, ConsumeSocket};
use windlass_tests::binary::windlass;
use windlass_tests::here::Here;
use windlass_tests::lanes::{add, complete, create, fail, payloads, reserve, restarted, until};

/// Runs `windlass lanes`, and gives what it prints, as JSON.
async fn lanes(server: &Here, args: &[&str]) -> Value {
    let mut command = tokio::process::Command::new(windlass());
    command.args(["--server", &server.url(""), "--json", "lanes"]).args(args).env_remove("WINDLASS_TOKEN");
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

#[tokio::test]
async fn a_task_that_breaks_a_limit_is_refused_over_the_socket_as_over_http_and_nothing_of_the_frame_is_in() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let client = Client::new(&server.url("")).unwrap();
    let (mut socket, _) = ConsumeSocket::connect(&client, "one", None).await.unwrap();
    let good = TaskToAdd { key: "k".repeat(64), ..TaskToAdd::default() };
    let payload = |bytes: usize| Some(vec![b'x'; bytes].into());
    for (request, bad, sentence) in [
        (1, TaskToAdd { key: "k".repeat(65), ..good.clone() }, "a key has at most 64 bytes"),
        (2, TaskToAdd { weight_milli: Some(10_000_001), ..good.clone() }, "a weight is a number"),
        (3, TaskToAdd { payload: payload(262_145), ..good.clone() }, "at most 262144 bytes"),
        (4, TaskToAdd { priority: Some(10), ..good.clone() }, "priority is from 0 to 9"),
    ] {
        let tasks = vec![good.clone(), bad];
        socket
            .send(&ClientFrame::Add { request, lane: "jobs".into(), tasks, idempotency_key: None })
            .await
            .unwrap();
        let answer = socket.receive().await.unwrap();
        let Some(ServerFrame::Refused { request: of, code, detail, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((of, code.as_str()), (request, "invalid_request"), "{detail}");
        assert!(detail.contains(sentence), "{detail}");
    }
    let tasks = vec![TaskToAdd::default(); 1_001];
    socket
        .send(&ClientFrame::Add { request: 9, lane: "jobs".into(), tasks, idempotency_key: None })
        .await
        .unwrap();
    let answer = socket.receive().await.unwrap();
    assert!(matches!(answer, Some(ServerFrame::Refused { request: 9, .. })), "{answer:?}");
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], 0);

    let long = "k".repeat(64);
    add(&server, "jobs", json!([{"key": long, "payload": "by http"}])).await;
    let tasks = vec![TaskToAdd { payload: payload(3), ..good }];
    socket
        .send(&ClientFrame::Add { request: 10, lane: "jobs".into(), tasks, idempotency_key: None })
        .await
        .unwrap();
    assert!(matches!(socket.receive().await.unwrap(), Some(ServerFrame::Added { request: 10, .. })));
    let both = reserve(&server, "Lane(jobs)", 2).await;
    assert_eq!(payloads(&both), ["by http", "xxx"]);
    assert!(both.iter().all(|it| it["key"] == json!(long)));
    server.stop().await;
}

#[tokio::test]
async fn lanes_are_listed_a_page_at_a_time() {
    let server = Here::start(|_| {}).await;
    for lane in ["c", "a", "e", "b", "d"] {
        create(&server, lane).await;
    }
    let (mut seen, mut args) = (Vec::new(), vec!["list".to_owned(), "--limit".into(), "2".into()]);
    loop {
        let page = lanes(&server, &args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let items: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["lane"].as_str().unwrap().to_owned())
            .collect();
        assert!(items.len() <= 2);
        seen.extend(items);
        let Some(next) = page["next"].as_str() else { break };
        args = ["list", "--limit", "2", "--cursor", next].map(str::to_owned).into();
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    server.stop().await;
}

#[tokio::test]
async fn weights_and_limits_are_set_and_taken_back_on_the_command_line_and_a_tenant_is_shown_with_its_users()
{
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let lane = async || server.get("/v1/lanes/jobs").await.json;
    lanes(&server, &["weigh", "jobs", "a=2", "acme/=0.5"]).await;
    assert_eq!(lane().await["weights"], json!({"a": 2.0, "acme/": 0.5}));
    lanes(&server, &["weigh", "jobs", "b=3", "--unset", "a", "--unset", "acme/"]).await;
    assert_eq!(lane().await["weights"], json!({"b": 3.0}));
    lanes(&server, &["limit", "jobs", "--each-key", "--in-flight", "1"]).await;
    assert_eq!(lane().await["limits"], json!({"each_key": {"in_flight": 1}}));
    add(&server, "jobs", json!([{"key": "acme/u"}, {"key": "acme/u"}, {"key": "acme/v"}, {"key": "b"}]))
        .await;
    assert_eq!(reserve(&server, "Lane(jobs)", 9).await.len(), 3, "one of each key");
    let shown = lanes(&server, &["show", "jobs", "--key", "acme/"]).await["busiest"].clone();
    let keys: Vec<(&Value, &Value)> =
        shown.as_array().unwrap().iter().map(|it| (&it["key"], &it["waiting"])).collect();
    assert_eq!(keys[0], (&json!("acme/"), &json!(3)), "{shown}");
    assert_eq!(keys[1..], [(&json!("acme/u"), &json!(2)), (&json!("acme/v"), &json!(1))]);
    lanes(&server, &["limit", "jobs", "--each-key", "--lift"]).await;
    assert_eq!(lane().await["limits"], json!({}));
    assert_eq!(reserve(&server, "Lane(jobs)", 9).await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn dead_tasks_are_driven_again_by_their_ids_or_all_of_them_on_the_command_line() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let ids = add(&server, "jobs", json!(vec![json!({"key": "a", "attempts_max": 1}); 5])).await;
    for reservation in reserve(&server, "Lane(jobs)", 5).await {
        fail(&server, &reservation, "it broke").await;
    }
    let lane = async || server.get("/v1/lanes/jobs").await.json;
    assert_eq!(lane().await["dead"], 5);
    lanes(&server, &["redrive", "jobs", &ids[1], &ids[3]]).await;
    assert_eq!((&lane().await["dead"], &lane().await["waiting"]), (&json!(3), &json!(2)));
    let again = reserve(&server, "Lane(jobs)", 9).await;
    let again: Vec<&Value> = again.iter().map(|it| &it["submission"]).collect();
    assert_eq!(again, [&json!(ids[1]), &json!(ids[3])]);
    lanes(&server, &["redrive", "jobs", "--all"]).await;
    assert_eq!((&lane().await["dead"], &lane().await["waiting"]), (&json!(0), &json!(5)));
    server.stop().await;
}

/// How far apart the tasks of a key of weight 1 stand.
const STRIDE: u64 = 1 << 20;

async fn explained(server: &Here, task: &str) -> Value {
    let explained = server.get(&format!("/v1/lanes/jobs/tasks/{task}")).await;
    assert_eq!(explained.status, 200, "{}", explained.text);
    explained.json
}

#[tokio::test]
async fn a_lane_shows_how_far_it_is_read_handed_out_and_done_and_since_when_the_next_task_waits() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let shown = async |server: &Here| server.get("/v1/lanes/jobs").await.json;
    let ids = add(&server, "jobs", json!(vec![json!({"key": "a"}); 6])).await;
    let level = |nth: usize| json!(format!("<{}, {}>", nth as u64 * STRIDE, ids[nth]));
    let lane = shown(&server).await;
    let rank = &lane["priorities"][0];
    assert_eq!((&rank["read_level"], &rank["max_level"]), (&level(5), &level(5)), "{lane}");
    assert_eq!((&rank["virtual_time"], &rank["is_read_to_end"]), (&json!(0), &json!(true)), "{lane}");
    assert_eq!(
        (&rank["in_memory"], &rank["ack_level"]),
        (&json!(6), &Value::Null),
        "nothing is done: {lane}"
    );
    let added_at = explained(&server, &ids[0]).await["added_at"].clone();
    assert_eq!((&lane["oldest_added_at"], added_at.is_string()), (&added_at, true), "{lane}");

    // V is where the last one stands that went out.
    let held = reserve(&server, "Lane(jobs)", 4).await;
    complete(&server, &[held[0].clone(), held[1].clone(), held[3].clone()]).await;
    let lane = until(&server, "jobs", |lane| lane["done"] == 3).await;
    let rank = &lane["priorities"][0];
    assert_eq!((&rank["virtual_time"], &rank["in_memory"]), (&json!(3 * STRIDE), &json!(2)), "{lane}");
    assert_eq!((&rank["reserved"], &rank["waiting"]), (&json!(1), &json!(3)));
    let later = add(&server, "jobs", json!([{"key": "b"}])).await;
    let oldest = explained(&server, &ids[4]).await["added_at"].clone();
    assert_eq!(shown(&server).await["oldest_added_at"], oldest, "that of the next one, not of the newest");
    assert_eq!(explained(&server, &later[0]).await["level"], format!("<{}, {}>", 3 * STRIDE, later[0]));

    let server = restarted(server).await;
    let lane = shown(&server).await;
    let rank = &lane["priorities"][0];
    assert_eq!((&rank["virtual_time"], &rank["max_level"]), (&json!(3 * STRIDE), &level(5)), "{lane}");
    let oldest = until(&server, "jobs", |lane| lane["priorities"][0]["is_read_to_end"] == true).await;
    assert_eq!(oldest["oldest_added_at"], added_at, "what was out waits again, since it was added");
    server.stop().await;
}

#[tokio::test]
async fn how_far_everything_is_done_is_shown_after_some_thousand_tasks_and_never_beyond_one_that_is_not() {
    const HELD: usize = 4_300;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.extend(add(&server, "jobs", json!(vec![json!({"key": "a"}); 1_000])).await);
    }
    let mut out = Vec::new();
    while out.len() < 4_500 {
        out.extend(reserve(&server, "Lane(jobs)", (4_500 - out.len()) as u64).await);
    }
    out.remove(HELD);
    complete(&server, &out).await;
    let lane = until(&server, "jobs", |lane| lane["priorities"][0]["ack_level"] != Value::Null).await;
    let rank = &lane["priorities"][0];
    let text = rank["ack_level"].as_str().unwrap();
    let (pass, id) = text.trim_matches(['<', '>']).split_once(", ").unwrap();
    let acked: (u64, u64) = (pass.parse().unwrap(), id.parse().unwrap());
    let level = |nth: usize| (nth as u64 * STRIDE, ids[nth].parse::<u64>().unwrap());
    assert!(level(4_094) <= acked && acked < level(HELD), "everything up to it is done: {lane}");
    assert_eq!((&rank["virtual_time"], &lane["done"]), (&json!(4_499 * STRIDE), &json!(4_499)), "{lane}");
    let first_left = explained(&server, &ids[4_500]).await["added_at"].clone();
    assert_eq!(lane["oldest_added_at"], first_left, "{lane}");
    server.stop().await;
}

#[tokio::test]
async fn a_dead_task_and_one_of_a_paused_lane_are_explained() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let ids = add(&server, "jobs", json!([{"key": "a", "attempts_max": 1}, {"key": "a"}])).await;
    fail(&server, &reserve(&server, "Lane(jobs)", 1).await[0], "it broke").await;
    let dead = explained(&server, &ids[0]).await;
    assert_eq!(
        (&dead["standing"], &dead["failures"], &dead["attempts_max"]),
        (&json!("dead"), &json!(1), &json!(1))
    );
    assert_eq!(dead["why"], "all its attempts have failed; redrive tries it again");
    for field in ["level", "due_at", "wait_bound"] {
        assert_eq!(dead[field], Value::Null, "{dead}");
    }
    server.post("/v1/lanes/jobs/pause", json!({})).await;
    let paused = explained(&server, &ids[1]).await;
    assert_eq!((&paused["standing"], &paused["ahead"]), (&json!("waiting"), &json!(0)));
    assert_eq!(paused["why"], "the lane is paused; resume it");
    server.post("/v1/lanes/jobs/resume", json!({})).await;
    assert_eq!(explained(&server, &ids[1]).await["why"], "it goes to the next consumer that asks");
    server.stop().await;
}

#[tokio::test]
async fn more_tasks_ahead_than_are_counted_are_said_to_be_more() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(add(&server, "jobs", json!(vec![json!({"key": "a"}); 1_000])).await);
    }
    ids.extend(add(&server, "jobs", json!(vec![json!({"key": "a"}); 2])).await);
    for (nth, ahead, has_more) in [(9_999, 9_999, false), (10_000, 10_000, false), (10_001, 10_000, true)] {
        let explained = explained(&server, &ids[nth]).await;
        let counted = (&explained["ahead"], &explained["has_more_ahead"]);
        assert_eq!(counted, (&json!(ahead), &json!(has_more)), "number {nth}: {explained}");
        assert_eq!(explained["ahead_by_key"], json!([{"key": "a", "priority": 0, "waiting": ahead}]));
        // The bound is told from the strides.
        assert_eq!(explained["wait_bound"], json!(nth), "{explained}");
    }
    server.stop().await;
}
