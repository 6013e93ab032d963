//! The stored bytes of what branches have: areas, commits, requests, outputs of submissions.

use crate::{BEGIN_MS, entry, hex, lines_of, tables_of};
use std::collections::BTreeMap;
use windlass_core::audit;
use windlass_core::batch::submissions::{MetaValue, Metadata, OnFailure, Submit};
use windlass_core::branches::commits::{Abort, Announce, Commit, Counts, Missing, NoteFiles, Perform};
use windlass_core::branches::entries::{Digest, MadeBy, ObjectEntry};
use windlass_core::branches::open::{CreateBranch, NameBranch};
use windlass_core::branches::outputs::{OnChunkFailure, OutputEntry, OutputMode, OutputRule};
use windlass_core::branches::staging::{Condition, Grant, Granted, Stage, StageChange};
use windlass_core::branches::state::AreaId;
use windlass_core::branches::verify::Verify;
use windlass_core::entry::{
    Cancel, Command, Complete, Done, Fail, FailedAttempt, Lead, Outcome, Output, Refusal,
};
use windlass_core::ids::{Attempt, ChunkIndex, Epoch, Shard, SubmissionId};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table};
use windlass_core::time::At;

#[test]
fn branches_are_stored_in_these_rows_and_a_machine_opens_them_again() {
    let machine = scripted_branches();
    audit::check(&machine);
    let lines = lines_of(&machine);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let is_in = |line: &str, table: Table| line.starts_with(&format!("{} ", table.name()));
    for table in TABLES {
        assert!(lines.iter().any(|line| is_in(line, table)), "the script writes to {}", table.name());
    }
    let shown = [&TABLES[..], &[Table::Submissions, Table::Abouts, Table::History]].concat();
    let found: Vec<&str> =
        lines.iter().copied().filter(|line| shown.iter().any(|table| is_in(line, *table))).collect();
    assert_eq!(found, ROWS, "found:\n{}", found.join("\n"));

    let mut again = Machine::open(tables_of(&lines));
    audit::check(&again);
    assert!(again.branches().iter().eq(machine.branches().iter()));
    again.flush();
    assert_eq!(again.tables(), machine.tables(), "opening and flushing changes no row");
}

#[test]
fn a_commit_with_everything_in_it_is_stored_in_these_bytes_of_which_its_id_is_the_digest() {
    assert_eq!(hex(&full_commit().to_bytes()), COMMIT);
    assert_eq!(minicbor::decode::<Commit>(&full_commit().to_bytes()).unwrap(), full_commit());
}

fn digest(byte: u8) -> Digest {
    Digest::new([byte; 32])
}

fn id(number: u64) -> SubmissionId {
    SubmissionId::from_u64(number).expect("it is an id")
}

fn full_metadata() -> Metadata {
    Metadata::from([("by".into(), MetaValue::Text("ann".into()))])
}

fn full_verify() -> Verify {
    let rules = ["entries >= 0.9 * previous", "bytes <= 5", "added >= 1", "changed <= 2", "removed <= 3"];
    let rules = rules.map(|rule| rule.parse().expect("it is a rule"));
    Verify { rules: rules.into(), checks: vec!["schema".into()] }
}

fn full_entry(address: String) -> ObjectEntry {
    ObjectEntry {
        address,
        size: 1 << 33,
        sha256: digest(0xab),
        content_type: "text/csv".into(),
        metadata: BTreeMap::from([("rows".into(), "7".into())]),
        made_by: None,
    }
}

fn full_output(path: &str, object: u32) -> OutputEntry {
    OutputEntry {
        path: path.into(),
        object,
        size: 5,
        sha256: digest(0xcd),
        content_type: "text/csv".into(),
        metadata: BTreeMap::from([("rows".into(), "8".into())]),
    }
}

fn full_rule(mode: OutputMode) -> OutputRule {
    let on_chunk_failure = OnChunkFailure::CommitWithout;
    OutputRule { branch: "main".into(), mode, on_chunk_failure, verify: full_verify() }
}

fn full_announce() -> Announce {
    Announce {
        branch: "main".into(),
        rollback_to: Some(digest(1)),
        message: "bring it back".into(),
        metadata: full_metadata(),
        verify: full_verify(),
        if_changed: true,
        if_parent: Some(digest(2)),
        idempotency_key: Some("order 20".into()),
    }
}

