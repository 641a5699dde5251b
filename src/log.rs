//! The daemon's log, to standard error or a file.
//!
//! Errors that end a command are printed by `cli` instead. Invariant: a repeated fault does not
//! fill the disk. Nothing is written to syslog.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record};

use crate::sync::Mutex;

/// How often the same message is logged: a corrupt block may be read a million times.
const REPEATS: u32 = 3;

/// Distinct messages remembered for that. Then all are forgotten, and may be logged again.
const REMEMBERED: usize = 1024;

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors and warnings.
    #[default]
    Default,
    /// Errors, warnings and information.
    Verbose,
}

/// Sends all further log messages to `file`, or to standard error.
pub fn start(verbosity: Verbosity, file: Option<File>) {
    log::set_max_level(match verbosity {
        Verbosity::Quiet => LevelFilter::Error,
        Verbosity::Default => LevelFilter::Warn,
        Verbosity::Verbose => LevelFilter::Info,
    });
    let state = Mutex::new(State { sink: file, repeats: HashMap::new() });
    // If there is a logger already, it stays in use.
    let _ = log::set_boxed_logger(Box::new(Logger { state }));
}

/// Logs a message that is not a warning, but is shown unless only errors are wanted.
pub fn tell(message: fmt::Arguments<'_>) {
    if log::max_level() >= LevelFilter::Warn {
        log::logger().log(&Record::builder().level(log::Level::Info).args(message).build());
    }
}

struct Logger {
    /// Guards the file and the remembered messages, so that lines do not mix. No lock is taken
    /// after it.
    state: Mutex<State>,
}

struct State {
    /// `None` for standard error.
    sink: Option<File>,
    repeats: HashMap<String, u32>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // fuser logs each request and each capability. Only its errors matter to a user.
        !metadata.target().starts_with("fuser") || metadata.level() <= log::Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let message = record.args().to_string();
        if record.target().starts_with("fuser") && is_late_answer(&message) {
            return;
        }
        let mut state = self.state.lock();
        let Some(note) = state.note(&message) else {
            return;
        };
        let line = format!("archfs: {}{note}\n", printable(&message));
        // A failure to write the log cannot be reported.
        let _ = match &mut state.sink {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}

impl State {
    /// The suffix for `message`, or `None` if it was logged often enough.
    fn note(&mut self, message: &str) -> Option<&'static str> {
        if self.repeats.len() >= REMEMBERED {
            self.repeats.clear();
        }
        let times = self.repeats.entry(message.to_owned()).or_insert(0);
        *times = times.saturating_add(1);
        match *times {
            times if times < REPEATS => Some(""),
            REPEATS => Some(" (not told again)"),
            _ => None,
        }
    }
}

/// Whether fuser reports a reply that no process waits for. That happens if a reader is killed just
/// after its request was answered: the kernel rejects the reply to its notice of the kill. It is
/// harmless.
fn is_late_answer(message: &str) -> bool {
    message.starts_with("Failed to send FUSE reply") && message.ends_with("(os error 2)")
}

/// `text` on one line, with control characters escaped: names in an archive may contain some that a
/// terminal would interpret.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Whether a terminal interprets `c` instead of showing it: control characters, line separators,
/// and characters that change the text direction (Unicode, UAX 9: a name that ends in `gpj.exe` may
/// look as if it ended in `exe.jpg`).
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn logs_a_repeated_fault_three_times() {
        let mut state = State { sink: None, repeats: HashMap::new() };
        let notes: Vec<_> = (0..5).map(|_| state.note("bad block")).collect();
        assert_eq!(notes, [Some(""), Some(""), Some(" (not told again)"), None, None]);
        assert_eq!(state.note("another"), Some(""));
    }

    #[test]
    fn forgets_old_messages_before_they_fill_memory() {
        let mut state = State { sink: None, repeats: HashMap::new() };
        for number in 0..10 * REMEMBERED {
            state.note(&number.to_string());
            assert!(state.repeats.len() <= REMEMBERED);
        }
    }

    #[test]
    fn logs_replies_that_cannot_be_sent_unless_no_process_waits_for_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let state = State { sink: File::create(&path).ok(), repeats: HashMap::new() };
        let logger = Logger { state: Mutex::new(state) };
        let tell = |target: &str, number: i32| {
            let error = std::io::Error::from_raw_os_error(number);
            let message = format!("Failed to send FUSE reply: {error}");
            let level = log::Level::Error;
            let mut record = Record::builder();
            logger.log(&record.target(target).level(level).args(format_args!("{message}")).build());
        };
        tell("fuser::reply", 2);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        tell("fuser::reply", 5);
        tell("archfs::fuse", 2);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn escapes_control_characters() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("caf\u{e9}"), "caf\u{e9}");
        assert_eq!(printable("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
        assert_eq!(printable("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(printable("\u{2066}\u{2028}"), "\\u{2066}\\u{2028}");
    }
}
