//! The naive evaluator: what a strategy may give next, found by looking at every submission.
//!
//! It keeps nothing but the books of turns, and follows the meaning of each block word by word. A task of a lane is chosen by
//! its id, as a submission is.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::{MetaValue, Traits};
use windlass_core::ids::SubmissionId;

/// A running submission.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) id: SubmissionId,
    pub(crate) traits: Rc<Traits>,
    pub(crate) ready: u64,
    pub(crate) out: u64,
}

impl Submission {
    fn value(&self, field: &str) -> Option<&MetaValue> {
        self.traits.metadata.get(field)
    }
}

/// A lane: how many of its tasks may go, and those that wait, the first one first.
#[derive(Debug, Clone)]
pub(crate) struct SeenLane {
    pub(crate) room: usize,
    /// By what comes before their ids: the larger priority, then the smaller pass.
    pub(crate) ready: BTreeSet<(u8, u64, SubmissionId)>,
}

/// Everything that a strategy goes by, but for the books.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) submissions: Vec<Submission>,
    pub(crate) lanes: BTreeMap<String, SeenLane>,
    pub(crate) consumers: u64,
    pub(crate) is_holding: bool,
}

/// The turns of a `Fair` inside others, outermost first: the field and the weights of each.
type Chain = Vec<(String, BTreeMap<String, u32>)>;

/// A value of each field of a chain.
pub(crate) type Seat = Vec<Option<MetaValue>>;

/// A submission that may be next, and the turns that it would take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Choice {
    pub(crate) submission: SubmissionId,
    pub(crate) turns: Vec<(Chain, Seat)>,
}

impl Seen {
    fn max(&self, max: Max) -> u64 {
        match max {
            Max::Count(count) => u64::from(count),
            Max::Percent(percent) => (self.consumers * u64::from(percent)).div_ceil(100).max(1),
        }
    }

    /// One more chunk of a submission goes out, or a task.
    pub(crate) fn hand_out(&mut self, submission: SubmissionId) {
        let is_of = |lane: &&mut SeenLane| lane.ready.first().is_some_and(|it| it.2 == submission);
        if let Some(lane) = self.lanes.values_mut().find(is_of) {
            lane.ready.pop_first();
            lane.room -= 1;
            return;
        }
        let it = self.submissions.iter_mut().find(|it| it.id == submission).expect("it is running");
        it.ready -= 1;
        it.out += 1;
    }
}

/// What may be next, oldest first; nothing if the strategy gives nothing.
pub(crate) fn choices(strategy: &Strategy, seen: &Seen, books: &Books) -> Vec<Choice> {
    let ready = seen.submissions.iter().filter(|it| it.ready > 0 && !it.traits.paused).collect();
    let in_work: Vec<&Submission> = seen.submissions.iter().filter(|it| it.out > 0).collect();
    let evaluation = Evaluation { seen, in_work: &in_work, books };
    let mut choices = evaluation.choices(strategy, ready, &Chain::new(), &Seat::new());
    choices.sort();
    choices
}

#[derive(Clone, Copy)]
struct Evaluation<'a> {
    seen: &'a Seen,
    /// Submissions with chunks out.
    in_work: &'a [&'a Submission],
    books: &'a Books,
}

