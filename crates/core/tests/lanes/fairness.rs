//! Shares: long runs with small buffers, in which every pair of keys gets what its weights say.

use crate::leader::{Held, LANE, Leader, complete};
use crate::model::{Known, Model};
use crate::oracles::{Seen, Watch};
use crate::sequences;
use windlass_core::entry::{Applied, Command, Effect};
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{Level, STRIDE, Weight};
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::tasks::{NewTask, Standing};
use windlass_core::seeded::Seeded;

/// Random arrivals, weights, buffers, numbers of tasks out and restarts, each hand-out watched.
#[test]
fn any_two_keys_that_wait_differ_by_at_most_one_stride_of_each() {
    let name = "any_two_keys_that_wait_differ_by_at_most_one_stride_of_each";
    sequences::run(name, 80, |seed| {
        let mut run = Run::new(seed);
        while run.watch.hand_outs < 20_000 {
            run.step();
        }
        assert!(run.watch.widest > 500_000, "the bound is put to the test: {}", run.watch.widest);
    });
}

struct Run {
    leader: Leader,
    model: Model,
    watch: Watch,
    chance: Seeded,
    keys: Vec<(String, Weight)>,
    held: Vec<Held>,
    held_max: usize,
    /// Tasks that each key wants to have waiting, which changes now and then.
    wanted: Vec<usize>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut chance = Seeded::new(seed);
        let tasks = 4 + pick(&mut chance, 29);
        let reload_at = 1 + pick(&mut chance, tasks - 1);
        let weight = |chance: &mut Seeded| match chance.below(4) {
            0 => Weight::ONE,
            1 => Weight::from_milli(1_000 << chance.below(5)).expect("a weight"),
            2 => Weight::from_milli(1_000 >> chance.below(5)).expect("a weight"),
            _ => Weight::from_milli(1 + chance.below(20_000) as u32).expect("a weight"),
        };
        let keys: Vec<(String, Weight)> =
            (0..2 + chance.below(7)).map(|key| (format!("key {key}"), weight(&mut chance))).collect();
        let strides = keys.iter().map(|(_, weight)| weight.stride().into()).collect();
        let mut leader = Leader::new(tasks, reload_at);
        leader.is_audited = false;
        let set = SetLane {
            name: LANE.into(),
            may_create: true,
            is_paused: None,
            is_draining: None,
            without_key_order: true,
        };
        let mut run = Run {
            leader,
            model: Model::default(),
            watch: Watch::new(strides),
            held_max: 1 + pick(&mut chance, 60),
            wanted: vec![0; keys.len()],
            chance,
            keys,
            held: Vec::new(),
        };
        run.apply(Command::SetLane(set));
        run
    }

    fn apply(&mut self, command: Command) -> Applied {
        let entry = self.leader.entry(command);
        let applied = self.leader.apply_entry(entry.clone());
        assert_eq!(applied, self.model.apply(&entry, &applied));
        for effect in &applied.effects {
            match effect {
                Effect::TaskPlaced { rank, level, key, .. } => {
                    let Known { is_charged, .. } = self.model.tasks[&level.id];
                    let key = self.keys.iter().position(|(it, _)| **it == **key).expect("it is one of them");
                    self.watch.placed(*rank, *level, Seen::new(key, is_charged, true));
                }
                Effect::TaskUnplaced { rank, level, .. } => self.watch.unplaced(*rank, *level),
                _ => {}
            }
        }
        applied
    }

    fn step(&mut self) {
        match self.chance.below(1_000) {
            0..20 => {
                let (nth, most) =
                    (pick(&mut self.chance, self.keys.len()), [0, 1, 3, 40][pick(&mut self.chance, 4)]);
                self.wanted[nth] = most;
            }
            20..22 => self.restart(),
            22..300 => self.add(),
            300..320 => self.leader.reserver.desk_mut().note_all(),
            320..600 => self.run_errand(),
            _ => self.work(),
        }
    }

    fn add(&mut self) {
        let nth = pick(&mut self.chance, self.keys.len());
        let rank = self.leader.rank(0);
        let row = self.leader.machine.lanes().by_number(rank.lane).expect("it was created").ranks().next();
        let waiting = row.and_then(|(_, rank)| rank.key(&self.keys[nth].0)).map_or(0, |row| row.waiting);
        let missing = self.wanted[nth].saturating_sub(usize::try_from(waiting).expect("they are few"));
        if missing > 0 {
            let (key, weight) = self.keys[nth].clone();
            let tasks = vec![NewTask { weight, ..NewTask::new(key) }; missing];
            let add = self.leader.stamped(LANE, tasks);
            self.apply(Command::AddTasks(add));
        }
    }

    fn work(&mut self) {
        if self.held.len() >= self.held_max {
            let nth = pick(&mut self.chance, self.held.len());
            let held = self.held.swap_remove(nth);
            self.apply(complete(held));
        }
        let max = 1 + pick(&mut self.chance, 4);
        for held in self.leader.reserve(max) {
            let Standing::Waiting { pass } = self.model.tasks[&held.id].standing else { panic!("it waits") };
            self.watch.handed_out(self.leader.rank(0), Level { pass, id: held.id });
            self.held.push(held);
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
        if self.chance.below(2) == 0 {
            for looked in std::mem::take(&mut self.leader.looked) {
                self.leader.deliver(looked);
            }
        }
    }

    fn restart(&mut self) {
        self.leader.change();
        self.watch.restart(|rank| self.model.virtual_time(rank));
        self.held.clear();
    }
}

