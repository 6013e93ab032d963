//! Views: for each strategy in use, the ready submissions in the order in which it would hand them out.
//!
//! A view is built once, in steps, kept up to date by every change, shared by all strategies that need the same one, and
//! dropped when nobody has used it for a minute. A change of a submission concerns the views without a `SelectOnly` around
//! them (there are few) and those that select one of its values, and no others.
//!
//! Reading order: `shape.rs` (what a strategy comes down to), `tracks.rs` (its fields, limits and turns), `books.rs` (who
//! has had how much), `piles.rs`, `keys.rs` and `places.rs`, `view.rs`, `pick.rs`; then `explain/` (what a strategy would give, and why)
//! and `overview.rs`.
//!
//! Invariants
//! - Every view agrees with the ready submissions, the counts of values and the books (see `view.rs`).
//! - A plan that was asked for and gave nothing is among the woken ones as soon as one of its views gives something.

pub(super) mod audit;
mod books;
pub mod explain;
mod keys;
pub mod overview;
mod pick;
mod piles;
mod places;
mod shape;
mod tracks;
mod view;

use super::strategy::Strategy;
use super::values::{FewValues, FieldId, ValueId, Values};
use crate::limits::{STRATEGIES_IN_USE_MAX, STRATEGY_IDLE_MS_MAX, VIEW_BUILD_STEP, WIDE_VIEWS_MAX};
use crate::seeded::Seeded;
use crate::time::At;
use books::{BookId, Books};
use pick::Pick;
use shape::Path;
pub(super) use shape::Stage;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tracks::{Group, Room, Step};
pub(super) use view::Candidate;
use view::{Known, View};

/// A strategy in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ViewId(u32);

/// Why a strategy cannot be served, if only because of how much it asks for.
pub(super) fn problem(strategy: &Strategy) -> Option<String> {
    shape::problem(strategy)
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Views {
    values: Values,
    books: Books,
    slab: Vec<Option<InUse>>,
    by_path: BTreeMap<Path, ViewId>,
    /// Views that concern every submission.
    wide: Vec<ViewId>,
    by_select: BTreeMap<ValueId, Vec<ViewId>>,
    by_limit: BTreeMap<FieldId, Vec<ViewId>>,
    by_turn: BTreeMap<BookId, Vec<ViewId>>,
    by_lane: BTreeMap<String, Vec<PlanId>>,
    building: BTreeSet<ViewId>,
    plans: BTreeMap<PlanId, Plan>,
    by_strategy: BTreeMap<Strategy, PlanId>,
    next_plan: u32,
    woken: BTreeSet<PlanId>,
    room: Room,
}

#[derive(Debug)]
struct InUse {
    view: View,
    plans: Vec<PlanId>,
}

#[derive(Debug)]
struct Plan {
    strategy: Strategy,
    views: Vec<ViewId>,
    stages: Arc<[Stage]>,
    used_at: At,
    /// When somebody last reserved with it; none if it was only looked at.
    worked_at: Option<At>,
}

/// What a plan is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody looks what it would give. It counts nowhere, and is forgotten first.
    Look,
    /// Somebody reserves with it.
    Work,
}

/// What a plan gives next, and where it was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: u32,
    view: ViewId,
    track: usize,
}

impl Default for Views {
    fn default() -> Views {
        Views {
            values: Values::default(),
            books: Books::default(),
            slab: Vec::new(),
            by_path: BTreeMap::new(),
            wide: Vec::new(),
            by_select: BTreeMap::new(),
            by_limit: BTreeMap::new(),
            by_turn: BTreeMap::new(),
            by_lane: BTreeMap::new(),
            building: BTreeSet::new(),
            plans: BTreeMap::new(),
            by_strategy: BTreeMap::new(),
            next_plan: 0,
            woken: BTreeSet::new(),
            room: Room { consumers: 0, is_holding: false },
        }
    }
}

impl Views {
    /// The values of submissions.
    pub(super) const fn values(&self) -> &Values {
        &self.values
    }

