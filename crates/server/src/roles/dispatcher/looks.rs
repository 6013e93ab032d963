//! Looks: explanations and the overview, for people who ask why and how much. What is handed out does not change by them.

use super::Dispatcher;
use super::event::{Asker, DispatcherStatus};
use super::totals::Totals;
use crate::limits::{CONSUMERS_SHOWN, STRATEGIES_SHOWN};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;
use windlass_core::batch::reserver::{Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::views::PlanId;
use windlass_core::batch::views::explain::{Explanation, SubmissionSeen};
use windlass_core::batch::views::overview::{FieldKnown, FieldSeen, LimitsReached, StrategyInUse};
use windlass_core::ids::SubmissionId;
use windlass_core::time::At;

/// A question about a strategy. It is answered once the strategy's views are built.
#[derive(Debug)]
pub struct Explain {
    /// The strategy.
    pub strategy: Strategy,
    /// A submission to be told about.
    pub submission: Option<SubmissionId>,
    /// Gets the answer, or why the strategy cannot be served.
    pub reply: oneshot::Sender<Result<Explained, String>>,
}

/// What a strategy would give, and what it makes of the submission that was asked about; none if that one does not run.
#[derive(Debug)]
pub struct Explained {
    /// The strategy.
    pub explanation: Explanation,
    /// The submission.
    pub submission: Option<SubmissionSeen>,
}

/// The queue in numbers.
#[derive(Debug)]
pub struct Overview {
    /// When it was looked at.
    pub at: At,
    /// Since when the totals count.
    pub since: At,
    /// How things are.
    pub status: DispatcherStatus,
    /// What has happened.
    pub totals: Totals,
    /// Chunks that callers without a session work on.
    pub leased: usize,
    /// Those with the most chunks in work.
    pub consumers: Vec<ConsumerSeen>,
    /// Whether more chunks are in work than were counted.
    pub is_cut: bool,
    /// Those that the most reserves wait for, each with their number.
    pub strategies: Vec<(StrategyInUse, usize)>,
    /// How many more strategies are in use.
    pub more_strategies: usize,
    /// The fields that are known.
    pub fields: Vec<FieldKnown>,
    /// The field that was asked for.
    pub field: Option<FieldSeen>,
    /// The limits that hold something back.
    pub limits: LimitsReached,
    /// For how long hard limits let nothing out, at most; none if they do not hold everything back.
    pub holding_ms: Option<u64>,
}

/// A connected consumer.
#[derive(Debug)]
pub struct ConsumerSeen {
    /// A number that tells it apart. It is not its session, which would let others pose as it.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Its chunks in work.
    pub out: u64,
    /// Chunks handed to it.
    pub handed_out: u64,
    /// Whether it waits for work.
    pub is_waiting: bool,
    /// The strategy it reserved with last.
    pub strategy: Option<String>,
}

impl Dispatcher {
    /// Answers a question about a strategy, now or when its views are built. Without a leadership there is no answer:
    /// dropping the reply tells the asker.
    pub(super) fn explain(&mut self, ask: Explain, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        let plan = match reserver.plan_for_a_look(&ask.strategy, now) {
            Ok(plan) => plan,
            Err(problem) => {
                drop(ask.reply.send(Err(problem)));
                return;
            }
        };
        if reserver.ready().is_building(plan) {
            self.is_building = true;
            self.explaining.push(ask);
            return;
        }
        if let Some(explanation) = reserver.explain(plan) {
            let submission = ask.submission.and_then(|id| reserver.explain_submission(plan, id));
            drop(ask.reply.send(Ok(Explained { explanation, submission })));
        }
    }

    /// Answers the questions whose views are built by now.
    pub(super) fn explain_what_is_built(&mut self, now: At) {
        for ask in std::mem::take(&mut self.explaining) {
            if !ask.reply.is_closed() {
                self.explain(ask, now);
            }
        }
    }

    /// The queue in numbers.
    pub(super) fn overview(
        &self,
        field: Option<&str>,
        limit: usize,
        reply: oneshot::Sender<Overview>,
        now: At,
    ) {
        let Some(reserver) = &self.reserver else { return };
        let ready = reserver.ready();
        let (waiting, waiting_sessions) = self.waiting();
        let (consumers, is_cut) = self.consumers(reserver, &waiting_sessions);
        let mut strategies: Vec<(StrategyInUse, usize)> = ready
            .strategies_in_use()
            .into_iter()
            .map(|it| {
                let waiting = waiting.get(&it.plan).copied().unwrap_or(0);
                (it, waiting)
            })
            .collect();
        strategies.sort_by_key(|(_, waiting)| Reverse(*waiting));
        let more_strategies = strategies.len().saturating_sub(STRATEGIES_SHOWN);
        strategies.truncate(STRATEGIES_SHOWN);
        let overview = Overview {
            at: now,
            since: self.began,
            status: self.status(),
            totals: self.totals,
            leased: reserver.leased_len(),
            consumers,
            is_cut,
            strategies,
            more_strategies,
            fields: ready.fields_known(),
            field: field.map(|field| ready.field_seen(field, limit)),
            limits: ready.limits_reached(limit),
            holding_ms: self.hold.until(now).map(|until| until.as_ms() - now.as_ms()),
        };
        drop(reply.send(overview));
    }

    /// How many reserves wait for each plan, and which sessions have one among them.
    fn waiting(&self) -> (BTreeMap<PlanId, usize>, BTreeSet<SessionId>) {
        let (mut by_plan, mut sessions) = (BTreeMap::new(), BTreeSet::new());
        for (plan, ask) in self.lines.asked(&self.sessions) {
            *by_plan.entry(plan).or_default() += 1;
            if let Asker::Session { session, .. } = ask.asker {
                sessions.insert(session);
            }
        }
        (by_plan, sessions)
    }

    /// The consumers with the most chunks in work, and whether not all chunks were counted.
    fn consumers(&self, reserver: &Reserver, waiting: &BTreeSet<SessionId>) -> (Vec<ConsumerSeen>, bool) {
        let (held, is_cut) = reserver.out_by_session();
        let out = |id: SessionId| held.get(&id).copied().unwrap_or(0);
        let mut busiest: Vec<_> =
            self.sessions.profiles().map(|(id, it)| (Reverse((out(id), it.handed_out)), id, it)).collect();
        busiest.sort_unstable_by_key(|(rank, id, _)| (*rank, id.0));
        let seen = busiest.into_iter().take(CONSUMERS_SHOWN).map(|(_, id, it)| ConsumerSeen {
            number: it.number,
            name: it.name.to_owned(),
            out: out(id),
            handed_out: it.handed_out,
            is_waiting: waiting.contains(&id),
            strategy: it.strategy.map(ToString::to_string),
        });
        (seen.collect(), is_cut)
    }
}
