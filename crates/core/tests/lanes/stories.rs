//! Stories of the verbs: adding, delaying, failing, driving again, pausing, draining, and who may do what when.

use crate::leader::{ANNA, BEGIN, Held, LANE, Leader, complete, fail, ids, name_of};
use minicbor::bytes::ByteVec;
use std::collections::BTreeMap;
use windlass_core::batch::reserver::{Holder, SessionId, Standing as Stands};
use windlass_core::batch::strategy::Strategy;
use windlass_core::entry::{Command, Entry, Outcome, Refusal, Settled};
use windlass_core::lanes::levels::{STRIDE, Weight};
use windlass_core::lanes::listing;
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::settle::CompleteTasks;
use windlass_core::lanes::tasks::{AddTasks, NewTask, Payload, Standing, TaskId};
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::{LANE_WEIGHTS_MAX, LANES_MAX, LOSS_DELAY_MS, TASKS_DUE_PER_COMMAND_MAX};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table};

const BERT: SessionId = SessionId(2);

fn order(leader: &mut Leader) -> Vec<TaskId> {
    leader.all().into_iter().map(|held| held.id).collect()
}

fn refusal(outcome: &Outcome) -> &Refusal {
    match outcome {
        Outcome::Refused(refusal) => refusal,
        other => panic!("it is refused, not answered with {other:?}"),
    }
}

#[test]
fn no_task_goes_out_while_one_of_a_higher_priority_waits() {
    let mut leader = Leader::new(4, 1);
    let of = |priority| NewTask { priority, ..NewTask::new("a") };
    let low = leader.add(vec![of(0); 10]);
    let high = leader.add(vec![of(9); 10]);
    let middle = leader.add(vec![of(5); 10]);
    let first = leader.next_is(high[0]);
    let later = leader.add(vec![of(9)]);
    leader.release(first);
    assert_eq!(order(&mut leader), [high, later, middle, low].concat());
}

#[test]
fn a_higher_priority_is_waited_for_while_it_is_being_read() {
    let mut leader = Leader::new(4, 1);
    let high = leader.add(vec![NewTask { priority: 1, ..NewTask::new("a") }; 9]);
    leader.add_of("a", 3);
    leader.change();
    leader.collect_errands();
    let lane = leader.lane();
    let low = leader.errands.iter().position(|errand| format!("{errand:?}").contains("priority: 0")).unwrap();
    let read_of_low = leader.errands.remove(low);
    leader.go_for(read_of_low);
    let looked = leader.looked.pop().unwrap();
    leader.deliver(looked);
    assert_eq!(leader.reserve(1), [], "the low ones are there, the high ones are not known");
    assert!(leader.reserver.desk().is_reading(lane));
    leader.next_is(high[0]);
}

#[test]
fn repeating_a_request_adds_nothing_and_is_answered_as_before() {
    let mut leader = Leader::new(4, 1);
    let add = |leader: &Leader| AddTasks {
        idempotency_key: Some("order 17".into()),
        ..leader.stamped(LANE, vec![NewTask::new("a"), NewTask::new("b")])
    };
    let first = add(&leader);
    let added = ids(&leader.apply(Command::AddTasks(first)).outcome);
    let held = leader.next_is(added[0]);
    leader.complete(held);
    leader.next_is(added[1]);
    let again = add(&leader);
    let applied = leader.apply(Command::AddTasks(again.clone()));
    assert_eq!((ids(&applied.outcome), applied.effects), (added.clone(), vec![]));

    leader.set_lane(LANE, None, Some(true));
    let applied = leader.apply(Command::AddTasks(again.clone()));
    assert_eq!(
        ids(&applied.outcome),
        added,
        "a reply that was lost is given again, whatever the lane does now"
    );
    leader.change();
    assert_eq!(ids(&leader.apply(Command::AddTasks(again)).outcome), added, "and after a restart");
    assert_eq!(leader.rank_row(0).added, 2);
}

