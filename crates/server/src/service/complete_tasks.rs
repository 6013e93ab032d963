//! The lanes room's verb complete: tasks that consumers say are done, many with one command.

use super::Service;
use super::complete::{settled_of, verdicts};
use super::not_leading;
use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use windlass_api::frames::Verdict;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::{Command, Settled};
use windlass_core::ids::{ChunkIndex, ChunkName};
use windlass_core::lanes::places::Place;
use windlass_core::lanes::settle::CompleteTasks;
use windlass_core::lanes::tasks::TaskId;
use windlass_core::limits::{CHUNKS_PER_SETTLE_MAX, TASKS_PER_COMPLETE_MAX};

impl Service {
    /// Reports tasks as done. A late report counts if it is the first; a token that was never handed out does not reach the log.
    pub fn complete_tasks(
        &self,
        tasks: Vec<(TaskId, AttemptToken)>,
    ) -> impl Future<Output = Result<Vec<Verdict>, Problem>> + Send + use<> {
        let Ok(key) = self.token_key() else { return Either::Left(ready(Err(not_leading()))) };
        if tasks.len() > CHUNKS_PER_SETTLE_MAX {
            let detail =
                format!("one report names at most {CHUNKS_PER_SETTLE_MAX} tasks; send several for more");
            return Either::Left(ready(Err(Problem::new(ProblemCode::InvalidRequest, detail))));
        }
        let name = |task| ChunkName { submission: task, chunk: ChunkIndex(0) };
        let is_genuine = |(task, token): &(TaskId, AttemptToken)| {
            token.attempt.is_of_task() && token.is_of(&key, name(*task))
        };
        let decided: Vec<Option<Verdict>> =
            tasks.iter().map(|it| (!is_genuine(it)).then_some(Verdict::TokenInvalid)).collect();
        let genuine = tasks.iter().zip(&decided).filter(|(_, decided)| decided.is_none());
        let settled = self.settle_tasks(genuine.map(|((task, _), _)| *task).collect());
        Either::Right(async move { Ok(verdicts(settled.await?, decided)) })
    }

    /// What becomes of tasks that were handed out and are done, in their order.
    pub(super) fn settle_tasks(
        &self,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<Settled>, Problem>> + Send + use<> {
        let parts = tasks.chunks(TASKS_PER_COMPLETE_MAX).map(|part| self.report_of(part));
        let (commands, orders): (Vec<Command>, Vec<Vec<usize>>) =
            parts.map(|(report, order)| (Command::CompleteTasks(report), order)).unzip();
        let outcomes = match <[Command; 1]>::try_from(commands) {
            Ok([command]) => Either::Left(self.propose(command).map(|outcome| vec![outcome])),
            Err(commands) => Either::Right(self.propose_all(commands)),
        };
        async move {
            let mut settled = Vec::with_capacity(tasks.len());
            for (outcome, order) in outcomes.await.into_iter().zip(orders) {
                let of_part = settled_of(outcome?)?;
                let first = settled.len();
                settled.resize(first + of_part.len(), Settled::AlreadyDone);
                order.into_iter().zip(of_part).for_each(|(nth, it)| settled[first + nth] = it);
            }
            Ok(settled)
        }
    }

    /// The report of some tasks, with the places that the Dispatcher knows. It is kept from others for no longer than it takes to look.
    fn report_of(&self, tasks: &[TaskId]) -> (CompleteTasks, Vec<usize>) {
        let places = self.dispatcher().look_at_lanes(|desk, _| {
            tasks.iter().map(|id| desk.place_of(*id).cloned()).collect::<Vec<Option<Place>>>()
        });
        let places = places.unwrap_or_else(|| vec![None; tasks.len()]);
        CompleteTasks::of(tasks.iter().zip(&places).map(|(id, place)| (*id, place.as_ref())))
    }
}
