//! The feeder: hands raft's committed entries to the applier, with the position that goes into the same commit.
//!
//! Invariants
//! - The position never runs ahead of the rows, nor the rows ahead of it.
//! - A fault while applying raises the alarm and stops raft; no later entry is applied.

use super::checkpoint::{Checkpoint, Checkpointer, Contents};
use super::format::{Position, encode_position};
use super::{LogId, StoredMembership, Types, index_of};
use crate::apply::{Applier, Arrived};
use crate::fault::{Alarm, OrderFault};
use crate::limits::{COMMIT_BYTES_MAX, GROUPS_PER_COMMIT_MAX};
use futures_util::{Stream, StreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::{EntryPayload, OptionalSend};
use std::io;
use std::sync::Arc;

/// Raft's state machine.
pub(crate) struct Feeder {
    applier: Arc<Applier>,
    alarm: Alarm,
    position: Position,
    checkpoint: Arc<Checkpoint>,
}

impl Feeder {
    pub(crate) const fn new(
        applier: Arc<Applier>,
        alarm: Alarm,
        position: Position,
        checkpoint: Arc<Checkpoint>,
    ) -> Feeder {
        Feeder { applier, alarm, position, checkpoint }
    }

    /// Applies what has arrived and tells raft that it is done.
    fn apply_arrived(&mut self, batch: &mut Batch) -> Result<(), io::Error> {
        if let Some(last) = batch.last {
            self.position.applied = Some(last);
        }
        if let Some(membership) = batch.membership.take() {
            self.position.membership = membership;
        }
        let applied = self.applier.apply(&batch.arrived, encode_position(&self.position));
        applied.map_err(|fault| self.fail(fault))?;
        self.checkpoint.count(batch.bytes);
        batch.arrived.clear();
        batch.bytes = 0;
        for responder in batch.responders.drain(..) {
            responder.send(());
        }
        Ok(())
    }

    fn fail(&self, fault: OrderFault) -> io::Error {
        self.alarm.raise(fault.clone());
        io::Error::other(fault)
    }
}

/// Entries that are applied together.
#[derive(Default)]
struct Batch {
    arrived: Vec<Arrived>,
    bytes: u64,
    last: Option<LogId>,
    membership: Option<StoredMembership>,
    responders: Vec<ApplyResponder<Types>>,
}

impl Batch {
    const fn is_full(&self) -> bool {
        self.arrived.len() >= GROUPS_PER_COMMIT_MAX || self.bytes >= COMMIT_BYTES_MAX
    }

    fn push(&mut self, (entry, responder): EntryResponder<Types>) {
        self.last = Some(entry.log_id);
        let group = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(group) => Some(group.0),
            EntryPayload::Membership(membership) => {
                self.membership = Some(StoredMembership::new(Some(entry.log_id), membership));
                None
            }
        };
        self.bytes += group.as_ref().map_or(0, |group| group.len() as u64);
        self.arrived.push(Arrived { index: index_of(entry.log_id.index), group });
        self.responders.extend(responder);
    }
}

impl RaftStateMachine<Types> for Feeder {
    type SnapshotData = Contents;
    type SnapshotBuilder = Checkpointer;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.position.applied, self.position.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batch = Batch::default();
        while let Some(entry) = entries.next().await {
            batch.push(entry?);
            if batch.is_full() {
                self.apply_arrived(&mut batch)?;
            }
        }
        self.apply_arrived(&mut batch)
    }

    async fn get_snapshot_builder(&mut self) -> Checkpointer {
        self.checkpoint.begin(self.position.clone())
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMetaOf<Types>,
        snapshot: Contents,
    ) -> Result<(), io::Error> {
        self.checkpoint.install(&snapshot).map_err(|fault| self.fail(fault))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, Contents>>, io::Error> {
        Ok(self.checkpoint.latest())
    }
}
