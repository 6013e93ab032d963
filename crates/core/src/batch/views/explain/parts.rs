//! The strategy, block by block: what each looks at, what it holds back, and where the next chunk comes from.

use super::look::Blocked;
use super::words::{all_of, are, counted, have, held, number, turn_of, wait};
use super::{Elsewhere, LimitSeen, PartSeen, PartStanding, Saturated, TurnSeen, TurnsSeen};
use crate::batch::strategy::{Max, Strategy};
use crate::batch::submissions::MetaValue;
use crate::batch::values::ValueCounts;
use crate::batch::views::shape::{self, Order, Trail};
use crate::batch::views::view::{ROOT, View};
use crate::batch::views::{Found, PlanId, Views, groups_of};
use crate::ids::ChunkName;
use crate::limits::{SATURATED_SHOWN, TURNS_SHOWN, VALUES_LOOKED_AT_MAX};

/// A way through a strategy: every choice made, down to one order of submissions.
#[derive(Debug)]
pub(super) struct Way<'a> {
    pub(super) trail: Trail,
    /// Which of the strategy's paths it is a part of.
    pub(super) path: usize,
    pub(super) view: &'a View,
    pub(super) track: usize,
}

/// A strategy with its views, and what was picked.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) views: &'a Views,
    pub(super) ways: Vec<Way<'a>>,
    /// The way that gives the next chunk.
    pub(super) chosen: Option<usize>,
}

/// What is around a block.
#[derive(Debug, Clone, Default)]
struct Around<'a> {
    trail: Trail,
    selects: Vec<(&'a str, &'a MetaValue)>,
    /// The fields of the turns around it.
    turns: Vec<&'a str>,
    /// Whose turn it is, if the next chunk comes from there: in words, and where that is in the view.
    turn: Option<(String, Vec<u32>)>,
}

impl<'a> Around<'a> {
    fn choosing(&self, choice: u8) -> Around<'a> {
        let mut around = self.clone();
        around.trail.push(choice);
        around
    }
}

impl<'a> Look<'a> {
    pub(super) fn new(views: &'a Views, plan: PlanId, found: Option<Found>) -> Look<'a> {
        let plan = &views.plans[&plan];
        let routes = shape::routes_of(&plan.strategy).into_iter().zip(&plan.views).enumerate();
        let mut look = Look { views, ways: Vec::new(), chosen: None };
        for (path, (route, id)) in routes {
            let view = &views.slab[id.0 as usize].as_ref().expect("a plan's views are in use").view;
            for (track, trail) in route.trails.into_iter().enumerate() {
                if found.is_some_and(|found| found.view == *id && found.track == track) {
                    look.chosen = Some(look.ways.len());
                }
                look.ways.push(Way { trail, path, view, track });
            }
        }
        look
    }

    fn chosen_way(&self) -> Option<&Way<'a>> {
        self.chosen.map(|chosen| &self.ways[chosen])
    }

