//! Keys: what orders the children of a node, and piles of children by key.
//!
//! A key has a place for every turn that a strategy may have, and one for the order of submissions. Most strategies have one
//! turn, and many leave the rest to chance. A value that gets a turn moves in every pile where it stands, and what that
//! costs is the memory that is looked at: so a pile keeps only the part of its keys that tells them apart.
//!
//! Invariants
//! - A pile gives back the keys that it was given, in their order, whatever part of them it keeps.

use super::piles::Sorted;
use super::tracks::Head;
use crate::limits::STRATEGY_TURNS_MAX;

/// One turn in a key: the tag of a value, and what tells it from the others with the same tag: since when it has waited if
/// it may start at once, its number if not. Of an alternative, only its number.
pub(super) type Turn = (u64, u64);

/// What orders the children of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Key {
    pub(super) turns: [Turn; STRATEGY_TURNS_MAX],
    pub(super) head: Head,
}

/// Which parts of a key can be other than zero in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// The outermost turn.
    Turn,
    /// That one and the head.
    TurnAndHead,
    /// Any.
    All,
}

/// Children by key, the smallest first.
#[derive(Debug)]
pub(super) enum Keyed {
    Turn(Sorted<Turn>),
    TurnAndHead(Sorted<(Turn, Head)>),
    All(Sorted<Key>),
}

impl Key {
    const fn of_turn(turn: Turn, head: Head) -> Key {
        let mut turns = [(0, 0); STRATEGY_TURNS_MAX];
        turns[0] = turn;
        Key { turns, head }
    }

    /// The outermost turn and the head, of a key that has nothing else.
    fn turn_and_head(self) -> (Turn, Head) {
        assert!(self.turns[1..].iter().all(|turn| *turn == Turn::default()), "there are no other turns");
        (self.turns[0], self.head)
    }

    /// The outermost turn, of a key that has nothing else.
    fn turn(self) -> Turn {
        let (turn, head) = self.turn_and_head();
        assert_eq!(head, Head::default(), "chance decides, and not an order");
        turn
    }
}

impl Keyed {
    pub(super) const fn new(parts: Parts) -> Keyed {
        match parts {
            Parts::Turn => Keyed::Turn(Sorted::new()),
            Parts::TurnAndHead => Keyed::TurnAndHead(Sorted::new()),
            Parts::All => Keyed::All(Sorted::new()),
        }
    }

    pub(super) fn insert(&mut self, key: Key, child: u32) {
        match self {
            Keyed::Turn(pile) => pile.insert(key.turn(), child),
            Keyed::TurnAndHead(pile) => pile.insert(key.turn_and_head(), child),
            Keyed::All(pile) => pile.insert(key, child),
        }
    }

    pub(super) fn remove(&mut self, key: Key, child: u32) {
        match self {
            Keyed::Turn(pile) => pile.remove(key.turn(), child),
            Keyed::TurnAndHead(pile) => pile.remove(key.turn_and_head(), child),
            Keyed::All(pile) => pile.remove(key, child),
        }
    }

    pub(super) fn first(&self) -> Option<(Key, u32)> {
        match self {
            Keyed::Turn(pile) => pile.first().map(|(turn, child)| (Key::of_turn(turn, (0, 0)), child)),
            Keyed::TurnAndHead(pile) => {
                pile.first().map(|((turn, head), child)| (Key::of_turn(turn, head), child))
            }
            Keyed::All(pile) => pile.first(),
        }
    }

    /// All children that have the smallest key.
    pub(super) fn each_first(&self, each: impl FnMut(u32)) {
        match self {
            Keyed::Turn(pile) => pile.each_first(each),
            Keyed::TurnAndHead(pile) => pile.each_first(each),
            Keyed::All(pile) => pile.each_first(each),
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = (Key, u32)> + '_> {
        match self {
            Keyed::Turn(pile) => {
                Box::new(pile.iter().map(|(turn, child)| (Key::of_turn(turn, (0, 0)), child)))
            }
            Keyed::TurnAndHead(pile) => {
                Box::new(pile.iter().map(|((turn, head), child)| (Key::of_turn(turn, head), child)))
            }
            Keyed::All(pile) => pile.iter(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    #[test]
    fn piles_agree_whatever_parts_of_their_keys_they_keep() {
        for seed in 0..30 {
            let mut chance = Seeded::new(seed);
            for (parts, heads) in [(Parts::Turn, 1), (Parts::TurnAndHead, 3)] {
                let (mut pile, mut all) = (Keyed::new(parts), Keyed::new(Parts::All));
                let mut held = Vec::new();
                for child in 0..200 {
                    let turn = (chance.below(4), chance.below(3));
                    let key = Key::of_turn(turn, (chance.below(heads), 0));
                    pile.insert(key, child);
                    all.insert(key, child);
                    held.push((key, child));
                    if chance.below(3) == 0 {
                        let taken = usize::try_from(chance.below(held.len() as u64)).unwrap();
                        let (key, child) = held.swap_remove(taken);
                        pile.remove(key, child);
                        all.remove(key, child);
                    }
                    let firsts = |pile: &Keyed| {
                        let mut firsts = Vec::new();
                        pile.each_first(|child| firsts.push(child));
                        firsts
                    };
                    assert_eq!((pile.first(), firsts(&pile)), (all.first(), firsts(&all)), "seed {seed}");
                    assert!(pile.iter().eq(all.iter()), "seed {seed}");
                }
            }
        }
    }
}
