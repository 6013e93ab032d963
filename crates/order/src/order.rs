//! The order's handle: propose, read, shut down.
//!
//! Invariants
//! - `propose` returns an outcome only after the command's log entry is durable and applied.
//! - A command that was refused with [`OrderFault::Busy`] was never written; one that timed out may take effect later.
//! - After a shutdown everything that was taken before is answered, and the tables and the log are closed.

use crate::apply::Applier;
use crate::batcher::{Batcher, Counts, EncodedCommands, GroupWriter, Proposal, Standing};
use crate::fault::{Alarm, OrderFault};
use crate::limits::{CHECKPOINT_PAUSE, PROPOSALS_WAITING_MAX, STOP_TIMEOUT, TABLES_LOOK_EVERY};
use crate::options::OrderOptions;
use crate::postbox::{Caller, Outcomes};
use crate::raft::checkpoint::{self, Checkpoint};
use crate::raft::claimant::Claimant;
use crate::raft::log_store::LogStore;
use crate::raft::network::Peers;
use crate::raft::state_machine::Feeder;
use crate::raft::{Node, format::Position};
use crate::read::Barrier;
use crate::role::{Role, RoleSink};
use crate::stamp::{Chance, Stamper, SystemClock};
use crate::waiting::Waiting;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, join_all};
use openraft::BasicNode;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use windlass_core::entry::{Command, Outcome};
use windlass_core::machine::Machine;
use windlass_store::log::{Disk, Log, LogCounters, RealDisk, Recovered};
use windlass_store::tables::{CommittedRows, DiskTables};

/// One order for all commands. Cheap to clone; every clone is the same order.
#[derive(Clone)]
pub struct Order {
    inner: Arc<Inner>,
}

struct Inner {
    writer: GroupWriter,
    applier: Arc<Applier>,
    barrier: Arc<Barrier>,
    log: Log,
    inbox: mpsc::Sender<Proposal>,
    stop: watch::Sender<bool>,
    standing: watch::Receiver<Standing>,
    propose_timeout: Duration,
    tables_free: tokio::sync::Mutex<mpsc::Receiver<()>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Inner {
    /// The outcomes of commands that are on their way.
    async fn answered(
        self: Arc<Self>,
        deadline: tokio::time::Instant,
        answer: oneshot::Receiver<Outcomes>,
    ) -> Outcomes {
        let fault = match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(outcomes)) => return outcomes,
            Ok(Err(_)) => OrderFault::Closed,
            Err(_) => OrderFault::Timeout { waited: self.propose_timeout },
        };
        Err(self.writer.alarm.raised().unwrap_or(fault))
    }

    /// The tasks, the batcher first, for whoever ends them.
    fn take_tasks(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.tasks.lock().expect("nothing panics while it takes the tasks"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in self.take_tasks() {
            task.abort();
        }
    }
}

/// What the order has done since it was opened, and how long its log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderCounters {
    /// Commands written to the log.
    pub commands: u64,
    /// Groups that they were written in.
    pub groups: u64,
    /// Commands whose callers wait; those that were proposed together and are in no group yet count as one.
    pub waiting: u64,
    /// Read barriers.
    pub barriers: u64,
    /// Continuation tokens of this process that came back when nobody waited for them.
    pub unknown_tokens: u64,
    /// What the log has written.
    pub log: LogCounters,
    /// The first entry that the log still holds.
    pub log_first_index: Option<u64>,
    /// The last entry.
    pub log_last_index: Option<u64>,
    /// The last entry that is applied; 0 if none is.
    pub applied_index: u64,
}

impl Order {
    /// Opens the log, brings the machine up to it and leads. Returns once the leadership is applied. What
    /// happens to the role is handed to `tell`, in the order of the log and before whoever waits for it is answered.
    ///
    /// # Errors
    /// If the log or the tables cannot be used, or if the settings contradict each other or the data.
    pub async fn open(
        options: OrderOptions,
        tables: DiskTables,
        tell: RoleSink,
    ) -> Result<Order, OrderFault> {
        Order::open_on(Arc::new(RealDisk), options, tables, tell).await
    }

