//! Which pages of a file are in the page cache, as fincore(1) reports them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use super::run;

/// Size of a page on the machines that run the tests, bytes.
pub const PAGE: u64 = 4096;

/// Number of pages of the file in the page cache.
pub fn resident_pages(path: &Path) -> u64 {
    let output = run(Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(path));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Drops the file from the page cache; returns whether that worked. Tries for a while, because a page
/// stays that the kernel is working on.
pub fn forget(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    (0..20).any(|attempt| {
        thread::sleep(Duration::from_millis(10) * attempt.min(1));
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        resident_pages(path) == 0
    })
}

/// Keeps idle pages in memory while it exists: DAMON, with which some kernels reclaim them at any
/// time, is paused. Without root or DAMON it does nothing. Tests that have one run one at a time.
pub struct IdlePagesStay {
    paused: Vec<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

impl IdlePagesStay {
    pub fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds").into_iter().flatten();
        let states = threads.filter_map(|thread| Some(thread.ok()?.path().join("state")));
        let is_paused = |state: &PathBuf| {
            fs::read_to_string(state).is_ok_and(|text| text.trim() == "on")
                && fs::write(state, "off").is_ok()
        };
        Self { paused: states.filter(is_paused).collect(), _turn }
    }
}

impl Drop for IdlePagesStay {
    fn drop(&mut self) {
        for state in &self.paused {
            let _ = fs::write(state, "on");
        }
    }
}
