//! Limits, told as stories: what is in the way of one is in nobody else's.

use crate::leader::{ANNA, BEGIN, Held, LANE, Leader};
use windlass_core::batch::reserver::{SessionId, Standing as Stands};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::lanes::levels::{STRIDE, Weight};
use windlass_core::lanes::limiting::{Limit, LimitLane, Rate, Scope, SetLimit};
use windlass_core::lanes::meters::Block;
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::NewTask;
use windlass_core::limits::{LANE_FLOW_BUFFER_TASKS, LANE_FLOW_TASKS_MAX, LANE_LIMITS_MAX};

pub(crate) fn in_flight(most: u32) -> Option<Limit> {
    Some(Limit { in_flight: Some(most), rate: None })
}

pub(crate) fn rate(milli_per_second: u64, burst: u32) -> Option<Limit> {
    Some(Limit { in_flight: None, rate: Some(Rate { milli_per_second, burst }) })
}

pub(crate) fn named(name: &str) -> Scope {
    Scope::Named(name.to_owned())
}

pub(crate) fn limit(leader: &mut Leader, scope: Scope, limit: Option<Limit>) {
    let set = vec![SetLimit { scope, limit }];
    let outcome = leader.apply_ordered(Command::LimitLane(LimitLane { lane: LANE.into(), set }));
    assert_eq!(outcome, Outcome::LaneSet);
}

fn keys(leader: &Leader, held: &[Held]) -> Vec<String> {
    held.iter().map(|held| leader.key(held.id)).collect()
}

/// The keys of everything that goes out.
fn all_keys(leader: &mut Leader) -> Vec<String> {
    let held = leader.all();
    keys(leader, &held)
}

#[test]
fn a_backlog_of_a_key_at_its_limit_is_in_nobodys_way_and_not_in_memory() {
    let mut leader = Leader::new(64, 16);
    leader.is_audited = false;
    limit(&mut leader, named("heavy"), in_flight(2));
    (0..20).for_each(|_| drop(leader.add_of("heavy", 1_000)));
    leader.add_of("light", 1);
    assert_eq!(all_keys(&mut leader), ["heavy", "light", "heavy"]);
    assert!(leader.look().ready <= 64 + LANE_FLOW_BUFFER_TASKS, "{:?}", leader.look());
    assert_eq!((leader.look().parked, leader.look().out), (1, 3));
    leader.audit();

    leader.change();
    leader.add_of("lighter", 1);
    assert_eq!(all_keys(&mut leader).iter().filter(|key| *key == "heavy").count(), 2);
    assert_eq!(leader.look().out, 4, "light, lighter, and two of heavy");
    assert!(leader.look().ready <= 64 + LANE_FLOW_BUFFER_TASKS, "{:?}", leader.look());
}

#[test]
fn very_many_users_at_their_limits_keep_no_more_in_memory_than_a_tenant_may() {
    const USERS: usize = 1_500;
    let mut leader = Leader::new(4_096, 1_024);
    leader.is_audited = false;
    limit(&mut leader, Scope::EachKey, in_flight(1));
    for _ in 0..70 {
        for some in [0..USERS / 2, USERS / 2..USERS] {
            leader.add(some.map(|nth| NewTask::new(format!("t/{nth}"))).collect());
        }
    }
    let held = leader.all();
    assert_eq!(held.len(), USERS, "one of each");
    let most = LANE_FLOW_TASKS_MAX / 4 + 2 * LANE_FLOW_BUFFER_TASKS;
    assert!(leader.look().ready <= most, "{:?}", leader.look());
    leader.audit();

    // Those that were let go are read again.
    for held in held {
        let key = leader.key(held.id);
        leader.complete(held);
        let next = leader.next().expect("its user may go on");
        assert_eq!(leader.key(next.id), key);
        assert!(leader.look().ready <= most, "{:?}", leader.look());
    }
    leader.audit();
}

