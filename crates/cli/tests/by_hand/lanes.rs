//! Lanes by hand.

use super::stage::{Given, Stage};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;
use windlass_client::{Client, Consumer, Output, Strategy};

#[test]
fn a_lane_is_created_filled_worked_on_and_its_dead_tasks_are_driven_again() {
    let stage = Stage::new(&[]);
    let none = stage.run(&["lanes", "list"]);
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (0, "", "no lanes\n"));
    let unknown = stage.run(&["work", "--exec", "cat", "--strategy", "Lane(emails)"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("there is no lane `emails`"), "{unknown:?}");
    stage.run(&["lanes", "create", "emails"]).well();

    let one = ["lanes", "add", "emails", "--key", "tenant-7", "--weight", "2", "--priority", "3"];
    let id = stage.run(&[&one[..], &["--payload", "urgent"]].concat()).well();
    assert_eq!(
        stage.json(&["lanes", "show", "emails"])["priorities"][0]["max_level"],
        format!("<0, {}>", id.trim())
    );
    let tasks: String =
        (1..=9).map(|nth| format!("{{\"key\": \"k{}\", \"payload\": \"task {nth}\"}}\n", nth % 3)).collect();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks).unwrap();
    let added = stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]);
    assert_eq!((added.code, added.stdout.lines().count()), (0, 9), "{added:?}");
    assert!(added.stderr.ends_with("added 9 tasks\n"), "{added:?}");
    std::fs::write(stage.folder.path().join("bad.jsonl"), "{\"key\": \"a\"}\n{\"kye\": \"a\"}\n").unwrap();
    let bad = stage.run(&["lanes", "add", "emails", "--from", "bad.jsonl"]);
    assert!(bad.code != 0 && bad.stderr.contains("line 2 is no task: unknown field `kye`"), "{bad:?}");

    let shown = stage.run(&["lanes", "show", "emails"]).well();
    let keys = "keys       4 with tasks that wait, those of each priority added up\n";
    for part in ["tasks      10 waiting, 0 out\n", keys, "PRIORITY  TASKS"] {
        assert!(shown.contains(part), "{shown}");
    }
    let exec = "echo \"$WINDLASS_LANE $WINDLASS_KEY $(cat)\" >> out.txt";
    let worked =
        stage.run(&["work", "--exec", exec, "--strategy", "OrElse(Lane(emails), Random)", "--until-idle"]);
    assert_eq!(worked.code, 0, "{worked:?}");
    let out = std::fs::read_to_string(stage.folder.path().join("out.txt")).unwrap();
    let expected: String = (1..=9).map(|nth| format!("emails k{} task {nth}\n", nth % 3)).collect();
    assert_eq!(out, format!("emails tenant-7 urgent\n{expected}"));

    stage.run(&["lanes", "add", "emails", "--payload", "x", "--attempts-max", "1"]).well();
    stage
        .run(&["work", "--exec", "echo boom >&2; exit 3", "--strategy", "Lane(emails)", "--until-idle"])
        .well();
    let dead = stage.run(&["lanes", "dead", "emails"]).well();
    assert!(dead.starts_with("TASKS  LAST") && dead.contains("exit status 3: boom"), "{dead}");
    let again = stage.run(&["lanes", "redrive", "emails", "--reason", "exit status 3: boom"]);
    assert_eq!((again.code, again.stderr.as_str()), (0, "1 task tried again\n"));
    assert_eq!(stage.run(&["lanes", "dead", "emails"]).stderr, "no dead tasks\n");

    stage.run(&["lanes", "pause", "emails"]).well();
    stage.run(&["lanes", "drain", "emails"]).well();
    let listed = stage.json(&["lanes", "list"]);
    let lane = &listed["items"][0];
    assert_eq!((&lane["is_paused"], &lane["is_draining"]), (&json!(true), &json!(true)));
    assert_eq!((&lane["waiting"], &lane["done"]), (&json!(1), &json!(10)));
    let refused = stage.run(&["lanes", "add", "emails"]);
    assert!(refused.code != 0 && refused.stderr.contains("takes no more tasks"), "{refused:?}");
    assert!(stage.run(&["lanes", "resume", "emails"]).well().contains("state      open\n"));
}

