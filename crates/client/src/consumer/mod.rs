//! The consumer's side: work on chunks, many at a time, over one connection that mends itself.
//!
//! Reading order: `work` (what a closure gets and gives), `book` (what is held, due and unanswered; pure), `prefetch` (how much
//! to hold), `session` (the loop around them that owns the socket and the running closures), `idle` (whether nothing is left to do).

mod book;
mod idle;
mod prefetch;
mod session;
mod work;

pub use book::Tally;
pub use work::{Chunk, Failure};

use crate::client::Client;
use crate::error::ClientError;
use book::Book;
use session::Session;
use std::time::Duration;
use tokio::sync::watch;
use windlass_core::batch::strategy::Strategy;
use windlass_core::entry::Output;
use windlass_core::limits::CHUNKS_PER_RESERVE_MAX;

/// Chunks held beyond those that run, at least, if nothing is set: a round trip's worth for work of a millisecond.
const PREFETCH_MIN: usize = 4;

/// Running chunks get so long to finish after a shutdown, unless it is set otherwise.
const SHUTDOWN_FOR_DEFAULT: Duration = Duration::from_secs(30);

/// Works on chunks.
#[derive(Debug, Clone, Copy)]
pub struct Consumer;

impl Consumer {
    /// A consumer of this server's work.
    pub fn builder(client: Client) -> ConsumerBuilder {
        ConsumerBuilder {
            client,
            name: "windlass-client".into(),
            strategy: Strategy::default(),
            concurrency: 1,
            prefetch: None,
            shutdown_for: SHUTDOWN_FOR_DEFAULT,
            until_idle: None,
            activity: watch::Sender::new(Activity::default()),
        }
    }
}

/// What a consumer is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Whether it has a connection.
    pub connected: bool,
    /// Chunks being worked on.
    pub running: usize,
    /// Chunks reserved and not begun.
    pub queued: usize,
    /// What it has done so far.
    pub tally: Tally,
}

/// A consumer's settings.
#[derive(Debug)]
pub struct ConsumerBuilder {
    client: Client,
    name: String,
    strategy: Strategy,
    concurrency: usize,
    prefetch: Option<usize>,
    shutdown_for: Duration,
    until_idle: Option<Duration>,
    activity: watch::Sender<Activity>,
}

impl ConsumerBuilder {
    /// A name for people to read.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> ConsumerBuilder {
        self.name = name.into();
        self
    }

    /// Which chunks it wants next; `Random` if not set.
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> ConsumerBuilder {
        self.strategy = strategy;
        self
    }

    /// How many chunks it works on at once; 1 if not set.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: usize) -> ConsumerBuilder {
        self.concurrency = concurrency;
        self
    }

    /// How many chunks it holds reserved beyond those it works on, so that it need not wait for the network. If not set, as many as
    /// it ends in 100 ms, up to 1,024; at least as many as the concurrency, and at least 4. What is too much when chunks begin to
    /// take longer goes back unharmed. Set it if a round trip to the server takes longer than that.
    #[must_use]
    pub const fn prefetch(mut self, prefetch: usize) -> ConsumerBuilder {
        self.prefetch = Some(prefetch);
        self
    }

    /// How long running chunks may take after a shutdown before they are given back; 30 s if not set.
    #[must_use]
    pub const fn shutdown_for(mut self, shutdown_for: Duration) -> ConsumerBuilder {
        self.shutdown_for = shutdown_for;
        self
    }

    /// Ends by itself when there was nothing to do for so long, no chunk waits for a retry, and no task of its lanes for its time or a
    /// rate.
    #[must_use]
    pub const fn until_idle(mut self, idle_for: Duration) -> ConsumerBuilder {
        self.until_idle = Some(idle_for);
        self
    }

    /// What the consumer is doing, as it changes.
    pub fn activity(&self) -> watch::Receiver<Activity> {
        self.activity.subscribe()
    }

    /// What it holds beyond those that it works on, at the least, if that is not set.
    fn prefetch_min(&self) -> usize {
        self.concurrency.max(PREFETCH_MIN)
    }

    /// Works on chunks until `shutdown` resolves: then it reserves no more, gives back what it has not begun, and ends
    /// what runs.
    ///
    /// A closure that panics fails its chunk. A connection that breaks is mended while the closures go on; only the first
    /// one must come about within the client's time for retries. A refusal that no retry will change ends the run.
    pub async fn run<F, Fut, S>(self, work: F, shutdown: S) -> Result<Tally, ClientError>
    where
        F: Fn(Chunk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
        S: Future<Output = ()> + Send,
    {
        let held_max = self.concurrency.saturating_add(self.prefetch.unwrap_or_else(|| self.prefetch_min()));
        if self.concurrency == 0 || held_max > CHUNKS_PER_RESERVE_MAX {
            return Err(ClientError::Setting(format!(
                "a consumer works on at least one chunk, and holds at most {CHUNKS_PER_RESERVE_MAX} with its prefetch"
            )));
        }
        let strategy = serde_json::to_string(&self.strategy).expect("a strategy has a JSON form");
        let book = Book::new(self.concurrency, held_max, strategy);
        Session::new(self, book, work).run(shutdown).await
    }
}
