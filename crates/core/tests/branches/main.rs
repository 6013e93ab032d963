//! The branches: all of a commit or nothing, exact after every restart, and never stuck.
//!
//! `model` says naively what each entry gives, `chooser` draws what is asked, `generator` stands for the one who makes the
//! files of commits; `sequences` says how to replay a seed that fails. `leader` tells the stories of `stories` and `outputs`,
//! and ends at every point in `crash`; `cost` counts what commands read and write.

mod chooser;
mod cost;
mod crash;
mod generator;
mod leader;
mod model;
mod outputs;
#[path = "../model/sequences.rs"]
mod sequences;
mod stories;

use chooser::Chooser;
use model::Model;
use std::cell::RefCell;
use std::collections::BTreeSet;
use windlass_core::audit;
use windlass_core::entry::{Command, Entry, EntryGroup, Outcome, Sent, Settled};
use windlass_core::machine::Machine;
use windlass_core::seeded::Seeded;
use windlass_core::tables::MemoryTables;

#[test]
fn the_branches_answer_as_the_naive_model_does() {
    let reached = RefCell::new(BTreeSet::new());
    sequences::run("the_branches_answer_as_the_naive_model_does", SEQUENCES, |seed| {
        let mut chance = Seeded::new(seed);
        let mut play = Play::new(chance.draw());
        for _ in 0..40 + chance.below(80) {
            play.step();
            if chance.below(15) == 0 {
                play.restart();
            }
            if chance.below(4) == 0 {
                play.compare_with_the_lazy_one();
            }
        }
        play.commits_are_in_order();
        play.sweep_all();
        play.model.garbage_is_exact(play.machine.tables(), &play.linked);
        let mut reached = reached.borrow_mut();
        reached.append(&mut play.reached);
        if seed + 1 == SEQUENCES {
            let missing = ANSWERS.iter().filter(|answer| !reached.contains(**answer));
            assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "chance reaches every answer");
        }
    });
}

const SEQUENCES: u64 = 3_000;

/// What the sequences must have met, so that a chooser who asks for less is noticed.
const ANSWERS: &[&str] = &[
    "stage Staged",
    "stage TokenStale",
    "stage ConditionFailed",
    "stage HeadMoved",
    "stage AddressNotGranted",
    "stage BranchUnknown",
    "stage IdempotencyKeyReused",
    "stage Malformed",
    "create_branch BranchSet",
    "create_branch BranchExists",
    "create_branch CommitUnknown",
    "delete_branch BranchDeleted",
    "reset_branch BranchSet",
    "grant Granted",
    "grant Malformed",
    "announce Announced",
    "announce CommitUnknown",
    "announce Malformed",
    "announce IdempotencyKeyReused",
    "note_files Noted",
    "note_files Committed",
    "note_files Aborted",
    "note_files RequestUnknown",
    "perform Committed",
    "perform Aborted",
    "perform NotItsTurn",
    "abort Aborted",
    "abort Committed",
    "sweep Swept",
    "complete SubmissionOver",
    "complete AlreadyDone",
    "complete NoSuchChunk",
    "complete Accepted",
    "fail AlreadyFailed",
    "fail Accepted",
    "cancel Cancelled",
    "cancel SubmissionOver",
    "retry_failed Retried",
    "retry_failed NothingFailed",
    "retry_failed Malformed",
    "lead Fenced",
    "stage Fenced",
    "perform of a submission Committed",
    "complete of what is sealed SubmissionOver",
    "retry_failed without chunks Retried",
];

/// A machine that is flushed after each entry, one that is flushed now and then, and the model of both.
struct Play {
    chooser: Chooser,
    machine: Machine<MemoryTables>,
    lazy: Machine<MemoryTables>,
    model: Model,
    /// Every address that an accepted command linked.
    linked: BTreeSet<String>,
    /// Commands and their answers.
    reached: BTreeSet<String>,
}

