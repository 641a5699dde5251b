//! Messages for people: their form, and where those of the daemon go.
//!
//! A message is one line, `archfs: error: OBJECT: WHAT`, where `error` may be `warning` or `note`.
//! A line `archfs: hint: ACTION` follows if there is a remedy. In a batch job the prefix names the
//! node, because the output of many nodes often goes to one file: `archfs[nid0012]: error: ...`.
//! Lines in a log file begin with the time.
//!
//! Invariants: only `line` makes a prefix. A repeated fault does not fill the disk. Nothing is
//! written to syslog.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::batch_job;
use crate::error::{Error, Kind, Result, reason};
use crate::os::directory::{Appended, Directory, parent_of};
use crate::sync::{AtomicBool, Mutex, OnceLock, Ordering};
use crate::units::format_utc;
use crate::url;

/// How often the same message is logged: a corrupt block may be read a million times.
const REPEATS: u32 = 3;

/// Distinct messages remembered for that. Then all are forgotten, and may be logged again.
const REMEMBERED: usize = 1024;

/// How many of the first messages are kept for `kept`, and how many of the last.
const KEPT: usize = 5;

/// The target of records that are hints.
const HINT: &str = "archfs::hint";

/// How much is printed and logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verbosity {
    /// Errors with their hints, and warnings.
    Quiet,
    /// Notes and all hints as well.
    #[default]
    Default,
    /// Everything, with offsets and the texts of libraries.
    Verbose,
}

/// What the first word of a line says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// Something failed.
    Error,
    /// Something works worse than the user may expect.
    Warning,
    /// Something that the user may want to know.
    Note,
    /// What to do about the line before.
    Hint,
}

impl Label {
    fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Hint => "hint",
        }
    }

    /// Red, yellow, none, cyan.
    fn color(self) -> Option<&'static str> {
        match self {
            Self::Error => Some("31"),
            Self::Warning => Some("33"),
            Self::Note => None,
            Self::Hint => Some("36"),
        }
    }
}

/// A message that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The messages are numbered from 0; a gap is where some were not kept.
    pub number: u64,
    /// When it was kept, seconds since 1970. `None` from a daemon of an older version.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Its first word.
    pub label: Label,
    /// What follows it.
    pub text: String,
}

impl Message {
    /// The message as the log has it, without the name of the program.
    pub fn line(&self) -> String {
        let line = format!("{}: {}", self.label.word(), self.text);
        let time = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        match self.seconds.and_then(time) {
            Some(time) => format!("{} {line}", format_utc(time)),
            None => line,
        }
    }
}

/// Set by the first `start`.
static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();
static LOGGER: OnceLock<Logger> = OnceLock::new();
static HAS_LOSSES: AtomicBool = AtomicBool::new(false);

/// Sends all further log messages to `file`, or to standard error.
pub fn start(verbosity: Verbosity, file: Option<File>) {
    let level = match verbosity {
        Verbosity::Quiet | Verbosity::Default => LevelFilter::Warn,
        Verbosity::Verbose => LevelFilter::Info,
    };
    start_at(level, verbosity, file);
}

/// Logs only errors: for commands that report by themselves what others warn of.
pub fn start_without_warnings() {
    start_at(LevelFilter::Error, Verbosity::Default, None);
}

fn start_at(level: LevelFilter, verbosity: Verbosity, file: Option<File>) {
    log::set_max_level(level);
    let _ = VERBOSITY.set(verbosity);
    // If there is a logger already, it stays in use.
    let _ = log::set_logger(LOGGER.get_or_init(|| Logger::new(file)));
}

/// Keeps the first and the last errors and warnings from now on, with their hints: for users who
/// cannot see the log of a daemon. `is_stderr_open` says whether a user sees standard error.
pub fn keep_messages(is_stderr_open: bool) {
    if let Some(logger) = LOGGER.get() {
        let are_printed = is_stderr_open && logger.state.lock().sink.is_none();
        *logger.kept.lock() = Some(Kept { are_printed, ..Kept::default() });
    }
}

