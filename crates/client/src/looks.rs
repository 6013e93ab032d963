//! The verbs of people who look at the queue: explain and overview.

use crate::client::Client;
use crate::error::ClientError;
use http::Method;
use std::time::Duration;
use windlass_api::explain::{ExplainRequest, ExplainResponse};
use windlass_api::overview::{OverviewInfo, OverviewQuery};

/// The views of a strategy that nobody has used yet are built before it is explained.
const EXPLAIN_PATIENCE: Duration = Duration::from_secs(20);

impl Client {
    /// What a strategy would give next and why, and why a submission is or is not handed out. Nothing is changed by it.
    pub async fn explain(&self, request: &ExplainRequest) -> Result<ExplainResponse, ClientError> {
        let call = self.call(Method::POST, &["explain"]).json(request).repeatable();
        self.json(call.waiting(EXPLAIN_PATIENCE)).await
    }

    /// The queue in numbers.
    pub async fn overview(&self, query: &OverviewQuery) -> Result<OverviewInfo, ClientError> {
        self.json(self.call(Method::GET, &["overview"]).query(query)).await
    }
}
