//! A generation: rows in memory that are newer than those of the engine, and rows of both read as one.

use fjall::Slice;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, Deref};
use windlass_core::tables::{KeyRange, Row, Table, Walk};

/// Rows of one table that were put or, where the value is none, deleted.
type Rows = BTreeMap<Slice, Option<Slice>>;

/// What a row takes beside its bytes, about.
const ROW_BYTES: usize = 64;

/// See the file's head.
#[derive(Debug, Clone, Default)]
pub(super) struct Generation {
    tables: [Rows; Table::ALL.len()],
    rows: usize,
    bytes: usize,
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
        let rows = &self.tables[position(table)];
        if rows.is_empty() { None } else { rows.get(key).map(Option::as_ref) }
    }

    /// Writes a row, or notes that it is deleted.
    pub(super) fn put(&mut self, table: Table, key: Slice, value: Option<Slice>) {
        self.put_at(position(table), key, value);
    }

    fn put_at(&mut self, table: usize, key: Slice, value: Option<Slice>) {
        let bytes = |value: &Option<Slice>| value.as_ref().map_or(0, |value| value.len());
        let row = key.len() + ROW_BYTES;
        self.bytes += bytes(&value);
        match self.tables[table].insert(key, value) {
            Some(before) => self.bytes -= bytes(&before),
            None => {
                self.rows += 1;
                self.bytes += row;
            }
        }
    }

    /// Takes in what was written after everything that is here.
    pub(super) fn take_in(&mut self, newer: Generation) {
        if self.is_empty() {
            *self = newer;
            return;
        }
        for (table, rows) in newer.tables.into_iter().enumerate() {
            for (key, value) in rows {
                self.put_at(table, key, value);
            }
        }
    }

    /// All rows, table by table.
    pub(super) fn all(&self) -> impl Iterator<Item = (Table, &Slice, Option<&Slice>)> {
        Table::ALL
            .into_iter()
            .zip(&self.tables)
            .flat_map(|(table, rows)| rows.iter().map(move |(key, value)| (table, key, value.as_ref())))
    }

    /// The keys of its rows in a table.
    pub(super) fn keys(&self, table: Table) -> impl Iterator<Item = &Slice> {
        self.tables[position(table)].keys()
    }

    /// The tables that it has rows of.
    pub(super) fn tables(&self) -> impl Iterator<Item = Table> {
        Table::ALL.into_iter().zip(&self.tables).filter(|(_, rows)| !rows.is_empty()).map(|(table, _)| table)
    }
}

/// The place of a table among all.
pub(super) fn position(table: Table) -> usize {
    Table::ALL.binary_search(&table).expect("all tables are listed in the order of their numbers")
}

/// Older rows with those of a generation over them; if it has none in the range, just the older ones.
pub(super) fn over<'a, G: Deref<Target = Generation> + 'a>(
    older: Box<dyn Iterator<Item = Row> + 'a>,
    generation: G,
    table: Table,
    range: KeyRange<'_>,
    walk: Walk,
) -> Box<dyn Iterator<Item = Row> + 'a> {
    if generation.tables[position(table)].range::<[u8], _>(range).next().is_none() {
        return older;
    }
    let (from, to) = (range.0.map(Slice::from), range.1.map(Slice::from));
    let newer = Walked { generation, table: position(table), from, to, walk };
    Box::new(Merged { older: older.peekable(), newer: newer.peekable(), walk })
}

/// The rows of a generation in a range, in the order of a walk.
struct Walked<G> {
    generation: G,
    table: usize,
    from: Bound<Slice>,
    to: Bound<Slice>,
    walk: Walk,
}

impl<G: Deref<Target = Generation>> Iterator for Walked<G> {
    type Item = (Slice, Option<Slice>);

    /// Each step looks its place up: a generation is small, and one that is held for a while cannot be borrowed from.
    fn next(&mut self) -> Option<(Slice, Option<Slice>)> {
        // A range that ends where it has begun, without either end, is no range to a map.
        if let (Bound::Excluded(from), Bound::Excluded(to)) = (&self.from, &self.to)
            && from >= to
        {
            return None;
        }
        let left = (self.from.as_ref().map(|key| &**key), self.to.as_ref().map(|key| &**key));
        let mut rows = self.generation.tables[self.table].range::<[u8], _>(left);
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
        assert_eq!(rows.tables().collect::<Vec<_>>(), [Table::Blocks]);
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
            let merged = over(Box::new(rows.into_iter()), &newer, Table::Blocks, range, walk);
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
