//! Everything at once, by chance: adds, hand-outs, reports on time and late, losses, pauses, restarts, crashes, and errands
//! that take their time. A naive model says what each entry gives; the oracles look at each hand-out; the audit recounts
//! everything after each step. Whoever was given nothing is told when there is something.
//!
//! With limits, there are tenants too, weights change, and levels are given anew; then `limited` says what may go out.

mod limited;

use crate::leader::{BEGIN, Held, LANE, Leader, complete, fail, name_of};
use crate::model::{Known, Model};
use crate::oracles::{Seen, Watch};
use crate::sequences;
use limited::Limited;
use std::collections::BTreeMap;
use windlass_core::batch::reserver::{Holder, LostTooOften, SessionId, Standing as Stands};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::views::PlanId;
use windlass_core::entry::{Applied, Command, Effect, Entry, Lead};
use windlass_core::ids::{Epoch, Shard};
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{Level, RankName, Weight};
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::tasks::{NewTask, Payload, Standing, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::{TASK_PAYLOAD_IN_ROW_BYTES_MAX, TASKS_PER_GROUP_MIN};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::{MemoryTables, Table};

const LANES: [&str; 2] = [LANE, "post"];
const KEYS: [&str; 6] = ["", "a", "b", "ab", "acme", "zeta"];
const KEYS_AND_USERS: [&str; 9] = ["", "a", "b", "t/x", "t/y", "t/z", "u/x", "u/y", "/x"];
const WEIGHTS_MILLI: [u32; 7] = [1_000, 2_000, 500, 333, 7_000, 100_000, 1];

#[test]
fn lanes_keep_every_promise_whatever_happens() {
    let how = How { is_late: false, is_limited: false };
    sequences::run("lanes_keep_every_promise_whatever_happens", 300, |seed| play(seed, 150, how));
}

#[test]
fn nothing_is_lost_or_given_twice_if_the_leader_hears_of_everything_late() {
    let name = "nothing_is_lost_or_given_twice_if_the_leader_hears_of_everything_late";
    let how = How { is_late: true, is_limited: false };
    sequences::run(name, 300, |seed| play(seed, 150, how));
}

#[test]
fn limits_hold_and_nothing_is_withheld_whatever_happens() {
    let how = How { is_late: false, is_limited: true };
    sequences::run("limits_hold_and_nothing_is_withheld_whatever_happens", 300, |seed| play(seed, 250, how));
}

#[test]
fn limits_hold_and_nothing_is_withheld_if_the_leader_hears_of_everything_late() {
    let name = "limits_hold_and_nothing_is_withheld_if_the_leader_hears_of_everything_late";
    let how = How { is_late: true, is_limited: true };
    sequences::run(name, 300, |seed| play(seed, 250, how));
}

/// What may happen.
#[derive(Debug, Clone, Copy)]
struct How {
    /// The leader hears of effects later.
    is_late: bool,
    /// There are tenants, limits, and levels that are given anew.
    is_limited: bool,
}

fn play(seed: u64, steps: usize, how: How) {
    let mut chaos = Chaos::new(seed, how);
    for _ in 0..steps {
        chaos.step();
    }
    chaos.end();
}

pub(crate) struct Chaos {
    leader: Leader,
    model: Model,
    watch: Watch,
    chance: Seeded,
    keys: &'static [&'static str],
    weights: Vec<Weight>,
    is_late: bool,
    /// Each hand-out is watched by the oracles, which know nothing of limits and tenants.
    is_watched: bool,
    limits: Option<Limited>,
    held: Vec<Held>,
    /// Tokens of those who do not hold their task any more, as far as anybody knows.
    lost: Vec<Held>,
    too_often: Vec<LostTooOften>,
    /// The rows at some point, and every entry since.
    saved: MemoryTables,
    since: Vec<Entry>,
    last_add: Option<Entry>,
    /// Lanes that gave nothing; whoever waits for them is to be told when they do.
    asleep: BTreeMap<String, PlanId>,
}

