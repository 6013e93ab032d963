//! Commits: announced, generated, performed.
//!
//! *Announce* seals what is staged and opens the next area at once, so that writers never wait. The leader's Committer then
//! *generates* the files of the commit outside the log. *Perform* moves the head, drops the areas and ends the request in
//! one step.
//!
//! Invariants
//! - Commits of a branch are performed in the order in which they were announced.
//! - A commit's parent is the head at the moment it is performed; what it commits was sealed before and did not change since.
//! - A request is in progress, committed, or aborted with a reason; the last two are final.
//! - A file is noted before it is written: under its request until that is over, then in its commit or as garbage. A file of
//!   the same content that another commit has is not known here.

use super::entries::{Digest, problem_of_key};
use super::state::{
    AreaId, Branch, BranchesState, DroppedRow, Waiting, commit_of, end_request, put_garbage, put_request,
    request_of,
};
use super::verify::Verify;
use crate::batch::submissions::{Metadata, problem_of_metadata};
use crate::effect::Effect;
use crate::entry::{Applied, Outcome, Refusal};
use crate::ids::{ChunkIndex, SubmissionId};
use crate::limits::{
    ABORT_REASON_BYTES_MAX, COMMIT_MESSAGE_BYTES_MAX, COMMITS_WAITING_MAX, FILES_PER_NOTE_MAX,
    STAGING_AREAS_MAX,
};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::{Decode, Encode};

/// A commit. Its id is the SHA-256 of its stored bytes.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Commit {
    /// The branch that it was made on.
    #[n(0)]
    pub branch: String,
    /// The one before it.
    #[n(1)]
    pub parent: Option<Digest>,
    /// The list of ranges that hold its entries.
    #[n(2)]
    pub metarange: Digest,
    /// When it was announced.
    #[n(3)]
    pub at: At,
    /// What whoever asked for it said.
    #[n(4)]
    pub message: String,
    /// More of that; of a submission's commit the submission's metadata.
    #[n(5)]
    pub metadata: Metadata,
    /// What it holds, and what it changed.
    #[n(6)]
    pub counts: Counts,
    /// The request that it answers.
    #[n(7)]
    pub request: SubmissionId,
    /// The submission whose outputs it holds.
    #[n(8)]
    pub submission: Option<SubmissionId>,
    /// Chunks of the submission that failed and whose outputs are missing: the first ones, and how many in all.
    #[n(9)]
    pub missing: Option<Missing>,
    /// The commit whose content it brought back.
    #[n(10)]
    pub rolled_back_to: Option<Digest>,
}

impl Commit {
    /// The stored bytes, of which the id is the digest.
    pub fn to_bytes(&self) -> Vec<u8> {
        rows::encode(self)
    }
}

/// Chunks whose outputs a commit does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Missing {
    /// How many.
    #[n(0)]
    pub chunks: u64,
    /// The first of them.
    #[n(1)]
    pub first: Vec<ChunkIndex>,
}

/// What a commit holds, and what it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Counts {
    /// Entries.
    #[n(0)]
    pub entries: u64,
    /// Bytes of their objects.
    #[n(1)]
    pub bytes: u64,
    /// Paths that its parent does not have.
    #[n(2)]
    pub added: u64,
    /// Paths that lead to something else.
    #[n(3)]
    pub changed: u64,
    /// Paths that are no more.
    #[n(4)]
    pub removed: u64,
    /// Outputs of chunks whose paths a later chunk gave too.
    #[n(5)]
    pub conflicts: u64,
}

/// A request for a commit, and what became of it.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct CommitRequest {
    /// The branch.
    #[n(0)]
    pub branch: String,
    /// What is committed.
    #[n(1)]
    pub source: Source,
    /// When it was announced.
    #[n(2)]
    pub announced_at: At,
    /// What whoever asked for it said.
    #[n(3)]
    pub message: String,
    /// More of that.
    #[n(4)]
    pub metadata: Metadata,
    /// What must hold before it becomes visible.
    #[n(5)]
    pub verify: Verify,
    /// If its parent is not this one when its turn comes, it is aborted.
    #[n(6)]
    pub if_parent: Option<Digest>,
    /// How far it is.
    #[n(7)]
    pub state: CommitState,
}

