//! The verbs on branches: create, list, show, reset, delete, and staging: token, put, remove.

use super::Service;
use super::batch::{page_limit, unexpected};
use crate::metrics::BranchFigures;
use std::collections::VecDeque;
use tokio::sync::Mutex;
use windlass_api::branches::{
    BranchInfo, BranchListQuery, BranchPage, CreateBranchRequest, StageRequest, StagedChange, StagedResponse,
    TokenRequest, TokenResponse,
};
use windlass_api::json::time_text;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::entries::{Digest, ObjectEntry};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::staging::{Condition, Grant, Granted, Stage, StageChange};
use windlass_core::branches::state::{AreaId, Branch};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::limits::ADDRESSES_PER_GRANT_MAX;

/// How often a conditional put is decided anew when commits come in between: each of them needs a whole commit to fail.
const CONDITIONS_TRIED_MAX: usize = 20;

/// Addresses that are granted at a time for uploads through the server.
const ADDRESSES_AT_ONCE: u32 = 256;

/// Addresses that were granted for uploads through this server and not used yet.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<VecDeque<String>>);

impl Service {
    /// Creates a branch.
    pub async fn create_branch(
        &self,
        request: CreateBranchRequest,
        idempotency_key: Option<String>,
    ) -> Result<BranchInfo, Problem> {
        let from = match request.from.as_deref() {
            None => None,
            Some(from) => self.commit_named(from).await?,
        };
        let name = request.branch;
        let create = CreateBranch { name: name.clone(), from, idempotency_key };
        match self.propose(Command::CreateBranch(create)).await? {
            Outcome::BranchSet { .. } => self.branch(&name),
            other => Err(unexpected(&other)),
        }
    }

    /// A branch as this node knows it.
    pub fn branch(&self, name: &str) -> Result<BranchInfo, Problem> {
        let branch = self.order().read(|machine| machine.branches().get(name).cloned());
        let branch = branch.ok_or_else(|| branch_unknown(name))?;
        Ok(self.branch_info(name, branch))
    }

    fn branch_info(&self, name: &str, branch: Branch) -> BranchInfo {
        let next = branch.queue.first().map(|waiting| waiting.request);
        BranchInfo {
            branch: name.to_owned(),
            head: branch.head,
            staged: branch.staged,
            sealed_areas: branch.sealed.len(),
            token: branch.open.to_string(),
            waiting: branch.queue.iter().map(|waiting| waiting.request).collect(),
            commits: branch.commits,
            created_at: time_text(branch.created_at),
            trouble: next.and_then(|request| self.commit_desk().trouble(request)),
        }
    }

    /// A page of branches as this node knows them.
    pub fn branch_page(&self, query: &BranchListQuery) -> Result<BranchPage, Problem> {
        let limit = page_limit(query.limit)?;
        let after = query.cursor.as_deref().unwrap_or("");
        let mut found: Vec<(String, Branch)> = self.order().read(|machine| {
            let some = machine.branches().after(after).take(limit + 1);
            some.map(|(name, branch)| (name.to_owned(), branch.clone())).collect()
        });
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(|(name, _)| name.clone());
        Ok(BranchPage {
            items: found.into_iter().map(|(name, branch)| self.branch_info(&name, branch)).collect(),
            next,
        })
    }

    /// What is known of all branches.
    pub fn branch_figures(&self) -> BranchFigures {
        let range_reads = self.ranges().reads();
        self.order().read(|machine| {
            let state = machine.branches();
            BranchFigures {
                branches: state.len(),
                commits_waiting: state.iter().map(|(_, branch)| branch.queue.len()).sum(),
                areas_dropped: state.dropped().len(),
                range_reads,
            }
        })
    }

