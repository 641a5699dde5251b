//! Reports of tests that do not run on this machine, or run only in part.

use std::env;
use std::fs::File;
use std::io::Write;
use std::thread;

/// Reports that the calling test does not run on this machine.
pub fn skip(reason: &str) {
    report("skipped", reason);
}

/// Reports that a part of the calling test does not run on this machine.
pub fn skip_part(reason: &str) {
    report("skipped in part", reason);
}

/// The test harness shows what a test prints only if the test fails. Therefore the report also goes
/// into the file that scripts/test names and prints at its end.
fn report(how: &str, reason: &str) {
    eprintln!("SKIPPED: {reason}");
    let Some(path) = env::var_os("ARCHFS_TEST_SKIPS") else { return };
    // The harness names the thread of a test after it. Tests run at the same time, so a line has to
    // be one write.
    let thread = thread::current();
    let test = thread.name().unwrap_or("a thread of a test");
    let line = format!("{how} {}::{test}: {reason}\n", env!("CARGO_CRATE_NAME"));
    let mut file = File::options().append(true).create(true).open(path).expect("the list of skips");
    file.write_all(line.as_bytes()).expect("the list of skips");
}
