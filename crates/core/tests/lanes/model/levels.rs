//! What the model says of levels: of keys and of tenants, when tasks are charged, done, and moved.
//!
//! Every task of a key is looked at again whenever something is asked, and no finish tag is ever forgotten. Of tenants it is
//! said when they are: when they have no tasks and their turn is over.

use super::{Known, KnownTenant, Model, answered, lane_set, tenant_of};
use std::collections::BTreeMap;
use windlass_core::effect::Times;
use windlass_core::entry::{Applied, Effect, Outcome, Refusal};
use windlass_core::lanes::acks::Ack;
use windlass_core::lanes::key_order::{KeyOrder, Making, OrderKeys};
use windlass_core::lanes::levels::{Level, RankName, is_tenant};
use windlass_core::lanes::limiting::{LimitLane, Scope, SetLimit};
use windlass_core::lanes::ranks::RankRow;
use windlass_core::lanes::relevel::{Phase, Relevel, RelevelFrom, Releveled, UnderWay};
use windlass_core::lanes::state::{LaneRow, LanesState};
use windlass_core::lanes::tasks::{HandedOut, Standing, TaskId};
use windlass_core::limits::{TASKS_COUNTED_PER_COMMAND_MAX, TASKS_RELEVELED_PER_COMMAND_MAX};

/// The key whose tasks get other levels.
struct Stand<'a> {
    rank: RankName,
    key: &'a str,
    stride: u32,
    lowest: u64,
}

fn is_of_tenant(scope: &Scope) -> bool {
    matches!(scope, Scope::Named(name) if is_tenant(name))
}

fn name_of_tenant(rank: RankName, key: &str) -> Option<(RankName, String)> {
    tenant_of(key).map(|tenant| (rank, tenant.to_owned()))
}

impl Model {
    fn times(&mut self, rank: RankName, key: &str) -> Times {
        let row = *self.row(rank);
        let of_tenant = |name| self.tenants.get(&name).map_or(row.tenants_from, |it| it.time);
        Times { rank: row.virtual_time, tenant: name_of_tenant(rank, key).map_or(0, of_tenant) }
    }

    /// The virtual time among those who share with a task's key.
    pub(super) fn time_around(&mut self, id: TaskId) -> u64 {
        let Known { rank, key, .. } = self.known(id).clone();
        self.time_of(rank, &key)
    }

    fn time_of(&mut self, rank: RankName, key: &str) -> u64 {
        let times = self.times(rank, key);
        if tenant_of(key).is_some() { times.tenant } else { times.rank }
    }

    fn tenant(&mut self, name: (RankName, String)) -> &mut KnownTenant {
        let time = self.row(name.0).tenants_from;
        self.tenants.entry(name).or_insert(KnownTenant { time, ..KnownTenant::default() })
    }

    pub(super) fn charge_and_place(&mut self, id: TaskId) -> Effect {
        let Known { rank, key, weight, .. } = self.known(id).clone();
        let finish = self.finishes.get(&(rank, key.clone())).copied().unwrap_or(0);
        let pass = finish.max(self.time_of(rank, &key));
        let weight = self.lane(rank.lane).weights.get(&key).copied().unwrap_or(weight);
        self.finishes.insert((rank, key), pass + u64::from(weight.stride()));
        self.known(id).is_charged = true;
        self.place(id, pass, weight.stride())
    }

    pub(super) fn place(&mut self, id: TaskId, pass: u64, stride: u32) -> Effect {
        let known = self.known(id);
        (known.standing, known.stride) = (Standing::Waiting { pass }, stride);
        let (rank, key, level) = (known.rank, known.key.clone(), Level { pass, id });
        let row = self.row(rank);
        row.waiting += 1;
        let now = row.virtual_time;
        match name_of_tenant(rank, &key) {
            Some(name) => {
                let tenant = self.tenant(name);
                if tenant.waiting == 0 {
                    tenant.finish = tenant.finish.max(now);
                }
                tenant.waiting += 1;
            }
            None => row.highest = row.highest.max(Some(level)),
        }
        let times = self.times(rank, &key);
        Effect::TaskPlaced { rank, level, key: key.into(), stride, times }
    }

    pub(super) fn hear(&mut self, rank: RankName, it: &HandedOut) {
        match &it.tenant {
            None => self.advance(rank, it.pass),
            Some(tenant) => {
                if let Some(tenant) = self.tenants.get_mut(&(rank, tenant.clone())) {
                    tenant.time = tenant.time.max(it.pass);
                } else if let Some(row) = self.ranks.get_mut(&rank) {
                    row.tenants_from = row.tenants_from.max(it.pass);
                }
            }
        }
    }

