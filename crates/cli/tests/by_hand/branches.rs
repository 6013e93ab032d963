//! Branches by hand: files are put, committed, looked at and brought back, and work leaves its outputs there.

use super::numbers;
use super::stage::{Given, Stage};
use std::io::Write;
use std::process::Stdio;

/// A folder with two files, one of them in a folder of its own.
fn with_files(stage: &Stage) {
    let folder = stage.folder.path().join("in");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::write(folder.join("a.txt"), "hello\n").unwrap();
    std::fs::write(folder.join("sub/b.txt"), "world!\n").unwrap();
}

/// What a command says to stderr, if it goes well and says nothing else.
fn said(given: Given) -> String {
    assert_eq!((given.code, given.stdout.as_str()), (0, ""), "{given:?}");
    given.stderr
}

/// What a command that is refused says.
fn refused(stage: &Stage, args: &[&str]) -> String {
    let given = stage.run(args);
    assert_eq!((given.code, given.stdout.as_str()), (1, ""), "{given:?}");
    given.stderr
}

/// The id in the first line that a commit prints.
fn id_in(said: &str) -> String {
    said.split([' ', ':', '\n']).nth(1).unwrap().to_owned()
}

#[test]
fn files_are_put_seen_after_the_commit_compared_and_brought_back() {
    let stage = Stage::new(&[]);
    with_files(&stage);
    assert_eq!(said(stage.run(&["branches", "list"])), "no branches\n");
    let created = stage.run(&["branches", "create", "feed"]).well();
    assert!(
        created
            .starts_with("branch     feed\nhead       none yet\ncommits    0\nstaged     0 paths in area "),
        "{created}"
    );

    let staged = said(stage.run(&["branches", "put", "feed", "in/a.txt"]));
    assert_eq!(staged, "a.txt (6 B) is staged; `windlass branches commit feed` makes it visible\n");
    for path in ["docs", "docs/"] {
        let staged = said(stage.run(&["branches", "put", "feed", "in", path]));
        assert_eq!(staged, "2 files (13 B) are staged; `windlass branches commit feed` makes that visible\n");
    }
    let mut piped =
        stage.command(&["branches", "put", "feed", "-", "piped"]).stdin(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(piped.wait().unwrap().success());
    assert_eq!(stage.run(&["branches", "ls", "feed"]).well(), "", "nothing is visible yet");
    let listed = " 6 B  5891b5b522d5  a.txt\n   -                docs/\n11 B  ";
    assert!(stage.run(&["branches", "ls", "feed", "--staged"]).well().starts_with(listed));
    let differs = "+ a.txt  (6 B)\n+ docs/a.txt  (6 B)\n+ docs/sub/b.txt  (7 B)\n+ piped  (11 B)\n";
    assert_eq!(stage.run(&["branches", "diff", "feed"]).well(), differs);

    let first = stage.run(&["branches", "commit", "feed", "-m", "first", "--metadata", "tenant=acme"]).well();
    assert!(first.ends_with(": 4 entries (30 B), 4 added, 0 changed, 0 removed\n"), "{first}");
    assert_eq!(said(stage.run(&["branches", "diff", "feed"])), "nothing differs\n");
    assert_eq!(stage.run(&["branches", "get", "feed", "docs/sub/b.txt"]).well(), "world!\n");
    let removed = said(stage.run(&["branches", "rm", "feed", "docs/", "-r"]));
    assert_eq!(removed, "the removal of 2 paths is staged; commit it to make it visible\n");
    let second = stage.run(&["branches", "commit", "feed", "-m", "second"]).well();
    assert!(second.ends_with(": 2 entries (17 B), 0 added, 0 changed, 2 removed\n"), "{second}");
    let log = stage.run(&["branches", "log", "feed"]).well();
    let begin = format!("commit {}\n  at         ", id_in(&second));
    assert!(log.starts_with(&begin) && log.contains("  message    first\n"), "{log}");
    assert!(log.contains("  metadata   tenant=acme\n"), "{log}");

    let first = id_in(&first);
    assert_eq!(stage.run(&["branches", "get", "feed", "docs/a.txt", "--at", &first[..8]]).well(), "hello\n");
    let differs = stage.run(&["branches", "diff", "feed", "--from", &first, "--to", "head"]).well();
    assert_eq!(differs, "- docs/a.txt  (6 B)\n- docs/sub/b.txt  (7 B)\n");
    let back = stage.run(&["branches", "rollback", "feed", &first[..12]]).well();
    assert!(back.ends_with(": 4 entries (30 B), 2 added, 0 changed, 0 removed\n"), "{back}");
    stage.run(&["branches", "create", "copy", "--from", &first]).well();
    let listed = stage.run(&["branches", "list"]).well();
    assert!(listed.starts_with("BRANCH  HEAD          COMMITS  STAGED  WAITING\ncopy    "), "{listed}");
    assert_eq!(said(stage.run(&["branches", "delete", "copy"])), "branch copy is gone\n");
    stage.run(&["branches", "put", "feed", "in/a.txt", "later"]).well();
    assert!(stage.run(&["branches", "reset", "feed"]).well().contains("staged     0 paths in area "));
}

#[test]
fn mistakes_on_branches_are_answered_with_what_to_do() {
    let stage = Stage::new(&[]);
    with_files(&stage);
    stage.run(&["branches", "create", "feed"]).well();
    stage.run(&["branches", "put", "feed", "in/a.txt"]).well();
    let cases: [(&[&str], &str); 10] = [
        (&["branches", "create", "feed"], "use another name, or delete it first"),
        (&["branches", "show", "none"], "create it with `branches create`"),
        (&["branches", "show", ".."], "a branch's name has 1 to 128 letters"),
        (&["branches", "get", "feed", "a.txt"], "list the branch to see its paths"),
        (&["branches", "put", "feed", "in/a.txt", "../a"], "name it without . and .."),
        (&["branches", "put", "feed", "in/a.txt", "--if-absent"], "the path \"a.txt\" leads to 5891b5b522d5"),
        (&["branches", "put", "feed", "missing"], "cannot read missing: No such file"),
        (&["branches", "commit", "feed", "--rule", "rows > 3"], "write `entries >= 0.9 * previous`"),
        (
            &["branches", "commit", "feed", "--check", "editor"],
            "the server's settings name no check `editor`",
        ),
        (&["branches", "rollback", "feed", "deadbeef"], "`branches log` lists those of a branch"),
    ];
    for (args, sentence) in cases {
        let stderr = refused(&stage, args);
        assert!(stderr.contains(sentence), "{args:?}: {stderr}");
    }
    let aborted = refused(&stage, &["branches", "commit", "feed", "--rule", "entries >= 2"]);
    assert!(aborted.starts_with("error: the commit was aborted: request "), "{aborted}");
    assert!(aborted.contains("the rule `entries >= 2` does not hold"), "{aborted}");
    stage.run(&["branches", "commit", "feed", "--rule", "entries >= 1"]).well();
    std::fs::write(stage.folder.path().join("out"), "").unwrap();
    let kept = refused(&stage, &["branches", "get", "feed", "a.txt", "-o", "out"]);
    assert!(kept.starts_with("error: cannot create out: File exists"), "{kept}");
}

#[test]
fn files_that_a_command_leaves_behind_appear_on_the_branch_all_at_once() {
    let stage = Stage::new(&[]);
    stage.run(&["branches", "create", "feed"]).well();
    let flags =
        ["--chunk-size", "2", "--output", "feed", "--output-mode", "exact", "--metadata", "tenant=acme"];
    let id = stage.submit(&numbers(6), &flags);
    let exec = "mkdir $WINDLASS_OUTPUTS/by; cat > $WINDLASS_OUTPUTS/by/$WINDLASS_CHUNK; echo done";
    stage.run(&["work", "--exec", exec, "--until-idle"]).well();
    assert_eq!(stage.run(&["submissions", "wait", &id]).code, 0);
    let shown = stage.run(&["submissions", "show", &id]).well();
    assert!(
        shown.contains("output     branch feed, exact; if a chunk has failed nothing is committed\n"),
        "{shown}"
    );
    assert!(shown.contains(": 3 entries (12 B), 3 added, 0 changed, 0 removed\n"), "{shown}");
    assert_eq!(stage.run(&["branches", "get", "feed", "by/1"]).well(), "3\n4\n");
    assert_eq!(stage.run(&["submissions", "results", &id]).well(), "done\n".repeat(3));
    let log = stage.run(&["branches", "log", "feed"]).well();
    assert!(log.contains(&format!("  submission {id}\n")) && log.contains("tenant=acme"), "{log}");

    let rule = ["--chunk-size", "3", "--output", "feed", "--rule", "entries >= 6"];
    let id = stage.submit(&numbers(6), &rule);
    stage.run(&["work", "--exec", "cat > $WINDLASS_OUTPUTS/x-$WINDLASS_CHUNK", "--until-idle"]).well();
    let waited = stage.run(&["submissions", "wait", &id]);
    assert_eq!(waited.code, 1);
    let why = format!(
        "error: submission {id} was not committed: the rule `entries >= 6` does not hold: entries is 5; see "
    );
    assert!(waited.stderr.contains(&why) && waited.stderr.contains("retry-failed"), "{waited:?}");
    let shown = stage.run(&["submissions", "show", &id]).well();
    assert!(shown.contains("nothing is committed; rules: entries >= 6\ncommit     request "), "{shown}");
    let preview = stage.run(&["branches", "ls", "feed", "-r", "--at", &format!("submission:{id}")]).well();
    assert_eq!(preview.lines().count(), 5, "{preview}");
    stage.run(&["branches", "put", "feed", "lines", "more"]).well();
    stage.run(&["branches", "commit", "feed"]).well();
    let retried = stage.run(&["submissions", "retry-failed", &id]).well();
    assert_eq!(retried, format!("every chunk of {id} is done; its commit is tried again\n"));
    assert_eq!(stage.run(&["submissions", "wait", &id]).code, 0);
    assert_eq!(stage.run(&["branches", "ls", "feed", "-r"]).well().lines().count(), 6);
}

#[test]
fn what_is_committed_without_failed_chunks_says_which_are_missing() {
    let stage = Stage::new(&[]);
    stage.run(&["branches", "create", "feed"]).well();
    let flags = ["--output", "feed", "--on-chunk-failure", "commit-without", "--attempts-max", "1"];
    let id = stage.submit(&numbers(3), &[&["--chunk-size", "1"], &flags[..]].concat());
    let exec = "if [ $WINDLASS_CHUNK = 1 ]; then exit 3; fi; cat > $WINDLASS_OUTPUTS/$WINDLASS_CHUNK";
    stage.run(&["work", "--exec", exec, "--until-idle"]).well();
    let waited = stage.run(&["submissions", "wait", &id]);
    let why = format!(
        "submission {id} failed at chunk 1: exit status 3, and was committed without what failed; see "
    );
    assert!(waited.code == 1 && waited.stderr.contains(&why), "{waited:?}");
    let log = stage.run(&["branches", "log", "feed"]).well();
    assert!(log.contains(", without 1 failed chunk\n") && log.contains("  missing    chunks 1\n"), "{log}");
    let again = refused(&stage, &["submissions", "retry-failed", &id]);
    assert!(again.contains("submit their work anew, with mode append"), "{again}");
}
