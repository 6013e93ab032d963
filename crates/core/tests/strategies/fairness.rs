//! Fairness by numbers: the bounds that start-time fair queueing promises, checked exactly at every hand-out.
//!
//! With `inc` for what a chunk costs a value: over any time in which two values may both be served, what they get differs by
//! `inc + inc` at most, with the dearest `inc` if weights change meanwhile; each change of the leader may add as much
//! once more, and a strategy that nobody uses for a while adds nothing. Over any hand-outs among values that always have
//! work, each gets its share up to a turn or two. And a value that has had less than the others is served after at most
//! one chunk of each of them.

use crate::invented::below;
use crate::naive::{self, Books, Choice, Seat};
use crate::queue::{Queue, company, traits};
use crate::sequences;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::batch::strategy::{Max, Strategy};
use windlass_core::batch::submissions::{MetaValue, Traits};
use windlass_core::ids::SubmissionId;
use windlass_core::limits::STRATEGY_IDLE_MS_MAX;
use windlass_core::seeded::Seeded;

const ANNA: Holder = Holder::Session(SessionId(1));

#[test]
fn while_two_values_may_both_be_served_neither_gets_ahead_by_more_than_a_turn_of_each() {
    sequences::run(
        "while_two_values_may_both_be_served_neither_gets_ahead_by_more_than_a_turn_of_each",
        300,
        |seed| {
            let mut watched = Watched::new(seed);
            for _ in 0..1_500 {
                watched.step();
            }
        },
    );
}

/// A strategy with turns between companies, with limits on the same field and on others, inside and outside.
fn invent_strategy(chance: &mut Seeded) -> Strategy {
    let fair = || Strategy::fair("company");
    let mut weighted = |inner: Strategy| {
        let companies: Vec<i64> = (1..=COMPANIES).filter(|_| chance.below(2) == 0).collect();
        companies.into_iter().fold(Strategy::fair_then("company", inner), |strategy, company| {
            strategy.weight(company, any_weight(chance))
        })
    };
    let mut strategies = vec![
        fair(),
        weighted(Strategy::Random),
        fair().max_simultaneous("company", 2),
        weighted(Strategy::OldestFirst.max_simultaneous("company", 3)),
        weighted(Strategy::Random).max_simultaneous("host", 4),
        weighted(Strategy::NewestFirst.max_simultaneous("host", 3)),
        weighted(Strategy::Random.prefer_distinct("host", 1)).max_simultaneous("mode", Max::percent(50)),
        fair().prefer_distinct("company", 1).max_simultaneous("host", 5),
        Strategy::select_only("mode", "preview", fair()).or_else(fair()),
        weighted(Strategy::fair("host").weight("a", 5)),
        Strategy::fair_then("company", Strategy::fair("host")).max_simultaneous("host", 2),
        weighted(Strategy::fair_then("host", Strategy::Random.prefer_distinct("mode", 2)))
            .max_simultaneous("company", 2),
    ];
    let nth = below(chance, strategies.len());
    strategies.swap_remove(nth)
}

const COMPANIES: i64 = 6;

fn any_weight(chance: &mut Seeded) -> u32 {
    [1, 2, 3, 7, 50, 1_000, 1_000_000][below(chance, 7)]
}

/// The strategy as if nobody had to wait for a turn: it gives everything that might be served now.
fn without_turns(strategy: &Strategy, is_in_turn: bool) -> Strategy {
    let inside = |inner: &Strategy| Box::new(without_turns(inner, is_in_turn));
    match strategy.clone() {
        Strategy::Fair { inner, .. } => without_turns(&inner, true),
        Strategy::SelectOnly { field, value, inner } => {
            Strategy::SelectOnly { field, value, inner: inside(&inner) }
        }
        Strategy::MaxSimultaneous { field, max, inner } => {
            Strategy::MaxSimultaneous { field, max, inner: inside(&inner) }
        }
        // Within a turn it decides who of one value is next, not whether that value may be served.
        Strategy::PreferDistinct { inner, .. } if is_in_turn => without_turns(&inner, true),
        Strategy::PreferDistinct { field, max, inner } => {
            Strategy::PreferDistinct { field, max, inner: inside(&inner) }
        }
        Strategy::OrElse { .. } if is_in_turn => {
            panic!("none of the strategies here has a choice within a turn")
        }
        Strategy::OrElse { first, fallback } => {
            Strategy::OrElse { first: inside(&first), fallback: inside(&fallback) }
        }
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => Strategy::Random,
    }
}

/// A field with the weights that a strategy names for its values.
type Share = (String, BTreeMap<String, u32>);