    /// Deletes a branch.
    pub async fn delete_branch(&self, name: String) -> Result<(), Problem> {
        match self.propose(Command::DeleteBranch(NameBranch { name })).await? {
            Outcome::BranchDeleted => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Throws away what is staged and no commit has taken.
    pub async fn reset_branch(&self, name: String) -> Result<BranchInfo, Problem> {
        match self.propose(Command::ResetBranch(NameBranch { name: name.clone() })).await? {
            Outcome::BranchSet { .. } => self.branch(&name),
            other => Err(unexpected(&other)),
        }
    }

    /// The newest staging token, and addresses to upload to.
    pub async fn staging_token(&self, name: &str, request: &TokenRequest) -> Result<TokenResponse, Problem> {
        self.freshen(None).await?;
        self.branch(name)?;
        let addresses = match request.addresses {
            0 => Vec::new(),
            count => self.grant(count).await?,
        };
        // Granting takes a moment, in which a commit may have opened the next area.
        let token = self.branch(name)?.token;
        Ok(TokenResponse { token, addresses, objects: self.objects().address().to_owned() })
    }

    async fn grant(&self, addresses: u32) -> Result<Vec<String>, Problem> {
        if addresses > ADDRESSES_PER_GRANT_MAX {
            let detail = format!("ask for at most {ADDRESSES_PER_GRANT_MAX} addresses at a time");
            return Err(Problem::new(ProblemCode::InvalidRequest, detail));
        }
        match self.propose(Command::Grant(Grant { addresses })).await? {
            Outcome::Granted { grant, addresses } => {
                Ok((0..addresses).map(|nth| Granted { grant, nth }.address()).collect())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// An address for one upload through this server. One that is not used in the end stays noted as granted.
    pub async fn address_for_upload(&self) -> Result<String, Problem> {
        let mut addresses = self.inner.addresses.0.lock().await;
        if addresses.is_empty() {
            addresses.extend(self.grant(ADDRESSES_AT_ONCE).await?);
        }
        Ok(addresses.pop_front().expect("some were granted just now"))
    }

    /// Stages entries that were uploaded, and tombstones.
    pub async fn stage_entries(
        &self,
        branch: String,
        request: StageRequest,
        idempotency_key: Option<String>,
    ) -> Result<StagedResponse, Problem> {
        let token = request.token.as_deref().map(str::parse::<AreaId>).transpose();
        let token = token.map_err(|error| Problem::new(ProblemCode::InvalidRequest, error.to_string()))?;
        let changes: Vec<StageChange> =
            request.changes.into_iter().map(stage_change_of).collect::<Result<_, _>>()?;
        for entry in changes.iter().filter_map(|change| change.entry.as_ref()) {
            self.check_uploaded(entry).await?;
        }
        let token = self.stage(branch, token, changes, idempotency_key).await?;
        Ok(StagedResponse { token: token.to_string(), sha256: None, size: None })
    }

    /// Makes sure that an object is where it is said to be, with the size that is said of it.
    async fn check_uploaded(&self, entry: &ObjectEntry) -> Result<(), Problem> {
        let invalid = |detail: String| Problem::new(ProblemCode::InvalidRequest, detail);
        let key = windlass_store::objects::ObjectKey::parse(&entry.address);
        let key = key.map_err(|error| invalid(error.to_string()))?;
        let found = self.objects().head(&key).await.map_err(|fault| super::problem_of_store(&fault))?;
        match found {
            Some(size) if size == entry.size => Ok(()),
            Some(size) => {
                let said = entry.size;
                Err(invalid(format!(
                    "the object at {} has {size} bytes, not {said}; upload it whole",
                    entry.address
                )))
            }
            None => {
                Err(invalid(format!("there is no object at {}; upload it before you link it", entry.address)))
            }
        }
    }

    /// Stages changes; conditions are decided by what is staged and, where nothing is, by the head.
    pub async fn stage(
        &self,
        branch: String,
        token: Option<AreaId>,
        changes: Vec<StageChange>,
        idempotency_key: Option<String>,
    ) -> Result<AreaId, Problem> {
        let mut stage = Stage { branch, token, changes, head: None, idempotency_key };
        if let Some(problem) = stage.problem() {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        for _ in 0..CONDITIONS_TRIED_MAX {
            self.look_up_conditions(&mut stage).await?;
            match self.propose_raw(Command::Stage(stage.clone())).await? {
                Outcome::Staged { token } => return Ok(token),
                Outcome::Refused(Refusal::HeadMoved { .. }) => {}
                Outcome::Refused(refusal) => return Err(super::problem_of_refusal(&refusal)),
                other => return Err(unexpected(&other)),
            }
        }
        let detail =
            "the branch is committed to all the time, so that the condition could not be decided; try again";
        Err(Problem::new(ProblemCode::Busy, detail))
    }

    /// Notes what the head holds under the paths that have conditions.
    async fn look_up_conditions(&self, stage: &mut Stage) -> Result<(), Problem> {
        if stage.changes.iter().all(|change| change.condition == Condition::None) {
            return Ok(());
        }
        let head = self.order().read(|machine| Some(machine.branches().get(&stage.branch)?.head));
        stage.head = head.ok_or_else(|| branch_unknown(&stage.branch))?;
        let metarange = self.metarange_of(stage.head);
        for change in &mut stage.changes {
            change.in_head = match metarange {
                Some(metarange) if change.condition != Condition::None => {
                    let found = self.ranges().get(metarange, &change.path).await;
                    let found = found.map_err(|fault| super::problem_of_store(&fault))?;
                    found.map(|entry| entry.sha256)
                }
                Some(_) | None => None,
            };
        }
        Ok(())
    }
}

fn stage_change_of(change: StagedChange) -> Result<StageChange, Problem> {
    let invalid = |detail: &str| Problem::new(ProblemCode::InvalidRequest, detail);
    let condition = condition_of(change.if_match.as_deref(), change.if_none_match.as_deref())?;
    let entry = match (change.remove, change.address, change.size, change.sha256) {
        (true, None, None, None) => None,
        (true, ..) => return Err(invalid("`remove` goes without `address`, `size` and `sha256`")),
        (false, Some(address), Some(size), Some(sha256)) => {
            let (content_type, metadata) = (change.content_type, change.metadata);
            Some(ObjectEntry { address, size, sha256, content_type, metadata, made_by: None })
        }
        (false, ..) => return Err(invalid("an entry has `address`, `size` and `sha256`, or `remove`")),
    };
    Ok(StageChange { path: change.path, entry, condition, in_head: None })
}

/// The condition in `If-Match` and `If-None-Match`, whose values may be in double quotes, as ETags are.
pub fn condition_of(if_match: Option<&str>, if_none_match: Option<&str>) -> Result<Condition, Problem> {
    let invalid = |detail: &str| Problem::new(ProblemCode::InvalidRequest, detail);
    let unquoted = |text: &str| text.trim().trim_matches('"').to_owned();
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (Some(text), None) if unquoted(text) == "*" => Ok(Condition::Present),
        (Some(text), None) => match unquoted(text).parse::<Digest>() {
            Ok(digest) => Ok(Condition::Is(digest)),
            Err(error) => Err(invalid(&format!("`If-Match` is `*` or one ETag: {error}"))),
        },
        (None, Some(text)) if unquoted(text) == "*" => Ok(Condition::Absent),
        (None, Some(_)) => {
            Err(invalid("with a write, `If-None-Match` is `*`: only if the path leads nowhere"))
        }
        (Some(_), Some(_)) => Err(invalid("give `If-Match` or `If-None-Match`, not both")),
    }
}

pub(super) fn branch_unknown(name: &str) -> Problem {
    super::problem_of_refusal(&Refusal::BranchUnknown { branch: name.to_owned() })
}
