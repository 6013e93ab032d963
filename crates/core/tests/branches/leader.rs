//! The one who tells the stories: a machine with its reserver beside it, a log that it was fed from, and the contents that the
//! generator wrote.

use crate::generator::{Content, digest_of, generate};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::audit;
use windlass_core::batch::reserver::Reserver;
use windlass_core::batch::submissions::{Metadata, OnFailure, Submit};
use windlass_core::branches::commits::{Abort, Announce, CommitState, NoteFiles};
use windlass_core::branches::entries::{Digest, ObjectEntry};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::outputs::{OnChunkFailure, OutputEntry, OutputMode, OutputRule};
use windlass_core::branches::staging::{Condition, Grant, Granted, Stage, StageChange};
use windlass_core::branches::state::{AreaId, Branch, request_of, staged_of};
use windlass_core::branches::verify::Verify;
use windlass_core::entry::{
    Applied, Cancel, Command, Complete, Done, Entry, Fail, FailedAttempt, Lead, Outcome, Output, Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables};
use windlass_core::time::At;

pub(crate) struct Leader {
    pub(crate) machine: Machine<MemoryTables>,
    pub(crate) reserver: Reserver,
    pub(crate) is_audited: bool,
    /// Everything that was applied, and the rows before it.
    pub(crate) log: Vec<(Entry, MemoryTables)>,
    contents: BTreeMap<Digest, Content>,
    entries: u64,
}

impl Leader {
    /// The leader of a new machine, with a branch `main`.
    pub(crate) fn new() -> Leader {
        let mut leader = Leader {
            machine: Machine::open(MemoryTables::default()),
            reserver: Reserver::new(Epoch(0), [0; 16], 0, std::iter::empty()),
            is_audited: true,
            log: Vec::new(),
            contents: BTreeMap::new(),
            entries: 0,
        };
        leader.lead();
        leader.create("main");
        leader
    }

    /// The next leadership begins, in a process that knows what the rows say and nothing else.
    pub(crate) fn lead(&mut self) {
        let epoch = Epoch(self.machine.epoch().0 + 1);
        let entry = Entry { epoch, ..self.entry(Command::Lead(Lead { shard: Shard::default() })) };
        self.apply_entry(&entry);
        self.restart();
    }

    /// The process ends and begins anew.
    pub(crate) fn restart(&mut self) {
        self.machine = Machine::open(self.machine.tables().clone());
        let unsettled: Vec<_> = self.machine.unsettled().collect();
        let (epoch, key) = (self.machine.epoch(), self.machine.token_key());
        self.reserver = Reserver::new(epoch, key, 1, unsettled.into_iter());
        audit::check(&self.machine);
        audit::check_reserver(&self.machine, &self.reserver);
    }

    /// The process ends before its last rows are on disk, and is fed the end of the log again.
    pub(crate) fn crash_losing(&mut self, entries: usize) {
        let before = self.machine.tables().clone();
        let at = self.log.len().saturating_sub(entries);
        if let Some((_, tables)) = self.log.get(at) {
            self.machine = Machine::open(tables.clone());
            for (entry, _) in &self.log[at..] {
                self.machine.apply(entry.clone());
            }
            self.machine.flush();
        }
        assert_eq!(*self.machine.tables(), before, "the log's end gives the same rows again");
        self.restart();
    }

    pub(crate) fn entry(&mut self, command: Command) -> Entry {
        self.entries += 1;
        Entry {
            epoch: self.machine.epoch(),
            at: At::from_ms(1_750_000_000_000 + self.entries),
            seed: self.entries,
            sender: SenderId(1),
            token: ContinuationToken(self.entries),
            command,
        }
    }

