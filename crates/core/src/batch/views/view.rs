//! A view: the ready submissions of one path, kept in the order in which they would be handed out.
//!
//! It is a tree with a level for each field of the path and the submissions in its leaves. Each node shows its parent the
//! best of what is below it: the smallest key, or the sum of the weights. A node that is blocked shows nothing, so that
//! everything below it is skipped at once, however much that is. A change is carried up until it makes no difference.
//!
//! A value that becomes saturated may stand in many places, and mostly becomes free again before anybody comes by: its
//! nodes are blocked when a pick comes to one of them, and that pick begins anew.
//!
//! Invariants
//! - A submission is in the leaf of each track that it matches exactly if it has a ready chunk.
//! - What a node shows is what can be computed from its children; it is in its parent's pile if it shows something, and in
//!   one that goes by weight it keeps its place, with no weight, until it is removed.
//! - A node that is blocked has a saturated value. When a pick has found nothing, and until something changes, all nodes
//!   with saturated values are blocked, or below such a one.
//!
//! With n submissions, g groups and p the number of places where a value stands (1 for nested fields such as company and
//! user): a change of a submission costs O(log n); a value that gets a turn O(p log g); one that becomes saturated O(1);
//! a pick O(log n), and O(p) more for chance among turns. The first pick that comes to a value since it became saturated
//! costs O(p log g) more, and so does that value when it becomes free: a reserve may meet many of them, but each once.

use super::books::{Books, NOBODY, Seat};
use super::keys::{Key, Keyed, Parts};
use super::piles::{Sorted, Weighted};
use super::places::{Place, Places};
use super::shape::{Order, Path};
use super::tracks::{self, Group, Head, Room, Step, Track};
use crate::batch::values::{FewValues, ValueId, Values};
use crate::ids::SubmissionId;
use crate::limits::{STRATEGY_TURNS_MAX, VALUES_LOOKED_AT_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// What a view needs to know of a submission.
#[derive(Debug, Clone, Copy)]
pub(in crate::batch) struct Candidate<'a> {
    pub(in crate::batch) slot: u32,
    pub(in crate::batch) id: SubmissionId,
    pub(in crate::batch) priority: i64,
    /// Chunks that could be handed out.
    pub(in crate::batch) weight: u64,
    pub(in crate::batch) values: &'a FewValues,
}

/// What a view looks things up in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) values: &'a Values,
    pub(super) books: &'a Books,
}

/// What a node shows its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Key(Key),
    Weight(u64),
}

#[derive(Debug)]
pub(super) enum Pile {
    /// Children by key.
    Keyed(Keyed),
    /// Submissions by their place in the order.
    Headed(Sorted<Head>),
    /// Children or submissions by chance.
    Weighted(Weighted),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: u32,
    /// The value, or the number of the alternative.
    pub(super) number: u32,
    pub(super) track: u16,
    /// How many steps it is below the root.
    pub(super) depth: u16,
    /// Its place in the parent's pile, if that one goes by weight and it has shown something yet.
    pub(super) place: u32,
    pub(super) is_blocked: bool,
    pub(super) submissions: u32,
    /// The next and the previous node of the same value.
    next: u32,
    previous: u32,
    pub(super) shown: Option<Shown>,
    pub(super) pile: Pile,
}

pub(super) const NOWHERE: u32 = u32::MAX;
pub(super) const ROOT: u32 = 0;

/// See the file's head.
#[derive(Debug)]
pub(super) struct View {
    path: Path,
    tracks: Vec<Track>,
    /// What its keys consist of.
    parts: Parts,
    pub(super) nodes: Vec<Node>,
    pub(super) free: Vec<u32>,
    pub(super) children: BTreeMap<(u32, u32), u32>,
    /// The first node of each value; the others hang on it.
    by_value: BTreeMap<ValueId, u32>,
    /// Each value with its nodes that are blocked.
    pub(super) blocked_nodes: BTreeSet<(ValueId, u32)>,
    /// By track.
    pub(super) places: Vec<Places>,
    /// Slots below this are in; the view gives nothing until all are.
    built_to: u32,
    is_built: bool,
    /// At how many groups the order of the fields is looked at again.
    look_at_order_from: usize,
}

