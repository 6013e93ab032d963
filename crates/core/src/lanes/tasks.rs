//! Tasks: what is said of a task when it is added, and the row that one has which is in no group.
//!
//! A task's id comes from the same sequence as those of submissions, and to a consumer a task is a submission of one
//! chunk: it is completed, failed, extended, released and re-asserted by the same frames.

use super::levels::{LaneNumber, Weight, is_tenant};
use crate::ids::{Attempt, SubmissionId};
use crate::limits::{
    ATTEMPTS_MAX_DEFAULT, ATTEMPTS_MAX_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LANE_KEY_BYTES_MAX, LANE_PRIORITY_MAX,
    OBJECT_PREFIX_BYTES_MAX, RETRY_DELAY_MS_DEFAULT, RETRY_DELAY_MS_MAX, TASK_DELAY_MS_MAX,
    TASK_NOT_BEFORE_MS_MAX, TASK_PAYLOAD_BYTES_MAX, TASK_PAYLOADS_BYTES_MAX, TASKS_PER_ADD_MAX,
};
use crate::rows;
use crate::tables::Table;
use crate::time::At;
use minicbor::bytes::{ByteSlice, ByteVec};
use minicbor::{Decode, Encode};

/// The id of a task.
pub type TaskId = SubmissionId;

/// See [`Command::AddTasks`](crate::entry::Command::AddTasks).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct AddTasks {
    /// The lane.
    #[n(0)]
    pub lane: String,
    /// The tasks, in order.
    #[n(1)]
    pub tasks: Vec<NewTask>,
    /// How far the leader had handed out when it took them: the highest pass of each priority that they have.
    #[n(2)]
    pub handed_out: Vec<HandedOut>,
    /// Names the request, so that repeating it adds nothing.
    #[n(3)]
    pub idempotency_key: Option<String>,
}

/// The highest pass that was handed out of one priority.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct HandedOut {
    /// The priority.
    #[n(0)]
    pub priority: u8,
    /// The pass.
    #[n(1)]
    pub pass: u64,
    /// It is that of a tenant of the priority, among its users.
    #[n(2)]
    pub tenant: Option<String>,
}

/// A task as it is added.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct NewTask {
    /// Whose task it is: keys share the lane by weight.
    #[n(0)]
    pub key: String,
    /// The weight of its key, as far as this task is concerned.
    #[n(1)]
    pub weight: Weight,
    /// Larger ones go first, whatever their keys.
    #[n(2)]
    pub priority: u8,
    /// What the consumer gets.
    #[n(3)]
    pub payload: Payload,
    /// It is not handed out before this time.
    #[n(4)]
    pub not_before: Option<At>,
    /// How often it is tried.
    #[n(5)]
    pub attempts_max: u32,
    /// How long its first retry waits; each further one waits twice as long.
    #[n(6)]
    pub retry_delay_ms: u64,
    /// It is not handed out for so long from when it is added.
    #[n(7)]
    pub delay_ms: Option<u64>,
}

/// What a consumer gets with a task.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Payload {
    /// Nothing.
    #[n(0)]
    Nothing,
    /// These bytes.
    #[n(1)]
    Inline(#[n(0)] ByteVec),
    /// The name of an object that holds them.
    #[n(2)]
    Object(#[n(0)] String),
}

/// A payload where it lies: the same bytes when it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum PayloadRef<'a> {
    /// Nothing.
    #[n(0)]
    Nothing,
    /// These bytes.
    #[n(1)]
    Inline(#[b(0)] &'a ByteSlice),
    /// The name of an object that holds them.
    #[n(2)]
    Object(#[b(0)] &'a str),
}

impl PayloadRef<'_> {
    /// The payload by itself.
    pub fn to_owned(self) -> Payload {
        match self {
            PayloadRef::Nothing => Payload::Nothing,
            PayloadRef::Inline(bytes) => Payload::Inline(bytes.to_vec().into()),
            PayloadRef::Object(name) => Payload::Object(name.to_owned()),
        }
    }
}

impl Payload {
    /// The payload where it lies.
    pub fn as_ref(&self) -> PayloadRef<'_> {
        match self {
            Payload::Nothing => PayloadRef::Nothing,
            Payload::Inline(bytes) => PayloadRef::Inline(bytes.as_slice().into()),
            Payload::Object(name) => PayloadRef::Object(name),
        }
    }

    /// How many bytes it has here.
    pub fn bytes(&self) -> usize {
        match self {
            Payload::Nothing => 0,
            Payload::Inline(bytes) => bytes.len(),
            Payload::Object(name) => name.len(),
        }
    }
}

