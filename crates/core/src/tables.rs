//! Tables: the rows that are the machine's durable truth, and the in-memory implementation of them.
//!
//! Invariants
//! - Rows of a table are ordered by their key's bytes.
//! - Reads see everything put before, committed or not.
//! - What was put since the last commit reaches the disk as one atomic batch, or not at all.

use std::collections::BTreeMap;
use std::ops::Bound;

/// A table of ordered rows. The numbers are stored on disk and in snapshots: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// Single rows of the machine and of the log that feeds it: applied position, epoch, last time, last id.
    Meta = 1,
    /// Running submissions: the small part that changes as chunks are settled.
    Submissions = 2,
    /// What is said of a submission, by its producer and by whoever changed it.
    Abouts = 3,
    /// Finished submissions: completed, failed, cancelled.
    History = 4,
    /// Chunk state, 4,096 chunks a row.
    Blocks = 5,
    /// Small outputs that came inline with a completion.
    Outputs = 6,
    /// The last failure of each chunk that failed and is not done.
    Failures = 7,
    /// Replies by request id, for the dedup window.
    Replies = 8,
    /// The same request ids in order of arrival, so that the window closes oldest first.
    RepliesByTime = 9,
    /// (field, value, submission): finds submissions by metadata.
    Found = 10,
    /// What strategies go by of running submissions; small, so that a start need not read payloads.
    Traits = 11,
    /// Sessions and leases that may hold work under a hard limit.
    Roster = 12,
    /// Weights of values, a row for each field.
    Weights = 13,
    /// Lanes, by name.
    Lanes = 14,
    /// (lane, priority): counts, virtual time, ack level.
    Ranks = 15,
    /// (lane, priority, key): the finish tag and how many tasks wait, of keys that have some.
    LaneKeys = 16,
    /// Tasks that are not done, and in no group.
    Tasks = 17,
    /// Large payloads of tasks.
    Payloads = 18,
    /// (lane, priority, level): the order in which tasks are handed out.
    Levels = 19,
    /// (lane, priority, key or tenant, level): the same, for each tenant, and where that is needed for each key.
    KeyLevels = 20,
    /// (time, task): tasks that are not due yet.
    DelayedTasks = 21,
    /// (lane, task): tasks that have failed for good, and why.
    DeadTasks = 22,
    /// (lane, priority, tenant): the virtual time among its users, and how far everything is done.
    Tenants = 23,
    /// Branches, by name.
    Branches = 24,
    /// (area, path): staged entries and tombstones; in a submission's own area (area, path, chunk).
    Staged = 25,
    /// Commits, by id.
    Commits = 26,
    /// Requests for commits: waiting, committed, aborted.
    CommitRequests = 27,
    /// Addresses that were granted for uploads, and which of them are linked.
    Grants = 28,
    /// Staging areas whose rows are to be removed.
    DroppedAreas = 29,
    /// (request, file): files of commits that are under way, noted before they are written.
    Generated = 30,
    /// Objects that nothing leads to any more, by address. Files of commits are named by their content, so that another
    /// commit may have the same: whoever deletes one looks first.
    Garbage = 31,
    /// What is said of tasks that were added together, by the first of their ids.
    TaskGroups = 32,
    /// How many tasks of a group are in it.
    GroupsLeft = 33,
    /// (lane, priority, key): how far the tasks of a key that get new levels have got them.
    Relevels = 34,
}

impl Table {
    /// Every table, in the order of its number.
    pub const ALL: [Table; 34] = [
        Table::Meta,
        Table::Submissions,
        Table::Abouts,
        Table::History,
        Table::Blocks,
        Table::Outputs,
        Table::Failures,
        Table::Replies,
        Table::RepliesByTime,
        Table::Found,
        Table::Traits,
        Table::Roster,
        Table::Weights,
        Table::Lanes,
        Table::Ranks,
        Table::LaneKeys,
        Table::Tasks,
        Table::Payloads,
        Table::Levels,
        Table::KeyLevels,
        Table::DelayedTasks,
        Table::DeadTasks,
        Table::Tenants,
        Table::Branches,
        Table::Staged,
        Table::Commits,
        Table::CommitRequests,
        Table::Grants,
        Table::DroppedAreas,
        Table::Generated,
        Table::Garbage,
        Table::TaskGroups,
        Table::GroupsLeft,
        Table::Relevels,
    ];

