//! Rows that tasks share, and rows that they have only where something needs them.

use crate::leader::{Held, LANE, Leader, fail};
use crate::limits::{in_flight, named};
use minicbor::bytes::ByteVec;
use windlass_core::entry::{Command, Outcome, Refusal, Settled};
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::limiting::{LimitLane, Scope, SetLimit};
use windlass_core::lanes::listing;
use windlass_core::lanes::settle::CompleteTasks;
use windlass_core::lanes::tasks::{NewTask, Payload, TaskId};
use windlass_core::limits::{TASKS_PER_GROUP_MAX, TASKS_PER_GROUP_MIN};
use windlass_core::tables::Table;

fn shared(leader: &Leader) -> [usize; 3] {
    [Table::Tasks, Table::TaskGroups, Table::GroupsLeft].map(|table| leader.rows(table))
}

fn complete_all(leader: &mut Leader, held: &[Held]) -> Vec<Settled> {
    let (report, _) = leader.complete_all(held);
    match leader.apply(Command::CompleteTasks(report)).outcome {
        Outcome::Settled(settled) => settled,
        other => panic!("it is taken in, not answered with {other:?}"),
    }
}

#[test]
fn tasks_that_are_added_together_share_a_row_until_the_last_of_them_is_done() {
    let mut leader = Leader::new(2_000, 1);
    let keys = ["a", "acme/bob", "b"];
    let count = 2 * TASKS_PER_GROUP_MAX + 1;
    let added = leader.add((0..count).map(|nth| NewTask::new(keys[nth % 3])).collect());
    assert_eq!(shared(&leader), [0, 3, 3], "the last one has a group of its own");
    for id in [added[0], added[TASKS_PER_GROUP_MAX], added[count - 1]] {
        let task = listing::task(leader.machine.tables(), id).expect("it is found by its id");
        assert_eq!(task.key, keys[added.iter().position(|it| *it == id).unwrap() % 3]);
    }
    let mut held = leader.all();
    held.sort_by_key(|it| it.id);
    let last = held.swap_remove(1);
    assert_eq!(complete_all(&mut leader, &held), vec![Settled::Accepted; count - 1]);
    assert_eq!(shared(&leader), [0, 1, 1]);
    assert!(listing::task(leader.machine.tables(), added[0]).is_none(), "it is done");
    leader.change();
    assert_eq!(leader.complete(last), Settled::Accepted);
    assert_eq!(shared(&leader), [0; 3]);
}

#[test]
fn few_tasks_have_rows_of_their_own() {
    let mut leader = Leader::new(8, 1);
    leader.add_of("a", TASKS_PER_GROUP_MIN - 1);
    assert_eq!(shared(&leader), [TASKS_PER_GROUP_MIN - 1, 0, 0]);
    leader.add_of("a", TASKS_PER_GROUP_MIN);
    assert_eq!(shared(&leader), [TASKS_PER_GROUP_MIN - 1, 1, 1]);
}

#[test]
fn a_task_that_fails_leaves_its_group_and_goes_on_by_itself() {
    let mut leader = Leader::new(16, 1);
    let payload = Payload::Inline(ByteVec::from(vec![7; 3]));
    let task = NewTask { payload: payload.clone(), attempts_max: 2, retry_delay_ms: 10, ..NewTask::new("a") };
    let added = leader.add(vec![task; 9]);
    let held = leader.all();
    assert_eq!(leader.fail(held[0]), Settled::Accepted);
    assert_eq!(leader.fail(held[0]), Settled::AlreadyFailed);
    assert_eq!(shared(&leader), [1, 1, 1]);
    let found = |leader: &Leader| listing::task_and_payload(leader.machine.tables(), added[0]);
    assert_eq!(found(&leader).map(|(task, payload)| (task.failures, payload)), Some((1, payload.clone())));
    assert_eq!(complete_all(&mut leader, &held[1..]), vec![Settled::Accepted; 8]);
    assert_eq!(shared(&leader), [1, 0, 0], "the others are done, and it is not among them");

    leader.wait_ms(10);
    assert_eq!(found(&leader).map(|(task, payload)| (task.failures, payload)), Some((1, payload.clone())));
    let again = leader.next_is(added[0]);
    leader.fail(again);
    assert_eq!(found(&leader).map(|(_, payload)| payload), Some(payload), "it is dead");
    leader.apply(fail(added[1], again.token.attempt));
    assert_eq!(shared(&leader), [1, 0, 0]);
}