    fn below<'l>(&'l self, trail: &'l [u8]) -> impl Iterator<Item = &'l Way<'a>> {
        self.ways.iter().filter(move |way| way.trail.starts_with(trail))
    }

    /// The only way below a block, if there is only one and its view has no other.
    fn only_below<'l>(&'l self, trail: &'l [u8]) -> Option<&'l Way<'a>> {
        let mut below = self.below(trail);
        let only = below.next().filter(|way| way.view.tracks().len() == 1)?;
        below.next().is_none().then_some(only)
    }

    /// Whether the next chunk comes from chance.
    pub(super) fn is_by_chance(&self) -> bool {
        self.chosen_way().is_some_and(|way| way.view.tracks()[way.track].order == Order::Random)
    }

    fn standing(&self, trail: &[u8]) -> PartStanding {
        let first = self.ways.iter().position(|way| way.trail.starts_with(trail));
        match (first, self.chosen_way()) {
            (None, _) => PartStanding::Repeats,
            (Some(_), Some(way)) if way.trail.starts_with(trail) => PartStanding::Gives,
            (Some(first), Some(_)) if Some(first) > self.chosen => PartStanding::NotAsked,
            (Some(_), _) => PartStanding::Empty,
        }
    }

    /// The strategy, block by block.
    pub(super) fn part(&self, strategy: &Strategy) -> PartSeen {
        self.part_within(strategy, &Around::default())
    }

    fn part_within<'s>(&self, strategy: &'s Strategy, around: &Around<'s>) -> PartSeen {
        let mut part = match strategy {
            Strategy::Random
            | Strategy::OldestFirst
            | Strategy::NewestFirst
            | Strategy::CustomPriority { .. }
            | Strategy::Lane { .. } => self.order(strategy, around),
            Strategy::SelectOnly { field, value, inner } => {
                let mut inside = around.clone();
                inside.selects.push((field, value));
                let mut part = self.select(strategy, &inside);
                part.inner = vec![self.part_within(inner, &inside)];
                part
            }
            Strategy::MaxSimultaneous { field, max, inner } => {
                let limit = self.limit(field, *max, true, &around.trail);
                let says = says_of_limit(&limit, self.text_of(*max));
                let inner = vec![self.part_within(inner, around)];
                PartSeen { says, limit: Some(limit), inner, ..self.blank(strategy, around) }
            }
            Strategy::PreferDistinct { field, max, inner } => {
                self.prefer(strategy, field, *max, inner, around)
            }
            Strategy::OrElse { first, fallback } => {
                let inner = vec![
                    self.part_within(first, &around.choosing(0)),
                    self.part_within(fallback, &around.choosing(1)),
                ];
                let says = match (inner[0].standing, inner[1].standing) {
                    (PartStanding::Gives, _) => "the first gives, so the fallback is not asked",
                    (_, PartStanding::Gives) => {
                        "the first gives nothing, so the fallback is asked, and gives"
                    }
                    (_, _) => "neither the first nor the fallback gives anything",
                };
                PartSeen { says: says.into(), inner, ..self.blank(strategy, around) }
            }
            Strategy::Fair { field, inner, .. } => self.fair(strategy, field, inner, around),
        };
        match part.standing {
            PartStanding::NotAsked => part.says = "not asked, since what comes before it gives".into(),
            PartStanding::Repeats => part.says = "the same as what comes before it".into(),
            PartStanding::Gives | PartStanding::Empty => {}
        }
        part
    }

    fn blank(&self, strategy: &Strategy, around: &Around<'_>) -> PartSeen {
        PartSeen {
            name: strategy.name(),
            text: strategy.own_text(),
            standing: self.standing(&around.trail),
            says: String::new(),
            submissions: None,
            chunks: None,
            limit: None,
            turns: None,
            inner: Vec::new(),
        }
    }

    fn select(&self, strategy: &Strategy, inside: &Around<'_>) -> PartSeen {
        let (submissions, chunks) = self.matching(inside);
        let wanted = all_of(&inside.selects);
        let all = self.views.values.ready_submissions();
        let left_out = |count: u64| match all.saturating_sub(count) {
            0 => String::new(),
            others => format!("; {} {} left out", counted(others, "other"), are(others)),
        };
        let says = match (submissions, chunks) {
            (Some(0), _) if all == 1 => format!("the only ready submission does not have {wanted}"),
            (Some(0), _) if all > 1 => {
                format!("none of {} has {wanted}", counted(all, "ready submission"))
            }
            (Some(0), _) => format!("no ready submission has {wanted}"),
            (Some(count), Some(chunks)) => format!(
                "{} {} {wanted}, with {}{}",
                counted(count, "ready submission"),
                have(count),
                counted(chunks, "ready chunk"),
                left_out(count)
            ),
            (Some(count), None) => {
                let has = counted(count, "ready submission");
                format!("{has} {} {wanted}{}", have(count), left_out(count))
            }
            (None, _) => format!("only submissions with {wanted}"),
        };
        PartSeen { says, submissions, chunks, ..self.blank(strategy, inside) }
    }

    /// How many ready submissions have what is selected, and how many chunks, as far as that is counted anyway.
    fn matching(&self, around: &Around<'_>) -> (Option<u64>, Option<u64>) {
        match around.selects.as_slice() {
            _ if around.turn.is_some() => (None, None),
            [(field, value)] => {
                let known = self.views.values.known_value(field, value);
                let ValueCounts { ready_submissions, ready_chunks, .. } =
                    known.map(|id| self.views.values.counts(id)).unwrap_or_default();
                (Some(ready_submissions), Some(ready_chunks))
            }
            several => {
                let is_exact = |way: &&Way<'_>| way.view.path().selects.len() == several.len();
                let only = self.only_below(&around.trail).filter(is_exact);
                (only.map(|way| way.view.len() as u64), None)
            }
        }
    }

    fn prefer<'s>(
        &self,
        strategy: &'s Strategy,
        field: &str,
        max: Max,
        inner: &'s Strategy,
        around: &Around<'s>,
    ) -> PartSeen {
        let limit = self.limit(field, max, false, &[&around.trail[..], &[0]].concat());
        let text = self.text_of(max);
        let place = around.trail.len();
        let choice = self.chosen_way().filter(|way| way.trail.starts_with(&around.trail));
        let choice = choice.map(|way| way.trail[place]);
        let says = match choice {
            Some(0) if limit.saturated.is_empty() => format!("no value of {field} has {text} in work yet"),
            Some(0) => format!(
                "{} of {field} {} {text} in work, so {} of {} {} for the others",
                counted(limit.saturated.len() as u64 + limit.more, "value"),
                have(limit.saturated.len() as u64 + limit.more),
                counted(limit.submissions, "ready submission"),
                if limit.saturated.len() as u64 + limit.more == 1 { "it" } else { "them" },
                wait(limit.submissions),
            ),
            Some(_) => format!(
                "all that is ready has {text} of its {field} in work already, so it is taken all the same"
            ),
            None => format!("nothing is ready inside, with {text} of its {field} in work or not"),
        };
        // What is tried last leaves nothing out, so it shows best why there is nothing.
        let inner = vec![self.part_within(
            inner,
            &around.choosing(choice.unwrap_or(match self.standing(&around.trail) {
                PartStanding::Empty => 1,
                PartStanding::Gives | PartStanding::NotAsked | PartStanding::Repeats => 0,
            })),
        )];
        PartSeen { says, limit: Some(limit), inner, ..self.blank(strategy, around) }
    }

    /// A limit as people read it: `10 chunks`, `2 chunks (25% of 8 consumers)`.
    fn text_of(&self, max: Max) -> String {
        let consumers = self.views.room.consumers;
        match max {
            Max::Count(count) => counted(u64::from(count), "chunk"),
            Max::Percent(percent) => format!(
                "{} ({percent}% of {})",
                counted(max.of(consumers), "chunk"),
                counted(consumers, "consumer")
            ),
        }
    }

    /// What a limit holds back on the ways below it.
    fn limit(&self, field: &str, max: Max, is_hard: bool, trail: &[u8]) -> LimitSeen {
        let Views { values, room, .. } = self.views;
        let is_holding = is_hard && room.is_holding;
        let max = if is_holding { 0 } else { max.of(room.consumers) };
        let only = self.only_below(trail);
        let behind = |id| only.map_or_else(|| values.counts(id).ready_submissions, |way| way.view.behind(id));
        let known = values.known_field(field);
        let mut in_work = known.into_iter().flat_map(|field| values.in_work(field));
        let looked_at = in_work.by_ref().take(if is_holding { 0 } else { VALUES_LOOKED_AT_MAX });
        let looked_at = looked_at.filter(|id| values.out(*id) >= max);
        let mut saturated: Vec<Saturated> = looked_at
            .filter_map(|id| {
                let value = values.get(id)?.clone();
                Some(Saturated { value, out: values.out(id), max, submissions: behind(id) })
            })
            .collect();
        let is_cut = !is_holding && in_work.next().is_some();
        let submissions = saturated.iter().map(|it| it.submissions).sum();
        saturated.sort_by_key(|it| std::cmp::Reverse((it.submissions, it.out)));
        let more = saturated.len().saturating_sub(SATURATED_SHOWN) as u64;
        saturated.truncate(SATURATED_SHOWN);
        LimitSeen { field: field.to_owned(), max, is_holding, submissions, saturated, more, is_cut }
    }

    fn fair<'s>(
        &self,
        strategy: &'s Strategy,
        field: &'s str,
        inner: &'s Strategy,
        around: &Around<'s>,
    ) -> PartSeen {
        let blank = self.blank(strategy, around);
        if around.turns.contains(&field) {
            let says = format!("the turns between values of {field} around it decide already");
            return PartSeen { says, inner: vec![self.part_within(inner, around)], ..blank };
        }
        let mut inside = Around { turn: None, ..around.clone() };
        inside.turns.push(field);
        let turns = self.turns(field, around);
        let says = match &turns {
            Some((seen, nodes)) if blank.standing == PartStanding::Gives => {
                let value = seen.next.first().and_then(|it| it.value.as_ref());
                inside.turn = Some((turn_of(field, value), nodes.clone()));
                format!("it is the turn of {}", turn_of(field, value))
            }
            Some(_) | None => format!("no value of {field} has anything to give"),
        };
        let turns = turns.map(|it| it.0);
        PartSeen { says, turns, inner: vec![self.part_within(inner, &inside)], ..blank }
    }

    /// Whose turn is next, and where the first of them stands.
    fn turns(&self, field: &str, around: &Around<'_>) -> Option<(TurnsSeen, Vec<u32>)> {
        let Views { values, books, .. } = self.views;
        let (way, nth) = (self.below(&around.trail).next()?, around.turns.len());
        let view = way.view;
        let (step, book) = view.fair(way.track, nth)?;
        let tracks = view.tracks_with(way.track, step);
        let starts = around.turn.as_ref().map_or(vec![ROOT], |turn| turn.1.clone());
        let share = books.share(book);
        let (mut first, mut seen) = (Vec::new(), Vec::<TurnSeen>::new());
        let mut shown = std::collections::BTreeSet::new();
        for node in view.in_turn(&starts, step.turn, &tracks) {
            let value = view.value_at(node);
            if !shown.insert(value) {
                continue;
            }
            let places = view.places_of(node, nth, &tracks);
            let is_single = view.tracks().len() == 1;
            seen.push(TurnSeen {
                value: values.get(value).cloned(),
                weight: books.weight(share, value, values),
                ahead_thousandths: books.ahead_thousandths(book, &view.seat_of(node)),
                submissions: is_single.then(|| view.submissions_at(&places)),
            });
            if first.is_empty() {
                first = places;
            }
            if seen.len() == TURNS_SHOWN {
                break;
            }
        }
        let known = values.known_field(field).map_or(0, |field| u64::from(values.had(field)));
        Some((TurnsSeen { field: field.to_owned(), values: known, next: seen }, first))
    }

    fn order(&self, strategy: &Strategy, around: &Around<'_>) -> PartSeen {
        let blank = self.blank(strategy, around);
        let Some(way) = self.below(&around.trail).next() else { return blank };
        let is_single = way.view.tracks().len() == 1;
        let blocked = way.view.blocked(&self.views.values);
        let starts = around.turn.as_ref().map_or(vec![ROOT], |turn| turn.1.clone());
        let is_counted = is_single && !blocked.is_cut;
        let submissions = is_counted.then(|| open_of(way.view, &starts, &blocked));
        let is_random = way.view.tracks()[way.track].order == Order::Random;
        let chunks = (is_random && blank.standing == PartStanding::Gives)
            .then(|| way.view.drawn_from(&starts))
            .or_else(|| (is_random && is_single).then(|| way.view.weight_of_best(ROOT)));
        let says = match blank.standing {
            PartStanding::Gives => choice_of(strategy, submissions, chunks, around),
            PartStanding::Empty | PartStanding::NotAsked | PartStanding::Repeats => {
                match is_single.then(|| way.view.len() as u64) {
                    Some(0) => "no ready submission gets here".into(),
                    Some(held) => format!(
                        "{} that {} here {} behind a limit",
                        counted(held, "ready submission"),
                        if held == 1 { "gets" } else { "get" },
                        wait(held)
                    ),
                    None => "nothing that is not behind a limit gets here".into(),
                }
            }
        };
        PartSeen { says, submissions, chunks, ..blank }
    }

    /// Why the next chunk is the next, or why there is none.
    pub(super) fn why(&self, next: Option<ChunkName>, elsewhere: Elsewhere) -> String {
        let (Some(next), Some(way)) = (next, self.chosen_way()) else { return self.why_nothing(elsewhere) };
        let (is_single, submission) = (way.view.tracks().len() == 1, next.submission);
        let blocked = way.view.blocked(&self.views.values);
        let (starts, turns) = self.turns_on(way);
        let is_counted = is_single && !blocked.is_cut;
        let count = is_counted.then(|| open_of(way.view, &starts, &blocked));
        let selects = way.view.path().selects.iter().map(|(field, value)| (field.as_str(), value));
        let selects = all_of(&selects.collect::<Vec<_>>());
        let mut those = String::new();
        if !selects.is_empty() {
            those.push_str(&format!(" with {selects}"));
        }
        if !turns.is_empty() {
            those.push_str(&format!(" of {turns}, whose turn it is"));
        }
        let among = match count {
            None => format!("the ready submissions{those}"),
            Some(1) => format!("the only ready submission{those}"),
            Some(count) => format!("{}{those}", counted(count, "ready submission")),
        };
        let mut why = match way.view.tracks()[way.track].order {
            Order::Random => {
                let chunks = counted(way.view.drawn_from(&starts), "chunk");
                format!(
                    "chance decides, each of {chunks} of {among} being as likely; {submission} is one draw"
                )
            }
            _ if count == Some(1) => format!("{submission} is {among}"),
            Order::Oldest => format!("{submission} is the oldest of {among}"),
            Order::Newest => format!("{submission} is the newest of {among}"),
            Order::Priority { aging_ms: None } => format!("{submission} has the highest priority of {among}"),
            Order::Priority { aging_ms: Some(_) } => {
                format!("{submission} has the highest priority, with the age counted in, of {among}")
            }
        };
        let held = way.view.len() as u64 - way.view.open_below(ROOT, &blocked);
        if held > 0 && is_counted {
            why.push_str(&format!("; {} more {} behind a limit", number(held), wait(held)));
        }
        if way.path > 0 {
            why.push_str("; what comes before it in the strategy gives nothing");
        }
        why
    }

    /// The values whose turn it is on the chosen way, and where they stand in its view.
    fn turns_on(&self, way: &Way<'_>) -> (Vec<u32>, String) {
        let (mut starts, mut texts) = (vec![ROOT], Vec::new());
        while let Some((step, book)) = way.view.fair(way.track, texts.len())
            && let tracks = way.view.tracks_with(way.track, step)
            && let Some(node) = way.view.in_turn(&starts, step.turn, &tracks).next()
        {
            let field = &self.views.books.share(book).field;
            starts = way.view.places_of(node, texts.len(), &tracks);
            texts.push(turn_of(field, self.views.values.get(way.view.value_at(node))));
        }
        (starts, texts.join(" and "))
    }

    fn why_nothing(&self, Elsewhere { paused, out, delayed }: Elsewhere) -> String {
        if self.views.values.ready_submissions() == 0 {
            let parts = [(paused, "paused"), (out, "in work"), (delayed, "waiting for a retry")];
            let parts = parts.into_iter().filter(|it| it.0 > 0);
            let parts: Vec<String> = parts
                .map(|(count, how)| format!("{} {} {how}", counted(count, "chunk"), are(count)))
                .collect();
            return match parts.as_slice() {
                [] => "the queue is empty".into(),
                parts => format!("nothing is ready: {}", parts.join(", ")),
            };
        }
        let mut reasons: Vec<String> = Vec::new();
        for way in &self.ways {
            let selects: Vec<_> = way.view.path().selects.iter().map(|(field, it)| (&**field, it)).collect();
            let is_held = groups_of(way.view).any(|group| group.is_held(self.views.room));
            let behind = if is_held { "for consumers of an earlier leadership" } else { "behind a limit" };
            let reason = match way.view.len() as u64 {
                0 => format!("no ready submission has {}", all_of(&selects)),
                1 if selects.is_empty() => format!("the only ready submission waits {behind}"),
                held if selects.is_empty() => {
                    format!("all {} {} {behind}", counted(held, "ready submission"), wait(held))
                }
                held => format!(
                    "{} with {} {} {behind}",
                    counted(held, "ready submission"),
                    all_of(&selects),
                    wait(held)
                ),
            };
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        reasons.join("; ")
    }
}

