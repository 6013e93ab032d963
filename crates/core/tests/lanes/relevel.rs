//! Levels given anew: a weight that is set counts for what waits, in steps, and a key's tasks stay in order all the while.

use crate::leader::{Held, LANE, Leader};
use crate::limits::{in_flight, limit, named, rate};
use crate::sequences;
use crate::tenants::{shares, weigh};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::lanes::acks::levels_above;
use windlass_core::lanes::levels::{Level, QueueName, STRIDE, Weight};
use windlass_core::lanes::relevel::{Phase, Relevel, RelevelFrom, Releveled};
use windlass_core::lanes::tasks::TaskId;
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::limits::{
    LANE_KEY_BYTES_MAX, TASKS_COUNTED_PER_COMMAND_MAX, TASKS_RELEVELED_PER_COMMAND_MAX,
};
use windlass_core::seeded::Seeded;
use windlass_core::tables::{Table, Walk};

fn relevel(leader: &mut Leader, key: &str) -> Outcome {
    let handed_out = leader.reserver.desk().handed_out(LANE, [(0, key)]);
    let relevel = Relevel { lane: LANE.into(), priority: 0, key: key.into(), handed_out };
    leader.apply_ordered(Command::Relevel(relevel))
}

/// Does a step; gives where the next one goes on.
fn step(leader: &mut Leader, key: &str) -> Option<RelevelFrom> {
    match relevel(leader, key) {
        Outcome::Releveled(Releveled { tasks, next }) => {
            assert!(tasks <= TASKS_RELEVELED_PER_COMMAND_MAX as u64, "a step is bounded");
            next
        }
        other => panic!("it is done, not answered with {other:?}"),
    }
}

/// How many steps it took.
fn relevel_all(leader: &mut Leader, key: &str) -> usize {
    let mut steps = 1;
    while step(leader, key).is_some() {
        steps += 1;
    }
    steps
}

fn levels(leader: &Leader, key: &str) -> Vec<Level> {
    let scan = |table, range: windlass_core::tables::KeyRange<'_>| {
        windlass_core::tables::Tables::scan(leader.machine.tables(), table, range, Walk::Up)
    };
    levels_above(&QueueName::of(leader.rank(0), key.into()), None, scan).map(|it| it.level).collect()
}

fn in_order(leader: &Leader, key: &str) -> Vec<TaskId> {
    levels(leader, key).into_iter().map(|level| level.id).collect()
}

#[test]
fn a_weight_that_is_raised_or_lowered_counts_for_what_waits() {
    for (milli, of_a, keys) in [
        (3_000, 300, ["a", "b"]),
        (333, 100, ["a", "b"]),
        (3_000, 300, ["t/x", "t/y"]),
        (333, 100, ["t/x", "t/y"]),
    ] {
        let mut leader = Leader::new(32, 8);
        leader.is_audited = false;
        for key in keys {
            (0..2).for_each(|_| drop(leader.add_of(key, 600)));
        }
        shares(&mut leader, 100, false);
        weigh(&mut leader, keys[0], milli);
        let steps = relevel_all(&mut leader, keys[0]);
        assert!((5..=7).contains(&steps), "1,150 tasks are moved apart and together in {steps} steps");
        leader.audit();
        let got = shares(&mut leader, 400, false);
        assert!(got[keys[0]].abs_diff(of_a) <= 2, "{milli}: {got:?}");
        let added = leader.add_of(keys[0], 1)[0];
        assert_eq!(in_order(&leader, keys[0]).last(), Some(&added), "what is added comes behind");
        leader.change();
        let got = shares(&mut leader, 400, false);
        assert!(got[keys[0]].abs_diff(of_a) <= 2, "{milli}, under the next leader: {got:?}");
        assert_eq!(relevel_all(&mut leader, keys[0]).min(3), 3, "again, nothing is left to do");
    }
}

#[test]
fn a_second_time_nothing_is_moved() {
    let mut leader = Leader::new(32, 8);
    leader.add_of("a", 40);
    leader.add_of("b", 40);
    shares(&mut leader, 20, false);
    weigh(&mut leader, "a", 250);
    relevel_all(&mut leader, "a");
    let before = leader.machine.tables().clone();
    relevel_all(&mut leader, "a");
    assert_eq!(*leader.machine.tables(), before);
}

