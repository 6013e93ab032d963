//! One submission: what each way through a strategy makes of it, and what that comes to.

use super::look::TurnOf;
use super::parts::{Look, Way};
use super::words::{are, counted, have, held, number, turn_of, value_of};
use super::{Counted, FieldSaturated, Rank, Saturated, SubmissionSeen, TurnRank, Verdict, WaySeen};
use crate::batch::strategy::Strategy;
use crate::batch::submissions::MetaValue;
use crate::batch::values::{ValueCounts, ValueId};
use crate::batch::views::Candidate;
use crate::batch::views::places::Place;
use crate::batch::views::shape::Order;
use crate::batch::views::tracks::Step;
use crate::batch::views::view::{ROOT, View};
use crate::limits::{COUNTED_AHEAD_MAX, VALUES_LOOKED_AT_MAX};
use crate::time::At;
use std::collections::BTreeSet;

/// The submission that is asked about, as the leader's memory has it.
#[derive(Debug, Clone, Copy)]
pub(in crate::batch) struct Subject<'a> {
    pub(in crate::batch) it: Candidate<'a>,
    pub(in crate::batch) is_paused: bool,
    /// Its chunks that are ready, or would be if it were not paused.
    pub(in crate::batch) ready: u64,
    pub(in crate::batch) out: u64,
    pub(in crate::batch) delayed: u64,
    pub(in crate::batch) retry_at: Option<At>,
}

/// What a strategy makes of a submission.
pub(super) fn seen(look: &Look<'_>, strategy: &Strategy, subject: Subject<'_>) -> SubmissionSeen {
    let Subject { it, is_paused, ready, out, delayed, retry_at } = subject;
    let mut seen = SubmissionSeen {
        submission: it.id,
        verdict: Verdict::NothingReady,
        says: String::new(),
        is_paused,
        ready,
        out,
        delayed,
        retry_at,
        ways: Vec::new(),
    };
    if ready == 0 {
        seen.says = says_nothing_ready(out, delayed);
    } else if is_paused {
        seen.verdict = Verdict::Paused;
        seen.says = format!(
            "it is paused, so nothing of it goes out; {} would be ready if it were resumed",
            counted(ready, "chunk")
        );
    } else {
        seen.ways = look.ways.iter().map(|way| look.way(way, strategy, it)).collect();
        (seen.verdict, seen.says) = verdict_of(&seen.ways);
    }
    seen
}

fn says_nothing_ready(out: u64, delayed: u64) -> String {
    match (out, delayed) {
        (0, 0) => "none of its chunks is ready".into(),
        (out, 0) => format!("none of its chunks is ready: {} {} in work", counted(out, "chunk"), are(out)),
        (0, delayed) => {
            format!("none of its chunks is ready: {} after a failure", waiting(delayed))
        }
        (out, delayed) => format!(
            "none of its chunks is ready: {} {} in work, and {} after a failure",
            counted(out, "chunk"),
            are(out),
            waiting(delayed)
        ),
    }
}

fn waiting(delayed: u64) -> String {
    let verb = if delayed == 1 { "waits for its retry" } else { "wait for their retry" };
    format!("{} {verb}", counted(delayed, "chunk"))
}

/// The best that any way makes of it.
fn verdict_of(ways: &[WaySeen]) -> (Verdict, String) {
    let Some(best) = ways.iter().min_by_key(|way| way.verdict) else {
        return (Verdict::NotMatched, "the strategy takes no submission at all".into());
    };
    let mut sentences: Vec<&str> = Vec::new();
    for way in ways.iter().filter(|way| way.verdict == best.verdict) {
        if !sentences.contains(&way.says.as_str()) {
            sentences.push(&way.says);
        }
    }
    match best.verdict {
        // The first way that takes it decides; of obstacles, all are worth knowing.
        Verdict::Next | Verdict::Waits | Verdict::NotAsked => (best.verdict, best.says.clone()),
        Verdict::Limited | Verdict::NotMatched | Verdict::Paused | Verdict::NothingReady => {
            (best.verdict, sentences.join("; "))
        }
    }
}

