//! Levels: a task's place in its lane, and how far apart the tasks of a key stand.
//!
//! Invariants
//! - Levels of one rank are ordered by pass, then by id; no two tasks have the same one.
//! - A key's tasks stand `STRIDE / weight` apart, so that a key of twice the weight has twice as many in any stretch.

use super::tasks::TaskId;
use crate::limits::{LANE_WEIGHT_MILLI_MAX, LANE_WEIGHT_MILLI_MIN};
use minicbor::{Decode, Encode};
use std::fmt;
use std::sync::Arc;

/// How far apart the tasks of a key of weight 1 stand.
pub const STRIDE: u64 = 1 << 20;

/// A weight in thousandths: whole numbers keep levels the same on every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Weight(#[n(0)] u32);

impl Weight {
    /// The weight of a key of which nothing is said.
    pub const ONE: Weight = Weight(1_000);

    /// The weight of this number, to the nearest thousandth; a refusal is a sentence that says what to do.
    pub fn of(number: f64) -> Result<Weight, String> {
        let milli = (number * 1_000.0).round();
        let range = f64::from(LANE_WEIGHT_MILLI_MIN)..=f64::from(LANE_WEIGHT_MILLI_MAX);
        if range.contains(&milli) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a whole number within the range of a weight"
            )]
            return Ok(Weight(milli as u32));
        }
        Err(problem())
    }

    /// The weight of so many thousandths, if that is one.
    pub fn from_milli(milli: u32) -> Option<Weight> {
        (LANE_WEIGHT_MILLI_MIN..=LANE_WEIGHT_MILLI_MAX).contains(&milli).then_some(Weight(milli))
    }

    /// In thousandths.
    pub const fn as_milli(self) -> u32 {
        self.0
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }

    /// How far apart tasks of this weight stand: the nearest whole number, at least 1.
    pub fn stride(self) -> u32 {
        let milli = u64::from(self.0.max(1));
        let stride = ((STRIDE * 1_000 + milli / 2) / milli).max(1);
        u32::try_from(stride).expect("the stride of the least weight has 30 bits")
    }

    /// The weight whose tasks stand so far apart; 1 if that is not known.
    pub fn of_stride(stride: u32) -> Weight {
        let stride = u64::from(stride);
        let milli = (STRIDE * 1_000 + stride / 2).checked_div(stride);
        milli.and_then(|milli| Weight::from_milli(u32::try_from(milli).ok()?)).unwrap_or(Weight::ONE)
    }

    /// Why a stored weight is none.
    pub(super) fn problem(self) -> Option<String> {
        Weight::from_milli(self.0).is_none().then(problem)
    }
}

fn problem() -> String {
    let (least, most) = (Weight(LANE_WEIGHT_MILLI_MIN), Weight(LANE_WEIGHT_MILLI_MAX));
    format!(
        "a weight is a number from {least} to {most}; a key of weight 2 gets twice as much as one of weight 1"
    )
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

/// The tenant of a key such as `tenant/user`, with its slash, which tells it apart from a key of that name.
pub fn tenant_of(key: &str) -> Option<&str> {
    key.find('/').map(|slash| &key[..=slash])
}

/// Whether this names a tenant, and not a key.
pub fn is_tenant(name: &str) -> bool {
    name.ends_with('/')
}

/// Why a weight or a limit by this name would have no effect, as a sentence that says what to do. It is asked before a command is
/// written: in the log of an earlier build such names are taken.
pub fn problem_of_name(name: &str) -> Option<String> {
    let tenant = tenant_of(name).filter(|tenant| is_tenant(name) && *tenant != name)?;
    Some(format!(
        "{name:?} is the name of nobody: only a tenant's ends with a slash, and it has no other; say {tenant:?} for the tenant, or {:?} \
         for its user",
        name.trim_end_matches('/')
    ))
}

/// A lane's number: short, for the keys of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct LaneNumber(#[n(0)] pub u32);

/// The tasks of one priority in one lane: they share a virtual time, and all of them come before those of a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankName {
    /// The lane.
    pub lane: LaneNumber,
    /// The priority; larger ones first.
    pub priority: u8,
}

impl RankName {
    /// What the keys of its rows begin with.
    pub fn key(self) -> [u8; 5] {
        let [a, b, c, d] = self.lane.0.to_be_bytes();
        [a, b, c, d, self.priority]
    }

    /// The rank in a key's first five bytes.
    pub(super) fn from_key(key: &[u8]) -> Option<RankName> {
        let (lane, priority) = (key.get(..4)?, *key.get(4)?);
        Some(RankName { lane: LaneNumber(u32::from_be_bytes(lane.try_into().ok()?)), priority })
    }

    /// The key of a level's row.
    pub fn key_of_level(self, level: Level) -> [u8; 21] {
        let mut key = [0; 21];
        key[..5].copy_from_slice(&self.key());
        key[5..].copy_from_slice(&level.key());
        key
    }

    /// The key of the row of a key, or what the keys of its levels' rows begin with.
    ///
    /// # Panics
    /// If the key is longer than a task's may be: whatever names a key is refused before.
    pub fn key_of_key(self, key: &str) -> Vec<u8> {
        let length = u8::try_from(key.len()).expect("a key that is too long was refused");
        [&self.key()[..], &[length], key.as_bytes()].concat()
    }
}

