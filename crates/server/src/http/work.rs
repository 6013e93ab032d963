//! Paths of consumers without a session: reserve, complete, fail, extend, release.

use super::answer::{Answer, Refused};
use super::extract::JsonBody;
use crate::service::Service;
use crate::service::complete::Completion;
use crate::service::reserve::{Gave, Report, by_submission};
use axum::Json;
use axum::extract::State;
use minicbor::bytes::ByteVec;
use windlass_api::branches::OutputOfChunk;
use windlass_api::frames::Verdict;
use windlass_api::json::{
    AttemptRef, ChunkVerdict, CompleteRequest, CompletedChunk, ExtendRequest, FailRequest, ReleaseRequest,
    ReserveRequest, ReserveResponse, SettleResponse,
};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::branches::outputs::OutputEntry;
use windlass_core::entry::Output;
use windlass_core::ids::ChunkName;
use windlass_core::limits::CHUNKS_PER_SETTLE_MAX;

/// Asks for chunks to work on; waits for some if told to.
#[utoipa::path(
    post, path = "/v1/reserve", tag = "work", request_body = ReserveRequest,
    responses((status = 200, body = ReserveResponse))
)]
pub(super) async fn reserve(
    State(service): State<Service>,
    JsonBody(request): JsonBody<ReserveRequest>,
) -> Answer<Json<ReserveResponse>> {
    Ok(Json(service.reserve(request).await?))
}

/// Reports chunks as done. The first report of a chunk wins.
#[utoipa::path(
    post, path = "/v1/complete", tag = "work", request_body = CompleteRequest,
    responses((status = 200, body = SettleResponse))
)]
pub(super) async fn complete(
    State(service): State<Service>,
    JsonBody(request): JsonBody<CompleteRequest>,
) -> Answer<Json<SettleResponse>> {
    check_count(request.chunks.len())?;
    let reports = request.chunks.into_iter().map(|it| {
        let output = output_of(&it)?;
        let (chunk, token) = (it.chunk, token_of(&it.token)?);
        let entries = it.outputs.into_iter().map(entry_of).collect();
        Ok((it.submission, Report { chunk, token, said: Gave { output, entries } }))
    });
    let reports: Vec<_> = reports.collect::<Answer<_>>()?;
    let mut verdicts = vec![Verdict::TokenInvalid; reports.len()];
    let (places, completions): (Vec<_>, Vec<_>) = by_submission(reports)
        .into_iter()
        .map(|(submission, (places, reports))| (places, Completion { submission, reports }))
        .unzip();
    for (places, settled) in places.into_iter().zip(service.complete_all(completions).await) {
        places.into_iter().zip(settled?).for_each(|(place, verdict)| verdicts[place] = verdict);
    }
    response_of(&verdicts)
}

fn entry_of(output: OutputOfChunk) -> OutputEntry {
    let OutputOfChunk { path, object, size, sha256, content_type, metadata } = output;
    OutputEntry { path, object, size, sha256, content_type, metadata }
}

/// Reports attempts as failed; the chunks are tried again later, until their attempts are used up.
#[utoipa::path(
    post, path = "/v1/fail", tag = "work", request_body = FailRequest,
    responses((status = 200, body = SettleResponse))
)]
pub(super) async fn fail(
    State(service): State<Service>,
    JsonBody(request): JsonBody<FailRequest>,
) -> Answer<Json<SettleResponse>> {
    check_count(request.chunks.len())?;
    let reports = request.chunks.into_iter().map(|it| {
        Ok((it.submission, Report { chunk: it.chunk, token: token_of(&it.token)?, said: it.reason }))
    });
    let reports: Vec<_> = reports.collect::<Answer<_>>()?;
    let mut verdicts = vec![Verdict::TokenInvalid; reports.len()];
    for (submission, (places, reports)) in by_submission(reports) {
        let settled = service.fail(submission, reports).await?;
        places.into_iter().zip(settled).for_each(|(place, verdict)| verdicts[place] = verdict);
    }
    response_of(&verdicts)
}

