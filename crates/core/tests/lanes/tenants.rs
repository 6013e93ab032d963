//! Tenants, told as stories: one share each, however many users and tasks they have.

use crate::leader::{ANNA, Held, LANE, Leader};
use crate::limits::{in_flight, limit, named};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::entry::{Command, Outcome, Refusal};
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{STRIDE, Weight, tenant_of};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::NewTask;
use windlass_core::lanes::weigh::WeighKeys;
use windlass_core::tables::Table;

pub(crate) fn weigh(leader: &mut Leader, name: &str, milli: u32) {
    let weights = [(name.to_owned(), Weight::from_milli(milli))].into();
    let outcome = leader.apply(Command::WeighKeys(WeighKeys { lane: LANE.into(), weights })).outcome;
    assert_eq!(outcome, Outcome::LaneSet);
}

/// How many of the next tasks each party gets, by key or tenant; all of them are done.
pub(crate) fn shares(leader: &mut Leader, count: usize, by_tenant: bool) -> BTreeMap<String, usize> {
    let mut got = BTreeMap::new();
    for _ in 0..count {
        let held = leader.next().expect("there is enough");
        let key = leader.key(held.id);
        let party = tenant_of(&key).filter(|_| by_tenant).unwrap_or(&key);
        *got.entry(party.to_owned()).or_default() += 1;
        leader.complete(held);
    }
    got
}

#[test]
fn a_tenant_with_ten_thousand_users_gets_as_much_as_one_with_a_single_user_and_as_a_key() {
    let mut leader = Leader::new(64, 16);
    leader.is_audited = false;
    for thousand in 0..10 {
        let users = (0..1_000).map(|nth| NewTask::new(format!("many/{thousand}-{nth}")));
        leader.add(users.collect());
        leader.add_of("one/user", 150);
        leader.add_of("plain", 150);
    }
    for _ in 0..3 {
        let got = shares(&mut leader, 900, true);
        assert!(got.values().all(|got| (299..=301).contains(got)), "{got:?}");
        leader.change();
    }
}

#[test]
fn a_tenant_gets_what_its_weight_says_and_its_users_what_theirs_say() {
    let mut leader = Leader::new(16, 4);
    leader.is_audited = false;
    weigh(&mut leader, "t/", 3_000);
    weigh(&mut leader, "t/x", 2_000);
    for key in ["t/x", "t/y", "u/x", "a"] {
        leader.add_of(key, 700);
    }
    let by_tenant = shares(&mut leader, 500, true);
    assert_eq!(by_tenant.into_values().collect::<Vec<_>>(), [100, 300, 100]);
    let by_user = shares(&mut leader, 500, false);
    let [of_x, of_y] = ["t/x", "t/y"].map(|user| by_user[user]);
    assert!((199..=201).contains(&of_x) && (99..=101).contains(&of_y), "{by_user:?}");
    let told = |leader: &Leader| {
        let lane = leader.machine.lanes().by_name(LANE).expect("it was created");
        let (_, rank) = lane.ranks().next().expect("it has tasks");
        let shares = rank.shares();
        (shares.get("t/").map(|row| row.weight().as_milli()), shares.weight_milli())
    };
    assert_eq!(told(&leader), (Some(3_000), 5_000));
    weigh(&mut leader, "t/", 1_000);
    assert_eq!(told(&leader), (Some(1_000), 3_000), "what is told of it counts at once, too");
    let by_tenant = shares(&mut leader, 300, true);
    assert!(by_tenant.values().all(|got| (98..=102).contains(got)), "a tenant's weight counts at once");
}

/// It has one task after the other, each of which is a turn of ten.
#[test]
fn a_tenant_whose_turn_is_not_over_has_to_wait_also_under_the_next_leader() {
    for is_changed in [false, true] {
        let mut leader = Leader::new(8, 2);
        weigh(&mut leader, "t/", 100);
        leader.add_of("a", 60);
        leader.add_of("t/x", 1);
        let got = shares(&mut leader, 2, true);
        assert_eq!(got["t/"], 1);
        if is_changed {
            leader.change();
        }
        leader.add_of("t/x", 1);
        let got = shares(&mut leader, 9, true);
        assert_eq!(got.get("t/"), None, "it had its turn ({is_changed})");
        let got = shares(&mut leader, 2, true);
        assert_eq!(got["t/"], 1, "{is_changed}");
    }
}

