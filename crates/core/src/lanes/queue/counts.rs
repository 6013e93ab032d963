//! Counts of a queue: what is said of it without a walk over its flows, of which there may be a hundred thousand.
//!
//! Invariants
//! - A queue counts what its flows hold: they come and go, and whatever changes what they hold is done to them, through this file only.

use super::{Flow, Queue, Stand};
use std::sync::Arc;

/// See the file's head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::lanes) struct Counts {
    /// Tasks that are ready in memory.
    pub ready: usize,
    /// Tasks that are out.
    pub out: usize,
    /// Keys and tenants that a limit is in the way of.
    pub parked: usize,
}

impl Counts {
    fn add(&mut self, it: Counts) {
        self.ready += it.ready;
        self.out += it.out;
        self.parked += it.parked;
    }

    fn take(&mut self, it: Counts) {
        self.ready -= it.ready;
        self.out -= it.out;
        self.parked -= it.parked;
    }
}

impl Queue {
    /// What it holds, flows included.
    pub(in crate::lanes) fn counts(&self) -> Counts {
        let mut counts = self.of_flows;
        counts.ready += self.reader.ready_len();
        counts.out += self.reader.out_len();
        counts
    }

    /// The same, counted anew, for the audit.
    pub(in crate::lanes) fn recount(&self) -> Counts {
        let mut counts = Counts { ready: self.reader.ready_len(), out: self.reader.out_len(), parked: 0 };
        for flow in self.flows.values() {
            counts.add(flow.counted(flow.queue.recount()));
        }
        counts
    }

    /// Changes a flow, if it is there.
    pub(super) fn change<T>(&mut self, name: &str, change: impl FnOnce(&mut Flow) -> T) -> Option<T> {
        let flow = self.flows.get_mut(name)?;
        self.of_flows.take(flow.counts());
        let done = change(flow);
        self.of_flows.add(flow.counts());
        Some(done)
    }

    pub(super) fn add_flow(&mut self, name: Arc<str>, flow: Flow) {
        self.of_flows.add(flow.counts());
        let before = self.flows.insert(name, flow);
        assert!(before.is_none(), "only what is no flow yet becomes one");
    }

    pub(super) fn remove_flow(&mut self, name: &str) {
        if let Some(flow) = self.flows.remove(name) {
            self.of_flows.take(flow.counts());
        }
    }
}

impl Flow {
    fn counts(&self) -> Counts {
        self.counted(self.queue.counts())
    }

    /// What is parked as a whole counts as one.
    fn counted(&self, of_queue: Counts) -> Counts {
        match self.stand {
            Stand::Parked => Counts { parked: 1, ..of_queue },
            Stand::InLine | Stand::Resting => of_queue,
        }
    }
}