#[test]
fn a_tenant_at_its_limit_lets_the_others_go_and_its_users_share_what_it_may_have() {
    let mut leader = Leader::new(8, 2);
    limit(&mut leader, Scope::EachTenant, in_flight(1));
    for key in ["t/x", "t/y", "u/x", "a"] {
        leader.add_of(key, 3);
    }
    let mut held = leader.all();
    let mut order = keys(&leader, &held);
    order.sort_unstable();
    assert_eq!(order, ["a", "a", "a", "t/x", "u/x"]);
    let mut of_tenant = vec!["t/x".to_owned()];
    for _ in 0..3 {
        let nth = held.iter().position(|held| leader.key(held.id).starts_with("t/")).unwrap();
        leader.complete(held.remove(nth));
        let next = leader.next().expect("the tenant may go on");
        assert_eq!(leader.next(), None, "but with one only");
        of_tenant.push(leader.key(next.id));
        held.push(next);
    }
    assert_eq!(of_tenant, ["t/x", "t/y", "t/x", "t/y"]);
}

#[test]
fn a_user_at_its_limit_leaves_the_tenants_turns_to_the_other_users() {
    let mut leader = Leader::new(8, 2);
    limit(&mut leader, named("t/x"), in_flight(0));
    for key in ["t/x", "t/y", "a"] {
        leader.add_of(key, 4);
    }
    let order = all_keys(&mut leader);
    for some in order.chunks(4) {
        assert_eq!(some.iter().filter(|key| *key == "a").count(), 2, "{order:?}");
    }
    assert_eq!((order.len(), leader.look().parked), (8, 1));
}

#[test]
fn a_named_limit_of_nothing_stops_one_key_until_it_is_lifted() {
    let mut leader = Leader::new(4, 1);
    limit(&mut leader, named("a"), in_flight(0));
    leader.add_of("a", 2);
    leader.add_of("b", 2);
    assert_eq!(all_keys(&mut leader), ["b", "b"]);
    let blocks = leader.reserver.desk().blocks(leader.lane(), "a", leader.now);
    assert_eq!(blocks, [(Some("a".to_owned()), Block::InFlight { most: 0, out: 0 })]);
    limit(&mut leader, named("a"), None);
    assert_eq!(all_keys(&mut leader), ["a", "a"]);
}

#[test]
fn a_rate_lets_a_burst_go_and_then_one_at_a_time_whatever_is_done() {
    let mut leader = Leader::new(4, 1);
    limit(&mut leader, Scope::EachKey, rate(10_000, 3));
    leader.add_of("a", 6);
    let held = leader.all();
    assert_eq!(held.len(), 3);
    for held in held {
        leader.complete(held);
    }
    assert_eq!(leader.next(), None, "done or not, they went out");
    for _ in 0..2 {
        assert_eq!(leader.reserver.desk().next_room(), Some(leader.now.after_ms(100)));
        leader.wait_ms(99);
        assert_eq!(leader.next(), None);
        leader.wait_ms(1);
        assert!(leader.next().is_some());
        assert_eq!(leader.next(), None);
    }
    leader.wait_ms(1_000);
    assert!(leader.next().is_some());
    assert_eq!(leader.reserver.desk().next_room(), None, "nobody waits");
}

#[test]
fn a_rate_that_is_changed_counts_at_once() {
    let mut leader = Leader::new(4, 1);
    limit(&mut leader, named("a"), rate(1, 3));
    leader.add_of("a", 9);
    assert_eq!(leader.all().len(), 3, "the next one may go in a quarter of an hour");
    limit(&mut leader, named("a"), rate(10_000, 1));
    leader.wait_ms(100);
    assert_eq!(leader.all().len(), 1);
}

#[test]
fn a_limit_below_what_is_out_waits_until_there_is_room_and_a_raised_one_does_not() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 10);
    let mut held: Vec<Held> = (0..5).map(|_| leader.next().unwrap()).collect();
    limit(&mut leader, Scope::Lane, in_flight(2));
    for _ in 0..3 {
        leader.complete(held.pop().unwrap());
        assert_eq!(leader.next(), None, "{} are out", held.len());
    }
    leader.complete(held.pop().unwrap());
    assert_eq!(leader.all().len(), 1);
    limit(&mut leader, Scope::Lane, in_flight(4));
    assert_eq!(leader.all().len(), 2, "four are out");
    limit(&mut leader, Scope::Lane, None);
    assert_eq!(leader.all().len(), 2, "the rest");
}