/// Tasks in the order of their levels: those of a rank that have no tenant, those of a tenant, or those of one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName {
    /// The rank.
    pub rank: RankName,
    /// The tenant or the key; none for the rank as a whole.
    pub of: Option<Arc<str>>,
}

impl QueueName {
    /// The rank as a whole.
    pub const fn of_rank(rank: RankName) -> QueueName {
        QueueName { rank, of: None }
    }

    /// The tasks of a tenant or a key.
    pub const fn of(rank: RankName, of: Arc<str>) -> QueueName {
        QueueName { rank, of: Some(of) }
    }

    /// The queue of all who share with a key.
    pub fn around(rank: RankName, key: &str) -> QueueName {
        QueueName { rank, of: tenant_of(key).map(Into::into) }
    }
}

/// A task's place among those of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Level {
    /// Spreads the tasks of a key out.
    #[n(0)]
    pub pass: u64,
    /// Tells tasks of the same pass apart: older first.
    #[n(1)]
    pub id: TaskId,
}

impl Level {
    /// As the end of a row's key.
    pub fn key(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.pass.to_be_bytes());
        key[8..].copy_from_slice(&self.id.key());
        key
    }

    /// The level just before this one, if there is one.
    pub fn before(self) -> Option<Level> {
        match self.id.as_u64() {
            1 => Some(Level { pass: self.pass.checked_sub(1)?, id: TaskId::last() }),
            number => Some(Level { pass: self.pass, id: TaskId::from_u64(number - 1)? }),
        }
    }

    /// The level at the end of a row's key.
    pub fn from_key(key: &[u8]) -> Option<Level> {
        let (pass, id) = key.get(key.len().checked_sub(16)?..)?.split_at(8);
        Some(Level { pass: u64::from_be_bytes(pass.try_into().ok()?), id: TaskId::from_key(id)? })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}>", self.pass, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_thousandths_and_everything_else_is_refused() {
        for (number, milli) in [(1.0, 1_000), (0.001, 1), (2.5, 2_500), (10_000.0, 10_000_000), (0.0014, 1)] {
            assert_eq!(Weight::of(number).map(Weight::as_milli), Ok(milli), "{number}");
        }
        for number in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9, 1e9, 10_000.1] {
            let problem = Weight::of(number).unwrap_err();
            assert!(problem.contains("from 0.001 to 10000"), "{problem}");
        }
    }

    #[test]
    fn strides_are_as_exact_as_whole_numbers_allow() {
        let stride = |milli| Weight::from_milli(milli).unwrap().stride();
        let one = u32::try_from(STRIDE).unwrap();
        assert_eq!([stride(1_000), stride(2_000), stride(500)], [one, one / 2, 2 * one]);
        assert_eq!([stride(1), stride(10_000_000)], [1_000 * one, 105]);
        for milli in [3_000, 7_000, 300_000, 700_000, 9_999_999] {
            let exact = STRIDE as f64 * 1_000.0 / f64::from(milli);
            assert!((f64::from(stride(milli)) - exact).abs() <= 0.5, "{milli}");
        }
    }

    #[test]
    fn a_tenant_is_what_stands_before_the_first_slash() {
        assert_eq!([tenant_of("acme"), tenant_of("")], [None, None]);
        assert_eq!([tenant_of("acme/bob"), tenant_of("acme/bob/x")], [Some("acme/"); 2]);
        assert!(is_tenant("acme/") && !is_tenant("acme"));
    }

    #[test]
    fn a_name_with_a_slash_at_its_end_and_another_one_is_that_of_nobody() {
        assert_eq!(
            ["", "acme", "acme/", "/", "acme/bob", "acme/bob/x"].map(problem_of_name),
            [const { None }; 6]
        );
        let problem = problem_of_name("acme/bob/").unwrap();
        assert!(problem.contains("say \"acme/\" for the tenant, or \"acme/bob\" for its user"), "{problem}");
        assert!(problem_of_name("acme//").is_some());
    }

    #[test]
    fn a_weight_is_known_by_its_stride() {
        for milli in [1, 2, 500, 1_000, 1_001, 2_500, 30_000] {
            let weight = Weight::from_milli(milli).unwrap();
            assert_eq!(Weight::of_stride(weight.stride()), weight);
        }
        assert_eq!(Weight::of_stride(0), Weight::ONE);
    }

    #[test]
    fn rows_of_levels_are_ordered_as_levels_are() {
        let rank = RankName { lane: LaneNumber(7), priority: 3 };
        let level = |pass, id| Level { pass, id: TaskId::from_u64(id).unwrap() };
        let levels =
            [level(0, 9), level(1, 1), level(255, 1), level(256, 1), level(256, 2), level(u64::MAX, 1)];
        let keys = levels.map(|it| rank.key_of_level(it));
        assert!(keys.is_sorted());
        assert_eq!(keys.map(|key| Level::from_key(&key)), levels.map(Some));
        assert_eq!(RankName::from_key(&keys[0]), Some(rank));
        assert!(rank.key_of_key("b") > rank.key_of_key("a"));
        assert!(
            !rank.key_of_key("ab").starts_with(&rank.key_of_key("a")),
            "no key's rows begin with another's"
        );
    }
}
