//! Picking: the way from a view's root down to the submission that comes next.
//!
//! A saturated value that is not blocked yet is blocked wherever it stands when a pick comes to it, and the pick begins anew.
//! By chance, that leaves the others as likely as if it had been blocked before.

use super::keys::Keyed;
use super::view::{Known, Pile, ROOT, View};
use crate::batch::values::ValueId;
use crate::seeded::Seeded;

/// What a pick found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) slot: u32,
    pub(super) track: usize,
}

/// Where the way down the tree leads.
enum WayDown {
    To(Pick),
    /// A value that should be blocked.
    Saturated(ValueId),
}

impl View {
    /// What comes next.
    pub(super) fn pick(&mut self, chance: &mut Seeded, known: Known<'_>) -> Option<Pick> {
        if !self.is_built() {
            return None;
        }
        loop {
            match self.go_down(chance, known)? {
                WayDown::To(pick) => return Some(pick),
                WayDown::Saturated(value) => self.look_at(value, known),
            }
        }
    }

    fn go_down(&self, chance: &mut Seeded, known: Known<'_>) -> Option<WayDown> {
        self.best_of(ROOT)?;
        let mut node = ROOT;
        loop {
            let it = &self.nodes[node as usize];
            let track = it.track as usize;
            let is_leaf = it.depth as usize == self.tracks()[track].steps.len();
            let child = match &it.pile {
                Pile::Weighted(pile) => pile.pick(chance.below(pile.total())),
                Pile::Headed(pile) => pile.first()?.1,
                Pile::Keyed(pile) => self.pick_among_equals(pile, chance)?,
            };
            if is_leaf {
                return Some(WayDown::To(Pick { slot: child, track }));
            }
            if self.is_saturated(child, known.values) {
                return Some(WayDown::Saturated(ValueId(self.nodes[child as usize].number)));
            }
            node = child;
        }
    }

    /// The child with the smallest key. Several have the same one only if chance decides, each with parts of the same
    /// turn: then they are picked in proportion to those.
    fn pick_among_equals(&self, pile: &Keyed, chance: &mut Seeded) -> Option<u32> {
        let mut equals = Vec::new();
        pile.each_first(|child| equals.push(child));
        if let [only] = equals[..] {
            return Some(only);
        }
        let weighed: Vec<_> = equals.into_iter().map(|child| (child, self.weight_of_best(child))).collect();
        if weighed.is_empty() {
            return None;
        }
        let mut point = chance.below(weighed.iter().map(|it| it.1).sum());
        for (child, weight) in weighed {
            if point < weight {
                return Some(child);
            }
            point -= weight;
        }
        None
    }

    pub(super) fn weight_of_best(&self, node: u32) -> u64 {
        match &self.nodes[node as usize].pile {
            Pile::Weighted(pile) => pile.total(),
            Pile::Headed(_) => 1,
            Pile::Keyed(pile) => {
                let mut sum = 0;
                pile.each_first(|child| sum += self.weight_of_best(child));
                sum
            }
        }
    }
}
