//! The book: what a consumer holds, what it still has to say, and what it was not answered.
//!
//! Pure: frames go in and come out. The session around it moves them.
//!
//! Invariants
//! - A chunk is queued, running, finished, or unanswered: in one place at a time, until its last word is answered.
//! - Nothing is asked for beyond what makes held chunks and chunks asked for together `held_max`.
//! - A report is forgotten only when the server has answered it for good.
//! - After a reconnect nothing is reserved or reported before every claim is answered: the server may take frames of
//!   one connection in any order, and must not hand out, or count as lost, what is claimed a frame later.

use super::work::{About, Failure, Gave};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use windlass_api::frames::{ClientFrame, DoneChunk, FailedChunk, Verdict, WorkChunk, WorkOf, WorkTask};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::Output;
use windlass_core::ids::{ChunkName, SubmissionId};

/// Reserves that may wait at the server at once: more would hand out crumbs.
const RESERVES_MAX: usize = 4;

/// Chunks in one report: a frame of them stays far below the largest frame.
const CHUNKS_PER_REPORT_MAX: usize = 4_096;

/// Bytes of outputs in one report, for the same reason.
const BYTES_PER_REPORT_MAX: usize = 1 << 20;

/// About what an entry for a branch takes in a frame, besides its path.
const ENTRY_BYTES: usize = 100;

/// What became of the chunks that a consumer worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Done, by this consumer.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Given back unharmed.
    pub released: u64,
    /// Worked on in vain: somebody else was first, or the submission was over.
    pub late: u64,
}

/// A hand-out: the same chunk may come again after a reservation was lost, with another token.
pub(crate) type Key = (ChunkName, AttemptToken);

/// A chunk that this consumer holds.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) about: Arc<About>,
    pub(crate) work: WorkChunk,
}

impl Held {
    pub(crate) fn key(&self) -> Key {
        let name = ChunkName { submission: self.about.submission, chunk: self.work.chunk };
        (name, self.work.token())
    }
}

/// What to do about a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Say it again later: `resume` gives the frames.
    Later,
    /// A reserve that will never be served: there is no point in going on.
    Reserve,
    /// A report that will never be taken; its chunks are dropped.
    Report,
}

#[derive(Debug)]
pub(crate) struct Book {
    concurrency: usize,
    held_max: usize,
    strategy: String,
    next_request: u64,
    reserves: BTreeMap<u64, usize>,
    queued: VecDeque<Held>,
    running: BTreeMap<Key, WorkChunk>,
    finished: Vec<(Key, Report)>,
    unanswered: BTreeMap<u64, ClientFrame>,
    unanswered_chunks: usize,
    reasserted: BTreeMap<u64, ClientFrame>,
    said_later: BTreeSet<u64>,
    says_all_again: bool,
    pause: bool,
    stopping: bool,
    tally: Tally,
}

#[derive(Debug)]
enum Report {
    Done(Gave),
    Failed(String),
    GivenBack,
}

impl Report {
    const fn is_done_with_nothing(&self) -> bool {
        matches!(self, Report::Done(Gave { output: Output::Nothing, entries }) if entries.is_empty())
    }
}

impl Book {
    pub(crate) const fn new(concurrency: usize, held_max: usize, strategy: String) -> Book {
        Book {
            concurrency,
            held_max,
            strategy,
            next_request: 1,
            reserves: BTreeMap::new(),
            queued: VecDeque::new(),
            running: BTreeMap::new(),
            finished: Vec::new(),
            unanswered: BTreeMap::new(),
            unanswered_chunks: 0,
            reasserted: BTreeMap::new(),
            said_later: BTreeSet::new(),
            says_all_again: false,
            pause: false,
            stopping: false,
            tally: Tally { completed: 0, failed: 0, released: 0, late: 0 },
        }
    }

    /// From now on nothing is asked for beyond so many chunks. Of those that are held already, what is beyond `kept` and was not
    /// begun goes back.
    pub(crate) fn hold(&mut self, held_max: usize, kept: usize) {
        self.held_max = held_max;
        self.give_back_beyond(kept.saturating_sub(self.running.len()));
    }

    pub(crate) const fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn running_len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn queued_len(&self) -> usize {
        self.queued.len()
    }

    /// Whether nothing is held and everything said was answered.
    pub(crate) fn is_clear(&self) -> bool {
        self.queued.is_empty()
            && self.running.is_empty()
            && self.finished.is_empty()
            && self.unanswered.is_empty()
    }

