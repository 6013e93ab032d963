//! The object door: streams of any length in and out, and what stays when they break off.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_client::{Client, ClientError, Digest, ProblemCode};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::here::{Answered, Here, answered};

const MIB: usize = 1 << 20;

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::new(Sha256::digest(bytes).into())
}

/// Bytes that tell where they are from.
fn some_bytes(length: usize) -> Bytes {
    let stretch: Vec<u8> = (0..65_537_usize).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut bytes = stretch.repeat(length / stretch.len() + 1);
    bytes.truncate(length);
    bytes.into()
}

/// How many files there are below a folder.
fn files(folder: &Path) -> usize {
    let Ok(found) = std::fs::read_dir(folder) else { return 0 };
    let paths = found.map(|file| file.unwrap().path());
    paths.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

async fn put(server: &Here, key: &str, bytes: Bytes, headers: &[(&str, &str)]) -> Answered {
    let request = server.http.put(server.url(&format!("/v1/objects/{key}"))).body(bytes);
    answered(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

async fn get(server: &Here, key: &str, headers: &[(&str, &str)]) -> (u16, reqwest::header::HeaderMap, Bytes) {
    let request = server.http.get(server.url(&format!("/v1/objects/{key}")));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.headers().clone(), response.bytes().await.unwrap())
}

#[tokio::test]
async fn a_large_object_goes_in_and_out_while_the_servers_memory_stays_flat() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), free_port()).await;
    let client = Client::new(&served.url).unwrap();
    // What the server needs for any object at all.
    client.put_object("small", some_bytes(MIB)).await.unwrap();
    client.get_object("small").await.unwrap();
    let before = served.memory_peak();

    let (piece, count) = (some_bytes(MIB), 160);
    let mut sha256 = Sha256::new();
    (0..count).for_each(|_| sha256.update(&piece));
    let sha256 = Digest::new(sha256.finalize().into());
    let pieces = stream::iter(vec![Ok::<_, Infallible>(piece.clone()); count]);
    let size = (count * MIB) as u64;
    let info = client.put_object_stream("large", size, pieces, Some(sha256)).await.unwrap();
    assert_eq!((info.size, info.sha256), (size, sha256));

    for from in [0, size - 5] {
        let mut body = client.get_object_stream("large", from).await.unwrap();
        assert_eq!(body.size, Some(size - from));
        let mut length = 0;
        while let Some(read) = body.stream.next().await {
            let read = read.unwrap();
            let at = (from as usize + length) % MIB;
            let first = read.len().min(MIB - at);
            assert!(read[..first] == piece[at..at + first], "the bytes at {length} are those that were put");
            length += read.len();
        }
        assert_eq!(length as u64, size - from);
    }
    let grown = served.memory_peak() - before;
    assert!(grown < 64 << 20, "an object of {count} MiB took {} MiB", grown >> 20);
    assert!(served.stop().success());
}

#[tokio::test]
async fn parts_are_sent_as_asked_and_odd_questions_get_the_whole() {
    let server = Here::start(|_| {}).await;
    let bytes = some_bytes(1_000_000);
    let sha256 = digest_of(&bytes);
    let answer = put(&server, "a/b", bytes.clone(), &[]).await;
    assert_eq!(answer.json, json!({"size": 1_000_000, "sha256": sha256.to_string()}), "{}", answer.text);

    for (range, first, last) in [
        ("bytes=0-0", 0, 0),
        ("bytes=10-600000", 10, 600_000),
        ("bytes=999999-5000000", 999_999, 999_999),
        ("bytes=400000-", 400_000, 999_999),
        ("bytes=-3", 999_997, 999_999),
        ("bytes=-3000000", 0, 999_999),
    ] {
        let (status, headers, part) = get(&server, "a/b", &[("range", range)]).await;
        assert_eq!(status, 206, "{range}");
        assert_eq!(headers["content-range"], format!("bytes {first}-{last}/1000000"));
        assert_eq!(headers["content-length"], (last - first + 1).to_string());
        assert!(part == bytes.slice(first..=last), "{range}");
    }
    for range in ["bytes=1000000-", "bytes=1000000-1000001", "bytes=-0"] {
        let (status, headers, problem) = get(&server, "a/b", &[("range", range)]).await;
        assert_eq!(
            (status, &headers["content-range"]),
            (416, &"bytes */1000000".parse().unwrap()),
            "{range}"
        );
        let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
        assert_eq!(problem["code"], "range_unsatisfiable");
    }
    for range in ["bytes=0-1,5-6", "bytes=7-5", "lines=1-2", "nonsense"] {
        let (status, headers, whole) = get(&server, "a/b", &[("range", range)]).await;
        assert_eq!((status, headers.contains_key("content-range")), (200, false), "{range}");
        assert!(whole == bytes);
    }
    put(&server, "empty", Bytes::new(), &[]).await;
    assert_eq!(get(&server, "empty", &[]).await.2, Bytes::new());
    assert_eq!(get(&server, "empty", &[("range", "bytes=0-")]).await.0, 416);
    server.stop().await;
}

