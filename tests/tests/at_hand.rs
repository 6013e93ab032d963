//! What is said of running submissions is brought to hand before anybody asks, and consumers get it as it is.

use serde_json::json;
use std::time::{Duration, Instant};
use windlass_tests::here::{Here, attempt_of};

/// Waits until it is at hand what is said of so many submissions; nobody is told of that, so this looks again and again.
async fn until_at_hand(server: &Here, wanted: usize) {
    let began = Instant::now();
    loop {
        let metrics = server.get("/metrics").await.text;
        let line = metrics.lines().find_map(|line| line.strip_prefix("windlass_abouts_at_hand "));
        let at_hand: usize = line.expect("the metric is there").parse().expect("it is a number");
        if at_hand == wanted {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{at_hand} are at hand, and not {wanted}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_is_said_of_submissions_is_at_hand_while_they_run_and_after_a_restart() {
    const SUBMISSIONS: usize = 600;
    let server = Here::start(|_| {}).await;
    for n in 0..SUBMISSIONS {
        server.submit(json!({"chunks": 1, "metadata": {"n": n}, "opaque": "sent along"})).await;
    }
    until_at_hand(&server, SUBMISSIONS).await;

    // Every second one is done.
    let reserved = server.reserve(SUBMISSIONS).await;
    let attempts: Vec<_> = reserved.iter().step_by(2).map(attempt_of).collect();
    let done = server.post("/v1/complete", json!({"chunks": attempts})).await;
    assert_eq!(done.status, 200, "{}", done.text);
    until_at_hand(&server, SUBMISSIONS / 2).await;

    let folder = server.stop().await.expect("it had a folder of its own");
    let server = Here::start_in(folder.path(), |_| {}).await;
    until_at_hand(&server, SUBMISSIONS / 2).await;
    let reserved = server.reserve(SUBMISSIONS).await;
    assert_eq!(reserved.len(), SUBMISSIONS / 2);
    for (nth, reservation) in reserved.iter().enumerate() {
        assert_eq!(reservation["metadata"], json!({"n": 2 * nth + 1}));
        assert_eq!(reservation["opaque"], json!("sent along"));
    }
    server.stop().await;
}

#[tokio::test]
async fn of_plain_submissions_nothing_is_kept_and_consumers_get_their_metadata_as_it_is_now() {
    let server = Here::start(|_| {}).await;
    let mut said =
        [json!({}), json!({"b": "x", "a": true, "c": -7, "d": "y"}), json!({"n": 1}), json!({"n": 3})];
    let mut ids = Vec::new();
    for metadata in &said[..3] {
        ids.push(server.submit(json!({"chunks": 1, "metadata": metadata})).await);
    }
    server.submit(json!({"chunks": 1, "metadata": said[3], "opaque": "sent along"})).await;
    until_at_hand(&server, 1).await;
    let path = format!("/v1/submissions/{}", ids[2]);
    let changed = server.patch(&path, json!({"metadata": {"n": 2, "new": false}})).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    said[2] = json!({"n": 2, "new": false});

    let metadata = |reserved: &[serde_json::Value]| -> Vec<serde_json::Value> {
        reserved.iter().map(|it| it["metadata"].clone()).collect()
    };
    assert_eq!(metadata(&server.reserve(10).await), said);
    let folder = server.stop().await.expect("it had a folder of its own");
    let server = Here::start_in(folder.path(), |_| {}).await;
    until_at_hand(&server, 1).await;
    assert_eq!(metadata(&server.reserve(10).await), said);
    server.stop().await;
}
