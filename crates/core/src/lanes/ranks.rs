//! Ranks: one priority of a lane, in memory: its keys, its tenants, its virtual time.
//!
//! Tasks of a key without a tenant stand in the rank's own queue, by levels that were given when they were added. A tenant
//! has a queue of its own, in which its users share what it gets; in the rank it has a single tag, its turn, which moves on
//! by its stride whenever one of its tasks is over. So a tenant gets one share, however many users and tasks it has.
//!
//! Invariants
//! - A rank's virtual time never goes back, and no task is given a pass below it. The same holds within a tenant.
//! - A tenant is there exactly while the rank remembers its tag. One that comes anew starts behind every pass that any
//!   tenant before it had.
//! - When nothing waits, the virtual time moves behind all tags.

use super::acks::{Ack, Acked, Gap};
use super::levels::{Level, tenant_of};
use super::shares::{KeyRow, Shares};
use crate::effect::Times;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The tasks of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct RankRow {
    /// The virtual time V: the highest pass that is known to be handed out.
    #[n(0)]
    pub virtual_time: u64,
    /// The ack level A: everything up to it is done.
    #[n(1)]
    pub acked: Option<Level>,
    /// The highest level M that was ever given.
    #[n(2)]
    pub highest: Option<Level>,
    /// Tasks that have a level.
    #[n(3)]
    pub waiting: u64,
    /// Tasks that are not due yet.
    #[n(4)]
    pub delayed: u64,
    /// Tasks that have failed for good.
    #[n(5)]
    pub dead: u64,
    /// Tasks ever added.
    #[n(6)]
    pub added: u64,
    /// Tasks ever done.
    #[n(7)]
    pub done: u64,
    /// Where the virtual time of a tenant that comes anew starts.
    #[n(8)]
    #[cbor(default)]
    pub tenants_from: u64,
    /// Behind A, this is done too.
    #[n(9)]
    pub gap: Option<Gap>,
}

/// A tenant of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct TenantRow {
    /// The virtual time within it.
    #[n(0)]
    pub virtual_time: u64,
    /// Everything of it up to this level is done.
    #[n(1)]
    pub acked: Option<Level>,
    /// Behind that, this is done too.
    #[n(2)]
    pub gap: Option<Gap>,
}

impl RankRow {
    /// What is done of those without a tenant.
    pub const fn acked(&self) -> Acked {
        Acked { level: self.acked, gap: self.gap }
    }
}

impl TenantRow {
    /// What is done of it.
    pub const fn acked(&self) -> Acked {
        Acked { level: self.acked, gap: self.gap }
    }
}

/// A tenant, in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenant {
    pub(super) row: TenantRow,
    pub(super) users: Shares,
}

/// See the file's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rank {
    pub(super) row: RankRow,
    pub(super) shares: Shares,
    pub(super) tenants: BTreeMap<Box<str>, Tenant>,
    changed_tenants: BTreeSet<Box<str>>,
    forgotten_users: Vec<Box<str>>,
}

impl Tenant {
    /// What the tenant's row says.
    pub const fn row(&self) -> &TenantRow {
        &self.row
    }

    /// Its users.
    pub const fn users(&self) -> &Shares {
        &self.users
    }

    fn advance(&mut self, pass: u64) {
        if pass > self.row.virtual_time {
            self.row.virtual_time = pass;
            self.users.advance(pass);
        }
    }
}

impl Rank {
    /// What the rank's row says.
    pub const fn row(&self) -> &RankRow {
        &self.row
    }

