//! A limit of tasks in flight that is set while consumers wait or work: it holds when the server is killed with SIGKILL right after.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, WorkOf};
use windlass_client::{Client, ConsumeSocket, Output};
use windlass_tests::binary::{Served, free_port};
use windlass_tests::here::{Answered, answered, attempt_of};

/// A server that is killed and started again on its data.
struct Killable {
    data: TempDir,
    port: u16,
    server: Served,
    http: reqwest::Client,
}

impl Killable {
    async fn start() -> Killable {
        let (data, port) = (TempDir::new().unwrap(), free_port());
        let server = Served::start(data.path(), port).await;
        let server = Killable { data, port, server, http: reqwest::Client::new() };
        assert_eq!(answered(server.http.put(server.url("/v1/lanes/emails"))).await.status, 200);
        server
    }

    async fn killed(self) -> Killable {
        self.server.kill();
        let server = Served::start(self.data.path(), self.port).await;
        // A client of its own: connections to the killed one are gone.
        Killable { server, http: reqwest::Client::new(), ..self }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.url)
    }

    async fn post(&self, path: &str, body: Value) -> Answered {
        answered(self.http.post(self.url(path)).json(&body)).await
    }

    async fn add(&self, tasks: u32) {
        let tasks: Value =
            (0..tasks).map(|nth| json!({"key": "bob", "payload": format!("bob{nth}")})).collect();
        let added = self.post("/v1/lanes/emails/tasks", json!({"tasks": tasks})).await;
        assert_eq!(added.status, 201, "{}", added.text);
    }

    async fn limit(&self) {
        let change = json!({"limits": {"lane": {"in_flight": 1}}});
        let limited = answered(self.http.patch(self.url("/v1/lanes/emails")).json(&change)).await;
        assert_eq!(limited.status, 200, "{}", limited.text);
    }

    async fn reserve(&self, wait_ms: u64, lease_ms: u64) -> Vec<Value> {
        let ask = json!({"max": 5, "strategy": "Lane(emails)", "wait_ms": wait_ms, "lease_ms": lease_ms});
        let answer = self.post("/v1/reserve", ask).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["reservations"].as_array().unwrap().clone()
    }

    async fn connect(&self, session: Option<u64>) -> (ConsumeSocket, u64) {
        let client = Client::new(&self.server.url).unwrap();
        let (socket, welcome) = ConsumeSocket::connect(&client, "test", session).await.unwrap();
        (socket, welcome.session)
    }

    /// Waits until this many reserves wait.
    async fn waiting(&self, count: u64) {
        while answered(self.http.get(self.url("/v1/status"))).await.json["waiting"] != count {
            tokio::task::yield_now().await;
        }
    }
}

async fn ask(socket: &mut ConsumeSocket) {
    let strategy = "\"Lane(emails)\"".into();
    socket.send(&ClientFrame::Reserve { request: 1, max: 1, strategy, after_reports: false }).await.unwrap();
}

async fn work(socket: &mut ConsumeSocket) -> WorkOf {
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Work { mut work, .. }) => work.remove(0),
        other => panic!("work was expected, not {other:?}"),
    }
}

async fn settle(socket: &mut ConsumeSocket, frame: ClientFrame) {
    socket.send(&frame).await.unwrap();
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Settled { .. }) => {}
        other => panic!("verdicts were expected, not {other:?}"),
    }
}

fn reassertion(held: &WorkOf) -> ClientFrame {
    ClientFrame::Reassert { request: 2, submission: held.submission, chunks: held.chunks.clone() }
}

/// After a kill nobody gets anything before this consumer is back, nor while it works.
async fn is_awaited_after_a_kill(server: Killable, session: u64, held: &WorkOf) -> (Killable, ConsumeSocket) {
    let server = server.killed().await;
    assert_eq!(server.reserve(0, 60_000).await, [json!(null); 0], "the consumer may still work on its task");
    let (mut anna, _) = server.connect(Some(session)).await;
    settle(&mut anna, reassertion(held)).await;
    assert_eq!(server.reserve(0, 60_000).await, [json!(null); 0], "one is out");
    (server, anna)
}

/// When it is done, the next task goes out.
async fn and_then_goes_on(server: Killable, mut anna: ConsumeSocket, held: &WorkOf) {
    let done = vec![DoneChunk { chunk: held.chunks[0], output: Output::Nothing, entries: None }];
    settle(&mut anna, ClientFrame::Complete { request: 3, submission: held.submission, done }).await;
    assert_eq!(server.reserve(20_000, 60_000).await.len(), 1);
}

#[tokio::test]
async fn a_consumer_that_held_a_task_when_the_limit_was_set_is_awaited_after_a_kill() {
    let server = Killable::start().await;
    server.add(2).await;
    let (mut anna, session) = server.connect(None).await;
    ask(&mut anna).await;
    let held = work(&mut anna).await;
    server.limit().await;
    let (server, anna) = is_awaited_after_a_kill(server, session, &held).await;
    and_then_goes_on(server, anna, &held).await;
}

#[tokio::test]
async fn a_consumer_that_waited_when_the_limit_was_set_is_awaited_after_a_kill() {
    let server = Killable::start().await;
    let (mut anna, session) = server.connect(None).await;
    ask(&mut anna).await;
    server.waiting(1).await;
    server.limit().await;
    server.add(2).await;
    let held = work(&mut anna).await;
    let (server, anna) = is_awaited_after_a_kill(server, session, &held).await;
    and_then_goes_on(server, anna, &held).await;
}

#[tokio::test]
async fn a_consumer_that_re_asserts_after_the_limit_was_set_what_it_had_before_is_awaited_after_a_kill() {
    let server = Killable::start().await;
    server.add(2).await;
    let (mut broken, session) = server.connect(None).await;
    ask(&mut broken).await;
    let held = work(&mut broken).await;
    // Its new session is there before the limit, and gets what it works on after it.
    let (mut anna, session) = server.connect(Some(session)).await;
    server.limit().await;
    settle(&mut anna, reassertion(&held)).await;
    // The session before is awaited too, as long as its grace time lasts.
    is_awaited_after_a_kill(server, session, &held).await;
}

#[tokio::test]
async fn a_lease_that_ran_when_the_limit_was_set_is_waited_for_after_a_kill() {
    let server = Killable::start().await;
    server.add(2).await;
    let held = server.reserve(0, 5_000).await;
    assert_eq!(held.len(), 2);
    let released = server.post("/v1/release", json!({"chunks": [attempt_of(&held[1])]})).await;
    assert_eq!(released.status, 200, "{}", released.text);
    server.limit().await;
    let server = server.killed().await;
    assert_eq!(server.reserve(0, 60_000).await, [json!(null); 0], "the lease may still run");
}

#[tokio::test]
async fn a_lease_that_was_waited_for_when_the_limit_was_set_is_waited_for_after_a_kill() {
    let server = Killable::start().await;
    let limiting = async {
        server.waiting(1).await;
        server.limit().await;
        server.add(2).await;
    };
    let (held, ()) = tokio::join!(server.reserve(30_000, 60_000), limiting);
    assert_eq!(held.len(), 1);
    let server = server.killed().await;
    assert_eq!(server.reserve(0, 60_000).await, [json!(null); 0], "the lease may still run");
}
