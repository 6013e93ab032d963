//! Redis streams: a consumer group; an entry that is done is acknowledged and deleted.

use crate::process::{self, Process};
use crate::system::{Kind, Mode, Numbers, ONE_EXCHANGE, Runner, Server, System, Tally, Work, numbers};
use anyhow::Context;
use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Client, Pipeline, Value};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const STREAM: &str = "jobs";
const GROUP: &str = "workers";
/// The field of an entry that holds what it is about.
const FIELD: &str = "key";
/// What one XREADGROUP asks for in the recommended mode.
const BATCH: usize = 100;
const LARGE_BATCH: usize = 500;
const BY_BATCH: &str = "COUNT 100";
const BY_LARGE_BATCH: &str = "COUNT 500";
/// Entries of one pipeline when filling.
const FILL_BATCH: u64 = 1_000;

pub(crate) struct Redis;

#[async_trait]
impl System for Redis {
    fn name(&self) -> &'static str {
        "Redis streams"
    }

    fn version(&self) -> anyhow::Result<String> {
        process::version(Path::new("redis-server"), "--version")
    }

    fn ways(&self, kind: Kind, _clients: usize) -> Vec<&'static str> {
        match kind.mode {
            Mode::Add => vec!["XADD"],
            Mode::OneByOne => vec!["COUNT 1", ONE_EXCHANGE],
            Mode::Recommended => vec![BY_BATCH, BY_LARGE_BATCH],
        }
    }

    fn lasting(&self, kind: Kind) -> u64 {
        if kind.mode == Mode::Recommended { 4 } else { 1 }
    }

    fn ways_in(&self, _work: Work) -> Vec<&'static str> {
        vec!["pipelined XADD"]
    }

    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>> {
        let port = process::free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(data).args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--maxclients",
            "4096",
        ]);
        let mut process = Process::start(command, data, Signal::TERM)?;
        let client = Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let connection = process
            .ready(|| async {
                let mut connection = connect(&client).await?;
                // It answers otherwise while it reads its file.
                let _: String = redis::cmd("PING").query_async(&mut connection).await?;
                Ok(connection)
            })
            .await?;
        let mut group = connection.clone();
        // A folder that was used before has the group already.
        let _: Result<String, _> = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(STREAM)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM")
            .query_async(&mut group)
            .await;
        Ok(Box::new(Running { process, client, connection }))
    }
}

async fn connect(client: &Client) -> anyhow::Result<MultiplexedConnection> {
    // Without its default limit of half a second: a thousand consumers share one server.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

struct Running {
    process: Process,
    client: Client,
    connection: MultiplexedConnection,
}

#[async_trait]
impl Server for Running {
    fn process(&self) -> &Process {
        &self.process
    }

    async fn fill(&self, work: Work, _way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64> {
        let mut connection = self.connection.clone();
        let mut filled = 0;
        while filled < chunks && Instant::now() < until {
            let batch = FILL_BATCH.min(chunks - filled);
            let mut pipeline = Pipeline::with_capacity(batch as usize);
            for nth in filled..filled + batch {
                pipeline.add_command(add(work, nth)).ignore();
            }
            let () = pipeline.query_async(&mut connection).await?;
            filled += batch;
        }
        Ok(filled)
    }

    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let Kind { work, mode } = kind;
        let mut clients: Vec<Box<dyn Runner>> = Vec::new();
        for nth in 0..count {
            let connection = connect(&self.client).await.context("connecting a client")?;
            if mode == Mode::Add {
                clients.push(Box::new(Adder { connection, numbers: numbers(nth, count), work }));
                continue;
            }
            let group = Group { connection, work, name: format!("consumer-{nth}") };
            let batch = match way {
                ONE_EXCHANGE => 1,
                BY_BATCH => BATCH,
                _ => LARGE_BATCH,
            };
            clients.push(if mode == Mode::OneByOne && way != ONE_EXCHANGE {
                Box::new(OneByOne(group))
            } else {
                Box::new(Batched { group, count: batch, held: Vec::new() })
            });
        }
        Ok(clients)
    }
}

fn add(work: Work, nth: u64) -> redis::Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(STREAM).arg("*").arg(FIELD).arg(work.payload(nth));
    command
}

struct Adder {
    connection: MultiplexedConnection,
    numbers: Numbers,
    work: Work,
}

#[async_trait]
impl Runner for Adder {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        let _id: String = add(self.work, nth).query_async(&mut self.connection).await?;
        tally.completed(began);
        Ok(true)
    }
}

struct Group {
    connection: MultiplexedConnection,
    work: Work,
    name: String,
}

impl Group {
    fn read(&self, pipeline: &mut Pipeline, count: usize) {
        let read = pipeline.cmd("XREADGROUP").arg("GROUP").arg(GROUP).arg(&self.name);
        read.arg("COUNT").arg(count).arg("STREAMS").arg(STREAM).arg(">");
    }

    fn done(pipeline: &mut Pipeline, ids: &[String]) {
        pipeline.cmd("XACK").arg(STREAM).arg(GROUP).arg(ids);
        pipeline.cmd("XDEL").arg(STREAM).arg(ids);
    }
}

/// The ids of what came, with what is in each looked at.
fn ids(work: Work, reply: Option<StreamReadReply>) -> anyhow::Result<Vec<String>> {
    let keys = reply.map(|it| it.keys).unwrap_or_default();
    let entries = keys.into_iter().flat_map(|it| it.ids).map(|entry| {
        match entry.map.get(FIELD) {
            Some(Value::BulkString(payload)) => work.check(payload.len())?,
            other => anyhow::bail!("an entry came with {other:?}"),
        }
        Ok(entry.id)
    });
    entries.collect()
}

fn all_counted(reply: u64, ids: usize) -> anyhow::Result<()> {
    anyhow::ensure!(reply == ids as u64, "{reply} of {ids} were acknowledged");
    Ok(())
}

struct OneByOne(Group);

#[async_trait]
impl Runner for OneByOne {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let began = Instant::now();
        let mut read = Pipeline::with_capacity(1);
        self.0.read(&mut read, 1);
        let (reply,): (Option<StreamReadReply>,) = read.query_async(&mut self.0.connection).await?;
        let ids = ids(self.0.work, reply)?;
        if ids.is_empty() {
            return Ok(false);
        }
        tally.reserved(began);
        let mut done = Pipeline::with_capacity(2);
        Group::done(&mut done, &ids);
        let (acknowledged, _deleted): (u64, u64) = done.query_async(&mut self.0.connection).await?;
        all_counted(acknowledged, ids.len())?;
        tally.completed(began);
        Ok(true)
    }
}

/// Reports a batch and reads the next in one round trip.
struct Batched {
    group: Group,
    count: usize,
    held: Vec<String>,
}

#[async_trait]
impl Runner for Batched {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let mut pipeline = Pipeline::with_capacity(3);
        if self.held.is_empty() {
            self.group.read(&mut pipeline, self.count);
            let (reply,): (Option<StreamReadReply>,) =
                pipeline.query_async(&mut self.group.connection).await?;
            self.held = ids(self.group.work, reply)?;
            return Ok(!self.held.is_empty());
        }
        Group::done(&mut pipeline, &self.held);
        self.group.read(&mut pipeline, self.count);
        let (acknowledged, _deleted, reply): (u64, u64, Option<StreamReadReply>) =
            pipeline.query_async(&mut self.group.connection).await?;
        all_counted(acknowledged, self.held.len())?;
        tally.chunks += acknowledged;
        self.held = ids(self.group.work, reply)?;
        Ok(!self.held.is_empty())
    }
}
