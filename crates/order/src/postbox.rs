//! Postboxes: answers for callers on one thread are brought there together, and wake it once.
//!
//! Waking a task of another thread is a call of the system, which a group of many commands would make for each of them, on the
//! thread that everybody waits for. A thread with a postbox is woken once for a group, and hands the answers out itself.
//!
//! Answers may hold a place: whoever makes the groups then knows when those who got them have had their turn, and may have more
//! to propose.
//!
//! Invariants
//! - Every caller is answered at most once; outcomes for one postbox in the order of the log. A fault goes by itself, and may overtake
//!   them.
//! - A caller whose thread ends gets no answer, as it would get none without a postbox.
//! - A place is free when every caller that holds it was answered and has run since, or will never be.

use crate::fault::OrderFault;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use windlass_core::entry::Outcome;

/// The outcomes of commands that were proposed together, in their order.
pub(crate) type Outcomes = Result<Vec<Outcome>, OrderFault>;

/// What the answers of a group hold together until those who get them have had their turn.
pub(crate) type Answering = Arc<OwnedSemaphorePermit>;

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

/// Gives this thread a postbox. The future hands out what comes into it, for ever, and must run on this thread.
pub fn open_postbox() -> impl Future<Output = ()> + Send + use<> {
    let postbox = Arc::new(Postbox::default());
    HERE.set(Some(Arc::clone(&postbox)));
    async move {
        loop {
            postbox.bell.notified().await;
            let answering = postbox.hand_out();
            // Whoever was woken runs before this goes on.
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

    /// The same caller, which holds a place until it has its answer.
    pub(crate) fn holding(self, answering: Option<Answering>) -> Caller {
        Caller { answering, ..self }
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

    /// Gives everybody the answer; what their places are.
    fn hand_out(&self) -> Vec<Option<Answering>> {
        let letters = std::mem::take(&mut *self.letters());
        let given = letters.into_iter().map(|Letter { to, outcomes, answering }| {
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
    use tokio::sync::Semaphore;

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
    async fn a_place_is_free_when_all_who_hold_it_have_had_their_answers_and_have_run() {
        let place = Arc::new(Semaphore::new(1));
        let answering = Arc::new(Arc::clone(&place).try_acquire_owned().unwrap());
        let (elsewhere, _answer) = Caller::here();
        let handing_out = tokio::spawn(open_postbox());
        let mut post = Post::default();
        post.answer(elsewhere.holding(Some(Arc::clone(&answering))), Ok(Vec::new()));
        assert_eq!(Arc::strong_count(&answering), 1, "whoever is answered at once holds nothing");
        let woken: Vec<_> = (0..3)
            .map(|_| {
                let (caller, answer) = Caller::here();
                post.answer(caller.holding(Some(Arc::clone(&answering))), Ok(Vec::new()));
                let place = Arc::clone(&place);
                tokio::spawn(async move { (answer.await.is_ok(), place.available_permits()) })
            })
            .collect();
        drop((post, answering));
        for it in woken {
            assert_eq!(it.await.unwrap(), (true, 0), "answered, and the place is still held");
        }
        drop(place.acquire().await.unwrap());
        handing_out.abort();
        HERE.take();
    }
}
