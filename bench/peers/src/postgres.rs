//! PostgreSQL: a table of jobs, taken with `FOR UPDATE SKIP LOCKED`.

use crate::process::{self, Process};
use crate::system::{Kind, Mode, Numbers, Runner, Server, System, Tally, Work, numbers};
use anyhow::Context;
use async_trait::async_trait;
use futures_util::SinkExt;
use rustix::process::Signal;
use std::fs;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, NoTls, Statement};

/// A way of consuming.
struct Way {
    name: &'static str,
    /// The transaction stays open while the job runs: one commit, but a connection for each job that runs. Otherwise the
    /// reservation is a commit of its own, and so is the completion: a job can take as long as it likes.
    is_held: bool,
    /// Consumers share this many connections.
    pool: Option<usize>,
    /// Jobs taken by one statement.
    batch: i64,
}

/// Fewer, busier connections: what a pooler in front of the server is for.
const POOL: usize = 32;

const ONE_BY_ONE: [Way; 4] = [
    Way { name: "one transaction", is_held: true, pool: None, batch: 1 },
    Way { name: "two commits", is_held: false, pool: None, batch: 1 },
    Way { name: "one transaction, 32 connections", is_held: true, pool: Some(POOL), batch: 1 },
    Way { name: "two commits, 32 connections", is_held: false, pool: Some(POOL), batch: 1 },
];

const RECOMMENDED: [Way; 5] = [
    Way { name: "one transaction of 100", is_held: true, pool: None, batch: 100 },
    Way { name: "one transaction of 500", is_held: true, pool: None, batch: 500 },
    Way { name: "two commits of 100", is_held: false, pool: None, batch: 100 },
    Way { name: "one transaction of 100, 32 connections", is_held: true, pool: Some(POOL), batch: 100 },
    Way { name: "one transaction of 500, 32 connections", is_held: true, pool: Some(POOL), batch: 500 },
];

/// A commit for each, on a connection of its own.
const INSERT_EACH: [Way; 1] = [Way { name: "INSERT", is_held: true, pool: None, batch: 1 }];

fn ways(mode: Mode) -> &'static [Way] {
    match mode {
        Mode::Add => &INSERT_EACH,
        Mode::OneByOne => &ONE_BY_ONE,
        Mode::Recommended => &RECOMMENDED,
    }
}

const COPY: &str = "COPY";
/// Rows of one piece of the COPY stream.
const COPY_ROWS: u64 = 1_000;

/// Everything that departs from the defaults. Durability is as the defaults have it, and is said all the same.
const SETTINGS: [(&str, &str); 18] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("max_connections", "1100"),
    ("shared_buffers", "512MB"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("wal_buffers", "16MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "15min"),
    ("jit", "off"),
    ("autovacuum", "on"),
    ("autovacuum_naptime", "1s"),
    ("autovacuum_vacuum_cost_delay", "0"),
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("logging_collector", "off"),
    ("random_page_cost", "1.1"),
];

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL,
        taken boolean NOT NULL DEFAULT false
    ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)";

/// For the reservations that are commits of their own: what is taken is out of sight at once.
const PARTIAL_INDEX: &str = "CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (id) WHERE NOT taken";

const INSERT: &str = "INSERT INTO jobs (key) VALUES ($1)";

const TAKE: &str = "
    UPDATE jobs SET taken = true
    WHERE id = ANY (ARRAY(
        SELECT id FROM jobs WHERE NOT taken ORDER BY id FOR UPDATE SKIP LOCKED LIMIT $1))
    RETURNING id, key";
const DONE: &str = "DELETE FROM jobs WHERE id = ANY ($1)";
const TAKE_AND_DELETE: &str = "
    DELETE FROM jobs
    WHERE id = ANY (ARRAY(
        SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT $1))
    RETURNING id, key";

pub(crate) struct Postgres;

