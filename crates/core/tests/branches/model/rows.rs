//! What the tables should hold, compared row by row with what they do hold.

use super::Model;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::branches::commits::Commit;
use windlass_core::branches::entries::ObjectEntry;
use windlass_core::branches::staging::GrantRow;
use windlass_core::branches::state::{AreaId, Branch, Waiting, commit_of, request_of, staged_key, staged_of};
use windlass_core::ids::SubmissionId;
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables};

type Staged = BTreeMap<Vec<u8>, (String, Option<ObjectEntry>)>;

impl Model {
    /// Checks that the tables hold what the model knows, and nothing else.
    pub(crate) fn agrees(&self, machine: &Machine<MemoryTables>) {
        let tables = machine.tables();
        let branches: Vec<(&str, Branch)> =
            self.branches.keys().map(|name| (name.as_str(), self.branch_row(name))).collect();
        let found: Vec<(&str, Branch)> =
            machine.branches().iter().map(|(name, branch)| (name, branch.clone())).collect();
        assert_eq!(found, branches, "branches");
        self.staged_agrees(machine);

        for (id, (commit, _)) in &self.commits {
            assert_eq!(commit_of(tables, *id).as_ref(), Some(commit), "commits");
        }
        assert_eq!(count(tables, Table::Commits), self.commits.len(), "commits");
        let mut files = BTreeSet::new();
        for (id, request) in &self.requests {
            assert_eq!(request_of(tables, *id).as_ref(), Some(&request.row), "requests");
            files.extend(request.files.iter().map(|file| [&id.key(), file.as_bytes()].concat()));
        }
        assert_eq!(count(tables, Table::CommitRequests), self.requests.len(), "requests");
        let noted: BTreeSet<Vec<u8>> =
            tables.scan_prefix(Table::Generated, &[]).map(|(key, _)| key).collect();
        assert_eq!(noted, files, "noted files");
        let garbage: BTreeSet<String> = tables.scan_prefix(Table::Garbage, &[]).map(text_of_key).collect();
        assert_eq!(garbage, self.garbage, "garbage");
        self.grants_agree(tables);
    }

    fn branch_row(&self, name: &str) -> Branch {
        let branch = &self.branches[name];
        let (open, entries) = branch.open();
        let sealed = &branch.areas[..branch.areas.len() - 1];
        let waiting = |request: &SubmissionId| Waiting { request: *request, through: self.through(*request) };
        Branch {
            created_at: branch.created_at,
            head: branch.head,
            open: *open,
            staged: entries.len() as u64,
            sealed: sealed.iter().map(|(area, _)| *area).collect(),
            queue: branch.queue.iter().map(waiting).collect(),
            commits: branch.commits,
        }
    }

    fn staged_agrees(&self, machine: &Machine<MemoryTables>) {
        let mut expected = Staged::new();
        for (area, entries) in self.branches.values().flat_map(|branch| &branch.areas) {
            for (path, entry) in entries {
                expected.insert(staged_key(*area, path, None), (path.clone(), entry.clone()));
            }
        }
        for (id, handed) in self.submissions.iter().filter(|(_, handed)| !handed.is_dropped) {
            for (chunk, (path, entry)) in (0..)
                .zip(&handed.chunks)
                .flat_map(|(chunk, it)| it.done.iter().flatten().map(move |output| (chunk, output.clone())))
            {
                expected.insert(staged_key(AreaId(*id), &path, Some(chunk)), (path, Some(entry)));
            }
        }
        assert!(machine.branches().dropped().iter().eq(self.dropped.keys()), "dropped areas");
        let is_dropped = |key: &[u8]| {
            let area = AreaId(SubmissionId::from_key(key).expect("a staged row begins with its area"));
            self.dropped.contains_key(&area)
        };
        let rows = machine.tables().scan_prefix(Table::Staged, &[]);
        let found: Staged =
            rows.filter(|(key, _)| !is_dropped(key)).map(|row| (row.0.clone(), staged_of(&row))).collect();
        assert_eq!(found, expected, "staged entries");
    }

    fn grants_agree(&self, tables: &MemoryTables) {
        let mut found = BTreeMap::new();
        for (key, row) in tables.scan_prefix(Table::Grants, &[]) {
            let row: GrantRow = minicbor::decode(&row).expect("a grant's row decodes");
            let is_linked = |nth: u32| row.linked[nth as usize / 8] & (1 << (nth % 8)) != 0;
            let bits: Vec<bool> = (0..row.addresses).map(is_linked).collect();
            found.insert(SubmissionId::from_key(&key).expect("a grant's row has its id as key"), bits);
        }
        let open = self.grants.iter().filter(|(_, linked)| linked.contains(&false));
        assert!(found.iter().eq(open), "grants: {found:?}");
    }

    /// Every object that a commit or a staged entry leads to.
    fn led_to(&self) -> BTreeSet<&str> {
        let committed = self.commits.values().flat_map(|(_, content)| content.values());
        let areas = self.branches.values().flat_map(|branch| &branch.areas);
        let staged = areas.flat_map(|(_, entries)| entries.values().flatten());
        let kept = self.submissions.values().filter(|handed| !handed.is_dropped);
        let outputs = kept.flat_map(|handed| handed.chunks.iter().filter_map(|chunk| chunk.done.as_ref()));
        let outputs = outputs.flatten().map(|(_, entry)| entry);
        committed.chain(staged).chain(outputs).map(|entry| entry.address.as_str()).collect()
    }

    /// Checks the garbage after everything is swept, against a naive mark and sweep: every object that was ever linked is
    /// led to or garbage, and none is both.
    pub(crate) fn garbage_is_exact(&self, tables: &MemoryTables, linked: &BTreeSet<String>) {
        let led_to = self.led_to();
        let garbage: BTreeSet<String> = tables.scan_prefix(Table::Garbage, &[]).map(text_of_key).collect();
        for address in linked {
            let (is_led_to, is_garbage) = (led_to.contains(address.as_str()), garbage.contains(address));
            assert!(is_led_to != is_garbage, "{address}: led to {is_led_to}, garbage {is_garbage}");
        }
        assert!(self.dropped.is_empty(), "everything is swept");
    }

    /// The commits of a branch, oldest first, as its head's parents lead to them.
    pub(crate) fn log(&self, branch: &str) -> Vec<&Commit> {
        let mut commits = Vec::new();
        let mut next = self.branches[branch].head;
        while let Some(id) = next {
            let (commit, _) = &self.commits[&id];
            commits.push(commit);
            next = commit.parent;
        }
        commits.reverse();
        commits
    }
}

fn count(tables: &MemoryTables, table: Table) -> usize {
    tables.scan_prefix(table, &[]).count()
}

fn text_of_key((key, _): (Vec<u8>, Vec<u8>)) -> String {
    String::from_utf8(key).expect("an address is text")
}
