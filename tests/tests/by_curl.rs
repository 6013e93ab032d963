//! The plain HTTP interface, as somebody with curl would use it.

use serde_json::json;
use windlass_tests::here::{Here, answered, attempt_of, attempt_with};

#[tokio::test]
async fn a_submission_is_worked_on_and_its_results_come_back_in_order() {
    let server = Here::start(|_| {}).await;
    let id = server
        .submit(json!({"chunks": 3, "metadata": {"customer": "a", "size": 7}, "opaque": "for you"}))
        .await;

    let reservations = server.reserve(10).await;
    assert_eq!(reservations.len(), 3);
    assert_eq!(reservations[0]["opaque"], "for you");
    assert_eq!(reservations[0]["metadata"], json!({"customer": "a", "size": 7}));
    assert!(server.reserve(1).await.is_empty(), "what is out is not handed out again");

    let chunks: Vec<_> = reservations
        .iter()
        .rev()
        .map(|it| attempt_with(it, "output", json!(format!("out {}", it["chunk"]))))
        .collect();
    let answer = server.post("/v1/complete", json!({"chunks": chunks})).await;
    assert_eq!(answer.json, json!({"chunks": ["accepted", "accepted", "accepted"]}), "{}", answer.text);

    let shown = server.get(&format!("/v1/submissions/{id}/wait")).await.json;
    assert_eq!(shown["state"], "completed");
    assert_eq!(shown["chunks"], json!({"total": 3, "done": 3, "failed": 0, "skipped": 0}));
    let results = server.get(&format!("/v1/submissions/{id}/results?limit=2")).await.json;
    assert_eq!(
        results,
        json!({"items": [
            {"chunk": 0, "state": "done", "output": "out 0"},
            {"chunk": 1, "state": "done", "output": "out 1"},
        ], "next": 2})
    );
    server.stop().await;
}

