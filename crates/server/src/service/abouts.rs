//! Abouts: what producers said of the submissions that are being handed out, at hand without a look at the tables.

use crate::limits::ABOUTS_AT_HAND_BYTES_MAX;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use windlass_core::batch::submissions::{Input, Submit};
use windlass_core::ids::SubmissionId;
use windlass_order::Order;

/// What was said of submissions never changes, so it can be kept.
#[derive(Debug, Default)]
pub struct Abouts {
    at_hand: Mutex<AtHand>,
}

#[derive(Debug, Default)]
struct AtHand {
    abouts: HashMap<SubmissionId, Arc<Submit>>,
    bytes: usize,
}

impl Abouts {
    /// What the producer of a submission said of it.
    pub fn get(&self, order: &Order, id: SubmissionId) -> Arc<Submit> {
        let at_hand = || self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(about) = at_hand().abouts.get(&id) {
            return Arc::clone(about);
        }
        let about = Arc::new(order.read(|machine| machine.about(id)));
        let bytes = size_of::<Submit>() + about_bytes(&about);
        let mut at_hand = at_hand();
        if at_hand.bytes + bytes > ABOUTS_AT_HAND_BYTES_MAX {
            *at_hand = AtHand::default();
        }
        at_hand.bytes += bytes;
        at_hand.abouts.insert(id, Arc::clone(&about));
        about
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
