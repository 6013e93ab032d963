//! Stories of leading: what the roles are told, and what is fenced.

use super::{Home, Opened, contents_of};
use crate::batcher::{EncodedCommands, Proposal};
use crate::postbox::Caller;
use crate::raft::checkpoint::Contents;
use crate::raft::{LeaderId, Vote};
use crate::{OrderFault, RoleEvent};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use openraft::storage::RaftStateMachine;
use openraft::vote::RaftLeaderId;
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Cancel, Command, Effect, Lead, Outcome, Refusal};
use windlass_core::ids::{Epoch, Shard};

/// Puts a command into the log under an epoch of the test's choice.
async fn propose_under(opened: &Opened, epoch: Epoch, command: Command) -> Result<Outcome, OrderFault> {
    let (caller, answer) = Caller::here();
    let proposal = Proposal { commands: EncodedCommands::one(&command), caller };
    opened.order.writer().write(epoch, vec![proposal], None, |_| {}).await;
    Ok(answer.await.unwrap()?.remove(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_answered_and_its_effects_follow_the_leadership() {
    let home = Home::new();
    let mut opened = home.open().await;
    let submission = opened.submit(3).await;
    let cancelled = opened.order.propose(Command::Cancel(Cancel { submission })).await;
    assert_eq!(cancelled, Ok(Outcome::Cancelled));

    let events = opened.told();
    let [
        RoleEvent::Led { epoch, reserver, .. },
        RoleEvent::Effects { effects, .. },
        RoleEvent::Effects { .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*epoch, reserver.ready_len()), (Epoch(1), 0));
    let [Effect::Ready { submission: ready, ranges, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*ready, ranges.len(), &ranges[0]), (submission, 1, &(0..3)));
    opened.order.shutdown().await.unwrap();
    assert!(matches!(opened.events.recv().await, Some(RoleEvent::Lost)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_begins_a_new_epoch_with_what_is_unsettled() {
    let home = Home::new();
    let opened = home.open().await;
    let submission = opened.submit(3).await;
    let (key, at) = opened.order.read(|machine| (machine.token_key(), machine.at()));
    opened.order.shutdown().await.unwrap();

    let mut again = home.open().await;
    let events = again.told();
    let [RoleEvent::Led { epoch, at: led_at, token_key, reserver, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((*epoch, *token_key), (Epoch(2), key));
    assert!(*led_at >= at);
    assert_eq!((reserver.ready_len(), reserver.ready_len_of(submission)), (3, 3));
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_an_epoch_that_has_ended_changes_nothing() {
    let home = Home::new();
    home.open().await.order.shutdown().await.unwrap();
    let opened = home.open().await;
    assert_eq!(opened.epoch(), Epoch(2));
    let fenced = Ok(Outcome::Refused(Refusal::Fenced { current: Epoch(2) }));
    assert_eq!(propose_under(&opened, Epoch(1), Command::Submit(Submit::new(1))).await, fenced);
    assert_eq!(
        propose_under(&opened, Epoch(2), Command::Lead(Lead { shard: Shard::default() })).await,
        fenced
    );
    assert_eq!(opened.order.read(|machine| machine.batch().running()), 0);
    opened.submit(1).await;
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leadership_that_nobody_here_claimed_ends_this_one_and_fences_its_commands() {
    let home = Home::new();
    let mut opened = home.open().await;
    let led = propose_under(&opened, Epoch(9), Command::Lead(Lead { shard: Shard::default() })).await;
    assert_eq!(led, Ok(Outcome::Led { epoch: Epoch(9) }));
    let fenced = opened.order.propose(Command::Submit(Submit::new(1))).await;
    assert_eq!(fenced, Ok(Outcome::Refused(Refusal::Fenced { current: Epoch(9) })));
    assert!(matches!(opened.told()[..], [RoleEvent::Led { .. }, RoleEvent::Lost]));
    opened.order.shutdown().await.unwrap();
    assert_eq!(home.open().await.epoch(), Epoch(10), "a new leader goes above what it finds");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_this_sender_that_nobody_waits_for_is_counted() {
    let home = Home::new();
    let opened = home.open().await;
    let (caller, answer) = Caller::here();
    let proposal = Proposal { commands: EncodedCommands::one(&Command::Submit(Submit::new(1))), caller };
    let writer = opened.order.writer();
    writer
        .write(opened.epoch(), vec![proposal], None, |token| {
            writer.waiting.fail(token, 1, &OrderFault::Closed)
        })
        .await;
    assert_eq!(answer.await.unwrap(), Err(OrderFault::Closed));
    opened.submit(1).await;
    assert_eq!(opened.order.counters().unknown_tokens, 1);
    assert_eq!(opened.order.read(|machine| machine.batch().running()), 2, "it took effect all the same");
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leadership_that_is_lost_and_won_again_is_a_new_epoch() {
    let home = Home::new();
    let mut opened = home.open().await;
    opened.submit(3).await;
    // Another member, elected in a later term, says hello, and is never heard of again.
    let node = &opened.order.writer().node;
    let last = node.metrics().borrow_watched().last_applied;
    let vote = Vote { leader_id: LeaderId::new(9, 2), committed: true };
    let hello = AppendEntriesRequest { vote, prev_log_id: last, entries: Vec::new(), leader_commit: last };
    node.append_entries(hello).await.unwrap();

    let mut events = Vec::new();
    while !matches!(events.last(), Some(RoleEvent::Led { epoch: Epoch(2), .. })) {
        events.push(opened.events.recv().await.unwrap());
    }
    assert!(matches!(
        &events[..],
        [RoleEvent::Led { .. }, RoleEvent::Effects { .. }, RoleEvent::Lost, RoleEvent::Led { reserver, .. }]
            if reserver.ready_len() == 3
    ));
    opened.submit(1).await;
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contradiction_stops_the_node_and_its_state_is_read_no_more() {
    let home = Home::new();
    let opened = home.open().await;
    let outcome = propose_under(&opened, Epoch(50), Command::Submit(Submit::new(1))).await;
    let fault = opened.order.fault().await;
    assert!(matches!(&fault, OrderFault::Contradiction { what } if what.contains("first entry")), "{fault}");
    assert_eq!(outcome, Err(fault.clone()));
    let order = opened.order.clone();
    let read = tokio::task::spawn_blocking(move || order.read(|machine| machine.epoch())).await;
    assert!(read.unwrap_err().is_panic());
    assert_eq!(opened.order.barrier().await, Err(fault));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_another_member_sent_is_there_after_the_restart_that_it_asks_for() {
    let sender = Home::new();
    let sending = sender.open().await;
    for chunks in 1..=10 {
        sending.submit(chunks).await;
    }
    let (meta, file) = contents_of(&sender, &sending).await;
    sending.order.shutdown().await.unwrap();

    let home = Home::new();
    let opened = home.open().await;
    let node = opened.order.writer().node.clone();
    let installed = node.with_state_machine(move |feeder| {
        Box::pin(async move { feeder.install_snapshot(&meta, Contents::Received(file)).await })
    });
    assert!(installed.await.unwrap().is_err());
    assert_eq!(opened.order.fault().await, OrderFault::Replaced);
    assert_eq!(opened.order.shutdown().await, Err(OrderFault::Replaced));
    let again = home.open().await;
    assert_eq!(again.order.read(|machine| machine.batch().running()), 10);
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_another_node_is_refused() {
    let mut home = Home::new();
    home.open().await.order.shutdown().await.unwrap();
    home.options.node = 2;
    let refused = home.try_open().await.err();
    assert!(
        matches!(&refused, Some(OrderFault::Settings { what }) if what.contains("node [1]")),
        "{refused:?}"
    );
}