/// The turns, outermost first.
fn turns_of(strategy: &Strategy) -> Vec<Share> {
    match strategy {
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => Vec::new(),
        Strategy::SelectOnly { inner, .. }
        | Strategy::MaxSimultaneous { inner, .. }
        | Strategy::PreferDistinct { inner, .. } => turns_of(inner),
        Strategy::OrElse { fallback, .. } => turns_of(fallback),
        Strategy::Fair { field, weights, inner } => {
            [(field.clone(), weights.clone())].into_iter().chain(turns_of(inner)).collect()
        }
    }
}

/// How far one value has been ahead of another since both may be served.
#[derive(Debug, Clone, Default)]
struct Swing {
    ahead: i128,
    least: i128,
    most: i128,
    /// What a chunk of each has cost at most.
    incs: (i128, i128),
    /// Leaders since both may be served, without the first.
    leaders: i128,
}

/// A value that has had less than the others, and how many of those have been served since it may be.
#[derive(Debug)]
struct Wait {
    others: usize,
    others_max: usize,
}

struct Watched {
    chance: Seeded,
    queue: Queue,
    strategy: Strategy,
    books: Books,
    /// Those set at run time, by company.
    weights: BTreeMap<String, u32>,
    /// Those that may be served now, at each depth of turns.
    eligible: BTreeSet<Seat>,
    /// What the last chunk of each cost: its tag goes on counting it when its weight changes.
    paid: BTreeMap<Seat, i128>,
    /// Since the last change of the leader.
    swings: BTreeMap<(Seat, Seat), Swing>,
    over_leaders: BTreeMap<(Seat, Seat), Swing>,
    waits: BTreeMap<Seat, Wait>,
}