    /// Its keys and tenants.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Its tenants behind one, or all, in order, those with tasks and those whose turn is not over.
    pub fn tenants_after(&self, name: Option<&str>) -> impl Iterator<Item = &str> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.tenants.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| &**name)
    }

    /// Its tenants, in order.
    pub fn tenants(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        self.tenants.iter().map(|(name, tenant)| (&**name, tenant))
    }

    /// The next tenant with tasks whose name comes after another one's; the first of them if there is no other.
    pub(super) fn waiting_tenant_after(&self, name: Option<&str>) -> Option<&str> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let mut tenants = self.tenants.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| &**name);
        tenants.find(|name| self.shares.get(name).is_some_and(|row| row.waiting > 0))
    }

    /// A tenant.
    pub fn tenant(&self, name: &str) -> Option<&Tenant> {
        self.tenants.get(name)
    }

    /// What is known of a key, whoever it shares with.
    pub fn key(&self, key: &str) -> Option<&KeyRow> {
        match tenant_of(key) {
            Some(tenant) if tenant != key => self.tenants.get(tenant)?.users.get(key),
            Some(_) | None => self.shares.get(key),
        }
    }

    /// The virtual times that count for a key.
    pub(super) fn times(&self, key: &str) -> Times {
        let tenant = tenant_of(key).map_or(0, |tenant| self.time_of_tenant(tenant));
        Times { rank: self.row.virtual_time, tenant }
    }

    /// The virtual time within a tenant, known or not.
    pub(super) fn time_of_tenant(&self, name: &str) -> u64 {
        self.tenants.get(name).map_or(self.row.tenants_from, |it| it.row.virtual_time)
    }

    /// How far everything is done in the queue around a key.
    pub fn acked_around(&self, key: &str) -> Acked {
        self.acked_of(tenant_of(key))
    }

    /// What is done in the queue of a tenant, or of those without one.
    pub(super) fn acked_of(&self, tenant: Option<&str>) -> Acked {
        match tenant {
            Some(tenant) => self.tenants.get(tenant).map(|tenant| tenant.row.acked()).unwrap_or_default(),
            None => self.row.acked(),
        }
    }

    /// Notes what is done of a tenant, or of those without one.
    pub(super) fn set_acked(&mut self, it: &Ack) {
        let (virtual_time, level, gap) = match &it.tenant {
            Some(tenant) => match self.known_tenant_mut(tenant) {
                Some(Tenant { row, .. }) => (row.virtual_time, &mut row.acked, &mut row.gap),
                None => return,
            },
            None => (self.row.virtual_time, &mut self.row.acked, &mut self.row.gap),
        };
        let mut acked = Acked { level: *level, gap: *gap };
        acked.note(it, virtual_time);
        (*level, *gap) = (acked.level, acked.gap);
    }

    /// A tenant that is there, for a change.
    pub(super) fn known_tenant_mut(&mut self, name: &str) -> Option<&mut Tenant> {
        let tenant = self.tenants.get_mut(name)?;
        self.changed_tenants.insert(name.into());
        Some(tenant)
    }

    fn tenant_mut(&mut self, name: &str) -> &mut Tenant {
        self.changed_tenants.insert(name.into());
        self.tenants.entry(name.into()).or_insert_with(|| {
            let row = TenantRow { virtual_time: self.row.tenants_from, ..TenantRow::default() };
            Tenant { row, users: Shares::default() }
        })
    }

    /// Moves the virtual time on.
    pub(super) fn advance(&mut self, pass: u64) {
        if pass > self.row.virtual_time {
            self.row.virtual_time = pass;
            self.shares.advance(pass);
            self.drop_tenants();
        }
    }

    /// Moves the virtual time of a tenant on. One that is not there may have been forgotten here, but not by the leader: it
    /// comes back no earlier than that.
    pub(super) fn advance_tenant(&mut self, name: &str, pass: u64) {
        match self.known_tenant_mut(name) {
            Some(tenant) => tenant.advance(pass),
            None => self.row.tenants_from = self.row.tenants_from.max(pass),
        }
    }

    /// The pass of a new task of a key, which is charged for it.
    pub(super) fn charge(&mut self, key: &str, stride: u32) -> u64 {
        match tenant_of(key) {
            Some(tenant) => {
                let tenant = self.tenant_mut(tenant);
                tenant.users.charge(tenant.row.virtual_time, key, stride)
            }
            None => {
                let pass = self.shares.charge(self.row.virtual_time, key, stride);
                self.drop_tenants();
                pass
            }
        }
    }

    /// A task of a key has got a place; `tenant_stride` is that of its tenant.
    pub(super) fn enter(&mut self, key: &str, level: Level, tenant_stride: u32) {
        let virtual_time = self.row.virtual_time;
        match tenant_of(key) {
            Some(name) => {
                let tenant = self.tenant_mut(name);
                tenant.users.change(tenant.row.virtual_time, key, |it| it.waiting += 1);
                self.shares.change(virtual_time, name, |it| {
                    if it.waiting == 0 {
                        it.finish = it.finish.max(virtual_time);
                    }
                    (it.waiting, it.stride) = (it.waiting + 1, tenant_stride);
                });
            }
            None => {
                self.row.highest = self.row.highest.max(Some(level));
                self.shares.change(virtual_time, key, |it| it.waiting += 1);
            }
        }
        self.row.waiting += 1;
    }

    /// A task of a key has no place any more. It was handed out, so the virtual time is at least there; its tenant has had
    /// a turn that cost so much.
    pub(super) fn leave(&mut self, key: &str, level: Level, tenant_cost: u32) {
        let virtual_time = self.row.virtual_time;
        self.row.waiting -= 1;
        let pass = match tenant_of(key) {
            Some(name) => {
                let account = *self.shares.get(name).expect("a tenant with tasks is remembered");
                let tenant = self.tenant_mut(name);
                tenant.users.change(tenant.row.virtual_time, key, |it| it.waiting -= 1);
                tenant.advance(level.pass);
                if account.waiting == 1
                    && let Some(last) = tenant.users.last_idle()
                {
                    tenant.advance(last);
                }
                self.shares.change(virtual_time, name, |it| {
                    it.waiting -= 1;
                    it.finish = it.finish.saturating_add(u64::from(tenant_cost));
                });
                // What was charged before took no turn.
                (tenant_cost > 0).then_some(account.finish)
            }
            None => {
                self.shares.change(virtual_time, key, |it| it.waiting -= 1);
                Some(level.pass)
            }
        };
        self.drop_tenants();
        if let Some(pass) = pass {
            self.advance(pass);
        }
        // Nothing waits any more: nobody is owed anything, so the virtual time moves behind every turn.
        if self.row.waiting == 0
            && let Some(last) = self.shares.last_idle()
        {
            self.advance(last);
        }
    }

    /// A key's next task starts at this pass at the earliest.
    pub(super) fn set_finish(&mut self, key: &str, finish: u64, stride: u32) {
        let change = |it: &mut KeyRow| (it.finish, it.stride) = (finish, stride);
        match tenant_of(key) {
            Some(name) => {
                let tenant = self.tenant_mut(name);
                tenant.users.change(tenant.row.virtual_time, key, change);
            }
            None => self.shares.change(self.row.virtual_time, key, change),
        }
    }

    /// The turns of a tenant are so far apart from now on.
    pub(super) fn set_tenant_stride(&mut self, name: &str, stride: u32) {
        if self.shares.get(name).is_some_and(|it| it.waiting > 0) {
            self.shares.change(self.row.virtual_time, name, |it| it.stride = stride);
        }
    }

    fn drop_tenants(&mut self) {
        for name in self.shares.take_tenants_forgotten() {
            let Some(mut tenant) = self.tenants.remove(&name) else { continue };
            assert!(tenant.users.is_empty(), "a tenant without tasks has no users whose turn is not over");
            self.row.tenants_from = self.row.tenants_from.max(tenant.row.virtual_time);
            self.forgotten_users.extend(tenant.users.take_changed().map(|(key, _)| key));
            self.changed_tenants.insert(name);
        }
    }

    /// Rows of keys and tenants that have changed since this was asked last; none for those that are forgotten.
    pub(super) fn take_changed(&mut self) -> Changed {
        // A user that was forgotten with its tenant may have come back since.
        let mut keys: BTreeMap<Box<str>, Option<KeyRow>> =
            std::mem::take(&mut self.forgotten_users).into_iter().map(|key| (key, None)).collect();
        keys.extend(self.shares.take_changed());
        let mut tenants = Vec::new();
        for name in std::mem::take(&mut self.changed_tenants) {
            let tenant = self.tenants.get_mut(&name);
            tenants.push((name, tenant.as_ref().map(|tenant| tenant.row)));
            if let Some(tenant) = tenant {
                keys.extend(tenant.users.take_changed());
            }
        }
        Changed { keys, tenants }
    }
}

