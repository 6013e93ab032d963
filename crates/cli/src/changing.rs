//! `windlass submissions change | pause | resume | cancel | retry-failed`: for submissions named one by one, or for all that
//! match.
//!
//! Promises
//! - What matches is counted and asked about before anything is done with it, unless `--yes` says not to ask.

use crate::args::{Global, Wanted, Which};
use crate::exit::{Exit, print_json, print_line};
use crate::metadata::Pair;
use crate::submissions::progress;
use crate::table::{counted, grouped};
use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr, stdin};
use windlass_client::{
    BulkAction, BulkFilter, BulkRequest, BulkResponse, ChangeRequest, Client, MetaValue, SubmissionId,
};

pub(crate) async fn run(
    global: &Global,
    client: &Client,
    which: &Which,
    action: BulkAction,
) -> Result<(), Exit> {
    match which.ids[..] {
        [id] if !which.dry_run => one(global, client, id, &action).await,
        _ => many(global, client, which, action).await,
    }
}

/// The change that the command line asks for.
pub(crate) fn request_of(wanted: &Wanted) -> Result<ChangeRequest, Exit> {
    let set = fields_of("--set", &wanted.set)?;
    if let Some(both) = wanted.unset.iter().find(|field| set.contains_key(*field)) {
        return Err(Exit::Usage(format!("`{both}` is to be --set and to be --unset; ask for one of them")));
    }
    let mut metadata: BTreeMap<_, _> = set.into_iter().map(|(field, value)| (field, Some(value))).collect();
    metadata.extend(wanted.unset.iter().map(|field| (field.clone(), None)));
    Ok(ChangeRequest {
        priority: wanted.priority,
        metadata,
        paused: None,
        attempts_max: wanted.attempts_max,
        retry_delay_ms: wanted.retry_delay_ms,
        on_failure: wanted.on_failure,
    })
}

/// Each field once: which of two values is meant is not for us to guess.
fn fields_of(flag: &str, pairs: &[Pair]) -> Result<BTreeMap<String, MetaValue>, Exit> {
    let mut fields = BTreeMap::new();
    for Pair { field, value } in pairs {
        if fields.insert(field.clone(), value.clone()).is_some() {
            return Err(Exit::Usage(format!("{flag} names `{field}` twice; give it one value")));
        }
    }
    Ok(fields)
}

async fn one(global: &Global, client: &Client, id: SubmissionId, action: &BulkAction) -> Result<(), Exit> {
    let (info, done) = match action {
        BulkAction::Cancel => (client.cancel(id).await?, "cancelled"),
        BulkAction::Pause => (client.pause(id).await?, "paused"),
        BulkAction::Resume => (client.resume(id).await?, "resumed"),
        BulkAction::Change(request) => (client.change(id, request).await?, "changed"),
        BulkAction::RetryFailed => {
            let retried = client.retry_failed(id).await?;
            if global.json {
                return print_json(&retried);
            }
            return print_line(&match retried.chunks {
                0 => format!("every chunk of {id} is done; its commit is tried again"),
                chunks => format!("{} of {id} ready again", counted(chunks, "chunk")),
            });
        }
    };
    if global.json { print_json(&info) } else { print_line(&format!("{done} {id}; {}", progress(&info))) }
}

async fn many(global: &Global, client: &Client, which: &Which, action: BulkAction) -> Result<(), Exit> {
    let (verb, done) = words(&action);
    let filter = BulkFilter {
        state: which.state,
        metadata: fields_of("--where", &which.matching)?,
        ids: (!which.ids.is_empty()).then(|| which.ids.clone()),
        all: false,
    };
    let request = |dry_run| BulkRequest { filter: filter.clone(), action: action.clone(), dry_run };

    // Whoever names submissions one by one knows which.
    let asks = which.ids.is_empty() && !which.yes;
    if which.dry_run || asks {
        let count = client.bulk(&request(true)).await?;
        let submissions = counted(count.matched, "submission");
        if which.dry_run {
            let sentence = format!("would {verb} {submissions}");
            return if global.json { print_json(&count) } else { print_line(&sentence) };
        }
        if count.matched == 0 {
            // Those that come in from here on were never asked about.
            return say_done(global, done, &BulkResponse { dry_run: false, ..count });
        }
        confirm(&format!("{verb} {submissions}?"))?;
    }
    say_done(global, done, &client.bulk(&request(false)).await?)
}

/// What is done, before and after.
fn words(action: &BulkAction) -> (&'static str, &'static str) {
    match action {
        BulkAction::Cancel => ("cancel", "cancelled"),
        BulkAction::RetryFailed => ("retry the failed chunks of", "retried the failed chunks of"),
        BulkAction::Pause => ("pause", "paused"),
        BulkAction::Resume => ("resume", "resumed"),
        BulkAction::Change(_) => ("change", "changed"),
    }
}

fn say_done(global: &Global, done: &str, response: &BulkResponse) -> Result<(), Exit> {
    let BulkResponse { matched, changed, refused, .. } = response;
    if global.json {
        print_json(response)?;
    } else if *matched == 0 {
        eprintln!("no submissions match");
    } else {
        print_line(&format!("{done} {}", counted(*changed, "submission")))?;
    }
    if changed == matched {
        return Ok(());
    }
    for refusal in refused {
        eprintln!("{}: {}", refusal.id, refusal.detail);
    }
    let count = grouped(matched - changed);
    Err(Exit::Refused(format!("{count} of {} refused", counted(*matched, "submission"))))
}

/// Asks whoever sits at the terminal.
fn confirm(question: &str) -> Result<(), Exit> {
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(Exit::Usage(format!(
            "{question} Nobody is at the terminal to say so: add --yes to do it, or --dry-run to only count"
        )));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = stdin().read_line(&mut answer);
    if read.is_ok() && is_yes(&answer) { Ok(()) } else { Err(Exit::Refused("nothing was done".into())) }
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        assert!(["y\n", "Y\n", "yes\n", " YES "].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "no\n", "yess\n", "yes please\n"].into_iter().any(is_yes));
    }

    #[test]
    fn a_field_that_is_named_twice_is_refused() {
        let pair = |text: &str| text.parse::<Pair>().expect("it is a pair");
        let wanted = |set: &[&str], unset: &[&str]| Wanted {
            priority: None,
            set: set.iter().map(|text| pair(text)).collect(),
            unset: unset.iter().map(|field| (*field).to_owned()).collect(),
            attempts_max: None,
            retry_delay_ms: Some(1_500),
            on_failure: None,
        };
        let request = request_of(&wanted(&["a=1"], &["b"])).expect("each is named once");
        let metadata = BTreeMap::from([("a".into(), Some(MetaValue::Integer(1))), ("b".into(), None)]);
        assert_eq!((request.metadata, request.retry_delay_ms), (metadata, Some(1_500)));
        for (wrong, said) in [
            (wanted(&["a=1", "a=2"], &[]), "--set names `a` twice"),
            (wanted(&["a=1"], &["a"]), "`a` is to be --set and to be --unset"),
        ] {
            let refused = request_of(&wrong);
            assert!(matches!(&refused, Err(Exit::Usage(it)) if it.starts_with(said)), "{refused:?}");
        }
    }
}
