//! Filters extended attributes: names that Linux does not know, and those that the calling process
//! may not read.
//!
//! Other file systems hide `trusted.*` attributes from processes without CAP_SYS_ADMIN in the
//! initial user namespace (xattr(7)), and such processes cannot read them. On FUSE the kernel also
//! checks reads, but leaves listing to the daemon. Programs such as rsync -X and overlayfs with
//! userxattr fail on names that are listed but cannot be read.

use std::path::PathBuf;

use fuser::Request;

use crate::os::kernel_file;
use crate::vfs::is_linux_xattr;

const TRUSTED: &[u8] = b"trusted.";

/// The bit of CAP_SYS_ADMIN (linux/capability.h).
const SYS_ADMIN: u32 = 21;

/// The NUL-terminated names in `names` that `caller` may see.
pub(super) fn visible(mut names: Vec<u8>, caller: &Request) -> Vec<u8> {
    retain(&mut names, is_linux_xattr);
    let mut each = names.split(|&byte| byte == 0);
    let sees_all = !each.any(|name| name.starts_with(TRUSTED))
        || (caller.uid() == 0 && is_administrator(caller.pid()));
    if !sees_all {
        retain(&mut names, |name| !name.starts_with(TRUSTED));
    }
    names
}

/// Keeps the NUL-terminated names in `names` that are `wanted`.
fn retain(names: &mut Vec<u8>, wanted: impl Fn(&[u8]) -> bool) {
    let is_wanted = |name: &&[u8]| wanted(name.strip_suffix(b"\0").unwrap_or(name));
    let mut each = names.split_inclusive(|&byte| byte == 0);
    if !each.all(|name| is_wanted(&name)) {
        *names =
            names.split_inclusive(|&byte| byte == 0).filter(is_wanted).flatten().copied().collect();
    }
}

/// Whether process `pid` has CAP_SYS_ADMIN in a namespace that maps all users of the initial one;
/// `false` if /proc does not say.
fn is_administrator(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let effective = kernel_file::status(&process, "CapEff");
    let effective = effective.and_then(|bits| u64::from_str_radix(&bits, 16).ok()).unwrap_or(0);
    effective >> SYS_ADMIN & 1 == 1
        && kernel_file::read_text(process.join("uid_map")).is_ok_and(|map| maps_all(&map))
}

/// Whether `map` is that of the initial user namespace. Its lines are "first uid inside, first uid
/// outside, count".
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_linux_does_not_know_are_left_out() {
        let mut names = b"com.apple.a\0user.a\0access\0security.b\0".to_vec();
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"user.a\0security.b\0");
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"user.a\0security.b\0");
        let mut names = b"com.apple.a\0".to_vec();
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"");
    }

    #[test]
    fn recognizes_the_initial_user_namespace_and_this_process() {
        assert!(maps_all("         0          0 4294967295\n"));
        for other in ["", "0 1000 1\n", "0 0 1\n", "0 0 65536\n65536 65536 10\n"] {
            assert!(!maps_all(other), "{other}");
        }
        assert!(!is_administrator(0));
    }
}
