//! Books of turns: how much each value of a `Fair` field has had, as start-time fair queueing counts it.
//!
//! Serving a value at its start tag moves its finish tag on by `STRIDE / weight`; the value with the smallest tag is next.
//! The clock `now` is the start tag of the last one served; a value that comes in later starts there, so that nobody saves
//! up turns while it has nothing to do. With `inc` for `STRIDE / weight`, over any time in which two values both have
//! something that may be handed out, `|n_i * inc_i - n_j * inc_j| <= inc_i + inc_j`.
//!
//! All strategies with the same `Fair` share one book, so that what a value gets by one of them counts in the others.
//! Turns inside turns have a book for each depth, with a clock for each value of the outer one.
//!
//! Invariants
//! - A value's tag is kept exactly as long as it lies ahead of its clock: memory follows the values that were served lately.
//! - The values that a book keeps stay known.

use super::shape::Share;
use crate::batch::values::{FieldId, ValueId, Values};
use crate::limits::STRATEGY_TURNS_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// What a chunk costs a value of weight 1: a weight is kept to one part in a thousand up to a million.
pub(super) const STRIDE: u64 = 1 << 30;

/// A value within the values of the outer turns.
pub(super) type Seat = [ValueId; STRATEGY_TURNS_MAX];

/// The place in a seat that is not used.
pub(super) const NOBODY: ValueId = ValueId(u32::MAX);

/// The number of a book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BookId(usize);

/// All books in use.
#[derive(Debug, Default)]
pub(super) struct Books {
    books: Vec<Book>,
    by_chain: BTreeMap<Vec<Share>, BookId>,
    /// Weights that hold for every strategy that does not say otherwise: field, value, weight.
    weights: BTreeMap<String, BTreeMap<String, u32>>,
}

#[derive(Debug, Default)]
struct Book {
    references: u32,
    chain: Vec<Share>,
    field: Option<FieldId>,
    inner: Vec<BookId>,
    /// The clock of each scope: of the values of the outer turns.
    now: BTreeMap<Seat, u64>,
    finish: BTreeMap<Seat, u64>,
    /// Scope, tag and seat, so that tags the clock has passed are found.
    by_tag: BTreeSet<(Seat, u64, Seat)>,
}

impl Books {
    /// The book of turns inside turns, outermost first; the caller refers to it until [`Books::release`].
    pub(super) fn open(&mut self, chain: &[Share], values: &mut Values) -> BookId {
        if let Some(id) = self.by_chain.get(chain) {
            self.books[id.0].references += 1;
            return *id;
        }
        let book = Book {
            references: 1,
            chain: chain.to_vec(),
            field: Some(values.field(&chain[chain.len() - 1].field)),
            ..Book::default()
        };
        let free = self.books.iter().position(|book| book.references == 0);
        let id = BookId(free.unwrap_or(self.books.len()));
        match free {
            Some(place) => self.books[place] = book,
            None => self.books.push(book),
        }
        self.by_chain.insert(chain.to_vec(), id);
        if let Some(outer) = self.by_chain.get(&chain[..chain.len() - 1]).copied() {
            self.books[outer.0].inner.push(id);
        }
        id
    }

    pub(super) fn release(&mut self, id: BookId, values: &mut Values) {
        self.books[id.0].references -= 1;
        if self.books[id.0].references > 0 {
            return;
        }
        let book = std::mem::take(&mut self.books[id.0]);
        for book in &mut self.books {
            book.inner.retain(|inner| *inner != id);
        }
        book.finish.keys().for_each(|seat| values.release(seat[book.chain.len() - 1]));
        if let Some(field) = book.field {
            values.release_field(field);
        }
        self.by_chain.remove(&book.chain);
    }

    /// The tag of a seat: the smaller, the sooner.
    pub(super) fn tag(&self, id: BookId, seat: &Seat) -> u64 {
        self.books[id.0].finish.get(seat).copied().unwrap_or(0)
    }

    /// What a chunk costs a seat.
    pub(super) fn stride(&self, id: BookId, value: ValueId, values: &Values) -> u64 {
        let book = &self.books[id.0];
        let share = &book.chain[book.chain.len() - 1];
        let everywhere = self.weights.get(&share.field);
        if share.weights.is_empty() && everywhere.is_none() {
            return STRIDE;
        }
        let text = values.get(value).map(ToString::to_string);
        let weight = text.and_then(|text| {
            share.weights.get(&text).or_else(|| everywhere.and_then(|weights| weights.get(&text))).copied()
        });
        STRIDE / u64::from(weight.unwrap_or(1).max(1))
    }