#[test]
fn a_file_of_tasks_is_added_with_a_bar_and_what_is_no_number_is_not_taken_for_one() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let tasks: String = (0..2_500).map(|nth| format!("{{\"key\": \"k{}\"}}\n", nth % 3)).collect();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks).unwrap();
    let said = stage.at_terminal(&["lanes", "add", "emails", "--from", "tasks.jsonl"], "");
    assert_eq!(said.code, 0, "{said:?}");
    let ids = said.stdout.lines().filter(|line| line.len() == 18 && line.parse::<u64>().is_ok()).count();
    assert!(ids >= 2_400, "the bar is drawn beside the ids, not over them: {ids} are whole lines");
    assert!(said.stdout.contains("] 40 %") || said.stdout.contains("] 80 %"), "{}", said.stdout);
    assert!(said.stdout.contains("added 2,500 tasks"), "{}", said.stdout);

    for odd in ["NaN", "inf", "infinity"] {
        for args in [
            vec!["lanes", "add", "emails", "--weight", odd],
            vec!["lanes", "weigh", "emails", &format!("bob={odd}")],
            vec!["lanes", "limit", "emails", "--each-key", "--per-second", odd],
        ] {
            let refused = stage.run(&args);
            assert!(refused.code == 2 && refused.stderr.contains("number"), "{refused:?}");
        }
    }
    let shown = stage.json(&["lanes", "show", "emails", "--key", "k1"]);
    assert_eq!((&shown["busiest"][0]["waiting"], &shown["added"]), (&json!(833), &json!(2_500)));
    let later = ["lanes", "add", "emails", "--not-before", "2130-01-31T08:00:00Z"];
    let id = stage.run(&later).well();
    let explained = stage.json(&["lanes", "explain", "emails", id.trim()]);
    assert_eq!(explained["due_at"], "2130-01-31T08:00:00.000Z", "{explained}");
}

#[test]
fn limits_and_weights_of_keys_and_tenants_are_set_shown_and_applied_to_what_waits() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let tasks: String = (0..40)
        .map(|nth| format!("{{\"key\": \"{}\"}}\n", ["bob", "acme/u", "acme/v", "eve"][nth % 4]))
        .collect();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks).unwrap();
    let ids = stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]).well();

    stage
        .run(&["lanes", "limit", "emails", "--in-flight", "8", "--per-second", "1000", "--burst", "50"])
        .well();
    stage.run(&["lanes", "limit", "emails", "--each-tenant", "--in-flight", "3"]).well();
    let shown = stage.run(&["lanes", "limit", "emails", "--key", "bob", "--in-flight", "0"]).well();
    let limits = "limits     8 in flight, 1000 a second, 50 at once\n           each tenant: 3 in flight\n           bob: 0 in flight\n";
    assert!(shown.contains(limits), "{shown}");
    for part in ["ENTITLED", "GOT 1 MIN", "33.3 %", "acme/", "oldest     has waited for "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let task = ids.lines().next().unwrap();
    let explained = stage.run(&["lanes", "explain", "emails", task]).well();
    assert!(explained.contains("nothing of \"bob\" is handed out: its limit is 0"), "{explained}");
    assert!(!explained.contains("bound "), "nothing holds for what a limit holds up: {explained}");
    let last = ids.lines().last().unwrap();
    let explained = stage.run(&["lanes", "explain", "emails", last]).well();
    assert!(explained.contains("bound      at most "), "{explained}");

    let worked = stage.run(&["work", "--exec", "true", "--strategy", "Lane(emails)", "--until-idle"]);
    assert_eq!(worked.code, 0, "{worked:?}");
    let lane = stage.json(&["lanes", "show", "emails"]);
    assert_eq!((&lane["waiting"], &lane["done"]), (&json!(10), &json!(30)), "bob's stay");

    let none = stage.run(&["lanes", "relevel", "emails"]);
    assert_eq!((none.code, none.stderr.as_str()), (0, "0 tasks moved to another level\n"));
    stage.run(&["lanes", "weigh", "emails", "bob=4", "acme/=2"]).well();
    let moved = stage.run(&["lanes", "relevel", "emails", "--key", "bob"]);
    assert!(moved.code == 0 && moved.stderr.ends_with("moved to another level\n"), "{moved:?}");
    let weightless = stage.run(&["lanes", "relevel", "emails", "--key", "eve"]);
    assert!(
        weightless.code != 0 && weightless.stderr.contains("has no weight by its name"),
        "{weightless:?}"
    );
    let lifted = stage.run(&["lanes", "limit", "emails", "--key", "bob", "--lift"]).well();
    assert!(!lifted.contains("bob: "), "{lifted}");
    stage.run(&["work", "--exec", "true", "--strategy", "Lane(emails)", "--until-idle"]).well();
    assert_eq!(stage.json(&["lanes", "show", "emails"])["waiting"], json!(0));

    for wrong in [&["--each-key"][..], &["--key", "bob"][..], &["--burst", "3"][..]] {
        let refused = stage.run(&[&["lanes", "limit", "emails"][..], wrong].concat());
        assert!(refused.code != 0 && refused.stderr.contains("Usage"), "{refused:?}");
    }
}

