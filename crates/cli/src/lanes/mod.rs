//! `windlass lanes`: fair queues of single tasks.

mod add;
pub(crate) mod args;

use crate::args::Global;
use crate::exit::{Exit, print, print_json};
use crate::table::{age, aligned, counted, grouped};
use args::{Lanes, LanesCommand};
use std::fmt::Write;
use windlass_client::lanes::{
    DeadTasks, LaneChangeRequest, LaneDetails, LaneInfo, LaneListQuery, RedriveRequest, TaskExplained,
    TaskStanding,
};

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
            let redriven = client.redrive(&lane, &RedriveRequest { reason, tasks }).await?;
            if global.json {
                return print_json(&redriven);
            }
            eprintln!("{} tried again", counted(redriven.tasks, "task"));
            return Ok(());
        }
        LanesCommand::Create { lane } => client.create_lane(&lane).await?,
        LanesCommand::Weigh { lane, weights, unset } => {
            let set = weights.into_iter().map(|(key, weight)| (key, Some(weight)));
            let weights = set.chain(unset.into_iter().map(|key| (key, None))).collect();
            client.change_lane(&lane, &LaneChangeRequest { weights }).await?
        }
        LanesCommand::Show { lane } => client.lane(&lane).await?,
        LanesCommand::Pause { lane } => client.pause_lane(&lane).await?,
        LanesCommand::Resume { lane } => client.resume_lane(&lane).await?,
        LanesCommand::Drain { lane } => client.drain_lane(&lane).await?,
    };
    if global.json { print_json(&details) } else { print(details_text(&details).as_bytes()) }
}

fn list_text(lanes: &[LaneInfo]) -> String {
    let rows: Vec<Vec<String>> = lanes
        .iter()
        .map(|lane| {
            vec![
                lane.lane.clone(),
                state_of(lane).into(),
                grouped(lane.waiting - lane.reserved.min(lane.waiting)),
                grouped(lane.reserved),
                grouped(lane.delayed),
                grouped(lane.dead),
                grouped(lane.done),
                grouped(lane.keys),
            ]
        })
        .collect();
    aligned(&["LANE", "STATE", "WAITING", "OUT", "DELAYED", "DEAD", "DONE", "KEYS"], &rows)
}

const fn state_of(lane: &LaneInfo) -> &'static str {
    match (lane.is_paused, lane.is_draining) {
        (false, false) => "open",
        (true, false) => "paused",
        (false, true) => "draining",
        (true, true) => "paused, draining",
    }
}

fn details_text(details: &LaneDetails) -> String {
    let lane = &details.lane;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("lane", lane.lane.clone());
    line("state", state_of(lane).into());
    line("created", format!("{} ago", age(&lane.created_at)));
    let ready = lane.waiting - lane.reserved.min(lane.waiting);
    line("tasks", format!("{} waiting, {} out", grouped(ready), grouped(lane.reserved)));
    line("", format!("{} delayed, {} dead", grouped(lane.delayed), grouped(lane.dead)));
    line("", format!("{} done of {} added", grouped(lane.done), grouped(lane.added)));
    line("keys", format!("{} with tasks that wait", grouped(lane.keys)));
    if !details.weights.is_empty() {
        let weights: Vec<String> =
            details.weights.iter().map(|(key, weight)| format!("{key}={weight}")).collect();
        line("weights", weights.join(" "));
    }
    if !details.priorities.is_empty() {
        let rows: Vec<Vec<String>> = details
            .priorities
            .iter()
            .map(|it| {
                let level = |level: &Option<String>| level.clone().unwrap_or_else(|| "-".into());
                vec![
                    it.priority.to_string(),
                    grouped(it.waiting),
                    grouped(it.reserved),
                    grouped(it.keys),
                    format!("{}{}", grouped(it.in_memory), if it.is_read_to_end { ", all" } else { "" }),
                    level(&it.ack_level),
                    level(&it.read_level),
                    level(&it.max_level),
                    it.virtual_time.to_string(),
                ]
            })
            .collect();
        let head = ["PRIORITY", "TASKS", "OUT", "KEYS", "IN MEMORY", "A", "R", "M", "V"];
        let _ = write!(text, "\n{}", aligned(&head, &rows));
    }
    if !details.busiest.is_empty() {
        let rows: Vec<Vec<String>> = details
            .busiest
            .iter()
            .map(|it| vec![it.key.clone(), it.priority.to_string(), grouped(it.waiting)])
            .collect();
        let _ = write!(text, "\n{}", aligned(&["KEY", "PRIORITY", "TASKS"], &rows));
    }
    text
}

fn explained_text(it: &TaskExplained) -> String {
    let standing = match it.standing {
        TaskStanding::Waiting => "waiting",
        TaskStanding::Reserved => "with a consumer",
        TaskStanding::Delayed => "delayed",
        TaskStanding::Dead => "dead",
    };
    let mut text = format!("{:<10} {}\n{:<10} {standing}: {}\n", "task", it.task, "standing", it.why);
    let mut line = |name: &str, value: String| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("key", format!("{:?}, priority {}", it.key, it.priority));
    if let Some(level) = &it.level {
        line("level", format!("{level}, virtual time {}", it.virtual_time));
    }
    if let Some(due_at) = &it.due_at {
        line("due", due_at.clone());
    }
    line("added", format!("{} ago", age(&it.added_at)));
    line("attempts", format!("{} of {} failed", it.failures, it.attempts_max));
    if it.standing == TaskStanding::Waiting {
        line(
            "ahead",
            format!("{}{}", counted(it.ahead, "task"), if it.has_more_ahead { ", and more" } else { "" }),
        );
    }
    if !it.ahead_by_key.is_empty() {
        let rows: Vec<Vec<String>> =
            it.ahead_by_key.iter().map(|key| vec![key.key.clone(), grouped(key.waiting)]).collect();
        let _ = write!(text, "\n{}", aligned(&["KEY", "AHEAD"], &rows));
    }
    text
}

fn print_dead(dead: &DeadTasks) -> Result<(), Exit> {
    if dead.groups.is_empty() {
        eprintln!("no dead tasks");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = dead
        .groups
        .iter()
        .map(|group| {
            let example = group.examples.first().map(ToString::to_string).unwrap_or_default();
            let reason = group.reason.lines().next().unwrap_or_default();
            vec![grouped(group.tasks), age(&group.last_at), example, reason.to_owned()]
        })
        .collect();
    print(aligned(&["TASKS", "LAST", "SUCH AS", "REASON"], &rows).as_bytes())?;
    if dead.has_more {
        eprintln!("there are more: these are of the first {}", counted(dead.looked_at, "dead task"));
    }
    Ok(())
}
