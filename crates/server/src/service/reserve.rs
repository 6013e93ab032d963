//! The batch room's verbs on chunks: reserve, complete, fail, extend, release, re-assert.

use super::Service;
use super::abouts::{About, AboutFields};
use super::batch::unexpected;
use super::lanes::{TaskToDo, place_of_task};
use crate::limits::{LEASE_COVER_MS, LEASE_MS_MAX, LEASE_MS_MIN, RESERVE_ANSWER_BYTES, RESERVE_WAIT_MS_MAX};
use crate::metrics;
use crate::roles::dispatcher::{Ask, Asker, Event, NotLeased, Reasserted};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use windlass_api::blob::Blob;
use windlass_api::frames::Verdict;
use windlass_api::json::{ReservationInfo, ReserveRequest, ReserveResponse, time_text};
use windlass_api::objects::{input_key, output_key};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::{HandOut, SessionId, Standing};
use windlass_core::batch::roster::Enlist;
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::Metadata;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::branches::outputs::OutputEntry;
use windlass_core::entry::{Command, Fail, FailedAttempt, Outcome, Output, Settled};
use windlass_core::ids::{ChunkIndex, ChunkName, SubmissionId};
use windlass_core::lanes::tasks::Payload;
use windlass_core::limits::{CHUNKS_PER_RESERVE_MAX, FAILURE_REASON_BYTES_MAX};
use windlass_core::time::At;

/// A chunk as a door names it, with what is said of it.
#[derive(Debug, Clone)]
pub struct Report<T> {
    /// Which chunk.
    pub chunk: ChunkIndex,
    /// The token that came with its reservation.
    pub token: AttemptToken,
    /// What is said of it.
    pub said: T,
}

/// What a chunk's work gave.
#[derive(Debug, Clone)]
pub struct Gave {
    /// What is kept for whoever asks for the chunk's result.
    pub output: Output,
    /// What goes to the branch that the submission names.
    pub entries: Vec<OutputEntry>,
}

/// Whether a reserve can be served at all.
pub fn check_reserve(max: usize, strategy: &Strategy) -> Result<(), Problem> {
    if max == 0 || max > CHUNKS_PER_RESERVE_MAX {
        let detail = format!("`max` is between 1 and {CHUNKS_PER_RESERVE_MAX}");
        return Err(Problem::new(ProblemCode::InvalidRequest, detail));
    }
    match strategy.problem() {
        Some(problem) => Err(Problem::new(ProblemCode::StrategyInvalid, problem)),
        None => Ok(()),
    }
}

/// The deadline of a lease.
fn lease_ms(lease_ms: u64) -> Result<u64, Problem> {
    if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&lease_ms) {
        return Ok(lease_ms);
    }
    let detail = format!(
        "`lease_ms` is between {LEASE_MS_MIN} and {LEASE_MS_MAX}; extend the lease as the work goes on"
    );
    Err(Problem::new(ProblemCode::InvalidRequest, detail))
}

impl Service {
    /// Reserves for a caller without a session.
    pub async fn reserve(&self, request: ReserveRequest) -> Result<ReserveResponse, Problem> {
        check_reserve(request.max, &request.strategy)?;
        let lease_ms = lease_ms(request.lease_ms)?;
        let wait_ms = request.wait_ms.min(RESERVE_WAIT_MS_MAX);
        let (begin, wait) = (Instant::now(), Duration::from_millis(wait_ms));
        let strategy = Arc::new(request.strategy);
        let mut is_covered = self.dispatcher().has_hard_limit(&strategy);
        let reservations = loop {
            if is_covered {
                self.cover_lease(lease_ms + wait_ms).await?;
            }
            let wait = wait.saturating_sub(begin.elapsed());
            let lease = Lease { lease_ms, wait, is_covered };
            match self.hand_out(request.max, Arc::clone(&strategy), lease).await? {
                Leased::Work(hand_outs, until) => {
                    let reservations = self.reservations(&hand_outs, until);
                    // If all of it was done meanwhile by those who had it before, there may be more, now or before the time is over.
                    if !reservations.is_empty() || hand_outs.is_empty() {
                        break reservations;
                    }
                }
                // A limit has come about since it was looked for one.
                Leased::Uncovered => is_covered = true,
                Leased::Nothing => break Vec::new(),
            }
        };
        metrics::RESERVED_CHUNKS.increment(reservations.len() as u64);
        Ok(ReserveResponse { reservations })
    }