/// Its turn is over for the machine, which knows nothing of what limits held up, but not for the leader.
#[test]
fn a_tenant_that_the_machine_has_forgotten_comes_back_where_its_users_had_got_to() {
    let mut leader = Leader::new(8, 2);
    leader.add_of("a", 90);
    leader.add_of("t/x", 15);
    leader.add_of("t/y", 20);
    for name in ["t/", "t/x"] {
        limit(&mut leader, named(name), in_flight(0));
    }
    shares(&mut leader, 30, true);
    limit(&mut leader, named("t/"), None);
    while leader.machine.lanes().rank(leader.rank(0)).unwrap().key("t/y").is_some_and(|it| it.waiting > 0) {
        shares(&mut leader, 1, true);
    }
    limit(&mut leader, named("t/x"), None);
    while leader.machine.lanes().rank(leader.rank(0)).unwrap().tenant("t/").is_some() {
        shares(&mut leader, 1, true);
    }
    assert!(leader.reserver.desk().turn_of(leader.rank(0), "t/").is_some(), "the leader has not");
    leader.add_of("t/z", 40);
    shares(&mut leader, 4, true);
    let newcomer = leader.add_of("t/y", 1)[0];
    let next: Vec<_> = (0..6).map(|_| leader.next().unwrap().id).collect();
    assert!(next.contains(&newcomer), "it waits for one other user and one other key");
}

#[test]
fn tenants_leave_nothing_behind_when_their_tasks_are_done() {
    let mut leader = Leader::new(8, 2);
    for nth in 0..30 {
        leader.add_of(&format!("t{nth}/x"), 1);
        leader.add_of(&format!("t{nth}/y"), 2);
    }
    while let Some(held) = leader.next() {
        leader.complete(held);
    }
    leader.note_all();
    leader.do_errands();
    let rows = [Table::Tenants, Table::LaneKeys, Table::KeyLevels, Table::Levels].map(|it| leader.rows(it));
    assert_eq!(rows, [0; 4]);
    let desk = leader.reserver.desk();
    assert!((0..30).all(|nth| desk.turn_of(leader.rank(0), &format!("t{nth}/")).is_none()));
    leader.add_of("t7/x", 1);
    let level = leader.rank_row(0);
    assert!(level.tenants_from >= STRIDE, "one that comes back starts behind what was: {level:?}");
    leader.audit();
}

#[test]
fn how_far_many_tenants_have_come_on_is_noted_some_at_a_time_and_each_gets_its_turn() {
    let mut leader = Leader::new(64, 16);
    leader.is_audited = false;
    for _ in 0..3 {
        leader.add((0..50).map(|nth| NewTask::new(format!("t{nth}/x"))).collect());
    }
    for _ in 0..100 {
        let held = leader.next().expect("each has three");
        leader.complete(held);
    }
    leader.collect_errands();
    leader.errands.clear();
    let mut noted = Vec::new();
    for has_more in [true, true, false] {
        assert_eq!(leader.reserver.at_desk(|desk| desk.note_some(20)), has_more);
        leader.collect_errands();
        let some = leader.errands.iter().filter_map(|errand| match errand {
            Errand::Note(ack) => Some(ack.tenant.clone()),
            Errand::Read { .. } => None,
        });
        let before = noted.len();
        noted.extend(some);
        assert!(noted.len() - before <= 20, "{noted:?}");
        leader.do_errands();
    }
    assert_eq!(noted.iter().collect::<BTreeSet<_>>().len(), 50, "{noted:?}");
    leader.audit();
}