/// Rows that have changed; none for what is gone.
pub(super) struct Changed {
    pub(super) keys: BTreeMap<Box<str>, Option<KeyRow>>,
    pub(super) tenants: Vec<(Box<str>, Option<TenantRow>)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::tasks::TaskId;
    use crate::limits::LANE_IDLE_KEYS_MAX;

    const STRIDE: u32 = 1 << 20;

    fn add(rank: &mut Rank, key: &str) -> Level {
        let level = Level { pass: rank.charge(key, STRIDE), id: TaskId::first() };
        rank.enter(key, level, 2 * STRIDE);
        level
    }

    /// One task waits all the while, so that the virtual time stays.
    fn rank_with_idle_keys(count: usize) -> Rank {
        let mut rank = Rank::default();
        add(&mut rank, "waits");
        for nth in 0..count {
            let key = nth.to_string();
            let pass = rank.charge(&key, 1_000 * STRIDE);
            rank.enter(&key, Level { pass, id: TaskId::first() }, 0);
            rank.leave(&key, Level { pass, id: TaskId::first() }, 0);
        }
        rank
    }

    #[test]
    fn a_tenant_is_forgotten_as_a_whole_also_among_very_many_idle_keys() {
        let mut rank = Rank::default();
        let level = add(&mut rank, "t/x");
        add(&mut rank, "waits");
        rank.leave("t/x", level, 2 * STRIDE);
        assert!(rank.tenant("t/").is_some(), "its turn is not over");
        for nth in 0..LANE_IDLE_KEYS_MAX {
            let level = Level { pass: rank.charge(&nth.to_string(), 1_000 * STRIDE), id: TaskId::first() };
            rank.enter(&nth.to_string(), level, 0);
            rank.leave(&nth.to_string(), level, 0);
            let is_known = rank.shares().get("t/").is_some();
            assert_eq!(rank.tenant("t/").is_some(), is_known, "after {nth}");
        }
        assert!(rank.tenant("t/").is_none(), "its turn was the nearest");
    }

    #[test]
    fn a_new_key_is_charged_for_its_first_task_also_among_very_many_idle_keys() {
        let mut rank = rank_with_idle_keys(LANE_IDLE_KEYS_MAX);
        let passes = [(); 3].map(|()| add(&mut rank, "new").pass);
        assert_eq!(passes, [0, 1, 2].map(|nth| nth * u64::from(STRIDE)));
    }
}
