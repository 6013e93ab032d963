//! Bad input at every door: a clear problem with a code, or a closed socket; the server stays healthy.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use windlass_client::frames::{self, ClientFrame};
use windlass_tests::here::{Here, answered, attempt_of};

async fn assert_healthy(server: &Here) {
    assert_eq!(server.get("/ready").await.text, "ready\n");
    let id = server.submit(json!({"chunks": 1})).await;
    assert_eq!(server.post(&format!("/v1/submissions/{id}/cancel"), json!({})).await.status, 200);
}

#[tokio::test]
async fn every_malformed_submission_is_refused_with_a_sentence() {
    let server = Here::start(|_| {}).await;
    let long = "x".repeat(300);
    let cases: Vec<(Value, u16, &str)> = vec![
        (json!({}), 422, "invalid_request"),
        (json!({"chunks": 0}), 422, "invalid_request"),
        (json!({"chunks": -1}), 400, "malformed_request"),
        (json!({"chunks": 1.5}), 400, "malformed_request"),
        (json!({"chunks": "1"}), 400, "malformed_request"),
        (json!({"chunks": 1_u64 << 63}), 422, "invalid_request"),
        (json!({"chunks": 1, "chunk_count": 1}), 400, "malformed_request"),
        (json!({"chunks": 1, "metadata": {"a": {"nested": 1}}}), 400, "malformed_request"),
        (json!({"chunks": 1, "metadata": {"a": null}}), 400, "malformed_request"),
        (json!({"chunks": 1, "metadata": {"a": long}}), 422, "invalid_request"),
        (json!({"chunks": 1, "metadata": {"a b": 1}}), 422, "invalid_request"),
        (json!({"chunks": 1, "metadata": {"": 1}}), 422, "invalid_request"),
        (json!({"chunks": 1, "prefix": "../../etc"}), 422, "invalid_request"),
        (json!({"chunks": 1, "prefix": "a", "payload": "b"}), 422, "invalid_request"),
        (json!({"chunks": 2, "payload": "b"}), 422, "invalid_request"),
        (json!({"chunks": 1, "payload": {"base64": "%"}}), 400, "malformed_request"),
        (json!({"payload": "x".repeat(70_000)}), 422, "invalid_request"),
        (json!({"chunks": 1, "opaque": "x".repeat(70_000)}), 422, "invalid_request"),
        (json!({"chunks": 1, "attempts_max": 0}), 422, "invalid_request"),
        (json!({"chunks": 1, "on_failure": "explode"}), 400, "malformed_request"),
        (json!([1, 2]), 400, "malformed_request"),
        (json!(null), 400, "malformed_request"),
    ];
    for (body, status, code) in cases {
        let answer = server.post("/v1/submissions", body.clone()).await;
        assert_eq!((answer.status, &answer.json["code"]), (status, &json!(code)), "{body}: {}", answer.text);
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        assert!(answer.json["detail"].as_str().unwrap().len() > 10, "{body}: {}", answer.text);
    }
    assert_eq!(server.get("/v1/submissions").await.json, json!({"items": []}), "nothing of it came in");
    assert_healthy(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_json_too_large_or_of_another_type_are_refused() {
    let server = Here::start(|_| {}).await;
    let url = server.url("/v1/submissions");
    let post = || server.http.post(&url);
    let typed = |body: Vec<u8>| post().header("content-type", "application/json").body(body);
    for (request, status, code) in [
        (typed(b"{\"chunks\": ".to_vec()), 400, "malformed_request"),
        (typed(vec![0xff; 100]), 400, "malformed_request"),
        (typed("[".repeat(100_000).into_bytes()), 400, "malformed_request"),
        (typed(vec![b' '; 5 * 1_024 * 1_024]), 413, "body_too_large"),
        (post().body("{\"chunks\": 1}"), 415, "content_type_wrong"),
        (
            typed(b"{\"chunks\": 1}".to_vec()).header("idempotency-key", "x".repeat(256)),
            422,
            "invalid_request",
        ),
        (server.http.get(server.url("/v1/nothing")), 404, "path_unknown"),
        (server.http.delete(&url), 405, "method_not_allowed"),
        (server.http.get(server.url("/v1/submissions?limit=0")), 422, "invalid_request"),
        (server.http.get(server.url("/v1/submissions?limit=x")), 400, "malformed_request"),
        (server.http.get(server.url("/v1/submissions?what=1")), 400, "malformed_request"),
        (server.http.get(server.url("/v1/submissions?metadata=nocolon")), 400, "malformed_request"),
        (server.http.get(server.url("/v1/submissions/abc")), 400, "malformed_request"),
        (server.http.get(server.url("/v1/submissions/1")), 404, "submission_unknown"),
        (server.http.get(server.url("/v1/submissions/1/results")), 404, "submission_unknown"),
        (server.http.get(server.url("/v1/submissions/1/wait")), 404, "submission_unknown"),
        (server.http.post(server.url("/v1/submissions/1/cancel")), 404, "submission_unknown"),
        (server.http.post(server.url("/v1/submissions/9/retry-failed")), 404, "submission_unknown"),
        (server.http.get(server.url("/v1/events?submissions=1,x")), 400, "malformed_request"),
        (server.http.get(server.url("/v1/objects/a/b%20c")), 422, "invalid_request"),
        (server.http.get(server.url("/v1/objects/none")), 404, "object_unknown"),
    ] {
        let answer = answered(request).await;
        assert_eq!((answer.status, &answer.json["code"]), (status, &json!(code)), "{}", answer.text);
    }
    assert_healthy(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn reports_of_what_was_never_reserved_or_is_over_change_nothing() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 2})).await;
    let never = json!({"submission": id, "chunk": 0, "token": "1-0-0000000000000000"});
    for (path, body, status, code) in [
        ("/v1/complete", json!({"chunks": [never]}), 409, "token_invalid"),
        ("/v1/complete", json!({"chunks": []}), 422, "invalid_request"),
        ("/v1/complete", json!({"chunks": [{"submission": id, "chunk": 0}]}), 400, "malformed_request"),
        (
            "/v1/complete",
            json!({"chunks": [{"submission": id, "chunk": 0, "token": "garbage"}]}),
            409,
            "token_invalid",
        ),
        (
            "/v1/complete",
            json!({"chunks": [{"submission": 7, "chunk": 0, "token": ""}]}),
            400,
            "malformed_request",
        ),
        ("/v1/reserve", json!({"max": 0}), 422, "invalid_request"),
        ("/v1/reserve", json!({"max": 1_000_000}), 422, "invalid_request"),
        ("/v1/reserve", json!({"strategy": "Fastest"}), 400, "malformed_request"),
        ("/v1/reserve", json!({"strategy": {"Lane": {"name": "x"}}}), 422, "strategy_invalid"),
        ("/v1/reserve", json!({"lease_ms": 0}), 422, "invalid_request"),
        ("/v1/extend", json!({"chunks": [never], "lease_ms": 9_999_999_999_u64}), 422, "invalid_request"),
    ] {
        let answer = server.post(path, body.clone()).await;
        assert_eq!(
            (answer.status, &answer.json["code"]),
            (status, &json!(code)),
            "{path} {body}: {}",
            answer.text
        );
    }
    let mut failed = never.clone();
    failed["reason"] = json!("x");
    assert_eq!(server.post("/v1/fail", json!({"chunks": [failed]})).await.json["code"], "token_invalid");

    let reservation = server.reserve(1).await.remove(0);
    let done = json!({"chunks": [attempt_of(&reservation), attempt_of(&reservation)]});
    assert_eq!(
        server.post("/v1/complete", done.clone()).await.json,
        json!({"chunks": ["accepted", "already_done"]})
    );
    assert_eq!(
        server.post("/v1/complete", done).await.json,
        json!({"chunks": ["already_done", "already_done"]})
    );
    let other = server.reserve(1).await.remove(0);
    server.post(&format!("/v1/submissions/{id}/cancel"), json!({})).await;
    let late = server.post("/v1/complete", json!({"chunks": [attempt_of(&other)]})).await;
    assert_eq!(late.json, json!({"chunks": ["submission_over"]}));
    let shown = server.get(&format!("/v1/submissions/{id}")).await.json;
    assert_eq!(shown["chunks"], json!({"total": 2, "done": 1, "failed": 0, "skipped": 1}));
    let again = server.post(&format!("/v1/submissions/{id}/retry-failed"), json!({})).await;
    assert_eq!(again.json["code"], "submission_over");
    server.stop().await;
}

