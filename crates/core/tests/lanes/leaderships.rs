//! What is on its way through the log when a leadership ends: it is in before the next leader looks, or it is refused.

use crate::leader::{LANE, Leader, complete, fail, ids};
use std::collections::BTreeSet;
use windlass_core::entry::{Command, Entry, Outcome, Refusal};
use windlass_core::ids::Epoch;
use windlass_core::lanes::acks::Ack;
use windlass_core::lanes::key_order::OrderKeys;
use windlass_core::lanes::levels::{Level, STRIDE, Weight};
use windlass_core::lanes::limiting::{Limit, LimitLane, Scope, SetLimit};
use windlass_core::lanes::open::SetLane;
use windlass_core::lanes::redrive::Redrive;
use windlass_core::lanes::relevel::Relevel;
use windlass_core::lanes::tasks::{NewTask, TaskId};
use windlass_core::lanes::weigh::WeighKeys;

const COMMANDS_OF_LANES: usize = 12;

/// Which command of lanes this is; none for those of other rooms. A new command has to be put here, and into the story.
const fn number_of(command: &Command) -> Option<usize> {
    match command {
        Command::AddTasks(_) => Some(0),
        Command::Ack(_) => Some(1),
        Command::ReleaseTasks => Some(2),
        Command::Complete(_) => Some(3),
        Command::CompleteTasks(_) => Some(4),
        Command::Fail(_) => Some(5),
        Command::OrderKeys(_) => Some(6),
        Command::LimitLane(_) => Some(7),
        Command::Redrive(_) => Some(8),
        Command::Relevel(_) => Some(9),
        Command::WeighKeys(_) => Some(10),
        Command::SetLane(_) => Some(11),
        Command::Lead(_)
        | Command::Submit(_)
        | Command::Cancel(_)
        | Command::RetryFailed(_)
        | Command::Change(_)
        | Command::Enlist(_)
        | Command::Weigh(_)
        | Command::CreateBranch(_)
        | Command::DeleteBranch(_)
        | Command::ResetBranch(_)
        | Command::Grant(_)
        | Command::Stage(_)
        | Command::Announce(_)
        | Command::NoteFiles(_)
        | Command::Perform(_)
        | Command::Abort(_)
        | Command::Sweep => None,
    }
}

/// One of each, as a leader with five tasks of one key would write it, the first four of which are done.
fn one_of_each(leader: &mut Leader, added: &[TaskId]) -> Vec<Command> {
    let level = Level { pass: STRIDE, id: added[1] };
    let held = leader.next_is(added[4]);
    let set = vec![SetLimit { scope: Scope::EachKey, limit: Some(Limit { in_flight: Some(0), rate: None }) }];
    let handed_out = leader.reserver.desk().handed_out(LANE, [(0, "a")]);
    let set_lane = SetLane {
        name: LANE.into(),
        may_create: false,
        is_paused: Some(true),
        is_draining: Some(true),
        without_key_order: true,
    };
    vec![
        Command::AddTasks(leader.stamped(LANE, vec![NewTask::new("a")])),
        Command::Ack(Ack { lane: leader.lane(), priority: 0, level, tenant: None, gap: None }),
        Command::ReleaseTasks,
        complete(held),
        Command::CompleteTasks(leader.complete_all(&[held]).0),
        fail(held.id, held.token.attempt),
        Command::OrderKeys(OrderKeys { lane: LANE.into(), tasks_max: 9 }),
        Command::LimitLane(LimitLane { lane: LANE.into(), set }),
        Command::Redrive(Redrive { lane: LANE.into(), tasks: added.to_vec() }),
        Command::Relevel(Relevel { lane: LANE.into(), priority: 0, key: "a".into(), handed_out }),
        Command::WeighKeys(WeighKeys { lane: LANE.into(), weights: [("a".into(), None)].into() }),
        Command::SetLane(set_lane),
    ]
}

/// A member that was leader wrote all kinds of entries, and they arrive when another one leads.
#[test]
fn entries_of_a_leadership_that_has_ended_add_nothing_note_nothing_and_take_nothing_away() {
    let mut leader = Leader::new(4, 1);
    let weights = [("a".to_owned(), Some(Weight::ONE))].into();
    leader.apply(Command::WeighKeys(WeighKeys { lane: LANE.into(), weights }));
    let added = leader.add_of("a", 5);
    for id in &added[..4] {
        let held = leader.next_is(*id);
        leader.complete(held);
    }
    let commands = one_of_each(&mut leader, &added);
    let numbers: BTreeSet<usize> = commands.iter().filter_map(number_of).collect();
    assert_eq!(numbers, (0..COMMANDS_OF_LANES).collect(), "each command of lanes is in the story");
    let late: Vec<Entry> = commands.into_iter().map(|command| leader.entry(command)).collect();
    leader.change();
    let before = leader.machine.tables().clone();
    for late in late {
        let applied = leader.apply_entry(late);
        assert_eq!(applied.outcome, Outcome::Refused(Refusal::Fenced { current: Epoch(2) }));
        assert!(applied.effects.is_empty());
    }
    assert_eq!(*leader.machine.tables(), before);
}

fn order(leader: &mut Leader) -> Vec<TaskId> {
    leader.all().into_iter().map(|held| held.id).collect()
}

/// The nine steps: a write of the old owner that takes effect after the new owner has read past its place.
#[test]
fn a_write_of_the_old_leader_that_comes_after_the_new_one_has_read_is_refused_not_lost() {
    let mut leader = Leader::new(8, 2);
    leader.add_of("a", 3);
    let add = leader.stamped(LANE, vec![NewTask::new("b")]);
    let place = Level { pass: add.handed_out[0].pass, id: TaskId::last() };
    let late = leader.entry(Command::AddTasks(add.clone()));
    leader.change();
    leader.do_errands();
    assert!(leader.look().is_at_end);
    assert!(
        Some(place) <= leader.look().read_to,
        "the new leader has read past where it would come to stand"
    );
    let before = leader.machine.tables().clone();
    let refused = leader.apply_entry(late).outcome;
    assert_eq!(refused, Outcome::Refused(Refusal::Fenced { current: leader.machine.epoch() }));
    assert_eq!(*leader.machine.tables(), before, "the caller is told to send it again");
    let sent_again = ids(&leader.apply(Command::AddTasks(add)).outcome);
    assert!(order(&mut leader).contains(&sent_again[0]));
}

/// The other branch: the write is in the log before the new leadership, whether or not anybody was told.
#[test]
fn a_write_of_the_old_leader_that_comes_before_the_new_one_begins_is_read_by_it() {
    for is_told in [true, false] {
        let mut leader = Leader::new(8, 2);
        let of_a = leader.add_of("a", 3);
        let add = leader.stamped(LANE, vec![NewTask::new("b")]);
        let entry = leader.entry(Command::AddTasks(add));
        leader.is_late = !is_told;
        let written = ids(&leader.apply_entry(entry).outcome);
        leader.is_late = false;
        leader.change();
        leader.do_errands();
        assert!(leader.level(written[0]) <= leader.look().read_to.unwrap());
        assert_eq!(order(&mut leader), [of_a[0], written[0], of_a[1], of_a[2]]);
    }
}
