//! The one binary: `windlass`.
//!
//! Data goes to stdout, talk to stderr. Reading order: `args` (what can be said), `exit` (how it can end), then one file
//! for each command.

mod args;
mod bars;
mod branches;
mod changing;
mod demo;
mod exit;
mod explain;
mod lanes;
mod log;
mod metadata;
mod results;
mod serve;
mod signals;
mod status;
mod submissions;
mod submit;
mod table;
mod top;
mod weights;
mod work;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use exit::{Exit, print};
use std::process::ExitCode;

/// The server makes and drops small pieces all the time, on other threads than they came from.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let done = match command {
        Command::Serve(it) => serve::run(&global, it).await,
        Command::Demo(it) => demo::run(&global, it).await,
        Command::Submit(it) => submit::run(&global, it).await,
        Command::Work(it) => work::run(&global, it).await,
        Command::Submissions(it) => submissions::run(&global, it).await,
        Command::Explain(it) => explain::run(&global, it).await,
        Command::Top(it) => top::run(&global, it).await,
        Command::Weights(it) => weights::run(&global, it).await,
        Command::Lanes(it) => lanes::run(&global, it).await,
        Command::Branches(it) => branches::run(&global, it).await,
        Command::Status => status::run(&global).await,
        Command::Completions { shell } => completions(shell),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    print(&script)
}
