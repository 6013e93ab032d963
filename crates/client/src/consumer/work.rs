//! Work: the chunk that a closure gets, and what it gives back.

use crate::chunking::operations_of;
use crate::client::Client;
use crate::error::ClientError;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use windlass_api::frames::{WorkChunk, WorkOf};
use windlass_api::objects;
use windlass_core::batch::submissions::Metadata;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::branches::entries::Digest;
use windlass_core::branches::outputs::{OutputEntry, output_address};
use windlass_core::entry::Output;
use windlass_core::ids::{ChunkIndex, ChunkName, SubmissionId};
use windlass_core::limits::{FAILURE_REASON_BYTES_MAX, INLINE_OUTPUT_BYTES_MAX};

/// Larger outputs go to the object store: the queue's own log is for deciding, not for carrying.
const INLINE_BYTES_MAX: usize = INLINE_OUTPUT_BYTES_MAX / 4;

/// What the producer of a submission said, shared by its chunks.
#[derive(Debug, PartialEq)]
pub(crate) struct About {
    pub(crate) submission: SubmissionId,
    pub(crate) metadata: Metadata,
    pub(crate) opaque: Bytes,
    pub(crate) input: Input,
    /// The lane and the key of a task.
    pub(crate) task: Option<(String, String)>,
    /// The branch that outputs go to.
    pub(crate) branch: Option<String>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Input {
    Nowhere,
    Prefix(String),
    Object(String),
    Inline(Bytes),
}

impl About {
    /// What a frame says of a submission, and the chunks that come with it.
    pub(crate) fn new(work: WorkOf) -> (Arc<About>, Vec<WorkChunk>) {
        let (task, object) = match work.task {
            Some(task) => (Some((task.lane, task.key)), task.object),
            None => (None, None),
        };
        let input = match (work.prefix, work.payload, object) {
            (_, Some(payload), _) => Input::Inline(Vec::from(payload).into()),
            (Some(prefix), None, _) => Input::Prefix(prefix),
            (None, None, Some(object)) => Input::Object(object),
            (None, None, None) => Input::Nowhere,
        };
        let opaque = work.opaque.map(Vec::from).unwrap_or_default().into();
        let (submission, metadata, branch) = (work.submission, work.metadata, work.branch);
        let about = About { submission, metadata, opaque, input, task, branch };
        (Arc::new(about), work.chunks)
    }
}

/// A chunk to work on.
#[derive(Debug, Clone)]
pub struct Chunk {
    client: Arc<Client>,
    about: Arc<About>,
    work: WorkChunk,
    published: Published,
}

/// What a chunk's work gave.
#[derive(Debug)]
pub(crate) struct Gave {
    pub(crate) output: Output,
    /// For the branch that the submission names.
    pub(crate) entries: Vec<OutputEntry>,
}

impl From<Output> for Gave {
    fn from(output: Output) -> Gave {
        Gave { output, entries: Vec::new() }
    }
}

/// What an attempt has published so far, shared by the clones of its chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published(Arc<Mutex<PublishedSoFar>>);

#[derive(Debug, Default)]
struct PublishedSoFar {
    objects: u32,
    entries: BTreeMap<String, OutputEntry>,
}

impl Published {
    fn lock(&self) -> MutexGuard<'_, PublishedSoFar> {
        self.0.lock().expect("nothing panics while it notes what was published")
    }

    fn next_object(&self) -> u32 {
        let mut so_far = self.lock();
        so_far.objects += 1;
        so_far.objects - 1
    }

    /// The entries, one for each path: the last that was published there.
    pub(crate) fn take(&self) -> Vec<OutputEntry> {
        std::mem::take(&mut self.lock().entries).into_values().collect()
    }
}

impl Chunk {
    pub(crate) fn new(client: Arc<Client>, about: Arc<About>, work: WorkChunk) -> Chunk {
        Chunk { client, about, work, published: Published::default() }
    }

    pub(crate) fn published(&self) -> Published {
        self.published.clone()
    }

    /// The submission it belongs to.
    pub fn submission(&self) -> SubmissionId {
        self.about.submission
    }

    /// Its place there.
    pub const fn index(&self) -> ChunkIndex {
        self.work.chunk
    }

    /// Its full name.
    pub fn name(&self) -> ChunkName {
        ChunkName { submission: self.about.submission, chunk: self.work.chunk }
    }

    /// The attempt's token.
    pub const fn token(&self) -> AttemptToken {
        self.work.token()
    }

    /// The lane, if it is a task of one: then the submission's id is the task's, and nothing that it gives back is kept.
    pub fn lane(&self) -> Option<&str> {
        self.about.task.as_ref().map(|(lane, _)| lane.as_str())
    }

    /// The task's key.
    pub fn key(&self) -> Option<&str> {
        self.about.task.as_ref().map(|(_, key)| key.as_str())
    }

    /// The branch that what is published goes to, if the submission names one.
    pub fn output_branch(&self) -> Option<&str> {
        self.about.branch.as_deref()
    }

