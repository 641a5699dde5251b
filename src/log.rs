//! What the daemon says while it serves: to standard error or to a file.
//!
//! Owns the one logger behind the `log` macros; leaves errors that end a command to `cli`.
//! Invariant: a fault that repeats does not fill the disk. Nothing is ever written to syslog.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use log::{LevelFilter, Log, Metadata, Record};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
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
    Usual,
    /// What is done, too.
    Verbose,
}

/// Sends everything logged from now on to `file`, or to standard error.
///
/// # Errors
/// `Io` where the file can not be opened for appending, or could be somebody else's trap.
pub fn start(verbosity: Verbosity, file: Option<&Path>) -> Result<()> {
    let sink = file.map(open).transpose()?;
    log::set_max_level(match verbosity {
        Verbosity::Quiet => LevelFilter::Error,
        Verbosity::Usual => LevelFilter::Warn,
        Verbosity::Verbose => LevelFilter::Info,
    });
    let state = Mutex::new(State { sink, repeats: HashMap::new() });
    // A second logger in one process is no harm: the first goes on.
    let _ = log::set_boxed_logger(Box::new(Logger { state }));
    Ok(())
}

/// Says what is no warning, and is nevertheless to be seen unless only errors are wanted.
pub fn tell(message: fmt::Arguments<'_>) {
    if log::max_level() >= LevelFilter::Warn {
        log::logger().log(&Record::builder().level(log::Level::Info).args(message).build());
    }
}

/// Opens a log, or makes it for this user alone.
///
/// The log names files of the dataset. In a folder such as /tmp somebody else may have put a link
/// there, by which it would be written into any file of this user, or a pipe or file to read it
/// from; the kernel's own guard against that (fs.protected_symlinks and the like) may be off.
///
/// No mount waits for who reads its log: a named pipe without a reader is an error, and one that is
/// full loses lines.
fn open(path: &Path) -> Result<File> {
    let failed = |error| {
        Error::io(format!("{}: can not write the log", path.display()), error)
            .with_hint("without --log-file it goes to standard error, if that is a file")
    };
    loop {
        let mut options = OpenOptions::new();
        options.append(true).mode(0o600).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let opened = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                options.create_new(true).open(path)
            }
            Err(error) => return Err(failed(error)),
            Ok(found) => {
                check_owner(path, &found)?;
                match found.is_symlink() {
                    true => options.create(true).open(path),
                    false => {
                        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
                        options.custom_flags(flags.bits().cast_signed()).open(path)
                    }
                }
            }
        };
        match opened {
            // Somebody made or removed it just now. The end of a link may be missing for good.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_file() => {}
            opened => return opened.map_err(failed),
        }
    }
}

/// Refuses what somebody else put into a folder where everybody may write.
fn check_owner(path: &Path, found: &fs::Metadata) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::metadata(folder.unwrap_or(Path::new(".")));
    let is_open = folder.is_ok_and(|folder| folder.mode() & 0o002 != 0);
    if !is_open || [0, geteuid().as_raw()].contains(&found.uid()) {
        return Ok(());
    }
    let context = format!(
        "{}: can not write the log: it belongs to somebody else, in a folder of everybody",
        path.display()
    );
    Err(Error::new(Kind::Io, context).with_hint("name a file in a folder of yours"))
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
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use rustix::fs::{CWD, FileType};

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

    fn is_refused(path: &Path) -> bool {
        open(path).is_err_and(|error| error.to_string().contains("somebody else"))
    }

    #[test]
    fn a_log_is_for_the_user_alone_and_links_of_ones_own_are_followed() {
        let work = tempfile::tempdir().unwrap();
        let (log, link) = (work.path().join("log"), work.path().join("link"));
        symlink("log", &link).unwrap();
        for path in [&link, &log] {
            open(path).unwrap().write_all(b"line\n").unwrap();
            assert_eq!(fs::symlink_metadata(&log).unwrap().mode() & 0o7777, 0o600);
        }
        assert_eq!(fs::read(&log).unwrap(), b"line\nline\n");
        for path in ["/dev/null", "/proc/self/fd/2"] {
            open(Path::new(path)).unwrap();
        }
        assert!(open(&work.path().join("none/log")).is_err() && open(work.path()).is_err());
    }

    #[test]
    fn nobody_waits_for_who_reads_a_pipe() {
        let work = tempfile::tempdir().unwrap();
        let pipe = work.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        let refused = open(&pipe).unwrap_err().to_string();
        assert!(refused.contains("No such device or address"), "{refused}");
        let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let mut log = open(&pipe).unwrap();
        let mut told = 0;
        let full = std::iter::repeat_with(|| log.write_all(b"line\n")).find_map(|written| {
            told += 5 * usize::from(written.is_ok());
            written.err()
        });
        assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
        let mut read = vec![0; told];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert!(read.ends_with(b"line\n"));
    }

    #[test]
    fn nothing_is_written_to_what_others_put_where_everybody_may_write() {
        if !geteuid().is_root() {
            return;
        }
        let work = tempfile::tempdir().unwrap();
        let name = |name: &str| work.path().join(name);
        fs::write(name("dear"), "").unwrap();
        fs::write(name("file"), "").unwrap();
        symlink("dear", name("link")).unwrap();
        symlink("none", name("dangling")).unwrap();
        let mode = rustix::fs::Mode::from(0o666);
        rustix::fs::mknodat(CWD, name("pipe"), FileType::Fifo, mode, 0).unwrap();
        let planted = ["file", "link", "dangling", "pipe"];
        for name in planted.map(name) {
            lchown(name, Some(5), None).unwrap();
        }
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        for name in planted.map(name) {
            assert!(is_refused(&name), "{}", name.display());
        }
        assert!(!name("none").exists());
        // In a folder of somebody whom the user named on purpose it is that one's choice.
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
        open(&name("file")).unwrap();
    }
}