    /// What the Dispatcher hands out to a caller without a session.
    async fn hand_out(&self, max: usize, strategy: Arc<Strategy>, lease: Lease) -> Result<Leased, Problem> {
        let Lease { lease_ms, wait, is_covered } = lease;
        let (reply, answer) = oneshot::channel();
        let asker = Asker::Lease { lease_ms, wait: !wait.is_zero(), is_covered, reply };
        // The answer of a lease comes by its own way.
        drop(self.dispatcher().reserve(Ask { max, strategy, asker }));
        let mut asked = Asked { service: self, answer };
        // An ask that does not wish to wait is answered at once.
        let limit = if wait.is_zero() { Duration::from_secs(10) } else { wait };
        match tokio::time::timeout(limit, &mut asked.answer).await {
            Ok(Ok(Ok((hand_outs, until)))) => Ok(Leased::Work(hand_outs, until)),
            Ok(Ok(Err(NotLeased::Uncovered))) => Ok(Leased::Uncovered),
            Ok(Ok(Err(NotLeased::Refused(problem)))) => {
                Err(Problem::new(ProblemCode::StrategyInvalid, problem))
            }
            Ok(Err(_)) | Err(_) => Ok(Leased::Nothing),
        }
    }

    /// Notes in the log that leases under a hard limit may run this long from now on, unless that is known already: a new
    /// leader waits for them. Noting a minute more than is asked for keeps the log small.
    pub(super) async fn cover_lease(&self, lease_ms: u64) -> Result<(), Problem> {
        let now = self.clock().now();
        if self.leases_covered_until() >= now.after_ms(lease_ms) {
            return Ok(());
        }
        let leases_ms = lease_ms + LEASE_COVER_MS;
        self.propose(Command::Enlist(Enlist { leases_ms, ..Enlist::default() })).await?;
        self.set_leases_covered_until(now.after_ms(leases_ms));
        Ok(())
    }

    /// The chunks as a caller without a session sees them. What would make the answer too large goes back unharmed.
    fn reservations(&self, hand_outs: &[HandOut], until: At) -> Vec<ReservationInfo> {
        let (mut reservations, mut too_many, mut bytes) = (Vec::new(), Vec::new(), 0);
        for hand_out in hand_outs {
            let HandOut { submission, chunks, .. } = hand_out;
            if bytes > RESERVE_ANSWER_BYTES {
                let name = |chunk| ChunkName { submission: *submission, chunk };
                too_many.extend(chunks.iter().map(|(chunk, token)| (name(*chunk), *token)));
                continue;
            }
            let said = match &hand_out.task {
                Some(place) => match self.look_at_task(place, |task| OfTask::from(task)) {
                    Some(of_task) => Said::OfTask(of_task),
                    None => continue,
                },
                None => Said::OfSubmission(self.abouts().look(self.order(), hand_out, About::clone)),
            };
            for (chunk, token) in chunks {
                bytes += said.bytes();
                if bytes > RESERVE_ANSWER_BYTES && !reservations.is_empty() {
                    too_many.push((ChunkName { submission: *submission, chunk: *chunk }, *token));
                } else {
                    reservations.push(reservation_of(*submission, *chunk, *token, &said, until));
                }
            }
        }
        if !too_many.is_empty() {
            // Nobody waits for the verdicts: each of these was handed out a moment ago.
            drop(self.release(too_many));
        }
        reservations
    }

    /// Reports attempts at chunks of one submission as failed. Only the holder's report counts. A reason that is too long
    /// is cut, since a failure must not fail.
    pub async fn fail(
        &self,
        submission: SubmissionId,
        reports: Vec<Report<String>>,
    ) -> Result<Vec<Verdict>, Problem> {
        let names: Vec<(ChunkName, AttemptToken)> =
            reports.iter().map(|it| (ChunkName { submission, chunk: it.chunk }, it.token)).collect();
        let asked = names.clone();
        let standings = self.ask(|reply| Event::Standing(asked, reply)).await?;
        // A chunk that the reserver does not know is settled: the machine says how.
        let may_count = |standing: &Standing| matches!(standing, Standing::Holds | Standing::Settled);
        let failed: Vec<FailedAttempt> = reports
            .into_iter()
            .zip(&standings)
            .filter(|(_, standing)| may_count(standing))
            .map(|(it, _)| FailedAttempt {
                chunk: it.chunk,
                attempt: it.token.attempt,
                reason: cut_reason(it.said),
            })
            .collect();
        let settled = if failed.is_empty() {
            Vec::new()
        } else {
            self.settle(Command::Fail(Fail { submission, failed })).await?
        };
        let decided = standings.iter().map(|it| (!may_count(it)).then(|| self.verdict_of(submission, *it)));
        let verdicts = weave(settled, decided);
        // A holder whose failure does not count, since a later attempt has failed before, gives its chunk back.
        let uncounted =
            names.into_iter().zip(&standings).zip(&verdicts).filter(|((_, standing), verdict)| {
                **standing == Standing::Holds && **verdict == Verdict::AlreadyFailed
            });
        let uncounted: Vec<_> = uncounted.map(|((name, _), _)| name).collect();
        if !uncounted.is_empty() {
            self.release(uncounted).await?;
        }
        let accepted = verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count();
        metrics::FAILED_ATTEMPTS.increment(accepted as u64);
        Ok(verdicts)
    }

