//! NATS JetStream: a work-queue stream, one durable pull consumer with explicit acknowledgement that all workers share.

use crate::process::{self, Process};
use crate::system::{Kind, Mode, Numbers, Runner, Server, System, Tally, Work, numbers};
use anyhow::Context as _;
use async_nats::jetstream::consumer::pull::Config as PullConfig;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::stream::{Config as StreamConfig, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const STREAM: &str = "JOBS";
const CONSUMER: &str = "workers";
const SUBJECT: &str = "jobs";
/// Messages of one fetch in the recommended mode, and of all fetches together: each is acknowledged with a sync of its own, so
/// what a thousand consumers hold in full batches would take longer than a measurement lasts.
const BATCH_MAX: usize = 200;
const HELD_MAX: usize = 5_000;
/// Publishes waiting for their acknowledgement when filling.
const FILL_AT_ONCE: usize = 1_000;
/// Messages of one atomic batch, the most that the server takes.
const ATOMIC_BATCH: u64 = 1_000;

/// The clients' own limits are shorter than what a thousand consumers have to wait for each other.
const TIMEOUT: Duration = Duration::from_secs(60);

const OWN_CONNECTION: &str = "own connection";
const SHARED: &str = "8 connections";
const SHARED_CONNECTIONS: usize = 8;
const ASYNC_PUBLISH: &str = "async publish";
const ATOMIC_PUBLISH: &str = "atomic batches of 1,000";

pub(crate) struct Nats {
    pub(crate) binary: PathBuf,
}

#[async_trait]
impl System for Nats {
    fn name(&self) -> &'static str {
        "NATS JetStream"
    }

    fn version(&self) -> anyhow::Result<String> {
        process::version(&self.binary, "--version")
    }

    fn ways(&self, _kind: Kind, clients: usize) -> Vec<&'static str> {
        if clients > SHARED_CONNECTIONS { vec![OWN_CONNECTION, SHARED] } else { vec![OWN_CONNECTION] }
    }

    fn ways_in(&self, _work: Work) -> Vec<&'static str> {
        vec![ASYNC_PUBLISH, ATOMIC_PUBLISH]
    }

    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>> {
        let port = process::free_port()?;
        let config = data.with_extension("conf");
        std::fs::write(
            &config,
            format!(
                "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n",
                data.display()
            ),
        )?;
        let mut command = Command::new(&self.binary);
        command.arg("-c").arg(&config);
        let mut process = Process::start(command, data, Signal::TERM)?;
        let url = format!("127.0.0.1:{port}");
        let client = process.ready(|| connect(&url)).await?;
        let context = jetstream::new(client.clone());
        let stream = context
            .get_or_create_stream(StreamConfig {
                name: STREAM.into(),
                subjects: vec![SUBJECT.into()],
                retention: RetentionPolicy::WorkQueue,
                storage: StorageType::File,
                allow_atomic_publish: true,
                ..StreamConfig::default()
            })
            .await?;
        stream
            .get_or_create_consumer(
                CONSUMER,
                PullConfig {
                    durable_name: Some(CONSUMER.into()),
                    ack_policy: AckPolicy::Explicit,
                    ack_wait: Duration::from_secs(600),
                    // The defaults, 1,000 and 512, would stop a thousand consumers.
                    max_ack_pending: -1,
                    max_waiting: 20_000,
                    ..PullConfig::default()
                },
            )
            .await?;
        Ok(Box::new(Running { process, url, client, context }))
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let options = async_nats::ConnectOptions::new().request_timeout(Some(TIMEOUT));
    Ok(options.connect(url).await?)
}

/// The streams behind a connection, with time enough for an answer.
fn patient(client: Client) -> Context {
    let mut context = jetstream::new(client);
    context.set_timeout(TIMEOUT);
    context
}

struct Running {
    process: Process,
    url: String,
    client: Client,
    context: Context,
}

#[async_trait]
impl Server for Running {
    fn process(&self) -> &Process {
        &self.process
    }

