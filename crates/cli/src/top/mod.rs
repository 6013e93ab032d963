//! `windlass top`: the queue at a glance, live on a terminal, or one look as plain text.
//!
//! Reading order: this file (asking the server, keys), `figures` (rates and shares), `screen` and `panels` (what is shown),
//! `canvas` (lines on a terminal), `terminal` (taking it over and giving it back), `plain` (without one).

mod canvas;
#[cfg(test)]
mod example;
mod figures;
mod panels;
mod plain;
mod screen;
mod terminal;
mod words;

use crate::args::{Global, Top};
use crate::exit::{Exit, print, print_json};
use crate::signals::StopSignals;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use figures::Samples;
use futures_util::StreamExt;
use panels::Panel;
use screen::{Scene, draw};
use std::io::IsTerminal;
use std::time::Duration;
use terminal::Screen;
use tokio::sync::{mpsc, watch};
use windlass_client::overview::{FieldInfo, OverviewInfo, OverviewQuery};
use windlass_client::{Client, ClientError};

/// Values and limits to ask for: more than anybody scrolls through.
const ROWS: usize = 100;

/// Faster than this nobody reads, and each look costs the server a little.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Rows that a page key moves.
const PAGE: usize = 10;

pub(crate) async fn run(global: &Global, top: Top) -> Result<(), Exit> {
    if top.interval < INTERVAL_MIN {
        return Err(Exit::Usage("--interval is at least 100ms; each look costs the server a little".into()));
    }
    let client = global.client()?;
    if global.json {
        let field = top.field;
        return print_json(&client.overview(&OverviewQuery { field, limit: Some(ROWS) }).await?);
    }
    if top.once || !std::io::stdout().is_terminal() {
        return once(&client, top).await;
    }
    live(client, top).await
}

/// Two looks, so that there are rates, and one text.
async fn once(client: &Client, top: Top) -> Result<(), Exit> {
    let ask =
        async |field: Option<String>| client.overview(&OverviewQuery { field, limit: Some(ROWS) }).await;
    let mut field = top.field;
    if field.is_none() {
        field = chosen(&ask(None).await?.fields).map(str::to_owned);
    }
    let mut samples = Samples::default();
    samples.push(ask(field.clone()).await?);
    tokio::time::sleep(top.interval).await;
    samples.push(ask(field).await?);
    print(plain::snapshot(client.server(), &samples).as_bytes())
}

/// The field to begin with: one that a strategy in use goes by, else the first.
fn chosen(fields: &[FieldInfo]) -> Option<&str> {
    let used = fields.iter().find(|field| field.in_use);
    used.or_else(|| fields.first()).map(|field| field.name.as_str())
}

/// What the server is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    field: Option<String>,
    is_paused: bool,
}

/// What came back.
type Seen = Result<OverviewInfo, ClientError>;

async fn live(client: Client, top: Top) -> Result<(), Exit> {
    let mut signals = StopSignals::listen()?;
    // A server that is gone is asked again at the next tick, and the screen says so meanwhile.
    let client = client.retrying_for(Duration::ZERO);
    let server = client.server().to_owned();
    let (wanted, asked) = watch::channel(Wanted { field: top.field.clone(), is_paused: false });
    let (out, mut looks) = mpsc::channel(1);
    let looking = tokio::spawn(look(client, top.interval, asked, out));
    let mut state = State::new(server, top);
    let mut keys = EventStream::new();
    let mut screen = Screen::open()?;
    let ended = loop {
        if let Err(exit) = screen.show(|width, height| draw(&state.scene(), width, height)) {
            break Err(exit);
        }
        tokio::select! {
            seen = looks.recv() => match seen {
                Some(seen) => state.take(seen),
                None => break Ok(()),
            },
            event = keys.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if state.press(key) {
                        break Ok(());
                    }
                }
                // The next round draws for the new size.
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break Ok(()),
            },
            () = signals.next() => break Ok(()),
        }
        wanted.send_if_modified(|wanted| {
            let now = state.wanted();
            let is_other = *wanted != now;
            *wanted = now;
            is_other
        });
    };
    looking.abort();
    drop(screen);
    ended
}

/// Asks the server again and again, at once when something else is wanted.
async fn look(
    client: Client,
    interval: Duration,
    mut wanted: watch::Receiver<Wanted>,
    out: mpsc::Sender<Seen>,
) {
    loop {
        let Wanted { field, is_paused } = wanted.borrow_and_update().clone();
        if !is_paused {
            let seen = client.overview(&OverviewQuery { field, limit: Some(ROWS) }).await;
            if out.send(seen).await.is_err() {
                return;
            }
        }
        let changed = tokio::time::timeout(interval, wanted.changed()).await;
        if matches!(changed, Ok(Err(_))) {
            return;
        }
    }
}

