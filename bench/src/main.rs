//! Benchmarks: what Windlass costs, as ratios within one run, since machines are noisy.
//!
//! `make bench` builds the release binary, runs every section and writes docs/benchmarks.md. A section that misses its bar
//! makes the run fail.

mod filler;
mod leader;
mod load;
mod peer;
mod process;
mod report;
mod sections;
mod strategies;

use clap::Parser;
use std::path::PathBuf;

/// What to run, and where to write.
#[derive(Debug, Parser)]
struct Options {
    /// The release binary to measure.
    #[arg(long, default_value = "target/release/windlass")]
    windlass: PathBuf,
    /// The peer's driver; its section is left out if it is not built.
    #[arg(long, default_value = "bench/opsqueue/target/release/opsqueue-bench")]
    opsqueue: PathBuf,
    /// Where the figures go.
    #[arg(long, default_value = "docs/benchmarks.md")]
    report: PathBuf,
    /// Which sections: those of `make bench`, or the long ones.
    #[arg(long, value_enum, default_value_t = Set::Usual)]
    set: Set,
    /// Only sections whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only strategies whose text contains this, in the sections that measure each.
    #[arg(long, default_value = "")]
    strategy: String,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
}

/// Sections that are run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Set {
    /// `make bench`.
    Usual,
    /// `make bench-strategies`: what a reserve costs, for every strategy.
    Strategies,
    /// `make bench-ten-million`: ten million pending submissions.
    TenMillion,
    /// `make bench-lanes`: a hundred million tasks in a lane.
    Lanes,
    /// `make bench-branches`: a branch of ten million entries.
    Branches,
}

impl Set {
    const fn title(self) -> &'static str {
        match self {
            Set::Usual => "Benchmarks",
            Set::Strategies => "Benchmarks: what a reserve costs",
            Set::TenMillion => "Benchmarks: ten million submissions",
            Set::Lanes => "Benchmarks: a hundred million tasks",
            Set::Branches => "Benchmarks: a branch of ten million entries",
        }
    }

    /// What a person types to run it.
    const fn target(self) -> &'static str {
        match self {
            Set::Usual => "make bench",
            Set::Strategies => "make bench-strategies",
            Set::TenMillion => "make bench-ten-million",
            Set::Lanes => "make bench-lanes",
            Set::Branches => "make bench-branches",
        }
    }
}

impl Options {
    /// Whether a strategy is to be measured.
    fn wants(&self, strategy: &str) -> bool {
        let is_in_set = self.set == Set::Strategies || strategies::USUAL.contains(&strategy);
        is_in_set && strategy.contains(&self.strategy)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let figures = sections::run(&options).await?;
    print!("{}", report::table(&figures));
    if options.only.is_empty() && options.strategy.is_empty() {
        std::fs::write(&options.report, report::page(&figures, options.set, options.seconds))?;
        eprintln!("written to {}", options.report.display());
    }
    let missed: Vec<&str> = figures.iter().filter(|it| !it.holds()).map(|it| it.what.as_str()).collect();
    anyhow::ensure!(missed.is_empty(), "these figures miss their bar: {}", missed.join("; "));
    Ok(())
}
