//! Running: callers who ask a branch of a real server at random, all at once, and note what they are answered.

use super::{Answered, Asked, History, NOTHING, Operation, PathNth, Place, Value, Whole};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windlass_client::branches::{AtQuery, CommitBody, CommitProgress, EntriesQuery, LogQuery};
use windlass_client::{Client, ClientError, ProblemCode, PutEntry};
use windlass_core::branches::entries::Digest;
use windlass_core::seeded::Seeded;

/// One clock for all callers: it counts what they do.
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// A server that was killed is back long before, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much is asked of a branch.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Callers at the same time.
    pub callers: usize,
    /// What each of them asks.
    pub operations: u64,
    /// Paths.
    pub paths: usize,
}

struct Run<'r> {
    client: &'r Client,
    branch: &'r str,
    size: Size,
    values: AtomicU16,
    digests: Mutex<BTreeMap<Digest, Value>>,
    operations: Mutex<Vec<Operation>>,
}

/// Asks a new branch of this name, and gives the history. The server may be killed and started again in the meantime.
pub async fn run(client: &Client, branch: &str, size: Size, seed: u64) -> History {
    patiently(|| client.create_branch(branch, None)).await;
    let run = Run {
        client,
        branch,
        size,
        values: AtomicU16::new(1),
        digests: Mutex::default(),
        operations: Mutex::default(),
    };
    let callers = (0..size.callers).map(|caller| run.call(caller, Seeded::new(seed ^ (caller as u64) << 32)));
    futures_util::future::join_all(callers).await;
    // Whoever is cut off learns nothing; what was announced is performed all the same.
    patiently(|| async {
        let info = client.branch(branch).await?;
        if info.waiting.is_empty() { Ok(()) } else { Err(ClientError::Setting("commits wait".into())) }
    })
    .await;
    for asked in [Asked::List(Place::Head), Asked::List(Place::Staged), Asked::Log] {
        run.ask(size.callers, asked).await;
    }
    let operations = run.operations.into_inner().expect("nobody panics while it notes");
    History { paths: size.paths, operations }
}

