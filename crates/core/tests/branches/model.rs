//! The naive model of the branches: every area is a map, every commit is all that it holds, and every answer is found by
//! looking at all of them.

mod commits;
mod rows;
mod submissions;

pub(crate) use submissions::Handed;

use crate::generator::Content;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::branches::commits::{Commit, CommitRequest};
use windlass_core::branches::entries::{Digest, ObjectEntry, problem_of_branch_name};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::staging::{Condition, Grant, Stage};
use windlass_core::branches::state::AreaId;
use windlass_core::entry::{Applied, Command, Effect, Entry, Outcome, Refusal};
use windlass_core::ids::{ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::limits::ADDRESSES_PER_GRANT_MAX;
use windlass_core::time::At;

/// All that the branches, and the submissions whose outputs go there, should know.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) epoch: Epoch,
    pub(crate) at: At,
    shard: Shard,
    last_id: Option<SubmissionId>,
    /// Key → what was asked, and the answer.
    pub(crate) replies: BTreeMap<String, (String, Outcome)>,
    /// The newest token of each sender of a request without a key.
    sent: BTreeMap<SenderId, ContinuationToken>,
    pub(crate) branches: BTreeMap<String, Branch>,
    pub(crate) commits: BTreeMap<Digest, (Commit, Content)>,
    pub(crate) requests: BTreeMap<SubmissionId, Request>,
    /// Whether each address of a grant is linked.
    pub(crate) grants: BTreeMap<SubmissionId, Vec<bool>>,
    pub(crate) submissions: BTreeMap<SubmissionId, Handed>,
    /// Areas that are to be swept, and what is garbage then.
    dropped: BTreeMap<AreaId, BTreeSet<String>>,
    pub(crate) garbage: BTreeSet<String>,
}

/// A branch.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    created_at: At,
    pub(crate) head: Option<Digest>,
    /// Oldest first; the last one is open.
    pub(crate) areas: Vec<(AreaId, BTreeMap<String, Option<ObjectEntry>>)>,
    pub(crate) queue: Vec<SubmissionId>,
    commits: u64,
}

/// A request for a commit.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) row: CommitRequest,
    pub(crate) files: BTreeSet<String>,
}

fn answered(outcome: Outcome) -> Applied {
    Applied { outcome, effects: Vec::new() }
}

fn malformed(problem: impl Into<String>) -> Refusal {
    Refusal::Malformed { problem: problem.into() }
}

impl Branch {
    pub(crate) fn open(&self) -> &(AreaId, BTreeMap<String, Option<ObjectEntry>>) {
        self.areas.last().expect("a branch has an open area")
    }

    /// What readers of staged entries see of a path, if an area says something of it.
    pub(crate) fn staged(&self, path: &str) -> Option<&Option<ObjectEntry>> {
        self.areas.iter().rev().find_map(|(_, area)| area.get(path))
    }
}

