//! A generation: rows in memory that are newer than those of the engine, and rows of both read as one.

use fjall::Slice;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use windlass_core::tables::{KeyRange, Row, Table, Walk};

/// Rows of one table that were put or, where the value is none, deleted.
pub(super) type Rows = BTreeMap<Slice, Option<Slice>>;

/// What a row takes beside its bytes, about.
const ROW_BYTES: usize = 64;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Generation {
    /// Whoever walks over the rows of a table holds them as they are. What is put into them meanwhile is put into a copy: it is made
    /// once for a walk, of one table.
    tables: [Option<Arc<Rows>>; Table::ALL.len()],
    rows: usize,
    bytes: usize,
}

impl Default for Generation {
    fn default() -> Generation {
        Generation { tables: [const { None }; Table::ALL.len()], rows: 0, bytes: 0 }
    }
}

impl Generation {
    pub(super) const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// How many rows it has, deleted ones too.
    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// About how much memory it takes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of a row, none if it was deleted; nothing if it is not here.
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Option<&Slice>> {
        self.of(table)?.get(key).map(Option::as_ref)
    }

    /// The rows of a table, if it has any.
    pub(super) fn of(&self, table: Table) -> Option<&Arc<Rows>> {
        self.tables[position(table)].as_ref()
    }

    /// Writes a row, or notes that it is deleted.
    pub(super) fn put(&mut self, table: Table, key: Slice, value: Option<Slice>) {
        let rows = Arc::make_mut(self.tables[position(table)].get_or_insert_default());
        let more = put(rows, key, value);
        self.count(more);
    }

    fn count(&mut self, More { rows, bytes }: More) {
        self.rows += rows;
        self.bytes = self.bytes.checked_add_signed(bytes).expect("what is replaced was counted");
    }

    /// Takes in what was written after everything that is here.
    pub(super) fn take_in(&mut self, newer: Generation) {
        if self.is_empty() {
            *self = newer;
            return;
        }
        for (table, rows) in newer.tables.into_iter().enumerate() {
            let Some(rows) = rows else { continue };
            let here = Arc::make_mut(self.tables[table].get_or_insert_default());
            let mut all = More::default();
            for (key, value) in Arc::unwrap_or_clone(rows) {
                let more = put(here, key, value);
                all = More { rows: all.rows + more.rows, bytes: all.bytes + more.bytes };
            }
            self.count(all);
        }
    }

    /// All rows, table by table.
    pub(super) fn all(&self) -> impl Iterator<Item = (Table, &Slice, Option<&Slice>)> {
        self.tables()
            .flat_map(|(table, rows)| rows.iter().map(move |(key, value)| (table, key, value.as_ref())))
    }

    /// The tables that it has rows of, each with them.
    pub(super) fn tables(&self) -> impl Iterator<Item = (Table, &Rows)> {
        Table::ALL.into_iter().zip(&self.tables).filter_map(|(table, rows)| Some((table, &**rows.as_ref()?)))
    }
}

/// By how much a generation grows.
#[derive(Default)]
struct More {
    rows: usize,
    bytes: isize,
}

fn put(rows: &mut Rows, key: Slice, value: Option<Slice>) -> More {
    let bytes = |value: &Option<Slice>| value.as_ref().map_or(0, |value| value.len()).cast_signed();
    let (row, after) = ((key.len() + ROW_BYTES).cast_signed(), bytes(&value));
    match rows.insert(key, value) {
        Some(before) => More { rows: 0, bytes: after - bytes(&before) },
        None => More { rows: 1, bytes: row + after },
    }
}

/// The place of a table among all.
pub(super) fn position(table: Table) -> usize {
    Table::ALL.binary_search(&table).expect("all tables are listed in the order of their numbers")
}

/// Older rows with newer ones over them; if there are none of those in the range, just the older ones.
pub(super) fn over<'a, R: Deref<Target = Rows> + 'a>(
    older: Box<dyn Iterator<Item = Row> + 'a>,
    newer: Option<R>,
    range: KeyRange<'_>,
    walk: Walk,
) -> Box<dyn Iterator<Item = Row> + 'a> {
    let Some(rows) = newer.filter(|rows| rows.range::<[u8], _>(range).next().is_some()) else { return older };
    let (from, to) = (range.0.map(Slice::from), range.1.map(Slice::from));
    let newer = Walked { rows, from, to, walk };
    Box::new(Merged { older: older.peekable(), newer: newer.peekable(), walk })
}

/// Rows of a generation in a range, in the order of a walk.
struct Walked<R> {
    rows: R,
    from: Bound<Slice>,
    to: Bound<Slice>,
    walk: Walk,
}

impl<R: Deref<Target = Rows>> Iterator for Walked<R> {
    type Item = (Slice, Option<Slice>);

