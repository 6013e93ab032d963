//! Lanes while the real server is killed with SIGKILL at random moments under load.
//!
//! Every acknowledged task is done in the end, with its payload, and none is handed out again once its completion was
//! acknowledged. `WINDLASS_KILLS` sets how often, `WINDLASS_SEED` when.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict, WorkTask};
use windlass_client::lanes::TaskRequest;
use windlass_client::{Blob, Client, ConsumeSocket, Output, SubmissionId};
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const LANE: &str = "emails";
const KEYS: u64 = 5;
const CONSUMERS: u64 = 3;

/// What callers remember.
#[derive(Default)]
struct Acknowledged {
    /// Tasks and their payloads.
    added: Mutex<BTreeMap<SubmissionId, String>>,
    done: Mutex<BTreeSet<SubmissionId>>,
    payloads: Mutex<BTreeMap<SubmissionId, String>>,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_task_is_lost_or_done_again_however_often_the_server_is_killed() {
    let kills = setting("WINDLASS_KILLS", 30);
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let mut chance = Seeded::new(seed);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let acknowledged = Arc::new(Acknowledged::default());
    let mut server = Served::start(data.path(), port).await;
    client.create_lane(LANE).await.unwrap();
    let producer = tokio::spawn(produce(client.clone(), Arc::clone(&acknowledged), Seeded::new(seed)));
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|nth| tokio::spawn(consume(client.clone(), Arc::clone(&acknowledged), nth)))
        .collect();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(5 + chance.below(150))).await;
        server.kill();
        server = Served::start(data.path(), port).await;
    }
    acknowledged.is_over.store(true, Ordering::Relaxed);
    producer.await.unwrap();
    let added = acknowledged.added.lock().unwrap().len();
    assert!(added as u64 > kills, "the producer got something done between kills");
    // What a killed connection held comes back after the grace time at the latest; here nobody is left that holds it.
    let is_done = async {
        while client.lane(LANE).await.map_or(1, |lane| lane.lane.waiting + lane.lane.delayed) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_done).await.expect("everything gets done");
    let lane = client.lane(LANE).await.unwrap().lane;
    assert_eq!((lane.added, lane.done), (added as u64, added as u64));
    // A task that was done just before a kill may have been acknowledged to nobody; every other one was seen.
    for (id, payload) in &*acknowledged.payloads.lock().unwrap() {
        assert_eq!(
            acknowledged.added.lock().unwrap().get(id),
            Some(payload),
            "task {id} came as it was added"
        );
    }
    consumers.iter().for_each(tokio::task::JoinHandle::abort);
    println!("{added} tasks, {kills} kills");
    assert!(server.stop().success());
}

/// Adds until the end; an add whose answer is lost is sent again with the same key, so that it counts once.
async fn produce(client: Client, acknowledged: Arc<Acknowledged>, mut chance: Seeded) {
    for request in 0.. {
        if acknowledged.is_over.load(Ordering::Relaxed) {
            return;
        }
        let count = 1 + chance.below(20);
        let payloads: Vec<String> = (0..count).map(|nth| format!("{request} {nth}")).collect();
        let task = |payload: &String| TaskRequest {
            key: format!("k{}", chance.below(KEYS)),
            payload: Some(Blob(payload.clone().into_bytes())),
            ..TaskRequest::default()
        };
        let tasks: Vec<TaskRequest> = payloads.iter().map(task).collect();
        let name = format!("request-{request}");
        let ids = loop {
            match client.add_tasks_as(LANE, tasks.clone(), &name).await {
                Ok(ids) => break ids,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(ids.len(), payloads.len());
        let mut added = acknowledged.added.lock().unwrap();
        for (id, payload) in ids.into_iter().zip(payloads) {
            assert_eq!(added.insert(id, payload), None, "an id names one task");
        }
    }
}

async fn consume(client: Client, acknowledged: Arc<Acknowledged>, nth: u64) {
    loop {
        if converse(&client, &acknowledged, nth).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn converse(client: &Client, acknowledged: &Acknowledged, nth: u64) -> Option<()> {
    let (mut socket, _) = ConsumeSocket::connect(client, &format!("consumer {nth}"), None).await.ok()?;
    for request in 0.. {
        let strategy = format!("\"Lane({LANE})\"");
        socket.send(&ClientFrame::Reserve { request, max: 4, strategy, after_reports: false }).await.ok()?;
        let Some(ServerFrame::Work { work, .. }) = socket.receive().await.ok()? else { return None };
        for it in &work {
            look(acknowledged, it.submission, it.payload.as_deref().map_or(&[][..], Vec::as_slice));
        }
        // All by one report, or each by its own.
        if nth.is_multiple_of(2) {
            let tasks: Vec<WorkTask> =
                work.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
            socket.send(&ClientFrame::CompleteTasks { request, tasks }).await.ok()?;
            let Some(ServerFrame::Settled { verdicts, .. }) = socket.receive().await.ok()? else {
                return None;
            };
            assert_eq!(verdicts.len(), work.len());
            assert!(
                verdicts.iter().all(|it| matches!(it, Verdict::Accepted | Verdict::AlreadyDone)),
                "tasks were handed out, yet their completions are {verdicts:?}"
            );
            acknowledged.done.lock().unwrap().extend(work.iter().map(|it| it.submission));
            continue;
        }
        for it in work {
            let done = it.chunks.iter().map(|chunk| DoneChunk {
                chunk: *chunk,
                output: Output::Nothing,
                entries: None,
            });
            let complete = ClientFrame::Complete { request, submission: it.submission, done: done.collect() };
            socket.send(&complete).await.ok()?;
            let Some(ServerFrame::Settled { verdicts, .. }) = socket.receive().await.ok()? else {
                return None;
            };
            assert!(
                matches!(verdicts[..], [Verdict::Accepted | Verdict::AlreadyDone]),
                "task {} was handed out, yet its completion is {verdicts:?}",
                it.submission
            );
            acknowledged.done.lock().unwrap().insert(it.submission);
        }
    }
    None
}

/// A task whose completion was acknowledged is never seen again.
fn look(acknowledged: &Acknowledged, id: SubmissionId, payload: &[u8]) {
    assert!(!acknowledged.done.lock().unwrap().contains(&id), "task {id} was done and came again");
    let payload = String::from_utf8(payload.to_vec()).unwrap();
    acknowledged.payloads.lock().unwrap().insert(id, payload);
}
