//! Branches over the real server and client: outputs of submissions appear all at once, or not at all.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use windlass_client::branches::{ChunkFailureRule, CommitProgress, OutputInfo, VerifyInfo};
use windlass_client::{Client, Failure, MetaValue, Output, ProblemCode, SubmissionId, SubmitRequest};
use windlass_tests::branches::{
    Shown, client_of, commit, ended, left_over, output_to, problem, put, read, restarted, shown, try_read,
    work,
};
use windlass_tests::here::{Here, attempt_with};

/// A branch that has `old/a`, `old/b` and `kept/c` committed.
async fn with_old_version(client: &Client) -> Shown {
    client.create_branch("feed", None).await.unwrap();
    let old = shown([("kept/c", "c"), ("old/a", "a"), ("old/b", "b")]);
    for (path, text) in &old {
        put(client, "feed", path, text).await;
    }
    commit(client, "feed", "the old version").await;
    old
}

async fn submit(client: &Client, chunks: u64, mode: &str) -> SubmissionId {
    let metadata = BTreeMap::from([("tenant".to_owned(), MetaValue::Text("acme".into()))]);
    let output = output_to("feed", mode);
    let request = SubmitRequest { chunks: Some(chunks), metadata, output, ..SubmitRequest::default() };
    client.submit(&request).await.unwrap()
}

/// What chunks publish: two paths each, and one that they share.
fn outputs_of(chunks: u64, shared: bool) -> Shown {
    let mut all = Shown::new();
    for chunk in 0..chunks {
        all.insert(format!("old/{chunk}"), format!("first of {chunk}"));
        all.insert(format!("new/{chunk}"), format!("second of {chunk}"));
    }
    if shared {
        all.insert("old/shared".into(), format!("from {}", chunks - 1));
    }
    all
}

async fn publish(chunk: windlass_client::Chunk, shared: bool) -> Result<Output, Failure> {
    let nth = chunk.index();
    chunk.publish(format!("old/{nth}"), format!("first of {nth}")).await?;
    chunk.publish(format!("new/{nth}"), "too early").await?;
    chunk.publish(format!("new/{nth}"), format!("second of {nth}")).await?;
    if shared {
        chunk.publish("old/shared", format!("from {nth}")).await?;
    }
    Ok(Output::Nothing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_the_old_version_until_the_last_chunk_is_done_and_then_all_of_the_new() {
    const CHUNKS: u64 = 12;
    for mode in ["append", "replace:old/", "exact"] {
        let server = Here::start(|_| {}).await;
        let client = client_of(&server);
        let old = with_old_version(&client).await;
        let shared = mode != "exact";
        let mut new = outputs_of(CHUNKS, shared);
        new.extend(old.clone().into_iter().filter(|(path, _)| match mode {
            "append" => true,
            "exact" => false,
            _ => !path.starts_with("old/"),
        }));

        let is_over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (client, is_over) = (client.clone(), Arc::clone(&is_over));
                let (old, new) = (old.clone(), new.clone());
                tokio::spawn(async move {
                    let mut has_seen_new = false;
                    while !is_over.load(Ordering::Relaxed) {
                        let seen = read(&client, "feed", "head").await;
                        assert!(seen == old && !has_seen_new || seen == new, "never a mixture: {seen:?}");
                        has_seen_new |= seen == new;
                    }
                })
            })
            .collect();
        let id = submit(&client, CHUNKS, mode).await;
        work(&client, move |chunk| publish(chunk, shared)).await;
        let info = ended(&client, id).await;
        assert_eq!(read(&client, "feed", "head").await, new, "what is completed is visible");
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.await.unwrap();
        }

        let commit = info.commit.unwrap().commit.unwrap();
        assert_eq!((info.state.name(), commit.submission), ("completed", Some(id)));
        assert_eq!(commit.metadata, info.metadata);
        assert_eq!(commit.message, format!("submission {id}"));
        let counts = commit.counts;
        assert_eq!(counts.entries, new.len() as u64);
        assert_eq!(counts.bytes, new.values().map(|text| text.len() as u64).sum::<u64>());
        let is_new = |path: &&String| !old.contains_key(*path);
        assert_eq!(counts.added, new.keys().filter(is_new).count() as u64);
        assert_eq!(counts.removed, old.keys().filter(|path| !new.contains_key(*path)).count() as u64);
        assert_eq!(counts.conflicts, if shared { CHUNKS - 1 } else { 0 }, "one path of all chunks");
        assert_eq!(
            commit.parent,
            Some(client.commit_info(&commit.id.to_string()).await.unwrap().parent.unwrap())
        );
        let folder = server.stop().await.unwrap();
        let left = left_over(folder.path()).await;
        assert_eq!((left.staged, left.dropped, left.noted, left.waiting), (0, 0, 0, 0), "{left:?}");
    }
}

