//! Stories of sharing: one fsync for many commands, one barrier for many reads, and an end that loses nobody.

use super::Home;
use crate::OrderFault;
use std::time::{Duration, Instant};
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Command, Outcome};
use windlass_store::log::{Log, LogOptions, Record};

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
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let begun = Instant::now();
    let order = crate::Order::open(home.options.clone(), tables, sender).await.unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "an election timeout is 1.5 s at least; this took {took:?}");
    order.shutdown().await.unwrap();
}

/// Prints what a lone command, a crowd and a barrier take, next to bare syncs of the same disk:
/// `cargo test -p windlass-order -- --ignored --nocapture measured`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it measures, and promises nothing"]
async fn latency_and_sharing_measured() {
    let home = Home::new();
    let opened = home.open().await;
    let bare = bare_sync(&home.folder.path().join("bare"));
    let logged = log_append(&home.folder.path().join("log alone"));
    let mut lone: Vec<Duration> = Vec::new();
    for _ in 0..500 {
        let begun = Instant::now();
        opened.submit(1).await;
        lone.push(begun.elapsed());
    }
    lone.sort();
    let mut barriers: Vec<Duration> = Vec::new();
    for _ in 0..500 {
        let begun = Instant::now();
        opened.order.barrier().await.unwrap();
        barriers.push(begun.elapsed());
    }
    barriers.sort();
    println!("bare fdatasync p50 {:?} p99 {:?}", bare[250], bare[495]);
    println!("log append     p50 {:?} p99 {:?}", logged[250], logged[495]);
    println!("lone command   p50 {:?} p99 {:?}", lone[250], lone[495]);
    println!("lone barrier   p50 {:?} p99 {:?}", barriers[250], barriers[495]);
    for callers in [16_u64, 256, 4_096] {
        let before = opened.order.counters();
        let begun = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let order = opened.order.clone();
                tokio::spawn(async move {
                    for _ in 0..20_000 / callers {
                        order.propose(submit()).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let (took, after) = (begun.elapsed(), opened.order.counters());
        let commands = after.commands - before.commands;
        println!(
            "{callers} callers: {:.0} commands/s, {:.4} syncs and {:.4} groups a command",
            commands as f64 / took.as_secs_f64(),
            (after.log.syncs - before.log.syncs) as f64 / commands as f64,
            (after.groups - before.groups) as f64 / commands as f64,
        );
    }
    opened.order.shutdown().await.unwrap();
}

fn bare_sync(path: &std::path::Path) -> Vec<Duration> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&vec![0; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let mut times: Vec<Duration> = (0..500)
        .map(|nth| {
            // A disk that has just been used answers faster than one that a lone command finds.
            std::thread::sleep(Duration::from_millis(1));
            let begun = Instant::now();
            file.write_all_at(&[7; 256], nth * 256).unwrap();
            file.sync_data().unwrap();
            begun.elapsed()
        })
        .collect();
    times.sort();
    times
}

/// Appends to a log of its own, each waited for.
fn log_append(folder: &std::path::Path) -> Vec<Duration> {
    let (log, _) = Log::open(folder, LogOptions { segment_bytes: 4 << 20, cache_bytes: 1 << 20 }).unwrap();
    let mut times: Vec<Duration> = (1..=500)
        .map(|index| {
            std::thread::sleep(Duration::from_millis(1));
            let begun = Instant::now();
            let (done, durable) = std::sync::mpsc::channel();
            let payload = bytes::Bytes::from_static(&[7; 256]);
            log.append(
                vec![Record::Entry { index, payload }],
                Box::new(move |result| done.send(result).unwrap()),
            );
            durable.recv().unwrap().unwrap();
            begun.elapsed()
        })
        .collect();
    times.sort();
    times
}
