//! Chance from the operating system: names that nobody else has, and jitter.

/// 128 bits as 32 hexadecimal digits: an idempotency key, or a prefix that nobody else writes under.
pub(crate) fn random_name() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// 64 bits.
///
/// # Panics
/// If the operating system has no randomness, where no name would be safe.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the operating system gives randomness")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_32_hexadecimal_digits_and_differ() {
        let (one, other) = (random_name(), random_name());
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
    }
}
