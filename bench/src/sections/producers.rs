//! Producers that wait for their submissions.

use super::{CONSUMERS, data_folder};
use crate::load::Crew;
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::{Options, filler};
use anyhow::Context;
use futures_util::StreamExt;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use windlass_client::{Producer, Strategy, SubmissionId, SubmissionState, SubmitRequest};

const WAITING: u64 = 100_000;

/// As many as the client library names on one connection.
const PER_CONNECTION: usize = 1_000;

fn request(_number: u64) -> SubmitRequest {
    SubmitRequest { chunks: Some(1), ..SubmitRequest::default() }
}

/// What a watch was told of one submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Running,
    Done,
}

/// A hundred thousand wait, all are told.
pub(crate) async fn producers(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let ids = filler::submit_each(server.client.server(), 0..WAITING, request).await?;
    let before = server.resident_bytes()?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let began = Instant::now();
    for ids in ids.chunks(PER_CONNECTION) {
        tokio::spawn(watch(Producer::new(server.client.clone()), ids.to_vec(), tell.clone()));
    }
    drop(tell);
    wait_for(&mut told, Told::Running).await?;
    let opened = began.elapsed();
    let watching = server.resident_bytes()?;

    let began = Instant::now();
    let crew = Crew::start(&server.client, CONSUMERS, |consumer| consumer.strategy(Strategy::OldestFirst));
    let client = server.client.clone();
    let done = tokio::spawn(async move {
        while client.status().await?.submissions_running > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(began.elapsed())
    });
    wait_for(&mut told, Told::Done).await?;
    let all_told = began.elapsed().as_secs_f64();
    let all_done = done.await??.as_secs_f64();
    crew.stop().await?;
    let after = server.resident_bytes()?;
    server.stop()?;
    let mib = |bytes: f64| bytes / 1_048_576.0;
    Ok(vec![
        Figure {
            what: "100,000 waiting producers: the last is told after its submission is done".into(),
            value: all_told - all_done,
            unit: "s",
            bar: Bar::AtMost(2.0),
            behind: format!(
                "{} connections of {PER_CONNECTION} each, opened in {:.1} s; all done after {all_done:.2} s, all told \
                 after {all_told:.2} s",
                ids.len().div_ceil(PER_CONNECTION),
                opened.as_secs_f64(),
            ),
        }
        .told(),
        Figure {
            what: "100,000 waiting producers: memory of the server for each".into(),
            value: (watching - before) / WAITING as f64,
            unit: "bytes",
            bar: Bar::None,
            behind: format!(
                "{:.0} MiB before, {:.0} MiB while they wait, {:.0} MiB when all are told",
                mib(before),
                mib(watching),
                mib(after)
            ),
        }
        .told(),
    ])
}

/// Tells on what a watch is told.
async fn watch(
    producer: Producer,
    ids: Vec<SubmissionId>,
    tell: mpsc::UnboundedSender<anyhow::Result<Told>>,
) {
    let mut events = std::pin::pin!(producer.watch(&ids));
    while let Some(event) = events.next().await {
        let told = match event {
            Ok(event) if event.state == SubmissionState::Running => Ok(Told::Running),
            Ok(_) => Ok(Told::Done),
            Err(error) => Err(error.into()),
        };
        if tell.send(told).is_err() {
            return;
        }
    }
}

/// Until every submission was told of once in this way.
async fn wait_for(
    told: &mut mpsc::UnboundedReceiver<anyhow::Result<Told>>,
    what: Told,
) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let all = async {
        let mut left = WAITING;
        while left > 0 {
            let told = told.recv().await.context("a watch ended before all were told")??;
            left -= u64::from(told == what);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("not all were told in time")?
}
