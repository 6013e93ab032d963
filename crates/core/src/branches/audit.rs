//! The audit of branches: every invariant of the room, recounted. For tests; it walks all rows.

use super::commits::{Commit, CommitRequest, CommitState, Source};
use super::listing::log_of;
use super::staging::{GrantRow, Granted, grant_row, is_linked};
use super::state::{AreaId, BranchesState, DroppedRow, commit_of, request_of, staged_of};
use crate::batch::end::finished;
use crate::batch::submissions::SubmissionState;
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
    check_commits(machine);
    let staged = check_staged(machine, &areas);
    for (name, branch) in state.iter() {
        let count = staged.get(&branch.open).copied().unwrap_or(0);
        assert_eq!(branch.staged, count, "branch {name} counts what its open area holds");
        let is_empty = |area: &AreaId| !staged.contains_key(area);
        assert!(!branch.sealed.iter().any(is_empty), "nothing is sealed for nothing");
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

/// Commits lead to a head from parent to parent, in the order in which they were announced.
fn check_commits<T: Tables>(machine: &Machine<T>) {
    let tables = machine.tables();
    for (name, branch) in machine.branches().iter() {
        let log = log_of(tables, branch.head, usize::MAX);
        let in_order = log.is_sorted_by(|(_, newer), (_, older)| newer.request > older.request);
        assert!(in_order, "commits of {name} are performed in the order in which they were announced");
        let is_own = |(_, commit): &&(_, Commit)| commit.branch == name;
        let own = log.iter().take_while(is_own).count() as u64;
        assert!(branch.commits <= own, "every commit that was made on {name} leads to its head");
        for (id, commit) in &log {
            let state = request_of(tables, commit.request).map(|request| request.state);
            assert_eq!(state, Some(CommitState::Committed(*id)), "a commit answers its request");
        }
    }
}

/// Each staged row is of an area that somebody knows, and leads to an object of its own that is no garbage.
fn check_staged<T: Tables>(machine: &Machine<T>, areas: &BTreeSet<AreaId>) -> BTreeMap<AreaId, u64> {
    let tables = machine.tables();
    let (mut staged, mut addresses) = (BTreeMap::new(), BTreeSet::new());
    for row in tables.scan_prefix(Table::Staged, &[]) {
        let area = AreaId(SubmissionId::from_key(&row.0).expect("a staged row begins with its area"));
        let is_known = areas.contains(&area) || has_outputs(machine, area.0);
        assert!(is_known, "no staged row is of an area that nobody knows");
        *staged.entry(area).or_default() += 1;
        let (path, Some(entry)) = staged_of(&row) else { continue };
        if !machine.branches().dropped().contains(&area) {
            let is_garbage = tables.get(Table::Garbage, entry.address.as_bytes()).is_some();
            assert!(!is_garbage, "{path:?} is staged and leads to garbage");
        }
        if let Some(granted) = Granted::parse(&entry.address) {
            let row = grant_row(tables, granted.grant);
            assert!(row.is_none_or(|row| is_linked(&row, granted.nth)), "what is staged is linked");
        }
        assert!(addresses.insert(entry.address), "an address is linked once");
    }
    staged
}

/// Whether the outputs of a submission are staged: while it runs, and after it failed, for its retry.
fn has_outputs<T: Tables>(machine: &Machine<T>, id: SubmissionId) -> bool {
    let finished = finished(machine.tables(), id);
    machine.batch().submission(id).is_some_and(|it| it.output.is_some())
        || finished.is_some_and(|it| it.state == SubmissionState::Failed && it.submission.output.is_some())
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
        let row = machine.tables().get(Table::DroppedAreas, &area.key()).expect("a dropped area has its row");
        let row: DroppedRow = rows::decode(Table::DroppedAreas, &area.key(), &row);
        let is_there = |newer| newer > area && machine.branches().dropped().contains(newer);
        assert!(row.newer.iter().all(is_there), "area {area} is swept before the newer ones of its commit");
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
            let through = match request.source {
                Source::Staged(through) => through,
                Source::Submission(_) | Source::Rollback(_) => None,
            };
            assert_eq!(it.through, through, "the queue knows what a request takes");
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
