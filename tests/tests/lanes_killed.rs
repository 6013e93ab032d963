//! Lanes while the real server is killed with SIGKILL at random moments under load.
//!
//! Tasks are added by HTTP and by the library's producer. Every acknowledged task is done in the end, as it was added, and none is handed out again once its completion was
//! acknowledged. Keys that nothing disturbs go out in order. In the middle keys and tenants are limited for the first time, and
//! are put in order while kills go on; from then on no more of them are with consumers than that. All the while an operator gives
//! keys other weights and levels, pauses the lane and lets it go on, and drives dead tasks again. `WINDLASS_KILLS` sets how often,
//! `WINDLASS_SEED` when.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use windlass_client::frames::{
    ClientFrame, DoneChunk, FailedChunk, ServerFrame, TaskToAdd, Verdict, WorkChunk, WorkOf, WorkTask,
};
use windlass_client::lanes::{
    LaneChangeRequest, LaneLimitsChange, LimitInfo, RedriveRequest, RelevelRequest, TaskRequest,
};
use windlass_client::{Blob, Client, ConsumeSocket, Output, SubmissionId, TaskProducer};
use windlass_core::seeded::Seeded;
use windlass_tests::binary::{Served, free_port, serve_command};
use windlass_tests::setting;

const LANE: &str = "emails";
/// Nothing of these fails, waits or is given back: they go out in the order in which they were added.
const CALM: [&str; 2] = ["calm", "acme/calm"];
const ROUGH: [&str; 6] = ["rough", "stern", "acme/u0", "acme/u1", "beta/u0", "beta/u1"];
const CONSUMERS: u64 = 3;
const PER_KEY: u32 = 2;
const PER_TENANT: u32 = 3;
/// More than are put in order by one request.
const WAITING_MAX: u64 = 5_000;
/// A lane is put in order once, so a long campaign has many lanes.
const KILLS_OF_A_LANE: u64 = 30;

/// What callers remember.
#[derive(Default)]
struct Acknowledged {
    /// Tasks as they were added: key and payload.
    added: Mutex<BTreeMap<SubmissionId, (String, String)>>,
    done: Mutex<BTreeSet<SubmissionId>>,
    /// Tasks as they came.
    seen: Mutex<BTreeMap<SubmissionId, (String, String)>>,
    /// How many of each key and tenant are with consumers.
    at_work: Mutex<BTreeMap<String, u32>>,
    is_limited: AtomicBool,
    is_over: AtomicBool,
    failed: AtomicU64,
    reasserted: AtomicU64,
    redriven: AtomicU64,
    releveled: AtomicU64,
    paused: AtomicU64,
}