    pub(crate) fn apply_entry(&mut self, entry: &Entry) -> Applied {
        if self.is_audited {
            self.log.push((entry.clone(), self.machine.tables().clone()));
        }
        let applied = self.machine.apply(entry.clone());
        self.machine.flush();
        for effect in &applied.effects {
            self.reserver.absorb(effect);
        }
        if self.is_audited {
            audit::check(&self.machine);
            audit::check_reserver(&self.machine, &self.reserver);
        }
        applied
    }

    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        let entry = self.entry(command);
        self.apply_entry(&entry)
    }

    pub(crate) fn answer(&mut self, command: Command) -> Outcome {
        self.apply(command).outcome
    }

    pub(crate) fn create(&mut self, name: &str) -> AreaId {
        let it = CreateBranch { name: name.into(), from: None, idempotency_key: None };
        match self.answer(Command::CreateBranch(it)) {
            Outcome::BranchSet { token } => token,
            other => panic!("the branch is created, and not answered with {other:?}"),
        }
    }

    pub(crate) fn branch(&self, name: &str) -> &Branch {
        self.machine.branches().get(name).expect("the branch is there")
    }

    pub(crate) fn grant(&mut self) -> String {
        match self.answer(Command::Grant(Grant { addresses: 1 })) {
            Outcome::Granted { grant, .. } => Granted { grant, nth: 0 }.address(),
            other => panic!("an address is granted, not {other:?}"),
        }
    }

    /// Puts a new object under a path, and gives its address.
    pub(crate) fn put(&mut self, branch: &str, path: &str) -> String {
        let address = self.grant();
        let stage = stage(branch, vec![putting(path, &address)]);
        let outcome = self.answer(Command::Stage(stage));
        assert_eq!(outcome, Outcome::Staged { token: self.branch(branch).open });
        address
    }

    pub(crate) fn announce(&mut self, branch: &str) -> SubmissionId {
        self.announce_so(announce(branch))
    }

    pub(crate) fn announce_so(&mut self, it: Announce) -> SubmissionId {
        match self.answer(Command::Announce(it)) {
            Outcome::Announced { request, .. } => request,
            other => panic!("the commit waits, and is not answered with {other:?}"),
        }
    }

    /// What the generator makes of a request now.
    pub(crate) fn generated(&self, request: SubmissionId, page: usize) -> Result<Command, String> {
        let content = |id: Digest| self.contents[&id].clone();
        generate(&self.machine, request, content, page).map(Command::Perform)
    }

    /// Generates the commit and makes it visible.
    pub(crate) fn perform(&mut self, request: SubmissionId) -> Applied {
        match self.generated(request, 3) {
            Ok(command) => self.perform_so(command),
            Err(reason) => self.apply(Command::Abort(Abort { request, reason })),
        }
    }

    pub(crate) fn perform_so(&mut self, command: Command) -> Applied {
        let Command::Perform(it) = &command else { panic!("only a perform is performed") };
        let (id, request) = (it.id, it.commit.request);
        let entry = self.entry(command);
        let content = self.content_of(request);
        let applied = self.apply_entry(&entry);
        if applied.outcome == (Outcome::Committed { commit: id }) {
            self.contents.entry(id).or_insert_with(|| content.expect("what is committed waited"));
        }
        applied
    }

    /// What the files hold that the generator wrote for a request.
    fn content_of(&self, request: SubmissionId) -> Option<Content> {
        let row = request_of(self.machine.tables(), request)?;
        let head = self.machine.branches().get(&row.branch)?.head;
        let parent = head.map(|head| self.contents[&head].clone()).unwrap_or_default();
        (row.state == CommitState::InProgress).then(|| {
            crate::generator::content(&self.machine, &row, parent, |id| self.contents[&id].clone(), 100).0
        })
    }

    pub(crate) fn commit(&mut self, branch: &str) -> Digest {
        let request = self.announce(branch);
        self.committed(request)
    }

    pub(crate) fn committed(&mut self, request: SubmissionId) -> Digest {
        match self.perform(request).outcome {
            Outcome::Committed { commit } => commit,
            other => panic!("it is committed, and not answered with {other:?}"),
        }
    }

    /// What a reader of the head sees: path → address.
    pub(crate) fn seen(&self, branch: &str) -> BTreeMap<String, String> {
        let head = self.branch(branch).head;
        let content = head.map(|head| self.contents[&head].clone()).unwrap_or_default();
        content.into_iter().map(|(path, entry)| (path, entry.address)).collect()
    }

    pub(crate) fn state_of(&self, request: SubmissionId) -> CommitState {
        request_of(self.machine.tables(), request).expect("a request is known forever").state
    }

    pub(crate) fn submit(&mut self, chunks: u64, rule: OutputRule) -> SubmissionId {
        let on_failure = match rule.on_chunk_failure {
            OnChunkFailure::Abort => OnFailure::Stop,
            OnChunkFailure::CommitWithout => OnFailure::Continue,
        };
        let submit = Submit { output: Some(rule), attempts_max: 1, on_failure, ..Submit::new(chunks) };
        match self.answer(Command::Submit(submit)) {
            Outcome::Submitted { submission } => submission,
            other => panic!("the submission is taken in, and not answered with {other:?}"),
        }
    }

    /// Reports a chunk as done by its first attempt, with one object for each path.
    pub(crate) fn complete(&mut self, submission: SubmissionId, chunk: u64, paths: &[&str]) -> Settled {
        self.settled(Command::Complete(completing(submission, chunk, 0, paths)))
    }

    pub(crate) fn fail(&mut self, submission: SubmissionId, chunk: u64) -> Settled {
        let failed =
            vec![FailedAttempt { chunk: ChunkIndex(chunk), attempt: attempt(0), reason: "it broke".into() }];
        self.settled(Command::Fail(Fail { submission, failed }))
    }

    pub(crate) fn settled(&mut self, command: Command) -> Settled {
        match self.answer(command) {
            Outcome::Settled(settled) => settled[0],
            other => panic!("the chunk is settled, and not answered with {other:?}"),
        }
    }

    pub(crate) fn cancel(&mut self, submission: SubmissionId) -> Applied {
        self.apply(Command::Cancel(Cancel { submission }))
    }

    /// The request for the commit of a submission that runs.
    pub(crate) fn request_of(&self, submission: SubmissionId) -> SubmissionId {
        let submission = self.machine.batch().submission(submission).expect("it runs");
        submission.commit.expect("all of its chunks are settled")
    }

    pub(crate) fn note(&mut self, request: SubmissionId, file: &str) -> Outcome {
        self.answer(Command::NoteFiles(NoteFiles { request, addresses: vec![file.into()] }))
    }

    pub(crate) fn reset(&mut self, name: &str) -> Outcome {
        self.answer(Command::ResetBranch(NameBranch { name: name.into() }))
    }

    pub(crate) fn delete(&mut self, name: &str) -> Applied {
        self.apply(Command::DeleteBranch(NameBranch { name: name.into() }))
    }

    pub(crate) fn sweep(&mut self) {
        while self.answer(Command::Sweep) != (Outcome::Swept { areas: 0 }) {}
    }

    /// Does what a new leader finds to do: commits what waits, and sweeps.
    pub(crate) fn finish(&mut self) {
        let names: Vec<String> = self.machine.branches().iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            while let Some(waiting) = self.branch(&name).queue.first().copied() {
                self.perform(waiting.request);
            }
        }
        self.sweep();
    }

    pub(crate) fn garbage(&self) -> BTreeSet<String> {
        let rows = self.machine.tables().scan_prefix(Table::Garbage, &[]);
        rows.map(|(key, _)| String::from_utf8(key).expect("an address is text")).collect()
    }

    pub(crate) fn staged(&self) -> Vec<(String, Option<ObjectEntry>)> {
        self.machine.tables().scan_prefix(Table::Staged, &[]).map(|row| staged_of(&row)).collect()
    }

    /// Whether a commit or a staged entry leads to an object.
    pub(crate) fn is_led_to(&self, address: &str) -> bool {
        let committed = self.contents.values().flat_map(BTreeMap::values);
        committed.into_iter().any(|entry| entry.address == address)
            || self.staged().iter().any(|(_, it)| it.as_ref().is_some_and(|it| it.address == address))
    }
}

