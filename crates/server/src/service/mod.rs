//! Services: what the doors ask, in the words of the rooms. HTTP and the consumers' socket both come through here.

pub mod abouts;
pub mod batch;
pub mod branch_entries;
mod branch_list;
pub mod branches;
pub mod bulk;
pub mod commits;
pub mod complete;
mod complete_tasks;
pub mod explain;
mod lane_change;
mod lane_dead;
mod lane_keys;
pub mod lane_look;
mod lane_redrive;
pub(crate) mod lane_relevel;
mod lane_task;
pub mod lanes;
mod outputs;
pub mod overview;
pub mod reserve;
mod under_way;
pub mod weights;

use crate::clock::Clock;
use crate::config::Config;
use crate::metrics;
use crate::roles::Roles;
use crate::roles::announcer::Announcer;
use crate::roles::committer::CommitDesk;
use crate::roles::dispatcher::{DispatcherHandle, DispatcherStatus, Event};
use abouts::Abouts;
use branches::Addresses;
use futures_util::FutureExt;
use lanes::LaneNames;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
pub(crate) use under_way::ReportUnderWay;
use under_way::UnderWay;
use windlass_api::json::{Consistency, StatusInfo};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::time::At;
use windlass_order::{Order, OrderFault};
use windlass_store::fault::StoreFault;
use windlass_store::objects::Objects;
use windlass_store::ranges::Ranges;

/// Everything a door needs. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    clock: Clock,
    order: Order,
    roles: Arc<Roles>,
    objects: Objects,
    ranges: Ranges,
    /// Addresses that were granted for uploads through this server.
    addresses: Addresses,
    /// Until when the log knows that leases under hard limits may run; 0 while there were none.
    leases_covered_until_ms: AtomicU64,
    reports: Arc<UnderWay>,
    lane_names: LaneNames,
    draining: CancellationToken,
    stop: CancellationToken,
    conversations: TaskTracker,
}

impl Service {
    /// The service over these parts.
    pub fn new(config: Config, clock: Clock, order: Order, roles: Arc<Roles>, objects: Objects) -> Service {
        let inner = Inner {
            config,
            clock,
            order,
            roles,
            ranges: Ranges::new(objects.clone()),
            objects,
            addresses: Addresses::default(),
            leases_covered_until_ms: AtomicU64::new(0),
            reports: Arc::default(),
            lane_names: LaneNames::default(),
            draining: CancellationToken::new(),
            stop: CancellationToken::new(),
            conversations: TaskTracker::new(),
        };
        Service { inner: Arc::new(inner) }
    }

    /// The server's settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The server's clock.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// The object store.
    pub fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    /// What branches have committed.
    pub fn ranges(&self) -> &Ranges {
        &self.inner.ranges
    }

    /// What is known of commits that wait.
    pub fn commit_desk(&self) -> &CommitDesk {
        &self.inner.roles.commit_desk
    }

    /// Who tells watchers what becomes of submissions.
    pub fn announcer(&self) -> &Announcer {
        &self.inner.roles.announcer
    }

    /// Where the Dispatcher gets its events.
    pub fn dispatcher(&self) -> &DispatcherHandle {
        &self.inner.roles.dispatcher
    }

    /// The ordered log and its machine.
    pub fn order(&self) -> &Order {
        &self.inner.order
    }

    /// What is said of submissions.
    pub fn abouts(&self) -> &Abouts {
        &self.inner.roles.abouts
    }

    fn lane_names(&self) -> &LaneNames {
        &self.inner.lane_names
    }

    /// The key of tokens, while this node leads.
    pub fn token_key(&self) -> Result<[u8; 16], Problem> {
        self.inner.roles.token_key().ok_or_else(not_leading)
    }

    /// Until when the log knows that leases under hard limits may run.
    pub(crate) fn leases_covered_until(&self) -> At {
        At::from_ms(self.inner.leases_covered_until_ms.load(Ordering::Relaxed))
    }