#[async_trait]
impl System for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn version(&self) -> anyhow::Result<String> {
        process::version(&binary("postgres")?, "--version")
    }

    fn ways(&self, kind: Kind, clients: usize) -> Vec<&'static str> {
        let ways = ways(kind.mode).iter().filter(|it| it.pool.is_none_or(|pool| pool < clients));
        ways.map(|it| it.name).collect()
    }

    fn lasting(&self, kind: Kind) -> u64 {
        if kind.mode == Mode::Recommended { 4 } else { 1 }
    }

    fn ways_in(&self, _work: Work) -> Vec<&'static str> {
        vec![COPY]
    }

    async fn start(&self, data: &Path) -> anyhow::Result<Box<dyn Server>> {
        let account = Account::find()?;
        account.own(data)?;
        if !data.join("PG_VERSION").exists() {
            let mut command = account.command(&binary("initdb")?);
            command.args(["-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C", "-D"]).arg(data);
            let output = command.output()?;
            anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let port = process::free_port()?;
        let mut command = account.command(&binary("postgres")?);
        command.arg("-D").arg(data).args(["-p", &port.to_string()]);
        for (name, value) in SETTINGS {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // Its fast shutdown: running transactions are rolled back.
        let mut process = Process::start(command, data, Signal::INT)?;
        let client = process.ready(|| connect(port)).await?;
        client.batch_execute(SCHEMA).await?;
        Ok(Box::new(Running { process, port, client }))
    }
}

/// The account that the server runs under: it refuses to be root.
struct Account {
    ids: Option<(u32, u32)>,
}

impl Account {
    fn find() -> anyhow::Result<Account> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account { ids: None });
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        let line = accounts.lines().find(|it| it.starts_with("postgres:"));
        let line = line.context("there is no account `postgres`; `sh bench/peers/install` makes it")?;
        let fields: Vec<&str> = line.split(':').collect();
        Ok(Account { ids: Some((fields[2].parse()?, fields[3].parse()?)) })
    }

    fn own(&self, folder: &Path) -> anyhow::Result<()> {
        let Some((user, group)) = self.ids else { return Ok(()) };
        std::os::unix::fs::chown(folder, Some(user), Some(group))?;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.own(&path)?
            } else {
                std::os::unix::fs::chown(&path, Some(user), Some(group))?
            }
        }
        Ok(())
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group).current_dir("/");
        }
        command
    }
}

/// The newest installed version's program.
fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").map(|it| it.flatten().map(|it| it.path()).collect());
    let mut versions: Vec<PathBuf> = versions.unwrap_or_default();
    versions.sort();
    let found = versions.into_iter().rev().map(|it| it.join("bin").join(name)).find(|it| it.exists());
    found.with_context(|| format!("there is no {name}; `sh bench/peers/install` installs the peers"))
}