pub(crate) fn attempt(nth: u64) -> Attempt {
    Attempt { epoch: Epoch(1), nth }
}

pub(crate) fn completing(submission: SubmissionId, chunk: u64, nth: u64, paths: &[&str]) -> Complete {
    let entries = (0..).zip(paths).map(|(object, path)| OutputEntry {
        path: (*path).into(),
        object,
        size: 1,
        sha256: digest_of(path.as_bytes()),
        content_type: String::new(),
        metadata: BTreeMap::new(),
    });
    let entries = Some(entries.collect());
    let done = Done { chunk: ChunkIndex(chunk), attempt: attempt(nth), output: Output::Nothing, entries };
    Complete { submission, done: vec![done] }
}

pub(crate) fn putting(path: &str, address: &str) -> StageChange {
    let entry = ObjectEntry {
        address: address.into(),
        size: 1,
        sha256: digest_of(address.as_bytes()),
        content_type: String::new(),
        metadata: BTreeMap::new(),
        made_by: None,
    };
    StageChange { path: path.into(), entry: Some(entry), condition: Condition::None, in_head: None }
}

pub(crate) fn stage(branch: &str, changes: Vec<StageChange>) -> Stage {
    Stage { branch: branch.into(), token: None, changes, head: None, idempotency_key: None }
}

pub(crate) fn announce(branch: &str) -> Announce {
    Announce {
        branch: branch.into(),
        rollback_to: None,
        message: String::new(),
        metadata: Metadata::new(),
        verify: Verify::default(),
        if_changed: false,
        if_parent: None,
        idempotency_key: None,
    }
}

pub(crate) fn rule(mode: OutputMode, on_chunk_failure: OnChunkFailure) -> OutputRule {
    OutputRule { branch: "main".into(), mode, on_chunk_failure, verify: Verify::default() }
}

pub(crate) fn append() -> OutputRule {
    rule(OutputMode::Append, OnChunkFailure::Abort)
}
