//! Watching submissions until they are over: one event stream for all of them, mended when it breaks.
//!
//! Promises
//! - The first word about each submission is how it stands now; nothing that happened before is missed.
//! - Where there is no event stream to be had, the wait verb serves instead, with one request each second.

use crate::backoff::Backoff;
use crate::chance;
use crate::client::Client;
use crate::error::ClientError;
use crate::events::{Change, EventStream};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use windlass_api::json::{SubmissionEvent, SubmissionInfo};
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::ids::SubmissionId;

/// A silent stream is opened anew after so long: an idle one carries a comment more often than that.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long one wait request stands in for the event stream.
const STAND_IN: Duration = Duration::from_secs(1);

/// More ids than this make a request line too long; then all changes come, and ours are picked out here.
const IDS_PER_REQUEST_MAX: usize = 1_000;

/// How many submissions are asked for at a time when a stream is opened.
const SHOWS_AT_ONCE: usize = 16;

/// Some submissions that are not over yet, as far as was told.
#[derive(Debug)]
pub(crate) struct Watch {
    client: Client,
    open: BTreeSet<SubmissionId>,
    told: VecDeque<SubmissionEvent>,
    events: Option<EventStream>,
    backoff: Backoff,
}

impl Watch {
    pub(crate) fn new(client: Client, submissions: impl IntoIterator<Item = SubmissionId>) -> Watch {
        let open = submissions.into_iter().collect();
        Watch { client, open, told: VecDeque::new(), events: None, backoff: Backoff::new() }
    }

    /// The next change; none when all are over.
    pub(crate) async fn next(&mut self) -> Result<Option<SubmissionEvent>, ClientError> {
        loop {
            while let Some(event) = self.told.pop_front() {
                if !self.open.contains(&event.submission) {
                    continue;
                }
                if event.state != SubmissionState::Running {
                    self.open.remove(&event.submission);
                }
                return Ok(Some(event));
            }
            if self.open.is_empty() {
                return Ok(None);
            }
            self.listen().await?;
        }
    }

    async fn listen(&mut self) -> Result<(), ClientError> {
        let Some(events) = &mut self.events else { return self.connect().await };
        match tokio::time::timeout(SILENCE_MAX, events.next()).await {
            Ok(Ok(Some(Change { event, .. }))) => {
                self.backoff.reset();
                self.told.push_back(event);
            }
            Ok(Ok(None) | Err(_)) | Err(_) => {
                self.events = None;
                // A stream that closes at once must not be opened in a tight loop.
                tokio::time::sleep(self.backoff.next_wait(chance::random())).await;
            }
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let named: Vec<SubmissionId> = self.open.iter().copied().collect();
        let asked: &[SubmissionId] = if named.len() > IDS_PER_REQUEST_MAX { &[] } else { &named };
        match self.client.events(asked).await {
            // A stream of named submissions begins with where each one stands; one of all does not.
            Ok(events) if !asked.is_empty() => self.events = Some(events),
            Ok(events) => {
                self.events = Some(events);
                let shows = named.into_iter().map(|id| self.client.show(id));
                let now: Vec<SubmissionInfo> =
                    stream::iter(shows).buffered(SHOWS_AT_ONCE).try_collect().await?;
                self.told.extend(now.iter().map(as_event));
            }
            Err(error) => {
                tracing::debug!(%error, "no event stream; waiting instead");
                for id in named {
                    let info = self.client.wait(id, Some(STAND_IN)).await?;
                    self.told.push_back(as_event(&info));
                }
            }
        }
        Ok(())
    }
}

fn as_event(info: &SubmissionInfo) -> SubmissionEvent {
    SubmissionEvent { submission: info.id, state: info.state, chunks: info.chunks }
}
