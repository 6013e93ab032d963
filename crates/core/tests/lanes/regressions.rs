//! What went wrong in readers of this kind, elsewhere and here, told as it has to go.
//!
//! Elsewhere, by the numbers of Temporal's issues and changes, and which story tells it here:
//!
//! | number | what went wrong | here |
//! |---|---|---|
//! | 8052, 8062 | writes during a read dropped | `tasks_that_are_written_while_rows_are_read_are_not_dropped` |
//! | 8070 (1) | rows up to A loaded | `nothing_at_or_below_the_ack_level_is_read_again` |
//! | 8070 (2) | R behind A, once drained | `a_lane_that_was_worked_off_takes_the_next_task_at_once_and_reads_above_its_ack_level` |
//! | 8070 (3) | done row delivered once more | `a_task_that_is_done_while_its_row_is_on_its_way_is_not_handed_out_again` |
//! | 8070 (4) | A jumped over evicted tasks | `the_ack_level_does_not_jump_over_tasks_that_were_let_go` |
//! | 8070 (5) | stuck after a failed write | `an_add_that_is_refused_leaves_the_reader_as_it_was`, `an_add_that_is_refused_beside_an_empty_buffer_gets_nobody_stuck` |
//! | 8093 | evicted before it was offered | cannot happen: the buffer is what tasks are handed out from; `tasks_that_were_let_go_from_memory_come_back_by_reading` |
//! | 9234 | eviction forgot what was done | `what_is_done_stays_done_however_often_the_buffer_lets_tasks_go`, `a_thousand_tasks_done_above_one_that_is_not_stay_done_after_a_restart` |
//! | 9370, 9187, 9188 | counters wrong or lost | `the_counters_of_ten_thousand_keys_are_exact_after_a_restart` |
//! | 9467 | stuck: timer during a read | `asking_again_while_a_read_is_under_way_or_after_it_failed_gets_nobody_stuck` |
//! | 9775 | useless rows read for ever | `a_read_that_brings_nothing_new_still_moves_on` |
//! | 10814, 10835, 11048 | stuck: done task placed late | `a_task_that_is_read_handed_out_and_done_before_its_placement_is_told_moves_r_and_a_nowhere_wrong` |
//! | 11580 | watchdog barked while unloading | cannot happen: there is no watchdog; the audit looks for readers that are stuck |
//! | 9443 | two keys shared a counter | cannot happen: keys are not hashed; `keys_that_begin_alike_or_are_empty_have_counters_of_their_own` |
//! | 10772 | light keys clumped at A | `keys_of_low_weight_do_not_clump_after_a_restart` |
//! | 8478, 8500, 8556 | changes lost between two tables | cannot happen: there is one; `keys_come_to_be_in_order_however_many_tasks_are_added_meanwhile` in `shared_rows` |
//! | 8968 | which of a key's weights? | `a_task_uses_the_weight_that_it_came_with` in `stories` |
//! | 10242 | aging across keys, withdrawn | cannot happen: nothing ages; `no_task_goes_out_while_one_of_a_higher_priority_waits` in `stories` |

mod reads;

use crate::leader::{Held, LANE, Leader};
use windlass_core::entry::{Command, Refusal, Settled};
use windlass_core::lanes::acks::Ack;
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{Level, STRIDE, Weight};
use windlass_core::lanes::reader::{Placed, Read};
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::tasks::{NewTask, TaskId};
use windlass_core::tables::Table;

fn order(leader: &mut Leader) -> Vec<TaskId> {
    leader.all().into_iter().map(|held| held.id).collect()
}

/// The keys of the next tasks, none of which is done.
fn next_keys(leader: &mut Leader, count: usize) -> Vec<String> {
    let held: Vec<Held> = std::iter::from_fn(|| leader.next()).take(count).collect();
    held.iter().map(|held| leader.key(held.id)).collect()
}

fn weighing(key: &str, milli: u32) -> NewTask {
    NewTask { weight: Weight::from_milli(milli).expect("a weight"), retry_delay_ms: 0, ..NewTask::new(key) }
}

