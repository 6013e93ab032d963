//! The real server, killed with SIGKILL at random moments under load.
//!
//! After each restart every acknowledged submit and complete is there; at the end every submission has exactly the results
//! it would have had without a crash. `WINDLASS_KILLS` sets how often, `WINDLASS_SEED` when.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, DoneChunk, FailedChunk, ServerFrame, Verdict, WorkOf};
use windlass_client::{Blob, Client, ConsumeSocket, Output, SubmissionId, SubmitRequest};
use windlass_core::ids::ChunkIndex;
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 4;
const CHUNKS_MAX: u64 = 40;

/// What the server has acknowledged, as its callers remember it.
#[derive(Default)]
struct Acknowledged {
    submitted: Mutex<BTreeMap<SubmissionId, (String, u64)>>,
    completed: Mutex<BTreeSet<(SubmissionId, ChunkIndex)>>,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_however_often_the_server_is_killed() {
    let kills = setting("WINDLASS_KILLS", 60);
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let mut chance = Seeded::new(seed);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let acknowledged = Arc::new(Acknowledged::default());

    let mut server = Served::start(data.path(), port).await;
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|nth| {
            tokio::spawn(produce(client.clone(), Arc::clone(&acknowledged), Seeded::new(seed + nth), nth))
        })
        .collect();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|nth| tokio::spawn(consume(client.clone(), Arc::clone(&acknowledged), nth)))
        .collect();

    let mut checked = 0;
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(5 + chance.below(150))).await;
        server.kill();
        // What was acknowledged before the kill, and nothing that is acknowledged after it.
        let submitted = acknowledged.submitted.lock().unwrap().clone();
        let completed = acknowledged.completed.lock().unwrap().clone();
        server = Served::start(data.path(), port).await;
        checked += check_some(&client, &submitted, &completed, &mut chance, kill).await;
    }
    acknowledged.is_over.store(true, Ordering::Relaxed);
    for producer in producers {
        producer.await.unwrap();
    }
    let submitted = acknowledged.submitted.lock().unwrap().clone();
    println!("{} submissions, {checked} checks after {kills} kills; now they all finish", submitted.len());
    assert!(submitted.len() as u64 > kills, "the producers got something done between kills");
    finish(&client, &submitted).await;
    for consumer in consumers {
        consumer.abort();
    }
    let completed = acknowledged.completed.lock().unwrap().clone();
    let total: u64 = submitted.values().map(|it| it.1).sum();
    assert!(completed.len() as u64 <= total, "no chunk was accepted that was not submitted");
    let status = client.status().await.unwrap();
    assert_eq!((status.submissions_running, status.chunks_unsettled), (0, 0));
    assert!(server.stop().success());
}

