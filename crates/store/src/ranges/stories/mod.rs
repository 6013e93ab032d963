//! Stories of ranges, told step by step and by chance.

mod damage;
mod files;
mod histories;
mod interchange;
mod million;
mod sharing;

use super::{Change, Cuts, FileName, GenerateFault, Generated, Kept, Ranges, digest_of};
use crate::objects::Objects;
use std::collections::BTreeMap;
use std::convert::Infallible;
use windlass_core::branches::entries::{Digest, MadeBy, ObjectEntry};
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// What a branch holds, as naively as can be.
type Model = BTreeMap<String, ObjectEntry>;

/// Ranges of a handful of entries, so that a short story has many.
const SMALL: Cuts = Cuts { entries_min: 2, modulus: 4, entries_max: 8, text_bytes_max: 2_000 };

/// Chance from a seed (splitmix64), so that a failing story can be told again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

fn small(objects: &Objects) -> Ranges {
    Ranges::with(objects.clone(), SMALL, Kept::default())
}

fn memory() -> Objects {
    Objects::open("memory://").unwrap()
}

/// An entry that is another for every number: with and without metadata and a chunk.
fn entry(number: u64) -> ObjectEntry {
    let metadata = [("näme", "a \"quoted\" wörd"), ("number", "7"), ("", "🦀\\\n")];
    ObjectEntry {
        address: format!("objects/{:02x}/{number}.bin", number % 251),
        size: number * 1_000,
        sha256: digest_of(&number.to_be_bytes()),
        content_type: ["", "text/plain", "application/json; charset=utf-8"][(number % 3) as usize].to_owned(),
        metadata: metadata[..(number % 4) as usize]
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        made_by: SubmissionId::from_u64(number * 77)
            .filter(|_| number.is_multiple_of(2))
            .map(|submission| MadeBy { submission, chunk: ChunkIndex(number % 1_000) }),
    }
}

fn put(path: impl Into<String>, number: u64) -> Change {
    Change { path: path.into(), entry: Some(entry(number)) }
}

fn remove(path: impl Into<String>) -> Change {
    Change { path: path.into(), entry: None }
}

/// Paths that count up, each with an entry of its number.
fn counted(numbers: impl Iterator<Item = u64>) -> Vec<Change> {
    numbers.map(|number| put(format!("path/{number:06}"), number)).collect()
}

async fn generate(
    ranges: &Ranges,
    parent: Option<Digest>,
    replaced_prefix: Option<&str>,
    changes: Vec<Change>,
) -> Generated {
    let changes = futures_util::stream::iter(changes.into_iter().map(Ok));
    let made =
        ranges.generate(parent, replaced_prefix, changes, async |_: &[FileName]| Ok::<_, Infallible>(()));
    match made.await {
        Ok(generated) => generated,
        Err(GenerateFault::Store(fault)) => panic!("{fault}"),
        Err(GenerateFault::Note(never)) => match never {},
    }
}

async fn all(ranges: &Ranges, metarange: Option<Digest>) -> Model {
    let mut cursor = ranges.cursor(metarange);
    let mut model = Model::new();
    while let Some(found) = cursor.next().await.unwrap() {
        let is_new = model.insert(found.path().to_owned(), found.to_entry()).is_none();
        assert!(is_new, "{} came twice", found.path());
    }
    model
}
