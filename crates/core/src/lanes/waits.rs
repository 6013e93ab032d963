//! Waits: how many tasks of its priority go before one at most, as things are.
//!
//! What stands before it now is counted. What may still come before it follows from the finish tags: a key gets its tasks one stride
//! after the other, so it places no more of them below a pass than there are strides up to there; and a tenant has no more turns than
//! that. The users of a tenant are looked at in this way among themselves, and then the turns that the tenant needs until then.
//!
//! It holds for the keys that have tasks now, by the weights that they have now, for tasks that are handed out the first time, and as
//! long as no limit is in the way of the task.

use super::acks::{Acked, levels_undone};
use super::desk::Desk;
use super::levels::{Level, QueueName, RankName, is_tenant, tenant_of};
use super::queue::Queue;
use super::ranks::Rank;
use super::shares::{KeyRow, Shares};
use super::state::LaneRow;
use super::tasks::TaskId;
use crate::tables::ReadRows;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Shows the task's rank as the machine knows it; nothing if that is gone.
pub type Look<'l> = &'l dyn Fn(&mut dyn FnMut(&LaneRow, &Rank));

/// What the leader knows of those who go before a task.
#[derive(Debug)]
pub struct Turns {
    /// The virtual time of the queue that the task stands in, and that of its rank.
    around: u64,
    rank: u64,
    /// Where its key goes on in that queue, if it goes by turns.
    own: Option<u64>,
    /// Where each tenant of its rank goes on.
    tenants: BTreeMap<Arc<str>, u64>,
    out: BTreeSet<TaskId>,
}

/// A task, and what is looked at to say how long it waits at most.
#[derive(Debug)]
pub struct Waits<'a, R: ?Sized> {
    /// The rows of the machine.
    pub rows: &'a R,
    /// What the leader knows.
    pub turns: &'a Turns,
    /// The task's rank.
    pub rank: RankName,
    /// Its key.
    pub key: &'a str,
    /// Where it stands.
    pub level: Level,
    /// So many tasks of a queue are counted at most.
    pub counted_max: usize,
    /// So many keys and tenants are looked at at most.
    pub keys_max: usize,
}

/// The queue that a task stands in, or the rank in which its tenant has turns.
struct Around {
    name: QueueName,
    acked: Acked,
    virtual_time: u64,
    /// No task gets a pass below this one: what the log knows of the virtual time.
    known_time: u64,
    own: KeyRow,
    own_stride: u64,
    tenant_stride: u64,
}

/// Tasks of a queue that stand below a level and are not out.
#[derive(Debug, Default)]
struct Counted {
    own: Tally,
    others: Tally,
    /// There are more than were counted, all of them behind the virtual time.
    is_cut_off: bool,
}

#[derive(Debug, Default)]
struct Tally {
    tasks: u64,
    /// Of these, those below the virtual time.
    late: u64,
    strides: u64,
}

impl Desk {
    /// What there is to know of those who go before a task of this key.
    pub fn turns(&self, name: RankName, key: &str) -> Option<Turns> {
        let rank = self.queue_of(name)?;
        let tenants = rank.flows().filter(|(name, _)| is_tenant(name));
        let tenants = tenants.map(|(name, flow)| (name.clone(), flow.goes_on_at(rank.virtual_time())));
        let around = match tenant_of(key) {
            Some(tenant) => rank.flow(tenant).map(|flow| &*flow.queue),
            None => Some(rank),
        };
        Some(Turns {
            around: around.map_or(0, Queue::virtual_time),
            rank: rank.virtual_time(),
            own: around.and_then(|queue| Some(queue.flow(key)?.goes_on_at(queue.virtual_time()))),
            tenants: tenants.collect(),
            out: self.out_of(name),
        })
    }
}

