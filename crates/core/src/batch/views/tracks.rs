//! Tracks: the way from a view's root to the submissions of one path, field by field.
//!
//! Limits hold whatever their place, so the fields with few values come first: a value that becomes saturated then stands in
//! few places. Turns keep their order, since the outer one decides before the inner one.

use super::books::{BookId, Books, NOBODY, Seat};
use super::keys::Parts;
use super::shape::{Order, Part, Path, Share, Tail};
use crate::batch::strategy::Max;
use crate::batch::values::{FewValues, FieldId, ValueId, Values};
use crate::ids::SubmissionId;
use crate::limits::STRATEGY_TURNS_MAX;

/// The way to the submissions of one path.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) selects: Vec<ValueId>,
    pub(super) steps: Vec<Step>,
    pub(super) order: Order,
}

/// One level of a view's tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// A node for each value of a field.
    Group(Group),
    /// A node for each alternative of a turn; `turn` is its place in a key.
    Alternative { nth: u32, turn: usize },
}

/// A field by which submissions are grouped.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) field: FieldId,
    pub(super) limits: Vec<Limit>,
    /// How many chunks of one value may be out, as the limits come to now.
    pub(super) room: u64,
    pub(super) fair: Option<Fair>,
}

/// A limit on the chunks of one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    pub(super) max: Max,
    pub(super) is_hard: bool,
}

/// Turns between the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fair {
    /// Its place in a key.
    pub(super) turn: usize,
    pub(super) book: BookId,
}

/// What limits come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Connected consumers.
    pub(super) consumers: u64,
    /// Whether work of an earlier leadership may still be under way, so that hard limits let nothing out.
    pub(super) is_holding: bool,
}

impl Group {
    pub(super) fn set_room(&mut self, room: Room) -> bool {
        let now = if self.is_held(room) { 0 } else { self.room_for(room.consumers) };
        std::mem::replace(&mut self.room, now) != now
    }

    /// Whether nothing may go out, since work of an earlier leadership may be under way.
    pub(super) fn is_held(&self, room: Room) -> bool {
        room.is_holding && self.limits.iter().any(|limit| limit.is_hard)
    }

    /// How many chunks of one value may be out when nothing is held.
    pub(super) fn room_for(&self, consumers: u64) -> u64 {
        self.limits.iter().map(|limit| limit.max.of(consumers)).min().unwrap_or(u64::MAX)
    }

    /// Whether no more chunks of this value may go out. Submissions without the field are not limited by it.
    pub(super) fn is_saturated(&self, value: ValueId, values: &Values) -> bool {
        self.room < u64::MAX && !values.is_missing(value) && values.out(value) >= self.room
    }
}

impl Max {
    /// The limit with this many connected consumers.
    pub(crate) fn of(self, consumers: u64) -> u64 {
        match self {
            Max::Count(count) => u64::from(count),
            Max::Percent(percent) => (consumers * u64::from(percent)).div_ceil(100).max(1),
        }
    }
}

/// What the keys of a view with these tracks consist of.
pub(super) fn parts(tracks: &[Track]) -> Parts {
    let turn_of = |step: &Step| match step {
        Step::Group(group) => group.fair.map(|fair| fair.turn),
        Step::Alternative { turn, .. } => Some(*turn),
    };
    let steps = tracks.iter().flat_map(|track| &track.steps);
    if steps.filter_map(turn_of).any(|turn| turn > 0) {
        Parts::All
    } else if tracks.iter().all(|track| track.order == Order::Random) {
        Parts::Turn
    } else {
        Parts::TurnAndHead
    }
}

impl Track {
    /// Where each turn of a submission stands, outermost first.
    pub(super) fn seats<'a>(
        &'a self,
        of: &'a FewValues,
        values: &'a Values,
    ) -> impl Iterator<Item = (BookId, Seat)> + 'a {
        let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
        let groups = self.steps.iter().filter_map(|step| match step {
            Step::Group(group) => group.fair.map(|fair| (group.field, fair.book)),
            Step::Alternative { .. } => None,
        });
        groups.enumerate().map(move |(depth, (field, book))| {
            seat[depth] = values.of_field(of, field);
            (book, seat)
        })
    }

    /// Whether a reserve may take several chunks at once without asking again who is next.
    pub(super) fn takes_many(&self) -> bool {
        let is_plain = |step: &Step| match step {
            Step::Group(group) => group.fair.is_none() && group.limits.iter().all(|limit| limit.is_hard),
            Step::Alternative { .. } => false,
        };
        self.order != Order::Random && self.steps.iter().all(is_plain)
    }
}