    /// Asks for as many chunks as there is room for, once that is worth a frame.
    pub(crate) fn reserve(&mut self) -> Option<ClientFrame> {
        let asked: usize = self.reserves.values().sum();
        let held = self.queued.len() + self.running.len() + asked;
        // Quick work must not run ahead of its acknowledgements without end.
        let unanswered = (self.finished.len() + self.unanswered_chunks).saturating_sub(self.unanswered_max());
        let room = self.held_max.saturating_sub(held + unanswered);
        let starves = self.queued.is_empty() && self.reserves.is_empty();
        let is_worth_it = room > 0 && (starves || room * 4 >= self.held_max);
        let is_held_up = self.stopping || self.pause || !self.reasserted.is_empty();
        if is_held_up || !is_worth_it || self.reserves.len() >= RESERVES_MAX {
            return None;
        }
        let request = self.number();
        self.reserves.insert(request, room);
        let max = u32::try_from(room).unwrap_or(u32::MAX);
        Some(ClientFrame::Reserve { request, max, strategy: self.strategy.clone(), after_reports: false })
    }

    /// Chunks whose reports may be without an answer before they count as held.
    fn unanswered_max(&self) -> usize {
        4 * self.held_max
    }

    /// Takes in chunks. What comes after a stop goes back at once.
    pub(crate) fn work(&mut self, request: u64, more: bool, work: Vec<WorkOf>) {
        let mut came = 0;
        for of_one in work {
            let (about, chunks) = About::new(of_one);
            came += chunks.len();
            self.queued.extend(chunks.into_iter().map(|work| Held { about: Arc::clone(&about), work }));
        }
        if !more {
            self.reserves.remove(&request);
        } else if let Some(asked) = self.reserves.get_mut(&request) {
            *asked = asked.saturating_sub(came);
        }
        if self.stopping {
            self.give_back_beyond(0);
        }
    }

    /// The next chunk to begin, if there is room for one.
    pub(crate) fn begin(&mut self) -> Option<Held> {
        if self.running.len() >= self.concurrency {
            return None;
        }
        let held = self.queued.pop_front()?;
        self.running.insert(held.key(), held.work);
        Some(held)
    }

    /// A chunk's work has ended.
    pub(crate) fn end(&mut self, key: Key, result: Result<Gave, Failure>) {
        if self.running.remove(&key).is_none() {
            return;
        }
        let report = match result {
            Ok(gave) => Report::Done(gave),
            Err(Failure { reason, counts: true }) => Report::Failed(reason),
            Err(Failure { counts: false, .. }) => Report::GivenBack,
        };
        self.finished.push((key, report));
    }

    /// The reports that are due: one frame for the chunks of one submission with the same fate.
    pub(crate) fn reports(&mut self) -> Vec<ClientFrame> {
        if !self.reasserted.is_empty() {
            return Vec::new();
        }
        let mut frames = Vec::new();
        if std::mem::take(&mut self.says_all_again) {
            frames.extend(self.unanswered.values().cloned());
        }
        let mut groups: BTreeMap<SubmissionId, Group> = BTreeMap::new();
        let mut tasks = Vec::new();
        for ((name, token), report) in std::mem::take(&mut self.finished) {
            // What a task's work gave is not kept; whoever gives something all the same hears of it by a report of its own.
            if token.attempt.is_of_task() && report.is_done_with_nothing() {
                tasks.push(WorkTask::new(name.submission, WorkChunk::new(name.chunk, token)));
                continue;
            }
            let group = groups.entry(name.submission).or_default();
            group.add(WorkChunk::new(name.chunk, token), report);
            if group.is_full() {
                let full = std::mem::take(group);
                frames.extend(self.frames_of(name.submission, full));
            }
        }
        for (submission, group) in groups {
            frames.extend(self.frames_of(submission, group));
        }
        for tasks in tasks.chunks(CHUNKS_PER_REPORT_MAX) {
            let frame = ClientFrame::CompleteTasks { request: self.number(), tasks: tasks.to_vec() };
            frames.push(self.note_said(frame));
        }
        frames
    }

    /// Keeps a report until it is answered.
    fn note_said(&mut self, frame: ClientFrame) -> ClientFrame {
        self.unanswered_chunks += chunks_in(&frame);
        self.unanswered.insert(request_of(&frame), frame.clone());
        frame
    }

