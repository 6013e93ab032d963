//! Unanswered: the reports of one session that are on their way through the log, and how much of them there may be.
//!
//! Invariants
//! - Reports have numbers, upwards, in the order in which they were read.
//! - A session with nothing under way may report, however large the frame: so every frame gets through.

use crate::limits::{REPORT_BYTES_PER_SESSION_MAX, REPORTS_PER_SESSION_MAX};
use std::collections::VecDeque;
use std::ops::Range;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Their numbers, and the bytes of the frames that they came in: mostly there are few.
    reports: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl Unanswered {
    pub(super) fn push(&mut self, number: u64, bytes: usize) {
        self.reports.push_back((number, bytes));
        self.bytes += bytes;
    }

    /// These are answered; their numbers follow each other.
    pub(super) fn note_answered(&mut self, numbers: Range<u64>) {
        if let Ok(place) = self.reports.binary_search_by_key(&numbers.start, |(number, _)| *number) {
            let count = (numbers.end - numbers.start) as usize;
            self.bytes -= self.reports.drain(place..place + count).map(|(_, bytes)| bytes).sum::<usize>();
        }
    }

    /// Whether every report below a number is answered.
    pub(super) fn is_answered(&self, below: u64) -> bool {
        self.reports.front().is_none_or(|(number, _)| *number >= below)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether the session may report more before some are answered.
    pub(super) fn has_room(&self) -> bool {
        self.reports.len() < REPORTS_PER_SESSION_MAX && self.bytes < REPORT_BYTES_PER_SESSION_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_api::frames::FRAME_BYTES_MAX;

    #[test]
    fn a_session_has_room_by_number_and_by_bytes_and_for_one_frame_of_any_size() {
        let mut unanswered = Unanswered::default();
        for number in 0..REPORTS_PER_SESSION_MAX as u64 {
            assert!(unanswered.has_room() && unanswered.is_answered(0));
            unanswered.push(number, 10);
        }
        assert!(!unanswered.has_room());
        unanswered.note_answered(3..5);
        assert!(unanswered.has_room() && !unanswered.is_answered(1));
        unanswered.note_answered(0..3);
        unanswered.note_answered(5..REPORTS_PER_SESSION_MAX as u64);
        assert!(unanswered.is_empty());

        unanswered.push(1_000, FRAME_BYTES_MAX);
        assert!(!unanswered.has_room());
        unanswered.note_answered(1_000..1_001);
        unanswered.push(1_001, REPORT_BYTES_PER_SESSION_MAX - 1);
        assert!(unanswered.has_room());
        unanswered.push(1_002, FRAME_BYTES_MAX);
        assert!(!unanswered.has_room());
        unanswered.note_answered(1_001..1_002);
        assert!(!unanswered.has_room() && unanswered.is_answered(1_002));
        unanswered.note_answered(1_002..1_003);
        assert!(unanswered.has_room() && unanswered.is_empty());
    }
}
