//! dedup: a repeated request is answered again, never carried out again.
//!
//! The reply to each command that is not idempotent by nature is kept under the client's idempotency key for a window of time and
//! count. A request without a key can be repeated by the log alone, and then nobody waits for its answer: it is known by its
//! continuation token, since those of a sender come in their order, and the newest of each sender is all that is kept.
//!
//! Invariants
//! - Every reply has one row in `Replies` and one in `RepliesByTime`; the numbers there are `closed..opened`.
//! - A sender is listed once, the one that sent last at the end, and no more of them than the limit says. Its requests must come in the
//!   order of their tokens, which whatever feeds the machine has to see to: one that is overtaken counts as repeated.
//! - What was read ahead are the first rows of the window, `closed` and on, without a gap.
//! - No apply closes more than a fixed number of replies, and never fewer than it opens while some are due.

use crate::entry::Outcome;
use crate::ids::{ContinuationToken, SenderId};
use crate::limits::{
    DEDUP_EXPIRED_PER_APPLY_MAX, DEDUP_SENDERS_MAX, DEDUP_WINDOW_MS, DEDUP_WINDOW_REPLIES_MAX,
};
use crate::rows;
use crate::tables::{Table, Tables, Walk};
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::VecDeque;
use std::hash::Hasher;
use std::ops::Bound;

/// How many replies were opened and closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub(crate) struct Window {
    #[n(0)]
    opened: u64,
    #[n(1)]
    closed: u64,
}

/// The newest token of each sender of requests without a key, whoever sent last at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub(crate) struct Senders(#[n(0)] Vec<(SenderId, ContinuationToken)>);

impl Senders {
    /// Whether a request was carried out before.
    pub(crate) fn know(&self, sender: SenderId, token: ContinuationToken) -> bool {
        // Mostly it is the last one.
        let newest = self.0.iter().rev().find(|(known, _)| *known == sender).map(|(_, newest)| *newest);
        newest >= Some(token)
    }

    /// Notes that a request is carried out.
    pub(crate) fn note(&mut self, sender: SenderId, token: ContinuationToken) {
        match self.0.last_mut() {
            Some((last, newest)) if *last == sender => *newest = token,
            Some(_) | None => {
                self.0.retain(|(known, _)| *known != sender);
                if self.0.len() == DEDUP_SENDERS_MAX {
                    self.0.remove(0);
                }
                self.0.push((sender, token));
            }
        }
    }
}

/// What names a request of a client that gave it a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(Vec<u8>);

impl RequestId {
    pub(crate) fn of(key: &str) -> RequestId {
        RequestId([b"k", key.as_bytes()].concat())
    }
}

#[derive(Encode, Decode)]
struct ReplyRow {
    #[n(0)]
    digest: ByteVec,
    #[n(1)]
    outcome: Outcome,
}

/// The oldest replies of the window, read ahead of their closing: rows that lie side by side are read together.
#[derive(Debug, Default)]
pub(crate) struct Oldest(VecDeque<ReplyByTimeRow>);

#[derive(Debug, Encode, Decode)]
struct ReplyByTimeRow {
    #[n(0)]
    at: At,
    #[n(1)]
    request: ByteVec,
}

/// What the window knows of a request.
pub(crate) enum Known {
    /// Nothing: carry it out.
    New,
    /// It was carried out before, with this outcome.
    Answered(Outcome),
    /// Another request had this id.
    Mismatch,
}

/// A digest of what was asked, to tell a repeated request from another one under the same id.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

impl Window {
    pub(crate) fn look_up(tables: &dyn Tables, request: &RequestId, digest: [u8; 16]) -> Known {
        let Some(row) = tables.get(Table::Replies, &request.0) else { return Known::New };
        let reply: ReplyRow = rows::decode(Table::Replies, &request.0, &row);
        if reply.digest[..] == digest { Known::Answered(reply.outcome) } else { Known::Mismatch }
    }

    pub(crate) fn open(
        &mut self,
        tables: &mut dyn Tables,
        at: At,
        request: &RequestId,
        digest: [u8; 16],
        outcome: Outcome,
    ) {
        let reply = ReplyRow { digest: ByteVec::from(digest.to_vec()), outcome };
        tables.put(Table::Replies, &request.0, rows::encode(&reply));
        let by_time = ReplyByTimeRow { at, request: ByteVec::from(request.0.clone()) };
        tables.put(Table::RepliesByTime, &self.opened.to_be_bytes(), rows::encode(&by_time));
        self.opened += 1;
    }

    /// Closes replies that are due, oldest first, a few at a time.
    pub(crate) fn close_due(&mut self, oldest: &mut Oldest, tables: &mut dyn Tables, at: At) {
        for _ in 0..DEDUP_EXPIRED_PER_APPLY_MAX {
            if oldest.0.is_empty() && self.len() > 0 {
                oldest.0.extend(self.first_replies(tables));
            }
            let Some(first) = oldest.0.front() else { return };
            let is_due = first.at.after_ms(DEDUP_WINDOW_MS) < at || self.len() > DEDUP_WINDOW_REPLIES_MAX;
            if !is_due {
                return;
            }
            tables.delete(Table::Replies, &first.request);
            tables.delete(Table::RepliesByTime, &self.closed.to_be_bytes());
            self.closed += 1;
            oldest.0.pop_front();
        }
    }

    fn first_replies(self, tables: &dyn Tables) -> impl Iterator<Item = ReplyByTimeRow> {
        /// A block of the tables holds about so many.
        const READ_AHEAD: usize = 64;
        let from = self.closed.to_be_bytes();
        let range = (Bound::Included(&from[..]), Bound::Unbounded);
        let rows = tables.scan(Table::RepliesByTime, range, Walk::Up).take(READ_AHEAD);
        rows.map(|(key, row)| rows::decode(Table::RepliesByTime, &key, &row))
    }

    /// How many replies the window holds.
    pub(crate) fn len(self) -> u64 {
        self.opened - self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sender_counts_for_itself_and_the_one_that_was_silent_longest_is_forgotten_first() {
        let mut senders = Senders::default();
        let token = ContinuationToken;
        for sender in 1..=DEDUP_SENDERS_MAX as u64 {
            senders.note(SenderId(sender), token(sender * 10));
        }
        senders.note(SenderId(1), token(11));
        assert!(senders.know(SenderId(1), token(11)) && senders.know(SenderId(1), token(3)));
        assert!(!senders.know(SenderId(1), token(12)));
        assert!(senders.know(SenderId(2), token(20)) && !senders.know(SenderId(2), token(21)));
        senders.note(SenderId(1_000), token(1));
        assert!(!senders.know(SenderId(2), token(20)), "it was the oldest but the first, which came again");
        assert!(senders.know(SenderId(1), token(11)));
        assert_eq!(senders.0.len(), DEDUP_SENDERS_MAX);
    }
}