#[test]
fn a_file_of_tasks_can_be_added_once_more_under_its_key_and_a_bad_line_says_what_is_in() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let odd_key = stage.run(&["lanes", "add", "emails", "--idempotency-key", "a\nb"]);
    assert!(odd_key.code == 2 && odd_key.stderr.contains("printable ASCII without spaces"), "{odd_key:?}");

    let tasks: String = (0..2_300).map(|nth| format!("{{\"key\": \"k{}\"}}\r\n", nth % 3)).collect();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), &tasks).unwrap();
    let add = ["--json", "lanes", "add", "emails", "--from", "tasks.jsonl", "--idempotency-key", "monday"];
    let first = stage.run(&add).well();
    let batches: Vec<serde_json::Value> =
        first.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counts: Vec<usize> = batches.iter().map(|it| it["tasks"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [1_000, 1_000, 300], "a document for each batch, on a line of its own");
    assert_eq!(stage.run(&add).well(), first, "the same tasks");
    assert_eq!(stage.json(&["lanes", "show", "emails"])["added"], json!(2_300));
    // A file that is another one under the same key is told apart.
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks.replace("k2", "k3")).unwrap();
    let other = stage.run(&add);
    assert!(other.code == 1 && other.stderr.contains("use a new key for a new request"), "{other:?}");

    let mut bad = tasks.clone().into_bytes();
    let place = tasks.match_indices('\n').nth(1_099).unwrap().0;
    bad[place - 5] = 0xff;
    std::fs::write(stage.folder.path().join("bad.jsonl"), bad).unwrap();
    let stopped = stage.run(&["lanes", "add", "emails", "--from", "bad.jsonl"]);
    let said = "line 1100 is no task: invalid unicode code point at column 10; 1,000 tasks of earlier lines are in: mend it, and go on \
                from line 1001\n";
    assert!(stopped.code == 1 && stopped.stderr.ends_with(said), "{stopped:?}");
    assert_eq!(stage.json(&["lanes", "show", "emails"])["added"], json!(3_300));

    stage.run(&["lanes", "drain", "emails"]).well();
    let refused = stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]);
    assert!(refused.stderr.starts_with("error: the lane takes no more tasks"), "nothing was: {refused:?}");
}

#[test]
fn what_is_limited_is_shown_by_itself_and_as_many_keys_as_are_asked_for() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let limit = ["lanes", "limit", "emails"];
    let none = stage.run(&limit);
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (0, "", "no limits\n"));
    stage.run(&[&limit[..], &["--each-key", "--in-flight", "2"]].concat()).well();
    stage.run(&[&limit[..], &["--key", "bob", "--exempt"]].concat()).well();
    for wrong in
        [&["--exempt"][..], &["--each-key", "--exempt"], &["--key", "bob", "--exempt", "--in-flight", "2"]]
    {
        let refused = stage.run(&[&limit[..], wrong].concat());
        assert!(refused.code == 2 && refused.stderr.contains("Usage"), "{refused:?}");
    }
    assert_eq!(stage.run(&limit).well(), "limits     each key: 2 in flight\n           bob: no limit\n");
    let as_json = stage.json(&limit);
    assert_eq!(as_json, json!({"each_key": {"in_flight": 2}, "named": {"bob": {}}}));

    let back = stage.run(&[&limit[..], &["--key", "bob", "--lift"]].concat()).well();
    assert!(!back.contains("bob"), "the limit of each key is for it again: {back}");

    let tasks: String = (0..30).map(|nth| format!("{{\"key\": \"k{nth}\"}}\n")).collect();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks).unwrap();
    stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]).well();
    for (args, count) in [(&[][..], 20), (&["--keys", "25"][..], 25), (&["--keys", "0"][..], 0)] {
        let shown = stage.json(&[&["lanes", "show", "emails"], args].concat());
        assert_eq!(shown["busiest"].as_array().unwrap().len(), count);
    }
    let tenant = stage.run(&["lanes", "relevel", "emails", "--key", "acme/"]);
    assert!(tenant.code == 1 && tenant.stderr.contains("counts at once"), "{tenant:?}");
}

