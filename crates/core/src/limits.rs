//! Limits: every maximum of the machine, with its reason.

/// A chunk's index must fit the 32-bit number of its block times 4,096 with room to spare; a thousand times 10^9 is
/// far past what one queue is made for.
pub const CHUNKS_PER_SUBMISSION_MAX: u64 = 1 << 40;

/// Chunks a block row covers: a bitmap of 512 bytes, small enough to rewrite with every applied batch.
pub const CHUNKS_PER_BLOCK: u64 = 4_096;

/// One frame of work must stay under 1 MiB, and a chunk's line in it is at most 64 bytes.
pub const CHUNKS_PER_RESERVE_MAX: usize = 16_384;

/// A reserve is answered with at most 8 MiB, so that metadata beyond it would be gathered in vain: 16,384 submissions of 32 long
/// fields have 170 MB of it.
pub const PLAIN_METADATA_BYTES_PER_RESERVE_MAX: usize = 8 << 20;

/// Chunks that one command may settle: as many as one reserve can hand out.
pub const CHUNKS_PER_SETTLE_MAX: usize = CHUNKS_PER_RESERVE_MAX;

/// Metadata is for choosing work, not for carrying it: its fields are indexed one by one.
pub const METADATA_FIELDS_MAX: usize = 32;

/// A field's name is part of every index key of it.
pub const METADATA_FIELD_BYTES_MAX: usize = 64;

/// A value is part of its index key too.
pub const METADATA_VALUE_BYTES_MAX: usize = 256;

/// The opaque blob travels with every frame that hands out chunks of its submission.
pub const OPAQUE_BYTES_MAX: usize = 64 * 1_024;

/// An inline payload lives in the log and in the tables; larger bytes belong into the object store.
pub const INLINE_PAYLOAD_BYTES_MAX: usize = 64 * 1_024;

/// Inline outputs live in the log and in the tables too, one for each chunk.
pub const INLINE_OUTPUT_BYTES_MAX: usize = 16 * 1_024;

/// Longer prefixes would not leave room for chunk names within an object key's 512 bytes.
pub const OBJECT_PREFIX_BYTES_MAX: usize = 256;

/// Idempotency keys are meant to be UUIDs or hashes; this leaves room for a readable prefix.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// A reason is for a person to read; a stack trace's head fits.
pub const FAILURE_REASON_BYTES_MAX: usize = 1_024;

/// More attempts than this mean that somebody wants a loop, not a retry.
pub const ATTEMPTS_MAX_MAX: u32 = 1_000;

/// Somebody who retries the failed more often than this has a loop that should look at the reasons.
pub const ROUNDS_MAX: u32 = 10_000;

/// A consumer that vanishes may have been stopped for a deploy; a chunk whose consumers keep vanishing is what kills them.
pub const CONSUMER_LOSSES_PER_FAILURE: u32 = 3;

/// How long a chunk whose consumers keep vanishing waits for its failure to be counted.
pub const LOSS_DELAY_MS: u64 = 1_000;

/// Attempts a chunk gets if its submission does not say.
pub const ATTEMPTS_MAX_DEFAULT: u32 = 5;

/// The first retry waits this long if its submission does not say; each further one twice as long.
pub const RETRY_DELAY_MS_DEFAULT: u64 = 1_000;

/// A retry never waits longer than this, so that a repaired consumer soon sees every chunk again.
pub const RETRY_DELAY_MS_MAX: u64 = 10 * 60_000;

/// Clients repeat a lost request within minutes; a day also covers a queue that was down overnight.
pub const DEDUP_WINDOW_MS: u64 = 24 * 60 * 60_000;

/// A million replies of about 100 bytes are 100 MB of disk.
pub const DEDUP_WINDOW_REPLIES_MAX: u64 = 1_000_000;

/// Each submit closes at most this many expired replies: the window shrinks faster than it grows, and no apply waits.
pub const DEDUP_EXPIRED_PER_APPLY_MAX: usize = 4;

/// A process sends under an id of its own, and one leads at a time: these are those of many changes of leader, all of which would
/// have to be forgotten before an entry of the first could count twice, if it came again under an epoch that holds.
pub const DEDUP_SENDERS_MAX: usize = 64;

/// Strategies nest by hand or by a small program; evaluating one costs its depth.
pub const STRATEGY_DEPTH_MAX: usize = 16;

