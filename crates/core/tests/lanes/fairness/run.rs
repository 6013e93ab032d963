//! A long run of a lane, each hand-out of which is watched.
//!
//! Keys keep as many tasks waiting as they want just then; consumers take some and report them in any order. In some runs
//! tasks of one key come with different weights, and in some an add is on its way through the log while others go on. In a run
//! with troubles some tasks have a higher priority or come later, some fail and are tried again, some are given back, some are
//! reported by those who do not hold them any more, keys get other weights, for their backlog too, and the server crashes.

use crate::leader::{ANNA, Held, LANE, Leader, complete, fail, name_of};
use crate::model::{Known, Model};
use crate::oracles::{Seen, Watch};
use std::collections::VecDeque;
use windlass_core::batch::reserver::Standing as Stands;
use windlass_core::entry::{Applied, Command, Effect, Entry, Lead, Outcome, Settled};
use windlass_core::ids::{Epoch, Shard};
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{Level, RankName, Weight};
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::relevel::{Relevel, Releveled};
use windlass_core::lanes::tasks::{HandedOut, NewTask, Standing, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::{MemoryTables, Table};

/// Everything is recounted after so many steps.
const STEPS_PER_AUDIT: u64 = 256;

pub(super) struct Run {
    leader: Leader,
    model: Model,
    pub(super) watch: Watch,
    chance: Seeded,
    is_troubled: bool,
    /// Tasks of one key come with different weights.
    is_mixed: bool,
    /// So many adds are on their way through the log at a time.
    adds_max: usize,
    /// Adds as the leader stamped them, which are not in the log yet, or not applied.
    adds: VecDeque<Entry>,
    /// What the add that is being applied was stamped with, by priority.
    stamped: Vec<HandedOut>,
    keys: Vec<(String, Weight)>,
    held: Vec<Held>,
    held_max: usize,
    /// What those hold who worked for the leader before.
    lost: Vec<Held>,
    /// Tasks that each key wants to have waiting at each priority, which changes now and then.
    wanted: [Vec<usize>; 2],
    /// The rows at some point, and every entry since.
    saved: MemoryTables,
    since: Vec<Entry>,
    added: u64,
    done: u64,
    steps: u64,
}

impl Run {
    pub(super) fn new(seed: u64, is_troubled: bool) -> Run {
        let mut chance = Seeded::new(seed);
        let tasks = 4 + pick(&mut chance, 29);
        let reload_at = 1 + pick(&mut chance, tasks - 1);
        let count = 2 + pick(&mut chance, 7);
        let keys: Vec<_> = (0..count).map(|key| (format!("key {key}"), weight(&mut chance))).collect();
        let (is_mixed, adds_max) = (chance.below(3) == 0, [0, 0, 3][pick(&mut chance, 3)]);
        let mut leader = Leader::new(tasks, reload_at);
        leader.is_audited = false;
        let mut run = Run {
            saved: leader.machine.tables().clone(),
            leader,
            model: Model::default(),
            watch: Watch::new(keys.len()),
            held_max: 1 + pick(&mut chance, 60),
            wanted: [vec![0; keys.len()], vec![0; keys.len()]],
            chance,
            is_troubled,
            is_mixed,
            adds_max,
            adds: VecDeque::new(),
            stamped: Vec::new(),
            keys,
            held: Vec::new(),
            lost: Vec::new(),
            since: Vec::new(),
            added: 0,
            done: 0,
            steps: 0,
        };
        run.apply(Command::SetLane(SetLane {
            name: LANE.into(),
            may_create: true,
            is_paused: None,
            is_draining: None,
            without_key_order: true,
        }));
        run
    }

    fn below(&mut self, bound: usize) -> usize {
        pick(&mut self.chance, bound)
    }

    fn apply(&mut self, command: Command) -> Applied {
        let entry = self.leader.entry(command);
        self.apply_entry(entry)
    }

    fn apply_entry(&mut self, entry: Entry) -> Applied {
        let applied = self.leader.apply_entry(entry.clone());
        assert_eq!(applied, self.model.apply(&entry, &applied));
        if self.is_troubled {
            self.since.push(entry);
        }
        applied.effects.iter().for_each(|effect| self.follow(effect));
        applied
    }

    fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::TaskPlaced { rank, level, key, times, .. } => {
                self.watch.pass_time(*rank, times.rank);
                let Known { stride, was_delayed, .. } = self.model.tasks[&level.id];
                let key = self.keys.iter().position(|(it, _)| **it == **key).expect("it is one of them");
                let stamped = self.stamped.iter().find(|it| it.priority == rank.priority).map(|it| it.pass);
                self.watch.placed(*rank, *level, Seen::new(key, stride, !was_delayed), stamped);
            }
            Effect::TaskUnplaced { rank, level, .. } => {
                self.watch.unplaced(*rank, *level);
                self.watch.pass_time(*rank, self.model.virtual_time(*rank));
            }
            _ => {}
        }
    }

    pub(super) fn step(&mut self) {
        match self.below(1_000) {
            0..20 => self.want(),
            20..22 => self.restart(),
            22..290 => self.add(),
            290..300 => self.apply_adds(1),
            300..320 => self.leader.note_all(),
            320..550 => self.run_errand(),
            550..620 if self.is_troubled => self.trouble(),
            _ => self.work(),
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_AUDIT) {
            self.leader.audit_now();
        }
    }

    fn trouble(&mut self) {
        match self.below(36) {
            0..13 => self.fail(),
            13..20 => self.give_back(),
            20..24 => self.report_late(),
            24..34 => {
                let ms = [1, 10, 600][self.below(3)];
                self.pass_time(ms);
            }
            34 => self.crash(),
            _ => self.weigh(),
        }
    }

    fn want(&mut self) {
        let nth = self.below(self.keys.len());
        let is_high = self.is_troubled && self.below(2) == 0;
        let most = if is_high { [0, 0, 0, 5] } else { [0, 1, 3, 40] };
        self.wanted[usize::from(is_high)][nth] = most[self.below(4)];
    }

    fn add(&mut self) {
        let (nth, priority) = (self.below(self.keys.len()), self.below(4) == 0);
        let (key, weight) = self.keys[nth].clone();
        let rank = self.leader.rank(u8::from(priority));
        let lane = self.leader.machine.lanes().by_number(rank.lane).expect("it was created");
        let row = lane.ranks().find(|(it, _)| *it == rank.priority).and_then(|(_, rank)| rank.key(&key));
        let waiting = usize::try_from(row.map_or(0, |row| row.waiting)).expect("they are few");
        let missing = self.wanted[usize::from(priority)][nth].saturating_sub(waiting);
        if missing > 0 {
            let new = NewTask { weight, priority: rank.priority, ..NewTask::new(key) };
            let tasks: Vec<_> = (0..missing).map(|_| self.troubled(new.clone())).collect();
            let add = self.leader.stamped(LANE, tasks);
            let entry = self.leader.entry(Command::AddTasks(add));
            self.adds.push_back(entry);
            let is_late = self.adds_max > 0 && self.below(2) == 0;
            self.apply_adds(if is_late { self.adds.len().saturating_sub(self.adds_max) } else { usize::MAX });
        }
    }

    /// Adds come out of the log in the order in which they went in.
    fn apply_adds(&mut self, count: usize) {
        for entry in self.adds.drain(..count.min(self.adds.len())).collect::<Vec<_>>() {
            let entry = Entry { at: self.leader.now, ..entry };
            let Command::AddTasks(add) = &entry.command else { panic!("it is an add") };
            self.stamped.clone_from(&add.handed_out);
            self.added += add.tasks.len() as u64;
            self.apply_entry(entry);
            self.stamped.clear();
        }
    }

    /// A key gets another weight, or goes by those of its tasks again; sometimes what waits of it gets new levels too.
    fn weigh(&mut self) {
        let nth = self.below(self.keys.len());
        let (key, weight) = (self.keys[nth].0.clone(), weight(&mut self.chance));
        let is_set = self.below(4) > 0;
        let weights = [(key.clone(), is_set.then_some(weight))].into();
        self.apply(Command::WeighKeys(WeighKeys { lane: LANE.into(), weights }));
        if is_set && self.below(2) == 0 {
            let order = || Command::OrderKeys(OrderKeys { lane: LANE.into(), tasks_max: 1_000 });
            while self.apply(order()).outcome == (Outcome::KeysOrdered { is_done: false }) {}
            let priority = u8::from(self.below(4) == 0);
            self.relevel(nth, priority, weight);
        }
    }

    fn relevel(&mut self, nth: usize, priority: u8, weight: Weight) {
        let key = self.keys[nth].0.clone();
        let mut moves = Vec::new();
        loop {
            let handed_out = self.leader.reserver.desk().handed_out(LANE, [(priority, &*key)]);
            let it = Relevel { lane: LANE.into(), priority, key: key.clone(), handed_out };
            let applied = self.apply(Command::Relevel(it));
            let Outcome::Releveled(Releveled { next, .. }) = applied.outcome else { panic!("{applied:?}") };
            moves.extend(applied.effects.iter().map(|effect| match effect {
                Effect::TaskMoved { from, to, .. } => (*from, *to),
                other => panic!("levels are given anew, and nothing else is done: {other:?}"),
            }));
            if next.is_none() {
                break;
            }
        }
        let rank = self.leader.rank(priority);
        self.watch.pass_time(rank, self.model.virtual_time(rank));
        self.watch.releveled(rank, nth, &moves, weight.stride());
    }

    fn troubled(&mut self, task: NewTask) -> NewTask {
        let weight = if self.is_mixed { weight(&mut self.chance) } else { task.weight };
        let task = NewTask { weight, ..task };
        if !self.is_troubled {
            return task;
        }
        let delay = [0, 0, 0, 0, 0, 0, 1, 700][self.below(8)];
        NewTask {
            not_before: (delay > 0).then(|| self.leader.now.after_ms(delay)),
            attempts_max: 1_000,
            retry_delay_ms: [0, 0, 1, 900][self.below(4)],
            ..task
        }
    }

    fn work(&mut self) {
        if self.held.len() >= self.held_max {
            self.complete_one();
        }
        let max = 1 + self.below(4);
        for held in self.leader.reserve(max) {
            let (rank, level) = self.place_of(held.id).expect("what goes out has a place");
            self.watch.handed_out(rank, level);
            self.held.push(held);
        }
    }

    fn complete_one(&mut self) {
        let nth = self.below(self.held.len());
        let held = self.held.swap_remove(nth);
        assert_eq!(self.complete(held), Settled::Accepted);
    }

    fn complete(&mut self, held: Held) -> Settled {
        let Outcome::Settled(settled) = self.apply(complete(held)).outcome else { panic!("it is a report") };
        self.done += u64::from(settled[0] == Settled::Accepted);
        settled[0]
    }

    fn place_of(&self, id: TaskId) -> Option<(RankName, Level)> {
        let known = self.model.tasks.get(&id)?;
        match known.standing {
            Standing::Waiting { pass } => Some((known.rank, Level { pass, id })),
            Standing::Delayed { .. } | Standing::Dead => None,
        }
    }

    fn fail(&mut self) {
        if !self.held.is_empty() {
            let nth = self.below(self.held.len());
            let held = self.held.swap_remove(nth);
            self.apply(fail(held.id, held.token.attempt));
        }
    }

    fn give_back(&mut self) {
        if !self.held.is_empty() {
            let nth = self.below(self.held.len());
            let held = self.held.swap_remove(nth);
            self.leader.reserver.release(name_of(held.id), held.token);
            self.watch.put_back(held.id);
        }
    }

    /// A report of somebody who worked for the leader before: whoever was given the task again works in vain.
    fn report_late(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let nth = self.below(self.lost.len());
        let late = self.lost.swap_remove(nth);
        if self.below(3) == 0 {
            self.apply(fail(late.id, late.token.attempt));
        } else {
            self.complete(late);
        }
        let reserver = &self.leader.reserver;
        self.held.retain(|held| reserver.standing(name_of(held.id), held.token) == Stands::Holds);
    }

    fn pass_time(&mut self, ms: u64) {
        self.leader.now = self.leader.now.after_ms(ms);
        let now = self.leader.now;
        self.leader.reserver.at_desk(|desk| desk.make_room(now));
        if self.leader.reserver.at_desk(|desk| desk.take_due(now)) {
            self.apply(Command::ReleaseTasks);
        }
    }

    /// Errands are done in no hurry and in any order.
    fn run_errand(&mut self) {
        self.leader.collect_errands();
        for errand in std::mem::take(&mut self.leader.errands) {
            match errand {
                Errand::Note(ack) => drop(self.apply(Command::Ack(ack))),
                read => self.leader.go_for(read),
            }
        }
        if self.below(2) == 0 {
            for looked in std::mem::take(&mut self.leader.looked) {
                self.leader.deliver(looked);
            }
        }
    }

    /// The next leader knows what the rows say; in a run with troubles some consumers go on with what they have.
    fn restart(&mut self) {
        // Some of the adds that are under way reach the log before that, and the others never will.
        let count = self.below(self.adds.len() + 1);
        self.apply_adds(count);
        self.adds.clear();
        let lead = self.leader.entry(Command::Lead(Lead { shard: Shard::default() }));
        let epoch = Epoch(lead.epoch.0 + 1);
        self.apply_entry(Entry { epoch, ..lead });
        self.leader.machine = Machine::open(self.leader.machine.tables().clone());
        self.leader.take_charge();
        self.watch.restart(|rank| self.model.virtual_time(rank));
        self.lost.clear();
        for held in std::mem::take(&mut self.held) {
            if self.is_troubled && self.below(3) == 0 {
                self.reassert(held);
            } else {
                self.lost.push(held);
            }
        }
    }

    fn reassert(&mut self, held: Held) {
        let (rank, level) = self.place_of(held.id).expect("what is held has a place");
        let known = &self.model.tasks[&held.id];
        let placed = Placed { level, key: known.key.as_str().into(), stride: known.stride };
        let standing = self.leader.reserver.reassert_task(ANNA, rank, placed, held.token);
        assert_eq!(standing, Stands::Holds);
        self.watch.held(rank, level);
        self.held.push(held);
    }

    /// What was not saved comes back from the log, the same to the last byte; what the leader kept in mind is gone.
    fn crash(&mut self) {
        let mut machine = Machine::open(self.saved.clone());
        for entry in self.since.drain(..) {
            machine.apply(entry);
            if self.chance.below(3) == 0 {
                machine.flush();
            }
        }
        machine.flush();
        assert_eq!(machine.tables(), self.leader.machine.tables(), "what is replayed is what was there");
        self.saved = machine.tables().clone();
        self.leader.machine = machine;
        self.restart();
    }

    /// Whatever happened: everything that is there goes out, each task is done once, and nothing is left.
    pub(super) fn drain(&mut self) {
        self.apply_adds(usize::MAX);
        for _ in 0..10_000 {
            if self.model.tasks.is_empty() {
                break;
            }
            self.run_errand();
            self.work();
            while !self.held.is_empty() {
                self.complete_one();
            }
            self.pass_time(900);
        }
        self.leader.audit_now();
        assert_eq!(self.done, self.added, "each is done once: {:?}", self.model.tasks);
        assert_eq!((self.watch.waiting(), self.watch.out()), (0, Vec::new()));
        for table in [Table::Levels, Table::KeyLevels, Table::Tasks, Table::TaskGroups, Table::DelayedTasks] {
            assert_eq!(self.leader.rows(table), 0, "{table:?}");
        }
    }
}

fn weight(chance: &mut Seeded) -> Weight {
    let milli = match chance.below(4) {
        0 => 1_000,
        1 => 1_000 << chance.below(5),
        2 => 1_000 >> chance.below(5),
        _ => 1 + u32::try_from(chance.below(20_000)).expect("it is small"),
    };
    Weight::from_milli(milli).expect("a weight")
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
