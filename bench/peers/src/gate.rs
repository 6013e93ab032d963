//! The gate: a measurement begins when the machine has little else to do, and it is known what a sync costs just then.

use crate::process::{self, Machine};
use crate::system::median;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// While others use more of the machine than this, it is not quiet.
pub(crate) const OTHERS_MAX: f64 = 0.12;
/// While a sync takes so many times what it took at best, the disk is not quiet.
const SYNC_MAX: f64 = 2.0;
/// How long the processors are watched.
const SAMPLE: Duration = Duration::from_millis(300);
/// Syncs for one look at the disk.
const SYNCS: usize = 25;

/// Keeps measurements from beginning at a bad moment.
pub(crate) struct Gate {
    patience: Duration,
    file: PathBuf,
    best_sync_us: f64,
}

impl Gate {
    /// Waits for at most `patience` each time, and tries the disk in this folder.
    pub(crate) fn new(patience: Duration, folder: &Path) -> Gate {
        Gate {
            patience,
            file: folder.join(format!("sync-{}", std::process::id())),
            best_sync_us: f64::INFINITY,
        }
    }

    /// Waits until the machine is quiet, or patience is at its end. Says what a bare fsync takes, in microseconds.
    pub(crate) async fn wait(&mut self) -> anyhow::Result<f64> {
        let began = Instant::now();
        loop {
            let (before, own) = (Machine::read()?, process::own_cpu_seconds());
            tokio::time::sleep(SAMPLE).await;
            let others = Machine::read()?.busy_with_others_since(before, process::own_cpu_seconds() - own);
            let sync_us = self.sync_us()?;
            self.best_sync_us = self.best_sync_us.min(sync_us);
            let is_quiet = others < OTHERS_MAX && sync_us < SYNC_MAX * self.best_sync_us;
            if is_quiet || began.elapsed() > self.patience {
                return Ok(sync_us);
            }
        }
    }

    /// Whether it is worth measuring again what was disturbed.
    pub(crate) fn is_patient(&self) -> bool {
        !self.patience.is_zero()
    }

    fn sync_us(&self) -> anyhow::Result<f64> {
        let mut file = File::create(&self.file)?;
        // Its blocks are there before the first sync that counts, as they are in a log that is preallocated.
        file.write_all(&[0; 4_096])?;
        file.sync_all()?;
        let mut micros = Vec::new();
        for _ in 0..SYNCS {
            file.rewind()?;
            file.write_all(&[1; 128])?;
            let began = Instant::now();
            file.sync_data()?;
            micros.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(micros).unwrap_or(0.0))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.file);
    }
}