    fn frames_of(&mut self, submission: SubmissionId, group: Group) -> Vec<ClientFrame> {
        let Group { done, failed, given_back, bytes: _ } = group;
        let mut frames = Vec::new();
        if !done.is_empty() {
            frames.push(ClientFrame::Complete { request: self.number(), submission, done });
        }
        if !failed.is_empty() {
            frames.push(ClientFrame::Fail { request: self.number(), submission, failed });
        }
        if !given_back.is_empty() {
            frames.push(ClientFrame::Release { request: self.number(), submission, chunks: given_back });
        }
        frames.into_iter().map(|frame| self.note_said(frame)).collect()
    }

    /// The server's word on each chunk of a request.
    pub(crate) fn settled(&mut self, request: u64, verdicts: &[Verdict]) {
        if let Some(frame) = self.reasserted.remove(&request) {
            let keys = keys_of(&frame).into_iter().zip(verdicts);
            let lost: BTreeSet<Key> =
                keys.filter(|(_, verdict)| is_lost(**verdict)).map(|(key, _)| key).collect();
            // What runs goes on: the first completion wins, and it may still be ours.
            self.queued.retain(|held| !lost.contains(&held.key()));
            return;
        }
        let Some(frame) = self.forget(request) else { return };
        for verdict in verdicts {
            let count = match (&frame, verdict) {
                (ClientFrame::Release { .. }, _) => &mut self.tally.released,
                (ClientFrame::Complete { .. } | ClientFrame::CompleteTasks { .. }, Verdict::Accepted) => {
                    &mut self.tally.completed
                }
                (ClientFrame::Fail { .. }, Verdict::Accepted) => &mut self.tally.failed,
                _ => &mut self.tally.late,
            };
            *count += 1;
        }
    }

    /// The server's word that a request was not carried out.
    pub(crate) fn refused(&mut self, request: u64, retry_helps: bool) -> Refused {
        let was_reserve = self.reserves.remove(&request).is_some();
        if was_reserve && retry_helps {
            self.pause = true;
            return Refused::Later;
        }
        if was_reserve {
            return Refused::Reserve;
        }
        if retry_helps && (self.unanswered.contains_key(&request) || self.reasserted.contains_key(&request)) {
            self.said_later.insert(request);
            return Refused::Later;
        }
        let dropped = self.forget(request).map_or(0, |frame| chunks_in(&frame));
        self.tally.late += dropped as u64;
        self.reasserted.remove(&request);
        Refused::Report
    }

    /// The server hands out no more work for now.
    pub(crate) fn pause(&mut self) {
        self.pause = true;
    }

    /// After a while: what was to be said later.
    pub(crate) fn resume(&mut self) -> Vec<ClientFrame> {
        self.pause = false;
        let later = std::mem::take(&mut self.said_later);
        let frame_of = |request| self.reasserted.get(request).or_else(|| self.unanswered.get(request));
        later.iter().filter_map(frame_of).cloned().collect()
    }

    /// After a reconnect: claims everything that is held. What was not answered is said again with the next reports.
    pub(crate) fn reconnect(&mut self) -> Vec<ClientFrame> {
        self.reserves.clear();
        self.said_later.clear();
        self.pause = false;
        let mut by_submission: BTreeMap<SubmissionId, Vec<Key>> = BTreeMap::new();
        let held = self.queued.iter().map(Held::key).chain(self.running.keys().copied());
        let finished = self.finished.iter().map(|(key, _)| *key);
        let said = self.unanswered.values().flat_map(keys_of);
        for key in held.chain(finished).chain(said) {
            by_submission.entry(key.0.submission).or_default().push(key);
        }
        let mut frames = Vec::new();
        for (submission, keys) in by_submission {
            for keys in keys.chunks(CHUNKS_PER_REPORT_MAX) {
                let request = self.number();
                let chunks = keys.iter().map(|(name, token)| WorkChunk::new(name.chunk, *token)).collect();
                frames.push(ClientFrame::Reassert { request, submission, chunks });
            }
        }
        self.reasserted = frames.iter().map(|frame| (request_of(frame), frame.clone())).collect();
        self.says_all_again = true;
        frames
    }

