//! Frames of work: chunks, and what their consumers need to know of their submissions; tasks, what they carry, and those
//! that are added.

use crate::limits::{RESERVE_WORK_BYTES_MAX, WORK_FRAME_BYTES};
use crate::service::Service;
use crate::service::abouts::About;
use crate::service::lanes::TaskToDo;
use minicbor::Encoder;
use std::convert::Infallible;
use windlass_api::blob::Blob;
use windlass_api::frames::{TaskToAdd, WorkChunk};
use windlass_api::lanes::TaskRequest;
use windlass_core::batch::reserver::HandOut;
use windlass_core::ids::ChunkName;
use windlass_core::lanes::tasks::PayloadRef;

/// Frames of work, and how many chunks they carry.
#[derive(Debug)]
pub(super) struct Frames {
    /// Each of bounded size, as their bytes; none if nothing of what was handed out is left to do.
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) chunks: u64,
}

/// The frames of what was handed out. What would be too much for one reserve goes back unharmed; what is done meanwhile is left out.
pub(super) fn frames_of(service: &Service, request: u64, hand_outs: &[HandOut]) -> Frames {
    let (mut frames, mut chunks) = (vec![WorkFrame::default()], 0);
    let (mut bytes_in_all, mut too_much) = (0, Vec::new());
    for hand_out in hand_outs {
        if bytes_in_all > RESERVE_WORK_BYTES_MAX {
            let name = |chunk| ChunkName { submission: hand_out.submission, chunk };
            too_much.extend(hand_out.chunks.iter().map(|(chunk, token)| (name(*chunk), *token)));
            continue;
        }
        let frame = frames.last_mut().expect("there is always one to fill");
        let pushed = match &hand_out.task {
            Some(place) => service.look_at_task(place, |task| frame.push_task(hand_out, task)),
            None => Some(service.abouts().look(service.order(), hand_out, |about| {
                frame.push_chunks(hand_out, about);
                about.bytes()
            })),
        };
        let Some(bytes) = pushed else { continue };
        bytes_in_all += bytes;
        chunks += hand_out.chunks.len() as u64;
        if frame.work.len() > WORK_FRAME_BYTES {
            frames.push(WorkFrame::default());
        }
    }
    frames.pop_if(|last| last.count == 0);
    let last = frames.len().saturating_sub(1);
    let frames = frames.into_iter().enumerate().map(|(nth, frame)| frame.finish(request, nth < last));
    let frames = frames.collect();
    if !too_much.is_empty() {
        // Nobody waits for the verdicts: each of these was handed out a moment ago.
        drop(service.release(too_much));
    }
    Frames { frames, chunks }
}

/// A [`ServerFrame::Work`](windlass_api::frames::ServerFrame::Work) in the making, with the bytes that one has: what is said of a
/// submission is kept as it stands in a frame, and is only copied.
#[derive(Debug, Default)]
struct WorkFrame {
    count: u64,
    /// A [`WorkOf`](windlass_api::frames::WorkOf) after the other.
    work: Vec<u8>,
}

type Encoded = Result<(), minicbor::encode::Error<Infallible>>;

impl WorkFrame {
    fn push_chunks(&mut self, HandOut { submission, chunks, .. }: &HandOut, about: &About) {
        self.count += 1;
        self.work.reserve(about.encoded_fields().len() + 24 * chunks.len() + 16);
        let mut out = Encoder::new(&mut self.work);
        let mut encode = || -> Encoded {
            // Up to the last field that says something: the chunks, or the branch.
            out.array(if about.branch().is_some() { 8 } else { 6 })?.encode(submission)?;
            out.writer_mut().extend_from_slice(about.encoded_fields());
            out.array(chunks.len() as u64)?;
            for (chunk, token) in chunks {
                out.encode(WorkChunk::new(*chunk, *token))?;
            }
            if let Some(branch) = about.branch() {
                out.null()?.str(branch)?;
            }
            Ok(())
        };
        encode().expect("encoding into memory does not fail");
    }

    /// Says how many bytes it carries.
    fn push_task(
        &mut self,
        HandOut { submission, chunks, .. }: &HandOut,
        TaskToDo { lane, key, payload }: TaskToDo<'_>,
    ) -> usize {
        self.count += 1;
        let before = self.work.len();
        let mut out = Encoder::new(&mut self.work);
        let mut encode = || -> Encoded {
            out.array(7)?.encode(submission)?.null()?;
            match payload {
                PayloadRef::Inline(bytes) => out.bytes(bytes)?,
                PayloadRef::Nothing | PayloadRef::Object(_) => out.null()?,
            };
            out.null()?.map(0)?.array(chunks.len() as u64)?;
            for (chunk, token) in chunks {
                out.encode(WorkChunk::new(*chunk, *token))?;
            }
            match payload {
                PayloadRef::Object(object) => out.array(3)?.str(lane)?.str(key)?.str(object)?,
                PayloadRef::Nothing | PayloadRef::Inline(_) => out.array(2)?.str(lane)?.str(key)?,
            };
            Ok(())
        };
        encode().expect("encoding into memory does not fail");
        self.work.len() - before
    }

