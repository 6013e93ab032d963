//! Heavy lanes in the real server: payloads that are much more than its memory, and a million tasks before a single one.
//! `WINDLASS_PAYLOADS` and `WINDLASS_TASKS` set how many.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::BTreeSet;
use std::time::Instant;
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, ServerFrame, WorkOf, WorkTask};
use windlass_client::lanes::TaskRequest;
use windlass_client::{Blob, Client, ConsumeSocket, SubmissionId};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const MIB: u64 = 1_024 * 1_024;
const LANE: &str = "heavy";
const PAYLOAD_BYTES: usize = 256 * 1_024;
const PAYLOADS_PER_REQUEST: u64 = 4;
/// Each payload passes through a few buffers on its way in and out; all of them together never are in memory.
const MEMORY_MAX: u64 = 256 * MIB;

async fn served() -> (TempDir, Served, Client) {
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let server = Served::start(data.path(), port).await;
    let client = Client::new(&server.url).unwrap();
    client.create_lane(LANE).await.unwrap();
    (data, server, client)
}

async fn reserve(socket: &mut ConsumeSocket, max: u32) -> Vec<WorkOf> {
    let strategy = format!("\"Lane({LANE})\"");
    socket.send(&ClientFrame::Reserve { request: 1, max, strategy, after_reports: false }).await.unwrap();
    let (mut all, mut has_more) = (Vec::new(), true);
    while has_more {
        let Some(ServerFrame::Work { work, more, .. }) = socket.receive().await.unwrap() else { panic!() };
        all.extend(work);
        has_more = more;
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_more_than_the_memory_are_taken_in_and_given_out_within_it() {
    let payloads = setting("WINDLASS_PAYLOADS", 1_500);
    let (_data, server, client) = served().await;
    let began = Instant::now();
    let mut added: BTreeSet<SubmissionId> = BTreeSet::new();
    while (added.len() as u64) < payloads {
        let task = |nth: u64| TaskRequest {
            key: format!("k{}", nth % 3),
            payload: Some(Blob(vec![b'a' + nth as u8; PAYLOAD_BYTES])),
            ..TaskRequest::default()
        };
        added.extend(client.add_tasks(LANE, (0..PAYLOADS_PER_REQUEST).map(task).collect()).await.unwrap());
    }
    let (filled, in_lane) = (began.elapsed(), server.memory_peak() / MIB);
    let mut socket = ConsumeSocket::connect(&client, "test", None).await.unwrap().0;
    let mut left = added.clone();
    while !left.is_empty() {
        let work = reserve(&mut socket, 1_000).await;
        assert!(!work.is_empty(), "{} are left", left.len());
        for it in &work {
            assert_eq!(it.payload.as_ref().map(|payload| payload.len()), Some(PAYLOAD_BYTES));
            assert!(left.remove(&it.submission), "each comes once");
        }
        let tasks = work.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
        socket.send(&ClientFrame::CompleteTasks { request: 2, tasks }).await.unwrap();
        assert!(matches!(socket.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
    }
    let peak = server.memory_peak();
    println!(
        "{} MiB of payloads in after {filled:?}, out after {:?}; {in_lane} MiB at most, then {} MiB",
        added.len() * PAYLOAD_BYTES / MIB as usize,
        began.elapsed(),
        peak / MIB
    );
    assert_eq!(client.lane(LANE).await.unwrap().lane.done, added.len() as u64);
    assert!(peak < MEMORY_MAX, "{} MiB", peak / MIB);
    assert!(server.stop().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_tasks_of_one_key_let_a_single_one_of_another_go_at_once() {
    let tasks = setting("WINDLASS_TASKS", 1_000_000);
    let (_data, server, client) = served().await;
    let began = Instant::now();
    let task = TaskRequest { key: "heavy".into(), ..TaskRequest::default() };
    for _ in 0..tasks / 1_000 {
        client.add_tasks(LANE, vec![task.clone(); 1_000]).await.unwrap();
    }
    println!("{tasks} tasks added in {:?}", began.elapsed());
    let mut socket = ConsumeSocket::connect(&client, "test", None).await.unwrap().0;
    assert_eq!(reserve(&mut socket, 100).await.len(), 100);
    let light = client.add_tasks(LANE, vec![TaskRequest { key: "light".into(), ..task }]).await.unwrap();
    let next: Vec<SubmissionId> = reserve(&mut socket, 2).await.iter().map(|it| it.submission).collect();
    assert!(next.contains(&light[0]), "it is among the first two");
    assert!(server.stop().success());
}
