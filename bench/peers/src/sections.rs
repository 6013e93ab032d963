//! The sections: what is measured, in what order. Systems take turns, so that a slow hour is slow for all.

use crate::Options;
use crate::contender::{Contender, Filled, Standing, Task};
use crate::figures::{Backlog, Figures, Fill, Load};
use crate::gate::{Gate, OTHERS_MAX};
use crate::report;
use crate::system::{Done, Kind, Mode, Work};
use crate::windlass::{OWN_ROWS, WINDLASS};
use std::time::Duration;

/// A way that was so much slower than the best in the first repetition is not repeated.
const HOPELESS_BELOW: f64 = 0.7;

/// Nor is one that is so many times slower than Windlass: no noise makes up for that.
const FAR_BEHIND: f64 = 20.0;

/// How often the two of a close call are measured once more.
const CLOSE_CALL_REPETITIONS: usize = 5;

/// Who adds tasks to a lane, and who works on them.
pub(crate) const LANE_CLIENTS: usize = 16;

/// Single tasks with their payloads: added one by one, then reserved and completed.
pub(crate) async fn lanes(
    options: &Options,
    contenders: &[Box<dyn Contender>],
    gate: &mut Gate,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    for mode in [Mode::Add, Mode::OneByOne, Mode::Recommended] {
        let kind = Kind { work: Work::Tasks, mode };
        loads(options, contenders, gate, (kind, &[LANE_CLIENTS]), figures).await?;
    }
    Ok(())
}

/// Throughput of one kind, against the number of clients.
pub(crate) async fn loads(
    options: &Options,
    contenders: &[Box<dyn Contender>],
    gate: &mut Gate,
    (kind, counts): (Kind, &[usize]),
    figures: &mut Figures,
) -> anyhow::Result<()> {
    for repetition in 0..options.repetitions {
        for &clients in counts {
            for contender in contenders {
                for way in contender.ways(kind, clients) {
                    if repetition > 0 && is_hopeless(figures, contender.name(), kind, clients, way) {
                        continue;
                    }
                    load(options, contender.as_ref(), gate, (kind, way, clients), figures).await?;
                }
            }
        }
    }
    repeat_close_calls(options, contenders, gate, kind, figures).await
}

