//! The doors of lanes: what they take at a time, what they refuse, and what they say.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, TaskToAdd, WorkOf};
use windlass_client::lanes::{RedriveRequest, TaskRequest};
use windlass_client::{Client, ClientError, ConsumeSocket, Output};
use windlass_tests::here::{Here, answered, attempt_of};
use windlass_tests::lanes::{add, create, fail, reserve};

async fn connect(server: &Here) -> ConsumeSocket {
    let client = Client::new(&server.url("")).unwrap();
    ConsumeSocket::connect(&client, "test", None).await.unwrap().0
}

/// Tasks with so many bytes of payloads in all.
fn large_tasks(bytes: usize) -> Vec<TaskToAdd> {
    let task = |bytes| TaskToAdd { payload: Some(vec![7; bytes].into()), ..TaskToAdd::default() };
    let some = bytes.min(200_000);
    (0..bytes / some).map(|_| task(some)).collect()
}

fn add_frame(request: u64, tasks: Vec<TaskToAdd>) -> ClientFrame {
    ClientFrame::Add { request, lane: "jobs".into(), tasks, idempotency_key: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn additions_of_many_bytes_wait_in_their_connection_until_those_before_are_answered_and_all_are_in() {
    const ADDS: u64 = 48;
    /// Frames of a megabyte that may be under way, with the one that was read as the last of them found room.
    const UNDER_WAY: usize = 5;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let (mut sender, mut receiver) = connect(&server).await.split();
    let sending = tokio::spawn(async move {
        for request in 0..ADDS {
            sender.feed(&add_frame(request, large_tasks(1_000_000))).await.unwrap();
        }
        sender.feed(&ClientFrame::Heartbeat {}).await.unwrap();
        sender.flush().await.unwrap();
        sender
    });
    let (mut added, mut before_heartbeat) = (0, None);
    while added < ADDS as usize || before_heartbeat.is_none() {
        match receiver.receive().await.unwrap() {
            Some(ServerFrame::Added { .. }) => added += 1,
            // It is read, and answered, as soon as the frames before it are.
            Some(ServerFrame::Heartbeat {}) => before_heartbeat = Some(added),
            other => panic!("answers were expected, not {other:?}"),
        }
    }
    assert!(
        before_heartbeat.unwrap() >= ADDS as usize - UNDER_WAY,
        "{before_heartbeat:?} of {ADDS} were answered before the server read on"
    );
    sending.await.unwrap();
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], json!(ADDS * 5));
    server.stop().await;
}

#[tokio::test]
async fn a_frame_as_large_as_a_frame_may_be_gets_through_and_what_it_asks_is_answered() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let mut socket = connect(&server).await;
    // Too much for one addition, which is said; the connection goes on.
    socket.send(&add_frame(1, large_tasks(4_000_000))).await.unwrap();
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Refused { request: 1, code, retry_helps: false, .. }) => {
            assert_eq!(code, "invalid_request");
        }
        other => panic!("a refusal was expected, not {other:?}"),
    }
    socket.send(&add_frame(2, large_tasks(10))).await.unwrap();
    assert!(matches!(socket.receive().await.unwrap(), Some(ServerFrame::Added { request: 2, .. })));
    server.stop().await;
}

