//! Open: creating branches, deleting them, and throwing away what is staged.

use super::commits::{Becomes, SubmissionEnds, drop_areas, end_aborted};
use super::entries::{Digest, problem_of_branch_name, problem_of_key};
use super::outputs::submission_of;
use super::state::{AreaId, Branch, BranchesState, Waiting, commit_of};
use crate::entry::{Applied, Outcome, Refusal};
use crate::ids::SubmissionId;
use crate::limits::BRANCHES_MAX;
use crate::tables::Tables;
use crate::time::At;
use minicbor::{Decode, Encode};

/// See [`Command::CreateBranch`](crate::entry::Command::CreateBranch).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct CreateBranch {
    /// Its name.
    #[n(0)]
    pub name: String,
    /// The commit that it begins with; none for an empty branch.
    #[n(1)]
    pub from: Option<Digest>,
    /// The same key within the dedup window is answered the same.
    #[n(2)]
    pub idempotency_key: Option<String>,
}

/// See [`Command::DeleteBranch`](crate::entry::Command::DeleteBranch) and [`Command::ResetBranch`](crate::entry::Command::ResetBranch).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct NameBranch {
    /// The branch.
    #[n(0)]
    pub name: String,
}

/// Why a branch cannot be created.
pub(crate) fn refusal(state: &BranchesState, tables: &dyn Tables, it: &CreateBranch) -> Option<Refusal> {
    let of_key = || problem_of_key(it.idempotency_key.as_deref());
    if let Some(problem) = problem_of_branch_name(&it.name).or_else(of_key) {
        return Some(Refusal::Malformed { problem });
    }
    if state.get(&it.name).is_some() {
        return Some(Refusal::BranchExists { branch: it.name.clone() });
    }
    if state.len() >= BRANCHES_MAX {
        let problem =
            format!("there are {BRANCHES_MAX} branches; delete some, or use prefixes of paths within one");
        return Some(Refusal::Malformed { problem });
    }
    it.from.filter(|from| commit_of(tables, *from).is_none()).map(|commit| Refusal::CommitUnknown { commit })
}

/// Creates a branch. Nothing can be refused any more.
pub(crate) fn create(state: &mut BranchesState, at: At, it: &CreateBranch, area: SubmissionId) -> Applied {
    let branch = Branch {
        created_at: at,
        head: it.from,
        open: AreaId(area),
        staged: 0,
        sealed: Vec::new(),
        queue: Vec::new(),
        commits: 0,
    };
    state.insert(&it.name, branch);
    Applied { outcome: Outcome::BranchSet { token: AreaId(area) }, effects: Vec::new() }
}

/// Why there is nothing to delete or to reset.
pub(crate) fn refusal_of_name(state: &BranchesState, it: &NameBranch) -> Option<Refusal> {
    let is_unknown = state.get(&it.name).is_none();
    is_unknown.then(|| Refusal::BranchUnknown { branch: it.name.clone() })
}

/// Deletes a branch: what is staged is garbage, and commits that wait are aborted. Its commits stay. Nothing can be refused
/// any more.
pub(crate) fn delete(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: &NameBranch,
) -> (Applied, Vec<SubmissionEnds>) {
    let branch = state.remove(tables, &it.name);
    let (mut effects, mut ended) = (Vec::new(), Vec::new());
    for Waiting { request, .. } in &branch.queue {
        ended.extend(submission_of(tables, *request).map(SubmissionEnds));
        effects.push(end_aborted(tables, *request, format!("branch `{}` was deleted", it.name)));
    }
    let areas: Vec<AreaId> = branch.areas().collect();
    drop_areas(state, tables, &areas, Becomes::Garbage, &mut effects);
    (Applied { outcome: Outcome::BranchDeleted, effects }, ended)
}

/// Throws away what is staged and no commit has taken. Nothing can be refused any more.
pub(crate) fn reset(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: &NameBranch,
    area: SubmissionId,
) -> Applied {
    let branch = state.change(&it.name);
    let taken = branch.queue.iter().filter_map(|waiting| waiting.through).max();
    let is_taken = |area: &AreaId| Some(*area) <= taken;
    let mut dropped: Vec<AreaId> = branch.sealed.iter().copied().filter(|area| !is_taken(area)).collect();
    branch.sealed.retain(is_taken);
    dropped.push(branch.open);
    (branch.open, branch.staged) = (AreaId(area), 0);
    let mut effects = Vec::new();
    drop_areas(state, tables, &dropped, Becomes::Garbage, &mut effects);
    Applied { outcome: Outcome::BranchSet { token: AreaId(area) }, effects }
}
