//! Objects on S3, against a real S3 interface: `.ci/s3` starts one and names it in `WINDLASS_TEST_S3`.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::json;
use std::time::{Duration, Instant};
use windlass_tests::here::{Answered, Here, answered};

const MIB: usize = 1 << 20;

/// A server whose objects are in a bucket of its own, and the bucket's address; none if there is no S3.
async fn server_on_s3(bucket: &str) -> Option<(Here, String)> {
    let Ok(endpoint) = std::env::var("WINDLASS_TEST_S3") else {
        eprintln!("SKIPPED: .ci/s3 runs this test against an S3 interface");
        return None;
    };
    let (http, bucket_url) = (reqwest::Client::new(), format!("{endpoint}/{bucket}"));
    let began = Instant::now();
    // The interface may still be starting.
    while http.put(&bucket_url).send().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "the S3 interface starts");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let address = format!("s3://{bucket}/some/prefix");
    Some((Here::start(|config| config.objects = Some(address)).await, bucket_url))
}

fn some_bytes(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

async fn put(server: &Here, key: &str, bytes: &[u8]) -> Answered {
    answered(server.http.put(server.url(&format!("/v1/objects/{key}"))).body(bytes.to_vec())).await
}

/// What the bucket holds besides objects: uploads that are not complete.
async fn uploads_left(bucket_url: &str) -> usize {
    let listed = reqwest::get(format!("{bucket_url}?uploads")).await.unwrap().text().await.unwrap();
    assert!(listed.contains("ListMultipartUploadsResult"), "{listed}");
    listed.matches("<UploadId>").count()
}

#[tokio::test]
async fn objects_on_s3_are_created_once_and_come_back_as_they_were() {
    let Some((server, _)) = server_on_s3("windlass-small").await else { return };
    let bytes = some_bytes(300_000);
    assert_eq!(put(&server, "inputs/x/0", &bytes).await.status, 201);
    assert_eq!(put(&server, "inputs/x/0", b"other").await.json["code"], "object_exists");
    let got = server.http.get(server.url("/v1/objects/inputs/x/0")).send().await.unwrap();
    assert_eq!(got.bytes().await.unwrap(), bytes);
    assert_eq!(server.get("/v1/objects/inputs/x/1").await.json["code"], "object_unknown");

    server.submit(json!({"chunks": 1, "prefix": "inputs/x"})).await;
    let reservation = server.reserve(1).await.remove(0);
    assert_eq!(reservation["input_key"], "inputs/x/0");
    server.stop().await;
}

#[tokio::test]
async fn large_objects_on_s3_go_in_by_parts_once_and_come_out_whole_or_in_part() {
    let Some((server, bucket_url)) = server_on_s3("windlass-large").await else { return };
    let bytes = some_bytes(20 * MIB + 7);
    let created = put(&server, "large", &bytes).await;
    assert_eq!((created.status, &created.json["size"]), (201, &json!(bytes.len())), "{}", created.text);
    let again = put(&server, "large", &some_bytes(9 * MIB)).await;
    assert_eq!(again.json["code"], "object_exists", "{}", again.text);
    // Straight from the bucket: the key has the prefix, and the parts are put together.
    let stored = reqwest::get(format!("{bucket_url}/some/prefix/large")).await.unwrap();
    assert!(stored.bytes().await.unwrap() == bytes, "the first one stays");

    let url = server.url("/v1/objects/large");
    for (range, status, first, last) in [
        ("bytes=8388600-8388620", 206, 8_388_600, 8_388_620),
        ("bytes=20971520-", 206, 20 * MIB, 20 * MIB + 6),
        ("bytes=-7", 206, 20 * MIB, 20 * MIB + 6),
        ("bytes=0-1,3-4", 200, 0, 20 * MIB + 6),
    ] {
        let got = server.http.get(&url).header("range", range).send().await.unwrap();
        assert_eq!(got.status().as_u16(), status, "{range}");
        assert!(got.bytes().await.unwrap() == bytes[first..=last], "{range}");
    }
    let beyond = server.http.get(&url).header("range", "bytes=30000000-").send().await.unwrap();
    assert_eq!(beyond.status(), 416);
    assert_eq!(beyond.headers()["content-range"], format!("bytes */{}", bytes.len()));
    let head = server.http.head(&url).send().await.unwrap();
    assert_eq!(head.headers()["content-length"], bytes.len().to_string());
    let etag = head.headers()["etag"].clone();
    let had = server.http.get(&url).header("if-none-match", etag).send().await.unwrap();
    assert_eq!(had.status(), 304);
    assert_eq!(uploads_left(&bucket_url).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn of_two_uploads_to_s3_at_the_same_time_the_first_that_is_complete_stays() {
    let Some((server, bucket_url)) = server_on_s3("windlass-race").await else { return };
    let (sender, receiver) = tokio::sync::mpsc::channel::<Vec<u8>>(1);
    let pieces = futures_util::stream::unfold(receiver, async |mut receiver| {
        let piece = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), receiver))
    });
    let request = server.http.put(server.url("/v1/objects/race")).body(reqwest::Body::wrap_stream(pieces));
    let large = tokio::spawn(answered(request));
    sender.send(some_bytes(9 * MIB)).await.unwrap();
    let began = Instant::now();
    while uploads_left(&bucket_url).await == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the large upload begins");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The large upload has seen that the key is free, and now it is no longer.
    assert_eq!(put(&server, "race", b"first").await.status, 201);
    sender.send(some_bytes(MIB)).await.unwrap();
    drop(sender);
    let large = large.await.unwrap();
    assert_eq!((large.status, &large.json["code"]), (409, &json!("object_exists")), "{}", large.text);
    assert_eq!(server.get("/v1/objects/race").await.text, "first");
    assert_eq!(uploads_left(&bucket_url).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn what_is_refused_on_its_way_to_s3_leaves_nothing_there() {
    let Some((server, bucket_url)) = server_on_s3("windlass-refused").await else { return };
    let request = server.http.put(server.url("/v1/objects/it")).body(some_bytes(20 * MIB));
    let refused = answered(request.header("x-windlass-sha256", "0".repeat(64))).await;
    assert_eq!(refused.json["code"], "digest_mismatch", "{}", refused.text);
    assert_eq!(server.get("/v1/objects/it").await.json["code"], "object_unknown");
    assert_eq!(uploads_left(&bucket_url).await, 0);
    server.stop().await;
}
