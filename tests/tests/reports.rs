//! Reports that a consumer sends in one go: they go through the log together, and each is answered as if it had come alone.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::json;
use std::collections::BTreeMap;
use windlass_client::frames::{ClientFrame, DoneChunk, FailedChunk, ServerFrame, Verdict, WorkOf, WorkTask};
use windlass_client::{Blob, Client, ConsumeSocket, Output, SubmitRequest};
use windlass_tests::here::Here;
use windlass_tests::lanes::{add, create, until};

async fn connect(server: &Here) -> ConsumeSocket {
    let client = Client::new(&server.url("")).unwrap();
    ConsumeSocket::connect(&client, "test", None).await.unwrap().0
}

fn reserve(request: u64, max: u32, strategy: &str, after_reports: bool) -> ClientFrame {
    ClientFrame::Reserve { request, max, strategy: format!("\"{strategy}\""), after_reports }
}

/// All the work of one reserve.
async fn work(socket: &mut ConsumeSocket) -> Vec<WorkOf> {
    let (mut all, mut has_more) = (Vec::new(), true);
    while has_more {
        match socket.receive().await.unwrap() {
            Some(ServerFrame::Work { work, more, .. }) => {
                all.extend(work);
                has_more = more;
            }
            other => panic!("work was expected, not {other:?}"),
        }
    }
    all
}

fn done(request: u64, work: &WorkOf, output: Output) -> ClientFrame {
    let done = vec![DoneChunk { chunk: work.chunks[0], output, entries: None }];
    ClientFrame::Complete { request, submission: work.submission, done }
}

#[tokio::test]
async fn reports_that_come_together_are_each_answered_as_if_they_had_come_alone() {
    const TASKS: usize = 600;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let tasks = vec![json!({"key": "a", "payload": "x", "retry_delay_ms": 600_000}); TASKS];
    add(&server, "jobs", json!(tasks)).await;
    let mut socket = connect(&server).await;
    socket.send(&reserve(1, TASKS as u32, "Lane(jobs)", false)).await.unwrap();
    let works = work(&mut socket).await;
    assert_eq!(works.len(), TASKS);
    add(&server, "jobs", json!([{"key": "b", "payload": "next"}])).await;

    let mut expected = BTreeMap::new();
    for (nth, work) in works.iter().enumerate() {
        let request = 100 + nth as u64;
        let (frame, verdict) = match nth % 100 {
            // A token of another task.
            40 => {
                let chunk = works[nth - 1].chunks[0];
                let forged = WorkOf { chunks: vec![chunk], ..work.clone() };
                (done(request, &forged, Output::Nothing), Verdict::TokenInvalid)
            }
            // One of another kind between them.
            70 => {
                let failed = vec![FailedChunk { chunk: work.chunks[0], reason: "no".into() }];
                (ClientFrame::Fail { request, submission: work.submission, failed }, Verdict::Accepted)
            }
            _ => (done(request, work, Output::Nothing), Verdict::Accepted),
        };
        socket.feed(&frame).await.unwrap();
        expected.insert(request, verdict);
    }
    socket.feed(&done(99, &works[0], Output::Nothing)).await.unwrap();
    expected.insert(99, Verdict::AlreadyDone);
    socket.feed(&reserve(2, 1, "Lane(jobs)", true)).await.unwrap();
    socket.flush().await.unwrap();

    let mut answered = BTreeMap::new();
    loop {
        match socket.receive().await.unwrap() {
            Some(ServerFrame::Settled { request, verdicts }) => {
                assert!(answered.insert(request, verdicts[0]).is_none(), "{request} is answered once");
            }
            Some(ServerFrame::Work { request: 2, work, .. }) => {
                assert_eq!(answered.len(), expected.len(), "work comes after every report is answered");
                assert_eq!(work[0].payload.as_ref().map(|it| it.to_vec()), Some(b"next".to_vec()));
                break;
            }
            other => panic!("answers were expected, not {other:?}"),
        }
    }
    assert_eq!(answered, expected);
    let lane = server.get("/v1/lanes/jobs").await.json;
    // Six were forged, six have failed; one is new.
    assert_eq!(
        (&lane["done"], &lane["delayed"], &lane["waiting"]),
        (&json!(588), &json!(6), &json!(7)),
        "{lane}"
    );
}