    /// As [`Order::open`], with the log's files on a given disk; tests hand in one that fails.
    ///
    /// # Errors
    /// As [`Order::open`].
    pub async fn open_on(
        disk: Arc<dyn Disk>,
        options: OrderOptions,
        tables: DiskTables,
        tell: RoleSink,
    ) -> Result<Order, OrderFault> {
        let config = options.raft_config()?;
        let opened = Opened::open(disk, &options, tables).await?;
        opened.check_node(options.node)?;
        let Opened { log, recovered: _, machine, position } = opened;

        let alarm = Alarm::new();
        let waiting = Arc::new(Waiting::new(Chance::from_system().sender()));
        let role = Arc::new(Role::new(tell));
        let applied = checkpoint::index_after(&position);
        let applier = Arc::new(Applier::new(machine, applied, Arc::clone(&waiting), Arc::clone(&role)));
        let (in_use, tables_free) = mpsc::channel(1);
        let checkpoint = Arc::new(Checkpoint::new(
            Arc::clone(&applier),
            alarm.clone(),
            options.snapshot_folder.clone(),
            &position,
            options.snapshot_every_bytes,
            in_use,
        ));
        let feeder = Feeder::new(Arc::clone(&applier), alarm.clone(), position, Arc::clone(&checkpoint));
        let store = LogStore::new(log.clone(), alarm.clone());
        let node = Node::new(options.node, Arc::new(config), Peers, store, feeder).await;
        let node = node.map_err(|fatal| stopped(&alarm, &fatal))?;

        let order = Order::start(
            options,
            Parts { node, applier, alarm, waiting, role, log, checkpoint, tables_free },
        );
        order.lead().await?;
        Ok(order)
    }

    fn start(options: OrderOptions, parts: Parts) -> Order {
        let Parts { node, applier, alarm, waiting, role, log, checkpoint, tables_free } = parts;
        let writer = GroupWriter {
            node: node.clone(),
            waiting,
            stamper: Arc::new(Mutex::new(Stamper::new(Box::new(SystemClock::new())))),
            alarm: alarm.clone(),
            counts: Arc::new(Counts::default()),
        };
        let (standing, stands) = watch::channel(Standing::Following);
        let (stop, stops) = watch::channel(false);
        let (inbox, arriving) = mpsc::channel(PROPOSALS_WAITING_MAX);
        let batcher = Batcher::new(arriving, stops.clone(), stands.clone(), writer.clone());
        let claimant = Claimant {
            node: node.clone(),
            applier: Arc::clone(&applier),
            role,
            writer: writer.clone(),
            standing,
            shard: options.shard,
        };
        let barrier = Barrier::new(node.clone(), Arc::clone(&applier), alarm, options.read_timeout);
        let tasks = vec![
            tokio::spawn(batcher.run()),
            tokio::spawn(claimant.run()),
            tokio::spawn(watch_tables(applier.committed().clone(), writer.alarm.clone(), stops.clone())),
            tokio::spawn(cut_when_due(node, checkpoint, stops)),
        ];
        let inner = Inner {
            writer,
            applier,
            barrier: Arc::new(barrier),
            log,
            inbox,
            stop,
            standing: stands,
            propose_timeout: options.propose_timeout,
            tables_free: tokio::sync::Mutex::new(tables_free),
            tasks: Mutex::new(tasks),
        };
        Order { inner: Arc::new(inner) }
    }

    /// Makes this node the leader and waits until it is.
    async fn lead(&self) -> Result<(), OrderFault> {
        let GroupWriter { node, alarm, .. } = &self.inner.writer;
        if node.is_initialized().await.map_err(|fatal| stopped(alarm, &fatal))? {
            // A node alone need not wait for a silence that only a leader could break.
            node.trigger().elect(false).await.map_err(|fatal| stopped(alarm, &fatal))?;
        } else {
            let members = BTreeMap::from([(*node.node_id(), BasicNode::default())]);
            node.initialize(members).await.map_err(|error| OrderFault::LogBroken {
                what: format!("the cluster could not be begun: {error}; give the node an empty data folder"),
            })?;
        }
        let mut standing = self.inner.standing.clone();
        let led = standing.wait_for(|standing| matches!(standing, Standing::Leading(_)));
        tokio::select! {
            led = led => led.map(drop).map_err(|_| alarm.raised().unwrap_or(OrderFault::Closed)),
            fault = alarm.wait() => Err(fault),
        }
    }

