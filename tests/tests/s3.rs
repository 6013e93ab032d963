//! Objects on S3, against a real S3 interface: `.ci/s3` starts one and names it in `WINDLASS_TEST_S3`.

use serde_json::json;
use std::time::{Duration, Instant};
use windlass_tests::here::{Here, answered};

#[tokio::test]
async fn objects_on_s3_are_created_once_and_come_back_as_they_were() {
    let Ok(endpoint) = std::env::var("WINDLASS_TEST_S3") else {
        eprintln!("SKIPPED: .ci/s3 runs this test against an S3 interface");
        return;
    };
    let http = reqwest::Client::new();
    let began = Instant::now();
    // The interface may still be starting.
    while http.put(format!("{endpoint}/windlass-test")).send().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "the S3 interface starts");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let server = Here::start(|config| config.objects = Some("s3://windlass-test/some/prefix".into())).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let put = || answered(server.http.put(server.url("/v1/objects/inputs/x/0")).body(bytes.clone()));
    assert_eq!(put().await.status, 201);
    assert_eq!(put().await.json["code"], "object_exists");
    let got = server.http.get(server.url("/v1/objects/inputs/x/0")).send().await.unwrap();
    assert_eq!(got.bytes().await.unwrap(), bytes);
    assert_eq!(server.get("/v1/objects/inputs/x/1").await.json["code"], "object_unknown");

    server.submit(json!({"chunks": 1, "prefix": "inputs/x"})).await;
    let reservation = server.reserve(1).await.remove(0);
    assert_eq!(reservation["input_key"], "inputs/x/0");
    server.stop().await;
}
