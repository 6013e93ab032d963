//! The sections: what is measured, in what order.

use crate::load::{self, Mode};
use crate::process::{Server, Usage};
use crate::report::{Bar, Figure};
use crate::{Options, peer};
use anyhow::Context;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windlass_client::ConsumeSocket;

const CONSUMERS: usize = 16;
const PIPELINE_DEPTH: u32 = 512;

/// Runs the sections whose names the options select.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let is_wanted = |name: &str| name.contains(&options.only);
    let mut figures = Vec::new();
    if is_wanted("submit") {
        figures.extend(submit(options).await?);
    }
    if is_wanted("lone") {
        figures.extend(lone(options).await?);
    }
    if is_wanted("load") {
        figures.extend(load(options).await?);
    }
    if is_wanted("backlog") {
        figures.extend(backlog(options).await?);
    }
    Ok(figures)
}

fn data_folder() -> anyhow::Result<TempDir> {
    // Beside the project, on the disk that users would use, and not in a /tmp that may be memory.
    Ok(tempfile::Builder::new().prefix("bench-data").tempdir_in("target")?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Submitting many chunks against submitting one, alternately.
async fn submit(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 300;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let (mut few_ms, mut many_ms) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (chunks, times) in [(1, &mut few_ms), (1_000_000, &mut many_ms)] {
            let began = Instant::now();
            load::submit(&server.client, chunks).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut written = Vec::new();
    for chunks in [1, 1_000_000] {
        let before = server.usage().await?;
        for _ in 0..ROUNDS {
            load::submit(&server.client, chunks).await?;
        }
        written.push((server.usage().await? - before).written_bytes);
    }
    server.stop()?;
    let (few, many) = (median(few_ms), median(many_ms));
    Ok(vec![
        Figure {
            what: "submit 1,000,000 chunks : submit 1 chunk, time".into(),
            value: many / few,
            unit: "×",
            bar: Bar::AtMost(2.0),
            behind: format!("{many:.3} ms : {few:.3} ms (medians of {ROUNDS})"),
        },
        Figure {
            what: "submit 1,000,000 chunks : submit 1 chunk, bytes written".into(),
            value: written[1] / written[0],
            unit: "×",
            bar: Bar::AtMost(2.0),
            behind: format!(
                "{:.0} : {:.0} bytes a submit",
                written[1] / ROUNDS as f64,
                written[0] / ROUNDS as f64
            ),
        },
    ])
}

/// A lone complete against a bare fsync of the same disk, alternately.
async fn lone(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 500;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    load::submit(&server.client, 1_000_000).await?;
    let mut socket = ConsumeSocket::connect(&server.client, "lone", None).await?.0;
    let mut file = bare_file(data.path())?;
    let (mut syncs, mut completes) = (Vec::new(), Vec::new());
    for request in 0..ROUNDS as u64 {
        let began = Instant::now();
        file.write_all(&[1; 128])?;
        file.sync_data()?;
        syncs.push(began.elapsed().as_secs_f64() * 1e6);
        let work = load::reserve_one(&mut socket, request, "\"OldestFirst\"").await?;
        let began = Instant::now();
        load::complete(&mut socket, request, work).await?;
        completes.push(began.elapsed().as_secs_f64() * 1e6);
    }
    server.stop()?;
    let (sync, complete) = (median(syncs), median(completes));
    Ok(vec![Figure {
        what: "a lone complete : a bare fsync".into(),
        value: complete / sync,
        unit: "×",
        bar: Bar::AtMost(3.0),
        behind: format!("{complete:.0} µs : {sync:.0} µs (medians of {ROUNDS})"),
    }])
}

/// A file whose blocks are written already, so that its fsync is as cheap as one can be.
fn bare_file(folder: &Path) -> anyhow::Result<std::fs::File> {
    use std::io::Seek;
    let mut file = std::fs::File::create(folder.join("bare"))?;
    file.write_all(&vec![0; 1 << 20])?;
    file.sync_all()?;
    file.rewind()?;
    Ok(file)
}

/// Sixteen consumers on a backlog of 10^6 chunks: one by one against Opsqueue, and pipelined.
async fn load(options: &Options) -> anyhow::Result<Vec<Figure>> {
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
                "its client one by one, ours with its defaults, which prefetch 4 chunks",
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

/// 10^9 pending chunks in 10^5 submissions: memory, restart, and the rate against an almost empty queue.
async fn backlog(options: &Options) -> anyhow::Result<Vec<Figure>> {
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