#[tokio::test]
async fn a_change_of_a_lane_of_which_a_part_is_refused_changes_nothing() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let limits = json!({"lane": {"in_flight": 5}});
    let full: serde_json::Map<String, Value> = (0..1_000).map(|nth| (format!("k{nth}"), json!(2))).collect();
    assert_eq!(server.patch("/v1/lanes/jobs", json!({"weights": full})).await.status, 200);
    for (weights, why) in [
        (json!({"x".repeat(65): 2}), "at most 64 bytes"),
        (json!({"bob": 0}), "from 0.001 to 10000"),
        (json!({"bob": 2}), "at most 1000 keys"),
        (json!({"acme/bob/": 2}), "say \"acme/\" for the tenant"),
    ] {
        let refused = server.patch("/v1/lanes/jobs", json!({"limits": limits, "weights": weights})).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")));
        assert!(refused.json["detail"].as_str().unwrap().contains(why), "{}", refused.text);
        let shown = server.get("/v1/lanes/jobs?keys=0").await.json;
        assert_eq!(shown["limits"], json!({}), "nothing of it holds");
        assert_eq!(shown["weights"].as_object().unwrap().len(), 1_000);
    }
    // One that makes room for another is taken, and so are the limits beside it.
    let change = json!({"limits": limits, "weights": {"k7": null, "bob": 3}});
    let changed = server.patch("/v1/lanes/jobs", change).await;
    assert_eq!((changed.status, &changed.json["limits"]), (200, &limits), "{}", changed.text);
    assert_eq!((&changed.json["weights"]["bob"], changed.json["weights"].get("k7")), (&json!(3.0), None));

    let odd =
        server.patch("/v1/lanes/jobs", json!({"limits": {"named": {"acme/bob/": {"in_flight": 1}}}})).await;
    assert!(odd.status == 422 && odd.text.contains("for its user"), "{}", odd.text);
    let lifted = server.patch("/v1/lanes/jobs", json!({"limits": {"named": {"acme/bob/": null}}})).await;
    assert_eq!(lifted.status, 200, "what an earlier build has taken can be lifted: {}", lifted.text);
    let tenant = server.post("/v1/lanes/jobs/relevel", json!({"keys": ["acme/"]})).await;
    assert!(tenant.status == 422 && tenant.text.contains("counts at once"), "{}", tenant.text);
    server.stop().await;
}

#[tokio::test]
async fn a_limit_that_is_refused_leaves_a_lane_with_tasks_as_it_was_without_an_order_of_keys() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!([{"key": "a"}, {"key": "b"}])).await;
    let too_many: serde_json::Map<String, Value> =
        (0..1_001).map(|nth| (format!("k{nth}"), json!({"in_flight": 1}))).collect();
    for (limits, why) in [
        (json!({"each_key": {"in_flight": 2_000_000}}), "at most 1000000"),
        (json!({"named": too_many}), "at most 1000 keys"),
        (json!({"each_key": {"per_second": 1, "burst": 2_000_000}}), "burst of 1 to 1000000"),
        (json!({"each_key": {"in_flight": 1}, "named": {"x".repeat(65): {}}}), "at most 64 bytes"),
        (json!({"each_key": {"in_flight": 1}, "named": {"acme/bob/": {}}}), "for its user"),
    ] {
        let refused = server.patch("/v1/lanes/jobs", json!({"limits": limits})).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")));
        assert!(refused.text.contains(why), "{}", refused.text);
        let shown = server.get("/v1/lanes/jobs").await.json;
        assert_eq!(
            (&shown["limits"], &shown["key_order"]),
            (&json!({}), &json!({"state": "absent"})),
            "{why}: nothing of it has happened"
        );
    }
    // One that makes room for another is taken.
    let full: serde_json::Map<String, Value> = too_many.into_iter().take(1_000).collect();
    assert_eq!(server.patch("/v1/lanes/jobs", json!({"limits": {"named": full}})).await.status, 200);
    let more = json!({"limits": {"named": {"bob": {"in_flight": 1}}}});
    assert_eq!(server.patch("/v1/lanes/jobs", more).await.status, 422);
    let (gone, _) = full.into_iter().next().unwrap();
    let instead = json!({"limits": {"named": {"bob": {"in_flight": 1}, gone: null}}});
    assert_eq!(server.patch("/v1/lanes/jobs", instead).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn far_too_many_tasks_or_keys_are_refused_with_what_to_do() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!([{"key": "a"}])).await;
    for count in [1_001, 200_000] {
        let tasks = vec![json!({}); count];
        let refused = server.post("/v1/lanes/jobs/tasks", json!({"tasks": tasks})).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")));
        assert!(refused.text.contains("add at most 1000 tasks at a time"), "{}", refused.text);

        let mut socket = connect(&server).await;
        socket.send(&add_frame(7, vec![TaskToAdd::default(); count])).await.unwrap();
        let answer = socket.receive().await.unwrap();
        let Some(ServerFrame::Refused { request: 7, code, detail, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(code, "invalid_request");
        assert!(detail.contains("add at most 1000 tasks at a time"), "{detail}");

        let keys: Vec<String> = (0..count).map(|nth| format!("k{nth}")).collect();
        let refused = server.post("/v1/lanes/jobs/relevel", json!({"keys": keys})).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")));
        assert!(refused.text.contains("`keys` names at most 1000 keys"), "{}", refused.text);
    }
    let long = server.post("/v1/lanes/jobs/relevel", json!({"keys": ["k".repeat(65)]})).await;
    assert!(long.status == 422 && long.text.contains("a key has at most 64 bytes"), "{}", long.text);
    for cursor in [format!("0:{}", "k".repeat(65)), "0:acme/".into(), "10:a".into(), "a".into()] {
        let lost = server.post("/v1/lanes/jobs/relevel", json!({"cursor": cursor})).await;
        assert!(lost.status == 422 && lost.text.contains("`cursor` is the `next`"), "{}", lost.text);
    }
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], 1);
    server.stop().await;
}

