//! Objects: bytes under a key, written once, in a folder or in S3.
//!
//! Invariants
//! - An object is never overwritten: a second put of a key changes nothing and says so.
//! - In a folder, a put has been synced when it returns.
//! - A key reaches the store only as an [`ObjectKey`], which cannot lead out of the store's folder.

use crate::fault::StoreFault;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, path};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The longest key. S3 takes 1,024 bytes with the prefix, and a folder's path 4,096.
pub const KEY_BYTES_MAX: usize = 512;
/// A file is read in pieces of this size, each on a thread that may wait.
const PIECE_BYTES: u64 = 256 << 10;

/// A place for objects. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    address: String,
}

/// What a put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is new.
    Created,
    /// There was an object with this key, and it stays as it was.
    Exists,
}

/// An object's bytes as they arrive.
pub struct ObjectStream {
    /// The object's size in bytes.
    pub size: u64,
    /// Its bytes, in order.
    pub stream: BoxStream<'static, Result<Bytes, StoreFault>>,
}

impl Objects {
    /// Opens a place for objects: a path or `file:///path` (the folder is made), `s3://bucket/prefix` (settings from
    /// the `AWS_…` environment variables), or `memory://` for tests.
    ///
    /// # Errors
    /// If the address is none of these, or the folder cannot be made.
    pub fn open(address: &str) -> Result<Objects, StoreFault> {
        let store: Arc<dyn ObjectStore> = match address.split_once("://") {
            None => open_folder(address, Path::new(address))?,
            Some(("file", folder)) => open_folder(address, Path::new(folder))?,
            Some(("memory", _)) => Arc::new(InMemory::new()),
            Some(("s3", place)) => open_s3(address, place)?,
            Some((scheme, _)) => {
                return Err(bad_address(address, format!("the scheme {scheme} is not known")));
            }
        };
        Ok(Objects { store, address: address.to_owned() })
    }

    /// Writes an object, unless there is one with this key.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn put_new(&self, key: &ObjectKey, bytes: Bytes) -> Result<PutOutcome, StoreFault> {
        let location = key.location();
        match self.store.put_opts(&location, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(PutOutcome::Exists),
            Err(error) => Err(self.fault("put", key, &error)),
        }
    }

    /// Reads an object; none if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<ObjectStream>, StoreFault> {
        let found = match self.store.get_opts(&key.location(), GetOptions::default()).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.fault("get", key, &error)),
        };
        let size = found.meta.size;
        let (objects, key) = (self.clone(), key.clone());
        let stream = match found.payload {
            GetResultPayload::File(file, _) => stream_file(objects, key, file, size),
            GetResultPayload::Stream(stream) => {
                stream.map(move |piece| piece.map_err(|error| objects.fault("get", &key, &error))).boxed()
            }
        };
        Ok(Some(ObjectStream { size, stream }))
    }

    /// An object's size in bytes; none if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<u64>, StoreFault> {
        match self.store.head(&key.location()).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault("look up", key, &error)),
        }
    }

    /// The address that the objects were opened with.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn fault(
        &self,
        action: &'static str,
        key: &ObjectKey,
        error: &(dyn std::error::Error + 'static),
    ) -> StoreFault {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let full = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded];
        if causes
            .filter_map(|error| error.downcast_ref::<std::io::Error>())
            .any(|it| full.contains(&it.kind()))
        {
            return StoreFault::DiskFull { action, path: Path::new(&self.address).join(&key.0) };
        }
        StoreFault::Objects {
            action,
            key: key.0.clone(),
            address: self.address.clone(),
            detail: error.to_string(),
        }
    }
}

impl ObjectStream {
    /// The whole object, for those that are known to be small.
    ///
    /// # Errors
    /// If the store fails before the end.
    pub async fn into_bytes(mut self) -> Result<Bytes, StoreFault> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = self.stream.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(bytes.freeze())
    }
}

fn open_folder(address: &str, folder: &Path) -> Result<Arc<dyn ObjectStore>, StoreFault> {
    if folder.as_os_str().is_empty() {
        return Err(bad_address(address, "the path is empty".to_owned()));
    }
    std::fs::create_dir_all(folder).map_err(|e| StoreFault::from_io("create", folder, e))?;
    let store =
        LocalFileSystem::new_with_prefix(folder).map_err(|error| bad_address(address, error.to_string()))?;
    Ok(Arc::new(store.with_fsync(true)))
}

fn open_s3(address: &str, place: &str) -> Result<Arc<dyn ObjectStore>, StoreFault> {
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(bad_address(address, "the bucket is missing".to_owned()));
    }
    let prefix = prefix.trim_end_matches('/');
    if !prefix.is_empty() {
        ObjectKey::parse(prefix).map_err(|bad| bad_address(address, bad.to_string()))?;
    }
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let store = builder.build().map_err(|error| bad_address(address, error.to_string()))?;
    Ok(Arc::new(PrefixStore::new(store, path::Path::from(prefix))))
}

fn bad_address(address: &str, what: String) -> StoreFault {
    StoreFault::ObjectsAddress { address: address.to_owned(), what }
}