/// Submits until the end; a submit whose answer is lost is sent again with the same key, so that it counts once.
async fn produce(client: Client, acknowledged: Arc<Acknowledged>, mut chance: Seeded, nth: u64) {
    for number in 0.. {
        if acknowledged.is_over.load(Ordering::Relaxed) {
            return;
        }
        let (name, chunks) = (format!("{nth}-{number}"), 1 + chance.below(CHUNKS_MAX));
        let request = SubmitRequest {
            chunks: Some(chunks),
            opaque: Some(Blob(name.clone().into_bytes())),
            retry_delay_ms: Some(1),
            attempts_max: Some(100),
            ..SubmitRequest::default()
        };
        let id = loop {
            match client.submit_as(&request, &name).await {
                Ok(id) => break id,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let before = acknowledged.submitted.lock().unwrap().insert(id, (name, chunks));
        assert_eq!(before, None, "an id names one submission");
        tokio::time::sleep(Duration::from_millis(10 + chance.below(40))).await;
    }
}

/// Works until it is aborted: every seventh chunk fails at first, every other gives the output that is expected of it.
async fn consume(client: Client, acknowledged: Arc<Acknowledged>, nth: u64) {
    loop {
        // The server is killed all the time; whatever breaks is begun anew.
        if converse(&client, &acknowledged, nth).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn converse(client: &Client, acknowledged: &Acknowledged, nth: u64) -> Option<()> {
    let (mut socket, _) = ConsumeSocket::connect(client, &format!("consumer {nth}"), None).await.ok()?;
    for request in 0.. {
        let strategy = if nth.is_multiple_of(2) { "\"Random\"" } else { "\"OldestFirst\"" };
        socket
            .send(&ClientFrame::Reserve { request, max: 7, strategy: strategy.into(), after_reports: false })
            .await
            .ok()?;
        let Some(ServerFrame::Work { work, .. }) = socket.receive().await.ok()? else { return None };
        for it in work {
            let submission = it.submission;
            let (failing, done): (Vec<_>, Vec<_>) =
                it.chunks.iter().copied().partition(|chunk| chunk.chunk.0 % 7 == 3 && chunk.nth == 0);
            if !failing.is_empty() {
                let failed =
                    failing.into_iter().map(|chunk| FailedChunk { chunk, reason: "at first".into() });
                let fail = ClientFrame::Fail { request, submission, failed: failed.collect() };
                socket.send(&fail).await.ok()?;
                socket.receive().await.ok()??;
            }
            if !done.is_empty() {
                let complete = completion(request, &it, &done);
                socket.send(&complete).await.ok()?;
                let Some(ServerFrame::Settled { verdicts, .. }) = socket.receive().await.ok()? else {
                    return None;
                };
                for (chunk, verdict) in done.iter().zip(verdicts) {
                    assert!(
                        matches!(verdict, Verdict::Accepted | Verdict::AlreadyDone),
                        "chunk {} of {submission} was handed out, yet its completion is {verdict:?}",
                        chunk.chunk
                    );
                    acknowledged.completed.lock().unwrap().insert((submission, chunk.chunk));
                }
            }
        }
    }
    None
}

fn completion(request: u64, work: &WorkOf, done: &[windlass_client::frames::WorkChunk]) -> ClientFrame {
    let opaque = work.opaque.as_deref().map_or(&[][..], Vec::as_slice);
    let name = String::from_utf8(opaque.to_vec()).expect("names are text");
    let done = done.iter().map(|chunk| {
        let output = Output::Inline(expected_output(&name, chunk.chunk).into_bytes().into());
        DoneChunk { chunk: *chunk, output, entries: None }
    });
    ClientFrame::Complete { request, submission: work.submission, done: done.collect() }
}

fn expected_output(name: &str, chunk: ChunkIndex) -> String {
    format!("{name}/{chunk}")
}

/// Looks at some submissions, the newest among them, and at every completion of theirs that was acknowledged.
async fn check_some(
    client: &Client,
    submitted: &BTreeMap<SubmissionId, (String, u64)>,
    completed: &BTreeSet<(SubmissionId, ChunkIndex)>,
    chance: &mut Seeded,
    kill: u64,
) -> u64 {
    let newest = submitted.keys().rev().take(10);
    let older = submitted.keys().filter(|_| chance.below(submitted.len() as u64) < 10);
    let chosen: BTreeSet<SubmissionId> = newest.chain(older).copied().collect();
    let mut checks = 0;
    for id in chosen {
        let (name, chunks) = &submitted[&id];
        let shown =
            client.show(id).await.unwrap_or_else(|error| panic!("kill {kill}: submission {id}: {error}"));
        assert_eq!(shown.chunks.total, *chunks, "kill {kill}");
        let results = results_of(client, id).await;
        let done = results.iter().filter(|it| it["state"] == "done").count() as u64;
        assert!(done >= shown.chunks.done, "kill {kill}: counts add up");
        for (_, chunk) in completed.range((id, ChunkIndex(0))..=(id, ChunkIndex(u64::MAX))) {
            let result = &results[usize::try_from(chunk.0).unwrap()];
            assert_eq!(
                result["state"], "done",
                "kill {kill}: an acknowledged completion of {id} is there: {result}"
            );
            assert_eq!(result["output"], expected_output(name, *chunk), "kill {kill}");
            checks += 1;
        }
    }
    checks
}

async fn results_of(client: &Client, id: SubmissionId) -> Vec<Value> {
    let url = format!("{}/v1/submissions/{id}/results?limit=1000", client.server().trim_end_matches('/'));
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["items"].as_array().unwrap().clone()
}

/// Waits for every submission, and compares its results with those of a world without crashes.
async fn finish(client: &Client, submitted: &BTreeMap<SubmissionId, (String, u64)>) {
    let checks = stream::iter(submitted).map(|(id, (name, chunks))| async move {
        let info = client.wait(*id, Some(Duration::from_secs(120))).await.unwrap();
        assert_eq!((info.state.name(), info.chunks.done, info.chunks.failed), ("completed", *chunks, 0), "{info:?}");
        let expected: Vec<Value> = (0..*chunks)
            .map(|chunk| json!({"chunk": chunk, "state": "done", "output": expected_output(name, ChunkIndex(chunk))}))
            .collect();
        assert_eq!(results_of(client, *id).await, expected);
    });
    checks.buffer_unordered(16).collect::<Vec<()>>().await;
}
