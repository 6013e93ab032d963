//! State: the branches in memory, and how they reach the tables. Staged entries, commits and requests for commits are rows
//! only: memory follows the branches and the commits that wait, not what is staged.
//!
//! Invariants
//! - Memory holds what the rows hold once everything is flushed.
//! - An area is the open one of one branch, or sealed in one, or was dropped: one of these, and once. Sealed areas are in the
//!   order in which they were sealed, and older than the open one.
//! - Every commit that waits has a request in progress, and every request in progress waits in one queue, once.

use super::commits::{Commit, CommitRequest, CommitState};
use super::entries::{Digest, ObjectEntry};
use crate::ids::SubmissionId;
use crate::rows;
use crate::tables::{Row, Table, Tables};
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// A staging area; as text it is a staging token. Areas share their numbers with submissions, whose own areas have their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct AreaId(#[n(0)] pub SubmissionId);

impl AreaId {
    /// What the keys of the area's rows begin with.
    pub const fn key(self) -> [u8; 8] {
        self.0.key()
    }
}

impl fmt::Display for AreaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.as_u64())
    }
}

/// Why a text is no staging token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAToken;

impl fmt::Display for NotAToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a staging token has 16 digits of 0 to 9 and a to f, as `token` returned it")
    }
}

impl FromStr for AreaId {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<AreaId, NotAToken> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let number =
            u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16 && text.bytes().all(is_digit));
        number.and_then(SubmissionId::from_u64).map(AreaId).ok_or(NotAToken)
    }
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Branch {
    /// When it was created.
    #[n(0)]
    pub created_at: At,
    /// What readers see; none before the first commit.
    #[n(1)]
    pub head: Option<Digest>,
    /// The newest staging area, which takes what is put.
    #[n(2)]
    pub open: AreaId,
    /// How many entries and tombstones it holds.
    #[n(3)]
    pub staged: u64,
    /// Areas that take nothing more, oldest first: their commits wait, or were aborted, and the next one takes them along.
    #[n(4)]
    pub sealed: Vec<AreaId>,
    /// Commits that were announced and not performed: first come, first committed.
    #[n(6)]
    pub queue: Vec<Waiting>,
    /// How many commits were made on it.
    #[n(5)]
    pub commits: u64,
}

/// A commit that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Waiting {
    /// Its request.
    #[n(0)]
    pub request: SubmissionId,
    /// The newest sealed area of the branch that it commits, with all before it; none if it commits something else.
    #[n(1)]
    pub through: Option<AreaId>,
}

impl Branch {
    /// The staging areas, newest first: the newest that has a path says what it leads to.
    pub fn areas(&self) -> impl Iterator<Item = AreaId> + '_ {
        std::iter::once(self.open).chain(self.sealed.iter().rev().copied())
    }
}

/// A staged entry's row; a tombstone has none.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StagedRow {
    /// What the path leads to.
    #[n(0)]
    pub entry: Option<ObjectEntry>,
}

/// The key of a staged entry: in a submission's area there is one for each chunk that gave the path.
pub fn staged_key(area: AreaId, path: &str, chunk: Option<u64>) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + path.len() + 9);
    key.extend_from_slice(&area.key());
    key.extend_from_slice(path.as_bytes());
    // No path has a zero byte, so that keys are ordered as their paths are.
    key.push(0);
    if let Some(chunk) = chunk {
        key.extend_from_slice(&chunk.to_be_bytes());
    }
    key
}

/// The path in a staged entry's key.
///
/// # Panics
/// If the key is not one that a machine wrote.
pub fn path_of_staged(key: &[u8]) -> &str {
    let path = key[8..].split(|byte| *byte == 0).next().expect("a split has a first part");
    std::str::from_utf8(path).expect("a staged path is text")
}

/// A staged row as it was scanned: its path, and what it says.
///
/// # Panics
/// If the row is not one that a machine wrote.
pub fn staged_of((key, row): &Row) -> (String, Option<ObjectEntry>) {
    let staged: StagedRow = rows::decode(Table::Staged, key, row);
    (path_of_staged(key).to_owned(), staged.entry)
}

/// All branches.
#[derive(Debug, Default)]
pub struct BranchesState {
    branches: BTreeMap<String, Branch>,
    changed: BTreeSet<String>,
    dropped: BTreeSet<AreaId>,
}

