//! Restarts of lanes whose oldest tasks are not done: one that a consumer holds while everything behind it is done, and very many
//! of a key that is blocked. What comes next is found, and comes in order; how long that takes is printed beside the same of a
//! lane where nothing else was. `WINDLASS_TASKS` sets how many.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::{StreamExt, TryStreamExt, stream};
use std::time::Instant;
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, ServerFrame, Verdict, WorkOf, WorkTask};
use windlass_client::lanes::{LaneChangeRequest, LaneLimitsChange, LimitInfo, TaskRequest};
use windlass_client::{Blob, Client, ConsumeSocket};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::setting;

const LANE: &str = "emails";
const REST: u64 = 5_000;
const REQUESTS_AT_ONCE: usize = 4;

struct Stage {
    data: TempDir,
    port: u16,
    client: Client,
    server: Served,
}

impl Stage {
    async fn new() -> Stage {
        let (data, port) = (TempDir::new().unwrap(), free_port());
        let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
        let server = Served::start(data.path(), port).await;
        client.create_lane(LANE).await.unwrap();
        Stage { data, port, client, server }
    }

    async fn add(&self, count: u64, per_request: u64, task: impl Fn(u64) -> TaskRequest + Copy) {
        let requests = (0..count).step_by(per_request as usize).map(|begin| async move {
            let tasks = (begin..count.min(begin + per_request)).map(task).collect();
            self.client.add_tasks(LANE, tasks).await
        });
        let adding = stream::iter(requests).buffer_unordered(REQUESTS_AT_ONCE);
        adding.try_for_each(|_| async { Ok(()) }).await.unwrap();
    }

    /// Limits a key.
    async fn limit(&self, key: &str, in_flight: u32) {
        let limit = LimitInfo { in_flight: Some(in_flight), ..LimitInfo::default() };
        let named = [(key.to_owned(), Some(limit))].into();
        let limits = LaneLimitsChange { named, ..LaneLimitsChange::default() };
        let change = LaneChangeRequest { limits, ..LaneChangeRequest::default() };
        self.client.change_lane(LANE, &change).await.unwrap();
    }

    async fn socket(&self) -> ConsumeSocket {
        ConsumeSocket::connect(&self.client, "test", None).await.unwrap().0
    }

    /// Kills the server, starts it again, and takes tasks: how long after it is ready the first, the second, and a hundred came.
    async fn killed(self, what: &str) -> (Stage, Vec<WorkOf>) {
        self.server.kill();
        let began = Instant::now();
        let server = Served::start(self.data.path(), self.port).await;
        let stage = Stage { server, ..self };
        let ready = began.elapsed();
        let began = Instant::now();
        let mut socket = stage.socket().await;
        let connected = began.elapsed();
        let (mut work, mut after) = (Vec::new(), Vec::new());
        for until in [1, 2, 100] {
            while work.len() < until {
                work.extend(reserve(&mut socket, until - work.len()).await);
            }
            after.push(began.elapsed());
        }
        println!(
            "{what}: ready after {ready:.3?}, then connected {connected:.3?}, 1, 2 and 100 tasks {after:.3?}"
        );
        (stage, work)
    }
}

fn task(key: &str, number: u64) -> TaskRequest {
    let payload = Some(Blob(format!("{number:08}").into_bytes()));
    TaskRequest { key: key.to_owned(), payload, ..TaskRequest::default() }
}

async fn reserve(socket: &mut ConsumeSocket, max: usize) -> Vec<WorkOf> {
    let strategy = format!("\"Lane({LANE})\"");
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

async fn complete_so_many(socket: &mut ConsumeSocket, count: u64) {
    let mut left = count as usize;
    while left > 0 {
        let work = reserve(socket, left.min(1_000)).await;
        let tasks = work.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
        socket.send(&ClientFrame::CompleteTasks { request: 2, tasks }).await.unwrap();
        let Some(ServerFrame::Settled { verdicts, .. }) = socket.receive().await.unwrap() else { panic!() };
        assert_eq!(verdicts, vec![Verdict::Accepted; work.len()]);
        left -= work.len();
    }
}

fn keys(work: &[WorkOf]) -> Vec<String> {
    work.iter().map(|it| it.task.clone().unwrap().key).collect()
}

/// One task is held, or done, while all but the last of those behind it are done.
async fn held_back(what: &str, tasks: u64, per_request: u64, is_ordered: bool, is_held: bool) {
    let stage = Stage::new().await;
    if is_ordered {
        stage.limit("nobody", 1).await;
    }
    let mut socket = stage.socket().await;
    stage.add(1, 1, |number| task("slow", number)).await;
    if is_held {
        assert_eq!(keys(&reserve(&mut socket, 1).await), ["slow"]);
    } else {
        complete_so_many(&mut socket, 1).await;
    }
    let began = Instant::now();
    stage.add(tasks, per_request, |number| task(&format!("k{}", number % 100), number)).await;
    let added = began.elapsed();
    complete_so_many(&mut socket, tasks - REST).await;
    println!("{what}: added in {added:.3?}, done after {:.3?}", began.elapsed());
    let (stage, work) = stage.killed(what).await;
    if is_held {
        assert_eq!(keys(&work[..1]), ["slow"], "what was held comes first again");
        assert!(keys(&work[1..]).iter().all(|key| key.starts_with('k')));
        let lane = stage.client.lane(LANE).await.unwrap();
        assert_eq!((lane.lane.done, lane.lane.waiting), (tasks - REST, REST + 1), "{lane:?}");
    }
    drop(socket);
    stage.server.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_held_while_all_behind_it_are_done_comes_first_again_and_then_the_rest() {
    let tasks = setting("WINDLASS_TASKS", 20_000);
    let stage = Stage::new().await;
    stage.add(REST + 1, 1_000, |number| task(&format!("k{}", number % 100), number)).await;
    let (stage, _) = stage.killed("nothing done").await;
    drop(stage);
    for (what, per_request, is_ordered, is_held) in [
        ("none held, added by the thousand", 1_000, false, false),
        ("one held, added by the thousand", 1_000, false, true),
        ("one held, keys in order", 1_000, true, true),
        ("one held, added seven by seven", 7, false, true),
    ] {
        held_back(what, tasks, per_request, is_ordered, is_held).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_tasks_of_a_blocked_key_at_the_front_hold_up_nobody_after_a_kill() {
    let tasks = setting("WINDLASS_TASKS", 20_000);
    // A light task's key has its next turn far behind all those of the heavy ones.
    let light = |number| TaskRequest { weight: Some(0.001), ..task("light", number) };
    let heavy = |number| TaskRequest { weight: Some(10_000.0), ..task("blocked", number) };
    for (what, blocked, is_first) in
        [("nobody blocked", 0, true), ("blocked before", tasks, true), ("blocked after", tasks, false)]
    {
        let stage = Stage::new().await;
        if is_first {
            stage.limit("blocked", 0).await;
        }
        stage.add(blocked, 1_000, heavy).await;
        stage.add(REST, 1_000, light).await;
        if !is_first {
            stage.limit("blocked", 0).await;
        }
        let (stage, work) = stage.killed(what).await;
        assert!(keys(&work).iter().all(|key| key == "light"));
        let came: Vec<Vec<u8>> = work.iter().map(|it| it.payload.clone().unwrap().to_vec()).collect();
        assert!(came.is_sorted(), "they come in order");
        let lane = stage.client.lane(LANE).await.unwrap().lane;
        assert_eq!((lane.waiting, lane.reserved), (blocked + REST, 100));
        stage.server.kill();
    }
}