    /// The table's number as stored.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The table with this stored number, if this build knows it.
    pub fn from_number(number: u8) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.number() == number)
    }

    /// The table's name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Submissions => "submissions",
            Table::Abouts => "abouts",
            Table::History => "history",
            Table::Blocks => "blocks",
            Table::Outputs => "outputs",
            Table::Failures => "failures",
            Table::Replies => "replies",
            Table::RepliesByTime => "replies_by_time",
            Table::Found => "found",
            Table::Traits => "traits",
            Table::Roster => "roster",
            Table::Weights => "weights",
            Table::Lanes => "lanes",
            Table::Ranks => "ranks",
            Table::LaneKeys => "lane_keys",
            Table::Tasks => "tasks",
            Table::Payloads => "payloads",
            Table::Levels => "levels",
            Table::KeyLevels => "key_levels",
            Table::DelayedTasks => "delayed_tasks",
            Table::DeadTasks => "dead_tasks",
            Table::Tenants => "tenants",
            Table::Branches => "branches",
            Table::Staged => "staged",
            Table::Commits => "commits",
            Table::CommitRequests => "commit_requests",
            Table::Grants => "grants",
            Table::DroppedAreas => "dropped_areas",
            Table::Generated => "generated",
            Table::Garbage => "garbage",
            Table::TaskGroups => "task_groups",
            Table::GroupsLeft => "groups_left",
            Table::Relevels => "relevels",
        }
    }
}

/// A row: its key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A range of keys.
pub type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Which way a scan walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// From the smallest key up.
    Up,
    /// From the largest key down.
    Down,
}

/// Ordered rows. Two real implementations: [`MemoryTables`] and the store's tables on disk; both pass
/// [`conformance::suite`].
///
/// No method fails: a disk that cannot be read or written is a fault that stops the process, since a machine
/// that goes on without its rows would answer wrongly.
pub trait Tables: Send {
    /// The value of a row.
    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>>;

    /// Writes a row, whether it was there or not.
    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>);

    /// Removes a row, whether it was there or not.
    fn delete(&mut self, table: Table, key: &[u8]);

    /// The rows of a range, in order; lazily, so that a caller may stop early.
    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
    ) -> Box<dyn Iterator<Item = Row> + 'a>;

    /// Hands everything put and deleted since the last commit to the disk as one atomic batch, without fsync.
    fn commit(&mut self);

    /// The rows whose key begins with `prefix`, upwards.
    fn scan_prefix<'a>(&'a self, table: Table, prefix: &[u8]) -> Box<dyn Iterator<Item = Row> + 'a> {
        match key_after_prefix(prefix) {
            Some(end) => self.scan(table, (Bound::Included(prefix), Bound::Excluded(&end)), Walk::Up),
            None => self.scan(table, (Bound::Included(prefix), Bound::Unbounded), Walk::Up),
        }
    }
}

/// Rows for whoever only reads them, wherever they are.
pub trait ReadRows {
    /// The value of a row.
    fn row(&self, table: Table, key: &[u8]) -> Option<Vec<u8>>;

    /// The rows of a range, upwards.
    fn rows<'a>(&'a self, table: Table, range: KeyRange<'_>) -> Box<dyn Iterator<Item = Row> + 'a>;
}

impl<T: Tables + ?Sized> ReadRows for T {
    fn row(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.get(table, key)
    }

    fn rows<'a>(&'a self, table: Table, range: KeyRange<'_>) -> Box<dyn Iterator<Item = Row> + 'a> {
        self.scan(table, range, Walk::Up)
    }
}

/// The smallest key that is larger than every key with this prefix; none if the prefix is all 0xff.
pub fn key_after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Tables in memory, for tests, models and simulations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryTables {
    rows: BTreeMap<Table, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Tables for MemoryTables {
    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.rows.get(&table)?.get(key).cloned()
    }

    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.rows.entry(table).or_default().insert(key.to_vec(), value);
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        if let Some(rows) = self.rows.get_mut(&table) {
            rows.remove(key);
            // An emptied table equals one that never had a row.
            if rows.is_empty() {
                self.rows.remove(&table);
            }
        }
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
    ) -> Box<dyn Iterator<Item = Row> + 'a> {
        let Some(rows) = self.rows.get(&table) else { return Box::new(std::iter::empty()) };
        if is_empty_range(range) {
            return Box::new(std::iter::empty());
        }
        let found = rows.range::<[u8], _>(range).map(|(key, value)| (key.clone(), value.clone()));
        match walk {
            Walk::Up => Box::new(found),
            Walk::Down => Box::new(found.rev()),
        }
    }

    fn commit(&mut self) {}
}

