//! The HTTP interface's bodies of branches: outputs that appear all at once.

use crate::json::Consistency;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use windlass_core::batch::submissions::MetaValue;
use windlass_core::branches::entries::Digest;
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// What headers that say something of an object begin with: `x-windlass-meta-NAME: VALUE`.
pub const METADATA_HEADER_PREFIX: &str = "x-windlass-meta-";

/// `POST /v1/branches`: creates a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBranchRequest {
    /// Its name: segments of letters, digits, `.`, `_` and `-`, joined by `/`.
    pub branch: String,
    /// The commit that it begins with, or the branch whose head that is; empty if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BranchInfo {
    /// Its name.
    pub branch: String,
    /// The commit that readers see; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub head: Option<Digest>,
    /// Entries and tombstones in the newest staging area.
    pub staged: u64,
    /// Staging areas that take nothing more and are not committed.
    pub sealed_areas: usize,
    /// The token of the newest staging area.
    pub token: String,
    /// Requests for commits that wait, in the order in which they will be committed.
    #[schema(value_type = Vec<String>)]
    pub waiting: Vec<SubmissionId>,
    /// Commits made on it.
    pub commits: u64,
    /// When it was created (RFC 3339, UTC).
    pub created_at: String,
    /// Why the next commit does not get on, if something is in its way; it is tried again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// `GET /v1/branches`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BranchListQuery {
    /// Where to go on: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of branches, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BranchPage {
    /// The branches.
    pub items: Vec<BranchInfo>,
    /// The cursor of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// `POST /v1/branches/{branch}/token`: a staging token, and addresses to upload to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// How many addresses; none if not given, 1000 at most.
    #[serde(default)]
    pub addresses: u32,
}

/// A staging token, and addresses to upload to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenResponse {
    /// The token of the newest staging area.
    pub token: String,
    /// Keys in the object store, each for one upload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Where the object store is, for those who reach it.
    pub objects: String,
}

/// `POST /v1/branches/{branch}/entries`: stages entries and tombstones, all of them or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StageRequest {
    /// The staging token; refused with the newest one if it is older. Not given, the newest is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What is put and removed.
    pub changes: Vec<StagedChange>,
}

/// One path that is put or removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StagedChange {
    /// The path.
    pub path: String,
    /// Removes the path; then there is no address.
    #[serde(default, skip_serializing_if = "is_false")]
    pub remove: bool,
    /// The address that `token` gave, where the object was uploaded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The object's size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The SHA-256 of its bytes, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub sha256: Option<Digest>,
    /// What kind of bytes they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// What else to say of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Only if the path leads to an object with this SHA-256; `*` for any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// `*`: only if the path leads nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_match: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// What was staged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StagedResponse {
    /// The token of the area that it is in.
    pub token: String,
    /// The SHA-256 of an object that was uploaded through the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub sha256: Option<Digest>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EntryInfo {
    /// Its path.
    pub path: String,
    /// The object's size in bytes.
    pub size: u64,
    /// The SHA-256 of its bytes.
    #[schema(value_type = String)]
    pub sha256: Digest,
    /// What kind of bytes they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// What else is said of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The object's key in the object store.
    pub address: String,
    /// The submission whose chunk gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub submission: Option<SubmissionId>,
    /// That chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub chunk: Option<ChunkIndex>,
}

/// Where a branch is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AtQuery {
    /// `head` (if not given), `staged` (with what is staged on top), a commit's id or its first 8 digits or more, or
    /// `submission:ID` (as if that submission were committed now).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// `stale` reads what this node knows, without asking the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// `GET /v1/branches/{branch}/entries`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EntriesQuery {
    /// Only paths that begin so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Paths that have this text behind the prefix are shown as one: what they have in common up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Only paths behind this one: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where to read; see the object's `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// `stale` reads what this node knows, without asking the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// A page of entries, in the order of their paths' bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EntryPage {
    /// The entries.
    pub items: Vec<EntryInfo>,
    /// What paths have in common up to the delimiter, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// The `after` of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The commit that was read; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub commit: Option<Digest>,
}

