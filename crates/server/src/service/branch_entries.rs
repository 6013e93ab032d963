//! Reading branches: where, and what one path leads to.
//!
//! Invariants
//! - What is staged and the head are looked at in one moment, while nothing is applied: no read sees a commit half way.

use super::Service;
use super::branches::branch_unknown;
use super::problem_of_store;
use crate::roles::committer::replaced_by;
use windlass_api::branches::{AtQuery, EntryInfo};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::branches::commits::CommitState;
use windlass_core::branches::entries::{Digest, ObjectEntry};
use windlass_core::branches::listing::{From, StagedPage, staged_page};
use windlass_core::branches::outputs::OutputRule;
use windlass_core::branches::state::{AreaId, commit_of, request_of};
use windlass_core::ids::SubmissionId;
use windlass_core::machine::Machine;
use windlass_core::tables::{Tables, Walk};

/// Where a branch is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// What is committed.
    Head,
    /// The same, with what is staged on top.
    Staged,
    /// A commit.
    Commit(Digest),
    /// The head, as if this submission were committed now.
    Submission(SubmissionId),
}

/// A branch at one moment.
pub(super) struct Seen {
    /// The commit, if there is one.
    pub(super) commit: Option<Digest>,
    /// Its metarange.
    pub(super) metarange: Option<Digest>,
    /// Entries of the commit that begin so do not count.
    pub(super) replaced_prefix: Option<String>,
    /// What lies on top of it, as far as it was read.
    pub(super) staged: StagedPage,
}

impl Service {
    pub(super) fn at_of(&self, text: Option<&str>) -> Result<At, Problem> {
        match text {
            None | Some("head") => Ok(At::Head),
            Some("staged") => Ok(At::Staged),
            Some(text) => match text.strip_prefix("submission:") {
                Some(id) => id.parse().map(At::Submission).map_err(|error| {
                    Problem::new(ProblemCode::InvalidRequest, format!("{id:?} is no submission: {error}"))
                }),
                None => self.commit_by_id(text).map(At::Commit),
            },
        }
    }

    /// Looks at a branch, and at up to so many rows of what is staged there under a prefix.
    pub(super) fn see(
        &self,
        branch: &str,
        at: At,
        prefix: &str,
        from: From<'_>,
        limit: usize,
    ) -> Result<Seen, Problem> {
        self.order().read(|machine| {
            let tables = machine.tables();
            let found = machine.branches().get(branch).ok_or_else(|| branch_unknown(branch))?;
            let mut seen = Seen {
                commit: found.head,
                metarange: None,
                replaced_prefix: None,
                staged: StagedPage::default(),
            };
            let areas: Vec<AreaId> = match at {
                At::Head => Vec::new(),
                At::Staged => found.areas().collect(),
                At::Commit(commit) => {
                    seen.commit = Some(commit);
                    Vec::new()
                }
                At::Submission(id) => preview(machine, branch, id, &mut seen)?,
            };
            let commit = seen.commit.and_then(|commit| commit_of(tables, commit));
            seen.metarange = commit.map(|commit| commit.metarange);
            let scan =
                |table, range: windlass_core::tables::KeyRange<'_>| tables.scan(table, range, Walk::Up);
            seen.staged = staged_page(&areas, prefix, from, limit, scan);
            Ok(seen)
        })
    }

    /// What a path leads to.
    pub async fn entry(&self, branch: &str, path: &str, query: &AtQuery) -> Result<ObjectEntry, Problem> {
        self.freshen(query.consistency).await?;
        let at = self.at_of(query.at.as_deref())?;
        let mut seen = self.see(branch, at, path, From::At(path), 1)?;
        let staged = seen.staged.changes.drain(..).find(|(staged, _)| staged == path);
        let entry = match (staged, seen.metarange) {
            (Some((_, entry)), _) => entry,
            (None, Some(_)) if seen.replaced_prefix.is_some_and(|prefix| path.starts_with(&prefix)) => None,
            (None, Some(metarange)) => {
                self.ranges().get(metarange, path).await.map_err(|fault| problem_of_store(&fault))?
            }
            (None, None) => None,
        };
        entry.ok_or_else(|| {
            let detail = format!(
                "the path {path:?} leads nowhere on branch `{branch}`; list the branch to see its paths"
            );
            Problem::new(ProblemCode::EntryUnknown, detail)
        })
    }
}

/// A branch as if a submission were committed now: which areas lie on top of which commit.
fn preview<T: Tables>(
    machine: &Machine<T>,
    branch: &str,
    id: SubmissionId,
    seen: &mut Seen,
) -> Result<Vec<AreaId>, Problem> {
    let is_of_branch = |rule: &OutputRule| rule.branch == branch;
    let view = machine.show(id).filter(|view| view.about.output.as_ref().is_some_and(is_of_branch));
    let view = view.ok_or_else(|| {
        let detail = format!("no submission {id} puts its outputs on branch `{branch}`");
        Problem::new(ProblemCode::InvalidRequest, detail)
    })?;
    let request = view.submission.commit.and_then(|request| request_of(machine.tables(), request));
    match (request.map(|request| request.state), view.state, view.about.output) {
        // What it staged is gone; its commit is what came of it.
        (Some(CommitState::Committed(commit)), ..) => {
            seen.commit = Some(commit);
            Ok(Vec::new())
        }
        (_, SubmissionState::Cancelled, _) | (_, _, None) => {
            let detail = format!("submission {id} was cancelled, and its outputs are gone");
            Err(Problem::new(ProblemCode::SubmissionOver, detail))
        }
        (_, _, Some(rule)) => {
            (seen.replaced_prefix, _) = replaced_by(rule.mode);
            Ok(vec![AreaId(id)])
        }
    }
}

/// An entry as doors show it.
pub fn entry_info_of(path: String, entry: ObjectEntry) -> EntryInfo {
    EntryInfo {
        path,
        size: entry.size,
        sha256: entry.sha256,
        content_type: entry.content_type,
        metadata: entry.metadata,
        address: entry.address,
        submission: entry.made_by.map(|by| by.submission),
        chunk: entry.made_by.map(|by| by.chunk),
    }
}
