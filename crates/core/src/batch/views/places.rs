//! Places: in which leaf of a view each submission is.
//!
//! A view that looks at every submission has most of them, one that selects has few: a list by slot for the first kind, a
//! tree for the second, so that a thousand strategies that select one company each do not cost a thousand full lists.

use std::collections::BTreeMap;

/// Where a submission is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) leaf: u32,
    /// Its place in the leaf's pile, if that one goes by weight.
    pub(super) place: u32,
}

const NOWHERE: Place = Place { leaf: u32::MAX, place: 0 };

/// The places of submissions, by slot.
#[derive(Debug)]
pub(super) enum Places {
    OfMost(Vec<Place>),
    OfFew(BTreeMap<u32, Place>),
}

impl Places {
    /// Places for most of the submissions, or for few of them.
    pub(super) const fn new(is_for_most: bool) -> Places {
        if is_for_most { Places::OfMost(Vec::new()) } else { Places::OfFew(BTreeMap::new()) }
    }

    pub(super) fn get(&self, slot: u32) -> Option<Place> {
        match self {
            Places::OfMost(places) => places.get(slot as usize).filter(|place| **place != NOWHERE).copied(),
            Places::OfFew(places) => places.get(&slot).copied(),
        }
    }

    pub(super) fn put(&mut self, slot: u32, place: Place) {
        match self {
            Places::OfMost(places) => {
                if places.len() <= slot as usize {
                    places.resize(slot as usize + 1, NOWHERE);
                }
                places[slot as usize] = place;
            }
            Places::OfFew(places) => drop(places.insert(slot, place)),
        }
    }

    pub(super) fn take_out(&mut self, slot: u32) {
        match self {
            Places::OfMost(places) => places[slot as usize] = NOWHERE,
            Places::OfFew(places) => drop(places.remove(&slot)),
        }
    }

    /// How many submissions have a place, for the audit.
    pub(super) fn len(&self) -> usize {
        match self {
            Places::OfMost(places) => places.iter().filter(|place| **place != NOWHERE).count(),
            Places::OfFew(places) => places.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_places_are_known_by_slot_until_they_are_taken_out() {
        for mut places in [Places::new(true), Places::new(false)] {
            let here = Place { leaf: 3, place: 5 };
            places.put(1_000, here);
            places.put(7, here);
            places.put(7, Place { leaf: 4, ..here });
            assert_eq!(
                [7, 8, 1_000, 1_001].map(|slot| places.get(slot).map(|it| it.leaf)),
                [Some(4), None, Some(3), None]
            );
            places.take_out(1_000);
            assert_eq!((places.len(), places.get(1_000)), (1, None));
        }
    }
}
