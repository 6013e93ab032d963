//! What is wrong with a strategy's text, and where.

use std::fmt;

/// Wider excerpts would be broken up by a terminal, and the caret would stand under something else.
const EXCERPT_CHARACTERS_MAX: usize = 100;

/// A text that is no strategy: what is wrong as a sentence, and the place.
///
/// It prints as the sentence, then the line of the text, if there is any, then a caret under the place:
///
/// ```
/// use windlass_core::batch::strategy::Strategy;
///
/// let error = "MaxSimultaneous(company_id)".parse::<Strategy>().unwrap_err();
/// assert_eq!(error.position(), 26);
/// assert_eq!(
///     error.to_string(),
///     "expected `,` and a limit such as 10 or 25% after the field\
///      \n  MaxSimultaneous(company_id)\
///      \n                            ^"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyTextError {
    sentence: String,
    position: usize,
    /// Counted from 1, as people do.
    character: usize,
    excerpt: String,
    /// The caret's column in the excerpt.
    column: usize,
}

impl StrategyTextError {
    /// `position` is the byte of `text` at which a character begins, or its end.
    pub(super) fn new(text: &str, position: usize, sentence: String) -> StrategyTextError {
        let (before, after) = text.split_at(position);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = after.find('\n').map_or(text.len(), |newline| position + newline);
        let column = before[line_start..].chars().count();
        let (excerpt, column) = excerpt_of(&text[line_start..line_end], column);
        StrategyTextError { sentence, position, character: before.chars().count() + 1, excerpt, column }
    }

    /// What is wrong.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Where: the byte of the text.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// For where lines are not kept apart, as in an error within JSON.
    pub(super) fn on_one_line(&self) -> String {
        let StrategyTextError { sentence, character, excerpt, .. } = self;
        if excerpt.is_empty() {
            return sentence.clone();
        }
        format!("{sentence} (at character {character} of `{excerpt}`)")
    }
}

impl fmt::Display for StrategyTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StrategyTextError { sentence, excerpt, column, .. } = self;
        if excerpt.is_empty() {
            return f.write_str(sentence);
        }
        write!(f, "{sentence}\n  {excerpt}\n  {:column$}^", "")
    }
}

impl std::error::Error for StrategyTextError {}

/// The part of a line around a column, with `…` where something is left out; and the column within it.
fn excerpt_of(line: &str, column: usize) -> (String, usize) {
    let length = line.chars().count();
    let start = column.saturating_sub(EXCERPT_CHARACTERS_MAX / 2);
    let start = start.min(length.saturating_sub(EXCERPT_CHARACTERS_MAX));
    let end = length.min(start + EXCERPT_CHARACTERS_MAX);
    let shown = |(index, character)| {
        let is_cut = (index == start && start > 0) || (index + 1 == end && end < length);
        if is_cut { '…' } else { printable(character) }
    };
    let excerpt = line.chars().enumerate().skip(start).take(end - start).map(shown).collect();
    (excerpt, column - start)
}

/// The character, or one that stands for it: what moves the cursor would part the caret from its place, or worse.
pub(super) fn printable(character: char) -> char {
    let is_printable = "\"'\\".contains(character) || character.escape_debug().len() == 1;
    match character {
        character if is_printable => character,
        space if space.is_whitespace() => ' ',
        _ => char::REPLACEMENT_CHARACTER,
    }
}
