//! Progress bars on stderr; nothing is shown where it is no terminal.

use crate::table::short;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;
use windlass_client::{ChunkProgress, SubmissionEvent, Uploaded};

/// Before so much time has passed, an estimate would be a guess.
const ESTIMATE_AFTER: Duration = Duration::from_secs(1);

/// A bar for chunks being worked on, with the time left where it can be told. It is not shown yet: one among several would
/// be drawn before it has its place.
pub(crate) fn chunks(name: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
    bar.set_style(style("{prefix} [{bar:40}] {human_pos}/{human_len} chunks, {rate}, {left}{msg}"));
    bar.set_prefix(name.to_owned());
    bar
}

/// Shows a bar that stands alone.
pub(crate) fn shown(bar: ProgressBar) -> ProgressBar {
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("our templates are sound")
        .progress_chars("=> ")
        .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{:.0}/s", state.per_sec());
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn Write| {
            let is_over = state.len().is_some_and(|total| state.pos() >= total);
            let _ = if is_over {
                write!(out, "took {}", short(state.elapsed()))
            } else if state.pos() == 0 || state.elapsed() < ESTIMATE_AFTER || state.per_sec() <= 0.0 {
                write!(out, "time left not known yet")
            } else {
                write!(out, "about {} left", short(state.eta()))
            };
        })
}

/// Shows where a submission stands.
pub(crate) fn show_event(bar: &ProgressBar, event: &SubmissionEvent) {
    let ChunkProgress { total, done, failed, skipped } = event.chunks;
    if bar.length() != Some(total) {
        // Work that was done before we looked says nothing of the speed now.
        bar.set_length(total);
        bar.set_position(done);
        bar.reset_eta();
    }
    bar.set_position(done);
    let mut troubles = String::new();
    if failed + skipped > 0 {
        let _ = write!(troubles, ", {failed} failed, {skipped} skipped");
    }
    bar.set_message(troubles);
}

/// A spinner for an upload whose size is not known before its end.
pub(crate) fn upload() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("our templates are sound"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar for a file that is read, with the time left where it can be told; a spinner if its size is not known.
pub(crate) fn file(bytes: Option<u64>) -> ProgressBar {
    let Some(bytes) = bytes else { return upload() };
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style("[{bar:40}] {percent} %, {left}{msg}"));
    bar
}

/// Shows how far an upload is.
pub(crate) fn show_upload(bar: &ProgressBar, uploaded: Uploaded) {
    let bytes = indicatif::HumanBytes(uploaded.bytes);
    bar.set_message(format!("uploaded {} chunks, {bytes}", uploaded.chunks));
}
