//! The claimant: makes a leader of raft a leader of the machine.
//!
//! Raft's term is not the epoch: a node alone may go on in its old term after a restart, and the machine must still
//! fence what the earlier life of it sent. So a new leader first applies all that is committed, and then puts `lead` with
//! the next epoch into the log; commands wait until that is applied.
//!
//! Invariants
//! - A leadership of raft gives at most one `Led`, under an epoch above all earlier ones.
//! - When raft stops by itself, the alarm is raised and nobody waits any longer.

use super::{LeaderId, Node, Types};
use crate::apply::Applier;
use crate::batcher::{EncodedCommands, GroupWriter, Proposal, Standing};
use crate::fault::OrderFault;
use crate::limits::{CLAIM_PAUSE, CLAIM_TIMEOUT};
use crate::postbox::Caller;
use crate::role::Role;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{LinearizerOption, ReadPolicy, ServerState};
use std::sync::Arc;
use tokio::sync::watch;
use windlass_core::entry::{Command, Lead, Outcome, Refusal};
use windlass_core::ids::{Epoch, Shard};

/// Claims leadership in the machine when raft gives it.
pub(crate) struct Claimant {
    pub(crate) node: Node,
    pub(crate) applier: Arc<Applier>,
    pub(crate) role: Arc<Role>,
    pub(crate) writer: GroupWriter,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) shard: Shard,
}

impl Claimant {
    /// Follows raft until it stops.
    pub(crate) async fn run(self) {
        let mut changes = self.node.server_metrics();
        let mut held = None;
        while self.run_once(&mut changes, &mut held).await {}
        self.stop();
    }

    /// Waits for the next change of leadership and claims meanwhile, if there is something to claim; false when raft has
    /// stopped.
    async fn run_once(&self, changes: &mut Changes, held: &mut Option<LeaderId>) -> bool {
        let is_claiming = *self.standing.borrow() == Standing::Claiming;
        tokio::select! {
            changed = leadership_changed(changes, *held) => match changed {
                Some(given) => {
                    *held = given;
                    self.give_up(given.is_some());
                    true
                }
                None => false,
            },
            () = self.claim(), if is_claiming => true,
        }
    }

    /// Ends the leadership that was, if any; whoever waits does not know what became of its command.
    fn give_up(&self, is_claiming: bool) {
        let next = if is_claiming { Standing::Claiming } else { Standing::Following };
        let before = self.standing.send_replace(next);
        self.role.lose();
        if before != Standing::Following {
            self.writer.waiting.fail_all(&OrderFault::NotLeader);
        }
    }

    /// Puts `lead` into the log until it is applied.
    async fn claim(&self) {
        let mut epoch = Epoch(0);
        loop {
            match self.claim_once(epoch).await {
                Some(Outcome::Led { epoch }) => {
                    tracing::info!(%epoch, "this node leads");
                    self.standing.send_replace(Standing::Leading(epoch));
                    return;
                }
                // An entry of a leader that raft has replaced came in between.
                Some(Outcome::Refused(Refusal::Fenced { current })) => epoch = current,
                Some(_) | None => tokio::time::sleep(CLAIM_PAUSE).await,
            }
        }
    }

    /// One try, with an epoch above `above` and above the machine's.
    async fn claim_once(&self, above: Epoch) -> Option<Outcome> {
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(CLAIM_TIMEOUT);
        let caught_up = tokio::time::timeout(CLAIM_TIMEOUT, self.node.ensure_linearizable(option)).await;
        if !matches!(caught_up, Ok(Ok(_))) {
            return None;
        }
        let (held, at) = {
            let machine = self.applier.machine();
            (machine.epoch(), machine.at())
        };
        let Epoch(highest) = held.max(above);
        self.writer.stamper().begin(at);
        let (caller, answer) = Caller::here();
        let commands = EncodedCommands::one(&Command::Lead(Lead { shard: self.shard }));
        let claim = |token| self.role.claim(token);
        self.writer.write(Epoch(highest + 1), vec![Proposal { commands, caller }], None, claim).await;
        tokio::time::timeout(CLAIM_TIMEOUT, answer).await.ok()?.ok()?.ok()?.pop()
    }

    /// Raft has stopped: by a shutdown, or because it cannot go on.
    fn stop(&self) {
        let fault = match &self.node.metrics().borrow_watched().running_state {
            Ok(()) | Err(openraft::errors::Fatal::Stopped) => OrderFault::Closed,
            Err(fatal) => {
                // The alarm that was raised where it happened says more, and stays.
                self.writer.alarm.raise(OrderFault::Contradiction { what: format!("raft stopped: {fatal}") });
                self.writer.alarm.raised().unwrap_or(OrderFault::Closed)
            }
        };
        self.standing.send_replace(Standing::Following);
        self.role.lose();
        self.writer.waiting.fail_all(&fault);
    }
}

type Changes = WatchReceiverOf<Types, RaftServerMetrics<Types>>;

/// Waits until this node leads under another leadership of raft than `held`, or under none; nothing when raft has
/// stopped. Other changes must not disturb a claim: its entry may be on its way.
async fn leadership_changed(changes: &mut Changes, held: Option<LeaderId>) -> Option<Option<LeaderId>> {
    loop {
        let given = leadership(changes);
        if given != held {
            return Some(given);
        }
        changes.changed().await.ok()?;
    }
}

/// Under which leadership of raft this node leads.
fn leadership(changes: &Changes) -> Option<LeaderId> {
    let metrics = changes.borrow_watched();
    (metrics.state == ServerState::Leader).then_some(metrics.vote.leader_id)
}
