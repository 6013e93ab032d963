//! Values: the metadata fields and values of running submissions, each known by a small number.
//!
//! Views compare, group and count by numbers; the texts are kept once, however many submissions share them. A value lives
//! as long as a submission, a view or a book of turns refers to it, so memory follows what is in the queue.
//!
//! Invariants
//! - A number names one value of one field until nobody refers to it any more.
//! - `out` is the number of chunks being worked on whose submission has the value.
//! - The counts of a field, and of all, are sums over the submissions that have it, and over all.

use super::submissions::{MetaValue, Metadata, MetadataBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FieldId(u32);

/// The number of a value of one field, or of its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueId(pub(super) u32);

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Values {
    names: BTreeMap<Arc<str>, FieldId>,
    fields: Vec<Field>,
    free_fields: Vec<FieldId>,
    values: Vec<Value>,
    free_values: Vec<ValueId>,
    /// How often a value has got its first ready chunk.
    arrivals: u64,
    /// Of all submissions, whatever their values.
    all: ValueCounts,
}

#[derive(Debug)]
struct Field {
    name: Arc<str>,
    /// Values and views that refer to it.
    references: u32,
    by_value: BTreeMap<Arc<MetaValue>, ValueId>,
    /// Stands for submissions without the field.
    missing: ValueId,
    /// Its values of which chunks are being worked on.
    in_work: BTreeSet<ValueId>,
    /// How many of its values some submission has.
    had: u32,
    /// Of all submissions that have it.
    counts: ValueCounts,
    /// What had been handed out of all submissions when it became known.
    handed_out_before: u64,
}

#[derive(Debug)]
struct Value {
    field: FieldId,
    /// None for the absence of the field.
    value: Option<Arc<MetaValue>>,
    references: u32,
    /// Submissions that have it.
    submissions: u32,
    /// Which arrival was its own; smaller is earlier.
    since: u64,
    counts: ValueCounts,
}

/// What is known of the submissions that share a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValueCounts {
    /// Submissions with a chunk that could be handed out.
    pub ready_submissions: u64,
    /// Their chunks that could be handed out.
    pub ready_chunks: u64,
    /// Chunks being worked on.
    pub out: u64,
    /// Chunks handed out since the value is known here.
    pub handed_out: u64,
}

impl ValueCounts {
    fn count_ready(&mut self, before: u64, after: u64) {
        self.ready_chunks = self.ready_chunks - before + after;
        self.ready_submissions = self.ready_submissions - u64::from(before > 0) + u64::from(after > 0);
    }
}

impl Values {
    /// The number of a field, which the caller refers to until it calls [`Values::release_field`].
    pub(super) fn field(&mut self, name: &str) -> FieldId {
        if let Some(id) = self.names.get(name) {
            self.fields[id.0 as usize].references += 1;
            return *id;
        }
        let id = self.free_fields.pop().unwrap_or(FieldId(number(self.fields.len())));
        let missing = self.new_value(id, None);
        let name: Arc<str> = name.into();
        let field = Field {
            name: Arc::clone(&name),
            references: 1,
            by_value: BTreeMap::new(),
            missing,
            in_work: BTreeSet::new(),
            had: 0,
            counts: ValueCounts::default(),
            handed_out_before: self.all.handed_out,
        };
        match self.fields.get_mut(id.0 as usize) {
            Some(place) => *place = field,
            None => self.fields.push(field),
        }
        self.names.insert(name, id);
        id
    }

    /// Another reference to a field.
    pub(super) fn refer_to_field(&mut self, id: FieldId) {
        self.fields[id.0 as usize].references += 1;
    }

    pub(super) fn release_field(&mut self, id: FieldId) {
        let field = &mut self.fields[id.0 as usize];
        field.references -= 1;
        if field.references == 0 {
            self.names.remove(&field.name);
            self.free_values.push(field.missing);
            self.free_fields.push(id);
        }
    }

    /// The number of a value, which the caller refers to until it calls [`Values::release`].
    pub(super) fn value(&mut self, field: &str, value: &MetaValue) -> ValueId {
        let field = self.field(field);
        if let Some(id) = self.fields[field.0 as usize].by_value.get(value).copied() {
            self.release_field(field);
            self.retain(id);
            return id;
        }
        // The field's new reference is the value's.
        let value = Arc::new(value.clone());
        let id = self.new_value(field, Some(Arc::clone(&value)));
        self.fields[field.0 as usize].by_value.insert(value, id);
        id
    }

