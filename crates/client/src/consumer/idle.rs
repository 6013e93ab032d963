//! Idle: whether there is really nothing left to do, for a consumer that ends by itself then.
//!
//! Something to do is: a chunk that is ready, or waits for its retry; a task of our lanes that is not due yet; and one that goes out by
//! itself as time passes, when a rate allows it. What others have, and what is blocked for good, is not waited for.

use crate::client::Client;
use crate::error::ClientError;
use std::future::pending;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use windlass_api::lanes::{LaneBlockInfo, LaneBlockKind, LaneDetails, LaneQuery};
use windlass_core::lanes::levels::is_tenant;

/// Between two looks at tasks that nothing seems to hold up: they are with us by then, or not for us.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Keys that are looked at, the busiest ones: as many as the server shows.
const KEYS_MAX: usize = 1_000;

/// Tenants whose users are looked at: each takes a request of its own.
const TENANTS_MAX: usize = 20;

/// Whether there is nothing left to do at this time.
pub(super) async fn check_idle(at: Option<Instant>, client: &Client, lanes: Vec<&str>) -> bool {
    let Some(at) = at else { return pending().await };
    sleep_until(at).await;
    for lane in lanes {
        // Whatever is wrong with a lane, its tasks are not waited for.
        if has_more(client, lane).await.unwrap_or(false) {
            return false;
        }
    }
    client.status().await.is_ok_and(|status| status.chunks_delayed == 0 && status.chunks_ready == 0)
}

/// Whether a lane has tasks that will go out.
async fn has_more(client: &Client, lane: &str) -> Result<bool, ClientError> {
    for wait in [Duration::ZERO, LOOK_AGAIN_AFTER] {
        sleep(wait).await;
        let no_keys = LaneQuery { key: None, keys: Some(0) };
        let LaneDetails { lane: it, .. } = client.lane_with(lane, &no_keys).await?;
        if it.delayed > 0 {
            return Ok(true);
        }
        if it.is_paused || it.waiting <= it.reserved {
            return Ok(false);
        }
        if waits_for_time(client, lane).await? {
            return Ok(true);
        }
        // A rate may have let a task go a moment ago, which is on its way to somebody now.
    }
    Ok(false)
}

/// Whether there are tasks that go out as time passes.
async fn waits_for_time(client: &Client, lane: &str) -> Result<bool, ClientError> {
    let query = LaneQuery { key: None, keys: Some(KEYS_MAX) };
    let busiest = client.lane_with(lane, &query).await?.busiest;
    let with_tasks = || busiest.iter().filter(|it| it.waiting > 0);
    if with_tasks().any(|it| ends_by_itself(&it.blocked_by)) {
        return Ok(true);
    }
    // Users of a tenant have limits of their own, also where the tenant has none.
    for tenant in with_tasks().filter(|it| is_tenant(&it.key) && it.blocked_by.is_empty()).take(TENANTS_MAX) {
        let query = LaneQuery { key: Some(tenant.key.clone()), keys: None };
        let users = client.lane_with(lane, &query).await?.busiest;
        if users.iter().any(|it| it.waiting > 0 && ends_by_itself(&it.blocked_by)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether something is in the way, and all of it goes away as time passes, whatever others do.
fn ends_by_itself(blocks: &[LaneBlockInfo]) -> bool {
    let is_of_time = |block: &LaneBlockInfo| match block.kind {
        LaneBlockKind::Rate | LaneBlockKind::Held => true,
        LaneBlockKind::InFlight => false,
    };
    !blocks.is_empty() && blocks.iter().all(is_of_time)
}
