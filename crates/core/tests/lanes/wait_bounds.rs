//! How long a task waits at most: what is said of a task that waits is compared with what then goes before it.

use crate::leader::{Held, LANE, Leader, complete, fail, ids, name_of};
use crate::sequences;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use windlass_core::entry::Command;
use windlass_core::lanes::levels::Weight;
use windlass_core::lanes::limiting::{Limit, LimitLane, Scope, SetLimit};
use windlass_core::lanes::tasks::{AddTasks, NewTask, Standing, TaskId};
use windlass_core::lanes::waits::{NoBound, Waits};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::seeded::Seeded;

const PLAIN: [&str; 4] = ["a", "b", "c", "d"];
const USERS: [&str; 6] = ["t/x", "t/y", "t/z", "u/x", "u/y", "v/x"];
const TENANTS: [&str; 3] = ["t/", "u/", "v/"];

#[test]
fn no_more_tasks_go_before_one_than_is_said_and_sometimes_just_as_many() {
    let name = "no_more_tasks_go_before_one_than_is_said_and_sometimes_just_as_many";
    let (kept, exact) = (AtomicU64::new(0), AtomicU64::new(0));
    sequences::run(name, 120, |seed| {
        let mut run = Run::new(seed);
        for _ in 0..3_000 {
            run.step();
        }
        kept.fetch_add(run.kept, Ordering::Relaxed);
        exact.fetch_add(run.exact, Ordering::Relaxed);
    });
    let (kept, exact) = (kept.into_inner(), exact.into_inner());
    println!("{kept} were kept, {exact} of them to the task");
    assert!(kept > 5_000 && exact > 500, "{kept} were kept, {exact} of them to the task");
}

/// What was said of a task.
struct Said {
    task: TaskId,
    bound: u64,
    /// Keys that had tasks.
    keys: BTreeSet<&'static str>,
    /// What went before it since.
    seen: u64,
}

struct Run {
    leader: Leader,
    chance: Seeded,
    weights: BTreeMap<&'static str, Weight>,
    keys: BTreeMap<TaskId, &'static str>,
    tried: BTreeSet<TaskId>,
    held: Vec<Held>,
    held_max: usize,
    counted_max: usize,
    /// On their way through the log.
    adds: Vec<(&'static str, AddTasks)>,
    said: Vec<Said>,
    kept: u64,
    exact: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut chance = Seeded::new(seed);
        let tasks = 4 + pick(&mut chance, 29);
        let mut leader = Leader::new(tasks, 1 + pick(&mut chance, tasks - 1));
        leader.is_audited = false;
        let names = PLAIN.into_iter().chain(USERS).chain(TENANTS);
        let mut weight = || match chance.below(3) {
            0 => Weight::ONE,
            1 => Weight::from_milli(1_000 << chance.below(4)).expect("a weight"),
            _ => Weight::from_milli(200 + chance.below(5_000) as u32).expect("a weight"),
        };
        let weights: BTreeMap<&'static str, Weight> = names.map(|name| (name, weight())).collect();
        let of_tenants = TENANTS.into_iter().map(|name| (name.to_owned(), Some(weights[name])));
        let weigh = WeighKeys { lane: LANE.into(), weights: of_tenants.collect() };
        leader.apply(Command::WeighKeys(weigh));
        Run {
            leader,
            held_max: 1 + pick(&mut chance, 30),
            counted_max: [5, 20, 10_000][pick(&mut chance, 3)],
            chance,
            weights,
            keys: BTreeMap::new(),
            tried: BTreeSet::new(),
            held: Vec::new(),
            adds: Vec::new(),
            said: Vec::new(),
            kept: 0,
            exact: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        pick(&mut self.chance, bound)
    }

    fn step(&mut self) {
        match self.below(1_000) {
            0..130 => self.propose(),
            130..260 => self.take_in(),
            260..265 => self.limit(),
            265..300 => self.report(),
            300..320 => self.leader.wait_ms(700),
            320..322 => self.restart(),
            322..450 => self.ask(),
            450..700 => {
                self.leader.look_for_rows();
                self.leader.deliver_all();
            }
            _ => self.work(),
        }
        self.forget();
    }

    fn propose(&mut self) {
        let keys: Vec<&'static str> = PLAIN.into_iter().chain(USERS).collect();
        let key = keys[self.below(keys.len())];
        if self.waiting(key) > 60 {
            return;
        }
        let delay = (self.below(12) == 0).then_some(1_000);
        let priority = u8::from(self.below(40) == 0);
        let not_before = delay.map(|ms| self.leader.now.after_ms(ms));
        let task = NewTask { weight: self.weights[key], priority, not_before, ..NewTask::new(key) };
        let count = 1 + self.below(12);
        let add = self.leader.stamped(LANE, vec![task; count]);
        self.adds.push((key, add));
    }

    /// What was proposed is applied, though others may have been handed out in the meantime.
    fn take_in(&mut self) {
        for (key, add) in std::mem::take(&mut self.adds) {
            let added = ids(&self.leader.apply(Command::AddTasks(add)).outcome);
            self.keys.extend(added.into_iter().map(|id| (id, key)));
        }
    }

    fn waiting(&self, key: &str) -> u32 {
        let rank = self.leader.rank(0);
        let rank = self.leader.machine.lanes().rank(rank);
        rank.and_then(|rank| rank.key(key)).map_or(0, |row| row.waiting)
    }

    fn limit(&mut self) {
        let names: Vec<&str> = PLAIN.into_iter().chain(USERS).chain(TENANTS).collect();
        let name = names[self.below(names.len())];
        let in_flight = [Some(0), Some(1), Some(4)][self.below(3)];
        let limit = (self.below(2) == 0).then_some(Limit { in_flight, rate: None });
        let set = vec![SetLimit { scope: Scope::Named(name.into()), limit }];
        self.leader.apply_ordered(Command::LimitLane(LimitLane { lane: LANE.into(), set }));
    }

    /// Something comes back, unharmed or failed.
    fn report(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let nth = self.below(self.held.len());
        let held = self.held.swap_remove(nth);
        if self.below(2) == 0 {
            self.leader.reserver.release(name_of(held.id), held.token);
        } else {
            self.leader.apply(fail(held.id, held.token.attempt));
        }
    }

    fn restart(&mut self) {
        self.said.clear();
        self.held.clear();
        self.adds.clear();
        self.leader.change();
    }

    /// Asks how long some task waits at most.
    fn ask(&mut self) {
        let rank = self.leader.rank(0);
        let desk = self.leader.reserver.desk();
        let waiting: Vec<TaskId> = self.keys.keys().copied().filter(|id| !desk.is_out(*id)).collect();
        if waiting.is_empty() {
            return;
        }
        let id = waiting[self.below(waiting.len())];
        let Some(task) = self.leader.task(id) else { return };
        let Standing::Waiting { .. } = task.standing else { return };
        let desk = self.leader.reserver.desk();
        if task.priority != 0 || !desk.blocks(rank.lane, &task.key, self.leader.now).is_empty() {
            return;
        }
        let at_once = 1 + pick(&mut self.chance, 5);
        let looks = [1_000, at_once].map(|at_once| said_of(&self.leader, id, self.counted_max, at_once));
        let [at_one_look, bound] = looks;
        assert_eq!(bound, at_one_look, "{at_once} at a time");
        let Ok(bound) = bound else { return };
        self.said.push(Said { task: id, bound, keys: self.with_tasks(), seen: 0 });
    }

    /// Nothing holds any more for a task with a limit in the way, or when others join.
    fn forget(&mut self) {
        let (desk, lane, now) = (self.leader.reserver.desk(), self.leader.lane(), self.leader.now);
        self.said.retain(|it| desk.blocks(lane, self.keys[&it.task], now).is_empty());
        let keys = self.with_tasks();
        self.said.retain(|it| it.keys.is_superset(&keys));
    }

    fn with_tasks(&self) -> BTreeSet<&'static str> {
        PLAIN.into_iter().chain(USERS).filter(|key| self.waiting(key) > 0).collect()
    }

