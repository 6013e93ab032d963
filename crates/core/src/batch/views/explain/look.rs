//! Looking into one view: what limits hold back, whose turn it is, what is ahead of a submission.

use super::Counted;
use crate::batch::values::{ValueId, Values};
use crate::batch::views::books::BookId;
use crate::batch::views::keys::{Key, Keyed, Turn};
use crate::batch::views::places::Place;
use crate::batch::views::tracks::{Group, Step};
use crate::batch::views::view::{Node, Pile, ROOT, Shown, View};
use crate::limits::{COUNTED_AHEAD_MAX, VALUES_LOOKED_AT_MAX};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A turn on a track.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnStep {
    /// Its place in a key.
    pub(super) turn: usize,
    /// How many steps it takes to get there.
    end: usize,
    pub(super) of: TurnOf,
}

/// Between what a turn decides.
#[derive(Debug, Clone, Copy)]
pub(super) enum TurnOf {
    /// The values of a field.
    Values(BookId),
    /// Alternatives, and which of them a track goes through.
    Alternative(u32),
}

/// The nodes that limits hold back, the topmost ones only.
#[derive(Debug)]
pub(super) struct Blocked {
    nodes: BTreeSet<u32>,
    /// Whether there may be more than were looked at.
    pub(super) is_cut: bool,
}

impl View {
    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    /// The step that leads to a node; none to the root.
    fn step(&self, node: u32) -> Option<&Step> {
        let Node { track, depth, .. } = self.node(node);
        self.tracks()[*track as usize].steps.get(usize::from(*depth).checked_sub(1)?)
    }

    /// The turn that a node is a part of by itself.
    fn own_turn(&self, node: u32) -> Option<usize> {
        match self.step(node)? {
            Step::Group(Group { fair, .. }) => fair.map(|fair| fair.turn),
            Step::Alternative { turn, .. } => Some(*turn),
        }
    }

    /// How many turns are decided at a node.
    fn turns_at(&self, node: u32) -> usize {
        let Node { track, depth, .. } = self.node(node);
        let above = &self.tracks()[*track as usize].steps[..*depth as usize];
        let is_turn = |step: &&Step| match step {
            Step::Group(group) => group.fair.is_some(),
            Step::Alternative { .. } => true,
        };
        above.iter().filter(is_turn).count()
    }