#[tokio::test]
async fn a_submission_can_be_looked_at_before_and_after_it_is_committed() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let old = with_old_version(&client).await;
    let id = submit(&client, 2, "replace:old/").await;
    let place = format!("submission:{id}");
    let before = shown([("kept/c", "c")]);
    assert_eq!(read(&client, "feed", &place).await, before, "what it replaces is gone already");
    let [first, second] = &server.reserve(2).await[..] else { panic!("two chunks are ready") };
    complete_with(&client, &server, first, &[("old/x", "x"), ("new/y", "y")]).await;
    let half = shown([("kept/c", "c"), ("old/x", "x"), ("new/y", "y")]);
    assert_eq!(read(&client, "feed", &place).await, half);
    assert_eq!(read(&client, "feed", "head").await, old);
    assert_eq!(read(&client, "feed", "staged").await, old, "what is staged by hand is another matter");

    complete_with(&client, &server, second, &[("new/z", "z")]).await;
    ended(&client, id).await;
    let whole = shown([("kept/c", "c"), ("old/x", "x"), ("new/y", "y"), ("new/z", "z")]);
    assert_eq!(read(&client, "feed", "head").await, whole);
    put(&client, "feed", "later", "later").await;
    commit(&client, "feed", "").await;
    assert_eq!(read(&client, "feed", &place).await, whole, "it stays what it was committed as");

    client.create_branch("other", None).await.unwrap();
    let elsewhere = problem(try_read(&client, "other", &place).await);
    assert_eq!(elsewhere.detail, format!("no submission {id} puts its outputs on branch `other`"));
    let cancelled = submit(&client, 1, "append").await;
    client.cancel(cancelled).await.unwrap();
    let gone = problem(try_read(&client, "feed", &format!("submission:{cancelled}")).await);
    assert_eq!(gone.code, ProblemCode::SubmissionOver);
    server.stop().await;
}

/// Uploads outputs to where the attempt may, and reports them with the completion.
async fn complete_with(
    client: &Client,
    server: &Here,
    reservation: &serde_json::Value,
    outputs: &[(&str, &str)],
) -> serde_json::Value {
    let mut said = Vec::new();
    for (nth, (path, text)) in outputs.iter().enumerate() {
        let key = format!("{}/{nth}", reservation["output_key"].as_str().unwrap());
        client.put_object(&key, text.to_string().into()).await.unwrap();
        let info = server.http.head(server.url(&format!("/v1/objects/{key}"))).send().await.unwrap();
        assert_eq!(info.status(), 200);
        let sha256 = sha256_of(text);
        said.push(json!({"path": path, "object": nth, "size": text.len(), "sha256": sha256}));
    }
    let chunk = attempt_with(reservation, "outputs", json!(said));
    server.post("/v1/complete", json!({"chunks": [chunk]})).await.json["chunks"][0].clone()
}

