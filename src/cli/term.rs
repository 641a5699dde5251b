//! What a person reads.
//!
//! Owns the form of errors (`archfs: what: why`, then a hint) and the harmless printing of names.
//! Invariant: no byte of an archive reaches a terminal as a control character.

use std::io::{IsTerminal, Write};

use crate::error::{Error, Kind, Result};
use crate::log::{is_obeyed, printable};

/// Shows an error on standard error.
pub(super) fn show_error(error: &Error) {
    // When nobody can read it, there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "archfs: {}", printable(&error.to_string()));
    // What one error can not know, all that the node has and lacks together tells.
    let doctor =
        (error.kind() == Kind::CannotMount).then_some("archfs doctor tells what works here");
    let hints: Vec<_> = [error.hint(), doctor].into_iter().flatten().collect();
    if !hints.is_empty() {
        let _ = writeln!(std::io::stderr(), "hint: {}", printable(&hints.join("; ")));
    }
}

/// Shows what clap has to say: help and the version as they are, an error in the form of all
/// others.
pub(super) fn show_usage(error: &clap::Error) {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return;
    }
    let text = error.render().to_string();
    let (what, usage) = split_usage(&text);
    let _ = writeln!(std::io::stderr(), "archfs: {}", printable(&what));
    let _ = writeln!(std::io::stderr(), "hint: {}", printable(&usage));
}

/// The complaint of an error of clap on one line, and what else was meant perhaps, or how the
/// command is used.
fn split_usage(text: &str) -> (String, String) {
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let what = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let line = |start: &str| rest.lines().find_map(|line| line.trim().strip_prefix(start));
    // Of several tips, that of a name like the one that was given.
    let tip = line("tip: ").filter(|tip| tip.contains(" similar "));
    let hint = tip.or_else(|| line("Usage: ")).unwrap_or("archfs --help");
    (what.trim_start_matches("error: ").to_owned(), hint.to_owned())
}

/// Tells a person something on standard error.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "archfs: {}", printable(text));
}

/// A name as it should be written to standard output: as it is into a pipe, escaped on a terminal.
pub(super) fn name_for_output(name: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() {
        return printable(&String::from_utf8_lossy(name)).into_bytes();
    }
    name.to_vec()
}

/// The bytes of a name in hexadecimal digits, where it is no UTF-8, so that JSON can not hold it.
pub(super) fn hex_of_no_text(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| name.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A value of JSON as it should be written to standard output: the same value, in which nothing is
/// left that a terminal obeys. JSON itself asks for that only below U+0020.
pub(super) fn json_for_output(json: &str) -> String {
    json.chars()
        .map(|c| if is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() })
        .collect()
}

/// The end of writing to standard output; a reader that has seen enough is no error.
///
/// # Errors
/// `Io` for anything else.
pub(super) fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("can not write to standard output", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_what_it_says_and_is_nothing_that_a_terminal_obeys() {
        let text = "a\u{9b}2J\u{202e}\u{7f}\n\u{e9}";
        let json = json_for_output(&serde_json::to_string(text).unwrap());
        assert_eq!(json, "\"a\\u009b2J\\u202e\\u007f\\n\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn complaints_of_clap_become_one_line_and_a_hint() {
        let text = "error: the following were not provided:\n  <A>\n  <B>\n\nUsage: archfs run A B\n\nMore";
        let (what, usage) = split_usage(text);
        assert_eq!(what, "the following were not provided: <A> <B>");
        assert_eq!(usage, "archfs run A B");
        assert_eq!(split_usage("error: odd").1, "archfs --help");
        let text =
            "error: what is '--kep'\n\n  tip: a similar argument exists: '--keep'\n\nUsage: archfs";
        assert_eq!(split_usage(text).1, "a similar argument exists: '--keep'");
    }
}
