//! What commits should do: announced, performed, aborted.

use super::{Branch, Model, Request, answered, malformed};
use crate::generator::{Content, counts_of, metarange_of};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::branches::commits::{
    Abort, Announce, CommitRequest, CommitState, NoteFiles, Perform, Source,
};
use windlass_core::branches::outputs::OutputMode;
use windlass_core::branches::state::AreaId;
use windlass_core::entry::{Applied, Effect, Entry, Outcome, Refusal};
use windlass_core::ids::SubmissionId;
use windlass_core::limits::ABORT_REASON_BYTES_MAX;

impl Model {
    pub(super) fn announce(&mut self, entry: &Entry, it: &Announce) -> Result<Applied, Refusal> {
        if let Some(problem) = it.problem() {
            return Err(malformed(problem));
        }
        self.once(entry, it.idempotency_key.as_ref(), format!("{it:?}"), |model| {
            let branch = model.branch(&it.branch)?.clone();
            if let Some(commit) = it.rollback_to.filter(|to| !model.commits.contains_key(to)) {
                return Err(Refusal::CommitUnknown { commit });
            }
            let taken = branch.queue.iter().filter_map(|request| model.through(*request)).max();
            let is_new =
                |(area, entries): &(AreaId, BTreeMap<_, _>)| Some(*area) > taken && !entries.is_empty();
            if it.rollback_to.is_none() && it.if_changed && !branch.areas.iter().any(is_new) {
                let name = &it.branch;
                return Err(malformed(format!(
                    "nothing is staged on branch `{name}` that no commit has taken"
                )));
            }
            let source = model.sealed(&branch, it);
            let row = CommitRequest {
                branch: it.branch.clone(),
                source,
                announced_at: model.at,
                message: it.message.clone(),
                metadata: it.metadata.clone(),
                verify: it.verify.clone(),
                if_parent: it.if_parent,
                state: CommitState::InProgress,
            };
            let request = model.next_id();
            let effects = model.wait(request, row).into_iter().collect();
            let token = model.branches[&it.branch].open().0;
            Ok(Applied { outcome: Outcome::Announced { request, token }, effects })
        })
    }

    /// Opens the next area, unless nothing is in the open one, and says what is committed.
    fn sealed(&mut self, branch: &Branch, it: &Announce) -> Source {
        if let Some(to) = it.rollback_to {
            return Source::Rollback(to);
        }
        let (open, entries) = branch.open();
        if entries.is_empty() {
            return Source::Staged(branch.areas.iter().rev().nth(1).map(|(area, _)| *area));
        }
        let token = AreaId(self.next_id());
        self.branches.get_mut(&it.branch).expect("it was found").areas.push((token, BTreeMap::new()));
        Source::Staged(Some(*open))
    }

    pub(super) fn wait(&mut self, id: SubmissionId, row: CommitRequest) -> Option<Effect> {
        let branch = self.branches.get_mut(&row.branch).expect("the branch is there");
        branch.queue.push(id);
        let due = Effect::CommitDue { branch: row.branch.clone(), request: id };
        let is_due = branch.queue.len() == 1;
        self.requests.insert(id, Request { row, files: BTreeSet::new() });
        is_due.then_some(due)
    }

    pub(super) fn note_files(&mut self, it: &NoteFiles) -> Result<Applied, Refusal> {
        if let Some(answer) = self.answer(it.request)? {
            return Ok(answer);
        }
        let files = &mut self.requests.get_mut(&it.request).expect("it was found").files;
        for address in &it.addresses {
            files.insert(address.clone());
            self.garbage.remove(address);
        }
        Ok(answered(Outcome::Noted))
    }

    /// The answer for a request that is over.
    fn answer(&self, id: SubmissionId) -> Result<Option<Applied>, Refusal> {
        let request = self.requests.get(&id).ok_or(Refusal::RequestUnknown { request: id })?;
        Ok(match request.row.state.clone() {
            CommitState::InProgress => None,
            CommitState::Committed(commit) => Some(answered(Outcome::Committed { commit })),
            CommitState::Aborted(reason) => Some(answered(Outcome::Aborted { reason })),
        })
    }

    pub(super) fn perform(&mut self, it: &Perform) -> Result<Applied, Refusal> {
        let id = it.commit.request;
        if let Some(answer) = self.answer(id)? {
            return Ok(answer);
        }
        let row = self.requests[&id].row.clone();
        let branch = &self.branches[&row.branch];
        if branch.queue[0] != id || branch.head != it.commit.parent || row.branch != it.commit.branch {
            return Err(Refusal::NotItsTurn { request: id });
        }
        if row.if_parent.is_some() && row.if_parent != branch.head {
            let reason = format!("the head of branch `{}` is not the parent that was asked for", row.branch);
            return self.abort(&Abort { request: id, reason });
        }
        let parent = branch.head.map(|head| self.commits[&head].1.clone()).unwrap_or_default();
        let (content, conflicts) = self.naive_fold(&row, parent.clone());
        assert_eq!(it.commit.metarange, metarange_of(&content), "a commit holds the naive fold");
        assert_eq!(it.commit.counts, counts_of(&content, &parent, conflicts));

        self.commits.insert(it.id, (it.commit.clone(), content));
        let request = self.requests.get_mut(&id).expect("it was found");
        request.row.state = CommitState::Committed(it.id);
        for file in std::mem::take(&mut request.files) {
            self.garbage.remove(&file);
        }
        let mut effects = vec![Effect::CommitEnded { request: id }];
        effects.extend(self.drop_committed(&row));
        let branch = self.branches.get_mut(&row.branch).expect("it was found");
        branch.head = Some(it.id);
        branch.commits += 1;
        effects.extend(leave(branch, &row.branch, id));
        if let Source::Submission(submission) = row.source {
            effects.push(self.end_with_commit(submission));
        }
        Ok(Applied { outcome: Outcome::Committed { commit: it.id }, effects })
    }

