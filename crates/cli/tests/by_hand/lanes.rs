//! Lanes by hand.

use super::stage::Stage;
use serde_json::json;

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
    for part in ["tasks      10 waiting, 0 out\n", "keys       4 with tasks that wait\n", "PRIORITY  TASKS"] {
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
