//! Threads of somebody's own: what is spawned on one stays there.
//!
//! The order has one, since its few tasks must not wait behind those of ten thousand consumers, who wait for them. The
//! Committer and the Librarian have one of low priority. Consumers share a few: a conversation that stays on one thread finds
//! all that it touches in the caches of one processor, and costs about a sixth less than one that idle threads take from each
//! other. Everything else runs on the threads of whoever started the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_order::open_postbox;
use windlass_store::turns::work_in_background;

/// A tenth of a processor's time is left for making commits when there is more to do than there are processors.
const COMMITTER_NICE: i32 = 10;

/// One thread, with the tasks that were spawned there. They end with it when it is dropped.
pub(crate) struct OwnThread {
    runtime: Handle,
    /// The thread runs until this is dropped.
    _end: oneshot::Sender<()>,
}

impl OwnThread {
    /// The order's.
    pub(crate) fn for_order() -> std::io::Result<OwnThread> {
        OwnThread::start("order", || {})
    }

    /// The Committer's and the Librarian's: they have much to compute, and nobody who puts or works should wait for a processor
    /// because of it.
    pub(crate) fn for_commits() -> std::io::Result<OwnThread> {
        OwnThread::start("committer", || {
            // On Linux this is the priority of the thread alone. Without it everything works, only less evenly.
            rustix::process::setpriority_process(None, COMMITTER_NICE).unwrap_or(());
            work_in_background();
        })
    }

    /// One that consumers share: what the order answers those on it comes together.
    fn for_consumers() -> std::io::Result<OwnThread> {
        let thread = OwnThread::start("consumers", || {})?;
        thread.spawn(async { open_postbox().await });
        Ok(thread)
    }

    /// `begin` is called on the thread, and on those that it does its blocking work on.
    fn start(name: &str, begin: impl Fn() + Clone + Send + Sync + 'static) -> std::io::Result<OwnThread> {
        let runtime = Builder::new_current_thread().on_thread_start(begin.clone()).enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            begin();
            // It ends by being dropped, which is not an error here.
            drop(runtime.block_on(ended));
            // Nobody waits for blocking work that is under way.
            runtime.shutdown_background();
        })?;
        Ok(OwnThread { runtime: handle, _end: end })
    }

    /// Starts something there.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.runtime.spawn(task)
    }

    /// Runs something there; what it spawns stays there.
    pub(crate) async fn run<R: Send + 'static>(&self, task: impl Future<Output = R> + Send + 'static) -> R {
        match self.spawn(task).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Up to so many consumers share half as many threads as there are processors: each of those is woken less often, for more, and
/// the order, for whom they wait, has a processor. 16 clients cost the server a twentieth less so, and get as much done. With a
/// thousand, one thread more than there are processors gets a seventh more done: a processor has work while one of them waits
/// for a lock.
const FEW_CONSUMERS: usize = 32;

/// The threads that consumers share.
pub(crate) struct ConsumerThreads {
    threads: Vec<OwnThread>,
    next: AtomicUsize,
    seated: Arc<AtomicUsize>,
}

/// A consumer's place, as long as it is held.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConsumerThreads {
    /// One for each processor, and one more.
    pub(crate) fn start() -> std::io::Result<ConsumerThreads> {
        let count = std::thread::available_parallelism().map_or(1, usize::from) + 1;
        let threads = (0..count).map(|_| OwnThread::for_consumers()).collect::<Result<_, _>>()?;
        Ok(ConsumerThreads { threads, next: AtomicUsize::new(0), seated: Arc::default() })
    }

    /// The thread for the next consumer, and a seat to be held while it is there: they take turns.
    pub(crate) fn seat(&self) -> (&OwnThread, Seat) {
        let (next, seated) =
            (self.next.fetch_add(1, Ordering::Relaxed), self.seated.fetch_add(1, Ordering::Relaxed));
        let all = self.threads.len();
        let in_use = if seated < FEW_CONSUMERS { all / 2 } else { all };
        (&self.threads[next % in_use], Seat(Arc::clone(&self.seated)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_consumers_share_half_of_the_threads_and_many_use_all() {
        let threads = ConsumerThreads::start().unwrap();
        let mut seats = Vec::new();
        let mut seat = || {
            let (thread, seat) = threads.seat();
            seats.push(seat);
            threads.threads.iter().position(|it| std::ptr::eq(it, thread)).unwrap()
        };
        let all = threads.threads.len();
        assert!((0..FEW_CONSUMERS).all(|_| seat() < all / 2));
        assert!((0..all).any(|_| seat() == all - 1), "the last one has its turn too");
        seats.clear();
        assert_eq!(threads.seated.load(Ordering::Relaxed), 0, "whoever goes leaves its seat");
    }
}
