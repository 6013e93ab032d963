//! A measurement, not a check: a million changes over ten million entries, in a folder.
//!
//! `cargo test --release -p windlass-store ranges::stories::million -- --ignored --nocapture`

use super::*;
use std::time::Instant;

fn number_of(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// The most memory that this process has had, in MiB, since it was last set back.
fn memory_peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn synthetic(number: u64, version: u64) -> ObjectEntry {
    let sha256 = digest_of(&[number, version].map(u64::to_be_bytes).concat());
    ObjectEntry {
        address: format!("submissions/{}/{version}/{number:09}", 7_000_000 + number / 100_000),
        size: 1_000 + number % 50_000,
        sha256,
        content_type: "application/octet-stream".to_owned(),
        metadata: BTreeMap::new(),
        made_by: SubmissionId::from_u64(7_000_000 + number / 100_000)
            .map(|submission| MadeBy { submission, chunk: ChunkIndex(number % 100_000) }),
    }
}

async fn measure(
    objects: &Objects,
    parent: Option<Digest>,
    what: &str,
    numbers: impl Iterator<Item = u64>,
    version: u64,
) -> Digest {
    let changes = numbers.map(|number| {
        let path = format!("feeds/{:03}/part-{number:09}.json", number / 100_000);
        Ok(Change { path, entry: Some(synthetic(number, version)) })
    });
    // What was the peak until now does not matter.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let (ranges, begin) = (Ranges::new(objects.clone()), Instant::now());
    let mut notes = 0;
    let changes = futures_util::stream::iter(changes);
    let made = ranges.generate(parent, None, changes, async |_: &[FileName]| {
        notes += 1;
        Ok::<_, Infallible>(())
    });
    let made = made.await.unwrap();
    println!(
        "{what}: {:.1} s, {} entries, {} added, {} changed, {} ranges, {} written, {} files read, {notes} notes, peak {} MiB",
        begin.elapsed().as_secs_f64(),
        made.entries,
        made.added,
        made.changed,
        made.ranges,
        made.ranges_written,
        ranges.reads(),
        memory_peak_mib(),
    );
    made.metarange
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and prints figures"]
async fn a_million_changes_over_ten_million_entries() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(folder.path().to_str().unwrap()).unwrap();
    let entries = number_of("WINDLASS_ENTRIES", 10_000_000);
    let changes = entries / 10;
    let first = Some(measure(&objects, None, "all at once", 0..entries, 0).await);
    measure(&objects, first, "one change", entries / 2..entries / 2 + 1, 1).await;
    measure(&objects, first, "a tenth, at the end", entries..entries + changes, 1).await;
    measure(&objects, first, "a tenth, side by side", entries / 2..entries / 2 + changes, 1).await;
    measure(&objects, first, "a tenth, each tenth entry", (0..changes).map(|it| it * 10), 1).await;
}
