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

/// What a group bounds, and by which files in versions 1 and 2.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Memory,
    Threads,
}

/// A control group, removed when dropped, once all in it have ended.
pub struct Group {
    folder: PathBuf,
    bound: Bound,
    is_first_version: bool,
}

impl Group {
    /// `None`, and loudly so, where none can be made.
    pub fn new(bound: Bound) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("archfs-test-{}-{count}", std::process::id());
        let (controller, first, second) = match bound {
            Bound::Memory => ("memory", "memory.limit_in_bytes", "memory.max"),
            Bound::Threads => ("pids", "pids.max", "pids.max"),
        };
        let root = Path::new("/sys/fs/cgroup");
        // Version 2 gives a group only what the one above it hands down.
        let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        for (folder, file, is_first_version) in
            [(root.join(controller), first, true), (root.to_owned(), second, false)]
        {
            let folder = folder.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if folder.join(file).exists() {
                return Some(Self { folder, bound, is_first_version });
            }
            let _ = fs::remove_dir(&folder);
        }
        assert!(std::env::var_os("CI").is_none(), "CI must have control groups for {controller}");
        eprintln!(
            "SKIPPED: no control group can be made here, so no limit of {controller} is tested"
        );
        None
    }

    /// Sets the limit: bytes, or a number of processes and threads.
    pub fn set(&self, limit: u64) {
        let set = |file: &str| fs::write(self.folder.join(file), limit.to_string());
        match (self.bound, self.is_first_version) {
            (Bound::Threads, _) => set("pids.max").unwrap(),
            (Bound::Memory, true) => {
                // With swap it is never the smaller one, so it is set before where both become
                // larger and after where smaller. Kernels without that count have no such file.
                let _ = set("memory.memsw.limit_in_bytes");
                set("memory.limit_in_bytes").unwrap();
                let _ = set("memory.memsw.limit_in_bytes");
            }
            (Bound::Memory, false) => {
                set("memory.max").unwrap();
                let _ = fs::write(self.folder.join("memory.swap.max"), "0");
            }
        }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The words for mount(8) that mount its hierarchy.
    pub fn mount_words(&self) -> &'static str {
        match (self.is_first_version, self.bound) {
            (true, Bound::Memory) => "-t cgroup -o memory none",
            (true, Bound::Threads) => "-t cgroup -o pids none",
            (false, _) => "-t cgroup2 none",
        }
    }

    /// What a shell in the group makes of `line`.
    pub fn run(&self, line: &str) -> Output {
        let script = format!("echo $$ > {}/cgroup.procs; {line}", self.folder.display());
        Command::new("sh").args(["-c", &script]).output().unwrap()
    }

    /// How many processes of the group were killed for its memory.
    pub fn killed(&self) -> u64 {
        let file = if self.is_first_version { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.expect("a count of kills").parse().unwrap()
    }

    /// Whether all in it have ended.
    pub fn is_empty(&self) -> bool {
        fs::read_to_string(self.folder.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            thread::yield_now();
        }
    }
}
