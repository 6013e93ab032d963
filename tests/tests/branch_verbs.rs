//! The verbs of branches over the real server and client: put, get, list, remove, commit, diff, log, rollback, reset, delete.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use futures_util::future::join_all;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use windlass_client::branches::{
    CommitBody, DiffKind, DiffQuery, EntriesQuery, LogQuery, RollbackBody, StagedChange,
};
use windlass_client::json::Consistency;
use windlass_client::{Client, Digest, ProblemCode, PutEntry};
use windlass_tests::branches::{
    Shown, at, client_of, commit, left_over, paths, problem, put, read, restarted, shown,
};
use windlass_tests::here::{Here, answered};

fn digest_of(text: &str) -> Digest {
    Digest::new(Sha256::digest(text).into())
}

#[tokio::test]
async fn what_is_put_is_seen_when_it_is_committed_and_a_commit_never_changes() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let created = client.create_branch("feeds/nl", None).await.unwrap();
    assert_eq!((created.head, created.commits, created.staged), (None, 0, 0));
    let how = PutEntry {
        content_type: "text/plain; charset=utf-8".into(),
        metadata: BTreeMap::from([("rows".to_owned(), "3".to_owned())]),
        ..PutEntry::default()
    };
    let staged = client.put_entry("feeds/nl", "a/b c.txt", "hello".into(), &how).await.unwrap();
    assert_eq!((staged.sha256, staged.size), (Some(digest_of("hello")), Some(5)));
    let unseen = problem(client.get_entry("feeds/nl", "a/b c.txt", &at("head")).await);
    assert_eq!(unseen.code, ProblemCode::EntryUnknown);
    assert_eq!(read(&client, "feeds/nl", "staged").await, shown([("a/b c.txt", "hello")]));

    let first = commit(&client, "feeds/nl", "first").await;
    let url = server.url("/v1/branches/feeds%2Fnl/objects/a/b%20c.txt");
    let got = server.http.get(&url).header("range", "bytes=1-3").send().await.unwrap();
    assert_eq!(
        (got.status().as_u16(), &got.headers()["content-type"]),
        (206, &how.content_type.parse().unwrap())
    );
    assert_eq!(got.headers()["x-windlass-meta-rows"], "3");
    assert_eq!(got.headers()["etag"], format!("\"{}\"", digest_of("hello")));
    assert_eq!(got.text().await.unwrap(), "ell");

    put(&client, "feeds/nl", "a/b c.txt", "changed").await;
    let second = commit(&client, "feeds/nl", "second").await;
    client.remove_entry("feeds/nl", "a/b c.txt").await.unwrap();
    let third = commit(&client, "feeds/nl", "third").await;
    assert_eq!(third.parent, Some(second.id));
    let server = restarted(server, |_| {}).await;
    let client = client_of(&server);
    let texts = [(first.id, Some("hello")), (second.id, Some("changed")), (third.id, None)];
    for (id, text) in texts {
        let expected = shown(text.map(|text| ("a/b c.txt", text)));
        assert_eq!(read(&client, "feeds/nl", &id.to_string()).await, expected);
        assert_eq!(read(&client, "feeds/nl", &id.to_string()[..8]).await, expected);
    }
    let stale = EntriesQuery { consistency: Some(Consistency::Stale), ..EntriesQuery::default() };
    assert_eq!(client.entries("feeds/nl", &stale).await.unwrap().commit, Some(third.id));
    server.stop().await;
}

