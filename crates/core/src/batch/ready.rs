//! Ready: the running submissions as the leader hands them out: their ready chunks, what strategies go by, and the views
//! that keep them in order.
//!
//! Invariants
//! - A submission is here as long as it runs; its weight is its number of ready chunks, and 0 while it is paused.
//! - The views know every submission with its weight, and nothing else.
//! - The chunks out of a submission are counted for each of its values.
//!
//! A submission takes about 64 bytes here, and 8 to 60 more in each view that it is in.

use super::deck::{Deck, Side};
use super::strategy::Strategy;
use super::submissions::{MetadataBytes, Traits};
use super::values::FewValues;
use super::views::explain::{Elsewhere, Explanation, Subject, SubmissionSeen};
use super::views::overview::{FieldKnown, FieldSeen, LimitsReached, StrategyInUse};
use super::views::{self, Candidate, PlanId, Purpose, Stage, Views};
use crate::ascending::AscendingMap;
use crate::ids::{ChunkIndex, ChunkName, SubmissionId};
use crate::limits::VIEW_BUILD_STEP;
use crate::seeded::Seeded;
use crate::time::At;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Ready {
    by_id: AscendingMap<SubmissionId, u32>,
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    views: Views,
    chunks: u64,
    paused_chunks: u64,
}

#[derive(Debug)]
struct Item {
    id: SubmissionId,
    deck: Deck,
    priority: i64,
    values: FewValues,
    is_paused: bool,
    is_plain: bool,
}

impl Item {
    fn weight(&self) -> u64 {
        if self.is_paused { 0 } else { self.deck.len() }
    }

    fn candidate(&self, slot: u32) -> Candidate<'_> {
        let Item { id, priority, values, .. } = self;
        Candidate { slot, id: *id, priority: *priority, weight: self.weight(), values }
    }
}

impl Ready {
    /// How many chunks are ready.
    pub fn len(&self) -> u64 {
        self.chunks - self.paused_chunks
    }

    /// Whether no chunk is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many chunks would be ready if their submissions were not paused.
    pub const fn paused_len(&self) -> u64 {
        self.paused_chunks
    }

    /// How many chunks of a submission are ready, or would be if it were not paused.
    pub fn len_of(&self, submission: SubmissionId) -> u64 {
        self.item(submission).map_or(0, |it| it.deck.len())
    }

    /// Whether the chunk is ready, or would be if its submission were not paused.
    pub fn contains(&self, submission: SubmissionId, chunk: ChunkIndex) -> bool {
        self.item(submission).is_some_and(|it| it.deck.contains(chunk))
    }

    fn item(&self, submission: SubmissionId) -> Option<&Item> {
        self.items[*self.by_id.get(&submission)? as usize].as_ref()
    }

