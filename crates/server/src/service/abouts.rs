//! Abouts: what is said of the submissions that are being handed out, at hand without a look at the tables.
//!
//! Invariants
//! - What is at hand was the machine's word when it was put there, and nothing that was forgotten since.
//! - Whoever asks after a change was told, or answered, gets what is said since.

use crate::limits::ABOUTS_AT_HAND_BYTES_MAX;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::batch::submissions::{Input, Submit};
use windlass_core::ids::SubmissionId;
use windlass_order::Order;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Abouts {
    at_hand: Mutex<AtHand>,
}

#[derive(Debug, Default)]
struct AtHand {
    abouts: HashMap<SubmissionId, Arc<Submit>>,
    bytes: usize,
    /// Counts what was forgotten: what was read before something was forgotten is not kept after it.
    forgotten: u64,
}

impl Abouts {
    /// What is said of a submission.
    pub fn get(&self, order: &Order, id: SubmissionId) -> Arc<Submit> {
        self.get_or_read(id, || order.read(|machine| machine.about(id)))
    }

    fn get_or_read(&self, id: SubmissionId, read: impl FnOnce() -> Submit) -> Arc<Submit> {
        let forgotten = {
            let at_hand = self.lock();
            if let Some(about) = at_hand.abouts.get(&id) {
                return Arc::clone(about);
            }
            at_hand.forgotten
        };
        let about = Arc::new(read());
        let mut at_hand = self.lock();
        // A change may have come between the look at the machine and now, and been told before this could be kept.
        if at_hand.forgotten == forgotten {
            at_hand.keep(id, &about);
        }
        about
    }

    /// What is said of a submission has changed: the machine is asked again.
    pub fn forget(&self, id: SubmissionId) {
        let mut at_hand = self.lock();
        at_hand.forgotten += 1;
        at_hand.drop_one(id);
    }

    /// A leadership begins: what changed under another one was not told here.
    pub fn forget_all(&self) {
        let mut at_hand = self.lock();
        *at_hand = AtHand { forgotten: at_hand.forgotten + 1, ..AtHand::default() };
    }

    fn lock(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AtHand {
    fn keep(&mut self, id: SubmissionId, about: &Arc<Submit>) {
        // Another reader may have put it there meanwhile.
        self.drop_one(id);
        let bytes = kept_bytes(about);
        if self.bytes + bytes > ABOUTS_AT_HAND_BYTES_MAX {
            *self = AtHand { forgotten: self.forgotten, ..AtHand::default() };
        }
        self.bytes += bytes;
        self.abouts.insert(id, Arc::clone(about));
    }

    fn drop_one(&mut self, id: SubmissionId) {
        if let Some(about) = self.abouts.remove(&id) {
            self.bytes -= kept_bytes(&about);
        }
    }
}

fn kept_bytes(about: &Submit) -> usize {
    size_of::<Submit>() + about_bytes(about)
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

    fn never_read() -> Submit {
        panic!("it is at hand")
    }

    #[test]
    fn what_is_forgotten_is_read_again_and_the_rest_stays_at_hand() {
        let abouts = Abouts::default();
        for number in [1, 2] {
            abouts.get_or_read(id(number), || with_priority(1));
            assert_eq!(abouts.get_or_read(id(number), never_read).priority, 1);
        }
        abouts.forget(id(1));
        assert_eq!(abouts.get_or_read(id(1), || with_priority(2)).priority, 2);
        assert_eq!(abouts.get_or_read(id(2), never_read).priority, 1);
        abouts.forget_all();
        assert_eq!(abouts.get_or_read(id(2), || with_priority(3)).priority, 3);
        assert_eq!(abouts.lock().bytes, kept_bytes(&with_priority(3)), "what is kept is counted once");
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let abouts = Abouts::default();
        let read_before = abouts.get_or_read(id(1), || {
            let old = with_priority(1);
            abouts.forget(id(1));
            old
        });
        assert_eq!(read_before.priority, 1, "it was asked before the change");
        assert_eq!(abouts.get_or_read(id(1), || with_priority(2)).priority, 2);
        assert_eq!(abouts.get_or_read(id(1), never_read).priority, 2);
    }
}