#[test]
fn a_task_is_done_once_however_often_it_is_reported_and_by_whatever_name() {
    let mut leader = Leader::new(16, 1);
    let mut tasks = vec![NewTask::new("a"); 10];
    tasks[3].payload = Payload::Inline(ByteVec::from(vec![7; 5_000]));
    tasks[4].payload = tasks[3].payload.clone();
    tasks[5].delay_ms = Some(50);
    let added = leader.add(tasks);
    assert_eq!((shared(&leader), leader.rows(Table::Payloads)), ([1, 1, 1], 2));
    let held = leader.all();
    let (report, _) = leader.complete_all(&held);
    let twice =
        |report: &CompleteTasks| CompleteTasks { placed: report.placed.clone(), others: added.clone() };
    let Outcome::Settled(settled) = leader.apply(Command::CompleteTasks(twice(&report))).outcome else {
        panic!("it is taken in")
    };
    let accepted = settled.iter().filter(|it| **it == Settled::Accepted).count();
    assert_eq!(
        (settled.len(), accepted),
        (19, 10),
        "nine by their places, and the one that is not due by its id"
    );
    assert_eq!((shared(&leader), leader.rows(Table::Payloads)), ([0; 3], 0));
    let again = leader.apply(Command::CompleteTasks(twice(&report))).outcome;
    assert_eq!(again, Outcome::Settled(vec![Settled::AlreadyDone; 19]));
}

/// As many keys, and as many kinds of tasks, as a group can hold, added in the last moments of a millisecond's ids.
#[test]
fn tasks_that_have_nothing_in_common_share_rows_too_wherever_their_ids_go_on() {
    let mut leader = Leader::new(2_000, 1);
    // A millisecond has 4,096 ids.
    (0..3).for_each(|_| drop(leader.add_of("first", 1_000)));
    let task = |nth: usize| NewTask { retry_delay_ms: nth as u64, ..NewTask::new(format!("key {nth}")) };
    let mut tasks: Vec<NewTask> = (0..1_000).map(task).collect();
    tasks.iter_mut().skip(600).step_by(3).for_each(|task| task.delay_ms = Some(1));
    let mut added = leader.add(tasks.clone());
    added.extend(leader.add(tasks));
    let gaps = added.windows(2).filter(|pair| pair[1].as_u64() - pair[0].as_u64() > 1).count();
    assert_eq!(gaps, 1, "the next millisecond's ids begin among them");
    for (nth, id) in added.iter().enumerate() {
        let task = listing::task(leader.machine.tables(), *id).expect("it is found by its id");
        assert_eq!((task.key, task.retry_delay_ms), (format!("key {}", nth % 1_000), (nth % 1_000) as u64));
    }
    leader.wait_ms(1);
    let done = |it: &TaskId| CompleteTasks { placed: Vec::new(), others: vec![*it] };
    for id in &added {
        leader.is_audited = false;
        assert_eq!(
            leader.apply(Command::CompleteTasks(done(id))).outcome,
            Outcome::Settled(vec![Settled::Accepted])
        );
    }
    leader.is_audited = true;
    leader.audit();
    assert_eq!(leader.rows(Table::TaskGroups), 12, "those of the first three thousand");
}

fn limit_command(scope: Scope) -> Command {
    let set = vec![SetLimit { scope, limit: in_flight(1) }];
    Command::LimitLane(LimitLane { lane: LANE.into(), set })
}

fn order(leader: &mut Leader, tasks_max: u32) -> bool {
    match leader.apply(Command::OrderKeys(OrderKeys { lane: LANE.into(), tasks_max })).outcome {
        Outcome::KeysOrdered { is_done } => is_done,
        other => panic!("a step is done, not answered with {other:?}"),
    }
}