async fn connect(port: u16) -> anyhow::Result<Client> {
    let settings = format!("host=127.0.0.1 port={port} user=bench dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
    // It ends with its client; a failure comes back through the client's calls too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

struct Running {
    process: Process,
    port: u16,
    client: Client,
}

#[async_trait]
impl Server for Running {
    fn process(&self) -> &Process {
        &self.process
    }

    async fn fill(&self, work: Work, _way: &str, chunks: u64, _until: Instant) -> anyhow::Result<u64> {
        let sink = self.client.copy_in("COPY jobs (key) FROM STDIN").await?;
        let mut sink = std::pin::pin!(sink);
        for first in (0..chunks).step_by(COPY_ROWS as usize) {
            let numbers = first..chunks.min(first + COPY_ROWS);
            let rows: String = numbers.map(|nth| work.payload(nth) + "\n").collect();
            sink.send(bytes::Bytes::from(rows)).await?;
        }
        Ok(sink.finish().await?)
    }

    async fn clients(&self, kind: Kind, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let Kind { work, mode } = kind;
        let way = ways(mode).iter().find(|it| it.name == way).context("there is no such way")?;
        let index = if way.is_held { "DROP INDEX IF EXISTS jobs_ready" } else { PARTIAL_INDEX };
        self.client.batch_execute(index).await?;
        self.client.batch_execute("VACUUM ANALYZE jobs").await?;
        if mode == Mode::Add {
            return self.adders(work, count).await;
        }
        let mut connections = Vec::new();
        for _ in 0..way.pool.unwrap_or(count) {
            connections.push(Connection::open(self.port, way.is_held).await?);
        }
        let pools: Vec<Arc<Pool>> = if way.pool.is_some() {
            vec![Arc::new(Pool::new(connections))]
        } else {
            connections.into_iter().map(|it| Arc::new(Pool::new(vec![it]))).collect()
        };
        let worker =
            |pool: &Arc<Pool>| Worker { pool: pool.clone(), work, max: way.batch, is_held: way.is_held };
        Ok(pools.iter().cycle().take(count).map(|pool| Box::new(worker(pool)) as Box<dyn Runner>).collect())
    }
}

impl Running {
    async fn adders(&self, work: Work, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
        let mut adders: Vec<Box<dyn Runner>> = Vec::new();
        for nth in 0..count {
            let client = connect(self.port).await?;
            let insert = client.prepare(INSERT).await?;
            adders.push(Box::new(Adder { client, insert, numbers: numbers(nth, count), work }));
        }
        Ok(adders)
    }
}

/// Inserts one row and waits for the commit.
struct Adder {
    client: Client,
    insert: Statement,
    numbers: Numbers,
    work: Work,
}

#[async_trait]
impl Runner for Adder {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        self.client.execute(&self.insert, &[&self.work.payload(nth)]).await?;
        tally.completed(began);
        Ok(true)
    }
}

/// A connection with its statements prepared.
struct Connection {
    client: Client,
    take: Statement,
    done: Statement,
}

impl Connection {
    async fn open(port: u16, is_held: bool) -> anyhow::Result<Connection> {
        let client = connect(port).await?;
        let take = client.prepare(if is_held { TAKE_AND_DELETE } else { TAKE }).await?;
        let done = client.prepare(DONE).await?;
        Ok(Connection { client, take, done })
    }

    /// Takes jobs with what each is about, and gives their ids.
    async fn take(&self, work: Work, max: i64) -> anyhow::Result<Vec<i64>> {
        let rows = self.client.query(&self.take, &[&max]).await?;
        for row in &rows {
            work.check(row.get::<_, &str>(1).len())?;
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Connections that consumers take turns on.
struct Pool {
    free: Semaphore,
    connections: Mutex<Vec<Connection>>,
}

impl Pool {
    fn new(connections: Vec<Connection>) -> Pool {
        Pool { free: Semaphore::new(connections.len()), connections: Mutex::new(connections) }
    }

    async fn lease(&self) -> anyhow::Result<Lease<'_>> {
        let _permit = self.free.acquire().await?;
        let connection = self.connections.lock().expect("nobody panics with it").pop();
        Ok(Lease { connection, pool: self, _permit })
    }
}

/// A connection in use; it goes back when dropped, before its permit does.
struct Lease<'a> {
    connection: Option<Connection>,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Deref for Lease<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a permit stands for a connection")
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.connections.lock().expect("nobody panics with it").extend(self.connection.take());
    }
}

struct Worker {
    pool: Arc<Pool>,
    work: Work,
    max: i64,
    is_held: bool,
}

impl Worker {
    /// Takes, and keeps the transaction open until the work is done.
    async fn one_transaction(&self, tally: &mut Tally, began: Instant) -> anyhow::Result<u64> {
        let it = self.pool.lease().await?;
        // Both go out together.
        let begin = async { Ok(it.client.batch_execute("BEGIN").await?) };
        let ((), ids) = tokio::try_join!(begin, it.take(self.work, self.max))?;
        tally.reserved(began);
        it.client.batch_execute("COMMIT").await?;
        Ok(ids.len() as u64)
    }

    /// Takes in one commit, and deletes in another.
    async fn two_commits(&self, tally: &mut Tally, began: Instant) -> anyhow::Result<u64> {
        let ids = self.pool.lease().await?.take(self.work, self.max).await?;
        tally.reserved(began);
        if ids.is_empty() {
            return Ok(0);
        }
        let it = self.pool.lease().await?;
        Ok(it.client.execute(&it.done, &[&ids]).await?)
    }
}

#[async_trait]
impl Runner for Worker {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let began = Instant::now();
        let done = if self.is_held {
            self.one_transaction(tally, began).await?
        } else {
            self.two_commits(tally, began).await?
        };
        match done {
            0 => return Ok(false),
            1 => tally.completed(began),
            many => tally.chunks += many,
        }
        Ok(true)
    }
}
