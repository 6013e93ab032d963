//! The stored bytes of what lanes have: tasks, levels, keys, ranks.

use crate::{BEGIN_MS, bytes, entry, lines_of, tables_of};
use minicbor::bytes::ByteVec;
use windlass_core::audit;
use windlass_core::entry::{
    Command, Complete, Done, EntryGroup, Fail, FailedAttempt, Lead, Outcome, Output, Settled,
};
use windlass_core::ids::{Attempt, ChunkIndex, Epoch, Shard};
use windlass_core::lanes::acks::{Ack, Gap};
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{LaneNumber, Level, Weight};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::listing;
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::ranks::{RankRow, TenantRow};
use windlass_core::lanes::relevel::{Phase, Relevel, RelevelFrom, Releveled, UnderWay};
use windlass_core::lanes::settle::{CompleteTasks, PlacedTasks};
use windlass_core::lanes::tasks::{AddTasks, HandedOut, NewTask, Payload, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table};
use windlass_core::time::At;

#[test]
fn lanes_are_stored_in_these_rows_and_a_machine_opens_them_again() {
    let machine = scripted_lanes();
    audit::check(&machine);
    let of_lanes = |line: &&str| TABLES.iter().any(|table| line.starts_with(&format!("{} ", table.name())));
    let lines = lines_of(&machine);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let apart = [Table::TaskGroups, Table::GroupsLeft, Table::Relevels];
    for table in TABLES.into_iter().filter(|table| !apart.contains(table)) {
        let is_there = lines.iter().any(|line| line.starts_with(&format!("{} ", table.name())));
        assert!(is_there, "the script writes to {}", table.name());
    }
    let expected: Vec<String> = ROWS.iter().map(|row| row.replace("(09)", &"09".repeat(1_025))).collect();
    let found: Vec<&str> = lines.iter().copied().filter(of_lanes).collect();
    assert_eq!(found, expected, "found:\n{}", found.join("\n"));

    let mut again = Machine::open(tables_of(&lines));
    audit::check(&again);
    assert!(again.lanes().all().eq(machine.lanes().all()));
    again.flush();
    assert_eq!(again.tables(), machine.tables(), "opening and flushing changes no row");
}

#[test]
fn tasks_that_share_a_row_and_an_order_in_the_making_are_stored_in_these_rows() {
    let machine = scripted_groups();
    audit::check(&machine);
    let is_shown =
        |line: &&str| GROUP_TABLES.iter().any(|table| line.starts_with(&format!("{} ", table.name())));
    let lines = lines_of(&machine);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let found: Vec<&str> = lines.iter().copied().filter(is_shown).collect();
    assert_eq!(found, GROUP_ROWS, "found:\n{}", found.join("\n"));

    let mut again = Machine::open(tables_of(&lines));
    audit::check(&again);
    assert!(again.lanes().all().eq(machine.lanes().all()));
    again.flush();
    assert_eq!(again.tables(), machine.tables(), "opening and flushing changes no row");
}

#[test]
fn a_gap_behind_the_ack_level_is_stored_at_the_end_of_the_rows_that_have_that() {
    let level = |pass, id| Level { pass, id: TaskId::from_u64(id).expect("an id") };
    let gap = Some(Gap { above: level(7, 8), to: level(9, 10) });
    let rank = RankRow { virtual_time: 11, acked: Some(level(5, 6)), gap, ..RankRow::default() };
    let tenant = TenantRow { virtual_time: 11, acked: Some(level(5, 6)), gap };
    for (found, of_old, expected) in [
        (encoded(&rank), encoded(&RankRow { gap: None, ..rank }), RANK_WITH_GAP),
        (encoded(&tenant), encoded(&TenantRow { gap: None, ..tenant }), TENANT_WITH_GAP),
    ] {
        assert_eq!(found, expected);
        let fields = |row: &str| u8::from_str_radix(&row[..2], 16).expect("the head of an array");
        assert_eq!(fields(&of_old) + 1, fields(expected), "without one the row is as it was before");
        assert!(expected[2..].starts_with(&of_old[2..]));
    }
}

#[test]
fn how_far_a_keys_tasks_have_got_new_levels_is_stored_in_these_rows() {
    let level = Some(Level { pass: 7, id: TaskId::from_u64(8).expect("an id") });
    let phases = [
        (Phase::Count { first: 1 << 20, tasks: 8 }, None, "82818200821a001000000818ff"),
        (Phase::Apart { next: 9 }, level, "82828201810982070818ff"),
        (Phase::Together { last: None }, level, "828282028082070818ff"),
        (Phase::Together { last: Some(9) }, level, "82828202810982070818ff"),
    ];
    for (phase, level, expected) in phases {
        let row = UnderWay { from: RelevelFrom { phase, level }, stride: 255 };
        assert_eq!(encoded(&row), expected);
        let bytes = super::bytes(expected);
        assert_eq!(minicbor::decode::<UnderWay>(&bytes).expect("it is one"), row);
    }
}