    fn parents(&self, node: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(node), |node| (*node != ROOT).then(|| self.node(*node).parent))
    }

    /// Whether neither a node nor anything above it is held back.
    fn is_open(&self, node: u32) -> bool {
        self.parents(node).all(|node| !self.node(node).is_blocked)
    }

    /// Everything that limits hold back. A value without work is at its limit only while nothing at all may go out, so
    /// otherwise those in work are looked at.
    pub(super) fn blocked(&self, values: &Values) -> Blocked {
        let steps = self.tracks().iter().flat_map(|track| &track.steps);
        let groups = steps.filter_map(|step| match step {
            Step::Group(group) if group.room < u64::MAX => Some(group),
            Step::Group(_) | Step::Alternative { .. } => None,
        });
        let is_topmost = |node: &u32| self.node(*node).is_blocked && self.is_open(self.node(*node).parent);
        let mut blocked = Blocked { nodes: BTreeSet::new(), is_cut: false };
        for group in groups {
            let of_all = if group.room == 0 { VALUES_LOOKED_AT_MAX } else { 0 };
            let (mut in_work, mut all) = (values.in_work(group.field), values.values_of(group.field));
            let looked_at = in_work.by_ref().take(VALUES_LOOKED_AT_MAX).chain(all.by_ref().take(of_all));
            for value in looked_at.filter(|value| group.is_saturated(*value, values)) {
                blocked.nodes.extend(self.nodes_of(value).filter(is_topmost));
            }
            blocked.is_cut |= in_work.next().is_some() || (of_all > 0 && all.next().is_some());
        }
        blocked
    }

    /// How many submissions below a node are not held back.
    pub(super) fn open_below(&self, node: u32, blocked: &Blocked) -> u64 {
        if !self.is_open(node) {
            return 0;
        }
        let behind = blocked.nodes.iter().filter(|it| self.parents(**it).any(|parent| parent == node));
        let behind: u64 = behind.map(|it| u64::from(self.node(*it).submissions)).sum();
        u64::from(self.node(node).submissions) - behind
    }

    /// How many ready submissions stand behind a value.
    pub(super) fn behind(&self, value: ValueId) -> u64 {
        self.nodes_of(value).map(|node| u64::from(self.node(node).submissions)).sum()
    }

    /// The turns on a track, from the outside in.
    pub(super) fn turns(&self, track: usize) -> Vec<TurnStep> {
        let steps = self.tracks()[track].steps.iter().enumerate();
        let turn_at = |(place, step): (usize, &Step)| match step {
            Step::Group(Group { fair: Some(fair), .. }) => {
                Some(TurnStep { turn: fair.turn, end: place + 1, of: TurnOf::Values(fair.book) })
            }
            Step::Group(_) => None,
            Step::Alternative { nth, turn } => {
                Some(TurnStep { turn: *turn, end: place + 1, of: TurnOf::Alternative(*nth) })
            }
        };
        steps.filter_map(turn_at).collect()
    }

    /// The `nth` turn between values on a track, and whose book it is in.
    pub(super) fn fair(&self, track: usize, nth: usize) -> Option<(TurnStep, BookId)> {
        let mut turns = self.turns(track).into_iter().filter_map(|step| match step.of {
            TurnOf::Values(book) => Some((step, book)),
            TurnOf::Alternative(_) => None,
        });
        turns.nth(nth)
    }

    /// The tracks that go the same way as this one up to a turn of it. A node that they share is known by one of them.
    pub(super) fn tracks_with(&self, track: usize, step: TurnStep) -> Vec<usize> {
        let steps = &self.tracks()[track].steps[..step.end];
        let is_same = |other: &usize| self.tracks()[*other].steps.get(..step.end) == Some(steps);
        (0..self.tracks().len()).filter(is_same).collect()
    }

    /// The nodes of a turn below these, in the order in which it is theirs.
    pub(super) fn in_turn<'a>(&'a self, starts: &[u32], turn: usize, tracks: &'a [usize]) -> InTurn<'a> {
        let mut order = InTurn { view: self, turn, tracks, levels: Vec::new(), next: BinaryHeap::new() };
        for start in starts {
            order.open(*start, [Turn::default(); _]);
        }
        order
    }

    /// The open nodes of the same value within the same outer values as this one, on any of these tracks; `nth` turns between
    /// values are above it.
    pub(super) fn places_of(&self, node: u32, nth: usize, tracks: &[usize]) -> Vec<u32> {
        let seat = self.seat_of(node);
        let turn = self.own_turn(node);
        let is_same = |it: &u32| {
            self.own_turn(*it) == turn
                && tracks.contains(&(self.node(*it).track as usize))
                && self.seat_of(*it)[..=nth] == seat[..=nth]
                && self.is_open(*it)
        };
        self.nodes_of(ValueId(self.node(node).number)).filter(is_same).collect()
    }

    /// The node of the `nth` turn between values above a submission's place.
    pub(super) fn turn_above(&self, place: Place, nth: usize) -> Option<u32> {
        let is_fair = |node: &u32| matches!(self.step(*node), Some(Step::Group(Group { fair: Some(_), .. })));
        let above: Vec<u32> = self.parents(place.leaf).filter(is_fair).collect();
        above.into_iter().rev().nth(nth)
    }

    /// Where a submission is, if it is in the view.
    pub(super) fn place(&self, track: usize, slot: u32) -> Option<Place> {
        self.places[track].get(slot)
    }

    /// What a submission is sorted by, as seen from the root.
    fn key_of(&self, place: Place, head: (u64, u64)) -> Key {
        let mut key = Key { turns: [Turn::default(); _], head };
        for node in self.parents(place.leaf) {
            if let (Some(turn), Some(Shown::Key(shown))) = (self.own_turn(node), self.node(node).shown) {
                key.turns[turn] = shown.turns[turn];
            }
        }
        key
    }

    /// How many submissions below these nodes go before the one at a place.
    pub(super) fn ahead_of(
        &self,
        starts: &[u32],
        place: Place,
        head: (u64, u64),
        blocked: &Blocked,
    ) -> Counted {
        let head = match &self.node(place.leaf).pile {
            // Chance has no order: only what another turn or alternative puts before it is ahead.
            Pile::Weighted(_) => (0, 0),
            Pile::Headed(_) | Pile::Keyed(_) => head,
        };
        let key = self.key_of(place, head);
        let mut counted = Counted { count: 0, is_cut: false };
        starts.iter().for_each(|start| self.count_ahead(*start, &key, blocked, &mut counted));
        counted
    }

    fn count_ahead(&self, node: u32, key: &Key, blocked: &Blocked, counted: &mut Counted) {
        match &self.node(node).pile {
            Pile::Weighted(_) => {}
            Pile::Headed(pile) => {
                let left = usize::try_from(COUNTED_AHEAD_MAX - counted.count).unwrap_or(usize::MAX);
                counted.add(pile.iter().take_while(|it| it.0 < key.head).take(left + 1).count() as u64);
            }
            Pile::Keyed(pile) => self.count_ahead_in(node, pile, key, blocked, counted),
        }
    }

    fn count_ahead_in(&self, node: u32, pile: &Keyed, key: &Key, blocked: &Blocked, counted: &mut Counted) {
        // What is decided at a node or above it is the same for all below, and left out of their keys.
        let decided = self.turns_at(node);
        let mut below = *key;
        below.turns[..decided].fill(Turn::default());
        for (child_key, child) in pile.iter().take_while(|it| it.0 < below) {
            match self.own_turn(child) {
                Some(turn) if child_key.turns[turn] < below.turns[turn] => {
                    counted.add(self.open_below(child, blocked));
                }
                Some(_) | None => self.count_ahead(child, key, blocked, counted),
            }
            if counted.is_cut {
                return;
            }
        }
    }

    /// All ready chunks that chance draws from below the open ones of these nodes, as far as no other turn decides first.
    pub(super) fn drawn_from(&self, starts: &[u32]) -> u64 {
        starts.iter().filter(|node| self.is_open(**node)).map(|node| self.weight_of_best(*node)).sum()
    }

    /// The value that a node stands for, or the number of its alternative.
    pub(super) fn value_at(&self, node: u32) -> ValueId {
        ValueId(self.node(node).number)
    }

    pub(super) fn submissions_at(&self, nodes: &[u32]) -> u64 {
        nodes.iter().map(|node| u64::from(self.node(*node).submissions)).sum()
    }
}

