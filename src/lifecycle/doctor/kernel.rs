//! The kernel: its number, whether it has FUSE, whether /proc is there.
//!
//! Owns reading those. Invariant: a number is the kernel's own word; distributions carry newer
//! parts into old numbers, so it explains what a trial shows and decides nothing.

use std::fs;

use rustix::system::uname;

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Such as `6.1.0-18-amd64`.
    pub release: String,
    /// Major and minor number, where they can be told.
    pub version: Option<(u32, u32)>,
    /// Whether FUSE is there; `None` where that can not be told.
    pub has_fuse: Option<bool>,
    /// Whether /proc shows this process and its mounts.
    pub has_proc: bool,
}

impl Kernel {
    pub(super) fn probe() -> Self {
        let release = uname().release().to_string_lossy().into_owned();
        let filesystems = fs::read_to_string("/proc/filesystems").ok();
        Self {
            version: version(&release),
            release,
            has_fuse: filesystems
                .map(|text| text.lines().any(|line| line.split('\t').next_back() == Some("fuse"))),
            has_proc: fs::metadata("/proc/self/mountinfo").is_ok(),
        }
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kernels_are_called() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("4.18.0-513.el8.x86_64"), Some((4, 18)));
        assert_eq!(version("7.0"), Some((7, 0)));
        assert_eq!(version("odd"), None);
    }
}
