//! The overview: the queue in numbers.

use super::Service;
use crate::limits::{OVERVIEW_ROWS_DEFAULT, OVERVIEW_ROWS_MAX};
use crate::roles::dispatcher::{ConsumerSeen, DispatcherStatus, Event, Overview, Totals};
use windlass_api::overview::{
    ConsumerInfo, ConsumersInfo, FieldInfo, FieldOverview, LimitReachedInfo, LimitsInfo, OverviewInfo,
    OverviewQuery, QueueChunks, QueueTasks, StrategiesInfo, StrategyInfo, TotalsInfo, ValueInfo,
};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::submissions::problem_of_field;
use windlass_core::batch::views::overview::{FieldSeen, LimitReached, LimitsReached, ValueSeen};
use windlass_core::lanes::state::TaskCounts;

impl Service {
    /// The queue in numbers.
    pub async fn overview(&self, query: OverviewQuery) -> Result<OverviewInfo, Problem> {
        let invalid = |detail: String| Problem::new(ProblemCode::InvalidRequest, detail);
        if let Some(problem) = query.field.as_deref().and_then(problem_of_field) {
            return Err(invalid(problem));
        }
        let limit = query.limit.unwrap_or(OVERVIEW_ROWS_DEFAULT);
        if !(1..=OVERVIEW_ROWS_MAX).contains(&limit) {
            return Err(invalid(format!("`limit` is between 1 and {OVERVIEW_ROWS_MAX}")));
        }
        let field = query.field.clone();
        let seen = self.ask(|reply| Event::Overview(field, limit, reply)).await?;
        let (running, tasks) =
            self.order().read(|machine| (machine.batch().running(), machine.lanes().totals()));
        Ok(info_of(seen, running as u64, tasks, query.field))
    }
}

fn info_of(seen: Overview, running: u64, tasks: TaskCounts, field: Option<String>) -> OverviewInfo {
    let Totals { submitted, submitted_chunks, ended, handed_out, completed, failed } = seen.totals;
    let DispatcherStatus { ready, paused, out, tasks_out, delayed, consumers, waiting, views } = seen.status;
    let more = (consumers - seen.consumers.len()) as u64;
    let strategies = seen.strategies.into_iter().map(|(it, waiting)| StrategyInfo {
        strategy: it.strategy.to_string(),
        waiting: waiting as u64,
        views: it.views as u64,
        building: it.is_building,
    });
    let fields = seen.fields.into_iter().map(|it| FieldInfo {
        name: it.name,
        values: it.values,
        in_use: it.is_in_use,
    });
    OverviewInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        at_ms: seen.at.as_ms(),
        since_ms: seen.since.as_ms(),
        submissions_running: running,
        chunks: QueueChunks { ready, reserved: out as u64, delayed: delayed as u64, paused },
        tasks: QueueTasks {
            waiting: tasks.waiting,
            reserved: tasks_out as u64,
            delayed: tasks.delayed,
            dead: tasks.dead,
        },
        totals: TotalsInfo { submitted, submitted_chunks, ended, handed_out, completed, failed },
        consumers: ConsumersInfo {
            connected: consumers as u64,
            waiting: waiting as u64,
            reserved_over_http: seen.leased as u64,
            busiest: seen.consumers.into_iter().map(consumer_of).collect(),
            more,
            cut: seen.is_cut,
        },
        strategies: StrategiesInfo {
            views: views as u64,
            items: strategies.collect(),
            more: seen.more_strategies as u64,
        },
        fields: fields.collect(),
        field: field.zip(seen.field).map(field_of),
        limits: limits_of(seen.limits, seen.holding_ms),
    }
}

fn consumer_of(seen: ConsumerSeen) -> ConsumerInfo {
    let ConsumerSeen { number, name, out, handed_out, is_waiting, strategy } = seen;
    ConsumerInfo { id: number.to_string(), name, reserved: out, handed_out, waiting: is_waiting, strategy }
}

fn field_of((name, seen): (String, FieldSeen)) -> FieldOverview {
    #[expect(clippy::cast_precision_loss, reason = "a share has six digits")]
    let values =
        seen.values.into_iter().map(|ValueSeen { value, counts, weight, share_millionths }| ValueInfo {
            value,
            submissions: counts.ready_submissions,
            ready: counts.ready_chunks,
            reserved: counts.out,
            handed_out: counts.handed_out,
            weight,
            fair_share: share_millionths.map(|share| share as f64 / 1e6),
        });
    FieldOverview {
        name,
        fair: seen.is_fair,
        values: values.collect(),
        more: seen.more,
        cut: seen.is_cut,
        handed_out: seen.handed_out,
    }
}

fn limits_of(seen: LimitsReached, holding_ms: Option<u64>) -> LimitsInfo {
    let items = seen.limits.into_iter().map(|it| {
        let LimitReached { field, value, out, max, is_hard, submissions } = it;
        LimitReachedInfo { field, value, reserved: out, max, hard: is_hard, submissions }
    });
    LimitsInfo { items: items.collect(), more: seen.more, cut: seen.is_cut, holding_ms }
}
