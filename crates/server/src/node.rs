//! The node: puts the parts together, and takes them apart again in order.

use crate::clock::Clock;
use crate::config::Config;
use crate::http;
use crate::http::accept::AcceptOptions;
use crate::metrics;
use crate::roles::dispatcher::{Dispatcher, DispatcherHandle, Event};
use crate::roles::{Roles, clerk, committer, librarian, registrar, releveler};
use crate::service::Service;
use crate::threads::{ConsumerThreads, OwnThread};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use windlass_core::batch::reserver::LostTooOften;
use windlass_core::entry::{Command, Fail, FailedAttempt};
use windlass_core::ids::SubmissionId;
use windlass_order::{Order, OrderFault, OrderOptions};
use windlass_store::fault::StoreFault;
use windlass_store::folder::DataFolder;
use windlass_store::objects::Objects;
use windlass_store::tables::DiskTables;

/// A node alone has this id.
const NODE_ALONE: u64 = 1;

/// While draining, how often to look whether every report has come in.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How long connections may take to end once the doors are closed.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Losses that are put into the log in one go: what a few hundred vanished consumers held.
const LOSSES_AT_ONCE: usize = 1_000;

/// Why a node could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum NodeFault {
    /// A setting cannot be.
    #[error("{0}")]
    Config(String),
    /// The address cannot be listened on.
    #[error("could not listen on {address}: {source}; {}", advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The operating system gives no thread for the log.
    #[error("could not start a thread: {0}; raise the limit of threads and processes")]
    Thread(std::io::Error),
    /// The data folder or the object store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The log cannot go on.
    #[error(transparent)]
    Order(#[from] OrderFault),
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process has this port: stop it, or choose another with --listen"
        }
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need rights: choose another with --listen",
        _ => "choose an address of this machine with --listen",
    }
}

/// A running server.
pub struct Node {
    service: Service,
    address: SocketAddr,
    accepting: JoinHandle<()>,
    roles: Vec<JoinHandle<()>>,
    _threads: [OwnThread; 2],
    /// Until their conversations have ended.
    _consumers: Arc<ConsumerThreads>,
    _folder: DataFolder,
}

impl Node {
    /// Starts a server: opens its data, plays back its log, leads, and opens its doors.
    pub async fn start(config: Config) -> Result<Node, NodeFault> {
        if let Some(problem) = config.problem() {
            return Err(NodeFault::Config(problem));
        }
        metrics::recorder();
        raise_open_files();
        // The port is taken first: a second server on the same port must not even look at the data.
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|source| NodeFault::Listen { address: config.listen, source })?;
        let address =
            listener.local_addr().map_err(|source| NodeFault::Listen { address: config.listen, source })?;

        let folder = DataFolder::open(&config.data)?;
        let own_objects = || folder.objects().to_string_lossy().into_owned();
        let objects = Objects::open(&config.objects.clone().unwrap_or_else(own_objects))?;
        let tables = open_tables(&folder)?;
        let mut options = OrderOptions::new(NODE_ALONE, folder.log(), folder.snapshots());
        options.snapshot_every_entries = config.checkpoint_every_entries;
        let clock = Clock::start();
        let (notes_out, notes) = mpsc::unbounded_channel();
        let (roster_out, roster) = mpsc::unbounded_channel();
        let (errands_out, errands) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(clock, config.session_times(), notes_out, roster_out, errands_out);
        let dispatcher = DispatcherHandle::new(dispatcher);
        let ticking = dispatcher.clone().tick();
        let roles = Arc::new(Roles::new(dispatcher));
        let (commits_out, commits) = mpsc::unbounded_channel();
        roles.commit_desk.set_errands(commits_out);
        let told = Arc::clone(&roles);
        let thread = OwnThread::for_order().map_err(NodeFault::Thread)?;
        let commit_thread = OwnThread::for_commits().map_err(NodeFault::Thread)?;
        let opening = Order::open(options, tables, Box::new(move |event| told.tell(event)));
        let order = thread.run(opening).await?;

