//! Staging: addresses for uploads, and entries put into the newest area.
//!
//! Invariants
//! - A put changes the newest area only. One that names an older area is refused with the newest one's token.
//! - A condition is decided here, in the order of the log, on what the areas hold; where they hold nothing of a path, on what
//!   the leader looked up in the head, which must still be the head.
//! - An address is linked once. What is granted and not linked has its bit unset in its grant's row.

use super::entries::{Digest, ObjectEntry, problem_of_key, problem_of_path};
use super::state::{AreaId, Branch, BranchesState, StagedRow, put_garbage, staged_key};
use crate::entry::{Applied, Outcome, Refusal};
use crate::ids::SubmissionId;
use crate::limits::{
    ADDRESSES_PER_GRANT_MAX, PATHS_BYTES_PER_STAGE_MAX, PATHS_PER_STAGE_MAX, STAGED_ENTRIES_MAX,
};
use crate::rows;
use crate::tables::{Table, Tables};
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// See [`Command::Grant`](crate::entry::Command::Grant).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Grant {
    /// How many addresses.
    #[n(0)]
    pub addresses: u32,
}

/// The row of a grant.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct GrantRow {
    /// When it was granted.
    #[n(0)]
    pub at: At,
    /// How many addresses.
    #[n(1)]
    pub addresses: u32,
    /// Which of them are linked, a bit for each.
    #[n(2)]
    pub linked: ByteVec,
}

/// An address of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Granted {
    /// The grant.
    pub grant: SubmissionId,
    /// The how-manieth address.
    pub nth: u32,
}

impl Granted {
    /// The address in the object store.
    pub fn address(self) -> String {
        format!("staged/{:016x}/{}", self.grant.as_u64(), self.nth)
    }

    /// The granted address that this text is.
    pub fn parse(address: &str) -> Option<Granted> {
        let (grant, nth) = address.strip_prefix("staged/")?.split_once('/')?;
        let grant = SubmissionId::from_u64(u64::from_str_radix(grant, 16).ok()?)?;
        let granted = Granted { grant, nth: nth.parse().ok()? };
        // Each address has one spelling.
        (granted.address() == address).then_some(granted)
    }
}

/// See [`Command::Stage`](crate::entry::Command::Stage).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Stage {
    /// The branch.
    #[n(0)]
    pub branch: String,
    /// The area that is meant; none for the newest, whichever that is.
    #[n(1)]
    pub token: Option<AreaId>,
    /// What is put and removed, all of it or nothing.
    #[n(2)]
    pub changes: Vec<StageChange>,
    /// The head in which the leader looked up what the areas may not hold.
    #[n(3)]
    pub head: Option<Digest>,
    /// The same key within the dedup window is answered the same.
    #[n(4)]
    pub idempotency_key: Option<String>,
}

/// One path that is put or removed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StageChange {
    /// The path.
    #[n(0)]
    pub path: String,
    /// What it leads to; none removes it.
    #[n(1)]
    pub entry: Option<ObjectEntry>,
    /// What must hold of the path before.
    #[n(2)]
    pub condition: Condition,
    /// What the head holds under the path, looked up if there is a condition.
    #[n(3)]
    pub in_head: Option<Digest>,
}

/// What must hold of a path before it is put or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Condition {
    /// Nothing.
    #[n(0)]
    None,
    /// It leads nowhere.
    #[n(1)]
    Absent,
    /// It leads somewhere.
    #[n(2)]
    Present,
    /// It leads to an object with this digest.
    #[n(3)]
    Is(#[n(0)] Digest),
}

impl Condition {
    /// Whether it holds for a path that leads to an object with this digest, or nowhere.
    pub fn holds(self, found: Option<Digest>) -> bool {
        match self {
            Condition::None => true,
            Condition::Absent => found.is_none(),
            Condition::Present => found.is_some(),
            Condition::Is(digest) => found == Some(digest),
        }
    }
}

impl Stage {
    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let bytes: usize = self.changes.iter().map(|change| change.path.len()).sum();
        if self.changes.is_empty() {
            return Some("name at least one path".into());
        }
        if self.changes.len() > PATHS_PER_STAGE_MAX || bytes > PATHS_BYTES_PER_STAGE_MAX {
            return Some(format!(
                "put at most {PATHS_PER_STAGE_MAX} paths of {PATHS_BYTES_PER_STAGE_MAX} bytes in all at a time"
            ));
        }
        let mut paths = BTreeSet::new();
        problem_of_key(self.idempotency_key.as_deref()).or_else(|| {
            self.changes.iter().find_map(|change| {
                let entry_problem = || change.entry.as_ref().and_then(ObjectEntry::problem);
                let twice = || {
                    (!paths.insert(&change.path))
                        .then(|| format!("the path {:?} is named twice", change.path))
                };
                problem_of_path(&change.path).or_else(entry_problem).or_else(twice)
            })
        })
    }

    /// What is asked, for telling a repeated request from another: not what the leader looked up for it, nor the area and the
    /// addresses, which another try of the same request may name anew.
    pub fn asked(&self) -> impl Encode<()> + use<'_> {
        let said_of = |entry: &'_ ObjectEntry| {
            (entry.size, entry.sha256, entry.content_type.clone(), entry.metadata.clone())
        };
        let changes: Vec<_> =
            self.changes.iter().map(|it| (&it.path, it.entry.as_ref().map(said_of), &it.condition)).collect();
        (&self.branch, changes)
    }
}