    pub(super) const fn values_mut(&mut self) -> &mut Values {
        &mut self.values
    }

    /// A submission does not have these values any more.
    pub(super) fn let_go(&mut self, of: &FewValues) {
        for value in of.iter() {
            if self.values.leave(value) {
                self.books.forget_inside(value, &mut self.values);
            }
            self.values.release(value);
        }
    }

    /// The plan of a strategy, whose views are made if it has none yet. A refusal is a sentence that says what to do.
    pub(super) fn plan(&mut self, strategy: &Strategy, now: At, purpose: Purpose) -> Result<PlanId, String> {
        let worked_at = (purpose == Purpose::Work).then_some(now);
        if let Some(id) = self.by_strategy.get(strategy) {
            let plan = self.plans.get_mut(id).expect("a known strategy has its plan");
            plan.used_at = now;
            plan.worked_at = worked_at.or(plan.worked_at);
            return Ok(*id);
        }
        if let Some(problem) = strategy.problem().or_else(|| problem(strategy)) {
            return Err(problem);
        }
        let paths = shape::paths_of(strategy);
        if purpose == Purpose::Work && !self.has_room_for(&paths) {
            self.forget(|_, plan| plan.worked_at.is_none());
        }
        if !self.has_room_for(&paths) {
            return Err(format!(
                "too many different strategies are in use: at most {STRATEGIES_IN_USE_MAX}, and {WIDE_VIEWS_MAX} parts \
                 of them that look at every submission; let consumers share strategies, or wait a minute until unused \
                 ones are forgotten"
            ));
        }

        // Nothing below can be refused.
        let id = PlanId(self.next_plan);
        self.next_plan += 1;
        let views = paths.iter().map(|path| self.view_of(path, id)).collect();
        let stages: Arc<[Stage]> = shape::stages_of(strategy).into();
        for lane in lanes_of(&stages) {
            self.by_lane.entry(lane.to_owned()).or_default().push(id);
        }
        self.plans.insert(id, Plan { strategy: strategy.clone(), views, stages, used_at: now, worked_at });
        self.by_strategy.insert(strategy.clone(), id);
        Ok(id)
    }

    fn has_room_for(&self, paths: &[Path]) -> bool {
        let is_new_and_wide = |path: &&Path| path.selects.is_empty() && !self.by_path.contains_key(path);
        let wide = self.wide.len() + paths.iter().filter(is_new_and_wide).count();
        self.plans.len() < STRATEGIES_IN_USE_MAX && wide <= WIDE_VIEWS_MAX
    }

    fn view_of(&mut self, path: &Path, plan: PlanId) -> ViewId {
        if let Some(id) = self.by_path.get(path) {
            self.slab[id.0 as usize].as_mut().expect("a known path has its view").plans.push(plan);
            return *id;
        }
        let view = View::open(path, self.room, &mut self.values, &mut self.books);
        let free = self.slab.iter().position(Option::is_none).unwrap_or(self.slab.len());
        let id = ViewId(u32::try_from(free).expect("views are few"));
        self.register(id, &view);
        let in_use = Some(InUse { view, plans: vec![plan] });
        match self.slab.get_mut(free) {
            Some(place) => *place = in_use,
            None => self.slab.push(in_use),
        }
        self.by_path.insert(path.clone(), id);
        self.building.insert(id);
        id
    }

    fn register(&mut self, id: ViewId, view: &View) {
        let put = |ids: &mut Vec<ViewId>| {
            if !ids.contains(&id) {
                ids.push(id);
            }
        };
        // The selects around all alternatives come first, in every track.
        match view.path().selects.first_key_value() {
            Some(_) => put(self.by_select.entry(view.tracks()[0].selects[0]).or_default()),
            None => put(&mut self.wide),
        }
        for group in groups_of(view) {
            if !group.limits.is_empty() {
                put(self.by_limit.entry(group.field).or_default());
            }
            if let Some(fair) = group.fair {
                put(self.by_turn.entry(fair.book).or_default());
            }
        }
    }