/// Completes everything that is there, and the ack level follows.
fn work_off(leader: &mut Leader) {
    while let Some(held) = leader.next() {
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
}

/// Ten levels apart, as in the race: 11, 21 and 31 wait; 13, 15 and 25 are being written while 11 and 21 are done.
#[test]
fn the_ack_level_that_moves_while_tasks_are_on_their_way_to_the_log_stays_below_them() {
    let mut leader = Leader::new(8, 2);
    let waiting = leader.add_of("a", 3);
    let on_their_way = vec![weighing("b", 5_000), weighing("b", 1_000), weighing("b", 1_000)];
    let add = leader.stamped(LANE, on_their_way);
    assert_eq!(add.handed_out[0].pass, 0);

    for id in &waiting[..2] {
        let held = leader.next_is(*id);
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
    let acked = leader.rank_row(0).acked;
    assert!(acked >= Some(Level { pass: 0, id: waiting[0] }), "it has moved: {acked:?}");

    leader.apply(Command::AddTasks(add));
    assert_eq!(leader.rows(Table::Levels), 4, "none of them is removed as done");
    let levels = leader.machine.tables().clone();
    let mut other = Leader::new(8, 2);
    other.machine = windlass_core::machine::Machine::open(levels);
    other.change();
    assert_eq!(order(&mut other).len(), 4, "a new leader finds them above the ack level");
    assert_eq!(order(&mut leader).len(), 4, "and so does the old one");
}

/// Where tasks may still come to lie, nothing is noted as done.
#[test]
fn an_ack_level_that_reaches_the_virtual_time_or_goes_back_is_not_taken() {
    let mut leader = Leader::new(8, 2);
    let added = leader.add_of("a", 4);
    for id in &added[..3] {
        let held = leader.next_is(*id);
        leader.complete(held);
    }
    let ack = |leader: &mut Leader, pass, id| {
        let level = Level { pass, id };
        leader.apply(Command::Ack(Ack { lane: leader.lane(), priority: 0, level, tenant: None, gap: None }));
        leader.rank_row(0).acked
    };
    assert_eq!(ack(&mut leader, 2 * STRIDE, added[0]), None, "its pass is the virtual time");
    let below = Some(Level { pass: 2 * STRIDE - 1, id: added[3] });
    assert_eq!(ack(&mut leader, 2 * STRIDE - 1, added[3]), below);
    assert_eq!(ack(&mut leader, STRIDE, added[3]), below, "it never goes back");
    let newcomer = leader.add_of("b", 1)[0];
    assert!(Some(leader.level(newcomer)) > below);
}

#[test]
fn tasks_that_are_written_while_rows_are_read_are_not_dropped() {
    for is_looked_at_first in [true, false] {
        let mut leader = Leader::new(4, 1);
        leader.add_of("a", 12);
        leader.change();
        leader.collect_errands();
        if is_looked_at_first {
            leader.look_for_rows();
        }
        let below = leader.add_of("b", 2);
        leader.look_for_rows();
        leader.deliver_all();
        let all = order(&mut leader);
        assert_eq!(all.len(), 14);
        assert!(below.iter().all(|id| all.contains(id)));
        assert!(all[..3].contains(&below[0]), "the new key's first is among the first");
    }
}

#[test]
fn a_task_below_what_is_read_goes_out_in_its_turn_even_while_more_is_being_read() {
    let mut leader = Leader::new(8, 4);
    leader.add_of("a", 20);
    for _ in 0..6 {
        leader.next().unwrap();
    }
    leader.collect_errands();
    assert_eq!(leader.errands.len(), 1, "a read is under way");
    let newcomer = leader.add_of("b", 1)[0];
    let next = leader.reserve(2);
    assert!(next.iter().any(|held| held.id == newcomer), "it waits for one other key, not for the read");
}

#[test]
fn nothing_at_or_below_the_ack_level_is_read_again() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 40);
    for _ in 0..20 {
        let held = leader.next().unwrap();
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
    let acked = leader.rank_row(0).acked;
    assert!(acked.is_some());
    leader.change();
    leader.collect_errands();
    let [Errand::Read { read, .. }] = leader.errands[..] else { panic!("{:?}", leader.errands) };
    assert_eq!(read, Read { above: acked, up_to: None, limit: 4 });
    assert_eq!(order(&mut leader).len(), 20);
}

#[test]
fn a_lane_that_was_worked_off_takes_the_next_task_at_once_and_reads_above_its_ack_level() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 9);
    work_off(&mut leader);
    leader.note_all();
    leader.look_for_rows();
    assert!(leader.rank_row(0).acked.is_some() && leader.look().read_to >= leader.rank_row(0).acked);
    let next = leader.add_of("a", 1);
    assert_eq!(leader.reserve(1).len(), 1, "without reading");
    leader.change();
    assert!(leader.look().read_to >= leader.rank_row(0).acked);
    leader.next_is(next[0]);
}

#[test]
fn a_task_that_is_done_while_its_row_is_on_its_way_is_not_handed_out_again() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 2);
    let held = leader.next_is(added[0]);
    leader.change();
    leader.look_for_rows();
    assert_eq!(leader.complete(held), Settled::Accepted);
    leader.deliver_all();
    assert_eq!(order(&mut leader), added[1..]);
}

