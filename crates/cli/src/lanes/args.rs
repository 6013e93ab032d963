//! What can be said of lanes on the command line.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use windlass_client::{LANE_PRIORITY_MAX, SubmissionId};

#[derive(Debug, Args)]
pub(crate) struct Lanes {
    #[command(subcommand)]
    pub(crate) command: LanesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LanesCommand {
    /// Create a lane; one that is there already stays as it is
    Create {
        /// Its name: letters, digits, `.`, `_` and `-`
        lane: String,
    },
    /// List lanes, by name
    List {
        /// How many at most
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
        /// Where to go on, as the page before said
        #[arg(long, value_name = "NAME")]
        cursor: Option<String>,
    },
    /// Show a lane: its depth, its keys, how far it is read and done
    Show {
        /// The lane
        lane: String,
        /// Only this key instead of the busiest ones; of a tenant, such as acme/, its busiest users too
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// So many of the busiest keys [default: 20]
        #[arg(long, value_name = "N", conflicts_with = "key")]
        keys: Option<usize>,
    },
    /// Hand out nothing more of a lane; what is out goes on
    Pause {
        /// The lane
        lane: String,
    },
    /// Hand out a paused lane again; let a drained one take tasks again
    Resume {
        /// The lane
        lane: String,
    },
    /// Take no more tasks into a lane; those that it has are handed out
    Drain {
        /// The lane
        lane: String,
    },
    /// Give keys a weight that goes before their tasks' own: `windlass lanes weigh emails tenant-7=5`
    ///
    /// It counts for tasks that are added from then on; `windlass lanes relevel` applies it to those that wait. The weight of a
    /// tenant, such as acme/=5, counts at once.
    Weigh {
        /// The lane
        lane: String,
        /// Keys and their weights, 0.001 to 10,000
        #[arg(value_name = "KEY=WEIGHT", value_parser = key_and_weight, required_unless_present = "unset")]
        weights: Vec<(String, f64)>,
        /// Let the tasks of this key go by their own weights again; may be given several times
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
    },
    /// Limit how much may be out or handed out at a time: `windlass lanes limit emails --each-key --in-flight 2`
    ///
    /// Without any option, the lane's limits are shown.
    Limit(Limit),
    /// Give the tasks that wait new levels, by the weights that their keys have by name
    Relevel {
        /// The lane
        lane: String,
        /// Only this key; may be given several times [default: all keys that have a weight by name]
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
    },
    /// Add tasks, and print their ids
    Add(Add),
    /// Say where a task stands, what is ahead of it, in its own priority and in higher ones, and what is in its way
    Explain {
        /// The lane
        lane: String,
        /// The task
        #[arg(value_parser = task_id)]
        task: SubmissionId,
    },
    /// Show the tasks that have failed for good, grouped by what their last attempts said
    Dead {
        /// The lane
        lane: String,
    },
    /// Try dead tasks again, as if they had just been added
    Redrive {
        /// The lane
        lane: String,
        /// The tasks
        #[arg(value_name = "TASK", value_parser = task_id, conflicts_with_all = ["reason", "all"], required_unless_present_any = ["reason", "all"])]
        tasks: Vec<SubmissionId>,
        /// Those of which the last attempt's reason begins with this
        #[arg(long, value_name = "TEXT", conflicts_with = "all", value_parser = reason)]
        reason: Option<String>,
        /// All that are dead
        #[arg(long)]
        all: bool,
    },
}

fn task_id(text: &str) -> Result<SubmissionId, String> {
    text.parse().map_err(|_| {
        "a task's id is a decimal number between 1 and 2^63 - 1, as `windlass lanes add` printed it".into()
    })
}

/// The begin of a reason; that of all of them is said otherwise, and not by a variable that happens to be empty.
fn reason(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("write how the reason begins, or --all in its place".into())
    } else {
        Ok(text.into())
    }
}

/// A number, and none of the words that are read as one, such as NaN.
fn number(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|number: &f64| number.is_finite());
    parsed.ok_or_else(|| "write a number, such as 2.5".into())
}

