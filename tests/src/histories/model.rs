//! The model: what a branch does, one step at a time.
//!
//! A commit has two steps: it is announced, which fixes what it holds, and performed, which makes that visible, or aborted.
//! Commits are performed in the order in which they are announced. What is read as staged is the head with everything on top
//! that was put since, so that none of these steps changes it.

use super::{Answered, Asked, NOTHING, Operation, Place, Value, Whole};

/// A step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The only step, or of a commit the first.
    Act(usize),
    /// A commit becomes visible, or is aborted.
    Perform(usize),
}

impl Step {
    /// The operation.
    pub(super) const fn operation(self) -> usize {
        match self {
            Step::Act(nth) | Step::Perform(nth) => nth,
        }
    }
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Branch {
    head: Whole,
    staged: Whole,
    queue: Vec<(usize, Whole)>,
    log: Vec<usize>,
}

impl Branch {
    /// An empty one with so many paths.
    pub(super) fn new(paths: usize) -> Branch {
        let empty = vec![NOTHING; paths];
        Branch { head: empty.clone(), staged: empty, queue: Vec::new(), log: Vec::new() }
    }

    fn at(&self, place: Place) -> &Whole {
        match place {
            Place::Head => &self.head,
            Place::Staged => &self.staged,
        }
    }

    /// The branch after a step of this operation, if the step can be taken now and the answer fits.
    pub(super) fn after(&self, step: Step, operation: &Operation) -> Option<Branch> {
        match step {
            Step::Act(nth) => self.after_act(nth, operation),
            Step::Perform(nth) if operation.asked == Asked::CommitInVain => self.after_abort(nth),
            Step::Perform(nth) => self.after_perform(nth, &operation.answered),
        }
    }

    fn after_act(&self, nth: usize, operation: &Operation) -> Option<Branch> {
        let answered = &operation.answered;
        let mut next = self.clone();
        let fits = match (&operation.asked, answered) {
            (Asked::Put(path, value), _) => next.put(*path, *value),
            (Asked::Remove(path), _) => next.put(*path, NOTHING),
            (Asked::PutIf(path, _, wanted), Answered::Refused) => self.staged[*path] != *wanted,
            (Asked::PutIf(path, value, wanted), _) => {
                self.staged[*path] == *wanted && next.put(*path, *value)
            }
            (Asked::Reset, _) => {
                // What a commit has taken is its own, even if it is aborted later.
                next.staged.clone_from(self.queue.last().map_or(&self.head, |(_, whole)| whole));
                true
            }
            (Asked::Commit | Asked::CommitInVain, _) => {
                next.queue.push((nth, self.staged.clone()));
                true
            }
            (Asked::Get(place, path), Answered::Value(value)) => self.at(*place)[*path] == *value,
            (Asked::List(place), Answered::Whole(whole)) => self.at(*place) == whole,
            (Asked::Log, Answered::Log(log)) => self.log == *log,
            // A question that was not answered says nothing.
            (Asked::Get(..) | Asked::List(_) | Asked::Log, _) => *answered == Answered::Unknown,
        };
        fits.then_some(next)
    }

    fn put(&mut self, path: usize, value: Value) -> bool {
        self.staged[path] = value;
        true
    }

    fn after_abort(&self, nth: usize) -> Option<Branch> {
        let is_first = self.queue.first().is_some_and(|(first, _)| *first == nth);
        is_first.then(|| {
            let mut next = self.clone();
            next.queue.remove(0);
            next
        })
    }

    fn after_perform(&self, nth: usize, answered: &Answered) -> Option<Branch> {
        let (first, whole) = self.queue.first()?;
        let entries = whole.iter().filter(|value| **value != NOTHING).count();
        let fits = *answered == Answered::Unknown || *answered == Answered::Done(entries);
        (*first == nth && fits).then(|| {
            let mut next = self.clone();
            next.head = next.queue.remove(0).1;
            next.log.push(nth);
            next
        })
    }
}
