//! Lanes over HTTP: tasks are shared fairly, tried again, put aside when they fail for good, and outlive restarts.

use serde_json::{Value, json};
use std::time::Duration;
use windlass_client::frames::{ClientFrame, ServerFrame, TaskToAdd};
use windlass_client::{Client, ConsumeSocket};
use windlass_tests::here::{Here, answered, attempt_of};
use windlass_tests::lanes::{add, complete, create, fail, payloads, reserve, restarted, until};

#[tokio::test]
async fn keys_share_a_lane_by_weight_priorities_go_first_and_a_restart_changes_nothing() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let tasks_of = |key: &str, weight: f64, count: u32| -> Vec<Value> {
        let task = |nth: u32| json!({"key": key, "weight": weight, "payload": format!("{key}{nth}")});
        (0..count).map(task).collect()
    };
    add(&server, "emails", json!(tasks_of("a", 1.0, 10))).await;
    add(&server, "emails", json!(tasks_of("b", 2.0, 10))).await;
    add(&server, "emails", json!([{"key": "c", "priority": 1, "payload": "first"}])).await;
    let first = reserve(&server, "Lane(emails)", 7).await;
    assert_eq!(payloads(&first), ["first", "a0", "b0", "b1", "a1", "b2", "b3"]);
    assert_eq!((&first[1]["lane"], &first[1]["key"]), (&json!("emails"), &json!("a")));
    assert_eq!(complete(&server, &first).await["chunks"], json!(vec!["accepted"; 7]));
    assert_eq!(complete(&server, &first[..1]).await["chunks"], json!(["already_done"]));

    let held = reserve(&server, "Lane(emails)", 2).await;
    assert_eq!(payloads(&held), ["a2", "b4"]);
    let server = restarted(server).await;
    // Those that were out come first again, in their old places.
    let again = reserve(&server, "Lane(emails)", 4).await;
    assert_eq!(payloads(&again), ["a2", "b4", "b5", "a3"]);
    // The report of an attempt that was handed out before the restart counts: the first completion wins.
    assert_eq!(complete(&server, &held[..1]).await["chunks"], json!(["accepted"]));
    assert_eq!(complete(&server, &again[..1]).await["chunks"], json!(["already_done"]));
    let rest = reserve(&server, "Lane(emails)", 100).await;
    assert_eq!(rest.len(), 20 - 6 - 4);
    complete(&server, &again).await;
    complete(&server, &rest).await;
    let lane = server.get("/v1/lanes/emails").await.json;
    assert_eq!((&lane["waiting"], &lane["done"], &lane["keys"]), (&json!(0), &json!(21), &json!(0)));
}

#[tokio::test]
async fn a_task_is_tried_again_later_then_dies_and_is_driven_again_by_its_reason() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let task = json!({"key": "a", "payload": "x", "attempts_max": 2, "retry_delay_ms": 20});
    let ids = add(&server, "jobs", json!([task, task])).await;
    for attempt in 0..2 {
        until(&server, "jobs", |lane| lane["waiting"] == 2 && lane["delayed"] == 0).await;
        for reservation in reserve(&server, "Lane(jobs)", 2).await {
            let reason = if attempt == 1 && reservation["submission"] == json!(ids[1]) { "b" } else { "a" };
            fail(&server, &reservation, reason).await;
        }
    }
    let lane = until(&server, "jobs", |lane| lane["dead"] == 2).await;
    assert_eq!((&lane["waiting"], &lane["delayed"]), (&json!(0), &json!(0)));
    let server = restarted(server).await;
    let dead = server.get("/v1/lanes/jobs/dead").await.json;
    let groups: Vec<(&Value, &Value)> =
        dead["groups"].as_array().unwrap().iter().map(|it| (&it["reason"], &it["examples"])).collect();
    assert!(groups.contains(&(&json!("a"), &json!([ids[0]]))), "{dead}");
    assert!(groups.contains(&(&json!("b"), &json!([ids[1]]))), "{dead}");

    let redriven = server.post("/v1/lanes/jobs/redrive", json!({"reason": "b"})).await;
    assert_eq!(redriven.json, json!({"tasks": 1}));
    let again = reserve(&server, "Lane(jobs)", 10).await;
    assert_eq!(again.iter().map(|it| &it["submission"]).collect::<Vec<_>>(), [&json!(ids[1])]);
    complete(&server, &again).await;
    assert_eq!(server.post("/v1/lanes/jobs/redrive", json!({})).await.json, json!({"tasks": 1}));
    assert_eq!(server.post("/v1/lanes/jobs/redrive", json!({})).await.json, json!({"tasks": 0}));
}

