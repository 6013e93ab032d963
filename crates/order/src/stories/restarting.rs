//! Stories of restarts: what is there again, and how the log is cut.

use super::{Home, keyed, rows, submitted};
use crate::apply::POSITION_KEY;
use crate::{OrderFault, group_of};
use std::collections::BTreeSet;
use std::time::Duration;
use windlass_core::audit;
use windlass_core::batch::submissions::Submit;
use windlass_core::entry::{Command, EntryGroup};
use windlass_core::machine::Machine;
use windlass_core::tables::{MemoryTables, Table, Tables};
use windlass_store::log::Log;
use windlass_store::tables::DiskTables;

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_repeated_over_a_restart_is_answered_again_and_not_done_again() {
    let home = Home::new();
    let opened = home.open().await;
    let first = submitted(opened.order.propose(keyed(5, "once")).await.unwrap());
    opened.order.shutdown().await.unwrap();
    let again = home.open().await;
    assert_eq!(submitted(again.order.propose(keyed(5, "once")).await.unwrap()), first);
    assert_eq!(again.order.read(|machine| machine.batch().running()), 1);
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_machine_fed_from_the_log_has_the_same_rows() {
    let home = Home::new();
    for round in 0..3 {
        let opened = home.open().await;
        let proposals =
            (0..200).map(|nth| opened.order.propose(keyed(nth + 1, &format!("{round}-{}", nth % 150))));
        futures_util::future::try_join_all(proposals).await.unwrap();
        opened.order.read(audit::check);
        opened.order.shutdown().await.unwrap();
    }

    let (log, recovered) = Log::open(&home.options.log_folder, home.options.log).unwrap();
    let mut machine = Machine::open(MemoryTables::default());
    for (index, bytes) in log.read(1..recovered.last_index.unwrap() + 1).unwrap() {
        let Some(group) = group_of(index, &bytes).unwrap() else { continue };
        for entry in EntryGroup::from_bytes(&group).unwrap().into_entries() {
            machine.apply(entry);
        }
    }
    machine.flush();
    let live = DiskTables::open(&home.tables()).unwrap();
    assert_eq!(rows(&live), rows(machine.tables()));
    assert!(live.get(Table::Meta, POSITION_KEY).is_some());
}

/// Submits until the log has been cut, and a little more.
async fn fill(home: &Home) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
    let opened = home.open().await;
    for nth in 0..300 {
        let wide = Submit { opaque: vec![nth as u8; 10_000].into(), ..Submit::new(nth + 1) };
        submitted(opened.order.propose(Command::Submit(wide)).await.unwrap());
    }
    let cut = async {
        while opened.order.counters().log_first_index <= Some(100) {
            opened.order.snapshot_now().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), cut).await.expect("the log is cut");
    opened.submit(1).await;
    let held = opened.order.read(|machine| rows(machine.tables()));
    opened.order.shutdown().await.unwrap();
    held
}

fn small_steps() -> Home {
    let mut home = Home::new();
    home.options.snapshot_every_entries = 50;
    home.options.snapshot_keep_entries = 10;
    home.options.log.segment_bytes = 256 << 10;
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_cut_behind_a_checkpoint_and_everything_is_there_after_a_restart() {
    let home = small_steps();
    let held = fill(&home).await;
    assert!(home.log_bytes() < 3 << 20, "300 entries of 10 kB are 3 MB; kept: {}", home.log_bytes());
    let again = home.open().await;
    let rows_again = again.order.read(|machine| rows(machine.tables()));
    assert_eq!(without_machine(rows_again), without_machine(held));
    assert_eq!(again.order.read(|machine| machine.batch().running()), 301);
    again.order.read(audit::check);
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_tables_are_built_anew_from_the_snapshot_and_the_rest_of_the_log() {
    let home = small_steps();
    let held = fill(&home).await;
    std::fs::remove_dir_all(home.tables()).unwrap();
    let again = home.open().await;
    let rows_again = again.order.read(|machine| rows(machine.tables()));
    assert_eq!(without_machine(rows_again), without_machine(held));
    again.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_end_before_the_log_begins_are_refused_if_no_snapshot_helps() {
    let home = small_steps();
    fill(&home).await;
    std::fs::remove_dir_all(home.tables()).unwrap();
    std::fs::remove_dir_all(&home.options.snapshot_folder).unwrap();
    let refused = home.try_open().await.err();
    assert!(
        matches!(&refused, Some(OrderFault::TablesBroken { what }) if what.contains("entry 0")),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_also_due_by_bytes() {
    let mut home = small_steps();
    home.options.snapshot_every_entries = 1_000_000;
    home.options.snapshot_every_bytes = 100_000;
    let opened = home.open().await;
    let cut = async {
        while opened.order.counters().log_first_index <= Some(20) {
            let wide = Submit { opaque: vec![7; 10_000].into(), ..Submit::new(1) };
            submitted(opened.order.propose(Command::Submit(wide)).await.unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(20), cut).await.expect("the log is cut");
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_write_no_more_than_the_log_however_large_the_state() {
    let mut home = small_steps();
    home.options.snapshot_every_entries = 1_000_000;
    home.options.snapshot_every_bytes = 50_000;
    let opened = home.open().await;
    // Every submission adds about as much to the state as to the log, so the log doubles between two snapshots.
    let mut made = BTreeSet::new();
    for _ in 0..400 {
        let wide = Submit { opaque: vec![7; 10_000].into(), ..Submit::new(1) };
        submitted(opened.order.propose(Command::Submit(wide)).await.unwrap());
        let names =
            std::fs::read_dir(&home.options.snapshot_folder).unwrap().map(|file| file.unwrap().file_name());
        made.extend(names.filter_map(|name| name.to_str()?.strip_suffix(".snapshot")?.parse::<u64>().ok()));
    }
    assert!(!made.is_empty());
    for (earlier, later) in made.iter().zip(made.iter().skip(1)) {
        assert!(*later as f64 >= 1.5 * *earlier as f64, "{made:?}");
    }
    opened.order.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_this_build_does_not_know_stops_the_node_at_it() {
    let home = Home::new();
    let opened = home.open().await;
    let unknown = crate::raft::Group(bytes::Bytes::from_static(&[
        0x85, 1, 2, 3, 4, 0x81, 0x82, 1, 0x82, 0x18, 99, 0x80,
    ]));
    opened.order.writer().node.client_write_ff(unknown, None).await.unwrap();
    let fault = opened.order.fault().await;
    assert!(matches!(&fault, OrderFault::LogBroken { what } if what.contains("entry 4")), "{fault}");
    assert_eq!(opened.order.shutdown().await, Err(fault.clone()));
    assert_eq!(home.try_open().await.err(), Some(fault), "and at the next start again: it is not skipped");
}

/// The machine's own row differs by the new epoch.
fn without_machine(rows: Vec<(Table, Vec<u8>, Vec<u8>)>) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
    rows.into_iter().filter(|(table, _, _)| *table != Table::Meta).collect()
}