#[tokio::test]
async fn bytes_in_a_path_that_are_no_text_are_a_problem_at_every_path() {
    let server = Here::start(|_| {}).await;
    let document = server.get("/v1/openapi.json").await.json;
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some((before, rest)) = path.split_once('{') else { continue };
        let path = format!("{before}%FF{}", rest.split_once('}').unwrap().1).replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys().filter(|it| *it != "parameters" && *it != "head") {
            let method = method.to_uppercase().parse().unwrap();
            let answer = answered(server.http.request(method, server.url(&path)).json(&json!({}))).await;
            let said = (answer.status, &answer.json["code"], answer.headers["content-type"].as_bytes());
            let expected = (400, &json!("malformed_request"), &b"application/problem+json"[..]);
            assert_eq!(said, expected, "{path}: {}", answer.text);
            asked += 1;
        }
    }
    assert!(asked > 30, "{asked}");
    let named = &document["components"]["schemas"]["LaneLimitsChange"]["properties"]["named"];
    let may_be = named["additionalProperties"]["oneOf"].as_array().unwrap();
    assert!(
        may_be.contains(&json!({"type": "null"})) && may_be.len() == 2,
        "a limit by name is lifted by null: {named}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_lane_is_not_called_by_a_step_of_a_path_at_the_door_and_in_the_client() {
    let server = Here::start(|_| {}).await;
    let client = Client::new(&server.url("")).unwrap();
    for name in [".", ".."] {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let request = format!("PUT /v1/lanes/{name} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 422 ") && answer.contains("steps in a path"), "{answer}");
        let refused = client.create_lane(name).await.unwrap_err().to_string();
        assert!(refused.contains("steps in a path"), "{refused}");
        assert!(client.add_tasks(name, vec![TaskRequest::default()]).await.is_err());
    }
    // A line end would be left out of the address.
    assert!(client.create_lane("a\nb").await.unwrap_err().to_string().contains("a lane's name has"));
    assert_eq!(server.get("/v1/lanes").await.json["items"], json!([]));
    create(&server, "...").await;
    let odd_key = client.add_tasks_as("...", vec![TaskRequest::default()], "a\nb").await;
    assert!(matches!(odd_key, Err(ClientError::Setting(_))), "{odd_key:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_redrive_goes_in_bounded_requests_and_leaves_alone_what_dies_after_its_first_one() {
    let server = Here::start(|_| {}).await;
    let client = Client::new(&server.url("")).unwrap();
    create(&server, "jobs").await;
    let ids = add(&server, "jobs", json!(vec![json!({"attempts_max": 1}); 2])).await;
    let die = async |count: usize| {
        let out = reserve(&server, "Lane(jobs)", count as u64).await;
        assert_eq!(out.len(), count);
        for task in &out {
            fail(&server, task, "boom").await;
        }
    };
    die(2).await;
    // Names of no tasks come first: twenty steps of a thousand are what one request does.
    let named: Vec<String> = (1..=20_500).map(|nth| nth.to_string()).chain(ids.clone()).collect();
    let first = server.post("/v1/lanes/jobs/redrive", json!({"tasks": named})).await;
    assert_eq!((first.status, &first.json["tasks"]), (200, &json!(0)), "{}", first.text);
    let next = first.json["next"].as_str().unwrap().to_owned();
    let one = server.post("/v1/lanes/jobs/redrive", json!({"tasks": [ids[0]]})).await;
    assert_eq!(one.json, json!({"tasks": 1}));
    die(1).await;
    // The second half, twice: the one that has died since is left as it is, and a repeat does nothing more.
    for (body, tasks) in [
        (json!({"tasks": named, "cursor": next}), 1),
        (json!({"tasks": named, "cursor": next}), 0),
        (json!({"cursor": next}), 0),
    ] {
        let rest = server.post("/v1/lanes/jobs/redrive", body).await;
        assert_eq!(rest.json, json!({"tasks": tasks}), "{}", rest.text);
    }
    die(1).await;
    let bad = server.post("/v1/lanes/jobs/redrive", json!({"cursor": "77"})).await;
    assert_eq!((bad.status, &bad.json["code"]), (422, &json!("invalid_request")), "{}", bad.text);

    let tasks = named.iter().map(|id| id.parse().unwrap()).collect();
    let request = RedriveRequest { tasks, ..RedriveRequest::default() };
    let driven = client.redrive("jobs", &request).await.unwrap();
    assert_eq!((driven.tasks, driven.next), (2, None), "the client goes on by itself");
    server.stop().await;
}

