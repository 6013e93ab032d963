//! A task as it is said in JSON, and as the machine takes it.

use crate::lanes::TaskRequest;
use windlass_core::lanes::levels::Weight;
use windlass_core::lanes::tasks::{NewTask, Payload};
use windlass_core::limits::{ATTEMPTS_MAX_DEFAULT, RETRY_DELAY_MS_DEFAULT};
use windlass_core::time::At;

impl TaskRequest {
    /// The task as the machine takes it, or what is wrong with it as a sentence. What its limits are, the task says itself.
    pub fn into_task(self) -> Result<NewTask, String> {
        let weight = self.weight.map_or(Ok(Weight::ONE), Weight::of)?;
        let payload = match (self.payload, self.object) {
            (Some(_), Some(_)) => return Err("a task has a `payload` or an `object`, not both".into()),
            (Some(payload), None) => Payload::Inline(payload.0.into()),
            (None, Some(object)) => Payload::Object(object),
            (None, None) => Payload::Nothing,
        };
        let not_before = match (self.not_before, self.delay_ms) {
            (Some(_), Some(_)) => return Err("say `not_before` or `delay_ms`, not both".into()),
            (Some(text), None) => Some(time_of(&text)?),
            (None, Some(_) | None) => None,
        };
        Ok(NewTask {
            key: self.key,
            weight,
            priority: self.priority,
            payload,
            not_before,
            attempts_max: self.attempts_max.unwrap_or(ATTEMPTS_MAX_DEFAULT),
            retry_delay_ms: self.retry_delay_ms.unwrap_or(RETRY_DELAY_MS_DEFAULT),
            delay_ms: self.delay_ms,
        })
    }
}

fn time_of(text: &str) -> Result<At, String> {
    let problem = || format!("`not_before` is a time such as 2027-01-31T12:00:00Z, not {text:?}");
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| problem())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|_| problem())?;
    u64::try_from(since.as_millis()).map(At::from_ms).map_err(|_| problem())
}
