//! What can be said on the command line.

use crate::branches::args::Branches;
use crate::exit::{CODES, Exit};
use crate::lanes::args::Lanes;
use crate::metadata::Pair;
use clap::{ArgAction, Args, Parser, Subcommand};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use windlass_client::branches::ChunkFailureRule;
use windlass_client::{Client, OnFailure, Strategy, SubmissionId, SubmissionState};

/// Moves work too big to run in one go, one chunk at a time.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_help = CODES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// The server's address
    #[arg(
        long,
        global = true,
        env = "WINDLASS_SERVER",
        default_value = "http://127.0.0.1:7420",
        value_name = "URL"
    )]
    pub(crate) server: String,
    /// What to show the server, or what `serve` asks callers for
    #[arg(long, global = true, env = "WINDLASS_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// How long to try again when the server cannot be reached, in milliseconds
    #[arg(long, global = true, env = "WINDLASS_RETRY_FOR_MS", default_value_t = 2_000, value_name = "MS")]
    pub(crate) retry_for_ms: u64,
    /// Print data as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say more on stderr; twice for even more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Global {
    /// A client of the server that was named.
    pub(crate) fn client(&self) -> Result<Client, Exit> {
        crate::log::start(self.verbose, "warn", crate::log::Format::Text);
        let client = Client::new(&self.server)?.retrying_for(Duration::from_millis(self.retry_for_ms));
        Ok(match &self.token {
            Some(token) => client.with_token(token)?,
            None => client,
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a server
    ///
    /// Flags go over the environment, that over the file, that over the defaults.
    Serve(Serve),
    /// See it at work: a server, two tenants' submissions and some consumers, all in this process
    Demo(Demo),
    /// Hand in work, and print the submission's id
    Submit(Submit),
    /// Work on chunks with a command of yours
    ///
    /// The command gets a chunk on stdin, and WINDLASS_SUBMISSION, WINDLASS_CHUNK, WINDLASS_ATTEMPT, WINDLASS_METADATA
    /// (JSON) in its environment; for a task of a lane WINDLASS_LANE and WINDLASS_KEY, too. What it writes to stdout is the
    /// chunk's output (of a task, nothing is kept). If the submission names an output branch, files that it leaves in the
    /// folder WINDLASS_OUTPUTS go there, under their paths. If it fails, the chunk is tried again,
    /// with the end of its stderr as the reason. Ctrl-C finishes what runs and gives back the rest; a second one stops at
    /// once.
    Work(Work),
    /// Look at submissions, wait for them, change, pause and end them, read their results
    Submissions(Submissions),
    /// What a strategy would hand out next and why; with a submission, why that one waits
    Explain(Explain),
    /// The queue at a glance, live: depth, rates, who gets how much, limits, consumers
    Top(Top),
    /// How much of the work each value of a field gets by the strategy `Fair`
    Weights(Weights),
    /// Fair queues of single tasks: create them, add tasks, look at them; `work --strategy 'Lane(NAME)'` works on one
    Lanes(Lanes),
    /// Outputs that appear all at once: put files, commit, look at what was committed, go back
    Branches(Branches),
    /// How the server is
    Status,
    /// Print a completion script for your shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Weights {
    #[command(subcommand)]
    pub(crate) command: WeightsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WeightsCommand {
    /// The weights of all fields; values that are not listed have 1
    List,
    /// Give values of a field a weight: `windlass weights set company_id acme=3 7=2`
    Set {
        /// The metadata field
        field: String,
        /// Values and their weights, 1 to 1,000,000
        #[arg(required = true, value_name = "VALUE=WEIGHT", value_parser = crate::weights::value_and_weight)]
        weights: Vec<(String, u32)>,
    },
    /// Put values of a field back to the weight 1
    Unset {
        /// The metadata field
        field: String,
        /// The values
        #[arg(required = true, value_name = "VALUE")]
        values: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// A TOML file with settings, named as the flags are, with `_` for `-`
    #[arg(long, env = "WINDLASS_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:7420]; port 0 takes a free one
    #[arg(long, env = "WINDLASS_LISTEN", value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// The folder for everything that must survive [default: windlass-data]
    #[arg(long, env = "WINDLASS_DATA", value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// The object store: a folder, or a URL such as s3://bucket/prefix [default: in the data folder]
    #[arg(long, env = "WINDLASS_OBJECTS", value_name = "WHERE")]
    pub(crate) objects: Option<String>,
    /// The largest object that may be put, in bytes [default: 5368709120, which is 5 GiB]
    #[arg(long, env = "WINDLASS_OBJECT_BYTES_MAX", value_name = "BYTES")]
    pub(crate) object_bytes_max: Option<u64>,
    /// Consumers show that they live this often [default: 10000]
    #[arg(long, env = "WINDLASS_HEARTBEAT_MS", value_name = "MS")]
    pub(crate) heartbeat_ms: Option<u64>,
    /// A consumer's session outlives its connection this long [default: 30000]
    #[arg(long, env = "WINDLASS_GRACE_MS", value_name = "MS")]
    pub(crate) grace_ms: Option<u64>,
    /// At a stop, consumers have this long to report [default: 5000]
    #[arg(long, env = "WINDLASS_DRAIN_MS", value_name = "MS")]
    pub(crate) drain_ms: Option<u64>,
    /// Connections at the same time [default: 30000]
    #[arg(long, env = "WINDLASS_CONNECTIONS_MAX", value_name = "N")]
    pub(crate) connections_max: Option<usize>,
    /// How the server's log on stderr looks
    #[arg(long, env = "WINDLASS_LOG_FORMAT", value_enum, default_value_t = crate::log::Format::Text)]
    pub(crate) log_format: crate::log::Format,
    /// Print the settings that hold, and stop
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Keep the server's data here, instead of in a folder that goes with the demo
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Consumers
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) consumers: usize,
    /// Chunks for each tenant
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub(crate) chunks: usize,
    /// Stop when the work is done, also on a terminal
    #[arg(long)]
    pub(crate) exit: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Operations (lines) in each chunk
    #[arg(long, default_value = "1000", value_name = "N", requires = "chunks_from")]
    pub(crate) chunk_size: NonZeroUsize,
    /// With --chunks: chunk i's bytes are the object PREFIX/i
    #[arg(long, requires = "chunks", conflicts_with_all = ["chunks_from", "payload"])]
    pub(crate) prefix: Option<String>,
    /// What strategies and searches go by; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// For the strategy CustomPriority: higher goes first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i64,
    /// How often a chunk may be tried [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<u32>,
    /// How long the first retry waits, such as 5s or 250ms; each further one twice as long [default: 1s]
    #[arg(long = "retry-delay", value_parser = milliseconds, value_name = "TIME")]
    pub(crate) retry_delay_ms: Option<u64>,
    /// When a chunk is out of attempts: skip the rest, or go on with it [default: stop]
    #[arg(long, value_parser = on_failure, value_name = "stop|continue")]
    pub(crate) on_failure: Option<OnFailure>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Handed to every consumer as it is
    #[arg(long, value_name = "TEXT")]
    pub(crate) opaque: Option<String>,
    /// The same key within a day gives the same submission [default: a new one]
    #[arg(long, value_name = "KEY", conflicts_with = "chunks_from")]
    pub(crate) idempotency_key: Option<String>,
    /// Wait until it is over; the exit code says how it ended
    #[arg(long)]
    pub(crate) wait: bool,
}

/// Where the outputs go, all at once.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Commit the outputs to this branch when the last chunk is done
    #[arg(long = "output", value_name = "BRANCH")]
    pub(crate) branch: Option<String>,
    /// What becomes of the branch's entries: they stay, those under a prefix go, or all go
    #[arg(long, requires = "branch", default_value = "append", value_name = "append|replace:PREFIX|exact")]
    pub(crate) output_mode: String,
    /// When a chunk has failed for good: commit nothing, or commit the others
    #[arg(long, requires = "branch", value_parser = on_chunk_failure, default_value = "abort", value_name = "abort|commit-without")]
    pub(crate) on_chunk_failure: ChunkFailureRule,
    /// A rule that the commit must keep, such as 'entries >= 0.9 * previous'; may be given several times
    #[arg(long = "rule", requires = "branch", value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// A check that must agree to the commit, by the name that the server's settings give it; may be given several times
    #[arg(long = "check", requires = "branch", value_name = "NAME")]
    pub(crate) checks: Vec<String>,
}

fn on_chunk_failure(text: &str) -> Result<ChunkFailureRule, String> {
    match text {
        "abort" => Ok(ChunkFailureRule::Abort),
        "commit-without" => Ok(ChunkFailureRule::CommitWithout),
        _ => Err("it is `abort` or `commit-without`".into()),
    }
}

/// Where the chunks come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Source {
    /// Read operations from a file, one to a line; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) chunks_from: Option<PathBuf>,
    /// One chunk, with these bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) payload: Option<String>,
    /// So many chunks, whose bytes are elsewhere or nowhere
    #[arg(long, value_name = "N")]
    pub(crate) chunks: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Work {
    /// What to run for each chunk, through `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: String,
    /// How many run at the same time
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) concurrency: usize,
    /// Which chunks first: a name such as Random, OldestFirst or NewestFirst, or blocks within blocks such as
    /// 'OrElse(SelectOnly(mode=preview), Fair(company_id))'; JSON will do too
    #[arg(long, value_parser = strategy, default_value = "Random")]
    pub(crate) strategy: Strategy,
    /// How many chunks to hold beyond those that run [default: as many as end in 100 ms, up to 1024; at least 4, and as many as run]
    #[arg(long, value_name = "N")]
    pub(crate) prefetch: Option<usize>,
    /// Stop when there was nothing to do for so long, and nothing waits for a retry, its time or a rate
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) until_idle: Option<u64>,
    /// How long running chunks may take after Ctrl-C before they are given back
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) shutdown_for: u64,
    /// A name for people to read [default: the host's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The strategy, as `work` takes it
    #[arg(long, value_parser = strategy, default_value = "Random")]
    pub(crate) strategy: Strategy,
    /// A submission, to be told why it is or is not handed out
    #[arg(value_name = "SUBMISSION")]
    pub(crate) submission: Option<SubmissionId>,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The metadata field whose values are shown [default: one that a strategy in use goes by]
    #[arg(long)]
    pub(crate) field: Option<String>,
    /// How often to look
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s", value_name = "TIME")]
    pub(crate) interval: Duration,
    /// Print one look as plain text, taken over one interval; so it is without a terminal, too
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Submissions {
    #[command(subcommand)]
    pub(crate) command: SubmissionsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SubmissionsCommand {
    /// List submissions, newest first
    List(List),
    /// Show one, with what went wrong in it
    Show {
        /// The submission
        id: SubmissionId,
    },
    /// Wait until one is over; the exit code says how it ended
    Wait {
        /// The submission
        id: SubmissionId,
    },
    /// Say anew what is said of running ones: their priority, metadata and limits
    Change(Change),
    /// Hand out nothing more of running ones; what is out goes on
    Pause(Which),
    /// Hand out paused ones again
    Resume(Which),
    /// End running ones; their remaining chunks are skipped
    Cancel(Which),
    /// Give what failed or was skipped another round
    RetryFailed(Which),
    /// Write the outputs of one in the order of its chunks, as they come
    Results(Results),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only those in this state
    #[arg(long, value_parser = state, value_name = "running|completed|failed|cancelled")]
    pub(crate) state: Option<SubmissionState>,
    /// Only those with this metadata; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// How many at most
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub(crate) limit: usize,
    /// Where to go on, as the page before said
    #[arg(long, value_name = "ID")]
    pub(crate) cursor: Option<SubmissionId>,
}

/// Which submissions: named one by one, or all that match.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The submissions
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["matching", "state"],
        conflicts_with_all = ["matching", "state"]
    )]
    pub(crate) ids: Vec<SubmissionId>,
    /// Instead of ids: all with this metadata; may be given several times. They are counted, and you are asked
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    pub(crate) matching: Vec<Pair>,
    /// Instead of ids, or with --where: those in this state [default: those that it can be done with]
    #[arg(long, value_parser = state, value_name = "running|completed|failed|cancelled")]
    pub(crate) state: Option<SubmissionState>,
    /// Only count them
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do it without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

