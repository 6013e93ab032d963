//! Branches over the client, in few words.

use crate::here::Here;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use windlass_client::branches::{AtQuery, CommitBody, CommitInfo, CommitProgress, EntriesQuery, OutputInfo};
use windlass_client::json::SubmissionInfo;
use windlass_client::{
    Chunk, Client, ClientError, Consumer, Failure, Output, Problem, PutEntry, SubmissionId,
};
use windlass_core::audit;
use windlass_core::machine::Machine;
use windlass_core::tables::{Table, Tables};
use windlass_store::tables::DiskTables;

/// Whatever is waited for comes soon, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a branch shows: the text under each path.
pub type Shown = BTreeMap<String, String>;

/// A client of a server in this process. It tries once, so that tests see every answer.
pub fn client_of(server: &Here) -> Client {
    Client::new(&server.url("")).expect("a server has an address").retrying_for(Duration::ZERO)
}

/// What is expected of a branch.
pub fn shown<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Shown {
    entries.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
}

/// Puts a text under a path.
pub async fn put(client: &Client, branch: &str, path: &str, text: &str) {
    let put = client.put_entry(branch, path, text.to_owned().into(), &PutEntry::default()).await;
    put.unwrap_or_else(|error| panic!("{path:?} is put on {branch}: {error}"));
}

/// Commits what is staged.
pub async fn commit(client: &Client, branch: &str, message: &str) -> CommitInfo {
    let body = CommitBody { message: message.into(), ..CommitBody::default() };
    let outcome = client.commit(branch, &body).await.expect("the commit is made");
    assert_eq!(outcome.state, CommitProgress::Committed, "{outcome:?}");
    outcome.commit.expect("what is committed has its commit")
}

/// Where to read.
pub fn at(place: &str) -> AtQuery {
    AtQuery { at: Some(place.into()), consistency: None }
}

/// Everything that a branch shows, page by page.
pub async fn read(client: &Client, branch: &str, place: &str) -> Shown {
    try_read(client, branch, place).await.expect("a branch can be read")
}

/// The same; the listing is taken in pages of this many entries, and each text is read at the commit of its page.
pub async fn try_read(client: &Client, branch: &str, place: &str) -> Result<Shown, ClientError> {
    let mut query = EntriesQuery { at: Some(place.into()), limit: Some(1_000), ..EntriesQuery::default() };
    let mut shown = Shown::new();
    loop {
        let page = client.entries(branch, &query).await?;
        // The head may move; what was listed is read where it was listed.
        let place = match (place, page.commit) {
            ("head", Some(commit)) => commit.to_string(),
            _ => place.to_owned(),
        };
        for entry in page.items {
            let bytes = client.get_entry(branch, &entry.path, &at(&place)).await?;
            assert_eq!(bytes.len() as u64, entry.size, "{}", entry.path);
            shown.insert(entry.path, String::from_utf8(bytes.to_vec()).expect("texts are put here"));
        }
        (query.after, query.at) = (page.next, Some(place));
        if query.after.is_none() {
            return Ok(shown);
        }
    }
}

/// The paths that a branch shows, without their texts.
pub async fn paths(client: &Client, branch: &str, place: &str) -> Vec<String> {
    let query = EntriesQuery { at: Some(place.into()), limit: Some(1_000), ..EntriesQuery::default() };
    let page = client.entries(branch, &query).await.expect("a branch can be listed");
    assert_eq!(page.next, None, "it is all on one page");
    page.items.into_iter().map(|entry| entry.path).collect()
}

/// Outputs go to this branch in this mode.
pub fn output_to(branch: &str, mode: &str) -> Option<OutputInfo> {
    Some(OutputInfo { branch: branch.into(), mode: mode.into(), ..OutputInfo::default() })
}

/// Works on everything that there is, until there is nothing more.
pub async fn work<F, Fut>(client: &Client, act: F)
where
    F: Fn(Chunk) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
{
    let consumer = Consumer::builder(client.clone()).concurrency(4).until_idle(Duration::from_millis(50));
    consumer.run(act, std::future::pending()).await.expect("a consumer works until there is no more");
}

/// Waits until a submission is over.
pub async fn ended(client: &Client, id: SubmissionId) -> SubmissionInfo {
    let info = client.wait(id, Some(PATIENCE)).await.expect("a submission can be waited for");
    assert_ne!(info.state.name(), "running", "{info:?}");
    info
}

/// What a refused call was told.
pub fn problem<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Problem {
    match result {
        Err(ClientError::Problem(problem)) => problem,
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// Waits until something is so.
pub async fn until<T, Fut: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> Fut) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "within a minute, {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same server, started again on its data with these settings.
pub async fn restarted(server: Here, change: impl FnOnce(&mut windlass_server::config::Config)) -> Here {
    let folder = server.stop().await.expect("it has its folder");
    let mut server = Here::start_in(folder.path(), change).await;
    server.folder = Some(folder);
    server
}

/// What a stopped server has left in its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOver {
    /// Rows of staged entries.
    pub staged: usize,
    /// Areas that were dropped and not swept.
    pub dropped: usize,
    /// Files that were noted and belong to no commit yet.
    pub noted: usize,
    /// Requests for commits that are not over.
    pub waiting: usize,
    /// Objects that nothing leads to.
    pub garbage: usize,
}

/// Audits the tables of a server that was stopped, and counts what is left of branches when everything is swept. A server that
/// stops just after a commit leaves the sweep to the next one.
pub async fn left_over(data: &Path) -> LeftOver {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = look_at(data);
        if left.dropped == 0 {
            return left;
        }
        assert!(Instant::now() < end, "within a minute, everything is swept: {left:?}");
        let server = Here::start_in(data, |_| {}).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.stop().await;
    }
}

fn look_at(data: &Path) -> LeftOver {
    let tables = DiskTables::open(&data.join("tables")).expect("a stopped server has let go of its tables");
    let machine = Machine::open(tables);
    audit::check(&machine);
    let count = |table| machine.tables().scan_prefix(table, &[]).count();
    LeftOver {
        staged: count(Table::Staged),
        dropped: count(Table::DroppedAreas),
        noted: count(Table::Generated),
        waiting: machine.branches().iter().map(|(_, branch)| branch.queue.len()).sum(),
        garbage: count(Table::Garbage),
    }
}