    /// Puts a command into the log and waits until it is applied. It is on its way when this returns, unless too many wait:
    /// then when this is first polled.
    ///
    /// # Errors
    /// If the command was not taken, or if its outcome is not known; the fault says which.
    pub fn propose(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, OrderFault>> + Send + use<> {
        // A thousand callers wait at once: each holds as little as can be, and neither the command nor its bytes.
        let proposed = self.put(EncodedCommands::one(&command), false);
        proposed.map(|outcomes| Ok(outcomes?.pop().expect("a command has an outcome")))
    }

    /// Puts commands into the log in their order, many in a group, and waits until they are applied: for one caller that has
    /// many, this costs little more than one. Each has its own outcome, or fault as with [`Order::propose`].
    pub fn propose_all(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Outcome, OrderFault>>> + Send + use<> {
        let mut is_full = false;
        let parts = EncodedCommands::in_parts(&commands).into_iter().map(|part| {
            let count = part.len();
            // None overtakes one that has no place yet: those are polled in their order, and get places in it.
            let proposed = self.put(part, is_full);
            is_full = matches!(proposed, Either::Right(_));
            proposed.map(move |outcomes| match outcomes {
                Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
                Err(fault) => vec![Err(fault); count],
            })
        });
        let parts = join_all(parts.collect::<Vec<_>>());
        parts.map(|parts: Vec<Vec<Result<Outcome, OrderFault>>>| parts.into_iter().flatten().collect())
    }

    /// Puts commands into the inbox: at once, or, if it is full or the caller knows that it was, when this is polled.
    fn put(
        &self,
        commands: EncodedCommands,
        is_full: bool,
    ) -> Either<impl Future<Output = Outcomes> + Send + use<>, BoxFuture<'static, Outcomes>> {
        let (caller, answer) = Caller::here();
        let deadline = tokio::time::Instant::now() + self.inner.propose_timeout;
        let inner = Arc::clone(&self.inner);
        let proposal = Proposal { commands, caller };
        let tried = if is_full { Err(TrySendError::Full(proposal)) } else { inner.inbox.try_send(proposal) };
        match tried {
            // If nobody takes proposals any more, nobody keeps the caller.
            Ok(()) | Err(TrySendError::Closed(_)) => Either::Left(inner.answered(deadline, answer)),
            // Rare, and its state is large: it has a place of its own.
            Err(TrySendError::Full(proposal)) => Either::Right(Box::pin(async move {
                let fault = match tokio::time::timeout_at(deadline, inner.inbox.send(proposal)).await {
                    Ok(Ok(())) => return inner.answered(deadline, answer).await,
                    Ok(Err(_)) => OrderFault::Closed,
                    Err(_) => OrderFault::Busy,
                };
                Err(inner.writer.alarm.raised().unwrap_or(fault))
            })),
        }
    }

    /// Waits until the machine holds everything that was acknowledged before; the index it has applied by then.
    ///
    /// # Errors
    /// If this node does not lead, or cannot confirm in time that it does.
    pub async fn barrier(&self) -> Result<u64, OrderFault> {
        self.inner.barrier.pass().await
    }

    /// An index whose effect every later [`Order::read`] sees: what a stale read says of itself. 0 before the first.
    pub fn applied_index(&self) -> u64 {
        self.inner.applier.applied()
    }

    /// Looks at the machine. Applying waits meanwhile, so a look is short.
    ///
    /// # Panics
    /// If the machine has met a contradiction: what it holds must not be read.
    pub fn read<R>(&self, look: impl FnOnce(&Machine<DiskTables>) -> R) -> R {
        look(&self.inner.applier.machine())
    }

    /// The rows as the tables hold them, without a look at the machine: nobody waits. What was answered or told a moment
    /// ago may be missing, until the next look at the machine ends.
    pub fn committed(&self) -> &CommittedRows {
        self.inner.applier.committed()
    }

    /// What was done so far.
    pub fn counters(&self) -> OrderCounters {
        let Inner { writer: GroupWriter { counts, waiting, .. }, inbox, barrier, log, applier, .. } =
            &*self.inner;
        let in_inbox = inbox.max_capacity() - inbox.capacity();
        OrderCounters {
            commands: counts.commands.load(Ordering::Relaxed),
            groups: counts.groups.load(Ordering::Relaxed),
            waiting: (in_inbox + waiting.len()) as u64,
            barriers: barrier.passed(),
            unknown_tokens: waiting.unknown(),
            log: log.counters(),
            log_first_index: log.first_index(),
            log_last_index: log.last_index(),
            applied_index: applier.applied(),
        }
    }

    /// Makes a checkpoint now and cuts the log behind it; returns before either is done.
    ///
    /// # Errors
    /// If the node has stopped.
    pub async fn snapshot_now(&self) -> Result<(), OrderFault> {
        let GroupWriter { node, alarm, .. } = &self.inner.writer;
        node.trigger().snapshot().await.map_err(|fatal| stopped(alarm, &fatal))
    }

    /// Resolves when the node cannot go on: the process should then end with a failure.
    pub fn fault(&self) -> impl Future<Output = OrderFault> + Send + 'static {
        self.inner.writer.alarm.wait()
    }

