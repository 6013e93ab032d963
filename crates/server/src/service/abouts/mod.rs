//! Abouts: what is said of running submissions, at hand without a look at the tables.
//!
//! A row that nobody has read lately costs more to find on disk than all else that a hand-out does. Plain submissions, of which
//! consumers are told nothing but the metadata, need none: their hand-outs say it, from the leader's memory. Of the others, what is
//! said is kept as consumers get it, in as many bytes as it has in a frame, of as many submissions as there is room for; the
//! Librarian brings it here before anybody asks. Of submissions that come back after their end it is read when somebody asks.
//!
//! Invariants
//! - What is at hand is the machine's word as far as it was told.
//! - Whoever asks after a change was told, or answered, gets what is said since: the first look after it waits for the
//!   machine, which brings the change into the tables before it lets go; all others read the tables and wait for nobody.
//! - What was read of a submission is not kept if it has changed or ended meanwhile.
//! - The Librarian leaves room for what others ask for.

mod about;
mod bring;

pub use about::{About, AboutFields};

use crate::limits::ABOUTS_AT_HAND_BYTES_MAX;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use windlass_core::batch::reserver::HandOut;
use windlass_core::batch::submissions::{Metadata, Submit};
use windlass_core::entry::Effect;
use windlass_core::ids::SubmissionId;
use windlass_core::tables::Table;
use windlass_order::Order;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Abouts {
    at_hand: Mutex<AtHand>,
    /// There may be something for the Librarian to bring.
    news: Notify,
}

#[derive(Debug)]
struct AtHand {
    abouts: Cache<SubmissionId, About, Bytes>,
    /// Counts leaderships: what was read under another one is not kept.
    leadership: u64,
    /// Counts changes of what is not at hand.
    changes: u64,
    /// How many of them there were when a look at the machine last ended: the tables have those.
    looked_after: u64,
    /// Reads of rows that are under way.
    readings: usize,
    /// What has changed or ended since the first of those reads began.
    outdated: BTreeSet<SubmissionId>,
    /// The Librarian has met every submission up to this one.
    met: Option<SubmissionId>,
    /// It had no room for the next.
    is_full: bool,
    /// There are places for what it brings.
    has_places: bool,
}

/// A read of rows that is under way.
struct Reading<'a> {
    abouts: &'a Abouts,
    leadership: u64,
    changes: u64,
    /// Whether the tables have every change that was told when it began.
    is_all_in_tables: bool,
}

impl Abouts {
    /// Looks at what is said of a submission that is being handed out.
    pub fn look<R>(&self, order: &Order, hand_out: &HandOut, look: impl FnOnce(&About) -> R) -> R {
        if let Some(metadata) = &hand_out.plain {
            return look(&About::of_plain(metadata));
        }
        let id = hand_out.submission;
        self.look_or_read(id, || in_tables(order, id), || order.read(|machine| machine.about(id)), true, look)
    }

    /// Looks at what is said of a submission that may be over.
    pub fn glance<R>(&self, order: &Order, id: SubmissionId, look: impl FnOnce(&About) -> R) -> R {
        self.look_or_read(
            id,
            || in_tables(order, id),
            || order.read(|machine| machine.about(id)),
            false,
            look,
        )
    }

    fn look_or_read<R>(
        &self,
        id: SubmissionId,
        in_tables: impl FnOnce() -> Option<Submit>,
        in_machine: impl FnOnce() -> Submit,
        is_kept: bool,
        look: impl FnOnce(&About) -> R,
    ) -> R {
        let reading = {
            let mut at_hand = self.lock();
            if let Some(about) = at_hand.abouts.get(&id) {
                return look(about);
            }
            at_hand.begin_reading(self)
        };
        let found = if reading.is_all_in_tables { in_tables() } else { None };
        let about = About::of(&found.unwrap_or_else(in_machine));
        let result = look(&about);
        reading.end(is_kept.then_some((id, about)));
        result
    }

