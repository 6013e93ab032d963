//! The real server, killed at every step of a commit and at random moments under load: nothing that was acknowledged is lost,
//! nothing is visible in part, and nothing is left over. `WINDLASS_KILLS` sets how often, `WINDLASS_SEED` when.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windlass_client::branches::{CommitBody, CommitProgress, EntriesQuery, LogQuery, StagedChange};
use windlass_client::{Client, Consumer, Digest, Failure, Output, PutEntry, SubmissionId, SubmitRequest};
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port, serve_command};
use windlass_tests::branches::{commit, left_over, output_to, put, read, shown, try_read, until};
use windlass_tests::setting;

/// More paths than one sweep takes.
const REMOVALS: usize = 2_500;

/// Every step on the way of a commit, and how often one commit passes it at least.
const STEPS: [(&str, u64); 13] = [
    ("announcing", 1),
    ("announced", 1),
    ("making", 1),
    ("noting", 1),
    ("noted", 1),
    ("writing", 1),
    ("writing", 2),
    ("written", 1),
    ("written", 2),
    ("made", 1),
    ("performed", 1),
    ("sweeping", 2),
    ("swept", 1),
];

fn client_of(port: u16) -> Client {
    Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO)
}

async fn start_to_end_at(data: &Path, port: u16, step: &str, nth: u64) -> Served {
    let mut command = serve_command(data, port);
    command.env("WINDLASS_END_AT", format!("{step}:{nth}"));
    Served::try_start(command, port).await.expect("it passes no step before it is asked")
}