#[test]
fn a_limit_counts_over_all_priorities_and_each_lane_for_itself() {
    let mut leader = Leader::new(4, 1);
    leader.set_lane("post", None, None);
    limit(&mut leader, named("a"), in_flight(2));
    let with = |priority| NewTask { priority, ..NewTask::new("a") };
    let added = leader.add(vec![with(0), with(5), with(9), with(0)]);
    let held = leader.all();
    assert_eq!(held.iter().map(|held| held.id).collect::<Vec<_>>(), [added[2], added[1]]);
    let elsewhere = leader.stamped("post", vec![NewTask::new("a"); 3]);
    leader.apply(Command::AddTasks(elsewhere));
    let holder = windlass_core::batch::reserver::Holder::Session(ANNA);
    assert_eq!(leader.reserve_of("post", holder, 9).len(), 3);
    leader.release(held[0]);
    leader.next_is(added[2]);
    leader.complete(held[1]);
    leader.next_is(added[0]);
}

#[test]
fn limits_survive_a_change_of_leaders_and_count_what_consumers_go_on_with() {
    let mut leader = Leader::new(4, 1);
    limit(&mut leader, Scope::EachKey, in_flight(2));
    leader.add_of("a", 5);
    leader.add_of("b", 1);
    let held = leader.all();
    assert_eq!(held.len(), 3);

    leader.change();
    leader.reserver.at_desk(|desk| desk.set_held(true));
    assert_eq!(leader.next(), None, "work of the one before may be under way");
    assert_eq!(leader.reserver.desk().blocks(leader.lane(), "b", leader.now)[0].1, Block::Held);
    let still = *held.iter().find(|held| leader.key(held.id) == "a").unwrap();
    let placed = Placed { level: leader.level(still.id), key: "a".into(), stride: Weight::ONE.stride() };
    let standing = leader.reserver.reassert_task(SessionId(7), leader.rank(0), placed, still.token);
    assert_eq!((standing, leader.next()), (Stands::Holds, None));

    leader.reserver.at_desk(|desk| desk.set_held(false));
    let mut out = all_keys(&mut leader);
    out.sort_unstable();
    assert_eq!(out, ["a", "b"], "one of a is still out");
    leader.complete(still);
    assert_eq!(all_keys(&mut leader), ["a"]);
}

#[test]
fn a_limit_that_is_set_while_work_of_an_earlier_leader_may_be_under_way_waits_too() {
    let mut leader = Leader::new(4, 1);
    leader.add_of("a", 2);
    leader.change();
    leader.reserver.at_desk(|desk| desk.set_held(true));
    limit(&mut leader, named("b"), in_flight(1));
    leader.add_of("b", 1);
    assert_eq!(all_keys(&mut leader), ["a", "a"], "only what is limited waits");
    limit(&mut leader, named("b"), None);
    assert_eq!(all_keys(&mut leader), ["b"]);
}

#[test]
fn what_a_limit_holds_up_does_not_save_up_turns() {
    let mut leader = Leader::new(8, 2);
    limit(&mut leader, named("a"), in_flight(0));
    leader.add_of("a", 50);
    leader.add_of("b", 100);
    for _ in 0..50 {
        let held = leader.next().unwrap();
        leader.complete(held);
    }
    limit(&mut leader, named("a"), None);
    let held: Vec<Held> = (0..20).map(|_| leader.next().unwrap()).collect();
    let of_a = keys(&leader, &held).iter().filter(|key| *key == "a").count();
    assert!((9..=11).contains(&of_a), "{of_a} of 20");
}

#[test]
fn a_task_that_is_given_back_costs_its_key_one_turn_also_if_the_key_is_set_apart() {
    let mut leader = Leader::new(8, 2);
    limit(&mut leader, named("a"), in_flight(1));
    let of_a = leader.add_of("a", 3);
    leader.add_of("b", 10);
    let mut first = leader.next_is(of_a[0]);
    let other = leader.next().unwrap();
    assert_eq!(leader.key(other.id), "b");
    leader.next().unwrap();
    let turn = leader.reserver.desk().turn_of(leader.rank(0), "a").expect("it is set apart").pass;
    assert_eq!(turn, STRIDE);
    for _ in 0..3 {
        leader.release(first);
        first = leader.next_is(of_a[0]);
        assert_eq!(leader.reserver.desk().turn_of(leader.rank(0), "a").map(|it| it.pass), Some(turn));
    }
    assert_eq!(leader.next().map(|held| leader.key(held.id)).as_deref(), Some("b"));
}

