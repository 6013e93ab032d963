//! `windlass status`: how the server is.

use crate::args::Global;
use crate::exit::{Exit, print, print_json};
use crate::table::grouped;

pub(crate) async fn run(global: &Global) -> Result<(), Exit> {
    let client = global.client()?;
    let status = client.status().await?;
    if global.json {
        return print_json(&status);
    }
    let rows = [
        ("server", format!("{}, version {}", client.server(), status.version)),
        ("log", format!("epoch {}, applied to {}", status.epoch, grouped(status.applied_index))),
        ("submissions", format!("{} running", grouped(status.submissions_running as u64))),
        (
            "chunks",
            format!(
                "{} unsettled: {} ready, {} reserved, {} wait for a retry",
                grouped(status.chunks_unsettled),
                grouped(status.chunks_ready),
                grouped(status.chunks_reserved as u64),
                grouped(status.chunks_delayed as u64)
            ),
        ),
        (
            "tasks",
            format!(
                "{} waiting, {} of them reserved, {} not due yet, {} dead",
                grouped(status.tasks_waiting),
                grouped(status.tasks_reserved as u64),
                grouped(status.tasks_delayed),
                grouped(status.tasks_dead)
            ),
        ),
        ("consumers", format!("{} sessions, {} reserves waiting", status.consumers, status.waiting)),
    ];
    let text: String = rows.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    print(text.as_bytes())
}
