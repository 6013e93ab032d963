//! The doors of lanes: what they take at a time, what they refuse, and what they say.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::json;
use windlass_client::frames::{ClientFrame, ServerFrame, TaskToAdd};
use windlass_client::{Client, ConsumeSocket};
use windlass_tests::here::Here;
use windlass_tests::lanes::create;

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
