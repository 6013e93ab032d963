//! The HTTP verbs, one typed method each.

use crate::chance;
use crate::client::Client;
use crate::error::ClientError;
use crate::events::EventStream;
use http::Method;
use serde::Serialize;
use std::time::Duration;
use windlass_api::changes::{BulkRequest, BulkResponse, ChangeRequest};
use windlass_api::json::{
    CompleteRequest, EventsQuery, ExtendRequest, FailRequest, ListQuery, ReleaseRequest, ReserveRequest,
    ReserveResponse, ResultPage, ResultsQuery, RetryResponse, SettleResponse, StatusInfo, SubmissionInfo,
    SubmissionPage, SubmitRequest, SubmitResponse, WaitQuery,
};
use windlass_api::weights::{WeighRequest, WeightsInfo, WeightsList};
use windlass_core::ids::{ChunkIndex, SubmissionId};

/// What the wait verb waits for if it is not told.
const WAIT_MS_DEFAULT: u64 = 30_000;

/// A bulk verb takes as long as its submissions need, a few seconds for a hundred thousand; a client that waited for an hour
/// should look at the server.
const BULK_PATIENCE: Duration = Duration::from_secs(60 * 60);

impl Client {
    /// Hands in a submission, under an idempotency key of its own: a repeated try never makes a second one.
    pub async fn submit(&self, request: &SubmitRequest) -> Result<SubmissionId, ClientError> {
        self.submit_as(request, &chance::random_name()).await
    }

    /// Hands in a submission under the caller's idempotency key: the same key later gives the same submission.
    pub async fn submit_as(&self, request: &SubmitRequest, key: &str) -> Result<SubmissionId, ClientError> {
        check_idempotency_key(key)?;
        let call = self.call(Method::POST, &["submissions"]).json(request).header("idempotency-key", key);
        let response: SubmitResponse = self.json(call.repeatable()).await?;
        Ok(response.id)
    }

    /// A page of submissions, newest first.
    pub async fn list(&self, query: &ListQuery) -> Result<SubmissionPage, ClientError> {
        self.json(self.call(Method::GET, &["submissions"]).query(query)).await
    }

    /// A submission as it is now.
    pub async fn show(&self, id: SubmissionId) -> Result<SubmissionInfo, ClientError> {
        self.json(self.call(Method::GET, &["submissions", &id.to_string()])).await
    }

    /// A submission as it is at its end, or after `timeout`, whichever comes first.
    pub async fn wait(
        &self,
        id: SubmissionId,
        timeout: Option<Duration>,
    ) -> Result<SubmissionInfo, ClientError> {
        let timeout_ms = timeout.map(as_ms);
        let call = self
            .call(Method::GET, &["submissions", &id.to_string(), "wait"])
            .query(&WaitQuery { timeout_ms })
            .waiting(Duration::from_millis(timeout_ms.unwrap_or(WAIT_MS_DEFAULT)));
        self.json(call).await
    }

    /// What became of a submission's chunks, from one of them on.
    pub async fn result_page(
        &self,
        id: SubmissionId,
        from: ChunkIndex,
        limit: usize,
    ) -> Result<ResultPage, ClientError> {
        let query = ResultsQuery { from: Some(from.0), limit: Some(limit), consistency: None };
        self.json(self.call(Method::GET, &["submissions", &id.to_string(), "results"]).query(&query)).await
    }

    /// Says anew what is said of a running submission; what is not named stays as it is.
    pub async fn change(
        &self,
        id: SubmissionId,
        request: &ChangeRequest,
    ) -> Result<SubmissionInfo, ClientError> {
        let call = self.call(Method::PATCH, &["submissions", &id.to_string()]).json(request);
        self.json(call.repeatable()).await
    }

    /// Holds a running submission back: nothing more of it is handed out, and what is out goes on.
    pub async fn pause(&self, id: SubmissionId) -> Result<SubmissionInfo, ClientError> {
        self.json(self.call(Method::POST, &["submissions", &id.to_string(), "pause"]).repeatable()).await
    }