#[tokio::test]
async fn a_failed_chunk_is_retried_after_its_delay_and_then_fails_its_submission_until_it_is_retried_by_hand()
{
    let server = Here::start(|_| {}).await;
    let body = json!({"chunks": 2, "attempts_max": 2, "retry_delay_ms": 1});
    let id = server.submit(body).await;
    for _ in 0..2 {
        let request = json!({"max": 1, "strategy": "OldestFirst", "wait_ms": 10_000});
        let mut reservations = server.post("/v1/reserve", request.clone()).await.json["reservations"].clone();
        if reservations[0]["chunk"] == 1 {
            // The other chunk goes first, since a retried one is never on top.
            let held = reservations[0].clone();
            reservations = server.post("/v1/reserve", request).await.json["reservations"].clone();
            server.post("/v1/release", json!({"chunks": [attempt_of(&held)]})).await;
        }
        assert_eq!(reservations[0]["chunk"], 0);
        let failed = attempt_with(&reservations[0], "reason", json!("no disk"));
        let answer = server.post("/v1/fail", json!({"chunks": [failed]})).await;
        assert_eq!(answer.json, json!({"chunks": ["accepted"]}), "{}", answer.text);
    }
    let shown = server.get(&format!("/v1/submissions/{id}")).await.json;
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["chunks"], json!({"total": 2, "done": 0, "failed": 1, "skipped": 1}));
    assert_eq!(shown["troubles"][0]["reason"], "no disk");

    let retried = server.post(&format!("/v1/submissions/{id}/retry-failed"), json!({})).await;
    assert_eq!(retried.json, json!({"chunks": 2}), "{}", retried.text);
    assert_eq!(server.reserve(5).await.len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_everything_and_late_reports_of_the_time_before_it_count() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 2})).await;
    let before = server.reserve(1).await.remove(0);
    let folder = server.stop().await.expect("it has its own folder");

    let server = Here::start_in(folder.path(), |_| {}).await;
    let again = server.reserve(1).await.remove(0);
    assert_eq!((&again["chunk"], &before["chunk"]), (&json!(0), &json!(0)), "nobody re-asserted it");
    assert_ne!(again["output_key"], before["output_key"], "every attempt has an output address of its own");

    let late = attempt_with(&before, "output", json!("late but first"));
    let answer = server.post("/v1/complete", json!({"chunks": [late]})).await;
    assert_eq!(answer.json, json!({"chunks": ["accepted"]}));
    let second = attempt_with(&again, "output", json!("second"));
    let answer = server.post("/v1/complete", json!({"chunks": [second]})).await;
    assert_eq!(answer.json, json!({"chunks": ["already_done"]}));
    let results = server.get(&format!("/v1/submissions/{id}/results")).await.json;
    assert_eq!(results["items"][0]["output"], "late but first");
    server.stop().await;
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_submission_and_another_body_is_refused() {
    let server = Here::start(|_| {}).await;
    let send = |chunks: u64| {
        let request = server.http.post(server.url("/v1/submissions"));
        answered(request.header("idempotency-key", "once").json(&json!({"chunks": chunks})))
    };
    let (first, second, other) = (send(5).await, send(5).await, send(6).await);
    assert_eq!(first.status, 201);
    assert_eq!(first.json, second.json);
    assert_eq!((other.status, &other.json["code"]), (422, &json!("idempotency_key_reused")));
    let listed = server.get("/v1/submissions").await.json;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn submissions_are_listed_by_page_and_found_by_state_and_metadata() {
    let server = Here::start(|_| {}).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let metadata = json!({"customer": if number % 2 == 0 { "even" } else { "odd" }, "number": number});
        ids.push(server.submit(json!({"chunks": 1, "metadata": metadata})).await);
    }
    server.post(&format!("/v1/submissions/{}/cancel", ids[0]), json!({})).await;

    let found = async |query: &str| {
        let page = server.get(&format!("/v1/submissions?{query}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let ids: Vec<_> = page.json["items"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
        (ids, page.json["next"].clone())
    };
    assert_eq!(found("limit=2").await, (vec![json!(ids[4]), json!(ids[3])], json!(ids[3])));
    assert_eq!(found(&format!("limit=2&cursor={}", ids[3])).await.0, [json!(ids[2]), json!(ids[1])]);
    assert_eq!(found("metadata=customer:even").await.0, [json!(ids[4]), json!(ids[2]), json!(ids[0])]);
    assert_eq!(found("metadata=customer:even,number:2").await.0, [json!(ids[2])]);
    assert_eq!(found("metadata=customer:even&state=cancelled").await.0, [json!(ids[0])]);
    assert_eq!(found("state=running&consistency=stale&limit=1").await.0, [json!(ids[4])]);
    server.stop().await;
}

#[tokio::test]
async fn objects_go_through_the_door_once_and_come_back_as_they_were() {
    let server = Here::start(|_| {}).await;
    let put = |bytes: &'static [u8]| answered(server.http.put(server.url("/v1/objects/in/7")).body(bytes));
    assert_eq!(put(b"\x00bytes\xff").await.status, 201);
    let second = put(b"other").await;
    assert_eq!((second.status, &second.json["code"]), (409, &json!("object_exists")));
    let got = server.http.get(server.url("/v1/objects/in/7")).send().await.unwrap();
    assert_eq!(&got.bytes().await.unwrap()[..], b"\x00bytes\xff");
    assert_eq!(server.get("/v1/objects/in/8").await.json["code"], "object_unknown");
    server.stop().await;
}

#[tokio::test]
async fn a_lease_ends_unless_it_is_extended_and_the_late_holder_is_told_so() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1})).await;
    let reserve = json!({"lease_ms": 1_000, "wait_ms": 20_000});
    let first = server.post("/v1/reserve", reserve.clone()).await.json["reservations"][0].clone();
    let extended =
        server.post("/v1/extend", json!({"chunks": [attempt_of(&first)], "lease_ms": 1_000})).await;
    assert_eq!(extended.json, json!({"chunks": ["accepted"]}));

    // The second caller waits on the server, and is woken when the first one's lease ends.
    let second = server.post("/v1/reserve", reserve).await.json["reservations"][0].clone();
    assert_eq!(second["chunk"], first["chunk"]);
    let late =
        server.post("/v1/fail", json!({"chunks": [attempt_with(&first, "reason", json!("late"))]})).await;
    assert_eq!(late.json, json!({"chunks": ["reservation_lost"]}));
    let done = server.post("/v1/complete", json!({"chunks": [attempt_of(&second)]})).await;
    assert_eq!(done.json, json!({"chunks": ["accepted"]}));
    server.stop().await;
}

#[tokio::test]
async fn many_submissions_are_watched_on_one_connection_from_where_they_stand_to_their_end() {
    let server = Here::start(|_| {}).await;
    let ids = [server.submit(json!({"chunks": 2})).await, server.submit(json!({"chunks": 1})).await];
    let url = server.url(&format!("/v1/events?submissions={}", ids.join(",")));
    let mut stream = server.http.get(url).send().await.unwrap();
    let chunks: Vec<_> = server.reserve(3).await.iter().map(attempt_of).collect();
    server.post("/v1/complete", json!({"chunks": chunks})).await;

    let mut text = String::new();
    while text.matches("event: over").count() < 2 {
        let piece = stream.chunk().await.unwrap().expect("the stream goes on until it has told of both ends");
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    for (id, total) in ids.iter().zip([2, 1]) {
        let told: Vec<&str> = text.split("\n\n").filter(|event| event.contains(id.as_str())).collect();
        let begin = format!("\"chunks\":{{\"total\":{total},\"done\":0,");
        assert!(told[0].contains("event: progress") && told[0].contains(&begin), "{told:?}");
        let over = format!("\"state\":\"completed\",\"chunks\":{{\"total\":{total},\"done\":{total},");
        assert_eq!(told.iter().filter(|event| event.contains(&over)).count(), 1, "{told:?}");
    }
    server.stop().await;
}
