//! What those who are connected hear when the server stops.

use serde_json::json;
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, Verdict};
use windlass_client::{Client, ConsumeSocket, Output};
use windlass_tests::here::Here;

/// The next frame that is no heartbeat; the error's words if the connection has ended.
async fn next(socket: &mut ConsumeSocket) -> Result<ServerFrame, String> {
    loop {
        match socket.receive().await {
            Ok(Some(ServerFrame::Heartbeat {})) => {}
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => return Err("closed without a word".into()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_report_during_a_stop_hear_their_verdicts_and_then_a_goodbye() {
    const CONSUMERS: usize = 20;
    let server = Here::start(|config| config.drain_ms = 30_000).await;
    server.submit(json!({"chunks": CONSUMERS})).await;
    let client = Client::new(&server.url("")).unwrap();
    let mut holding = Vec::new();
    for nth in 0..CONSUMERS {
        let mut socket = ConsumeSocket::connect(&client, &format!("{nth}"), None).await.unwrap().0;
        let strategy = "\"OldestFirst\"".to_owned();
        socket
            .send(&ClientFrame::Reserve { request: 1, max: 1, strategy, after_reports: false })
            .await
            .unwrap();
        let Ok(ServerFrame::Work { mut work, .. }) = next(&mut socket).await else { panic!("it gets work") };
        holding.push((socket, work.remove(0)));
    }

    let stopping = tokio::spawn(server.stop());
    let mut ends = Vec::new();
    for (mut socket, work) in holding {
        assert_eq!(next(&mut socket).await, Ok(ServerFrame::Draining {}));
        let done = |chunk| DoneChunk { chunk, output: Output::Nothing, entries: None };
        let done = work.chunks.into_iter().map(done).collect();
        socket.send(&ClientFrame::Complete { request: 2, submission: work.submission, done }).await.unwrap();
        let settled = ServerFrame::Settled { request: 2, verdicts: vec![Verdict::Accepted] };
        assert_eq!(next(&mut socket).await, Ok(settled));
        // Each reads on at once: a server that stops waits for nobody who does not.
        ends.push(tokio::spawn(async move { next(&mut socket).await.unwrap_err() }));
    }
    stopping.await.unwrap();
    for end in ends {
        let end = end.await.unwrap();
        assert!(end.contains("the server stops"), "{end}");
    }
}
