//! Submissions: what a producer hands in, and the small row that changes while its chunks are worked on.
//!
//! Invariants
//! - A submission is one row, whatever its number of chunks.
//! - `done + failed <= chunks`, and both are sums over its blocks.
//! - A submission is either running or in history, never both.
//! - What is said of a submission is said in its about row; its own row, and while it runs its traits row, agree with it.
//! - A submission is found by its metadata as it is now, and by nothing else.

use crate::branches::outputs::{OnChunkFailure, OutputRule};
use crate::ids::SubmissionId;
use crate::limits::{
    ATTEMPTS_MAX_DEFAULT, ATTEMPTS_MAX_MAX, CHUNKS_PER_SUBMISSION_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
    INLINE_PAYLOAD_BYTES_MAX, METADATA_FIELD_BYTES_MAX, METADATA_FIELDS_MAX, METADATA_VALUE_BYTES_MAX,
    OBJECT_PREFIX_BYTES_MAX, OPAQUE_BYTES_MAX, RETRY_DELAY_MS_DEFAULT, RETRY_DELAY_MS_MAX,
};
use crate::rows;
use crate::tables::Table;
use crate::time::At;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode, Encoder};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

/// Strategic metadata: what strategies and searches go by.
pub type Metadata = BTreeMap<String, MetaValue>;

/// What a producer hands in.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Submit {
    /// The number of chunks.
    #[n(0)]
    pub chunks: u64,
    /// Strategic metadata.
    #[n(1)]
    pub metadata: Metadata,
    /// For `CustomPriority`: higher goes first.
    #[n(2)]
    pub priority: i64,
    /// Handed to every consumer as it is.
    #[n(3)]
    pub opaque: ByteVec,
    /// Where the chunks' bytes are.
    #[n(4)]
    pub input: Input,
    /// How often a chunk may be tried.
    #[n(5)]
    pub attempts_max: u32,
    /// How long the first retry waits; each further one waits twice as long.
    #[n(6)]
    pub retry_delay_ms: u64,
    /// What becomes of the rest when a chunk has used up its attempts.
    #[n(7)]
    pub on_failure: OnFailure,
    /// The same key within the dedup window gives the same submission.
    #[n(8)]
    pub idempotency_key: Option<String>,
    /// Where its outputs go, all at once.
    #[n(9)]
    pub output: Option<OutputRule>,
}

impl Submit {
    /// What a submission's row in [`Table::Abouts`] says.
    ///
    /// # Panics
    /// If the row is not one that a machine wrote.
    pub fn from_row(id: SubmissionId, row: &[u8]) -> Submit {
        rows::decode(Table::Abouts, &id.key(), row)
    }

    /// A submission of `chunks` chunks with every other setting at its default.
    pub fn new(chunks: u64) -> Submit {
        Submit {
            chunks,
            metadata: Metadata::new(),
            priority: 0,
            opaque: ByteVec::from(Vec::new()),
            input: Input::Nowhere,
            attempts_max: ATTEMPTS_MAX_DEFAULT,
            retry_delay_ms: RETRY_DELAY_MS_DEFAULT,
            on_failure: OnFailure::Stop,
            idempotency_key: None,
            output: None,
        }
    }

    /// Whether consumers are told its metadata and nothing else.
    pub(crate) fn is_plain(&self) -> bool {
        self.input == Input::Nowhere && self.opaque.is_empty() && self.output.is_none()
    }