/// One measurement.
async fn load(
    options: &Options,
    contender: &dyn Contender,
    gate: &mut Gate,
    (kind, way, clients): (Kind, &'static str, usize),
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let backlog = match kind.mode {
        Mode::Add => 0,
        Mode::OneByOne | Mode::Recommended => options.backlog * contender.lasting(kind),
    };
    let task = Task { kind, way, clients, backlog, duration: Duration::from_secs_f64(options.seconds) };
    let what =
        format!("{}, {}, {way}, {}", contender.name(), kind.name(), report::plural(kind.mode, clients));
    if !what.contains(&options.load) {
        return Ok(());
    }
    match undisturbed(gate, contender, &task).await {
        Ok((done, sync_us)) => {
            let server_us = done.cpu_seconds / done.chunks as f64 * 1e6;
            let (rate, others) = (done.rate(), done.others * 1e2);
            eprintln!("{what}: {rate:.0}/s, server {server_us:.1} µs each, others {others:.0} %, fsync {sync_us:.0} µs");
            note(figures, contender.name(), &task, &done, sync_us);
            Ok(())
        }
        Err(error) => remark(figures, contender.name(), format!("{what}: {error:#}")),
    }
}

/// Where Windlass is near its bar, it and the best peer are measured some more times, by turns.
async fn repeat_close_calls(
    options: &Options,
    contenders: &[Box<dyn Contender>],
    gate: &mut Gate,
    kind: Kind,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    for clients in report::close_calls(figures, kind) {
        for _ in 0..CLOSE_CALL_REPETITIONS {
            let best = |name: &str| figures.best_load(name, kind, clients, &[]).map_or(0.0, Load::rate);
            let peers = contenders.iter().filter(|it| it.name() != WINDLASS);
            let best_peer = peers.max_by(|a, b| best(a.name()).total_cmp(&best(b.name())));
            let ours = contenders.iter().find(|it| it.name() == WINDLASS);
            for contender in ours.into_iter().chain(best_peer) {
                let best = figures.best_load(contender.name(), kind, clients, &OWN_ROWS);
                let way = best.map_or("", |it| it.way.as_str());
                let way = contender.ways(kind, clients).into_iter().find(|it| *it == way);
                if let Some(way) = way {
                    load(options, contender.as_ref(), gate, (kind, way, clients), figures).await?;
                }
            }
        }
    }
    Ok(())
}

/// Measures, and once more if the machine did not stay quiet.
async fn undisturbed(gate: &mut Gate, contender: &dyn Contender, task: &Task) -> anyhow::Result<(Done, f64)> {
    let first = contender.load(task, gate).await?;
    if first.0.others < OTHERS_MAX || !gate.is_patient() {
        return Ok(first);
    }
    let second = contender.load(task, gate).await?;
    Ok(if second.0.others < first.0.others { second } else { first })
}

fn is_hopeless(figures: &Figures, system: &str, kind: Kind, clients: usize, way: &str) -> bool {
    let rate = |way: &str| {
        let mut loads = figures.loads.iter();
        let load = loads
            .find(|it| it.system == system && it.kind == kind && it.consumers == clients && it.way == way);
        load.map_or(0.0, |it| it.rates[0])
    };
    let best_of = |system: &str| {
        let loads = figures.loads.iter();
        let same = loads.filter(|it| it.system == system && it.kind == kind && it.consumers == clients);
        same.map(|it| it.rates[0]).fold(0.0, f64::max)
    };
    let is_far_behind = rate(way) * FAR_BEHIND < best_of(WINDLASS);
    // Windlass' ways are rows of the table.
    system != WINDLASS && (is_far_behind || rate(way) < HOPELESS_BELOW * best_of(system))
}

fn note(figures: &mut Figures, system: &str, task: &Task, done: &Done, sync_us: f64) {
    let per_1e5 = |seconds: f64| seconds / done.chunks as f64 * 1e5;
    let same = |it: &&mut Load| {
        it.system == system && it.kind == task.kind && it.way == task.way && it.consumers == task.clients
    };
    let load = match figures.loads.iter_mut().find(same) {
        Some(load) => load,
        None => {
            figures.loads.push(Load {
                system: system.into(),
                kind: task.kind,
                way: task.way.into(),
                consumers: task.clients,
                rates: Vec::new(),
                server_cpu: Vec::new(),
                client_cpu: Vec::new(),
                others: Vec::new(),
                sync_us: Vec::new(),
            });
            figures.loads.last_mut().expect("it was pushed just now")
        }
    };
    load.rates.push(done.rate());
    load.server_cpu.push(per_1e5(done.cpu_seconds));
    load.client_cpu.extend(done.client_cpu_seconds.map(per_1e5));
    load.others.push(done.others);
    load.sync_us.push(sync_us);
}

/// A peer that fails is left out and said so; without Windlass there is nothing to compare.
fn remark(figures: &mut Figures, system: &str, sentence: String) -> anyhow::Result<()> {
    anyhow::ensure!(system != WINDLASS, "{sentence}");
    eprintln!("{sentence}");
    figures.remarks.push(sentence);
    Ok(())
}

/// Getting many chunks in.
pub(crate) async fn bulk(
    options: &Options,
    contenders: &[Box<dyn Contender>],
    gate: &mut Gate,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let time = Duration::from_secs_f64(options.fill_seconds);
    for _ in 0..options.repetitions {
        for contender in contenders {
            for way in contender.ways_in() {
                gate.wait().await?;
                let what = format!("{}, bulk submit, {way}", contender.name());
                match contender.fill(way, options.bulk, time).await {
                    Ok(filled) => {
                        let rate = filled.chunks as f64 / filled.seconds;
                        eprintln!("{what}: {} chunks at {rate:.0}/s", filled.chunks);
                        note_fill(figures, contender.name(), way, &filled);
                    }
                    Err(error) => remark(figures, contender.name(), format!("{what}: {error:#}"))?,
                }
            }
        }
    }
    Ok(())
}

fn note_fill(figures: &mut Figures, system: &str, way: &str, filled: &Filled) {
    let rate = filled.chunks as f64 / filled.seconds;
    let server_cpu = filled.cpu_seconds / filled.chunks as f64 * 1e5;
    match figures.fills.iter_mut().find(|it| it.system == system && it.way == way) {
        Some(fill) => {
            fill.rates.push(rate);
            fill.server_cpu.push(server_cpu);
            fill.filled = fill.filled.min(filled.chunks);
        }
        None => figures.fills.push(Fill {
            system: system.into(),
            way: way.into(),
            rates: vec![rate],
            server_cpu: vec![server_cpu],
            filled: filled.chunks,
        }),
    }
}

/// Memory, disk and a lone consumer's times against the backlog.
pub(crate) async fn backlogs(
    options: &Options,
    contenders: &[Box<dyn Contender>],
    gate: &mut Gate,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    for &chunks in &options.backlogs {
        for contender in contenders {
            let what = format!("{}, backlog {chunks}", contender.name());
            match contender.stand(chunks, Duration::from_secs_f64(options.seconds), gate).await {
                Ok(Standing { memory_bytes, disk_bytes, reserve_us, cycle_us }) => {
                    let (memory, disk) = (memory_bytes / 1_048_576.0, disk_bytes / 1_048_576.0);
                    eprintln!(
                        "{what}: {memory:.1} MiB memory, {disk:.1} MiB disk, reserve {reserve_us:.0?} µs"
                    );
                    let system = contender.name().into();
                    figures.backlogs.push(Backlog {
                        system,
                        chunks,
                        memory_bytes,
                        disk_bytes,
                        reserve_us,
                        cycle_us,
                    });
                }
                Err(error) => remark(figures, contender.name(), format!("{what}: {error:#}"))?,
            }
        }
    }
    Ok(())
}
