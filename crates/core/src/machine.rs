//! The machine: one match, one arm per command. Those in which rooms meet are in `rooms`.
//!
//! Invariants
//! - Same entries, same tables, byte for byte: `apply` uses nothing but the entry and the rows.
//! - An entry of an epoch that has ended changes nothing.
//! - Time never goes back.

mod rooms;

use crate::batch::roster::Roster;
use crate::batch::state::{BatchState, Unsettled};
use crate::batch::{
    change,
    submissions::Submit,
    submit,
    weights::{self, Weights},
};
use crate::branches::state::BranchesState;
use crate::branches::{commits, sweep};
use crate::dedup::{self, Known, Oldest, RequestId, Senders, Window};
use crate::entry::{Applied, Command, Entry, Lead, Outcome, Refusal};
use crate::ids::{Epoch, Shard, SubmissionId};
use crate::lanes::state::LanesState;
use crate::lanes::tasks::AddTasks;
use crate::lanes::{self, acks, delayed, writer};
use crate::rows;
use crate::seeded::Seeded;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

const MACHINE_KEY: &[u8] = b"machine";

/// The deterministic machine that every member feeds with the same entries.
#[derive(Debug)]
pub struct Machine<T> {
    tables: T,
    own: MachineRow,
    oldest_replies: Oldest,
    batch: BatchState,
    roster: Roster,
    lanes: LanesState,
    branches: BranchesState,
}

/// The machine's own row.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
struct MachineRow {
    #[n(0)]
    epoch: Epoch,
    #[n(1)]
    at: At,
    #[n(2)]
    shard: Shard,
    #[n(3)]
    last_submission: Option<SubmissionId>,
    #[n(4)]
    window: Window,
    #[n(5)]
    token_key: ByteArray<16>,
    #[n(6)]
    #[cbor(default)]
    senders: Senders,
}

impl<T: Tables> Machine<T> {
    /// The machine whose rows are in these tables; a new one if they are empty.
    pub fn open(tables: T) -> Machine<T> {
        let own = match tables.get(Table::Meta, MACHINE_KEY) {
            Some(row) => rows::decode(Table::Meta, MACHINE_KEY, &row),
            None => MachineRow {
                epoch: Epoch(0),
                at: At::from_ms(0),
                shard: Shard::default(),
                last_submission: None,
                window: Window::default(),
                token_key: ByteArray::from([0; 16]),
                senders: Senders::default(),
            },
        };
        let batch = BatchState::open(&tables);
        let roster = Roster::open(&tables);
        let lanes = LanesState::open(&tables);
        let branches = BranchesState::open(&tables);
        Machine { tables, own, oldest_replies: Oldest::default(), batch, roster, lanes, branches }
    }

    /// Applies one entry. Call [`Machine::flush`] after the last entry of a batch.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        let is_lead = matches!(entry.command, Command::Lead(_));
        if entry.epoch < self.own.epoch || (is_lead && entry.epoch == self.own.epoch) {
            return Applied::refused(Refusal::Fenced { current: self.own.epoch });
        }
        assert!(is_lead || entry.epoch == self.own.epoch, "a leadership's first entry is its `lead`");

