//! A consumer with nothing set, and work that changes its pace.

use serde_json::json;
use std::time::Duration;
use windlass_client::{Chunk, Client, ClientError, Consumer, MetaValue, Output, Strategy, Tally};
use windlass_tests::here::Here;

#[tokio::test]
async fn a_consumer_whose_work_begins_to_take_long_leaves_the_rest_to_others() {
    const SLOW: u64 = 400;
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 20_000, "metadata": {"kind": "quick"}})).await;
    server.submit(json!({"chunks": SLOW, "metadata": {"kind": "slow"}})).await;
    let (release, released) = tokio::sync::watch::channel(false);
    let client = Client::new(&server.url("")).expect("the address is one");
    let consumer = || Consumer::builder(client.clone()).strategy(Strategy::OldestFirst);
    let work = move |chunk: Chunk| {
        let mut released = released.clone();
        async move {
            if chunk.metadata()["kind"] == MetaValue::from("slow") {
                drop(released.wait_for(|it| *it).await);
            }
            Ok(Output::Nothing)
        }
    };
    let idle = Duration::from_millis(50);
    let first = consumer().until_idle(idle);
    let mut activity = first.activity();
    let first = tokio::spawn(first.run(work.clone(), std::future::pending()));
    // The slow ones were at hand before it was known how slow they are.
    let leaves_them =
        activity.wait_for(|it| it.tally.completed == 20_000 && it.tally.released > 0 && it.queued <= 4);
    let left = tokio::time::timeout(Duration::from_secs(60), leaves_them).await.expect("it gives them back");
    assert_eq!(left.expect("it goes on").tally.failed, 0);

    let second = tokio::spawn(consumer().until_idle(idle).run(work, std::future::pending()));
    release.send_replace(true);
    let tally = |ended: Result<Result<Tally, ClientError>, tokio::task::JoinError>| {
        ended.expect("no panic").expect("the server stays")
    };
    let (first, second) = (tally(first.await), tally(second.await));
    assert_eq!(first.completed + second.completed, 20_000 + SLOW, "nothing is lost on its way back");
    server.stop().await;
}
