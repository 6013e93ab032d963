//! The server's clock: wall time when the process began, and monotonic time since.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windlass_core::time::At;

/// A clock that never goes back.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    began_at_ms: u64,
}

impl Clock {
    /// The clock that begins now.
    pub fn start() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let began_at_ms = u64::try_from(since_epoch.as_millis()).expect("milliseconds fit 64 bits for ages");
        Clock { began: Instant::now(), began_at_ms }
    }

    /// The time now.
    pub fn now(&self) -> At {
        let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        At::from_ms(self.began_at_ms).after_ms(elapsed_ms)
    }

    /// How long until `at`; nothing if it is past.
    pub fn until(&self, at: At) -> Duration {
        Duration::from_millis(at.as_ms().saturating_sub(self.now().as_ms()))
    }
}