    fn work(&mut self) {
        if self.held.len() >= self.held_max || self.below(4) == 0 && !self.held.is_empty() {
            let nth = self.below(self.held.len());
            let held = self.held.swap_remove(nth);
            self.leader.apply(complete(held));
            self.keys.remove(&held.id);
        }
        self.forget();
        let Some(held) = self.leader.reserve(1).pop() else { return };
        self.held.push(held);
        let is_first = self.tried.insert(held.id);
        let is_counted = is_first && self.leader.task(held.id).is_some_and(|task| task.priority == 0);
        for said in &mut self.said {
            said.seen += u64::from(is_counted && said.task != held.id);
            let Said { task, bound, seen, .. } = said;
            assert!(*seen <= *bound, "{seen} went before {task}, of which {bound} was said");
        }
        for said in self.said.extract_if(.., |it| it.task == held.id) {
            self.kept += 1;
            self.exact += u64::from(said.seen == said.bound);
        }
    }
}

#[test]
fn what_is_given_back_below_the_virtual_time_counts_too() {
    let mut leader = Leader::new(64, 16);
    leader.add_of("a", 10);
    let of_b = leader.add_of("b", 10);
    leader.do_errands();
    for held in leader.reserve(10) {
        leader.release(held);
    }
    assert_eq!(bound_of(&leader, of_b[4]), 5 + 4);
}

#[test]
fn what_others_of_the_tenant_may_still_get_counts_too() {
    let mut leader = Leader::new(64, 16);
    let of_u = leader.add_of("acme/u", 10);
    leader.add_of("acme/v", 1);
    assert_eq!(bound_of(&leader, of_u[9]), 9 + 10, "v has one task, and may get nine more before it");
}

#[test]
fn of_more_keys_than_are_looked_at_nothing_is_said_and_that_is_said() {
    let mut leader = Leader::new(64, 16);
    let of_keys: Vec<TaskId> = (0..1_001).map(|nth| leader.add_of(&format!("k{nth}"), 1)[0]).collect();
    assert_eq!(said_of(&leader, of_keys[9], 1_000, 7), Err(NoBound::ManyKeys));
}

/// What is said of a task.
fn bound_of(leader: &Leader, id: TaskId) -> u64 {
    said_of(leader, id, 1_000, 1_000).expect("there are few")
}

/// The same with some keys at a time.
fn said_of(leader: &Leader, id: TaskId, counted_max: usize, at_once: usize) -> Result<u64, NoBound> {
    let (rank, key) = (leader.rank(0), leader.key(id));
    let lanes = leader.machine.lanes();
    let waits = Waits {
        rows: leader.machine.tables(),
        look_at_rank: &|look| {
            look(lanes.by_number(rank.lane).expect("there").row(), lanes.rank(rank).expect("it has tasks"));
        },
        look_at_desk: &|look| look(leader.reserver.desk()),
        rank,
        key: &key,
        level: leader.level(id),
        counted_max,
        keys_max: 1_000,
        at_once,
    };
    waits.bound()
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