#[test]
fn a_lane_keeps_its_keys_in_order_from_when_the_first_is_limited_and_what_waits_is_put_in_order_in_steps() {
    let mut leader = Leader::new(64, 8);
    (0..30).for_each(|nth| drop(leader.add_of(&format!("t{nth}/x"), 1)));
    leader.add_of("a", 20);
    leader.add(vec![NewTask { priority: 7, ..NewTask::new("a") }; 5]);
    assert_eq!(leader.rows(Table::KeyLevels), 30, "those of tenants");
    for scope in [Scope::Lane, Scope::EachTenant, named("t7/")] {
        assert_eq!(leader.apply(limit_command(scope)).outcome, Outcome::LaneSet, "it is of no key");
    }
    leader.apply(Command::LimitLane(LimitLane {
        lane: LANE.into(),
        set: [Scope::Lane, Scope::EachTenant, named("t7/")]
            .map(|scope| SetLimit { scope, limit: None })
            .into(),
    }));
    let refused = Outcome::Refused(Refusal::KeysUnordered { lane: LANE.into() });
    for scope in [Scope::EachKey, named("a")] {
        assert_eq!(leader.apply(limit_command(scope)).outcome, refused);
    }

    // Tasks come and go meanwhile.
    let (mut steps, mut of_tenants) = (1, 30);
    while !order(&mut leader, 4) {
        steps += 1;
        assert_eq!(leader.apply(limit_command(named("a"))).outcome, refused);
        leader.add_of("a", 1);
        if let Some(held) = leader.next() {
            of_tenants -= u64::from(leader.key(held.id).contains('/'));
            leader.complete(held);
        }
        if steps == 3 {
            leader.change();
        }
    }
    assert!((30..=40).contains(&steps), "four tasks or one queue at a time, 50 tasks take {steps} steps");
    assert!(order(&mut leader, 4), "once more there is nothing to do");
    let waiting = leader.machine.lanes().by_name(LANE).unwrap().waiting();
    assert_eq!(leader.rows(Table::KeyLevels) as u64, waiting + of_tenants);
    assert_eq!(leader.apply(limit_command(named("a"))).outcome, Outcome::LaneSet);
    leader.look_for_rows();
    let held: Vec<TaskId> = leader.all().iter().map(|held| held.id).collect();
    assert_eq!(held.iter().filter(|id| leader.key(**id) == "a").count(), 1);
}

#[test]
fn keys_come_to_be_in_order_however_many_tasks_are_added_meanwhile() {
    let mut leader = Leader::new(64, 8);
    leader.is_audited = false;
    for key in ["a", "t/x"] {
        leader.add_of(key, 100);
    }
    let mut steps = 1;
    while !order(&mut leader, 10) {
        steps += 1;
        assert!(steps < 50, "what is added behind those that wait is not waited for");
        ["a", "t/x"].iter().for_each(|key| drop(leader.add_of(key, 20)));
    }
    leader.is_audited = true;
    leader.audit();
    assert!(steps >= 20, "two hundred in steps of ten");
}

#[test]
fn a_lane_without_tasks_is_in_order_and_stays_so() {
    let mut leader = Leader::new(16, 1);
    assert_eq!(leader.apply(limit_command(Scope::EachKey)).outcome, Outcome::LaneSet);
    leader.add_of("a", 10);
    assert_eq!(leader.rows(Table::KeyLevels), 10);
    let set = vec![SetLimit { scope: Scope::EachKey, limit: None }];
    leader.apply(Command::LimitLane(LimitLane { lane: LANE.into(), set }));
    leader.add_of("a", 10);
    assert_eq!(leader.rows(Table::KeyLevels), 20, "also when the limit is lifted");
    let held = leader.all();
    complete_all(&mut leader, &held);
    let unknown = OrderKeys { lane: "nobody".into(), tasks_max: 1 };
    let outcome = leader.apply(Command::OrderKeys(unknown)).outcome;
    assert_eq!(outcome, Outcome::Refused(Refusal::LaneUnknown { lane: "nobody".into() }));
}