const LOOK_AT_ORDER_FROM: usize = 64;

impl View {
    /// An empty view that has looked at no submission yet.
    pub(super) fn open(path: &Path, room: Room, values: &mut Values, books: &mut Books) -> View {
        let tracks = tracks::open(path, room, values, books);
        let mut view = View {
            path: path.clone(),
            places: tracks.iter().map(|track| Places::new(track.selects.is_empty())).collect(),
            parts: tracks::parts(&tracks),
            tracks,
            nodes: Vec::new(),
            free: Vec::new(),
            children: BTreeMap::new(),
            by_value: BTreeMap::new(),
            blocked_nodes: BTreeSet::new(),
            built_to: 0,
            is_built: false,
            look_at_order_from: LOOK_AT_ORDER_FROM,
        };
        let root = view.new_node(NOWHERE, 0, 0, 0);
        assert_eq!(root, ROOT, "the root is the first node");
        view
    }

    /// Lets go what the view refers to.
    pub(super) fn close(&self, values: &mut Values, books: &mut Books) {
        tracks::close(&self.tracks, values, books);
    }

    pub(super) const fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    pub(super) const fn is_built(&self) -> bool {
        self.is_built
    }

    pub(super) const fn built_to(&self) -> u32 {
        self.built_to
    }

    /// All slots below this one are in.
    pub(super) fn set_built_to(&mut self, slot: u32, is_all: bool) {
        self.built_to = slot;
        self.is_built = is_all;
    }

    /// How many places submissions have in it.
    pub(super) fn len(&self) -> usize {
        self.nodes[ROOT as usize].submissions as usize
    }

    /// How many groups it has.
    pub(super) fn groups(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Whether nothing could be picked. It may say no while all that is left is saturated, until a pick finds nothing.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_built || self.best_of(ROOT).is_none()
    }

    /// Whether the fields stand in a bad order, now that more is known of their values. Asked now and then only.
    pub(super) fn is_out_of_order(&mut self, values: &Values) -> bool {
        if self.groups() < self.look_at_order_from {
            return false;
        }
        self.look_at_order_from = 4 * self.groups();
        tracks::is_out_of_order(&self.tracks, values)
    }

    /// Makes the view agree with a submission whose ready chunks have changed; its priority and values are as they were.
    pub(super) fn set(&mut self, it: Candidate<'_>, known: Known<'_>) {
        if it.slot >= self.built_to && !self.is_built {
            return;
        }
        for track in 0..self.tracks.len() {
            match self.places[track].get(it.slot) {
                Some(place) if it.weight == 0 => self.take_out(track, it, place, known),
                Some(place) => self.set_weight(track, it, place, known),
                None if it.weight > 0 && self.matches(track, it) => self.put_in(track, it, known),
                None => {}
            }
        }
    }

    pub(super) fn matches(&self, track: usize, it: Candidate<'_>) -> bool {
        self.tracks[track].selects.iter().all(|value| it.values.contains(*value))
    }

    fn put_in(&mut self, track: usize, it: Candidate<'_>, known: Known<'_>) {
        let mut node = ROOT;
        for depth in 0..self.tracks[track].steps.len() {
            self.nodes[node as usize].submissions += 1;
            let number = match &self.tracks[track].steps[depth] {
                Step::Group(group) => known.values.of_field(it.values, group.field).0,
                Step::Alternative { nth, .. } => *nth,
            };
            node = match self.children.get(&(node, number)) {
                Some(child) => *child,
                None => self.new_child(node, number, track, depth, known),
            };
        }
        let head = self.tracks[track].order.head(it.id, it.priority);
        let leaf = &mut self.nodes[node as usize];
        leaf.submissions += 1;
        let place = match &mut leaf.pile {
            Pile::Headed(pile) => {
                pile.insert(head, it.slot);
                0
            }
            Pile::Weighted(pile) => pile.push(it.weight, it.slot),
            Pile::Keyed(_) => unreachable!("a leaf holds submissions"),
        };
        self.places[track].put(it.slot, Place { leaf: node, place });
        self.carry_up(node, known);
    }