    async fn fill(&self, work: Work, way: &str, chunks: u64, until: Instant) -> anyhow::Result<u64> {
        let in_time = |_: &u64| std::future::ready(Instant::now() < until);
        if way == ATOMIC_PUBLISH {
            let batches = stream::iter((0..chunks).step_by(ATOMIC_BATCH as usize)).take_while(in_time);
            let filled =
                batches.map(|first| self.atomic_batch(work, first, ATOMIC_BATCH.min(chunks - first)));
            return filled.buffered(4).try_fold(0, async |sum, batch| Ok(sum + batch)).await;
        }
        let published = stream::iter(0..chunks).take_while(in_time).map(|nth| async move {
            self.context.publish(SUBJECT, work.payload(nth).into()).await?.await?;
            anyhow::Ok(())
        });
        published.buffered(FILL_AT_ONCE).try_fold(0, async |sum, ()| Ok(sum + 1)).await
    }

    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let Kind { work, mode } = kind;
        let connections = if way == SHARED { SHARED_CONNECTIONS } else { count };
        let connected: Vec<Client> =
            stream::iter(0..connections).then(|_| connect(&self.url)).try_collect().await?;
        let mut clients: Vec<Box<dyn Runner>> = Vec::new();
        for nth in 0..count {
            let client = connected[nth % connections].clone();
            clients.push(match mode {
                Mode::Add => {
                    let context = patient(client);
                    Box::new(Adder { context, numbers: numbers(nth, count), work })
                }
                Mode::OneByOne => {
                    let inbox = client.new_inbox();
                    let inbound = client.subscribe(inbox.clone()).await?;
                    Box::new(OneByOne { client, work, inbox, inbound })
                }
                Mode::Recommended => {
                    let consumer = patient(client).get_consumer_from_stream(CONSUMER, STREAM).await?;
                    let batch = BATCH_MAX.min(HELD_MAX / count);
                    Box::new(Batched { consumer, work, batch, held: Vec::new() })
                }
            });
        }
        Ok(clients)
    }
}

impl Running {
    /// Messages of one batch that is stored as a whole or not at all; only the last is acknowledged.
    async fn atomic_batch(&self, work: Work, first: u64, count: u64) -> anyhow::Result<u64> {
        let batch = format!("batch-{first}");
        for nth in 0..count {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Batch-Id", batch.as_str());
            headers.insert("Nats-Batch-Sequence", (nth + 1).to_string());
            let payload = work.payload(first + nth).into();
            if nth + 1 < count {
                self.client.publish_with_headers(SUBJECT, headers, payload).await?;
            } else {
                headers.insert("Nats-Batch-Commit", "1");
                let answer = self.client.request_with_headers(SUBJECT, headers, payload).await?;
                let text = String::from_utf8_lossy(&answer.payload);
                anyhow::ensure!(!text.contains("\"error\""), "a batch was answered with {text}");
            }
        }
        Ok(count)
    }
}

/// Publishes one message and waits until it is stored.
struct Adder {
    context: Context,
    numbers: Numbers,
    work: Work,
}

#[async_trait]
impl Runner for Adder {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        self.context.publish(SUBJECT, self.work.payload(nth).into()).await?.await?;
        tally.completed(began);
        Ok(true)
    }
}

/// Asks for one message and waits until its acknowledgement is acknowledged.
struct OneByOne {
    client: Client,
    work: Work,
    inbox: String,
    inbound: Subscriber,
}

#[async_trait]
impl Runner for OneByOne {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let began = Instant::now();
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}");
        let ask = r#"{"batch":1,"no_wait":true}"#.into();
        self.client.publish_with_reply(next, self.inbox.clone(), ask).await?;
        let message = self.inbound.next().await.context("the server closed")?;
        if message.status == Some(StatusCode::NOT_FOUND) {
            return Ok(false);
        }
        anyhow::ensure!(message.status.is_none(), "a pull was answered with {message:?}");
        tally.reserved(began);
        self.work.check(message.payload.len())?;
        let reply = message.reply.context("a message of a stream has a reply subject")?;
        self.client.request(reply, "+ACK".into()).await?;
        tally.completed(began);
        Ok(true)
    }
}

/// Acknowledges a batch, waiting only for the last of it, while the next batch is fetched.
struct Batched {
    consumer: PullConsumer,
    work: Work,
    batch: usize,
    held: Vec<jetstream::Message>,
}

impl Batched {
    async fn fetch(&self) -> anyhow::Result<Vec<jetstream::Message>> {
        let messages = self.consumer.fetch().max_messages(self.batch).messages().await?;
        messages.try_collect().await.map_err(|error| anyhow::anyhow!("a fetch failed: {error}"))
    }

    async fn acknowledge(&self) -> anyhow::Result<u64> {
        let Some((last, others)) = self.held.split_last() else { return Ok(0) };
        for message in others {
            message.ack().await.map_err(|error| anyhow::anyhow!("an acknowledgement failed: {error}"))?;
        }
        last.double_ack().await.map_err(|error| anyhow::anyhow!("an acknowledgement failed: {error}"))?;
        Ok(self.held.len() as u64)
    }
}

#[async_trait]
impl Runner for Batched {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let (acknowledged, fetched) = tokio::try_join!(self.acknowledge(), self.fetch())?;
        tally.chunks += acknowledged;
        for message in &fetched {
            self.work.check(message.payload.len())?;
        }
        self.held = fetched;
        Ok(!self.held.is_empty())
    }
}
