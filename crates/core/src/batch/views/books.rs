//! Books of turns: how much each value of a `Fair` field has had, as start-time fair queueing counts it.
//!
//! Serving a value at its start tag moves its finish tag on by `STRIDE / weight`; the value with the smallest tag is next.
//! The clock `now` is the start tag of the last one served; a value that comes in later starts there, so that nobody saves
//! up turns while it has nothing to do. With `inc` for `STRIDE / weight`, over any time in which two values both have
//! something that may be handed out, `|n_i * inc_i - n_j * inc_j| <= inc_i + inc_j`. Of those that have had less than the
//! clock shows, whoever has waited longest is first, so that each is served after at most one chunk of every other value.
//!
//! All strategies with the same `Fair` share one book, so that what a value gets by one of them counts in the others.
//! Turns inside turns have a book for each depth, with a clock for each value of the outer one.
//!
//! Invariants
//! - A value's tag is kept until its clock has passed it, and forgotten soon after: memory follows the values that were
//!   served lately.
//! - The turns inside a value are kept as long as a submission has it, however far the others are ahead meanwhile.
//! - A book that no view needs any more is kept, closed, as long as a submission has its field: a strategy that comes back
//!   after hours goes on with its turns. Beyond a bound, those that were closed longest ago are forgotten.
//! - The values whose tags are kept stay known.

use super::shape::Share;
use crate::batch::values::{FieldId, ValueId, Values};
use crate::limits::{BOOKS_CLOSED_MAX, STRATEGY_TURNS_MAX, TURNS_CLOSED_MAX};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a chunk costs a value of weight 1: a weight is kept to one part in a thousand up to a million.
pub(super) const STRIDE: u64 = 1 << 30;

/// A value within the values of the outer turns.
pub(super) type Seat = [ValueId; STRATEGY_TURNS_MAX];

/// The place in a seat that is not used.
pub(super) const NOBODY: ValueId = ValueId(u32::MAX);

/// The number of a book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BookId(usize);

/// All books.
#[derive(Debug, Default)]
pub(super) struct Books {
    books: Vec<Book>,
    by_chain: BTreeMap<Vec<Share>, BookId>,
    /// Those that no view refers to, in the order in which they were closed.
    closed: VecDeque<BookId>,
    /// Weights that hold for every strategy that does not say otherwise: field, value, weight.
    weights: BTreeMap<String, BTreeMap<String, u32>>,
}

#[derive(Debug, Default)]
struct Book {
    references: u32,
    chain: Vec<Share>,
    /// The fields of the chain.
    fields: Vec<FieldId>,
    scopes: BTreeMap<Seat, Scope>,
    /// Each outer value with the scopes inside it.
    inside: BTreeSet<(ValueId, Seat)>,
}

/// The turns within the values of the outer ones.
#[derive(Debug, Default)]
struct Scope {
    now: u64,
    tags: BTreeMap<ValueId, u64>,
    /// So that tags the clock has passed are found.
    by_tag: BTreeSet<(u64, ValueId)>,
}

/// A clock may pass the tags of all values at once; nobody waits until so many are forgotten.
const FORGOTTEN_AT_ONCE: usize = 64;

/// The clock of a book that has served some 10^10 chunks: it begins anew long before its tags overflow.
const CLOCK_MAX: u64 = 1 << 63;

impl Books {
    /// The book of turns inside turns, outermost first; the caller refers to it until [`Books::release`].
    pub(super) fn open(&mut self, chain: &[Share], values: &mut Values) -> BookId {
        if let Some(id) = self.by_chain.get(chain).copied() {
            if self.books[id.0].references == 0 {
                self.closed.retain(|closed| *closed != id);
            }
            self.books[id.0].references += 1;
            return id;
        }
        let book = Book {
            references: 1,
            chain: chain.to_vec(),
            fields: chain.iter().map(|share| values.field(&share.field)).collect(),
            ..Book::default()
        };
        let free = self.books.iter().position(|book| book.chain.is_empty());
        let id = BookId(free.unwrap_or(self.books.len()));
        match free {
            Some(place) => self.books[place] = book,
            None => self.books.push(book),
        }
        self.by_chain.insert(chain.to_vec(), id);
        id
    }

