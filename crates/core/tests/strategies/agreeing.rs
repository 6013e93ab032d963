//! Strategies made up by chance, several at once, over a queue to which everything happens: what each gives is what the
//! naive evaluator says it may give.

use crate::invented::{self, LANES, below};
use crate::naive::{self, Books};
use crate::queue::Queue;
use crate::sequences;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::Traits;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::batch::views::PlanId;
use windlass_core::ids::{ChunkName, SubmissionId};
use windlass_core::limits::STRATEGY_IDLE_MS_MAX;
use windlass_core::seeded::Seeded;

#[test]
fn every_strategy_gives_what_the_naive_evaluator_says_it_may() {
    sequences::run("every_strategy_gives_what_the_naive_evaluator_says_it_may", 3_000, |seed| {
        let mut game = Game::new(seed, 12, invented::traits);
        for _ in 0..60 {
            game.step();
            game.queue.audit();
            game.wakes_whoever_waits();
        }
        game.leaves_nothing_behind();
    });
}

/// Lanes stand beside and between everything else; whoever waits is woken by tasks as by chunks.
#[test]
fn strategies_with_lanes_give_tasks_and_chunks_as_the_naive_evaluator_says() {
    sequences::run(
        "strategies_with_lanes_give_tasks_and_chunks_as_the_naive_evaluator_says",
        1_000,
        |seed| {
            let mut game = Game::new(seed, 6, invented::traits);
            game.create_lanes();
            for _ in 0..80 {
                match game.chance.below(4) {
                    0 => game.step_lanes(),
                    _ => game.step(),
                }
                game.queue.audit();
                game.wakes_whoever_waits();
            }
            game.leaves_nothing_behind();
        },
    );
}

#[test]
fn views_whose_fields_change_places_while_values_come_in_go_on_giving_what_they_may() {
    sequences::run(
        "views_whose_fields_change_places_while_values_come_in_go_on_giving_what_they_may",
        30,
        |seed| {
            let mut game = Game::new(seed, 200, invented::various_traits);
            for step in 0..400 {
                game.submit();
                game.step();
                if step % 10 == 0 {
                    game.queue.reserver.ready_mut().build();
                }
                if step % 40 == 0 {
                    game.wakes_whoever_waits();
                    game.queue.audit();
                }
            }
        },
    );
}

const STRATEGIES: usize = 8;

struct Game {
    chance: Seeded,
    submissions_max: usize,
    has_lanes: bool,
    traits: fn(&mut Seeded) -> Traits,
    queue: Queue,
    books: Books,
    strategies: Vec<Strategy>,
    /// The strategies in use, and whether somebody asked by it, got nothing and waits.
    plans: BTreeMap<PlanId, (Strategy, bool)>,
    /// Tokens of earlier hand-outs; consumers may come back with any of them.
    tokens: Vec<(ChunkName, AttemptToken)>,
}

impl Game {
    fn new(seed: u64, submissions_max: usize, traits: fn(&mut Seeded) -> Traits) -> Game {
        let mut chance = Seeded::new(seed);
        let strategies = (0..STRATEGIES).map(|_| invented::strategy(&mut chance)).collect();
        let queue = Queue::new(chance.draw());
        let (books, plans) = (Books::default(), BTreeMap::new());
        let (has_lanes, tokens) = (false, Vec::new());
        Game { chance, submissions_max, has_lanes, traits, queue, books, strategies, plans, tokens }
    }

    fn create_lanes(&mut self) {
        self.has_lanes = true;
        self.queue.create_lanes();
        (0..STRATEGIES).for_each(|_| self.invent_a_strategy());
    }