impl BranchesState {
    /// Reads the branches.
    pub(crate) fn open(tables: &dyn Tables) -> BranchesState {
        let mut state = BranchesState::default();
        for (key, row) in tables.scan_prefix(Table::Branches, &[]) {
            let branch = rows::decode(Table::Branches, &key, &row);
            state.branches.insert(String::from_utf8(key).expect("a branch's name is text"), branch);
        }
        for (key, _) in tables.scan_prefix(Table::DroppedAreas, &[]) {
            state
                .dropped
                .insert(AreaId(SubmissionId::from_key(&key).expect("an area's row has its id as key")));
        }
        state
    }

    /// A branch.
    pub fn get(&self, name: &str) -> Option<&Branch> {
        self.branches.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &Branch)> {
        self.branches.iter().map(|(name, branch)| (name.as_str(), branch))
    }

    /// Those whose names come after this one.
    pub fn after(&self, name: &str) -> impl Iterator<Item = (&str, &Branch)> {
        let range = (std::ops::Bound::Excluded(name), std::ops::Bound::Unbounded);
        self.branches.range::<str, _>(range).map(|(name, branch)| (name.as_str(), branch))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.branches.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// Areas that nobody reads any more and whose rows are still there.
    pub fn dropped(&self) -> &BTreeSet<AreaId> {
        &self.dropped
    }

    pub(super) fn insert(&mut self, name: &str, branch: Branch) {
        self.branches.insert(name.to_owned(), branch);
        self.changed.insert(name.to_owned());
    }

    pub(super) fn change(&mut self, name: &str) -> &mut Branch {
        if !self.changed.contains(name) {
            self.changed.insert(name.to_owned());
        }
        self.branches.get_mut(name).expect("only a branch that is there is changed")
    }

    pub(super) fn remove(&mut self, tables: &mut dyn Tables, name: &str) -> Branch {
        self.changed.remove(name);
        tables.delete(Table::Branches, name.as_bytes());
        self.branches.remove(name).expect("only a branch that is there is removed")
    }

    /// Leaves an area to the sweep.
    pub(super) fn drop_area(&mut self, tables: &mut dyn Tables, area: AreaId, row: &DroppedRow) {
        tables.put(Table::DroppedAreas, &area.key(), rows::encode(row));
        self.dropped.insert(area);
    }

    pub(super) fn forget_dropped(&mut self, tables: &mut dyn Tables, area: AreaId) {
        tables.delete(Table::DroppedAreas, &area.key());
        self.dropped.remove(&area);
    }

    /// Writes every changed row.
    pub(crate) fn flush(&mut self, tables: &mut dyn Tables) {
        for name in std::mem::take(&mut self.changed) {
            tables.put(Table::Branches, name.as_bytes(), rows::encode(&self.branches[&name]));
        }
    }
}

/// The row of an area that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DroppedRow {
    /// Whether a commit holds its entries; if not, their objects are garbage.
    #[n(0)]
    pub is_committed: bool,
    /// Newer areas that the same commit took, oldest first: what they say of a path outdoes what this one says.
    #[n(1)]
    pub newer: Vec<AreaId>,
    /// The key of the last row that was removed: the next step goes on behind it, and does not walk over what is gone.
    #[n(2)]
    pub swept_to: Option<ByteVec>,
}

/// A commit.
pub fn commit_of(tables: &dyn Tables, id: Digest) -> Option<Commit> {
    let row = tables.get(Table::Commits, id.as_bytes())?;
    Some(rows::decode(Table::Commits, id.as_bytes(), &row))
}

/// A request for a commit.
pub fn request_of(tables: &dyn Tables, id: SubmissionId) -> Option<CommitRequest> {
    let row = tables.get(Table::CommitRequests, &id.key())?;
    Some(rows::decode(Table::CommitRequests, &id.key(), &row))
}

pub(super) fn put_request(tables: &mut dyn Tables, id: SubmissionId, request: &CommitRequest) {
    tables.put(Table::CommitRequests, &id.key(), rows::encode(request));
}

pub(super) fn end_request(tables: &mut dyn Tables, id: SubmissionId, state: CommitState) {
    let mut request = request_of(tables, id).expect("a commit that waits has its request");
    request.state = state;
    put_request(tables, id, &request);
}

/// Notes an object that nothing leads to any more.
pub(super) fn put_garbage(tables: &mut dyn Tables, address: &str) {
    tables.put(Table::Garbage, address.as_bytes(), Vec::new());
}
