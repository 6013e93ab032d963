//! Where a task of a lane stands, what is ahead of it, and what is in its way.

use super::Service;
use super::lane_look::{apart, blocks_of};
use super::lanes::unknown_lane;
use crate::limits::{
    LANE_KEYS_LOOKED_AT_MAX, LANE_KEYS_LOOKED_AT_ONCE, LANE_KEYS_SHOWN, TASKS_AHEAD_COUNTED_MAX,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_api::json::time_text;
use windlass_api::lanes::{LaneKeyInfo, TaskExplained, TaskStanding};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::Reserver;
use windlass_core::lanes::acks::{Acked, levels_undone};
use windlass_core::lanes::levels::{Level, QueueName, RankName, tenant_of};
use windlass_core::lanes::listing;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::{Standing, Task, TaskId};
use windlass_core::lanes::waits::{NoBound, Waits};

/// What the machine knows of a task and of its lane.
struct Known {
    task: Task,
    is_paused: bool,
    /// Higher priorities, and their tasks that wait or are with consumers.
    higher: Vec<(u8, u64)>,
    /// How far everything is done in the queue that it stands in, and in its rank.
    acked: Acked,
    rank_acked: Acked,
    virtual_time: u64,
    /// How far apart the turns of its tenant are.
    tenant_stride: u64,
}

/// What the leader knows of it.
struct Seen {
    is_out: bool,
    virtual_time: u64,
    /// Where its tenant's next task stands.
    turn: Option<Level>,
}

/// A tenant, the number of its tasks, and its stride.
type TenantWaiting = (Arc<str>, u32, u32);

/// Tasks of one key that stand below a level.
#[derive(Default)]
struct Tally {
    tasks: u64,
    /// Their strides together.
    strides: u64,
}

impl Tally {
    /// How far apart they stand, more or less.
    const fn stride(&self) -> u64 {
        match self.strides.checked_div(self.tasks) {
            None | Some(0) => 1,
            Some(stride) => stride,
        }
    }
}

/// How many turns come before a level, the first one of them being this one, and the others so far apart: those at the same pass as a
/// task come behind it.
fn turns_before(level: Level, first: Level, stride: u64) -> u64 {
    if first < level { level.pass.saturating_sub(first.pass).div_ceil(stride).max(1) } else { 0 }
}

/// Tasks ahead of one, in its own priority.
#[derive(Default)]
struct Ahead {
    all: u64,
    has_more: bool,
    /// The keys and tenants with the most of them.
    busiest: Vec<(Arc<str>, u64)>,
}

impl Ahead {
    fn add(&mut self, tasks_by_key: impl IntoIterator<Item = (Arc<str>, u64)>) {
        let before = self.busiest.len();
        self.busiest.extend(tasks_by_key.into_iter().filter(|(_, tasks)| *tasks > 0));
        self.all += self.busiest[before..].iter().map(|(_, tasks)| tasks).sum::<u64>();
        self.busiest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        self.busiest.truncate(LANE_KEYS_SHOWN);
    }
}

impl Service {
    /// Explains a task that is not done.
    pub async fn explain_task(&self, lane: String, id: TaskId) -> Result<TaskExplained, Problem> {
        let service = self.clone();
        apart(move || service.task_explained(&lane, id)).await
    }

    fn task_explained(&self, lane: &str, id: TaskId) -> Result<TaskExplained, Problem> {
        let known = self.known_of_task(lane, id)?;
        let task = &known.task;
        let rank = RankName { lane: task.lane, priority: task.priority };
        let seen = self.seen_of_task(rank, id, &known);
        let mut explained = TaskExplained {
            task: id,
            key: task.key.clone(),
            priority: task.priority,
            standing: TaskStanding::Waiting,
            why: String::new(),
            level: None,
            virtual_time: seen.virtual_time,
            due_at: None,
            added_at: time_text(task.added_at),
            failures: task.failures,
            attempts_max: task.attempts_max,
            ahead: 0,
            has_more_ahead: false,
            ahead_by_key: Vec::new(),
            blocked_by: Vec::new(),
            wait_bound: None,
            no_wait_bound: None,
        };
        match task.standing {
            Standing::Dead => {
                explained.standing = TaskStanding::Dead;
                explained.why = "all its attempts have failed; redrive tries it again".into();
            }
            Standing::Delayed { until } => {
                explained.standing = TaskStanding::Delayed;
                explained.due_at = Some(time_text(until));
                explained.why = match task.failures {
                    0 => "it is not due yet".into(),
                    _ => "its last attempt has failed, and the next one is not due yet".into(),
                };
            }
            Standing::Waiting { pass } if seen.is_out => {
                explained.standing = TaskStanding::Reserved;
                explained.level = Some(Level { pass, id }.to_string());
                explained.why = "a consumer works on it".into();
            }
            Standing::Waiting { pass } => {
                let level = Level { pass, id };
                explained.level = Some(level.to_string());
                self.explain_wait(&mut explained, rank, &known, &seen, level);
            }
        }
        Ok(explained)
    }

    fn explain_wait(
        &self,
        explained: &mut TaskExplained,
        rank: RankName,
        known: &Known,
        seen: &Seen,
        level: Level,
    ) {
        let ahead = self.count_ahead(rank, known, seen, level);
        let of_higher = known.higher.iter().map(|(priority, waiting)| {
            let name = RankName { priority: *priority, ..rank };
            let out = self.dispatcher().look_at_lanes(|desk, _| desk.look(name).map_or(0, |seen| seen.out));
            waiting.saturating_sub(out.unwrap_or(0) as u64)
        });
        explained.ahead = ahead.all + of_higher.sum::<u64>();
        explained.has_more_ahead = ahead.has_more;
        let of_key = |(key, waiting): (Arc<str>, u64)| LaneKeyInfo {
            key: (*key).into(),
            priority: rank.priority,
            waiting,
        };
        explained.ahead_by_key = ahead.busiest.into_iter().map(of_key).collect();
        let held_until = self.dispatcher().held_until();
        let blocked =
            |reserver: &Reserver, now| blocks_of(reserver, rank.lane, &[&*known.task.key], now, held_until);
        let blocked_by = self.dispatcher().look_at_reserver(blocked);
        explained.blocked_by = blocked_by.into_iter().flatten().flatten().collect();
        let bound = match explained.blocked_by.is_empty() {
            true => self.bound(rank, &known.task.key, level).map_err(why_no_bound),
            false => Err("a limit is in its way".to_owned()),
        };
        match bound {
            Ok(bound) => explained.wait_bound = Some(bound),
            Err(why) => explained.no_wait_bound = Some(why),
        }
        explained.why = match (known.is_paused, explained.blocked_by.first(), explained.ahead) {
            (true, _, _) => "the lane is paused; resume it".into(),
            (false, Some(block), _) => block.why.clone(),
            (false, None, 0) => "it goes to the next consumer that asks".into(),
            (false, None, _) => "others go first".into(),
        };
    }

    fn seen_of_task(&self, rank: RankName, id: TaskId, known: &Known) -> Seen {
        let seen = self.dispatcher().look_at_lanes(|desk, _| {
            let turn = tenant_of(&known.task.key).and_then(|tenant| desk.turn_of(rank, tenant));
            let virtual_time = desk.look(rank).map_or(0, |seen| seen.virtual_time);
            (desk.is_out(id), virtual_time, turn)
        });
        let (is_out, virtual_time, turn) = seen.unwrap_or((false, 0, None));
        Seen { is_out, virtual_time: virtual_time.max(known.virtual_time), turn }
    }

    fn known_of_task(&self, lane: &str, id: TaskId) -> Result<Known, Problem> {
        let known = self.order().read(|machine| {
            let lane = machine.lanes().by_name(lane)?;
            let task = listing::task(machine.tables(), id).filter(|task| task.lane == lane.row().number);
            Some(task.map(|task| {
                let higher = lane.ranks().filter(|(priority, _)| *priority > task.priority);
                let higher = higher.map(|(priority, rank)| (priority, rank.row().waiting)).collect();
                let own = lane.ranks().find(|(priority, _)| *priority == task.priority).map(|(_, rank)| rank);
                let acked = own.map(|rank| rank.acked_around(&task.key)).unwrap_or_default();
                let rank_acked = own.map(|rank| rank.row().acked()).unwrap_or_default();
                let virtual_time = own.map_or(0, |rank| rank.row().virtual_time);
                let is_paused = lane.row().is_paused;
                let tenant_stride =
                    tenant_of(&task.key).map_or(0, |name| lane.row().tenant_stride(name).into());
                Known { task, is_paused, higher, acked, rank_acked, virtual_time, tenant_stride }
            }))
        });
        known.ok_or_else(|| unknown_lane(lane))?.ok_or_else(|| {
            let detail = format!("lane `{lane}` has no task {id}: it is done, or was never there");
            Problem::new(ProblemCode::TaskUnknown, detail)
        })
    }

    /// Counts the tasks that go before one as things are, but for those that are with consumers, and those of keys at their
    /// limits.
    fn count_ahead(&self, rank: RankName, known: &Known, seen: &Seen, level: Level) -> Ahead {
        let key = &known.task.key;
        let mut ahead = Ahead::default();
        let around = QueueName::around(rank, key);
        let (mut tallies, mut has_more) = self.tasks_below(&around, known.acked, level);
        let own = tallies.remove(&**key).unwrap_or_default();
        // A key that goes by turns may be served later than its task stands.
        let turn_of_key = self.dispatcher().look_at_lanes(|desk, _| desk.turn_of_key(rank, key)).flatten();
        let served_at = turn_of_key.map_or(level, |turn| turn_after(turn, own.strides).max(level));
        if served_at > level {
            (tallies, has_more) = self.tasks_below(&around, known.acked, served_at);
            tallies.remove(&**key);
        }
        ahead.has_more = has_more;
        let others = self.that_go(rank, tallies, served_at);
        let Some(turn) = seen.turn else {
            ahead.add([(key.as_str().into(), own.tasks)].into_iter().chain(others));
            self.add_tenants(&mut ahead, rank, served_at, None);
            return ahead;
        };
        let tenant = tenant_of(key).unwrap_or(key);
        let of_tenant = own.tasks + others.values().sum::<u64>();
        let level = turn_after(turn, of_tenant.saturating_mul(known.tenant_stride));
        ahead.add([(tenant.into(), of_tenant)]);
        let (tallies, has_more) = self.tasks_below(&QueueName::of_rank(rank), known.rank_acked, level);
        ahead.has_more |= has_more;
        ahead.add(self.that_go(rank, tallies, level));
        self.add_tenants(&mut ahead, rank, level, Some(tenant));
        ahead
    }

    /// Of the tasks of other keys below a level, those that go before it: none of keys at their limits, and of those that go by turns
    /// since they met one as many as they have turns.
    fn that_go(
        &self,
        rank: RankName,
        tallies: BTreeMap<Arc<str>, Tally>,
        level: Level,
    ) -> BTreeMap<Arc<str>, u64> {
        let that_go = self.dispatcher().look_at_lanes(|desk, now| {
            let others = tallies.into_iter().filter(|(key, _)| !desk.is_at_limit(rank.lane, key, now));
            let count = |(key, tally): (Arc<str>, Tally)| {
                let turn = desk.turn_of_key(rank, &key);
                let turns = turn.map(|turn| turns_before(level, turn, tally.stride()));
                (key, turns.map_or(tally.tasks, |turns| turns.min(tally.tasks)))
            };
            others.map(count).collect()
        });
        that_go.unwrap_or_default()
    }

    /// The tasks of a queue below a level, by key, and whether there are more than are counted.
    fn tasks_below(
        &self,
        queue: &QueueName,
        acked: Acked,
        level: Level,
    ) -> (BTreeMap<Arc<str>, Tally>, bool) {
        let mut by_key: BTreeMap<Arc<str>, Tally> = BTreeMap::new();
        let rows = levels_undone(queue, acked, |table, range| self.order().committed().scan(table, range));
        let mut rows = rows.take_while(|placed| placed.level < level);
        let mut counted = 0;
        loop {
            let mut some: Vec<Placed> = rows.by_ref().take(LANE_KEYS_LOOKED_AT_ONCE).collect();
            let is_end = some.len() < LANE_KEYS_LOOKED_AT_ONCE;
            self.dispatcher().look_at_lanes(|desk, _| some.retain(|placed| !desk.is_out(placed.level.id)));
            for placed in some {
                if counted == TASKS_AHEAD_COUNTED_MAX {
                    return (by_key, true);
                }
                counted += 1;
                let tally = by_key.entry(placed.key).or_default();
                tally.tasks += 1;
                tally.strides = tally.strides.saturating_add(placed.stride.into());
            }
            if is_end {
                return (by_key, false);
            }
        }
    }

    /// Adds the turns that tenants have before a level, some tenants at a time.
    fn add_tenants(&self, ahead: &mut Ahead, name: RankName, level: Level, but: Option<&str>) {
        let (mut after, mut looked_at): (Option<Box<str>>, _) = (None, 0);
        loop {
            let (some, waiting) = self.some_tenants(name, after.as_deref(), but);
            let mut turns = Vec::with_capacity(waiting.len());
            self.dispatcher().look_at_lanes(|desk, now| {
                for (tenant, waiting, stride) in waiting {
                    let turn = desk.turn_of(name, &tenant);
                    let Some(turn) = turn.filter(|_| !desk.is_at_limit(name.lane, &tenant, now)) else {
                        continue;
                    };
                    let before = turns_before(level, turn, stride.into()).min(waiting.into());
                    turns.push((tenant, before));
                }
            });
            ahead.add(turns);
            looked_at += LANE_KEYS_LOOKED_AT_ONCE;
            let Some(last) = some else { return };
            if looked_at >= LANE_KEYS_LOOKED_AT_MAX {
                ahead.has_more = true;
                return;
            }
            after = Some(last);
        }
    }

    /// Some tenants behind one with tasks that wait, with the number of these and their stride; and the last one that was looked at, if
    /// there may be more.
    fn some_tenants(
        &self,
        name: RankName,
        after: Option<&str>,
        but: Option<&str>,
    ) -> (Option<Box<str>>, Vec<TenantWaiting>) {
        self.order().read(|machine| {
            let lanes = machine.lanes();
            let (Some(lane), Some(rank)) = (lanes.by_number(name.lane), lanes.rank(name)) else {
                return (None, Vec::new());
            };
            let some: Vec<&str> = rank.tenants_after(after).take(LANE_KEYS_LOOKED_AT_ONCE).collect();
            let last = some.last().filter(|_| some.len() == LANE_KEYS_LOOKED_AT_ONCE);
            let others = some.iter().filter(|tenant| Some(**tenant) != but);
            let waiting = others.filter_map(|tenant| {
                let row = rank.shares().get(tenant).filter(|row| row.waiting > 0)?;
                Some(((*tenant).into(), row.waiting, lane.row().tenant_stride(tenant)))
            });
            (last.map(|last| (*last).into()), waiting.collect())
        })
    }

    /// How many tasks of its priority go first at most.
    fn bound(&self, name: RankName, key: &str, level: Level) -> Result<u64, NoBound> {
        let waits = Waits {
            rows: self.order().committed(),
            look_at_rank: &|look| {
                self.order().read(|machine| {
                    let lanes = machine.lanes();
                    if let (Some(lane), Some(rank)) = (lanes.by_number(name.lane), lanes.rank(name)) {
                        look(lane.row(), rank);
                    }
                });
            },
            look_at_desk: &|look| {
                self.dispatcher().look_at_lanes(|desk, _| look(desk));
            },
            rank: name,
            key,
            level,
            counted_max: TASKS_AHEAD_COUNTED_MAX,
            keys_max: LANE_KEYS_LOOKED_AT_MAX,
            at_once: LANE_KEYS_LOOKED_AT_ONCE,
        };
        waits.bound()
    }
}

/// Where a turn stands that comes so much later than this one.
fn turn_after(turn: Level, strides: u64) -> Level {
    match strides {
        0 => turn,
        _ => Level { pass: turn.pass.saturating_add(strides), id: TaskId::last() },
    }
}

fn why_no_bound(why: NoBound) -> String {
    match why {
        NoBound::Gone => "the task, or the leadership, was gone when it was looked at".into(),
        NoBound::ManyTasks => {
            format!("more than {TASKS_AHEAD_COUNTED_MAX} tasks stand before it that are late already")
        }
        NoBound::ManyKeys => format!("more than {LANE_KEYS_LOOKED_AT_MAX} keys or tenants have tasks"),
    }
}
