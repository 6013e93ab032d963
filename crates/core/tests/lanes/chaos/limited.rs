//! Limits, tenants and levels given anew, by chance, and what must hold of every hand-out then.
//!
//! - In flight: what consumers hold of a key, a tenant, the lane is never more than its limit; nothing that is limited so goes
//!   out while work of an earlier leader may be under way.
//! - Rates: over any time t under one rate and one leader, at most `burst + rate · t` go out; a burst is at least what the
//!   rate gives in a millisecond.
//! - Nothing is withheld: when the lane gives nothing and nothing is being read, a limit is in the way of each task that waits.
//! - First in, first out: tasks of a key that were never delayed go out in the order in which they were added. (A leader that
//!   hears of things late may read the row of a task before it hears of an earlier one, below what it has read.)

use super::{Chaos, Held, LANES, WEIGHTS_MILLI, pick};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::entry::{Applied, Command, Outcome, Refusal};
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{LaneNumber, RankName, Weight, tenant_of};
use windlass_core::lanes::limiting::{LaneLimits, Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::relevel::Relevel;
use windlass_core::lanes::tasks::{Standing, TaskId};
use windlass_core::time::At;

/// The lane, or a key or tenant of it.
type Name = (LaneNumber, Option<String>);

#[derive(Debug, Default)]
pub(super) struct Limited {
    /// Of every task ever added.
    keys: BTreeMap<TaskId, (RankName, String)>,
    /// As the leader has heard of them.
    limits: BTreeMap<LaneNumber, LaneLimits>,
    rates: BTreeMap<Name, Rated>,
    is_held: bool,
    last_in_order: BTreeMap<(RankName, String), TaskId>,
    was_out: BTreeSet<TaskId>,
}

/// What has gone out under a rate.
#[derive(Debug)]
struct Rated {
    rate: Rate,
    since: At,
    times: Vec<At>,
}

impl Rated {
    /// In millionths of a task.
    fn allowed(&self, from: At, until: At) -> u128 {
        let burst = u128::from(self.rate.burst) * 1_000_000;
        burst.max(u128::from(self.rate.milli_per_second)) + self.earned(from, until)
    }

    fn earned(&self, from: At, until: At) -> u128 {
        u128::from(self.rate.milli_per_second) * u128::from(until.as_ms() - from.as_ms())
    }

    fn check(&self, now: At) {
        for (nth, from) in self.times.iter().enumerate() {
            let count = (self.times.len() - nth) as u128 * 1_000_000;
            assert!(count <= self.allowed(*from, now), "{:?} let too much out: {:?}", self.rate, self.times);
        }
    }

    /// Whether one more would be too much; the burst may have been used up before the rate held.
    fn is_used_up(&self, now: At) -> bool {
        let more = |count: usize| (count as u128 + 1) * 1_000_000;
        let is_short = more(self.times.len()) > self.earned(self.since, now);
        let mut all = self.times.iter().enumerate();
        is_short || all.any(|(nth, from)| more(self.times.len() - nth) > self.allowed(*from, now))
    }
}

fn names(lane: LaneNumber, key: &str) -> Vec<Name> {
    let own = [Some(key), tenant_of(key), None];
    let is_lane = |nth: usize| nth == 2;
    let own = own.into_iter().enumerate().filter(|(nth, name)| name.is_some() || is_lane(*nth));
    own.map(|(_, name)| (lane, name.map(str::to_owned))).collect()
}

fn limit_of(limits: &LaneLimits, name: &Name) -> Limit {
    name.1.as_deref().map_or(limits.lane, |name| limits.of(name))
}

fn is_of(name: &Name, rank: RankName, key: &str) -> bool {
    let of = name.1.as_deref();
    name.0 == rank.lane && (of.is_none() || of == Some(key) || of == tenant_of(key))
}

impl Chaos {
    pub(super) fn step_limited(&mut self) {
        match self.below(8) {
            0..3 => self.limit(),
            3..5 => self.relevel(),
            5 => self.weigh(),
            6 if self.below(2) == 0 => self.set_held(false),
            6 => self.order_keys(),
            _ => self.look_for_what_is_withheld(),
        }
    }

    pub(super) fn note_keys(&mut self, applied: &Applied) {
        if let (Some(it), Outcome::TasksAdded { tasks }) = (&mut self.limits, &applied.outcome) {
            let known = tasks.iter().filter_map(|id| Some((id, self.model.tasks.get(&id)?)));
            it.keys.extend(known.map(|(id, known)| (id, (known.rank, known.key.clone()))));
        }
    }

    /// A leadership begins, often while work of the one before may be under way.
    pub(super) fn begin_limited(&mut self) {
        let is_held = self.below(2) == 0;
        if let Some(it) = &mut self.limits {
            (it.limits, it.rates) = (BTreeMap::new(), BTreeMap::new());
            (it.last_in_order, it.was_out) = (BTreeMap::new(), BTreeSet::new());
            it.is_held = false;
            self.set_held(is_held);
        }
    }

    pub(super) fn note_held(&mut self, held: Held) {
        if let Some(it) = &mut self.limits {
            it.was_out.insert(held.id);
        }
    }

    fn set_held(&mut self, is_held: bool) {
        self.limits.as_mut().expect("there are limits").is_held = is_held;
        self.leader.reserver.at_desk(|desk| desk.set_held(is_held));
    }

    pub(super) fn name_to_weigh(&mut self) -> String {
        let name = self.keys[self.below(self.keys.len())];
        match tenant_of(name) {
            Some(tenant) if self.below(2) == 0 => tenant.into(),
            _ => name.into(),
        }
    }

    fn limit(&mut self) {
        let scope = match self.below(6) {
            0 => Scope::Lane,
            1 => Scope::EachKey,
            2 => Scope::EachTenant,
            _ => Scope::Named(self.name_to_weigh()),
        };
        let in_flight = [None, Some(0), Some(1), Some(1), Some(2), Some(3)][self.below(6)];
        let rates = [(1_000, 1), (2_000, 3), (10_000, 2), (333, 5), (5_000_000, 1), (1_500_000, 2)];
        let (milli_per_second, burst) = rates[self.below(rates.len())];
        let rate = (self.below(3) == 0).then_some(Rate { milli_per_second, burst });
        let limit = (self.below(3) > 0).then_some(Limit { in_flight, rate });
        let lane = LANES[usize::from(self.below(6) == 0)].into();
        let limit = Command::LimitLane(LimitLane { lane, set: vec![SetLimit { scope, limit }] });
        self.apply_if_ordered(limit);
    }

    /// A command that is refused as long as keys are not in order: then they are put in order now, or in other steps.
    fn apply_if_ordered(&mut self, command: Command) -> Outcome {
        loop {
            let outcome = self.apply(command.clone()).outcome;
            let is_unordered = matches!(outcome, Outcome::Refused(Refusal::KeysUnordered { .. }));
            if !is_unordered || self.below(4) == 0 {
                return outcome;
            }
            self.order_keys();
        }
    }

    fn order_keys(&mut self) {
        let lane = LANES[usize::from(self.below(6) == 0)].into();
        let tasks_max = 1 + self.below(6) as u32;
        self.apply(Command::OrderKeys(OrderKeys { lane, tasks_max }));
    }

    pub(super) fn lift_limits(&mut self) {
        if self.limits.is_none() {
            return;
        }
        self.set_held(false);
        for lane in LANES {
            let names = self.keys.iter().flat_map(|key| [Some(*key), tenant_of(key)]).flatten();
            let named = names.map(|name| Scope::Named(name.to_owned()));
            let all = [Scope::Lane, Scope::EachKey, Scope::EachTenant].into_iter().chain(named);
            let set = all.map(|scope| SetLimit { scope, limit: None }).collect();
            self.apply(Command::LimitLane(LimitLane { lane: lane.into(), set }));
        }
    }

    /// A step of giving a key's tasks new levels; an earlier one goes on, or begins anew.
    fn relevel(&mut self) {
        let lane = LANES[usize::from(self.below(6) == 0)];
        let (key, priority) = (self.keys[self.below(self.keys.len())], [0, 0, 0, 1][self.below(4)]);
        if self.below(2) == 0 {
            let milli = WEIGHTS_MILLI[self.below(WEIGHTS_MILLI.len())];
            let weights = [(key.to_owned(), Weight::from_milli(milli))].into();
            let weigh = windlass_core::lanes::weigh::WeighKeys { lane: lane.into(), weights };
            self.apply(Command::WeighKeys(weigh));
        }
        let handed_out = self.leader.reserver.desk().handed_out(lane, [(priority, key)]);
        let relevel = Relevel { lane: lane.into(), priority, key: key.into(), handed_out };
        self.apply_if_ordered(Command::Relevel(relevel));
    }

    /// Follows what the leader has heard of limits.
    fn follow_limits(&mut self) {
        let now = self.leader.now;
        let Some(it) = &mut self.limits else { return };
        for (lane, row) in self.leader.lanes_told.drain(..) {
            it.rates
                .retain(|name, rated| name.0 != lane || limit_of(&row.limits, name).rate == Some(rated.rate));
            let named = it.keys.values().filter(|(rank, _)| rank.lane == lane);
            for name in named.flat_map(|(_, key)| names(lane, key)) {
                if let Some(rate) = limit_of(&row.limits, &name).rate {
                    it.rates.entry(name).or_insert(Rated { rate, since: now, times: Vec::new() });
                }
            }
            it.limits.insert(lane, row.limits);
        }
    }

    pub(super) fn look_at_hand_out(&mut self, held: Held) {
        self.follow_limits();
        let now = self.leader.now;
        let Some(it) = &mut self.limits else { return };
        let (rank, key) = it.keys[&held.id].clone();
        for name in names(rank.lane, &key) {
            let limit = limit_of(&it.limits[&rank.lane], &name);
            if let Some(most) = limit.in_flight {
                assert!(!it.is_held, "{key:?} is limited, and work of an earlier leader is under way");
                let out = self.held.iter().filter(|held| {
                    let (rank, key) = &it.keys[&held.id];
                    is_of(&name, *rank, key)
                });
                assert!(out.count() < most as usize, "{name:?} has {most} in flight already");
            }
            if let Some(rate) = limit.rate {
                let rated = Rated { rate, since: now, times: Vec::new() };
                let rated = it.rates.entry(name).or_insert(rated);
                rated.times.push(now);
                rated.check(now);
            }
        }
        let is_first = it.was_out.insert(held.id);
        if is_first && !self.is_late && self.model.tasks.get(&held.id).is_some_and(|known| !known.was_delayed)
        {
            let last = it.last_in_order.insert((rank, key), held.id);
            assert!(last < Some(held.id), "{last:?} of the same key was added after {}", held.id);
        }
    }

    /// Everything that may go out goes out; what is left is blocked.
    pub(super) fn look_for_what_is_withheld(&mut self) {
        self.leader.tell(usize::MAX);
        self.reconcile();
        for lane in LANES {
            while self.reserve_of(lane, Holder::Session(SessionId(1)), 1) > 0 || self.do_errands() {}
        }
        self.follow_limits();
        let waiting =
            self.model.tasks.iter().filter(|(_, known)| matches!(known.standing, Standing::Waiting { .. }));
        let desk = self.leader.reserver.desk();
        for (id, known) in waiting.filter(|(id, _)| !desk.is_out(**id)) {
            let blocks = desk.blocks(known.rank.lane, &known.key, self.leader.now);
            let why = format!("{id} of {:?} in {:?}, but {blocks:?}", known.key, known.rank);
            assert!(self.is_blocked(known.rank, &known.key), "nothing is in the way of task {why}");
        }
        self.reconcile();
        for _ in 0..self.held.len() / 2 {
            let nth = pick(&mut self.chance, self.held.len());
            let held = self.held.swap_remove(nth);
            self.apply(crate::leader::complete(held));
        }
    }

    fn is_blocked(&self, rank: RankName, key: &str) -> bool {
        let it = self.limits.as_ref().expect("there are limits");
        let (lane, now) = (self.model.lane(rank.lane), self.leader.now);
        let desk = self.leader.reserver.desk();
        let out: Vec<&(RankName, String)> = desk.out_of_lane(rank.lane).map(|id| &it.keys[&id]).collect();
        lane.is_paused
            || names(rank.lane, key).iter().any(|name| {
                let limit = limit_of(&lane.limits, name);
                let count = out.iter().filter(|(rank, key)| is_of(name, *rank, key)).count();
                let is_full = |most: u32| it.is_held || count >= most as usize;
                limit.in_flight.is_some_and(is_full)
                    || it.rates.get(name).is_some_and(|rated| rated.is_used_up(now))
            })
    }

    /// Does all that the desk asks for; false if that is nothing.
    fn do_errands(&mut self) -> bool {
        self.leader.collect_errands();
        let is_something = !self.leader.errands.is_empty() || !self.leader.looked.is_empty();
        for errand in std::mem::take(&mut self.leader.errands) {
            match errand {
                Errand::Note(ack) => drop(self.apply(Command::Ack(ack))),
                read => self.leader.go_for(read),
            }
        }
        self.leader.tell(usize::MAX);
        self.leader.deliver_all();
        is_something
    }

    /// No key and no tenant is set apart any more whose turn is over.
    pub(super) fn check_nothing_is_remembered(&mut self) {
        for lane in LANES {
            while self.reserve_of(lane, Holder::Session(SessionId(1)), 1) > 0 || self.do_errands() {}
        }
        let desk = self.leader.reserver.desk();
        for lane in self.leader.machine.lanes().all() {
            for priority in 0..10 {
                let rank = RankName { lane: lane.row().number, priority };
                for name in self.keys.iter().flat_map(|key| [Some(*key), tenant_of(key)]).flatten() {
                    let time = desk.look(rank).map_or(0, |seen| seen.virtual_time);
                    let turn = desk.turn_of(rank, name);
                    assert!(turn.is_none_or(|turn| turn.pass > time), "{name:?} of {rank:?} has {turn:?}");
                }
            }
        }
    }
}