#[tokio::test]
async fn garbage_on_the_consumers_socket_closes_it_with_a_reason() {
    let server = Here::start(|_| {}).await;
    let old = frames::encode(&ClientFrame::Hello { version: 99, session: None, name: "x".into() });
    let too_large = vec![0; frames::FRAME_BYTES_MAX + 1];
    let conversations: Vec<Vec<Message>> = vec![
        vec![Message::Binary(vec![0xff, 0x00].into())],
        vec![Message::Binary(frames::encode(&ClientFrame::Heartbeat {}).into())],
        vec![Message::Text("hello".into())],
        vec![Message::Binary(old.into())],
        vec![Message::Binary(hello().into()), Message::Binary(hello().into())],
        vec![Message::Binary(hello().into()), Message::Binary(b"\x82\x18\x63\x80".to_vec().into())],
        vec![Message::Binary(hello().into()), Message::Binary(too_large.into())],
    ];
    for messages in conversations {
        let url = server.url("/v1/consume").replace("http://", "ws://");
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        for message in messages {
            // The server may close before the last word is sent.
            if socket.send(message).await.is_err() {
                break;
            }
        }
        let closed = async {
            while let Some(Ok(message)) = socket.next().await {
                if let Message::Close(Some(close)) = message {
                    assert!(!close.reason.is_empty());
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), closed).await.expect("the server closes the socket");
    }
    let mut socket = connected(&server).await;
    let refused = refusal_of(&mut socket, 3, "{\"Nope\": 1}".into()).await;
    assert!(
        matches!(&refused, frames::ServerFrame::Refused { request: 3, code, .. } if code == "strategy_invalid"),
        "{refused:?}"
    );
    drop(socket);
    assert_healthy(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn hostile_strategies_are_refused_at_both_doors_with_what_to_do() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 1, "metadata": {"a": 1}})).await;
    let nested = |depth: usize| {
        (0..depth).fold(
            json!("Random"),
            |inner, _| json!({"MaxSimultaneous": {"field": "a", "max": 1, "inner": inner}}),
        )
    };
    let weights: serde_json::Map<String, Value> = (0..1_001).map(|nth| (nth.to_string(), json!(2))).collect();
    let parts = vec!["Random"; 65].join(", ");
    let deep = "nests at most 16 deep";
    let cases: Vec<(Value, u16, &str)> = vec![
        (nested(16), 422, deep),
        (nested(100), 400, deep),
        (json!(format!("OrElse({parts})")), 400, deep),
        (json!(format!("SelectOnly(a={}", "(".repeat(10_000))), 400, "character"),
        (json!("x".repeat(20_000)), 400, "16384 bytes"),
        (json!({"Fair": {"field": "a", "weights": weights}}), 422, "1000"),
        (json!({"Fair": {"field": "a", "weights": {"x": 0}}}), 422, "weight"),
        (json!({"MaxSimultaneous": {"field": "a", "max": 0, "inner": "Random"}}), 400, "max"),
        (json!({"Random": {"Random": {"Random": 1}}}), 400, "no settings"),
    ];
    let mut socket = connected(&server).await;
    for (nth, (strategy, status, says)) in cases.into_iter().enumerate() {
        let text = strategy.to_string();
        let shown: String = text.chars().take(80).collect();
        for path in ["/v1/reserve", "/v1/explain"] {
            let answer = server.post(path, json!({"strategy": strategy})).await;
            let detail = answer.json["detail"].as_str().unwrap_or_default();
            assert_eq!(answer.status, status, "{path} {shown}: {}", answer.text);
            assert!(detail.contains(says) && detail.len() < 500, "{path} {shown}: {detail}");
        }
        let request = nth as u64;
        let refused = refusal_of(&mut socket, request, text).await;
        assert!(
            matches!(&refused, frames::ServerFrame::Refused { request: of, code, detail, .. }
                if *of == request && code == "strategy_invalid" && detail.contains(says)),
            "{shown}: {refused:?}"
        );
    }
    let unknown = json!({"strategy": "Fair(nobody_has_it, MaxSimultaneous(nor_this, 1))"});
    let reserved = server.post("/v1/reserve", unknown).await.json;
    assert_eq!(reserved["reservations"].as_array().unwrap().len(), 1, "unknown fields hold nothing back");
    assert_healthy(&server).await;
    server.stop().await;
}