    /// The first limit that the submission breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        self.problem_of_size()
            .or_else(|| self.problem_of_input())
            .or_else(|| problem_of_attempts_max(self.attempts_max))
            .or_else(|| problem_of_retry_delay(self.retry_delay_ms))
            .or_else(|| problem_of_metadata(&self.metadata))
            .or_else(|| self.output.as_ref().and_then(OutputRule::problem))
            .or_else(|| self.problem_of_failure())
    }

    fn problem_of_failure(&self) -> Option<String> {
        problem_of_failure(self.output.as_ref().map(|rule| rule.on_chunk_failure), self.on_failure)
    }

    fn problem_of_size(&self) -> Option<String> {
        let key_bytes = self.idempotency_key.as_ref().map_or(1, String::len);
        let checks: [(bool, &dyn Fn() -> String); 4] = [
            (self.chunks == 0, &|| "a submission needs at least one chunk".into()),
            (self.chunks > CHUNKS_PER_SUBMISSION_MAX, &|| {
                format!("a submission has at most {CHUNKS_PER_SUBMISSION_MAX} chunks; make its chunks larger")
            }),
            (self.opaque.len() > OPAQUE_BYTES_MAX, &|| {
                format!("`opaque` is at most {OPAQUE_BYTES_MAX} bytes; put larger data into the object store")
            }),
            (key_bytes == 0 || key_bytes > IDEMPOTENCY_KEY_BYTES_MAX, &|| {
                format!("an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes; a UUID will do")
            }),
        ];
        checks.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, say)| say())
    }

    fn problem_of_input(&self) -> Option<String> {
        match &self.input {
            Input::Nowhere => None,
            Input::Inline(_) if self.chunks != 1 => Some(
                "an inline payload belongs to a submission of exactly one chunk; use a prefix for several"
                    .into(),
            ),
            Input::Inline(payload) if payload.len() > INLINE_PAYLOAD_BYTES_MAX => Some(format!(
                "an inline payload is at most {INLINE_PAYLOAD_BYTES_MAX} bytes; put larger ones into the object store"
            )),
            Input::Inline(_) => None,
            Input::Prefix(prefix) if prefix.len() > OBJECT_PREFIX_BYTES_MAX || !is_object_prefix(prefix) => {
                Some(format!(
                    "an object prefix is at most {OBJECT_PREFIX_BYTES_MAX} bytes of names separated by `/`, each of \
                     letters, digits, `.`, `_`, `=` and `-`, none of them `.` or `..`"
                ))
            }
            Input::Prefix(_) => None,
        }
    }
}

/// What is wrong with ending at a failed chunk, for outputs that are committed without it.
pub(super) fn problem_of_failure(output: Option<OnChunkFailure>, on_failure: OnFailure) -> Option<String> {
    let is_wrong = output == Some(OnChunkFailure::CommitWithout) && on_failure == OnFailure::Stop;
    is_wrong.then(|| {
        "a submission that commits without its failed chunks goes on when one fails; set `on_failure` to `continue`"
            .into()
    })
}

fn is_object_prefix(prefix: &str) -> bool {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._=-".contains(&byte);
        !name.is_empty() && name != "." && name != ".." && name.bytes().all(is_plain)
    };
    prefix.split('/').all(is_name)
}

pub(super) fn problem_of_attempts_max(attempts_max: u32) -> Option<String> {
    let is_wrong = attempts_max == 0 || attempts_max > ATTEMPTS_MAX_MAX;
    is_wrong.then(|| format!("`attempts_max` is between 1 and {ATTEMPTS_MAX_MAX}"))
}

pub(super) fn problem_of_retry_delay(retry_delay_ms: u64) -> Option<String> {
    let is_wrong = retry_delay_ms > RETRY_DELAY_MS_MAX;
    is_wrong.then(|| format!("`retry_delay_ms` is at most {RETRY_DELAY_MS_MAX} (ten minutes)"))
}

pub(crate) fn problem_of_metadata(metadata: &Metadata) -> Option<String> {
    if metadata.len() > METADATA_FIELDS_MAX {
        return Some(format!(
            "metadata has at most {METADATA_FIELDS_MAX} fields; put the rest into `opaque`"
        ));
    }
    metadata
        .iter()
        .find_map(|(field, value)| problem_of_field(field).or_else(|| problem_of_value(field, value)))
}

/// What is wrong with the name of a metadata field, as a sentence that says what to do.
pub fn problem_of_field(field: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_wrong = field.is_empty() || field.len() > METADATA_FIELD_BYTES_MAX || !field.bytes().all(is_plain);
    is_wrong.then(|| {
        format!(
            "a metadata field's name has 1 to {METADATA_FIELD_BYTES_MAX} letters, digits, `.`, `_` or `-`"
        )
    })
}

fn problem_of_value(field: &str, value: &MetaValue) -> Option<String> {
    match value {
        MetaValue::Text(text) if text.len() > METADATA_VALUE_BYTES_MAX => Some(format!(
            "the value of metadata field `{field}` is longer than {METADATA_VALUE_BYTES_MAX} bytes; put it into `opaque`"
        )),
        MetaValue::Text(_) | MetaValue::Integer(_) | MetaValue::Bool(_) => None,
    }
}

