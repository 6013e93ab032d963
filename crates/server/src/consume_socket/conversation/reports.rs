//! Reports of a conversation: what a consumer says goes through the log side by side, and is answered as its outcome is known.
//!
//! Invariants
//! - Reports that go through the log together have numbers that follow each other.

use super::{Conversation, Happened, refused};
use crate::consume_socket::work;
use crate::service::ReportUnderWay;
use crate::service::complete::Completion;
use futures_util::FutureExt;
use windlass_api::frames::{ServerFrame, TaskToAdd, Verdict};
use windlass_api::lanes::AddTasksRequest;
use windlass_api::problem::Problem;
use windlass_order::COMMANDS_TOGETHER_MAX;

/// A completion that is not yet on its way: others may have come with it.
#[derive(Debug)]
pub(super) struct Gathered {
    request: u64,
    completion: Completion,
    under_way: ReportUnderWay,
}

impl Conversation {
    /// Keeps a completion for those that may come with it.
    pub(super) fn gather(&mut self, request: u64, completion: Completion) {
        self.number_next(self.frame_bytes);
        let under_way = self.service.count_report(self.frame_bytes);
        self.gathered.push(Gathered { request, completion, under_way });
        if self.gathered.len() == COMMANDS_TOGETHER_MAX {
            self.report_gathered();
        }
    }

    /// Sends what was gathered on its way, and answers each when the outcomes are known.
    pub(super) fn report_gathered(&mut self) {
        let numbers = self.next_report - self.gathered.len() as u64..self.next_report;
        // Most consumers report one at a time.
        if self.gathered.len() <= 1 {
            let Some(Gathered { request, completion, under_way }) = self.gathered.pop() else { return };
            let outcome = self.service.complete(completion);
            return self.await_report(numbers.start, request, under_way, outcome);
        }
        let reports = std::mem::take(&mut self.gathered).into_iter();
        let reports = reports.map(|it| ((it.request, it.under_way), it.completion));
        let (asked, completions): (Vec<_>, Vec<_>) = reports.unzip();
        self.awaited.push(Box::pin(self.service.complete_all(completions).map(move |answers| {
            let frames = asked.iter().zip(answers).map(|((request, _), answer)| settled(*request, answer));
            Happened::Answered { numbers, outcome: Ok(frames.collect()) }
        })));
    }

    /// Answers a report when its outcome is known, without keeping the next frame waiting.
    pub(super) fn report(
        &mut self,
        request: u64,
        outcome: impl Future<Output = Result<Vec<Verdict>, Problem>> + Send + 'static,
    ) {
        let number = self.next_number(self.frame_bytes);
        let under_way = self.service.count_report(self.frame_bytes);
        self.await_report(number, request, under_way, outcome);
    }

    fn await_report(
        &mut self,
        number: u64,
        request: u64,
        under_way: ReportUnderWay,
        outcome: impl Future<Output = Result<Vec<Verdict>, Problem>> + Send + 'static,
    ) {
        self.awaited.push(Box::pin(outcome.map(move |answer| {
            drop(under_way);
            let frame = settled(request, answer);
            Happened::Answered { numbers: number..number + 1, outcome: Ok(vec![frame]) }
        })));
    }

    /// Adds tasks, without keeping the next frame waiting.
    pub(super) fn add(
        &mut self,
        request: u64,
        lane: String,
        tasks: Vec<TaskToAdd>,
        idempotency_key: Option<String>,
    ) {
        let number = self.next_number(self.frame_bytes);
        let under_way = self.service.count_report(self.frame_bytes);
        let tasks = AddTasksRequest { tasks: tasks.into_iter().map(work::request_of).collect() };
        let added = self.service.add_tasks(lane, tasks, idempotency_key);
        self.awaited.push(Box::pin(added.map(move |added| {
            drop(under_way);
            let frame = match added {
                Ok(added) => ServerFrame::Added { request, tasks: added.tasks },
                Err(problem) => refused(request, &problem),
            };
            Happened::Answered { numbers: number..number + 1, outcome: Ok(vec![frame]) }
        })));
    }

    /// The number of something that is reported by itself. What was gathered before goes first, so that its numbers follow each other.
    fn next_number(&mut self, bytes: usize) -> u64 {
        self.report_gathered();
        self.number_next(bytes)
    }

    fn number_next(&mut self, bytes: usize) -> u64 {
        let number = self.next_report;
        self.next_report += 1;
        self.unanswered.push(number, bytes);
        number
    }
}

fn settled(request: u64, answer: Result<Vec<Verdict>, Problem>) -> ServerFrame {
    match answer {
        Ok(verdicts) => ServerFrame::Settled { request, verdicts },
        Err(problem) => refused(request, &problem),
    }
}
