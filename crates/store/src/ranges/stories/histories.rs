//! Random histories of commits, against a map that knows nothing of ranges.

use super::super::{Difference, Summary};
use super::*;
use std::ops::Bound;

/// Few letters, some of several bytes, so that paths are prefixes of each other and prefixes meet many.
fn path(dice: &mut Dice) -> String {
    const LETTERS: [&str; 7] = ["a", "b", "/", "0", "ä", "🦀", "\u{10ffff}"];
    (0..=dice.roll(4)).map(|_| LETTERS[dice.roll(7) as usize]).collect()
}

/// A commit's changes, and what they make of the model.
fn commit(dice: &mut Dice, model: &Model) -> (Option<String>, Vec<Change>, Model) {
    let replaced = match dice.roll(8) {
        0 => Some(String::new()),
        1 | 2 => Some(path(dice)),
        _ => None,
    };
    let mut changes: BTreeMap<String, Option<ObjectEntry>> = BTreeMap::new();
    let size = [0, 1, 3, 40][dice.roll(4) as usize];
    for _ in 0..dice.roll(size + 1) {
        let known = model.keys().nth(dice.roll(model.len() as u64 + 1) as usize).cloned();
        let path = known.filter(|_| dice.roll(2) == 0).unwrap_or_else(|| path(dice));
        let entry = match dice.roll(5) {
            0 | 1 => None,
            2 => model.get(&path).cloned(),
            _ => Some(entry(dice.roll(50))),
        };
        changes.insert(path, entry);
    }
    let mut after = model.clone();
    if let Some(prefix) = &replaced {
        after.retain(|path, _| !path.starts_with(prefix.as_str()));
    }
    for (path, entry) in &changes {
        match entry {
            Some(entry) => after.insert(path.clone(), entry.clone()),
            None => after.remove(path),
        };
    }
    let changes = changes.into_iter().map(|(path, entry)| Change { path, entry }).collect();
    (replaced, changes, after)
}

fn naive_differences(from: &Model, to: &Model) -> Vec<Difference> {
    let paths: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let of = |path: &String| Difference {
        path: path.clone(),
        before: from.get(path).cloned(),
        after: to.get(path).cloned(),
    };
    paths.into_iter().map(of).filter(|it| it.before != it.after).collect()
}

async fn differences(
    ranges: &Ranges,
    from: Option<Digest>,
    to: Option<Digest>,
    at_least: Option<&str>,
) -> Vec<Difference> {
    let mut differences = ranges.differences(from, to);
    if let Some(at_least) = at_least {
        // From somewhere else, since a place that was looked at before must not matter.
        differences.seek("b");
        differences.next().await.unwrap();
        differences.seek(at_least);
    }
    let mut found = Vec::new();
    while let Some(difference) = differences.next().await.unwrap() {
        found.push(difference);
    }
    found
}

/// All that can be asked of a metarange is as the model says.
async fn compare(ranges: &Ranges, metarange: Digest, model: &Model, dice: &mut Dice, story: &str) {
    assert_eq!(&all(ranges, Some(metarange)).await, model, "{story}");
    let summary = ranges.summary(metarange).await.unwrap();
    let (entries, bytes) = (model.len() as u64, model.values().map(|entry| entry.size).sum());
    assert_eq!(summary, Summary { entries, bytes, ranges: summary.ranges }, "{story}");
    assert_eq!(summary.ranges == 0, model.is_empty(), "{story}");

    let mut cursor = ranges.cursor(Some(metarange));
    for _ in 0..6 {
        let path = path(dice);
        assert_eq!(ranges.get(metarange, &path).await.unwrap().as_ref(), model.get(&path), "{story}: {path}");
        cursor.seek(&path);
        let mut expected = model.range::<str, _>((Bound::Included(path.as_str()), Bound::Unbounded));
        for _ in 0..dice.roll(5) {
            let peeked = cursor.peek().await.unwrap().map(|found| found.path().to_owned());
            let found = cursor.next().await.unwrap();
            assert_eq!(peeked.as_deref(), found.as_ref().map(|found| found.path()), "{story}: {path}");
            let found = found.map(|found| (found.path().to_owned(), found.to_entry()));
            let expected = expected.next().map(|(path, entry)| (path.clone(), entry.clone()));
            assert_eq!(found, expected, "{story}: after {path}");
        }
    }
}

async fn live(seed: u64) {
    let mut dice = Dice(seed);
    let ranges = small(&memory());
    let mut commits: Vec<(Option<Digest>, Model)> = vec![(None, Model::new())];
    for number in 0..1 + dice.roll(6) {
        let story = format!("seed {seed}, commit {number}");
        let (parent, model) = commits[dice.roll(commits.len() as u64) as usize].clone();
        let (replaced, changes, after) = commit(&mut dice, &model);
        let made = generate(&ranges, parent, replaced.as_deref(), changes.clone()).await;

        let whole =
            after.iter().map(|(path, entry)| Change { path: path.clone(), entry: Some(entry.clone()) });
        let from_scratch = generate(&small(&memory()), None, None, whole.collect()).await;
        assert_eq!(made.metarange, from_scratch.metarange, "{story}");
        assert_eq!(made.ranges, from_scratch.ranges, "{story}");
        let expected = naive_differences(&model, &after);
        let count = |is: fn(&Difference) -> bool| expected.iter().filter(|it| is(it)).count() as u64;
        assert_eq!(made.added, count(|it| it.before.is_none()), "{story}");
        assert_eq!(made.removed, count(|it| it.after.is_none()), "{story}");
        assert_eq!(made.changed, count(|it| it.before.is_some() && it.after.is_some()), "{story}");
        assert_eq!(made.entries, after.len() as u64, "{story}");
        assert_eq!(made.bytes, after.values().map(|entry| entry.size).sum::<u64>(), "{story}");

        let old = match parent {
            Some(parent) => ranges.metarange(parent).await.unwrap(),
            None => std::sync::Arc::default(),
        };
        let new = ranges.metarange(made.metarange).await.unwrap();
        let written =
            new.ranges.iter().map(|it| it.range).filter(|it| old.ranges.iter().all(|old| old.range != *it));
        let mut files: Vec<FileName> = written.map(FileName::Range).collect();
        assert_eq!(made.ranges_written, files.len() as u64, "{story}");
        files.extend((parent != Some(made.metarange)).then_some(FileName::Metarange(made.metarange)));
        assert_eq!(made.files, files, "{story}");

        assert_eq!(generate(&ranges, parent, replaced.as_deref(), changes).await, made, "{story}: once more");
        compare(&ranges, made.metarange, &after, &mut dice, &story).await;
        assert_eq!(differences(&ranges, parent, Some(made.metarange), None).await, expected, "{story}");
        let (other, others) = commits[dice.roll(commits.len() as u64) as usize].clone();
        let at_least = path(&mut dice);
        let mut expected = naive_differences(&after, &others);
        expected.retain(|it| it.path >= at_least);
        let found = differences(&ranges, Some(made.metarange), other, Some(&at_least)).await;
        assert_eq!(found, expected, "{story}: from {at_least}");
        commits.push((Some(made.metarange), after));
    }
}

#[tokio::test]
async fn whatever_the_history_a_metarange_is_that_of_its_entries_and_answers_as_a_map_does() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    if let Some(seed) = number("WINDLASS_SEED") {
        return live(seed).await;
    }
    for seed in 0..number("WINDLASS_HISTORIES").unwrap_or(2_000) {
        live(seed).await;
    }
}
