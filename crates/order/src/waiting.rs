//! Waiting: which caller waits for which continuation token.
//!
//! Invariants
//! - A token is given out once in the life of a process, and the sender id is drawn anew for each.
//! - A caller is answered at most once, when all of its commands have their outcomes.
//! - An own token that nobody waits for is counted, and said so in the log of the process, but not for every entry.

use crate::fault::OrderFault;
use crate::limits::WARNING_EVERY;
use crate::postbox::{Caller, Post};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use windlass_core::entry::Outcome;
use windlass_core::ids::{ContinuationToken, SenderId};

/// The callers that wait on this member.
pub(crate) struct Waiting {
    sender: SenderId,
    next: AtomicU64,
    callers: Mutex<Callers>,
    unknown: AtomicU64,
    warned: Mutex<Option<Instant>>,
}

/// Each caller that waits, by the token of its first command.
#[derive(Default)]
struct Callers {
    by_first: BTreeMap<u64, Waiter>,
    commands: usize,
}

struct Waiter {
    caller: Caller,
    outcomes: Vec<Outcome>,
    commands: usize,
}

impl Callers {
    /// Takes in the outcome of one command, and answers its caller if that was the last; false if nobody waits for it.
    fn take(&mut self, token: ContinuationToken, outcome: Outcome, post: &mut Post) -> bool {
        let Some((first, waiter)) = self.by_first.range_mut(..=token.0).next_back() else { return false };
        // A group is applied as a whole, in its order.
        let first = *first;
        if first + waiter.outcomes.len() as u64 != token.0 {
            return false;
        }
        self.commands -= 1;
        waiter.outcomes.push(outcome);
        if waiter.outcomes.len() == waiter.commands
            && let Some(Waiter { caller, outcomes, .. }) = self.by_first.remove(&first)
        {
            post.answer(caller, Ok(outcomes));
        }
        true
    }

    fn fail(&mut self, range: std::ops::Range<u64>, fault: &OrderFault) {
        while let Some((first, _)) = self.by_first.range(range.clone()).next() {
            let first = *first;
            if let Some(Waiter { caller, outcomes, commands }) = self.by_first.remove(&first) {
                self.commands -= commands - outcomes.len();
                caller.answer(Err(fault.clone()));
            }
        }
    }
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

    /// How many commands are waited for.
    pub(crate) fn len(&self) -> usize {
        self.lock().commands
    }

    /// Takes the callers of one group, each with its number of commands, and gives those tokens in order, without gaps, from the
    /// one returned.
    pub(crate) fn register(&self, callers: Vec<(usize, Caller)>) -> ContinuationToken {
        let all: usize = callers.iter().map(|(commands, _)| commands).sum();
        let first = self.next.fetch_add(all as u64, Ordering::Relaxed);
        let mut waiting = self.lock();
        waiting.commands += all;
        let mut next = first;
        for (commands, caller) in callers {
            waiting
                .by_first
                .insert(next, Waiter { caller, outcomes: Vec::with_capacity(commands), commands });
            next += commands as u64;
        }
        ContinuationToken(first)
    }

    /// Answers the callers of own tokens.
    pub(crate) fn answer(&self, outcomes: Vec<(ContinuationToken, Outcome)>) {
        // Before the lock, so that it arrives after the lock is let go.
        let mut post = Post::default();
        let mut waiting = self.lock();
        for (token, outcome) in outcomes {
            if !waiting.take(token, outcome, &mut post) {
                // Before whoever comes after it is answered, and may ask.
                self.count_unknown();
            }
        }
    }

    /// Tells the callers of `count` commands from `first` on that they will not be answered.
    pub(crate) fn fail(&self, first: ContinuationToken, count: usize, fault: &OrderFault) {
        self.lock().fail(first.0..first.0 + count as u64, fault);
    }

    /// Tells every caller that its commands will not be answered.
    pub(crate) fn fail_all(&self, fault: &OrderFault) {
        self.lock().fail(0..u64::MAX, fault);
    }

    fn count_unknown(&self) {
        let all = self.unknown.fetch_add(1, Ordering::Relaxed) + 1;
        let mut warned = self.warned.lock().expect("nothing panics while it notes a time");
        if warned.is_none_or(|warned| warned.elapsed() >= WARNING_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(
                all,
                "continuation tokens of this member came for which nobody waits; expected only after it lost its leadership"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().expect("nothing panics while it holds the callers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_caller_gets_the_outcomes_of_its_own_tokens_when_it_has_all_of_them() {
        let waiting = Waiting::new(SenderId(7));
        let (one, one_answer) = Caller::here();
        let (two, mut two_answer) = Caller::here();
        let ContinuationToken(first) = waiting.register(vec![(1, one), (2, two)]);
        let token = |nth| ContinuationToken(first + nth);
        waiting.answer(vec![(token(0), Outcome::Cancelled), (token(1), Outcome::Retried { chunks: 3 })]);
        assert_eq!(one_answer.await.unwrap(), Ok(vec![Outcome::Cancelled]));
        assert!(two_answer.try_recv().is_err(), "its second command has no outcome yet");
        assert_eq!((waiting.unknown(), waiting.len()), (0, 1));
        waiting.answer(vec![(token(2), Outcome::Noted)]);
        assert_eq!(two_answer.await.unwrap(), Ok(vec![Outcome::Retried { chunks: 3 }, Outcome::Noted]));
        assert_eq!((waiting.unknown(), waiting.len()), (0, 0));
    }

    #[test]
    fn a_token_nobody_waits_for_is_counted_and_one_whose_caller_gave_up_is_not() {
        let waiting = Waiting::new(SenderId(7));
        let (caller, answer) = Caller::here();
        let token = waiting.register(vec![(1, caller)]);
        drop(answer);
        waiting.answer(vec![(token, Outcome::Cancelled)]);
        assert_eq!(waiting.unknown(), 0);
        waiting.answer(vec![(token, Outcome::Cancelled), (ContinuationToken(99), Outcome::Cancelled)]);
        assert_eq!(waiting.unknown(), 2);
    }

    #[tokio::test]
    async fn a_failed_group_fails_its_own_callers_only() {
        let waiting = Waiting::new(SenderId(7));
        let (one, one_answer) = Caller::here();
        let (two, two_answer) = Caller::here();
        let first = waiting.register(vec![(3, one)]);
        waiting.register(vec![(1, two)]);
        waiting.fail(first, 3, &OrderFault::NotLeader);
        assert_eq!(one_answer.await.unwrap(), Err(OrderFault::NotLeader));
        assert_eq!(waiting.len(), 1);
        waiting.fail_all(&OrderFault::Closed);
        assert_eq!(two_answer.await.unwrap(), Err(OrderFault::Closed));
        assert_eq!(waiting.len(), 0);
    }
}
