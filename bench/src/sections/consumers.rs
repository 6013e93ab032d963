//! Many consumers: throughput by their number, and ten thousand that have nothing to do.

use super::{data_folder, median};
use crate::load::{self, Mode};
use crate::process::{Server, raise_open_files};
use crate::report::{Bar, Figure};
use crate::{Options, filler};
use anyhow::ensure;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use windlass_client::frames::{ClientFrame, ServerFrame};
use windlass_client::{ConsumeSocket, SubmitRequest};

const NUMBERS: [usize; 4] = [16, 100, 1_000, 10_000];
const MANY: usize = 10_000;
const STRATEGY: &str = "Random";

fn request(_number: u64) -> SubmitRequest {
    SubmitRequest { chunks: Some(100_000), ..SubmitRequest::default() }
}

/// Throughput one by one and with prefetch, then ten thousand idle ones.
pub(crate) async fn consumers(options: &Options) -> anyhow::Result<Vec<Figure>> {
    raise_open_files()?;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    filler::submit_each(server.client.server(), 0..1_000, request).await?;
    server.settle().await?;
    let mut figures = Vec::new();
    // Always the same, since it is the number of consumers that is compared: with nothing set each holds what is right for its pace.
    let with_prefetch = Mode::Library { prefetch: 4 };
    for (mode, how) in [(Mode::OneByOne, "one by one"), (with_prefetch, "with a prefetch of 4")] {
        figures.extend(by_number(options, &server, mode, how).await?);
    }
    server.stop()?;
    figures.extend(idle(options).await?);
    Ok(figures)
}

async fn by_number(options: &Options, server: &Server, mode: Mode, how: &str) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 5;
    const ROUND: Duration = Duration::from_secs(1);
    let mut rates = NUMBERS.map(|_| Vec::new());
    let mut cpu_us = NUMBERS.map(|_| Vec::new());
    let mut fewest = u64::MAX;
    for round in 0..ROUNDS {
        for (nth, consumers) in NUMBERS.into_iter().enumerate() {
            // Ten thousand need a while to connect, and until each has had its turn.
            let duration = if consumers == MANY { Duration::from_secs(options.seconds) } else { ROUND };
            if consumers == MANY && round > 0 {
                continue;
            }
            let before = server.usage().await?;
            let done = load::consume(&server.client, consumers, mode, STRATEGY, duration).await?;
            let used = server.usage().await? - before;
            rates[nth].push(done.rate());
            cpu_us[nth].push(used.cpu_seconds * 1e6 / used.completed);
            if consumers == MANY {
                fewest = done.fewest;
            }
        }
    }
    let (rates, cpu_us) = (rates.map(median), cpu_us.map(median));
    let best = rates.iter().copied().fold(0.0, f64::max);
    let mut figures = Vec::new();
    for (nth, consumers) in NUMBERS.into_iter().enumerate() {
        let figure = Figure {
            what: format!("{how}: {consumers} consumers : the best number of them"),
            value: rates[nth] / best,
            unit: "×",
            bar: if consumers == 1_000 { Bar::AtLeast(0.7) } else { Bar::None },
            behind: format!(
                "{:.0}/s : {best:.0}/s (medians of {}, alternately); the server's CPU {:.0} µs a chunk",
                rates[nth],
                if consumers == MANY { 1 } else { ROUNDS },
                cpu_us[nth]
            ),
        };
        figures.push(figure.told());
    }
    let fewest = Figure {
        what: format!("{how}: chunks of the consumer with the fewest, of 10,000"),
        value: fewest as f64,
        unit: "",
        bar: Bar::AtLeast(1.0),
        behind: format!("in {} s", options.seconds),
    };
    figures.push(fewest.told());
    Ok(figures)
}

