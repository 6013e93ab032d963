//! Reads that fail, bring nothing, come late, or are overtaken by what happens meanwhile.

use super::order;
use crate::leader::{ANNA, LANE, Leader};
use windlass_core::entry::Command;
use windlass_core::lanes::acks::Acked;
use windlass_core::lanes::desk::{Buffer, Errand};
use windlass_core::lanes::levels::{Level, STRIDE, tenant_of};
use windlass_core::lanes::reader::{Placed, Read, Reader};
use windlass_core::lanes::tasks::{NewTask, TaskId};

#[test]
fn a_read_that_fails_is_asked_for_again_and_loses_nothing_that_came_meanwhile() {
    let level = |pass, id| Level { pass, id: TaskId::from_u64(id).unwrap() };
    let placed = |pass, id| Placed { level: level(pass, id), key: "a".into(), stride: 1 };
    let mut reader = Reader::new(Acked::default(), Buffer { tasks: 4, reload_at: 1 });
    let read = reader.next_read();
    assert_eq!(read, Some(Read { above: None, up_to: None, limit: 4 }));
    assert_eq!(reader.next_read(), None, "one at a time");
    reader.place(placed(5, 1));
    reader.give_up_read();
    assert!(reader.is_waiting_for_rows());
    assert_eq!(reader.next_read(), read);
    reader.take_in([placed(5, 1), placed(6, 2)], true, |_| true);
    assert_eq!(reader.hand_out(), Some(placed(5, 1)));
    assert_eq!(reader.hand_out(), Some(placed(6, 2)));
    assert_eq!((reader.hand_out(), reader.is_at_end()), (None, true));
}

/// Every row that was read was of no use, so the next read was the same one, for ever.
#[test]
fn a_read_that_brings_nothing_new_still_moves_on() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 30);
    let held = leader.all();
    leader.change();
    leader.collect_errands();
    let rank = leader.rank(0);
    for held in &held[..25] {
        let placed = Placed { level: leader.level(held.id), key: "a".into(), stride: 1 };
        leader.reserver.reassert_task(ANNA, rank, placed, held.token);
    }
    leader.audit();
    assert_eq!(order(&mut leader), added[25..]);
}

/// A timer that asked for a read while one was under way found nothing to do, and nobody asked again.
#[test]
fn asking_again_while_a_read_is_under_way_or_after_it_failed_gets_nobody_stuck() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 30);
    let rank = leader.rank(0);
    leader.change();
    for _ in 0..3 {
        leader.collect_errands();
        let [Errand::Read { queue, read }] = &leader.errands[..] else { panic!("{:?}", leader.errands) };
        assert_eq!((queue.rank, *read), (rank, Read { above: None, up_to: None, limit: 4 }));
        let queue = queue.clone();
        leader.errands.clear();
        for _ in 0..3 {
            leader.wait_ms(1_000);
            assert_eq!(leader.reserve(1), [], "it is being read");
            leader.collect_errands();
            assert_eq!(leader.errands, [], "one read at a time");
        }
        leader.reserver.at_desk(|desk| desk.give_up_read(&queue));
    }
    assert_eq!(order(&mut leader), added);
}

/// What was done was forgotten with what was evicted; and a late word of a task that was done long ago sent R back to A.
#[test]
fn a_task_that_is_read_handed_out_and_done_before_its_placement_is_told_moves_r_and_a_nowhere_wrong() {
    let mut leader = Leader::new(4, 1);
    let known = leader.add_of("a", 9);
    assert!(!leader.look().is_at_end, "the rest is read from the rows");
    leader.is_late = true;
    let add = leader.stamped(LANE, vec![NewTask::new("a"); 3]);
    let unheard = crate::leader::ids(&leader.apply(Command::AddTasks(add)).outcome);
    let held = leader.all();
    assert_eq!(held.iter().map(|it| it.id).collect::<Vec<_>>(), [&known[..], &unheard].concat());
    let done = leader.level(known[2]);
    for nth in [0, 1, 2, 9, 10] {
        leader.complete(held[nth]);
    }
    let before = leader.look();
    let open = leader.level(known[3]);
    while !leader.untold.is_empty() {
        leader.tell(1);
        assert!(leader.look().read_to >= before.read_to, "R does not go back: {:?}", leader.look());
        assert_eq!(leader.next(), None, "nothing goes out twice");
        leader.note_all();
        leader.do_errands();
        assert!(leader.rank_row(0).acked < Some(open), "A stays below what is not done");
    }
    leader.audit_now();
    let acked = leader.rank_row(0).acked;
    assert!(acked >= Some(done), "and comes as far as it may: {acked:?}");
    leader.is_late = false;
    leader.change();
    assert_eq!(
        order(&mut leader),
        [&known[3..], &unheard[2..]].concat(),
        "the next leader finds what is left"
    );
}

#[test]
fn what_is_done_stays_done_however_often_the_buffer_lets_tasks_go() {
    let mut leader = Leader::new(4, 1);
    let added = leader.add_of("a", 40);
    let mut done = vec![];
    for round in 0..6 {
        let held: Vec<_> = (0..9).filter_map(|_| leader.next()).collect();
        // Every second one is done; the rest comes back, more than the buffer holds.
        for (nth, held) in held.into_iter().enumerate() {
            assert!(!done.contains(&held.id), "task {} is done since before round {round}", held.id);
            if nth % 2 == 1 {
                leader.complete(held);
                done.push(held.id);
            } else {
                leader.release(held);
            }
        }
        leader.note_all();
        leader.do_errands();
    }
    let left: Vec<TaskId> = added.into_iter().filter(|id| !done.contains(id)).collect();
    assert_eq!(order(&mut leader), left);
}

/// A task that takes long holds A back; what is done behind it is not walked over by the next leader.
#[test]
fn what_is_done_behind_a_task_that_takes_long_is_not_read_again() {
    for (slow, others) in [("slow", "k"), ("slow", "t/u"), ("t/slow", "t/u")] {
        let mut leader = Leader::new(64, 16);
        let pinned = leader.add_of(slow, 1)[0];
        leader.next_is(pinned);
        let added: Vec<TaskId> = (0..10).flat_map(|_| leader.add_of(others, 50)).collect();
        for id in &added[..450] {
            let held = leader.next_is(*id);
            leader.complete(held);
        }
        leader.note_all();
        leader.do_errands();
        leader.change();
        leader.now = leader.now.after_ms(1);
        let of_others = leader.level(added[450]);
        let (mut order, mut is_left_out) = (Vec::new(), false);
        loop {
            while let Some(held) = leader.reserve(1).pop() {
                order.push(held.id);
            }
            leader.collect_errands();
            if leader.errands.is_empty() {
                break;
            }
            for errand in std::mem::take(&mut leader.errands) {
                if let Errand::Read { queue, read } = &errand
                    && queue.of.as_deref() == tenant_of(others)
                {
                    let from = Some(Level { pass: of_others.pass - 3 * STRIDE, id: TaskId::first() });
                    let is_behind = read.above >= from;
                    assert!(is_behind || read.up_to.is_some(), "{slow}, {others}: {read:?}");
                    is_left_out |= is_behind;
                }
                leader.go_for(errand);
            }
            leader.deliver_all();
        }
        assert!(is_left_out, "{slow}, {others}: the read goes on behind what is done");
        let (first, rest): (Vec<TaskId>, Vec<TaskId>) = order.into_iter().partition(|id| *id == pinned);
        assert_eq!((first, &rest[..]), (vec![pinned], &added[450..]));
    }
}
