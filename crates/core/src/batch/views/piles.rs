//! Piles: what a node of a view holds, in the order in which it would be taken.
//!
//! Every operation costs O(log n). Small piles are plain lists: most values of a field have few submissions, and a million
//! trees of one element each would cost a million half-empty nodes.

use std::collections::BTreeSet;

/// Up to this many elements a list is as quick as a tree, and a fraction of its size.
const FEW: usize = 24;

/// Elements with distinct keys, smallest first.
#[derive(Debug, Clone)]
pub(super) enum Sorted<K> {
    Few(Vec<(K, u32)>),
    Many(BTreeSet<(K, u32)>),
}

impl<K: Ord + Copy> Sorted<K> {
    pub(super) const fn new() -> Sorted<K> {
        Sorted::Few(Vec::new())
    }

    pub(super) fn insert(&mut self, key: K, child: u32) {
        match self {
            Sorted::Few(few) if few.len() < FEW => {
                let place = few.partition_point(|it| *it < (key, child));
                if few.is_empty() {
                    few.reserve_exact(1);
                }
                few.insert(place, (key, child));
            }
            Sorted::Few(few) => {
                let mut many: BTreeSet<(K, u32)> = few.drain(..).collect();
                many.insert((key, child));
                *self = Sorted::Many(many);
            }
            Sorted::Many(many) => drop(many.insert((key, child))),
        }
    }

    pub(super) fn remove(&mut self, key: K, child: u32) {
        let was_there = match self {
            Sorted::Few(few) => few.binary_search(&(key, child)).map(|place| few.remove(place)).is_ok(),
            Sorted::Many(many) => {
                let was_there = many.remove(&(key, child));
                if many.is_empty() {
                    *self = Sorted::new();
                }
                was_there
            }
        };
        assert!(was_there, "what is taken out of a pile is in it under its key");
    }

    pub(super) fn first(&self) -> Option<(K, u32)> {
        match self {
            Sorted::Few(few) => few.first().copied(),
            Sorted::Many(many) => many.first().copied(),
        }
    }

    /// All elements that have the smallest key.
    pub(super) fn each_first(&self, each: impl FnMut(u32)) {
        match self {
            Sorted::Few(few) => each_first(few.iter(), each),
            Sorted::Many(many) => each_first(many.iter(), each),
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = (K, u32)> + '_> {
        match self {
            Sorted::Few(few) => Box::new(few.iter().copied()),
            Sorted::Many(many) => Box::new(many.iter().copied()),
        }
    }
}

/// Those at the beginning of a sequence that have the same key as its first; one walk, since each begins with a look at memory.
fn each_first<'a, K: Eq + 'a>(mut all: impl Iterator<Item = &'a (K, u32)>, mut each: impl FnMut(u32)) {
    let Some((first, child)) = all.next() else { return };
    each(*child);
    all.take_while(|it| it.0 == *first).for_each(|it| each(it.1));
}

/// Elements picked in proportion to their weights: sums of 32 elements, sums of 32 sums, and so on. Wide and flat, since a
/// look at memory that is not at hand costs more than adding up what lies side by side.
#[derive(Debug, Clone, Default)]
pub(super) struct Weighted {
    elements: Vec<(u64, u32)>,
    /// The sums of 32 of the level below, the elements' first; none while there are few elements.
    levels: Vec<Vec<u64>>,
    total: u64,
}

const FAN: usize = 32;

impl Weighted {
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Adds an element at the next place, and says which place that is.
    pub(super) fn push(&mut self, weight: u64, child: u32) -> u32 {
        if self.elements.is_empty() {
            self.elements.reserve_exact(1);
        }
        let place = self.elements.len();
        self.elements.push((weight, child));
        self.total += weight;
        let mut nth = place;
        for level in &mut self.levels {
            nth /= FAN;
            match level.get_mut(nth) {
                Some(sum) => *sum += weight,
                None => level.push(weight),
            }
        }
        self.grow();
        u32::try_from(place).expect("a view has fewer than 4 billion elements")
    }

