//! Shares: the keys that share one queue, their finish tags, and how a new task is charged to its key.
//!
//! A rank's keys share the rank; the users of a tenant share what the tenant gets.
//!
//! Invariants
//! - A key is remembered exactly while it has tasks with a level, or its finish tag lies above the virtual time: below it,
//!   the tag says nothing. (Of very many keys without tasks, those nearest to their turn are forgotten.)
//! - The weight is a sum over the keys that have tasks.

use super::levels::{Weight, is_tenant};
use crate::limits::LANE_IDLE_KEYS_MAX;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A key that shares a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct KeyRow {
    /// Where its next task starts at the earliest: the pass of the last one and that one's stride. Of a tenant: where the
    /// first one that is not done stands.
    #[n(0)]
    pub finish: u64,
    /// Its tasks that have a level.
    #[n(1)]
    pub waiting: u32,
    /// The stride of the last task that was charged to it.
    #[n(2)]
    #[cbor(default)]
    pub stride: u32,
}

impl KeyRow {
    /// The weight that it has by its last task.
    pub fn weight(&self) -> Weight {
        Weight::of_stride(self.stride)
    }

    /// What it counts for among the keys that have tasks, in thousandths.
    fn share(&self) -> u64 {
        if self.waiting == 0 { 0 } else { u64::from(self.weight().as_milli()) }
    }
}

/// See the file's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    keys: BTreeMap<Box<str>, KeyRow>,
    /// Keys without tasks, by finish tag: they go as the virtual time passes it.
    idle: BTreeSet<(u64, Box<str>)>,
    /// Of the keys with tasks, in thousandths.
    weight: u64,
    changed: BTreeSet<Box<str>>,
    /// Tenants that were forgotten, until they are asked for.
    tenants_forgotten: Vec<Box<str>>,
}

impl Shares {
    /// The keys that are remembered, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &KeyRow)> {
        self.keys.iter().map(|(key, row)| (&**key, row))
    }

    /// Those that come after one, or all.
    pub fn iter_after(&self, key: Option<&str>) -> impl Iterator<Item = (&str, &KeyRow)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.keys.range::<str, _>((from, Bound::Unbounded)).map(|(key, row)| (&**key, row))
    }

    /// What is known of a key.
    pub fn get(&self, key: &str) -> Option<&KeyRow> {
        self.keys.get(key)
    }

    /// How many keys have tasks with a level.
    pub fn waiting_len(&self) -> usize {
        self.keys.len() - self.idle.len()
    }

    /// The sum of the weights of the keys that have tasks, in thousandths.
    pub const fn weight_milli(&self) -> u64 {
        self.weight
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Takes in what a row says.
    pub(super) fn open(&mut self, key: Box<str>, row: KeyRow) {
        if row.waiting == 0 {
            self.idle.insert((row.finish, key.clone()));
        }
        self.weight += row.share();
        self.keys.insert(key, row);
    }

    /// The pass of a new task of a key, which is charged for it: start-time fair queueing.
    pub(super) fn charge(&mut self, virtual_time: u64, key: &str, stride: u32) -> u64 {
        let finish = self.keys.get(key).map_or(0, |it| it.finish);
        let pass = finish.max(virtual_time);
        self.change(virtual_time, key, |it| {
            (it.finish, it.stride) = (pass.saturating_add(u64::from(stride)), stride);
        });
        pass
    }

    /// Changes what is known of a key.
    pub(super) fn change(&mut self, virtual_time: u64, key: &str, change: impl FnOnce(&mut KeyRow)) {
        if !self.changed.contains(key) {
            self.changed.insert(key.into());
        }
        // The usual case: a key with tasks, before and after.
        if let Some(row) = self.keys.get_mut(key)
            && row.waiting > 0
        {
            self.weight -= row.share();
            change(row);
            self.weight += row.share();
            if row.waiting == 0 {
                let row = *row;
                self.rest(virtual_time, key.into(), row);
            }
            return;
        }
        let key: Box<str> = key.into();
        let mut row = self.keys.get(&key).copied().unwrap_or_default();
        self.idle.remove(&(row.finish, key.clone()));
        change(&mut row);
        self.weight += row.share();
        if row.waiting > 0 {
            self.keys.insert(key, row);
        } else {
            self.rest(virtual_time, key, row);
        }
    }

    /// Keeps what is known of a key without tasks as long as it says something.
    fn rest(&mut self, virtual_time: u64, key: Box<str>, row: KeyRow) {
        if row.finish > virtual_time {
            self.idle.insert((row.finish, key.clone()));
            self.keys.insert(key.clone(), row);
            // Not this one: it may be about to get a task.
            if self.idle.len() > LANE_IDLE_KEYS_MAX
                && let Some(nearest) = self.idle.iter().find(|(_, it)| *it != key).cloned()
            {
                self.idle.remove(&nearest);
                self.forget(nearest.1);
            }
        } else {
            self.forget(key);
        }
    }

    /// The virtual time has moved on: keys whose finish tags say nothing any more are forgotten.
    pub(super) fn advance(&mut self, virtual_time: u64) {
        while let Some((finish, _)) = self.idle.first()
            && *finish <= virtual_time
            && let Some((_, key)) = self.idle.pop_first()
        {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: Box<str>) {
        self.keys.remove(&key);
        if is_tenant(&key) {
            self.tenants_forgotten.push(key.clone());
        }
        self.changed.insert(key);
    }

    /// The largest finish tag of keys without tasks.
    pub(super) fn last_idle(&self) -> Option<u64> {
        self.idle.last().map(|(finish, _)| *finish)
    }

    /// Tenants that were forgotten since this was asked last, and are not known again.
    pub(super) fn take_tenants_forgotten(&mut self) -> Vec<Box<str>> {
        let mut forgotten = std::mem::take(&mut self.tenants_forgotten);
        forgotten.retain(|tenant| !self.keys.contains_key(tenant));
        forgotten
    }

    /// Keys whose rows have changed since this was asked last; none for those that are forgotten.
    pub(super) fn take_changed(&mut self) -> impl Iterator<Item = (Box<str>, Option<KeyRow>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|key| {
            let row = self.keys.get(&key).copied();
            (key, row)
        })
    }
}
