//! Changing submissions by hand, one by one and by filter.

use crate::stage::Stage;
use serde_json::json;

fn submit(stage: &Stage, flags: &[&str]) -> String {
    stage.run(&[&["submit", "--chunks", "3"], flags].concat()).well().trim().to_owned()
}

#[test]
fn what_is_said_of_a_submission_is_changed_shown_and_found_by() {
    let stage = Stage::new(&[]);
    let id = submit(&stage, &["--metadata", "mode=preview", "--metadata", "tmp=1"]);
    let change = ["submissions", "change", &id, "--priority", "-3", "--set", "mode=full", "--unset", "tmp"];
    let limits = ["--attempts-max", "9", "--retry-delay", "1m 30s", "--on-failure", "continue"];
    let said = stage.run(&[&change[..], &limits].concat()).well();
    assert_eq!(said, format!("changed {id}; 0/3 done\n"));

    let shown = stage.json(&["submissions", "show", &id]);
    assert_eq!((&shown["priority"], &shown["metadata"]), (&json!(-3), &json!({"mode": "full"})));
    assert_eq!((&shown["attempts_max"], &shown["retry_delay_ms"]), (&json!(9), &json!(90_000)));
    let for_people = stage.run(&["submissions", "show", &id]).well();
    assert!(for_people.contains("tried again after 1m 30s"), "{for_people}");
    assert!(for_people.contains("when out of attempts the rest goes on"), "{for_people}");
    assert_eq!(stage.json(&["submissions", "list", "--metadata", "mode=full"])["items"][0]["id"], id);
    assert_eq!(stage.json(&["submissions", "list", "--metadata", "mode=preview"])["items"], json!([]));
}

#[test]
fn submissions_are_paused_and_resumed_and_marked_so() {
    let stage = Stage::new(&[]);
    let (first, second) = (submit(&stage, &[]), submit(&stage, &[]));
    assert_eq!(stage.run(&["submissions", "pause", &first]).well(), format!("paused {first}; 0/3 done\n"));
    assert_eq!(stage.run(&["submissions", "pause", &first, &second]).well(), "paused 2 submissions\n");
    assert_eq!(stage.run(&["submissions", "list"]).well().matches("running, paused").count(), 2);
    let shown = stage.run(&["submissions", "show", &first]).well();
    assert!(shown.contains("state      running, paused\n"), "{shown}");

    assert_eq!(stage.json(&["submissions", "resume", &first])["paused"], false);
    let resumed = stage.json(&["submissions", "resume", &first, &second]);
    assert_eq!(resumed, json!({"matched": 2, "changed": 2, "refused": [], "dry_run": false}));
    assert!(!stage.run(&["submissions", "list"]).well().contains("paused"));
}

#[test]
fn what_matches_is_counted_and_asked_about_before_anything_is_done() {
    let stage = Stage::new(&[]);
    for flags in [["--metadata", "company_id=7", "--metadata", "mode=preview"]; 3] {
        submit(&stage, &flags);
    }
    let other = submit(&stage, &["--metadata", "company_id=7"]);
    let previews = ["submissions", "cancel", "--where", "company_id=7", "--where", "mode=preview"];
    let with = |flag: &'static str| [&previews[..], &[flag]].concat();

    assert_eq!(stage.run(&with("--dry-run")).well(), "would cancel 3 submissions\n");
    let counted = stage.json(&with("--dry-run"));
    assert_eq!(counted, json!({"matched": 3, "changed": 0, "refused": [], "dry_run": true}));
    let nobody = stage.run(&previews);
    assert_eq!((nobody.code, nobody.stdout.as_str()), (2, ""));
    assert!(
        nobody.stderr.starts_with("error: cancel 3 submissions? Nobody is at the terminal"),
        "{nobody:?}"
    );
    let declined = stage.at_terminal(&previews, "n\n");
    assert_eq!(declined.code, 1, "{declined:?}");
    assert!(declined.stdout.contains("cancel 3 submissions? [y/N]"), "{declined:?}");
    assert!(declined.stdout.ends_with("error: nothing was done\n"), "{declined:?}");
    assert_eq!(stage.json(&["status"])["submissions_running"], 4);

    let agreed = stage.at_terminal(&previews, "y\n");
    assert_eq!(agreed.code, 0, "{agreed:?}");
    assert!(agreed.stdout.ends_with("cancelled 3 submissions\n"), "{agreed:?}");
    assert_eq!(stage.json(&["submissions", "list", "--state", "running"])["items"][0]["id"], other);
    for args in [&previews[..], &with("--yes")] {
        let none = stage.run(args);
        assert_eq!(
            (none.code, none.stdout.as_str(), none.stderr.as_str()),
            (0, "", "no submissions match\n")
        );
    }

    let raise = ["submissions", "change", "--where", "company_id=7", "--priority", "5", "--yes"];
    assert_eq!(stage.run(&raise).well(), "changed 1 submission\n");
    assert_eq!(stage.json(&["submissions", "show", &other])["priority"], 5);
    let everything = ["submissions", "cancel", "--state", "running", "--yes", "--json"];
    assert_eq!(stage.run(&everything).code, 0);
    assert_eq!(stage.json(&["status"])["submissions_running"], 0);
}

