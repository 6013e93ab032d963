//! Lanes with large backlogs in the real server: what they take of memory, and whether tasks go out as quickly as from small
//! ones. Times are compared with each other, never with a clock. `WINDLASS_TASKS` sets how many.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, ServerFrame, Verdict, WorkOf, WorkTask};
use windlass_client::lanes::TaskRequest;
use windlass_client::{Blob, Client, ConsumeSocket};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const MIB: u64 = 1_024 * 1_024;
const TASKS_PER_REQUEST: u64 = 1_000;
const REQUESTS_AT_ONCE: usize = 4;
const KEYS: u64 = 100_000;
const FEW: u64 = 10_000;
const ROUNDS: usize = 15;
const TASKS_PER_ROUND: usize = 300;
const RATIO_MAX: f64 = 1.5;
const COMPARISONS_MAX: usize = 4;

fn task(number: u64) -> TaskRequest {
    TaskRequest {
        key: format!("tenant-{}", number % KEYS),
        payload: Some(Blob(format!("task {number:012}").into_bytes())),
        ..TaskRequest::default()
    }
}

async fn add(client: &Client, lane: &str, tasks: Range<u64>) {
    let requests = tasks.clone().step_by(TASKS_PER_REQUEST as usize).map(|begin| async move {
        let end = tasks.end.min(begin + TASKS_PER_REQUEST);
        client.add_tasks(lane, (begin..end).map(task).collect()).await
    });
    let adding = stream::iter(requests).buffer_unordered(REQUESTS_AT_ONCE);
    adding.try_for_each(|_| async { Ok(()) }).await.unwrap();
}

async fn reserve(socket: &mut ConsumeSocket, lane: &str, max: usize) -> Vec<WorkOf> {
    let strategy = format!("\"Lane({lane})\"");
    let reserve = ClientFrame::Reserve { request: 1, max: max as u32, strategy, after_reports: false };
    socket.send(&reserve).await.unwrap();
    let (mut all, mut has_more) = (Vec::new(), true);
    while has_more {
        let Some(ServerFrame::Work { work, more, .. }) = socket.receive().await.unwrap() else { panic!() };
        all.extend(work);
        has_more = more;
    }
    all
}

async fn complete(socket: &mut ConsumeSocket, work: &[WorkOf]) {
    let tasks = work.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
    socket.send(&ClientFrame::CompleteTasks { request: 2, tasks }).await.unwrap();
    let Some(ServerFrame::Settled { verdicts, .. }) = socket.receive().await.unwrap() else { panic!() };
    assert_eq!(verdicts, vec![Verdict::Accepted; work.len()]);
}

/// How long so many tasks take, reserved and completed some at a time.
async fn round(socket: &mut ConsumeSocket, lane: &str) -> Duration {
    let began = Instant::now();
    let mut done = 0;
    while done < TASKS_PER_ROUND {
        let work = reserve(socket, lane, 50).await;
        complete(socket, &work).await;
        done += work.len();
    }
    began.elapsed() / done as u32
}

/// How many times as long a task takes in the large lane as in the small one: the median of rounds, which go by turns.
async fn compare(sockets: &mut [ConsumeSocket; 2]) -> f64 {
    let [few, many] = sockets;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let of_few = round(few, "few").await;
        ratios.push(round(many, "many").await.as_secs_f64() / of_few.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

async fn consume(socket: &mut ConsumeSocket, lane: &str, tasks: u64) {
    let mut done = 0;
    while done < tasks {
        let work = reserve(socket, lane, 1_000).await;
        complete(socket, &work).await;
        done += work.len() as u64;
    }
}

/// Adds tasks, and gives the memory of the server after each tenth of them, in bytes.
async fn fill(server: &Served, client: &Client, tasks: u64) -> Vec<u64> {
    let mut after_tenth = Vec::new();
    for tenth in 0..10 {
        add(client, "many", tasks * tenth / 10..tasks * (tenth + 1) / 10).await;
        after_tenth.push(server.memory());
    }
    after_tenth
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_tasks_of_a_hundred_thousand_keys_fit_in_the_memory_of_a_tenth_and_go_out_as_quickly_as_ten_thousand()
 {
    let tasks = setting("WINDLASS_TASKS", 1_000_000);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
    let server = Served::start(data.path(), port).await;
    client.create_lane("many").await.unwrap();
    let began = Instant::now();
    let memory = fill(&server, &client, tasks).await;
    let mib: Vec<u64> = memory.iter().map(|bytes| bytes / MIB).collect();
    println!("{tasks} tasks added in {:?}; MiB after each tenth: {mib:?}", began.elapsed());
    let (first, last) = memory.split_at(5);
    let (first, last) = (*first.iter().max().unwrap(), *last.iter().max().unwrap());
    assert!(last < first * 13 / 10 + 16 * MIB, "memory does not follow the backlog: {mib:?} MiB");

    // Each has a server of its own, and they go by turns.
    let (other_data, other_port) = (TempDir::new().unwrap(), free_port());
    let other = Client::new(&format!("http://127.0.0.1:{other_port}")).unwrap();
    let other_server = Served::start(other_data.path(), other_port).await;
    other.create_lane("few").await.unwrap();
    add(&other, "few", 0..FEW).await;
    let mut sockets = [
        ConsumeSocket::connect(&other, "test", None).await.unwrap().0,
        ConsumeSocket::connect(&client, "test", None).await.unwrap().0,
    ];
    let ratio = compare(&mut sockets).await;
    println!("reserve + complete: {ratio:.2} times as long of {tasks} as of {FEW}");
    assert!(ratio <= RATIO_MAX, "{ratio}");
    consume(&mut sockets[1], "many", tasks * 3 / 10).await;
    // What was deleted may be being compacted for some seconds; then it is as before.
    let mut ratio = f64::MAX;
    for _ in 0..COMPARISONS_MAX {
        add(&other, "few", 0..FEW).await;
        ratio = compare(&mut sockets).await;
        println!("with three tenths of them gone: {ratio:.2} times");
        if ratio <= RATIO_MAX {
            break;
        }
    }
    assert!(ratio <= RATIO_MAX, "{ratio}");
    drop(sockets);
    assert!(other_server.stop().success());
    let peak = server.memory_peak();
    println!("{} MiB at most", peak / MIB);
    assert!(peak < 512 * MIB, "{} MiB", peak / MIB);

    let done = client.lane("many").await.unwrap().lane.done;
    server.kill();
    let began = Instant::now();
    let server = Served::start(data.path(), port).await;
    let ready = began.elapsed();
    let mut socket = ConsumeSocket::connect(&client, "test", None).await.unwrap().0;
    let work = reserve(&mut socket, "many", 10).await;
    println!("killed: ready again after {ready:?}, the first tasks after {:?}", began.elapsed());
    assert_eq!(work.len(), 10);
    complete(&mut socket, &work).await;
    let lane = client.lane("many").await.unwrap().lane;
    assert_eq!((lane.added, lane.done, lane.waiting), (tasks, done + 10, tasks - done - 10));
    println!("{} MiB at most after the restart", server.memory_peak() / MIB);
    assert!(server.memory_peak() < 512 * MIB, "a restart takes no more");
    assert!(server.stop().success());
}
