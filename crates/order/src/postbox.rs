//! Postboxes: answers for callers on one thread are brought there together, and wake it once.
//!
//! Waking a task of another thread is a call of the system, which a group of many commands would make for each of them, on the
//! thread that everybody waits for. A thread with a postbox is woken once for a group, and hands the answers out itself.
//!
//! The answers of a group of many hold something together until those who get them have had their turn: then whoever makes the
//! groups knows that they may have more to propose.
//!
//! Invariants
//! - Every caller is answered at most once; outcomes for one postbox in the order of the log. A fault goes by itself, and may overtake
//!   them.
//! - A caller whose thread ends gets no answer, as it would get none without a postbox.
//! - What callers hold they let go when they are answered, or never will be; if by a postbox, when they have run since. Nothing but
//!   speed depends on it.

use crate::fault::OrderFault;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use windlass_core::entry::Outcome;

/// The outcomes of commands that were proposed together, in their order.
pub(crate) type Outcomes = Result<Vec<Outcome>, OrderFault>;

/// What the answers of a group hold together until those who get them have had their turn.
pub(crate) type Answering = Arc<oneshot::Sender<Infallible>>;

thread_local! {
    /// This thread's own, if it has one.
    static HERE: RefCell<Option<Arc<Postbox>>> = const { RefCell::new(None) };
}

/// See the file's head.
#[derive(Debug, Default)]
struct Postbox {
    letters: Mutex<Vec<Letter>>,
    bell: Notify,
}

#[derive(Debug)]
struct Letter {
    to: oneshot::Sender<Outcomes>,
    outcomes: Outcomes,
    answering: Option<Answering>,
}

/// Whom to tell the outcomes of its commands.
#[derive(Debug)]
pub(crate) struct Caller {
    to: oneshot::Sender<Outcomes>,
    postbox: Option<Arc<Postbox>>,
    answering: Option<Answering>,
}

/// Answers on their way; they arrive when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// Those that have got letters: few, since a thread has one.
    postboxes: Vec<Arc<Postbox>>,
}

/// Gives this thread a postbox. The future hands out what comes into it, for ever, and must run on this thread, in a runtime that has
/// no other.
pub fn open_postbox() -> impl Future<Output = ()> + Send + use<> {
    let postbox = Arc::new(Postbox::default());
    HERE.set(Some(Arc::clone(&postbox)));
    async move {
        loop {
            postbox.bell.notified().await;
            let answering = postbox.hand_out();
            // Whoever was woken is in the line before this. What comes meanwhile is then handed out together.
            tokio::task::yield_now().await;
            drop(answering);
        }
    }
}

impl Caller {
    /// A caller on this thread, and what it gets its answer from.
    pub(crate) fn here() -> (Caller, oneshot::Receiver<Outcomes>) {
        let (to, answer) = oneshot::channel();
        (Caller { to, postbox: HERE.with_borrow(Option::clone), answering: None }, answer)
    }

    /// Has it hold this until it is answered.
    pub(crate) fn hold(&mut self, answering: Answering) {
        self.answering = Some(answering);
    }

    /// Answers it by itself.
    pub(crate) fn answer(self, outcomes: Outcomes) {
        give(self.to, outcomes);
    }
}

impl Post {
    /// Answers a caller: together with others if its thread has a postbox, and at once if not.
    pub(crate) fn answer(&mut self, Caller { to, postbox, answering }: Caller, outcomes: Outcomes) {
        let Some(postbox) = postbox else { return give(to, outcomes) };
        postbox.letters().push(Letter { to, outcomes, answering });
        if !self.postboxes.iter().any(|it| Arc::ptr_eq(it, &postbox)) {
            self.postboxes.push(postbox);
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.postboxes.iter().for_each(|postbox| postbox.bell.notify_one());
    }
}

impl Postbox {
    fn letters(&self) -> MutexGuard<'_, Vec<Letter>> {
        self.letters.lock().expect("nothing panics while it holds the letters")
    }

    /// Gives everybody the answer, and says what they held.
    fn hand_out(&self) -> Vec<Answering> {
        let letters = std::mem::take(&mut *self.letters());
        let given = letters.into_iter().filter_map(|Letter { to, outcomes, answering }| {
            give(to, outcomes);
            answering
        });
        given.collect()
    }
}

fn give(to: oneshot::Sender<Outcomes>, outcomes: Outcomes) {
    // A caller that has given up meanwhile needs no answer.
    drop(to.send(outcomes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::oneshot::error::TryRecvError;

    #[tokio::test]
    async fn answers_for_a_thread_with_a_postbox_come_together_and_others_at_once() {
        let (elsewhere, mut answer_elsewhere) = Caller::here();
        let handing_out = open_postbox();
        let (one, mut answer_one) = Caller::here();
        let (two, answer_two) = Caller::here();
        let (given_up, answer_given_up) = Caller::here();
        drop(answer_given_up);

        let mut post = Post::default();
        for (caller, chunks) in [(one, 1), (given_up, 2), (two, 3), (elsewhere, 4)] {
            post.answer(caller, Ok(vec![Outcome::Retried { chunks }]));
        }
        assert_eq!(post.postboxes.len(), 1, "it is told once");
        drop(post);
        assert_eq!(answer_elsewhere.try_recv(), Ok(Ok(vec![Outcome::Retried { chunks: 4 }])));
        assert!(answer_one.try_recv().is_err(), "nobody has handed it out");

        let handing_out = tokio::spawn(handing_out);
        assert_eq!(answer_two.await, Ok(Ok(vec![Outcome::Retried { chunks: 3 }])));
        assert_eq!(answer_one.try_recv(), Ok(Ok(vec![Outcome::Retried { chunks: 1 }])), "in their order");
        let (later, answer) = Caller::here();
        Post::default().answer(later, Err(OrderFault::Closed));
        assert_eq!(answer.await, Ok(Err(OrderFault::Closed)), "again and again");
        handing_out.abort();
        HERE.take();
    }

    #[tokio::test]
    async fn what_callers_hold_is_let_go_when_all_have_had_their_answers_and_have_run() {
        let (answering, mut answered) = oneshot::channel::<Infallible>();
        let answering = Arc::new(answering);
        let mut post = Post::default();
        let ask = |post: &mut Post| {
            let (mut caller, answer) = Caller::here();
            caller.hold(Arc::clone(&answering));
            post.answer(caller, Ok(Vec::new()));
            answer
        };
        drop(ask(&mut post));
        assert_eq!(Arc::strong_count(&answering), 1, "whoever is answered at once holds nothing");

        let handing_out = tokio::spawn(open_postbox());
        let runs = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let (answer, runs) = (ask(&mut post), Arc::clone(&runs));
            tokio::spawn(async move {
                assert_eq!(answer.await, Ok(Ok(Vec::new())));
                runs.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop((post, answering));
        assert!(answered.try_recv().is_err_and(|error| error == TryRecvError::Empty), "three hold it");
        assert!(answered.await.is_err());
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        handing_out.abort();
        HERE.take();
    }
}
