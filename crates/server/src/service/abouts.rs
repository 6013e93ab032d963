//! Abouts: what is said of running submissions, at hand without a look at the tables.
//!
//! A row that nobody has read lately costs more to find on disk than all else that a hand-out does. So what is said is kept as
//! consumers get it, in as many bytes as it has in a frame, of as many submissions as there is room for; the Librarian
//! brings it here before anybody asks.
//!
//! Invariants
//! - What is at hand was the machine's word when it was put there, and nothing that was forgotten since.
//! - Whoever asks after a change was told, or answered, gets what is said since: the first look after it waits for the
//!   machine, which brings the change into the tables before it lets go; all others read the tables and wait for nobody.
//! - The Librarian leaves room for what others ask for.

use crate::limits::{ABOUTS_AT_HAND_BYTES_MAX, ABOUTS_BROUGHT_BYTES_MAX};
use minicbor::bytes::ByteVec;
use minicbor::{Decoder, Encoder};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use windlass_core::batch::submissions::{Input, Metadata, Submit};
use windlass_core::entry::Effect;
use windlass_core::ids::SubmissionId;
use windlass_core::tables::Table;
use windlass_order::Order;
use windlass_store::tables::CommittedRows;
use windlass_store::turns;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Abouts {
    at_hand: Mutex<AtHand>,
    /// There are submissions that the Librarian has not met.
    news: Notify,
}

#[derive(Debug)]
struct AtHand {
    abouts: Cache<SubmissionId, About, Bytes>,
    /// Counts what was forgotten: what was read before something was forgotten is not kept after it.
    forgotten: u64,
    /// What was forgotten when a look at the machine last ended: the tables have every change up to there.
    looked_after: u64,
    /// The Librarian has met every submission up to this one.
    met: Option<SubmissionId>,
}

/// What is said of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The fields that stand before the chunks in a frame of work, one after the other.
    fields: Box<[u8]>,
    /// The branch that outputs go to.
    branch: Option<Box<str>>,
}

/// The fields of an about.
#[derive(Debug, Clone, PartialEq)]
pub struct AboutFields {
    /// Chunk i's bytes are the object `prefix/i`.
    pub prefix: Option<String>,
    /// The bytes of the only chunk.
    pub payload: Option<ByteVec>,
    /// What the producer sent along.
    pub opaque: Option<ByteVec>,
    /// The submission's metadata.
    pub metadata: Metadata,
}

impl About {
    /// Takes from what its producer said what consumers get.
    pub fn of(said: &Submit) -> About {
        let (prefix, payload) = match &said.input {
            Input::Nowhere => (None, None),
            Input::Prefix(prefix) => (Some(prefix), None),
            Input::Inline(payload) => (None, Some(payload)),
        };
        let opaque = (!said.opaque.is_empty()).then_some(&said.opaque);
        let mut fields = Encoder::new(Vec::with_capacity(128));
        let mut encode = || -> Result<(), minicbor::encode::Error<Infallible>> {
            fields.encode(prefix)?.encode(payload)?.encode(opaque)?.encode(&said.metadata)?;
            Ok(())
        };
        encode().expect("encoding into memory does not fail");
        let branch = said.output.as_ref().map(|rule| rule.branch.as_str().into());
        About { fields: fields.into_writer().into(), branch }
    }

    /// Fields 1 to 4 of a frame's [`WorkOf`](windlass_api::frames::WorkOf), as they stand there.
    pub fn encoded_fields(&self) -> &[u8] {
        &self.fields
    }

    /// The branch that outputs go to.
    pub fn branch(&self) -> Option<&str> {
        self.branch.as_deref()
    }

    /// What the fields say.
    pub fn fields(&self) -> AboutFields {
        let mut fields = Decoder::new(&self.fields);
        let mut decode = || -> Result<AboutFields, minicbor::decode::Error> {
            Ok(AboutFields {
                prefix: fields.decode()?,
                payload: fields.decode()?,
                opaque: fields.decode()?,
                metadata: fields.decode()?,
            })
        };
        decode().expect("the fields were encoded here")
    }

    /// About how many bytes it takes in a frame of work or an answer.
    pub fn bytes(&self) -> usize {
        self.fields.len() + self.branch.as_ref().map_or(0, |branch| branch.len()) + 64
    }
}

impl Abouts {
    /// Looks at what is said of a submission.
    pub fn look<R>(&self, order: &Order, id: SubmissionId, look: impl FnOnce(&About) -> R) -> R {
        let in_tables = || {
            let row = order.committed().get(Table::Abouts, &id.key())?;
            Some(Submit::from_row(id, &row))
        };
        self.look_or_read(id, in_tables, || order.read(|machine| machine.about(id)), look)
    }

