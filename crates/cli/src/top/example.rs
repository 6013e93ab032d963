//! An example for tests: a server at work, as two samples saw it.

use super::figures::Samples;
use windlass_client::MetaValue;
use windlass_client::overview::{
    ConsumerInfo, ConsumersInfo, FieldInfo, FieldOverview, LimitReachedInfo, LimitsInfo, OverviewInfo,
    QueueChunks, QueueTasks, StrategiesInfo, StrategyInfo, TotalsInfo, ValueInfo,
};

const STRATEGY: &str = "MaxSimultaneous(company_id, 4, Fair(company_id, weights(acme=3)))";

/// What was seen `seconds` after the server began.
pub(super) fn overview(seconds: u64) -> OverviewInfo {
    let value = |name: &str, weight: u32, fair_share: f64, per_second: u64, ready: u64| ValueInfo {
        value: Some(MetaValue::Text(name.into())),
        submissions: 2,
        ready,
        reserved: per_second / 10,
        handed_out: per_second * seconds,
        weight,
        fair_share: Some(fair_share),
    };
    let consumer = |id: &str, name: &str, per_second: u64, waiting: bool| ConsumerInfo {
        id: id.into(),
        name: name.into(),
        reserved: per_second / 10,
        handed_out: per_second * seconds,
        waiting,
        strategy: Some(STRATEGY.into()),
    };
    OverviewInfo {
        version: "0.1.0".into(),
        at_ms: 1_000 * seconds,
        since_ms: 0,
        submissions_running: 1_234,
        chunks: QueueChunks { ready: 1_234_567 - 60 * seconds, reserved: 6, delayed: 3, paused: 500 },
        tasks: QueueTasks { waiting: 1_200, ..QueueTasks::default() },
        totals: TotalsInfo {
            submitted: seconds / 2,
            submitted_chunks: 0,
            ended: 0,
            handed_out: 60 * seconds,
            completed: 59 * seconds,
            failed: seconds,
        },
        consumers: ConsumersInfo {
            connected: 3,
            waiting: 1,
            reserved_over_http: 0,
            busiest: vec![
                consumer("2", "worker-b", 40, false),
                consumer("1", "worker-a", 20, false),
                consumer("3", "worker-c", 0, true),
            ],
            more: 0,
            cut: false,
        },
        strategies: StrategiesInfo {
            views: 1,
            items: vec![StrategyInfo { strategy: STRATEGY.into(), waiting: 1, views: 1, building: false }],
            more: 0,
        },
        fields: vec![
            FieldInfo { name: "company_id".into(), values: 3, in_use: true },
            FieldInfo { name: "mode".into(), values: 2, in_use: false },
        ],
        field: Some(FieldOverview {
            name: "company_id".into(),
            fair: true,
            values: vec![
                value("acme", 3, 0.6, 40, 1_000_000),
                value("umbrella", 1, 0.2, 10, 234_507),
                value("globex", 1, 0.2, 10, 60),
            ],
            more: 0,
            cut: false,
            handed_out: 60 * seconds,
        }),
        limits: LimitsInfo {
            items: vec![LimitReachedInfo {
                field: "company_id".into(),
                value: MetaValue::Text("acme".into()),
                reserved: 4,
                max: 4,
                hard: true,
                submissions: 14,
            }],
            more: 0,
            cut: false,
            holding_ms: None,
        },
    }
}

/// Samples of the first seconds.
pub(super) fn samples(seconds: u64) -> Samples {
    let mut samples = Samples::default();
    (1..=seconds).for_each(|second| samples.push(overview(second)));
    samples
}