    /// The log knows of leases under hard limits until then.
    pub(crate) fn set_leases_covered_until(&self, until: At) {
        self.inner.leases_covered_until_ms.fetch_max(until.as_ms(), Ordering::Relaxed);
    }

    /// Whether as much of consumers' reports is on its way through the log as the server has room for.
    pub(crate) fn has_much_reported(&self) -> bool {
        self.inner.reports.is_much()
    }

    /// Counts a report that came in a frame of so many bytes, until the guard is dropped.
    pub(crate) fn count_report(&self, bytes: usize) -> ReportUnderWay {
        self.inner.reports.count(bytes)
    }

    /// Whether work can be taken in and handed out.
    pub fn is_ready(&self) -> bool {
        !self.inner.draining.is_cancelled() && self.token_key().is_ok()
    }

    /// From here on the server is about to stop: it is not ready, and hands out no more.
    pub fn drain(&self) {
        self.inner.draining.cancel();
        self.inner.roles.dispatcher.send(Event::Drain);
    }

    /// Cancelled when the doors close: whoever waits behind one ends then.
    pub fn stop(&self) -> &CancellationToken {
        &self.inner.stop
    }

    /// The consumers' conversations, which outlive the requests that opened them.
    pub fn conversations(&self) -> &TaskTracker {
        &self.inner.conversations
    }

    /// Puts a command through the log; one that is refused is a problem. It is on its way as with [`Order::propose`].
    pub fn propose(&self, command: Command) -> impl Future<Output = Result<Outcome, Problem>> + Send + use<> {
        self.propose_raw(command).map(|outcome| match outcome? {
            Outcome::Refused(refusal) => Err(problem_of_refusal(&refusal)),
            outcome => Ok(outcome),
        })
    }

    /// The same, where a refusal is an outcome.
    pub(crate) fn propose_raw(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, Problem>> + Send + use<> {
        let name = command.name();
        self.inner.order.propose(command).map(move |outcome| {
            metrics::count_command(name);
            outcome.map_err(|fault| problem_of_fault(&fault))
        })
    }

    /// Puts commands through the log together; the outcomes are in their order.
    pub(crate) fn propose_all(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Outcome, Problem>>> + Send + use<> {
        let names: Vec<&str> = commands.iter().map(Command::name).collect();
        self.inner.order.propose_all(commands).map(|outcomes| {
            names.into_iter().for_each(metrics::count_command);
            outcomes.into_iter().map(|it| it.map_err(|fault| problem_of_fault(&fault))).collect()
        })
    }

    /// Makes sure that what is read next is fresh enough, and says how fresh it is.
    pub async fn freshen(&self, consistency: Option<Consistency>) -> Result<u64, Problem> {
        match consistency.unwrap_or_default() {
            Consistency::Linearizable => {
                self.inner.order.barrier().await.map_err(|fault| problem_of_fault(&fault))
            }
            Consistency::Stale => Ok(self.inner.order.applied_index()),
        }
    }

    /// Asks the Dispatcher something that it answers at once. The question is on its way when this returns, before the
    /// answer is awaited, so that questions arrive in the order in which they were asked.
    pub fn ask<R: Send + 'static>(
        &self,
        event: impl FnOnce(oneshot::Sender<R>) -> Event,
    ) -> futures_util::future::BoxFuture<'static, Result<R, Problem>> {
        let (reply, answer) = oneshot::channel();
        self.inner.roles.dispatcher.send(event(reply));
        Box::pin(async move { answer.await.map_err(|_| not_leading()) })
    }