    fn new_value(&mut self, field: FieldId, value: Option<Arc<MetaValue>>) -> ValueId {
        let fresh =
            Value { field, value, references: 1, submissions: 0, since: 0, counts: ValueCounts::default() };
        match self.free_values.pop() {
            Some(id) => {
                self.values[id.0 as usize] = fresh;
                id
            }
            None => {
                self.values.push(fresh);
                ValueId(number(self.values.len() - 1))
            }
        }
    }

    /// Another reference to a value.
    pub(super) fn retain(&mut self, id: ValueId) {
        self.values[id.0 as usize].references += 1;
    }

    pub(super) fn release(&mut self, id: ValueId) {
        let value = &mut self.values[id.0 as usize];
        value.references -= 1;
        if value.references > 0 {
            return;
        }
        let field = value.field;
        match value.value.take() {
            Some(text) => {
                assert_eq!(value.counts.out, 0, "a value that nobody has is not being worked on");
                self.fields[field.0 as usize].by_value.remove(&text);
                self.free_values.push(id);
                self.release_field(field);
            }
            None => unreachable!("the absence of a field lives as long as the field"),
        }
    }

    /// The values of a submission, in the order of their numbers; it has them, and refers to them, until it leaves and
    /// releases them.
    pub(super) fn of(&mut self, metadata: &Metadata) -> FewValues {
        let mut values: Vec<ValueId> =
            metadata.iter().map(|(field, value)| self.value(field, value)).collect();
        values.sort_unstable();
        for id in &values {
            let Value { submissions, field, .. } = &mut self.values[id.0 as usize];
            *submissions += 1;
            self.fields[field.0 as usize].had += u32::from(*submissions == 1);
        }
        FewValues::new(values)
    }

    /// The metadata that these values are.
    pub(super) fn metadata(&self, values: &FewValues) -> MetadataBytes {
        let mut fields: Vec<(&str, &MetaValue)> =
            values.iter().filter_map(|id| Some((self.name_of(self.field_of(id)), self.get(id)?))).collect();
        fields.sort_unstable_by_key(|(field, _)| *field);
        MetadataBytes::of_sorted(&fields)
    }

    /// A submission does not have the value any more; it still refers to it. Says whether no other one has it.
    pub(super) fn leave(&mut self, id: ValueId) -> bool {
        let Value { submissions, field, .. } = &mut self.values[id.0 as usize];
        *submissions -= 1;
        let is_last = *submissions == 0;
        self.fields[field.0 as usize].had -= u32::from(is_last);
        is_last
    }

    /// How many different values of a field submissions have.
    pub(super) fn had(&self, field: FieldId) -> u32 {
        self.fields[field.0 as usize].had
    }

    /// The number of a field that somebody refers to.
    pub(super) fn known_field(&self, name: &str) -> Option<FieldId> {
        self.names.get(name).copied()
    }

    /// Which of a submission's values is the field's; the field's absence if it has none.
    pub(super) fn of_field(&self, values: &FewValues, field: FieldId) -> ValueId {
        let found = values.iter().find(|id| self.values[id.0 as usize].field == field);
        found.unwrap_or(self.fields[field.0 as usize].missing)
    }

    /// Whether this stands for the absence of its field.
    pub(super) fn is_missing(&self, id: ValueId) -> bool {
        self.values[id.0 as usize].value.is_none()
    }

    pub(super) fn field_of(&self, id: ValueId) -> FieldId {
        self.values[id.0 as usize].field
    }

    pub(super) fn name_of(&self, field: FieldId) -> &str {
        &self.fields[field.0 as usize].name
    }

    pub(super) fn get(&self, id: ValueId) -> Option<&MetaValue> {
        self.values[id.0 as usize].value.as_deref()
    }

    pub(super) fn counts(&self, id: ValueId) -> ValueCounts {
        self.values[id.0 as usize].counts
    }

    /// What is known of the submissions without a field, since the field is known.
    pub(super) fn counts_without(&self, field: FieldId) -> ValueCounts {
        let Field { counts: with, handed_out_before, .. } = &self.fields[field.0 as usize];
        ValueCounts {
            ready_submissions: self.all.ready_submissions - with.ready_submissions,
            ready_chunks: self.all.ready_chunks - with.ready_chunks,
            out: self.all.out - with.out,
            handed_out: self.all.handed_out - handed_out_before - with.handed_out,
        }
    }

