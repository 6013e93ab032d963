//! The stand-in for the one who generates commits: reads what is sealed page by page, as the shell does, and lays it over
//! what the parent holds.

use std::collections::BTreeMap;
use std::hash::Hasher;
use windlass_core::batch::submissions::Submit;
use windlass_core::branches::commits::{Commit, CommitRequest, Counts, Perform, Source};
use windlass_core::branches::entries::{Digest, ObjectEntry};
use windlass_core::branches::listing::{From, StagedPage, staged_page};
use windlass_core::branches::outputs::OutputMode;
use windlass_core::branches::state::{AreaId, request_of};
use windlass_core::ids::SubmissionId;
use windlass_core::machine::Machine;
use windlass_core::tables::{Table, Tables, Walk};

/// What a commit holds.
pub(crate) type Content = BTreeMap<String, ObjectEntry>;

/// Stands for the SHA-256 of these bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    for (salt, part) in (0_u64..).zip(digest.chunks_mut(8)) {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(salt, 7);
        hasher.write(bytes);
        part.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    Digest::new(digest)
}

/// Stands for the digest of a metarange file.
pub(crate) fn metarange_of(content: &Content) -> Digest {
    digest_of(&minicbor::to_vec(content).expect("memory takes it"))
}

/// The commit that answers a request, made from the rows of the machine and from what its parent holds; or why it must be
/// given up.
pub(crate) fn generate<T: Tables>(
    machine: &Machine<T>,
    id: SubmissionId,
    before: impl Fn(Digest) -> Content,
    page: usize,
) -> Result<Perform, String> {
    let request = request_of(machine.tables(), id).expect("the request is there");
    let branch = machine.branches().get(&request.branch).expect("a request in progress has its branch");
    let parent = branch.head.map(&before).unwrap_or_default();
    let (content, conflicts) = content(machine, &request, parent.clone(), before, page);
    if conflicts > 0 && mode_of(machine, &request) == Some(OutputMode::Exact) {
        return Err(format!("{conflicts} outputs have a path that another chunk gave too"));
    }
    let counts = counts_of(&content, &parent, conflicts);
    Ok(performing(id, request, branch.head, metarange_of(&content), counts))
}

/// What the commit of a request holds, and how many outputs are outdone.
pub(crate) fn content<T: Tables>(
    machine: &Machine<T>,
    request: &CommitRequest,
    mut parent: Content,
    before: impl Fn(Digest) -> Content,
    page: usize,
) -> (Content, u64) {
    match mode_of(machine, request) {
        None | Some(OutputMode::Append) => {}
        Some(OutputMode::Replace(prefix)) => parent.retain(|path, _| !path.starts_with(&prefix)),
        Some(OutputMode::Exact) => parent.clear(),
    }
    let areas: Vec<AreaId> = match request.source {
        Source::Rollback(to) => return (before(to), 0),
        Source::Submission(submission) => vec![AreaId(submission)],
        Source::Staged(through) => {
            let branch = machine.branches().get(&request.branch).expect("the branch is there");
            branch.sealed.iter().rev().copied().filter(|area| Some(*area) <= through).collect()
        }
    };
    let mut conflicts = 0;
    let content = laid_over(parent, pages(machine, &areas, page), &mut conflicts);
    (content, conflicts)
}

fn mode_of<T: Tables>(machine: &Machine<T>, request: &CommitRequest) -> Option<OutputMode> {
    let Source::Submission(submission) = request.source else { return None };
    let row = machine.tables().get(Table::Abouts, &submission.key()).expect("a submission has its about row");
    let rule = Submit::from_row(submission, &row).output.expect("what is committed has an output");
    Some(rule.mode)
}

/// The command that makes a commit with this content visible.
pub(crate) fn performing(
    id: SubmissionId,
    request: CommitRequest,
    parent: Option<Digest>,
    metarange: Digest,
    counts: Counts,
) -> Perform {
    let (submission, rolled_back_to) = match request.source {
        Source::Staged(_) => (None, None),
        Source::Submission(submission) => (Some(submission), None),
        Source::Rollback(to) => (None, Some(to)),
    };
    let commit = Commit {
        branch: request.branch,
        parent,
        metarange,
        at: request.announced_at,
        message: request.message,
        metadata: request.metadata,
        counts,
        request: id,
        submission,
        missing: None,
        rolled_back_to,
    };
    Perform { id: digest_of(&commit.to_bytes()), commit }
}

/// What is staged in these areas, newest first, in pages of about so many rows.
pub(crate) fn pages<T: Tables>(machine: &Machine<T>, areas: &[AreaId], page: usize) -> Vec<StagedPage> {
    let mut pages: Vec<StagedPage> = Vec::new();
    loop {
        let from = match pages.last() {
            None => From::At(""),
            Some(StagedPage { read_to: Some(path), .. }) => From::After(path),
            Some(StagedPage { read_to: None, .. }) => return pages,
        };
        let next =
            staged_page(areas, "", from, page, |table, range| machine.tables().scan(table, range, Walk::Up));
        pages.push(next);
    }
}

fn laid_over(mut content: Content, pages: Vec<StagedPage>, conflicts: &mut u64) -> Content {
    for page in pages {
        *conflicts += page.conflicts;
        for (path, entry) in page.changes {
            match entry {
                Some(entry) => drop(content.insert(path, entry)),
                None => drop(content.remove(&path)),
            }
        }
    }
    content
}

/// What a commit holds and changed.
pub(crate) fn counts_of(content: &Content, parent: &Content, conflicts: u64) -> Counts {
    let is_other =
        |(path, entry): &(&String, &ObjectEntry)| parent.get(*path).is_some_and(|before| before != *entry);
    Counts {
        entries: content.len() as u64,
        bytes: content.values().map(|entry| entry.size).sum(),
        added: content.keys().filter(|path| !parent.contains_key(*path)).count() as u64,
        changed: content.iter().filter(is_other).count() as u64,
        removed: parent.keys().filter(|path| !content.contains_key(*path)).count() as u64,
        conflicts,
    }
}
