//! The producer's side: submit operations, wait for submissions, read what came out.

use crate::chance;
use crate::chunking::Chunks;
use crate::client::Client;
use crate::error::ClientError;
use crate::results::{ChunkResult, Results};
use crate::watch::Watch;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use std::num::NonZeroUsize;
use windlass_api::json::{SubmissionEvent, SubmissionInfo, SubmitRequest};
use windlass_api::objects;
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// Uploads under way at once: enough to hide the way to the store, few enough to hold their chunks in memory.
const UPLOADS_AT_ONCE: usize = 8;

/// Hands in work and reads what comes out.
#[derive(Debug, Clone)]
pub struct Producer {
    client: Client,
}

/// A submission that was handed in with its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub id: SubmissionId,
    /// How many chunks its operations made.
    pub chunks: u64,
}

/// How far an upload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uploaded {
    /// Chunks that are in the object store.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Producer {
    /// A producer for this server.
    pub const fn new(client: Client) -> Producer {
        Producer { client }
    }

    /// The client it speaks through.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Hands in work whose chunks' bytes are where the request says.
    pub async fn submit(&self, request: &SubmitRequest) -> Result<SubmissionId, ClientError> {
        self.client.submit(request).await
    }

    /// Hands in operations, `chunk_size` to a chunk, one line each; memory does not grow with their number.
    ///
    /// The request's `chunks` and `prefix` are set here; everything else in it holds.
    pub async fn submit_operations<I>(
        &self,
        operations: I,
        chunk_size: NonZeroUsize,
        request: SubmitRequest,
    ) -> Result<Submitted, ClientError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let operations = operations.into_iter().map(Ok);
        self.submit_chunks(stream::iter(Chunks::new(operations, chunk_size)), request, |_| {}).await
    }

    /// Hands in chunks as they come, each one the bytes of an object, telling how far the upload is.
    ///
    /// The submission is made when the last chunk is stored: an upload that breaks off leaves no submission behind.
    pub async fn submit_chunks<S>(
        &self,
        chunks: S,
        mut request: SubmitRequest,
        mut progress: impl FnMut(Uploaded),
    ) -> Result<Submitted, ClientError>
    where
        S: Stream<Item = Result<Bytes, ClientError>>,
    {
        let prefix = format!("inputs/{}", chance::random_name());
        let uploads = chunks.zip(stream::iter(0..)).map(|(chunk, index)| {
            let key = objects::input_key(&prefix, ChunkIndex(index));
            async move {
                let chunk = chunk?;
                let bytes = chunk.len() as u64;
                self.client.put_object(&key, chunk).await.map(|()| bytes)
            }
        });
        let mut uploads = std::pin::pin!(uploads.buffer_unordered(UPLOADS_AT_ONCE));
        let mut uploaded = Uploaded::default();
        while let Some(bytes) = uploads.try_next().await? {
            uploaded = Uploaded { chunks: uploaded.chunks + 1, bytes: uploaded.bytes + bytes };
            progress(uploaded);
        }
        if uploaded.chunks == 0 {
            return Err(ClientError::Setting("there are no operations to submit".into()));
        }
        request.chunks = Some(uploaded.chunks);
        request.prefix = Some(prefix.clone());
        let id = self.client.submit(&request).await?;
        Ok(Submitted { id, chunks: uploaded.chunks })
    }

    /// Waits for a submission's end, telling of its progress on the way, and gives it as it is then.
    pub async fn wait(
        &self,
        id: SubmissionId,
        mut progress: impl FnMut(&SubmissionEvent),
    ) -> Result<SubmissionInfo, ClientError> {
        let mut watch = Watch::new(self.client.clone(), [id]);
        while let Some(event) = watch.next().await? {
            progress(&event);
        }
        self.client.show(id).await
    }

    /// Changes of many submissions, on one connection, beginning with how each one stands; ends when all are over.
    pub fn watch(
        &self,
        submissions: &[SubmissionId],
    ) -> impl Stream<Item = Result<SubmissionEvent, ClientError>> + Send + use<> {
        let watch = Watch::new(self.client.clone(), submissions.iter().copied());
        stream::try_unfold(
            watch,
            |mut watch| async move { Ok(watch.next().await?.map(|event| (event, watch))) },
        )
    }

    /// A submission's outputs in the order of its chunks, each as soon as it and those before it are there.
    ///
    /// A chunk that failed for good, or a submission that was cancelled, ends the stream with an error that says so.
    pub fn results(
        &self,
        id: SubmissionId,
    ) -> impl Stream<Item = Result<ChunkResult, ClientError>> + Send + use<> {
        Results::new(self.client.clone(), id).into_stream()
    }

    /// The same, passing over chunks that failed or were skipped instead of ending there.
    pub fn results_of_done(
        &self,
        id: SubmissionId,
    ) -> impl Stream<Item = Result<ChunkResult, ClientError>> + Send + use<> {
        Results::new(self.client.clone(), id).of_done_only().into_stream()
    }
}