/// The messages that were kept, each text once, and whether standard error has them as well.
pub fn kept() -> (Vec<Message>, bool) {
    let kept = LOGGER.get().map(|logger| logger.kept.lock());
    let kept = kept.as_ref().and_then(|kept| kept.as_ref());
    kept.map(|kept| (kept.messages(), kept.are_printed)).unwrap_or_default()
}

/// Opens the file for a log, or creates it with access for this user only.
///
/// Nothing is written to a file that another user put there. The log names files of the dataset.
/// Another user may have created a link in a directory such as /tmp, or for root in a directory of
/// their own, so that the log is appended to any file of this user. They may also have created a
/// pipe or a file there, in order to read the log. The kernel's protection (fs.protected_symlinks
/// and the like) may be off.
///
/// A mount never waits for a reader of its log. Opening a named pipe without a reader is an error,
/// and a full pipe loses lines.
///
/// # Errors
/// `Io` if the file cannot be opened for appending, or if another user could have put it there.
pub fn open(path: &Path) -> Result<File> {
    let failed = |error| {
        Error::io(format!("{}: cannot write the log", path.display()), error)
            .with_hint("without --log-file, the log goes to standard error if that is a file")
    };
    let directory = Directory::open(parent_of(path)).map_err(failed)?;
    // A path that ends with `..` has no file name: it is a directory.
    let name = path.file_name().unwrap_or(path.as_os_str());
    match directory.append(name).map_err(failed)? {
        Appended::Opened(file) => Ok(file),
        Appended::Planted => {
            let context = format!(
                "{}: cannot write the log: another user may have created this file",
                path.display()
            );
            Err(Error::new(Kind::Io, context).with_hint("use a file in a directory of your own"))
        }
    }
}

/// How much is printed and logged.
pub fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or_default()
}

/// Logs a note, unless only errors and warnings are wanted.
pub fn note(message: fmt::Arguments<'_>) {
    if verbosity() != Verbosity::Quiet && log::max_level() >= LevelFilter::Warn {
        send(module_path!(), Level::Info, message);
    }
}

/// Logs an error and its hint.
pub fn error(error: &Error) {
    send(module_path!(), Level::Error, format_args!("{}", text_of(error)));
    if let Some(hint) = error.hint() {
        send(HINT, Level::Error, format_args!("{hint}"));
    }
}

/// Logs a warning, and a hint unless only errors and warnings are wanted.
pub fn warn(message: fmt::Arguments<'_>, hint: &str) {
    log::warn!("{message}");
    if verbosity() != Verbosity::Quiet && log::max_level() >= LevelFilter::Warn {
        send(HINT, Level::Warn, format_args!("{hint}"));
    }
}

/// Logs a message that another process kept.
pub fn pass_on(message: &Message) {
    let (target, level) = match message.label {
        Label::Error => (module_path!(), Level::Error),
        Label::Warning => (module_path!(), Level::Warn),
        Label::Note => (module_path!(), Level::Info),
        Label::Hint => (HINT, Level::Error),
    };
    send(target, level, format_args!("{}", message.text));
}

/// Logs a hint to an error that was just logged.
pub fn hint(hint: &str) {
    send(HINT, Level::Error, format_args!("{hint}"));
}

fn send(target: &str, level: Level, message: fmt::Arguments<'_>) {
    log::logger().log(&Record::builder().target(target).level(level).args(message).build());
}

/// `detail` if everything is wanted, else nothing: an offset, or the text of a library.
pub fn detail(detail: impl fmt::Display) -> String {
    if verbosity() == Verbosity::Verbose { detail.to_string() } else { String::new() }
}

/// The text of `error`: with all details if everything is wanted.
pub fn text_of(error: &Error) -> String {
    if verbosity() == Verbosity::Verbose { format!("{error:#}") } else { error.to_string() }
}

