//! Tables and times for people.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Rows under a head, each column as wide as its widest cell.
pub(crate) fn aligned(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect()
}

/// A named value on a line of its own; without a name it belongs to the one above.
pub(crate) fn named(name: &str, value: &str) -> String {
    format!("{name:<10} {}\n", visible(value))
}

/// A text of somebody else's on one line: what would move the cursor, change colours or turn the line round is written out.
pub(crate) fn visible(text: &str) -> String {
    let is_odd = |char: char| {
        char.is_control()
            || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, char| {
        match is_odd(char) {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
        shown
    })
}

/// A key: the empty one is shown, too.
pub(crate) fn key_text(key: &str) -> String {
    if key.is_empty() { "\"\"".into() } else { visible(key) }
}

/// A reason of several lines on one.
pub(crate) fn on_one_line(reason: &str) -> String {
    let lines: Vec<&str> = reason.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    visible(&lines.join(" | "))
}

/// A text in so many columns. What is left out is of its middle: the end of a reason says as much as its beginning.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let taken = |chars: &mut dyn Iterator<Item = char>, columns: usize| -> String {
        let mut left = columns;
        chars
            .take_while(|char| {
                let width = char.width().unwrap_or(0);
                let fits = width <= left;
                left = left.saturating_sub(width);
                fits
            })
            .collect()
    };
    let room = columns.saturating_sub(1);
    let head = taken(&mut text.chars(), room / 3);
    let tail = taken(&mut text.chars().rev(), room - head.width());
    format!("{head}…{}", tail.chars().rev().collect::<String>())
}

/// The columns of the terminal that stdout is; none if it is none: whoever reads on gets everything.
pub(crate) fn columns() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    let size = is_terminal.then(|| crossterm::terminal::size().ok()).flatten();
    size.map(|(columns, _)| columns.into()).filter(|columns| *columns > 0)
}

/// How long ago a time of the interface was; the text itself if it is none.
pub(crate) fn age(time: &str) -> String {
    match humantime::parse_rfc3339(time) {
        Ok(then) => short(SystemTime::now().duration_since(then).unwrap_or_default()),
        Err(_) => time.into(),
    }
}

/// The time between two times of the interface.
pub(crate) fn between(begin: &str, end: &str) -> Option<Duration> {
    let (begin, end) = (humantime::parse_rfc3339(begin).ok()?, humantime::parse_rfc3339(end).ok()?);
    end.duration_since(begin).ok()
}

/// A duration in its two largest units.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// A number with its thousands set apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = (digits.len() + 2) % 3 + 1;
    let (head, rest) = digits.split_at(first.min(digits.len()));
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    std::iter::once(head.to_owned()).chain(groups).collect::<Vec<_>>().join(",")
}

/// So many of a thing.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_have_no_blanks_at_the_end() {
        let rows = [vec!["1".into(), "running".into()], vec!["1234".into(), "é".into()]];
        assert_eq!(aligned(&["id", "state"], &rows), "id    state\n1     running\n1234  é\n");
    }

    #[test]
    fn what_would_move_the_cursor_or_change_colours_is_written_out_and_other_letters_stay() {
        assert_eq!(
            visible("a\u{1b}[31m\n\t\0\u{9b}é\u{202e}\"\\"),
            "a\\u{1b}[31m\\n\\t\\u{0}\\u{9b}é\\u{202e}\"\\"
        );
        assert_eq!(aligned(&["KEY"], &[vec!["a\r".into()]]), "KEY\na\\r\n");
        assert_eq!(named("reason", "a\nb"), "reason     a\\nb\n");
        assert_eq!([key_text(""), key_text("a b")], ["\"\"", "a b"]);
    }

    #[test]
    fn a_reason_of_several_lines_is_on_one_and_what_does_not_fit_is_left_out_of_its_middle() {
        let reason = "exit status 1:   File \"x.py\", line 1\n    boom()\n\nValueError: boom\n";
        let line = on_one_line(reason);
        assert_eq!(line, "exit status 1:   File \"x.py\", line 1 |     boom() | ValueError: boom");
        assert_eq!(shortened(&line, 200), line);
        assert_eq!(shortened(&line, 32), "exit statu…() | ValueError: boom");
        assert_eq!(shortened("終終終終", 5), "…終終", "two columns each");
        assert_eq!(shortened("abc", 0), "…");
    }

    #[test]
    fn durations_show_their_two_largest_units() {
        let shown = [400, 12_000, 61_000, 3_720_000, 90_000_000].map(|ms| short(Duration::from_millis(ms)));
        assert_eq!(shown, ["0.4s", "12s", "1m 1s", "1h 2m", "1d 1h"]);
        assert_eq!(between("2025-01-01T00:00:00Z", "2025-01-01T00:01:00Z"), Some(Duration::from_secs(60)));
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 12, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "12", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2_000].map(|n| counted(n, "chunk")), ["0 chunks", "1 chunk", "2,000 chunks"]);
    }
}
