//! Which pages of a file are in the page cache, as fincore(1) reports them.

use std::fs::File;
use std::path::Path;
use std::process::Command;
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
