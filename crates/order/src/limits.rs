//! Limits: every maximum of the order, with its reason.

use std::time::Duration;

/// Bytes after which a group takes no further command. A follower gets a group in one message, and one that is sent at
/// 1 Gbit/s must not hold up a heartbeat: 1 MiB takes 8 ms. One command that is larger goes alone.
pub(crate) const GROUP_BYTES_MAX: usize = 1 << 20;

/// Commands in one group: applying them holds the machine's lock, and 4,096 small ones take a few milliseconds. One that is about
/// many tasks counts as often.
pub(crate) const GROUP_COMMANDS_MAX: usize = 4_096;

/// Commands that one caller puts into a group together: a sixteenth of a group, so that others find room beside them.
pub const COMMANDS_TOGETHER_MAX: usize = 256;

/// The same in bytes: a quarter of a group.
pub(crate) const BYTES_TOGETHER_MAX: usize = GROUP_BYTES_MAX / 4;

/// Groups that are written but not yet applied. A member alone writes, syncs and applies on one thread: a second group would only
/// be closed earlier, with fewer commands and an fsync of its own. With peers there is something to wait for meanwhile; then the
/// wait for the answers of the group before must go by those that are applied.
pub(crate) const GROUPS_IN_FLIGHT_MAX: usize = 1;

/// Proposals in a group from which on the next one waits until they are answered. A group costs the processors about as much as
/// three commands, so there is little to gain with fewer; and few callers, at work by turns, would wait for each other.
pub(crate) const PROPOSALS_MANY: usize = 16;

/// How long it waits at most, but for the clock's grain of a millisecond: a thread may be held up. Among so many callers on a full
/// machine nobody notices.
pub(crate) const ANSWERS_PATIENCE: Duration = Duration::from_millis(1);

/// Proposals that wait for their group; beyond that the caller waits. Mostly they are of one command each: four full groups. What
/// they hold is bounded by what their callers may have under way.
pub(crate) const PROPOSALS_WAITING_MAX: usize = 4 * GROUP_COMMANDS_MAX;

/// Groups applied under one lock and one commit of the tables: enough to share the commit's cost in a replay, and few
/// enough that a reader waits milliseconds, not seconds.
pub(crate) const GROUPS_PER_COMMIT_MAX: usize = 64;

/// Bytes after which a commit takes no further group. 1 MiB of small tasks becomes about 15 MiB of rows that wait for
/// their commit, and a replay that takes 64 full groups at once would need a gigabyte.
pub(crate) const COMMIT_BYTES_MAX: u64 = 4 << 20;

/// Entries read from the log at a time: with groups of 1 MiB, 32 MiB of memory.
pub(crate) const ENTRIES_PER_READ_MAX: u64 = 32;

/// Bytes of entries in one message to a follower, past the first entry: a few groups, for the same reason as
/// [`GROUP_BYTES_MAX`].
pub(crate) const REPLICATE_BYTES_MAX: usize = 4 * GROUP_BYTES_MAX;

/// A misbehaving sender could make every entry a warning; one line in ten seconds says as much.
pub(crate) const WARNING_EVERY: Duration = Duration::from_secs(10);

/// A leader confirms itself within one heartbeat round; after ten seconds something is wrong, and asking again is
/// cheap.
pub(crate) const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries to become leader, so that a node that cannot does not spin.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_millis(100);

/// Between two checkpoints that are due by their bytes: one takes an fsync at least, mostly far longer.
pub(crate) const CHECKPOINT_PAUSE: Duration = Duration::from_millis(100);

/// Between two looks whether the tables can still be written.
pub(crate) const TABLES_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Raft's tasks end within milliseconds of its stop; one that has not ended after a second never will.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(1);
