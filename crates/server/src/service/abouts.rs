//! Abouts: what is said of the submissions that are being handed out, at hand without a look at the tables.
//!
//! Invariants
//! - What is at hand was the machine's word when it was put there, and nothing that was forgotten since.
//! - Whoever asks after a change was told, or answered, gets what is said since: the first look after it waits for the
//!   machine, which brings the change into the tables before it lets go; all others read the tables and wait for nobody.

use crate::limits::ABOUTS_AT_HAND_BYTES_MAX;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::batch::submissions::{Input, Submit};
use windlass_core::ids::SubmissionId;
use windlass_core::tables::Table;
use windlass_order::Order;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Abouts {
    at_hand: Mutex<AtHand>,
}

#[derive(Debug)]
struct AtHand {
    abouts: Cache<SubmissionId, Arc<Submit>, Bytes>,
    /// Counts what was forgotten: what was read before something was forgotten is not kept after it.
    forgotten: u64,
    /// What was forgotten when a look at the machine last ended: the tables have every change up to there.
    looked_after: u64,
}

impl Abouts {
    /// What is said of a submission.
    pub fn get(&self, order: &Order, id: SubmissionId) -> Arc<Submit> {
        let in_tables = || {
            let row = order.committed().get(Table::Abouts, &id.key())?;
            Some(Submit::from_row(id, &row))
        };
        self.get_or_read(id, in_tables, || order.read(|machine| machine.about(id)))
    }

    fn get_or_read(
        &self,
        id: SubmissionId,
        in_tables: impl FnOnce() -> Option<Submit>,
        in_machine: impl FnOnce() -> Submit,
    ) -> Arc<Submit> {
        let (forgotten, looked_after) = {
            let at_hand = self.lock();
            if let Some(about) = at_hand.abouts.get(&id) {
                return Arc::clone(about);
            }
            (at_hand.forgotten, at_hand.looked_after)
        };
        let found = if looked_after == forgotten { in_tables() } else { None };
        let about = Arc::new(found.unwrap_or_else(in_machine));
        let mut at_hand = self.lock();
        at_hand.looked_after = at_hand.looked_after.max(forgotten);
        // A change may have come between the look at the machine and now, and been told before this could be kept.
        if at_hand.forgotten == forgotten {
            at_hand.abouts.insert(id, Arc::clone(&about));
        }
        about
    }

    /// What is said of a submission has changed: the machine is asked again.
    pub fn forget(&self, id: SubmissionId) {
        let mut at_hand = self.lock();
        at_hand.forgotten += 1;
        at_hand.abouts.remove(&id);
    }

    /// A leadership begins: what changed under another one was not told here.
    pub fn forget_all(&self) {
        let mut at_hand = self.lock();
        at_hand.forgotten += 1;
        at_hand.abouts.clear();
    }

    fn lock(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AtHand {
    fn default() -> AtHand {
        /// One with a few short fields; the cache only plans by it.
        const USUAL_BYTES: u64 = 512;
        let items = usize::try_from(ABOUTS_AT_HAND_BYTES_MAX / USUAL_BYTES).expect("they fit into memory");
        let abouts = Cache::with_weighter(items, ABOUTS_AT_HAND_BYTES_MAX, Bytes);
        AtHand { abouts, forgotten: 0, looked_after: 0 }
    }
}

/// Weighs what is kept by the memory that it takes.
#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<SubmissionId, Arc<Submit>> for Bytes {
    fn weight(&self, _: &SubmissionId, about: &Arc<Submit>) -> u64 {
        (size_of::<Submit>() + about_bytes(about)) as u64
    }
}

/// About how many bytes an `about` takes, in memory and in a frame of work.
pub fn about_bytes(about: &Submit) -> usize {
    let input = match &about.input {
        Input::Nowhere => 0,
        Input::Prefix(prefix) => prefix.len(),
        Input::Inline(payload) => payload.len(),
    };
    let metadata: usize =
        about.metadata.iter().map(|(field, value)| field.len() + value.to_string().len() + 16).sum();
    about.opaque.len() + input + metadata + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> SubmissionId {
        SubmissionId::from_u64(number).expect("a small number is an id")
    }

    fn with_priority(priority: i64) -> Submit {
        Submit { priority, ..Submit::new(1) }
    }

    fn never_read<T>() -> T {
        panic!("it is at hand")
    }

    /// Reads what is at hand or in the tables; a look at the machine would be a mistake.
    fn get_unlooked(abouts: &Abouts, number: u64, in_tables: i64) -> i64 {
        abouts.get_or_read(id(number), || Some(with_priority(in_tables)), never_read).priority
    }

    /// Reads what is at hand or in the machine; the tables may be behind.
    fn get_looked(abouts: &Abouts, number: u64, in_machine: i64) -> i64 {
        abouts.get_or_read(id(number), never_read, || with_priority(in_machine)).priority
    }

    #[test]
    fn what_is_forgotten_is_read_again_and_the_rest_stays_at_hand() {
        let abouts = Abouts::default();
        for number in [1, 2] {
            assert_eq!(get_unlooked(&abouts, number, 1), 1);
            assert_eq!(abouts.get_or_read(id(number), never_read, never_read).priority, 1);
        }
        abouts.forget(id(1));
        assert_eq!(get_looked(&abouts, 1, 2), 2);
        assert_eq!(abouts.get_or_read(id(2), never_read, never_read).priority, 1);
        abouts.forget_all();
        assert_eq!(get_looked(&abouts, 2, 3), 3);
        assert_eq!(abouts.lock().abouts.len(), 1, "what was forgotten is not kept");
    }

    #[test]
    fn after_a_change_the_first_look_waits_for_the_machine_and_the_others_do_not() {
        let abouts = Abouts::default();
        abouts.forget(id(1));
        assert_eq!(get_looked(&abouts, 2, 2), 2, "the tables may lack a change that was told");
        assert_eq!(get_unlooked(&abouts, 1, 3), 3, "the machine let go: the tables have it");
    }

    #[test]
    fn a_submission_that_the_tables_lack_is_looked_for_in_the_machine() {
        let abouts = Abouts::default();
        assert_eq!(abouts.get_or_read(id(1), || None, || with_priority(4)).priority, 4);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let abouts = Abouts::default();
        let read_before = abouts.get_or_read(
            id(1),
            || {
                let old = with_priority(1);
                abouts.forget(id(1));
                Some(old)
            },
            never_read,
        );
        assert_eq!(read_before.priority, 1, "it was asked before the change");
        assert_eq!(get_looked(&abouts, 1, 2), 2);
        assert_eq!(abouts.get_or_read(id(1), never_read, never_read).priority, 2);
    }
}
