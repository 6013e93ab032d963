//! Explaining: what a strategy would give next and why, and why a submission is not handed out.
//!
//! Everything here only looks. What it costs follows the size of the strategy, the values in work, and what is counted ahead
//! of one submission, each up to a maximum; never the number of submissions that wait.
//!
//! Reading order: this file (what is said), `look.rs` (what is seen in one view), `parts.rs` (the strategy, block by
//! block), `submission.rs` (one submission), `words.rs`.

mod look;
mod parts;
mod submission;
mod words;

use super::{PlanId, Views};
use crate::batch::submissions::MetaValue;
use crate::ids::{ChunkName, SubmissionId};
use crate::seeded::Seeded;
use crate::time::At;
pub(in crate::batch) use submission::Subject;

/// What a strategy would give next, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The next chunk; none if the strategy gives nothing now.
    pub next: Option<ChunkName>,
    /// Whether chance decides, so that `next` is an example of what may come.
    pub is_by_chance: bool,
    /// Why, in a sentence.
    pub why: String,
    /// The strategy, block by block.
    pub part: PartSeen,
}

/// A block of the strategy, and what it does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSeen {
    /// The block's name.
    pub name: &'static str,
    /// The block with its settings, without what is inside it.
    pub text: String,
    /// Whether the next chunk comes from here.
    pub standing: PartStanding,
    /// What it does, in a sentence.
    pub says: String,
    /// Submissions that it looks at, as far as that is cheap to tell.
    pub submissions: Option<u64>,
    /// Their ready chunks.
    pub chunks: Option<u64>,
    /// What its limit holds back.
    pub limit: Option<LimitSeen>,
    /// Whose turn is next.
    pub turns: Option<TurnsSeen>,
    /// The blocks inside it.
    pub inner: Vec<PartSeen>,
}

/// Whether the next chunk comes from a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartStanding {
    /// It does.
    Gives,
    /// It was asked, and has nothing to give.
    Empty,
    /// Something before it gives, so that it is not asked.
    NotAsked,
    /// It is the same as something before it.
    Repeats,
}

/// A limit, and the values that have reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSeen {
    /// The field.
    pub field: String,
    /// How many chunks of one value may be in work now.
    pub max: u64,
    /// Whether nothing at all may go out, since work of an earlier leadership may be under way.
    pub is_holding: bool,
    /// Ready submissions behind the values at their limit.
    pub submissions: u64,
    /// The values with the most of them.
    pub saturated: Vec<Saturated>,
    /// How many more values are at their limit.
    pub more: u64,
    /// Whether more values are in work than were looked at, so that these are the least there can be.
    pub is_cut: bool,
}

/// A value at its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saturated {
    /// The value.
    pub value: MetaValue,
    /// Its chunks in work.
    pub out: u64,
    /// How many may be.
    pub max: u64,
    /// Ready submissions that wait behind it.
    pub submissions: u64,
}

/// Turns between the values of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnsSeen {
    /// The field.
    pub field: String,
    /// How many different values of it are known.
    pub values: u64,
    /// The next turns, if nothing new comes in.
    pub next: Vec<TurnSeen>,
}

/// The turn of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSeen {
    /// The value; none for submissions without the field.
    pub value: Option<MetaValue>,
    /// Its weight.
    pub weight: u32,
    /// How far it is ahead of the clock of turns, in thousandths of a chunk of weight 1: whoever is less ahead is sooner.
    pub ahead_thousandths: u64,
    /// Its ready submissions that this block looks at, if that is cheap to tell.
    pub submissions: Option<u64>,
}

/// Why a submission is or is not handed out by a strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmissionSeen {
    /// The submission.
    pub submission: SubmissionId,
    /// What holds it back, if anything does.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub says: String,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Its chunks that could be handed out, or could be if it were not paused.
    pub ready: u64,
    /// Its chunks in work.
    pub out: u64,
    /// Its chunks that wait for a retry.
    pub delayed: u64,
    /// When the first of those is ready again.
    pub retry_at: Option<At>,
    /// What each way through the strategy makes of it, in the order in which they are tried.
    pub ways: Vec<WaySeen>,
}

/// What holds a submission back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing: it is what comes next, or may be by chance.
    Next,
    /// Nothing but those ahead of it.
    Waits,
    /// Something before the part that takes it gives.
    NotAsked,
    /// A value of it has reached its limit.
    Limited,
    /// No part takes it.
    NotMatched,
    /// It is paused.
    Paused,
    /// It has no ready chunk.
    NothingReady,
}

/// What one way through a strategy makes of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaySeen {
    /// The way: the strategy with every choice made.
    pub text: String,
    /// What holds the submission back here.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub says: String,
    /// The limits that it is behind.
    pub limits: Vec<FieldSaturated>,
    /// Where it stands, if nothing but others is before it.
    pub rank: Option<Rank>,
}

/// A field's value at its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSaturated {
    /// The field.
    pub field: String,
    /// Whether nothing with the field may go out, since work of an earlier leadership may be under way.
    pub is_holding: bool,
    /// The value.
    pub saturated: Saturated,
}

/// Where a submission stands on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// Its values' turns, the outermost first.
    pub turns: Vec<TurnRank>,
    /// Submissions ahead of it, within the turn of its values if there are turns.
    pub ahead: Counted,
    /// If chance decides: its ready chunks, and all that are drawn from.
    pub chance: Option<(u64, u64)>,
}

/// How long until a value's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRank {
    /// The field.
    pub field: String,
    /// The value; none for submissions without the field.
    pub value: Option<MetaValue>,
    /// Values whose turn comes before.
    pub before: Counted,
}

/// A number that was counted up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// What was counted.
    pub count: u64,
    /// Whether there is more.
    pub is_cut: bool,
}

/// How much there is outside of the views, for telling why nothing is ready.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::batch) struct Elsewhere {
    pub(in crate::batch) paused: u64,
    pub(in crate::batch) out: u64,
    pub(in crate::batch) delayed: u64,
}

impl Views {
    /// What a plan would give next, and why. The views of the plan must be built; `name` says which chunk of a slot goes first.
    pub(in crate::batch) fn explain(
        &mut self,
        plan: PlanId,
        mut chance: Seeded,
        elsewhere: Elsewhere,
        name: impl Fn(u32) -> ChunkName,
    ) -> Option<Explanation> {
        self.settle(plan);
        let found = self.pick(plan, &mut chance);
        let strategy = &self.plans.get(&plan)?.strategy;
        let look = parts::Look::new(self, plan, found);
        Some(Explanation {
            next: found.map(|found| name(found.slot)),
            is_by_chance: look.is_by_chance(),
            why: look.why(found.map(|found| name(found.slot)), elsewhere),
            part: look.part(strategy),
        })
    }

    /// Why a submission is or is not handed out by a plan. The views of the plan must be built.
    pub(in crate::batch) fn explain_submission(
        &mut self,
        plan: PlanId,
        subject: Subject<'_>,
    ) -> Option<SubmissionSeen> {
        self.settle(plan);
        // Which submission chance would pick makes no difference to where it picks.
        let found = self.pick(plan, &mut Seeded::new(0));
        let strategy = &self.plans.get(&plan)?.strategy;
        Some(submission::seen(&parts::Look::new(self, plan, found), strategy, subject))
    }
}