    /// No more work: what is not begun goes back.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.give_back_beyond(0);
    }

    /// Gives back what is queued, but for the first ones.
    fn give_back_beyond(&mut self, kept: usize) {
        let surplus = self.queued.split_off(kept.min(self.queued.len()));
        self.finished.extend(surplus.into_iter().map(|held| (held.key(), Report::GivenBack)));
    }

    /// A report that is answered for good.
    fn forget(&mut self, request: u64) -> Option<ClientFrame> {
        let frame = self.unanswered.remove(&request)?;
        self.unanswered_chunks -= chunks_in(&frame);
        Some(frame)
    }

    fn number(&mut self) -> u64 {
        let number = self.next_request;
        self.next_request += 1;
        number
    }
}

/// The chunks of one submission that are to be reported together.
#[derive(Debug, Default)]
struct Group {
    done: Vec<DoneChunk>,
    failed: Vec<FailedChunk>,
    given_back: Vec<WorkChunk>,
    bytes: usize,
}

impl Group {
    fn add(&mut self, chunk: WorkChunk, report: Report) {
        match report {
            Report::Done(Gave { output, entries }) => {
                self.bytes += if let Output::Inline(bytes) = &output { bytes.len() } else { 0 };
                self.bytes += entries.iter().map(|entry| ENTRY_BYTES + entry.path.len()).sum::<usize>();
                let entries = (!entries.is_empty()).then_some(entries);
                self.done.push(DoneChunk { chunk, output, entries });
            }
            Report::Failed(reason) => {
                self.bytes += reason.len();
                self.failed.push(FailedChunk { chunk, reason });
            }
            Report::GivenBack => self.given_back.push(chunk),
        }
    }

    fn is_full(&self) -> bool {
        let chunks = self.done.len() + self.failed.len() + self.given_back.len();
        chunks >= CHUNKS_PER_REPORT_MAX || self.bytes >= BYTES_PER_REPORT_MAX
    }
}

fn is_lost(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Accepted => false,
        Verdict::AlreadyDone
        | Verdict::AlreadyFailed
        | Verdict::SubmissionOver
        | Verdict::NoSuchChunk
        | Verdict::ReservationLost
        | Verdict::TokenInvalid
        | Verdict::OutputTooLarge
        | Verdict::OutputRefused => true,
    }
}

fn request_of(frame: &ClientFrame) -> u64 {
    match frame {
        ClientFrame::Hello { .. } | ClientFrame::Heartbeat {} => 0,
        ClientFrame::Reserve { request, .. }
        | ClientFrame::Complete { request, .. }
        | ClientFrame::Fail { request, .. }
        | ClientFrame::Reassert { request, .. }
        | ClientFrame::Release { request, .. }
        | ClientFrame::CompleteTasks { request, .. }
        | ClientFrame::Add { request, .. } => *request,
    }
}

fn chunks_in(frame: &ClientFrame) -> usize {
    match frame {
        ClientFrame::Complete { done, .. } => done.len(),
        ClientFrame::CompleteTasks { tasks, .. } => tasks.len(),
        ClientFrame::Fail { failed, .. } => failed.len(),
        ClientFrame::Release { chunks, .. } | ClientFrame::Reassert { chunks, .. } => chunks.len(),
        ClientFrame::Hello { .. }
        | ClientFrame::Heartbeat {}
        | ClientFrame::Reserve { .. }
        | ClientFrame::Add { .. } => 0,
    }
}

fn keys_of(frame: &ClientFrame) -> Vec<Key> {
    let key = |submission, work: WorkChunk| (ChunkName { submission, chunk: work.chunk }, work.token());
    let (submission, chunks): (SubmissionId, Vec<WorkChunk>) = match frame {
        ClientFrame::Complete { submission, done, .. } => {
            (*submission, done.iter().map(|it| it.chunk).collect())
        }
        ClientFrame::Fail { submission, failed, .. } => {
            (*submission, failed.iter().map(|it| it.chunk).collect())
        }
        ClientFrame::Release { submission, chunks, .. }
        | ClientFrame::Reassert { submission, chunks, .. } => (*submission, chunks.clone()),
        ClientFrame::CompleteTasks { tasks, .. } => {
            return tasks.iter().map(|it| key(it.task, it.chunk())).collect();
        }
        ClientFrame::Hello { .. }
        | ClientFrame::Heartbeat {}
        | ClientFrame::Reserve { .. }
        | ClientFrame::Add { .. } => return Vec::new(),
    };
    chunks.into_iter().map(|work| key(submission, work)).collect()
}

#[cfg(test)]
#[path = "book_stories.rs"]
mod stories;
