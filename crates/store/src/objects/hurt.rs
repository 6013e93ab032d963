//! An object store that tests can hurt: calls fail, are lost, are slow, or find no space. It is built for tests only, by
//! the feature `hurt`.
//!
//! Its address is `hurt+file:///path?fail_every=7&lost_every=11&slow_ms=5&full_after_bytes=1000000`, each part as needed.
//!
//! Invariants
//! - A call that fails has done nothing; one that is lost has done all.
//! - What is read is what was written.

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What hurts, and how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wounds {
    /// Every so many calls, one fails; never if 0.
    pub fail_every: u64,
    /// Every so many calls that change something, one is done and its answer lost; never if 0.
    pub lost_every: u64,
    /// Each call takes at least so long.
    pub slow: Duration,
    /// When so many bytes have been written, there is no space for more.
    pub full_after_bytes: Option<u64>,
}

/// The store, above the one that holds the bytes.
#[derive(Debug, Clone)]
pub struct HurtStore {
    inner: Arc<dyn ObjectStore>,
    nerves: Arc<Nerves>,
}

#[derive(Debug)]
struct Nerves {
    wounds: Wounds,
    calls: AtomicU64,
    changes: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct HurtUpload {
    inner: Box<dyn MultipartUpload>,
    nerves: Arc<Nerves>,
}

impl Wounds {
    /// The path and the wounds of an address, without its scheme.
    ///
    /// # Errors
    /// If a wound is none; the sentence says which there are.
    pub fn parse(place: &str) -> std::result::Result<(&str, Wounds), String> {
        let (path, query) = place.split_once('?').unwrap_or((place, ""));
        let mut wounds = Wounds::default();
        for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
            let number: u64 = value.parse().map_err(|_| format!("{name} is a number, not {value:?}"))?;
            match name {
                "fail_every" => wounds.fail_every = number,
                "lost_every" => wounds.lost_every = number,
                "slow_ms" => wounds.slow = Duration::from_millis(number),
                "full_after_bytes" => wounds.full_after_bytes = Some(number),
                other => {
                    return Err(format!(
                        "{other} is none of fail_every, lost_every, slow_ms, full_after_bytes"
                    ));
                }
            }
        }
        Ok((path, wounds))
    }
}

impl HurtStore {
    /// A store that is hurt so.
    pub fn new(inner: Arc<dyn ObjectStore>, wounds: Wounds) -> HurtStore {
        let nerves =
            Nerves { wounds, calls: AtomicU64::new(0), changes: AtomicU64::new(0), bytes: AtomicU64::new(0) };
        HurtStore { inner, nerves: Arc::new(nerves) }
    }
}

fn ache(kind: io::ErrorKind, words: &str) -> Error {
    Error::Generic { store: "hurt", source: Box::new(io::Error::new(kind, words)) }
}

fn is_nth(counter: &AtomicU64, every: u64) -> bool {
    let nth = counter.fetch_add(1, Ordering::Relaxed) + 1;
    every != 0 && nth.is_multiple_of(every)
}

impl Nerves {
    async fn before(&self) -> Result<()> {
        if !self.wounds.slow.is_zero() {
            tokio::time::sleep(self.wounds.slow).await;
        }
        match is_nth(&self.calls, self.wounds.fail_every) {
            true => Err(ache(io::ErrorKind::TimedOut, "the store did not answer")),
            false => Ok(()),
        }
    }

    fn after(&self) -> Result<()> {
        match is_nth(&self.changes, self.wounds.lost_every) {
            true => Err(ache(io::ErrorKind::ConnectionReset, "the store's answer was lost")),
            false => Ok(()),
        }
    }

    fn take_space(&self, bytes: usize) -> Result<()> {
        let taken = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        match self.wounds.full_after_bytes {
            Some(all) if taken > all => Err(ache(io::ErrorKind::StorageFull, "no space is left")),
            Some(_) | None => Ok(()),
        }
    }
}

impl fmt::Display for HurtStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hurt {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for HurtStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.nerves.before().await?;
        self.nerves.take_space(payload.content_length())?;
        let put = self.inner.put_opts(location, payload, opts).await?;
        self.nerves.after().map(|()| put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.nerves.before().await?;
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(HurtUpload { inner, nerves: Arc::clone(&self.nerves) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.nerves.before().await?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let hurt = self.clone();
        let deleted = locations.then(move |location| {
            let hurt = hurt.clone();
            async move {
                let location = location?;
                hurt.nerves.before().await?;
                let one = futures_util::stream::once(async { Ok(location) }).boxed();
                let gone = hurt.inner.delete_stream(one).collect::<Vec<_>>().await;
                let gone = gone.into_iter().collect::<Result<Vec<_>>>()?;
                hurt.nerves.after()?;
                Ok(gone)
            }
        });
        deleted
            .flat_map(|gone| match gone {
                Ok(gone) => futures_util::stream::iter(gone.into_iter().map(Ok).collect::<Vec<_>>()),
                Err(error) => futures_util::stream::iter(vec![Err(error)]),
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.nerves.before().await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.nerves.before().await?;
        self.inner.copy_opts(from, to, options).await?;
        self.nerves.after()
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.nerves.before().await?;
        self.inner.rename_opts(from, to, options).await?;
        self.nerves.after()
    }
}

#[async_trait]
impl MultipartUpload for HurtUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (nerves, length) = (Arc::clone(&self.nerves), data.content_length());
        let sent = self.inner.put_part(data);
        async move {
            nerves.before().await?;
            nerves.take_space(length)?;
            sent.await?;
            nerves.after()
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.nerves.before().await?;
        let put = self.inner.complete().await?;
        self.nerves.after().map(|()| put)
    }

    async fn abort(&mut self) -> Result<()> {
        // Taking back what failed must not fail in turn: stores that do that are told of in the log, not here.
        self.inner.abort().await
    }
}
