//! The verbs on commits: commit, rollback, abort, and what became of a request for one.

use super::Service;
use super::batch::{page_limit, unexpected};
use super::branches::branch_unknown;
use super::outputs::verify_of;
use crate::limits::{WAIT_MS_DEFAULT, WAIT_MS_MAX};
use std::time::Duration;
use windlass_api::branches::{
    CommitBody, CommitCounts, CommitInfo, CommitOutcome, CommitPage, CommitProgress, LogQuery, RollbackBody,
    VerifyInfo,
};
use windlass_api::json::time_text;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::commits::{Abort, Announce, Commit, CommitState, Counts};
use windlass_core::branches::entries::Digest;
use windlass_core::branches::listing::log_of;
use windlass_core::branches::state::{commit_of, request_of};
use windlass_core::branches::verify::Verify;
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::ids::SubmissionId;
use windlass_core::tables::{Table, Tables};
use windlass_store::ranges::FileName;
use windlass_store::steps;

/// So many digits of a commit's id name it, if no other begins so.
const ABBREVIATED_DIGITS_MIN: usize = 8;

impl Service {
    /// Commits what is staged on a branch, and waits for the outcome.
    pub async fn commit(
        &self,
        branch: String,
        body: CommitBody,
        idempotency_key: Option<String>,
    ) -> Result<CommitOutcome, Problem> {
        let if_parent = match body.if_parent.as_deref() {
            None => None,
            Some(parent) => Some(self.commit_meant(parent).await?),
        };
        let verify = self.known_checks(body.verify)?;
        let announce = Announce {
            branch,
            rollback_to: None,
            message: body.message,
            metadata: body.metadata,
            verify,
            if_changed: body.if_changed,
            if_parent,
            idempotency_key,
        };
        self.announce(announce, body.wait_ms).await
    }

    /// Makes a commit with what an earlier one held, and waits for the outcome.
    pub async fn roll_back(
        &self,
        branch: String,
        body: RollbackBody,
        idempotency_key: Option<String>,
    ) -> Result<CommitOutcome, Problem> {
        let to = self.commit_meant(&body.to).await?;
        let message = if body.message.is_empty() { format!("roll back to {to}") } else { body.message };
        let announce = Announce {
            branch,
            rollback_to: Some(to),
            message,
            metadata: Default::default(),
            verify: Verify::default(),
            if_changed: false,
            if_parent: None,
            idempotency_key,
        };
        self.announce(announce, body.wait_ms).await
    }

    /// What must hold before a commit becomes visible, if the server knows every check in it.
    fn known_checks(&self, info: VerifyInfo) -> Result<Verify, Problem> {
        let verify = verify_of(info)?;
        self.check_known(&verify)?;
        Ok(verify)
    }

