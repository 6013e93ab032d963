//! `windlass lanes`: fair queues of single tasks.

mod add;
pub(crate) mod args;
mod text;

use crate::args::Global;
use crate::bars;
use crate::exit::{Exit, print, print_json};
use crate::table::{counted, grouped};
use args::{Lanes, LanesCommand, Limit};
use indicatif::ProgressBar;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;
use text::{details_text, explained_text, limits_text, list_text, print_dead};
use windlass_client::lanes::{
    KeyOrderInfo, LaneChangeRequest, LaneDetails, LaneLimitsChange, LaneLimitsInfo, LaneListQuery, LaneQuery,
    LimitInfo, RedriveRequest, RedriveResponse, RelevelRequest, RelevelResponse,
};
use windlass_client::{Client, ClientError, SubmissionId};

pub(crate) async fn run(global: &Global, lanes: Lanes) -> Result<(), Exit> {
    let client = global.client()?;
    let details = match lanes.command {
        LanesCommand::Add(add) => return add::run(global, &client, add).await,
        LanesCommand::List { limit, cursor } => {
            let page = client.lanes(&LaneListQuery { cursor, limit: Some(limit) }).await?;
            if global.json {
                return print_json(&page);
            }
            if page.items.is_empty() {
                eprintln!("no lanes");
                return Ok(());
            }
            print(list_text(&page.items).as_bytes())?;
            if let Some(next) = page.next {
                eprintln!("there are more: --cursor {next}");
            }
            return Ok(());
        }
        LanesCommand::Explain { lane, task } => {
            let explained = client.explain_task(&lane, task).await?;
            return if global.json {
                print_json(&explained)
            } else {
                print(explained_text(&explained).as_bytes())
            };
        }
        LanesCommand::Dead { lane } => {
            let dead = client.dead_tasks(&lane).await?;
            if global.json {
                return print_json(&dead);
            }
            return print_dead(&dead);
        }
        LanesCommand::Redrive { lane, tasks, reason, all: _ } => {
            let request = RedriveRequest { reason, tasks, cursor: None };
            return redrive(global, &client, &lane, request).await;
        }
        LanesCommand::Create { lane } => client.create_lane(&lane).await?,
        LanesCommand::Weigh { lane, weights, unset } => {
            let set = weights.into_iter().map(|(key, weight)| (key, Some(weight)));
            let weights = set.chain(unset.into_iter().map(|key| (key, None))).collect();
            weigh(&client, &lane, weights).await?
        }
        LanesCommand::Limit(limit) if limit.is_look() => {
            return show_limits(global, &client, &limit.lane).await;
        }
        LanesCommand::Limit(limit) => {
            let (lane, limits) = limits_of(limit);
            let change = LaneChangeRequest { limits, ..LaneChangeRequest::default() };
            change_showing(&client, &lane, &change).await?
        }
        LanesCommand::Relevel { lane, key } => return relevel(global, &client, &lane, key).await,
        LanesCommand::Show { lane, key, keys } => client.lane_with(&lane, &LaneQuery { key, keys }).await?,
        LanesCommand::Pause { lane } => client.pause_lane(&lane).await?,
        LanesCommand::Resume { lane } => client.resume_lane(&lane).await?,
        LanesCommand::Drain { lane } => client.drain_lane(&lane).await?,
    };
    if global.json { print_json(&details) } else { print(details_text(&details).as_bytes()) }
}

/// Sets weights, and says what they do not count for yet. The weight of a tenant counts at once.
async fn weigh(
    client: &Client,
    lane: &str,
    weights: BTreeMap<String, Option<f64>>,
) -> Result<LaneDetails, Exit> {
    let has_keys = weights.iter().any(|(key, weight)| weight.is_some() && !key.ends_with('/'));
    let change = LaneChangeRequest { weights, ..LaneChangeRequest::default() };
    let details = client.change_lane(lane, &change).await?;
    if has_keys && details.lane.waiting > details.lane.reserved {
        eprintln!(
            "tasks that wait go by the weights that they were added with; `windlass lanes relevel {lane}` gives them the new ones"
        );
    }
    Ok(details)
}

/// Shows what is limited, and nothing else.
async fn show_limits(global: &Global, client: &Client, lane: &str) -> Result<(), Exit> {
    let no_keys = LaneQuery { key: None, keys: Some(0) };
    let limits = client.lane_with(lane, &no_keys).await?.limits;
    if global.json {
        return print_json(&limits);
    }
    if limits == LaneLimitsInfo::default() {
        eprintln!("no limits");
        return Ok(());
    }
    print(limits_text(&limits).as_bytes())
}

/// The lane and the limits that are set or lifted.
fn limits_of(it: Limit) -> (String, LaneLimitsChange) {
    // Nothing said of a key by its name exempts it.
    let Limit { lane, each_key, each_tenant, key, in_flight, per_second, burst, lift, exempt: _ } = it;
    let limit = (!lift).then_some(LimitInfo { in_flight, per_second, burst });
    let limits = match (each_key, each_tenant, key) {
        (true, _, _) => LaneLimitsChange { each_key: Some(limit), ..LaneLimitsChange::default() },
        (_, true, _) => LaneLimitsChange { each_tenant: Some(limit), ..LaneLimitsChange::default() },
        (false, false, keys) if keys.is_empty() => {
            LaneLimitsChange { lane: Some(limit), ..LaneLimitsChange::default() }
        }
        (false, false, keys) => {
            let named = keys.into_iter().map(|key| (key, limit)).collect();
            LaneLimitsChange { named, ..LaneLimitsChange::default() }
        }
    };
    (lane, limits)
}