    fn step_lanes(&mut self) {
        let lane = LANES[below(&mut self.chance, LANES.len())];
        match self.chance.below(6) {
            0 => {
                let in_flight = [None, Some(0), Some(1), Some(3)][below(&mut self.chance, 4)];
                self.queue.set_lane(lane, self.chance.below(4) == 0, in_flight);
            }
            _ => {
                let priority = u8::from(self.chance.below(4) == 0);
                self.queue.add_task(lane, priority, self.chance.below(6));
            }
        }
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..14 => self.submit(),
            14..54 => self.reserve_one(),
            54..58 => self.reserve_many(),
            58..66 => self.with_something_out(|queue, name, _, _| queue.complete(name)),
            66..69 => self.with_something_out(|queue, name, token, ms| queue.fail(name, token.attempt, ms)),
            69..73 => self.with_something_out(|queue, name, token, _| queue.release(name, token)),
            73..75 => self.with_something_out(|queue, name, token, ms| queue.extend(name, token, ms)),
            75..78 => self.queue.wait_ms(self.chance.below(1_500)),
            78..80 => self.queue.lose_session(SessionId(self.chance.below(3))),
            80..82 => self.reassert(),
            82..85 => self.with_a_submission(|queue, submission, _| queue.cancel(submission)),
            85..90 => self.with_a_submission(Game::change),
            90..91 => self.with_a_submission(|queue, submission, _| queue.retry_failed(submission)),
            91..94 => self.queue.set_room(self.chance.below(12), self.chance.below(4) == 0),
            94..95 => self.set_weights(),
            95..97 => self.invent_a_strategy(),
            97..98 => drop(self.queue.reserver.ready_mut().build()),
            98..99 => self.sweep(),
            _ => self.change_leader(),
        }
        self.books.forget_inside(&self.queue.seen());
    }

    fn submit(&mut self) {
        if self.queue.ids().len() < self.submissions_max {
            let traits = (self.traits)(&mut self.chance);
            self.queue.submit(1 + self.chance.below(5), traits);
            self.queue.wait_ms(self.chance.below(3) * 50);
        }
    }

    /// Asks for a strategy's plan, as every reserve does.
    fn plan(&mut self) -> (PlanId, Strategy) {
        let strategy = self.strategies[below(&mut self.chance, STRATEGIES)].clone();
        let plan = self.queue.reserver.plan(&strategy, self.queue.now).expect("it is served");
        // What stands before views that are being built goes out all the same.
        if !strategy.lanes().is_empty() {
            while self.queue.reserver.ready_mut().build() {}
        }
        let is_building = self.queue.reserver.ready().is_building(plan);
        self.plans.entry(plan).or_insert_with(|| (strategy.clone(), is_building));
        (plan, strategy)
    }

    fn reserve_one(&mut self) {
        let (plan, strategy) = self.plan();
        let is_building = self.queue.reserver.ready().is_building(plan);
        let choices = naive::choices(&strategy, &self.queue.seen(), &self.books);
        // An explanation is one of submissions.
        let is_explained = !is_building && strategy.lanes().is_empty() && self.chance.below(4) == 0;
        let explained = is_explained.then(|| self.queue.reserver.explain(plan).expect("it is in use").next);
        let holder = self.holder();
        let given = self.queue.reserve(holder, 1, plan);
        self.tokens.extend(&given);
        if let Some(next) = explained {
            assert_eq!(given.first().map(|it| it.0), next, "{strategy} gives what an explanation said");
        }
        let Some((name, _)) = given.first() else {
            assert!(is_building || choices.is_empty(), "{strategy} gives nothing and may give {choices:?}");
            return;
        };
        let chosen = choices.iter().find(|choice| choice.submission == name.submission);
        let Some(chosen) = chosen else { panic!("{strategy} gives {name:?} and may give {choices:?}") };
        self.books.charge(chosen);
    }

    /// What one reserve hands out comes submission by submission, so that any order that the strategy may have had is
    /// as good. Where the orders differ in who has had how much, nobody can tell, and a new leader begins.
    fn reserve_many(&mut self) {
        let (plan, strategy) = self.plan();
        while self.queue.reserver.ready_mut().build() {}
        let max = 2 + below(&mut self.chance, 3);
        let seen = self.queue.seen();
        let holder = self.holder();
        let given = self.queue.reserve(holder, max, plan);
        self.tokens.extend(&given);
        let mut counts: BTreeMap<SubmissionId, u64> = BTreeMap::new();
        given.iter().for_each(|(name, _)| *counts.entry(name.submission).or_default() += 1);
        let after = naive::after_each_order(&strategy, &seen, &self.books, &counts, given.len() < max);
        let mut after = after.into_iter();
        match (after.next(), after.next()) {
            (None, _) => panic!("{strategy} gives {counts:?} of up to {max}, and may not"),
            (Some(only), None) => self.books = only,
            (Some(_), Some(_)) => self.change_leader(),
        }
    }

    fn holder(&mut self) -> Holder {
        match self.chance.below(4) {
            0 => Holder::Lease { until: self.queue.now.after_ms(self.chance.below(2_000)) },
            _ => Holder::Session(SessionId(self.chance.below(3))),
        }
    }

    fn with_something_out(&mut self, change: fn(&mut Queue, ChunkName, AttemptToken, u64)) {
        let out = self.queue.out();
        if !out.is_empty() {
            let (name, token) = out[below(&mut self.chance, out.len())];
            change(&mut self.queue, name, token, self.chance.below(1_000));
        }
    }

    fn with_a_submission(&mut self, change: fn(&mut Queue, SubmissionId, &mut Seeded)) {
        let ids = self.queue.ids();
        if !ids.is_empty() {
            let submission = ids[below(&mut self.chance, ids.len())];
            change(&mut self.queue, submission, &mut self.chance);
        }
    }

    /// A submission gets other metadata, another priority, or is paused or resumed.
    fn change(queue: &mut Queue, submission: SubmissionId, chance: &mut Seeded) {
        let mut traits = queue.traits_of(submission).clone();
        let other = invented::traits(chance);
        match chance.below(4) {
            0 => traits.priority = other.priority,
            1 => traits.paused = !traits.paused,
            2 => traits.metadata = other.metadata,
            _ => traits = other,
        }
        queue.change(submission, traits);
    }

    fn reassert(&mut self) {
        if !self.tokens.is_empty() {
            let (name, token) = self.tokens[below(&mut self.chance, self.tokens.len())];
            self.queue.reassert(SessionId(self.chance.below(3)), name, token);
        }
    }

    fn set_weights(&mut self) {
        let (field, weights) = (invented::field(&mut self.chance), invented::weights(&mut self.chance));
        self.queue.reserver.ready_mut().set_weights(&field, weights.clone());
        self.books.set_weights(&field, weights);
    }

    fn invent_a_strategy(&mut self) {
        let place = below(&mut self.chance, STRATEGIES);
        let invent = if self.has_lanes { invented::strategy_with_lanes } else { invented::strategy };
        self.strategies[place] = invent(&mut self.chance);
    }

    /// All but a few strategies have been idle for a minute, and are forgotten with their views; their turns are kept.
    fn sweep(&mut self) {
        self.queue.wait_ms(STRATEGY_IDLE_MS_MAX);
        let waited_for: BTreeSet<PlanId> =
            self.plans.keys().filter(|_| self.chance.below(2) == 0).copied().collect();
        self.queue.reserver.ready_mut().sweep(self.queue.now, |plan| waited_for.contains(&plan));
        self.plans.retain(|plan, _| waited_for.contains(plan));
        self.books.forget(self.plans.values().map(|(strategy, _)| strategy), &self.queue.seen());
    }

    fn change_leader(&mut self) {
        self.queue.change_leader(self.chance.draw());
        self.plans.clear();
        self.books = Books::default();
    }

    /// Whoever asked by a plan that gave nothing is woken when it gives something.
    fn wakes_whoever_waits(&mut self) {
        let woken = self.queue.reserver.ready_mut().take_woken();
        let seen = self.queue.seen();
        for (plan, (strategy, is_waited_for)) in &mut self.plans {
            let is_building = self.queue.reserver.ready().is_building(*plan);
            let gives_nothing = is_building || naive::choices(strategy, &seen, &self.books).is_empty();
            let is_overdue = *is_waited_for && !gives_nothing && !woken.contains(plan);
            assert!(!is_overdue, "{strategy} gives something now, and nobody was woken");
            // Whoever is woken asks again, others when they please.
            let is_asked = if *is_waited_for { woken.contains(plan) } else { self.chance.below(2) == 0 };
            if gives_nothing && is_asked {
                let given = self.queue.reserve(Holder::Session(SessionId(0)), 1, *plan);
                assert_eq!(given, [], "{strategy} has nothing to give");
            }
            *is_waited_for = gives_nothing && (*is_waited_for || is_asked);
        }
    }

    /// When all submissions are over and all strategies idle, nothing is known of them any more.
    fn leaves_nothing_behind(mut self) {
        self.queue.ids().into_iter().for_each(|submission| self.queue.cancel(submission));
        self.queue.complete_all_tasks();
        self.queue.wait_ms(STRATEGY_IDLE_MS_MAX);
        self.queue.reserver.ready_mut().sweep(self.queue.now, |_| false);
        self.queue.audit();
        let ready = self.queue.reserver.ready();
        assert_eq!((ready.views_len(), ready.len(), ready.paused_len()), ((0, 0), 0, 0));
        assert_eq!(ready.fields_known(), [], "nobody has a value of any field");
    }
}