fn full_commit() -> Commit {
    Commit {
        branch: "main".into(),
        parent: Some(digest(3)),
        metarange: digest(4),
        at: At::from_ms(BEGIN_MS),
        message: "submission 77".into(),
        metadata: full_metadata(),
        counts: Counts { entries: 1, bytes: 2, added: 3, changed: 4, removed: 5, conflicts: 6 },
        request: id(78),
        submission: Some(id(77)),
        missing: Some(Missing { chunks: 2, first: vec![ChunkIndex(3), ChunkIndex(9)] }),
        rolled_back_to: Some(digest(5)),
    }
}

fn full_stage() -> Stage {
    let made_by = Some(MadeBy { submission: id(77), chunk: ChunkIndex(3) });
    let put = ObjectEntry { made_by, ..full_entry("staged/000000000000004d/1".into()) };
    let change =
        |path: &str, entry, condition, in_head| StageChange { path: path.into(), entry, condition, in_head };
    Stage {
        branch: "main".into(),
        token: Some(AreaId(id(76))),
        changes: vec![
            change("a/ä", Some(put), Condition::None, None),
            change("b", None, Condition::Absent, None),
            change("c", None, Condition::Present, Some(digest(6))),
            change("d", None, Condition::Is(digest(7)), Some(digest(7))),
        ],
        head: Some(digest(3)),
        idempotency_key: Some("order 19".into()),
    }
}

pub(crate) fn commands() -> Vec<(&'static str, Command, &'static str)> {
    let attempt = Attempt { epoch: Epoch(3), nth: 1 };
    let done = vec![Done {
        chunk: ChunkIndex(3),
        attempt,
        output: Output::Stored,
        entries: Some(vec![full_output("a", 0), full_output("b/c", 9)]),
    }];
    let submit =
        |mode| Submit { output: Some(full_rule(mode)), on_failure: OnFailure::Continue, ..Submit::new(2) };
    let name = || NameBranch { name: "main".into() };
    let create =
        CreateBranch { name: "main".into(), from: Some(digest(1)), idempotency_key: Some("order 18".into()) };
    let note = NoteFiles { request: id(77), addresses: vec!["ranges/1".into(), "metaranges/2".into()] };
    let all = vec![
        ("create branch", Command::CreateBranch(create)),
        ("delete branch", Command::DeleteBranch(name())),
        ("reset branch", Command::ResetBranch(name())),
        ("grant", Command::Grant(Grant { addresses: 12 })),
        ("stage", Command::Stage(full_stage())),
        ("announce", Command::Announce(full_announce())),
        ("note files", Command::NoteFiles(note)),
        ("perform", Command::Perform(Perform { id: digest(8), commit: full_commit() })),
        ("abort", Command::Abort(Abort { request: id(77), reason: "a check said no".into() })),
        ("sweep", Command::Sweep),
        ("submit with output", Command::Submit(submit(OutputMode::Append))),
        ("submit that replaces", Command::Submit(submit(OutputMode::Replace("nl/".into())))),
        ("submit exactly", Command::Submit(submit(OutputMode::Exact))),
        ("complete with entries", Command::Complete(Complete { submission: id(77), done })),
    ];
    assert_eq!(all.len(), COMMANDS.len());
    all.into_iter().zip(COMMANDS).map(|((name, command), golden)| (name, command, *golden)).collect()
}

pub(crate) fn outcomes() -> Vec<(Outcome, &'static str)> {
    let (token, request, branch) = (AreaId(id(76)), id(77), "main".to_owned());
    let path = "a/b".to_owned();
    let mut all = vec![
        Outcome::BranchSet { token },
        Outcome::BranchDeleted,
        Outcome::Granted { grant: id(75), addresses: 12 },
        Outcome::Staged { token },
        Outcome::Announced { request, token },
        Outcome::Committed { commit: digest(8) },
        Outcome::Aborted { reason: "a check said no".into() },
        Outcome::Swept { areas: 3 },
    ];
    let refusals = [
        Refusal::BranchUnknown { branch: branch.clone() },
        Refusal::BranchExists { branch: branch.clone() },
        Refusal::CommitUnknown { commit: digest(8) },
        Refusal::RequestUnknown { request },
        Refusal::TokenStale { branch: branch.clone(), newest: token },
        Refusal::ConditionFailed { path: path.clone(), found: None },
        Refusal::ConditionFailed { path, found: Some(digest(9)) },
        Refusal::HeadMoved { branch: branch.clone() },
        Refusal::AddressNotGranted { address: "staged/1".into() },
        Refusal::NotItsTurn { request },
        Refusal::TooManyCommits { branch },
    ];
    all.extend(refusals.map(Outcome::Refused));
    assert_eq!(all.len(), OUTCOMES.len());
    all.into_iter().zip(OUTCOMES.iter().copied()).collect()
}

