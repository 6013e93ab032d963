//! Uploads: bytes of any length get in as they arrive, with their digest taken on the way.
//!
//! Invariants
//! - No upload holds more than three parts in memory, however long it is.
//! - What was refused or broke off leaves nothing behind when its fault is told.

use super::large::{LargeUpload, PART_BYTES};
use super::{ObjectKey, Objects, PutOutcome};
use crate::fault::StoreFault;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use sha2::{Digest as _, Sha256};
use std::pin::pin;
use windlass_core::branches::entries::Digest;

/// Objects up to this size are held in memory and put with one call: most are, and each further call to S3 costs as much
/// as some megabytes.
pub const SMALL_BYTES_MAX: usize = PART_BYTES;

/// What an upload may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// The largest object in bytes.
    pub bytes_max: u64,
}

/// What got in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uploaded {
    /// The object's size in bytes.
    pub size: u64,
    /// The digest of its bytes.
    pub sha256: Digest,
}

/// Why nothing got in.
#[derive(Debug, thiserror::Error)]
pub enum UploadFault<E> {
    /// The bytes stopped coming.
    #[error("{0}")]
    Stream(E),
    /// There are more bytes than allowed.
    #[error("an object has at most {bytes_max} bytes, and this one has more; split it")]
    TooLarge {
        /// The largest object in bytes.
        bytes_max: u64,
    },
    /// The bytes are not those that were announced.
    #[error("the bytes that arrived have the SHA-256 {found}, not {expected} as announced; send them again")]
    Digest {
        /// What was announced.
        expected: Digest,
        /// What arrived.
        found: Digest,
    },
    /// There is an object with this key, and it stays as it was.
    #[error("an object has this key; objects never change, so use another key")]
    Exists,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

impl Objects {
    /// Writes an object from a stream, unless there is one with this key. With `expected`, only if the bytes have this
    /// digest.
    ///
    /// # Errors
    /// If the stream breaks or is too long, the digest is another, the key is taken, or the store fails; then nothing of it
    /// stays. If the store fails at the very end, the object may be there as a whole.
    pub async fn put_stream<E>(
        &self,
        key: &ObjectKey,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        limits: UploadLimits,
        expected: Option<Digest>,
    ) -> Result<Uploaded, UploadFault<E>> {
        let mut intake = Intake { stream: pin!(stream), limits, expected, sha256: Sha256::new(), size: 0 };
        let mut begin = BytesMut::new();
        while begin.len() <= SMALL_BYTES_MAX {
            if let Some(piece) = intake.next().await? {
                begin.extend_from_slice(&piece);
                continue;
            }
            let uploaded = intake.end()?;
            return match self.put_new(key, begin.freeze()).await? {
                PutOutcome::Created => Ok(uploaded),
                PutOutcome::Exists => Err(UploadFault::Exists),
            };
        }
        // Whoever sends gigabytes should not hear only at their end that they are not wanted.
        if self.look_up(key).await?.is_some() {
            return Err(UploadFault::Exists);
        }
        let mut upload = self.begin_large(key).await?;
        match self.fill(key, &mut upload, begin, &mut intake).await {
            Ok(uploaded) => match self.finish_large(key, upload).await? {
                PutOutcome::Created => Ok(uploaded),
                PutOutcome::Exists => Err(UploadFault::Exists),
            },
            Err(fault) => {
                upload.abandon().await;
                Err(fault)
            }
        }
    }

    async fn fill<E>(
        &self,
        key: &ObjectKey,
        upload: &mut LargeUpload,
        begin: BytesMut,
        intake: &mut Intake<impl Stream<Item = Result<Bytes, E>> + Unpin>,
    ) -> Result<Uploaded, UploadFault<E>> {
        let failed = |error| UploadFault::Store(self.fault("put", key, &error));
        // Each part is memory of its own, so that it is free again as soon as it is sent.
        let mut rest = begin;
        upload.send(rest.split_to(PART_BYTES).freeze()).await.map_err(failed)?;
        let mut next = Some(Bytes::copy_from_slice(&rest));
        drop(rest);
        let mut gathered = BytesMut::with_capacity(PART_BYTES);
        while let Some(mut piece) = next {
            while !piece.is_empty() {
                let room = PART_BYTES - gathered.len();
                gathered.extend_from_slice(&piece.split_to(room.min(piece.len())));
                if gathered.len() == PART_BYTES {
                    let part = std::mem::replace(&mut gathered, BytesMut::with_capacity(PART_BYTES));
                    upload.send(part.freeze()).await.map_err(failed)?;
                }
            }
            next = intake.next().await?;
        }
        let uploaded = intake.end()?;
        if !gathered.is_empty() {
            upload.send(gathered.freeze()).await.map_err(failed)?;
        }
        upload.settle().await.map_err(failed)?;
        Ok(uploaded)
    }
}

/// The bytes of an upload as they are counted.
struct Intake<S> {
    stream: S,
    limits: UploadLimits,
    expected: Option<Digest>,
    sha256: Sha256,
    size: u64,
}

impl<S: Stream<Item = Result<Bytes, E>> + Unpin, E> Intake<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, UploadFault<E>> {
        let Some(piece) = self.stream.next().await else { return Ok(None) };
        let piece = piece.map_err(UploadFault::Stream)?;
        self.size += piece.len() as u64;
        if self.size > self.limits.bytes_max {
            return Err(UploadFault::TooLarge { bytes_max: self.limits.bytes_max });
        }
        self.sha256.update(&piece);
        Ok(Some(piece))
    }

    /// What has come in all, if it is what was announced.
    fn end(&mut self) -> Result<Uploaded, UploadFault<E>> {
        let found = Digest::new(self.sha256.finalize_reset().into());
        match self.expected {
            Some(expected) if expected != found => Err(UploadFault::Digest { expected, found }),
            Some(_) | None => Ok(Uploaded { size: self.size, sha256: found }),
        }
    }
}
