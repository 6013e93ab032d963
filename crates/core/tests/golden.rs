//! What is written is forever: the stored bytes of every kind of entry and row, as this format has them.
//!
//! A line that changes here changes what is on people's disks. A field or command is added with a new number; the old
//! lines stay, and must still open.

#[path = "golden/branches.rs"]
mod branches;
#[path = "golden/lanes.rs"]
mod lanes;

use minicbor::bytes::ByteVec;
use minicbor::{Decoder, Encoder};
use windlass_core::audit;
use windlass_core::batch::change::{Change, Changes};
use windlass_core::batch::chunks::{Place, Trouble};
use windlass_core::batch::roster::Enlist;
use windlass_core::batch::submissions::{Input, MetaValue, Metadata, OnFailure, SubmissionState, Submit};
use windlass_core::batch::weights::Weigh;
use windlass_core::entry::{
    Cancel, Command, Complete, Done, Entry, EntryGroup, Fail, FailedAttempt, Lead, Outcome, Output, Refusal,
    RetryFailed, Sent, Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, ContinuationToken, Epoch, SenderId, Shard, SubmissionId};
use windlass_core::lanes::acks::Gap;
use windlass_core::lanes::levels::Level;
use windlass_core::lanes::redrive::Redrive;
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables};
use windlass_core::time::At;

const BEGIN_MS: u64 = 1_750_000_000_000;

#[test]
fn every_command_is_stored_in_these_bytes_and_read_back_from_them() {
    for (name, command, golden) in commands() {
        let group = EntryGroup {
            epoch: Epoch(3),
            at: At::from_ms(BEGIN_MS),
            seed: 0xfeed,
            sender: SenderId(1),
            commands: vec![Sent { token: ContinuationToken(9), command }],
        };
        assert_eq!(hex(&group.to_bytes()), golden, "{name}");
        assert_eq!(EntryGroup::from_bytes(&bytes(golden)).unwrap(), group, "{name}");
    }
}

#[test]
fn every_outcome_and_refusal_is_stored_in_these_bytes_and_read_back_from_them() {
    for (outcome, golden) in outcomes() {
        assert_eq!(hex(&minicbor::to_vec(&outcome).unwrap()), golden, "{outcome:?}");
        assert_eq!(minicbor::decode::<Outcome>(&bytes(golden)).unwrap(), outcome);
    }
}

#[test]
fn every_kind_of_row_is_stored_in_these_bytes() {
    let machine = scripted();
    audit::check(&machine);
    let lines = lines_of(&machine);
    let elsewhere = [&[Table::Roster, Table::Weights][..], &lanes::TABLES, &branches::TABLES].concat();
    for table in Table::ALL.into_iter().filter(|table| !elsewhere.contains(table)) {
        assert!(
            lines.iter().any(|line| line.starts_with(&format!("{} ", table.name()))),
            "the script writes to {}",
            table.name()
        );
    }
    let kept = ROWS_OF_THE_FIRST_BUILD.iter().filter(|line| !is_written_otherwise(line)).copied();
    let expected: Vec<&str> =
        [MACHINE_ROW].into_iter().chain(kept).chain(TRAITS_ROWS.iter().copied()).collect();
    assert_eq!(lines, expected, "found:\n{}", lines.join("\n"));
}

#[test]
fn a_change_rewrites_these_rows_and_no_other() {
    let mut machine = scripted();
    let before = lines_of(&machine);
    let submission = machine.batch().submissions().next().unwrap().0;
    let change = Command::Change(Change { submission, changes: full_changes() });
    assert_eq!(machine.apply(entry(99, change)).outcome, Outcome::Changed);
    machine.flush();
    audit::check(&machine);
    let after = lines_of(&machine);
    let key = |line: &str| line.split(" = ").next().unwrap().to_owned();
    let written = after.iter().filter(|line| !before.contains(line));
    assert_eq!(written.collect::<Vec<_>>(), CHANGED_ROWS);
    let removed = before.iter().filter(|line| !after.iter().any(|it| key(it) == key(line)));
    assert_eq!(removed.collect::<Vec<_>>(), REMOVED_ROWS);
}

