//! Leftovers: memtables that were sealed, until nobody else needs them.
//!
//! A memtable that is flushed is let go when the next one is sealed, by whoever seals: that is the machine's thread mostly, and to free a
//! memtable row by row takes up to twenty milliseconds. So those that are sealed are held here as well until all others have
//! let go, and are freed on a thread of their own.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon one is freed whose last reader has let go. Mostly they are let go just before the next one arrives, and freed then.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Anything that is freed when its last holder lets go.
type Held = Arc<dyn Send + Sync>;

/// The way to the thread that frees. It ends when this is dropped.
pub(crate) struct Leftovers {
    /// None at the end.
    out: Option<mpsc::Sender<Held>>,
    thread: Option<JoinHandle<()>>,
}

impl Leftovers {
    pub(crate) fn start() -> std::io::Result<Leftovers> {
        let (out, arriving) = mpsc::channel();
        let freer = Freer { arriving, held: Vec::new() };
        let thread = std::thread::Builder::new().name("leftovers".into()).spawn(|| freer.run())?;
        Ok(Leftovers { out: Some(out), thread: Some(thread) })
    }

    /// Holds something until nobody else does.
    pub(crate) fn hold(&self, held: Held) {
        if let Some(out) = &self.out {
            // Without the thread it is freed by its last holder.
            drop(out.send(held));
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.out = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            drop(thread.join());
        }
    }
}

struct Freer {
    arriving: mpsc::Receiver<Held>,
    held: Vec<Held>,
}

impl Freer {
    fn run(mut self) {
        while self.run_once(LOOK_EVERY) {}
    }

    /// Waits for the next arrival, but not for long if something is held, and frees what nobody else holds; false at the end.
    fn run_once(&mut self, look_every: Duration) -> bool {
        let arrived = if self.held.is_empty() {
            self.arriving.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            self.arriving.recv_timeout(look_every)
        };
        match arrived {
            Ok(arrived) => self.held.push(arrived),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        self.held.retain(|it| Arc::strong_count(it) > 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn what_is_held_is_freed_when_nobody_else_holds_it_whether_others_arrive_or_not() {
        let (out, arriving) = mpsc::channel::<Held>();
        let mut freer = Freer { arriving, held: Vec::new() };
        let [one, two] = [Arc::new(1), Arc::new(2)];
        out.send(one.clone()).unwrap();
        out.send(two.clone()).unwrap();
        assert!(freer.run_once(Duration::ZERO) && freer.run_once(Duration::ZERO));
        assert_eq!(freer.held.len(), 2, "somebody needs them");
        drop(one);
        out.send(Arc::new(3)).unwrap();
        assert!(freer.run_once(Duration::ZERO));
        assert_eq!(freer.held.len(), 1, "the first, and the third that nobody needs, are freed");
        drop(two);
        assert!(freer.run_once(Duration::ZERO));
        assert!(freer.held.is_empty());
        drop(out);
        assert!(!freer.run_once(Duration::ZERO));
    }

    /// Tells on which thread it is freed.
    struct Telling(Mutex<mpsc::Sender<Option<String>>>);

    impl Drop for Telling {
        fn drop(&mut self) {
            let name = std::thread::current().name().map(str::to_owned);
            self.0.lock().unwrap().send(name).unwrap();
        }
    }

    #[test]
    fn what_nobody_else_needs_is_freed_on_the_thread_of_leftovers() {
        let (freed_on, heard) = mpsc::channel();
        let leftovers = Leftovers::start().unwrap();
        leftovers.hold(Arc::new(Telling(Mutex::new(freed_on))));
        assert_eq!(heard.recv().unwrap().as_deref(), Some("leftovers"));
    }
}