/// Waits until the server has ended at its step.
async fn ended_at(mut server: Served, step: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !server.has_ended() {
        assert!(
            Instant::now() < end,
            "{step} ends a server that was built with the tests, as `make test` does"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// After everything was committed and swept, nothing of it may be left.
async fn assert_nothing_is_left(server: Served, client: &Client, data: &Path) {
    until("every commit is over", || async {
        let page = client.branches(&Default::default()).await.ok()?;
        page.items.iter().all(|it| it.waiting.is_empty() && it.sealed_areas == 0).then_some(())
    })
    .await;
    assert!(server.stop().success());
    let left = left_over(data).await;
    assert_eq!((left.staged, left.dropped, left.noted, left.waiting), (0, 0, 0, 0), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_step_of_a_commit_is_the_last_the_next_server_goes_on_from_there() {
    for (step, nth) in STEPS {
        let (data, port) = (TempDir::new().unwrap(), free_port());
        let client = client_of(port);
        let server = Served::start(data.path(), port).await;
        client.create_branch("main", None).await.unwrap();
        put(&client, "main", "old", "old").await;
        let old = commit(&client, "main", "old").await;
        assert!(server.stop().success());

        let server = start_to_end_at(data.path(), port, step, nth).await;
        put(&client, "main", "new", "new").await;
        client.remove_entry("main", "old").await.unwrap();
        for some in (0..REMOVALS).collect::<Vec<_>>().chunks(1_000) {
            let removal = |nth: &usize| StagedChange {
                path: format!("gone/{nth}"),
                remove: true,
                ..StagedChange::default()
            };
            client.stage("main", None, some.iter().map(removal).collect()).await.unwrap();
        }
        let body = CommitBody { message: "new".into(), ..CommitBody::default() };
        let answered = client.commit_as("main", &body, "the new version").await;
        ended_at(server, step).await;
        if !matches!(step, "performed" | "sweeping" | "swept") {
            assert!(answered.is_err(), "{step}: nobody was told of what had not happened: {answered:?}");
        }

        let server = Served::start(data.path(), port).await;
        let (before, after) = (shown([("old", "old")]), shown([("new", "new")]));
        let seen = read(&client, "main", "head").await;
        assert!(seen == before || seen == after, "{step} {nth}: all or nothing, not {seen:?}");
        assert!(answered.is_err() || seen == after, "{step} {nth}: what was acknowledged is there");
        assert_eq!(
            read(&client, "main", "staged").await,
            after,
            "{step} {nth}: nothing that was put is lost"
        );
        // Whoever asks again with the same key is told of the same commit.
        let outcome = client.commit_as("main", &body, "the new version").await.unwrap();
        assert_eq!(outcome.state, CommitProgress::Committed, "{step} {nth}");
        assert_eq!(read(&client, "main", "head").await, after, "{step} {nth}");
        let log = client.commits("main", &LogQuery::default()).await.unwrap().items;
        let ids: Vec<Digest> = log.iter().map(|it| it.id).collect();
        assert_eq!(ids, [outcome.commit.unwrap().id, old.id], "{step} {nth}: it was committed once");
        assert_eq!(read(&client, "main", &old.id.to_string()).await, before, "{step} {nth}");
        assert_nothing_is_left(server, &client, data.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_step_is_the_last_a_submissions_outputs_appear_once_and_whole() {
    for step in ["making", "noting", "noted", "written", "made", "performed", "sweeping", "swept"] {
        let (data, port) = (TempDir::new().unwrap(), free_port());
        let client = client_of(port);
        let server = start_to_end_at(data.path(), port, step, 1).await;
        client.create_branch("main", None).await.unwrap();
        let request =
            SubmitRequest { chunks: Some(3), output: output_to("main", "exact"), ..SubmitRequest::default() };
        let id = client.submit(&request).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let working = tokio::spawn(Consumer::builder(client.clone()).concurrency(3).run(publish, async {
            drop(stopped.await);
        }));
        ended_at(server, step).await;
        let server = Served::start(data.path(), port).await;
        let info = client.wait(id, Some(Duration::from_secs(60))).await.unwrap();
        assert_eq!(info.state.name(), "completed", "{step}: {info:?}");
        assert_eq!(read(&client, "main", "head").await, outputs_of(id, 3), "{step}");
        assert_eq!(client.branch("main").await.unwrap().commits, 1, "{step}");
        stop.send(()).unwrap();
        working.await.unwrap().unwrap();
        assert_nothing_is_left(server, &client, data.path()).await;
    }
}

async fn publish(chunk: windlass_client::Chunk) -> Result<Output, Failure> {
    let (id, nth) = (chunk.submission(), chunk.index());
    for part in ["a", "b"] {
        chunk.publish(format!("{id}/{nth}/{part}"), format!("{nth}{part}")).await?;
    }
    Ok(Output::Nothing)
}

fn outputs_of(id: SubmissionId, chunks: u64) -> BTreeMap<String, String> {
    let of_chunk = |nth: u64| ["a", "b"].map(|part| (format!("{id}/{nth}/{part}"), format!("{nth}{part}")));
    (0..chunks).flat_map(of_chunk).collect()
}

/// What the server has acknowledged, as its callers remember it.
#[derive(Default)]
struct Acknowledged {
    /// Texts by path, of those who put by hand.
    put: Mutex<BTreeMap<String, String>>,
    /// What each commit was said to hold at least.
    committed: Mutex<BTreeMap<Digest, BTreeMap<String, String>>>,
    submitted: Mutex<BTreeMap<SubmissionId, u64>>,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_seen_in_part_however_often_the_server_is_killed() {
    let kills = setting("WINDLASS_KILLS", 25);
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let mut chance = Seeded::new(seed);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = client_of(port);
    let mut server = Served::start(data.path(), port).await;
    for branch in ["by-hand", "outputs"] {
        client.create_branch(branch, None).await.unwrap();
    }
    let acknowledged = Arc::new(Acknowledged::default());
    let mut callers = tokio::task::JoinSet::new();
    for nth in 0..3 {
        callers.spawn(put_and_commit(client.clone(), Arc::clone(&acknowledged), nth));
    }
    callers.spawn(submit(client.clone(), Arc::clone(&acknowledged), Seeded::new(seed)));
    callers.spawn(read_all_the_time(client.clone(), Arc::clone(&acknowledged)));
    let consumer = Consumer::builder(client.clone().retrying_for(Duration::from_secs(60))).concurrency(2);
    let working = tokio::spawn(consumer.run(publish, std::future::pending()));

    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(20 + chance.below(400))).await;
        server.kill();
        let put = acknowledged.put.lock().unwrap().clone();
        let committed = acknowledged.committed.lock().unwrap().clone();
        server = Served::start(data.path(), port).await;
        let staged = read_paths(&client, "staged", put.keys()).await;
        for (path, text) in put {
            // It was put again since, by the same caller, or is what it was.
            assert!(staged[&path] >= text, "kill {kill}: {path} leads to {}, not {text}", staged[&path]);
        }
        if let Some((id, held)) = committed.last_key_value() {
            let seen = read_paths(&client, &id.to_string(), held.keys()).await;
            assert!(
                held.iter().all(|(path, text)| seen[path] >= *text),
                "kill {kill}: {held:?} and {seen:?}"
            );
        }
    }
    acknowledged.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let submitted = acknowledged.submitted.lock().unwrap().clone();
    println!("{} commits and {} submissions", acknowledged.committed.lock().unwrap().len(), submitted.len());
    let mut all = BTreeMap::new();
    for (id, chunks) in submitted {
        let info = client.wait(id, Some(Duration::from_secs(120))).await.unwrap();
        assert_eq!(info.state.name(), "completed", "{info:?}");
        all.extend(outputs_of(id, chunks));
    }
    assert_eq!(read(&client, "outputs", "head").await, all);
    working.abort();
    commit(&client, "by-hand", "the last").await;
    let put = acknowledged.put.lock().unwrap().clone();
    assert_eq!(read(&client, "by-hand", "head").await, put);
    assert_nothing_is_left(server, &client, data.path()).await;
}

/// Puts growing texts under paths of its own and commits them, until the end. What was cut off is done again.
async fn put_and_commit(client: Client, acknowledged: Arc<Acknowledged>, nth: usize) {
    for round in 0.. {
        if acknowledged.is_over.load(Ordering::Relaxed) {
            return;
        }
        let text = format!("{round:08}");
        let mut own = BTreeMap::new();
        for path in ["x", "y"].map(|name| format!("{nth}/{name}")) {
            while client.put_entry("by-hand", &path, text.clone().into(), &PutEntry::default()).await.is_err()
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            acknowledged.put.lock().unwrap().insert(path.clone(), text.clone());
            own.insert(path, text.clone());
        }
        let (body, key) = (CommitBody::default(), format!("{nth}-{round}"));
        let commit = loop {
            match client.commit_as("by-hand", &body, &key).await {
                Ok(outcome) if outcome.state == CommitProgress::Committed => break outcome.commit.unwrap(),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let before = acknowledged.committed.lock().unwrap().insert(commit.id, own);
        assert_eq!(before, None, "a key is a commit of its own");
    }
}

async fn submit(client: Client, acknowledged: Arc<Acknowledged>, mut chance: Seeded) {
    for nth in 0.. {
        if acknowledged.is_over.load(Ordering::Relaxed) {
            return;
        }
        let chunks = 1 + chance.below(5);
        let (output, attempts_max) = (output_to("outputs", "append"), Some(100));
        let request =
            SubmitRequest { chunks: Some(chunks), output, attempts_max, ..SubmitRequest::default() };
        let id = loop {
            match client.submit_as(&request, &format!("{nth}")).await {
                Ok(id) => break id,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        acknowledged.submitted.lock().unwrap().insert(id, chunks);
        tokio::time::sleep(Duration::from_millis(20 + chance.below(80))).await;
    }
}

/// Every listing of the outputs has all of a submission's, or none.
async fn read_all_the_time(client: Client, acknowledged: Arc<Acknowledged>) {
    let mut seen = 0;
    while !acknowledged.is_over.load(Ordering::Relaxed) {
        let Ok(paths) = listed(&client).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let mut of_submissions: BTreeMap<SubmissionId, BTreeSet<String>> = BTreeMap::new();
        for path in paths {
            let id = path.split('/').next().unwrap().parse().unwrap();
            of_submissions.entry(id).or_default().insert(path);
        }
        let submitted = acknowledged.submitted.lock().unwrap().clone();
        for (id, paths) in &of_submissions {
            // One that was committed before its submit was answered is looked at next time.
            let Some(chunks) = submitted.get(id) else { continue };
            assert_eq!(*paths, outputs_of(*id, *chunks).into_keys().collect(), "all of {id}, or nothing");
        }
        assert!(of_submissions.len() >= seen, "what was seen stays");
        seen = of_submissions.len();
    }
}

async fn listed(client: &Client) -> Result<Vec<String>, windlass_client::ClientError> {
    let (mut paths, mut query) = (Vec::new(), EntriesQuery { limit: Some(1_000), ..EntriesQuery::default() });
    loop {
        let page = client.entries("outputs", &query).await?;
        // All pages are of the commit that the first one showed.
        query.at = page.commit.map(|commit| commit.to_string());
        paths.extend(page.items.into_iter().map(|it| it.path));
        query.after = page.next;
        if query.after.is_none() {
            return Ok(paths);
        }
    }
}

async fn read_paths<'p>(
    client: &Client,
    place: &str,
    paths: impl Iterator<Item = &'p String>,
) -> BTreeMap<String, String> {
    let mut all =
        until("the branch can be read", || async { try_read(client, "by-hand", place).await.ok() }).await;
    for path in paths {
        all.entry(path.clone()).or_default();
    }
    all
}
