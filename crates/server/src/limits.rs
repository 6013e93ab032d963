//! The doors' own maximums and times, with their reasons. The machine's are in `windlass_core::limits`.

use std::time::Duration;
use windlass_core::limits::LANE_WEIGHTS_MAX;

/// A JSON body holds at most a report of 16,384 chunks of about 120 bytes each, and some room.
pub const JSON_BODY_BYTES_MAX: usize = 4 * 1_024 * 1_024;

/// The largest object unless the settings say otherwise: as large as S3 takes in one piece, so that other tools can copy it.
pub const OBJECT_BYTES_MAX_DEFAULT: u64 = 5 << 30;

/// The largest object that the settings can allow: 10,000 parts of 8 MiB, which is what S3 takes, are 78 GiB.
pub const OBJECT_BYTES_MAX_MAX: u64 = 64 << 30;

/// A long wait must end before common proxies cut a silent connection after five minutes.
pub const WAIT_MS_MAX: u64 = 300_000;

/// How long `wait` waits if the caller does not say.
pub const WAIT_MS_DEFAULT: u64 = 30_000;

/// A reserve that waits longer than this should be a WebSocket.
pub const RESERVE_WAIT_MS_MAX: u64 = 60_000;

/// An answer to a plain reserve repeats what is said of a submission for each chunk; one larger than this is cut short.
pub const RESERVE_ANSWER_BYTES: usize = 4 * 1_024 * 1_024;

/// A lease shorter than this is over before a slow network has carried the answer.
pub const LEASE_MS_MIN: u64 = 1_000;

/// A lease longer than this keeps a chunk of a vanished caller away from all others for too long; extend it instead.
pub const LEASE_MS_MAX: u64 = 24 * 60 * 60_000;

/// Rows of a page if the caller does not say.
pub const PAGE_ROWS_DEFAULT: usize = 100;

/// Troubles shown with a submission: enough to see what is wrong.
pub const TROUBLES_SHOWN: usize = 10;

/// Reserves that one session may have waiting: more would only hide a client that forgot its requests.
pub const RESERVES_PER_SESSION_MAX: usize = 64;

/// Reports of one session that may be on their way through the log; then the session is not read until some are answered.
pub const REPORTS_PER_SESSION_MAX: usize = 256;

/// Memory for what is said of running submissions that are not plain: of 300,000 of them with a few short fields each. A million
/// pending ones take 180 bytes each without it, and under 300 with all caches.
pub const ABOUTS_AT_HAND_BYTES_MAX: u64 = 32 * 1_024 * 1_024;

/// Rows of it that are read in one go when it is brought there, about.
pub const ABOUTS_BROUGHT_AT_ONCE_BYTES: usize = 1_024 * 1_024;

/// What the frames of one reserve carry, apart from chunks' names: tasks of 256 KiB each would fill the memory by the thousand.
pub const RESERVE_WORK_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// A frame of work is cut off here and goes on in the next.
pub const WORK_FRAME_BYTES: usize = 512 * 1_024;

/// Submissions that one event stream may name: as many ids fit a URL of 64 KiB.
pub const EVENTS_SUBMISSIONS_MAX: usize = 3_000;

/// Announcements that wait for one watcher: about 10 MB. Nobody who reads falls so far behind.
pub const UNREAD_MAX: usize = 100_000;

/// Progress of the same submission is told at most this often on one stream.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// An event stream that is silent longer than this might be dead: a comment line shows that it is not.
pub const EVENTS_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A dead connection is noticed after this many silent heartbeats.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;

/// Consumers that an overview shows: those with the most in work.
pub const CONSUMERS_SHOWN: usize = 50;

/// Strategies that an overview shows: those that the most reserves wait for.
pub const STRATEGIES_SHOWN: usize = 20;

/// Values and limits of an overview if the caller does not say.
pub const OVERVIEW_ROWS_DEFAULT: usize = 20;

/// More rows than this nobody reads at once.
pub const OVERVIEW_ROWS_MAX: usize = 200;

/// How long an explanation waits for the views of a strategy that nobody has used yet: a million submissions are looked at
/// in a few seconds.
pub const EXPLAIN_PATIENCE: Duration = Duration::from_secs(20);

/// Rows that a bulk verb looks at under one lock of the machine: a few milliseconds, in which nothing is applied.
pub const BULK_STEP_ROWS: usize = 1_000;

/// Commands of a bulk verb on their way at once. They share log writes; a few rounds of them fill a group, and
/// others' commands wait behind at most this many.
pub const BULK_IN_FLIGHT_MAX: usize = 256;

