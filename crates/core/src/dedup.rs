//! dedup: a repeated request is answered again, never carried out again.
//!
//! The reply to each command that is not idempotent by nature is kept under its request id (the client's idempotency
//! key, or sender id and continuation token) for a window of time and count.
//!
//! Invariants
//! - Every reply has one row in `Replies` and one in `RepliesByTime`; the numbers there are `closed..opened`.
//! - What was read ahead are the first rows of the window, `closed` and on, without a gap.
//! - No apply closes more than a fixed number of replies, and never fewer than it opens while some are due.

use crate::entry::Outcome;
use crate::ids::{ContinuationToken, SenderId};
use crate::limits::{DEDUP_EXPIRED_PER_APPLY_MAX, DEDUP_WINDOW_MS, DEDUP_WINDOW_REPLIES_MAX};
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

/// What names a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(Vec<u8>);

impl RequestId {
    /// The client's key, or where it gave none, the member's own.
    pub(crate) fn of(key: Option<&str>, sender: SenderId, token: ContinuationToken) -> RequestId {
        let mut bytes = Vec::new();
        match key {
            Some(key) => {
                bytes.push(b'k');
                bytes.extend_from_slice(key.as_bytes());
            }
            None => {
                bytes.push(b's');
                bytes.extend_from_slice(&sender.0.to_be_bytes());
                bytes.extend_from_slice(&token.0.to_be_bytes());
            }
        }
        RequestId(bytes)
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

    /// The largest token of a sender's requests without a key that the window knows.
    pub(crate) fn newest_of(tables: &dyn Tables, sender: SenderId) -> Option<ContinuationToken> {
        let [first, last] =
            [u64::MIN, u64::MAX].map(|token| RequestId::of(None, sender, ContinuationToken(token)).0);
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        let (key, _) = tables.scan(Table::Replies, range, Walk::Down).next()?;
        let token = key[key.len() - 8..].try_into().expect("a request without a key ends with its token");
        Some(ContinuationToken(u64::from_be_bytes(token)))
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
            if oldest.0.is_empty() {
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