#[test]
fn the_same_idempotency_key_with_other_tasks_is_refused() {
    let mut leader = Leader::new(4, 1);
    leader.set_lane("post", None, None);
    let add = |lane: &str, key: &str| {
        let tasks = vec![NewTask::new(key)];
        let idempotency_key = Some("order 17".into());
        Command::AddTasks(AddTasks { lane: lane.into(), tasks, handed_out: Vec::new(), idempotency_key })
    };
    ids(&leader.apply(add(LANE, "a")).outcome);
    for other in [add(LANE, "b"), add("post", "a")] {
        assert_eq!(*refusal(&leader.apply(other).outcome), Refusal::IdempotencyKeyReused);
    }
    assert_eq!(leader.rows(Table::Tasks), 1);
}

#[test]
fn an_entry_that_the_log_delivers_twice_adds_its_tasks_once() {
    let mut leader = Leader::new(4, 1);
    let add = Command::AddTasks(leader.stamped(LANE, vec![NewTask::new("a"); 3]));
    let entry = leader.entry(add);
    let added = ids(&leader.apply_entry(entry.clone()).outcome);
    assert_eq!(*refusal(&leader.apply_entry(entry).outcome), Refusal::Repeated);
    assert_eq!(order(&mut leader), added);
}

#[test]
fn a_task_is_not_handed_out_before_its_time_and_is_then_charged_once() {
    let mut leader = Leader::new(4, 1);
    let later = NewTask { not_before: Some(BEGIN.after_ms(500)), ..NewTask::new("a") };
    let past = NewTask { not_before: Some(BEGIN), ..NewTask::new("a") };
    let added = leader.add(vec![later, past]);
    assert_eq!(leader.standing(added[0]), Standing::Delayed { until: BEGIN.after_ms(500) });
    assert_eq!(leader.reserver.desk().next_due(), Some(BEGIN.after_ms(500)));
    assert_eq!(order(&mut leader), added[1..]);
    leader.wait_ms(499);
    assert!(leader.all().is_empty());
    leader.wait_ms(1);
    assert_eq!(leader.level(added[0]).pass, STRIDE, "one stride after the other");
    assert_eq!(order(&mut leader), added[..1]);
    assert_eq!(leader.reserver.desk().next_due(), None);
}

#[test]
fn delayed_tasks_come_in_the_order_of_their_times_a_bounded_number_at_once() {
    let mut leader = Leader::new(32, 4);
    leader.is_audited = false;
    for nth in 0..3 {
        let not_before = Some(BEGIN.after_ms(100 - nth));
        leader.add(vec![NewTask { not_before, ..NewTask::new("a") }; TASKS_DUE_PER_COMMAND_MAX]);
    }
    leader.now = leader.now.after_ms(200);
    assert!(leader.reserver.at_desk(|desk| desk.take_due(leader.now)));
    let released = leader.apply(Command::ReleaseTasks).outcome;
    assert_eq!(released, Outcome::TasksReleased { tasks: TASKS_DUE_PER_COMMAND_MAX as u64 });
    assert_eq!(leader.reserver.desk().next_due(), Some(BEGIN.after_ms(99)), "the rest is due at once");
    leader.wait_ms(0);
    leader.audit();
    assert_eq!(leader.rank_row(0).delayed, 0);
    leader.change();
    assert_eq!(leader.all().len(), 3 * TASKS_DUE_PER_COMMAND_MAX);
}

#[test]
fn a_new_leader_knows_when_the_next_delayed_task_is_due() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![NewTask { not_before: Some(BEGIN.after_ms(500)), ..NewTask::new("a") }]);
    leader.change();
    assert_eq!(leader.reserver.desk().next_due(), Some(BEGIN.after_ms(500)));
    leader.wait_ms(500);
    assert_eq!(order(&mut leader), added);
}