impl Chaos {
    fn new(seed: u64, how: How) -> Chaos {
        let mut chance = Seeded::new(seed);
        let tasks = 2 + pick(&mut chance, 8);
        let reload_at = pick(&mut chance, tasks);
        let keys: &[&str] = if how.is_limited { &KEYS_AND_USERS } else { &KEYS };
        let weights: Vec<Weight> = keys
            .iter()
            .map(|_| {
                Weight::from_milli(WEIGHTS_MILLI[pick(&mut chance, WEIGHTS_MILLI.len())]).expect("a weight")
            })
            .collect();
        let mut leader = Leader::new(tasks, reload_at);
        leader.machine = Machine::open(MemoryTables::default());
        let mut chaos = Chaos {
            leader,
            model: Model::default(),
            watch: Watch::new(keys.len()),
            chance,
            keys,
            weights,
            is_late: how.is_late,
            is_watched: !how.is_late && !how.is_limited,
            limits: how.is_limited.then(Limited::default),
            held: Vec::new(),
            lost: Vec::new(),
            too_often: Vec::new(),
            saved: MemoryTables::default(),
            since: Vec::new(),
            last_add: None,
            asleep: BTreeMap::new(),
        };
        chaos.restart();
        for name in LANES {
            let set = SetLane {
                name: name.into(),
                may_create: true,
                is_paused: None,
                is_draining: None,
                without_key_order: true,
            };
            chaos.apply(Command::SetLane(set));
        }
        chaos.leader.is_late = how.is_late;
        chaos
    }

    fn below(&mut self, bound: usize) -> usize {
        pick(&mut self.chance, bound)
    }

    fn step(&mut self) {
        match self.below(100) {
            _ if self.limits.is_some() && self.below(7) == 0 => self.step_limited(),
            0..20 => self.add(),
            20..42 => self.reserve(),
            42..52 => self.settle_one(),
            52..56 => self.complete_many(),
            56..60 => self.put_back(),
            60..62 => self.settle_late(),
            62..64 => self.set_lane(),
            64..80 => self.run_errand(),
            80..84 => self.pass_time(),
            84 => self.restart(),
            85..87 => self.crash(),
            87..89 => self.leader.note_all(),
            89..91 => self.redrive(),
            91..93 => self.deliver_again(),
            // The oracles know one weight of each key.
            95 if self.is_late => self.weigh(),
            93..95 => self.be_fenced(),
            _ => {
                let count = self.below(4);
                self.leader.tell(count);
            }
        }
        self.reconcile();
        self.leader.audit();
    }

    fn apply(&mut self, command: Command) -> Applied {
        let entry = self.leader.entry(command);
        self.apply_entry(entry)
    }

    fn apply_entry(&mut self, entry: Entry) -> Applied {
        self.since.push(entry.clone());
        let applied = self.leader.apply_entry(entry.clone());
        let expected = self.model.apply(&entry, &applied);
        assert_eq!(applied, expected, "after {entry:?}");
        self.model.agrees(self.leader.machine.lanes());
        self.note_keys(&applied);
        if self.is_watched {
            applied.effects.iter().for_each(|effect| self.follow(effect));
        }
        applied
    }

    fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::TaskPlaced { rank, level, key, times, .. } => {
                self.watch.pass_time(*rank, times.rank);
                let Known { stride, was_delayed, .. } = self.model.tasks[&level.id];
                let key = KEYS.iter().position(|it| **it == **key).expect("it is one of the keys");
                self.watch.placed(*rank, *level, Seen::new(key, stride, !was_delayed), None);
            }
            Effect::TaskUnplaced { rank, level, .. } => {
                self.watch.unplaced(*rank, *level);
                self.watch.pass_time(*rank, self.model.virtual_time(*rank));
            }
            _ => {}
        }
    }

    fn add(&mut self) {
        // Now and then so many that they share a row.
        let count = if self.below(8) == 0 { TASKS_PER_GROUP_MIN + self.below(12) } else { 1 + self.below(6) };
        let tasks = (0..count).map(|_| self.new_task()).collect();
        let lane = LANES[usize::from(self.below(8) == 0)];
        let mut add = self.leader.stamped(lane, tasks);
        if self.below(10) == 0 {
            add.idempotency_key = Some(format!("key {}", self.below(3)));
            add.tasks.truncate(1);
            add.tasks[0] = NewTask::new(self.keys[1]);
            add.tasks[0].weight = self.weights[1];
        }
        let entry = self.leader.entry(Command::AddTasks(add));
        self.last_add = Some(entry.clone());
        self.apply_entry(entry);
    }

    fn new_task(&mut self) -> NewTask {
        // Mostly few keys, so that each has several tasks.
        let key = if self.below(4) == 0 { self.below(self.keys.len()) } else { 1 + self.below(2) };
        let delay = [0, 0, 0, 0, 0, 0, 1, 700][self.below(8)];
        NewTask {
            weight: self.weights[key],
            priority: [0, 0, 0, 0, 0, 1, 9][self.below(7)],
            not_before: (delay > 0).then(|| self.leader.now.after_ms(delay)),
            attempts_max: 1 + [0, 1, 1, 4][self.below(4)],
            retry_delay_ms: [0, 0, 1, 900][self.below(4)],
            payload: match self.below(12) {
                0 => Payload::Inline(vec![7; TASK_PAYLOAD_IN_ROW_BYTES_MAX + 1].into()),
                1 => Payload::Object("inputs/1".into()),
                2..6 => Payload::Inline(vec![self.below(256) as u8; 3].into()),
                _ => Payload::Nothing,
            },
            ..NewTask::new(self.keys[key])
        }
    }

    fn reserve(&mut self) {
        let holder = match self.below(4) {
            0 => Holder::Lease { until: self.leader.now.after_ms(500) },
            number => Holder::Session(SessionId(number as u64)),
        };
        let (lane, max) = (LANES[usize::from(self.below(8) == 0)], 1 + self.below(4));
        self.reserve_of(lane, holder, max);
    }

    fn reserve_of(&mut self, lane: &str, holder: Holder, max: usize) -> usize {
        let plan = self.leader.reserver.plan(&Strategy::lane(lane), self.leader.now).expect("a lane");
        let woken = self.leader.reserver.ready_mut().take_woken();
        self.asleep.retain(|_, plan| !woken.contains(plan));
        let out = self.leader.reserve_of(lane, holder, max);
        let count = out.len();
        let is_asleep = self.asleep.get(lane) == Some(&plan);
        assert!(!is_asleep || count == 0, "{lane} has something to give, and nobody was told");
        if count < max {
            self.asleep.insert(lane.to_owned(), plan);
        }
        for held in out {
            assert!(self.held.iter().all(|it| it.id != held.id), "task {} is out already", held.id);
            self.look_at_hand_out(held);
            if self.is_watched {
                let (rank, level) = self.place_of(held.id).expect("what goes out has a place");
                self.watch.handed_out(rank, level);
            }
            self.held.push(held);
        }
        count
    }

    fn place_of(&self, id: TaskId) -> Option<(RankName, Level)> {
        let known = self.model.tasks.get(&id)?;
        match known.standing {
            Standing::Waiting { pass } => Some((known.rank, Level { pass, id })),
            Standing::Delayed { .. } | Standing::Dead => None,
        }
    }

    fn settle_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let nth = self.below(self.held.len());
        let held = self.held[nth];
        let command = if self.below(4) == 0 { fail(held.id, held.token.attempt) } else { complete(held) };
        self.apply(command);
    }

    /// One report of tasks that are held, were lost, were never out, or come twice; what it says of their places may be old.
    fn complete_many(&mut self) {
        let mut all = Vec::new();
        for _ in 0..1 + self.below(5) {
            let from = if self.below(4) == 0 { &self.lost } else { &self.held };
            if !from.is_empty() {
                all.push(from[pick(&mut self.chance, from.len())]);
            }
        }
        let (mut report, order) = self.leader.complete_all(&all);
        assert_eq!(order.len(), all.len(), "each gets an answer");
        let levels = report.placed.iter_mut().flat_map(|of_queue| &mut of_queue.levels);
        for level in levels {
            if self.chance.below(8) == 0 {
                level.pass += 1;
            }
        }
        self.apply(Command::CompleteTasks(report));
    }

    /// Somebody gives back, vanishes, or has vanished often.
    fn put_back(&mut self) {
        match self.below(4) {
            0 => {
                let session = SessionId(1 + self.below(3) as u64);
                let now = self.leader.now;
                let too_often = self.leader.reserver.lose_session(session, now);
                self.too_often.extend(too_often);
            }
            1 => {
                let session = SessionId(1 + self.below(3) as u64);
                self.leader.reserver.release_session(session);
            }
            2 => {
                if let Some(LostTooOften { chunk, attempt, .. }) = self.too_often.pop() {
                    self.apply(fail(chunk.submission, attempt));
                }
            }
            _ if self.held.is_empty() => {}
            _ => {
                let nth = self.below(self.held.len());
                let held = self.held[nth];
                self.leader.reserver.release(name_of(held.id), held.token);
            }
        }
    }

    /// A report of somebody who does not hold the task any more.
    fn settle_late(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let nth = self.below(self.lost.len());
        let held = self.lost[nth];
        let command = if self.below(2) == 0 { fail(held.id, held.token.attempt) } else { complete(held) };
        self.apply(command);
    }

    fn set_lane(&mut self) {
        let mut some = || [None, Some(false), Some(false), Some(true)][pick(&mut self.chance, 4)];
        let (is_paused, is_draining) = (some(), some());
        let name = LANES[self.below(2)].into();
        self.apply(Command::SetLane(SetLane {
            name,
            may_create: false,
            is_paused,
            is_draining,
            without_key_order: true,
        }));
    }

    /// One step of one errand. What is noted may be lost on its way; what is read must come back.
    fn run_errand(&mut self) {
        self.leader.collect_errands();
        let asked = self.leader.errands.len();
        match self.below(asked + self.leader.looked.len() + 1) {
            nth if nth < asked => match self.leader.errands.swap_remove(nth) {
                Errand::Note(ack) if self.below(3) > 0 => {
                    self.apply(Command::Ack(ack));
                }
                Errand::Note(_) => {}
                Errand::Read { queue, .. } if self.below(8) == 0 => {
                    self.leader.reserver.at_desk(|desk| desk.give_up_read(&queue));
                }
                read => self.leader.go_for(read),
            },
            nth if nth - asked < self.leader.looked.len() => {
                let looked = self.leader.looked.swap_remove(nth - asked);
                self.leader.deliver(looked);
            }
            _ => {}
        }
    }

    fn pass_time(&mut self) {
        self.leader.now = self.leader.now.after_ms([1, 10, 600, 1_500][self.below(4)]);
        let now = self.leader.now;
        let too_often = self.leader.reserver.tick(now);
        self.too_often.extend(too_often);
        self.leader.reserver.at_desk(|desk| desk.make_room(now));
        if self.leader.reserver.at_desk(|desk| desk.take_due(now)) {
            self.apply(Command::ReleaseTasks);
        }
    }

    fn restart(&mut self) {
        let lead = self.leader.entry(Command::Lead(Lead { shard: Shard::default() }));
        let epoch = Epoch(lead.epoch.0 + 1);
        self.leader.is_audited = false;
        self.apply_entry(Entry { epoch, ..lead });
        self.leader.is_audited = true;
        self.leader.machine = Machine::open(self.leader.machine.tables().clone());
        self.leader.take_charge();
        self.too_often.clear();
        self.asleep.clear();
        self.begin_limited();
        self.watch.restart(|rank| self.model.virtual_time(rank));
        let before = std::mem::take(&mut self.held);
        for held in before {
            match self.place_of(held.id) {
                Some((rank, level)) if self.below(3) == 0 => self.reassert(held, rank, level),
                _ => self.lost.push(held),
            }
        }
    }

    fn reassert(&mut self, held: Held, rank: RankName, level: Level) {
        let known = &self.model.tasks[&held.id];
        let placed = Placed { level, key: known.key.as_str().into(), stride: known.stride };
        let session = SessionId(1 + self.below(3) as u64);
        let standing = self.leader.reserver.reassert_task(session, rank, placed, held.token);
        assert_eq!(standing, Stands::Holds);
        self.held.push(held);
        self.note_held(held);
        if self.is_watched {
            self.watch.held(rank, level);
        }
    }

    /// What was not saved is gone, and comes back from the log, the same to the last byte.
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
    }

    fn redrive(&mut self) {
        let dead = self.model.tasks.iter().filter(|(_, known)| known.standing == Standing::Dead);
        let mut tasks: Vec<TaskId> = dead.map(|(id, _)| *id).collect();
        tasks.extend(self.model.tasks.keys().next());
        tasks.truncate(self.below(4));
        let lane = LANES[self.below(2)].into();
        self.apply(Command::Redrive(Redrive { lane, tasks }));
    }

    fn weigh(&mut self) {
        let weight = WEIGHTS_MILLI[self.below(WEIGHTS_MILLI.len())];
        let weight = Weight::from_milli(weight).filter(|_| self.below(3) > 0);
        let (lane, key) = (LANES[self.below(2)], self.name_to_weigh());
        self.apply(Command::WeighKeys(WeighKeys { lane: lane.into(), weights: [(key, weight)].into() }));
    }

    /// The log may deliver twice, and a broken sender may send something else under the same name.
    fn deliver_again(&mut self) {
        let Some(entry) = self.last_add.clone().filter(|it| it.epoch == self.leader.machine.epoch()) else {
            return;
        };
        let mut again = Entry { at: self.leader.now, ..entry };
        if let Command::AddTasks(add) = &mut again.command {
            add.handed_out.iter_mut().for_each(|it| it.pass /= 2);
            if self.below(3) == 0 {
                add.tasks[0].attempts_max += 1;
            }
        }
        self.apply_entry(again);
    }

    /// An entry of a leadership that has ended changes nothing.
    fn be_fenced(&mut self) {
        let command = match self.last_add.clone() {
            Some(add) if self.below(2) == 0 => add.command,
            _ => Command::ReleaseTasks,
        };
        let entry = self.leader.entry(command);
        let entry = Entry { epoch: Epoch(entry.epoch.0 - 1), ..entry };
        let before = self.leader.machine.tables().clone();
        let applied = self.leader.apply_entry(entry);
        assert!(applied.effects.is_empty(), "{applied:?}");
        assert_eq!(*self.leader.machine.tables(), before);
    }

    /// Finds out who holds what.
    fn reconcile(&mut self) {
        let reserver = &self.leader.reserver;
        let holds = |held: &Held| reserver.standing(name_of(held.id), held.token) == Stands::Holds;
        let (held, lost) = std::mem::take(&mut self.held).into_iter().partition(holds);
        self.held = held;
        self.lost.extend::<Vec<Held>>(lost);
        if self.is_late {
            return;
        }
        for id in self.watch.out() {
            if !self.leader.reserver.desk().is_out(id) {
                self.watch.put_back(id);
            }
        }
        let due = self.leader.reserver.desk().next_due();
        let first = self.model.next_due();
        assert!(first.is_none() || (due.is_some() && due <= first), "{first:?} is due, {due:?} is known");
    }

    /// Whatever happened: everything that is there goes out and can be done, and then nothing is left.
    fn end(&mut self) {
        self.leader.is_late = false;
        self.leader.tell(usize::MAX);
        self.lift_limits();
        for name in LANES {
            let set = SetLane {
                name: name.into(),
                may_create: false,
                is_paused: Some(false),
                is_draining: None,
                without_key_order: true,
            };
            self.apply(Command::SetLane(set));
        }
        self.reconcile();
        for _ in 0..10_000 {
            let is_over = self.model.tasks.values().all(|known| known.standing == Standing::Dead);
            if is_over {
                break;
            }
            self.run_errand();
            self.reserve();
            self.pass_time();
            self.reconcile();
            for held in std::mem::take(&mut self.held) {
                self.apply(complete(held));
            }
            self.reconcile();
        }
        let left = self.model.tasks.len();
        let dead = self.model.tasks.values().filter(|known| known.standing == Standing::Dead).count();
        assert_eq!(left, dead, "everything that did not die was done: {:?}", self.model.tasks);
        assert_eq!([self.leader.rows(Table::Levels), self.leader.rows(Table::KeyLevels)], [0, 0]);
        self.check_nothing_is_remembered();
        assert_eq!(self.leader.rows(Table::Tasks), dead);
        assert_eq!(self.watch.waiting(), 0);
        assert!(self.leader.now >= BEGIN);
    }
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