/// What the leader hands out by: a submission's priority and metadata as they are now, whether it is held back, and whether
/// there is more to say of it.
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct Traits {
    /// For `CustomPriority`: higher goes first.
    #[n(0)]
    pub priority: i64,
    /// Strategic metadata.
    #[n(1)]
    pub metadata: Metadata,
    /// Nothing more of it is handed out until somebody resumes it.
    #[n(2)]
    pub paused: bool,
    /// Consumers are told its metadata and nothing else: it has no input, no opaque bytes and no branch. Rows of earlier builds
    /// do not say so.
    #[n(3)]
    #[cbor(default)]
    pub is_plain: bool,
}

impl Traits {
    /// What a traits row says.
    pub fn from_row(id: SubmissionId, row: &[u8]) -> Traits {
        rows::decode(Table::Traits, &id.key(), row)
    }

    /// The traits of a submission that comes in.
    pub fn of(submit: &Submit) -> Traits {
        Traits {
            priority: submit.priority,
            metadata: submit.metadata.clone(),
            paused: false,
            is_plain: submit.is_plain(),
        }
    }
}

/// Metadata as CBOR: as it stands in rows, and in frames of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataBytes(Box<[u8]>);

impl MetadataBytes {
    /// Encodes fields, in the order of their names.
    pub(super) fn of_sorted(fields: &[(&str, &MetaValue)]) -> MetadataBytes {
        let mut out = Encoder::new(Vec::with_capacity(24 * fields.len() + 1));
        let mut encode = || -> Result<(), minicbor::encode::Error<Infallible>> {
            out.map(fields.len() as u64)?;
            for (field, value) in fields {
                out.str(field)?.encode(value)?;
            }
            Ok(())
        };
        encode().expect("encoding into memory does not fail");
        MetadataBytes(out.into_writer().into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Where the bytes of a submission's chunks are.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Input {
    /// Nowhere: the chunk's index, and the opaque blob, tell the consumer all it needs.
    #[n(0)]
    Nowhere,
    /// Chunk i is the object `prefix/i`.
    #[n(1)]
    Prefix(#[n(0)] String),
    /// The bytes of the one chunk, kept with the queue's own state.
    #[n(2)]
    Inline(#[n(0)] ByteVec),
}

/// A metadata value.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, serde::Serialize, serde::Deserialize,
)]
#[serde(untagged, expecting = "a metadata value is a text, a whole number, `true` or `false`")]
pub enum MetaValue {
    /// `true` or `false`.
    #[n(0)]
    Bool(#[n(0)] bool),
    /// A whole number.
    #[n(1)]
    Integer(#[n(0)] i64),
    /// A text.
    #[n(2)]
    Text(#[n(0)] String),
}

impl fmt::Display for MetaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaValue::Bool(value) => value.fmt(f),
            MetaValue::Integer(value) => value.fmt(f),
            MetaValue::Text(value) => value.fmt(f),
        }
    }
}

/// What becomes of a submission when one of its chunks has used up its attempts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode, serde::Serialize, serde::Deserialize,
)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The submission fails, and its remaining chunks are skipped.
    #[default]
    #[n(0)]
    Stop,
    /// Only that chunk is marked failed; the others go on.
    #[n(1)]
    Continue,
}

/// Where a submission stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, serde::Serialize, serde::Deserialize,
)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum SubmissionState {
    /// Chunks are waiting or being worked on.
    #[n(0)]
    Running,
    /// Every chunk is done.
    #[n(1)]
    Completed,
    /// At least one chunk has used up its attempts.
    #[n(2)]
    Failed,
    /// Somebody cancelled it.
    #[n(3)]
    Cancelled,
}

impl SubmissionState {
    /// The state's name, as in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SubmissionState::Running => "running",
            SubmissionState::Completed => "completed",
            SubmissionState::Failed => "failed",
            SubmissionState::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for SubmissionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many chunks a submission has, and how far they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct ChunkCounts {
    /// All of them.
    #[n(0)]
    pub total: u64,
    /// Done.
    #[n(1)]
    pub done: u64,
    /// Out of attempts.
    #[n(2)]
    pub failed: u64,
}

impl ChunkCounts {
    /// Chunks that are neither done nor failed.
    pub const fn unsettled(self) -> u64 {
        self.total - self.done - self.failed
    }
}

/// A submission's own row: what changes while its chunks are worked on, and what deciding about them needs.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Submission {
    /// When it came in.
    #[n(0)]
    pub submitted_at: At,
    /// How far it is.
    #[n(1)]
    pub counts: ChunkCounts,
    /// How often a chunk may be tried in a round.
    #[n(2)]
    pub attempts_max: u32,
    /// How long the first retry waits.
    #[n(3)]
    pub retry_delay_ms: u64,
    /// What becomes of the rest when a chunk has failed for good.
    #[n(4)]
    pub on_failure: OnFailure,
    /// Counts the retries of the failed: failures of an earlier round are forgiven.
    #[n(5)]
    pub round: u32,
    /// Attempts that failed, in all rounds.
    #[n(6)]
    pub failures: u64,
    /// Whether its outputs go to a branch, and what becomes of the commit when a chunk has failed for good.
    #[n(7)]
    pub output: Option<OnChunkFailure>,
    /// The request for the commit of its outputs, once every chunk is settled.
    #[n(8)]
    pub commit: Option<SubmissionId>,
}

