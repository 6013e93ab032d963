//! The client of Windlass: hand in work, work on it, read what came out.
//!
//! Reading order: [`Client`] (one typed method for each HTTP verb, repeated where that is safe), [`Producer`] (submit
//! operations, wait, read results as they come), [`TaskProducer`] (add single tasks to lanes, many at once), [`Consumer`] (work on chunks over one WebSocket that mends itself), and
//! [`ConsumeSocket`] below it, for those who want to speak frames themselves.
//!
//! ```no_run
//! # async fn example() -> Result<(), windlass_client::ClientError> {
//! use std::num::NonZeroUsize;
//! use windlass_client::{Client, Producer, SubmitRequest};
//!
//! let producer = Producer::new(Client::new("http://127.0.0.1:7420")?);
//! let numbers = (1..=1_000_000).map(|n| n.to_string());
//! let chunk_size = NonZeroUsize::new(1_000).expect("it is not zero");
//! let submitted = producer.submit_operations(numbers, chunk_size, SubmitRequest::default()).await?;
//! println!("{} chunks as submission {}", submitted.chunks, submitted.id);
//! # Ok(()) }
//! ```

mod backoff;
mod branch_verbs;
mod chance;
mod chunking;
mod client;
mod consumer;
mod error;
mod events;
mod lane_verbs;
mod link;
mod looks;
mod objects;
mod producer;
mod results;
mod socket;
mod task_producer;
mod verbs;
mod watch;

pub use branch_verbs::PutEntry;
pub use chunking::{Chunks, operations_of};
pub use client::Client;
pub use consumer::{Activity, Chunk, Consumer, ConsumerBuilder, Failure, Tally};
pub use error::{ClientError, StoppedAfter};
pub use events::{Change, ChangeKind, EventStream};
pub use objects::ObjectBody;
pub use producer::{Producer, Submitted, Uploaded};
pub use results::ChunkResult;
pub use socket::{ConsumeReceiver, ConsumeSender, ConsumeSocket, Welcome};
pub use task_producer::TaskProducer;

pub use windlass_api::blob::Blob;
pub use windlass_api::changes::{
    BulkAction, BulkFilter, BulkRefusal, BulkRequest, BulkResponse, ChangeRequest,
};
pub use windlass_api::json::{
    ChunkProgress, ListQuery, SubmissionEvent, SubmissionInfo, SubmissionPage, SubmitRequest,
};
pub use windlass_api::objects::ObjectInfo;
pub use windlass_api::problem::{Problem, ProblemCode};
pub use windlass_api::{branches, explain, frames, json, lanes, overview, weights};
pub use windlass_core::batch::strategy::{Max, Strategy, StrategyTextError};
pub use windlass_core::batch::submissions::{MetaValue, Metadata, OnFailure, SubmissionState};
pub use windlass_core::branches::entries::Digest;
pub use windlass_core::entry::Output;
pub use windlass_core::ids::{ChunkIndex, ChunkName, SubmissionId};
pub use windlass_core::limits::{IDEMPOTENCY_KEY_BYTES_MAX, LANE_PRIORITY_MAX};
