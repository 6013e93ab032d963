//! A hard limit as the consumers see it: counted where the work is done, while the server is killed with SIGKILL at random
//! moments. `WINDLASS_KILLS` sets how often, `WINDLASS_SEED` when.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use windlass_client::{
    Chunk, ChunkName, Client, Consumer, Failure, MetaValue, Output, Strategy, SubmitRequest,
};
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const LIMIT: u32 = 3;
const CONSUMERS: usize = 4;
const COMPANIES: i64 = 3;
/// So many of each company that there is work until the last kill, or nearly.
const CHUNKS_PER_KILL: u64 = 60;

/// How many chunks of each company are being worked on, and how many there were at most.
#[derive(Debug, Default)]
struct AtWork {
    now: BTreeMap<MetaValue, u32>,
    most: u32,
    failed: BTreeSet<ChunkName>,
}

async fn work(chunk: Chunk, at_work: Arc<Mutex<AtWork>>) -> Result<Output, Failure> {
    let company = chunk.metadata()["company"].clone();
    {
        let mut at_work = at_work.lock().unwrap();
        let now = at_work.now.entry(company.clone()).or_default();
        *now += 1;
        let now = *now;
        at_work.most = at_work.most.max(now);
    }
    tokio::time::sleep(Duration::from_millis(5 + chunk.index().0 % 20)).await;
    let mut at_work = at_work.lock().unwrap();
    *at_work.now.get_mut(&company).unwrap() -= 1;
    // Retries count, too.
    if chunk.index().0 % 11 == 3 && at_work.failed.insert(chunk.name()) {
        return Err(Failure::new("at first"));
    }
    Ok(Output::Nothing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_chunks_of_a_value_are_at_work_than_a_hard_limit_allows_however_often_the_server_is_killed() {
    let kills = setting("WINDLASS_KILLS", 12);
    let chunks = CHUNKS_PER_KILL * kills;
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let mut chance = Seeded::new(seed);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
    let mut server = Served::start(data.path(), port).await;
    let mut submissions = Vec::new();
    for company in 0..COMPANIES {
        let request = SubmitRequest {
            chunks: Some(chunks),
            metadata: [("company".to_owned(), company.into())].into(),
            retry_delay_ms: Some(1),
            attempts_max: Some(100),
            ..SubmitRequest::default()
        };
        submissions.push(client.submit(&request).await.unwrap());
    }

    let at_work = Arc::new(Mutex::new(AtWork::default()));
    let (mut stops, mut consumers) = (Vec::new(), Vec::new());
    for nth in 0..CONSUMERS {
        // Different strategies, one limit.
        let inner = if nth % 2 == 0 { Strategy::Random } else { Strategy::fair("company") };
        let (stop, stopped) = oneshot::channel::<()>();
        let consumer = Consumer::builder(client.clone())
            .name(format!("consumer {nth}"))
            .strategy(inner.max_simultaneous("company", LIMIT))
            .concurrency(4);
        let at_work = Arc::clone(&at_work);
        let run = consumer.run(move |chunk| work(chunk, Arc::clone(&at_work)), async { drop(stopped.await) });
        stops.push(stop);
        consumers.push(tokio::spawn(run));
    }
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(50 + chance.below(400))).await;
        server.kill();
        server = Served::start(data.path(), port).await;
    }
    let left = client.status().await.unwrap().chunks_unsettled;
    println!("{kills} kills, {left} of {} chunks left", chunks * COMPANIES as u64);
    for id in submissions {
        let ended = client.wait(id, Some(Duration::from_secs(120 + kills))).await.unwrap();
        assert_eq!((ended.state.name(), ended.chunks.done), ("completed", chunks), "{ended:?}");
    }
    drop(stops);
    for consumer in consumers {
        consumer.await.unwrap().unwrap();
    }
    let most = at_work.lock().unwrap().most;
    assert_eq!(most, LIMIT, "the limit is reached and never passed");
    let overview = reqwest::get(format!("{}/v1/overview?field=company", server.url)).await.unwrap();
    let overview: serde_json::Value = serde_json::from_str(&overview.text().await.unwrap()).unwrap();
    assert_eq!((&overview["chunks"]["reserved"], &overview["limits"]["items"]), (&json!(0), &json!([])));
    assert!(server.stop().success());
}
