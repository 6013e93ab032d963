//! The terminal: taken over while the screen is shown, and given back however that ends.

use super::canvas::{Line, paint};
use crate::exit::{Exit, cannot_write};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute};
use std::io::{BufWriter, Stdout, stdout};
use std::sync::Once;

/// A terminal that shows our screen until this is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    out: BufWriter<Stdout>,
    has_colour: bool,
}

impl Screen {
    /// Takes the terminal over.
    pub(super) fn open() -> Result<Screen, Exit> {
        restore_on_panic();
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
        let mut screen = Screen { out: BufWriter::new(stdout()), has_colour };
        enable_raw_mode()
            .and_then(|()| execute!(screen.out, EnterAlternateScreen, cursor::Hide))
            .map_err(|error| cannot_write("the terminal", &error))?;
        Ok(screen)
    }

    /// Shows what is drawn for the terminal's size of now.
    pub(super) fn show(&mut self, draw: impl FnOnce(usize, usize) -> Vec<Line>) -> Result<(), Exit> {
        // A terminal that does not know its size says that it has none.
        let (width, height) = size().ok().filter(|size| size.0 > 0 && size.1 > 0).unwrap_or((80, 24));
        let lines = draw(width as usize, height as usize);
        paint(&mut self.out, &lines, width, self.has_colour)
            .map_err(|error| cannot_write("the terminal", &error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. What cannot be written any more has no reader.
fn restore() {
    let _ = execute!(stdout(), cursor::Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// A panic's message is to be read on the terminal as it was before.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}