    /// Adds a level if the highest one is wide.
    fn grow(&mut self) {
        let sums = match self.levels.last() {
            Some(highest) if highest.len() > FAN => highest.chunks(FAN).map(|it| it.iter().sum()).collect(),
            None if self.elements.len() > FAN => {
                self.elements.chunks(FAN).map(|it| it.iter().map(|element| element.0).sum()).collect()
            }
            Some(_) | None => return,
        };
        self.levels.push(sums);
    }

    pub(super) fn set(&mut self, place: u32, weight: u64) {
        let mut nth = place as usize;
        let before = std::mem::replace(&mut self.elements[nth].0, weight);
        self.total = self.total - before + weight;
        for level in &mut self.levels {
            nth /= FAN;
            level[nth] = level[nth] - before + weight;
        }
    }

    /// Takes the element at a place out; the last one moves there, and is named if it is another one.
    pub(super) fn remove(&mut self, place: u32) -> Option<u32> {
        let last = self.elements.len() - 1;
        let (weight, child) = self.elements[last];
        self.set(u32::try_from(last).expect("places are 32-bit"), 0);
        self.elements.pop();
        let mut len = last;
        for level in &mut self.levels {
            len = len.div_ceil(FAN);
            level.truncate(len);
        }
        while self.levels.last().is_some_and(|highest| highest.len() <= 1) {
            self.levels.pop();
        }
        if place as usize == last {
            return None;
        }
        self.elements[place as usize].1 = child;
        self.set(place, weight);
        Some(child)
    }

    /// The element whose weight covers `point`, which is below the total.
    pub(super) fn pick(&self, mut point: u64) -> u32 {
        assert!(point < self.total, "the point lies within the weights");
        let mut nth = 0;
        for level in self.levels.iter().rev() {
            while level[nth] <= point {
                point -= level[nth];
                nth += 1;
            }
            nth *= FAN;
        }
        while self.elements[nth].0 <= point {
            point -= self.elements[nth].0;
            nth += 1;
        }
        self.elements[nth].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.elements.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    #[test]
    fn sorted_agrees_with_a_plain_set() {
        for seed in 0..50 {
            let mut chance = Seeded::new(seed);
            let (mut pile, mut model) = (Sorted::new(), BTreeSet::new());
            for _ in 0..300 {
                let key = (chance.below(40), u32::try_from(chance.below(3)).unwrap());
                if model.remove(&key) {
                    pile.remove(key.0, key.1);
                } else {
                    model.insert(key);
                    pile.insert(key.0, key.1);
                }
                assert_eq!(pile.first(), model.first().copied(), "seed {seed}");
                assert!(pile.iter().eq(model.iter().copied()), "seed {seed}");
            }
        }
    }

    #[test]
    fn weighted_gives_each_point_to_the_element_that_covers_it() {
        for seed in 0..20 {
            let mut chance = Seeded::new(seed);
            let (mut pile, mut model) = (Weighted::default(), Vec::<(u64, u32)>::new());
            // Grows past three levels, and then shrinks to nothing.
            for step in 0..6_000_u32 {
                let place = usize::try_from(chance.below(model.len().max(1) as u64)).unwrap();
                let is_shrinking = u64::from(step > 3_000);
                match chance.below(5) {
                    kind if kind <= 2 * is_shrinking && !model.is_empty() => {
                        let moved = pile.remove(u32::try_from(place).unwrap());
                        model.swap_remove(place);
                        assert_eq!(moved, model.get(place).map(|it| it.1), "seed {seed}");
                    }
                    3 if !model.is_empty() => {
                        let weight = chance.below(5);
                        pile.set(u32::try_from(place).unwrap(), weight);
                        model[place].0 = weight;
                    }
                    _ => {
                        let weight = chance.below(5);
                        assert_eq!(pile.push(weight, step) as usize, model.len());
                        model.push((weight, step));
                    }
                }
                if step % 97 == 0 {
                    let covering = model.iter().flat_map(|(weight, child)| {
                        std::iter::repeat_n(*child, usize::try_from(*weight).unwrap())
                    });
                    let picked = (0..pile.total()).map(|point| pile.pick(point));
                    assert!(picked.eq(covering), "seed {seed}, step {step}");
                }
            }
        }
    }
}