impl Model {
    /// What applying the entry should give.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Applied {
        let is_lead = matches!(entry.command, Command::Lead(_));
        if entry.epoch < self.epoch || (entry.epoch == self.epoch && is_lead) {
            return Applied::refused(Refusal::Fenced { current: self.epoch });
        }
        self.at = self.at.max(entry.at);
        let applied = match &entry.command {
            Command::Lead(it) => {
                (self.epoch, self.shard) = (entry.epoch, it.shard);
                Ok(answered(Outcome::Led { epoch: entry.epoch }))
            }
            Command::Submit(it) => self.submit(entry, it),
            Command::Complete(it) => self.complete(it),
            Command::Fail(it) => self.fail(it),
            Command::Cancel(it) => self.cancel(it.submission),
            Command::RetryFailed(it) => self.retry_failed(it.submission),
            Command::CreateBranch(it) => self.create(entry, it),
            Command::DeleteBranch(it) => self.delete(entry, it),
            Command::ResetBranch(it) => self.reset(entry, it),
            Command::Grant(it) => self.grant(it),
            Command::Stage(it) => self.stage(entry, it),
            Command::Announce(it) => self.announce(entry, it),
            Command::NoteFiles(it) => self.note_files(it),
            Command::Perform(it) => self.perform(it),
            Command::Abort(it) => self.abort(it),
            Command::Sweep => Ok(self.sweep()),
            other => panic!("this room does not know {other:?}"),
        };
        applied.unwrap_or_else(Applied::refused)
    }

    fn next_id(&mut self) -> SubmissionId {
        *self.last_id.insert(SubmissionId::next(self.last_id, self.at, self.shard))
    }

    /// Carries a request out, unless it was before.
    fn once(
        &mut self,
        entry: &Entry,
        key: Option<&String>,
        asked: String,
        carry_out: impl FnOnce(&mut Model) -> Result<Applied, Refusal>,
    ) -> Result<Applied, Refusal> {
        if key.is_none() && self.sent.get(&entry.sender) >= Some(&entry.token) {
            return Err(Refusal::Repeated);
        }
        if let Some((before, outcome)) = key.and_then(|key| self.replies.get(key)) {
            let is_same = *before == asked;
            return is_same.then(|| answered(outcome.clone())).ok_or(Refusal::IdempotencyKeyReused);
        }
        let applied = carry_out(self)?;
        match key.cloned() {
            Some(key) => drop(self.replies.insert(key, (asked, applied.outcome.clone()))),
            None => drop(self.sent.insert(entry.sender, entry.token)),
        }
        Ok(applied)
    }

    fn branch(&mut self, name: &str) -> Result<&mut Branch, Refusal> {
        self.branches.get_mut(name).ok_or_else(|| Refusal::BranchUnknown { branch: name.to_owned() })
    }

    fn create(&mut self, entry: &Entry, it: &CreateBranch) -> Result<Applied, Refusal> {
        let asked = format!("create {:?} {:?}", it.name, it.from);
        self.once(entry, it.idempotency_key.as_ref(), asked, |model| {
            if let Some(problem) = problem_of_branch_name(&it.name) {
                return Err(malformed(problem));
            }
            if model.branches.contains_key(&it.name) {
                return Err(Refusal::BranchExists { branch: it.name.clone() });
            }
            if let Some(commit) = it.from.filter(|from| !model.commits.contains_key(from)) {
                return Err(Refusal::CommitUnknown { commit });
            }
            let token = AreaId(model.next_id());
            let areas = vec![(token, BTreeMap::new())];
            let branch = Branch { created_at: model.at, head: it.from, areas, queue: Vec::new(), commits: 0 };
            model.branches.insert(it.name.clone(), branch);
            Ok(answered(Outcome::BranchSet { token }))
        })
    }

    fn delete(&mut self, entry: &Entry, it: &NameBranch) -> Result<Applied, Refusal> {
        self.once(entry, None, format!("delete {it:?}"), |model| {
            let branch = model.branch(&it.name)?.clone();
            model.branches.remove(&it.name);
            let mut effects = Vec::new();
            for request in &branch.queue {
                model.give_up(*request, format!("branch `{}` was deleted", it.name));
                effects.push(Effect::CommitEnded { request: *request });
            }
            model.drop_uncommitted(&branch.areas);
            effects.push(Effect::AreasDropped);
            let submissions: Vec<_> = branch.queue.iter().filter_map(|it| model.submission_of(*it)).collect();
            effects.extend(submissions.into_iter().map(|id| model.end_with_commit(id)));
            Ok(Applied { outcome: Outcome::BranchDeleted, effects })
        })
    }

    fn reset(&mut self, entry: &Entry, it: &NameBranch) -> Result<Applied, Refusal> {
        self.once(entry, None, format!("reset {it:?}"), |model| {
            let queue = model.branch(&it.name)?.queue.clone();
            let taken = queue.iter().filter_map(|request| model.through(*request)).max();
            let token = AreaId(model.next_id());
            let branch = model.branch(&it.name)?;
            let (kept, mut gone): (Vec<_>, Vec<_>) =
                std::mem::take(&mut branch.areas).into_iter().partition(|(area, _)| Some(*area) <= taken);
            branch.areas = kept;
            branch.areas.push((token, BTreeMap::new()));
            gone.retain(|(area, _)| *area != token);
            model.drop_uncommitted(&gone);
            Ok(Applied { outcome: Outcome::BranchSet { token }, effects: vec![Effect::AreasDropped] })
        })
    }

    fn grant(&mut self, it: &Grant) -> Result<Applied, Refusal> {
        if it.addresses == 0 || it.addresses > ADDRESSES_PER_GRANT_MAX {
            return Err(malformed(format!("ask for 1 to {ADDRESSES_PER_GRANT_MAX} addresses at a time")));
        }
        let grant = self.next_id();
        self.grants.insert(grant, vec![false; it.addresses as usize]);
        Ok(answered(Outcome::Granted { grant, addresses: it.addresses }))
    }

    fn stage(&mut self, entry: &Entry, it: &Stage) -> Result<Applied, Refusal> {
        if let Some(problem) = it.problem() {
            return Err(malformed(problem));
        }
        let changes: Vec<_> = it.changes.iter().map(|it| (&it.path, &it.entry, &it.condition)).collect();
        let asked = format!("stage {:?} {changes:?}", it.branch);
        self.once(entry, it.idempotency_key.as_ref(), asked, |model| {
            model.check_stage(it)?;
            for address in it.changes.iter().filter_map(|change| Some(&change.entry.as_ref()?.address)) {
                let (grant, nth) = granted(address).expect("it was checked");
                model.grants.get_mut(&grant).expect("it was checked")[nth] = true;
            }
            let branch = model.branch(&it.branch)?;
            let (token, area) = branch.areas.last_mut().expect("a branch has an open area");
            let token = *token;
            let mut outdone = Vec::new();
            for change in &it.changes {
                let before = area.insert(change.path.clone(), change.entry.clone());
                outdone.extend(before.flatten().map(|entry| entry.address));
            }
            model.garbage.extend(outdone);
            Ok(answered(Outcome::Staged { token }))
        })
    }

    fn check_stage(&mut self, it: &Stage) -> Result<(), Refusal> {
        let branch = self.branch(&it.branch)?;
        let newest = branch.open().0;
        if it.token.is_some_and(|token| token != newest) {
            return Err(Refusal::TokenStale { branch: it.branch.clone(), newest });
        }
        for change in it.changes.iter().filter(|change| change.condition != Condition::None) {
            let found = match branch.staged(&change.path) {
                Some(staged) => staged.as_ref().map(|entry| entry.sha256),
                None if branch.head == it.head => change.in_head,
                None => return Err(Refusal::HeadMoved { branch: it.branch.clone() }),
            };
            let holds = match change.condition {
                Condition::None => true,
                Condition::Absent => found.is_none(),
                Condition::Present => found.is_some(),
                Condition::Is(digest) => found == Some(digest),
            };
            if !holds {
                return Err(Refusal::ConditionFailed { path: change.path.clone(), found });
            }
        }
        let mut linked = BTreeSet::new();
        for address in it.changes.iter().filter_map(|change| Some(&change.entry.as_ref()?.address)) {
            let is_free = granted(address)
                .and_then(|(grant, nth)| self.grants.get(&grant)?.get(nth))
                .is_some_and(|is_linked| !is_linked);
            if !is_free || !linked.insert(address) {
                return Err(Refusal::AddressNotGranted { address: address.clone() });
            }
        }
        Ok(())
    }

    /// Removes everything that was dropped: the model's areas are small.
    fn sweep(&mut self) -> Applied {
        for addresses in std::mem::take(&mut self.dropped).into_values() {
            self.garbage.extend(addresses);
        }
        answered(Outcome::Swept { areas: 0 })
    }

    fn drop_uncommitted(&mut self, areas: &[(AreaId, BTreeMap<String, Option<ObjectEntry>>)]) {
        for (area, entries) in areas {
            let addresses = entries.values().flatten().map(|entry| entry.address.clone()).collect();
            self.dropped.insert(*area, addresses);
        }
    }
}

/// The grant and the place in it that an address names, however it is spelled.
fn granted(address: &str) -> Option<(SubmissionId, usize)> {
    let parts: Vec<&str> = address.split('/').collect();
    let ["staged", grant, nth] = parts[..] else { return None };
    let number = u64::from_str_radix(grant, 16).ok().filter(|number| format!("{number:016x}") == grant)?;
    let place: usize = nth.parse().ok().filter(|place: &usize| place.to_string() == nth)?;
    Some((SubmissionId::from_u64(number)?, place))
}