fn hello() -> Vec<u8> {
    frames::encode(&ClientFrame::Hello { version: 1, session: None, name: "x".into() })
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

/// A consumer that was welcomed.
async fn connected(server: &Here) -> Socket {
    let url = server.url("/v1/consume").replace("http://", "ws://");
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    socket.send(Message::Binary(hello().into())).await.unwrap();
    let Some(Ok(Message::Binary(_welcome))) = socket.next().await else { panic!("a welcome was expected") };
    socket
}

/// What a reserve with a strategy that cannot be is answered with.
async fn refusal_of(socket: &mut Socket, request: u64, strategy: String) -> frames::ServerFrame {
    let reserve = ClientFrame::Reserve { request, max: 1, strategy, after_reports: false };
    socket.send(Message::Binary(frames::encode(&reserve).into())).await.unwrap();
    loop {
        let Some(Ok(Message::Binary(answer))) = socket.next().await else { panic!("a refusal was expected") };
        match frames::decode(&answer).unwrap() {
            frames::ServerFrame::Heartbeat {} => {}
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn two_thousand_slow_senders_are_closed_and_the_server_stays_healthy_throughout() {
    const SLOW: usize = 2_000;
    let server = Here::start(|config| {
        config.header_timeout_ms = 3_000;
        config.body_timeout_ms = 3_000;
    })
    .await;
    let mut slow = Vec::new();
    for nth in 0..SLOW {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let head: &[u8] = match nth % 3 {
            0 => b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ",
            1 => b"POST /v1/submissions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{",
            _ => b"",
        };
        stream.write_all(head).await.unwrap();
        slow.push(stream);
    }
    let began = Instant::now();
    assert_healthy(&server).await;
    let closed = futures_util::future::join_all(slow.into_iter().map(|mut stream| async move {
        let mut answer = Vec::new();
        // A reset is a closed connection too.
        _ = stream.read_to_end(&mut answer).await;
        answer
    }));
    let answers =
        tokio::time::timeout(Duration::from_secs(60), closed).await.expect("every slow sender is closed");
    assert!(began.elapsed() >= Duration::from_secs(2), "they had their time");
    let timed_out =
        answers.iter().filter(|it| String::from_utf8_lossy(it).contains("request_timeout")).count();
    assert!(timed_out >= SLOW / 3 - 1, "{timed_out} slow bodies were told why");
    assert_healthy(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head_and_a_head_that_stops_halfway_does_not() {
    const HEAD_TIMEOUT: Duration = Duration::from_millis(300);
    let server = Here::start(|config| config.header_timeout_ms = HEAD_TIMEOUT.as_millis() as u64).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.expect("the connection is open");
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        let rest = tokio::time::timeout(HEAD_TIMEOUT * 3, stream.read_to_end(&mut Vec::new())).await;
        assert!(rest.is_err(), "an idle connection stays open");
    }
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: ").await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut Vec::new())).await;
    closed.expect("a head that stops halfway ends the connection").ok();
    server.stop().await;
}

#[tokio::test]
async fn a_server_with_a_token_lets_nobody_in_without_it() {
    let server = Here::start(|config| config.token = Some("a-long-and-secret-token".into())).await;
    let shown = |token: &str| {
        answered(server.http.get(server.url("/v1/status")).header("authorization", token.to_owned()))
    };
    assert_eq!(server.get("/v1/status").await.json["code"], "unauthorized");
    assert_eq!(server.get("/metrics").await.status, 401);
    assert_eq!(shown("Bearer a-long-and-secret-tokeX").await.status, 401);
    assert_eq!(shown("Bearer a-long-and-secret-token").await.status, 200);
    assert_eq!(server.get("/health").await.status, 200);
    server.stop().await;
}
