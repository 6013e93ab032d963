//! The report: figures, their bars, and whether they hold.

use crate::Set;
use std::fmt::Write as _;

/// One figure with its bar.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) what: String,
    /// The figure.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// What it must be.
    pub(crate) bar: Bar,
    /// The raw measurements behind it.
    pub(crate) behind: String,
}

/// What a figure must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// For information.
    None,
}

impl Figure {
    /// The same, shown to whoever waits for the rest.
    pub(crate) fn told(self) -> Figure {
        eprintln!("  {} {} {} ({})", self.what, short(self.value), self.unit, self.behind);
        self
    }

    pub(crate) fn holds(&self) -> bool {
        match self.bar {
            Bar::AtMost(bar) => self.value <= bar,
            Bar::AtLeast(bar) => self.value >= bar,
            Bar::None => true,
        }
    }

    fn bar_text(&self) -> String {
        match self.bar {
            Bar::AtMost(bar) => format!("≤ {}", short(bar)),
            Bar::AtLeast(bar) => format!("≥ {}", short(bar)),
            Bar::None => String::new(),
        }
    }
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

/// The figures as a Markdown table.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut text = String::from("| what | figure | bar | holds | measured |\n|---|---|---|---|---|\n");
    for it in figures {
        let holds = if it.holds() { "yes" } else { "**no**" };
        let line = format!(
            "| {} | {} {} | {} | {holds} | {} |",
            it.what,
            short(it.value),
            it.unit,
            it.bar_text(),
            it.behind
        );
        writeln!(text, "{line}").expect("writing into memory does not fail");
    }
    text
}

/// The page for the documentation.
pub(crate) fn page(figures: &[Figure], set: Set, seconds: u64) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "# {}\n\n\
         Written by `{}` ({seconds} s for each measurement; {cores} cores, Linux {}), with client and server on the same\n\
         machine. Ratios of measurements within one run are what counts: absolute figures differ from machine to machine\n\
         and from hour to hour. Everything acknowledged is fsynced first. All pages: [Windlass by itself](benchmarks.md), [each\n\
         strategy](benchmarks-strategies.md), [ten million submissions](benchmarks-ten-million.md), [a hundred million tasks](benchmarks-lanes.md),\n\
         [a branch of ten million entries](benchmarks-branches.md), [beside its peers](benchmarks-peers.md).\n\n{}",
        set.title(),
        set.target(),
        kernel.trim(),
        table(figures)
    )
}
