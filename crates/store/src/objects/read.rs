//! Reading: an object as a whole or in part, in pieces, and what can be known of it without reading it.
//!
//! Invariants
//! - A stream gives exactly the bytes of its range, or ends with a fault.

use super::{ObjectKey, Objects};
use crate::fault::StoreFault;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStoreExt};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A file is read in pieces of this size, each on a thread that may wait.
const PIECE_BYTES: u64 = 256 << 10;

/// An object's bytes as they arrive.
pub struct ObjectStream {
    /// The object's size in bytes.
    pub size: u64,
    /// Which of its bytes come.
    pub range: Range<u64>,
    /// What the store calls these bytes, if it does; never the same for other bytes under the same key.
    pub etag: Option<String>,
    /// The bytes, in order.
    pub stream: BoxStream<'static, Result<Bytes, StoreFault>>,
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectRange {
    /// From a byte on, up to but not including another, or to the object's end if that is nearer.
    Between(Range<u64>),
    /// From a byte on.
    From(u64),
    /// The last so many bytes, or all if there are fewer.
    Last(u64),
}

/// What became of reading a part.
pub enum Ranged {
    /// Here it is.
    Found(ObjectStream),
    /// There is no such object.
    Unknown,
    /// The object has no byte of this part.
    Unsatisfiable {
        /// The object's size in bytes.
        size: u64,
    },
}

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectLook {
    /// Its size in bytes.
    pub size: u64,
    /// What the store calls its bytes, if it does.
    pub etag: Option<String>,
}

impl ObjectRange {
    /// Which bytes of an object of this size these are; none if it has none of them.
    pub fn within(&self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            ObjectRange::Between(range) => range.start..range.end.min(size),
            ObjectRange::From(first) => *first..size,
            ObjectRange::Last(length) => size.saturating_sub(*length)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

impl Objects {
    /// Reads an object; none if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<ObjectStream>, StoreFault> {
        match self.store.get_opts(&key.location(), GetOptions::default()).await {
            Ok(found) => Ok(Some(self.stream_of(key, found))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault("get", key, &error)),
        }
    }

    /// Reads a part of an object.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn get_range(&self, key: &ObjectKey, range: &ObjectRange) -> Result<Ranged, StoreFault> {
        let asked = match range {
            ObjectRange::Between(range) => GetRange::Bounded(range.clone()),
            ObjectRange::From(first) => GetRange::Offset(*first),
            ObjectRange::Last(length) => GetRange::Suffix(*length),
        };
        let options = GetOptions { range: Some(asked), ..GetOptions::default() };
        match self.store.get_opts(&key.location(), options).await {
            // Some stores give an empty part where others refuse.
            Ok(found) if found.range.is_empty() => Ok(Ranged::Unsatisfiable { size: found.meta.size }),
            Ok(found) => Ok(Ranged::Found(self.stream_of(key, found))),
            Err(object_store::Error::NotFound { .. }) => Ok(Ranged::Unknown),
            // Each store has its own words for a part that is not there; the size tells.
            Err(error) => match self.look_up(key).await? {
                Some(look) if range.within(look.size).is_none() => {
                    Ok(Ranged::Unsatisfiable { size: look.size })
                }
                Some(_) | None => Err(self.fault("get", key, &error)),
            },
        }
    }

    /// An object's size in bytes; none if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<u64>, StoreFault> {
        Ok(self.look_up(key).await?.map(|look| look.size))
    }

    /// What is known of an object without reading it; none if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn look_up(&self, key: &ObjectKey) -> Result<Option<ObjectLook>, StoreFault> {
        match self.store.head(&key.location()).await {
            Ok(found) => Ok(Some(ObjectLook { size: found.size, etag: found.e_tag })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.fault("look up", key, &error)),
        }
    }

    fn stream_of(&self, key: &ObjectKey, found: GetResult) -> ObjectStream {
        let (objects, key) = (self.clone(), key.clone());
        let GetResult { payload, meta, range, .. } = found;
        let stream = match payload {
            GetResultPayload::File(file, _) => stream_file(objects, key, file, range.clone()),
            GetResultPayload::Stream(stream) => {
                stream.map(move |piece| piece.map_err(|error| objects.fault("get", &key, &error))).boxed()
            }
        };
        ObjectStream { size: meta.size, range, etag: meta.e_tag, stream }
    }
}

impl ObjectStream {
    /// All bytes of the stream, for those that are known to be few.
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

/// A file's bytes in pieces; the store's own pieces of 8 KiB each cost a change of threads.
fn stream_file(
    objects: Objects,
    key: ObjectKey,
    file: File,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes, StoreFault>> {
    let (file, end) = (Arc::new(file), range.end);
    let offsets = range.step_by(PIECE_BYTES as usize);
    let pieces = futures_util::stream::iter(offsets).then(move |offset| {
        let (objects, key, file) = (objects.clone(), key.clone(), Arc::clone(&file));
        async move {
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; PIECE_BYTES.min(end - offset) as usize];
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
