//! Weights and limits of lanes and keys.

use super::Service;
use super::batch::unexpected;
use super::lanes::invalid;
use super::{not_leading, problem_of_refusal};
use crate::limits::ORDER_KEYS_STEPS_PER_REQUEST;
use crate::roles::dispatcher::{Event, Expected};
use windlass_api::lanes::{LaneChangeRequest, LaneDetails, LaneLimitsChange, LaneQuery, LimitInfo};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{Weight, problem_of_name};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::state::Lane;
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::TASKS_ORDERED_PER_COMMAND_MAX;

impl Service {
    /// Sets weights and limits of a lane and its keys.
    pub async fn change_lane(
        &self,
        lane: String,
        request: LaneChangeRequest,
    ) -> Result<LaneDetails, Problem> {
        let weights = request.weights.into_iter().map(|(key, weight)| match weight {
            Some(weight) => Weight::of(weight).map(|weight| (key, Some(weight))),
            None => Ok((key, None)),
        });
        let weights: std::collections::BTreeMap<_, _> = weights.collect::<Result<_, _>>().map_err(invalid)?;
        let limit = LimitLane { lane: lane.clone(), set: limits_to_set(request.limits).map_err(invalid)? };
        let weigh = WeighKeys { lane: lane.clone(), weights };
        self.check_change(&weigh, &limit)?;
        // Limits first: they may have to wait, and then nothing of the request is to hold.
        let mut commands = Vec::new();
        if limit.set.iter().any(SetLimit::is_in_flight) {
            // It may take several requests until the tasks are in order: from when the lane is expected to be limited, it counts as such.
            if limit.set.iter().any(SetLimit::is_of_keys) && self.is_unordered(&lane) {
                self.order_keys(&lane).await?;
            }
            self.enlist_for_limit(&lane).await?;
        }
        if !limit.set.is_empty() {
            commands.push(Command::LimitLane(limit));
        }
        if !weigh.weights.is_empty() {
            commands.push(Command::WeighKeys(weigh));
        }
        for command in commands {
            let outcome = match self.propose(command.clone()).await {
                Err(problem) if problem.code == ProblemCode::LaneKeysUnordered => {
                    self.order_keys(&lane).await?;
                    self.propose(command).await?
                }
                outcome => outcome?,
            };
            match outcome {
                Outcome::LaneSet => {}
                other => return Err(unexpected(&other)),
            }
        }
        self.look_at_lane(lane, LaneQuery::default()).await
    }

    /// Whether the lane takes weights and limits: what is refused is refused before any of it is proposed, and before the lane is put in
    /// order for it. Something of it can still be refused later if another request has set so many meanwhile that the lane has as many
    /// as it may. If those are the weights, the limits hold, and who asks is told that the weights do not.
    fn check_change(&self, weigh: &WeighKeys, limit: &LimitLane) -> Result<(), Problem> {
        let weighed = weigh.weights.iter().filter(|(_, weight)| weight.is_some()).map(|(key, _)| key);
        let limited = limit.set.iter().filter(|it| it.limit.is_some()).filter_map(|it| match &it.scope {
            Scope::Named(name) => Some(name),
            Scope::Lane | Scope::EachKey | Scope::EachTenant => None,
        });
        if let Some(problem) = weighed.chain(limited).find_map(|name| problem_of_name(name)) {
            return Err(invalid(problem));
        }
        let problem = self.order().read(|machine| {
            let lane = machine.lanes().by_name(&weigh.lane)?;
            limit.problem(lane).or_else(|| weigh.problem(lane))
        });
        problem.map_or(Ok(()), |problem| Err(invalid(problem)))
    }

    /// Sees to it that the log knows everybody who may work on tasks of a lane before it knows of a limit of those in flight: the next
    /// leader waits for them. The Dispatcher's `enlisting` has the argument.
    async fn enlist_for_limit(&self, lane: &str) -> Result<(), Problem> {
        let lane = lane.to_owned();
        let Expected { leases_until, reached } = self.ask(|reply| Event::ExpectLimit(lane, reply)).await?;
        if let Some(until) = leases_until {
            self.cover_lease(until.as_ms().saturating_sub(self.clock().now().as_ms())).await?;
        }
        reached.await.map_err(|_| not_leading())
    }

    /// Whether tasks wait in a lane that does not keep them in order key by key.
    fn is_unordered(&self, lane: &str) -> bool {
        let of_lane = |lane: &Lane| !lane.row().key_order.is_kept() && lane.waiting() > 0;
        self.order().read(|machine| machine.lanes().by_name(lane).is_some_and(of_lane))
    }

    /// Puts the tasks that wait in a lane in order key by key, as far as one request goes; if that is not to the end, it is a problem.
    /// What is done stays done.
    pub(super) async fn order_keys(&self, lane: &str) -> Result<(), Problem> {
        let tasks_max = u32::try_from(TASKS_ORDERED_PER_COMMAND_MAX).unwrap_or(u32::MAX);
        for _ in 0..ORDER_KEYS_STEPS_PER_REQUEST {
            let step = OrderKeys { lane: lane.to_owned(), tasks_max };
            match self.propose(Command::OrderKeys(step)).await? {
                Outcome::KeysOrdered { is_done: true } => return Ok(()),
                Outcome::KeysOrdered { is_done: false } => {}
                other => return Err(unexpected(&other)),
            }
        }
        Err(problem_of_refusal(&Refusal::KeysUnordered { lane: lane.to_owned() }))
    }
}

fn limits_to_set(change: LaneLimitsChange) -> Result<Vec<SetLimit>, String> {
    let LaneLimitsChange { lane, each_key, each_tenant, named } = change;
    let of_all = [(Scope::Lane, lane), (Scope::EachKey, each_key), (Scope::EachTenant, each_tenant)];
    let of_all = of_all.into_iter().filter_map(|(scope, limit)| Some((scope, limit?)));
    let named = named.into_iter().map(|(name, limit)| (Scope::Named(name), limit));
    let set = of_all.chain(named).map(|(scope, limit)| {
        let limit = limit.map(limit_to_set).transpose()?;
        Ok(SetLimit { scope, limit })
    });
    set.collect()
}

fn limit_to_set(limit: LimitInfo) -> Result<Limit, String> {
    let rate = match (limit.per_second, limit.burst) {
        (Some(per_second), burst) => Some(Rate::of(per_second, burst)?),
        (None, Some(_)) => return Err("`burst` goes with `per_second`".into()),
        (None, None) => None,
    };
    Ok(Limit { in_flight: limit.in_flight, rate })
}