/// What a commit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Source {
    /// What is staged in the areas of the branch up to this one; none if nothing was.
    #[n(0)]
    Staged(#[n(0)] Option<AreaId>),
    /// The outputs of a submission.
    #[n(1)]
    Submission(#[n(0)] SubmissionId),
    /// What an earlier commit held.
    #[n(2)]
    Rollback(#[n(0)] Digest),
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum CommitState {
    /// It waits for its turn, or is being generated.
    #[n(0)]
    InProgress,
    /// It is this commit.
    #[n(1)]
    Committed(#[n(0)] Digest),
    /// It was given up; the branch stays as it was.
    #[n(2)]
    Aborted(#[n(0)] String),
}

/// See [`Command::Announce`](crate::entry::Command::Announce).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Announce {
    /// The branch.
    #[n(0)]
    pub branch: String,
    /// Brings back what this commit held, instead of committing what is staged.
    #[n(1)]
    pub rollback_to: Option<Digest>,
    /// What to say of it.
    #[n(2)]
    pub message: String,
    /// More of that.
    #[n(3)]
    pub metadata: Metadata,
    /// What must hold before it becomes visible.
    #[n(4)]
    pub verify: Verify,
    /// Refused if nothing is staged that no commit has taken.
    #[n(5)]
    pub if_changed: bool,
    /// Aborted if its parent is not this one when its turn comes.
    #[n(6)]
    pub if_parent: Option<Digest>,
    /// The same key within the dedup window gives the same request.
    #[n(7)]
    pub idempotency_key: Option<String>,
}

/// See [`Command::Perform`](crate::entry::Command::Perform).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Perform {
    /// The commit's id.
    #[n(0)]
    pub id: Digest,
    /// The commit.
    #[n(1)]
    pub commit: Commit,
}

/// See [`Command::Abort`](crate::entry::Command::Abort).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Abort {
    /// The request.
    #[n(0)]
    pub request: SubmissionId,
    /// Why, for a person to read.
    #[n(1)]
    pub reason: String,
}

/// See [`Command::NoteFiles`](crate::entry::Command::NoteFiles).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct NoteFiles {
    /// The request whose commit they belong to.
    #[n(0)]
    pub request: SubmissionId,
    /// Their addresses in the object store.
    #[n(1)]
    pub addresses: Vec<String>,
}

impl Announce {
    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        if self.message.len() > COMMIT_MESSAGE_BYTES_MAX {
            return Some(format!("a commit's message has at most {COMMIT_MESSAGE_BYTES_MAX} bytes"));
        }
        problem_of_metadata(&self.metadata)
            .or_else(|| self.verify.problem())
            .or_else(|| problem_of_key(self.idempotency_key.as_deref()))
    }
}

/// Why an announcement cannot be carried out.
pub(crate) fn refusal(state: &BranchesState, tables: &dyn Tables, it: &Announce) -> Option<Refusal> {
    let Some(branch) = state.get(&it.branch) else {
        return Some(Refusal::BranchUnknown { branch: it.branch.clone() });
    };
    let malformed = |problem: String| Some(Refusal::Malformed { problem });
    // What is sealed can always be asked for again, and what was committed be brought back.
    let is_to_be_sealed = it.rollback_to.is_none() && branch.staged > 0;
    let has_too_many = is_to_be_sealed && branch.sealed.len() >= STAGING_AREAS_MAX;
    if branch.queue.len() >= COMMITS_WAITING_MAX || has_too_many {
        return Some(Refusal::TooManyCommits { branch: it.branch.clone() });
    }
    if let Some(to) = it.rollback_to {
        return match commit_of(tables, to) {
            Some(_) => None,
            None => Some(Refusal::CommitUnknown { commit: to }),
        };
    }
    let is_untaken =
        |area: &AreaId| branch.queue.iter().all(|it| it.through.is_none_or(|through| through < *area));
    if it.if_changed && branch.staged == 0 && !branch.sealed.iter().any(is_untaken) {
        return malformed(format!("nothing is staged on branch `{}` that no commit has taken", it.branch));
    }
    None
}

