//! Lanes of the real server on a machine that fails: reads of its tables, and its clock.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict};
use windlass_client::json::{ChunkVerdict, CompleteRequest, CompletedChunk, ReservationInfo, ReserveRequest};
use windlass_client::lanes::{LaneChangeRequest, LaneLimitsChange, LimitInfo, TaskRequest};
use windlass_client::{Blob, Client, ClientError, ConsumeSocket, Output, SubmissionId};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::hurt::Hurt;

const LANE: &str = "emails";

/// Large enough that most of the backlog lies in files, and is read from them.
const TASKS: usize = 6_000;
const PAYLOAD_BYTES: usize = 2_000;
const LARGE_BYTES: usize = 8_000;
/// So many reads fail at least, all after the server has started.
const FAILURES_MIN: u64 = 10;

#[derive(Default)]
struct Done {
    /// What each task has to come with.
    payload_bytes: usize,
    tasks: Mutex<BTreeSet<SubmissionId>>,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_stuck_while_every_so_many_reads_of_the_tables_fail() {
    let (data, tools, port) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let hurt = Hurt::new(tools.path());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let mut server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    client.create_lane(LANE).await.unwrap();
    let mut added = BTreeSet::new();
    for request in 0..TASKS / 400 {
        let task = |nth: usize| TaskRequest {
            key: format!("k{}", (request + nth) % 50),
            payload: Some(Blob(vec![b'x'; PAYLOAD_BYTES])),
            ..TaskRequest::default()
        };
        added.extend(client.add_tasks(LANE, (0..400).map(task).collect()).await.unwrap());
    }
    // What was read before is in memory; a server that starts reads everything from its files.
    assert!(server.stop().success());
    hurt.fail_reads(1);
    let started = Served::try_start(hurt.serve_command(data.path(), port), port).await;
    assert!(started.is_none(), "a server that can read nothing ends, instead of waiting for ever");
    hurt.fail_reads(0);
    server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();

    hurt.fail_reads(31);
    let done = Arc::new(Done { payload_bytes: PAYLOAD_BYTES, ..Done::default() });
    let consumers: Vec<_> =
        (0..3).map(|_| tokio::spawn(consume(client.clone(), Arc::clone(&done)))).collect();
    let began = Instant::now();
    let mut starts = 0;
    while done.tasks.lock().unwrap().len() < added.len() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} are done", done.tasks.lock().unwrap().len());
        // A server that cannot read what it must apply stops, rather than going on without it; whoever runs it starts it again.
        if server.has_ended() {
            starts += 1;
            server = started_again(&hurt, data.path(), port).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    hurt.fail_reads(0);
    done.is_over.store(true, Ordering::Relaxed);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    if server.has_ended() {
        server = started_again(&hurt, data.path(), port).await;
    }
    println!("{} reads failed, {starts} starts", hurt.failed_reads());
    assert!(hurt.failed_reads() >= FAILURES_MIN, "reads of what was handed out have failed");
    assert_eq!(*done.tasks.lock().unwrap(), added);
    let lane = client.lane(LANE).await.unwrap().lane;
    assert_eq!((lane.added, lane.done, lane.waiting), (TASKS as u64, TASKS as u64, 0));
    assert!(server.stop().success());
}

/// The lane has handed out so much that the next of its tasks are to be read. Nothing else happens, so nothing else fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_the_next_tasks_that_fail_are_tried_again_until_they_succeed_without_a_restart() {
    /// More are read when no more than 1,024 of 4,096 are left.
    const AT_FIRST: usize = 3_072;
    let (data, tools, port) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let hurt = Hurt::new(tools.path());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    client.create_lane(LANE).await.unwrap();
    for _ in 0..TASKS / 400 {
        let payload = Some(Blob(vec![b'x'; PAYLOAD_BYTES / 2]));
        let task = TaskRequest { payload, ..TaskRequest::default() };
        client.add_tasks(LANE, vec![task; 400]).await.unwrap();
    }
    assert!(server.stop().success());
    let mut server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    let mut seen = BTreeSet::new();
    while seen.len() < AT_FIRST - 1 {
        seen.extend(reserve_some(&client, AT_FIRST - 1 - seen.len()).await.unwrap());
    }
    hurt.fail_reads(1);
    let began = Instant::now();
    while seen.len() < AT_FIRST {
        // Those that are in memory go out, if what is said of them was read with the others.
        seen.extend(reserve_some(&client, 1).await.unwrap_or_default());
        assert!(began.elapsed() < Duration::from_secs(60), "{} tasks came", seen.len());
    }
    // From here on nobody asks for anything: what fails are reads of the next tasks, again and again.
    let before = hurt.failed_reads();
    while hurt.failed_reads() < before + FAILURES_MIN {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{} reads have failed",
            hurt.failed_reads() - before
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!server.has_ended(), "it waits until the disk is sound again");
    hurt.fail_reads(0);
    while seen.len() < TASKS {
        seen.extend(reserve_some(&client, TASKS - seen.len()).await.unwrap());
        assert!(began.elapsed() < Duration::from_secs(60), "{} of {TASKS} tasks came", seen.len());
    }
    assert!(!server.has_ended());
    assert!(server.stop().success());
}

