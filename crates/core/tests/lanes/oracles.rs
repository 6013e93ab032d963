//! The oracles: what a fair lane shows, checked at every hand-out.
//!
//! - Smallest first: no task goes out while one with a smaller level, or of a higher priority, waits anywhere.
//! - Pairs: while two keys both have tasks that wait, what they got differs by no more than one stride of each.
//! - Newcomers: a key that is caught up waits for no more hand-outs than there are other keys with tasks that wait.
//! - First in, first out: tasks of a key go out in the order in which they were added, also after a restart.
//!
//! A hand-out counts for pairs and newcomers if it is the first one of its task under this leadership, was charged to the
//! key, and lies at or above the virtual time: what comes back or comes late is nobody's turn.

use std::collections::{BTreeMap, BTreeSet};
use windlass_core::lanes::levels::{Level, RankName};
use windlass_core::lanes::tasks::TaskId;

/// A task that waits or is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) key: usize,
    /// It was charged to its key.
    pub(crate) is_charged: bool,
    /// It is where it was put when it was added.
    pub(crate) is_in_order: bool,
    /// It was handed out under this leadership.
    was_out: bool,
}

impl Seen {
    pub(crate) const fn new(key: usize, is_charged: bool, is_in_order: bool) -> Seen {
        Seen { key, is_charged, is_in_order, was_out: false }
    }
}

/// The running difference of what two keys got, and how far it went to both sides.
#[derive(Debug, Clone, Copy, Default)]
struct Difference {
    now: i128,
    least: i128,
    most: i128,
}

impl Difference {
    const fn spread(self) -> i128 {
        self.most - self.least
    }

    fn add(&mut self, strides: i128) {
        self.now += strides;
        self.least = self.least.min(self.now);
        self.most = self.most.max(self.now);
    }
}

#[derive(Debug)]
struct Newcomer {
    task: TaskId,
    others: usize,
    waited: usize,
}

#[derive(Debug)]
struct KeyWatch {
    stride: i128,
    /// Tasks that wait and were never out under this leadership.
    fresh: BTreeSet<Level>,
    is_backlogged: bool,
    newcomer: Option<Newcomer>,
    last_in_order: Option<TaskId>,
    /// Against each key with a smaller number.
    differences: Vec<Difference>,
}

/// One rank.
#[derive(Debug)]
struct RankWatch {
    time: u64,
    waiting: BTreeMap<Level, Seen>,
    out: BTreeMap<Level, Seen>,
    keys: Vec<KeyWatch>,
}

/// See the file's head. Every key has one weight.
#[derive(Debug)]
pub(crate) struct Watch {
    strides: Vec<u64>,
    ranks: BTreeMap<RankName, RankWatch>,
    /// How many hand-outs were looked at.
    pub(crate) hand_outs: u64,
    /// The widest spread of any pair, in millionths of what is allowed.
    pub(crate) widest: i128,
}

impl Watch {
    pub(crate) fn new(strides: Vec<u64>) -> Watch {
        Watch { strides, ranks: BTreeMap::new(), hand_outs: 0, widest: 0 }
    }

    fn rank(&mut self, name: RankName) -> &mut RankWatch {
        let strides = &self.strides;
        self.ranks.entry(name).or_insert_with(|| RankWatch::new(strides))
    }

    /// The machine's virtual time is this: tasks below it are late from now on.
    pub(crate) fn pass_time(&mut self, name: RankName, time: u64) {
        let rank = self.rank(name);
        if time > rank.time {
            rank.time = time;
            rank.begin_anew();
        }
    }

    pub(crate) fn placed(&mut self, name: RankName, level: Level, seen: Seen) {
        let rank = self.rank(name);
        assert!(rank.waiting.insert(level, seen).is_none(), "a level is given once");
        if seen.is_charged {
            rank.come(level, seen.key);
        }
    }

    /// It is done or has failed; one that was not out leaves a gap in what its key gets.
    pub(crate) fn unplaced(&mut self, name: RankName, level: Level) {
        let rank = self.rank(name);
        if rank.out.remove(&level).is_some() {
            return;
        }
        let seen = rank.waiting.remove(&level).expect("a task that has no place any more had one");
        rank.keys[seen.key].fresh.remove(&level);
        rank.keys[seen.key].is_backlogged = false;
        rank.keys[seen.key].newcomer.take_if(|it| it.task == level.id);
        rank.look_again();
    }

    pub(crate) fn handed_out(&mut self, name: RankName, level: Level) {
        let higher = self.ranks.range(name..).skip(1).take_while(|(it, _)| it.lane == name.lane);
        for (it, rank) in higher {
            assert!(rank.waiting.is_empty(), "{level} of {name:?} went out before those of {it:?}");
        }
        self.hand_outs += 1;
        let spread = self.rank(name).hand_out(level);
        self.widest = self.widest.max(spread);
    }

    /// A consumer of an earlier leader still works on it.
    pub(crate) fn held(&mut self, name: RankName, level: Level) {
        let rank = self.rank(name);
        let seen = rank.waiting.remove(&level).expect("it waited");
        rank.keys[seen.key].fresh.remove(&level);
        rank.out.insert(level, Seen { was_out: true, ..seen });
        rank.time = rank.time.max(level.pass);
        rank.begin_anew();
    }