    fn unregister(&mut self, id: ViewId) {
        self.wide.retain(|it| *it != id);
        self.building.remove(&id);
        fn take<K: Ord>(map: &mut BTreeMap<K, Vec<ViewId>>, id: ViewId) {
            map.retain(|_, ids| {
                ids.retain(|it| *it != id);
                !ids.is_empty()
            });
        }
        take(&mut self.by_select, id);
        take(&mut self.by_limit, id);
        take(&mut self.by_turn, id);
    }

    /// Forgets plans that nobody has used for a while, and the views that no other plan needs. Whose turn it is among the
    /// values of a field is kept for longer.
    pub(super) fn sweep(&mut self, now: At, is_waited_for: impl Fn(PlanId) -> bool) {
        let is_long_ago = |at: At| at.after_ms(STRATEGY_IDLE_MS_MAX) <= now;
        for (id, plan) in &mut self.plans {
            plan.worked_at = plan.worked_at.filter(|at| !is_long_ago(*at) || is_waited_for(*id));
        }
        self.forget(|id, plan| is_long_ago(plan.used_at) && !is_waited_for(id));
        self.books.forget_closed(&mut self.values);
    }

    fn forget(&mut self, is_unneeded: impl Fn(PlanId, &Plan) -> bool) {
        let unneeded = self.plans.iter().filter(|(id, plan)| is_unneeded(**id, plan));
        let unneeded: Vec<PlanId> = unneeded.map(|(id, _)| *id).collect();
        for id in unneeded {
            let plan = self.plans.remove(&id).expect("it was just found");
            self.by_strategy.remove(&plan.strategy);
            self.woken.remove(&id);
            for lane in lanes_of(&plan.stages) {
                let plans = self.by_lane.get_mut(lane).expect("a plan's lanes know it");
                plans.retain(|it| *it != id);
                if plans.is_empty() {
                    self.by_lane.remove(lane);
                }
            }
            for view in plan.views {
                self.leave(view, id);
            }
        }
    }

    /// The views that somebody works with.
    fn views_in_use(&self) -> impl Iterator<Item = &View> {
        let is_worked_with = |plan: &PlanId| self.plans[plan].worked_at.is_some();
        let in_use = self.slab.iter().flatten().filter(move |it| it.plans.iter().any(is_worked_with));
        in_use.map(|it| &it.view)
    }

    fn leave(&mut self, id: ViewId, plan: PlanId) {
        let Some(in_use) = &mut self.slab[id.0 as usize] else { return };
        in_use.plans.retain(|it| *it != plan);
        if in_use.plans.is_empty() {
            self.unregister(id);
            let gone = self.slab[id.0 as usize].take().expect("it is here");
            self.by_path.remove(gone.view.path());
            gone.view.close(&mut self.values, &mut self.books);
        }
    }

