//! Lanes: what a task costs whatever the backlog, what a backlog and its keys take of memory, and adding one by one.

use super::{CONSUMERS, data_folder, median};
use crate::load::{self, Mode};
use crate::process::Server;
use crate::report::{Bar, Figure};
use crate::{Options, Set};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::time::{Duration, Instant};
use windlass_client::frames::{ClientFrame, ServerFrame, TaskToAdd};
use windlass_client::lanes::TaskRequest;
use windlass_client::{Blob, Client, ConsumeSocket};

const LANE: &str = "bench";
const KEYS: u64 = 100_000;
const FEW: u64 = 10_000;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(500);
/// Tasks in one request, and requests on their way.
const TASKS_PER_REQUEST: u64 = 1_000;
const REQUESTS_AT_ONCE: usize = 8;

/// How many tasks wait where there are many.
const fn many(set: Set) -> u64 {
    match set {
        Set::Lanes => 100_000_000,
        Set::Usual | Set::Strategies | Set::TenMillion | Set::Branches => 1_000_000,
    }
}

fn task(number: u64, keys: u64) -> TaskRequest {
    TaskRequest {
        key: format!("tenant-{}", number % keys),
        payload: Some(Blob(format!("task {number:012}").into_bytes())),
        ..TaskRequest::default()
    }
}

async fn add(client: &Client, tasks: Range<u64>, keys: u64) -> anyhow::Result<()> {
    let requests = tasks.clone().step_by(TASKS_PER_REQUEST as usize).map(|begin| async move {
        let end = tasks.end.min(begin + TASKS_PER_REQUEST);
        client.add_tasks(LANE, (begin..end).map(|number| task(number, keys)).collect()).await
    });
    let adding = stream::iter(requests).buffer_unordered(REQUESTS_AT_ONCE);
    Ok(adding.try_for_each(|_| async { Ok(()) }).await?)
}

pub(crate) async fn lanes(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let many = many(options.set);
    let (few_data, many_data) = (data_folder()?, data_folder()?);
    let few_server = Server::start(&options.windlass, few_data.path()).await?.0;
    let many_server = Server::start(&options.windlass, many_data.path()).await?.0;
    for server in [&few_server, &many_server] {
        server.client.create_lane(LANE).await?;
    }
    let mut figures = one_by_one(&few_server, options.seconds).await?;
    add(&few_server.client, 0..FEW, KEYS).await?;
    figures.extend(fill(&many_server, many).await?);
    figures.push(dispatch(&few_server, &many_server, many).await?.told());
    few_server.stop()?;
    many_server.stop()?;
    let (server, restart) = Server::start(&options.windlass, many_data.path()).await?;
    figures.push(
        Figure {
            what: format!("lanes: ready after a restart with {many} tasks"),
            value: restart.as_secs_f64(),
            unit: "s",
            bar: Bar::None,
            behind: format!("{:.0} MiB, at most {:.0} MiB", server.resident_mib()?, server.peak_mib()?),
        }
        .told(),
    );
    server.stop()?;
    figures.push(keys(options).await?.told());
    Ok(figures)
}

/// Adds tasks, and says what memory that took: at most, and after each tenth of them.
async fn fill(server: &Server, count: u64) -> anyhow::Result<[Figure; 2]> {
    const PARTS: u64 = 10;
    let empty = server.resident_mib()?;
    let mut after_part = Vec::new();
    let began = Instant::now();
    for part in 0..PARTS {
        add(&server.client, count * part / PARTS..count * (part + 1) / PARTS, KEYS).await?;
        after_part.push(format!("{:.0}", server.resident_mib()?));
    }
    let seconds = began.elapsed().as_secs_f64();
    server.settle().await?;
    let memory = Figure {
        what: format!("lanes: most memory ever while {count} tasks of {KEYS} keys are added"),
        value: server.peak_mib()?,
        unit: "MiB",
        bar: Bar::AtMost(512.0),
        behind: format!(
            "{empty:.0} MiB empty, after each tenth {}, and then {:.0} MiB at rest",
            after_part.join(", "),
            server.resident_mib()?
        ),
    };
    let added = Figure {
        what: format!("lanes: {count} tasks added by the thousand, {REQUESTS_AT_ONCE} requests at once"),
        value: count as f64 / seconds,
        unit: "tasks/s",
        bar: Bar::None,
        behind: format!("in {seconds:.0} s"),
    };
    Ok([memory.told(), added.told()])
}