#[test]
fn a_task_that_fails_and_comes_back_while_its_row_is_on_its_way_is_there_once() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![weighing("a", 1_000); 3]);
    let [first, second] = [leader.next_is(added[0]), leader.next_is(added[1])];
    leader.change();
    leader.look_for_rows();
    leader.complete(second);
    leader.fail(first);
    leader.wait_ms(0);
    assert!(leader.level(first.id).pass > 0, "it has another level than the row says that is on its way");
    leader.deliver_all();
    let rest = leader.all();
    assert_eq!(rest.iter().map(|held| held.id).collect::<Vec<_>>(), [added[0], added[2]]);
}

/// Tasks were out above R when those between were still on disk only, and the ack level jumped over these.
#[test]
fn the_ack_level_does_not_jump_over_tasks_that_were_let_go() {
    let mut leader = Leader::new(4, 1);
    let early = leader.stamped(LANE, vec![NewTask::new("b"); 12]);
    let high = leader.add(vec![weighing("a", 1_000); 8]);
    let held: Vec<Held> = leader.all();
    assert_eq!(held.len(), 8);
    leader.apply(Command::AddTasks(early));
    assert!(!leader.look().is_at_end, "only some of them fit");
    for held in &held[1..7] {
        leader.complete(*held);
    }
    let low = leader.reserve(4);
    assert_eq!(low.len(), 4);
    for held in low {
        leader.complete(held);
    }
    leader.complete(held[0]);
    leader.note_all();
    leader.look_for_rows();
    leader.change();
    let rest = order(&mut leader);
    assert_eq!(rest.len(), 9, "eight that were let go, and the last of the others");
    assert!(rest.contains(&high[7]));
}

#[test]
fn the_ack_level_does_not_jump_over_what_is_not_read_yet_to_what_a_consumer_kept_over_a_restart() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 9);
    let held = leader.all();
    leader.complete(held[7]);
    leader.change();
    let placed = Placed { level: leader.level(added[8]), key: "a".into(), stride: 1 };
    let rank = leader.rank(0);
    leader.reserver.reassert_task(crate::leader::ANNA, rank, placed, held[8].token);
    leader.complete(held[0]);
    leader.note_all();
    leader.look_for_rows();
    leader.audit();
    leader.change();
    assert_eq!(order(&mut leader), [&added[1..7], &added[8..]].concat());
}

#[test]
fn an_add_that_is_refused_leaves_the_reader_as_it_was() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 1);
    let before = leader.look();
    let add = leader.stamped(LANE, vec![NewTask::new("k".repeat(65))]);
    leader.apply(Command::AddTasks(add));
    leader.set_lane(LANE, None, Some(true));
    let add = leader.stamped(LANE, vec![NewTask::new("a")]);
    leader.apply(Command::AddTasks(add));
    assert_eq!(leader.look(), before);
    assert!(before.is_at_end);
    leader.next_is(added[0]);
}

/// Nothing is left in memory that could be handed out and have more read.
#[test]
fn an_add_that_is_refused_beside_an_empty_buffer_gets_nobody_stuck() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 9);
    work_off(&mut leader);
    assert_eq!((leader.look().ready, leader.look().is_at_end), (0, true));
    let bad = leader.stamped(LANE, vec![NewTask { attempts_max: 0, ..NewTask::new("a") }]);
    let refused = leader.apply(Command::AddTasks(bad)).outcome;
    assert!(matches!(refused, windlass_core::entry::Outcome::Refused(Refusal::Malformed { .. })));
    assert!(leader.look().is_at_end, "R is the end as before");
    let good = leader.add_of("b", 1);
    let held = leader.reserve(1);
    assert_eq!(held.iter().map(|held| held.id).collect::<Vec<_>>(), good, "without a read");
    leader.collect_errands();
    assert_eq!(leader.errands, []);
}

#[test]
fn tasks_that_were_let_go_from_memory_come_back_by_reading() {
    let mut leader = Leader::new(4, 1);
    let high = leader.add_of("a", 4);
    let first = leader.next_is(high[0]);
    let low: Vec<TaskId> = (0..9).flat_map(|key| leader.add_of(&format!("key {key}"), 1)).collect();
    assert!(leader.look().ready <= 4);
    leader.release(first);
    assert_eq!(order(&mut leader), [&high[..1], &low, &high[1..]].concat());
}