#[tokio::test]
async fn versions_are_compared_listed_brought_back_branched_from_and_thrown_away() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    for path in ["a", "b", "c"] {
        put(&client, "main", path, path).await;
    }
    let first = commit(&client, "main", "first").await;
    put(&client, "main", "b", "B").await;
    put(&client, "main", "d", "d").await;
    put(&client, "main", "a", "a").await;
    client.remove_entry("main", "c").await.unwrap();
    client.remove_entry("main", "never").await.unwrap();
    let diff = async |from: Option<&str>, to: Option<&str>| {
        let query = DiffQuery { from: from.map(Into::into), to: to.map(Into::into), ..DiffQuery::default() };
        let page = client.diff("main", &query).await.unwrap();
        page.items.into_iter().map(|it| (it.path, it.change)).collect::<Vec<_>>()
    };
    let is = |list: &[(&str, DiffKind)]| {
        list.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect::<Vec<_>>()
    };
    let staged = diff(None, None).await;
    // What was put again is another object, even if it has the same bytes.
    let expected = is(&[
        ("a", DiffKind::Changed),
        ("b", DiffKind::Changed),
        ("c", DiffKind::Removed),
        ("d", DiffKind::Added),
    ]);
    assert_eq!(staged, expected);
    let second = commit(&client, "main", "second").await;
    assert_eq!((second.counts.added, second.counts.changed, second.counts.removed), (1, 2, 1));
    assert_eq!(diff(None, None).await, []);
    assert_eq!(diff(Some(&first.id.to_string()), Some("head")).await, expected);
    client.create_branch("copy", Some(&first.id.to_string()[..10])).await.unwrap();
    assert_eq!(diff(Some("copy"), Some("main")).await, expected);
    assert_eq!(client.branch("copy").await.unwrap().head, Some(first.id));

    let body = RollbackBody { to: first.id.to_string(), ..RollbackBody::default() };
    let back = client.roll_back("main", &body).await.unwrap().commit.unwrap();
    assert_eq!(
        (back.rolled_back_to, back.parent, &back.metarange),
        (Some(first.id), Some(second.id), &first.metarange)
    );
    assert_eq!((back.counts.added, back.counts.changed, back.counts.removed), (1, 2, 1));
    assert_eq!(read(&client, "main", "head").await, shown([("a", "a"), ("b", "b"), ("c", "c")]));
    let log = client.commits("main", &LogQuery { from: None, limit: Some(2) }).await.unwrap();
    assert_eq!(log.items.iter().map(|it| it.id).collect::<Vec<_>>(), [back.id, second.id]);
    assert_eq!(log.next, Some(first.id));
    let rest = LogQuery { from: log.next.map(|id| id.to_string()), limit: None };
    assert_eq!(client.commits("main", &rest).await.unwrap().items.len(), 1);

    put(&client, "main", "thrown", "away").await;
    assert_eq!(client.reset_branch("main").await.unwrap().staged, 0);
    assert_eq!(read(&client, "main", "staged").await, read(&client, "main", "head").await);
    put(&client, "main", "thrown", "away").await;
    client.delete_branch("main").await.unwrap();
    assert_eq!(problem(client.branch("main").await).code, ProblemCode::BranchUnknown);
    assert_eq!(problem(client.delete_branch("main").await).code, ProblemCode::BranchUnknown);
    assert_eq!(read(&client, "copy", &second.id.to_string()).await.len(), 3, "commits outlive their branch");
    client.create_branch("main", None).await.unwrap();
    assert_eq!(read(&client, "main", "staged").await, Shown::new(), "a new one has nothing of the old");
    let folder = server.stop().await.unwrap();
    assert_eq!(left_over(folder.path()).await.staged, 0);
}

#[tokio::test]
async fn a_condition_is_decided_by_what_is_staged_and_then_by_what_is_committed() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let if_absent = PutEntry { if_absent: true, ..PutEntry::default() };
    let if_match = |text: &str| PutEntry { if_match: Some(text.to_owned()), ..PutEntry::default() };
    let if_text = |text: &str| if_match(&format!("\"{}\"", digest_of(text)));
    let conditional = async |text: &'static str, how: PutEntry| {
        client.put_entry("main", "a", text.into(), &how).await.map(drop)
    };
    assert_eq!(problem(conditional("x", if_match("*")).await).code, ProblemCode::PreconditionFailed);
    conditional("one", if_absent.clone()).await.unwrap();
    let failed = problem(conditional("two", if_absent.clone()).await);
    assert_eq!(failed.code, ProblemCode::PreconditionFailed);
    assert!(failed.detail.contains(&digest_of("one").to_string()), "{}", failed.detail);
    commit(&client, "main", "").await;
    assert_eq!(problem(conditional("two", if_absent.clone()).await).code, ProblemCode::PreconditionFailed);
    assert_eq!(problem(conditional("two", if_text("other")).await).code, ProblemCode::PreconditionFailed);
    conditional("two", if_text("one")).await.unwrap();
    assert_eq!(problem(conditional("three", if_text("one")).await).code, ProblemCode::PreconditionFailed);
    client.remove_entry("main", "a").await.unwrap();
    assert_eq!(problem(conditional("three", if_match("*")).await).code, ProblemCode::PreconditionFailed);
    conditional("four", if_absent.clone()).await.unwrap();
    commit(&client, "main", "").await;
    assert_eq!(read(&client, "main", "head").await, shown([("a", "four")]));

    // Of many who want to be the first, one is, while commits come in between.
    let texts: Vec<String> = (0..16).map(|nth| format!("by {nth}")).collect();
    let puts = texts.iter().map(|text| client.put_entry("main", "first", text.clone().into(), &if_absent));
    let commits = join_all((0..4).map(|_| commit(&client, "main", "")));
    let (puts, _) = tokio::join!(join_all(puts), commits);
    assert_eq!(puts.iter().filter(|put| put.is_ok()).count(), 1);
    commit(&client, "main", "").await;
    let winner = puts.iter().position(Result::is_ok).unwrap();
    assert_eq!(read(&client, "main", "head").await["first"], texts[winner]);
    server.stop().await;
}