    pub(super) fn settle(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Vec<Settled>, Problem>> + Send + use<> {
        self.propose(command).map(|outcome| match outcome? {
            Outcome::Settled(settled) => Ok(settled),
            other => Err(unexpected(&other)),
        })
    }

    /// Moves leases' deadlines.
    pub async fn extend(
        &self,
        chunks: Vec<(ChunkName, AttemptToken)>,
        ms: u64,
    ) -> Result<Vec<Verdict>, Problem> {
        let lease_ms = lease_ms(ms)?;
        let has_limits = || self.leases_covered_until() > At::default() || self.dispatcher().limits_lanes();
        let is_covered = has_limits();
        if is_covered {
            self.cover_lease(lease_ms).await?;
        }
        let until = self.clock().now().after_ms(lease_ms);
        let verdicts = self.verdicts(chunks, |chunks, reply| Event::Extend(chunks, until, reply)).await?;
        // A limit that has come about meanwhile counted the leases as they were before. Nobody leans on this one until it is told.
        if !is_covered && has_limits() {
            self.cover_lease(lease_ms).await?;
        }
        Ok(verdicts)
    }

    /// Takes chunks back unharmed; the question is on its way when this returns.
    pub fn release(
        &self,
        chunks: Vec<(ChunkName, AttemptToken)>,
    ) -> BoxFuture<'static, Result<Vec<Verdict>, Problem>> {
        self.verdicts(chunks, Event::Release)
    }

    /// Gives a session back what it still works on; the question is on its way when this returns, so that a reserve that
    /// follows it does not hand the same chunks to somebody else.
    pub fn reassert(
        &self,
        session: SessionId,
        chunks: Vec<(ChunkName, AttemptToken)>,
    ) -> BoxFuture<'static, Result<Vec<Verdict>, Problem>> {
        // No task gets another place between the look at it and the Dispatcher's hearing of it.
        self.order().read(|machine| {
            self.verdicts(chunks, |chunks, reply| {
                let claimed = chunks.into_iter().map(|(name, token)| {
                    let place = token.attempt.is_of_task().then(|| place_of_task(machine.tables(), name));
                    Reasserted { name, token, place: place.flatten() }
                });
                Event::Reassert(session, claimed.collect(), reply)
            })
        })
    }

    fn verdicts(
        &self,
        chunks: Vec<(ChunkName, AttemptToken)>,
        event: impl FnOnce(Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>) -> Event,
    ) -> BoxFuture<'static, Result<Vec<Verdict>, Problem>> {
        let submissions: Vec<SubmissionId> = chunks.iter().map(|(name, _)| name.submission).collect();
        let standings = self.ask(|reply| event(chunks, reply));
        let service = self.clone();
        Box::pin(async move {
            let standings = standings.await?;
            Ok(submissions.into_iter().zip(standings).map(|(id, it)| service.verdict_of(id, it)).collect())
        })
    }

    fn verdict_of(&self, submission: SubmissionId, standing: Standing) -> Verdict {
        match standing {
            Standing::Holds => Verdict::Accepted,
            Standing::Lost => Verdict::ReservationLost,
            Standing::Forged => Verdict::TokenInvalid,
            Standing::Settled
                if self.order().read(|machine| machine.batch().submission(submission).is_none()) =>
            {
                Verdict::SubmissionOver
            }
            Standing::Settled => Verdict::AlreadyDone,
        }
    }
}

/// How a caller without a session asks.
struct Lease {
    lease_ms: u64,
    wait: Duration,
    /// The log knows that leases as long as this one may run.
    is_covered: bool,
}