#[test]
fn put_backs_that_overflow_the_buffer_while_rows_are_read_hide_nothing() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 30);
    let held: Vec<Held> = (0..19).map(|_| leader.next().unwrap()).collect();
    leader.collect_errands();
    assert_eq!(leader.errands.len(), 1, "a read is under way");
    for held in held.into_iter().rev() {
        leader.release(held);
    }
    let first = leader.reserve(4);
    assert_eq!(first.len(), 4, "as many as the buffer holds");
    leader.look_for_rows();
    leader.deliver_all();
    assert_eq!(order(&mut leader), added[4..]);
}

#[test]
fn a_thousand_tasks_done_above_one_that_is_not_stay_done_after_a_restart() {
    let mut leader = Leader::new(16, 4);
    leader.is_audited = false;
    let added = leader.add_of("a", 1_000);
    let pinned = leader.next_is(added[0]);
    for id in &added[1..990] {
        let held = leader.next_is(*id);
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
    assert!(leader.rank_row(0).acked < Some(Level { pass: 0, id: pinned.id }));
    leader.change();
    leader.audit();
    assert_eq!(order(&mut leader), [&added[..1], &added[990..]].concat());
}

#[test]
fn the_counters_of_ten_thousand_keys_are_exact_after_a_restart() {
    let mut leader = Leader::new(16, 4);
    leader.is_audited = false;
    let keys = || (0..10_000_u32).map(|key| weighing(&format!("{key}"), 1 + key));
    for chunk in keys().collect::<Vec<_>>().chunks(1_000) {
        leader.add(chunk.to_vec());
    }
    leader.change();
    leader.audit();
    let lane = leader.machine.lanes().by_name(LANE).unwrap();
    let rank = lane.ranks().next().unwrap().1;
    for task in keys() {
        let row = rank.key(&task.key).expect("it has a task");
        assert_eq!((row.finish, row.waiting), (u64::from(task.weight.stride()), 1), "{}", task.key);
    }
    let again = leader.add(vec![weighing("7", 8), weighing("9999", 10_000)]);
    let passes: Vec<u64> = again.iter().map(|id| leader.level(*id).pass).collect();
    assert_eq!(passes, [8, 10_000].map(|milli| Weight::from_milli(milli).unwrap().stride().into()));
}

#[test]
fn keys_that_begin_alike_or_are_empty_have_counters_of_their_own() {
    let mut leader = Leader::new(16, 4);
    let keys = ["", "a", "ab", "b", "\0", "a\0", "\u{1}a"];
    let heavy = leader.add_of("a", 5);
    for key in keys.iter().filter(|key| **key != "a") {
        let id = leader.add_of(key, 1)[0];
        assert_eq!(leader.level(id).pass, 0, "{key:?}");
    }
    assert_eq!(leader.level(heavy[4]).pass, 4 * STRIDE);
    leader.change();
    let next = leader.add_of("ab", 1)[0];
    assert_eq!(leader.level(next).pass, STRIDE);
    assert_eq!(leader.rows(Table::LaneKeys), keys.len());
}

#[test]
fn keys_of_low_weight_do_not_clump_after_a_restart() {
    let mut leader = Leader::new(16, 4);
    let light: Vec<NewTask> = (0..5).map(|key| weighing(&format!("light {key}"), 10)).collect();
    leader.add(light.clone());
    leader.add_of("heavy", 60);
    for _ in 0..10 {
        let held = leader.next().unwrap();
        leader.complete(held);
    }
    leader.change();
    leader.add(light);
    let next = next_keys(&mut leader, 50);
    assert!(next.iter().all(|key| key == "heavy"), "each of the light ones has had its turn: {next:?}");
}

#[test]
fn what_is_told_twice_changes_nothing() {
    let mut leader = Leader::new(4, 1);
    let add = leader.stamped(LANE, vec![NewTask::new("a"); 3]);
    let applied = leader.apply(Command::AddTasks(add));
    let held = leader.next().unwrap();
    let before = leader.look();
    for effect in &applied.effects {
        leader.reserver.absorb(effect);
        leader.audit();
    }
    assert_eq!(leader.look(), before);
    leader.complete(held);
    assert_eq!(order(&mut leader).len(), 2);
}

/// Rows were ahead of what the leader had heard, and it handed a task out twice.
#[test]
fn a_task_that_is_read_at_its_new_level_before_the_old_one_is_known_to_be_left_goes_out_once() {
    let mut leader = Leader::new(4, 2);
    let added = leader.add(vec![weighing("a", 1_000); 6]);
    let before = leader.all();
    leader.change();
    leader.look_for_rows();
    leader.deliver_all();

    leader.is_late = true;
    leader.complete(before[4]);
    leader.complete(before[5]);
    leader.fail(before[3]);
    leader.apply(Command::ReleaseTasks);
    let mut out = leader.reserve(2);
    leader.look_for_rows();
    leader.deliver_all();
    out.extend(leader.reserve(20));
    assert_eq!(out.iter().map(|held| held.id).collect::<Vec<_>>(), added[..4]);

    leader.is_late = false;
    leader.tell(usize::MAX);
    leader.audit();
    assert_eq!(order(&mut leader), added[3..4], "its failure is known now, and it goes out once more");
}

#[test]
fn a_long_task_that_pins_the_ack_level_gives_newcomers_no_extra_turns() {
    let mut leader = Leader::new(8, 2);
    let old = leader.add_of("old", 100);
    leader.next_is(old[0]);
    for id in &old[1..50] {
        let held = leader.next_is(*id);
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
    leader.change();
    leader.next_is(old[0]);
    leader.add_of("new", 20);
    let next = next_keys(&mut leader, 20);
    let new = next.iter().filter(|key| *key == "new").count();
    assert!((9..=11).contains(&new), "turn by turn: {next:?}");
}

#[test]
fn tasks_that_are_out_do_not_fill_the_buffer_and_do_not_make_reads_larger() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 100);
    for _ in 0..50 {
        leader.next().unwrap();
    }
    while leader.look().ready > 1 {
        leader.reserve(1);
    }
    leader.collect_errands();
    let [Errand::Read { read, .. }] = leader.errands[..] else { panic!("{:?}", leader.errands) };
    assert_eq!(read.limit, 3, "the buffer is filled up, however much is out");
    leader.all();
    assert_eq!(leader.look().out, 100);
}