    /// Of how many submissions it is at hand what is said.
    pub fn len(&self) -> usize {
        self.lock().abouts.len()
    }

    /// Whether it is of none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A leadership begins: what changed under another one was not told here.
    pub fn lead(&self) {
        let mut at_hand = self.lock();
        at_hand.leadership += 1;
        at_hand.changes += 1;
        at_hand.abouts.clear();
        at_hand.met = None;
        at_hand.is_full = false;
        self.news.notify_one();
    }

    /// Takes note of what was applied.
    pub fn tell(&self, effects: &[Effect]) {
        let mut at_hand = self.lock();
        let mut is_news = false;
        for effect in effects {
            match effect {
                Effect::Changed { submission, traits } => at_hand.change(*submission, &traits.metadata),
                Effect::Over { submission, .. } => is_news |= at_hand.let_go(*submission),
                Effect::Ready { traits, .. } => is_news |= !traits.is_plain,
                Effect::Weighed { .. }
                | Effect::Done { .. }
                | Effect::Failed { .. }
                | Effect::LaneSet { .. }
                | Effect::TaskPlaced { .. }
                | Effect::TaskDelayed { .. }
                | Effect::TaskUnplaced { .. }
                | Effect::TaskMoved { .. }
                | Effect::TaskGone { .. }
                | Effect::CommitDue { .. }
                | Effect::AreasDropped
                | Effect::CommitEnded { .. } => {}
            }
        }
        if is_news {
            self.news.notify_one();
        }
    }

    /// Waits until there may be something to bring.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AtHand {
    fn with_room(bytes: u64) -> AtHand {
        /// So many that went lately are remembered, to tell what is asked for again.
        const REMEMBERED: usize = 4_096;
        AtHand {
            abouts: Cache::with_weighter(REMEMBERED, bytes, Bytes),
            leadership: 0,
            changes: 0,
            looked_after: 0,
            readings: 0,
            outdated: BTreeSet::new(),
            met: None,
            is_full: false,
            has_places: false,
        }
    }

    /// So many bytes are filled before anybody asks.
    fn room_for_brought(&self) -> u64 {
        self.abouts.capacity() / 4
    }

    /// Makes places for so many, once, as far as there is room: a cache that grows step by step is copied as often.
    fn make_places_for(&mut self, count: usize) {
        if !self.has_places {
            let most = self.room_for_brought() / PLACE_BYTES as u64;
            self.abouts.reserve(count.min(usize::try_from(most).unwrap_or(usize::MAX)));
            self.has_places = true;
        }
    }

    fn begin_reading<'a>(&mut self, abouts: &'a Abouts) -> Reading<'a> {
        self.readings += 1;
        let is_all_in_tables = self.looked_after == self.changes;
        Reading { abouts, leadership: self.leadership, changes: self.changes, is_all_in_tables }
    }

    fn change(&mut self, id: SubmissionId, metadata: &Metadata) {
        self.outdate(id);
        match self.abouts.peek(&id).map(|about| about.with_metadata(metadata)) {
            Some(about) => self.abouts.insert(id, about),
            None => self.changes += 1,
        }
    }

    /// Lets go what is said of a submission that is over; true if the Librarian can go on since there is room now.
    fn let_go(&mut self, id: SubmissionId) -> bool {
        self.outdate(id);
        self.abouts.remove(&id);
        // Not at once: each time it goes on costs it a look at the tables.
        let has_room = self.is_full && self.abouts.weight() < self.room_for_brought() / 8 * 7;
        self.is_full &= !has_room;
        has_room
    }

    fn outdate(&mut self, id: SubmissionId) {
        if self.readings > 0 {
            self.outdated.insert(id);
        }
    }
}

