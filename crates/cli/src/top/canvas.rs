//! A canvas: lines of styled text, cut to a width, for a terminal or as plain text.

use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use crossterm::{cursor, queue};
use std::io::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How a piece of text looks. Nothing is said by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
    Accent,
    Reversed,
}

/// A line of styled pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    pieces: Vec<(String, Style)>,
}

impl Line {
    pub(super) fn new() -> Line {
        Line::default()
    }

    /// The line with a piece more.
    pub(super) fn with(mut self, text: impl AsRef<str>, style: Style) -> Line {
        self.push(text, style);
        self
    }

    /// Adds a piece. What would disturb a terminal is shown as a sign for it: a value's text may hold anything.
    pub(super) fn push(&mut self, text: impl AsRef<str>, style: Style) {
        let harmless = |sign: char| if sign.is_control() { '\u{fffd}' } else { sign };
        self.pieces.push((text.as_ref().chars().map(harmless).collect(), style));
    }

    /// Adds a piece in a column of this width, on its left or its right side.
    pub(super) fn cell(&mut self, text: &str, width: usize, side: Side, style: Style) {
        let text = cut(text, width);
        let gap = " ".repeat(width - text.width());
        let text = match side {
            Side::Left => text + &gap,
            Side::Right => gap + &text,
        };
        self.push(text, style);
    }

    /// Fills up with blanks to a width.
    pub(super) fn fill(&mut self, width: usize, with: char, style: Style) {
        let missing = width.saturating_sub(self.width());
        self.push(with.to_string().repeat(missing), style);
    }

    pub(super) fn width(&self) -> usize {
        self.pieces.iter().map(|(text, _)| text.width()).sum()
    }

    /// The text without its looks, and without blanks at the end.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        let text: String = self.pieces.iter().map(|(text, _)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// The line, cut to a width.
    pub(super) fn cut_to(&self, width: usize) -> Line {
        let (mut line, mut left) = (Line::new(), width);
        for (text, style) in &self.pieces {
            let is_whole = text.width() <= left;
            let text = cut(text, left);
            left -= text.width();
            line.pieces.push((text, *style));
            if !is_whole {
                break;
            }
        }
        line
    }
}

/// A side of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A text cut to a width, with a sign that it was.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut left) = (String::new(), width.saturating_sub(1));
    for sign in text.chars() {
        let wide = sign.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        kept.push(sign);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Puts lines on the terminal, all at once; the rest of the screen is blank.
pub(super) fn paint(
    out: &mut impl Write,
    lines: &[Line],
    width: u16,
    has_colour: bool,
) -> std::io::Result<()> {
    queue!(out, BeginSynchronizedUpdate)?;
    for (row, line) in (0..).zip(lines) {
        queue!(out, cursor::MoveTo(0, row))?;
        for (text, style) in line.cut_to(width as usize).pieces {
            paint_piece(out, &text, style, has_colour)?;
        }
        queue!(out, Clear(ClearType::UntilNewLine))?;
    }
    queue!(out, Clear(ClearType::FromCursorDown), EndSynchronizedUpdate)?;
    out.flush()
}

fn paint_piece(out: &mut impl Write, text: &str, style: Style, has_colour: bool) -> std::io::Result<()> {
    let (attribute, colour) = match style {
        Style::Plain => (None, None),
        Style::Strong => (Some(Attribute::Bold), None),
        Style::Faint => (Some(Attribute::Dim), None),
        Style::Good => (None, Some(Color::DarkGreen)),
        Style::Warning => (None, Some(Color::DarkYellow)),
        Style::Bad => (Some(Attribute::Bold), Some(Color::DarkRed)),
        Style::Accent => (None, Some(Color::DarkCyan)),
        Style::Reversed => (Some(Attribute::Reverse), None),
    };
    if let Some(attribute) = attribute {
        queue!(out, SetAttribute(attribute))?;
    }
    if let Some(colour) = colour.filter(|_| has_colour) {
        queue!(out, SetForegroundColor(colour))?;
    }
    queue!(out, Print(text))?;
    if colour.is_some() && has_colour {
        queue!(out, ResetColor)?;
    }
    if attribute.is_some() {
        queue!(out, SetAttribute(Attribute::Reset))?;
    }
    Ok(())
}

/// Numbers as bars of eight heights, the newest on the right.
pub(super) fn sparkline(numbers: &[f64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &numbers[numbers.len().saturating_sub(width)..];
    let highest = shown.iter().copied().fold(0.0_f64, f64::max);
    let bar = |number: &f64| {
        let height = if highest > 0.0 { number / highest * 7.0 } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 7")]
        BARS[height.round() as usize]
    };
    format!("{:>width$}", shown.iter().map(bar).collect::<String>())
}

/// A part of a whole as a bar, with a mark where it should end.
pub(super) fn bar(part: f64, mark: Option<f64>, width: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    #[expect(clippy::cast_precision_loss, reason = "a screen is narrow")]
    let cells = width as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part is between 0 and 1")]
    let eighths = (part.clamp(0.0, 1.0) * cells * 8.0).round() as usize;
    let cell = |place: usize| match eighths.saturating_sub(8 * place) {
        0 => ' ',
        filled @ 1..8 => EIGHTHS[filled],
        _ => '█',
    };
    let mut signs: Vec<char> = (0..width).map(cell).collect();
    if let Some(mark) = mark {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part is between 0 and 1"
        )]
        let place = ((mark.clamp(0.0, 1.0) * cells) as usize).min(width.saturating_sub(1));
        if let Some(sign) = signs.get_mut(place) {
            *sign = '│';
        }
    }
    signs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_what_they_take_on_the_screen_and_say_that_they_were() {
        assert_eq!(
            [cut("abc", 3), cut("abcd", 3), cut("日本語", 5), cut("abc", 0)],
            ["abc", "ab…", "日本…", ""]
        );
        let mut line = Line::new();
        line.cell("toolong", 4, Side::Left, Style::Plain);
        line.cell("7", 4, Side::Right, Style::Strong);
        assert_eq!(line.text(), "too…   7");
        let pieces = Line::new().with("abc", Style::Plain).with("defg", Style::Bad).with("h", Style::Good);
        assert_eq!(pieces.cut_to(5).text(), "abcd…");
    }

    #[test]
    fn what_would_disturb_a_terminal_is_not_passed_on() {
        let mut written = Vec::new();
        let lines = [Line::new().with("a\u{1b}[2Jb\n", Style::Bad)];
        paint(&mut written, &lines, 80, false).unwrap();
        let text = String::from_utf8(written).unwrap();
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}"), "{text:?}");
        assert!(
            !text.contains("\u{1b}[31m") && !text.contains("\u{1b}[38"),
            "no colour was asked for: {text:?}"
        );
    }

    #[test]
    fn bars_show_parts_in_eighths_of_a_cell_and_a_mark_where_they_should_end() {
        assert_eq!([bar(0.5, None, 4), bar(0.0, None, 4), bar(2.0, None, 4)], ["██  ", "    ", "████"]);
        assert_eq!([bar(0.3, Some(0.75), 4), bar(1.0, Some(0.25), 4)], ["█▎ │", "█│██"]);
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 4.0], 6), "  ▁▃▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 1), "▁");
    }
}
