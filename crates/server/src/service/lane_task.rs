//! Where a task of a lane stands, what is ahead of it, and what is in its way.

use super::Service;
use super::lane_look::blocks_of;
use super::lanes::unknown_lane;
use crate::limits::{LANE_KEYS_LOOKED_AT_MAX, LANE_KEYS_SHOWN, TASKS_AHEAD_COUNTED_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_api::json::time_text;
use windlass_api::lanes::{LaneKeyInfo, TaskExplained, TaskStanding};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::lanes::acks::{Acked, levels_undone};
use windlass_core::lanes::levels::{Level, QueueName, RankName, tenant_of};
use windlass_core::lanes::listing;
use windlass_core::lanes::tasks::{Standing, Task, TaskId};
use windlass_core::lanes::waits::Waits;

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
    turn: Option<u64>,
}

/// Tasks by key or tenant.
type ByKey = BTreeMap<Arc<str>, u64>;

/// Tasks ahead of one.
struct Ahead {
    all: u64,
    has_more: bool,
    by_key: Vec<LaneKeyInfo>,
}

impl Service {
    /// Explains a task that is not done.
    pub fn explain_task(&self, lane: &str, id: TaskId) -> Result<TaskExplained, Problem> {
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
        explained.ahead_by_key = ahead.by_key;
        let held_until = self.dispatcher().held_until();
        let blocked = |desk: &_, now| blocks_of(desk, rank.lane, &known.task.key, now, held_until);
        explained.blocked_by = self.dispatcher().look_at_lanes(blocked).unwrap_or_default();
        if explained.blocked_by.is_empty() {
            explained.wait_bound = self.bound(rank, &known.task.key, level);
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
            (desk.is_out(id), virtual_time, turn.map(|level| level.pass))
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
        let Some(turn) = seen.turn else {
            let (mut by_key, has_more) = self.tasks_below(&QueueName::of_rank(rank), known.acked, level);
            self.add_tenants(&mut by_key, rank, level, None);
            return self.ahead_of(rank, key, by_key, has_more);
        };
        let tenant = tenant_of(key).unwrap_or(key);
        let (of_tenant, has_more_own) = self.tasks_below(&QueueName::around(rank, key), known.acked, level);
        let own = of_tenant.values().sum();
        let pass = turn.saturating_add(u64::saturating_mul(own, known.tenant_stride));
        let level = Level { pass, ..level };
        let (mut by_key, has_more) = self.tasks_below(&QueueName::of_rank(rank), known.rank_acked, level);
        self.add_tenants(&mut by_key, rank, level, Some(tenant));
        by_key.insert(tenant.into(), own);
        self.ahead_of(rank, tenant, by_key, has_more || has_more_own)
    }

    /// The tasks of a queue below a level, by key, and whether there are more than are counted.
    fn tasks_below(&self, queue: &QueueName, acked: Acked, level: Level) -> (ByKey, bool) {
        let mut by_key = ByKey::new();
        let rows = levels_undone(queue, acked, |table, range| self.order().committed().scan(table, range));
        let out = self.dispatcher().look_at_lanes(|desk, _| desk.out_of(queue.rank)).unwrap_or_default();
        let rows = rows.take_while(|placed| placed.level < level).filter(|it| !out.contains(&it.level.id));
        for (counted, placed) in rows.enumerate() {
            if counted == TASKS_AHEAD_COUNTED_MAX {
                return (by_key, true);
            }
            *by_key.entry(placed.key).or_default() += 1;
        }
        (by_key, false)
    }

    /// Adds the turns that tenants have before a level.
    fn add_tenants(&self, by_key: &mut ByKey, name: RankName, level: Level, but: Option<&str>) {
        let tenants: Vec<(Arc<str>, u32, u32)> = self.order().read(|machine| {
            let lanes = machine.lanes();
            let (Some(lane), Some(rank)) = (lanes.by_number(name.lane), lanes.rank(name)) else {
                return Vec::new();
            };
            let tenants = rank.tenants().filter(|(tenant, _)| Some(*tenant) != but);
            let waiting = tenants.filter_map(|(tenant, _)| {
                let waiting =
                    rank.shares().get(tenant).map(|row| row.waiting).filter(|waiting| *waiting > 0)?;
                Some((tenant.into(), waiting, lane.row().tenant_stride(tenant)))
            });
            waiting.take(LANE_KEYS_LOOKED_AT_MAX).collect()
        });
        self.dispatcher().look_at_lanes(|desk, _| {
            for (tenant, waiting, stride) in tenants {
                let turn = desk.turn_of(name, &tenant).filter(|turn| *turn < level);
                let Some(turn) = turn else { continue };
                let turns = (level.pass - turn.pass) / u64::from(stride) + 1;
                by_key.insert(tenant, turns.min(waiting.into()));
            }
        });
    }

    /// `own` is the name of the task's key or tenant.
    fn ahead_of(&self, rank: RankName, own_name: &str, mut by_key: ByKey, has_more: bool) -> Ahead {
        self.dispatcher().look_at_lanes(|desk, now| {
            by_key.retain(|key, _| **key == *own_name || !desk.is_blocked(rank.lane, key, now));
        });
        by_key.retain(|_, tasks| *tasks > 0);
        let all = by_key.values().sum();
        let mut by_key: Vec<LaneKeyInfo> = by_key
            .into_iter()
            .map(|(key, waiting)| LaneKeyInfo { key: (*key).into(), priority: rank.priority, waiting })
            .collect();
        by_key.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.key.cmp(&b.key)));
        by_key.truncate(LANE_KEYS_SHOWN);
        Ahead { all, has_more, by_key }
    }

    /// How many tasks of its priority go first at most.
    fn bound(&self, name: RankName, key: &str, level: Level) -> Option<u64> {
        let turns = self.dispatcher().look_at_lanes(|desk, _| desk.turns(name, key)).flatten()?;
        let waits = Waits {
            rows: self.order().committed(),
            turns: &turns,
            rank: name,
            key,
            level,
            counted_max: TASKS_AHEAD_COUNTED_MAX,
            keys_max: LANE_KEYS_LOOKED_AT_MAX,
        };
        waits.bound(&|look| {
            self.order().read(|machine| {
                let lanes = machine.lanes();
                if let (Some(lane), Some(rank)) = (lanes.by_number(name.lane), lanes.rank(name)) {
                    look(lane.row(), rank);
                }
            });
        })
    }
}