#[tokio::test]
async fn a_caller_who_has_the_object_is_not_sent_it_again() {
    let server = Here::start(|_| {}).await;
    put(&server, "it", some_bytes(1_000), &[]).await;
    let (status, headers, _) = get(&server, "it", &[]).await;
    assert_eq!((status, &headers["accept-ranges"]), (200, &"bytes".parse().unwrap()));
    assert_eq!(headers["x-content-type-options"], "nosniff");
    let etag = headers["etag"].to_str().unwrap();

    let head =
        server.http.head(server.url("/v1/objects/it")).header("range", "bytes=0-1").send().await.unwrap();
    assert_eq!((head.status().as_u16(), &head.headers()["content-length"]), (200, &"1000".parse().unwrap()));
    assert_eq!(head.headers()["etag"], etag);
    let head = server.http.head(server.url("/v1/objects/none")).send().await.unwrap();
    assert_eq!(head.status(), 404);

    let (weak, other) = (format!("\"x\", W/{etag}"), "\"other\"");
    for (headers, status, length) in [
        (vec![("if-none-match", etag)], 304, 0),
        (vec![("if-none-match", &weak)], 304, 0),
        (vec![("if-none-match", "*")], 304, 0),
        (vec![("if-none-match", other)], 200, 1_000),
        (vec![("if-match", etag)], 200, 1_000),
        (vec![("if-match", etag), ("range", "bytes=1-")], 206, 999),
        (vec![("if-range", etag), ("range", "bytes=1-")], 206, 999),
        (vec![("if-range", other), ("range", "bytes=1-")], 200, 1_000),
    ] {
        let (answered, sent, bytes) = get(&server, "it", &headers).await;
        assert_eq!((answered, bytes.len()), (status, length), "{headers:?}");
        assert_eq!(sent["etag"], etag, "{headers:?}");
    }
    let (status, _, problem) = get(&server, "it", &[("if-match", other)]).await;
    let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!((status, &problem["code"]), (412, &json!("precondition_failed")));
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_those_announced_are_refused_and_leave_nothing() {
    let server = Here::start(|_| {}).await;
    let objects = server.folder.as_ref().unwrap().path().join("objects");
    // SHA-256 of "abc", in both forms.
    let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let field = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
    let with_other = format!("sha-512=:AAAA:, {field}");
    for bytes in [Bytes::from("abd"), some_bytes(20 * MIB)] {
        for header in [("x-windlass-sha256", hex), ("repr-digest", field), ("content-digest", &with_other)] {
            let answer = put(&server, "it", bytes.clone(), &[header]).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("digest_mismatch")), "{header:?}");
            let detail = answer.json["detail"].as_str().unwrap();
            assert!(detail.contains(hex) && detail.contains(&digest_of(&bytes).to_string()), "{detail}");
            assert_eq!(files(&objects), 0);
        }
    }
    let zeros = "0".repeat(64);
    for headers in [
        vec![("x-windlass-sha256", "abc")],
        vec![("repr-digest", "sha-256=abc")],
        vec![("x-windlass-sha256", zeros.as_str()), ("repr-digest", field)],
    ] {
        let answer = put(&server, "it", Bytes::from("abc"), &headers).await;
        assert_eq!((answer.status, &answer.json["code"]), (400, &json!("malformed_request")), "{headers:?}");
    }
    let answer =
        put(&server, "it", Bytes::from("abc"), &[("x-windlass-sha256", hex), ("repr-digest", field)]).await;
    assert_eq!((answer.status, &answer.json["sha256"]), (201, &json!(hex)));
    server.stop().await;
}

