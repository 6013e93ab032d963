//! The search: is there an order of all steps, each between its operation's begin and end, that gives every answer?
//!
//! As Wing and Gong do: take any step that no other one must come before, and go on from there; as Lowe does: a set of steps
//! and a state that were met before lead nowhere new.

use super::model::{Branch, Step};
use super::{Answered, Asked, History, Operation};
use std::collections::{HashMap, HashSet};

/// More is not looked at: a history of a few dozen operations needs some thousands.
const STATES_MAX: usize = 5_000_000;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This order of operations explains the history; a commit is named twice, when it is announced and when it is performed.
    Explained(Vec<usize>),
    /// None does. The longest that explains a part is this one.
    Unexplained(Vec<usize>),
}

struct Search<'h> {
    history: &'h History,
    steps: Vec<Step>,
    /// Steps that must be taken in the end.
    required: u128,
    /// The places of commits in the longest log that was read.
    ranks: HashMap<usize, usize>,
    met: HashSet<(u128, Branch)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

/// Looks for an order that explains a history.
///
/// # Panics
/// If the history is too long to be searched.
pub fn explain(history: &History) -> Verdict {
    let history = &with_what_answers_tell(history);
    let mut steps = Vec::new();
    let is_known = |nth: &usize| history.operations[*nth].ended < u64::MAX;
    // What must happen is tried first: what may happen or not can mostly wait.
    let (known, unknown): (Vec<usize>, Vec<usize>) = (0..history.operations.len()).partition(is_known);
    for nth in known.iter().chain(&unknown).copied().filter(|nth| says_something(&history.operations[*nth])) {
        steps.push(Step::Act(nth));
        if matches!(history.operations[nth].asked, Asked::Commit | Asked::CommitInVain) {
            steps.push(Step::Perform(nth));
        }
    }
    assert!(steps.len() <= 128, "a history has at most 128 steps");
    let is_required = |step: &Step| is_known(&step.operation());
    let required = steps.iter().filter(|step| is_required(step)).count();
    let required = 1_u128.checked_shl(required as u32).map_or(u128::MAX, |above| above - 1);
    let (met, order, longest) = (HashSet::new(), Vec::new(), Vec::new());
    let logs = history.operations.iter().filter_map(|it| match &it.answered {
        Answered::Log(log) => Some(log),
        _ => None,
    });
    let longest_log = logs.max_by_key(|log| log.len()).into_iter().flatten();
    let ranks = longest_log.copied().enumerate().map(|(rank, nth)| (nth, rank)).collect();
    let mut search = Search { history, steps, required, ranks, met, order, longest };
    if search.go_on(0, &Branch::new(history.paths)) {
        Verdict::Explained(search.order)
    } else {
        Verdict::Unexplained(search.longest)
    }
}

/// A question that was not answered says nothing.
fn says_something(operation: &Operation) -> bool {
    let is_question = matches!(operation.asked, Asked::Get(..) | Asked::List(_) | Asked::Log);
    !(is_question && operation.answered == Answered::Unknown)
}

/// The same history, with the ends of operations that were cut off and whose effects were seen: they took effect before that.
/// The others have no end.
fn with_what_answers_tell(history: &History) -> History {
    let mut told = history.clone();
    for nth in 0..told.operations.len() {
        if told.operations[nth].answered != Answered::Unknown {
            continue;
        }
        let sees = |answered: &Answered| match (&history.operations[nth].asked, answered) {
            (Asked::Put(_, value) | Asked::PutIf(_, value, _), Answered::Value(seen)) => seen == value,
            (Asked::Put(_, value) | Asked::PutIf(_, value, _), Answered::Whole(seen)) => seen.contains(value),
            (Asked::Commit, Answered::Log(log)) => log.contains(&nth),
            _ => false,
        };
        let seen = history.operations.iter().filter(|it| sees(&it.answered)).map(|it| it.ended).min();
        told.operations[nth].ended = seen.unwrap_or(u64::MAX);
    }
    told
}

impl Search<'_> {
    /// Whether the steps that are left can be taken from here.
    fn go_on(&mut self, taken: u128, branch: &Branch) -> bool {
        if taken & self.required == self.required {
            return true;
        }
        if self.order.len() > self.longest.len() {
            self.longest.clone_from(&self.order);
        }
        let first_end = self.first_end(taken);
        for bit in 0..self.steps.len() {
            let step = self.steps[bit];
            let operation = &self.history.operations[step.operation()];
            // A step may come next if nothing that is left had ended before its operation began.
            if taken & (1 << bit) != 0 || operation.began > first_end || !self.is_in_log_order(step, taken) {
                continue;
            }
            let Some(next) = branch.after(step, operation) else { continue };
            let taken = taken | 1 << bit;
            assert!(self.met.len() < STATES_MAX, "the history has too much at the same time to be searched");
            if self.met.insert((taken, next.clone())) {
                self.order.push(step.operation());
                if self.go_on(taken, &next) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }

    /// Whether a commit is announced behind all those that the last log shows before it.
    fn is_in_log_order(&self, step: Step, taken: u128) -> bool {
        let Some(rank) = self.ranks.get(&step.operation()).filter(|_| matches!(step, Step::Act(_))) else {
            return true;
        };
        let is_taken = |(bit, it): (usize, &Step)| {
            taken & (1 << bit) != 0 && matches!(it, Step::Act(nth) if self.ranks.contains_key(nth))
        };
        self.steps.iter().enumerate().filter(|step| is_taken(*step)).count() == *rank
    }

    /// When the first of the operations that are left ended.
    fn first_end(&self, taken: u128) -> u64 {
        let left = (0..self.steps.len()).filter(|bit| (self.required & !taken) & (1 << bit) != 0);
        left.map(|bit| self.history.operations[self.steps[bit].operation()].ended).min().unwrap_or(u64::MAX)
    }
}