/// Parts of a strategy in all: each one may need a view of its own.
pub const STRATEGY_PARTS_MAX: usize = 64;

/// A strategy as text is written by hand or printed from one; 64 parts of 256 bytes are more than anybody reads.
pub const STRATEGY_TEXT_BYTES_MAX: usize = 16 * 1_024;

/// A value of the largest weight gets a million turns for one of another: past that, leaving the other out is honest.
pub const FAIR_WEIGHT_MAX: u32 = 1_000_000;

/// Weights travel with every reserve; values that have none weigh 1, so only the exceptions are named.
pub const FAIR_WEIGHTS_MAX: usize = 1_000;

/// A year: a priority that rises more slowly than this does not rise while anybody waits for it.
pub const AGING_MS_MAX: u64 = 365 * 24 * 60 * 60_000;

/// A page of a list fits a screen many times over and a response of about 1 MiB.
pub const PAGE_ROWS_MAX: usize = 1_000;

/// Rows that one page of a filtered list may look at; the cursor goes on from there.
pub const PAGE_LOOKED_AT_MAX: usize = 4_000;

/// Alternatives that a strategy may come down to: each is a view of its own, and a reserve may try them all.
pub const STRATEGY_ALTERNATIVES_MAX: usize = 32;

/// Turns within turns: each is a part of every key in the views of its strategy.
pub const STRATEGY_TURNS_MAX: usize = 4;

/// Strategies in use at once. Consumers of one kind share theirs; more than this many kinds are a mistake in a program.
pub const STRATEGIES_IN_USE_MAX: usize = 1_024;

/// Views that look at every submission: each makes each change of a submission dearer, by about a microsecond.
pub const WIDE_VIEWS_MAX: usize = 64;

/// Books of turns that are kept for strategies that come back: as many as there may be wide views.
pub const BOOKS_CLOSED_MAX: usize = 64;

/// Turns in all of them: some megabytes.
pub const TURNS_CLOSED_MAX: usize = 65_536;

/// A strategy that nobody has used for so long is forgotten, with its views.
pub const STRATEGY_IDLE_MS_MAX: u64 = 60_000;

/// Values in work that an explanation looks at for each limit: a few milliseconds, in which nobody is served.
pub const VALUES_LOOKED_AT_MAX: usize = 4_000;

/// Values that an overview looks at for one field, and for all limits together: it is asked for once a second and more.
pub const OVERVIEW_VALUES_MAX: usize = 4_000;

/// Reservations of sessions that an overview counts: a few milliseconds.
pub const OVERVIEW_RESERVATIONS_MAX: usize = 100_000;

/// Submissions that an explanation counts ahead of one: a few milliseconds, in which nobody is served.
pub const COUNTED_AHEAD_MAX: u64 = 100_000;

/// Values at their limit that an explanation names one by one: the worst are enough to see what is wrong.
pub const SATURATED_SHOWN: usize = 10;

/// Turns that an explanation shows ahead.
pub const TURNS_SHOWN: usize = 5;

/// Submissions that a view under construction takes in at a time: a few milliseconds, in which nobody else is served.
pub const VIEW_BUILD_STEP: usize = 8_192;

/// Sessions named in one entry about who may hold work under a hard limit: a group of connects, not all of them.
pub const ROSTER_SESSIONS_PER_COMMAND_MAX: usize = 1_000;

/// Values of a field with a weight of their own: they are one row, and in memory.
pub const WEIGHTS_PER_FIELD_MAX: usize = 10_000;

/// A thousandth: a key of this weight gets one task for a thousand of a key of weight 1. Less is better left out.
pub const LANE_WEIGHT_MILLI_MIN: u32 = 1;

/// Ten thousand: strides are whole numbers, and up to here they are exact to half a percent.
pub const LANE_WEIGHT_MILLI_MAX: u32 = 10_000_000;

/// A key is part of its rows' keys, and in memory while it has tasks that wait.
pub const LANE_KEY_BYTES_MAX: usize = 64;

/// A lane's name is written by hand, and part of paths.
pub const LANE_NAME_BYTES_MAX: usize = 64;

/// Keys of a lane with a weight of their own: they are part of its row, and in memory.
pub const LANE_WEIGHTS_MAX: usize = 1_000;

/// Keys and tenants of a lane with a limit of their own: they are part of its row, and in memory.
pub const LANE_LIMITS_MAX: usize = 1_000;