/// Tries until it works: the server may be away for a while, and a branch may have been created by a try that was cut off.
async fn patiently<T, F: Future<Output = Result<T, ClientError>>>(act: impl Fn() -> F) {
    let end = Instant::now() + PATIENCE;
    loop {
        match act().await {
            Ok(_) => return,
            Err(ClientError::Problem(problem)) if problem.code == ProblemCode::BranchExists => return,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn path_of(nth: PathNth) -> String {
    format!("p/{nth}")
}

impl Run<'_> {
    async fn call(&self, caller: usize, mut chance: Seeded) {
        for _ in 0..self.size.operations {
            let asked = self.choose(&mut chance);
            if self.ask(caller, asked).await == Answered::Unknown {
                patiently(|| self.client.branch(self.branch)).await;
            }
        }
    }

    fn choose(&self, chance: &mut Seeded) -> Asked {
        let path = chance.below(self.size.paths as u64) as PathNth;
        let place = if chance.below(2) == 0 { Place::Head } else { Place::Staged };
        match chance.below(20) {
            0..=5 => Asked::Put(path, self.new_value()),
            6 | 7 => {
                let value = self.new_value();
                // One of the last values that were put, or nothing.
                let back = 1 + chance.below(3) as Value;
                let wanted = if chance.below(2) == 0 { NOTHING } else { value.saturating_sub(back) };
                Asked::PutIf(path, value, wanted)
            }
            8 | 9 => Asked::Remove(path),
            10..=12 => Asked::Commit,
            13 if chance.below(2) == 0 => Asked::CommitInVain,
            13 => Asked::Reset,
            14..=16 => Asked::Get(place, path),
            17 | 18 => Asked::List(place),
            _ => Asked::Log,
        }
    }

    fn new_value(&self) -> Value {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        self.digests.lock().expect("nobody panics while it notes").insert(digest_of(value), value);
        value
    }

    async fn ask(&self, caller: usize, asked: Asked) -> Answered {
        let nth = {
            let mut operations = self.operations.lock().expect("nobody panics while it notes");
            let (began, answered) = (CLOCK.fetch_add(1, Ordering::SeqCst), Answered::Unknown);
            operations.push(Operation { caller, began, ended: u64::MAX, asked: asked.clone(), answered });
            operations.len() - 1
        };
        let answered = match self.answer(nth, &asked).await {
            Ok(answered) => answered,
            Err(ClientError::Problem(problem))
                if matches!(problem.code, ProblemCode::PreconditionFailed | ProblemCode::CommitAborted) =>
            {
                Answered::Refused
            }
            Err(ClientError::Problem(problem)) if problem.code == ProblemCode::EntryUnknown => {
                Answered::Value(NOTHING)
            }
            Err(ClientError::Problem(problem)) if !problem.retry_helps => panic!("{asked:?}: {problem}"),
            // A broken connection, and an answer that says that nobody knows.
            Err(ClientError::Problem(_) | ClientError::Unreachable { .. }) => Answered::Unknown,
            Err(other) => panic!("{asked:?}: {other}"),
        };
        let mut operations = self.operations.lock().expect("nobody panics while it notes");
        operations[nth].ended = CLOCK.fetch_add(1, Ordering::SeqCst);
        operations[nth].answered = answered.clone();
        answered
    }

    async fn answer(&self, nth: usize, asked: &Asked) -> Result<Answered, ClientError> {
        let (client, branch) = (self.client, self.branch);
        let body = |value: &Value| value.to_string().into();
        match asked {
            Asked::Put(path, value) => {
                client.put_entry(branch, &path_of(*path), body(value), &PutEntry::default()).await?;
            }
            Asked::PutIf(path, value, wanted) => {
                let how = match *wanted {
                    NOTHING => PutEntry { if_absent: true, ..PutEntry::default() },
                    wanted => {
                        PutEntry { if_match: Some(digest_of(wanted).to_string()), ..PutEntry::default() }
                    }
                };
                client.put_entry(branch, &path_of(*path), body(value), &how).await?;
            }
            Asked::Remove(path) => drop(client.remove_entry(branch, &path_of(*path)).await?),
            Asked::Reset => drop(client.reset_branch(branch).await?),
            Asked::Commit | Asked::CommitInVain => {
                let mut body = CommitBody { message: nth.to_string(), ..CommitBody::default() };
                if *asked == Asked::CommitInVain {
                    body.verify.rules.push("entries >= 1000000".into());
                }
                let outcome = client.commit(branch, &body).await?;
                let commit = outcome.commit.filter(|_| outcome.state == CommitProgress::Committed);
                return Ok(commit.map_or(Answered::Unknown, |it| Answered::Done(it.counts.entries as usize)));
            }
            Asked::Get(place, path) => {
                let at = AtQuery { at: Some(text_of(*place).into()), consistency: None };
                let text = client.get_entry(branch, &path_of(*path), &at).await?;
                let value = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                return Ok(Answered::Value(value.expect("values are put here")));
            }
            Asked::List(place) => return self.list(*place).await.map(Answered::Whole),
            Asked::Log => {
                let page = client.commits(branch, &LogQuery { from: None, limit: Some(1_000) }).await?;
                let asked_by = page.items.iter().rev().map(|it| it.message.parse().expect("a number"));
                return Ok(Answered::Log(asked_by.collect()));
            }
        }
        Ok(Answered::Done(0))
    }

    async fn list(&self, place: Place) -> Result<Whole, ClientError> {
        let query = EntriesQuery { at: Some(text_of(place).into()), ..EntriesQuery::default() };
        let page = self.client.entries(self.branch, &query).await?;
        let mut whole = vec![NOTHING; self.size.paths];
        let digests = self.digests.lock().expect("nobody panics while it notes");
        for entry in page.items {
            let path: PathNth = entry.path.trim_start_matches("p/").parse().expect("a path of ours");
            whole[path] = digests[&entry.sha256];
        }
        Ok(whole)
    }
}

const fn text_of(place: Place) -> &'static str {
    match place {
        Place::Head => "head",
        Place::Staged => "staged",
    }
}

fn digest_of(value: Value) -> Digest {
    use sha2::{Digest as _, Sha256};
    Digest::new(Sha256::digest(value.to_string()).into())
}
