//! The audit of branches: every invariant of the room, recounted. For tests; it walks all rows.

use super::commits::{CommitRequest, CommitState, Source};
use super::staging::GrantRow;
use super::state::{AreaId, BranchesState, commit_of, request_of};
use crate::ids::SubmissionId;
use crate::machine::Machine;
use crate::rows;
use crate::tables::{Table, Tables};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the branches. Everything must be flushed.
pub(crate) fn check<T: Tables>(machine: &Machine<T>) {
    let (state, tables) = (machine.branches(), machine.tables());
    let reopened = BranchesState::open(tables);
    assert!(state.iter().eq(reopened.iter()), "memory holds what the rows hold");
    assert_eq!(state.dropped(), reopened.dropped(), "memory holds what the rows hold of dropped areas");
    let areas = check_areas(machine);
    check_queues(machine);

    let mut staged: BTreeMap<AreaId, u64> = BTreeMap::new();
    for (key, _) in tables.scan_prefix(Table::Staged, &[]) {
        let area = AreaId(SubmissionId::from_key(&key).expect("a staged row begins with its area"));
        let is_of_submission = tables.get(Table::Abouts, &area.key()).is_some();
        assert!(areas.contains(&area) || is_of_submission, "no staged row is of an area that nobody knows");
        *staged.entry(area).or_default() += 1;
    }
    for (name, branch) in state.iter() {
        let count = staged.get(&branch.open).copied().unwrap_or(0);
        assert_eq!(branch.staged, count, "branch {name} counts what its open area holds");
        assert!(branch.head.is_none_or(|head| commit_of(tables, head).is_some()), "a head is a commit");
    }
    for (key, row) in tables.scan_prefix(Table::Grants, &[]) {
        let grant: GrantRow = rows::decode(Table::Grants, &key, &row);
        let linked: u32 = grant.linked.iter().map(|byte| byte.count_ones()).sum();
        assert!(linked < grant.addresses, "a grant whose addresses are all linked has no row");
    }
    for (key, _) in tables.scan_prefix(Table::Generated, &[]) {
        let id = SubmissionId::from_key(&key).expect("a noted file begins with its request");
        let request = request_of(tables, id).expect("a noted file has its request");
        assert_eq!(request.state, CommitState::InProgress, "files are noted under requests in progress only");
    }
}

/// Each area is in one place.
fn check_areas<T: Tables>(machine: &Machine<T>) -> BTreeSet<AreaId> {
    let mut areas = BTreeSet::new();
    for (name, branch) in machine.branches().iter() {
        let in_order: Vec<AreaId> = branch.sealed.iter().copied().chain([branch.open]).collect();
        assert!(in_order.is_sorted(), "areas of {name} are in the order in which they were sealed");
        for area in in_order {
            assert!(areas.insert(area), "area {area} is in one place");
        }
    }
    for area in machine.branches().dropped() {
        assert!(areas.insert(*area), "area {area} was dropped and is nowhere else");
    }
    areas
}

/// Queues and requests say the same, and so do the submissions whose commits wait.
fn check_queues<T: Tables>(machine: &Machine<T>) {
    let tables = machine.tables();
    let mut waiting = BTreeSet::new();
    for (name, branch) in machine.branches().iter() {
        for it in &branch.queue {
            assert!(waiting.insert(it.request), "a request waits once");
            let request = request_of(tables, it.request).expect("a commit that waits has its request");
            assert_eq!((request.branch.as_str(), &request.state), (name, &CommitState::InProgress));
            if let Source::Submission(id) = request.source {
                let submission = machine.batch().submission(id).expect("its submission runs");
                assert_eq!(submission.commit, Some(it.request), "the submission knows its request");
                assert_eq!(submission.counts.unsettled(), 0, "a submission is sealed when it is settled");
            }
        }
    }
    for (key, row) in tables.scan_prefix(Table::CommitRequests, &[]) {
        let id = SubmissionId::from_key(&key).expect("a request's row has its id as key");
        let request: CommitRequest = rows::decode(Table::CommitRequests, &key, &row);
        match request.state {
            CommitState::InProgress => assert!(waiting.contains(&id), "a request in progress waits"),
            CommitState::Committed(commit) => {
                let commit = commit_of(tables, commit).expect("a request was answered with a commit");
                assert_eq!(commit.request, id, "a commit answers its request");
            }
            CommitState::Aborted(_) => {}
        }
    }
}
