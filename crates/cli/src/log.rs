//! The log on stderr.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// How lines of the log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON object to a line
    Json,
}

/// Starts the log. `WINDLASS_LOG` says what to log if it is set, in the way of `RUST_LOG`; else `-v` does.
pub(crate) fn start(verbose: u8, quiet: &str, format: Format) {
    let level = match verbose {
        0 => quiet,
        1 => "info",
        _ => "debug",
    };
    let asked = std::env::var("WINDLASS_LOG").ok().and_then(|text| text.parse().ok());
    let filter = asked.unwrap_or_else(|| EnvFilter::new(level));
    let colour =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    // A second start in one process keeps the first log.
    let _ = match format {
        Format::Text => log.try_init(),
        Format::Json => log.json().try_init(),
    };
}