/// A machine after a script that writes every kind of row that branches have.
fn scripted_branches() -> Machine<MemoryTables> {
    let mut machine = Machine::open(MemoryTables::default());
    let mut number = 0;
    let mut apply = |command| {
        number += 1;
        let outcome = machine.apply(entry(number, command)).outcome;
        machine.flush();
        outcome
    };
    apply(Command::Lead(Lead { shard: Shard::default() }));
    apply(Command::CreateBranch(CreateBranch { name: "main".into(), from: None, idempotency_key: None }));
    let Outcome::Granted { grant, .. } = apply(Command::Grant(Grant { addresses: 9 })) else {
        panic!("addresses are granted")
    };
    let put = |path: &str, nth| StageChange {
        path: path.into(),
        entry: Some(full_entry(Granted { grant, nth }.address())),
        condition: Condition::None,
        in_head: None,
    };
    let stage = |changes| {
        let branch = "main".into();
        Command::Stage(Stage { branch, token: None, changes, head: None, idempotency_key: None })
    };
    let announce = || Announce {
        rollback_to: None,
        if_changed: false,
        if_parent: None,
        idempotency_key: None,
        ..full_announce()
    };
    let request = |outcome| match outcome {
        Outcome::Announced { request, .. } => request,
        other => panic!("the commit waits, and is not answered with {other:?}"),
    };
    let note = |request, file: &str| Command::NoteFiles(NoteFiles { request, addresses: vec![file.into()] });

    // The first commit is aborted, so that the second one takes two areas.
    apply(stage(vec![put("a", 0), put("b", 1)]));
    let aborted = request(apply(Command::Announce(announce())));
    apply(note(aborted, "ranges/1"));
    apply(Command::Abort(Abort { request: aborted, reason: "a check said no".into() }));
    apply(stage(vec![put("a", 2), StageChange { entry: None, ..put("gone", 0) }]));
    let second = request(apply(Command::Announce(announce())));
    let commit = Commit { parent: None, request: second, ..full_commit() };
    apply(Command::Perform(Perform { id: digest(8), commit }));
    // What is staged over is garbage; one commit of staged entries waits, and one that rolls back.
    apply(stage(vec![put("c", 3)]));
    apply(stage(vec![put("c", 8)]));
    let waiting = request(apply(Command::Announce(announce())));
    apply(note(waiting, "ranges/2"));
    apply(stage(vec![StageChange { entry: None, ..put("c", 0) }]));
    apply(Command::Announce(Announce {
        rollback_to: Some(digest(8)),
        if_parent: Some(digest(8)),
        ..announce()
    }));
    scripted_submissions(&mut apply);
    machine
}

/// One submission runs, the commit of one waits, and one was cancelled.
fn scripted_submissions(apply: &mut impl FnMut(Command) -> Outcome) {
    let attempt = Attempt { epoch: Epoch(1), nth: 0 };
    let done = |chunk, path: &str| Done {
        chunk: ChunkIndex(chunk),
        attempt,
        output: Output::Stored,
        entries: Some(vec![full_output(path, 0)]),
    };
    let mut submit = |mode| {
        let submit = Submit {
            output: Some(full_rule(mode)),
            on_failure: OnFailure::Continue,
            attempts_max: 1,
            ..Submit::new(2)
        };
        match apply(Command::Submit(submit)) {
            Outcome::Submitted { submission } => submission,
            other => panic!("the submission is taken in, not answered with {other:?}"),
        }
    };
    let running = submit(OutputMode::Append);
    let waiting = submit(OutputMode::Replace("nl/".into()));
    let cancelled = submit(OutputMode::Exact);
    apply(Command::Complete(Complete { submission: running, done: vec![done(1, "nl/1")] }));
    apply(Command::Complete(Complete { submission: waiting, done: vec![done(0, "nl/0")] }));
    let failed = vec![FailedAttempt { chunk: ChunkIndex(1), attempt, reason: "it broke".into() }];
    apply(Command::Fail(Fail { submission: waiting, failed }));
    apply(Command::Complete(Complete { submission: cancelled, done: vec![done(0, "x")] }));
    apply(Command::Cancel(Cancel { submission: cancelled }));
}

