//! Branches and commits, for people.

use crate::table::{age, aligned, counted, grouped, on_one_line};
use indicatif::HumanBytes;
use windlass_client::Digest;
use windlass_client::branches::{
    BranchInfo, CommitInfo, CommitOutcome, CommitProgress, DiffInfo, DiffKind, EntryInfo,
};

/// So many digits of an id are shown in lists.
const ID_DIGITS: usize = 12;

fn short_id(id: &Digest) -> String {
    id.to_string()[..ID_DIGITS].to_owned()
}

pub(super) fn list_text(branches: &[BranchInfo]) -> String {
    let rows: Vec<Vec<String>> = branches
        .iter()
        .map(|it| {
            let head = it.head.as_ref().map_or_else(|| "-".to_owned(), short_id);
            vec![
                it.branch.clone(),
                head,
                grouped(it.commits),
                grouped(it.staged),
                it.waiting.len().to_string(),
            ]
        })
        .collect();
    aligned(&["BRANCH", "HEAD", "COMMITS", "STAGED", "WAITING"], &rows)
}

pub(super) fn branch_text(it: &BranchInfo) -> String {
    let head = it.head.map_or_else(|| "none yet".to_owned(), |head| head.to_string());
    let waiting: Vec<String> = it.waiting.iter().map(ToString::to_string).collect();
    let sealed = match it.sealed_areas {
        0 => String::new(),
        areas => format!("; more in {} that the next commits take", counted(areas as u64, "sealed area")),
    };
    let rows = [
        ("branch", it.branch.clone()),
        ("head", head),
        ("commits", grouped(it.commits)),
        ("staged", format!("{} in area {}{sealed}", counted(it.staged, "path"), it.token)),
        ("waiting", waiting.join(", ")),
        ("trouble", it.trouble.clone().unwrap_or_default()),
        ("created", format!("{} ago ({})", age(&it.created_at), it.created_at)),
    ];
    lines(&rows)
}

fn lines(rows: &[(&str, String)]) -> String {
    let shown = rows.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

pub(super) fn entries_text(entries: &[EntryInfo], prefixes: &[String]) -> String {
    let folders = prefixes.iter().map(|prefix| (prefix.as_str(), "-".to_owned(), String::new()));
    let files = entries.iter().map(|it| {
        (it.path.as_str(), HumanBytes(it.size).to_string(), it.sha256.to_string()[..ID_DIGITS].to_owned())
    });
    let mut all: Vec<(&str, String, String)> = folders.chain(files).collect();
    all.sort();
    let width = all.iter().map(|(_, size, _)| size.len()).max().unwrap_or(0);
    all.iter().map(|(path, size, sha256)| format!("{size:>width$}  {sha256:<ID_DIGITS$}  {path}\n")).collect()
}

/// What a commit changed, in a few words.
pub(crate) fn changes_text(commit: &CommitInfo) -> String {
    let counts = &commit.counts;
    let mut text = format!(
        "{} ({}), {} added, {} changed, {} removed",
        counted_entries(counts.entries),
        HumanBytes(counts.bytes),
        grouped(counts.added),
        grouped(counts.changed),
        grouped(counts.removed)
    );
    if counts.conflicts > 0 {
        text.push_str(&format!(", {} given by several chunks", counted(counts.conflicts, "path")));
    }
    if commit.missing_chunks > 0 {
        text.push_str(&format!(", without {}", counted(commit.missing_chunks, "failed chunk")));
    }
    text
}

fn counted_entries(entries: u64) -> String {
    format!("{} {}", grouped(entries), if entries == 1 { "entry" } else { "entries" })
}

pub(super) fn commit_text(commit: &CommitInfo) -> String {
    let mut text = format!("commit {}\n", commit.id);
    let metadata: Vec<String> =
        commit.metadata.iter().map(|(field, value)| format!("{field}={value}")).collect();
    let missing: Vec<String> = commit.missing.iter().take(20).map(ToString::to_string).collect();
    let more = if commit.missing_chunks > 20 { ", …" } else { "" };
    let rows = [
        ("  at", format!("{} ago ({})", age(&commit.at), commit.at)),
        ("  message", commit.message.clone()),
        ("  holds", changes_text(commit)),
        ("  metadata", metadata.join(" ")),
        ("  submission", commit.submission.map(|id| id.to_string()).unwrap_or_default()),
        (
            "  missing",
            if missing.is_empty() { String::new() } else { format!("chunks {}{more}", missing.join(", ")) },
        ),
        ("  restores", commit.rolled_back_to.map(|id| id.to_string()).unwrap_or_default()),
    ];
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("{name:<12} {value}\n"));
    }
    text
}

/// What became of a request for a commit, behind that word.
pub(crate) fn outcome_text(outcome: &CommitOutcome) -> String {
    let reason = outcome.reason.as_deref().map(on_one_line);
    match (outcome.state, &outcome.commit) {
        (CommitProgress::Committed, Some(commit)) => format!("{}: {}", commit.id, changes_text(commit)),
        (CommitProgress::Aborted, _) => {
            format!("request {} was aborted: {}", outcome.request, reason.unwrap_or_default())
        }
        (CommitProgress::InProgress | CommitProgress::Committed, _) => match reason {
            Some(reason) => format!("request {} is tried again and again: {reason}", outcome.request),
            None => format!("request {} is in progress", outcome.request),
        },
    }
}

pub(super) fn diff_text(items: &[DiffInfo]) -> String {
    let line = |it: &DiffInfo| {
        let sign = match it.change {
            DiffKind::Added => '+',
            DiffKind::Changed => '~',
            DiffKind::Removed => '-',
        };
        let size = |entry: &Option<EntryInfo>| entry.as_ref().map(|entry| HumanBytes(entry.size).to_string());
        let sizes = match (size(&it.before), size(&it.after)) {
            (Some(before), Some(after)) => format!("{before} → {after}"),
            (before, after) => before.or(after).unwrap_or_default(),
        };
        format!("{sign} {}  ({sizes})\n", it.path)
    };
    items.iter().map(line).collect()
}
