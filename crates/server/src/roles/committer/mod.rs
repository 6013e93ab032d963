//! The Committer: makes the commits that were announced, one after the other on each branch, and sweeps up after them.
//!
//! Invariants
//! - Commits of one branch are made in the order in which they were announced, one at a time.
//! - A commit that cannot be made because something outside is broken is tried again until it can, or is aborted by hand.
//! - Rules and checks are asked once for each commit, while this node leads.

mod checks;
mod making;

pub use checks::Check;
pub(crate) use making::replaced_by;

use crate::limits::{COMMIT_RETRY_PAUSE_MAX, COMMIT_RETRY_PAUSE_MIN, COMMITS_AT_ONCE};
use crate::service::Service;
use making::{Made, make};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use windlass_core::branches::commits::{Abort, CommitState};
use windlass_core::branches::state::request_of;
use windlass_core::entry::{Command, Effect, Outcome};
use windlass_core::ids::SubmissionId;
use windlass_order::OrderCounters;
use windlass_store::steps;

/// What the Committer is told.
#[derive(Debug)]
pub enum Errand {
    /// This node leads: whatever waits is due.
    Led,
    /// A commit of this branch is due.
    Due(String),
    /// There are areas to sweep.
    Sweep,
}

/// What is known of commits that wait: who wants to hear of their end, and what is in their way. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct CommitDesk {
    inner: Arc<Mutex<Desk>>,
}

#[derive(Debug, Default)]
struct Desk {
    errands: Option<mpsc::UnboundedSender<Errand>>,
    waiting: HashMap<SubmissionId, Vec<oneshot::Sender<()>>>,
    troubles: BTreeMap<SubmissionId, String>,
}

impl CommitDesk {
    /// Where errands go from now on.
    pub fn set_errands(&self, errands: mpsc::UnboundedSender<Errand>) {
        self.lock().errands = Some(errands);
    }

    /// This node leads.
    pub fn lead(&self) {
        self.send(Errand::Led);
    }

    /// Passes on what was applied.
    pub fn tell(&self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::CommitDue { branch, .. } => self.send(Errand::Due(branch.clone())),
                Effect::AreasDropped => self.send(Errand::Sweep),
                Effect::CommitEnded { request } => self.end(*request),
                Effect::Ready { .. }
                | Effect::Changed { .. }
                | Effect::Weighed { .. }
                | Effect::Done { .. }
                | Effect::Failed { .. }
                | Effect::Over { .. }
                | Effect::LaneSet { .. }
                | Effect::TaskPlaced { .. }
                | Effect::TaskDelayed { .. }
                | Effect::TaskUnplaced { .. }
                | Effect::TaskMoved { .. }
                | Effect::TaskGone { .. } => {}
            }
        }
    }

    /// Resolves when a request is over; look at it after this was called, since it may be over already.
    pub fn watch(&self, request: SubmissionId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut desk = self.lock();
        let watchers = desk.waiting.entry(request).or_default();
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.push(sender);
        receiver
    }

    /// Nobody waits for this request any more.
    pub fn forget_if_unwatched(&self, request: SubmissionId) {
        let mut desk = self.lock();
        if desk.waiting.get(&request).is_some_and(|watchers| watchers.iter().all(oneshot::Sender::is_closed))
        {
            desk.waiting.remove(&request);
        }
    }

    /// What is in a commit's way.
    pub fn trouble(&self, request: SubmissionId) -> Option<String> {
        self.lock().troubles.get(&request).cloned()
    }

    fn set_trouble(&self, request: SubmissionId, trouble: Option<String>) {
        let mut desk = self.lock();
        match trouble {
            Some(trouble) => drop(desk.troubles.insert(request, trouble)),
            None => drop(desk.troubles.remove(&request)),
        }
    }

    fn end(&self, request: SubmissionId) {
        let mut desk = self.lock();
        desk.troubles.remove(&request);
        // Whoever watched and went away need not hear of it.
        for watcher in desk.waiting.remove(&request).into_iter().flatten() {
            watcher.send(()).unwrap_or(());
        }
    }

    fn send(&self, errand: Errand) {
        if let Some(errands) = &self.lock().errands {
            // A server that stops does no more errands; the next leader finds what is due.
            drop(errands.send(errand));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.inner.lock().expect("nothing panics while it holds the desk")
    }
}