impl Reading<'_> {
    /// Keeps what was found, if it is to be kept and still holds.
    fn end(self, found: Option<(SubmissionId, About)>) {
        let mut at_hand = self.abouts.lock();
        if at_hand.leadership == self.leadership {
            at_hand.looked_after = at_hand.looked_after.max(self.changes);
            if let Some((id, about)) = found.filter(|(id, _)| !at_hand.outdated.contains(id)) {
                at_hand.abouts.insert(id, about);
            }
        }
    }

    /// Keeps what was brought and still holds; everything up to `last` is met.
    fn end_bringing(self, brought: Vec<(SubmissionId, About)>, last: SubmissionId) {
        /// Whoever applies or hands out may wait for the lock.
        const AT_ONCE: usize = 16;
        let mut brought = brought.into_iter();
        while brought.len() > 0 {
            let mut at_hand = self.abouts.lock();
            if at_hand.leadership != self.leadership {
                return;
            }
            for (id, about) in brought.by_ref().take(AT_ONCE) {
                if !at_hand.outdated.contains(&id) && at_hand.abouts.peek(&id).is_none() {
                    at_hand.abouts.insert(id, about);
                }
            }
        }
        let mut at_hand = self.abouts.lock();
        if at_hand.leadership == self.leadership {
            at_hand.looked_after = at_hand.looked_after.max(self.changes);
            at_hand.met = Some(last);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut at_hand = self.abouts.lock();
        at_hand.readings -= 1;
        if at_hand.readings == 0 {
            at_hand.outdated.clear();
        }
    }
}

fn in_tables(order: &Order, id: SubmissionId) -> Option<Submit> {
    let row = order.committed().get(Table::Abouts, &id.key())?;
    Some(Submit::from_row(id, &row))
}

impl Default for AtHand {
    fn default() -> AtHand {
        AtHand::with_room(ABOUTS_AT_HAND_BYTES_MAX)
    }
}

/// What a place in the cache takes.
const PLACE_BYTES: usize = 64;