/// Seals what is staged, and lets the commit wait for its turn. Nothing can be refused any more.
pub(crate) fn announce(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    at: At,
    it: &Announce,
    mut next_id: impl FnMut() -> SubmissionId,
) -> Applied {
    let branch = state.change(&it.branch);
    let source = match it.rollback_to {
        Some(to) => Source::Rollback(to),
        None => {
            if branch.staged > 0 {
                branch.sealed.push(branch.open);
                (branch.open, branch.staged) = (AreaId(next_id()), 0);
            }
            Source::Staged(branch.sealed.last().copied())
        }
    };
    let request = CommitRequest {
        branch: it.branch.clone(),
        source,
        announced_at: at,
        message: it.message.clone(),
        metadata: it.metadata.clone(),
        verify: it.verify.clone(),
        if_parent: it.if_parent,
        state: CommitState::InProgress,
    };
    let token = branch.open;
    let id = next_id();
    let effects = wait_in_line(state, tables, id, &request).into_iter().collect();
    Applied { outcome: Outcome::Announced { request: id, token }, effects }
}

/// Puts a request at the end of its branch's queue.
pub(super) fn wait_in_line(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    id: SubmissionId,
    request: &CommitRequest,
) -> Option<Effect> {
    let through = match request.source {
        Source::Staged(area) => area,
        Source::Submission(_) | Source::Rollback(_) => None,
    };
    let branch = state.change(&request.branch);
    branch.queue.push(Waiting { request: id, through });
    let is_first = branch.queue.len() == 1;
    put_request(tables, id, request);
    is_first.then(|| Effect::CommitDue { branch: request.branch.clone(), request: id })
}

/// What performing a commit asks of the batch room: this submission is over.
pub(crate) struct SubmissionEnds(pub(crate) SubmissionId);

/// Makes a commit visible, if it is its turn and its parent is the head.
pub(crate) fn perform(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: Perform,
) -> (Applied, Option<SubmissionEnds>) {
    let id = it.commit.request;
    let (request, branch) = match in_line(state, tables, id) {
        Ok(found) => found,
        Err(applied) => return (applied, None),
    };
    let is_its_turn = branch.queue.first().is_some_and(|waiting| waiting.request == id);
    if !is_its_turn || branch.head != it.commit.parent || request.branch != it.commit.branch {
        return (Applied::refused(Refusal::NotItsTurn { request: id }), None);
    }
    if request.if_parent.is_some() && request.if_parent != branch.head {
        let name = &request.branch;
        let reason = format!("the head of branch `{name}` is not the parent that was asked for");
        return abort(state, tables, Abort { request: id, reason });
    }

    // Nothing below can be refused.
    tables.put(Table::Commits, it.id.as_bytes(), it.commit.to_bytes());
    end_request(tables, id, CommitState::Committed(it.id));
    forget_files(tables, id, false);
    let branch = state.change(&request.branch);
    branch.head = Some(it.id);
    branch.commits += 1;
    let mut effects = vec![Effect::CommitEnded { request: id }];
    let mut ends = None;
    match request.source {
        Source::Staged(through) => {
            let is_taken = |area: &AreaId| Some(*area) <= through;
            let taken: Vec<AreaId> = branch.sealed.iter().copied().filter(is_taken).collect();
            branch.sealed.retain(|area| !is_taken(area));
            drop_areas(state, tables, &taken, Becomes::Committed, &mut effects);
        }
        Source::Submission(submission) => {
            drop_areas(state, tables, &[AreaId(submission)], Becomes::Committed, &mut effects);
            ends = Some(SubmissionEnds(submission));
        }
        Source::Rollback(_) => {}
    }
    effects.extend(leave_line(state, &request.branch, id));
    (Applied { outcome: Outcome::Committed { commit: it.id }, effects }, ends)
}

/// Gives a request up: the branch stays as it was, and what was staged stays staged.
pub(crate) fn abort(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: Abort,
) -> (Applied, Option<SubmissionEnds>) {
    let (request, _) = match in_line(state, tables, it.request) {
        Ok(found) => found,
        Err(applied) => return (applied, None),
    };

    // Nothing below can be refused.
    let mut reason = it.reason;
    let end = (0..=ABORT_REASON_BYTES_MAX).rev().find(|end| reason.is_char_boundary(*end));
    reason.truncate(end.expect("every text can be cut at its beginning").min(reason.len()));
    let effects = give_up(state, tables, &request.branch, it.request, reason.clone());
    let ends = match request.source {
        Source::Submission(submission) => Some(SubmissionEnds(submission)),
        Source::Staged(_) | Source::Rollback(_) => None,
    };
    (Applied { outcome: Outcome::Aborted { reason }, effects }, ends)
}