#[test]
fn retries_wait_twice_as_long_each_time_and_a_task_is_dead_after_its_last_attempt() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![NewTask { attempts_max: 4, retry_delay_ms: 100, ..NewTask::new("a") }]);
    for delay in [100, 200, 400] {
        let held = leader.next_is(added[0]);
        assert_eq!(leader.fail(held), Settled::Accepted);
        assert_eq!(leader.fail(held), Settled::AlreadyFailed, "an attempt fails once");
        assert_eq!(leader.standing(added[0]), Standing::Delayed { until: leader.now.after_ms(delay) });
        leader.wait_ms(delay - 1);
        assert_eq!(leader.next(), None);
        leader.wait_ms(1);
    }
    let held = leader.next_is(added[0]);
    assert_eq!(leader.fail(held), Settled::Accepted);
    assert_eq!(leader.standing(added[0]), Standing::Dead);
    leader.wait_ms(1_000_000);
    assert_eq!(leader.next(), None);
    let dead: Vec<_> = listing::dead_after(leader.machine.tables(), leader.lane(), None).collect();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id, dead[0].reason.as_str()), (added[0], "it broke"));
    assert_eq!(listing::dead_after(leader.machine.tables(), leader.lane(), Some(added[0])).count(), 0);
}

#[test]
fn a_retry_gets_the_level_of_the_virtual_time_and_its_key_is_not_charged_again() {
    let mut leader = Leader::new(8, 2);
    let failing = leader.add(vec![NewTask { retry_delay_ms: 0, ..NewTask::new("a") }; 3]);
    let fine = leader.add_of("b", 3);
    let held = leader.next_is(failing[0]);
    leader.next_is(fine[0]);
    let finish = leader.level(failing[2]).pass + STRIDE;
    leader.next_is(failing[1]);
    leader.fail(held);
    leader.wait_ms(0);
    assert_eq!(leader.level(failing[0]).pass, leader.rank_row(0).virtual_time);
    let next = leader.add_of("a", 1);
    assert_eq!(leader.level(next[0]).pass, finish, "as if nothing had failed");
}

#[test]
fn dead_tasks_that_are_driven_again_have_all_their_attempts_and_others_are_left_alone() {
    let mut leader = Leader::new(4, 1);
    leader.set_lane("post", None, None);
    let added = leader.add(vec![NewTask { attempts_max: 1, ..NewTask::new("a") }; 2]);
    let waiting = leader.add_of("a", 1);
    for id in &added {
        let held = leader.next_is(*id);
        leader.fail(held);
    }
    let redrive =
        |lane: &str, tasks: &[TaskId]| Command::Redrive(Redrive { lane: lane.into(), tasks: tasks.to_vec() });
    let all = [added[0], waiting[0], added[0], TaskId::from_u64(7).unwrap()];
    assert_eq!(
        leader.apply(redrive("post", &all)).outcome,
        Outcome::Redriven { tasks: 0 },
        "of another lane"
    );
    assert_eq!(
        *refusal(&leader.apply(redrive("nope", &all)).outcome),
        Refusal::LaneUnknown { lane: "nope".into() }
    );
    assert_eq!(leader.apply(redrive(LANE, &all)).outcome, Outcome::Redriven { tasks: 1 });
    assert_eq!(leader.task(added[0]).unwrap().failures, 0);
    leader.next_is(waiting[0]);
    let held = leader.next_is(added[0]);
    assert_eq!(leader.fail(held), Settled::Accepted, "a new attempt, not the one that failed before");
    assert_eq!(leader.standing(added[0]), Standing::Dead);
    assert_eq!(leader.rank_row(0).dead, 2);
}

#[test]
fn what_is_done_late_is_done_even_if_the_task_is_delayed_or_dead() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![
        NewTask { attempts_max: 2, ..NewTask::new("a") },
        NewTask { attempts_max: 1, ..NewTask::new("a") },
    ]);
    for id in added {
        let held = leader.next_is(id);
        leader.fail(held);
        assert_eq!(leader.complete(held), Settled::Accepted);
        assert_eq!(leader.complete(held), Settled::AlreadyDone);
        assert_eq!(leader.fail(held), Settled::AlreadyDone);
    }
    leader.wait_ms(1_000_000);
    assert_eq!(leader.next(), None);
    for table in [Table::Tasks, Table::Levels, Table::KeyLevels, Table::DelayedTasks, Table::DeadTasks] {
        assert_eq!(leader.rows(table), 0, "{}", table.name());
    }
}

