//! Stories of objects: the same ones in memory and in a folder, and what happens when the store is hurt.

use super::*;
use futures_util::StreamExt;
use futures_util::stream;
use sha2::{Digest as _, Sha256};
use std::convert::Infallible;
use windlass_core::branches::entries::Digest;

const LIMITS: UploadLimits = UploadLimits { bytes_max: 100 << 20 };
const LARGE: usize = 18_000_000;

fn key(text: &str) -> ObjectKey {
    ObjectKey::parse(text).unwrap()
}

/// Bytes that tell where they are from, within a stretch that is no part's size.
fn some_bytes(length: usize) -> Bytes {
    let stretch: Vec<u8> = (0..65_537_usize).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut bytes = stretch.repeat(length / stretch.len() + 1);
    bytes.truncate(length);
    bytes.into()
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::new(Sha256::digest(bytes).into())
}

/// The bytes in pieces of an odd size, so that they end in the middle of parts.
fn pieces(bytes: &Bytes) -> Vec<Bytes> {
    (0..bytes.len()).step_by(99_991).map(|at| bytes.slice(at..bytes.len().min(at + 99_991))).collect()
}

async fn put(
    objects: &Objects,
    at: &str,
    bytes: &Bytes,
    limits: UploadLimits,
    expected: Option<Digest>,
) -> Result<Uploaded, UploadFault<Infallible>> {
    let pieces = stream::iter(pieces(bytes).into_iter().map(Ok));
    objects.put_stream(&key(at), pieces, limits, expected).await
}

async fn read(objects: &Objects, at: &str) -> Bytes {
    objects.get(&key(at)).await.unwrap().unwrap().into_bytes().await.unwrap()
}

