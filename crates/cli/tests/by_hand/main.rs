//! What a user does by hand, with the real binary and a real server.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on is a failed test")]

mod branches;
mod changing;
mod lanes;
mod looking;
mod stage;

use stage::{Given, Stage, given, read_pipe, rest_of, terminate, wait_for_line, windlass, write_pipe};
use std::io::BufReader;
use std::process::Stdio;

fn numbers(count: u32) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect()
}

#[test]
fn work_is_handed_in_listed_worked_on_waited_for_and_read_back_in_order() {
    let stage = Stage::new(&[]);
    assert!(stage.run(&["status"]).well().contains("0 running"));
    let empty = stage.run(&["submissions", "list"]);
    assert_eq!((empty.code, empty.stdout.as_str(), empty.stderr.as_str()), (0, "", "no submissions\n"));

    let id =
        stage.submit(&numbers(95), &["--chunk-size", "10", "--metadata", "tenant=acme", "--metadata", "n=7"]);
    let listed = stage.run(&["submissions", "list"]).well();
    assert!(listed.starts_with("ID "), "{listed}");
    for cell in [&*id, "running", "0/10 done", "n=7 tenant=acme"] {
        assert!(listed.contains(cell), "{listed}");
    }
    assert_eq!(stage.json(&["submissions", "list", "--metadata", "tenant=acme"])["items"][0]["id"], id);
    assert_eq!(
        stage.json(&["submissions", "list", "--metadata", "tenant=other"])["items"],
        serde_json::json!([])
    );
    assert_eq!(stage.json(&["status"])["chunks_ready"], 10);

    let worked = stage.run(&["work", "--exec", "sed s/^/x/", "--concurrency", "3", "--until-idle"]);
    assert_eq!(worked.code, 0, "{worked:?}");
    assert!(
        worked.stderr.ends_with("10 chunks completed, 0 attempts failed, 0 given back, 0 late\n"),
        "{worked:?}"
    );

    let waited = stage.run(&["submissions", "wait", &id]);
    assert_eq!(waited.code, 0);
    assert!(waited.stderr.starts_with(&format!("{id} completed; 10/10 done, took ")), "{waited:?}");
    let shown = stage.run(&["submissions", "show", &id]).well();
    assert!(shown.contains("state      completed\n"), "{shown}");
    let info = stage.json(&["submissions", "show", &id]);
    assert_eq!(info["chunks"], serde_json::json!({"total": 10, "done": 10, "failed": 0, "skipped": 0}));
    assert_eq!(info["metadata"], serde_json::json!({"tenant": "acme", "n": 7}));

    let expected: String = (1..=95).map(|number| format!("x{number}\n")).collect();
    assert_eq!(stage.run(&["submissions", "results", &id]).well(), expected);
    stage.run(&["submissions", "results", &id, "--output", "out.txt"]).well();
    assert_eq!(std::fs::read_to_string(stage.folder.path().join("out.txt")).unwrap(), expected);
}