async fn upload(client: &Client, address: &str, path: &str, text: &'static str) -> StagedChange {
    client.put_object(address, text.into()).await.unwrap();
    StagedChange {
        path: path.into(),
        address: Some(address.into()),
        size: Some(text.len() as u64),
        sha256: Some(digest_of(text)),
        ..StagedChange::default()
    }
}

#[tokio::test]
async fn objects_are_uploaded_by_oneself_and_linked_all_at_once_whatever_was_committed_meanwhile() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let granted = client.staging_token("main", 3).await.unwrap();
    let [first, second, third] = &granted.addresses[..] else { panic!("{granted:?}") };
    let changes = vec![upload(&client, first, "x", "x").await, upload(&client, second, "y", "yy").await];
    put(&client, "main", "between", "").await;
    commit(&client, "main", "").await;

    let url = server.url("/v1/branches/main/entries");
    let body = json!({"token": granted.token, "changes": changes});
    let stale = answered(server.http.post(&url).json(&body)).await;
    let newest = client.branch("main").await.unwrap().token;
    assert_eq!((stale.status, &stale.json["code"]), (409, &json!("token_stale")), "{}", stale.text);
    assert_eq!(stale.json["newest_token"], json!(newest));
    // The client does by itself what the answer says.
    client.stage("main", Some(granted.token.clone()), changes.clone()).await.unwrap();
    commit(&client, "main", "").await;
    assert_eq!(read(&client, "main", "head").await, shown([("between", ""), ("x", "x"), ("y", "yy")]));

    let twice = problem(client.stage("main", None, changes).await);
    assert_eq!(twice.code, ProblemCode::AddressNotGranted);
    let missing = StagedChange { address: Some(third.clone()), ..upload_of("z", "zzz") };
    let missing = problem(client.stage("main", None, vec![missing]).await);
    assert!(missing.detail.contains("upload it before you link it"), "{}", missing.detail);
    let short = StagedChange { size: Some(9), ..upload(&client, third, "z", "zzz").await };
    let short = problem(client.stage("main", None, vec![short]).await);
    assert!(short.detail.ends_with("has 3 bytes, not 9; upload it whole"), "{}", short.detail);
    let foreign = StagedChange { address: Some("staged/0000000000000001/0".into()), ..upload_of("z", "z") };
    client.put_object("staged/0000000000000001/0", "z".into()).await.ok();
    assert!(client.stage("main", None, vec![foreign]).await.is_err(), "an address that nobody was given");
    for token in ["", "latest", "00000000000000000"] {
        let refused = problem(client.stage("main", Some(token.into()), vec![removal("x")]).await);
        assert!(refused.detail.starts_with("a staging token has 16 digits"), "{}", refused.detail);
    }
    assert_eq!(paths(&client, "main", "staged").await, ["between", "x", "y"], "all or nothing");
    server.stop().await;
}

fn upload_of(path: &str, text: &str) -> StagedChange {
    let (size, sha256) = (Some(text.len() as u64), Some(digest_of(text)));
    StagedChange { path: path.into(), size, sha256, ..StagedChange::default() }
}

fn removal(path: &str) -> StagedChange {
    StagedChange { path: path.into(), remove: true, ..StagedChange::default() }
}