impl Play {
    fn new(seed: u64) -> Play {
        Play {
            chooser: Chooser::new(seed),
            machine: Machine::open(MemoryTables::default()),
            lazy: Machine::open(MemoryTables::default()),
            model: Model::default(),
            linked: BTreeSet::new(),
            reached: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        let entry = stored(self.chooser.next(&self.model, &self.machine));
        self.apply(&entry);
    }

    fn apply(&mut self, entry: &Entry) {
        let heads = self.heads();
        let was_sealed = self.is_sealed(&entry.command);
        let applied = self.machine.apply(entry.clone());
        let expected = self.model.apply(entry);
        assert_eq!(applied, expected, "after {entry:?}");
        assert_eq!(self.lazy.apply(entry.clone()), applied, "flushed or not, after {entry:?}");
        self.machine.flush();
        audit::check(&self.machine);
        self.model.agrees(&self.machine);
        assert_eq!(self.machine.replies(), self.model.replies.len() as u64, "after {entry:?}");
        let may_move_heads = matches!(entry.command, Command::Perform(_))
            || matches!(entry.command, Command::CreateBranch(_) | Command::DeleteBranch(_));
        assert!(may_move_heads || heads == self.heads(), "only a perform is seen, after {entry:?}");
        self.note_links(&entry.command, &applied.outcome);
        self.note_answer(&entry.command, &applied.outcome, was_sealed);
    }

    /// Whether it is about a submission whose commit waits.
    fn is_sealed(&self, command: &Command) -> bool {
        let Command::Complete(it) = command else { return false };
        self.machine.batch().submission(it.submission).is_some_and(|it| it.commit.is_some())
    }

    fn note_answer(&mut self, command: &Command, outcome: &Outcome, was_sealed: bool) {
        let answers: Vec<String> = match outcome {
            Outcome::Refused(refusal) => vec![first_word(refusal)],
            Outcome::Settled(settled) => settled.iter().map(first_word).collect(),
            other => vec![first_word(other)],
        };
        let what = if matches!(command, Command::Perform(it) if it.commit.submission.is_some()) {
            "perform of a submission"
        } else if was_sealed {
            "complete of what is sealed"
        } else if matches!(outcome, Outcome::Retried { chunks: 0 }) {
            "retry_failed without chunks"
        } else {
            command.name()
        };
        for answer in answers {
            self.reached.insert(format!("{what} {answer}"));
            self.reached.insert(format!("{} {answer}", command.name()));
        }
    }

    /// Commits lead from parent to parent without a gap, in the order in which they were announced.
    fn commits_are_in_order(&self) {
        for (name, branch) in self.machine.branches().iter() {
            let log = self.model.log(name);
            assert!(log.is_sorted_by(|one, next| one.request < next.request), "first come, first committed");
            let own = log.iter().rev().take_while(|commit| commit.branch == name).count() as u64;
            assert!(own >= branch.commits, "all commits of a branch lead to its head");
        }
    }

    fn heads(&self) -> Vec<(String, String)> {
        let branches = self.machine.branches().iter();
        branches.map(|(name, branch)| (name.to_owned(), format!("{:?}", branch.head))).collect()
    }

    fn note_links(&mut self, command: &Command, outcome: &Outcome) {
        if let (Command::Stage(it), Outcome::Staged { .. }) = (command, outcome) {
            let entries = it.changes.iter().filter_map(|change| change.entry.as_ref());
            self.linked.extend(entries.map(|entry| entry.address.clone()));
        }
        if let (Command::Complete(it), Outcome::Settled(settled)) = (command, outcome) {
            let accepted = it.done.iter().zip(settled).filter(|(_, it)| **it == Settled::Accepted);
            for (done, _) in accepted {
                let chunk = &self.model.submissions[&it.submission].chunks[done.chunk.0 as usize];
                let outputs = chunk.done.iter().flatten();
                self.linked.extend(outputs.map(|(_, entry)| entry.address.clone()));
            }
        }
    }

    /// The next process finds what is in the tables and nothing else.
    fn restart(&mut self) {
        let mut reopened = Machine::open(self.machine.tables().clone());
        audit::check(&reopened);
        reopened.flush();
        assert_eq!(reopened.tables(), self.machine.tables(), "opening changes no row");
        self.machine = reopened;
    }

    fn compare_with_the_lazy_one(&mut self) {
        self.lazy.flush();
        assert_eq!(self.lazy.tables(), self.machine.tables(), "same entries, same rows");
    }

    fn sweep_all(&mut self) {
        let entry = self.chooser.entry(self.model.epoch, Command::Sweep);
        self.apply(&entry);
        self.compare_with_the_lazy_one();
    }
}

fn first_word(answer: &impl std::fmt::Debug) -> String {
    format!("{answer:?}").chars().take_while(|it| it.is_alphanumeric()).collect()
}

/// The entry as the log gives it back.
fn stored(entry: Entry) -> Entry {
    let Entry { epoch, at, seed, sender, token, command } = entry;
    let group = EntryGroup { epoch, at, seed, sender, commands: vec![Sent { token, command }] };
    let bytes = group.to_bytes();
    let read = EntryGroup::from_bytes(&bytes).expect("what was written is read");
    assert_eq!(read.to_bytes(), bytes, "an entry is stored in one way only");
    read.into_entries().next().expect("the group has one entry")
}
