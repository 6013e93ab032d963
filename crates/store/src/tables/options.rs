//! How each table is kept on disk. A keyspace keeps the settings that it was created with.

use fjall::KeyspaceCreateOptions;
use fjall::compaction::Leveled;
use fjall::config::{FilterPolicy, PartitioningPolicy, PinningPolicy};
use std::sync::Arc;
use windlass_core::tables::Table;

/// A table's file; its first level, with which a flush of scattered keys is merged, is four of them.
const TABLE_FILE_BYTES: u64 = 16 << 20;

/// How a table is kept.
pub(crate) fn options_of(table: Table) -> KeyspaceCreateOptions {
    let options = KeyspaceCreateOptions::default()
        .max_memtable_size(u64::MAX)
        .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(TABLE_FILE_BYTES)));
    match table {
        // These are only scanned, so that filters, which tell that a row is not there, would be of no use.
        Table::Levels | Table::KeyLevels | Table::DelayedTasks | Table::DeadTasks => {
            read_as_needed(options).filter_policy(FilterPolicy::disabled()).compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(12).with_table_target_size(TABLE_FILE_BYTES / 3)))
        }
        // Whoever looks for one of these mostly finds it.
        Table::Tasks | Table::Payloads => read_as_needed(options).expect_point_read_hits(true).compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(12).with_table_target_size(TABLE_FILE_BYTES / 3))),
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
        | Table::Tenants
        | Table::Branches
        | Table::Commits
        | Table::CommitRequests
        | Table::Grants
        | Table::DroppedAreas
        | Table::Generated => found_at_once(options),
    }
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
