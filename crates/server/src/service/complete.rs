//! The batch room's verb complete: what consumers say is done, one submission's chunks or many submissions' at once.

use super::Service;
use super::reserve::{Gave, Report, weave};
use crate::metrics;
use futures_util::FutureExt;
use futures_util::future::{Either, OptionFuture, join_all, join3, ready};
use windlass_api::frames::Verdict;
use windlass_api::problem::Problem;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::branches::outputs::problem_of_outputs;
use windlass_core::entry::{Command, Complete, Done, Outcome, Output, Settled};
use windlass_core::ids::{ChunkName, SubmissionId};
use windlass_core::limits::{INLINE_OUTPUT_BYTES_MAX, OUTPUTS_PER_REPORT_MAX};

/// What is reported of chunks of one submission.
#[derive(Debug)]
pub struct Completion {
    /// The submission, or the task.
    pub submission: SubmissionId,
    /// Its chunks.
    pub reports: Vec<Report<Gave>>,
}

/// A completion, looked at before the log.
struct Checked {
    submission: SubmissionId,
    /// What the log decides.
    done: Vec<Done>,
    /// What does not count, and fails its attempt.
    refused: Vec<Report<String>>,
    /// The verdict of each chunk, if it is known already.
    decided: Vec<Option<Verdict>>,
}

impl Service {
    /// Reports chunks of one submission as done. A late report counts if it is the first; a token that was never handed
    /// out does not reach the log; an output that is too large or breaks a rule fails its attempt and no other.
    pub fn complete(
        &self,
        completion: Completion,
    ) -> impl Future<Output = Result<Vec<Verdict>, Problem>> + Send + use<> {
        let mut checked = match self.token_key() {
            Ok(key) => self.checked(&key, completion),
            Err(problem) => return Either::Left(ready(Err(problem))),
        };
        Either::Right(if checked.is_one_command() && checked.refused.is_empty() {
            let settled = match checked.is_one_task() {
                true => Either::Left(self.settle_tasks(vec![checked.submission])),
                false => Either::Right(self.settle(Command::Complete(checked.take_done()))),
            };
            Either::Left(settled.map(move |settled| Ok(verdicts(settled?, checked.decided))))
        } else {
            // Rare, and its state is large: it has a place of its own.
            let service = self.clone();
            Either::Right(Box::pin(async move { service.answer_to(checked, None).await }))
        })
    }

    /// The same for several at once, each with its own answer; they go through the log together.
    pub fn complete_all(
        &self,
        completions: Vec<Completion>,
    ) -> impl Future<Output = Vec<Result<Vec<Verdict>, Problem>>> + Send + use<> {
        let key = match self.token_key() {
            Ok(key) => key,
            Err(problem) => return Either::Left(ready(vec![Err(problem); completions.len()])),
        };
        let checked = completions.into_iter().map(|completion| self.checked(&key, completion)).enumerate();
        let (tasks, chunks): (Vec<_>, Vec<_>) = checked.partition(|(_, it)| it.is_one_task());
        let ids = tasks.iter().map(|(_, it)| it.submission).collect();
        let settled_tasks = (!tasks.is_empty()).then(|| self.settle_tasks(ids));
        // A command for each, but for those that need several, or none.
        let (mut usual, rare): (Vec<_>, Vec<_>) = chunks.into_iter().partition(|(_, it)| it.is_one_command());
        let commands = usual.iter_mut().map(|(_, it)| Command::Complete(it.take_done())).collect();
        let settled = self.propose_all(commands);
        let service = self.clone();
        let answer = async move |(place, it), settled| (place, service.answer_to(it, settled).await);
        Either::Right(async move {
            let rare = join_all(rare.into_iter().map(|it| answer(it, None)));
            let settled_tasks = OptionFuture::from(settled_tasks);
            let (settled, mut answers, settled_tasks) = join3(settled, rare, settled_tasks).await;
            match settled_tasks.transpose() {
                Ok(settled) => {
                    let of_tasks = tasks.into_iter().zip(settled.unwrap_or_default());
                    answers.extend(
                        of_tasks.map(|((at, it), settled)| (at, Ok(verdicts(vec![settled], it.decided)))),
                    );
                }
                Err(problem) => answers.extend(tasks.into_iter().map(|(at, _)| (at, Err(problem.clone())))),
            }
            let settled = settled.into_iter().map(|outcome| settled_of(outcome?));
            let usual = usual.into_iter().zip(settled).map(|(it, settled)| answer(it, Some(settled)));
            answers.extend(join_all(usual).await);
            answers.sort_unstable_by_key(|(place, _)| *place);
            answers.into_iter().map(|(_, answer)| answer).collect()
        })
    }