impl<'a> Evaluation<'a> {
    /// `chain` and `seat` are the turns around this strategy.
    fn choices(
        self,
        strategy: &Strategy,
        among: Vec<&'a Submission>,
        chain: &Chain,
        seat: &Seat,
    ) -> Vec<Choice> {
        match strategy {
            Strategy::Random => among.into_iter().map(choice).collect(),
            Strategy::OldestFirst => {
                among.into_iter().min_by_key(|it| it.id).map(choice).into_iter().collect()
            }
            Strategy::NewestFirst => {
                among.into_iter().max_by_key(|it| it.id).map(choice).into_iter().collect()
            }
            Strategy::CustomPriority { aging_ms } => {
                let worth = |it: &Submission| match aging_ms {
                    None => i128::from(it.traits.priority),
                    Some(aging_ms) => {
                        i128::from(it.traits.priority) * i128::from(*aging_ms)
                            - i128::from(it.id.as_u64() >> 22)
                    }
                };
                let first = among.into_iter().max_by_key(|it| (worth(it), std::cmp::Reverse(it.id)));
                first.map(choice).into_iter().collect()
            }
            Strategy::SelectOnly { field, value, inner } => {
                let selected = among.into_iter().filter(|it| it.value(field) == Some(value));
                self.choices(inner, selected.collect(), chain, seat)
            }
            Strategy::MaxSimultaneous { field, max, inner } => {
                let max = if self.seen.is_holding { 0 } else { self.seen.max(*max) };
                self.choices(inner, self.unsaturated(&among, field, max), chain, seat)
            }
            Strategy::PreferDistinct { field, max, inner } => {
                let preferred = self.unsaturated(&among, field, self.seen.max(*max));
                let choices = self.choices(inner, preferred, chain, seat);
                if choices.is_empty() { self.choices(inner, among, chain, seat) } else { choices }
            }
            Strategy::OrElse { first, fallback } => {
                let choices = self.choices(first, among.clone(), chain, seat);
                if choices.is_empty() { self.choices(fallback, among, chain, seat) } else { choices }
            }
            // Turns between the values of a field within one value of it are no turns.
            Strategy::Fair { field, inner, .. } if chain.iter().any(|(outer, _)| outer == field) => {
                self.choices(inner, among, chain, seat)
            }
            Strategy::Fair { field, weights, inner } => {
                let mut chain = chain.clone();
                chain.push((field.clone(), weights.clone()));
                self.take_turns(inner, among, &chain, seat)
            }
            Strategy::Lane { name } => {
                let lane = self.seen.lanes.get(name).filter(|lane| lane.room > 0);
                let first = lane.and_then(|lane| lane.ready.first());
                first.map(|it| Choice { submission: it.2, turns: Vec::new() }).into_iter().collect()
            }
        }
    }

