//! Barriers: a linearizable read waits for one, and all reads that arrive while one is under way share the next.
//!
//! Invariants
//! - A barrier begins after every read that shares it has arrived, so each of them sees what was acknowledged before.
//! - At most one barrier is under way.
//! - A read waits no longer than its timeout, even on a leader that is cut off.

use crate::apply::Applier;
use crate::fault::{Alarm, OrderFault};
use crate::raft::Node;
use openraft::{LinearizerOption, ReadPolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

type Reader = oneshot::Sender<Result<u64, OrderFault>>;

/// The barrier that reads share.
pub(crate) struct Barrier {
    node: Node,
    applier: Arc<Applier>,
    alarm: Alarm,
    timeout: Duration,
    readers: Mutex<Readers>,
    passed: AtomicU64,
}

#[derive(Default)]
struct Readers {
    waiting: Vec<Reader>,
    is_under_way: bool,
}

impl Barrier {
    pub(crate) fn new(node: Node, applier: Arc<Applier>, alarm: Alarm, timeout: Duration) -> Barrier {
        Barrier { node, applier, alarm, timeout, readers: Mutex::default(), passed: AtomicU64::new(0) }
    }

    /// How many barriers there were.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Waits for a barrier; the index that the machine has applied by then.
    pub(crate) async fn pass(self: &Arc<Barrier>) -> Result<u64, OrderFault> {
        let (reader, answer) = oneshot::channel();
        let begins = {
            let mut readers = self.lock();
            readers.waiting.push(reader);
            !std::mem::replace(&mut readers.is_under_way, true)
        };
        if begins {
            tokio::spawn(Arc::clone(self).run());
        }
        answer.await.unwrap_or(Err(OrderFault::Closed))
    }

    async fn run(self: Arc<Barrier>) {
        loop {
            let readers = {
                let mut readers = self.lock();
                readers.is_under_way = !readers.waiting.is_empty();
                std::mem::take(&mut readers.waiting)
            };
            if readers.is_empty() {
                return;
            }
            let result = self.run_once().await;
            for reader in readers {
                // A reader that has given up needs no answer.
                drop(reader.send(result.clone()));
            }
        }
    }

    async fn run_once(&self) -> Result<u64, OrderFault> {
        self.passed.fetch_add(1, Ordering::Relaxed);
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(self.timeout);
        let confirmed = tokio::time::timeout(self.timeout, self.node.ensure_linearizable(option)).await;
        match confirmed {
            Ok(Ok(_)) => Ok(self.applier.applied()),
            Ok(Err(error)) if error.fatal().is_some() => {
                Err(self.alarm.raised().unwrap_or(OrderFault::Closed))
            }
            Ok(Err(error)) if error.forward_to_leader().is_some() => Err(OrderFault::NotLeader),
            Ok(Err(_)) | Err(_) => Err(OrderFault::ReadTimeout { waited: self.timeout }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().expect("nothing panics while it holds the readers")
    }
}
