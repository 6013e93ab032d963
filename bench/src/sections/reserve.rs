//! What a reserve costs, by strategy, with a small and a large backlog, in this process.

use super::median;
use crate::Options;
use crate::leader::{Leader, Spent};
use crate::report::{Bar, Figure};
use crate::strategies::{AROUND_THE_LIMIT, AT_THE_LIMIT, Crowd, NESTED, PLAIN};

const SIZES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Turns of each queue before the next one has its own, so that noise meets all alike; a round is shorter than the time that
/// the system gives to others, so that most rounds are not interrupted.
const TURNS: u32 = 400;
const ROUNDS: usize = 75;

/// Turns at the beginning of a round that are not counted: the caches hold what the other queues left there.
const WARM_UP: u32 = 100;

/// A strategy in a situation.
struct Case {
    strategy: &'static str,
    situation: &'static str,
    /// Chunks of the crowded value that are out all the time.
    held: usize,
    /// Chunks that are out besides.
    out: usize,
}

/// Reserve, complete and replace at four sizes of the queue. The bar is on the same through a server: what this process
/// cannot keep in its caches is a larger part of a microsecond than of what a consumer sees.
pub(crate) fn in_process(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let case = |situation, held, out| move |strategy: &&'static str| Case { strategy, situation, held, out };
    let spread: Vec<Case> = PLAIN.iter().chain(&NESTED).map(case("200 chunks out", 0, 200)).collect();
    let at_limit = AT_THE_LIMIT.iter().map(case("99 % belong to one value at its limit", 200, 4));
    let around = AROUND_THE_LIMIT.iter().map(case("99 % belong to one value around its limit", 0, 8));
    let crowded: Vec<Case> = at_limit.chain(around).collect();
    let mut figures = Vec::new();
    for (crowd, cases) in [(Crowd::Spread, spread), (Crowd::OneValue, crowded)] {
        let mut leaders = SIZES.map(|size| Leader::new(crowd, size));
        for case in cases.iter().filter(|case| options.wants(case.strategy)) {
            figures.push(measure(&mut leaders, case)?);
        }
    }
    Ok(figures)
}

fn measure(leaders: &mut [Leader; SIZES.len()], case: &Case) -> anyhow::Result<Figure> {
    let mut plans = Vec::new();
    for leader in &mut *leaders {
        let plan = leader.begin(case.strategy, case.held, case.out)?;
        leader.turns(plan, 10 * TURNS)?;
        plans.push(plan);
    }
    let mut spent: [Vec<Spent>; SIZES.len()] = Default::default();
    for _ in 0..ROUNDS {
        for ((leader, plan), spent) in leaders.iter_mut().zip(&plans).zip(&mut spent) {
            leader.turns(*plan, WARM_UP)?;
            spent.push(leader.turns(*plan, TURNS)?);
        }
    }
    let totals = spent.each_ref().map(|spent| median(spent.iter().map(|it| it.us().iter().sum()).collect()));
    let parts = [&spent[0], &spent[SIZES.len() - 1]].map(|spent| {
        let part = |nth: usize| median(spent.iter().map(|it| it.us()[nth]).collect());
        format!("{:.2} + {:.2} + {:.2}", part(0), part(1), part(2))
    });
    Ok(Figure {
        what: format!("in process, {}; {}: 10^6 : 10^3 submissions", case.strategy, case.situation),
        value: totals[SIZES.len() - 1] / totals[0],
        unit: "×",
        bar: Bar::None,
        behind: format!(
            "{:.2}, {:.2}, {:.2}, {:.2} µs at 10^3, 10^4, 10^5, 10^6; reserve + complete + replace {} and {} µs",
            totals[0], totals[1], totals[2], totals[3], parts[0], parts[1]
        ),
    }
    .told())
}