impl Watched {
    fn new(seed: u64) -> Watched {
        let mut chance = Seeded::new(seed);
        Watched {
            strategy: invent_strategy(&mut chance),
            queue: Queue::new(chance.draw()),
            chance,
            books: Books::default(),
            weights: BTreeMap::new(),
            eligible: BTreeSet::new(),
            paid: BTreeMap::new(),
            swings: BTreeMap::new(),
            over_leaders: BTreeMap::new(),
            waits: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        let out = self.queue.out();
        let ids = self.queue.ids();
        let any_out = (!out.is_empty()).then(|| out[below(&mut self.chance, out.len())]);
        let any = (!ids.is_empty()).then(|| ids[below(&mut self.chance, ids.len())]);
        match (self.chance.below(200), any_out, any) {
            (0..24, _, _) if ids.len() < 24 => self.submit(),
            (24..84, Some((name, _)), _) => self.queue.complete(name),
            (84..88, Some((name, token)), _) => self.queue.release(name, token),
            (88..90, Some((name, token)), _) => self.queue.fail(name, token.attempt, 50),
            (90..92, _, _) => self.queue.wait_ms(100),
            (92..94, _, Some(submission)) => self.queue.cancel(submission),
            (94..100, _, Some(submission)) => self.change(submission),
            (100..102, _, _) => self.queue.set_room(self.chance.below(10), self.chance.below(5) == 0),
            (102..103, _, _) if self.chance.below(3) == 0 => self.change_leader(),
            (103..104, _, _) => self.set_weights(),
            (104..105, _, _) if self.chance.below(3) == 0 => self.be_idle(),
            _ => self.reserve(),
        }
        self.books.forget_inside(&self.queue.seen());
        self.look();
    }

    fn submit(&mut self) {
        let traits = self.traits();
        self.queue.submit(1 + self.chance.below(20), traits);
    }

    fn traits(&mut self) -> Traits {
        let mut traits = traits([("mode", ["preview", "normal"][below(&mut self.chance, 2)].into())]);
        let company = below(&mut self.chance, 7) as i64;
        if company > 0 {
            traits.metadata.insert("company".into(), MetaValue::Integer(company));
        }
        traits.metadata.insert("host".into(), ["a", "b", "c"][below(&mut self.chance, 3)].into());
        traits
    }

    /// A submission changes its metadata, or is paused or resumed; whoever does that queues up anew.
    fn change(&mut self, submission: SubmissionId) {
        let mut traits = self.queue.traits_of(submission).clone();
        match self.chance.below(2) {
            0 => traits.paused = !traits.paused,
            _ => traits.metadata = self.traits().metadata,
        }
        self.queue.change(submission, traits);
        self.waits.clear();
    }

    fn change_leader(&mut self) {
        self.queue.change_leader(self.chance.draw());
        self.books = Books::default();
        self.apply_weights();
        self.eligible.clear();
        self.paid.clear();
        self.swings.clear();
        self.over_leaders.values_mut().for_each(|swing| swing.leaders += 1);
        self.waits.clear();
    }

    fn set_weights(&mut self) {
        let named = (1..=COMPANIES).filter(|_| self.chance.below(2) == 0).collect::<Vec<_>>();
        self.weights =
            named.into_iter().map(|company| (company.to_string(), any_weight(&mut self.chance))).collect();
        self.apply_weights();
        for ((one, other), swing) in self.swings.iter_mut().chain(&mut self.over_leaders) {
            let incs = (inc(&self.strategy, &self.books, one), inc(&self.strategy, &self.books, other));
            swing.incs = (swing.incs.0.max(incs.0), swing.incs.1.max(incs.1));
        }
    }

    /// Weights are in the log: a new leader has them too.
    fn apply_weights(&mut self) {
        self.queue.reserver.ready_mut().set_weights("company", self.weights.clone());
        self.books.set_weights("company", self.weights.clone());
    }

    /// Nobody reserves for a minute: views are dropped, turns are not.
    fn be_idle(&mut self) {
        self.queue.wait_ms(STRATEGY_IDLE_MS_MAX);
        self.queue.reserver.ready_mut().sweep(self.queue.now, |_| false);
        assert_eq!(self.queue.reserver.ready().views_len().0, 0);
        self.books.forget([].into_iter(), &self.queue.seen());
    }

    fn reserve(&mut self) {
        let plan = self.queue.plan(&self.strategy);
        let choices = naive::choices(&self.strategy, &self.queue.seen(), &self.books);
        let given = self.queue.reserve(ANNA, 1, plan);
        let given = given.first().map(|(name, _)| name.submission);
        let chosen = choices.iter().find(|choice| Some(choice.submission) == given);
        assert_eq!(chosen.is_none(), choices.is_empty(), "{} gives {given:?} of {choices:?}", self.strategy);
        if let Some(chosen) = chosen {
            self.books.charge(chosen);
            self.count(chosen);
        }
    }

    fn count(&mut self, served: &Choice) {
        for (_, seat) in &served.turns {
            let paid = inc(&self.strategy, &self.books, seat);
            self.paid.insert(seat.clone(), paid);
            for ((one, other), swing) in self.swings.iter_mut().chain(&mut self.over_leaders) {
                if one != seat && other != seat {
                    continue;
                }
                swing.ahead += if one == seat { paid } else { -paid };
                swing.least = swing.least.min(swing.ahead);
                swing.most = swing.most.max(swing.ahead);
                assert!(
                    swing.most - swing.least <= (swing.leaders + 1) * (swing.incs.0 + swing.incs.1),
                    "{one:?} and {other:?} by {}: {swing:?}",
                    self.strategy
                );
            }
            self.waits.remove(seat);
            for (waiting, wait) in self.waits.iter_mut().filter(|(waiting, _)| is_beside(waiting, seat)) {
                wait.others += 1;
                assert!(wait.others <= wait.others_max, "{waiting:?} by {}: {wait:?}", self.strategy);
            }
        }
    }

    /// Who may be served now; whoever may no longer, or only now, is watched no longer, or from now on.
    fn look(&mut self) {
        let fields: Vec<String> = turns_of(&self.strategy).into_iter().map(|(field, _)| field).collect();
        let seen = self.queue.seen();
        let allowed = naive::choices(&without_turns(&self.strategy, false), &seen, &self.books);
        let allowed = allowed.iter().map(|choice| choice.submission);
        let eligible = self.seats(&fields, allowed);
        let is_ready = |it: &&naive::Submission| it.ready > 0 && !it.traits.paused;
        let ready = self.seats(&fields, seen.submissions.iter().filter(is_ready).map(|it| it.id));

        for swings in [&mut self.swings, &mut self.over_leaders] {
            swings.retain(|(one, other), _| eligible.contains(one) && eligible.contains(other));
        }
        self.waits.retain(|seat, _| eligible.contains(seat));
        for one in &eligible {
            for other in eligible.range(one.clone()..).skip(1).filter(|other| is_beside(one, other)) {
                let inc = |seat| {
                    inc(&self.strategy, &self.books, seat).max(self.paid.get(seat).copied().unwrap_or(0))
                };
                let fresh = Swing { incs: (inc(one), inc(other)), ..Swing::default() };
                for swings in [&mut self.swings, &mut self.over_leaders] {
                    swings.entry((one.clone(), other.clone())).or_insert_with(|| fresh.clone());
                }
            }
            if !self.eligible.contains(one) && self.books.is_behind(one) {
                // Whoever has waited longest is first, wherever that was; those without the field always are.
                let beside = ready.iter().filter(|other| other.len() == one.len()).map(|other| other.last());
                let others: BTreeSet<_> =
                    beside.filter(|it| *it != one.last() && *it != Some(&None)).collect();
                let others_max = others.len() + 1;
                self.waits.insert(one.clone(), Wait { others: 0, others_max });
            }
        }
        self.eligible = eligible;
    }

    fn seats(&self, fields: &[String], of: impl Iterator<Item = SubmissionId>) -> BTreeSet<Seat> {
        let seat = |submission: SubmissionId| -> Seat {
            let metadata = &self.queue.traits_of(submission).metadata;
            fields.iter().map(|field| metadata.get(field).cloned()).collect()
        };
        of.map(seat).flat_map(|seat| (1..=seat.len()).map(move |depth| seat[..depth].to_vec())).collect()
    }
}

/// What a chunk costs a seat now.
fn inc(strategy: &Strategy, books: &Books, seat: &Seat) -> i128 {
    let (field, weights) = &turns_of(strategy)[seat.len() - 1];
    i128::from(books.stride(field, weights, seat.last().expect("it has a value").as_ref()))
}

/// Whether two take turns with each other.
fn is_beside(one: &Seat, other: &Seat) -> bool {
    one.len() == other.len() && one[..one.len() - 1] == other[..other.len() - 1]
}

#[test]
fn values_that_always_have_work_get_their_shares_over_any_hand_outs() {
    for seed in 0..20 {
        let mut chance = Seeded::new(seed);
        let mut queue = Queue::new(seed);
        let companies = 2 + chance.below(6);
        let mut strategy = Strategy::fair("company");
        let mut weights: BTreeMap<SubmissionId, i64> = BTreeMap::new();
        for company in 0..i64::try_from(companies).expect("they are few") {
            let weight = [1, 1, 2, 4, 8][below(&mut chance, 5)];
            strategy = strategy.weight(company, weight);
            let submission = queue.submit(3_000, traits([("company", company.into())]));
            weights.insert(submission, i64::from(weight));
        }
        let (total, count) = (weights.values().sum::<i64>(), weights.len() as i64);
        // How far each is ahead of its share: now, at least and at most, in parts of a chunk.
        let mut ahead: BTreeMap<SubmissionId, (i64, i64, i64)> = BTreeMap::new();
        let plan = queue.plan(&strategy);
        for _ in 0..2_000 {
            let (name, _) = queue.reserve(ANNA, 1, plan)[0];
            for (submission, weight) in &weights {
                let (now, least, most) = ahead.entry(*submission).or_default();
                *now += if *submission == name.submission { total - weight } else { -weight };
                (*least, *most) = ((*least).min(*now), (*most).max(*now));
                assert!(
                    *most - *least <= total + (count - 2) * weight,
                    "seed {seed}: {ahead:?} of {weights:?}"
                );
            }
            queue.complete(name);
        }
    }
}

#[test]
fn newcomers_that_keep_coming_are_served_in_the_order_in_which_they_come() {
    let mut queue = Queue::new(1);
    let fair = Strategy::fair("company");
    let old = queue.submit(100, company("old"));
    assert_eq!(queue.take(3, &fair), [old; 3]);
    let mut expected = Vec::new();
    let mut order = Vec::new();
    for newcomer in 0..200 {
        expected.push(queue.submit(1, company(&format!("{}", 7 * newcomer % 200))));
        if newcomer > 10 {
            order.extend(queue.take(1, &fair));
            let (name, _) = *queue.out().last().expect("it was just handed out");
            queue.complete(name);
        }
    }
    assert_eq!(order, expected[..order.len()]);
}

/// What was inside a company was forgotten whenever the others caught up with it, and one of its users starved.
#[test]
fn turns_within_turns_go_on_where_they_were_while_the_company_waits() {
    let mut queue = Queue::new(1);
    let mut submissions = BTreeMap::new();
    for (company, user) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")] {
        let both = traits([("company", company.into()), ("user", user.into())]);
        submissions.insert(queue.submit(100, both), format!("{company}{user}"));
    }
    let nested = Strategy::fair_then("company", Strategy::fair("user"));
    let names =
        |ids: Vec<SubmissionId>| ids.iter().map(|id| submissions[id].as_str()).collect::<Vec<_>>().join(" ");
    let order: Vec<_> = (0..12).flat_map(|_| queue.take(1, &nested)).collect();
    assert_eq!(names(order), "a1 b1 a2 b2 a3 b1 a1 b2 a2 b1 a3 b2");

    // Company a is at its limit while b is served again and again.
    let limited = nested.max_simultaneous("company", 7);
    for expected in ["a1 b1 b2 b1 b2", "a2 b1 b2 b1 b2", "a3 b1 b2 b1 b2"] {
        let mut order = queue.take(1, &limited);
        let (mut of_b, of_a): (Vec<_>, Vec<_>) =
            queue.out().into_iter().partition(|(name, _)| submissions[&name.submission].starts_with('b'));
        for _ in 0..4 {
            let (name, _) = of_b.pop().expect("some are out");
            queue.complete(name);
            order.extend(queue.take(1, &limited));
        }
        assert_eq!(names(order), expected);
        queue.complete(of_a[0].0);
    }
}