#[test]
fn what_is_out_while_its_key_gets_other_levels_does_not_move_the_virtual_time() {
    for key in ["a", "t/x"] {
        let mut leader = Leader::new(32, 8);
        leader.add_of(key, 60);
        leader.add_of(if key == "a" { "b" } else { "t/y" }, 60);
        let held: Vec<Held> = (0..40).map(|_| leader.next().unwrap()).collect();
        weigh(&mut leader, key, 1);
        relevel_all(&mut leader, key);
        for held in held {
            leader.complete(held);
        }
        let newcomer = leader.add_of(if key == "a" { "c" } else { "t/z" }, 1)[0];
        let next: Vec<TaskId> = (0..3).map(|_| leader.next().unwrap().id).collect();
        assert!(next.contains(&newcomer), "a newcomer waits for two others at most");
    }
}

#[test]
fn only_a_key_with_a_weight_by_its_name_gets_other_levels() {
    let mut leader = Leader::new(32, 8);
    leader.add_of("t/x", 2);
    weigh(&mut leader, "t/", 2_000);
    for key in ["t/x", "t/"] {
        let outcome = relevel(&mut leader, key);
        assert!(matches!(outcome, Outcome::Refused(Refusal::Malformed { .. })), "{key}: {outcome:?}");
    }
    weigh(&mut leader, "t/y", 2_000);
    assert_eq!(step(&mut leader, "t/y"), None, "there is nothing to move");
}

#[test]
fn a_key_that_no_task_can_have_is_refused_like_one_without_a_weight() {
    let mut leader = Leader::new(32, 8);
    leader.add_of("a", 2);
    for bytes in [LANE_KEY_BYTES_MAX, LANE_KEY_BYTES_MAX + 1, 255, 256, 70_000] {
        let outcome = relevel(&mut leader, &"x".repeat(bytes));
        assert!(matches!(outcome, Outcome::Refused(Refusal::Malformed { .. })), "{bytes}: {outcome:?}");
    }
    assert_eq!(leader.rows(Table::Relevels), 0);
}

#[test]
fn what_is_added_between_two_steps_leaves_the_others_as_far_apart_as_their_weight_says() {
    for milli in [100, 4_000] {
        let mut leader = Leader::new(32, 8);
        leader.add_of("a", 4);
        weigh(&mut leader, "a", milli);
        let stride = u64::from(Weight::from_milli(milli).expect("it is one").stride());
        while step(&mut leader, "a").is_some() {
            leader.add_of("a", 3);
        }
        let passes = levels(&leader, "a").iter().map(|level| level.pass).collect::<Vec<u64>>();
        assert_eq!(passes[0], 0, "what is next stays");
        // The first one stands where it did, or as far behind the one that is next as its weight says, if that is less.
        let first = stride.min(STRIDE);
        let expected: Vec<u64> = (0..passes.len() as u64 - 1).map(|nth| first + nth * stride).collect();
        assert_eq!(passes[1..], expected, "weight {milli} / 1000");
    }
}

#[test]
fn the_turn_of_a_key_that_has_met_its_limit_follows_its_tasks_to_their_new_levels() {
    for key in ["a", "t/x"] {
        let mut leader = Leader::new(32, 8);
        weigh(&mut leader, key, 1);
        leader.add_of(key, 5);
        limit(&mut leader, named(key), in_flight(1));
        let held = leader.next().expect("the first one is within the limit");
        assert!(leader.next().is_none(), "from here on it has a cursor of its own");
        leader.complete(held);
        let other = if key == "a" { "b" } else { "t/y" };
        leader.add_of(other, 50);
        weigh(&mut leader, key, 1_000);
        relevel_all(&mut leader, key);
        leader.audit();
        let next: Vec<TaskId> = (0..3).map(|_| leader.next().expect("there is enough").id).collect();
        let next: Vec<String> = next.into_iter().map(|id| leader.key(id)).collect();
        assert!(
            next.contains(&key.to_owned()),
            "its next task stands a stride behind what went out: {next:?}"
        );
    }
}

