//! Lanes as people read them.

use crate::exit::{Exit, print};
use crate::table::{age, aligned, columns, counted, grouped, key_text, named, on_one_line, shortened};
use windlass_client::lanes::{
    DeadGroup, DeadTasks, KeyOrderInfo, LaneBlockInfo, LaneDetails, LaneInfo, LaneKeyDetails, LaneLimitsInfo,
    LanePriorityInfo, LimitInfo, TaskExplained, TaskStanding,
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
    let mut line = |name: &str, value: String| text.push_str(&named(name, &value));
    line("lane", lane.lane.clone());
    line("state", state_of(lane).into());
    line("created", format!("{} ago", age(&lane.created_at)));
    let ready = lane.waiting - lane.reserved.min(lane.waiting);
    line("tasks", format!("{} waiting, {} out", grouped(ready), grouped(lane.reserved)));
    line("", format!("{} delayed, {} dead", grouped(lane.delayed), grouped(lane.dead)));
    line("", format!("{} done of {} added", grouped(lane.done), grouped(lane.added)));
    let of_each = if details.priorities.len() > 1 { ", those of each priority added up" } else { "" };
    line("keys", format!("{} with tasks that wait{of_each}", grouped(lane.keys)));
    if !details.weights.is_empty() {
        let weights: Vec<String> =
            details.weights.iter().map(|(key, weight)| format!("{}={weight}", key_text(key))).collect();
        line("weights", weights.join(" "));
    }
    limit_lines(&details.limits).into_iter().for_each(|(name, limit)| line(name, limit));
    // That of the lane is in the way of every key.
    if let Some(block) = details.busiest.iter().find_map(|it| block_of_lane(&it.blocked_by)) {
        line("at limit", block_text(block));
    }
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
        let rows: Vec<Vec<String>> = details.priorities.iter().map(priority_cells).collect();
        let head = ["PRIORITY", "TASKS", "OUT", "KEYS", "AT LIMIT", "IN MEMORY", "A", "R", "M", "V"];
        text.push_str(&format!("\n{}", aligned(&head, &rows)));
    }
    if !details.busiest.is_empty() {
        let rows: Vec<Vec<String>> = details.busiest.iter().map(key_cells).collect();
        let head =
            ["KEY", "PRIORITY", "TASKS", "WEIGHT", "ENTITLED", "GOT 1 MIN", "5 MIN", "15 MIN", "LIMIT"];
        text.push_str(&format!("\n{}", aligned(&head, &rows)));
    }
    text
}

fn priority_cells(it: &LanePriorityInfo) -> Vec<String> {
    let level = |level: &Option<String>| level.clone().unwrap_or_else(|| "-".into());
    vec![
        it.priority.to_string(),
        grouped(it.waiting),
        grouped(it.reserved),
        grouped(it.keys),
        grouped(it.parked),
        // Of tenants' tasks only the next ones are read.
        match it.in_memory + it.reserved >= it.waiting {
            true => format!("{}, all", grouped(it.in_memory)),
            false => grouped(it.in_memory),
        },
        level(&it.ack_level),
        level(&it.read_level),
        level(&it.max_level),
        it.virtual_time.to_string(),
    ]
}

fn key_cells(it: &LaneKeyDetails) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    // What is said above of the lane is not said again of each key.
    let own = it.blocked_by.iter().find(|block| block.name.is_some()).map(|block| block.why.clone());
    let of_lane = block_of_lane(&it.blocked_by).map(|_| "that of the lane".to_owned());
    vec![
        key_text(&it.key),
        it.priority.to_string(),
        grouped(it.waiting),
        it.weight.to_string(),
        percent(it.entitled),
        percent(it.shares.minutes_1),
        percent(it.shares.minutes_5),
        percent(it.shares.minutes_15),
        own.or(of_lane).unwrap_or_else(|| "-".into()),
    ]
}

fn block_of_lane(blocks: &[LaneBlockInfo]) -> Option<&LaneBlockInfo> {
    blocks.iter().find(|block| block.name.is_none())
}

