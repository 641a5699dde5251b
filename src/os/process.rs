//! Identifies a process, and waits for its end; runs this program again.
//!
//! The kernel reuses process ids, so a process is identified by its id and start time.
//!
//! The start time is in /proc/PID/stat, which may be missing or describe another process. With
//! `hidepid=2`, /proc does not show processes of other users. A pid namespace may still have the
//! /proc of the outer one (`unshare --pid --fork`), where the same id belongs to another process.
//! In both cases the start time is unknown, and only the id identifies the process. A process
//! descriptor (pidfd) always refers to the process for which it was opened.
//!
//! Invariant: a watch reports the end of exactly the process that it was made for.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit, test_kill_process,
};
use rustix::stdio;
use rustix::thread::gettid;

use crate::error::{Error, Kind, Result};
use crate::os::kernel_file;

/// How often to check a process on a kernel without process descriptors (before 5.3).
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How many files this process may have open.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard limit. If that is refused, it stays as it was.
pub fn enlarge_open_files_max() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The threads of this process; only the calling one if /proc does not show them.
pub fn threads() -> Vec<Pid> {
    let named = |thread: fs::DirEntry| thread.file_name().to_str()?.parse().ok();
    let listed = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads: Vec<_> = listed.filter_map(named).filter_map(Pid::from_raw).collect();
    if threads.is_empty() { vec![gettid()] } else { threads }
}

/// Descriptors that the table of this process has room for after `enlarge_descriptor_table`.
const DESCRIPTORS: u64 = 1024;

/// Makes room for `DESCRIPTORS` open files, or as many as it may have. To be called before threads
/// start: if a process has threads, the kernel waits for an RCU grace period first
/// (expand_fdtable in fs/file.c), which takes 10 to 20 ms.
pub fn enlarge_descriptor_table() {
    debug_assert_eq!(threads().len(), 1, "the kernel would wait");
    let last = DESCRIPTORS.min(open_files_max()).saturating_sub(1);
    // Without it, the start only takes longer.
    let _ = RawFd::try_from(last).map(|last| fcntl_dupfd_cloexec(stdio::stderr(), last));
}

/// The identity of a process, valid even after its id is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pid: i32,
    /// Clock ticks since boot, from /proc/PID/stat; `None` if /proc does not show it.
    start_time: Option<u64>,
}

impl ProcessId {
    /// The process that has the id `pid` now.
    ///
    /// # Errors
    /// `NotFound` if there is none, or only one that has ended but is not reaped.
    pub fn of(pid: i32) -> Result<Self> {
        let id = match stat(pid) {
            Some(now) => (!now.has_main_thread_ended()).then_some(Some(now.start_time)),
            None => exists(pid).then_some(None),
        };
        match id {
            Some(start_time) => Ok(Self { pid, start_time }),
            None => Err(Error::new(Kind::NotFound, format!("no process {pid}"))),
        }
    }

    /// This process.
    pub fn own() -> Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Its id.
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// Whether its main thread still runs. In a daemon that is the thread that answers.
    pub fn is_alive(self) -> bool {
        match self.start_time {
            // A known start time means that `pid` is an id as /proc counts, so /proc is read even
            // if this process counts differently.
            Some(_) => match stat_as_proc_counts(self.pid) {
                Some(now) => self.matches(&now) && !now.has_main_thread_ended(),
                None => exists(self.pid),
            },
            None => Self::of(self.pid).is_ok(),
        }
    }

    /// Whether it was killed but has not exited: its main thread has ended, but others may still be
    /// blocked in a read.
    pub(crate) fn is_zombie(self) -> bool {
        self.start_time.is_some()
            && stat_as_proc_counts(self.pid)
                .is_some_and(|now| self.matches(&now) && now.has_main_thread_ended())
    }

    fn matches(self, now: &Stat) -> bool {
        self.start_time.is_none_or(|start_time| now.start_time == start_time)
    }

    /// Its name: of the script if it is a shell that runs one, otherwise of the program; `?` if
    /// /proc does not show it.
    pub fn name(self) -> String {
        let name = if proc_is_of_own_namespace() { self.name_in_proc() } else { String::new() };
        if name.is_empty() { "?".to_owned() } else { name }
    }

    fn name_in_proc(self) -> String {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let arguments: Vec<_> =
            command.split(|&byte| byte == 0).filter(|argument| !argument.is_empty()).collect();
        let base = |path: &[u8]| {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        // Kernel threads, and processes that are being started, have no command line.
        let command_name = || {
            let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
            base(name.trim_ascii())
        };
        let program = arguments.first().map_or_else(command_name, |argument| base(argument));
        let is_shell = matches!(
            program.trim_start_matches('-'),
            "sh" | "bash" | "dash" | "zsh" | "ksh" | "csh" | "tcsh" | "fish"
        );
        match arguments.iter().skip(1).find(|argument| !argument.starts_with(b"-")) {
            Some(script) if is_shell && !arguments.iter().any(|argument| *argument == b"-c") => {
                base(script)
            }
            _ => program,
        }
    }

    /// Whether it is the leader of a session with a terminal, such as an interactive shell.
    pub(crate) fn is_session_leader_with_terminal(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.session == self.pid && stat.terminal != 0)
    }