impl Acknowledged {
    /// What failed, was re-asserted, driven again and given new levels, and how often the lane was paused.
    fn counts(&self) -> [u64; 5] {
        let Acknowledged { failed, reasserted, redriven, releveled, paused, .. } = self;
        [failed, reasserted, redriven, releveled, paused].map(|count| count.load(Ordering::Relaxed))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_task_is_lost_or_done_again_however_often_the_server_is_killed() {
    let kills = setting("WINDLASS_KILLS", 2 * KILLS_OF_A_LANE);
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    for begin in (0..kills).step_by(KILLS_OF_A_LANE as usize) {
        let seed = seed + begin;
        println!("replay with WINDLASS_SEED={seed} WINDLASS_KILLS={KILLS_OF_A_LANE}");
        story(seed, KILLS_OF_A_LANE.min(kills - begin)).await;
    }
}

async fn story(seed: u64, kills: u64) {
    let mut chance = Seeded::new(seed);
    let (data, port) = (TempDir::new().unwrap(), free_port());
    let client = Client::new(&format!("http://127.0.0.1:{port}")).unwrap().retrying_for(Duration::ZERO);
    let acknowledged = Arc::new(Acknowledged::default());
    let mut server = start(&data, port).await;
    client.create_lane(LANE).await.unwrap();
    let producer = tokio::spawn(produce(client.clone(), Arc::clone(&acknowledged), Seeded::new(seed)));
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|nth| Worker::new(&client, &acknowledged, seed, nth))
        .map(|worker| tokio::spawn(worker.run()))
        .collect();
    let operator = tokio::spawn(operate(client.clone(), Arc::clone(&acknowledged), Seeded::new(seed ^ 99)));
    let mut limiter = None;
    for kill in 0..kills {
        if kill == kills / 2 {
            limiter = Some(tokio::spawn(limit(client.clone(), Arc::clone(&acknowledged))));
        }
        // To put some thousand tasks in order is a matter of milliseconds.
        let is_ordering = limiter.as_ref().is_some_and(|limiter| !limiter.is_finished());
        let pause_ms = if is_ordering { 1 + chance.below(20) } else { 5 + chance.below(150) };
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        server.kill();
        server = start(&data, port).await;
    }
    if let Some(limiter) = limiter {
        limiter.await.unwrap();
    }
    // What chance has left out so far comes while nobody is killed any more.
    let everything = async {
        while acknowledged.counts().contains(&0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    _ = tokio::time::timeout(Duration::from_secs(30), everything).await;
    acknowledged.is_over.store(true, Ordering::Relaxed);
    producer.await.unwrap();
    operator.await.unwrap();
    all_is_done(&client, &acknowledged, kills).await;
    for consumer in consumers {
        consumer.abort();
        assert!(consumer.await.is_err_and(|end| end.is_cancelled()), "a consumer has found nothing wrong");
    }
    let counts = acknowledged.counts();
    println!(
        "{} tasks, {kills} kills; failed, re-asserted, driven again, given new levels, pauses: {counts:?}",
        acknowledged.added.lock().unwrap().len(),
    );
    assert!(counts.iter().all(|count| *count > 0), "each of these has happened: {counts:?}");
    assert!(server.stop().success());
}

async fn start(data: &TempDir, port: u16) -> Served {
    let mut command = serve_command(data.path(), port);
    // A consumer whose last session nobody knows of any more holds up limited keys for so long.
    command.env("WINDLASS_HEARTBEAT_MS", "1000").env("WINDLASS_GRACE_MS", "1500");
    Served::try_start(command, port).await.expect("the server starts again")
}

async fn all_is_done(client: &Client, acknowledged: &Acknowledged, kills: u64) {
    let added = acknowledged.added.lock().unwrap().clone();
    assert!(added.len() as u64 > kills, "the producer got something done between kills");
    let left = async || {
        client.lane(LANE).await.map_or(1, |lane| lane.lane.waiting + lane.lane.delayed + lane.lane.dead)
    };
    let is_done = async {
        while left().await > 0 {
            redrive(client, acknowledged).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_done).await.expect("everything gets done");
    let lane = client.lane(LANE).await.unwrap().lane;
    assert_eq!((lane.added, lane.done, lane.dead), (added.len() as u64, added.len() as u64, 0));
    // A task that was done just before a kill may have been acknowledged to nobody; every other one was seen.
    for (id, task) in &*acknowledged.seen.lock().unwrap() {
        assert_eq!(added.get(id), Some(task), "task {id} came as it was added");
    }
}

/// Limits keys for the first time, which puts all that wait in order: some with each request, and kills go on.
async fn limit(client: Client, acknowledged: Arc<Acknowledged>) {
    let so_many = |count| Some(Some(LimitInfo { in_flight: Some(count), ..LimitInfo::default() }));
    let limits = LaneLimitsChange {
        each_key: so_many(PER_KEY),
        each_tenant: so_many(PER_TENANT),
        ..LaneLimitsChange::default()
    };
    let change = LaneChangeRequest { limits, ..LaneChangeRequest::default() };
    let waiting = acknowledged.added.lock().unwrap().len() - acknowledged.done.lock().unwrap().len();
    let mut broken = 0;
    while client.change_lane(LANE, &change).await.is_err() {
        broken += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("limited while {waiting} tasks were waiting, after {broken} calls that broke");
    acknowledged.is_limited.store(true, Ordering::SeqCst);
}

/// Weights, levels, pauses and dead tasks, until the end; then the lane goes on. What breaks is not tried again.
async fn operate(client: Client, acknowledged: Arc<Acknowledged>, mut chance: Seeded) {
    while !acknowledged.is_over.load(Ordering::Relaxed) {
        match chance.below(4) {
            0 => {
                let key = ROUGH.iter().chain(&CALM).nth(chance.below(8) as usize).unwrap().to_string();
                let weight = [0.25, 1.0, 2.0, 7.0][chance.below(4) as usize];
                let weights = [(key, Some(weight))].into();
                _ = client
                    .change_lane(LANE, &LaneChangeRequest { weights, ..LaneChangeRequest::default() })
                    .await;
            }
            1 => {
                // Step by step, until all is done or a step breaks.
                let mut request = RelevelRequest::default();
                while let Ok(done) = client.relevel_some(LANE, &request).await {
                    acknowledged.releveled.fetch_add(done.tasks, Ordering::Relaxed);
                    request.cursor = done.next;
                    if request.cursor.is_none() {
                        break;
                    }
                }
            }
            2 => {
                let is_paused = client.pause_lane(LANE).await.is_ok();
                acknowledged.paused.fetch_add(u64::from(is_paused), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(chance.below(30))).await;
                _ = client.resume_lane(LANE).await;
            }
            _ => redrive(&client, &acknowledged).await,
        }
        tokio::time::sleep(Duration::from_millis(chance.below(50))).await;
    }
    while client.resume_lane(LANE).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn redrive(client: &Client, acknowledged: &Acknowledged) {
    if let Ok(done) = client.redrive(LANE, &RedriveRequest::default()).await {
        acknowledged.redriven.fetch_add(done.tasks, Ordering::Relaxed);
    }
}

/// Adds until the end; an add whose answer is lost is sent again with the same key, so that it counts once.
async fn produce(client: Client, acknowledged: Arc<Acknowledged>, mut chance: Seeded) {
    let producer = TaskProducer::new(client.clone().retrying_for(Duration::from_millis(100)));
    for request in 0.. {
        if acknowledged.is_over.load(Ordering::Relaxed) {
            return;
        }
        if client.lane(LANE).await.is_ok_and(|lane| lane.lane.waiting > WAITING_MAX) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        // Single tasks, some that get rows of their own, and as many as share rows.
        let count = [1, 2 + chance.below(6), 8 + chance.below(20), 200][chance.below(4) as usize];
        let tasks: Vec<TaskRequest> = (0..count).map(|nth| task(&mut chance, request, nth)).collect();
        // By either door; a request that was not answered by one may be repeated by the other.
        let name = format!("request-{request}");
        let ids = loop {
            let added = match chance.below(2) {
                0 => client.add_tasks_as(LANE, tasks.clone(), &name).await,
                _ => producer.add_as(LANE, tasks.iter().map(to_add).collect(), &name).await,
            };
            match added {
                Ok(ids) => break ids,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(ids.len(), tasks.len());
        let mut added = acknowledged.added.lock().unwrap();
        for (id, TaskRequest { key, payload, .. }) in ids.into_iter().zip(tasks) {
            let payload = String::from_utf8(payload.unwrap().0).unwrap();
            assert_eq!(added.insert(id, (key, payload)), None, "an id names one task");
        }
    }
}

/// The same task, as a frame has it.
fn to_add(task: &TaskRequest) -> TaskToAdd {
    TaskToAdd {
        key: task.key.clone(),
        payload: task.payload.clone().map(|payload| payload.0.into()),
        weight_milli: task.weight.map(|weight| (weight * 1_000.0) as u32),
        priority: Some(task.priority),
        delay_ms: task.delay_ms,
        attempts_max: task.attempts_max,
        retry_delay_ms: task.retry_delay_ms,
        ..TaskToAdd::default()
    }
}

fn task(chance: &mut Seeded, request: u64, nth: u64) -> TaskRequest {
    let nth_key = chance.below((CALM.len() + ROUGH.len()) as u64) as usize;
    let is_calm = nth_key < CALM.len();
    // Some have a row of their own, apart from their places.
    let length = if chance.below(12) == 0 { 1_500 } else { 0 };
    TaskRequest {
        key: CALM.iter().chain(&ROUGH).nth(nth_key).unwrap().to_string(),
        weight: [None, Some(0.5), Some(3.0)][chance.below(3) as usize],
        priority: if is_calm { 0 } else { chance.below(2) as u8 },
        delay_ms: (!is_calm && chance.below(10) == 0).then(|| chance.below(300)),
        // Texts sort as the tasks were added.
        payload: Some(Blob(format!("{request:08} {nth:04} {}", "x".repeat(length)).into_bytes())),
        attempts_max: Some(if is_calm { 1_000 } else { 2 }),
        retry_delay_ms: Some(1),
        ..TaskRequest::default()
    }
}

/// A consumer that is told of no kill: it connects anew, and drops what it had or goes on with it.
struct Worker {
    client: Client,
    acknowledged: Arc<Acknowledged>,
    nth: u64,
    chance: Seeded,
    session: Option<u64>,
    held: Vec<Held>,
}

/// A task that it has not been answered about.
struct Held {
    work: WorkOf,
    /// Whether it counts as being worked on.
    is_counted: bool,
}

impl Worker {
    fn new(client: &Client, acknowledged: &Arc<Acknowledged>, seed: u64, nth: u64) -> Worker {
        let (client, acknowledged) = (client.clone(), Arc::clone(acknowledged));
        Worker { client, acknowledged, nth, chance: Seeded::new(seed ^ nth), session: None, held: Vec::new() }
    }

    async fn run(mut self) {
        loop {
            if self.converse().await.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    async fn converse(&mut self) -> Option<()> {
        if self.nth != 1 {
            for held in self.held.drain(..) {
                uncount(&self.acknowledged, &held);
            }
        }
        let name = format!("consumer {}", self.nth);
        let (mut socket, welcome) = ConsumeSocket::connect(&self.client, &name, self.session).await.ok()?;
        self.session = Some(welcome.session);
        self.reassert(&mut socket).await?;
        let mut last_of_calm: BTreeMap<String, String> = BTreeMap::new();
        for request in 0.. {
            self.finish(&mut socket, request).await?;
            let is_limited = self.acknowledged.is_limited.load(Ordering::SeqCst);
            let strategy = format!("\"Lane({LANE})\"");
            let reserve = ClientFrame::Reserve { request, max: 8, strategy, after_reports: false };
            socket.send(&reserve).await.ok()?;
            let Some(ServerFrame::Work { work, more: false, .. }) = socket.receive().await.ok()? else {
                return None;
            };
            for work in work {
                let (key, payload) = self.look(&work);
                if CALM.contains(&&*key) {
                    let before = last_of_calm.insert(key.clone(), payload.clone());
                    assert!(
                        before.as_ref() < Some(&payload),
                        "{payload} of {key} came in this conversation after {before:?}"
                    );
                }
                count(&self.acknowledged, &key, is_limited);
                self.held.push(Held { work, is_counted: true });
            }
            if !self.acknowledged.is_over.load(Ordering::Relaxed) && self.chance.below(3) == 0 {
                tokio::time::sleep(Duration::from_millis(self.chance.below(60))).await;
            }
        }
        None
    }

    /// A task whose completion was acknowledged is never seen again.
    fn look(&self, work: &WorkOf) -> (String, String) {
        let id = work.submission;
        let is_done = self.acknowledged.done.lock().unwrap().contains(&id);
        assert!(!is_done, "task {id} was done and came again");
        let payload = String::from_utf8(work.payload.clone().unwrap().into()).unwrap();
        let task = (work.task.clone().unwrap().key, payload);
        self.acknowledged.seen.lock().unwrap().insert(id, task.clone());
        task
    }

    /// Says what it still works on.
    async fn reassert(&mut self, socket: &mut ConsumeSocket) -> Option<()> {
        for mut held in std::mem::take(&mut self.held) {
            let (submission, chunks) = (held.work.submission, held.work.chunks.clone());
            let verdicts =
                if socket.send(&ClientFrame::Reassert { request: 0, submission, chunks }).await.is_ok() {
                    settled(socket).await
                } else {
                    None
                };
            match verdicts.as_deref() {
                None => self.held.push(held),
                Some([Verdict::Accepted]) => {
                    self.acknowledged.reasserted.fetch_add(1, Ordering::Relaxed);
                    if !held.is_counted {
                        count(&self.acknowledged, &held.work.task.as_ref().unwrap().key, false);
                    }
                    held.is_counted = true;
                    self.held.push(held);
                }
                Some([Verdict::AlreadyDone | Verdict::SubmissionOver | Verdict::ReservationLost]) => {
                    uncount(&self.acknowledged, &held);
                }
                other => panic!("task {submission} was handed out, yet re-asserting it is {other:?}"),
            }
        }
        Some(())
    }

    /// Reports what it has: some fail, some are given back, and the rest is done, by one report or each by its own.
    async fn finish(&mut self, socket: &mut ConsumeSocket, request: u64) -> Option<()> {
        for held in &mut self.held {
            uncount(&self.acknowledged, held);
            held.is_counted = false;
        }
        // What is to fail or to be given back is not re-asserted if that breaks off.
        let mut reports = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let is_calm = CALM.contains(&&*held.work.task.as_ref().unwrap().key);
            match self.chance.below(16) {
                0 if !is_calm => reports.push(fail(request, &held.work)),
                1 if !is_calm => reports.push(release(request, &held.work)),
                _ => self.held.push(held),
            }
        }
        for report in reports {
            self.report(socket, report).await?;
        }
        while !self.held.is_empty() {
            let now = if self.nth.is_multiple_of(2) { self.held.len() } else { 1 };
            let works: Vec<&WorkOf> = self.held[..now].iter().map(|held| &held.work).collect();
            let verdicts = self.report(socket, complete(request, &works)).await?;
            assert_eq!(verdicts.len(), now);
            assert!(
                verdicts.iter().all(|it| matches!(it, Verdict::Accepted | Verdict::AlreadyDone)),
                "tasks were handed out, yet their completions are {verdicts:?}"
            );
            let done = self.held.drain(..now).map(|held| held.work.submission);
            self.acknowledged.done.lock().unwrap().extend(done);
        }
        Some(())
    }

    async fn report(&self, socket: &mut ConsumeSocket, frame: ClientFrame) -> Option<Vec<Verdict>> {
        if matches!(frame, ClientFrame::Fail { .. }) {
            self.acknowledged.failed.fetch_add(1, Ordering::Relaxed);
        }
        socket.send(&frame).await.ok()?;
        settled(socket).await
    }
}

async fn settled(socket: &mut ConsumeSocket) -> Option<Vec<Verdict>> {
    match socket.receive().await.ok()? {
        Some(ServerFrame::Settled { verdicts, .. }) => Some(verdicts),
        _ => None,
    }
}

fn fail(request: u64, work: &WorkOf) -> ClientFrame {
    let failed = vec![FailedChunk { chunk: work.chunks[0], reason: "at first".into() }];
    ClientFrame::Fail { request, submission: work.submission, failed }
}

fn release(request: u64, work: &WorkOf) -> ClientFrame {
    ClientFrame::Release { request, submission: work.submission, chunks: work.chunks.clone() }
}

/// One task as the chunk as which it came, several as tasks.
fn complete(request: u64, works: &[&WorkOf]) -> ClientFrame {
    let done = |chunk: WorkChunk| DoneChunk { chunk, output: Output::Nothing, entries: None };
    match works {
        [it] => {
            let done = it.chunks.iter().copied().map(done).collect();
            ClientFrame::Complete { request, submission: it.submission, done }
        }
        works => {
            let tasks = works.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
            ClientFrame::CompleteTasks { request, tasks }
        }
    }
}

/// The key, and the tenant if it is a user of one, with what each may have out.
fn limited(key: &str) -> impl Iterator<Item = (&str, u32)> {
    let tenant = key.split_inclusive('/').next().filter(|part| part.ends_with('/'));
    [(key, PER_KEY)].into_iter().chain(tenant.map(|tenant| (tenant, PER_TENANT)))
}

/// Counts a task that came. What is counted here is out as the server sees it, too: a server that begins anew waits until the
/// consumers of the one before have said what they still work on, and they count nothing else by then.
fn count(acknowledged: &Acknowledged, key: &str, is_limited: bool) {
    for (name, most) in limited(key) {
        let now = {
            let mut at_work = acknowledged.at_work.lock().unwrap();
            let now = at_work.entry(name.to_owned()).or_default();
            *now += 1;
            *now
        };
        assert!(!is_limited || now <= most, "{now} of {name} are with consumers, of {most}");
    }
}

fn uncount(acknowledged: &Acknowledged, held: &Held) {
    if held.is_counted {
        for (name, _) in limited(&held.work.task.as_ref().unwrap().key) {
            *acknowledged.at_work.lock().unwrap().get_mut(name).unwrap() -= 1;
        }
    }
}