    fn checked(&self, key: &[u8; 16], Completion { submission, reports }: Completion) -> Checked {
        let mut checked = Checked {
            submission,
            done: Vec::with_capacity(reports.len()),
            refused: Vec::new(),
            decided: Vec::with_capacity(reports.len()),
        };
        for Report { chunk, token, said: Gave { output, entries } } in reports {
            let decided = if token.is_of(key, ChunkName { submission, chunk }) {
                let entries = (!entries.is_empty()).then_some(entries);
                let gave = Done { chunk, attempt: token.attempt, output, entries };
                let refusal = self.refusal_of_output(submission, &gave);
                checked.note(gave, token, refusal)
            } else {
                Some(Verdict::TokenInvalid)
            };
            checked.decided.push(decided);
        }
        checked
    }

    /// Why a chunk's work does not count: what it gave is too large, or is not for the branch that its submission names.
    fn refusal_of_output(&self, submission: SubmissionId, done: &Done) -> Option<(Verdict, String)> {
        if let Output::Inline(bytes) = &done.output
            && bytes.len() > INLINE_OUTPUT_BYTES_MAX
        {
            let reason = format!(
                "the inline output has {} bytes and may have {INLINE_OUTPUT_BYTES_MAX}; store it as an object",
                bytes.len()
            );
            return Some((Verdict::OutputTooLarge, reason));
        }
        done.entries.as_ref()?;
        let has_branch = !done.attempt.is_of_task()
            && self.abouts().glance(self.order(), submission, |about| about.branch().is_some());
        let no_branch =
            || (!has_branch).then(|| "there is no output branch that these outputs could go to".to_owned());
        let problem = no_branch().or_else(|| problem_of_outputs(submission, done))?;
        Some((Verdict::OutputRefused, problem))
    }

    /// What is said to a consumer, once what needs the log more than once, or not at all, is settled as well.
    async fn answer_to(
        &self,
        Checked { submission, done, refused, decided }: Checked,
        settled: Option<Result<Vec<Settled>, Problem>>,
    ) -> Result<Vec<Verdict>, Problem> {
        let settled = match settled {
            Some(settled) => settled?,
            // Rare, and their state is large: these have places of their own.
            None => Box::pin(self.settle_done(submission, done)).await?,
        };
        if !refused.is_empty() {
            Box::pin(self.fail(submission, refused)).await?;
        }
        Ok(verdicts(settled, decided))
    }

    /// Settles chunks that are done, in commands of bounded size.
    async fn settle_done(&self, submission: SubmissionId, done: Vec<Done>) -> Result<Vec<Settled>, Problem> {
        let mut settled = Vec::with_capacity(done.len());
        let (mut part, mut entries) = (Vec::new(), 0);
        for it in done {
            let count = it.entries.as_ref().map_or(0, Vec::len);
            if entries + count > OUTPUTS_PER_REPORT_MAX {
                let done = std::mem::take(&mut part);
                settled.extend(self.settle(Command::Complete(Complete { submission, done })).await?);
                entries = 0;
            }
            entries += count;
            part.push(it);
        }
        if !part.is_empty() {
            settled.extend(self.settle(Command::Complete(Complete { submission, done: part })).await?);
        }
        Ok(settled)
    }
}

impl Checked {
    /// Notes what a chunk's work gave, or why it does not count; the verdict, if it needs no log.
    fn note(
        &mut self,
        gave: Done,
        token: AttemptToken,
        refusal: Option<(Verdict, String)>,
    ) -> Option<Verdict> {
        match refusal {
            Some((verdict, reason)) => {
                self.refused.push(Report { chunk: gave.chunk, token, said: reason });
                Some(verdict)
            }
            None => {
                self.done.push(gave);
                None
            }
        }
    }

    /// Whether it is about a task that is done. What a task's work gave is not kept.
    fn is_one_task(&self) -> bool {
        self.refused.is_empty() && matches!(&self.done[..], [done] if done.attempt.is_of_task())
    }

    fn is_one_command(&self) -> bool {
        let entries: usize = self.done.iter().filter_map(|it| it.entries.as_ref()).map(Vec::len).sum();
        !self.done.is_empty() && entries <= OUTPUTS_PER_REPORT_MAX
    }

    fn take_done(&mut self) -> Complete {
        Complete { submission: self.submission, done: std::mem::take(&mut self.done) }
    }
}

/// The verdict of each chunk: those of the log among those that were known before.
pub(super) fn verdicts(settled: Vec<Settled>, decided: Vec<Option<Verdict>>) -> Vec<Verdict> {
    let verdicts = weave(settled, decided.into_iter());
    let accepted = verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count();
    metrics::COMPLETED_CHUNKS.increment(accepted as u64);
    verdicts
}

pub(super) fn settled_of(outcome: Outcome) -> Result<Vec<Settled>, Problem> {
    match outcome {
        Outcome::Settled(settled) => Ok(settled),
        Outcome::Refused(refusal) => Err(super::problem_of_refusal(&refusal)),
        other => Err(super::batch::unexpected(&other)),
    }
}