impl Look<'_> {
    fn way(&self, way: &Way<'_>, strategy: &Strategy, it: Candidate<'_>) -> WaySeen {
        let straight = straight(strategy, &way.trail);
        let text = straight.to_string();
        let blank =
            |verdict, says| WaySeen { text: text.clone(), verdict, says, limits: Vec::new(), rank: None };
        if let Some((field, wanted)) = self.unmatched(&straight, it) {
            let has = value_of(field, self.value_of(field, it));
            let wanted = Strategy::pair_text(field, wanted);
            return blank(Verdict::NotMatched, format!("SelectOnly wants {wanted}, and it has {has}"));
        }
        let limits = self.limits_of(way, it);
        if !limits.is_empty() {
            let says: Vec<String> = limits.iter().map(says_limited).collect();
            return WaySeen { limits, ..blank(Verdict::Limited, says.join("; ")) };
        }
        let Some(place) = way.view.place(way.track, it.slot) else {
            return blank(Verdict::NotMatched, "it is not among those that this way looks at".into());
        };
        let (rank, is_passed) = self.rank(way, it, place);
        let is_asked = self.chosen.is_none_or(|chosen| way.path <= self.ways[chosen].path) && !is_passed;
        let is_first = rank.ahead.count == 0 && rank.turns.iter().all(|turn| turn.before.count == 0);
        let (verdict, says) = match (is_asked, is_first) {
            (false, _) => {
                let before =
                    "what comes before this in the strategy gives, so this is not asked; when it is,";
                (Verdict::NotAsked, format!("{before} {}", says_rank(&rank)))
            }
            (true, true) => (Verdict::Next, says_rank(&rank)),
            (true, false) => (Verdict::Waits, says_rank(&rank)),
        };
        WaySeen { rank: Some(rank), ..blank(verdict, says) }
    }

    fn value_of(&self, field: &str, it: Candidate<'_>) -> Option<&MetaValue> {
        let values = &self.views.values;
        values.get(values.of_field(it.values, values.known_field(field)?))
    }

    /// The first thing that a way selects and the submission has not.
    fn unmatched<'s>(&self, straight: &'s Strategy, it: Candidate<'_>) -> Option<(&'s str, &'s MetaValue)> {
        match straight {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { .. }
            | Strategy::Lane { .. } => None,
            Strategy::SelectOnly { field, value, .. } if self.value_of(field, it) != Some(value) => {
                Some((field, value))
            }
            Strategy::SelectOnly { inner, .. }
            | Strategy::PreferDistinct { inner, .. }
            | Strategy::MaxSimultaneous { inner, .. }
            | Strategy::Fair { inner, .. } => self.unmatched(inner, it),
            Strategy::OrElse { first, fallback } => {
                self.unmatched(first, it).or_else(|| self.unmatched(fallback, it))
            }
        }
    }

    fn limits_of(&self, way: &Way<'_>, it: Candidate<'_>) -> Vec<FieldSaturated> {
        let values = &self.views.values;
        let limited = way.view.tracks()[way.track].steps.iter().filter_map(|step| match step {
            Step::Group(group) => {
                let id = values.of_field(it.values, group.field);
                let value = values.get(id).filter(|_| group.is_saturated(id, values))?;
                let ValueCounts { out, ready_submissions, .. } = values.counts(id);
                let room = self.views.room;
                Some(FieldSaturated {
                    is_holding: group.is_held(room),
                    field: values.name_of(group.field).to_owned(),
                    saturated: Saturated {
                        value: value.clone(),
                        out,
                        max: group.room_for(room.consumers),
                        submissions: ready_submissions,
                    },
                })
            }
            Step::Alternative { .. } => None,
        });
        limited.collect()
    }

    /// Where a submission stands on a way, and whether alternatives before the one that takes it give in its turn.
    fn rank(&self, way: &Way<'_>, it: Candidate<'_>, place: Place) -> (Rank, bool) {
        let (views, view) = (self.views, way.view);
        let (mut starts, mut turns, mut is_passed) = (vec![ROOT], Vec::new(), false);
        for step in view.turns(way.track) {
            let tracks = view.tracks_with(way.track, step);
            match step.of {
                TurnOf::Values(book) => {
                    let Some(node) = view.turn_above(place, turns.len()) else { break };
                    let value = view.value_at(node);
                    let before = values_before(view.in_turn(&starts, step.turn, &tracks), view, value);
                    starts = view.places_of(node, turns.len(), &tracks);
                    turns.push(TurnRank {
                        field: views.books.share(book).field.clone(),
                        value: views.values.get(value).cloned(),
                        before,
                    });
                }
                TurnOf::Alternative(nth) => {
                    let all: Vec<usize> = (0..view.tracks().len()).collect();
                    let first = view.in_turn(&starts, step.turn, &all).next();
                    is_passed |= first.is_some_and(|first| view.value_at(first).0 < nth);
                    starts = view.in_turn(&starts, step.turn, &tracks).take(VALUES_LOOKED_AT_MAX).collect();
                }
            }
        }
        let blocked = view.blocked(&views.values);
        let order = view.tracks()[way.track].order;
        let ahead = view.ahead_of(&starts, place, order.head(it.id, it.priority), &blocked);
        let is_chance = order == Order::Random && ahead.count == 0;
        let chance = is_chance.then(|| (it.weight, view.drawn_from(&starts)));
        (Rank { turns, ahead, chance }, is_passed)
    }
}