impl Counted {
    fn add(&mut self, count: u64) {
        self.count += count;
        if self.count > COUNTED_AHEAD_MAX {
            *self = Counted { count: COUNTED_AHEAD_MAX, is_cut: true };
        }
    }
}

/// The nodes of a turn in their order: a merge of the piles on the way to them.
pub(super) struct InTurn<'a> {
    view: &'a View,
    turn: usize,
    tracks: &'a [usize],
    levels: Vec<Level<'a>>,
    /// Key, node and level.
    next: BinaryHeap<Reverse<(Key, u32, usize)>>,
}

/// The children of one node that were not looked at yet, and the turns that are decided for all of them.
struct Level<'a> {
    children: Box<dyn Iterator<Item = (Key, u32)> + 'a>,
    turns: [Turn; crate::limits::STRATEGY_TURNS_MAX],
    decided: usize,
}

impl<'a> InTurn<'a> {
    fn open(&mut self, node: u32, turns: [Turn; crate::limits::STRATEGY_TURNS_MAX]) {
        if let Pile::Keyed(pile) = &self.view.node(node).pile {
            let decided = self.view.turns_at(node);
            self.levels.push(Level { children: pile.iter(), turns, decided });
            self.go_on(self.levels.len() - 1);
        }
    }

    fn go_on(&mut self, level: usize) {
        let Level { children, turns, decided } = &mut self.levels[level];
        if let Some((mut key, node)) = children.next() {
            key.turns[..*decided].copy_from_slice(&turns[..*decided]);
            self.next.push(Reverse((key, node, level)));
        }
    }
}

impl Iterator for InTurn<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            let Reverse((key, node, level)) = self.next.pop()?;
            self.go_on(level);
            if self.view.own_turn(node) != Some(self.turn) {
                self.open(node, key.turns);
            } else if self.tracks.contains(&(self.view.node(node).track as usize)) {
                return Some(node);
            }
        }
    }
}