#[test]
fn a_paused_lane_gives_nothing_and_goes_on_where_it_stopped() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 9);
    let first = leader.next_is(added[0]);
    leader.set_lane(LANE, Some(true), None);
    leader.release(first);
    assert_eq!(leader.next(), None);
    let more = leader.add_of("a", 1);
    leader.change();
    assert_eq!(leader.next(), None, "a new leader knows that it is paused");
    leader.set_lane(LANE, Some(false), None);
    assert_eq!(order(&mut leader), [added, more].concat());
}

#[test]
fn a_lane_that_drains_takes_no_tasks_and_gives_all_that_it_has() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 9);
    leader.set_lane(LANE, None, Some(true));
    let add = leader.stamped(LANE, vec![NewTask::new("a")]);
    let refused = leader.apply(Command::AddTasks(add.clone())).outcome;
    assert_eq!(*refusal(&refused), Refusal::LaneDraining { lane: LANE.into() });
    assert_eq!(order(&mut leader), added);
    leader.set_lane(LANE, None, Some(false));
    ids(&leader.apply(Command::AddTasks(add)).outcome);
}

#[test]
fn a_lane_that_nobody_created_is_refused_wherever_it_is_named() {
    let mut leader = Leader::new(4, 1);
    let unknown = Refusal::LaneUnknown { lane: "nope".into() };
    let add = leader.stamped("nope", vec![NewTask::new("a")]);
    assert_eq!(*refusal(&leader.apply(Command::AddTasks(add)).outcome), unknown);
    let set = SetLane {
        name: "nope".into(),
        may_create: false,
        is_paused: None,
        is_draining: None,
        without_key_order: true,
    };
    assert_eq!(*refusal(&leader.apply(Command::SetLane(set)).outcome), unknown);
    assert_eq!(leader.reserver.plan(&Strategy::lane("nope"), BEGIN), Err(unknown.to_string()));
    assert_eq!(leader.set_lane("nope", None, None), Outcome::LaneSet);
    assert!(leader.reserver.plan(&Strategy::lane("nope"), BEGIN).is_ok());
}

#[test]
fn one_lane_more_and_one_weight_more_than_there_may_be_are_refused() {
    let mut leader = Leader::new(4, 1);
    leader.is_audited = false;
    for nth in 1..LANES_MAX {
        assert_eq!(leader.set_lane(&format!("lane-{nth}"), None, None), Outcome::LaneSet);
    }
    let Refusal::Malformed { problem } = refusal(&leader.set_lane("one-more", None, None)).clone() else {
        panic!("it is refused with what to do")
    };
    assert!(problem.contains("use keys within a lane"), "{problem}");
    assert_eq!(leader.set_lane("lane-7", None, None), Outcome::LaneSet, "one that is there stays");

    let weigh = |keys: std::ops::Range<usize>, weight| {
        let weights = keys.map(|nth| (format!("k{nth}"), weight)).collect();
        Command::WeighKeys(WeighKeys { lane: LANE.into(), weights })
    };
    let of = |leader: &Leader| leader.machine.lanes().by_name(LANE).unwrap().row().weights.len();
    leader.apply(weigh(0..LANE_WEIGHTS_MAX, Some(Weight::ONE)));
    assert_eq!(of(&leader), LANE_WEIGHTS_MAX);
    let more = leader.apply(weigh(LANE_WEIGHTS_MAX..LANE_WEIGHTS_MAX + 1, Some(Weight::ONE))).outcome;
    assert!(matches!(refusal(&more), Refusal::Malformed { problem } if problem.contains("let tasks carry")));
    leader.apply(weigh(0..1, None));
    leader.apply(weigh(LANE_WEIGHTS_MAX..LANE_WEIGHTS_MAX + 1, Some(Weight::ONE)));
    assert_eq!(of(&leader), LANE_WEIGHTS_MAX, "there is room for another again");
}