#[test]
fn a_line_that_breaks_a_rule_is_named_by_its_number_and_with_a_key_the_same_command_goes_on() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let file = |bad: &str| -> String {
        (1..=2_300).map(|nth| if nth == 1_018 { format!("{bad}\n") } else { "{}\n".to_owned() }).collect()
    };
    std::fs::write(stage.folder.path().join("tasks.jsonl"), file("{\"priority\": 12}")).unwrap();
    let add = ["lanes", "add", "emails", "--from", "tasks.jsonl"];
    let stopped = stage.run(&add);
    let why = "error: line 1018 cannot be added: a task's priority is from 0 to 9, the largest first; 1,000 tasks of earlier lines are in: \
               mend it, and go on from line 1001\n";
    assert!(stopped.code == 1 && stopped.stderr.ends_with(why), "{stopped:?}");

    let as_one = [&add[..], &["--idempotency-key", "monday"]].concat();
    let stopped = stage.run(&as_one);
    let go_on = "are in: mend it, and run the same command again, which adds nothing twice\n";
    assert!(stopped.code == 1 && stopped.stderr.ends_with(go_on), "{stopped:?}");
    std::fs::write(stage.folder.path().join("tasks.jsonl"), file("{\"priority\": 9}")).unwrap();
    let mended = stage.run(&as_one);
    assert_eq!((mended.code, mended.stdout.lines().count()), (0, 2_300), "{mended:?}");
    assert_eq!(stage.json(&["lanes", "show", "emails"])["added"], json!(1_000 + 2_300));

    let long = "k".repeat(253);
    let refused = stage.run(&[&add[..], &["--idempotency-key", &long]].concat());
    assert!(refused.code == 2 && refused.stderr.contains("at most 234 bytes"), "{refused:?}");
    stage.run(&[&add[..], &["--idempotency-key", &long[..234]]].concat()).well();

    stage.run(&["lanes", "drain", "emails"]).well();
    let refused = stage.run(&[&add[..], &["--idempotency-key", "tuesday"]].concat());
    assert!(refused.code == 1 && refused.stderr.starts_with("error: the lane takes no more"), "{refused:?}");
}

#[test]
fn a_file_of_tasks_is_added_to_its_end_also_if_nobody_reads_the_ids() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    std::fs::write(stage.folder.path().join("tasks.jsonl"), "{}\n".repeat(20_000)).unwrap();
    for args in [
        &["lanes", "add", "emails", "--from", "tasks.jsonl"][..],
        &["--json", "lanes", "add", "emails", "--from", "tasks.jsonl"],
    ] {
        let mut command = stage.command(args);
        let mut adding = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(adding.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty(), "somebody has read a line, and goes away");
        let mut said = String::new();
        adding.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((adding.wait().unwrap().code(), said.as_str()), (Some(0), "added 20,000 tasks\n"));
    }
    assert_eq!(stage.json(&["lanes", "show", "emails"])["added"], json!(40_000));
}

