//! Words: what the text form is made of, and the names of the blocks.

use super::text_error::printable;

/// The names of the blocks: what a person is told to choose from.
const SERVED: [&str; 10] = [
    "Random",
    "OldestFirst",
    "NewestFirst",
    "CustomPriority",
    "SelectOnly",
    "PreferDistinct",
    "MaxSimultaneous",
    "OrElse",
    "Fair",
    "Lane",
];

/// Whether a text can stand without quotes; no more than a field's name may hold.
pub(super) fn is_bare_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_bare)
}

pub(super) fn is_bare(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-".contains(character)
}

/// A number as it is printed: digits, without a sign and without zeros before it, so that each has one spelling.
pub(super) fn whole_number(digits: &str) -> Option<u64> {
    let is_plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().ok() } else { None }
}

/// Says that no block has this name, and which one may be meant.
pub(super) fn unknown_name(name: &str) -> String {
    match nearest(name) {
        Some(served) => format!("`{}` is no strategy; did you mean {served}?", shortened(name)),
        None => format!("`{}` is no strategy; there are {}", shortened(name), served()),
    }
}

fn served() -> String {
    let [names @ .., last] = SERVED;
    format!("{} and {last}", names.join(", "))
}

/// As much of a text as a sentence bears, without what would disturb a terminal.
pub(super) fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let rest = if text.chars().nth(CHARACTERS_MAX).is_some() { "…" } else { "" };
    text.chars().take(CHARACTERS_MAX).map(printable).chain(rest.chars()).collect()
}

fn nearest(name: &str) -> Option<&'static str> {
    let letters = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let meant = letters(name);
    // A longer word than every name is no slip of the pen, and comparing costs its length.
    if !(3..=24).contains(&meant.len()) {
        return None;
    }
    let mut holding = SERVED.into_iter().filter(|served| letters(served).contains(&meant));
    if let (Some(only), None) = (holding.next(), holding.next()) {
        return Some(only);
    }
    let slips_max = meant.chars().count().div_ceil(4);
    SERVED
        .into_iter()
        .map(|served| (slips(&meant, &letters(served)), served))
        .filter(|(slips, _)| *slips <= slips_max)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, served)| served)
}

/// How many letters to add, drop or change to make one word of the other (Levenshtein's distance).
fn slips(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
