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
use windlass_core::ids::Epoch;
use windlass_core::limits::ROSTER_SESSIONS_PER_COMMAND_MAX;

/// How long to wait before something is proposed again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Does what it is told as it comes, for ever.
pub(crate) async fn run(service: Service, mut notes: mpsc::UnboundedReceiver<RosterNote>) {
    let mut some = Vec::new();
    while notes.recv_many(&mut some, ROSTER_SESSIONS_PER_COMMAND_MAX).await > 0 {
        for batch in batches(some.drain(..)) {
            // Who waits for a later batch waits for this one, too.
            if !run_once(&service, batch).await {
                break;
            }
        }
    }
}

/// What goes into the log with one command.
#[derive(Debug, Default)]
struct Batch {
    /// The leadership under which they join.
    epoch: Epoch,
    joined: Vec<SessionId>,
    left: Vec<SessionId>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// In one command all that join go before all that leave. A session that was connected while the leader changed may leave and join again:
/// then it joins in another batch. So do those that join under another leadership.
fn batches(notes: impl Iterator<Item = RosterNote>) -> Vec<Batch> {
    let mut batches = vec![Batch::default()];
    for note in notes {
        let batch = batches.last_mut().expect("there is always one to fill");
        match note {
            RosterNote::Joined(epoch, session) => {
                let joins_with = batch.joined.is_empty() || batch.epoch == epoch;
                if joins_with && !batch.left.contains(&session) {
                    batch.epoch = epoch;
                    batch.joined.push(session);
                } else {
                    batches.push(Batch { epoch, joined: vec![session], ..Batch::default() });
                }
            }
            RosterNote::Left(session) => batch.left.push(session),
            RosterNote::Reached(reached) => batch.waiting.push(reached),
        }
    }
    batches
}

/// Whether it is in the log. Whoever waits for something that is not in the end learns it by the loss of their sender.
async fn run_once(service: &Service, Batch { epoch, joined, left, waiting }: Batch) -> bool {
    let numbers = |sessions: &[SessionId]| sessions.iter().map(|it| it.0).collect::<Vec<u64>>();
    let enlist = Enlist { joined: numbers(&joined), left: numbers(&left), ..Enlist::default() };
    if enlist != Enlist::default() && !note_in_log(service, enlist).await {
        return false;
    }
    if !joined.is_empty() {
        service.dispatcher().send(Event::Enlisted(epoch, joined));
    }
    waiting.into_iter().for_each(|reached| _ = reached.send(()));
    true
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Who joins and leaves with each command, how many then hear that it is done, and the roster after all.
    type After = (Vec<(Vec<u64>, Vec<u64>, usize)>, BTreeSet<u64>);

    fn after(notes: Vec<RosterNote>) -> After {
        let numbers = |sessions: Vec<SessionId>| sessions.into_iter().map(|it| it.0).collect::<Vec<u64>>();
        let mut roster = BTreeSet::new();
        let batches =
            batches(notes.into_iter()).into_iter().map(|Batch { joined, left, waiting, .. }| {
                let (joined, left) = (numbers(joined), numbers(left));
                // As the roster in the log does it.
                roster.extend(joined.iter().copied());
                left.iter().for_each(|session| _ = roster.remove(session));
                (joined, left, waiting.len())
            });
        (batches.collect(), roster)
    }

    #[test]
    fn a_session_that_leaves_and_joins_again_is_on_the_roster_and_one_that_joins_and_leaves_is_not() {
        let joined = |session| RosterNote::Joined(Epoch(1), SessionId(session));
        let left = |session| RosterNote::Left(SessionId(session));
        let reached = || RosterNote::Reached(oneshot::channel().0);
        let together = after(vec![joined(1), left(1), joined(2), reached(), left(3)]);
        assert_eq!(together, (vec![(vec![1, 2], vec![1, 3], 1)], [2].into()));

        let again = after(vec![left(1), left(2), joined(1), reached(), joined(2), left(1), joined(1)]);
        let apart = vec![(vec![], vec![1, 2], 0), (vec![1, 2], vec![1], 1), (vec![1], vec![], 0)];
        assert_eq!(again, (apart, [1, 2].into()));
    }

    #[test]
    fn sessions_that_join_under_two_leaderships_are_told_apart() {
        let joined = |epoch, session| RosterNote::Joined(Epoch(epoch), SessionId(session));
        let batches = batches([joined(1, 1), joined(1, 2), joined(2, 3)].into_iter());
        let joined = batches.iter().map(|it| (it.epoch, it.joined.len())).collect::<Vec<_>>();
        assert_eq!(joined, [(Epoch(1), 2), (Epoch(2), 1)]);
    }
}