/// Ten thousand consumers that wait for work: what each costs, and how the server does when there is work for all.
async fn idle(options: &Options) -> anyhow::Result<Vec<Figure>> {
    const HEALTH_CHECKS: usize = 40;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    let before = server.resident_bytes()?;
    let mut waiting: Vec<JoinHandle<anyhow::Result<u64>>> = Vec::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for (nth, socket) in load::connect(&server.client, MANY).await?.into_iter().enumerate() {
        waiting.push(tokio::spawn(wait_for_work(socket, nth, stopped.clone())));
    }
    // Each shows twice that it lives meanwhile.
    tokio::time::sleep(2 * HEARTBEAT).await;
    let status = server.client.status().await?;
    ensure!(status.consumers == MANY, "all are connected: {status:?}");
    let resident = server.resident_bytes()?;
    let used = server.usage().await?;
    let mut health = Vec::new();
    for _ in 0..HEALTH_CHECKS {
        health.push(server.health().await?.as_secs_f64() * 1e3);
    }
    let idle_health = median(health);

    let began = Instant::now();
    filler::submit_each(server.client.server(), 0..1_000, request).await?;
    let mut health = Vec::new();
    for _ in 0..HEALTH_CHECKS {
        health.push(server.health().await?.as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let worst = health.iter().copied().fold(0.0, f64::max);
    let worked = began.elapsed();
    stop.send_replace(true);
    let mut fewest = u64::MAX;
    for consumer in waiting {
        fewest = fewest.min(consumer.await??);
    }
    server.stop()?;
    Ok(vec![
        Figure {
            what: "10,000 consumers that wait for work: memory of the server for each".into(),
            value: (resident - before) / MANY as f64 / 1_024.0,
            unit: "KiB",
            bar: Bar::AtMost(32.0),
            behind: format!(
                "{:.0} MiB with them, {:.0} MiB before; with a reserve waiting and heartbeats; {:.2} CPU seconds until then",
                resident / 1_048_576.0,
                before / 1_048_576.0,
                used.cpu_seconds
            ),
        }
        .told(),
        Figure {
            what: "10,000 consumers that waited, and then work for all: chunks of the one with the fewest".into(),
            value: fewest as f64,
            unit: "",
            bar: Bar::AtLeast(1.0),
            behind: format!("in {:.1} s", worked.as_secs_f64()),
        }
        .told(),
        Figure {
            what: "10,000 consumers at work: /health answers within".into(),
            value: median(health),
            unit: "ms",
            bar: Bar::AtMost(100.0),
            behind: format!("median; {worst:.1} ms at worst, {idle_health:.1} ms while they waited"),
        }
        .told(),
    ])
}

const HEARTBEAT: Duration = Duration::from_secs(5);

/// Works one by one once there is something, and shows that it lives until then; gives the chunks it did.
async fn wait_for_work(
    mut socket: ConsumeSocket,
    nth: usize,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<u64> {
    let strategy = load::as_json(STRATEGY)?;
    let reserve =
        |request| ClientFrame::Reserve { request, max: 1, strategy: strategy.clone(), after_reports: true };
    socket.send(&reserve(0)).await?;
    // They do not all speak at once.
    let first = tokio::time::Instant::now() + HEARTBEAT.mul_f64(nth as f64 / MANY as f64);
    let mut heartbeat = tokio::time::interval_at(first, HEARTBEAT);
    let mut completed = 0;
    loop {
        let frame = tokio::select! {
            _ = stopped.changed() => return Ok(completed),
            _ = heartbeat.tick() => {
                socket.send(&ClientFrame::Heartbeat {}).await?;
                continue;
            }
            frame = socket.receive() => frame?,
        };
        match frame {
            Some(ServerFrame::Work { mut work, .. }) => {
                socket.send(&load::completion(completed, work.remove(0))).await?;
                completed += 1;
                socket.send(&reserve(completed)).await?;
            }
            Some(ServerFrame::Settled { .. } | ServerFrame::Heartbeat {}) => {}
            other => anyhow::bail!("the server sent {other:?}"),
        }
    }
}
