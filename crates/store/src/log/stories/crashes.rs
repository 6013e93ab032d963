//! Crashes: a log that is crashed again and again, at any call, keeps everything it acknowledged.

use super::super::hurt::{Dice, Loss};
use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What the log must hold, as seen from outside.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    entries: BTreeMap<u64, Bytes>,
    purged: u64,
    vote: Option<Bytes>,
}

impl Model {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::Entry { index, payload } => {
                self.entries.insert(*index, payload.clone());
            }
            Record::State { value, .. } => self.vote = Some(value.clone()),
            Record::Truncate { after } => self.entries.retain(|index, _| index <= after),
            Record::Purge { upto } => {
                self.purged = self.purged.max(*upto);
                self.entries.retain(|index, _| *index > self.purged);
            }
        }
    }

    fn of(log: &Log) -> Model {
        Model {
            entries: log.read(0..u64::MAX).unwrap().into_iter().collect(),
            purged: log.purged_upto(),
            vote: log.state(1),
        }
    }

    /// One append of a random kind that contradicts nothing.
    fn draw(&self, dice: &mut Dice) -> Vec<Record> {
        let last = self.entries.keys().next_back().copied().unwrap_or(self.purged);
        match dice.roll(12) {
            0 => vec![state(1, &format!("vote {}", dice.roll(1000)))],
            1 => {
                let after = last - dice.roll(4).min(last - self.purged);
                vec![Record::Truncate { after }, entry(after + 1, dice.roll(1000))]
            }
            2 => vec![Record::Purge { upto: last.saturating_sub(dice.roll(30)).max(self.purged) }],
            3 => vec![Record::Entry {
                index: last + 1,
                payload: Bytes::from(vec![dice.roll(256) as u8; 3000]),
            }],
            _ => (1..=1 + dice.roll(4)).map(|step| entry(last + step, dice.roll(1000))).collect(),
        }
    }
}

/// Appends until the disk crashes. Returns the model after each append, and how many appends were acknowledged.
fn work_until_crash(log: &Log, start: &Model, dice: &mut Dice) -> (Vec<Model>, usize) {
    let mut models = vec![start.clone()];
    let acknowledged = Arc::new(Mutex::new((0, false)));
    for _ in 0..60 {
        let mut model = models.last().unwrap().clone();
        let records = model.draw(dice);
        for record in &records {
            model.apply(record);
        }
        models.push(model);
        let tally = Arc::clone(&acknowledged);
        let done = move |done: Result<(), LogFault>| {
            let mut tally = tally.lock().unwrap();
            match done {
                Ok(()) => {
                    assert!(!tally.1, "nothing succeeds after a failure");
                    tally.0 += 1;
                }
                Err(_) => tally.1 = true,
            }
        };
        // Waiting at times gives groups of different sizes.
        if dice.roll(2) == 0 {
            log.append(records, Box::new(done));
        } else {
            let (sender, answer) = mpsc::channel();
            log.append(
                records,
                Box::new(move |result| {
                    done(result);
                    sender.send(()).unwrap();
                }),
            );
            answer.recv().unwrap();
        }
        if acknowledged.lock().unwrap().1 {
            break;
        }
    }
    log.clone().close();
    let count = acknowledged.lock().unwrap().0;
    (models, count)
}

fn crash_again_and_again(seed: u64) {
    let mut dice = Dice(seed);
    let mut disk = HurtDisk::new();
    // What may be found: all that was acknowledged, and of what was not, any number of whole appends, in order.
    let mut possible = vec![Model::default()];
    for life in 0..14 {
        let loss = [Loss::All, Loss::Nothing, Loss::Some, Loss::Some][dice.roll(4) as usize];
        let calls = if life % 3 == 0 { dice.roll(12) } else { dice.roll(120) };
        if life < 13 {
            disk.crash_after(calls);
        }
        match try_open(&disk) {
            Ok((log, _)) => {
                let found = Model::of(&log);
                let indexes = (found.entries.keys().next(), found.entries.keys().next_back());
                assert!(possible.contains(&found), "seed {seed}, life {life}: found entries {indexes:?}");
                let (models, acknowledged) = work_until_crash(&log, &found, &mut dice);
                possible = models[acknowledged..].to_vec();
            }
            // Crashed while it was being opened: nothing was acknowledged since.
            Err(LogFault::Io { .. }) if life < 13 => {}
            Err(fault) => panic!("seed {seed}, life {life}: {fault}"),
        }
        disk = disk.after_crash(loss, &mut dice);
    }
}

#[test]
fn everything_acknowledged_survives_any_crash() {
    for seed in 0..400 {
        crash_again_and_again(seed);
    }
}