/// What such a caller gets.
enum Leased {
    /// This, until then.
    Work(Vec<HandOut>, At),
    /// Nothing in its time.
    Nothing,
    /// Nothing before the log knows of its lease.
    Uncovered,
}

/// An ask whose caller may go away at any moment: what was handed out and never looked at goes back unharmed.
struct Asked<'a> {
    service: &'a Service,
    answer: oneshot::Receiver<Result<(Vec<HandOut>, At), NotLeased>>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok((hand_outs, _))) = self.answer.try_recv() {
            let names = |it: HandOut| {
                let submission = it.submission;
                it.chunks.into_iter().map(move |(chunk, token)| (ChunkName { submission, chunk }, token))
            };
            drop(self.service.release(hand_outs.into_iter().flat_map(names).collect()));
        }
    }
}

fn cut_reason(mut reason: String) -> String {
    if reason.len() > FAILURE_REASON_BYTES_MAX {
        let end = (0..=FAILURE_REASON_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or(0));
    }
    reason
}

/// What a consumer is told of what it got.
enum Said {
    OfSubmission(About),
    OfTask(OfTask),
}

/// The same of a task.
struct OfTask {
    lane: String,
    key: String,
    payload: Payload,
}

impl From<TaskToDo<'_>> for OfTask {
    fn from(TaskToDo { lane, key, payload }: TaskToDo<'_>) -> OfTask {
        OfTask { lane: lane.to_owned(), key: key.to_owned(), payload: payload.to_owned() }
    }
}

impl Said {
    fn bytes(&self) -> usize {
        match self {
            Said::OfSubmission(about) => about.bytes(),
            Said::OfTask(task) => 64 + task.key.len() + task.payload.bytes(),
        }
    }
}

fn reservation_of(
    submission: SubmissionId,
    chunk: ChunkIndex,
    token: AttemptToken,
    said: &Said,
    until: At,
) -> ReservationInfo {
    let mut info = ReservationInfo {
        submission,
        chunk,
        token: token.to_string(),
        lane: None,
        key: None,
        input_key: None,
        payload: None,
        opaque: None,
        metadata: Metadata::default(),
        output_key: output_key(submission, chunk, token.attempt),
        output_branch: None,
        until: time_text(until),
    };
    match said {
        Said::OfSubmission(about) => {
            let AboutFields { prefix, payload, opaque, metadata } = about.fields();
            info.input_key = prefix.map(|prefix| input_key(&prefix, chunk));
            info.payload = payload.map(|payload| Blob(payload.into()));
            info.opaque = opaque.map(|opaque| Blob(opaque.into()));
            info.metadata = metadata;
            info.output_branch = about.branch().map(str::to_owned);
        }
        Said::OfTask(OfTask { lane, key, payload }) => {
            (info.lane, info.key) = (Some(lane.clone()), Some(key.clone()));
            (info.input_key, info.payload) = match payload {
                Payload::Nothing => (None, None),
                Payload::Object(object) => (Some(object.clone()), None),
                Payload::Inline(payload) => (None, Some(Blob(payload.to_vec()))),
            };
        }
    }
    info
}

/// Groups reports by submission, since a command is about one; remembers where each came from.
pub fn by_submission<T>(
    reports: impl IntoIterator<Item = (SubmissionId, Report<T>)>,
) -> BTreeMap<SubmissionId, (Vec<usize>, Vec<Report<T>>)> {
    let mut grouped: BTreeMap<SubmissionId, (Vec<usize>, Vec<Report<T>>)> = BTreeMap::new();
    for (place, (submission, report)) in reports.into_iter().enumerate() {
        let (places, group) = grouped.entry(submission).or_default();
        places.push(place);
        group.push(report);
    }
    grouped
}

/// The verdicts of all chunks in their order: those that were decided before the log, and between them the settled ones.
pub(super) fn weave(settled: Vec<Settled>, decided: impl Iterator<Item = Option<Verdict>>) -> Vec<Verdict> {
    let mut settled = settled.into_iter().map(|it| match it {
        Settled::Accepted => Verdict::Accepted,
        Settled::AlreadyDone => Verdict::AlreadyDone,
        Settled::AlreadyFailed => Verdict::AlreadyFailed,
        Settled::SubmissionOver => Verdict::SubmissionOver,
        Settled::NoSuchChunk => Verdict::NoSuchChunk,
    });
    let from_log = |verdict: Option<Verdict>| {
        verdict.unwrap_or_else(|| settled.next().expect("the machine settles every chunk it is given"))
    };
    decided.map(from_log).collect()
}
