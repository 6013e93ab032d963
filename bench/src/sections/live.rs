//! What views cost those who submit and complete: eight strategies in use against none.

use super::{CONSUMERS, data_folder, median};
use crate::load::{self, Mode};
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::strategies::{Crowd, Kind, NESTED};
use crate::{Options, filler};
use std::time::{Duration, Instant};
use windlass_client::{Client, ConsumeSocket, SubmitRequest};

const SUBMISSIONS: u64 = 100_000;
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(250);

/// Submits and completes one after the other.
const ALONE: u64 = 500;

/// What is measured uses this one, with and without the others.
const OWN: &str = "OldestFirst";

/// Eight that look at every submission, one of them by two views.
const LIVE: [&str; 8] = [
    "Random",
    "NewestFirst",
    "CustomPriority(aging=10m)",
    "PreferDistinct(company, 1, Random)",
    "MaxSimultaneous(user, 2, OldestFirst)",
    "Fair(company)",
    NESTED[0],
    NESTED[3],
];

/// What was measured, in microseconds for each submit or complete.
#[derive(Default)]
struct Times {
    submits: Vec<f64>,
    completes: Vec<f64>,
    lone_submits: Vec<f64>,
    lone_completes: Vec<f64>,
}

fn request(number: u64) -> SubmitRequest {
    let kind = Kind::new(Crowd::Spread, number);
    SubmitRequest {
        chunks: Some(1),
        metadata: kind.metadata(),
        priority: kind.priority(),
        ..SubmitRequest::default()
    }
}

/// Submits and completes with 10^5 pending submissions, alternately with and without eight strategies in use.
pub(crate) async fn live(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let folders = [data_folder()?, data_folder()?];
    let mut servers = Vec::new();
    for data in &folders {
        let (server, _) = Server::start(&options.windlass, data.path()).await?;
        filler::submit_each(server.client.server(), 0..SUBMISSIONS, request).await?;
        server.settle().await?;
        servers.push(server);
    }
    let mut users = Vec::new();
    for strategy in LIVE {
        users.push(tokio::spawn(use_it(servers[1].client.clone(), load::as_json(strategy)?)));
    }
    for server in &servers {
        round(server, &mut Times::default()).await?;
    }
    let mut times = [Times::default(), Times::default()];
    for _ in 0..ROUNDS {
        for (server, times) in servers.iter().zip(&mut times) {
            round(server, times).await?;
        }
    }
    alone(&servers, &mut times).await?;
    for user in users {
        anyhow::ensure!(!user.is_finished(), "a strategy that should be in use is not: {:?}", user.await);
        user.abort();
    }
    servers.into_iter().try_for_each(Server::stop)?;
    let [none, eight] = times;
    let figure = |what: &str, none: Vec<f64>, eight: Vec<f64>| {
        let (times, none, eight) = (none.len(), median(none), median(eight));
        Figure {
            what: format!("{what}, 10^5 submissions pending: eight strategies in use : none"),
            value: eight / none,
            unit: "×",
            bar: Bar::AtMost(1.5),
            behind: format!("{eight:.0} µs : {none:.0} µs each (medians of {times}, alternately)"),
        }
        .told()
    };
    Ok(vec![
        figure("submit, many at a time", none.submits, eight.submits),
        figure("reserve + complete, 16 consumers", none.completes, eight.completes),
        figure("a lone submit", none.lone_submits, eight.lone_submits),
        figure("a lone complete", none.lone_completes, eight.lone_completes),
    ])
}

/// Completes for a while, then submits as many again.
async fn round(server: &Server, times: &mut Times) -> anyhow::Result<()> {
    let client = &server.client;
    let done = load::consume(client, CONSUMERS, Mode::OneByOne, OWN, ROUND).await?;
    times.completes.push(done.seconds * 1e6 / done.chunks as f64);
    let began = Instant::now();
    filler::submit_each(client.server(), 0..done.chunks, request).await?;
    times.submits.push(began.elapsed().as_secs_f64() * 1e6 / done.chunks as f64);
    Ok(())
}

/// Submits and completes one after the other, with this server and then with the other.
async fn alone(servers: &[Server], times: &mut [Times; 2]) -> anyhow::Result<()> {
    let strategy = load::as_json(OWN)?;
    let mut sockets = Vec::new();
    for server in servers {
        sockets.push(ConsumeSocket::connect(&server.client, "lone", None).await?.0);
    }
    for number in 0..ALONE {
        for ((server, socket), times) in servers.iter().zip(&mut sockets).zip(&mut *times) {
            let began = Instant::now();
            server.client.submit(&request(number)).await?;
            times.lone_submits.push(began.elapsed().as_secs_f64() * 1e6);
            let work = load::reserve_one(socket, number, &strategy).await?;
            let began = Instant::now();
            load::complete(socket, number, work).await?;
            times.lone_completes.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(())
}

/// Takes a chunk now and then, as a consumer with long chunks does.
async fn use_it(client: Client, strategy: String) -> anyhow::Result<()> {
    let mut socket = ConsumeSocket::connect(&client, "live", None).await?.0;
    for request in 0.. {
        let work = load::reserve_one(&mut socket, request, &strategy).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        load::complete(&mut socket, request, work).await?;
    }
    Ok(())
}
