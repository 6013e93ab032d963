//! Stories of durability: what is acknowledged, and what stops the node.

use super::{Home, SlowDisk, submitted};
use crate::limits::{GROUP_COMMANDS_MAX, PROPOSALS_WAITING_MAX};
use crate::{Order, OrderFault};
use futures_util::poll;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Command, Outcome};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_or_applied_before_its_sync() {
    let home = Home::new();
    let disk = SlowDisk::default();
    let opened = home.open_on(Arc::new(disk.clone())).await;
    disk.hold();
    let order = opened.order.clone();
    let mut proposal = tokio::spawn(async move { order.propose(Command::Submit(Submit::new(5))).await });
    tokio::task::spawn_blocking({
        let disk = disk.clone();
        move || disk.wait_at_gate()
    })
    .await
    .unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), &mut proposal).await;
    assert!(early.is_err(), "answered before the sync: {early:?}");
    assert_eq!(opened.order.read(|machine| machine.batch().running()), 0);

    disk.let_go(false);
    submitted(proposal.await.unwrap().unwrap());
    assert_eq!(opened.order.read(|machine| machine.batch().running()), 1);
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_stops_the_node_and_the_caller_hears_why() {
    let home = Home::new();
    let disk = SlowDisk::default();
    let opened = home.open_on(Arc::new(disk.clone())).await;
    disk.let_go(true);
    let outcome = opened.order.propose(Command::Submit(Submit::new(5))).await;
    let fault = opened.order.fault().await;
    assert!(
        matches!(&fault, OrderFault::LogBroken { what } if what.contains("the disk is broken")),
        "{fault}"
    );
    assert_eq!(outcome, Err(fault.clone()));
    assert_eq!(opened.order.propose(Command::Submit(Submit::new(5))).await, Err(fault.clone()));
    assert_eq!(opened.order.shutdown().await, Err(fault));

    let again = home.open().await;
    let running = again.order.read(|machine| machine.batch().running());
    assert!(running <= 1, "what was not acknowledged may have happened, but once");
    again.order.shutdown().await.unwrap();
}

/// More proposals than there is room for, all on their way.
fn crowd(order: &Order) -> Vec<JoinHandle<Result<Outcome, OrderFault>>> {
    let propose = |_| {
        let order = order.clone();
        tokio::spawn(async move { order.propose(Command::Submit(Submit::new(1))).await })
    };
    (0..PROPOSALS_WAITING_MAX + 10 * GROUP_COMMANDS_MAX).map(propose).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_past_the_limits_hears_who_was_taken_and_who_was_not() {
    let mut home = Home::new();
    home.options.propose_timeout = Duration::from_secs(2);
    let disk = SlowDisk::default();
    let opened = home.open_on(Arc::new(disk.clone())).await;
    disk.hold();
    let proposals = crowd(&opened.order);
    let all = proposals.len();
    let mut taken = 0;
    for proposal in proposals {
        match proposal.await.unwrap() {
            Err(OrderFault::Timeout { .. }) => taken += 1,
            Err(OrderFault::Busy) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((PROPOSALS_WAITING_MAX..all).contains(&taken), "{taken} of {all} were taken");

    disk.let_go(false);
    // The last of those that were taken comes before this one.
    let mut tries = 1;
    while opened.order.propose(Command::Submit(Submit::new(1))).await.is_err() {
        tries += 1;
    }
    let running = opened.order.read(|machine| machine.batch().running());
    assert!((taken + 1..=taken + tries).contains(&running), "{taken} were taken, {running} took effect");
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_past_the_limits_is_not_left_waiting_by_a_shutdown() {
    let home = Home::new();
    let disk = SlowDisk::default();
    let opened = home.open_on(Arc::new(disk.clone())).await;
    disk.hold();
    let proposals = crowd(&opened.order);
    let all = proposals.len();
    while (opened.order.counters().waiting as usize) < PROPOSALS_WAITING_MAX {
        tokio::task::yield_now().await;
    }
    let mut shutdown = Box::pin(opened.order.shutdown());
    assert!(poll!(shutdown.as_mut()).is_pending(), "the disk holds what was taken");
    disk.let_go(false);
    shutdown.await.unwrap();
    let mut refused = 0;
    for proposal in proposals {
        match proposal.await.unwrap() {
            Ok(Outcome::Submitted { .. }) => {}
            Err(OrderFault::Closed) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0, "some of {all} had no place");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_of_the_log_loses_nothing_that_was_acknowledged() {
    let home = Home::new();
    let opened = home.open().await;
    let mut ids = Vec::new();
    for chunks in 1..=20 {
        ids.push(opened.submit(chunks).await);
    }
    opened.order.shutdown().await.unwrap();
    // The tables are lost too, so that everything must come from the log.
    std::fs::remove_dir_all(home.tables()).unwrap();
    tear(&home);

    let again = home.open().await;
    again.order.read(|machine| {
        let running: Vec<_> = machine.batch().submissions().map(|(id, _)| id).collect();
        assert_eq!(running, ids);
    });
    again.order.shutdown().await.unwrap();
}

/// Writes half a group behind the last one, as a power failure leaves it.
fn tear(home: &Home) {
    let mut file = std::fs::File::options().read(true).write(true).open(home.newest_segment()).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    file.seek(SeekFrom::Start(end as u64)).unwrap();
    let torn: Vec<u8> = bytes[end - 60..end].iter().map(|byte| byte ^ 0x55).collect();
    file.write_all(&torn).unwrap();
}