/// Changes a lane, and shows how far its tasks are put in order for that, if they have to be.
async fn change_showing(
    client: &Client,
    lane: &str,
    change: &LaneChangeRequest,
) -> Result<LaneDetails, ClientError> {
    const LOOK_EVERY: Duration = Duration::from_millis(500);
    const CHANGING: &str = "changing limits";
    let bar = bars::upload();
    bar.set_message(CHANGING);
    let mut changed = pin!(client.change_lane(lane, change));
    loop {
        match tokio::time::timeout(LOOK_EVERY, &mut changed).await {
            Ok(changed) => {
                bar.finish_and_clear();
                return changed;
            }
            Err(_) => show_key_order(client, lane, &bar, CHANGING).await,
        }
    }
}

/// Shows how far a lane's tasks are put in order, or what else is done.
async fn show_key_order(client: &Client, lane: &str, bar: &ProgressBar, else_done: &'static str) {
    // Whatever is wrong with it, the request itself will say.
    let no_keys = LaneQuery { key: None, keys: Some(0) };
    let Ok(LaneDetails { key_order, lane: info, .. }) = client.lane_with(lane, &no_keys).await else {
        return;
    };
    bar.set_message(match key_order {
        KeyOrderInfo::Making { tasks } => {
            let (done, all) = (grouped(tasks), grouped(info.waiting.max(tasks)));
            format!("putting tasks in order key by key: {done} of {all}")
        }
        KeyOrderInfo::Kept | KeyOrderInfo::Absent => else_done.into(),
    });
}

async fn redrive(
    global: &Global,
    client: &Client,
    lane: &str,
    mut request: RedriveRequest,
) -> Result<(), Exit> {
    let bar = bars::upload();
    let is_by_reason = request.reason.is_some();
    let named: BTreeSet<SubmissionId> = request.tasks.iter().copied().collect();
    let named = named.len() as u64;
    let mut tasks = 0;
    loop {
        let some = client.redrive_some(lane, &request).await.inspect_err(|_| {
            bar.finish_and_clear();
            // What is refused from the first on is refused once more.
            if tasks > 0 {
                eprintln!("{} tried again before this; run it again for the rest", counted(tasks, "task"));
            }
        })?;
        tasks += some.tasks;
        bar.set_message(format!("{} tried again", counted(tasks, "task")));
        match some.next {
            Some(next) => request.cursor = Some(next),
            None => break,
        }
    }
    bar.finish_and_clear();
    if global.json {
        print_json(&RedriveResponse { tasks, next: None })?;
    } else if named == 0 || tasks > 0 {
        eprintln!("{} tried again", counted(tasks, "task"));
    }
    if is_by_reason && tasks == 0 {
        return Err(Exit::Refused(format!(
            "no dead task's reason begins like this, so nothing was tried again; `windlass lanes dead {lane} --json` shows the reasons as \
             they are, lines and all"
        )));
    }
    tell_of_alive(lane, named.saturating_sub(tasks), tasks)
}

/// Of the tasks that were named, so many are not dead, and so many others were tried again.
fn tell_of_alive(lane: &str, alive: u64, tasks: u64) -> Result<(), Exit> {
    match (alive, tasks) {
        (0, _) => {}
        (alive, 0) => {
            let these =
                if alive == 1 { "this task is not".into() } else { format!("none of these {alive} is") };
            return Err(Exit::Refused(format!(
                "{these} dead, so nothing was tried again; `windlass lanes dead {lane}` shows what is"
            )));
        }
        (1, _) => eprintln!("1 of the tasks that you named is not dead, and was left as it is"),
        (alive, _) => {
            eprintln!("{alive} of the tasks that you named are not dead, and were left as they are")
        }
    }
    Ok(())
}

async fn relevel(global: &Global, client: &Client, lane: &str, keys: Vec<String>) -> Result<(), Exit> {
    const COUNTING: &str = "counting the tasks that wait";
    let bar = bars::upload();
    bar.set_message(COUNTING);
    let mut request = RelevelRequest { keys, cursor: None };
    let mut tasks = 0;
    loop {
        let done = client.relevel_some(lane, &request).await.inspect_err(|_| {
            bar.finish_and_clear();
            if tasks > 0 {
                eprintln!(
                    "{} moved to another level before this; run it again for the rest",
                    counted(tasks, "task")
                );
            }
        })?;
        tasks += done.tasks;
        match tasks {
            0 => show_key_order(client, lane, &bar, COUNTING).await,
            _ => bar.set_message(format!("{} moved", grouped(tasks))),
        }
        match done.next {
            Some(next) => request.cursor = Some(next),
            None => break,
        }
    }
    bar.finish_and_clear();
    if global.json {
        return print_json(&RelevelResponse { tasks, next: None });
    }
    eprintln!("{} moved to another level", counted(tasks, "task"));
    Ok(())
}