#[tokio::test]
async fn one_frame_reports_many_tasks_and_says_of_each_what_became_of_it() {
    const TASKS: usize = 2_500;
    let server = Here::start(|_| {}).await;
    for lane in ["jobs", "mail"] {
        create(&server, lane).await;
    }
    for nth in 0..TASKS as u64 / 500 {
        let key = |at: u64| ["a", "acme/bob", "acme/eve", "b"][(at % 4) as usize];
        let large = "x".repeat(2_000);
        let payload = |at: u64| if at == 7 { &large[..] } else { "x" };
        let tasks: Vec<_> =
            (0..500).map(|at| json!({"key": key(at), "payload": payload(at), "priority": nth % 2})).collect();
        add(&server, "jobs", json!(tasks)).await;
    }
    add(&server, "mail", json!([{"key": "c"}, {"key": "d"}])).await;
    let submitted = server.post("/v1/submissions", json!({"chunks": 1})).await;
    assert_eq!(submitted.status, 201, "{submitted:?}");

    let mut socket = connect(&server).await;
    let mut works = Vec::new();
    for (strategy, count) in [("Lane(jobs)", TASKS), ("Lane(mail)", TASKS + 2), ("OldestFirst", TASKS + 3)] {
        // What is not read yet of a tenant comes with a later reserve.
        while works.len() < count {
            socket.send(&reserve(1, (count - works.len()) as u32, strategy, false)).await.unwrap();
            works.extend(work(&mut socket).await);
        }
    }
    assert_eq!(works.len(), TASKS + 3);
    let mut tasks: Vec<WorkTask> =
        works.iter().map(|it| WorkTask::new(it.submission, it.chunks[0])).collect();
    let mut expected = vec![Verdict::Accepted; TASKS + 2];
    // A chunk is no task, and a token of one task is none of another.
    expected.push(Verdict::TokenInvalid);
    tasks[40].proof ^= 1;
    expected[40] = Verdict::TokenInvalid;
    // Reported once before, and once more in the same frame.
    socket.send(&done(4, &works[41], Output::Nothing)).await.unwrap();
    expected[41] = Verdict::AlreadyDone;
    tasks.push(tasks[42]);
    expected.push(Verdict::AlreadyDone);
    // Given back, but done all the same.
    let chunks = vec![works[43].chunks[0]];
    socket
        .send(&ClientFrame::Release { request: 5, submission: works[43].submission, chunks })
        .await
        .unwrap();
    for _ in 0..2 {
        assert!(matches!(socket.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
    }
    socket.feed(&ClientFrame::CompleteTasks { request: 6, tasks: tasks.clone() }).await.unwrap();
    socket.feed(&ClientFrame::CompleteTasks { request: 7, tasks: Vec::new() }).await.unwrap();
    let too_many = vec![tasks[0]; 16_385];
    socket.feed(&ClientFrame::CompleteTasks { request: 8, tasks: too_many }).await.unwrap();
    socket.flush().await.unwrap();

    let mut answered = BTreeMap::new();
    while answered.len() < 3 {
        match socket.receive().await.unwrap() {
            Some(ServerFrame::Settled { request, verdicts }) => {
                answered.insert(request, verdicts);
            }
            Some(ServerFrame::Refused { request: 8, code, detail, .. }) => {
                assert_eq!(code, "invalid_request");
                assert!(detail.contains("at most 16384"), "{detail}");
                answered.insert(8, Vec::new());
            }
            other => panic!("answers were expected, not {other:?}"),
        }
    }
    assert_eq!(answered[&6], expected);
    assert_eq!(answered[&7], []);
    let lane = server.get("/v1/lanes/jobs").await.json;
    assert_eq!((&lane["done"], &lane["waiting"]), (&json!(TASKS - 1), &json!(1)), "{lane}");
}

#[tokio::test]
async fn an_output_that_is_too_large_among_others_fails_its_own_chunk_and_no_other() {
    let server = Here::start(|_| {}).await;
    let client = Client::new(&server.url("")).unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(
            client.submit(&SubmitRequest { chunks: Some(1), ..SubmitRequest::default() }).await.unwrap(),
        );
    }
    let mut socket = connect(&server).await;
    socket.send(&reserve(1, 5, "OldestFirst", false)).await.unwrap();
    let works = work(&mut socket).await;
    assert_eq!(works.iter().map(|it| it.submission).collect::<Vec<_>>(), ids);
    for (nth, work) in works.iter().enumerate() {
        let bytes = if nth == 2 { 1 << 20 } else { 10_000 };
        socket.feed(&done(10 + nth as u64, work, Output::Inline(vec![7; bytes].into()))).await.unwrap();
    }
    socket.flush().await.unwrap();
    let mut verdicts = BTreeMap::new();
    while verdicts.len() < 5 {
        match socket.receive().await.unwrap() {
            Some(ServerFrame::Settled { request, verdicts: of }) => drop(verdicts.insert(request, of[0])),
            other => panic!("answers were expected, not {other:?}"),
        }
    }
    let [fine, too_large] = [Verdict::Accepted, Verdict::OutputTooLarge];
    assert_eq!(verdicts.into_values().collect::<Vec<_>>(), [fine, fine, too_large, fine, fine]);
    for (nth, id) in ids.iter().enumerate() {
        let state = server.get(&format!("/v1/submissions/{id}")).await.json["state"].clone();
        assert_eq!(state, json!(if nth == 2 { "running" } else { "completed" }));
    }
}

#[tokio::test]
async fn reports_that_are_followed_by_a_goodbye_at_once_all_count() {
    const TASKS: usize = 700;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    add(&server, "jobs", json!(vec![json!({"key": "a"}); TASKS])).await;
    let mut socket = connect(&server).await;
    socket.send(&reserve(1, TASKS as u32, "Lane(jobs)", false)).await.unwrap();
    let works = work(&mut socket).await;
    let (mut sender, _receiver) = socket.split();
    for (nth, work) in works.iter().enumerate() {
        sender.feed(&done(nth as u64, work, Output::Nothing)).await.unwrap();
    }
    sender.close().await.unwrap();
    until(&server, "jobs", |lane| lane["done"] == TASKS).await;
}

#[tokio::test]
async fn completions_of_many_submissions_over_http_are_answered_in_their_order() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let payload = Blob(b"x".to_vec());
    add(&server, "jobs", json!(vec![json!({"key": "a", "payload": payload}); 300])).await;
    let reserved = windlass_tests::lanes::reserve(&server, "Lane(jobs)", 300).await;
    assert_eq!(reserved.len(), 300);
    let mut twice = reserved.clone();
    twice.insert(150, reserved[3].clone());
    let answer = windlass_tests::lanes::complete(&server, &twice).await;
    let mut expected = vec!["accepted"; 301];
    expected[150] = "already_done";
    assert_eq!(answer["chunks"], json!(expected));
}