#[test]
fn a_key_has_up_to_64_bytes_and_none_is_a_key_as_well() {
    let mut leader = Leader::new(4, 1);
    let long = "k".repeat(64);
    let added =
        leader.add(vec![NewTask::new(""), NewTask::new(long.as_str()), NewTask::new(""), NewTask::new(long)]);
    assert_eq!(order(&mut leader), added, "each of the two has its own turn");
    let before = leader.machine.tables().clone();
    let add = leader.stamped(LANE, vec![NewTask::new("k".repeat(65))]);
    assert!(matches!(refusal(&leader.apply(Command::AddTasks(add)).outcome), Refusal::Malformed { .. }));
    assert_eq!(*leader.machine.tables(), before);
}

#[test]
fn a_weight_is_what_it_says_and_nonsense_is_none() {
    for number in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9, 1e9] {
        assert!(Weight::of(number).is_err(), "{number}");
    }
    let mut leader = Leader::new(4, 1);
    let weighing = |number, key: &str| NewTask { weight: Weight::of(number).unwrap(), ..NewTask::new(key) };
    leader.add(vec![weighing(2.0, "two"); 40]);
    leader.add(vec![weighing(1.0, "one"); 20]);
    let keys: Vec<String> = leader.all().iter().map(|held| leader.key(held.id)).collect();
    for stretch in keys.chunks(3) {
        assert_eq!(stretch.iter().filter(|key| *key == "two").count(), 2, "{keys:?}");
    }
}

/// Of one key with two weights, each task stands as far apart as its own weight says.
#[test]
fn a_task_uses_the_weight_that_it_came_with() {
    let mut leader = Leader::new(4, 1);
    let weighing = |milli| NewTask { weight: Weight::from_milli(milli).unwrap(), ..NewTask::new("a") };
    let added = leader.add(vec![weighing(1_000), weighing(500), weighing(2_000), weighing(1_000)]);
    let passes: Vec<u64> = added.iter().map(|id| leader.level(*id).pass).collect();
    assert_eq!(passes, [0, STRIDE, 3 * STRIDE, 3 * STRIDE + STRIDE / 2]);
}

#[test]
fn a_weight_that_is_set_for_a_key_goes_before_those_of_its_tasks_and_counts_from_then_on() {
    let mut leader = Leader::new(4, 1);
    let before = leader.add_of("a", 2);
    let weigh =
        |weight| Command::WeighKeys(WeighKeys { lane: LANE.into(), weights: [("a".into(), weight)].into() });
    assert_eq!(leader.apply(weigh(Some(Weight::of(2.0).unwrap()))).outcome, Outcome::LaneSet);
    leader.change();
    let after = leader.add_of("a", 3);
    let passes: Vec<u64> = before.iter().chain(&after).map(|id| leader.level(*id).pass).collect();
    assert_eq!(passes, [0, STRIDE, 2 * STRIDE, 5 * STRIDE / 2, 3 * STRIDE]);
    assert_eq!(leader.apply(weigh(None)).outcome, Outcome::LaneSet);
    let last = leader.add_of("a", 2);
    assert_eq!(leader.level(last[1]).pass - leader.level(last[0]).pass, STRIDE);
    let unknown = WeighKeys { lane: "nope".into(), weights: BTreeMap::new() };
    let refused = leader.apply(Command::WeighKeys(unknown)).outcome;
    assert_eq!(*refusal(&refused), Refusal::LaneUnknown { lane: "nope".into() });
    let long = WeighKeys { lane: LANE.into(), weights: [("k".repeat(65), None)].into() };
    assert!(matches!(refusal(&leader.apply(Command::WeighKeys(long)).outcome), Refusal::Malformed { .. }));
}

#[test]
fn a_large_payload_is_kept_apart_and_goes_with_its_task() {
    let mut leader = Leader::new(4, 1);
    let large = Payload::Inline(ByteVec::from(vec![7; 5_000]));
    let added = leader.add(vec![NewTask { payload: large.clone(), retry_delay_ms: 0, ..NewTask::new("a") }]);
    assert_eq!(leader.rows(Table::Payloads), 1);
    let held = leader.next_is(added[0]);
    leader.fail(held);
    leader.wait_ms(0);
    let tables = leader.machine.tables();
    assert_eq!(listing::task_and_payload(tables, added[0]).map(|(_, payload)| payload), Some(large));
    let held = leader.next_is(added[0]);
    leader.complete(held);
    assert_eq!(leader.rows(Table::Payloads), 0);
}