/// What should be different; what is not named stays as it is.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Wanted {
    /// For the strategy CustomPriority: higher goes first
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) priority: Option<i64>,
    /// Put a metadata field, or replace its value; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<Pair>,
    /// Take a metadata field away; may be given several times
    #[arg(long, value_name = "FIELD")]
    pub(crate) unset: Vec<String>,
    /// How often a chunk may be tried, from its next failure on
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<u32>,
    /// How long the first retry waits, such as 5s or 250ms; each further one twice as long
    #[arg(long = "retry-delay", value_parser = milliseconds, value_name = "TIME")]
    pub(crate) retry_delay_ms: Option<u64>,
    /// When the next chunk is out of attempts: skip the rest, or go on with it
    #[arg(long, value_parser = on_failure, value_name = "stop|continue")]
    pub(crate) on_failure: Option<OnFailure>,
}

#[derive(Debug, Args)]
pub(crate) struct Results {
    /// The submission
    pub(crate) id: SubmissionId,
    /// Write here instead of to stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Pass over chunks that failed or were skipped, instead of stopping there
    #[arg(long)]
    pub(crate) skip_failed: bool,
    /// List the output branch as if the submission were committed now
    #[arg(long, conflicts_with_all = ["output", "skip_failed"])]
    pub(crate) staged: bool,
}

