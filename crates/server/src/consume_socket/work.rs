//! Frames of work: chunks, and what their consumers need to know of their submissions; tasks, and what they carry.

use crate::limits::WORK_FRAME_BYTES;
use crate::service::Service;
use crate::service::abouts::about_bytes;
use minicbor::bytes::ByteVec;
use windlass_api::frames::{ServerFrame, TaskOf, WorkChunk, WorkOf};
use windlass_core::batch::reserver::HandOut;
use windlass_core::batch::submissions::{Input, Metadata};
use windlass_core::lanes::tasks::Payload;

/// One or several frames of work, each of bounded size.
pub(super) fn frames_of(service: &Service, request: u64, hand_outs: &[HandOut]) -> Vec<ServerFrame> {
    let (mut frames, mut work, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (nth, hand_out) in hand_outs.iter().enumerate() {
        let (of, of_bytes) = if hand_out.is_of_task() {
            work_of_task(service, hand_out)
        } else {
            work_of_submission(service, hand_out)
        };
        bytes += of_bytes + 24 * hand_out.chunks.len();
        work.push(of);
        let more = nth + 1 < hand_outs.len();
        if bytes > WORK_FRAME_BYTES && more {
            frames.push(ServerFrame::Work { request, more, work: std::mem::take(&mut work) });
            bytes = 0;
        }
    }
    frames.push(ServerFrame::Work { request, more: false, work });
    frames
}

fn work_of_submission(service: &Service, hand_out: &HandOut) -> (WorkOf, usize) {
    let about = service.abouts().get(service.order(), hand_out.submission);
    let work = WorkOf {
        submission: hand_out.submission,
        prefix: match &about.input {
            Input::Prefix(prefix) => Some(prefix.clone()),
            Input::Nowhere | Input::Inline(_) => None,
        },
        payload: match &about.input {
            Input::Inline(payload) => Some(payload.clone()),
            Input::Nowhere | Input::Prefix(_) => None,
        },
        opaque: (!about.opaque.is_empty()).then(|| ByteVec::from(about.opaque.to_vec())),
        metadata: about.metadata.clone(),
        chunks: chunks_of(hand_out),
        task: None,
    };
    (work, about_bytes(&about))
}

/// A task that is done meanwhile, by a consumer that was thought lost, comes without a payload; completing it once more
/// changes nothing.
fn work_of_task(service: &Service, hand_out: &HandOut) -> (WorkOf, usize) {
    let to_do = service.task_to_do(hand_out.submission);
    let (lane, key, payload) = to_do
        .map_or_else(|| (String::new(), String::new(), Payload::Nothing), |it| (it.lane, it.key, it.payload));
    let bytes = lane.len() + key.len() + payload.bytes() + 64;
    let (payload, object) = match payload {
        Payload::Nothing => (None, None),
        Payload::Inline(payload) => (Some(payload), None),
        Payload::Object(object) => (None, Some(object)),
    };
    let work = WorkOf {
        submission: hand_out.submission,
        prefix: None,
        payload,
        opaque: None,
        metadata: Metadata::default(),
        chunks: chunks_of(hand_out),
        task: Some(TaskOf { lane, key, object }),
    };
    (work, bytes)
}

fn chunks_of(hand_out: &HandOut) -> Vec<WorkChunk> {
    hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect()
}