    /// Chunks handed out since a field is known, of submissions with it and without it.
    pub(super) fn handed_out_since(&self, field: FieldId) -> u64 {
        self.all.handed_out - self.fields[field.0 as usize].handed_out_before
    }

    /// Chunks of this value being worked on.
    pub(super) fn out(&self, id: ValueId) -> u64 {
        self.values[id.0 as usize].counts.out
    }

    /// How many different values of a field are known: submissions have them, strategies name them, books of turns keep them.
    pub(super) fn distinct(&self, field: FieldId) -> usize {
        self.fields[field.0 as usize].by_value.len()
    }

    /// The values of a field that are known.
    pub(super) fn values_of(&self, field: FieldId) -> impl Iterator<Item = ValueId> {
        self.fields[field.0 as usize].by_value.values().copied()
    }

    /// Those of them that submissions have.
    pub(super) fn values_had(&self, field: FieldId) -> impl Iterator<Item = ValueId> {
        self.values_of(field).filter(|id| self.values[id.0 as usize].submissions > 0)
    }

    /// The values of a field of which chunks are being worked on.
    pub(super) fn in_work(&self, field: FieldId) -> impl Iterator<Item = ValueId> {
        self.fields[field.0 as usize].in_work.iter().copied()
    }

    /// A chunk of a submission with this value goes out.
    pub(super) fn count_out(&mut self, id: ValueId) {
        let value = &mut self.values[id.0 as usize];
        let field = &mut self.fields[value.field.0 as usize];
        value.counts.out += 1;
        field.counts.out += 1;
        if value.counts.out == 1 {
            field.in_work.insert(id);
        }
    }

    /// A chunk of a submission with this value is not out any more.
    pub(super) fn count_in(&mut self, id: ValueId) {
        let value = &mut self.values[id.0 as usize];
        let field = &mut self.fields[value.field.0 as usize];
        value.counts.out -= 1;
        field.counts.out -= 1;
        if value.counts.out == 0 {
            field.in_work.remove(&id);
        }
    }

    /// One more or one less chunk of any submission is out.
    pub(super) const fn count_of_all(&mut self, is_out: bool) {
        if is_out {
            self.all.out += 1;
        } else {
            self.all.out -= 1;
        }
    }

    /// Chunks of a submission with these values were handed out.
    pub(super) fn count_handed_out(&mut self, values: &FewValues, chunks: u64) {
        self.all.handed_out += chunks;
        for id in values.iter() {
            let value = &mut self.values[id.0 as usize];
            value.counts.handed_out += chunks;
            self.fields[value.field.0 as usize].counts.handed_out += chunks;
        }
    }

    /// A submission's ready chunks were `before` and are `after`.
    pub(super) fn count_ready(&mut self, values: &FewValues, before: u64, after: u64) {
        self.all.count_ready(before, after);
        for id in values.iter() {
            let Value { counts, since, field, .. } = &mut self.values[id.0 as usize];
            if counts.ready_submissions == 0 && after > 0 {
                self.arrivals += 1;
                *since = self.arrivals;
            }
            counts.count_ready(before, after);
            self.fields[field.0 as usize].counts.count_ready(before, after);
        }
    }

    /// Since when a value has had ready chunks without a break: smaller is longer. 0 for the absence of a field.
    pub(super) fn since(&self, id: ValueId) -> u64 {
        self.values[id.0 as usize].since
    }

    /// How many submissions have a chunk that could be handed out.
    pub(super) const fn ready_submissions(&self) -> u64 {
        self.all.ready_submissions
    }