    /// Lets a paused submission go on.
    pub async fn resume(&self, id: SubmissionId) -> Result<SubmissionInfo, ClientError> {
        self.json(self.call(Method::POST, &["submissions", &id.to_string(), "resume"]).repeatable()).await
    }

    /// Does one thing with all submissions that a filter names, or counts them. Not repeated once it was sent, so that the
    /// counts are those of one run; asking again does what is left.
    pub async fn bulk(&self, request: &BulkRequest) -> Result<BulkResponse, ClientError> {
        let call = self.call(Method::POST, &["submissions", "bulk"]).json(request);
        self.json(call.waiting(BULK_PATIENCE)).await
    }

    /// Ends a submission; its remaining chunks are skipped. One that was cancelled before stays so.
    pub async fn cancel(&self, id: SubmissionId) -> Result<SubmissionInfo, ClientError> {
        self.json(self.call(Method::POST, &["submissions", &id.to_string(), "cancel"]).repeatable()).await
    }

    /// Gives a submission's failed and skipped chunks another round.
    pub async fn retry_failed(&self, id: SubmissionId) -> Result<RetryResponse, ClientError> {
        self.json(self.call(Method::POST, &["submissions", &id.to_string(), "retry-failed"])).await
    }

    /// Asks for chunks to work on. Not repeated once it was sent: chunks of a lost answer come back by themselves.
    pub async fn reserve(&self, request: &ReserveRequest) -> Result<ReserveResponse, ClientError> {
        let call = self.call(Method::POST, &["reserve"]).json(request);
        self.json(call.waiting(Duration::from_millis(request.wait_ms))).await
    }

    /// Reports chunks as done.
    pub async fn complete(&self, request: &CompleteRequest) -> Result<SettleResponse, ClientError> {
        self.settle("complete", request).await
    }

    /// Reports attempts as failed.
    pub async fn fail(&self, request: &FailRequest) -> Result<SettleResponse, ClientError> {
        self.settle("fail", request).await
    }

    /// Keeps reservations for longer.
    pub async fn extend(&self, request: &ExtendRequest) -> Result<SettleResponse, ClientError> {
        self.settle("extend", request).await
    }

    /// Gives chunks back unharmed.
    pub async fn release(&self, request: &ReleaseRequest) -> Result<SettleResponse, ClientError> {
        self.settle("release", request).await
    }

    /// An attempt's token makes each of these idempotent.
    async fn settle<B: Serialize>(&self, verb: &str, request: &B) -> Result<SettleResponse, ClientError> {
        self.json(self.call(Method::POST, &[verb]).json(request).repeatable()).await
    }

    /// Changes of these submissions as they happen, or of all if none is named. Not repeated: `Producer::watch` is.
    pub async fn events(&self, submissions: &[SubmissionId]) -> Result<EventStream, ClientError> {
        let names: Vec<String> = submissions.iter().map(SubmissionId::to_string).collect();
        let query = EventsQuery { submissions: (!names.is_empty()).then(|| names.join(",")) };
        let call = self.call(Method::GET, &["events"]).query(&query).header("accept", "text/event-stream");
        Ok(EventStream::new(self.clone(), self.open_once(&call).await?))
    }

    /// The weights of every field that has some.
    pub async fn weights(&self) -> Result<WeightsList, ClientError> {
        self.json(self.call(Method::GET, &["weights"])).await
    }

    /// The weights of a field's values.
    pub async fn weights_of(&self, field: &str) -> Result<WeightsInfo, ClientError> {
        self.json(self.call(Method::GET, &["weights", field])).await
    }

    /// Sets weights of a field's values; they count from the next hand-out on.
    pub async fn weigh(&self, field: &str, request: &WeighRequest) -> Result<WeightsInfo, ClientError> {
        self.json(self.call(Method::PATCH, &["weights", field]).json(request).repeatable()).await
    }

    /// How the server is.
    pub async fn status(&self) -> Result<StatusInfo, ClientError> {
        self.json(self.call(Method::GET, &["status"])).await
    }
}

/// A key of the caller's goes into a header.
pub(crate) fn check_idempotency_key(key: &str) -> Result<(), ClientError> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ClientError::Setting("an idempotency key is printable ASCII without spaces".into()));
    }
    Ok(())
}

fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