    /// Counts one chunk for a seat.
    pub(super) fn serve(&mut self, id: BookId, seat: &Seat, values: &mut Values) {
        let depth = self.books[id.0].chain.len() - 1;
        let stride = self.stride(id, seat[depth], values);
        let scope = scope_of(seat, depth);
        let book = &mut self.books[id.0];
        let now = book.now.entry(scope).or_insert(0);
        let finish_before = book.finish.get(seat).copied();
        let start = finish_before.unwrap_or(0).max(*now);
        *now = start;
        match finish_before {
            Some(before) => drop(book.by_tag.remove(&(scope, before, *seat))),
            None => values.retain(seat[depth]),
        }
        book.finish.insert(*seat, start + stride);
        book.by_tag.insert((scope, start + stride, *seat));
        self.forget_passed(id, scope, start, values);
    }

    /// Forgets the tags that the clock of a scope has passed: such a value starts at the clock anyway.
    fn forget_passed(&mut self, id: BookId, scope: Seat, now: u64, values: &mut Values) {
        let book = &mut self.books[id.0];
        let depth = book.chain.len() - 1;
        let mut forgotten = Vec::new();
        while let Some(passed) =
            book.by_tag.range((scope, 0, [ValueId(0); STRATEGY_TURNS_MAX])..).next().copied()
            && passed.0 == scope
            && passed.1 <= now
        {
            book.by_tag.remove(&passed);
            book.finish.remove(&passed.2);
            values.release(passed.2[depth]);
            forgotten.push(passed.2);
        }
        let inner = book.inner.clone();
        for seat in forgotten {
            inner.iter().for_each(|inner| self.forget_within(*inner, &seat, depth + 1, values));
        }
    }

    /// Forgets everything inside an outer seat that was forgotten itself.
    fn forget_within(&mut self, id: BookId, outer: &Seat, depth: usize, values: &mut Values) {
        let book = &mut self.books[id.0];
        let is_within = |seat: &Seat| seat[..depth] == outer[..depth];
        let mut from = *outer;
        from[depth..].fill(ValueId(0));
        let gone: Vec<Seat> =
            book.finish.range(from..).map(|it| *it.0).take_while(|seat| is_within(seat)).collect();
        for seat in &gone {
            let tag = book.finish.remove(seat).expect("it was just found");
            book.by_tag.remove(&(scope_of(seat, depth), tag, *seat));
            values.release(seat[depth]);
        }
        let scopes: Vec<Seat> =
            book.now.range(from..).map(|it| *it.0).take_while(|scope| is_within(scope)).collect();
        for scope in scopes {
            book.now.remove(&scope);
        }
        let inner = book.inner.clone();
        for seat in gone {
            inner.iter().for_each(|inner| self.forget_within(*inner, &seat, depth + 1, values));
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

    /// The clock of the scope that a seat is in.
    pub(super) fn clock(&self, id: BookId, seat: &Seat) -> u64 {
        let book = &self.books[id.0];
        book.now.get(&scope_of(seat, book.chain.len() - 1)).copied().unwrap_or(0)
    }

    /// The values that books refer to, for the audit.
    pub(super) fn values(&self) -> impl Iterator<Item = ValueId> {
        self.books.iter().flat_map(|book| book.finish.keys().map(|seat| seat[book.chain.len() - 1]))
    }

    /// The fields that books refer to, for the audit.
    pub(super) fn fields(&self) -> impl Iterator<Item = FieldId> {
        self.books.iter().filter_map(|book| book.field)
    }

    /// How many refer to each book, for the audit.
    pub(super) fn references(&self) -> BTreeMap<BookId, u32> {
        self.by_chain.values().map(|id| (*id, self.books[id.0].references)).collect()
    }

    /// Checks what the file's head promises.
    pub(super) fn check(&self) {
        for (chain, id) in &self.by_chain {
            let book = &self.books[id.0];
            assert_eq!(book.chain, *chain, "a book is found by its chain");
            let depth = chain.len() - 1;
            let tags = book.finish.iter().map(|(seat, tag)| (scope_of(seat, depth), *tag, *seat));
            assert_eq!(book.by_tag, tags.collect(), "the tags of a book are in order");
            for (scope, tag, _) in &book.by_tag {
                assert!(*tag > book.now[scope], "a tag is kept as long as it lies ahead of its clock");
            }
        }
        let open = self.books.iter().filter(|book| book.references > 0).count();
        assert_eq!(self.by_chain.len(), open, "a book is open as long as somebody refers to it");
    }
}

fn scope_of(seat: &Seat, depth: usize) -> Seat {
    let mut scope = *seat;
    scope[depth..].fill(NOBODY);
    scope
}
