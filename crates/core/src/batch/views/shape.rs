//! Shapes: what a strategy comes down to, so that each part of it can be kept in order ahead of time.
//!
//! A strategy is tried as a list of paths, first to last: `OrElse` is both of its sides one after the other,
//! `PreferDistinct` is its inner strategy with the limit and then without. A path says which submissions count (`selects`),
//! by which fields they are grouped (limits and turns), and in which order the rest goes. Only inside `Fair` do
//! alternatives stay together, since the value whose turn it is comes first and its alternatives after that.

use crate::batch::strategy::{Max, Strategy};
use crate::batch::submissions::MetaValue;
use crate::limits::{STRATEGY_ALTERNATIVES_MAX, STRATEGY_TURNS_MAX};
use std::collections::BTreeMap;
use std::ops::Range;

/// Which submissions, grouped how, in which order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    pub(super) selects: BTreeMap<String, MetaValue>,
    pub(super) parts: Vec<Part>,
    pub(super) tail: Tail,
}

/// A grouping by a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Limit { field: String, max: Max, is_hard: bool },
    Fair(Share),
}

/// Turns between the values of a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share {
    pub(super) field: String,
    pub(super) weights: BTreeMap<String, u32>,
}

/// What becomes of the submissions of one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tail {
    Order(Order),
    Alternatives(Vec<Path>),
}

/// In which order submissions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Random,
    Oldest,
    Newest,
    Priority { aging_ms: Option<u64> },
}

/// One step of a strategy, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::batch) enum Stage {
    /// These of its paths, one after the other.
    Chunks(Range<usize>),
    /// The tasks of a lane.
    Lane(String),
}

/// The steps of a strategy: lanes stand alone or between the sides of `OrElse`, and its paths between them. What was tried
/// before gives nothing any more, and is left out.
pub(super) fn stages_of(strategy: &Strategy) -> Vec<Stage> {
    let (mut stages, mut paths) = (Vec::new(), Vec::new());
    for side in sides_of(strategy) {
        if let Strategy::Lane { name } = side {
            let lane = Stage::Lane(name.clone());
            if !stages.contains(&lane) {
                stages.push(lane);
            }
            continue;
        }
        let before = paths.len();
        for path in paths_of(side) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        match stages.last_mut() {
            Some(Stage::Chunks(range)) => range.end = paths.len(),
            Some(Stage::Lane(_)) | None => stages.push(Stage::Chunks(before..paths.len())),
        }
    }
    stages
}

/// What `OrElse` tries, one after the other.
fn sides_of(strategy: &Strategy) -> Vec<&Strategy> {
    match strategy {
        Strategy::OrElse { first, fallback } => [sides_of(first), sides_of(fallback)].concat(),
        other => vec![other],
    }
}

/// Why a strategy would need more views than it may have.
pub(super) fn problem(strategy: &Strategy) -> Option<String> {
    let (alternatives, turns) = (alternatives(strategy), turns(strategy));
    if alternatives > STRATEGY_ALTERNATIVES_MAX {
        return Some(format!(
            "this strategy comes down to {alternatives} alternatives and may have {STRATEGY_ALTERNATIVES_MAX}: each \
             OrElse adds its sides, and each PreferDistinct doubles what is inside it; use fewer of them"
        ));
    }
    (turns > STRATEGY_TURNS_MAX).then(|| {
        format!(
            "this strategy nests {turns} turns and may nest {STRATEGY_TURNS_MAX}: each Fair is one, and so is a choice \
             (OrElse, PreferDistinct) inside a Fair; make it simpler"
        )
    })
}

fn alternatives(strategy: &Strategy) -> usize {
    match strategy {
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => 1,
        Strategy::SelectOnly { inner, .. }
        | Strategy::MaxSimultaneous { inner, .. }
        | Strategy::Fair { inner, .. } => alternatives(inner),
        Strategy::PreferDistinct { inner, .. } => 2 * alternatives(inner),
        Strategy::OrElse { first, fallback } => alternatives(first) + alternatives(fallback),
    }
}

