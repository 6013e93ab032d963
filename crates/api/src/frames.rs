//! The consumers' WebSocket, `/v1/consume`: binary frames, each one CBOR value (RFC 8949).
//!
//! A frame is an array of the frame's number and an array of its fields in the order of their numbers; `docs/protocol.md`
//! shows the bytes. A consumer opens with `Hello`, gets `Welcome`, then sends requests, each with a number of its own
//! choosing, and does not wait for one answer before it sends the next. A reserve is answered when there is work.

use crate::bounded;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use windlass_core::batch::submissions::Metadata;
use windlass_core::batch::tokens::AttemptToken;
use windlass_core::branches::outputs::OutputEntry;
use windlass_core::entry::Output;
use windlass_core::ids::{Attempt, ChunkIndex, Epoch, SubmissionId};
use windlass_core::limits::TASKS_PER_ADD_MAX;

/// The version of this protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// What a connection gathers for writing at a time, and what a client reads. Ten thousand consumers have one each at both ends,
/// and most frames are far smaller; larger ones make their own room for as long as they need it.
pub const SOCKET_BUFFER_BYTES: usize = 4 * 1_024;

/// No frame is larger; a server closes the connection of a client that sends one.
pub const FRAME_BYTES_MAX: usize = 4 * 1_024 * 1_024;

/// The server closes with this code when no frame came for three heartbeats; the consumer may connect again at once.
pub const CLOSE_NO_HEARTBEAT: u16 = 4_408;

/// What a consumer sends.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ClientFrame {
    /// Opens the conversation.
    #[n(1)]
    Hello {
        /// The protocol version the client speaks.
        #[n(0)]
        version: u16,
        /// The session before a reconnect: its connection ends, if it has not yet.
        #[n(1)]
        session: Option<u64>,
        /// A name for people to read.
        #[n(2)]
        name: String,
    },
    /// Asks for chunks; answered by `Work` as soon as there are some.
    #[n(2)]
    Reserve {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// How many chunks at most.
        #[n(1)]
        max: u32,
        /// The strategy as JSON text.
        #[n(2)]
        strategy: String,
        /// Whether to wait until everything that this connection has reported before is answered: the next chunk then
        /// comes with the acknowledgement of the last one, in one exchange.
        #[n(3)]
        #[cbor(default)]
        after_reports: bool,
    },
    /// Reports chunks of one submission as done; answered by `Settled`.
    #[n(3)]
    Complete {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The submission.
        #[n(1)]
        submission: SubmissionId,
        /// The chunks.
        #[n(2)]
        done: Vec<DoneChunk>,
    },
    /// Reports attempts at chunks of one submission as failed; answered by `Settled`.
    #[n(4)]
    Fail {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The submission.
        #[n(1)]
        submission: SubmissionId,
        /// The attempts.
        #[n(2)]
        failed: Vec<FailedChunk>,
    },
    /// Shows that the consumer lives; answered by `Heartbeat`.
    #[n(5)]
    Heartbeat {},
    /// Claims what the consumer still works on after a reconnect; answered by `Settled`.
    #[n(6)]
    Reassert {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The submission.
        #[n(1)]
        submission: SubmissionId,
        /// The chunks.
        #[n(2)]
        chunks: Vec<WorkChunk>,
    },
    /// Gives chunks back unharmed; answered by `Settled`.
    #[n(7)]
    Release {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The submission.
        #[n(1)]
        submission: SubmissionId,
        /// The chunks.
        #[n(2)]
        chunks: Vec<WorkChunk>,
    },
    /// Adds tasks to a lane, all or none; answered by `Added`.
    #[n(8)]
    Add {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The lane.
        #[n(1)]
        lane: String,
        /// The tasks, in order. Of more than may be added at a time not all are kept.
        #[n(2)]
        #[cbor(decode_with = "bounded::from_cbor::<_, _, TASKS_PER_ADD_MAX>")]
        tasks: Vec<TaskToAdd>,
        /// The same key within a day adds the same tasks.
        #[n(3)]
        idempotency_key: Option<String>,
    },
    /// Reports tasks of lanes as done, as many as were worked on; answered by `Settled`.
    #[n(9)]
    CompleteTasks {
        /// The request's number.
        #[n(0)]
        request: u64,
        /// The tasks.
        #[n(1)]
        tasks: Vec<WorkTask>,
    },
}