#[test]
fn a_relevel_that_says_itself_how_far_it_is_reads_as_one_that_does_not() {
    let decode = |hex: &str| EntryGroup::from_bytes(&super::bytes(hex)).expect("a group of old");
    assert_eq!(decode(super::RELEVEL_OF_OLD), decode(super::RELEVEL));
}

const RANK_WITH_GAP: &str = "8a0b820506f60000000000008282070882090a";
const TENANT_WITH_GAP: &str = "830b8205068282070882090a";

fn encoded<T: minicbor::Encode<()>>(row: &T) -> String {
    super::hex(&minicbor::to_vec(row).expect("rows have a form"))
}

#[test]
fn a_machine_opens_the_rows_of_old_and_their_tasks_go_on() {
    let key = |row: &str| row.split(" = ").next().expect("a row has a key").to_owned();
    let of_old: Vec<String> = ROWS_OF_OLD.iter().map(|row| key(row)).collect();
    let lines = lines_of(&scripted_lanes());
    let kept = lines.iter().filter(|row| !of_old.contains(&key(row))).map(String::as_str);
    let mut machine = Machine::open(tables_of(&kept.chain(ROWS_OF_OLD.iter().copied()).collect::<Vec<_>>()));
    machine.flush();
    audit::check(&machine);

    let task_of = |row: &&str| row.strip_prefix("tasks ").map(|rest| TaskId::from_key(&bytes(&rest[..16])));
    let tasks: Vec<TaskId> = ROWS_OF_OLD.iter().filter_map(|row| task_of(row)?).collect();
    let payload = |machine: &Machine<MemoryTables>, id: TaskId| {
        listing::task_and_payload(machine.tables(), id).map(|(_, payload)| payload)
    };
    assert_eq!(payload(&machine, tasks[0]), Some(Payload::Object("inputs/1".into())));
    assert_eq!(payload(&machine, tasks[1]), Some(Payload::Nothing));

    let attempt = Attempt::of_task(Epoch(1), 0);
    let failed = vec![FailedAttempt { chunk: ChunkIndex(0), attempt, reason: "it broke".into() }];
    machine.apply(entry(90, Command::Fail(Fail { submission: tasks[0], failed })));
    let level = |id| Level { pass: 0, id };
    let placed = |tenant: Option<&str>, id| PlacedTasks {
        lane: LaneNumber(1),
        priority: 0,
        tenant: tenant.map(str::to_owned),
        levels: vec![level(id)],
    };
    let report = CompleteTasks {
        placed: vec![placed(None, tasks[1]), placed(Some("acme/"), tasks[2])],
        others: vec![],
    };
    let settled = machine.apply(entry(91, Command::CompleteTasks(report))).outcome;
    assert_eq!(settled, Outcome::Settled(vec![Settled::Accepted; 2]));
    machine.flush();
    audit::check(&machine);
    assert_eq!(
        payload(&machine, tasks[0]),
        Some(Payload::Object("inputs/1".into())),
        "while it waits for its retry"
    );
}

/// Entries of earlier builds say nothing of the order of keys, and what follows them in the log relies on it.
#[test]
fn a_lane_that_an_entry_of_old_creates_keeps_its_keys_in_order() {
    let entry_of_old = bytes("84646d61696cf5f4f4");
    let set: SetLane = minicbor::decode(&entry_of_old).expect("it is one");
    assert_eq!(set, SetLane { is_draining: Some(false), without_key_order: false, ..full_set_lane() });
    let mut machine = Machine::open(MemoryTables::default());
    let mut number = 0;
    let mut apply = |command| {
        number += 1;
        machine.apply(entry(number, command)).outcome
    };
    apply(Command::Lead(Lead { shard: Shard::default() }));
    assert_eq!(apply(Command::SetLane(set)), Outcome::LaneSet);
    assert!(matches!(apply(Command::AddTasks(full_add_tasks())), Outcome::TasksAdded { .. }));
    assert_eq!(
        apply(full_limit_lane()),
        Outcome::LaneSet,
        "tasks wait, and a limit of each key holds at once"
    );
    machine.flush();
    audit::check(&machine);
}

