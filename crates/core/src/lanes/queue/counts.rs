//! Counts of a queue: what is said of it without a walk over its flows, of which there may be a hundred thousand.
//!
//! Invariants
//! - A queue counts what its flows hold, and knows in order how far all is done in those of keys: they come and go, and whatever changes
//!   what they hold is done to them, through this file only.

use super::{Flow, Queue, Stand};
use crate::lanes::levels::{Level, is_tenant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How far everything is done in each flow of a key that has something left; in some not even that is known.
pub(super) type Undone = BTreeSet<(Option<Level>, Arc<str>)>;

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

    /// How far everything is done in flows of keys, looked up anew, for the audit.
    pub(in crate::lanes) fn is_undone_in_order(&self) -> bool {
        let undone: Undone = self.flows.values().filter_map(Flow::undone).collect();
        undone == self.undone && self.flows.values().all(|flow| flow.queue.is_undone_in_order())
    }

    /// Changes a flow, if it is there.
    pub(super) fn change<T>(&mut self, name: &str, change: impl FnOnce(&mut Flow) -> T) -> Option<T> {
        let flow = self.flows.get_mut(name)?;
        self.of_flows.take(flow.counts());
        let before = flow.undone();
        let done = change(flow);
        self.of_flows.add(flow.counts());
        let after = flow.undone();
        if before != after {
            if let Some(before) = before {
                self.undone.remove(&before);
            }
            self.undone.extend(after);
        }
        Some(done)
    }

    pub(super) fn add_flow(&mut self, name: Arc<str>, flow: Flow) {
        self.of_flows.add(flow.counts());
        self.undone.extend(flow.undone());
        let before = self.flows.insert(name, flow);
        assert!(before.is_none(), "only what is no flow yet becomes one");
    }

    pub(super) fn remove_flow(&mut self, name: &str) {
        if let Some(flow) = self.flows.remove(name) {
            self.of_flows.take(flow.counts());
            if let Some(undone) = flow.undone() {
                self.undone.remove(&undone);
            }
        }
    }
}

impl Flow {
    /// How far everything is done in it, if it is one of a key and has something left. Levels of users are not those of the rank.
    fn undone(&self) -> Option<(Option<Level>, Arc<str>)> {
        let name = self.queue.name.of.as_ref().filter(|name| !is_tenant(name) && self.queue.has_undone())?;
        Some((self.queue.undone_from(), name.clone()))
    }

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
