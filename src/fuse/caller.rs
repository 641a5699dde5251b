//! What the process that asks may see.
//!
//! Other file systems do not list the attributes `trusted.*` to processes without CAP_SYS_ADMIN in
//! the first user namespace (xattr(7)), nor can such processes read them. The kernel checks reading
//! on FUSE as well, and leaves the listing to the daemon. Programs fail on names that are listed
//! and cannot be read, such as rsync -X and overlayfs with userxattr.

use std::path::PathBuf;

use fuser::Request;

use crate::kernel_file;

const TRUSTED: &[u8] = b"trusted.";

/// The bit of CAP_SYS_ADMIN (linux/capability.h).
const SYS_ADMIN: u32 = 21;

/// What `caller` may see of `names`, each of which ends with a NUL.
pub(super) fn visible(names: Vec<u8>, caller: &Request) -> Vec<u8> {
    let all = || names.split_inclusive(|&byte| byte == 0);
    if !all().any(|name| name.starts_with(TRUSTED))
        || (caller.uid() == 0 && is_administrator(caller.pid()))
    {
        return names;
    }
    all().filter(|name| !name.starts_with(TRUSTED)).flatten().copied().collect()
}

/// Whether the process `pid` has CAP_SYS_ADMIN, and in a namespace that has all users of the
/// first one; `false` where /proc does not tell.
fn is_administrator(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let effective = kernel_file::status(&process, "CapEff");
    let effective = effective.and_then(|bits| u64::from_str_radix(&bits, 16).ok()).unwrap_or(0);
    effective >> SYS_ADMIN & 1 == 1
        && kernel_file::read_text(process.join("uid_map")).is_ok_and(|map| maps_all(&map))
}

/// Whether `map`, lines of "first number here, first number outside, count", is that of the first
/// user namespace.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_first_user_namespace_and_this_process() {
        assert!(maps_all("         0          0 4294967295\n"));
        for other in ["", "0 1000 1\n", "0 0 1\n", "0 0 65536\n65536 65536 10\n"] {
            assert!(!maps_all(other), "{other}");
        }
        assert!(!is_administrator(0));
    }
}