/// Takes a request that waits out of its queue, as aborted.
pub(super) fn give_up(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    branch: &str,
    request: SubmissionId,
    reason: String,
) -> Vec<Effect> {
    let mut effects = vec![end_aborted(tables, request, reason)];
    effects.extend(leave_line(state, branch, request));
    effects
}

/// Ends a request as aborted, whose queue is the caller's business.
pub(super) fn end_aborted(tables: &mut dyn Tables, request: SubmissionId, reason: String) -> Effect {
    end_request(tables, request, CommitState::Aborted(reason));
    forget_files(tables, request, true);
    Effect::CommitEnded { request }
}

/// Notes files that are about to be written.
pub(crate) fn note_files(state: &BranchesState, tables: &mut dyn Tables, it: &NoteFiles) -> Applied {
    if it.addresses.len() > FILES_PER_NOTE_MAX {
        let problem = format!("note at most {FILES_PER_NOTE_MAX} files at a time");
        return Applied::refused(Refusal::Malformed { problem });
    }
    if let Err(applied) = in_line(state, tables, it.request) {
        return applied;
    }

    // Nothing below can be refused.
    for address in &it.addresses {
        tables.put(Table::Generated, &generated_key(it.request, address), Vec::new());
        // A file of a commit that was given up may be needed after all.
        tables.delete(Table::Garbage, address.as_bytes());
    }
    Applied { outcome: Outcome::Noted, effects: Vec::new() }
}

fn generated_key(request: SubmissionId, address: &str) -> Vec<u8> {
    [&request.key(), address.as_bytes()].concat()
}

/// The files of a request are in its commit from now on, or garbage. Another request that was given up may have noted one of
/// the same content: what a commit holds is no garbage.
fn forget_files(tables: &mut dyn Tables, request: SubmissionId, is_garbage: bool) {
    let keys: Vec<Vec<u8>> =
        tables.scan_prefix(Table::Generated, &request.key()).map(|(key, _)| key).collect();
    for key in keys {
        if is_garbage {
            put_garbage(tables, std::str::from_utf8(&key[8..]).expect("an address is text"));
        } else {
            tables.delete(Table::Garbage, &key[8..]);
        }
        tables.delete(Table::Generated, &key);
    }
}

/// A request that is in progress, and its branch; or the answer for one that is not.
fn in_line<'a>(
    state: &'a BranchesState,
    tables: &dyn Tables,
    id: SubmissionId,
) -> Result<(CommitRequest, &'a Branch), Applied> {
    let Some(request) = request_of(tables, id) else {
        return Err(Applied::refused(Refusal::RequestUnknown { request: id }));
    };
    let outcome = match request.state {
        CommitState::InProgress => {
            let branch = state.get(&request.branch).expect("a request in progress waits on a branch");
            return Ok((request, branch));
        }
        CommitState::Committed(commit) => Outcome::Committed { commit },
        CommitState::Aborted(reason) => Outcome::Aborted { reason },
    };
    Err(Applied { outcome, effects: Vec::new() })
}

/// Takes a request out of its queue; the next one is due then.
fn leave_line(state: &mut BranchesState, name: &str, request: SubmissionId) -> Option<Effect> {
    let branch = state.change(name);
    let was_first = branch.queue.first().is_some_and(|waiting| waiting.request == request);
    branch.queue.retain(|waiting| waiting.request != request);
    let next = branch.queue.first().filter(|_| was_first)?.request;
    Some(Effect::CommitDue { branch: name.to_owned(), request: next })
}

/// What becomes of the objects that dropped areas lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    /// A commit holds them, but for those that a newer one of these areas outdid.
    Committed,
    /// Nothing leads to them any more.
    Garbage,
}

/// Leaves areas, oldest first, to the sweep.
pub(super) fn drop_areas(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    areas: &[AreaId],
    becomes: Becomes,
    effects: &mut Vec<Effect>,
) {
    for (nth, area) in areas.iter().enumerate() {
        let row = match becomes {
            Becomes::Committed => {
                DroppedRow { is_committed: true, newer: areas[nth + 1..].to_vec(), swept_to: None }
            }
            Becomes::Garbage => DroppedRow { is_committed: false, newer: Vec::new(), swept_to: None },
        };
        state.drop_area(tables, *area, &row);
    }
    if !areas.is_empty() {
        effects.push(Effect::AreasDropped);
    }
}