/// Two keys of very many tasks, one of them limited, while everything else goes on.
#[test]
fn a_keys_tasks_go_out_in_order_while_they_get_other_levels() {
    let name = "a_keys_tasks_go_out_in_order_while_they_get_other_levels";
    sequences::run(name, 12, |seed| {
        let mut chance = Seeded::new(seed);
        let tasks = 2 + usize::try_from(chance.below(60)).unwrap();
        let mut leader = Leader::new(tasks, 1);
        leader.is_audited = false;
        let keys = [["a", "b"], ["t/x", "t/y"], ["a", "t/x"]][usize::try_from(chance.below(3)).unwrap()];
        keys.iter().for_each(|key| drop(leader.add_of(key, 900)));
        let mut last: [Option<TaskId>; 2] = [None; 2];
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..300 {
            let nth = usize::try_from(chance.below(2)).unwrap();
            match chance.below(12) {
                0 => {
                    weigh(&mut leader, keys[nth], [100, 500, 1_000, 3_000, 20_000][chance.below(5) as usize])
                }
                1..4 => {
                    if leader.machine.lanes().by_name(LANE).unwrap().row().weight_of(keys[nth]).is_some() {
                        step(&mut leader, keys[nth]);
                        assert!(in_order(&leader, keys[nth]).is_sorted(), "also between two steps");
                    }
                }
                4 => drop(leader.add_of(keys[nth], 20)),
                5 => {
                    let most = [in_flight(0), in_flight(3), None][chance.below(3) as usize];
                    limit(&mut leader, named(keys[nth]), most);
                }
                6 => leader.look_for_rows(),
                7 if chance.below(8) == 0 => {
                    leader.change();
                    held.clear();
                    last = [None; 2];
                }
                8 if !held.is_empty() => {
                    leader.complete(held.remove(0));
                }
                _ => {
                    for _ in 0..5 {
                        let Some(out) = leader.next() else { break };
                        let nth = usize::from(leader.key(out.id) == keys[1]);
                        assert!(last[nth] < Some(out.id), "{:?} went out before {}", last[nth], out.id);
                        last[nth] = Some(out.id);
                        held.push(out);
                    }
                }
            }
        }
        leader.audit();
    });
}

#[test]
fn what_goes_out_while_a_weight_is_lowered_is_paid_for_by_the_levels_of_before() {
    for keys in [["a", "b"], ["t/x", "t/y"]] {
        let mut leader = Leader::new(32, 8);
        leader.is_audited = false;
        for key in keys {
            (0..2).for_each(|_| drop(leader.add_of(key, 600)));
        }
        weigh(&mut leader, keys[0], 100);
        while step(&mut leader, keys[0]).is_some() {
            let got = shares(&mut leader, 80, false);
            assert!(got.get(keys[0]).is_none_or(|of_it| *of_it <= 41), "{got:?}");
        }
        leader.add_of(keys[1], 400);
        let got = shares(&mut leader, 110, false);
        assert!(got[keys[0]].abs_diff(10) <= 1, "one in eleven, from now on: {got:?}");
        leader.audit();
    }
}

#[test]
fn a_run_with_another_weight_begins_anew_and_those_who_ask_at_once_share_it() {
    let mut leader = Leader::new(32, 8);
    leader.is_audited = false;
    leader.add_of("a", 1_000);
    leader.add_of("a", 1);
    weigh(&mut leader, "a", 100);
    step(&mut leader, "a");
    step(&mut leader, "a");
    assert_eq!(leader.rows(Table::Relevels), 1);
    weigh(&mut leader, "a", 1_400);
    let first = relevel_all(&mut leader, "a");
    assert!(in_order(&leader, "a").is_sorted());
    assert_eq!(leader.rows(Table::Relevels), 0, "it is over");
    weigh(&mut leader, "a", 200);
    step(&mut leader, "a");
    leader.change();
    assert_eq!(
        relevel_all(&mut leader, "a"),
        first - 1,
        "the next leader goes on where the one before stopped"
    );
    assert!(in_order(&leader, "a").is_sorted());

    // Nobody is to be left in the middle because a weight was taken away.
    weigh(&mut leader, "a", 5_000);
    step(&mut leader, "a");
    let unset = Command::WeighKeys(WeighKeys { lane: LANE.into(), weights: [("a".to_owned(), None)].into() });
    assert_eq!(leader.apply(unset).outcome, Outcome::LaneSet);
    relevel_all(&mut leader, "a");
    assert!(matches!(relevel(&mut leader, "a"), Outcome::Refused(Refusal::Malformed { .. })));
    leader.audit();
}