    fn take_out(&mut self, track: usize, it: Candidate<'_>, place: Place, known: Known<'_>) {
        let head = self.tracks[track].order.head(it.id, it.priority);
        let leaf = &mut self.nodes[place.leaf as usize];
        match &mut leaf.pile {
            Pile::Headed(pile) => pile.remove(head, it.slot),
            Pile::Weighted(pile) => {
                if let Some(moved) = pile.remove(place.place) {
                    self.places[track].put(moved, place);
                }
            }
            Pile::Keyed(_) => unreachable!("a leaf holds submissions"),
        }
        self.places[track].take_out(it.slot);
        self.carry_up(place.leaf, known);
        let mut node = place.leaf;
        while node != NOWHERE {
            let it = &mut self.nodes[node as usize];
            it.submissions -= 1;
            let (parent, is_gone) = (it.parent, it.submissions == 0 && node != ROOT);
            if is_gone {
                self.remove_node(node);
            }
            node = parent;
        }
    }

    fn set_weight(&mut self, track: usize, it: Candidate<'_>, place: Place, known: Known<'_>) {
        if self.tracks[track].order != Order::Random {
            return;
        }
        if let Pile::Weighted(pile) = &mut self.nodes[place.leaf as usize].pile {
            pile.set(place.place, it.weight);
        }
        self.carry_up(place.leaf, known);
    }

    fn new_child(&mut self, parent: u32, number: u32, track: usize, depth: usize, known: Known<'_>) -> u32 {
        let node = self.new_node(parent, number, track, depth + 1);
        self.children.insert((parent, number), node);
        if let Step::Group(group) = &self.tracks[track].steps[depth] {
            let value = ValueId(number);
            let is_saturated = group.is_saturated(value, known.values);
            self.link(value, node);
            self.set_blocked(node, is_saturated);
        }
        node
    }

    /// Puts a node in front of the others of its value.
    fn link(&mut self, value: ValueId, node: u32) {
        if let Some(next) = self.by_value.insert(value, node) {
            self.nodes[node as usize].next = next;
            self.nodes[next as usize].previous = node;
        }
    }

    fn unlink(&mut self, value: ValueId, node: u32) {
        let Node { next, previous, .. } = self.nodes[node as usize];
        if next != NOWHERE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NOWHERE {
            self.nodes[previous as usize].next = next;
        } else if self.by_value.get(&value) == Some(&node) {
            match next {
                NOWHERE => self.by_value.remove(&value),
                next => self.by_value.insert(value, next),
            };
        }
    }

    /// The values that it knows, for the audit.
    pub(super) fn values(&self) -> impl Iterator<Item = ValueId> {
        self.by_value.keys().copied()
    }

    /// The nodes where a value stands.
    pub(super) fn nodes_of(&self, value: ValueId) -> impl Iterator<Item = u32> {
        let next = |node: &u32| Some(self.nodes[*node as usize].next).filter(|next| *next != NOWHERE);
        std::iter::successors(self.by_value.get(&value).copied(), next)
    }

