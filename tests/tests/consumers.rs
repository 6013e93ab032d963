//! What a consumer with nothing set holds, and how it reports. One story, since the metrics of a process are shared.

use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use windlass_client::{Client, Consumer, Output};
use windlass_tests::here::Here;

/// Works on everything, each chunk for so long; the most that was queued at the consumer meanwhile.
async fn most_queued(server: &Here, chunks: u64, takes: Duration) -> usize {
    let client = Client::new(&server.url("")).expect("the address is one");
    let consumer = Consumer::builder(client).until_idle(Duration::from_millis(50));
    let activity = consumer.activity();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let work = move |_| {
        seen.fetch_max(activity.borrow().queued, Ordering::Relaxed);
        async move {
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            Ok(Output::Nothing)
        }
    };
    let tally = consumer.run(work, std::future::pending()).await.expect("the server stays");
    assert_eq!(tally.completed, chunks);
    most.load(Ordering::Relaxed)
}

async fn completions(server: &Here) -> u64 {
    let metrics = server.get("/metrics").await.text;
    let count =
        metrics.lines().find_map(|line| line.strip_prefix("windlass_commands_total{command=\"complete\"} "));
    count.expect("completions are counted").parse().expect("it is a number")
}

#[tokio::test]
async fn a_consumer_holds_much_of_quick_work_and_reports_it_together_and_little_of_slow_work() {
    let server = Here::start(|_| {}).await;
    server.submit(json!({"chunks": 20_000})).await;
    let quick = most_queued(&server, 20_000, Duration::ZERO).await;
    assert!(quick > 50, "{quick} chunks that take no time were at hand");
    let reports = completions(&server).await;
    assert!(reports < 5_000, "20,000 chunks were reported in {reports} commands");

    server.submit(json!({"chunks": 12})).await;
    let slow = most_queued(&server, 12, Duration::from_millis(30)).await;
    assert!(slow <= 4, "{slow} chunks that take long were kept from others");
    server.stop().await;
}