        let accept = AcceptOptions {
            header_timeout: Duration::from_millis(config.header_timeout_ms),
            keep_alive: Duration::from_millis(config.keep_alive_ms),
            connections_max: config.connections_max,
        };
        let service = Service::new(config, clock, order, roles, objects);
        let roles = vec![
            tokio::spawn(ticking),
            tokio::spawn(take_notes(service.clone(), notes)),
            tokio::spawn(registrar::run(service.clone(), roster)),
            tokio::spawn(clerk::run(service.clone(), errands)),
            tokio::spawn(releveler::run(service.clone())),
            commit_thread.spawn(committer::run(service.clone(), commits)),
            commit_thread.spawn(librarian::run(service.clone())),
        ];
        let router = http::router(service.clone());
        let consumers = Arc::new(ConsumerThreads::start().map_err(NodeFault::Thread)?);
        let stop = service.stop().clone();
        let accepting = http::accept::serve(listener, router, accept, Arc::clone(&consumers), stop);
        let accepting = tokio::spawn(accepting);
        let threads = [thread, commit_thread];
        Ok(Node {
            service,
            address,
            accepting,
            roles,
            _threads: threads,
            _consumers: consumers,
            _folder: folder,
        })
    }

    /// Where the doors are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the objects are.
    pub fn objects(&self) -> &str {
        self.service.objects().address()
    }

    /// Ends when the node cannot go on; it must be stopped then.
    pub fn fault(&self) -> impl Future<Output = OrderFault> + Send + 'static {
        self.service.order().fault()
    }

    /// Drains, then stops: hands out no more, gives consumers time to report, answers what is under way, closes the log.
    pub async fn stop(self) -> Result<(), NodeFault> {
        let Node { service, mut accepting, roles, .. } = self;
        service.drain();
        let drain = Duration::from_millis(service.config().drain_ms);
        let drained = async {
            while let Ok(status) = service.ask(Event::Status).await
                && status.out + status.tasks_out > 0
            {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        };
        if tokio::time::timeout(drain, drained).await.is_err() {
            tracing::warn!(
                "consumers did not report everything before the stop; what is missing will be handed out again"
            );
        }
        service.stop().cancel();
        service.conversations().close();
        let closed = async {
            drop((&mut accepting).await);
            service.conversations().wait().await;
        };
        if tokio::time::timeout(CLOSE_WAIT, closed).await.is_err() {
            accepting.abort();
        }
        let stopped = service.order().clone().shutdown().await;
        for role in roles {
            role.abort();
            // An aborted role ends with an error that says just that.
            drop(role.await);
        }
        Ok(stopped?)
    }
}

/// Opens the tables. Those that a power failure has torn are put aside: they are built anew from the newest snapshot and the
/// log, which hold everything acknowledged.
fn open_tables(folder: &DataFolder) -> Result<DiskTables, StoreFault> {
    let path = folder.tables();
    match DiskTables::open(&path) {
        Err(StoreFault::TablesTorn { .. }) => {
            let aside = folder.path().join("tables-torn");
            tracing::warn!(aside = %aside.display(), "a power failure has torn the tables; they are put aside and built anew");
            let moved = std::fs::remove_dir_all(&aside)
                .or_else(ignore_missing)
                .and_then(|()| std::fs::rename(&path, &aside));
            moved.map_err(|source| StoreFault::Io { action: "put aside", path: path.clone(), source })?;
            DiskTables::open(&path)
        }
        opened => opened,
    }
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Puts losses into the log that count as failed attempts, many at once.
async fn take_notes(service: Service, mut notes: mpsc::UnboundedReceiver<LostTooOften>) {
    let mut some = Vec::new();
    while notes.recv_many(&mut some, LOSSES_AT_ONCE).await > 0 {
        let mut by_submission: BTreeMap<SubmissionId, Vec<FailedAttempt>> = BTreeMap::new();
        for LostTooOften { chunk, attempt, losses } in some.drain(..) {
            let reason = format!("{losses} consumers vanished while they worked on this chunk");
            let failed = FailedAttempt { chunk: chunk.chunk, attempt, reason };
            by_submission.entry(chunk.submission).or_default().push(failed);
        }
        for (submission, failed) in by_submission {
            let chunks = failed.len();
            if let Err(problem) = service.propose(Command::Fail(Fail { submission, failed })).await {
                tracing::warn!(%submission, chunks, %problem, "losses could not be counted");
            }
        }
    }
}

/// Ten thousand consumers need ten thousand file handles; the usual soft limit is 1,024.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}
