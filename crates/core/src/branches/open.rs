//! Open: creating branches, deleting them, and throwing away what is staged.

use super::commits::{drop_areas, give_up};
use super::entries::{Digest, problem_of_branch_name};
use super::state::{AreaId, Branch, BranchesState, commit_of};
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
    if let Some(problem) = problem_of_branch_name(&it.name) {
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

/// Deletes a branch: what is staged is garbage, and commits that wait are aborted. Its commits stay.
pub(crate) fn delete(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: &NameBranch,
) -> (Applied, Vec<SubmissionId>) {
    let Some(branch) = state.get(&it.name).cloned() else {
        return (Applied::refused(Refusal::BranchUnknown { branch: it.name.clone() }), Vec::new());
    };

    // Nothing below can be refused.
    let requests: Vec<SubmissionId> = branch.queue.iter().map(|waiting| waiting.request).collect();
    let (mut effects, mut ended) = (Vec::new(), Vec::new());
    for request in requests {
        let reason = format!("branch `{}` was deleted", it.name);
        ended.extend(super::outputs::submission_of(tables, request));
        effects.extend(give_up(state, tables, &it.name, request, reason));
    }
    // Those of the branch itself; what became due while its queue was emptied is over too.
    effects.retain(|effect| !matches!(effect, crate::effect::Effect::CommitDue { .. }));
    let areas: Vec<AreaId> = branch.areas().collect();
    drop_areas(state, tables, &areas, false, &mut effects);
    state.remove(tables, &it.name);
    (Applied { outcome: Outcome::BranchDeleted, effects }, ended)
}

/// Throws away what is staged and no commit has taken.
pub(crate) fn reset(
    state: &mut BranchesState,
    tables: &mut dyn Tables,
    it: &NameBranch,
    area: SubmissionId,
) -> Applied {
    if state.get(&it.name).is_none() {
        return Applied::refused(Refusal::BranchUnknown { branch: it.name.clone() });
    }

    // Nothing below can be refused.
    let branch = state.change(&it.name);
    let taken = branch.queue.iter().filter_map(|waiting| waiting.through).max();
    let is_taken = |area: &AreaId| Some(*area) <= taken;
    let mut dropped: Vec<AreaId> = branch.sealed.iter().copied().filter(|area| !is_taken(area)).collect();
    branch.sealed.retain(is_taken);
    dropped.push(branch.open);
    (branch.open, branch.staged) = (AreaId(area), 0);
    let mut effects = Vec::new();
    drop_areas(state, tables, &dropped, false, &mut effects);
    Applied { outcome: Outcome::BranchSet { token: AreaId(area) }, effects }
}
