//! Weights and limits of lanes and keys, and levels that are given anew.

use super::Service;
use super::batch::unexpected;
use super::lanes::{invalid, unknown_lane};
use super::{not_leading, problem_of_refusal};
use crate::limits::{ORDER_KEYS_STEPS_PER_REQUEST, RELEVEL_STEPS_PER_REQUEST};
use crate::roles::dispatcher::{Event, Expected};
use minicbor::{Decode, Encode};
use windlass_api::lanes::{
    LaneChangeRequest, LaneDetails, LaneLimitsChange, LaneQuery, LimitInfo, RelevelRequest, RelevelResponse,
};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{Weight, is_tenant};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::relevel::{Relevel, RelevelFrom, Releveled};
use windlass_core::lanes::state::Lane;
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::TASKS_ORDERED_PER_COMMAND_MAX;

/// Where a request to relevel goes on.
#[derive(Debug, Clone, Encode, Decode)]
struct Cursor {
    #[n(0)]
    priority: u8,
    #[n(1)]
    key: String,
    #[n(2)]
    from: Option<RelevelFrom>,
}

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
        let set = limits_to_set(request.limits).map_err(invalid)?;
        // Limits first: they may have to wait, and then nothing of the request is to hold.
        let mut commands = Vec::new();
        if set.iter().any(SetLimit::is_in_flight) {
            // It may take several requests until the tasks are in order: from when the lane is expected to be limited, it counts as such.
            if set.iter().any(SetLimit::is_of_keys) && self.is_unordered(&lane) {
                self.order_keys(&lane).await?;
            }
            self.enlist_for_limit(&lane).await?;
        }
        if !set.is_empty() {
            commands.push(Command::LimitLane(LimitLane { lane: lane.clone(), set }));
        }
        if !weights.is_empty() {
            commands.push(Command::WeighKeys(WeighKeys { lane: lane.clone(), weights }));
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
        self.lane(&lane, &LaneQuery::default())
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
    async fn order_keys(&self, lane: &str) -> Result<(), Problem> {
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

    /// Gives waiting tasks of keys new levels by the weights of their names, some at a time.
    pub async fn relevel(&self, lane: &str, request: RelevelRequest) -> Result<RelevelResponse, Problem> {
        let mut to_do = self.keys_to_relevel(lane, &request)?;
        let mut tasks = 0;
        for _ in 0..RELEVEL_STEPS_PER_REQUEST {
            let Some(Cursor { priority, key, from }) = to_do.pop() else { break };
            let stamp = [(priority, key.as_str())];
            let handed_out = self.dispatcher().look_at_lanes(|desk, _| desk.handed_out(lane, stamp));
            let handed_out = handed_out.unwrap_or_default();
            let step = Relevel { lane: lane.to_owned(), priority, key: key.clone(), from, handed_out };
            let Releveled { tasks: moved, next } = match self.propose(Command::Relevel(step)).await {
                Ok(Outcome::Releveled(releveled)) => releveled,
                Ok(other) => return Err(unexpected(&other)),
                Err(problem) if problem.code == ProblemCode::LaneKeysUnordered => {
                    to_do.push(Cursor { priority, key, from });
                    match self.order_keys(lane).await {
                        Err(problem) if problem.code == ProblemCode::LaneKeysUnordered => break,
                        ordered => ordered?,
                    }
                    continue;
                }
                Err(problem) => return Err(problem),
            };
            tasks += moved;
            to_do.extend(next.map(|from| Cursor { priority, key, from: Some(from) }));
        }
        Ok(RelevelResponse { tasks, next: to_do.last().map(Cursor::text) })
    }

    /// The keys that are still to be done, the next one last.
    fn keys_to_relevel(&self, lane: &str, request: &RelevelRequest) -> Result<Vec<Cursor>, Problem> {
        let known = self.order().read(|machine| {
            let lane = machine.lanes().by_name(lane)?;
            let priorities: Vec<u8> = lane.ranks().map(|(priority, _)| priority).collect();
            Some((priorities, lane.row().weights.keys().cloned().collect::<Vec<_>>()))
        });
        let (priorities, weighed) = known.ok_or_else(|| unknown_lane(lane))?;
        let keys = if request.keys.is_empty() { weighed } else { request.keys.clone() };
        // The weight of a tenant counts at once.
        let mut keys: Vec<String> = keys.into_iter().filter(|key| !is_tenant(key)).collect();
        keys.sort_unstable();
        let of_key = |key: &String| {
            priorities
                .iter()
                .map(|priority| Cursor { priority: *priority, key: key.clone(), from: None })
                .collect::<Vec<_>>()
        };
        let mut all: Vec<Cursor> = keys.iter().flat_map(of_key).collect();
        if let Some(text) = &request.cursor {
            let problem = || invalid("`cursor` is the `next` of an answer before".to_owned());
            let cursor = Cursor::from_text(text).ok_or_else(problem)?;
            all.retain(|it| (&it.key, it.priority) > (&cursor.key, cursor.priority));
            all.insert(0, cursor);
        }
        all.reverse();
        Ok(all)
    }
}

impl Cursor {
    fn text(&self) -> String {
        let bytes = minicbor::to_vec(self).expect("encoding into memory does not fail");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_text(text: &str) -> Option<Cursor> {
        let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>()?;
        minicbor::decode(&bytes).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nonsense_is_none() {
        let cursor = Cursor { priority: 3, key: "acme/bob".into(), from: None };
        let again = Cursor::from_text(&cursor.text()).expect("it is one");
        assert_eq!((again.priority, again.key), (3, "acme/bob".into()));
        for text in ["", "zz", "f", "ffff", "é", &cursor.text()[2..]] {
            assert!(Cursor::from_text(text).is_none(), "{text}");
        }
    }
}
