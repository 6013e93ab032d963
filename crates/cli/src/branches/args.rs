//! What can be said of branches on the command line.

use crate::metadata::Pair;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Branches {
    #[command(subcommand)]
    pub(crate) command: BranchesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BranchesCommand {
    /// Create a branch: empty, or with what a commit or another branch holds
    Create {
        /// Its name, such as feeds/nl
        branch: String,
        /// A commit's id, or a branch whose head it begins with
        #[arg(long, value_name = "COMMIT|BRANCH")]
        from: Option<String>,
    },
    /// List branches, by name
    List {
        /// How many at most
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
        /// Where to go on, as the page before said
        #[arg(long, value_name = "NAME")]
        cursor: Option<String>,
    },
    /// Show a branch: its head, what is staged, commits that wait
    Show {
        /// The branch
        branch: String,
    },
    /// Stage a file, or all files of a folder; readers see them after the next commit
    Put(Put),
    /// Write what a path leads to, to stdout or into a file
    Get(Get),
    /// List paths
    Ls(Ls),
    /// Stage the removal of paths
    Rm {
        /// The branch
        branch: String,
        /// The paths
        #[arg(required = true)]
        paths: Vec<String>,
        /// Remove what lies below the paths, too
        #[arg(long, short)]
        recursive: bool,
    },
    /// Commit what is staged: all of it becomes visible at once
    Commit(Commit),
    /// List the commits that lead to a branch's head, newest first
    Log {
        /// The branch
        branch: String,
        /// How many at most
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
        /// Begin with this commit
        #[arg(long, value_name = "COMMIT")]
        from: Option<String>,
    },
    /// Show what is staged, or what differs between two versions
    Diff(Diff),
    /// Make a commit with what an earlier one held
    Rollback {
        /// The branch
        branch: String,
        /// The commit's id, or at least its first 8 digits
        commit: String,
        /// What to say of it
        #[arg(long, short, default_value = "", hide_default_value = true)]
        message: String,
    },
    /// Throw away what is staged and no commit has taken
    Reset {
        /// The branch
        branch: String,
    },
    /// Delete a branch with what is staged on it; its commits can still be read by their ids
    Delete {
        /// The branch
        branch: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The branch
    pub(crate) branch: String,
    /// The file or folder; `-` reads stdin
    pub(crate) file: PathBuf,
    /// The path, of a folder that of the folder [default: the file's name; files of a folder go to the top]
    pub(crate) path: Option<String>,
    /// What kind of bytes they are, such as text/csv
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    pub(crate) content_type: String,
    /// What else to say of them; may be given several times
    #[arg(long, value_name = "NAME=TEXT", value_parser = name_and_text)]
    pub(crate) metadata: Vec<(String, String)>,
    /// Only if the path leads to an object with this SHA-256; `*` for any
    #[arg(long, value_name = "SHA256", conflicts_with = "if_absent")]
    pub(crate) if_match: Option<String>,
    /// Only if the path leads nowhere
    #[arg(long)]
    pub(crate) if_absent: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The branch
    pub(crate) branch: String,
    /// The path
    pub(crate) path: String,
    /// Write it into this file, which must not be there
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The branch
    pub(crate) branch: String,
    /// Only paths that begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// List what lies below too, instead of one line for each folder
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// How many at most; all if not given
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// Where a branch is read.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// Read what is staged too
    #[arg(long, conflicts_with = "at")]
    pub(crate) staged: bool,
    /// Read a commit, by its id or at least its first 8 digits; or submission:ID, as if that were committed now
    #[arg(long, value_name = "COMMIT|submission:ID")]
    pub(crate) at: Option<String>,
}

impl At {
    /// As the interface has it.
    pub(crate) fn text(&self) -> Option<String> {
        if self.staged { Some("staged".into()) } else { self.at.clone() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Commit {
    /// The branch
    pub(crate) branch: String,
    /// What to say of it
    #[arg(long, short, default_value = "", hide_default_value = true)]
    pub(crate) message: String,
    /// More of that; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// A rule that must hold, such as 'entries >= 0.9 * previous'; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// A check that must agree, by the name that the server's settings give it; may be given several times
    #[arg(long = "check", value_name = "NAME")]
    pub(crate) checks: Vec<String>,
    /// Refuse if nothing is staged that no commit has taken
    #[arg(long)]
    pub(crate) if_changed: bool,
    /// Abort if its parent is not this commit
    #[arg(long, value_name = "COMMIT")]
    pub(crate) if_parent: Option<String>,
    /// How long to wait for it, such as 5m; 0s does not wait
    #[arg(long, value_parser = crate::args::milliseconds, default_value = "30s", value_name = "TIME")]
    pub(crate) wait: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The branch
    pub(crate) branch: String,
    /// What to compare: a commit, or another branch [default: the head]
    #[arg(long, value_name = "COMMIT|BRANCH")]
    pub(crate) from: Option<String>,
    /// What to compare it with: head, a commit, or another branch [default: what is staged]
    #[arg(long, value_name = "COMMIT|BRANCH")]
    pub(crate) to: Option<String>,
    /// Only paths that begin so
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

fn name_and_text(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is written NAME=TEXT")?;
    Ok((name.to_owned(), value.to_owned()))
}
