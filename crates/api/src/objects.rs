//! Where chunks' bytes are in the object store.

use windlass_core::branches::outputs::output_address;
use windlass_core::ids::{Attempt, ChunkIndex, SubmissionId};

/// The key of a chunk's input under its submission's prefix.
pub fn input_key(prefix: &str, chunk: ChunkIndex) -> String {
    format!("{prefix}/{chunk}")
}

/// The key of an attempt's output: its own, so that late work never overwrites what was accepted.
pub fn output_key(submission: SubmissionId, chunk: ChunkIndex, attempt: Attempt) -> String {
    output_address(submission, chunk, attempt, None)
}