/// Reads `key=weight`; the key may hold `=` itself.
fn key_and_weight(text: &str) -> Result<(String, f64), String> {
    let parsed = text.rsplit_once('=').and_then(|(key, weight)| Some((key.to_owned(), number(weight).ok()?)));
    parsed.ok_or_else(|| "write a key and its weight, a number, as in tenant-7=2.5".into())
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").multiple(true).args(["in_flight", "per_second", "lift", "exempt"]))]
pub(crate) struct Limit {
    /// The lane, whose limit it is unless another one is named
    pub(crate) lane: String,
    /// Of each key that has no limit by its name
    #[arg(long, requires = "what", conflicts_with_all = ["each_tenant", "key"])]
    pub(crate) each_key: bool,
    /// Of each tenant that has no limit by its name: all its users together
    #[arg(long, requires = "what", conflicts_with = "key")]
    pub(crate) each_tenant: bool,
    /// Of this key, or of a tenant, such as acme/; may be given several times
    #[arg(long, value_name = "KEY", requires = "what")]
    pub(crate) key: Vec<String>,
    /// Tasks that may be with consumers at the same time; 0 hands out nothing
    #[arg(long, value_name = "N")]
    pub(crate) in_flight: Option<u32>,
    /// Tasks that may be handed out a second, such as 5 or 0.2
    #[arg(long, value_name = "RATE", value_parser = number, allow_negative_numbers = true)]
    pub(crate) per_second: Option<f64>,
    /// So many at once after a pause [default: 1]
    #[arg(long, value_name = "N", requires = "per_second")]
    pub(crate) burst: Option<u32>,
    /// Lift the limit
    #[arg(long, conflicts_with_all = ["in_flight", "per_second", "burst", "exempt"])]
    pub(crate) lift: bool,
    /// Let this key go without the limit of each key, or this tenant without that of each tenant; --lift ends that
    #[arg(long, requires = "key", conflicts_with_all = ["in_flight", "per_second", "burst", "each_key", "each_tenant"])]
    pub(crate) exempt: bool,
}

impl Limit {
    /// Whether nothing is set or lifted: then the limits are shown.
    pub(crate) const fn is_look(&self) -> bool {
        self.in_flight.is_none() && self.per_second.is_none() && !self.lift && !self.exempt
    }
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The lane
    pub(crate) lane: String,
    /// Read tasks from a file, one JSON object to a line, such as {"key": "tenant-7", "payload": "…"}; `-` reads stdin
    ///
    /// They are added up to 1,000 at a time. With --json the ids of each batch are printed as one JSON document on a line of its own.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "object", "key", "weight", "priority", "delay", "not_before", "attempts_max", "retry_delay"])]
    pub(crate) from: Option<PathBuf>,
    /// What the consumer gets
    #[arg(long, value_name = "TEXT")]
    pub(crate) payload: Option<String>,
    /// The object with what the consumer gets
    #[arg(long, value_name = "NAME", conflicts_with = "payload")]
    pub(crate) object: Option<String>,
    /// Whose task it is: keys share the lane by weight, and users, as in tenant/user, what their tenant gets
    #[arg(long, default_value = "")]
    pub(crate) key: String,
    /// A key of weight 2 gets twice as much as one of weight 1 [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = number, allow_negative_numbers = true)]
    pub(crate) weight: Option<f64>,
    /// 0 to 9; higher goes first, whatever the keys
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(..=i64::from(LANE_PRIORITY_MAX)))]
    pub(crate) priority: u8,
    /// Hand it out only after so long, such as 5s or 10m
    #[arg(long, value_parser = crate::args::milliseconds, value_name = "TIME")]
    pub(crate) delay: Option<u64>,
    /// Hand it out only from this time on, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    pub(crate) not_before: Option<String>,
    /// How often it may be tried [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<u32>,
    /// How long the first retry waits; each further one twice as long [default: 1s]
    #[arg(long, value_parser = crate::args::milliseconds, value_name = "TIME")]
    pub(crate) retry_delay: Option<u64>,
    /// The same key within a day adds the same task [default: a new one]
    ///
    /// With --from each batch gets a key made of it and the number of its first line, so that the same command can be run again after an
    /// unclear end, or when a bad line is mended: nothing is added twice. It has at most 234 bytes then.
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}
