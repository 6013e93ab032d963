//! The Registrar: keeps the roster in the log, of sessions that may hold work under hard limits.
//!
//! Invariants
//! - What it was told reaches the log in the order in which it was told, and nothing is left out while this node leads: what does not
//!   come through is proposed again, which changes nothing if it had.

use crate::roles::dispatcher::{Event, RosterNote};
use crate::service::Service;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use windlass_core::batch::reserver::SessionId;
use windlass_core::batch::roster::Enlist;
use windlass_core::entry::Command;
use windlass_core::limits::ROSTER_SESSIONS_PER_COMMAND_MAX;

/// How long to wait before something is proposed again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Does what it is told as it comes, for ever.
pub(crate) async fn run(service: Service, mut notes: mpsc::UnboundedReceiver<RosterNote>) {
    let mut some = Vec::new();
    while notes.recv_many(&mut some, ROSTER_SESSIONS_PER_COMMAND_MAX).await > 0 {
        run_once(&service, some.drain(..)).await;
    }
}

/// Whoever waits for something that is not in the log in the end learns it by the loss of their sender.
async fn run_once(service: &Service, notes: impl Iterator<Item = RosterNote>) {
    let (mut joined, mut left, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for note in notes {
        match note {
            RosterNote::Joined(SessionId(session)) => joined.push(session),
            // A session joins once, and before it leaves: in one command that is the order, too.
            RosterNote::Left(SessionId(session)) => left.push(session),
            RosterNote::Reached(reached) => waiting.push(reached),
        }
    }
    let sessions: Vec<SessionId> = joined.iter().copied().map(SessionId).collect();
    if (!joined.is_empty() || !left.is_empty())
        && !note_in_log(service, Enlist { joined, left, ..Enlist::default() }).await
    {
        return;
    }
    if !sessions.is_empty() {
        service.dispatcher().send(Event::Enlisted(sessions));
    }
    waiting.into_iter().for_each(|reached: oneshot::Sender<()>| _ = reached.send(()));
}

/// Whether it is in the log; if not, this node does not lead any more. Sessions stay on the roster then: after the change of leader
/// their grace time is waited for.
async fn note_in_log(service: &Service, enlist: Enlist) -> bool {
    while let Err(problem) = service.propose(Command::Enlist(enlist.clone())).await {
        tracing::warn!(%problem, "the roster could not be noted");
        if !service.dispatcher().leads() {
            return false;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    true
}
