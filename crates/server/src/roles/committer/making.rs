//! Making a commit: what is staged becomes files, outside the log, and then one entry of it.
//!
//! Invariants
//! - The same request on the same parent gives the same commit, however often it is made.
//! - Files are noted in the log before they are written.

use super::checks;
use crate::limits::STAGED_ROWS_AT_ONCE;
use crate::service::Service;
use crate::service::batch::unexpected;
use crate::service::problem_of_store;
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt, stream};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;
use windlass_api::problem::Problem;
use windlass_core::batch::submissions::{Metadata, Submit};
use windlass_core::branches::commits::{
    Commit, CommitRequest, CommitState, Counts, Missing, NoteFiles, Perform, Source,
};
use windlass_core::branches::entries::Digest;
use windlass_core::branches::listing::{From, StagedPage, staged_page};
use windlass_core::branches::outputs::OutputMode;
use windlass_core::branches::state::{AreaId, commit_of, request_of};
use windlass_core::entry::{Command, Outcome};
use windlass_core::ids::SubmissionId;
use windlass_core::limits::MISSING_CHUNKS_NAMED_MAX;
use windlass_store::fault::StoreFault;
use windlass_store::ranges::{Change, FileName, GenerateFault, Generated};
use windlass_store::steps;
use windlass_store::turns::give_way;

/// What came of it.
pub(super) enum Made {
    /// A commit that can be performed.
    Commit(Box<Perform>),
    /// Nothing, for this reason.
    Abort(String),
    /// The request is over.
    Nothing,
}

/// What a commit is made from.
struct Plan {
    id: SubmissionId,
    request: CommitRequest,
    parent: Option<(Digest, Commit)>,
    areas: Vec<AreaId>,
    replaced_prefix: Option<String>,
    is_exact: bool,
    metadata: Metadata,
    missing: Option<Missing>,
}

/// Makes the commit that a request asks for, up to the point where it can be performed.
///
/// A place is taken only while files are made, so that branches whose commits cannot be made, or whose checks take their
/// time, do not hold up the others.
pub(super) async fn make(service: &Service, places: &Semaphore, id: SubmissionId) -> Result<Made, Problem> {
    let Some(plan) = plan_of(service, id) else { return Ok(Made::Nothing) };
    steps::pass("making");
    let parent = plan.parent.as_ref().map(|(id, _)| *id);
    if plan.request.if_parent.is_some_and(|wanted| Some(wanted) != parent) {
        return Ok(Made::Abort("the branch was committed to since the commit that the request names".into()));
    }
    let place = places.acquire().await.expect("the semaphore is never closed");
    let (generated, conflicts) = match plan.request.source {
        Source::Rollback(to) => (roll_back(service, &plan, to).await?, 0),
        Source::Staged(_) | Source::Submission(_) => generate(service, &plan).await?,
    };
    drop(place);
    if plan.is_exact && conflicts > 0 {
        let reason = format!(
            "{conflicts} outputs have paths that another chunk gave too, and the mode `exact` wants each path once"
        );
        return Ok(Made::Abort(reason));
    }
    let commit = commit_of_plan(&plan, &generated, conflicts);
    let id = Digest::new(Sha256::digest(commit.to_bytes()).into());
    let previous = plan.parent.as_ref().map(|(_, parent)| parent.counts).unwrap_or_default();
    let broken = plan.request.verify.rules.iter().find_map(|rule| rule.broken_by(&commit.counts, &previous));
    if let Some(reason) = broken {
        return Ok(Made::Abort(reason));
    }
    for check in &plan.request.verify.checks {
        if let Some(reason) = checks::ask(service, check, id, &commit).await {
            return Ok(Made::Abort(reason));
        }
    }
    steps::pass("made");
    Ok(Made::Commit(Box::new(Perform { id, commit })))
}

fn plan_of(service: &Service, id: SubmissionId) -> Option<Plan> {
    service.order().read(|machine| {
        let tables = machine.tables();
        let request = request_of(tables, id).filter(|request| request.state == CommitState::InProgress)?;
        let branch = machine.branches().get(&request.branch)?;
        let parent = branch.head.map(|head| (head, commit_of(tables, head).expect("a head is a commit")));
        let metadata = request.metadata.clone();
        let mut plan = Plan {
            id,
            request,
            parent,
            areas: Vec::new(),
            replaced_prefix: None,
            is_exact: false,
            metadata,
            missing: None,
        };
        match plan.request.source {
            Source::Rollback(_) => {}
            Source::Staged(through) => {
                let sealed = branch.sealed.iter().rev().copied();
                plan.areas = sealed.filter(|area| Some(*area) <= through).collect();
            }
            Source::Submission(submission) => {
                let about: Submit = machine.about(submission);
                let mode = about.output.expect("what is committed has an output").mode;
                (plan.replaced_prefix, plan.is_exact) = replaced_by(mode);
                plan.areas = vec![AreaId(submission)];
                plan.metadata = about.metadata;
                let chunks = machine.batch().submission(submission)?.counts.failed;
                let failed = machine.failures(submission, MISSING_CHUNKS_NAMED_MAX);
                let first = failed.into_iter().map(|(chunk, _)| chunk).collect();
                plan.missing = (chunks > 0).then_some(Missing { chunks, first });
            }
        }
        Some(plan)
    })
}

/// The prefix whose entries an output replaces, and whether it must be the only one of each path.
pub(crate) fn replaced_by(mode: OutputMode) -> (Option<String>, bool) {
    match mode {
        OutputMode::Append => (None, false),
        OutputMode::Replace(prefix) => (Some(prefix), false),
        OutputMode::Exact => (Some(String::new()), true),
    }
}

