//! `/v1/events`: changes of submissions as server-sent events.

use super::answer::{Answer, Refused};
use super::extract::QueryOf;
use crate::limits::{EVENTS_KEEP_ALIVE, EVENTS_SUBMISSIONS_MAX, PROGRESS_EVERY};
use crate::roles::announcer::{Announcement, Watcher};
use crate::service::Service;
use crate::service::batch::progress_of;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt, stream};
use std::convert::Infallible;
use windlass_api::json::{EventsQuery, SubmissionEvent};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::submissions::SubmissionState;
use windlass_core::ids::SubmissionId;

/// Streams changes: `submitted`, `progress` and `over`, each with the submission's state. A stream of named submissions
/// begins with where each of them stands.
#[utoipa::path(
    get, path = "/v1/events", tag = "submissions", params(EventsQuery),
    responses((status = 200, body = SubmissionEvent, content_type = "text/event-stream"))
)]
pub(super) async fn events(
    State(service): State<Service>,
    QueryOf(query): QueryOf<EventsQuery>,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let ids = query.submissions.as_deref().map(ids_of).transpose()?.unwrap_or_default();
    // Watching begins before looking, so that nothing between the two is missed.
    let watcher = service.announcer().watch(ids.iter().copied());
    service.freshen(None).await?;
    let mut first = Vec::with_capacity(ids.len());
    for id in ids {
        let info = service.show(id)?;
        let name = if info.state == SubmissionState::Running { "progress" } else { "over" };
        first.push(event(name, &SubmissionEvent { submission: id, state: info.state, chunks: info.chunks }));
    }
    let later = stream::unfold((watcher, false), next_events).flat_map(stream::iter);
    let all = stream::iter(first).chain(later).map(Ok).take_until(service.stop().clone().cancelled_owned());
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(EVENTS_KEEP_ALIVE)))
}

/// What happened since the last events; not sooner than a moment after them, so that progress comes in strides.
async fn next_events((mut watcher, pause): (Watcher, bool)) -> Option<(Vec<Event>, (Watcher, bool))> {
    if pause {
        tokio::time::sleep(PROGRESS_EVERY).await;
    }
    if watcher.is_overwhelmed() {
        return None;
    }
    let events = watcher.next().await.into_iter().map(event_of).collect();
    Some((events, (watcher, true)))
}

fn event_of(it: Announcement) -> Event {
    let name = match (it.state, it.is_new) {
        (SubmissionState::Running, true) => "submitted",
        (SubmissionState::Running, false) => "progress",
        (SubmissionState::Completed | SubmissionState::Failed | SubmissionState::Cancelled, _) => "over",
    };
    let chunks = progress_of(it.counts, it.state);
    event(name, &SubmissionEvent { submission: it.submission, state: it.state, chunks })
}

fn event(name: &str, data: &SubmissionEvent) -> Event {
    Event::default().event(name).json_data(data).expect("an event is made of plain values")
}

fn ids_of(text: &str) -> Answer<Vec<SubmissionId>> {
    let malformed = |detail: String| Refused(Problem::new(ProblemCode::MalformedRequest, detail));
    let ids: Vec<SubmissionId> = text
        .split(',')
        .map(|id| id.parse().map_err(|error| malformed(format!("{id:?} is no submission id: {error}"))))
        .collect::<Answer<_>>()?;
    if ids.len() > EVENTS_SUBMISSIONS_MAX {
        return Err(malformed(format!(
            "one stream names at most {EVENTS_SUBMISSIONS_MAX} submissions; open several"
        )));
    }
    Ok(ids)
}
