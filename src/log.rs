//! What the daemon says while it serves: to standard error or to a file.
//!
//! Owns the one logger behind the `log` macros; leaves errors that end a command to `cli`.
//! Invariant: a fault that repeats does not fill the disk. Nothing is ever written to syslog.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record};

use crate::sync::Mutex;

/// How often one and the same message is written; a corrupt block may be read a million times.
const REPEATS: u32 = 3;

/// Different messages remembered for that, after which all are forgotten and may be written again.
const REMEMBERED: usize = 1024;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors and warnings.
    #[default]
    Default,
    /// What is done, too.
    Verbose,
}

/// Sends everything logged from now on to `file`, or to standard error.
pub fn start(verbosity: Verbosity, file: Option<File>) {
    log::set_max_level(match verbosity {
        Verbosity::Quiet => LevelFilter::Error,
        Verbosity::Default => LevelFilter::Warn,
        Verbosity::Verbose => LevelFilter::Info,
    });
    let state = Mutex::new(State { sink: file, repeats: HashMap::new() });
    // A second logger in one process is no harm: the first goes on.
    let _ = log::set_boxed_logger(Box::new(Logger { state }));
}

/// Says what is no warning, and is nevertheless to be seen unless only errors are wanted.
pub fn tell(message: fmt::Arguments<'_>) {
    if log::max_level() >= LevelFilter::Warn {
        log::logger().log(&Record::builder().level(log::Level::Info).args(message).build());
    }
}

struct Logger {
    /// Guards the file and the memory of messages, so that lines do not mix; taken last.
    state: Mutex<State>,
}

struct State {
    /// Standard error where there is none.
    sink: Option<File>,
    repeats: HashMap<String, u32>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // fuser tells of each request and each capability; only its errors concern a user.
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
        // There is nowhere to report that a log can not be written.
        let _ = match &mut state.sink {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}

impl State {
    /// What to write behind `message`, or `None` where it was written often enough.
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

/// Whether fuser tells that nobody waits for an answer any more. The kernel says that to the answer
/// to a notice of a killed reader whose request was answered just before; nothing went wrong.
fn is_late_answer(message: &str) -> bool {
    message.starts_with("Failed to send FUSE reply") && message.ends_with("(os error 2)")
}

/// `text` on one line: names in an archive may hold control characters that a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Whether a terminal does something at `c` but show it: control characters, those that turn the
/// direction of what follows (Unicode, UAX 9: a name that ends in `gpj.exe` may look like one in
/// `exe.jpg`), and those that begin a line.
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tells_a_repeated_fault_three_times() {
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
    fn tells_of_answers_that_can_not_be_sent_and_not_of_those_that_nobody_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
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
    fn disarms_control_characters() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("caf\u{e9}"), "caf\u{e9}");
        assert_eq!(printable("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
        assert_eq!(printable("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(printable("\u{2066}\u{2028}"), "\\u{2066}\\u{2028}");
    }
}
