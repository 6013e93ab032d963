//! Cost: what a command reads and writes does not grow with how many branches, areas of others, commits and staged entries
//! there are. Counted, not timed.

use crate::generator::{digest_of, generate};
use crate::leader::{announce, append, completing, putting, stage};
use std::cell::Cell;
use std::collections::BTreeMap;
use windlass_core::batch::submissions::Submit;
use windlass_core::branches::commits::{Abort, Counts, Perform};
use windlass_core::branches::entries::Digest;
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::staging::{Grant, Granted, StageChange};
use windlass_core::entry::{Command, Entry, Lead, Outcome};
use windlass_core::ids::{ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::limits::STAGED_ROWS_PER_SWEEP_MAX;
use windlass_core::machine::Machine;
use windlass_core::tables::{KeyRange, MemoryTables, Row, Table, Tables, Walk};
use windlass_core::time::At;

/// Tables that count what is asked of them.
#[derive(Debug, Default)]
struct Counting {
    tables: MemoryTables,
    read: Cell<u64>,
    written: u64,
    bytes: u64,
}

impl Tables for Counting {
    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.read.set(self.read.get() + 1);
        self.tables.get(table, key)
    }

    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.written += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.tables.put(table, key, value);
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.written += 1;
        self.tables.delete(table, key);
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        walk: Walk,
    ) -> Box<dyn Iterator<Item = Row> + 'a> {
        self.read.set(self.read.get() + 1);
        let count = |_: &Row| self.read.set(self.read.get() + 1);
        Box::new(self.tables.scan(table, range, walk).inspect(count))
    }

    fn commit(&mut self) {}
}

/// What a command costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    read: u64,
    written: u64,
    bytes: u64,
}

struct Counted {
    machine: Machine<Counting>,
    entries: u64,
}

impl Counted {
    fn new() -> Counted {
        let mut counted = Counted { machine: Machine::open(Counting::default()), entries: 0 };
        counted.apply(Command::Lead(Lead { shard: Shard::default() }));
        counted.create("main");
        counted
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.entries += 1;
        let applied = self.machine.apply(Entry {
            epoch: Epoch(1),
            at: At::from_ms(1_750_000_000_000 + self.entries),
            seed: 0,
            sender: SenderId(1),
            token: ContinuationToken(self.entries),
            command,
        });
        self.machine.flush();
        applied.outcome
    }

    fn cost(&mut self, command: Command) -> (Outcome, Cost) {
        let of = |it: &Counting| [it.read.get(), it.written, it.bytes];
        let before = of(self.machine.tables());
        let outcome = self.apply(command);
        let after = of(self.machine.tables());
        let [read, written, bytes] = std::array::from_fn(|at| after[at] - before[at]);
        (outcome, Cost { read, written, bytes })
    }

    fn create(&mut self, name: &str) {
        let it = CreateBranch { name: name.into(), from: None, idempotency_key: None };
        self.apply(Command::CreateBranch(it));
    }

    /// Stages so many entries on a branch.
    fn fill(&mut self, branch: &str, count: usize) {
        for first in (0..count).step_by(1_000) {
            let changes = self.changes(first..(first + 1_000).min(count));
            let outcome = self.apply(Command::Stage(stage(branch, changes)));
            assert!(matches!(outcome, Outcome::Staged { .. }), "{outcome:?}");
        }
    }

    fn changes(&mut self, paths: std::ops::Range<usize>) -> Vec<StageChange> {
        let addresses = u32::try_from(paths.len()).expect("it is small");
        let Outcome::Granted { grant, .. } = self.apply(Command::Grant(Grant { addresses })) else {
            panic!("addresses are granted")
        };
        let change = |(nth, path)| putting(&format!("p/{path:09}"), &Granted { grant, nth }.address());
        (0..).zip(paths).map(change).collect()
    }

    fn announce(&mut self, branch: &str) -> SubmissionId {
        request_in(self.apply(Command::Announce(announce(branch))))
    }

    /// The perform of a commit whose files were written; its content is not looked at.
    fn performing(&self, request: SubmissionId) -> Command {
        let row = windlass_core::branches::state::request_of(self.machine.tables(), request);
        let row = row.expect("the request is there");
        let head = self.machine.branches().get(&row.branch).expect("its branch is there").head;
        let metarange = digest_of(b"some file");
        Command::Perform(crate::generator::performing(request, row, head, metarange, Counts::default()))
    }
}

fn request_in(outcome: Outcome) -> SubmissionId {
    match outcome {
        Outcome::Announced { request, .. } => request,
        other => panic!("the commit waits, and is not answered with {other:?}"),
    }
}

