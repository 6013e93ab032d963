//! Options: what can be set about the order.

use crate::fault::OrderFault;
use openraft::{Config, SnapshotPolicy};
use std::path::PathBuf;
use std::time::Duration;
use windlass_core::ids::Shard;
use windlass_store::log::LogOptions;

/// What can be set about the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderOptions {
    /// Where the log lies.
    pub log_folder: PathBuf,
    /// Where snapshots lie.
    pub snapshot_folder: PathBuf,
    /// This node's id; it belongs to the data folder and never changes.
    pub node: u64,
    /// Settings of the log's files.
    pub log: LogOptions,
    /// A checkpoint is made after so many entries of the log.
    pub snapshot_every_entries: u64,
    /// A checkpoint is made after so many bytes of commands, if that comes first.
    pub snapshot_every_bytes: u64,
    /// Entries that stay in the log behind a checkpoint, for members that are a little behind.
    pub snapshot_keep_entries: u64,
    /// How often a leader says that it is there.
    pub heartbeat_ms: u64,
    /// A follower waits at least so long in silence before it stands for election.
    pub election_min_ms: u64,
    /// And at most so long.
    pub election_max_ms: u64,
    /// The shard that makes ids.
    pub shard: Shard,
    /// How long a proposal may take.
    pub propose_timeout: Duration,
    /// How long a read barrier may take.
    pub read_timeout: Duration,
}

impl OrderOptions {
    /// Settings for a node with its data under these two folders.
    ///
    /// Heartbeats of 250 ms and elections after 1.5 to 3 s bear a machine that is overloaded for a second; shorter ones
    /// cost leaders. A checkpoint writes the whole state once, so 256 MiB of log in between keep that a small part of
    /// all writing, and a start replays no more than that.
    pub fn new(node: u64, log_folder: PathBuf, snapshot_folder: PathBuf) -> OrderOptions {
        OrderOptions {
            log_folder,
            snapshot_folder,
            node,
            log: LogOptions::default(),
            snapshot_every_entries: 100_000,
            snapshot_every_bytes: 256 << 20,
            snapshot_keep_entries: 1_000,
            heartbeat_ms: 250,
            election_min_ms: 1_500,
            election_max_ms: 3_000,
            shard: Shard::default(),
            propose_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(10),
        }
    }

    /// The same for raft.
    pub(crate) fn raft_config(&self) -> Result<Config, OrderFault> {
        let config = Config {
            cluster_name: "windlass".to_owned(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_min_ms,
            election_timeout_max: self.election_max_ms,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every_entries.max(1)),
            max_in_snapshot_log_to_keep: self.snapshot_keep_entries,
            purge_batch_size: 1,
            // A restored leader goes on in its old term without an entry of its own, and commits nothing of its tail
            // until the first write. An election costs three fsyncs and settles the tail at once.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        config.validate().map_err(|error| OrderFault::Settings {
            what: format!("{error}; change the heartbeat or election times"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_given_out_are_taken_and_contradictory_ones_are_refused() {
        let mut options = OrderOptions::new(1, PathBuf::new(), PathBuf::new());
        assert!(options.raft_config().is_ok());
        options.election_max_ms = options.election_min_ms;
        assert!(matches!(options.raft_config(), Err(OrderFault::Settings { .. })));
    }
}
