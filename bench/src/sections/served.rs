//! What a reserve costs as a consumer sees it: through the server and its socket, with 10^3 and 10^6 submissions.
//!
//! A strategy's views stay for a minute after its last use, and a server without the views of others is what is measured:
//! so the servers begin anew with each strategy.

use super::{data_folder, median};
use crate::load::{self, Mode, OneByOne};
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::strategies::{self, AROUND_THE_LIMIT, AT_THE_LIMIT, CROWDED, NESTED, PLAIN};
use crate::{Options, filler};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_client::frames::ClientFrame;
use windlass_client::{Client, ConsumeSocket};

const SIZES: [u64; 2] = [1_000, 1_000_000];
const ROUNDS: usize = 9;

/// How long many consumers are measured in each round.
const ROUND: Duration = Duration::from_millis(250);

/// Chunks of the crowded value that somebody holds while others reserve.
const HELD: u32 = 200;

struct Case {
    strategy: String,
    situation: &'static str,
    held: u32,
    /// Consumers at once besides a lone one.
    consumers: usize,
}

/// The same exchanges with both servers, for each strategy.
pub(crate) async fn served(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut folders = Vec::new();
    for size in SIZES {
        let data = data_folder()?;
        let (server, _) = Server::start(&options.windlass, data.path()).await?;
        filler::submit_each(server.client.server(), 0..size, strategies::request).await?;
        server.stop()?;
        folders.push(data);
    }
    let mut figures = Vec::new();
    for case in cases(options) {
        figures.extend(measure(options, &folders, &case).await?);
    }
    Ok(figures)
}

fn cases(options: &Options) -> Vec<Case> {
    let is_wanted = |strategy: &&&str| options.wants(strategy);
    let spread = PLAIN.iter().chain(&NESTED).filter(is_wanted).map(|strategy| Case {
        strategy: (*strategy).into(),
        situation: "",
        held: 0,
        consumers: 16,
    });
    // Of 10^3 submissions ten are not of the crowd: more consumers would wait for each other.
    let crowd = |situation, held| {
        move |strategy: &&str| Case {
            strategy: strategies::of_crowd(strategy),
            situation,
            held,
            consumers: 8,
        }
    };
    let at_limit = AT_THE_LIMIT.iter().filter(is_wanted);
    let at_limit = at_limit.map(crowd("; 99 % belong to one value at its limit", HELD));
    let around = AROUND_THE_LIMIT.iter().filter(is_wanted);
    let around = around.map(crowd("; 99 % belong to one value around its limit", 0));
    spread.chain(at_limit).chain(around).collect()
}

async fn measure(options: &Options, folders: &[TempDir], case: &Case) -> anyhow::Result<Vec<Figure>> {
    let (mut servers, mut holders) = (Vec::new(), Vec::new());
    for data in folders {
        let (server, _) = Server::start(&options.windlass, data.path()).await?;
        server.settle().await?;
        if case.held > 0 {
            holders.push(hold(&server.client, case.held).await?);
        }
        servers.push(server);
    }
    let figures = vec![alone(&servers, case).await?.told(), together(&servers, case).await?.told()];
    for Holder { stop, holding } in holders {
        drop(stop);
        holding.await??;
    }
    servers.into_iter().try_for_each(Server::stop)?;
    Ok(figures)
}

/// A lone consumer: one exchange with this server, one with the other, and again.
async fn alone(servers: &[Server], case: &Case) -> anyhow::Result<Figure> {
    const EXCHANGES: usize = 1_000;
    let strategy = load::as_json(&case.strategy)?;
    let mut consumers = Vec::new();
    for server in servers {
        let socket = ConsumeSocket::connect(&server.client, "lone", None).await?.0;
        consumers.push(OneByOne::begin(socket, &strategy).await?);
    }
    let mut times_us = [Vec::new(), Vec::new()];
    for _ in 0..EXCHANGES {
        for (consumer, times_us) in consumers.iter_mut().zip(&mut times_us) {
            let began = Instant::now();
            consumer.exchange().await?;
            times_us.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    for consumer in consumers {
        consumer.end().await?;
    }
    let [few, many] = times_us.map(median);
    Ok(Figure {
        what: format!("{}{}; a lone consumer: 10^6 : 10^3 submissions", case.strategy, case.situation),
        value: many / few,
        unit: "×",
        bar: Bar::AtMost(1.5),
        behind: format!("{many:.0} µs : {few:.0} µs (medians of {EXCHANGES}, alternately)"),
    })
}

/// Many consumers at once.
async fn together(servers: &[Server], case: &Case) -> anyhow::Result<Figure> {
    let (mut times_us, mut cpu_us) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        for (nth, server) in servers.iter().enumerate() {
            let (client, strategy) = (&server.client, &case.strategy);
            let before = server.usage().await?;
            let done = load::consume(client, case.consumers, Mode::OneByOne, strategy, ROUND).await?;
            let used = server.usage().await? - before;
            times_us[nth].push(done.seconds * 1e6 / done.chunks as f64);
            cpu_us[nth].push(used.cpu_seconds * 1e6 / done.chunks as f64);
        }
    }
    let [few, many] = times_us.map(median);
    let [few_us, many_us] = cpu_us.map(median);
    Ok(Figure {
        what: format!(
            "{}{}; {} consumers: 10^6 : 10^3 submissions",
            case.strategy, case.situation, case.consumers
        ),
        value: many / few,
        unit: "×",
        bar: Bar::AtMost(1.5),
        behind: format!(
            "{many:.0} µs : {few:.0} µs a chunk (medians of {ROUNDS} rounds, alternately), of which the server's CPU \
             {many_us:.0} and {few_us:.0} µs"
        ),
    })
}

/// Somebody who holds chunks of the crowded value until `stop` is dropped.
struct Holder {
    stop: oneshot::Sender<()>,
    holding: JoinHandle<anyhow::Result<()>>,
}

async fn hold(client: &Client, chunks: u32) -> anyhow::Result<Holder> {
    const HEARTBEAT: Duration = Duration::from_secs(3);
    let strategy = load::as_json(&strategies::of_crowd(CROWDED))?;
    let mut socket = ConsumeSocket::connect(client, "holder", None).await?.0;
    let reserve = ClientFrame::Reserve { request: 1, max: chunks, strategy, after_reports: false };
    socket.send(&reserve).await?;
    socket.receive().await?;
    let (stop, mut stopped) = oneshot::channel();
    let holding = tokio::spawn(async move {
        while tokio::time::timeout(HEARTBEAT, &mut stopped).await.is_err() {
            socket.send(&ClientFrame::Heartbeat {}).await?;
        }
        // What it held goes back at once.
        Ok(socket.split().0.close().await?)
    });
    Ok(Holder { stop, holding })
}