#[test]
fn nothing_of_a_key_goes_out_while_its_levels_are_on_their_way() {
    for key in ["a", "t/x"] {
        let mut leader = Leader::new(32, 8);
        let other = if key == "a" { "b" } else { "t/y" };
        leader.add_of(key, 60);
        leader.add_of(other, 60);
        let held: Vec<Held> = (0..40).map(|_| leader.next().expect("there is enough")).collect();
        weigh(&mut leader, key, 1);
        let rank = leader.rank(0);
        loop {
            let handed_out = leader.reserver.desk().handed_out(LANE, [(0, key)]);
            leader.reserver.at_desk(|desk| desk.hold_back(rank, key));
            while let Some(out) = leader.next() {
                assert_eq!(leader.key(out.id), other, "it may be moved");
                leader.complete(out);
            }
            let relevel = Relevel { lane: LANE.into(), priority: 0, key: key.into(), handed_out };
            let outcome = leader.apply_ordered(Command::Relevel(relevel));
            leader.reserver.at_desk(|desk| desk.go_on(rank, key));
            match outcome {
                Outcome::Releveled(Releveled { next: Some(_), .. }) => {}
                Outcome::Releveled(Releveled { next: None, .. }) => break,
                other => panic!("it is done, not answered with {other:?}"),
            }
        }
        for held in held {
            leader.complete(held);
        }
        leader.add_of(other, 5);
        let newcomer = leader.add_of(if key == "a" { "c" } else { "t/z" }, 1)[0];
        let next: Vec<TaskId> = (0..3).map(|_| leader.next().expect("there is enough").id).collect();
        assert!(next.contains(&newcomer), "a newcomer waits for two others at most");
    }
}

/// More than one step counts.
#[test]
fn a_key_of_more_tasks_than_one_step_counts_is_given_new_levels_in_the_order_that_it_had() {
    const TASKS: usize = 2 * TASKS_COUNTED_PER_COMMAND_MAX + 2_000;
    let mut leader = Leader::new(64, 16);
    leader.is_audited = false;
    let of_a: Vec<TaskId> = (0..TASKS / 1_000).flat_map(|_| leader.add_of("a", 1_000)).collect();
    leader.add_of("b", 100);
    weigh(&mut leader, "a", 2_000);
    let first = step(&mut leader, "a").expect("it goes on");
    assert!(
        matches!(first.phase, Phase::Count { tasks, .. } if tasks == TASKS_COUNTED_PER_COMMAND_MAX as u64)
    );
    relevel_all(&mut leader, "a");
    leader.audit_now();
    assert_eq!(in_order(&leader, "a"), of_a);
    let got = shares(&mut leader, 90, false);
    assert!(got["a"].abs_diff(60) <= 2, "{got:?}");
}

/// What waits of a key stands close together by its old weight, and goes by its rate: the others need not wait for it.
#[test]
fn a_key_whose_weight_was_lowered_blocks_nobody_while_it_goes_by_its_rate() {
    for is_releveled in [false, true] {
        let mut leader = Leader::new(8, 2);
        weigh(&mut leader, "a", 100_000);
        leader.add_of("a", 200);
        limit(&mut leader, named("a"), rate(1_000, 1));
        let of_b = leader.add_of("b", 40);
        leader.next().expect("the burst of a, or the first of b");
        weigh(&mut leader, "a", 100);
        if is_releveled {
            relevel_all(&mut leader, "a");
        }
        let went = leader.all().into_iter().map(|held| held.id).collect::<Vec<_>>();
        assert_eq!(went.iter().filter(|id| of_b.contains(id)).count(), of_b.len(), "all of b, at once");
        assert_eq!(went.len(), of_b.len(), "and of a no more than its burst");
        let after = leader.add_of("b", 3);
        for _ in 0..3 {
            leader.wait_ms(1_000);
            let next = leader.all();
            assert!(next.len() <= 1 + after.len() && next.iter().any(|held| leader.key(held.id) == "a"));
        }
    }
}
