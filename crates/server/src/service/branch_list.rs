//! Listing branches: entries page by page, and what differs between two versions.
//!
//! Invariants
//! - A page shows the branch at one moment: what is staged is read in one look, and commits do not change.
//! - A page costs a bounded number of rows; one that meets many tombstones may be short, or empty, and still have a next.

use super::Service;
use super::batch::page_limit;
use super::branch_entries::{At, Seen, entry_info_of};
use super::problem_of_store;
use std::iter::Peekable;
use windlass_api::branches::{DiffInfo, DiffKind, DiffPage, DiffQuery, EntriesQuery, EntryPage};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::entries::{Digest, ObjectEntry, problem_of_prefix};
use windlass_core::branches::listing::From;
use windlass_core::limits::PAGE_LOOKED_AT_MAX;
use windlass_store::ranges::Cursor;

impl Service {
    /// A page of a branch's entries.
    pub async fn entry_page(&self, branch: &str, query: &EntriesQuery) -> Result<EntryPage, Problem> {
        let limit = page_limit(query.limit)?;
        let problem = problem_of_prefix(&query.prefix)
            .or_else(|| query.after.as_deref().and_then(problem_of_prefix))
            .or_else(|| query.delimiter.as_deref().and_then(problem_of_delimiter));
        if let Some(problem) = problem {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        self.freshen(query.consistency).await?;
        let at = self.at_of(query.at.as_deref())?;
        let begin = begin_of(query);
        let from = begin.as_from();
        let seen = self.see(branch, at, &query.prefix, from, PAGE_LOOKED_AT_MAX)?;
        let mut cursor = self.ranges().cursor(seen.metarange);
        cursor.seek(begin.text().max(&query.prefix));
        let page = EntryPage { commit: seen.commit, ..EntryPage::default() };
        let Seen { replaced_prefix, staged, .. } = seen;
        let mut merge = Merge {
            query,
            from,
            limit,
            page,
            last: None,
            replaced_prefix,
            read_to: staged.read_to,
            staged: staged.changes.into_iter().peekable(),
            cursor,
        };
        while merge.step().await? {}
        Ok(merge.page)
    }

    /// A page of what differs between two versions of a branch.
    pub async fn diff_page(&self, branch: &str, query: &DiffQuery) -> Result<DiffPage, Problem> {
        let limit = page_limit(query.limit)?;
        if let Some(problem) = problem_of_prefix(&query.prefix) {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        self.freshen(None).await?;
        let begin = query.after.as_deref().map_or(From::At(&query.prefix), From::After);
        match query.to.as_deref() {
            None | Some("staged") => match query.from.as_deref() {
                None | Some("head") => self.diff_staged(branch, query, begin, limit).await,
                Some(_) => {
                    let detail = "what is staged is compared with the head; leave `from` out";
                    Err(Problem::new(ProblemCode::InvalidRequest, detail))
                }
            },
            Some(to) => {
                let from = query.from.as_deref().unwrap_or("head");
                let (from, to) =
                    (self.version_named(branch, from).await?, self.version_named(branch, to).await?);
                self.diff_commits(query, begin, limit, self.metarange_of(from), self.metarange_of(to)).await
            }
        }
    }

    async fn version_named(&self, branch: &str, text: &str) -> Result<Option<Digest>, Problem> {
        let text = if text == "head" { branch } else { text };
        self.commit_named(text).await
    }

    async fn diff_staged(
        &self,
        branch: &str,
        query: &DiffQuery,
        begin: From<'_>,
        limit: usize,
    ) -> Result<DiffPage, Problem> {
        let seen = self.see(branch, At::Staged, &query.prefix, begin, PAGE_LOOKED_AT_MAX)?;
        let mut page = DiffPage { items: Vec::new(), next: seen.staged.read_to };
        for (path, after) in seen.staged.changes {
            if page.items.len() == limit {
                page.next = page.items.last().map(|it| it.path.clone());
                break;
            }
            let before = match seen.metarange {
                None => None,
                Some(metarange) => {
                    self.ranges().get(metarange, &path).await.map_err(|fault| problem_of_store(&fault))?
                }
            };
            page.items.extend(diff_of(path, before, after));
        }
        Ok(page)
    }

    async fn diff_commits(
        &self,
        query: &DiffQuery,
        begin: From<'_>,
        limit: usize,
        from: Option<Digest>,
        to: Option<Digest>,
    ) -> Result<DiffPage, Problem> {
        let mut differences = self.ranges().differences(from, to);
        let (From::At(text) | From::After(text)) = begin;
        differences.seek(text.max(&query.prefix));
        let mut page = DiffPage { items: Vec::new(), next: None };
        while let Some(it) = differences.next().await.map_err(|fault| problem_of_store(&fault))? {
            if !it.path.starts_with(&query.prefix) {
                break;
            }
            if !begin.includes(&it.path) {
                continue;
            }
            if page.items.len() == limit {
                page.next = page.items.last().map(|it: &DiffInfo| it.path.clone());
                break;
            }
            page.items.extend(diff_of(it.path, it.before, it.after));
        }
        Ok(page)
    }
}

fn problem_of_delimiter(delimiter: &str) -> Option<String> {
    let is_wrong = delimiter.is_empty() || delimiter.len() > 16;
    is_wrong.then(|| "a delimiter has 1 to 16 bytes; `/` is the usual one".to_owned())
}

fn diff_of(path: String, before: Option<ObjectEntry>, after: Option<ObjectEntry>) -> Option<DiffInfo> {
    let change = match (&before, &after) {
        (None, None) => return None,
        (Some(before), Some(after)) if before == after => return None,
        (None, Some(_)) => DiffKind::Added,
        (Some(_), Some(_)) => DiffKind::Changed,
        (Some(_), None) => DiffKind::Removed,
    };
    let info = |entry: Option<ObjectEntry>| entry.map(|entry| entry_info_of(path.clone(), entry));
    let (before, after) = (info(before), info(after));
    Some(DiffInfo { path, change, before, after })
}

/// Where a page begins.
enum Begin {
    At(String),
    After(String),
}

impl Begin {
    fn as_from(&self) -> From<'_> {
        match self {
            Begin::At(text) => From::At(text),
            Begin::After(text) => From::After(text),
        }
    }

    fn text(&self) -> &str {
        match self {
            Begin::At(text) | Begin::After(text) => text,
        }
    }
}

/// A page that ended with what paths have in common goes on behind all of them.
fn begin_of(query: &EntriesQuery) -> Begin {
    match (&query.after, &query.delimiter) {
        (None, _) => Begin::At(query.prefix.clone()),
        (Some(after), Some(delimiter)) if common_prefix(after, &query.prefix, delimiter) == Some(after) => {
            match behind_prefix(after) {
                Some(behind) => Begin::At(behind),
                None => Begin::After(after.clone()),
            }
        }
        (Some(after), _) => Begin::After(after.clone()),
    }
}

/// What a path has in common with others up to the delimiter behind the prefix.
fn common_prefix<'p>(path: &'p str, prefix: &str, delimiter: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(prefix)?;
    let at = rest.find(delimiter)?;
    Some(&path[..prefix.len() + at + delimiter.len()])
}

