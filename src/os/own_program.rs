//! Runs this program again, as another process.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The program of this process, even if its file has been replaced.
pub(crate) const PATH: &str = "/proc/self/exe";

/// `archfs ARGUMENTS`.
pub(crate) fn command<T: AsRef<OsStr>>(arguments: impl IntoIterator<Item = T>) -> Command {
    let mut command = Command::new(PATH);
    command.arg0("archfs").args(arguments);
    command
}

/// `archfs ARGUMENTS` without input and output.
pub(crate) fn silent<T: AsRef<OsStr>>(arguments: impl IntoIterator<Item = T>) -> Command {
    let mut command = command(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