pub(crate) const TABLES: [Table; 8] = [
    Table::Branches,
    Table::Staged,
    Table::Commits,
    Table::CommitRequests,
    Table::Grants,
    Table::DroppedAreas,
    Table::Generated,
    Table::Garbage,
];

/// A commit's stored bytes.
const COMMIT: &str = "8b646d61696e58200303030303030303030303030303030303030303030303030303030303030303582004040404040404040404040404040404040404040404040404040404040404041b000001977420dc006d7375626d697373696f6e203737a162627982028163616e6e86010203040506184e184d820282030958200505050505050505050505050505050505050505050505050505050505050505";

/// In the order of [`commands`].
const COMMANDS: &[&str] = &[
    "85031b000001977420dc0019feed0181820982128183646d61696e58200101010101010101010101010101010101010101010101010101010101010101686f72646572203138",
    "85031b000001977420dc0019feed0181820982138181646d61696e",
    "85031b000001977420dc0019feed0181820982148181646d61696e",
    "85031b000001977420dc0019feed01818209821581810c",
    "85031b000001977420dc0019feed0181820982168185646d61696e184c848364612fc3a48678197374616765642f303030303030303030303030303034642f311b00000002000000005820abababababababababababababababababababababababababababababababab68746578742f637376a164726f7773613782184d03820080836162f6820180846163f682028058200606060606060606060606060606060606060606060606060606060606060606846164f6820381582007070707070707070707070707070707070707070707070707070707070707075820070707070707070707070707070707070707070707070707070707070707070758200303030303030303030303030303030303030303030303030303030303030303686f72646572203139",
    "85031b000001977420dc0019feed0181820982178188646d61696e582001010101010101010101010101010101010101010101010101010101010101016d6272696e67206974206261636ba162627982028163616e6e82858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61f558200202020202020202020202020202020202020202020202020202020202020202686f72646572203230",
    "85031b000001977420dc0019feed018182098218188182184d826872616e6765732f316c6d65746172616e6765732f32",
    "85031b000001977420dc0019feed018182098218198182582008080808080808080808080808080808080808080808080808080808080808088b646d61696e58200303030303030303030303030303030303030303030303030303030303030303582004040404040404040404040404040404040404040404040404040404040404041b000001977420dc006d7375626d697373696f6e203737a162627982028163616e6e86010203040506184e184d820282030958200505050505050505050505050505050505050505050505050505050505050505",
    "85031b000001977420dc0019feed0181820982181a8182184d6f6120636865636b2073616964206e6f",
    "85031b000001977420dc0019feed0181820982181b80",
    "85031b000001977420dc0019feed018182098202818a02a00040820080051903e801f684646d61696e8200800182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "85031b000001977420dc0019feed018182098202818a02a00040820080051903e801f684646d61696e820181636e6c2f0182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "85031b000001977420dc0019feed018182098202818a02a00040820080051903e801f684646d61696e8202800182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "85031b000001977420dc0019feed0181820982038182184d8184038203018201808286616100055820cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd68746578742f637376a164726f777361388663622f6309055820cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd68746578742f637376a164726f77736138",
];

/// In the order of [`outcomes`].
const OUTCOMES: &[&str] = &[
    "820e81184c",
    "820f80",
    "821082184b0c",
    "821181184c",
    "821282184d184c",
    "82138158200808080808080808080808080808080808080808080808080808080808080808",
    "8214816f6120636865636b2073616964206e6f",
    "82158103",
    "820681820981646d61696e",
    "820681820a81646d61696e",
    "820681820b8158200808080808080808080808080808080808080808080808080808080808080808",
    "820681820c81184d",
    "820681820d82646d61696e184c",
    "820681820e8163612f62",
    "820681820e8263612f6258200909090909090909090909090909090909090909090909090909090909090909",
    "820681820f81646d61696e",
    "820681821081687374616765642f31",
    "820681821181184d",
    "820681821281646d61696e",
];

