//! Outputs: what the chunks of a submission give goes into the submission's own area, and is committed in one step when the
//! last chunk is settled.
//!
//! Invariants
//! - A chunk's entries are staged when it is accepted as done, all of them, and never again: its accepted attempt never changes.
//! - A submission with an output runs until its commit is performed or aborted; it completes in the step that makes its
//!   outputs visible.
//! - The area of a submission that was cancelled is dropped; that of one that failed stays for its retry.

use super::commits::{
    Becomes, CommitRequest, CommitState, Source, SubmissionEnds, drop_areas, give_up, wait_in_line,
};
use super::entries::{
    Digest, MadeBy, ObjectEntry, problem_of_branch_name, problem_of_path, problem_of_prefix,
};
use super::state::{AreaId, BranchesState, StagedRow, put_request, request_of, staged_key};
use super::verify::Verify;
use crate::batch::state::{BatchState, about_of};
use crate::batch::submissions::{Metadata, SubmissionState};
use crate::effect::Effect;
use crate::entry::{Applied, Done, Refusal};
use crate::ids::{Attempt, ChunkIndex, SubmissionId};
use crate::limits::OUTPUTS_PER_CHUNK_MAX;
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// Where the outputs of a submission go.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct OutputRule {
    /// The branch.
    #[n(0)]
    pub branch: String,
    /// What becomes of the entries that the branch has.
    #[n(1)]
    pub mode: OutputMode,
    /// What becomes of the commit when a chunk has failed for good.
    #[n(2)]
    pub on_chunk_failure: OnChunkFailure,
    /// What must hold before the commit becomes visible.
    #[n(3)]
    pub verify: Verify,
}

/// What becomes of the entries that the branch has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub enum OutputMode {
    /// They stay, unless an output has their path. Of two chunks that give one path, the later one's counts.
    #[default]
    #[n(0)]
    Append,
    /// Those whose paths begin so go; the others stay.
    #[n(1)]
    Replace(#[n(0)] String),
    /// They go: the branch holds the outputs and nothing else, and no two chunks may give one path.
    #[n(2)]
    Exact,
}

/// What becomes of the commit when a chunk has failed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum OnChunkFailure {
    /// There is none: the branch stays as it was.
    #[default]
    #[n(0)]
    Abort,
    /// It names the chunks that are missing.
    #[n(1)]
    CommitWithout,
}

impl OutputRule {
    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let of_mode = || match &self.mode {
            OutputMode::Append | OutputMode::Exact => None,
            OutputMode::Replace(prefix) if prefix.is_empty() => {
                Some("`replace` needs a prefix; to replace everything, use the mode `exact`".into())
            }
            OutputMode::Replace(prefix) => problem_of_prefix(prefix),
        };
        problem_of_branch_name(&self.branch).or_else(of_mode).or_else(|| self.verify.problem())
    }
}

/// One output of a chunk, as its consumer reports it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct OutputEntry {
    /// Where it appears.
    #[n(0)]
    pub path: String,
    /// Which of the attempt's objects it is.
    #[n(1)]
    pub object: u32,
    /// Its size in bytes.
    #[n(2)]
    pub size: u64,
    /// The digest of its bytes.
    #[n(3)]
    pub sha256: Digest,
    /// What kind of bytes they are; may be empty.
    #[n(4)]
    pub content_type: String,
    /// What else is said of them.
    #[n(5)]
    pub metadata: BTreeMap<String, String>,
}

/// The address of one of the objects that an attempt may write: its own, so that late work never overwrites what was accepted.
pub fn output_address(
    submission: SubmissionId,
    chunk: ChunkIndex,
    attempt: Attempt,
    object: Option<u32>,
) -> String {
    match object {
        None => format!("outputs/{submission}/{chunk}/{attempt}"),
        Some(object) => format!("outputs/{submission}/{chunk}/{attempt}/{object}"),
    }
}

impl OutputEntry {
    fn staged(&self, submission: SubmissionId, done: &Done) -> ObjectEntry {
        ObjectEntry {
            address: output_address(submission, done.chunk, done.attempt, Some(self.object)),
            size: self.size,
            sha256: self.sha256,
            content_type: self.content_type.clone(),
            metadata: self.metadata.clone(),
            made_by: Some(MadeBy { submission, chunk: done.chunk }),
        }
    }
}

