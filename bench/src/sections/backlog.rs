//! 10^9 pending chunks.

use super::{CONSUMERS, PIPELINE_DEPTH, data_folder, median};
use crate::Options;
use crate::load::{self, Mode};
use crate::process::Server;
use crate::report::{Bar, Figure};
use anyhow::Context;
use std::time::Duration;

/// 10^9 pending chunks in 10^5 submissions: memory, restart, and the rate against an almost empty queue.
pub(crate) async fn backlog(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const SUBMISSIONS: u64 = 100_000;
    let (full_data, empty_data) = (data_folder()?, data_folder()?);
    let (server, _) = Server::start(&options.windlass, full_data.path()).await?;
    eprintln!("submitting 10^9 chunks in 10^5 submissions");
    load::submit_many(&server.client, SUBMISSIONS, 10_000).await?;
    server.stop()?;

    let (full, restart) = Server::start(&options.windlass, full_data.path()).await?;
    let status = full.client.status().await.context("the status of the full queue")?;
    anyhow::ensure!(status.chunks_ready == SUBMISSIONS * 10_000, "every chunk is ready: {status:?}");
    let (empty, _) = Server::start(&options.windlass, empty_data.path()).await?;
    load::submit_many(&empty.client, 1, 100_000_000).await?;
    let mut figures = vec![Figure {
        what: "10^9 chunks in 10^5 submissions: restart to ready".into(),
        value: restart.as_secs_f64(),
        unit: "s",
        bar: Bar::AtMost(5.0),
        behind: String::new(),
    }];
    let modes = [
        ("one by one", Mode::OneByOne, "OldestFirst"),
        ("one by one", Mode::OneByOne, "Random"),
        ("pipelined", Mode::Pipelined(PIPELINE_DEPTH), "OldestFirst"),
    ];
    for (name, mode, strategy) in modes {
        let (mut with_backlog, mut without) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let seconds = Duration::from_secs(options.seconds);
            without.push(load::consume(&empty.client, CONSUMERS, mode, strategy, seconds).await?.rate());
            with_backlog.push(load::consume(&full.client, CONSUMERS, mode, strategy, seconds).await?.rate());
        }
        let (with_backlog, without) = (median(with_backlog), median(without));
        figures.push(Figure {
            what: format!("{name}, {strategy}: almost empty queue : 10^9 pending chunks"),
            value: without / with_backlog,
            unit: "×",
            bar: Bar::AtMost(1.5),
            behind: format!("{without:.0}/s : {with_backlog:.0}/s (medians of 3, alternately)"),
        });
    }
    figures.push(Figure {
        what: "10^9 chunks in 10^5 submissions: resident memory".into(),
        value: full.resident_mib()?,
        unit: "MiB",
        bar: Bar::AtMost(1_024.0),
        behind: "after the loads above".into(),
    });
    full.stop()?;
    empty.stop()?;
    Ok(figures)
}
