//! Chance from a seed: the same numbers on every node and in every replay.

/// A generator of well-mixed 64-bit numbers (SplitMix64): a counter and a mixing function, good for picking, not for
/// secrets.
#[derive(Debug, Clone)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> Seeded {
        Seeded { state: seed }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, each as likely as the other to within one part in 2^64 / bound.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((self.draw() as u128 * bound as u128) >> 64) as u64
    }
}