fn sha256_of(text: &str) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_submission_that_is_cancelled_or_fails_leaves_the_branch_as_it_was() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let old = with_old_version(&client).await;
    let cancelled = submit(&client, 2, "exact").await;
    let reserved = server.reserve(2).await;
    assert_eq!(complete_with(&client, &server, &reserved[0], &[("a", "a")]).await, "accepted");
    client.cancel(cancelled).await.unwrap();
    assert_eq!(complete_with(&client, &server, &reserved[1], &[("b", "b")]).await, "submission_over");
    assert_eq!(read(&client, "feed", "head").await, old);

    let request = SubmitRequest {
        chunks: Some(4),
        output: output_to("feed", "append"),
        attempts_max: Some(1),
        on_failure: Some(windlass_client::OnFailure::Continue),
        ..SubmitRequest::default()
    };
    let failed = client.submit(&request).await.unwrap();
    work(&client, |chunk| async move {
        chunk.publish(format!("half/{}", chunk.index()), "half").await?;
        if chunk.index().0 == 3 { Err(Failure::new("no threes")) } else { Ok(Output::Nothing) }
    })
    .await;
    assert_eq!(ended(&client, failed).await.state.name(), "failed");
    assert_eq!(read(&client, "feed", "head").await, old);

    // What was done before it failed is kept for its retry, and then everything appears.
    client.retry_failed(failed).await.unwrap();
    work(&client, |chunk| async move {
        assert_eq!(chunk.index().0, 3, "the others are done");
        chunk.publish("half/3", "three").await?;
        Ok(Output::Nothing)
    })
    .await;
    assert_eq!(ended(&client, failed).await.state.name(), "completed");
    let mut new = old;
    new.extend(shown([("half/0", "half"), ("half/1", "half"), ("half/2", "half"), ("half/3", "three")]));
    assert_eq!(read(&client, "feed", "head").await, new);
    let folder = server.stop().await.unwrap();
    let left = left_over(folder.path()).await;
    assert_eq!((left.staged, left.dropped, left.noted, left.waiting), (0, 0, 0, 0), "{left:?}");
}

#[tokio::test]
async fn a_commit_without_failed_chunks_names_them_and_one_that_wants_all_is_not_made() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let old = with_old_version(&client).await;
    let fail_odd = |chunk: windlass_client::Chunk| async move {
        chunk.publish(format!("out/{}", chunk.index()), "x").await?;
        if chunk.index().0 % 2 == 1 { Err(Failure::new("odd")) } else { Ok(Output::Nothing) }
    };
    let request = |rule| SubmitRequest {
        chunks: Some(5),
        attempts_max: Some(1),
        on_failure: Some(windlass_client::OnFailure::Continue),
        output: Some(OutputInfo { on_chunk_failure: rule, ..output_to("feed", "append").unwrap() }),
        ..SubmitRequest::default()
    };
    let all_or_nothing = client.submit(&request(ChunkFailureRule::Abort)).await.unwrap();
    work(&client, fail_odd).await;
    let info = ended(&client, all_or_nothing).await;
    assert_eq!((info.state.name(), info.commit), ("failed", None));
    assert_eq!(read(&client, "feed", "head").await, old);

    let without = client.submit(&request(ChunkFailureRule::CommitWithout)).await.unwrap();
    work(&client, fail_odd).await;
    let info = ended(&client, without).await;
    let commit = info.commit.unwrap().commit.unwrap();
    assert_eq!(info.state.name(), "failed", "its chunks have failed, and what is there is visible");
    assert_eq!(commit.missing_chunks, 2);
    assert_eq!(commit.missing.iter().map(|chunk| chunk.0).collect::<Vec<_>>(), [1, 3]);
    let mut new = old;
    new.extend(shown([("out/0", "x"), ("out/2", "x"), ("out/4", "x")]));
    assert_eq!(read(&client, "feed", "head").await, new);
    let again = problem(client.retry_failed(without).await);
    assert!(again.detail.contains("submit their work anew, with mode append"), "{}", again.detail);
    server.stop().await;
}

