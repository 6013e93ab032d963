//! Objects through the server's door: whole ones, which are repeated until they are there, and streams of any length.

use crate::client::{Call, Client};
use crate::error::ClientError;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::Method;
use std::time::Duration;
use windlass_api::objects::{ObjectInfo, SHA256_HEADER};
use windlass_api::problem::ProblemCode;
use windlass_core::branches::entries::Digest;

/// A stream that gets on more slowly than this in the mean is taken for stuck.
const STREAM_BYTES_PER_SECOND_MIN: u64 = 64 * 1_024;

/// An object's bytes as they arrive.
pub struct ObjectBody {
    /// How many come; none if the server did not say.
    pub size: Option<u64>,
    /// The bytes, in order. One that breaks off ends with an error.
    pub stream: BoxStream<'static, Result<Bytes, ClientError>>,
}

impl Client {
    /// Puts an object. Objects never change: a key that is taken is refused.
    pub async fn put_object(&self, key: &str, body: Bytes) -> Result<(), ClientError> {
        let call = self.call(Method::PUT, &object_path(key)).bytes(body).repeatable();
        let (tries, answer) = self.counted(call).await;
        answer.map(drop).or_else(|error| match error {
            // The try before this one arrived after all.
            ClientError::Problem(problem) if problem.code == ProblemCode::ObjectExists && tries > 1 => Ok(()),
            other => Err(other),
        })
    }

    /// An object's bytes.
    pub async fn get_object(&self, key: &str) -> Result<Bytes, ClientError> {
        // A statement of its own: what makes the call would otherwise be kept until it is answered.
        let answer = self.bytes(self.call(Method::GET, &object_path(key)).header("accept", "*/*"));
        answer.await
    }

    /// Puts an object of this size from a stream; with a digest, only if the bytes have it. Not repeated, since a stream comes
    /// only once: after an error that leaves open whether it arrived, put it again and take `object_exists` for a yes.
    pub async fn put_object_stream<E: std::error::Error + Send + Sync + 'static>(
        &self,
        key: &str,
        size: u64,
        stream: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        sha256: Option<Digest>,
    ) -> Result<ObjectInfo, ClientError> {
        let call = self.call(Method::PUT, &object_path(key)).header("content-length", &size.to_string());
        let call = call.header("content-type", "application/octet-stream");
        let call = sha256.iter().fold(call, |call, sha256| call.header(SHA256_HEADER, &sha256.to_string()));
        let call = call.waiting(Duration::from_secs(size / STREAM_BYTES_PER_SECOND_MIN));
        let body = self.send_stream(&call, reqwest::Body::wrap_stream(stream)).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.protocol(format!("its answer is not the expected JSON: {error}")))
    }

    /// An object's bytes as they arrive, or those from a byte on. Not repeated: go on from where it broke off.
    pub async fn get_object_stream(&self, key: &str, from: u64) -> Result<ObjectBody, ClientError> {
        let call = self.call(Method::GET, &object_path(key)).header("accept", "*/*");
        let call = if from == 0 { call } else { from_byte(call, from) };
        let response = self.open_once(&call).await?;
        if from > 0 && response.status() != http::StatusCode::PARTIAL_CONTENT {
            return Err(self.protocol("it sent the whole object, though a part was asked for".into()));
        }
        Ok(ObjectBody { size: response.content_length(), stream: self.pieces(response).boxed() })
    }
}

fn from_byte(call: Call, from: u64) -> Call {
    call.header("range", &format!("bytes={from}-"))
}

fn object_path(key: &str) -> Vec<&str> {
    std::iter::once("objects").chain(key.split('/')).collect()
}
