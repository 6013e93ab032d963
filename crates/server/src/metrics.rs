//! Metrics: what is counted as it happens, and what is looked up when somebody asks.

use crate::service::lane_look::LaneFigures;
use metrics::{Counter, counter};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock, PoisonError, RwLock};
use windlass_api::json::StatusInfo;
use windlass_order::OrderCounters;

/// The recorder of this process; made once, whoever asks first.
pub fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let handle =
            PrometheusBuilder::new().install_recorder().expect("only this function installs a recorder");
        describe();
        handle
    })
}

// Looked up once, not for each chunk. Nobody counts before the node that installs the recorder has begun.
/// Chunks handed out.
pub static RESERVED_CHUNKS: LazyLock<Counter> = LazyLock::new(|| counter!("windlass_reserved_chunks_total"));
/// Chunks whose completion was accepted.
pub static COMPLETED_CHUNKS: LazyLock<Counter> =
    LazyLock::new(|| counter!("windlass_completed_chunks_total"));
/// Attempts whose failure was counted.
pub static FAILED_ATTEMPTS: LazyLock<Counter> = LazyLock::new(|| counter!("windlass_failed_attempts_total"));

/// Counts a command that was put through the log.
pub fn count_command(name: &'static str) {
    static BY_NAME: RwLock<BTreeMap<&str, Counter>> = RwLock::new(BTreeMap::new());
    if let Some(known) = BY_NAME.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return known.increment(1);
    }
    let counter = counter!("windlass_commands_total", "command" => name);
    counter.increment(1);
    BY_NAME.write().unwrap_or_else(PoisonError::into_inner).insert(name, counter);
}

fn describe() {
    use metrics::{describe_counter, describe_gauge};
    describe_counter!("windlass_commands_total", "Commands put through the log, by command.");
    describe_counter!("windlass_problems_total", "Requests answered with a problem, by code.");
    describe_counter!("windlass_reserved_chunks_total", "Chunks handed out.");
    describe_counter!("windlass_completed_chunks_total", "Chunks whose completion was accepted.");
    describe_counter!("windlass_failed_attempts_total", "Attempts whose failure was counted.");
    describe_gauge!("windlass_submissions_running", "Submissions that run.");
    describe_gauge!(
        "windlass_chunks_unsettled",
        "Chunks of running submissions that are neither done nor failed."
    );
    describe_gauge!("windlass_chunks_ready", "Chunks that could be handed out now.");
    describe_gauge!("windlass_chunks_reserved", "Chunks that consumers work on.");
    describe_gauge!("windlass_chunks_delayed", "Chunks that wait for a retry.");
    describe_gauge!("windlass_tasks_waiting", "Tasks of lanes that wait for a consumer or are with one.");
    describe_gauge!("windlass_tasks_reserved", "Tasks that consumers work on.");
    describe_gauge!("windlass_tasks_delayed", "Tasks that are not due yet.");
    describe_gauge!("windlass_tasks_dead", "Tasks that have failed for good.");
    describe_gauge!(
        "windlass_lane_tasks_waiting",
        "Tasks of the lane that wait for a consumer or are with one."
    );
    describe_gauge!("windlass_lane_tasks_reserved", "Tasks of the lane that consumers work on.");
    describe_gauge!("windlass_lane_tasks_delayed", "Tasks of the lane that are not due yet.");
    describe_gauge!("windlass_lane_tasks_dead", "Tasks of the lane that have failed for good.");
    describe_counter!("windlass_lane_tasks_added_total", "Tasks ever added to the lane.");
    describe_counter!("windlass_lane_tasks_done_total", "Tasks of the lane ever done.");
    describe_gauge!(
        "windlass_lane_worst_lag_strides",
        "How late a task of the lane was handed out at worst since this leader began, in strides of its key."
    );
    describe_gauge!("windlass_consumers", "Consumers that are connected; who only adds tasks is none.");
    describe_gauge!("windlass_reserves_waiting", "Reserve requests that wait for work.");
    describe_gauge!("windlass_watchers", "Those who watch submissions.");
    describe_gauge!(
        "windlass_abouts_at_hand",
        "Submissions with an input, opaque bytes or an output branch of which it is known without a look at the disk what \
         their producers said."
    );
    describe_gauge!("windlass_applied_index", "The last applied index of the log.");
    describe_gauge!("windlass_branches", "Branches.");
    describe_gauge!("windlass_commits_waiting", "Commits that were announced and are not performed.");
    describe_gauge!("windlass_areas_dropped", "Staging areas whose rows are being removed.");
    describe_counter!(
        "windlass_range_reads_total",
        "Files of commits (ranges and metaranges) read from the object store."
    );
    describe_counter!("windlass_log_syncs_total", "fsyncs of the log.");
    describe_counter!("windlass_log_records_total", "Records written to the log.");
    describe_counter!("windlass_log_bytes_total", "Bytes written to the log.");
    describe_counter!(
        "windlass_unknown_tokens_total",
        "Applied commands of this member that nobody waited for."
    );
}

