//! The one who tells the stories: a machine under one leadership after the other, with its reserver beside it.

use windlass_core::audit;
use windlass_core::batch::reserver::{Holder, Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::Submit;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::{
    Applied, Cancel, Command, Complete, Done, Entry, Fail, FailedAttempt, Lead, Outcome, Output, RetryFailed,
    Settled,
};
use windlass_core::ids::{
    Attempt, ChunkIndex, ChunkName, ContinuationToken, Epoch, SenderId, Shard, SubmissionId,
};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables};
use windlass_core::time::At;

/// When every story begins.
pub(crate) const BEGIN: At = At::from_ms(1_750_000_000_000);

pub(crate) struct Leader {
    pub(crate) machine: Machine<MemoryTables>,
    pub(crate) reserver: Reserver,
    pub(crate) now: At,
    entries: u64,
}

impl Leader {
    /// The first leader of a new machine.
    pub(crate) fn new() -> Leader {
        let mut leader = Leader {
            machine: Machine::open(MemoryTables::default()),
            reserver: Reserver::new(Epoch(0), [0; 16], 0, std::iter::empty()),
            now: BEGIN,
            entries: 0,
        };
        leader.change();
        leader
    }

    /// The next leader takes over, on another member: it knows what the rows say.
    pub(crate) fn change(&mut self) {
        let epoch = Epoch(self.machine.epoch().0 + 1);
        self.apply_under(epoch, Command::Lead(Lead { shard: Shard::default() }));
        self.machine = Machine::open(self.machine.tables().clone());
        let unsettled: Vec<_> = self.machine.unsettled().collect();
        self.reserver = Reserver::new(epoch, self.machine.token_key(), 1, unsettled.into_iter());
    }

    /// Applies a command, absorbs its effects, and audits both.
    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        let applied = self.apply_under(self.machine.epoch(), command);
        for effect in &applied.effects {
            self.reserver.absorb(effect);
        }
        // The audit looks at chunk after chunk, which nobody waits for with billions of them.
        if self.machine.batch().unsettled() < 100_000 {
            audit::check_reserver(&self.machine, &self.reserver);
        }
        applied
    }

    fn apply_under(&mut self, epoch: Epoch, command: Command) -> Applied {
        self.entries += 1;
        let applied = self.machine.apply(Entry {
            epoch,
            at: self.now,
            seed: self.entries,
            sender: SenderId(1),
            token: ContinuationToken(self.entries),
            command,
        });
        self.machine.flush();
        audit::check(&self.machine);
        applied
    }

    pub(crate) fn submit(&mut self, submit: Submit) -> SubmissionId {
        match self.apply(Command::Submit(submit)).outcome {
            Outcome::Submitted { submission } => submission,
            other => panic!("the submission is taken in, not answered with {other:?}"),
        }
    }

    pub(crate) fn complete(&mut self, name: ChunkName, attempt: Attempt) -> Settled {
        let done = vec![Done { chunk: name.chunk, attempt, output: Output::Stored, entries: None }];
        self.settle(Command::Complete(Complete { submission: name.submission, done }))
    }

    pub(crate) fn fail(&mut self, name: ChunkName, attempt: Attempt) -> Settled {
        let failed = vec![FailedAttempt { chunk: name.chunk, attempt, reason: "it broke".into() }];
        self.settle(Command::Fail(Fail { submission: name.submission, failed }))
    }

    fn settle(&mut self, command: Command) -> Settled {
        match self.apply(command).outcome {
            Outcome::Settled(settled) => *settled.first().expect("one was reported"),
            other => panic!("the report is taken in, not answered with {other:?}"),
        }
    }

    pub(crate) fn cancel(&mut self, submission: SubmissionId) -> Outcome {
        self.apply(Command::Cancel(Cancel { submission })).outcome
    }

    pub(crate) fn retry_failed(&mut self, submission: SubmissionId) -> Outcome {
        self.apply(Command::RetryFailed(RetryFailed { submission })).outcome
    }

    /// Hands a session up to `max` chunks, oldest submission first.
    pub(crate) fn reserve(&mut self, session: SessionId, max: usize) -> Vec<(ChunkName, AttemptToken)> {
        self.reserve_as(Holder::Session(session), max)
    }

    pub(crate) fn reserve_as(&mut self, holder: Holder, max: usize) -> Vec<(ChunkName, AttemptToken)> {
        let plan = self.reserver.plan(&Strategy::OldestFirst, self.machine.at()).expect("it is served");
        let hand_outs = self.reserver.reserve(holder, max, plan, self.now);
        let named = hand_outs.into_iter().flat_map(|it| {
            let submission = it.submission;
            it.chunks.into_iter().map(move |(chunk, token)| (ChunkName { submission, chunk }, token))
        });
        named.collect()
    }

    /// Hands a session the one chunk that is next.
    pub(crate) fn reserve_one(&mut self, session: SessionId) -> (ChunkName, AttemptToken) {
        *self.reserve(session, 1).first().expect("something is ready")
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        assert_eq!(self.reserver.tick(self.now), [], "nothing is lost by waiting in this story");
    }

    pub(crate) fn rows(&self, table: Table) -> usize {
        self.machine.tables().scan_prefix(table, &[]).count()
    }

    pub(crate) fn all_rows(&self) -> usize {
        Table::ALL.into_iter().map(|table| self.rows(table)).sum()
    }
}

pub(crate) fn chunk(submission: SubmissionId, index: u64) -> ChunkName {
    ChunkName { submission, chunk: ChunkIndex(index) }
}