#[test]
fn results_come_while_the_work_is_done_and_large_outputs_come_whole() {
    let stage = Stage::new(&[]);
    let id = stage.submit("a\nb\nc\n", &["--chunk-size", "1"]);
    let reader = stage.command(&["submissions", "results", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let exec = "read letter; head -c 100000 /dev/zero | tr '\\0' $letter; echo";
    stage.run(&["work", "--exec", exec, "--until-idle"]).well();
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success());
    let expected: String = ["a", "b", "c"].map(|letter| letter.repeat(100_000) + "\n").concat();
    assert!(read.stdout == expected.as_bytes(), "{} bytes came", read.stdout.len());
}

#[test]
fn a_command_knows_which_chunk_it_works_on() {
    let stage = Stage::new(&[]);
    let id =
        stage.run(&["submit", "--payload", "hello", "--metadata", "tenant=acme"]).well().trim().to_owned();
    let exec = "cat; echo \" $WINDLASS_SUBMISSION $WINDLASS_CHUNK $WINDLASS_ATTEMPT $WINDLASS_METADATA\"";
    stage.run(&["work", "--exec", exec, "--until-idle"]).well();
    let said = stage.run(&["submissions", "results", &id]).well();
    assert_eq!(said, format!("hello {id} 0 1-0 {{\"tenant\":\"acme\"}}\n"));
}

#[test]
fn work_that_fails_says_where_and_why_and_gets_another_round() {
    let stage = Stage::new(&[]);
    let id =
        stage.submit("1\n2\n3\n", &["--chunk-size", "1", "--attempts-max", "1", "--on-failure", "continue"]);
    let exec = "read n; if [ $n = 2 ]; then echo warm-up >&2; echo no twos >&2; exit 3; fi; echo $n";
    stage.run(&["work", "--exec", exec, "--until-idle"]).well();

    let reason = format!("submission {id} failed at chunk 1: exit status 3: warm-up\nno twos");
    let waited = stage.run(&["submissions", "wait", &id]);
    assert_eq!(waited.code, 1);
    assert!(waited.stderr.contains(&reason), "{waited:?}");
    assert!(waited.stderr.contains(&format!("windlass submissions retry-failed {id}")), "{waited:?}");
    let Given { code, stdout, stderr } = stage.run(&["submissions", "results", &id]);
    assert_eq!((code, stdout.as_str(), stderr), (1, "1\n", format!("error: {reason}\n")));
    assert_eq!(stage.run(&["submissions", "results", &id, "--skip-failed"]).well(), "1\n3\n");
    let shown = stage.run(&["submissions", "show", &id]).well();
    assert!(
        shown.contains("2/3 done, 1 failed") && shown.contains("exit status 3: warm-up | no twos"),
        "{shown}"
    );

    let retried = stage.run(&["submissions", "retry-failed", &id]).well();
    assert_eq!(retried, format!("1 chunk of {id} ready again\n"));
    stage.run(&["work", "--exec", "cat", "--until-idle"]).well();
    assert_eq!(stage.run(&["submissions", "wait", &id]).code, 0);
    assert_eq!(stage.run(&["submissions", "results", &id]).well(), "1\n2\n3\n");

    let again = stage.run(&["submissions", "retry-failed", &id]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.starts_with("error: nothing has failed: "), "{again:?}");
}

#[test]
fn a_failed_attempt_is_tried_again_before_the_work_is_idle() {
    let stage = Stage::new(&[]);
    let args = ["submit", "--payload", "x", "--attempts-max", "3", "--retry-delay", "1500ms"];
    let id = stage.run(&args).well().trim().to_owned();
    let exec = "if mkdir seen 2>/dev/null; then exit 1; fi; cat";
    let worked = stage.run(&["work", "--exec", exec, "--until-idle"]);
    assert!(
        worked.stderr.ends_with("1 chunk completed, 1 attempt failed, 0 given back, 0 late\n"),
        "{worked:?}"
    );
    assert_eq!(stage.run(&["submissions", "results", &id]).well(), "x");
}

#[test]
fn a_submission_that_is_cancelled_is_over_for_everybody() {
    let stage = Stage::new(&[]);
    let id = stage.run(&["submit", "--chunks", "3", "--priority", "-5"]).well().trim().to_owned();
    let cancelled = stage.run(&["submissions", "cancel", &id]).well();
    assert_eq!(cancelled, format!("cancelled {id}; 0/3 done, 3 skipped\n"));
    assert_eq!(stage.json(&["submissions", "list", "--state", "cancelled"])["items"][0]["id"], id);
    assert_eq!(stage.run(&["submissions", "cancel", &id]).well(), cancelled, "once more changes nothing");
    assert_eq!(stage.run(&["submissions", "wait", &id]).code, 1);
    let worked = stage.run(&["work", "--exec", "cat", "--until-idle"]);
    assert!(worked.stderr.contains("0 chunks completed"), "{worked:?}");
    let read = stage.run(&["submissions", "results", &id]);
    let sentence = format!("error: submission {id} was cancelled before chunk 0 was done\n");
    assert_eq!((read.code, read.stderr), (1, sentence));
}

#[test]
fn submit_with_wait_ends_as_the_work_does() {
    let stage = Stage::new(&[]);
    let mut worker = stage.command(&["work", "--exec", "cat"]).stderr(Stdio::null()).spawn().unwrap();
    let submitted = stage.run(&["submit", "--payload", "x", "--wait"]);
    assert_eq!(submitted.code, 0, "{submitted:?}");
    assert_eq!(stage.run(&["submissions", "results", submitted.stdout.trim()]).well(), "x");
    terminate(&worker);
    assert!(worker.wait().unwrap().success());
}

#[test]
fn a_worker_that_is_told_to_stop_finishes_what_runs_and_gives_back_the_rest() {
    let stage = Stage::new(&[]);
    let (begun, go) = (stage.pipe("begun"), stage.pipe("go"));
    let id = stage.submit(&numbers(10), &["--chunk-size", "1"]);
    let exec = "echo running > begun; read word < go; echo $word";
    let args = ["work", "--exec", exec, "--prefetch", "4", "--strategy", "OldestFirst"];
    let mut worker = stage.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(read_pipe(&begun), "running\n");
    assert_eq!(stage.json(&["status"])["chunks_reserved"], 5);

    terminate(&worker);
    let mut stderr = BufReader::new(worker.stderr.take().unwrap());
    wait_for_line(&mut stderr, "a second Ctrl-C stops at once");
    write_pipe(&go, "done\n");
    assert!(worker.wait().unwrap().success());
    assert!(rest_of(stderr).ends_with("1 chunk completed, 0 attempts failed, 4 given back, 0 late\n"));
    let status = stage.json(&["status"]);
    assert_eq!((&status["chunks_ready"], &status["chunks_reserved"]), (&9.into(), &0.into()));
    assert_eq!(stage.json(&["submissions", "show", &id])["failures"], 0);
}

#[test]
fn a_second_signal_stops_a_worker_at_once() {
    let stage = Stage::new(&[]);
    let begun = stage.pipe("begun");
    stage.pipe("never");
    stage.submit("1\n", &[]);
    let args = ["work", "--exec", "echo $$ > begun; read word < never"];
    let mut worker = stage.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    read_pipe(&begun);
    let mut stderr = BufReader::new(worker.stderr.take().unwrap());
    terminate(&worker);
    wait_for_line(&mut stderr, "a second Ctrl-C stops at once");
    terminate(&worker);
    assert_eq!(worker.wait().unwrap().code(), Some(1));
}

#[test]
fn a_worker_goes_on_when_the_server_crashes_and_comes_back() {
    let mut stage = Stage::new(&[]);
    let (begun, go) = (stage.pipe("begun"), stage.pipe("go"));
    let id = stage.submit(&numbers(3), &["--chunk-size", "1"]);
    let exec = "echo running > begun; read word < go; cat";
    let args = ["work", "--exec", exec, "-v"];
    let mut worker = stage.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(read_pipe(&begun), "running\n");

    stage.crash();
    let mut stderr = BufReader::new(worker.stderr.take().unwrap());
    wait_for_line(&mut stderr, "connection lost");
    stage.start(&[]);
    write_pipe(&go, "on\n");
    for _ in 0..2 {
        assert_eq!(read_pipe(&begun), "running\n");
        write_pipe(&go, "on\n");
    }
    assert_eq!(stage.run(&["submissions", "wait", &id]).code, 0);
    assert_eq!(stage.run(&["submissions", "results", &id]).well(), "1\n2\n3\n");
    assert_eq!(stage.json(&["submissions", "show", &id])["failures"], 0);
    terminate(&worker);
    assert!(worker.wait().unwrap().success());
}

#[test]
fn what_was_handed_in_is_there_after_a_stop() {
    let mut stage = Stage::new(&[]);
    let id = stage.submit(&numbers(3), &["--chunk-size", "2"]);
    assert_eq!(stage.stop(), 0);
    stage.start(&[]);
    assert_eq!(stage.json(&["submissions", "show", &id])["chunks"]["total"], 2);
}

#[test]
fn a_server_that_is_not_there_is_said_so_with_what_to_do() {
    let mut stage = Stage::new(&[]);
    stage.crash();
    let address = stage.address.clone();
    for args in [&["status"][..], &["submit", "--payload", "x"], &["work", "--exec", "cat"]] {
        let given = stage.run(&[args, &["--retry-for-ms", "100"]].concat());
        assert_eq!(given.code, 3, "{given:?}");
        let begin = format!("error: cannot reach the server at http://{address}: Connection refused");
        assert!(given.stderr.contains(&begin), "{given:?}");
        assert!(given.stderr.contains("start one with `windlass serve`"), "{given:?}");
    }
}

#[test]
fn mistakes_are_answered_with_a_sentence_and_their_code() {
    let stage = Stage::new(&[]);
    let deep = (0..20).fold("\"Random\"".to_owned(), |inner, _| {
        format!("{{\"OrElse\": {{\"first\": {inner}, \"fallback\": \"Random\"}}}}")
    });
    let cases: [(&[&str], i32, &str); 8] = [
        (&["work", "--exec", "cat", "--strategy", "Sideways"], 2, "`Sideways` is no strategy"),
        (&["work", "--exec", "cat", "--strategy", &deep], 1, "a strategy nests at most"),
        (&["submissions", "show", "12"], 1, "no submission has the id 12"),
        (&["submissions", "show", "twelve"], 2, "a submission id is a decimal number"),
        (&["submit"], 2, "--chunks-from"),
        (&["submit", "--chunks", "0"], 1, "a submission needs at least one chunk"),
        (&["submit", "--payload", "x", "--metadata", "novalue"], 2, "metadata is FIELD=VALUE"),
        (&["status", "--server", "nonsense"], 2, "it looks like http://127.0.0.1:7420"),
    ];
    for (args, code, sentence) in cases {
        let given = stage.run(args);
        assert_eq!((given.code, given.stdout.as_str()), (code, ""), "{args:?}: {given:?}");
        assert!(given.stderr.contains(sentence), "{args:?}: {given:?}");
    }
}

#[test]
fn a_server_with_a_token_lets_in_only_those_who_show_it() {
    const TOKEN: &str = "a-long-random-text-for-tests";
    let stage = Stage::new(&["--token", TOKEN]);
    let refused = stage.run(&["status"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("this server asks for a token"), "{refused:?}");
    assert_eq!(stage.run(&["work", "--exec", "cat"]).code, 1);

    let id = stage.run(&["submit", "--payload", "x", "--token", TOKEN]).well();
    stage.run(&["work", "--exec", "cat", "--until-idle", "--token", TOKEN]).well();
    assert_eq!(stage.run(&["submissions", "results", id.trim(), "--token", TOKEN]).well(), "x");
}

#[test]
fn settings_come_from_flags_over_the_environment_over_the_file_over_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("windlass.toml");
    std::fs::write(&file, "grace_ms = 1\nheartbeat_ms = 111\ndrain_ms = 1\n").unwrap();
    let mut check = windlass(&["serve", "--check", "--drain-ms", "3", "--config"]);
    check.arg(&file).env("WINDLASS_GRACE_MS", "2").env("WINDLASS_DRAIN_MS", "2");
    let settings = given(check).well();
    for line in ["heartbeat_ms = 111\n", "grace_ms = 2\n", "drain_ms = 3\n", "listen = \"127.0.0.1:7420\"\n"]
    {
        assert!(settings.contains(line), "{settings}");
    }

    std::fs::write(&file, "gracious_ms = 1\n").unwrap();
    let mut misspelt = windlass(&["serve", "--check", "--config"]);
    misspelt.arg(&file);
    let misspelt = given(misspelt);
    assert_eq!(misspelt.code, 2);
    assert!(misspelt.stderr.contains("gracious_ms"), "{misspelt:?}");
    let open = given(windlass(&["serve", "--listen", "0.0.0.0:0"]));
    assert_eq!(open.code, 2);
    assert!(open.stderr.contains("callers must show a token"), "{open:?}");
}

#[test]
fn the_demo_computes_what_it_should_and_ends_where_nobody_watches() {
    let shown = given(windlass(&["demo", "--chunks", "20"])).well();
    assert_eq!(shown.matches("as expected").count(), 2, "{shown}");
    assert!(shown.contains("40 chunks in "), "{shown}");
}

#[test]
fn completions_are_written_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = given(windlass(&["completions", shell])).well();
        assert!(script.contains("retry-failed"), "{shell}");
    }
}