/// A file's path below a folder, for each file.
fn files(folder: &Path) -> Vec<String> {
    let mut found = vec![];
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_str().unwrap();
            found.extend(files(&path).iter().map(|below| format!("{name}/{below}")));
        } else {
            found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

async fn an_object_is_written_once_and_read_back(objects: &Objects) {
    let at = key("submissions/7/chunk=3.bin");
    assert_eq!(objects.head(&at).await.unwrap(), None);
    assert!(objects.get(&at).await.unwrap().is_none());

    let bytes = some_bytes(600_000);
    assert_eq!(objects.put_new(&at, bytes.clone()).await.unwrap(), PutOutcome::Created);
    assert_eq!(objects.put_new(&at, Bytes::from("other")).await.unwrap(), PutOutcome::Exists);
    assert_eq!(objects.head(&at).await.unwrap(), Some(600_000));
    let found = objects.get(&at).await.unwrap().unwrap();
    assert_eq!((found.size, found.range.clone()), (600_000, 0..600_000));
    assert!(found.into_bytes().await.unwrap() == bytes);

    let empty = key("empty");
    assert_eq!(objects.put_new(&empty, Bytes::new()).await.unwrap(), PutOutcome::Created);
    assert!(read(objects, "empty").await.is_empty());
}

async fn a_stream_of_any_length_is_written_once(objects: &Objects) {
    let edges = [0, 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 2 * SMALL_BYTES_MAX, LARGE];
    for (nth, length) in edges.into_iter().enumerate() {
        let (bytes, at) = (some_bytes(length), format!("streams/{nth}"));
        let sha256 = digest_of(&bytes);
        let uploaded = put(objects, &at, &bytes, LIMITS, Some(sha256)).await.unwrap();
        assert_eq!(uploaded, Uploaded { size: length as u64, sha256 });
        assert!(read(objects, &at).await == bytes, "{length} bytes come back");
        for other in [some_bytes(3), some_bytes(LARGE + 1)] {
            let again = put(objects, &at, &other, LIMITS, None).await;
            assert!(matches!(again, Err(UploadFault::Exists)), "{again:?}");
        }
        assert!(read(objects, &at).await == bytes, "the first one stays");
    }
}

async fn of_two_uploads_at_the_same_time_one_gets_in(objects: &Objects) {
    let (one, other) = (some_bytes(LARGE), some_bytes(LARGE + 7));
    let both =
        tokio::join!(put(objects, "race", &one, LIMITS, None), put(objects, "race", &other, LIMITS, None));
    let kept = read(objects, "race").await;
    match both {
        (Ok(_), Err(UploadFault::Exists)) => assert!(kept == one),
        (Err(UploadFault::Exists), Ok(_)) => assert!(kept == other),
        both => panic!("one gets in, and the other hears so: {both:?}"),
    }
}

async fn what_is_refused_leaves_nothing(objects: &Objects) {
    let expected = digest_of(b"other");
    for length in [1_000, LARGE] {
        let bytes = some_bytes(length);
        let wrong = put(objects, "refused", &bytes, LIMITS, Some(expected)).await;
        let found = digest_of(&bytes);
        assert!(
            matches!(&wrong, Err(UploadFault::Digest { expected: e, found: f }) if (*e, *f) == (expected, found))
        );
        let limits = UploadLimits { bytes_max: length as u64 - 1 };
        let long = put(objects, "refused", &bytes, limits, None).await;
        assert!(matches!(&long, Err(UploadFault::TooLarge { bytes_max }) if *bytes_max == limits.bytes_max));
        let fits = UploadLimits { bytes_max: length as u64 };
        assert!(put(objects, &format!("fits/{length}"), &bytes, fits, None).await.is_ok());

        let breaks = stream::iter(pieces(&bytes).into_iter().map(Ok)).chain(stream::iter([Err("gone")]));
        let broken = objects.put_stream(&key("refused"), breaks, LIMITS, None).await;
        assert!(matches!(broken, Err(UploadFault::Stream("gone"))), "{broken:?}");
        assert_eq!(objects.head(&key("refused")).await.unwrap(), None);
    }
}

async fn parts_are_read_and_deleted_objects_are_gone(objects: &Objects) {
    let bytes = some_bytes(700_001);
    put(objects, "parts", &bytes, LIMITS, None).await.unwrap();
    for (range, taken) in [
        (ObjectRange::Between(0..1), 0..1),
        (ObjectRange::Between(5..600_000), 5..600_000),
        (ObjectRange::Between(700_000..u64::MAX), 700_000..700_001),
        (ObjectRange::From(300_000), 300_000..700_001),
        (ObjectRange::Last(1), 700_000..700_001),
        (ObjectRange::Last(800_000), 0..700_001),
    ] {
        let Ranged::Found(found) = objects.get_range(&key("parts"), &range).await.unwrap() else {
            panic!("{range:?} is there")
        };
        assert_eq!((found.size, found.range.clone()), (700_001, taken.clone()));
        assert!(found.into_bytes().await.unwrap() == bytes.slice(taken.start as usize..taken.end as usize));
    }
    for range in [ObjectRange::Between(700_001..700_002), ObjectRange::From(700_001), ObjectRange::Last(0)] {
        let found = objects.get_range(&key("parts"), &range).await.unwrap();
        assert!(matches!(found, Ranged::Unsatisfiable { size: 700_001 }), "{range:?}");
    }
    for _ in 0..2 {
        objects.delete(&key("parts")).await.unwrap();
        let gone = objects.get_range(&key("parts"), &ObjectRange::From(0)).await.unwrap();
        assert!(matches!(gone, Ranged::Unknown));
    }
}

async fn every_story(objects: &Objects) {
    an_object_is_written_once_and_read_back(objects).await;
    a_stream_of_any_length_is_written_once(objects).await;
    of_two_uploads_at_the_same_time_one_gets_in(objects).await;
    what_is_refused_leaves_nothing(objects).await;
    parts_are_read_and_deleted_objects_are_gone(objects).await;
}

#[tokio::test]
async fn objects_in_memory_are_written_once() {
    every_story(&Objects::open("memory://").unwrap()).await;
}

#[tokio::test]
async fn objects_in_a_new_folder_are_written_once_and_nothing_else_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/objects");
    every_story(&Objects::open(path.to_str().unwrap()).unwrap()).await;
    let streams = (0..6).map(|nth| format!("streams/{nth}"));
    let mut named: Vec<String> = ["submissions/7/chunk=3.bin", "empty", "race", "fits/1000", "fits/18000000"]
        .map(str::to_owned)
        .into_iter()
        .chain(streams)
        .collect();
    named.sort();
    assert_eq!(files(&path), named);
    let again = Objects::open(&format!("file://{}", path.display())).unwrap();
    assert_eq!(again.head(&key("empty")).await.unwrap(), Some(0));
}

