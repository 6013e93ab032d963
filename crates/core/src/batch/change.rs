//! change: what is said of a running submission, said anew: its priority, metadata and limits, and whether it is paused.
//!
//! What was decided stays decided. Chunks that are out go on, also when their submission is paused. A chunk that waits
//! for a retry keeps its time, and one that is out of attempts stays so. `attempts_max` below the failures that a chunk
//! has counts from its next failure on, and so does an `on_failure` of `stop` when chunks have failed before.
//!
//! Invariants
//! - The about row, the traits row and the found rows change together.
//! - Asking for what is so already changes no row and has no effect.

use super::end::finished;
use super::listing::found_key;
use super::state::{BatchState, traits_of};
use super::submissions::{
    Metadata, OnFailure, Submit, Traits, problem_of_attempts_max, problem_of_failure, problem_of_field,
    problem_of_metadata, problem_of_retry_delay,
};
use crate::entry::{Applied, Effect, Outcome, Refusal};
use crate::ids::SubmissionId;
use crate::limits::METADATA_FIELDS_MAX;
use crate::rows;
use crate::tables::{Table, Tables};
use minicbor::{Decode, Encode};

/// See [`Command::Change`](crate::entry::Command::Change).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Change {
    /// Which submission.
    #[n(0)]
    pub submission: SubmissionId,
    /// What should be different.
    #[n(1)]
    pub changes: Changes,
}

/// What should be different; what is not named stays as it is.
#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct Changes {
    /// For `CustomPriority`: higher goes first.
    #[n(0)]
    pub priority: Option<i64>,
    /// Metadata fields to put, or to replace.
    #[n(1)]
    pub metadata_set: Metadata,
    /// Metadata fields to take away, if they are there.
    #[n(2)]
    pub metadata_remove: Vec<String>,
    /// Whether nothing more of it is handed out.
    #[n(3)]
    pub paused: Option<bool>,
    /// How often a chunk may be tried in a round.
    #[n(4)]
    pub attempts_max: Option<u32>,
    /// How long the first retry waits; each further one waits twice as long.
    #[n(5)]
    pub retry_delay_ms: Option<u64>,
    /// What becomes of the rest when a chunk has used up its attempts.
    #[n(6)]
    pub on_failure: Option<OnFailure>,
}

impl Changes {
    /// Holds a submission back, or lets it go on.
    pub fn pausing(paused: bool) -> Changes {
        Changes { paused: Some(paused), ..Changes::default() }
    }

    /// The first limit that the change breaks whatever the submission, as a sentence that says what to do.
    pub fn problem(&self) -> Option<String> {
        self.problem_of_asking()
            .or_else(|| self.attempts_max.and_then(problem_of_attempts_max))
            .or_else(|| self.retry_delay_ms.and_then(problem_of_retry_delay))
            .or_else(|| problem_of_metadata(&self.metadata_set))
            .or_else(|| self.metadata_remove.iter().find_map(|field| problem_of_field(field)))
    }

    fn problem_of_asking(&self) -> Option<String> {
        let both = self.metadata_remove.iter().find(|field| self.metadata_set.contains_key(*field));
        match both {
            _ if *self == Changes::default() => Some(
                "a change asks for something: `priority`, `metadata`, `paused`, `attempts_max`, `retry_delay_ms` or \
                 `on_failure`"
                    .into(),
            ),
            Some(field) => {
                Some(format!("the metadata field `{field}` is to be set and to be removed; ask for one of them"))
            }
            None if self.metadata_remove.len() > METADATA_FIELDS_MAX => Some(format!(
                "metadata has at most {METADATA_FIELDS_MAX} fields, so that no more can be removed; name those that are there"
            )),
            None => None,
        }
    }

    /// What strategies go by after the change.
    fn applied_to(&self, before: &Traits) -> Traits {
        let mut after = before.clone();
        after.metadata.extend(self.metadata_set.clone());
        after.metadata.retain(|field, _| !self.metadata_remove.contains(field));
        after.priority = self.priority.unwrap_or(before.priority);
        after.paused = self.paused.unwrap_or(before.paused);
        after
    }
}