#[tokio::test]
async fn a_path_is_any_text_that_can_be_printed_and_others_are_refused_with_a_sentence() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let long = "p".repeat(1_024);
    let good = [
        "ä/ö",
        "a\u{308}/o\u{308}",
        "日本語",
        "🦀.txt",
        "a b",
        "a+b&c=d?e#f",
        "%2e%2e",
        "%2F",
        "a\\b",
        "...",
        "\u{202e}x",
        &long,
    ];
    for path in good {
        put(&client, "main", path, path).await;
    }
    commit(&client, "main", "").await;
    assert_eq!(read(&client, "main", "head").await, shown(good.map(|path| (path, path))));

    let longer = "p".repeat(4_096);
    for bad in
        ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "../a", "./a", "a\nb", "a\tb", "a\0b", &longer]
    {
        let how = PutEntry::default();
        let calls = [
            problem(client.put_entry("main", bad, "x".into(), &how).await.map(drop)),
            problem(client.get_entry("main", bad, &at("head")).await.map(drop)),
            problem(client.remove_entry("main", bad).await.map(drop)),
            problem(client.stage("main", None, vec![removal(bad)]).await.map(drop)),
        ];
        for problem in calls {
            assert_eq!(problem.code, ProblemCode::InvalidRequest, "{bad:?}: {problem}");
            assert!(problem.detail.contains("path"), "{bad:?}: {problem}");
        }
    }
    for bad in ["", ".", "..", "a b", "ä", "a//b", "a/../b"] {
        for problem in [
            problem(client.create_branch(bad, None).await.map(drop)),
            problem(client.branch(bad).await.map(drop)),
            problem(client.delete_branch(bad).await),
            problem(client.put_entry(bad, "a", "x".into(), &PutEntry::default()).await.map(drop)),
        ] {
            assert!(problem.detail.starts_with("a branch's name has "), "{bad:?}: {problem}");
        }
    }
    // Who writes addresses by hand meets the same sentences.
    for (path, sentence) in
        [("a//b", "has an empty segment"), ("a%0Ab", "control character"), ("%2E%2E%2Fa", "of dots only")]
    {
        let url = server.url(&format!("/v1/branches/main/objects/{path}"));
        let refused = answered(server.http.put(url).body("x")).await;
        assert_eq!(
            (refused.status, &refused.json["code"]),
            (422, &json!("invalid_request")),
            "{path}: {}",
            refused.text
        );
        assert!(refused.text.contains(sentence), "{path}: {}", refused.text);
    }
    assert_eq!(client.branch("main").await.unwrap().staged, 0, "nothing was put in their place");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_commit_at_once_and_each_is_committed_in_turn() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let committing = (0..50).map(|nth| {
        let client = client.clone();
        async move {
            put(&client, "main", &format!("by/{nth}"), "x").await;
            commit(&client, "main", &format!("{nth}")).await
        }
    });
    let commits = join_all(committing).await;
    let log = client.commits("main", &LogQuery::default()).await.unwrap().items;
    assert_eq!(log.len(), 50);
    let said: BTreeSet<Digest> = commits.iter().map(|commit| commit.id).collect();
    assert_eq!(said, log.iter().map(|commit| commit.id).collect(), "each got a commit of its own");
    for pair in log.windows(2) {
        assert_eq!(pair[0].parent, Some(pair[1].id));
        assert!(pair[0].at >= pair[1].at, "in the order in which they were announced");
        assert!(pair[0].counts.entries >= pair[1].counts.entries);
    }
    for commit in &commits {
        let own = format!("by/{}", commit.message);
        assert!(
            client.get_entry("main", &own, &at(&commit.id.to_string())).await.is_ok(),
            "it has what was put before it"
        );
    }
    assert_eq!(paths(&client, "main", "head").await.len(), 50);
    server.stop().await;
}

#[tokio::test]
async fn a_commit_may_insist_on_its_parent_or_on_changes() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let if_changed = CommitBody { if_changed: true, ..CommitBody::default() };
    let nothing = problem(client.commit("main", &if_changed).await);
    assert_eq!(nothing.detail, "nothing is staged on branch `main` that no commit has taken");
    put(&client, "main", "a", "a").await;
    let first = client.commit("main", &if_changed).await.unwrap().commit.unwrap();
    assert_eq!(problem(client.commit("main", &if_changed).await).code, ProblemCode::InvalidRequest);
    let empty = commit(&client, "main", "nothing new").await;
    assert_eq!((empty.metarange, empty.counts.entries), (first.metarange.clone(), 1));
    put(&client, "main", "b", "b").await;
    let if_first = CommitBody { if_parent: Some(first.id.to_string()), ..CommitBody::default() };
    let moved = problem(client.commit("main", &if_first).await);
    assert_eq!(moved.code, ProblemCode::CommitAborted);
    let if_empty = CommitBody { if_parent: Some(empty.id.to_string()), ..CommitBody::default() };
    client.commit("main", &if_empty).await.unwrap();
    assert_eq!(paths(&client, "main", "head").await, ["a", "b"]);
    server.stop().await;
}