    fn new_node(&mut self, parent: u32, number: u32, track: usize, depth: usize) -> u32 {
        let node = Node {
            parent,
            number,
            track: u16::try_from(track).expect("a strategy has few tracks"),
            depth: u16::try_from(depth).expect("a strategy is not deep"),
            place: NOWHERE,
            is_blocked: false,
            submissions: 0,
            next: NOWHERE,
            previous: NOWHERE,
            shown: None,
            pile: self.pile_at(track, depth),
        };
        match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("a view has fewer than 4 billion nodes")
            }
        }
    }

    fn pile_at(&self, track: usize, depth: usize) -> Pile {
        let track = &self.tracks[track];
        let is_turn = |step: &Step| match step {
            Step::Group(group) => group.fair.is_some(),
            Step::Alternative { .. } => true,
        };
        let below = &track.steps[depth..];
        if track.order == Order::Random && !below.iter().any(is_turn) {
            Pile::Weighted(Weighted::default())
        } else if below.is_empty() {
            Pile::Headed(Sorted::new())
        } else {
            Pile::Keyed(Keyed::new(self.parts))
        }
    }

    fn remove_node(&mut self, node: u32) {
        let it = &mut self.nodes[node as usize];
        assert!(it.shown.is_none(), "a node without submissions shows nothing");
        it.pile = Pile::Weighted(Weighted::default());
        let (parent, number, place) = (it.parent, it.number, it.place);
        if place != NOWHERE
            && let Pile::Weighted(pile) = &mut self.nodes[parent as usize].pile
            && let Some(moved) = pile.remove(place)
        {
            self.nodes[moved as usize].place = place;
        }
        self.children.remove(&(parent, number));
        self.set_blocked(node, false);
        self.unlink(ValueId(number), node);
        self.free.push(node);
    }

    /// Carries a change up the tree as far as it makes a difference.
    fn carry_up(&mut self, mut node: u32, known: Known<'_>) {
        while node != ROOT {
            let (parent, before) = (self.nodes[node as usize].parent, self.nodes[node as usize].shown);
            let now = self.show(node, known);
            if now == before {
                return;
            }
            self.nodes[node as usize].shown = now;
            let place = self.nodes[node as usize].place;
            match (&mut self.nodes[parent as usize].pile, before, now) {
                (Pile::Weighted(pile), None, Some(Shown::Weight(weight))) if place == NOWHERE => {
                    self.nodes[node as usize].place = pile.push(weight, node);
                }
                (Pile::Weighted(pile), _, Some(Shown::Weight(weight))) => pile.set(place, weight),
                // It comes back sooner or later: others need not move for it.
                (Pile::Weighted(pile), _, None) => pile.set(place, 0),
                (Pile::Keyed(pile), before, now) => {
                    if let Some(Shown::Key(key)) = before {
                        pile.remove(key, node);
                    }
                    if let Some(Shown::Key(key)) = now {
                        pile.insert(key, node);
                    }
                }
                (Pile::Weighted(_) | Pile::Headed(_), _, _) => {
                    unreachable!("a parent's pile fits its children")
                }
            }
            node = parent;
        }
    }

    /// What a node shows its parent.
    pub(super) fn show(&self, node: u32, known: Known<'_>) -> Option<Shown> {
        let it = &self.nodes[node as usize];
        if it.is_blocked {
            return None;
        }
        let best = self.best_of(node)?;
        if matches!(self.nodes[it.parent as usize].pile, Pile::Weighted(_)) {
            return Some(best);
        }
        let mut key = match best {
            Shown::Key(key) => key,
            Shown::Weight(_) => Key::default(),
        };
        match &self.tracks[it.track as usize].steps[it.depth as usize - 1] {
            Step::Group(Group { fair: Some(fair), .. }) => {
                let value = ValueId(it.number);
                // Most turns are outermost ones, and need no look at the nodes above.
                let seat = if fair.turn == 0 { seat_of_outermost(value) } else { self.seat_of(node) };
                key.turns[fair.turn] = match known.books.tag(fair.book, &seat) {
                    0 => (0, known.values.since(value)),
                    tag => (tag, u64::from(it.number)),
                };
            }
            Step::Group(_) => {}
            Step::Alternative { nth, turn } => key.turns[*turn] = (0, u64::from(*nth)),
        }
        Some(Shown::Key(key))
    }

    pub(super) fn best_of(&self, node: u32) -> Option<Shown> {
        match &self.nodes[node as usize].pile {
            Pile::Keyed(pile) => pile.first().map(|(key, _)| Shown::Key(key)),
            Pile::Headed(pile) => pile.first().map(|(head, _)| Shown::Key(Key { head, ..Key::default() })),
            Pile::Weighted(pile) => (pile.total() > 0).then(|| Shown::Weight(pile.total())),
        }
    }

    /// The values of the turns from the root down to a node.
    pub(super) fn seat_of(&self, node: u32) -> Seat {
        let (mut seat, mut node, mut taken) = ([NOBODY; STRATEGY_TURNS_MAX], node, 0);
        while node != ROOT {
            let it = &self.nodes[node as usize];
            let step = &self.tracks[it.track as usize].steps[it.depth as usize - 1];
            if matches!(step, Step::Group(Group { fair: Some(_), .. })) {
                seat[taken] = ValueId(it.number);
                taken += 1;
            }
            node = it.parent;
        }
        seat[..taken].reverse();
        seat
    }

    fn set_blocked(&mut self, node: u32, is_blocked: bool) {
        let it = &mut self.nodes[node as usize];
        if std::mem::replace(&mut it.is_blocked, is_blocked) == is_blocked {
            return;
        }
        let named = (ValueId(it.number), node);
        let is_changed =
            if is_blocked { self.blocked_nodes.insert(named) } else { self.blocked_nodes.remove(&named) };
        assert!(is_changed, "the blocked nodes of a value are known");
    }

    /// Whether a node's value is saturated.
    pub(super) fn is_saturated(&self, node: u32, values: &Values) -> bool {
        let it = &self.nodes[node as usize];
        match &self.tracks[it.track as usize].steps[it.depth as usize - 1] {
            Step::Group(group) => group.is_saturated(ValueId(it.number), values),
            Step::Alternative { .. } => false,
        }
    }

    /// Looks again at a node whose value may be saturated now, or free, or have had a turn.
    fn look_at_node(&mut self, node: u32, known: Known<'_>) {
        self.set_blocked(node, self.is_saturated(node, known.values));
        self.carry_up(node, known);
    }

    /// Looks again at every place where a value stands.
    pub(super) fn look_at(&mut self, value: ValueId, known: Known<'_>) {
        let mut node = self.by_value.get(&value).copied().unwrap_or(NOWHERE);
        while node != NOWHERE {
            let next = self.nodes[node as usize].next;
            self.look_at_node(node, known);
            node = next;
        }
    }

    /// Follows a value that may be saturated no more.
    pub(super) fn unblock(&mut self, value: ValueId, known: Known<'_>) {
        let nodes = self.blocked_nodes.range((value, 0)..=(value, u32::MAX)).map(|it| it.1);
        nodes.collect::<Vec<_>>().into_iter().for_each(|node| self.look_at_node(node, known));
    }

    /// Blocks the nodes whose values are saturated, for somebody who looks at more than what comes next. Of each limit, as
    /// many values are looked at as by an explanation.
    pub(super) fn settle(&mut self, known: Known<'_>) {
        let mut unblocked = BTreeSet::new();
        for step in self.tracks.iter().flat_map(|track| &track.steps) {
            if let Step::Group(group) = step
                && group.room < u64::MAX
            {
                let in_work = known.values.in_work(group.field).take(VALUES_LOOKED_AT_MAX);
                let nodes = in_work.flat_map(|value| self.nodes_of(value));
                unblocked.extend(nodes.filter(|node| {
                    !self.nodes[*node as usize].is_blocked && self.is_saturated(*node, known.values)
                }));
            }
        }
        unblocked.into_iter().for_each(|node| self.look_at_node(node, known));
    }

    /// Follows what limits come to. Says whether values without work may be affected too, so that everything must be
    /// looked at again; values in work are looked at here.
    pub(super) fn set_room(&mut self, room: Room, known: Known<'_>) {
        let mut fields = BTreeSet::new();
        for step in self.tracks.iter_mut().flat_map(|track| &mut track.steps) {
            if let Step::Group(group) = step {
                let before = group.room;
                if group.set_room(room) {
                    // A value without work is saturated only while nothing at all may go out.
                    fields.insert((group.field, before == 0 || group.room == 0));
                }
            }
        }
        for (field, is_everything) in fields {
            let values: Vec<ValueId> = if is_everything {
                known.values.values_of(field).collect()
            } else {
                known.values.in_work(field).collect()
            };
            values.into_iter().for_each(|value| self.look_at(value, known));
        }
    }
}

/// The seat of a value whose turn is inside no other.
const fn seat_of_outermost(value: ValueId) -> Seat {
    let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
    seat[0] = value;
    seat
}