#[tokio::test]
async fn a_waiting_reserve_gets_a_task_as_soon_as_it_is_added_due_resumed_or_given_back() {
    let server = Here::start(|_| {}).await;
    for lane in ["urgent", "slow"] {
        create(&server, lane).await;
    }
    let strategy = "OrElse(Lane(urgent), OrElse(Random, Lane(slow)))";
    let waiting = |server: &Here| {
        let url = server.url("/v1/reserve");
        let body = json!({"max": 1, "strategy": strategy, "wait_ms": 30_000});
        let request = server.http.post(url).json(&body);
        tokio::spawn(async move { answered(request).await.json["reservations"][0].clone() })
    };
    let reserves_waiting = |is: u64| {
        let server = &server;
        async move {
            while server.get("/v1/status").await.json["waiting"] != json!(is) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let asked = waiting(&server);
    reserves_waiting(1).await;
    add(&server, "slow", json!([{"payload": "added"}])).await;
    assert_eq!(asked.await.unwrap()["payload"], "added");

    let asked = waiting(&server);
    reserves_waiting(1).await;
    add(&server, "urgent", json!([{"payload": "due", "delay_ms": 50}])).await;
    let due = asked.await.unwrap();
    assert_eq!((&due["payload"], &due["lane"]), (&json!("due"), &json!("urgent")));

    let asked = waiting(&server);
    reserves_waiting(1).await;
    server.post("/v1/release", json!({"chunks": [attempt_of(&due)]})).await;
    assert_eq!(asked.await.unwrap()["payload"], "due");

    server.post("/v1/lanes/urgent/pause", json!({})).await;
    add(&server, "urgent", json!([{"payload": "paused"}])).await;
    let asked = waiting(&server);
    reserves_waiting(1).await;
    let resumed = server.post("/v1/lanes/urgent/resume", json!({})).await;
    assert_eq!(resumed.json["is_paused"], false, "{}", resumed.text);
    assert_eq!(asked.await.unwrap()["payload"], "paused");
}

#[tokio::test]
async fn a_backlog_larger_than_the_buffer_comes_in_order_and_a_reserve_that_does_not_wait_gets_it() {
    let server = Here::start(|_| {}).await;
    create(&server, "bulk").await;
    const TASKS: usize = 10_000;
    for begin in (0..TASKS).step_by(1_000) {
        let task = |nth: usize| json!({"key": format!("k{}", nth % 7), "payload": nth.to_string()});
        add(&server, "bulk", json!((begin..begin + 1_000).map(task).collect::<Vec<_>>())).await;
    }
    let lane = server.get("/v1/lanes/bulk").await.json;
    let in_memory = lane["priorities"][0]["in_memory"].as_u64().unwrap();
    assert!(in_memory <= 4_096, "what is in memory is bounded: {lane}");
    let server = restarted(server).await;
    let mut seen = Vec::new();
    loop {
        let some = reserve(&server, "Lane(bulk)", 500).await;
        if some.is_empty() {
            break;
        }
        seen.extend(some.iter().map(|it| it["payload"].as_str().unwrap().parse::<usize>().unwrap()));
        complete(&server, &some).await;
    }
    assert_eq!(seen.len(), TASKS, "no reserve was told that there is nothing while there was");
    for key in 0..7 {
        assert!(
            seen.iter().filter(|nth| *nth % 7 == key).is_sorted(),
            "each key's tasks come in their order"
        );
    }
    let lane = until(&server, "bulk", |lane| lane["waiting"] == 0).await;
    assert_eq!(lane["done"], json!(TASKS));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_what_to_do_and_nothing_of_the_request_is_in() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let good = json!({"key": "a"});
    let long = "x".repeat(65);
    for (task, sentence) in [
        (json!({"key": long}), "a key has at most 64 bytes"),
        (json!({"weight": 0}), "a weight is a number from 0.001 to 10000"),
        (json!({"weight": -1}), "a weight is a number"),
        (json!({"weight": 1e9}), "a weight is a number"),
        (json!({"weight": 1e-9}), "a weight is a number"),
        (json!({"priority": 10}), "priority is from 0 to 9"),
        (json!({"payload": "x".repeat(262_145)}), "at most 262144 bytes"),
        (json!({"payload": "x", "object": "y"}), "a `payload` or an `object`, not both"),
        (json!({"not_before": "tomorrow"}), "a time such as 2027-01-31T12:00:00Z"),
        (json!({"not_before": "2027-01-31T12:00:00Z", "delay_ms": 1}), "not both"),
        (json!({"attempts_max": 0}), "`attempts_max` is between 1 and"),
        (json!({"delay_ms": u64::MAX}), "`delay_ms` is at most"),
        (json!({"not_before": "9999-01-01T00:00:00Z"}), "before the year 9000"),
    ] {
        let refused = server.post("/v1/lanes/emails/tasks", json!({"tasks": [good, task]})).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")), "{task}");
        let detail = refused.json["detail"].as_str().unwrap();
        assert!(detail.starts_with("task 1: ") && detail.contains(sentence), "{detail}");
    }
    for (body, status, code) in [
        (json!({"tasks": []}), 422, "invalid_request"),
        (json!({"tasks": vec![json!({}); 1_001]}), 422, "invalid_request"),
        (json!({"tasks": [{"wieght": 1}]}), 400, "malformed_request"),
        (json!({"tasks": [{"weight": "NaN"}]}), 400, "malformed_request"),
    ] {
        let refused = server.post("/v1/lanes/emails/tasks", body).await;
        assert_eq!((refused.status, &refused.json["code"]), (status, &json!(code)), "{}", refused.text);
    }
    let unknown = server.post("/v1/lanes/email/tasks", json!({"tasks": [good]})).await;
    assert_eq!((unknown.status, &unknown.json["code"]), (404, &json!("lane_unknown")));
    let unknown = server.post("/v1/reserve", json!({"strategy": "Lane(email)"})).await;
    assert_eq!((unknown.status, &unknown.json["code"]), (422, &json!("strategy_invalid")));
    let nested = server.post("/v1/reserve", json!({"strategy": "MaxSimultaneous(a, 1, Lane(emails))"})).await;
    assert!(nested.text.contains("Lane stands alone or as a side of OrElse"), "{}", nested.text);
    let unnamed = answered(server.http.put(server.url("/v1/lanes/no%20name"))).await;
    assert_eq!((unnamed.status, &unnamed.json["code"]), (422, &json!("invalid_request")));
    server.post("/v1/lanes/emails/drain", json!({})).await;
    let drained = server.post("/v1/lanes/emails/tasks", json!({"tasks": [good]})).await;
    assert_eq!((drained.status, &drained.json["code"]), (409, &json!("lane_draining")));
    assert_eq!(server.get("/v1/lanes/emails").await.json["added"], 0);
}

#[tokio::test]
async fn the_weight_of_a_key_goes_before_those_of_its_tasks_from_the_next_add_on_and_over_restarts() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let task = |key: &str| json!({"key": key, "weight": 1, "payload": key});
    let both: Vec<Value> = ["a", "b"].repeat(6).into_iter().map(task).collect();
    add(&server, "emails", json!(both)).await;
    let changed = server.patch("/v1/lanes/emails", json!({"weights": {"b": 2, "x": 0.5}})).await;
    assert_eq!(changed.json["weights"], json!({"b": 2.0, "x": 0.5}), "{}", changed.text);
    let server = restarted(server).await;
    let before = reserve(&server, "Lane(emails)", 12).await;
    assert_eq!(payloads(&before), ["a", "b"].repeat(6), "levels that were given stay");
    complete(&server, &before).await;
    add(&server, "emails", json!(both)).await;
    let after = reserve(&server, "Lane(emails)", 6).await;
    assert_eq!(payloads(&after).iter().filter(|key| **key == "b").count(), 4);
    let unset = server.patch("/v1/lanes/emails", json!({"weights": {"b": null}})).await;
    assert_eq!(unset.json["weights"], json!({"x": 0.5}));
    for (lane, weights, status) in [
        ("emails", json!({"a": 0}), 422),
        ("emails", json!({"x".repeat(65): 1}), 422),
        ("other", json!({}), 404),
    ] {
        let refused = server.patch(&format!("/v1/lanes/{lane}"), json!({"weights": weights})).await;
        assert_eq!(refused.status, status, "{}", refused.text);
    }
}

#[tokio::test]
async fn a_task_is_told_where_it_stands_and_what_is_ahead_of_it() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let of_a = add(&server, "jobs", json!(vec![json!({"key": "a"}); 5])).await;
    let of_b = add(&server, "jobs", json!([{"key": "b"}, {"key": "b", "delay_ms": 600_000}])).await;
    add(&server, "jobs", json!([{"key": "c", "priority": 2}])).await;
    let explain = async |id: &str| server.get(&format!("/v1/lanes/jobs/tasks/{id}")).await.json;
    let last = explain(&of_a[4]).await;
    assert_eq!((&last["standing"], &last["ahead"]), (&json!("waiting"), &json!(6)), "{last}");
    let by_key =
        json!([{"key": "a", "priority": 0, "waiting": 4}, {"key": "b", "priority": 0, "waiting": 1}]);
    assert_eq!(last["ahead_by_key"], by_key);
    assert_eq!(
        explain(&of_b[0]).await["ahead"],
        2,
        "the one of a higher priority, and the first of the other key"
    );
    assert_eq!(explain(&of_b[1]).await["standing"], "delayed");
    let held = reserve(&server, "Lane(jobs)", 2).await;
    assert_eq!(explain(&of_a[0]).await["standing"], "reserved");
    let next = explain(&of_b[0]).await;
    assert_eq!((&next["ahead"], &next["why"]), (&json!(0), &json!("it goes to the next consumer that asks")));
    complete(&server, &held).await;
    let done = server.get(&format!("/v1/lanes/jobs/tasks/{}", of_a[0])).await;
    assert_eq!((done.status, &done.json["code"]), (404, &json!("task_unknown")));
    assert_eq!(server.get("/v1/lanes/jobs/tasks/x").await.status, 400);
    assert_eq!(server.get(&format!("/v1/lanes/other/tasks/{}", of_a[1])).await.status, 404);
}

