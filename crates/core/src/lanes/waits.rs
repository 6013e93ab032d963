//! Waits: how many tasks of its priority go before one at most, as things are.
//!
//! What stands before it now is counted. What may still come before it follows from the finish tags: a key gets its tasks one stride
//! after the other, so it places no more of them below a pass than there are strides up to there; and a tenant has no more turns than
//! that. The users of a tenant are looked at in this way among themselves, and then the turns that the tenant needs until then.
//!
//! It holds for the keys that have tasks now, by the weights that they have now, for tasks that are handed out the first time, and as
//! long as no limit is in the way of the task.
//!
//! However many keys there are, nobody waits for all of them: they are looked at some at a time, and so is what is out. What is said is
//! of several moments then, and holds from the last of them on: what one key may still place before a pass only becomes less, by what
//! goes before the task anyhow.

use super::acks::{Acked, levels_undone};
use super::desk::Desk;
use super::levels::{Level, QueueName, RankName, is_tenant, tenant_of};
use super::queue::Queue;
use super::ranks::Rank;
use super::reader::Placed;
use super::shares::{KeyRow, Shares};
use super::state::LaneRow;
use super::tasks::TaskId;
use crate::limits::LANE_IDLE_KEYS_MAX;
use crate::tables::ReadRows;
use std::cell::RefCell;

/// Shows the task's rank as the machine knows it; nothing if that is gone.
pub type LookAtRank<'l> = &'l dyn Fn(&mut dyn FnMut(&LaneRow, &Rank));

/// Shows the leader's desk; nothing if this node does not lead any more.
pub type LookAtDesk<'l> = &'l dyn Fn(&mut dyn FnMut(&Desk));

/// Why nothing can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBound {
    /// What was looked at is gone meanwhile, or this node does not lead.
    Gone,
    /// More tasks are behind the virtual time than are counted.
    ManyTasks,
    /// More keys have tasks than are looked at.
    ManyKeys,
}

/// What the leader knows of those who go before a task.
#[derive(Debug, Clone, Copy)]
struct Turns {
    /// The virtual time of the queue that the task stands in, and that of its rank.
    around: u64,
    rank: u64,
    /// Where its key goes on in that queue, if it goes by turns.
    own: Option<u64>,
    /// Where its tenant goes on.
    tenant: u64,
}

/// A task, and what is looked at to say how long it waits at most.
#[expect(missing_debug_implementations, reason = "looks are functions")]
pub struct Waits<'a, R: ?Sized> {
    /// The rows of the machine.
    pub rows: &'a R,
    /// The rank, as the machine knows it.
    pub look_at_rank: LookAtRank<'a>,
    /// The desk.
    pub look_at_desk: LookAtDesk<'a>,
    /// The task's rank.
    pub rank: RankName,
    /// Its key.
    pub key: &'a str,
    /// Where it stands.
    pub level: Level,
    /// So many tasks of a queue are counted at most.
    pub counted_max: usize,
    /// So many keys, users of its tenant, or tenants are looked at at most,
    pub keys_max: usize,
    /// so many of them with one look.
    pub at_once: usize,
}

/// The queue that a task stands in, or the rank in which its tenant has turns.
struct Around {
    name: QueueName,
    acked: Acked,
    virtual_time: u64,
    /// No task gets a pass below this one: what the log knows of the virtual time.
    known_time: u64,
    own: KeyRow,
    /// Where its own key goes on, if that goes by turns.
    own_turn: Option<u64>,
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
    fn turns(&self, name: RankName, key: &str) -> Option<Turns> {
        let rank = self.queue_of(name)?;
        let tenant = tenant_of(key);
        let around = match tenant {
            Some(tenant) => rank.flow(tenant).map(|flow| &*flow.queue),
            None => Some(rank),
        };
        Some(Turns {
            around: around.map_or(0, Queue::virtual_time),
            rank: rank.virtual_time(),
            own: self.turn_of_key(name, key).map(|turn| turn.pass),
            tenant: tenant.map_or(0, |tenant| goes_on_at(rank, tenant)),
        })
    }
}

/// Where a tenant goes on.
fn goes_on_at(rank: &Queue, tenant: &str) -> u64 {
    rank.flow(tenant).map_or(rank.virtual_time(), |flow| flow.next_turn(rank.virtual_time()).pass)
}

