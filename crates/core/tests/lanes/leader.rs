//! The shell of the tests: a machine under one leadership after the other, with its reserver and desk beside it, and
//! somebody who reads and notes for the desk whenever the test says so.

use std::collections::{BTreeMap, VecDeque};
use windlass_core::audit;
use windlass_core::batch::reserver::{Holder, Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::{
    Applied, Command, Complete, Done, Effect, Entry, Fail, FailedAttempt, Lead, Outcome, Output, Refusal,
    Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, ChunkName, ContinuationToken, Epoch, SenderId, Shard};
use windlass_core::lanes::acks::levels_between;
use windlass_core::lanes::delayed::next_due;
use windlass_core::lanes::desk::{Buffer, Desk, Errand, RankSeen};
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{LaneNumber, Level, QueueName, RankName};
use windlass_core::lanes::listing;
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::ranks::RankRow;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::settle::CompleteTasks;
use windlass_core::lanes::state::LaneRow;
use windlass_core::lanes::tasks::{AddTasks, NewTask, Standing, Task, TaskId};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables, Walk};
use windlass_core::time::At;

/// When every story begins.
pub(crate) const BEGIN: At = At::from_ms(1_750_000_000_000);
pub(crate) const LANE: &str = "mail";
pub(crate) const ANNA: SessionId = SessionId(1);

/// A task that somebody works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) id: TaskId,
    pub(crate) token: AttemptToken,
}

/// Rows that were looked at, and are on their way to the desk.
#[derive(Debug)]
pub(crate) struct Looked {
    queue: QueueName,
    rows: Vec<Placed>,
    is_end: bool,
}

pub(crate) struct Leader {
    pub(crate) machine: Machine<MemoryTables>,
    pub(crate) reserver: Reserver,
    pub(crate) now: At,
    pub(crate) is_audited: bool,
    /// Errands that nobody has gone for yet.
    pub(crate) errands: Vec<Errand>,
    /// Reads that are on their way back.
    pub(crate) looked: Vec<Looked>,
    /// Effects are told later, when the test says so.
    pub(crate) is_late: bool,
    /// Effects that the reserver has not heard of yet.
    pub(crate) untold: VecDeque<Effect>,
    /// What the reserver has heard of lanes, one after the other.
    pub(crate) lanes_told: Vec<(LaneNumber, LaneRow)>,
    buffer: Buffer,
    entries: u64,
}

impl Leader {
    /// The first leader of a new machine with one lane.
    pub(crate) fn new(tasks: usize, reload_at: usize) -> Leader {
        let mut leader = Leader {
            machine: Machine::open(MemoryTables::default()),
            reserver: Reserver::new(Epoch(0), [0; 16], 0, std::iter::empty()),
            now: BEGIN,
            is_audited: true,
            errands: Vec::new(),
            looked: Vec::new(),
            is_late: false,
            untold: VecDeque::new(),
            lanes_told: Vec::new(),
            buffer: Buffer { tasks, reload_at },
            entries: 0,
        };
        leader.change();
        leader.set_lane(LANE, None, None);
        leader
    }

    /// The next leader takes over, on another member: it knows what the rows say, and nothing of errands.
    pub(crate) fn change(&mut self) {
        let epoch = Epoch(self.machine.epoch().0 + 1);
        let lead = self.entry(Command::Lead(Lead { shard: Shard::default() }));
        self.machine.apply(Entry { epoch, ..lead });
        self.machine.flush();
        self.machine = Machine::open(self.machine.tables().clone());
        self.take_charge();
    }

    /// What a leader begins with, from the rows.
    pub(crate) fn take_charge(&mut self) {
        let unsettled: Vec<_> = self.machine.unsettled().collect();
        let (epoch, token_key) = (self.machine.epoch(), self.machine.token_key());
        self.reserver = Reserver::new(epoch, token_key, 1, unsettled.into_iter());
        let due = next_due(self.machine.tables());
        self.reserver.set_desk(Desk::new(self.machine.lanes(), due, self.buffer));
        self.errands.clear();
        self.looked.clear();
        self.untold.clear();
        self.lanes_told.clear();
        let lanes = self.machine.lanes().all().map(|lane| lane.row());
        self.lanes_told.extend(lanes.map(|row| (row.number, row.clone())));
        self.audit();
    }