impl NewTask {
    /// A task of a key with every other setting at its default.
    pub fn new(key: impl Into<String>) -> NewTask {
        NewTask {
            key: key.into(),
            weight: Weight::ONE,
            priority: 0,
            payload: Payload::Nothing,
            not_before: None,
            attempts_max: ATTEMPTS_MAX_DEFAULT,
            retry_delay_ms: RETRY_DELAY_MS_DEFAULT,
            delay_ms: None,
        }
    }

    /// When it may be handed out at the earliest, if it is added at this time.
    pub(super) fn due_at(&self, at: At) -> At {
        let delayed = at.after_ms(self.delay_ms.unwrap_or(0));
        self.not_before.map_or(delayed, |not_before| not_before.max(delayed))
    }

    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let object_bytes = match &self.payload {
            Payload::Object(name) => name.len(),
            Payload::Nothing | Payload::Inline(_) => 1,
        };
        let checks: [(bool, &dyn Fn() -> String); 9] = [
            (self.key.len() > LANE_KEY_BYTES_MAX, &|| {
                format!("a key has at most {LANE_KEY_BYTES_MAX} bytes; use a tenant's id, not its name")
            }),
            (is_tenant(&self.key), &|| {
                "a key such as `tenant/` names no user; say `tenant/user`, or `tenant` alone".to_owned()
            }),
            (self.priority > LANE_PRIORITY_MAX, &|| {
                format!("a task's priority is from 0 to {LANE_PRIORITY_MAX}, the largest first")
            }),
            (self.payload.bytes() > TASK_PAYLOAD_BYTES_MAX, &|| {
                format!(
                    "a payload has at most {TASK_PAYLOAD_BYTES_MAX} bytes; store larger ones as objects, and name \
                     those"
                )
            }),
            (object_bytes == 0 || object_bytes > OBJECT_PREFIX_BYTES_MAX, &|| {
                format!("the name of a payload's object has between 1 and {OBJECT_PREFIX_BYTES_MAX} bytes")
            }),
            (self.attempts_max == 0 || self.attempts_max > ATTEMPTS_MAX_MAX, &|| {
                format!("`attempts_max` is between 1 and {ATTEMPTS_MAX_MAX}")
            }),
            (self.delay_ms.is_some_and(|delay_ms| delay_ms > TASK_DELAY_MS_MAX), &|| {
                format!("`delay_ms` is at most {TASK_DELAY_MS_MAX}, which is ten years")
            }),
            (self.not_before.is_some_and(|at| at.as_ms() > TASK_NOT_BEFORE_MS_MAX), &|| {
                "`not_before` is before the year 9000".to_owned()
            }),
            (self.retry_delay_ms > RETRY_DELAY_MS_MAX, &|| {
                format!("`retry_delay_ms` is at most {RETRY_DELAY_MS_MAX}")
            }),
        ];
        let broken = checks.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, say)| say());
        broken.or_else(|| self.weight.problem())
    }
}

impl AddTasks {
    /// The first limit that it breaks, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        let payloads: usize = self.tasks.iter().map(|task| task.payload.bytes()).sum();
        let key_bytes = self.idempotency_key.as_ref().map_or(1, String::len);
        let checks: [(bool, &dyn Fn() -> String); 4] = [
            (self.tasks.is_empty(), &|| "name at least one task".to_owned()),
            (self.tasks.len() > TASKS_PER_ADD_MAX, &|| {
                format!("add at most {TASKS_PER_ADD_MAX} tasks at a time")
            }),
            (payloads > TASK_PAYLOADS_BYTES_MAX, &|| {
                format!("the payloads of one request have at most {TASK_PAYLOADS_BYTES_MAX} bytes together")
            }),
            (key_bytes == 0 || key_bytes > IDEMPOTENCY_KEY_BYTES_MAX, &|| {
                format!("an idempotency key has between 1 and {IDEMPOTENCY_KEY_BYTES_MAX} bytes")
            }),
        ];
        let broken = checks.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, say)| say());
        broken.or_else(|| {
            let problems = self.tasks.iter().enumerate();
            let mut problems = problems.filter_map(|(nth, task)| Some((nth, task.problem()?)));
            problems.next().map(|(nth, problem)| match self.tasks.len() {
                1 => problem,
                _ => format!("task {nth}: {problem}"),
            })
        })
    }
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Standing {
    /// It has a level, and is handed out when that is reached.
    #[n(0)]
    Waiting {
        /// Its pass.
        #[n(0)]
        pass: u64,
    },
    /// It gets a level when this time has come.
    #[n(1)]
    Delayed {
        /// The time.
        #[n(0)]
        until: At,
    },
    /// It has failed for good, and waits to be driven again.
    #[n(2)]
    Dead,
}