    /// Answers everything that was taken, then stops and closes the log. The tables are closed with the last clone.
    ///
    /// # Errors
    /// If the tables could not be made durable, or if the node had met a fault before.
    pub async fn shutdown(self) -> Result<(), OrderFault> {
        let Inner {
            writer: GroupWriter { node, alarm, waiting, .. }, applier, stop, log, tables_free, ..
        } = &*self.inner;
        stop.send_replace(true);
        let mut tasks = self.inner.take_tasks().into_iter();
        if let Some(batcher) = tasks.next() {
            // Whoever still waits has given up by then.
            drop(tokio::time::timeout(self.inner.propose_timeout, batcher).await);
        }
        if let Err(error) = node.shutdown().await {
            tracing::warn!(%error, "raft did not end in order");
        }
        waiting.fail_all(&OrderFault::Closed);
        for task in tasks {
            end(task).await;
        }
        tables_free.lock().await.recv().await;
        let closing = (Arc::clone(applier), log.clone());
        let persisted = tokio::task::spawn_blocking(move || {
            let (applier, log) = closing;
            log.close();
            applier.persist()
        });
        persisted.await.unwrap_or_else(|panic| Err(OrderFault::Contradiction { what: panic.to_string() }))?;
        alarm.raised().map_or(Ok(()), Err)
    }

    /// The way that groups are written, for tests that write their own.
    #[cfg(test)]
    pub(crate) fn writer(&self) -> &GroupWriter {
        &self.inner.writer
    }
}

/// What was found on disk.
struct Opened {
    log: Log,
    recovered: Recovered,
    machine: Machine<DiskTables>,
    position: Position,
}

impl Opened {
    /// Opens the log and the machine, off the threads that must not block.
    async fn open(
        disk: Arc<dyn Disk>,
        options: &OrderOptions,
        mut tables: DiskTables,
    ) -> Result<Opened, OrderFault> {
        let (folder, settings, snapshots) =
            (options.log_folder.clone(), options.log, options.snapshot_folder.clone());
        let opening = tokio::task::spawn_blocking(move || {
            let (log, recovered) = Log::open_on(disk, &folder, settings)?;
            let position = checkpoint::recover(&mut tables, &snapshots, recovered.purged_upto)?;
            Ok(Opened { log, recovered, machine: Machine::open(tables), position })
        });
        opening.await.unwrap_or_else(|panic| Err(OrderFault::Contradiction { what: panic.to_string() }))
    }

    /// Refuses data that another node wrote: under another id this one would never be elected.
    fn check_node(&self, node: u64) -> Result<(), OrderFault> {
        let Recovered { cut_bytes, .. } = self.recovered;
        if cut_bytes > 0 {
            tracing::info!(
                cut_bytes,
                "cut an unfinished write, which nobody had been told of, from the log's end"
            );
        }
        let voters: Vec<u64> = self.position.membership.voter_ids().collect();
        if voters.is_empty() || voters.contains(&node) {
            return Ok(());
        }
        Err(OrderFault::Settings {
            what: format!(
                "the data folder belongs to node {voters:?}, not to node {node}; give the node its own id or folder"
            ),
        })
    }
}

/// What a running order is made of.
struct Parts {
    node: Node,
    applier: Arc<Applier>,
    alarm: Alarm,
    waiting: Arc<Waiting>,
    role: Arc<Role>,
    log: Log,
    checkpoint: Arc<Checkpoint>,
    tables_free: mpsc::Receiver<()>,
}

/// Looks whether the tables can still be written: whoever commits to ones that cannot would wait for ever.
async fn watch_tables(tables: CommittedRows, alarm: Alarm, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(TABLES_LOOK_EVERY) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let looking = tables.clone();
        match tokio::task::spawn_blocking(move || looking.check()).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => return alarm.raise(fault.into()),
            Err(panic) => return alarm.raise(OrderFault::Contradiction { what: panic.to_string() }),
        }
    }
}

/// Cuts the log whenever enough bytes were applied; raft itself counts entries only, and a group may be large.
async fn cut_when_due(node: Node, checkpoint: Arc<Checkpoint>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = checkpoint.due() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        if node.trigger().snapshot().await.is_err() {
            return;
        }
        // Raft takes no second one while one is under way; asking for it again and again would help nobody.
        tokio::time::sleep(CHECKPOINT_PAUSE).await;
    }
}

/// Waits for a task that ends by itself when raft has stopped, and ends one that does not.
async fn end(mut task: JoinHandle<()>) {
    if tokio::time::timeout(STOP_TIMEOUT, &mut task).await.is_err() {
        task.abort();
        // It was told to end, so its end is no news.
        drop(task.await);
    }
}

/// Why raft does not answer.
fn stopped(alarm: &Alarm, fatal: &openraft::errors::Fatal<crate::raft::Types>) -> OrderFault {
    alarm.raised().unwrap_or_else(|| match fatal {
        openraft::errors::Fatal::Stopped => OrderFault::Closed,
        openraft::errors::Fatal::StorageError(_) | openraft::errors::Fatal::Panicked => {
            OrderFault::Contradiction { what: format!("raft stopped: {fatal}") }
        }
    })
}