    fn look_or_read<R>(
        &self,
        id: SubmissionId,
        in_tables: impl FnOnce() -> Option<Submit>,
        in_machine: impl FnOnce() -> Submit,
        look: impl FnOnce(&About) -> R,
    ) -> R {
        let (forgotten, looked_after) = {
            let at_hand = self.lock();
            if let Some(about) = at_hand.abouts.get(&id) {
                return look(about);
            }
            (at_hand.forgotten, at_hand.looked_after)
        };
        let found = if looked_after == forgotten { in_tables() } else { None };
        let about = About::of(&found.unwrap_or_else(in_machine));
        let result = look(&about);
        let mut at_hand = self.lock();
        at_hand.looked_after = at_hand.looked_after.max(forgotten);
        // A change may have come between the look at the machine and now, and been told before this could be kept.
        if at_hand.forgotten == forgotten {
            at_hand.abouts.insert(id, about);
        }
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

    /// What is said of a submission has changed: the machine is asked again.
    pub fn forget(&self, id: SubmissionId) {
        let mut at_hand = self.lock();
        at_hand.forgotten += 1;
        at_hand.abouts.remove(&id);
    }

    /// A leadership begins: what changed under another one was not told here.
    pub fn forget_all(&self) {
        let mut at_hand = self.lock();
        at_hand.forgotten += 1;
        at_hand.abouts.clear();
        at_hand.met = None;
        self.news.notify_one();
    }

    /// Takes note of what was applied.
    pub fn tell(&self, effects: &[Effect]) {
        let mut is_news = false;
        for effect in effects {
            match effect {
                Effect::Changed { submission, .. } => self.forget(*submission),
                // Nobody will ask for it again.
                Effect::Over { submission, .. } => drop(self.lock().abouts.remove(submission)),
                Effect::Ready { .. } => is_news = true,
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

    /// Brings what is said of the next running submissions, up to so many; false if there are no more, or no room.
    pub(crate) fn bring_some(&self, order: &Order, count: usize) -> bool {
        let (forgotten, met) = {
            let at_hand = self.lock();
            if at_hand.abouts.weight() >= ABOUTS_BROUGHT_BYTES_MAX {
                return false;
            }
            (at_hand.forgotten, at_hand.met)
        };
        // Whoever applies tells what has changed before it is in the tables, and lets go of the machine after that.
        order.read(|_| ());
        let ids = running_after(order.committed(), met, count);
        let Some(last) = ids.last().copied() else { return false };
        let found = abouts_of(order.committed(), &ids);
        self.keep(forgotten, last, found);
        true
    }

    /// Keeps what was read after so much was forgotten, unless more was since: then it is read again.
    fn keep(&self, forgotten: u64, last: SubmissionId, found: Vec<(SubmissionId, About)>) {
        let mut at_hand = self.lock();
        if at_hand.forgotten != forgotten {
            return;
        }
        at_hand.looked_after = forgotten;
        at_hand.met = Some(last);
        for (id, about) in found {
            if at_hand.abouts.peek(&id).is_none() {
                at_hand.abouts.insert(id, about);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next running submissions: those that have a row of traits.
fn running_after(rows: &CommittedRows, met: Option<SubmissionId>, count: usize) -> BTreeSet<SubmissionId> {
    let met = met.map(SubmissionId::key);
    let from = met.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
    let rows = rows.scan(Table::Traits, (from, Bound::Unbounded)).take(count);
    rows.map(|(key, _)| SubmissionId::from_key(&key).expect("a row of traits has an id as key")).collect()
}

/// What is said of these, as far as that is found on one short walk: not among very many others that are over.
fn abouts_of(rows: &CommittedRows, ids: &BTreeSet<SubmissionId>) -> Vec<(SubmissionId, About)> {
    /// Rows that are passed by for each that is wanted.
    const PASSED_BY_MAX: usize = 4;
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Vec::new() };
    let (first, last) = (first.key(), last.key());
    let rows = rows.scan(Table::Abouts, (Bound::Included(&first), Bound::Included(&last)));
    let rows = rows.take(PASSED_BY_MAX * ids.len()).inspect(|_| turns::give_way());
    let found = rows.filter_map(|(key, row)| {
        let id = SubmissionId::from_key(&key).filter(|id| ids.contains(id))?;
        Some((id, About::of(&Submit::from_row(id, &row))))
    });
    found.collect()
}

impl Default for AtHand {
    fn default() -> AtHand {
        /// The cache begins with places for so many, and makes more as it needs them.
        const AT_FIRST: usize = 4_096;
        let abouts = Cache::with_weighter(AT_FIRST, ABOUTS_AT_HAND_BYTES_MAX, Bytes);
        AtHand { abouts, forgotten: 0, looked_after: 0, met: None }
    }
}

/// Weighs what is kept by the memory that it takes.
#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<SubmissionId, About> for Bytes {
    fn weight(&self, _: &SubmissionId, about: &About) -> u64 {
        /// Its place in the cache.
        const PLACE_BYTES: usize = 64;
        let branch_bytes = about.branch().map_or(0, str::len);
        (PLACE_BYTES + about.fields.len() + branch_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> SubmissionId {
        SubmissionId::from_u64(number).expect("a small number is an id")
    }

    fn with_opaque(byte: u8) -> Submit {
        Submit { opaque: vec![byte].into(), ..Submit::new(1) }
    }

    fn said(about: &About) -> u8 {
        about.fields().opaque.expect("it has one")[0]
    }

    fn never_read<T>() -> T {
        panic!("it is at hand")
    }

    /// Reads what is at hand; a look elsewhere would be a mistake.
    fn get_at_hand(abouts: &Abouts, number: u64) -> u8 {
        abouts.look_or_read(id(number), never_read, never_read, said)
    }

    /// Reads what is at hand or in the tables; a look at the machine would be a mistake.
    fn get_unlooked(abouts: &Abouts, number: u64, in_tables: u8) -> u8 {
        abouts.look_or_read(id(number), || Some(with_opaque(in_tables)), never_read, said)
    }

    /// Reads what is at hand or in the machine; the tables may be behind.
    fn get_looked(abouts: &Abouts, number: u64, in_machine: u8) -> u8 {
        abouts.look_or_read(id(number), never_read, || with_opaque(in_machine), said)
    }

    #[test]
    fn what_is_forgotten_is_read_again_and_the_rest_stays_at_hand() {
        let abouts = Abouts::default();
        for number in [1, 2] {
            assert_eq!(get_unlooked(&abouts, number, 1), 1);
            assert_eq!(get_at_hand(&abouts, number), 1);
        }
        abouts.forget(id(1));
        assert_eq!(get_looked(&abouts, 1, 2), 2);
        assert_eq!(get_at_hand(&abouts, 2), 1);
        abouts.forget_all();
        assert_eq!(get_looked(&abouts, 2, 3), 3);
        assert_eq!(abouts.lock().abouts.len(), 1, "what was forgotten is not kept");
    }

    #[test]
    fn after_a_change_the_first_look_waits_for_the_machine_and_the_others_do_not() {
        let abouts = Abouts::default();
        abouts.forget(id(1));
        assert_eq!(get_looked(&abouts, 2, 2), 2, "the tables may lack a change that was told");
        assert_eq!(get_unlooked(&abouts, 1, 3), 3, "the machine let go: the tables have it");
    }

    #[test]
    fn a_submission_that_the_tables_lack_is_looked_for_in_the_machine() {
        let abouts = Abouts::default();
        assert_eq!(abouts.look_or_read(id(1), || None, || with_opaque(4), said), 4);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let abouts = Abouts::default();
        let change_meanwhile = || {
            let old = with_opaque(1);
            abouts.forget(id(1));
            Some(old)
        };
        let read_before = abouts.look_or_read(id(1), change_meanwhile, never_read, said);
        assert_eq!(read_before, 1, "it was asked before the change");
        assert_eq!(get_looked(&abouts, 1, 2), 2);
        assert_eq!(get_at_hand(&abouts, 1), 2);
    }

    #[test]
    fn what_is_brought_is_at_hand_unless_something_was_forgotten_meanwhile() {
        let abouts = Abouts::default();
        let brought =
            |byte| vec![(id(1), About::of(&with_opaque(byte))), (id(2), About::of(&with_opaque(byte)))];
        let forgotten = abouts.lock().forgotten;
        abouts.forget(id(1));
        abouts.keep(forgotten, id(2), brought(1));
        assert_eq!(abouts.lock().abouts.len(), 0);
        assert_eq!(abouts.lock().met, None, "they are read once more");
        assert_eq!(get_looked(&abouts, 1, 2), 2);
        abouts.keep(forgotten + 1, id(2), brought(3));
        assert_eq!(abouts.lock().met, Some(id(2)));
        assert_eq!([1, 2].map(|number| get_at_hand(&abouts, number)), [2, 3], "what is there stays");
        let counts = windlass_core::batch::submissions::ChunkCounts { total: 1, done: 1, failed: 0 };
        let state = windlass_core::batch::submissions::SubmissionState::Completed;
        abouts.tell(&[Effect::Over { submission: id(1), state, counts }]);
        assert_eq!(abouts.lock().abouts.len(), 1, "of what is over nothing is kept");
    }

    #[test]
    fn an_about_says_what_the_producer_said() {
        let metadata: Metadata = [("company".to_owned(), 7_i64.into())].into();
        let submit =
            Submit { input: Input::Prefix("in/7".into()), metadata: metadata.clone(), ..Submit::new(3) };
        let about = About::of(&submit);
        let fields = AboutFields { prefix: Some("in/7".into()), payload: None, opaque: None, metadata };
        assert_eq!((about.fields(), about.branch()), (fields, None));
        let inline =
            About::of(&Submit { input: Input::Inline(vec![1, 2].into()), ..with_opaque(9) }).fields();
        assert_eq!((inline.payload, inline.opaque), (Some(vec![1, 2].into()), Some(vec![9].into())));
    }
}
