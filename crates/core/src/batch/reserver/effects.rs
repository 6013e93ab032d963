//! What was applied, as the reserver follows it.

use super::{Reserver, names_of};
use crate::batch::submissions::Traits;
use crate::entry::Effect;
use crate::ids::{Attempt, ChunkName, SubmissionId};
use crate::time::At;

impl Reserver {
    /// Follows what was applied.
    pub fn absorb(&mut self, effect: &Effect) {
        match effect {
            Effect::Ready { submission, round, ranges, traits, .. } => {
                self.put_ready(*submission, *round, ranges, traits);
                self.keep_out_what_is_out(*submission);
            }
            Effect::Changed { submission, traits } => {
                let out = names_of(&self.out, *submission).len();
                self.ready.change_traits(*submission, traits, out);
            }
            Effect::Weighed { field, weights } => self.ready.set_weights(field, weights.clone()),
            Effect::Done { submission, chunks, .. } => {
                chunks
                    .iter()
                    .for_each(|chunk| self.forget(ChunkName { submission: *submission, chunk: *chunk }));
            }
            Effect::Failed { submission, chunk, attempt, retry_at, .. } => {
                self.fail(ChunkName { submission: *submission, chunk: *chunk }, *attempt, *retry_at);
            }
            Effect::Over { submission, .. } => self.forget_submission(*submission),
            Effect::TaskUnplaced { level, is_done, .. } => self.forget_task(level.id, *is_done),
            Effect::TaskGone { task } => self.forget_task(*task, true),
            Effect::LaneSet { .. }
            | Effect::TaskPlaced { .. }
            | Effect::TaskMoved { .. }
            | Effect::TaskDelayed { .. }
            | Effect::CommitDue { .. }
            | Effect::CommitEnded { .. }
            | Effect::AreasDropped => {}
        }
        self.desk.absorb(effect);
        self.wake_lanes();
    }

    pub(super) fn put_ready(
        &mut self,
        submission: SubmissionId,
        round: u32,
        ranges: &[std::ops::Range<u64>],
        traits: &Traits,
    ) {
        if round > 0 {
            self.rounds.insert(submission, round);
        }
        let out = names_of(&self.out, submission).len();
        self.ready.put(submission, traits, out, ranges);
    }

    /// A new round makes every unsettled chunk ready; those that are out stay out, those that waited need not any more.
    fn keep_out_what_is_out(&mut self, submission: SubmissionId) {
        for name in names_of(&self.out, submission) {
            self.ready.take_out(name.submission, name.chunk);
        }
        for name in names_of(&self.delayed, submission) {
            self.undelay(name);
        }
    }

    fn fail(&mut self, name: ChunkName, attempt: Attempt, retry_at: Option<At>) {
        match self.out.get(&name) {
            // The chunk went to somebody else while this failure was on its way; a chunk that has failed for good is
            // taken from that one too.
            Some(reservation) if reservation.attempt != attempt && retry_at.is_some() => return,
            Some(_) => self.take_back(name),
            None => {
                self.undelay(name);
                self.ready.take_out(name.submission, name.chunk);
            }
        }
        match retry_at {
            Some(retry_at) => self.delay(name, retry_at),
            None => self.forget(name),
        }
    }
}