impl Submission {
    pub(crate) fn new(submit: &Submit, at: At) -> Submission {
        Submission {
            submitted_at: at,
            counts: ChunkCounts { total: submit.chunks, done: 0, failed: 0 },
            attempts_max: submit.attempts_max,
            retry_delay_ms: submit.retry_delay_ms,
            on_failure: submit.on_failure,
            round: 0,
            failures: 0,
            output: submit.output.as_ref().map(|rule| rule.on_chunk_failure),
            commit: None,
        }
    }

    /// Whether its outputs are committed once every chunk is settled as they are.
    pub(crate) fn is_to_be_committed(&self) -> bool {
        match self.output {
            None => false,
            Some(OnChunkFailure::Abort) => self.counts.failed == 0,
            Some(OnChunkFailure::CommitWithout) => true,
        }
    }

    /// Whether any block of it may have a row.
    pub(crate) fn is_touched(&self) -> bool {
        self.counts.done > 0 || self.failures > 0
    }

    /// When a chunk may be tried again after its `failures`-th failure of this round, at `at`.
    pub(crate) fn retry_at(&self, failures: u32, at: At) -> At {
        let doublings = failures.saturating_sub(1).min(20);
        at.after_ms((self.retry_delay_ms << doublings).min(RETRY_DELAY_MS_MAX))
    }
}

/// The row of a finished submission.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Finished {
    /// Its row as it was at the end.
    #[n(0)]
    pub submission: Submission,
    /// How it ended.
    #[n(1)]
    pub state: SubmissionState,
    /// When.
    #[n(2)]
    pub finished_at: At,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sentences_that_say_what_to_do() {
        let problem = |change: fn(&mut Submit)| {
            let mut submit = Submit::new(1);
            change(&mut submit);
            submit.problem()
        };
        assert_eq!(problem(|_| {}), None);
        assert_eq!(problem(|it| it.chunks = 0), Some("a submission needs at least one chunk".into()));
        for broken in [
            problem(|it| it.chunks = 1 << 63),
            problem(|it| it.opaque = ByteVec::from(vec![0; OPAQUE_BYTES_MAX + 1])),
            problem(|it| it.attempts_max = 0),
            problem(|it| it.attempts_max = 1_001),
            problem(|it| it.retry_delay_ms = u64::MAX),
            problem(|it| it.idempotency_key = Some(String::new())),
            problem(|it| it.input = Input::Prefix("../secrets".into())),
            problem(|it| it.input = Input::Prefix("a//b".into())),
            problem(|it| it.input = Input::Prefix(String::new())),
            problem(|it| it.input = Input::Inline(ByteVec::from(vec![0; INLINE_PAYLOAD_BYTES_MAX + 1]))),
            problem(|it| {
                it.chunks = 2;
                it.input = Input::Inline(ByteVec::from(vec![0; 1]));
            }),
            problem(|it| drop(it.metadata.insert("white space".into(), MetaValue::Bool(true)))),
            problem(|it| drop(it.metadata.insert("long".into(), MetaValue::Text("x".repeat(257))))),
            problem(|it| it.metadata = (0..33).map(|n| (format!("f{n}"), MetaValue::Integer(n))).collect()),
        ] {
            assert!(broken.is_some());
        }
    }

    #[test]
    fn a_retry_waits_twice_as_long_each_time_and_never_longer_than_the_limit() {
        let submission = Submission::new(&Submit::new(1), At::from_ms(0));
        let waits = [1, 2, 3, 4, 30].map(|failures| submission.retry_at(failures, At::from_ms(0)).as_ms());
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 600_000]);
    }
}