#[test]
fn the_roster_and_weights_are_stored_in_these_rows_and_no_other() {
    let mut machine = scripted();
    let before = lines_of(&machine);
    for command in [full_enlist(), full_weigh()] {
        assert_eq!(machine.apply(entry(99, command)).outcome, Outcome::Noted);
    }
    machine.flush();
    audit::check(&machine);
    let after = lines_of(&machine);
    let written = after.iter().filter(|line| !before.contains(line) && !line.starts_with("meta "));
    assert_eq!(written.collect::<Vec<_>>(), ROSTER_AND_WEIGHTS_ROWS);
    let again = Machine::open(tables_of(&after.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(again.roster(), machine.roster());
    assert!(again.weights().eq(machine.weights()));
}

#[test]
fn a_machine_opens_the_rows_of_old_and_goes_on() {
    let with = |traits| [ROWS_OF_THE_FIRST_BUILD, traits].concat();
    for rows in [&with(TRAITS_ROWS)[..], &with(TRAITS_ROWS_OF_OLD), ROWS_OF_THE_FIRST_BUILD] {
        let mut machine = Machine::open(tables_of(rows));
        audit::check(&machine);
        machine.flush();
        let lines = lines_of(&machine);
        assert_eq!(lines[1..], rows[1..], "opening and flushing changes no row but the machine's own");
        assert_eq!(lines[0], MACHINE_ROW_FROM_THE_FIRST_BUILD);
        let mut written_anew: Vec<_> = scripted().unsettled().collect();
        if rows == with(TRAITS_ROWS_OF_OLD) {
            // It is looked up what is said of these.
            written_anew.iter_mut().for_each(|it| it.traits.is_plain = false);
        }
        assert_eq!(machine.unsettled().collect::<Vec<_>>(), written_anew, "what strategies go by is known");

        let running = machine.batch().submissions().next().unwrap().0;
        let change = Change { submission: running, changes: Changes::pausing(true) };
        assert_eq!(machine.apply(entry(98, Command::Change(change))).outcome, Outcome::Changed);
        machine.flush();
        audit::check(&machine);
        assert!(machine.show(running).unwrap().paused);
        let cancelled = machine.apply(entry(99, Command::Cancel(Cancel { submission: running })));
        assert_eq!(cancelled.outcome, Outcome::Cancelled);
        machine.flush();
        audit::check(&machine);
    }
}

#[test]
fn a_command_that_this_build_does_not_know_is_refused_with_its_whole_group() {
    let mut group = bytes(commands()[4].2);
    // The command is an array of its number and its one field: 82 05 81 81 1b …
    let at = group.windows(4).position(|it| it == [0x82, 0x05, 0x81, 0x81]).unwrap() + 1;
    for number in [0, 16, 23] {
        group[at] = number;
        assert!(EntryGroup::from_bytes(&group).is_err(), "command number {number}");
    }
    group[at] = 6;
    let command = EntryGroup::from_bytes(&group).unwrap().commands.pop().unwrap().command;
    assert!(matches!(command, Command::RetryFailed(_)), "a number that is known is read as what it names");
}

#[test]
fn a_group_that_is_cut_short_or_holds_garbage_is_refused() {
    for (name, _, golden) in commands() {
        let whole = bytes(golden);
        for len in 0..whole.len() {
            assert!(EntryGroup::from_bytes(&whole[..len]).is_err(), "{name} cut to {len} bytes");
        }
    }
    for garbage in [&b""[..], b"\x00", b"\xff", b"{}", b"\x85\x01\x01\x01\x01"] {
        assert!(EntryGroup::from_bytes(garbage).is_err(), "{garbage:02x?}");
    }
}

/// What holds for rows and entries of another build, and where its limits are: a field that is missing at the end is read
/// as its default only if it is an `Option` (or is marked with a default), and a field that this build does not know
/// is passed over.
#[test]
fn an_optional_field_may_be_missing_at_the_end_and_an_unknown_one_may_follow() {
    let submit = Submit::new(5);
    let whole = minicbor::to_vec(&submit).unwrap();
    assert_eq!(
        minicbor::decode::<Submit>(&with_fields(&whole, 8)).unwrap(),
        submit,
        "without idempotency_key"
    );
    assert_eq!(minicbor::decode::<Submit>(&with_fields(&whole, 9)).unwrap(), submit, "with a null for it");
    assert_eq!(with_fields(&whole, 8), whole, "an absent option at the end is not even written");
    assert_eq!(
        minicbor::decode::<Submit>(&with_fields(&whole, 12)).unwrap(),
        submit,
        "with three fields more"
    );
    let required = minicbor::decode::<Submit>(&with_fields(&whole, 7));
    assert!(required.is_err_and(|error| error.is_missing_value()), "without on_failure");

    let attempt = Attempt { epoch: Epoch(1), nth: 0 };
    let trouble = Trouble { place: Place(4), attempt, failures: 1, round: 0, retry_at: None };
    let whole = minicbor::to_vec(trouble).unwrap();
    assert_eq!(minicbor::decode::<Trouble>(&with_fields(&whole, 4)).unwrap(), trouble, "without retry_at");
}

/// The same array with its fields cut to `count`, or with nulls added up to it.
fn with_fields(array: &[u8], count: u64) -> Vec<u8> {
    let mut decoder = Decoder::new(array);
    let len = decoder.array().expect("it is an array").expect("its length is written");
    let mut encoder = Encoder::new(Vec::new());
    encoder.array(count).expect("memory takes it");
    for field in 0..count {
        if field >= len {
            encoder.null().expect("memory takes it");
            continue;
        }
        let from = decoder.position();
        decoder.skip().expect("the array holds as many fields as it says");
        encoder.writer_mut().extend_from_slice(&array[from..decoder.position()]);
    }
    encoder.into_writer()
}

fn full_submit() -> Submit {
    Submit {
        chunks: 10,
        metadata: Metadata::from([
            ("mode".into(), MetaValue::Text("preview".into())),
            ("size".into(), MetaValue::Integer(-5)),
            ("urgent".into(), MetaValue::Bool(true)),
        ]),
        priority: -1,
        opaque: ByteVec::from(vec![1, 2, 3]),
        input: Input::Prefix("inputs/day=1".into()),
        attempts_max: 2,
        retry_delay_ms: 1_000,
        on_failure: OnFailure::Continue,
        idempotency_key: Some("order 17".into()),
        output: None,
    }
}

fn full_changes() -> Changes {
    Changes {
        priority: Some(7),
        metadata_set: Metadata::from([("mode".into(), MetaValue::Text("full".into()))]),
        metadata_remove: vec!["size".into()],
        paused: Some(true),
        attempts_max: Some(9),
        retry_delay_ms: Some(500),
        on_failure: Some(OnFailure::Stop),
    }
}

fn full_enlist() -> Command {
    Command::Enlist(Enlist { joined: vec![7, 1 << 60], left: vec![9], leases_ms: 60_000 })
}

fn full_weigh() -> Command {
    let weights = [("acme".to_owned(), Some(3)), ("zeta".to_owned(), None)];
    Command::Weigh(Weigh { field: "company".into(), weights: weights.into() })
}

fn inline_submit() -> Submit {
    Submit { input: Input::Inline(ByteVec::from(vec![0xca, 0xfe])), ..Submit::new(1) }
}

fn commands() -> Vec<(&'static str, Command, &'static str)> {
    let submission = SubmissionId::from_u64(0x0123_4567_89ab_cdef).expect("it is below 2^63");
    let level = Level { pass: 1 << 40, id: submission };
    let attempt = Attempt { epoch: Epoch(3), nth: 1 << 32 };
    let done = [Output::Nothing, Output::Stored, Output::Inline(ByteVec::from(vec![7, 8]))];
    let done =
        (0..).map(ChunkIndex).zip(done).map(|(chunk, output)| Done { chunk, attempt, output, entries: None });
    let failed = vec![FailedAttempt { chunk: ChunkIndex(1 << 39), attempt, reason: "it broke".into() }];
    let mut all = vec![
        ("lead", Command::Lead(Lead { shard: Shard::new(513).expect("it fits ten bits") }), LEAD),
        ("submit", Command::Submit(full_submit()), SUBMIT),
        ("complete", Command::Complete(Complete { submission, done: done.collect() }), COMPLETE),
        ("fail", Command::Fail(Fail { submission, failed }), FAIL),
        ("cancel", Command::Cancel(Cancel { submission }), CANCEL),
        ("retry_failed", Command::RetryFailed(RetryFailed { submission }), RETRY_FAILED),
        ("change", Command::Change(Change { submission, changes: full_changes() }), CHANGE),
        ("pause", Command::Change(Change { submission, changes: Changes::pausing(true) }), PAUSE),
        ("enlist", full_enlist(), ENLIST),
        ("weigh", full_weigh(), WEIGH),
        ("set lane", Command::SetLane(lanes::full_set_lane()), SET_LANE),
        ("add tasks", Command::AddTasks(lanes::full_add_tasks()), ADD_TASKS),
        ("ack", lanes::full_ack(level, Some(Gap { above: level, to: level })), ACK),
        ("ack of earlier builds", lanes::full_ack(level, None), ACK_OF_EARLIER_BUILDS),
        ("release tasks", Command::ReleaseTasks, RELEASE_TASKS),
        ("redrive", Command::Redrive(Redrive { lane: "mail".into(), tasks: vec![submission] }), REDRIVE),
        ("weigh keys", lanes::full_weigh_keys(), WEIGH_KEYS),
        ("limit lane", lanes::full_limit_lane(), LIMIT_LANE),
        ("relevel", Command::Relevel(lanes::full_relevel()), RELEVEL),
        ("complete tasks", lanes::full_complete_tasks(level), COMPLETE_TASKS),
        ("order keys", lanes::full_order_keys(), ORDER_KEYS),
        ("submit of defaults", Command::Submit(Submit::new(1_000_000_000)), SUBMIT_OF_DEFAULTS),
        ("submit inline", Command::Submit(inline_submit()), SUBMIT_INLINE),
    ];
    all.extend(branches::commands());
    all
}

fn outcomes() -> Vec<(Outcome, &'static str)> {
    let submission = SubmissionId::from_u64(77).expect("77 is an id");
    let settled = vec![
        Settled::Accepted,
        Settled::AlreadyDone,
        Settled::AlreadyFailed,
        Settled::SubmissionOver,
        Settled::NoSuchChunk,
    ];
    let over = |state| Refusal::SubmissionOver { submission, state };
    let refusals = [
        Refusal::Fenced { current: Epoch(4) },
        Refusal::SubmissionUnknown { submission },
        over(SubmissionState::Running),
        over(SubmissionState::Completed),
        over(SubmissionState::Failed),
        over(SubmissionState::Cancelled),
        Refusal::NothingFailed { submission },
        Refusal::IdempotencyKeyReused,
        Refusal::Malformed { problem: "do it so".into() },
        Refusal::LaneUnknown { lane: "mail".into() },
        Refusal::LaneDraining { lane: "mail".into() },
        Refusal::Repeated,
        Refusal::KeysUnordered { lane: "mail".into() },
        Refusal::LaneFull { lane: "mail".into() },
    ];
    let ids = [77, 78, 79, 90].map(|number| SubmissionId::from_u64(number).expect("it is an id"));
    let mut all = vec![
        Outcome::Led { epoch: Epoch(3) },
        Outcome::Submitted { submission },
        Outcome::Settled(settled),
        Outcome::Cancelled,
        Outcome::Retried { chunks: 5 },
        Outcome::Changed,
        Outcome::Noted,
        Outcome::LaneSet,
        Outcome::TasksAdded { tasks: ids.into_iter().collect() },
        Outcome::TasksReleased { tasks: 5 },
        Outcome::Redriven { tasks: 6 },
        Outcome::Releveled(lanes::full_releveled()),
        Outcome::KeysOrdered { is_done: true },
    ];
    all.extend(refusals.map(Outcome::Refused));
    assert_eq!(all.len(), OUTCOMES.len());
    all.into_iter().zip(OUTCOMES.iter().copied()).chain(branches::outcomes()).collect()
}

fn entry(number: u64, command: Command) -> Entry {
    Entry {
        epoch: Epoch(1),
        at: At::from_ms(BEGIN_MS + number),
        seed: number,
        sender: SenderId(1),
        token: ContinuationToken(number),
        command,
    }
}

/// A machine after a script that writes every kind of row.
fn scripted() -> Machine<MemoryTables> {
    let mut machine = Machine::open(MemoryTables::default());
    let mut number = 0;
    let mut apply = |command| {
        number += 1;
        let outcome = machine.apply(entry(number, command)).outcome;
        machine.flush();
        outcome
    };
    let id = |outcome| match outcome {
        Outcome::Submitted { submission } => submission,
        other => panic!("the submission is taken in, not answered with {other:?}"),
    };
    let attempt = |nth| Attempt { epoch: Epoch(1), nth };
    let done =
        |chunk, nth, output| Done { chunk: ChunkIndex(chunk), attempt: attempt(nth), output, entries: None };
    let failed = |chunk, nth| FailedAttempt {
        chunk: ChunkIndex(chunk),
        attempt: attempt(nth),
        reason: format!("chunk {chunk} broke"),
    };

    apply(Command::Lead(Lead { shard: Shard::default() }));
    let partial = id(apply(Command::Submit(full_submit())));
    let outputs = [Output::Inline(ByteVec::from(vec![7, 8])), Output::Stored, Output::Nothing];
    let outputs = (0..).zip(outputs).map(|(chunk, output)| done(chunk, u64::from(chunk == 2), output));
    apply(Command::Complete(Complete { submission: partial, done: outputs.collect() }));
    let failures = vec![failed(4, 0), failed(5, 0), failed(5, 1)];
    apply(Command::Fail(Fail { submission: partial, failed: failures }));

    let full = id(apply(Command::Submit(Submit::new(3))));
    let all = (0..3).map(|chunk| done(chunk, 0, Output::Stored)).collect();
    apply(Command::Complete(Complete { submission: full, done: all }));

    let cancelled = id(apply(Command::Submit(inline_submit())));
    apply(Command::Cancel(Cancel { submission: cancelled }));

    let stopped = id(apply(Command::Submit(Submit { attempts_max: 1, ..Submit::new(2) })));
    apply(Command::Fail(Fail { submission: stopped, failed: vec![failed(0, 0)] }));
    let again = id(apply(Command::Submit(Submit { attempts_max: 1, ..Submit::new(2) })));
    apply(Command::Fail(Fail { submission: again, failed: vec![failed(1, 0)] }));
    apply(Command::RetryFailed(RetryFailed { submission: again }));
    machine
}

/// All rows, each as a line: table, key, value.
fn lines_of(machine: &Machine<MemoryTables>) -> Vec<String> {
    let rows = |table: Table| machine.tables().scan_prefix(table, &[]).map(move |row| (table, row));
    let line = |(table, (key, value)): (Table, (Vec<u8>, Vec<u8>))| {
        format!("{} {} = {}", table.name(), hex(&key), hex(&value))
    };
    Table::ALL.into_iter().flat_map(rows).map(line).collect()
}

fn tables_of(lines: &[&str]) -> MemoryTables {
    let mut tables = MemoryTables::default();
    for line in lines {
        let mut words = line.split(' ');
        let (name, key, _, value) = (words.next(), words.next(), words.next(), words.next());
        let table = Table::ALL.into_iter().find(|table| Some(table.name()) == name).expect("a table's name");
        tables.put(table, &bytes(key.expect("a key")), bytes(value.unwrap_or_default()));
    }
    tables
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("golden bytes are hex");
    (0..hex.len()).step_by(2).map(digit).collect()
}

// All fields of a group: epoch, at, seed, sender, [[token, [command number, [fields]]]].
const LEAD: &str = "85031b000001977420dc0019feed0181820982018181190201";
const SUBMIT: &str = "85031b000001977420dc0019feed01818209820281890aa3646d6f646582028167707265766965776473697a658201812466757267656e74820081f520430102038201816c696e707574732f6461793d31021903e801686f72646572203137";
const COMPLETE: &str = "85031b000001977420dc0019feed01818209820381821b0123456789abcdef83830082031b0000000100000000820080830182031b0000000100000000820180830282031b0000000100000000820281420708";
const FAIL: &str = "85031b000001977420dc0019feed01818209820481821b0123456789abcdef81831b000000800000000082031b00000001000000006869742062726f6b65";
const CANCEL: &str = "85031b000001977420dc0019feed01818209820581811b0123456789abcdef";
const RETRY_FAILED: &str = "85031b000001977420dc0019feed01818209820681811b0123456789abcdef";
const CHANGE: &str = "85031b000001977420dc0019feed01818209820781821b0123456789abcdef8707a1646d6f64658202816466756c6c816473697a65f5091901f400";
const PAUSE: &str = "85031b000001977420dc0019feed01818209820781821b0123456789abcdef84f6a080f5";
const ENLIST: &str = "85031b000001977420dc0019feed018182098208818382071b1000000000000000810919ea60";
const WEIGH: &str = "85031b000001977420dc0019feed018182098209818267636f6d70616e79a26461636d6503647a657461f6";
const SET_LANE: &str = "85031b000001977420dc0019feed01818209820a8185646d61696cf5f4f5f5";
const ADD_TASKS: &str = "85031b000001977420dc0019feed01818209820b8184646d61696c83886461636d651909c4038201814207081b000001977420ddf40218640387601903e80082028168696e707574732f31f6051903e887647a6574611903e800820080f6051903e88382000082031b00000100000000008303056561636d652f686f72646572203138";
const ACK: &str = "85031b000001977420dc0019feed01818209820c81850703821b00000100000000001b0123456789abcdef6561636d652f82821b00000100000000001b0123456789abcdef821b00000100000000001b0123456789abcdef";
const ACK_OF_EARLIER_BUILDS: &str =
    "85031b000001977420dc0019feed01818209820c81840703821b00000100000000001b0123456789abcdef6561636d652f";
const RELEASE_TASKS: &str = "85031b000001977420dc0019feed01818209820d80";
const REDRIVE: &str = "85031b000001977420dc0019feed01818209820e8182646d61696c811b0123456789abcdef";
const WEIGH_KEYS: &str =
    "85031b000001977420dc0019feed01818209820f8182646d61696ca26461636d651903e8647a657461f6";
const LIMIT_LANE: &str = "85031b000001977420dc0019feed0181820982108182646d61696c85828200808203821909c407828201808203821909c407828202808203821909c407828203816561636d652f8203821909c40781820381647a657461";
const ORDER_KEYS: &str = "85031b000001977420dc0019feed0181820982181d8182646d61696c1901f4";
const COMPLETE_TASKS: &str = "85031b000001977420dc0019feed0181820982181c818282840703f682821b00000100000000001b0123456789abcdef8200018407036561636d652f82821b00000100000000001b0123456789abcdef820001811b0123456789abcdef";
const RELEVEL: &str = "85031b000001977420dc0019feed0181820982118185646d61696c036461636d65f681820304";
pub(crate) const RELEVEL_OF_OLD: &str = "85031b000001977420dc0019feed0181820982118185646d61696c036461636d658282028109821b00000100000000001b0123456789abcdef81820304";
const SUBMIT_OF_DEFAULTS: &str =
    "85031b000001977420dc0019feed01818209820281881a3b9aca00a00040820080051903e800";
const SUBMIT_INLINE: &str = "85031b000001977420dc0019feed018182098202818801a0004082028142cafe051903e800";

/// In the order of [`outcomes`].
const OUTCOMES: &[&str] = &[
    "82018103",
    "820281184d",
    "820381850001020304",
    "820480",
    "82058105",
    "820780",
    "820880",
    "820980",
    "820a818282184d0382185a01",
    "820b8105",
    "820c8106",
    "820d818207818200821a0010000008",
    "821681f5",
    "82068182018104",
    "820681820281184d",
    "820681820382184d00",
    "820681820382184d01",
    "820681820382184d02",
    "820681820382184d03",
    "820681820481184d",
    "820681820580",
    "82068182068168646f20697420736f",
    "820681820781646d61696c",
    "820681820881646d61696c",
    "820681821380",
    "820681821481646d61696c",
    "820681821581646d61696c",
];

/// The machine's own row, which knows senders of requests without a key.
const MACHINE_ROW: &str = "meta 6d616368696e65 = 87011b000001977420dc0d001b02ac73ba02c0000082010050910a2dec89025cc1beeb8da1658eec678182010b";

/// The row of the first build, written by this one.
const MACHINE_ROW_FROM_THE_FIRST_BUILD: &str = "meta 6d616368696e65 = 87011b000001977420dc0d001b02ac73ba02c0000082050050910a2dec89025cc1beeb8da1658eec6780";

/// Whether a row of the first build is written otherwise now, or not at all: it kept replies to requests without a key.
fn is_written_otherwise(line: &str) -> bool {
    line.starts_with("meta ") || line.starts_with("replies 73") || line.contains("51730000")
}

/// Table, key, value: all rows after the script, in order, as the first build left them. It had no table of traits.
const ROWS_OF_THE_FIRST_BUILD: &[&str] = &[
    "meta 6d616368696e65 = 86011b000001977420dc0d001b02ac73ba02c0000082050050910a2dec89025cc1beeb8da1658eec67",
    "submissions 02ac73ba00800000 = 871b000001977420dc02830a0301021903e8010003",
    "submissions 02ac73ba02c00000 = 871b000001977420dc0b83020000011903e8000101",
    "abouts 02ac73ba00800000 = 890aa3646d6f646582028167707265766965776473697a658201812466757267656e74820081f520430102038201816c696e707574732f6461793d31021903e801686f72646572203137",
    "abouts 02ac73ba01400000 = 8803a00040820080051903e800",
    "abouts 02ac73ba01c00000 = 8801a0004082028142cafe051903e800",
    "abouts 02ac73ba02400000 = 8802a00040820080011903e800",
    "abouts 02ac73ba02c00000 = 8802a00040820080011903e800",
    "history 02ac73ba01400000 = 83871b000001977420dc0583030300051903e8000000011b000001977420dc06",
    "history 02ac73ba01c00000 = 83871b000001977420dc0783010000051903e8000000031b000001977420dc08",
    "history 02ac73ba02400000 = 83871b000001977420dc0983020001011903e8000001021b000001977420dc0a",
    "blocks 02ac73ba0080000000000000 = 8341078382008282010002820182820100018202828201010082850482010001001b000001977420dfec84058201010200",
    "blocks 02ac73ba0140000000000000 = 83f6818200828201000180",
    "blocks 02ac73ba0240000000000000 = 8340808184008201000100",
    "blocks 02ac73ba02c0000000000000 = 8340808184018201000100",
    "outputs 02ac73ba008000000000000000000000 = 0708",
    "failures 02ac73ba008000000000000000000004 = 836d6368756e6b20342062726f6b651b000001977420dc0401",
    "failures 02ac73ba008000000000000000000005 = 836d6368756e6b20352062726f6b651b000001977420dc0402",
    "failures 02ac73ba024000000000000000000000 = 836d6368756e6b20302062726f6b651b000001977420dc0a01",
    "failures 02ac73ba02c000000000000000000001 = 836d6368756e6b20312062726f6b651b000001977420dc0c01",
    "replies 6b6f72646572203137 = 825053e6bccd6077a57b9147ca5ccf3971648202811b02ac73ba00800000",
    "replies 7300000000000000010000000000000005 = 82506757b465bfb18d25fbc2e5b26da8b2c38202811b02ac73ba01400000",
    "replies 7300000000000000010000000000000007 = 8250248e1a128ced58e5cdd5f63a76196de38202811b02ac73ba01c00000",
    "replies 7300000000000000010000000000000009 = 8250229f3d3e3a36afde88fd3b4394c5beb58202811b02ac73ba02400000",
    "replies 730000000000000001000000000000000b = 8250229f3d3e3a36afde88fd3b4394c5beb58202811b02ac73ba02c00000",
    "replies_by_time 0000000000000000 = 821b000001977420dc02496b6f72646572203137",
    "replies_by_time 0000000000000001 = 821b000001977420dc05517300000000000000010000000000000005",
    "replies_by_time 0000000000000002 = 821b000001977420dc07517300000000000000010000000000000007",
    "replies_by_time 0000000000000003 = 821b000001977420dc09517300000000000000010000000000000009",
    "replies_by_time 0000000000000004 = 821b000001977420dc0b51730000000000000001000000000000000b",
    "found 6d6f646500000b820281677072657669657702ac73ba00800000 = ",
    "found 73697a650000048201812402ac73ba00800000 = ",
    "found 757267656e74000004820081f502ac73ba00800000 = ",
];

/// What later builds wrote beside them.
const TRAITS_ROWS_OF_OLD: &[&str] = &[
    "traits 02ac73ba00800000 = 8320a3646d6f646582028167707265766965776473697a658201812466757267656e74820081f5f4",
    "traits 02ac73ba02c00000 = 8300a0f4",
];

/// And this one writes.
const TRAITS_ROWS: &[&str] = &[
    "traits 02ac73ba00800000 = 8420a3646d6f646582028167707265766965776473697a658201812466757267656e74820081f5f4f4",
    "traits 02ac73ba02c00000 = 8400a0f4f5",
];

const ROSTER_AND_WEIGHTS_ROWS: &[&str] = &[
    "roster 0000000000000007 = ",
    "roster 1000000000000000 = ",
    "roster 6c6561736573 = 1b000001977421c6c3",
    "weights 636f6d70616e79 = a16461636d6503",
];

/// What a change writes, in the place of rows with the same key or anew.
const CHANGED_ROWS: &[&str] = &[
    "meta 6d616368696e65 = 87011b000001977420dc63001b02ac73ba02c0000082010050910a2dec89025cc1beeb8da1658eec678182010b",
    "submissions 02ac73ba00800000 = 871b000001977420dc02830a0301091901f4000003",
    "abouts 02ac73ba00800000 = 890aa2646d6f64658202816466756c6c66757267656e74820081f507430102038201816c696e707574732f6461793d31091901f400686f72646572203137",
    "found 6d6f64650000088202816466756c6c02ac73ba00800000 = ",
    "traits 02ac73ba00800000 = 8407a2646d6f64658202816466756c6c66757267656e74820081f5f5f4",
];

/// What it removes.
const REMOVED_ROWS: &[&str] = &[
    "found 6d6f646500000b820281677072657669657702ac73ba00800000 = ",
    "found 73697a650000048201812402ac73ba00800000 = ",
];
