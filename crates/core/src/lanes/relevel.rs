//! Relevel: the tasks of a key that wait get new levels, by the weight that its name has now, some at a time.
//!
//! Task number i of a key is to stand at `first + i · stride`. First the tasks are moved apart, from the last one to the first,
//! and none down; then they are moved together, from the first one to the last, and none up. So a key's tasks are in order
//! all the while, whatever weights they came with. Tasks that are added meanwhile come behind. What stands at or below the
//! virtual time may be out, and stays there: if it were moved up, the virtual time would follow it when it is done.
//!
//! Invariants
//! - A step looks at a bounded number of tasks, and says where the next one goes on.
//! - A key's tasks go out in the order in which they would have before.
//! - Nothing is moved below the virtual time.

use super::acks::levels_above;
use super::levels::{Level, QueueName, RankName, is_tenant};
use super::reader::Placed;
use super::state::{self, LanesState, delete_level, key_of_key_level, put_level, put_task};
use super::tasks::{HandedOut, Standing};
use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::limits::TASKS_RELEVELED_PER_COMMAND_MAX;
use crate::tables::{Tables, Walk};
use minicbor::{Decode, Encode};
use std::ops::Bound;

/// See [`Command::Relevel`](crate::entry::Command::Relevel).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Relevel {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// The priority.
    #[n(1)]
    pub priority: u8,
    /// The key, which has a weight by its name.
    #[n(2)]
    pub key: String,
    /// Where an earlier step left off; none for the first one.
    #[n(3)]
    pub from: Option<RelevelFrom>,
    /// How far the leader had handed out when it took the command.
    #[n(4)]
    pub handed_out: Vec<HandedOut>,
}

/// Where a step left off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct RelevelFrom {
    /// Whether tasks are moved together by now.
    #[n(0)]
    pub is_together: bool,
    /// The last task that was looked at, by the level that it had.
    #[n(1)]
    pub level: Option<Level>,
    /// The pass that it was to have, or has got once tasks are moved together.
    #[n(2)]
    pub pass: Option<u64>,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Releveled {
    /// How many tasks were moved.
    #[n(0)]
    pub tasks: u64,
    /// Where the next step goes on; none if all is done.
    #[n(1)]
    pub next: Option<RelevelFrom>,
}

/// Applies it.
pub(crate) fn relevel(state: &mut LanesState, tables: &mut dyn Tables, it: &Relevel) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
    };
    let weight = lane.row().weight_of(&it.key).filter(|_| !is_tenant(&it.key));
    let Some(weight) = weight else {
        let problem =
            format!("key `{}` has no weight by its name; set one first, or name another key", it.key);
        return Applied::refused(Refusal::Malformed { problem });
    };

    // Nothing below can be refused.
    let (name, stride) = (RankName { lane: lane.row().number, priority: it.priority }, weight.stride());
    it.handed_out.iter().for_each(|handed_out| state.advance(name, handed_out));
    let Some(row) =
        state.rank(name).and_then(|rank| rank.key(&it.key)).copied().filter(|row| row.waiting > 0)
    else {
        return releveled(0, None, Vec::new());
    };
    let from = it.from.unwrap_or_else(|| {
        let first = levels_above(&QueueName::of(name, it.key.as_str().into()), None, |table, range| {
            tables.scan(table, range, Walk::Up)
        });
        let lowest = state.charge_nothing(name, &it.key).pass;
        let first = first.map(|it| it.level.pass).next().unwrap_or(lowest).max(lowest);
        let finish = first.saturating_add(u64::from(row.waiting) * u64::from(stride));
        state.set_finish(name, &it.key, finish.max(row.finish), stride);
        RelevelFrom { is_together: false, level: None, pass: Some(finish) }
    });
    step(state, tables, name, &it.key, stride, from)
}

fn releveled(tasks: u64, next: Option<RelevelFrom>, effects: Vec<Effect>) -> Applied {
    Applied { outcome: Outcome::Releveled(Releveled { tasks, next }), effects }
}

fn step(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    name: RankName,
    key: &str,
    stride: u32,
    mut from: RelevelFrom,
) -> Applied {
    let some = tasks_of(tables, name, key, from);
    let is_last = some.len() < TASKS_RELEVELED_PER_COMMAND_MAX;
    let (lowest, stride_wide) = (state.charge_nothing(name, key).pass, u64::from(stride));
    let mut effects = Vec::new();
    for it in some {
        from.level = Some(it.level);
        // A retry was charged before, and stands where the virtual time was; but it was counted.
        if it.stride == 0 {
            if !from.is_together {
                from.pass = from.pass.map(|next| next.saturating_sub(stride_wide));
            }
            continue;
        }
        let before = it.level.pass;
        let place = match from.is_together {
            false => from.pass.unwrap_or(before).saturating_sub(stride_wide),
            true => from.pass.map_or(before, |last| last.saturating_add(stride_wide).max(lowest)),
        };
        let pass = match from.is_together {
            _ if before <= lowest => before,
            false => place.max(before),
            true => place.min(before),
        };
        from.pass = Some(if from.is_together { pass } else { place });
        if pass != before || stride != it.stride {
            let to = Level { pass, ..it.level };
            move_task(state, tables, name, key, it.level, to, stride);
            effects.push(Effect::TaskMoved { rank: name, from: it.level, to, key: key.into(), stride });
        }
    }
    let next = match (is_last, from.is_together) {
        (false, _) => Some(from),
        (true, false) => {
            // The place before the first one.
            let pass = from.pass.map(|first| first.saturating_sub(stride_wide));
            Some(RelevelFrom { is_together: true, level: None, pass })
        }
        (true, true) => {
            if let Some(last) = from.pass {
                state.set_finish(name, key, last.saturating_add(stride_wide), stride);
            }
            None
        }
    };
    releveled(effects.len() as u64, next, effects)
}

fn move_task(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    name: RankName,
    key: &str,
    from: Level,
    to: Level,
    stride: u32,
) {
    let mut task = state::task(tables, to.id).expect("a task with a level has its row");
    task.standing = Standing::Waiting { pass: to.pass };
    put_task(tables, to.id, task);
    delete_level(tables, name, key, from);
    put_level(tables, name, key, to, stride);
    state.raise_highest(name, key, to);
}

/// The next tasks of a key that are looked at: upwards while they are moved together, downwards before.
fn tasks_of(tables: &dyn Tables, name: RankName, key: &str, from: RelevelFrom) -> Vec<Placed> {
    let queue = QueueName::of(name, key.into());
    if from.is_together {
        let rows = levels_above(&queue, from.level, |table, range| tables.scan(table, range, Walk::Up));
        return rows.take(TASKS_RELEVELED_PER_COMMAND_MAX).collect();
    }
    let below = from.level.map(|level| key_of_key_level(name, key, level));
    let rows = levels_above(&queue, None, |table, (start, end)| {
        let end = below.as_deref().map_or(end, Bound::Excluded);
        tables.scan(table, (start, end), Walk::Down)
    });
    rows.take(TASKS_RELEVELED_PER_COMMAND_MAX).collect()
}
