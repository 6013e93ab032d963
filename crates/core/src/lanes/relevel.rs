//! Relevel: the tasks of a key that wait get new levels, by the weight that its name has now, some at a time.
//!
//! Of the tasks that stand above the virtual time, number i is to stand at `first + i · stride`; the others are out, or next, or held
//! up by a limit, and stay: if one that is out were moved up, the virtual time would follow it when it is done. They are counted
//! first. Then those that were counted are moved apart, from the last one to the first, and none down; then all together, from the
//! first one to the last, and none up. So a key's tasks are in order all the while, whatever weights they came with. Tasks that are
//! added meanwhile come behind. What has been handed out meanwhile went by the levels of before, so the first one is moved back to
//! where it is next: nobody pays for those.
//!
//! How far it is stands in a row of the key, not with whoever asks: two who ask at once take turns with the steps of one run, and
//! asking twice does nothing twice. With another weight it begins anew.
//!
//! Invariants
//! - A step looks at a bounded number of tasks, and comes on.
//! - A key's tasks go out in the order in which they would have before.
//! - Nothing is moved below the virtual time, and at the end the first task stands at most a stride above it.
//! - A key has a row while it is under way, and no longer.

use super::acks::levels_above;
use super::levels::{Level, QueueName, RankName, Weight, is_tenant};
use super::places::{
    self, PlaceRow, delete_key_level, delete_place, key_of_key_level, put_key_level, put_place,
};
use super::reader::Placed;
use super::records;
use super::state::{LanesState, key_of_row};
use super::tasks::{HandedOut, Payload, Standing, TaskId};
use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::limits::{LANE_KEY_BYTES_MAX, TASKS_COUNTED_PER_COMMAND_MAX, TASKS_RELEVELED_PER_COMMAND_MAX};
use crate::rows;
use crate::tables::{ReadRows, Table, Tables, Walk};
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
    // 3 was where the step before left off, of which its row tells since.
    /// How far the leader had handed out when it took the command.
    #[n(4)]
    pub handed_out: Vec<HandedOut>,
}

/// The row of a key while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct UnderWay {
    /// Where the last step left off.
    #[n(0)]
    pub from: RelevelFrom,
    /// How far apart its tasks are to stand.
    #[n(1)]
    pub stride: u32,
}

/// Where a step left off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct RelevelFrom {
    /// What is being done.
    #[n(0)]
    pub phase: Phase,
    /// The last task that was looked at, by the level that it had.
    #[n(1)]
    pub level: Option<Level>,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// Tasks are counted, upwards.
    #[n(0)]
    Count {
        /// The pass of the first one.
        #[n(0)]
        first: u64,
        /// So many so far.
        #[n(1)]
        tasks: u64,
    },
    /// They are moved apart, downwards.
    #[n(1)]
    Apart {
        /// Where the task above is to stand.
        #[n(0)]
        next: u64,
    },
    /// They are moved together, upwards.
    #[n(2)]
    Together {
        /// Where the task below stands.
        #[n(0)]
        last: Option<u64>,
    },
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

/// The key whose tasks are moved.
struct Key<'a> {
    name: RankName,
    key: &'a str,
    stride: u32,
    /// The virtual time.
    lowest: u64,
    finish: u64,
    /// Nothing is left up to here.
    acked: Option<Level>,
}

/// The runs that are under way, and how far they are.
pub fn under_way<R: ReadRows + ?Sized>(tables: &R) -> Vec<(RankName, String, UnderWay)> {
    let all = tables.rows(Table::Relevels, (Bound::Unbounded, Bound::Unbounded));
    all.map(|(row_key, row)| {
        let (rank, key) = key_of_row(&row_key);
        (rank, key.into(), rows::decode(Table::Relevels, &row_key, &row))
    })
    .collect()
}