    /// A view does not refer to a book any more; without another one it is closed.
    pub(super) fn release(&mut self, id: BookId) {
        self.books[id.0].references -= 1;
        if self.books[id.0].references == 0 {
            self.closed.push_back(id);
        }
    }

    /// Forgets closed books whose field no submission has, and those that are too many.
    pub(super) fn forget_closed(&mut self, values: &mut Values) {
        let (mut kept, mut turns) = (VecDeque::new(), 0);
        for id in std::mem::take(&mut self.closed).into_iter().rev() {
            let Book { fields, scopes, .. } = &self.books[id.0];
            let with_its = turns + scopes.values().map(|scope| scope.tags.len()).sum::<usize>();
            let is_missed = !scopes.is_empty() && fields.last().is_some_and(|field| values.had(*field) > 0);
            if is_missed && kept.len() < BOOKS_CLOSED_MAX && with_its <= TURNS_CLOSED_MAX {
                turns = with_its;
                kept.push_front(id);
            } else {
                self.forget(id, values);
            }
        }
        self.closed = kept;
    }

    fn forget(&mut self, id: BookId, values: &mut Values) {
        let book = std::mem::take(&mut self.books[id.0]);
        book.scopes.values().for_each(|scope| scope.let_go(values));
        book.fields.iter().for_each(|field| values.release_field(*field));
        self.by_chain.remove(&book.chain);
    }

    /// The tag of a seat: the smaller, the sooner; 0 for one that may start at once.
    pub(super) fn tag(&self, id: BookId, seat: &Seat) -> u64 {
        let book = &self.books[id.0];
        let depth = book.chain.len() - 1;
        let scope = book.scopes.get(&scope_of(seat, depth));
        scope.and_then(|scope| scope.tags.get(&seat[depth])).copied().unwrap_or(0)
    }

    /// What a chunk costs a seat.
    pub(super) fn stride(&self, id: BookId, value: ValueId, values: &Values) -> u64 {
        let book = &self.books[id.0];
        STRIDE / u64::from(self.weight(&book.chain[book.chain.len() - 1], value, values))
    }

    /// How many turns a value gets for one of a value of weight 1.
    pub(super) fn weight(&self, share: &Share, value: ValueId, values: &Values) -> u32 {
        let everywhere = self.weights.get(&share.field);
        if share.weights.is_empty() && everywhere.is_none() {
            return 1;
        }
        let text = values.get(value).map(ToString::to_string);
        let weight = text.and_then(|text| {
            share.weights.get(&text).or_else(|| everywhere.and_then(|weights| weights.get(&text))).copied()
        });
        weight.unwrap_or(1).max(1)
    }

    /// How far a seat's tag lies ahead of its clock, in thousandths of what a chunk costs at weight 1.
    pub(super) fn ahead_thousandths(&self, id: BookId, seat: &Seat) -> u64 {
        let book = &self.books[id.0];
        let scope = book.scopes.get(&scope_of(seat, book.chain.len() - 1));
        let ahead = self.tag(id, seat).saturating_sub(scope.map_or(0, |scope| scope.now));
        ahead.saturating_mul(1_000) / STRIDE
    }

    /// The turns that a book counts.
    pub(super) fn share(&self, id: BookId) -> &Share {
        let chain = &self.books[id.0].chain;
        &chain[chain.len() - 1]
    }

    /// The turns between the values of a field, of some books; if there are several, the outermost, and of those the one that
    /// names the most weights.
    pub(super) fn share_of(&self, field: &str, books: impl Iterator<Item = BookId>) -> Option<&Share> {
        let of_field = books.map(|id| (self.books[id.0].chain.len(), self.share(id)));
        let of_field = of_field.filter(|(_, share)| share.field == field);
        let best = of_field.min_by_key(|(depth, share)| (*depth, Reverse(share.weights.len())));
        best.map(|(_, share)| share)
    }

