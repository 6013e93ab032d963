//! The handle: how everybody else reaches the Dispatcher.
//!
//! The Dispatcher answers in microseconds, so whoever has an event handles it there and then, under a lock: a reserve that
//! finds work costs no change of task or thread. Time is the Ticker's: it sleeps until something is due.

use super::{Ask, Dispatcher, Event, ToSession};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use windlass_core::lanes::desk::RankSeen;
use windlass_core::lanes::levels::{LaneNumber, RankName};
use windlass_core::lanes::tasks::{HandedOut, TaskId};
use windlass_core::time::At;

/// A cheap handle of the one Dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dispatcher: Mutex<Dispatcher>,
    /// Something is due earlier than the Ticker knows.
    nudge: Notify,
}

impl DispatcherHandle {
    /// Takes a Dispatcher in charge.
    pub fn new(dispatcher: Dispatcher) -> DispatcherHandle {
        DispatcherHandle {
            shared: Arc::new(Shared { dispatcher: Mutex::new(dispatcher), nudge: Notify::new() }),
        }
    }

    /// Handles an event, and gives those who wait what they may have now.
    pub fn send(&self, event: Event) {
        self.enter(|dispatcher, now| dispatcher.handle(event, now));
    }

    /// Asks for work. What a session gets at once is given back here, and need not wake it.
    pub fn reserve(&self, ask: Ask) -> Option<ToSession> {
        self.enter(|dispatcher, now| dispatcher.reserve(ask, now)).map(|answer| answer.what)
    }

    /// How far the tasks of some priorities of a lane have been handed out; nothing while this node does not lead.
    pub fn handed_out(&self, lane: &str, priorities: &BTreeSet<u8>) -> Vec<HandedOut> {
        self.lock().handed_out(lane, priorities)
    }

    /// How many tasks of a lane are out.
    pub fn tasks_out_of(&self, lane: LaneNumber) -> usize {
        self.lock().tasks_out_of(lane)
    }

    /// Whether a consumer works on a task.
    pub fn is_task_out(&self, task: TaskId) -> bool {
        self.lock().is_task_out(task)
    }

    /// The tasks of a rank that consumers work on.
    pub fn tasks_out_of_rank(&self, rank: RankName) -> BTreeSet<TaskId> {
        self.lock().tasks_out_of_rank(rank)
    }

    /// How a rank of a lane is handed out.
    pub fn look_at_rank(&self, rank: RankName) -> Option<RankSeen> {
        self.lock().look_at_rank(rank)
    }

    fn enter<T>(&self, act: impl FnOnce(&mut Dispatcher, At) -> T) -> T {
        let mut dispatcher = self.lock();
        let now = dispatcher.clock.now();
        let done = act(&mut dispatcher, now);
        dispatcher.serve_waiting(now);
        dispatcher.send_errands();
        let is_due_earlier = dispatcher.is_due_earlier();
        drop(dispatcher);
        if is_due_earlier {
            self.shared.nudge.notify_one();
        }
        done
    }

    /// The Ticker: does what is due, for ever.
    pub async fn tick(self) {
        loop {
            let pause = self.lock().run_once();
            match pause {
                // Views are built in steps, and others get the lock in between.
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(pause) => drop(tokio::time::timeout(pause, self.shared.nudge.notified()).await),
                None => self.shared.nudge.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Dispatcher> {
        self.shared.dispatcher.lock().expect("the Dispatcher has not met a contradiction")
    }
}