/// Applies it.
pub(crate) fn relevel(state: &mut LanesState, tables: &mut dyn Tables, it: &Relevel) -> Applied {
    let Some(lane) = state.by_name(&it.lane) else {
        return Applied::refused(Refusal::LaneUnknown { lane: it.lane.clone() });
    };
    if it.key.len() > LANE_KEY_BYTES_MAX {
        return Applied::refused(Refusal::Malformed {
            problem: format!("a key has at most {LANE_KEY_BYTES_MAX} bytes"),
        });
    }
    let name = RankName { lane: lane.row().number, priority: it.priority };
    let row_key = name.key_of_key(&it.key);
    let under_way = tables.get(Table::Relevels, &row_key);
    let under_way: Option<UnderWay> = under_way.map(|row| rows::decode(Table::Relevels, &row_key, &row));
    let of_name = lane.row().weight_of(&it.key).filter(|_| !is_tenant(&it.key)).map(Weight::stride);
    // One whose weight was taken away comes to its end.
    let Some(stride) = of_name.or(under_way.map(|it| it.stride)) else {
        let problem =
            format!("key `{}` has no weight by its name; set one first, or name another key", it.key);
        return Applied::refused(Refusal::Malformed { problem });
    };
    let waits = state.rank(name).and_then(|rank| rank.key(&it.key)).is_some_and(|row| row.waiting > 0);
    if waits && !lane.row().key_order.is_kept() {
        return Applied::refused(Refusal::KeysUnordered { lane: it.lane.clone() });
    }

    // Nothing below can be refused.
    it.handed_out.iter().for_each(|handed_out| state.advance(name, handed_out));
    let (next, effects) = step(state, tables, (name, &it.key), stride, under_way);
    match next {
        Some(from) => tables.put(Table::Relevels, &row_key, rows::encode(&UnderWay { from, stride })),
        None if under_way.is_some() => tables.delete(Table::Relevels, &row_key),
        None => {}
    }
    Applied { outcome: Outcome::Releveled(Releveled { tasks: effects.len() as u64, next }), effects }
}

/// What a step leaves: where the next one goes on, and what was moved.
type Stepped = (Option<RelevelFrom>, Vec<Effect>);

fn step(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    (name, key): (RankName, &str),
    stride: u32,
    under_way: Option<UnderWay>,
) -> Stepped {
    let Some(rank) = state.rank(name) else { return (None, Vec::new()) };
    let Some(row) = rank.key(key).filter(|row| row.waiting > 0) else { return (None, Vec::new()) };
    let (finish, acked) = (row.finish, rank.acked_around(key).level);
    let lowest = state.charge_nothing(name, key).pass;
    let key = Key { name, key, stride, lowest, finish, acked };
    let from = under_way.filter(|it| it.stride == stride).map_or_else(|| key.begin(), |it| it.from);
    match from.phase {
        Phase::Count { first, tasks } => count(state, tables, &key, from.level, first, tasks),
        Phase::Apart { next } => move_apart(state, tables, &key, from.level, next),
        Phase::Together { last } => move_together(state, tables, &key, from.level, last),
    }
}

fn count(
    state: &mut LanesState,
    tables: &dyn Tables,
    key: &Key<'_>,
    from: Option<Level>,
    first: u64,
    tasks: u64,
) -> Stepped {
    let some = key.tasks_above(tables, from, TASKS_COUNTED_PER_COMMAND_MAX);
    // A retry was charged before, and stands where the virtual time was.
    let mut charged = some.iter().filter(|it| it.stride > 0).peekable();
    let first = if tasks > 0 { first } else { charged.peek().map_or(first, |it| it.level.pass) };
    let tasks = tasks + charged.count() as u64;
    if some.len() == TASKS_COUNTED_PER_COMMAND_MAX {
        let level = some.last().map(|it| it.level);
        return (Some(RelevelFrom { phase: Phase::Count { first, tasks }, level }), Vec::new());
    }
    let next = first.saturating_add(tasks.saturating_mul(key.stride.into()));
    let finish = next.max(key.finish);
    state.set_finish(key.name, key.key, finish, key.stride);
    // What is added from now on stands above, and is not among those that were counted.
    let level = Some(Level { pass: finish, id: TaskId::first() });
    (Some(RelevelFrom { phase: Phase::Apart { next }, level }), Vec::new())
}