#[tokio::test]
async fn an_object_may_be_as_large_as_the_limit_and_one_byte_more_is_refused() {
    let server = Here::start(|config| config.object_bytes_max = 1_000).await;
    assert_eq!(put(&server, "fits", some_bytes(1_000), &[]).await.status, 201);
    let said = "an object has at most 1000 bytes here; split it, or raise the server's `object_bytes_max`";
    // Nothing of the body is sent, so it is refused for what its head says.
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "PUT /v1/objects/it HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\nconnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains(said), "{answer}");

    let pieces = stream::iter(vec![Ok::<_, Infallible>(some_bytes(600)); 2]);
    let unsaid = reqwest::Body::wrap_stream(pieces);
    let answer = answered(server.http.put(server.url("/v1/objects/it")).body(unsaid)).await;
    assert_eq!((answer.status, &answer.json["code"]), (413, &json!("body_too_large")), "{}", answer.text);
    assert_eq!(answer.json["detail"], said);
    assert_eq!(server.get("/v1/objects/it").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_sender_that_breaks_off_in_the_middle_leaves_nothing_behind() {
    let server = Here::start(|_| {}).await;
    let objects = server.folder.as_ref().unwrap().path().join("objects");
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = format!("PUT /v1/objects/it HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 64 * MIB);
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&some_bytes(30 * MIB)).await.unwrap();
    until("the upload is staged", || files(&objects) == 1).await;
    assert_eq!(server.get("/v1/objects/it").await.json["code"], "object_unknown", "half an object is none");
    drop(socket);
    until("the upload is taken back", || files(&objects) == 0).await;
    assert_eq!(put(&server, "it", some_bytes(10), &[]).await.status, 201);
    server.stop().await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "within a minute, {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_slow_sender_may_take_its_time_and_a_silent_one_is_cut_off() {
    let server = Here::start(|config| config.body_timeout_ms = 2_000).await;
    let slowly = |pieces: usize, pause: u64| {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            Ok::<_, Infallible>(Bytes::from("piece"))
        });
        reqwest::Body::wrap_stream(pieces)
    };
    let slow = server.http.put(server.url("/v1/objects/slow")).body(slowly(10, 300));
    assert_eq!(answered(slow).await.status, 201, "it took 3 s, and no piece took 2");
    let silent = answered(server.http.put(server.url("/v1/objects/silent")).body(slowly(2, 30_000))).await;
    assert_eq!((silent.status, &silent.json["code"]), (408, &json!("request_timeout")));
    assert_eq!(server.get("/v1/objects/silent").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_client_gets_everything_in_and_out_of_a_store_that_fails_now_and_then() {
    let folder = TempDir::new().unwrap();
    let address = format!("hurt+file://{}?fail_every=11&lost_every=17&slow_ms=1", folder.path().display());
    let server = Here::start(|config| config.objects = Some(address)).await;
    let client = Client::new(&server.url("")).unwrap();
    for length in [0, 10, 9 * MIB, 10, 9 * MIB, 10] {
        let bytes = some_bytes(length);
        let key = format!("at/{length}");
        match client.put_object(&key, bytes.clone()).await {
            Ok(()) => {}
            Err(ClientError::Problem(problem)) => assert_eq!(problem.code, ProblemCode::ObjectExists),
            Err(other) => panic!("{other}"),
        }
        assert!(client.get_object(&key).await.unwrap() == bytes, "{length} bytes come back");
    }
    server.stop().await;
    let objects = folder.path().join("at");
    assert_eq!(files(&objects), 3);
}

#[tokio::test]
async fn a_full_store_says_so_and_what_it_could_not_hold_is_gone() {
    let folder = TempDir::new().unwrap();
    let address = format!("hurt+file://{}?full_after_bytes=12000000", folder.path().display());
    let server = Here::start(|config| config.objects = Some(address)).await;
    let full = put(&server, "large", some_bytes(20 * MIB), &[]).await;
    assert_eq!((full.status, &full.json["code"]), (507, &json!("disk_full")), "{}", full.text);
    assert_eq!(files(folder.path()), 0);
    assert_eq!(server.get("/ready").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_description_has_the_door_as_it_is() {
    let server = Here::start(|_| {}).await;
    let document = server.get("/v1/openapi.json").await.json;
    let door = &document["paths"]["/v1/objects/{key}"];
    let reference = &door["put"]["responses"]["201"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(reference, "#/components/schemas/ObjectInfo");
    for status in ["200", "206", "304", "default"] {
        assert!(door["get"]["responses"][status].is_object(), "{status}");
    }
    assert!(door["head"]["responses"]["200"].is_object());
    assert_eq!(document["components"]["schemas"]["ObjectInfo"]["properties"]["sha256"]["type"], "string");
    server.stop().await;
}
