//! Ctrl-C and its kin.

use crate::exit::Exit;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a process to stop.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on these signals are ours to answer.
    pub(crate) fn listen() -> Result<StopSignals, Exit> {
        let listen =
            |kind| signal(kind).map_err(|error| Exit::Fault(format!("cannot listen for signals: {error}")));
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next request to stop.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
