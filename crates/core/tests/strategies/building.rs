//! Views of a large queue are built in steps. What happens between the steps is in them, and they give nothing too early.

use crate::invented::{self, below};
use crate::naive::{self, Books};
use crate::queue::{Queue, traits};
use crate::sequences;
use windlass_core::batch::reserver::{Holder, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::limits::VIEW_BUILD_STEP;
use windlass_core::seeded::Seeded;

const ANNA: Holder = Holder::Session(SessionId(1));

#[test]
fn views_that_are_built_in_steps_while_everything_changes_end_in_the_same_choices() {
    sequences::run(
        "views_that_are_built_in_steps_while_everything_changes_end_in_the_same_choices",
        1,
        |seed| {
            let mut chance = Seeded::new(seed);
            let mut queue = Queue::new(chance.draw());
            for _ in 0..2 * VIEW_BUILD_STEP + 100 {
                queue.submit(1 + chance.below(2), invented::various_traits(&mut chance));
            }
            let strategies: Vec<Strategy> = (0..6).map(|_| invented::strategy(&mut chance)).collect();
            let plans: Vec<_> =
                strategies.iter().map(|it| queue.reserver.plan(it, queue.now).unwrap()).collect();
            let first = queue.plan(&Strategy::OldestFirst);
            while queue.reserver.ready_mut().build() {
                (0..40).for_each(|_| change(&mut queue, &mut chance));
                queue.reserve(ANNA, 10, first);
            }
            queue.audit();

            let mut books = Books::default();
            for (strategy, plan) in strategies.iter().zip(plans) {
                for _ in 0..10 {
                    let choices = naive::choices(strategy, &queue.seen(), &books);
                    let given = queue.reserve(ANNA, 1, plan);
                    let given = given.first().map(|(name, _)| name.submission);
                    let chosen = choices.iter().find(|it| Some(it.submission) == given);
                    assert_eq!(
                        chosen.is_none(),
                        choices.is_empty(),
                        "{strategy} gives {given:?} of {choices:?}"
                    );
                    chosen.into_iter().for_each(|chosen| books.charge(chosen));
                }
            }
        },
    );
}

fn change(queue: &mut Queue, chance: &mut Seeded) {
    let ids = queue.ids();
    let submission = ids[below(chance, ids.len())];
    match chance.below(4) {
        0 => drop(queue.submit(1, invented::various_traits(chance))),
        1 => queue.cancel(submission),
        2 => queue.change(submission, invented::various_traits(chance)),
        _ => {
            let out = queue.out();
            if let Some((name, _)) = out.first() {
                queue.complete(*name);
            }
        }
    }
}

/// While the preferred view was being built, the fallback gave what should have waited.
#[test]
fn a_strategy_gives_no_second_choice_while_the_view_of_the_first_is_being_built() {
    let mut queue = Queue::new(1);
    for _ in 0..=VIEW_BUILD_STEP {
        queue.submit(1, traits([("mode", "normal".into())]));
    }
    let preview = queue.submit(1, traits([("mode", "preview".into())]));
    queue.plan(&Strategy::OldestFirst);
    let preview_first =
        Strategy::select_only("mode", "preview", Strategy::OldestFirst).or_else(Strategy::OldestFirst);
    let plan = queue.reserver.plan(&preview_first, queue.now).unwrap();
    assert!(queue.reserver.ready().is_building(plan));
    assert_eq!(queue.reserve(ANNA, 1, plan), []);
    assert!(!queue.reserver.ready_mut().build());
    assert!(queue.reserver.ready_mut().take_woken().contains(&plan));
    let given = queue.reserve(ANNA, 1, plan);
    assert_eq!(given[0].0.submission, preview);

    // Also if what was built turns out to be empty.
    let dream_first =
        Strategy::select_only("mode", "dream", Strategy::OldestFirst).or_else(Strategy::OldestFirst);
    let plan = queue.reserver.plan(&dream_first, queue.now).unwrap();
    assert_eq!(queue.reserve(ANNA, 1, plan), []);
    queue.reserver.ready_mut().take_woken();
    while queue.reserver.ready_mut().build() {}
    assert!(queue.reserver.ready_mut().take_woken().contains(&plan));
    assert_eq!(queue.reserve(ANNA, 1, plan).len(), 1);
}
