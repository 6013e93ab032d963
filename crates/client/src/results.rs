//! Results: a submission's outputs in the order of its chunks, while it still runs.
//!
//! Promises
//! - Outputs come in order, each one once, none is left out.
//! - While the next chunk is unsettled nothing is asked for but that chunk, and only when something has changed.

use crate::client::Client;
use crate::error::ClientError;
use crate::watch::Watch;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use std::collections::VecDeque;
use std::time::Duration;
use windlass_api::json::{ResultInfo, ResultPage, ResultState};
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// Chunks to a page: with inline outputs of 16 KiB it stays within a few megabytes.
const PAGE_CHUNKS: usize = 250;

/// Output objects fetched ahead of the reader.
const FETCHES_AT_ONCE: usize = 8;

/// Changes may come many times a second; the next chunk is asked for at most this often.
const PAUSE: Duration = Duration::from_millis(50);

/// A chunk's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkResult {
    /// Which chunk.
    pub chunk: ChunkIndex,
    /// What its work gave; empty if it gave nothing.
    pub output: Bytes,
}

/// Reads on from chunk to chunk.
#[derive(Debug)]
pub(crate) struct Results {
    client: Client,
    id: SubmissionId,
    next: u64,
    total: Option<u64>,
    settled: VecDeque<ResultInfo>,
    watch: Watch,
    over: Option<SubmissionState>,
    of_done_only: bool,
}

impl Results {
    pub(crate) fn new(client: Client, id: SubmissionId) -> Results {
        let watch = Watch::new(client.clone(), [id]);
        let settled = VecDeque::new();
        Results { client, id, next: 0, total: None, settled, watch, over: None, of_done_only: false }
    }

    pub(crate) const fn of_done_only(mut self) -> Results {
        self.of_done_only = true;
        self
    }

    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<ChunkResult, ClientError>> + Send + use<> {
        let client = self.client.clone();
        let done = stream::try_unfold(self, |mut results| async move {
            Ok(results.next_done().await?.map(|info| (info, results)))
        });
        let outputs = done.map(move |info| {
            let client = client.clone();
            async move { output_of(&client, info?).await }
        });
        let mut failed = false;
        outputs.buffered(FETCHES_AT_ONCE).take_while(move |result| {
            let goes_on = !failed;
            failed = failed || result.is_err();
            std::future::ready(goes_on)
        })
    }

    /// The next chunk that is done; none after the last one.
    async fn next_done(&mut self) -> Result<Option<ResultInfo>, ClientError> {
        loop {
            while let Some(info) = self.settled.pop_front() {
                self.next = info.chunk.0 + 1;
                match info.state {
                    ResultState::Done => return Ok(Some(info)),
                    ResultState::Failed | ResultState::Unsettled if self.of_done_only => {}
                    ResultState::Failed | ResultState::Unsettled => return Err(self.ended_at(&info).await),
                }
            }
            if self.total.is_some_and(|total| self.next >= total) {
                return Ok(None);
            }
            self.settled = self.read_on().await?;
        }
    }

    /// The settled chunks from the next one on; waits until that one is settled, or will never be.
    async fn read_on(&mut self) -> Result<VecDeque<ResultInfo>, ClientError> {
        let mut limit = PAGE_CHUNKS;
        loop {
            // What is unsettled on a page that was read after the end stays so.
            let was_over = self.over.is_some();
            let page = self.client.result_page(self.id, ChunkIndex(self.next), limit).await?;
            self.note_end_of(&page);
            let mut items = page.items;
            if !was_over {
                let settled = items.iter().take_while(|info| info.state != ResultState::Unsettled).count();
                items.truncate(settled);
            }
            if !items.is_empty() || self.total == Some(self.next) {
                return Ok(items.into());
            }
            limit = 1;
            if was_over {
                let what = format!("it shows no chunk {} of submission {}", self.next, self.id);
                return Err(self.client.protocol(what));
            }
            self.wait_for_change().await?;
        }
    }

    fn note_end_of(&mut self, page: &ResultPage) {
        if page.next.is_none() {
            let end = page.items.last().map_or(self.next, |info| info.chunk.0 + 1);
            self.total = Some(end);
        }
    }

    async fn wait_for_change(&mut self) -> Result<(), ClientError> {
        tokio::time::sleep(PAUSE).await;
        match self.watch.next().await? {
            Some(event) if event.state == SubmissionState::Running => {}
            Some(event) => self.over = Some(event.state),
            None => self.over = self.over.or(Some(SubmissionState::Completed)),
        }
        Ok(())
    }

    /// Why there is no output of this chunk.
    async fn ended_at(&mut self, info: &ResultInfo) -> ClientError {
        let failed = |chunk, reason: Option<String>| ClientError::ChunkFailed {
            submission: self.id,
            chunk,
            reason: reason.unwrap_or_else(|| "no reason was given".into()),
        };
        if info.state == ResultState::Failed {
            return failed(info.chunk, info.reason.clone());
        }
        if self.over == Some(SubmissionState::Cancelled) {
            return ClientError::Cancelled { submission: self.id, chunk: info.chunk };
        }
        // The chunk was skipped because another one failed: that one is what the reader wants to know.
        match self.client.show(self.id).await {
            Ok(submission) => match submission.troubles.into_iter().next() {
                Some(trouble) => failed(trouble.chunk, Some(trouble.reason)),
                None => failed(info.chunk, Some("it was skipped when the submission failed".into())),
            },
            Err(error) => error,
        }
    }
}

async fn output_of(client: &Client, info: ResultInfo) -> Result<ChunkResult, ClientError> {
    let output = match (info.output, info.output_key) {
        (Some(inline), _) => inline.0.into(),
        (None, Some(key)) => client.get_object(&key).await?,
        (None, None) => Bytes::new(),
    };
    Ok(ChunkResult { chunk: info.chunk, output })
}
