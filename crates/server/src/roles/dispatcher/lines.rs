//! Lines: reserves that wait for work, one line for each strategy.
//!
//! When work becomes ready, only the lines that it may be for are looked at; among those, whoever came first is first.
//!
//! Invariants
//! - Within a line, and among lines that can be served, first come is first served.

use super::event::{Ask, Asker};
use super::sessions::Sessions;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use windlass_core::batch::views::PlanId;

/// Below this many, forgetting withdrawn asks is not worth a walk.
const LOOKED_AT_MIN: usize = 1_024;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Lines {
    lines: HashMap<PlanId, VecDeque<(u64, Ask)>>,
    next: u64,
    len: usize,
    look_at_from: usize,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { lines: HashMap::new(), next: 0, len: 0, look_at_from: LOOKED_AT_MIN }
    }

    /// Whether somebody waits for this plan.
    pub(super) fn has(&self, plan: PlanId) -> bool {
        self.lines.contains_key(&plan)
    }

    /// Puts an ask at the end of its line.
    pub(super) fn push(&mut self, plan: PlanId, ask: Ask, sessions: &Sessions) {
        self.lines.entry(plan).or_default().push_back((self.next, ask));
        self.next += 1;
        self.len += 1;
        if self.len >= self.look_at_from {
            self.drop_withdrawn(sessions);
        }
    }

    /// Puts an ask back to the front of its line, where it was.
    pub(super) fn push_front(&mut self, plan: PlanId, number: u64, ask: Ask) {
        self.lines.entry(plan).or_default().push_front((number, ask));
        self.len += 1;
    }

    /// Takes the ask that came first among these plans'.
    pub(super) fn pop_first(&mut self, plans: &BTreeSet<PlanId>) -> Option<(PlanId, u64, Ask)> {
        let fronts = plans.iter().filter_map(|plan| Some((self.lines.get(plan)?.front()?.0, *plan)));
        let (_, plan) = fronts.min()?;
        let line = self.lines.get_mut(&plan)?;
        let (number, ask) = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&plan);
        }
        self.len -= 1;
        Some((plan, number, ask))
    }

    /// Takes the asks of a plan that do not wish to wait.
    pub(super) fn take_impatient(&mut self, plan: PlanId) -> Vec<Ask> {
        let Some(line) = self.lines.remove(&plan) else { return Vec::new() };
        let (impatient, patient): (VecDeque<_>, VecDeque<_>) =
            line.into_iter().partition(|(_, ask)| matches!(ask.asker, Asker::Lease { wait: false, .. }));
        self.len -= impatient.len();
        if !patient.is_empty() {
            self.lines.insert(plan, patient);
        }
        impatient.into_iter().map(|(_, ask)| ask).collect()
    }

    /// Takes everything, first come first.
    pub(super) fn take_all(&mut self) -> Vec<Ask> {
        self.len = 0;
        let all: BTreeMap<u64, Ask> = self.lines.drain().flat_map(|(_, line)| line).collect();
        all.into_values().collect()
    }

    /// How many wait whose answer somebody still waits for.
    pub(super) fn count(&self, sessions: &Sessions) -> usize {
        self.asked(sessions).count()
    }

    /// Everything that waits and whose answer somebody still waits for, with its plan.
    pub(super) fn asked<'a>(&'a self, sessions: &'a Sessions) -> impl Iterator<Item = (PlanId, &'a Ask)> {
        let all = self.lines.iter().flat_map(|(plan, line)| line.iter().map(|(_, ask)| (*plan, ask)));
        all.filter(|(_, ask)| is_asked(sessions, ask))
    }

    /// Forgets asks that were withdrawn, each time their number has doubled: O(1) for each ask.
    fn drop_withdrawn(&mut self, sessions: &Sessions) {
        self.lines.retain(|_, line| {
            line.retain(|(_, ask)| is_asked(sessions, ask));
            !line.is_empty()
        });
        self.len = self.lines.values().map(VecDeque::len).sum();
        self.look_at_from = LOOKED_AT_MIN.max(2 * self.len);
    }
}

/// Whether somebody still waits for the answer.
pub(super) fn is_asked(sessions: &Sessions, ask: &Ask) -> bool {
    match &ask.asker {
        Asker::Session { session, .. } => sessions.connection(*session).is_some(),
        Asker::Lease { reply, .. } => !reply.is_closed(),
    }
}