pub(crate) fn full_set_lane() -> SetLane {
    SetLane {
        name: "mail".into(),
        may_create: true,
        is_paused: Some(false),
        is_draining: Some(true),
        without_key_order: true,
    }
}

pub(crate) fn full_add_tasks() -> AddTasks {
    let full = NewTask {
        key: "acme".into(),
        weight: Weight::from_milli(2_500).expect("it is a weight"),
        priority: 3,
        payload: Payload::Inline(ByteVec::from(vec![7, 8])),
        not_before: Some(At::from_ms(BEGIN_MS + 500)),
        attempts_max: 2,
        retry_delay_ms: 100,
        delay_ms: Some(3),
    };
    let object = NewTask { payload: Payload::Object("inputs/1".into()), ..NewTask::new("") };
    AddTasks {
        lane: "mail".into(),
        tasks: vec![full, object, NewTask::new("zeta")],
        handed_out: vec![
            HandedOut { priority: 0, pass: 0, tenant: None },
            HandedOut { priority: 3, pass: 1 << 40, tenant: None },
            HandedOut { priority: 3, pass: 5, tenant: Some("acme/".into()) },
        ],
        idempotency_key: Some("order 18".into()),
    }
}

pub(crate) fn full_weigh_keys() -> Command {
    let weights = [("acme".to_owned(), Some(Weight::ONE)), ("zeta".to_owned(), None)];
    Command::WeighKeys(WeighKeys { lane: "mail".into(), weights: weights.into() })
}

pub(crate) fn full_limit_lane() -> Command {
    let limit = Limit { in_flight: Some(3), rate: Some(Rate { milli_per_second: 2_500, burst: 7 }) };
    let scopes = [Scope::Lane, Scope::EachKey, Scope::EachTenant, Scope::Named("acme/".into())];
    let mut set: Vec<SetLimit> =
        scopes.into_iter().map(|scope| SetLimit { scope, limit: Some(limit) }).collect();
    set.push(SetLimit { scope: Scope::Named("zeta".into()), limit: None });
    Command::LimitLane(LimitLane { lane: "mail".into(), set })
}

pub(crate) fn full_relevel() -> Relevel {
    Relevel {
        lane: "mail".into(),
        priority: 3,
        key: "acme".into(),
        handed_out: vec![HandedOut { priority: 3, pass: 4, tenant: None }],
    }
}

pub(crate) fn full_complete_tasks(level: Level) -> Command {
    let of = |tenant: Option<&str>| PlacedTasks {
        lane: LaneNumber(7),
        priority: 3,
        tenant: tenant.map(str::to_owned),
        levels: vec![level, Level { pass: 0, id: TaskId::first() }],
    };
    Command::CompleteTasks(CompleteTasks {
        placed: vec![of(None), of(Some("acme/"))],
        others: vec![level.id],
    })
}

pub(crate) fn full_ack(level: Level, gap: Option<Gap>) -> Command {
    let tenant = Some("acme/".into());
    Command::Ack(Ack { lane: LaneNumber(7), priority: 3, level, tenant, gap })
}

pub(crate) fn full_order_keys() -> Command {
    Command::OrderKeys(OrderKeys { lane: "mail".into(), tasks_max: 500 })
}

pub(crate) const fn full_releveled() -> Releveled {
    let phase = Phase::Count { first: 1 << 20, tasks: 8 };
    Releveled { tasks: 7, next: Some(RelevelFrom { phase, level: None }) }
}

/// A machine after a script that writes every kind of row that lanes have.
fn scripted_lanes() -> Machine<MemoryTables> {
    let mut machine = Machine::open(MemoryTables::default());
    let mut number = 0;
    let mut apply = |command| {
        number += 1;
        let outcome = machine.apply(entry(number, command)).outcome;
        machine.flush();
        outcome
    };
    let ids = |outcome| match outcome {
        Outcome::TasksAdded { tasks } => tasks.iter().collect::<Vec<_>>(),
        other => panic!("the tasks are taken in, not answered with {other:?}"),
    };
    apply(Command::Lead(Lead { shard: Shard::default() }));
    apply(Command::SetLane(SetLane { is_draining: None, ..full_set_lane() }));
    apply(full_weigh_keys());
    apply(full_limit_lane());
    ids(apply(Command::AddTasks(full_add_tasks())));
    let large = NewTask { payload: Payload::Inline(ByteVec::from(vec![9; 1_025])), ..NewTask::new("acme") };
    let fragile = NewTask { attempts_max: 1, ..NewTask::new("acme") };
    let tasks = vec![fragile, NewTask::new("acme"), large, NewTask::new("acme/bob")];
    let handed_out = vec![HandedOut { priority: 0, pass: 0, tenant: None }];
    let add = AddTasks { lane: "mail".into(), tasks, handed_out, idempotency_key: None };
    let added = ids(apply(Command::AddTasks(add)));
    let attempt = Attempt::of_task(Epoch(1), 0);
    let failed = vec![FailedAttempt { chunk: ChunkIndex(0), attempt, reason: "it broke".into() }];
    apply(Command::Fail(Fail { submission: added[0], failed }));
    let done = vec![Done { chunk: ChunkIndex(0), attempt, output: Output::Nothing, entries: None }];
    apply(Command::Complete(Complete { submission: added[1], done }));
    machine
}

