//! Histories: what concurrent callers asked of one branch, what they were answered, and whether one order explains it.
//!
//! Reading order: this file (what a history is), `model` (what a branch does, one step at a time), `search` (is there an order
//! of steps that explains the history?), `running` (how histories come about).

mod model;
pub mod running;
mod search;

pub use search::{Verdict, explain};

use std::fmt;

/// A path, as its place among the few that a history knows.
pub type PathNth = usize;

/// What a path leads to; each put of a history puts another value. 0 is nothing.
pub type Value = u16;

/// Nothing.
pub const NOTHING: Value = 0;

/// What all paths lead to.
pub type Whole = Vec<Value>;

/// Where a branch is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// What is committed.
    Head,
    /// The same, with what is staged on top.
    Staged,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Leads a path to a value.
    Put(PathNth, Value),
    /// The same, if it leads to the second value.
    PutIf(PathNth, Value, Value),
    /// Leads a path to nothing.
    Remove(PathNth),
    /// Commits what is staged.
    Commit,
    /// The same with a rule that does not hold, so that it is aborted and everything stays staged.
    CommitInVain,
    /// Throws away what is staged and no commit has taken.
    Reset,
    /// What a path leads to.
    Get(Place, PathNth),
    /// What all paths lead to.
    List(Place),
    /// Which operations' commits lead to the head, oldest first.
    Log,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// It is done; of a commit, with so many entries.
    Done(usize),
    /// Its condition did not hold, or its rule.
    Refused,
    /// A path's value.
    Value(Value),
    /// All values.
    Whole(Whole),
    /// The commits, by the operations that asked for them.
    Log(Vec<usize>),
    /// Nothing, or that the outcome is unknown: it may take effect at any time, or never.
    Unknown,
}

/// An operation of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Who asked.
    pub caller: usize,
    /// When it was asked, on one clock for all.
    pub began: u64,
    /// When it was answered.
    pub ended: u64,
    /// What was asked.
    pub asked: Asked,
    /// What was answered.
    pub answered: Answered,
}

/// Operations on one branch, which is empty at first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// How many paths there are.
    pub paths: usize,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut in_order: Vec<(usize, &Operation)> = self.operations.iter().enumerate().collect();
        in_order.sort_by_key(|(_, operation)| operation.began);
        for (nth, it) in in_order {
            let ended =
                if it.answered == Answered::Unknown { "…".to_owned() } else { it.ended.to_string() };
            let (caller, began) = (it.caller, it.began);
            writeln!(
                f,
                "#{nth:<3} caller {caller}  {began:>6} to {ended:>6}  {:?} -> {:?}",
                it.asked, it.answered
            )?;
        }
        Ok(())
    }
}