/// A task to be added.
#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub struct TaskToAdd {
    /// Whose task it is.
    #[n(0)]
    pub key: String,
    /// What the consumer gets.
    #[n(1)]
    pub payload: Option<ByteVec>,
    /// The weight of its key in thousandths; 1,000 if it is left out.
    #[n(2)]
    pub weight_milli: Option<u32>,
    /// Larger ones go first.
    #[n(3)]
    pub priority: Option<u8>,
    /// It is not handed out for so long.
    #[n(4)]
    pub delay_ms: Option<u64>,
    /// How often it is tried.
    #[n(5)]
    pub attempts_max: Option<u32>,
    /// How long its first retry waits.
    #[n(6)]
    pub retry_delay_ms: Option<u64>,
    /// The object with what the consumer gets, instead of a payload.
    #[n(7)]
    pub object: Option<String>,
    /// It is not handed out before this time (RFC 3339), instead of a delay.
    #[n(8)]
    pub not_before: Option<String>,
}

/// What the server sends.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ServerFrame {
    /// Answers `Hello`.
    #[n(1)]
    Welcome {
        /// The protocol version that the server speaks.
        #[n(0)]
        version: u16,
        /// The session, to be named in the next `Hello` after a reconnect.
        #[n(1)]
        session: u64,
        /// Send some frame at least this often.
        #[n(2)]
        heartbeat_ms: u64,
        /// How long what the session holds outlives its connection, unless a later session re-asserts it.
        #[n(3)]
        grace_ms: u64,
    },
    /// Chunks to work on.
    #[n(2)]
    Work {
        /// The reserve that this answers.
        #[n(0)]
        request: u64,
        /// Whether more frames answer the same reserve.
        #[n(1)]
        more: bool,
        /// The chunks, by submission.
        #[n(2)]
        work: Vec<WorkOf>,
    },
    /// What became of each chunk of a request, in its order.
    #[n(3)]
    Settled {
        /// The request that this answers.
        #[n(0)]
        request: u64,
        /// One for each chunk.
        #[n(1)]
        verdicts: Vec<Verdict>,
    },
    /// A request could not be carried out.
    #[n(4)]
    Refused {
        /// The request that this answers.
        #[n(0)]
        request: u64,
        /// The problem's stable code, as in the HTTP interface.
        #[n(1)]
        code: String,
        /// What to do.
        #[n(2)]
        detail: String,
        /// Whether the same request may succeed later.
        #[n(3)]
        retry_helps: bool,
    },
    /// Answers `Heartbeat`.
    #[n(5)]
    Heartbeat {},
    /// The server is about to stop: it hands out no more work, but still takes reports.
    #[n(6)]
    Draining {},
    /// The tasks are in.
    #[n(7)]
    Added {
        /// The request that this answers.
        #[n(0)]
        request: u64,
        /// Their ids, in order.
        #[n(1)]
        tasks: Vec<SubmissionId>,
    },
}

/// Chunks of one submission, with what its producer said.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct WorkOf {
    /// The submission.
    #[n(0)]
    pub submission: SubmissionId,
    /// Chunk i's bytes are the object `prefix/i`.
    #[n(1)]
    pub prefix: Option<String>,
    /// The bytes of the only chunk.
    #[n(2)]
    pub payload: Option<ByteVec>,
    /// What the producer sent along.
    #[n(3)]
    pub opaque: Option<ByteVec>,
    /// The submission's metadata.
    #[n(4)]
    pub metadata: Metadata,
    /// The chunks.
    #[n(5)]
    pub chunks: Vec<WorkChunk>,
    /// What is said of a task of a lane, which comes as the only chunk of a submission of its own.
    #[n(6)]
    pub task: Option<TaskOf>,
    /// The branch that outputs go to.
    #[n(7)]
    pub branch: Option<String>,
}