    pub(crate) fn put_back(&mut self, id: TaskId) {
        let rank = self.ranks.values_mut().find(|rank| rank.out.keys().any(|level| level.id == id));
        let rank = rank.expect("it was out");
        let level = *rank.out.keys().find(|level| level.id == id).expect("it was out");
        let seen = rank.out.remove(&level).expect("it was out");
        rank.waiting.insert(level, seen);
    }

    /// The next leader knows nothing of what was out.
    pub(crate) fn restart(&mut self, time: impl Fn(RankName) -> u64) {
        for (name, rank) in &mut self.ranks {
            let mut fresh = RankWatch::new(&self.strides);
            fresh.time = time(*name);
            let known = std::mem::take(&mut rank.waiting).into_iter().chain(std::mem::take(&mut rank.out));
            fresh.waiting = known.map(|(level, seen)| (level, Seen { was_out: false, ..seen })).collect();
            for (level, seen) in fresh.waiting.iter().filter(|(_, seen)| seen.is_charged) {
                fresh.keys[seen.key].fresh.insert(*level);
            }
            fresh.begin_anew();
            *rank = fresh;
        }
    }

    /// The tasks that are out.
    pub(crate) fn out(&self) -> Vec<TaskId> {
        self.ranks.values().flat_map(|rank| rank.out.keys().map(|level| level.id)).collect()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ranks.values().map(|rank| rank.waiting.len()).sum()
    }
}

impl RankWatch {
    fn new(strides: &[u64]) -> RankWatch {
        let key = |(number, stride): (usize, &u64)| KeyWatch {
            stride: i128::from(*stride),
            fresh: BTreeSet::new(),
            is_backlogged: false,
            newcomer: None,
            last_in_order: None,
            differences: vec![Difference::default(); number],
        };
        let keys = strides.iter().enumerate().map(key).collect();
        RankWatch { time: 0, waiting: BTreeMap::new(), out: BTreeMap::new(), keys }
    }

    /// Every interval ends here, and those that go on begin again.
    fn begin_anew(&mut self) {
        for key in &mut self.keys {
            (key.is_backlogged, key.newcomer) = (false, None);
        }
        self.look_again();
    }

    /// A key has something to wait for if one of its fresh tasks is not late; its intervals begin when that becomes so.
    fn look_again(&mut self) {
        for number in 0..self.keys.len() {
            let key = &mut self.keys[number];
            let is_backlogged = key.fresh.last().is_some_and(|level| level.pass >= self.time);
            let begins = is_backlogged && !key.is_backlogged;
            key.is_backlogged = is_backlogged;
            if begins {
                key.differences.fill(Difference::default());
                self.keys[number + 1..]
                    .iter_mut()
                    .for_each(|it| it.differences[number] = Difference::default());
            }
        }
    }

    fn come(&mut self, level: Level, number: usize) {
        let others = self.keys.iter().filter(|key| key.is_backlogged).count();
        let key = &mut self.keys[number];
        if key.fresh.is_empty() && level.pass == self.time {
            key.newcomer = Some(Newcomer { task: level.id, others, waited: 0 });
        }
        key.fresh.insert(level);
        self.look_again();
    }

    /// What was the widest spread, in millionths of what is allowed.
    fn hand_out(&mut self, level: Level) -> i128 {
        let (first, seen) = self.waiting.pop_first().expect("what goes out has waited");
        assert_eq!(level, first, "the smallest level goes first");
        let was_fresh = self.keys[seen.key].fresh.remove(&level);
        self.out.insert(level, Seen { was_out: true, ..seen });
        if seen.is_in_order && !seen.was_out {
            let last = self.keys[seen.key].last_in_order.replace(level.id);
            assert!(last < Some(level.id), "{last:?} of the same key was added after {level}");
        }
        let mut widest = 0;
        if was_fresh && level.pass >= self.time {
            self.let_newcomers_wait(level, seen);
            widest = self.count(seen.key);
            self.time = level.pass;
        }
        self.look_again();
        widest
    }

    /// What was added long ago and has got its place only now may go before them.
    fn let_newcomers_wait(&mut self, level: Level, seen: Seen) {
        for (number, key) in self.keys.iter_mut().enumerate() {
            let Some(newcomer) = &mut key.newcomer else { continue };
            if number == seen.key && newcomer.task == level.id {
                key.newcomer = None;
                continue;
            }
            newcomer.waited += usize::from(seen.is_in_order);
            let Newcomer { others, waited, .. } = newcomer;
            assert!(waited <= others, "a newcomer waited {waited} hand-outs beside {others} other keys");
        }
    }

    fn count(&mut self, number: usize) -> i128 {
        let stride = self.keys[number].stride;
        let mut widest = 0;
        for other in (0..self.keys.len()).filter(|other| *other != number) {
            if !self.keys[other].is_backlogged {
                continue;
            }
            let allowed = stride + self.keys[other].stride;
            let (low, high) = (number.min(other), number.max(other));
            let difference = &mut self.keys[high].differences[low];
            difference.add(if number == high { stride } else { -stride });
            let spread = difference.spread();
            assert!(spread <= allowed, "keys {low} and {high} got {spread} apart where {allowed} is allowed");
            widest = widest.max(spread * 1_000_000 / allowed);
        }
        widest
    }
}