#[test]
fn a_small_payload_goes_with_its_task_from_place_to_place() {
    let mut leader = Leader::new(4, 1);
    let small = Payload::Inline(ByteVec::from(vec![7; 50]));
    let of = |key| NewTask {
        payload: small.clone(),
        delay_ms: Some(5),
        attempts_max: 1,
        retry_delay_ms: 0,
        ..NewTask::new(key)
    };
    let added = leader.add(vec![of("a"), of("acme/bob")]);
    let payloads = |leader: &Leader| {
        let tables = leader.machine.tables();
        added
            .iter()
            .map(|id| listing::task_and_payload(tables, *id).map(|(_, payload)| payload))
            .collect::<Vec<_>>()
    };
    let kept = vec![Some(small.clone()); 2];
    assert_eq!(payloads(&leader), kept, "while it is delayed");
    leader.wait_ms(5);
    assert_eq!(payloads(&leader), kept, "while it waits");
    for held in leader.all() {
        leader.fail(held);
    }
    assert_eq!(payloads(&leader), kept, "while it is dead");
    leader.apply(Command::Redrive(Redrive { lane: LANE.into(), tasks: added.clone() }));
    assert_eq!(payloads(&leader), kept, "while it waits once more");
    let held = leader.all();
    let (report, _) = leader.complete_all(&held);
    leader.apply(Command::CompleteTasks(report));
    assert_eq!(
        [leader.rows(Table::Tasks), leader.rows(Table::Levels), leader.rows(Table::KeyLevels)],
        [0; 3]
    );
}

#[test]
fn many_tasks_are_done_by_one_report_wherever_they_stand_by_then() {
    let mut leader = Leader::new(8, 1);
    let large = Payload::Inline(ByteVec::from(vec![7; 5_000]));
    let in_all = ["a", "acme/bob", "b", "acme/eve", "a"].map(NewTask::new);
    let mut tasks = in_all.to_vec();
    tasks[2].payload = large;
    tasks[4].priority = 1;
    let added = leader.add(tasks);
    let held = leader.all();
    assert_eq!(
        held.iter().map(|it| it.id).collect::<std::collections::BTreeSet<_>>(),
        added.iter().copied().collect()
    );

    let (report, order) = leader.complete_all(&held);
    assert_eq!((report.placed.len(), report.others.len()), (3, 0), "of two priorities and a tenant");
    let places = report.placed.iter().flat_map(|of_queue| &of_queue.levels).map(|level| level.id);
    assert_eq!(places.collect::<Vec<_>>(), order.iter().map(|nth| held[*nth].id).collect::<Vec<_>>());

    // One is done already by the time that the report is applied, and the others have other places.
    leader.complete(held[0]);
    let mut moved = report.clone();
    moved.placed.iter_mut().for_each(|of_queue| of_queue.levels.iter_mut().for_each(|level| level.pass += 1));
    let settled = |outcome| match outcome {
        Outcome::Settled(settled) => settled,
        other => panic!("it is taken in, not answered with {other:?}"),
    };
    let mut expected = vec![Settled::Accepted; 5];
    expected[order.iter().position(|nth| *nth == 0).unwrap()] = Settled::AlreadyDone;
    assert_eq!(settled(leader.apply(Command::CompleteTasks(moved)).outcome), expected);
    assert_eq!(leader.rows(Table::Payloads), 0);
    assert_eq!(settled(leader.apply(Command::CompleteTasks(report)).outcome), [Settled::AlreadyDone; 5]);
    assert_eq!(
        leader.apply(Command::CompleteTasks(CompleteTasks::default())).outcome,
        Outcome::Settled(Vec::new())
    );
}