fn open_of(view: &View, starts: &[u32], blocked: &Blocked) -> u64 {
    starts.iter().map(|node| view.open_below(*node, blocked)).sum()
}

fn says_of_limit(limit: &LimitSeen, text: String) -> String {
    let LimitSeen { field, submissions, saturated, more, .. } = limit;
    let values = saturated.len() as u64 + more;
    if limit.is_holding {
        return held(field);
    }
    if values == 0 {
        return format!("no value of {field} has its {text} in work");
    }
    format!(
        "{} of {field} {} {} {text} in work; {} {} behind {}",
        counted(values, "value"),
        have(values),
        if values == 1 { "its" } else { "their" },
        counted(*submissions, "ready submission"),
        wait(*submissions),
        if values == 1 { "it" } else { "them" },
    )
}

/// What an order chooses, in words.
fn choice_of(
    strategy: &Strategy,
    submissions: Option<u64>,
    chunks: Option<u64>,
    around: &Around<'_>,
) -> String {
    let of_turn = around.turn.as_ref().map_or_else(String::new, |turn| format!(" of {}", turn.0));
    let among = submissions.map(|count| counted(count, "submission"));
    if submissions == Some(1) && *strategy != Strategy::Random {
        return format!("the only submission{of_turn}");
    }
    match (strategy, among, chunks) {
        (Strategy::Random, Some(among), Some(chunks)) => {
            format!("by chance: each of {} of {among}{of_turn} is as likely", counted(chunks, "chunk"))
        }
        (Strategy::Random, _, _) => format!("by chance: each ready chunk{of_turn} is as likely"),
        (other, among, _) => {
            let which = match other {
                Strategy::NewestFirst => "the newest",
                Strategy::CustomPriority { aging_ms: None } => "the highest priority",
                Strategy::CustomPriority { aging_ms: Some(_) } => {
                    "the highest priority, with the age counted in,"
                }
                _ => "the oldest",
            };
            format!("{which} of {}{of_turn}", among.unwrap_or_else(|| "those".into()))
        }
    }
}
