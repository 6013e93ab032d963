//! Listing, reading and comparing a branch against a naive map, by chance. `WINDLASS_SEED` replays a run.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use std::collections::BTreeMap;
use windlass_client::branches::{DiffKind, DiffQuery, EntriesQuery, RollbackBody};
use windlass_client::{Client, ProblemCode};
use windlass_core::seeded::Seeded;
use windlass_tests::branches::{Shown, at, client_of, commit, problem, put, read, restarted};
use windlass_tests::here::Here;
use windlass_tests::setting;

const SEGMENTS: [&str; 7] = ["a", "b", "ab", "a-", "ä", "0", "z.z"];

/// What the branch should be.
#[derive(Default)]
struct Model {
    head: Shown,
    staged: BTreeMap<String, Option<String>>,
    commits: Vec<(String, Shown)>,
}

impl Model {
    fn with_staged(&self) -> Shown {
        let mut all = self.head.clone();
        for (path, text) in &self.staged {
            match text {
                Some(text) => drop(all.insert(path.clone(), text.clone())),
                None => drop(all.remove(path)),
            }
        }
        all
    }
}

fn some_path(chance: &mut Seeded) -> String {
    let depth = 1 + chance.below(3);
    let segments = (0..depth).map(|_| SEGMENTS[chance.below(SEGMENTS.len() as u64) as usize]);
    segments.collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_a_branch_shows_what_a_naive_map_does() {
    let seed = setting("WINDLASS_SEED", u64::from(std::process::id()));
    println!("replay with WINDLASS_SEED={seed}");
    let mut chance = Seeded::new(seed);
    let mut server = Here::start(|_| {}).await;
    let mut client = client_of(&server);
    client.create_branch("main", None).await.unwrap();
    let mut model = Model::default();
    for step in 0..setting("WINDLASS_STEPS", 250) {
        change(&client, &mut model, &mut chance, step).await;
        if chance.below(100) == 0 {
            server = restarted(server, |_| {}).await;
            client = client_of(&server);
        }
        for _ in 0..3 {
            look(&client, &model, &mut chance).await;
        }
    }
    assert_eq!(read(&client, "main", "staged").await, model.with_staged());
    assert_eq!(read(&client, "main", "head").await, model.head);
    for (commit, held) in &model.commits {
        assert_eq!(read(&client, "main", commit).await, *held);
    }
    server.stop().await;
}

async fn change(client: &Client, model: &mut Model, chance: &mut Seeded, step: u64) {
    let path = some_path(chance);
    match chance.below(20) {
        0..=11 => {
            let text = format!("{step}");
            put(client, "main", &path, &text).await;
            model.staged.insert(path, Some(text));
        }
        12..=15 => {
            client.remove_entry("main", &path).await.unwrap();
            model.staged.insert(path, None);
        }
        16 | 17 => {
            let before = model.head.clone();
            model.head = model.with_staged();
            model.staged.clear();
            let made = commit(client, "main", "").await;
            assert_eq!(made.counts.entries, model.head.len() as u64);
            let added = model.head.keys().filter(|path| !before.contains_key(*path)).count();
            let removed = before.keys().filter(|path| !model.head.contains_key(*path)).count();
            assert_eq!((made.counts.added, made.counts.removed), (added as u64, removed as u64));
            model.commits.push((made.id.to_string(), model.head.clone()));
        }
        18 if !model.commits.is_empty() => {
            let (to, held) = model.commits[chance.below(model.commits.len() as u64) as usize].clone();
            let made =
                client.roll_back("main", &RollbackBody { to, ..RollbackBody::default() }).await.unwrap();
            model.head = held;
            model.commits.push((made.commit.unwrap().id.to_string(), model.head.clone()));
        }
        19 if chance.below(4) == 0 => {
            client.reset_branch("main").await.unwrap();
            model.staged.clear();
        }
        _ => {}
    }
}

/// Lists with some prefix, delimiter and size of pages, reads one path, and compares.
async fn look(client: &Client, model: &Model, chance: &mut Seeded) {
    let (place, all) = match chance.below(3) {
        0 => ("head".to_owned(), model.head.clone()),
        1 if !model.commits.is_empty() => {
            model.commits[chance.below(model.commits.len() as u64) as usize].clone()
        }
        _ => ("staged".to_owned(), model.with_staged()),
    };
    let mut prefix = some_path(chance);
    let cut = chance.below(prefix.len() as u64 + 1) as usize;
    prefix.truncate((0..=cut).rev().find(|end| prefix.is_char_boundary(*end)).unwrap());
    let delimiter = match chance.below(3) {
        0 => None,
        1 => Some("/"),
        _ => Some("a/"),
    };
    let (mut items, mut prefixes) = (Vec::new(), Vec::new());
    let mut expected_prefixes: Vec<String> = Vec::new();
    let mut expected_items = Vec::new();
    for path in all.keys().filter(|path| path.starts_with(&prefix)) {
        let rest = &path[prefix.len()..];
        match delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
            Some(end) => expected_prefixes.push(path[..prefix.len() + end].to_owned()),
            None => expected_items.push(path.clone()),
        }
    }
    expected_prefixes.dedup();
    let mut query = EntriesQuery {
        prefix: prefix.clone(),
        delimiter: delimiter.map(Into::into),
        at: Some(place.clone()),
        limit: Some(1 + chance.below(4) as usize),
        ..EntriesQuery::default()
    };
    loop {
        let page = client.entries("main", &query).await.unwrap();
        assert!(page.items.len() + page.prefixes.len() <= query.limit.unwrap());
        items.extend(page.items.into_iter().map(|it| it.path));
        prefixes.extend(page.prefixes);
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!((items, prefixes), (expected_items, expected_prefixes), "{query:?} of {all:?}");

    let path = some_path(chance);
    match all.get(&path) {
        Some(text) => assert_eq!(client.get_entry("main", &path, &at(&place)).await.unwrap(), text),
        None => {
            let missing = problem(client.get_entry("main", &path, &at(&place)).await);
            assert_eq!(missing.code, ProblemCode::EntryUnknown, "{path} at {place}");
        }
    }
    if place == "staged" {
        compare(client, model, &prefix, chance).await;
    }
}

/// What is staged, compared with the head: a path that was put is changed or new, and one that was removed is gone.
async fn compare(client: &Client, model: &Model, prefix: &str, chance: &mut Seeded) {
    let expected: Vec<(String, DiffKind)> = model
        .staged
        .iter()
        .filter(|(path, _)| path.starts_with(prefix))
        .filter_map(|(path, text)| match (model.head.contains_key(path), text) {
            (false, None) => None,
            (false, Some(_)) => Some((path.clone(), DiffKind::Added)),
            (true, Some(_)) => Some((path.clone(), DiffKind::Changed)),
            (true, None) => Some((path.clone(), DiffKind::Removed)),
        })
        .collect();
    let limit = Some(1 + chance.below(5) as usize);
    let mut query = DiffQuery { prefix: prefix.into(), limit, ..DiffQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = client.diff("main", &query).await.unwrap();
        found.extend(page.items.into_iter().map(|it| (it.path, it.change)));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected, "{query:?}");
}
