//! Waiting: which caller waits for which continuation token.
//!
//! Invariants
//! - A token is given out once in the life of a process, and the sender id is drawn anew for each.
//! - A caller is answered at most once.
//! - An own token that nobody waits for is counted, and said so in the log of the process, but not for every entry.

use crate::fault::OrderFault;
use crate::limits::WARNING_EVERY;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::oneshot;
use windlass_core::entry::Outcome;
use windlass_core::ids::{ContinuationToken, SenderId};

/// Whom to tell the outcome.
pub(crate) type Caller = oneshot::Sender<Result<Outcome, OrderFault>>;

/// The callers that wait on this member.
pub(crate) struct Waiting {
    sender: SenderId,
    next: AtomicU64,
    callers: Mutex<HashMap<ContinuationToken, Caller>>,
    unknown: AtomicU64,
    warned: Mutex<Option<Instant>>,
}

impl Waiting {
    pub(crate) fn new(sender: SenderId) -> Waiting {
        Waiting {
            sender,
            next: AtomicU64::new(1),
            callers: Mutex::default(),
            unknown: AtomicU64::new(0),
            warned: Mutex::default(),
        }
    }

    /// The member's own sender id.
    pub(crate) const fn sender(&self) -> SenderId {
        self.sender
    }

    /// How many own tokens came in the log for which nobody waited.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// How many callers wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes the callers of one group and gives them tokens in order, without gaps, from the one returned.
    pub(crate) fn register(&self, callers: Vec<Caller>) -> ContinuationToken {
        let first = self.next.fetch_add(callers.len() as u64, Ordering::Relaxed);
        self.lock().extend((first..).map(ContinuationToken).zip(callers));
        ContinuationToken(first)
    }

    /// Answers the callers of own tokens.
    pub(crate) fn answer(&self, outcomes: Vec<(ContinuationToken, Outcome)>) {
        let mut waiting = self.lock();
        let unknown = outcomes.iter().filter(|(token, _)| !waiting.contains_key(token)).count();
        if unknown > 0 {
            self.count_unknown(unknown as u64);
        }
        for (token, outcome) in outcomes {
            if let Some(caller) = waiting.remove(&token) {
                // A caller that has given up meanwhile needs no answer.
                drop(caller.send(Ok(outcome)));
            }
        }
    }

    /// Tells `count` callers from `first` on that their commands will not be answered.
    pub(crate) fn fail(&self, first: ContinuationToken, count: usize, fault: &OrderFault) {
        let mut waiting = self.lock();
        for token in (first.0..).take(count).map(ContinuationToken) {
            if let Some(caller) = waiting.remove(&token) {
                drop(caller.send(Err(fault.clone())));
            }
        }
    }

    /// Tells every caller that its command will not be answered.
    pub(crate) fn fail_all(&self, fault: &OrderFault) {
        let callers = std::mem::take(&mut *self.lock());
        for caller in callers.into_values() {
            drop(caller.send(Err(fault.clone())));
        }
    }

    fn count_unknown(&self, count: u64) {
        let all = self.unknown.fetch_add(count, Ordering::Relaxed) + count;
        let mut warned = self.warned.lock().expect("nothing panics while it notes a time");
        if warned.is_none_or(|warned| warned.elapsed() >= WARNING_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(
                count,
                all,
                "continuation tokens of this member came for which nobody waits; expected only after it lost its leadership"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContinuationToken, Caller>> {
        self.callers.lock().expect("nothing panics while it holds the callers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_caller_gets_the_outcome_of_its_own_token() {
        let waiting = Waiting::new(SenderId(7));
        let (one, one_answer) = oneshot::channel();
        let (two, two_answer) = oneshot::channel();
        let first = waiting.register(vec![one, two]);
        let second = ContinuationToken(first.0 + 1);
        waiting.answer(vec![(second, Outcome::Cancelled), (first, Outcome::Retried { chunks: 3 })]);
        assert_eq!(one_answer.await.unwrap(), Ok(Outcome::Retried { chunks: 3 }));
        assert_eq!(two_answer.await.unwrap(), Ok(Outcome::Cancelled));
        assert_eq!((waiting.unknown(), waiting.len()), (0, 0));
    }

    #[test]
    fn a_token_nobody_waits_for_is_counted_and_one_whose_caller_gave_up_is_not() {
        let waiting = Waiting::new(SenderId(7));
        let (caller, answer) = oneshot::channel();
        let token = waiting.register(vec![caller]);
        drop(answer);
        waiting.answer(vec![(token, Outcome::Cancelled)]);
        assert_eq!(waiting.unknown(), 0);
        waiting.answer(vec![(token, Outcome::Cancelled), (ContinuationToken(99), Outcome::Cancelled)]);
        assert_eq!(waiting.unknown(), 2);
    }

    #[tokio::test]
    async fn a_failed_group_fails_its_own_callers_only() {
        let waiting = Waiting::new(SenderId(7));
        let (one, one_answer) = oneshot::channel();
        let (two, two_answer) = oneshot::channel();
        let first = waiting.register(vec![one]);
        waiting.register(vec![two]);
        waiting.fail(first, 1, &OrderFault::NotLeader);
        assert_eq!(one_answer.await.unwrap(), Err(OrderFault::NotLeader));
        waiting.fail_all(&OrderFault::Closed);
        assert_eq!(two_answer.await.unwrap(), Err(OrderFault::Closed));
    }
}