    /// How the server is.
    pub async fn status(&self) -> Result<StatusInfo, Problem> {
        let DispatcherStatus { ready, out, tasks_out, delayed, consumers, waiting, .. } =
            self.ask(Event::Status).await?;
        let order = &self.inner.order;
        let (epoch, running, unsettled, tasks) = order.read(|machine| {
            let batch = machine.batch();
            (machine.epoch(), batch.running(), batch.unsettled(), machine.lanes().totals())
        });
        Ok(StatusInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            epoch: epoch.0,
            applied_index: order.applied_index(),
            submissions_running: running,
            chunks_unsettled: unsettled,
            chunks_ready: ready,
            chunks_reserved: out,
            chunks_delayed: delayed,
            tasks_waiting: tasks.waiting,
            tasks_reserved: tasks_out,
            tasks_delayed: tasks.delayed,
            tasks_dead: tasks.dead,
            consumers,
            waiting,
        })
    }
}

fn not_leading() -> Problem {
    Problem::new(ProblemCode::Unavailable, "this node does not lead at the moment; try again in a second")
}

/// The answer to a refused command.
pub fn problem_of_refusal(refusal: &Refusal) -> Problem {
    let code = match refusal {
        Refusal::Fenced { .. } => ProblemCode::Unavailable,
        Refusal::SubmissionUnknown { .. } => ProblemCode::SubmissionUnknown,
        Refusal::SubmissionOver { .. } => ProblemCode::SubmissionOver,
        Refusal::NothingFailed { .. } => ProblemCode::NothingFailed,
        Refusal::IdempotencyKeyReused => ProblemCode::IdempotencyKeyReused,
        Refusal::Malformed { .. } => ProblemCode::InvalidRequest,
        Refusal::LaneUnknown { .. } => ProblemCode::LaneUnknown,
        Refusal::LaneDraining { .. } => ProblemCode::LaneDraining,
        Refusal::LaneFull { .. } => ProblemCode::LaneFull,
        Refusal::KeysUnordered { .. } => ProblemCode::LaneKeysUnordered,
        Refusal::BranchUnknown { .. } => ProblemCode::BranchUnknown,
        Refusal::BranchExists { .. } => ProblemCode::BranchExists,
        Refusal::CommitUnknown { .. } | Refusal::RequestUnknown { .. } => ProblemCode::CommitUnknown,
        Refusal::TokenStale { .. } => ProblemCode::TokenStale,
        Refusal::ConditionFailed { .. } => ProblemCode::PreconditionFailed,
        Refusal::AddressNotGranted { .. } => ProblemCode::AddressNotGranted,
        Refusal::HeadMoved { .. } | Refusal::NotItsTurn { .. } => ProblemCode::Unavailable,
        Refusal::TooManyCommits { .. } => ProblemCode::TooManyCommits,
        // Whoever sent it has its answer already.
        Refusal::Repeated => ProblemCode::OutcomeUnknown,
    };
    let mut problem = Problem::new(code, refusal.to_string());
    if let Refusal::TokenStale { newest, .. } = refusal {
        problem.newest_token = Some(newest.to_string());
    }
    problem
}

/// The answer when the log could not take or answer a command.
pub fn problem_of_fault(fault: &OrderFault) -> Problem {
    let code = match fault {
        OrderFault::DiskFull { .. } => ProblemCode::DiskFull,
        OrderFault::LogBroken { .. }
        | OrderFault::TablesBroken { .. }
        | OrderFault::Contradiction { .. }
        | OrderFault::Replaced
        | OrderFault::Settings { .. } => ProblemCode::Internal,
        // A command that was on its way when the leadership ended may still take effect.
        OrderFault::Timeout { .. } | OrderFault::NotLeader => ProblemCode::OutcomeUnknown,
        OrderFault::ReadTimeout { .. } | OrderFault::Closed => ProblemCode::Unavailable,
        OrderFault::Busy => ProblemCode::Busy,
    };
    Problem::new(code, fault.to_string())
}

/// The answer when the object store has a fault.
pub fn problem_of_store(fault: &StoreFault) -> Problem {
    let is_full = matches!(fault, StoreFault::DiskFull { .. });
    let code = if is_full { ProblemCode::DiskFull } else { ProblemCode::Internal };
    Problem::new(code, fault.to_string())
}