#[tokio::test]
async fn groups_of_dead_tasks_that_are_not_shown_are_counted_apart_from_tasks_that_were_not_looked_at() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!(vec![json!({"attempts_max": 1}); 103])).await;
    let out = reserve(&server, "Lane(jobs)", 103).await;
    let failed = out.iter().enumerate().map(|(nth, task)| {
        let mut attempt = attempt_of(task);
        // The first three fail for one reason.
        attempt["reason"] = json!(format!("reason {}", nth.saturating_sub(2)));
        attempt
    });
    let answer = server.post("/v1/fail", json!({"chunks": failed.collect::<Vec<_>>()})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let dead = server.get("/v1/lanes/jobs/dead").await.json;
    assert_eq!((&dead["looked_at"], &dead["has_more"]), (&json!(103), &json!(false)), "all were looked at");
    assert_eq!((dead["groups"].as_array().unwrap().len(), &dead["groups_left_out"]), (100, &json!(1)));
    assert_eq!(dead["tasks_left_out"], 1);
    assert_eq!(dead["groups"][0]["tasks"], 3);
    server.stop().await;
}

#[tokio::test]
async fn a_reason_is_found_among_dead_tasks_however_many_died_before() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    for nth in 0..5 {
        add(&server, "jobs", json!(vec![json!({"attempts_max": 1}); 1_000])).await;
        let mut left = 1_000;
        while left > 0 {
            let out = reserve(&server, "Lane(jobs)", left).await;
            left -= out.len() as u64;
            let failed = out.iter().map(|task| {
                let mut attempt = attempt_of(task);
                attempt["reason"] = json!(if nth < 4 { "early" } else { "late" });
                attempt
            });
            let answer = server.post("/v1/fail", json!({"chunks": failed.collect::<Vec<_>>()})).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    }
    let dead = server.get("/v1/lanes/jobs/dead").await.json;
    let groups: Vec<(&Value, &Value)> =
        dead["groups"].as_array().unwrap().iter().map(|it| (&it["reason"], &it["tasks"])).collect();
    assert_eq!(groups, [(&json!("early"), &json!(4_000)), (&json!("late"), &json!(1_000))]);
    assert_eq!((&dead["looked_at"], &dead["has_more"]), (&json!(5_000), &json!(false)));
    assert_eq!((&dead["groups_left_out"], &dead["tasks_left_out"]), (&json!(0), &json!(0)));
    server.stop().await;
}

