//! Sixteen consumers, beside Opsqueue.

use super::{CONSUMERS, PIPELINE_DEPTH, data_folder};
use crate::load::{self, Mode};
use crate::process::{Server, Usage};
use crate::report::{Bar, Figure};
use crate::{Options, peer};
use std::time::Duration;

/// Sixteen consumers on a backlog of 10^6 chunks: one by one against Opsqueue, and pipelined.
pub(crate) async fn load(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const BACKLOG: u64 = 1_000_000;
    let seconds = Duration::from_secs(options.seconds);
    let mut figures = Vec::new();

    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    load::submit_many(&server.client, 1_000, BACKLOG / 1_000).await?;
    let one_by_one = load::consume(&server.client, CONSUMERS, Mode::OneByOne, "Random", seconds).await?;
    server.stop()?;

    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let submission = load::submit(&server.client, BACKLOG).await?;
    let by_default = load::consume_by_default(&server.client, CONSUMERS, submission).await?;
    server.stop()?;
    let peer =
        peer::opsqueue(&options.opsqueue, "one_by_one", CONSUMERS, BACKLOG, options.seconds.max(10)).await?;
    let batched =
        peer::opsqueue(&options.opsqueue, "batched", CONSUMERS, BACKLOG, options.seconds.max(10)).await?;
    figures.push(plain("reserve + complete one by one, 16 consumers", one_by_one.rate()));

    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    load::submit_many(&server.client, 10, 100 * BACKLOG).await?;
    let before = server.usage().await?;
    let pipelined =
        load::consume(&server.client, CONSUMERS, Mode::Pipelined(PIPELINE_DEPTH), "OldestFirst", seconds)
            .await?;
    let used = server.usage().await? - before;
    server.stop()?;
    if let Some(peer) = peer {
        let compared = [
            (
                "its client one by one, ours with its defaults, which prefetch 100 ms of work",
                by_default,
                Bar::AtLeast(100.0),
            ),
            ("each chunk acknowledged before the next is reserved, here only", one_by_one, Bar::None),
        ];
        for (mode, done, bar) in compared {
            figures.push(Figure {
                what: format!("16 consumers, backlog 10^6 : Opsqueue 0.30.3; {mode}"),
                value: done.rate() / peer,
                unit: "×",
                bar,
                behind: format!("{:.0}/s : {peer:.0}/s", done.rate()),
            });
        }
    }
    if let Some(batched) = batched {
        figures.push(Figure {
            what: "16 consumers, backlog 10^6 : Opsqueue 0.30.3; its client 100 chunks at a time, ours with its defaults".into(),
            value: by_default.rate() / batched,
            unit: "×",
            bar: Bar::None,
            behind: format!("{:.0}/s : {batched:.0}/s", by_default.rate()),
        });
    }
    figures.push(plain("reserve + complete pipelined, 16 consumers", pipelined.rate()));
    figures.extend(per_chunk(used));
    Ok(figures)
}

fn plain(what: &str, rate: f64) -> Figure {
    Figure { what: what.into(), value: rate, unit: "chunks/s", bar: Bar::None, behind: String::new() }
}

fn per_chunk(used: Usage) -> Vec<Figure> {
    let chunks = used.completed;
    vec![
        Figure {
            what: "pipelined: chunks per CPU-second of the server".into(),
            value: chunks / used.cpu_seconds,
            unit: "",
            bar: Bar::AtLeast(100_000.0),
            behind: format!("{chunks:.0} chunks, {:.2} CPU seconds", used.cpu_seconds),
        },
        Figure {
            what: "pipelined: fsyncs per completed chunk".into(),
            value: used.log_syncs / chunks,
            unit: "",
            bar: Bar::AtMost(0.01),
            behind: format!("{:.0} fsyncs", used.log_syncs),
        },
        Figure {
            what: "pipelined: log bytes per completed chunk".into(),
            value: used.log_bytes / chunks,
            unit: "bytes",
            bar: Bar::AtMost(64.0),
            behind: format!("{:.0} bytes", used.log_bytes),
        },
    ]
}
