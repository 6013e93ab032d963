//! Recent: rows that were read a moment ago and are likely to be read once more: that of a task in its queue is read with its
//! neighbours when it is about to be handed out, again when it is, and when it is done.
//!
//! Invariants
//! - A row that is here is what the engine has, or gets when the rows that wait are written; those are asked first. Whoever writes one
//!   has it forgotten here.
//! - What was read before a change is not kept after it.

use fjall::Slice;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Thirty thousand tasks with payloads of a hundred bytes: those that sixteen busy consumers hold, and the next ones.
const RECENT_BYTES_MAX: u64 = 8 << 20;
/// What a row takes beside its bytes, about.
const ROW_BYTES: usize = 64;

/// See the file's head.
pub(super) struct Recent(Mutex<Rows>);

struct Rows {
    rows: Cache<Slice, Slice, Bytes>,
    /// Counts the times that rows were changed.
    changes: u64,
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
        Recent(Mutex::new(Rows { rows: Cache::with_weighter(items, RECENT_BYTES_MAX, Bytes), changes: 0 }))
    }

    /// A row, or the moment before it is read elsewhere.
    pub(super) fn get(&self, key: &[u8]) -> Result<Slice, Before> {
        let rows = self.lock();
        rows.rows.get(key).cloned().ok_or(Before { changes: rows.changes })
    }

    /// The moment before rows are read elsewhere.
    pub(super) fn before(&self) -> Before {
        Before { changes: self.lock().changes }
    }

    /// Keeps rows that were read elsewhere, unless something has changed since.
    pub(super) fn keep<'a>(
        &self,
        Before { changes }: Before,
        read: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        let mut rows = self.lock();
        if rows.changes == changes {
            for (key, value) in read {
                // Copies: what the engine gives holds the whole block that it was read in.
                rows.rows.insert(key.into(), value.into());
            }
        }
    }

    /// Forgets rows that have just been changed.
    pub(super) fn forget<'a>(&self, keys: impl Iterator<Item = &'a Slice>) {
        let mut rows = self.lock();
        rows.changes += 1;
        if !rows.rows.is_empty() {
            keys.for_each(|key| drop(rows.rows.remove(&**key)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn a_row_is_kept_until_it_changes_and_what_was_read_before_a_change_is_not_kept_after_it() {
        let recent = Recent::new();
        let Err(before) = recent.get(b"a") else { panic!("it is not here") };
        recent.keep(before, [(&b"a"[..], &b"1"[..]), (b"b", b"2")]);
        assert!(recent.get(b"a").is_ok_and(|value| value == "1"));
        assert!(recent.get(b"b").is_ok_and(|value| value == "2"));
        let before = recent.before();
        recent.forget([Slice::from("a")].iter());
        assert!(recent.get(b"a").is_err());
        recent.keep(before, [(&b"c"[..], &b"old"[..])]);
        assert!(recent.get(b"c").is_err());
    }

    #[test]
    fn old_rows_make_room_for_new_ones() {
        let recent = Recent::new();
        for number in 0..100_000_u32 {
            let key = number.to_be_bytes();
            recent.keep(recent.before(), [(&key[..], &[0; 200][..])]);
        }
        assert!(recent.lock().rows.weight() <= RECENT_BYTES_MAX);
        assert!(recent.lock().rows.len() > 10_000);
    }
}