/// What is in the way, and when that ends.
fn block_text(block: &LaneBlockInfo) -> String {
    let end = block.free_at.as_ref().map(|at| format!("; this ends at {at} at the latest"));
    format!("{}{}", block.why, end.unwrap_or_default())
}

fn limit_lines(limits: &LaneLimitsInfo) -> Vec<(&'static str, String)> {
    let of_all =
        [("", &limits.lane), ("each key: ", &limits.each_key), ("each tenant: ", &limits.each_tenant)];
    let of_all =
        of_all.into_iter().filter_map(|(of, limit)| Some(format!("{of}{}", limit_text(limit.as_ref()?))));
    let named = limits.named.iter().map(|(name, limit)| format!("{}: {}", key_text(name), limit_text(limit)));
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
    limit_lines(limits).into_iter().map(|(name, limit)| named(name, &limit)).collect()
}

pub(super) fn explained_text(it: &TaskExplained) -> String {
    let standing = match it.standing {
        TaskStanding::Waiting => format!("waiting: {}", it.why),
        TaskStanding::Reserved => "with a consumer".into(),
        TaskStanding::Delayed => format!("delayed: {}", it.why),
        TaskStanding::Dead => format!("dead: {}", it.why),
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&named(name, &value));
    line("task", it.task.to_string());
    line("standing", standing);
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
        let tasks = counted(it.ahead, "task");
        line(
            "ahead",
            match (it.ahead, it.has_more_ahead) {
                (0, false) => "nothing".into(),
                (_, false) => format!("{tasks}, with those of higher priorities"),
                (_, true) => format!("more than {tasks}, with those of higher priorities"),
            },
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
        line("limit", block_text(block));
    }
    if !it.ahead_by_key.is_empty() {
        let rows: Vec<Vec<String>> =
            it.ahead_by_key.iter().map(|key| vec![key_text(&key.key), grouped(key.waiting)]).collect();
        text.push_str(&format!("\n{}", aligned(&["KEY", "AHEAD IN ITS PRIORITY"], &rows)));
    }
    text
}

pub(super) fn print_dead(dead: &DeadTasks) -> Result<(), Exit> {
    if dead.groups.is_empty() {
        eprintln!("no dead tasks");
        return Ok(());
    }
    print(dead_text(dead, columns()).as_bytes())?;
    if dead.tasks_left_out > 0 {
        eprintln!("{} of smaller groups are not shown", counted(dead.tasks_left_out, "task"));
    }
    if dead.has_more {
        eprintln!("there are more: these are of the first {}", counted(dead.looked_at, "dead task"));
    }
    Ok(())
}

