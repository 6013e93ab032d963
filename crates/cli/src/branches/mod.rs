//! `windlass branches`: outputs that appear all at once.

pub(crate) mod args;
mod text;
mod transfer;

pub(crate) use text::outcome_text;
pub(crate) use transfer::files_below;

use crate::args::Global;
use crate::exit::{Exit, print, print_json};
use crate::table::counted;
use args::{At, Branches, BranchesCommand, Commit, Diff, Ls};
use text::{branch_text, commit_text, diff_text, entries_text, list_text};
use windlass_client::branches::{
    BranchInfo, BranchListQuery, CommitBody, CommitOutcome, DiffPage, DiffQuery, EntriesQuery, EntryPage,
    LogQuery, RollbackBody, StagedChange, VerifyInfo,
};
use windlass_client::{Client, SubmissionId};

/// Rows of a page.
const PAGE_ROWS: usize = 1_000;

pub(crate) async fn run(global: &Global, branches: Branches) -> Result<(), Exit> {
    let client = global.client()?;
    match branches.command {
        BranchesCommand::Create { branch, from } => {
            show(global, &client.create_branch(&branch, from.as_deref()).await?)
        }
        BranchesCommand::List { limit, cursor } => {
            let page = client.branches(&BranchListQuery { cursor, limit: Some(limit) }).await?;
            if global.json {
                return print_json(&page);
            }
            if page.items.is_empty() {
                eprintln!("no branches");
                return Ok(());
            }
            print(list_text(&page.items).as_bytes())?;
            if let Some(next) = page.next {
                eprintln!("there are more: --cursor {next}");
            }
            Ok(())
        }
        BranchesCommand::Show { branch } => show(global, &client.branch(&branch).await?),
        BranchesCommand::Put(put) => transfer::put(global, &client, put).await,
        BranchesCommand::Get(get) => transfer::get(&client, get).await,
        BranchesCommand::Ls(ls) => list(global, &client, ls).await,
        BranchesCommand::Rm { branch, paths, recursive } => remove(&client, &branch, paths, recursive).await,
        BranchesCommand::Commit(it) => commit(global, &client, it).await,
        BranchesCommand::Log { branch, limit, from } => log(global, &client, &branch, limit, from).await,
        BranchesCommand::Diff(it) => diff(global, &client, it).await,
        BranchesCommand::Rollback { branch, commit, message } => {
            let body = RollbackBody { to: commit, message, wait_ms: None };
            tell(global, &client.roll_back(&branch, &body).await?)
        }
        BranchesCommand::Reset { branch } => show(global, &client.reset_branch(&branch).await?),
        BranchesCommand::Delete { branch } => {
            client.delete_branch(&branch).await?;
            eprintln!("branch {branch} is gone");
            Ok(())
        }
    }
}

fn show(global: &Global, branch: &BranchInfo) -> Result<(), Exit> {
    if global.json { print_json(branch) } else { print(branch_text(branch).as_bytes()) }
}

fn tell(global: &Global, outcome: &CommitOutcome) -> Result<(), Exit> {
    if global.json {
        print_json(outcome)
    } else {
        print(format!("commit {}\n", outcome_text(outcome)).as_bytes())
    }
}

async fn commit(global: &Global, client: &Client, it: Commit) -> Result<(), Exit> {
    let body = CommitBody {
        message: it.message,
        metadata: it.metadata.into_iter().map(|pair| (pair.field, pair.value)).collect(),
        verify: VerifyInfo { rules: it.rules, checks: it.checks },
        if_changed: it.if_changed,
        if_parent: it.if_parent,
        wait_ms: Some(it.wait),
    };
    tell(global, &client.commit(&it.branch, &body).await?)
}

/// Lists the output branch of a submission as if that were committed now.
pub(crate) async fn preview(global: &Global, client: &Client, id: SubmissionId) -> Result<(), Exit> {
    let Some(output) = client.show(id).await?.output else {
        return Err(Exit::Refused(format!(
            "submission {id} names no output branch, so nothing of it is staged"
        )));
    };
    let at = At { staged: false, at: Some(format!("submission:{id}")) };
    let (branch, prefix) = (output.branch, String::new());
    list(global, client, Ls { branch, prefix, recursive: true, limit: None, at }).await
}