    /// The fields that are known, by name.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, FieldId)> {
        self.names.iter().map(|(name, id)| (&**name, *id))
    }

    /// The number of a value that somebody refers to.
    pub(super) fn known_value(&self, field: &str, value: &MetaValue) -> Option<ValueId> {
        self.fields[self.known_field(field)?.0 as usize].by_value.get(value).copied()
    }

    /// What stands for the absence of a field.
    pub(super) fn missing(&self, field: FieldId) -> ValueId {
        self.fields[field.0 as usize].missing
    }

    /// How many refer to each value that is known, for the audit; a field refers to its absence.
    pub(super) fn references(&self) -> BTreeMap<ValueId, u32> {
        let fields = self.names.values().map(|id| &self.fields[id.0 as usize]);
        let known = fields.flat_map(|field| field.by_value.values().chain([&field.missing]));
        known.map(|id| (*id, self.values[id.0 as usize].references)).collect()
    }

    /// How many refer to each field that is known, for the audit.
    pub(super) fn field_references(&self) -> BTreeMap<FieldId, u32> {
        self.names.values().map(|id| (*id, self.fields[id.0 as usize].references)).collect()
    }

    /// Whether each number is in use or free, for the audit.
    pub(super) fn numbers_agree(&self) -> bool {
        let mut values: Vec<ValueId> =
            self.references().into_keys().chain(self.free_values.clone()).collect();
        let mut fields: Vec<FieldId> = self.names.values().chain(&self.free_fields).copied().collect();
        values.sort_unstable();
        fields.sort_unstable();
        values.into_iter().eq((0..number(self.values.len())).map(ValueId))
            && fields.into_iter().eq((0..number(self.fields.len())).map(FieldId))
    }
}

fn number(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than 4 billion values fit into memory")
}

/// The values of one submission: up to three without a place of their own in memory.
#[derive(Debug, Clone)]
pub(super) enum FewValues {
    Three([ValueId; 3]),
    #[expect(
        clippy::box_collection,
        reason = "a thin pointer keeps the whole at 16 bytes, and few have more than three"
    )]
    More(Box<Vec<ValueId>>),
}

const NO_VALUE: ValueId = ValueId(u32::MAX);

impl FewValues {
    fn new(values: Vec<ValueId>) -> FewValues {
        if values.len() > 3 {
            return FewValues::More(Box::new(values));
        }
        let mut three = [NO_VALUE; 3];
        three[..values.len()].copy_from_slice(&values);
        FewValues::Three(three)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ValueId> + Clone {
        let all = match self {
            FewValues::Three(three) => &three[..],
            FewValues::More(more) => more,
        };
        all.iter().copied().take_while(|id| *id != NO_VALUE)
    }

    pub(super) fn contains(&self, id: ValueId) -> bool {
        self.iter().any(|it| it == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(fields: &[(&str, i64)]) -> Metadata {
        fields.iter().map(|(field, value)| ((*field).into(), MetaValue::Integer(*value))).collect()
    }

    #[test]
    fn a_value_is_known_by_one_number_while_somebody_has_it_and_forgotten_after_that() {
        let mut values = Values::default();
        let first = values.of(&metadata(&[("company", 7), ("size", 1)]));
        let second = values.of(&metadata(&[("company", 7)]));
        let company = values.known_field("company").unwrap();
        let seven = values.of_field(&first, company);
        assert_eq!(values.of_field(&second, company), seven);
        assert_eq!(values.get(seven), Some(&MetaValue::Integer(7)));
        assert_eq!(values.distinct(company), 1);

        first.iter().for_each(|id| values.release(id));
        assert_eq!(values.known_field("size"), None);
        assert_eq!(values.get(seven), Some(&MetaValue::Integer(7)));
        second.iter().for_each(|id| values.release(id));
        assert_eq!(values.known_field("company"), None);
    }

    #[test]
    fn values_say_the_metadata_that_they_were_made_from_in_the_bytes_of_a_row() {
        let mut values = Values::default();
        let mixed: Metadata = [("b".to_owned(), "x".into()), ("a".to_owned(), MetaValue::Bool(true))].into();
        for metadata in [mixed, metadata(&[("z", -1), ("a", 1), ("c", i64::MAX), ("b", 7)]), Metadata::new()]
        {
            let known = values.of(&metadata);
            let bytes = values.metadata(&known);
            assert_eq!(bytes.as_bytes(), crate::rows::encode(&metadata));
        }
    }

    #[test]
    fn a_submission_without_the_field_has_the_fields_absence() {
        let mut values = Values::default();
        let has = values.of(&metadata(&[("company", 7)]));
        let has_not = values.of(&metadata(&[("size", 1), ("a", 1), ("b", 2), ("c", 3)]));
        let company = values.known_field("company").unwrap();
        assert!(!values.is_missing(values.of_field(&has, company)));
        assert!(values.is_missing(values.of_field(&has_not, company)));
        assert_eq!(has_not.iter().count(), 4);
    }
}