/// Refusals that a bulk verb tells one by one: enough to see what is wrong.
pub const BULK_REFUSALS_SHOWN: usize = 20;

/// How much longer than asked for leases under hard limits are noted in the log: one entry a minute at most, and a new
/// leader waits up to a minute longer than it needs to.
pub const LEASE_COVER_MS: u64 = 60_000;

/// Reports of all consumers together on their way through the log: about a kilobyte each where nothing larger comes with them. Beyond that, a
/// consumer that has one under way is not read until it is answered, so that many quick consumers cannot fill the memory.
pub const REPORTS_MAX: usize = 32_768;

/// Bytes of the frames of those reports, added tasks with their payloads among them: each is in memory about three times, as it was read,
/// in the log's write, and among the log's newest entries. A consumer that has nothing under way may send one more frame.
pub const REPORT_BYTES_MAX: usize = 64 * 1_024 * 1_024;

/// The same of one session, as many as the largest frame has: four additions of a megabyte are enough to keep the log busy while their producer
/// hears of others. What is above it is one frame at most, since a frame is read whole.
pub const REPORT_BYTES_PER_SESSION_MAX: usize = 4 * 1_024 * 1_024;

/// What a consumer's connection reads at a time. Most frames are a tenth of that, and the WebSocket library fills the whole with
/// zeros before each look: with a thousand consumers, larger ones would drive everything else out of the processor's cache.
/// A frame of a megabyte then takes a thousand reads.
pub const READ_BUFFER_BYTES: usize = 1_024;

/// Keys of a lane that are shown: what fits on a screen.
pub const LANE_KEYS_SHOWN: usize = 20;

/// Keys or tenants of a lane that are looked at in one go: about a millisecond under the machine's lock, or the Dispatcher's, for which
/// the applier waits.
pub const LANE_KEYS_LOOKED_AT_ONCE: usize = 8_192;

/// Keys, or tenants, that are looked at for what goes before a single task: some tenths of a second, in which nobody else waits.
pub const LANE_KEYS_LOOKED_AT_MAX: usize = 1_000_000;

/// Steps in one request to put a lane's tasks in order key by key: fifty thousand tasks, well within a second.
pub const ORDER_KEYS_STEPS_PER_REQUEST: usize = 25;

/// Steps of a relevel in one request: some ten thousand tasks.
pub const RELEVEL_STEPS_PER_REQUEST: usize = 20;

/// Steps of a redrive in one request, each with a write of its own: up to twenty thousand tasks, within a second or so.
pub const REDRIVE_STEPS_PER_REQUEST: usize = 20;

/// Keys that one relevel names: only those with a weight by their name can be meant, and a lane has no more of these.
pub const RELEVEL_KEYS_MAX: usize = LANE_WEIGHTS_MAX;

/// Dead tasks that are looked at for their reasons in one go: a few milliseconds under the machine's lock.
pub const DEAD_LOOKED_AT_ONCE: usize = 4_000;

/// Dead tasks that are looked at for their reasons in all: a second or so, in which nobody else waits.
pub const DEAD_LOOKED_AT_MAX: usize = 1_000_000;

/// Different reasons that are counted at a time: ten megabytes, if each is as long as it may be. With more, the rarest are forgotten.
pub const DEAD_GROUPS_COUNTED_MAX: usize = 10_000;

/// Reasons that are kept when there are too many, the most frequent ones: one that is not rare is among them.
pub const DEAD_GROUPS_KEPT: usize = 1_000;

/// Reasons that are shown: enough to see what is wrong.
pub const DEAD_GROUPS_MAX: usize = 100;

/// Tasks that are named for each reason.
pub const DEAD_EXAMPLES: usize = 5;

/// Tasks ahead of another that are counted: ten milliseconds or so, in which nobody waits.
pub const TASKS_AHEAD_COUNTED_MAX: usize = 10_000;

/// Commits of different branches that are made at the same time: each may hold some ranges of a few megabytes in memory.
pub const COMMITS_AT_ONCE: usize = 4;

/// A commit that could not be made is tried again after this long, and after twice as long each time,
pub const COMMIT_RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);

/// up to this.
pub const COMMIT_RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Staged rows that are read at a time: about a megabyte.
pub const STAGED_ROWS_AT_ONCE: usize = 4_096;

/// A check that takes longer has failed: the commits behind it wait.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(300);

/// What is shown of what a check said.
pub const CHECK_OUTPUT_BYTES: usize = 1_024;
