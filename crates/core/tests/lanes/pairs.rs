//! Pairs: whoever shares with somebody gets what the weights say, at every level, also beside limits.
//!
//! Parties of a rank are its keys without a tenant and its tenants, a tenant counting as one key of the tenant's weight;
//! parties of a tenant are its users. Over every stretch in which two parties of the same rank, or of the same tenant, may
//! both go, what they got differs by at most one stride of each: `|n_i · s_i − n_j · s_j| ≤ s_i + s_j`. A user's stride
//! counts over the hand-outs of its tenant only. A party may go if a task of it waits that was not out before, and neither its
//! own limit is in the way nor, for a tenant, those of all its users that have tasks.

use crate::leader::{Held, LANE, Leader, complete, name_of};
use crate::sequences;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::entry::Command;
use windlass_core::lanes::levels::{Weight, tenant_of};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::tasks::{NewTask, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::seeded::Seeded;

#[test]
fn parties_that_may_go_differ_by_at_most_one_stride_of_each_at_every_level() {
    let name = "parties_that_may_go_differ_by_at_most_one_stride_of_each_at_every_level";
    sequences::run(name, 60, |seed| {
        let mut run = Run::new(seed);
        while run.hand_outs < 4_000 {
            run.step();
        }
        assert!(run.widest > 500_000, "the bound is put to the test: {}", run.widest);
    });
}

const PLAIN: [&str; 3] = ["a", "b", "c"];
const USERS: [&str; 6] = ["t/x", "t/y", "t/z", "u/x", "u/y", "v/x"];
const TENANTS: [&str; 3] = ["t/", "u/", "v/"];

/// A key or a tenant.
#[derive(Debug, Default)]
struct Party {
    stride: i128,
    may_go: bool,
    /// Tasks that wait and were never out.
    fresh: BTreeSet<TaskId>,
    wanted: usize,
    last: Option<TaskId>,
}

/// How far what two parties got went apart since both may go.
#[derive(Debug, Clone, Copy, Default)]
struct Spread {
    now: i128,
    least: i128,
    most: i128,
}

struct Run {
    leader: Leader,
    chance: Seeded,
    parties: BTreeMap<&'static str, Party>,
    weights: BTreeMap<&'static str, Weight>,
    spreads: BTreeMap<(&'static str, &'static str), Spread>,
    keys: BTreeMap<TaskId, &'static str>,
    held: Vec<Held>,
    held_max: usize,
    hand_outs: usize,
    widest: i128,
}

fn group(name: &str) -> Option<&str> {
    tenant_of(name).filter(|tenant| *tenant != name)
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
        let party = |weight: &Weight| Party { stride: weight.stride().into(), ..Party::default() };
        let mut run = Run {
            leader,
            parties: weights.iter().map(|(name, weight)| (*name, party(weight))).collect(),
            spreads: BTreeMap::new(),
            keys: BTreeMap::new(),
            held: Vec::new(),
            held_max: 1 + pick(&mut chance, 30),
            hand_outs: 0,
            widest: 0,
            chance,
            weights,
        };
        let of_tenants = TENANTS.into_iter().map(|name| (name.to_owned(), Some(run.weights[name])));
        let weigh = WeighKeys { lane: LANE.into(), weights: of_tenants.collect() };
        run.leader.apply(Command::WeighKeys(weigh));
        run
    }

    fn below(&mut self, bound: usize) -> usize {
        pick(&mut self.chance, bound)
    }

    fn step(&mut self) {
        match self.below(1_000) {
            0..30 => {
                let key = self.some_key();
                let most = [0, 1, 3, 40][self.below(4)];
                self.parties.get_mut(key).expect("a key").wanted = most;
            }
            30..300 => self.add(),
            300..310 => self.limit(),
            310..330 => {
                let ms = [1, 20, 300][self.below(3)];
                self.leader.wait_ms(ms);
            }
            330..350 => self.release(),
            350..600 => self.run_errands(),
            _ => self.work(),
        }
        self.look_again();
    }

    fn some_key(&mut self) -> &'static str {
        let keys: Vec<&'static str> = PLAIN.into_iter().chain(USERS).collect();
        keys[self.below(keys.len())]
    }

    fn add(&mut self) {
        let key = self.some_key();
        let Party { fresh, wanted, .. } = &self.parties[key];
        let missing = wanted.saturating_sub(fresh.len());
        if missing > 0 {
            let task = NewTask { weight: self.weights[key], ..NewTask::new(key) };
            let ids = self.leader.add(vec![task; missing]);
            self.parties.get_mut(key).expect("a key").fresh.extend(&ids);
            self.keys.extend(ids.into_iter().map(|id| (id, key)));
        }
    }

    fn limit(&mut self) {
        let names: Vec<&str> = PLAIN.into_iter().chain(USERS).chain(TENANTS).collect();
        let scope = match self.below(8) {
            0 => Scope::EachKey,
            1 => Scope::EachTenant,
            _ => Scope::Named(names[self.below(names.len())].into()),
        };
        let in_flight = [None, Some(0), Some(1), Some(2), Some(4)][self.below(5)];
        let rate = [None, None, Some(Rate { milli_per_second: 50_000, burst: 3 })][self.below(3)];
        let limit = (self.below(2) == 0).then_some(Limit { in_flight, rate });
        let set = vec![SetLimit { scope, limit }];
        self.leader.apply_ordered(Command::LimitLane(LimitLane { lane: LANE.into(), set }));
    }

    /// Errands are done in no hurry.
    fn run_errands(&mut self) {
        self.leader.look_for_rows();
        if self.below(2) == 0 {
            self.leader.deliver_all();
        }
    }

    fn release(&mut self) {
        if !self.held.is_empty() {
            let nth = self.below(self.held.len());
            let held = self.held.swap_remove(nth);
            self.leader.reserver.release(name_of(held.id), held.token);
        }
    }

    fn work(&mut self) {
        if self.held.len() >= self.held_max || self.below(4) == 0 && !self.held.is_empty() {
            let nth = self.below(self.held.len());
            let held = self.held.swap_remove(nth);
            self.leader.apply(complete(held));
            self.look_again();
        }
        if let Some(held) = self.leader.reserve(1).pop() {
            self.held.push(held);
            self.hand_out(held.id);
        }
    }

    fn hand_out(&mut self, id: TaskId) {
        let key = self.keys[&id];
        let party = self.parties.get_mut(key).expect("a key");
        if !party.fresh.remove(&id) {
            return;
        }
        assert!(party.last < Some(id), "{:?} of {key} was added after {id}", party.last);
        party.last = Some(id);
        self.hand_outs += 1;
        for name in [Some(key), group(key)].into_iter().flatten() {
            self.count(name);
        }
    }

    fn count(&mut self, name: &str) {
        let (name, _) = self.parties.get_key_value(name).expect("a party");
        for other in self.parties.keys().filter(|other| *other != name && group(other) == group(name)) {
            let [stride, of_other] = [name, other].map(|name| self.parties[name].stride);
            if !self.parties[name].may_go || !self.parties[other].may_go {
                continue;
            }
            let spread = self.spreads.entry((name.min(other), name.max(other))).or_default();
            spread.now += if name < other { stride } else { -stride };
            (spread.least, spread.most) = (spread.least.min(spread.now), spread.most.max(spread.now));
            let (apart, allowed) = (spread.most - spread.least, stride + of_other);
            assert!(apart <= allowed, "{name} and {other} got {apart} apart where {allowed} is allowed");
            self.widest = self.widest.max(apart * 1_000_000 / allowed);
        }
    }

    /// Who may go, and since when.
    fn look_again(&mut self) {
        let mut who: BTreeSet<&str> = BTreeSet::new();
        let (desk, lane, now) = (self.leader.reserver.desk(), self.leader.lane(), self.leader.now);
        for key in PLAIN.into_iter().chain(USERS).filter(|key| !self.parties[key].fresh.is_empty()) {
            let blocked: Vec<String> =
                desk.blocks(lane, key, now).into_iter().filter_map(|(name, _)| name).collect();
            if !blocked.iter().any(|name| name == key) {
                who.insert(key);
                who.extend(group(key).filter(|tenant| !blocked.iter().any(|name| name == tenant)));
            }
        }
        for (name, party) in &mut self.parties {
            let may_go = who.contains(name);
            if may_go != party.may_go {
                party.may_go = may_go;
                self.spreads.retain(|(one, other), _| one != name && other != name);
            }
        }
    }
}

fn pick(chance: &mut Seeded, bound: usize) -> usize {
    usize::try_from(chance.below(bound as u64)).expect("it is below a small number")
}
