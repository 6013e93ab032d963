//! Frames of work: chunks, and what their consumers need to know of their submissions; tasks, what they carry, and those
//! that are added.

use crate::limits::WORK_FRAME_BYTES;
use crate::service::Service;
use crate::service::abouts::about_bytes;
use crate::service::lanes::TaskToDo;
use minicbor::bytes::ByteVec;
use windlass_api::frames::{ServerFrame, TaskOf, TaskToAdd, WorkChunk, WorkOf};
use windlass_core::batch::reserver::HandOut;
use windlass_core::batch::submissions::{Input, Metadata};
use windlass_core::lanes::levels::Weight;
use windlass_core::lanes::tasks::{NewTask, Payload};
use windlass_core::time::At;

/// One or several frames of work, each of bounded size.
pub(super) fn frames_of(service: &Service, request: u64, hand_outs: &[HandOut]) -> Vec<ServerFrame> {
    let (mut frames, mut work, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (nth, hand_out) in hand_outs.iter().enumerate() {
        let of = match hand_out.is_of_task() {
            true => work_of_task(service, hand_out),
            false => Some(work_of_submission(service, hand_out)),
        };
        if let Some((of, of_bytes)) = of {
            bytes += of_bytes + 24 * hand_out.chunks.len();
            work.push(of);
        }
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
    };
    Some((work, bytes))
}

/// A task as the machine takes it.
pub(super) fn new_task(task: TaskToAdd, now: At) -> Result<NewTask, String> {
    let payload = match (task.payload, task.object) {
        (Some(_), Some(_)) => return Err("a task has a payload or an object, not both".into()),
        (Some(payload), None) => Payload::Inline(payload),
        (None, Some(object)) => Payload::Object(object),
        (None, None) => Payload::Nothing,
    };
    let default = NewTask::new(task.key);
    Ok(NewTask {
        weight: task.weight_milli.map_or(Ok(Weight::ONE), Weight::from_milli_or_problem)?,
        priority: task.priority.unwrap_or(default.priority),
        payload,
        not_before: task.delay_ms.map(|delay_ms| now.after_ms(delay_ms)),
        attempts_max: task.attempts_max.unwrap_or(default.attempts_max),
        retry_delay_ms: task.retry_delay_ms.unwrap_or(default.retry_delay_ms),
        ..default
    })
}

fn chunks_of(hand_out: &HandOut) -> Vec<WorkChunk> {
    hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect()
}
