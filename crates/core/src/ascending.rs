//! An ordered map for keys that mostly come in ascending order and stay for a while, such as the ids of submissions.
//!
//! A B-tree that is only ever filled at its end leaves its nodes half empty. Here entries sit side by side in blocks, full
//! ones but for the last, so that a million of them take hardly more than their own bytes.
//!
//! Invariants
//! - Blocks are in order, none is empty, and each stands under its first key or a smaller one.
//!
//! Everything costs O(log n + block), with a block of at most 64 entries that lie side by side.

use std::collections::BTreeMap;
use std::ops::Bound;

const BLOCK: usize = 64;

/// See the file's head.
#[derive(Debug, Clone)]
pub(crate) struct AscendingMap<K, V> {
    blocks: BTreeMap<K, Block<K, V>>,
    len: usize,
}

/// Keys apart from their values: a look for one touches a few lines of memory.
#[derive(Debug, Clone)]
struct Block<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K, V> Default for AscendingMap<K, V> {
    fn default() -> AscendingMap<K, V> {
        AscendingMap { blocks: BTreeMap::new(), len: 0 }
    }
}

impl<K: Ord + Copy, V> AscendingMap<K, V> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (_, block) = self.blocks.range(..=key).next_back()?;
        let place = block.keys.binary_search(key).ok()?;
        Some(&block.values[place])
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, block) = self.blocks.range_mut(..=key).next_back()?;
        let place = block.keys.binary_search(key).ok()?;
        Some(&mut block.values[place])
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value under a key, and gives the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let is_new_last = self.blocks.last_key_value().is_none_or(|(_, block)| {
            block.keys.len() >= BLOCK && block.keys.last().is_some_and(|last| *last < key)
        });
        if is_new_last {
            self.start_block(key, value);
            return None;
        }
        let Some((_, block)) = self.blocks.range_mut(..=key).next_back() else {
            self.start_block(key, value);
            return None;
        };
        match block.keys.binary_search(&key) {
            Ok(place) => Some(std::mem::replace(&mut block.values[place], value)),
            Err(place) => {
                block.keys.insert(place, key);
                block.values.insert(place, value);
                self.len += 1;
                if block.keys.len() > BLOCK {
                    let keys = block.keys.split_off(BLOCK / 2);
                    let values = block.values.split_off(BLOCK / 2);
                    self.blocks.insert(keys[0], Block { keys, values });
                }
                None
            }
        }
    }

    fn start_block(&mut self, key: K, value: V) {
        let mut block = Block { keys: Vec::with_capacity(BLOCK), values: Vec::with_capacity(BLOCK) };
        block.keys.push(key);
        block.values.push(value);
        self.blocks.insert(key, block);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (first, block) = self.blocks.range_mut(..=key).next_back()?;
        let place = block.keys.binary_search(key).ok()?;
        block.keys.remove(place);
        let value = block.values.remove(place);
        self.len -= 1;
        let first = *first;
        if block.keys.is_empty() {
            self.blocks.remove(&first);
        } else if block.keys.len() < BLOCK / 4 {
            self.join_with_next(first);
        }
        Some(value)
    }

    /// Moves what is left of a block in front of the next one, if both fit.
    fn join_with_next(&mut self, first: K) {
        let next = self.blocks.range((Bound::Excluded(first), Bound::Unbounded)).next();
        let Some((next_first, next_len)) = next.map(|(key, block)| (*key, block.keys.len())) else { return };
        if self.blocks[&first].keys.len() + next_len > BLOCK / 2 {
            return;
        }
        let mut next = self.blocks.remove(&next_first).expect("it was just found");
        let block = self.blocks.get_mut(&first).expect("it is here");
        block.keys.append(&mut next.keys);
        block.values.append(&mut next.values);
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.blocks.values().flat_map(Block::iter)
    }

    /// The entries below a key, largest first; all of them without one.
    pub(crate) fn below(&self, end: Option<K>) -> impl Iterator<Item = (K, &V)> {
        let blocks = match end {
            Some(end) => self.blocks.range(..end),
            None => self.blocks.range::<K, _>(..),
        };
        let entries = blocks.rev().flat_map(|(_, block)| block.iter().rev());
        entries.skip_while(move |(key, _)| end.is_some_and(|end| *key >= end))
    }
}

impl<K: Copy, V> Block<K, V> {
    fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.keys.iter().copied().zip(&self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    #[test]
    fn it_agrees_with_a_plain_map() {
        for seed in 0..200 {
            let mut chance = Seeded::new(seed);
            let (mut map, mut model) = (AscendingMap::default(), BTreeMap::new());
            let mut next = 1_000;
            for step in 0..1_500 {
                match chance.below(10) {
                    0..5 => {
                        next += 1 + chance.below(3);
                        assert_eq!(map.insert(next, step), model.insert(next, step));
                    }
                    5 => {
                        let anywhere = chance.below(next + 10);
                        assert_eq!(map.insert(anywhere, step), model.insert(anywhere, step), "seed {seed}");
                    }
                    _ => {
                        let key = model.keys().nth(usize::try_from(chance.below(40)).unwrap()).copied();
                        let key = key.unwrap_or(chance.below(next));
                        assert_eq!(map.get(&key), model.get(&key), "seed {seed}");
                        assert_eq!(map.remove(&key), model.remove(&key), "seed {seed}");
                    }
                }
                assert_eq!(map.len(), model.len());
            }
            assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))), "seed {seed}");
            let end = chance.below(next);
            let below = model.range(..end).rev().map(|(key, value)| (*key, value));
            assert!(map.below(Some(end)).eq(below), "seed {seed}");
            assert!(map.below(None).eq(model.iter().rev().map(|(key, value)| (*key, value))));
        }
    }
}