#[test]
fn how_far_a_priority_is_done_and_read_and_its_virtual_time_are_shown() {
    /// After 4,096 of them it is noted how far all are done.
    const TASKS: u64 = 4_200;
    const STRIDE: u64 = 1 << 20;
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let line = "{\"key\": \"a\", \"priority\": 3}\n";
    std::fs::write(stage.folder.path().join("tasks.jsonl"), line.repeat(TASKS as usize)).unwrap();
    let ids = stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]).well();
    let client = Client::new(&format!("http://{}", stage.address)).unwrap();
    let consumer = Consumer::builder(client.clone()).strategy(Strategy::Lane { name: "emails".into() });
    let consumer = consumer.concurrency(64).until_idle(Duration::from_millis(100));
    let done_and_noted = async {
        consumer.run(|_| async { Ok(Output::Nothing) }, std::future::pending()).await.unwrap();
        while client.lane("emails").await.unwrap().priorities[0].ack_level.is_none() {}
    };
    let in_time = async { tokio::time::timeout(Duration::from_secs(60), done_and_noted).await };
    tokio::runtime::Runtime::new().unwrap().block_on(in_time).unwrap();
    let last = stage.run(&["lanes", "add", "emails", "--key", "c", "--priority", "3"]).well();

    let shown = stage.run(&["lanes", "show", "emails"]).well();
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let table: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("PRIORITY")).take(2).collect();
    let head = ["PRIORITY", "TASKS", "OUT", "KEYS", "AT LIMIT", "IN MEMORY", "A", "R", "M", "V"];
    assert_eq!(cells(table[0]), head);
    let row = cells(table[1]);
    let (v, last) = (TASKS * STRIDE, last.trim());
    assert_eq!(row[..6], ["3", "1", "0", "1", "0", "1, all"], "{shown}");
    let nth_acked = ids.lines().position(|id| row[6].ends_with(&format!(", {id}>"))).unwrap() as u64;
    assert!(nth_acked >= 4_000 && row[6].starts_with(&format!("<{}, ", nth_acked * STRIDE)), "{shown}");
    // Everything is read, and what comes after nothing waited begins behind all that was there.
    let highest = format!("<{v}, {last}>");
    assert_eq!(row[7..], [&*highest, &*highest, &*v.to_string()], "{shown}");
}

#[test]
fn keys_and_reasons_are_shown_on_one_line_each_and_move_no_cursor() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let tasks = "{\"key\": \"\", \"attempts_max\": 1}\n{\"key\": \"a\\u001b[2J\\n\", \"attempts_max\": 1}\n{\"key\": \"b\\u0000\", \"attempts_max\": 1}\n";
    std::fs::write(stage.folder.path().join("tasks.jsonl"), tasks).unwrap();
    stage.run(&["lanes", "add", "emails", "--from", "tasks.jsonl"]).well();
    stage.run(&["lanes", "limit", "emails", "--in-flight", "0"]).well();
    let shown = stage.run(&["lanes", "show", "emails"]).well();
    for row in ["\"\"            0 ", "a\\u{1b}[2J\\n  0 ", "b\\u{0}        0 "] {
        assert!(shown.contains(&format!("\n{row}")), "{shown}");
    }
    assert_eq!(shown.matches("  that of the lane\n").count(), 3, "{shown}");
    assert!(shown.contains("at limit   nothing of the lane is handed out: its limit is 0\n"), "{shown}");
    stage.run(&["lanes", "limit", "emails", "--lift"]).well();

    let exec = "printf 'File \"x.py\"\\n\\033[31mValueError: boom\\n' >&2; exit 1";
    stage.run(&["work", "--exec", exec, "--strategy", "Lane(emails)", "--until-idle"]).well();
    let dead = stage.run(&["lanes", "dead", "emails"]).well();
    assert!(dead.contains("  exit status 1: File \"x.py\" | \\u{1b}[31mValueError: boom\n"), "{dead}");
    let why =
        "the key \"b\\0\" has a NUL character, which WINDLASS_KEY cannot hold: the command was not run\n";
    assert!(dead.contains(why), "{dead}");
}

#[test]
fn tasks_that_are_named_and_are_not_dead_are_not_said_to_be_tried_again() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    let dead = stage.run(&["lanes", "add", "emails", "--attempts-max", "1"]).well();
    stage.run(&["work", "--exec", "exit 3", "--strategy", "Lane(emails)", "--until-idle"]).well();
    let alive = stage.run(&["lanes", "add", "emails"]).well();
    let (alive, dead) = (alive.trim(), dead.trim());
    let redrive = |args: &[&str]| -> Given { stage.run(&[&["lanes", "redrive", "emails"], args].concat()) };
    let none = redrive(&[alive]);
    let why = "error: this task is not dead, so nothing was tried again; `windlass lanes dead emails` shows what is\n";
    assert_eq!((none.code, none.stderr.as_str()), (1, why));
    let none = redrive(&[alive, "77", alive]);
    assert!(none.code == 1 && none.stderr.starts_with("error: none of these 2 is dead"), "{none:?}");
    let some = redrive(&[alive, dead]);
    let said = "1 task tried again\n1 of the tasks that you named is not dead, and was left as it is\n";
    assert_eq!((some.code, some.stderr.as_str()), (0, said));
    let all = redrive(&["--all"]);
    assert_eq!((all.code, all.stderr.as_str()), (0, "0 tasks tried again\n"));
}