/// A submission's place in an order: the smallest goes first.
pub(super) type Head = (u64, u64);

impl Order {
    pub(super) fn head(self, id: SubmissionId, priority: i64) -> Head {
        const MS_SHIFT: u32 = 22;
        const MS_BITS: u32 = 41;
        let id = id.as_u64();
        match self {
            Order::Random | Order::Oldest => (0, id),
            Order::Newest => (0, !id),
            Order::Priority { aging_ms: None } => (highest_first(priority), id),
            Order::Priority { aging_ms: Some(aging_ms) } => {
                // All submissions age alike, so their order never changes: a priority is worth so many milliseconds.
                // `priority * aging_ms - ms` may have 99 bits; its quotient and remainder have 64 and 35 at most, and
                // the age that decides between equals is made of the same two.
                let ms = id >> MS_SHIFT;
                let (whole, rest) = (ms / aging_ms, ms % aging_ms);
                let wholes = (1 << MS_BITS) / aging_ms + 1;
                // The lowest priorities are one, so that they have room to age.
                let worth = priority.max(i64::MIN + (1 << MS_BITS)).saturating_sub_unsigned(whole);
                (highest_first(worth), ((rest * wholes + whole) << MS_SHIFT) | (id & ((1 << MS_SHIFT) - 1)))
            }
        }
    }
}

fn highest_first(number: i64) -> u64 {
    !((number as u64) ^ (1 << 63))
}

/// The tracks of a path. Everything they name is referred to until [`close`] lets it go.
pub(super) fn open(path: &Path, room: Room, values: &mut Values, books: &mut Books) -> Vec<Track> {
    let mut tracks = Vec::new();
    let begun = Begun { selects: Vec::new(), steps: Vec::new(), turns: 0, chain: Vec::new() };
    begun.follow(path, room, values, books, &mut tracks);
    tracks
}

/// Lets go what tracks refer to.
pub(super) fn close(tracks: &[Track], values: &mut Values, books: &mut Books) {
    for track in tracks {
        track.selects.iter().for_each(|value| values.release(*value));
        for step in &track.steps {
            if let Step::Group(group) = step {
                values.release_field(group.field);
                if let Some(fair) = group.fair {
                    books.release(fair.book);
                }
            }
        }
    }
}

/// Whether the fields would be in another order if the tracks were opened now.
pub(super) fn is_out_of_order(tracks: &[Track], values: &Values) -> bool {
    tracks.iter().any(|track| {
        let mut runs = track.steps.split(|step| matches!(step, Step::Alternative { .. }));
        runs.any(|run| {
            let groups: Vec<&Group> = run
                .iter()
                .filter_map(|step| match step {
                    Step::Group(group) => Some(group),
                    Step::Alternative { .. } => None,
                })
                .collect();
            // A field is well placed if it is not much coarser than the one before it, or both have turns.
            groups.windows(2).any(|pair| {
                let is_free = pair[0].fair.is_none() || pair[1].fair.is_none();
                is_free && values.distinct(pair[0].field) > 4 * values.distinct(pair[1].field).max(1)
            })
        })
    })
}

/// A track on its way.
#[derive(Debug, Clone)]
struct Begun {
    selects: Vec<ValueId>,
    steps: Vec<Step>,
    turns: usize,
    chain: Vec<Share>,
}

impl Begun {
    fn follow(
        mut self,
        path: &Path,
        room: Room,
        values: &mut Values,
        books: &mut Books,
        tracks: &mut Vec<Track>,
    ) {
        for (field, value) in &path.selects {
            let value = values.value(field, value);
            self.selects.push(value);
        }
        for (group, share) in groups_of(&path.parts, values) {
            let mut group = group;
            let is_turn = |share: &Share| self.chain.iter().all(|outer| outer.field != share.field);
            if let Some(share) = share.filter(is_turn) {
                self.chain.push(share);
                group.fair = Some(Fair { turn: self.turns, book: books.open(&self.chain, values) });
                self.turns += 1;
            }
            group.set_room(room);
            self.steps.push(Step::Group(group));
        }
        match &path.tail {
            Tail::Order(order) => {
                tracks.push(Track { selects: self.selects, steps: self.steps, order: *order });
            }
            Tail::Alternatives(paths) => {
                for (nth, path) in (0..).zip(paths) {
                    let mut alternative = self.clone();
                    if nth > 0 {
                        alternative.refer_again(values, books);
                    }
                    alternative.steps.push(Step::Alternative { nth, turn: self.turns });
                    alternative.turns += 1;
                    alternative.follow(path, room, values, books, tracks);
                }
            }
        }
    }

