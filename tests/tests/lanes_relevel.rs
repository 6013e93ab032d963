//! Levels that are given anew, by requests that are repeated, cut short, or never come again.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use windlass_tests::here::{Answered, Here};
use windlass_tests::lanes::{add, complete, create, payloads, reserve, restarted};

const STRIDE: u64 = 1 << 20;

async fn weigh(server: &Here, key: &str, weight: f64) {
    let changed = server.patch("/v1/lanes/emails", json!({"weights": {key: weight}})).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
}

async fn relevel(server: &Here, request: Value) -> Answered {
    let done = server.post("/v1/lanes/emails/relevel", request).await;
    assert_eq!(done.status, 200, "{}", done.text);
    done
}

/// Tasks of a key whose payloads count up; gives their ids.
async fn add_counted(server: &Here, key: &str, thousands: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for thousand in 0..thousands {
        let tasks =
            (0..1_000).map(|nth| json!({"key": key, "payload": format!("{:06}", thousand * 1_000 + nth)}));
        ids.extend(add(server, "emails", tasks.collect()).await);
    }
    ids
}

async fn pass_of(server: &Here, task: &str) -> u64 {
    let explained = server.get(&format!("/v1/lanes/emails/tasks/{task}")).await;
    let level = explained.json["level"].as_str().unwrap_or_else(|| panic!("it waits: {}", explained.text));
    level.trim_start_matches('<').split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_request_that_comes_twice_or_beside_others_leaves_the_order_of_a_key() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    add_counted(&server, "a", 6).await;
    let mut last = String::new();
    for weight in [4.0, 0.2] {
        weigh(&server, "a", weight).await;
        let mut request = json!({});
        loop {
            // Another run of the same, and consumers, at the same time.
            let (done, _, some) = tokio::join!(
                relevel(&server, request.clone()),
                relevel(&server, request.clone()),
                reserve(&server, "Lane(emails)", 40),
            );
            for payload in payloads(&some) {
                assert!(*payload > *last, "{last} went out before {payload}");
                last = payload.to_owned();
            }
            complete(&server, &some).await;
            let Some(next) = done.json["next"].as_str() else { break };
            request = json!({"cursor": next});
        }
    }
    loop {
        let some = reserve(&server, "Lane(emails)", 1_000).await;
        let Some(first) = payloads(&some).first().copied() else { break };
        assert!(payloads(&some).is_sorted() && *first > *last, "{last} went out before {first}");
        last = payloads(&some).last().copied().unwrap_or_default().to_owned();
        complete(&server, &some).await;
    }
    assert_eq!(last, "005999");
    server.stop().await;
}

#[tokio::test]
async fn levels_that_nobody_asks_for_any_more_are_given_to_the_end_over_a_restart_too() {
    for is_restarted in [false, true] {
        let mut server = Here::start(|_| {}).await;
        create(&server, "emails").await;
        let tasks = add_counted(&server, "a", 12).await;
        let before = pass_of(&server, &tasks[100]).await;
        weigh(&server, "a", 0.1).await;
        let done = relevel(&server, json!({})).await;
        assert!(done.json["next"].is_string(), "one request does not do all: {}", done.text);
        assert_eq!(pass_of(&server, &tasks[100]).await, before, "the last ones come first");
        if is_restarted {
            server = restarted(server).await;
        }
        let end = Instant::now() + Duration::from_secs(60);
        while pass_of(&server, &tasks[100]).await < before + 80 * 10 * STRIDE {
            assert!(Instant::now() < end, "nobody takes it up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server.stop().await;
    }
}
