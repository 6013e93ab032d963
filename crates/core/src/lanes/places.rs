//! Places: the rows of a task that has a level.
//!
//! A task stands among all who share with its key, those of its priority or of its tenant, and, where that is needed (`key_order`), among
//! those of its key. The row in the first of the two orders also holds its payload, if that is small: whoever walks along a queue has
//! read all that consumers get of its tasks.
//!
//! Invariants
//! - A task with a level has one row among all who share with its key; one without a level has none.
//! - A small payload is beside the level of its task, and in the task's own row while it has none. (Earlier builds kept it there all
//!   the while; what they wrote is read as it is.) A large one has a row of its own from the beginning to the end.

use super::levels::{Level, QueueName, RankName, tenant_of};
use super::tasks::{Payload, PayloadRef, TaskId};
use crate::limits::TASK_PAYLOAD_IN_ROW_BYTES_MAX;
use crate::rows;
use crate::tables::{Table, Tables};
use minicbor::{Decode, Encode};
use std::sync::Arc;

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its lane and priority.
    pub rank: RankName,
    /// Its key.
    pub key: Arc<str>,
    /// Its level.
    pub level: Level,
}

impl Place {
    /// The queue of all who share with its key.
    pub fn queue(&self) -> QueueName {
        QueueName::around(self.rank, &self.key)
    }

    /// Whether it is in a queue.
    pub(super) fn is_in(&self, queue: &QueueName) -> bool {
        self.rank == queue.rank && tenant_of(&self.key) == queue.of.as_deref()
    }

    /// Where the row is that holds what a consumer gets.
    pub fn row(&self) -> (Table, Vec<u8>) {
        row_in_queue(self.rank, tenant_of(&self.key), self.level)
    }
}

/// The row of a task among all who share with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct PlaceRow<'a> {
    /// Its key.
    #[b(0)]
    pub key: &'a str,
    /// How far behind it the next task of its key stands; none if it was charged to its key before.
    #[n(1)]
    pub stride: u32,
    /// Its payload; none if it is elsewhere.
    #[b(2)]
    pub payload: Option<PayloadRef<'a>>,
    /// Its position in its group; none if it is in none.
    #[n(3)]
    pub position: Option<u8>,
}

impl<'a> PlaceRow<'a> {
    /// What a row says.
    ///
    /// # Panics
    /// If the row is not one that a machine wrote.
    pub fn from_row(table: Table, key: &[u8], row: &'a [u8]) -> PlaceRow<'a> {
        rows::decode(table, key, row)
    }
}

/// The payload of a new task if it is small; a large one is written into a row of its own.
pub(super) fn set_apart(tables: &mut dyn Tables, id: TaskId, payload: &Payload) -> Option<Payload> {
    if payload.bytes() <= TASK_PAYLOAD_IN_ROW_BYTES_MAX {
        return Some(payload.clone());
    }
    tables.put(Table::Payloads, &id.key(), rows::encode(payload));
    None
}

/// Writes the row of a place.
pub(super) fn put_place(tables: &mut dyn Tables, name: RankName, level: Level, row: &PlaceRow<'_>) {
    let (table, row_key) = row_in_queue(name, tenant_of(row.key), level);
    tables.put(table, &row_key, rows::encode(row));
}

/// Removes the row of a place.
pub(super) fn delete_place(tables: &mut dyn Tables, name: RankName, key: &str, level: Level) {
    let (table, row_key) = row_in_queue(name, tenant_of(key), level);
    tables.delete(table, &row_key);
}

/// Writes a place among those of its key.
pub(super) fn put_key_level(tables: &mut dyn Tables, name: RankName, key: &str, level: Level, stride: u32) {
    tables.put(Table::KeyLevels, &key_of_key_level(name, key, level), rows::encode(&stride));
}

/// Removes a place from among those of its key.
pub(super) fn delete_key_level(tables: &mut dyn Tables, name: RankName, key: &str, level: Level) {
    tables.delete(Table::KeyLevels, &key_of_key_level(name, key, level));
}

/// The payload that is kept beside a task's level, if it stands there and that is small.
pub(super) fn beside(tables: &dyn Tables, name: RankName, key: &str, level: Level) -> Option<Payload> {
    let (table, row_key) = row_in_queue(name, tenant_of(key), level);
    let row = tables.get(table, &row_key)?;
    PlaceRow::from_row(table, &row_key, &row).payload.map(PayloadRef::to_owned)
}

/// Where the row of a level is in the queue of a rank, or of a tenant of it.
pub(super) fn row_in_queue(name: RankName, tenant: Option<&str>, level: Level) -> (Table, Vec<u8>) {
    match tenant {
        Some(tenant) => (Table::KeyLevels, key_of_key_level(name, tenant, level)),
        None => (Table::Levels, name.key_of_level(level).to_vec()),
    }
}

/// The key of a level's row among those of its key.
pub(super) fn key_of_key_level(name: RankName, key: &str, level: Level) -> Vec<u8> {
    let mut row_key = name.key_of_key(key);
    row_key.extend_from_slice(&level.key());
    row_key
}
