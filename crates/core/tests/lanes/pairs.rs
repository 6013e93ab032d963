//! Pairs: whoever shares with somebody gets what the weights say, at every level, also beside limits.
//!
//! Parties of a rank are its keys without a tenant and its tenants, a tenant counting as one key of the tenant's weight;
//! parties of a tenant are its users. Over every stretch in which two parties of the same rank, or of the same tenant, may
//! both go, what they got differs by at most one stride of each: `|n_i · s_i − n_j · s_j| ≤ s_i + s_j`. A user's stride
//! counts over the hand-outs of its tenant only. A party may go if a task of it waits that was not out before, and neither its
//! own limit is in the way nor, for a tenant, those of all its users that have tasks.
//!
//! Each priority is a rank of its own. What is tried again or was given back is nobody's turn. With a new leader all begins
//! anew; there a key goes by the levels of its tasks again, so it counts only when none of them is left below the virtual time
//! that this leader began with, where a limit may have held them up or an earlier consumer has vanished with them. A tenant
//! counts when its turn is not below it any more.

use crate::counted;
use crate::leader::{ANNA, Held, LANE, Leader, complete, fail, name_of};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::batch::reserver::Standing as Stands;
use windlass_core::entry::Command;
use windlass_core::lanes::levels::{Weight, is_tenant, tenant_of};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::{NewTask, Standing, Task, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::seeded::Seeded;
use windlass_core::tables::Table;

#[test]
fn parties_that_may_go_differ_by_at_most_one_stride_of_each_at_every_level() {
    let name = "parties_that_may_go_differ_by_at_most_one_stride_of_each_at_every_level";
    counted::run(name, 100, 500_000, |seed| {
        let mut run = Run::new(seed);
        while run.hand_outs < 5_000 {
            run.step();
        }
        assert!(run.widest > 500_000, "the bound is put to the test: {}", run.widest);
        run.drain();
        run.hand_outs
    });
}

const PLAIN: [&str; 3] = ["a", "b", "c"];
const USERS: [&str; 6] = ["t/x", "t/y", "t/z", "u/x", "u/y", "v/x"];
const TENANTS: [&str; 3] = ["t/", "u/", "v/"];

/// Everything is recounted after so many steps.
const STEPS_PER_AUDIT: u64 = 256;

/// A key or a tenant, at a priority.
type Name = (u8, &'static str);

/// What is known of one.
#[derive(Debug, Default)]
struct Party {
    stride: i128,
    may_go: bool,
    /// Tasks that wait and were never out.
    fresh: BTreeSet<TaskId>,
    /// The virtual time when this leadership began, of its rank or tenant.
    began_at: u64,
    /// Those of the fresh ones that were below it then.
    behind: BTreeSet<TaskId>,
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
    parties: BTreeMap<Name, Party>,
    weights: BTreeMap<&'static str, Weight>,
    spreads: BTreeMap<(Name, Name), Spread>,
    /// Every task that is not done.
    tasks: BTreeMap<TaskId, Name>,
    held: Vec<Held>,
    held_max: usize,
    /// Those that count for some pair.
    hand_outs: u64,
    steps: u64,
    widest: i128,
}

/// The keys of both priorities.
fn keys() -> impl Iterator<Item = Name> {
    let both = |key| [(0, key), (1, key)];
    PLAIN.into_iter().chain(USERS).flat_map(both)
}

/// The tenant of a user.
fn group(name: Name) -> Option<Name> {
    let tenant = tenant_of(name.1).filter(|tenant| *tenant != name.1)?;
    TENANTS.into_iter().find(|it| *it == tenant).map(|it| (name.0, it))
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
            parties: [0, 1]
                .into_iter()
                .flat_map(|priority| weights.iter().map(move |it| ((priority, *it.0), party(it.1))))
                .collect(),
            spreads: BTreeMap::new(),
            tasks: BTreeMap::new(),
            held: Vec::new(),
            held_max: 1 + pick(&mut chance, 30),
            hand_outs: 0,
            steps: 0,
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
                let most = if key.0 == 0 { [0, 1, 3, 40] } else { [0, 0, 0, 5] }[self.below(4)];
                self.party(key).wanted = most;
            }
            30..300 => self.add(),
            300..310 => self.limit(),
            310..330 => {
                let ms = [1, 20, 300][self.below(3)];
                self.leader.wait_ms(ms);
            }
            330..350 => self.release(),
            350..364 => self.fail(),
            364 => self.note_all(),
            365..367 => self.restart(),
            367..370 => self.leader.reserver.at_desk(|desk| desk.set_held(false)),
            370..372 => self.hand_out_all(),
            372..600 => self.run_errands(),
            _ => self.work(),
        }
        self.look_again();
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_AUDIT) {
            self.leader.audit_now();
        }
    }

    fn some_key(&mut self) -> Name {
        let keys: Vec<Name> = keys().collect();
        keys[self.below(keys.len())]
    }

    fn party(&mut self, name: Name) -> &mut Party {
        self.parties.get_mut(&name).expect("it is one of them")
    }

    fn add(&mut self) {
        let name = self.some_key();
        let Party { fresh, wanted, .. } = &self.parties[&name];
        let missing = wanted.saturating_sub(fresh.len());
        if missing > 0 {
            let (priority, weight) = (name.0, self.weights[name.1]);
            let retry_delay_ms = [0, 30][self.below(2)];
            let task =
                NewTask { weight, priority, retry_delay_ms, attempts_max: 1_000, ..NewTask::new(name.1) };
            let ids = self.leader.add(vec![task; missing]);
            self.party(name).fresh.extend(&ids);
            self.tasks.extend(ids.into_iter().map(|id| (id, name)));
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

    /// How far everything is done is noted, and where nothing is left behind that: the next leader reads from there.
    fn note_all(&mut self) {
        self.leader.note_all();
        self.leader.look_for_rows();
    }

    /// Errands are done in no hurry.
    fn run_errands(&mut self) {
        self.leader.look_for_rows();
        if self.below(2) == 0 {
            self.leader.deliver_all();
        }
    }

    fn take_held(&mut self) -> Option<Held> {
        let nth = pick(&mut self.chance, self.held.len().max(1));
        (!self.held.is_empty()).then(|| self.held.swap_remove(nth))
    }

    fn release(&mut self) {
        if let Some(held) = self.take_held() {
            self.leader.reserver.release(name_of(held.id), held.token);
        }
    }

    fn fail(&mut self) {
        let Some(held) = self.take_held() else { return };
        self.leader.apply(fail(held.id, held.token.attempt));
    }

    fn complete_one(&mut self) {
        if let Some(held) = self.take_held() {
            self.leader.apply(complete(held));
            self.tasks.remove(&held.id);
            self.look_again();
        }
    }

    fn work(&mut self) {
        if self.held.len() >= self.held_max || self.below(4) == 0 {
            self.complete_one();
        }
        self.reserve_one();
    }

    fn reserve_one(&mut self) -> bool {
        let Some(held) = self.leader.reserve(1).pop() else { return false };
        self.held.push(held);
        self.hand_out(held.id);
        self.look_again();
        true
    }

    /// Everything that may go goes; a limit is in the way of what is left.
    fn hand_out_all(&mut self) {
        while self.reserve_one() || self.leader.do_errands() {}
        let desk = self.leader.reserver.desk();
        for (id, (_, key)) in self.tasks.iter().filter(|(id, _)| !desk.is_out(**id)) {
            let is_waiting = matches!(self.leader.standing(*id), Standing::Waiting { .. });
            let blocks = desk.blocks(self.leader.lane(), key, self.leader.now);
            assert!(!is_waiting || !blocks.is_empty(), "nothing is in the way of task {id} of {key}");
        }
        while self.held.len() > self.held_max {
            self.complete_one();
        }
    }

    /// The next leader begins, with what some of the consumers go on with; often it waits for more of them.
    fn restart(&mut self) {
        self.leader.change();
        let is_held = self.below(2) == 0;
        self.leader.reserver.at_desk(|desk| desk.set_held(is_held));
        for held in std::mem::take(&mut self.held) {
            if self.below(3) == 0 {
                self.reassert(held);
            }
        }
        // Of a tenant whose queue is not read yet it is not known whether it has had tasks all along.
        self.leader.do_errands();
        self.spreads.clear();
        for name in self.parties.keys().copied().collect::<Vec<Name>>() {
            self.begin_anew(name);
        }
    }

    fn begin_anew(&mut self, name: Name) {
        let probe = vec![NewTask { priority: name.0, ..NewTask::new(name.1) }];
        let times = self.leader.stamped(LANE, probe).handed_out;
        let around = if is_tenant(name.1) { times.first() } else { times.last() };
        let began_at = around.map_or(0, |it| it.pass);
        let (mut fresh, mut behind) = (BTreeSet::new(), BTreeSet::new());
        let desk = self.leader.reserver.desk();
        let own = self.tasks.iter().filter(|(id, it)| **it == name && !desk.is_out(**id));
        for id in own.map(|(id, _)| *id) {
            let Task { standing, failures, .. } = self.leader.task(id).expect("it is not done");
            if let Standing::Waiting { pass } = standing
                && failures == 0
            {
                fresh.insert(id);
                behind.extend((pass < began_at).then_some(id));
            }
        }
        let party = self.party(name);
        *party = Party { fresh, began_at, behind, may_go: false, last: None, ..*party };
    }

    fn reassert(&mut self, held: Held) {
        let (name, failures) =
            (self.tasks[&held.id], self.leader.task(held.id).expect("it is not done").failures);
        let stride = if failures == 0 { self.weights[name.1].stride() } else { 0 };
        let placed = Placed { level: self.leader.level(held.id), key: name.1.into(), stride };
        let rank = self.leader.rank(name.0);
        let standing = self.leader.reserver.reassert_task(ANNA, rank, placed, held.token);
        assert_eq!(standing, Stands::Holds);
        self.held.push(held);
    }

    /// Without limits everything goes out and is done.
    fn drain(&mut self) {
        self.leader.reserver.at_desk(|desk| desk.set_held(false));
        let names = PLAIN.into_iter().chain(USERS).chain(TENANTS).map(|name| Scope::Named(name.into()));
        let scopes = names.chain([Scope::EachKey, Scope::EachTenant]);
        let set = scopes.map(|scope| SetLimit { scope, limit: None }).collect();
        self.leader.apply_ordered(Command::LimitLane(LimitLane { lane: LANE.into(), set }));
        self.look_again();
        for _ in 0..1_000 {
            if self.tasks.is_empty() {
                break;
            }
            self.leader.wait_ms(1_000);
            self.hand_out_all();
            while !self.held.is_empty() {
                self.complete_one();
            }
        }
        self.leader.audit_now();
        assert_eq!(self.tasks.len(), 0, "each is done: {:?}", self.tasks);
        let rows = [Table::Levels, Table::KeyLevels, Table::Tasks].map(|table| self.leader.rows(table));
        assert_eq!(rows, [0; 3]);
    }

    fn hand_out(&mut self, id: TaskId) {
        let name = self.tasks[&id];
        let party = self.party(name);
        if !party.fresh.remove(&id) {
            return;
        }
        party.behind.remove(&id);
        assert!(party.last < Some(id), "{:?} of {name:?} was added after {id}", party.last);
        party.last = Some(id);
        let mut is_counted = false;
        for name in [Some(name), group(name)].into_iter().flatten() {
            is_counted |= self.count(name);
        }
        self.hand_outs += u64::from(is_counted);
    }

    /// Whether it counts: this one may go, and so may another one beside it.
    fn count(&mut self, name: Name) -> bool {
        let mut is_counted = false;
        if !self.parties[&name].may_go {
            return is_counted;
        }
        let stride = self.parties[&name].stride;
        for (other, party) in &self.parties {
            let is_peer = other.0 == name.0 && *other != name && group(*other) == group(name);
            if !is_peer || !party.may_go {
                continue;
            }
            let spread = self.spreads.entry((name.min(*other), name.max(*other))).or_default();
            spread.now += if name < *other { stride } else { -stride };
            (spread.least, spread.most) = (spread.least.min(spread.now), spread.most.max(spread.now));
            let (apart, allowed) = (spread.most - spread.least, stride + party.stride);
            assert!(apart <= allowed, "{name:?} and {other:?} got {apart} apart where {allowed} is allowed");
            self.widest = self.widest.max(apart * 1_000_000 / allowed);
            is_counted = true;
        }
        is_counted
    }

    fn has_caught_up(&self, tenant: Name) -> bool {
        let turn = self.leader.reserver.desk().turn_of(self.leader.rank(tenant.0), tenant.1);
        turn.is_some_and(|turn| turn.pass >= self.parties[&tenant].began_at)
    }

    /// Who may go, and since when.
    fn look_again(&mut self) {
        let mut who: BTreeSet<Name> = BTreeSet::new();
        let (desk, lane, now) = (self.leader.reserver.desk(), self.leader.lane(), self.leader.now);
        for name in keys().filter(|name| !self.parties[name].fresh.is_empty()) {
            let blocked: Vec<String> =
                desk.blocks(lane, name.1, now).into_iter().filter_map(|(name, _)| name).collect();
            let is_blocked = |name: Name| blocked.iter().any(|it| it == name.1);
            if !is_blocked(name) {
                who.extend(self.parties[&name].behind.is_empty().then_some(name));
                who.extend(group(name).filter(|tenant| !is_blocked(*tenant) && self.has_caught_up(*tenant)));
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
