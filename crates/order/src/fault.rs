//! Faults: why the order could not do what was asked, and the alarm that is raised when it cannot go on at all.
//!
//! Invariants
//! - Every fault reads as a sentence that says what to do, and whether the command may still take effect.
//! - The alarm is raised once; the first fault stays, since later ones only follow from it.

use std::time::Duration;
use tokio::sync::watch;
use windlass_store::fault::StoreFault;
use windlass_store::log::LogFault;

/// Why a command was not answered, or why the node cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderFault {
    /// The log's disk is full.
    #[error("{what}")]
    DiskFull {
        /// Which file, and what to do.
        what: String,
    },
    /// The log cannot be read or written.
    #[error("the log cannot be used: {what}")]
    LogBroken {
        /// What was found, and what to do.
        what: String,
    },
    /// The tables cannot be read or written.
    #[error("the tables cannot be used: {what}")]
    TablesBroken {
        /// What was found, and what to do.
        what: String,
    },
    /// The machine met what cannot be, or lost its tables.
    #[error(
        "the machine stopped: {what}; nothing after it was applied: check the disk, report it if the disk is well, and \
         start again"
    )]
    Contradiction {
        /// What it was.
        what: String,
    },
    /// The state of another member was copied into the tables.
    #[error("the state was copied from another member; start again to go on from it")]
    Replaced,
    /// A setting is out of bounds.
    #[error("the node cannot start with these settings: {what}")]
    Settings {
        /// Which one, and what to do.
        what: String,
    },
    /// No answer came in time.
    #[error(
        "no answer within {} ms; the command may still take effect: send it again with the same idempotency key",
        waited.as_millis()
    )]
    Timeout {
        /// How long the caller waited.
        waited: Duration,
    },
    /// A read could not be confirmed in time.
    #[error("the leader could not confirm itself within {} ms; nothing was read: ask again", waited.as_millis())]
    ReadTimeout {
        /// How long the reader waited.
        waited: Duration,
    },
    /// This node does not lead, or lost its leadership while the command was on its way.
    #[error(
        "this node does not lead; the command may still take effect if it was sent before: send it to the leader, with \
         the same idempotency key"
    )]
    NotLeader,
    /// More commands wait than the node takes.
    #[error(
        "too many commands wait to be written; this one was not taken and has no effect: slow down, then send it again"
    )]
    Busy,
    /// The node has shut down.
    #[error("this node is shut down and takes no more commands; send the command to a running one")]
    Closed,
}

impl From<LogFault> for OrderFault {
    fn from(fault: LogFault) -> OrderFault {
        match fault {
            LogFault::DiskFull { .. } => OrderFault::DiskFull { what: fault.to_string() },
            LogFault::Io { .. }
            | LogFault::Corrupt { .. }
            | LogFault::MissingSegment { .. }
            | LogFault::UnknownVersion { .. }
            | LogFault::UnknownKind { .. }
            | LogFault::Closed => OrderFault::LogBroken { what: fault.to_string() },
        }
    }
}

impl From<StoreFault> for OrderFault {
    fn from(fault: StoreFault) -> OrderFault {
        match fault {
            StoreFault::Log(fault) => fault.into(),
            StoreFault::DiskFull { .. } => OrderFault::DiskFull { what: fault.to_string() },
            other => OrderFault::TablesBroken { what: other.to_string() },
        }
    }
}

/// The alarm: raised when the node cannot go on. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Alarm {
    raised: watch::Sender<Option<OrderFault>>,
}

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm { raised: watch::Sender::new(None) }
    }

    /// Raises the alarm; a second one changes nothing.
    pub(crate) fn raise(&self, fault: OrderFault) {
        self.raised.send_if_modified(|raised| {
            if raised.is_some() {
                return false;
            }
            tracing::error!(%fault, "the node cannot go on");
            *raised = Some(fault);
            true
        });
    }

    /// What was raised, if anything.
    pub(crate) fn raised(&self) -> Option<OrderFault> {
        self.raised.borrow().clone()
    }

    /// Waits until it is raised.
    pub(crate) fn wait(&self) -> impl Future<Output = OrderFault> + Send + 'static {
        let mut raised = self.raised.subscribe();
        let keep = self.clone();
        async move {
            let seen = raised.wait_for(Option::is_some).await.ok().and_then(|raised| raised.clone());
            drop(keep);
            seen.expect("the alarm is kept, so waiting ends only when it is raised")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_alarm_stays() {
        let alarm = Alarm::new();
        let waiting = alarm.wait();
        alarm.raise(OrderFault::Busy);
        alarm.raise(OrderFault::Closed);
        assert_eq!(waiting.await, OrderFault::Busy);
        assert_eq!(alarm.wait().await, OrderFault::Busy);
        assert_eq!(alarm.raised(), Some(OrderFault::Busy));
    }

    #[test]
    fn a_full_disk_is_told_apart_from_a_broken_one() {
        let path = std::path::PathBuf::from("/data/log/1");
        let full = OrderFault::from(LogFault::DiskFull { action: "write", path: path.clone() });
        assert!(matches!(full, OrderFault::DiskFull { .. }), "{full}");
        let broken = OrderFault::from(LogFault::MissingSegment { path });
        assert!(matches!(broken, OrderFault::LogBroken { .. }), "{broken}");
    }
}
