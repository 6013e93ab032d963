//! What a reserve costs as a consumer sees it: through the server and its socket, with 10^3 and 10^6 submissions.
//!
//! A strategy's views stay for a minute after its last use, and a server without the views of others is what is measured:
//! so the servers begin anew with each strategy.

use super::{data_folder, median};
use crate::load::{self, Mode};
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::strategies::{self, AROUND_THE_LIMIT, AT_THE_LIMIT, CROWDED, NESTED, PLAIN};
use crate::{Options, Set, filler};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use windlass_client::frames::ClientFrame;
use windlass_client::{Client, ConsumeSocket};

const SIZES: [u64; 2] = [1_000, 1_000_000];
const ROUNDS: usize = 5;

/// How long the consumers are measured in each round.
const ROUND: Duration = Duration::from_millis(400);

/// Long enough to build the views of 10^6 submissions.
const WARM_UP: Duration = Duration::from_millis(400);

/// Chunks of the crowded value that somebody holds while others reserve.
const HELD: u32 = 200;

/// Those that `make bench` measures too.
const USUAL: [&str; 5] = ["Random", PLAIN[7], PLAIN[9], NESTED[1], NESTED[3]];

struct Case {
    strategy: String,
    situation: &'static str,
    held: u32,
    /// Consumers at once besides a lone one.
    consumers: usize,
}

/// Ratios of rates, alternately, for each strategy.
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
    for case in cases(options).iter().filter(|case| case.strategy.contains(&options.strategy)) {
        figures.extend(measure(options, &folders, case).await?);
    }
    Ok(figures)
}

fn cases(options: &Options) -> Vec<Case> {
    let is_wanted = |strategy: &&&str| options.set == Set::Strategies || USUAL.contains(*strategy);
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
        if case.held > 0 {
            holders.push(hold(&server.client, case.held).await?);
        }
        load::consume(&server.client, 1, Mode::OneByOne, &case.strategy, WARM_UP).await?;
        servers.push(server);
    }
    let mut figures = Vec::new();
    for consumers in [1, case.consumers] {
        let (mut rates, mut cpu_us) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..ROUNDS {
            for (nth, server) in servers.iter().enumerate() {
                let before = server.usage().await?;
                let done =
                    load::consume(&server.client, consumers, Mode::OneByOne, &case.strategy, ROUND).await?;
                let used = server.usage().await? - before;
                rates[nth].push(done.rate());
                cpu_us[nth].push(used.cpu_seconds * 1e6 / done.chunks as f64);
            }
        }
        let [few, many] = rates.map(median);
        let [few_us, many_us] = cpu_us.map(median);
        let who = if consumers == 1 { "a lone consumer".into() } else { format!("{consumers} consumers") };
        let figure = Figure {
            what: format!("{}{}; {who}: 10^3 : 10^6 submissions", case.strategy, case.situation),
            value: few / many,
            unit: "×",
            bar: Bar::AtMost(1.5),
            behind: format!(
                "{few:.0}/s : {many:.0}/s (medians of {ROUNDS}, alternately); the server's CPU {few_us:.0} and \
                 {many_us:.0} µs a chunk"
            ),
        };
        figures.push(figure.told());
    }
    for holder in holders {
        holder.abort();
    }
    servers.into_iter().try_for_each(Server::stop)?;
    Ok(figures)
}

/// Holds chunks of the crowded value until it is told to end.
async fn hold(client: &Client, chunks: u32) -> anyhow::Result<JoinHandle<()>> {
    const HEARTBEAT: Duration = Duration::from_secs(3);
    let strategy = load::as_json(&strategies::of_crowd(CROWDED))?;
    let mut socket = ConsumeSocket::connect(client, "holder", None).await?.0;
    let reserve = ClientFrame::Reserve { request: 1, max: chunks, strategy, after_reports: false };
    socket.send(&reserve).await?;
    socket.receive().await?;
    Ok(tokio::spawn(async move {
        while socket.send(&ClientFrame::Heartbeat {}).await.is_ok() {
            tokio::time::sleep(HEARTBEAT).await;
        }
    }))
}
