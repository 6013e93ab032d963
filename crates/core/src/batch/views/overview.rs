//! Overview: the queue in numbers, for people who look at all of it at once.
//!
//! Everything here only looks, and at no more than a few thousand values; what was left out is said.

use super::shape::Share;
use super::tracks::Group;
use super::{PlanId, Views, groups_of};
use crate::batch::strategy::Strategy;
use crate::batch::submissions::MetaValue;
use crate::batch::values::{ValueCounts, ValueId};
use crate::limits::OVERVIEW_VALUES_MAX;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A metadata field that submissions in the queue have, or that a strategy in use names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldKnown {
    /// Its name.
    pub name: String,
    /// How many different values of it submissions have.
    pub values: u64,
    /// Whether a strategy in use limits its values, or has turns between them.
    pub is_in_use: bool,
}

/// The values of a field that have work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSeen {
    /// Whether a strategy in use has turns between them.
    pub is_fair: bool,
    /// Those with the most chunks ready and in work.
    pub values: Vec<ValueSeen>,
    /// How many more have work.
    pub more: u64,
    /// Whether there are more values than were looked at.
    pub is_cut: bool,
    /// Chunks handed out since the field is known: of submissions with it and without it.
    pub handed_out: u64,
}

/// A value, and what is in the queue for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSeen {
    /// The value; none for submissions without the field, which have turns of their own.
    pub value: Option<MetaValue>,
    /// What is in the queue for it.
    pub counts: ValueCounts,
    /// Its weight.
    pub weight: u32,
    /// What it is entitled to among the values that have work, in millionths; none if not all of them were looked at.
    pub share_millionths: Option<u64>,
}

/// A value that has reached a limit, with work waiting behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReached {
    /// The field.
    pub field: String,
    /// The value.
    pub value: MetaValue,
    /// Its chunks in work.
    pub out: u64,
    /// How many may be.
    pub max: u64,
    /// Whether the limit is hard; a soft one only lets others go first.
    pub is_hard: bool,
    /// Ready submissions that wait behind it.
    pub submissions: u64,
}

/// The limits that hold something back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsReached {
    /// Those with the most submissions behind them.
    pub limits: Vec<LimitReached>,
    /// How many more there are.
    pub more: u64,
    /// Whether more values are in work than were looked at.
    pub is_cut: bool,
}

/// A strategy in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyInUse {
    /// Its plan.
    pub plan: PlanId,
    /// The strategy.
    pub strategy: Strategy,
    /// How many views it has; strategies share them.
    pub views: usize,
    /// Whether some of them are still being built.
    pub is_building: bool,
}

impl Views {
    /// The fields that are known, by name.
    pub(in crate::batch) fn fields_known(&self) -> Vec<FieldKnown> {
        let in_use: BTreeSet<_> = self.views_in_use().flat_map(groups_of).map(|group| group.field).collect();
        let known = self.values.fields().map(|(name, field)| FieldKnown {
            name: name.to_owned(),
            values: u64::from(self.values.had(field)),
            is_in_use: in_use.contains(&field),
        });
        known.collect()
    }

    /// The values of a field that have work, the `limit` with the most first; those without the field are among them.
    pub(in crate::batch) fn field_seen(&self, name: &str, limit: usize) -> FieldSeen {
        let books = self.views_in_use().flat_map(groups_of).filter_map(|group| Some(group.fair?.book));
        let share = self.books.share_of(name, books);
        let is_fair = share.is_some();
        let Some(field) = self.values.known_field(name) else {
            return FieldSeen { is_fair, values: Vec::new(), more: 0, is_cut: false, handed_out: 0 };
        };
        let (mut in_work, mut all) = (self.values.in_work(field), self.values.values_had(field));
        let looked_at: BTreeSet<ValueId> = in_work
            .by_ref()
            .take(OVERVIEW_VALUES_MAX)
            .chain(all.by_ref().take(OVERVIEW_VALUES_MAX))
            .collect();
        let is_cut = in_work.next().is_some() || all.next().is_some();
        let unweighted = Share { field: name.to_owned(), weights: BTreeMap::new() };
        let share = share.unwrap_or(&unweighted);
        let has_work = |it: &(ValueId, ValueCounts, u32)| it.1.ready_chunks > 0 || it.1.out > 0;
        let with_counts = |id| (id, self.values.counts(id), self.books.weight(share, id, &self.values));
        let without = (self.values.missing(field), self.values.counts_without(field), 1);
        let mut seen: Vec<(ValueId, ValueCounts, u32)> =
            looked_at.into_iter().map(with_counts).chain([without]).filter(has_work).collect();
        let weights: u64 = seen.iter().map(|it| u64::from(it.2)).sum();
        seen.sort_by_key(|(_, counts, _)| Reverse(counts.ready_chunks + counts.out));
        let more = seen.len().saturating_sub(limit) as u64;
        let values = seen.into_iter().take(limit).map(|(id, counts, weight)| {
            let share_millionths = (!is_cut).then(|| u64::from(weight) * 1_000_000 / weights);
            ValueSeen { value: self.values.get(id).cloned(), counts, weight, share_millionths }
        });
        let handed_out = self.values.handed_out_since(field);
        FieldSeen { is_fair, values: values.collect(), more, is_cut, handed_out }
    }

    /// The values that have reached a limit with work waiting behind them, the `limit` worst first. Hard limits that let
    /// nothing out after a change of the leader are not among them: that is said once for all.
    pub(in crate::batch) fn limits_reached(&self, limit: usize) -> LimitsReached {
        let groups = self.views_in_use().flat_map(groups_of);
        let groups = groups.filter(|it| it.room < u64::MAX && !it.is_held(self.room));
        let mut kinds: BTreeMap<_, &Group> = BTreeMap::new();
        for group in groups {
            kinds.entry((group.field, group.room, is_hard(group, self.room.consumers))).or_insert(group);
        }
        let (mut reached, mut left, mut is_cut) = (Vec::new(), OVERVIEW_VALUES_MAX, false);
        for ((field, max, is_hard), group) in kinds {
            let mut in_work = self.values.in_work(field);
            for id in in_work.by_ref().take(left) {
                left -= 1;
                let ValueCounts { out, ready_submissions: submissions, .. } = self.values.counts(id);
                if group.is_saturated(id, &self.values) && submissions > 0 {
                    reached.push((Reverse(submissions), id, out, max, is_hard));
                }
            }
            is_cut |= in_work.next().is_some();
        }
        reached.sort_unstable();
        let more = reached.len().saturating_sub(limit) as u64;
        let limits =
            reached.into_iter().take(limit).filter_map(|(Reverse(submissions), id, out, max, is_hard)| {
                let field = self.values.name_of(self.values.field_of(id)).to_owned();
                Some(LimitReached {
                    field,
                    value: self.values.get(id)?.clone(),
                    out,
                    max,
                    is_hard,
                    submissions,
                })
            });
        LimitsReached { limits: limits.collect(), more, is_cut }
    }

    /// The strategies in use.
    pub(in crate::batch) fn strategies_in_use(&self) -> Vec<StrategyInUse> {
        let plans = self.plans.iter().filter(|(_, plan)| plan.worked_at.is_some());
        let plans = plans.map(|(id, plan)| StrategyInUse {
            plan: *id,
            strategy: plan.strategy.clone(),
            views: plan.views.len(),
            is_building: self.is_building(*id),
        });
        plans.collect()
    }
}

/// Whether the limit that a group comes down to is a hard one.
fn is_hard(group: &Group, consumers: u64) -> bool {
    group.limits.iter().any(|limit| limit.is_hard && limit.max.of(consumers) <= group.room) || group.room == 0
}