/// Nine tasks that are added together, of which one is done, one has failed and one is not due yet; some of them are in order.
fn scripted_groups() -> Machine<MemoryTables> {
    let mut machine = Machine::open(MemoryTables::default());
    let mut number = 0;
    let mut apply = |command| {
        number += 1;
        let outcome = machine.apply(entry(number, command)).outcome;
        machine.flush();
        outcome
    };
    apply(Command::Lead(Lead { shard: Shard::default() }));
    apply(Command::SetLane(SetLane { is_draining: None, ..full_set_lane() }));
    let small = Payload::Inline(ByteVec::from(vec![7, 8]));
    let mut tasks: Vec<NewTask> =
        ["acme", "acme/bob", "zeta", "acme", "zeta", "acme/eve", "acme", "zeta", "acme"]
            .into_iter()
            .map(|key| NewTask { payload: small.clone(), ..NewTask::new(key) })
            .collect();
    tasks[2].delay_ms = Some(500);
    tasks[3].weight = Weight::from_milli(2_500).expect("it is a weight");
    tasks[4].priority = 3;
    let add = AddTasks { lane: "mail".into(), tasks, handed_out: Vec::new(), idempotency_key: None };
    let Outcome::TasksAdded { tasks } = apply(Command::AddTasks(add)) else { panic!("they are taken in") };
    let added: Vec<TaskId> = tasks.iter().collect();
    let attempt = Attempt::of_task(Epoch(1), 0);
    let failed = vec![FailedAttempt { chunk: ChunkIndex(0), attempt, reason: "it broke".into() }];
    apply(Command::Fail(Fail { submission: added[6], failed }));
    let done = vec![Done { chunk: ChunkIndex(0), attempt, output: Output::Nothing, entries: None }];
    apply(Command::Complete(Complete { submission: added[0], done }));
    for tasks_max in [4, 1] {
        apply(Command::OrderKeys(OrderKeys { lane: "mail".into(), tasks_max }));
    }
    machine
}

pub(crate) const TABLES: [Table; 13] = [
    Table::Lanes,
    Table::Ranks,
    Table::LaneKeys,
    Table::Tasks,
    Table::Payloads,
    Table::Levels,
    Table::KeyLevels,
    Table::DelayedTasks,
    Table::DeadTasks,
    Table::Tenants,
    Table::TaskGroups,
    Table::GroupsLeft,
    Table::Relevels,
];

const GROUP_TABLES: [Table; 6] =
    [Table::Lanes, Table::Tasks, Table::Levels, Table::KeyLevels, Table::TaskGroups, Table::GroupsLeft];

const GROUP_ROWS: &[&str] = &[
    "lanes 6d61696c = 87011b000001977420dc02f4f4a084808080a082028185006561636d652f82001b02ac73ba00c000010482001b02ac73ba00c00005",
    "tasks 02ac73ba00c00002 = 8b0100647a6574611903e88201811b000001977420ddf71b000001977420dc03051903e800f6820181420708",
    "tasks 02ac73ba00c00006 = 8b01006461636d651903e88201811b000001977420dfec1b000001977420dc03051903e80182011b4000000000000000820181420708",
    "levels 0000000100000000000000000002ac73ba00c00007 = 84647a6574611a0010000082018142070807",
    "levels 0000000100000000000010000002ac73ba00c00003 = 846461636d651a0006666682018142070803",
    "levels 0000000100000000000026666602ac73ba00c00008 = 846461636d651a0010000082018142070808",
    "levels 0000000103000000000000000002ac73ba00c00004 = 84647a6574611a0010000082018142070804",
    "key_levels 00000001000461636d65000000000010000002ac73ba00c00003 = 1a00066666",
    "key_levels 00000001000461636d65000000000026666602ac73ba00c00008 = 1a00100000",
    "key_levels 0000000100047a657461000000000000000002ac73ba00c00007 = 1a00100000",
    "key_levels 00000001000561636d652f000000000000000002ac73ba00c00001 = 846861636d652f626f621a0010000082018142070801",
    "key_levels 00000001000561636d652f000000000000000002ac73ba00c00005 = 846861636d652f6576651a0010000082018142070805",
    "key_levels 00000001000861636d652f626f62000000000000000002ac73ba00c00001 = 1a00100000",
    "task_groups 02ac73ba00c00000 = 85011b000001977420dc03846461636d656861636d652f626f62647a6574616861636d652f6576658384001903e8051903e884001909c4051903e884031903e8051903e8898300000083010000f68300011a0010000083020200830300008300001a00166666830200008300001a00266666",
    "groups_left 02ac73ba00c00000 = 06",
];

