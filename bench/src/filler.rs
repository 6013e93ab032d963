//! Fills a queue: submits over plain HTTP/1.1 on a few sockets, with as little work on this side as can be, so that the
//! machine's time goes to the server.

use anyhow::{Context, bail, ensure};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_client::json::SubmitResponse;
use windlass_client::{SubmissionId, SubmitRequest};

/// One submit is on its way on each connection: as many share a write of the log.
const AT_ONCE: u64 = 256;

/// A connection is worth being opened for so many submits.
const PER_CONNECTION_MIN: u64 = 64;

/// An answer to a submit is a few hundred bytes.
const ANSWER_BYTES_MAX: usize = 4_096;

/// Submits what `request` makes of each number; gives the ids in no order.
pub(crate) async fn submit_each<F>(
    server: &str,
    numbers: Range<u64>,
    request: F,
) -> anyhow::Result<Vec<SubmissionId>>
where
    F: Fn(u64) -> SubmitRequest + Clone + Send + 'static,
{
    let address = server.strip_prefix("http://").context("a server without TLS")?.to_owned();
    let next = Arc::new(AtomicU64::new(numbers.start));
    let connections = ((numbers.end - numbers.start) / PER_CONNECTION_MIN).clamp(1, AT_ONCE);
    let filling: Vec<_> = (0..connections)
        .map(|_| tokio::spawn(fill(address.clone(), Arc::clone(&next), numbers.end, request.clone())))
        .collect();
    let mut ids = Vec::new();
    for connection in filling {
        ids.append(&mut connection.await??);
    }
    Ok(ids)
}

async fn fill<F>(
    address: String,
    next: Arc<AtomicU64>,
    end: u64,
    request: F,
) -> anyhow::Result<Vec<SubmissionId>>
where
    F: Fn(u64) -> SubmitRequest,
{
    let mut stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    let (mut ids, mut answer) = (Vec::new(), vec![0; ANSWER_BYTES_MAX]);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= end {
            return Ok(ids);
        }
        let body = serde_json::to_vec(&request(number))?;
        let mut message = format!(
            "POST /v1/submissions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend(body);
        stream.write_all(&message).await?;
        let mut len = 0;
        ids.push(loop {
            ensure!(len < answer.len(), "an answer is longer than {ANSWER_BYTES_MAX} bytes");
            let read = stream.read(&mut answer[len..]).await?;
            ensure!(read > 0, "the server closed the connection");
            len += read;
            if let Some(id) = id_in(&answer[..len])? {
                break id;
            }
        });
    }
}

/// The id in an answer; none if it is not all there yet.
fn id_in(answer: &[u8]) -> anyhow::Result<Option<SubmissionId>> {
    let text = std::str::from_utf8(answer)?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    if !head.starts_with("HTTP/1.1 201") {
        bail!("a submit was answered with {text}");
    }
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("a length")?;
    if body.len() < len.parse()? {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str::<SubmitResponse>(body)?.id))
}
