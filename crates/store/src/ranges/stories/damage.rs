//! Files that are damaged or missing.

use super::*;
use std::path::PathBuf;

/// A folder with a metarange of many ranges; the path of its file and that of its first range.
async fn a_commit_in(folder: &tempfile::TempDir) -> (Objects, Digest, [PathBuf; 2]) {
    let objects = Objects::open(folder.path().to_str().unwrap()).unwrap();
    let made = generate(&small(&objects), None, None, counted(0..100)).await;
    let files = [made.files[made.files.len() - 1], made.files[0]];
    (objects, made.metarange, files.map(|name| folder.path().join(name.to_string())))
}

/// What everyone who needs the file is told, and that it is the same for all.
async fn told(objects: &Objects, metarange: Digest) -> String {
    let ranges = small(objects);
    let told = ranges.get(metarange, "path/000000").await.unwrap_err().to_string();
    assert_eq!(ranges.cursor(Some(metarange)).next().await.err().unwrap().to_string(), told);
    let mut differences = ranges.differences(Some(metarange), None);
    assert_eq!(differences.next().await.unwrap_err().to_string(), told);
    assert_eq!(differences.next().await.unwrap_err().to_string(), told, "it is not passed over");
    let changes = futures_util::stream::iter([Ok(remove("path/000001"))]);
    let note = async |_: &[FileName]| Err("nothing is noted");
    let fault = ranges.generate(Some(metarange), None, changes, note).await.unwrap_err();
    assert_eq!(fault.to_string(), told);
    told
}

#[tokio::test]
async fn a_damaged_file_is_named_and_nothing_is_read_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, metarange, paths) = a_commit_in(&folder).await;
    for path in paths {
        let whole = std::fs::read(&path).unwrap();
        let file = path.strip_prefix(folder.path()).unwrap().display();
        let mut hurt = whole.clone();
        hurt[whole.len() / 2] ^= 1;
        for bytes in [&hurt[..], &whole[..whole.len() - 1], b""] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(
                told(&objects, metarange).await,
                format!(
                    "the file {file} in {} is damaged: its bytes do not have the SHA-256 that is its name; nothing was \
                     read from it: restore it from a backup of the object store, or roll branches back to a commit \
                     without it",
                    folder.path().display()
                )
            );
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert_eq!(all(&small(&objects), Some(metarange)).await.len(), 100, "it can be mended");
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, metarange, paths) = a_commit_in(&folder).await;
    for path in paths {
        let aside = folder.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        let file = path.strip_prefix(folder.path()).unwrap().display();
        assert_eq!(
            told(&objects, metarange).await,
            format!(
                "the file {file} is missing in {}, and a commit names it: restore it from a backup of the object store, \
                 or roll branches back to a commit without it",
                folder.path().display()
            )
        );
        std::fs::rename(&aside, &path).unwrap();
    }
}

#[tokio::test]
async fn a_cursor_goes_on_where_it_was_when_the_file_is_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, metarange, [_, path]) = a_commit_in(&folder).await;
    let ranges = small(&objects);
    let mut cursor = ranges.cursor(Some(metarange));
    cursor.seek("path/000001");
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(cursor.peek().await.is_err());
    std::fs::write(&path, whole).unwrap();
    assert_eq!(cursor.next().await.unwrap().unwrap().path(), "path/000001");
}

#[tokio::test]
async fn no_metarange_is_written_when_one_of_its_ranges_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(folder.path().to_str().unwrap()).unwrap();
    std::fs::write(folder.path().join("ranges"), "a file where the ranges' folder should be").unwrap();
    let changes = futures_util::stream::iter(counted(0..5).into_iter().map(Ok));
    let ranges = small(&objects);
    let made = ranges.generate(None, None, changes, async |_: &[FileName]| Ok::<_, Infallible>(()));
    assert!(matches!(made.await, Err(GenerateFault::Store(_))));
    assert!(!folder.path().join("metaranges").exists());
}
