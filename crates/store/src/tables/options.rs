//! How each table is kept on disk. A keyspace keeps the settings that it was created with.

use fjall::KeyspaceCreateOptions;
use fjall::compaction::Leveled;
use fjall::config::{FilterPolicy, PartitioningPolicy, PinningPolicy};
use std::sync::Arc;
use windlass_core::tables::Table;

/// A table's file; its first level, with which a flush of scattered keys is merged, is four of them.
const TABLE_FILE_BYTES: u64 = 16 << 20;
/// Flushes of a table that wait before they are merged with what is there.
const FLUSHES_MERGED: u8 = 4;
/// The same for the tables of a lane's backlog. What is done is a flush of rows that take others away, and each merge reads and writes
/// anew all that lies between their keys: so there are fewer of them. A look at the backlog walks along so many more files.
const FLUSHES_OF_BACKLOG_MERGED: u8 = 12;

/// How a table is kept.
pub(crate) fn options_of(table: Table) -> KeyspaceCreateOptions {
    let options = KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
    let of_backlog = matches!(
        table,
        Table::Levels
            | Table::KeyLevels
            | Table::Tasks
            | Table::Payloads
            | Table::TaskGroups
            | Table::GroupsLeft
    );
    let options = merged_after(options, if of_backlog { FLUSHES_OF_BACKLOG_MERGED } else { FLUSHES_MERGED });
    match table {
        // These are walked along, and what is looked up by itself is there and was mostly read ahead: filters, which tell that a row is
        // not there, would be of little use, and are felt in memory.
        Table::Levels | Table::KeyLevels | Table::TaskGroups | Table::DelayedTasks | Table::DeadTasks => {
            read_as_needed(options).filter_policy(FilterPolicy::disabled())
        }
        // Whoever looks for one of these mostly finds it; tasks that share rows are looked for by themselves first only if they fail, are
        // asked about, or get another level.
        Table::Tasks | Table::Payloads | Table::GroupsLeft => {
            read_as_needed(options).expect_point_read_hits(true)
        }
        Table::Abouts => found_at_once(options).expect_point_read_hits(true),
        // A commit of a billion entries is staged here first.
        Table::Staged | Table::Garbage => read_as_needed(options),
        Table::Meta
        | Table::Submissions
        | Table::History
        | Table::Blocks
        | Table::Outputs
        | Table::Failures
        | Table::Replies
        | Table::RepliesByTime
        | Table::Found
        | Table::Traits
        | Table::Roster
        | Table::Weights
        | Table::Lanes
        | Table::Ranks
        | Table::LaneKeys
        | Table::Relevels
        | Table::Tenants
        | Table::Branches
        | Table::Commits
        | Table::CommitRequests
        | Table::Grants
        | Table::DroppedAreas
        | Table::Generated => found_at_once(options),
    }
}

/// Flushes are merged with the first level when there are so many, whose size is the same whatever their number.
fn merged_after(options: KeyspaceCreateOptions, flushes: u8) -> KeyspaceCreateOptions {
    let file_bytes = TABLE_FILE_BYTES * u64::from(FLUSHES_MERGED) / u64::from(flushes);
    let leveled = Leveled::default().with_l0_threshold(flushes).with_table_target_size(file_bytes);
    options.compaction_strategy(Arc::new(leveled))
}

/// A look at a row that is in no cache reads one block: where it is is known without another.
fn found_at_once(options: KeyspaceCreateOptions) -> KeyspaceCreateOptions {
    options
        .index_block_pinning_policy(PinningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
}

/// For a backlog of 10^8 tasks, which must not be felt in memory: what says where rows are is read as it is needed, in
/// blocks. On all levels: keys that come in order are moved from the first level to the last as they are, and what is
/// pinned on the first stays pinned, 3 bytes for each task.
fn read_as_needed(options: KeyspaceCreateOptions) -> KeyspaceCreateOptions {
    options
        .index_block_pinning_policy(PinningPolicy::disabled())
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::disabled())
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
}