async fn generate(service: &Service, plan: &Plan) -> Result<(Generated, u64), Problem> {
    let conflicts = Arc::new(AtomicU64::new(0));
    let changes = staged_changes(service.clone(), plan.areas.clone(), Arc::clone(&conflicts));
    let (request, noting) = (plan.id, service.clone());
    let note = async move |files: &[FileName]| {
        let addresses = files.iter().map(ToString::to_string).collect();
        steps::pass("noting");
        match noting.propose(Command::NoteFiles(NoteFiles { request, addresses })).await? {
            Outcome::Noted => {
                steps::pass("noted");
                Ok(())
            }
            // Somebody gave the request up in the meantime: nothing would name the files.
            other => Err(unexpected(&other)),
        }
    };
    let parent = plan.parent.as_ref().map(|(_, parent)| parent.metarange);
    let (ranges, replaced_prefix) = (service.ranges().clone(), plan.replaced_prefix.clone());
    // The compiler sees that it may move between threads only if it borrows nothing.
    let generating: BoxFuture<'static, Result<Generated, GenerateFault<Problem>>> =
        Box::pin(async move { ranges.generate(parent, replaced_prefix.as_deref(), changes, note).await });
    match generating.await {
        Ok(generated) => Ok((generated, conflicts.load(Ordering::Relaxed))),
        Err(GenerateFault::Store(fault)) => Err(problem_of_store(&fault)),
        Err(GenerateFault::Note(problem)) => Err(problem),
    }
}

/// What a rollback gives: the files are there, so only what it changes is counted.
async fn roll_back(service: &Service, plan: &Plan, to: Digest) -> Result<Generated, Problem> {
    let target = service.order().read(|machine| commit_of(machine.tables(), to));
    let metarange = target.expect("a rollback was announced to a commit that is there").metarange;
    let parent = plan.parent.as_ref().map(|(_, parent)| parent.metarange);
    let summary = service.ranges().summary(metarange).await.map_err(|fault| problem_of_store(&fault))?;
    let mut generated = Generated {
        metarange,
        entries: summary.entries,
        bytes: summary.bytes,
        added: 0,
        changed: 0,
        removed: 0,
        ranges: summary.ranges,
        ranges_written: 0,
        files: Vec::new(),
    };
    let mut differences = service.ranges().differences(parent, Some(metarange));
    while let Some(difference) = differences.next().await.map_err(|fault| problem_of_store(&fault))? {
        match (&difference.before, &difference.after) {
            (None, _) => generated.added += 1,
            (Some(_), Some(_)) => generated.changed += 1,
            (Some(_), None) => generated.removed += 1,
        }
    }
    Ok(generated)
}

fn commit_of_plan(plan: &Plan, generated: &Generated, conflicts: u64) -> Commit {
    let submission = match plan.request.source {
        Source::Submission(submission) => Some(submission),
        Source::Staged(_) | Source::Rollback(_) => None,
    };
    let rolled_back_to = match plan.request.source {
        Source::Rollback(to) => Some(to),
        Source::Staged(_) | Source::Submission(_) => None,
    };
    let Generated { metarange, entries, bytes, added, changed, removed, .. } = *generated;
    Commit {
        branch: plan.request.branch.clone(),
        parent: plan.parent.as_ref().map(|(id, _)| *id),
        metarange,
        at: plan.request.announced_at,
        message: plan.request.message.clone(),
        metadata: plan.metadata.clone(),
        counts: Counts { entries, bytes, added, changed, removed, conflicts },
        request: plan.id,
        submission,
        missing: plan.missing.clone(),
        rolled_back_to,
    }
}

/// What sealed areas hold, in the order of paths. They do not change any more, so that they can be read page by page.
fn staged_changes(
    service: Service,
    areas: Vec<AreaId>,
    conflicts: Arc<AtomicU64>,
) -> impl Stream<Item = Result<Change, StoreFault>> {
    // Whoever applies tells the Committer before the rows are in the tables, and lets go of the machine after that.
    service.order().read(|_| ());
    let areas = Arc::new(areas);
    let pages = stream::try_unfold(Some(None::<String>), move |after| {
        let (service, areas, conflicts) = (service.clone(), Arc::clone(&areas), Arc::clone(&conflicts));
        async move {
            let Some(after) = after else { return Ok(None) };
            let read = move || read_page(&service, &areas, after.as_deref());
            let page = match tokio::task::spawn_blocking(read).await {
                Ok(page) => page,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            conflicts.fetch_add(page.conflicts, Ordering::Relaxed);
            let next = page.read_to.map(Some);
            Ok::<_, StoreFault>(Some((stream::iter(page.changes.into_iter().map(to_change)), next)))
        }
    });
    pages.flat_map(|page| match page {
        Ok(changes) => changes.left_stream(),
        Err(fault) => stream::iter([Err(fault)]).right_stream(),
    })
}

fn to_change(
    (path, entry): (String, Option<windlass_core::branches::entries::ObjectEntry>),
) -> Result<Change, StoreFault> {
    Ok(Change { path, entry })
}

fn read_page(service: &Service, areas: &[AreaId], after: Option<&str>) -> StagedPage {
    let from = after.map_or(From::At(""), From::After);
    staged_page(areas, "", from, STAGED_ROWS_AT_ONCE, |table, range| {
        service.order().committed().scan(table, range).inspect(|_| give_way())
    })
}
