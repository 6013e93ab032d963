//! Leftovers: memtables that were sealed, until nobody else needs them.
//!
//! A memtable that is flushed is let go when the next one is sealed, by whoever seals: that is the machine's thread, and to free a
//! memtable row by row takes up to twenty milliseconds. So each is held here as well until all others have let go, and is freed
//! on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a memtable that nobody needs any more is freed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Anything that is freed when its last holder lets go.
type Held = Arc<dyn Send + Sync>;

/// The thread that frees.
pub(crate) struct Leftovers {
    /// None once it ends.
    held: Option<mpsc::Sender<Held>>,
    thread: Option<JoinHandle<()>>,
}

impl Leftovers {
    pub(crate) fn start() -> std::io::Result<Leftovers> {
        let (held, arriving) = mpsc::channel();
        let thread = std::thread::Builder::new().name("leftovers".into()).spawn(move || free(&arriving))?;
        Ok(Leftovers { held: Some(held), thread: Some(thread) })
    }

    /// Holds something until nobody else does.
    pub(crate) fn hold(&self, held: Held) {
        if let Some(thread) = &self.held {
            // Without the thread it is freed by its last holder.
            drop(thread.send(held));
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.held = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            drop(thread.join());
        }
    }
}

fn free(arriving: &mpsc::Receiver<Held>) {
    let mut held: Vec<Held> = Vec::new();
    loop {
        let arrived = if held.is_empty() {
            arriving.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            arriving.recv_timeout(LOOK_EVERY)
        };
        match arrived {
            Ok(arrived) => held.push(arrived),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        held.retain(|it| Arc::strong_count(it) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Notes the name of the thread that it is freed on.
    struct Noting(Arc<Mutex<Option<String>>>);

    impl Drop for Noting {
        fn drop(&mut self) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            *self.0.lock().unwrap() = Some(name);
        }
    }

    #[test]
    fn what_nobody_else_needs_any_more_is_freed_on_a_thread_of_its_own() {
        let leftovers = Leftovers::start().unwrap();
        let freed_on = Arc::new(Mutex::new(None));
        let needed = Arc::new(Noting(Arc::clone(&freed_on)));
        leftovers.hold(needed.clone());
        // While somebody needs it, others come and go.
        for _ in 0..100 {
            leftovers.hold(Arc::new(()));
        }
        std::thread::sleep(2 * LOOK_EVERY);
        assert_eq!(*freed_on.lock().unwrap(), None);
        drop(needed);
        let began = std::time::Instant::now();
        while freed_on.lock().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_secs(30), "it is never freed");
            std::thread::yield_now();
        }
        assert_eq!(freed_on.lock().unwrap().as_deref(), Some("leftovers"));
    }

    #[test]
    fn at_the_end_nothing_is_held_any_more() {
        let leftovers = Leftovers::start().unwrap();
        let needed = Arc::new(());
        leftovers.hold(needed.clone());
        drop(leftovers);
        assert_eq!(Arc::strong_count(&needed), 1);
    }
}