/// Groups of dead tasks, in so many columns if that is bounded.
fn dead_text(dead: &DeadTasks, columns: Option<usize>) -> String {
    const HEAD: [&str; 4] = ["TASKS", "LAST", "SUCH AS", "REASON"];
    /// Less says nothing.
    const REASON_COLUMNS_MIN: usize = 20;
    let rows = |reason: &dyn Fn(&str) -> String| -> Vec<Vec<String>> {
        let row = |group: &DeadGroup| {
            let example = group.examples.first().map(ToString::to_string).unwrap_or_default();
            vec![grouped(group.tasks), age(&group.last_at), example, reason(&group.reason)]
        };
        dead.groups.iter().map(row).collect()
    };
    let Some(columns) = columns else { return aligned(&HEAD, &rows(&on_one_line)) };
    let before = aligned(&HEAD, &rows(&|_| String::new())).lines().next().map_or(0, |head| head.len());
    let room = columns.saturating_sub(before - HEAD[3].len()).max(REASON_COLUMNS_MIN);
    aligned(&HEAD, &rows(&|reason| shortened(&on_one_line(reason), room)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_line_of_a_reason_is_shown_also_where_the_whole_has_no_room() {
        let reason = "exit status 1:   File \"/srv/mail/send.py\", line 12, in <module>\n    send(key)\nValueError: boom";
        let dead: DeadTasks = serde_json::from_value(json!({
            "groups": [
                {"reason": reason, "tasks": 1_200, "examples": ["380911134951079936"], "last_at": "a while"},
                {"reason": "a\u{1b}[2J", "tasks": 1, "examples": ["380911134951079937"], "last_at": "a while"}
            ],
            "looked_at": 1_201, "has_more": false
        }))
        .unwrap();
        let whole = dead_text(&dead, None);
        let line = "1,200  a while  380911134951079936  exit status 1:   File \"/srv/mail/send.py\", line 12, in <module> |     send(key) | ValueError: boom\n";
        assert!(whole.contains(line) && whole.ends_with("  a\\u{1b}[2J\n"), "{whole}");
        for columns in [80, 100] {
            let cut = dead_text(&dead, Some(columns));
            let line = cut.lines().nth(1).unwrap();
            assert_eq!(line.chars().count(), columns, "{cut}");
            assert!(line.contains("  exit status") && line.ends_with("| ValueError: boom"), "{cut}");
        }
        assert!(dead_text(&dead, Some(10)).contains("Error: boom"), "a narrow terminal wraps");
    }

    #[test]
    fn the_limit_of_a_lane_is_said_once_and_its_keys_say_what_is_their_own() {
        let key = |key: &str, blocked_by| {
            json!({"key": key, "priority": 0, "waiting": 3, "weight": 1.0, "entitled": 0.5, "blocked_by": blocked_by,
                   "shares": {"minutes_1": 0.0, "minutes_5": 0.0, "minutes_15": 0.0}})
        };
        let lane = json!({"why": "2 of the lane are with consumers", "free_at": "2030-01-31T08:00:00.000Z"});
        let own = json!({"name": "b\n", "why": "nothing of \"b\\n\" is handed out: its limit is 0"});
        let details: LaneDetails = serde_json::from_value(json!({
            "lane": "emails", "created_at": "x", "is_paused": false, "is_draining": false, "waiting": 9, "reserved": 2,
            "delayed": 0, "dead": 0, "added": 9, "done": 0, "keys": 3, "priorities": [], "worst_lag": 0.0,
            "weights": {"": 2.0}, "limits": {"named": {"": {"in_flight": 3}}},
            "busiest": [key("", json!([lane])), key("a", json!([lane])), key("b\n", json!([lane, own]))]
        }))
        .unwrap();
        let text = details_text(&details);
        let said = "at limit   2 of the lane are with consumers; this ends at 2030-01-31T08:00:00.000Z at the latest\n";
        assert!(text.contains(said) && text.matches("of the lane are").count() == 1, "{text}");
        let starts: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("KEY")).skip(1).collect();
        assert!(starts[0].starts_with("\"\"   0 ") && starts[0].ends_with("  that of the lane"), "{text}");
        assert!(starts[1].starts_with("a    0 ") && starts[1].ends_with("  that of the lane"), "{text}");
        assert!(starts[2].starts_with("b\\n  0 ") && starts[2].ends_with("its limit is 0"), "{text}");
        assert!(
            text.contains("weights    \"\"=2\n") && text.contains("limits     \"\": 3 in flight\n"),
            "{text}"
        );
    }

    #[test]
    fn where_a_task_stands_is_said_in_whole_sentences_and_nothing_twice() {
        let explained = |standing: &str, blocked_by| -> TaskExplained {
            serde_json::from_value(json!({
                "task": "380911134951079936", "key": "a\u{7}", "priority": 0, "standing": standing, "why": "a consumer works on it",
                "virtual_time": 0, "added_at": "x", "failures": 0, "attempts_max": 5, "ahead": 0, "has_more_ahead": false,
                "ahead_by_key": [], "blocked_by": blocked_by
            }))
            .unwrap()
        };
        let text = explained_text(&explained("reserved", json!([])));
        assert!(text.contains("standing   with a consumer\n"), "{text}");
        let why = "2 of \"a\" are with consumers, as many as may be; one that comes back makes room";
        let block = json!([{"name": "a", "why": why, "free_at": "2030-01-31T08:00:00.000Z"}]);
        let text = explained_text(&explained("waiting", block));
        let said = format!("limit      {why}; this ends at 2030-01-31T08:00:00.000Z at the latest\n");
        assert!(text.contains(&said) && !text.contains('\u{7}'), "{text}");
    }
}