    fn advance(&mut self, rank: RankName, pass: u64) {
        if pass > 0 {
            let row = self.row(rank);
            row.virtual_time = row.virtual_time.max(pass);
            self.forget_tenants(rank);
        }
    }

    fn forget_tenants(&mut self, rank: RankName) {
        let row = self.ranks.entry(rank).or_default();
        self.tenants.retain(|(of, _), tenant| {
            let is_over = *of == rank && tenant.waiting == 0 && tenant.finish <= row.virtual_time;
            if is_over {
                row.tenants_from = row.tenants_from.max(tenant.time);
            }
            !is_over
        });
    }

    fn last_finish(&self, rank: RankName, is_one: impl Fn(&str) -> bool) -> u64 {
        let of_keys = self.finishes.iter().filter(|((of, key), _)| *of == rank && is_one(key));
        of_keys.map(|(_, finish)| *finish).max().unwrap_or(0)
    }

    pub(super) fn take_out(&mut self, id: TaskId, pass: u64, is_done: bool) -> Effect {
        let Known { rank, key, failures, .. } = self.known(id).clone();
        self.row(rank).waiting -= 1;
        let reached = match name_of_tenant(rank, &key) {
            Some(name) => {
                let cost = if failures == 0 { self.lane(rank.lane).tenant_stride(&name.1) } else { 0 };
                let last = self.last_finish(rank, |key| tenant_of(key) == Some(&name.1));
                let tenant = self.tenant(name);
                tenant.waiting -= 1;
                tenant.time = tenant.time.max(pass);
                if tenant.waiting == 0 {
                    tenant.time = tenant.time.max(last);
                }
                tenant.finish += u64::from(cost);
                // What was charged before took no turn.
                if cost > 0 { tenant.finish - u64::from(cost) } else { 0 }
            }
            None => pass,
        };
        self.advance(rank, reached);
        if self.row(rank).waiting == 0 {
            let of_tenants = self.tenants.iter().filter(|((of, _), _)| *of == rank);
            let last = of_tenants.map(|(_, tenant)| tenant.finish).max().unwrap_or(0);
            let last = last.max(self.last_finish(rank, |key| tenant_of(key).is_none()));
            self.advance(rank, last);
        }
        self.forget_tenants(rank);
        let times = self.times(rank, &key);
        Effect::TaskUnplaced { rank, level: Level { pass, id }, key: key.into(), is_done, times }
    }

    pub(super) fn ack(&mut self, it: &Ack) -> Applied {
        let rank = RankName { lane: it.lane, priority: it.priority };
        let of = match &it.tenant {
            Some(tenant) => {
                self.tenants.get_mut(&(rank, tenant.clone())).map(|it| (it.time, &mut it.acked, &mut it.gap))
            }
            None => self.ranks.get_mut(&rank).map(|row| (row.virtual_time, &mut row.acked, &mut row.gap)),
        };
        if let Some((time, acked, gap)) = of {
            if it.level.pass < time {
                *acked = (*acked).max(Some(it.level));
            }
            if it.gap.is_some_and(|gap| gap.to.pass < time) {
                *gap = it.gap;
            }
            if gap.is_some_and(|gap| Some(gap.to) <= *acked) {
                *gap = None;
            }
        }
        answered(Outcome::Noted)
    }

    pub(super) fn limit(&mut self, it: &LimitLane) -> Applied {
        let Some(lane) = self.lanes.get(&it.lane) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        let is_of_keys = |set: &SetLimit| {
            let is_some = set.limit.is_some_and(|limit| limit.in_flight.is_some() || limit.rate.is_some());
            is_some && matches!(&set.scope, Scope::EachKey | Scope::Named(_)) && !is_of_tenant(&set.scope)
        };
        if it.set.iter().any(is_of_keys) {
            let row = lane.row.clone();
            if self.is_unordered(&row) {
                return Applied::refused(Refusal::KeysUnordered { lane: it.lane.clone() });
            }
            self.lanes.get_mut(&it.lane).expect("it is there").row.key_order = KeyOrder::Kept;
        }
        let lane = self.lanes.get_mut(&it.lane).expect("it is there");
        let limits = &mut lane.row.limits;
        for set in &it.set {
            match &set.scope {
                Scope::Lane => limits.lane = set.limit.unwrap_or_default(),
                Scope::EachKey => limits.each_key = set.limit.unwrap_or_default(),
                Scope::EachTenant => limits.each_tenant = set.limit.unwrap_or_default(),
                Scope::Named(name) => {
                    limits.named.remove(name);
                    limits.named.extend(set.limit.map(|limit| (name.clone(), limit)));
                }
            }
        }
        lane_set(&it.lane, &lane.row)
    }

