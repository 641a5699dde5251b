//! Output for people: errors with their hints, notes, and names without control characters. `log`
//! has the form of a message.
//!
//! Invariant: no byte of an archive reaches a terminal as a control character.

use std::fmt::Display;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use serde::Serialize;

use crate::error::{Error, Kind, Result};
use crate::log::{Label, Message, is_obeyed, print, printable, text_of};
use crate::units::{counted, counted_directories, format_duration, format_size};
use crate::vfs::Counts;

/// Prints an error to standard error, and its hint on the next line.
pub(super) fn show_error(error: &Error) {
    print(Label::Error, &text_of(error));
    // archfs doctor checks the whole node, which a single error does not know.
    let doctor = (error.kind() == Kind::CannotMount)
        .then_some("run `archfs doctor` to see what works on this node");
    let damage = (error.is_damage() && error.hint().is_none())
        .then_some("the archive is damaged: compare its checksum with that of the original");
    let hints: Vec<_> = [error.hint(), doctor, damage].into_iter().flatten().collect();
    if !hints.is_empty() {
        print(Label::Hint, &hints.join("; "));
    }
}

/// Prints an error of clap: help and the version unchanged, an error in the form of all others.
/// Suggests no option or subcommand that `is_hidden`.
pub(super) fn show_usage(error: &clap::Error, is_hidden: impl Fn(&str) -> bool) {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return;
    }
    if let Some(error) = invalid_value(error) {
        return show_error(&error);
    }
    let text = error.render().to_string();
    let suggested = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => std::slice::from_ref(one),
        Some(ContextValue::Strings(several)) => several.as_slice(),
        _ => &[],
    };
    let mut suggestions = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand]
        .into_iter()
        .flat_map(suggested);
    let text = match suggestions.any(|name| is_hidden(name)) {
        true => text.replace(" similar ", " hidden "),
        false => text,
    };
    let (what, usage) = split_usage(&text);
    print(Label::Error, &what);
    print(Label::Hint, &usage);
}

/// The error for a wrong value of an option: `--cache: "1x" is not a size`.
fn invalid_value(error: &clap::Error) -> Option<Error> {
    use std::error::Error as _;
    // `--cache <SIZE>`, or the name of an argument.
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = argument.split(' ').next().unwrap_or(argument);
    // It may come from a variable.
    let variable =
        format!("ARCHFS_{}", option.trim_start_matches('-').replace('-', "_").to_uppercase());
    let is_typed = std::env::args_os().any(|word| word.as_bytes().starts_with(option.as_bytes()));
    let option = match is_typed || std::env::var_os(&variable).is_none() {
        true => option,
        false => &variable,
    };
    if let Some(why) = error.source().and_then(|source| source.downcast_ref::<Error>()) {
        let error = Error::new(Kind::Usage, format!("{option}: {why}"));
        return Some(match why.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        });
    }
    match (error.get(ContextKind::InvalidValue)?, error.get(ContextKind::ValidValue)?) {
        (ContextValue::String(value), ContextValue::Strings(valid)) if !value.is_empty() => {
            let context = format!("{option}: {value:?} is not a valid value");
            let hint = format!("give one of: {}", valid.join(", "));
            Some(Error::new(Kind::Usage, context).with_hint(hint))
        }
        _ => None,
    }
}

/// Splits an error of clap into a message on one line and a hint: a similar name, or the usage.
fn split_usage(text: &str) -> (String, String) {
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let what = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let line = |start: &str| rest.lines().find_map(|line| line.trim().strip_prefix(start));
    // Of several tips, take the one with a similar name.
    let tip = line("tip: ").filter(|tip| tip.contains(" similar "));
    let hint = tip.or_else(|| line("Usage: ")).unwrap_or("archfs --help");
    (what.trim_start_matches("error: ").to_owned(), hint.to_owned())
}

pub(super) fn print_warning(text: &str) {
    print(Label::Warning, text);
}

/// The errors and warnings that a daemon has kept, a line each.
pub(super) fn without_hints(messages: &[Message]) -> impl Iterator<Item = String> {
    let shown = messages.iter().filter(|message| message.label != Label::Hint);
    shown.map(|message| printable(&message.line()))
}

/// Prints a note. The caller checks that the user wants notes.
pub(super) fn print_note(text: &str) {
    print(Label::Note, text);
}