#[test]
fn all_that_failed_gets_another_round_at_once() {
    let stage = Stage::new(&[]);
    for _ in 0..2 {
        submit(&stage, &["--metadata", "batch=1", "--attempts-max", "1"]);
    }
    stage.run(&["work", "--exec", "exit 1", "--until-idle"]).well();
    let retry = ["submissions", "retry-failed", "--where", "batch=1", "--yes"];
    assert_eq!(stage.run(&retry).well(), "retried the failed chunks of 2 submissions\n");
    stage.run(&["work", "--exec", "cat", "--until-idle"]).well();
    let states = stage.json(&["submissions", "list", "--state", "completed"]);
    assert_eq!(states["items"].as_array().unwrap().len(), 2);
    assert_eq!(stage.run(&retry).stderr, "no submissions match\n");
}

#[test]
fn mistakes_are_answered_with_a_sentence_and_their_code() {
    let stage = Stage::new(&[]);
    let runs = submit(&stage, &[]);
    let over = submit(&stage, &[]);
    stage.run(&["submissions", "cancel", &over]).well();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["submissions", "change", &runs], 2, "--priority"),
        (&["submissions", "change", "--priority", "1"], 2, "ID"),
        (&["submissions", "pause"], 2, "ID"),
        (&["submissions", "pause", &runs, "--where", "a=1"], 2, "cannot be used with"),
        (&["submissions", "change", &runs, "--set", "a=1", "--unset", "a"], 2, "`a` is to be --set"),
        (&["submissions", "change", &runs, "--retry-delay", "soon"], 2, "--retry-delay"),
        (&["submissions", "cancel", "--where", "a=1", "--where", "a=2"], 2, "--where names `a` twice"),
        (&["submissions", "change", &runs, "--attempts-max", "0"], 1, "`attempts_max` is between"),
        (&["submissions", "change", &over, "--priority", "1"], 1, "is over (cancelled)"),
        (&["submissions", "resume", "12"], 1, "no submission has the id 12"),
        (&["submissions", "cancel", "--where", "a=1", "--state", "paused"], 2, "it is `running`"),
    ];
    for (args, code, sentence) in cases {
        let given = stage.run(args);
        assert_eq!((given.code, given.stdout.as_str()), (code, ""), "{args:?}: {given:?}");
        assert!(given.stderr.contains(sentence), "{args:?}: {given:?}");
    }
    let mixed = stage.run(&["submissions", "pause", &runs, &over, "12"]);
    assert_eq!((mixed.code, mixed.stdout.as_str()), (1, "paused 1 submission\n"));
    assert!(mixed.stderr.contains("12: no submission has the id 12"), "{mixed:?}");
    assert!(mixed.stderr.ends_with("error: 2 of 3 submissions refused\n"), "{mixed:?}");
}

#[test]
fn weights_are_set_listed_and_put_back_and_outlive_a_crash() {
    let mut stage = Stage::new(&[]);
    assert_eq!(stage.run(&["weights", "list"]).well(), "every value has the weight 1\n");
    let set = stage.run(&["weights", "set", "company_id", "acme=3", "7=2"]).well();
    assert_eq!(set, "FIELD       VALUE  WEIGHT\ncompany_id  7      2\ncompany_id  acme   3\n");
    for company in ["acme", "8"] {
        submit(&stage, &["--metadata", &format!("company_id={company}")]);
    }
    let turns = stage.json(&["explain", "--strategy", "Fair(company_id)"])["part"]["turns"]["next"].clone();
    let weights: Vec<_> = turns.as_array().unwrap().iter().map(|it| (&it["value"], &it["weight"])).collect();
    assert_eq!(weights, [(&json!("acme"), &json!(3)), (&json!(8), &json!(1))]);

    stage.crash();
    stage.start(&[]);
    assert_eq!(stage.json(&["weights", "list"])["fields"][0]["weights"], json!({"7": 2, "acme": 3}));
    assert_eq!(stage.json(&["weights", "unset", "company_id", "7"])["weights"], json!({"acme": 3}));
    for wrong in [
        &["set", "company_id", "acme=0"][..],
        &["set", "company id", "acme=2"],
        &["set", "company_id", "acme"],
    ] {
        let refused = stage.run(&[&["weights"], wrong].concat());
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.stderr.starts_with("error: "), "{refused:?}");
    }
    assert_eq!(stage.json(&["weights", "list"])["fields"][0]["weights"], json!({"acme": 3}));
}