    /// Counts one chunk for a seat, and says which values have another tag now.
    pub(super) fn serve(&mut self, id: BookId, seat: &Seat, values: &mut Values) -> BTreeSet<ValueId> {
        let depth = self.books[id.0].chain.len() - 1;
        let value = seat[depth];
        let stride = self.stride(id, value, values);
        let book = &mut self.books[id.0];
        let place = scope_of(seat, depth);
        book.inside.extend(seat[..depth].iter().map(|outer| (*outer, place)));
        let scope = book.scopes.entry(place).or_default();
        match scope.tags.remove(&value) {
            Some(before) => {
                scope.by_tag.remove(&(before, value));
                scope.now = scope.now.max(before);
            }
            None => values.retain(value),
        }
        let mut changed = scope.forget_passed(FORGOTTEN_AT_ONCE, values);
        if scope.now >= CLOCK_MAX {
            scope.now = u64::MAX;
            changed.append(&mut scope.forget_passed(usize::MAX, values));
            scope.now = 0;
        }
        let tag = scope.now + stride;
        scope.tags.insert(value, tag);
        scope.by_tag.insert((tag, value));
        changed.insert(value);
        changed
    }

    /// Forgets the turns inside a value that no submission has any more.
    pub(super) fn forget_inside(&mut self, value: ValueId, values: &mut Values) {
        for book in self.books.iter_mut().filter(|book| !book.inside.is_empty()) {
            let of_value = (value, [ValueId(0); STRATEGY_TURNS_MAX])..=(value, [NOBODY; STRATEGY_TURNS_MAX]);
            let places: Vec<Seat> = book.inside.range(of_value).map(|it| it.1).collect();
            for place in places {
                for outer in &place[..book.chain.len() - 1] {
                    book.inside.remove(&(*outer, place));
                }
                book.scopes.remove(&place).expect("what is inside a value is known").let_go(values);
            }
        }
    }

    /// Sets the weights of a field's values for every strategy that does not name them itself.
    pub(super) fn set_weights(&mut self, field: &str, weights: BTreeMap<String, u32>) {
        if weights.is_empty() {
            self.weights.remove(field);
        } else {
            self.weights.insert(field.to_owned(), weights);
        }
    }

    /// The values that books refer to, for the audit.
    pub(super) fn values(&self) -> impl Iterator<Item = ValueId> {
        let scopes = self.books.iter().flat_map(|book| book.scopes.values());
        scopes.flat_map(|scope| scope.tags.keys().copied())
    }

    /// The fields that books refer to, for the audit.
    pub(super) fn fields(&self) -> impl Iterator<Item = FieldId> {
        self.books.iter().flat_map(|book| book.fields.iter().copied())
    }

    /// How many refer to each book, for the audit.
    pub(super) fn references(&self) -> BTreeMap<BookId, u32> {
        let open = self.by_chain.values().filter(|id| self.books[id.0].references > 0);
        open.map(|id| (*id, self.books[id.0].references)).collect()
    }

    /// Checks what the file's head promises; `has` says whether a submission has a value.
    pub(super) fn check(&self, has: impl Fn(ValueId) -> bool) {
        for (chain, id) in &self.by_chain {
            let book = &self.books[id.0];
            assert_eq!(book.chain, *chain, "a book is found by its chain");
            let mut inside = BTreeSet::new();
            for (place, scope) in &book.scopes {
                let by_tag = scope.tags.iter().map(|(value, tag)| (*tag, *value));
                assert_eq!(scope.by_tag, by_tag.collect(), "the tags of a scope are in order");
                let outer = &place[..chain.len() - 1];
                assert!(
                    outer.iter().all(|value| has(*value)),
                    "a scope is kept as long as a submission has its values"
                );
                inside.extend(outer.iter().map(|value| (*value, *place)));
            }
            assert_eq!(book.inside, inside, "the scopes inside a value are known");
        }
        let is_closed = |id: &&BookId| self.books[id.0].references == 0;
        let closed: BTreeSet<&BookId> = self.by_chain.values().filter(is_closed).collect();
        assert_eq!(
            self.closed.iter().collect::<BTreeSet<_>>(),
            closed,
            "a book is open while a view refers to it"
        );
        assert_eq!(self.closed.len(), closed.len(), "a book is closed once");
    }
}