fn turns(strategy: &Strategy) -> usize {
    match strategy {
        Strategy::Random
        | Strategy::OldestFirst
        | Strategy::NewestFirst
        | Strategy::CustomPriority { .. }
        | Strategy::Lane { .. } => 0,
        Strategy::SelectOnly { inner, .. }
        | Strategy::MaxSimultaneous { inner, .. }
        | Strategy::PreferDistinct { inner, .. } => turns(inner),
        Strategy::Fair { inner, .. } => 1 + usize::from(alternatives(inner) > 1) + turns(inner),
        Strategy::OrElse { first, fallback } => turns(first).max(turns(fallback)),
    }
}

/// The paths of a strategy in the order in which they are tried. It must have no [`problem`].
pub(super) fn paths_of(strategy: &Strategy) -> Vec<Path> {
    routes_of(strategy).into_iter().map(|route| route.path).collect()
}

/// The choices that lead from a strategy to one of its orders: for each `OrElse` 0 for its first side and 1 for its
/// fallback, for each `PreferDistinct` 0 within its limit and 1 beyond it.
pub(super) type Trail = Vec<u8>;

/// A path, and the choices that lead to each of its tracks, in their order.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) path: Path,
    pub(super) trails: Vec<Trail>,
}

/// The paths of a strategy in the order in which they are tried, each with the choices that lead there. Choices that lead
/// to a path which was tried before are left out.
pub(super) fn routes_of(strategy: &Strategy) -> Vec<Route> {
    match strategy {
        Strategy::Random => Route::of(Order::Random),
        Strategy::OldestFirst => Route::of(Order::Oldest),
        Strategy::NewestFirst => Route::of(Order::Newest),
        Strategy::CustomPriority { aging_ms } => Route::of(Order::Priority { aging_ms: *aging_ms }),
        Strategy::SelectOnly { field, value, inner } => {
            let selecting = |route: Route| {
                Some(Route { path: route.path.selecting(field, value)?, trails: route.trails })
            };
            routes_of(inner).into_iter().filter_map(selecting).collect()
        }
        Strategy::MaxSimultaneous { field, max, inner } => limited(routes_of(inner), field, *max, true),
        Strategy::PreferDistinct { field, max, inner } => {
            let inner = routes_of(inner);
            choosing(limited(inner.clone(), field, *max, false), inner)
        }
        Strategy::OrElse { first, fallback } => choosing(routes_of(first), routes_of(fallback)),
        Strategy::Fair { field, weights, inner } => {
            let share = Part::Fair(Share { field: field.clone(), weights: weights.clone() });
            let mut inner = routes_of(inner);
            if let [only] = inner.as_mut_slice() {
                only.path.parts.insert(0, share);
                return inner;
            }
            if inner.is_empty() {
                return inner;
            }
            let (paths, trails): (Vec<_>, Vec<_>) =
                inner.into_iter().map(|route| (route.path, route.trails)).unzip();
            let tail = Tail::Alternatives(paths);
            let path = Path { selects: BTreeMap::new(), parts: vec![share], tail };
            vec![Route { path, trails: trails.concat() }]
        }
        Strategy::Lane { .. } => Vec::new(),
    }
}

fn limited(mut routes: Vec<Route>, field: &str, max: Max, is_hard: bool) -> Vec<Route> {
    let limit = Part::Limit { field: field.to_owned(), max, is_hard };
    routes.iter_mut().for_each(|route| route.path.parts.insert(0, limit.clone()));
    routes
}

/// The first routes, then the others that are not among them.
fn choosing(first: Vec<Route>, other: Vec<Route>) -> Vec<Route> {
    let mut kept: Vec<Route> = Vec::new();
    for (choice, route) in first.into_iter().map(|it| (0, it)).chain(other.into_iter().map(|it| (1, it))) {
        if kept.iter().all(|before| before.path != route.path) {
            let mut route = route;
            route.trails.iter_mut().for_each(|trail| trail.insert(0, choice));
            kept.push(route);
        }
    }
    kept
}

impl Route {
    fn of(order: Order) -> Vec<Route> {
        let path = Path { selects: BTreeMap::new(), parts: Vec::new(), tail: Tail::Order(order) };
        vec![Route { path, trails: vec![Vec::new()] }]
    }
}