/// A time such as 5s, in milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<u64, humantime::DurationError> {
    Ok(u64::try_from(humantime::parse_duration(text)?.as_millis()).unwrap_or(u64::MAX))
}

fn on_failure(text: &str) -> Result<OnFailure, String> {
    named(text, "`stop` or `continue`")
}

fn state(text: &str) -> Result<SubmissionState, String> {
    named(text, "`running`, `completed`, `failed` or `cancelled`")
}

fn named<T: serde::de::DeserializeOwned>(text: &str, names: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("it is {names}"))
}

fn strategy(text: &str) -> Result<Strategy, String> {
    if text.trim_start().starts_with(['{', '"']) {
        let clue = "as text it is shorter, such as 'SelectOnly(tenant=acme)'";
        return serde_json::from_str(text).map_err(|error| format!("{error}; {clue}"));
    }
    Strategy::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_its_help_names_the_exit_codes() {
        Cli::command().debug_assert();
        assert!(Cli::command().render_help().to_string().contains("3  the server cannot be reached"));
    }

    #[test]
    fn a_strategy_is_text_or_json() {
        let nested = strategy("OrElse(SelectOnly(mode=preview), Fair(company_id))").unwrap();
        assert_eq!(nested.to_string(), "OrElse(SelectOnly(mode=preview, Random), Fair(company_id))");
        assert_eq!(strategy(&serde_json::to_string(&nested).unwrap()), Ok(nested));
        assert_eq!(strategy(" OldestFirst"), Ok(Strategy::OldestFirst));
        assert_eq!(strategy(" \"Random\""), Ok(Strategy::Random));
    }

    #[test]
    fn a_mistake_in_a_strategy_is_shown_with_its_place_and_in_json_with_a_shorter_way_to_say_it() {
        let refused = |text| {
            let args = ["windlass", "work", "--exec", "cat", "--strategy", text];
            Cli::try_parse_from(args).expect_err(text).to_string()
        };
        let begin = |text| format!("error: invalid value '{text}' for '--strategy <STRATEGY>': ");
        let misplaced = refused("MaxSimultaneous(company_id)");
        let shown = "expected `,` and a limit such as 10 or 25% after the field
  MaxSimultaneous(company_id)
                            ^
";
        assert!(misplaced.starts_with(&(begin("MaxSimultaneous(company_id)") + shown)), "{misplaced}");
        let unknown = refused("Nope");
        assert!(unknown.contains("`Nope` is no strategy; there are Random, "), "{unknown}");
        assert!(unknown.contains(" and Lane"), "{unknown}");
        for json in ["{", "{\"Random\": 3}", "{\"Lane\": {}}", "\"Randm\""] {
            assert!(refused(json).contains("such as 'SelectOnly(tenant=acme)'"), "{json}");
        }
    }
}