#[test]
fn a_consumer_that_vanishes_three_times_costs_the_task_an_attempt() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![NewTask { retry_delay_ms: 0, ..NewTask::new("a") }]);
    for _ in 0..2 {
        leader.next_is(added[0]);
        assert_eq!(leader.reserver.lose_session(ANNA, leader.now), []);
    }
    leader.next_is(added[0]);
    let lost = leader.reserver.lose_session(ANNA, leader.now);
    assert_eq!(lost.len(), 1);
    leader.audit();
    assert_eq!(leader.next(), None, "nobody gets it until the loss is counted");
    leader.apply(fail(added[0], lost[0].attempt));
    leader.wait_ms(0);
    let held = leader.next_is(added[0]);
    assert_eq!(leader.task(added[0]).unwrap().failures, 1);
    assert!(held.token.attempt > lost[0].attempt, "no two hand-outs have the same attempt");
}

#[test]
fn a_loss_that_the_log_never_counts_gives_the_task_back_after_a_while() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 1);
    for _ in 0..3 {
        leader.next_is(added[0]);
        leader.reserver.lose_session(ANNA, leader.now);
    }
    leader.now = leader.now.after_ms(LOSS_DELAY_MS);
    assert_eq!(leader.reserver.tick(leader.now), []);
    leader.next_is(added[0]);
}

#[test]
fn a_lease_that_runs_out_gives_its_task_back() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 2);
    let until = leader.now.after_ms(100);
    let held = leader.reserve_of(LANE, Holder::Lease { until }, 1)[0];
    leader.now = until;
    leader.reserver.tick(until);
    leader.audit();
    assert_eq!(leader.reserver.standing(name_of(held.id), held.token), Stands::Lost);
    assert_eq!(order(&mut leader), added);
    assert_eq!(leader.complete(held), Settled::Accepted, "late, but first");
}

#[test]
fn a_consumer_goes_on_under_the_next_leader_with_what_it_works_on() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 12);
    let held: Vec<Held> = leader.all();
    leader.change();
    let rank = leader.rank(0);
    let placed = |leader: &Leader, id| Placed { level: leader.level(id), key: "a".into(), stride: 1 };
    for held in &held[5..10] {
        let placed = placed(&leader, held.id);
        assert_eq!(leader.reserver.reassert_task(BERT, rank, placed, held.token), Stands::Holds);
        leader.audit();
    }
    let forged = placed(&leader, added[0]);
    assert_eq!(leader.reserver.reassert_task(BERT, rank, forged, held[5].token), Stands::Forged);
    assert_eq!(order(&mut leader), [&added[..5], &added[10..]].concat(), "the rest goes out, around those");
    assert_eq!(leader.complete(held[7]), Settled::Accepted);
    assert!(leader.reserver.lose_session(BERT, leader.now).is_empty());
    assert_eq!(order(&mut leader), [&added[5..7], &added[8..10]].concat());
}

#[test]
fn two_machines_fed_the_same_entries_hold_the_same_rows() {
    let mut leader = Leader::new(4, 1);
    let mut entries: Vec<Entry> = Vec::new();
    let mut apply = |leader: &mut Leader, command| {
        let entry = leader.entry(command);
        entries.push(entry.clone());
        leader.apply_entry(entry).outcome
    };
    let add = leader.stamped(LANE, (0..9).map(|nth| NewTask::new(format!("{}", nth % 3))).collect());
    apply(&mut leader, Command::AddTasks(add));
    for held in leader.all() {
        let command =
            if held.id.as_u64() % 2 == 0 { complete(held) } else { fail(held.id, held.token.attempt) };
        apply(&mut leader, command);
    }
    leader.now = leader.now.after_ms(2_000);
    apply(&mut leader, Command::ReleaseTasks);
    let mut other = Leader::new(4, 1);
    let mut other = Machine::<MemoryTables>::open(other.machine.tables_mut().clone());
    for entry in entries {
        other.apply(entry);
    }
    other.flush();
    assert_eq!(other.tables(), leader.machine.tables());
}