/// All rows of these tables, and of submissions, after their script, in order.
const ROWS: &[&str] = &[
    "submissions 02ac73ba04400000 = 881b000001977420dc1183020100011903e801000001",
    "submissions 02ac73ba04800000 = 891b000001977420dc1283020101011903e8010001011b02ac73ba05800000",
    "abouts 02ac73ba04400000 = 8a02a00040820080011903e801f684646d61696e8200800182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "abouts 02ac73ba04800000 = 8a02a00040820080011903e801f684646d61696e820181636e6c2f0182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "abouts 02ac73ba04c00000 = 8a02a00040820080011903e801f684646d61696e8202800182858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61",
    "history 02ac73ba04c00000 = 83881b000001977420dc1383020100011903e801000001031b000001977420dc18",
    "branches 6d61696e = 871b000001977420dc02582008080808080808080808080808080808080808080808080808080808080808081b02ac73ba0340000001811b02ac73ba024000000183821b02ac73ba034000011b02ac73ba02400000811b02ac73ba04000000811b02ac73ba05800000",
    "staged 02ac73ba008000006100 = 818578197374616765642f303261633733626130306330303030302f301b00000002000000005820abababababababababababababababababababababababababababababababab68746578742f637376a164726f77736137",
    "staged 02ac73ba008000006200 = 818578197374616765642f303261633733626130306330303030302f311b00000002000000005820abababababababababababababababababababababababababababababababab68746578742f637376a164726f77736137",
    "staged 02ac73ba014000006100 = 818578197374616765642f303261633733626130306330303030302f321b00000002000000005820abababababababababababababababababababababababababababababababab68746578742f637376a164726f77736137",
    "staged 02ac73ba01400000676f6e6500 = 80",
    "staged 02ac73ba024000006300 = 818578197374616765642f303261633733626130306330303030302f381b00000002000000005820abababababababababababababababababababababababababababababababab68746578742f637376a164726f77736137",
    "staged 02ac73ba034000006300 = 80",
    "staged 02ac73ba044000006e6c2f31000000000000000001 = 818678226f7574707574732f3139323635363132363834323530333136382f312f312d302f30055820cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd68746578742f637376a164726f77736138821b02ac73ba0440000001",
    "staged 02ac73ba048000006e6c2f30000000000000000000 = 818678226f7574707574732f3139323635363132363834363639373437322f302f312d302f30055820cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd68746578742f637376a164726f77736138821b02ac73ba0480000000",
    "staged 02ac73ba04c0000078000000000000000000 = 818678226f7574707574732f3139323635363132363835303839313737362f302f312d302f30055820cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd68746578742f637376a164726f77736138821b02ac73ba04c0000000",
    "commits 0808080808080808080808080808080808080808080808080808080808080808 = 8b646d61696ef6582004040404040404040404040404040404040404040404040404040404040404041b000001977420dc006d7375626d697373696f6e203737a162627982028163616e6e860102030405061b02ac73ba02400001184d820282030958200505050505050505050505050505050505050505050505050505050505050505",
    "commit_requests 02ac73ba01400001 = 88646d61696e8200811b02ac73ba008000001b000001977420dc056d6272696e67206974206261636ba162627982028163616e6e82858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61f68202816f6120636865636b2073616964206e6f",
    "commit_requests 02ac73ba02400001 = 88646d61696e8200811b02ac73ba014000001b000001977420dc096d6272696e67206974206261636ba162627982028163616e6e82858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61f682018158200808080808080808080808080808080808080808080808080808080808080808",
    "commit_requests 02ac73ba03400001 = 88646d61696e8200811b02ac73ba024000001b000001977420dc0d6d6272696e67206974206261636ba162627982028163616e6e82858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61f6820080",
    "commit_requests 02ac73ba04000000 = 88646d61696e820281582008080808080808080808080808080808080808080808080808080808080808081b000001977420dc106d6272696e67206974206261636ba162627982028163616e6e82858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d6158200808080808080808080808080808080808080808080808080808080808080808820080",
    "commit_requests 02ac73ba05800000 = 88646d61696e8201811b02ac73ba048000001b000001977420dc16781d7375626d697373696f6e20313932363536313236383436363937343732a082858300f58201811903848301f4820081058302f5820081018303f4820081028304f4820081038166736368656d61f6820080",
    "grants 02ac73ba00c00000 = 831b000001977420dc0309420f01",
    "dropped_areas 02ac73ba00800000 = 82f5811b02ac73ba01400000",
    "dropped_areas 02ac73ba01400000 = 82f580",
    "dropped_areas 02ac73ba04c00000 = 82f480",
    "generated 02ac73ba0340000172616e6765732f32 = ",
    "garbage 72616e6765732f31 = ",
    "garbage 7374616765642f303261633733626130306330303030302f33 = ",
];