/// Whether no key can lie in the range; `BTreeMap::range` would panic on one whose ends cross.
pub fn is_empty_range(range: KeyRange<'_>) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

/// What every implementation of [`Tables`] must do.
pub mod conformance {
    use super::{Table, Tables, Walk};
    use std::ops::Bound::{Excluded, Included, Unbounded};

    fn keys(tables: &dyn Tables, range: super::KeyRange<'_>, walk: Walk) -> Vec<Vec<u8>> {
        tables.scan(Table::Found, range, walk).map(|(key, _)| key).collect()
    }

    /// Runs the whole suite on tables that are empty.
    ///
    /// # Panics
    /// If the implementation differs from what [`Tables`] promises.
    pub fn suite(tables: &mut dyn Tables) {
        assert_eq!(tables.get(Table::Found, b"b"), None);

        for key in [b"a", b"b", b"c", b"d"] {
            tables.put(Table::Found, key, key.to_vec());
        }
        tables.put(Table::Meta, b"b", b"another table".to_vec());
        assert_eq!(
            tables.get(Table::Found, b"b"),
            Some(b"b".to_vec()),
            "reads see what is not yet committed"
        );
        tables.commit();

        tables.delete(Table::Found, b"b");
        tables.put(Table::Found, b"bb", b"new".to_vec());
        tables.put(Table::Found, b"c", b"changed".to_vec());
        tables.put(Table::Found, b"e", b"e".to_vec());
        tables.delete(Table::Found, b"never there");

        for _ in ["before the commit", "after it"] {
            assert_eq!(tables.get(Table::Found, b"b"), None);
            assert_eq!(tables.get(Table::Found, b"c"), Some(b"changed".to_vec()));
            assert_eq!(tables.get(Table::Meta, b"b"), Some(b"another table".to_vec()));
            assert_eq!(keys(tables, (Unbounded, Unbounded), Walk::Up), [&b"a"[..], b"bb", b"c", b"d", b"e"]);
            assert_eq!(
                keys(tables, (Unbounded, Unbounded), Walk::Down),
                [&b"e"[..], b"d", b"c", b"bb", b"a"]
            );
            assert_eq!(keys(tables, (Included(b"b"), Excluded(b"d")), Walk::Up), [&b"bb"[..], b"c"]);
            assert_eq!(keys(tables, (Excluded(b"bb"), Included(b"d")), Walk::Down), [&b"d"[..], b"c"]);
            assert_eq!(keys(tables, (Included(b"d"), Excluded(b"b")), Walk::Up), Vec::<Vec<u8>>::new());
            let with_prefix: Vec<_> = tables.scan_prefix(Table::Found, b"b").map(|(key, _)| key).collect();
            assert_eq!(with_prefix, [b"bb".to_vec()]);
            tables.commit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_tables_pass_the_suite() {
        conformance::suite(&mut MemoryTables::default());
    }

    #[test]
    fn the_key_after_a_prefix_is_larger_than_all_of_its_keys() {
        assert_eq!(key_after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(key_after_prefix(&[1, 0xff]), Some(vec![2]));
        assert_eq!(key_after_prefix(&[0xff]), None);
    }

    #[test]
    fn table_numbers_are_forever() {
        let numbers: Vec<_> = Table::ALL.map(|table| (table.number(), table.name())).into();
        assert_eq!(
            numbers,
            [
                (1, "meta"),
                (2, "submissions"),
                (3, "abouts"),
                (4, "history"),
                (5, "blocks"),
                (6, "outputs"),
                (7, "failures"),
                (8, "replies"),
                (9, "replies_by_time"),
                (10, "found"),
                (11, "traits"),
                (12, "roster"),
                (13, "weights"),
                (14, "lanes"),
                (15, "ranks"),
                (16, "lane_keys"),
                (17, "tasks"),
                (18, "payloads"),
                (19, "levels"),
                (20, "key_levels"),
                (21, "delayed_tasks"),
                (22, "dead_tasks"),
                (23, "tenants"),
                (24, "branches"),
                (25, "staged"),
                (26, "commits"),
                (27, "commit_requests"),
                (28, "grants"),
                (29, "dropped_areas"),
                (30, "generated"),
                (31, "garbage"),
                (32, "task_groups"),
                (33, "groups_left"),
                (34, "relevels"),
            ]
        );
    }
}
