//! Weights that are set while the server runs: they count from the next hand-out on, and over restarts.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use windlass_tests::here::Here;

/// How many chunks of each company the next `max` hand-outs have.
async fn handed_out(server: &Here, strategy: &str, max: u64) -> BTreeMap<String, u64> {
    let body = json!({"max": max, "strategy": strategy});
    let answer = server.post("/v1/reserve", body).await;
    let mut counts = BTreeMap::new();
    for reservation in answer.json["reservations"].as_array().unwrap() {
        *counts.entry(reservation["metadata"]["company"].to_string()).or_default() += 1;
    }
    counts
}

fn counts<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(company, count)| (company.to_owned(), count)).collect()
}

async fn weigh(server: &Here, weights: Value) -> Value {
    let answer = server.patch("/v1/weights/company", json!({"weights": weights})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["weights"].clone()
}

#[tokio::test]
async fn weights_are_set_and_unset_while_chunks_are_handed_out_and_outlive_a_restart() {
    let server = Here::start(|_| {}).await;
    for company in [json!("acme"), json!(7)] {
        server.submit(json!({"chunks": 1_000, "metadata": {"company": company}})).await;
    }
    let fair = "Fair(company)";
    assert_eq!(handed_out(&server, fair, 40).await, counts([("\"acme\"", 20), ("7", 20)]));

    assert_eq!(weigh(&server, json!({"acme": 3})).await, json!({"acme": 3}));
    assert_eq!(handed_out(&server, fair, 40).await, counts([("\"acme\"", 30), ("7", 10)]));
    // What a strategy names itself goes before, value by value.
    let own = "Fair(company, weights(acme=1))";
    assert_eq!(handed_out(&server, own, 40).await, counts([("\"acme\"", 20), ("7", 20)]));
    let overview = server.get("/v1/overview?field=company").await.json;
    let shown: Vec<(&Value, &Value)> = overview["field"]["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["value"], &it["weight"]))
        .collect();
    assert!(shown.contains(&(&json!("acme"), &json!(1))), "the strategy's own weight is shown: {overview}");

    let folder = server.stop().await.unwrap();
    let mut server = Here::start_in(folder.path(), |_| {}).await;
    server.folder = Some(folder);
    assert_eq!(server.get("/v1/weights/company").await.json["weights"], json!({"acme": 3}));
    assert_eq!(handed_out(&server, fair, 40).await, counts([("\"acme\"", 30), ("7", 10)]));

    assert_eq!(weigh(&server, json!({"acme": null, "7": 4})).await, json!({"7": 4}));
    assert_eq!(handed_out(&server, fair, 50).await, counts([("\"acme\"", 10), ("7", 40)]));
    assert_eq!(weigh(&server, json!({"7": null, "never set": null})).await, json!({}));
    assert_eq!(server.get("/v1/weights").await.json, json!({"fields": []}));
    server.stop().await;
}

#[tokio::test]
async fn weights_that_cannot_be_are_refused_and_those_set_before_stay() {
    let server = Here::start(|_| {}).await;
    weigh(&server, json!({"acme": 3})).await;
    let many: serde_json::Map<String, Value> = (0..10_001).map(|nth| (nth.to_string(), json!(2))).collect();
    for (weights, status) in [
        (json!({"acme": 0}), 422),
        (json!({"acme": 1_000_001}), 422),
        (json!({"acme": -1}), 400),
        (json!({"acme": 1.5}), 400),
        (json!({"acme": "3"}), 400),
        (json!({"x".repeat(300): 3}), 422),
        (json!(many), 422),
    ] {
        let answer = server.patch("/v1/weights/company", json!({"weights": weights})).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.json["detail"].as_str().unwrap().len() > 10, "{}", answer.text);
    }
    assert_eq!(server.patch("/v1/weights/a%20b", json!({"weights": {"a": 2}})).await.status, 422);
    assert_eq!(
        server.get("/v1/weights").await.json["fields"],
        json!([{"field": "company", "weights": {"acme": 3}}])
    );
    server.stop().await;
}