/// What is known of branches.
#[derive(Debug, Clone, Copy)]
pub struct BranchFigures {
    /// How many there are.
    pub branches: usize,
    /// Commits that wait.
    pub commits_waiting: usize,
    /// Staging areas whose rows are being removed.
    pub areas_dropped: usize,
    /// Files of commits that were read from the object store.
    pub range_reads: u64,
}

/// The metrics as Prometheus' text.
pub fn render(
    status: &StatusInfo,
    order: &OrderCounters,
    watchers: u64,
    abouts_at_hand: usize,
    lanes: Vec<LaneFigures>,
    branches: BranchFigures,
) -> String {
    use metrics::{counter, gauge};
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point, and exact up to 2^53")]
    let values = [
        ("windlass_submissions_running", status.submissions_running as f64),
        ("windlass_chunks_unsettled", status.chunks_unsettled as f64),
        ("windlass_chunks_ready", status.chunks_ready as f64),
        ("windlass_chunks_reserved", status.chunks_reserved as f64),
        ("windlass_chunks_delayed", status.chunks_delayed as f64),
        ("windlass_tasks_waiting", status.tasks_waiting as f64),
        ("windlass_tasks_reserved", status.tasks_reserved as f64),
        ("windlass_tasks_delayed", status.tasks_delayed as f64),
        ("windlass_tasks_dead", status.tasks_dead as f64),
        ("windlass_consumers", status.consumers as f64),
        ("windlass_reserves_waiting", status.waiting as f64),
        ("windlass_watchers", watchers as f64),
        ("windlass_abouts_at_hand", abouts_at_hand as f64),
        ("windlass_applied_index", status.applied_index as f64),
        ("windlass_branches", branches.branches as f64),
        ("windlass_commits_waiting", branches.commits_waiting as f64),
        ("windlass_areas_dropped", branches.areas_dropped as f64),
    ];
    for (name, value) in values {
        gauge!(name).set(value);
    }
    for LaneFigures { info, worst_lag } in lanes {
        let lane = info.lane;
        #[expect(clippy::cast_precision_loss, reason = "gauges are floating point, and exact up to 2^53")]
        let tasks = [
            ("windlass_lane_tasks_waiting", info.waiting as f64),
            ("windlass_lane_tasks_reserved", info.reserved as f64),
            ("windlass_lane_tasks_delayed", info.delayed as f64),
            ("windlass_lane_tasks_dead", info.dead as f64),
        ];
        for (name, value) in tasks {
            gauge!(name, "lane" => lane.clone()).set(value);
        }
        counter!("windlass_lane_tasks_added_total", "lane" => lane.clone()).absolute(info.added);
        counter!("windlass_lane_tasks_done_total", "lane" => lane.clone()).absolute(info.done);
        if let Some(worst_lag) = worst_lag {
            gauge!("windlass_lane_worst_lag_strides", "lane" => lane).set(worst_lag);
        }
    }
    counter!("windlass_log_syncs_total").absolute(order.log.syncs);
    counter!("windlass_log_records_total").absolute(order.log.records);
    counter!("windlass_log_bytes_total").absolute(order.log.bytes_written);
    counter!("windlass_unknown_tokens_total").absolute(order.unknown_tokens);
    counter!("windlass_range_reads_total").absolute(branches.range_reads);
    recorder().render()
}