/// Reserve and complete, alternately with few and with many tasks waiting; what was taken is added again.
async fn dispatch(few: &Server, many: &Server, count: u64) -> anyhow::Result<Figure> {
    let mut times_us = [Vec::new(), Vec::new()];
    let strategy = format!("Lane({LANE})");
    for _ in 0..ROUNDS {
        for (server, times_us) in [few, many].into_iter().zip(&mut times_us) {
            let done = load::consume(&server.client, CONSUMERS, Mode::OneByOne, &strategy, ROUND).await?;
            times_us.push(done.seconds * 1e6 / done.chunks as f64);
            add(&server.client, 0..done.chunks, KEYS).await?;
        }
    }
    let [few_us, many_us] = times_us.map(median);
    Ok(Figure {
        what: format!("lanes: reserve + complete, {CONSUMERS} consumers: {count} : {FEW} tasks waiting"),
        value: many_us / few_us,
        unit: "×",
        bar: Bar::AtMost(1.5),
        behind: format!("{many_us:.1} µs : {few_us:.1} µs a task (medians of {ROUNDS} rounds, alternately)"),
    })
}

/// Clients that add one task, wait until it is acknowledged, and add the next.
async fn one_by_one(server: &Server, seconds: u64) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for door in ["HTTP", "the socket"] {
        let (began, end) = (Instant::now(), Instant::now() + Duration::from_secs(seconds));
        let clients: Vec<_> = (0..CONSUMERS as u64)
            .map(|nth| {
                let client = server.client.clone();
                match door {
                    "HTTP" => tokio::spawn(add_by_http(client, nth, end)),
                    _ => tokio::spawn(add_by_socket(client, nth, end)),
                }
            })
            .collect();
        let mut added = 0;
        for client in clients {
            added += client.await??;
        }
        let figure = Figure {
            what: format!("lanes: added one by one over {door}, {CONSUMERS} clients"),
            value: added as f64 / began.elapsed().as_secs_f64(),
            unit: "tasks/s",
            bar: Bar::None,
            behind: "each is fsynced before it is acknowledged".into(),
        };
        figures.push(figure.told());
    }
    Ok(figures)
}

async fn add_by_http(client: Client, nth: u64, end: Instant) -> anyhow::Result<u64> {
    let mut added = 0;
    while Instant::now() < end {
        client.add_tasks(LANE, vec![task(nth, KEYS)]).await?;
        added += 1;
    }
    Ok(added)
}

async fn add_by_socket(client: Client, nth: u64, end: Instant) -> anyhow::Result<u64> {
    let mut socket = ConsumeSocket::connect(&client, "producer", None).await?.0;
    let mut added = 0;
    while Instant::now() < end {
        let TaskRequest { key, payload, .. } = task(nth, KEYS);
        let task = TaskToAdd { key, payload: payload.map(|it| it.0.into()), ..TaskToAdd::default() };
        let (lane, tasks) = (LANE.to_owned(), vec![task]);
        socket.send(&ClientFrame::Add { request: added, lane, tasks, idempotency_key: None }).await?;
        match socket.receive().await? {
            Some(ServerFrame::Added { .. }) => added += 1,
            other => anyhow::bail!("an add was answered with {other:?}"),
        }
    }
    Ok(added)
}

/// A million keys with one task each.
async fn keys(options: &Options) -> anyhow::Result<Figure> {
    const MANY_KEYS: u64 = 1_000_000;
    let data = data_folder()?;
    let (server, _) = Server::start(&options.windlass, data.path()).await?;
    server.client.create_lane(LANE).await?;
    // The tables' caches and memtables fill up with the first tasks; after that only keys cost memory.
    add(&server.client, 0..3 * MANY_KEYS, 1_000).await?;
    server.settle().await?;
    let before = server.resident_bytes()?;
    add(&server.client, 0..MANY_KEYS, MANY_KEYS).await?;
    server.settle().await?;
    let each = (server.resident_bytes()? - before) / (MANY_KEYS - 1_000) as f64;
    server.stop()?;
    Ok(Figure {
        what: format!("lanes: memory for each of {MANY_KEYS} keys with a backlog"),
        value: each,
        unit: "bytes",
        bar: Bar::AtMost(100.0),
        behind: "the growth from 1,000 keys to all".into(),
    })
}