/// The share that follows from the pairs, over every stretch of hand-outs.
#[test]
fn each_key_of_a_fixed_backlog_gets_its_share_of_any_stretch_to_within_the_bound() {
    let milli: [i128; 6] = [1_000, 2_000, 4_000, 500, 8_000, 1_000];
    let sum: i128 = milli.iter().sum();
    let mut leader = Leader::new(16, 4);
    leader.is_audited = false;
    for (key, weight) in milli.iter().enumerate() {
        let weight = Weight::from_milli(u32::try_from(*weight).unwrap()).unwrap();
        assert_eq!(
            u128::from(weight.stride()) * weight.as_milli() as u128,
            u128::from(STRIDE) * 1_000,
            "exact"
        );
        let count = 30_000 * weight.as_milli() as usize / 16_500;
        for _ in 0..=count / 1_000 {
            leader.add(vec![NewTask { weight, ..NewTask::new(format!("{key}")) }; 1_000]);
        }
    }
    let (mut got, mut total) = ([0; 6], 0);
    let mut extremes = [(0, 0); 6];
    while let Some(held) = leader.next() {
        let key: usize = leader.key(held.id).parse().unwrap();
        got[key] += 1;
        total += 1;
        for (nth, (least, most)) in extremes.iter_mut().enumerate() {
            let ahead = got[nth] * sum - total * milli[nth];
            (*least, *most) = ((*least).min(ahead), (*most).max(ahead));
            let allowed = sum + 4 * milli[nth];
            assert!(*most - *least <= allowed, "key {nth} is {most} ahead and {least} behind after {total}");
        }
        leader.complete(held);
        if total == 29_000 {
            break;
        }
    }
    assert_eq!(total, 29_000, "nobody ran out before");
}

#[test]
fn a_million_tasks_of_one_key_let_a_single_one_of_another_go_at_once() {
    let mut leader = Leader::new(4_096, 1_024);
    leader.is_audited = false;
    for _ in 0..1_000 {
        leader.add_of("heavy", 1_000);
    }
    assert!(leader.next().is_some());
    let light = leader.add_of("light", 1)[0];
    let next = [leader.next().unwrap(), leader.next().unwrap()];
    assert!(next.iter().any(|held| held.id == light), "after at most one other");
    assert!(leader.look().ready <= 4_096, "and memory holds a buffer of them");
    assert_eq!(leader.rank_row(0).waiting, 1_000_001);

    leader.change();
    let lighter = leader.add_of("lighter", 1)[0];
    let next = [leader.next().unwrap(), leader.next().unwrap(), leader.next().unwrap()];
    assert!(next.iter().any(|held| held.id == lighter), "also after a restart, beside two other keys");
}

/// A key that fails every task once gets as many turns for new tasks as one that never fails.
#[test]
fn a_key_whose_tasks_fail_does_not_lose_its_share_by_their_retries() {
    let mut leader = Leader::new(8, 2);
    leader.is_audited = false;
    let task = |key: &str| NewTask { retry_delay_ms: 0, ..NewTask::new(key) };
    for key in ["failing", "fine"] {
        leader.add(vec![task(key); 1_000]);
    }
    let mut first_attempts = [0_i64; 2];
    while let Some(held) = leader.next() {
        let row = leader.task(held.id).unwrap();
        let is_failing = row.key == "failing";
        if row.failures == 0 {
            first_attempts[usize::from(is_failing)] += 1;
            assert!((first_attempts[0] - first_attempts[1]).abs() <= 2, "{first_attempts:?}");
        }
        if is_failing && row.failures == 0 {
            leader.fail(held);
            leader.wait_ms(0);
        } else {
            leader.complete(held);
        }
    }
    assert_eq!(first_attempts, [1_000, 1_000]);
    assert_eq!((leader.rank_row(0).done, leader.rank_row(0).waiting), (2_000, 0));
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