fn move_apart(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    key: &Key<'_>,
    from: Option<Level>,
    mut next: u64,
) -> Stepped {
    let some = key.tasks_below(tables, from, TASKS_RELEVELED_PER_COMMAND_MAX);
    let (is_last, level) = (some.len() < TASKS_RELEVELED_PER_COMMAND_MAX, some.last().map(|it| it.level));
    let mut effects = Vec::with_capacity(some.len());
    for it in some.into_iter().filter(|it| it.stride > 0) {
        next = next.saturating_sub(key.stride.into());
        if next > it.level.pass {
            effects.extend(move_task(state, tables, key, &it, next));
        }
    }
    let next = match is_last {
        true => RelevelFrom { phase: Phase::Together { last: None }, level: None },
        false => RelevelFrom { phase: Phase::Apart { next }, level },
    };
    (Some(next), effects)
}

fn move_together(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    key: &Key<'_>,
    from: Option<Level>,
    mut last: Option<u64>,
) -> Stepped {
    // What is done leaves remains, over which a walk would have to step.
    let some = key.tasks_above(tables, from.max(key.acked), TASKS_RELEVELED_PER_COMMAND_MAX);
    let (is_last, level) = (some.len() < TASKS_RELEVELED_PER_COMMAND_MAX, some.last().map(|it| it.level));
    let mut effects = Vec::with_capacity(some.len());
    for it in some.into_iter().filter(|it| it.stride > 0) {
        let before = it.level.pass;
        let behind = last.unwrap_or(key.lowest).saturating_add(key.stride.into()).max(key.lowest);
        let pass = behind.min(before);
        effects.extend(move_task(state, tables, key, &it, pass));
        last = if before > key.lowest { Some(pass) } else { last };
    }
    if !is_last {
        return (Some(RelevelFrom { phase: Phase::Together { last }, level }), effects);
    }
    if let Some(last) = last {
        state.set_finish(key.name, key.key, last.saturating_add(key.stride.into()), key.stride);
    }
    (None, effects)
}

/// Moves a task, unless it stands there already.
fn move_task(
    state: &mut LanesState,
    tables: &mut dyn Tables,
    key: &Key<'_>,
    it: &Placed,
    pass: u64,
) -> Option<Effect> {
    let to = Level { pass, ..it.level };
    if to == it.level && it.stride == key.stride {
        return None;
    }
    let (mut task, position) =
        records::find(tables, to.id).expect("something is said of a task with a level");
    task.standing = Standing::Waiting { pass };
    records::put(tables, to.id, &task);
    if let Some(position) = position {
        state.leave_group(tables, to.id, position);
    }
    let beside = places::beside(tables, key.name, key.key, it.level);
    delete_place(tables, key.name, key.key, it.level);
    delete_key_level(tables, key.name, key.key, it.level);
    let payload = beside.as_ref().map(Payload::as_ref);
    let row = PlaceRow { key: key.key, stride: key.stride, payload, position: None };
    put_place(tables, key.name, to, &row);
    put_key_level(tables, key.name, key.key, to, key.stride);
    state.raise_highest(key.name, key.key, to);
    let stride = key.stride;
    Some(Effect::TaskMoved { rank: key.name, from: it.level, to, key: key.key.into(), stride })
}

impl Key<'_> {
    /// Before the first step.
    fn begin(&self) -> RelevelFrom {
        let phase = Phase::Count { first: self.lowest, tasks: 0 };
        RelevelFrom { phase, level: Some(self.last_next()) }
    }

    /// The last level at the virtual time: what stands up to there is out, or next.
    fn last_next(&self) -> Level {
        Level { pass: self.lowest, id: TaskId::last() }
    }

    /// Its tasks above a level, in order.
    fn tasks_above(&self, tables: &dyn Tables, from: Option<Level>, most: usize) -> Vec<Placed> {
        let queue = QueueName::of(self.name, self.key.into());
        let rows = levels_above(&queue, from, |table, range| tables.scan(table, range, Walk::Up));
        rows.take(most).collect()
    }

    /// Its tasks above the virtual time and below a level, the highest first.
    fn tasks_below(&self, tables: &dyn Tables, from: Option<Level>, most: usize) -> Vec<Placed> {
        let below = from.map(|level| key_of_key_level(self.name, self.key, level));
        if from.is_some_and(|from| from <= self.last_next()) {
            return Vec::new();
        }
        let queue = QueueName::of(self.name, self.key.into());
        let rows = levels_above(&queue, Some(self.last_next()), |table, (start, end)| {
            tables.scan(table, (start, below.as_deref().map_or(end, Bound::Excluded)), Walk::Down)
        });
        rows.take(most).collect()
    }
}