    /// The model does not say how far a step comes, but that it does, and that nothing else changes.
    pub(super) fn order_keys(&mut self, it: &OrderKeys, gave: &Applied) -> Applied {
        let Some(lane) = self.lanes.get_mut(&it.lane) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        let place = |making: &Making| (making.priority, making.tenant.clone(), making.above);
        let before = match &lane.row.key_order {
            KeyOrder::Kept => return answered(Outcome::KeysOrdered { is_done: true }),
            KeyOrder::Absent => None,
            KeyOrder::Making(making) => Some(place(making)),
        };
        let Some(Effect::LaneSet { row, .. }) = gave.effects.first() else { panic!("{gave:?}") };
        lane.row.key_order.clone_from(&row.key_order);
        if let KeyOrder::Making(making) = &row.key_order {
            assert!(Some(place(making)) > before, "it comes on: {before:?}, {making:?}");
        }
        let is_done = lane.row.key_order.is_kept();
        Applied { outcome: Outcome::KeysOrdered { is_done }, ..lane_set(&it.lane, &lane.row) }
    }

    /// Whether what needs the order of each key's own tasks is refused.
    fn is_unordered(&self, lane: &LaneRow) -> bool {
        let has_tasks = |(name, row): (&RankName, &RankRow)| name.lane == lane.number && row.waiting > 0;
        !lane.key_order.is_kept() && self.ranks.iter().any(has_tasks)
    }

    /// The tasks of a key that wait, in the order of their levels.
    fn levels_of(&self, rank: RankName, key: &str) -> Vec<Level> {
        let of_key = self.tasks.iter().filter(|(_, known)| known.rank == rank && known.key == key);
        let mut levels: Vec<Level> = of_key
            .filter_map(|(id, known)| match known.standing {
                Standing::Waiting { pass } => Some(Level { pass, id: *id }),
                Standing::Delayed { .. } | Standing::Dead => None,
            })
            .collect();
        levels.sort_unstable();
        levels
    }

    pub(super) fn relevel(&mut self, it: &Relevel) -> Applied {
        let Some(lane) = self.lanes.get(&it.lane) else {
            return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
        };
        let rank = RankName { lane: lane.row.number, priority: it.priority };
        let run = (rank, it.key.clone());
        let under_way = self.relevels.get(&run).copied();
        let weight = lane.row.weights.get(&it.key).filter(|_| !is_tenant(&it.key));
        let Some(stride) = weight.map(|weight| weight.stride()).or(under_way.map(|it| it.stride)) else {
            let problem =
                format!("key `{}` has no weight by its name; set one first, or name another key", it.key);
            return Applied::refused(Refusal::Malformed { problem });
        };
        if self.is_unordered(&lane.row) && !self.levels_of(rank, &it.key).is_empty() {
            return Applied::refused(Refusal::KeysUnordered { lane: it.lane.clone() });
        }
        it.handed_out.iter().for_each(|handed_out| self.hear(rank, handed_out));
        let levels = self.levels_of(rank, &it.key);
        let done = |tasks, next| Outcome::Releveled(Releveled { tasks, next });
        self.relevels.remove(&run);
        if levels.is_empty() {
            return answered(done(0, None));
        }
        let lowest = self.time_of(rank, &it.key);
        let start = Level { pass: lowest, id: TaskId::last() };
        let from = under_way.filter(|it| it.stride == stride).map_or(
            RelevelFrom { phase: Phase::Count { first: lowest, tasks: 0 }, level: Some(start) },
            |it| it.from,
        );
        let stand = Stand { rank, key: &it.key, stride, lowest };
        let (effects, next) = match from.phase {
            Phase::Count { first, tasks } => (Vec::new(), self.count(&stand, from, first, tasks, levels)),
            Phase::Apart { next } => self.move_apart(&stand, from, next, levels),
            Phase::Together { last } => self.move_together(&stand, from, last, levels),
        };
        if let Some(from) = next {
            self.relevels.insert(run, UnderWay { from, stride });
        }
        Applied { outcome: done(effects.len() as u64, next), effects }
    }

