//! Under way: what consumers have reported or added by their sockets and the log has not answered, of all sessions together.
//!
//! Invariants
//! - What is counted is counted until its guard is dropped, whatever becomes of the conversation.

use crate::limits::{REPORT_BYTES_MAX, REPORTS_MAX};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    reports: AtomicUsize,
    bytes: AtomicUsize,
}

impl UnderWay {
    /// Whether there is as much as the server has room for.
    pub(super) fn is_much(&self) -> bool {
        self.reports.load(Ordering::Relaxed) >= REPORTS_MAX
            || self.bytes.load(Ordering::Relaxed) >= REPORT_BYTES_MAX
    }

    /// Counts a report that came in a frame of so many bytes.
    pub(super) fn count(self: &Arc<Self>, bytes: usize) -> ReportUnderWay {
        self.reports.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        ReportUnderWay { of: Arc::clone(self), bytes }
    }
}

/// A report on its way through the log.
#[derive(Debug)]
pub(crate) struct ReportUnderWay {
    of: Arc<UnderWay>,
    bytes: usize,
}

impl Drop for ReportUnderWay {
    fn drop(&mut self) {
        self.of.reports.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_much_under_way_by_number_or_by_bytes_until_some_is_answered() {
        let under_way = Arc::new(UnderWay::default());
        let mut small: Vec<_> = (1..REPORTS_MAX).map(|_| under_way.count(1)).collect();
        assert!(!under_way.is_much());
        small.push(under_way.count(1));
        assert!(under_way.is_much());
        small.clear();
        assert!(!under_way.is_much());
        let large = [under_way.count(REPORT_BYTES_MAX - 1), under_way.count(1)];
        assert!(under_way.is_much());
        drop(large);
        assert!(!under_way.is_much());
    }
}