#[test]
fn a_key_names_a_user_or_nobody_and_has_at_most_64_bytes_with_its_tenant() {
    let mut leader = Leader::new(8, 2);
    for key in ["tenant/", "/", "a/b/", &format!("t/{}", "x".repeat(63))] {
        let add = leader.stamped(LANE, vec![NewTask::new(key)]);
        let outcome = leader.apply(Command::AddTasks(add)).outcome;
        assert!(matches!(outcome, Outcome::Refused(Refusal::Malformed { .. })), "{key}: {outcome:?}");
    }
    let longest = format!("t/{}", "x".repeat(62));
    let mut added = Vec::new();
    for key in ["", "t", "t/x", "/x", "//x", "t/x/y", &longest, &"x".repeat(64)] {
        added.extend(leader.add_of(key, 2));
    }
    leader.change();
    let mut out: Vec<_> = leader.all().into_iter().map(|held| held.id).collect();
    out.sort_unstable();
    assert_eq!(out, added);
}

#[test]
fn what_was_handed_out_lately_is_seen_as_shares() {
    let mut leader = Leader::new(16, 4);
    leader.is_audited = false;
    weigh(&mut leader, "a", 3_000);
    leader.add_of("a", 400);
    leader.add_of("t/x", 400);
    shares(&mut leader, 400, false);
    let (usage, worst_lag) = leader.reserver.desk().usage(leader.lane()).unwrap();
    let [one, five, fifteen] = usage.share_of(0, "a", leader.now);
    assert!([one, five, fifteen].iter().all(|share| (share - 0.75).abs() < 0.01), "{one} {five} {fifteen}");
    assert_eq!(usage.largest(1, leader.now, |_, _| true)[0].1.as_ref(), "a");
    assert!(worst_lag < 1.0, "nobody was late: {worst_lag}");
}

#[test]
fn who_goes_on_with_its_tasks_under_the_next_leader_keeps_its_share() {
    for names in [["t/x", "u/x"], ["a", "b"], ["t/x", "b"], ["a", "u/x"]] {
        let mut leader = Leader::new(64, 16);
        for key in names {
            leader.add_of(key, 100);
        }
        let held: Vec<Held> = (0..20).map(|_| leader.next().expect("there is enough")).collect();
        let (slow, quick): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|it| leader.key(it.id) == names[0]);
        assert_eq!((slow.len(), quick.len()), (10, 10));
        for it in quick {
            leader.complete(it);
        }
        leader.change();
        let rank = leader.rank(0);
        for it in &slow {
            let stride = Weight::ONE.stride();
            let placed = Placed { level: leader.level(it.id), key: names[0].into(), stride };
            leader.reserver.reassert_task(ANNA, rank, placed, it.token);
        }
        let next: Vec<Held> = (0..20).map(|_| leader.next().expect("there is enough")).collect();
        let of_slow = next.iter().filter(|it| leader.key(it.id) == names[0]).count();
        assert!((9..=11).contains(&of_slow), "{names:?}: of the next 20, {of_slow} are of {}", names[0]);
    }
}

#[test]
fn a_retry_of_a_tenant_that_is_done_late_does_not_move_the_virtual_time_past_what_was_handed_out() {
    let mut leader = Leader::new(64, 16);
    weigh(&mut leader, "t/", 10);
    let added = leader.add(vec![NewTask { retry_delay_ms: 0, ..NewTask::new("t/x") }; 4]);
    let first = leader.next_is(added[0]);
    leader.fail(first);
    leader.wait_ms(0);
    let mut out = [leader.next(), leader.next()].map(|it| it.expect("there is enough"));
    out.sort_by_key(|it| it.id == added[0]);
    leader.add_of("backlogged", 500);
    let handed_out = leader.look().virtual_time;
    for held in out {
        leader.complete(held);
        assert_eq!(leader.look().virtual_time, handed_out);
    }
    let newcomer = leader.add_of("newcomer", 1)[0];
    let waited = std::iter::from_fn(|| leader.next()).take_while(|it| it.id != newcomer).count();
    assert!(waited <= 2, "it waits for one other key and a tenant, not for {waited} hand-outs");
}
