//! What is asked of the branches, by chance: mostly sensible, often late, repeated or wrong.

use crate::generator::{Content, digest_of, generate};
use crate::model::Model;
use std::collections::BTreeMap;
use windlass_core::batch::submissions::{Metadata, OnFailure, SubmissionState, Submit};
use windlass_core::branches::commits::{Abort, Announce, CommitState, NoteFiles};
use windlass_core::branches::entries::{Digest, ObjectEntry};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::outputs::{OnChunkFailure, OutputEntry, OutputMode, OutputRule};
use windlass_core::branches::staging::{Condition, Grant, Granted, Stage, StageChange};
use windlass_core::branches::verify::Verify;
use windlass_core::entry::{
    Cancel, Command, Complete, Done, Entry, Fail, FailedAttempt, Lead, Output, RetryFailed,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;
use windlass_core::time::At;

const BRANCHES: [&str; 3] = ["main", "side", "feeds/nl"];
const PATHS: [&str; 7] = ["a", "a/b", "a/b/c", "b", "b/ä", "b\u{308}", "zz"];

/// Draws entries.
pub(crate) struct Chooser {
    chance: Seeded,
    at: u64,
    tokens: [u64; 3],
    /// Everything that was asked, for asking it again.
    asked: Vec<Entry>,
    /// Commits that were generated and not sent yet.
    held: Vec<Command>,
}

impl Chooser {
    pub(crate) fn new(seed: u64) -> Chooser {
        let chance = Seeded::new(seed);
        Chooser { chance, at: 1_750_000_000_000, tokens: [0; 3], asked: Vec::new(), held: Vec::new() }
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.chance.below(times) == 0
    }

    fn pick<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let from: Vec<T> = from.into_iter().collect();
        let place = self.chance.below(from.len().max(1) as u64);
        from.get(usize::try_from(place).expect("it is a place")).cloned()
    }

    /// What is asked next.
    pub(crate) fn next(&mut self, model: &Model, machine: &Machine<MemoryTables>) -> Entry {
        if model.epoch == Epoch(0) {
            return self.entry(Epoch(1), Command::Lead(Lead { shard: Shard::default() }));
        }
        if self.one_in(12)
            && let Some(again) = self.pick(self.asked.clone())
        {
            let again_now = Entry { epoch: model.epoch, ..again.clone() };
            let is_lead = matches!(again.command, Command::Lead(_));
            return if is_lead || self.one_in(4) { again } else { again_now };
        }
        if self.one_in(40) {
            let shard = Shard::new(self.chance.below(1_024) as u16).expect("it fits ten bits");
            return self.entry(Epoch(model.epoch.0 + 1), Command::Lead(Lead { shard }));
        }
        let command = self.command(model, machine);
        self.entry(model.epoch, command)
    }

    pub(crate) fn entry(&mut self, epoch: Epoch, command: Command) -> Entry {
        self.at += self.chance.below(3);
        let sender = self.chance.below(2);
        let token = &mut self.tokens[sender as usize];
        *token += 1;
        // Now and then the token of an earlier request comes with something else.
        let reused = if self.chance.below(30) == 0 { 1 + self.chance.below(*token) } else { *token };
        let entry = Entry {
            epoch,
            at: At::from_ms(self.at),
            seed: self.chance.draw(),
            sender: SenderId(sender),
            token: ContinuationToken(reused),
            command,
        };
        self.asked.push(entry.clone());
        entry
    }

    fn command(&mut self, model: &Model, machine: &Machine<MemoryTables>) -> Command {
        match self.chance.below(100) {
            0..6 => Command::CreateBranch(CreateBranch {
                name: self.branch(),
                from: if self.one_in(2) { self.commit(model) } else { None },
                idempotency_key: self.key(),
            }),
            6..8 => Command::DeleteBranch(NameBranch { name: self.branch() }),
            8..11 => Command::ResetBranch(NameBranch { name: self.branch() }),
            11..18 => Command::Grant(Grant { addresses: self.chance.below(4) as u32 }),
            18..39 => self.stage(model),
            39..50 => self.announce(model),
            50..54 => self.note_files(model),
            54..71 => self.perform(model, machine),
            71..74 => self.abort(model),
            74..78 => Command::Sweep,
            78..83 => self.submit(),
            83..92 => self.complete(model),
            92..96 => self.fail(model),
            96..98 => Command::Cancel(Cancel { submission: self.submission(model) }),
            _ => Command::RetryFailed(RetryFailed { submission: self.submission(model) }),
        }
    }

    fn branch(&mut self) -> String {
        let name = self.pick(BRANCHES).expect("there are names");
        if self.one_in(60) { format!("no/{name}/..") } else { name.to_owned() }
    }

    fn path(&mut self) -> String {
        self.pick(PATHS).expect("there are paths").to_owned()
    }

    fn commit(&mut self, model: &Model) -> Option<Digest> {
        let unknown = self.one_in(10).then(|| digest_of(b"no commit"));
        unknown.or_else(|| self.pick(model.commits.keys().copied()))
    }

    fn key(&mut self) -> Option<String> {
        self.one_in(8).then(|| format!("key {}", self.chance.below(6)))
    }

    fn id(&mut self) -> SubmissionId {
        SubmissionId::from_u64(1 + self.chance.below(9)).expect("it is an id")
    }

    fn submission(&mut self, model: &Model) -> SubmissionId {
        let running = |it: &&SubmissionId| model.submissions[*it].state == SubmissionState::Running;
        let any = self.pick(model.submissions.keys().copied());
        let runs = self.pick(model.submissions.keys().filter(running).copied());
        let unknown = self.id();
        if self.one_in(3) { any.unwrap_or(unknown) } else { runs.or(any).unwrap_or(unknown) }
    }

    fn stage(&mut self, model: &Model) -> Command {
        let name = self.branch();
        let branch = model.branches.get(&name);
        let head = branch.and_then(|branch| branch.head);
        let content = head.map(|head| model.commits[&head].1.clone()).unwrap_or_default();
        let count = 1 + self.chance.below(3);
        let changes = (0..count).map(|_| self.change(model, &content)).collect();
        let old = model.branches.values().flat_map(|branch| branch.areas.iter().map(|(area, _)| *area));
        let token = match self.chance.below(5) {
            0 | 1 => branch.map(|branch| branch.open().0),
            2 => self.pick(old),
            _ => None,
        };
        // Sometimes the leader looked into an earlier head.
        let head = if self.one_in(8) { self.commit(model) } else { head };
        Command::Stage(Stage { branch: name, token, changes, head, idempotency_key: self.key() })
    }

    fn change(&mut self, model: &Model, content: &Content) -> StageChange {
        let path = if self.one_in(60) { "a/../b".to_owned() } else { self.path() };
        let in_head = content.get(&path).map(|entry| entry.sha256);
        let condition = match self.chance.below(8) {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Is(in_head.unwrap_or_else(|| self.small_digest())),
            3 => Condition::Is(self.small_digest()),
            _ => Condition::None,
        };
        let entry = (!self.one_in(5)).then(|| {
            let address = self.address(model);
            let sha256 = self.small_digest();
            ObjectEntry {
                address,
                size: self.chance.below(1_000),
                sha256,
                content_type: String::new(),
                metadata: BTreeMap::new(),
                made_by: None,
            }
        });
        StageChange { path, entry, condition, in_head }
    }

    fn small_digest(&mut self) -> Digest {
        Digest::new([self.chance.below(4) as u8; 32])
    }

    /// Mostly one that is free.
    fn address(&mut self, model: &Model) -> String {
        let all = model.grants.iter().flat_map(|(grant, linked)| {
            (0..).zip(linked).map(|(nth, is_linked)| (Granted { grant: *grant, nth }, *is_linked))
        });
        let all: Vec<(Granted, bool)> = all.collect();
        if self.one_in(15) {
            return format!("staged/{:016X}/{}", 10 + self.chance.below(9), self.chance.below(3));
        }
        let wants_free = !self.one_in(12);
        let found = all.into_iter().filter(|(_, is_linked)| *is_linked != wants_free);
        let granted = self.pick(found).map(|(granted, _)| granted);
        granted.map_or_else(|| "staged/0000000000000001/0".to_owned(), Granted::address)
    }

    fn announce(&mut self, model: &Model) -> Command {
        let name = self.branch();
        let head = model.branches.get(&name).and_then(|branch| branch.head);
        Command::Announce(Announce {
            branch: name,
            rollback_to: if self.one_in(6) { self.commit(model) } else { None },
            message: format!("message {}", self.chance.below(3)),
            metadata: Metadata::new(),
            verify: Verify::default(),
            if_changed: self.one_in(3),
            if_parent: if self.one_in(6) { head } else { None },
            idempotency_key: self.key(),
        })
    }

    fn request(&mut self, model: &Model) -> SubmissionId {
        let waits = |it: &&SubmissionId| model.requests[*it].row.state == CommitState::InProgress;
        let any = self.pick(model.requests.keys().copied());
        let waiting = self.pick(model.requests.keys().filter(waits).copied());
        let unknown = self.id();
        if self.one_in(4) { any.unwrap_or(unknown) } else { waiting.or(any).unwrap_or(unknown) }
    }

    fn note_files(&mut self, model: &Model) -> Command {
        let addresses = (0..self.chance.below(3)).map(|_| format!("ranges/{}", self.chance.below(5)));
        let addresses = addresses.collect();
        Command::NoteFiles(NoteFiles { request: self.request(model), addresses })
    }

    fn abort(&mut self, model: &Model) -> Command {
        let reason = if self.one_in(5) { "ä".repeat(3_000) } else { "a check said no".to_owned() };
        Command::Abort(Abort { request: self.request(model), reason })
    }

    /// Mostly the commit that is due; some are sent late, and some were never due.
    fn perform(&mut self, model: &Model, machine: &Machine<MemoryTables>) -> Command {
        if self.one_in(5)
            && let Some(held) = self.pick(self.held.clone())
        {
            return held;
        }
        let waiting = model.branches.values().filter_map(|branch| branch.queue.first().copied());
        let any = model.branches.values().flat_map(|branch| branch.queue.iter().copied());
        let any: Vec<SubmissionId> = any.collect();
        let request = if self.one_in(6) { self.pick(any) } else { self.pick(waiting) };
        let Some(request) = request else { return self.announce(model) };
        let page = 1 + self.chance.below(7) as usize;
        let content = |id: Digest| model.commits[&id].1.clone();
        let command = match generate(machine, request, content, page) {
            Ok(perform) => Command::Perform(perform),
            Err(reason) => Command::Abort(Abort { request, reason }),
        };
        if self.one_in(6) {
            self.held.push(command.clone());
        }
        command
    }

    fn submit(&mut self) -> Command {
        let mode = match self.chance.below(4) {
            0 => OutputMode::Exact,
            1 => OutputMode::Replace("b".into()),
            _ => OutputMode::Append,
        };
        let is_without = self.one_in(3);
        let on_chunk_failure = if is_without { OnChunkFailure::CommitWithout } else { OnChunkFailure::Abort };
        let rule = OutputRule { branch: self.branch(), mode, on_chunk_failure, verify: Verify::default() };
        let goes_on = is_without || self.one_in(2);
        Command::Submit(Submit {
            output: (!self.one_in(6)).then_some(rule),
            on_failure: if goes_on { OnFailure::Continue } else { OnFailure::Stop },
            attempts_max: 1 + self.chance.below(2) as u32,
            idempotency_key: self.key(),
            ..Submit::new(1 + self.chance.below(3))
        })
    }

    fn attempt(&mut self) -> Attempt {
        Attempt { epoch: Epoch(1), nth: self.chance.below(4) }
    }

    fn complete(&mut self, model: &Model) -> Command {
        let submission = self.submission(model);
        let count = 1 + self.chance.below(3);
        let done = (0..count).map(|_| Done {
            chunk: ChunkIndex(self.chance.below(20) % 4),
            attempt: self.attempt(),
            output: Output::Nothing,
            entries: if self.one_in(5) { None } else { Some(self.entries()) },
        });
        Command::Complete(Complete { submission, done: done.collect() })
    }

    fn entries(&mut self) -> Vec<OutputEntry> {
        let mut entries: Vec<OutputEntry> = Vec::new();
        for object in 0..self.chance.below(3) as u32 {
            let path = self.path();
            // Rarely one path is named twice, which is refused.
            if entries.iter().all(|entry| entry.path != path) || self.one_in(10) {
                entries.push(OutputEntry {
                    path,
                    object,
                    size: self.chance.below(1_000),
                    sha256: self.small_digest(),
                    content_type: "text/plain".into(),
                    metadata: BTreeMap::new(),
                });
            }
        }
        entries
    }

    fn fail(&mut self, model: &Model) -> Command {
        let submission = self.submission(model);
        let count = 1 + self.chance.below(2);
        let failed = (0..count).map(|_| FailedAttempt {
            chunk: ChunkIndex(self.chance.below(20) % 4),
            attempt: self.attempt(),
            reason: "it broke".into(),
        });
        Command::Fail(Fail { submission, failed: failed.collect() })
    }
}