/// The first text that is larger than all that begin so.
fn behind_prefix(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

/// Entries of a commit with what is staged on top, on their way onto a page.
struct Merge<'a> {
    query: &'a EntriesQuery,
    from: From<'a>,
    limit: usize,
    page: EntryPage,
    /// The last path, or what paths have in common, that the page shows or has passed.
    last: Option<String>,
    replaced_prefix: Option<String>,
    /// What is staged behind this path was not read.
    read_to: Option<String>,
    staged: Peekable<std::vec::IntoIter<(String, Option<ObjectEntry>)>>,
    cursor: Cursor,
}

impl Merge<'_> {
    /// Takes the next path; false if the page is done.
    async fn step(&mut self) -> Result<bool, Problem> {
        let committed = self.cursor.peek().await.map_err(|fault| problem_of_store(&fault))?;
        let committed = committed.filter(|entry| entry.path().starts_with(&self.query.prefix));
        let staged_path = self.staged.peek().map(|(path, _)| path.as_str());
        let path = match (staged_path, committed.as_ref().map(|entry| entry.path())) {
            (None, None) => {
                self.page.next = self.read_to.take();
                return Ok(false);
            }
            (Some(staged), Some(committed)) => staged.min(committed).to_owned(),
            (Some(path), None) | (None, Some(path)) => path.to_owned(),
        };
        if self.read_to.as_ref().is_some_and(|read_to| path > *read_to) {
            self.page.next = self.read_to.take();
            return Ok(false);
        }
        if self.page.items.len() + self.page.prefixes.len() == self.limit {
            self.page.next = self.last.take();
            return Ok(false);
        }
        let staged = self.staged.next_if(|(staged, _)| *staged == path);
        let is_in_commit = committed.as_ref().is_some_and(|entry| entry.path() == path);
        if is_in_commit {
            self.cursor.next().await.map_err(|fault| problem_of_store(&fault))?;
        }
        let is_replaced = self.replaced_prefix.as_ref().is_some_and(|prefix| path.starts_with(prefix));
        let entry = match staged {
            Some((_, entry)) => entry,
            None if is_replaced => None,
            None => committed.map(|entry| entry.to_entry()),
        };
        match entry {
            Some(entry) if self.from.includes(&path) => Ok(self.show(path, entry)),
            Some(_) | None => Ok(true),
        }
    }

    /// Shows an entry, or what it has in common with others; false if the page is done.
    fn show(&mut self, path: String, entry: ObjectEntry) -> bool {
        let delimiter = self.query.delimiter.as_deref();
        let common = delimiter.and_then(|delimiter| common_prefix(&path, &self.query.prefix, delimiter));
        let Some(common) = common.map(str::to_owned) else {
            self.last = Some(path.clone());
            self.page.items.push(entry_info_of(path, entry));
            return true;
        };
        while self.staged.next_if(|(staged, _)| staged.starts_with(&common)).is_some() {}
        self.page.prefixes.push(common.clone());
        let is_read_to_within = self.read_to.as_ref().is_some_and(|read_to| read_to.starts_with(&common));
        match behind_prefix(&common) {
            Some(behind) if !is_read_to_within => {
                self.cursor.seek(&behind);
                self.last = Some(common);
                true
            }
            Some(_) | None => {
                self.page.next = is_read_to_within.then_some(common);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_behind_a_prefix_is_larger_than_all_that_begin_so_and_no_other_lies_between() {
        assert_eq!(behind_prefix("a/").as_deref(), Some("a0"));
        assert_eq!(behind_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(behind_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(behind_prefix("\u{10ffff}"), None);
    }

    #[test]
    fn what_paths_have_in_common_ends_with_the_delimiter_behind_the_prefix() {
        assert_eq!(common_prefix("a/b/c", "", "/"), Some("a/"));
        assert_eq!(common_prefix("a/b/c", "a/", "/"), Some("a/b/"));
        assert_eq!(common_prefix("a/b", "a/", "/"), None);
        assert_eq!(common_prefix("x", "a/", "/"), None);
    }
}