impl Grant {
    /// The limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let is_wrong = self.addresses == 0 || self.addresses > ADDRESSES_PER_GRANT_MAX;
        is_wrong.then(|| format!("ask for 1 to {ADDRESSES_PER_GRANT_MAX} addresses at a time"))
    }
}

/// Grants addresses for uploads. Nothing can be refused any more.
pub(crate) fn grant(tables: &mut dyn Tables, at: At, it: &Grant, id: SubmissionId) -> Applied {
    let linked = ByteVec::from(vec![0; it.addresses.div_ceil(8) as usize]);
    let row = GrantRow { at, addresses: it.addresses, linked };
    tables.put(Table::Grants, &id.key(), rows::encode(&row));
    Applied { outcome: Outcome::Granted { grant: id, addresses: it.addresses }, effects: Vec::new() }
}

/// Why a put cannot be carried out.
pub(crate) fn refusal(state: &BranchesState, tables: &dyn Tables, it: &Stage) -> Option<Refusal> {
    let Some(branch) = state.get(&it.branch) else {
        return Some(Refusal::BranchUnknown { branch: it.branch.clone() });
    };
    if it.token.is_some_and(|token| token != branch.open) {
        let (branch, newest) = (it.branch.clone(), branch.open);
        return Some(Refusal::TokenStale { branch, newest });
    }
    if branch.staged + it.changes.len() as u64 > STAGED_ENTRIES_MAX {
        let problem =
            format!("branch `{}` has {STAGED_ENTRIES_MAX} entries staged; commit them first", it.branch);
        return Some(Refusal::Malformed { problem });
    }
    it.changes
        .iter()
        .find_map(|change| {
            if change.condition == Condition::None {
                return None;
            }
            let found = match staged_in(branch, tables, &change.path) {
                Some(staged) => staged.entry.map(|entry| entry.sha256),
                None if branch.head != it.head => {
                    return Some(Refusal::HeadMoved { branch: it.branch.clone() });
                }
                None => change.in_head,
            };
            let path = || change.path.clone();
            (!change.condition.holds(found)).then(|| Refusal::ConditionFailed { path: path(), found })
        })
        .or_else(|| refusal_of_addresses(tables, it))
}

/// What the newest area that has a path says of it.
pub fn staged_in(branch: &Branch, tables: &dyn Tables, path: &str) -> Option<StagedRow> {
    branch.areas().find_map(|area| {
        let key = staged_key(area, path, None);
        tables.get(Table::Staged, &key).map(|row| rows::decode(Table::Staged, &key, &row))
    })
}

fn refusal_of_addresses(tables: &dyn Tables, it: &Stage) -> Option<Refusal> {
    let mut seen = BTreeSet::new();
    it.changes.iter().filter_map(|change| change.entry.as_ref()).find_map(|entry| {
        let granted = Granted::parse(&entry.address).filter(|granted| {
            let row = grant_row(tables, granted.grant);
            row.is_some_and(|row| granted.nth < row.addresses && !is_linked(&row, granted.nth))
        });
        let is_free = granted.is_some_and(|granted| seen.insert(granted));
        (!is_free).then(|| Refusal::AddressNotGranted { address: entry.address.clone() })
    })
}

pub(super) fn grant_row(tables: &dyn Tables, grant: SubmissionId) -> Option<GrantRow> {
    let row = tables.get(Table::Grants, &grant.key())?;
    Some(rows::decode(Table::Grants, &grant.key(), &row))
}

pub(super) fn is_linked(row: &GrantRow, nth: u32) -> bool {
    row.linked[nth as usize / 8] & (1 << (nth % 8)) != 0
}

/// Puts entries and tombstones into the newest area. Nothing can be refused any more.
pub(crate) fn stage(state: &mut BranchesState, tables: &mut dyn Tables, it: &Stage) -> Applied {
    link(tables, it.changes.iter().filter_map(|change| change.entry.as_ref()));
    let branch = state.change(&it.branch);
    for change in &it.changes {
        let key = staged_key(branch.open, &change.path, None);
        match tables.get(Table::Staged, &key) {
            None => branch.staged += 1,
            Some(row) => {
                let before: StagedRow = rows::decode(Table::Staged, &key, &row);
                if let Some(entry) = before.entry {
                    put_garbage(tables, &entry.address);
                }
            }
        }
        tables.put(Table::Staged, &key, rows::encode(&StagedRow { entry: change.entry.clone() }));
    }
    Applied { outcome: Outcome::Staged { token: branch.open }, effects: Vec::new() }
}

/// Marks addresses as linked; a grant of which all are is over.
fn link<'a>(tables: &mut dyn Tables, entries: impl Iterator<Item = &'a ObjectEntry>) {
    let mut grants: BTreeMap<SubmissionId, GrantRow> = BTreeMap::new();
    for entry in entries {
        let granted = Granted::parse(&entry.address).expect("what is linked was found to be granted");
        let row = grants.entry(granted.grant).or_insert_with(|| {
            grant_row(tables, granted.grant).expect("what is linked was found to be granted")
        });
        row.linked[granted.nth as usize / 8] |= 1 << (granted.nth % 8);
    }
    for (id, row) in grants {
        if (0..row.addresses).all(|nth| is_linked(&row, nth)) {
            tables.delete(Table::Grants, &id.key());
        } else {
            tables.put(Table::Grants, &id.key(), rows::encode(&row));
        }
    }
}