/// `POST /v1/branches/{branch}/commits`: commits what is staged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitBody {
    /// What to say of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// More of that.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// What must hold before it becomes visible.
    #[serde(default, skip_serializing_if = "VerifyInfo::is_empty")]
    pub verify: VerifyInfo,
    /// Refused if nothing is staged that no commit has taken.
    #[serde(default, skip_serializing_if = "is_false")]
    pub if_changed: bool,
    /// Aborted if its parent is not this commit when its turn comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_parent: Option<String>,
    /// How long to wait for the outcome; 30000 if not given, 300000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// `POST /v1/branches/{branch}/rollback`: a new commit with what an earlier one held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackBody {
    /// The commit's id, or its first 8 digits or more.
    pub to: String,
    /// What to say of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How long to wait for the outcome; 30000 if not given, 300000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What must hold before a commit becomes visible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyInfo {
    /// Rules on counts: `entries >= 0.9 * previous`, `removed <= 100`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Checks by the names that the server's settings give them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<String>,
}

impl VerifyInfo {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.checks.is_empty()
    }
}

/// What became of a request for a commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitOutcome {
    /// The request, by which its outcome can be asked for.
    #[schema(value_type = String)]
    pub request: SubmissionId,
    /// The branch.
    pub branch: String,
    /// `in_progress`, `committed` or `aborted`.
    pub state: CommitProgress,
    /// The commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitInfo>,
    /// Why it was aborted, or why it does not get on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a request for a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitProgress {
    /// It waits for its turn, or is being generated.
    InProgress,
    /// The commit is visible.
    Committed,
    /// The branch stays as it was.
    Aborted,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitInfo {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Digest,
    /// The branch that it was made on.
    pub branch: String,
    /// The one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub parent: Option<Digest>,
    /// The key of its metarange in the object store, a Parquet file that lists its ranges.
    pub metarange: String,
    /// When it was asked for (RFC 3339, UTC).
    pub at: String,
    /// What was said of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// More of that; of a submission's commit the submission's metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, MetaValue>,
    /// What it holds, and what it changed.
    pub counts: CommitCounts,
    /// The submission whose outputs it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub submission: Option<SubmissionId>,
    /// Chunks of the submission that failed and are missing: how many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing_chunks: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<u64>)]
    pub missing: Vec<ChunkIndex>,
    /// The commit whose content it brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub rolled_back_to: Option<Digest>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// What a commit holds, and what it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommitCounts {
    /// Entries.
    pub entries: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Paths that its parent does not have.
    pub added: u64,
    /// Paths that lead to something else.
    pub changed: u64,
    /// Paths that are no more.
    pub removed: u64,
    /// Outputs of chunks whose paths a later chunk gave too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub conflicts: u64,
}

/// `GET /v1/branches/{branch}/commits`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Where to begin: `next` of the page before; the head if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Commits, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitPage {
    /// The commits.
    pub items: Vec<CommitInfo>,
    /// The `from` of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next: Option<Digest>,
}

/// `GET /v1/branches/{branch}/diff`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// What to compare: `head` (if not given), a commit's id, or the name of another branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What to compare it with: `staged` (if not given), `head`, a commit's id, or the name of another branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Only paths that begin so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Only paths behind this one: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many at most; 100 if not given, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Differences, in the order of their paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiffPage {
    /// The differences.
    pub items: Vec<DiffInfo>,
    /// The `after` of the next page; none on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiffInfo {
    /// The path.
    pub path: String,
    /// `added`, `changed` or `removed`.
    pub change: DiffKind,
    /// What it led to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<EntryInfo>,
    /// What it leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EntryInfo>,
}

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// It is new.
    Added,
    /// It leads to something else.
    Changed,
    /// It is no more.
    Removed,
}

/// Where the outputs of a submission go, all at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputInfo {
    /// The branch.
    pub branch: String,
    /// `append` (if not given; entries of the branch stay), `replace:PREFIX` (those under the prefix go) or `exact` (all go).
    #[serde(default = "append")]
    pub mode: String,
    /// When a chunk has failed for good: `abort` (if not given; nothing is committed) or `commit-without`.
    #[serde(default)]
    pub on_chunk_failure: ChunkFailureRule,
    /// What must hold before the outputs become visible.
    #[serde(default, skip_serializing_if = "VerifyInfo::is_empty")]
    pub verify: VerifyInfo,
}

fn append() -> String {
    "append".into()
}

/// What becomes of the commit when a chunk has failed for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChunkFailureRule {
    /// There is none.
    #[default]
    Abort,
    /// It names the chunks that are missing.
    CommitWithout,
}

/// One output of a chunk, for the branch that its submission names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputOfChunk {
    /// Where it appears.
    pub path: String,
    /// Which of the attempt's objects it is: its bytes are at `output_key/N`.
    pub object: u32,
    /// Its size in bytes.
    pub size: u64,
    /// The SHA-256 of its bytes.
    #[schema(value_type = String)]
    pub sha256: Digest,
    /// What kind of bytes they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// What else to say of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}
