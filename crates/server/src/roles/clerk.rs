//! The Clerk: does the errands of lanes. It reads their next tasks from the tables, notes in the log how far everything is
//! done, and has delayed tasks given their places when they are due.
//!
//! Invariants
//! - A read sees every task that the Dispatcher was told of before it asked.
//! - Nothing that one errand waits for holds up another, but that only some reads and some notes are under way at a time.

use crate::roles::dispatcher::{Event, LaneErrand};
use crate::service::Service;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use windlass_core::entry::{Command, Outcome};
use windlass_core::ids::Epoch;
use windlass_core::lanes::acks::levels_between;
use windlass_core::lanes::desk::Errand;
use windlass_core::lanes::levels::{QueueName, is_tenant};
use windlass_core::lanes::reader::{Placed, Read};
use windlass_core::limits::LANE_ACKS_AT_ONCE;
use windlass_order::Order;

/// How long to wait before something is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Reads that are under way at a time: each has a thread, and first waits for the machine; so many keep two cores busy, and with more, keys that
/// meet their limits would take the threads from everybody else.
const READS_AT_ONCE: usize = 4;

/// How many errands may be under way.
#[derive(Debug, Clone)]
struct Permits {
    reads: Arc<Semaphore>,
    notes: Arc<Semaphore>,
}

/// Does errands as they come, each by itself.
pub(crate) async fn run(service: Service, mut errands: mpsc::UnboundedReceiver<LaneErrand>) {
    let mut under_way = JoinSet::new();
    let permits = Permits {
        reads: Arc::new(Semaphore::new(READS_AT_ONCE)),
        notes: Arc::new(Semaphore::new(LANE_ACKS_AT_ONCE)),
    };
    loop {
        tokio::select! {
            errand = errands.recv() => match errand {
                Some(errand) => drop(under_way.spawn(run_once(service.clone(), permits.clone(), errand))),
                None => return,
            },
            Some(_) = under_way.join_next(), if !under_way.is_empty() => {}
        }
    }
}

async fn run_once(service: Service, permits: Permits, errand: LaneErrand) {
    match errand {
        LaneErrand::OfRank(epoch, Errand::Read { queue, read }) => {
            let reading = service.clone();
            let of = queue.clone();
            let permit = permits.reads.acquire().await;
            let read = move || read_tasks(reading.order(), &of, read);
            let done = tokio::task::spawn_blocking(read).await;
            drop(permit);
            let event = match done {
                Ok((rows, is_end)) => Event::TasksRead { epoch, queue, rows, is_end },
                // The runtime ends.
                Err(error) if error.is_cancelled() => return,
                Err(error) => {
                    tracing::error!(%error, "the next tasks of a lane could not be read; they are tried again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                    Event::TasksNotRead(epoch, queue)
                }
            };
            service.dispatcher().send(event);
        }
        LaneErrand::OfRank(Epoch(_), Errand::Note(ack)) => {
            let _permit = permits.notes.acquire().await;
            // One that does not come through is made up for by the next.
            if let Err(problem) = service.propose(Command::Ack(ack)).await {
                tracing::debug!(%problem, "an ack level could not be noted");
            }
        }
        LaneErrand::Release => release(&service).await,
    }
}

/// Has delayed tasks given their places; the effects tell the Dispatcher when the next ones are due.
async fn release(service: &Service) {
    match service.propose(Command::ReleaseTasks).await {
        Ok(Outcome::TasksReleased { tasks }) => tracing::debug!(tasks, "delayed tasks were due"),
        Ok(_) | Err(_) => {
            tokio::time::sleep(RETRY_PAUSE).await;
            service.dispatcher().send(Event::TasksStillDue(service.clock().now()));
        }
    }
}

/// The next tasks of a queue, and whether there are no more behind them.
fn read_tasks(order: &Order, queue: &QueueName, read: Read) -> (Vec<Placed>, bool) {
    // Whoever applies tells the Dispatcher before the rows are in the tables, and lets go of the machine after that.
    order.read(|_| ());
    // What consumers get of them is in these rows, but for those in the order of one key.
    let is_of_key = queue.of.as_deref().is_some_and(|of| !is_tenant(of));
    let rows: Vec<Placed> = levels_between(queue, read.above, read.up_to, |table, range| match is_of_key {
        true => order.committed().scan(table, range),
        false => Box::new(order.committed().read_ahead(table, range, read.limit)),
    })
    .take(read.limit)
    .collect();
    let is_end = rows.len() < read.limit;
    (rows, is_end)
}