/// All rows of these tables after their script, in order; `(09)` stands for 1,025 bytes of nine.
const ROWS: &[&str] = &[
    "lanes 6d61696c = 87011b000001977420dc02f4f4a16461636d651903e8848203821909c4078203821909c4078203821909c407a16561636d652f8203821909c407820080",
    "ranks 0000000100 = 891a00100000f6821a002000001b02ac73ba01800002040001060100",
    "ranks 0000000103 = 891b0000010000000000f6f6000100010005",
    "lane_keys 000000010000 = 831a00100000011a00100000",
    "lane_keys 00000001000461636d65 = 831a00300000011a00100000",
    "lane_keys 0000000100047a657461 = 831a00100000011a00100000",
    "lane_keys 00000001000561636d652f = 8300011a00100000",
    "lane_keys 00000001000861636d652f626f62 = 831a00100000011a00100000",
    "tasks 02ac73ba01400000 = 8b01036461636d651909c48201811b000001977420ddf41b000001977420dc0502186400f6820181420708",
    "tasks 02ac73ba01400001 = 890100601903e8820081001b000001977420dc05051903e800",
    "tasks 02ac73ba01400002 = 890100647a6574611903e8820081001b000001977420dc05051903e800",
    "tasks 02ac73ba01800000 = 8b01006461636d651903e88202801b000001977420dc06011903e80182011b4000000000000000820080",
    "tasks 02ac73ba01800002 = 8901006461636d651903e88200811a002000001b000001977420dc06051903e800",
    "tasks 02ac73ba01800003 = 8901006861636d652f626f621903e8820081001b000001977420dc06051903e800",
    "payloads 02ac73ba01800002 = 820181590401(09)",
    "levels 0000000100000000000000000002ac73ba01400001 = 83601a0010000082028168696e707574732f31",
    "levels 0000000100000000000000000002ac73ba01400002 = 83647a6574611a00100000820080",
    "levels 0000000100000000000020000002ac73ba01800002 = 826461636d651a00100000",
    "key_levels 000000010000000000000000000002ac73ba01400001 = 1a00100000",
    "key_levels 00000001000461636d65000000000020000002ac73ba01800002 = 1a00100000",
    "key_levels 0000000100047a657461000000000000000002ac73ba01400002 = 1a00100000",
    "key_levels 00000001000561636d652f000000000000000002ac73ba01800003 = 836861636d652f626f621a00100000820080",
    "key_levels 00000001000861636d652f626f62000000000000000002ac73ba01800003 = 1a00100000",
    "delayed_tasks 000001977420ddf402ac73ba01400000 = ",
    "dead_tasks 0000000102ac73ba01800000 = 826869742062726f6b651b000001977420dc07",
    "tenants 00000001000561636d652f = 8100",
];

/// Rows that earlier builds wrote otherwise: small payloads were in the tasks' own rows all the while, and of lanes nothing was said of
/// the order of keys, which each of them had.
const ROWS_OF_OLD: &[&str] = &[
    "lanes 6d61696c = 86011b000001977420dc02f4f4a16461636d651903e8848203821909c4078203821909c4078203821909c407a16561636d652f8203821909c407",
    "tasks 02ac73ba01400001 = 8b0100601903e8820081001b000001977420dc05051903e800f682028168696e707574732f31",
    "tasks 02ac73ba01400002 = 8b0100647a6574611903e8820081001b000001977420dc05051903e800f6820080",
    "tasks 02ac73ba01800003 = 8b01006861636d652f626f621903e8820081001b000001977420dc06051903e800f6820080",
    "levels 0000000100000000000000000002ac73ba01400001 = 82601a00100000",
    "levels 0000000100000000000000000002ac73ba01400002 = 82647a6574611a00100000",
    "key_levels 00000001000561636d652f000000000000000002ac73ba01800003 = 826861636d652f626f621a00100000",
];