/// Changes a running submission.
pub(crate) fn change(state: &mut BatchState, tables: &mut dyn Tables, it: &Change) -> Applied {
    let Change { submission: id, changes } = it;
    if let Some(problem) = changes.problem() {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let Some(submission) = state.submission(*id) else {
        return Applied::refused(match finished(tables, *id) {
            None => Refusal::SubmissionUnknown { submission: *id },
            Some(finished) => Refusal::SubmissionOver { submission: *id, state: finished.state },
        });
    };
    let on_failure = changes.on_failure.unwrap_or(submission.on_failure);
    if let Some(problem) = problem_of_failure(submission.output, on_failure) {
        return Applied::refused(Refusal::Malformed { problem });
    }
    let before = traits_of(tables, *id);
    let after = changes.applied_to(&before);
    if let Some(problem) = problem_of_metadata(&after.metadata) {
        return Applied::refused(Refusal::Malformed { problem });
    }

    // Nothing below can be refused.
    // An about row may hold a payload: a pause, of which a hundred thousand may come at once, leaves it alone.
    if *changes != (Changes { paused: changes.paused, ..Changes::default() }) {
        say_anew(state, tables, *id, changes, &after);
    }
    move_found_rows(tables, *id, &before.metadata, &after.metadata);
    let mut effects = Vec::new();
    if after != before {
        tables.put(Table::Traits, &id.key(), rows::encode(&after));
        effects.push(Effect::Changed { submission: *id, traits: after });
    }
    Applied { outcome: Outcome::Changed, effects }
}

fn say_anew(
    state: &mut BatchState,
    tables: &mut dyn Tables,
    id: SubmissionId,
    changes: &Changes,
    traits: &Traits,
) {
    let row = tables.get(Table::Abouts, &id.key()).expect("every submission has its about row");
    let mut about = Submit::from_row(id, &row);
    about.priority = traits.priority;
    about.metadata.clone_from(&traits.metadata);
    about.attempts_max = changes.attempts_max.unwrap_or(about.attempts_max);
    about.retry_delay_ms = changes.retry_delay_ms.unwrap_or(about.retry_delay_ms);
    about.on_failure = changes.on_failure.unwrap_or(about.on_failure);
    let said_anew = rows::encode(&about);
    if said_anew == row {
        return;
    }
    tables.put(Table::Abouts, &id.key(), said_anew);
    state.change(id, |submission| {
        submission.attempts_max = about.attempts_max;
        submission.retry_delay_ms = about.retry_delay_ms;
        submission.on_failure = about.on_failure;
    });
}

fn move_found_rows(tables: &mut dyn Tables, id: SubmissionId, before: &Metadata, after: &Metadata) {
    for (field, value) in before.iter().filter(|(field, value)| after.get(*field) != Some(value)) {
        tables.delete(Table::Found, &found_key(field, value, Some(id)));
    }
    for (field, value) in after.iter().filter(|(field, value)| before.get(*field) != Some(value)) {
        tables.put(Table::Found, &found_key(field, value, Some(id)), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::submissions::MetaValue;

    #[test]
    fn limits_are_sentences_that_say_what_to_do() {
        let problem = |change: fn(&mut Changes)| {
            let mut changes = Changes::default();
            change(&mut changes);
            changes.problem().unwrap_or_default()
        };
        assert_eq!(problem(|it| it.paused = Some(false)), "");
        assert_eq!(problem(|it| it.metadata_remove = vec!["gone".into()]), "");
        for (sentence, begin) in [
            (problem(|_| {}), "a change asks for something"),
            (problem(|it| it.attempts_max = Some(0)), "`attempts_max` is between"),
            (problem(|it| it.attempts_max = Some(1_001)), "`attempts_max` is between"),
            (problem(|it| it.retry_delay_ms = Some(600_001)), "`retry_delay_ms` is at most"),
            (problem(|it| it.metadata_remove = vec!["a b".into()]), "a metadata field's name"),
            (problem(|it| it.metadata_remove = vec!["a".into(); 33]), "metadata has at most"),
            (
                problem(|it| {
                    it.metadata_set = (0..33).map(|n| (format!("f{n}"), MetaValue::Integer(n))).collect()
                }),
                "metadata has at most",
            ),
            (
                problem(|it| {
                    it.metadata_set.insert("a".into(), MetaValue::Bool(true));
                    it.metadata_remove.push("a".into());
                }),
                "the metadata field `a` is to be set and to be removed",
            ),
        ] {
            assert!(sentence.starts_with(begin), "{sentence}");
        }
    }
}