/// Prints a message to standard error, in color if it is a terminal that has color.
pub fn print(label: Label, text: &str) {
    let line = line(label, text, label.color().filter(|_| has_color()));
    // If standard error is closed, there is no other place for the message.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Logs that a part of an archive is missing. A command that shows the rest asks `has_losses`.
pub fn loss(message: fmt::Arguments<'_>) {
    HAS_LOSSES.store(true, Ordering::Relaxed);
    log::error!("{message}");
}

/// Whether a loss was logged.
pub fn has_losses() -> bool {
    HAS_LOSSES.load(Ordering::Relaxed)
}

/// Whether messages have color: <https://no-color.org>.
fn has_color() -> bool {
    let is_set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stderr().is_terminal()
        && is_set("NO_COLOR").is_none()
        && is_set("TERM").is_some_and(|name| name != "dumb")
}

/// A message as it is printed, with the newline, without errno numbers and secrets of URLs. With a
/// `color`, a parameter of SGR (ECMA-48, 8.3.117), its first word has it.
fn line(label: Label, text: &str, color: Option<&str>) -> String {
    static PREFIX: OnceLock<String> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| {
        let node = batch_job::current().map(|_| batch_job::node_name());
        prefix_on(node.as_deref())
    });
    let word = match color {
        Some(color) => format!("\x1b[{color}m{}\x1b[0m", label.word()),
        None => label.word().to_owned(),
    };
    format!("{prefix}: {word}: {}\n", shown(text))
}

/// The text of a message as it is printed.
fn shown(text: &str) -> String {
    printable(&url::shown_in(&reason(text)))
}

/// The start of each line; `node` is given in a batch job.
fn prefix_on(node: Option<&str>) -> String {
    match node {
        Some(node) => format!("archfs[{}]", printable(node)),
        None => "archfs".to_owned(),
    }
}

/// Splits a line that this program printed, perhaps on another node, into the label and the text.
pub fn parse_line(line: &str) -> Option<(Label, &str)> {
    let rest = line.strip_prefix("archfs")?;
    let rest = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1,
        None => rest,
    };
    let (word, text) = rest.strip_prefix(": ")?.split_once(": ")?;
    let labels = [Label::Error, Label::Warning, Label::Note, Label::Hint];
    labels.into_iter().find(|label| label.word() == word).map(|label| (label, text))
}

struct Logger {
    /// Guards the file and the remembered messages, so that lines do not mix. No lock is taken
    /// after it.
    state: Mutex<State>,
    /// Apart from `state`, which is locked while a line is written: storage may hang, and then the
    /// messages can still be asked for.
    kept: Mutex<Option<Kept>>,
}

impl Logger {
    fn new(file: Option<File>) -> Self {
        Self { state: Mutex::new(State::new(file)), kept: Mutex::new(None) }
    }
}

struct State {
    /// `None` for standard error.
    sink: Option<File>,
    repeats: HashMap<String, u32>,
}

/// The first messages and the last ones.
#[derive(Default)]
struct Kept {
    first: Vec<Message>,
    last: VecDeque<Message>,
    /// The texts of all so far.
    texts: HashSet<String>,
    count: u64,
    are_printed: bool,
}

impl Kept {
    fn add(&mut self, label: Label, text: &str) {
        let text = shown(text);
        // Messages that repeat must not drive out others.
        if self.texts.len() >= REMEMBERED || !self.texts.insert(text.clone()) {
            return;
        }
        let seconds = UNIX_EPOCH.elapsed().ok().map(|time| time.as_secs());
        let message = Message { number: self.count, seconds, label, text };
        self.count += 1;
        if self.first.len() < KEPT {
            return self.first.push(message);
        }
        if self.last.len() >= KEPT {
            self.last.pop_front();
        }
        self.last.push_back(message);
    }

