//! Looking at the queue by hand: explain and top.

use crate::stage::{Stage, windlass};
use serde_json::json;

fn submit(stage: &Stage, flags: &[&str]) -> String {
    stage.run(&[&["submit", "--chunks", "3"], flags].concat()).well().trim().to_owned()
}

#[test]
fn a_strategy_is_explained_as_a_tree_and_a_submission_with_what_it_waits_for() {
    let stage = Stage::new(&[]);
    let first = submit(&stage, &["--metadata", "company_id=7"]);
    let second = submit(&stage, &["--metadata", "company_id=7"]);
    let strategy = "OrElse(SelectOnly(mode=preview), Fair(company_id))";
    let explained = stage.run(&["explain", "--strategy", strategy]).well();
    let expected = format!(
        "next  chunk 0 of submission {first}
why   {first} is the oldest of 2 ready submissions of company_id=7, whose turn it is; what comes before it in the strategy gives nothing

▶ OrElse: the first gives nothing, so the fallback is asked, and gives
├─ SelectOnly(mode=preview): none of 2 ready submissions has mode=preview
│  └─ Random: no ready submission gets here
└─ ▶ Fair(company_id): it is the turn of company_id=7
   │    company_id=7  weight 1  0.000 ahead  2 submissions
   └─ ▶ OldestFirst: the oldest of 2 submissions of company_id=7
"
    );
    assert_eq!(explained, expected);

    let one = stage.run(&["explain", "--strategy", "OldestFirst", &second]).well();
    let begin = format!(
        "submission  {second}, running
waits       1 submission is ahead of it
chunks      3 in all: 0 done, 0 failed, 3 ready, 0 in work, 0 wait for a retry

next  chunk 0 of submission {first}
"
    );
    assert!(one.starts_with(&begin), "{one}");
    let told = stage.json(&["explain", "--strategy", "OldestFirst", &second]);
    assert_eq!(told["submission"]["verdict"], json!("waits"));
    assert_eq!(told["next"], json!({"submission": first, "chunk": 0}));
}

#[test]
fn what_cannot_be_explained_says_what_is_wrong_and_where() {
    let stage = Stage::new(&[]);
    let misspelt = stage.run(&["explain", "--strategy", "Fair(company_id"]);
    assert_eq!((misspelt.code, misspelt.stdout.as_str()), (2, ""));
    assert!(misspelt.stderr.contains("\n  Fair(company_id\n"), "{}", misspelt.stderr);
    let lane = stage.run(&["explain", "--strategy", "Lane(x)"]);
    assert_eq!(lane.code, 1);
    assert!(lane.stderr.contains("`windlass lanes show x` shows a lane"), "{}", lane.stderr);
    let unknown = stage.run(&["explain", "42"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("no submission has the id 42"), "{}", unknown.stderr);
}

#[test]
fn one_look_at_the_queue_is_plain_text_and_chooses_a_field_by_itself() {
    let stage = Stage::new(&[]);
    submit(&stage, &["--metadata", "company_id=7", "--metadata", "mode=full"]);
    submit(&stage, &["--metadata", "company_id=8", "--metadata", "mode=full"]);
    let quick = ["top", "--once", "--interval", "100ms"];
    // Without a strategy in use the first field is shown.
    let text = stage.run(&quick).well();
    assert!(text.contains("chunks       6 ready, 0 reserved, 0 wait for a retry, 0 paused\n"), "{text}");
    assert!(text.contains("\nCOMPANY_ID  WEIGHT  READY  RESERVED  OUT/S  SHARE  EVEN SHARE\n"), "{text}");
    assert!(text.contains("\n7           1       3      0         0.0/s  –      50.0%\n"), "{text}");
    assert!(text.contains("no consumer is connected\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "plain text has no colours: {text:?}");

    let by_mode = stage.run(&[&quick[..], &["--field", "mode"]].concat()).well();
    assert!(by_mode.contains("\nfull  1       6      0 "), "{by_mode}");
    let json = stage.json(&["top", "--field", "mode"]);
    assert_eq!(json["field"]["values"][0]["ready"], json!(6));
    assert_eq!(json["chunks"]["ready"], json!(6));
}

#[test]
fn a_field_that_nobody_has_or_that_is_none_is_said_to_be() {
    let stage = Stage::new(&[]);
    submit(&stage, &["--metadata", "company_id=7"]);
    let unknown = stage.run(&["top", "--once", "--interval", "100ms", "--field", "nope"]).well();
    let sentence = "nothing with nope is ready or in work; there are company_id (1 value)\n";
    assert!(unknown.contains(sentence), "{unknown}");
    let wrong = stage.run(&["top", "--once", "--field", "two words"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (1, ""));
    assert!(wrong.stderr.contains("a metadata field's name has 1 to 64 letters"), "{}", wrong.stderr);
    let hasty = stage.run(&["top", "--interval", "1ms"]);
    assert_eq!(hasty.code, 2);
    assert!(hasty.stderr.contains("at least 100ms"), "{}", hasty.stderr);
}

#[test]
fn a_server_that_is_not_there_ends_one_look_with_its_own_code() {
    let mut command = windlass(&["top", "--once", "--retry-for-ms", "0", "--server", "http://127.0.0.1:1"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn at_a_terminal_the_screen_is_live_and_the_terminal_is_given_back() {
    let stage = Stage::new(&[]);
    submit(&stage, &["--metadata", "company_id=7"]);
    let said = stage.at_terminal(&["top", "--interval", "100ms"], "?q");
    assert_eq!(said.code, 0, "{said:?}");
    let (enter, leave) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
    let (entered, left) = (said.stdout.find(enter).unwrap(), said.stdout.rfind(leave).unwrap());
    assert!(entered < left, "{said:?}");
    assert!(said.stdout[left..].len() < 20, "nothing is drawn on the terminal that was given back: {said:?}");
    assert!(said.stdout.contains("windlass"), "{said:?}");
}
