//! Stories of sharing: one fsync for many commands, one barrier for many reads, and an end that loses nobody.

use super::Home;
use crate::limits::PROPOSALS_MANY;
use crate::{OrderFault, open_postbox};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Command, Outcome};

fn submit() -> Command {
    Command::Submit(Submit::new(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_proposals_at_once_share_their_syncs() {
    let home = Home::new();
    let opened = home.open().await;
    let before = opened.order.counters();
    let proposals: Vec<_> = (0..1_000)
        .map(|_| {
            let order = opened.order.clone();
            tokio::spawn(async move { order.propose(submit()).await })
        })
        .collect();
    for proposal in proposals {
        assert!(matches!(proposal.await.unwrap(), Ok(Outcome::Submitted { .. })));
    }
    let after = opened.order.counters();
    let syncs = after.log.syncs - before.log.syncs;
    assert_eq!(after.commands - before.commands, 1_000);
    assert!(syncs <= 100, "1,000 commands took {syncs} syncs");
    assert_eq!(opened.order.read(|machine| machine.batch().running()), 1_000);
    assert_eq!((after.waiting, after.unknown_tokens), (0, 0));
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_never_take_their_answers_hold_up_nobody() {
    let home = Home::new();
    let opened = home.open().await;
    let (many, rounds) = (4 * PROPOSALS_MANY, 50);
    // A thread that takes nothing out of its postbox.
    let order = opened.order.clone();
    let held_up = std::thread::spawn(move || {
        let postbox = open_postbox();
        (postbox, (0..many).map(|_| order.propose(submit())).collect::<Vec<_>>())
    });
    let held_up = held_up.join().unwrap();
    for _ in 0..rounds {
        let round = (0..many).map(|_| opened.order.propose(submit()));
        for outcome in join_all(round).await {
            assert!(matches!(outcome, Ok(Outcome::Submitted { .. })));
        }
    }
    assert_eq!(opened.order.read(|machine| machine.batch().running()), (rounds + 1) * many);
    drop(held_up);
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_reads_at_once_share_a_few_barriers() {
    let home = Home::new();
    let opened = home.open().await;
    opened.submit(1).await;
    let applied = opened.order.applied_index();
    let before = opened.order.counters().barriers;
    let barriers: Vec<_> = (0..1_000)
        .map(|_| {
            let order = opened.order.clone();
            tokio::spawn(async move { order.barrier().await })
        })
        .collect();
    for barrier in barriers {
        assert_eq!(barrier.await.unwrap(), Ok(applied));
    }
    let passed = opened.order.counters().barriers - before;
    assert!(passed <= 100, "1,000 reads took {passed} barriers");
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_answers_what_was_taken_and_refuses_the_rest() {
    let home = Home::new();
    let opened = home.open().await;
    let proposals: Vec<_> = (0..500)
        .map(|_| {
            let order = opened.order.clone();
            tokio::spawn(async move { order.propose(submit()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let other = opened.order.clone();
    opened.order.shutdown().await.unwrap();
    let mut taken = 0;
    for proposal in proposals {
        match proposal.await.unwrap() {
            Ok(Outcome::Submitted { .. }) => taken += 1,
            Err(OrderFault::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(other.propose(submit()).await, Err(OrderFault::Closed));
    assert_eq!(other.barrier().await, Err(OrderFault::Closed));
    drop(other);
    let again = home.open().await;
    assert_eq!(again.order.read(|machine| machine.batch().running()), taken);
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_leads_at_once() {
    let home = Home::new();
    home.open().await.order.shutdown().await.unwrap();
    let tables = windlass_store::tables::DiskTables::open(&home.tables()).unwrap();
    let begun = Instant::now();
    let order = crate::Order::open(home.options.clone(), tables, Box::new(drop)).await.unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "an election timeout is 1.5 s at least; this took {took:?}");
    order.shutdown().await.unwrap();
}