/// Tasks in flight that a limit can name: more than consumers could hold.
pub const LANE_IN_FLIGHT_MAX: u32 = 1_000_000;

/// A rate is kept by the millisecond: a million a second are a thousand at a time.
pub const LANE_RATE_MILLI_MAX: u64 = 1_000_000_000;

/// What may go out at once after a pause.
pub const LANE_BURST_MAX: u32 = 1_000_000;

/// Tasks of a lane that are not done: a key counts its own in 32 bits.
pub const LANE_TASKS_MAX: u64 = 4_000_000_000;

/// Tasks that one command counts: a few milliseconds of applying.
pub const TASKS_COUNTED_PER_COMMAND_MAX: usize = 5_000;

/// Tasks that one command gives new levels: a few milliseconds of applying.
pub const TASKS_RELEVELED_PER_COMMAND_MAX: usize = 500;

/// Tasks that one command puts in order key by key: a few milliseconds of applying.
pub const TASKS_ORDERED_PER_COMMAND_MAX: usize = 2_000;

/// Ids that a group of tasks spans: a task's position in it is one byte, and its row of some kilobytes is decoded whole to find one
/// task by its id alone.
pub const TASKS_PER_GROUP_MAX: usize = 256;

/// So many tasks that are added together share a row; fewer have one each, which is found sooner.
pub const TASKS_PER_GROUP_MIN: usize = 8;

/// Each lane is in memory with the next tasks of its priorities: 4,096 of about 120 bytes, so half a gigabyte for a thousand
/// lanes of one priority, and some thirty megabytes more for one with thousands of tenants. Tenants are told apart by keys.
pub const LANES_MAX: usize = 1_000;

/// Keys of a rank that have no tasks, and whose last turn is not over: their tags are in memory, a hundred bytes each. Of more, those
/// that are nearest to their next turn are forgotten, and get their next task early.
pub const LANE_IDLE_KEYS_MAX: usize = 1_000_000;

/// Ten priorities: each has a buffer of its own.
pub const LANE_PRIORITY_MAX: u8 = 9;

/// A payload lives in the log and in the tables; larger ones belong into the object store.
pub const TASK_PAYLOAD_BYTES_MAX: usize = 256 * 1_024;

/// Ten years: who means longer means never.
pub const TASK_DELAY_MS_MAX: u64 = 10 * 365 * 24 * 60 * 60 * 1_000;

/// The year 9000: later times have no usual text.
pub const TASK_NOT_BEFORE_MS_MAX: u64 = 221_845_392_000_000;

/// One entry stays under a megabyte or so, and is one frame of the log.
pub const TASK_PAYLOADS_BYTES_MAX: usize = 1_024 * 1_024;

/// Tasks in one command: a few milliseconds of applying.
pub const TASKS_PER_ADD_MAX: usize = 1_000;

/// Tasks that one command reports as done: as many as one adds. More are put into several.
pub const TASKS_PER_COMPLETE_MAX: usize = TASKS_PER_ADD_MAX;

/// A payload up to here stands beside its task's level; larger ones would make every look at the next tasks dear.
pub const TASK_PAYLOAD_IN_ROW_BYTES_MAX: usize = 1_024;

/// Ready tasks of one rank in memory (the seed's Bt).
pub const LANE_BUFFER_TASKS: usize = 4_096;

/// At so few, more are read.
pub const LANE_RELOAD_AT: usize = 1_024;

/// Ready tasks of one tenant, or of one key at its limit, in memory.
pub const LANE_FLOW_BUFFER_TASKS: usize = 64;

/// At so few more of them are read.
pub const LANE_FLOW_RELOAD_AT: usize = 16;

/// Tenants and keys at their limits that have ready tasks in memory, in one rank or tenant. Of more, those that were read first are
/// let go, and read again when it is their turn.
pub const LANE_FLOWS_LOADED_MAX: usize = 4_096;

/// Ready tasks of all of these in one rank, whoever they belong to: 64 for each of so many, of about 100 bytes each. A quarter of it may
/// be those of the users of one tenant.
pub const LANE_FLOW_TASKS_MAX: usize = LANE_FLOWS_LOADED_MAX * LANE_FLOW_BUFFER_TASKS;

/// Tenants and keys whose next tasks are read while one is waited for.
pub const LANE_FLOWS_READ_AHEAD: usize = 64;

