//! Listing: reading what is staged, in order of path, and the commits that lead to a head.

use super::commits::Commit;
use super::entries::{Digest, ObjectEntry};
use super::state::{AreaId, commit_of, path_of_staged, staged_of};
use crate::tables::{KeyRange, Row, Table, Tables, key_after_prefix};
use std::iter::Peekable;
use std::ops::Bound;

/// Where a walk over paths begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From<'a> {
    /// At this path, or the first one behind it.
    At(&'a str),
    /// Behind this path.
    After(&'a str),
}

impl From<'_> {
    /// Whether a path is part of the walk.
    pub fn includes(self, path: &str) -> bool {
        match self {
            From::At(at) => path >= at,
            From::After(after) => path > after,
        }
    }
}

/// Staged entries of some areas, in order of path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StagedPage {
    /// Each path once: what the newest area that has it says. A path without an entry is removed.
    pub changes: Vec<(String, Option<ObjectEntry>)>,
    /// Outputs whose paths a later chunk of the same submission gave too.
    pub conflicts: u64,
    /// The last path that was looked at, if there are more behind it.
    pub read_to: Option<String>,
}

/// Reads what is staged under a prefix in these areas, newest first, looking at `limit` rows and a few more.
pub fn staged_page<'t, I: Iterator<Item = Row> + 't>(
    areas: &[AreaId],
    prefix: &str,
    from: From<'_>,
    limit: usize,
    scan: impl Fn(Table, KeyRange<'_>) -> I,
) -> StagedPage {
    let mut walks: Vec<Peekable<I>> =
        areas.iter().map(|area| walk(*area, prefix, from, &scan).peekable()).collect();
    let mut page = StagedPage::default();
    let mut looked_at = 0;
    while let Some(path) = smallest(&mut walks) {
        if looked_at >= limit.max(1) {
            page.read_to = page.changes.last().map(|(path, _)| path.clone());
            return page;
        }
        let mut newest = None;
        for walk in &mut walks {
            let mut last = None;
            while let Some(row) = walk.next_if(|(key, _)| path_of_staged(key) == path) {
                looked_at += 1;
                page.conflicts += u64::from(last.is_some());
                last = Some(row);
            }
            newest = newest.or(last);
        }
        page.changes.push(staged_of(&newest.expect("some area has the smallest path")));
    }
    page
}

fn walk<I: Iterator<Item = Row>>(
    area: AreaId,
    prefix: &str,
    from: From<'_>,
    scan: &impl Fn(Table, KeyRange<'_>) -> I,
) -> I {
    let with_area = |path: &str| [&area.key(), path.as_bytes()].concat();
    let mut begin = with_area(prefix);
    let first = match from {
        From::At(path) => with_area(path),
        // A path's own rows go on with 0, and those of longer paths with something larger than 1.
        From::After(path) => [&with_area(path)[..], &[1]].concat(),
    };
    let end = key_after_prefix(&begin).expect("an id is not all ones, so something comes after its rows");
    begin = begin.max(first).min(end.clone());
    scan(Table::Staged, (Bound::Included(&begin), Bound::Excluded(&end)))
}

fn smallest(walks: &mut [Peekable<impl Iterator<Item = Row>>]) -> Option<String> {
    let paths = walks.iter_mut().filter_map(|walk| walk.peek()).map(|(key, _)| path_of_staged(key));
    paths.min().map(str::to_owned)
}

/// The commits that lead to this one, newest first, beginning with it.
pub fn log_of(tables: &dyn Tables, from: Option<Digest>, limit: usize) -> Vec<(Digest, Commit)> {
    let mut commits: Vec<(Digest, Commit)> = Vec::new();
    let mut next = from;
    while let Some(id) = next.filter(|_| commits.len() < limit) {
        let commit = commit_of(tables, id).expect("a head and every parent is a commit");
        next = commit.parent;
        commits.push((id, commit));
    }
    commits
}
