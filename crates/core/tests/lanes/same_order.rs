//! The same order: who leads, and how much of the backlog is in memory, changes nothing of what goes out when.
//!
//! A seed gives a story of adds, hand-outs, failures and waiting. It is told once under one leader, and again with leaders that
//! change at any moment, with or without the consumer coming back, and other buffers. One consumer takes one task at a time.

use crate::leader::{ANNA, Held, Leader};
use crate::sequences;
use std::collections::BTreeMap;
use windlass_core::batch::reserver::Standing as Stands;
use windlass_core::lanes::levels::{RankName, Weight};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::{NewTask, TaskId};
use windlass_core::seeded::Seeded;

const KEYS: u64 = 6;

#[test]
fn changes_of_leaders_at_any_moment_do_not_change_the_order_of_hand_outs() {
    sequences::run("changes_of_leaders_at_any_moment_do_not_change_the_order_of_hand_outs", 100, |seed| {
        let undisturbed = Told::new(seed, None).tell();
        assert!(undisturbed.len() > 500, "it is a long story: {}", undisturbed.len());
        for changes in 0..3 {
            let disturbed = Told::new(seed, Some(changes)).tell();
            let differs = undisturbed.iter().zip(&disturbed).position(|(one, other)| one != other);
            assert_eq!(differs, None, "with changes of leaders by seed {changes}");
            assert_eq!(undisturbed.len(), disturbed.len());
        }
    });
}

/// A story as it is told.
struct Told {
    leader: Leader,
    chance: Seeded,
    weights: Vec<Weight>,
    /// When the leaders change, if they do.
    changes: Option<Seeded>,
    /// The tasks in the order in which they were added: ids differ from one telling to the other.
    numbers: BTreeMap<TaskId, usize>,
    handed_out: Vec<usize>,
}

impl Told {
    fn new(seed: u64, changes: Option<u64>) -> Told {
        let mut chance = Seeded::new(seed);
        let mut changes = changes.map(|number| Seeded::new(seed * 3 + number));
        let tasks = changes.as_mut().map_or(8, |changes| 2 + pick(changes, 20));
        let mut leader = Leader::new(tasks, tasks / 3);
        leader.is_audited = false;
        let milli = |chance: &mut Seeded| 1 + u32::try_from(chance.below(5_000)).expect("it is small");
        let weight = |_| Weight::from_milli(milli(&mut chance)).expect("a weight");
        let weights = (0..KEYS).map(weight).collect();
        Told { leader, chance, weights, changes, numbers: BTreeMap::new(), handed_out: Vec::new() }
    }

    fn tell(mut self) -> Vec<usize> {
        for _ in 0..600 {
            match self.chance.below(10) {
                0..3 => self.add(),
                3 => self.leader.wait_ms(30),
                _ => self.take_one(),
            }
            self.perhaps_change(None);
        }
        while !self.numbers.is_empty() && self.leader.now < crate::leader::BEGIN.after_ms(10_000_000) {
            self.take_one();
            self.leader.wait_ms(1_000);
        }
        assert!(self.numbers.is_empty(), "each task is done in the end");
        self.handed_out
    }

    fn add(&mut self) {
        let (key, count) = (self.chance.below(KEYS), 1 + self.chance.below(6));
        let not_before = (self.chance.below(8) == 0).then(|| self.leader.now.after_ms(50));
        let task = NewTask {
            weight: self.weights[pick(&mut self.chance, self.weights.len())],
            priority: [0, 0, 0, 4][pick(&mut self.chance, 4)],
            retry_delay_ms: [0, 60][pick(&mut self.chance, 2)],
            not_before,
            attempts_max: 100,
            ..NewTask::new(format!("key {key}"))
        };
        let first = self.handed_out.len() + self.numbers.len();
        let added = self.leader.add(vec![task; usize::try_from(count).expect("it is small")]);
        self.numbers.extend(added.into_iter().zip(first..));
    }

    /// One task is handed out, and done or not; leaders may change before and after that.
    fn take_one(&mut self) {
        let Some(mut held) = self.leader.next() else { return };
        self.handed_out.push(self.numbers[&held.id]);
        held = self.perhaps_change(Some(held)).expect("it is held by somebody");
        if self.chance.below(6) == 0 {
            self.leader.fail(held);
        } else {
            self.leader.complete(held);
            self.numbers.remove(&held.id);
        }
    }

    /// Another leader takes over, perhaps. Whoever holds a task goes on with it, or it goes out again at once.
    fn perhaps_change(&mut self, held: Option<Held>) -> Option<Held> {
        let Some(changes) = &mut self.changes else { return held };
        // What is noted in one telling and not in the other changes nothing either.
        if changes.below(8) == 0 {
            self.leader.note_all();
            self.leader.do_errands();
        }
        if changes.below(12) > 0 {
            return held;
        }
        let goes_on = changes.below(2) == 0;
        let task = held.map(|held| (held, self.leader.task(held.id).expect("it is not done")));
        self.leader.change();
        let (held, task) = task?;
        if !goes_on {
            return Some(self.leader.next_is(held.id));
        }
        let stride = if task.failures == 0 { task.weight.stride() } else { 0 };
        let placed = Placed { level: self.leader.level(held.id), key: task.key.as_str().into(), stride };
        let rank = RankName { lane: task.lane, priority: task.priority };
        assert_eq!(self.leader.reserver.reassert_task(ANNA, rank, placed, held.token), Stands::Holds);
        Some(held)
    }
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
