//! Explain: what a strategy would give next and why, and why a submission is or is not handed out.

use super::Service;
use super::batch::unknown;
use super::reserve::check_reserve;
use crate::limits::EXPLAIN_PATIENCE;
use crate::roles::dispatcher::{Event, Explain, Explained};
use tokio::sync::oneshot;
use windlass_api::explain::{
    ChunkPlaces, ExplainRequest, ExplainResponse, LimitInfo, NextChunk, PartInfo, PartStandingInfo, RankInfo,
    SaturatedInfo, SubmissionExplained, TurnInfo, TurnRankInfo, TurnsInfo, VerdictInfo, WayInfo,
};
use windlass_api::json::time_text;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::listing::SubmissionView;
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::batch::views::explain::{
    LimitSeen, PartSeen, PartStanding, Rank, Saturated, SubmissionSeen, TurnsSeen, Verdict, WaySeen,
};

impl Service {
    /// What a strategy would give next, and why. Waits until the views of a strategy that is new are built.
    pub async fn explain(&self, request: ExplainRequest) -> Result<ExplainResponse, Problem> {
        let ExplainRequest { strategy, submission } = request;
        check_reserve(1, &strategy)?;
        if let Some(lane) = strategy.lanes().first() {
            let detail = format!(
                "explain looks at submissions, and Lane({lane}) gives tasks; `windlass lanes show {lane}` shows a lane"
            );
            return Err(Problem::new(ProblemCode::StrategyInvalid, detail));
        }
        let (reply, answer) = oneshot::channel();
        let text = strategy.to_string();
        self.dispatcher().send(Event::Explain(Explain { strategy, submission, reply }));
        let explained = match tokio::time::timeout(EXPLAIN_PATIENCE, answer).await {
            Ok(Ok(Ok(explained))) => explained,
            Ok(Ok(Err(problem))) => return Err(Problem::new(ProblemCode::StrategyInvalid, problem)),
            Ok(Err(_)) => return Err(super::not_leading()),
            Err(_) => {
                let detail = "nobody has used this strategy yet, and the view that keeps it in order is still being \
                              built; ask again in a few seconds";
                return Err(Problem::new(ProblemCode::Unavailable, detail));
            }
        };
        let Explained { explanation, submission: seen } = explained;
        let submission = match submission {
            None => None,
            Some(id) => {
                let view = self.order().read(|machine| machine.show(id)).ok_or_else(|| unknown(id))?;
                Some(submission_of(seen, &view))
            }
        };
        let next = explanation.next.map(|it| NextChunk { submission: it.submission, chunk: it.chunk });
        Ok(ExplainResponse {
            strategy: text,
            next,
            by_chance: explanation.is_by_chance,
            why: explanation.why,
            part: part_of(explanation.part),
            submission,
        })
    }
}

fn part_of(part: PartSeen) -> PartInfo {
    PartInfo {
        name: part.name.into(),
        text: part.text,
        standing: match part.standing {
            PartStanding::Gives => PartStandingInfo::Gives,
            PartStanding::Empty => PartStandingInfo::Empty,
            PartStanding::NotAsked => PartStandingInfo::NotAsked,
            PartStanding::Repeats => PartStandingInfo::Repeats,
        },
        says: part.says,
        submissions: part.submissions,
        chunks: part.chunks,
        limit: part.limit.map(limit_of),
        turns: part.turns.map(turns_of),
        inner: part.inner.into_iter().map(part_of).collect(),
    }
}

fn limit_of(limit: LimitSeen) -> LimitInfo {
    let LimitSeen { field, max, is_holding, submissions, saturated, more, is_cut } = limit;
    let saturated = saturated.into_iter().map(|it| saturated_of(field.clone(), it, is_holding)).collect();
    LimitInfo { field, max, holding: is_holding, submissions, saturated, more, cut: is_cut }
}

fn saturated_of(field: String, it: Saturated, is_holding: bool) -> SaturatedInfo {
    let Saturated { value, out, max, submissions } = it;
    SaturatedInfo { field, value, reserved: out, max, holding: is_holding, submissions }
}

fn turns_of(TurnsSeen { field, values, next }: TurnsSeen) -> TurnsInfo {
    #[expect(clippy::cast_precision_loss, reason = "thousandths of a chunk stay far below 2^53")]
    let next = next.into_iter().map(|it| TurnInfo {
        value: it.value,
        weight: it.weight,
        ahead: it.ahead_thousandths as f64 / 1e3,
        submissions: it.submissions,
    });
    TurnsInfo { field, values, next: next.collect() }
}

/// What is known of a submission in the leader's memory and in the machine.
fn submission_of(seen: Option<SubmissionSeen>, view: &SubmissionView) -> SubmissionExplained {
    let counts = view.submission.counts;
    let mut chunks = ChunkPlaces {
        total: counts.total,
        done: counts.done,
        failed: counts.failed,
        ..ChunkPlaces::default()
    };
    let Some(seen) = seen.filter(|_| view.state == SubmissionState::Running) else {
        return SubmissionExplained {
            id: view.id,
            state: view.state,
            verdict: VerdictInfo::Over,
            says: says_over(view),
            chunks,
            retry_at: None,
            ways: Vec::new(),
        };
    };
    (chunks.ready, chunks.reserved, chunks.delayed) = (seen.ready, seen.out, seen.delayed);
    SubmissionExplained {
        id: view.id,
        state: view.state,
        verdict: verdict_of(seen.verdict),
        says: seen.says,
        chunks,
        retry_at: seen.retry_at.map(time_text),
        ways: seen.ways.into_iter().map(way_of).collect(),
    }
}

fn says_over(view: &SubmissionView) -> String {
    let at = view.finished_at.map_or_else(String::new, |at| format!(" at {}", time_text(at)));
    match view.state {
        SubmissionState::Running => "it is just coming in or ending; ask again".into(),
        SubmissionState::Completed => format!("it is over: completed{at}"),
        SubmissionState::Failed => {
            format!("it is over: failed{at}; retry-failed gives what failed or was skipped another round")
        }
        SubmissionState::Cancelled => format!("it is over: cancelled{at}"),
    }
}

const fn verdict_of(verdict: Verdict) -> VerdictInfo {
    match verdict {
        Verdict::Next => VerdictInfo::Next,
        Verdict::Waits => VerdictInfo::Waits,
        Verdict::NotAsked => VerdictInfo::NotAsked,
        Verdict::Limited => VerdictInfo::Limited,
        Verdict::NotMatched => VerdictInfo::NotMatched,
        Verdict::Paused => VerdictInfo::Paused,
        Verdict::NothingReady => VerdictInfo::NothingReady,
    }
}

fn way_of(way: WaySeen) -> WayInfo {
    WayInfo {
        strategy: way.text,
        verdict: verdict_of(way.verdict),
        says: way.says,
        limits: way
            .limits
            .into_iter()
            .map(|it| saturated_of(it.field, it.saturated, it.is_holding))
            .collect(),
        rank: way.rank.map(rank_of),
    }
}

fn rank_of(Rank { turns, ahead, chance }: Rank) -> RankInfo {
    let turns = turns.into_iter().map(|it| TurnRankInfo {
        field: it.field,
        value: it.value,
        before: it.before.count,
        more_before: it.before.is_cut,
    });
    RankInfo {
        turns: turns.collect(),
        ahead: ahead.count,
        more_ahead: ahead.is_cut,
        chance_chunks: chance.map(|it| it.0),
        chance_of: chance.map(|it| it.1),
    }
}
