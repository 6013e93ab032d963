//! Frames of work: chunks, and what their consumers need to know of their submissions; tasks, what they carry, and those
//! that are added.

use crate::limits::{RESERVE_WORK_BYTES_MAX, WORK_FRAME_BYTES};
use crate::service::Service;
use crate::service::abouts::about_bytes;
use crate::service::lanes::TaskToDo;
use minicbor::bytes::ByteVec;
use windlass_api::blob::Blob;
use windlass_api::frames::{ServerFrame, TaskOf, TaskToAdd, WorkChunk, WorkOf};
use windlass_api::lanes::TaskRequest;
use windlass_core::batch::reserver::HandOut;
use windlass_core::batch::submissions::{Input, Metadata};
use windlass_core::ids::ChunkName;
use windlass_core::lanes::tasks::Payload;

/// One or several frames of work, each of bounded size. What would be too much for one reserve goes back unharmed.
pub(super) fn frames_of(service: &Service, request: u64, hand_outs: &[HandOut]) -> Vec<ServerFrame> {
    let (mut frames, mut work, mut bytes) = (Vec::new(), Vec::new(), 0);
    let (mut bytes_in_all, mut too_much) = (0, Vec::new());
    for (nth, hand_out) in hand_outs.iter().enumerate() {
        if bytes_in_all > RESERVE_WORK_BYTES_MAX {
            let name = |chunk| ChunkName { submission: hand_out.submission, chunk };
            too_much.extend(hand_out.chunks.iter().map(|(chunk, token)| (name(*chunk), *token)));
            continue;
        }
        let of = match hand_out.is_of_task() {
            true => work_of_task(service, hand_out),
            false => Some(work_of_submission(service, hand_out)),
        };
        if let Some((of, of_bytes)) = of {
            bytes += of_bytes + 24 * hand_out.chunks.len();
            bytes_in_all += of_bytes;
            work.push(of);
        }
        let more = nth + 1 < hand_outs.len();
        if bytes > WORK_FRAME_BYTES && more {
            frames.push(ServerFrame::Work { request, more, work: std::mem::take(&mut work) });
            bytes = 0;
        }
    }
    frames.push(ServerFrame::Work { request, more: false, work });
    if !too_much.is_empty() {
        // Nobody waits for the verdicts: each of these was handed out a moment ago.
        drop(service.release(too_much));
    }
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
        branch: about.output.as_ref().map(|rule| rule.branch.clone()),
    };
    (work, about_bytes(&about))
}

/// None for a task that is done meanwhile, by a consumer that was thought lost.
fn work_of_task(service: &Service, hand_out: &HandOut) -> Option<(WorkOf, usize)> {
    let TaskToDo { lane, key, payload } = service.task_to_do(hand_out.submission)?;
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
        branch: None,
    };
    Some((work, bytes))
}

/// A task as HTTP has it.
pub(super) fn request_of(task: TaskToAdd) -> TaskRequest {
    TaskRequest {
        key: task.key,
        weight: task.weight_milli.map(|milli| f64::from(milli) / 1_000.0),
        priority: task.priority.unwrap_or_default(),
        payload: task.payload.map(|payload| Blob(payload.into())),
        object: task.object,
        not_before: None,
        delay_ms: task.delay_ms,
        attempts_max: task.attempts_max,
        retry_delay_ms: task.retry_delay_ms,
    }
}

fn chunks_of(hand_out: &HandOut) -> Vec<WorkChunk> {
    hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect()
}
