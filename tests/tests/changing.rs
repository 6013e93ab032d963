//! Submissions that are changed, paused and resumed while they run, one by one and by filter.

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use windlass_tests::here::{Answered, Here, attempt_of, attempt_with};

async fn change(server: &Here, id: &str, body: Value) -> Answered {
    server.patch(&format!("/v1/submissions/{id}"), body).await
}

async fn changed(server: &Here, id: &str, body: Value) -> Value {
    let answer = change(server, id, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

async fn show(server: &Here, id: &str) -> Value {
    server.get(&format!("/v1/submissions/{id}")).await.json
}

/// Does something with a submission that only needs its name.
async fn act(server: &Here, id: &str, verb: &str) -> Value {
    let answer = server.post(&format!("/v1/submissions/{id}/{verb}"), json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

async fn bulk(server: &Here, filter: Value, action: Value, dry_run: bool) -> Value {
    let body = json!({"filter": filter, "action": action, "dry_run": dry_run});
    let answer = server.post("/v1/submissions/bulk", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

fn did(matched: u64, changed: u64) -> Value {
    json!({"matched": matched, "changed": changed, "refused": [], "dry_run": false})
}

/// The ids of a list, newest first.
async fn found(server: &Here, query: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/submissions?limit=1000&{query}{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let items = page.json["items"].as_array().expect("a page has items");
        ids.extend(items.iter().map(|it| it["id"].as_str().expect("an id is a text").to_owned()));
        match page.json["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// Reserves the next chunk and fails it.
async fn fail_next(server: &Here) {
    let reservation = server.reserve(1).await.remove(0);
    let failed = attempt_with(&reservation, "reason", json!("no disk"));
    let answer = server.post("/v1/fail", json!({"chunks": [failed]})).await;
    assert_eq!(answer.json, json!({"chunks": ["accepted"]}), "{}", answer.text);
}

#[tokio::test]
async fn a_change_is_shown_found_by_and_still_there_after_a_restart() {
    let server = Here::start(|_| {}).await;
    let metadata = json!({"company": 7, "mode": "preview", "tmp": true});
    let id = server.submit(json!({"chunks": 3, "metadata": metadata, "priority": 1})).await;
    let before = show(&server, &id).await;

    let body = json!({
        "priority": -5, "metadata": {"mode": "full", "tmp": null, "owner": "ops"}, "paused": true,
        "attempts_max": 9, "retry_delay_ms": 250, "on_failure": "continue",
    });
    let mut expected = before.clone();
    expected["priority"] = json!(-5);
    expected["metadata"] = json!({"company": 7, "mode": "full", "owner": "ops"});
    expected["paused"] = json!(true);
    expected["attempts_max"] = json!(9);
    expected["retry_delay_ms"] = json!(250);
    expected["on_failure"] = json!("continue");
    assert_eq!(changed(&server, &id, body.clone()).await, expected);
    assert_eq!(changed(&server, &id, body).await, expected, "asking twice changes nothing");
    assert_eq!(changed(&server, &id, json!({"paused": true})).await, expected);

    let folder = server.stop().await.expect("it has its own folder");
    let server = Here::start_in(folder.path(), |_| {}).await;
    assert_eq!(show(&server, &id).await, expected);
    assert_eq!(server.get("/v1/submissions").await.json["items"][0], expected);
    for (query, is_found) in [
        ("metadata=mode:full", true),
        ("metadata=owner:ops,company:7", true),
        ("metadata=mode:preview", false),
        ("metadata=tmp:true", false),
    ] {
        assert_eq!(!found(&server, query).await.is_empty(), is_found, "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_handed_out_after_a_change_carries_the_new_metadata() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 1_000_000, "metadata": {"n": -1}})).await;
    // Others reserve all the while, so that what is said of the submission is looked up and kept again and again.
    let others = async {
        loop {
            server.reserve(1).await;
        }
    };
    let changes = async {
        for n in 0..200 {
            changed(&server, &id, json!({"metadata": {"n": n}})).await;
            let reservation = server.reserve(1).await.remove(0);
            assert_eq!(reservation["metadata"], json!({"n": n}));
        }
    };
    tokio::select! {
        () = changes => {}
        () = others => {}
    }
    server.stop().await;
}

#[tokio::test]
async fn nothing_more_of_a_paused_submission_is_handed_out_until_it_is_resumed() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 2})).await;
    let out = server.reserve(1).await.remove(0);
    assert_eq!(act(&server, &id, "pause").await["paused"], true);
    assert_eq!(act(&server, &id, "pause").await["paused"], true, "once more changes nothing");
    assert!(server.reserve(1).await.is_empty(), "what is paused is not handed out");

    let other = server.submit(json!({"chunks": 1})).await;
    assert_eq!(server.reserve(5).await[0]["submission"], other, "others are");
    let done = server.post("/v1/complete", json!({"chunks": [attempt_of(&out)]})).await;
    assert_eq!(done.json, json!({"chunks": ["accepted"]}), "what is out goes on");

    let waits = server.post("/v1/reserve", json!({"max": 1, "wait_ms": 20_000}));
    let resumes = async {
        while server.get("/v1/status").await.json["waiting"] != 1 {}
        act(&server, &id, "resume").await
    };
    let (woken, resumed) = tokio::join!(waits, resumes);
    assert_eq!(resumed["paused"], false);
    let reservation = &woken.json["reservations"][0];
    assert_eq!(reservation["submission"], id, "whoever waits is woken by a resume: {}", woken.text);
    let done = server.post("/v1/complete", json!({"chunks": [attempt_of(reservation)]})).await;
    assert_eq!(done.json, json!({"chunks": ["accepted"]}));
    assert_eq!(show(&server, &id).await["state"], "completed");
    server.stop().await;
}

#[tokio::test]
async fn a_pause_holds_over_a_restart_and_a_new_round_is_not_paused() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 1, "attempts_max": 1})).await;
    act(&server, &id, "pause").await;
    let folder = server.stop().await.expect("it has its own folder");
    let server = Here::start_in(folder.path(), |_| {}).await;
    assert!(server.reserve(1).await.is_empty());

    act(&server, &id, "resume").await;
    let reservation = server.reserve(1).await.remove(0);
    act(&server, &id, "pause").await;
    let failed = attempt_with(&reservation, "reason", json!("no disk"));
    server.post("/v1/fail", json!({"chunks": [failed]})).await;
    let shown = show(&server, &id).await;
    assert_eq!((&shown["state"], &shown["paused"]), (&json!("failed"), &json!(false)));
    act(&server, &id, "retry-failed").await;
    assert_eq!(show(&server, &id).await["paused"], false);
    assert_eq!(server.reserve(1).await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn bad_changes_are_refused_with_a_sentence_and_change_nothing() {
    let server = Here::start(|_| {}).await;
    let fields = |count: u32| -> Value { (0..count).map(|n| (format!("f{n}"), json!(n))).collect() };
    let id = server.submit(json!({"chunks": 1, "metadata": fields(32)})).await;
    let over = server.submit(json!({"chunks": 1})).await;
    act(&server, &over, "cancel").await;
    let before = show(&server, &id).await;

    for (id, body, status, code) in [
        ("7", json!({"priority": 1}), 404, "submission_unknown"),
        ("abc", json!({"priority": 1}), 400, "malformed_request"),
        (&over, json!({"priority": 1}), 409, "submission_over"),
        (&over, json!({"paused": true}), 409, "submission_over"),
        (&id, json!({}), 422, "invalid_request"),
        (&id, json!({"metadata": {}}), 422, "invalid_request"),
        (&id, json!({"metadata": {"more": 1}}), 422, "invalid_request"),
        (&id, json!({"metadata": fields(33)}), 422, "invalid_request"),
        (&id, json!({"metadata": {"a b": 1}}), 422, "invalid_request"),
        (&id, json!({"metadata": {"a b": null}}), 422, "invalid_request"),
        (&id, json!({"metadata": {"f0": "x".repeat(300)}}), 422, "invalid_request"),
        (&id, json!({"metadata": {"f0": [1]}}), 400, "malformed_request"),
        (&id, json!({"metadata": {"f0": 1.5}}), 400, "malformed_request"),
        (&id, json!({"metadata": "f0"}), 400, "malformed_request"),
        (&id, json!({"attempts_max": 0}), 422, "invalid_request"),
        (&id, json!({"attempts_max": -1}), 400, "malformed_request"),
        (&id, json!({"retry_delay_ms": 600_001}), 422, "invalid_request"),
        (&id, json!({"on_failure": "explode"}), 400, "malformed_request"),
        (&id, json!({"paused": "yes"}), 400, "malformed_request"),
        (&id, json!({"priority": 1, "chunks": 5}), 400, "malformed_request"),
        (&id, json!([]), 400, "malformed_request"),
        (&id, json!([5]), 400, "malformed_request"),
    ] {
        let answer = change(&server, id, body.clone()).await;
        assert_eq!((answer.status, &answer.json["code"]), (status, &json!(code)), "{body}: {}", answer.text);
        assert!(answer.json["detail"].as_str().unwrap().len() > 10, "{body}: {}", answer.text);
    }
    for verb in ["pause", "resume"] {
        let answer = server.post(&format!("/v1/submissions/{over}/{verb}"), json!({})).await;
        assert_eq!((answer.status, &answer.json["code"]), (409, &json!("submission_over")));
        let answer = server.post(&format!("/v1/submissions/7/{verb}"), json!({})).await;
        assert_eq!((answer.status, &answer.json["code"]), (404, &json!("submission_unknown")));
    }
    assert_eq!(show(&server, &id).await, before);
    server.stop().await;
}

#[tokio::test]
async fn bad_bulk_requests_are_refused_and_nothing_is_done() {
    let server = Here::start(|_| {}).await;
    let id = server.submit(json!({"chunks": 1, "metadata": {"a": 1}})).await;
    let before = show(&server, &id).await;
    let cancel = json!("cancel");
    for (filter, action, status, code) in [
        (json!({}), cancel.clone(), 422, "invalid_request"),
        (json!({"metadata": {}}), cancel.clone(), 422, "invalid_request"),
        (json!({"all": false}), cancel.clone(), 422, "invalid_request"),
        (json!({"all": true, "metadata": {"a": 1}}), cancel.clone(), 422, "invalid_request"),
        (json!({"metadata": {"a": null}}), cancel.clone(), 400, "malformed_request"),
        (json!({"state": "paused"}), cancel.clone(), 400, "malformed_request"),
        (json!({"ids": [7]}), cancel.clone(), 400, "malformed_request"),
        (json!({"tenant": "acme"}), cancel, 400, "malformed_request"),
        (json!({"all": true}), json!("explode"), 400, "malformed_request"),
        (json!({"all": true}), json!({"change": {}}), 422, "invalid_request"),
        (json!({"all": true}), json!({"change": {"attempts_max": 0}}), 422, "invalid_request"),
        (json!({"all": true}), json!({"change": {"prio": 1}}), 400, "malformed_request"),
    ] {
        let body = json!({"filter": filter, "action": action});
        let answer = server.post("/v1/submissions/bulk", body.clone()).await;
        assert_eq!((answer.status, &answer.json["code"]), (status, &json!(code)), "{body}: {}", answer.text);
    }
    assert_eq!(server.get("/v1/submissions/bulk").await.status, 405);
    assert_eq!(show(&server, &id).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_verb_is_counted_first_and_does_then_what_it_counted() {
    let server = Here::start(|_| {}).await;
    let mut previews = Vec::new();
    for number in 0..6 {
        let mode = if number % 2 == 0 { "preview" } else { "full" };
        let company = if number < 4 { 7 } else { 8 };
        let metadata = json!({"mode": mode, "company_id": company});
        let id = server.submit(json!({"chunks": 1, "metadata": metadata})).await;
        if mode == "preview" && company == 7 {
            previews.push(id);
        }
    }
    let filter = json!({"metadata": {"company_id": 7, "mode": "preview"}});
    let counted = bulk(&server, filter.clone(), json!("cancel"), true).await;
    assert_eq!(counted, json!({"matched": 2, "changed": 0, "refused": [], "dry_run": true}));
    assert_eq!(found(&server, "state=running").await.len(), 6, "counting changes nothing");

    assert_eq!(bulk(&server, filter.clone(), json!("pause"), false).await, did(2, 2));
    for id in &previews {
        assert_eq!(show(&server, id).await["paused"], true);
    }
    assert_eq!(bulk(&server, filter.clone(), json!("resume"), false).await, did(2, 2));
    let raise = json!({"change": {"priority": 9, "metadata": {"mode": "urgent"}}});
    assert_eq!(bulk(&server, filter.clone(), raise, false).await, did(2, 2));
    assert_eq!(
        bulk(&server, filter, json!("cancel"), false).await,
        did(0, 0),
        "they are no previews any more"
    );

    let urgent = json!({"metadata": {"mode": "urgent"}});
    assert_eq!(bulk(&server, urgent.clone(), json!("cancel"), false).await, did(2, 2));
    for id in &previews {
        let shown = show(&server, id).await;
        assert_eq!((&shown["state"], &shown["priority"]), (&json!("cancelled"), &json!(9)));
    }
    assert_eq!(
        bulk(&server, urgent, json!("cancel"), false).await,
        did(0, 0),
        "only running ones are looked at"
    );
    assert_eq!(bulk(&server, json!({"all": true}), json!("cancel"), false).await, did(4, 4));
    assert!(found(&server, "state=running").await.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_retry_is_for_the_failed_and_for_those_that_go_on_with_failed_chunks() {
    let server = Here::start(|_| {}).await;
    let failed = server.submit(json!({"chunks": 2, "attempts_max": 1})).await;
    fail_next(&server).await;
    let goes_on = server.submit(json!({"chunks": 2, "attempts_max": 1, "on_failure": "continue"})).await;
    fail_next(&server).await;
    let cancelled = server.submit(json!({"chunks": 1})).await;
    act(&server, &cancelled, "cancel").await;
    let untouched = server.submit(json!({"chunks": 1})).await;

    let all = json!({"all": true});
    assert_eq!(bulk(&server, all.clone(), json!("retry_failed"), true).await["matched"], 2);
    assert_eq!(bulk(&server, all.clone(), json!("retry_failed"), false).await, did(2, 2));
    for (id, rounds) in [(&failed, 1), (&goes_on, 1), (&untouched, 0), (&cancelled, 0)] {
        assert_eq!(show(&server, id).await["rounds"], rounds);
    }
    assert_eq!(bulk(&server, all, json!("retry_failed"), false).await, did(0, 0));
    assert_eq!(server.reserve(9).await.len(), 5);
    server.stop().await;
}

#[tokio::test]
async fn what_is_named_one_by_one_is_refused_one_by_one() {
    let server = Here::start(|_| {}).await;
    let runs = server.submit(json!({"chunks": 1, "metadata": {"a": 1}})).await;
    let over = server.submit(json!({"chunks": 1})).await;
    act(&server, &over, "cancel").await;
    let ids = json!({"ids": [runs, over, "7", runs]});
    assert_eq!(bulk(&server, ids.clone(), json!("pause"), true).await["matched"], 3, "each counts once");
    let done = bulk(&server, ids, json!("pause"), false).await;
    assert_eq!((&done["matched"], &done["changed"]), (&json!(3), &json!(1)));
    let codes: Vec<_> =
        done["refused"].as_array().unwrap().iter().map(|it| (&it["id"], &it["code"])).collect();
    let (seven, over_id) = (json!("7"), json!(over));
    assert_eq!(codes, [(&seven, &json!("submission_unknown")), (&over_id, &json!("submission_over"))]);
    assert_eq!(show(&server, &runs).await["paused"], true);

    let with_metadata = json!({"ids": [runs, over, "7"], "metadata": {"a": 1}});
    assert_eq!(bulk(&server, with_metadata, json!("resume"), false).await, did(1, 1));
    assert_eq!(bulk(&server, json!({"ids": []}), json!("cancel"), false).await, did(0, 0), "none is not all");

    let many: Vec<String> = (1..=50).map(|id| id.to_string()).collect();
    let refused = bulk(&server, json!({"ids": many}), json!("cancel"), false).await;
    assert_eq!((&refused["matched"], refused["refused"].as_array().unwrap().len()), (&json!(50), 20));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_verb_meets_every_submission_that_was_there_once_while_others_come_and_go() {
    const THERE: usize = 3_000;
    let server = Here::start(|_| {}).await;
    let submit = |number: usize| {
        let server = &server;
        let body = json!({"chunks": 1, "metadata": {"kind": "x", "number": number}});
        async move { server.submit(body).await }
    };
    let there: BTreeSet<String> = stream::iter(0..THERE).map(submit).buffer_unordered(64).collect().await;

    let filter = json!({"metadata": {"kind": "x"}});
    let bulk = bulk(&server, filter, json!("cancel"), false);
    let others = async {
        let mut came = Vec::new();
        for number in 0..50 {
            let id = submit(THERE + number).await;
            if number % 2 == 0 {
                act(&server, &id, "cancel").await;
            }
            came.push(id);
        }
        came
    };
    let (done, came) = tokio::join!(bulk, others);
    let running: BTreeSet<String> = found(&server, "state=running").await.into_iter().collect();
    assert!(running.is_disjoint(&there), "all that were there are cancelled");
    let matched = usize::try_from(done["matched"].as_u64().unwrap()).unwrap();
    assert!((THERE..=THERE + came.len()).contains(&matched), "each is met once: {done}");
    assert_eq!(done["changed"], done["matched"], "{done}");
    server.stop().await;
}

#[tokio::test]
async fn the_openapi_document_describes_what_changes_submissions() {
    let server = Here::start(|_| {}).await;
    let document = server.get("/v1/openapi.json").await.json;
    for (path, method) in [
        ("/v1/submissions/{id}", "patch"),
        ("/v1/submissions/{id}/pause", "post"),
        ("/v1/submissions/{id}/resume", "post"),
        ("/v1/submissions/bulk", "post"),
    ] {
        let operation = &document["paths"][path][method];
        assert!(operation["responses"]["200"].is_object(), "{method} {path}: {operation}");
        assert!(operation["responses"]["default"].is_object(), "{method} {path} can be a problem");
    }
    for schema in ["ChangeRequest", "BulkRequest", "BulkFilter", "BulkAction", "BulkResponse"] {
        assert!(document["components"]["schemas"][schema].is_object(), "{schema}");
    }
    server.stop().await;
}