    fn unsaturated(self, among: &[&'a Submission], field: &str, max: u64) -> Vec<&'a Submission> {
        let mut out: BTreeMap<&MetaValue, u64> = BTreeMap::new();
        for it in self.in_work {
            if let Some(value) = it.value(field) {
                *out.entry(value).or_default() += it.out;
            }
        }
        let is_saturated = |value: &MetaValue| out.get(value).copied().unwrap_or(0) >= max;
        among.iter().filter(|it| !it.value(field).is_some_and(is_saturated)).copied().collect()
    }

    /// The groups whose turn it is, of those that have something to give.
    fn take_turns(
        self,
        inner: &Strategy,
        among: Vec<&'a Submission>,
        chain: &Chain,
        outer: &Seat,
    ) -> Vec<Choice> {
        let field = &chain.last().expect("this turn is in it").0;
        let mut groups: BTreeMap<Option<&MetaValue>, Vec<&Submission>> = BTreeMap::new();
        for it in among {
            groups.entry(it.value(field)).or_default().push(it);
        }
        let mut by_tag: BTreeMap<u64, Vec<Choice>> = BTreeMap::new();
        for (value, group) in groups {
            let seat: Seat = outer.iter().cloned().chain([value.cloned()]).collect();
            let mut choices = self.choices(inner, group, chain, &seat);
            for choice in &mut choices {
                choice.turns.insert(0, (chain.clone(), seat.clone()));
            }
            if !choices.is_empty() {
                by_tag.entry(self.books.start(chain, &seat)).or_default().extend(choices);
            }
        }
        by_tag.into_values().next().unwrap_or_default()
    }
}

fn choice(it: &Submission) -> Choice {
    Choice { submission: it.id, turns: Vec::new() }
}

/// Who has had how much.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Books {
    /// By chain and the values of the outer turns.
    clocks: BTreeMap<(Chain, Seat), Clock>,
    /// Weights that hold where a strategy names none: field, value, weight.
    weights: BTreeMap<String, BTreeMap<String, u32>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Clock {
    now: u64,
    finish: BTreeMap<Option<MetaValue>, u64>,
}

impl Books {
    fn start(&self, chain: &Chain, seat: &Seat) -> u64 {
        let (value, outer) = seat.split_last().expect("a turn has a value");
        let Some(clock) = self.clocks.get(&(chain.clone(), outer.to_vec())) else { return 0 };
        clock.finish.get(value).copied().unwrap_or(0).max(clock.now)
    }

    /// Whether a value has had less than its clock shows, in every book that has such turns.
    pub(crate) fn is_behind(&self, seat: &Seat) -> bool {
        let (value, outer) = seat.split_last().expect("a turn has a value");
        let mut of_scope = self.clocks.iter().filter(|((_, scope), _)| scope == outer);
        of_scope.all(|(_, clock)| clock.finish.get(value).is_none_or(|finish| *finish < clock.now))
    }

    /// What a chunk costs this value.
    pub(crate) fn stride(
        &self,
        field: &str,
        weights: &BTreeMap<String, u32>,
        value: Option<&MetaValue>,
    ) -> u64 {
        let everywhere = self.weights.get(field);
        let weight = value.map(ToString::to_string).and_then(|text| {
            weights.get(&text).or_else(|| everywhere.and_then(|weights| weights.get(&text))).copied()
        });
        (1 << 30) / u64::from(weight.unwrap_or(1))
    }

    /// Counts a chunk of the submission that was chosen.
    pub(crate) fn charge(&mut self, choice: &Choice) {
        for (chain, seat) in &choice.turns {
            let (value, outer) = seat.split_last().expect("a turn has a value");
            let (field, weights) = chain.last().expect("a turn has a field");
            let stride = self.stride(field, weights, value.as_ref());
            let start = self.start(chain, seat);
            let clock = self.clocks.entry((chain.clone(), outer.to_vec())).or_default();
            clock.now = start;
            clock.finish.insert(value.clone(), start + stride);
        }
    }

    pub(crate) fn set_weights(&mut self, field: &str, weights: BTreeMap<String, u32>) {
        self.weights.insert(field.to_owned(), weights);
    }

    /// Turns inside a value are kept as long as a submission has it.
    pub(crate) fn forget_inside(&mut self, seen: &Seen) {
        self.clocks.retain(|(chain, outer), _| {
            let has = |field: &str, value: &Option<MetaValue>| {
                value.is_none() || seen.submissions.iter().any(|it| it.value(field) == value.as_ref())
            };
            chain.iter().zip(outer).all(|((field, _), value)| has(field, value))
        });
    }

    /// A book is kept as long as a strategy in use has its turns, or a submission its field.
    pub(crate) fn forget<'a>(&mut self, in_use: impl Iterator<Item = &'a Strategy>, seen: &Seen) {
        let mut chains = BTreeSet::new();
        in_use.for_each(|strategy| chains_of(strategy, &Chain::new(), &mut chains));
        self.clocks.retain(|(chain, _), _| {
            let (field, _) = chain.last().expect("a turn has a field");
            chains.contains(chain) || seen.submissions.iter().any(|it| it.value(field).is_some())
        });
    }
}

fn chains_of(strategy: &Strategy, chain: &Chain, chains: &mut BTreeSet<Chain>) {
    match strategy {
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => {}
        Strategy::SelectOnly { inner, .. }
        | Strategy::PreferDistinct { inner, .. }
        | Strategy::MaxSimultaneous { inner, .. } => chains_of(inner, chain, chains),
        Strategy::OrElse { first, fallback } => {
            chains_of(first, chain, chains);
            chains_of(fallback, chain, chains);
        }
        Strategy::Fair { field, inner, .. } if chain.iter().any(|(outer, _)| outer == field) => {
            chains_of(inner, chain, chains);
        }
        Strategy::Fair { field, weights, inner } => {
            let chain: Chain = chain.iter().cloned().chain([(field.clone(), weights.clone())]).collect();
            chains_of(inner, &chain, chains);
            chains.insert(chain);
        }
    }
}

/// The books after these chunks were handed out one by one, for each order in which the strategy may have done that; none
/// if there is no such order. `is_all` says that it had no more to give.
pub(crate) fn after_each_order(
    strategy: &Strategy,
    seen: &Seen,
    books: &Books,
    given: &BTreeMap<SubmissionId, u64>,
    is_all: bool,
) -> BTreeSet<Books> {
    let choices = choices(strategy, seen, books);
    if given.is_empty() {
        return if is_all && !choices.is_empty() { BTreeSet::new() } else { BTreeSet::from([books.clone()]) };
    }
    let mut after = BTreeSet::new();
    for choice in choices.iter().filter(|choice| given.contains_key(&choice.submission)) {
        let (mut seen, mut books, mut given) = (seen.clone(), books.clone(), given.clone());
        seen.hand_out(choice.submission);
        books.charge(choice);
        let left = given.get_mut(&choice.submission).expect("it was just found");
        *left -= 1;
        if *left == 0 {
            given.remove(&choice.submission);
        }
        after.append(&mut after_each_order(strategy, &seen, &books, &given, is_all));
    }
    after
}