    /// Puts the chunks of a submission with `out` chunks out, replacing those that were known of it. The last range is
    /// taken as untouched.
    pub fn put(&mut self, submission: SubmissionId, traits: &Traits, out: usize, ranges: &[Range<u64>]) {
        if self.by_id.contains_key(&submission) {
            self.change_traits(submission, traits, out);
            self.change(submission, |deck| *deck = Deck::new(ranges));
            return;
        }
        let item = Item {
            id: submission,
            deck: Deck::default(),
            priority: traits.priority,
            values: self.views.values_mut().of(&traits.metadata),
            is_paused: traits.paused,
            is_plain: traits.is_plain,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            u32::try_from(self.items.len() - 1).expect("fewer than 4 billion submissions fit into memory")
        });
        self.items[slot as usize] = Some(item);
        self.by_id.insert(submission, slot);
        self.change(submission, |deck| *deck = Deck::new(ranges));
    }

    /// Follows what strategies go by of a submission with `out` chunks out.
    pub fn change_traits(&mut self, submission: SubmissionId, traits: &Traits, out: usize) {
        let Some(slot) = self.by_id.get(&submission).copied() else { return };
        let item = self.items[slot as usize].as_mut().expect("a known submission has its item");
        let new_values = self.views.values_mut().of(&traits.metadata);
        let is_same = item.priority == traits.priority
            && item.is_paused == traits.paused
            && item.values.iter().eq(new_values.iter());
        item.is_plain = traits.is_plain;
        let old_values = if is_same { new_values } else { std::mem::replace(&mut item.values, new_values) };
        if !is_same {
            self.views.set(Candidate { weight: 0, values: &old_values, ..item.candidate(slot) });
            self.views.values_mut().count_ready(&old_values, item.weight(), 0);
            (0..out).for_each(|_| self.views.count(&old_values, false));
            if item.is_paused != traits.paused {
                let len = item.deck.len();
                self.paused_chunks =
                    if traits.paused { self.paused_chunks + len } else { self.paused_chunks - len };
            }
            item.priority = traits.priority;
            item.is_paused = traits.paused;
            (0..out).for_each(|_| self.views.count(&item.values, true));
            self.views.values_mut().count_ready(&item.values, 0, item.weight());
            self.views.set(item.candidate(slot));
        }
        self.views.let_go(&old_values);
    }

    /// Puts one chunk that is not ready.
    pub fn put_back(&mut self, submission: SubmissionId, chunk: ChunkIndex, side: Side) {
        self.change(submission, |deck| deck.put_back(chunk, side));
    }

    /// Takes one chunk out, if it is ready.
    pub fn take_out(&mut self, submission: SubmissionId, chunk: ChunkIndex) -> bool {
        let slot = self.by_id.get(&submission).copied();
        slot.is_some_and(|slot| self.change_at(slot, |deck| deck.take_out(chunk)))
    }

    /// Takes out the submission with all its chunks; none of them is out any more.
    pub fn remove_submission(&mut self, submission: SubmissionId) {
        if !self.by_id.contains_key(&submission) {
            return;
        }
        self.change(submission, |deck| *deck = Deck::default());
        let slot = self.by_id.remove(&submission).expect("it was just found");
        let item = self.items[slot as usize].take().expect("a known submission has its item");
        self.views.let_go(&item.values);
        self.free.push(slot);
    }

    fn change<R>(&mut self, submission: SubmissionId, change: impl FnOnce(&mut Deck) -> R) -> R {
        let slot = *self.by_id.get(&submission).expect("a submission with ready chunks is known");
        self.change_at(slot, change)
    }

    fn change_at<R>(&mut self, slot: u32, change: impl FnOnce(&mut Deck) -> R) -> R {
        let item = self.items[slot as usize].as_mut().expect("a known submission has its item");
        let (len, weight) = (item.deck.len(), item.weight());
        let result = change(&mut item.deck);
        self.chunks = self.chunks - len + item.deck.len();
        if item.is_paused {
            self.paused_chunks = self.paused_chunks - len + item.deck.len();
        }
        if item.weight() != weight {
            self.views.values_mut().count_ready(&item.values, weight, item.weight());
            self.views.set(item.candidate(slot));
        }
        result
    }

    /// The plan of a strategy; a refusal is a sentence that says what to do.
    pub fn plan(&mut self, strategy: &Strategy, now: At) -> Result<PlanId, String> {
        self.plan_for(strategy, now, Purpose::Work)
    }

    /// The same for somebody who only looks: it does not count as in use, and makes room for those who work.
    pub fn plan_for_a_look(&mut self, strategy: &Strategy, now: At) -> Result<PlanId, String> {
        self.plan_for(strategy, now, Purpose::Look)
    }

    fn plan_for(&mut self, strategy: &Strategy, now: At, purpose: Purpose) -> Result<PlanId, String> {
        let plan = self.views.plan(strategy, now, purpose)?;
        // Small queues are in order at once; of large ones only a first step is taken here.
        let mut looked_at = 0;
        while looked_at < VIEW_BUILD_STEP && self.views.is_building(plan) {
            self.build();
            looked_at += self.items.len().max(1);
        }
        Ok(plan)
    }

    /// Goes on building views; says whether there is more to do.
    pub fn build(&mut self) -> bool {
        let items = &self.items;
        let slots = u32::try_from(items.len()).expect("slots are 32-bit");
        self.views.build(slots, |slot| items[slot as usize].as_ref().map(|item| item.candidate(slot)))
    }

    /// Whether a plan can only say after some building what it gives.
    pub fn is_building(&self, plan: PlanId) -> bool {
        self.views.is_building(plan)
    }

    /// The plans that may give something since they were last asked for.
    pub fn take_woken(&mut self) -> BTreeSet<PlanId> {
        self.views.take_woken()
    }

    /// Whether some plan may give something that gave nothing before.
    pub fn has_woken(&self) -> bool {
        self.views.has_woken()
    }

    /// Forgets plans that nobody has used for a while.
    pub fn sweep(&mut self, now: At, is_waited_for: impl Fn(PlanId) -> bool) {
        self.views.sweep(now, is_waited_for);
    }

    /// Follows the number of connected consumers, and whether hard limits hold everything back.
    pub fn set_room(&mut self, consumers: u64, is_holding: bool) {
        self.views.set_room(consumers, is_holding);
    }

    /// Sets the weights of a field's values for every `Fair` that does not name them itself.
    pub fn set_weights(&mut self, field: &str, weights: BTreeMap<String, u32>) {
        self.views.set_weights(field, weights);
    }

    /// The steps of a plan, in the order in which they are tried.
    pub(super) fn stages(&self, plan: PlanId) -> Arc<[Stage]> {
        self.views.stages(plan)
    }

    /// A lane may have something to give: whoever waits for it is looked at.
    pub(super) fn wake_lane(&mut self, lane: &str) {
        self.views.wake_lane(lane);
    }

    /// Takes out up to `max` chunks that these views of the plan give next, all of one submission, and counts them as out.
    pub(super) fn take(
        &mut self,
        plan: PlanId,
        among: Range<usize>,
        max: usize,
        chance: &mut Seeded,
    ) -> Option<(SubmissionId, Vec<ChunkIndex>)> {
        let found = self.views.pick_within(plan, among, chance)?;
        let item = self.items[found.slot as usize].as_ref().expect("a view knows running submissions only");
        let (submission, values) = (item.id, item.values.clone());
        let max = self.views.allowance(found, &values, max);
        let chunks = self.change_at(found.slot, |deck| deck.take(max));
        let handed_out = chunks.len() as u64;
        self.views.values_mut().count_handed_out(&values, handed_out);
        self.views.serve(found, &values);
        chunks.iter().for_each(|_| self.views.count(&values, true));
        Some((submission, chunks))
    }

    /// The metadata of a submission of which nothing else is said to consumers.
    pub(super) fn plain_metadata(&self, submission: SubmissionId) -> Option<MetadataBytes> {
        let item = self.item(submission).filter(|it| it.is_plain)?;
        Some(self.views.values().metadata(&item.values))
    }

    /// Counts a chunk of a submission as out, or as out no more.
    pub fn count(&mut self, submission: SubmissionId, is_out: bool) {
        let slot = *self.by_id.get(&submission).expect("a submission with a chunk out is known");
        let item = self.items[slot as usize].as_ref().expect("a known submission has its item");
        self.views.count(&item.values, is_out);
    }

    /// What a plan whose views are built would give next, and why; the caller fills in what is out and delayed.
    pub(super) fn explain(
        &mut self,
        plan: PlanId,
        chance: Seeded,
        elsewhere: Elsewhere,
    ) -> Option<Explanation> {
        let elsewhere = Elsewhere { paused: self.paused_chunks, ..elsewhere };
        let items = &self.items;
        self.views.explain(plan, chance, elsewhere, |slot| {
            let item = items[slot as usize].as_ref().expect("a view knows running submissions only");
            let chunk = item.deck.first().expect("a view knows submissions with ready chunks only");
            ChunkName { submission: item.id, chunk }
        })
    }

    /// Why a submission is or is not handed out by a plan whose views are built; the caller fills in what is out and delayed.
    pub(super) fn explain_submission(
        &mut self,
        plan: PlanId,
        submission: SubmissionId,
        out: u64,
        delayed: (u64, Option<At>),
    ) -> Option<SubmissionSeen> {
        let slot = *self.by_id.get(&submission)?;
        let item = self.items[slot as usize].as_ref().expect("a known submission has its item");
        let (is_paused, ready, (delayed, retry_at)) = (item.is_paused, item.deck.len(), delayed);
        let subject = Subject { it: item.candidate(slot), is_paused, ready, out, delayed, retry_at };
        self.views.explain_submission(plan, subject)
    }

    /// The metadata fields that are known, by name.
    pub fn fields_known(&self) -> Vec<FieldKnown> {
        self.views.fields_known()
    }

    /// The values of a field that have work, the `limit` with the most first.
    pub fn field_seen(&self, field: &str, limit: usize) -> FieldSeen {
        self.views.field_seen(field, limit)
    }

    /// The values that have reached a limit with work waiting behind them, the `limit` worst first.
    pub fn limits_reached(&self, limit: usize) -> LimitsReached {
        self.views.limits_reached(limit)
    }

    /// The strategies in use.
    pub fn strategies_in_use(&self) -> Vec<StrategyInUse> {
        self.views.strategies_in_use()
    }

    /// How many views there are, and how many places submissions have in them.
    pub fn views_len(&self) -> (usize, usize) {
        self.views.size()
    }

    /// Checks the views by recounting everything, given the chunks that are out of each submission.
    pub(crate) fn check_views(&self, out: &BTreeMap<SubmissionId, u64>) {
        let items = (0..).zip(&self.items).filter_map(|(slot, item)| Some((slot, item.as_ref()?)));
        let running = items.map(|(slot, item)| {
            assert_eq!(self.by_id.get(&item.id), Some(&slot), "a submission is found by its id");
            (item.candidate(slot), out.get(&item.id).copied().unwrap_or(0))
        });
        views::audit::check(&self.views, &running.collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> SubmissionId {
        SubmissionId::from_u64(number).unwrap()
    }

    fn put(ready: &mut Ready, number: u64, ranges: &[Range<u64>]) {
        ready.put(id(number), &Traits::default(), 0, ranges);
    }

    fn take_all(ready: &mut Ready, strategy: &Strategy, max: usize) -> Vec<(u64, u64)> {
        let mut chance = Seeded::new(1);
        let plan = ready.plan(strategy, At::from_ms(0)).unwrap();
        std::iter::from_fn(|| ready.take(plan, 0..1, max, &mut chance))
            .flat_map(|(submission, chunks)| chunks.into_iter().map(move |it| (submission.as_u64(), it.0)))
            .collect()
    }

    #[test]
    fn oldest_and_newest_first_walk_submissions_by_age_and_chunks_in_order() {
        for (strategy, expected) in [
            (Strategy::OldestFirst, [(1, 0), (1, 1), (2, 0), (2, 1)]),
            (Strategy::NewestFirst, [(2, 0), (2, 1), (1, 0), (1, 1)]),
        ] {
            let mut ready = Ready::default();
            put(&mut ready, 1, std::slice::from_ref(&(0..2)));
            put(&mut ready, 2, std::slice::from_ref(&(0..2)));
            assert_eq!(take_all(&mut ready, &strategy, 3), expected);
            assert!(ready.is_empty());
        }
    }

    #[test]
    fn holes_of_an_earlier_leadership_go_first_and_what_came_back_goes_last() {
        let mut ready = Ready::default();
        put(&mut ready, 1, &[2..3, 5..7]);
        ready.put_back(id(1), ChunkIndex(0), Side::Bottom);
        ready.put_back(id(1), ChunkIndex(4), Side::Top);
        let order: Vec<u64> =
            take_all(&mut ready, &Strategy::OldestFirst, 2).into_iter().map(|it| it.1).collect();
        assert_eq!(order, [2, 4, 5, 6, 0]);
    }

    #[test]
    fn random_picks_submissions_in_proportion_to_their_ready_chunks() {
        let sizes = [1_000_u64, 2_000, 3_000, 4_000];
        let mut chance = Seeded::new(42);
        let mut ready = Ready::default();
        for (number, size) in (1..).zip(sizes) {
            put(&mut ready, number, std::slice::from_ref(&(0..size)));
        }
        let plan = ready.plan(&Strategy::Random, At::from_ms(0)).unwrap();
        let mut seen = [0_u64; 4];
        let draws = 20_000;
        for _ in 0..draws {
            let (submission, chunks) = ready.take(plan, 0..1, 1, &mut chance).unwrap();
            seen[usize::try_from(submission.as_u64()).unwrap() - 1] += 1;
            ready.put_back(submission, chunks[0], Side::Bottom);
        }
        let expected = sizes.map(|size| (draws * size / 10_000) as f64);
        let chi_squared: f64 =
            seen.iter().zip(expected).map(|(seen, e)| (*seen as f64 - e).powi(2) / e).sum();
        assert!(
            chi_squared < 16.27,
            "0.1 % of fair draws with 3 degrees of freedom are above 16.27: {chi_squared}"
        );
    }

    #[test]
    fn a_paused_submission_keeps_its_chunks_and_gives_none() {
        let mut ready = Ready::default();
        put(&mut ready, 1, std::slice::from_ref(&(0..2)));
        put(&mut ready, 2, std::slice::from_ref(&(0..1)));
        let paused = Traits { paused: true, ..Traits::default() };
        ready.change_traits(id(1), &paused, 0);
        assert_eq!((ready.len(), ready.paused_len()), (1, 2));
        assert_eq!(take_all(&mut ready, &Strategy::OldestFirst, 9), [(2, 0)]);
        ready.change_traits(id(1), &Traits::default(), 0);
        assert_eq!(take_all(&mut ready, &Strategy::OldestFirst, 9), [(1, 0), (1, 1)]);
    }
}
