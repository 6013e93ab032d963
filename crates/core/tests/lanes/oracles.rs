//! The oracles: what a fair lane shows, checked at every hand-out.
//!
//! - Smallest first: no task goes out while one with a smaller level, or of a higher priority, waits anywhere.
//! - Pairs: while two keys both have tasks that wait, what they got differs by no more than one stride of each. If tasks of
//!   one key stand differently far apart, its widest stride in that stretch is meant, that of the task before it included.
//!   A key whose tasks were on their way through the log while others went on may be ahead by so much more: by how far the
//!   virtual time is above the one that they were stamped with, when they come.
//! - Newcomers: a key that is caught up waits for no more hand-outs than there are other keys with tasks that wait.
//! - First in, first out: tasks of a key go out in the order in which they were added, also after a restart.
//!
//! A hand-out counts for pairs and newcomers if it is the first one of its task under this leadership, was charged to the
//! key, and lies at or above the virtual time, or the one that its add was stamped with: what comes back, or was delayed and
//! comes late, is nobody's turn.

use std::collections::{BTreeMap, BTreeSet};
use windlass_core::lanes::levels::{Level, RankName};
use windlass_core::lanes::tasks::TaskId;

/// A task that waits or is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    key: usize,
    /// What its key was charged for it; nothing if that was done before.
    stride: u64,
    /// How far behind the task before it this one stands at most.
    behind: u64,
    /// It is where it was put when it was added.
    is_in_order: bool,
    /// It was handed out under this leadership.
    was_out: bool,
}

impl Seen {
    pub(crate) const fn new(key: usize, stride: u32, is_in_order: bool) -> Seen {
        Seen { key, stride: stride as u64, behind: 0, is_in_order, was_out: false }
    }
}

/// The running difference of what two keys got, and how far it went to both sides.
#[derive(Debug, Clone, Copy, Default)]
struct Difference {
    now: i128,
    least: i128,
    most: i128,
    /// The widest strides of both in this stretch: of the key with the larger number, and of the other.
    widest: [u64; 2],
}

impl Difference {
    const fn spread(self) -> i128 {
        self.most - self.least
    }

    /// A task of one of them goes out.
    fn add(&mut self, side: usize, stride: u64) {
        self.now += if side == 0 { i128::from(stride) } else { -i128::from(stride) };
        self.widest[side] = self.widest[side].max(stride);
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
    /// What it was charged last: so far behind its last task the next one stands, unless it has nothing.
    last: u64,
    /// Tasks that wait and were never out under this leadership.
    fresh: BTreeSet<Level>,
    is_backlogged: bool,
    /// The virtual time that tasks of this backlog were stamped with, if that was below it when they came, and how far.
    stamped: Option<(u64, u64)>,
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

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Watch {
    keys: usize,
    ranks: BTreeMap<RankName, RankWatch>,
    /// How many hand-outs counted for pairs, while another key had tasks that waited.
    pub(crate) counted: u64,
    /// The widest spread of any pair, in millionths of what is allowed.
    pub(crate) widest: i128,
    /// The widest one beyond what is allowed without tasks on their way through the log, in the same measure.
    pub(crate) widest_late: i128,
}

/// What a hand-out showed.
#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    is_counted: bool,
    widest: i128,
    widest_late: i128,
}

impl Watch {
    pub(crate) fn new(keys: usize) -> Watch {
        Watch { keys, ranks: BTreeMap::new(), counted: 0, widest: 0, widest_late: 0 }
    }

    fn rank(&mut self, name: RankName) -> &mut RankWatch {
        let keys = self.keys;
        self.ranks.entry(name).or_insert_with(|| RankWatch::new(keys))
    }

    /// The machine's virtual time is this: tasks below it are late from now on.
    pub(crate) fn pass_time(&mut self, name: RankName, time: u64) {
        let rank = self.rank(name);
        if time > rank.time {
            rank.time = time;
            rank.begin_anew();
        }
    }

    /// A task has its place; `stamped` is the virtual time that came with its add, if it was just added.
    pub(crate) fn placed(&mut self, name: RankName, level: Level, mut seen: Seen, stamped: Option<u64>) {
        let rank = self.rank(name);
        if seen.stride > 0 {
            seen.behind = std::mem::replace(&mut rank.keys[seen.key].last, seen.stride);
        }
        assert!(rank.waiting.insert(level, seen).is_none(), "a level is given once");
        if seen.stride > 0 {
            rank.come(level, seen.key, stamped);
        }
    }