/// A consumer came back with a task that was done a moment before, and the ack level waited for it for ever.
#[test]
fn a_task_that_is_held_although_it_is_done_is_forgotten_when_its_late_report_comes() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 3);
    let held = leader.next_is(added[0]);
    leader.change();
    let placed = Placed { level: leader.level(added[0]), key: "a".into(), stride: 1 };
    leader.complete(held);
    let rank = leader.rank(0);
    leader.reserver.reassert_task(crate::leader::ANNA, rank, placed, held.token);
    assert_eq!(leader.look().out, 1, "the row that was read for it is older than what the leader knows");
    assert_eq!(leader.complete(held), Settled::AlreadyDone);
    assert_eq!(leader.look().out, 0);
    work_off(&mut leader);
    assert!(leader.rank_row(0).acked >= Some(Level { pass: STRIDE, id: added[1] }), "the ack level moves on");
}

#[test]
fn a_task_done_for_an_earlier_leader_moves_the_virtual_time() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 9);
    let held = leader.all();
    leader.change();
    leader.complete(held[6]);
    assert_eq!(leader.look().virtual_time, 6 * STRIDE);
    let newcomer = leader.add_of("b", 1)[0];
    assert_eq!(leader.level(newcomer).pass, 6 * STRIDE, "it is not behind and not ahead of what is left");
    assert_eq!(order(&mut leader), [&added[..6], &[newcomer], &added[7..]].concat());
}

#[test]
fn dead_tasks_that_are_driven_again_are_charged_as_new_ones() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add(vec![NewTask { attempts_max: 1, ..NewTask::new("a") }; 5]);
    for id in &added {
        let held = leader.next_is(*id);
        leader.fail(held);
    }
    leader.add_of("b", 5);
    leader.apply(Command::Redrive(Redrive { lane: LANE.into(), tasks: added }));
    let next = next_keys(&mut leader, 8);
    let of_b = next.iter().filter(|key| *key == "b").count();
    assert!((3..=5).contains(&of_b), "turn by turn: {next:?}");
}

#[test]
fn keys_that_are_used_once_are_forgotten_with_the_last_task_and_the_ack_level_follows() {
    let mut leader = Leader::new(8, 2);
    for round in 0..3_u64 {
        for key in 0..20 {
            leader.add_of(&format!("order {round}-{key}"), 1);
        }
        assert_eq!(leader.rows(Table::LaneKeys), 20);
        while let Some(held) = leader.next() {
            leader.complete(held);
        }
        assert_eq!(leader.rows(Table::LaneKeys), 0, "nobody is owed anything when nothing waits");
        assert_eq!(leader.rank_row(0).virtual_time, (round + 1) * STRIDE);
    }
    leader.note_all();
    while leader.do_errands() {}
    let acked = leader.rank_row(0).acked.expect("everything is done");
    assert_eq!(acked.pass, 2 * STRIDE, "the passes of the last round");
}