/// What is wrong with the outputs of a chunk, as a sentence that says what to do.
pub fn problem_of_outputs(submission: SubmissionId, done: &Done) -> Option<String> {
    let entries = done.entries.as_deref().unwrap_or_default();
    if entries.len() > OUTPUTS_PER_CHUNK_MAX {
        return Some(format!("a chunk gives at most {OUTPUTS_PER_CHUNK_MAX} outputs; make chunks smaller"));
    }
    let (mut paths, mut objects) = (BTreeSet::new(), BTreeSet::new());
    entries.iter().find_map(|entry| {
        let twice = || {
            let is_new = paths.insert(&entry.path) && objects.insert(entry.object);
            (!is_new)
                .then(|| format!("chunk {} names the path {:?} or its object twice", done.chunk, entry.path))
        };
        problem_of_path(&entry.path).or_else(|| entry.staged(submission, done).problem()).or_else(twice)
    })
}

/// Stages the outputs of a chunk that was accepted as done.
pub(crate) fn stage_outputs(tables: &mut dyn Tables, submission: SubmissionId, done: &Done) {
    for entry in done.entries.iter().flatten() {
        let key = staged_key(AreaId(submission), &entry.path, Some(done.chunk.0));
        let row = StagedRow { entry: Some(entry.staged(submission, done)) };
        tables.put(Table::Staged, &key, rows::encode(&row));
    }
}

/// Announces the commit of a submission whose last chunk is settled, if it has an output.
pub(crate) fn seal_if_settled(
    (batch, branches): (&mut BatchState, &mut BranchesState),
    tables: &mut dyn Tables,
    at: At,
    id: SubmissionId,
    next_id: impl FnOnce() -> SubmissionId,
) -> Vec<Effect> {
    let is_due = batch
        .submission(id)
        .is_some_and(|it| it.output.is_some() && it.counts.unsettled() == 0 && it.commit.is_none());
    if !is_due {
        return Vec::new();
    }
    let rule = about_of(tables, id).output.expect("what has an output says so in its about row");
    let request_id = next_id();
    batch.change(id, |submission| submission.commit = Some(request_id));
    let mut request = CommitRequest {
        branch: rule.branch.clone(),
        source: Source::Submission(id),
        announced_at: at,
        message: format!("submission {id}"),
        metadata: Metadata::new(),
        verify: rule.verify,
        if_parent: None,
        state: CommitState::InProgress,
    };
    if branches.get(&rule.branch).is_none() {
        request.state = CommitState::Aborted(format!("branch `{}` was deleted", rule.branch));
        put_request(tables, request_id, &request);
        return vec![end(batch, tables, at, SubmissionEnds(id))];
    }
    wait_in_line(branches, tables, request_id, &request).into_iter().collect()
}

/// Ends a submission whose commit is performed or aborted.
pub(crate) fn end(batch: &mut BatchState, tables: &mut dyn Tables, at: At, ends: SubmissionEnds) -> Effect {
    let SubmissionEnds(id) = ends;
    let submission = batch.submission(id).expect("a submission runs until its commit is over");
    let request = submission.commit.and_then(|request| request_of(tables, request));
    let is_committed = request.is_some_and(|it| matches!(it.state, CommitState::Committed(_)));
    let is_whole = is_committed && submission.counts.failed == 0;
    let state = if is_whole { SubmissionState::Completed } else { SubmissionState::Failed };
    batch.end(tables, id, state, at)
}

/// After a submission was cancelled: its commit does not happen, and what it staged is garbage.
pub(crate) fn let_go(
    branches: &mut BranchesState,
    tables: &mut dyn Tables,
    id: SubmissionId,
    commit: Option<SubmissionId>,
    applied: &mut Applied,
) {
    let is_cancelled = applied.effects.iter().any(|effect| matches!(effect, Effect::Over { .. }));
    let Some(rule) = is_cancelled.then(|| about_of(tables, id).output).flatten() else { return };
    if let Some(request) = commit {
        let reason = format!("submission {id} was cancelled");
        applied.effects.extend(give_up(branches, tables, &rule.branch, request, reason));
    }
    drop_areas(branches, tables, &[AreaId(id)], Becomes::Garbage, &mut applied.effects);
}

/// The submission whose outputs a request commits.
pub(super) fn submission_of(tables: &dyn Tables, request: SubmissionId) -> Option<SubmissionId> {
    match request_of(tables, request)?.source {
        Source::Submission(id) => Some(id),
        Source::Staged(_) | Source::Rollback(_) => None,
    }
}

/// Why a submission that failed cannot be tried again: its outputs are visible already.
pub(crate) fn refusal_of_retry(
    tables: &dyn Tables,
    id: SubmissionId,
    commit: Option<SubmissionId>,
) -> Option<Refusal> {
    match request_of(tables, commit?)?.state {
        CommitState::Committed(_) => {
            let problem = format!(
                "submission {id} was committed without the chunks that failed; submit their work anew, with mode append"
            );
            Some(Refusal::Malformed { problem })
        }
        CommitState::InProgress | CommitState::Aborted(_) => None,
    }
}