/// Each task of `slow` is a turn of ten. Its first one comes back before it is set apart.
#[test]
fn a_key_that_is_set_apart_with_a_task_that_came_back_gets_no_turn_for_it() {
    let mut leader = Leader::new(8, 2);
    let weight = Weight::from_milli(100).unwrap();
    let slow = leader.add(vec![NewTask { weight, ..NewTask::new("slow") }; 3]);
    leader.add_of("b", 30);
    let first = leader.next_is(slow[0]);
    leader.next().unwrap();
    leader.release(first);
    limit(&mut leader, Scope::EachKey, in_flight(0));
    assert_eq!((leader.next(), leader.look().parked), (None, 2));
    limit(&mut leader, Scope::EachKey, None);
    leader.next_is(slow[0]);
    let held: Vec<Held> = (0..9).map(|_| leader.next().unwrap()).collect();
    assert_eq!(keys(&leader, &held), ["b"; 9]);
    let held: Vec<Held> = (0..2).map(|_| leader.next().unwrap()).collect();
    assert!(held.iter().any(|held| held.id == slow[1]));
}

#[test]
fn a_key_that_was_set_apart_is_forgotten_when_nothing_is_left_and_its_turn_is_over() {
    let mut leader = Leader::new(8, 2);
    limit(&mut leader, Scope::EachKey, in_flight(1));
    let names: Vec<String> = (0..20).map(|nth| format!("k{nth}")).collect();
    names.iter().for_each(|name| drop(leader.add_of(name, 2)));
    let held = leader.all();
    assert_eq!((held.len(), leader.look().parked), (20, 20));
    for held in held {
        leader.complete(held);
    }
    for held in leader.all() {
        leader.complete(held);
    }
    leader.add_of("last", 3);
    while let Some(held) = leader.next() {
        leader.complete(held);
    }
    let desk = leader.reserver.desk();
    let left = names.iter().filter(|name| desk.turn_of(leader.rank(0), name).is_some()).count();
    assert_eq!((left, desk.look(leader.rank(0)).unwrap().parked), (0, 0));
}

#[test]
fn a_limit_that_makes_no_sense_is_refused_and_changes_nothing() {
    let mut leader = Leader::new(4, 1);
    let mut refused = |set: Vec<SetLimit>| {
        let it = LimitLane { lane: LANE.into(), set };
        match leader.apply(Command::LimitLane(it)).outcome {
            Outcome::Refused(Refusal::Malformed { problem }) => problem,
            other => panic!("it is refused, not answered with {other:?}"),
        }
    };
    let one = |scope, limit| vec![SetLimit { scope, limit }];
    let fine = SetLimit { scope: Scope::Lane, limit: in_flight(1) };
    let too_long = SetLimit { scope: named(&"x".repeat(65)), limit: in_flight(1) };
    assert!(refused(vec![fine, too_long]).contains("64 bytes"));
    assert!(refused(one(Scope::Lane, in_flight(1_000_001))).contains("at most 1000000"));
    assert!(refused(one(Scope::EachKey, rate(0, 1))).contains("positive"));
    assert!(refused(one(Scope::EachKey, rate(1, 0))).contains("burst"));
    let many =
        (0..=LANE_LIMITS_MAX).map(|nth| SetLimit { scope: named(&nth.to_string()), limit: in_flight(1) });
    assert!(refused(many.collect()).contains("for each key instead"));
    let unknown = LimitLane { lane: "nobody".into(), set: Vec::new() };
    let outcome = leader.apply(Command::LimitLane(unknown)).outcome;
    assert_eq!(outcome, Outcome::Refused(Refusal::LaneUnknown { lane: "nobody".into() }));
    assert!(leader.machine.lanes().by_name(LANE).unwrap().row().limits.is_empty());
    assert_eq!(leader.now, BEGIN);
}