async fn list(global: &Global, client: &Client, ls: Ls) -> Result<(), Exit> {
    let mut query = EntriesQuery {
        prefix: ls.prefix,
        delimiter: (!ls.recursive).then(|| "/".to_owned()),
        at: ls.at.text(),
        ..EntriesQuery::default()
    };
    let mut left = ls.limit.unwrap_or(usize::MAX);
    let mut whole = EntryPage::default();
    loop {
        query.limit = Some(left.min(PAGE_ROWS));
        let page = client.entries(&ls.branch, &query).await?;
        left -= (page.items.len() + page.prefixes.len()).min(left);
        query.after.clone_from(&page.next);
        let is_last = page.next.is_none() || left == 0;
        if global.json {
            // One document is printed in the end.
            (whole.commit, whole.next) = (page.commit, page.next);
            whole.items.extend(page.items);
            whole.prefixes.extend(page.prefixes);
        } else {
            print(entries_text(&page.items, &page.prefixes).as_bytes())?;
        }
        if is_last {
            break;
        }
    }
    if global.json { print_json(&whole) } else { Ok(()) }
}

async fn remove(client: &Client, branch: &str, paths: Vec<String>, recursive: bool) -> Result<(), Exit> {
    let mut removed = 0;
    for path in paths {
        if !recursive {
            removed += remove_all(client, branch, vec![path]).await?;
            continue;
        }
        let mut query = EntriesQuery {
            prefix: path,
            at: Some("staged".into()),
            limit: Some(PAGE_ROWS),
            ..EntriesQuery::default()
        };
        loop {
            let page = client.entries(branch, &query).await?;
            let paths =
                page.items.into_iter().map(|it| it.path).filter(|it| is_below(it, &query.prefix)).collect();
            removed += remove_all(client, branch, paths).await?;
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    eprintln!("the removal of {} is staged; commit it to make it visible", counted(removed, "path"));
    Ok(())
}

/// Whether a path is this one, or lies below it as in a folder.
fn is_below(path: &str, folder: &str) -> bool {
    let is_whole =
        |rest: &str| folder.is_empty() || folder.ends_with('/') || rest.is_empty() || rest.starts_with('/');
    path.strip_prefix(folder).is_some_and(is_whole)
}

async fn remove_all(client: &Client, branch: &str, paths: Vec<String>) -> Result<u64, Exit> {
    let removals = |path| StagedChange { path, remove: true, ..StagedChange::default() };
    let changes: Vec<StagedChange> = paths.into_iter().map(removals).collect();
    let count = changes.len() as u64;
    if count > 0 {
        client.stage(branch, None, changes).await?;
    }
    Ok(count)
}

async fn log(
    global: &Global,
    client: &Client,
    branch: &str,
    limit: usize,
    from: Option<String>,
) -> Result<(), Exit> {
    let page = client.commits(branch, &LogQuery { from, limit: Some(limit) }).await?;
    if global.json {
        return print_json(&page);
    }
    if page.items.is_empty() {
        eprintln!("no commits yet");
    }
    let texts: Vec<String> = page.items.iter().map(commit_text).collect();
    print(texts.join("\n").as_bytes())?;
    if let Some(next) = page.next {
        eprintln!("there are more: --from {next}");
    }
    Ok(())
}

async fn diff(global: &Global, client: &Client, it: Diff) -> Result<(), Exit> {
    let mut query =
        DiffQuery { from: it.from, to: it.to, prefix: it.prefix, after: None, limit: Some(PAGE_ROWS) };
    let mut whole = DiffPage { items: Vec::new(), next: None };
    let mut is_same = true;
    loop {
        let page = client.diff(&it.branch, &query).await?;
        query.after = page.next;
        is_same &= page.items.is_empty();
        if global.json {
            whole.items.extend(page.items);
        } else {
            print(diff_text(&page.items).as_bytes())?;
        }
        if query.after.is_none() {
            break;
        }
    }
    if global.json {
        return print_json(&whole);
    }
    if is_same {
        eprintln!("nothing differs");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_a_folder_is_not_what_only_begins_like_it() {
        for (path, folder) in
            [("docs", "docs"), ("docs/a", "docs"), ("docs/a", "docs/"), ("a", ""), ("a/b/c", "a/b")]
        {
            assert!(is_below(path, folder), "{path} {folder}");
        }
        for (path, folder) in [("docsa.txt", "docs"), ("doc", "docs"), ("docs", "docs/"), ("b", "a")] {
            assert!(!is_below(path, folder), "{path} {folder}");
        }
    }
}