/// Moves reservations' deadlines.
#[utoipa::path(
    post, path = "/v1/extend", tag = "work", request_body = ExtendRequest,
    responses((status = 200, body = SettleResponse))
)]
pub(super) async fn extend(
    State(service): State<Service>,
    JsonBody(request): JsonBody<ExtendRequest>,
) -> Answer<Json<SettleResponse>> {
    check_count(request.chunks.len())?;
    response_of(&service.extend(attempts_of(&request.chunks)?, request.lease_ms).await?)
}

/// Gives reservations back unharmed.
#[utoipa::path(
    post, path = "/v1/release", tag = "work", request_body = ReleaseRequest,
    responses((status = 200, body = SettleResponse))
)]
pub(super) async fn release(
    State(service): State<Service>,
    JsonBody(request): JsonBody<ReleaseRequest>,
) -> Answer<Json<SettleResponse>> {
    check_count(request.chunks.len())?;
    response_of(&service.release(attempts_of(&request.chunks)?).await?)
}

fn check_count(chunks: usize) -> Answer<()> {
    if (1..=CHUNKS_PER_SETTLE_MAX).contains(&chunks) {
        return Ok(());
    }
    let detail =
        format!("`chunks` names 1 to {CHUNKS_PER_SETTLE_MAX} chunks; send several requests for more");
    Err(Refused(Problem::new(ProblemCode::InvalidRequest, detail)))
}

fn token_of(text: &str) -> Answer<AttemptToken> {
    text.parse().map_err(|error| {
        Refused(Problem::new(ProblemCode::TokenInvalid, format!("{text:?} is no attempt token: {error}")))
    })
}

fn attempts_of(chunks: &[AttemptRef]) -> Answer<Vec<(ChunkName, AttemptToken)>> {
    let attempt = |it: &AttemptRef| {
        Ok((ChunkName { submission: it.submission, chunk: it.chunk }, token_of(&it.token)?))
    };
    chunks.iter().map(attempt).collect()
}

fn output_of(chunk: &CompletedChunk) -> Answer<Output> {
    match (&chunk.output, chunk.stored) {
        (None, false) => Ok(Output::Nothing),
        (None, true) => Ok(Output::Stored),
        (Some(blob), false) => Ok(Output::Inline(ByteVec::from(blob.0.clone()))),
        (Some(_), true) => {
            let detail = "an output is either sent along (`output`) or `stored`, not both";
            Err(Refused(Problem::new(ProblemCode::InvalidRequest, detail)))
        }
    }
}

fn response_of(verdicts: &[Verdict]) -> Answer<Json<SettleResponse>> {
    if verdicts.iter().all(|verdict| *verdict == Verdict::TokenInvalid) {
        let detail = "none of these chunks was handed out with its token; reserve first, and send each token back as it was";
        return Err(Refused(Problem::new(ProblemCode::TokenInvalid, detail)));
    }
    let chunks = verdicts.iter().map(|verdict| match verdict {
        Verdict::Accepted => ChunkVerdict::Accepted,
        Verdict::AlreadyDone => ChunkVerdict::AlreadyDone,
        Verdict::AlreadyFailed => ChunkVerdict::AlreadyFailed,
        Verdict::SubmissionOver => ChunkVerdict::SubmissionOver,
        Verdict::NoSuchChunk => ChunkVerdict::NoSuchChunk,
        Verdict::ReservationLost => ChunkVerdict::ReservationLost,
        Verdict::TokenInvalid => ChunkVerdict::TokenInvalid,
        Verdict::OutputTooLarge => ChunkVerdict::OutputTooLarge,
        Verdict::OutputRefused => ChunkVerdict::OutputRefused,
    });
    Ok(Json(SettleResponse { chunks: chunks.collect() }))
}