    fn finish(self, request: u64, more: bool) -> Vec<u8> {
        /// The heads and numbers before the work.
        const HEAD_BYTES_MAX: usize = 24;
        /// The number of the frame's kind.
        const WORK: u32 = 2;
        let mut out = Encoder::new(Vec::with_capacity(HEAD_BYTES_MAX + self.work.len()));
        let mut encode = || -> Encoded {
            out.array(2)?.u32(WORK)?.array(3)?.u64(request)?.bool(more)?.array(self.count)?;
            Ok(())
        };
        encode().expect("encoding into memory does not fail");
        let mut frame = out.into_writer();
        frame.extend_from_slice(&self.work);
        frame
    }
}

/// A task as HTTP has it.
pub(super) fn request_of(task: TaskToAdd) -> TaskRequest {
    TaskRequest {
        key: task.key,
        weight: task.weight_milli.map(|milli| f64::from(milli) / 1_000.0),
        priority: task.priority.unwrap_or_default(),
        payload: task.payload.map(|payload| Blob(payload.into())),
        object: task.object,
        not_before: task.not_before,
        delay_ms: task.delay_ms,
        attempts_max: task.attempts_max,
        retry_delay_ms: task.retry_delay_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_api::frames::{self, ServerFrame, TaskOf, WorkOf};
    use windlass_core::batch::submissions::{Input, Metadata, Submit};
    use windlass_core::batch::tokens::AttemptToken;
    use windlass_core::branches::outputs::{OnChunkFailure, OutputMode, OutputRule};
    use windlass_core::branches::verify::Verify;
    use windlass_core::ids::{Attempt, ChunkIndex, Epoch, SubmissionId};

    #[test]
    fn frames_have_the_bytes_of_frames_whatever_is_said_of_their_submissions() {
        let submission = SubmissionId::from_u64(1 << 40).expect("it is an id");
        let name = ChunkName { submission, chunk: ChunkIndex(7) };
        let token = AttemptToken::new(&[5; 16], name, Attempt { epoch: Epoch(3), nth: 1 });
        let hand_out = HandOut {
            submission,
            chunks: vec![(ChunkIndex(7), token), (ChunkIndex(1 << 33), token)],
            plain: None,
            task: None,
        };
        let chunks: Vec<WorkChunk> =
            hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect();
        let metadata: Metadata =
            [("company".to_owned(), 7_i64.into()), ("mode".to_owned(), "x".into())].into();
        let plain = WorkOf {
            submission,
            prefix: None,
            payload: None,
            opaque: None,
            metadata: Metadata::default(),
            chunks,
            task: None,
            branch: None,
        };
        let submit = Submit::new(9);
        let said = [
            (submit.clone(), plain.clone()),
            (
                Submit { input: Input::Prefix("in/7".into()), metadata: metadata.clone(), ..submit.clone() },
                WorkOf { prefix: Some("in/7".into()), metadata, ..plain.clone() },
            ),
            (
                Submit {
                    input: Input::Inline(vec![1, 2].into()),
                    opaque: vec![3].into(),
                    output: Some(OutputRule {
                        branch: "main".into(),
                        mode: OutputMode::Append,
                        on_chunk_failure: OnChunkFailure::default(),
                        verify: Verify::default(),
                    }),
                    ..submit
                },
                WorkOf {
                    payload: Some(vec![1, 2].into()),
                    opaque: Some(vec![3].into()),
                    branch: Some("main".into()),
                    ..plain.clone()
                },
            ),
        ];
        let payloads =
            [PayloadRef::Nothing, PayloadRef::Inline((&[4_u8][..]).into()), PayloadRef::Object("in/7")];
        let mut frame = WorkFrame::default();
        let mut work = Vec::new();
        for (submit, of) in said {
            frame.push_chunks(&hand_out, &About::of(&submit));
            work.push(of);
        }
        for payload in payloads {
            let (inline, object) = match payload {
                PayloadRef::Nothing => (None, None),
                PayloadRef::Inline(bytes) => (Some(bytes.to_vec().into()), None),
                PayloadRef::Object(object) => (None, Some(object.to_owned())),
            };
            frame.push_task(&hand_out, TaskToDo { lane: "emails", key: "a", payload });
            let task = TaskOf { lane: "emails".into(), key: "a".into(), object };
            work.push(WorkOf { task: Some(task), payload: inline, ..plain.clone() });
        }
        let bytes = frame.finish(1_000, true);
        assert_eq!(bytes, frames::encode(&ServerFrame::Work { request: 1_000, more: true, work }));
    }
}
