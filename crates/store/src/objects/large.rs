//! Large objects: they get in part by part, and appear under their key at the end, all at once.
//!
//! In a folder the parts go into a file of their own under `+uploads`, which is synced, gets a second name (a hard link fails
//! if that is taken) and loses its first. On S3 they are a multipart upload, which is completed on the condition that no
//! object has the key.
//!
//! Invariants
//! - Completing never overwrites an object.
//! - An upload that is dropped is taken back, though whoever dropped it does not wait for that.
//! - What a killed process left in a folder goes a day later, when the folder is opened again. On S3 the bucket's own rule for
//!   incomplete uploads does this.

use super::{ObjectKey, Objects, PutOutcome};
use crate::fault::StoreFault;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    ClientOptions, CopyMode, CopyOptions, Error, HeaderMap, HeaderValue, MultipartId, MultipartUpload,
    ObjectStore, ObjectStoreExt,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;

/// S3 takes at most 10,000 parts, of at least 5 MiB each; some stores want all of one size. These make 78 GiB.
pub(super) const PART_BYTES: usize = 8 << 20;

/// Where uploads are staged: no key has a `+`.
const STAGING: &str = "+uploads";

/// An upload writes all the time; a file that nobody has written to for so long belongs to a process that is gone.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// How large objects get into a store.
#[derive(Clone)]
pub(super) enum LargeWay {
    /// Under a name of their own first, then under their key.
    Staged,
    /// As a multipart upload.
    S3(Arc<S3Parts>),
}

/// The parts of S3's interface that a multipart upload needs.
pub(super) struct S3Parts {
    parts: AmazonS3,
    /// Completes uploads only where no object is. The library has this condition for single puts only, so this client sends
    /// it with every request and is used for nothing else.
    completer: AmazonS3,
    prefix: String,
}

/// A large object on its way. It is taken back when dropped.
pub(super) struct LargeUpload {
    under_way: Option<UnderWay>,
}

struct UnderWay {
    place: Place,
    /// The part that is being sent while the next one is gathered.
    sending: Option<JoinHandle<Result<Option<PartId>, Error>>>,
}

/// Where the parts go.
enum Place {
    Staged { store: Arc<dyn ObjectStore>, upload: Box<dyn MultipartUpload>, staged: Path },
    S3 { s3: Arc<S3Parts>, location: Path, id: MultipartId, parts: Vec<PartId>, sent: usize },
}

impl S3Parts {
    pub(super) fn new(parts: AmazonS3, builder: AmazonS3Builder, prefix: &str) -> Result<S3Parts, Error> {
        let mut only_new = HeaderMap::new();
        only_new.insert("if-none-match", HeaderValue::from_static("*"));
        let mut builder = builder.with_client_options(ClientOptions::new().with_default_headers(only_new));
        // New options took the place of those that the environment gave.
        for (name, value) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            if let Ok(key @ AmazonS3ConfigKey::Client(_)) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        Ok(S3Parts { parts, completer: builder.build()?, prefix: prefix.to_owned() })
    }

    fn location(&self, key: &ObjectKey) -> Path {
        Path::from(self.prefix.as_str()).parts().chain(key.location().parts()).collect()
    }
}

impl Objects {
    pub(super) async fn begin_large(&self, key: &ObjectKey) -> Result<LargeUpload, StoreFault> {
        let (store, way, for_key) = (Arc::clone(&self.store), self.large.clone(), key.clone());
        // In a task of its own: a caller who goes away in between would leave an upload behind that nobody knows of.
        let begun = tokio::spawn(async move {
            let place = match way {
                LargeWay::Staged => {
                    let staged = Path::from(format!("{STAGING}/{:016x}{:016x}", random(), random()));
                    let upload = store.put_multipart(&staged).await?;
                    Place::Staged { store, upload, staged }
                }
                LargeWay::S3(s3) => {
                    let location = s3.location(&for_key);
                    let id = s3.parts.create_multipart(&location).await?;
                    Place::S3 { s3, location, id, parts: vec![], sent: 0 }
                }
            };
            Ok(LargeUpload { under_way: Some(UnderWay { place, sending: None }) })
        });
        joined(begun.await).map_err(|error| self.fault("put", key, &error))
    }

    /// Gives the object its key, or takes it back.
    pub(super) async fn finish_large(
        &self,
        key: &ObjectKey,
        mut upload: LargeUpload,
    ) -> Result<PutOutcome, StoreFault> {
        let Some(UnderWay { place, sending }) = upload.under_way.take() else {
            return Ok(PutOutcome::Exists);
        };
        assert!(sending.is_none(), "an upload is finished when its last part has arrived");
        // In a task of its own, which comes to its end though the caller may go away.
        let location = key.location();
        let finished = tokio::spawn(async move {
            match place {
                Place::Staged { store, upload, staged } => publish(&*store, upload, &staged, &location).await,
                Place::S3 { s3, location, id, parts, .. } => complete(&s3, &location, &id, parts).await,
            }
        });
        match joined(finished.await) {
            Ok(()) => Ok(PutOutcome::Created),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(PutOutcome::Exists),
            Err(error) => Err(self.fault("put", key, &error)),
        }
    }
}