#[test]
fn what_does_nothing_says_so_and_what_to_do_in_its_place() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    stage.run(&["lanes", "add", "emails", "--key", "a", "--attempts-max", "1"]).well();
    let exec = ["work", "--exec", "echo first; echo boom >&2; echo bang >&2; exit 3"];
    stage.run(&[&exec[..], &["--strategy", "Lane(emails)", "--until-idle"]].concat()).well();

    let of_all = stage.run(&["lanes", "redrive", "emails", "--reason", ""]);
    assert!(of_all.code == 2 && of_all.stderr.contains("or --all in its place"), "{of_all:?}");
    let as_shown = stage.run(&["lanes", "redrive", "emails", "--reason", "exit status 3: boom | bang"]);
    let said = "no dead task's reason begins like this";
    assert!(as_shown.code == 1 && as_shown.stderr.contains(said), "{as_shown:?}");
    assert_eq!(stage.run(&["lanes", "redrive", "emails", "--reason", "exit status 3: boom"]).code, 0);

    for refused in [
        &["lanes", "relevel", "nope"][..],
        &["lanes", "relevel", "emails", "--key", "acme/"],
        &["lanes", "redrive", "nope", "--all"],
    ] {
        let refused = stage.run(refused);
        assert!(refused.code == 1 && refused.stderr.starts_with("error: "), "{refused:?}");
    }
    for (id, named) in [("abc", "a task's id is a decimal number"), ("0", "between 1 and 2^63 - 1")] {
        let refused = stage.run(&["lanes", "explain", "emails", id]);
        assert!(refused.code == 2 && refused.stderr.contains(named), "{refused:?}");
    }
    let priority = stage.run(&["lanes", "add", "emails", "--priority", "-1"]);
    assert!(priority.code == 2 && priority.stderr.contains("-1 is not in 0..=9"), "{priority:?}");

    let weighed = stage.run(&["lanes", "weigh", "emails", "a=3"]);
    assert!(weighed.code == 0 && weighed.stderr.contains("`windlass lanes relevel emails`"), "{weighed:?}");
    let of_tenant = stage.run(&["lanes", "weigh", "emails", "acme/=3"]);
    assert_eq!((of_tenant.code, of_tenant.stderr.as_str()), (0, ""), "that of a tenant counts at once");
}

#[test]
fn a_file_with_a_byte_order_mark_is_read_and_a_folder_is_none() {
    let stage = Stage::new(&[]);
    stage.run(&["lanes", "create", "emails"]).well();
    std::fs::write(stage.folder.path().join("marked.jsonl"), "\u{feff}{\"key\": \"a\"}\n{\"key\": \"b\"}\n")
        .unwrap();
    let add = ["lanes", "add", "emails", "--from"];
    let added = stage.run(&[&add[..], &["marked.jsonl", "--idempotency-key", "monday"]].concat());
    assert_eq!((added.code, added.stderr.as_str()), (0, "2 tasks are in\n"));
    let again = stage.run(&[&add[..], &["marked.jsonl", "--idempotency-key", "monday"]].concat());
    assert_eq!((again.code, again.stdout, again.stderr), (0, added.stdout, added.stderr), "none is in twice");
    let folder = stage.run(&[&add[..], &["."]].concat());
    assert_eq!((folder.code, folder.stderr.as_str()), (1, "error: . is a folder, and not a file of tasks\n"));
    let seen = stage.run(&["top", "--once"]).well();
    assert!(seen.contains("lanes        2 waiting; "), "{seen}");
    assert_eq!(stage.json(&["top", "--once"])["tasks"]["waiting"], json!(2));
}
