//! Lanes as people read them.

use crate::exit::{Exit, print};
use crate::table::{age, aligned, counted, grouped};
use std::fmt::Write;
use windlass_client::lanes::{
    DeadTasks, KeyOrderInfo, LaneDetails, LaneInfo, LaneKeyDetails, LaneLimitsInfo, LimitInfo, TaskExplained,
    TaskStanding,
};

pub(super) fn list_text(lanes: &[LaneInfo]) -> String {
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

pub(super) fn details_text(details: &LaneDetails) -> String {
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
    limit_lines(&details.limits).into_iter().for_each(|(name, limit)| line(name, limit));
    if let KeyOrderInfo::Making { tasks } = details.key_order {
        line("order", format!("{} in order key by key, for limits of keys", grouped(tasks)));
    }
    if let Some(oldest) = &details.oldest_added_at {
        line("oldest", format!("has waited for {}, of the tasks that are next", age(oldest)));
    }
    if details.worst_lag > 0.0 {
        line("worst lag", format!("{:.1} strides", details.worst_lag));
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
                    grouped(it.parked),
                    format!("{}{}", grouped(it.in_memory), if it.is_read_to_end { ", all" } else { "" }),
                    level(&it.ack_level),
                    level(&it.read_level),
                    level(&it.max_level),
                    it.virtual_time.to_string(),
                ]
            })
            .collect();
        let head = ["PRIORITY", "TASKS", "OUT", "KEYS", "AT LIMIT", "IN MEMORY", "A", "R", "M", "V"];
        let _ = write!(text, "\n{}", aligned(&head, &rows));
    }
    if !details.busiest.is_empty() {
        let rows: Vec<Vec<String>> = details.busiest.iter().map(key_cells).collect();
        let head =
            ["KEY", "PRIORITY", "TASKS", "WEIGHT", "ENTITLED", "GOT 1 MIN", "5 MIN", "15 MIN", "LIMIT"];
        let _ = write!(text, "\n{}", aligned(&head, &rows));
    }
    text
}

fn key_cells(it: &LaneKeyDetails) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        it.key.clone(),
        it.priority.to_string(),
        grouped(it.waiting),
        it.weight.to_string(),
        percent(it.entitled),
        percent(it.shares.minutes_1),
        percent(it.shares.minutes_5),
        percent(it.shares.minutes_15),
        it.blocked_by.first().map_or_else(|| "-".into(), |block| block.why.clone()),
    ]
}

fn limit_lines(limits: &LaneLimitsInfo) -> Vec<(&'static str, String)> {
    let of_all =
        [("", &limits.lane), ("each key: ", &limits.each_key), ("each tenant: ", &limits.each_tenant)];
    let of_all =
        of_all.into_iter().filter_map(|(of, limit)| Some(format!("{of}{}", limit_text(limit.as_ref()?))));
    let named = limits.named.iter().map(|(name, limit)| format!("{name}: {}", limit_text(limit)));
    of_all.chain(named).enumerate().map(|(nth, text)| (if nth == 0 { "limits" } else { "" }, text)).collect()
}

fn limit_text(limit: &LimitInfo) -> String {
    let in_flight = limit.in_flight.map(|most| format!("{} in flight", grouped(most.into())));
    let burst =
        limit.burst.filter(|burst| *burst > 1).map_or_else(String::new, |burst| format!(", {burst} at once"));
    let rate = limit.per_second.map(|rate| format!("{rate} a second{burst}"));
    let said: Vec<String> = in_flight.into_iter().chain(rate).collect();
    // Said of a key by its name, it exempts it from the limit of each.
    if said.is_empty() { "no limit".into() } else { said.join(", ") }
}

/// The limits of a lane, each on a line.
pub(super) fn limits_text(limits: &LaneLimitsInfo) -> String {
    limit_lines(limits)
        .into_iter()
        .fold(String::new(), |text, (name, limit)| format!("{text}{name:<10} {limit}\n"))
}

pub(super) fn explained_text(it: &TaskExplained) -> String {
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
            format!(
                "{}{}, those of higher priorities too",
                counted(it.ahead, "task"),
                if it.has_more_ahead { ", and more" } else { "" }
            ),
        );
    }
    if let Some(bound) = it.wait_bound {
        let tasks = counted(bound, "task");
        line("bound", format!("at most {tasks} of this priority first, whatever the keys of now add"));
    }
    if let Some(why) = it.no_wait_bound.as_ref().filter(|_| it.blocked_by.is_empty()) {
        line("bound", format!("not known: {why}"));
    }
    for block in &it.blocked_by {
        let until = block.free_at.as_ref().map_or_else(String::new, |at| format!(", until {at}"));
        line("limit", format!("{}{until}", block.why));
    }
    if !it.ahead_by_key.is_empty() {
        let rows: Vec<Vec<String>> =
            it.ahead_by_key.iter().map(|key| vec![key.key.clone(), grouped(key.waiting)]).collect();
        let _ = write!(text, "\n{}", aligned(&["KEY", "AHEAD IN ITS PRIORITY"], &rows));
    }
    text
}

pub(super) fn print_dead(dead: &DeadTasks) -> Result<(), Exit> {
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
    if dead.groups_left_out > 0 {
        eprintln!("{} more, which are smaller, are not shown", counted(dead.groups_left_out, "group"));
    }
    if dead.has_more {
        eprintln!("there are more: these are of the first {}", counted(dead.looked_at, "dead task"));
    }
    Ok(())
}