    /// Waits for its end, at most `limit`; returns whether it has ended.
    ///
    /// # Errors
    /// `Io` if the system refuses to watch.
    pub fn wait_for_end(self, limit: Option<Duration>) -> Result<bool> {
        match self.watch()? {
            Watch::Ended => Ok(true),
            Watch::Descriptor(descriptor) => wait_readable(&descriptor, limit),
            Watch::AskAgain => Ok(self.check_until_it_ends(limit)),
        }
    }

    /// A watch for its end.
    ///
    /// # Errors
    /// `Io` if the system refuses to watch.
    pub(crate) fn watch(self) -> Result<Watch> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(Watch::Ended);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The id may have been reused before pidfd_open(2), so the start time is compared. The
            // state is not: a killed process has files open until its last thread has ended. If
            // /proc does not show the process, it counts as the same. If it has ended, the
            // descriptor is readable at once.
            Ok(descriptor) if stat(self.pid).is_none_or(|now| self.matches(&now)) => {
                Ok(Watch::Descriptor(descriptor))
            }
            Ok(_) | Err(Errno::SRCH) => Ok(Watch::Ended),
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Ok(Watch::AskAgain),
            Err(error) => {
                Err(Error::io(format!("cannot watch process {}", self.pid), error.into()))
            }
        }
    }

    /// Whether any of its threads still runs; others may outlive the main thread. A process
    /// descriptor also becomes readable when the last thread ends.
    fn has_threads(self) -> bool {
        match stat(self.pid) {
            // The main thread counts until it is reaped.
            Some(now) => self.matches(&now) && (now.threads > 1 || !now.has_main_thread_ended()),
            None => exists(self.pid),
        }
    }

    fn check_until_it_ends(self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        while self.has_threads() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            thread::sleep(ASK_AGAIN);
        }
        true
    }
}

impl FromStr for ProcessId {
    type Err = Error;

    /// Parses the output of `Display`: `PID:STARTTIME`, or `PID:?` if the start time is unknown.
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(pid, start)| {
            let start_time = match start {
                "?" => None,
                start => Some(start.parse().ok()?),
            };
            Some((pid.parse().ok()?, start_time))
        });
        let (pid, start_time) = parsed.filter(|(pid, _)| *pid > 0).ok_or_else(|| {
            Error::new(Kind::Usage, format!("{text:?} is not a process identity"))
        })?;
        Ok(Self { pid, start_time })
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.start_time {
            Some(start_time) => write!(f, "{}:{start_time}", self.pid),
            None => write!(f, "{}:?", self.pid),
        }
    }
}

/// A way to detect the end of a process.
#[derive(Debug)]
pub(crate) enum Watch {
    /// The process has already ended.
    Ended,
    /// A process descriptor; it is readable when the process has ended.
    Descriptor(OwnedFd),
    /// The kernel has no process descriptors, so the process must be checked periodically.
    AskAgain,
}

impl Watch {
    /// The descriptor to poll, if there is one.
    pub(crate) fn descriptor(&self) -> Option<&OwnedFd> {
        match self {
            Self::Descriptor(descriptor) => Some(descriptor),
            Self::Ended | Self::AskAgain => None,
        }
    }

    /// Whether `process`, which this watches, has ended.
    pub(crate) fn has_ended(&self, process: ProcessId) -> bool {
        match self {
            Self::Ended => true,
            // If poll(2) fails, falls back to /proc.
            Self::Descriptor(descriptor) => wait_readable(descriptor, Some(Duration::ZERO))
                .unwrap_or_else(|_| !process.has_threads()),
            Self::AskAgain => !process.has_threads(),
        }
    }
}

/// Waits until `descriptor` is readable, at most `limit`; returns whether it is.
fn wait_readable(descriptor: &OwnedFd, limit: Option<Duration>) -> Result<bool> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let remaining = remaining.map(timespec);
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], remaining.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("cannot watch a process", error.into())),
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Fields of /proc/PID/stat.
pub(crate) struct Stat {
    pub(crate) pid: i32,
    state: u8,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    terminal: i32,
    threads: u32,
    start_time: u64,
}

impl Stat {
    fn has_main_thread_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Whether the ids in /proc are those of this process's pid namespace. They are not if the
/// namespace still has the /proc of another one.
fn proc_is_of_own_namespace() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    fs::read_link("/proc/self").is_ok_and(|shown| shown.as_os_str() == own.to_string().as_str())
}

/// Whether a process with the id `pid` exists, even if /proc does not show it. If the kernel has
/// process descriptors, one that has ended but is not reaped does not count.
fn exists(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid.max(0)) else {
        return false;
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => {
            wait_readable(&descriptor, Some(Duration::ZERO)).is_ok_and(|ended| !ended)
        }
        Err(Errno::SRCH) => false,
        // EPERM means that it belongs to another user.
        Err(_) => matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)),
    }
}