        self.own.at = self.own.at.max(entry.at);
        let (at, batch, lanes, tables) = (self.own.at, &mut self.batch, &mut self.lanes, &mut self.tables);
        match entry.command {
            Command::Lead(ref it) => self.lead(it, entry.epoch, entry.seed),
            Command::Submit(ref it) => self.submit(&entry, it),
            Command::Complete(it) if it.is_of_task() => {
                lanes::settle::complete(lanes, tables, it.submission, &it.done)
            }
            Command::Fail(it) if it.is_of_task() => {
                lanes::settle::fail(lanes, tables, at, it.submission, it.failed)
            }
            Command::Complete(it) => self.complete(it),
            Command::Fail(it) => self.fail(it),
            Command::Cancel(it) => self.cancel(it.submission),
            Command::RetryFailed(it) => self.retry_failed(it.submission),
            Command::Change(it) => change::change(batch, tables, &it),
            Command::Enlist(it) => self.roster.enlist(tables, at, &it),
            Command::Weigh(it) => weights::weigh(tables, it),
            Command::SetLane(it) => lanes::open::set_lane(lanes, tables, at, &it),
            Command::AddTasks(ref it) => self.add_tasks(&entry, it),
            Command::Ack(it) => acks::ack(lanes, &it),
            Command::ReleaseTasks => delayed::release(lanes, tables, at),
            Command::Redrive(it) => lanes::redrive::redrive(lanes, tables, &it),
            Command::WeighKeys(it) => lanes::weigh::weigh_keys(lanes, tables, it),
            Command::LimitLane(it) => lanes::limiting::limit_lane(lanes, tables, it),
            Command::Relevel(it) => lanes::relevel::relevel(lanes, tables, &it),
            Command::CreateBranch(ref it) => self.create_branch(&entry, it),
            Command::DeleteBranch(ref it) => self.delete_branch(&entry, it),
            Command::ResetBranch(ref it) => self.reset_branch(&entry, it),
            Command::Grant(it) => self.grant(&it),
            Command::Stage(ref it) => self.stage(&entry, it),
            Command::Announce(ref it) => self.announce(&entry, it),
            Command::NoteFiles(it) => commits::note_files(&self.branches, tables, &it),
            Command::Perform(it) => self.perform(it),
            Command::Abort(it) => self.abort(it),
            Command::Sweep => sweep::sweep(&mut self.branches, tables),
            Command::CompleteTasks(it) => lanes::settle::complete_tasks(lanes, tables, &it),
            Command::OrderKeys(it) => lanes::key_order::order_keys(lanes, tables, &it),
        }
    }

    fn lead(&mut self, it: &Lead, epoch: Epoch, seed: u64) -> Applied {
        if self.own.epoch == Epoch(0) {
            let mut chance = Seeded::new(seed);
            let halves = [chance.draw().to_be_bytes(), chance.draw().to_be_bytes()];
            self.own.token_key =
                ByteArray::from(<[u8; 16]>::try_from(halves.concat()).expect("8 and 8 are 16"));
        }
        self.own.epoch = epoch;
        self.own.shard = it.shard;
        Applied { outcome: Outcome::Led { epoch }, effects: Vec::new() }
    }

    fn submit(&mut self, entry: &Entry, it: &Submit) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let refusal = self.refusal_of_output(it);
        self.once(entry, it.idempotency_key.as_deref(), it, refusal, |machine| {
            let id = machine.next_id();
            submit::submit(&mut machine.batch, &mut machine.tables, machine.own.at, id, it)
        })
    }

    fn add_tasks(&mut self, entry: &Entry, it: &AddTasks) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        // What the leader had handed out when it took the request is no part of the request.
        let asked = (&it.lane, &it.tasks);
        let refusal = writer::refusal(&self.lanes, it);
        self.once(entry, it.idempotency_key.as_deref(), &asked, refusal, |machine| {
            let (at, shard) = (machine.own.at, machine.own.shard);
            let last = &mut machine.own.last_submission;
            let next_id = || *last.insert(SubmissionId::next(*last, at, shard));
            writer::add(&mut machine.lanes, &mut machine.tables, at, it, next_id)
        })
    }

    /// Carries a request out, unless it was before: then one with a key is answered as it was, whether or not it would be refused now.
    fn once(
        &mut self,
        entry: &Entry,
        idempotency_key: Option<&str>,
        asked: &impl Encode<()>,
        refusal: Option<Refusal>,
        carry_out: impl FnOnce(&mut Machine<T>) -> Applied,
    ) -> Applied {
        let keyed = idempotency_key.map(|key| (RequestId::of(key), dedup::digest(&rows::encode(asked))));
        let known = match &keyed {
            Some((request, digest)) => Window::look_up(&self.tables, request, *digest),
            None if self.own.senders.know(entry.sender, entry.token) => {
                return Applied::refused(Refusal::Repeated);
            }
            None => Known::New,
        };
        match known {
            Known::New => {}
            Known::Answered(outcome) => return Applied { outcome, effects: Vec::new() },
            Known::Mismatch => return Applied::refused(Refusal::IdempotencyKeyReused),
        }
        if let Some(refusal) = refusal {
            return Applied::refused(refusal);
        }

        // Nothing below can be refused.
        let applied = carry_out(self);
        let (at, tables) = (self.own.at, &mut self.tables);
        match keyed {
            Some((request, digest)) => {
                self.own.window.open(tables, at, &request, digest, applied.outcome.clone());
            }
            None => self.own.senders.note(entry.sender, entry.token),
        }
        self.own.window.close_due(&mut self.oldest_replies, tables, at);
        applied
    }

    fn next_id(&mut self) -> SubmissionId {
        let id = SubmissionId::next(self.own.last_submission, self.own.at, self.own.shard);
        *self.own.last_submission.insert(id)
    }

    /// Writes every changed row, so that the tables hold all that memory knows. Committing them is the caller's business,
    /// who adds the log's position to the same batch.
    pub fn flush(&mut self) {
        self.batch.flush(&mut self.tables);
        self.lanes.flush(&mut self.tables);
        self.branches.flush(&mut self.tables);
        self.tables.put(Table::Meta, MACHINE_KEY, rows::encode(&self.own));
    }

    /// The leadership that holds.
    pub const fn epoch(&self) -> Epoch {
        self.own.epoch
    }

    /// The time of the last entry.
    pub const fn at(&self) -> At {
        self.own.at
    }

    /// The key that reservation tokens are made with.
    pub fn token_key(&self) -> [u8; 16] {
        *self.own.token_key
    }

    /// How many replies the dedup window holds.
    pub fn replies(&self) -> u64 {
        self.own.window.len()
    }

    /// The batch room.
    pub const fn batch(&self) -> &BatchState {
        &self.batch
    }

    /// Who may hold work under a hard limit.
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The weights of the values of every field that has some.
    pub fn weights(&self) -> impl Iterator<Item = (String, Weights)> {
        weights::all_weights(&self.tables)
    }

    /// The weights of a field's values.
    pub fn weights_of(&self, field: &str) -> Weights {
        weights::weights_of(&self.tables, field)
    }

    /// What can be handed out, submission by submission: what a new leader's reserver starts from. Everything must be
    /// flushed.
    pub fn unsettled(&self) -> impl Iterator<Item = Unsettled> {
        self.batch.all_unsettled(&self.tables)
    }

    /// The lanes.
    pub const fn lanes(&self) -> &LanesState {
        &self.lanes
    }

    /// The branches.
    pub const fn branches(&self) -> &BranchesState {
        &self.branches
    }

    /// The rows.
    pub const fn tables(&self) -> &T {
        &self.tables
    }

    /// The rows, for the log's own position.
    pub const fn tables_mut(&mut self) -> &mut T {
        &mut self.tables
    }
}
