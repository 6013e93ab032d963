//! The HTTP verbs of branches, one typed method each.
//!
//! Promises
//! - A put that comes just after a commit has opened the next staging area is put again with the new token, by itself.
//! - Puts, removals and commits carry an idempotency key: a repeated try never does anything twice.

use crate::chance;
use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::objects::ObjectBody;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Method;
use std::collections::BTreeMap;
use std::time::Duration;
use windlass_api::branches::{
    AtQuery, BranchInfo, BranchListQuery, BranchPage, CommitBody, CommitInfo, CommitOutcome, CommitPage,
    CreateBranchRequest, DiffPage, DiffQuery, EntriesQuery, EntryPage, LogQuery, METADATA_HEADER_PREFIX,
    RollbackBody, StageRequest, StagedChange, StagedResponse, TokenRequest, TokenResponse,
};
use windlass_api::json::WaitQuery;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::entries::{problem_of_branch_name, problem_of_path};
use windlass_core::ids::SubmissionId;

/// How long the server waits for a commit if the caller does not say.
const COMMIT_WAIT_MS: u64 = 30_000;

/// A put meets a commit in between so often at most; each time somebody has committed.
const STALE_TOKENS_MAX: usize = 100;

/// A stream that gets on more slowly than this in the mean is taken for stuck.
const STREAM_BYTES_PER_SECOND_MIN: u64 = 64 * 1_024;

/// What to say of an object that is put, and when to put it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutEntry {
    /// What kind of bytes they are.
    pub content_type: String,
    /// What else to say of them: names of letters, digits and `-`, and printable ASCII.
    pub metadata: BTreeMap<String, String>,
    /// Only if the path leads to an object with this SHA-256; `*` for any object.
    pub if_match: Option<String>,
    /// Only if the path leads nowhere.
    pub if_absent: bool,
}

impl Client {
    /// Creates a branch: empty, or with what a commit or another branch holds.
    pub async fn create_branch(&self, branch: &str, from: Option<&str>) -> Result<BranchInfo, ClientError> {
        let request = CreateBranchRequest { branch: branch.into(), from: from.map(Into::into) };
        self.json(keyed(self.call(Method::POST, &["branches"]).json(&request))).await
    }

    /// A page of branches, by name.
    pub async fn branches(&self, query: &BranchListQuery) -> Result<BranchPage, ClientError> {
        self.json(self.call(Method::GET, &["branches"]).query(query)).await
    }

    /// A branch as it is now.
    pub async fn branch(&self, branch: &str) -> Result<BranchInfo, ClientError> {
        self.json(self.branch_call(Method::GET, branch, &[])?).await
    }

    /// Deletes a branch with what is staged on it. Its commits can still be read.
    pub async fn delete_branch(&self, branch: &str) -> Result<(), ClientError> {
        self.bytes(self.branch_call(Method::DELETE, branch, &[])?).await.map(drop)
    }

    /// Throws away what is staged on a branch and no commit has taken.
    pub async fn reset_branch(&self, branch: &str) -> Result<BranchInfo, ClientError> {
        self.json(self.branch_call(Method::POST, branch, &["reset"])?).await
    }

    /// The newest staging token, and so many addresses to upload to.
    pub async fn staging_token(&self, branch: &str, addresses: u32) -> Result<TokenResponse, ClientError> {
        self.json(self.branch_call(Method::POST, branch, &["token"])?.json(&TokenRequest { addresses })).await
    }

    /// Stages entries whose objects were uploaded, and removals: all of them, or none. A token that is not the newest any more
    /// is replaced by the newest.
    pub async fn stage(
        &self,
        branch: &str,
        token: Option<String>,
        changes: Vec<StagedChange>,
    ) -> Result<StagedResponse, ClientError> {
        let (key, mut request) = (chance::random_name(), StageRequest { token, changes });
        for _ in 0..STALE_TOKENS_MAX {
            let call = self.branch_call(Method::POST, branch, &["entries"])?.json(&request);
            match self.json(call.header("idempotency-key", &key).repeatable()).await {
                Err(ClientError::Problem(problem)) if problem.code == ProblemCode::TokenStale => {
                    request.token = problem.newest_token;
                }
                other => return other,
            }
        }
        Err(self.protocol("it named another staging token each time".into()))
    }

    /// Puts bytes under a path of a branch, through the server. They are staged: readers see them after the next commit.
    pub async fn put_entry(
        &self,
        branch: &str,
        path: &str,
        body: Bytes,
        put: &PutEntry,
    ) -> Result<StagedResponse, ClientError> {
        let call = self.object_call(Method::PUT, branch, path)?.bytes(body);
        self.json(keyed(described(call, put)?)).await
    }