/// Tasks that come to a caller without a session, for as long as the test takes.
async fn reserve_some(client: &Client, max: usize) -> Result<Vec<SubmissionId>, ClientError> {
    let strategy = format!("Lane({LANE})").parse().unwrap();
    let request = ReserveRequest { max, strategy, wait_ms: 100, lease_ms: 600_000 };
    let reservations = client.reserve(&request).await?.reservations;
    Ok(reservations.into_iter().map(|it| it.submission).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_and_limited_keys_get_everything_done_however_often_reads_of_the_tables_fail() {
    // Most of the time they wait until what failed is tried again; so they do that side by side.
    let all = [(2, 200), (7, 400), (31, 800), (101, 2_000)];
    futures_util::future::join_all(
        all.map(|(every, tasks)| tenants_are_served_while_reads_fail(every, tasks)),
    )
    .await;
}

/// Tasks of tenants and of plain keys, which are limited for the first time while every so many reads fail.
async fn tenants_are_served_while_reads_fail(every: u64, tasks: usize) {
    const FAILURES: u64 = 40;
    let (data, tools, port) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let hurt = Hurt::new(tools.path());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let mut server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    client.create_lane(LANE).await.unwrap();
    let mut added = BTreeSet::new();
    for request in 0..tasks / 100 {
        let task = |nth: usize| TaskRequest {
            key: [format!("t{}/u{}", nth % 3, nth % 30), format!("k{}", nth % 10)][nth % 2].clone(),
            priority: (request % 2) as u8,
            payload: Some(Blob(vec![b'x'; LARGE_BYTES])),
            ..TaskRequest::default()
        };
        added.extend(client.add_tasks(LANE, (0..100).map(task).collect()).await.unwrap());
    }
    assert!(server.stop().success());
    server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();

    hurt.fail_reads(every);
    let limiter = tokio::spawn(limit(client.clone()));
    let done = Arc::new(Done { payload_bytes: LARGE_BYTES, ..Done::default() });
    let consumers: Vec<_> =
        (0..3).map(|_| tokio::spawn(consume(client.clone(), Arc::clone(&done)))).collect();
    let began = Instant::now();
    let mut starts = 0;
    while !limiter.is_finished() || done.tasks.lock().unwrap().len() < added.len() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} are done", done.tasks.lock().unwrap().len());
        if server.has_ended() {
            starts += 1;
            // No start does without reads.
            hurt.fail_reads(0);
            server = started_again(&hurt, data.path(), port).await;
            hurt.fail_reads(every);
        }
        // Each costs a moment; after so many the disk is sound again.
        if hurt.failed_reads() >= FAILURES {
            hurt.fail_reads(0);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    hurt.fail_reads(0);
    done.is_over.store(true, Ordering::Relaxed);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    if server.has_ended() {
        server = started_again(&hurt, data.path(), port).await;
    }
    let failed = hurt.failed_reads();
    println!("every {every}th read: {failed} failed, {starts} starts, {:?}", began.elapsed());
    assert!(failed >= FAILURES_MIN, "reads of what was handed out have failed: {failed}");
    assert_eq!(*done.tasks.lock().unwrap(), added);
    let lane = client.lane(LANE).await.unwrap();
    assert_eq!((lane.lane.done, lane.lane.waiting), (tasks as u64, 0));
    assert_eq!(lane.limits.each_key.and_then(|limit| limit.in_flight), Some(2));
    assert!(server.stop().success());
}

/// Limits keys and tenants, again and again until it is so.
async fn limit(client: Client) {
    let so_many = |count| Some(Some(LimitInfo { in_flight: Some(count), ..LimitInfo::default() }));
    let limits =
        LaneLimitsChange { each_key: so_many(2), each_tenant: so_many(8), ..LaneLimitsChange::default() };
    let change = LaneChangeRequest { limits, ..LaneChangeRequest::default() };
    while client.change_lane(LANE, &change).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn started_again(hurt: &Hurt, data: &std::path::Path, port: u16) -> Served {
    for _ in 0..100 {
        if let Some(server) = Served::try_start(hurt.serve_command(data, port), port).await {
            return server;
        }
    }
    panic!("one start of a hundred should meet no failing read");
}

async fn consume(client: Client, done: Arc<Done>) {
    let mut session = None;
    while !done.is_over.load(Ordering::Relaxed) {
        // A connection that breaks, or has nothing to say for a while, is replaced.
        _ = tokio::time::timeout(Duration::from_secs(5), converse(&client, &done, &mut session)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn converse(client: &Client, done: &Done, session: &mut Option<u64>) -> Option<()> {
    let (mut socket, welcome) = ConsumeSocket::connect(client, "test", *session).await.ok()?;
    *session = Some(welcome.session);
    for request in 0.. {
        let strategy = format!("\"Lane({LANE})\"");
        let reserve = ClientFrame::Reserve { request, max: 20, strategy, after_reports: false };
        let Some(ServerFrame::Work { work, .. }) = answer(&mut socket, &reserve).await else { return None };
        for it in work {
            assert_eq!(it.payload.as_deref().map_or(0, |payload| payload.len()), done.payload_bytes);
            let chunks = it.chunks.iter().map(|chunk| DoneChunk {
                chunk: *chunk,
                output: Output::Nothing,
                entries: None,
            });
            let complete =
                ClientFrame::Complete { request, submission: it.submission, done: chunks.collect() };
            let Some(ServerFrame::Settled { verdicts, .. }) = answer(&mut socket, &complete).await else {
                return None;
            };
            assert!(matches!(verdicts[..], [Verdict::Accepted | Verdict::AlreadyDone]), "{verdicts:?}");
            done.tasks.lock().unwrap().insert(it.submission);
        }
    }
    None
}

/// Asks again for as long as that helps; what a consumer holds would otherwise come back when its grace time is over.
async fn answer(socket: &mut ConsumeSocket, frame: &ClientFrame) -> Option<ServerFrame> {
    loop {
        socket.send(frame).await.ok()?;
        match socket.receive().await.ok()?? {
            ServerFrame::Refused { retry_helps: true, .. } => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            answer => return Some(answer),
        }
    }
}

async fn reserve(client: &Client, wait_ms: u64) -> ReservationInfo {
    let strategy = format!("Lane({LANE})").parse().unwrap();
    let request = ReserveRequest { max: 1, strategy, wait_ms, lease_ms: 60_000 };
    client.reserve(&request).await.unwrap().reservations.pop().unwrap()
}

async fn complete(client: &Client, it: ReservationInfo) {
    let chunk = CompletedChunk {
        submission: it.submission,
        chunk: it.chunk,
        token: it.token,
        output: None,
        stored: false,
        outputs: Vec::new(),
    };
    let settled = client.complete(&CompleteRequest { chunks: vec![chunk] }).await.unwrap();
    assert_eq!(settled.chunks, [ChunkVerdict::Accepted]);
}

/// When the clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    WhileItRuns,
    /// The server sees it, and the next one finds it so.
    AndThenItStops,
    /// The next server finds another time on the wall than the one before has ever seen.
    WhileItIsDown,
}

/// The clock is set to so many hours off; gives the server that runs then.
async fn set_clock(
    server: Served,
    hurt: &Hurt,
    (data, port): (&std::path::Path, u16),
    hours: i64,
    set: Set,
) -> Served {
    match set {
        Set::WhileItRuns => {
            hurt.set_clock(hours * 3_600);
            return server;
        }
        Set::AndThenItStops => {
            hurt.set_clock(hours * 3_600);
            assert!(server.stop().success());
        }
        Set::WhileItIsDown => {
            assert!(server.stop().success());
            hurt.set_clock(hours * 3_600);
        }
    }
    Served::try_start(hurt.serve_command(data, port), port).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_by_an_hour_neither_ends_leases_nor_holds_up_delayed_tasks() {
    let (data, tools, port) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let hurt = Hurt::new(tools.path());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
    let mut server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    client.create_lane(LANE).await.unwrap();
    let mut last = String::new();
    let steps =
        [(1, Set::WhileItRuns), (-1, Set::AndThenItStops), (0, Set::WhileItRuns), (-1, Set::AndThenItStops)];
    let down = [0, 1, 0, -1, 1, 0].map(|hours| (hours, Set::WhileItIsDown));
    for (hours, set) in steps.into_iter().chain(down) {
        let delayed = TaskRequest { delay_ms: Some(500), ..TaskRequest::default() };
        let ids = client.add_tasks(LANE, vec![TaskRequest::default(), delayed]).await.unwrap();
        let held = reserve(&client, 0).await;
        assert_eq!(held.submission, ids[0], "what is delayed has to wait");
        server = set_clock(server, &hurt, (data.path(), port), hours, set).await;
        // Whoever holds a task can report it, and what was delayed comes soon: time passes at half its pace at least.
        let came = reserve(&client, 20_000).await;
        let again = if set == Set::WhileItRuns { held.clone() } else { reserve(&client, 20_000).await };
        let both: BTreeSet<SubmissionId> = [came.submission, again.submission].into();
        assert_eq!(both, ids.iter().copied().collect());
        for attempt in [came, again] {
            complete(&client, attempt).await;
        }
        let lane = client.lane(LANE).await.unwrap().lane;
        assert_eq!((lane.waiting, lane.delayed), (0, 0));
        let probe = client.add_tasks(LANE, vec![TaskRequest::default()]).await.unwrap();
        let added_at = client.explain_task(LANE, probe[0]).await.unwrap().added_at;
        assert!(last < added_at, "time never goes back: {last}, then {added_at}");
        last = added_at;
        complete(&client, reserve(&client, 0).await).await;
    }
    assert!(server.stop().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_by_an_hour_lets_a_rate_neither_give_more_nor_stand_still() {
    const PER_SECOND: u32 = 5;
    const BURST: u32 = 2;
    let (data, tools, port) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let hurt = Hurt::new(tools.path());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
    let mut server = Served::try_start(hurt.serve_command(data.path(), port), port).await.unwrap();
    client.create_lane(LANE).await.unwrap();
    let rate = LimitInfo { per_second: Some(PER_SECOND.into()), burst: Some(BURST), ..LimitInfo::default() };
    let limits = LaneLimitsChange { each_key: Some(Some(rate)), ..LaneLimitsChange::default() };
    let change = LaneChangeRequest { limits, ..LaneChangeRequest::default() };
    client.change_lane(LANE, &change).await.unwrap();
    client.add_tasks(LANE, vec![TaskRequest::default(); 100]).await.unwrap();
    let mut came = 0;
    let steps =
        [(1, Set::WhileItRuns), (-1, Set::AndThenItStops), (0, Set::WhileItRuns), (-1, Set::AndThenItStops)];
    let down = [0, 1, -1, 0].map(|hours| (hours, Set::WhileItIsDown));
    for (hours, set) in steps.into_iter().chain(down) {
        complete(&client, reserve(&client, 20_000).await).await;
        server = set_clock(server, &hurt, (data.path(), port), hours, set).await;
        let began = Instant::now();
        for handed_out in 1..=6_u32 {
            // Each is a fifth of a second away.
            complete(&client, reserve(&client, 20_000).await).await;
            let most = f64::from(BURST) + f64::from(PER_SECOND) * began.elapsed().as_secs_f64();
            assert!(f64::from(handed_out) <= most + 0.01, "{handed_out} came, of {most}");
        }
        came += 7;
        println!("{hours} hours: six after {:?}", began.elapsed());
    }
    assert_eq!(client.lane(LANE).await.unwrap().lane.done, came);
    assert!(server.stop().success());
}