/// The fields for process `pid`; `None` if /proc does not show it, or counts processes differently.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    if proc_is_of_own_namespace() { stat_as_proc_counts(pid) } else { None }
}

/// The fields for this process, with all ids as /proc counts.
pub(crate) fn own_stat() -> Option<Stat> {
    read_stat("self")
}

/// The fields for the process that /proc shows as `pid`.
pub(crate) fn stat_as_proc_counts(pid: i32) -> Option<Stat> {
    read_stat(&pid.to_string())
}

fn read_stat(name: &str) -> Option<Stat> {
    let text = kernel_file::read(format!("/proc/{name}/stat")).ok()?;
    // The second field is the name in parentheses. The name may itself contain parentheses and
    // spaces.
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(text.get(name_end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts fields from 1, and the first one here is the third.
    let field = |number: usize| fields.get(number - 3).copied();
    let pid = text.split(|&byte| byte == b' ').next()?;
    Some(Stat {
        pid: std::str::from_utf8(pid).ok()?.parse().ok()?,
        state: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        terminal: field(7)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

/// The ids of all processes that /proc shows.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists: Option<Vec<String>> =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    match lists {
        Some(lists) => {
            lists.iter().flat_map(|list| list.split_whitespace()).flat_map(str::parse).collect()
        }
        // The kernel has no CONFIG_PROC_CHILDREN.
        None => all().filter(|&child| stat(child).is_some_and(|it| it.parent == pid)).collect(),
    }
}

/// The program of this process, even if its file has been replaced.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// `archfs ARGUMENTS`: this program, in another process.
pub(crate) fn own_program<T: AsRef<OsStr>>(arguments: impl IntoIterator<Item = T>) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("archfs").args(arguments);
    command
}

/// `archfs ARGUMENTS` without input and output.
pub(crate) fn silent_own_program<T: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = T>,
) -> Command {
    let mut command = own_program(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn distinguishes_processes_with_the_same_id() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        let earlier = ProcessId { start_time: own.start_time.map(|time| time - 1), ..own };
        assert!(!earlier.is_alive());
        assert!(earlier.wait_for_end(None).unwrap());
        assert_eq!(own.to_string().parse::<ProcessId>().unwrap(), own);
        let unknown = ProcessId { start_time: None, ..own };
        assert_eq!(unknown.to_string().parse::<ProcessId>().unwrap(), unknown);
        for text in ["12", "12:", "12:x", "0:?", "-3:4"] {
            assert!(text.parse::<ProcessId>().is_err(), "{text}");
        }
    }

    /// This happens with `hidepid=2`, or in a pid namespace that has the /proc of the outer one.
    #[test]
    fn watches_a_process_of_unknown_start_time_by_its_id() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().try_into().unwrap();
        let id = ProcessId { pid, start_time: None };
        assert!(exists(pid) && id.is_alive() && id.has_threads());
        let watch = id.watch().unwrap();
        assert!(!watch.has_ended(id));
        drop(child.stdin.take());
        assert!(id.wait_for_end(None).unwrap() && watch.has_ended(id));
        assert!(!exists(pid), "not reaped yet");
        child.wait().unwrap();
        assert!(!id.is_alive() && matches!(id.watch().unwrap(), Watch::Ended));
        assert!(!exists(0) && !exists(-1));
    }

    /// A daemon is in this state if SIGKILL arrives while one of its threads is blocked in a read.
    #[test]
    fn a_process_ends_with_its_last_thread_but_is_alive_only_with_its_main_thread() {
        let script = "import ctypes, sys, threading\n\
                      threading.Thread(target=lambda: sys.stdin.read()).start()\n\
                      ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)";
        let exit = libc::SYS_exit.to_string();
        let mut command = Command::new("python3");
        let mut child = command.args(["-c", script, &exit]).stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(child.id().try_into().unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while id.is_alive() {
            assert!(Instant::now() < deadline, "the first thread has not ended");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(id.has_threads());
        assert!(!id.wait_for_end(Some(Duration::from_millis(20))).unwrap());
        assert!(!id.check_until_it_ends(Some(Duration::ZERO)));
        assert!(!Watch::AskAgain.has_ended(id) && !id.watch().unwrap().has_ended(id));
        drop(child.stdin.take());
        assert!(id.wait_for_end(None).unwrap() && id.check_until_it_ends(None));
        child.wait().unwrap();
    }

    #[test]
    fn detects_the_end_of_a_process_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(child.id().try_into().unwrap()).unwrap();
        assert_eq!(id.name(), "cat");
        assert!(!ProcessId::of(1).unwrap().name().is_empty());
        assert!(!id.wait_for_end(Some(Duration::ZERO)).unwrap());
        drop(child.stdin.take());
        assert!(id.wait_for_end(None).unwrap());
        assert!(id.check_until_it_ends(None), "without process descriptors, too");
        child.wait().unwrap();
    }
}