/// What is said of a task.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct TaskOf {
    /// Its lane.
    #[n(0)]
    pub lane: String,
    /// Its key.
    #[n(1)]
    pub key: String,
    /// The object with its bytes, if they did not come inline.
    #[n(2)]
    pub object: Option<String>,
}

/// A chunk with the token of the attempt at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct WorkChunk {
    /// Which chunk.
    #[n(0)]
    pub chunk: ChunkIndex,
    /// The token's leadership.
    #[n(1)]
    pub epoch: u32,
    /// The token's count.
    #[n(2)]
    pub nth: u64,
    /// The token's proof.
    #[n(3)]
    pub proof: u64,
}

impl WorkChunk {
    /// A chunk and its token.
    pub const fn new(chunk: ChunkIndex, token: AttemptToken) -> WorkChunk {
        WorkChunk { chunk, epoch: token.attempt.epoch.0, nth: token.attempt.nth, proof: token.proof }
    }

    /// The token.
    pub const fn token(&self) -> AttemptToken {
        AttemptToken { attempt: Attempt { epoch: Epoch(self.epoch), nth: self.nth }, proof: self.proof }
    }
}

/// A task with the token of the attempt at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct WorkTask {
    /// Which task.
    #[n(0)]
    pub task: SubmissionId,
    /// The token's leadership.
    #[n(1)]
    pub epoch: u32,
    /// The token's count.
    #[n(2)]
    pub nth: u64,
    /// The token's proof.
    #[n(3)]
    pub proof: u64,
}

impl WorkTask {
    /// The task that came as a submission's only chunk.
    pub const fn new(task: SubmissionId, WorkChunk { epoch, nth, proof, .. }: WorkChunk) -> WorkTask {
        WorkTask { task, epoch, nth, proof }
    }

    /// The chunk as which it came.
    pub const fn chunk(&self) -> WorkChunk {
        WorkChunk { chunk: ChunkIndex(0), epoch: self.epoch, nth: self.nth, proof: self.proof }
    }
}

/// A chunk that is done.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct DoneChunk {
    /// Which chunk, by which attempt.
    #[n(0)]
    pub chunk: WorkChunk,
    /// What came out.
    #[n(1)]
    pub output: Output,
    /// What goes to the branch that the submission names.
    #[n(2)]
    pub entries: Option<Vec<OutputEntry>>,
}

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct FailedChunk {
    /// Which chunk, which attempt.
    #[n(0)]
    pub chunk: WorkChunk,
    /// Why, for a person to read.
    #[n(1)]
    pub reason: String,
}

/// What became of one chunk of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Verdict {
    /// The report counts; the reservation is kept or given back.
    #[n(0)]
    Accepted,
    /// The chunk was done before; nothing changed.
    #[n(1)]
    AlreadyDone,
    /// This failure was counted before; nothing changed.
    #[n(2)]
    AlreadyFailed,
    /// The submission is over; nothing changed.
    #[n(3)]
    SubmissionOver,
    /// The submission has no such chunk.
    #[n(4)]
    NoSuchChunk,
    /// The reservation was lost: the chunk is with another consumer, or ready for one.
    #[n(5)]
    ReservationLost,
    /// The chunk was never handed out with this token.
    #[n(6)]
    TokenInvalid,
    /// The output is too large to be sent along; the attempt is counted as failed.
    #[n(7)]
    OutputTooLarge,
    /// The outputs for a branch break a rule; the attempt is counted as failed, and its reason says which.
    #[n(8)]
    OutputRefused,
}

/// The bytes of a frame.
pub fn encode<F: Encode<()>>(frame: &F) -> Vec<u8> {
    /// Room for an acknowledgement, or for a chunk of a submission of which little is said.
    const USUAL_BYTES: usize = 128;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    minicbor::encode(frame, &mut bytes).expect("encoding into memory does not fail");
    bytes
}