/// Prints a hint to the line before.
pub(super) fn print_hint(text: &str) {
    print(Label::Hint, text);
}

/// Prints a line that is an error of one of several objects.
pub(super) fn print_error(text: &str) {
    print(Label::Error, text);
}

/// Errors of files that a command prints before it only counts them.
pub(super) const ERRORS_PRINTED: usize = 20;

/// Prints the first `most` errors about files of `object`, and the number of the others, which it
/// returns.
pub(super) fn print_errors(
    mut lines: impl ExactSizeIterator<Item = String>,
    most: usize,
    object: &dyn Display,
) -> usize {
    lines.by_ref().take(most).for_each(|line| print_error(&line));
    let rest = lines.len();
    if rest > 0 {
        print_error(&format!("{object}: and {}", counted(rest as u64, "more error")));
    }
    rest
}

/// What was read or written, as `find` counts it, and the bytes of the files, each file once:
/// `1003 files, 22 directories, 5 symbolic links, 95.4 MiB`.
pub(super) fn contents(counts: Counts) -> String {
    let Counts { files, directories, links, others, bytes } = counts;
    let mut parts = vec![counted(files, "file"), counted_directories(directories)];
    for (count, noun) in [(links, "symbolic link"), (others, "special file")] {
        if count > 0 {
            parts.push(counted(count, noun));
        }
    }
    parts.push(format_size(bytes));
    parts.join(", ")
}

/// How long it took to read or write `bytes`: `65.4 ms, 1.4 GiB/s`.
pub(super) fn pace(bytes: u64, time: Duration) -> String {
    let rate = (bytes as f64 / time.as_secs_f64().max(1e-3)) as u64;
    format!("{}, {}/s", format_duration(time), format_size(rate))
}

/// A bar of `columns` that is filled to `part` of 1.
pub(super) fn bar(part: f64, columns: usize) -> String {
    let filled = (part.clamp(0.0, 1.0) * columns as f64).round() as usize;
    format!("{}{}", "#".repeat(filled), ".".repeat(columns - filled))
}

/// Columns if standard output is no terminal or does not know its size.
const DEFAULT_COLUMNS: usize = 80;

pub(super) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    match size.map_or(0, |size| usize::from(size.ws_col)) {
        0 => DEFAULT_COLUMNS,
        columns => columns,
    }
}

/// A name for standard output: unchanged into a pipe, escaped on a terminal.
pub(super) fn name_for_output(name: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() {
        return printable(&String::from_utf8_lossy(name)).into_bytes();
    }
    name.to_vec()
}

/// The bytes of a name in hexadecimal digits if it is not UTF-8, because JSON cannot hold it.
pub(super) fn hex_if_not_utf8(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| name.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Escapes all characters of a JSON text that a terminal would interpret. JSON itself requires that
/// only below U+0020. The value stays the same.
pub(super) fn json_for_output(json: &str) -> String {
    json.chars()
        .map(|c| if is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() })
        .collect()
}

/// `value` as JSON for standard output, without a line end.
pub(super) fn json_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map(|json| json_for_output(&json))
        .map_err(|error| Error::new(Kind::Io, "cannot write JSON").with_source(error))
}

/// Checks the result of a write to standard output. A reader that closed the pipe is no error.
pub(super) fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_leave_out_what_is_not_there() {
        let counts = Counts { files: 1, directories: 1, bytes: 1536, ..Counts::default() };
        assert_eq!(contents(counts), "1 file, 1 directory, 1.5 KiB");
        let counts = Counts { links: 2, others: 1, ..counts };
        assert_eq!(
            contents(counts),
            "1 file, 1 directory, 2 symbolic links, 1 special file, 1.5 KiB"
        );
        assert_eq!(pace(3 << 20, Duration::from_millis(1500)), "1.5 s, 2.0 MiB/s");
    }

    #[test]
    fn bars_show_shares() {
        for (part, text) in [(0.0, "...."), (0.5, "##.."), (2.0, "####")] {
            assert_eq!(bar(part, 4), text);
        }
    }

    #[test]
    fn json_keeps_its_value_without_control_characters() {
        let text = "a\u{9b}2J\u{202e}\u{7f}\n\u{e9}";
        let json = json_for_output(&serde_json::to_string(text).unwrap());
        assert_eq!(json, "\"a\\u009b2J\\u202e\\u007f\\n\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn clap_errors_become_one_line_and_a_hint() {
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