/// Weighs what is kept by the memory that it takes.
#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<SubmissionId, About> for Bytes {
    fn weight(&self, _: &SubmissionId, about: &About) -> u64 {
        (PLACE_BYTES + about.encoded_fields().len() + about.branch().map_or(0, str::len)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::batch::submissions::{ChunkCounts, SubmissionState, Traits};

    fn id(number: u64) -> SubmissionId {
        SubmissionId::from_u64(number).expect("a small number is an id")
    }

    fn said_as(n: i64) -> Submit {
        Submit { metadata: [("n".to_owned(), n.into())].into(), ..Submit::new(1) }
    }

    fn n(about: &About) -> String {
        about.fields().metadata["n"].to_string()
    }

    fn changed(number: u64, n: i64) -> Effect {
        Effect::Changed { submission: id(number), traits: Traits::of(&said_as(n)) }
    }

    fn over(number: u64) -> Effect {
        let counts = ChunkCounts { total: 1, done: 1, failed: 0 };
        Effect::Over { submission: id(number), state: SubmissionState::Completed, counts }
    }

    fn never_read<T>() -> T {
        panic!("it is at hand")
    }

    /// Reads what is at hand; a look elsewhere would be a mistake.
    fn get_at_hand(abouts: &Abouts, number: u64) -> String {
        abouts.look_or_read(id(number), never_read, never_read, true, n)
    }

    /// Reads what is at hand or in the tables; a look at the machine would be a mistake.
    fn get_in_tables(abouts: &Abouts, number: u64, in_tables: i64) -> String {
        abouts.look_or_read(id(number), || Some(said_as(in_tables)), never_read, true, n)
    }

    /// Reads what is at hand or in the machine; the tables may be behind.
    fn get_in_machine(abouts: &Abouts, number: u64, in_machine: i64) -> String {
        abouts.look_or_read(id(number), never_read, || said_as(in_machine), true, n)
    }

    #[test]
    fn what_was_read_stays_at_hand_and_follows_what_is_told() {
        let abouts = Abouts::default();
        for number in [1, 2] {
            assert_eq!(get_in_tables(&abouts, number, 1), "1");
        }
        abouts.tell(&[changed(1, 2), over(2)]);
        assert_eq!(get_at_hand(&abouts, 1), "2");
        assert_eq!(abouts.len(), 1, "of what is over nothing is kept");
        abouts.lead();
        assert!(abouts.is_empty(), "what changed under another leadership was not told");
        assert_eq!(get_in_machine(&abouts, 1, 3), "3");
    }

    #[test]
    fn after_a_change_the_first_look_waits_for_the_machine_and_the_others_do_not() {
        let abouts = Abouts::default();
        abouts.tell(&[changed(1, 9)]);
        assert_eq!(get_in_machine(&abouts, 2, 2), "2", "the tables may lack a change that was told");
        assert_eq!(get_in_tables(&abouts, 1, 3), "3", "the machine let go: the tables have it");
    }

    #[test]
    fn a_submission_that_the_tables_lack_is_looked_for_in_the_machine() {
        let abouts = Abouts::default();
        assert_eq!(abouts.look_or_read(id(1), || None, || said_as(4), true, n), "4");
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let abouts = Abouts::default();
        let change_meanwhile = || {
            abouts.tell(&[changed(1, 2)]);
            Some(said_as(1))
        };
        let read_before = abouts.look_or_read(id(1), change_meanwhile, never_read, true, n);
        assert_eq!(read_before, "1", "it was asked before the change");
        assert_eq!(get_in_machine(&abouts, 1, 2), "2");
        assert_eq!(get_at_hand(&abouts, 1), "2");
    }

    #[test]
    fn a_glance_and_a_read_that_fails_leave_nothing_behind() {
        let abouts = Abouts::default();
        assert_eq!(abouts.look_or_read(id(1), || Some(said_as(1)), never_read, false, n), "1");
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            abouts.look_or_read(id(1), || std::panic::resume_unwind(Box::new("no disk")), never_read, true, n)
        }));
        assert!(failed.is_err());
        abouts.tell(&[changed(1, 2)]);
        let at_hand = abouts.lock();
        assert_eq!((at_hand.abouts.len(), at_hand.readings, at_hand.outdated.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_brought_is_at_hand_but_for_what_changed_or_ended_meanwhile() {
        let abouts = Abouts::default();
        assert_eq!(get_in_tables(&abouts, 1, 7), "7");
        let reading = abouts.lock().begin_reading(&abouts);
        abouts.tell(&[changed(2, 5), over(3)]);
        let brought = (1..=40).map(|number| (id(number), About::of(&said_as(0)))).collect();
        reading.end_bringing(brought, id(40));
        assert_eq!(abouts.lock().met, Some(id(40)));
        assert_eq!(abouts.len(), 38, "all but two");
        assert_eq!(get_at_hand(&abouts, 1), "7", "what is there stays");
        assert_eq!(get_at_hand(&abouts, 4), "0");
        assert_eq!(get_in_machine(&abouts, 2, 5), "5");
        assert!(abouts.lock().outdated.is_empty(), "nobody reads any more");

        let reading = abouts.lock().begin_reading(&abouts);
        abouts.lead();
        reading.end_bringing(vec![(id(1), About::of(&said_as(0)))], id(1));
        assert_eq!(abouts.lock().met, None, "it was read under another leadership");
        assert!(abouts.is_empty());
    }

    #[test]
    fn the_librarian_goes_on_when_enough_has_ended() {
        let abouts = Abouts { at_hand: Mutex::new(AtHand::with_room(100 * 72)), news: Notify::new() };
        let brought = (1..=90).map(|number| (id(number), About::of(&said_as(0)))).collect();
        let reading = abouts.lock().begin_reading(&abouts);
        reading.end_bringing(brought, id(90));
        {
            let mut at_hand = abouts.lock();
            at_hand.is_full = at_hand.abouts.weight() >= at_hand.room_for_brought();
            assert!(at_hand.is_full);
        }
        let goes_on = (1..=90).position(|number| abouts.lock().let_go(id(number)));
        assert!(goes_on.is_some_and(|ended| ended > 5), "not at once, but long before everything has ended");
        assert!(!abouts.lock().is_full);
    }
}