fn reserve_frame(request: u64) -> ClientFrame {
    ClientFrame::Reserve { request, max: 1, strategy: "\"Lane(jobs)\"".into(), after_reports: false }
}

async fn work(socket: &mut ConsumeSocket) -> WorkOf {
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Work { mut work, more: false, .. }) if work.len() == 1 => work.remove(0),
        other => panic!("one task was expected, not {other:?}"),
    }
}

fn done(request: u64, work: &WorkOf) -> ClientFrame {
    let done = vec![DoneChunk { chunk: work.chunks[0], output: Output::Nothing, entries: None }];
    ClientFrame::Complete { request, submission: work.submission, done }
}

/// What waits gets a task that its former consumer gives back, and has reported as done a moment before.
async fn complete_and_give_back(holder: &mut ConsumeSocket, task: &WorkOf, pause: Duration) {
    holder.send(&done(1, task)).await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < pause {
        tokio::task::yield_now().await;
    }
    let chunks = task.chunks.clone();
    holder.send(&ClientFrame::Release { request: 2, submission: task.submission, chunks }).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(holder.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_of_which_all_is_done_meanwhile_goes_on_waiting_and_is_never_answered_with_nothing() {
    const ROUNDS: u64 = 300;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let (mut holder, mut other) = (connect(&server).await, connect(&server).await);
    // How long a report takes, about: then the task is handed out once more just before it is done, and done before it is looked at.
    let mut pauses = [Duration::from_micros(500); 2];
    for round in 0..ROUNDS {
        let first = add(&server, "jobs", json!([{"payload": "first"}])).await;
        holder.send(&reserve_frame(3)).await.unwrap();
        let task = work(&mut holder).await;
        assert_eq!(task.submission.to_string(), first[0]);
        let by_http = round % 2 == 0;
        let pause = pauses[usize::from(by_http)];
        let waiting = async {
            let body = json!({"max": 1, "strategy": "Lane(jobs)", "wait_ms": 60_000});
            let answer = server.post("/v1/reserve", body).await.json;
            let got = answer["reservations"].as_array().unwrap().clone();
            assert_eq!(got.len(), 1, "the time is not over: {answer}");
            server.post("/v1/complete", json!({"chunks": [attempt_of(&got[0])]})).await;
            got[0]["submission"] == first[0]
        };
        let waiting_by_socket = async {
            other.send(&reserve_frame(4)).await.unwrap();
            let got = work(&mut other).await;
            other.send(&done(5, &got)).await.unwrap();
            assert!(matches!(other.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
            got.submission == task.submission
        };
        let handing = async {
            complete_and_give_back(&mut holder, &task, pause).await;
            add(&server, "jobs", json!([{"payload": "second"}])).await;
        };
        let got_first = match by_http {
            true => tokio::join!(waiting, handing).0,
            false => tokio::join!(waiting_by_socket, handing).0,
        };
        let step = Duration::from_micros(15);
        pauses[usize::from(by_http)] = if got_first { pause + step } else { pause.saturating_sub(step) };
        if got_first {
            holder.send(&reserve_frame(6)).await.unwrap();
            let second = work(&mut holder).await;
            holder.send(&done(7, &second)).await.unwrap();
            assert!(matches!(holder.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
        }
    }
    let lane = server.get("/v1/lanes/jobs").await.json;
    assert_eq!((&lane["waiting"], &lane["done"]), (&json!(0), &json!(2 * ROUNDS)), "{lane}");
    server.stop().await;
}
