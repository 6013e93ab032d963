//! Levels that are given anew: drives the steps.
//!
//! How far a key's run is stands in its row, so steps may be asked for by many at once, and by nobody for a while; the Releveler takes
//! up what has come to a stand.
//!
//! While a step is on its way through the log, nothing of its key goes out: a task that is out when it is moved up would take the
//! virtual time with it. Whoever comes to that key waits for a moment, and then everybody has as long again until the next step.

use super::Service;
use super::batch::unexpected;
use super::lanes::{invalid, unknown_lane};
use crate::limits::{RELEVEL_KEYS_MAX, RELEVEL_STEPS_PER_REQUEST};
use std::fmt;
use std::time::Instant;
use windlass_api::lanes::{RelevelRequest, RelevelResponse};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome};
use windlass_core::lanes::levels::is_tenant;
use windlass_core::lanes::ranks::Rank;
use windlass_core::lanes::relevel::{Relevel, Releveled};
use windlass_core::limits::{LANE_KEY_BYTES_MAX, LANE_PRIORITY_MAX};

/// A key of one priority whose tasks get new levels; as text, where a request goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) priority: u8,
    pub(crate) key: String,
}

impl Service {
    /// Gives waiting tasks of keys new levels by the weights of their names, some at a time.
    pub async fn relevel(&self, lane: &str, request: RelevelRequest) -> Result<RelevelResponse, Problem> {
        let mut runs = self.runs(lane, &request)?;
        let mut tasks = 0;
        for _ in 0..RELEVEL_STEPS_PER_REQUEST {
            let Some(run) = runs.last() else { break };
            match self.relevel_some(lane, run).await {
                Ok(done) => {
                    tasks += done.tasks;
                    if done.next.is_none() {
                        runs.pop();
                    }
                }
                Err(problem) if problem.code == ProblemCode::LaneKeysUnordered => {
                    match self.order_keys(lane).await {
                        Err(problem) if problem.code == ProblemCode::LaneKeysUnordered => break,
                        ordered => ordered?,
                    }
                }
                // What was done stays done, and is told.
                Err(_) if tasks > 0 => break,
                Err(problem) => return Err(problem),
            }
        }
        Ok(RelevelResponse { tasks, next: runs.last().map(Run::to_string) })
    }

    /// Takes a step of a run. It is brought to its end also if whoever asks goes away meanwhile.
    pub(crate) async fn relevel_some(&self, lane: &str, run: &Run) -> Result<Releveled, Problem> {
        let (service, lane, Run { priority, key }) = (self.clone(), lane.to_owned(), run.clone());
        let step = async move {
            let (began, dispatcher) = (Instant::now(), service.dispatcher());
            let held_back = dispatcher.hold_back(&lane, priority, &key);
            let handed_out = held_back.as_ref().map_or_else(Vec::new, |it| it.handed_out.clone());
            let done = service.propose(Command::Relevel(Relevel { lane, priority, key, handed_out })).await;
            if let Some(held_back) = held_back {
                dispatcher.go_on(&held_back);
                tokio::time::sleep(began.elapsed()).await;
            }
            done
        };
        match tokio::spawn(step).await {
            Ok(Ok(Outcome::Releveled(done))) => Ok(done),
            Ok(Ok(other)) => Err(unexpected(&other)),
            Ok(Err(problem)) => Err(problem),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// The runs that are still to be done, the next one last.
    fn runs(&self, lane: &str, request: &RelevelRequest) -> Result<Vec<Run>, Problem> {
        let cursor = request.cursor.as_deref().map(|text| {
            Run::from_text(text).ok_or_else(|| invalid("`cursor` is the `next` of an answer before".into()))
        });
        let cursor = cursor.transpose()?;
        if let Some(problem) = problem_of_keys(&request.keys) {
            return Err(invalid(problem));
        }
        let runs = self.order().read(|machine| {
            let lane = machine.lanes().by_name(lane)?;
            let of_names = lane.row().weights.keys().filter(|_| request.keys.is_empty());
            // The weight of a tenant counts at once.
            let keys = request.keys.iter().chain(of_names).filter(|key| !is_tenant(key));
            let runs = keys.flat_map(|key| {
                // Where a named key has nothing, that it has no weight is found out all the same.
                let is_named = !request.keys.is_empty();
                let has_tasks = |rank: &Rank| rank.key(key).is_some_and(|row| row.waiting > 0);
                let ranks = lane.ranks().filter(move |(_, rank)| is_named || has_tasks(rank));
                ranks.map(|(priority, _)| Run { priority, key: key.clone() })
            });
            Some(runs.collect::<Vec<_>>())
        });
        let mut runs = runs.ok_or_else(|| unknown_lane(lane))?;
        runs.sort_unstable_by(|a, b| b.place().cmp(&a.place()));
        runs.dedup();
        if let Some(cursor) = cursor {
            runs.retain(|run| run.place() > cursor.place());
            runs.push(cursor);
        }
        Ok(runs)
    }
}

/// Why these keys are not given new levels, as a sentence that says what to do.
fn problem_of_keys(keys: &[String]) -> Option<String> {
    if keys.len() > RELEVEL_KEYS_MAX {
        return Some(format!(
            "`keys` names at most {RELEVEL_KEYS_MAX} keys, as many as have a weight by their name; leave it out for all of those"
        ));
    }
    if let Some(long) = keys.iter().find(|key| key.len() > LANE_KEY_BYTES_MAX) {
        let bytes = long.len();
        return Some(format!("a key has at most {LANE_KEY_BYTES_MAX} bytes, and one of `keys` has {bytes}"));
    }
    let tenant = keys.iter().find(|key| is_tenant(key))?;
    Some(format!("the weight of a tenant, such as {tenant:?}, counts at once; there is nothing to relevel"))
}

impl Run {
    /// Where it is in the order of runs.
    fn place(&self) -> (&str, u8) {
        (&self.key, self.priority)
    }

    fn from_text(text: &str) -> Option<Run> {
        let (priority, key) = text.split_once(':')?;
        let run = Run { priority: priority.parse().ok()?, key: key.to_owned() };
        let is_one = run.priority <= LANE_PRIORITY_MAX && key.len() <= LANE_KEY_BYTES_MAX && !is_tenant(key);
        is_one.then_some(run)
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.priority, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nonsense_is_none() {
        for (key, text) in [("acme/bob", "3:acme/bob"), ("", "3:"), ("a:b", "3:a:b")] {
            let run = Run { priority: 3, key: key.into() };
            assert_eq!((run.to_string().as_str(), Run::from_text(text)), (text, Some(run.clone())));
        }
        let long = format!("3:{}", "k".repeat(LANE_KEY_BYTES_MAX + 1));
        for text in ["", "3", ":", "x:a", "-1:a", "10:a", "256:a", "3:acme/", &long] {
            assert!(Run::from_text(text).is_none(), "{text}");
        }
    }
}