/// Leases that are looked at for the first ones on tasks of a lane and of keys: about a millisecond.
pub const LEASES_LOOKED_AT_MAX: usize = 4_096;

/// Flows that are next in line and looked at for the oldest task that is next: a tenth of a millisecond, however many there are.
pub const LANE_FLOWS_LOOKED_AT: usize = 1_000;

/// Keys of a lane whose shares are remembered: about 100 bytes each.
pub const LANE_USAGE_KEYS_MAX: usize = 1_024;

/// Delayed tasks that one command makes ready: a few milliseconds of applying.
pub const TASKS_DUE_PER_COMMAND_MAX: usize = 1_000;

/// So many tasks of a rank are done before the leader notes how far everything is: what a new leader's first read may
/// have to step over.
pub const LANE_ACK_EVERY_TASKS: u64 = 4_096;

/// Or so much time has passed.
pub const LANE_ACK_EVERY_MS: u64 = 10_000;

/// Queues whose ack levels are noted together: they share a log write, and take a small part of what may be on its way to it.
pub const LANE_ACKS_AT_ONCE: usize = 256;

/// How long after these the next ones are noted, if more have come on: 10^5 tenants take two minutes, in a thirtieth of what the log takes.
pub const LANE_ACKS_PAUSE_MS: u64 = 300;

/// A path is an S3 key's length, so that what is named in a bucket can be named here.
pub const PATH_BYTES_MAX: usize = 1_024;

/// A branch's name is written by hand, and part of addresses.
pub const BRANCH_NAME_BYTES_MAX: usize = 128;

/// The longest media types with parameters have about 100.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;

/// As much as S3 takes for an object.
pub const ENTRY_METADATA_BYTES_MAX: usize = 2_048;

/// As long as an object's key may be.
pub const OBJECT_ADDRESS_BYTES_MAX: usize = 512;

/// Branches are all in memory, about 300 bytes each. Prefixes of paths divide a branch further.
pub const BRANCHES_MAX: usize = 100_000;

/// A message is for a person to read; a long changelog belongs into an object.
pub const COMMIT_MESSAGE_BYTES_MAX: usize = 4_096;

/// Commits of one branch that wait: each is a line of the branch's row, which every change of it writes anew. Those of
/// submissions wait beyond it, since nobody is there to be refused.
pub const COMMITS_WAITING_MAX: usize = 1_000;

/// Staging areas of one branch: a read of what is staged looks into each of them.
pub const STAGING_AREAS_MAX: usize = 1_000;

/// Entries staged in one area. They are rows on disk, and one commit walks over them.
pub const STAGED_ENTRIES_MAX: u64 = 1_000_000_000;

/// Paths in one command: a few milliseconds of applying.
pub const PATHS_PER_STAGE_MAX: usize = 1_000;

/// One entry of the log stays under a megabyte or so, with what is said of each path.
pub const PATHS_BYTES_PER_STAGE_MAX: usize = 256 * 1_024;

/// Addresses that are granted at a time: their row has a bit for each.
pub const ADDRESSES_PER_GRANT_MAX: u32 = 1_000;

/// Outputs that one chunk may have: one entry of the log stays under a megabyte or so.
pub const OUTPUTS_PER_CHUNK_MAX: usize = 1_000;

/// Outputs in one report of several chunks, for the same reason.
pub const OUTPUTS_PER_REPORT_MAX: usize = 4_000;

/// Rows that one command removes or looks at. A row takes a few microseconds, applied and brought into the tables, and a put
/// that comes meanwhile waits for all of them: half a thousand should take no longer than its own fsyncs do.
pub const STAGED_ROWS_PER_SWEEP_MAX: usize = 500;

/// Files that are noted at a time; each is some megabytes.
pub const FILES_PER_NOTE_MAX: usize = 1_000;

/// Chunks that a commit names as missing: enough to see which; the submission lists all.
pub const MISSING_CHUNKS_NAMED_MAX: usize = 1_000;

/// A reason is for a person to read; what a check printed is cut there.
pub const ABORT_REASON_BYTES_MAX: usize = 4_096;

/// Rules of one commit.
pub const RULES_PER_COMMIT_MAX: usize = 32;

/// Checks of one commit: they run one after the other.
pub const CHECKS_PER_COMMIT_MAX: usize = 8;

/// A check's name is written by hand in the settings.
pub const CHECK_NAME_BYTES_MAX: usize = 64;
