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
use crate::limits::RELEVEL_STEPS_PER_REQUEST;
use minicbor::{Decode, Encode};
use std::time::Instant;
use windlass_api::lanes::{RelevelRequest, RelevelResponse};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::entry::{Command, Outcome};
use windlass_core::lanes::levels::is_tenant;
use windlass_core::lanes::ranks::Rank;
use windlass_core::lanes::relevel::{Relevel, Releveled};

/// A key of one priority whose tasks get new levels; as text, where a request goes on.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Run {
    #[n(0)]
    pub(crate) priority: u8,
    #[n(1)]
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
        Ok(RelevelResponse { tasks, next: runs.last().map(Run::text) })
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
        let place = |run: &Run| (run.key.clone(), run.priority);
        runs.sort_by_key(|run| std::cmp::Reverse(place(run)));
        runs.dedup();
        if let Some(cursor) = cursor {
            runs.retain(|run| place(run) > place(&cursor));
            runs.push(cursor);
        }
        Ok(runs)
    }
}

impl Run {
    fn text(&self) -> String {
        let bytes = minicbor::to_vec(self).expect("encoding into memory does not fail");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_text(text: &str) -> Option<Run> {
        let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>()?;
        minicbor::decode(&bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nonsense_is_none() {
        let run = Run { priority: 3, key: "acme/bob".into() };
        assert_eq!(Run::from_text(&run.text()), Some(run.clone()));
        for text in ["", "zz", "f", "ffff", "é", &run.text()[2..]] {
            assert!(Run::from_text(text).is_none(), "{text}");
        }
    }
}
