//! Settings that may keep a user from creating a namespace.
//!
//! They only explain a failure. To test whether it works, a child process enters a namespace and
//! exits (`check_namespace`). A setting that cannot be read does not count as a barrier.

use std::fs;

use crate::error::Result;
use crate::lifecycle::mount::namespace;
use crate::os::kernel_file;

/// A setting that prevents a private mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// user.max_user_namespaces is 0.
    NoneAllowed,
    /// user.max_mnt_namespaces is 0.
    NoMountNamespaces,
    /// kernel.unprivileged_userns_clone is 0 (Debian).
    OnlyForRoot,
    /// kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu).
    AppArmor,
    /// A seccomp filter applies to this process, as in containers.
    Filter,
}

/// The barriers that are in effect.
pub(super) fn barriers() -> Vec<Barrier> {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let found = [
        (is("/proc/sys/user/max_user_namespaces", "0"), Barrier::NoneAllowed),
        (is("/proc/sys/user/max_mnt_namespaces", "0"), Barrier::NoMountNamespaces),
        (is("/proc/sys/kernel/unprivileged_userns_clone", "0"), Barrier::OnlyForRoot),
        (is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"), Barrier::AppArmor),
        (kernel_file::own_status("Seccomp").as_deref() == Some("2"), Barrier::Filter),
    ];
    found.into_iter().filter_map(|(is_active, barrier)| is_active.then_some(barrier)).collect()
}

/// Enters a namespace as `run --private` does. Call it in a process that exits afterward.
///
/// # Errors
/// `CannotMount` if the node does not allow it; `Io`.
pub fn check_namespace() -> Result<()> {
    namespace::enter()
}