#[tokio::test]
async fn what_a_check_or_a_rule_stops_can_be_tried_again_without_working_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (asked, allowed) = (folder.path().join("asked"), folder.path().join("allowed"));
    let script = format!(
        "cat > {}; if [ -e {} ]; then exit 0; fi; echo the editor is away >&2; exit 1",
        asked.display(),
        allowed.display()
    );
    let command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let settings = move |config: &mut windlass_server::config::Config| {
        config
            .checks
            .insert("editor".into(), windlass_server::roles::committer::Check::Command(command.clone()));
    };
    let server = Here::start(settings.clone()).await;
    let client = client_of(&server);
    let old = with_old_version(&client).await;
    let verify = VerifyInfo { rules: vec!["removed <= 0".into()], checks: vec!["editor".into()] };
    let output = OutputInfo { verify, ..output_to("feed", "append").unwrap() };
    let request = SubmitRequest { chunks: Some(2), output: Some(output), ..SubmitRequest::default() };
    let id = client.submit(&request).await.unwrap();
    work(&client, |chunk| publish(chunk, false)).await;
    let stopped = ended(&client, id).await;
    let outcome = stopped.commit.unwrap();
    assert_eq!((stopped.state.name(), outcome.state), ("failed", CommitProgress::Aborted));
    assert_eq!(
        outcome.reason.unwrap(),
        "the check `editor` does not agree: the editor is away (exit status: 1)"
    );
    assert_eq!(read(&client, "feed", "head").await, old);
    let seen: serde_json::Value = serde_json::from_slice(&std::fs::read(&asked).unwrap()).unwrap();
    assert_eq!(
        (&seen["submission"], &seen["counts"]["added"]),
        (&json!(id.to_string()), &json!(4)),
        "{seen}"
    );
    let preview = read(&client, "feed", &format!("submission:{id}")).await;

    std::fs::write(&allowed, "").unwrap();
    let server = restarted(server, settings).await;
    let client = client_of(&server);
    client.retry_failed(id).await.unwrap();
    assert_eq!(ended(&client, id).await.state.name(), "completed");
    let mut new = old;
    new.extend(outputs_of(2, false));
    assert_eq!(read(&client, "feed", "head").await, new);
    assert_eq!(preview, new, "the preview showed what came");
    server.stop().await;
}

#[tokio::test]
async fn checks_are_asked_over_http_and_only_those_that_the_settings_name() {
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = door.local_addr().unwrap();
    let answering = tokio::spawn(answer_checks(door));
    let server = Here::start(|config| {
        let url = format!("http://{address}/agree");
        config.checks.insert("web".into(), windlass_server::roles::committer::Check::Url(url));
    })
    .await;
    let client = client_of(&server);
    client.create_branch("feed", None).await.unwrap();
    let body = |check: &str, message: &str| windlass_client::branches::CommitBody {
        message: message.into(),
        verify: VerifyInfo { rules: Vec::new(), checks: vec![check.into()] },
        ..Default::default()
    };
    put(&client, "feed", "a", "a").await;
    let unknown = problem(client.commit("feed", &body("phone", "")).await);
    assert_eq!(unknown.detail, "the server's settings name no check `phone`; they name: web");
    let refused = problem(client.commit("feed", &body("web", "bad")).await);
    assert_eq!(refused.code, ProblemCode::CommitAborted);
    assert!(
        refused.detail.ends_with("the check `web` does not agree: not like this (403 Forbidden)"),
        "{refused}"
    );
    assert_eq!(read(&client, "feed", "staged").await, shown([("a", "a")]), "what is staged stays staged");
    let agreed = client.commit("feed", &body("web", "good")).await.unwrap();
    assert_eq!(agreed.state, CommitProgress::Committed);
    assert_eq!(read(&client, "feed", "head").await, shown([("a", "a")]));
    answering.abort();
    server.stop().await;
}