/// What is said of a task that is not done, and the row of one that is in no group.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Task {
    /// Its lane.
    #[n(0)]
    pub lane: LaneNumber,
    /// Its priority.
    #[n(1)]
    pub priority: u8,
    /// Its key.
    #[n(2)]
    pub key: String,
    /// The weight that it came with.
    #[n(3)]
    pub weight: Weight,
    /// Where it stands.
    #[n(4)]
    pub standing: Standing,
    /// When it was added.
    #[n(5)]
    pub added_at: At,
    /// How often it is tried.
    #[n(6)]
    pub attempts_max: u32,
    /// How long its first retry waits.
    #[n(7)]
    pub retry_delay_ms: u64,
    /// How many attempts have failed since it was added or driven again.
    #[n(8)]
    pub failures: u32,
    /// The last attempt that failed.
    #[n(9)]
    pub failed: Option<Attempt>,
    /// What a consumer gets, unless that is large, or beside the level of a task that has one.
    #[n(10)]
    pub payload: Option<Payload>,
}

impl Task {
    /// The task in a row of [`Table::Tasks`].
    ///
    /// # Panics
    /// If the row is not one that a machine wrote.
    pub fn from_row(id: TaskId, row: &[u8]) -> Task {
        rows::decode(Table::Tasks, &id.key(), row)
    }

    /// When a retry may be handed out after this many failures: the delay doubles with each, up to a limit.
    pub(super) fn retry_at(&self, at: At) -> At {
        let doublings = self.failures.saturating_sub(1).min(32);
        at.after_ms(self.retry_delay_ms.saturating_mul(1 << doublings).min(RETRY_DELAY_MS_MAX))
    }
}

/// The payload in a row of [`Table::Payloads`].
///
/// # Panics
/// If the row is not one that a machine wrote.
pub fn payload_from_row(id: TaskId, row: &[u8]) -> Payload {
    rows::decode(Table::Payloads, &id.key(), row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_breaks_a_limit_is_told_which() {
        let task = NewTask::new("tenant-7");
        let with = |change: &dyn Fn(&mut NewTask)| {
            let mut task = task.clone();
            change(&mut task);
            task.problem()
        };
        assert_eq!(with(&|_| {}), None);
        assert_eq!(with(&|it| it.key = String::new()), None, "tasks without a key share one");
        assert_eq!(with(&|it| it.key = "x".repeat(64)), None);
        type Break<'a> = &'a dyn Fn(&mut NewTask);
        let broken: [(Break<'_>, &str); 6] = [
            (&|it| it.key = "x".repeat(65), "at most 64 bytes"),
            (&|it| it.priority = 10, "from 0 to 9"),
            (&|it| it.payload = Payload::Inline(vec![0; 256 * 1_024 + 1].into()), "at most 262144 bytes"),
            (&|it| it.payload = Payload::Object(String::new()), "between 1 and 256 bytes"),
            (&|it| it.attempts_max = 0, "between 1 and 1000"),
            (&|it| it.retry_delay_ms = RETRY_DELAY_MS_MAX + 1, "at most 600000"),
        ];
        for (change, sentence) in broken {
            let problem = with(change).expect("it is refused");
            assert!(problem.contains(sentence), "{problem}");
        }
    }

    #[test]
    fn the_task_that_breaks_a_limit_is_named_by_its_place() {
        let bad = NewTask { attempts_max: 0, ..NewTask::new("a") };
        let add = AddTasks {
            lane: "emails".into(),
            tasks: vec![NewTask::new("a"), bad],
            handed_out: Vec::new(),
            idempotency_key: None,
        };
        assert_eq!(add.problem().as_deref(), Some("task 1: `attempts_max` is between 1 and 1000"));
        let none = AddTasks { tasks: Vec::new(), ..add };
        assert_eq!(none.problem().as_deref(), Some("name at least one task"));
    }
}