/// What each verb costs on `main`, with whatever else there is.
fn costs(counted: &mut Counted) -> Vec<(&'static str, Cost)> {
    let mut all = Vec::new();
    let changes = counted.changes(0..1);
    all.push(("stage", counted.cost(Command::Stage(stage("main", changes))).1));
    let (outcome, cost) = counted.cost(Command::Announce(announce("main")));
    all.push(("announce", cost));
    let perform = counted.performing(request_in(outcome));
    let (outcome, cost) = counted.cost(perform);
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    all.push(("perform", cost));

    let submit = Command::Submit(Submit { output: Some(append()), ..Submit::new(2) });
    let (outcome, cost) = counted.cost(submit);
    let Outcome::Submitted { submission } = outcome else { panic!("{outcome:?}") };
    all.push(("submit", cost));
    for chunk in 0..2 {
        let command = Command::Complete(completing(submission, chunk, 0, &["a", "b"]));
        all.push(("complete", counted.cost(command).1));
    }
    let request = counted.machine.batch().submission(submission).and_then(|it| it.commit);
    let perform = counted.performing(request.expect("all of its chunks are done"));
    all.push(("perform of a submission", counted.cost(perform).1));
    all.push(("sweep", counted.cost(Command::Sweep).1));
    all
}

fn cost_beside(few: usize, many: usize, fill: impl Fn(&mut Counted, usize)) {
    let [few_costs, many_costs] = [few, many].map(|count| {
        let mut counted = Counted::new();
        fill(&mut counted, count);
        costs(&mut counted)
    });
    for ((verb, beside_few), (_, beside_many)) in few_costs.into_iter().zip(many_costs) {
        assert_eq!(
            (beside_few.read, beside_few.written),
            (beside_many.read, beside_many.written),
            "{verb} beside {few} and {many}"
        );
        // Numbers have more digits when there are more of them.
        assert!(
            beside_many.bytes <= beside_few.bytes + 64,
            "{verb}: {} bytes beside {few}, {} beside {many}",
            beside_few.bytes,
            beside_many.bytes
        );
    }
}

#[test]
fn nothing_costs_more_beside_fifty_thousand_branches_with_areas_of_their_own() {
    cost_beside(100, 50_000, |counted, count| {
        for nth in 0..count {
            let name = format!("b{nth:06}");
            counted.create(&name);
            counted.fill(&name, 1);
            counted.announce(&name);
        }
    });
}

#[test]
fn nothing_costs_more_behind_ten_thousand_commits() {
    cost_beside(100, 10_000, |counted, count| {
        for _ in 0..count {
            counted.fill("main", 1);
            let request = counted.announce("main");
            let perform = counted.performing(request);
            counted.apply(perform);
        }
        while counted.apply(Command::Sweep) != (Outcome::Swept { areas: 0 }) {}
    });
}

#[test]
fn nothing_costs_more_beside_a_hundred_thousand_staged_entries() {
    cost_beside(100, 100_000, |counted, count| {
        counted.fill("main", count);
        // The sweep has its own test: here the large area waits behind an aborted commit of another branch.
        counted.create("other");
        counted.fill("other", count);
        let request = counted.announce("main");
        let reason = "not now".into();
        counted.apply(Command::Abort(Abort { request, reason }));
        counted.apply(Command::ResetBranch(NameBranch { name: "main".into() }));
        while counted.apply(Command::Sweep) != (Outcome::Swept { areas: 0 }) {}
    });
}

#[test]
fn announcing_and_performing_a_large_area_costs_as_much_as_a_small_one_and_a_sweep_is_bounded() {
    let [small, large] = [10, 100_000].map(|count| {
        let mut counted = Counted::new();
        counted.fill("main", count);
        let (outcome, announced) = counted.cost(Command::Announce(announce("main")));
        let perform = counted.performing(request_in(outcome));
        let (_, performed) = counted.cost(perform);
        let (_, swept) = counted.cost(Command::Sweep);
        (announced, performed, swept)
    });
    assert_eq!((small.0.read, small.0.written), (large.0.read, large.0.written), "announce");
    assert_eq!((small.1.read, small.1.written), (large.1.read, large.1.written), "perform");
    let rows = STAGED_ROWS_PER_SWEEP_MAX as u64;
    assert!(large.2.read < rows + 10 && large.2.written < rows + 10, "{:?}", large.2);
}

/// The commits that wait on a branch are lines of its row: the one thing that grows, and documented with its limit.
#[test]
fn a_put_beside_waiting_commits_writes_their_lines_and_reads_no_more() {
    let cost = |count: usize| {
        let mut counted = Counted::new();
        counted.fill("main", 1);
        for _ in 0..count {
            counted.announce("main");
        }
        let changes = counted.changes(0..1);
        counted.cost(Command::Stage(stage("main", changes))).1
    };
    let (few, many) = (cost(10), cost(1_000));
    assert_eq!((few.read, few.written), (many.read, many.written));
    assert!(many.bytes - few.bytes < 990 * 24, "{few:?}, {many:?}");
}

/// The generator reads an area of a hundred thousand entries page by page, each page once.
#[test]
fn a_large_area_is_read_once_whatever_the_size_of_its_pages() {
    let mut counted = Counted::new();
    counted.fill("main", 20_000);
    let request = counted.announce("main");
    for page in [1_000, 20_000, 1_000_000] {
        let before = counted.machine.tables().read.get();
        let generated = generate(&counted.machine, request, |_: Digest| BTreeMap::new(), page);
        let Perform { commit, .. } = generated.expect("nothing speaks against it");
        assert_eq!(commit.counts.entries, 20_000);
        let read = counted.machine.tables().read.get() - before;
        assert!(read < 20_000 + 3 * (20_000 / page as u64 + 10), "{read} reads in pages of {page}");
    }
}
