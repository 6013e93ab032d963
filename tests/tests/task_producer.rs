//! The library's producer of single tasks: one connection, many additions under way, each of them in exactly once.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use windlass_client::frames::TaskToAdd;
use windlass_client::{Client, ClientError, ProblemCode, TaskProducer};
use windlass_tests::here::Here;
use windlass_tests::lanes::{create, until};

fn task(key: &str) -> Vec<TaskToAdd> {
    vec![TaskToAdd { key: key.into(), payload: Some(b"x".to_vec().into()), ..TaskToAdd::default() }]
}

fn large(bytes: usize) -> Vec<TaskToAdd> {
    vec![TaskToAdd { payload: Some(vec![7; bytes].into()), ..TaskToAdd::default() }]
}

fn producer_at(address: SocketAddr) -> TaskProducer {
    TaskProducer::new(Client::new(&format!("http://{address}")).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_additions_are_under_way_at_once_and_each_is_answered_with_its_own_tasks() {
    const ADDS: u64 = 2_000;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let producer = producer_at(server.address());
    let mut adds = Vec::new();
    for nth in 0..ADDS {
        let count = 1 + nth % 2;
        let added = producer.begin("jobs", vec![TaskToAdd::default(); count as usize]).await.unwrap();
        adds.push(async move {
            let ids = added.await.unwrap();
            assert_eq!(ids.len() as u64, count);
            ids
        });
    }
    let ids: Vec<_> = join_all(adds).await.into_iter().flatten().collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert!(ids.is_sorted(), "they are carried out in the order in which they were handed over");
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], json!(ADDS * 3 / 2));

    // More than may be under way at once, by bytes.
    let large = || vec![TaskToAdd { payload: Some(vec![7; 250_000].into()), ..TaskToAdd::default() }; 4];
    for added in join_all((0..20).map(|_| producer.add("jobs", large()))).await {
        assert_eq!(added.unwrap().len(), 4);
    }
    server.stop().await;
}

#[tokio::test]
async fn what_the_server_refuses_is_told_to_whoever_asked_and_the_others_go_on() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let producer = producer_at(server.address());
    let (good, unknown) = tokio::join!(producer.add("jobs", task("a")), producer.add("none", task("a")));
    assert_eq!(good.unwrap().len(), 1);
    assert!(
        matches!(unknown, Err(ClientError::Problem(problem)) if problem.code == ProblemCode::LaneUnknown)
    );
    let first = producer.add_as("jobs", task("b"), "monday").await.unwrap();
    assert_eq!(producer.add_as("jobs", task("b"), "monday").await.unwrap(), first);
    assert!(matches!(producer.add_as("jobs", task("b"), "a\nb").await, Err(ClientError::Setting(_))));
    let refused = producer.add("jobs", large(5_000_000)).await;
    assert!(
        matches!(refused, Err(ClientError::Problem(problem)) if problem.code == ProblemCode::BodyTooLarge)
    );
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], json!(2));

    let later = |delay_ms| TaskToAdd {
        not_before: Some("2130-01-31T08:00:00Z".into()),
        delay_ms,
        ..TaskToAdd::default()
    };
    let id = producer.add("jobs", vec![later(None)]).await.unwrap()[0];
    let explained = server.get(&format!("/v1/lanes/jobs/tasks/{id}")).await.json;
    assert_eq!(explained["due_at"], "2130-01-31T08:00:00.000Z", "{explained}");
    let never = TaskToAdd { not_before: Some("soon".into()), ..TaskToAdd::default() };
    for (task, why) in [(later(Some(7)), "not both"), (never, "is a time such as")] {
        let refused = producer.add("jobs", vec![task]).await.unwrap_err();
        assert!(refused.to_string().contains(why), "as over HTTP: {refused}");
    }

    let address = server.address();
    server.stop().await;
    let client = Client::new(&format!("http://{address}")).unwrap().retrying_for(Duration::from_millis(200));
    let gone = TaskProducer::new(client).add("jobs", task("a")).await;
    assert!(matches!(gone, Err(ClientError::Unreachable { .. })), "{gone:?}");
}

