//! Recent: rows that were read a moment ago and are likely to be read once more: that of a task in its queue is read with its
//! neighbours when it is about to be handed out, again when it is, and when it is done.
//!
//! Invariants
//! - A row that is here is as it was committed last. Whoever commits another one has it forgotten here while nobody can look at the rows
//!   that wait.
//! - What was read before a change to rows around it is not kept after it.

use super::generation::Rows;
use fjall::Slice;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Thirty thousand tasks with payloads of a hundred bytes: those that sixteen busy consumers hold, and the next ones.
const RECENT_BYTES_MAX: u64 = 8 << 20;
/// What a row takes beside its bytes, about.
const ROW_BYTES: usize = 64;
/// A read during which there are more changes than this is not kept, wherever they were: some milliseconds of busy callers.
const CHANGES_KNOWN: usize = 64;

/// See the file's head.
pub(super) struct Recent(Mutex<Known>);

struct Known {
    rows: Cache<Slice, Slice, Bytes>,
    /// Counts the times that rows were changed.
    changes: u64,
    /// The last of them.
    last: VecDeque<Changed>,
}

/// The first and the last of some rows that were changed.
struct Changed {
    first: Slice,
    last: Slice,
}

/// The moment before something is read elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Before {
    changes: u64,
}

impl Recent {
    pub(super) fn new() -> Recent {
        /// A task with a short key and a payload of a hundred bytes; the cache only plans by it.
        const USUAL_BYTES: u64 = 300;
        let items = usize::try_from(RECENT_BYTES_MAX / USUAL_BYTES).expect("they fit into memory");
        let rows = Cache::with_weighter(items, RECENT_BYTES_MAX, Bytes);
        Recent(Mutex::new(Known { rows, changes: 0, last: VecDeque::new() }))
    }

    /// A row, or the moment before it is read elsewhere.
    pub(super) fn get(&self, key: &[u8]) -> Result<Slice, Before> {
        let known = self.lock();
        known.rows.get(key).cloned().ok_or(Before { changes: known.changes })
    }

    /// The moment before rows are read elsewhere.
    pub(super) fn before(&self) -> Before {
        Before { changes: self.lock().changes }
    }

    /// Keeps rows that were read elsewhere, in order, unless rows between the first and the last of them have changed since.
    pub(super) fn keep<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, before: Before, read: &[(K, V)]) {
        let (Some((first, _)), Some((last, _))) = (read.first(), read.last()) else { return };
        let mut known = self.lock();
        if known.has_changed(before, first.as_ref(), last.as_ref()) {
            return;
        }
        for (key, value) in read {
            // Copies: what the engine gives holds the whole block that it was read in.
            known.rows.insert(key.as_ref().into(), value.as_ref().into());
        }
    }

    /// Forgets rows that are being changed.
    pub(super) fn forget(&self, rows: &Rows) {
        let (Some((first, _)), Some((last, _))) = (rows.first_key_value(), rows.last_key_value()) else {
            return;
        };
        let mut known = self.lock();
        known.note(Changed { first: first.clone(), last: last.clone() });
        if !known.rows.is_empty() {
            rows.keys().for_each(|key| drop(known.rows.remove(&**key)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn note(&mut self, changed: Changed) {
        self.changes += 1;
        if self.last.len() == CHANGES_KNOWN {
            self.last.pop_front();
        }
        self.last.push_back(changed);
    }

    /// Whether rows from a first one to a last one may have changed since that moment.
    fn has_changed(&self, before: Before, first: &[u8], last: &[u8]) -> bool {
        let changes = usize::try_from(self.changes - before.changes).unwrap_or(usize::MAX);
        let mut since = self.last.iter().rev().take(changes);
        changes > CHANGES_KNOWN || since.any(|it| *it.first <= *last && *first <= *it.last)
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Slice, Slice> for Bytes {
    fn weight(&self, key: &Slice, value: &Slice) -> u64 {
        (key.len() + value.len() + ROW_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(keys: &[&str]) -> Rows {
        keys.iter().map(|key| (Slice::from(*key), None)).collect()
    }

    #[test]
    fn a_row_is_kept_until_it_changes() {
        let recent = Recent::new();
        let Err(before) = recent.get(b"a") else { panic!("it is not here") };
        recent.keep(before, &[("a", "1"), ("b", "2")]);
        assert!(recent.get(b"a").is_ok_and(|value| value == "1"));
        recent.forget(&rows(&["a"]));
        assert!(recent.get(b"a").is_err());
        assert!(recent.get(b"b").is_ok_and(|value| value == "2"));
    }

    #[test]
    fn what_was_read_before_a_change_around_it_is_not_kept_after_it() {
        let recent = Recent::new();
        let before = recent.before();
        recent.forget(&rows(&["b", "d"]));
        for read in [["a", "b"], ["c", "c"], ["d", "e"], ["a", "e"]] {
            recent.keep(before, &read.map(|key| (key, "old")));
            assert!(read.iter().all(|key| recent.get(key.as_bytes()).is_err()), "{read:?}");
        }
        recent.keep(before, &[("a", "1"), ("aa", "1")]);
        recent.keep(before, &[("e", "1")]);
        assert!(
            ["a", "aa", "e"].iter().all(|key| recent.get(key.as_bytes()).is_ok()),
            "nothing has changed there"
        );
    }

    #[test]
    fn a_read_that_takes_long_is_not_kept() {
        let recent = Recent::new();
        let before = recent.before();
        (0..CHANGES_KNOWN).for_each(|_| recent.forget(&rows(&["z"])));
        recent.keep(before, &[("a", "1")]);
        assert!(recent.get(b"a").is_ok());
        recent.forget(&rows(&["z"]));
        recent.keep(before, &[("b", "1")]);
        assert!(recent.get(b"b").is_err(), "of the first change nothing is known any more");
    }

    #[test]
    fn old_rows_make_room_for_new_ones() {
        let recent = Recent::new();
        for number in 0..100_000_u32 {
            recent.keep(recent.before(), &[(number.to_be_bytes(), [0; 200])]);
        }
        assert!(recent.lock().rows.weight() <= RECENT_BYTES_MAX);
        assert!(recent.lock().rows.len() > 10_000);
    }
}
