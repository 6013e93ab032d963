//! Objects: bytes under a key, written once, in a folder or in S3.
//!
//! `key` is what an object is called, `upload` how bytes of any length get in, `large` how those get in that do not fit
//! the memory, `read` how they come out.
//!
//! Invariants
//! - An object is never overwritten: a second put of a key changes nothing and says so.
//! - In a folder, a put has been synced when it returns, and so has the folder.
//! - An object is there as a whole or not at all: what a broken upload brought is taken away again.
//! - A key reaches the store only as an [`ObjectKey`], which cannot lead out of the store's folder.

#[cfg(any(test, feature = "hurt"))]
pub mod hurt;
mod key;
mod large;
mod read;
#[cfg(test)]
mod stories;
mod upload;

use crate::fault::StoreFault;
use bytes::Bytes;
pub use key::{BadKey, KEY_BYTES_MAX, ObjectKey};
use large::{LargeWay, S3Parts};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, path};
pub use read::{ObjectLook, ObjectRange, ObjectStream, Ranged};
use std::path::Path;
use std::sync::Arc;
pub use upload::{SMALL_BYTES_MAX, UploadFault, UploadLimits, Uploaded};

/// A place for objects. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    large: LargeWay,
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

impl Objects {
    /// Opens a place for objects: a path or `file:///path` (the folder is made), `s3://bucket/prefix` (settings from
    /// the `AWS_…` environment variables), or `memory://` for tests.
    ///
    /// # Errors
    /// If the address is none of these, or the folder cannot be made.
    pub fn open(address: &str) -> Result<Objects, StoreFault> {
        let (store, large) = match address.split_once("://") {
            None => (open_folder(address, Path::new(address))?, LargeWay::Staged),
            Some(("file", folder)) => (open_folder(address, Path::new(folder))?, LargeWay::Staged),
            Some(("memory", _)) => (Arc::new(InMemory::new()) as Arc<dyn ObjectStore>, LargeWay::Staged),
            Some(("s3", place)) => open_s3(address, place)?,
            #[cfg(any(test, feature = "hurt"))]
            Some(("hurt+file", place)) => {
                let (folder, wounds) =
                    hurt::Wounds::parse(place).map_err(|what| bad_address(address, what))?;
                let store = hurt::HurtStore::new(open_folder(address, Path::new(folder))?, wounds);
                (Arc::new(store) as Arc<dyn ObjectStore>, LargeWay::Staged)
            }
            Some((scheme, _)) => {
                return Err(bad_address(address, format!("the scheme {scheme} is not known")));
            }
        };
        Ok(Objects { store, large, address: address.to_owned() })
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

    /// Takes an object away; there may be none. In a folder the name may come back if the power fails just then: whoever
    /// must know that it is gone deletes it again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn delete(&self, key: &ObjectKey) -> Result<(), StoreFault> {
        match self.store.delete(&key.location()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.fault("delete", key, &error)),
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
            return StoreFault::DiskFull { action, path: Path::new(&self.address).join(key.as_str()) };
        }
        StoreFault::Objects {
            action,
            key: key.as_str().to_owned(),
            address: self.address.clone(),
            detail: error.to_string(),
        }
    }
}

fn open_folder(address: &str, folder: &Path) -> Result<Arc<dyn ObjectStore>, StoreFault> {
    if folder.as_os_str().is_empty() {
        return Err(bad_address(address, "the path is empty".to_owned()));
    }
    std::fs::create_dir_all(folder).map_err(|e| StoreFault::from_io("create", folder, e))?;
    large::remove_leftovers(folder)?;
    let store =
        LocalFileSystem::new_with_prefix(folder).map_err(|error| bad_address(address, error.to_string()))?;
    Ok(Arc::new(store.with_fsync(true)))
}

fn open_s3(address: &str, place: &str) -> Result<(Arc<dyn ObjectStore>, LargeWay), StoreFault> {
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(bad_address(address, "the bucket is missing".to_owned()));
    }
    let prefix = prefix.trim_end_matches('/');
    if !prefix.is_empty() {
        ObjectKey::parse(prefix).map_err(|bad| bad_address(address, bad.to_string()))?;
    }
    let wrong = |error: object_store::Error| bad_address(address, error.to_string());
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let store = builder.clone().build().map_err(wrong)?;
    let parts = S3Parts::new(store.clone(), builder, prefix).map_err(wrong)?;
    let store = PrefixStore::new(store, path::Path::from(prefix));
    Ok((Arc::new(store), LargeWay::S3(Arc::new(parts))))
}

fn bad_address(address: &str, what: String) -> StoreFault {
    StoreFault::ObjectsAddress { address: address.to_owned(), what }
}
