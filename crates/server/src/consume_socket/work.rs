//! Frames of work: chunks, and what their consumers need to know of their submissions.

use crate::limits::WORK_FRAME_BYTES;
use crate::service::Service;
use crate::service::abouts::about_bytes;
use minicbor::bytes::ByteVec;
use windlass_api::frames::{ServerFrame, WorkChunk, WorkOf};
use windlass_core::batch::reserver::HandOut;
use windlass_core::batch::submissions::Input;

/// One or several frames of work, each of bounded size.
pub(super) fn frames_of(service: &Service, request: u64, hand_outs: &[HandOut]) -> Vec<ServerFrame> {
    let (mut frames, mut work, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (nth, hand_out) in hand_outs.iter().enumerate() {
        let about = service.abouts().get(service.order(), hand_out.submission);
        bytes += about_bytes(&about) + 24 * hand_out.chunks.len();
        work.push(WorkOf {
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
            chunks: hand_out.chunks.iter().map(|(chunk, token)| WorkChunk::new(*chunk, *token)).collect(),
        });
        let more = nth + 1 < hand_outs.len();
        if bytes > WORK_FRAME_BYTES && more {
            frames.push(ServerFrame::Work { request, more, work: std::mem::take(&mut work) });
            bytes = 0;
        }
    }
    frames.push(ServerFrame::Work { request, more: false, work });
    frames
}