    /// Each step looks its place up: rows that are held for a while cannot be borrowed from.
    fn next(&mut self) -> Option<(Slice, Option<Slice>)> {
        // A range that ends where it has begun, without either end, is no range to a map.
        if let (Bound::Excluded(from), Bound::Excluded(to)) = (&self.from, &self.to)
            && from >= to
        {
            return None;
        }
        let left = (self.from.as_ref().map(|key| &**key), self.to.as_ref().map(|key| &**key));
        let mut rows = self.rows.range::<[u8], _>(left);
        let (key, value) = match self.walk {
            Walk::Up => rows.next()?,
            Walk::Down => rows.next_back()?,
        };
        let row = (key.clone(), value.clone());
        match self.walk {
            Walk::Up => self.from = Bound::Excluded(row.0.clone()),
            Walk::Down => self.to = Bound::Excluded(row.0.clone()),
        }
        Some(row)
    }
}

/// Older and newer rows as one sequence; the newer row wins, and a deleted one hides the older.
struct Merged<'a, N: Iterator> {
    older: Peekable<Box<dyn Iterator<Item = Row> + 'a>>,
    newer: Peekable<N>,
    walk: Walk,
}

impl<N: Iterator<Item = (Slice, Option<Slice>)>> Iterator for Merged<'_, N> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        loop {
            let Some((key, _)) = self.newer.peek() else { return self.older.next() };
            let order = self.older.peek().map(|(older, _)| match self.walk {
                Walk::Up => older[..].cmp(key),
                Walk::Down => (**key).cmp(older),
            });
            match order {
                Some(Ordering::Less) => return self.older.next(),
                Some(Ordering::Equal) => drop(self.older.next()),
                Some(Ordering::Greater) | None => {}
            }
            if let Some((key, Some(value))) = self.newer.next() {
                return Some((key.to_vec(), value.to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(rows: &[(&str, Option<&str>)]) -> Generation {
        let mut generation = Generation::default();
        for (key, value) in rows {
            generation.put(Table::Blocks, Slice::from(*key), value.map(Slice::from));
        }
        generation
    }

    #[test]
    fn a_row_that_is_written_again_is_counted_once() {
        let mut rows = generation(&[("a", Some("1")), ("b", Some("22"))]);
        let bytes = rows.bytes();
        rows.take_in(generation(&[("a", Some("333")), ("b", None)]));
        assert_eq!((rows.rows(), rows.bytes()), (2, bytes), "two bytes more in one, two fewer in the other");
        assert_eq!(rows.get(Table::Blocks, b"b"), Some(None));
        assert_eq!(rows.get(Table::Meta, b"a"), None);
        assert_eq!(rows.tables().map(|(table, _)| table).collect::<Vec<_>>(), [Table::Blocks]);
    }

    #[test]
    fn whoever_walks_sees_the_rows_as_they_were_when_the_walk_began() {
        let mut rows = generation(&[("a", Some("1")), ("c", Some("1"))]);
        let nothing = Box::new(std::iter::empty());
        let all = (Bound::Unbounded, Bound::Unbounded);
        let walk = over(nothing, rows.of(Table::Blocks).cloned(), all, Walk::Up);
        rows.put(Table::Blocks, "b".into(), Some("2".into()));
        rows.put(Table::Blocks, "c".into(), None);
        let walked: Vec<Row> = walk.collect();
        assert_eq!(walked, [(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"1".to_vec())]);
        assert_eq!(rows.rows(), 3);
    }

    #[test]
    fn newer_rows_win_in_both_directions_and_deleted_ones_are_not_seen() {
        let older = [("a", "old"), ("c", "old"), ("e", "old")];
        let newer = generation(&[("b", Some("new")), ("c", None), ("d", None), ("e", Some("new"))]);
        let walked = |range: KeyRange<'_>, walk| {
            let mut rows: Vec<Row> = older.map(|(key, value)| (key.into(), value.into())).into();
            if walk == Walk::Down {
                rows.reverse();
            }
            let merged = over(Box::new(rows.into_iter()), newer.of(Table::Blocks).cloned(), range, walk);
            let text =
                merged.map(|(key, value)| String::from_utf8([key, b"=".into(), value].concat()).unwrap());
            text.collect::<Vec<_>>().join(" ")
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!(walked(all, Walk::Up), "a=old b=new e=new");
        assert_eq!(walked(all, Walk::Down), "e=new b=new a=old");
        let up_to_last = (Bound::Excluded(&b"a"[..]), Bound::Excluded(&b"e"[..]));
        assert_eq!(walked(up_to_last, Walk::Up), "a=old b=new e=old", "older rows come as they are given");
    }
}