#[tokio::test]
async fn an_upload_whose_sender_is_dropped_in_the_middle_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(folder.path().to_str().unwrap()).unwrap();
    let endless = stream::repeat_with(|| Ok::<_, Infallible>(some_bytes(1 << 20)));
    let endless = endless.then(|piece| async {
        tokio::task::yield_now().await;
        piece
    });
    let at = key("endless");
    let limits = UploadLimits { bytes_max: u64::MAX };
    let mut upload = Box::pin(objects.put_stream(&at, endless, limits, None));
    while files(folder.path()).is_empty() {
        tokio::select! {
            biased;
            ended = &mut upload => panic!("it does not end: {ended:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(upload);
    let began = std::time::Instant::now();
    while !files(folder.path()).is_empty() {
        assert!(began.elapsed().as_secs() < 60, "it is taken back: {:?}", files(folder.path()));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_a_killed_process_left_goes_a_day_later_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let staging = folder.path().join("+uploads");
    std::fs::create_dir(&staging).unwrap();
    let write = |name: &str, hours: u64| {
        let file = std::fs::File::create(staging.join(name)).unwrap();
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3_600);
        file.set_modified(at).unwrap();
    };
    write("old#1", 25);
    write("young#1", 23);
    Objects::open(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(files(folder.path()), ["+uploads/young#1"]);
}

#[tokio::test]
async fn a_store_that_fails_now_and_then_never_shows_half_an_object() {
    let folder = tempfile::tempdir().unwrap();
    let address = |wounds: &str| format!("hurt+file://{}?{wounds}", folder.path().display());
    let whole = Objects::open(folder.path().to_str().unwrap()).unwrap();
    let (mut created, mut failed) = (0, 0);
    for (nth, wounds) in
        ["fail_every=3", "fail_every=4&slow_ms=1", "lost_every=3", "lost_every=4"].iter().enumerate()
    {
        let hurt = Objects::open(&address(wounds)).unwrap();
        for (at, length) in (0..12).zip([10, LARGE].into_iter().cycle()) {
            let (at, bytes) = (format!("{nth}/{at}"), some_bytes(length));
            match put(&hurt, &at, &bytes, LIMITS, None).await {
                Ok(uploaded) => {
                    created += 1;
                    assert_eq!(uploaded.sha256, digest_of(&bytes));
                    assert!(read(&whole, &at).await == bytes);
                }
                Err(UploadFault::Store(StoreFault::Objects { .. })) => {
                    failed += 1;
                    if whole.head(&key(&at)).await.unwrap().is_some() {
                        assert!(wounds.starts_with("lost"), "a call that failed did nothing");
                        assert!(read(&whole, &at).await == bytes);
                    }
                }
                Err(other) => panic!("{wounds}: {other}"),
            }
        }
    }
    assert!(created > 0 && failed > 0, "{created} created, {failed} failed");
}

#[tokio::test]
async fn a_full_store_is_called_full_and_takes_back_what_it_could_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("hurt+file://{}?full_after_bytes=10000000", folder.path().display());
    let objects = Objects::open(&address).unwrap();
    for length in [LARGE, 10] {
        let full = put(&objects, "it", &some_bytes(length), LIMITS, None).await;
        assert!(matches!(full, Err(UploadFault::Store(StoreFault::DiskFull { .. }))), "{full:?}");
        assert!(files(folder.path()).is_empty());
    }
}

#[test]
fn an_address_that_is_none_is_refused_with_what_to_give() {
    for (address, what) in [
        ("ftp://host", "the scheme ftp is not known"),
        ("s3://", "the bucket is missing"),
        ("", "the path is empty"),
    ] {
        assert_eq!(
            Objects::open(address).err().unwrap().to_string(),
            format!(
                "{address:?} is no place for objects: {what}; give a path, file:///path, or s3://bucket/prefix"
            )
        );
    }
}
