//! Ids: the names of submissions, chunks, blocks and attempts.
//!
//! Invariants
//! - Submission ids grow: a later submission has a larger id, also across restarts and clock jumps.
//! - An attempt names one hand-out of one chunk; no other hand-out of that chunk ever has the same attempt.

use crate::time::At;
use minicbor::{Decode, Encode};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Milliseconds from the Unix epoch to 2024-01-01T00:00:00Z, where snowflake time begins: 41 bits then last until 2093.
const SNOWFLAKE_BEGIN_MS: u64 = 1_704_067_200_000;
const SNOWFLAKE_MS_BITS: u32 = 41;
const SHARD_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 12;

/// The id of a submission: a 63-bit snowflake of 41 bits of milliseconds, 10 bits of shard, 12 bits of sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SubmissionId(#[n(0)] NonZeroU64);

impl SubmissionId {
    /// The id that follows `last` for a submission made at `at` on `shard`.
    ///
    /// Within one millisecond the sequence counts up; when it is used up, or when time stands still or went back, the
    /// id borrows from the next millisecond, so that ids grow whatever the clock does.
    pub fn next(last: Option<SubmissionId>, at: At, shard: Shard) -> SubmissionId {
        let ms = at.as_ms().saturating_sub(SNOWFLAKE_BEGIN_MS).clamp(1, (1 << SNOWFLAKE_MS_BITS) - 1);
        let shard_bits = u64::from(shard.0) << SEQUENCE_BITS;
        let first_of_ms = |ms: u64| (ms << (SHARD_BITS + SEQUENCE_BITS)) | shard_bits;
        let id = match last {
            Some(last) if last.0.get() >= first_of_ms(ms) => {
                let sequence_mask = (1 << SEQUENCE_BITS) - 1;
                if last.0.get() & sequence_mask < sequence_mask {
                    last.0.get() + 1
                } else {
                    first_of_ms((last.0.get() >> (SHARD_BITS + SEQUENCE_BITS)) + 1)
                }
            }
            Some(_) | None => first_of_ms(ms),
        };
        SubmissionId::from_u64(id)
            .expect("a snowflake's milliseconds are at least 1 and its top bit is clear")
    }

    /// The id with this number, if it is one: positive and below 2^63.
    pub fn from_u64(number: u64) -> Option<SubmissionId> {
        NonZeroU64::new(number).filter(|id| id.get() >> 63 == 0).map(SubmissionId)
    }

    /// The smallest id.
    pub fn first() -> SubmissionId {
        SubmissionId::from_u64(1).expect("1 is an id")
    }

    /// The largest id.
    pub fn last() -> SubmissionId {
        SubmissionId::from_u64(u64::MAX >> 1).expect("the largest number of 63 bits is an id")
    }

    /// The number of this id.
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// The key of this submission's rows: its number, big end first, so that rows are ordered by age.
    pub const fn key(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }

    /// The id in a key's first eight bytes.
    pub fn from_key(key: &[u8]) -> Option<SubmissionId> {
        SubmissionId::from_u64(u64::from_be_bytes(key.get(..8)?.try_into().ok()?))
    }
}

impl fmt::Display for SubmissionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is no submission id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotASubmissionId;

impl fmt::Display for NotASubmissionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a submission id is a decimal number between 1 and 2^63 - 1, as `submit` returned it")
    }
}

impl std::error::Error for NotASubmissionId {}

impl FromStr for SubmissionId {
    type Err = NotASubmissionId;

    fn from_str(text: &str) -> Result<Self, NotASubmissionId> {
        let digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits_only).and_then(SubmissionId::from_u64).ok_or(NotASubmissionId)
    }
}

/// In JSON an id is a text: many languages' numbers hold only 53 bits.
impl serde::Serialize for SubmissionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for SubmissionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which shard of a split queue makes an id; 0 for a queue that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Shard(#[n(0)] u16);

impl Shard {
    /// The shard with this number, if it fits ten bits.
    pub fn new(number: u16) -> Option<Shard> {
        (number >> SHARD_BITS == 0).then_some(Shard(number))
    }
}

/// A chunk's place in its submission, from 0.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Encode,
    Decode,
    serde::Serialize,
    serde::Deserialize,
)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct ChunkIndex(#[n(0)] pub u64);

impl fmt::Display for ChunkIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The full name of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkName {
    /// The submission it belongs to.
    pub submission: SubmissionId,
    /// Its place there.
    pub chunk: ChunkIndex,
}

impl ChunkName {
    /// The key of this chunk's own rows.
    pub fn key(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.submission.key());
        key[8..].copy_from_slice(&self.chunk.0.to_be_bytes());
        key
    }
}

/// The leadership under which an entry was written or a chunk handed out; grows with every leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Epoch(#[n(0)] pub u32);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One hand-out of one chunk: the leadership that handed it out, and the how-manieth hand-out it was under it.
///
/// Nearly every chunk is done by the first hand-out of the leadership of the day, so that a block of 4,096 chunks
/// remembers the accepted attempts of all of them in a few bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Attempt {
    /// The leadership that handed the chunk out.
    #[n(0)]
    pub epoch: Epoch,
    /// The round of attempts in the upper half, and in the lower one how often it had handed this chunk out before.
    #[n(1)]
    pub nth: u64,
}

impl Attempt {
    /// Set in the attempts at tasks of lanes: their names are like those of chunks, and the token says which it is. The bit
    /// above is left free, so that a count fits a signed number in any language.
    const TASK: u64 = 1 << 62;

    /// An attempt at a task, after so many tasks have come back under a leadership.
    pub const fn of_task(epoch: Epoch, came_back: u64) -> Attempt {
        Attempt { epoch, nth: Attempt::TASK | came_back }
    }

    /// Whether it is an attempt at a task.
    pub const fn is_of_task(self) -> bool {
        self.nth & Attempt::TASK != 0
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch.0, self.nth)
    }
}

/// The member that put a command into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SenderId(#[n(0)] pub u64);

/// What links an applied command to the caller that waits for it on the member that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct ContinuationToken(#[n(0)] pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: u64 = 1_750_000_000_000;

    #[test]
    fn ids_grow_within_a_millisecond_past_its_end_and_when_the_clock_goes_back() {
        let shard = Shard::default();
        let mut last = SubmissionId::next(None, At::from_ms(NOON_MS), shard);
        for _ in 0..10_000 {
            let next = SubmissionId::next(Some(last), At::from_ms(NOON_MS), shard);
            assert!(next > last);
            last = next;
        }
        let next = SubmissionId::next(Some(last), At::from_ms(NOON_MS - 60_000), shard);
        assert!(next > last);
    }

    #[test]
    fn an_id_carries_its_shard_also_when_it_borrows_from_the_next_millisecond() {
        let shard = Shard::new(513).unwrap();
        let mut last = None;
        for _ in 0..5_000 {
            let id = SubmissionId::next(last, At::from_ms(NOON_MS), shard);
            assert_eq!(id.as_u64() >> 12 & 0x3ff, 513);
            last = Some(id);
        }
    }

    #[test]
    fn only_decimal_numbers_of_63_bits_are_ids() {
        let id: SubmissionId = "9223372036854775807".parse().unwrap();
        assert_eq!(SubmissionId::from_key(&id.key()), Some(id));
        for bad in ["", "0", "-1", "+1", "9223372036854775808", "18446744073709551616", "abc", " 1"] {
            assert_eq!(bad.parse::<SubmissionId>(), Err(NotASubmissionId), "{bad:?}");
        }
    }
}
