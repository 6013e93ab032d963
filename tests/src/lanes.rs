//! Lanes over HTTP, in few words.

use crate::here::{Here, answered, attempt_of};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Creates a lane.
pub async fn create(server: &Here, lane: &str) -> Value {
    let created = answered(server.http.put(server.url(&format!("/v1/lanes/{lane}")))).await;
    assert_eq!(created.status, 200, "{}", created.text);
    created.json
}

/// Adds tasks to a lane, and gives their ids.
pub async fn add(server: &Here, lane: &str, tasks: Value) -> Vec<String> {
    let added = server.post(&format!("/v1/lanes/{lane}/tasks"), json!({"tasks": tasks})).await;
    assert_eq!(added.status, 201, "{}", added.text);
    added.json["tasks"]
        .as_array()
        .expect("ids")
        .iter()
        .map(|id| id.as_str().expect("an id is text").to_owned())
        .collect()
}

/// Reserves for a caller without a session.
pub async fn reserve(server: &Here, strategy: &str, max: u64) -> Vec<Value> {
    let answer = server.post("/v1/reserve", json!({"max": max, "strategy": strategy})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["reservations"].as_array().expect("a list").clone()
}

/// Completes what was reserved.
pub async fn complete(server: &Here, reservations: &[Value]) -> Value {
    let chunks: Vec<Value> = reservations.iter().map(attempt_of).collect();
    server.post("/v1/complete", json!({"chunks": chunks})).await.json
}

/// Fails an attempt.
pub async fn fail(server: &Here, reservation: &Value, reason: &str) {
    let mut chunk = attempt_of(reservation);
    chunk["reason"] = json!(reason);
    let failed = server.post("/v1/fail", json!({"chunks": [chunk]})).await;
    assert_eq!(failed.json["chunks"], json!(["accepted"]), "{}", failed.text);
}

/// The payloads of what was reserved, in order.
pub fn payloads(reservations: &[Value]) -> Vec<&str> {
    reservations.iter().map(|it| it["payload"].as_str().expect("a payload is text here")).collect()
}

/// The same server, started again on its data.
pub async fn restarted(server: Here) -> Here {
    let folder = server.stop().await.expect("it has its folder");
    let mut server = Here::start_in(folder.path(), |_| {}).await;
    server.folder = Some(folder);
    server
}

/// Waits until the lane looks as it should; whatever is waited for comes soon, or never.
pub async fn until(server: &Here, lane: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let shown = server.get(&format!("/v1/lanes/{lane}")).await.json;
        if is_so(&shown) {
            return shown;
        }
        assert!(Instant::now() < end, "{shown}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