#[tokio::test]
async fn tasks_are_added_over_the_socket_side_by_side_with_other_frames() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let client = Client::new(&format!("http://{}", server.address())).unwrap();
    let (mut socket, _) = ConsumeSocket::connect(&client, "both", None).await.unwrap();
    let task = |key: &str| TaskToAdd {
        key: key.into(),
        payload: Some(b"x".to_vec().into()),
        ..TaskToAdd::default()
    };
    let add = |request, lane: &str, tasks| ClientFrame::Add {
        request,
        lane: lane.into(),
        tasks,
        idempotency_key: None,
    };
    socket.send(&add(1, "jobs", vec![task("a"), task("b")])).await.unwrap();
    let Some(ServerFrame::Added { request: 1, tasks }) = socket.receive().await.unwrap() else { panic!() };
    let strategy = "\"Lane(jobs)\"".to_owned();
    let reserve = ClientFrame::Reserve { request: 2, max: 10, strategy, after_reports: false };
    socket.send(&reserve).await.unwrap();
    let Some(ServerFrame::Work { work, .. }) = socket.receive().await.unwrap() else { panic!() };
    assert_eq!(work.iter().map(|it| it.submission).collect::<Vec<_>>(), tasks);
    let of = work[1].task.clone().unwrap();
    assert_eq!((of.lane.as_str(), of.key.as_str(), of.object), ("jobs", "b", None));
    let heavy = TaskToAdd { weight_milli: Some(0), ..task("c") };
    for (request, lane, tasks, code) in [
        (3, "other", vec![task("a")], "lane_unknown"),
        (4, "jobs", vec![task("a"), heavy], "invalid_request"),
        (5, "jobs", Vec::new(), "invalid_request"),
    ] {
        socket.send(&add(request, lane, tasks)).await.unwrap();
        let Some(ServerFrame::Refused { request: of, code: said, .. }) = socket.receive().await.unwrap()
        else {
            panic!()
        };
        assert_eq!((of, said.as_str()), (request, code));
    }
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], 2);
}

