//! The Announcer: tells those who watch submissions what becomes of them.
//!
//! Invariants
//! - A watcher that was there before a submission's end is told of it, exactly as it ended.
//! - A watcher's memory is bounded: a newer state replaces an older one not yet read, and a watcher of all submissions that
//!   does not read is cut off.

use crate::limits::UNREAD_MAX;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use windlass_core::batch::submissions::{ChunkCounts, SubmissionState};
use windlass_core::entry::Effect;
use windlass_core::ids::SubmissionId;

/// What a watcher is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The submission.
    pub submission: SubmissionId,
    /// Where it stands.
    pub state: SubmissionState,
    /// How far it is.
    pub counts: ChunkCounts,
    /// Whether it has just come in, or got another round.
    pub is_new: bool,
}

/// See the file's head. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Announcer {
    watchers: Arc<Mutex<Watchers>>,
}

#[derive(Debug, Default)]
struct Watchers {
    next: u64,
    of_all: HashMap<u64, Arc<Inbox>>,
    of_some: HashMap<SubmissionId, HashMap<u64, Arc<Inbox>>>,
}

#[derive(Debug, Default)]
struct Inbox {
    unread: Mutex<BTreeMap<SubmissionId, Announcement>>,
    arrived: Notify,
    is_overwhelmed: AtomicBool,
}

/// Receives announcements until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    announcer: Announcer,
    number: u64,
    submissions: HashSet<SubmissionId>,
    inbox: Arc<Inbox>,
}

impl Announcer {
    /// Watches these submissions, or all of them if none is named.
    pub fn watch(&self, submissions: impl IntoIterator<Item = SubmissionId>) -> Watcher {
        let submissions: HashSet<SubmissionId> = submissions.into_iter().collect();
        let inbox = Arc::new(Inbox::default());
        let mut watchers = self.lock();
        let number = watchers.next;
        watchers.next += 1;
        if submissions.is_empty() {
            watchers.of_all.insert(number, Arc::clone(&inbox));
        }
        for submission in &submissions {
            watchers.of_some.entry(*submission).or_default().insert(number, Arc::clone(&inbox));
        }
        drop(watchers);
        Watcher { announcer: self.clone(), number, submissions, inbox }
    }

    /// Tells the watchers what was applied.
    pub fn announce(&self, effects: &[Effect]) {
        let watchers = self.lock();
        if watchers.of_all.is_empty() && watchers.of_some.is_empty() {
            return;
        }
        for announcement in effects.iter().filter_map(announcement) {
            let some = watchers.of_some.get(&announcement.submission);
            let inboxes = watchers.of_all.values().chain(some.into_iter().flat_map(HashMap::values));
            inboxes.for_each(|inbox| inbox.put(announcement));
        }
    }

    /// How many watch.
    pub fn watchers(&self) -> u64 {
        let watchers = self.lock();
        (watchers.of_all.len() + watchers.of_some.values().map(HashMap::len).sum::<usize>()) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn announcement(effect: &Effect) -> Option<Announcement> {
    let running = |submission: &SubmissionId, counts: &ChunkCounts, is_new| Announcement {
        submission: *submission,
        state: SubmissionState::Running,
        counts: *counts,
        is_new,
    };
    match effect {
        Effect::Ready { submission, counts, .. } => Some(running(submission, counts, true)),
        Effect::Done { submission, counts, .. } | Effect::Failed { submission, counts, .. } => {
            Some(running(submission, counts, false))
        }
        // How far it is has not changed.
        Effect::Changed { .. } | Effect::Weighed { .. } => None,
        // These are of no submission.
        Effect::LaneSet { .. }
        | Effect::TaskPlaced { .. }
        | Effect::TaskDelayed { .. }
        | Effect::TaskMoved { .. }
        | Effect::TaskUnplaced { .. }
        | Effect::TaskGone { .. }
        | Effect::CommitDue { .. }
        | Effect::CommitEnded { .. }
        | Effect::AreasDropped => None,
        Effect::Over { submission, state, counts } => {
            Some(Announcement { submission: *submission, state: *state, counts: *counts, is_new: false })
        }
    }
}

impl Inbox {
    fn put(&self, announcement: Announcement) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.len() >= UNREAD_MAX && !unread.contains_key(&announcement.submission) {
            self.is_overwhelmed.store(true, Ordering::Relaxed);
            return;
        }
        let was_new = unread.get(&announcement.submission).is_some_and(|before| before.is_new);
        unread.insert(
            announcement.submission,
            Announcement { is_new: was_new || announcement.is_new, ..announcement },
        );
        drop(unread);
        self.arrived.notify_one();
    }
}

impl Watcher {
    /// Whether announcements were lost, since the watcher did not read them: it should end, and begin anew.
    pub fn is_overwhelmed(&self) -> bool {
        self.inbox.is_overwhelmed.load(Ordering::Relaxed)
    }

    /// What has arrived since the last call; waits until there is something.
    pub async fn next(&mut self) -> Vec<Announcement> {
        loop {
            let arrived = {
                let mut unread = self.inbox.unread.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *unread)
            };
            if !arrived.is_empty() {
                return arrived.into_values().collect();
            }
            self.inbox.arrived.notified().await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watchers = self.announcer.lock();
        watchers.of_all.remove(&self.number);
        for submission in &self.submissions {
            if let Some(numbers) = watchers.of_some.get_mut(submission) {
                numbers.remove(&self.number);
                if numbers.is_empty() {
                    watchers.of_some.remove(submission);
                }
            }
        }
    }
}
