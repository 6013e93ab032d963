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

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = (K, u32)> + '_> {
        match self {
            Sorted::Few(few) => Box::new(few.iter().copied()),
            Sorted::Many(many) => Box::new(many.iter().copied()),
        }
    }
}

/// Elements picked in proportion to their weights: a Fenwick tree over places.
#[derive(Debug, Clone, Default)]
pub(super) struct Weighted {
    elements: Vec<(u64, u32)>,
    /// Sums as a Fenwick tree has them; empty while there are few elements.
    sums: Vec<u64>,
    total: u64,
}

impl Weighted {
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Adds an element at the next place, and says which place that is.
    pub(super) fn push(&mut self, weight: u64, child: u32) -> u32 {
        if self.elements.is_empty() {
            self.elements.reserve_exact(1);
        }
        self.elements.push((weight, child));
        self.total += weight;
        if !self.sums.is_empty() {
            self.grow_sums(self.elements.len());
        } else if self.elements.len() > FEW {
            (1..=self.elements.len()).for_each(|node| self.grow_sums(node));
        }
        u32::try_from(self.elements.len() - 1).expect("a view has fewer than 4 billion elements")
    }

    /// Adds the tree's next node: the sum of the weights that it covers.
    fn grow_sums(&mut self, node: usize) {
        let first = node - (node & node.wrapping_neg());
        let mut sum = self.elements[node - 1].0;
        let mut below = node - 1;
        while below > first {
            sum += self.sums[below - 1];
            below -= below & below.wrapping_neg();
        }
        self.sums.push(sum);
    }

    pub(super) fn set(&mut self, place: u32, weight: u64) {
        let place = place as usize;
        let before = std::mem::replace(&mut self.elements[place].0, weight);
        self.total = self.total - before + weight;
        let mut node = place + 1;
        while node <= self.sums.len() {
            let sum = &mut self.sums[node - 1];
            *sum = sum.wrapping_add(weight).wrapping_sub(before);
            node += node & node.wrapping_neg();
        }
    }

    /// Takes the element at a place out; the last one moves there, and is named if it is another one.
    pub(super) fn remove(&mut self, place: u32) -> Option<u32> {
        let last = self.elements.len() - 1;
        let (weight, child) = self.elements[last];
        self.set(u32::try_from(last).expect("places are 32-bit"), 0);
        self.elements.pop();
        self.sums.pop();
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
        let mut place = 0;
        if self.sums.is_empty() {
            while self.elements[place].0 <= point {
                point -= self.elements[place].0;
                place += 1;
            }
            return self.elements[place].1;
        }
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            if let Some(sum) = self.sums.get(place + step - 1)
                && *sum <= point
            {
                point -= sum;
                place += step;
            }
            step /= 2;
        }
        self.elements[place].1
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
        for seed in 0..50 {
            let mut chance = Seeded::new(seed);
            let (mut pile, mut model) = (Weighted::default(), Vec::<(u64, u32)>::new());
            for step in 0..200_u32 {
                let place = chance.below(model.len().max(1) as u64);
                match chance.below(4) {
                    0 if !model.is_empty() => {
                        let moved = pile.remove(u32::try_from(place).unwrap());
                        model.swap_remove(usize::try_from(place).unwrap());
                        assert_eq!(moved, model.get(usize::try_from(place).unwrap()).map(|it| it.1));
                    }
                    1 if !model.is_empty() => {
                        let weight = chance.below(5);
                        pile.set(u32::try_from(place).unwrap(), weight);
                        model[usize::try_from(place).unwrap()].0 = weight;
                    }
                    _ => {
                        let weight = chance.below(5);
                        assert_eq!(pile.push(weight, step) as usize, model.len());
                        model.push((weight, step));
                    }
                }
                let covering =
                    model.iter().flat_map(|(weight, child)| std::iter::repeat_n(*child, *weight as usize));
                let covering: Vec<u32> = covering.collect();
                assert_eq!(pile.total() as usize, covering.len());
                let picked: Vec<u32> = (0..pile.total()).map(|point| pile.pick(point)).collect();
                assert_eq!(picked, covering, "seed {seed}");
            }
        }
    }
}
