//! What a program does with the client library, against a server in the same process.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on is a failed test")]

use bytes::Bytes;
use futures_util::TryStreamExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use windlass_client::json::{
    AttemptRef, ChunkVerdict, CompleteRequest, CompletedChunk, ExtendRequest, FailRequest, FailedChunk,
    ReleaseRequest, ReservationInfo, ReserveRequest,
};
use windlass_client::lanes::{RedriveRequest, RelevelRequest, TaskRequest};
use windlass_client::{
    Blob, BulkAction, BulkFilter, BulkRequest, BulkResponse, ChangeRequest, Chunk, Client, ClientError,
    ConsumeSocket, Consumer, Failure, MetaValue, Output, ProblemCode, Producer, Strategy, SubmissionId,
    SubmissionState, SubmitRequest, Tally, frames,
};
use windlass_server::config::Config;
use windlass_server::node::Node;

struct Stage {
    node: Node,
    client: Client,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let node = start(&folder, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
        let client = Client::new(&format!("http://{}", node.address())).unwrap();
        Stage { node, client, folder }
    }

    fn producer(&self) -> Producer {
        Producer::new(self.client.clone())
    }

    async fn submit(&self, chunks: u64) -> SubmissionId {
        let request =
            SubmitRequest { chunks: Some(chunks), attempts_max: Some(1), ..SubmitRequest::default() };
        self.client.submit(&request).await.unwrap()
    }

    async fn reserve(&self, max: usize) -> Vec<ReservationInfo> {
        let request = ReserveRequest { max, strategy: Strategy::OldestFirst, wait_ms: 0, lease_ms: 60_000 };
        self.client.reserve(&request).await.unwrap().reservations
    }
}

async fn start(folder: &tempfile::TempDir, listen: SocketAddr) -> Node {
    let data = folder.path().join("data");
    Node::start(Config { listen, data, drain_ms: 200, ..Config::default() }).await.unwrap()
}

fn attempt(it: &ReservationInfo) -> AttemptRef {
    AttemptRef { submission: it.submission, chunk: it.chunk, token: it.token.clone() }
}

#[tokio::test]
async fn each_verb_of_the_http_interface_has_its_method() {
    let stage = Stage::new().await;
    let id = stage.submit(4).await;
    let held = stage.reserve(4).await;
    assert_eq!(held.len(), 4);

    let [first, second, third, fourth] = &held[..] else { panic!("four were reserved") };
    let extend = ExtendRequest { chunks: vec![attempt(first)], lease_ms: 5_000 };
    assert_eq!(stage.client.extend(&extend).await.unwrap().chunks, [ChunkVerdict::Accepted]);
    let AttemptRef { submission, chunk, token } = attempt(first);
    let done = CompletedChunk {
        submission,
        chunk,
        token,
        output: Some(Blob(b"out".to_vec())),
        stored: false,
        outputs: Vec::new(),
    };
    let complete = CompleteRequest { chunks: vec![done] };
    assert_eq!(stage.client.complete(&complete).await.unwrap().chunks, [ChunkVerdict::Accepted]);
    assert_eq!(stage.client.complete(&complete).await.unwrap().chunks, [ChunkVerdict::AlreadyDone]);

    let release = ReleaseRequest { chunks: vec![attempt(third), attempt(fourth)] };
    assert_eq!(stage.client.release(&release).await.unwrap().chunks, [ChunkVerdict::Accepted; 2]);
    assert_eq!(stage.client.status().await.unwrap().chunks_ready, 2);
    let AttemptRef { submission, chunk, token } = attempt(second);
    let fail = FailRequest { chunks: vec![FailedChunk { submission, chunk, token, reason: "no".into() }] };
    assert_eq!(stage.client.fail(&fail).await.unwrap().chunks, [ChunkVerdict::Accepted]);

    let info = stage.client.wait(id, Some(Duration::from_secs(1))).await.unwrap();
    assert_eq!(info.state, SubmissionState::Failed);
    assert_eq!(stage.client.retry_failed(id).await.unwrap().chunks, 3);
    assert_eq!(stage.client.cancel(id).await.unwrap().state, SubmissionState::Cancelled);
}