/// The frame in these bytes.
pub fn decode<'b, F: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<F, minicbor::decode::Error> {
    let mut decoder = minicbor::Decoder::new(bytes);
    let frame = decoder.decode()?;
    if decoder.position() == bytes.len() {
        Ok(frame)
    } else {
        Err(minicbor::decode::Error::message("bytes follow the frame"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_bytes_that_the_protocol_documents() {
        let reserve = ClientFrame::Reserve {
            request: 7,
            max: 100,
            strategy: "\"Random\"".into(),
            after_reports: false,
        };
        let bytes = encode(&reserve);
        assert_eq!(bytes, *b"\x82\x02\x84\x07\x18\x64\x68\"Random\"\xf4");
        assert_eq!(decode::<ClientFrame>(&bytes).unwrap(), reserve);
        let without_the_last_field = b"\x82\x02\x83\x07\x18\x64\x68\"Random\"";
        assert_eq!(decode::<ClientFrame>(without_the_last_field).unwrap(), reserve);
        assert_eq!(encode(&ClientFrame::Heartbeat {}), [0x82, 0x05, 0x80]);
        let task = SubmissionId::from_u64(0x0548_23ee_7080_0000).unwrap();
        let attempt = Attempt::of_task(Epoch(1), 0);
        let token = AttemptToken { attempt, proof: 7 };
        let tasks = vec![WorkTask::new(task, WorkChunk::new(ChunkIndex(0), token))];
        assert_eq!(tasks[0].chunk().token(), token);
        let bytes = encode(&ClientFrame::CompleteTasks { request: 6, tasks });
        let documented =
            b"\x82\x09\x82\x06\x81\x84\x1b\x05\x48\x23\xee\x70\x80\x00\x00\x01\x1b\x40\0\0\0\0\0\0\0\x07";
        assert_eq!(bytes, documented);
    }

    #[test]
    fn of_far_too_many_tasks_in_a_frame_no_more_are_kept_than_show_that() {
        let frame = |count: usize| ClientFrame::Add {
            request: 1,
            lane: "emails".into(),
            tasks: vec![TaskToAdd::default(); count],
            idempotency_key: Some("k".into()),
        };
        let decoded = |count| decode::<ClientFrame>(&encode(&frame(count))).unwrap();
        assert_eq!(decoded(TASKS_PER_ADD_MAX), frame(TASKS_PER_ADD_MAX));
        assert_eq!(decoded(200_000), frame(TASKS_PER_ADD_MAX + 1));
    }

    #[test]
    fn a_task_to_be_added_takes_what_is_said_of_it_and_one_of_earlier_builds_says_no_time() {
        let add = |task| ClientFrame::Add {
            request: 6,
            lane: "l".into(),
            tasks: vec![task],
            idempotency_key: None,
        };
        let task = TaskToAdd { key: "k".into(), ..TaskToAdd::default() };
        let bytes = encode(&add(task.clone()));
        assert_eq!(bytes, *b"\x82\x08\x83\x06\x61l\x81\x81\x61k", "nulls at its end are left out");
        assert_eq!(decode::<ClientFrame>(&bytes).unwrap(), add(task.clone()));
        let of_before = b"\x82\x08\x83\x06\x61l\x81\x88\x61k\xf6\xf6\xf6\x07\xf6\xf6\xf6";
        let delayed = TaskToAdd { delay_ms: Some(7), ..task.clone() };
        assert_eq!(decode::<ClientFrame>(of_before).unwrap(), add(delayed));
        let later = TaskToAdd { not_before: Some("2030-01-31T08:00:00Z".into()), ..task };
        let bytes = encode(&add(later.clone()));
        let documented =
            b"\x82\x08\x83\x06\x61l\x81\x89\x61k\xf6\xf6\xf6\xf6\xf6\xf6\xf6\x742030-01-31T08:00:00Z";
        assert_eq!(bytes, documented);
        assert_eq!(decode::<ClientFrame>(&bytes).unwrap(), add(later));
    }

    #[test]
    fn garbage_and_leftovers_are_refused() {
        for bytes in [&b""[..], b"\xff", b"\x82\x18\x63\x80", b"\x82\x05\x80\x00", b"{\"json\": true}"] {
            assert!(decode::<ClientFrame>(bytes).is_err(), "{bytes:02x?}");
        }
    }
}