impl<R: ReadRows + ?Sized> Waits<'_, R> {
    /// How many go first at most.
    pub fn bound(&self) -> Result<u64, NoBound> {
        let mut turns = None;
        (self.look_at_desk)(&mut |desk| turns = desk.turns(self.rank, self.key));
        let turns = turns.ok_or(NoBound::Gone)?;
        let queue = self.around(tenant_of(self.key), turns)?;
        let counted = self.count(&queue, self.level)?;
        let own = queue.own_before(&counted, self.level);
        let pass = self.served_at(&queue, &counted, own);
        // A key that goes by turns may be served later than its task stands.
        let counted = if queue.own_turn.is_none() { counted } else { self.count(&queue, behind(pass))? };
        let first = own.saturating_add(self.others(&queue, &counted, pass)?);
        let Some(tenant) = tenant_of(self.key) else {
            return Ok(first.saturating_add(self.turns_before(None, pass)?));
        };
        let pass = turns.tenant.saturating_add(first.saturating_mul(queue.tenant_stride));
        let rank = self.around(None, turns)?;
        let counted = self.count(&rank, behind(pass))?;
        let others = self.others(&rank, &counted, pass)?;
        let turns = self.turns_before(Some(tenant), pass)?;
        Ok(first.saturating_add(others).saturating_add(turns))
    }

    /// The queue of a tenant, or of those of the rank who have none.
    fn around(&self, tenant: Option<&str>, turns: Turns) -> Result<Around, NoBound> {
        let mut around = Err(NoBound::Gone);
        (self.look_at_rank)(&mut |lane, rank| {
            let Some((shares, known_time)) = shared(rank, tenant) else { return };
            if shares.waiting_len() > self.keys_max {
                around = Err(NoBound::ManyKeys);
                return;
            }
            let own = shares.get(self.key).copied().unwrap_or_default();
            around = Ok(Around {
                name: QueueName { rank: self.rank, of: tenant.map(Into::into) },
                acked: rank.acked_of(tenant),
                virtual_time: if tenant.is_some() { turns.around } else { turns.rank },
                known_time,
                own,
                own_turn: turns.own,
                own_stride: least_stride(lane, self.key, &own),
                tenant_stride: tenant.map_or(0, |tenant| lane.tenant_stride(tenant).into()),
            });
        });
        around
    }

    /// Looks at all that share a queue, some at a time.
    fn look_at_each(
        &self,
        tenant: Option<&str>,
        look: &mut dyn FnMut(&LaneRow, &str, &KeyRow),
        after_each_look: &mut dyn FnMut(),
    ) -> Result<(), NoBound> {
        let (mut after, mut looked_at): (Option<Box<str>>, _) = (None, 0);
        loop {
            let mut some = 0;
            (self.look_at_rank)(&mut |lane, rank| {
                let Some((shares, _)) = shared(rank, tenant) else { return };
                let mut last = None;
                for (key, row) in shares.iter_after(after.as_deref()).take(self.at_once) {
                    look(lane, key, row);
                    (some, last) = (some + 1, Some(key));
                }
                after = last.map(Into::into);
            });
            after_each_look();
            looked_at += some;
            if some < self.at_once {
                return Ok(());
            }
            // More may come about all the while.
            if looked_at > self.keys_max.saturating_add(LANE_IDLE_KEYS_MAX) {
                return Err(NoBound::ManyKeys);
            }
        }
    }

    /// Nothing is said if what is below the virtual time is too much already.
    fn count(&self, queue: &Around, below: Level) -> Result<Counted, NoBound> {
        let rows = levels_undone(&queue.name, queue.acked, |table, range| self.rows.rows(table, range));
        let mut rows = rows.take_while(|placed| placed.level < below);
        let mut counted = Counted::default();
        let mut nth = 0;
        loop {
            let mut some: Vec<Placed> = rows.by_ref().take(self.at_once).collect();
            let is_end = some.len() < self.at_once;
            (self.look_at_desk)(&mut |desk| some.retain(|placed| !desk.is_out(placed.level.id)));
            for placed in some {
                let is_late = placed.level.pass < queue.virtual_time;
                if nth >= self.counted_max {
                    counted.is_cut_off = true;
                    return if is_late { Err(NoBound::ManyTasks) } else { Ok(counted) };
                }
                nth += 1;
                let tally = if *placed.key == *self.key { &mut counted.own } else { &mut counted.others };
                tally.tasks += 1;
                tally.late += u64::from(is_late);
                tally.strides = tally.strides.saturating_add(placed.stride.into());
            }
            if is_end {
                return Ok(counted);
            }
        }
    }

    /// The pass at which the task is served.
    fn served_at(&self, queue: &Around, counted: &Counted, own: u64) -> u64 {
        let Some(turn) = queue.own_turn else { return self.level.pass };
        let strides = match counted.is_cut_off {
            true => own.saturating_mul(queue.own_stride),
            false => counted.own.strides,
        };
        turn.saturating_add(strides).max(self.level.pass)
    }

    /// What other keys have up to a pass, and what they may still get there: a task that was added before but is due only then goes first
    /// at the same pass.
    fn others(&self, queue: &Around, counted: &Counted, pass: u64) -> Result<u64, NoBound> {
        let (time, below) = (queue.virtual_time, behind(pass).pass);
        let mut sum = if counted.is_cut_off { counted.others.late } else { counted.others.tasks };
        let mut add = |lane: &LaneRow, key: &str, row: &KeyRow| {
            if row.waiting == 0 || key == self.key || is_tenant(key) {
                return;
            }
            let (stride, from) = (least_stride(lane, key, row), row.finish.max(queue.known_time));
            let to_come = if counted.is_cut_off && from < time {
                steps(from, stride, time).saturating_add(steps(time, stride, below))
            } else {
                steps(if counted.is_cut_off { time } else { from }, stride, below)
            };
            sum = sum.saturating_add(to_come);
        };
        self.look_at_each(queue.name.of.as_deref(), &mut add, &mut || ())?;
        Ok(sum)
    }

    /// The turns that tenants have up to a pass.
    fn turns_before(&self, but: Option<&str>, pass: u64) -> Result<u64, NoBound> {
        let some: RefCell<Vec<(Box<str>, u64)>> = RefCell::default();
        let mut turns = 0_u64;
        let mut gather = |lane: &LaneRow, tenant: &str, row: &KeyRow| {
            if is_tenant(tenant) && row.waiting > 0 && Some(tenant) != but {
                some.borrow_mut().push((tenant.into(), lane.tenant_stride(tenant).into()));
            }
        };
        let mut add = || {
            (self.look_at_desk)(&mut |desk| {
                let Some(rank) = desk.queue_of(self.rank) else { return };
                for (tenant, stride) in some.borrow_mut().drain(..) {
                    let of_tenant = steps(goes_on_at(rank, &tenant), stride, behind(pass).pass);
                    turns = turns.saturating_add(of_tenant);
                }
            });
        };
        self.look_at_each(None, &mut gather, &mut add)?;
        // What this node has lost while it was looked at says nothing.
        if some.into_inner().is_empty() { Ok(turns) } else { Err(NoBound::Gone) }
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
