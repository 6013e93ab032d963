//! What the Librarian does: brings what is said of submissions to hand before anybody asks.

use super::Abouts;
use super::about::About;
use crate::limits::ABOUTS_BROUGHT_AT_ONCE_BYTES;
use std::ops::Bound;
use windlass_core::batch::submissions::{Submit, Traits};
use windlass_core::ids::SubmissionId;
use windlass_core::tables::Table;
use windlass_order::Order;
use windlass_store::tables::CommittedRows;
use windlass_store::turns;

impl Abouts {
    /// Brings what is said of the next running submissions, up to so many; false if there are no more, or no room.
    pub(crate) fn bring_some(&self, order: &Order, count: usize) -> bool {
        let (reading, met) = {
            let mut at_hand = self.lock();
            at_hand.is_full = at_hand.abouts.weight() >= at_hand.room_for_brought();
            if at_hand.is_full {
                return false;
            }
            (at_hand.begin_reading(self), at_hand.met)
        };
        // Whoever applies tells what has changed before it is in the tables, and lets go of the machine after that.
        let running = order.read(|machine| machine.batch().running());
        let next = running_after(order.committed(), met, count);
        let Some((last, _)) = next.last().copied() else { return false };
        let not_plain: Vec<SubmissionId> =
            next.into_iter().filter(|(_, is_plain)| !is_plain).map(|(id, _)| id).collect();
        if !not_plain.is_empty() {
            self.lock().make_places_for(running);
        }
        let (brought, is_all) = abouts_of(order.committed(), &not_plain);
        let met = match brought.last() {
            Some((last_brought, _)) if !is_all => *last_brought,
            Some(_) | None => last,
        };
        reading.end_bringing(brought, met);
        true
    }
}

/// The next running submissions, which are those that have a row of traits, and whether each is plain.
fn running_after(rows: &CommittedRows, met: Option<SubmissionId>, count: usize) -> Vec<(SubmissionId, bool)> {
    let met = met.map(SubmissionId::key);
    let from = met.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
    let rows = rows.scan(Table::Traits, (from, Bound::Unbounded)).take(count);
    rows.map(|(key, row)| {
        turns::give_way();
        let id = SubmissionId::from_key(&key).expect("a row of traits has an id as key");
        (id, Traits::from_row(id, &row).is_plain)
    })
    .collect()
}

/// What is said of the first of these, as many as are not too much at once, and whether that is all of them.
fn abouts_of(rows: &CommittedRows, ids: &[SubmissionId]) -> (Vec<(SubmissionId, About)>, bool) {
    /// Rows of others, which are over, that are passed by; one that is further away is looked up by itself.
    const PASSED_BY_MAX: usize = 8;
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return (Vec::new(), true) };
    let (first, last) = (first.key(), last.key());
    let walk = rows.scan(Table::Abouts, (Bound::Included(&first), Bound::Included(&last)));
    let (mut walk, mut found, mut bytes) = (walk.peekable(), Vec::with_capacity(ids.len()), 0);
    for id in ids {
        turns::give_way();
        let key = id.key();
        for _ in 0..PASSED_BY_MAX {
            if walk.next_if(|(other, _)| other[..] < key[..]).is_none() {
                break;
            }
        }
        let row = walk.next_if(|(other, _)| other[..] == key[..]).map(|(_, row)| row);
        let Some(row) = row.or_else(|| rows.get(Table::Abouts, &key)) else { continue };
        bytes += row.len();
        found.push((*id, About::of(&Submit::from_row(*id, &row))));
        if bytes > ABOUTS_BROUGHT_AT_ONCE_BYTES {
            return (found, false);
        }
    }
    (found, true)
}
