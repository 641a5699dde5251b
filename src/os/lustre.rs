//! The layout of files on Lustre, by the program `lfs` (lfs-setstripe(1), lfs-getstripe(1)).
//!
//! A file with one stripe is on one storage server, whatever its size. Where many nodes read an
//! archive, that server is the bottleneck.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The layout of a new archive: one stripe up to 256 MiB, four up to 16 GiB, and sixteen for the
/// rest. A few servers share the reads of a large archive, and a small one occupies only one.
const LAYOUT: &str = "setstripe -E 256M -c 1 -S 4M -E 16G -c 4 -E -1 -c 16";

/// The stripes of the file at `path`. `None` if it is not on Lustre, or there is no `lfs`.
pub fn stripe_count(path: &Path) -> Option<u32> {
    asked(&["getstripe", "--stripe-count"], path)
}

/// The stripes that a new file in `directory` gets. `None` if it is not on Lustre, if there is no
/// `lfs`, or if the size of a file decides.
pub fn default_stripe_count(directory: &Path) -> Option<u32> {
    asked(&["getstripe", "--directory", "--stripe-count"], directory)
}

/// Creates an empty file at `path` with a layout for an archive.
pub fn create(path: &Path) -> io::Result<()> {
    let status = silent().args(LAYOUT.split(' ')).arg(path).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other("lfs setstripe has failed")),
    }
}

/// The number that `lfs` prints about `path`.
fn asked(words: &[&str], path: &Path) -> Option<u32> {
    let output = silent().args(words).arg(path).stdout(Stdio::piped()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().parse().ok().filter(|_| output.status.success())
}

fn silent() -> Command {
    let mut lfs = Command::new("lfs");
    lfs.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    lfs
}
