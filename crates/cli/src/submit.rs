//! `windlass submit`: hands in work.

use crate::args::{Global, Output, Submit};
use crate::bars;
use crate::exit::{Exit, print_json, print_line};
use crate::submissions;
use crate::table::counted;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use tokio::sync::mpsc;
use windlass_client::branches::{OutputInfo, VerifyInfo};
use windlass_client::json::SubmitResponse;
use windlass_client::{Blob, Chunks, ClientError, Producer, SubmissionId, SubmitRequest};

/// Chunks read ahead of the upload.
const CHUNKS_AHEAD: usize = 4;

pub(crate) async fn run(global: &Global, submit: Submit) -> Result<(), Exit> {
    let producer = Producer::new(global.client()?);
    let id = hand_in(&producer, &submit).await?;
    if !submit.wait {
        return if global.json { print_json(&SubmitResponse { id }) } else { print_line(&id.to_string()) };
    }
    if !global.json {
        print_line(&id.to_string())?;
    }
    submissions::wait(global, &producer, id).await
}

async fn hand_in(producer: &Producer, submit: &Submit) -> Result<SubmissionId, Exit> {
    let mut request = request_of(submit);
    if let Some(path) = &submit.source.chunks_from {
        return upload(producer, path, submit.chunk_size, request).await;
    }
    request.chunks = submit.source.chunks;
    request.prefix.clone_from(&submit.prefix);
    request.payload = submit.source.payload.as_ref().map(|text| Blob(text.clone().into_bytes()));
    let id = match &submit.idempotency_key {
        Some(key) => producer.client().submit_as(&request, key).await?,
        None => producer.submit(&request).await?,
    };
    Ok(id)
}

fn request_of(submit: &Submit) -> SubmitRequest {
    SubmitRequest {
        metadata: submit.metadata.iter().map(|pair| (pair.field.clone(), pair.value.clone())).collect(),
        priority: submit.priority,
        opaque: submit.opaque.as_ref().map(|text| Blob(text.clone().into_bytes())),
        attempts_max: submit.attempts_max,
        retry_delay_ms: submit.retry_delay_ms,
        on_failure: submit.on_failure,
        output: output_of(&submit.output),
        ..SubmitRequest::default()
    }
}

fn output_of(output: &Output) -> Option<OutputInfo> {
    let branch = output.branch.clone()?;
    Some(OutputInfo {
        branch,
        mode: output.output_mode.clone(),
        on_chunk_failure: output.on_chunk_failure,
        verify: VerifyInfo { rules: output.rules.clone(), checks: output.checks.clone() },
    })
}

async fn upload(
    producer: &Producer,
    path: &Path,
    chunk_size: NonZeroUsize,
    request: SubmitRequest,
) -> Result<SubmissionId, Exit> {
    let is_stdin = path.as_os_str() == "-";
    let cannot_read = |error: io::Error| Exit::Refused(format!("cannot read {}: {error}", path.display()));
    let source: Box<dyn Read + Send> =
        if is_stdin { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(cannot_read)?) };
    let bar = bars::upload();
    let chunks = read_ahead(source, chunk_size);
    let submitted =
        producer.submit_chunks(chunks, request, |uploaded| bars::show_upload(&bar, uploaded)).await;
    bar.finish_and_clear();
    let submitted = submitted?;
    eprintln!("submitted {}", counted(submitted.chunks, "chunk"));
    Ok(submitted.id)
}

/// Chunks of lines, read by a thread of their own: a file or a pipe may be slow.
fn read_ahead(
    source: Box<dyn Read + Send>,
    chunk_size: NonZeroUsize,
) -> impl Stream<Item = Result<Bytes, ClientError>> {
    let (ahead, chunks) = mpsc::channel(CHUNKS_AHEAD);
    std::thread::spawn(move || {
        let lines = BufReader::new(source).split(b'\n');
        for chunk in Chunks::new(lines, chunk_size) {
            if ahead.blocking_send(chunk).is_err() {
                break;
            }
        }
    });
    stream::unfold(chunks, |mut chunks| async move { chunks.recv().await.map(|chunk| (chunk, chunks)) })
}