impl Path {
    /// Only those with the value; none if another value of the field is wanted already.
    fn selecting(mut self, field: &str, value: &MetaValue) -> Option<Path> {
        match self.selects.get(field) {
            Some(wanted) if wanted != value => None,
            Some(_) => Some(self),
            None => {
                self.selects.insert(field.to_owned(), value.clone());
                Some(self)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(strategy: Strategy) -> Box<Strategy> {
        Box::new(strategy)
    }

    fn prefer(inner: Strategy) -> Strategy {
        Strategy::PreferDistinct { field: "a".into(), max: Max::Count(1), inner: boxed(inner) }
    }

    #[test]
    fn a_preference_is_its_inner_strategy_with_the_limit_and_then_without() {
        let paths = paths_of(&prefer(Strategy::OrElse {
            first: boxed(Strategy::OldestFirst),
            fallback: boxed(Strategy::Random),
        }));
        let seen: Vec<_> = paths.iter().map(|path| (path.parts.len(), path.tail.clone())).collect();
        let (oldest, random) = (Tail::Order(Order::Oldest), Tail::Order(Order::Random));
        assert_eq!(seen, [(1, oldest.clone()), (1, random.clone()), (0, oldest), (0, random)]);
    }

    #[test]
    fn alternatives_inside_fair_stay_together_below_the_turn() {
        let fair = Strategy::Fair {
            field: "a".into(),
            weights: BTreeMap::new(),
            inner: boxed(prefer(Strategy::Random)),
        };
        let paths = paths_of(&fair);
        assert_eq!(paths.len(), 1);
        assert!(matches!(&paths[0].tail, Tail::Alternatives(inner) if inner.len() == 2));
    }

    #[test]
    fn each_track_of_a_path_is_reached_by_its_choices_and_a_path_that_repeats_by_those_of_the_first() {
        let inner =
            Strategy::OrElse { first: boxed(Strategy::OldestFirst), fallback: boxed(Strategy::Random) };
        let fair = Strategy::Fair { field: "b".into(), weights: BTreeMap::new(), inner: boxed(inner) };
        let both = Strategy::OrElse { first: boxed(prefer(fair.clone())), fallback: boxed(fair) };
        let trails: Vec<Vec<Trail>> = routes_of(&both).into_iter().map(|route| route.trails).collect();
        let within = vec![vec![0, 0, 0], vec![0, 0, 1]];
        let beyond = vec![vec![0, 1, 0], vec![0, 1, 1]];
        assert_eq!(trails, [within, beyond]);
    }

    #[test]
    fn lanes_are_steps_between_the_paths_of_the_other_sides() {
        let lane = |name: &str| Strategy::Lane { name: name.into() };
        let or_else = |first, fallback| Strategy::OrElse { first: boxed(first), fallback: boxed(fallback) };
        let strategy = or_else(
            or_else(prefer(Strategy::Random), lane("urgent")),
            or_else(Strategy::Random, or_else(Strategy::OldestFirst, lane("slow"))),
        );
        assert_eq!(
            stages_of(&strategy),
            [
                Stage::Chunks(0..2),
                Stage::Lane("urgent".into()),
                Stage::Chunks(2..3),
                Stage::Lane("slow".into())
            ]
        );
        assert_eq!(paths_of(&strategy).len(), 3, "the second Random is the first's, beyond its limit");
        assert_eq!(stages_of(&Strategy::Random), [Stage::Chunks(0..1)]);
        assert_eq!(stages_of(&or_else(lane("a"), or_else(lane("a"), lane("a")))), [Stage::Lane("a".into())]);
        assert_eq!(stages_of(&lane("a")), [Stage::Lane("a".into())]);
    }

    #[test]
    fn preferences_that_would_double_too_often_are_refused_with_the_number() {
        let deep = (0..10).fold(Strategy::Random, |inner, _| prefer(inner));
        let sentence = problem(&deep).unwrap();
        assert!(sentence.contains("1024 alternatives"), "{sentence}");
        assert_eq!(problem(&prefer(Strategy::Random)), None);
    }
}
