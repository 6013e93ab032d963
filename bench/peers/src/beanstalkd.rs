//! beanstalkd: its text protocol, spoken by hand.

use crate::process::{self, Process};
use crate::system::{Kind, Mode, Numbers, ONE_EXCHANGE, Runner, Server, System, Tally, Work, numbers};
use anyhow::{Context, bail};
use async_trait::async_trait;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Reserves and deletes of one consumer on the way in the recommended mode.
const PIPELINE: usize = 100;
/// Puts on the way when filling.
const FILL_BATCH: u64 = 1_000;
/// A job that is reserved goes back after so long.
const RUN_SECONDS: u32 = 600;

pub(crate) struct Beanstalkd;

#[async_trait]
impl System for Beanstalkd {
    fn name(&self) -> &'static str {
        "beanstalkd"
    }

    fn version(&self) -> anyhow::Result<String> {
        process::version(Path::new("beanstalkd"), "-v")
    }

    fn ways(&self, kind: Kind, _clients: usize) -> Vec<&'static str> {
        match kind.mode {
            Mode::Add => vec!["put"],
            Mode::OneByOne => vec!["two exchanges", ONE_EXCHANGE],
            Mode::Recommended => vec!["pipelined"],
        }
    }

    fn ways_in(&self, _work: Work) -> Vec<&'static str> {
        vec!["pipelined puts"]
    }

    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>> {
        run(data, &["-f", "0"]).await
    }

    /// A sync for each put would make filling the longest part of the run.
    async fn start_unsynced(&self, data: &Path) -> anyhow::Result<Option<Box<dyn Server>>> {
        Ok(Some(run(data, &["-F"]).await?))
    }
}

async fn run(data: &Path, sync: &[&str]) -> anyhow::Result<Box<dyn Server>> {
    let port = process::free_port()?;
    let mut command = Command::new("beanstalkd");
    command.args(["-l", "127.0.0.1", "-p", &port.to_string()]).args(sync).arg("-b").arg(data);
    let mut process = Process::start(command, data, Signal::TERM)?;
    process.ready(|| Connection::open(port)).await?;
    Ok(Box::new(Running { process, port }))
}

struct Running {
    process: Process,
    port: u16,
}

#[async_trait]
impl Server for Running {
    fn process(&self) -> &Process {
        &self.process
    }

    async fn fill(&self, work: Work, _way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64> {
        let Connection { mut reader, mut writer } = Connection::open(self.port).await?;
        let mut filled = 0;
        while filled < chunks && Instant::now() < until {
            let batch = FILL_BATCH.min(chunks - filled);
            let mut puts = Vec::new();
            for nth in filled..filled + batch {
                puts.extend(put(work, nth).into_bytes());
            }
            // The server reads no further while its answers are not read.
            let (sent, received) = tokio::join!(writer.write_all(&puts), async {
                for _ in 0..batch {
                    inserted(&mut reader).await?;
                }
                anyhow::Ok(())
            });
            sent?;
            received?;
            filled += batch;
        }
        Ok(filled)
    }

    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let Kind { work, mode } = kind;
        let mut clients: Vec<Box<dyn Runner>> = Vec::new();
        for nth in 0..count {
            let connection = Connection::open(self.port).await?;
            clients.push(match mode {
                Mode::Add => Box::new(Adder { connection, numbers: numbers(nth, count), work }),
                Mode::OneByOne if way == ONE_EXCHANGE => Box::new(Pipelined::new(connection, work, 1)),
                Mode::OneByOne => Box::new(OneByOne { connection, work }),
                Mode::Recommended => Box::new(Pipelined::new(connection, work, PIPELINE)),
            });
        }
        Ok(clients)
    }
}

struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Connection {
    async fn open(port: u16) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Connection { reader: BufReader::new(reader), writer })
    }

    /// The id of a reserved job; none if there is none ready.
    async fn reserved(&mut self, work: Work) -> anyhow::Result<Option<u64>> {
        let line = line(&mut self.reader).await?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["RESERVED", id, bytes] => {
                let mut body = vec![0; bytes.parse::<usize>()? + 2];
                self.reader.read_exact(&mut body).await?;
                work.check(body.len() - 2)?;
                Ok(Some(id.parse()?))
            }
            ["TIMED_OUT"] => Ok(None),
            _ => bail!("a reserve was answered with {line}"),
        }
    }

    async fn deleted(&mut self) -> anyhow::Result<()> {
        let line = line(&mut self.reader).await?;
        anyhow::ensure!(line == "DELETED", "a delete was answered with {line}");
        Ok(())
    }
}

async fn line(reader: &mut BufReader<OwnedReadHalf>) -> anyhow::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    Ok(line.strip_suffix("\r\n").context("the server closed")?.to_owned())
}

fn put(work: Work, nth: u64) -> String {
    let body = work.payload(nth);
    format!("put 1024 0 {RUN_SECONDS} {}\r\n{body}\r\n", body.len())
}

async fn inserted(reader: &mut BufReader<OwnedReadHalf>) -> anyhow::Result<()> {
    let line = line(reader).await?;
    anyhow::ensure!(line.starts_with("INSERTED "), "a put was answered with {line}");
    Ok(())
}

struct Adder {
    connection: Connection,
    numbers: Numbers,
    work: Work,
}

#[async_trait]
impl Runner for Adder {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        self.connection.writer.write_all(put(self.work, nth).as_bytes()).await?;
        inserted(&mut self.connection.reader).await?;
        tally.completed(began);
        Ok(true)
    }
}

struct OneByOne {
    connection: Connection,
    work: Work,
}

#[async_trait]
impl Runner for OneByOne {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let began = Instant::now();
        self.connection.writer.write_all(b"reserve-with-timeout 0\r\n").await?;
        let Some(id) = self.connection.reserved(self.work).await? else { return Ok(false) };
        tally.reserved(began);
        self.connection.writer.write_all(format!("delete {id}\r\n").as_bytes()).await?;
        self.connection.deleted().await?;
        tally.completed(began);
        Ok(true)
    }
}

/// Deletes what it holds and reserves as much again, in one round trip.
struct Pipelined {
    connection: Connection,
    work: Work,
    count: usize,
    held: Vec<u64>,
}

impl Pipelined {
    const fn new(connection: Connection, work: Work, count: usize) -> Pipelined {
        Pipelined { connection, work, count, held: Vec::new() }
    }
}

#[async_trait]
impl Runner for Pipelined {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let mut commands: Vec<u8> = Vec::new();
        for id in &self.held {
            commands.extend(format!("delete {id}\r\n").into_bytes());
        }
        for _ in 0..self.count {
            commands.extend(b"reserve-with-timeout 0\r\n");
        }
        self.connection.writer.write_all(&commands).await?;
        for _ in std::mem::take(&mut self.held) {
            self.connection.deleted().await?;
            tally.chunks += 1;
        }
        for _ in 0..self.count {
            self.held.extend(self.connection.reserved(self.work).await?);
        }
        Ok(!self.held.is_empty())
    }
}