    fn count(
        &mut self,
        it: &Stand<'_>,
        from: RelevelFrom,
        first: u64,
        tasks: u64,
        mut levels: Vec<Level>,
    ) -> Option<RelevelFrom> {
        levels.retain(|level| Some(*level) > from.level);
        assert!(levels.len() < TASKS_COUNTED_PER_COMMAND_MAX, "the model counts in one step");
        levels.retain(|level| self.known(level.id).stride > 0);
        let first = if tasks > 0 { first } else { levels.first().map_or(first, |level| level.pass) };
        let next = first + (tasks + levels.len() as u64) * u64::from(it.stride);
        let finish = self.finishes.entry((it.rank, it.key.to_owned())).or_default();
        *finish = next.max(*finish);
        // What is added later stands above.
        let level = Some(Level { pass: *finish, id: TaskId::first() });
        Some(RelevelFrom { phase: Phase::Apart { next }, level })
    }

    /// Each to its place, counted from the end, or above.
    fn move_apart(
        &mut self,
        it: &Stand<'_>,
        from: RelevelFrom,
        next: u64,
        mut levels: Vec<Level>,
    ) -> (Vec<Effect>, Option<RelevelFrom>) {
        levels.retain(|level| from.level.is_none_or(|from| *level < from) && level.pass > it.lowest);
        levels.reverse();
        levels.truncate(TASKS_RELEVELED_PER_COMMAND_MAX);
        let is_last = levels.len() < TASKS_RELEVELED_PER_COMMAND_MAX;
        let last = levels.last().copied();
        levels.retain(|level| self.known(level.id).stride > 0);
        let place = |nth: usize| next.saturating_sub((nth as u64 + 1) * u64::from(it.stride));
        let mut effects = Vec::new();
        for (nth, level) in levels.iter().enumerate().filter(|(nth, level)| place(*nth) > level.pass) {
            effects.extend(self.shift(it.rank, it.key, *level, place(nth), it.stride));
        }
        let reached = next.saturating_sub(levels.len() as u64 * u64::from(it.stride));
        let next = match is_last {
            false => RelevelFrom { phase: Phase::Apart { next: reached }, level: last },
            true => RelevelFrom { phase: Phase::Together { last: None }, level: None },
        };
        (effects, Some(next))
    }

    /// Each one stride behind the one before, or below.
    fn move_together(
        &mut self,
        it: &Stand<'_>,
        from: RelevelFrom,
        mut last: Option<u64>,
        mut levels: Vec<Level>,
    ) -> (Vec<Effect>, Option<RelevelFrom>) {
        levels.retain(|level| Some(*level) > from.level);
        let is_last = levels.len() < TASKS_RELEVELED_PER_COMMAND_MAX;
        levels.truncate(TASKS_RELEVELED_PER_COMMAND_MAX);
        let mut effects = Vec::new();
        for level in &levels {
            if self.known(level.id).stride > 0 {
                let behind = (last.unwrap_or(it.lowest) + u64::from(it.stride)).max(it.lowest);
                let pass = behind.min(level.pass);
                effects.extend(self.shift(it.rank, it.key, *level, pass, it.stride));
                last = if level.pass > it.lowest { Some(pass) } else { last };
            }
        }
        if is_last {
            if let Some(last) = last {
                self.finishes.insert((it.rank, it.key.to_owned()), last + u64::from(it.stride));
            }
            return (effects, None);
        }
        (effects, Some(RelevelFrom { phase: Phase::Together { last }, level: levels.last().copied() }))
    }

    fn shift(&mut self, rank: RankName, key: &str, from: Level, pass: u64, stride: u32) -> Option<Effect> {
        let known = self.known(from.id);
        if known.stride == 0 || (pass == from.pass && known.stride == stride) {
            return None;
        }
        (known.standing, known.stride) = (Standing::Waiting { pass }, stride);
        let to = Level { pass, ..from };
        if tenant_of(key).is_none() {
            let row = self.row(rank);
            row.highest = row.highest.max(Some(to));
        }
        Some(Effect::TaskMoved { rank, from, to, key: key.into(), stride })
    }

    pub(super) fn agrees_on_tenants(&self, lanes: &LanesState) {
        let mut tenants = BTreeMap::new();
        for lane in lanes.all() {
            for (priority, rank) in lane.ranks() {
                for (name, tenant) in rank.tenants() {
                    let account = rank.key(name).expect("a tenant has its tag");
                    let known = KnownTenant {
                        time: tenant.row().virtual_time,
                        acked: tenant.row().acked,
                        gap: tenant.row().gap,
                        finish: account.finish,
                        waiting: account.waiting,
                    };
                    let rank = RankName { lane: lane.row().number, priority };
                    tenants.insert((rank, name.to_owned()), known);
                }
            }
        }
        assert_eq!(tenants, self.tenants, "tenants, their times and turns");
    }
}
