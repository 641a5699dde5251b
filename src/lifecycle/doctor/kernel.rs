//! The kernel: its version, whether it has FUSE, and whether /proc is mounted.
//!
//! Distributions backport features to old versions. So the version only helps to explain the result
//! of a trial.

use std::fs;

use rustix::system::uname;

use crate::os::kernel_file;

/// Facts about the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release, such as `6.1.0-18-amd64`.
    pub release: String,
    /// The major and minor version, if `release` starts with them.
    pub version: Option<(u32, u32)>,
    /// Whether the kernel has FUSE; `None` if /proc/filesystems cannot be read.
    pub has_fuse: Option<bool>,
    /// Whether /proc shows this process and its mounts.
    pub has_proc: bool,
    /// Seconds after which the kernel ends a mount that has not answered a request; `None` for
    /// never.
    pub request_timeout: Option<u64>,
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
            request_timeout: request_timeout(setting(DEFAULT_TIMEOUT), setting(MAX_TIMEOUT)),
        }
    }
}

/// Time-outs of FUSE requests in seconds, 0 for none (Linux 6.15,
/// Documentation/admin-guide/sysctl/fs.rst).
const DEFAULT_TIMEOUT: &str = "/proc/sys/fs/fuse/default_request_timeout";
const MAX_TIMEOUT: &str = "/proc/sys/fs/fuse/max_request_timeout";

fn setting(path: &str) -> Option<u64> {
    kernel_file::read_text(path).ok()?.trim().parse().ok()
}

/// The time-out of a mount that asks for none, as archfs does.
fn request_timeout(default: Option<u64>, max: Option<u64>) -> Option<u64> {
    [default, max].into_iter().flatten().filter(|&seconds| seconds > 0).min()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kernel_releases() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("4.18.0-513.el8.x86_64"), Some((4, 18)));
        assert_eq!(version("7.0"), Some((7, 0)));
        assert_eq!(version("odd"), None);
    }

    #[test]
    fn the_shorter_time_out_applies() {
        assert_eq!(request_timeout(None, None), None, "before Linux 6.15");
        assert_eq!(request_timeout(Some(0), Some(0)), None);
        assert_eq!(request_timeout(Some(60), Some(0)), Some(60));
        assert_eq!(request_timeout(Some(0), Some(300)), Some(300));
        assert_eq!(request_timeout(Some(600), Some(300)), Some(300));
    }
}
