//! Apply: feeds the machine from the log, and answers whoever waits here.
//!
//! Invariants
//! - Groups are applied in the order of the log, each once: the position is committed in the same batch as the rows.
//! - A group that does not decode stops the node before anything of its batch is applied; it is never skipped.
//! - Nobody is answered and no effect is told before the log holds the batch; the tables follow under the same lock, so a
//!   reader never sees less than what was answered.
//! - After a contradiction nothing more is applied and nothing is read: the lock stays poisoned.

use crate::fault::OrderFault;
use crate::role::{Role, RoleEvent, Told};
use crate::waiting::Waiting;
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use windlass_core::batch::reserver::Reserver;
use windlass_core::entry::{Command, EntryGroup, Outcome};
use windlass_core::ids::ContinuationToken;
use windlass_core::lanes::delayed::next_due;
use windlass_core::lanes::desk::{Buffer, Desk};
use windlass_core::machine::Machine;
use windlass_core::tables::{Table, Tables};
use windlass_store::fault::StoreFault;
use windlass_store::tables::{CommittedRows, DiskTables};

/// The row that says how far the log is applied. Written by the log's own implementation, in its own encoding.
pub(crate) const POSITION_KEY: &[u8] = b"position";

/// One entry of the log, as it is applied.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// Its index, from 1.
    pub(crate) index: u64,
    /// Its group; none for the log's own entries.
    pub(crate) group: Option<Bytes>,
}

/// Applies what the log delivers.
pub(crate) struct Applier {
    machine: RwLock<Machine<DiskTables>>,
    committed: CommittedRows,
    applied: AtomicU64,
    waiting: Arc<Waiting>,
    role: Arc<Role>,
}

/// What a batch gave, to be told once it is committed.
#[derive(Default)]
struct Given {
    outcomes: Vec<(ContinuationToken, Outcome)>,
    told: Vec<Told>,
}

impl Applier {
    pub(crate) fn new(
        machine: Machine<DiskTables>,
        applied: u64,
        waiting: Arc<Waiting>,
        role: Arc<Role>,
    ) -> Applier {
        let committed = machine.tables().committed();
        Applier { machine: RwLock::new(machine), committed, applied: AtomicU64::new(applied), waiting, role }
    }

    /// The index of the last entry whose effect a read is sure to see; 0 before the first.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The machine, for reading.
    ///
    /// # Panics
    /// If the machine has met a contradiction: what it holds must not be read.
    pub(crate) fn machine(&self) -> RwLockReadGuard<'_, Machine<DiskTables>> {
        self.machine.read().expect("the machine has not met a contradiction")
    }

    /// The rows as the tables hold them; those of the batch that is being applied come a moment later.
    pub(crate) const fn committed(&self) -> &CommittedRows {
        &self.committed
    }

    /// Makes everything that is committed durable in the tables.
    pub(crate) fn persist(&self) -> Result<(), OrderFault> {
        Ok(self.committed.persist()?)
    }

    /// Applies entries, answers whoever waits for them, and commits them with the position behind the last one.
    pub(crate) fn apply(&self, arrived: &[Arrived], position: Vec<u8>) -> Result<(), OrderFault> {
        let Some(last) = arrived.last() else { return Ok(()) };
        let groups: Vec<EntryGroup> = arrived.iter().filter_map(decode).collect::<Result<_, _>>()?;
        contain(|| {
            let mut machine = self.machine.write().expect("the machine has not met a contradiction");
            let mut given = Given::default();
            for group in groups {
                self.apply_group(&mut machine, group, &mut given);
            }
            machine.flush();
            machine.tables_mut().put(Table::Meta, POSITION_KEY, position);
            self.applied.store(last.index, Ordering::Release);
            // The log holds all of this, so nobody waits for the tables: if they fail, a restart applies it again. Whoever
            // reads next waits for the lock. Effects first: a caller that hears its outcome may ask the roles about it.
            self.role.tell(given.told);
            self.waiting.answer(given.outcomes);
            machine.tables_mut().commit();
        })
    }

    /// Puts another state in the place of the tables', as a snapshot brings it. The machine in memory is then of another
    /// state than its rows, so this always ends in a fault: the node starts again from the new ones.
    pub(crate) fn replace(
        &self,
        load: impl FnOnce(&mut DiskTables) -> Result<(), OrderFault>,
    ) -> Result<(), OrderFault> {
        contain(|| {
            let mut machine = self.machine.write().expect("the machine has not met a contradiction");
            load(machine.tables_mut())?;
            Err(OrderFault::Replaced)
        })?
    }

    fn apply_group(&self, machine: &mut Machine<DiskTables>, group: EntryGroup, given: &mut Given) {
        let is_own = group.sender == self.waiting.sender();
        let mut effects = Vec::new();
        for entry in group.into_entries() {
            let (token, seed, is_lead) = (entry.token, entry.seed, matches!(entry.command, Command::Lead(_)));
            let mut applied = machine.apply(entry);
            effects.append(&mut applied.effects);
            if is_lead && matches!(applied.outcome, Outcome::Led { .. }) {
                // What came before in this group belongs to the leadership that has just ended.
                given.tell_effects(machine, &mut effects);
                given.told.push(self.led(machine, token, seed, is_own));
            }
            if is_own {
                given.outcomes.push((token, applied.outcome));
            }
        }
        given.tell_effects(machine, &mut effects);
    }

    fn led(
        &self,
        machine: &mut Machine<DiskTables>,
        token: ContinuationToken,
        seed: u64,
        is_own: bool,
    ) -> Told {
        if !is_own || !self.role.is_claimed(token) {
            return Told::Superseded;
        }
        machine.flush();
        let (epoch, at, token_key) = (machine.epoch(), machine.at(), machine.token_key());
        let mut reserver = Box::new(Reserver::new(epoch, token_key, seed, machine.unsettled()));
        for (field, weights) in machine.weights() {
            reserver.ready_mut().set_weights(&field, weights);
        }
        reserver.set_desk(Desk::new(machine.lanes(), next_due(machine.tables()), Buffer::default()));
        let roster = machine.roster().clone();
        let event = RoleEvent::Led { epoch, at, token_key, reserver, roster };
        Told::Led { claim: token, event }
    }
}

impl Given {
    fn tell_effects(
        &mut self,
        machine: &Machine<DiskTables>,
        effects: &mut Vec<windlass_core::entry::Effect>,
    ) {
        if !effects.is_empty() {
            let effects = std::mem::take(effects);
            self.told.push(Told::Effects(RoleEvent::Effects { at: machine.at(), effects }));
        }
    }
}

fn decode(arrived: &Arrived) -> Option<Result<EntryGroup, OrderFault>> {
    let index = arrived.index;
    let group = EntryGroup::from_bytes(arrived.group.as_ref()?);
    Some(group.map_err(|error| OrderFault::LogBroken {
        what: format!(
            "entry {index} holds a command that this build does not know ({error}); start the build that wrote it, or a \
             newer one"
        ),
    }))
}

/// Runs what must not fail; a panic in it becomes a fault, since a task's panic alone would not stop the process.
fn contain<R>(run: impl FnOnce() -> R) -> Result<R, OrderFault> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        // The tables stop the machine with the fault of their disk; anything else is a contradiction.
        let panic = match panic.downcast::<StoreFault>() {
            Ok(fault) => return OrderFault::from(*fault),
            Err(other) => other,
        };
        let what = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(what), _) => what.clone(),
            (None, Some(what)) => (*what).to_owned(),
            (None, None) => "a panic without words".to_owned(),
        };
        OrderFault::Contradiction { what }
    })
}