    /// Goes on building the views that are not whole yet. Says whether there is more to do.
    pub(super) fn build<'a>(&mut self, slots: u32, candidate: impl Fn(u32) -> Option<Candidate<'a>>) -> bool {
        self.reopen_those_out_of_order();
        let Some(id) = self.building.first().copied() else { return false };
        let known = Known { values: &self.values, books: &self.books };
        let in_use = self.slab[id.0 as usize].as_mut().expect("a view that is built is in use");
        let from = in_use.view.built_to();
        let to = slots.min(from.saturating_add(VIEW_BUILD_STEP as u32));
        in_use.view.set_built_to(to, to == slots);
        for slot in from..to {
            if let Some(candidate) = candidate(slot) {
                in_use.view.set(candidate, known);
            }
        }
        if in_use.view.is_built() {
            self.building.remove(&id);
            // It stood in the way of the views behind it, too.
            let Views { slab, plans, woken, .. } = self;
            let gives = |id: &ViewId| slab[id.0 as usize].as_ref().is_some_and(|it| !it.view.is_empty());
            let in_use = slab[id.0 as usize].as_ref().expect("it was just built");
            woken.extend(in_use.plans.iter().filter(|plan| plans[*plan].views.iter().any(gives)));
        }
        !self.building.is_empty()
    }

    /// Fields with few values come first; what is known of them when a view is opened may be little.
    fn reopen_those_out_of_order(&mut self) {
        for place in 0..self.slab.len() {
            let Some(in_use) = &mut self.slab[place] else { continue };
            if !in_use.view.is_out_of_order(&self.values) {
                continue;
            }
            let id = ViewId(u32::try_from(place).expect("views are few"));
            let path = in_use.view.path().clone();
            let fresh = View::open(&path, self.room, &mut self.values, &mut self.books);
            let old = std::mem::replace(&mut in_use.view, fresh);
            old.close(&mut self.values, &mut self.books);
            self.unregister(id);
            let in_use = self.slab[place].take().expect("it is here");
            self.register(id, &in_use.view);
            self.slab[place] = Some(in_use);
            self.building.insert(id);
        }
    }

    /// Whether a plan can only say after some building what it gives.
    pub(super) fn is_building(&self, plan: PlanId) -> bool {
        !self.building.is_empty()
            && self
                .plans
                .get(&plan)
                .is_some_and(|plan| plan.views.iter().any(|id| self.building.contains(id)))
    }

    /// The plans that may give something since they were last asked for.
    pub(super) fn take_woken(&mut self) -> BTreeSet<PlanId> {
        std::mem::take(&mut self.woken)
    }

    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// A submission's ready chunks have changed.
    pub(super) fn set(&mut self, it: Candidate<'_>) {
        let Views { values, books, slab, wide, by_select, woken, .. } = self;
        let known = Known { values, books };
        let selecting = it.values.iter().filter_map(|value| by_select.get(&value)).flatten();
        for id in wide.iter().chain(selecting) {
            touch(slab, *id, woken, |view| view.set(it, known));
        }
    }

    /// One more or one less chunk of a submission with these values is out.
    pub(super) fn count(&mut self, of: &FewValues, is_out: bool) {
        self.values.count_of_all(is_out);
        for value in of.iter() {
            if is_out {
                // Whether it is saturated now is looked at where a pick comes by.
                self.values.count_out(value);
                continue;
            }
            self.values.count_in(value);
            let Views { values, books, slab, by_limit, woken, .. } = self;
            let (field, out) = (values.field_of(value), values.out(value));
            let known = Known { values, books };
            for id in by_limit.get(&field).into_iter().flatten() {
                let in_use = slab[id.0 as usize].as_ref().expect("a registered view is in use");
                let frees = |group: &Group| group.field == field && group.room == out + 1;
                if groups_of(&in_use.view).any(frees) {
                    touch(slab, *id, woken, |view| view.unblock(value, known));
                }
            }
        }
    }

    /// Follows the number of connected consumers, and whether hard limits hold everything back.
    pub(super) fn set_room(&mut self, consumers: u64, is_holding: bool) {
        let room = Room { consumers, is_holding };
        if std::mem::replace(&mut self.room, room) == room {
            return;
        }
        let Views { values, books, slab, by_limit, woken, .. } = self;
        let known = Known { values, books };
        let limited: BTreeSet<ViewId> = by_limit.values().flatten().copied().collect();
        for id in limited {
            touch(slab, id, woken, |view| view.set_room(room, known));
        }
    }

    /// The steps of a plan, in the order in which they are tried.
    pub(super) fn stages(&self, plan: PlanId) -> Arc<[Stage]> {
        self.plans.get(&plan).map_or_else(|| Arc::new([]) as Arc<[Stage]>, |plan| Arc::clone(&plan.stages))
    }

    /// A lane may have something to give: whoever waits for it is looked at.
    pub(super) fn wake_lane(&mut self, lane: &str) {
        self.woken.extend(self.by_lane.get(lane).into_iter().flatten());
    }

    /// What a plan gives next.
    pub(super) fn pick(&mut self, plan: PlanId, chance: &mut Seeded) -> Option<Found> {
        self.pick_within(plan, 0..self.plans.get(&plan)?.views.len(), chance)
    }

    /// What some of a plan's views give next.
    pub(super) fn pick_within(
        &mut self,
        plan: PlanId,
        among: Range<usize>,
        chance: &mut Seeded,
    ) -> Option<Found> {
        let Views { values, books, slab, plans, .. } = self;
        let known = Known { values, books };
        for id in &plans.get(&plan)?.views[among] {
            let view = &mut slab[id.0 as usize].as_mut().expect("a plan's views are in use").view;
            // What comes after a view that is being built might be second choice.
            if !view.is_built() {
                return None;
            }
            if let Some(Pick { slot, track }) = view.pick(chance, known) {
                return Some(Found { slot, view: *id, track });
            }
        }
        None
    }

    /// Brings a plan's views in the state in which all of them can be looked at.
    fn settle(&mut self, plan: PlanId) {
        let Views { values, books, slab, plans, .. } = self;
        for id in plans.get(&plan).into_iter().flat_map(|plan| &plan.views) {
            let view = &mut slab[id.0 as usize].as_mut().expect("a plan's views are in use").view;
            view.settle(Known { values, books });
        }
    }

    /// How many chunks of the submission that was found may go out before the plan is asked again.
    pub(super) fn allowance(&self, found: Found, of: &FewValues, max: usize) -> usize {
        let view = &self.slab[found.view.0 as usize].as_ref().expect("it was just found").view;
        let track = &view.tracks()[found.track];
        if !track.takes_many() {
            return 1;
        }
        let rooms = track.steps.iter().filter_map(|step| match step {
            Step::Group(group) if group.room < u64::MAX => {
                let value = self.values.of_field(of, group.field);
                (!self.values.is_missing(value)).then(|| group.room - self.values.out(value))
            }
            Step::Group(_) | Step::Alternative { .. } => None,
        });
        rooms.fold(max, |max, room| max.min(usize::try_from(room).unwrap_or(max)))
    }

    /// Counts a chunk that was found as a turn of its values.
    pub(super) fn serve(&mut self, found: Found, of: &FewValues) {
        let view = &self.slab[found.view.0 as usize].as_ref().expect("it was just found").view;
        let seats: Vec<_> = view.tracks()[found.track].seats(of, &self.values).collect();
        for (book, seat) in seats {
            let changed = self.books.serve(book, &seat, &mut self.values);
            let Views { values, books, slab, by_turn, woken, .. } = self;
            let known = Known { values, books };
            for id in by_turn.get(&book).into_iter().flatten() {
                touch(slab, *id, woken, |view| changed.iter().for_each(|value| view.look_at(*value, known)));
            }
        }
    }

    /// Sets the weights of a field's values for every strategy that does not name them itself.
    pub(super) fn set_weights(&mut self, field: &str, weights: BTreeMap<String, u32>) {
        self.books.set_weights(field, weights);
    }

    /// How many views there are, and how many places submissions have in them.
    pub(super) fn size(&self) -> (usize, usize) {
        let views = self.slab.iter().flatten();
        views.fold((0, 0), |(count, places), in_use| (count + 1, places + in_use.view.len()))
    }
}

fn lanes_of(stages: &[Stage]) -> impl Iterator<Item = &str> {
    stages.iter().filter_map(|stage| match stage {
        Stage::Lane(lane) => Some(lane.as_str()),
        Stage::Chunks(_) => None,
    })
}

fn groups_of(view: &View) -> impl Iterator<Item = &Group> {
    view.tracks().iter().flat_map(|track| &track.steps).filter_map(|step| match step {
        Step::Group(group) => Some(group),
        Step::Alternative { .. } => None,
    })
}

/// Changes a view, and wakes its plans if it gives something now and gave nothing before.
fn touch(
    slab: &mut [Option<InUse>],
    id: ViewId,
    woken: &mut BTreeSet<PlanId>,
    change: impl FnOnce(&mut View),
) {
    let in_use = slab[id.0 as usize].as_mut().expect("a registered view is in use");
    let was_empty = in_use.view.is_empty();
    change(&mut in_use.view);
    if was_empty && !in_use.view.is_empty() {
        woken.extend(&in_use.plans);
    }
}