/// A file's bytes in pieces; the store's own pieces of 8 KiB each cost a change of threads.
fn stream_file(
    objects: Objects,
    key: ObjectKey,
    file: File,
    size: u64,
) -> BoxStream<'static, Result<Bytes, StoreFault>> {
    let file = Arc::new(file);
    let offsets = (0..size).step_by(PIECE_BYTES as usize);
    let pieces = futures_util::stream::iter(offsets).then(move |offset| {
        let (objects, key, file) = (objects.clone(), key.clone(), Arc::clone(&file));
        async move {
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; PIECE_BYTES.min(size - offset) as usize];
                file.read_exact_at(&mut piece, offset).map(|()| Bytes::from(piece))
            });
            match read.await {
                Ok(Ok(piece)) => Ok(piece),
                Ok(Err(error)) => Err(objects.fault("get", &key, &error)),
                Err(error) => Err(objects.fault("get", &key, &error)),
            }
        }
    });
    pieces.boxed()
}

/// An object's key: segments of letters, digits and `._=-`, joined by `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(String);

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Nothing was given.
    #[error("an object's key is empty; give at least one character")]
    Empty,
    /// It is too long.
    #[error("an object's key has {length} bytes, and at most {KEY_BYTES_MAX} are taken; shorten it")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It begins or ends with a slash, or has two in a row.
    #[error(
        "the object's key {key:?} has an empty segment; remove the slash at its begin or end, or the doubled one"
    )]
    EmptySegment {
        /// The key as given.
        key: String,
    },
    /// A segment is `.` or `..`.
    #[error("the object's key {key:?} has a segment of dots only; name the object without . and ..")]
    Dots {
        /// The key as given.
        key: String,
    },
    /// A character is not taken.
    #[error(
        "the object's key {key:?} has the character {character:?}; use letters, digits and . _ = - in segments joined by /"
    )]
    Character {
        /// The key as given.
        key: String,
        /// The character.
        character: char,
    },
}

impl ObjectKey {
    /// Reads a key.
    ///
    /// # Errors
    /// If the text is no key; the sentence says what to change.
    pub fn parse(key: &str) -> Result<ObjectKey, BadKey> {
        if key.is_empty() {
            return Err(BadKey::Empty);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(BadKey::TooLong { length: key.len() });
        }
        let is_taken = |character: char| character.is_ascii_alphanumeric() || "._=-".contains(character);
        for segment in key.split('/') {
            if segment.is_empty() {
                return Err(BadKey::EmptySegment { key: key.to_owned() });
            }
            if segment == "." || segment == ".." {
                return Err(BadKey::Dots { key: key.to_owned() });
            }
            if let Some(character) = segment.chars().find(|character| !is_taken(*character)) {
                return Err(BadKey::Character { key: key.to_owned(), character });
            }
        }
        Ok(ObjectKey(key.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn location(&self) -> path::Path {
        path::Path::from(self.0.as_str())
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn an_object_is_written_once_and_read_back(objects: Objects) {
        let key = ObjectKey::parse("submissions/7/chunk=3.bin").unwrap();
        assert_eq!(objects.head(&key).await.unwrap(), None);
        assert!(objects.get(&key).await.unwrap().is_none());

        let bytes = Bytes::from((0..600_000_u32).map(|at| at as u8).collect::<Vec<_>>());
        assert_eq!(objects.put_new(&key, bytes.clone()).await.unwrap(), PutOutcome::Created);
        assert_eq!(objects.put_new(&key, Bytes::from("other")).await.unwrap(), PutOutcome::Exists);
        assert_eq!(objects.head(&key).await.unwrap(), Some(600_000));
        let found = objects.get(&key).await.unwrap().unwrap();
        assert_eq!(found.size, 600_000);
        assert!(found.into_bytes().await.unwrap() == bytes);

        let empty = ObjectKey::parse("empty").unwrap();
        assert_eq!(objects.put_new(&empty, Bytes::new()).await.unwrap(), PutOutcome::Created);
        assert!(objects.get(&empty).await.unwrap().unwrap().into_bytes().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn objects_in_memory_are_written_once() {
        an_object_is_written_once_and_read_back(Objects::open("memory://").unwrap()).await;
    }

    #[tokio::test]
    async fn objects_in_a_new_folder_are_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/objects");
        an_object_is_written_once_and_read_back(Objects::open(path.to_str().unwrap()).unwrap()).await;
        let again = Objects::open(&format!("file://{}", path.display())).unwrap();
        assert_eq!(again.head(&ObjectKey::parse("empty").unwrap()).await.unwrap(), Some(0));
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

    #[test]
    fn a_key_that_could_lead_astray_is_refused() {
        for good in ["a", "a/b.c/d_e=f-g", "...", &"k".repeat(512)] {
            assert_eq!(ObjectKey::parse(good).unwrap().as_str(), good);
        }
        let dots = |key: &str| BadKey::Dots { key: key.to_owned() };
        let empty = |key: &str| BadKey::EmptySegment { key: key.to_owned() };
        let character = |key: &str, character| BadKey::Character { key: key.to_owned(), character };
        for (key, bad) in [
            ("", BadKey::Empty),
            ("..", dots("..")),
            ("a/../b", dots("a/../b")),
            ("./a", dots("./a")),
            ("/a", empty("/a")),
            ("a/", empty("a/")),
            ("a//b", empty("a//b")),
            ("a b", character("a b", ' ')),
            ("a\\b", character("a\\b", '\\')),
            ("a%2e", character("a%2e", '%')),
            ("ä", character("ä", 'ä')),
            ("a\0", character("a\0", '\0')),
            (&"k".repeat(513), BadKey::TooLong { length: 513 }),
        ] {
            assert_eq!(ObjectKey::parse(key), Err(bad));
        }
    }
}