impl<R: ReadRows + ?Sized> Waits<'_, R> {
    /// How many go first at most; none if too many would have to be counted.
    pub fn bound(&self, look: Look<'_>) -> Option<u64> {
        let queue = self.around(tenant_of(self.key), look)?;
        let counted = self.count(&queue, self.level)?;
        let own = queue.own_before(&counted, self.level);
        let pass = self.served_at(&queue, &counted, own);
        // A key that goes by turns may be served later than its task stands.
        let counted = if self.turns.own.is_none() { counted } else { self.count(&queue, behind(pass))? };
        let first = own.saturating_add(self.others(&queue, &counted, pass, look)?);
        let Some(tenant) = tenant_of(self.key) else {
            return Some(first.saturating_add(self.turns_before(None, pass, look)));
        };
        let turn = self.turns.tenants.get(tenant).map_or(self.turns.rank, |turn| *turn);
        let pass = turn.saturating_add(first.saturating_mul(queue.tenant_stride));
        let rank = self.around(None, look)?;
        let counted = self.count(&rank, behind(pass))?;
        let others = self.others(&rank, &counted, pass, look)?;
        let turns = self.turns_before(Some(tenant), pass, look);
        Some(first.saturating_add(others).saturating_add(turns))
    }

    /// The queue of a tenant, or of those of the rank who have none.
    fn around(&self, tenant: Option<&str>, look: Look<'_>) -> Option<Around> {
        let mut around = None;
        look(&mut |lane, rank| {
            let Some((shares, known_time)) = shared(rank, tenant) else { return };
            if shares.waiting_len() > self.keys_max {
                return;
            }
            let own = shares.get(self.key).copied().unwrap_or_default();
            around = Some(Around {
                name: QueueName { rank: self.rank, of: tenant.map(Into::into) },
                acked: rank.acked_of(tenant),
                virtual_time: if tenant.is_some() { self.turns.around } else { self.turns.rank },
                known_time,
                own,
                own_stride: least_stride(lane, self.key, &own),
                tenant_stride: tenant.map_or(0, |tenant| lane.tenant_stride(tenant).into()),
            });
        });
        around
    }

    /// None if what is below the virtual time is too much already.
    fn count(&self, queue: &Around, below: Level) -> Option<Counted> {
        let rows = levels_undone(&queue.name, queue.acked, |table, range| self.rows.rows(table, range));
        let rows = rows.take_while(|placed| placed.level < below);
        let mut counted = Counted::default();
        for (nth, placed) in rows.filter(|placed| !self.turns.out.contains(&placed.level.id)).enumerate() {
            let is_late = placed.level.pass < queue.virtual_time;
            if nth >= self.counted_max {
                counted.is_cut_off = true;
                return (!is_late).then_some(counted);
            }
            let tally = if *placed.key == *self.key { &mut counted.own } else { &mut counted.others };
            tally.tasks += 1;
            tally.late += u64::from(is_late);
            tally.strides = tally.strides.saturating_add(placed.stride.into());
        }
        Some(counted)
    }

    /// The pass at which the task is served.
    fn served_at(&self, queue: &Around, counted: &Counted, own: u64) -> u64 {
        let Some(turn) = self.turns.own else { return self.level.pass };
        let strides = match counted.is_cut_off {
            true => own.saturating_mul(queue.own_stride),
            false => counted.own.strides,
        };
        turn.saturating_add(strides).max(self.level.pass)
    }

    /// What other keys have up to a pass, and what they may still get there: a task that was added before but is due only then goes first
    /// at the same pass.
    fn others(&self, queue: &Around, counted: &Counted, pass: u64, look: Look<'_>) -> Option<u64> {
        let mut sum = None;
        look(&mut |lane, rank| {
            let Some((shares, _)) = shared(rank, queue.name.of.as_deref()) else { return };
            let others = shares.iter().filter(|(key, row)| row.waiting > 0 && *key != self.key);
            let keys = others.filter(|(key, _)| !is_tenant(key));
            let to_come = keys.map(|(key, row)| {
                let (stride, from) = (least_stride(lane, key, row), row.finish.max(queue.known_time));
                let time = queue.virtual_time;
                if counted.is_cut_off && from < time {
                    steps(from, stride, time).saturating_add(steps(time, stride, behind(pass).pass))
                } else {
                    steps(if counted.is_cut_off { time } else { from }, stride, behind(pass).pass)
                }
            });
            let there = if counted.is_cut_off { counted.others.late } else { counted.others.tasks };
            sum = Some(to_come.fold(there, u64::saturating_add));
        });
        sum
    }

    /// The turns that tenants have up to a pass.
    fn turns_before(&self, but: Option<&str>, pass: u64, look: Look<'_>) -> u64 {
        let mut turns = 0_u64;
        look(&mut |lane, rank| {
            let waiting = rank.shares().iter().filter(|(name, row)| is_tenant(name) && row.waiting > 0);
            for (tenant, _) in waiting.filter(|(name, _)| Some(*name) != but) {
                let from = self.turns.tenants.get(tenant).map_or(self.turns.rank, |turn| *turn);
                let of_tenant = steps(from, lane.tenant_stride(tenant).into(), behind(pass).pass);
                turns = turns.saturating_add(of_tenant);
            }
        });
        turns
    }
}

impl Around {
    /// What its own key has before a level; what the key gets later comes after it.
    fn own_before(&self, counted: &Counted, level: Level) -> u64 {
        if !counted.is_cut_off {
            return counted.own.tasks;
        }
        let behind_time = steps(self.virtual_time, self.own_stride, level.pass);
        counted.own.late.saturating_add(behind_time).min(self.own.waiting.into())
    }
}

/// Who shares a queue, and what the log knows of its virtual time.
fn shared<'r>(rank: &'r Rank, tenant: Option<&str>) -> Option<(&'r Shares, u64)> {
    Some(match tenant {
        Some(tenant) => {
            let tenant = rank.tenant(tenant)?;
            (tenant.users(), tenant.row().virtual_time)
        }
        None => (rank.shares(), rank.row().virtual_time),
    })
}

/// How far apart the tasks of a key stand, by the heavier one of the weight of its last task and that of its name.
fn least_stride(lane: &LaneRow, key: &str, row: &KeyRow) -> u64 {
    let of_name = lane.weight_of(key).map(super::levels::Weight::stride);
    let of_last = Some(row.stride).filter(|stride| *stride > 0);
    of_name.into_iter().chain(of_last).min().unwrap_or(1).into()
}

/// How many steps of this size, the first of them at `from`, lie below a pass.
const fn steps(from: u64, size: u64, below: u64) -> u64 {
    below.saturating_sub(from).div_ceil(size)
}

/// The first level behind a pass.
fn behind(pass: u64) -> Level {
    Level { pass: pass.saturating_add(1), id: TaskId::first() }
}
