//! Steps: places at which tests have the process end, as a crash there would. Without the feature `hurt` they are nothing.
//!
//! `WINDLASS_END_AT=noted:2` ends the process the second time that it passes the step `noted`.

/// Passes a step.
#[cfg(feature = "hurt")]
pub fn pass(step: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static END_AT: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let end_at = END_AT.get_or_init(|| {
        let text = std::env::var("WINDLASS_END_AT").ok()?;
        let (step, nth) = text.split_once(':')?;
        Some((step.to_owned(), nth.parse().ok()?))
    });
    let Some((_, nth)) = end_at.as_ref().filter(|(at, _)| at == step) else { return };
    if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth {
        // Nothing is written any more, and nobody is told.
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Passes a step.
#[cfg(not(feature = "hurt"))]
pub const fn pass(_step: &str) {}
