//! Control groups for a test, of both versions.
//!
//! A shell enters the group and executes the program under test. If no group can be made, the test
//! says so, and fails in CI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::skip::skip;

/// The resource that a group limits, and its files in versions 1 and 2.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Memory,
    Threads,
}

/// A control group. Dropping it removes the group once all its processes have exited.
pub struct Group {
    directory: PathBuf,
    bound: Bound,
    is_first_version: bool,
}

impl Group {
    /// `None`, with a message, if no group can be made.
    pub fn new(bound: Bound) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("archfs-test-{}-{count}", std::process::id());
        let (controller, first, second) = match bound {
            Bound::Memory => ("memory", "memory.limit_in_bytes", "memory.max"),
            Bound::Threads => ("pids", "pids.max", "pids.max"),
        };
        let root = Path::new("/sys/fs/cgroup");
        // In version 2 a group gets only the controllers that its parent enables.
        let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        for (directory, file, is_first_version) in
            [(root.join(controller), first, true), (root.to_owned(), second, false)]
        {
            let directory = directory.join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            if directory.join(file).exists() {
                return Some(Self { directory, bound, is_first_version });
            }
            let _ = fs::remove_dir(&directory);
        }
        assert!(std::env::var_os("CI").is_none(), "CI must have control groups for {controller}");
        skip(&format!("this machine has no control groups for {controller}"));
        None
    }

    /// Sets the limit: bytes, or a number of processes and threads.
    pub fn set(&self, limit: u64) {
        let set = |file: &str| fs::write(self.directory.join(file), limit.to_string());
        match (self.bound, self.is_first_version) {
            (Bound::Threads, _) => set("pids.max").unwrap(),
            (Bound::Memory, true) => {
                // The limit with swap must never be the smaller one, so set it first when both grow
                // and last when both shrink. Some kernels have no such file.
                let _ = set("memory.memsw.limit_in_bytes");
                set("memory.limit_in_bytes").unwrap();
                let _ = set("memory.memsw.limit_in_bytes");
            }
            (Bound::Memory, false) => {
                set("memory.max").unwrap();
                let _ = fs::write(self.directory.join("memory.swap.max"), "0");
            }
        }
    }

    /// The directory of the group.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Arguments of mount(8) that mount the group's hierarchy.
    pub fn mount_words(&self) -> &'static str {
        match (self.is_first_version, self.bound) {
            (true, Bound::Memory) => "-t cgroup -o memory none",
            (true, Bound::Threads) => "-t cgroup -o pids none",
            (false, _) => "-t cgroup2 none",
        }
    }

    /// Runs `line` in a shell in the group.
    pub fn run(&self, line: &str) -> Output {
        let script = format!("echo $$ > {}/cgroup.procs; {line}", self.directory.display());
        Command::new("sh").args(["-c", &script]).output().unwrap()
    }

    /// Number of processes of the group killed for lack of memory.
    pub fn killed(&self) -> u64 {
        let file = if self.is_first_version { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.directory.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.expect("a count of kills").parse().unwrap()
    }

    /// Whether all processes of the group have exited, and none counts any more: the kernel frees
    /// threads some time after their end, and until then they count.
    pub fn is_empty(&self) -> bool {
        let read = |name: &str| fs::read_to_string(self.directory.join(name));
        let counts = read("pids.current").is_ok_and(|text| text.trim() != "0");
        !counts && read("cgroup.procs").is_ok_and(|text| text.is_empty())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            thread::yield_now();
        }
    }
}