#[tokio::test]
async fn a_reserve_of_many_large_tasks_gives_some_of_them_and_the_rest_to_the_next() {
    const TASKS: usize = 48;
    let server = Here::start(|_| {}).await;
    create(&server, "large").await;
    let task = json!({"payload": "x".repeat(250 * 1_024)});
    for _ in 0..TASKS / 4 {
        add(&server, "large", json!(vec![task.clone(); 4])).await;
    }
    let by_http = reserve(&server, "Lane(large)", 1_000).await;
    assert!((1..TASKS / 2).contains(&by_http.len()), "{} of {TASKS}", by_http.len());
    complete(&server, &by_http).await;
    let client = Client::new(&format!("http://{}", server.address())).unwrap();
    let (mut socket, _) = ConsumeSocket::connect(&client, "one", None).await.unwrap();
    let mut seen = by_http.len();
    while seen < TASKS {
        let strategy = "\"Lane(large)\"".to_owned();
        let reserve = ClientFrame::Reserve { request: 1, max: 1_000, strategy, after_reports: false };
        socket.send(&reserve).await.unwrap();
        let (mut came, mut has_more) = (0, true);
        while has_more {
            let Some(ServerFrame::Work { work, more, .. }) = socket.receive().await.unwrap() else {
                panic!()
            };
            (came, has_more) = (came + work.len(), more);
        }
        assert!((1..=40).contains(&came), "{came} tasks of 250 KiB are what one reserve gives");
        seen += came;
    }
    assert_eq!(seen, TASKS);
}

#[tokio::test]
async fn a_repeated_add_is_answered_again_and_adds_nothing() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let post = |body: Value| {
        let request = server.http.post(server.url("/v1/lanes/emails/tasks")).header("idempotency-key", "one");
        answered(request.json(&body))
    };
    let first = post(json!({"tasks": [{"key": "a"}, {"key": "b", "delay_ms": 60_000}]})).await;
    let second = post(json!({"tasks": [{"key": "a"}, {"key": "b", "delay_ms": 60_000}]})).await;
    assert_eq!((first.status, &first.json), (second.status, &second.json));
    let other = post(json!({"tasks": [{"key": "c"}]})).await;
    assert_eq!((other.status, &other.json["code"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(server.get("/v1/lanes/emails").await.json["added"], 2);
}