    /// The same from a stream of this size. Not repeated, since a stream comes only once.
    pub async fn put_entry_stream<E: std::error::Error + Send + Sync + 'static>(
        &self,
        branch: &str,
        path: &str,
        size: u64,
        stream: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        put: &PutEntry,
    ) -> Result<StagedResponse, ClientError> {
        let call = self.object_call(Method::PUT, branch, path)?.header("content-length", &size.to_string());
        let call = described(call, put)?.waiting(Duration::from_secs(size / STREAM_BYTES_PER_SECOND_MIN));
        let body = self.send_stream(&call, reqwest::Body::wrap_stream(stream)).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.protocol(format!("its answer is not the expected JSON: {error}")))
    }

    /// Stages the removal of a path.
    pub async fn remove_entry(&self, branch: &str, path: &str) -> Result<StagedResponse, ClientError> {
        self.json(keyed(self.object_call(Method::DELETE, branch, path)?)).await
    }

    /// The bytes that a path leads to. `at` says where: see [`AtQuery::at`].
    pub async fn get_entry(&self, branch: &str, path: &str, at: &AtQuery) -> Result<Bytes, ClientError> {
        self.bytes(self.object_call(Method::GET, branch, path)?.query(at).header("accept", "*/*")).await
    }

    /// The same as they arrive.
    pub async fn get_entry_stream(
        &self,
        branch: &str,
        path: &str,
        at: &AtQuery,
    ) -> Result<ObjectBody, ClientError> {
        let call = self.object_call(Method::GET, branch, path)?.query(at).header("accept", "*/*");
        let response = self.open_once(&call).await?;
        Ok(ObjectBody { size: response.content_length(), stream: self.pieces(response).boxed() })
    }

    /// A page of a branch's entries, in the order of their paths' bytes.
    pub async fn entries(&self, branch: &str, query: &EntriesQuery) -> Result<EntryPage, ClientError> {
        self.json(self.branch_call(Method::GET, branch, &["entries"])?.query(query)).await
    }

    /// Commits what is staged, and waits for the outcome as long as the body says.
    pub async fn commit(&self, branch: &str, body: &CommitBody) -> Result<CommitOutcome, ClientError> {
        self.commit_as(branch, body, &chance::random_name()).await
    }

    /// The same under the caller's idempotency key: the same key later gives the same commit.
    pub async fn commit_as(
        &self,
        branch: &str,
        body: &CommitBody,
        key: &str,
    ) -> Result<CommitOutcome, ClientError> {
        let wait = Duration::from_millis(body.wait_ms.unwrap_or(COMMIT_WAIT_MS));
        let call = self.branch_call(Method::POST, branch, &["commits"])?.json(body).waiting(wait);
        self.json(call.header("idempotency-key", key).repeatable()).await
    }

    /// Makes a commit with what an earlier one held, and waits for the outcome.
    pub async fn roll_back(&self, branch: &str, body: &RollbackBody) -> Result<CommitOutcome, ClientError> {
        let wait = Duration::from_millis(body.wait_ms.unwrap_or(COMMIT_WAIT_MS));
        let call = self.branch_call(Method::POST, branch, &["rollback"])?.json(body).waiting(wait);
        self.json(keyed(call)).await
    }

    /// What became of a request for a commit; waits for its end for so long.
    pub async fn commit_outcome(
        &self,
        request: SubmissionId,
        wait: Duration,
    ) -> Result<CommitOutcome, ClientError> {
        let query = WaitQuery { timeout_ms: Some(wait.as_millis() as u64) };
        let call = self.call(Method::GET, &["commit-requests", &request.to_string()]).query(&query);
        self.json(call.waiting(wait)).await
    }

    /// Gives a request for a commit up, if it is not over.
    pub async fn abort_commit(&self, request: SubmissionId) -> Result<CommitOutcome, ClientError> {
        self.json(self.call(Method::DELETE, &["commit-requests", &request.to_string()]).repeatable()).await
    }

    /// A commit, by its id or the beginning of it.
    pub async fn commit_info(&self, commit: &str) -> Result<CommitInfo, ClientError> {
        self.json(self.call(Method::GET, &["commits", commit])).await
    }

    /// The commits that lead to a branch's head, newest first.
    pub async fn commits(&self, branch: &str, query: &LogQuery) -> Result<CommitPage, ClientError> {
        self.json(self.branch_call(Method::GET, branch, &["commits"])?.query(query)).await
    }

    fn branch_call(&self, method: Method, branch: &str, rest: &[&str]) -> Result<Call, ClientError> {
        refuse(problem_of_branch_name(branch))?;
        Ok(self.call(method, &[&["branches", branch], rest].concat()))
    }

    fn object_call(&self, method: Method, branch: &str, path: &str) -> Result<Call, ClientError> {
        refuse(problem_of_path(path))?;
        let rest: Vec<&str> = std::iter::once("objects").chain(path.split('/')).collect();
        self.branch_call(method, branch, &rest)
    }

    /// What differs between two versions, or what is staged.
    pub async fn diff(&self, branch: &str, query: &DiffQuery) -> Result<DiffPage, ClientError> {
        self.json(self.branch_call(Method::GET, branch, &["diff"])?.query(query)).await
    }
}

/// An address cannot carry every text: `..` would lead elsewhere, and line ends would be left out. What the server would
/// refuse is refused before it becomes something else on its way.
pub(crate) fn refuse(problem: Option<String>) -> Result<(), ClientError> {
    problem.map_or(Ok(()), |problem| {
        Err(ClientError::Problem(Problem::new(ProblemCode::InvalidRequest, problem)))
    })
}

fn keyed(call: Call) -> Call {
    call.header("idempotency-key", &chance::random_name()).repeatable()
}

fn described(call: Call, put: &PutEntry) -> Result<Call, ClientError> {
    let mut call = call;
    if !put.content_type.is_empty() {
        call = call.header_checked("content-type", &put.content_type)?;
    }
    for (name, value) in &put.metadata {
        call = call.header_checked(&format!("{METADATA_HEADER_PREFIX}{name}"), value)?;
    }
    if let Some(etag) = &put.if_match {
        call = call.header_checked("if-match", etag)?;
    }
    Ok(if put.if_absent { call.header("if-none-match", "*") } else { call })
}