/// What is shown, and how.
#[derive(Debug)]
struct State {
    server: String,
    interval: Duration,
    samples: Samples,
    field: Option<String>,
    focus: Panel,
    offsets: [usize; 3],
    is_paused: bool,
    is_help: bool,
    trouble: Option<String>,
}

impl State {
    fn new(server: String, top: Top) -> State {
        State {
            server,
            interval: top.interval,
            samples: Samples::default(),
            field: top.field,
            focus: Panel::Values,
            offsets: [0; 3],
            is_paused: false,
            is_help: false,
            trouble: None,
        }
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            server: &self.server,
            interval: self.interval,
            samples: &self.samples,
            field: self.field.as_deref(),
            focus: self.focus,
            offsets: self.offsets,
            is_paused: self.is_paused,
            is_help: self.is_help,
            trouble: self.trouble.as_deref(),
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted { field: self.field.clone(), is_paused: self.is_paused }
    }

    fn take(&mut self, seen: Seen) {
        match seen {
            Ok(seen) => {
                self.trouble = None;
                if self.field.is_none() {
                    self.field = chosen(&seen.fields).map(str::to_owned);
                }
                self.samples.push(seen);
            }
            Err(error) => self.trouble = Some(format!("trying again: {error}")),
        }
    }

    /// Does what a key asks for; says whether it asks to quit.
    fn press(&mut self, key: KeyEvent) -> bool {
        let offset = &mut self.offsets[self.focus as usize];
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Esc if self.is_help => self.is_help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') => self.is_help = !self.is_help,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('f') => self.change_field(1),
            KeyCode::Char('F') => self.change_field(-1),
            KeyCode::Tab => self.focus = self.focus.next(),
            KeyCode::Up | KeyCode::Char('k') => *offset = offset.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *offset = (*offset + 1).min(ROWS),
            KeyCode::PageUp => *offset = offset.saturating_sub(PAGE),
            KeyCode::PageDown => *offset = (*offset + PAGE).min(ROWS),
            KeyCode::Home => *offset = 0,
            KeyCode::End => *offset = ROWS,
            _ => {}
        }
        false
    }

    /// Goes on to another of the fields that the server knows.
    fn change_field(&mut self, step: isize) {
        let fields = self.samples.last().map_or(&[][..], |seen| &seen.fields);
        let now = fields.iter().position(|field| Some(&field.name) == self.field.as_ref());
        let next = match now {
            Some(now) => {
                now.checked_add_signed(step).unwrap_or(fields.len().saturating_sub(1)) % fields.len()
            }
            None => 0,
        };
        if let Some(field) = fields.get(next) {
            self.field = Some(field.name.clone());
            self.offsets[Panel::Values as usize] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State::new("http://s".into(), Top { field: None, interval: Duration::from_secs(1), once: false })
    }

    fn press(state: &mut State, code: KeyCode) -> bool {
        state.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn the_first_field_is_one_that_a_strategy_goes_by_and_f_goes_round() {
        let mut state = state();
        state.take(Ok(example::overview(1)));
        assert_eq!(state.field.as_deref(), Some("company_id"));
        let fields = [1, 1, -1, -1].map(|step| {
            press(&mut state, KeyCode::Char(if step == 1 { 'f' } else { 'F' }));
            state.wanted().field.unwrap()
        });
        assert_eq!(fields, ["mode", "company_id", "mode", "company_id"]);
    }

    #[test]
    fn keys_pause_scroll_help_and_quit() {
        let mut state = state();
        assert!(!press(&mut state, KeyCode::Char('p')) && state.wanted().is_paused);
        for code in [KeyCode::PageDown, KeyCode::Down, KeyCode::Up, KeyCode::Tab, KeyCode::End] {
            assert!(!press(&mut state, code));
        }
        assert_eq!((state.offsets, state.focus), ([10, ROWS, 0], Panel::Limits));
        assert!(!press(&mut state, KeyCode::Char('?')) && state.is_help);
        assert!(!press(&mut state, KeyCode::Esc) && !state.is_help, "Esc leaves the help first");
        assert!(press(&mut state, KeyCode::Esc));
        assert!(state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn a_server_that_comes_back_counts_anew_and_its_trouble_is_forgotten() {
        let mut state = state();
        state.take(Ok(example::overview(5)));
        state.take(Ok(example::overview(6)));
        assert!(state.samples.rates().is_some());
        state.take(Err(ClientError::Setting("gone".into())));
        assert!(state.trouble.as_ref().is_some_and(|it| it.starts_with("trying again: ")));
        let anew = OverviewInfo { since_ms: 7_000, at_ms: 8_000, ..example::overview(1) };
        state.take(Ok(anew));
        assert_eq!((state.trouble, state.samples.rates()), (None, None));
    }
}
