//! Branches on an object store that fails, is slow, loses answers, is full, or has lost files: callers are told, nothing is
//! half there, and commits go through when the store is well again.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use windlass_client::branches::{CommitBody, CommitProgress};
use windlass_client::{Client, ClientError, Failure, Output, ProblemCode, PutEntry, SubmitRequest};
use windlass_tests::branches::{
    Shown, client_of, commit, ended, left_over, output_to, problem, put, read, restarted, shown, until, work,
};
use windlass_tests::here::Here;

fn hurt(folder: &Path, wounds: &str) -> Option<String> {
    Some(format!("hurt+file://{}?{wounds}", folder.display()))
}

async fn start_hurt(folder: &Path, wounds: &str) -> Here {
    let objects = hurt(folder, wounds);
    Here::start(move |config| config.objects = objects).await
}

async fn restart_hurt(server: Here, folder: &Path, wounds: &str) -> Here {
    let objects = hurt(folder, wounds);
    restarted(server, move |config| config.objects = objects).await
}

/// How many files there are below a folder.
fn files(folder: &Path) -> usize {
    let Ok(found) = std::fs::read_dir(folder) else { return 0 };
    let paths = found.map(|file| file.unwrap().path());
    paths.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_are_told_and_commits_get_through_whatever_the_store_does_to_every_so_many_calls() {
    for wounds in ["fail_every=4", "lost_every=3", "fail_every=7&lost_every=5&slow_ms=2"] {
        let folder = TempDir::new().unwrap();
        let server = start_hurt(folder.path(), wounds).await;
        let client = client_of(&server);
        client.create_branch("main", None).await.unwrap();
        let mut expected = Shown::new();
        for nth in 0..12 {
            let (path, text) = (format!("p/{nth}"), format!("{nth}"));
            let told = client.put_entry("main", &path, text.clone().into(), &PutEntry::default()).await;
            match told {
                Ok(_) => drop(expected.insert(path, text)),
                Err(ClientError::Problem(problem)) => {
                    assert!(problem.retry_helps, "{wounds}: {problem}");
                    assert!(problem.detail.contains("store"), "{wounds}: {problem}");
                }
                Err(other) => panic!("{wounds}: {other}"),
            }
            if nth % 3 == 2 {
                commit(&client, "main", "").await;
            }
        }
        assert!(!expected.is_empty(), "{wounds}: some got through");
        let request =
            SubmitRequest { chunks: Some(3), output: output_to("main", "append"), ..Default::default() };
        let id = client.submit(&request).await.unwrap();
        work(&client.clone().retrying_for(Duration::from_secs(60)), publish_out).await;
        let info = ended(&client, id).await;
        assert_eq!(info.state.name(), "completed", "{wounds}: {info:?}");
        expected.extend((0..3).map(|nth| (format!("out/{nth}"), "out".to_owned())));
        let server = restart_hurt(server, folder.path(), "slow_ms=0").await;
        assert_eq!(read(&client_of(&server), "main", "head").await, expected, "{wounds}");
        let data = server.stop().await.unwrap();
        let left = left_over(data.path()).await;
        assert_eq!((left.staged, left.dropped, left.noted, left.waiting), (0, 0, 0, 0), "{wounds}: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_a_store_that_is_away_and_says_so_while_everything_else_goes_on() {
    let folder = TempDir::new().unwrap();
    let server = start_hurt(folder.path(), "slow_ms=0").await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    put(&client, "main", "a", "a").await;
    let server = restart_hurt(server, folder.path(), "fail_every=1").await;
    let client = client_of(&server);
    let body = CommitBody { wait_ms: Some(0), ..CommitBody::default() };
    let waiting = client.commit("main", &body).await.unwrap();
    assert_eq!(waiting.state, CommitProgress::InProgress);
    let trouble = until("the branch says what is in the way", || async {
        client.branch("main").await.unwrap().trouble
    })
    .await;
    assert!(trouble.contains("the store did not answer"), "{trouble}");
    let outcome = client.commit_outcome(waiting.request, Duration::ZERO).await.unwrap();
    assert!(outcome.reason.unwrap().contains("the store did not answer"));
    let told = problem(client.put_entry("main", "b", "b".into(), &PutEntry::default()).await);
    assert!(told.retry_helps && told.detail.contains("store"), "{told}");
    client.remove_entry("main", "b").await.unwrap();
    client.submit(&SubmitRequest { chunks: Some(1), ..SubmitRequest::default() }).await.unwrap();
    let given_up = client.commit("main", &body).await.unwrap().request;
    assert_eq!(client.abort_commit(given_up).await.unwrap().state, CommitProgress::Aborted);

    let server = restart_hurt(server, folder.path(), "slow_ms=0").await;
    let client = client_of(&server);
    let outcome = client.commit_outcome(waiting.request, Duration::from_secs(60)).await.unwrap();
    assert_eq!(outcome.state, CommitProgress::Committed);
    assert_eq!(client.branch("main").await.unwrap().trouble, None);
    assert_eq!(read(&client, "main", "head").await, shown([("a", "a")]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_is_told_of_and_what_is_committed_can_still_be_read() {
    let folder = TempDir::new().unwrap();
    let server = start_hurt(folder.path(), "full_after_bytes=20000").await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    put(&client, "main", "a", "a").await;
    commit(&client, "main", "").await;
    let before = files(&folder.path().join("staged"));
    let large = client.put_entry("main", "large", vec![b'x'; 30_000].into(), &PutEntry::default()).await;
    let full = problem(large);
    assert_eq!(full.code, ProblemCode::DiskFull, "{full}");
    assert_eq!(files(&folder.path().join("staged")), before, "nothing of it is left");
    assert_eq!(read(&client, "main", "staged").await, shown([("a", "a")]));
    client.remove_entry("main", "a").await.unwrap();
    put_until_full(&client).await;
    let body = CommitBody { wait_ms: Some(0), ..CommitBody::default() };
    let waiting = client.commit("main", &body).await.unwrap();
    until("the branch says what is in the way", || async {
        client.branch("main").await.unwrap().trouble.filter(|it| it.contains("space"))
    })
    .await;
    assert_eq!(read(&client, "main", "head").await, shown([("a", "a")]));

    let server = restart_hurt(server, folder.path(), "slow_ms=0").await;
    let client = client_of(&server);
    let outcome = client.commit_outcome(waiting.request, Duration::from_secs(60)).await.unwrap();
    assert_eq!(outcome.state, CommitProgress::Committed);
    assert!(!read(&client, "main", "head").await.contains_key("a"));
    server.stop().await;
}

async fn put_until_full(client: &Client) {
    for nth in 0.. {
        let path = format!("some/{nth}");
        if client.put_entry("main", &path, vec![b'x'; 1_000].into(), &PutEntry::default()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_whose_files_are_lost_do_not_hold_up_the_others() {
    let server = Here::start(|_| {}).await;
    let client = client_of(&server);
    let objects = server.folder.as_ref().unwrap().path().join("objects");
    let lost: Vec<String> = (0..6).map(|nth| format!("lost-{nth}")).collect();
    for branch in &lost {
        client.create_branch(branch, None).await.unwrap();
        put(&client, branch, "a", branch).await;
        commit(&client, branch, "").await;
    }
    client.create_branch("well", None).await.unwrap();
    std::fs::remove_dir_all(objects.join("metaranges")).unwrap();
    // What was read is kept in memory; the next server looks for the files.
    let server = restarted(server, |_| {}).await;
    let client = client_of(&server);
    for branch in &lost {
        put(&client, branch, "b", "b").await;
        let body = CommitBody { wait_ms: Some(0), ..CommitBody::default() };
        client.commit(branch, &body).await.unwrap();
    }
    for branch in &lost {
        let trouble =
            until("it says what is in the way", || async { client.branch(branch).await.unwrap().trouble })
                .await;
        assert!(trouble.contains("metaranges/"), "it names the file: {trouble}");
        let told = client.get_entry(branch, "a", &Default::default()).await;
        assert!(problem(told).detail.contains("metaranges/"));
    }
    put(&client, "well", "a", "a").await;
    commit(&client, "well", "").await;
    assert_eq!(read(&client, "well", "head").await, shown([("a", "a")]));
    client.delete_branch(&lost[0]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), server.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_aborted_while_it_is_made_leaves_no_files_that_nobody_knows() {
    let folder = TempDir::new().unwrap();
    let server = start_hurt(folder.path(), "slow_ms=0").await;
    let client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    put(&client, "main", "a", "a").await;
    commit(&client, "main", "").await;
    let files_of_commits = || files(&folder.path().join("ranges")) + files(&folder.path().join("metaranges"));
    let before = files_of_commits();
    // Before it writes, a commit reads what its parent holds, which takes a while here.
    let server = restart_hurt(server, folder.path(), "slow_ms=300").await;
    let client = client_of(&server);
    let output = output_to("main", "append");
    let request = SubmitRequest { chunks: Some(1), output, ..SubmitRequest::default() };
    let id = client.submit(&request).await.unwrap();
    let working = tokio::spawn({
        let client = client.clone();
        async move { work(&client, publish_out).await }
    });
    let request = until("the commit is announced", || async {
        client.branch("main").await.unwrap().waiting.first().copied()
    })
    .await;
    let aborted = client.abort_commit(request).await.unwrap();
    assert_eq!(
        (aborted.state, aborted.reason.as_deref()),
        (CommitProgress::Aborted, Some("somebody aborted it"))
    );
    // Commits of a branch are made one after the other, so that the first is over when this one is.
    let empty = commit(&client, "main", "").await;
    assert_eq!((empty.counts.entries, files_of_commits()), (1, before));
    working.await.unwrap();
    assert_eq!(ended(&client, id).await.state.name(), "failed");
    client.retry_failed(id).await.unwrap();
    assert_eq!(ended(&client, id).await.state.name(), "completed");
    assert_eq!(read(&client, "main", "head").await, shown([("a", "a"), ("out/0", "out")]));
    server.stop().await;
}

async fn publish_out(chunk: windlass_client::Chunk) -> Result<Output, Failure> {
    chunk.publish(format!("out/{}", chunk.index()), "out").await?;
    Ok(Output::Nothing)
}