#[tokio::test]
async fn submissions_are_changed_paused_and_resumed_one_by_one_and_by_filter() {
    let stage = Stage::new().await;
    let (first, second) = (stage.submit(1).await, stage.submit(1).await);
    let shade = |value: Option<&str>| ChangeRequest {
        metadata: BTreeMap::from([("shade".into(), value.map(|it| MetaValue::Text(it.into())))]),
        ..ChangeRequest::default()
    };
    let red = stage.client.change(first, &shade(Some("red"))).await.unwrap();
    assert_eq!(red.metadata["shade"], MetaValue::Text("red".into()));
    assert!(stage.client.change(first, &shade(None)).await.unwrap().metadata.is_empty());
    assert!(stage.client.pause(first).await.unwrap().paused);
    assert!(!stage.client.resume(first).await.unwrap().paused);

    let both = BulkFilter { ids: Some(vec![first, second]), ..BulkFilter::default() };
    let bulk = async |action, dry_run| {
        let request = BulkRequest { filter: both.clone(), action, dry_run };
        let BulkResponse { matched, changed, .. } = stage.client.bulk(&request).await.unwrap();
        (matched, changed)
    };
    assert_eq!(bulk(BulkAction::Pause, true).await, (2, 0));
    assert_eq!(bulk(BulkAction::Pause, false).await, (2, 2));
    assert!(stage.client.show(second).await.unwrap().paused);
    assert_eq!(bulk(BulkAction::RetryFailed, false).await, (2, 0), "nothing of them has failed");
    assert_eq!(bulk(BulkAction::Cancel, false).await, (2, 2));
    let Err(ClientError::Problem(problem)) = stage.client.pause(first).await else { panic!("it is over") };
    assert_eq!(problem.code, ProblemCode::SubmissionOver);
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_submission_and_another_request_under_it_is_refused() {
    let stage = Stage::new().await;
    let request = SubmitRequest { chunks: Some(1), ..SubmitRequest::default() };
    let id = stage.client.submit_as(&request, "monday").await.unwrap();
    assert_eq!(stage.client.submit_as(&request, "monday").await.unwrap(), id);
    let other = SubmitRequest { chunks: Some(2), ..SubmitRequest::default() };
    let Err(ClientError::Problem(problem)) = stage.client.submit_as(&other, "monday").await else {
        panic!("the key is used up")
    };
    assert_eq!(problem.code, ProblemCode::IdempotencyKeyReused);
    assert_ne!(stage.client.submit(&request).await.unwrap(), id);
}

#[tokio::test]
async fn an_object_is_put_once_and_read_as_it_was_put() {
    let stage = Stage::new().await;
    let bytes = Bytes::from_static(b"\x00\xff");
    stage.client.put_object("some/key", bytes.clone()).await.unwrap();
    assert_eq!(stage.client.get_object("some/key").await.unwrap(), bytes);
    let refused = stage.client.put_object("some/key", bytes).await.unwrap_err();
    assert!(matches!(refused, ClientError::Problem(problem) if problem.code == ProblemCode::ObjectExists));
    let unknown = stage.client.get_object("some/other").await.unwrap_err();
    assert!(matches!(unknown, ClientError::Problem(problem) if problem.code == ProblemCode::ObjectUnknown));
}

#[tokio::test]
async fn many_submissions_are_watched_on_one_connection_until_all_are_over() {
    let stage = Stage::new().await;
    let ids = [stage.submit(2).await, stage.submit(1).await, stage.submit(1).await];
    stage.client.cancel(ids[0]).await.unwrap();
    let producer = stage.producer();
    let mut watch = std::pin::pin!(producer.watch(&ids));
    let mut ended = BTreeMap::new();
    let mut seen = 0;
    while let Some(event) = watch.try_next().await.unwrap() {
        seen += 1;
        if event.state != SubmissionState::Running {
            ended.insert(event.submission, event.state);
        }
        // The rest ends only after the stream has told how all of them stand.
        if seen == 3 {
            stage.client.cancel(ids[1]).await.unwrap();
            stage.client.cancel(ids[2]).await.unwrap();
        }
    }
    assert_eq!(ended, ids.map(|id| (id, SubmissionState::Cancelled)).into());
    let unknown = SubmissionId::from_u64(7).unwrap();
    let error = producer.wait(unknown, |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("no submission has the id 7"), "{error}");
}

#[tokio::test]
async fn operations_go_in_and_outputs_come_out_in_order_small_and_large() {
    let stage = Stage::new().await;
    let producer = stage.producer();
    let operations = (0..50).map(|number| (number * 500).to_string());
    let chunk_size = NonZeroUsize::new(5).unwrap();
    let submitted =
        producer.submit_operations(operations, chunk_size, SubmitRequest::default()).await.unwrap();
    assert_eq!(submitted.chunks, 10);

    let consumer =
        Consumer::builder(stage.client.clone()).concurrency(3).until_idle(Duration::from_millis(100));
    let work = |chunk: Chunk| async move {
        let mut output = String::new();
        for operation in chunk.operations().await? {
            output.push_str(&"x".repeat(std::str::from_utf8(&operation)?.parse()?));
        }
        chunk.output(output).await
    };
    let tally = consumer.run(work, std::future::pending()).await.unwrap();
    assert_eq!(tally, Tally { completed: 10, ..Tally::default() });
    let lengths: Vec<usize> =
        producer.results(submitted.id).map_ok(|result| result.output.len()).try_collect().await.unwrap();
    let expected: Vec<usize> =
        (0..10).map(|chunk| (5 * chunk..5 * chunk + 5).map(|n| n * 500).sum()).collect();
    assert_eq!(lengths, expected);
}

#[tokio::test]
async fn a_closure_that_panics_fails_its_chunk_and_one_that_gives_back_does_not() {
    let stage = Stage::new().await;
    let id = stage.submit(1).await;
    let consumer = Consumer::builder(stage.client.clone()).until_idle(Duration::from_millis(100));
    let work = |chunk: Chunk| async move {
        assert_ne!(chunk.submission(), chunk.name().submission, "every chunk is cursed");
        Ok(Output::Nothing)
    };
    let tally = consumer.run(work, std::future::pending()).await.unwrap();
    assert_eq!(tally, Tally { failed: 1, ..Tally::default() });
    let reason = stage.client.show(id).await.unwrap().troubles.remove(0).reason;
    assert!(
        reason.starts_with("the work panicked: ") && reason.contains("every chunk is cursed"),
        "{reason}"
    );

    stage.client.retry_failed(id).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stop = std::sync::Mutex::new(Some(stop));
    let work = move |_: Chunk| {
        drop(stop.lock().unwrap().take());
        async { Err(Failure::give_back("not here")) }
    };
    let consumer = Consumer::builder(stage.client.clone()).prefetch(0);
    let tally = consumer.run(work, async { drop(stopped.await) }).await.unwrap();
    assert!(tally.released >= 1 && tally.failed == 0, "{tally:?}");
    assert_eq!(stage.client.status().await.unwrap().chunks_ready, 1);
}

#[tokio::test]
async fn a_consumer_whose_time_to_stop_is_over_gives_back_what_runs() {
    let stage = Stage::new().await;
    stage.submit(3).await;
    let (begun, has_begun) = oneshot::channel();
    let begun = std::sync::Mutex::new(Some(begun));
    let work = move |_: Chunk| {
        if let Some(begun) = begun.lock().unwrap().take() {
            begun.send(()).unwrap();
        }
        std::future::pending::<Result<Output, Failure>>()
    };
    let consumer = Consumer::builder(stage.client.clone()).shutdown_for(Duration::from_millis(50));
    let tally = consumer.run(work, async { drop(has_begun.await) }).await.unwrap();
    assert_eq!((tally.completed, tally.failed), (0, 0));
    let status = stage.client.status().await.unwrap();
    assert_eq!((status.chunks_ready, status.chunks_reserved), (3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_chunk_that_computes_for_long_holds_up_no_report_of_others() {
    const CHUNKS: u64 = 20;
    let stage = Stage::new().await;
    let id = stage.submit(CHUNKS).await;
    let reported = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&reported);
    // Each chunk keeps its thread until all before it are reported.
    let work = move |chunk: Chunk| {
        let seen = Arc::clone(&seen);
        async move {
            while seen.load(Ordering::Relaxed) < chunk.index().0 {
                std::thread::yield_now();
            }
            Ok(Output::Nothing)
        }
    };
    let client = stage.client.clone();
    let watching = tokio::spawn(async move {
        loop {
            let done = client.show(id).await.unwrap().chunks.done;
            reported.store(done, Ordering::Relaxed);
            if done == CHUNKS {
                return;
            }
        }
    });
    let consumer = Consumer::builder(stage.client.clone()).strategy(Strategy::OldestFirst);
    let consumer = consumer.until_idle(Duration::from_millis(100));
    let began = std::time::Instant::now();
    // On one of the threads that it has for its chunks.
    let tally = tokio::spawn(consumer.run(work, std::future::pending())).await.unwrap().unwrap();
    assert_eq!(tally, Tally { completed: CHUNKS, ..Tally::default() });
    // A heartbeat is due every 3.3 s, and with it everything else is said.
    assert!(began.elapsed() < Duration::from_secs(CHUNKS / 2), "reports have waited for heartbeats");
    watching.await.unwrap();
}

#[tokio::test]
async fn a_consumer_that_ends_when_idle_waits_for_what_a_rate_holds_up_and_not_for_what_is_blocked() {
    let stage = Stage::new().await;
    let limits = [
        json!({"lane": {"per_second": 2.5}}),
        json!({"each_key": {"per_second": 2.5}}),
        json!({"each_key": {"per_second": 2.5}, "lane": {"per_second": 5}}),
    ];
    for (nth, limits) in limits.into_iter().enumerate() {
        let lane = format!("lane-{nth}");
        stage.client.create_lane(&lane).await.unwrap();
        stage
            .client
            .change_lane(&lane, &serde_json::from_value(json!({"limits": limits})).unwrap())
            .await
            .unwrap();
        let blocked = json!({"limits": {"named": {"blocked": {"in_flight": 0}}}});
        stage.client.change_lane(&lane, &serde_json::from_value(blocked).unwrap()).await.unwrap();
        let task = |key: &str| TaskRequest { key: key.into(), ..TaskRequest::default() };
        // One of two is with somebody who may keep it for long, and the other one has to wait for that.
        let one = json!({"limits": {"named": {"elsewhere": {"in_flight": 1}}}});
        stage.client.change_lane(&lane, &serde_json::from_value(one).unwrap()).await.unwrap();
        stage.client.add_tasks(&lane, ["elsewhere", "elsewhere"].map(task).into()).await.unwrap();
        let strategy = Strategy::Lane { name: lane.clone() };
        let reserve = ReserveRequest { max: 1, strategy, wait_ms: 0, lease_ms: 600_000 };
        assert_eq!(stage.client.reserve(&reserve).await.unwrap().reservations.len(), 1);
        let tasks = ["a", "acme/u", "acme/u", "acme/u", "blocked"].map(task);
        stage.client.add_tasks(&lane, tasks.into()).await.unwrap();
        let consumer =
            Consumer::builder(stage.client.clone()).strategy(Strategy::Lane { name: lane.clone() });
        let consumer = consumer.until_idle(Duration::from_millis(50));
        let ended = consumer.run(|_| async { Ok(Output::Nothing) }, std::future::pending());
        let tally = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends").unwrap();
        assert_eq!(tally, Tally { completed: 4, ..Tally::default() }, "{limits}");
        assert_eq!(stage.client.lane(&lane).await.unwrap().lane.waiting, 3, "what is blocked stays");
    }
}

#[tokio::test]
async fn what_was_done_before_a_request_of_many_failed_is_told_with_the_error() {
    // Two answers, and then nobody is there any more.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(&url).unwrap().retrying_for(Duration::ZERO);
    let serving = tokio::spawn(async move {
        for _ in 0..4 {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert_ne!(connection.read_buf(&mut request).await.unwrap(), 0);
            }
            let is_first = !String::from_utf8(request).unwrap().contains("cursor");
            if is_first {
                let body = r#"{"tasks": 2000, "next": "77-5"}"#;
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}",
                    body.len()
                );
                connection.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
        }
    });
    let redriven = client.redrive("jobs", &RedriveRequest::default()).await.unwrap_err();
    let releveled = client.relevel("jobs", &RelevelRequest::default()).await.unwrap_err();
    for stopped in [redriven, releveled] {
        assert_eq!((stopped.tasks, stopped.next.as_deref()), (2_000, Some("77-5")));
        assert!(matches!(stopped.error, ClientError::Unreachable { .. }), "{stopped}");
        assert!(stopped.to_string().ends_with("(this came after 2000 tasks)"), "{stopped}");
    }
    serving.await.unwrap();
}

#[tokio::test]
async fn a_strategy_that_is_refused_ends_the_consumer_with_the_servers_sentence() {
    let stage = Stage::new().await;
    let strategy = (0..20).fold(Strategy::Random, |inner, _| Strategy::OrElse {
        first: Box::new(inner),
        fallback: Box::new(Strategy::Random),
    });
    let consumer = Consumer::builder(stage.client.clone()).strategy(strategy);
    let refused = consumer.run(|_| async { Ok(Output::Nothing) }, std::future::pending()).await.unwrap_err();
    assert!(matches!(refused, ClientError::Problem(problem) if problem.code == ProblemCode::StrategyInvalid));
}

#[tokio::test]
async fn a_consumer_outlives_a_server_that_is_stopped_and_started() {
    let stage = Stage::new().await;
    let (client, address) = (stage.client.clone(), stage.node.address());
    let first = stage.submit(5).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::builder(client.clone()).concurrency(2);
    let consumer =
        tokio::spawn(consumer.run(|_| async { Ok(Output::Nothing) }, async { drop(stopped.await) }));
    let producer = Producer::new(client);
    assert_eq!(producer.wait(first, |_| {}).await.unwrap().state, SubmissionState::Completed);

    stage.node.stop().await.unwrap();
    let node = start(&stage.folder, address).await;
    let request = SubmitRequest { chunks: Some(5), ..SubmitRequest::default() };
    let second = producer.submit(&request).await.unwrap();
    assert_eq!(producer.wait(second, |_| {}).await.unwrap().state, SubmissionState::Completed);
    drop(stop);
    assert_eq!(consumer.await.unwrap().unwrap(), Tally { completed: 10, ..Tally::default() });
    node.stop().await.unwrap();
}

#[tokio::test]
async fn frames_can_be_pipelined_by_hand() {
    let stage = Stage::new().await;
    let id = stage.submit(100).await;
    let (mut socket, welcome) = ConsumeSocket::connect(&stage.client, "by hand", None).await.unwrap();
    assert!(welcome.heartbeat_ms > 0 && welcome.grace_ms > 0);
    let strategy = "\"OldestFirst\"".to_owned();
    socket
        .send(&frames::ClientFrame::Reserve { request: 1, max: 100, strategy, after_reports: false })
        .await
        .unwrap();
    let Some(frames::ServerFrame::Work { request: 1, more: false, work }) = socket.receive().await.unwrap()
    else {
        panic!("there is work")
    };
    let (mut sender, mut receiver) = socket.split();
    for (request, chunks) in (2..).zip(work[0].chunks.chunks(10)) {
        let done = |chunk: &frames::WorkChunk| frames::DoneChunk {
            chunk: *chunk,
            output: Output::Nothing,
            entries: None,
        };
        let done = chunks.iter().map(done).collect();
        sender.feed(&frames::ClientFrame::Complete { request, submission: id, done }).await.unwrap();
    }
    sender.flush().await.unwrap();
    for _ in 0..10 {
        let frame = receiver.receive().await.unwrap();
        let Some(frames::ServerFrame::Settled { verdicts, .. }) = frame else { panic!("{frame:?}") };
        assert_eq!(verdicts, [frames::Verdict::Accepted; 10]);
    }
    sender.close().await.unwrap();
    assert_eq!(stage.client.show(id).await.unwrap().state, SubmissionState::Completed);
}