    /// The tasks of a key have got other places, in the same order; so many passes apart from here on.
    pub(crate) fn releveled(&mut self, name: RankName, key: usize, moves: &[(Level, Level)], stride: u32) {
        let rank = self.rank(name);
        let RankWatch { time, waiting, out, keys, .. } = rank;
        let key = &mut keys[key];
        for (from, to) in moves {
            let there = if waiting.contains_key(from) { &mut *waiting } else { &mut *out };
            let mut seen = there.remove(from).expect("what was moved was there");
            // What is next stays where it is, and so does the first one behind it.
            if to.pass > *time {
                seen.stride = stride.into();
            }
            there.insert(*to, seen);
            if key.fresh.remove(from) {
                key.fresh.insert(*to);
            }
        }
        let above = key.fresh.iter().filter(|level| level.pass > *time);
        for level in above.skip(1) {
            waiting.get_mut(level).expect("a fresh task waits").behind = stride.into();
        }
        key.last = key.last.max(stride.into());
        rank.begin_anew();
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
        let Shown { is_counted, widest, widest_late } = self.rank(name).hand_out(level);
        self.counted += u64::from(is_counted);
        self.widest = self.widest.max(widest);
        self.widest_late = self.widest_late.max(widest_late);
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
            let mut fresh = RankWatch::new(self.keys);
            fresh.time = time(*name);
            for (key, before) in fresh.keys.iter_mut().zip(&rank.keys) {
                key.last = before.last;
            }
            let known = std::mem::take(&mut rank.waiting).into_iter().chain(std::mem::take(&mut rank.out));
            fresh.waiting = known.map(|(level, seen)| (level, Seen { was_out: false, ..seen })).collect();
            for (level, seen) in fresh.waiting.iter().filter(|(_, seen)| seen.stride > 0) {
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
    fn new(keys: usize) -> RankWatch {
        let key = |number: usize| KeyWatch {
            last: 0,
            fresh: BTreeSet::new(),
            is_backlogged: false,
            stamped: None,
            newcomer: None,
            last_in_order: None,
            differences: vec![Difference::default(); number],
        };
        let keys = (0..keys).map(key).collect();
        RankWatch { time: 0, waiting: BTreeMap::new(), out: BTreeMap::new(), keys }
    }

    /// Every interval ends here, and those that go on begin again.
    fn begin_anew(&mut self) {
        for key in &mut self.keys {
            (key.is_backlogged, key.newcomer, key.stamped) = (false, None, None);
        }
        self.look_again();
    }

    /// Where tasks of a key begin to count.
    fn counts_from(&self, number: usize) -> u64 {
        self.keys[number].stamped.map_or(self.time, |(stamped, _)| stamped.min(self.time))
    }

    /// The wider of the strides around the next task of a key: how far behind the one before it stands, and its own.
    fn stride_around_next(&self, number: usize) -> u64 {
        let from = self.counts_from(number);
        let next = self.keys[number].fresh.iter().find(|level| level.pass >= from);
        next.map_or(0, |level| self.waiting[level].behind.max(self.waiting[level].stride))
    }

    /// A key has something to wait for if one of its fresh tasks is not late; its intervals begin when that becomes so.
    fn look_again(&mut self) {
        for number in 0..self.keys.len() {
            let from = self.counts_from(number);
            let key = &mut self.keys[number];
            let is_backlogged = key.fresh.last().is_some_and(|level| level.pass >= from);
            let begins = is_backlogged && !key.is_backlogged;
            key.is_backlogged = is_backlogged;
            if !is_backlogged {
                key.stamped = None;
            }
            if begins {
                self.begin(number);
            }
        }
    }

    /// The intervals of a key with all others begin.
    fn begin(&mut self, number: usize) {
        let next: Vec<u64> = (0..self.keys.len()).map(|other| self.stride_around_next(other)).collect();
        for other in (0..self.keys.len()).filter(|other| *other != number) {
            let (low, high) = (number.min(other), number.max(other));
            let widest = [next[high], next[low]];
            self.keys[high].differences[low] = Difference { widest, ..Difference::default() };
        }
    }

    fn come(&mut self, level: Level, number: usize, stamped: Option<u64>) {
        let (others, time) = (self.keys.iter().filter(|key| key.is_backlogged).count(), self.time);
        let key = &mut self.keys[number];
        if key.fresh.is_empty() && level.pass == time {
            key.newcomer = Some(Newcomer { task: level.id, others, waited: 0 });
        }
        if let Some(stamped) = stamped.filter(|stamped| level.pass < time && *stamped < time) {
            let (before, late) = key.stamped.unwrap_or((stamped, 0));
            key.stamped = Some((before.min(stamped), late.max(time - stamped)));
        }
        key.fresh.insert(level);
        self.look_again();
    }

    fn hand_out(&mut self, level: Level) -> Shown {
        let counts_from: Vec<u64> = (0..self.keys.len()).map(|number| self.counts_from(number)).collect();
        let (first, seen) = self.waiting.pop_first().expect("what goes out has waited");
        assert_eq!(level, first, "the smallest level goes first");
        let was_fresh = self.keys[seen.key].fresh.remove(&level);
        self.out.insert(level, Seen { was_out: true, ..seen });
        if seen.is_in_order && !seen.was_out {
            let last = self.keys[seen.key].last_in_order.replace(level.id);
            assert!(last < Some(level.id), "{last:?} of the same key was added after {level}");
        }
        let mut shown = Shown::default();
        if was_fresh && level.pass >= self.time {
            self.let_newcomers_wait(level, seen);
        }
        if was_fresh && level.pass >= counts_from[seen.key] {
            shown = self.count(seen.key, seen.stride);
            self.time = self.time.max(level.pass);
        }
        self.look_again();
        shown
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

    fn count(&mut self, number: usize, stride: u64) -> Shown {
        let mut shown = Shown::default();
        for other in (0..self.keys.len()).filter(|other| *other != number) {
            if !self.keys[other].is_backlogged {
                continue;
            }
            let late = [number, other].map(|it| self.keys[it].stamped.map_or(0, |(_, late)| late));
            let late = i128::from(late[0].max(late[1]));
            let (low, high) = (number.min(other), number.max(other));
            let next = self.stride_around_next(other);
            let difference = &mut self.keys[high].differences[low];
            let side = usize::from(number == low);
            difference.widest[1 - side] = difference.widest[1 - side].max(next);
            difference.add(side, stride);
            let strides = difference.widest.into_iter().map(i128::from).sum::<i128>();
            let (spread, allowed) = (difference.spread(), strides + late);
            assert!(spread <= allowed, "keys {low} and {high} got {spread} apart where {allowed} is allowed");
            shown.is_counted = true;
            shown.widest = shown.widest.max(spread * 1_000_000 / allowed);
            shown.widest_late = shown.widest_late.max((spread - strides) * 1_000_000 / late.max(1));
        }
        shown
    }
}