/// How many values have their turn before this one.
fn values_before(nodes: impl Iterator<Item = u32>, view: &View, value: ValueId) -> Counted {
    let (mut before, mut is_cut) = (BTreeSet::new(), false);
    for node in nodes.take_while(|node| view.value_at(*node) != value) {
        before.insert(view.value_at(node));
        is_cut = before.len() as u64 >= COUNTED_AHEAD_MAX;
        if is_cut {
            break;
        }
    }
    Counted { count: before.len() as u64, is_cut }
}

/// A strategy with every choice made: what is left of it on one way.
fn straight(strategy: &Strategy, trail: &[u8]) -> Strategy {
    let inside = |inner: &Strategy, trail: &[u8]| Box::new(straight(inner, trail));
    match (strategy, trail) {
        (Strategy::OrElse { first, .. }, [0, rest @ ..]) => straight(first, rest),
        (Strategy::OrElse { fallback, .. }, [_, rest @ ..]) => straight(fallback, rest),
        (Strategy::PreferDistinct { field, max, inner }, [0, rest @ ..]) => {
            Strategy::PreferDistinct { field: field.clone(), max: *max, inner: inside(inner, rest) }
        }
        (Strategy::PreferDistinct { inner, .. }, [_, rest @ ..]) => straight(inner, rest),
        (Strategy::SelectOnly { field, value, inner }, trail) => {
            Strategy::SelectOnly { field: field.clone(), value: value.clone(), inner: inside(inner, trail) }
        }
        (Strategy::MaxSimultaneous { field, max, inner }, trail) => {
            Strategy::MaxSimultaneous { field: field.clone(), max: *max, inner: inside(inner, trail) }
        }
        (Strategy::Fair { field, weights, inner }, trail) => {
            Strategy::Fair { field: field.clone(), weights: weights.clone(), inner: inside(inner, trail) }
        }
        (other, _) => other.clone(),
    }
}

fn says_limited(it: &FieldSaturated) -> String {
    if it.is_holding {
        return held(&it.field);
    }
    let Saturated { value, out, max, submissions } = &it.saturated;
    let others = match submissions.saturating_sub(1) {
        0 => String::new(),
        others => format!(", and so {} {} held back", counted(others, "other submission"), are(others)),
    };
    format!(
        "{} has {} of at most {} in work{others}",
        Strategy::pair_text(&it.field, value),
        number(*out),
        counted(*max, "chunk"),
    )
}

fn says_rank(Rank { turns, ahead, chance }: &Rank) -> String {
    let mut parts: Vec<String> = Vec::new();
    for TurnRank { field, value, before } in turns {
        let value = turn_of(field, value.as_ref());
        parts.push(match before.count {
            0 => format!("it is the turn of {value}"),
            _ => {
                let have = have(before.count);
                format!("{} of {field} {have} a turn before {value}", before.of("value"))
            }
        });
    }
    let within = if turns.is_empty() { "" } else { " within that turn" };
    match chance {
        Some((own, all)) => parts.push(format!(
            "chance decides, with {} of {} its own{within}",
            number(*own),
            counted(*all, "chunk")
        )),
        None if ahead.count > 0 => {
            parts.push(format!("{} {} ahead of it{within}", ahead.of("submission"), are(ahead.count)));
        }
        None if turns.iter().all(|turn| turn.before.count == 0) => parts.push("it is next".into()),
        None => parts.push(format!("no submission is ahead of it{within}")),
    }
    parts.join(", and ")
}
