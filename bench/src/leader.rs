//! The leader's memory of ready chunks in this process, without server, log and sockets around it.
//!
//! One turn is what a consumer causes: a chunk is reserved, the one that has been out longest is done, and if that was its
//! submission's last one, the submission is over and one just like it comes in. Only the reserver's own work is timed: what
//! goes in is made before, and what comes out is dropped after.

use crate::strategies::{CROWDED, Crowd, Kind};
use anyhow::{Context, ensure};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use windlass_core::batch::reserver::{Holder, Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{ChunkCounts, SubmissionState, Traits};
use windlass_core::batch::views::PlanId;
use windlass_core::entry::Effect;
use windlass_core::ids::{ChunkIndex, ChunkName, Epoch, SubmissionId};
use windlass_core::limits::STRATEGY_IDLE_MS_MAX;
use windlass_core::time::At;

/// The lower bits of an id hold the submission's number, so that it need not be looked up; the upper ones grow.
const NUMBER_BITS: u32 = 22;

/// Connected consumers: limits in percent go by them.
const CONSUMERS: u64 = 200;

/// A queue in this process.
pub(crate) struct Leader {
    reserver: Reserver,
    crowd: Crowd,
    /// The upper bits of the last id.
    last: u64,
    out: VecDeque<ChunkName>,
    /// Chunks of the crowded value that stay out.
    held: Vec<ChunkName>,
    now: At,
}

/// What the parts of turns took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) turns: u32,
    pub(crate) reserve: Duration,
    pub(crate) complete: Duration,
    pub(crate) replace: Duration,
}

impl Spent {
    /// Microseconds for each turn.
    pub(crate) fn us(self) -> [f64; 3] {
        [self.reserve, self.complete, self.replace].map(|it| it.as_secs_f64() * 1e6 / f64::from(self.turns))
    }
}

impl Leader {
    /// A queue of so many submissions.
    pub(crate) fn new(crowd: Crowd, submissions: u64) -> Leader {
        let reserver = Reserver::new(Epoch(1), [7; 16], 42, std::iter::empty());
        let out = VecDeque::new();
        let mut leader =
            Leader { reserver, crowd, last: 1 << 20, out, held: Vec::new(), now: At::from_ms(0) };
        leader.reserver.ready_mut().set_room(CONSUMERS, false);
        for number in 0..submissions {
            let ready = leader.ready(number);
            leader.reserver.absorb(&ready);
        }
        leader
    }

    /// A new submission with this number.
    fn ready(&mut self, number: u64) -> Effect {
        self.last += 1;
        let submission =
            SubmissionId::from_u64(self.last << NUMBER_BITS | number).expect("41 bits are enough");
        let kind = self.kind_of(submission);
        let traits =
            Traits { priority: kind.priority(), metadata: kind.metadata(), paused: false, is_plain: true };
        let counts = ChunkCounts { total: kind.chunks(), ..ChunkCounts::default() };
        Effect::Ready {
            submission,
            round: 0,
            ranges: vec![std::ops::Range { start: 0, end: counts.total }],
            counts,
            traits,
        }
    }

    fn kind_of(&self, submission: SubmissionId) -> Kind {
        Kind::new(self.crowd, number_of(submission))
    }

    /// Begins with a strategy: the views of the last one are dropped, its own are built, and so many chunks go out: first
    /// `held` of the crowded value, which stay out, then `out` by the strategy, which the turns go through.
    pub(crate) fn begin(&mut self, strategy: &str, held: usize, out: usize) -> anyhow::Result<PlanId> {
        for name in self.out.drain(..).chain(self.held.drain(..)).collect::<Vec<_>>() {
            self.complete(name, &mut Spent::default());
        }
        let crowded = self.plan(&CROWDED.parse()?)?;
        while self.held.len() < held {
            let name = self.reserve(crowded, &mut Spent::default())?;
            // Of the others, later chunks would be done before the one that is held.
            if self.kind_of(name.submission).chunks() == 1 {
                self.held.push(name);
            } else {
                self.complete(name, &mut Spent::default());
            }
        }
        self.now = self.now.after_ms(2 * STRATEGY_IDLE_MS_MAX);
        self.reserver.ready_mut().sweep(self.now, |_| false);
        let plan = self.plan(&strategy.parse()?)?;
        for _ in 0..out {
            let name = self.reserve(plan, &mut Spent::default())?;
            self.out.push_back(name);
        }
        Ok(plan)
    }

    fn plan(&mut self, strategy: &Strategy) -> anyhow::Result<PlanId> {
        let plan = self.reserver.plan(strategy, self.now).map_err(anyhow::Error::msg)?;
        while self.reserver.ready_mut().build() {}
        Ok(plan)
    }

    /// So many turns.
    pub(crate) fn turns(&mut self, plan: PlanId, turns: u32) -> anyhow::Result<Spent> {
        let mut spent = Spent { turns, ..Spent::default() };
        for _ in 0..turns {
            let name = self.reserve(plan, &mut spent)?;
            self.out.push_back(name);
            let oldest = self.out.pop_front().context("something is out")?;
            self.complete(oldest, &mut spent);
        }
        Ok(spent)
    }

    fn reserve(&mut self, plan: PlanId, spent: &mut Spent) -> anyhow::Result<ChunkName> {
        let holder = Holder::Session(SessionId(self.last % CONSUMERS));
        let (handed, took) = timed(|| self.reserver.reserve(holder, 1, plan, self.now));
        spent.reserve += took;
        ensure!(handed.len() == 1, "a reserve gave nothing although there is work");
        let (chunk, _) = handed[0].chunks[0];
        Ok(ChunkName { submission: handed[0].submission, chunk })
    }

    fn complete(&mut self, ChunkName { submission, chunk }: ChunkName, spent: &mut Spent) {
        let total = self.kind_of(submission).chunks();
        let counts = ChunkCounts { total, done: chunk.0 + 1, ..ChunkCounts::default() };
        let done = Effect::Done { submission, chunks: vec![chunk], counts };
        spent.complete += timed(|| self.reserver.absorb(&done)).1;
        // Chunks go out and are done in order.
        if chunk != ChunkIndex(total - 1) {
            return;
        }
        let over = Effect::Over { submission, state: SubmissionState::Completed, counts };
        let ready = self.ready(number_of(submission));
        let replace = timed(|| {
            self.reserver.absorb(&over);
            self.reserver.absorb(&ready);
        });
        spent.replace += replace.1;
    }
}

fn number_of(submission: SubmissionId) -> u64 {
    submission.as_u64() & ((1 << NUMBER_BITS) - 1)
}

fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}