    /// The submission's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.about.metadata
    }

    /// What the producer sent along.
    pub fn opaque(&self) -> &Bytes {
        &self.about.opaque
    }

    /// The chunk's bytes: inline ones at once, others from the object store; empty if the submission has none.
    pub async fn input(&self) -> Result<Bytes, Failure> {
        match &self.about.input {
            Input::Nowhere => Ok(Bytes::new()),
            Input::Inline(payload) => Ok(payload.clone()),
            Input::Object(key) => {
                self.client.get_object(key).await.map_err(|error| Failure::of_transport(&error))
            }
            Input::Prefix(prefix) => {
                let key = objects::input_key(prefix, self.work.chunk);
                self.client.get_object(&key).await.map_err(|error| Failure::of_transport(&error))
            }
        }
    }

    /// The operations in the chunk's bytes, one for each line.
    pub async fn operations(&self) -> Result<Vec<Bytes>, Failure> {
        let input = self.input().await?;
        Ok(operations_of(&input).map(|operation| input.slice_ref(operation)).collect())
    }

    /// Where this attempt may put its output: nobody else writes there.
    pub fn output_key(&self) -> String {
        objects::output_key(self.about.submission, self.work.chunk, self.work.token().attempt)
    }

    /// What to give back for these bytes: few are sent along, many are put into the object store first.
    pub async fn output(&self, bytes: impl Into<Bytes>) -> Result<Output, Failure> {
        let bytes = bytes.into();
        if bytes.len() <= INLINE_BYTES_MAX {
            Ok(Output::Inline(bytes.to_vec().into()))
        } else {
            self.store(bytes).await
        }
    }

    /// Publishes bytes under a path of the branch that the submission names. They are stored at once, and appear when the whole
    /// submission is committed, if this attempt is the one that counts. A path that is published again leads to the last.
    pub async fn publish(&self, path: impl Into<String>, bytes: impl Into<Bytes>) -> Result<(), Failure> {
        self.publish_as(path, bytes, "", BTreeMap::new()).await
    }

    /// The same, with the kind of the bytes and what else is to be said of them.
    pub async fn publish_as(
        &self,
        path: impl Into<String>,
        bytes: impl Into<Bytes>,
        content_type: &str,
        metadata: BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let (path, bytes) = (path.into(), bytes.into());
        let object = self.published.next_object();
        let (size, sha256) = (bytes.len() as u64, digest_of(&bytes));
        let (submission, WorkChunk { chunk, .. }) = (self.about.submission, self.work);
        let key = output_address(submission, chunk, self.work.token().attempt, Some(object));
        self.client.put_object(&key, bytes).await.map_err(|error| Failure::of_transport(&error))?;
        let content_type = content_type.to_owned();
        let entry = OutputEntry { path: path.clone(), object, size, sha256, content_type, metadata };
        self.published.lock().entries.insert(path, entry);
        Ok(())
    }

    /// Puts the output into the object store, however small it is.
    pub async fn store(&self, bytes: impl Into<Bytes>) -> Result<Output, Failure> {
        let put = self.client.put_object(&self.output_key(), bytes.into()).await;
        put.map(|()| Output::Stored).map_err(|error| Failure::of_transport(&error))
    }
}

/// The SHA-256 of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    Digest::new(Sha256::digest(bytes).into())
}

/// Why a chunk's work did not succeed. Any error turns into one with `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) reason: String,
    pub(crate) counts: bool,
}

impl Failure {
    /// The attempt failed, for this reason. It is tried again until its attempts are used up.
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure { reason: shortened(reason.into()), counts: true }
    }

    /// This consumer cannot work on the chunk now, which is not the chunk's fault: it goes back unharmed.
    pub fn give_back(reason: impl Into<String>) -> Failure {
        Failure { counts: false, ..Failure::new(reason) }
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// A store that cannot be reached is not the chunk's fault; an object that is not there is.
    fn of_transport(error: &ClientError) -> Failure {
        if error.retry_helps() {
            Failure::give_back(error.to_string())
        } else {
            Failure::new(error.to_string())
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(crate::error::with_causes(&error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The server refuses reasons that are longer.
fn shortened(mut reason: String) -> String {
    if reason.len() > FAILURE_REASON_BYTES_MAX {
        const MARK: &str = "…";
        let mut end = FAILURE_REASON_BYTES_MAX - MARK.len();
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        reason.push_str(MARK);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::ids::{Attempt, Epoch};

    #[test]
    fn a_long_reason_is_cut_between_characters_to_what_the_server_takes() {
        for reason in ["x".repeat(5_000), "é".repeat(5_000)] {
            let failure = Failure::new(reason);
            assert!(failure.reason().len() <= FAILURE_REASON_BYTES_MAX);
            assert!(failure.reason().len() > FAILURE_REASON_BYTES_MAX - 8);
            assert!(failure.reason().ends_with('…'));
        }
        assert_eq!(Failure::new("short").reason(), "short");
    }

    #[test]
    fn what_a_chunk_may_ask_of_the_server_takes_little_room_until_it_does() {
        let about = About {
            submission: SubmissionId::from_u64(7).unwrap(),
            metadata: Metadata::default(),
            opaque: Bytes::new(),
            input: Input::Nowhere,
            task: None,
            branch: None,
        };
        let token = AttemptToken { attempt: Attempt { epoch: Epoch(1), nth: 1 }, proof: 7 };
        let client = Arc::new(Client::new("http://localhost").unwrap());
        let chunk = Chunk::new(client, Arc::new(about), WorkChunk::new(ChunkIndex(0), token));
        let sizes = [size_of_val(&chunk), size_of_val(&chunk.input()), size_of_val(&chunk.operations())];
        assert!(sizes.iter().all(|size| *size <= 128), "{sizes:?} bytes");
        let sizes =
            [size_of_val(&chunk.output(Bytes::new())), size_of_val(&chunk.publish("path", Bytes::new()))];
        assert!(sizes.iter().all(|size| *size <= 512), "{sizes:?} bytes");
    }

    #[test]
    fn any_error_is_a_failure_that_counts_with_its_causes() {
        fn work() -> Result<(), Failure> {
            Err(std::io::Error::other("disk on fire"))?;
            Ok(())
        }
        assert_eq!(work().unwrap_err(), Failure { reason: "disk on fire".into(), counts: true });
        assert!(!Failure::give_back("later").counts);
    }
}