    /// Some time has passed: how far everything is done is to be noted.
    pub(crate) fn note_all(&mut self) {
        self.reserver.at_desk(|desk| desk.note_some(usize::MAX));
    }

    pub(crate) fn entry(&mut self, command: Command) -> Entry {
        self.entries += 1;
        Entry {
            epoch: self.machine.epoch(),
            at: self.now,
            seed: self.entries,
            sender: SenderId(1),
            token: ContinuationToken(self.entries),
            command,
        }
    }

    /// Applies a command and absorbs its effects.
    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        let entry = self.entry(command);
        self.apply_entry(entry)
    }

    pub(crate) fn apply_entry(&mut self, entry: Entry) -> Applied {
        let before = self.acked();
        let applied = self.machine.apply(entry);
        self.machine.flush();
        let after = self.acked();
        let went_back = before.iter().find(|(rank, level)| after.get(rank) < Some(level));
        assert_eq!(went_back, None, "A never moves back: it is {after:?}");
        self.untold.extend(applied.effects.iter().cloned());
        if !self.is_late {
            self.tell(usize::MAX);
        }
        self.audit();
        applied
    }

    /// A of each priority.
    fn acked(&self) -> BTreeMap<RankName, Option<Level>> {
        let ranks = self.machine.lanes().all().flat_map(|lane| {
            let lane_number = lane.row().number;
            let name = move |priority| RankName { lane: lane_number, priority };
            lane.ranks().map(move |(priority, rank)| (name(priority), rank.row().acked().level))
        });
        ranks.collect()
    }

    /// Tells the reserver of the next effects.
    pub(crate) fn tell(&mut self, count: usize) {
        for effect in self.untold.drain(..count.min(self.untold.len())) {
            self.reserver.absorb(&effect);
            if let Effect::LaneSet { lane, row, .. } = effect {
                self.lanes_told.push((lane, *row));
            }
        }
    }

    pub(crate) fn audit(&self) {
        if self.is_audited {
            self.audit_now();
        }
    }

    /// Recounts everything, for tests that do not after each step.
    pub(crate) fn audit_now(&self) {
        audit::check(&self.machine);
        if self.untold.is_empty() {
            audit::check_reserver(&self.machine, &self.reserver);
        }
    }

    pub(crate) fn set_lane(
        &mut self,
        name: &str,
        is_paused: Option<bool>,
        is_draining: Option<bool>,
    ) -> Outcome {
        let set =
            SetLane { name: name.into(), may_create: true, is_paused, is_draining, without_key_order: true };
        self.apply(Command::SetLane(set)).outcome
    }

    pub(crate) fn lane(&self) -> LaneNumber {
        self.machine.lanes().by_name(LANE).expect("it was created").row().number
    }

    pub(crate) fn rank(&self, priority: u8) -> RankName {
        RankName { lane: self.lane(), priority }
    }

    pub(crate) fn rank_row(&self, priority: u8) -> RankRow {
        let lane = self.machine.lanes().by_name(LANE).expect("it was created");
        lane.ranks().find(|(it, _)| *it == priority).map(|(_, rank)| *rank.row()).unwrap_or_default()
    }

    /// How the rank of tasks without a priority is handed out.
    pub(crate) fn look(&self) -> RankSeen {
        self.reserver.desk().look(self.rank(0)).expect("it has had tasks")
    }

    /// Tasks with the stamp of what is handed out right now.
    pub(crate) fn stamped(&self, lane: &str, tasks: Vec<NewTask>) -> AddTasks {
        let keys = tasks.iter().map(|task| (task.priority, task.key.as_str()));
        let handed_out = self.reserver.desk().handed_out(lane, keys);
        AddTasks { lane: lane.into(), tasks, handed_out, idempotency_key: None }
    }

    pub(crate) fn add(&mut self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let add = self.stamped(LANE, tasks);
        ids(&self.apply(Command::AddTasks(add)).outcome)
    }

    /// Adds so many tasks of a key.
    pub(crate) fn add_of(&mut self, key: &str, count: usize) -> Vec<TaskId> {
        self.add(vec![NewTask::new(key); count])
    }

    /// A command that may need each key's own tasks in order: they are put in order then, some at a time.
    pub(crate) fn apply_ordered(&mut self, command: Command) -> Outcome {
        let mut tasks_max = 1;
        loop {
            match self.apply(command.clone()).outcome {
                Outcome::Refused(Refusal::KeysUnordered { lane }) => {
                    let order = OrderKeys { lane, tasks_max };
                    let outcome = self.apply(Command::OrderKeys(order)).outcome;
                    assert!(matches!(outcome, Outcome::KeysOrdered { .. }), "{outcome:?}");
                    tasks_max = (2 * tasks_max).min(1_000);
                }
                outcome => return outcome,
            }
        }
    }

    /// Hands a session up to `max` tasks of the lane, as far as they are read.
    pub(crate) fn reserve(&mut self, max: usize) -> Vec<Held> {
        self.reserve_of(LANE, Holder::Session(ANNA), max)
    }

    pub(crate) fn reserve_of(&mut self, lane: &str, holder: Holder, max: usize) -> Vec<Held> {
        let plan = self.reserver.plan(&Strategy::lane(lane), self.now).expect("the lane is there");
        let hand_outs = self.reserver.reserve(holder, max, plan, self.now);
        self.audit();
        let held = hand_outs.into_iter().map(|it| Held { id: it.submission, token: it.chunks[0].1 });
        held.collect()
    }

    /// Hands out the next task, after whatever has to be read for it.
    pub(crate) fn next(&mut self) -> Option<Held> {
        loop {
            if let Some(held) = self.reserve(1).pop() {
                return Some(held);
            }
            if !self.do_errands() {
                return None;
            }
        }
    }

    /// The next task, which must be this one.
    pub(crate) fn next_is(&mut self, id: TaskId) -> Held {
        let held = self.next().expect("something waits");
        assert_eq!(held.id, id);
        held
    }

    /// Everything that can be handed out, in order; nothing of it is done.
    pub(crate) fn all(&mut self) -> Vec<Held> {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub(crate) fn collect_errands(&mut self) {
        let errands = self.reserver.at_desk(|desk| desk.errands());
        for errand in &errands {
            if let Errand::Read { queue, read } = errand
                && let Some(rank) = self.machine.lanes().rank(queue.rank)
            {
                let acked = queue.of.as_deref().map_or(rank.row().acked(), |of| rank.acked_around(of));
                assert!(read.above >= acked.level, "nothing is read below A, {acked:?}: {errand:?}");
            }
        }
        self.errands.extend(errands);
        self.audit();
    }

    /// Goes for an errand: what is to be noted is noted, what is to be read is looked at.
    pub(crate) fn go_for(&mut self, errand: Errand) {
        match errand {
            Errand::Read { queue, read } => {
                let scan = |table, range: windlass_core::tables::KeyRange<'_>| {
                    self.machine.tables().scan(table, range, Walk::Up)
                };
                let rows: Vec<_> =
                    levels_between(&queue, read.above, read.up_to, scan).take(read.limit).collect();
                let is_end = rows.len() < read.limit;
                self.looked.push(Looked { queue, rows, is_end });
            }
            Errand::Note(ack) => drop(self.apply(Command::Ack(ack))),
        }
    }

    /// Brings the desk what was looked at.
    pub(crate) fn deliver(&mut self, looked: Looked) {
        self.reserver.at_desk(|desk| desk.take_in(&looked.queue, looked.rows, looked.is_end));
        self.audit();
    }

    /// Goes for everything that is asked for; what is read is on its way.
    pub(crate) fn look_for_rows(&mut self) {
        self.collect_errands();
        for errand in std::mem::take(&mut self.errands) {
            self.go_for(errand);
        }
    }

    /// Brings the desk everything that was looked at.
    pub(crate) fn deliver_all(&mut self) {
        for looked in std::mem::take(&mut self.looked) {
            self.deliver(looked);
        }
    }

    /// Does everything that the desk waits for; false if that is nothing.
    pub(crate) fn do_errands(&mut self) -> bool {
        self.collect_errands();
        let is_something = !self.errands.is_empty() || !self.looked.is_empty();
        while !self.errands.is_empty() || !self.looked.is_empty() {
            self.look_for_rows();
            self.deliver_all();
            self.collect_errands();
        }
        is_something
    }

    pub(crate) fn complete(&mut self, held: Held) -> Settled {
        settled(&self.apply(complete(held)).outcome)
    }

    /// The report that some tasks are done, as the leader makes it.
    pub(crate) fn complete_all(&self, all: &[Held]) -> (CompleteTasks, Vec<usize>) {
        let desk = self.reserver.desk();
        CompleteTasks::of(all.iter().map(|held| (held.id, desk.place_of(held.id))))
    }

    pub(crate) fn fail(&mut self, held: Held) -> Settled {
        settled(&self.apply(fail(held.id, held.token.attempt)).outcome)
    }

    /// Gives a task back unharmed.
    pub(crate) fn release(&mut self, held: Held) {
        self.reserver.release(name_of(held.id), held.token);
        self.audit();
    }

    /// Lets time pass, and what was delayed up to then come.
    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        self.reserver.at_desk(|desk| desk.make_room(self.now));
        while self.reserver.at_desk(|desk| desk.take_due(self.now)) {
            self.apply(Command::ReleaseTasks);
        }
    }

    pub(crate) fn task(&self, id: TaskId) -> Option<Task> {
        listing::task(self.machine.tables(), id)
    }

    pub(crate) fn standing(&self, id: TaskId) -> Standing {
        self.task(id).expect("it is not done").standing
    }

    pub(crate) fn level(&self, id: TaskId) -> Level {
        match self.standing(id) {
            Standing::Waiting { pass } => Level { pass, id },
            other => panic!("task {id} has no level: {other:?}"),
        }
    }

    pub(crate) fn key(&self, id: TaskId) -> String {
        self.task(id).expect("it is not done").key
    }

    pub(crate) fn rows(&self, table: Table) -> usize {
        self.machine.tables().scan_prefix(table, &[]).count()
    }
}

pub(crate) fn complete(held: Held) -> Command {
    let done = vec![Done {
        chunk: ChunkIndex(0),
        attempt: held.token.attempt,
        output: Output::Nothing,
        entries: None,
    }];
    Command::Complete(Complete { submission: held.id, done })
}

pub(crate) fn fail(id: TaskId, attempt: Attempt) -> Command {
    let failed = vec![FailedAttempt { chunk: ChunkIndex(0), attempt, reason: "it broke".into() }];
    Command::Fail(Fail { submission: id, failed })
}

pub(crate) fn name_of(id: TaskId) -> ChunkName {
    ChunkName { submission: id, chunk: ChunkIndex(0) }
}

pub(crate) fn ids(outcome: &Outcome) -> Vec<TaskId> {
    match outcome {
        Outcome::TasksAdded { tasks } => tasks.iter().collect(),
        other => panic!("the tasks are taken in, not answered with {other:?}"),
    }
}

fn settled(outcome: &Outcome) -> Settled {
    match outcome {
        Outcome::Settled(settled) => *settled.first().expect("one was reported"),
        other => panic!("the report is taken in, not answered with {other:?}"),
    }
}
