//! Which process is meant, and waiting for its end.
//!
//! Owns identity (a process id may be used again, id and start time together are not) and the
//! watch.
//! Invariant: a watch ends when, and only when, that very process has ended.
//!
//! The start time stands in /proc/PID/stat, which may be missing or about another process. With
//! `hidepid=2`, /proc does not show processes of other users. In a pid namespace that still has the
//! /proc of the outer one (`unshare --pid --fork`), the same number names another process there. In
//! both cases the start time stays unknown, and the kernel is asked by number: a process descriptor
//! keeps naming the process that it was opened for.

use std::fs;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::error::{Error, Kind, Result};
use crate::kernel_file;

/// How often a kernel without process descriptors (before 5.3) is asked.
pub(in crate::lifecycle) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A process, for ever: also after its number was given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pid: i32,
    /// In clock ticks since boot, as /proc/PID/stat has it; `None` where /proc does not tell.
    start_time: Option<u64>,
}

impl ProcessId {
    /// The process that has the number `pid` now.
    ///
    /// # Errors
    /// `NotFound` where there is none, or only the remains of one.
    pub fn of(pid: i32) -> Result<Self> {
        let id = match stat(pid) {
            Some(now) => (!now.has_first_ended()).then_some(Some(now.start_time)),
            None => exists(pid).then_some(None),
        };
        match id {
            Some(start_time) => Ok(Self { pid, start_time }),
            None => Err(Error::new(Kind::NotFound, format!("no process {pid}"))),
        }
    }

    /// This process.
    ///
    /// # Errors
    /// As `of`.
    pub fn own() -> Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Its number.
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// Whether its first thread still runs, which is the one of a daemon that answers.
    pub fn is_alive(self) -> bool {
        match self.start_time {
            // Whoever noted the start time counted processes as /proc does.
            Some(_) => match stat_as_proc_counts(self.pid) {
                Some(now) => self.is_meant_by(&now) && !now.has_first_ended(),
                None => exists(self.pid),
            },
            None => Self::of(self.pid).is_ok(),
        }
    }

    /// Whether it was killed and has not exited: its first thread has ended, others may still wait
    /// for their storage.
    pub(in crate::lifecycle) fn is_killed(self) -> bool {
        self.start_time.is_some()
            && stat_as_proc_counts(self.pid)
                .is_some_and(|now| self.is_meant_by(&now) && now.has_first_ended())
    }

    fn is_meant_by(self, now: &Stat) -> bool {
        self.start_time.is_none_or(|start_time| now.start_time == start_time)
    }

    /// What it is called: the script's name where it is a shell running one, else the program's;
    /// `?` where /proc does not tell.
    pub fn name(self) -> String {
        let name = if proc_counts_as_we_do() { self.name_in_proc() } else { String::new() };
        if name.is_empty() { "?".to_owned() } else { name }
    }

    fn name_in_proc(self) -> String {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words: Vec<_> = command.split(|&byte| byte == 0).filter(|w| !w.is_empty()).collect();
        let base = |word: &[u8]| {
            let name = word.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        // Kernel threads, and processes that are just being started, have no command line.
        let command_name = || {
            let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
            base(name.trim_ascii())
        };
        let program = words.first().map_or_else(command_name, |word| base(word));
        let is_shell = matches!(
            program.trim_start_matches('-'),
            "sh" | "bash" | "dash" | "zsh" | "ksh" | "csh" | "tcsh" | "fish"
        );
        match words.iter().skip(1).find(|word| !word.starts_with(b"-")) {
            Some(script) if is_shell && !words.iter().any(|word| *word == b"-c") => base(script),
            _ => program,
        }
    }

    /// Whether it is what a person sits in front of: the leader of a session with a terminal.
    pub(in crate::lifecycle) fn is_session_leader_with_terminal(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.session == self.pid && stat.terminal != 0)
    }

    /// Waits for its end, at most `limit`; tells whether it has ended.
    ///
    /// # Errors
    /// `Io` where the system refuses to watch.
    pub fn wait_for_end(self, limit: Option<Duration>) -> Result<bool> {
        match self.watch()? {
            Watch::Ended => Ok(true),
            Watch::Descriptor(descriptor) => wait_readable(&descriptor, limit),
            Watch::AskAgain => Ok(self.ask_until_it_ends(limit)),
        }
    }

    /// Something that tells of its end.
    ///
    /// # Errors
    /// `Io` where the system refuses to watch.
    pub(in crate::lifecycle) fn watch(self) -> Result<Watch> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(Watch::Ended);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The number may have been given away between the two. Of a process that was killed,
            // the first thread may have ended and others not: then its files are still open.
            // If /proc does not show the process, it counts as the same. One that has ended makes
            // the descriptor readable at once.
            Ok(descriptor) if stat(self.pid).is_none_or(|now| self.is_meant_by(&now)) => {
                Ok(Watch::Descriptor(descriptor))
            }
            Ok(_) | Err(Errno::SRCH) => Ok(Watch::Ended),
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Ok(Watch::AskAgain),
            Err(error) => {
                Err(Error::io(format!("can not watch process {}", self.pid), error.into()))
            }
        }
    }

    /// Whether any of its threads still runs, which may go on when the first has ended. A process
    /// descriptor tells of the end of the last one, too.
    fn has_threads(self) -> bool {
        match stat(self.pid) {
            // The first stays until it is reaped.
            Some(now) => self.is_meant_by(&now) && (now.threads > 1 || !now.has_first_ended()),
            None => exists(self.pid),
        }
    }

    fn ask_until_it_ends(self, limit: Option<Duration>) -> bool {
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

    /// Reads what `Display` writes: `PID:STARTTIME`, or `PID:?` where that is unknown.
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(pid, start)| {
            let start_time = match start {
                "?" => None,
                start => Some(start.parse().ok()?),
            };
            Some((pid.parse().ok()?, start_time))
        });
        let (pid, start_time) = parsed
            .filter(|(pid, _)| *pid > 0)
            .ok_or_else(|| Error::new(Kind::Usage, format!("{text:?} is no process identity")))?;
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

