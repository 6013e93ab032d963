//! What other programs read: files for `.ci/parquet`, which compares them with what pyarrow finds.

use super::*;
use serde_json::{Value, json};

/// Writes files into the folder that `WINDLASS_TEST_PARQUET` names, and `expected.json` beside them; without it this
/// story passes over itself.
#[tokio::test]
async fn files_for_other_readers_are_written_with_what_is_in_them() {
    let Ok(folder) = std::env::var("WINDLASS_TEST_PARQUET") else { return };
    let objects = Objects::open(&folder).unwrap();
    let mut changes = counted(0..40_000);
    changes.extend([put("ä/ö", 1), put("🦀", 2)]);
    // One range of many pages, several small ones, and none at all.
    let large = generate(&Ranges::new(objects.clone()), None, None, changes).await;
    let few = generate(&small(&objects), None, None, counted(0..50)).await;
    let none = generate(&small(&objects), None, None, Vec::new()).await;

    let mut expected = serde_json::Map::new();
    for made in [large, few, none] {
        let list = Ranges::new(objects.clone()).metarange(made.metarange).await.unwrap();
        let mut entries = all(&small(&objects), Some(made.metarange)).await.into_iter();
        for range in &list.ranges {
            let rows = entries.by_ref().take(range.entries as usize).map(|(path, entry)| row(&path, &entry));
            expected.insert(FileName::Range(range.range).to_string(), rows.collect());
        }
        let rows = list.ranges.iter().map(|range| {
            json!({
                "range": range.range.to_string(),
                "first_path": range.first_path,
                "last_path": range.last_path,
                "entries": range.entries,
                "bytes": range.bytes,
                "file_bytes": range.file_bytes,
                "is_closed": range.is_closed,
            })
        });
        expected.insert(FileName::Metarange(made.metarange).to_string(), rows.collect());
    }
    std::fs::write(format!("{folder}/expected.json"), Value::Object(expected).to_string()).unwrap();
}

fn row(path: &str, entry: &ObjectEntry) -> Value {
    json!({
        "path": path,
        "address": entry.address,
        "size": entry.size,
        "sha256": entry.sha256.to_string(),
        "content_type": entry.content_type,
        "metadata": (!entry.metadata.is_empty()).then_some(&entry.metadata),
        "submission": entry.made_by.map(|it| it.submission.as_u64()),
        "chunk": entry.made_by.map(|it| it.chunk.0),
    })
}
