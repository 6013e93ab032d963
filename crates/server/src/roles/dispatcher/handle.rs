//! The handle: how everybody else reaches the Dispatcher.
//!
//! The Dispatcher answers in microseconds, so whoever has an event handles it there and then, under a lock: a reserve that
//! finds work costs no change of task or thread. Time is the Ticker's: it sleeps until something is due.

use super::{Ask, Dispatcher, Event, HeldBack, ToSession};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use windlass_core::batch::reserver::Reserver;
use windlass_core::batch::strategy::Strategy;
use windlass_core::lanes::desk::Desk;
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
    /// Some lane limits its tasks in flight, or is about to.
    has_limited_lanes: AtomicBool,
}

impl DispatcherHandle {
    /// Takes a Dispatcher in charge.
    pub fn new(dispatcher: Dispatcher) -> DispatcherHandle {
        let (dispatcher, nudge) = (Mutex::new(dispatcher), Notify::new());
        let has_limited_lanes = AtomicBool::new(false);
        DispatcherHandle { shared: Arc::new(Shared { dispatcher, nudge, has_limited_lanes }) }
    }

    /// Handles an event, and gives those who wait what they may have now.
    pub fn send(&self, event: Event) {
        self.enter(|dispatcher, now| dispatcher.handle(event, now));
    }

    /// Asks for work. What a session gets at once is given back here, and need not wake it.
    pub fn reserve(&self, ask: Ask) -> Option<ToSession> {
        self.enter(|dispatcher, now| dispatcher.reserve(ask, now)).map(|answer| answer.what)
    }

    /// Looks at the lanes; nothing is seen while this node does not lead.
    pub fn look_at_lanes<T>(&self, look: impl FnOnce(&Desk, At) -> T) -> Option<T> {
        self.look_at_reserver(|reserver, now| look(reserver.desk(), now))
    }

    /// Looks at what is out; nothing is seen while this node does not lead.
    pub fn look_at_reserver<T>(&self, look: impl FnOnce(&Reserver, At) -> T) -> Option<T> {
        let dispatcher = self.lock();
        let now = dispatcher.clock.now();
        dispatcher.reserver.as_ref().map(|reserver| look(reserver, now))
    }

    /// Holds back the tasks of a key, which are about to get other levels; nothing is held while this node does not lead.
    pub fn hold_back(&self, lane: &str, priority: u8, key: &str) -> Option<HeldBack> {
        self.lock().hold_back(lane, priority, key)
    }

    /// Lets them go again.
    pub fn go_on(&self, held_back: &HeldBack) {
        self.enter(|dispatcher, now| dispatcher.go_on(held_back, now));
    }

    /// Until when hard limits let nothing out, at the latest, for what consumers of an earlier leader may still work on.
    pub fn held_until(&self) -> Option<At> {
        let dispatcher = self.lock();
        dispatcher.hold.until(dispatcher.clock.now())
    }

    /// Whether a strategy has a hard limit, its own or that of a lane, that is to hold across a change of leader.
    pub fn has_hard_limit(&self, strategy: &Strategy) -> bool {
        strategy.has_hard_limit() || self.limits_lanes() && self.lock().is_under_hard_limit(strategy)
    }

    /// Whether some lane limits its tasks in flight, or is about to.
    pub fn limits_lanes(&self) -> bool {
        self.shared.has_limited_lanes.load(Ordering::Acquire)
    }

    /// Whether this node leads.
    pub fn leads(&self) -> bool {
        self.lock().reserver.is_some()
    }

    fn enter<T>(&self, act: impl FnOnce(&mut Dispatcher, At) -> T) -> T {
        let mut dispatcher = self.lock();
        let now = dispatcher.clock.now();
        let done = act(&mut dispatcher, now);
        dispatcher.serve_waiting(now);
        dispatcher.send_errands();
        let is_due_earlier = dispatcher.is_due_earlier();
        if let Some(has_limited_lanes) = dispatcher.lanes_changed.take() {
            self.shared.has_limited_lanes.store(has_limited_lanes, Ordering::Release);
        }
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
