//! The Releveler: takes up levels that are given anew where that has come to a stand, since whoever asked for it has gone away or the
//! leader has changed. Half done, a key's tasks would wait for longer than its weight says.

use crate::service::Service;
use crate::service::lane_relevel::Run;
use std::time::Duration;
use windlass_core::lanes::levels::RankName;
use windlass_core::lanes::relevel::{UnderWay, under_way};

/// What has not come on for so long has come to a stand.
const LOOK: Duration = Duration::from_secs(2);

/// A key's run, and how far it was.
pub(crate) type Seen = (RankName, String, UnderWay);

/// Looks from time to time.
pub(crate) async fn run(service: Service) {
    let mut seen = Vec::new();
    loop {
        tokio::time::sleep(LOOK).await;
        seen = run_once(&service, &seen).await;
    }
}

/// Brings those runs to their end that have not come on since they were seen; gives those that are under way now.
pub(crate) async fn run_once(service: &Service, seen: &[Seen]) -> Vec<Seen> {
    let now = under_way(service.order().committed());
    for (rank, key, _) in now.iter().filter(|it| seen.contains(it)) {
        let lane =
            service.order().read(|machine| Some(machine.lanes().by_number(rank.lane)?.name().to_owned()));
        let Some(lane) = lane else { continue };
        let run = Run { priority: rank.priority, key: key.clone() };
        loop {
            match service.relevel_some(&lane, &run).await {
                Ok(done) if done.next.is_some() => {}
                Ok(_) => break,
                Err(problem) => {
                    tracing::debug!(lane, key, %problem, "levels are given anew at the next look");
                    break;
                }
            }
        }
    }
    now
}
