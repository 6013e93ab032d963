//! Rooms: the commands in which rooms meet. Settling the last chunk of a submission announces the commit of its outputs, and
//! performing that commit ends the submission.

use super::Machine;
use crate::batch::submissions::Submit;
use crate::batch::{end, settle};
use crate::branches::commits::{self, Abort, Announce, Perform, SubmissionEnds};
use crate::branches::open::{self, CreateBranch, NameBranch};
use crate::branches::outputs;
use crate::branches::staging::{self, Grant, Stage};
use crate::entry::{Applied, Complete, Entry, Fail, Refusal};
use crate::ids::SubmissionId;
use crate::tables::Tables;

impl<T: Tables> Machine<T> {
    pub(super) fn complete(&mut self, it: Complete) -> Applied {
        let submission = it.submission;
        let applied = settle::complete(&mut self.batch, &mut self.tables, self.own.at, it);
        self.seal_if_settled(submission, applied)
    }

    pub(super) fn fail(&mut self, it: Fail) -> Applied {
        let submission = it.submission;
        let applied = settle::fail(&mut self.batch, &mut self.tables, self.own.at, it);
        self.seal_if_settled(submission, applied)
    }

    pub(super) fn cancel(&mut self, submission: SubmissionId) -> Applied {
        let commit = self.batch.submission(submission).and_then(|it| it.commit);
        let mut applied = end::cancel(&mut self.batch, &mut self.tables, self.own.at, submission);
        outputs::let_go(&mut self.branches, &mut self.tables, submission, commit, &mut applied);
        applied
    }

    pub(super) fn retry_failed(&mut self, submission: SubmissionId) -> Applied {
        let applied = end::retry_failed(&mut self.batch, &mut self.tables, submission);
        self.seal_if_settled(submission, applied)
    }

    /// Why a submission's outputs have nowhere to go.
    pub(super) fn refusal_of_output(&self, it: &Submit) -> Option<Refusal> {
        let branch = &it.output.as_ref()?.branch;
        let is_unknown = self.branches.get(branch).is_none();
        is_unknown.then(|| Refusal::BranchUnknown { branch: branch.clone() })
    }

    pub(super) fn create_branch(&mut self, entry: &Entry, it: &CreateBranch) -> Applied {
        let refusal = open::refusal(&self.branches, &self.tables, it);
        self.once(entry, it.idempotency_key.as_deref(), &(&it.name, &it.from), refusal, |machine| {
            let area = machine.next_id();
            open::create(&mut machine.branches, machine.own.at, it, area)
        })
    }

    // Told twice, the next two would throw away what came in between.
    pub(super) fn delete_branch(&mut self, entry: &Entry, it: &NameBranch) -> Applied {
        let refusal = open::refusal_of_name(&self.branches, it);
        self.once(entry, None, &("delete", &it.name), refusal, |machine| {
            let (mut applied, ended) = open::delete(&mut machine.branches, &mut machine.tables, it);
            let (batch, tables, at) = (&mut machine.batch, &mut machine.tables, machine.own.at);
            applied.effects.extend(ended.into_iter().map(|ends| outputs::end(batch, tables, at, ends)));
            applied
        })
    }

    pub(super) fn reset_branch(&mut self, entry: &Entry, it: &NameBranch) -> Applied {
        let refusal = open::refusal_of_name(&self.branches, it);
        self.once(entry, None, &("reset", &it.name), refusal, |machine| {
            let area = machine.next_id();
            open::reset(&mut machine.branches, &mut machine.tables, it, area)
        })
    }

    pub(super) fn grant(&mut self, it: &Grant) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let id = self.next_id();
        staging::grant(&mut self.tables, self.own.at, it, id)
    }

    pub(super) fn stage(&mut self, entry: &Entry, it: &Stage) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let refusal = staging::refusal(&self.branches, &self.tables, it);
        self.once(entry, it.idempotency_key.as_deref(), &it.asked(), refusal, |machine| {
            staging::stage(&mut machine.branches, &mut machine.tables, it)
        })
    }

    pub(super) fn announce(&mut self, entry: &Entry, it: &Announce) -> Applied {
        if let Some(problem) = it.problem() {
            return Applied::refused(Refusal::Malformed { problem });
        }
        let refusal = commits::refusal(&self.branches, &self.tables, it);
        self.once(entry, it.idempotency_key.as_deref(), it, refusal, |machine| {
            let (at, shard) = (machine.own.at, machine.own.shard);
            let last = &mut machine.own.last_submission;
            let next_id = || *last.insert(SubmissionId::next(*last, at, shard));
            commits::announce(&mut machine.branches, &mut machine.tables, at, it, next_id)
        })
    }

    pub(super) fn perform(&mut self, it: Perform) -> Applied {
        let performed = commits::perform(&mut self.branches, &mut self.tables, it);
        self.end_with_commit(performed)
    }

    pub(super) fn abort(&mut self, it: Abort) -> Applied {
        let aborted = commits::abort(&mut self.branches, &mut self.tables, it);
        self.end_with_commit(aborted)
    }

    /// After chunks were settled: a submission with an output is committed when all of them are.
    fn seal_if_settled(&mut self, submission: SubmissionId, mut applied: Applied) -> Applied {
        let (at, shard, last) = (self.own.at, self.own.shard, &mut self.own.last_submission);
        let rooms = (&mut self.batch, &mut self.branches);
        let next_id = || *last.insert(SubmissionId::next(*last, at, shard));
        applied.effects.extend(outputs::seal_if_settled(rooms, &mut self.tables, at, submission, next_id));
        applied
    }

    /// After a commit was performed or aborted: the submission whose outputs it has is over.
    fn end_with_commit(&mut self, (mut applied, ends): (Applied, Option<SubmissionEnds>)) -> Applied {
        let at = self.own.at;
        applied.effects.extend(ends.map(|ends| outputs::end(&mut self.batch, &mut self.tables, at, ends)));
        applied
    }
}