/// How the end of a process is seen.
#[derive(Debug)]
pub(in crate::lifecycle) enum Watch {
    /// It has ended before.
    Ended,
    /// A process descriptor, readable when the process has ended.
    Descriptor(OwnedFd),
    /// This kernel has none; one has to ask.
    AskAgain,
}

impl Watch {
    /// What to poll for, where that is possible.
    pub(in crate::lifecycle) fn descriptor(&self) -> Option<&OwnedFd> {
        match self {
            Self::Descriptor(descriptor) => Some(descriptor),
            Self::Ended | Self::AskAgain => None,
        }
    }

    /// Whether `process`, which this watches, has ended.
    pub(in crate::lifecycle) fn has_ended(&self, process: ProcessId) -> bool {
        match self {
            Self::Ended => true,
            // Where poll fails there is no telling; it is asked in the other way.
            Self::Descriptor(descriptor) => wait_readable(descriptor, Some(Duration::ZERO))
                .unwrap_or_else(|_| !process.has_threads()),
            Self::AskAgain => !process.has_threads(),
        }
    }
}

/// Waits until `descriptor` is readable; tells whether it is.
fn wait_readable(descriptor: &OwnedFd, limit: Option<Duration>) -> Result<bool> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(timespec);
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("can not watch a process", error.into())),
        }
    }
}

/// `time` as poll(2) takes it.
pub(in crate::lifecycle) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// What is used of /proc/PID/stat.
pub(in crate::lifecycle) struct Stat {
    pub(in crate::lifecycle) pid: i32,
    state: u8,
    pub(in crate::lifecycle) parent: i32,
    pub(in crate::lifecycle) group: i32,
    pub(in crate::lifecycle) session: i32,
    terminal: i32,
    threads: u32,
    start_time: u64,
}

impl Stat {
    /// Whether its first thread has ended.
    fn has_first_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Whether /proc counts processes as this process does. It does not in a pid namespace that still
/// has the /proc of another one.
fn proc_counts_as_we_do() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    fs::read_link("/proc/self").is_ok_and(|shown| shown.as_os_str() == own.to_string().as_str())
}

/// Whether a process has the number `pid`, also where /proc does not show it. One that has ended
/// and is not reaped yet does not count, where the kernel tells.
fn exists(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid.max(0)) else {
        return false;
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => {
            wait_readable(&descriptor, Some(Duration::ZERO)).is_ok_and(|ended| !ended)
        }
        Err(Errno::SRCH) => false,
        // EPERM: it is of another user.
        Err(_) => matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)),
    }
}

/// What the kernel tells of the process with the number `pid`; `None` where /proc does not show it,
/// or shows another one by this number.
pub(in crate::lifecycle) fn stat(pid: i32) -> Option<Stat> {
    if proc_counts_as_we_do() { stat_as_proc_counts(pid) } else { None }
}

/// What the kernel tells of this process, with all numbers as /proc counts.
pub(in crate::lifecycle) fn own_stat() -> Option<Stat> {
    read_stat("self")
}

/// The same of the process that /proc shows as `pid`.
pub(in crate::lifecycle) fn stat_as_proc_counts(pid: i32) -> Option<Stat> {
    read_stat(&pid.to_string())
}

fn read_stat(name: &str) -> Option<Stat> {
    let text = kernel_file::read(format!("/proc/{name}/stat")).ok()?;
    // The second field is the name in brackets and may hold anything, brackets and spaces included.
    let behind = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(text.get(behind + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and the first here is its third.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tells_a_process_from_the_next_one_with_its_number() {
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

    /// As with `hidepid=2`, or in a pid namespace that has the /proc of the outer one.
    #[test]
    fn a_process_of_unknown_start_time_is_watched_by_its_number() {
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

    /// As the daemon's are ended that SIGKILL meets while it reads.
    #[test]
    fn a_process_has_ended_with_its_last_thread_and_is_not_alive_without_its_first() {
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
        assert!(!id.ask_until_it_ends(Some(Duration::ZERO)));
        assert!(!Watch::AskAgain.has_ended(id) && !id.watch().unwrap().has_ended(id));
        drop(child.stdin.take());
        assert!(id.wait_for_end(None).unwrap() && id.ask_until_it_ends(None));
        child.wait().unwrap();
    }

    #[test]
    fn sees_the_end_of_a_process_also_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(child.id().try_into().unwrap()).unwrap();
        assert_eq!(id.name(), "cat");
        assert!(!ProcessId::of(1).unwrap().name().is_empty());
        assert!(!id.wait_for_end(Some(Duration::ZERO)).unwrap());
        drop(child.stdin.take());
        assert!(id.wait_for_end(None).unwrap());
        assert!(id.ask_until_it_ends(None), "without process descriptors, too");
        child.wait().unwrap();
    }
}
