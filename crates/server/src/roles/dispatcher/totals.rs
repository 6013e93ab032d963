//! Totals: what has happened under this process's leadership, in numbers that never go back.

use windlass_core::entry::Effect;

/// See the file's head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Submissions that came in.
    pub submitted: u64,
    /// Their chunks.
    pub submitted_chunks: u64,
    /// Submissions that ended.
    pub ended: u64,
    /// Chunks handed out.
    pub handed_out: u64,
    /// Chunks done.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
}

impl Totals {
    /// Counts what was applied.
    pub(super) fn count(&mut self, effect: &Effect) {
        match effect {
            Effect::Ready { round: 0, counts, .. } => {
                self.submitted += 1;
                self.submitted_chunks += counts.total;
            }
            Effect::Done { chunks, .. } => self.completed += chunks.len() as u64,
            Effect::Failed { .. } => self.failed += 1,
            Effect::Over { .. } => self.ended += 1,
            // Another round is no new submission.
            Effect::Ready { .. } | Effect::Changed { .. } | Effect::Weighed { .. } => {}
            // Lanes count their own.
            Effect::LaneSet { .. }
            | Effect::TaskPlaced { .. }
            | Effect::TaskDelayed { .. }
            | Effect::TaskMoved { .. }
            | Effect::TaskUnplaced { .. }
            | Effect::TaskGone { .. }
            | Effect::CommitDue { .. }
            | Effect::CommitEnded { .. }
            | Effect::AreasDropped => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::batch::submissions::{ChunkCounts, SubmissionState, Traits};
    use windlass_core::ids::{Attempt, ChunkIndex, Epoch, SubmissionId};

    #[test]
    fn every_effect_is_counted_once_and_another_round_is_no_new_submission() {
        let submission = SubmissionId::from_u64(1).unwrap();
        let counts = ChunkCounts { total: 7, done: 0, failed: 0 };
        let ready = |round| Effect::Ready {
            submission,
            round,
            ranges: Vec::new(),
            counts,
            traits: Traits::default(),
        };
        let attempt = Attempt { epoch: Epoch(1), nth: 0 };
        let chunks = vec![ChunkIndex(0), ChunkIndex(1)];
        let mut totals = Totals::default();
        for effect in [
            ready(0),
            ready(1),
            Effect::Done { submission, chunks, counts },
            Effect::Failed { submission, chunk: ChunkIndex(2), attempt, retry_at: None, counts },
            Effect::Over { submission, state: SubmissionState::Cancelled, counts },
        ] {
            totals.count(&effect);
        }
        let expected =
            Totals { submitted: 1, submitted_chunks: 7, ended: 1, handed_out: 0, completed: 2, failed: 1 };
        assert_eq!(totals, expected);
    }
}
