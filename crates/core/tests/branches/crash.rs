//! Crash points: the process ends at every step of a commit, with and without somebody giving it up there. Nothing that was
//! acknowledged is lost, no area is orphaned, and every request ends as committed or aborted.

use crate::leader::{Leader, append};
use windlass_core::branches::commits::{Abort, CommitState};
use windlass_core::entry::{Command, Outcome};
use windlass_core::ids::SubmissionId;
use windlass_core::tables::{Table, Tables};

/// One step on the way to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Something is staged, or a chunk is done that is not the last one.
    Stage,
    /// The commit is asked for, or the last chunk is done.
    Announce,
    /// A file is noted before it is written.
    Note(&'static str),
    /// Somebody else goes on staging meanwhile.
    GoOn,
    /// The commit becomes visible.
    Perform,
    /// Rows of dropped areas are removed.
    Sweep,
}

const STEPS: [Step; 8] = [
    Step::Stage,
    Step::Stage,
    Step::Announce,
    Step::Note("ranges/1"),
    Step::GoOn,
    Step::Note("ranges/2"),
    Step::Perform,
    Step::Sweep,
];

/// What somebody does at the point where the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Abort,
    Cancel,
    Reset,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Staged,
    Submission,
}

struct Walk {
    leader: Leader,
    kind: Kind,
    submission: Option<SubmissionId>,
    request: Option<SubmissionId>,
    /// Addresses of what was acknowledged.
    acknowledged: Vec<String>,
}

#[test]
fn a_process_that_ends_at_any_point_of_a_commit_loses_nothing_and_leaves_nothing_behind() {
    for kind in [Kind::Staged, Kind::Submission] {
        for meanwhile in
            [Meanwhile::Nothing, Meanwhile::Abort, Meanwhile::Cancel, Meanwhile::Reset, Meanwhile::Delete]
        {
            for point in 0..=STEPS.len() {
                for lost in 0..4 {
                    walk(kind, meanwhile, point, lost);
                }
            }
        }
    }
}

fn walk(kind: Kind, meanwhile: Meanwhile, point: usize, lost: usize) {
    let story = format!("{kind:?}, {meanwhile:?} at {point}, {lost} entries lost from the disk");
    let mut walk =
        Walk { leader: Leader::new(), kind, submission: None, request: None, acknowledged: Vec::new() };
    walk.begin();
    for step in &STEPS[..point] {
        walk.take(*step);
    }
    let seen = walk.leader.seen("main");
    walk.leader.crash_losing(lost);
    assert_eq!(walk.leader.seen("main"), seen, "{story}");
    walk.meanwhile(meanwhile);
    walk.leader.crash_losing(lost);
    let is_gone = walk.leader.machine.branches().get("main").is_none();
    if !is_gone {
        for step in &STEPS[point..] {
            walk.take(*step);
        }
    }
    walk.leader.lead();
    walk.leader.finish();
    walk.check(&story, is_gone);
}

impl Walk {
    /// There is a first commit, so that there is something to lose.
    fn begin(&mut self) {
        let first = self.leader.put("main", "first");
        self.acknowledged.push(first);
        self.leader.commit("main");
        if self.kind == Kind::Submission {
            self.submission = Some(self.leader.submit(3, append()));
        }
    }

    fn take(&mut self, step: Step) {
        match (step, self.kind) {
            (Step::Stage, Kind::Staged) => {
                let path = format!("path {}", self.acknowledged.len() % 2);
                let address = self.leader.put("main", &path);
                self.acknowledged.push(address);
            }
            (Step::GoOn, _) => {
                let address = self.leader.put("main", "path 0");
                self.acknowledged.push(address);
            }
            (Step::Stage, Kind::Submission) => self.complete(self.acknowledged.len() as u64 - 1),
            (Step::Announce, Kind::Staged) => self.request = Some(self.leader.announce("main")),
            (Step::Announce, Kind::Submission) => {
                self.complete(2);
                let submission = self.submission.expect("it was submitted");
                let running = self.leader.machine.batch().submission(submission);
                self.request = running.and_then(|it| it.commit);
            }
            (Step::Note(file), _) => {
                if let Some(request) = self.request {
                    self.leader.note(request, file);
                }
            }
            (Step::Perform, _) => {
                let is_due = |leader: &Leader, request| leader.state_of(request) == CommitState::InProgress;
                if let Some(request) = self.request.filter(|request| is_due(&self.leader, *request)) {
                    self.leader.committed(request);
                }
            }
            (Step::Sweep, _) => self.leader.sweep(),
        }
    }

    fn complete(&mut self, chunk: u64) {
        let submission = self.submission.expect("it was submitted");
        let path = format!("path {}", chunk % 2);
        let command = crate::leader::completing(submission, chunk, 0, &[&path]);
        let address = windlass_core::branches::outputs::output_address(
            submission,
            command.done[0].chunk,
            command.done[0].attempt,
            Some(0),
        );
        let settled = self.leader.settled(Command::Complete(command));
        if settled == windlass_core::entry::Settled::Accepted {
            self.acknowledged.push(address);
        }
    }

    fn meanwhile(&mut self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Abort => {
                if let Some(request) = self.request {
                    self.leader.apply(Command::Abort(Abort { request, reason: "it is not wanted".into() }));
                }
            }
            Meanwhile::Cancel => {
                if let Some(submission) = self.submission {
                    self.leader.cancel(submission);
                }
            }
            Meanwhile::Reset => {
                let outcome = self.leader.reset("main");
                assert!(matches!(outcome, Outcome::BranchSet { .. }));
            }
            Meanwhile::Delete => drop(self.leader.delete("main")),
        }
    }

    fn check(&self, story: &str, is_gone: bool) {
        let (leader, tables) = (&self.leader, self.leader.machine.tables());
        if let Some(request) = self.request {
            assert_ne!(leader.state_of(request), CommitState::InProgress, "{story}");
        }
        let garbage = leader.garbage();
        for address in &self.acknowledged {
            let (is_led_to, is_garbage) = (leader.is_led_to(address), garbage.contains(address));
            assert!(is_led_to != is_garbage, "{story}: {address} led to {is_led_to}, garbage {is_garbage}");
        }
        assert!(leader.machine.branches().dropped().is_empty(), "{story}");
        assert_eq!(tables.scan_prefix(Table::Generated, &[]).count(), 0, "{story}: no file is forgotten");
        // What is staged is what somebody can still reach: of the branch, or of a submission that can be retried.
        let areas = |key: &[u8]| SubmissionId::from_key(key).expect("a staged row begins with its area");
        for (key, _) in tables.scan_prefix(Table::Staged, &[]) {
            let is_of_branch =
                leader.machine.branches().iter().any(|(_, it)| it.areas().any(|area| area.0 == areas(&key)));
            let is_of_submission = Some(areas(&key)) == self.submission;
            assert!(is_of_branch || is_of_submission, "{story}: a row of an area that nobody knows");
        }
        if !is_gone {
            let seen = leader.seen("main");
            assert!(seen.contains_key("first"), "{story}: what was committed stays");
        }
    }
}