/// Agrees with every commit but those whose message is `bad`.
async fn answer_checks(door: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    while let Ok((mut socket, _)) = door.accept().await {
        let (mut text, mut piece) = (String::new(), [0; 4_096]);
        // The body is one JSON object, which ends the request.
        while !text.ends_with('}') {
            let length = socket.read(&mut piece).await.unwrap();
            assert_ne!(length, 0, "{text}");
            text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
        assert!(text.contains("idempotency-key"), "{text}");
        let answer = match text.contains("\"message\":\"bad\"") {
            true => "HTTP/1.1 403 Forbidden\r\ncontent-length: 13\r\nconnection: close\r\n\r\nnot like this",
            false => "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
        };
        socket.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn no_two_chunks_may_give_one_path_of_an_exact_version() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let old = with_old_version(&client).await;
    let id = submit(&client, 3, "exact").await;
    work(&client, |chunk| publish(chunk, true)).await;
    let outcome = ended(&client, id).await.commit.unwrap();
    assert_eq!(
        outcome.reason.unwrap(),
        "2 outputs have paths that another chunk gave too, and the mode `exact` wants each path once"
    );
    assert_eq!(read(&client, "feed", "head").await, old);
    server.stop().await;
}

#[tokio::test]
async fn what_a_late_attempt_gives_never_appears() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("feed", None).await.unwrap();
    let id = submit(&client, 1, "append").await;
    let reserve = json!({"max": 1, "strategy": "OldestFirst", "lease_ms": 1_000, "wait_ms": 30_000});
    let first = server.post("/v1/reserve", reserve.clone()).await.json["reservations"][0].clone();
    // The first one's lease ends; whoever asks next gets the chunk.
    let second = server.post("/v1/reserve", reserve).await.json["reservations"][0].clone();
    assert_ne!(first["output_key"], second["output_key"]);
    assert_eq!(
        complete_with(&client, &server, &second, &[("a", "second"), ("b", "second")]).await,
        "accepted"
    );
    let late = complete_with(&client, &server, &first, &[("a", "late"), ("c", "late")]).await;
    assert!(late == "already_done" || late == "submission_over", "{late}");
    ended(&client, id).await;
    assert_eq!(read(&client, "feed", "head").await, shown([("a", "second"), ("b", "second")]));
    server.stop().await;
}

#[tokio::test]
async fn outputs_that_cannot_be_taken_fail_their_chunk_with_a_sentence() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    client.create_branch("feed", None).await.unwrap();
    let no_branch =
        SubmitRequest { chunks: Some(1), output: output_to("none", "append"), ..Default::default() };
    assert_eq!(problem(client.submit(&no_branch).await).code, ProblemCode::BranchUnknown);
    for mode in ["upsert", "replace:", "replace"] {
        let request = SubmitRequest { output: output_to("feed", mode), ..no_branch.clone() };
        assert_eq!(problem(client.submit(&request).await).code, ProblemCode::InvalidRequest, "{mode}");
    }
    let plain = SubmitRequest { chunks: Some(1), attempts_max: Some(1), ..SubmitRequest::default() };
    let with_output = SubmitRequest { output: output_to("feed", "append"), ..plain.clone() };
    for (request, path, sentence) in [
        (&with_output, "../up", "the path \"../up\" has a segment of dots only; name it without . and .."),
        (&with_output, "", "a path is empty; give at least one character"),
        (&plain, "a", "there is no output branch that these outputs could go to"),
    ] {
        let id = client.submit(request).await.unwrap();
        work(&client, move |chunk| async move {
            chunk.publish(path, "x").await?;
            Ok(Output::Nothing)
        })
        .await;
        let info = ended(&client, id).await;
        assert_eq!((info.state.name(), &*info.troubles[0].reason), ("failed", sentence));
    }
    assert_eq!(read(&client, "feed", "head").await, Shown::new());
    let id = submit(&client, 1, "append").await;
    client.delete_branch("feed").await.unwrap();
    work(&client, |chunk| publish(chunk, false)).await;
    let reason = ended(&client, id).await.commit.unwrap().reason.unwrap();
    assert_eq!(reason, "branch `feed` was deleted");
    tokio::time::timeout(Duration::from_secs(60), server.stop()).await.unwrap();
}
