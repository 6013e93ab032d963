//! Time as the machine knows it: milliseconds that came in with an entry.

use minicbor::{Decode, Encode};

/// A point in time: milliseconds since the Unix epoch, stamped by the leader, never smaller than the one before.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Default,
    Encode,
    Decode,
    serde::Serialize,
    serde::Deserialize,
)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct At(#[n(0)] u64);

impl At {
    /// The point this many milliseconds after the Unix epoch.
    pub const fn from_ms(ms: u64) -> At {
        At(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// The point `ms` milliseconds later.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> At {
        At(self.0.saturating_add(ms))
    }
}
