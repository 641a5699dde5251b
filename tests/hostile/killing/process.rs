//! Finds the processes and mounts of a round in /proc.
//!
//! Every process of the test has a variable of the test in its environment, which its children
//! inherit. Only such processes are sent a signal.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The name of the variable.
pub(crate) const MARK: &str = "ARCHFS_KILLING";

/// What a process does in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Daemon,
    /// The script, or `run`.
    Holder,
    Command,
    Reader,
    /// `archfs mount`.
    Launcher,
    /// `archfs unmount`, fusermount.
    Helper,
}

/// A process of the test.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) role: Role,
    /// The part of the round: `a` or `b` of two that share a mount, or the commands that follow.
    pub(crate) part: String,
    mark: String,
}

/// Finds the processes of the test.
pub(crate) struct Processes {
    test: String,
    /// PIDs that existed before the test, which are skipped.
    older: Mutex<HashSet<i32>>,
    /// Processes that had the variable when last checked, with their start times. An exiting
    /// process has no environment any more, but still its files, locks and mounts.
    known: Mutex<HashMap<i32, (String, Process)>>,
}

impl Processes {
    pub(crate) fn new() -> Self {
        let test = std::process::id().to_string();
        Self { test, older: Mutex::new(pids().collect()), known: Mutex::default() }
    }

    /// The value of the variable.
    pub(crate) fn mark(&self, round: u64, part: &str) -> String {
        format!("{}.{round}.{part}", self.test)
    }

    /// The processes of a round that have not exited.
    pub(crate) fn of_round(&self, round: u64) -> Vec<Process> {
        self.marked(&format!("{}.{round}.", self.test))
    }

    /// The processes of all rounds.
    pub(crate) fn of_test(&self) -> Vec<Process> {
        self.marked(&format!("{}.", self.test))
    }

    fn marked(&self, start: &str) -> Vec<Process> {
        let all: HashSet<i32> = pids().collect();
        let mut older = self.older.lock().unwrap();
        older.retain(|pid| all.contains(pid));
        let newer: Vec<i32> = all.difference(&older).copied().collect();
        drop(older);
        let mut known = self.known.lock().unwrap();
        for pid in newer {
            let Some(start_time) = start_time(pid) else {
                continue;
            };
            if let Some(mark) = mark_of(pid).filter(|mark| mark.starts_with(&self.test)) {
                let part = mark.rsplit('.').next().unwrap_or_default().to_owned();
                let process = Process { pid, role: role(&command_line(pid)), part, mark };
                known.insert(pid, (start_time, process));
            }
        }
        known.retain(|pid, (began, _)| start_time(*pid).as_ref() == Some(began));
        let of_those = known.values().filter(|(_, process)| process.mark.starts_with(start));
        of_those.map(|(_, process)| process.clone()).collect()
    }
}

impl Process {
    /// Sends `signal` and returns whether the process was there to get it.
    pub(crate) fn kill(&self, signal: Signal) -> bool {
        let Some(descriptor) =
            Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            return false;
        };
        // The PID may have been reused before the descriptor was opened, so check afterward.
        mark_of(self.pid).as_ref() == Some(&self.mark)
            && pidfd_send_signal(descriptor, signal).is_ok()
    }

    /// State of a process that should have exited, for the failure message.
    pub(crate) fn describe(&self) -> String {
        let pid = self.pid;
        let mut text =
            format!("process {pid} {:?} {}: {}", self.role, self.part, command_line(pid).join(" "));
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("");
            let stack: Vec<_> = read("stack").lines().map(|line| line.trim().to_owned()).collect();
            text.push_str(&format!(
                "\n    {} {state} wchan {} {}",
                read("comm").trim(),
                read("wchan"),
                stack.join(" < ")
            ));
        }
        text
    }
}

/// Mounts at or below `directory`, as lines of mountinfo.
pub(crate) fn mounts_below(directory: &Path) -> Vec<String> {
    let text = fs::read("/proc/self/mountinfo").unwrap();
    let text = String::from_utf8_lossy(&text);
    let is_below = |line: &&str| {
        line.split(' ')
            .nth(4)
            .is_some_and(|mount_point| Path::new(mount_point).starts_with(directory))
    };
    text.lines().filter(is_below).map(str::to_owned).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Field 22 of /proc/PID/stat; `None` once all threads of the process have exited.
fn start_time(pid: i32) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let (state, start_time) = (fields.next()?, fields.nth(18)?.to_owned());
    let has_ended = matches!(state, "Z" | "X")
        && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1;
    (!has_ended).then_some(start_time)
}

/// `None` for a process that is exiting.
fn mark_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let start = format!("{MARK}=");
    let mut variables = environment.split(|&byte| byte == 0);
    let found = variables.find_map(|variable| variable.strip_prefix(start.as_bytes()))?;
    String::from_utf8(found.to_vec()).ok()
}

fn command_line(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn role(words: &[String]) -> Role {
    let is = |word: &String, name: &str| {
        Path::new(word).file_name().is_some_and(|found| found.as_bytes() == name.as_bytes())
    };
    let [first, rest @ ..] = words else {
        return Role::Helper;
    };
    if rest.iter().any(|word| word.starts_with("--daemon=")) {
        return Role::Daemon;
    }
    if is(first, "reader") {
        return Role::Reader;
    }
    if is(first, "fusermount3") || is(first, "fusermount") {
        return Role::Helper;
    }
    match rest.first() {
        Some(word) if is(first, "archfs") && word == "mount" => Role::Launcher,
        Some(word) if is(first, "archfs") && word != "run" => Role::Helper,
        Some(word) if is(first, "bash") && is(word, "command.sh") => Role::Command,
        // Also processes that will exec the script or `run`.
        _ => Role::Holder,
    }
}
