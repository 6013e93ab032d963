//! What the Dispatcher is told and asked, and what it answers.

use super::enlisting::{Expected, NotLeased};
use super::looks::{Explain, Overview};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use windlass_core::batch::reserver::{HandOut, Reserver, SessionId, Standing};
use windlass_core::batch::roster::Roster;
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::entry::Effect;
use windlass_core::ids::{ChunkName, Epoch};
use windlass_core::lanes::levels::{QueueName, RankName};
use windlass_core::lanes::reader::Placed;
use windlass_core::lanes::tasks::TaskId;
use windlass_core::time::At;

/// What the Dispatcher is told and asked.
#[derive(Debug)]
pub enum Event {
    /// This node leads from here on.
    Led {
        /// The machine's time.
        at: At,
        /// What can be handed out, none of it out.
        reserver: Box<Reserver>,
        /// Who may still hold work of an earlier leadership under a hard limit.
        roster: Roster,
    },
    /// Entries were applied.
    Effects {
        /// The machine's time.
        at: At,
        /// What they ask of the leader.
        effects: Vec<Effect>,
    },
    /// This node leads no more.
    Lost,
    /// Somebody has connected: a consumer, or who only adds tasks.
    Connect {
        /// The session that it had before: that one's connection ends, if it has not yet.
        before: Option<SessionId>,
        /// Its name.
        name: String,
        /// Where its work goes.
        out: mpsc::UnboundedSender<ToSession>,
        /// Gets the session.
        reply: oneshot::Sender<Connected>,
    },
    /// A consumer that has come back has re-asserted all that it still works on.
    Returned(SessionId),
    /// The log has these sessions on the roster, as was asked for under this leadership.
    Enlisted(Epoch, Vec<SessionId>),
    /// Tasks in flight of a lane are about to be limited: whoever may hold some has to be on the roster first.
    ExpectLimit(String, oneshot::Sender<Expected>),
    /// A consumer has shown that it lives.
    Seen(SessionId),
    /// A connection is gone; its consumer has the grace time to come back.
    Disconnect(SessionId),
    /// A consumer has said goodbye: what it holds comes back unharmed.
    Leave(SessionId),
    /// Chunks and tasks that a session still works on.
    Reassert(SessionId, Vec<Reasserted>, oneshot::Sender<Vec<Standing>>),
    /// Chunks that come back unharmed.
    Release(Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>),
    /// Leases that go on until the given time.
    Extend(Vec<(ChunkName, AttemptToken)>, At, oneshot::Sender<Vec<Standing>>),
    /// What tokens are good for.
    Standing(Vec<(ChunkName, AttemptToken)>, oneshot::Sender<Vec<Standing>>),
    /// How things are.
    Status(oneshot::Sender<DispatcherStatus>),
    /// What a strategy would give, and why.
    Explain(Explain),
    /// The queue in numbers: with the values of a field, so many values and limits at most.
    Overview(Option<String>, usize, oneshot::Sender<Overview>),
    /// Tasks that were read for a queue of a lane.
    TasksRead {
        /// The leadership that asked for them.
        epoch: Epoch,
        /// The queue.
        queue: QueueName,
        /// The tasks, in order.
        rows: Vec<Placed>,
        /// Whether there are no more behind them.
        is_end: bool,
    },
    /// Tasks could not be read for a queue of a lane, under this leadership; it is tried again.
    TasksNotRead(Epoch, QueueName),
    /// A task that was handed out is done meanwhile: it is not there any more.
    TaskMissing(TaskId),
    /// Delayed tasks could not be given their places; it is tried again at this time.
    TasksStillDue(At),
    /// Hand out no more.
    Drain,
}

/// Something that a consumer says it still works on.
#[derive(Debug)]
pub struct Reasserted {
    /// The chunk.
    pub name: ChunkName,
    /// The attempt's token.
    pub token: AttemptToken,
    /// Where a task stands in its lane, if it is one that waits.
    pub place: Option<(RankName, Placed)>,
}

/// A session, as its conversation knows it.
#[derive(Debug, Clone, Copy)]
pub struct Connected {
    /// Its id.
    pub session: SessionId,
    /// Whether what it re-asserts may be work under a hard limit: it goes on with a session that was on the roster.
    pub may_hold_limited: bool,
}

/// What a session gets.
#[derive(Debug)]
pub enum ToSession {
    /// Work for a reserve.
    Work {
        /// The request it answers.
        request: u64,
        /// The chunks.
        hand_outs: Vec<HandOut>,
    },
    /// A reserve that cannot be served.
    Refused {
        /// The request it answers.
        request: u64,
        /// Why, and what to do.
        problem: String,
    },
    /// The server is about to stop.
    Draining,
    /// The consumer showed no heartbeat.
    Silent,
    /// The consumer has opened another connection.
    Replaced,
}

/// A reserve that is to be answered.
#[derive(Debug)]
pub struct Ask {
    /// How many chunks at most.
    pub max: usize,
    /// Which ones.
    pub strategy: Arc<Strategy>,
    /// Who asks.
    pub asker: Asker,
}

/// Who asks for work.
#[derive(Debug)]
pub enum Asker {
    /// A session.
    Session {
        /// The session.
        session: SessionId,
        /// The number of its request.
        request: u64,
    },
    /// A caller without a session; dropping the receiver withdraws the ask.
    Lease {
        /// How long the reservation holds.
        lease_ms: u64,
        /// Whether to wait if nothing is ready.
        wait: bool,
        /// Whether the log covers it, as leases under hard limits need to be.
        is_covered: bool,
        /// Gets the chunks and the deadline, or why there are none.
        reply: oneshot::Sender<Result<(Vec<HandOut>, At), NotLeased>>,
    },
}

/// How things are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatcherStatus {
    /// Chunks ready.
    pub ready: u64,
    /// Chunks that would be ready if their submissions were not paused.
    pub paused: u64,
    /// Chunks out.
    pub out: usize,
    /// Tasks of lanes out.
    pub tasks_out: usize,
    /// Chunks that wait for a retry.
    pub delayed: usize,
    /// Consumers that are connected.
    pub consumers: usize,
    /// Reserves that wait.
    pub waiting: usize,
    /// Strategies in use have this many views.
    pub views: usize,
}
