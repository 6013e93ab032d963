//! Where a task of a lane stands, and what is ahead of it.

use super::Service;
use super::lanes::unknown_lane;
use crate::limits::{LANE_KEYS_SHOWN, TASKS_AHEAD_COUNTED_MAX};
use std::collections::BTreeMap;
use windlass_api::json::time_text;
use windlass_api::lanes::{LaneKeyInfo, TaskExplained, TaskStanding};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::lanes::acks::levels_above;
use windlass_core::lanes::levels::{Level, QueueName, RankName};
use windlass_core::lanes::listing;
use windlass_core::lanes::tasks::{Standing, Task, TaskId};

/// What the machine knows of a task and of its lane.
struct Known {
    task: Task,
    is_paused: bool,
    /// Higher priorities, and their tasks that wait or are with consumers.
    higher: Vec<(u8, u64)>,
    acked: Option<Level>,
    virtual_time: u64,
}

impl Service {
    /// Explains a task that is not done.
    pub fn explain_task(&self, lane: &str, id: TaskId) -> Result<TaskExplained, Problem> {
        let Known { task, is_paused, higher, acked, virtual_time } = self.known_of_task(lane, id)?;
        let rank = RankName { lane: task.lane, priority: task.priority };
        let look = |rank| self.dispatcher().look_at_lanes(|desk, _| desk.look(rank)).flatten();
        let seen = look(rank);
        let is_out = self.dispatcher().look_at_lanes(|desk, _| desk.is_out(id)).unwrap_or(false);
        let mut explained = TaskExplained {
            task: id,
            key: task.key,
            priority: task.priority,
            standing: TaskStanding::Waiting,
            why: String::new(),
            level: None,
            virtual_time: seen.map_or(virtual_time, |seen| seen.virtual_time.max(virtual_time)),
            due_at: None,
            added_at: time_text(task.added_at),
            failures: task.failures,
            attempts_max: task.attempts_max,
            ahead: 0,
            has_more_ahead: false,
            ahead_by_key: Vec::new(),
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
            Standing::Waiting { pass } if is_out => {
                explained.standing = TaskStanding::Reserved;
                explained.level = Some(Level { pass, id }.to_string());
                explained.why = "a consumer works on it".into();
            }
            Standing::Waiting { pass } => {
                let level = Level { pass, id };
                explained.level = Some(level.to_string());
                self.count_ahead(&mut explained, rank, acked, level);
                explained.ahead += higher
                    .into_iter()
                    .map(|(priority, waiting)| {
                        let seen = look(RankName { priority, ..rank });
                        waiting.saturating_sub(seen.map_or(0, |seen| seen.out as u64))
                    })
                    .sum::<u64>();
                explained.why = match (is_paused, explained.ahead) {
                    (true, _) => "the lane is paused; resume it".into(),
                    (false, 0) => "it goes to the next consumer that asks".into(),
                    (false, _) => "others go first".into(),
                };
            }
        }
        Ok(explained)
    }

    fn known_of_task(&self, lane: &str, id: TaskId) -> Result<Known, Problem> {
        let known = self.order().read(|machine| {
            let lane = machine.lanes().by_name(lane)?;
            let task = listing::task(machine.tables(), id).filter(|task| task.lane == lane.row().number);
            Some(task.map(|task| {
                let higher = lane.ranks().filter(|(priority, _)| *priority > task.priority);
                let higher = higher.map(|(priority, rank)| (priority, rank.row().waiting)).collect();
                let own = lane.ranks().find(|(priority, _)| *priority == task.priority);
                let row = own.map(|(_, rank)| *rank.row()).unwrap_or_default();
                let is_paused = lane.row().is_paused;
                Known { task, is_paused, higher, acked: row.acked, virtual_time: row.virtual_time }
            }))
        });
        known.ok_or_else(|| unknown_lane(lane))?.ok_or_else(|| {
            let detail = format!("lane `{lane}` has no task {id}: it is done, or was never there");
            Problem::new(ProblemCode::TaskUnknown, detail)
        })
    }

    /// Counts the tasks of a rank below a level, but for those that are with consumers.
    fn count_ahead(&self, explained: &mut TaskExplained, rank: RankName, acked: Option<Level>, level: Level) {
        let mut by_key: BTreeMap<std::sync::Arc<str>, u64> = BTreeMap::new();
        let rows = levels_above(&QueueName::of_rank(rank), acked, |table, range| {
            self.order().committed().scan(table, range)
        });
        let out = self.dispatcher().look_at_lanes(|desk, _| desk.out_of(rank)).unwrap_or_default();
        for placed in rows.take_while(|placed| placed.level < level).filter(|it| !out.contains(&it.level.id))
        {
            if explained.ahead == TASKS_AHEAD_COUNTED_MAX {
                explained.has_more_ahead = true;
                break;
            }
            explained.ahead += 1;
            *by_key.entry(placed.key).or_default() += 1;
        }
        let mut by_key: Vec<LaneKeyInfo> = by_key
            .into_iter()
            .map(|(key, waiting)| LaneKeyInfo { key: (*key).into(), priority: rank.priority, waiting })
            .collect();
        by_key.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.key.cmp(&b.key)));
        by_key.truncate(LANE_KEYS_SHOWN);
        explained.ahead_by_key = by_key;
    }
}