    fn messages(&self) -> Vec<Message> {
        self.first.iter().chain(&self.last).cloned().collect()
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // fuser logs each request and each capability. Only its errors matter to a user.
        !metadata.target().starts_with("fuser") || metadata.level() <= Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut message = record.args().to_string();
        if record.target().starts_with("fuser") {
            if is_late_answer(&message) {
                return;
            }
            let detail = detail(format_args!(" ({})", reason(&message)));
            message = format!("the connection to the kernel failed{detail}");
        }
        let label = match (record.target(), record.level()) {
            (HINT, _) => Label::Hint,
            (_, Level::Error) => Label::Error,
            (_, Level::Warn) => Label::Warning,
            _ => Label::Note,
        };
        if label != Label::Note
            && let Some(kept) = self.kept.lock().as_mut()
        {
            kept.add(label, &message);
        }
        let mut state = self.state.lock();
        let Some(suffix) = state.suffix(label, &message) else {
            return;
        };
        let text = format!("{message}{suffix}");
        match &mut state.sink {
            Some(file) => {
                let timed =
                    format!("{} {}", format_utc(SystemTime::now()), line(label, &text, None));
                // A failure to write the log cannot be reported.
                let _ = file.write_all(timed.as_bytes());
            }
            None => print(label, &text),
        }
    }

    fn flush(&self) {}
}

impl State {
    fn new(sink: Option<File>) -> Self {
        Self { sink, repeats: HashMap::new() }
    }