/// Does errands as they come: one commit of a branch at a time, several branches side by side.
pub(crate) async fn run(service: Service, mut errands: mpsc::UnboundedReceiver<Errand>) {
    let places = Arc::new(Semaphore::new(COMMITS_AT_ONCE));
    let (mut busy, mut under_way) = (BTreeSet::new(), JoinSet::new());
    let mut is_sweeping = false;
    loop {
        let due = tokio::select! {
            errand = errands.recv() => match errand {
                None => return,
                Some(Errand::Due(branch)) => vec![Work::Branch(branch)],
                Some(Errand::Sweep) => vec![Work::Sweep],
                Some(Errand::Led) => all_due(&service),
            },
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => match ended {
                // What became due just before it ended is begun anew.
                Ok(Work::Branch(branch)) => {
                    busy.remove(&branch);
                    if next_of(&service, &branch).is_some() { vec![Work::Branch(branch)] } else { Vec::new() }
                }
                Ok(Work::Sweep) => {
                    is_sweeping = false;
                    if has_dropped(&service) { vec![Work::Sweep] } else { Vec::new() }
                }
                Err(error) => {
                    tracing::error!(%error, "making a commit has ended badly; everything that is due is begun anew");
                    tokio::time::sleep(COMMIT_RETRY_PAUSE_MAX).await;
                    (busy, is_sweeping) = (BTreeSet::new(), false);
                    under_way.abort_all();
                    while under_way.join_next().await.is_some() {}
                    all_due(&service)
                }
            },
        };
        for work in due {
            let is_new = match &work {
                Work::Branch(branch) => busy.insert(branch.clone()),
                Work::Sweep => !std::mem::replace(&mut is_sweeping, true),
            };
            if is_new && service.token_key().is_ok() {
                under_way.spawn(do_all(service.clone(), Arc::clone(&places), work));
            }
        }
    }
}

/// What is worked on at a time.
enum Work {
    Branch(String),
    Sweep,
}

fn all_due(service: &Service) -> Vec<Work> {
    service.order().read(|machine| {
        let branches = machine.branches().iter().filter(|(_, branch)| !branch.queue.is_empty());
        let mut due: Vec<Work> = branches.map(|(name, _)| Work::Branch(name.to_owned())).collect();
        if !machine.branches().dropped().is_empty() {
            due.push(Work::Sweep);
        }
        due
    })
}

fn next_of(service: &Service, branch: &str) -> Option<SubmissionId> {
    let look = |waiting: &windlass_core::branches::state::Branch| Some(waiting.queue.first()?.request);
    service.order().read(|machine| machine.branches().get(branch).and_then(look))
}

fn has_dropped(service: &Service) -> bool {
    service.order().read(|machine| !machine.branches().dropped().is_empty())
}

async fn do_all(service: Service, places: Arc<Semaphore>, work: Work) -> Work {
    match &work {
        Work::Branch(branch) => {
            while let Some(request) = next_of(&service, branch).filter(|_| service.token_key().is_ok()) {
                commit(&service, &places, request).await;
            }
        }
        Work::Sweep => sweep(&service).await,
    }
    work
}

/// Makes one commit, however often it has to be tried.
async fn commit(service: &Service, places: &Semaphore, request: SubmissionId) {
    let mut pause = COMMIT_RETRY_PAUSE_MIN;
    loop {
        let ended = match make(service, places, request).await {
            Ok(Made::Commit(perform)) => service.propose(Command::Perform(*perform)).await,
            Ok(Made::Abort(reason)) => service.propose(Command::Abort(Abort { request, reason })).await,
            Ok(Made::Nothing) => return,
            Err(problem) => Err(problem),
        };
        steps::pass("performed");
        let Err(problem) = ended else { return };
        if is_ending(service) || is_over(service, request) {
            return;
        }
        tracing::warn!(%request, %problem, "a commit could not be made; it is tried again");
        service.commit_desk().set_trouble(request, Some(problem.detail));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(COMMIT_RETRY_PAUSE_MAX);
    }
}

/// Whether somebody has aborted a request, or its branch or submission is gone.
fn is_over(service: &Service, request: SubmissionId) -> bool {
    let found = service.order().read(|machine| request_of(machine.tables(), request));
    found.is_none_or(|found| found.state != CommitState::InProgress)
}

/// Whether somebody else goes on from here: another leader, or this server after its next start.
fn is_ending(service: &Service) -> bool {
    service.token_key().is_err() || service.stop().is_cancelled()
}

/// Sweeps step by step. Nobody waits for it, and others wait for the log: after a step in which somebody else wrote too, or
/// waits to, it stays away for as long as that one took, so that they get at least every other turn.
async fn sweep(service: &Service) {
    loop {
        let (began, written) = (Instant::now(), service.order().counters().commands);
        steps::pass("sweeping");
        let swept = service.propose(Command::Sweep).await;
        steps::pass("swept");
        match swept {
            Ok(Outcome::Swept { areas: 0 }) => return,
            Ok(_) => {
                let OrderCounters { commands, waiting, .. } = service.order().counters();
                if commands > written + 1 || waiting > 0 {
                    tokio::time::sleep(began.elapsed()).await;
                }
            }
            Err(problem) => {
                if is_ending(service) {
                    return;
                }
                tracing::warn!(%problem, "dropped staging areas could not be swept; they are tried again");
                tokio::time::sleep(COMMIT_RETRY_PAUSE_MAX).await;
            }
        }
    }
}