#[tokio::test]
async fn what_is_handed_over_takes_four_mebibytes_at_the_most_and_the_next_one_waits_for_room() {
    // It takes connections, and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let producer = producer_at(listener.local_addr().unwrap());
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(producer.begin("jobs", large(1_000_000)).await.unwrap());
    }
    assert!(producer.begin("jobs", large(200_000)).now_or_never().is_none(), "4 MiB are handed over");
    let too_large = producer.begin("jobs", large(5_000_000)).now_or_never().expect("it is known at once");
    assert!(too_large.is_err_and(|error| error.to_string().contains("send several")));
    let small = producer.begin("jobs", task("a")).now_or_never().expect("there is room for a small one");
    drop(small.unwrap());

    // So are many small ones: 256 of them.
    let producer = producer_at(listener.local_addr().unwrap());
    for _ in 0..256 {
        answers.push(producer.begin("jobs", task("a")).await.unwrap());
    }
    assert!(producer.begin("jobs", task("a")).now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_addition_that_every_connection_breaks_at_gives_up_in_its_time_and_the_next_one_gets_through() {
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let between = Arc::new(Between::default());
    between.breaks_at_answers.store(true, Ordering::SeqCst);
    let address = between.listen(server.address()).await;
    let client = Client::new(&format!("http://{address}")).unwrap().retrying_for(Duration::from_millis(500));
    let producer = TaskProducer::new(client);
    let began = Instant::now();
    let lost = tokio::time::timeout(Duration::from_secs(60), producer.add_as("jobs", task("a"), "monday"));
    let lost = lost.await.expect("it gives up");
    assert!(matches!(lost, Err(ClientError::Unreachable { .. })), "{lost:?}");
    assert!(began.elapsed() >= Duration::from_millis(500), "not before its time is over");
    assert!(between.connections.load(Ordering::SeqCst) > 1, "it was sent again");
    between.breaks_at_answers.store(false, Ordering::SeqCst);
    assert_eq!(producer.add_as("jobs", task("a"), "monday").await.unwrap().len(), 1);
    assert_eq!(server.get("/v1/lanes/jobs").await.json["added"], json!(1), "and none is in twice");
    server.stop().await;
}

/// What stands between a producer and its server, and can lose what the server says, and the connection.
#[derive(Debug, Default)]
struct Between {
    loses_answers: AtomicBool,
    /// The connection ends where the server answers a request.
    breaks_at_answers: AtomicBool,
    connections: AtomicUsize,
    cut: Notify,
}

impl Between {
    async fn listen(self: &Arc<Between>, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let between = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let between = Arc::clone(&between);
                let cut = async move { between.carry(client, server).await };
                tokio::spawn(cut);
            }
        });
        address
    }

    async fn carry(&self, client: TcpStream, server: SocketAddr) {
        /// The answer to the upgrade and that to Hello, each of which the client waits for.
        const WELCOMES: usize = 2;
        let cut = self.cut.notified();
        self.connections.fetch_add(1, Ordering::SeqCst);
        let server = TcpStream::connect(server).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let back = async {
            let (mut bytes, mut nth) = (vec![0; 65_536], 0);
            while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                nth += 1;
                if nth > WELCOMES && self.breaks_at_answers.load(Ordering::SeqCst) {
                    return;
                }
                let is_lost = self.loses_answers.load(Ordering::SeqCst);
                if !is_lost && to_client.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = cut => {}
            () = back => {}
            _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn additions_whose_answers_are_lost_with_the_connection_are_sent_again_and_none_is_in_twice() {
    const ADDS: usize = 50;
    let server = Here::start(|_| {}).await;
    create(&server, "jobs").await;
    let between = Arc::new(Between::default());
    let producer = producer_at(between.listen(server.address()).await);
    producer.add("jobs", task("first")).await.unwrap();
    for round in 1..=3 {
        between.loses_answers.store(true, Ordering::SeqCst);
        let adds: Vec<_> = (0..ADDS)
            .map(|_| {
                let producer = producer.clone();
                tokio::spawn(async move { producer.add("jobs", task("a")).await })
            })
            .collect();
        // All of them are in, and the producer does not know.
        until(&server, "jobs", |lane| lane["added"] == json!(1 + round * ADDS)).await;
        assert!(adds.iter().all(|add| !add.is_finished()));
        between.cut.notify_waiters();
        between.loses_answers.store(false, Ordering::SeqCst);
        let mut ids = BTreeSet::new();
        for add in adds {
            ids.extend(add.await.unwrap().unwrap());
        }
        assert_eq!(ids.len(), ADDS);
        assert_eq!(
            server.get("/v1/lanes/jobs").await.json["added"],
            json!(1 + round * ADDS),
            "none is in twice"
        );
    }
    server.stop().await;
}