    /// What the commit of a request should hold, and how many outputs are outdone.
    fn naive_fold(&self, row: &CommitRequest, parent: Content) -> (Content, u64) {
        let mut content = parent;
        match row.source {
            Source::Rollback(to) => (self.commits[&to].1.clone(), 0),
            Source::Staged(through) => {
                let areas = &self.branches[&row.branch].areas;
                for (_, area) in areas.iter().filter(|(area, _)| Some(*area) <= through) {
                    content.extend(area.iter().filter_map(|(path, it)| Some((path.clone(), it.clone()?))));
                    content.retain(|path, _| area.get(path).is_none_or(Option::is_some));
                }
                (content, 0)
            }
            Source::Submission(id) => {
                let handed = &self.submissions[&id];
                match handed.rule().mode {
                    OutputMode::Append => {}
                    OutputMode::Replace(prefix) => content.retain(|path, _| !path.starts_with(&prefix)),
                    OutputMode::Exact => content.clear(),
                }
                let outputs = handed.outputs();
                let count = outputs.len();
                let by_path: Content = outputs.into_iter().collect();
                let conflicts = (count - by_path.len()) as u64;
                content.extend(by_path);
                (content, conflicts)
            }
        }
    }

    /// Leaves what a commit took to the sweep.
    fn drop_committed(&mut self, row: &CommitRequest) -> Option<Effect> {
        match row.source {
            Source::Rollback(_) => return None,
            Source::Staged(through) => {
                let areas = &mut self.branches.get_mut(&row.branch).expect("it was found").areas;
                let (taken, kept): (Vec<_>, Vec<_>) =
                    std::mem::take(areas).into_iter().partition(|(area, _)| Some(*area) <= through);
                *areas = kept;
                for (nth, (area, entries)) in taken.iter().enumerate() {
                    let is_outdone =
                        |path: &String| taken[nth + 1..].iter().any(|(_, newer)| newer.contains_key(path));
                    let outdone = entries.iter().filter(|(path, _)| is_outdone(path));
                    let addresses = outdone.filter_map(|(_, entry)| Some(entry.as_ref()?.address.clone()));
                    self.dropped.insert(*area, addresses.collect());
                }
                taken.first()?;
            }
            Source::Submission(id) => {
                let outputs = self.submissions[&id].outputs();
                let kept: Content = outputs.iter().cloned().collect();
                let is_kept = |address: &String| kept.values().any(|entry| entry.address == *address);
                let addresses = outputs.into_iter().map(|(_, entry)| entry.address);
                self.dropped.insert(AreaId(id), addresses.filter(|address| !is_kept(address)).collect());
                self.submissions.get_mut(&id).expect("it was found").is_dropped = true;
            }
        }
        Some(Effect::AreasDropped)
    }

    pub(super) fn abort(&mut self, it: &Abort) -> Result<Applied, Refusal> {
        if let Some(answer) = self.answer(it.request)? {
            return Ok(answer);
        }
        let mut reason = String::new();
        for character in it.reason.chars() {
            if reason.len() + character.len_utf8() > ABORT_REASON_BYTES_MAX {
                break;
            }
            reason.push(character);
        }
        let row = self.requests[&it.request].row.clone();
        self.give_up(it.request, reason.clone());
        let mut effects = vec![Effect::CommitEnded { request: it.request }];
        let branch = self.branches.get_mut(&row.branch).expect("a request in progress has its branch");
        effects.extend(leave(branch, &row.branch, it.request));
        if let Source::Submission(submission) = row.source {
            effects.push(self.end_with_commit(submission));
        }
        Ok(Applied { outcome: Outcome::Aborted { reason }, effects })
    }

    pub(super) fn give_up(&mut self, id: SubmissionId, reason: String) {
        let request = self.requests.get_mut(&id).expect("what is given up is there");
        request.row.state = CommitState::Aborted(reason);
        self.garbage.extend(std::mem::take(&mut request.files));
    }

    /// The newest area that a request commits.
    pub(super) fn through(&self, id: SubmissionId) -> Option<AreaId> {
        match self.requests[&id].row.source {
            Source::Staged(through) => through,
            Source::Submission(_) | Source::Rollback(_) => None,
        }
    }

    pub(super) fn submission_of(&self, id: SubmissionId) -> Option<SubmissionId> {
        match self.requests[&id].row.source {
            Source::Submission(submission) => Some(submission),
            Source::Staged(_) | Source::Rollback(_) => None,
        }
    }
}

/// Takes a request out of a queue; the next one may be due then.
pub(super) fn leave(branch: &mut Branch, name: &str, id: SubmissionId) -> Option<Effect> {
    let was_first = branch.queue[0] == id;
    branch.queue.retain(|request| *request != id);
    let next = branch.queue.first().filter(|_| was_first)?;
    Some(Effect::CommitDue { branch: name.to_owned(), request: *next })
}
