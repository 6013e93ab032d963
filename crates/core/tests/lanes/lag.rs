//! How late tasks are: behind the virtual time by what was handed out while their adds were on their way through the log.

use crate::leader::{LANE, Leader};
use windlass_core::entry::Command;
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{Level, STRIDE, Weight};
use windlass_core::lanes::tasks::{NewTask, TaskId};
use windlass_core::limits::LANE_ACK_EVERY_TASKS;

fn worst_lag(leader: &Leader) -> f64 {
    leader.reserver.desk().usage(leader.rank(0).lane).expect("the lane is there").1
}

#[test]
fn a_task_is_late_by_what_was_handed_out_while_its_add_was_on_its_way() {
    for (hand_outs, milli, lag) in [(1, 1_000, 1.0), (5, 1_000, 5.0), (5, 2_000, 10.0), (6, 500, 3.0)] {
        let mut leader = Leader::new(8, 2);
        leader.add_of("a", 20);
        leader.next().expect("there are twenty");
        let weight = Weight::from_milli(milli).unwrap();
        let add = leader.stamped(LANE, vec![NewTask { weight, ..NewTask::new("b") }; 2]);
        for _ in 0..hand_outs {
            leader.next().expect("there are twenty");
        }
        assert_eq!(worst_lag(&leader), 0.0, "each in its turn");
        let late = crate::leader::ids(&leader.apply(Command::AddTasks(add)).outcome);
        assert_eq!(leader.level(late[0]).pass, 0, "it stands where the virtual time was");
        assert_eq!(leader.look().virtual_time, hand_outs * STRIDE);
        leader.next_is(late[0]);
        assert_eq!(worst_lag(&leader), lag);
        leader.all();
        assert_eq!(worst_lag(&leader), lag, "the second one is less late");
        leader.change();
        assert_eq!(worst_lag(&leader), 0.0, "it is counted from when the leader began");
    }
}

/// What comes back has had its turn, and is not late.
#[test]
fn a_task_that_was_given_back_is_not_late() {
    let mut leader = Leader::new(8, 2);
    leader.add_of("a", 20);
    let first = leader.next().expect("there are twenty");
    for _ in 0..5 {
        leader.next().expect("there are twenty");
    }
    leader.release(first);
    leader.next_is(first.id);
    assert_eq!(worst_lag(&leader), 0.0);
}

fn notes(leader: &mut Leader) -> Vec<(u64, TaskId)> {
    leader.collect_errands();
    let errands = std::mem::take(&mut leader.errands);
    let (notes, reads): (Vec<_>, Vec<_>) = errands.into_iter().partition(|it| matches!(it, Errand::Note(_)));
    reads.into_iter().for_each(|read| leader.go_for(read));
    leader.deliver_all();
    let levels = notes.into_iter().map(|it| match it {
        Errand::Note(ack) => {
            let Level { pass, id } = ack.level;
            leader.apply(Command::Ack(ack));
            (pass, id)
        }
        Errand::Read { .. } => panic!("reads were sorted out"),
    });
    levels.collect()
}

#[test]
fn the_ack_level_is_noted_after_so_many_tasks_or_when_the_leader_looks() {
    let mut leader = Leader::new(4_096, 1_024);
    leader.is_audited = false;
    for _ in 0..6 {
        leader.add_of("a", 1_000);
    }
    notes(&mut leader);
    let mut noted = Vec::new();
    for nth in 1..=LANE_ACK_EVERY_TASKS + 10 {
        let held = leader.next().expect("there are six thousand");
        leader.complete(held);
        noted.extend(notes(&mut leader).into_iter().map(|level| (nth, level)));
    }
    assert_eq!(noted.iter().map(|it| it.0).collect::<Vec<_>>(), [LANE_ACK_EVERY_TASKS]);
    let (pass, id) = noted[0].1;
    assert_eq!(leader.rank_row(0).acked, Some(Level { pass, id }));
    assert!(pass >= (LANE_ACK_EVERY_TASKS - 2) * STRIDE, "it lies just below what is done");
    leader.note_all();
    let looked = notes(&mut leader);
    assert!(looked.len() == 1 && looked[0].0 > pass, "{looked:?}");
    leader.note_all();
    assert_eq!(notes(&mut leader), [], "nothing is done since");
    leader.audit();
}