    /// Each track refers to what it names by itself.
    fn refer_again(&self, values: &mut Values, books: &mut Books) {
        self.selects.iter().for_each(|value| values.retain(*value));
        let mut chain = 0;
        for step in &self.steps {
            if let Step::Group(group) = step {
                values.refer_to_field(group.field);
                if group.fair.is_some() {
                    chain += 1;
                    books.open(&self.chain[..chain], values);
                }
            }
        }
    }
}

/// The groups of a path's parts: one for each field, those with few values first, turns in their order.
fn groups_of(parts: &[Part], values: &mut Values) -> Vec<(Group, Option<Share>)> {
    let mut groups: Vec<(Group, Option<Share>)> = Vec::new();
    for part in parts {
        let name = match part {
            Part::Limit { field, .. } | Part::Fair(Share { field, .. }) => field,
        };
        let field = values.field(name);
        let place = match groups.iter().position(|(group, _)| group.field == field) {
            Some(place) => {
                values.release_field(field);
                place
            }
            None => {
                groups.push((Group { field, limits: Vec::new(), room: u64::MAX, fair: None }, None));
                groups.len() - 1
            }
        };
        match part {
            Part::Limit { max, is_hard, .. } => {
                groups[place].0.limits.push(Limit { max: *max, is_hard: *is_hard });
            }
            // Turns between the values of a field within one value of it are no turns: the outer ones count. Those outside
            // of the alternatives that this path is one of are known only later.
            Part::Fair(share) if groups[place].1.is_none() => {
                // A limit outside of it does not make it an outer turn.
                let (group, _) = groups.remove(place);
                groups.push((group, Some(share.clone())));
            }
            Part::Fair(_) => {}
        }
    }
    let (turns, mut limits): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(_, share)| share.is_some());
    limits.sort_by_key(|(group, _)| values.distinct(group.field));
    let mut limits = limits.into_iter().peekable();
    let mut ordered = Vec::new();
    for turn in turns {
        let distinct = values.distinct(turn.0.field);
        while let Some(limit) = limits.next_if(|(group, _)| values.distinct(group.field) < distinct) {
            ordered.push(limit);
        }
        ordered.push(turn);
    }
    ordered.extend(limits);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_follows_the_consumers_and_is_at_least_one() {
        let limits = [0, 1, 4, 5, 10_000].map(|consumers| Max::Percent(25).of(consumers));
        assert_eq!(limits, [1, 1, 1, 2, 2_500]);
        assert_eq!(Max::Count(7).of(0), 7);
    }

    #[test]
    fn aging_turns_waiting_into_priority() {
        let order = Order::Priority { aging_ms: Some(1_000) };
        let at = |ms: u64| SubmissionId::from_u64(ms << 22).unwrap();
        // Three seconds earlier are worth three priorities.
        assert!(order.head(at(10_000), 0) < order.head(at(14_000), 3));
        assert!(order.head(at(10_000), 0) > order.head(at(12_000), 3));
        let plain = Order::Priority { aging_ms: None };
        assert!(plain.head(at(10_000), 0) > plain.head(at(14_000), 3));
        assert!(plain.head(at(10_000), i64::MAX) < plain.head(at(10_000), i64::MIN));
    }

    #[test]
    fn aging_is_exact_however_large_the_priority_and_however_slow_it_rises() {
        let at = |ms: u64, sequence: u64| SubmissionId::from_u64(ms << 22 | sequence).unwrap();
        for aging_ms in [1, 7, 1_000, 86_400_000, crate::limits::AGING_MS_MAX] {
            let order = Order::Priority { aging_ms: Some(aging_ms) };
            let mut chance = crate::seeded::Seeded::new(aging_ms);
            let mut any = || {
                let priority = [0, 3, -1_750_000_000_000, i64::MIN, i64::MAX - 5][chance.below(5) as usize];
                let ms = 1 + chance.below(3) * aging_ms + chance.below(3);
                let id = at(ms.min((1 << 41) - 1), chance.below(2));
                (id, priority + i64::try_from(chance.below(4)).unwrap() * i64::from(priority != i64::MIN))
            };
            for _ in 0..5_000 {
                let [(one, low), (other, high)] = [any(), any()];
                let worth = |id: SubmissionId, priority: i64| {
                    let aged = i128::from(priority) * i128::from(aging_ms) - i128::from(id.as_u64() >> 22);
                    (std::cmp::Reverse(aged), id)
                };
                let expected = worth(one, low).cmp(&worth(other, high));
                assert_eq!(order.head(one, low).cmp(&order.head(other, high)), expected, "{aging_ms} ms");
            }
        }
    }
}