/// Gives a staged upload its name.
async fn publish(
    store: &dyn ObjectStore,
    mut upload: Box<dyn MultipartUpload>,
    staged: &Path,
    location: &Path,
) -> Result<(), Error> {
    let named = match upload.complete().await {
        Ok(_) => {
            let only_new = CopyOptions::new().with_mode(CopyMode::Create);
            store.copy_opts(staged, location, only_new).await
        }
        Err(error) => {
            // It may be that only the answer was lost; then there is nothing to abort, and what is staged goes below.
            if let Err(error) = upload.abort().await {
                tracing::debug!(%error, %staged, "an upload could not be aborted");
            }
            Err(error)
        }
    };
    match store.delete(staged).await {
        Ok(()) | Err(Error::NotFound { .. }) => {}
        Err(error) => tracing::warn!(%error, %staged, "the staged name of an upload stays for a day"),
    }
    named
}

async fn complete(s3: &S3Parts, location: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<(), Error> {
    let completed = s3.completer.complete_multipart(location, id, parts).await.map(drop);
    if completed.is_err() {
        abort_on_s3(s3, location, id).await;
    }
    completed
}

async fn abort_on_s3(s3: &S3Parts, location: &Path, id: &MultipartId) {
    match s3.parts.abort_multipart(location, id).await {
        Ok(()) | Err(Error::NotFound { .. }) => {}
        Err(error) => {
            tracing::warn!(%error, %location, "an upload that came to nothing may still take space")
        }
    }
}

impl LargeUpload {
    /// Sends a part as soon as the one before it has arrived.
    pub(super) async fn send(&mut self, part: Bytes) -> Result<(), Error> {
        self.settle().await?;
        if let Some(under_way) = &mut self.under_way {
            under_way.sending = Some(tokio::spawn(under_way.place.send(part)));
        }
        Ok(())
    }

    /// Waits until the part under way has arrived.
    pub(super) async fn settle(&mut self) -> Result<(), Error> {
        match &mut self.under_way {
            Some(under_way) => under_way.settle().await,
            None => Ok(()),
        }
    }

    /// Takes the upload back; nothing of it stays.
    pub(super) async fn abandon(mut self) {
        if let Some(under_way) = self.under_way.take()
            && let Err(error) = tokio::spawn(under_way.take_back()).await
        {
            tracing::error!(%error, "an upload could not be taken back");
        }
    }
}

impl Drop for LargeUpload {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(under_way.take_back());
        }
    }
}

impl UnderWay {
    async fn settle(&mut self) -> Result<(), Error> {
        let Some(sending) = &mut self.sending else { return Ok(()) };
        let sent = joined(sending.await);
        self.sending = None;
        if let (Some(part), Place::S3 { parts, .. }) = (sent?, &mut self.place) {
            parts.push(part);
        }
        Ok(())
    }

    async fn take_back(mut self) {
        // A part that arrives after the end of its upload would stay.
        if let Err(error) = self.settle().await {
            tracing::debug!(%error, "the last part of an upload did not arrive");
        }
        match self.place {
            Place::Staged { mut upload, staged, .. } => {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(%error, %staged, "an upload that came to nothing stays for a day");
                }
            }
            Place::S3 { s3, location, id, .. } => abort_on_s3(&s3, &location, &id).await,
        }
    }
}

impl Place {
    fn send(&mut self, part: Bytes) -> BoxFuture<'static, Result<Option<PartId>, Error>> {
        match self {
            Place::Staged { upload, .. } => {
                let sending = upload.put_part(part.into());
                Box::pin(async move { sending.await.map(|()| None) })
            }
            Place::S3 { s3, location, id, sent, .. } => {
                let (s3, location, id, nth) = (Arc::clone(s3), location.clone(), id.clone(), *sent);
                *sent += 1;
                Box::pin(async move { s3.parts.put_part(&location, &id, nth, part.into()).await.map(Some) })
            }
        }
    }
}

/// What a task gave; one that did not come to its end is a fault of the store.
fn joined<T>(ended: Result<Result<T, Error>, tokio::task::JoinError>) -> Result<T, Error> {
    ended.unwrap_or_else(|error| Err(Error::JoinError { source: error }))
}

/// From the standard library's own chance.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Takes away what uploads of killed processes left in a folder.
pub(super) fn remove_leftovers(folder: &std::path::Path) -> Result<(), StoreFault> {
    let staging = folder.join(STAGING);
    let fault = |error| StoreFault::from_io("read", &staging, error);
    let files = match std::fs::read_dir(&staging) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fault(error)),
    };
    for file in files {
        let path = file.map_err(fault)?.path();
        let written = std::fs::metadata(&path).and_then(|it| it.modified());
        let age = written.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        // One that goes by itself in between has ended in another process.
        if age.is_some_and(|age| age > LEFTOVER_AGE)
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "a left-over upload could not be removed");
        }
    }
    Ok(())
}