impl Scope {
    /// Forgets tags that the clock has passed, and says whose they were: such a value starts at the clock anyway.
    fn forget_passed(&mut self, at_most: usize, values: &mut Values) -> BTreeSet<ValueId> {
        let mut forgotten = BTreeSet::new();
        while forgotten.len() < at_most
            && let Some((tag, value)) = self.by_tag.first().copied()
            && tag < self.now
        {
            self.by_tag.remove(&(tag, value));
            self.tags.remove(&value);
            values.release(value);
            forgotten.insert(value);
        }
        forgotten
    }

    /// Lets go the values whose tags are kept.
    fn let_go(&self, values: &mut Values) {
        self.tags.keys().for_each(|value| values.release(*value));
    }
}

fn scope_of(seat: &Seat, depth: usize) -> Seat {
    let mut scope = *seat;
    scope[depth..].fill(NOBODY);
    scope
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::submissions::{MetaValue, Metadata};

    fn one_book() -> (Books, BookId, Values) {
        let (mut books, mut values) = (Books::default(), Values::default());
        let share = Share { field: "company".into(), weights: BTreeMap::from([("1".into(), 4)]) };
        let id = books.open(&[share], &mut values);
        (books, id, values)
    }

    fn seat_of(number: i64, values: &mut Values) -> Seat {
        let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
        seat[0] = values.value("company", &MetaValue::Integer(number));
        seat
    }

    #[test]
    fn a_chunk_moves_its_value_on_by_a_stride_and_one_that_the_clock_has_passed_may_start_at_once() {
        let (mut books, id, mut values) = one_book();
        let [heavy, light] = [1, 2].map(|number| seat_of(number, &mut values));
        assert_eq!(books.serve(id, &light, &mut values), BTreeSet::from([light[0]]));
        let mut tags = Vec::new();
        for _ in 0..6 {
            books.serve(id, &heavy, &mut values);
            tags.push((books.tag(id, &heavy), books.tag(id, &light)));
        }
        let quarter = STRIDE / 4;
        let until_passed = (1..=5).map(|nth| (nth * quarter, STRIDE));
        assert_eq!(tags, until_passed.chain([(6 * quarter, 0)]).collect::<Vec<_>>());
        books.check(|_| true);
    }

    #[test]
    fn a_clock_that_passes_everybody_forgets_them_a_few_at_a_time() {
        let (mut books, id, mut values) = one_book();
        let seats: Vec<Seat> = (10..1_010).map(|number| seat_of(number, &mut values)).collect();
        for seat in &seats {
            books.serve(id, seat, &mut values);
        }
        let mut changed = BTreeSet::new();
        for _ in 0..20 {
            let at_once = books.serve(id, &seats[0], &mut values);
            assert!(at_once.len() <= FORGOTTEN_AT_ONCE + 1);
            changed.extend(at_once);
        }
        assert_eq!(changed.len(), 1_000);
        assert_eq!(books.values().collect::<Vec<_>>(), [seats[0][0]]);
        books.check(|_| true);
    }

    #[test]
    fn a_clock_that_has_come_far_begins_anew_and_everybody_may_start_at_once() {
        let (mut books, id, mut values) = one_book();
        let [heavy, light] = [1, 2].map(|number| seat_of(number, &mut values));
        books.serve(id, &light, &mut values);
        let scope = books.books[id.0].scopes.values_mut().next().unwrap();
        scope.now = CLOCK_MAX - 1;
        books.serve(id, &heavy, &mut values);
        books.serve(id, &light, &mut values);
        assert!(books.tag(id, &light) > CLOCK_MAX);
        let both = BTreeSet::from([heavy[0], light[0]]);
        assert_eq!(books.serve(id, &heavy, &mut values), both);
        assert_eq!((books.tag(id, &heavy), books.tag(id, &light)), (STRIDE / 4, 0));
        books.check(|_| true);
    }

    #[test]
    fn a_book_that_is_closed_and_opened_again_goes_on_unless_there_are_too_many_or_nobody_has_its_field() {
        let (mut books, mut values) = (Books::default(), Values::default());
        let fields: Vec<String> = (0..=BOOKS_CLOSED_MAX).map(|nth| format!("field {nth}")).collect();
        let metadata: Metadata = fields.iter().map(|field| (field.clone(), MetaValue::Bool(true))).collect();
        let of_submission = values.of(&metadata);
        let chain = |field: &str| [Share { field: field.into(), weights: BTreeMap::new() }];
        for field in fields.iter().chain([&"nobody's".to_owned()]) {
            let id = books.open(&chain(field), &mut values);
            let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
            seat[0] = values.value(field, &MetaValue::Bool(true));
            books.serve(id, &seat, &mut values);
            values.release(seat[0]);
            books.release(id);
            books.forget_closed(&mut values);
            books.check(|_| true);
        }
        let mut tag = |field: &str| {
            let id = books.open(&chain(field), &mut values);
            let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
            seat[0] = values.known_value(field, &MetaValue::Bool(true)).unwrap_or(NOBODY);
            let tag = books.tag(id, &seat);
            books.release(id);
            tag
        };
        assert_eq!((tag(&fields[0]), tag(&fields[1]), tag("nobody's")), (0, STRIDE, 0));

        for value in of_submission.iter() {
            assert!(values.leave(value));
        }
        books.forget_closed(&mut values);
        books.check(|_| false);
        of_submission.iter().for_each(|value| values.release(value));
        assert_eq!(values.fields().count(), 0);
    }

    #[test]
    fn a_closed_book_keeps_the_fields_around_its_turns_known_so_that_nobody_inherits_them() {
        let (mut books, mut values) = (Books::default(), Values::default());
        let share = |field: &str| Share { field: field.into(), weights: BTreeMap::new() };
        let chain = [share("company"), share("user")];
        let of_submission = values.of(&[("user".to_owned(), MetaValue::Integer(1))].into());
        let inner = books.open(&chain, &mut values);
        let mut seat = [NOBODY; STRATEGY_TURNS_MAX];
        seat[0] = values.missing(values.known_field("company").expect("the book names it"));
        seat[1] = of_submission.iter().next().expect("it has a value");
        books.serve(inner, &seat, &mut values);
        books.release(inner);
        books.forget_closed(&mut values);

        let newcomer = values.value("mode", &MetaValue::Bool(true));
        assert_ne!(newcomer, seat[0], "submissions without a company still have turns of their own");
        let again = books.open(&chain, &mut values);
        assert_eq!((again, books.tag(again, &seat)), (inner, STRIDE));
        books.check(|value| value == seat[0]);
    }

    #[test]
    fn turns_inside_a_value_are_forgotten_when_nobody_has_it_and_a_book_leaves_nothing_behind() {
        let (mut books, mut values) = (Books::default(), Values::default());
        let share = |field: &str| Share { field: field.into(), weights: BTreeMap::new() };
        let chain = [share("company"), share("user")];
        let (outer, inner) = (books.open(&chain[..1], &mut values), books.open(&chain, &mut values));
        let [mut one, mut other] = [1, 2].map(|number| seat_of(number, &mut values));
        for seat in [&mut one, &mut other] {
            seat[1] = values.value("user", &MetaValue::Bool(true));
            books.serve(outer, seat, &mut values);
            books.serve(inner, seat, &mut values);
        }
        books.forget_inside(one[0], &mut values);
        assert_eq!((books.tag(inner, &one), books.tag(inner, &other)), (0, STRIDE));
        books.check(|value| value != one[0]);

        books.release(outer);
        books.release(inner);
        books.forget_closed(&mut values);
        for seat in [one, other] {
            seat[..2].iter().for_each(|value| values.release(*value));
        }
        assert_eq!((values.known_field("company"), values.known_field("user")), (None, None));
    }
}