    /// The suffix for `message`, or `None` if it was logged often enough. A hint is logged once.
    fn suffix(&mut self, label: Label, message: &str) -> Option<&'static str> {
        if self.repeats.len() >= REMEMBERED {
            self.repeats.clear();
        }
        let times = self.repeats.entry(message.to_owned()).or_insert(0);
        *times = times.saturating_add(1);
        match *times {
            1 => Some(""),
            _ if label == Label::Hint => None,
            times if times < REPEATS => Some(""),
            REPEATS => Some(" (not logged again)"),
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
    use std::io::ErrorKind;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    use rustix::fs::{CWD, FileType};
    use rustix::process::geteuid;

    use super::*;

    /// A logger that writes to the file `log` in the directory.
    fn logger(directory: &Path) -> Logger {
        Logger::new(File::create(directory.join("log")).ok())
    }

    fn record(logger: &Logger, target: &str, level: Level, text: &str) {
        let mut record = Record::builder();
        logger.log(&record.target(target).level(level).args(format_args!("{text}")).build());
    }

    #[test]
    fn logs_a_repeated_fault_three_times_and_its_hint_once() {
        let mut state = State::new(None);
        let notes: Vec<_> = (0..5).map(|_| state.suffix(Label::Error, "bad block")).collect();
        assert_eq!(notes, [Some(""), Some(""), Some(" (not logged again)"), None, None]);
        assert_eq!(state.suffix(Label::Error, "another"), Some(""));
        let hints = [(); 2].map(|()| state.suffix(Label::Hint, "do it"));
        assert_eq!(hints, [Some(""), None]);
    }

    #[test]
    fn forgets_old_messages_before_they_fill_memory() {
        let mut state = State::new(None);
        for number in 0..10 * REMEMBERED {
            state.suffix(Label::Error, &number.to_string());
            assert!(state.repeats.len() <= REMEMBERED);
        }
    }

    #[test]
    fn a_line_names_its_kind_and_in_a_batch_job_the_node() {
        assert_eq!(prefix_on(Some("nid0012")), "archfs[nid0012]");
        assert_eq!(prefix_on(None), "archfs");
        for label in [Label::Error, Label::Warning, Label::Note, Label::Hint] {
            let line = line(label, "a.sqfs: no such file\n", None);
            assert!(line.ends_with(": a.sqfs: no such file\\n\n"), "{line}");
            let parsed = parse_line(line.trim_end());
            assert_eq!(parsed, Some((label, "a.sqfs: no such file\\n")), "{line}");
        }
        let refused = std::io::Error::from_raw_os_error(13).to_string();
        let colored = |color| line(Label::Error, &refused, color);
        assert!(colored(None).ends_with(": error: Permission denied\n"));
        assert!(colored(Some("31")).ends_with(": \x1b[31merror\x1b[0m: Permission denied\n"));
        assert_eq!(parse_line("archfs[n1]: error: a: b"), Some((Label::Error, "a: b")));
        assert_eq!(parse_line("archfs: odd: a"), None);
        assert_eq!(parse_line("srun: error: a"), None);
    }

    #[test]
    fn lines_of_a_file_have_a_kind_and_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let logger = logger(directory.path());
        for level in [Level::Error, Level::Warn, Level::Info] {
            record(&logger, "archfs::vfs", level, &format!("{level}"));
        }
        record(&logger, HINT, Level::Error, "do it");
        let text = fs::read_to_string(directory.path().join("log")).unwrap();
        let mut found = Vec::new();
        for line in text.lines() {
            let (time, line) = line.split_once(' ').unwrap();
            assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 20, "{text}");
            found.push(parse_line(line).unwrap());
        }
        let expected = [
            (Label::Error, "ERROR"),
            (Label::Warning, "WARN"),
            (Label::Note, "INFO"),
            (Label::Hint, "do it"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn failures_of_the_connection_are_logged_without_the_text_of_the_library() {
        let directory = tempfile::tempdir().unwrap();
        let logger = logger(directory.path());
        let log = || fs::read_to_string(directory.path().join("log")).unwrap();
        let failed = |target: &str, number: i32| {
            let error = std::io::Error::from_raw_os_error(number);
            record(&logger, target, Level::Error, &format!("Failed to send FUSE reply: {error}"));
        };
        // No process waits for this reply.
        failed("fuser::reply", 2);
        assert_eq!(log(), "");
        failed("fuser::reply", 5);
        assert!(log().ends_with(": error: the connection to the kernel failed\n"), "{}", log());
        record(&logger, "fuser", Level::Debug, "a request");
        assert_eq!(log().lines().count(), 1);
    }

    #[test]
    fn escapes_control_characters() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("caf\u{e9}"), "caf\u{e9}");
        assert_eq!(printable("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
        assert_eq!(printable("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(printable("\u{2066}\u{2028}"), "\\u{2066}\\u{2028}");
    }

    fn is_refused(path: &Path) -> bool {
        open(path).is_err_and(|error| error.to_string().contains("another user may"))
    }

    #[test]
    fn a_log_is_private_and_the_users_own_links_are_followed() {
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
    fn a_log_never_waits_for_the_reader_of_a_pipe() {
        let work = tempfile::tempdir().unwrap();
        let pipe = work.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        let refused = open(&pipe).unwrap_err().to_string();
        assert!(refused.contains("No such device or address"), "{refused}");
        let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let mut log = open(&pipe).unwrap();
        let mut written_len = 0;
        let full = std::iter::repeat_with(|| log.write_all(b"line\n")).find_map(|written| {
            written_len += 5 * usize::from(written.is_ok());
            written.err()
        });
        assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
        let mut read = vec![0; written_len];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert!(read.ends_with(b"line\n"));
    }

    #[test]
    fn nothing_is_written_to_what_others_put_where_everybody_may_write() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
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
        // A hard link to the user's own file.
        fs::hard_link(name("dear"), name("second")).unwrap();
        assert!(is_refused(&name("second")));
        // If others cannot write to the directory, this user has chosen to log to another user's
        // file.
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
        open(&name("file")).unwrap();
    }

    /// > Root writes no log through a link in a directory of another user.
    #[test]
    fn root_writes_through_nothing_that_a_user_made_in_their_directory() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let work = tempfile::tempdir().unwrap();
        let directory = work.path().join("directory");
        let name = |name: &str| directory.join(name);
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(5), None).unwrap();
        fs::write(work.path().join("dear"), "").unwrap();
        symlink("../dear", name("link")).unwrap();
        symlink("../none", name("dangling")).unwrap();
        symlink("../dear", name("of root")).unwrap();
        for name in ["link", "dangling"].map(name) {
            lchown(name, Some(5), None).unwrap();
        }
        fs::hard_link(work.path().join("dear"), name("second")).unwrap();
        // The owner of the directory can replace root's link by another link.
        for name in ["link", "dangling", "of root", "second"].map(name) {
            assert!(is_refused(&name), "{}", name.display());
        }
        assert!(!work.path().join("none").exists());
        open(&name("new")).unwrap();
        fs::write(name("theirs"), "").unwrap();
        chown(name("theirs"), Some(5), None).unwrap();
        open(&name("theirs")).unwrap();
    }
}
