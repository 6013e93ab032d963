//! The figures of a run, as they are kept: the page and the plots can be made from them again.

use crate::system::{Kind, median};
use serde::{Deserialize, Serialize};

/// Everything that a run measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) machine: String,
    /// The commit that Windlass was built from, as far as the harness can tell.
    pub(crate) commit: String,
    pub(crate) seconds: f64,
    pub(crate) repetitions: usize,
    pub(crate) backlog: u64,
    pub(crate) bulk: u64,
    pub(crate) fill_seconds: f64,
    pub(crate) systems: Vec<Named>,
    pub(crate) loads: Vec<Load>,
    pub(crate) fills: Vec<Fill>,
    pub(crate) backlogs: Vec<Backlog>,
    /// What did not go as planned, in sentences.
    pub(crate) remarks: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// One system, one kind of load, one way, so many clients: a value of each list for each repetition.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) system: String,
    #[serde(flatten)]
    pub(crate) kind: Kind,
    pub(crate) way: String,
    pub(crate) consumers: usize,
    pub(crate) rates: Vec<f64>,
    /// CPU seconds of the server for 10^5 chunks.
    pub(crate) server_cpu: Vec<f64>,
    /// CPU seconds of the clients for 10^5 chunks; empty where they run in a process of their own.
    pub(crate) client_cpu: Vec<f64>,
    /// Which part of the machine others used meanwhile.
    pub(crate) others: Vec<f64>,
    /// What a bare fsync took just before.
    pub(crate) sync_us: Vec<f64>,
}

impl Load {
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.clone()).unwrap_or(0.0)
    }
}

/// One system, one way in: a rate for each repetition.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) system: String,
    pub(crate) way: String,
    pub(crate) rates: Vec<f64>,
    /// CPU seconds of the server for 10^5 chunks.
    pub(crate) server_cpu: Vec<f64>,
    /// The fewest chunks that were in when the time ran out.
    pub(crate) filled: u64,
}

impl Fill {
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.clone()).unwrap_or(0.0)
    }
}

/// One system with so many chunks in it; none where it could not be filled in time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Backlog {
    pub(crate) system: String,
    pub(crate) chunks: u64,
    pub(crate) memory_bytes: f64,
    pub(crate) disk_bytes: f64,
    pub(crate) reserve_us: Option<f64>,
    pub(crate) cycle_us: Option<f64>,
}

impl Figures {
    /// The better of a system's ways of a kind of load, leaving out those that `leaves_out` names.
    pub(crate) fn best_load(
        &self,
        system: &str,
        kind: Kind,
        consumers: usize,
        leaves_out: &[&str],
    ) -> Option<&Load> {
        self.loads
            .iter()
            .filter(|it| {
                it.system == system
                    && it.kind == kind
                    && it.consumers == consumers
                    && !leaves_out.contains(&it.way.as_str())
            })
            .max_by(|a, b| a.rate().total_cmp(&b.rate()))
    }

    /// The better of a system's ways in.
    pub(crate) fn best_fill(&self, system: &str) -> Option<&Fill> {
        self.fills.iter().filter(|it| it.system == system).max_by(|a, b| a.rate().total_cmp(&b.rate()))
    }

    pub(crate) fn consumers(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.loads.iter().map(|it| it.consumers).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}