    /// Refuses checks that the server's settings do not name.
    pub(super) fn check_known(&self, verify: &Verify) -> Result<(), Problem> {
        match verify.checks.iter().find(|name| !self.config().checks.contains_key(*name)) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<&str> = self.config().checks.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let detail = format!("the server's settings name no check `{name}`; they name: {known}");
                Err(Problem::new(ProblemCode::InvalidRequest, detail))
            }
        }
    }

    async fn announce(&self, announce: Announce, wait_ms: Option<u64>) -> Result<CommitOutcome, Problem> {
        if let Some(problem) = announce.problem() {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        steps::pass("announcing");
        let announced = self.propose(Command::Announce(announce)).await?;
        steps::pass("announced");
        match announced {
            Outcome::Announced { request, .. } => self.wait_for_commit(request, wait_ms).await,
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until a request for a commit is over, or the time is up.
    pub async fn wait_for_commit(
        &self,
        request: SubmissionId,
        wait_ms: Option<u64>,
    ) -> Result<CommitOutcome, Problem> {
        let wait = Duration::from_millis(wait_ms.unwrap_or(WAIT_MS_DEFAULT).min(WAIT_MS_MAX));
        // Watching begins before looking, so that an end between the two is not missed.
        let ended = self.commit_desk().watch(request);
        let outcome = self.commit_outcome(request)?;
        if outcome.state == CommitProgress::InProgress {
            tokio::select! {
                _ = ended => {}
                () = tokio::time::sleep(wait) => {}
                () = self.stop().cancelled() => {}
            }
        } else {
            drop(ended);
        }
        self.commit_desk().forget_if_unwatched(request);
        self.commit_outcome(request)
    }

    /// What became of a request for a commit, as this node knows it.
    pub fn commit_outcome(&self, request: SubmissionId) -> Result<CommitOutcome, Problem> {
        let found = self.order().read(|machine| {
            let found = request_of(machine.tables(), request)?;
            let commit = match found.state {
                CommitState::Committed(id) => commit_of(machine.tables(), id).map(|commit| (id, commit)),
                CommitState::InProgress | CommitState::Aborted(_) => None,
            };
            Some((found, commit))
        });
        let unknown = || super::problem_of_refusal(&Refusal::RequestUnknown { request });
        let (found, commit) = found.ok_or_else(unknown)?;
        let (state, reason) = match found.state {
            CommitState::InProgress => (CommitProgress::InProgress, self.commit_desk().trouble(request)),
            CommitState::Committed(_) => (CommitProgress::Committed, None),
            CommitState::Aborted(reason) => (CommitProgress::Aborted, Some(reason)),
        };
        let commit = commit.map(|(id, commit)| commit_info_of(id, commit));
        Ok(CommitOutcome { request, branch: found.branch, state, commit, reason })
    }

    /// Gives a request for a commit up, if it is not over.
    pub async fn abort_commit(&self, request: SubmissionId) -> Result<CommitOutcome, Problem> {
        let reason = "somebody aborted it".to_owned();
        match self.propose(Command::Abort(Abort { request, reason })).await? {
            Outcome::Aborted { .. } | Outcome::Committed { .. } => self.commit_outcome(request),
            other => Err(unexpected(&other)),
        }
    }

    /// A commit, by its id or the beginning of it.
    pub async fn commit_shown(&self, id: &str) -> Result<CommitInfo, Problem> {
        let id = self.commit_by_id(id)?;
        let commit = self.order().read(|machine| commit_of(machine.tables(), id));
        commit.map(|commit| commit_info_of(id, commit)).ok_or_else(|| commit_unknown(&id.to_string()))
    }

    /// The commits that lead to a branch's head, newest first.
    pub fn commit_page(&self, branch: &str, query: &LogQuery) -> Result<CommitPage, Problem> {
        let limit = page_limit(query.limit)?;
        let from = match query.from.as_deref() {
            Some(id) => Some(self.commit_by_id(id)?),
            None => {
                let head = self.order().read(|machine| Some(machine.branches().get(branch)?.head));
                head.ok_or_else(|| branch_unknown(branch))?
            }
        };
        let mut found = self.order().read(|machine| log_of(machine.tables(), from, limit + 1));
        let next = (found.len() > limit).then(|| found.pop().expect("one more than the limit").0);
        Ok(CommitPage {
            items: found.into_iter().map(|(id, commit)| commit_info_of(id, commit)).collect(),
            next,
        })
    }

    /// The commit that a text names: by its id or the beginning of it, or as a branch's head, which may be none yet.
    pub async fn commit_named(&self, text: &str) -> Result<Option<Digest>, Problem> {
        self.freshen(None).await?;
        if let Some(head) = self.order().read(|machine| Some(machine.branches().get(text)?.head)) {
            return Ok(head);
        }
        self.commit_by_id(text).map(Some)
    }

    /// The same, where a branch without a commit will not do.
    async fn commit_meant(&self, text: &str) -> Result<Digest, Problem> {
        let named = self.commit_named(text).await?;
        named.ok_or_else(|| {
            Problem::new(ProblemCode::CommitUnknown, format!("branch `{text}` has no commit yet"))
        })
    }

    /// The commit whose id begins so.
    pub(super) fn commit_by_id(&self, text: &str) -> Result<Digest, Problem> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if !(ABBREVIATED_DIGITS_MIN..=64).contains(&text.len()) || !text.bytes().all(is_digit) {
            let detail = format!(
                "{text:?} names no commit; give its id or at least its first {ABBREVIATED_DIGITS_MIN} digits, or a branch"
            );
            return Err(Problem::new(ProblemCode::CommitUnknown, detail));
        }
        let whole_bytes = text.len() / 2;
        let prefix: Vec<u8> = (0..whole_bytes)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits were looked at"))
            .collect();
        let found: Vec<Digest> = self.order().read(|machine| {
            let rows = machine.tables().scan_prefix(Table::Commits, &prefix);
            let ids = rows.map(|(key, _)| Digest::new(key.try_into().expect("a commit's key is its id")));
            ids.filter(|id| id.to_string().starts_with(text)).take(2).collect()
        });
        match found[..] {
            [id] => Ok(id),
            [] => Err(commit_unknown(text)),
            _ => {
                let detail = format!("several commits have ids that begin with {text}; give more digits");
                Err(Problem::new(ProblemCode::InvalidRequest, detail))
            }
        }
    }

    /// The metarange of a commit.
    pub(super) fn metarange_of(&self, commit: Option<Digest>) -> Option<Digest> {
        let commit = commit?;
        self.order().read(|machine| commit_of(machine.tables(), commit)).map(|commit| commit.metarange)
    }
}

fn commit_unknown(id: &str) -> Problem {
    let detail = format!("no commit has the id {id}; `branches log` lists those of a branch");
    Problem::new(ProblemCode::CommitUnknown, detail)
}

/// A commit as doors show it.
pub fn commit_info_of(id: Digest, commit: Commit) -> CommitInfo {
    let Counts { entries, bytes, added, changed, removed, conflicts } = commit.counts;
    let (missing_chunks, missing) = match commit.missing {
        Some(missing) => (missing.chunks, missing.first),
        None => (0, Vec::new()),
    };
    CommitInfo {
        id,
        branch: commit.branch,
        parent: commit.parent,
        metarange: FileName::Metarange(commit.metarange).to_string(),
        at: time_text(commit.at),
        message: commit.message,
        metadata: commit.metadata,
        counts: CommitCounts { entries, bytes, added, changed, removed, conflicts },
        submission: commit.submission,
        missing_chunks,
        missing,
        rolled_back_to: commit.rolled_back_to,
    }
}
